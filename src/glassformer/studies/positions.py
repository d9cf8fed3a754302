"""Every positional encoding on three tasks, to the longest length of training and beyond: theory, seen."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glassformer.blocks.positions import PositionConfig
from glassformer.core.registry import kinds
from glassformer.evaluation.evaluate import evaluate
from glassformer.runs.run import Run
from glassformer.storage.files import json_bytes, replace_file
from glassformer.studies import charts
from glassformer.studies.jobs import Results
from glassformer.studies.length_data import LengthData, digits, draw_reversals, draw_sentences, draw_sums
from glassformer.studies.recipes import Cell, Overrides, Row, Setting, Study, both, number, with_interval
from glassformer.studies.study import Effort

FEWEST = 8
"""A length that fewer examples have is no point of the curve."""

SAME = {"training.divergence.spike_factor": None}
"""All kinds train at the same rate: a jump of the loss, from which most come back, ends no run."""

THEORY = {
    "none": "Without positions an encoder sees a set: reversal can only guess among the tokens that are"
    " there. A causal decoder can still count what it has written.",
    "sinusoidal": "Absolute places: reversal can be learned. Waves go on beyond the longest training"
    " length, but the model has never seen them there.",
    "learned": "Absolute places, a vector each: those beyond the longest training length were never trained.",
    "simple": "One number for the place: neighbours differ by 1 ÷ the longest length, so what asks for an"
    " exact place is the harder to learn the longer sequences are. Beyond, the number only grows.",
    "relative": "Distances, clipped: from place i to its mirror image the distance depends on i, so a"
    " distance alone cannot reverse; only the ends of a sequence give places away. What depends on near"
    " words should hold at any length.",
    "t5": "Distances in buckets, a bias each: no place but near the ends, so hardly any reversal; far"
    " distances look alike at any length.",
    "alibi": "A penalty that grows with distance: no place, and the far end that reversal asks for is"
    " punished most. Made for longer texts than those of training.",
    "rotary": "Distances as angles, sharp ones: no place but what the ends of a sequence give away. Angles"
    " beyond the longest training length are new.",
}
"""By kind; a plug-in's kind has none."""


@dataclass(frozen=True)
class Domain:
    """A task, by length."""

    data: LengthData
    what: str
    """The preset whose options are taken where nothing else is said."""
    unit: str
    """Of the length."""
    options: Overrides
    decoded: str | None = None
    """The metric of answers that the model writes by itself."""


