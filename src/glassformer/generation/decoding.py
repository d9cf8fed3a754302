"""`generate`: read the inputs, then decode token by token until every row is done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from glassformer.core.errors import Problem
from glassformer.generation.cpu import prepack_head
from glassformer.generation.search import GoingOn, Hypothesis, Search, Trace
from glassformer.generation.strategies import DecodingConfig, GreedyConfig
from glassformer.models.base import Branching, DecodingState, Generating, GenerativeModel, Model, evaluating
from glassformer.models.task_types import SequenceToSequence, Shape

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
    model: Model | Generating,
    inputs: Inputs | None = None,
    *,
    begin: int | None = None,
    prompt_BL: Tensor | None = None,
    real_BL: Tensor | None = None,
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
      length: they are padded on the right, and `real_BL` is True where a token is real.
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
    if not isinstance(model, Generating):
        raise Problem(
            f"a {type(model).__name__} cannot write", place="model", remedy="a model that generates"
        )
    inputs, prefix_BL, real_BL = _prefix(inputs, begin, prompt_BL, real_BL)
    if not (rows := len(prefix_BL)):
        return []
    lengths_B = torch.full((rows,), prefix_BL.shape[1]) if real_BL is None else real_BL.sum(1).cpu()
    limits_B = _limits(getattr(model, "shape", None), lengths_B, max_length, min_length)
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
        logits_NV = model.advance(state, prefix_BL, real_BL)
        _check_tokens(logits_NV.shape[-1], end, forbidden)
        while True:
            going = search.step(logits_NV.to(desk))
            if not len(going.rows_B):
                return search.answers()
            logits_NV = write(model, state, going, len(logits_NV))


def _can_branch(model: Generating) -> bool:
    return isinstance(model, Branching) and model.can_branch


def _line_by_line(model: Generating, state: DecodingState, going: GoingOn, lines: int) -> Tensor:
    """Each branch has a row of the state to itself."""
    device = state.real_BM.device
    _keep(state, going.lines_BW.flatten().to(device), lines)
    return model.advance(state, going.tokens_BW.flatten()[:, None].to(device))


def _along_branches(model: Any, state: DecodingState, going: GoingOn, lines: int) -> Tensor:
    """The branches of a row share a row of the state."""
    device = state.real_BM.device
    _keep(state, going.rows_B.to(device), len(state.real_BM))
    return model.branch(state, going.parents_BW.to(device), going.tokens_BW.to(device)).flatten(0, 1)


def _keep(state: DecodingState, rows: Tensor, count: int) -> None:
    if not torch.equal(rows, torch.arange(count, device=rows.device)):
        state.select(rows)


def _prefix(
    inputs: Inputs | None, begin: int | None, prompt_BL: Tensor | None, real_BL: Tensor | None
) -> tuple[Inputs, Tensor, Tensor | None]:
    """The inputs, what every row starts with, and which of it is real: None if all is."""
    if inputs is None:
        inputs = {"tokens": prompt_BL}
    like = prompt_BL if prompt_BL is not None else next((x for x in inputs.values() if x is not None), None)
    if like is None or (begin is None and prompt_BL is None):
        raise Problem("nothing to start with", place="begin", remedy="begin=NUMBER, or a prompt_BL")
    if prompt_BL is None:
        prompt_BL, real_BL = like.new_empty(len(like), 0, dtype=torch.long), None
    if real_BL is not None and bool((~real_BL[:, :-1] & real_BL[:, 1:]).any()):
        raise Problem(
            "padding belongs on the right", place="real_BL", remedy="real tokens first, then padding"
        )
    if begin is not None:
        prompt_BL = torch.cat([prompt_BL.new_full((len(prompt_BL), 1), begin), prompt_BL], 1)
        real_BL = None if real_BL is None else torch.cat([real_BL.new_ones(len(real_BL), 1), real_BL], 1)
    if real_BL is not None and bool(real_BL.all()):
        real_BL = None
    empty_B = torch.full((len(prompt_BL),), prompt_BL.shape[1] == 0) if real_BL is None else ~real_BL.any(1)
    if bool(empty_B.any()):
        raise Problem(
            f"the prompt of row {int(empty_B.nonzero()[0])} is empty",
            place="prompt_BL",
            remedy="begin=NUMBER",
        )
    return inputs, prompt_BL, real_BL


def _limits(
    shape: Shape | None, lengths_B: Tensor, max_length: int | Sequence[int] | None, min_length: int
) -> Tensor:
    """How many tokens each row may write. The last one is not read again, and needs no position."""
    if shape is None:
        longest = None
    else:
        longest = shape.max_target_length if isinstance(shape, SequenceToSequence) else shape.max_length
    room_B = None if longest is None else longest - lengths_B + 1
    if room_B is not None and bool((room_B < 1).any()):
        raise Problem(
            f"the model reads at most {longest} tokens",
            place="prompt_BL",
            value=int(lengths_B.max()),
            remedy="a shorter prompt, or a model trained with a longer maximum length",
        )
    if max_length is None:
        if room_B is None:
            raise Problem("this model knows no limit: give one", place="max_length", remedy="max_length=100")
        return room_B
    limits_B = torch.as_tensor(max_length).expand(len(lengths_B))
    if bool((limits_B < max(1, min_length)).any()):
        raise Problem(
            f"must be at least {max(1, min_length)}",
            place="max_length",
            value=int(limits_B.min()),
            remedy="a larger one",
        )
    if room_B is not None and bool((limits_B > room_B).any()):
        row = int((limits_B - room_B).argmax())
        raise Problem(
            f"row {row} starts with {int(lengths_B[row])} tokens, and the model has {longest} positions",
            place="max_length",
            value=int(limits_B[row]),
            remedy=f"max_length={int(room_B[row])}, or a model trained with a longer maximum length",
        )
    return limits_B


def _check_tokens(vocabulary: int, end: int | None, forbidden: Sequence[int]) -> None:
    for place, tokens in (("end", [] if end is None else [end]), ("forbidden", forbidden)):
        for token in tokens:
            if not 0 <= token < vocabulary:
                raise Problem(
                    f"tokens are numbers from 0 to {vocabulary - 1}",
                    place=place,
                    value=token,
                    remedy="one of those",
                )
