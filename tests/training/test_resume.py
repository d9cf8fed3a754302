"""Exact resume: a run that was stopped or killed and resumed equals an uninterrupted run to the bit."""

from __future__ import annotations

import hashlib
import json
import shlex
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glassformer.cli import main
from glassformer.core.config import dump_yaml, read_yaml_file
from glassformer.core.errors import UserError
from glassformer.runs.experiment import Experiment, ExperimentConfig
from glassformer.runs.folder import RunFolder
from glassformer.runs.run import Run
from glassformer.runs.session import TrainingSession
from glassformer.storage.files import ChecksummedFolder, file_sha256, json_bytes
from glassformer.training.checkpoints import EXTRA, CheckpointStore, SaveTimer
from glassformer.training.events import CLOCK_FIELDS
from glassformer.training.progress import Reporter
from glassformer.training.trainer import StopSignals, Trainer

CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "everything": {
        "model.dropout": 0.3,
        "model.attention_dropout": 0.1,
        "training.gradient_accumulation": 3,
        "training.max_epochs": 6,
        "training.log_every": 4,
        "training.ema_decay": 0.9,
        "training.label_smoothing": 0.1,
        "training.optimizer.kind": "lion",
        "training.save_every": 4,
        "training.average_last": 3,
    },
    "muon": {"training.optimizer.kind": "muon", "training.optimizer.weight_decay": 0.1},
    "averaging": {
        "training.validate_every": 5,
        "training.save_every": 3,
        "training.average_last": 4,
        "training.optimizer.learning_rate": 0.01,
    },
    "looking": {"inspection.probe_heads": True, "inspection.every": 12},
    "decoder": {
        "task": {"kind": "arithmetic", "digits": 1, "max_examples": 60},
        "training.batch_size": 8,
        "training.max_epochs": 2,
        "training.schedule.kind": "inverse-square-root",
    },
}


class SignalAt(StopSignals):
    """Send a signal during a step, or kill the run right after it."""

    def __init__(self, training: TrainingSession, step: int, dies: bool = False) -> None:
        super().__init__()
        self.training, self.at, self.dies = training, step, dies

    def is_set(self) -> bool:
        if self.training.trainer.state.step >= self.at:
            if self.dies:
                raise Killed
            self.number = signal.SIGTERM
        return super().is_set()


class Killed(BaseException):
    """Simulated kill: no handler catches it, and nothing is saved."""


class Listener(Reporter):
    """Count steps only from here: before, the run is timed by steps on a copy."""

    is_active = True


def train(config: ExperimentConfig, path: Path) -> dict[str, Any]:
    return TrainingSession(config, RunFolder(path)).run()


def stop(config: ExperimentConfig, path: Path, step: int) -> None:
    training = TrainingSession(config, RunFolder(path), Listener())
    training.signals = SignalAt(training, step)
    results = training.run()
    assert results["ended"] == "signal" and results["steps"] == step
    assert training.signals.exit_code == 143
    assert RunFolder(path).status().name == "stopped"


def kill(config: ExperimentConfig, path: Path, step: int) -> None:
    training = TrainingSession(config, RunFolder(path))
    training.signals = SignalAt(training, step, dies=True)
    with pytest.raises(Killed):
        training.run()


def without_clocks(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_clocks(item) for key, item in value.items() if key not in CLOCK_FIELDS}
    return value


def facts(path: Path) -> dict[str, Any]:
    """Collect everything in a run folder: checkpoint files, pointers, events and results."""
    folder = RunFolder(path)
    found: dict[str, Any] = {"events": [without_clocks(event) for event in folder.events]}
    for file in sorted((path / "checkpoints").rglob("*")):
        name = str(file.relative_to(path))
        if file.name == "state.json":
            state = json.loads(file.read_bytes())
            del state["events_bytes"], state["events_sha256"]  # the event log has clock fields
            found[name] = without_clocks(state)
        elif file.is_file() and file.name != "manifest.json":
            found[name] = file_sha256(file)
    found["results"] = without_clocks({**folder.results(), "run": None})
    return found


