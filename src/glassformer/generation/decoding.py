"""`generate`: read the inputs, then decode token by token until every row is done."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from glassformer.core.errors import ErrorDetail
from glassformer.generation.cpu import prepack_head
from glassformer.generation.search import BeamUpdate, Hypothesis, Search, Trace
from glassformer.generation.strategies import DecodingConfig, GreedyConfig
from glassformer.models.base import (
    DecodingState,
    GenerativeModel,
    Model,
    SupportsBeams,
    SupportsGeneration,
    evaluating,
)
from glassformer.models.task_types import CausalLM, Seq2Seq, TaskType

Inputs = dict[str, Tensor | None]

_trace: ContextVar[Trace | None] = ContextVar("trace", default=None)


@contextmanager
def tracing(alternatives: int = 5) -> Iterator[Trace]:
    """Record a trace of the last `generate` call inside a `with` block, even if another function makes it.

    A `trace` passed to `generate` itself takes precedence.
    """
    trace = Trace(alternatives)
    token = _trace.set(trace)
    try:
        yield trace
    finally:
        _trace.reset(token)


def is_tracing() -> bool:
    """Return True inside a `tracing` block."""
    return _trace.get() is not None


@torch.inference_mode()
def generate(
    model: Model | SupportsGeneration,
    inputs: Inputs | None = None,
    *,
    begin: int | None = None,
    prompt: Tensor | None = None,
    mask: Tensor | None = None,
    end: int | None,
    max_length: int | Sequence[int] | None = None,
    min_length: int = 0,
    strategy: DecodingConfig | None = None,
    forbidden: Sequence[int] = (),
    row_numbers: Sequence[int] | None = None,
    trace: Trace | None = None,
    is_scored: bool = True,
) -> list[list[Hypothesis]]:
    """Generate token sequences, and return a list of hypotheses per row, best first.

    - `inputs`: named tensors that the model reads first, such as the source of an encoder-decoder. A language
      model has none: it reads its `prompt`.
    - `begin` (a token id), then `prompt` (B, L), start each row. At least one of them is required. Prompts of
      unequal length are padded on the right, and `mask` (B, L) is True at real tokens.
    - `end`: token id that ends a row. None: rows end at the limit only.
    - `max_length`: maximum number of generated tokens, `end` included, for all rows or per row. None: up to
      the model's maximum length. `min_length`: `end` is not chosen before this many tokens.
    - `strategy`: decoding strategy, which chooses the next token. None: greedy.
    - `forbidden`: token ids that are never generated, such as padding. Log-probabilities do not change.
    - `row_numbers`: one number per row, which seeds the row's random numbers. None: 0, 1, … Pass the indices
      of the examples, so that samples do not depend on how the examples are batched.
    - `trace`: object that records the candidates of each step. See also `tracing`.
    - `is_scored`: False if no probabilities are needed, which makes greedy decoding faster.

    Finished rows leave the batch. Dropout is off, even if the model is in training mode.
    """
    if not isinstance(model, SupportsGeneration):
        raise ErrorDetail(
            f"{type(model).__name__} cannot generate",
            path="model",
            hint="pass a language model or an encoder-decoder",
        )
    _check_inputs(model, inputs)
    inputs, prefix_BL, mask_BL = _prefix(inputs, begin, prompt, mask)
    if not (rows := len(prefix_BL)):
        return []
    lengths_B = torch.full((rows,), prefix_BL.shape[1]) if mask_BL is None else mask_BL.sum(1).cpu()
    limits_B = _limits(getattr(model, "task_type", None), lengths_B, max_length, min_length)
    numbers = range(rows) if row_numbers is None else row_numbers
    chooser = (strategy or GreedyConfig()).build(numbers, int(limits_B.max()))
    # The search needs double precision, which Apple's GPUs do not have.
    device = torch.device("cpu") if prefix_BL.device.type == "mps" else prefix_BL.device
    trace = _trace.get() if trace is None else trace
    search = Search(chooser, limits_B.to(device), end, min_length, forbidden, trace, is_scored)
    with evaluating(model):
        state = model.start(**inputs)
        if isinstance(model, GenerativeModel):
            _choose_projection(model, state, search, forbidden)
        _decode(model, state, search, model.advance(state, prefix_BL, mask_BL))
    return search.results()


def _check_inputs(model: SupportsGeneration, inputs: Inputs | None) -> None:
    """Raise an ErrorDetail if `inputs` are not named tensors that the model reads before it generates."""
    if inputs is None:
        return
    if not isinstance(inputs, Mapping):
        raise ErrorDetail(
            f"expected named tensors, not a value of type {type(inputs).__name__}",
            path="inputs",
            hint='{"tokens": source} for an encoder-decoder; prompt=tokens for a language model',
        )
    if inputs and isinstance(getattr(model, "task_type", None), CausalLM):
        raise ErrorDetail(
            "a language model reads a prompt and no inputs",
            path="inputs",
            value=[*inputs],
            hint="prompt=tokens",
        )
    # The method of the class: a sharded model wraps its own, which has another signature.
    _, *parameters = inspect.signature(type(model).start).parameters.values()
    names = [each.name for each in parameters if each.kind is not each.VAR_KEYWORD]
    unknown = [name for name in inputs if name not in names]
    if unknown and len(names) == len(parameters):
        raise ErrorDetail("the model has no such input", path="inputs", value=unknown[0], allowed=names)


def _choose_projection(
    model: GenerativeModel, state: DecodingState, search: Search, forbidden: Sequence[int]
) -> None:
    """Set the fastest function of the last layer: all logits, or the most probable tokens alone."""
    if model.prepacked_head is None:
        state.project = prepack_head(model)
    if model.greedy_head is not None and search.needs_tokens_only:
        _check_tokens(model.greedy_head.outputs, search.end, forbidden)
        state.project = model.greedy_head.without(forbidden)


def _decode(model: SupportsGeneration, state: DecodingState, search: Search, found: Tensor) -> None:
    """Choose tokens and advance the model until all rows are done. `found` are logits, or tokens."""
    if found.ndim == 2:
        _check_tokens(found.shape[-1], search.end, search.forbidden)
    has_beams = search.strategy.size > 1 and isinstance(model, SupportsBeams) and model.supports_beams
    advance = _advance_beams if has_beams else _advance_rows
    while True:
        step = search.step if found.ndim == 2 else search.step_tokens
        update = step(found.to(search.limits_B.device))
        if not len(update.rows_B):
            return
        found = advance(model, state, update, len(found))


def _advance_rows(model: SupportsGeneration, state: DecodingState, update: BeamUpdate, count: int) -> Tensor:
    """Advance the model with one state row per beam, and return the next logits."""
    device = state.attention_mask_BM.device
    _select(state, update.flat_indices_BW.flatten().to(device), count)
    return model.advance(state, update.tokens_BW.flatten()[:, None].to(device))


def _advance_beams(model: Any, state: DecodingState, update: BeamUpdate, count: int) -> Tensor:
    """Advance the model with all beams of a sequence in one state row, and return the next logits."""
    device = state.attention_mask_BM.device
    _select(state, update.rows_B.to(device), len(state.attention_mask_BM))
    logits_BWV = model.advance_beams(state, update.beam_indices_BW.to(device), update.tokens_BW.to(device))
    return logits_BWV.flatten(0, 1)


def _select(state: DecodingState, rows: Tensor, count: int) -> None:
    """Select rows of the state. Do nothing if `rows` are all rows in their order."""
    if not torch.equal(rows, torch.arange(count, device=rows.device)):
        state.select(rows)


def _prefix(
    inputs: Inputs | None, begin: int | None, prompt_BL: Tensor | None, mask_BL: Tensor | None
) -> tuple[Inputs, Tensor, Tensor | None]:
    """Return the model's inputs, the first tokens of every row (`begin` and prompt), and the tokens' mask.

    The mask is None if no row has padding.
    """
    if inputs is None:
        inputs = {"tokens": prompt_BL}
    like = prompt_BL if prompt_BL is not None else next((x for x in inputs.values() if x is not None), None)
    if like is None or (begin is None and prompt_BL is None):
        raise ErrorDetail("no token to start with", path="begin", hint="pass begin=NUMBER, or a prompt")
    if prompt_BL is None:
        prompt_BL, mask_BL = like.new_empty(len(like), 0, dtype=torch.long), None
    if mask_BL is not None and bool((~mask_BL[:, :-1] & mask_BL[:, 1:]).any()):
        raise ErrorDetail(
            "the mask has padding before real tokens",
            path="mask",
            hint="pad prompts on the right: True at the first tokens, then False at padding",
        )
    if begin is not None:
        prompt_BL = torch.cat([prompt_BL.new_full((len(prompt_BL), 1), begin), prompt_BL], 1)
        if mask_BL is not None:
            mask_BL = torch.cat([mask_BL.new_ones(len(mask_BL), 1), mask_BL], 1)
    if mask_BL is not None and bool(mask_BL.all()):
        mask_BL = None
    if mask_BL is None:
        is_empty_B = torch.full((len(prompt_BL),), prompt_BL.shape[1] == 0)
    else:
        is_empty_B = ~mask_BL.any(1)
    if bool(is_empty_B.any()):
        raise ErrorDetail(
            f"the prompt of row {int(is_empty_B.nonzero()[0])} is empty", path="prompt", hint="begin=NUMBER"
        )
    return inputs, prompt_BL, mask_BL


def _limits(
    task_type: TaskType | None, lengths_B: Tensor, max_length: int | Sequence[int] | None, min_length: int
) -> Tensor:
    """Return the maximum number of generated tokens of each row.

    The last token is not fed back to the model, so it needs no position.
    """
    if task_type is None:
        longest = None
    else:
        longest = task_type.max_target_length if isinstance(task_type, Seq2Seq) else task_type.max_length
    room_B = None if longest is None else longest - lengths_B + 1
    if room_B is not None and bool((room_B < 1).any()):
        raise ErrorDetail(
            f"the prompt is too long, because the model reads at most {longest} tokens",
            path="prompt",
            value=int(lengths_B.max()),
            hint="shorten the prompt, or use a model with a longer maximum length",
        )
    if max_length is None:
        if room_B is None:
            raise ErrorDetail(
                "this model has no maximum length, so a limit is required",
                path="max_length",
                hint="max_length=100",
            )
        return room_B
    limits_B = torch.as_tensor(max_length).expand(len(lengths_B))
    if bool((limits_B < max(1, min_length)).any()):
        raise ErrorDetail(
            f"the limit must be at least {max(1, min_length)}",
            path="max_length",
            value=int(limits_B.min()),
            hint=f"max_length={max(1, min_length)} or more",
        )
    if room_B is not None and bool((limits_B > room_B).any()):
        row = int((limits_B - room_B).argmax())
        raise ErrorDetail(
            f"row {row} starts with {int(lengths_B[row])} tokens, and the model has {longest} positions",
            path="max_length",
            value=int(limits_B[row]),
            hint=f"max_length={int(room_B[row])}, or use a model with a longer maximum length",
        )
    return limits_B


def _check_tokens(vocabulary: int, end: int | None, forbidden: Sequence[int]) -> None:
    """Raise an ErrorDetail if a special token is not in the vocabulary."""
    for path, tokens in (("end", [] if end is None else [end]), ("forbidden", forbidden)):
        for token in tokens:
            if not 0 <= token < vocabulary:
                raise ErrorDetail(
                    f"this number is not a token id, because the vocabulary has {vocabulary} tokens",
                    path=path,
                    value=token,
                    hint=f"pass a number from 0 to {vocabulary - 1}",
                )
