"""Statistics of attention maps: mass on patterns, entropy, distance. They describe; they do not explain.

The mass of a pattern is the share of a row's attention on it, averaged over the rows that have such a cell.
`uniform` is the share of a head with equal weights. The value-weighted mass multiplies each weight by the
norm of what it adds to the row, since a large weight may read a value close to zero.

Axes: B examples, H heads, L queries, M keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassformer.inspection.maps import SiteMaps

Template = Callable[[np.ndarray, np.ndarray], np.ndarray]

PATTERNS: dict[str, Template] = {
    "diagonal": lambda query, key: key == query,
    "anti-diagonal": lambda query, key: key == key.size - 1 - query,
    "previous token": lambda query, key: key == query - 1,
    "first token": lambda query, key: (key == 0) & (query >= 0),
}
"""Functions of query indices (L, 1) and key indices (M) that are True on the cells of a pattern."""


def templates(
    queries: int, keys: int, own: Mapping[str, np.ndarray] | None = None, first_query: int = 0
) -> dict[str, Tensor]:
    """Return the general patterns and the task's own as masks (L, M)."""
    query, key = np.arange(first_query, first_query + queries)[:, None], np.arange(keys)
    found = {name: template(query, key) for name, template in PATTERNS.items()}
    return {name: torch.from_numpy(np.asarray(cells)) for name, cells in {**found, **(own or {})}.items()}


@dataclass(frozen=True)
class Pattern:
    """Attention on one pattern. Each array is (layers, heads), NaN where no row has a cell of it."""

    mass: np.ndarray
    uniform: np.ndarray
    value_weighted: np.ndarray
    """Mass with each weight multiplied by the norm of its value. NaN if the norms are unknown."""

    @property
    def above_uniform(self) -> np.ndarray:
        return self.mass - self.uniform


@dataclass(frozen=True)
class HeadStatistics:
    """Statistics of all heads of one attention site. Each array is (layers, heads)."""

    patterns: dict[str, Pattern]
    entropy: np.ndarray
    """Entropy divided by that of uniform attention: 1 is uniform, 0 is a single token."""
    distance: np.ndarray
    """Mean distance between query and key, in positions; NaN for cross-attention."""
    value_share: np.ndarray
    """Share of this head in the summed length of what all heads of a layer add; NaN if unknown."""

    def document(self) -> dict[str, Any]:
        """Return nested lists for JSON, with None for NaN."""
        patterns = {
            name: {
                "mass": nested(pattern.mass),
                "above_uniform": nested(pattern.above_uniform),
                "value_weighted": nested(pattern.value_weighted),
            }
            for name, pattern in self.patterns.items()
        }
        return {
            "patterns": patterns,
            "entropy": nested(self.entropy),
            "distance": nested(self.distance),
            "value_share": nested(self.value_share),
        }


def nested(values: np.ndarray) -> list[Any]:
    """Return nested lists for JSON, rounded to 6 digits, with None for NaN."""
    if values.ndim > 1:
        return [nested(part) for part in values]
    return [None if np.isnan(value) else round(float(value), 6) for value in values]


@dataclass(frozen=True)
class Measured:
    """Statistics of one attention call; each tensor is (B, H)."""

    mass: dict[str, Tensor]
    uniform: dict[str, Tensor]
    value_weighted: dict[str, Tensor]
    entropy: Tensor
    distance: Tensor
    value_length: Tensor
    """Mean over rows of the summed value norms that a row reads, an upper bound of what it adds."""


class Layout:
    """Mask and pattern cells, computed once and shared by many maps."""

    def __init__(
        self,
        queries: int,
        keys: int,
        allowed: Tensor | None,
        patterns: Mapping[str, Tensor],
        *,
        first_query: int = 0,
        device: torch.device | None = None,
    ) -> None:
        """`allowed` and the patterns broadcast to (B, H, L, M)."""
        if allowed is None:
            allowed = torch.ones(queries, keys, dtype=torch.bool, device=device)
        self.choices = allowed.sum(-1)
        self.cells = {name: pattern.to(allowed.device) & allowed for name, pattern in patterns.items()}
        self.has_cell = {name: cells.any(-1) for name, cells in self.cells.items()}
        self.uniform = {name: cells.sum(-1) / self.choices.clamp(min=1) for name, cells in self.cells.items()}
        # Most patterns have one cell per row: gathering these is faster than a pass over the whole map.
        self._indices = {name: cells.nonzero().T for name, cells in self.cells.items() if cells.ndim == 2}
        query = torch.arange(first_query, first_query + queries, device=device)[:, None]
        self.distance_LM = (query - torch.arange(keys, device=device)).abs().float()

    def on(self, name: str, values_BHLM: Tensor) -> Tensor:
        """Sum the values of each row on a pattern (B, H, L)."""
        if name not in self._indices:
            return (values_BHLM * self.cells[name]).sum(-1)
        rows, columns = self._indices[name]
        sums_BHL = values_BHLM.new_zeros(values_BHLM.shape[:3])
        return sums_BHL.index_add_(2, rows, values_BHLM[:, :, rows, columns])


