"""Attention maps as data: weights, axis labels, checks, and the selection of layers and heads to record."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import IO, Any, Literal, get_args

import numpy as np

from glassformer.core.errors import ErrorDetail, shorten, user_error
from glassformer.core.system import available_memory, peak_memory

Trust = Literal["fact", "cause", "hint"]
"""Kind of evidence: a measured fact, the effect of a change to the model, or a heuristic that can mislead."""

MEANING: dict[Trust, str] = {
    "fact": "measured on the attention weights; shows what a head reads, not what it is for",
    "cause": "the model was changed and run again; shows the effect of this one change",
    "hint": "a heuristic that can mislead; check it against facts and causes",
}

Site = Literal["encoder", "decoder", "cross"]
"""Attention site: where in the model an attention module sits. A model with one stack has only `encoder`."""
SITES: tuple[Site, ...] = get_args(Site)

AXES = ("layer", "head", "query", "key")
CAPTION = "Attention shows where a head read, not why the model answered."

ROW_TOLERANCE = 1e-5
"""Largest accepted deviation of a row's sum from 1."""
LOGIT_TOLERANCE = 1e-4
"""Largest accepted difference of logits relative to the largest logit. Two kernels round differently."""

FORMAT = 1
"""Version of the NPZ file format. Files of other versions are rejected."""


@dataclass(frozen=True)
class Checks:
    """Numerical errors measured while the maps were recorded, over all heads including those not selected."""

    row_error: float
    """Largest deviation of a row's sum from 1, or from 0 if the row may attend to nothing."""
    logit_error: float
    """Largest difference between the logits of the recorded pass and those of the model's own kernel."""
    largest_logit: float
    """Largest absolute logit, the scale of `logit_error`."""

    @property
    def rows_agree(self) -> bool:
        return self.row_error <= ROW_TOLERANCE

    @property
    def logits_agree(self) -> bool:
        return self.logit_error <= LOGIT_TOLERANCE * max(1.0, self.largest_logit)

    @property
    def passed(self) -> bool:
        return self.rows_agree and self.logits_agree

    def lines(self) -> list[tuple[bool, str]]:
        """Return one pair (passed, text) per check, for display under a figure."""
        rows = f"each row sums to 1, within {self.row_error:.1g}"
        logits = f"logits equal those of the fused kernel that training uses, within {self.logit_error:.1g}"
        if not self.rows_agree:
            rows = f"a row's sum differs from 1 by {self.row_error:.2g}"
        if not self.logits_agree:
            logits = f"logits differ from the fused kernel's, which training uses, by {self.logit_error:.2g}"
        lines = [(self.rows_agree, rows), (self.logits_agree, logits)]
        return [(passed, f"{'✓' if passed else '✗'} {line}") for passed, line in lines]

    def document(self) -> dict[str, Any]:
        """Return the measured errors as a JSON-serialisable dict."""
        return {"passed": self.passed, **asdict(self)}


@dataclass(frozen=True)
class AxisLabels:
    """Axis labels for the attention maps of one site (encoder, decoder or cross)."""

    queries: list[str]
    keys: list[str]
    query_axis: str
    key_axis: str
    outputs: list[str] | None = None
    """Model output at each query, as text. None if the query labels show it, or if there is none."""


