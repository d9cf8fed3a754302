"""A training in its run folder: started or resumed, announced, measured at its end."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

import glassformer.models.transformer
import glassformer.tasks  # noqa: F401  registers the kinds
from glassformer.core.config import validate
from glassformer.core.errors import UserError, user_error
from glassformer.cost.estimate import estimate
from glassformer.data.token_store import cache_folder
from glassformer.runs.experiment import Experiment, ExperimentConfig, resolve
from glassformer.runs.folder import RunFolder, differences, environment, list_runs, new_run_path
from glassformer.runs.run import Run
from glassformer.runs.transfer import TransferReport
from glassformer.tasks.base import Task
from glassformer.training.context import Interrupted, StopSignals, TrainingContext
from glassformer.training.distributed import ProcessGroup, SharedStore
from glassformer.training.events import TensorBoardMirror
from glassformer.training.progress import Reporter
from glassformer.training.state import TrainingState
from glassformer.training.trainer import Trainer

DEFAULT_RUNS = Path("runs")

MAY_CHANGE_ON_RESUME = (
    "training.max_steps",
    "training.max_epochs",
    "training.max_minutes",
    "training.stopping",
    "training.log_every",
    "training.save_every",
    "training.keep_checkpoints",
    "training.tensorboard",
    "training.threads",
    "training.device",
    "training.parallel",
    "inspection",
)


class Training:
    """One training in one run folder, from its first step or from where it stopped."""

    def __init__(
        self,
        config: ExperimentConfig,
        folder: RunFolder,
        reporter: Reporter | None = None,
        is_unwanted: Callable[[], bool] = lambda: False,
        process_group: ProcessGroup | None = None,
    ) -> None:
        """A training that becomes unwanted stops as by a signal: after its step, saved.

        Of several ranks, each has such a training; one of them holds and writes the folder.
        """
        self.config = config
        self.is_unwanted = is_unwanted
        self.folder = folder
        self.process_group = process_group or ProcessGroup()
        self.reporter = (reporter or Reporter()) if self.process_group.is_rank_zero else Reporter()
        try:
            with self.reporter.status("reading the data"):
                self.experiment = Experiment(config, self._task())
        except BaseException:
            if self.process_group.is_rank_zero:
                folder.discard_empty()
            raise
        self.signals = StopSignals(self.reporter.info)
        self.trainer: Trainer
        self.exit_code = 0
        """After a run that a signal has stopped, on whichever rank it came."""

    def _task(self) -> Task:
        """What a task learns from its data, such as a tokenizer, is learned once: by one rank, in one run."""
        task: Task | None = None

        def learned() -> dict[str, Any]:
            nonlocal task
            config, folder = self.config, self.folder
            is_old = folder.exists()
            task = folder.restore_task(config.task, config.seed) if is_old else None
            task = task or config.task.build(config.seed)
            return task.state()

        state = self.process_group.on_rank_zero(learned)
        return task or self.config.task.restore(state, self.config.seed)

    def run(self) -> dict[str, Any]:
        """Train, measure, write the results; what `train --json` prints."""
        self.process_group.on_rank_zero(self.folder.lock)
        try:
            with self.signals:
                self._prepare()
                if self.reporter.is_active and not self.trainer.state.ended:
                    self._announce()
                self._beat("running")
                try:
                    state = self.trainer.fit()
                except UserError:
                    if self.trainer.state.ended == "diverged":
                        self._beat("diverged")
                    raise
                (number,) = self.process_group.max(self.signals.number or 0)
                self.exit_code = 0 if state.ended or not number else 128 + int(number)
                try:
                    return self._conclude(state)
                except Interrupted:  # it has ended and is saved; a resumed run has but to be measured
                    state.ended, self.exit_code = "", self.signals.exit_code
                    return self._conclude(state)
        finally:
            self.folder.unlock()

    def _prepare(self) -> None:
        for note in self.experiment.task.notes:
            self.reporter.info(note)
        checksum = self._checksum()
        store = self.folder.checkpoints(self.config.training.num_checkpoints_kept())
        if self.process_group.world_size > 1:
            store = SharedStore(store, self.process_group)
        context = TrainingContext(
            store=store,
            events=self.folder.events if self.process_group.is_rank_zero else None,
            reporter=self.reporter,
            heartbeat=lambda state: self._beat("running"),
            stop_requested=lambda: self.signals.is_set() or self.is_unwanted(),
            process_group=self.process_group,
        )
        self.trainer = self.experiment.build_trainer(context)
        self.process_group.on_rank_zero(lambda: self._open_folder(checksum))
        newest = store.load_newest(self.reporter.info)
        if newest is None:
            store.delete_snapshots_after(-1)
        else:
            self.trainer.restore(newest[1])
            self._tell_resumed(newest[0], newest[1].state.get("processes", 1))
        if self.process_group.is_rank_zero:
            self._open_record(is_new=newest is None)

    def _checksum(self) -> str:
        """Of the data, which all ranks must have the same of."""
        checksum = self.experiment.task.checksum()
        is_same = self.process_group.broadcast(checksum) == checksum
        if not is_same:
            raise user_error(
                "these are other data than those of rank 0",
                path="task",
                hint="the same files on every machine",
            )
        return checksum

    def _open_folder(self, checksum: str) -> None:
        if self.folder.exists():
            self._check_same(checksum)
            return
        context = environment(checksum, torch.get_num_threads())
        context["processes"] = self.process_group.world_size
        # Where this person keeps tokens is nobody else's business.
        notes = (note.replace(str(cache_folder()), "the cache") for note in self.experiment.task.notes)
        context["data_notes"] = list(notes)
        if self.experiment.transferred is not None:
            context["start_from"] = self.experiment.transferred.origin()
        self.folder.create(self.config.dump(), self.experiment.task.state(), context)

    def _tell_resumed(self, name: str, processes: int) -> None:
        self.reporter.info(f"going on from {name}")
        if processes != self.process_group.world_size:
            self.reporter.info(
                f"saved by {processes} processes, going on with {self.process_group.world_size}:"
                " the same batches, sums that differ by rounding, other draws of dropout"
            )

    def _open_record(self, *, is_new: bool) -> None:
        if is_new:
            self.folder.events.truncate(0)
            self._tell_transfer(self.experiment.transferred)
        if self.config.training.tensorboard:
            self.folder.events.mirror = TensorBoardMirror(
                self.folder.path / "tensorboard", self.trainer.state.step
            )

    def _tell_transfer(self, transferred: TransferReport | None) -> None:
        if transferred is not None:
            for line in transferred.lines():
                self.reporter.info(line)
            self.folder.events.append("transfer", **transferred.to_json())

    def _check_same(self, checksum: str) -> None:
        """A resumed run is the same run: config, data, and the weights that it started from."""
        saved = _saved_config(self.folder).dump()
        changed = {
            path: pair
            for path, pair in differences(saved, self.config.dump()).items()
            if not path.startswith(MAY_CHANGE_ON_RESUME)
        }
        if changed:
            shown = "; ".join(f"{path}: {old!r} → {new!r}" for path, (old, new) in list(changed.items())[:6])
            raise user_error(
                f"the run was started with another config: {shown}",
                path=str(self.folder.path),
                hint="resume with the same options, or choose another --run",
            )
        if self.folder.environment().get("data_sha256") != checksum:
            raise user_error(
                "the data have changed since the run was started",
                path=str(self.folder.path),
                hint="restore the data, or choose another --run",
            )
        transferred = self.experiment.transferred
        if transferred and self.folder.environment().get("start_from") != transferred.origin():
            raise user_error(
                f"{transferred.run} has changed since the run was started from it",
                path=str(self.folder.path),
                hint="choose another --run",
            )

    def _announce(self) -> None:
        size = sum(parameter.numel() for parameter in self.trainer.model.parameters())
        frozen = sum(self.trainer.freezing.frozen(self.trainer.state.step + 1).values())
        if frozen:
            self.reporter.info(f"{frozen:,} of {size:,} parameters are frozen; {size - frozen:,} are trained")
        if self.process_group.world_size > 1:
            where = f"{self.process_group.world_size} processes ({self.config.training.parallel.kind})"
            self.reporter.info(f"{size:,} parameters on {self.trainer.device}, {where}")
            return
        with self.reporter.status("timing a few steps"):
            expected = estimate(self.trainer)
        self.reporter.info(f"{size:,} parameters on {self.trainer.device}; {expected.describe()}")
        if not expected.fits():
            self.reporter.info(
                f"WARNING: only {(expected.available_bytes or 0) / 2**20:,.0f} MiB are free;"
                " lower training.batch_size or use training.gradient_accumulation"
            )

    def _beat(self, state: str) -> None:
        if self.process_group.is_rank_zero:
            self.folder.heartbeat(state, self.trainer.state.step, self.trainer.total_steps)

    def _measuring(self, what: str, done: int, total: int) -> None:
        if self.signals.is_set():
            raise Interrupted
        self.reporter.progress(what, done, total)

    def _conclude(self, state: TrainingState) -> dict[str, Any]:
        measured: dict[str, dict[str, Any]] = {"validation": {"metrics": state.last_metrics}}
        if state.ended and self.process_group.is_rank_zero:
            loaded = Run(self.folder.path, task=self.experiment.task)
            for split in ("validation", "test"):
                if split in self.experiment.task.splits:
                    with self.reporter.status(f"measuring on {split}"):
                        measured[split] = loaded.evaluate(split, progress=self._measuring)
        metrics = {split: of_split["metrics"] for split, of_split in measured.items()}
        results = {
            "run": str(self.folder.path),
            "seed": self.config.seed,
            "steps": state.step,
            "epochs": state.epoch,
            "seconds": round(state.elapsed, 3),
            "tokens_per_second": round(state.tokens / state.seconds, 1) if state.seconds else 0.0,
            "parameters": sum(parameter.numel() for parameter in self.trainer.model.parameters()),
            "best_step": state.best_step,
            "ended": state.ended or "signal",
            "signal": signal.Signals(self.exit_code - 128).name if self.exit_code else None,
            "processes": self.process_group.world_size,
            "primary_metric": self.trainer.primary_metric(metrics["validation"]),
            "metrics": metrics,
            "intervals": {split: of_split.get("intervals", {}) for split, of_split in measured.items()},
            "protocol": {split: of_split.get("protocol", {}) for split, of_split in measured.items()},
            "warnings": self.folder.warnings() if self.process_group.is_rank_zero else [],
        }
        if state.ended and self.process_group.is_rank_zero:
            # Where a run lies is known to who opens it, and may be nobody else's business.
            self.folder.write_results({name: value for name, value in results.items() if name != "run"})
        self._beat("done" if state.ended else "stopped")
        return results


def train(
    what: str,
    overrides: Iterable[str] | Mapping[str, Any] = (),
    *,
    run: str | Path | None = None,
    resume: bool = False,
    reporter: Reporter | None = None,
) -> Run:
    """Train WHAT and return the run. With `resume`, go on where it stopped, or start if it never did."""
    config = resolve(what, overrides)
    folder = RunFolder(run_path(what, config, run, resume))
    Training(config, folder, reporter).run()
    return Run(folder.path)


def run_path(what: str, config: ExperimentConfig, run: str | Path | None, resume: bool) -> Path:
    """Where a training happens; a folder that already holds a run is taken only to resume it."""
    if run is None and resume:
        run = what if (Path(what) / "config.yaml").is_file() else _unfinished(config)
    if run is None:
        name = Path(what).name.removesuffix(".yaml").removesuffix(".yml")
        return new_run_path(DEFAULT_RUNS, name or "run")
    path = Path(run)
    if RunFolder(path).exists() and not resume:
        raise user_error("holds a run already", path=str(path), hint="--resume, or another --run")
    return path


def _unfinished(config: ExperimentConfig) -> Path | None:
    for folder in list_runs(DEFAULT_RUNS):
        if not folder.results() and _is_of(folder, config):
            return folder.path
    return None


def _is_of(folder: RunFolder, config: ExperimentConfig) -> bool:
    try:
        return _saved_config(folder).identity() == config.identity()
    except UserError:  # of another version, or with kinds of a plug-in that is not there
        return False


def _saved_config(folder: RunFolder) -> ExperimentConfig:
    """Validated, so that a run from before an option was there has its default."""
    return validate(ExperimentConfig, folder.config())
