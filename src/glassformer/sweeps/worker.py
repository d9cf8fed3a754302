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
from glassformer.evaluation.metrics import falls
from glassformer.runs.experiment import ExperimentConfig
from glassformer.runs.folder import RunFolder
from glassformer.runs.session import TrainingSession
from glassformer.storage.files import finite
from glassformer.sweeps.definition import setting_text
from glassformer.sweeps.queue import Board, Claim, Lost, join
from glassformer.sweeps.storage import Interrupted
from glassformer.training.context import StopSignals
from glassformer.training.progress import Reporter

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


NOT_COPIED = shutil.ignore_patterns("lock", "status.json", "results.json", ".*")


class Pulse:
    """Signs of life from a thread of its own, for as long as it is entered."""

    def __init__(self, board: Board, trial_id: int) -> None:
        self.board, self.trial_id = board, trial_id
        self.is_lost = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Pulse:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._end.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._end.wait(self.board.database.heartbeat):
            try:
                self.board.beat(self.trial_id)
            except Lost:
                self.is_lost = True
                return
            except (Interrupted, UserError):
                return


class Listener(Reporter):
    """Tells the study each validation that stands in the run's record, those before a restart included."""

    def __init__(self, board: Board, claim: Claim, folder: RunFolder) -> None:
        self.board, self.claim, self.folder = board, claim, folder
        self.is_hopeless = False
        self._told = -1

    def begin(self, step: int, total_steps: int | None) -> None:
        for event in self.folder.events:
            if event.get("event") == "validation":
                self._tell(event["step"], event)
        self._look()

    def validated(self, step: int, metrics: Mapping[str, float], is_best: bool) -> None:
        self._tell(step, metrics)
        self._look()

    def _tell(self, step: int, metrics: Mapping[str, Any]) -> None:
        if self.board.definition.pruner is None or step <= self._told:
            return
        from optuna.exceptions import UpdateFinishedTrialError

        self._told = step
        value = comparable(self.board.definition.metric, metrics)
        try:
            self.board.database.ask(lambda: self.claim.trial.report(value, step))
        except UpdateFinishedTrialError:
            raise Lost from None

    def _look(self) -> None:
        if self.board.definition.pruner is not None and self._told >= 0:
            self.is_hopeless = self.board.database.ask(self.claim.trial.should_prune)


def comparable(metric: str, metrics: Mapping[str, Any]) -> float:
    """The metric, or where it is measured at the end only, the loss: the better, the further the same way."""
    if metric in metrics:
        return float(metrics[metric])
    return float(metrics["loss"]) if falls(metric) else -float(metrics["loss"])


class TrialRun:
    """A trial that was taken, from its folder to its end in the study."""

    def __init__(self, board: Board, claim: Claim, runs: Path) -> None:
        self.board, self.claim, self.runs = board, claim, runs
        self.trial_id = claim.trial._trial_id
        self.was_stopped = False
        """Before its end: the trial is given back."""
        self.signal: int | None = None
        """That the training heard in its worker's place."""

    def run(self, is_unwanted: Callable[[], bool]) -> str:
        """What became of it, in a few words for people. Lost if it was given to another worker."""
        setting, seed = self.claim.key
        definition = self.board.definition
        point = definition.space.point(self.claim.trial.params)
        path = run_path(self.runs / f"trial-{setting:04d}-seed-{seed}", self.claim.earlier)
        self.board.write(self.trial_id, run=str(path))
        folder = RunFolder(path)
        try:
            with Pulse(self.board, self.trial_id) as pulse:
                try:
                    results = self._train(definition.config(point, seed), folder, pulse, is_unwanted)
                except (Lost, Interrupted):
                    raise
                except Exception as error:
                    if not pulse.is_lost:
                        return self._explain(error, folder)
                    raise Lost from None
                if pulse.is_lost:
                    raise Lost
                return self._conclude(results)
        except Lost:
            self._discard(folder)
            raise

    def _train(
        self, config: ExperimentConfig, folder: RunFolder, pulse: Pulse, is_unwanted: Callable[[], bool]
    ) -> dict[str, Any]:
        if folder.exists() and (results := folder.results()):
            return results  # its worker died between the end of training and telling it
        listener = Listener(self.board, self.claim, folder)
        training = TrainingSession(
            config, folder, listener, lambda: pulse.is_lost or listener.is_hopeless or is_unwanted()
        )
        try:
            results = training.run()
        finally:
            self.signal = training.signals.number
        if results["ended"] == "signal" and not pulse.is_lost and not listener.is_hopeless:
            self.was_stopped = True
        return results

    def _conclude(self, results: Mapping[str, Any]) -> str:
        if self.was_stopped:
            self.board.give_back(self.trial_id)
            return f"stopped at step {results['steps']:,} and saved"
        metric, facts = self.board.definition.metric, self._facts(results)
        if results["ended"] == "signal":
            text = f"step {results['steps']:,}: its validation fell behind"
            self.board.finish(self.trial_id, "pruned", **facts, explanation=text)
            return f"pruned: {text}"
        value = results["metrics"]["validation"].get(metric)
        if value is None:
            known = ", ".join(results["metrics"]["validation"])
            text = f"its validation has no {metric}, only {known}; try --metric loss"
            self.board.finish(self.trial_id, "failed", **facts, explanation=text)
            return f"failed: {text}"
        if value != value:
            self.board.finish(self.trial_id, "diverged", **facts, explanation=f"{metric} is no number")
            return f"diverged: {metric} is no number"
        self.board.finish(self.trial_id, "complete", value, **facts)
        return f"{metric} {value:.4f}"

    def _facts(self, results: Mapping[str, Any]) -> dict[str, Any]:
        kept = ("metrics", "steps", "seconds", "parameters")
        return dict(finite({name: results[name] for name in kept}))

    def _explain(self, error: Exception, folder: RunFolder) -> str:
        """A setting that cannot be trained is a result too, kept with its reason."""
        facts: dict[str, Any] = {}
        divergence = _divergence(folder) if isinstance(error, UserError) else None
        if divergence is not None:
            outcome, text = "diverged", divergence
        elif isinstance(error, UserError):
            problem = error.details[0]
            outcome, text = "failed", f"{problem.path}: {problem.message}".removeprefix(": ")
        elif is_out_of_memory(error):
            outcome, text = "failed", "not enough memory here"
        else:
            outcome, text = "failed", f"{type(error).__name__}: {error}"
            facts = {"traceback": "".join(traceback.format_exception(error))}
        self.board.finish(self.trial_id, outcome, explanation=text, **facts)
        return f"{outcome}: {text}"

    def _discard(self, folder: RunFolder) -> None:
        """The late result goes, if another worker has the trial in another folder."""
        others = [trial for trial in self.board.trials() if trial.number > self.claim.trial.number]
        for trial in others:
            is_same = (trial.user_attrs["setting"], trial.user_attrs["seed"]) == self.claim.key
            if is_same and trial.user_attrs.get("run") not in (None, str(folder.path)):
                shutil.rmtree(folder.path, ignore_errors=True)
                return


