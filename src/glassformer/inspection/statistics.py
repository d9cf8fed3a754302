"""Statistics of attention maps: attention on patterns such as the diagonal, entropy, distance.

The mass of a pattern is the share of a row's attention on the cells of that pattern, averaged over the rows
that have such a cell. The value-weighted mass multiplies each weight by the norm of what the weight adds to
the row, because a large weight may read a value vector close to zero.

Axes: B examples, H heads, L queries, M keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from glassformer.inspection.maps import SiteMaps

T = TypeVar("T")
U = TypeVar("U")

PATTERNS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "diagonal": lambda query, key: key == query,
    "anti-diagonal": lambda query, key: key == key.size - 1 - query,
    "previous token": lambda query, key: key == query - 1,
    "first token": lambda query, key: (key == 0) & (query >= 0),
}
"""Functions of query indices (L, 1) and key indices (M) that return True on the cells of a pattern."""

EXPLANATIONS: dict[str, str] = {
    "diagonal": "share of attention that a token pays to itself, from 0 to 1",
    "anti-diagonal": "share of attention on the mirrored token (the first token reads the last), from 0 to 1",
    "previous token": "share of attention on the token just before, from 0 to 1",
    "first token": "share of attention on the first token of the sequence, from 0 to 1",
    "induction": (
        "on random tokens that repeat: share of attention on the token after the earlier occurrence of the "
        "current token, from 0 to 1"
    ),
    "duplicate token": (
        "on random tokens that repeat: share of attention on the earlier occurrence of the current token, "
        "from 0 to 1"
    ),
    "entropy": (
        "spread of a head's attention: entropy of a row of weights, divided by that of equal weights; "
        "0 is a single token, 1 is all tokens equally"
    ),
    "distance": "mean distance between a token and the tokens it reads, in positions; 0 is the token itself",
    "value share": (
        "part of what the layer's heads add to the tokens that this head adds, by vector length; "
        "the shares of a layer sum to 1"
    ),
    "value-weighted": (
        "share of attention, each weight times the length of the vector it reads: "
        "a large weight on a short vector adds little"
    ),
    "above uniform": "share of attention minus the share of a head that reads all tokens equally",
}
"""One-sentence explanation of each statistic by its displayed name. The terminal and the studio show it.

A task explains its own patterns in `Task.pattern_explanations`.
"""
SITE_EXPLANATIONS: dict[str, dict[str, str]] = {
    "decoder": {
        "diagonal": "share of attention on the token generated just before, from 0 to 1",
        "anti-diagonal": "share of attention on the previous token with the mirrored index, from 0 to 1",
        "previous token": "share of attention on the token generated two steps before, from 0 to 1",
        "first token": "share of attention on the begin token, from 0 to 1",
        "distance": (
            "mean distance between the token generated just before and the tokens that are read, in positions"
        ),
    },
    "cross": {
        "diagonal": (
            "share of attention of a generated token on the input token with the same index, from 0 to 1"
        ),
        "anti-diagonal": (
            "share of attention on the input token with the mirrored index "
            "(the first generated token reads the last input token), from 0 to 1"
        ),
        "previous token": (
            "share of attention of a generated token on the input token whose index is one lower, from 0 to 1"
        ),
        "first token": "share of attention on the first token of the input, from 0 to 1",
        "distance": "not defined, because generated tokens and input tokens are two sequences",
    },
}
"""Explanations of the statistics that mean something else where a generated token is the query."""


def explain(site: str, own: Mapping[str, str]) -> dict[str, str]:
    """Return one sentence per statistic of an attention site; `own` are those of the task's patterns."""
    return {**EXPLANATIONS, **SITE_EXPLANATIONS.get(site, {}), **own}


def templates(
    queries: int, keys: int, own: Mapping[str, np.ndarray] | None = None, first_query: int = 0
) -> dict[str, Tensor]:
    """Return the patterns in `PATTERNS` and the task's `own` patterns as boolean masks (L, M), by name."""
    query, key = np.arange(first_query, first_query + queries)[:, None], np.arange(keys)
    found = {name: template(query, key) for name, template in PATTERNS.items()}
    return {name: torch.from_numpy(np.asarray(cells)) for name, cells in {**found, **(own or {})}.items()}


@dataclass(frozen=True)
class Pattern(Generic[T]):
    """Attention on one pattern, for every head. NaN where no row has a cell of the pattern."""

    mass: T
    """Share of a row's attention on the pattern, between 0 and 1."""
    above_uniform: T
    """Mass minus the mass of a head with equal weights on all keys."""
    value_weighted: T
    """Mass with each weight multiplied by the norm of its value vector. NaN if the norms are unknown."""


@dataclass(frozen=True)
class Statistics(Generic[T]):
    """Statistics of all heads of one site (encoder, decoder or cross). Arrays end in axes (layers, heads)."""

    patterns: dict[str, Pattern[T]]
    entropy: T
    """Entropy divided by that of uniform attention: 1 is uniform, 0 is a single token."""
    distance: T
    """Mean distance between query and key, in positions; NaN for cross-attention."""
    value_share: T
    """Share of a head in the summed length of the vectors that all heads of its layer add; NaN if unknown."""

    def map(self, change: Callable[[T], U]) -> Statistics[U]:
        """Return the statistics with `change` applied to every array."""
        patterns = {
            name: Pattern(*map(change, (pattern.mass, pattern.above_uniform, pattern.value_weighted)))
            for name, pattern in self.patterns.items()
        }
        return Statistics(patterns, *map(change, (self.entropy, self.distance, self.value_share)))

    def document(self: HeadStatistics) -> dict[str, Any]:
        """Return the statistics as a JSON-serialisable dict of nested lists, with None for NaN."""
        return asdict(self.map(nested))


