"""How settings are chosen, and which runs are not worth their end: Optuna's methods by our names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
