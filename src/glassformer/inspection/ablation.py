"""Ablations: remove a head, an attention edge or a token, and measure the effect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from glassformer.blocks import reference
from glassformer.blocks.attention import explicit_scores
from glassformer.blocks.masks import Mask
from glassformer.core.errors import ErrorDetail
from glassformer.data.batching import Batch
from glassformer.evaluation.intervals import Interval, percentile_interval, resampled_sums
from glassformer.evaluation.metrics import Tally
from glassformer.generation import DecodingConfig
from glassformer.inspection.examples import Group, Question, groups_of, next_token
from glassformer.inspection.maps import Trust
from glassformer.inspection.record import HeadId, attention_at, layers, swap_kernels
from glassformer.models.base import Model, evaluating
from glassformer.models.task_types import CausalLM, Seq2Seq, TokenClassification
from glassformer.tasks.base import Task

How = Literal["zero", "mean"]
HOWS: tuple[How, ...] = ("zero", "mean")

Change = Callable[[], AbstractContextManager[None]]
"""Entered anew for each pass or decoding, since an edge counts the queries from the first on."""


@dataclass(frozen=True)
class Edge:
    """One cell of one head's map."""

    where: HeadId
    query: int
    key: int

    def __str__(self) -> str:
        return f"{self.where}, from query {self.query} to key {self.key}"


def switch_off(model: Model, where: HeadId, how: How, groups: Sequence[Group]) -> Change:
    """The head adds nothing, or always its mean over these examples and all their positions."""
    if how not in HOWS:
        raise ErrorDetail("not one of the choices", path="how", value=how, allowed=list(HOWS))
    attention = attention_at(model, where)
    inner = attention.kernel
    constant_K = mean_output(model, where, groups) if how == "mean" else torch.tensor(0.0)

    def kernel(
        q_BHLK: Tensor, k_BHMK: Tensor, v_BHMK: Tensor, mask: Mask, bias: Tensor | None, dropout: float
    ) -> Tensor:
        mixed_BHLK = inner(q_BHLK, k_BHMK, v_BHMK, mask, bias, dropout).clone()
        mixed_BHLK[:, where.head] = constant_K.to(mixed_BHLK)
        return mixed_BHLK

    return lambda: swap_kernels(model, {attention: kernel})


def mean_output(model: Model, where: HeadId, groups: Sequence[Group]) -> Tensor:
    """What a head mixes on average, before the output projection."""
    attention = attention_at(model, where)
    inner, device = attention.kernel, next(model.parameters()).device
    sums_K, count = torch.zeros(attention.head_dim, dtype=torch.float64), 0

    def kernel(
        q_BHLK: Tensor, k_BHMK: Tensor, v_BHMK: Tensor, mask: Mask, bias: Tensor | None, dropout: float
    ) -> Tensor:
        nonlocal sums_K, count
        mixed_BHLK = inner(q_BHLK, k_BHMK, v_BHMK, mask, bias, dropout)
        sums_K = sums_K + mixed_BHLK[:, where.head].double().sum((0, 1)).cpu()
        count += mixed_BHLK.shape[0] * mixed_BHLK.shape[2]
        return mixed_BHLK

    with torch.inference_mode(), swap_kernels(model, {attention: kernel}):
        for group in groups:
            model.hidden(**group.batch.to(device).inputs)
    return sums_K / max(count, 1)


