"""Recording of attention weights and hidden states, for any model built from the blocks of this package.

    with record(model) as tape:
        model(tokens)
    tape.attention["encoder"][0]     # layer 0: (batch, heads, queries, keys)
    tape.residual["encoder"][-1]     # after the last block: (batch, length, hidden)

`capture` records attention weights alone, for selected layers, heads and rows. `attention_maps` adds axis
labels, and compares the logits of the recorded pass with those of the model's own attention kernel.

Axes: B batch, H heads, L queries, M keys, K head width, D hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from glassformer.blocks import reference
from glassformer.blocks.attention import CrossAttention, Kernel, MultiHeadAttention, explicit_scores
from glassformer.blocks.masks import Mask
from glassformer.core.errors import ErrorDetail
from glassformer.inspection.maps import (
    EVERYTHING,
    SITES,
    AttentionMaps,
    AxisLabels,
    Checks,
    Selection,
    Site,
    SiteMaps,
    check_index,
    check_memory,
    check_selection,
)
from glassformer.inspection.sites import StateRecorder, change_sites, select_sites
from glassformer.models.base import Model, evaluating

if TYPE_CHECKING:
    from glassformer.generation.predict import Prediction

BLOCK_CELLS = 1 << 22
"""Maximum number of attention weights computed at a time, which bounds the memory besides the records."""

SITE_NAMES: dict[Site, str] = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention",
}


@dataclass(frozen=True)
class HeadId:
    """Address of one attention head: site (encoder, decoder or cross), layer and head, numbered from 0."""

    site: Site
    layer: int
    head: int

    def __str__(self) -> str:
        return f"{self.site} layer {self.layer} head {self.head}"


def attentions(model: nn.Module) -> dict[MultiHeadAttention, Site]:
    """Return every attention module of a model with its site: `encoder`, `decoder` or `cross`.

    Self-attention belongs to the decoder if its block also has a cross-attention, else to the encoder.
    """
    found: dict[MultiHeadAttention, Site] = {}
    for block in nn.ModuleList([model]).modules():
        children = [child for child in block.children() if isinstance(child, MultiHeadAttention)]
        is_cross = [isinstance(child, CrossAttention) for child in children]
        own: Site = "decoder" if any(is_cross) else "encoder"
        for attention, crosses in zip(children, is_cross, strict=True):
            found.setdefault(attention, "cross" if crosses else own)
    return found


def layers(model: nn.Module) -> dict[Site, list[MultiHeadAttention]]:
    """Return the attention modules by site (encoder, decoder or cross), one per layer."""
    found: dict[Site, list[MultiHeadAttention]] = {}
    for attention, site in attentions(model).items():
        found.setdefault(site, []).append(attention)
    return found


def attention_at(model: nn.Module, where: HeadId) -> MultiHeadAttention:
    """Return the attention module that contains a head; raise ErrorDetail if the model has no such head."""
    sites = layers(model)
    if where.site not in sites:
        raise ErrorDetail(
            "the model has no such attention site", path="site", value=where.site, allowed=list(sites)
        )
    modules = sites[where.site]
    hint = "list the layers and heads: glassformer heads RUN"
    check_index("layer", where.layer, len(modules), hint=hint)
    check_index("head", where.head, modules[where.layer].num_heads, hint=hint)
    return modules[where.layer]


@contextmanager
def swap_kernels(model: nn.Module, kernels: Mapping[MultiHeadAttention, Kernel]) -> Iterator[None]:
    """Replace attention kernels inside a `with` block, in eval mode; restore kernels and mode at its end."""
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
    """Return the norm of each value vector after the head's slice of the output projection (B, H, M).

    An attention weight times this norm is the length of the vector that the key's token adds to the query's
    output (Kobayashi et al. 2020). The result is None if the output projection is not a Linear layer.
    """
    output: nn.Module = attention.output  # a user's model may have another module here
    if not isinstance(output, nn.Linear):
        return None
    slices_HDK = output.weight.unflatten(1, (attention.num_heads, -1)).transpose(0, 1)
    return (v_BHMK @ slices_HDK.mT.to(v_BHMK.dtype)).norm(dim=-1)


@dataclass(frozen=True)
class Record:
    """Attention weights from one call of one attention module, for the selected heads and queries (rows)."""

    number: int
    """Number of the call among those at its attention site. In a pass over a whole input, it is the layer."""
    heads: list[int]
    rows: range
    queries: int
    weights_BHLM: Tensor
    allowed_BHLM: Tensor | None
    """True where a query may attend to a key; B and H may have length 1. None if nothing is masked."""
    value_norms_BHM: Tensor | None = None

    def store(self, block_BHLM: Tensor, start: int) -> None:
        """Copy the selected heads and queries from `block_BHLM`, whose first row is the query `start`."""
        first, stop = max(start, self.rows.start), min(start + block_BHLM.shape[2], self.rows.stop)
        if first < stop:
            selected = block_BHLM[:, self.heads, first - start : stop - start].detach()
            self.weights_BHLM[:, :, first - self.rows.start : stop - self.rows.start] = selected


class AttentionRecorder:
    """Recorder of attention weights: a list of records per site (encoder, decoder or cross), one per call."""

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self.records: dict[Site, list[Record]] = {}
        self._calls: dict[Site, int] = {}
        self._row_errors: list[float] = []

    @property
    def row_error(self) -> float:
        """Largest deviation of a row's sum from 1, or from 0 for a fully masked row, over all heads."""
        return float(np.max(self._row_errors, initial=0.0))  # np.max propagates NaN

    def kernel(self, site: Site, attention: MultiHeadAttention | None = None) -> Kernel:
        """Return an attention kernel with an explicit softmax that records its weights, without dropout.

        If `attention` is given, the kernel also records the norms of its value vectors.
        """

        def record(
            q_BHLK: Tensor, k_BHMK: Tensor, v_BHMK: Tensor, mask: Mask, bias: Tensor | None, dropout: float
        ) -> Tensor:
            batch, heads, queries, _ = q_BHLK.shape
            keys = k_BHMK.shape[2]
            allowed = mask.dense(queries, keys, q_BHLK.device)
            norms_BHM = None if attention is None else value_norms(attention, v_BHMK)
            call = self._begin(site, (batch, heads, queries, keys), allowed, norms_BHM)
            block = max(1, BLOCK_CELLS // max(1, batch * heads * keys))
            outputs = []
            for start in range(0, queries, block):
                rows = slice(start, start + block)
                may_BHLM = _rows(allowed, rows)
                scores_BHLM = explicit_scores(q_BHLK[:, :, rows], k_BHMK, _rows(bias, rows))
                weights_BHLM = reference.weights(scores_BHLM, may_BHLM)
                self._check(weights_BHLM, may_BHLM)
                if call is not None:
                    call.store(weights_BHLM, start)
                outputs.append(weights_BHLM @ v_BHMK)
            return torch.cat(outputs, dim=2)

        return record

    def _begin(
        self,
        site: Site,
        shape: tuple[int, int, int, int],
        allowed: Tensor | None,
        norms_BHM: Tensor | None,
    ) -> Record | None:
        """Count the call and allocate its record; return None if the call is not selected."""
        number = self._calls.get(site, 0)
        self._calls[site] = number + 1
        if not self.selection.has(site, number):
            return None
        batch, heads, queries, keys = shape
        chosen, rows = self.selection.heads_of(heads), self.selection.rows_of(queries)
        weights_BHLM = torch.empty(batch, len(chosen), len(rows), keys)
        norms_BHM = None if norms_BHM is None else norms_BHM[:, chosen].detach()
        mask = None if allowed is None else select_rows(allowed, queries, keys, chosen, rows)
        record = Record(number, chosen, rows, queries, weights_BHLM, mask, norms_BHM)
        self.records.setdefault(site, []).append(record)
        return record

    def _check(self, weights_BHLM: Tensor, allowed: Tensor | None) -> None:
        """Store the largest deviation of a row's sum from 1, or from 0 for a fully masked row."""
        expected = 1.0 if allowed is None else allowed.any(-1).to(weights_BHLM.dtype)
        errors_BHL = (weights_BHLM.detach().sum(-1) - expected).abs()
        self._row_errors.append(float(errors_BHL.max()))


def _rows(tensor: Tensor | None, rows: slice) -> Tensor | None:
    """Return the queries `rows` of a tensor that broadcasts to (B, H, L, M)."""
    return tensor if tensor is None or tensor.shape[-2] == 1 else tensor[..., rows, :]


def select_rows(tensor: Tensor, queries: int, keys: int, heads: list[int], rows: range) -> Tensor:
    """Return these heads and queries (`rows`) of a mask or score bias that broadcasts to (B, H, L, M)."""
    while tensor.ndim < 4:
        tensor = tensor[None]
    selected_BHLM = tensor.expand(-1, -1, queries, keys)[:, :, rows.start : rows.stop]
    return selected_BHLM[:, heads] if selected_BHLM.shape[1] > 1 else selected_BHLM


@contextmanager
def capture(model: nn.Module, selection: Selection = EVERYTHING) -> Iterator[AttentionRecorder]:
    """Record every attention call inside a `with` block, in eval mode; restore the model at its end."""
    recorder = AttentionRecorder(selection)
    kernels = {attention: recorder.kernel(site, attention) for attention, site in attentions(model).items()}
    with swap_kernels(model, kernels):
        yield recorder


@dataclass(frozen=True)
class Tape:
    """Attention weights and hidden states of the forward passes inside a `with record(model)` block.

    Tensors are detached from the graph. A second forward pass appends to the lists of the first.
    """

    recorder: AttentionRecorder
    residual: dict[Site, list[Tensor]] = field(default_factory=dict)
    """Hidden states (B, L, D) of the `encoder` and the `decoder`: the input of the first block, then the
    output of each block. The final norm is not applied."""
    states: dict[str, list[Tensor]] = field(default_factory=dict)
    """Tensors at the selected sites by name, one per pass through the site."""

    @property
    def attention(self) -> dict[Site, list[Tensor]]:
        """Attention weights (B, H, L, M) per layer, for each site: `encoder`, `decoder`, `cross`."""
        return {
            site: [record.weights_BHLM for record in records]
            for site, records in self.recorder.records.items()
        }

    def __getitem__(self, name: str) -> Tensor:
        """Return the tensor at a selected site, if the model ran once."""
        found = self.states.get(name, [])
        if len(found) != 1:
            raise ErrorDetail(
                "the model ran more than once: tape.states has a list" if found else "not recorded",
                path="site",
                value=name,
                allowed=list(self.states),
                hint=f"record(model, sites=[{name!r}]), then run the model once",
            )
        return found[0]

    def __repr__(self) -> str:
        if self.states:
            return f"Tape({', '.join(self.states)})"
        residual = ", ".join(f"{site}: {len(states)} states" for site, states in self.residual.items())
        attention = ", ".join(f"{site}: {len(maps)} layers" for site, maps in self.attention.items())
        return f"Tape(attention {{{attention}}}, residual {{{residual}}})"


@contextmanager
def record(
    model: nn.Module, sites: Iterable[str] | None = None, *, keeps_graph: bool = False
) -> Iterator[Tape]:
    """Record attention weights and the residual stream of every forward pass inside a `with` block.

        with gf.record(model, sites=["encoder.*.residual_post", "logits"]) as tape:
            model(tokens)
        tape["encoder.0.residual_post"]

    With `sites`, record the tensors at these sites instead; `gf.sites(model)` lists the names. With
    `keeps_graph` they stay part of the graph, for gradients. The model may be any module that contains
    blocks of this package. It runs in eval mode, and its outputs equal those of the fused attention kernel
    up to rounding. Kernels and mode are restored at the end.
    """
    if sites is not None:
        states = StateRecorder(keeps_graph)
        changes = {site.name: states.at(site.name) for site in select_sites(model, sites)}
        with change_sites(model, changes):
            yield Tape(AttentionRecorder(EVERYTHING), states=states.states)
        return
    with capture(model) as recorder, ExitStack() as stack:
        tape = Tape(recorder)
        for block, site in _blocks(model).items():
            is_first = site not in tape.residual
            hook = _append_to(tape.residual.setdefault(site, []))
            if is_first:
                stack.callback(block.register_forward_pre_hook(hook).remove)
            stack.callback(block.register_forward_hook(hook).remove)
        yield tape


def _blocks(model: nn.Module) -> dict[nn.Module, Site]:
    """Return the blocks (the parent modules of self-attention) with their site, `encoder` or `decoder`."""
    sites = attentions(model)
    return {
        block: sites[child]
        for block in model.modules()
        for child in block.children()
        if isinstance(child, MultiHeadAttention) and sites[child] != "cross"
    }


def _append_to(states: list[Tensor]) -> Callable[..., None]:
    """Return a hook that appends a block's input as a forward pre-hook, and its output as a forward hook."""

    def hook(block: nn.Module, arguments: tuple[Tensor, ...], output: Tensor | None = None) -> None:
        states.append((arguments[0] if output is None else output).detach())

    return hook


@dataclass(frozen=True)
class ModelInput:
    """Tensors for one forward pass over one input, with the axis labels of its attention maps."""

    inputs: Mapping[str, Tensor | None]
    labels: Mapping[Site, AxisLabels]
    prediction: Prediction | None = None
    patterns: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)
    """Attention patterns that the task defines, by site and name: True on the cells (query, key)."""

    def lengths(self) -> dict[Site, tuple[int, int]]:
        """Return the number of queries and keys by site (encoder, decoder or cross)."""
        return {site: (len(labels.queries), len(labels.keys)) for site, labels in self.labels.items()}


