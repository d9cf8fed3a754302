"""Steps on another device than the CPU: the host never waits for it, and no tensor is made elsewhere.

The `meta` device has shapes but no values. Reading a value raises an error, and so does an operation on
tensors of two devices.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from glassformer.blocks.heads import IGNORED
from glassformer.blocks.positions import PositionConfig
from glassformer.core.errors import UserError
from glassformer.core.registry import kinds
from glassformer.data.batching import Batch
from glassformer.models.task_types import CausalLM, Seq2Seq, SequenceClassification, TokenClassification
from glassformer.models.transformer import Transformer
from glassformer.runs.experiment import ExperimentConfig
from glassformer.tasks.base import Task
from glassformer.training.optimizers import AdamWConfig
from glassformer.training.strategies import IdleBatch
from glassformer.training.trainer import Diverged, Trainer

MakeTrainer = Callable[..., Trainer]
META = torch.device("meta")
SMALL: dict[str, Any] = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "feed_forward_dim": 16}
TASK_TYPES = {
    "causal LM": CausalLM(20, 9),
    "token classification": TokenClassification(20, 9, 4),
    "sequence classification": SequenceClassification(20, 9, 4),
    "regression": SequenceClassification(20, 9, 1, is_regression=True),
    "sequence to sequence": Seq2Seq(20, 9, 20, 9),
}


def batch_for(name: str) -> Batch:
    tokens, is_real = torch.randint(20, (2, 9)), torch.arange(9) < torch.tensor([9, 5])[:, None]
    inputs: dict[str, Tensor | None] = {"tokens": tokens, "mask": is_real}
    if name == "sequence to sequence":
        inputs["target"] = tokens
    if name == "regression":
        targets = torch.rand(2)
    elif name == "sequence classification":
        targets = torch.randint(4, (2,))
    else:
        targets = torch.randint(4, (2, 9)).masked_fill(~is_real, IGNORED)
    return Batch(inputs, targets, np.arange(2))


@pytest.mark.parametrize("name", TASK_TYPES)
@pytest.mark.parametrize("position", sorted(kinds(PositionConfig)))
def test_forward_and_backward_read_no_value(name: str, position: str) -> None:
    model = Transformer(TASK_TYPES[name], position=position, stochastic_depth=0.1, **SMALL).to(META).train()
    moved = batch_for(name).to(META)
    output = model.compute_loss(moved.inputs, moved.targets, 0.1)
    output.mean.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert gradients and {gradient.device for gradient in gradients} == {META}
    with pytest.raises(RuntimeError):
        float(output.loss.detach())


def test_counts_are_made_before_a_batch_is_moved() -> None:
    batch = batch_for("sequence to sequence")
    moved = batch.to(META)
    assert (moved.target_count(), moved.token_count()) == (14, 28)
    assert batch.to(torch.device("cpu")) is batch
    idle = IdleBatch(batch.inputs, batch.targets, batch.indices).to(META)
    assert (idle.target_count(), idle.token_count()) == (0, 0)


def unfused(optimizer: Callable[..., Any]) -> Callable[..., Any]:
    """Return the optimizer without its fused kernel, which does not know the meta device."""
    return lambda *given, **named: optimizer(*given, **{**named, "fused": False})


@pytest.mark.parametrize("optimizer", ["sgd", "lion", "muon", "adamw"])
def test_a_training_step_reads_no_value(
    optimizer: str,
    make_trainer: MakeTrainer,
    ragged_task: Task,
    tiny_config: Callable[..., ExperimentConfig],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {"training.optimizer.kind": optimizer, "training.gradient_accumulation": 2}
    options |= {"training.log_every": 1000, "training.ema_decay": 0.9}
    on_cpu = make_trainer(options, ragged_task)
    not_fused = {name: unfused(getattr(torch.optim, name)) for name in ("AdamW", "SGD")}
    monkeypatch.setattr(AdamWConfig, "optimizer", staticmethod(not_fused["AdamW"]))
    monkeypatch.setattr(torch.optim, "SGD", not_fused["SGD"])
    trainer = Trainer(
        ragged_task, on_cpu.model.to(META), on_cpu.config, on_cpu.evaluation, seed=0, context=on_cpu.context
    )
    trainer.model.train()
    groups = trainer.step_batches()
    for _ in range(2):
        trainer.step(next(groups))
    assert trainer.state.step == 2 and not trainer.state.recent_losses
    with pytest.raises(RuntimeError):  # only here values are needed
        trainer.read_losses()


def test_losses_that_are_read_later_are_the_same(make_trainer: MakeTrainer, ragged_task: Task) -> None:
    options = {"training.log_every": 1000, "model.dropout": 0.0}
    at_once, later = (make_trainer(options, ragged_task) for _ in range(2))
    later._reads_each_step = False
    for trainer in (at_once, later):
        trainer.model.train()
        groups = trainer.step_batches()
        for _ in range(5):
            trainer.step(next(groups))
    assert later.state.recent_losses == []
    later.read_losses()
    found, expected = later.state.to_json(), at_once.state.to_json()
    for state in (found, expected):
        del state["seconds"], state["window"]["seconds"]
    assert found == expected


def test_a_divergence_is_found_before_a_checkpoint(make_trainer: MakeTrainer, ragged_task: Task) -> None:
    trainer = make_trainer({"training.log_every": 1000}, ragged_task)
    trainer._reads_each_step = False
    trainer.model.train()
    with torch.no_grad():
        next(trainer.model.parameters()).fill_(torch.nan)
    groups = trainer.step_batches()
    for _ in range(2):
        trainer.step(next(groups))
    with pytest.raises(Diverged, match="step 1: the loss is nan"):
        trainer.save()


# ---------------------------------------------------------------- fp16


def test_an_overflow_in_fp16_skips_the_step_and_halves_the_scale(
    make_trainer: MakeTrainer, ragged_task: Task
) -> None:
    trainer = make_trainer({"training.precision": "fp16", "training.optimizer.kind": "sgd"}, ragged_task)
    trainer.model.train()
    groups = trainer.step_batches()
    trainer.strategy.precision.restore({"scale": 2.0**60, "growth_tracker": 0})
    before = [parameter.clone() for parameter in trainer.model.parameters()]
    trainer.step(next(groups))
    assert all(map(torch.equal, trainer.model.parameters(), before))
    assert trainer.strategy.precision.state() == {"scale": 2.0**59, "growth_tracker": 0}
    trainer.strategy.precision.restore({"scale": 2.0**10, "growth_tracker": 3})
    trainer.step(next(groups))
    assert not all(map(torch.equal, trainer.model.parameters(), before))
    assert trainer.strategy.precision.state() == {"scale": 2.0**10, "growth_tracker": 4}


# ---------------------------------------------------------------- torch.compile


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled_blocks_train_as_plain_ones(make_trainer: MakeTrainer, ragged_task: Task) -> None:
    losses, norms = {}, {}
    for is_compiled in (False, True):
        options = {"training.compile": is_compiled, "model.dropout": 0.0, "model.num_layers": 1}
        trainer = make_trainer(options, ragged_task)
        trainer.model.train()
        groups = trainer.step_batches()
        for _ in range(4):
            trainer.step(next(groups))
        losses[is_compiled], norms[is_compiled] = trainer.state.recent_losses, trainer._gradient_norm
        if trainer.strategy.compiled is not None:
            blocks = trainer.strategy.compiled.calls
            assert blocks and all(block._compiled_call_impl is None for block in blocks)
    assert losses[True] == pytest.approx(losses[False], rel=1e-5)
    assert norms[True] == pytest.approx(norms[False], rel=1e-4)
    counters = torch._dynamo.utils.counters
    assert counters["frames"]["ok"] > 0 and not counters["graph_break"]


def test_compilation_needs_a_compiler_and_another_precision(
    make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch, bf16_runs: None
) -> None:
    with pytest.raises(UserError, match="cannot use products in bf16"):
        make_trainer({"training.compile": True, "training.precision": "bf16"})
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UserError, match="needs the C\\+\\+ compiler no-such-compiler"):
        make_trainer({"training.compile": True})
