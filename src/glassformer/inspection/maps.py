"""Attention maps as data: weights, axis labels, checks, and which maps to record."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Literal, get_args

import numpy as np

from glassformer.core.errors import ErrorDetail, user_error
from glassformer.cost.estimate import available_memory, peak_memory

Trust = Literal["fact", "cause", "hint"]

MEANING: dict[Trust, str] = {
    "fact": "measured on the weights themselves; it says what a head reads, not what it is for",
    "cause": "the model was changed and asked again; it says what this change did, all else as it was",
    "hint": "a model of the model, which can mislead; look at facts and causes before you believe it",
}


Site = Literal["encoder", "decoder", "cross"]
SITES: tuple[Site, ...] = get_args(Site)

AXES = ("layer", "head", "query", "key")
CAPTION = "Attention shows where a head read, not why the model answered."

ROW_TOLERANCE = 1e-5
ANSWER_TOLERANCE = 1e-4
"""Relative to the largest answer: two kernels add up the same numbers in another order."""

FORMAT = 1


@dataclass(frozen=True)
class Checks:
    """What was measured while the maps were taken, over all heads, shown or not."""

    row_error: float
    """The furthest that the weights of a row are from adding up to 1, or to 0 if it may attend to nothing."""
    answer_error: float
    """The largest difference between the answers of this pass and those of the model's own kernel."""
    answer_size: float
    """The largest answer, by its absolute value: what the difference is to be measured by."""

    @property
    def rows_agree(self) -> bool:
        return self.row_error <= ROW_TOLERANCE

    @property
    def answers_agree(self) -> bool:
        return self.answer_error <= ANSWER_TOLERANCE * max(1.0, self.answer_size)

    @property
    def passed(self) -> bool:
        return self.rows_agree and self.answers_agree

    def lines(self) -> list[tuple[bool, str]]:
        """For people, under every picture: whether it is as it should be, and how it is."""
        rows = f"each row adds up to 1, within {self.row_error:.1g}"
        answers = f"answers equal the fused kernel's, within {self.answer_error:.1g}"
        if not self.rows_agree:
            rows = f"a row is {self.row_error:.2g} away from adding up to 1"
        if not self.answers_agree:
            answers = f"answers differ from the fused kernel's by {self.answer_error:.2g}"
        told = [(self.rows_agree, rows), (self.answers_agree, answers)]
        return [(is_right, f"{'✓' if is_right else '✗'} {line}") for is_right, line in told]

    def document(self) -> dict[str, Any]:
        return {"passed": self.passed, **asdict(self)}


@dataclass(frozen=True)
class SiteMaps:
    """The maps of one place in the model: `weights[layer, head, query, key]`, in float32."""

    name: str
    """For people: `encoder self-attention`."""
    weights: np.ndarray
    allowed: np.ndarray | None
    """True where a query may attend; broadcasts to `weights`. None: everywhere."""
    layers: list[int]
    heads: list[int]
    queries: list[str]
    keys: list[str]
    query_axis: str
    key_axis: str
    """What a query and a key are here."""
    answers: list[str] | None = None
    """What the model said at each query, where it says something there that is not its name."""
    is_cross: bool = False
    """Whether queries and keys are of two sequences, so that the distance between them means nothing."""
    first_query: int = 0
    is_part: bool = False
    """Whether only some of the queries are here, from `first_query` on."""
    is_summary: bool = False
    """Whether its one map stands for all layers and heads together."""
    value_norms: np.ndarray | None = None
    """`[layer, head, key]`: how long what is read at a key is after the head's part of the output projection.
    A weight times this is the length of what it adds."""
    patterns: Mapping[str, np.ndarray] = field(default_factory=dict)
    """What the task itself would look for: True on the cells (query, key) of each pattern."""

    @property
    def largest(self) -> float:
        return float(self.weights.max(initial=0.0))

    @property
    def has_masked(self) -> bool:
        return self.allowed is not None and not bool(self.allowed.all())

    def layer_name(self, row: int) -> str:
        """For people, beside a row of maps."""
        return "all layers" if self.is_summary else f"layer {self.layers[row]}"

    def head_name(self, column: int) -> str:
        return "all heads" if self.is_summary else f"head {self.heads[column]}"

    def allowed_at(self, layer: int, head: int) -> np.ndarray | None:
        """The mask of one map, by its place in `weights`."""
        if self.allowed is None:
            return None
        return self.allowed[min(layer, len(self.allowed) - 1), min(head, self.allowed.shape[1] - 1)]

    def document(self) -> dict[str, Any]:
        """All but the arrays."""
        return {
            "name": self.name,
            "layers": self.layers,
            "heads": self.heads,
            "queries": self.queries,
            "keys": self.keys,
            "query_axis": self.query_axis,
            "key_axis": self.key_axis,
            "answers": self.answers,
            "is_cross": self.is_cross,
            "first_query": self.first_query,
            "is_part": self.is_part,
            "is_summary": self.is_summary,
        }


MOST_SWELLING = 200
"""How many times larger than the file its content may be: zeros alone swell a thousandfold."""


def _refuse_swelling(path: Path) -> None:
    if not path.is_file() and path.exists():
        raise ValueError("it is not a regular file")
    with zipfile.ZipFile(path) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
    if size > (64 << 20) and size > MOST_SWELLING * path.stat().st_size:
        raise ValueError(f"it would swell to {size:,} bytes")