def cut(model: Model, edge: Edge, *, renormalises: bool = True) -> Change:
    """The query may not read this key: the rest of the row adds up to 1 again, as behind a mask.

    Without `renormalises` the weight alone is taken away, and nothing fills its place: exactly what came
    through this edge is missing, but the row is one that the model never had in training.
    """
    attention, where = attention_at(model, edge.where), edge.where
    inner = attention.kernel

    def change() -> AbstractContextManager[None]:
        seen = 0

        def kernel(
            q_BHLK: Tensor, k_BHMK: Tensor, v_BHMK: Tensor, mask: Mask, bias: Tensor | None, dropout: float
        ) -> Tensor:
            nonlocal seen
            mixed_BHLK = inner(q_BHLK, k_BHMK, v_BHMK, mask, bias, dropout)
            queries, keys = q_BHLK.shape[2], k_BHMK.shape[2]
            # With a cache a step brings one query. To its own past it is the last; of the input's keys it
            # must be counted.
            first = seen if where.place == "cross" else keys - queries
            seen += queries
            at = edge.query - first
            if not (0 <= at < queries and edge.key < keys):
                return mixed_BHLK
            heads, rows = slice(where.head, where.head + 1), slice(at, at + 1)
            scores_B11M = explicit_scores(
                q_BHLK[:, heads, rows], k_BHMK[:, heads], _cell(bias, heads, rows, (queries, keys))
            )
            allowed = _cell(mask.dense(queries, keys, q_BHLK.device), heads, rows, (queries, keys))
            allowed_B11M = torch.ones_like(scores_B11M, dtype=torch.bool)
            if allowed is not None:
                allowed_B11M = allowed_B11M & allowed
            if renormalises:
                allowed_B11M[..., edge.key] = False
            weights_B11M = reference.weights(scores_B11M, allowed_B11M)
            weights_B11M[..., edge.key] = 0.0
            mixed_BHLK = mixed_BHLK.clone()
            mixed_BHLK[:, heads, rows] = weights_B11M @ v_BHMK[:, heads]
            return mixed_BHLK

        return swap_kernels(model, {attention: kernel})

    return change


def check_edge(task: Task, edge: Edge, group: Group) -> None:
    """A ErrorDetail if the maps of these inputs can have no such cell, or one that is masked anyway.

    What the model itself writes may be longer than the right answer.
    """
    written = task.task_type.max_target_length if isinstance(task.task_type, Seq2Seq) else group.keys
    queries = group.keys if edge.where.place == "encoder" else written
    keys = written if edge.where.place == "decoder" else group.keys
    for name, number, count in (("query", edge.query, queries), ("key", edge.key, keys)):
        if not 0 <= number < count:
            raise ErrorDetail(
                f"no such {name}: they are numbered from 0 to {count - 1}",
                path=name,
                value=number,
                hint="0",
            )
    is_causal = edge.where.place == "decoder" or isinstance(task.task_type, CausalLM)
    if is_causal and edge.key > edge.query:
        raise ErrorDetail(
            "no token sees what comes after it", path="key", value=edge.key, hint="a key before"
        )


def as_long_as(task: Task, group: Group, edge: Edge) -> Callable[[int, int], bool]:
    """Whether an example of such lengths has the same cell: its input is as long, its answer long enough.

    A text that a language model reads need only be long enough.
    """
    tokens = len(group.inputs[0])
    furthest = max(edge.query, edge.key)
    if isinstance(task.task_type, CausalLM):
        return lambda length, _: length > furthest + 1
    if edge.where.place == "encoder":
        return lambda length, _: length == tokens
    return lambda length, target: length == tokens and target > edge.query + 1


def _cell(tensor: Tensor | None, heads: slice, rows: slice, shape: tuple[int, int]) -> Tensor | None:
    """One head's one row of something that broadcasts to (B, H, L, M)."""
    if tensor is None:
        return None
    while tensor.ndim < 4:
        tensor = tensor[None]
    tensor = tensor.expand(-1, -1, *shape)[:, :, rows]
    return tensor[:, heads] if tensor.shape[1] > 1 else tensor


@dataclass(frozen=True)
class Effect:
    before: float
    after: float
    change: float
    interval: Interval | None
    """Of the change; None for a single example."""


@dataclass(frozen=True)
class Effects:
    what: str
    """What was changed, for people."""
    examples: int
    metrics: dict[str, Effect]
    measured_by: str
    """Which answers loss and accuracy are measured by."""
    answer: dict[str, Any] | None = None
    """To the one input, if there is one: before and after."""
    input_metrics: dict[str, Effect] | None = None
    """Of the one input alone, where `metrics` are over several examples."""
    trust: Trust = "cause"
    notes: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Scores:
    """A number for each example."""

    loss: np.ndarray
    count: np.ndarray
    correct: np.ndarray | None
    exact: np.ndarray | None