@dataclass(frozen=True)
class PositionStudy(Study):
    domains: Sequence[Domain] = ()
    quick_domains: Sequence[Domain] = ()

    def chosen(self, effort: Effort) -> list[Setting]:
        return [
            _setting(domain, kind)
            for domain in self._domains(effort)
            for kind in sorted(kinds(PositionConfig))
        ]

    def cells(self, effort: Effort) -> list[Cell]:
        for domain in self._domains(effort):
            domain.data.write(effort.folder / "data")
        return super().cells(effort)

    def places(self, setting: Setting, effort: Effort) -> Overrides:
        files = setting.overrides["task"]["data"]
        folder = (effort.folder / "data").resolve()
        return {f"task.data.{split}": str(folder / files[split]) for split in ("train", "validation", "test")}

    @property
    def measured(self) -> str:
        return f"{self.metric} of tokens"

    def value(self, results: Results) -> float:
        """Up to the longest length of training, on examples that training did not see."""
        return float(results["metrics"]["validation"][self.metric])

    def more(self, cells: Sequence[Cell], rows: list[Row], effort: Effort) -> dict[str, Any]:
        domains = {domain.data.name: domain for domain in self._domains(effort)}
        for row in rows:
            task, _, kind = row["setting"].partition(", ")
            own = [cell for cell in cells if cell.setting.name == row["setting"]]
            if not own:  # kept from an earlier measurement
                continue
            row |= {"task": task, "position": kind, "theory": THEORY.get(kind, "")}
            results = [cell.job.results()["metrics"] for cell in own]
            row["beyond"] = statistics.fmean(result["test"][self.metric] for result in results)
            decoded = domains[task].decoded
            for name, split in (("decoded", "validation"), ("decoded_beyond", "test")):
                values = [result[split][decoded] for result in results if decoded]
                row[name] = statistics.fmean(values) if values else None
            row["by_length"] = _mean_by_length(
                [self._by_length(cell, domains[task].data, effort) for cell in own]
            )
        return {
            "tasks": {
                name: {"longest": domain.data.longest, "unit": domain.unit, "decoded": domain.decoded}
                for name, domain in domains.items()
            },
            "plot": self._plot(rows, domains, effort),
        }

    def _domains(self, effort: Effort) -> Sequence[Domain]:
        return self.quick_domains if effort.is_quick else self.domains

    def _by_length(self, cell: Cell, data: LengthData, effort: Effort) -> dict[str, float]:
        """Kept in a file: it takes a while, and follows from the run alone."""
        file = effort.folder / "lengths" / f"{cell.job.path.name}.json"
        if not file.is_file():
            file.parent.mkdir(exist_ok=True)
            found = _accuracy_by_length(cell.job.path, data, effort.folder / "data", self.metric)
            replace_file(file, json_bytes(found))
        return dict(json.loads(file.read_bytes()))

    def _plot(self, rows: Sequence[Row], domains: Mapping[str, Domain], effort: Effort) -> list[str]:
        panels = []
        for task in dict.fromkeys(row["task"] for row in rows):
            own = [row for row in rows if row["task"] == task]
            panels.append(
                charts.Panel(
                    task,
                    [_line(row) for row in own if row["by_length"]],
                    domains[task].unit,
                    "accuracy of tokens",
                    is_whole=True,
                    is_fraction=True,
                    limit=("longest in training", domains[task].data.longest + 0.5),
                )
            )
        seeds = max(len(row["seeds"]) for row in rows)
        caption = "Left of the line: lengths of training, other examples. "
        caption += "One seed." if seeds == 1 else f"Means over {seeds} seeds."
        return charts.write(charts.draw(panels, self.title, caption), effort.folder / "lengths-plot")

    def table(self, document: Mapping[str, Any]) -> list[str]:
        lines: list[str] = []
        for task, about in document["tasks"].items():
            rows = [row for row in document["rows"] if row["task"] == task]
            longest, decoded = about["longest"], about["decoded"]
            if not rows:
                continue
            heads = ["position", f"to {longest}", f"{longest + 1} to {2 * longest}"]
            heads += [f"{decoded}, to {longest}", f"{decoded}, beyond"] if decoded else []
            lines += ["", f"## {task}, by {about['unit']}", ""]
            lines += [f"| {' | '.join([*heads, 'steps', 'seconds'])} |", f"|{'---|' * (len(heads) + 2)}"]
            for row in sorted(rows, key=lambda row: -row["ours"]):
                cells = [row["position"], with_interval(row["ours"], row["interval"]), number(row["beyond"])]
                cells += [f"{row[key]:.4g}" for key in ("decoded", "decoded_beyond") if decoded]
                cells += [both(row, "steps", "d"), both(row, "seconds", ".0f")]
                lines.append(f"| {' | '.join(cells)} |")
        return lines[1:]

    def sections(self, document: Mapping[str, Any]) -> list[str]:
        lines = ["![Accuracy against the length](lengths-plot.png)", "", "## What the theory says", ""]
        theory = {row["position"]: row["theory"] for row in document["rows"]}
        return [*lines, *(f"- `{kind}`: {text}" for kind, text in theory.items() if text), ""]


def _setting(domain: Domain, kind: str) -> Setting:
    task = {**domain.options["task"], "data": {**domain.data.files(), "columns": {"input": 0, "target": 1}}}
    options = {**SAME, **domain.options, "task": task, "model.position": {"kind": kind}}
    return Setting(f"{domain.data.name}, {kind}", None, domain.what, options, is_quick=True)