def attention_maps(
    model: Model,
    model_input: ModelInput,
    selection: Selection = EVERYTHING,
    about: Mapping[str, str] | None = None,
) -> AttentionMaps:
    """Return the attention maps of one input. A second pass with the model's own kernel checks the logits."""
    sizes, lengths = _sizes(model), model_input.lengths()
    check_selection(selection, sizes, lengths)
    check_memory(selection, sizes, lengths, BLOCK_CELLS)
    with torch.inference_mode():
        with evaluating(model):
            logits = model(**model_input.inputs)
        with capture(model, selection) as recorder:
            recorded = model(**model_input.inputs)
    error, largest = float((recorded - logits).abs().max()), float(logits.abs().max())
    sites: dict[str, SiteMaps] = {}
    for site in SITES:
        if site in recorder.records:
            name = "self-attention" if len(sizes) == 1 else SITE_NAMES[site]
            sites[site] = _site_maps(name, site, recorder.records.pop(site), model_input)
    # A command line may hold bytes that are not valid text; image and JSON files accept only text.
    text = {key: value.encode("utf-8", "replace").decode() for key, value in (about or {}).items()}
    return AttentionMaps(sites, Checks(recorder.row_error, error, largest), text)


def _sizes(model: nn.Module) -> dict[Site, list[int]]:
    """Return the number of heads in each layer, by site (encoder, decoder or cross)."""
    return {site: [each.num_heads for each in modules] for site, modules in layers(model).items()}


