"""Each check detects a model, task or engine that is broken in one way."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.blocks.attention import (
    Kernel,
    LayerCache,
    MultiHeadAttention,
    explicit_scores,
    fused_kernel,
)
from glassformer.blocks.heads import ClassHead, LossOutput
from glassformer.blocks.masks import Mask
from glassformer.blocks.positions import Position
from glassformer.data.batching import Batch
from glassformer.doctor import checks, learning
from glassformer.doctor.checks import CheckContext
from glassformer.doctor.report import Measurement
from glassformer.doctor.runner import check_model
from glassformer.models.base import DecodingState, Model
from glassformer.models.seq2seq import EncoderDecoder
from glassformer.models.transformer import CausalLanguageModel
from glassformer.training.checkpoints import Checkpoint, CheckpointStore
from glassformer.training.trainer import Trainer

ContextOf = Callable[..., CheckContext]
Check = Callable[[CheckContext], Measurement]


def found(check: Check, context: CheckContext) -> Measurement:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return check(context)


def assert_caught(check: Check, context: CheckContext, detail: str = "") -> None:
    measurement = found(check, context)
    assert measurement.verdict == "failed"
    assert detail in measurement.detail


def with_kernel(kernel: Kernel) -> Callable[[Model], None]:
    def sabotage(model: Model) -> None:
        for module in model.modules():
            if isinstance(module, MultiHeadAttention):
                module.kernel = kernel

    return sabotage


# ---------------------------------------------------------------- kernels


def not_causal(q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None, dropout: float) -> Tensor:
    return fused_kernel(q, k, v, Mask(allowed=mask.allowed), bias, dropout)


def one_too_far(q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None, dropout: float) -> Tensor:
    """Causal mask that is off by one."""
    if not mask.is_causal:
        return fused_kernel(q, k, v, mask, bias, dropout)
    allowed = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2] + 1)
    return fused_kernel(q, k, v, Mask(allowed=allowed), bias, dropout)


def faint_leak(q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None, dropout: float) -> Tensor:
    """Mask with −10 instead of −∞, which lets some ten-thousandths of the weight through."""
    scores = explicit_scores(q, k, bias)
    allowed = mask.dense(q.shape[2], k.shape[2], q.device)
    return (scores if allowed is None else scores - 10.0 * ~allowed).softmax(-1) @ v


def not_padded(q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None, dropout: float) -> Tensor:
    return fused_kernel(q, k, v, Mask(is_causal=mask.is_causal), bias, dropout)


def wrong_scale(q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None, dropout: float) -> Tensor:
    return fused_kernel(q / math.sqrt(q.shape[-1]), k, v, mask, bias, dropout)


def wrong_gradient(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None, dropout: float
) -> Tensor:
    """Correct outputs, but keys get no gradient."""
    return fused_kernel(q, k.detach(), v, mask, bias, dropout)


def no_number(q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None, dropout: float) -> Tensor:
    scores = explicit_scores(q, k, bias)
    allowed = mask.dense(q.shape[2], k.shape[2], q.device)
    return (scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)).softmax(-1) @ v


def even_share(q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None, dropout: float) -> Tensor:
    """Mask with a finite number instead of −∞: a query without keys attends to all."""
    scores = explicit_scores(q, k, bias)
    allowed = mask.dense(q.shape[2], k.shape[2], q.device)
    return (scores if allowed is None else scores.masked_fill(~allowed, -1e9)).softmax(-1) @ v


# ---------------------------------------------------------------- the future, padding, neighbours


@pytest.mark.parametrize("kernel", [not_causal, one_too_far, faint_leak])
@pytest.mark.parametrize("shape", ["next token", "sequence to sequence"])
def test_attention_that_sees_the_future(kernel: Kernel, shape: str, context_of: ContextOf) -> None:
    assert_caught(checks.future, context_of(shape, with_kernel(kernel)), "affect earlier outputs")


def test_a_classifier_that_should_be_causal(context_of: ContextOf) -> None:
    assert_caught(checks.future, context_of("per token", with_kernel(not_causal), is_causal=True))


class LooksAhead(nn.Module):
    """Head that also reads the next position's vector."""

    def forward(self, x_BLD: Tensor) -> Tensor:
        return x_BLD + x_BLD.roll(-1, dims=1) if x_BLD.ndim == 3 else x_BLD


def test_a_leak_that_starts_at_zero(context_of: ContextOf) -> None:
    """A head of zeros hides a leak unless noise is added to the weights."""

    def sabotage(model: Model) -> None:
        model.head.body = LooksAhead()
        nn.init.zeros_(model.head.weight)

    assert_caught(checks.future, context_of("next token", sabotage))


