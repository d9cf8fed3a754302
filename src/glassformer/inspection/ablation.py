"""Ablations: remove a head, an attention edge or a token, and measure the effect on the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from glassformer.blocks import reference
from glassformer.blocks.attention import Kernel, MultiHeadAttention, explicit_scores
from glassformer.blocks.masks import Mask
from glassformer.core.errors import ErrorDetail
from glassformer.data.batching import Batch
from glassformer.evaluation.intervals import Interval, ratio_interval
from glassformer.evaluation.metrics import Tally
from glassformer.generation import DecodingConfig
from glassformer.inspection.examples import ExampleGroup, ReferenceInput, group_examples, next_token
from glassformer.inspection.maps import Selection, Trust, check_index
from glassformer.inspection.record import HeadId, attention_at, capture, layers, select_rows, swap_kernels
from glassformer.models.base import Model, evaluating
from glassformer.models.task_types import CausalLM, Seq2Seq, SequenceClassification, TokenClassification
from glassformer.tasks.base import Task

Ablation = Literal["zero", "mean"]
ABLATIONS: tuple[Ablation, ...] = ("zero", "mean")

LITTLE_WEIGHT = 0.01
"""Attention weight below which an ablated edge gets a note that names the largest weight of its row."""

Change = Callable[[], AbstractContextManager[None]]
"""Function that returns a context manager. The ablation is active inside its `with` block."""


@dataclass(frozen=True)
class Edge:
    """Attention edge: the cell of one head's attention map in which one query attends to one key."""

    where: HeadId
    query: int
    key: int

    def __str__(self) -> str:
        return f"{self.where}, from query {self.query} to key {self.key}"


def ablate_head(model: Model, where: HeadId, ablation: Ablation, groups: Sequence[ExampleGroup]) -> Change:
    """Return an ablation that sets a head's output to zero (`zero`) or to its mean output (`mean`).

    The mean is taken over all tokens of the examples in `groups`.
    """
    if ablation not in ABLATIONS:
        raise ErrorDetail("no such ablation", path="ablation", value=ablation, allowed=list(ABLATIONS))
    attention_at(model, where)
    constant_K = mean_outputs(model, groups, [where])[where] if ablation == "mean" else torch.tensor(0.0)
    return ablate_heads(model, {where: constant_K})


def ablate_heads(model: Model, constants: Mapping[HeadId, Tensor]) -> Change:
    """Return an ablation that replaces the output of several heads by a constant (K) each."""
    by_attention: dict[MultiHeadAttention, dict[int, Tensor]] = {}
    for where, constant_K in constants.items():
        by_attention.setdefault(attention_at(model, where), {})[where.head] = constant_K

    def replaced(found: Mapping[int, Tensor]) -> Callable[[Tensor], Tensor]:
        def replace_heads(mixed_BHLK: Tensor) -> Tensor:
            mixed_BHLK = mixed_BHLK.clone()
            for head, constant_K in found.items():
                mixed_BHLK[:, head] = constant_K.to(mixed_BHLK)
            return mixed_BHLK

        return replace_heads

    kernels = {
        attention: _then(attention.kernel, replaced(found)) for attention, found in by_attention.items()
    }
    return lambda: swap_kernels(model, kernels)


def _then(inner: Kernel, change: Callable[[Tensor], Tensor]) -> Kernel:
    """Return an attention kernel that applies `change` to the output of `inner` (B, H, L, K)."""

    def kernel(
        q_BHLK: Tensor, k_BHMK: Tensor, v_BHMK: Tensor, mask: Mask, bias: Tensor | None, dropout: float
    ) -> Tensor:
        return change(inner(q_BHLK, k_BHMK, v_BHMK, mask, bias, dropout))

    return kernel


def all_heads(model: Model) -> list[HeadId]:
    """Return every attention head of a model, in the order of its sites and layers."""
    return [
        HeadId(site, layer, head)
        for site, modules in layers(model).items()
        for layer, attention in enumerate(modules)
        for head in range(attention.num_heads)
    ]


