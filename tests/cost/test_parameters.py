"""Cost of a model: closed forms against built models, traces against real passes and allocations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from glassformer.blocks.embedding import InputConfig
from glassformer.blocks.feed_forward import FeedForwardConfig
from glassformer.blocks.heads import OutputConfig, PoolingConfig
from glassformer.blocks.norms import NormConfig
from glassformer.blocks.positions import PositionConfig
from glassformer.core.registry import Kind, kinds, register, unregister
from glassformer.cost.parameters import Size, count_by_module, count_tokens, measure, trace
from glassformer.data.batching import (
    Batch,
    Examples,
    collate_causal_lm,
    collate_seq2seq,
    collate_sequence_classification,
    collate_token_classification,
)
from glassformer.models.base import Model
from glassformer.models.closed_form import Count, compare, starred
from glassformer.models.task_types import (
    CausalLM,
    MaskedLM,
    Seq2Seq,
    SequenceClassification,
    TaskType,
    TokenClassification,
)
from glassformer.models.transformer import TransformerConfig
from glassformer.training.optimizers import OptimizerConfig

VOCABULARY, LENGTH, TARGET_LENGTH = 100, 32, 24

TASK_TYPES: dict[str, TaskType] = {
    "per token": TokenClassification(VOCABULARY, LENGTH, classes=7),
    "per sequence": SequenceClassification(VOCABULARY, LENGTH, outputs=2),
    "real number": SequenceClassification(VOCABULARY, LENGTH, outputs=1, is_regression=True),
    "next token": CausalLM(VOCABULARY, LENGTH),
    "masked token": MaskedLM(VOCABULARY, LENGTH),
    "sequence to sequence": Seq2Seq(VOCABULARY, LENGTH, 60, TARGET_LENGTH),
    "shared vocabulary": Seq2Seq(VOCABULARY, LENGTH, VOCABULARY, TARGET_LENGTH, True),
}

PARTS: dict[str, type[Kind]] = {
    "position": PositionConfig,
    "norm": NormConfig,
    "feed_forward": FeedForwardConfig,
    "input": InputConfig,
    "output": OutputConfig,
    "pooling": PoolingConfig,
}

EVERY_PART = [(part, kind) for part, family in PARTS.items() for kind in kinds(family)]

HAND_COUNTED = {
    "num_layers": 4,
    "num_heads": 2,
    "hidden_dim": 200,
    "feed_forward_dim": 200,
    "norm_placement": "post",
    "feed_forward": "relu",
}


def make_batch(task_type: TaskType, sequences: int = 8) -> Batch:
    """Make a batch without padding, with integer or real targets as the task type needs."""
    rng = np.random.default_rng(0)
    indices = np.arange(sequences)
    inputs = rng.integers(0, task_type.vocabulary, (sequences, task_type.max_length))
    match task_type:
        case TokenClassification():
            return collate_token_classification(Examples(inputs, inputs % task_type.classes), indices)
        case SequenceClassification(is_regression=True):
            return collate_sequence_classification(Examples(inputs, rng.random(sequences)), indices)
        case SequenceClassification():
            return collate_sequence_classification(Examples(inputs, inputs[:, 0] % 2), indices)
        case Seq2Seq():
            targets = rng.integers(0, task_type.target_vocabulary, (sequences, task_type.max_target_length))
            return collate_seq2seq(Examples(inputs, targets), indices)
        case CausalLM():
            return collate_causal_lm(Examples(inputs, inputs), indices)
        case _:
            return collate_token_classification(Examples(inputs, inputs), indices)


def size_of(config: TransformerConfig, task_type: TaskType, **options: Any) -> Size:
    return measure(lambda: config.build(task_type), make_batch(task_type), **options)


def assert_formula_holds(config: TransformerConfig, task_type: TaskType) -> None:
    with torch.device("meta"):
        model = config.build(task_type)
    comparisons = compare(config.parameter_terms(task_type), count_by_module(model))
    assert [comparison for comparison in comparisons if not comparison.agrees] == []
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert sum(config.parameter_terms(task_type).values()) == counted


# ---------------------------------------------------------------- parameters


def test_hand_counted_models() -> None:
    config = TransformerConfig.model_validate(HAND_COUNTED)
    classifier = size_of(config, SequenceClassification(VOCABULARY, LENGTH, outputs=2))
    language_model = size_of(config, CausalLM(VOCABULARY, LENGTH))
    encoder = sum(count for path, count in classifier.by_module.items() if path != "head")
    assert (encoder, classifier.total, language_model.total) == (988_000, 988_402, 1_008_100)


@pytest.mark.parametrize("task_type", TASK_TYPES.values(), ids=TASK_TYPES.keys())
@pytest.mark.parametrize(("part", "kind"), EVERY_PART)
def test_formula_holds_for_every_kind_and_task_type(part: str, kind: str, task_type: TaskType) -> None:
    assert_formula_holds(TransformerConfig.model_validate({part: kind}), task_type)


@st.composite
def configs(draw: st.DrawFn) -> TransformerConfig:
    heads = draw(st.sampled_from([1, 2, 4]))
    return TransformerConfig.model_validate(
        {part: draw(st.sampled_from(sorted(kinds(family)))) for part, family in PARTS.items()}
        | {
            "num_layers": draw(st.integers(1, 3)),
            "decoder_layers": draw(st.sampled_from([None, 1, 2])),
            "num_heads": heads,
            "num_key_value_heads": draw(st.sampled_from([None, 1, heads])),
            "hidden_dim": heads * draw(st.sampled_from([2, 6])),
            "feed_forward_dim": draw(st.integers(1, 30)),
            "bias": draw(st.booleans()),
            "tied_output": draw(st.booleans()),
            "norm_placement": draw(st.sampled_from(["pre", "post"])),
            "final_norm": draw(st.sampled_from([None, True, False])),
            "embedding_norm": draw(st.booleans()),
        }
    )


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(config=configs(), task_type=st.sampled_from(list(TASK_TYPES.values())))
def test_formula_holds_for_all_combinations(config: TransformerConfig, task_type: TaskType) -> None:
    assert_formula_holds(config, task_type)


def test_a_count_shows_its_formula() -> None:
    a, b = Count(6, "a"), Count(3, "b")
    cases = {
        2 * a * b + a: ("2 × a × b + a", "2 × 6 × 3 + 6", 42),
        (a + b) * a: ("(a + b) × a", "(6 + 3) × 6", 54),
        a - (b - 1): ("a − (b − 1)", "6 − (3 − 1)", 4),
        a // (b * 2): ("a ÷ (b × 2)", "6 ÷ (3 × 2)", 1),
        33 * (a // b): ("33 × (a ÷ b)", "33 × (6 ÷ 3)", 66),
        a * b // 4 - 1: ("a × b ÷ 4 − 1", "6 × 3 ÷ 4 − 1", 3),
        sum([a, b, 1]): ("a + b + 1", "6 + 3 + 1", 10),
        1 * a: ("a", "6", 6),
    }
    for count, expected in cases.items():
        assert isinstance(count, Count)
        assert (count.formula, count.numbers, int(count)) == expected


def test_comparison_finds_wrong_missing_and_extra_terms() -> None:
    by_module = {
        "embedding.vectors.table": 20,
        "encoder.layers.0.up": 3,
        "encoder.layers.1.up": 3,
        "extra": 5,
    }
    terms = {"embedding.vectors": 20, "encoder.layers.*.up": 7, "absent": 1}
    found = {c.path: (c.term, c.counted, c.agrees) for c in compare(terms, by_module)}
    assert found == {
        "embedding.vectors": (20, 20, True),
        "encoder.layers.*.up": (7, 6, False),
        "absent": (1, 0, False),
        "extra": (0, 5, False),
    }
    assert all(comparison.agrees for comparison in compare({}, by_module)), (
        "no formula, nothing to hold it to"
    )


def test_only_blocks_are_merged() -> None:
    assert starred("encoder.layers.12.attention.output") == "encoder.layers.*.attention.output"
    assert starred("head.body.0") == "head.body.0"


# ---------------------------------------------------------------- FLOPs


def expected_flops(config: TransformerConfig, task_type: TaskType, batch: Batch) -> int:
    """Textbook FLOPs of a model with a linear output: 2 per weight and token, 4·L·M·D per attention."""
    tokens = batch.inputs["tokens"]
    assert tokens is not None
    sequences, length = tokens.shape
    width, hidden = config.hidden_dim, config.feed_forward_dim
    projections, feed_forward = 4 * width * width, config.feed_forward.matrices() * width * hidden

    def stack(layers: int, positions: int) -> int:
        return layers * (2 * positions * (projections + feed_forward) + 4 * positions * positions * width)

    total = stack(config.num_layers, length)
    match task_type:
        case Seq2Seq():
            target = batch.inputs["target"]
            assert target is not None
            written = target.shape[1]
            crossing = 2 * 2 * width * width * (written + length) + 4 * written * length * width
            total += stack(config.num_decoder_layers, written) + config.num_decoder_layers * crossing
            total += 2 * written * width * task_type.target_vocabulary
        case SequenceClassification():
            total += 2 * width * task_type.outputs
        case TokenClassification():
            total += 2 * length * width * task_type.classes
        case _:
            total += 2 * length * width * task_type.vocabulary
    return sequences * total


@pytest.mark.parametrize("task_type", TASK_TYPES.values(), ids=TASK_TYPES.keys())
@pytest.mark.parametrize("kind", ["gelu", "swiglu"])
def test_flops_equal_the_textbook_formula(task_type: TaskType, kind: str) -> None:
    config = TransformerConfig.model_validate({"feed_forward": kind, "decoder_layers": 1})
    assert size_of(config, task_type).forward_flops == expected_flops(
        config, task_type, make_batch(task_type)
    )


@pytest.mark.parametrize("task_type", TASK_TYPES.values(), ids=TASK_TYPES.keys())
@pytest.mark.parametrize("position", ["relative", "rotary"])
def test_flops_equal_those_that_pytorch_counts_in_a_real_pass(task_type: TaskType, position: str) -> None:
    """Count with the unfused kernel: PyTorch's counter does not know the CPU's fused one."""
    config = TransformerConfig.model_validate({"position": position, "output": "mlp", "pooling": "attention"})
    model, batch = config.build(task_type), make_batch(task_type)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(**batch.inputs)
    assert size_of(config, task_type).forward_flops == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_training_flops_are_near_those_of_a_real_backward_pass() -> None:
    task_type = CausalLM(VOCABULARY, LENGTH)
    config = TransformerConfig()
    model, batch = config.build(task_type), make_batch(task_type)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model.head.compute_loss(model(**batch.inputs), batch.targets).loss.backward()
    training = size_of(config, task_type).flops_per_token()["training"]
    assert training == pytest.approx(counter.get_total_flops() / count_tokens(batch), rel=0.01)


def test_tokens_of_both_sides_count_and_the_padding_mask_does_not() -> None:
    indices = np.arange(2)
    inputs = [np.arange(5), np.arange(3)]
    batch = collate_seq2seq(Examples(inputs, [np.arange(4), np.arange(4)]), indices)
    assert batch.inputs["mask"] is not None
    assert count_tokens(batch) == 2 * 5 + 2 * 3


# ---------------------------------------------------------------- memory


def allocated_by(run: Callable[[], object]) -> int:
    """Bytes still allocated after `run` has returned, by PyTorch's profiler."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = run()
    allocated = sum(event.self_cpu_memory_usage for event in profiler.events())
    del kept
    return allocated