@pytest.fixture(scope="module")
def left_alone(tmp_path_factory: pytest.TempPathFactory, tiny_config: Any) -> Callable[[str], dict[str, Any]]:
    known: dict[str, dict[str, Any]] = {}

    def of(name: str) -> dict[str, Any]:
        if name not in known:
            path = tmp_path_factory.mktemp(name) / "run"
            train(tiny_config(CONFIGS[name]), path)
            known[name] = facts(path)
        return known[name]

    return of


@pytest.mark.parametrize(
    ("name", "stops"),
    [
        ("plain", [1]),
        ("plain", [8]),  # end of an epoch: during a validation
        ("plain", [8, 8, 16, 24, 24]),
        ("plain", [7, 8, 9, 23]),
        ("everything", [1, 4, 8]),
        ("everything", [17]),
        ("averaging", [4, 13, 22, 23]),
        ("averaging", [5, 15, 24]),  # the last validation is the final one
        ("decoder", [2, 5]),
        ("looking", [8, 12, 24, 24]),
    ],
)
def test_stopped_and_resumed_equals_left_alone(
    name: str, stops: list[int], left_alone: Any, tiny_config: Any, tmp_path: Path
) -> None:
    config = tiny_config(CONFIGS[name])
    for step in stops:
        stop(config, tmp_path, step)
    train(config, tmp_path)
    assert facts(tmp_path) == left_alone(name)


@pytest.mark.parametrize(
    ("name", "kills"),
    [("plain", [3, 9, 20]), ("everything", [6, 16]), ("averaging", [2, 4, 17, 24]), ("decoder", [6])],
)
def test_killed_and_resumed_equals_left_alone(
    name: str, kills: list[int], left_alone: Any, tiny_config: Any, tmp_path: Path
) -> None:
    config = tiny_config(CONFIGS[name])
    for step in kills:
        kill(config, tmp_path, step)
    train(config, tmp_path)
    assert facts(tmp_path) == left_alone(name)