def scores(
    model: Model,
    task: Task,
    groups: Sequence[Group],
    decoding: DecodingConfig | None,
    change: Change = nullcontext,
) -> Scores:
    """Losses as in training, after the right tokens; exact matches of what the model writes by itself."""
    device = next(model.parameters()).device
    tally, exact = Tally(model, is_thorough=True), []
    with evaluating(model), torch.inference_mode():
        for group in groups:
            with change():
                tally.add(group.batch.to(device))
            if group.written is not None:
                with change():
                    answers = task.predict(model, group.inputs, decoding)
                exact += [
                    answer[0].tokens == right for answer, right in zip(answers, group.written, strict=True)
                ]
    loss, count = tally.column("loss").astype(np.float64), tally.column("count").astype(np.float64)
    correct = tally.column("correct").astype(np.float64)
    if not len(correct):
        predicted, actual = tally.column("predicted"), tally.column("actual")
        is_class = np.issubdtype(actual.dtype, np.integer)
        return Scores(loss, count, (predicted == actual).astype(np.float64) if is_class else None, None)
    if exact:
        return Scores(loss, count, correct, np.array(exact, dtype=np.float64))
    is_exact = (
        (correct == count).astype(np.float64) if isinstance(task.task_type, TokenClassification) else None
    )
    return Scores(loss, count, correct, is_exact)


def compare(before: Scores, after: Scores) -> dict[str, Effect]:
    """Metrics before and after on the same examples."""
    ones = np.ones(len(before.loss))
    pairs = {"loss": (before.loss, after.loss, before.count)}
    if before.correct is not None and after.correct is not None:
        pairs["accuracy"] = (before.correct, after.correct, before.count)
    if before.exact is not None and after.exact is not None:
        pairs["exact_match"] = (before.exact, after.exact, ones)
    return {name: _effect(*columns) for name, columns in pairs.items()}


def _effect(before: np.ndarray, after: np.ndarray, count: np.ndarray) -> Effect:
    total = max(float(count.sum()), 1.0)
    old, new = float(before.sum()) / total, float(after.sum()) / total
    interval = None
    if len(before) > 1:
        sums = resampled_sums(np.stack([after - before, count], axis=1))
        interval = percentile_interval(sums[:, 0] / np.maximum(sums[:, 1], 1))
    return Effect(old, new, new - old, interval)


def effects_of(
    what: str,
    model: Model,
    task: Task,
    change: Change,
    *,
    groups: Sequence[Group] = (),
    asked: Question | None = None,
    decoding: DecodingConfig | None = None,
) -> Effects:
    """Over these examples, or over the one input if there are none; its answer in either case."""
    answer, of_input = None, None
    if asked is not None:
        before, after = (scores(model, task, [asked.group], decoding, each) for each in (nullcontext, change))
        of_input = compare(before, after)
        answer = {
            name: shown_answer(model, task, asked.group.inputs[0], decoding, each)
            for name, each in (("before", nullcontext), ("after", change))
        }
    if not groups:
        if asked is None or of_input is None:
            raise ErrorDetail("nothing to measure on", path="examples", hint="an input, or examples")
        return Effects(what, 1, of_input, asked.reference, answer)
    before, after = (scores(model, task, groups, decoding, each) for each in (nullcontext, change))
    return Effects(
        what, len(before.loss), compare(before, after), "the right answers of the examples", answer, of_input
    )


def without_head(
    model: Model,
    task: Task,
    where: HeadId,
    how: How,
    groups: Sequence[Group],
    *,
    asked: Question | None = None,
    decoding: DecodingConfig | None = None,
) -> Effects:
    change = switch_off(model, where, how, groups)
    what = f"{where} switched off ({how})"
    return effects_of(what, model, task, change, groups=groups, asked=asked, decoding=decoding)


def without_each_head(
    model: Model, task: Task, how: How, groups: Sequence[Group], decoding: DecodingConfig | None = None
) -> list[dict[str, Any]]:
    """For JSON: what each head of the model is worth, one after another."""
    before = scores(model, task, groups, decoding)
    found = []
    for place, of_place in layers(model).items():
        for layer, attention in enumerate(of_place):
            for head in range(attention.num_heads):
                where = HeadId(place, layer, head)
                after = scores(model, task, groups, decoding, switch_off(model, where, how, groups))
                metrics = {name: asdict(effect) for name, effect in compare(before, after).items()}
                trust: Trust = "cause"
                found.append({**asdict(where), "how": how, "trust": trust, "metrics": metrics})
    return found


