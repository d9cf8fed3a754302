"""ONNX graphs of a model: a forward pass, the encoder of an encoder-decoder, and a cached decoding step.

Axes: B batch, L queries, M keys, S source, N layers, H heads, K head width, D hidden, V outputs.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.blocks.attention import (
    Kernel,
    LayerCache,
    MultiHeadAttention,
    PositionContext,
    explicit_weights,
)
from glassformer.blocks.layers import BlockCache, DecoderBlock
from glassformer.blocks.masks import Mask, causal, padding
from glassformer.blocks.positions import Learned, Position, Sinusoidal, T5Relative
from glassformer.inspection.record import attentions, swap_kernels
from glassformer.models.base import Model
from glassformer.models.seq2seq import EncoderDecoder
from glassformer.models.transformer import CausalLanguageModel

OPSET = 20
"""Version of the ONNX operators that the graphs use."""
LARGEST_FILE = 1 << 30
"""Bytes of weights above which a graph stores them in a file of its own: a protocol buffer ends at 2 GiB."""

_BATCH, _LENGTH, _SOURCE, _PAST, _TOTAL = "batch", "length", "source", "past", "total"


class AttentionOutputs:
    """Explicit attention kernel that keeps the weights of each call, so that a graph can return them."""

    def __init__(self) -> None:
        self.weights: dict[str, list[Tensor]] = {}

    def kernel(self, site: str) -> Kernel:
        """Return a kernel that stores its weights (B, H, L, M) under the name of the site."""

        def attend(
            q_BHLK: Tensor, k_BHMK: Tensor, v_BHMK: Tensor, mask: Mask, bias: Tensor | None, dropout: float
        ) -> Tensor:
            weights_BHLM = explicit_weights(q_BHLK, k_BHMK, mask, bias)
            self.weights.setdefault(site, []).append(weights_BHLM)
            return weights_BHLM @ v_BHMK

        return attend

    def stacked(self, site: str) -> Tensor:
        """Return the weights of a site as (B, N, H, L, M)."""
        return torch.stack(self.weights[site], 1)


class ConcatenatedCache(LayerCache):
    """Cache that appends by concatenation, which a graph can represent: it writes nothing in place."""

    def __init__(self, k_BHMK: Tensor, v_BHMK: Tensor) -> None:
        super().__init__()
        self._keys, self._values = k_BHMK, v_BHMK

    def extend(self, k_BHLK: Tensor, v_BHLK: Tensor) -> tuple[Tensor, Tensor]:
        assert self._keys is not None and self._values is not None
        self._keys = torch.cat([self._keys, k_BHLK], 2)
        self._values = torch.cat([self._values, v_BHLK], 2)
        return self.get()

    def get(self) -> tuple[Tensor, Tensor]:
        assert self._keys is not None and self._values is not None
        return self._keys, self._values


def _caches(keys_BNHMK: Tensor, values_BNHMK: Tensor) -> list[ConcatenatedCache]:
    """Return one cache per layer from stacked keys and values."""
    return [
        ConcatenatedCache(keys, values)
        for keys, values in zip(keys_BNHMK.unbind(1), values_BNHMK.unbind(1), strict=True)
    ]


def _stack(caches: Sequence[LayerCache]) -> tuple[Tensor, Tensor]:
    """Return the keys and values of all layers as (B, N, H, M, K)."""
    keys, values = zip(*(cache.get() for cache in caches), strict=True)
    return torch.stack(keys, 1), torch.stack(values, 1)


class Graph(nn.Module):
    """Base class of the modules that become graphs: tensors in, tensors out, with names for both."""

    inputs: tuple[str, ...] = ()

    def __init__(self, model: nn.Module, attention: AttentionOutputs, sites: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self.attention = attention
        self.sites = list(sites)

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs, in order."""
        return [*self.own_outputs, *(f"{site}_attention" for site in self.sites)]

    own_outputs: tuple[str, ...] = ()

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of the graph, then the attention weights of each site that it returns."""
        self.attention.weights.clear()
        outputs = self.compute(*tensors)
        return (*outputs, *(self.attention.stacked(site) for site in self.sites))

    def compute(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs, without attention weights."""
        raise NotImplementedError

    def example(self) -> tuple[Tensor, ...]:
        """Return inputs to trace the module with. Their sizes do not limit the graph."""
        raise NotImplementedError

    def axes(self) -> list[dict[int, str]]:
        """Return the names of the axes of each input that may have any length."""
        raise NotImplementedError


