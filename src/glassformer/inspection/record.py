"""Recording: swap the attention kernels of a model for recording ones during one pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from glassformer.blocks import reference
from glassformer.blocks.attention import CrossAttention, Kernel, MultiHeadAttention, explicit_scores
from glassformer.blocks.masks import Mask
from glassformer.core.errors import ErrorDetail
from glassformer.inspection.examples import Names, Reading
from glassformer.inspection.maps import (
    EVERYTHING,
    SITES,
    AttentionMaps,
    Checks,
    Selection,
    Site,
    SiteMaps,
    check_memory,
    check_selection,
)
from glassformer.models.base import Model, evaluating


@dataclass(frozen=True)
class HeadId:
    """One head of a model, by numbers from 0."""

    place: Site
    layer: int
    head: int

    def __str__(self) -> str:
        return f"{self.place} layer {self.layer} head {self.head}"


def attentions(model: nn.Module) -> dict[MultiHeadAttention, Site]:
    """Every attention and where it stands: one that shares its block with a cross-attention decodes."""
    found: dict[MultiHeadAttention, Site] = {}
    for block in nn.ModuleList([model]).modules():
        here = [child for child in block.children() if isinstance(child, MultiHeadAttention)]
        decodes = any(isinstance(child, CrossAttention) for child in here)
        for attention in here:
            if isinstance(attention, CrossAttention):
                found.setdefault(attention, "cross")
            else:
                found.setdefault(attention, "decoder" if decodes else "encoder")
    return found


def layers(model: nn.Module) -> dict[Site, list[MultiHeadAttention]]:
    """The attentions of each place, a layer each."""
    found: dict[Site, list[MultiHeadAttention]] = {}
    for attention, place in attentions(model).items():
        found.setdefault(place, []).append(attention)
    return found


def attention_at(model: nn.Module, where: HeadId) -> MultiHeadAttention:
    """The attention that this head belongs to; a ErrorDetail if there is no such head."""
    there = layers(model)
    if where.place not in there:
        raise ErrorDetail("the model has no such part", path="place", value=where.place, allowed=list(there))
    of_place = there[where.place]
    for name, number, count in (
        ("layer", where.layer, len(of_place)),
        ("head", where.head, of_place[min(max(where.layer, 0), len(of_place) - 1)].num_heads),
    ):
        if not 0 <= number < count:
            raise ErrorDetail(
                f"no such {name}: they are numbered from 0 to {count - 1}",
                path=name,
                value=number,
                hint="glassformer heads RUN lists them",
            )
    return of_place[where.layer]


@contextmanager
def swap_kernels(model: nn.Module, kernels: Mapping[MultiHeadAttention, Kernel]) -> Iterator[None]:
    """Within it the model is in eval mode and these attentions use these kernels; then it is as it was."""
    before = {attention: attention.kernel for attention in kernels}
    with evaluating(model):
        try:
            for attention, kernel in kernels.items():
                attention.kernel = kernel
            yield
        finally:
            for attention, kernel in before.items():
                attention.kernel = kernel


def value_norms(attention: MultiHeadAttention, v_BHMK: Tensor) -> Tensor | None:
    """How long each value vector is after its head's part of the output projection (B, H, M).

    A weight times this is the length of what a token adds to a row (Kobayashi et al. 2020). None for an
    attention with an output of its own kind.
    """
    output: nn.Module = attention.output  # a model of somebody's own may have another one there
    if not isinstance(output, nn.Linear):
        return None
    parts_HDK = output.weight.unflatten(1, (attention.num_heads, -1)).transpose(0, 1)
    return (v_BHMK @ parts_HDK.mT.to(v_BHMK.dtype)).norm(dim=-1)


BLOCK_CELLS = 1 << 22
"""Weights that are written out at a time: a pass needs no more memory than what is kept, and this."""


PLACE_NAMES: dict[Site, str] = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention",
}


@dataclass(frozen=True)
class Record:
    """What one attention saw in one call: the chosen heads and rows."""

    number: int
    """Which call it was at its place: in a pass, the layer."""
    heads: list[int]
    rows: range
    queries: int
    weights_BHLM: Tensor
    allowed_BHLM: Tensor | None
    """The axes B and H may have length 1. None: everything is allowed."""
    value_norms_BHM: Tensor | None = None

    def keep(self, block_BHLM: Tensor, start: int) -> None:
        """What is wanted of a block of rows that begins at `start`."""
        first, stop = max(start, self.rows.start), min(start + block_BHLM.shape[2], self.rows.stop)
        if first < stop:
            wanted = block_BHLM[:, self.heads, first - start : stop - start].detach()
            self.weights_BHLM[:, :, first - self.rows.start : stop - self.rows.start] = wanted


class AttentionRecorder:
    """Records in the order of the calls: in one pass over a whole input, one a layer."""

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self.records: dict[Site, list[Record]] = {}
        self._calls: dict[Site, int] = {}
        self._row_errors: list[float] = []

    @property
    def row_error(self) -> float:
        """The furthest that a row, kept or not, is from adding up to what it should."""
        return float(np.max(self._row_errors, initial=0.0))  # a NaN stays one

    def kernel(self, place: Site, attention: MultiHeadAttention | None = None) -> Kernel:
        """Dropout is left out: these are the weights before it. With `attention`, also its value norms."""

        def record(
            q_BHLK: Tensor, k_BHMK: Tensor, v_BHMK: Tensor, mask: Mask, bias: Tensor | None, dropout: float
        ) -> Tensor:
            batch, heads, queries, _ = q_BHLK.shape
            keys = k_BHMK.shape[2]
            allowed = mask.dense(queries, keys, q_BHLK.device)
            norms_BHM = None if attention is None else value_norms(attention, v_BHMK)
            kept = self._begin(place, (batch, heads, queries, keys), allowed, norms_BHM)
            block = max(1, BLOCK_CELLS // max(1, batch * heads * keys))
            outputs = []
            for start in range(0, queries, block):
                rows = slice(start, start + block)
                may_BHLM = _rows(allowed, rows)
                scores_BHLM = explicit_scores(q_BHLK[:, :, rows], k_BHMK, _rows(bias, rows))
                weights_BHLM = reference.weights(scores_BHLM, may_BHLM)
                self._check(weights_BHLM, may_BHLM)
                if kept is not None:
                    kept.keep(weights_BHLM, start)
                outputs.append(weights_BHLM @ v_BHMK)
            return torch.cat(outputs, dim=2)

        return record

    def _begin(
        self,
        place: Site,
        shape: tuple[int, int, int, int],
        allowed: Tensor | None,
        norms_BHM: Tensor | None,
    ) -> Record | None:
        """Room for what is kept of this call, if anything is."""
        number = self._calls.get(place, 0)
        self._calls[place] = number + 1
        if not self.selection.has(place, number):
            return None
        batch, heads, queries, keys = shape
        chosen, rows = self.selection.heads_of(heads), self.selection.rows_of(queries)
        room_BHLM = torch.empty(batch, len(chosen), len(rows), keys)
        norms_BHM = None if norms_BHM is None else norms_BHM[:, chosen].detach()
        mask = _mask(allowed, queries, keys, chosen, rows)
        record = Record(number, chosen, rows, queries, room_BHLM, mask, norms_BHM)
        self.records.setdefault(place, []).append(record)
        return record

    def _check(self, weights_BHLM: Tensor, allowed: Tensor | None) -> None:
        expected = 1.0 if allowed is None else allowed.any(-1).to(weights_BHLM.dtype)
        errors_BHL = (weights_BHLM.detach().sum(-1) - expected).abs()
        self._row_errors.append(float(errors_BHL.max()))


def _rows(tensor: Tensor | None, rows: slice) -> Tensor | None:
    """Rows of something that broadcasts to (B, H, L, M)."""
    return tensor if tensor is None or tensor.shape[-2] == 1 else tensor[..., rows, :]


def _mask(allowed: Tensor | None, queries: int, keys: int, heads: list[int], rows: range) -> Tensor | None:
    """The chosen heads and rows of a mask, written out."""
    if allowed is None:
        return None
    while allowed.ndim < 4:
        allowed = allowed[None]
    allowed_BHLM = allowed.expand(-1, -1, queries, keys)[:, :, rows.start : rows.stop]
    return allowed_BHLM[:, heads] if allowed_BHLM.shape[1] > 1 else allowed_BHLM


@contextmanager
def capture(model: nn.Module, selection: Selection = EVERYTHING) -> Iterator[AttentionRecorder]:
    """Within it the model is in eval mode and its attentions record; after it, it is as it was."""
    tap = AttentionRecorder(selection)
    kernels = {attention: tap.kernel(place, attention) for attention, place in attentions(model).items()}
    with swap_kernels(model, kernels):
        yield tap


def attention_maps(
    model: Model,
    reading: Reading,
    selection: Selection = EVERYTHING,
    about: Mapping[str, str] | None = None,
) -> AttentionMaps:
    """The maps of one input, after two passes over it: as the model is, and recording."""
    sizes, lengths = _sizes(model), reading.lengths()
    check_selection(selection, sizes, lengths)
    check_memory(selection, sizes, lengths, BLOCK_CELLS)
    with torch.inference_mode():
        with evaluating(model):
            answers = model(**reading.inputs)
        with capture(model, selection) as tap:
            recorded = model(**reading.inputs)
    checks = Checks(tap.row_error, float((recorded - answers).abs().max()), float(answers.abs().max()))
    places: dict[str, SiteMaps] = {}
    for place in SITES:
        if place in tap.records:
            name = "self-attention" if len(sizes) == 1 else PLACE_NAMES[place]
            records = tap.records.pop(place)
            places[place] = _place_maps(name, place, records, reading)
    # What was typed may hold bytes that are no text; files take text.
    told = {key: value.encode("utf-8", "replace").decode() for key, value in (about or {}).items()}
    return AttentionMaps(places, checks, told)


def _sizes(model: nn.Module) -> dict[Site, list[int]]:
    """How many heads each layer of each place has."""
    return {place: [each.num_heads for each in of_place] for place, of_place in layers(model).items()}


def _place_maps(name: str, place: Site, records: list[Record], reading: Reading) -> SiteMaps:
    first, names = records[0], reading.names.get(place)
    patterns = reading.patterns.get(place, {})
    _, heads, rows, keys = first.weights_BHLM.shape
    if names is None or (len(names.queries), len(names.keys)) != (first.queries, keys):
        # A model that adds or merges tokens on its way has positions of its own.
        names = Names(
            _positions(first.queries), _positions(keys), "position that looks", "position it looks at"
        )
        patterns = {}
    masks = [record.allowed_BHLM for record in records]
    norms = [record.value_norms_BHM for record in records]
    layers = [record.number for record in records]
    weights = np.empty((len(records), heads, rows, keys), dtype=np.float32)
    for layer in range(len(weights)):
        weights[layer] = records.pop(0).weights_BHLM[0]  # and its own memory goes
    shown = slice(first.rows.start, first.rows.stop)
    return SiteMaps(
        name=name,
        weights=weights,
        allowed=_stack(masks, heads, rows, keys),
        layers=layers,
        heads=first.heads,
        queries=names.queries[shown],
        keys=names.keys,
        query_axis=names.query_axis,
        key_axis=names.key_axis,
        answers=None if names.answers is None else names.answers[shown],
        is_cross=place == "cross",
        first_query=first.rows.start,
        is_part=len(first.rows) < first.queries,
        value_norms=_stack_norms(norms),
        patterns={name: template[shown] for name, template in patterns.items()},
    )


def _stack_norms(norms: list[Tensor | None]) -> np.ndarray | None:
    there = [norms_BHM[0].float().cpu().numpy() for norms_BHM in norms if norms_BHM is not None]
    return np.stack(there) if len(there) == len(norms) else None


def _positions(count: int) -> list[str]:
    return [str(place) for place in range(count)]


def _stack(masks: list[Tensor | None], heads: int, rows: int, keys: int) -> np.ndarray | None:
    """The layers' masks as one array, with an axis of length 1 where all layers or heads share one."""
    if all(mask is None for mask in masks):
        return None
    everything = torch.ones(1, 1, rows, keys, dtype=torch.bool)
    written = [everything if mask is None else mask[:1].cpu() for mask in masks]
    if all(torch.equal(mask, written[0]) for mask in written):
        return written[0].numpy().copy()
    return torch.cat([mask.expand(1, heads, rows, keys) for mask in written]).numpy()
