"""Expected time and memory of a training run, from a few measured steps."""

from __future__ import annotations

import contextlib
import copy
import statistics
import time
from dataclasses import dataclass

import numpy as np
import torch

from glassformer.core.system import available_memory, peak_memory
from glassformer.evaluation.evaluate import evaluation_batches
from glassformer.evaluation.metrics import Tally
from glassformer.generation import DecodingConfig
from glassformer.training.state import random_tensors, restore_random
from glassformer.training.trainer import Diverged, Trainer

WARMUP_STEPS = 2
ENOUGH_SECONDS = 5.0
"""Seconds after which no further step is timed, so that a large model is timed by one or a few steps."""
FEW_ROWS = 32
"""Maximum number of rows per batch when the evaluation of a large model is timed."""


@dataclass(frozen=True)
class Estimate:
    """Expected time and memory of a training run on this machine."""

    seconds_per_step: float
    seconds_per_validation: float
    steps: int | None
    validations: int
    seconds: float | None
    peak_bytes: int
    available_bytes: int | None
    may_end_early: bool

    def describe(self) -> str:
        """Return the expected steps, time and memory as one line of text."""
        steps = "any number of" if self.steps is None else f"{self.steps:,}"
        about = "at most about" if self.may_end_early else "about"
        time_needed = "until stopped" if self.seconds is None else f"{about} {duration(self.seconds)}"
        return (
            f"{steps} steps of {self.seconds_per_step * 1000:,.1f} ms, {time_needed},"
            f" {self.peak_bytes / 2**20:,.0f} MiB of memory"
        )

    def fits(self) -> bool:
        """Return False if the run needs more memory than is known to be available, else True."""
        return self.available_bytes is None or self.peak_bytes <= self.available_bytes


def estimate(trainer: Trainer, steps: int = 8) -> Estimate:
    """Time a few steps and part of a validation on a copy of the trainer, and return the expected costs."""
    before = random_tensors()
    config = trainer.config.with_overrides({"freeze": [], "unfreeze": {"every": None}})  # all layers unfrozen
    twin = Trainer(trainer.task, copy.deepcopy(trainer.model), config, trainer.evaluation, trainer.seed)
    twin.model.train()
    plan = twin.plan(0)
    spread = np.linspace(0, len(plan) - 1, min(steps + WARMUP_STEPS, len(plan))).astype(int)
    seconds = []
    try:
        for index in spread:
            started = time.perf_counter()
            with contextlib.suppress(Diverged):  # the run itself will report it
                twin.step(twin.micro_batches(plan[index], 0))
            seconds.append(time.perf_counter() - started)
            if sum(seconds) > ENOUGH_SECONDS:
                break
        per_step = statistics.fmean(seconds[WARMUP_STEPS:] or seconds[-1:])
        is_large = sum(seconds) > ENOUGH_SECONDS
        rows = FEW_ROWS if is_large else None
        per_validation = _evaluation_seconds(twin, "validation", twin.evaluation.training_decoding, rows)
        # Run for its memory, not its time: the end of a run may need the most, except for a large model.
        if "test" in twin.task.splits and not is_large:
            _evaluation_seconds(twin, "test", twin.evaluation.decoding, rows)
    finally:
        restore_random(before)

    remaining = None if trainer.total_steps is None else trainer.total_steps - trainer.state.step
    every = trainer.config.validate_every or trainer.steps_per_epoch
    validations = 0 if remaining is None else max(1, remaining // every)
    total = None if remaining is None else remaining * per_step + validations * per_validation
    if trainer.config.max_minutes is not None:
        total = min(total or float("inf"), 60 * trainer.config.max_minutes + per_validation)
    stopping = trainer.config.stopping
    return Estimate(
        seconds_per_step=per_step,
        seconds_per_validation=per_validation,
        steps=remaining,
        validations=validations,
        seconds=total,
        peak_bytes=peak_memory(),
        available_bytes=available_memory(),
        may_end_early=stopping.target is not None or stopping.patience is not None,
    )


def duration(seconds: float) -> str:
    """Format a number of seconds as text, such as `2 h 5 min`, `3 min 20 s` or `12 s`."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60:,} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _evaluation_seconds(twin: Trainer, split: str, decoding: DecodingConfig, rows: int | None) -> float:
    """Estimate the seconds of an evaluation on a split, from the time of `rows` rows of one batch."""
    batches = evaluation_batches(twin.task, split, twin.evaluation)
    batch = batches[len(batches) // 2]
    sample = batch[:rows]
    twin.model.eval()
    started = time.perf_counter()
    with torch.inference_mode():
        Tally(twin.model, is_thorough=False).add(twin.task.batch(split, sample).to(twin.device))
        if twin.evaluation.decode_during_training and twin.task.generates_outputs:
            twin.task.decode(twin.model, split, [sample], decoding)
    return (time.perf_counter() - started) * len(batch) / len(sample) * len(batches)
