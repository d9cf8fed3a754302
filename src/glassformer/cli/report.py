"""`glassformer report RUN … --out report.html [--markdown FILE] [--latex FILE]`"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from glassformer.cli.output import Output
from glassformer.cli.what import add_plugin, load_plugins


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", metavar="RUN", nargs="+", help="folders of runs, or of a study that reproduce or sweep made"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("report.html"), metavar="FILE", help="(default: report.html)"
    )
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="also the tables of numbers, as Markdown"
    )
    parser.add_argument("--latex", type=Path, metavar="FILE", help="also the tables of numbers, for LaTeX")
    parser.add_argument(
        "--samples", type=int, default=6, metavar="N", help="answers of a model to show (default: 6)"
    )
    parser.add_argument(
        "--maps", type=int, default=2, metavar="N", help="attention maps of so many models (default: 2)"
    )
    parser.add_argument("--checkpoint", default="best", help="best, latest or a step (default: best)")
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
        say=output.say,
    )
    for option in ("out", "markdown", "latex"):
        if document[option] is not None:
            output.say(f"wrote {document[option]}")
    return document