def _line(row: Row) -> charts.Line:
    lengths = sorted(map(int, row["by_length"]))
    return charts.Line(row["position"], lengths, [[row["by_length"][str(length)] for length in lengths]])


def _accuracy_by_length(path: Path, data: LengthData, folder: Path, metric: str) -> dict[str, float]:
    """Teacher-forced, over validation (lengths of training) and test (longer ones)."""
    run = Run(path)
    found: dict[str, float] = {}
    for split in ("validation", "test"):
        examples = run.task.splits[split]
        lengths = data.lengths(folder / data.files()[split])
        for length in np.unique(lengths).tolist():
            chosen = np.flatnonzero(lengths == length)
            if len(chosen) >= FEWEST:
                name = f"{split} of length {length}"
                run.task.splits[name] = examples.take(chosen)
                measured = evaluate(run.model, run.task, name, run.config.evaluation, decodes=False)
                found[str(length)] = measured[metric]
    return found


def _mean_by_length(seeds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {length: statistics.fmean(seed[length] for seed in seeds) for length in seeds[0]}


def _reversal(longest: int, train_examples: int, steps: int) -> Domain:
    return Domain(
        LengthData("reversal", draw_reversals, longest // 2, longest, train_examples, 400),
        what="reversal",
        unit="tokens",
        options={
            "task": {"kind": "tokens", "answer": "token-labels"},
            "model.num_layers": 2,
            "model.num_heads": 4,
            "model.input": {"kind": "tokens"},
            "training.optimizer.learning_rate": 3e-3,
            "training.batch_tokens": 2048,
            "training.max_steps": steps,
            "training.validate_every": 200,
            "training.validation_examples": None,
            "training.stopping.target": None,
        },
    )


ARITHMETIC = Domain(
    LengthData("arithmetic", draw_sums, 1, 2, 6000, 400, digits),
    what="arithmetic",
    unit="digits of a number",
    options={
        "task": {"kind": "tokens", "answer": "sequence", "separator": "", "shared_vocabulary": True},
        "training.max_steps": 1500,
        "training.max_epochs": None,
        "training.validate_every": 500,
        "evaluation.decode_during_training": False,
    },
    decoded="exact_match",
)
TRANSLATION = Domain(
    LengthData("translation", draw_sentences, 2, 8, 20_000, 400),
    what="translation",
    unit="words of the English sentence",
    options={
        "task": {
            "kind": "translation",
            "tokenizer": {"kind": "bpe", "vocabulary_size": 1000},
            "max_length": 48,
        },
        "model.hidden_dim": 64,
        "model.feed_forward_dim": 256,
        "training.batch_tokens": 1024,
        "training.max_steps": 1200,
        "training.max_epochs": None,
        "training.validate_every": 600,
        "evaluation.decode_during_training": False,
    },
    decoded="bleu",
)

POSITIONS = PositionStudy(
    name="positions",
    title="Positional encodings: to the lengths of training, and to twice those",
    metric="accuracy",
    settings=(),
    about="Every kind of position on reversal (a label a token; training has 6 to 12 tokens), addition"
    " (written digit by digit; numbers of 2 digits, and the few of 1) and translation (the offline grammar;"
    " sentences of 2 to 8 words), each model as small as learns it in about a minute of one core. Measured"
    " on other examples of the same lengths, and on longer ones up to twice the longest. Accuracy of tokens,"
    " teacher-forced where answers are written; the columns with another name are of answers that the"
    " model wrote by itself. The best checkpoint is chosen on the first of the two sets. One seed unless"
    " `--seeds` says otherwise: differences of a few points may be chance. Nothing like it was published:"
    " what is reproduced is what the theory says.",
    seeds=1,
    domains=[_reversal(12, 20_000, 1000), ARITHMETIC, TRANSLATION],
    quick_domains=[_reversal(8, 8_000, 200)],
)
