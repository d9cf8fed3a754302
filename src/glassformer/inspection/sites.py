"""Named sites of a model: internal tensors that can be recorded and replaced by a public name.

    gf.sites(model)                                         # every name, with its axes and its meaning
    with gf.record(model, sites=["encoder.*.residual_post"]) as tape:
        model(tokens)
    tape["encoder.0.residual_post"]                         # (batch, length, hidden)
    with gf.replace(model, {"encoder.0.heads": lambda heads: heads * 0}):
        model(tokens)

Names are the same for all task types. A model with one stack has only `encoder` sites.

Axes: B batch, H heads, L queries, M keys, K head width, D hidden, V outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

import torch
from torch import Tensor, nn

from glassformer.blocks import reference
from glassformer.blocks.attention import Kernel, MultiHeadAttention, explicit_scores
from glassformer.blocks.embedding import Embedding
from glassformer.blocks.layers import DecoderBlock, DecoderStack, EncoderBlock, EncoderStack
from glassformer.blocks.masks import Mask
from glassformer.core.errors import ErrorDetail
from glassformer.core.system import available_memory
from glassformer.models.base import evaluating

Kind = Literal["input", "output", "scores", "weights", "heads"]
"""Access to a site: the input or output of a module, or a tensor inside an attention kernel."""
Change = Callable[[Tensor], Tensor]
"""Function that receives the tensor at a site and returns the tensor that the model continues with."""

MEMORY_SHARE = 0.5
"""Share of the free memory that recorded tensors may take."""
MEMORY_STEP = 1 << 26
"""Number of recorded bytes after which the free memory is measured again: 64 MiB."""


@dataclass(frozen=True)
class Site:
    """Internal tensor of a model with a public name, such as `encoder.0.residual_post`."""

    name: str
    axes: str
    """One letter per axis, such as `BLD`."""
    meaning: str
    module: nn.Module = field(repr=False)
    kind: Kind = "output"


_BLOCK_SITES: tuple[tuple[str, str, str, str, Kind], ...] = (
    ("residual_pre", "BLD", "residual stream before the block", "", "input"),
    ("scores", "BHLM", "attention scores before mask and softmax", "attention", "scores"),
    ("weights", "BHLM", "attention weights", "attention", "weights"),
    ("heads", "BHLK", "output of each head before the output projection", "attention", "heads"),
    ("attention", "BLD", "output of the attention, as it is added to the stream", "attention", "output"),
    ("residual_mid", "BLD", "residual stream after the attention", "attention_residual", "output"),
    ("cross_scores", "BHLM", "cross-attention scores before mask and softmax", "cross_attention", "scores"),
    ("cross_weights", "BHLM", "cross-attention weights", "cross_attention", "weights"),
    ("cross_heads", "BHLK", "output of each cross-attention head", "cross_attention", "heads"),
    ("cross_attention", "BLD", "output of the cross-attention", "cross_attention", "output"),
    (
        "residual_cross",
        "BLD",
        "residual stream after the cross-attention",
        "cross_attention_residual",
        "output",
    ),
    ("feed_forward", "BLD", "output of the feed-forward network", "feed_forward", "output"),
    ("residual_post", "BLD", "residual stream after the block", "", "output"),
)
"""Name, axes, meaning, submodule and kind of each site of a block, in the order of the computation."""


def sites(model: nn.Module) -> dict[str, Site]:
    """Return every site of a model by its name, in the order of the computation.

    The model may be any module that contains stacks or blocks of this package.
    """
    found: list[Site] = []
    embeddings = [module for module in model.modules() if isinstance(module, Embedding)]
    for number, (stack, kinds) in enumerate(
        (("encoder", (EncoderStack, EncoderBlock)), ("decoder", (DecoderStack, DecoderBlock)))
    ):
        blocks = [module for module in model.modules() if isinstance(module, kinds[1])]
        if not blocks:
            continue
        if number < len(embeddings):
            meaning = "token embedding with positions: the input of the first block"
            found.append(Site(f"{stack}.embedding", "BLD", meaning, embeddings[number]))
        for layer, block in enumerate(blocks):
            found += _block_sites(f"{stack}.{layer}", block)
        whole = [module for module in model.modules() if isinstance(module, kinds[0])]
        if len(whole) == 1:
            meaning = f"output of the {stack}, after its final norm if it has one"
            found.append(Site(f"{stack}.output", "BLD", meaning, whole[0]))
    pooling = getattr(model, "pooling", None)
    if isinstance(pooling, nn.Module):
        found.append(Site("pooled", "BD", "pooled vector of the sequence", pooling))
    found.append(Site("logits", "B…V", "outputs of the model", model))
    if len(found) == 1:
        raise ErrorDetail(
            "the model has no blocks of this package",
            path="model",
            value=type(model).__name__,
            hint="build it from gf.nn.EncoderBlock or gf.nn.DecoderBlock",
        )
    return {site.name: site for site in found}


def _block_sites(prefix: str, block: nn.Module) -> Iterator[Site]:
    for name, axes, meaning, child, kind in _BLOCK_SITES:
        module = getattr(block, child, None) if child else block
        if isinstance(module, nn.Module):
            yield Site(f"{prefix}.{name}", axes, meaning, module, kind)


def select_sites(model: nn.Module, names: Iterable[str]) -> list[Site]:
    """Return the sites that the names or patterns select, such as `encoder.*.heads`, without repetition."""
    every = sites(model)
    selected: dict[str, Site] = {}
    for name in [names] if isinstance(names, str) else names:
        matching = [known for known in every if fnmatchcase(known, str(name))]
        if not matching:
            raise ErrorDetail(
                "the model has no such site",
                path="site",
                value=name,
                allowed=list(every),
                hint="gf.sites(model) lists the names",
            )
        selected |= {known: every[known] for known in matching}
    return [site for name, site in every.items() if name in selected]


class SiteKernel:
    """Attention kernel that passes scores, weights and head outputs through functions.

    Scores and weights are computed explicitly only if a function needs them.
    """

    def __init__(self, inner: Kernel, changes: Sequence[tuple[Kind, Change]]) -> None:
        self.inner = inner
        self.changes = list(changes)
        self.is_explicit = any(kind != "heads" for kind, _ in changes)

    def __call__(
        self, q_BHLK: Tensor, k_BHMK: Tensor, v_BHMK: Tensor, mask: Mask, bias: Tensor | None, dropout: float
    ) -> Tensor:
        if not self.is_explicit:
            return self._apply("heads", self.inner(q_BHLK, k_BHMK, v_BHMK, mask, bias, dropout))
        allowed = mask.dense(q_BHLK.shape[2], k_BHMK.shape[2], q_BHLK.device)
        scores_BHLM = self._apply("scores", explicit_scores(q_BHLK, k_BHMK, bias))
        weights_BHLM = self._apply("weights", reference.weights(scores_BHLM, allowed))
        return self._apply("heads", weights_BHLM @ v_BHMK)

    def _apply(self, kind: Kind, x: Tensor) -> Tensor:
        for wanted, change in self.changes:
            x = change(x) if wanted == kind else x
        return x


@contextmanager
def change_sites(model: nn.Module, changes: Mapping[str, Change]) -> Iterator[None]:
    """Pass the tensor at each named site through a function inside a `with` block, in eval mode.

    Blocks may be nested: a function of the inner block receives the result of the outer one.
    """
    points = [(site, changes[site.name]) for site in select_sites(model, changes)]
    kernels: dict[MultiHeadAttention, list[tuple[Kind, Change]]] = {}
    before: dict[MultiHeadAttention, Kernel] = {}
    with evaluating(model), ExitStack() as stack:
        for site, change in points:
            if site.kind in ("scores", "weights", "heads"):
                assert isinstance(site.module, MultiHeadAttention)
                kernels.setdefault(site.module, []).append((site.kind, change))
            elif site.kind == "input":
                stack.callback(site.module.register_forward_pre_hook(_input_hook(change)).remove)
            else:
                stack.callback(site.module.register_forward_hook(_output_hook(change)).remove)
        try:
            for attention, added in kernels.items():
                outer = before[attention] = attention.kernel
                if isinstance(outer, SiteKernel):
                    attention.kernel = SiteKernel(outer.inner, [*outer.changes, *added])
                else:
                    attention.kernel = SiteKernel(outer, added)
            yield
        finally:
            for attention, outer in before.items():
                attention.kernel = outer


def _input_hook(change: Change) -> Callable[..., tuple[Tensor, ...]]:
    def hook(module: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (change(arguments[0]), *arguments[1:])

    return hook


def _output_hook(change: Change) -> Callable[..., Tensor]:
    def hook(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return change(output)

    return hook


@contextmanager
def replace(model: nn.Module, values: Mapping[str, Tensor | Change]) -> Iterator[None]:
    """Replace tensors at named sites inside a `with` block, in eval mode.

        with gf.replace(model, {"encoder.1.feed_forward": mean}):
            logits = model(tokens)

    A value is a tensor that broadcasts to the tensor at the site, or a function from the old tensor to the
    new one. In cached decoding, a site is reached once per step.
    """
    for name in values:
        select_sites(model, [name])
    every = sites(model)
    changes = {
        name: _checked(name, value)
        for pattern, value in values.items()
        for name in every
        if fnmatchcase(name, pattern)
    }
    with change_sites(model, changes):
        yield


def _checked(name: str, value: Tensor | Change) -> Change:
    """Return a function that replaces a tensor and checks the shape of the result."""

    def change(old: Tensor) -> Tensor:
        new = value if isinstance(value, Tensor) else value(old)
        if not isinstance(new, Tensor):
            raise ErrorDetail(
                "the function did not return a tensor", path=name, value=new, hint="return the new tensor"
            )
        try:
            return new.to(old).expand_as(old)
        except RuntimeError:
            raise ErrorDetail(
                f"the tensor at this site has the shape {tuple(old.shape)}",
                path=name,
                value=tuple(new.shape),
                hint="pass a tensor that broadcasts to this shape",
            ) from None

    if not isinstance(value, Tensor) and not callable(value):
        raise ErrorDetail("expected a tensor or a function", path=name, value=value, hint="pass a tensor")
    return change


class StateRecorder:
    """Recorder of the tensors at named sites: a list per site, one tensor per pass through the site.

    It raises an ErrorDetail if the tensors take more than half of the free memory.
    """

    def __init__(self, keeps_graph: bool = False) -> None:
        self.states: dict[str, list[Tensor]] = {}
        self.keeps_graph = keeps_graph
        self._bytes = 0
        self._limit = MEMORY_STEP

    def at(self, name: str) -> Change:
        """Return a function that records the tensor at a site and returns it unchanged."""
        states = self.states.setdefault(name, [])

        def record(x: Tensor) -> Tensor:
            self._check(name, x)
            states.append(x if self.keeps_graph else x.detach().clone())
            return x

        return record

    def _check(self, name: str, x: Tensor) -> None:
        self._bytes += x.numel() * x.element_size()
        if self._bytes < self._limit:
            return
        free = available_memory()
        if free is not None and self._bytes > MEMORY_SHARE * free:
            raise ErrorDetail(
                f"the recorded tensors need more than {self._bytes / 2**30:.1f} GiB of memory",
                path=name,
                hint="record fewer sites, a shorter input or a smaller batch",
            )
        self._limit = self._bytes + MEMORY_STEP


def record_states(
    model: nn.Module, inputs: Mapping[str, Tensor | None], names: Iterable[str]
) -> dict[str, Tensor]:
    """Run the model once and return the tensors at the named sites, without gradients."""
    recorder = StateRecorder()
    changes = {site.name: recorder.at(site.name) for site in select_sites(model, names)}
    with torch.inference_mode(), change_sites(model, changes):
        model(**inputs)
    return {name: states[0] for name, states in recorder.states.items()}
