"""`generate`: read the inputs, then decode token by token until every row is done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from glassformer.models.task_types import Seq2Seq, TaskType

Inputs = dict[str, Tensor | None]

_observer: ContextVar[Trace | None] = ContextVar("observer", default=None)


@contextmanager
def observing(alternatives: int = 5) -> Iterator[Trace]:
    """Within it, what is written is also noted, through however many hands `generate` is called.

    Of several calls the last one is kept. A trace that a caller hands over itself goes before.
    """
    trace = Trace(alternatives)
    token = _observer.set(trace)
    try:
        yield trace
    finally:
        _observer.reset(token)


def is_observed() -> bool:
    return _observer.get() is not None


@torch.inference_mode()
def generate(
    model: Model | SupportsGeneration,
    inputs: Inputs | None = None,
    *,
    begin: int | None = None,
    prompt_BL: Tensor | None = None,
    attention_mask_BL: Tensor | None = None,
    end: int | None,
    max_length: int | Sequence[int] | None = None,
    min_length: int = 0,
    strategy: DecodingConfig | None = None,
    forbidden: Sequence[int] = (),
    row_numbers: Sequence[int] | None = None,
    trace: Trace | None = None,
    is_scored: bool = True,
) -> list[list[Hypothesis]]:
    """The hypotheses of each row, best first.

    - `inputs`: what the model reads before it writes: the source of an encoder-decoder. A language model
      reads nothing but its prompt, and needs none.
    - `begin`, then `prompt_BL`, are what a row starts with; one of them is needed. Prompts may differ in
      length: they are padded on the right, and `attention_mask_BL` is True where a token is real.
    - `end` ends a row. None: only the limit does.
    - `max_length`: how many tokens are written at most, the end included, for all rows or for each;
      None: as many as the model has room for. `min_length`: the end is not chosen before that many tokens.
    - `strategy`: how the next token is chosen; None: greedy.
    - `forbidden`: tokens that are never written, such as padding. Log-probabilities stay the model's own.
    - `row_numbers`: which random numbers each row gets; None: 0, 1, … Give the numbers of the examples, and
      what is drawn does not depend on how they are cut into batches.
    - `is_scored`: False if nobody asks for probabilities; greedy decoding is faster without them.
    - `trace`: is filled with what was weighed at each step; `observing` does it from further away.

    Rows that are done leave the batch. Dropout is off, whatever mode the model is in.
    """
    if not isinstance(model, SupportsGeneration):
        raise ErrorDetail(
            f"a {type(model).__name__} cannot write", path="model", hint="a model that generates"
        )
    inputs, prefix_BL, attention_mask_BL = _prefix(inputs, begin, prompt_BL, attention_mask_BL)
    if not (rows := len(prefix_BL)):
        return []
    lengths_B = (
        torch.full((rows,), prefix_BL.shape[1])
        if attention_mask_BL is None
        else attention_mask_BL.sum(1).cpu()
    )
    limits_B = _limits(getattr(model, "task_type", None), lengths_B, max_length, min_length)
    numbers = range(rows) if row_numbers is None else row_numbers
    chooser = (strategy or GreedyConfig()).build(numbers, int(limits_B.max()))
    # The search needs double precision, which Apple's GPUs do not have.
    desk = torch.device("cpu") if prefix_BL.device.type == "mps" else prefix_BL.device
    trace = _observer.get() if trace is None else trace
    search = Search(chooser, limits_B.to(desk), end, min_length, forbidden, trace, is_scored)
    with evaluating(model):
        write = _along_branches if chooser.size > 1 and _can_branch(model) else _line_by_line
        state = model.start(**inputs)
        if isinstance(model, GenerativeModel) and model.prepacked_head is None:
            state.project = prepack_head(model)
        logits_NV = model.advance(state, prefix_BL, attention_mask_BL)
        _check_tokens(logits_NV.shape[-1], end, forbidden)
        while True:
            going = search.step(logits_NV.to(desk))
            if not len(going.rows_B):
                return search.answers()
            logits_NV = write(model, state, going, len(logits_NV))


def _can_branch(model: SupportsGeneration) -> bool:
    return isinstance(model, SupportsBeams) and model.supports_beams


def _line_by_line(model: SupportsGeneration, state: DecodingState, going: BeamUpdate, lines: int) -> Tensor:
    """Each branch has a row of the state to itself."""
    device = state.attention_mask_BM.device
    _keep(state, going.lines_BW.flatten().to(device), lines)
    return model.advance(state, going.tokens_BW.flatten()[:, None].to(device))


def _along_branches(model: Any, state: DecodingState, going: BeamUpdate, lines: int) -> Tensor:
    """The branches of a row share a row of the state."""
    device = state.attention_mask_BM.device
    _keep(state, going.rows_B.to(device), len(state.attention_mask_BM))
    return model.branch(state, going.beam_indices_BW.to(device), going.tokens_BW.to(device)).flatten(0, 1)


def _keep(state: DecodingState, rows: Tensor, count: int) -> None:
    if not torch.equal(rows, torch.arange(count, device=rows.device)):
        state.select(rows)


def _prefix(
    inputs: Inputs | None, begin: int | None, prompt_BL: Tensor | None, attention_mask_BL: Tensor | None
) -> tuple[Inputs, Tensor, Tensor | None]:
    """The inputs, what every row starts with, and which of it is real: None if all is."""
    if inputs is None:
        inputs = {"tokens": prompt_BL}
    like = prompt_BL if prompt_BL is not None else next((x for x in inputs.values() if x is not None), None)
    if like is None or (begin is None and prompt_BL is None):
        raise ErrorDetail("nothing to start with", path="begin", hint="begin=NUMBER, or a prompt_BL")
    if prompt_BL is None:
        prompt_BL, attention_mask_BL = like.new_empty(len(like), 0, dtype=torch.long), None
    if attention_mask_BL is not None and bool((~attention_mask_BL[:, :-1] & attention_mask_BL[:, 1:]).any()):
        raise ErrorDetail(
            "padding belongs on the right", path="attention_mask_BL", hint="real tokens first, then padding"
        )
    if begin is not None:
        prompt_BL = torch.cat([prompt_BL.new_full((len(prompt_BL), 1), begin), prompt_BL], 1)
        attention_mask_BL = (
            None
            if attention_mask_BL is None
            else torch.cat([attention_mask_BL.new_ones(len(attention_mask_BL), 1), attention_mask_BL], 1)
        )
    if attention_mask_BL is not None and bool(attention_mask_BL.all()):
        attention_mask_BL = None
    empty_B = (
        torch.full((len(prompt_BL),), prompt_BL.shape[1] == 0)
        if attention_mask_BL is None
        else ~attention_mask_BL.any(1)
    )
    if bool(empty_B.any()):
        raise ErrorDetail(
            f"the prompt of row {int(empty_B.nonzero()[0])} is empty",
            path="prompt_BL",
            hint="begin=NUMBER",
        )
    return inputs, prompt_BL, attention_mask_BL


def _limits(
    task_type: TaskType | None, lengths_B: Tensor, max_length: int | Sequence[int] | None, min_length: int
) -> Tensor:
    """How many tokens each row may write. The last one is not read again, and needs no position."""
    if task_type is None:
        longest = None
    else:
        longest = task_type.max_target_length if isinstance(task_type, Seq2Seq) else task_type.max_length
    room_B = None if longest is None else longest - lengths_B + 1
    if room_B is not None and bool((room_B < 1).any()):
        raise ErrorDetail(
            f"the model reads at most {longest} tokens",
            path="prompt_BL",
            value=int(lengths_B.max()),
            hint="a shorter prompt, or a model trained with a longer maximum length",
        )
    if max_length is None:
        if room_B is None:
            raise ErrorDetail("this model knows no limit: give one", path="max_length", hint="max_length=100")
        return room_B
    limits_B = torch.as_tensor(max_length).expand(len(lengths_B))
    if bool((limits_B < max(1, min_length)).any()):
        raise ErrorDetail(
            f"must be at least {max(1, min_length)}",
            path="max_length",
            value=int(limits_B.min()),
            hint="a larger one",
        )
    if room_B is not None and bool((limits_B > room_B).any()):
        row = int((limits_B - room_B).argmax())
        raise ErrorDetail(
            f"row {row} starts with {int(lengths_B[row])} tokens, and the model has {longest} positions",
            path="max_length",
            value=int(limits_B[row]),
            hint=f"max_length={int(room_B[row])}, or a model trained with a longer maximum length",
        )
    return limits_B


def _check_tokens(vocabulary: int, end: int | None, forbidden: Sequence[int]) -> None:
    for place, tokens in (("end", [] if end is None else [end]), ("forbidden", forbidden)):
        for token in tokens:
            if not 0 <= token < vocabulary:
                raise ErrorDetail(
                    f"tokens are numbers from 0 to {vocabulary - 1}",
                    path=place,
                    value=token,
                    hint="one of those",
                )
