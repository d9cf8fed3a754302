"""`glassformer export RUN --to TARGET --out FOLDER`: write a model for another library."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.cli.arguments import add_run, open_run
from glassformer.cli.output import DelayedProgress, Output
from glassformer.interchange import TARGETS

if TYPE_CHECKING:
    from glassformer.interchange.export import Destination, Exported

EXAMPLES = (
    "glassformer export runs/language-model-1 --to huggingface --out exported",
    "glassformer export runs/translation-1 --to ctranslate2 --quantization int8 --out exported",
    "glassformer export runs/shakespeare-1 --to gguf --out exported",
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add = parser.add_argument
    add("--to", required=True, metavar="TARGET", help=f"one of {', '.join(sorted(TARGETS))}")
    add("--out", required=True, type=Path, metavar="FOLDER", help="new folder for the exported model")
    add(
        "--quantization",
        metavar="TYPE",
        help="type of the stored weights: int8 for ctranslate2, f16 or q8_0 for gguf",
    )
    add(
        "--runtime",
        metavar="FOLDER|fetch",
        help="onnxruntime-web for --to web: a folder that has it, or fetch to download it once",
    )


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    from glassformer.interchange.export import EngineFailed, VerificationFailed, export, make_target

    options = {"quantization": arguments.quantization, "runtime": arguments.runtime}
    make_target(arguments.to, **options)  # before the run is loaded
    try:
        with DelayedProgress(f"reading {arguments.run}") as progress:
            run = open_run(arguments)
            exported = export(run, arguments.to, arguments.out, report=progress.stage, **options)
    except VerificationFailed as failure:
        output.exit_code = 1
        found = failure.verification
        output.print(f"FAILED: {found.describe()}\n{found.first_difference}\nnothing was written")
        return {"run": arguments.run, "target": arguments.to, "verified": found.document()}
    except EngineFailed as failure:
        output.exit_code = 1
        output.print(f"FAILED: the exported model cannot be run, so nothing was written\n{failure}")
        return {"run": arguments.run, "target": arguments.to, "error": str(failure)}
    _show(exported, output)
    return exported.document()


def show_destinations(destinations: Sequence[Destination], output: Output) -> None:
    """Print the targets that a model can be exported to, and for the others the reason."""
    output.print("Exports, by glassformer export RUN --to TARGET --out FOLDER:")
    for line in (line for each in destinations for line in each.lines()):
        output.print(f"  {line}")


def _show(exported: Exported, output: Output) -> None:
    output.print(f"wrote {exported.folder}: {', '.join(exported.files)}")
    output.print(f"verified with {exported.verification.describe()}")
    for note in exported.verification.notes:
        output.print(f"note: {note}")
    if exported.usage:
        output.print(exported.usage)
