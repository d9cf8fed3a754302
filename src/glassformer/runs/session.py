"""Training session: train or resume in a run folder, then measure the best model and write the results."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from glassformer.core.config import flatten, format_value, parse_overrides, validate
from glassformer.core.errors import UserError, user_error
from glassformer.core.system import cpu_name
from glassformer.cost.estimate import duration, estimate
from glassformer.data.token_store import cache_folder
from glassformer.runs.ending import (
    baseline_warnings,
    closing_lines,
    explain_end,
    next_commands,
    resume_command,
    show_metric,
    train_longer,
)
from glassformer.runs.experiment import Experiment, ExperimentConfig, resolve
from glassformer.runs.folder import RunFolder, differences, environment, list_runs, new_run_path
from glassformer.runs.run import Run
from glassformer.training.distributed import ProcessGroup, SharedStore
from glassformer.training.events import TensorBoardMirror
from glassformer.training.precision import PrecisionChoice
from glassformer.training.progress import Reporter
from glassformer.training.state import TrainingState
from glassformer.training.trainer import Interrupted, StopSignals, Trainer, TrainingContext

if TYPE_CHECKING:
    from glassformer.runs.transfer import TransferReport

DEFAULT_RUNS = Path("runs")
"""Folder in which new runs are created, relative to the working directory."""

MAY_CHANGE_ON_RESUME = (
    "training.max_steps",
    "training.max_epochs",
    "training.max_minutes",
    "training.small_data.min_steps",
    "training.stopping",
    "training.log_every",
    "training.save_every",
    "training.save_minutes",
    "training.keep_checkpoints",
    "training.tensorboard",
    "training.threads",
    "training.device",
    "training.precision",
    "training.parallel",
    "inspection",
)


CHANGES_WIDTH = 180
"""Maximum number of characters for the options that differ, in the error about another config."""
TRAIN_EXAMPLES = 2000
"""Maximum number of training examples on which a trained classifier or regression is measured."""


class TrainingSession:
    """One training of a run. It locks the folder, handles signals, trains, and writes the results."""

    def __init__(
        self,
        config: ExperimentConfig,
        folder: RunFolder,
        reporter: Reporter | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        process_group: ProcessGroup | None = None,
        given: Iterable[str] = (),
    ) -> None:
        """Read the data and build the experiment.

        `should_stop` is called after each step. If it returns True, training saves and stops, as on SIGTERM.
        With several processes, each rank has its own session, and only rank 0 writes to the folder.
        `given` are the options that the user typed: an error about another config lists them first.
        """
        self.config = config
        self.given = tuple(given)
        self.should_stop = should_stop
        self.folder = folder
        self.process_group = process_group or ProcessGroup()
        self.reporter = (reporter or Reporter()) if self.process_group.is_rank_zero else Reporter()
        self.process_group.on_rank_zero(self._check_config)  # before the data: their errors would mislead
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
        self.input_columns: list[str] | None = None
        """Names of the columns of inputs in memory, which the run keeps; None if they have none."""
        self.resumed_from: int | None = None
        """Step of the checkpoint that this session restored, or None."""

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

    def report_end(self, results: Mapping[str, Any]) -> None:
        """Print in a few lines why the training ended, its best checkpoint, its metric and its folder."""
        for line in [*closing_lines(results), *results["warnings"]]:
            self.reporter.info(line)
        if self.trainer.state.ended:
            self.reporter.info(f"{show_metric(results)}; the run is in {self.folder.path}")
        else:
            self.reporter.info(f"a checkpoint is saved; continue with: {self.next_commands()[0]}")

    def _prepare(self) -> None:
        """Build the trainer, create or check the run folder, and restore the newest checkpoint if any."""
        for note in self._shown_notes():
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
        is_resumed = self.folder.exists()
        self.experiment.precision = self._saved_precision()
        self.trainer = self.experiment.build_trainer(context)
        self.process_group.on_rank_zero(lambda: self._open_folder(checksum))
        newest = store.load_newest(self.reporter.info)
        if newest is None:
            store.delete_snapshots_after(-1)
            if is_resumed:
                self.reporter.info("no checkpoint was saved yet: starting from step 0")
            if self.process_group.is_rank_zero:
                self.folder.events.truncate(0)
            if self.process_group.is_rank_zero and self.experiment.transferred:
                self._report_transfer(self.experiment.transferred)
        else:
            self.trainer.restore(newest[1])
            self.resumed_from = self.trainer.state.step
            self._report_resumed(newest[1].state)
        if self.config.training.tensorboard and self.process_group.is_rank_zero:
            path, step = self.folder.path / "tensorboard", self.trainer.state.step
            self.folder.events.mirror = TensorBoardMirror(path, step)

    def _saved_precision(self) -> PrecisionChoice | None:
        """Return the precision that the run was saved with, which rank 0 reads; None if the run is new."""
        folder = self.folder
        saved = self.process_group.on_rank_zero(
            lambda: folder.environment().get("precision") if folder.exists() else None
        )
        return None if saved is None else PrecisionChoice(**saved)

    def _shown_notes(self) -> list[str]:
        """Return the notes to print: not how the run's own copies of data in memory are read and stored."""
        data, notes = getattr(self.config.task, "data", None), self.experiment.notes
        train = getattr(data, "train", None)
        if not isinstance(train, str) or Path(train).parent != self.folder.path / "data":
            return notes
        return [
            note
            for note in notes
            if " is read as JSON objects" not in note and str(cache_folder()) not in note
        ]

    def _open_folder(self, checksum: str) -> None:
        if self.folder.exists():
            self._check_same(checksum)
            return
        about = environment(checksum, torch.get_num_threads())
        about["processes"] = self.process_group.world_size
        about["precision"] = asdict(self.experiment.precision) if self.experiment.precision else None
        if self.input_columns is not None:
            about["input_columns"] = self.input_columns
        # Privacy: a run that is passed on must not show the user's folders.
        notes = self.experiment.notes
        about["data_notes"] = [note.replace(str(cache_folder()), "the cache") for note in notes]
        if self.experiment.transferred is not None:
            about["start_from"] = self.experiment.transferred.origin()
        self.folder.create(self.config, self.experiment.task.state(), about)

    def _report_resumed(self, saved: Mapping[str, Any]) -> None:
        """Print the step, epoch and age of the checkpoint that was restored."""
        state, total, processes = self.trainer.state, self.trainer.total_steps, saved.get("processes", 1)
        of = f" of {total:,}" if total and total >= state.step else ""
        if state.ended and self.trainer.reason_to_end():
            because = explain_end(self.trainer)
            self.reporter.info(f"this training ended at step {state.step:,}{of}: {because}; measuring again")
            self.reporter.info(f"to train longer: {train_longer(self.folder.path, self.trainer)}")
            return
        age = f", saved {duration(max(0.0, time.time() - saved['time']))} ago" if "time" in saved else ""
        self.reporter.info(f"resuming from step {state.step:,}{of}, epoch {state.epoch + 1:,}{age}")
        if processes != self.process_group.world_size:
            self.reporter.info(
                f"checkpoint from {processes} processes, resuming with {self.process_group.world_size}:"
                " same batches; rounding and dropout masks will differ"
            )
        if self.process_group.is_rank_zero:
            self._report_hardware()

    def _report_hardware(self) -> None:
        """Print the changes of processor or precision since the run began, because they change rounding."""
        about, precision = self.folder.environment(), self.trainer.config.precision
        now = {"processor": cpu_name(), "precision": precision}
        saved = {
            "processor": about.get("processor") or now["processor"],
            "precision": (about.get("precision") or {}).get("precision", precision),
        }
        for name, before in saved.items():
            if before != now[name]:
                self.reporter.info(
                    f"this run began with the {name} {before} and continues with {now[name]}: its results"
                    " will differ by rounding from those of a run that was not interrupted"
                )

    def _report_transfer(self, transferred: TransferReport) -> None:
        for line in transferred.lines():
            self.reporter.info(line)
        self.folder.events.append("transfer", **asdict(transferred))

    def _check_config(self) -> None:
        """Raise UserError if the folder contains a run with a different config.

        Options in `MAY_CHANGE_ON_RESUME`, such as `training.max_steps`, may differ.
        """
        if not self.folder.exists():
            return
        if "imported" in self.folder.environment():
            raise user_error(
                "this run was imported, and training would replace its weights",
                path=str(self.folder.path),
                hint=f"train a new run with training.start_from={self.folder.path}",
            )
        differing = differences(_saved_config(self.folder).dump(), self.config.dump())
        allowed = {path: pair for path, pair in differing.items() if path.startswith(MAY_CHANGE_ON_RESUME)}
        changed = {path: pair for path, pair in differing.items() if path not in allowed}
        # A limit that is given switches this rule off; only the limit was given.
        given = {path: pair for path, pair in allowed.items() if path != "training.small_data.min_steps"}
        if allowed and not changed:
            self.reporter.info(
                f"options that differ from the saved ones (saved → given): {_show_changes(given or allowed)}"
            )
        if changed:
            raise user_error(
                f"this folder holds another config (saved → given): {_show_changes(changed, self.given)}",
                path=str(self.folder.path),
                hint=f"{resume_command(self.folder.path)}  # with the saved options",
            )

    def _check_same(self, checksum: str) -> None:
        """Raise UserError if the data or the run in `training.start_from` changed after this run began."""
        about, transferred = self.folder.environment(), self.experiment.transferred
        if about.get("data_sha256") != checksum:
            message = "the data have changed since the run started"
            hint = "restore the data, or choose another --run"
        elif transferred and about.get("start_from") != transferred.origin():
            message = f"{transferred.run} has changed since this run started from it"
            hint = "train a new run with another --run"
        else:
            return
        raise user_error(message, path=str(self.folder.path), hint=hint)

    def _announce(self) -> None:
        """Print the number of parameters, the expected time and memory, and what the loss includes."""
        size = sum(parameter.numel() for parameter in self.trainer.model.parameters())
        frozen = sum(self.trainer.freezing.frozen(self.trainer.state.step + 1).values())
        if frozen:
            self.reporter.info(f"{frozen:,} of {size:,} parameters are frozen; {size - frozen:,} are trained")
        is_regression = getattr(self.experiment.task.task_type, "is_regression", False)
        if self.config.training.label_smoothing and not is_regression:
            amount = f"training.label_smoothing={self.config.training.label_smoothing:g}"
            self.reporter.info(f"the training loss includes {amount}, the validation loss does not")
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
        """Return the results of the training as a dict.

        If training has ended (and was not just stopped), evaluate the best checkpoint and save the results.
        """
        measured: dict[str, dict[str, Any]] = {"validation": {"metrics": state.last_metrics}}
        baselines: dict[str, dict[str, Any]] = {}
        train_metrics: dict[str, float] = {}
        if state.ended and self.process_group.is_rank_zero:
            loaded = Run(self.folder.path, task=self.experiment.task)
            for split in ("validation", "test"):
                if split in self.experiment.task.splits:
                    with self.reporter.status(f"measuring on {split}"):
                        measured[split] = loaded.evaluate(split, progress=self._progress)
            with self.reporter.status("measuring baselines"):
                split = "test" if "test" in measured else "validation"
                baselines = {split: self.experiment.baselines(split)}
                if baselines[split]:  # the advice depends on how well the training examples are fitted
                    limit = {"max_examples": TRAIN_EXAMPLES}
                    train_metrics = loaded.evaluate("train", limit, progress=self._progress)["metrics"]
        metrics = {split: of_split["metrics"] for split, of_split in measured.items()}
        signal_name = signal.Signals(self.exit_code - 128).name if self.exit_code else None
        results: dict[str, Any] = {
            "run": str(self.folder.path),
            "seed": self.config.seed,
            "steps": state.step,
            "epochs": state.epoch,
            "seconds": round(state.elapsed, 3),
            "tokens_per_second": round(state.tokens / state.seconds, 1) if state.seconds else 0.0,
            "parameters": sum(parameter.numel() for parameter in self.trainer.model.parameters()),
            "precision": self.trainer.config.precision,
            "total_steps": self.trainer.total_steps,
            "best_step": state.best_step,
            "best_metric": self.trainer.selecting_metric(state.last_metrics),
            "best_value": state.best,
            "uses_last": self.trainer.uses_last,
            "ended": state.ended or "signal",
            "ended_because": explain_end(self.trainer, signal_name),
            "signal": signal_name,
            "processes": self.process_group.world_size,
            "primary_metric": self.trainer.primary_metric(metrics["validation"]),
            "metrics": metrics,
            "intervals": {split: of_split.get("intervals", {}) for split, of_split in measured.items()},
            "protocol": {split: of_split.get("protocol", {}) for split, of_split in measured.items()},
            "baselines": baselines,
            "train_metrics": train_metrics,
            "warnings": self.folder.warnings() if self.process_group.is_rank_zero else [],
        }
        results["warnings"] += baseline_warnings(results, self.experiment.task, self.config)
        if state.ended and self.process_group.is_rank_zero:
            # Privacy: without the path, which may name a user.
            self.folder.write_results({name: value for name, value in results.items() if name != "run"})
        self._heartbeat("done" if state.ended else "stopped")
        return results | {"resumed_from": self.resumed_from}

    def next_commands(self) -> list[str]:
        """Return commands to try on the trained run, or, if it was stopped, the command to resume it.

        Some commands contain an example input. To find one, the data may be read again.
        """
        if not self.process_group.is_rank_zero:
            return []
        if not self.trainer.state.ended:
            return [resume_command(self.folder.path)]
        return next_commands(self.folder.path, self.experiment.task)


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
    overrides = overrides if isinstance(overrides, Mapping) else list(overrides)
    config, given = resolve(source, overrides), flatten(parse_overrides(overrides))
    resume = resume or restarts > 0
    path = Path(process_group.on_rank_zero(lambda: str(run_path(source, config, run, resume))))
    reporter.info(f"run {path}" + (f", restart {restarts}" if restarts else ""))
    if resume and process_group.is_rank_zero and not RunFolder(path).exists():
        there = f"in {path}" if run else f"of this config in {DEFAULT_RUNS}"
        reporter.info(f"there is no unfinished run {there} to resume: starting a new run")
    folder = RunFolder(path)
    return TrainingSession(config, folder, reporter, process_group=process_group, given=given)


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
    session.report_end(session.run())
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
    """Return the validated config of a run.

    A run of an older version may lack options that were added since. They get their defaults.
    """
    return validate(ExperimentConfig, folder.config())


def _show_changes(changed: Mapping[str, tuple[Any, Any]], given: tuple[str, ...] = ()) -> str:
    """Return the options that differ as text, as many as fit on two lines, those in `given` first."""
    shown: list[str] = []
    for path in sorted(changed, key=lambda path: not path.startswith(given)):
        old, new = map(format_value, changed[path])
        change = f"{path}: {old} → {new}"
        if shown and sum(map(len, shown)) + len(change) > CHANGES_WIDTH:
            return "; ".join([*shown, f"and {len(changed) - len(shown)} more"])
        shown.append(change)
    return "; ".join(shown)
