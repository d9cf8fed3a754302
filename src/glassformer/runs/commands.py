"""What one types to get the same: from a config back to a preset and the options that differ from it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import cache

from glassformer.core.config import Tree, flatten, format_value, parse_yaml
from glassformer.core.errors import UserError
from glassformer.runs.experiment import ExperimentConfig, preset_text, presets, resolve

OPTIONS_FOR_A_PLAIN_NAME = 3
"""So many more options are typed rather than another data set's preset named."""


_known: dict[str, tuple[str, Tree] | None] = {}


def nearest_preset(config: ExperimentConfig) -> tuple[str, Tree] | None:
    """As `_find_nearest` does, once for each config."""
    key = format_value(config.dump())
    if key not in _known:
        _known[key] = _find_nearest(config)
    return _known[key]


def _find_nearest(config: ExperimentConfig) -> tuple[str, Tree] | None:
    """The preset of this kind of task with the fewest other options, and these; None if there is none.

    Only what gives this very config counts: it is resolved again and compared.
    """
    wanted = flatten(config.dump())
    found: list[tuple[int, str, Tree]] = []
    kind = config.task.kind
    for name in presets():
        if _kind_of(name) != kind:
            continue
        there = flatten(_preset(name).dump())
        overrides = {path: value for path, value in wanted.items() if there.get(path, ...) != value}
        if _gives(name, overrides, config):
            cost = len(overrides) + (0 if name == kind else OPTIONS_FOR_A_PLAIN_NAME)
            found.append((cost, name, overrides))
    if not found:
        return None
    _, name, overrides = min(found, key=lambda entry: entry[:2])
    for path in list(overrides):  # what a kind has by default needs no word
        fewer = {other: value for other, value in overrides.items() if other != path}
        if path not in ("seed",) and _gives(name, fewer, config):
            overrides = fewer
    return name, overrides


def train_command(config: ExperimentConfig, run: str, plugins: Sequence[str] = ()) -> str | None:
    """None if no preset leads there: then the config itself is the way."""
    nearest = nearest_preset(config)
    if nearest is None:
        return None
    name, overrides = nearest
    options = [f"{path}={format_value(value)}" for path, value in overrides.items()]
    return command("train", name, *options, *plugin_words(plugins), "--run", run)


def command(*words: str) -> str:
    return shlex.join(["glassformer", *words])


def plugin_words(plugins: Sequence[str]) -> list[str]:
    return [word for plugin in plugins for word in ("--plugin", plugin)]


def preset_words(name: str) -> str:
    """The first paragraph of a preset's head: what it is."""
    words = []
    for line in preset_text(name).splitlines():
        if not line.startswith("#") or not line.strip("# "):
            break
        words.append(line.lstrip("# "))
    return " ".join(words)


@cache
def _preset(name: str) -> ExperimentConfig:
    return resolve(name)


@cache
def _kind_of(name: str) -> str:
    return str(parse_yaml(preset_text(name), name)["task"]["kind"])


def _gives(name: str, overrides: Tree, config: ExperimentConfig) -> bool:
    try:
        return resolve(name, overrides) == config
    except UserError:
        return False
