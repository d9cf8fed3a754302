"""Training options: optimizer, batches, limits, checkpoints and hardware."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

import glassformer.training.optimizers  # noqa: F401  registers its kinds
from glassformer.core.config import Node
from glassformer.core.errors import ErrorDetail
from glassformer.training.embedding_init import EmbeddingInitConfig, RandomInitConfig
from glassformer.training.optimizers import AdamWConfig, OptimizerConfig, ScheduleConfig, WarmupCosineConfig
from glassformer.training.small_data import SmallDataConfig, disabled_rules
from glassformer.training.strategies import DDPConfig, ParallelConfig

Count = Annotated[int, Field(ge=1)]


class DivergenceConfig(Node):
    """Divergence guard: action on a loss that is NaN, infinite or spiking."""

    action: Literal["stop", "roll-back"] = Field(
        "stop",
        description="stop: end with an error; roll-back: restore a checkpoint and halve the learning rate",
    )
    spike_factor: float | None = Field(
        8.0,
        gt=1,
        description="a loss above this multiple of the recent losses (90th percentile) counts as divergence;"
        " null: only NaN and infinity do",
    )
    max_rollbacks: Count = Field(5, description="number of roll-backs before training ends with an error")


class StoppingConfig(Node):
    """Early stopping by the primary metric on the validation split."""

    target: float | None = Field(
        None, description="stop when the primary metric reaches this value; null: no target"
    )
    consecutive: Count = Field(1, description="number of consecutive validations that must reach the target")
    patience: Count | None = Field(
        None, description="stop after this many validations without improvement; null: do not"
    )


class UnfreezeConfig(Node):
    """Gradual unfreezing of frozen layers, one by one from the top down (Howard and Ruder 2018)."""

    every: Count | None = Field(
        None,
        description="unfreeze one more layer after this many epochs or steps; null: keep layers frozen",
    )
    unit: Literal["epochs", "steps"] = Field("epochs", description="unit of `unfreeze.every`")


class TrainingConfig(Node):
    """Config section `training`: optimizer, batches, limits, checkpoints and hardware."""

    optimizer: OptimizerConfig = Field(AdamWConfig(), description="rule that turns gradients into updates")
    schedule: ScheduleConfig = Field(
        WarmupCosineConfig(), description="learning rate as a function of the step, relative to its peak"
    )
    batch_size: Count = Field(128, description="sequences per batch")
    batch_tokens: Count | None = Field(
        None, description="tokens per batch, padding included; replaces batch_size"
    )
    gradient_accumulation: Count = Field(1, description="batches per optimizer step")
    max_epochs: Count | None = Field(
        10, description="limit on passes over the training split; null: no limit"
    )
    max_steps: int | None = Field(
        None, ge=0, description="limit on optimizer steps; null: no limit; 0: keep the initial weights"
    )
    max_minutes: float | None = Field(
        None,
        gt=0,
        description="limit on the time in minutes, besides max_epochs or max_steps, of which most schedules"
        " need one; null: no limit",
    )
    gradient_clip_norm: float | None = Field(
        1.0, gt=0, description="clip the gradient to this norm; null: do not clip"
    )
    label_smoothing: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="probability mass of a target that is spread over all classes, so that the model learns"
        " not to be certain",
    )
    ema_decay: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="decay of an exponential moving average of the weights, used for evaluation; null: none",
    )
    average_last: Count | None = Field(
        None, description="average the weights of this many last checkpoints at the end; null: do not"
    )
    start_from: str | None = Field(
        None,
        min_length=1,
        description="run folder from which the initial embedding and blocks are copied;"
        " the output head too if both tasks have the same outputs",
    )
    embedding_init: EmbeddingInitConfig = Field(
        RandomInitConfig(), description="initial values of the token embedding"
    )
    freeze: list[str] = Field(
        [],
        description="modules that are not trained: backbone (all but the head), or names such as embedding"
        " and encoder.layers.0; dropout in frozen modules stays on",
    )
    unfreeze: UnfreezeConfig = Field(
        UnfreezeConfig(), description="gradual unfreezing of frozen layers, from the top down"
    )
    layerwise_lr_decay: float = Field(
        1.0,
        gt=0,
        le=1,
        description="ratio of each layer's learning rate to that of the layer above it; the head has the full"
        " learning rate, the embedding the lowest",
    )
    precision: Literal["fp32", "bf16", "fp16", "auto"] = Field(
        "fp32",
        description="bf16: matrix products in bfloat16 (on a GPU: autocast), all else in fp32; fp16: autocast"
        " with a gradient scaler, for GPUs without bf16; auto: bf16 if it is faster on this processor",
    )
    device: str = Field(
        "auto", description="auto, cpu, cuda, cuda:1 or mps; auto prefers cuda, then mps, then cpu"
    )
    compile: bool = Field(
        False,
        description="compile the blocks with torch.compile in the first step (a minute or so); on a CPU this"
        " needs a C++ compiler",
    )
    parallel: ParallelConfig = Field(
        DDPConfig(), description="strategy for training with several processes (--processes, torchrun)"
    )
    threads: Count | None = Field(None, le=1024, description="CPU threads; null: PyTorch's choice")
    log_every: Count = Field(10, description="steps between two `step` events in the event log")
    validate_every: Count | None = Field(
        None, description="steps between validations; null: at the end of each epoch"
    )
    validation_examples: Count | None = Field(
        None,
        description="validate on this many examples during training; null: all; the last evaluation uses all",
    )
    save_every: Count | None = Field(None, description="steps between checkpoints; null: at each validation")
    save_minutes: float | None = Field(
        5.0,
        gt=0,
        description="also save a checkpoint after at most this many minutes, and sooner at the beginning; it"
        " serves --resume alone and never affects results; null: do not save by time",
    )
    keep_checkpoints: Count = Field(
        2, description="number of newest checkpoints to keep, besides the best one"
    )
    best_by: Literal["primary", "loss"] = Field(
        "primary",
        description="validation metric that selects the best checkpoint: the primary metric of the task, or"
        " the loss, which varies less on few examples",
    )
    small_data: SmallDataConfig = Field(
        SmallDataConfig(), description="rules that adapt batches, epochs and warm-up to little data"
    )
    stopping: StoppingConfig = Field(
        StoppingConfig(), description="early stopping by the primary metric on the validation split"
    )
    divergence: DivergenceConfig = Field(
        DivergenceConfig(), description="action on a loss that is NaN, infinite or spiking"
    )
    tensorboard: bool = Field(False, description="also write the events in TensorBoard format")

    @model_validator(mode="before")
    @classmethod
    def _disable_rules(cls, given: Any) -> Any:
        """Disable each rule of `small_data` (set it to null) that would change an option in `given`."""
        rules = given.get("small_data", {}) if isinstance(given, Mapping) else None
        if not isinstance(rules, Mapping):
            return given
        return {**given, "small_data": {**disabled_rules(given), **rules}}

    @field_validator("freeze", mode="before")
    @classmethod
    def _list_names(cls, value: Any) -> Any:
        """Return a list: wrap a single name, and replace null by an empty list."""
        if value is None:
            return []
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_unfreeze(self) -> Self:
        if self.unfreeze.every is not None and not self.freeze:
            raise ErrorDetail(
                "there is nothing to unfreeze, because no module is frozen",
                path="unfreeze.every",
                value=self.unfreeze.every,
                hint="training.freeze=backbone",
            )
        return self

    @model_validator(mode="after")
    def _check_end(self) -> Self:
        if self.max_epochs is None and self.max_steps is None and self.max_minutes is None:
            raise ErrorDetail(
                "training has no end", path="max_epochs", value="null", hint="training.max_epochs=10"
            )
        if self.max_epochs is None and self.max_steps is None and self.schedule.needs_end:
            raise ErrorDetail(
                "this schedule needs a number of steps",
                path="schedule.kind",
                value=self.schedule.kind,
                hint="set max_steps or max_epochs, or schedule.kind=constant",
            )
        return self

    def num_checkpoints_kept(self) -> int:
        """Return the number of newest checkpoints to keep, including those that `average_last` needs."""
        return max(self.keep_checkpoints, self.average_last or 0)

    def count_steps(self, steps_per_epoch: int) -> int | None:
        """Return the smaller limit of `max_steps` and `max_epochs` in steps, or None if both are null."""
        by_epochs = None if self.max_epochs is None else self.max_epochs * steps_per_epoch
        return min((limit for limit in (self.max_steps, by_epochs) if limit is not None), default=None)

    def steps_between_unfreezing(self, steps_per_epoch: int) -> int | None:
        """Return the number of steps after which one more layer is unfrozen; None if layers stay frozen."""
        if self.unfreeze.every is None:
            return None
        return self.unfreeze.every * (steps_per_epoch if self.unfreeze.unit == "epochs" else 1)
