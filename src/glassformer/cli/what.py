"""What most verbs share: the arguments WHAT, PATH=VALUE and --plugin, and the run that they name."""

from __future__ import annotations

import argparse
import gc
import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassformer.runs.experiment import ExperimentConfig
    from glassformer.runs.run import Run

EPILOG = """WHAT is a preset's name (glassformer train --presets lists them), a YAML file or a run's folder.
PATH=VALUE sets any option, read as YAML: model.num_layers=2 training.optimizer.learning_rate=1e-3"""


def add_plugin(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        type=Path,
        metavar="FILE.py",
        help="a file with kinds of your own",
    )


def add_what(parser: argparse.ArgumentParser, *, is_optional: bool = False) -> None:
    parser.add_argument(
        "what", metavar="WHAT", nargs="?" if is_optional else None, help="preset, file or run"
    )
    parser.add_argument("overrides", metavar="PATH=VALUE", nargs="*", help="options to change")
    add_plugin(parser)
    parser.epilog = EPILOG


def add_decoding(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--decoding",
        metavar="kind=beam,size=4",
        help="how the answer is written: greedy, sample or beam, with options (default: the run's own)",
    )


def decoding_of(arguments: argparse.Namespace) -> dict[str, Any] | None:
    """What `--decoding` says, not yet validated: `beam`, `kind=beam,size=4`."""
    from glassformer.core.config import parse_overrides

    if arguments.decoding is None:
        return None
    parts = [part.strip() for part in arguments.decoding.split(",")]
    return parse_overrides([part if "=" in part else f"kind={part}" for part in parts])


def load_plugins(arguments: argparse.Namespace) -> None:
    from glassformer.core.registry import load_plugin

    for path in arguments.plugin:
        load_plugin(path)


def resolve_what(arguments: argparse.Namespace) -> ExperimentConfig:
    from glassformer.runs.experiment import resolve

    load_plugins(arguments)
    return resolve(arguments.what, arguments.overrides)


def open_run(arguments: argparse.Namespace) -> Run:
    """The trained model that a verb asks."""
    import_calmly("glassformer.runs.run")
    from glassformer.runs.run import Run

    load_plugins(arguments)
    return Run(arguments.run, arguments.checkpoint)


def import_calmly(module: str) -> None:
    """Without looking for garbage among what was imported, again and again: all of it stays.

    That is a quarter of the time from a command to its answer.
    """
    if module in sys.modules:
        return
    gc.disable()
    try:
        importlib.import_module(module)
    finally:
        gc.freeze()
        gc.enable()
