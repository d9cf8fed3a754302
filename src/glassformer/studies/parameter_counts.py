"""Two published parameter counts, by closed form and by counting the built model, term by term."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glassformer.cost.parameters import count_by_module
from glassformer.models.closed_form import Comparison, Count, compare
from glassformer.runs.experiment import Experiment, resolve
from glassformer.studies.study import (
    Row,
    Study,
    StudyContext,
    heading,
    load_definition,
    table_head,
    table_row,
)


@dataclass(frozen=True, kw_only=True)
class ParameterCountStudy(Study):
    """Study that compares published parameter counts with formulas and with the built models."""

    published: Mapping[str, int]
    """Published number of parameters for each preset."""

    def measure(self, context: StudyContext) -> dict[str, Any]:
        """Build each model and count its parameters; return the rows, and an error if counts differ."""
        context.reject_partial_options()
        rows = [_row(preset, published) for preset, published in self.published.items()]
        wrong = [row["setting"] for row in rows if len({row["published"], row["theirs"], row["ours"]}) > 1]
        for row in rows:
            context.log(f"{row['setting']}: {row['ours']:,}")
        return {"rows": rows, "error": f"the counts differ: {', '.join(wrong)}" if wrong else ""}

    def markdown(self, document: Mapping[str, Any]) -> str:
        """Return the text of `table.md` for the content of `results.json`."""
        lines = [*heading(document), *table_head("preset", "published", "closed form", "counted")]
        for row in document["rows"]:
            counts = [f"{row[key]:,}" for key in ("published", "theirs", "ours")]
            lines.append(table_row([row["setting"], *counts]))
        for row in document["rows"]:
            lines += ["", f"## {row['setting']}", "", *_terms_table(row["terms"])]
        return "\n".join([*lines, ""])


def _row(preset: str, published: int) -> Row:
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
    lines = table_head("module", "formula", "in numbers", "closed form", "counted")
    for term in terms:
        counts = ["" if term[key] is None else f"{term[key]:,}" for key in ("closed_form", "counted")]
        lines.append(
            table_row([f"`{term['module']}`", term["formula"] or "", term["numbers"] or "", *counts])
        )
    return lines


PARAMETER_COUNTS = ParameterCountStudy(**load_definition("parameter_counts"))
