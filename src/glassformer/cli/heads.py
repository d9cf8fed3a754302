"""`glassformer heads RUN`: statistics of each attention head, compared with the untrained model."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from glassformer.cli.arguments import add_run, add_split, open_run
from glassformer.cli.output import Output, plain_table, three_decimals

if TYPE_CHECKING:
    from rich.table import Table

EXAMPLES = (
    "glassformer heads runs/reversal-1",
    "glassformer heads runs/arithmetic-1 --ablate --examples 32  # also what happens without each head",
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_split(parser)
    add = parser.add_argument
    add("--examples", type=int, default=64, help="average over N examples")
    ablate_help = "also ablate each head in turn: replace its output by its mean, or by zero (default: mean)"
    add("--ablate", nargs="?", const="mean", metavar="mean|zero", help=ablate_help)


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
        output.show_table(_table(site, averages, document["untrained"][site]))
    shown = {site: _columns(averages) for site, averages in document["sites"].items()}
    output.explain_sites(shown, document["explanations"])
    output.print(f"fact: {MEANING['fact']}")
    if document["ablated"]:
        output.show_table(_effects_table(document["ablated"]))
        output.print(f"cause: {MEANING['cause']}")


def _columns(averages: dict[str, Any]) -> dict[str, list[list[float | None]]]:
    """Return the columns of the table: name to the mean of one statistic for each layer and head."""
    patterns = {name: pattern["mass"]["mean"] for name, pattern in averages["patterns"].items()}
    names = ("entropy", "distance", "value_share")
    return patterns | {name.replace("_", " "): averages[name]["mean"] for name in names}


def _table(site: str, averages: dict[str, Any], control: dict[str, Any]) -> Table:
    trained, untrained = _columns(averages), _columns(control)
    title = f"{site}: share of attention on …, and below it the share of the untrained model"
    table = plain_table(
        title, ("layer: head", *trained)
    )  # one column for both, so that 80 characters suffice
    for layer in averages["layers"]:
        for head in averages["heads"]:
            cells = [three_decimals(column[layer][head]) for column in trained.values()]
            table.add_row(f"{layer}:{head}", *cells)
            before = [f"({three_decimals(column[layer][head])})" for column in untrained.values()]
            table.add_row("", *before, style="dim")
    return table


def _effects_table(rows: list[dict[str, Any]]) -> Table:
    names = list(rows[0]["metrics"])
    instead = {"mean": "its mean over the examples", "zero": "zero"}[rows[0]["ablation"]]
    title = f"output of a head replaced by {instead}: change of each metric, 95 % confidence interval"
    table = plain_table(title, ("site", "layer", "head", *names))
    for row in rows:
        cells = []
        for name in names:
            effect = row["metrics"][name]
            interval = effect["interval"]
            between = f"\n{interval[0]:+.3f} to {interval[1]:+.3f}" if interval else ""
            cells.append(f"{effect['change']:+.3f}{between}")
        table.add_row(row["site"], str(row["layer"]), str(row["head"]), *cells)
    return table
