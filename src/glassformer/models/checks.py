"""Checks of the tensors that a caller passes to a model: token ids, padding masks and targets.

Types and shapes are always checked. Values are checked on a CPU only, because reading them would make the
program wait for a GPU. Training calls `Model.compute_loss`, which checks nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from glassformer.blocks.heads import IGNORED
from glassformer.blocks.masks import boolean_mask
from glassformer.core.errors import ErrorDetail

ID_TYPES = (torch.int64, torch.int32)
"""Types of token ids that an embedding accepts."""


def is_checked() -> bool:
    """Return False while PyTorch compiles, exports or traces a model: a check would become part of it."""
    return not (torch.compiler.is_compiling() or torch.jit.is_tracing())  # type: ignore[attr-defined]


def _has_values(tensor: Tensor) -> bool:
    """Return True if the values of a tensor can be read at once: a plain tensor on the CPU, not empty."""
    return tensor.device.type == "cpu" and type(tensor) is Tensor and tensor.numel() > 0


def check_shape(name: str, tensor: Tensor, shape: Sequence[int | None], hint: str) -> None:
    """Raise an ErrorDetail unless the tensor has this shape. None in `shape` allows any length."""
    is_same = tensor.ndim == len(shape) and all(
        size is None or size == given for size, given in zip(shape, tensor.shape, strict=True)
    )
    if not is_same:
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ErrorDetail(
            f"expected a tensor of shape ({wanted})", path=name, value=tuple(tensor.shape), hint=hint
        )


def check_tensor(name: str, tensor: object) -> None:
    """Raise an ErrorDetail unless the argument is a tensor."""
    if not isinstance(tensor, Tensor):
        raise ErrorDetail(
            f"expected a tensor, not a value of type {type(tensor).__name__}",
            path=name,
            hint="torch.tensor([[5, 9, 2], [7, 1, 4]])",
        )


def check_tokens(name: str, tokens: Tensor, vocabulary: int, max_length: int) -> None:
    """Raise an ErrorDetail unless `tokens` are ids below `vocabulary` in rows of `max_length` at most."""
    check_tensor(name, tokens)
    if tokens.ndim != 2:
        hint = "add an axis for the batch: tokens[None]" if tokens.ndim == 1 else "pass (batch, length)"
        check_shape(name, tokens, (None, None), hint)
    if tokens.dtype not in ID_TYPES:
        raise ErrorDetail("token ids are integers", path=name, value=tokens.dtype, hint=f"{name}.long()")
    if tokens.shape[1] == 0:
        raise ErrorDetail(
            "the sequences have no tokens", path=name, value=tuple(tokens.shape), hint="add one"
        )
    if tokens.shape[1] > max_length:
        raise ErrorDetail(
            f"the sequences have {tokens.shape[1]:,} tokens, and the model reads at most {max_length:,}",
            path=name,
            value=tuple(tokens.shape),
            hint="shorten them, or build the model with a larger max_length",
        )
    _check_range(name, tokens, vocabulary)


def _check_range(name: str, ids: Tensor, count: int, ignored: int | None = None) -> None:
    """Raise an ErrorDetail if an id is negative (unless it equals `ignored`), or not below `count`."""
    if not _has_values(ids):
        return
    is_wrong = (ids < 0) | (ids >= count)
    if ignored is not None:
        is_wrong &= ids != ignored
    if bool(is_wrong.any()):
        also = "" if ignored is None else f", or {ignored} to be ignored"
        raise ErrorDetail(
            f"ids must be from 0 to {count - 1:,}{also}",
            path=name,
            value=int(ids[is_wrong][0]),
            hint="build the model for more ids, or correct the ids",
        )


def check_mask(mask: Tensor | None, tokens: Tensor, *, needs_right_padding: bool) -> Tensor | None:
    """Return a padding mask (B, L) as booleans. Raise an ErrorDetail if it does not fit the tokens.

    With `needs_right_padding`, all padding of a row must be at its end.
    """
    if mask is None:
        return None
    check_tensor("mask", mask)
    check_shape("mask", mask, tokens.shape, "mask = tokens != pad")
    mask = boolean_mask(mask)
    assert mask is not None
    if not _has_values(mask):
        return mask
    is_late_B = (mask[:, 1:] & ~mask[:, :-1]).any(1)
    if needs_right_padding and bool(is_late_B.any()):
        row = int(is_late_B.nonzero()[0])
        raise ErrorDetail(
            f"row {row} has padding before a real token, but this model needs all padding on the right",
            path="mask",
            hint="True marks a real token: pass ~mask if yours marks padding, as key_padding_mask does;"
            " torch.nn.utils.rnn.pad_sequence(rows, batch_first=True) pads on the right",
        )
    return mask


def check_no_empty_rows(mask: Tensor, targets: Tensor) -> None:
    """Raise an ErrorDetail if a sequence of padding alone has a target. Its output does not mean anything."""
    if not (_has_values(mask) and _has_values(targets)):
        return
    is_empty_B = (mask == 0).all(1) & (targets != IGNORED)
    if bool(is_empty_B.any()):
        row = int(is_empty_B.nonzero()[0])
        raise ErrorDetail(
            f"row {row} has no real token", path="mask", hint="leave it out, or give it the target -100"
        )


def check_classes(targets: Tensor, count: int) -> None:
    """Raise an ErrorDetail unless the targets are integers from 0 to `count` - 1, or −100."""
    if targets.is_floating_point() or targets.dtype == torch.bool:
        raise ErrorDetail(
            "classes and token ids are integers", path="targets", value=targets.dtype, hint="targets.long()"
        )
    _check_range("targets", targets, count, IGNORED)


def warn_about_unshifted(tokens: Tensor, targets: Tensor) -> None:
    """Warn if the targets of a language model are the tokens themselves."""
    if _has_values(tokens) and _has_values(targets) and tokens.shape[1] > 1 and torch.equal(tokens, targets):
        warnings.warn(
            "the targets equal the tokens, so that the model learns to copy: targets[:, i] is the token after"
            " tokens[:, i]; call loss(tokens), which shifts them",
            stacklevel=3,
        )