@pytest.mark.parametrize("moment", ["before the rename", "before `latest` moves", "before old ones go"])
@pytest.mark.parametrize("name", ["plain", "averaging"])
def test_killed_in_the_last_save_equals_left_alone(
    name: str,
    moment: str,
    left_alone: Any,
    tiny_config: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method = {
        "before the rename": "verify",
        "before `latest` moves": "_point",
        "before old ones go": "_prune",
    }[moment]
    config = tiny_config(CONFIGS[name])
    original = getattr(CheckpointStore, method)

    def die_in_the_end(self: CheckpointStore, *arguments: Any) -> Any:
        if any("00000024" in path.name for path in self.folder.iterdir()):
            raise Killed
        return original(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointStore, method, die_in_the_end)
        with pytest.raises(Killed):
            train(config, tmp_path)
    train(config, tmp_path)
    mine, others = facts(tmp_path), left_alone(name)
    # A run killed before old checkpoints were deleted still has them; nothing else may differ.
    assert {key: mine[key] for key in others} == others
    assert mine.keys() == others.keys() or moment == "before old ones go"


def _die(*arguments: object) -> None:
    raise Killed


def test_killed_before_the_results_are_written(
    left_alone: Any, tiny_config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write_results", _die)
        with pytest.raises(Killed):
            train(tiny_config(CONFIGS["averaging"]), tmp_path)
    assert RunFolder(tmp_path).status().name == "crashed"
    results = train(tiny_config(CONFIGS["averaging"]), tmp_path)
    assert results["ended"] == "max_epochs" and RunFolder(tmp_path).status().name == "done"
    assert facts(tmp_path) == left_alone("averaging")


def test_resuming_a_finished_run_changes_nothing(left_alone: Any, tiny_config: Any, tmp_path: Path) -> None:
    train(tiny_config(CONFIGS["plain"]), tmp_path)
    train(tiny_config(CONFIGS["plain"]), tmp_path)
    assert facts(tmp_path) == left_alone("plain")
    assert RunFolder(tmp_path).status().name == "done"


def test_the_curve_is_the_same_from_run_to_run(tiny_config: Any, tmp_path: Path) -> None:
    config = tiny_config(CONFIGS["everything"])
    train(config, tmp_path / "first")
    TrainingSession(config, RunFolder(tmp_path / "second"), Listener()).run()
    assert facts(tmp_path / "first") == facts(tmp_path / "second")
    other = config.with_overrides({"seed": 1})
    train(other, tmp_path / "third")
    assert facts(tmp_path / "third")["events"] != facts(tmp_path / "first")["events"]


def test_a_longer_run_resumes_from_the_end(tiny_config: Any, tmp_path: Path) -> None:
    """With a schedule without an end, a longer resumed run equals an uninterrupted long run."""
    short = {"training.schedule.kind": "constant", "training.max_steps": 10}
    long = {"training.schedule.kind": "constant", "training.max_steps": 24}
    assert train(tiny_config(short), tmp_path / "grown")["steps"] == 10
    assert train(tiny_config(long), tmp_path / "grown")["steps"] == 24
    train(tiny_config(long), tmp_path / "at-once")
    tensors = "checkpoints/step-00000024/{}.safetensors"
    for group in ("model", "optimizer", "random"):
        file = tensors.format(group)
        assert file_sha256(tmp_path / "grown" / file) == file_sha256(tmp_path / "at-once" / file)


def test_a_shorter_run_ends_at_its_current_step(tiny_config: Any, tmp_path: Path) -> None:
    stop(tiny_config(), tmp_path, 12)
    results = train(tiny_config({"training.max_steps": 10}), tmp_path)
    assert results["steps"] == 12 and results["ended"] == "max_steps"
    assert [event["event"] for event in RunFolder(tmp_path).events][-1] == "end"


def test_the_next_checkpoint_replaces_what_a_signal_saved(tiny_config: Any, tmp_path: Path) -> None:
    stop(tiny_config(), tmp_path, 3)
    store = RunFolder(tmp_path).checkpoints()
    assert store.names() == [f"step-00000003{EXTRA}"]
    assert Run(tmp_path, "3").checkpoint == store.names()[0]
    train(tiny_config(), tmp_path)
    assert store.names() == store.regular()


# ---------------------------------------------------------------- saves by time


def due_times(timer: SaveTimer, cost: float, until: float) -> list[float]:
    """Return the seconds at which saves are due if each of them takes `cost` seconds."""
    times = []
    for tenth in range(1, round(10 * until)):
        if timer.is_due(tenth / 10):
            times.append(tenth / 10)
            timer.saved(tenth / 10, cost)
    return times


def test_the_first_save_is_early_and_the_interval_doubles() -> None:
    times = due_times(SaveTimer(5.0, 1000), 0.01, 1200)
    assert times == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 812, 1112]
    assert due_times(SaveTimer(0.5, 1000), 0.01, 100) == [1, 2, 4, 8, 16, 32, 62, 92]
    assert due_times(SaveTimer(None, 1000), 0.01, 10_000) == []


def test_saves_take_a_few_percent_of_the_time() -> None:
    """A save of 12 s: the first after 20 s at the latest, the others 10 minutes apart."""
    assert due_times(SaveTimer(5.0, 1_200_000_000), 12.0, 2000) == [20, 620, 1220, 1820]
    assert due_times(SaveTimer(5.0, 12_000_000), 0.1, 30) == [1.2, 6.2, 12.4, 24.8]


def test_a_loaded_checkpoint_restarts_the_timer() -> None:
    timer = SaveTimer(5.0, 1000)
    timer.saved(1000.0)
    assert not timer.is_due(1299.9) and timer.is_due(1300.0)


@pytest.fixture
def save_by_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], bool]], None]:
    """Make a save by time due after each call for which a function of the number of calls is true."""

    def apply(is_due: Callable[[int], bool]) -> None:
        calls = iter(range(1, 10_000))
        monkeypatch.setattr(SaveTimer, "is_due", lambda timer, elapsed: is_due(next(calls)))

    return apply


