"""Two published parameter counts, by the closed form and by counting what is built, term by term."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glassformer.cost.parameters import count_by_module
from glassformer.models.closed_form import Comparison, Count, compare
from glassformer.runs.experiment import Experiment, resolve
from glassformer.studies.study import Effort, written_by


@dataclass(frozen=True)
class ParameterCounts:
    published: Mapping[str, int]
    """By preset."""
    about: str
    name: str = "parameter-counts"
    title: str = "Parameters of the published models, with their terms"
    metric: str = "parameters"
    seeds: int = 1
    """A count has no chance in it."""

    def measure(self, effort: Effort) -> dict[str, Any]:
        effort.refuse_parts()
        rows = [_row(preset, published) for preset, published in self.published.items()]
        wrong = [row["setting"] for row in rows if len({row["published"], row["theirs"], row["ours"]}) > 1]
        for row in rows:
            effort.say(f"{row['setting']}: {row['ours']:,}")
        return {
            "about": self.about,
            "rows": rows,
            "complaint": f"the counts differ: {', '.join(wrong)}" if wrong else "",
        }

    def markdown(self, document: Mapping[str, Any]) -> str:
        lines = [f"# {document['title']}", "", document["about"], "", written_by(document), ""]
        lines += ["| preset | published | closed form | counted |", "|---|---|---|---|"]
        for row in document["rows"]:
            lines += [f"| {row['setting']} | {row['published']:,} | {row['theirs']:,} | {row['ours']:,} |"]
        for row in document["rows"]:
            lines += ["", f"## {row['setting']}", "", *_terms_table(row["terms"])]
        return "\n".join([*lines, ""])


def _row(preset: str, published: int) -> dict[str, Any]:
    experiment = Experiment(resolve(preset))
    by_module = count_by_module(experiment.build_model())
    terms = experiment.config.model.parameter_terms(experiment.task.task_type)
    return {
        "setting": preset,
        "published": published,
        "theirs": sum(map(int, terms.values())),
        "ours": sum(by_module.values()),
        "interval": None,
        "seeds": [],
        "config": experiment.config.fingerprint(),
        "terms": [_term(comparison) for comparison in compare(terms, by_module)],
    }


def _term(comparison: Comparison) -> dict[str, Any]:
    term = comparison.term
    return {
        "module": comparison.path,
        "formula": term.formula if isinstance(term, Count) else None,
        "numbers": term.numbers if isinstance(term, Count) else None,
        "closed_form": None if term is None else int(term),
        "counted": comparison.counted,
    }


def _terms_table(terms: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = ["| module | formula | in numbers | closed form | counted |", "|---|---|---|---|---|"]
    for term in terms:
        counts = ["" if term[key] is None else f"{term[key]:,}" for key in ("closed_form", "counted")]
        cells = [f"`{term['module']}`", term["formula"] or "", term["numbers"] or "", *counts]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


PARAMETER_COUNTS = ParameterCounts(
    published={"counting-classifier": 988_402, "counting-language-model": 1_008_100},
    about="Four post-norm blocks of width 200 over 100 symbols: a classifier of two classes, and a language"
    " model whose output is not tied. The column of their recipe is the closed form, ours the parameters of"
    " the model as it is built, counted.",
)
