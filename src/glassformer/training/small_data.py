"""Small data: rules that fit batches, epochs and warm-up to the number of training examples."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from glassformer.core.config import Node
from glassformer.data.batching import plan_batches

if TYPE_CHECKING:
    from glassformer.training.config import TrainingConfig

MIN_SEQUENCES = 8
"""Smallest batch in sequences: gradients of fewer sequences are too noisy to be worth more steps."""

Count = Annotated[int, Field(ge=1)]


class SmallDataConfig(Node):
    """Rules that adapt training to few examples. A rule is disabled if you set an option that it would
    change, such as `batch_size`.
    """

    min_batches: Count | None = Field(
        20, description="halve the batches until an epoch has this many of them; null: keep the batches"
    )
    min_steps: Count | None = Field(
        400, description="add epochs until training takes this many steps; null: keep max_epochs"
    )
    max_warmup: float | None = Field(
        0.2, gt=0, le=1, description="largest fraction of the steps that warm up; null: keep warmup_steps"
    )
    min_validation: Count | None = Field(
        None,
        description="validation examples that it takes to select the best checkpoint; with fewer, the last"
        " checkpoint is used; null: always select",
    )


RULE_OF = {
    "batch_size": "min_batches",
    "batch_tokens": "min_batches",
    "max_steps": "min_steps",
    "max_epochs": "min_steps",
    "warmup_steps": "max_warmup",
    "best_by": "min_validation",
    "stopping": "min_validation",
}
"""Rule that would change each option of `training` or `training.schedule`."""


def disabled_rules(given: Mapping[str, Any]) -> dict[str, None]:
    """Return `{rule: None}` for each rule that would change one of the given `training` options."""
    schedule = given.get("schedule")
    options = {*given, *(schedule if isinstance(schedule, Mapping) else ())}
    return {rule: None for option, rule in RULE_OF.items() if option in options}


def fit_to_data(config: TrainingConfig, lengths: np.ndarray, drop_last: bool) -> TrainingConfig:
    """Return the config with smaller batches, more epochs and a shorter warm-up, as its rules require."""
    fitted = _shrink_batches(config, lengths, drop_last)
    rules, steps_per_epoch = config.small_data, _count_steps(fitted, lengths, drop_last)
    if rules.min_steps is not None and fitted.max_epochs is not None:
        epochs = max(fitted.max_epochs, math.ceil(rules.min_steps / steps_per_epoch))
        fitted = fitted.model_copy(update={"max_epochs": epochs})
    steps = fitted.count_steps(steps_per_epoch)
    if rules.max_warmup is not None and steps is not None:
        warmup = min(fitted.schedule.warmup_steps, math.ceil(rules.max_warmup * steps))
        schedule = fitted.schedule.model_copy(update={"warmup_steps": warmup})
        fitted = fitted.model_copy(update={"schedule": schedule})
    return fitted


def describe_changes(given: TrainingConfig, fitted: TrainingConfig, examples: int) -> str | None:
    """Return one line with the options that `fit_to_data` changed, or None if it changed none."""
    options = {
        "batch_size": (given.batch_size, fitted.batch_size),
        "batch_tokens": (given.batch_tokens, fitted.batch_tokens),
        "max_epochs": (given.max_epochs, fitted.max_epochs),
        "schedule.warmup_steps": (given.schedule.warmup_steps, fitted.schedule.warmup_steps),
    }
    changes = {name: f"{name}={new} (not {old})" for name, (old, new) in options.items() if new != old}
    if not changes:
        return None
    causes = []
    if _is_limited_by_steps(fitted) and "schedule.warmup_steps" in changes:
        warmup = changes.pop("schedule.warmup_steps")
        causes.append(f"{fitted.max_steps:,} steps are few: training uses {warmup}")
    if changes:
        causes.insert(
            0, f"{examples:,} training examples are few: training uses {', '.join(changes.values())}"
        )
    return f"{'; '.join(causes)}; to choose yourself, set these options"


def _is_limited_by_steps(fitted: TrainingConfig) -> bool:
    """Return True if `max_steps`, not the number of examples, made the warm-up shorter."""
    share, steps = fitted.small_data.max_warmup, fitted.max_steps
    if share is None or steps is None:
        return False
    return fitted.schedule.warmup_steps == math.ceil(share * steps)


def _shrink_batches(config: TrainingConfig, lengths: np.ndarray, drop_last: bool) -> TrainingConfig:
    """Halve the batch size until an epoch has at least `min_batches` batches.

    Stop earlier if a batch would have fewer than MIN_SEQUENCES sequences.
    """
    least = config.small_data.min_batches
    if least is None:
        return config
    name = "batch_size" if config.batch_tokens is None else "batch_tokens"
    smallest = MIN_SEQUENCES * (1 if config.batch_tokens is None else float(lengths.mean()))
    size: int = getattr(config, name)
    while size // 2 >= smallest and _count_steps(config, lengths, drop_last) < least:
        size //= 2
        config = config.model_copy(update={name: size})
    return config


def _count_steps(config: TrainingConfig, lengths: np.ndarray, drop_last: bool) -> int:
    """Return the optimizer steps per epoch."""
    plan = plan_batches(
        lengths,
        seed=0,
        split="train",
        epoch=0,
        batch_size=config.batch_size,
        batch_tokens=config.batch_tokens,
        drop_last=drop_last,
    )
    return max(1, math.ceil(len(plan) / config.gradient_accumulation))
