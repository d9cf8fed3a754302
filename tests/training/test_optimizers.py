"""Every optimizer with every schedule, and the values of each schedule."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from itertools import islice, pairwise, product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from glassformer.core.registry import kinds
from glassformer.training.checkpoints import CheckpointStore
from glassformer.training.optimizers import (
    AdamWConfig,
    ConstantConfig,
    InverseSquareRootConfig,
    LinearConfig,
    LionConfig,
    MuonConfig,
    OptimizerConfig,
    ScheduleConfig,
    WarmupCosineConfig,
    WarmupStableDecayConfig,
    orthogonal,
)
from glassformer.training.trainer import Trainer

MakeTrainer = Callable[..., Trainer]
OPTIMIZERS, SCHEDULES = sorted(kinds(OptimizerConfig)), sorted(kinds(ScheduleConfig))


def state(trainer: Trainer) -> dict[str, torch.Tensor]:
    groups = trainer.checkpoint().tensors
    return {
        f"{group}.{name}": tensor.clone()
        for group, tensors in groups.items()
        for name, tensor in tensors.items()
    }


@pytest.mark.parametrize(("optimizer", "schedule"), list(product(OPTIMIZERS, SCHEDULES)))
def test_a_step_is_taken_and_survives_saving(
    optimizer: str, schedule: str, make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    options = {
        "training.optimizer": {"kind": optimizer, "learning_rate": 0.01, "weight_decay": 0.1},
        "training.schedule": {"kind": schedule, "warmup_steps": 2},
    }
    trainer = make_trainer(options)
    start = state(trainer)
    batches = trainer.step_batches()
    for group in islice(batches, 3):
        trainer.step(group)
    assert any(
        not torch.equal(start[name], weight) for name, weight in state(trainer).items() if name in start
    )
    store = CheckpointStore(tmp_path)
    store.save("step-00000003", trainer.checkpoint())

    trainer.step(next(batches))
    expected = state(trainer)
    restored = make_trainer(options)
    restored.restore(store.load("step-00000003"))
    restored.step(next(restored.step_batches()))
    found = state(restored)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


STATE_SPARED = {"muon": 1}
"""Number of floats fewer than the bound, per weight of a block's matrix."""


def block_matrices(model: nn.Module) -> int:
    named = model.named_parameters()
    return sum(weight.numel() for name, weight in named if ".layers." in name and weight.ndim == 2)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_memory_estimate_includes_the_state(kind: str, make_trainer: MakeTrainer) -> None:
    trainer = make_trainer({"training.optimizer": {"kind": kind}})
    trainer.step(next(trainer.step_batches()))
    floats = sum(
        tensor.numel()
        for name, tensor in trainer.checkpoint().tensors["optimizer"].items()
        if not name.endswith((".step", ".steps"))
    )
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    most = parameters * trainer.config.optimizer.state_floats_per_parameter
    assert floats == most - STATE_SPARED.get(kind, 0) * block_matrices(trainer.model)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_biases_and_norms_do_not_decay(kind: str) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    optimizer = kinds(OptimizerConfig)[kind](weight_decay=0.1).build(model)
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert {name: decays[id(p)] for name, p in model.named_parameters()} == {
        "0.weight": 0.1,
        "0.bias": 0.0,
        "1.weight": 0.0,
        "1.bias": 0.0,
    }


@pytest.mark.parametrize("shape", [(2, 8, 8), (3, 8, 20), (1, 20, 8)])
def test_orthogonal_matrices_keep_their_directions(shape: tuple[int, ...]) -> None:
    """Compare with the SVD: same singular vectors, singular values near 1."""
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    inner = left.mT @ orthogonal(matrices) @ right.mT
    values = inner.diagonal(dim1=-2, dim2=-1)
    assert values.min() > 0.5
    assert values.max() < 1.3
    assert (inner - torch.diag_embed(values)).abs().max() < 1e-3


def test_muon_is_adam_for_parameters_outside_of_blocks(make_trainer: MakeTrainer) -> None:
    model = make_trainer().model
    other = copy.deepcopy(model)
    options = {"learning_rate": 0.01, "weight_decay": 0.1, "beta1": 0.8, "beta2": 0.95}
    optimizers = [MuonConfig(**options).build(model), AdamWConfig(**options).build(other)]
    random = torch.Generator().manual_seed(0)
    for _ in range(4):
        for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
            ours.grad = torch.randn(ours.shape, generator=random)
            theirs.grad = ours.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for (name, ours), theirs in zip(model.named_parameters(), other.parameters(), strict=True):
        is_matrix = ".layers." in name and ours.ndim == 2
        assert torch.allclose(ours, theirs, atol=1e-6) != is_matrix, name