def _site_maps(name: str, site: Site, records: list[Record], model_input: ModelInput) -> SiteMaps:
    """Stack the records of one attention site into maps; `records` is emptied to free memory early."""
    first, labels = records[0], model_input.labels.get(site)
    patterns = model_input.patterns.get(site, {})
    _, heads, rows, keys = first.weights_BHLM.shape
    if labels is None or (len(labels.queries), len(labels.keys)) != (first.queries, keys):
        # A model that adds or merges tokens on its way has positions of its own.
        queries, columns = ([str(index) for index in range(count)] for count in (first.queries, keys))
        labels = AxisLabels(queries, columns, "query position", "key position")
        patterns = {}
    masks = [record.allowed_BHLM for record in records]
    norms = [record.value_norms_BHM for record in records]
    layers = [record.number for record in records]
    weights = np.empty((len(records), heads, rows, keys), dtype=np.float32)
    for layer in range(len(weights)):
        weights[layer] = records.pop(0).weights_BHLM[0]
    shown = slice(first.rows.start, first.rows.stop)
    return SiteMaps(
        name=name,
        weights=weights,
        allowed=_stack_masks(masks, heads, rows, keys),
        layers=layers,
        heads=first.heads,
        queries=labels.queries[shown],
        keys=labels.keys,
        query_axis=labels.query_axis,
        key_axis=labels.key_axis,
        outputs=None if labels.outputs is None else labels.outputs[shown],
        is_cross=site == "cross",
        first_query=first.rows.start,
        is_part=len(first.rows) < first.queries,
        value_norms=_stack_norms(norms),
        patterns={name: template[shown] for name, template in patterns.items()},
    )


def _stack_norms(norms: list[Tensor | None]) -> np.ndarray | None:
    """Stack the value norms of all layers (layers, heads, keys); None if a layer has none."""
    known = [norms_BHM[0].float().cpu().numpy() for norms_BHM in norms if norms_BHM is not None]
    return np.stack(known) if len(known) == len(norms) else None


def _stack_masks(masks: list[Tensor | None], heads: int, rows: int, keys: int) -> np.ndarray | None:
    """Stack the attention masks of all layers; the layer axis has length 1 if all masks are equal."""
    if all(mask is None for mask in masks):
        return None
    everything = torch.ones(1, 1, rows, keys, dtype=torch.bool)
    dense = [everything if mask is None else mask[:1].cpu() for mask in masks]
    if all(torch.equal(mask, dense[0]) for mask in dense):
        return dense[0].numpy().copy()
    return torch.cat([mask.expand(1, heads, rows, keys) for mask in dense]).numpy()
