"""Optimised computations against their definitions: accumulation, averages, smoothing, clipping, padding."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from glassformer.blocks.heads import ClassHead
from glassformer.evaluation.evaluate import EvaluationConfig, evaluate
from glassformer.runs.experiment import Experiment
from glassformer.runs.folder import RunFolder
from glassformer.runs.run import Run
from glassformer.runs.session import TrainingSession
from glassformer.training.trainer import Trainer

MakeTrainer = Callable[..., Trainer]


def gradients(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in trainer.model.named_parameters() if p.grad is not None}


def batches(trainer: Trainer, *groups: list[int]) -> list[Any]:
    return [trainer.task.batch("train", np.array(group)) for group in groups]


def test_accumulation_equals_the_big_batch(make_trainer: MakeTrainer, ragged_task: Any) -> None:
    """Every token has the same weight, in batches of unequal sizes and lengths."""
    options = {"model.dropout": 0.0, "training.gradient_clip_norm": None, "training.optimizer.kind": "sgd"}
    whole, accumulated = make_trainer(options, ragged_task), make_trainer(options, ragged_task)
    rows = list(range(20))
    counts = [batch.target_count() for batch in batches(accumulated, rows[:3], rows[3:13], rows[13:])]
    assert len(set(counts)) == 3
    for _ in range(3):
        whole.step(batches(whole, rows))
        accumulated.step(batches(accumulated, rows[:3], rows[3:13], rows[13:]))
        for name, gradient in gradients(whole).items():
            torch.testing.assert_close(gradients(accumulated)[name], gradient, rtol=1e-6, atol=1e-6)
    for name, weight in whole.model.state_dict().items():
        torch.testing.assert_close(accumulated.model.state_dict()[name], weight, rtol=1e-6, atol=1e-6)
    assert accumulated.state.recent_losses == pytest.approx(whole.state.recent_losses, rel=1e-6)
    assert accumulated.state.window.correct == whole.state.window.correct
    assert accumulated.state.tokens == whole.state.tokens


def test_the_loss_is_a_mean_over_real_tokens(make_trainer: MakeTrainer, ragged_task: Any) -> None:
    trainer = make_trainer({"model.dropout": 0.0}, ragged_task)
    (batch,) = batches(trainer, [0, 1, 2, 3])
    losses = []
    for row in range(4):
        (alone,) = batches(trainer, [row])
        logits = trainer.model(**alone.inputs)[0]
        losses += nn.functional.cross_entropy(logits, alone.targets[0], reduction="none").tolist()
    trainer.step([batch])
    assert trainer.state.recent_losses == pytest.approx([sum(losses) / len(losses)], rel=1e-6)


def test_the_moving_average_equals_a_plain_loop(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer({"training.ema_decay": 0.6})
    assert trainer.averaged is not None
    expected = {name: weight.double().clone() for name, weight in trainer.model.state_dict().items()}
    groups = trainer.step_batches()
    for step in range(1, 21):
        trainer.step(next(groups))
        decay = min(0.6, step / (step + 10))
        for name, weight in trainer.model.state_dict().items():
            expected[name] = decay * expected[name] + (1 - decay) * weight.double()
    assert trainer.eval_model is trainer.averaged
    for name, weight in trainer.averaged.state_dict().items():
        torch.testing.assert_close(weight.double(), expected[name], rtol=1e-5, atol=1e-7)
        assert name.endswith("bias") or not torch.equal(weight, trainer.model.state_dict()[name])


@pytest.mark.parametrize("average_last", [1, 2, 4])
def test_checkpoint_averaging_equals_the_mean(
    average_last: int, tiny_config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run uses the average afterwards if it is the best."""
    scores = count(1)
    monkeypatch.setattr(
        "glassformer.training.trainer.evaluate", lambda *a, **k: {"loss": 1.0, "accuracy": next(scores)}
    )
    options = {"training.average_last": average_last, "training.validate_every": 6}
    TrainingSession(tiny_config(options), RunFolder(tmp_path)).run()
    store = RunFolder(tmp_path).checkpoints()
    steps = [24, 18, 12, 6][:average_last]
    models = [store.load(f"step-{step:08d}", ["model"]).tensors["model"] for step in steps]
    averaged = store.load("step-00000024", ["averaged"]).tensors["averaged"]
    run = Run(tmp_path)
    for name, weight in averaged.items():
        mean = sum(model[name].double() for model in models) / len(models)
        torch.testing.assert_close(weight.double(), mean, rtol=1e-5, atol=1e-7)
        assert torch.equal(run.model.state_dict()[name], weight)


