"""Attention maps that the page shows: an LRU cache, and their encoding as bytes, rows and files."""

from __future__ import annotations

import csv
import io
import secrets
from dataclasses import replace
from typing import IO, Any

import numpy as np

from glassformer.core.cache import LRUCache
from glassformer.inspection.maps import AttentionMaps, SiteMaps
from glassformer.plotting.attention import to_bytes
from glassformer.plotting.page import WRITERS
from glassformer.studio import limits
from glassformer.web.messages import refusal

MEDIA_TYPES = {
    "png": "image/png",
    "svg": "image/svg+xml",
    "npz": "application/zip",
    "html": "text/html",
    "csv": "text/csv",
}


class MapStore:
    """LRU cache of attention maps. Each has a random name, by which the page requests parts of the maps."""

    def __init__(self, max_bytes: int = limits.MAPS_BYTES) -> None:
        self._maps: LRUCache[str, AttentionMaps] = LRUCache(max_bytes, _size)

    def add(self, maps: AttentionMaps) -> str:
        name = secrets.token_urlsafe(12)
        self._maps.add(name, maps)
        return name

    def get(self, name: str) -> AttentionMaps:
        maps = self._maps.get(name)
        if maps is None:
            raise refusal(
                404, "these maps are no longer in memory", path="map", value=name, hint="reload the page"
            )
        return maps


def _size(maps: AttentionMaps) -> int:
    arrays = [array for site in maps.sites.values() for array in (site.weights, site.allowed)]
    return sum(array.nbytes for array in arrays if array is not None)


def site_of(maps: AttentionMaps, site: str) -> SiteMaps:
    if site not in maps.sites:
        raise refusal(
            404, "the maps have no such attention site", path="site", value=site, allowed=list(maps.sites)
        )
    return maps.sites[site]


def map_bytes(maps: AttentionMaps, site: str, layer: int, head: int) -> bytes:
    """Return the attention weights of one head as one byte per cell, row by row."""
    site_maps = site_of(maps, site)
    _check(site_maps, layer, head)
    return to_bytes(site_maps.weights[layer, head], site_maps.allowed_at(layer, head)).tobytes()


def exact_rows(maps: AttentionMaps, site: str, layer: int, head: int, start: int, stop: int) -> bytes:
    """Return the exact attention weights for queries `start` to `stop` as little-endian float32 bytes."""
    site_maps = site_of(maps, site)
    _check(site_maps, layer, head)
    queries = site_maps.weights.shape[2]
    if not 0 <= start < stop <= queries:
        raise refusal(
            404,
            "the map has no such rows",
            path="rows",
            value=f"{start}:{stop}",
            hint=f"use rows in 0:{queries}",
        )
    return site_maps.weights[layer, head, start:stop].astype("<f4").tobytes()


def _check(maps: SiteMaps, layer: int, head: int) -> None:
    layers, heads = maps.weights.shape[:2]
    if not (0 <= layer < layers and 0 <= head < heads):
        raise refusal(
            404,
            "the site has no such map",
            path="layer, head",
            value=f"{layer}, {head}",
            hint=f"use an index of layers 0 … {layers - 1} and heads 0 … {heads - 1}",
        )


def export_bytes(
    maps: AttentionMaps, ending: str, site: str | None, layer: int | None, head: int | None
) -> bytes:
    """Return the content of an export file with all maps, the maps of one site, or a single map."""
    chosen = _select(maps, site, layer, head)
    file = io.BytesIO()
    if ending == "csv":
        _check_cells(chosen)
        _write_csv(chosen, file)
    elif f".{ending}" in WRITERS:
        WRITERS[f".{ending}"](chosen, file)
    else:
        raise refusal(400, "unknown file format", path="format", value=ending, allowed=list(MEDIA_TYPES))
    return file.getvalue()


def _check_cells(maps: AttentionMaps) -> None:
    cells = sum(site.weights.size for site in maps.sites.values())
    if cells > limits.TABLE_CELLS:
        raise refusal(
            400,
            f"the table would have {cells:,} lines; at most {limits.TABLE_CELLS:,} are allowed",
            path="format",
            value="csv",
            hint="export one head, or choose npz, which has no limit",
        )


def _select(maps: AttentionMaps, site: str | None, layer: int | None, head: int | None) -> AttentionMaps:
    if site is None:
        if layer is not None or head is not None:
            raise refusal(
                400, "a layer or head needs a site", path="site", value="", allowed=list(maps.sites)
            )
        return maps
    site_maps = site_of(maps, site)
    _check(site_maps, layer or 0, head or 0)
    layers = slice(None) if layer is None else slice(layer, layer + 1)
    heads = slice(None) if head is None else slice(head, head + 1)
    allowed = site_maps.allowed
    if allowed is not None:
        # An axis of length 1 applies to all layers or heads.
        allowed = allowed[layers if len(allowed) > 1 else slice(None)]
        allowed = allowed[:, heads if allowed.shape[1] > 1 else slice(None)]
    chosen = replace(
        site_maps,
        weights=site_maps.weights[layers, heads],
        allowed=allowed,
        layers=site_maps.layers[layers],
        heads=site_maps.heads[heads],
    )
    return replace(maps, sites={site: chosen})


def _write_csv(maps: AttentionMaps, file: IO[bytes]) -> None:
    """Write a CSV table with one line per map cell. The weight of a masked cell is empty."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text)
    writer.writerow(["site", "layer", "head", "query", "query token", "key", "key token", "weight"])
    for site, site_maps in maps.sites.items():
        queries, keys = [[_cell(token) for token in axis] for axis in (site_maps.queries, site_maps.keys)]
        for row, layer in enumerate(site_maps.layers):
            for column, head in enumerate(site_maps.heads):
                weights, allowed = site_maps.weights[row, column], site_maps.allowed_at(row, column)
                for query, key in np.ndindex(*weights.shape):
                    is_masked = allowed is not None and not allowed[query, key]
                    number = query + site_maps.first_query
                    weight: Any = "" if is_masked else f"{weights[query, key]:.8g}"
                    writer.writerow([site, layer, head, number, queries[query], key, keys[key], weight])
    text.detach()


def _cell(token: str) -> str:
    """Return a token, with an apostrophe before it if a spreadsheet would read the token as a formula."""
    return f"'{token}" if token[:1] in ("=", "+", "-", "@", "\t", "\r") else token
