"""Limits of a run, its counters and events, and the estimate of its time."""

from __future__ import annotations

import copy
import io
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from glassformer.core.errors import UserError
from glassformer.cost.estimate import duration, estimate
from glassformer.models.base import Model
from glassformer.runs.folder import RunFolder
from glassformer.runs.session import TrainingSession
from glassformer.training import progress
from glassformer.training.progress import LineReporter
from glassformer.training.trainer import Trainer, TrainingContext

MakeTrainer = Callable[..., Trainer]
EVALUATE = "glassformer.training.trainer.evaluate"


def fake_scores(monkeypatch: pytest.MonkeyPatch, *scores: float) -> None:
    rest = iter(scores)
    monkeypatch.setattr(EVALUATE, lambda *a, **k: {"loss": 1.0, "accuracy": next(rest)})


@pytest.mark.parametrize(
    ("options", "steps", "epochs", "reason"),
    [
        ({"max_steps": 5}, 5, 0, "max_steps"),
        ({"max_steps": 8}, 8, 1, "max_steps"),
        ({"max_epochs": 2}, 16, 2, "max_epochs"),
        ({"max_steps": 100}, 24, 3, "max_epochs"),
        ({"max_steps": 20, "max_epochs": None}, 20, 2, "max_steps"),
    ],
)
def test_the_nearer_limit_counts(
    options: dict[str, Any], steps: int, epochs: int, reason: str, make_trainer: MakeTrainer
) -> None:
    trainer = make_trainer({f"training.{name}": value for name, value in options.items()})
    state = trainer.fit()
    assert (state.step, state.epoch, state.ended) == (steps, epochs, reason)
    assert state.last_validation == steps  # the end is always validated


