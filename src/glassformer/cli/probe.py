"""`glassformer probe RUN LABEL`: measure which labels can be read from each layer and position."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.cli.arguments import add_run, add_split, check_minimum, open_run
from glassformer.cli.output import DelayedProgress, Output, plain_table

if TYPE_CHECKING:
    from glassformer.inspection.probes import ProbeResult

MOST_ROWS = 12
"""Maximum number of positions of a site that are printed: those with the highest accuracy."""
READABLE = "can be read off linearly; whether the model uses it, the removal below shows"
EXAMPLES = (
    "glassformer probe runs/arithmetic-1 carry",
    "glassformer probe runs/translation-1 gender --out gender.png",
    "glassformer probe runs/classification-1 genre --file texts.csv  # a column of your own file",
    "glassformer probe runs/reversal-1  # list the labels",
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_split(parser)
    add = parser.add_argument
    label_help = "label to look for, such as token, position, output; without LABEL, list those of the task"
    add("label", nargs="?", metavar="LABEL", help=label_help)
    add("--file", type=Path, metavar="FILE", help="file with inputs, in which LABEL is the name of a column")
    sites_help = "sites to probe, such as 'encoder.*.residual_post' (default: embeddings, and every block)"
    add("--sites", nargs="+", metavar="SITE", help=sites_help)
    add("--examples", type=int, default=500, help="fit on N training examples, and measure on N others")
    add("--seeds", type=int, default=3, help="number of control tasks, and of untrained models")
    add("--no-removal", action="store_true", help="do not remove what was found to measure its effect")
    out_help = "also write the rows (.csv, .json) or draw them (.png, .svg)"
    add("--out", type=Path, metavar="FILE", help=out_help)


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    from glassformer.plotting.findings import check_suffix, draw_probes, save_findings

    check_minimum(arguments, examples=10, seeds=1)
    if arguments.out is not None:
        check_suffix(arguments.out)
    model = open_run(arguments)
    if arguments.label is None:
        from glassformer.inspection.probes import label_names

        names = label_names(model.task)
        for name, meaning in names.items():
            output.print(f"{name:<10} {meaning}")
        return {"run": str(arguments.run), "labels": names}
    with DelayedProgress("reading states") as progress:
        found = model.probe(
            arguments.label,
            examples=arguments.examples,
            split=arguments.split,
            sites=arguments.sites,
            seeds=arguments.seeds,
            file=arguments.file,
            removes=not arguments.no_removal,
            progress=progress,
        )
    _show(found, output)
    document = {"run": str(arguments.run), **found.document()}
    if arguments.out is not None:
        save_findings(arguments.out, document, document["rows"], lambda: draw_probes(found))
        output.print(f"wrote {arguments.out}")
    return document


def _show(found: ProbeResult, output: Output) -> None:
    from glassformer.inspection.maps import MEANING

    output.print(f"{found.label}: {found.meaning}")
    classes = ", ".join(found.classes[:8]) + (f", … {len(found.classes)}" if len(found.classes) > 8 else "")
    output.print(f"{len(found.classes)} labels ({classes}), {found.coverage:.1%} of the labelled states")
    columns = ("site", "position", "accuracy", "interval", "control", "selectivity", "untrained", "majority")
    table = plain_table(
        f"accuracy of linear probes, fitted on {found.train_examples} examples and measured on"
        f" {found.examples} of {found.split}, 95 % interval; control, untrained: mean of {found.seeds} seeds",
        columns,
    )
    for site in dict.fromkeys(row.site for row in found.rows):
        rows = [row for row in found.rows if row.site == site]
        shown = sorted(rows[1:], key=lambda row: -row.accuracy)[:MOST_ROWS]
        for row in [rows[0], *sorted(shown, key=lambda row: row.position or 0)]:
            table.add_row(
                site if row.position is None else "",
                "all" if row.position is None else str(row.position),
                f"{row.accuracy:.3f}",
                f"{row.interval[0]:.3f}–{row.interval[1]:.3f}",
                "–" if row.control is None else f"{row.control:.3f}",
                "–" if row.selectivity is None else f"{row.selectivity:+.3f}",
                f"{row.untrained:.3f}",
                f"{row.majority:.3f}",
            )
    output.show_table(table)
    output.print(f"fact: {READABLE}")
    if not found.removals:
        return
    table = plain_table(
        "the directions that the best probe of each site found, removed: loss of the model",
        (
            "site",
            "position",
            "directions",
            "accuracy then",
            "loss before",
            "loss after",
            "change",
            "random directions",
        ),
    )
    for each in found.removals:
        loss = each.loss
        interval = "" if loss.interval is None else f" ({loss.interval[0]:+.3f} to {loss.interval[1]:+.3f})"
        table.add_row(
            each.site,
            "all" if each.position is None else str(each.position),
            str(each.rank),
            f"{each.accuracy:.3f}",
            f"{loss.before:.4f}",
            f"{loss.after:.4f}",
            f"{loss.change:+.3f}{interval}",
            f"{each.random_loss:+.3f}",
        )
    output.show_table(table)
    output.print(f"cause: {MEANING['cause']}")
