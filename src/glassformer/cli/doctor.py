"""`glassformer doctor [WHAT|RUN]`: named checks of a model, or of this machine; exit 1 if one fails."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.cli.bench import LateProgress
from glassformer.cli.output import Output
from glassformer.cli.what import add_what, load_plugins, resolve_what

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from glassformer.doctor.checks import Check, Progress, Report, Value

MARKS = {"passed": "✓", "warning": "!", "skipped": "–", "failed": "✗"}
STYLES = {"passed": "green", "warning": "yellow", "skipped": "dim", "failed": "bold red"}


def configure(parser: argparse.ArgumentParser) -> None:
    add_what(parser, is_optional=True)
    parser.epilog = f"Without WHAT, this machine is checked.\n\n{parser.epilog}"
    parser.add_argument(
        "--checkpoint", default="best", help="of a run: best, latest or a step (default: best)"
    )
    parser.add_argument(
        "--runs", type=Path, default=Path("runs"), metavar="DIR", help="where runs would go (default: runs)"
    )


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    with LateProgress(output, "checks") as progress:
        report = _examine(arguments, progress)
    output.show(table(report))
    output.say(summary(report))
    output.exit_code = 0 if report.passed else 1
    return report.document()


def _examine(arguments: argparse.Namespace, progress: Progress) -> Report:
    if arguments.what is None:
        from glassformer.doctor.machine import examine_machine

        return examine_machine(arguments.runs, progress)

    from glassformer.core.errors import user_error
    from glassformer.doctor.examination import examine_model, examine_run
    from glassformer.runs.experiment import Experiment
    from glassformer.runs.folder import RunFolder

    load_plugins(arguments)
    folder = RunFolder(Path(arguments.what))
    if folder.exists() and folder.checkpoints().names():
        if arguments.overrides:
            raise user_error(
                "a trained run is checked as it is",
                path=arguments.what,
                value=arguments.overrides[0],
                hint="leave the option out, or name a preset or a file",
            )
        return examine_run(folder.path, arguments.checkpoint, progress=progress)
    return examine_model(Experiment(resolve_what(arguments)), what=arguments.what, progress=progress)


def table(report: Report) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    shown = Table(title=report.what, title_justify="left", caption=report.note, box=SIMPLE_HEAD)
    shown.caption_justify = "left"
    shown.add_column("")
    shown.add_column("check", overflow="fold")
    shown.add_column("measured", justify="right", no_wrap=True)
    shown.add_column("limit", justify="right", no_wrap=True)
    shown.add_column("s", justify="right", no_wrap=True)
    for check in report.checks:
        shown.add_row(*_row(check))
    return shown


def _row(check: Check) -> list[Text]:
    from rich.text import Text

    found, style = check.measurement, STYLES[check.measurement.verdict]
    sign = "≥" if found.is_lower_limit else "≤"
    name = Text.assemble((check.name, style), "\n", (found.detail, "dim"))
    limit = "" if found.limit is None else f"{sign} {_number(found.limit)}"
    others = (_number(found.value), limit, f"{check.seconds:.1f}")
    return [Text(MARKS[found.verdict], style), name, *map(Text, others)]


def _number(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:.2g}" if value < 100 else f"{value:,.0f}"
    return "" if value is None else str(value)


def summary(report: Report) -> str:
    counts = Counter(check.measurement.verdict for check in report.checks)
    failed = [check.name for check in report.checks if not check.passed]
    if failed:
        return f"FAILED {len(failed)} of {len(report.checks)} checks: {'; '.join(failed)}"
    words = [f"{counts['passed']} of {len(report.checks)} checks passed"]
    words += [f"{counts['warning']} to look at"] if counts["warning"] else []
    words += [f"{counts['skipped']} do not apply"] if counts["skipped"] else []
    return ", ".join(words)