def assert_activations_match_an_allocation(
    config: TransformerConfig, task_type: TaskType, batch: Batch
) -> None:
    model = config.build(task_type)
    outputs = model(**batch.inputs)  # warm up: buffers allocated once are allocated now
    allocated = allocated_by(lambda: model(**batch.inputs)) - outputs.nbytes
    traced = measure(lambda: config.build(task_type), batch).activation_bytes
    assert traced == pytest.approx(allocated, rel=0.01)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("task_type", TASK_TYPES.values(), ids=TASK_TYPES.keys())
def test_activations_match_what_a_forward_pass_allocates(task_type: TaskType, dropout: float) -> None:
    config = TransformerConfig(dropout=dropout, attention_dropout=dropout)
    assert_activations_match_an_allocation(config, task_type, make_batch(task_type))


@pytest.mark.parametrize(("part", "kind"), EVERY_PART)
def test_activations_of_every_kind_match_an_allocation(part: str, kind: str) -> None:
    task_type = SequenceClassification(VOCABULARY, LENGTH, outputs=2)
    config = TransformerConfig.model_validate({part: kind, "num_key_value_heads": 2})
    assert_activations_match_an_allocation(config, task_type, make_batch(task_type))


def test_padding_and_its_mask_are_counted() -> None:
    task_type = TokenClassification(VOCABULARY, LENGTH, classes=7)
    rows = [np.zeros(length, dtype=np.int64) for length in (LENGTH, 5, 9, 1)]
    batch = collate_token_classification(Examples(rows, rows), np.arange(4))
    config = TransformerConfig()
    traced, model = measure(lambda: config.build(task_type), batch), config.build(task_type)
    assert (traced.forward_flops, traced.activation_bytes) == trace(model, batch.inputs)
    assert_activations_match_an_allocation(config, task_type, batch)


