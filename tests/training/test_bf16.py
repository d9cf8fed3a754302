"""Products in bfloat16 against the same products in float32, and the guarantees of training with them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.blocks.heads import linear_cross_entropy
from glassformer.models.base import Model
from glassformer.models.task_types import CausalLM, Seq2Seq, SequenceClassification
from glassformer.models.transformer import Transformer
from glassformer.runs.experiment import Experiment
from glassformer.runs.verify import prove_resume
from glassformer.training import bf16, strategies
from glassformer.training.bf16 import BF16, Linear, Products
from glassformer.training.strategies import ThreadedStrategy
from glassformer.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("bf16_runs")

MakeTrainer = Callable[..., Trainer]
ROUNDING = 2.0**-8
"""Largest relative error of rounding to bfloat16."""


@pytest.fixture
def all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use bfloat16 for small matrices too, so that tiny models test it."""
    monkeypatch.setattr(bf16, "MIN_WEIGHTS", 0)
    monkeypatch.setattr(bf16, "MIN_MULTIPLY_ADDS", 0)


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("has_bias", [True, False])
def test_a_linear_layer_rounds_its_factors_and_its_result_only(has_bias: bool) -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(48, 33, bias=has_bias), torch.randn(3, 7, 48, requires_grad=True)
    bias_copy = layer.bias.detach().to(BF16) if has_bias else None
    y = Linear.apply(x, layer.weight, layer.bias, layer.weight.detach().to(BF16), bias_copy, torch.float32)
    assert y.dtype == torch.float32 and y.shape == (3, 7, 33)

    def rounded(tensor: Tensor) -> Tensor:
        return tensor.detach().to(BF16).double()

    bias = rounded(layer.bias) if has_bias else None
    expected = F.linear(rounded(x), rounded(layer.weight), bias)
    torch.testing.assert_close(y.detach().double(), expected, rtol=ROUNDING, atol=1e-6)

    gradient = torch.randn_like(y)
    parameters = [x, layer.weight, *([layer.bias] if has_bias else [])]
    found = torch.autograd.grad(y, parameters, gradient)
    rows, inputs = rounded(gradient).flatten(0, 1), rounded(x).flatten(0, 1)
    wanted = [rounded(gradient) @ rounded(layer.weight), rows.T @ inputs, gradient.double().sum((0, 1))]
    for one, other in zip(found, wanted, strict=False):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one.double(), other, rtol=ROUNDING, atol=1e-5)


