"""Arithmetic studies: our preset, a published data file, and the accuracy by learning rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glassformer.plotting.lines import Axis, Chart, draw, mean_line, save
from glassformer.runs.run import Run
from glassformer.studies.recipes import OURS, THEIRS, RecipeRun, RecipeStudy, Setting
from glassformer.studies.study import (
    Row,
    StudyContext,
    load_definition,
    metric_on_test,
    table_head,
    table_row,
    texts_of,
)

DEFINITION = load_definition("arithmetic")

FILE = "two_digit_op/two_digit_op.json"
"""Path of the published file in the catalogue of public data sets."""
PROBE = "POSITIVE 04 add NEGATIVE 11"
PROBE_ANSWER = "-7"
WORKING_SHARE = 0.9
"""Share of the recipe's best accuracy that a learning rate must reach to count as working."""
PUBLISHED = DEFINITION["rates"]["published"]
PUBLISHED_FILE = {"task.data.train": FILE, "task.leaky": True}
NO_CAUSAL_MASK = Path(__file__).with_name("no_causal_mask.py")
OVERFIT = "64 expressions, memorised"
PRESET = "our preset, 30 epochs"
OVERFIT_RATE = 1e-3


def _file_setting(name: str, published: float | None, is_leaky: bool) -> Setting:
    section = DEFINITION["file"]
    overrides = {"task.data.train": FILE, "task.leaky": is_leaky, **section["overrides"]}
    return Setting(name, published, "arithmetic", overrides, is_quick=True, quick=section["quick"])


def _leak_settings() -> list[Setting]:
    """Return one row per published rate: their recipe without the causal mask, and the same with it."""
    section = DEFINITION["leak"]
    return [
        Setting(
            name=rate,
            published=published,
            source="arithmetic",
            overrides={
                **PUBLISHED_FILE,
                **DEFINITION["rates"]["overrides"],
                **_recipe(float(rate), "post", warmup_steps=0),
            },
            theirs=section["theirs"],
            is_quick=rate in section["quick_rates"],
            quick=section["quick"],
            plugins=(NO_CAUSAL_MASK,),
        )
        for rate, published in PUBLISHED.items()
    ]


def _honest_settings() -> list[Setting]:
    """Return one row per rate on the de-duplicated file, with enough epochs for both recipes."""
    section = DEFINITION["honest"]
    ours = {"task.data.train": FILE, **DEFINITION["file"]["overrides"], **section["overrides"]}
    return [
        Setting(
            name=rate,
            published=None,
            source="arithmetic",
            overrides={**ours, "training.optimizer.learning_rate": float(rate)},
            theirs={**section["theirs"], **_recipe(float(rate), "post", warmup_steps=0)},
            is_quick=rate in section["quick_rates"],
            quick=section["quick"],
        )
        for rate in section["rates"]
    ]


def _recipe(rate: float, placement: str, warmup_steps: int) -> dict[str, Any]:
    """Return the overrides in which recipes differ: learning rate, warm-up and norm placement."""
    return {
        "training.optimizer": {"kind": "adam", "learning_rate": rate},
        "training.schedule": {"kind": "constant", "warmup_steps": warmup_steps},
        "model.norm_placement": placement,
    }


def _rate_settings() -> list[Setting]:
    section = DEFINITION["rates"]
    settings = [
        Setting(
            name=rate,
            published=published,
            source="arithmetic",
            overrides={
                **PUBLISHED_FILE,
                **section["overrides"],
                **_recipe(float(rate), "pre", warmup_steps=40),
            },
            theirs=_recipe(float(rate), "post", warmup_steps=0),
            is_quick=rate in section["quick_rates"],
            quick=section["quick"],
        )
        for rate, published in PUBLISHED.items()
    ]
    ours = {**section["overrides"], **_recipe(OVERFIT_RATE, "pre", warmup_steps=20), **section["overfit"]}
    theirs = {**_recipe(OVERFIT_RATE, "post", warmup_steps=0), "model.dropout": 0.2}
    # The preset has more expressions, more epochs and a decaying learning rate: enough to answer everything.
    return [
        *settings,
        Setting(OVERFIT, None, "arithmetic-overfit", ours, theirs, is_quick=True),
        Setting(PRESET, None, "arithmetic", {}),
    ]


