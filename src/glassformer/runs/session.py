"""Training session: train or resume in a run folder, then measure the best model and write the results."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from glassformer.core.config import validate
from glassformer.core.errors import UserError, user_error
from glassformer.cost.estimate import estimate
from glassformer.data.token_store import cache_folder
from glassformer.runs.experiment import Experiment, ExperimentConfig, resolve
from glassformer.runs.folder import RunFolder, differences, environment, list_runs, new_run_path
from glassformer.runs.run import Run
from glassformer.runs.transfer import TransferReport
from glassformer.training.distributed import ProcessGroup, SharedStore
from glassformer.training.events import TensorBoardMirror
from glassformer.training.progress import Reporter
from glassformer.training.trainer import Interrupted, StopSignals, Trainer, TrainingContext, TrainingState

DEFAULT_RUNS = Path("runs")
"""Folder in which new runs are created, relative to the working directory."""

MAY_CHANGE_ON_RESUME = (
    "training.max_steps",
    "training.max_epochs",
    "training.max_minutes",
    "training.stopping",
    "training.log_every",
    "training.save_every",
    "training.save_minutes",
    "training.keep_checkpoints",
    "training.tensorboard",
    "training.threads",
    "training.device",
    "training.parallel",
    "inspection",
)


class TrainingSession:
    """One training of a run. It locks the folder, handles signals, trains, and writes the results."""

    def __init__(
        self,
        config: ExperimentConfig,
        folder: RunFolder,
        reporter: Reporter | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        process_group: ProcessGroup | None = None,
    ) -> None:
        """Read the data and build the experiment.

        `should_stop` is called after each step. If it returns True, training saves and stops, as on SIGTERM.
        With several processes, each rank has its own session, and only rank 0 writes to the folder.
        """
        self.config = config
        self.should_stop = should_stop
        self.folder = folder
        self.process_group = process_group or ProcessGroup()
        self.reporter = (reporter or Reporter()) if self.process_group.is_rank_zero else Reporter()
        try:
            with self.reporter.status("reading the data"):
                self.experiment = Experiment.of_run(config, folder, self.process_group)
        except BaseException:
            if self.process_group.is_rank_zero:
                folder.discard_empty()
            raise
        self.signals = StopSignals(self.reporter.info)
        self.trainer: Trainer
        self.exit_code = 0
        """Exit code of the command: 128 + signal number if a signal stopped any rank, else 0."""

    def run(self) -> dict[str, Any]:
        """Train, evaluate and write the results. Return the dict that `train --json` prints."""
        self.process_group.on_rank_zero(self.folder.lock)
        try:
            with self.signals:
                self._prepare()
                if self.reporter.is_active and not self.trainer.state.ended:
                    self._announce()
                self._heartbeat("running")
                try:
                    state = self.trainer.fit()
                except UserError:
                    if self.trainer.state.ended == "diverged":
                        self._heartbeat("diverged")
                    raise
                (number,) = self.process_group.max(self.signals.number or 0)
                self.exit_code = 0 if state.ended or not number else 128 + int(number)
                try:
                    return self._conclude(state)
                except Interrupted:  # training has ended and is saved; a resumed run measures only
                    state.ended, self.exit_code = "", self.signals.exit_code
                    return self._conclude(state)
        finally:
            self.folder.unlock()

    def _prepare(self) -> None:
        """Build the trainer, create or check the run folder, and restore the newest checkpoint if any."""
        for note in self.experiment.notes:
            self.reporter.info(note)
        checksum = self.experiment.task.checksum()
        if self.process_group.broadcast(checksum) != checksum:
            raise user_error(
                "the data of this rank differ from the data of rank 0",
                path="task",
                hint="use the same files on every machine",
            )
        store = self.folder.checkpoints(self.config.training.num_checkpoints_kept())
        if self.process_group.world_size > 1:
            store = SharedStore(store, self.process_group)
        context = TrainingContext(
            store=store,
            events=self.folder.events if self.process_group.is_rank_zero else None,
            reporter=self.reporter,
            heartbeat=lambda state: self._heartbeat("running"),
            stop_requested=lambda: self.signals.is_set() or self.should_stop(),
            probe=self.experiment.build_probe(),
            process_group=self.process_group,
        )
        self.trainer = self.experiment.build_trainer(context)
        self.process_group.on_rank_zero(lambda: self._open_folder(checksum))
        newest = store.load_newest(self.reporter.info)
        if newest is None:
            store.delete_snapshots_after(-1)
            if self.process_group.is_rank_zero:
                self.folder.events.truncate(0)
            if self.process_group.is_rank_zero and self.experiment.transferred:
                self._report_transfer(self.experiment.transferred)
        else:
            self.trainer.restore(newest[1])
            self._report_resumed(newest[0], newest[1].state.get("processes", 1))
        if self.config.training.tensorboard and self.process_group.is_rank_zero:
            path, step = self.folder.path / "tensorboard", self.trainer.state.step
            self.folder.events.mirror = TensorBoardMirror(path, step)

    def _open_folder(self, checksum: str) -> None:
        if self.folder.exists():
            self._check_same(checksum)
            return
        about = environment(checksum, torch.get_num_threads())
        about["processes"] = self.process_group.world_size
        # Privacy: a run that is passed on must not show the user's folders.
        task = self.experiment.task
        about["data_notes"] = [note.replace(str(cache_folder()), "the cache") for note in task.notes]
        if self.experiment.transferred is not None:
            about["start_from"] = self.experiment.transferred.origin()
        self.folder.create(self.config, task.state(), about)

    def _report_resumed(self, name: str, processes: int) -> None:
        self.reporter.info(f"resuming from {name}")
        if processes != self.process_group.world_size:
            self.reporter.info(
                f"checkpoint from {processes} processes, resuming with {self.process_group.world_size}:"
                " same batches; rounding and dropout masks will differ"
            )

    def _report_transfer(self, transferred: TransferReport) -> None:
        for line in transferred.lines():
            self.reporter.info(line)
        self.folder.events.append("transfer", **asdict(transferred))

    def _check_same(self, checksum: str) -> None:
        """Raise UserError if config, data or start weights have changed since the run began."""
        saved = _saved_config(self.folder).dump()
        changed = {
            path: pair
            for path, pair in differences(saved, self.config.dump()).items()
            if not path.startswith(MAY_CHANGE_ON_RESUME)
        }
        about, transferred = self.folder.environment(), self.experiment.transferred
        if changed:
            shown = "; ".join(f"{path}: {old!r} → {new!r}" for path, (old, new) in list(changed.items())[:6])
            message = f"the run was started with another config: {shown}"
            hint = "resume with the same options, or choose another --run"
        elif about.get("data_sha256") != checksum:
            message = "the data have changed since the run started"
            hint = "restore the data, or choose another --run"
        elif transferred and about.get("start_from") != transferred.origin():
            message = f"{transferred.run} has changed since this run started from it"
            hint = "train a new run with another --run"
        else:
            return
        raise user_error(message, path=str(self.folder.path), hint=hint)

    def _announce(self) -> None:
        """Print the number of parameters and the expected time and memory."""
        size = sum(parameter.numel() for parameter in self.trainer.model.parameters())
        frozen = sum(self.trainer.freezing.frozen(self.trainer.state.step + 1).values())
        if frozen:
            self.reporter.info(f"{frozen:,} of {size:,} parameters are frozen; {size - frozen:,} are trained")
        if self.process_group.world_size > 1:
            processes = f"{self.process_group.world_size} processes ({self.config.training.parallel.kind})"
            self.reporter.info(f"{size:,} parameters on {self.trainer.device}, {processes}")
            return
        with self.reporter.status("timing a few steps"):
            expected = estimate(self.trainer)
        self.reporter.info(f"{size:,} parameters on {self.trainer.device}; {expected.describe()}")
        if not expected.fits():
            self.reporter.info(
                f"WARNING: only {(expected.available_bytes or 0) / 2**20:,.0f} MiB are free;"
                " lower training.batch_size or use training.gradient_accumulation"
            )

    def _heartbeat(self, state: str) -> None:
        if self.process_group.is_rank_zero:
            self.folder.heartbeat(state, self.trainer.state.step, self.trainer.total_steps)

    def _progress(self, activity: str, done: int, total: int) -> None:
        if self.signals.is_set():
            raise Interrupted
        self.reporter.progress(activity, done, total)

    def _conclude(self, state: TrainingState) -> dict[str, Any]:
        """Return the results as a dict. If training has ended, evaluate the best checkpoint and save them."""
        measured: dict[str, dict[str, Any]] = {"validation": {"metrics": state.last_metrics}}
        if state.ended and self.process_group.is_rank_zero:
            loaded = Run(self.folder.path, task=self.experiment.task)
            for split in ("validation", "test"):
                if split in self.experiment.task.splits:
                    with self.reporter.status(f"measuring on {split}"):
                        measured[split] = loaded.evaluate(split, progress=self._progress)
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
            # Privacy: without the path, which may name a user.
            self.folder.write_results({name: value for name, value in results.items() if name != "run"})
        self._heartbeat("done" if state.ended else "stopped")
        return results


def open_session(
    source: str,
    overrides: Iterable[str] | Mapping[str, Any] = (),
    *,
    run: str | Path | None = None,
    resume: bool = False,
    restarts: int = 0,
    reporter: Reporter | None = None,
    process_group: ProcessGroup | None = None,
) -> TrainingSession:
    """Return a session for a source (preset, YAML file or run): resolve config, choose folder, read data.

    `restarts` is how often the launcher has restarted this training. A restarted training resumes.
    """
    process_group, reporter = process_group or ProcessGroup(), reporter or Reporter()
    config = resolve(source, overrides)
    resume = resume or restarts > 0
    path = Path(process_group.on_rank_zero(lambda: str(run_path(source, config, run, resume))))
    reporter.info(f"run {path}" + (f", restart {restarts}" if restarts else ""))
    return TrainingSession(config, RunFolder(path), reporter, process_group=process_group)


def train(
    source: str,
    overrides: Iterable[str] | Mapping[str, Any] = (),
    *,
    run: str | Path | None = None,
    resume: bool = False,
    reporter: Reporter | None = None,
) -> Run:
    """Train the config of a preset, a YAML file or a run, and return the trained run.

    `run` is the folder (default: a new folder in `runs/`). With `resume`, continue an interrupted training
    if there is one.
    """
    session = open_session(source, overrides, run=run, resume=resume, reporter=reporter)
    session.run()
    return Run(session.folder.path)


def run_path(source: str, config: ExperimentConfig, run: str | Path | None, resume: bool) -> Path:
    """Return the folder to train in. Raise UserError if it contains a run and `resume` is False."""
    if run is None and resume:
        run = source if RunFolder(Path(source)).exists() else _unfinished(config)
    if run is None:
        name = Path(source).name.removesuffix(".yaml").removesuffix(".yml")
        return new_run_path(DEFAULT_RUNS, name or "run")
    path = Path(run)
    if RunFolder(path).exists() and not resume:
        message, hint = "this folder already contains a run", "add --resume, or choose another --run"
        raise user_error(message, path=str(path), hint=hint)
    return path


def _unfinished(config: ExperimentConfig) -> Path | None:
    """Return the path of the newest unfinished run of this config in `runs/`, or None."""
    for folder in list_runs(DEFAULT_RUNS):
        if not folder.results():
            with contextlib.suppress(UserError):  # of another version, or with kinds of a plug-in
                if _saved_config(folder).identity() == config.identity():
                    return folder.path
    return None


def _saved_config(folder: RunFolder) -> ExperimentConfig:
    """Return the validated config of a run. Options that its version did not have get their defaults."""
    return validate(ExperimentConfig, folder.config())
