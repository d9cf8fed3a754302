"""Which maps are wanted, and whether they fit into memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from glassformer.errors import Problem
from glassformer.inspection.maps import Place
from glassformer.training.estimate import available_memory, peak_memory

Sizes = Mapping[Place, list[int]]
"""How many heads each layer of each place has."""
Lengths = Mapping[Place, tuple[int, int]]
"""How many queries and keys."""

BYTES_A_WEIGHT = 4
WORKING_COPIES = 4
"""Scores, masked scores, weights and their exponentials, while a block of them is made."""


@dataclass(frozen=True)
class Selection:
    """Numbers from 0; None is all of them."""

    layers: Sequence[int] | None = None
    heads: Sequence[int] | None = None
    rows: tuple[int, int] | None = None
    """Queries from the first number up to, without, the second."""
    part: Place | None = None

    def has(self, place: Place, layer: int) -> bool:
        return self.part in (None, place) and (self.layers is None or layer in self.layers)

    def heads_of(self, count: int) -> list[int]:
        return list(range(count)) if self.heads is None else list(self.heads)

    def rows_of(self, count: int) -> range:
        start, stop = self.rows or (0, count)
        return range(min(start, count), min(stop, count))


EVERYTHING = Selection()


def check_selection(selection: Selection, sizes: Sizes, lengths: Lengths) -> None:
    """A Problem if something is asked for that is not there."""
    if not sizes:
        raise Problem(
            "no attention to look at: the model has none that is a MultiHeadAttention",
            remedy="build a model of your own from glassformer.blocks",
        )
    if selection.part is not None and selection.part not in sizes:
        raise Problem("the model has no such part", place="part", value=selection.part, allowed=list(sizes))
    places = [place for place in sizes if selection.part in (None, place)]
    layers = max(len(sizes[place]) for place in places)
    _check_numbers("layers", selection.layers, range(layers))
    counts = {
        heads for place in places for layer, heads in enumerate(sizes[place]) if selection.has(place, layer)
    }
    if len(counts) > 1 and selection.heads is None:
        raise Problem(
            "layers differ in their number of heads", place="heads", remedy="choose heads, or one layer"
        )
    _check_numbers("heads", selection.heads, range(min(counts)))
    if selection.rows is not None:
        start, stop = selection.rows
        shortest = min(lengths[place][0] for place in places if place in lengths)
        if not 0 <= start < min(stop, shortest):
            raise Problem(
                f"no such rows: there are {shortest}",
                place="rows",
                value=f"{start}:{stop}",
                remedy=f"0:{shortest}",
            )


def _check_numbers(place: str, wanted: Sequence[int] | None, there: range) -> None:
    if wanted is None:
        return
    for number in wanted:
        if number not in there:
            numbers = ", ".join(map(str, there[:4])) + (f" … {there[-1]}" if len(there) > 4 else "")
            raise Problem(f"no number {number}: there are {numbers}", place=place, value=number)
    if not wanted or len(set(wanted)) < len(wanted):
        raise Problem("each number once", place=place, value=list(wanted), remedy="0,1")


def needed_bytes(selection: Selection, sizes: Sizes, lengths: Lengths, block_cells: int) -> int:
    """What taking these maps and writing them to a file needs at most."""
    kept, largest_layer, mask = 0, 0, 0
    for place, (queries, keys) in lengths.items():
        rows = len(selection.rows_of(queries))
        for layer, heads in enumerate(sizes.get(place, [])):
            if selection.has(place, layer):
                layer_bytes = len(selection.heads_of(heads)) * rows * keys * BYTES_A_WEIGHT
                kept += layer_bytes
                largest_layer = max(largest_layer, layer_bytes)
        mask = max(mask, queries * keys)
    working = WORKING_COPIES * block_cells * BYTES_A_WEIGHT
    bytes_on_a_page = kept // BYTES_A_WEIGHT
    return kept + largest_layer + mask + working + bytes_on_a_page


def check_memory(selection: Selection, sizes: Sizes, lengths: Lengths, block_cells: int) -> None:
    """A Problem with an offer if the maps do not fit."""
    available = available_memory()
    if available is None:
        return
    free = max(0, available - peak_memory())
    needed = needed_bytes(selection, sizes, lengths, block_cells)
    if needed <= free:
        return
    offers = [
        f"{words} ({_size(smaller)})"
        for words, offer in _offers(selection, lengths)
        if (smaller := needed_bytes(offer, sizes, lengths, block_cells)) <= free
    ]
    raise Problem(
        f"the maps need {_size(needed)} of memory, and {_size(free)} are free",
        place="attention",
        remedy=", or ".join(offers) or "a shorter input, or a machine with more memory",
    )


def _offers(selection: Selection, lengths: Lengths) -> list[tuple[str, Selection]]:
    """Smaller requests, the largest first."""
    layer = selection.layers[0] if selection.layers else 0
    head = selection.heads[0] if selection.heads else 0
    start = selection.rows[0] if selection.rows else 0
    longest = max(queries for queries, _ in lengths.values())
    one_layer = replace(selection, layers=(layer,))
    one_head = replace(one_layer, heads=(head,))
    few_rows = (start, start + max(1, (longest - start) // 10))
    return [
        (f"--layers {layer}", one_layer),
        (f"--layers {layer} --heads {head}", one_head),
        (
            f"--layers {layer} --heads {head} --rows {few_rows[0]}:{few_rows[1]}",
            replace(one_head, rows=few_rows),
        ),
    ]


def _size(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.0f} MiB"
