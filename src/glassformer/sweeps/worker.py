"""Sweep worker: claim a trial, train it as an ordinary run, report, repeat."""

from __future__ import annotations

import multiprocessing
import shutil
import socket
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from glassformer.core.errors import UserError, is_out_of_memory
from glassformer.core.registry import load_plugin
from glassformer.evaluation.metrics import lower_is_better
from glassformer.runs.experiment import ExperimentConfig
from glassformer.runs.folder import RunFolder
from glassformer.runs.session import TrainingSession
from glassformer.storage.files import finite
from glassformer.sweeps.definition import setting_text
from glassformer.sweeps.queue import Claim, TrialQueue, open_queue, trial_key
from glassformer.sweeps.storage import SweepInterrupted, TrialLost
from glassformer.training.progress import Reporter
from glassformer.training.trainer import StopSignals

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


IDLE_SECONDS = 0.5
NOT_COPIED = shutil.ignore_patterns("lock", "status.json", "results.json", ".*")
"""Files that are not copied when a run's folder is copied for a new attempt."""

Log = Callable[[str], None]


class Heartbeat:
    """Context manager that sends heartbeats of a trial to the database from a thread."""

    def __init__(self, queue: TrialQueue, trial_id: int) -> None:
        self.queue, self.trial_id = queue, trial_id
        self.is_lost = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(self.queue.database.heartbeat):
            try:
                self.queue.heartbeat(self.trial_id)
            except TrialLost:
                self.is_lost = True
                return
            except (SweepInterrupted, UserError):
                return


class ValidationReporter(Reporter):
    """Training reporter that sends validation metrics to Optuna's pruner, also those before a restart."""

    def __init__(self, queue: TrialQueue, claim: Claim, folder: RunFolder) -> None:
        self.queue, self.claim, self.folder = queue, claim, folder
        self.should_prune = False
        self._last_step = -1

    def begin(self, step: int, total_steps: int | None) -> None:
        """Send the validation metrics that the run's event log already contains to the pruner."""
        for event in self.folder.events:
            if event.get("event") == "validation":
                self._send(event["step"], event)
        self._ask_pruner()

    def validated(self, step: int, metrics: Mapping[str, float], best_by: str) -> None:
        """Send the metrics of one validation to the pruner, and ask whether to stop the run."""
        self._send(step, metrics)
        self._ask_pruner()

    def _send(self, step: int, metrics: Mapping[str, Any]) -> None:
        if self.queue.definition.pruner is not None and step > self._last_step:
            self._last_step = step
            value = comparable_value(self.queue.definition.metric, metrics)
            self.queue.database.query(lambda: self.claim.trial.report(value, step))

    def _ask_pruner(self) -> None:
        if self.queue.definition.pruner is not None and self._last_step >= 0:
            self.should_prune = self.queue.database.query(self.claim.trial.should_prune)


def comparable_value(metric: str, metrics: Mapping[str, Any]) -> float:
    """Return the metric, or the loss if the metric is missing; negated if higher metrics are better."""
    if metric in metrics:
        return float(metrics[metric])
    return float(metrics["loss"]) if lower_is_better(metric) else -float(metrics["loss"])


class TrialRun:
    """Training of one claimed trial in its run folder. It records the trial's final state in the queue."""

    def __init__(self, queue: TrialQueue, claim: Claim, runs: Path) -> None:
        self.queue, self.claim, self.runs = queue, claim, runs
        self.trial_id = claim.trial._trial_id
        self.was_stopped = False
        """True if a stop signal ended the training early, so that the trial returns to the queue."""
        self.signal: int | None = None
        """Number of the stop signal that the training received, or None."""

    def run(self, should_stop: Callable[[], bool]) -> str:
        """Train the trial and return a short summary; raise `TrialLost` if another worker has the trial."""
        setting, seed = self.claim.key
        definition = self.queue.definition
        point = definition.space.point(self.claim.trial.params)
        path = run_path(self.runs / f"trial-{setting:04d}-seed-{seed}", self.claim.earlier)
        self.queue.set_attributes(self.trial_id, run=str(path))
        folder = RunFolder(path)
        try:
            with Heartbeat(self.queue, self.trial_id) as heartbeat:
                try:
                    results = self._train(definition.config(point, seed), folder, heartbeat, should_stop)
                except (TrialLost, SweepInterrupted):
                    raise
                except Exception as error:
                    if not heartbeat.is_lost:
                        return self._explain(error, folder)
                    raise TrialLost from None
                if heartbeat.is_lost:
                    raise TrialLost
                return self._conclude(results, folder.warnings())
        except TrialLost:
            self._discard(folder)
            raise

    def _train(
        self,
        config: ExperimentConfig,
        folder: RunFolder,
        heartbeat: Heartbeat,
        should_stop: Callable[[], bool],
    ) -> dict[str, Any]:
        if folder.exists() and (results := folder.results()):
            return results  # its worker died after the training and before it reported the results
        reporter = ValidationReporter(self.queue, self.claim, folder)
        training = TrainingSession(
            config, folder, reporter, lambda: heartbeat.is_lost or reporter.should_prune or should_stop()
        )
        try:
            results = training.run()
        finally:
            self.signal = training.signals.number
        if results["ended"] == "signal" and not heartbeat.is_lost and not reporter.should_prune:
            self.was_stopped = True
        return results

    def _conclude(self, results: Mapping[str, Any], warnings: list[str]) -> str:
        if self.was_stopped:
            self.queue.release(self.trial_id)
            return f"stopped at step {results['steps']:,} and saved"
        metric, facts = self.queue.definition.metric, self._facts(results) | {"warnings": warnings}
        if results["ended"] == "signal":
            text = f"step {results['steps']:,}: its validation fell behind the other runs"
            return self._finish("pruned", text, **facts)
        value = results["metrics"]["validation"].get(metric)
        if value is None:
            known = ", ".join(results["metrics"]["validation"])
            text = f"its validation has no {metric}, only {known}; try --metric loss"
            return self._finish("failed", text, **facts)
        if value != value:
            return self._finish("diverged", f"{metric} is NaN", **facts)
        self.queue.finish(self.trial_id, "complete", value, **facts)
        return f"{metric} {value:.4f}"

    def _facts(self, results: Mapping[str, Any]) -> dict[str, Any]:
        names = ("metrics", "steps", "seconds", "parameters")
        return dict(finite({name: results[name] for name in names}))

    def _explain(self, error: Exception, folder: RunFolder) -> str:
        """Record why the training failed in the trial's final state; return the outcome and the reason."""
        facts: dict[str, Any] = {}
        divergence = _divergence(folder) if isinstance(error, UserError) else None
        if divergence is not None:
            outcome, text = "diverged", divergence
        elif isinstance(error, UserError):
            detail = error.details[0]
            outcome, text = "failed", f"{detail.path}: {detail.message}".removeprefix(": ")
        elif is_out_of_memory(error):
            outcome, text = "failed", "not enough memory"
        else:
            outcome, text = "failed", f"{type(error).__name__}: {error}"
            facts = {"traceback": "".join(traceback.format_exception(error))}
        return self._finish(outcome, text, **facts)

    def _finish(self, outcome: str, explanation: str, **facts: Any) -> str:
        """End the trial without a metric value; return its outcome and explanation as text."""
        self.queue.finish(self.trial_id, outcome, **facts, explanation=explanation)
        return f"{outcome}: {explanation}"

    def _discard(self, folder: RunFolder) -> None:
        """Delete the run folder if another worker trains the same trial in another folder."""
        later = [trial for trial in self.queue.trials() if trial.number > self.claim.trial.number]
        runs = {trial.user_attrs.get("run") for trial in later if trial_key(trial) == self.claim.key}
        if runs - {None, str(folder.path)}:
            shutil.rmtree(folder.path, ignore_errors=True)


