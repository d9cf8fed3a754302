"""The published table of reversal: eight lengths and numbers of categories, one block, one head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glassformer.runs.run import Run
from glassformer.studies.recipes import OURS, THEIRS, Cell, Row, Setting, Study
from glassformer.studies.study import Effort

PUBLISHED = {
    (100, 10): 1.0,
    (100, 20): 1.0,
    (200, 10): 0.8527,
    (200, 20): 0.4870,
    (500, 10): 0.1003,
    (500, 20): 0.0501,
    (1000, 10): 0.1000,
    (1000, 20): 0.0501,
}

THEIR_RECIPE = {
    "model.hidden_dim": 32,
    "model.feed_forward_dim": 64,
    "model.feed_forward": {"kind": "relu"},
    "model.norm_placement": "post",
    "model.output": {"kind": "mlp"},
    "model.position": {"kind": "sinusoidal", "base": 10000.0},
    "training.optimizer": {"kind": "adam", "learning_rate": 5e-4},
    "training.schedule": {"kind": "warmup-cosine", "warmup_steps": 50},
    "training.batch_tokens": None,
    "training.batch_size": 128,
    "training.gradient_clip_norm": 5.0,
    "training.max_steps": None,
    "training.max_epochs": 10,
    "training.validate_every": None,
    "training.validation_examples": None,
    "training.stopping": {"target": 0.99999, "times": 2},
}
RECIPE = {"training.optimizer": {"kind": "adamw", "learning_rate": 6e-3}}
"""The table was recorded at this rate. The preset has a higher one, which makes attention sharper."""


FEWER_EPOCHS = {500: 2, 1000: 1}
"""Of their recipe, by length: ten would take a core four hours and more a run."""

STAND_INS = (4, 16, 64)
"""Lengths of the quick version: of these, in 500 steps, their recipe solves one, half of one, and none."""
QUICK = {
    "training.max_steps": 500,
    "task.train_examples": 20_000,
    "task.validation_examples": 200,
    "task.test_examples": 500,
}

SOLVED, UNSOLVED = 0.9, 0.05
"""Of the way from chance to certainty; what lies between is half solved."""
STATES = ("solved", "half-solved", "unsolved")


def _setting(length: int, categories: int) -> Setting:
    epochs = FEWER_EPOCHS.get(length, THEIR_RECIPE["training.max_epochs"])
    return Setting(
        name=f"{length}×{categories}",
        published=PUBLISHED.get((length, categories)),
        what="reversal",
        overrides={"task.length": length, "task.categories": categories, **RECIPE},
        theirs={**THEIR_RECIPE, "training.max_epochs": epochs},
        is_quick=length in STAND_INS,
        is_full=length not in STAND_INS,
        quick=QUICK,
    )


HALFWAY = Setting(
    name="200×20, stopped halfway",
    published=PUBLISHED[200, 20],
    what="reversal",
    overrides={"task.length": 200, "task.categories": 20},
    theirs={
        **THEIR_RECIPE,
        "training.validate_every": 20,
        "training.validation_examples": 200,
        "training.stopping": {"target": 0.5, "times": 1},
    },
)
"""The cell that was published half solved."""


@dataclass(frozen=True)
class ReversalStudy(Study):
    halfway: Setting | None = None
    """No row of the full table, but trained for its map where no run ended half solved."""

    def more(self, cells: Sequence[Cell], rows: list[Row], effort: Effort) -> dict[str, Any]:
        """The attention of a solved, a half-solved and an unsolved model, as far as there is one."""
        # An earlier measurement's, if their pictures are here.
        kept = [shown for shown in effort.kept.get("maps", []) if (effort.folder / shown["file"]).is_file()]
        maps = {shown["state"]: shown for shown in kept}
        examples = self._examples(cells)
        if "half-solved" not in {**maps, **examples} and effort.with_theirs and not effort.is_quick:
            examples |= self._examples(self._halfway(effort))
        for state, cell in examples.items():
            name = f"attention-{state}.png"
            Run(cell.job.path).attention().save(effort.folder / name)
            maps[state] = {
                "state": state,
                "run": cell.job.path.name,
                "setting": cell.setting.name,
                "recipe": cell.recipe,
                self.metric: self.value(cell.job.results()),
                "file": name,
            }
        shown = [maps[state] for state in STATES if state in maps]
        return {"maps": shown, "plot": [one["file"] for one in shown]}

    def _halfway(self, effort: Effort) -> list[Cell]:
        if self.halfway is None:
            return []
        cell = self._cell(self.halfway, THEIRS, self.halfway.theirs or {}, seed=0, effort=effort)
        if effort.trains:
            self.train([cell], effort)
        return [cell] if cell.job.results() else []

    def _examples(self, cells: Sequence[Cell]) -> dict[str, Cell]:
        """Of each state the model that shows it best, of several such the shortest; theirs before ours."""
        found: dict[str, tuple[tuple[float, ...], Cell]] = {}
        for cell in cells:
            task = cell.job.config.dump()["task"]
            chance = 1 / task["categories"]
            way = (self.value(cell.job.results()) - chance) / (1 - chance)
            state = "solved" if way >= SOLVED else "unsolved" if way <= UNSOLVED else "half-solved"
            distance = abs(way - 0.5) if state == "half-solved" else 0.0
            rank = (round(distance, 3), task["length"], cell.recipe == OURS)
            if state not in found or rank < found[state][0]:
                found[state] = (rank, cell)
        return {state: found[state][1] for state in STATES if state in found}

    def sections(self, document: Mapping[str, Any]) -> list[str]:
        lines = ["## What they look at", ""]
        for shown in document["maps"]:
            recipe = "ours" if shown["recipe"] == OURS else "their recipe"
            told = f"{shown['state']}: {shown['setting']}, {recipe}, {self.metric} {shown[self.metric]:.3f}"
            lines += [f"{told[0].upper()}{told[1:]}.", "", f"![{told}]({shown['file']})", ""]
        missing = set(STATES) - {shown["state"] for shown in document["maps"]}
        return [*lines, *(f"No measured model is {state}." for state in sorted(missing)), ""]


REVERSAL_TABLE = ReversalStudy(
    name="reversal-table",
    title="Reversal by length and number of categories",
    metric="accuracy",
    settings=[
        *(_setting(*cell) for cell in PUBLISHED),
        *(_setting(length, categories=10) for length in STAND_INS),
    ],
    about="One block, one head; 50,000 / 1,000 / 10,000 examples. Their recipe: width 32, norms after the"
    " sublayers, Adam at 5e-4 with 50 steps of warm-up and a cosine over 10 epochs of batches of 128; the"
    " published number of epochs is not known, and ten is what the tutorial has that the recipe comes"
    " from. At length 500 two epochs, at length 1000 one, with the cosine over those: more would take"
    " hours a run. One seed of theirs, three of ours. A run ends early when two validations in a row"
    " are perfect; the map of a half-solved model is of a run that was stopped there. Test tokens. The"
    " quick version has shorter sequences, 20,000 of them, and at most 500 steps.",
    theirs_seeds=1,
    halfway=HALFWAY,
)
