"""Command-line arguments that several verbs share, such as SOURCE, RUN, --checkpoint and --plugin."""

from __future__ import annotations

import argparse
import gc
import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from glassformer.cli.output import Output
    from glassformer.runs.experiment import ExperimentConfig
    from glassformer.runs.run import Run


EPILOG = """SOURCE is a preset (glassformer train --presets lists them), a YAML file or a run folder.
PATH=VALUE sets any config option, and VALUE is YAML. glassformer options lists and explains all options."""


def add_plugin(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        type=Path,
        metavar="FILE.py",
        help="Python file that registers your own variants (kinds); may be repeated",
    )


def add_source(parser: argparse.ArgumentParser, *, is_optional: bool = False) -> None:
    """Add the arguments SOURCE, PATH=VALUE and --plugin, which `resolve_source` reads."""
    parser.add_argument(
        "source",
        metavar="SOURCE",
        nargs="?" if is_optional else None,
        help="a preset, a config file or a run",
    )
    parser.add_argument("overrides", metavar="PATH=VALUE", nargs="*", help="config options to change")
    add_plugin(parser)
    parser.epilog = EPILOG


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the arguments RUN, --checkpoint and --plugin, which `open_run` reads."""
    parser.add_argument("run", metavar="RUN", help="folder of a trained model")
    add_checkpoint(parser)
    add_plugin(parser)


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint", default="best", metavar="NAME", help="checkpoint to load: best, latest or a step"
    )


def add_input(parser: argparse.ArgumentParser) -> None:
    """Add the argument INPUT. Its words are joined by spaces to one input."""
    parser.add_argument(
        "input", metavar="INPUT", nargs="*", help="input for the model (default: the first test example)"
    )


def add_split(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--split",
        help="split to use: train, validation or test (default: test, or validation if there is no test set)",
    )


def add_runs_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runs", type=Path, default=Path("runs"), metavar="DIR", help="folder that contains the runs"
    )


def add_decoding(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--decoding",
        metavar="kind=beam,size=4",
        help="decoding method: greedy, sample or beam, with options (default: as in the run's config)",
    )


def parse_decoding(arguments: argparse.Namespace) -> dict[str, Any] | None:
    """Parse `--decoding beam` or `--decoding kind=beam,size=4` to a dict that is not validated yet."""
    from glassformer.core.config import parse_overrides

    if arguments.decoding is None:
        return None
    parts = [part.strip() for part in arguments.decoding.split(",")]
    return parse_overrides([part if "=" in part else f"kind={part}" for part in parts])


def check_minimum(arguments: argparse.Namespace, **minimums: int) -> None:
    """Raise a `UserError` if an option that was given is below its minimum."""
    from glassformer.core.errors import user_error

    for name, minimum in minimums.items():
        value, option = getattr(arguments, name), f"--{name.replace('_', '-')}"
        if value is not None and value < minimum:
            hint = f"use {option} {minimum} or a larger number"
            raise user_error(f"the value must be at least {minimum}", path=option, value=value, hint=hint)


def load_plugins(arguments: argparse.Namespace) -> None:
    from glassformer.core.registry import load_plugin

    for path in arguments.plugin:
        load_plugin(path)


def resolve_source(arguments: argparse.Namespace) -> ExperimentConfig:
    """Load the plug-ins, and return the config of SOURCE with the PATH=VALUE changes applied."""
    from glassformer.runs.experiment import resolve

    load_plugins(arguments)
    return resolve(arguments.source, arguments.overrides)


def open_run(
    arguments: argparse.Namespace,
    engine: str | None = None,
    weights: Literal["fp32", "int8"] | None = None,
    *,
    reports_unfinished: bool = True,
) -> Run:
    """Load the plug-ins, and return the run RUN with the weights of --checkpoint.

    Print on standard error if the training of the run was stopped before its end. `engine` is the name of
    the engine for predictions, and `weights` the number type of its matrices. None: as in the run's config.
    """
    import_without_gc("glassformer.runs.run")
    from glassformer.runs.run import Run

    load_plugins(arguments)
    run = Run(arguments.run, arguments.checkpoint, engine=engine, weights=weights)
    unfinished = run.folder.unfinished()
    if unfinished is not None and reports_unfinished:
        print(unfinished, file=sys.stderr, flush=True)
    return run


def add_weights(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--weights",
        choices=("fp32", "int8"),
        help="number type of the matrices; int8 is faster and changes outputs slightly (default: the run's)",
    )


def import_without_gc(module: str) -> None:
    """Import a module with garbage collection off, which saves a quarter of the start-up time.

    Imported objects stay alive, so there is nothing to collect among them.
    """
    if module in sys.modules:
        return
    gc.disable()
    try:
        importlib.import_module(module)
    finally:
        gc.freeze()
        gc.enable()


def print_warning(warning: str | None, output: Output) -> None:
    """Print the reason not to trust the output for an input, such as an unseen length, if there is one."""
    if warning is not None:
        output.print(f"WARNING: {warning}", style="bold red")
