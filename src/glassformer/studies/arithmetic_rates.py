"""The published sweep of the rate on arithmetic: which rates work, and what warm-up and pre-norm change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glassformer.runs.run import Run
from glassformer.studies import charts
from glassformer.studies.arithmetic_file import FILE
from glassformer.studies.recipes import OURS, THEIRS, Cell, Row, Setting, Study
from glassformer.studies.study import Effort

PUBLISHED = {
    "1e-2": 0.25,
    "1e-3": 1.00,
    "1e-4": 0.77,
    "1e-5": 0.35,
    "1e-6": 0.19,
    "1e-7": 0.05,
    "1e-8": 0.10,
    "1e-9": 0.07,
}
QUICK_RATES = ("1e-2", "1e-3", "1e-6")

PROBE = "POSITIVE 04 add NEGATIVE 11"
PROBE_ANSWER = "-7"

WORKS = 0.9
"""A rate works if it reaches this share of the best accuracy of its recipe."""

PUBLISHED_FILE = {"task.data.train": FILE, "task.leaky": True}
GENERATED = {"task.data": None, "task.leaky": False, "task.max_examples": 4000}
"""The quick version needs no file."""

SAME = {
    "model.dropout": 0.2,
    "training.batch_size": 256,
    "training.max_epochs": 10,
    "training.gradient_clip_norm": None,
    "training.divergence.spike_factor": None,
    "evaluation.decode_during_training": False,
}
"""A high rate is to be seen failing: a jump of the loss ends no run, only a loss that is no number."""

OVERFITTED = "64 expressions, learned by heart"
OVERFITTING = {"training.batch_size": 64, "training.max_epochs": 150}
OVERFITTING_RATE = 1e-3


def _recipe(rate: float, placement: str, warmup_steps: int) -> dict[str, Any]:
    """All that the two recipes differ in is where the norm stands and whether the rate is warmed up."""
    return {
        "training.optimizer": {"kind": "adam", "learning_rate": rate},
        "training.schedule": {"kind": "constant", "warmup_steps": warmup_steps},
        "model.norm_placement": placement,
    }


def _setting(rate: str, published: float) -> Setting:
    return Setting(
        name=rate,
        published=published,
        what="arithmetic",
        overrides={**PUBLISHED_FILE, **SAME, **_recipe(float(rate), "pre", warmup_steps=40)},
        theirs=_recipe(float(rate), "post", warmup_steps=0),
        is_quick=rate in QUICK_RATES,
        quick=GENERATED,
    )


OVERFIT = Setting(
    name=OVERFITTED,
    published=None,
    what="arithmetic-overfit",
    overrides={
        **SAME,
        **OVERFITTING,
        **_recipe(OVERFITTING_RATE, "pre", warmup_steps=20),
        "model.dropout": 0.0,
    },
    theirs={**_recipe(OVERFITTING_RATE, "post", warmup_steps=0), "model.dropout": 0.2},
    is_quick=True,
)
PRESET = Setting(name="our preset, 30 epochs", published=None, what="arithmetic", overrides={})
"""More expressions, more epochs, a rate that falls: what it takes to answer everything."""


@dataclass(frozen=True)
class RateStudy(Study):
    def more(self, cells: Sequence[Cell], rows: list[Row], effort: Effort) -> dict[str, Any]:
        for row in rows:
            for recipe in (THEIRS, OURS):
                runs = [
                    cell for cell in cells if (cell.setting.name, cell.recipe) == (row["setting"], recipe)
                ]
                if runs or f"{recipe}_says" not in row:  # else they are kept from an earlier measurement
                    row[f"{recipe}_exact_match"] = [_exact_match(cell) for cell in runs]
                    row[f"{recipe}_says"] = [_ask(cell) for cell in runs]
        swept = [row for row in rows if row["setting"] in PUBLISHED]
        return {
            "probe": {"input": PROBE, "answer": PROBE_ANSWER},
            "range": {recipe: _range(swept, recipe) for recipe in ("published", THEIRS, OURS)},
            "plot": self._plot(swept, effort) if swept else [],
        }

    def _plot(self, rows: Sequence[Row], effort: Effort) -> list[str]:
        names = {"published": "published", THEIRS: "their recipe", OURS: "ours: pre-norm, warm-up"}
        lines = []
        for recipe, name in names.items():
            shown = [row for row in rows if row[recipe] is not None]
            key = "values" if recipe == OURS else f"{recipe}_values"
            by_seed = list(zip(*(row.get(key, [row[recipe]]) for row in shown), strict=False))
            if by_seed:
                lines.append(charts.Line(name, [float(row["setting"]) for row in shown], by_seed))
        panel = charts.Panel(
            "", lines, "learning rate", "test accuracy of tokens", is_log=True, is_fraction=True
        )
        caption = "Lines: means over seeds; bands from the lowest seed to the highest."
        return charts.write(charts.draw([panel], self.title, caption), effort.folder / "rates")

    def sections(self, document: Mapping[str, Any]) -> list[str]:
        lines = ["## Which rates work", ""]
        lines += [
            f"A rate works if it reaches {100 * WORKS:.0f} % of the best accuracy of its column.",
            "",
        ]
        for recipe, name in (("published", "As published"), (THEIRS, "Their recipe"), (OURS, "Ours")):
            found = document["range"][recipe]
            rates = ", ".join(found["rates"])
            lines += [
                f"- {name}: best {found['best']:.3f}; {rates}." if found else f"- {name}: not measured."
            ]
        lines += ["", "![Accuracy against the rate](rates.png)", ""] if document["plot"] else [""]
        lines += [f"## Whole answers, and `{PROBE}`", ""]
        lines += ["| rate | exact match, theirs | ours | answers, theirs | ours |", "|---|---|---|---|---|"]
        for row in document["rows"]:
            shares = [
                "/".join(f"{value:.3f}" for value in row[f"{recipe}_exact_match"])
                for recipe in (THEIRS, OURS)
            ]
            said = ["/".join(row[f"{recipe}_says"]) for recipe in (THEIRS, OURS)]
            lines.append(f"| {' | '.join([row['setting'], *shares, *said])} |")
        return [*lines, "", f"The right answer is {PROBE_ANSWER}.", ""]


def _exact_match(cell: Cell) -> float:
    return float(cell.job.results()["metrics"]["test"]["exact_match"])


def _ask(cell: Cell) -> str:
    return str(Run(cell.job.path).predict(PROBE)["output"]) or "nothing"


def _range(rows: Sequence[Row], recipe: str) -> dict[str, Any] | None:
    measured = [row for row in rows if row[recipe] is not None]
    if not measured:
        return None
    best = max(row[recipe] for row in measured)
    return {"best": best, "rates": [row["setting"] for row in measured if row[recipe] >= WORKS * best]}


ARITHMETIC_RATES = RateStudy(
    name="arithmetic-rates",
    title="Arithmetic: which learning rates work",
    metric="accuracy",
    settings=[*(_setting(rate, published) for rate, published in PUBLISHED.items()), OVERFIT, PRESET],
    about="The published file of two-digit arithmetic, its 5,000 rows split as published (so that test"
    " inputs also stand in training), 10 epochs in batches of 256, dropout 0.2, Adam. Their recipe: norms"
    " after the sublayers and a rate that is constant from the first step. Ours differs in two things:"
    " norms before the sublayers, and 40 steps of warm-up. The published size of the model is not known;"
    " this is the preset's, 2 + 2 layers of width 64. The accuracy is that of the tokens, teacher-forced."
    " The row after the rates asks whether the model can learn 64 expressions by heart in 150 epochs, at"
    " 1e-3; the last one is the preset `arithmetic`, with the expressions that it makes itself.",
)
