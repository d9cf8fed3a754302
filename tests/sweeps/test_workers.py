"""Workers as real processes: killed, suspended, stopped. Their trials continue and count once."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from glassformer.cli import main
from glassformer.runs.folder import RunFolder
from glassformer.sweeps.coordinator import WorkerPool
from glassformer.sweeps.definition import define
from glassformer.sweeps.queue import TrialQueue, active_trials, trial_state
from glassformer.sweeps.storage import Database
from glassformer.sweeps.worker import run_worker

LONG = (
    "training.max_epochs=null",
    "training.max_steps=150",
    "training.save_every=10",
    "training.validate_every=50",
)
"""Options of a run that is long enough to be interrupted."""

TIMEOUT_SECONDS = 240.0
STUDY = "study"


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() - began < TIMEOUT_SECONDS, f"timed out: {what}"
        time.sleep(0.02)


class Sweep:
    """A study of a tiny config in an SQLite file, with workers that a test may kill."""

    def __init__(self, folder: Path, tiny_file: Path, arguments: list[str]) -> None:
        self.runs = folder / "runs"
        self.url = f"sqlite:///{folder}/sweep.db"
        definition = define(str(tiny_file), arguments, heartbeat=1)
        database = Database(self.url)
        database.set_heartbeat(1)
        self.queue = TrialQueue.create(database, STUDY, definition, None)
        self.pool = WorkerPool(self.url, STUDY, self.runs, 1, 1, [])

    def wait_for_checkpoint(self, run: Path) -> None:
        wait_until(lambda: (run / "checkpoints" / "latest").exists(), f"{run} has saved")


@pytest.fixture
def begin(tmp_path: Path, tiny_file: Path) -> Iterator[Callable[..., Sweep]]:
    begun: list[Sweep] = []

    def make(*arguments: str) -> Sweep:
        begun.append(Sweep(tmp_path, tiny_file, list(arguments)))
        return begun[-1]

    yield make
    for sweep in begun:
        for process in sweep.pool.processes.values():
            process.kill()
            process.join()
        sweep.queue.database.close()


Begin = Callable[..., Sweep]


def test_the_worker_verb_finishes_a_shared_study(
    begin: Begin, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Join as another machine would, with the name of the study and the database only."""
    sweep = begin("model.num_layers=1,2", "training.max_epochs=1")
    command = ["sweep", "worker", STUDY, "--storage", sweep.url, "--out", str(tmp_path), "--json"]
    assert main(command) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["study"], document["storage"], document["trials"]) == (STUDY, sweep.url, 2)
    trials = active_trials(sweep.queue.trials()).values()
    assert [trial_state(trial) for trial in trials] == ["complete", "complete"]
    for trial in trials:
        run = RunFolder(Path(trial.user_attrs["run"]))
        assert (
            run.path.parent == tmp_path / "runs" and run.results()["metrics"] == trial.user_attrs["metrics"]
        )
    assert main(command) == 0  # no trial is left, and none runs twice
    assert json.loads(capsys.readouterr().out)["trials"] == 0


def finish(sweep: Sweep) -> None:
    """Finish the study with a worker in this process."""
    _, code = run_worker(sweep.url, STUDY, sweep.runs, name="here", threads=1, log=lambda text: None)
    assert code == 0


def validations(run: Path) -> list[int]:
    return [event["step"] for event in RunFolder(run).events if event["event"] == "validation"]


def test_the_trial_of_a_killed_worker_resumes_from_its_checkpoint(begin: Begin) -> None:
    sweep = begin("task.length=4,5", *LONG)
    sweep.pool.add(["victim"])
    run = sweep.runs / "trial-0000-seed-0"
    sweep.wait_for_checkpoint(run)
    os.kill(sweep.pool.processes["victim"].pid or 0, signal.SIGKILL)
    wait_until(lambda: sweep.pool.wait(0.1) == ["victim"], "the worker is dead")
    saved = RunFolder(run).checkpoints()
    begun = saved.load(saved.find("latest")).state
    record = (run / "events.jsonl").read_bytes()[: begun["events_bytes"]]
    assert begun["training"]["step"] < 150 and not RunFolder(run).results()

    sweep.queue.abandon_worker("victim")
    finish(sweep)
    trials = sweep.queue.reconcile()
    assert Counter(map(trial_state, trials)) == {"complete": 2, "abandoned": 1}
    assert {key: trial.user_attrs["run"] for key, trial in active_trials(trials).items()} == {
        (setting, 0): str(sweep.runs / f"trial-000{setting}-seed-0") for setting in (0, 1)
    }
    # The times in the event log would differ if these steps had been repeated.
    assert record and (run / "events.jsonl").read_bytes().startswith(record)
    assert validations(run) == [50, 100, 150] and RunFolder(run).results()["steps"] == 150


def test_a_suspended_worker_is_replaced_and_its_late_result_does_not_count(begin: Begin) -> None:
    sweep = begin("task.length=4,5", *LONG)
    sweep.pool.add(["sleeper"])
    run = sweep.runs / "trial-0000-seed-0"
    sweep.wait_for_checkpoint(run)
    process = sweep.pool.processes["sleeper"]
    os.kill(process.pid or 0, signal.SIGSTOP)
    finish(sweep)  # it waits until the trial is stale, then claims both trials
    copy = sweep.runs / "trial-0000-seed-0-attempt-2"
    assert active_trials(sweep.queue.trials())[(0, 0)].user_attrs["run"] == str(copy)
    results = RunFolder(copy).results()
    assert results["steps"] == 150

    os.kill(process.pid or 0, signal.SIGCONT)
    process.join(120)
    assert process.exitcode == 0  # no trial was left for it
    trials = sweep.queue.reconcile()
    assert Counter(map(trial_state, trials)) == {"complete": 2, "abandoned": 1}
    assert RunFolder(copy).results() == results
    assert sorted(path.name for path in sweep.runs.iterdir()) == [copy.name, "trial-0001-seed-0"]


def test_a_stopped_worker_saves_and_releases_its_trial(begin: Begin) -> None:
    sweep = begin("task.length=4,5", *LONG)
    sweep.pool.add(["polite"])
    run = sweep.runs / "trial-0000-seed-0"
    sweep.wait_for_checkpoint(run)
    process = sweep.pool.processes["polite"]
    sweep.pool.stop()
    assert process.exitcode == 128 + signal.SIGTERM
    status = RunFolder(run).status()
    assert status.name == "stopped" and 0 < status.step < 150
    (trial,) = [trial for trial in sweep.queue.trials() if "worker" in trial.user_attrs]
    assert trial_state(trial) == "abandoned" and trial.user_attrs["is_released"]
    assert trial_state(active_trials(sweep.queue.reconcile())[(0, 0)]) == "waiting"
