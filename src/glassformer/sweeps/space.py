"""Search space of a sweep: `PATH=v1,v2`, `PATH=1..8`, `PATH=log:1e-5..1e-2`, for any path of the config."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from glassformer.core.config import format_value, parse_yaml
from glassformer.core.errors import user_error

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

# A number in a range neither begins nor ends with a dot, so that `1...8` is not accepted as a range.
_NUMBER = r"[-+]?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"
_RANGE = re.compile(rf"(log:)?({_NUMBER})\.\.({_NUMBER})")
_WHOLE = re.compile(r"[-+]?[0-9]+")
_OPENING, _CLOSING, _QUOTES = "[{(", "]})", "'\""

Point = dict[str, Any]
"""One value for each varied path."""


@dataclass(frozen=True)
class Choices:
    """A list of values of one varied path."""

    values: tuple[Any, ...]

    def listed(self) -> list[Any]:
        """All values in order."""
        return list(self.values)

    def checked(self) -> list[Any]:
        """Values whose validity implies that all values are valid."""
        return list(self.values)

    def distribution(self) -> BaseDistribution:
        """Optuna's distribution over the labels."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution([self.label(value) for value in self.values])

    def suggest(self, trial: Trial, path: str) -> None:
        """Let Optuna's sampler draw a value, unless the trial has one."""
        trial.suggest_categorical(path, [self.label(value) for value in self.values])

    def label(self, value: Any) -> Any:
        """Form in which Optuna stores a value."""
        return format_value(value) if isinstance(value, (dict, list)) else value

    def value(self, label: Any) -> Any:
        """Value of a stored label."""
        return next(value for value in self.values if self.label(value) == label)

    @property
    def is_log(self) -> bool:
        """True for positive numbers whose largest is more than 30 times the smallest."""
        if not all(is_number(value) and value > 0 for value in self.values):
            return False
        return bool(max(self.values) / min(self.values) > 30)


@dataclass(frozen=True)
class Range:
    """A range of numbers with the methods of `Choices`; both ends are included."""

    low: float
    high: float
    is_whole: bool
    is_log: bool

    def listed(self) -> list[Any] | None:
        """All integers of the range; None for a continuous or logarithmic range."""
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


Values = Choices | Range


def is_number(value: Any) -> bool:
    """True for int and float, not for bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@dataclass(frozen=True)
class SearchSpace:
    """Varied paths and their values."""

    axes: Mapping[str, Values]
    texts: Mapping[str, str]
    """Text of each argument, from which `parse_space` builds the same space on every machine."""

    def first(self) -> Point:
        """First point of the space."""
        return {path: values.checked()[0] for path, values in self.axes.items()}

    def unlisted(self) -> list[str]:
        """Paths with a continuous range, which a grid cannot cover."""
        return [path for path, values in self.axes.items() if values.listed() is None]

    def grid(self) -> list[Point]:
        """Every combination of values."""
        listed = [values.listed() or [] for values in self.axes.values()]
        return [dict(zip(self.axes, point, strict=True)) for point in itertools.product(*listed)]

    def distributions(self) -> dict[str, BaseDistribution]:
        """Optuna's distribution of each path."""
        return {path: values.distribution() for path, values in self.axes.items()}

    def labels(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """Labels of a point, as Optuna stores them."""
        return {path: self.axes[path].label(value) for path, value in point.items()}

    def point(self, labels: Mapping[str, Any]) -> Point:
        """Point of stored labels."""
        return {path: values.value(labels[path]) for path, values in self.axes.items()}


def parse_space(texts: Mapping[str, str]) -> SearchSpace:
    """Parse the values of each path."""
    return SearchSpace({path: _parse(path, text) for path, text in texts.items()}, dict(texts))


def split_arguments(arguments: Iterable[str]) -> tuple[SearchSpace, list[str]]:
    """Split `PATH=…` arguments into the search space and those that set one value."""
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
            raise user_error("is varied twice", path=path, hint="give it once")
        texts[path] = text
    if not texts:
        raise user_error(
            "no option is varied",
            path="PATH=v1,v2,…",
            hint="training.optimizer.learning_rate=1e-2,1e-3 or =log:1e-5..1e-2",
        )
    return parse_space(texts), fixed


def _is_varied(text: str) -> bool:
    return _is_range(text) or len(_split(text)) > 1


def _is_range(text: str) -> bool:
    return text.startswith("log:") or _RANGE.fullmatch(text) is not None


def _parse(path: str, text: str) -> Values:
    return _parse_range(path, text) if _is_range(text) else _parse_choices(path, text)


def _parse_range(path: str, text: str) -> Range:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise user_error("not a range", path=path, value=text, hint="log:1e-5..1e-2")
    is_log = match[1] is not None
    is_whole = bool(_WHOLE.fullmatch(match[2]) and _WHOLE.fullmatch(match[3]))
    low, high = ((int if is_whole else float)(end) for end in match.group(2, 3))
    if not low < high:
        raise user_error("the lower end of a range comes first", path=path, value=text, hint="1..8")
    if is_log and low <= 0:
        message = "a logarithmic range starts above zero"
        raise user_error(message, path=path, value=text, hint="log:1e-5..1e-2")
    return Range(low, high, is_whole, is_log)


def _parse_choices(path: str, text: str) -> Choices:
    values = []
    for part in _split(text):
        if not part.strip():
            raise user_error("empty value between commas", path=path, value=text, hint="v1,v2,v3")
        if _is_range(part.strip()):
            hint = "a list of values, or one range"
            raise user_error("a range inside a list of values", path=path, value=part, hint=hint)
        value = parse_yaml(part, path)
        if value in values:
            raise user_error("appears twice", path=path, value=value, hint="give it once")
        values.append(value)
    return Choices(tuple(values))


def _split(text: str) -> Sequence[str]:
    """Split at commas outside brackets and quotes."""
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