def test_minutes_count_everything(make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Validations count too."""
    monkeypatch.setattr(EVALUATE, lambda *a, **k: time.sleep(0.3) or {"loss": 1.0, "accuracy": 0.0})
    options = {"max_minutes": 0.5 / 60, "max_epochs": None, "validate_every": 1}
    trainer = make_trainer(
        {f"training.{name}": value for name, value in options.items()} | {"training.schedule": "constant"}
    )
    started = time.perf_counter()
    state = trainer.fit()
    assert state.ended == "max_minutes" and 1 <= state.step <= 3
    assert state.elapsed == pytest.approx(time.perf_counter() - started, abs=0.2)
    assert state.seconds < state.elapsed


@pytest.mark.parametrize("schedule", ["warmup-cosine", "linear", "warmup-stable-decay"])
def test_a_schedule_with_an_end_needs_one(schedule: str, tiny_config: Any) -> None:
    options = {"training.max_epochs": None, "training.max_minutes": 1, "training.schedule.kind": schedule}
    with pytest.raises(UserError, match="needs a number of steps"):
        tiny_config({**options, "training.max_minutes": 1.0})


def test_a_run_must_end_somehow(tiny_config: Any) -> None:
    with pytest.raises(UserError, match="training has no end"):
        tiny_config({"training.max_epochs": None})


def test_stopping_at_a_target(make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_scores(monkeypatch, 0.2, 0.95, 0.99)
    state = make_trainer({"training.stopping.target": 0.9}).fit()
    assert (state.step, state.ended, state.best_step) == (16, "target", 16)


def test_a_target_must_be_held(make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_scores(monkeypatch, 0.95, 0.2, 0.95, 0.94, 0.99)
    options = {"training.stopping": {"target": 0.9, "consecutive": 2}, "training.validate_every": 2}
    state = make_trainer(options).fit()
    assert (state.step, state.ended) == (8, "target")


@pytest.mark.parametrize("target", [None, 0.99])
def test_a_higher_target_lets_a_run_continue(
    target: float | None, tiny_config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_scores(monkeypatch, 0.95, 0.96, 0.97)
    first = TrainingSession(tiny_config({"training.stopping.target": 0.9}), RunFolder(tmp_path)).run()
    assert (first["ended"], first["steps"]) == ("target", 8)
    then = TrainingSession(tiny_config({"training.stopping.target": target}), RunFolder(tmp_path)).run()
    assert (then["ended"], then["steps"]) == ("max_epochs", 24)


def test_stopping_without_progress(make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_scores(monkeypatch, 0.5, 0.4, 0.6, 0.6, 0.5, 0.7)
    state = make_trainer({"training.stopping.patience": 2, "training.validate_every": 2}).fit()
    assert (state.step, state.ended, state.best_step) == (10, "patience", 6)


def test_a_finished_run_stays_finished_though_its_average_was_worse(
    tiny_config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config({"training.stopping.target": 0.9, "training.average_last": 2})
    fake_scores(monkeypatch, 0.2, 0.95, 0.3)
    first = TrainingSession(config, RunFolder(tmp_path)).run()
    assert (first["ended"], first["steps"]) == ("target", 16)
    fake_scores(monkeypatch)
    again = TrainingSession(config, RunFolder(tmp_path)).run()
    assert (again["ended"], again["steps"]) == ("target", 16)


def test_validations_and_saves_happen_when_due(tiny_config: Any, tmp_path: Path) -> None:
    options = {"training.validate_every": 5, "training.save_every": 4, "training.keep_checkpoints": 100}
    TrainingSession(tiny_config(options), RunFolder(tmp_path)).run()
    folder = RunFolder(tmp_path)
    validated = [event["step"] for event in folder.events if event["event"] == "validation"]
    saved = {int(name.removeprefix("step-")) for name in folder.checkpoints().names()}
    assert validated == [5, 10, 15, 20, 24]
    assert {4, 8, 12, 16, 20, 24} <= saved <= {4, 8, 12, 16, 20, 24, *validated}
    assert folder.results()["best_step"] in saved


def test_speed_does_not_count_padding(make_trainer: MakeTrainer, ragged_task: Any) -> None:
    events: list[dict[str, Any]] = []

    class Events:
        def append(self, kind: str, **fields: Any) -> None:
            events.append({"event": kind, **fields})

    context = TrainingContext(events=Events())  # type: ignore[arg-type]
    options = {"training.batch_size": 10, "training.max_epochs": 2, "training.log_every": 4}
    trainer = make_trainer(options, ragged_task, context)
    attention_mask = int(ragged_task.splits["train"].lengths().sum())
    padded = sum(
        trainer.task.batch("train", batch).inputs["tokens"].numel()
        for group in trainer.plan(0)
        for batch in group
    )
    assert padded > 1.2 * attention_mask
    state = trainer.fit()
    assert state.tokens == 2 * attention_mask
    speeds = [event["tokens_per_second"] for event in events if event["event"] == "step"]
    clocks = np.diff([0.0, *(event["seconds"] for event in events if event["event"] == "step")])
    assert sum(speeds * clocks) == pytest.approx(2 * attention_mask, rel=0.1)


def test_tokens_of_every_task_type(tiny_config: Any) -> None:
    """Tokens of each task type: a classifier counts its inputs, a decoder inputs and outputs."""
    from glassformer.runs.experiment import Experiment

    palindrome = Experiment(tiny_config({"task.kind": "palindrome", "task.length": 6})).task
    batch = palindrome.batch("train", np.arange(5))
    assert (batch.target_count(), batch.token_count()) == (5, 30)
    arithmetic = Experiment(tiny_config({"task": {"kind": "arithmetic", "digits": 1}})).task
    batch = arithmetic.batch("train", np.arange(5))
    tokens = batch.inputs["tokens"]
    assert tokens is not None
    assert batch.token_count() == tokens.numel() + batch.target_count()


def test_an_estimate_does_not_change_the_trainer(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer({"training.ema_decay": 0.9, "model.dropout": 0.3})
    groups = trainer.step_batches()
    for _ in range(3):
        trainer.step(next(groups))
    tensors = copy.deepcopy(trainer.checkpoint().tensors)
    state = trainer.state.to_json()
    estimate(trainer)
    assert trainer.state.to_json() == state
    assert trainer.model.training
    after = trainer.checkpoint().tensors
    assert after.keys() == tensors.keys() == {"model", "optimizer", "random", "averaged"}
    for group, named in tensors.items():
        assert all(torch.equal(after[group][name], tensor) for name, tensor in named.items()), group


def test_an_estimate_is_accurate(make_trainer: MakeTrainer) -> None:
    """Use a wide tolerance, since other processes may use the cores; an idle machine is within 25 %."""
    trainer = make_trainer({"task.train_examples": 1000, "model.hidden_dim": 64, "task.length": 32})
    expected = estimate(trainer)
    assert (expected.steps, expected.validations) == (186, 3)
    started = time.perf_counter()
    trainer.fit()
    taken = time.perf_counter() - started
    assert expected.seconds is not None
    assert expected.seconds / 3 < taken < expected.seconds * 3
    assert trainer.state.elapsed <= taken
    assert expected.peak_bytes > 50 << 20 and expected.fits()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.7, "1 min 0 s"), (3599, "59 min 59 s"), (115943, "32 h 12 min")]
)
def test_a_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_long_validation_reports_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 100.0, 101.0, 106.0, 106.0])
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    stream = io.StringIO()
    reporter = LineReporter(stream)
    for done in (1, 2, 3):
        reporter.progress("validation, decoding", done, 1200)
    assert stream.getvalue() == "validation, decoding: 1 of 1,200\nvalidation, decoding: 3 of 1,200\n"


def test_a_large_model_is_timed_by_one_step(
    make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Timing a model of 105 million parameters once took ten minutes."""
    taken: list[int] = []
    step = Trainer.step
    monkeypatch.setattr(Trainer, "step", lambda *given: (taken.append(1), step(*given))[1])
    monkeypatch.setattr("glassformer.cost.estimate.ENOUGH_SECONDS", 0.0)
    expected = estimate(make_trainer({}))
    assert len(taken) == 1
    assert expected.seconds_per_step > 0 and expected.seconds_per_validation > 0


def test_an_estimate_decodes_as_the_validations_of_training_do(
    make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(
        {"task": {"kind": "arithmetic", "digits": 1}, "evaluation.decoding": {"kind": "beam", "size": 3}}
    )
    kinds = []
    decode = type(trainer.task).decode

    def noting(task: Any, model: Any, split: str, batches: Any, decoding: Any, *rest: Any) -> Any:
        kinds.append((split, decoding.kind))
        return decode(task, model, split, batches, decoding, *rest)

    monkeypatch.setattr(type(trainer.task), "decode", noting)
    estimate(trainer)
    assert kinds == [("validation", "greedy"), ("test", "beam")]


def test_the_event_log_of_a_run(tiny_config: Any, tmp_path: Path) -> None:
    TrainingSession(tiny_config({"training.log_every": 6}), RunFolder(tmp_path)).run()
    events = list(RunFolder(tmp_path).events)
    steps = [event for event in events if event["event"] == "step"]
    assert [event["step"] for event in steps] == [6, 12, 18, 24]
    wanted = {"step", "epoch", "loss", "accuracy", "learning_rate", "gradient_norm", "tokens_per_second"}
    assert all(wanted <= event.keys() for event in steps)
    order = [event["event"] for event in events if event["event"] != "step"]
    assert order == ["validation"] * 3 + ["end"]
    environment = RunFolder(tmp_path).environment()
    assert {"torch", "python", "threads", "data_sha256", "git", "created"} <= environment.keys()
    assert len(environment["data_sha256"]) == 64


def test_probes_are_in_the_event_log(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    """Probe before the first step, when due, and after the last step; at most once per step."""

    class Every10:
        keeps_snapshots = False

        def is_due(self, step: int) -> bool:
            return step % 10 == 0

        def measure(self, model: Model) -> dict[str, int]:
            return {"seen": next(seen)}

    folder, seen = RunFolder(tmp_path), count(1)
    make_trainer(None, None, TrainingContext(events=folder.events, probe=Every10())).fit()
    probes = [(event["step"], event["seen"]) for event in folder.events if event["event"] == "head_probe"]
    assert probes == [(0, 1), (10, 2), (20, 3), (24, 4)]


def test_a_target_may_have_to_hold(make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """One validation below the target resets the count of consecutive ones."""
    fake_scores(monkeypatch, 0.9, 0.5, 0.9, 0.95, 0.99)
    options = {"validate_every": 1, "stopping.target": 0.9, "stopping.consecutive": 2}
    state = make_trainer({f"training.{name}": value for name, value in options.items()}).fit()
    assert (state.step, state.ended) == (4, "target")


def test_the_loss_breaks_ties_of_validations(
    make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([0.5, 0.3, 0.4])
    monkeypatch.setattr(EVALUATE, lambda *a, **k: {"loss": next(losses), "accuracy": 1.0})
    state = make_trainer({"training.validate_every": 1, "training.max_steps": 3}).fit()
    assert (state.best_step, state.best_loss) == (2, 0.3)
