"""`glassformer reproduce NAME [--quick]`"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from glassformer.cli.output import Output


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="the table; without it, a list of the tables")
    parser.add_argument(
        "--quick", action="store_true", help="a much smaller version, done in a minute or a few"
    )
    parser.add_argument("--seeds", type=int, metavar="N", help="runs a setting (default: 3, quick 1)")
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="runs at a time; they share the cores"
    )
    parser.add_argument("--ours-only", action="store_true", help="leave the published recipe out")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where runs and table go (default: runs/NAME)"
    )


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    from rich.table import Table

    from glassformer.reproduce import STUDIES, find
    from glassformer.reproduce.study import reproduce

    if arguments.name is None:
        for name, study in STUDIES.items():
            output.say(f"{name:<20}{study.title}")
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
        say=output.say,
    )
    table = Table(
        "setting", "published", "their recipe", "ours", "lowest seed", title=f"{study.title}: {study.metric}"
    )
    for row in document["rows"]:
        numbers = (row[key] for key in ("published", "theirs", "ours", "lowest"))
        table.add_row(row["setting"], *("" if number is None else f"{number:.5f}" for number in numbers))
    output.show(table)
    written = ["table.md", "results.json", *document.get("plot", [])]
    output.say("written: " + ", ".join(str(folder / name) for name in written))
    return document