@dataclass(frozen=True, kw_only=True)
class LearningRateStudy(RecipeStudy):
    """Study of accuracy by learning rate, with exact match and the model's output for one fixed input."""

    labels: Mapping[str, str] = field(
        default_factory=lambda: {THEIRS: "their recipe", OURS: "ours: pre-norm, warm-up"}
    )
    """Names of the two recipes in the plot and in the list of rates that work."""

    def extra_results(
        self, runs: Sequence[RecipeRun], rows: list[Row], context: StudyContext
    ) -> dict[str, Any]:
        """Add exact match and the output for one fixed input to `rows`.

        Return the range of learning rates that train well, by recipe, and the plot files.
        """
        for row in rows:
            for recipe in (THEIRS, OURS):
                own = [run for run in runs if (run.setting.name, run.recipe) == (row["setting"], recipe)]
                if own or f"{recipe}_says" not in row:  # otherwise reused from an earlier measurement
                    row[f"{recipe}_exact_match"] = [
                        metric_on_test(run.job.results(), "exact_match") for run in own
                    ]
                    row[f"{recipe}_says"] = [_predict_probe(run) for run in own]
        swept = [row for row in rows if row["setting"] not in (OVERFIT, PRESET)]
        return {
            "probe": {"input": PROBE, "answer": PROBE_ANSWER},
            "range": {recipe: _working_rates(swept, recipe) for recipe in ("published", THEIRS, OURS)},
            "plot": self._plot(swept, context) if swept else [],
        }

    def _plot(self, rows: Sequence[Row], context: StudyContext) -> list[str]:
        labels = {"published": "published", **self.labels}
        lines = []
        for recipe, label in labels.items():
            shown = [row for row in rows if row[recipe] is not None]
            key = "values" if recipe == OURS else f"{recipe}_values"
            by_seed = list(zip(*(row.get(key, [row[recipe]]) for row in shown), strict=False))
            if by_seed:
                lines.append(mean_line(label, [float(row["setting"]) for row in shown], by_seed))
        x, y = (
            Axis("learning rate", is_log=True),
            Axis(
                "test exact match" if self.metric == "exact_match" else "test accuracy of tokens",
                is_percent=True,
            ),
        )
        caption = "Lines: means over seeds; bands from the lowest seed to the highest."
        return save(draw([Chart("", lines, x, y)], self.title, caption), context.folder / "rates")

    def sections(self, document: Mapping[str, Any]) -> list[str]:
        """Return the lines of `table.md` on learning rates that work, exact match and the fixed input."""
        lines = [
            "## Which learning rates work",
            "",
            f"A learning rate works if it reaches {100 * WORKING_SHARE:.0f} % of the best accuracy"
            " in its column.",
            "",
        ]
        for recipe, name in {"published": "as published", **self.labels}.items():
            found = document["range"][recipe]
            if recipe == "published" and not found:
                continue
            shown = f"best {found['best']:.3f}; {', '.join(found['rates'])}" if found else "not measured"
            lines += [f"- {name}: {shown}."]
        lines += ["", "![Accuracy against learning rate](rates.png)", ""] if document["plot"] else [""]
        lines += [f"## Exact match, and the prediction for `{PROBE}`", ""]
        lines += table_head("learning rate", "exact match, theirs", "ours", "prediction, theirs", "ours")
        for row in document["rows"]:
            exact = [row[f"{recipe}_exact_match"] for recipe in (THEIRS, OURS)]
            cells = ["/".join(f"{value:.3f}" for value in values) for values in exact]
            cells += ["/".join(row[f"{recipe}_says"]) for recipe in (THEIRS, OURS)]
            lines.append(table_row([row["setting"], *cells]))
        return [*lines, "", f"The correct result is {PROBE_ANSWER}.", ""]


def _predict_probe(run: RecipeRun) -> str:
    return str(Run(run.job.path).predict(PROBE)["output"]) or "nothing"


def _working_rates(rows: Sequence[Row], recipe: str) -> dict[str, Any] | None:
    measured = [row for row in rows if row[recipe] is not None]
    if not measured:
        return None
    best = max(row[recipe] for row in measured)
    rates = [row["setting"] for row in measured if row[recipe] >= WORKING_SHARE * best]
    return {"best": best, "rates": rates}


ARITHMETIC_PRESET = RecipeStudy(
    settings=[
        Setting(
            "−49…49, 60 % in training",
            None,
            "arithmetic",
            {},
            is_quick=True,
            quick=DEFINITION["preset"]["quick"],
        )
    ],
    **texts_of(DEFINITION["preset"]),
)
ARITHMETIC_FILE = RecipeStudy(
    settings=[
        _file_setting("de-duplicated", None, is_leaky=False),
        _file_setting("as published, leaky", 1.0, is_leaky=True),
    ],
    **texts_of(DEFINITION["file"]),
)
ARITHMETIC_RATES = LearningRateStudy(settings=_rate_settings(), **texts_of(DEFINITION["rates"]))
ARITHMETIC_LEAK = LearningRateStudy(
    settings=_leak_settings(), labels=DEFINITION["leak"]["labels"], **texts_of(DEFINITION["leak"])
)
ARITHMETIC_HONEST = LearningRateStudy(
    settings=_honest_settings(), labels=DEFINITION["honest"]["labels"], **texts_of(DEFINITION["honest"])
)
