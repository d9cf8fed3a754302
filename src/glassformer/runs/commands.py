"""Commands that reproduce a config: the nearest preset and the options that differ from it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import cache

from glassformer.core.config import Tree, flatten, format_value, parse_yaml
from glassformer.core.errors import UserError
from glassformer.runs.experiment import ExperimentConfig, preset_text, presets, resolve

OTHER_NAME_COST = 3
"""Cost, in options, of a preset not named like its task, to prefer `classification` to `book-reviews`."""


_preset = cache(resolve)
_known: dict[str, tuple[str, Tree] | None] = {}


def nearest_preset(config: ExperimentConfig) -> tuple[str, Tree] | None:
    """Find the preset nearest to a config; see `_find_nearest`. The result is cached."""
    key = format_value(config.dump())
    if key not in _known:
        _known[key] = _find_nearest(config)
    return _known[key]


def _find_nearest(config: ExperimentConfig) -> tuple[str, Tree] | None:
    """Find the preset of this kind of task that needs the fewest overrides, and return both.

    Each candidate is resolved again and must equal the config. Returns None if no preset can give it.
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
            cost = len(overrides) + (0 if name == kind else OTHER_NAME_COST)
            found.append((cost, name, overrides))
    if not found:
        return None
    _, name, overrides = min(found, key=lambda entry: entry[:2])
    for path in list(overrides):  # drop overrides that a kind has by default
        fewer = {other: value for other, value in overrides.items() if other != path}
        if path != "seed" and _gives(name, fewer, config):
            overrides = fewer
    return name, overrides


def train_command(config: ExperimentConfig, run: str, plugins: Sequence[str] = ()) -> str | None:
    """Return the command that trains this config, or None if no preset can give it."""
    nearest = nearest_preset(config)
    if nearest is None:
        return None
    name, overrides = nearest
    options = [f"{path}={format_value(value)}" for path, value in overrides.items()]
    return command("train", name, *options, *plugin_arguments(plugins), "--run", run)


def command(*words: str) -> str:
    """Quote a `glassformer` command for a shell."""
    return shlex.join(["glassformer", *words])


def plugin_arguments(plugins: Sequence[str]) -> list[str]:
    """Return the arguments that load these plug-ins."""
    return [word for plugin in plugins for word in ("--plugin", plugin)]


def preset_summary(name: str) -> str:
    """Return the first paragraph of a preset's head comment."""
    lines = []
    for line in preset_text(name).splitlines():
        if not line.startswith("#") or not line.strip("# "):
            break
        lines.append(line.lstrip("# "))
    return " ".join(lines)


@cache
def _kind_of(name: str) -> str:
    return str(parse_yaml(preset_text(name), name)["task"]["kind"])


def _gives(name: str, overrides: Tree, config: ExperimentConfig) -> bool:
    try:
        return resolve(name, overrides) == config
    except UserError:
        return False
