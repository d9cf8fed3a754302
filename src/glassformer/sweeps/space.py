"""Search space of a sweep: `PATH=v1,v2`, `PATH=1..8`, `PATH=log:1e-5..1e-2`, for any path of the config."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from glassformer.core.config import flatten, format_value, parse_yaml
from glassformer.core.errors import user_error

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

# A number in a range neither begins nor ends with a dot, so that `1...8` is not accepted as a range.
_NUMBER = r"[-+]?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"
_RANGE = re.compile(rf"(log:)?({_NUMBER})\.\.({_NUMBER})")
_WHOLE = re.compile(r"[-+]?[0-9]+")
_PLAIN = re.compile(r"[A-Za-z][\w.-]*")
_OPENING, _CLOSING, _QUOTES = "[{(", "]})", "'\""

Point = dict[str, Any]
"""Combination of option values: one value for each varied config path."""


@dataclass(frozen=True)
class Choices:
    """List of values for one varied config path, such as `model.num_layers=1,2,4`."""

    values: tuple[Any, ...]

    def listed(self) -> list[Any]:
        """Return all values in order."""
        return list(self.values)

    def checked(self) -> list[Any]:
        """Return the values to validate: if these are valid, all values are."""
        return list(self.values)

    def distribution(self) -> BaseDistribution:
        """Return Optuna's categorical distribution over the values."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution([self.label(value) for value in self.values])

    def suggest(self, trial: Trial, path: str) -> None:
        """Let Optuna's sampler draw a value for the trial, unless the trial already has one."""
        trial.suggest_categorical(path, [self.label(value) for value in self.values])

    def label(self, value: Any) -> Any:
        """Return the form in which Optuna stores a value: text for a dict or list, otherwise the value."""
        return format_value(value) if isinstance(value, (dict, list)) else value

    def value(self, label: Any) -> Any:
        """Return the value that Optuna stored in the form of this label."""
        return next(value for value in self.values if self.label(value) == label)

    @property
    def is_log(self) -> bool:
        """True if a plot uses a logarithmic axis: positive numbers that span more than a factor of 30."""
        if not all(is_number(value) and value > 0 for value in self.values):
            return False
        return bool(max(self.values) / min(self.values) > 30)


@dataclass(frozen=True)
class Range:
    """Range of numbers for one varied config path, both ends included. It has the methods of `Choices`."""

    low: float
    high: float
    is_whole: bool
    is_log: bool

    def listed(self) -> list[Any] | None:
        """Return all integers of the range, or None for a continuous or logarithmic range."""
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
    """Return True for an int or a float, but not for a bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def format_overrides(overrides: Mapping[str, Any]) -> list[str]:
    """Return a mapping of options as arguments, `PATH=VALUE`. A list has the values to sweep over.

    A text is passed as it is, so that it can be a range such as `log:1e-5..1e-2`.
    """
    arguments = []
    for path, value in flatten(overrides).items():
        if isinstance(value, (list, tuple)):
            if not value:
                raise user_error("no values to sweep over", path=path, hint="list at least one value")
            arguments.append(f"{path}={','.join(map(_item_text, value))}")
        else:
            arguments.append(f"{path}={value if isinstance(value, str) else format_value(value)}")
    return arguments


def _item_text(value: Any) -> str:
    """Return one value of a list, quoted if it would be split or read as another value."""
    if not isinstance(value, str):
        return format_value(list(value) if isinstance(value, tuple) else value)
    return value if _PLAIN.fullmatch(value) and parse_yaml(value, "") == value else json.dumps(value)


@dataclass(frozen=True)
class SearchSpace:
    """Search space of a sweep: the varied config paths and the values of each."""

    axes: Mapping[str, Values]
    texts: Mapping[str, str]
    """Values of each path as typed, from which `parse_space` builds the same space on every machine."""

    def first(self) -> Point:
        """Return the first combination of option values in the space."""
        return {path: values.checked()[0] for path, values in self.axes.items()}

    def unlisted(self) -> list[str]:
        """Return the config paths whose values cannot be listed, so that a grid cannot cover them."""
        return [path for path, values in self.axes.items() if values.listed() is None]

    def grid(self) -> list[Point]:
        """Return every combination of the listed values."""
        listed = [values.listed() or [] for values in self.axes.values()]
        return [dict(zip(self.axes, point, strict=True)) for point in itertools.product(*listed)]

    def distributions(self) -> dict[str, BaseDistribution]:
        """Return Optuna's distribution for each config path."""
        return {path: values.distribution() for path, values in self.axes.items()}

    def labels(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """Return a combination of option values in the form in which Optuna stores it."""
        return {path: self.axes[path].label(value) for path, value in point.items()}

    def point(self, labels: Mapping[str, Any]) -> Point:
        """Return the combination of option values that Optuna stored as these labels."""
        return {path: values.value(labels[path]) for path, values in self.axes.items()}


def parse_space(texts: Mapping[str, str]) -> SearchSpace:
    """Parse the text of the values for each config path into a search space."""
    return SearchSpace({path: _parse(path, text) for path, text in texts.items()}, dict(texts))


def split_arguments(arguments: Iterable[str]) -> tuple[SearchSpace, list[str]]:
    """Return the search space of the arguments `PATH=v1,v2`, and the arguments `PATH=v` as a list."""
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
        raise user_error("the lower end of the range must come first", path=path, value=text, hint="1..8")
    if is_log and low <= 0:
        message = "a logarithmic range must start above zero"
        raise user_error(message, path=path, value=text, hint="log:1e-5..1e-2")
    return Range(low, high, is_whole, is_log)


def _parse_choices(path: str, text: str) -> Choices:
    values = []
    for part in _split(text):
        if not part.strip():
            raise user_error("empty value between commas", path=path, value=text, hint="v1,v2,v3")
        if _is_range(part.strip()):
            hint = "give either a list of values or one range"
            raise user_error("is a range inside a list of values", path=path, value=part, hint=hint)
        value = parse_yaml(part, path)
        if value in values:
            raise user_error("appears twice", path=path, value=value, hint="give it once")
        values.append(value)
    return Choices(tuple(values))


def _split(text: str) -> Sequence[str]:
    """Split the text at the commas that are outside brackets and quotes."""
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
