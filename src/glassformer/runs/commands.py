"""Commands that reproduce a config: the nearest preset and the options that differ from it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import cache

from glassformer.core.config import Tree, flatten, format_value, parse_yaml
from glassformer.core.errors import UserError
from glassformer.runs.experiment import ExperimentConfig, preset_text, presets, resolve

OTHER_NAME_COST = 3
"""Penalty, in overrides, for a preset whose name is not its task's kind, so that the plain one wins."""


_preset = cache(resolve)
_known: dict[str, tuple[str, Tree] | None] = {}


def nearest_preset(config: ExperimentConfig) -> tuple[str, Tree] | None:
    """Return the preset that needs the fewest overrides to give a config, and those overrides (cached)."""
    key = format_value(config.dump())
    if key not in _known:
        _known[key] = _find_nearest(config)
    return _known[key]


def _find_nearest(config: ExperimentConfig) -> tuple[str, Tree] | None:
    """Return the preset of the same task kind that needs the fewest overrides, and those overrides.

    The preset with its overrides must give exactly this config. Return None if no preset does.
    """
    wanted = flatten(config.dump())
    found: list[tuple[int, str, Tree]] = []
    kind = config.task.kind
    data = config.dump()["task"].get("data")  # a preset may have other options for a user's own data
    for name in presets():
        if _kind_of(name) != kind:
            continue
        there = flatten((resolve(name, {"task.data": data}) if data else _preset(name)).dump())
        names_data = flatten(_preset(name).dump()) if data else {}
        overrides = {
            path: value
            for path, value in wanted.items()
            if there.get(path, ...) != value
            or (path.startswith("task.data.") and names_data.get(path, ...) != value)
        }
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
    """Return the `glassformer train` command for this config, or None if no preset can give the config."""
    nearest = nearest_preset(config)
    if nearest is None:
        return None
    name, overrides = nearest
    options = [f"{path}={format_value(value)}" for path, value in overrides.items()]
    return command("train", name, *options, *plugin_arguments(plugins), "--run", run)


def command(*words: str) -> str:
    """Return a `glassformer` command line, quoted for a shell."""
    return shlex.join(["glassformer", *words])


def plugin_arguments(plugins: Sequence[str]) -> list[str]:
    """Return the command-line arguments that load these plug-in files."""
    return [word for plugin in plugins for word in ("--plugin", plugin)]


def preset_sentence(name: str) -> str:
    """Return the first line of the comment at the top of a preset file: one short sentence."""
    return preset_text(name).partition("\n")[0].lstrip("# ")


def preset_summary(name: str) -> str:
    """Return the first paragraph of the comment at the top of a preset file, as one line."""
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