def without_edge(
    model: Model,
    task: Task,
    edge: Edge,
    asked: Question,
    *,
    split: str,
    examples: int | None = None,
    renormalises: bool = True,
    decoding: DecodingConfig | None = None,
) -> Effects:
    change = cut(model, edge, renormalises=renormalises)
    check_edge(task, edge, asked.group)
    groups = []
    if examples is not None:
        groups = groups_of(task, split, examples, as_long_as(task, asked.group, edge))
    notes = [] if examples is None or groups else [f"no example of {split} is as long as this input"]
    what = f"{edge} cut" + ("" if renormalises else ", the rest of the row as it was")
    found = effects_of(what, model, task, change, groups=groups, asked=asked, decoding=decoding)
    return replace(found, notes=notes)


def shown_answer(
    model: Model,
    task: Task,
    tokens: np.ndarray,
    decoding: DecodingConfig | None,
    change: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> str:
    """What the model says to an input, as a person reads it; a language model says one token."""
    with change(), evaluating(model):
        if isinstance(task.task_type, CausalLM):
            return " ".join(task.output_symbols([next_token(model, tokens)]))
        best = task.predict(model, [tokens], decoding)[0][0]
    return f"{best.value:.6g}" if best.value is not None else task.show_output(best.tokens)


def without_token(
    model: Model,
    task: Task,
    asked: Question,
    position: int,
    *,
    split: str,
    examples: int,
    decoding: DecodingConfig | None = None,
) -> Effects:
    """A token is hidden behind others: those that stand at its place in other examples, one after another.

    So the model only ever reads what it knows. Measured is how far it gets from the answer that it had.
    """
    tokens = asked.group.inputs[0]
    if not 0 <= position < len(tokens):
        raise ErrorDetail(
            f"no such token: they are numbered from 0 to {len(tokens) - 1}",
            path="position",
            value=position,
            hint="0",
        )
    found = groups_of(task, split, examples, lambda length, _: length > position)
    drawn = [int(row[position]) for group in found for row in group.inputs]
    others = [token for token in drawn if token != int(tokens[position])]
    name = task.input_symbols(tokens.tolist())[position]
    if not others:
        raise ErrorDetail(
            f"nothing but {name!r} stands at this place in {len(drawn)} examples: it cannot be hidden",
            path="position",
            value=position,
            hint="another token, or more examples",
        )
    rows = [np.array([*tokens[:position], other, *tokens[position + 1 :]]) for other in others]
    before = scores(model, task, [asked.group], decoding)
    after = scores(model, task, [_exchanged(asked.group, rows)], decoding)
    answers = [shown_answer(model, task, row, decoding) for row in rows]
    return Effects(
        f"token {position}, {name!r}, hidden behind {len(rows)} others that stand there in other examples",
        len(rows),
        compare(_repeated(before, len(rows)), after),
        asked.reference,
        {
            "before": shown_answer(model, task, tokens, decoding),
            "after": Counter(answers).most_common(1)[0][0],
            "others": [
                {"token": shown, "output": output}
                for shown, output in zip(task.input_symbols(others), answers, strict=True)
            ],
        },
        notes=["the answer after it is the most frequent one; `others` has them all"],
    )


def _exchanged(group: Group, rows: list[np.ndarray]) -> Group:
    """The same answer asked of other inputs."""
    batch, count = group.batch, len(rows)
    tokens_BL = batch.inputs["tokens"]
    assert tokens_BL is not None
    length = tokens_BL.shape[1]
    inputs = {name: None if x is None else x.expand(count, *x.shape[1:]) for name, x in batch.inputs.items()}
    inputs["tokens"] = torch.from_numpy(np.stack(rows))[:, :length].to(tokens_BL)
    targets = batch.targets.expand(count, *batch.targets.shape[1:])
    written = None if group.written is None else group.written * count
    return replace(group, batch=Batch(inputs, targets, np.arange(count)), inputs=rows, written=written)


def _repeated(single: Scores, count: int) -> Scores:
    def repeat(column: np.ndarray | None) -> np.ndarray | None:
        return None if column is None else np.repeat(column, count)

    loss, counts = np.repeat(single.loss, count), np.repeat(single.count, count)
    return Scores(loss, counts, repeat(single.correct), repeat(single.exact))
