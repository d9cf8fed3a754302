"""Divergence guard: a NaN or a spike stops a run before the update, or rolls it back."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer.blocks.heads import LossOutput
from glassformer.cli import main
from glassformer.core.errors import UserError
from glassformer.evaluation.metrics import is_better
from glassformer.models.base import Model
from glassformer.runs.experiment import Experiment, ExperimentConfig
from glassformer.runs.folder import RunFolder
from glassformer.runs.session import TrainingSession
from glassformer.training.checkpoints import SaveTimer
from glassformer.training.state import TrainingState
from glassformer.training.trainer import Diverged, Trainer

Condition = Callable[[Trainer], bool]


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Callable[[float, Condition], None]:
    """Multiply the loss of a training step if a condition holds."""

    def apply(factor: float, holds: Condition) -> None:
        build, compute_loss = Experiment.build_trainer, Model.compute_loss
        trainers: list[Trainer] = []

        def remember(self: Experiment, *arguments: Any) -> Trainer:
            trainers.append(build(self, *arguments))
            return trainers[-1]

        def poisoned(self: Model, *arguments: Any) -> LossOutput:
            found = compute_loss(self, *arguments)
            if trainers and self is trainers[-1].model and holds(trainers[-1]):
                return LossOutput(found.loss * factor, found.correct, found.count)
            return found

        monkeypatch.setattr(Experiment, "build_trainer", remember)
        monkeypatch.setattr(Model, "compute_loss", poisoned)

    return apply


def at_step(step: int) -> Condition:
    return lambda trainer: trainer.state.step + 1 == step


def at_full_rate(step: int) -> Condition:
    """Condition of a learning rate that is too high; half of it is not."""
    return lambda trainer: trainer.state.step + 1 == step and trainer.state.lr_factor > 0.9


def run(config: ExperimentConfig, path: Path) -> dict[str, Any]:
    return TrainingSession(config, RunFolder(path)).run()


@pytest.mark.parametrize(
    ("factor", "words"),
    [(math.nan, "the loss is nan"), (math.inf, "the loss is inf"), (10.0, "the loss jumped from about")],
)
def test_it_stops_before_the_update(
    factor: float, words: str, poison: Any, tiny_config: Any, tmp_path: Path
) -> None:
    poison(factor, at_step(20))
    training = TrainingSession(tiny_config({"training.ema_decay": 0.9}), RunFolder(tmp_path))
    before: dict[str, torch.Tensor] = {}

    def remember(trainer: Trainer) -> dict[str, torch.Tensor]:
        groups = {key: value for key, value in trainer.checkpoint().tensors.items() if key != "random"}
        return {f"{g}.{n}": tensor.clone() for g, tensors in groups.items() for n, tensor in tensors.items()}

    step = Trainer.step

    def record(self: Trainer, batches: Any) -> None:
        before.clear()
        before.update(remember(self))
        step(self, batches)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(UserError) as caught:
        patch.setattr(Trainer, "step", record)
        training.run()

    after = remember(training.trainer)
    assert before.keys() == after.keys() and len(before) > 40
    assert all(torch.equal(before[name], tensor) for name, tensor in after.items())
    text = str(caught.value)
    examples = training.trainer.plan(2)[3][0]
    assert "at step 20" in text and words in text
    assert f"(examples {', '.join(map(str, examples[:8]))} …)" in text
    assert "learning_rate=0.0003" in text and "warmup_steps" in text
    assert "norm_placement" not in text and "action=roll-back" in text  # the norm is already before
    assert 2 <= len(text.splitlines()) <= 5

    folder = RunFolder(tmp_path)
    assert folder.status().name == "diverged"
    assert folder.checkpoints().find("latest") == "step-00000016"
    folder.checkpoints().load("step-00000016")
    assert [event["event"] for event in folder.events][-1] == "diverged"


def test_the_advice_omits_options_that_are_set(poison: Any, tiny_config: Any, tmp_path: Path) -> None:
    options = {"model.norm_placement": "post", "training.divergence": {"action": "roll-back"}}
    poison(math.nan, lambda trainer: trainer.state.step == 3)
    with pytest.raises(UserError) as caught:
        run(tiny_config(options), tmp_path)
    assert "norm_placement=pre" in str(caught.value) and "roll-back" not in str(caught.value)


def test_a_hard_batch_of_noisy_losses_is_not_a_spike() -> None:
    """Losses of small batches with much dropout vary, so that some are many times the median."""
    state, smooth = TrainingState(), TrainingState()
    for index in range(64):
        state.record_loss(1.2 if index % 6 == 0 else 0.4)
        smooth.record_loss(0.4)
    noisy_loss, smooth_loss = state.typical_loss(), smooth.typical_loss()
    assert noisy_loss is not None and smooth_loss is not None
    assert 8 * smooth_loss < 3.8 < 8 * noisy_loss


@pytest.mark.parametrize("factor", [3.0, 7.0])
def test_a_smaller_jump_is_not_a_spike(factor: float, poison: Any, tiny_config: Any, tmp_path: Path) -> None:
    poison(factor, at_step(20))
    assert run(tiny_config(), tmp_path)["ended"] == "max_epochs"


def test_spikes_may_be_allowed_but_never_nan(poison: Any, tiny_config: Any, tmp_path: Path) -> None:
    config = tiny_config({"training.divergence.spike_factor": None})
    poison(1e4, at_step(20))
    assert run(config, tmp_path / "spike")["ended"] == "max_epochs"
    poison(math.nan, at_step(20))
    with pytest.raises(UserError, match="the loss is nan"):
        run(config, tmp_path / "nan")


def test_a_gradient_that_is_not_finite_stops_too(make_trainer: Any) -> None:
    trainer = make_trainer()
    weight = next(trainer.model.parameters())
    weight.register_hook(lambda gradient: gradient * math.inf)
    before = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    with pytest.raises(Diverged, match="the gradient norm is"):
        trainer.step(next(trainer.step_batches()))
    assert all(torch.equal(before[name], tensor) for name, tensor in trainer.model.state_dict().items())
    assert trainer.state.step == 0


def test_rolling_back_halves_the_learning_rate_and_the_run_completes(
    poison: Any, tiny_config: Any, tmp_path: Path
) -> None:
    poison(math.nan, at_full_rate(20))
    config = tiny_config({"training.divergence.action": "roll-back", "training.schedule.kind": "constant"})
    results = run(config, tmp_path)
    assert results["ended"] == "max_epochs" and results["steps"] == 24
    events = list(RunFolder(tmp_path).events)
    (back,) = [event for event in events if event["event"] == "roll-back"]
    assert (back["step"], back["to_step"], back["lr_factor"]) == (20, 16, 0.5)
    steps = [event for event in events if event["event"] == "step"]
    assert [event["step"] for event in steps] == list(range(1, 25))
    assert [event["learning_rate"] for event in steps] == [1e-3] * 16 + [5e-4] * 8
    assert RunFolder(tmp_path).status().name == "done"


def test_rolling_back_before_the_first_checkpoint(poison: Any, tiny_config: Any, tmp_path: Path) -> None:
    """Most divergent runs diverge early."""
    poison(10.0, at_full_rate(3))
    assert run(tiny_config({"training.divergence.action": "roll-back"}), tmp_path)["steps"] == 24
    (back,) = [event for event in RunFolder(tmp_path).events if event["event"] == "roll-back"]
    assert back["to_step"] == 0


def test_a_run_that_rolled_back_resumes_to_the_bit(poison: Any, tiny_config: Any, tmp_path: Path) -> None:
    poison(math.nan, at_full_rate(12))
    config = tiny_config({"training.divergence.action": "roll-back"})
    run(config, tmp_path / "alone")
    for at in (5, 9, 20):
        training = TrainingSession(config, RunFolder(tmp_path / "stopped"))
        training.signals.is_set = lambda at=at, t=training: t.trainer.state.step >= at  # type: ignore
        training.run()
    run(config, tmp_path / "stopped")
    stores = [RunFolder(tmp_path / name).checkpoints() for name in ("alone", "stopped")]
    assert stores[0].names() == stores[1].names()
    newest = [store.load(store.find("latest")) for store in stores]
    for group, tensors in newest[0].tensors.items():
        assert all(torch.equal(newest[1].tensors[group][name], tensor) for name, tensor in tensors.items())
    assert newest[0].state["training"]["order"] == newest[1].state["training"]["order"]


def test_the_number_of_roll_backs_is_limited(poison: Any, tiny_config: Any, tmp_path: Path) -> None:
    poison(math.nan, at_step(20))
    options = {"training.divergence.action": "roll-back", "training.divergence.max_rollbacks": 2}
    with pytest.raises(UserError, match="at step 20"):
        run(tiny_config(options), tmp_path)
    events = [event["event"] for event in RunFolder(tmp_path).events]
    assert events.count("roll-back") == 2 and events[-1] == "diverged"


def test_immediate_divergence_is_an_error_of_a_few_lines(
    tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also while the run is timed, when the learning rate takes effect for the first time."""
    optimizer = "training.optimizer={kind: sgd, learning_rate: 1e30, momentum: 0.0}"
    arguments = [
        str(tiny_file),
        optimizer,
        "training.gradient_clip_norm=null",
        "training.schedule.kind=constant",
    ]
    assert main(["train", *arguments, "--run", str(tmp_path / "run")]) == 2
    errors = capsys.readouterr().err
    assert "training diverged at step 2" in errors and "Traceback" not in errors


def test_nan_is_never_the_best(tiny_config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_better("loss", 1.0, math.nan) and is_better("accuracy", 0.0, None)
    assert not is_better("loss", math.nan, None) and not is_better("accuracy", math.nan, 0.1)
    scores = iter([0.5, math.nan, 0.4])
    monkeypatch.setattr(
        "glassformer.training.trainer.evaluate", lambda *a, **k: {"loss": 1.0, "accuracy": next(scores)}
    )
    results = run(tiny_config(), tmp_path)
    assert results["best_step"] == 8
    assert RunFolder(tmp_path).checkpoints().find("best") == "step-00000008"


@pytest.mark.parametrize("is_saved_by_time", [False, True])
def test_rolling_back_ignores_what_was_saved_by_time(
    is_saved_by_time: bool, poison: Any, tiny_config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SaveTimer, "is_due", lambda timer, elapsed: is_saved_by_time)
    poison(math.nan, at_full_rate(20))
    run(tiny_config({"training.divergence.action": "roll-back"}), tmp_path)
    (back,) = [event for event in RunFolder(tmp_path).events if event["event"] == "roll-back"]
    assert back["to_step"] == 16