def test_mixed_precision_needs_less_memory() -> None:
    task_type = CausalLM(VOCABULARY, LENGTH)
    single, mixed = (
        size_of(TransformerConfig(), task_type, dtype=d) for d in (torch.float32, torch.bfloat16)
    )
    assert single.activation_bytes is not None and mixed.activation_bytes is not None
    assert mixed.activation_bytes < 0.8 * single.activation_bytes
    assert mixed.weight_bytes == single.weight_bytes


@pytest.mark.parametrize("kind", kinds(OptimizerConfig))
def test_weights_gradients_and_optimizer_match_a_real_step(kind: str) -> None:
    optimizer_config = kinds(OptimizerConfig)[kind]()  # type: ignore[call-arg]
    assert isinstance(optimizer_config, OptimizerConfig)
    task_type = CausalLM(VOCABULARY, LENGTH)
    config = TransformerConfig(dropout=0.0)
    model, batch = config.build(task_type), make_batch(task_type)
    optimizer = optimizer_config.build(model)
    model.compute_loss(batch.inputs, batch.targets).loss.backward()
    optimizer.step()
    attention_mask = {
        "weights": sum(parameter.nbytes for parameter in model.parameters()),
        "gradients": sum(p.grad.nbytes for p in model.parameters() if p.grad is not None),
        "optimizer": sum(
            value.nbytes
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, Tensor)
        ),
    }
    memory = size_of(config, task_type).memory_bytes(optimizer_config.state_floats_per_parameter)
    if kind == "muon":  # one state fewer for matrices of blocks: the estimate is an upper bound
        matrices = sum(p.nbytes for name, p in model.named_parameters() if ".layers." in name and p.ndim == 2)
        attention_mask["optimizer"] += matrices
    for name, count in attention_mask.items():
        assert memory[name] == pytest.approx(count, rel=0.001), name  # AdamW also stores its step counts
    assert memory["total"] == sum(count or 0 for name, count in memory.items() if name != "total")