def mean_outputs(
    model: Model, groups: Sequence[ExampleGroup], heads: Sequence[HeadId]
) -> dict[HeadId, Tensor]:
    """Return each head's output before the output projection (K), averaged over all tokens of `groups`."""
    device, wanted = next(model.parameters()).device, {attention_at(model, where) for where in heads}
    sums_HK: dict[MultiHeadAttention, Tensor] = {}
    counts = dict.fromkeys(wanted, 0)

    def adder(attention: MultiHeadAttention) -> Callable[[Tensor], Tensor]:
        def add(mixed_BHLK: Tensor) -> Tensor:
            total_HK = mixed_BHLK.double().sum((0, 2)).cpu()
            sums_HK[attention] = sums_HK[attention] + total_HK if attention in sums_HK else total_HK
            counts[attention] += mixed_BHLK.shape[0] * mixed_BHLK.shape[2]
            return mixed_BHLK

        return add

    kernels = {attention: _then(attention.kernel, adder(attention)) for attention in wanted}
    with torch.inference_mode(), swap_kernels(model, kernels):
        for group in groups:
            model.hidden(**group.batch.to(device).inputs)
    found = {where: attention_at(model, where) for where in heads}
    return {where: sums_HK[each][where.head] / max(counts[each], 1) for where, each in found.items()}


def ablate_edge(model: Model, edge: Edge, *, renormalise: bool = True) -> Change:
    """Return an ablation that removes one attention weight.

    By default the rest of the row is renormalised to sum to 1, as if the key were masked. Without
    `renormalise` the row sums to less than 1, which never happens in training.
    """
    attention, where = attention_at(model, edge.where), edge.where
    inner = attention.kernel

    def change() -> AbstractContextManager[None]:
        seen = 0  # queries so far: a decoding makes one call per step

        def kernel(
            q_BHLK: Tensor, k_BHMK: Tensor, v_BHMK: Tensor, mask: Mask, bias: Tensor | None, dropout: float
        ) -> Tensor:
            nonlocal seen
            mixed_BHLK = inner(q_BHLK, k_BHMK, v_BHMK, mask, bias, dropout)
            queries, keys = q_BHLK.shape[2], k_BHMK.shape[2]
            # With a cache each step has one query. In self-attention the number of keys gives its position;
            # in cross-attention the queries must be counted.
            first = seen if where.site == "cross" else keys - queries
            seen += queries
            at = edge.query - first
            if not (0 <= at < queries and edge.key < keys):
                return mixed_BHLK
            heads, rows = slice(where.head, where.head + 1), slice(at, at + 1)

            def cell(x: Tensor | None) -> Tensor | None:
                return None if x is None else select_rows(x, queries, keys, [where.head], range(at, at + 1))

            scores_B11M = explicit_scores(q_BHLK[:, heads, rows], k_BHMK[:, heads], cell(bias))
            allowed = cell(mask.dense(queries, keys, q_BHLK.device))
            allowed_B11M = torch.ones_like(scores_B11M, dtype=torch.bool)
            if allowed is not None:
                allowed_B11M = allowed_B11M & allowed
            if renormalise:
                allowed_B11M[..., edge.key] = False
            weights_B11M = reference.weights(scores_B11M, allowed_B11M)
            weights_B11M[..., edge.key] = 0.0
            mixed_BHLK = mixed_BHLK.clone()
            mixed_BHLK[:, heads, rows] = weights_B11M @ v_BHMK[:, heads]
            return mixed_BHLK

        return swap_kernels(model, {attention: kernel})

    return change


def check_edge(task: Task, edge: Edge, group: ExampleGroup) -> None:
    """Raise ErrorDetail if the attention maps of these inputs have no such edge, or if a mask forbids it.

    A generated token may have any position up to the maximum target length, because an output may be longer
    than the reference.
    """
    generated = task.task_type.max_target_length if isinstance(task.task_type, Seq2Seq) else group.keys
    queries = group.keys if edge.where.site == "encoder" else generated
    keys = generated if edge.where.site == "decoder" else group.keys
    check_index("query", edge.query, queries)
    check_index("key", edge.key, keys)
    is_causal = edge.where.site == "decoder" or isinstance(task.task_type, CausalLM)
    if is_causal and edge.key > edge.query:
        raise ErrorDetail(
            "the edge is masked: a token cannot attend to a later one",
            path="key",
            value=edge.key,
            hint=f"choose a key of at most {edge.query}",
        )


