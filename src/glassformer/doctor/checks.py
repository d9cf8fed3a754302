"""What a check is: a name, a number, its limit, a verdict. It knows nothing of models or machines."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from glassformer.blocks.attention import Kernel, MultiHeadAttention, explicit_weights
from glassformer.blocks.heads import IGNORED
from glassformer.blocks.masks import Mask
from glassformer.blocks.positions import Position
from glassformer.core.errors import shorten
from glassformer.data.batching import Batch
from glassformer.generation import NoCache
from glassformer.models.base import Model, SupportsGeneration
from glassformer.models.task_types import CausalLM, MaskedLM, Seq2Seq, TaskType
from glassformer.runs.experiment import Experiment
from glassformer.tasks.base import Task

Verdict = Literal["passed", "warning", "skipped", "failed"]
Value = float | int | str | None
Progress = Callable[[int, int], None]
"""How many checks of how many are done."""


class DoesNotApply(Exception):
    """There is nothing to check here; the reason is said, and nothing failed."""


@dataclass(frozen=True)
class Measurement:
    """What a check found. `limit` is what `value` was held to; None where the value is a fact, not a test."""

    verdict: Verdict
    value: Value
    limit: Value
    detail: str
    is_lower_limit: bool = False


Measure = Callable[[], Measurement]


def at_most(value: float, limit: float, detail: str) -> Measurement:
    return Measurement("passed" if value <= limit else "failed", value, limit, detail)


def at_least(value: float, limit: float, detail: str) -> Measurement:
    verdict: Verdict = "passed" if value >= limit else "failed"
    return Measurement(verdict, value, limit, detail, is_lower_limit=True)


@dataclass(frozen=True)
class Check:
    name: str
    measurement: Measurement
    seconds: float

    @property
    def passed(self) -> bool:
        return self.measurement.verdict != "failed"

    def document(self) -> dict[str, Any]:
        found = self.measurement
        return {
            "name": self.name,
            "passed": self.passed,
            "verdict": found.verdict,
            "value": found.value,
            "limit": found.limit,
            "limit_is": "at least" if found.is_lower_limit else "at most",
            "detail": found.detail,
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True)
class Report:
    what: str
    checks: list[Check]
    note: str = ""

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    def document(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "passed": self.passed,
            "checks": [check.document() for check in self.checks],
            "note": self.note,
        }

    def __getitem__(self, name: str) -> Check:
        return next(check for check in self.checks if check.name == name)


def run_checks(
    measures: Mapping[str, Measure], progress: Progress | None = None, done: list[Check] | None = None
) -> list[Check]:
    """Every check, whatever becomes of those before it; one that raises has failed."""
    checks = list(done or [])
    total = len(checks) + len(measures)
    for name, measure in measures.items():
        if progress is not None:
            progress(len(checks), total)
        started = time.perf_counter()
        checks.append(Check(name, _measure(measure), time.perf_counter() - started))
    return checks


def _measure(measure: Measure) -> Measurement:
    try:
        return measure()
    except DoesNotApply as reason:
        return Measurement("skipped", None, None, f"does not apply: {reason}")
    except Exception as error:
        # A model under examination may fail in any way; the other checks say more about why.
        return Measurement("failed", None, None, shorten(f"raised {type(error).__name__}: {error}", 200))


Inputs = dict[str, Tensor | None]

ROWS = 4
LENGTH = 16
SAMPLE = 64
"""How many examples are looked at, to find a few that ask something early on."""

DOUBLE_LIMIT = 1e-6
"""Far above rounding in fp64, and above that of a plug-in which computes parts in fp32; far below a leak."""
SINGLE_LIMIT = 1e-4
"""For a model that does not run in fp64."""


@dataclass
class Subject:
    """An experiment, and its trained model if there is one."""

    experiment: Experiment
    trained: Model | None = None

    @property
    def task(self) -> Task:
        return self.experiment.task

    @property
    def task_type(self) -> TaskType:
        return self.experiment.task.task_type

    @cached_property
    def fresh(self) -> Model:
        """As it would start training, with dropout off. Not to be changed: take a copy."""
        return self.experiment.build_model().eval()

    def build_otherwise(self) -> Model:
        """A model of the same config that starts from other random numbers."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.experiment.config.seed + 1)
            return self.experiment.config.model.build(self.task_type).eval()

    @cached_property
    def weights(self) -> Model:
        """The weights to examine, in fp32: the trained ones, or fresh ones that are nowhere zero.

        What starts at zero, such as some heads, would hide a leak. Shaken weights show the structure.
        """
        if self.trained is not None:
            return copy.deepcopy(self.trained).cpu().eval()
        return shaken(copy.deepcopy(self.fresh))

    @cached_property
    def model(self) -> Model:
        """`weights` in fp64 if the model runs in it, with dropout off. Not to be changed: take a copy."""
        model = copy.deepcopy(self.weights).double()
        try:
            with torch.no_grad():
                is_double = model(**self.batch.inputs).dtype == torch.float64
        except Exception:
            # Whatever is wrong with it, the checks will meet it again in fp32, and report it.
            is_double = False
        return model if is_double else self.weights

    @property
    def limit(self) -> float:
        """How far two results may differ that should be the same, as a share of the largest."""
        return DOUBLE_LIMIT if next(self.model.parameters()).dtype == torch.float64 else SINGLE_LIMIT

    @property
    def note(self) -> str:
        numbers = "fp64" if self.limit == DOUBLE_LIMIT else "fp32, since the model does not run in fp64"
        rows = len(self.batch.indices)
        return f"compared in {numbers}, on {rows} of the task's own sequences, cut to {LENGTH} tokens"

    @cached_property
    def sample(self) -> Batch:
        """Some examples from all over the training set, cut short."""
        examples = len(self.task.splits["train"])
        indices = np.unique(np.linspace(0, examples - 1, SAMPLE).astype(np.int64))
        return cut(self.task.batch("train", indices), LENGTH)

    @cached_property
    def batch(self) -> Batch:
        """A few rows that ask something in their first half, with different answers if there are such."""
        targets = self.sample.targets
        if targets.ndim == 1:
            _, first_B = np.unique(targets.numpy(), return_index=True)
            order = [*first_B.tolist(), *(row for row in range(len(targets)) if row not in first_B)]
        else:
            early_B = (targets[:, : max(1, targets.shape[1] // 2)] != IGNORED).any(1)
            order = torch.argsort(early_B.int(), descending=True, stable=True).tolist()
        return take_rows(self.sample, sorted(order[:ROWS]))

    @cached_property
    def ragged(self) -> Batch:
        """The same rows, each cut to another length."""
        return ragged(self.batch)

    @property
    def causal_input(self) -> str | None:
        """The input of which no position may see a later one, if there is such an input."""
        shape = self.task_type
        if isinstance(shape, Seq2Seq):
            return "target"
        if isinstance(shape, CausalLM) or getattr(self.fresh, "is_causal", False):
            return "tokens"
        return None

    def vocabulary(self, name: str) -> int:
        shape = self.task_type
        if name == "target" and isinstance(shape, Seq2Seq):
            return shape.target_vocabulary
        return shape.vocabulary

    def other_tokens(self, name: str, tokens: Tensor) -> Tensor:
        """Random tokens, none of them the same as before."""
        vocabulary = self.vocabulary(name)
        if vocabulary < 2:
            raise DoesNotApply("there is only one token")
        chance = torch.Generator().manual_seed(0)
        return (tokens + torch.randint(1, vocabulary, tokens.shape, generator=chance)) % vocabulary


def shaken(model: Model) -> Model:
    """Every weight moved by a little, in proportion to what its layer reads."""
    chance = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            scale = 0.2 * parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.05
            parameter.add_(torch.randn(parameter.shape, generator=chance), alpha=scale)
    return model


def difference(actual: Tensor, expected: Tensor) -> float:
    """The largest one, as a share of the largest expected value; infinite if anything is no number."""
    return largest_difference([actual], [expected])


def largest_difference(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """As `difference`, over all the tensors, on one scale."""
    with torch.no_grad():
        pairs = [(a, e) for a, e in zip(actual, expected, strict=True) if e.numel()]
        largest = [float((a - e).abs().max()) for a, e in pairs]
        scale = max((float(e.abs().max()) for _, e in pairs), default=0.0) or 1.0
    if not all(map(math.isfinite, [*largest, scale])):
        return math.inf
    return max(largest, default=0.0) / scale


def gradients(model: nn.Module) -> list[Tensor]:
    """Of every parameter, taken away from it; what has none counts as zeros."""
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    return found


def map_columns(batch: Batch, change: Callable[[str, Tensor], Tensor]) -> Batch:
    """The batch with each table of tokens, masks or targets changed; one answer a row stays."""
    inputs = {name: None if x is None else change(name, x) for name, x in batch.inputs.items()}
    targets = batch.targets if batch.targets.ndim == 1 else change("targets", batch.targets)
    return replace(batch, inputs=inputs, targets=targets)


def cut(batch: Batch, length: int) -> Batch:
    return map_columns(batch, lambda _, x: x[:, :length])


def take_rows(batch: Batch, rows: list[int]) -> Batch:
    inputs = {name: None if x is None else x[rows] for name, x in batch.inputs.items()}
    return Batch(inputs, batch.targets[rows], batch.indices[rows])


def ragged(batch: Batch) -> Batch:
    """Row i loses some of its end, so that no two rows need be equally long."""

    def lengths(x: Tensor) -> Tensor:
        width = x.shape[1]
        lost_B = torch.arange(len(x)) * max(1, width // (2 * len(x)))
        return (width - lost_B).clamp(min=min(2, width))

    def within(x: Tensor) -> Tensor:
        return torch.arange(x.shape[1]) < lengths(x)[:, None]

    def shorten(name: str, x: Tensor) -> Tensor:
        return x.masked_fill(~within(x), IGNORED if name == "targets" else 0)

    tokens, attention_mask = batch.inputs["tokens"], batch.inputs.get("attention_mask")
    assert tokens is not None
    is_real = within(tokens) if attention_mask is None else within(tokens) & attention_mask
    return map_columns(replace(batch, inputs={**batch.inputs, "attention_mask": is_real}), shorten)


def trimmed(batch: Batch) -> Batch:
    """Without the columns of inputs that no row needs; rows of equal length need no mask."""
    tokens, attention_mask = batch.inputs["tokens"], batch.inputs["attention_mask"]
    assert tokens is not None and attention_mask is not None
    longest = int(attention_mask.sum(1).max())
    is_mask_needed = not bool(attention_mask[:, :longest].all())
    inputs = {
        **batch.inputs,
        "tokens": tokens[:, :longest],
        "attention_mask": attention_mask[:, :longest] if is_mask_needed else None,
    }
    # Targets of one sequence are as wide as the input; those of a written one have a width of their own.
    is_aligned = batch.targets.ndim == 2 and "target" not in batch.inputs
    return replace(batch, inputs=inputs, targets=batch.targets[:, :longest] if is_aligned else batch.targets)


MOST_SHOWN = 0.5
"""Of the hidden tokens: BERT leaves one in ten as it is, and shows no more than that."""

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout)


def future(subject: Subject) -> Measurement:
    """Later tokens are changed; what the model says before them must stay."""
    name = subject.causal_input
    if name is None:
        raise DoesNotApply("every position may see the whole sequence")
    inputs = subject.batch.inputs
    tokens_BL = _given(inputs, name)
    length = tokens_BL.shape[1]
    if length < 2:
        raise DoesNotApply("the sequences have a single token")
    with torch.no_grad():
        expected = subject.model(**inputs)
        if expected.ndim < 3:
            raise DoesNotApply("there is one answer, and it comes from the whole sequence")
        moved = {}
        for place in sorted({1, length // 3 or 1, 2 * length // 3 or 1, length - 1}):
            changed_BL = tokens_BL.clone()
            changed_BL[:, place:] = subject.other_tokens(name, tokens_BL[:, place:])
            actual = subject.model(**{**inputs, name: changed_BL})
            moved[place] = difference(actual[:, :place], expected[:, :place])
    worst = max(moved, key=lambda place: moved[place])
    if moved[worst] <= subject.limit:
        return at_most(moved[worst], subject.limit, f"later tokens changed from {len(moved)} places on")
    return at_most(moved[worst], subject.limit, f"tokens from place {worst + 1} on reach answers before it")


def padding(subject: Subject) -> Measurement:
    """Rows alone, padded, and padded further with other tokens: the same answers and the same loss."""
    ragged, model = subject.ragged, subject.model
    attention_mask = _given(ragged.inputs, "attention_mask")
    if bool(attention_mask.all()):
        raise DoesNotApply("the sequences have a single token")
    with torch.no_grad():
        alone = [trimmed(take_rows(ragged, [row])) for row in range(len(attention_mask))]
        expected = torch.cat([_asked(row, model(**row.inputs)).flatten(0, -2) for row in alone])
        losses = [model.compute_loss(row.inputs, row.targets) for row in alone]
        loss, count = (
            sum(float(loss_output.loss) for loss_output in losses),
            sum(int(loss_output.count) for loss_output in losses),
        )
        worst, what = 0.0, "answers and loss are the same alone, padded, and with other padding"
        for kind, batch in (("padding", ragged), ("the content of padding", _other_padding(subject))):
            answers = _asked(batch, model(**batch.inputs))
            loss_output = model.compute_loss(batch.inputs, batch.targets)
            moved = difference(answers, expected)
            loss_moved = abs(float(loss_output.loss) - loss) / (abs(loss) or 1.0)
            if int(loss_output.count) != count or not math.isfinite(loss_moved):
                loss_moved = math.inf
            for changed, share in (("answers", moved), ("the loss", loss_moved)):
                if share > max(worst, subject.limit):
                    what = f"{kind} changes {changed}"
                worst = max(worst, share)
    return at_most(worst, subject.limit, what)


def _asked(batch: Batch, answers: Tensor) -> Tensor:
    """The answers that count: all of them, or those at real positions."""
    if answers.ndim < 3:
        return answers
    attention_mask = (
        batch.inputs["attention_mask"] if "target" not in batch.inputs else batch.targets != IGNORED
    )
    return answers.flatten(0, 1) if attention_mask is None else answers[attention_mask]


def _other_padding(subject: Subject) -> Batch:
    """Other tokens as padding, and more of them if the model has room."""
    shape, ragged = subject.task_type, subject.ragged
    room = {"tokens": shape.max_length, "attention_mask": shape.max_length}
    room["target"] = getattr(shape, "max_target_length", 0)
    aligned = "target" if "target" in ragged.inputs else "tokens"
    room["targets"] = room[aligned]

    def widen(name: str, x: Tensor) -> Tensor:
        more = max(0, min(3, room.get(name, 0) - x.shape[1]))
        return nn.functional.pad(x, (0, more), value=IGNORED if name == "targets" else 0)

    wide = map_columns(ragged, widen)
    inputs = dict(wide.inputs)
    tokens, attention_mask = _given(inputs, "tokens"), _given(inputs, "attention_mask")
    inputs["tokens"] = torch.where(attention_mask, tokens, subject.other_tokens("tokens", tokens))
    if "target" in inputs:
        target = _given(inputs, "target")
        other = subject.other_tokens("target", target)
        inputs["target"] = torch.where(wide.targets != IGNORED, target, other)
    return replace(wide, inputs=inputs)


def neighbours(subject: Subject) -> Measurement:
    """A sequence alone and in a batch of equally long ones: the same answers."""
    batch, model = subject.batch, subject.model
    if len(batch.indices) < 2:
        raise DoesNotApply("there is a single example")
    attention_mask = batch.inputs.get("attention_mask")
    if attention_mask is not None:
        shortest = max(1, int(attention_mask.sum(1).min()))
        inputs = {
            **batch.inputs,
            "tokens": _given(batch.inputs, "tokens")[:, :shortest],
            "attention_mask": None,
        }
        batch = replace(batch, inputs=inputs)
    with torch.no_grad():
        together = model(**batch.inputs)
        alone = [model(**take_rows(batch, [row]).inputs) for row in range(len(batch.indices))]
    moved = difference(together, torch.cat(alone))
    return at_most(moved, subject.limit, f"{len(alone)} sequences, together and one by one")


def cached_decoding(subject: Subject) -> Measurement:
    """Prompts of several lengths, tokens one by one and two at once, rows swapped as a beam does."""
    model, name = subject.model, subject.causal_input
    if name is None or not isinstance(model, SupportsGeneration):
        raise DoesNotApply("the model does not write")
    written_BL = _given(subject.batch.inputs, name)
    rows, length = written_BL.shape
    prompts_B = 1 + torch.arange(rows) % max(1, min(3, length - 1))
    prompt_real_BL = torch.arange(int(prompts_B.max())) < prompts_B[:, None]
    chunks = [written_BL[:, : prompt_real_BL.shape[1]], *_continuations(written_BL, prompts_B)]
    inputs = {key: x for key, x in subject.ragged.inputs.items() if key != "target"}
    order, swap = torch.arange(rows), torch.arange(rows).flip(0)
    moved = []
    with torch.no_grad():
        uncached = NoCache(model)
        state, whole = model.start(**inputs), uncached.start(**inputs)
        for number, chunk_BL in enumerate(chunks):
            attention_mask_BL = None if number else prompt_real_BL
            logits_BV = model.advance(state, chunk_BL[order], attention_mask_BL)
            moved.append(difference(logits_BV, uncached.advance(whole, chunk_BL[order], attention_mask_BL)))
            state.select(swap)
            whole.select(swap)
            order = order[swap]
    worst = max(range(len(moved)), key=lambda number: moved[number])
    detail = f"{len(moved)} steps after prompts of {int(prompts_B.min())} to {int(prompts_B.max())} tokens"
    if moved[worst] > subject.limit:
        detail = f"the cache and the whole sequence disagree, most at step {worst + 1} of {len(moved)}"
    return at_most(moved[worst], subject.limit, detail)


def _continuations(written_BL: Tensor, prompts_B: Tensor) -> list[Tensor]:
    """What follows each row's prompt: one token, then two at once, then one by one."""
    left = written_BL.shape[1] - int(prompts_B.max())
    next_BL = prompts_B[:, None] + torch.arange(left)
    following_BL = written_BL.gather(1, next_BL)
    chunks, start = [], 0
    for size in (1, 2, 1, 1, 1):
        if start + size <= left:
            chunks.append(following_BL[:, start : start + size])
            start += size
    return chunks


def reference_kernel(
    q_BHLK: Tensor, k_BHMK: Tensor, v_BHMK: Tensor, mask: Mask, bias: Tensor | None, dropout: float
) -> Tensor:
    """The definition: a softmax that is written out."""
    return explicit_weights(q_BHLK, k_BHMK, mask, bias) @ v_BHMK


def fused_attention(subject: Subject) -> Measurement:
    """The whole model with its own kernels and with the reference: answers, and gradients too."""
    model = copy.deepcopy(subject.model)
    batch, attentions = subject.ragged, _attentions(model)
    if not attentions:
        raise DoesNotApply("the model has no MultiHeadAttention with a kernel to exchange")

    def run() -> tuple[Tensor, list[Tensor]]:
        answers = model(**batch.inputs)
        model.head.compute_loss(answers, batch.targets).loss.backward()
        return answers, gradients(model)

    fused_answers, fused_gradients = run()
    for attention in attentions:
        attention.kernel = reference_kernel
    answers, slopes = run()
    moved = difference(fused_answers, answers), largest_difference(fused_gradients, slopes)
    detail = f"{len(attentions)} attentions; answers differ by {moved[0]:.1e}, gradients by {moved[1]:.1e}"
    return at_most(max(moved), subject.limit, detail)


def masked_row(subject: Subject) -> Measurement:
    """A query without any key gets zeros, and a sequence that is all padding disturbs nobody."""
    model = subject.model
    kernels = {(each.kernel, each.num_heads, each.head_dim) for each in _attentions(model)}
    masked = max(
        (
            _masked_row_size(kernel, heads, width, is_biased, next(model.parameters()).dtype)
            for kernel, heads, width in kernels
            for is_biased in (False, True)
        ),
        default=0.0,
    )
    batch = subject.ragged
    attention_mask_BL = _given(batch.inputs, "attention_mask").clone()
    attention_mask_BL[0] = False
    with torch.no_grad():
        expected, actual = (
            model(**batch.inputs),
            model(**{**batch.inputs, "attention_mask": attention_mask_BL}),
        )
    others = difference(actual[1:], expected[1:]) if bool(torch.isfinite(actual).all()) else math.inf
    detail = f"{len(kernels)} kernels, with and without a bias; a sequence that is all padding"
    if masked > subject.limit:
        detail = "a query that may attend to nothing does not get zeros"
    elif others > subject.limit:
        detail = "a sequence that is all padding spoils the answers"
    return at_most(max(masked, others), subject.limit, detail)


def _masked_row_size(
    kernel: Kernel, heads: int, width: int, is_biased: bool, number_format: torch.dtype
) -> float:
    """The largest number in the row of a query that may attend to nothing; infinite if no number."""
    chance = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=chance, dtype=number_format).requires_grad_()

    q_BHLK, k_BHMK, v_BHMK = draw(2, heads, 3, width), draw(2, heads, 4, width), draw(2, heads, 4, width)
    bias = draw(1, heads, 3, 4) if is_biased else None
    allowed = torch.ones(2, 1, 3, 4, dtype=torch.bool)
    allowed[0, :, 1] = False
    mixed_BHLK = kernel(q_BHLK, k_BHMK, v_BHMK, Mask(allowed=allowed), bias, 0.0)
    mixed_BHLK.sum().backward()
    slopes = [x.grad for x in (q_BHLK, k_BHMK, v_BHMK, bias) if x is not None and x.grad is not None]
    if not all(bool(torch.isfinite(x).all()) for x in (mixed_BHLK, *slopes)):
        return math.inf
    return float(mixed_BHLK[0, :, 1].detach().abs().max())


def positions(subject: Subject) -> Measurement:
    """The positions are told to the model in another order; it must say something else."""
    model = copy.deepcopy(subject.model)
    modules = [module for module in model.modules() if isinstance(module, Position)]
    if not modules:
        raise DoesNotApply("the model has no Position module")
    if all(type(module) is Position for module in modules):
        raise DoesNotApply("the model is not told any positions")
    inputs = subject.batch.inputs
    if _given(inputs, "tokens").shape[1] < 3:
        raise DoesNotApply("the sequences are too short to have an order")
    with torch.no_grad():
        expected = model(**inputs)
        for module in modules:
            _tell_other_positions(module)
        moved = difference(model(**inputs), expected)
    if moved >= subject.limit:
        return at_least(moved, subject.limit, "answers change with the order of the positions")
    return at_least(moved, subject.limit, "the positions have no effect on the answers")


def _tell_other_positions(module: Position) -> None:
    embed, rotate, score_bias = module.embed, module.rotate, module.score_bias

    def other(positions: Tensor) -> Tensor:
        """Odd places first: few distances stay what they were."""
        places = torch.arange(int(positions.max()) + 1)
        return torch.cat([places[1::2], places[0::2]])[positions]

    changed: dict[str, Callable[..., Tensor | None]] = {
        "embed": lambda x, positions: embed(x, other(positions)),
        "rotate": lambda x, positions: rotate(x, other(positions)),
        "score_bias": lambda q, queries, keys: score_bias(q, other(queries), other(keys)),
    }
    for name, method in changed.items():
        setattr(module, name, method)


def dropout(subject: Subject) -> Measurement:
    """Two passes are the same in evaluation, and not the same in training if there is dropout."""
    inputs, model = subject.batch.inputs, copy.deepcopy(subject.model)
    rates = [module.p for module in model.modules() if isinstance(module, DROPOUTS)]
    rates += [attention.dropout for attention in _attentions(model)]
    with torch.no_grad():
        trained = [model.train()(**inputs) for _ in range(2)]
        evaluated = [model.eval()(**inputs) for _ in range(2)]
    moved, moved_in_training = difference(*evaluated), difference(*trained)
    if moved > subject.limit:
        detail = "two passes in evaluation differ: something random stays on"
    elif max(rates, default=0.0) == 0.0:
        detail = "the same twice in evaluation; the model has no dropout"
    elif moved_in_training <= subject.limit:
        return Measurement(
            "failed", moved, subject.limit, "two passes in training are the same: dropout is off"
        )
    else:
        detail = f"the same twice in evaluation; in training they differ by {moved_in_training:.2g}"
    return at_most(moved, subject.limit, detail)


def own_answer(subject: Subject) -> Measurement:
    """What is asked at a position must not stand in what the model reads there."""
    batch, shape = subject.sample, subject.task_type
    if isinstance(shape, MaskedLM):
        tokens, asked = _given(batch.inputs, "tokens"), batch.targets != IGNORED
        if not bool(asked.any()):
            raise DoesNotApply("nothing is asked in the first tokens of these examples")
        shown = float((tokens == batch.targets)[asked].double().mean())
        detail = f"{shown:.0%} of {int(asked.sum())} hidden tokens are shown"
        return at_most(shown, MOST_SHOWN, detail)
    if not isinstance(shape, (CausalLM, Seq2Seq)):
        raise DoesNotApply("the answers are no part of the input")
    tokens = _given(batch.inputs, "target" if isinstance(shape, Seq2Seq) else "tokens")
    asked = batch.targets != IGNORED
    asked = asked[:, :-1] & asked[:, 1:]
    wrong, total = int((tokens[:, 1:] != batch.targets[:, :-1])[asked].sum()), int(asked.sum())
    if not total:
        raise DoesNotApply("the sequences are too short to tell")
    return at_most(wrong, 0, f"{total - wrong} of {total} answers are the token that comes next")


def _given(inputs: Inputs, name: str) -> Tensor:
    tensor = inputs[name]
    assert tensor is not None
    return tensor


def _attentions(model: Model) -> list[MultiHeadAttention]:
    return [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
