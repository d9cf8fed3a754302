"""The checks of a model by name, and what a model or a run is put through."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from glassformer.core.errors import UserError
from glassformer.doctor import checks, learning
from glassformer.doctor.checks import (
    Check,
    Measure,
    Measurement,
    Progress,
    Report,
    Subject,
    at_most,
    run_checks,
)
from glassformer.models.base import Model
from glassformer.runs.experiment import Experiment
from glassformer.runs.folder import RunFolder
from glassformer.runs.run import Run
from glassformer.training.checkpoints import POINTERS, DamagedCheckpoint

MODEL_CHECKS: dict[str, Callable[[Subject], Measurement]] = {
    "the future cannot change the past": checks.future,
    "no position is shown its own answer": checks.own_answer,
    "padding cannot change real positions": checks.padding,
    "sequences of a batch cannot change each other": checks.neighbours,
    "cached decoding equals full decoding": checks.cached_decoding,
    "fused attention equals the reference": checks.fused_attention,
    "a fully masked row gives zeros": checks.masked_row,
    "the model knows where a token stands": checks.positions,
    "dropout acts in training, and only there": checks.dropout,
    "initial loss is near ln V": learning.initial_loss,
    "one batch can be overfitted": learning.overfitting,
    "gradient accumulation equals the big batch": learning.gradient_accumulation,
    "every parameter gets a gradient": learning.every_gradient,
    "saving and loading is exact": learning.saving,
}


def examine_model(
    experiment: Experiment,
    trained: Model | None = None,
    *,
    what: str = "",
    progress: Progress | None = None,
    done: list[Check] | None = None,
) -> Report:
    """All model checks: on the trained model if there is one, else on a fresh one."""
    subject = Subject(experiment, trained)
    # A wrong config or a missing file is the user's to mend, and no finding about the model.
    _ = subject.fresh, subject.sample
    measures: dict[str, Measure] = {name: partial(check, subject) for name, check in MODEL_CHECKS.items()}
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        return Report(what, run_checks(measures, progress, done), subject.note)


def examine_run(path: Path, checkpoint: str = "best", *, progress: Progress | None = None) -> Report:
    """The checksums of all its checkpoints, then the model, unless that is damaged."""
    folder = RunFolder.open(path)
    done = run_checks({name: partial(check, folder) for name, check in RUN_CHECKS.items()})
    try:
        run = Run(path, checkpoint)
    except UserError:
        if all(check.passed for check in done):
            raise
        return Report(str(path), done)
    return examine_model(
        Experiment(run.config, run.task),
        run.model,
        what=f"{path}, {run.checkpoint}",
        progress=progress,
        done=done,
    )


def _checksums(folder: RunFolder) -> Measurement:
    store = folder.checkpoints()
    damages = []
    for name in store.names():
        try:
            store.verify(store.folder / name)
        except DamagedCheckpoint as damage:
            if name in store.names():  # else a training that goes on has just removed it
                damages.append(str(damage))
    damages += [error.details[0].lines()[0] for error in map(store.damaged_pointer, POINTERS) if error]
    detail = "; ".join(damages) or f"SHA-256 of every file of {len(store.names())} checkpoints"
    return at_most(len(damages), 0, detail)


def _files(folder: RunFolder) -> Measurement:
    """Config, task, environment, results, status, and the record as far as the newest checkpoint knows it."""
    damages = []
    for read in (folder.config, folder.task_state, folder.environment, folder.results, folder.status):
        try:
            read()
        except UserError as error:
            damages.append(error.details[0].lines()[0])
    try:
        newest = folder.checkpoints().load_newest()
    except UserError:  # said by the check of the checkpoints
        newest = None
    if newest is not None:
        damages += filter(None, [folder.events.damage(newest[1].state)])
    return at_most(len(damages), 0, "; ".join(dict.fromkeys(damages)) or "each has its SHA-256")


RUN_CHECKS: dict[str, Callable[[RunFolder], Measurement]] = {
    "checkpoints are what was written": _checksums,
    "the run's other files are what was written": _files,
}
