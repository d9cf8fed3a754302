"""Definition of a sweep, which is stored in its database; names of samplers and pruners."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.core.config import Tree, flatten, parse_overrides, unflatten
from glassformer.core.errors import user_error
from glassformer.runs.experiment import Experiment, ExperimentConfig, apply_overrides, read_source
from glassformer.sweeps.space import Point, SearchSpace, parse_space, split_arguments

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler


GRID = "grid"
SAMPLERS = (GRID, "random", "tpe")
PRUNERS = ("median", "halving")


def build_sampler(name: str, seed: int) -> BaseSampler:
    """Optuna's sampler of this name; a grid draws nothing, so any sampler serves it."""
    from optuna.samplers import RandomSampler, TPESampler

    # Settings in training count as bad ones, so that parallel workers do not all draw the same region.
    return TPESampler(seed=seed, constant_liar=True) if name == "tpe" else RandomSampler(seed=seed)


def build_pruner(name: str | None) -> BasePruner:
    """Optuna's pruner of this name; None: a pruner that never prunes."""
    from optuna.pruners import MedianPruner, NopPruner, SuccessiveHalvingPruner

    if name is None:
        return NopPruner()
    is_median = name == "median"
    return MedianPruner(n_startup_trials=4, n_min_trials=3) if is_median else SuccessiveHalvingPruner()


DEFAULT_TRIALS = 20
"""Number of settings if neither a grid nor an option limits it."""
MAX_CHECKED = 1000
"""Settings of a grid that are validated before the first training; the others are validated when they run."""


@dataclass(frozen=True)
class SweepDefinition:
    """Everything that determines the trials of a sweep."""

    tree: Tree
    """Config of SOURCE, before overrides."""
    fixed: Tree
    """Overrides of all runs."""
    texts: Mapping[str, str]
    """Text of the values of each varied path."""
    sampler: str
    pruner: str | None
    metric: str
    """Metric of the validation set that chooses the best setting; the test set never chooses."""
    seeds: int
    trials: int | None
    """Number of settings; None: the whole grid, or until the deadline."""
    heartbeat: int
    """Seconds between two heartbeats of a worker."""

    def name(self) -> str:
        """Hash of the definition; more seeds or trials do not change it."""
        asked = dataclasses.asdict(self)
        for key in ("seeds", "trials", "heartbeat"):
            del asked[key]
        text = json.dumps(asked, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    @cached_property
    def space(self) -> SearchSpace:
        """Parsed search space."""
        return parse_space(self.texts)

    @property
    def is_grid(self) -> bool:
        """True if every combination is trained."""
        return self.sampler == GRID

    @cached_property
    def first_seed(self) -> int:
        """Seed of the config, with which every setting starts."""
        return self.config(self.space.first()).seed

    def seed_range(self) -> range:
        """Seeds of every setting."""
        return range(self.first_seed, self.first_seed + self.seeds)

    def config(self, point: Mapping[str, Any], seed: int | None = None) -> ExperimentConfig:
        """Config of one setting."""
        changed = {**flatten(self.fixed), **point}
        if seed is not None:
            changed["seed"] = seed
        return apply_overrides(self.tree, unflatten(changed))


def define(
    source: str,
    arguments: Iterable[str],
    *,
    sampler: str | None = None,
    pruner: str | None = None,
    metric: str | None = None,
    seeds: int = 1,
    trials: int | None = None,
    minutes: float | None = None,
    heartbeat: int = 5,
) -> SweepDefinition:
    """Define a sweep; check its options, its values and that its data exist."""
    for option, number in (("--seeds", seeds), ("--trials", trials), ("--heartbeat", heartbeat)):
        if number is not None and number < 1:
            raise user_error("must be at least 1", path=option, value=number, hint=f"{option} 3")
    if minutes is not None and not minutes > 0:
        raise user_error("must be above zero", path="--minutes", value=minutes, hint="--minutes 30")
    space, others = split_arguments(arguments)
    if "seed" in space.axes:
        raise user_error("seeds are averaged, not compared", path="seed", hint="--seeds 3")
    sampler = sampler or ("tpe" if space.unlisted() else GRID)
    is_grid = sampler == GRID
    if is_grid and space.unlisted():
        path = space.unlisted()[0]
        raise user_error(
            "a grid needs a list of values",
            path=path,
            value=space.texts[path],
            hint="--sampler tpe or random, or values such as 1e-2,1e-3,1e-4",
        )
    if not is_grid and trials is None and minutes is None:
        trials = DEFAULT_TRIALS
    fixed = parse_overrides(others)
    for path in flatten(fixed).keys() & space.axes.keys():
        raise user_error("both set and varied", path=path, hint="keep one of the two")
    definition = SweepDefinition(
        read_source(source), fixed, space.texts, sampler, pruner, metric or "", seeds, trials, heartbeat
    )
    first = _check_values(definition)
    if metric is None:
        definition = dataclasses.replace(definition, metric=Experiment(first).task.primary_metric)
    return definition


def _check_values(definition: SweepDefinition) -> ExperimentConfig:
    """Return the config of the first setting; raise an error with the path of an invalid value."""
    space, first = definition.space, definition.space.first()
    config = definition.config(first)
    for path, values in space.axes.items():
        for value in values.checked():
            definition.config({**first, path: value})
    if definition.is_grid:
        for point in space.grid()[:MAX_CHECKED]:
            definition.config(point)
    return config


def setting_text(point: Point) -> str:
    """Short text of a setting: `learning_rate 0.001, num_layers 2`."""
    return ", ".join(f"{path.rpartition('.')[2]} {short_value(value)}" for path, value in point.items())


def short_value(value: Any) -> str:
    """Value with four significant digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def study_name(source: str, definition: SweepDefinition) -> str:
    """Name of the sweep in its database: the source and the hash of the definition."""
    stem = Path(source).name.removesuffix(".yaml").removesuffix(".yml") or "sweep"
    return f"{stem}-{definition.name()}"
