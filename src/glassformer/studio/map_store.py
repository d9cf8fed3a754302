"""Maps that a page looks at: kept in memory while there is room, the one longest unused goes first."""

from __future__ import annotations

import csv
import io
import secrets
import threading
from collections import OrderedDict
from dataclasses import replace
from typing import IO, Any

import numpy as np

from glassformer.inspection.maps import AttentionMaps, SiteMaps
from glassformer.plotting.attention import to_bytes
from glassformer.plotting.page import WRITERS
from glassformer.studio import limits
from glassformer.studio.replies import refusal

MEDIA_TYPES = {
    "png": "image/png",
    "svg": "image/svg+xml",
    "npz": "application/zip",
    "html": "text/html",
    "csv": "text/csv",
}


class MapStore:
    def __init__(self, most_bytes: int = limits.MAPS_BYTES) -> None:
        self._most_bytes = most_bytes
        self._maps: OrderedDict[str, AttentionMaps] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, maps: AttentionMaps) -> str:
        name = secrets.token_urlsafe(12)
        with self._lock:
            self._maps[name] = maps
            while len(self._maps) > 1 and sum(map(_size, self._maps.values())) > self._most_bytes:
                self._maps.popitem(last=False)
        return name

    def get(self, name: str) -> AttentionMaps:
        with self._lock:
            if name not in self._maps:
                raise refusal(
                    404,
                    "these maps are no longer in memory",
                    place="map",
                    value=name,
                    hint="ask for them again",
                )
            self._maps.move_to_end(name)
            return self._maps[name]


def _size(maps: AttentionMaps) -> int:
    arrays = [array for place in maps.places.values() for array in (place.weights, place.allowed)]
    return sum(array.nbytes for array in arrays if array is not None)


def place_of(maps: AttentionMaps, place: str) -> SiteMaps:
    if place not in maps.places:
        raise refusal(404, "no such place", place="place", value=place, allowed=list(maps.places))
    return maps.places[place]


def map_bytes(maps: AttentionMaps, place: str, layer: int, head: int) -> bytes:
    """A byte a cell, row by row."""
    of_place = place_of(maps, place)
    _check(of_place, layer, head)
    return to_bytes(of_place.weights[layer, head], of_place.allowed_at(layer, head)).tobytes()


def exact_rows(maps: AttentionMaps, place: str, layer: int, head: int, start: int, stop: int) -> bytes:
    """The weights of some queries as they are: float32, little-endian."""
    of_place = place_of(maps, place)
    _check(of_place, layer, head)
    queries = of_place.weights.shape[2]
    if not 0 <= start < stop <= queries:
        raise refusal(404, "no such rows", place="rows", value=f"{start}:{stop}", hint=f"within 0:{queries}")
    return of_place.weights[layer, head, start:stop].astype("<f4").tobytes()


def _check(maps: SiteMaps, layer: int, head: int) -> None:
    layers, heads = maps.weights.shape[:2]
    if not (0 <= layer < layers and 0 <= head < heads):
        raise refusal(
            404,
            "no such map",
            place="layer, head",
            value=f"{layer}, {head}",
            hint=f"layers 0 … {layers - 1}, heads 0 … {heads - 1}, by their place in the lists",
        )


def exported(
    maps: AttentionMaps, ending: str, place: str | None, layer: int | None, head: int | None
) -> bytes:
    """As `glassformer attention --out` writes it: everything, one place of it, or one map."""
    chosen = _part(maps, place, layer, head)
    file = io.BytesIO()
    if ending == "csv":
        _check_cells(chosen)
        _write_csv(chosen, file)
    elif f".{ending}" in WRITERS:
        WRITERS[f".{ending}"](chosen, file)
    else:
        raise refusal(400, "no such format", place="format", value=ending, allowed=list(MEDIA_TYPES))
    return file.getvalue()


def _check_cells(maps: AttentionMaps) -> None:
    cells = sum(place.weights.size for place in maps.places.values())
    if cells > limits.TABLE_CELLS:
        raise refusal(
            400,
            f"a table of {cells:,} lines; at most {limits.TABLE_CELLS:,}",
            place="format",
            value="csv",
            hint="one head, or npz, which holds everything",
        )


def _part(maps: AttentionMaps, place: str | None, layer: int | None, head: int | None) -> AttentionMaps:
    if place is None:
        if layer is not None or head is not None:
            raise refusal(400, "of which place?", place="place", value="", allowed=list(maps.places))
        return maps
    of_place = place_of(maps, place)
    _check(of_place, layer or 0, head or 0)
    layers = slice(None) if layer is None else slice(layer, layer + 1)
    heads = slice(None) if head is None else slice(head, head + 1)
    allowed = of_place.allowed
    if allowed is not None:
        # An axis of length 1 stands for all of its layers or heads.
        allowed = allowed[layers if len(allowed) > 1 else slice(None)]
        allowed = allowed[:, heads if allowed.shape[1] > 1 else slice(None)]
    part = replace(
        of_place,
        weights=of_place.weights[layers, heads],
        allowed=allowed,
        layers=of_place.layers[layers],
        heads=of_place.heads[heads],
    )
    return replace(maps, places={place: part})


def _write_csv(maps: AttentionMaps, file: IO[bytes]) -> None:
    """A line a cell; a masked one has no weight."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text)
    writer.writerow(["place", "layer", "head", "query", "query token", "key", "key token", "weight"])
    for place, of_place in maps.places.items():
        queries, keys = [[_cell(token) for token in axis] for axis in (of_place.queries, of_place.keys)]
        for row, layer in enumerate(of_place.layers):
            for column, head in enumerate(of_place.heads):
                weights, allowed = of_place.weights[row, column], of_place.allowed_at(row, column)
                for query, key in np.ndindex(*weights.shape):
                    is_masked = allowed is not None and not allowed[query, key]
                    number = query + of_place.first_query
                    weight: Any = "" if is_masked else f"{weights[query, key]:.8g}"
                    writer.writerow([place, layer, head, number, queries[query], key, keys[key], weight])
    text.detach()


def _cell(token: str) -> str:
    """A token that a spreadsheet would take for a formula gets an apostrophe before it."""
    return f"'{token}" if token[:1] in ("=", "+", "-", "@", "\t", "\r") else token