@dataclass(frozen=True)
class SiteMaps:
    """Maps of one site (encoder, decoder or cross): `weights[layer, head, query, key]`, in float32."""

    name: str
    """Display name, such as `encoder self-attention`."""
    weights: np.ndarray
    allowed: np.ndarray | None
    """True where a query may attend to a key; broadcasts to `weights`. None if nothing is masked."""
    layers: list[int]
    heads: list[int]
    queries: list[str]
    keys: list[str]
    query_axis: str
    key_axis: str
    """Axis titles, such as `query token` and `key token`."""
    outputs: list[str] | None = None
    """Model output at each query, as text. None if the query labels show it, or if there is none."""
    is_cross: bool = False
    """True if queries and keys belong to two sequences, so that their distance has no meaning."""
    first_query: int = 0
    is_part: bool = False
    """True if only some of the queries are included, starting at `first_query`."""
    is_summary: bool = False
    """True if a single map combines all layers and heads."""
    value_norms: np.ndarray | None = None
    """`[layer, head, key]`: norm of each value vector after the head's slice of the output projection.
    A weight times this norm is the length of the vector that the key adds to the query's output."""
    patterns: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Attention patterns that the task defines, by name: True on the cells (query, key) of the pattern."""

    @property
    def largest(self) -> float:
        return float(self.weights.max(initial=0.0))

    @property
    def has_masked(self) -> bool:
        return self.allowed is not None and not bool(self.allowed.all())

    def layer_name(self, row: int) -> str:
        """Return the label of the layer at index `row` of `weights`."""
        return "all layers" if self.is_summary else f"layer {self.layers[row]}"

    def head_name(self, column: int) -> str:
        """Return the label of the head at index `column` of `weights`."""
        return "all heads" if self.is_summary else f"head {self.heads[column]}"

    def allowed_at(self, layer: int, head: int) -> np.ndarray | None:
        """Return the attention mask of one map, by its indices in `weights`; None if nothing is masked."""
        if self.allowed is None:
            return None
        return self.allowed[min(layer, len(self.allowed) - 1), min(head, self.allowed.shape[1] - 1)]

    def document(self) -> dict[str, Any]:
        """Return all fields except the arrays as a JSON-serialisable dict."""
        arrays = ("weights", "allowed", "value_norms", "patterns")
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name not in arrays}


MAX_COMPRESSION_RATIO = 200
"""Largest accepted ratio of decompressed size to file size. A zip bomb of zeros reaches a ratio of 1,000."""


def _reject_zip_bomb(path: Path) -> None:
    """Raise ValueError if a file is not regular, or would decompress to far more bytes than it has."""
    if not path.is_file() and path.exists():
        raise ValueError("it is not a regular file")
    with zipfile.ZipFile(path) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
    if size > (64 << 20) and size > MAX_COMPRESSION_RATIO * path.stat().st_size:
        raise ValueError(f"it would decompress to {size:,} bytes")


@dataclass(frozen=True)
class AttentionMaps:
    """Attention maps of one input, by attention site: `encoder`, `decoder`, `cross`.

    maps["encoder"].weights          # (layers, heads, queries, keys)
    maps.save("map.png")             # or .svg, .html, .npz
    """

    sites: dict[str, SiteMaps]
    checks: Checks
    about: dict[str, str] = field(default_factory=dict)
    """Descriptions of where the maps come from, under the keys `run`, `checkpoint`, `input` and `output`.
    A `warning` is a reason not to trust the output for this input."""

    def __getitem__(self, site: str) -> SiteMaps:
        return self.sites[site]

    def __repr__(self) -> str:
        sizes = (
            "{}: {} layers, {} heads, {} x {} tokens".format(site, *maps.weights.shape)
            for site, maps in self.sites.items()
        )
        return f"{type(self).__name__}({'; '.join(sizes)}; {shorten(self.subtitle, 60)!r})"

    @property
    def title(self) -> str:
        return " · ".join(self.about[key] for key in ("run", "checkpoint") if self.about.get(key))

    @property
    def subtitle(self) -> str:
        return "  →  ".join(self.about[key] for key in ("input", "output") if self.about.get(key))

    @property
    def warning(self) -> str | None:
        """Reason not to trust the output for this input, or None."""
        return self.about.get("warning")

    def save(self, path: str | Path) -> None:
        """Write a PNG, SVG, HTML or NPZ file, chosen by the extension."""
        from glassformer.plotting.page import write

        write(self, Path(path))

    def write_npz(self, file: IO[bytes]) -> None:
        """Write all arrays and a JSON description to an NPZ file, which `load` can read."""
        arrays: dict[str, np.ndarray] = {}
        for site, maps in self.sites.items():
            arrays[f"{site}.weights"] = maps.weights
            if maps.allowed is not None:
                arrays[f"{site}.allowed"] = maps.allowed
            if maps.value_norms is not None:
                arrays[f"{site}.value_norms"] = maps.value_norms
            for name, cells in maps.patterns.items():
                arrays[f"{site}.patterns.{name}"] = cells
        document = {
            "format": FORMAT,
            "axes": AXES,
            "sites": {site: maps.document() for site, maps in self.sites.items()},
            "checks": asdict(self.checks),
            "about": self.about,
            "caption": CAPTION,
        }
        arrays["about"] = np.array(json.dumps(document, ensure_ascii=False))
        np.savez_compressed(file, allow_pickle=False, **arrays)

    @classmethod
    def load(cls, path: str | Path) -> AttentionMaps:
        """Return the attention maps from an NPZ file that `save` wrote."""
        try:
            _reject_zip_bomb(Path(path))
            with np.load(path, allow_pickle=False) as arrays:
                return cls._read(arrays)
        except FileNotFoundError:
            raise user_error("no such file", path=str(path), hint="check the path") from None
        except Exception as error:  # a foreign file can fail anywhere in zipfile, NumPy or json
            raise user_error(
                f"the file does not contain attention maps: {error}",
                path=str(path),
                hint="write the file again: glassformer attention RUN INPUT --out map.npz",
            ) from None

    @classmethod
    def _read(cls, arrays: Mapping[str, np.ndarray]) -> AttentionMaps:
        """Return the attention maps from the arrays of an NPZ file."""
        document = json.loads(str(arrays["about"]))
        if document["format"] != FORMAT:
            raise ValueError(f"its format is {document['format']}; this version reads {FORMAT}")
        sites = {
            site: SiteMaps(
                weights=arrays[f"{site}.weights"],
                allowed=arrays.get(f"{site}.allowed"),
                value_norms=arrays.get(f"{site}.value_norms"),
                patterns={
                    name.removeprefix(f"{site}.patterns."): arrays[name]
                    for name in arrays
                    if name.startswith(f"{site}.patterns.")
                },
                **described,
            )
            for site, described in document["sites"].items()
        }
        return cls(sites, Checks(**document["checks"]), document["about"])

    def _repr_png_(self) -> bytes:
        from glassformer.plotting.attention import png

        return png(self)

    def _repr_html_(self) -> str | None:
        from glassformer.plotting.page import notebook_frame

        return notebook_frame(self)


Sizes = Mapping[Site, list[int]]
"""Number of heads in each layer, by attention site."""
Lengths = Mapping[Site, tuple[int, int]]
"""Number of queries and keys, by attention site."""

BYTES_PER_WEIGHT = 4
WORKING_COPIES = 4
"""Arrays in memory per block of rows: scores, masked scores, exponentials and weights."""


@dataclass(frozen=True)
class Selection:
    """Selection of the attention maps to record, numbered from 0. A field that is None selects all.

    `rows` are rows of a map (queries). `site` is `encoder`, `decoder` or `cross`.
    """

    layers: Sequence[int] | None = None
    heads: Sequence[int] | None = None
    rows: tuple[int, int] | None = None
    """First query to record, and the query after the last one."""
    site: Site | None = None

    def has(self, site: Site, layer: int) -> bool:
        """Return True if this layer of a site (encoder, decoder or cross) is selected."""
        return self.site in (None, site) and (self.layers is None or layer in self.layers)

    def heads_of(self, count: int) -> list[int]:
        """Return the numbers of the selected heads in a layer with `count` heads."""
        return list(range(count)) if self.heads is None else list(self.heads)

    def rows_of(self, count: int) -> range:
        """Return the numbers of the selected queries in a map with `count` queries."""
        start, stop = self.rows or (0, count)
        return range(min(start, count), min(stop, count))


EVERYTHING = Selection()


def check_selection(selection: Selection, sizes: Sizes, lengths: Lengths) -> None:
    """Raise ErrorDetail if a selected site, layer, head or row does not exist."""
    if not sizes:
        raise ErrorDetail(
            "the model has no MultiHeadAttention module to record",
            hint="build your own model from the blocks of glassformer.nn",
        )
    if selection.site is not None and selection.site not in sizes:
        raise ErrorDetail(
            "the model has no such attention site", path="site", value=selection.site, allowed=list(sizes)
        )
    sites = [site for site in sizes if selection.site in (None, site)]
    layers = max(len(sizes[site]) for site in sites)
    _check_numbers("layer", selection.layers, layers)
    counts = {
        heads for site in sites for layer, heads in enumerate(sizes[site]) if selection.has(site, layer)
    }
    if len(counts) > 1 and selection.heads is None:
        raise ErrorDetail(
            "layers differ in their number of heads", path="heads", hint="add --layers 0, or --heads 0"
        )
    _check_numbers("head", selection.heads, min(counts))
    if selection.rows is not None:
        start, stop = selection.rows
        shortest = min(lengths[site][0] for site in sites if site in lengths)
        if not 0 <= start < min(stop, shortest):
            raise ErrorDetail(
                f"no such rows: the map has {shortest} rows",
                path="rows",
                value=f"{start}:{stop}",
                hint=f"select rows within 0:{shortest}",
            )


def check_index(name: str, number: int, count: int, path: str = "", hint: str = "") -> None:
    """Raise ErrorDetail if `number` is not one of `count` items that are numbered from 0."""
    if not 0 <= number < count:
        is_one = count == 1
        known = f"the only {name} is 0" if is_one else f"they are numbered from 0 to {count - 1}"
        choose = f"use {name} 0" if is_one else hint or f"choose a number from 0 to {count - 1}"
        raise ErrorDetail(f"no such {name}: {known}", path=path or name, value=number, hint=choose)


def _check_numbers(name: str, wanted: Sequence[int] | None, count: int) -> None:
    """Raise ErrorDetail if selected layers or heads do not exist, repeat, or are an empty list."""
    if wanted is None:
        return
    path = f"{name}s"
    for number in wanted:
        check_index(name, number, count, path)
    if not wanted or len(set(wanted)) < len(wanted):
        message = "a number is repeated" if wanted else "the list is empty"
        raise ErrorDetail(message, path=path, value=list(wanted), hint=f"--{path} 0,1")


def needed_bytes(selection: Selection, sizes: Sizes, lengths: Lengths, block_cells: int) -> int:
    """Return an upper bound, in bytes, of the memory needed to record these maps and write them to a file."""
    recorded, largest_layer, mask = 0, 0, 0
    for site, (queries, keys) in lengths.items():
        rows = len(selection.rows_of(queries))
        for layer, heads in enumerate(sizes.get(site, [])):
            if selection.has(site, layer):
                layer_bytes = len(selection.heads_of(heads)) * rows * keys * BYTES_PER_WEIGHT
                recorded += layer_bytes
                largest_layer = max(largest_layer, layer_bytes)
        mask = max(mask, queries * keys)
    working = WORKING_COPIES * block_cells * BYTES_PER_WEIGHT
    page = recorded // BYTES_PER_WEIGHT  # one byte per cell in an HTML page
    return recorded + largest_layer + mask + working + page


def check_memory(selection: Selection, sizes: Sizes, lengths: Lengths, block_cells: int) -> None:
    """Raise ErrorDetail if the maps do not fit into memory; its hint lists smaller selections that do."""
    available = available_memory()
    if available is None:
        return
    free = max(0, available - peak_memory())
    needed = needed_bytes(selection, sizes, lengths, block_cells)
    if needed <= free:
        return
    offers = [
        f"add {words} ({_size(smaller)})"
        for words, offer in _offers(selection, lengths)
        if (smaller := needed_bytes(offer, sizes, lengths, block_cells)) <= free
    ]
    raise ErrorDetail(
        f"the maps need {_size(needed)} of memory; {_size(free)} are free",
        path="attention",
        hint=", or ".join(offers) or "use a shorter input, or a machine with more memory",
    )


def _offers(selection: Selection, lengths: Lengths) -> list[tuple[str, Selection]]:
    """Return (command-line options, selection) for three smaller selections, largest first."""
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