class ForwardGraph(Graph):
    """Forward pass of a model with one stack: tokens and mask (B, L) to logits or values."""

    inputs = ("tokens", "mask")
    own_outputs = ("outputs",)
    model: Model

    def compute(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        tokens_BL, mask_BL = tensors
        return (self.model(tokens=tokens_BL, mask=mask_BL),)

    def example(self) -> tuple[Tensor, ...]:
        return _example_tokens(3, 5)

    def axes(self) -> list[dict[int, str]]:
        return [{0: _BATCH, 1: _LENGTH}] * 2


class EncoderGraph(Graph):
    """Encoder of an encoder-decoder: source tokens and mask (B, S) to cross-attention keys and values."""

    inputs = ("tokens", "mask")
    own_outputs = ("cross_keys", "cross_values")
    model: EncoderDecoder

    def compute(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        memory_BSD = self.model.encode(*tensors)
        projected = [block.project_memory(memory_BSD) for block in self.model.decoder.layers]  # type: ignore[operator]
        keys, values = zip(*projected, strict=True)
        return torch.stack(keys, 1), torch.stack(values, 1)

    def example(self) -> tuple[Tensor, ...]:
        return _example_tokens(3, 5)

    def axes(self) -> list[dict[int, str]]:
        return [{0: _BATCH, 1: _SOURCE}] * 2


class StepGraph(Graph):
    """Decoding step of a language model: new tokens (B, L) and the cache of earlier ones to logits (B, L, V).

    `mask` (B, M) covers the cached and the new tokens. `keys` and `values` (B, N, H, M, K) may be empty: the
    first step reads a whole prompt.
    """

    inputs = ("tokens", "mask", "keys", "values")
    own_outputs = ("outputs", "new_keys", "new_values")
    model: CausalLanguageModel

    def compute(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        tokens_BL, mask_BM, keys, values = tensors
        model = self.model
        caches = _block_caches(_caches(keys, values))
        positions, mask = _positions(model.embedding.position, tokens_BL, mask_BM)
        x_BLD = model.embedding(tokens_BL, positions.query_positions_BL)
        x_BLD = model.encoder(x_BLD, positions, mask, caches)
        return (model.head(x_BLD, model.tied_weight()), *_stack([cache.own for cache in caches]))

    def example(self) -> tuple[Tensor, ...]:
        return _example_step(self._attention())

    def _attention(self) -> Sequence[MultiHeadAttention]:
        return [block.attention for block in self.model.encoder.layers]  # type: ignore[misc]

    def axes(self) -> list[dict[int, str]]:
        return [{0: _BATCH, 1: _LENGTH}, {0: _BATCH, 1: _TOTAL}, *[{0: _BATCH, 3: _PAST}] * 2]


class DecoderGraph(Graph):
    """Decoding step of an encoder-decoder: a `StepGraph` that also reads keys and values of the encoder."""

    inputs = ("tokens", "mask", "keys", "values", "source_mask", "cross_keys", "cross_values")
    own_outputs = StepGraph.own_outputs
    model: EncoderDecoder

    def compute(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        tokens_BL, mask_BM, keys, values, source_mask_BS, cross_keys, cross_values = tensors
        model = self.model
        caches = _block_caches(_caches(keys, values), _caches(cross_keys, cross_values))
        positions, mask = _positions(model.target_embedding.position, tokens_BL, mask_BM)
        x_BLD = model.target_embedding(tokens_BL, positions.query_positions_BL, model.embedding.vectors)
        memory_mask = Mask(allowed=padding(source_mask_BS))
        x_BLD = model.decoder(x_BLD, None, positions, mask, memory_mask, caches)
        return (model.head(x_BLD, model.tied_weight()), *_stack([cache.own for cache in caches]))

    def example(self) -> tuple[Tensor, ...]:
        blocks: list[DecoderBlock] = list(self.model.decoder.layers)  # type: ignore[arg-type]
        own = _example_step([block.attention for block in blocks])
        cross = _example_cache([block.cross_attention for block in blocks], 3, 7)
        return (*own, torch.ones(3, 7, dtype=torch.bool), *cross)

    def axes(self) -> list[dict[int, str]]:
        own = [{0: _BATCH, 1: _LENGTH}, {0: _BATCH, 1: _TOTAL}, *[{0: _BATCH, 3: _PAST}] * 2]
        return [*own, {0: _BATCH, 1: _SOURCE}, *[{0: _BATCH, 3: _SOURCE}] * 2]


def _positions(position: Position, tokens_BL: Tensor, mask_BM: Tensor) -> tuple[PositionContext, Mask]:
    """Return the positions of new and of all tokens, and the mask of the tokens that each may attend to.

    They equal those of `DecodingState.append`: padding has the position of the last real token.
    """
    length, total = tokens_BL.shape[1], mask_BM.shape[1]
    positions_BM = (mask_BM.long().cumsum(1) - 1).clamp(min=0)
    context = PositionContext(position, positions_BM[:, total - length :], positions_BM)
    return context, Mask(allowed=causal(length, total) & padding(mask_BM))


def _block_caches(own: Sequence[LayerCache], cross: Sequence[LayerCache] | None = None) -> list[BlockCache]:
    caches = [BlockCache() for _ in own]
    for number, cache in enumerate(caches):
        cache.own = own[number]
        if cross is not None:
            cache.cross = cross[number]
    return caches


def _example_tokens(batch: int, length: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(batch, length, dtype=torch.long), torch.ones(batch, length, dtype=torch.bool)


def _example_cache(
    attentions: Sequence[MultiHeadAttention], batch: int, length: int
) -> tuple[Tensor, Tensor]:
    first = attentions[0]
    shape = (batch, len(attentions), first.num_key_value_heads, length, first.head_dim)
    return torch.zeros(shape), torch.zeros(shape)


def _example_step(attentions: Sequence[MultiHeadAttention]) -> tuple[Tensor, ...]:
    batch, past, length = 3, 4, 2
    tokens_BL, _ = _example_tokens(batch, length)
    mask_BM = torch.ones(batch, past + length, dtype=torch.bool)
    return (tokens_BL, mask_BM, *_example_cache(attentions, batch, past))


Method = Callable[..., Tensor]


def _embed_learned(position: Learned) -> Method:
    return lambda x_BLD, positions_BL: x_BLD + position.table(positions_BL)


def _embed_sinusoidal(position: Sinusoidal) -> Method:
    return lambda x_BLD, positions_BL: x_BLD + position.encode(positions_BL).to(x_BLD.dtype)


def _bucket_by_table(position: T5Relative) -> Method:
    """Look buckets up: logarithms of other libraries round differently at the edge of a bucket."""
    most = position.max_distance  # larger distances share the last bucket
    table = position.bucket(torch.arange(-most, most + 1))
    return lambda distances_BLM: table[distances_BLM.clamp(-most, most) + most]


_TRACEABLE: dict[type[nn.Module], tuple[str, Callable[[Any], Method]]] = {
    Learned: ("embed", _embed_learned),
    Sinusoidal: ("embed", _embed_sinusoidal),
    T5Relative: ("bucket", _bucket_by_table),
}
"""Method of a positional encoding that a graph cannot represent as it is, and what makes one in its place."""


@contextlib.contextmanager
def traceable(model: Model) -> Iterator[AttentionOutputs]:
    """Give a model an explicit attention kernel and unchecked positions inside a `with` block."""
    outputs = AttentionOutputs()
    kernels = {attention: outputs.kernel(site) for attention, site in attentions(model).items()}
    positions = [module for module in model.modules() if type(module) in _TRACEABLE]
    with swap_kernels(model, kernels):
        try:
            for module in positions:
                name, make = _TRACEABLE[type(module)]
                object.__setattr__(module, name, make(module))
            yield outputs
        finally:
            for module in positions:
                object.__delattr__(module, _TRACEABLE[type(module)][0])


@dataclass(frozen=True)
class GraphFile:
    """Graph of a model with the name of its file."""

    name: str
    graph: Graph


def graphs(
    model: Model, outputs: AttentionOutputs, *, with_attention: bool, with_forward: bool
) -> list[GraphFile]:
    """Return the graphs of a model.

    A model that generates tokens has a cached step. `with_forward` adds the forward pass of a language model.
    """
    sites = {name: [name] if with_attention else [] for name in ("encoder", "decoder", "cross")}
    if isinstance(model, EncoderDecoder):
        decoder = DecoderGraph(model, outputs, [*sites["decoder"], *sites["cross"]])
        return [
            GraphFile("encoder.onnx", EncoderGraph(model, outputs, sites["encoder"])),
            GraphFile("decoder.onnx", decoder),
        ]
    forward = GraphFile("model.onnx", ForwardGraph(model, outputs, sites["encoder"]))
    if not isinstance(model, CausalLanguageModel):
        return [forward]
    step = GraphFile("step.onnx", StepGraph(model, outputs, sites["encoder"]))
    return [forward, step] if with_forward else [step]


def write_graphs(
    model: Model, folder: Path, *, with_attention: bool = False, with_forward: bool = True
) -> list[str]:
    """Write the graphs of a model to a folder, and return the names of the files."""
    with traceable(model) as outputs:
        files = graphs(model, outputs, with_attention=with_attention, with_forward=with_forward)
        for file in files:
            write_graph(file.graph.eval(), folder / file.name)
    return [file.name for file in files]


def write_graph(graph: Graph, path: Path) -> None:
    """Write one graph as an ONNX file."""
    size = sum(parameter.numel() * parameter.element_size() for parameter in graph.parameters())
    with torch.no_grad(), _quiet():
        program = torch.onnx.export(
            graph,
            graph.example(),
            input_names=list(graph.inputs),
            output_names=graph.outputs,
            dynamic_shapes=(tuple(graph.axes()),),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
        assert program is not None
        _remove_traces(program.model)
        program.save(str(path), external_data=size > LARGEST_FILE)


def _remove_traces(model: Any) -> None:
    """Remove the exporter's notes on each node, which contain paths of this machine."""
    for nodes in (model.graph.all_nodes(), *(function.all_nodes() for function in model.functions.values())):
        for node in nodes:
            node.metadata_props.clear()
            node.doc_string = None
            for value in node.outputs:
                value.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()
    model.graph.metadata_props.clear()
    model.metadata_props.clear()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's progress, warnings and log messages off the terminal."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
