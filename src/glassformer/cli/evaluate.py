"""`glassformer evaluate RUN [--split test]`"""

from __future__ import annotations

import argparse
from typing import Any

from glassformer.cli.output import Output
from glassformer.cli.what import add_plugin, load_plugins


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's folder")
    parser.add_argument("overrides", metavar="PATH=VALUE", nargs="*", help="evaluation.decoding.kind=beam …")
    parser.add_argument("--split", help="train, validation or test (default: test, if there is one)")
    parser.add_argument("--checkpoint", default="best", help="best, latest or a step (default: best)")
    add_plugin(parser)


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    from rich.table import Table

    from glassformer.config import parse_overrides
    from glassformer.errors import user_error
    from glassformer.trained import Run

    load_plugins(arguments)
    overrides = parse_overrides(arguments.overrides)
    other = [path for path, value in overrides.items() if path != "evaluation" or not isinstance(value, dict)]
    if other:
        raise user_error(
            "only evaluation.* can change after training",
            place=other[0],
            remedy="evaluation.decoding.kind=beam",
        )
    result = Run(arguments.run, arguments.checkpoint).evaluate(
        arguments.split, overrides.get("evaluation", {})
    )
    table = Table(
        "metric", "value", title=f"{arguments.run}, {result['split']}, {result['examples']:,} examples"
    )
    for name, value in result["metrics"].items():
        table.add_row(name, f"{value:.6g}")
    output.show(table)
    return result