@pytest.mark.parametrize(("name", "every"), [*((name, 1) for name in CONFIGS), ("averaging", 3)])
def test_a_save_by_time_changes_nothing(
    name: str, every: int, left_alone: Any, save_by_time: Any, tiny_config: Any, tmp_path: Path
) -> None:
    expected = left_alone(name)
    save_by_time(lambda call: call % every == 0)
    train(tiny_config(CONFIGS[name]), tmp_path)
    assert facts(tmp_path) == expected


@pytest.mark.parametrize(
    ("name", "kills"),
    [
        ("plain", [1, 7, 8, 9, 20]),
        ("everything", [1, 6, 16, 17]),
        ("averaging", [2, 4, 17, 23, 24]),
        ("decoder", [1, 6]),
        ("muon", [3]),
    ],
)
def test_killed_after_a_save_by_time_equals_left_alone(
    name: str, kills: list[int], left_alone: Any, save_by_time: Any, tiny_config: Any, tmp_path: Path
) -> None:
    expected = left_alone(name)
    save_by_time(lambda call: True)
    config = tiny_config(CONFIGS[name])
    for step in kills:
        kill(config, tmp_path, step)
        newest = RunFolder(tmp_path).checkpoints().pointed("latest")
        assert (newest is not None and newest.startswith(f"step-{step - 1:08d}")) or step == 1
    train(config, tmp_path)
    assert facts(tmp_path) == expected


def test_saves_by_time_leave_the_other_checkpoints_alone(
    save_by_time: Any, tiny_config: Any, tmp_path: Path
) -> None:
    save_by_time(lambda call: True)
    config = tiny_config({"training.save_every": 5, "training.keep_checkpoints": 2})
    kill(config, tmp_path, 15)
    names = RunFolder(tmp_path).checkpoints().names()
    assert names == ["step-00000008", "step-00000010", f"step-00000014{EXTRA}"]


def test_a_changed_config_is_rejected_with_the_differences(tiny_config: Any, tmp_path: Path) -> None:
    stop(tiny_config(), tmp_path, 3)
    before = facts(tmp_path)
    changed = tiny_config({"model.num_layers": 2, "training.optimizer.learning_rate": 0.5})
    with pytest.raises(UserError) as caught:
        train(changed, tmp_path)
    text = str(caught.value)
    assert "this folder holds another config (saved → given): model.num_layers: 1 → 2" in text
    assert "training.optimizer.learning_rate: 0.001 → 0.5" in text
    assert 2 <= len(text.splitlines()) <= 5
    assert facts(tmp_path) == before