@dataclass(frozen=True)
class AttentionMaps:
    """What a model looked at while it read one input."""

    places: dict[str, SiteMaps]
    checks: Checks
    about: dict[str, str] = field(default_factory=dict)
    """Where they come from: run, checkpoint, input, output."""

    def __getitem__(self, place: str) -> SiteMaps:
        return self.places[place]

    @property
    def title(self) -> str:
        return " · ".join(self.about[key] for key in ("run", "checkpoint") if self.about.get(key))

    @property
    def subtitle(self) -> str:
        return "  →  ".join(self.about[key] for key in ("input", "output") if self.about.get(key))

    def save(self, path: str | Path) -> None:
        """To PNG, SVG, HTML or NPZ, by the ending."""
        from glassformer.plotting.page import write

        write(self, Path(path))

    def write_npz(self, file: IO[bytes]) -> None:
        arrays: dict[str, np.ndarray] = {}
        for place, maps in self.places.items():
            arrays[f"{place}.weights"] = maps.weights
            if maps.allowed is not None:
                arrays[f"{place}.allowed"] = maps.allowed
            if maps.value_norms is not None:
                arrays[f"{place}.value_norms"] = maps.value_norms
            for name, cells in maps.patterns.items():
                arrays[f"{place}.patterns.{name}"] = cells
        document = {
            "format": FORMAT,
            "axes": AXES,
            "places": {place: maps.document() for place, maps in self.places.items()},
            "checks": asdict(self.checks),
            "about": self.about,
            "caption": CAPTION,
        }
        arrays["about"] = np.array(json.dumps(document, ensure_ascii=False))
        np.savez_compressed(file, allow_pickle=False, **arrays)

    @classmethod
    def load(cls, path: str | Path) -> AttentionMaps:
        """What `save` wrote to an NPZ file."""
        try:
            _refuse_swelling(Path(path))
            with np.load(path, allow_pickle=False) as arrays:
                return cls._read(arrays)
        except FileNotFoundError:
            raise user_error("no such file", path=str(path), hint="check the path") from None
        except Exception as error:  # a file of another hand fails in any of the ways of zip, numpy and JSON
            raise user_error(
                f"holds no attention maps: {error}",
                path=str(path),
                hint="a file that glassformer attention --out map.npz wrote",
            ) from None

    @classmethod
    def _read(cls, arrays: Mapping[str, np.ndarray]) -> AttentionMaps:
        document = json.loads(str(arrays["about"]))
        if document["format"] != FORMAT:
            raise ValueError(f"format {document['format']}, and this version reads {FORMAT}")
        places = {
            place: SiteMaps(
                weights=arrays[f"{place}.weights"],
                allowed=arrays.get(f"{place}.allowed"),
                value_norms=arrays.get(f"{place}.value_norms"),
                patterns={
                    name.removeprefix(f"{place}.patterns."): arrays[name]
                    for name in arrays
                    if name.startswith(f"{place}.patterns.")
                },
                **described,
            )
            for place, described in document["places"].items()
        }
        return cls(places, Checks(**document["checks"]), document["about"])

    def _repr_png_(self) -> bytes:
        from glassformer.plotting.attention import png

        return png(self)

    def _repr_html_(self) -> str | None:
        from glassformer.plotting.page import notebook_frame

        return notebook_frame(self)


Sizes = Mapping[Site, list[int]]
"""How many heads each layer of each place has."""
Lengths = Mapping[Site, tuple[int, int]]
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
    part: Site | None = None

    def has(self, place: Site, layer: int) -> bool:
        return self.part in (None, place) and (self.layers is None or layer in self.layers)

    def heads_of(self, count: int) -> list[int]:
        return list(range(count)) if self.heads is None else list(self.heads)

    def rows_of(self, count: int) -> range:
        start, stop = self.rows or (0, count)
        return range(min(start, count), min(stop, count))


EVERYTHING = Selection()


def check_selection(selection: Selection, sizes: Sizes, lengths: Lengths) -> None:
    """A ErrorDetail if something is asked for that is not there."""
    if not sizes:
        raise ErrorDetail(
            "no attention to look at: the model has none that is a MultiHeadAttention",
            hint="build a model of your own from glassformer.blocks",
        )
    if selection.part is not None and selection.part not in sizes:
        raise ErrorDetail(
            "the model has no such part", path="part", value=selection.part, allowed=list(sizes)
        )
    places = [place for place in sizes if selection.part in (None, place)]
    layers = max(len(sizes[place]) for place in places)
    _check_numbers("layers", selection.layers, range(layers))
    counts = {
        heads for place in places for layer, heads in enumerate(sizes[place]) if selection.has(place, layer)
    }
    if len(counts) > 1 and selection.heads is None:
        raise ErrorDetail(
            "layers differ in their number of heads", path="heads", hint="choose heads, or one layer"
        )
    _check_numbers("heads", selection.heads, range(min(counts)))
    if selection.rows is not None:
        start, stop = selection.rows
        shortest = min(lengths[place][0] for place in places if place in lengths)
        if not 0 <= start < min(stop, shortest):
            raise ErrorDetail(
                f"no such rows: there are {shortest}",
                path="rows",
                value=f"{start}:{stop}",
                hint=f"0:{shortest}",
            )


def _check_numbers(place: str, wanted: Sequence[int] | None, there: range) -> None:
    if wanted is None:
        return
    for number in wanted:
        if number not in there:
            numbers = ", ".join(map(str, there[:4])) + (f" … {there[-1]}" if len(there) > 4 else "")
            raise ErrorDetail(f"no number {number}: there are {numbers}", path=place, value=number)
    if not wanted or len(set(wanted)) < len(wanted):
        raise ErrorDetail("each number once", path=place, value=list(wanted), hint="0,1")


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
    """A ErrorDetail with an offer if the maps do not fit."""
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
    raise ErrorDetail(
        f"the maps need {_size(needed)} of memory, and {_size(free)} are free",
        path="attention",
        hint=", or ".join(offers) or "a shorter input, or a machine with more memory",
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
