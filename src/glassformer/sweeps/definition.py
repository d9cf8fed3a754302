"""Definition of a sweep, stored in its database; samplers and pruners by our names."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from glassformer.core.config import Tree, flatten, parse_overrides, unflatten
from glassformer.core.errors import user_error
from glassformer.runs.experiment import Experiment, ExperimentConfig, apply_overrides, read_source
from glassformer.sweeps.space import Point, Space, parse_space, split_arguments

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler


@dataclass(frozen=True)
class Method:
    build: Callable[[int], BaseSampler]
    """From a seed."""
    is_grid: bool = False
    """Whether every combination is trained, so that nothing is left to draw."""


def _random(seed: int) -> BaseSampler:
    from optuna.samplers import RandomSampler

    return RandomSampler(seed=seed)


def _tpe(seed: int) -> BaseSampler:
    from optuna.samplers import TPESampler

    # Settings that others are training count as bad ones, so that workers do not crowd at one place.
    return TPESampler(seed=seed, constant_liar=True)


SAMPLERS = {"grid": Method(_random, is_grid=True), "random": Method(_random), "tpe": Method(_tpe)}


def _median() -> BasePruner:
    from optuna.pruners import MedianPruner

    return MedianPruner(n_startup_trials=4, n_min_trials=3)


def _halving() -> BasePruner:
    from optuna.pruners import SuccessiveHalvingPruner

    return SuccessiveHalvingPruner()


def _nothing() -> BasePruner:
    from optuna.pruners import NopPruner

    return NopPruner()


PRUNERS: dict[str, Callable[[], BasePruner]] = {"median": _median, "halving": _halving}


def build_pruner(name: str | None) -> BasePruner:
    return _nothing() if name is None else PRUNERS[name]()


DEFAULT_TRIALS = 20
"""Of a sampler that could go on for ever."""
MOST_CHECKED = 1000
"""Settings of a grid that are validated before the first is trained; the rest when their turn comes."""


@dataclass(frozen=True)
class Definition:
    tree: Tree
    """WHAT, as it was read."""
    fixed: Tree
    """What was set besides."""
    texts: Mapping[str, str]
    """What is varied, as it was written."""
    sampler: str
    pruner: str | None
    metric: str
    """Of the validation set; the best setting is chosen by it, and never by the test set."""
    seeds: int
    trials: int | None
    """How many settings; None: all of a grid, or as many as time allows."""
    heartbeat: int
    """Seconds between two signs of life of a worker."""

    def name(self) -> str:
        """The same for the same question; more seeds and more trials do not make it another."""
        asked = {
            key: value for key, value in self.to_json().items() if key not in ("seeds", "trials", "heartbeat")
        }
        text = json.dumps(asked, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        return cls(**values)

    @cached_property
    def space(self) -> Space:
        return parse_space(self.texts)

    @property
    def is_grid(self) -> bool:
        return SAMPLERS[self.sampler].is_grid

    @cached_property
    def first_seed(self) -> int:
        return self.config(self.space.first()).seed

    def seed_range(self) -> range:
        return range(self.first_seed, self.first_seed + self.seeds)

    def config(self, point: Mapping[str, Any], seed: int | None = None) -> ExperimentConfig:
        changed = {**flatten(self.fixed), **point}
        if seed is not None:
            changed["seed"] = seed
        return apply_overrides(self.tree, unflatten(changed))


def define(
    what: str,
    arguments: Iterable[str],
    *,
    sampler: str | None = None,
    pruner: str | None = None,
    metric: str | None = None,
    seeds: int = 1,
    trials: int | None = None,
    minutes: float | None = None,
    heartbeat: int = 5,
) -> Definition:
    """A sweep whose every value the config takes, and whose data are there."""
    for place, number in (("--seeds", seeds), ("--trials", trials), ("--heartbeat", heartbeat)):
        if number is not None and number < 1:
            raise user_error("at least one", path=place, value=number, hint=f"{place} 3")
    if minutes is not None and not minutes > 0:
        raise user_error("a time above zero", path="--minutes", value=minutes, hint="--minutes 30")
    space, others = split_arguments(arguments)
    if "seed" in space.axes:
        raise user_error("seeds are not compared, they are averaged", path="seed", hint="--seeds 3")
    sampler = sampler or ("tpe" if space.unlisted() else "grid")
    is_grid = SAMPLERS[sampler].is_grid
    if is_grid and space.unlisted():
        path = space.unlisted()[0]
        raise user_error(
            "a grid needs values that can be counted",
            path=path,
            value=space.texts[path],
            hint="--sampler tpe or random, or values such as 1e-2,1e-3,1e-4",
        )
    if not is_grid and trials is None and minutes is None:
        trials = DEFAULT_TRIALS
    fixed = parse_overrides(others)
    for path in flatten(fixed).keys() & space.axes.keys():
        raise user_error("set twice, once to be varied", path=path, hint="give one of the two")
    definition = Definition(
        read_source(what), fixed, space.texts, sampler, pruner, metric or "", seeds, trials, heartbeat
    )
    first = _check_values(definition)
    if metric is None:
        definition = dataclasses.replace(definition, metric=Experiment(first).task.primary_metric)
    return definition


def _check_values(definition: Definition) -> ExperimentConfig:
    """The first setting's config; an error at its path for a value that the config does not take."""
    space, first = definition.space, definition.space.first()
    config = definition.config(first)
    for path, values in space.axes.items():
        for value in values.checked():
            definition.config({**first, path: value})
    if definition.is_grid:
        for point in space.grid()[:MOST_CHECKED]:
            definition.config(point)
    return config


def setting_text(point: Point) -> str:
    """For people: `learning_rate 0.001, num_layers 2`."""
    return ", ".join(f"{path.rpartition('.')[2]} {short(value)}" for path, value in point.items())


def short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def study_name(what: str, definition: Definition) -> str:
    stem = Path(what).name.removesuffix(".yaml").removesuffix(".yml") or "sweep"
    return f"{stem}-{definition.name()}"