def test_gradients_that_nothing_needs_are_not_computed() -> None:
    layer, x = nn.Linear(32, 16), torch.randn(5, 32)
    layer.bias.requires_grad_(False)
    copies = layer.weight.detach().to(BF16), layer.bias.detach().to(BF16)
    y = Linear.apply(x, layer.weight, layer.bias, *copies, torch.float32)
    y.sum().backward()
    assert layer.weight.grad is not None and layer.bias.grad is None and x.grad is None


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("rows", [0, 5, 200])
def test_the_loss_agrees_with_float32(
    smoothing: float, has_bias: bool, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vocabulary is not a multiple of 16, and the rows fill several blocks and chunks."""
    monkeypatch.setattr(bf16, "BLOCK", 96)
    monkeypatch.setattr(bf16, "CHUNK", 32)
    torch.manual_seed(1)
    hidden = torch.randn(rows, 64, requires_grad=True)
    weight = torch.randn(101, 64).mul_(0.3).requires_grad_()
    bias = torch.randn(101, requires_grad=True) if has_bias else None
    targets = torch.randint(101, (rows,))
    copies = bf16.padded_copies(weight, bias)
    loss, correct = bf16.LinearCrossEntropy.apply(hidden, weight, bias, *copies, targets, smoothing)
    expected, right = linear_cross_entropy(hidden, weight, bias, targets, smoothing)
    parameters = [hidden, weight, *([bias] if bias is not None else [])]
    gradients = torch.autograd.grad(loss / 7, parameters)
    wanted = torch.autograd.grad(expected / 7, parameters)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected, rtol=1e-2, atol=1e-6)
    assert abs(int(correct) - int(right)) <= 0.05 * rows
    for one, other in zip(gradients, wanted, strict=True):
        assert one.dtype == torch.float32 and one.shape == other.shape
        assert rows == 0 or relative_error(one, other) < 0.02


def test_the_gradient_of_a_confident_prediction_is_accurate() -> None:
    """In bfloat16, a probability of 0.9995 is 1, and its gradient would be 0."""
    hidden, weight = torch.ones(1, 16, requires_grad=True), torch.zeros(16, 16)
    weight[3] = 0.75  # exact in bfloat16, and so are the logits
    copies = bf16.padded_copies(weight, None)
    loss, _ = bf16.LinearCrossEntropy.apply(
        hidden, weight.requires_grad_(), None, *copies, torch.tensor([3]), 0.0
    )
    found = torch.autograd.grad(loss, weight)[0][3]
    expected = torch.softmax(torch.tensor([12.0, *[0.0] * 15]), 0)[0] - 1
    assert abs(expected) < 1e-3
    torch.testing.assert_close(found, expected.expand(16), rtol=0.01, atol=0.0)


MODELS: dict[str, Callable[[], tuple[Model, tuple[Tensor, Tensor]]]] = {
    "tied translation, relu": lambda: (
        Transformer(Seq2Seq(40, 9, 40, 9), feed_forward="relu", tied_output=True, **SIZES),
        (torch.randint(40, (4, 9)), torch.randint(40, (4, 9))),
    ),
    "language model, swiglu, rotary": lambda: (
        Transformer(CausalLM(40, 9), feed_forward="swiglu", position="rotary", **SIZES),
        (torch.randint(40, (4, 9)), torch.randint(40, (4, 9))),
    ),
    "classifier, mlp": lambda: (
        Transformer(SequenceClassification(40, 9, outputs=5), output="mlp", **SIZES),
        (torch.randint(40, (4, 9)), torch.randint(5, (4,))),
    ),
    "one-hot, tied": lambda: (
        Transformer(CausalLM(40, 9), input="one-hot", tied_output=True, **SIZES),
        (torch.randint(40, (4, 9)), torch.randint(40, (4, 9))),
    ),
    "regression": lambda: (
        Transformer(SequenceClassification(40, 9, outputs=1, is_regression=True), **SIZES),
        (torch.randint(40, (4, 9)), torch.randn(4)),
    ),
}
SIZES: dict[str, Any] = {
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 32,
    "feed_forward_dim": 64,
    "dropout": 0.0,
}


@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_whole_models_agree_with_float32(name: str, all_sizes: None) -> None:
    torch.manual_seed(2)
    model, batch = MODELS[name]()
    model.train()
    plain = model.loss(*batch)
    wanted = dict(zip(dict(model.named_parameters()), _gradients(plain, model), strict=True))
    with Products(model).installed():
        loss = model.loss(*batch)
        found = _gradients(loss, model)
    torch.testing.assert_close(loss, plain, rtol=0.02, atol=1e-3)
    assert loss.item() != plain.item(), "bfloat16 was not used"
    for (path, expected), gradient in zip(wanted.items(), found, strict=True):
        if expected is None or expected.norm() < 1e-6:  # biases of keys have no gradient but rounding errors
            continue
        assert gradient is not None and gradient.dtype == torch.float32
        assert relative_error(gradient, expected) < 0.1, path


def _gradients(loss: Tensor, model: Model) -> list[Tensor | None]:
    return list(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True))


def test_nothing_is_left_behind(all_sizes: None) -> None:
    """Outside the block, inspection, validation and copies of the model see plain modules."""
    model, batch = MODELS["tied translation, relu"]()
    before = model.eval().loss(*batch)
    state = {name: set(module.__dict__) for name, module in model.named_modules()}
    products = Products(model)
    with pytest.raises(RuntimeError, match="stop"), products.installed():
        assert model.loss(*batch).item() != before.item()
        raise RuntimeError("stop")
    assert {name: set(module.__dict__) for name, module in model.named_modules()} == state
    assert torch.equal(model.loss(*batch), before)
    assert torch.equal(copy.deepcopy(model).loss(*batch), before)


def test_changed_weights_are_converted_again(all_sizes: None) -> None:
    model, batch = MODELS["tied translation, relu"]()
    products = Products(model)
    with products.installed():
        before = model.loss(*batch)
    for parameter in model.parameters():
        parameter.data.mul_(1.5)  # does not change the version counter of the parameter
    with products.installed():
        after = model.loss(*batch)
    with Products(model).installed():
        assert torch.equal(model.loss(*batch), after)
    assert not torch.equal(before, after)


def test_small_matrices_stay_in_float32() -> None:
    model, batch = MODELS["tied translation, relu"]()
    products = Products(model)
    assert not products.has_large_matrices
    expected = model.loss(*batch)
    with products.installed():
        assert torch.equal(model.loss(*batch), expected)
    assert Products(Transformer(CausalLM(600, 9), num_layers=1, hidden_dim=32)).has_large_matrices


# ---------------------------------------------------------------- training


@pytest.fixture
def split_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split every step with enough examples into four micro-batches."""
    monkeypatch.setattr(strategies, "MIN_FLOPS_TO_SPLIT", 0.0)
    monkeypatch.setattr(ThreadedStrategy, "count_micro_batches", lambda self, lengths: min(4, len(lengths)))


def weights_after(trainer: Trainer, steps: int) -> dict[str, Tensor]:
    trainer.model.train()
    groups = trainer.step_batches()
    for _ in range(steps):
        trainer.step(next(groups))
    return {name: weight.clone() for name, weight in trainer.model.state_dict().items()}


BF16_OPTIONS = {"training.precision": "bf16", "model.dropout": 0.5}


def test_weights_and_optimizer_stay_in_float32(make_trainer: MakeTrainer, all_sizes: None) -> None:
    trainer = make_trainer(BF16_OPTIONS)
    weights_after(trainer, 2)
    state = [value for of_one in trainer.optimizer.state.values() for value in of_one.values()]
    gradients = [parameter.grad for parameter in trainer.model.parameters() if parameter.grad is not None]
    assert gradients and state
    assert {tensor.dtype for tensor in [*trainer.model.parameters(), *state, *gradients]} == {torch.float32}


def test_weights_are_converted_once_per_step(
    make_trainer: MakeTrainer, all_sizes: None, split_steps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer({**BF16_OPTIONS, "training.gradient_accumulation": 2})
    calls: list[int] = []
    update = Products._update_copies
    monkeypatch.setattr(Products, "_update_copies", lambda self: (calls.append(1), update(self))[1])
    weights_after(trainer, 3)
    assert len(calls) == 3


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_same_seed_gives_the_same_bits(
    make_trainer: MakeTrainer, all_sizes: None, split_steps: None, optimizer: str, threads: int
) -> None:
    options = {**BF16_OPTIONS, "training.threads": threads, "training.optimizer.kind": optimizer}
    before = torch.get_num_threads()
    try:
        once, again = (weights_after(make_trainer(options), 4) for _ in range(2))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(once[name], again[name]) for name in once)


def test_accumulated_batches_give_the_gradient_of_one_batch(
    make_trainer: MakeTrainer, ragged_task: Any, all_sizes: None
) -> None:
    options = {"training.precision": "bf16", "model.dropout": 0.0, "training.optimizer.kind": "sgd"}
    one = make_trainer({**options, "training.batch_size": 20}, ragged_task)
    two = make_trainer(
        {**options, "training.batch_size": 10, "training.gradient_accumulation": 2}, ragged_task
    )
    for trainer in (one, two):
        weights_after(trainer, 1)
    for (name, parameter), other in zip(one.model.named_parameters(), two.model.parameters(), strict=True):
        assert parameter.grad is not None and other.grad is not None
        if parameter.grad.norm() > 1e-4:
            assert relative_error(other.grad, parameter.grad) < 0.05, name


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_resume_is_exact(
    make_trainer: MakeTrainer, all_sizes: None, split_steps: None, optimizer: str
) -> None:
    options = {**BF16_OPTIONS, "training.optimizer.kind": optimizer, "training.gradient_accumulation": 2}
    first = make_trainer(options)
    weights_after(first, 2)
    checkpoint = first.checkpoint()
    for group in ("model", "optimizer"):
        checkpoint.tensors[group] = {name: x.clone() for name, x in checkpoint.tensors[group].items()}
    expected = weights_after(first, 2)
    resumed = make_trainer(options)
    resumed.restore(checkpoint)
    found = weights_after(resumed, 2)
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


def test_the_loss_falls_as_in_float32(make_trainer: MakeTrainer, ragged_task: Any, all_sizes: None) -> None:
    options = {"model.dropout": 0.0, "training.max_epochs": 20, "training.optimizer.learning_rate": 1e-2}
    losses = {}
    for precision in ("fp32", "bf16"):
        trainer = make_trainer({**options, "training.precision": precision}, ragged_task)
        weights_after(trainer, 40)
        losses[precision] = trainer.state.recent_losses
    assert losses["bf16"] != losses["fp32"]
    assert losses["bf16"][0] == pytest.approx(losses["fp32"][0], rel=0.02)
    assert losses["bf16"][-1] == pytest.approx(losses["fp32"][-1], rel=0.1, abs=0.01)
    assert losses["bf16"][-1] < 0.5 * losses["bf16"][0]


@pytest.mark.thorough
def test_exact_resume_is_proved(tiny_config: Any, tmp_path: Path) -> None:
    sizes = {"model.hidden_dim": 128, "model.feed_forward_dim": 256, "training.batch_size": 64}
    config = tiny_config({**BF16_OPTIONS, **sizes})
    assert Products(Experiment(config).build_model()).has_large_matrices
    proof = prove_resume(config, tmp_path, kills=2, steps=80)
    assert proof.passed and proof.kills == 2, proof.compared