def _divergence(folder: RunFolder) -> str | None:
    """Return the reason of a divergence from the run's event log, or None if the run did not diverge."""
    events = list(folder.events)
    if not events or events[-1].get("event") != "diverged":
        return None
    return f"step {events[-1]['step']}: {events[-1]['reason']}"


def run_path(path: Path, earlier: Sequence[FrozenTrial]) -> Path:
    """Return the folder in which to train: the folder of the last attempt, so that it is resumed.

    If a suspended worker still holds the lock of that folder, the checkpoints are copied to a new folder.
    """
    last = next((Path(trial.user_attrs["run"]) for trial in earlier if "run" in trial.user_attrs), path)
    if not last.is_dir():
        return path.absolute()  # on another machine, or never started
    if not RunFolder(last).is_locked():
        return last.absolute()
    copy = path.with_name(f"{path.name}-attempt-{len(earlier) + 1}").absolute()
    shutil.rmtree(copy, ignore_errors=True)
    try:
        shutil.copytree(last, copy, ignore=NOT_COPIED)
    except (OSError, shutil.Error):  # the suspended worker resumed and changes its files
        shutil.rmtree(copy, ignore_errors=True)
    return copy


class Worker:
    """Worker process that claims and trains trials of a sweep, one after another."""

    def __init__(
        self, queue: TrialQueue, name: str, runs: Path, signals: StopSignals, log: Log, threads: int
    ) -> None:
        self.queue, self.name, self.runs = queue, name, runs
        self.signals, self.log, self.threads = signals, log, threads
        self.finished = 0

    def work(self) -> None:
        """Train trials until none is waiting or running.

        The worker waits for trials of other workers, because it repeats them if those workers die.
        """
        while not self.should_stop():
            try:
                trials = self.queue.reconcile()
                claim = self.queue.claim(self.name, trials)
                if claim is not None:
                    self._train(TrialRun(self.queue, claim, self.runs))
                elif self.queue.is_finished(trials):
                    return
                else:
                    time.sleep(IDLE_SECONDS)
            except TrialLost:
                self.log("a trial was assigned to another worker; the result of this one does not count")
            except SweepInterrupted:
                return

    def _train(self, run: TrialRun) -> None:
        torch.set_num_threads(self.threads)
        try:
            text = run.run(self.should_stop)
        finally:
            self.signals.number = self.signals.number or run.signal
        self.finished += not run.was_stopped
        setting, seed = run.claim.key
        values = setting_text(self.queue.definition.space.point(run.claim.trial.params))
        self.log(f"trial {setting} seed {seed} ({values}): {text}")

    def should_stop(self) -> bool:
        """Return True after a stop signal, or if the coordinator process has died."""
        parent = multiprocessing.parent_process()
        return self.signals.is_set() or (parent is not None and not parent.is_alive())


def worker_name() -> str:
    """Return a unique name for a worker: the host name and random digits."""
    return f"{socket.gethostname()}-{uuid.uuid4().hex[:12]}"


def run_worker(
    url: str,
    study: str,
    runs: Path,
    *,
    name: str,
    threads: int,
    plugins: Sequence[Path] = (),
    log: Log = lambda text: print(text, file=sys.stderr, flush=True),
    on_joined: Callable[[], None] = lambda: None,
) -> tuple[Worker, int]:
    """Train trials of a sweep until it is finished; return the worker and its exit code."""
    for path in plugins:
        load_plugin(path)
    with StopSignals() as signals:
        queue = open_queue(url, study, log=log, is_stopped=signals.is_set)
        on_joined()
        worker = Worker(queue, name, runs, signals, log, threads)
        worker.work()
        queue.database.close()
        return worker, signals.exit_code
