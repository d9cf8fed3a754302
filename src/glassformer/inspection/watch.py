"""Looking while a model trains: the scores of its heads go into the record, so that one sees them form.

Nothing is drawn at random and the model is left as it was: weights and exact resume do not depend on it.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from pydantic import Field

from glassformer.config import Node
from glassformer.inspection.examples import Group, groups_of
from glassformer.inspection.heads import Average, PlaceAverages, average_heads
from glassformer.inspection.statistics import nested
from glassformer.models.base import Model
from glassformer.tasks.base import Task


class InspectionConfig(Node):
    """What is looked at while a model trains. It decides nothing about the weights."""

    watch: bool = Field(False, description="note the scores of all heads in the record")
    every: int = Field(
        50, ge=1, description="steps between two looks; the first and the last are looked at too"
    )
    examples: int = Field(16, ge=1, description="validation examples that a look is averaged over")
    keep_checkpoints: bool = Field(
        False, description="keep the weights of each look, so that one can go through them like a film"
    )


class HeadWatch:
    """What the trainer calls when a look is due."""

    def __init__(self, task: Task, config: InspectionConfig) -> None:
        self.task = task
        self.config = config

    @cached_property
    def _groups(self) -> list[Group]:
        return groups_of(self.task, "validation", self.config.examples)

    @property
    def keeps_weights(self) -> bool:
        return self.config.keep_checkpoints

    def is_due(self, step: int) -> bool:
        return step % self.config.every == 0

    def look(self, model: Model) -> dict[str, Any]:
        """`scores[place][pattern][layer][head]`: the share of attention on a pattern."""
        averages = average_heads(model, self.task, self._groups, has_intervals=False)
        return {
            "examples": sum(len(group.inputs) for group in self._groups),
            "scores": {place: _scores(of_place) for place, of_place in averages.items()},
            "uniform": {place: _uniform(of_place) for place, of_place in averages.items()},
            "entropy": {place: nested(of_place.entropy.mean) for place, of_place in averages.items()},
        }


def _scores(of_place: PlaceAverages) -> dict[str, Any]:
    return {name: nested(kinds["mass"].mean) for name, kinds in of_place.patterns.items()}


def _uniform(of_place: PlaceAverages) -> dict[str, float | None]:
    """What a head with equal weights would have: the same for all heads."""

    def level(mass: Average, above: Average) -> float | None:
        values = (mass.mean - above.mean).ravel()
        return None if np.isnan(values).all() else round(float(np.nanmean(values)), 6)

    return {name: level(kinds["mass"], kinds["above_uniform"]) for name, kinds in of_place.patterns.items()}
