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

REPEATED = ("induction", "duplicate token")
"""Patterns that are measured on random tokens that repeat, and have a table of their own."""


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
    repeated, has_causes = document["repeated"], bool(document["ablated"])
    shown = {site: _columns(averages) for site, averages in document["sites"].items()}
    if "site" in repeated:
        output.show_table(_repeated_table(repeated, document))
        output.print(_describe_repeated(repeated))
        shown[repeated["site"]] |= {name: [] for name in REPEATED}
        has_causes = True
    output.explain_sites(shown, document["explanations"])
    output.print(f"fact: {MEANING['fact']}")
    if document["ablated"]:
        output.show_table(_effects_table(document["ablated"]))
    if has_causes:
        output.print(f"cause: {MEANING['cause']}")


def _columns(averages: dict[str, Any]) -> dict[str, list[list[float | None]]]:
    """Return the columns of the table: name to the mean of one statistic for each layer and head."""
    patterns = {
        name: pattern["mass"]["mean"]
        for name, pattern in averages["patterns"].items()
        if name not in REPEATED
    }
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


def _repeated_table(repeated: dict[str, Any], document: dict[str, Any]) -> Table:
    """Return the scores of induction and duplicate-token heads, with the effect of each head on the loss."""
    site = repeated["site"]
    trained, untrained = (document[key][site]["patterns"] for key in ("sites", "untrained"))
    columns = ("layer: head", *REPEATED, "copying", "second half", "first half")
    title = f"{site}: random tokens that repeat; scores (untrained), and change of the loss without the head"
    table = plain_table(title, columns)
    for row in repeated["ablated"]:
        layer, head = row["layer"], row["head"]
        cells = []
        for name in REPEATED:
            own, other = (of[name]["mass"]["mean"][layer][head] for of in (trained, untrained))
            cells.append(f"{three_decimals(own)} ({three_decimals(other)})")
        cells.append("" if repeated["copying"] is None else f"{repeated['copying'][layer][head]:+.2f}")
        for half in ("second_half_loss", "first_half_loss"):
            effect = row["metrics"][half]
            low, high = effect["interval"]
            cells.append(f"{effect['change']:+.3f}\n{low:+.3f} to {high:+.3f}")
        table.add_row(f"{layer}:{head}", *cells)
    return table


def _describe_repeated(repeated: dict[str, Any]) -> str:
    losses, before = repeated["loss"], repeated["untrained_loss"]
    periods = ", ".join(map(str, repeated["periods"]))
    return (
        f"loss of the first half {losses['first_half']:.3f}, of the second half {losses['second_half']:.3f};"
        f" untrained {before['first_half']:.3f} and {before['second_half']:.3f}"
        f" ({repeated['sequences']} sequences of {periods} random tokens, twice)"
        + (
            ""
            if repeated["copying"] is None
            else "\ncopying: from +1, raises the token it reads, to -1, lowers it"
        )
    )


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