def test_an_average_that_is_not_better_is_not_kept(
    tiny_config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = count(1)
    monkeypatch.setattr(
        "glassformer.training.trainer.evaluate", lambda *a, **k: {"loss": 1.0, "accuracy": 1 / next(scores)}
    )
    TrainingSession(tiny_config({"training.average_last": 2}), RunFolder(tmp_path)).run()
    folder = RunFolder(tmp_path)
    assert "averaged" not in folder.checkpoints().load("step-00000024").tensors
    assert folder.checkpoints().find("best") == "step-00000008"
    (averaged,) = [event for event in folder.events if event["event"] == "averaged"]
    assert averaged["checkpoints"] == 2 and averaged["is_kept"] is False


def test_label_smoothing_equals_torchs(make_trainer: MakeTrainer, ragged_task: Any) -> None:
    trainer = make_trainer({"model.dropout": 0.0, "training.label_smoothing": 0.3}, ragged_task)
    (batch,) = batches(trainer, list(range(10)))
    logits = trainer.model(**batch.inputs)
    expected = nn.CrossEntropyLoss(label_smoothing=0.3, ignore_index=-100)(
        logits.flatten(0, 1), batch.targets.flatten()
    )
    # Also by hand: 0.7 on the correct class, and 0.3 spread over all classes.
    logs = logits.log_softmax(-1)[batch.targets != -100]
    right = batch.targets[batch.targets != -100]
    by_hand = -(0.7 * logs.gather(-1, right[:, None]).squeeze(-1) + 0.3 * logs.mean(-1)).mean()
    trainer.step([batch])
    assert trainer.state.recent_losses[0] == pytest.approx(expected.item(), rel=1e-6)
    assert trainer.state.recent_losses[0] == pytest.approx(by_hand.item(), rel=1e-5)
    plain = ClassHead(16, 5).compute_loss(logits, batch.targets)
    assert plain.loss.item() / plain.count.item() != pytest.approx(expected.item(), rel=1e-4)


@pytest.mark.parametrize("gradient_clip_norm", [0.05, 1e6, None])
def test_clipping(gradient_clip_norm: float | None, make_trainer: MakeTrainer) -> None:
    options = {"model.dropout": 0.0, "training.optimizer.kind": "sgd"}
    free = make_trainer({**options, "training.gradient_clip_norm": None})
    clipped = make_trainer({**options, "training.gradient_clip_norm": gradient_clip_norm})
    for trainer in (free, clipped):
        trainer.step(next(trainer.step_batches()))
    norm = math.sqrt(sum(float(g.double().square().sum()) for g in gradients(free).values()))
    assert norm > 0.05
    factor = min(1.0, (gradient_clip_norm or math.inf) / norm)
    for name, gradient in gradients(free).items():
        torch.testing.assert_close(gradients(clipped)[name], gradient * factor, rtol=1e-4, atol=1e-8)
    # The event log has the norm before clipping.
    assert clipped._gradient_norm == pytest.approx(norm, rel=1e-5)


@pytest.mark.parametrize("target", ["token-labels", "label", "number", "sequence"])
def test_evaluation_in_batches_equals_one_by_one(target: str, tiny_config: Any, tmp_path: Path) -> None:
    """Neither padding nor the other rows of a batch change a row's loss."""
    rows = [[str((7 * i + j) % 5) for j in range(1 + (4 * i) % 9)] for i in range(40)]
    targets = {
        "token-labels": [row[::-1] for row in rows],
        "label": [[("odd", "even", "none")[len(row) % 3]] for row in rows],
        "number": [[str(len(row) / 10)] for row in rows],
        "sequence": [row[: 1 + len(row) // 2] for row in rows],
    }[target]
    file = tmp_path / "data.tsv"
    lines = [f"{' '.join(row)}\t{' '.join(target)}" for row, target in zip(rows, targets, strict=True)]
    file.write_text("input\ttarget\n" + "\n".join(lines) + "\n")
    data = {"train": str(file), "validation": str(file)}
    experiment = Experiment(tiny_config({"task": {"kind": "tokens", "target": target, "data": data}}))
    model = experiment.build_model()
    model.train()
    together = evaluate(model, experiment.task, "validation", EvaluationConfig(batch_tokens=10_000))
    some = evaluate(model, experiment.task, "validation", EvaluationConfig(batch_tokens=20))
    alone = evaluate(model, experiment.task, "validation", EvaluationConfig(batch_tokens=1))
    assert model.training
    assert {"loss"} < together.keys() == alone.keys()
    assert together == pytest.approx(alone, rel=1e-5, abs=1e-7)
    assert some == pytest.approx(alone, rel=1e-5, abs=1e-7)
    first = evaluate(model, experiment.task, "validation", EvaluationConfig(max_examples=5))
    assert first["loss"] != pytest.approx(alone["loss"], rel=1e-6)
