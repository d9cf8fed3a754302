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
    """Return Optuna's sampler with this name. A grid draws no values, so any sampler works for it."""
    from optuna.samplers import RandomSampler, TPESampler

    # Settings in training count as bad ones, so that parallel workers do not all draw the same region.
    return TPESampler(seed=seed, constant_liar=True) if name == "tpe" else RandomSampler(seed=seed)


def build_pruner(name: str | None) -> BasePruner:
    """Return Optuna's pruner with this name, or a pruner that never prunes if the name is None."""
    from optuna.pruners import MedianPruner, NopPruner, SuccessiveHalvingPruner

    if name is None:
        return NopPruner()
    is_median = name == "median"
    return MedianPruner(n_startup_trials=4, n_min_trials=3) if is_median else SuccessiveHalvingPruner()


DEFAULT_TRIALS = 20
"""Number of combinations of option values that a sweep tries if it is not a grid and no option limits it."""
MAX_CHECKED = 1000
"""Maximum number of grid points that are validated before training starts; others are validated when run."""


@dataclass(frozen=True)
class SweepDefinition:
    """Everything that determines the trials of a sweep."""

    tree: Tree
    """Config of SOURCE (a preset, a config file or a run) as a nested dict, before overrides."""
    fixed: Tree
    """Config overrides that apply to all runs of the sweep."""
    texts: Mapping[str, str]
    """Values of each varied config path, as typed on the command line, such as `1,2,4`."""
    sampler: str
    pruner: str | None
    metric: str
    """Validation metric that selects the best combination of option values. The test set never selects."""
    seeds: int
    trials: int | None
    """Number of combinations of option values; None trains the whole grid, or trains until the deadline."""
    heartbeat: int
    """Interval between two heartbeats of a worker, in seconds."""

    def name(self) -> str:
        """Return a short hash of the definition. The numbers of seeds and trials do not change the hash."""
        asked = dataclasses.asdict(self)
        for key in ("seeds", "trials", "heartbeat"):
            del asked[key]
        text = json.dumps(asked, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    @cached_property
    def space(self) -> SearchSpace:
        """Search space, parsed from `texts`."""
        return parse_space(self.texts)

    @property
    def is_grid(self) -> bool:
        """True if the sweep is a grid, which trains every combination of the values."""
        return self.sampler == GRID

    @cached_property
    def first_seed(self) -> int:
        """Seed in the config. It is the first seed of every combination of option values."""
        return self.config(self.space.first()).seed

    def seed_range(self) -> range:
        """Return the seeds with which every combination of option values is trained."""
        return range(self.first_seed, self.first_seed + self.seeds)

    def config(self, point: Mapping[str, Any], seed: int | None = None) -> ExperimentConfig:
        """Build the config for one combination of option values, with `seed` if it is given."""
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
    """Return the definition of a sweep, after checking its options, its values and that its data exist."""
    for option, number in (("--seeds", seeds), ("--trials", trials), ("--heartbeat", heartbeat)):
        if number is not None and number < 1:
            raise user_error("must be at least 1", path=option, value=number, hint=f"{option} 3")
    if minutes is not None and not minutes > 0:
        raise user_error("must be above zero", path="--minutes", value=minutes, hint="--minutes 30")
    space, others = split_arguments(arguments)
    if "seed" in space.axes:
        raise user_error(
            "a sweep cannot vary the seed, it averages over seeds",
            path="seed",
            hint="--seeds 3",
        )
    sampler = sampler or ("tpe" if space.unlisted() else GRID)
    is_grid = sampler == GRID
    if is_grid and space.unlisted():
        path = space.unlisted()[0]
        raise user_error(
            "a grid needs a list of values, not a continuous range",
            path=path,
            value=space.texts[path],
            hint="--sampler tpe or random, or values such as 1e-2,1e-3,1e-4",
        )
    if not is_grid and trials is None and minutes is None:
        trials = DEFAULT_TRIALS
    fixed = parse_overrides(others)
    for path in flatten(fixed).keys() & space.axes.keys():
        raise user_error("is both set to one value and varied", path=path, hint="keep one of the two")
    definition = SweepDefinition(
        read_source(source), fixed, space.texts, sampler, pruner, metric or "", seeds, trials, heartbeat
    )
    first = _check_values(definition)
    if metric is None:
        definition = dataclasses.replace(definition, metric=Experiment(first).task.primary_metric)
    return definition


def _check_values(definition: SweepDefinition) -> ExperimentConfig:
    """Return the config of the first combination; raise a user error if a value of the sweep is invalid."""
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
    """Return a combination of option values as short text, such as `learning_rate 0.001, num_layers 2`."""
    return ", ".join(f"{path.rpartition('.')[2]} {short_value(value)}" for path, value in point.items())


def short_value(value: Any) -> str:
    """Return the value as text; a float is rounded to four significant digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def study_name(source: str, definition: SweepDefinition) -> str:
    """Return the name of the sweep in its database: the name of the source and a hash of the definition."""
    stem = Path(source).name.removesuffix(".yaml").removesuffix(".yml") or "sweep"
    return f"{stem}-{definition.name()}"