def edge_note(model: Model, edge: Edge, group: ExampleGroup) -> list[str]:
    """Return a note if the edge has next to no weight in the first example, with the row's largest weight.

    There is no note if the reference output ends before the query.
    """
    where, inputs = edge.where, group.batch.to(next(model.parameters()).device).inputs
    row = Selection([where.layer], [where.head], (edge.query, edge.query + 1), where.site)
    with torch.inference_mode(), capture(model, row) as recorder:
        model(**inputs)
    (record,) = recorder.records[where.site]
    if not record.rows or edge.key >= record.weights_BHLM.shape[3]:
        return []
    weights_M = record.weights_BHLM[0, 0, 0]
    key, weight = int(weights_M.argmax()), float(weights_M[edge.key])
    if weight >= LITTLE_WEIGHT:
        return []
    best = f"{where.site}:{where.layer}:{where.head}:{edge.query}:{key}"
    return [
        f"weight of this edge {weight:.3f}, so its ablation changes little; the row's largest is key {key}"
        f" with {float(weights_M[key]):.3f} ({best})"
    ]


def has_same_cell(task: Task, group: ExampleGroup, edge: Edge) -> Callable[[int, int], bool]:
    """Return a predicate on (input length, target length) for examples whose maps contain `edge`.

    An example's input must be as long as the one in `group`. For an edge of a decoder or cross-attention, its
    target must include the query. The text of a language model only needs to include query and key.
    """
    tokens = len(group.inputs[0])
    furthest = max(edge.query, edge.key)
    if isinstance(task.task_type, CausalLM):
        return lambda length, _: length > furthest + 1
    if edge.where.site == "encoder":
        return lambda length, _: length == tokens
    return lambda length, target: length == tokens and target > edge.query + 1


@dataclass(frozen=True)
class Effect:
    """Values of one metric before and after an intervention, such as an ablation."""

    before: float
    after: float
    change: float
    interval: Interval | None
    """95 % confidence interval of the change; None for a single example, or if all change by one amount."""


@dataclass(frozen=True)
class Effects:
    """Effects of one intervention, such as an ablation, on the metrics and on the output for one input."""

    intervention: str
    """Description of the intervention, for display."""
    examples: int
    metrics: dict[str, Effect]
    reference: str
    """Description of the reference outputs that loss and accuracy are measured against."""
    output: dict[str, Any] | None = None
    """Model output as text, under the keys `before` and `after`; None if no single input was given."""
    input_metrics: dict[str, Effect] | None = None
    """Effects on the given input alone, if `metrics` cover several examples."""
    trust: Trust = "cause"
    notes: list[str] = field(default_factory=list)
    warning: str | None = None
    """Reason not to trust the output for the given input, such as a length that training did not have."""

    def document(self) -> dict[str, Any]:
        """Return the effects as a JSON-serialisable dict."""
        return asdict(self)


ExampleMetrics = dict[str, np.ndarray]
"""Arrays with one entry per example: summed `loss` and number of targets (`count`). The number of `correct`
targets and `exact` match are included if the task has them."""


def measure_examples(
    model: Model,
    task: Task,
    groups: Sequence[ExampleGroup],
    decoding: DecodingConfig | None,
    change: Change = nullcontext,
) -> ExampleMetrics:
    """Return the metrics of each example: loss with teacher forcing, exact match of the decoded output."""
    device = next(model.parameters()).device
    tally, exact = Tally(model, is_thorough=True), []
    with evaluating(model), torch.inference_mode():
        for group in groups:
            with change():
                tally.add(group.batch.to(device))
            if group.references is not None:
                with change():
                    predictions = task.predict(model, group.inputs, decoding)
                exact += [
                    best[0].tokens == right for best, right in zip(predictions, group.references, strict=True)
                ]
    columns = {name: tally.column(name) for name in ("loss", "count", "correct")}
    if exact:
        columns["exact"] = np.array(exact)
    elif isinstance(task.task_type, TokenClassification):
        columns["exact"] = columns["correct"] == columns["count"]
    elif isinstance(task.task_type, SequenceClassification):
        columns["correct"] = tally.column("predicted") == tally.column("actual")
        if task.task_type.is_regression:
            del columns["correct"]
    return {name: column.astype(np.float64) for name, column in columns.items()}


