"""Functions that run all checks on a model or on a run, and the names of these checks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from glassformer.core.errors import UserError
from glassformer.doctor import checks, learning
from glassformer.doctor.checks import CheckContext
from glassformer.doctor.report import Check, Measure, Measurement, Progress, Report, at_most, run_checks
from glassformer.interchange.export import ExportPlan, destinations
from glassformer.models.base import Model
from glassformer.runs.experiment import Experiment
from glassformer.runs.folder import RunFolder
from glassformer.runs.run import Run
from glassformer.training.checkpoints import POINTERS, DamagedCheckpoint

MODEL_CHECKS: dict[str, Callable[[CheckContext], Measurement]] = {
    "future tokens do not affect earlier outputs": checks.future,
    "inputs do not contain their targets": checks.target_leak,
    "padding does not affect outputs or loss": checks.padding,
    "sequences in a batch are independent": checks.neighbours,
    "cached decoding equals full decoding": checks.cached_decoding,
    "fused attention equals the reference": checks.fused_attention,
    "a fully masked row gives zeros": checks.masked_row,
    "positions affect the outputs": checks.positions,
    "dropout is active in training only": checks.dropout,
    "initial loss is near ln V": learning.initial_loss,
    "one batch can be overfitted": learning.overfitting,
    "gradient accumulation equals one large batch": learning.gradient_accumulation,
    "every parameter gets a gradient": learning.every_gradient,
    "saving and loading is exact": learning.saving,
}


def check_model(
    experiment: Experiment,
    trained: Model | None = None,
    *,
    source: str = "",
    progress: Progress | None = None,
    done: list[Check] | None = None,
) -> Report:
    """Run all model checks on the `trained` model if it is given, else on a newly initialised model."""
    context = CheckContext(experiment, trained)
    # Build these first: an invalid config or missing file is a user error, not a failed check.
    _ = context.fresh, context.sample
    measures: dict[str, Measure] = {name: partial(check, context) for name, check in MODEL_CHECKS.items()}
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        results = run_checks(measures, progress, done)
    exports = destinations(ExportPlan(experiment.config.model, experiment.task))
    return Report(source, results, context.note, exports)


def check_run(path: Path, checkpoint: str = "best", *, progress: Progress | None = None) -> Report:
    """Verify the checksums of a run's files, then run all model checks unless the checkpoint is damaged."""
    folder = RunFolder.open(path)
    done = run_checks({name: partial(check, folder) for name, check in RUN_CHECKS.items()})
    try:
        run = Run(path, checkpoint)
    except UserError:
        if all(check.passed for check in done):
            raise
        return Report(str(path), done)
    return check_model(
        Experiment(run.config, run.task),
        run.model,
        source=f"{path}, {run.checkpoint}",
        progress=progress,
        done=done,
    )


def _checksums(folder: RunFolder) -> Measurement:
    """Verify the SHA-256 of every checkpoint file, and the pointers to the best and latest checkpoint."""
    store = folder.checkpoints()
    damages = []
    for name in store.names():
        try:
            store.verify(store.folder / name)
        except DamagedCheckpoint as damage:
            if name in store.names():  # otherwise a running training has just deleted it
                damages.append(str(damage))
    damages += [error.details[0].lines()[0] for error in map(store.damaged_pointer, POINTERS) if error]
    detail = "; ".join(damages) or f"SHA-256 of every file of {len(store.names())} checkpoints"
    return at_most(len(damages), 0, detail)


def _files(folder: RunFolder) -> Measurement:
    """Verify all other files of a run: config, task, environment, results, status and event log."""
    damages = []
    for read in (folder.config, folder.task_state, folder.environment, folder.results, folder.status):
        try:
            read()
        except UserError as error:
            damages.append(error.details[0].lines()[0])
    try:
        newest = folder.checkpoints().load_newest()
    except UserError:  # reported by the check of the checkpoints
        newest = None
    if newest is not None:
        damages += filter(None, [folder.events.find_damage(newest[1].state)])
    return at_most(len(damages), 0, "; ".join(dict.fromkeys(damages)) or "SHA-256 of every other file")


RUN_CHECKS: dict[str, Callable[[RunFolder], Measurement]] = {
    "checkpoint checksums match": _checksums,
    "checksums of the other run files match": _files,
}
