"""`glassformer reproduce NAME [--quick]`: measure the results of a published table again."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from glassformer.cli.output import Output

COLUMNS = {
    "setting": "setting",
    "published": "published",
    "theirs": "their recipe",
    "ours": "ours",
    "lowest": "lowest seed",
}

EXAMPLES = (
    "glassformer reproduce  # list the tables",
    "glassformer reproduce reversal-table --quick",
)


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("name", metavar="NAME", nargs="?", help="name of the table; without NAME, all tables are listed")
    add("--quick", action="store_true", help="measure a much smaller version in at most two minutes")
    add(
        "--seeds", type=int, help="runs per row of the table (default: as the table defines; with --quick: 1)"
    )
    add("--workers", type=int, default=1, help="number of concurrent runs, which share the cores")
    add("--ours-only", action="store_true", help="train only with our recipe, not with the published one")
    add("--finished", action="store_true", help="start no training; write the table from the finished runs")
    keep_help = "results.json of an earlier run: reuse its measurements and run only what is missing"
    add("--keep", type=Path, metavar="FILE", help=keep_help)
    add("--out", type=Path, metavar="DIR", help="folder for the runs and the table (default: runs/NAME)")


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    from rich.table import Table

    from glassformer.studies import STUDIES, find
    from glassformer.studies.study import reproduce

    if arguments.name is None:
        for name, study in STUDIES.items():
            output.print(f"{name:<20}{study.title}")
        return {"names": list(STUDIES)}
    study = find(arguments.name)
    folder = arguments.out or Path("runs") / (study.name + ("-quick" if arguments.quick else ""))
    document = reproduce(
        study,
        folder,
        is_quick=arguments.quick,
        seeds=arguments.seeds,
        workers=max(1, arguments.workers),
        with_theirs=not arguments.ours_only,
        trains=not arguments.finished,
        keep=arguments.keep,
        log=output.print,
    )
    columns = {
        key: heading
        for key, heading in COLUMNS.items()
        if any(row.get(key) is not None for row in document["rows"])
    }
    table = Table(*columns.values(), title=f"{study.title}: {study.metric}")
    for row in document["rows"]:
        table.add_row(*(_shown(row.get(key)) for key in columns))
    output.show(table)
    if document.get("missing"):
        output.print(
            f"{len(document['missing'])} runs have not finished; run the same command again to continue"
        )
    if document.get("error"):
        output.print(document["error"])
        output.exit_code = 1
    written = ["table.md", "results.json", *document.get("plot", [])]
    output.print("wrote " + ", ".join(str(folder / name) for name in written))
    return document


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.5f}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