def test_muon_moves_a_matrix_along_its_orthogonal_momentum() -> None:
    stack = nn.Module()
    stack.layers = nn.ModuleList([nn.Linear(4, 6, bias=False)])
    model = nn.Module()
    model.encoder = stack
    weight = stack.layers[0].weight
    config = MuonConfig(learning_rate=0.5, weight_decay=0.1, momentum=0.9)
    optimizer = config.build(model)
    random = torch.Generator().manual_seed(0)
    expected, momentum = weight.detach().clone(), torch.zeros(6, 4)
    for _ in range(3):
        weight.grad = torch.randn(6, 4, generator=random)
        momentum = 0.9 * momentum + 0.1 * weight.grad
        step = orthogonal((0.1 * weight.grad + 0.9 * momentum)[None])[0]
        expected = expected * (1 - 0.5 * 0.1) - 0.5 * 0.2 * math.sqrt(6) * step
        optimizer.step()
    assert torch.allclose(weight, expected, atol=1e-6)


def test_lion_equals_its_definition() -> None:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(3, 4))
    model = nn.Module()
    model.weight = weight
    optimizer = LionConfig(learning_rate=0.02, weight_decay=0.5, beta1=0.8, beta2=0.95).build(model)
    expected, momentum = weight.detach().double().clone(), torch.zeros(3, 4, dtype=torch.float64)
    for _ in range(5):
        gradient = torch.randn(3, 4)
        weight.grad = gradient.clone()
        optimizer.step()
        direction = torch.sign(0.8 * momentum + 0.2 * gradient.double())
        expected = expected * (1 - 0.02 * 0.5) - 0.02 * direction
        momentum = 0.95 * momentum + 0.05 * gradient.double()
        torch.testing.assert_close(weight.detach().double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("schedule", "total", "values"),
    [
        (ConstantConfig(), 100, {1: 1, 100: 1}),
        (ConstantConfig(warmup_steps=4), 100, {1: 0.25, 4: 1, 5: 1, 100: 1}),
        (WarmupCosineConfig(warmup_steps=10), 110, {1: 0.1, 10: 1, 60: 0.5, 110: 0, 200: 0}),
        (WarmupCosineConfig(final_ratio=0.1), 100, {25: 0.1 + 0.9 * (2 + 2**0.5) / 4, 50: 0.55, 100: 0.1}),
        (InverseSquareRootConfig(warmup_steps=100), 10_000, {50: 0.5, 100: 1, 400: 0.5, 10_000: 0.1}),
        (InverseSquareRootConfig(), 100, {3: 0.5, 99: 0.1}),
        (LinearConfig(warmup_steps=20), 120, {10: 0.5, 20: 1, 70: 0.5, 120: 0}),
        (LinearConfig(final_ratio=0.5), 100, {50: 0.75, 100: 0.5, 150: 0.5}),
        (WarmupStableDecayConfig(warmup_steps=10), 110, {5: 0.5, 10: 1, 60: 1, 90: 1, 100: 0.5, 110: 0}),
        (WarmupStableDecayConfig(decay_fraction=1.0, final_ratio=0.2), 100, {50: 0.6, 100: 0.2}),
    ],
)
def test_schedules_at_known_steps(schedule: ScheduleConfig, total: int, values: dict[int, float]) -> None:
    for step, value in values.items():
        assert schedule.factor(step, total) == pytest.approx(value, abs=1e-12), step


@pytest.mark.parametrize("kind", SCHEDULES)
def test_every_schedule_rises_linearly_and_then_never_rises(kind: str) -> None:
    schedule: Any = kinds(ScheduleConfig)[kind](warmup_steps=8)
    factors = [schedule.factor(step, 80) for step in range(1, 81)]
    assert factors[:8] == pytest.approx([step / 8 for step in range(1, 9)])
    falling = factors[7:]
    assert all(0 <= later <= earlier for earlier, later in pairwise(falling))
    if not schedule.needs_end:
        assert factors == [schedule.factor(step, 10**6) for step in range(1, 81)]


def test_the_optimizer_gets_the_learning_rate_of_the_step(make_trainer: MakeTrainer) -> None:
    options = {"training.schedule": {"kind": "linear", "warmup_steps": 4}, "training.max_steps": 12}
    trainer = make_trainer(options)
    learning_rates = []
    for group in trainer.step_batches():
        trainer.step(group)
        learning_rates.append(trainer.optimizer.param_groups[0]["lr"])
    expected = [0.25, 0.5, 0.75, 1, *(1 - step / 8 for step in range(1, 9))]
    peak = AdamWConfig().learning_rate
    assert learning_rates == pytest.approx([peak * factor for factor in expected])
    assert math.isclose(learning_rates[-1], 0, abs_tol=1e-12)