def compare(before: ExampleMetrics, after: ExampleMetrics) -> dict[str, Effect]:
    """Return the change of each metric on the same examples, with paired bootstrap confidence intervals."""
    count, ones = before["count"], np.ones(len(before["count"]))
    ratios = (("loss", "loss", count), ("accuracy", "correct", count), ("exact_match", "exact", ones))
    return {name: _effect(before[key], after[key], total) for name, key, total in ratios if key in before}


def _effect(before: np.ndarray, after: np.ndarray, count: np.ndarray) -> Effect:
    """Return the effect on a metric that is a ratio of two sums over examples; `count` is the denominator."""
    total = max(float(count.sum()), 1.0)
    old, new = float(before.sum()) / total, float(after.sum()) / total
    interval = ratio_interval(after - before, count) if len(before) > 1 else None
    return Effect(old, new, new - old, interval)


def measure_effects(
    description: str,
    model: Model,
    task: Task,
    change: Change,
    *,
    groups: Sequence[ExampleGroup] = (),
    example: ReferenceInput | None = None,
    decoding: DecodingConfig | None = None,
) -> Effects:
    """Measure the effects of an ablation on examples in `groups`, or on `example` if `groups` is empty."""

    def compared(on: Sequence[ExampleGroup]) -> dict[str, Effect]:
        return compare(*(measure_examples(model, task, on, decoding, each) for each in (nullcontext, change)))

    output, input_metrics = None, None
    if example is not None:
        input_metrics = compared([example.group])
        output = {
            name: show_output(model, task, example.group.inputs[0], decoding, each)
            for name, each in (("before", nullcontext), ("after", change))
        }
    if not groups:
        if example is None or input_metrics is None:
            raise ErrorDetail(
                "there is no input and no example", path="examples", hint="give an input or --examples 64"
            )
        return Effects(description, 1, input_metrics, example.reference, output)
    count, reference = sum(len(group.inputs) for group in groups), "the correct outputs of the examples"
    return Effects(description, count, compared(groups), reference, output, input_metrics)


def head_effects(
    model: Model,
    task: Task,
    where: HeadId,
    ablation: Ablation,
    groups: Sequence[ExampleGroup],
    *,
    example: ReferenceInput | None = None,
    decoding: DecodingConfig | None = None,
) -> Effects:
    """Ablate one attention head and return the effects on the metrics, and on `example` if given."""
    change = ablate_head(model, where, ablation, groups)
    description = f"{where} ablated ({ablation})"
    return measure_effects(
        description, model, task, change, groups=groups, example=example, decoding=decoding
    )


def ablate_each_head(
    model: Model,
    task: Task,
    ablation: Ablation,
    groups: Sequence[ExampleGroup],
    decoding: DecodingConfig | None = None,
) -> list[dict[str, Any]]:
    """Ablate each head in turn; return one JSON-serialisable dict per head with the effect on the metrics."""
    before = measure_examples(model, task, groups, decoding)
    found = []
    for where in all_heads(model):
        change = ablate_head(model, where, ablation, groups)
        after = measure_examples(model, task, groups, decoding, change)
        metrics = {name: asdict(effect) for name, effect in compare(before, after).items()}
        trust: Trust = "cause"
        found.append({**asdict(where), "ablation": ablation, "trust": trust, "metrics": metrics})
    return found