def test_forgotten_options_are_reported_before_the_data_are_read(
    tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without `task.data`, reviews would be generated, whose labels the saved task does not have."""
    monkeypatch.chdir(tmp_path)
    rows = [f"a film, number {number}\t{('bad', 'good')[number % 2]}" for number in range(60)]
    Path("reviews.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n", encoding="utf-8")
    tree = {**read_yaml_file(tiny_file), "task": {"kind": "classification"}}
    tiny_file.write_text(dump_yaml(tree), encoding="utf-8")
    options = ["task.data.train=reviews.tsv", "training.max_steps=6"]
    assert main(["train", str(tiny_file), *options, "--run", "reviews"]) == 0
    capfd.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(Experiment, "of_run", _die)
        assert main(["train", str(tiny_file), "--run", "reviews", "--resume"]) == 2
        error = capfd.readouterr().err
        typed = ["training.max_steps=9", "seed=7"]
        assert main(["train", str(tiny_file), "--run", "reviews", "--resume", *typed]) == 2
    first = capfd.readouterr().err.partition("(saved → given): ")[2].partition(";")[0]
    assert first == "seed: 0 → 7", "an option that was typed comes first"
    assert "reviews: this folder holds another config (saved → given): " in error
    assert "task.data.train: reviews.tsv → null" in error
    assert (
        "glassformer train reviews --resume" in error and "label" not in error.split("try:")[0].split(";")[0]
    )
    assert main(["train", "reviews", "--resume"]) == 0  # no options at all


def test_many_differences_are_counted(tiny_config: Any, tmp_path: Path) -> None:
    stop(tiny_config(), tmp_path, 3)
    with pytest.raises(UserError) as caught:
        train(tiny_config({"task": {"kind": "classification", "examples": 40}}), tmp_path)
    text = str(caught.value)
    assert " more" in text and 2 <= len(text.splitlines()) <= 5
    assert "task.kind: reversal → classification" in text


def resume_by_command(path: Path, capfd: pytest.CaptureFixture[str], *options: str) -> str:
    capfd.readouterr()
    assert main(["train", str(path), "--resume", *options]) == 0
    return capfd.readouterr().err


def test_what_is_resumed_is_reported(
    tiny_config: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    stop(tiny_config(), tmp_path, 11)
    assert "\nresuming from step 11 of 24, epoch 2, saved 0 s ago\n" in resume_by_command(tmp_path, capfd)
    again = resume_by_command(tmp_path, capfd)
    assert "this training ended at step 24 of 24: the limit of 3 epochs is reached" in again


def test_the_printed_command_resumes(
    tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """SIGTERM during step 3: the shortest command, without options, resumes a run that had options."""
    monkeypatch.chdir(tmp_path)
    step = Trainer.step

    def with_a_signal(trainer: Trainer, batches: Any) -> None:
        step(trainer, batches)
        if trainer.context.store is not None and trainer.state.step == 3:  # not while steps are timed
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", with_a_signal)
        assert main(["train", str(tiny_file), "model.hidden_dim=8", "--run", "my run"]) == 143
    stopped, command = capfd.readouterr().out.splitlines()
    assert stopped == "stopped by SIGTERM at step 3, after saving a checkpoint; continue with:"
    assert command == "  glassformer train 'my run' --resume"
    assert main(shlex.split(command)[1:]) == 0
    assert "resuming from step 3 of 24" in capfd.readouterr().err


def test_a_restart_is_reported(tiny_config: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kill(tiny_config(), tmp_path, 3)
    assert "\nno checkpoint was saved yet: starting from step 0\n" in resume_by_command(tmp_path, capfd)


def test_a_new_run_is_reported(
    tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = "to resume: starting a new run\n"
    given = resume_by_command(tiny_file, capfd, "--run", "mine")
    assert f"there is no unfinished run in mine {words}" in given
    assert f"there is no unfinished run of this config in runs {words}" in resume_by_command(tiny_file, capfd)


def test_changed_data_are_rejected(tiny_config: Any, tmp_path: Path) -> None:
    stop(tiny_config(), tmp_path, 3)
    environment = json.loads((tmp_path / "environment.json").read_text())
    environment["data_sha256"] = "0" * 64
    ChecksummedFolder(tmp_path).write({"environment.json": json_bytes(environment)})
    with pytest.raises(UserError, match="the data have changed"):
        train(tiny_config(), tmp_path)


def test_events_have_no_gap_and_no_duplicate(tiny_config: Any, tmp_path: Path) -> None:
    for step in (3, 11, 18):
        stop(tiny_config(), tmp_path, step)
    kill(tiny_config(), tmp_path, 21)
    train(tiny_config(), tmp_path)
    steps = [event["step"] for event in RunFolder(tmp_path).events if event["event"] == "step"]
    assert steps == list(range(1, 25))


def test_the_order_of_examples_is_that_of_the_plan(tiny_config: Any, tmp_path: Path) -> None:
    """Use each example once per epoch; the hash in the state covers the examples really used."""
    trainer: Trainer = Experiment(tiny_config()).build_trainer()
    digest = ""
    for epoch in range(3):
        seen = [index for group in trainer.plan(epoch) for batch in group for index in batch]
        assert sorted(seen) == list(range(128))
        for group in trainer.plan(epoch):
            for batch in group:
                digest = hashlib.sha256(digest.encode() + batch.tobytes()).hexdigest()
    trainer.fit()
    assert trainer.state.order == digest