def test_averaged_weights_are_one_more_copy() -> None:
    size = size_of(TransformerConfig(), CausalLM(VOCABULARY, LENGTH))
    assert size.memory_bytes(2)["average"] == 0
    assert size.memory_bytes(2, is_averaged=True)["average"] == size.weight_bytes
    whole, split = size.memory_bytes(2), size.memory_bytes(2, gradients=4, concurrency=0.5)
    assert split["gradients"] == 4 * size.trainable_bytes
    assert split["activations"] == round(whole["activations"] / 2)
    assert split["total"] == sum(value for name, value in split.items() if name != "total")


def test_frozen_parameters_need_no_gradient() -> None:
    task_type, config = CausalLM(VOCABULARY, LENGTH), TransformerConfig()

    def build() -> Model:
        model = config.build(task_type)
        model.head.requires_grad_(False)
        return model

    size = measure(build, make_batch(task_type))
    assert size.weight_bytes - size.trainable_bytes == 4 * size.by_module["head"]


def test_a_model_larger_than_memory_can_be_measured() -> None:
    config = TransformerConfig(num_layers=2, hidden_dim=20_480, feed_forward_dim=81_920)
    size = size_of(config, CausalLM(50_000, LENGTH))
    assert size.weight_bytes > 40 * 2**30
    assert size.activation_bytes


# ---------------------------------------------------------------- plug-ins


class RealOnly(nn.Module):
    """Pooling whose shapes depend on values: it selects the positions that are not padding."""

    def forward(self, x_BLD: Tensor, attention_mask_BL: Tensor | None) -> Tensor:
        picked = x_BLD[x_BLD.sum(-1) > 0]
        return x_BLD[:, 0] + picked.sum()


@pytest.fixture
def data_dependent_pooling() -> Iterator[str]:
    @register
    class RealOnlyConfig(PoolingConfig):
        kind: Literal["real-only"] = "real-only"

        def build(self, dim: int) -> nn.Module:
            return RealOnly()

    yield "real-only"
    unregister(RealOnlyConfig)


def test_a_model_that_cannot_be_traced_is_still_counted(data_dependent_pooling: str) -> None:
    config = TransformerConfig.model_validate({"pooling": data_dependent_pooling})
    size = size_of(config, SequenceClassification(VOCABULARY, LENGTH, outputs=2))
    assert "depend on its data" in size.why_not
    assert size.total == sum(
        config.parameter_terms(SequenceClassification(VOCABULARY, LENGTH, outputs=2)).values()
    )
    assert size.flops_per_token() == {"forward": None, "training": None}
    memory = size.memory_bytes(2)
    assert memory["activations"] is None and memory["total"] is None
    assert memory["weights"] == 4 * size.total