@pytest.mark.parametrize("kernel", [not_padded, faint_leak])
@pytest.mark.parametrize("shape", ["per token", "per sequence", "masked token", "sequence to sequence"])
def test_attention_to_padding(kernel: Kernel, shape: str, context_of: ContextOf) -> None:
    assert_caught(checks.padding, context_of(shape, with_kernel(kernel)), "affects outputs")


class PlainMean(nn.Module):
    def forward(self, x_BLD: Tensor, attention_mask_BL: Tensor | None) -> Tensor:
        return x_BLD.mean(1)


def test_pooling_over_padding(context_of: ContextOf) -> None:
    def sabotage(model: Model) -> None:
        model.pooling = PlainMean()

    assert_caught(checks.padding, context_of("real number", sabotage), "padding affects outputs")


class CountsPadding(ClassHead):
    def compute_loss(self, logits: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> LossOutput:
        return super().compute_loss(logits, targets.clamp(min=0), label_smoothing)


@pytest.mark.parametrize("shape", ["per token", "next token", "sequence to sequence"])
def test_a_loss_that_counts_padding(shape: str, context_of: ContextOf) -> None:
    def sabotage(model: Model) -> None:
        model.head.__class__ = CountsPadding

    assert_caught(checks.padding, context_of(shape, sabotage), "affects the loss")


class MixesRows(nn.Module):
    """Mixes rows, like a reshape that confuses the batch with another axis."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * x.roll(1, dims=0)


@pytest.mark.parametrize("shape", ["per token", "per sequence", "next token", "sequence to sequence"])
def test_rows_that_mix(shape: str, context_of: ContextOf) -> None:
    def sabotage(model: Model) -> None:
        model.head.body = MixesRows()

    assert_caught(checks.neighbours, context_of(shape, sabotage))


# ---------------------------------------------------------------- caches


class WithState:
    """Model whose decoding state is made by `make_state`."""

    make_state: type[DecodingState]

    def start(self, **inputs: Tensor | None) -> DecodingState:
        state = super().start(**inputs)  # type: ignore[misc]
        return self.make_state(**{f.name: getattr(state, f.name) for f in fields(state) if f.init})


class FromZero(DecodingState):
    """Forgets how many tokens there are already."""

    def append(self, tokens_BL: Tensor, attention_mask_BL: Tensor | None) -> tuple[Tensor, Mask]:
        positions_BL, mask = super().append(tokens_BL, attention_mask_BL)
        return positions_BL - positions_BL[:, :1], mask


class IgnoresMask(DecodingState):
    def append(self, tokens_BL: Tensor, attention_mask_BL: Tensor | None) -> tuple[Tensor, Mask]:
        positions_BL, mask = super().append(tokens_BL, attention_mask_BL)
        return positions_BL, Mask(is_causal=mask.is_causal)


class DropsKey(LayerCache):
    def extend(self, k_BHLK: Tensor, v_BHLK: Tensor) -> tuple[Tensor, Tensor]:
        k_BHMK, v_BHMK = super().extend(k_BHLK, v_BHLK)
        return torch.cat([k_BHMK[:, :, -1:], k_BHMK[:, :, 1:]], 2), v_BHMK


class StaysInOrder(LayerCache):
    """Cache that is not reordered, so that a beam finds the keys of another."""

    def select(self, rows: Tensor) -> None:
        pass


def with_caches(kind: type[LayerCache]) -> type[DecodingState]:
    class Caches(DecodingState):
        def __init__(self, **fields: Any) -> None:
            super().__init__(**fields)
            for cache in self.caches:
                cache.own = kind()

    return Caches


@pytest.mark.parametrize("shape", ["next token", "sequence to sequence"])
@pytest.mark.parametrize("state", [FromZero, IgnoresMask, with_caches(DropsKey), with_caches(StaysInOrder)])
def test_caches_that_disagree(state: type[DecodingState], shape: str, context_of: ContextOf) -> None:
    whole = {"next token": CausalLanguageModel, "sequence to sequence": EncoderDecoder}[shape]
    broken = type("Broken", (WithState, whole), {"make_state": state})

    def sabotage(model: Model) -> None:
        model.__class__ = broken

    assert_caught(checks.cached_decoding, context_of(shape, sabotage, position={"kind": "rotary"}), "step")


# ---------------------------------------------------------------- kernels against the reference


@pytest.mark.parametrize("kernel", [wrong_scale, wrong_gradient, not_padded])
@pytest.mark.parametrize("shape", ["per token", "sequence to sequence"])
def test_a_kernel_that_is_not_the_reference(kernel: Kernel, shape: str, context_of: ContextOf) -> None:
    assert_caught(checks.fused_attention, context_of(shape, with_kernel(kernel)), "differ by")


@pytest.mark.parametrize("kernel", [no_number, even_share])
@pytest.mark.parametrize("shape", ["per token", "next token"])
def test_a_masked_row_that_is_not_zero(kernel: Kernel, shape: str, context_of: ContextOf) -> None:
    assert_caught(checks.masked_row, context_of(shape, with_kernel(kernel)), "does not give zeros")


class DividesByLength(nn.Module):
    def forward(self, x_BLD: Tensor, attention_mask_BL: Tensor | None) -> Tensor:
        weights_BL = (
            torch.ones_like(x_BLD[..., 0]) if attention_mask_BL is None else attention_mask_BL.to(x_BLD.dtype)
        )
        return (x_BLD * weights_BL[..., None]).sum(1) / weights_BL.sum(1, keepdim=True)


def test_pooling_over_nothing(context_of: ContextOf) -> None:
    def sabotage(model: Model) -> None:
        model.pooling = DividesByLength()

    assert_caught(checks.masked_row, context_of("per sequence", sabotage), "only padding")


# ---------------------------------------------------------------- positions, dropout, targets


class NoEffect(Position):
    """Position module without any effect."""

    def embed(self, x_BLD: Tensor, positions_BL: Tensor) -> Tensor:
        return x_BLD


class AllTheSame(Position):
    def embed(self, x_BLD: Tensor, positions_BL: Tensor) -> Tensor:
        return x_BLD + (positions_BL * 0 + 1).to(x_BLD.dtype)[..., None].expand_as(x_BLD) * 0.3


class RemovedByNorm(Position):
    """Adds the same number to all components, which a layer norm removes."""

    def embed(self, x_BLD: Tensor, positions_BL: Tensor) -> Tensor:
        return x_BLD + positions_BL.to(x_BLD.dtype)[..., None]


@pytest.mark.parametrize("position", [NoEffect, AllTheSame, RemovedByNorm])
@pytest.mark.parametrize("shape", ["per token", "per sequence", "next token"])
def test_positions_without_effect(position: type[Position], shape: str, context_of: ContextOf) -> None:
    def sabotage(model: Model) -> None:
        model.embedding.position = position()

    # A causal mask alone gives several blocks information about the order; it is not tested here.
    assert_caught(checks.positions, context_of(shape, sabotage), "no effect")


class AlwaysOn(nn.Dropout):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.p)


class AlwaysOff(nn.Dropout):
    def forward(self, x: Tensor) -> Tensor:
        return x


@pytest.mark.parametrize(
    ("kind", "detail"), [(AlwaysOn, "something random is active"), (AlwaysOff, "dropout is off")]
)
def test_dropout_at_the_wrong_time(kind: type[nn.Dropout], detail: str, context_of: ContextOf) -> None:
    def sabotage(model: Model) -> None:
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.__class__ = kind

    assert_caught(checks.dropout, context_of("per token", sabotage), detail)


@pytest.mark.parametrize("shape", ["next token", "sequence to sequence", "masked token"])
def test_inputs_that_contain_their_targets(
    shape: str, context_of: ContextOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = context_of(shape)
    batch = context.task.batch

    def unshifted(*arguments: object) -> Batch:
        right = batch(*arguments)  # type: ignore[arg-type]
        name = "target" if "target" in right.inputs else "tokens"
        read, is_asked = right.inputs[name], right.targets >= 0
        assert read is not None
        return replace(right, inputs={**right.inputs, name: torch.where(is_asked, right.targets, read)})

    assert found(checks.target_leak, context_of(shape)).verdict == "passed"
    monkeypatch.setattr(context.task, "batch", unshifted)
    assert_caught(checks.target_leak, context)


# ---------------------------------------------------------------- learning


def test_a_head_with_large_initial_logits(context_of: ContextOf) -> None:
    def sabotage(model: Model) -> None:
        with torch.no_grad():
            model.head.weight *= 50

    for shape in ("per token", "per sequence", "next token", "masked token", "sequence to sequence"):
        assert found(learning.initial_loss, context_of(shape)).verdict == "passed"
        assert_caught(learning.initial_loss, context_of(shape, sabotage), "ln ")


class Blind(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.ones_like(x)


class Reversed(nn.Module):
    """Reverses the gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x.detach() - x


@pytest.mark.parametrize("shape", ["per sequence", "real number", "next token", "masked token"])
def test_a_model_that_cannot_learn(shape: str, context_of: ContextOf) -> None:
    def sabotage(model: Model) -> None:
        model.head.body = Blind()

    assert_caught(learning.overfitting, context_of(shape, sabotage), "in 120 steps")


def test_a_model_that_climbs(context_of: ContextOf) -> None:
    class Climbs(ClassHead):
        def forward(self, hidden: Tensor, tied_VD: Tensor | None = None) -> Tensor:
            return Reversed()(super().forward(hidden, tied_VD))

    def sabotage(model: Model) -> None:
        model.head.__class__ = Climbs

    assert_caught(learning.overfitting, context_of("per token", sabotage))


class AveragesBatches(Trainer):
    """Weights every batch equally, however few targets it has."""

    def step(self, batches: list[Batch]) -> bool:
        self.optimizer.zero_grad()
        for batch in batches:
            score = self.model.compute_loss(batch.inputs, batch.targets)
            (score.loss / score.count / len(batches)).backward()
        self.optimizer.step()
        return False


class AddsBatches(Trainer):
    """Sums the mean of each batch, so that accumulation makes the gradient larger."""

    def step(self, batches: list[Batch]) -> bool:
        self.optimizer.zero_grad()
        for batch in batches:
            score = self.model.compute_loss(batch.inputs, batch.targets)
            (score.loss / score.count).backward()
        self.optimizer.step()
        return False


class ForgetsBatches(Trainer):
    """Keeps only the gradient of the last batch."""

    def step(self, batches: list[Batch]) -> bool:
        return super().step(batches[-1:])


@pytest.mark.parametrize("engine", [AveragesBatches, AddsBatches, ForgetsBatches])
@pytest.mark.parametrize("shape", ["per sequence", "next token", "masked token"])
def test_accumulation_that_is_not_the_big_batch(
    engine: type[Trainer], shape: str, context_of: ContextOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "Trainer", engine)
    assert_caught(learning.gradient_accumulation, context_of(shape), "targets")


def test_accumulation_that_counts_padding(context_of: ContextOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Batch, "target_count", lambda batch: batch.targets.numel())
    assert_caught(learning.gradient_accumulation, context_of("per token"))


def test_parameters_that_never_learn(context_of: ContextOf) -> None:
    def frozen(model: Model) -> None:
        model.head.bias.requires_grad_(False)

    def unused(model: Model) -> None:
        model.register_parameter("spare", nn.Parameter(torch.ones(3)))

    def without_effect(model: Model) -> None:
        model.head.register_parameter("spare", nn.Parameter(torch.ones(16)))
        model.head.body = Cancels(model.head.spare)

    class Cancels(nn.Module):
        def __init__(self, spare: nn.Parameter) -> None:
            super().__init__()
            self.spare = spare

        def forward(self, x: Tensor) -> Tensor:
            return x + 0 * self.spare

    assert_caught(learning.every_gradient, context_of("per token", frozen), "head.bias is frozen")
    assert_caught(learning.every_gradient, context_of("per token", unused), "spare is not used")
    assert_caught(learning.every_gradient, context_of("per token", without_effect), "gradient of zero")


def test_a_save_that_rounds(context_of: ContextOf, monkeypatch: pytest.MonkeyPatch) -> None:
    save = CheckpointStore.save

    def rounded(store: CheckpointStore, name: str, checkpoint: Checkpoint) -> object:
        tensors = {key: tensor.bfloat16().float() for key, tensor in checkpoint.tensors["model"].items()}
        return save(store, name, Checkpoint({"model": tensors}, checkpoint.state))

    monkeypatch.setattr(CheckpointStore, "save", rounded)
    assert_caught(learning.saving, context_of("next token"), "changed: ")


class RandomFeatures(nn.Module):
    """Random features that are not part of the state."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("directions", torch.randn(16), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.directions


def test_outputs_that_depend_on_more_than_the_state(context_of: ContextOf) -> None:
    def sabotage(model: Model) -> None:
        model.head.body = RandomFeatures()

    assert_caught(learning.saving, context_of("per token", sabotage), "the state does not contain")


def test_weights_that_cannot_be_saved(context_of: ContextOf) -> None:
    """Two names for one tensor: safetensors rejects them, so it must be known before the first checkpoint."""

    def sabotage(model: Model) -> None:
        model.again = model.head

    report = check_model(context_of("per token", sabotage).experiment)
    saving = report["saving and loading is exact"]
    assert not saving.passed and saving.measurement.detail.startswith("raised ")
    assert not report.passed


class Raises(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("a plug-in's own mistake")


def test_a_model_that_raises_fails_every_check_that_runs_it(context_of: ContextOf) -> None:
    def sabotage(model: Model) -> None:
        model.head.body = Raises()

    report = check_model(context_of("next token", sabotage).experiment)
    assert not report.passed
    assert (
        "a plug-in's own mistake" in report["future tokens do not affect earlier outputs"].measurement.detail
    )