HeadStatistics: TypeAlias = Statistics[np.ndarray]


def nested(values: np.ndarray) -> list[Any]:
    """Return an array as JSON-serialisable nested lists, rounded to 6 decimal places, with None for NaN."""
    if values.ndim > 1:
        return [nested(part) for part in values]
    return [None if np.isnan(value) else round(float(value), 6) for value in values]


Measured = dict[tuple[str, str], Tensor]
"""Statistics (B, H) of one attention call. The key is (statistic, pattern); the pattern may be empty."""


class Layout:
    """Attention mask and pattern cells of a map, computed once and shared by all maps with the same mask."""

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
        """Precompute the cells; `allowed` and the patterns broadcast to (B, H, L, M)."""
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
        """Return the sum of each row's values on the cells of a pattern (B, H, L)."""
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
    """Compute all statistics of one attention call, each as a mean over the rows for which it is defined."""
    nothing = torch.full(weights_BHLM.shape[:2], torch.nan, dtype=torch.float64)
    added_BHLM = None if value_norms_BHM is None else weights_BHLM * value_norms_BHM[:, :, None]
    length_BHL = None if added_BHLM is None else added_BHLM.sum(-1)
    found: Measured = {}
    for name, has_cell in layout.has_cell.items():
        found["mass", name] = _mean(layout.on(name, weights_BHLM), has_cell)
        found["uniform", name] = _mean(layout.uniform[name].expand(weights_BHLM.shape[:3]), has_cell)
        found["value_weighted", name] = nothing
        if added_BHLM is not None and length_BHL is not None:
            share_BHL = layout.on(name, added_BHLM) / length_BHL.clamp(min=torch.finfo().tiny)
            found["value_weighted", name] = _mean(share_BHL, has_cell)
    choices = layout.choices
    entropy_BHL = torch.special.entr(weights_BHLM).sum(-1) / choices.clamp(min=2).log()
    found["entropy", ""] = _mean(entropy_BHL, choices > 1)
    found["distance", ""] = nothing
    if not is_cross:
        distance_BHL = torch.einsum("bhlm,lm->bhl", weights_BHLM, layout.distance_LM)
        found["distance", ""] = _mean(distance_BHL, choices > 0)
    # The summed norms that a row reads are an upper bound of the length of what the head adds to it.
    found["value_length", ""] = nothing if length_BHL is None else _mean(length_BHL, choices > 0)
    return found


def arrange(found: Mapping[tuple[str, str], np.ndarray]) -> HeadStatistics:
    """Convert a dict of arrays that end in axes (layers, heads) to a `Statistics`.

    Its keys are pairs (statistic, pattern), such as ("mass", "diagonal") or ("entropy", "").
    """
    length = found["value_length", ""]
    patterns = {
        name: Pattern(mass, mass - found["uniform", name], found["value_weighted", name])
        for (kind, name), mass in found.items()
        if kind == "mass"
    }
    share = length / length.sum(-1, keepdims=True)
    return Statistics(patterns, found["entropy", ""], found["distance", ""], share)


def _mean(values_BHL: Tensor, where: Tensor) -> Tensor:
    """Return the mean (B, H) over the rows selected by `where`; NaN if there are none."""
    where_BHL = where.expand(values_BHL.shape)
    sums_BH = (values_BHL.double() * where_BHL).sum(-1)
    return (sums_BH / where_BHL.sum(-1)).cpu()  # 0 / 0 is NaN


def head_statistics(maps: SiteMaps) -> HeadStatistics:
    """Compute the statistics of one input's maps, one head at a time because maps may be large."""
    layers, heads, queries, keys = maps.weights.shape
    patterns = templates(queries, keys, maps.patterns, maps.first_query)
    found: dict[tuple[str, str], np.ndarray] = {}
    layouts: dict[tuple[int, int], Layout] = {}
    for layer, head in np.ndindex(layers, heads):
        layout = _layout(maps, patterns, layer, head, layouts)
        norms = None if maps.value_norms is None else torch.from_numpy(maps.value_norms[layer, head])
        measured = measure(
            torch.from_numpy(maps.weights[layer, head])[None, None],
            layout,
            is_cross=maps.is_cross,
            value_norms_BHM=None if norms is None else norms[None, None],
        )
        for key, value in measured.items():
            found.setdefault(key, np.full((layers, heads), np.nan))[layer, head] = value.item()
    return arrange(found)


def _layout(
    maps: SiteMaps,
    patterns: Mapping[str, Tensor],
    layer: int,
    head: int,
    known: dict[tuple[int, int], Layout],
) -> Layout:
    """Return the layout of one map. Layers and heads with the same mask share a layout, cached in `known`."""
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