def edge_effects(
    model: Model,
    task: Task,
    edge: Edge,
    example: ReferenceInput,
    *,
    split: str,
    examples: int | None = None,
    renormalise: bool = True,
    decoding: DecodingConfig | None = None,
) -> Effects:
    """Ablate one attention edge, such as query 3 to key 5; return the effects on `example`.

    If `examples` is given, also ablate the same edge in up to that many examples of `split`.
    """
    change = ablate_edge(model, edge, renormalise=renormalise)
    check_edge(task, edge, example.group)
    groups, notes = [], edge_note(model, edge, example.group)
    if examples is not None:
        groups = group_examples(task, split, examples, has_same_cell(task, example.group, edge))
        if not groups:
            notes += [f"no example of the {split} split has the length of this input"]
    description = f"{edge} ablated" + ("" if renormalise else ", row not renormalised")
    effects = measure_effects(
        description, model, task, change, groups=groups, example=example, decoding=decoding
    )
    return replace(effects, notes=notes)


def show_output(
    model: Model,
    task: Task,
    tokens: np.ndarray,
    decoding: DecodingConfig | None,
    change: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> str:
    """Return the model's output as text. For a language model, it is the most likely next token."""
    with change(), evaluating(model):
        if isinstance(task.task_type, CausalLM):
            return " ".join(task.output_symbols([next_token(model, tokens)]))
        best = task.predict(model, [tokens], decoding)[0][0]
    return task.show_prediction(best)


def token_effects(
    model: Model,
    task: Task,
    example: ReferenceInput,
    position: int,
    *,
    split: str,
    examples: int,
    decoding: DecodingConfig | None = None,
) -> Effects:
    """Replace one input token by tokens that other examples have at its position, and return the effects.

    Each replacement occurs in the data, so the model reads nothing unfamiliar. Loss and accuracy are measured
    against the original reference output.
    """
    tokens = example.group.inputs[0]
    check_index("token", position, len(tokens), path="position")
    found = group_examples(task, split, examples, lambda length, _: length > position)
    drawn = [int(row[position]) for group in found for row in group.inputs]
    others = [token for token in drawn if token != int(tokens[position])]
    name = example.labels[position]
    if not others:
        raise ErrorDetail(
            f"no replacement found: all {len(drawn)} examples have {name!r} at this position",
            path="position",
            value=position,
            hint="choose another token, or more examples",
        )
    rows = [np.array([*tokens[:position], other, *tokens[position + 1 :]]) for other in others]
    before = measure_examples(model, task, [example.group], decoding)
    after = measure_examples(model, task, [_with_inputs(example.group, rows)], decoding)
    outputs = [show_output(model, task, row, decoding) for row in rows]
    (commonest, times), *fewer = Counter(outputs).most_common()
    ties = 1 + sum(count == times for _, count in fewer)
    one = "the most frequent output" if ties == 1 else f"one of {ties} equally frequent outputs"
    return Effects(
        f"token {position}, {name!r}, replaced by {len(rows)} tokens that other examples have there",
        len(rows),
        compare({name: column.repeat(len(rows)) for name, column in before.items()}, after),
        example.reference,
        {
            "before": show_output(model, task, tokens, decoding),
            "after": commonest,
            "others": [
                {"token": shown, "output": output}
                for shown, output in zip(task.input_symbols(others), outputs, strict=True)
            ],
        },
        notes=[f"the output after is {one} of all replacements"],
    )


def _with_inputs(group: ExampleGroup, rows: list[np.ndarray]) -> ExampleGroup:
    """Return a group with `rows` as inputs. Every row has the target of the single example in `group`."""
    batch, count = group.batch, len(rows)
    tokens_BL = batch.inputs["tokens"]
    assert tokens_BL is not None
    length = tokens_BL.shape[1]
    inputs = {name: None if x is None else x.expand(count, *x.shape[1:]) for name, x in batch.inputs.items()}
    inputs["tokens"] = torch.from_numpy(np.stack(rows))[:, :length].to(tokens_BL)
    targets = batch.targets.expand(count, *batch.targets.shape[1:])
    references = None if group.references is None else group.references * count
    batch = Batch(inputs, targets, np.arange(count))
    return replace(group, batch=batch, inputs=rows, references=references)
