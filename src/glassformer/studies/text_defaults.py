"""Default options for text classification on five small public sets, beside a bag of words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from glassformer.core.errors import user_error
from glassformer.studies.recipes import OURS, THEIRS, RecipeRun, RecipeStudy, Setting, costs, with_interval
from glassformer.studies.study import Row, StudyContext, load_definition, table_head, table_row, texts_of
from glassformer.studies.transfer_data import BASELINE, BASELINE_HINT, has_baseline, measure_baseline
from glassformer.tasks.classification import ClassificationConfig

DEFINITION = load_definition("text_defaults")


@dataclass(frozen=True, kw_only=True)
class TextDefaultsStudy(RecipeStudy):
    """Study of the preset `classification` on small data. The column `theirs` is the bag of words."""

    def measure(self, context: StudyContext) -> dict[str, Any]:
        """Train the unfinished runs, fit a bag-of-words baseline on each data set, return the table rows."""
        if not has_baseline():
            raise user_error("scikit-learn is not installed", path=self.name, hint=BASELINE_HINT)
        return super().measure(context)

    def extra_results(
        self, runs: Sequence[RecipeRun], rows: list[Row], context: StudyContext
    ) -> dict[str, Any]:
        """Fit a bag-of-words baseline on each row's data set, and add its accuracy to the row."""
        for row in rows:
            own = [run for run in runs if run.setting.name == row["setting"]]
            if not own:
                continue  # kept from an earlier measurement
            context.log(f"{row['setting']}: fitting {BASELINE}")
            task = own[0].job.config.task
            assert isinstance(task, ClassificationConfig)
            baseline = measure_baseline(task)
            row |= {"baseline": asdict(baseline), THEIRS: baseline.test_accuracy}
        return {}

    def table(self, document: Mapping[str, Any]) -> list[str]:
        """Return the lines of the Markdown table."""
        lines = table_head(
            "data",
            "training texts",
            "test texts",
            "bag of words",
            "ours, mean",
            "difference",
            "steps",
            "seconds",
        )
        for row in document["rows"]:
            baseline = row["baseline"]
            cells = [row["setting"], f"{baseline['labels']:,}", f"{baseline['test_examples']:,}"]
            cells += [with_interval(row[THEIRS], list(baseline["interval"]))]
            cells += [
                with_interval(row[OURS], row["interval"]),
                f"{100 * (row[OURS] - row[THEIRS]):+.1f} points",
            ]
            lines.append(table_row([*cells, *costs(row)]))
        return [*lines, "", "Brackets at the bag of words: 95 % interval over test texts (bootstrap)."]


TEXT_DEFAULTS = TextDefaultsStudy(
    **texts_of(DEFINITION),
    settings=[
        Setting(
            name=name,
            published=None,
            source="classification",
            overrides=overrides,
            is_quick=name in DEFINITION["quick_settings"],
            quick=DEFINITION["quick"],
        )
        for name, overrides in DEFINITION["settings"].items()
    ],
)