def measure(
    weights_BHLM: Tensor,
    layout: Layout,
    *,
    is_cross: bool = False,
    value_norms_BHM: Tensor | None = None,
) -> Measured:
    """Compute all statistics of a call, as means over the rows for which each is defined."""
    nothing = torch.full(weights_BHLM.shape[:2], torch.nan, dtype=torch.float64)
    added_BHLM = None if value_norms_BHM is None else weights_BHLM * value_norms_BHM[:, :, None]
    length_BHL = None if added_BHLM is None else added_BHLM.sum(-1)
    mass, uniform, value_weighted = {}, {}, {}
    for name, has_cell in layout.has_cell.items():
        mass[name] = _mean(layout.on(name, weights_BHLM), has_cell)
        uniform[name] = _mean(layout.uniform[name].expand(weights_BHLM.shape[:3]), has_cell)
        value_weighted[name] = nothing
        if added_BHLM is not None and length_BHL is not None:
            share_BHL = layout.on(name, added_BHLM) / length_BHL.clamp(min=torch.finfo().tiny)
            value_weighted[name] = _mean(share_BHL, has_cell)
    choices = layout.choices
    entropy_BHL = torch.special.entr(weights_BHLM).sum(-1) / choices.clamp(min=2).log()
    distance = nothing
    if not is_cross:
        distance = _mean(torch.einsum("bhlm,lm->bhl", weights_BHLM, layout.distance_LM), choices > 0)
    value_length = nothing if length_BHL is None else _mean(length_BHL, choices > 0)
    entropy = _mean(entropy_BHL, choices > 1)
    return Measured(mass, uniform, value_weighted, entropy, distance, value_length)


def _mean(values_BHL: Tensor, where: Tensor) -> Tensor:
    """Average over the rows selected by `where` (B, H); NaN if there are none."""
    where_BHL = where.expand(values_BHL.shape)
    sums_BH = (values_BHL.double() * where_BHL).sum(-1)
    return (sums_BH / where_BHL.sum(-1)).cpu()  # 0 / 0 is NaN


def head_statistics(maps: SiteMaps) -> HeadStatistics:
    """Compute the statistics of one input's maps, one head at a time, since maps may be large."""
    layers, heads, queries, keys = maps.weights.shape
    patterns = templates(queries, keys, maps.patterns, maps.first_query)
    arrays = {name: [np.full((layers, heads), np.nan) for _ in range(3)] for name in patterns}
    entropy, distance, value_length = (np.full((layers, heads), np.nan) for _ in range(3))
    layouts: dict[tuple[int, int], Layout] = {}
    for layer, head in np.ndindex(layers, heads):
        layout = _layout(maps, patterns, layer, head, layouts)
        norms = None if maps.value_norms is None else torch.from_numpy(maps.value_norms[layer, head])
        found = measure(
            torch.from_numpy(maps.weights[layer, head])[None, None],
            layout,
            is_cross=maps.is_cross,
            value_norms_BHM=None if norms is None else norms[None, None],
        )
        for name, into in arrays.items():
            measured = (found.mass[name], found.uniform[name], found.value_weighted[name])
            for array, value in zip(into, measured, strict=True):
                array[layer, head] = value.item()
        entropy[layer, head], distance[layer, head] = found.entropy.item(), found.distance.item()
        value_length[layer, head] = found.value_length.item()
    return HeadStatistics(
        {name: Pattern(*values) for name, values in arrays.items()},
        entropy,
        distance,
        value_length / value_length.sum(1, keepdims=True),
    )


def _layout(
    maps: SiteMaps,
    patterns: Mapping[str, Tensor],
    layer: int,
    head: int,
    known: dict[tuple[int, int], Layout],
) -> Layout:
    """Return the layout of one map; layers or heads that share a mask share it."""
    shared = (1, 1) if maps.allowed is None else maps.allowed.shape[:2]
    key = (min(layer, shared[0] - 1), min(head, shared[1] - 1))
    if key not in known:
        allowed = maps.allowed_at(layer, head)
        known.clear()  # one at a time, because a layout is as large as a map
        queries, keys = maps.weights.shape[2:]
        known[key] = Layout(
            queries,
            keys,
            None if allowed is None else torch.from_numpy(allowed),
            patterns,
            first_query=maps.first_query,
        )
    return known[key]
