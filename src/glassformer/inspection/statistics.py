"""What a head's map looks like, in numbers: facts about the weights, and no explanation of an answer.

A pattern's mass is the share of a row's attention that lies on it, averaged over the rows that have such a
cell; beside it stands the share that a head with equal weights would have there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from glassformer.inspection.maps import PlaceMaps

Template = Callable[[np.ndarray, np.ndarray], np.ndarray]

PATTERNS: dict[str, Template] = {
    "diagonal": lambda query, key: key == query,
    "anti-diagonal": lambda query, key: key == key.size - 1 - query,
    "previous token": lambda query, key: key == query - 1,
    "first token": lambda query, key: (key == 0) & (query >= 0),
}
"""True where the pattern is, for query numbers (L, 1) and key numbers (M)."""


@dataclass(frozen=True)
class Pattern:
    """Each array is (layers, heads). NaN where no row has a cell of this pattern."""

    mass: np.ndarray
    uniform: np.ndarray

    @property
    def above_uniform(self) -> np.ndarray:
        return self.mass - self.uniform


@dataclass(frozen=True)
class HeadStatistics:
    """Each array is (layers, heads)."""

    patterns: dict[str, Pattern]
    entropy: np.ndarray
    """Of uniform attention: 1 looks everywhere alike, 0 at one token."""
    distance: np.ndarray
    """How many positions away a head looks on average; NaN between two sequences, where it means nothing."""

    def document(self) -> dict[str, Any]:
        """For JSON: lists of lists, with None for what there is not."""
        patterns = {
            name: {"mass": _nested(pattern.mass), "above_uniform": _nested(pattern.above_uniform)}
            for name, pattern in self.patterns.items()
        }
        return {"patterns": patterns, "entropy": _nested(self.entropy), "distance": _nested(self.distance)}


def _nested(values: np.ndarray) -> list[list[float | None]]:
    return [[None if np.isnan(value) else round(float(value), 6) for value in row] for row in values]


def head_statistics(maps: PlaceMaps) -> HeadStatistics:
    layers, heads, queries, keys = maps.weights.shape
    query = np.arange(maps.first_query, maps.first_query + queries)[:, None]
    key = np.arange(keys)
    templates = {name: template(query, key) for name, template in PATTERNS.items()}
    distances = np.abs(query - key).astype(np.float32)
    mass = {name: np.empty((layers, heads)) for name in templates}
    uniform = {name: np.empty((layers, heads)) for name in templates}
    entropy, distance = np.empty((layers, heads)), np.full((layers, heads), np.nan)
    for layer, head in np.ndindex(layers, heads):
        weights = maps.weights[layer, head]
        allowed = maps.allowed_at(layer, head)
        if allowed is None:
            allowed = np.ones((queries, keys), dtype=bool)
        for name, template in templates.items():
            mass[name][layer, head], uniform[name][layer, head] = _mass(weights, template & allowed, allowed)
        entropy[layer, head] = _relative_entropy(weights, allowed)
        if not maps.is_cross:
            distance[layer, head] = _mean((weights * distances).sum(1), allowed.sum(1) > 0)
    patterns = {name: Pattern(mass[name], uniform[name]) for name in templates}
    return HeadStatistics(patterns, entropy, distance)


def _mass(weights: np.ndarray, cells: np.ndarray, allowed: np.ndarray) -> tuple[float, float]:
    """What lies on these cells, and what would if the weights were equal."""
    has_cell = cells.sum(1) > 0
    equal = cells.sum(1) / np.maximum(allowed.sum(1), 1)
    return _mean(weights.sum(1, where=cells), has_cell), _mean(equal, has_cell)


def _relative_entropy(weights: np.ndarray, allowed: np.ndarray) -> float:
    """The mean over the rows that have a choice."""
    choices = allowed.sum(1)
    logarithms = np.log(weights, where=weights > 0, out=np.zeros_like(weights))
    entropies = -(weights * logarithms).sum(1)
    has_choice = choices > 1
    return _mean(entropies / np.log(np.maximum(choices, 2)), has_choice)


def _mean(values: np.ndarray, where: np.ndarray) -> float:
    return float(values[where].mean(dtype=np.float64)) if where.any() else float("nan")
