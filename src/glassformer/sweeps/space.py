"""What a sweep varies: `PATH=v1,v2`, `PATH=1..8`, `PATH=log:1e-5..1e-2`. Any path of the config tree.

It knows how values are written and drawn, nothing of what they configure.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from glassformer.core.config import format_value, parse_yaml
from glassformer.core.errors import user_error

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

# No number of a range begins or ends with a point: three points in a row must not pass for two.
_NUMBER = r"[-+]?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"
_RANGE = re.compile(rf"(log:)?({_NUMBER})\.\.({_NUMBER})")
_WHOLE = re.compile(r"[-+]?[0-9]+")
_OPENING, _CLOSING, _QUOTES = "[{(", "]})", "'\""

Point = dict[str, Any]
"""A value for each path that is swept."""


class Values(Protocol):
    """What one path may take."""

    def join_names(self) -> list[Any] | None:
        """All of them in order; None where there is no end of them."""
        ...

    def checked(self) -> list[Any]:
        """Those that show whether the config takes all of them."""
        ...

    def distribution(self) -> BaseDistribution: ...

    def suggest(self, trial: Trial, path: str) -> None:
        """Let Optuna's sampler choose, unless the trial has a value."""
        ...

    def label(self, value: Any) -> Any:
        """As Optuna keeps a value."""
        ...

    def value(self, label: Any) -> Any: ...

    @property
    def is_log(self) -> bool:
        """Whether they are drawn, and looked at, on a logarithmic scale."""
        ...


@dataclass(frozen=True)
class Choices:
    values: tuple[Any, ...]

    def join_names(self) -> list[Any]:
        return list(self.values)

    def checked(self) -> list[Any]:
        return list(self.values)

    def distribution(self) -> BaseDistribution:
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self._labels())

    def suggest(self, trial: Trial, path: str) -> None:
        trial.suggest_categorical(path, self._labels())

    def _labels(self) -> list[Any]:
        return [self.label(value) for value in self.values]

    def label(self, value: Any) -> Any:
        return format_value(value) if isinstance(value, (dict, list)) else value

    def value(self, label: Any) -> Any:
        return next(value for value in self.values if self.label(value) == label)

    @property
    def is_log(self) -> bool:
        """Numbers that spread over more than a decade and a half."""
        if not all(is_number(value) and value > 0 for value in self.values):
            return False
        return bool(max(self.values) / min(self.values) > 30)


@dataclass(frozen=True)
class Range:
    """Both ends belong to it."""

    low: float
    high: float
    is_whole: bool
    is_log: bool

    def join_names(self) -> list[Any] | None:
        return list(range(int(self.low), int(self.high) + 1)) if self.is_whole and not self.is_log else None

    def checked(self) -> list[Any]:
        return [self.low, self.high]

    def distribution(self) -> BaseDistribution:
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.is_whole:
            return IntDistribution(int(self.low), int(self.high), log=self.is_log)
        return FloatDistribution(self.low, self.high, log=self.is_log)

    def suggest(self, trial: Trial, path: str) -> None:
        if self.is_whole:
            trial.suggest_int(path, int(self.low), int(self.high), log=self.is_log)
        else:
            trial.suggest_float(path, self.low, self.high, log=self.is_log)

    def label(self, value: Any) -> Any:
        return value

    def value(self, label: Any) -> Any:
        return label


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@dataclass(frozen=True)
class Space:
    axes: Mapping[str, Values]
    texts: Mapping[str, str]
    """As they were written; `parse_space` makes the same of them on every machine."""

    def first(self) -> Point:
        return {path: values.checked()[0] for path, values in self.axes.items()}

    def unlisted(self) -> list[str]:
        """The paths whose values have no end, so that no grid covers them."""
        return [path for path, values in self.axes.items() if values.join_names() is None]

    def grid(self) -> list[Point]:
        listed = [values.join_names() or [] for values in self.axes.values()]
        return [dict(zip(self.axes, point, strict=True)) for point in itertools.product(*listed)]

    def distributions(self) -> dict[str, BaseDistribution]:
        return {path: values.distribution() for path, values in self.axes.items()}

    def labels(self, point: Mapping[str, Any]) -> dict[str, Any]:
        return {path: self.axes[path].label(value) for path, value in point.items()}

    def point(self, labels: Mapping[str, Any]) -> Point:
        return {path: values.value(labels[path]) for path, values in self.axes.items()}


def parse_space(texts: Mapping[str, str]) -> Space:
    return Space({path: _parse(path, text) for path, text in texts.items()}, dict(texts))


def split_arguments(arguments: Iterable[str]) -> tuple[Space, list[str]]:
    """What `PATH=…` arguments vary, and those that set one value as everywhere else."""
    texts: dict[str, str] = {}
    fixed = []
    for argument in arguments:
        path, equals, text = (part.strip() for part in argument.partition("="))
        if not equals or not _is_varied(text):
            fixed.append(argument)
            continue
        if not all(path.split(".")):
            raise user_error("not of the form PATH=v1,v2,…", value=argument, hint="model.num_layers=1,2,4")
        if path in texts:
            raise user_error("varied twice", path=path, hint="give it once")
        texts[path] = text
    if not texts:
        raise user_error(
            "nothing is varied",
            path="PATH=v1,v2,…",
            hint="training.optimizer.learning_rate=1e-2,1e-3 or =log:1e-5..1e-2",
        )
    return parse_space(texts), fixed


def _is_varied(text: str) -> bool:
    return text.startswith("log:") or _RANGE.fullmatch(text) is not None or len(_split(text)) > 1


def _parse(path: str, text: str) -> Values:
    if text.startswith("log:") or _RANGE.fullmatch(text):
        return _parse_range(path, text)
    return _parse_choices(path, text)


def _parse_range(path: str, text: str) -> Range:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise user_error("not a range", path=path, value=text, hint="log:1e-5..1e-2")
    is_log = match[1] is not None
    is_whole = bool(_WHOLE.fullmatch(match[2]) and _WHOLE.fullmatch(match[3]))
    low, high = ((int if is_whole else float)(end) for end in match.group(2, 3))
    if not low < high:
        raise user_error("a range goes from its lower to its higher end", path=path, value=text, hint="1..8")
    if is_log and low <= 0:
        raise user_error(
            "a logarithmic range begins above zero", path=path, value=text, hint="log:1e-5..1e-2"
        )
    return Range(low, high, is_whole, is_log)


def _parse_choices(path: str, text: str) -> Choices:
    values = []
    for part in _split(text):
        if not part.strip():
            raise user_error("an empty value between commas", path=path, value=text, hint="v1,v2,v3")
        if _RANGE.fullmatch(part.strip()) or part.strip().startswith("log:"):
            raise user_error("a range among values", path=path, value=part, hint="values, or one range")
        value = parse_yaml(part, path)
        if value in values:
            raise user_error("stands twice", path=path, value=value, hint="give it once")
        values.append(value)
    return Choices(tuple(values))


def _split(text: str) -> Sequence[str]:
    """At the commas that stand outside of brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in _QUOTES:
            quote = character
        elif character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        if character == "," and not quote and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts
