"""All examples that a generated task could have, and which of them stand in which split.

No example stands in two splits. The splits follow from a data seed alone, so that runs with different
seeds learn from, and are measured on, the same examples. It knows nothing of what the rows mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from glassformer.data.batching import generator
from glassformer.errors import user_error


@dataclass(frozen=True)
class Space:
    """`size` possible rows of whole numbers."""

    size: int
    enumerate: Callable[[], np.ndarray]
    """Every row once; only called when the space is small."""
    draw: Callable[[np.random.Generator, int], np.ndarray]
    """About so many random rows, repetitions included; all rows are equally likely."""


def share(size: int, wanted: Mapping[str, int]) -> dict[str, int]:
    """How many distinct rows each split gets: what is wanted or, if too few exist, a part in proportion."""
    wanted = {split: count for split, count in wanted.items() if count}
    if size >= sum(wanted.values()):
        return dict(wanted)
    if size < len(wanted):
        raise user_error(
            f"only {size} different examples exist, too few for {len(wanted)} splits",
            place="task",
            remedy="a larger task: greater length, more categories, a wider range",
        )
    counts = {split: max(1, size * count // sum(wanted.values())) for split, count in wanted.items()}
    largest = max(counts, key=lambda split: counts[split])
    counts[largest] += size - sum(counts.values())
    return counts


def choose_rows(space: Space, counts: Mapping[str, int], data_seed: int) -> dict[str, np.ndarray]:
    """So many distinct rows for each split, no row in two of them."""
    # The training split comes last, so that another number of training examples leaves the others alone.
    splits = sorted(counts, key=lambda split: (split == "train", split))
    total = sum(counts.values())
    if space.size <= 4 * total:
        order = generator(data_seed, "space").permutation(space.size)
        ends = np.cumsum([counts[split] for split in splits])
        rows = space.enumerate()
        return {split: rows[part] for split, part in zip(splits, np.split(order, ends), strict=False)}
    seen: set[bytes] = set()
    return {
        split: _draw_distinct(space, counts[split], generator(data_seed, "space", split), seen)
        for split in splits
    }


def _draw_distinct(space: Space, count: int, rng: np.random.Generator, seen: set[bytes]) -> np.ndarray:
    """`count` rows that are not in `seen`; they are added to it."""
    parts, missing = [], count
    while missing:
        rows = np.ascontiguousarray(space.draw(rng, missing))
        fresh = []
        for place, row in enumerate(rows):
            key = row.tobytes()
            if key not in seen:
                seen.add(key)
                fresh.append(place)
        parts.append(rows[fresh])
        missing -= len(fresh)
    return np.concatenate(parts) if len(parts) > 1 else parts[0]


def repeat_to(rows: np.ndarray, count: int) -> np.ndarray:
    """The rows again and again until there are `count`; all of them if there are more."""
    return rows if len(rows) >= count else rows[np.arange(count) % len(rows)]
