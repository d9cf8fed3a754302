"""`glassformer heads RUN`: statistics of every head, beside the untrained model, and effects of ablation."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from glassformer.cli.arguments import add_run, add_split, open_run
from glassformer.cli.output import Output

if TYPE_CHECKING:
    from rich.table import Table


def configure(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--examples", type=int, default=64, help="examples to average over")
    parser.add_argument(
        "--ablate",
        nargs="?",
        const="mean",
        metavar="mean|zero",
        help="also ablate each head: replace its output by its mean, or by zero (default: mean)",
    )
    add_split(parser)


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    model = open_run(arguments)
    document = model.heads(arguments.examples, arguments.split, ablate=arguments.ablate)
    _show(document, output)
    return document


def _show(document: dict[str, Any], output: Output) -> None:
    from glassformer.inspection.maps import MEANING

    about = f"{document['examples']} examples of {document['split']}"
    output.print(f"{document['run']} · {document['checkpoint']}, {about}")
    for site, averages in document["sites"].items():
        output.show(_table(site, averages, document["untrained"][site]))
    output.print(f"fact: {MEANING['fact']}")
    if document["ablated"]:
        output.show(_effects_table(document["ablated"]))
        output.print(f"cause: {MEANING['cause']}")


def _table(site: str, averages: dict[str, Any], control: dict[str, Any]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    def columns(of: dict[str, Any]) -> dict[str, list[list[float | None]]]:
        patterns = {name: pattern["mass"]["mean"] for name, pattern in of["patterns"].items()}
        others = {name.replace("_", " "): of[name]["mean"] for name in ("entropy", "distance", "value_share")}
        return patterns | others

    trained, untrained = columns(averages), columns(control)
    table = Table(
        title=f"{site}: share of attention on …; below it (untrained)",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for heading in ("layer: head", *trained):  # as --head of intervene takes it; a column fewer fits 80
        table.add_column(heading.replace(" ", "\n").replace("-", "-\n"), justify="right", overflow="fold")
    for layer in averages["layers"]:
        for head in averages["heads"]:
            cells = [_number(column[layer][head]) for column in trained.values()]
            table.add_row(f"{layer}:{head}", *cells)
            before = [f"({_number(column[layer][head])})" for column in untrained.values()]
            table.add_row("", *before, style="dim")
    return table


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _effects_table(rows: list[dict[str, Any]]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    names = list(rows[0]["metrics"])
    table = Table(
        title=f"head replaced by {rows[0]['ablation']}: change of each metric, and its 95 % interval",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for heading in ("site", "layer", "head", *names):
        table.add_column(heading, justify="right")
    for row in rows:
        cells = []
        for name in names:
            effect = row["metrics"][name]
            interval = effect["interval"]
            between = f"\n{interval[0]:+.3f} to {interval[1]:+.3f}" if interval else ""
            cells.append(f"{effect['change']:+.3f}{between}")
        table.add_row(row["site"], str(row["layer"]), str(row["head"]), *cells)
    return table
