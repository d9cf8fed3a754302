"""`glassformer heads RUN`: every head in numbers, beside the untrained model, and what it is worth."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from glassformer.cli.output import Output
from glassformer.cli.what import add_plugin, open_run

if TYPE_CHECKING:
    from rich.table import Table


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's folder")
    parser.add_argument("--examples", type=int, default=64, metavar="N", help="averaged over (default: 64)")
    parser.add_argument(
        "--switch-off",
        nargs="?",
        const="mean",
        metavar="mean|zero",
        help="also what each head is worth: it adds its mean instead, or nothing (default: mean)",
    )
    parser.add_argument("--split", help="where examples are from (default: test, if there is one)")
    parser.add_argument("--checkpoint", default="best", help="best, latest or a step (default: best)")
    add_plugin(parser)


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    model = open_run(arguments)
    document = model.heads(arguments.examples, arguments.split, switch_off=arguments.switch_off)
    _show(document, output)
    return document


def _show(document: dict[str, Any], output: Output) -> None:
    from glassformer.inspection.maps import MEANING

    about = f"{document['examples']} examples of {document['split']}"
    output.say(f"{document['run']} · {document['checkpoint']}, {about}")
    for place, averages in document["places"].items():
        output.show(_table(place, averages, document["untrained"][place]))
    output.say(f"fact: {MEANING['fact']}")
    if document["switched_off"]:
        output.show(_effects_table(document["switched_off"]))
        output.say(f"cause: {MEANING['cause']}")


def _table(place: str, averages: dict[str, Any], control: dict[str, Any]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    def columns(of: dict[str, Any]) -> dict[str, list[list[float | None]]]:
        patterns = {name: pattern["mass"]["mean"] for name, pattern in of["patterns"].items()}
        others = {name.replace("_", " "): of[name]["mean"] for name in ("entropy", "distance", "value_share")}
        return patterns | others

    trained, untrained = columns(averages), columns(control)
    table = Table(
        title=f"{place}: share of attention on …; below it (untrained)",
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
        title=f"without the head ({rows[0]['how']} in its place): change, and 95 % of it",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for heading in ("place", "layer", "head", *names):
        table.add_column(heading, justify="right")
    for row in rows:
        cells = []
        for name in names:
            effect = row["metrics"][name]
            interval = effect["interval"]
            between = f"\n{interval[0]:+.3f} to {interval[1]:+.3f}" if interval else ""
            cells.append(f"{effect['change']:+.3f}{between}")
        table.add_row(row["place"], str(row["layer"]), str(row["head"]), *cells)
    return table
