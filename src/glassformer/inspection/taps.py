"""Where a model attends, and other kernels in these places for as long as one looks.

Attention has no flags: whoever wants to record or to change it puts a kernel of his own in the place of the
model's, which is put back afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor, nn

from glassformer.blocks.attention import CrossAttention, Kernel, MultiHeadAttention
from glassformer.errors import Problem
from glassformer.inspection.maps import Place
from glassformer.inspection.reading import evaluating


@dataclass(frozen=True)
class HeadPlace:
    """One head of a model, by numbers from 0."""

    place: Place
    layer: int
    head: int

    def __str__(self) -> str:
        return f"{self.place} layer {self.layer} head {self.head}"


def attentions(model: nn.Module) -> dict[MultiHeadAttention, Place]:
    """Every attention and where it stands: one that shares its block with a cross-attention decodes."""
    found: dict[MultiHeadAttention, Place] = {}
    for block in nn.ModuleList([model]).modules():
        here = [child for child in block.children() if isinstance(child, MultiHeadAttention)]
        decodes = any(isinstance(child, CrossAttention) for child in here)
        for attention in here:
            if isinstance(attention, CrossAttention):
                found.setdefault(attention, "cross")
            else:
                found.setdefault(attention, "decoder" if decodes else "encoder")
    return found


def layers(model: nn.Module) -> dict[Place, list[MultiHeadAttention]]:
    """The attentions of each place, a layer each."""
    found: dict[Place, list[MultiHeadAttention]] = {}
    for attention, place in attentions(model).items():
        found.setdefault(place, []).append(attention)
    return found


def attention_at(model: nn.Module, where: HeadPlace) -> MultiHeadAttention:
    """The attention that this head belongs to; a Problem if there is no such head."""
    there = layers(model)
    if where.place not in there:
        raise Problem("the model has no such part", place="place", value=where.place, allowed=list(there))
    of_place = there[where.place]
    for name, number, count in (
        ("layer", where.layer, len(of_place)),
        ("head", where.head, of_place[min(max(where.layer, 0), len(of_place) - 1)].num_heads),
    ):
        if not 0 <= number < count:
            raise Problem(
                f"no such {name}: they are numbered from 0 to {count - 1}",
                place=name,
                value=number,
                remedy="glassformer heads RUN lists them",
            )
    return of_place[where.layer]


@contextmanager
def other_kernels(model: nn.Module, kernels: Mapping[MultiHeadAttention, Kernel]) -> Iterator[None]:
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