def _divergence(folder: RunFolder) -> str | None:
    """What the run's record says of its end, if it diverged."""
    events = list(folder.events)
    if not events or events[-1].get("event") != "diverged":
        return None
    return f"step {events[-1]['step']}: {events[-1]['reason']}"


def run_path(path: Path, earlier: Sequence[FrozenTrial]) -> Path:
    """The folder of the last attempt, to go on there. One whose worker is paused but alive still belongs
    to it: then what it has saved is copied."""
    last = next((Path(trial.user_attrs["run"]) for trial in earlier if "run" in trial.user_attrs), path)
    if not last.is_dir():
        return path.absolute()  # of another machine, or never begun
    if not RunFolder(last).is_locked():
        return last.absolute()
    copy = path.with_name(f"{path.name}-attempt-{len(earlier) + 1}").absolute()
    shutil.rmtree(copy, ignore_errors=True)
    try:
        shutil.copytree(
            last, copy, ignore=shutil.ignore_patterns("lock", "status.json", "results.json", ".*")
        )
    except (OSError, shutil.Error):  # it woke up meanwhile; what it saves is no use to anybody
        shutil.rmtree(copy, ignore_errors=True)
    return copy


IDLE_SECONDS = 0.5

Say = Callable[[str], None]


class Worker:
    def __init__(
        self, board: Board, name: str, runs: Path, signals: StopSignals, say: Say, threads: int
    ) -> None:
        self.board, self.name, self.runs = board, name, runs
        self.signals, self.say, self.threads = signals, say, threads
        self.finished = 0

    def work(self) -> None:
        """Until nothing is left to begin and nothing runs that could come back."""
        while not self.is_unwanted():
            try:
                trials = self.board.settle()
                claim = self.board.claim(self.name, trials)
                if claim is not None:
                    self._train(TrialRun(self.board, claim, self.runs))
                elif self.board.is_over(trials):
                    return
                else:
                    time.sleep(IDLE_SECONDS)
            except Lost:
                self.say("a trial was given to another worker; what came of it here does not count")
            except Interrupted:
                return

    def _train(self, run: TrialRun) -> None:
        torch.set_num_threads(self.threads)
        try:
            text = run.run(self.is_unwanted)
        finally:
            self.signals.number = self.signals.number or run.signal
        self.finished += not run.was_stopped
        setting, seed = run.claim.key
        values = setting_text(self.board.definition.space.point(run.claim.trial.params))
        self.say(f"trial {setting} seed {seed} ({values}): {text}")

    def is_unwanted(self) -> bool:
        parent = multiprocessing.parent_process()
        return self.signals.is_set() or (parent is not None and not parent.is_alive())


def worker_name() -> str:
    return f"{socket.gethostname()}-{uuid.uuid4().hex[:12]}"


def serve(
    url: str,
    study: str,
    runs: Path,
    *,
    name: str,
    threads: int,
    plugins: Sequence[Path] = (),
    say: Say = lambda text: print(text, file=sys.stderr, flush=True),
    on_joined: Callable[[], None] = lambda: None,
) -> tuple[Worker, int]:
    """Work on a study until it is over; the worker and its exit code."""
    for path in plugins:
        load_plugin(path)
    with StopSignals() as signals:
        board = join(url, study, say=say, is_stopped=signals.is_set)
        on_joined()
        worker = Worker(board, name, runs, signals, say, threads)
        worker.work()
        board.database.close()
        return worker, signals.exit_code
