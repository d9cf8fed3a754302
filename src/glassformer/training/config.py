"""The options of the training loop."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

import glassformer.training.optimizers  # noqa: F401  registers its kind
from glassformer.core.config import Node
from glassformer.core.errors import ErrorDetail
from glassformer.training.embedding_init import FirstVectorsConfig, RandomVectorsConfig
from glassformer.training.optimizers import AdamWConfig, OptimizerConfig, ScheduleConfig, WarmupCosineConfig
from glassformer.training.strategies import DataParallelConfig, ParallelConfig

Count = Annotated[int, Field(ge=1)]


class DivergenceConfig(Node):
    """What happens when the loss is no number, or jumps."""

    action: Literal["stop", "roll-back"] = Field(
        "stop", description="roll-back: return to the last checkpoint and halve the rate"
    )
    spike_factor: float | None = Field(
        8.0,
        gt=1,
        description="a loss this many times the recent median is a spike; none: only NaN and infinity",
    )
    max_rollbacks: Count = 5


class StoppingConfig(Node):
    """When a run may end before its last step. Both look at the headline metric of the validation set."""

    target: float | None = Field(None, description="stop when the metric reaches this")
    times: Count = Field(1, description="so many validations in a row must reach the target")
    patience: Count | None = Field(None, description="stop after this many validations without a better one")


class UnfreezeConfig(Node):
    """What is frozen is released layer by layer, from the top down (Howard and Ruder 2018)."""

    every: Count | None = Field(
        None, description="one more layer is trained after each so many units; none: what is frozen stays so"
    )
    unit: Literal["epochs", "steps"] = "epochs"


class TrainingConfig(Node):
    optimizer: OptimizerConfig = AdamWConfig()
    schedule: ScheduleConfig = WarmupCosineConfig()
    batch_size: Count = Field(128, description="sequences a step")
    batch_tokens: Count | None = Field(
        None, description="tokens a step, padding included, instead of batch_size"
    )
    gradient_accumulation: Count = Field(1, description="batches that make one step")
    max_epochs: Count | None = 10
    max_steps: int | None = Field(None, ge=0, description="none: no limit; 0: the first weights as they are")
    max_minutes: float | None = Field(None, gt=0)
    gradient_clip_norm: float | None = Field(1.0, gt=0, description="the gradient's norm is at most this")
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    ema_decay: float | None = Field(None, gt=0, lt=1, description="keep and use an average of the weights")
    average_last: Count | None = Field(None, description="at the end, average this many last checkpoints")
    start_from: str | None = Field(
        None,
        min_length=1,
        description="a run's folder: its embedding and blocks are copied,"
        " and its head too if the task asks the same",
    )
    embedding_init: FirstVectorsConfig = RandomVectorsConfig()
    freeze: list[str] = Field(
        [],
        description="what is not trained: backbone (all but the head), or names such as embedding and"
        " encoder.layers.0; dropout in it stays on",
    )
    unfreeze: UnfreezeConfig = UnfreezeConfig()
    layerwise_lr_decay: float = Field(
        1.0,
        gt=0,
        le=1,
        description="the head learns at the full rate, each layer at this share of the one above it,"
        " the embedding slowest",
    )
    precision: Literal["fp32", "bf16"] = "fp32"
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, mps")
    parallel: ParallelConfig = Field(
        DataParallelConfig(), description="how several processes share the work (--processes, torchrun)"
    )
    threads: Count | None = Field(None, le=1024, description="CPU threads; none: what PyTorch chooses")
    log_every: Count = Field(10, description="steps between two lines of the record")
    validate_every: Count | None = Field(None, description="steps; none: at the end of each epoch")
    validation_examples: Count | None = Field(
        None, description="validate on the first so many; the end of a run measures on all"
    )
    save_every: Count | None = Field(
        None, description="steps between checkpoints; none: with each validation"
    )
    keep_checkpoints: Count = Field(2, description="besides the best one")
    stopping: StoppingConfig = StoppingConfig()
    divergence: DivergenceConfig = DivergenceConfig()
    tensorboard: bool = Field(False, description="also write TensorBoard events")

    @field_validator("freeze", mode="before")
    @classmethod
    def _list_names(cls, value: Any) -> Any:
        """One name needs no brackets, and none means nothing."""
        if value is None:
            return []
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_thaw(self) -> Self:
        if self.unfreeze.every is not None and not self.freeze:
            raise ErrorDetail(
                "nothing is frozen",
                path="unfreeze.every",
                value=self.unfreeze.every,
                hint="training.freeze=backbone",
            )
        return self

    @model_validator(mode="after")
    def _check_end(self) -> Self:
        if self.max_epochs is None and self.max_steps is None and self.max_minutes is None:
            raise ErrorDetail(
                "when does training end?", path="max_epochs", value="null", hint="max_epochs=10"
            )
        if self.max_epochs is None and self.max_steps is None and self.schedule.needs_end:
            raise ErrorDetail(
                "this schedule must know the number of steps",
                path="schedule.kind",
                value=self.schedule.kind,
                hint="set max_steps or max_epochs, or schedule.kind=constant",
            )
        return self

    def checkpoints_kept(self) -> int:
        return max(self.keep_checkpoints, self.average_last or 0)

    def count_steps(self, steps_per_epoch: int) -> int | None:
        limits = []
        if self.max_steps is not None:
            limits.append(self.max_steps)
        if self.max_epochs is not None:
            limits.append(self.max_epochs * steps_per_epoch)
        return min(limits) if limits else None

    def steps_between_thaws(self, steps_per_epoch: int) -> int | None:
        if self.unfreeze.every is None:
            return None
        return self.unfreeze.every * (steps_per_epoch if self.unfreeze.unit == "epochs" else 1)
