"""Reversal table: eight combinations of length and categories, one block, one head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from glassformer.runs.run import Run
from glassformer.studies.recipes import OURS, THEIRS, RecipeRun, RecipeStudy, Setting
from glassformer.studies.study import Row, StudyContext, load_definition, texts_of

DEFINITION = load_definition("reversal")

SOLVED, UNSOLVED = 0.9, 0.05
"""Limits of (accuracy - chance) / (1 - chance). A model between the limits counts as half solved."""
STATES = ("solved", "half-solved", "unsolved")


def _setting(name: str) -> Setting:
    length, categories = map(int, name.split("×"))
    is_quick = name in DEFINITION["quick_settings"]
    epochs = DEFINITION["fewer_epochs"].get(length)
    return Setting(
        name=name,
        published=DEFINITION["published"].get(name),
        source="reversal",
        overrides={"task.length": length, "task.categories": categories, **DEFINITION["ours"]},
        theirs={**DEFINITION["theirs"], **({"training.max_epochs": epochs} if epochs else {})},
        is_quick=is_quick,
        is_full=not is_quick,
        quick=DEFINITION["quick"],
    )


@dataclass(frozen=True, kw_only=True)
class ReversalStudy(RecipeStudy):
    """Study of sequence reversal, with attention maps of a solved, a half-solved and an unsolved model."""

    halfway: Setting | None = None
    """Setting that is trained only for its attention map, if no run of the table ends half solved."""

    def extra_results(
        self, runs: Sequence[RecipeRun], rows: list[Row], context: StudyContext
    ) -> dict[str, Any]:
        """Draw the attention maps of one solved, half-solved and unsolved model each; return their files."""
        # Maps of an earlier measurement are reused if their pictures are in the folder.
        reused = [
            shown for shown in context.earlier.get("maps", []) if (context.folder / shown["file"]).is_file()
        ]
        maps = {shown["state"]: shown for shown in reused}
        examples = self._examples(runs)
        if "half-solved" not in {**maps, **examples} and context.with_theirs and not context.is_quick:
            examples |= self._examples(self._halfway(context))
        for state, run in examples.items():
            name = f"attention-{state}.png"
            Run(run.job.path).attention().save(context.folder / name)
            maps[state] = {
                "state": state,
                "run": run.job.path.name,
                "setting": run.setting.name,
                "recipe": run.recipe,
                self.metric: self.value(run.job.results()),
                "file": name,
            }
        shown = [maps[state] for state in STATES if state in maps]
        return {"maps": shown, "plot": [one["file"] for one in shown]}

    def _halfway(self, context: StudyContext) -> list[RecipeRun]:
        if self.halfway is None:
            return []
        run = self._run(self.halfway, THEIRS, self.halfway.theirs or {}, seed=0, context=context)
        if context.trains:
            self.train([run], context)
        return [run] if run.job.results() else []

    def _examples(self, runs: Sequence[RecipeRun]) -> dict[str, RecipeRun]:
        """Return one solved, one half-solved and one unsolved run, by state.

        Shorter sequences are preferred, then the published recipe.
        """
        found: dict[str, tuple[tuple[float, ...], RecipeRun]] = {}
        for run in runs:
            task = run.job.config.dump()["task"]
            chance = 1 / task["categories"]
            progress = (self.value(run.job.results()) - chance) / (1 - chance)
            state = "solved" if progress >= SOLVED else "unsolved" if progress <= UNSOLVED else "half-solved"
            distance = abs(progress - 0.5) if state == "half-solved" else 0.0
            rank = (round(distance, 3), task["length"], run.recipe == OURS)
            if state not in found or rank < found[state][0]:
                found[state] = (rank, run)
        return {state: found[state][1] for state in STATES if state in found}

    def sections(self, document: Mapping[str, Any]) -> list[str]:
        """Return the lines of `table.md` with maps of a solved, a half-solved and an unsolved model."""
        lines = ["## Attention", ""]
        for shown in document["maps"]:
            recipe = "ours" if shown["recipe"] == OURS else "their recipe"
            caption = (
                f"{shown['state']}: {shown['setting']}, {recipe}, {self.metric} {shown[self.metric]:.3f}"
            )
            lines += [f"{caption[0].upper()}{caption[1:]}.", "", f"![{caption}]({shown['file']})", ""]
        missing = set(STATES) - {shown["state"] for shown in document["maps"]}
        return [*lines, *(f"No measured model is {state}." for state in sorted(missing)), ""]


REVERSAL_TABLE = ReversalStudy(
    **texts_of(DEFINITION),
    settings=[_setting(name) for name in (*DEFINITION["published"], *DEFINITION["quick_settings"])],
    theirs_seeds=DEFINITION["theirs_seeds"],
    halfway=replace(
        _setting("200×20"),
        name="200×20, stopped halfway",
        overrides={"task.length": 200, "task.categories": 20},
        theirs={**DEFINITION["theirs"], **DEFINITION["halfway"]},
        quick=None,
    ),
)
