"""`glassformer report RUN … --out report.html`: write one HTML page about runs, a sweep or a reproduction."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from glassformer.cli.arguments import add_checkpoint, add_plugin, load_plugins
from glassformer.cli.output import Output

EXAMPLES = ("glassformer report runs/reversal-1 runs/reversal-2 --out report.html",)


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("runs", metavar="RUN", nargs="+", help="run folders, or the folder of one sweep or reproduce command")
    add("--out", type=Path, default=Path("report.html"), metavar="FILE", help="HTML file to write")
    add("--markdown", type=Path, metavar="FILE", help="also write the result tables to FILE as Markdown")
    add("--latex", type=Path, metavar="FILE", help="also write the result tables to FILE as LaTeX")
    add("--samples", type=int, default=6, help="number of sample outputs per model")
    add("--maps", type=int, default=2, help="number of models whose attention maps are shown")
    add_checkpoint(parser)
    add_plugin(parser)


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    from glassformer.reports.report import report

    load_plugins(arguments)
    document = report(
        arguments.runs,
        arguments.out,
        markdown=arguments.markdown,
        latex=arguments.latex,
        samples=arguments.samples,
        maps=arguments.maps,
        checkpoint=arguments.checkpoint,
        plugins=[str(path) for path in arguments.plugin],
        log=output.print,
    )
    for option in ("out", "markdown", "latex"):
        if document[option] is not None:
            output.print(f"wrote {document[option]}")
    return document
