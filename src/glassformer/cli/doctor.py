"""`glassformer doctor [SOURCE]`: check a model, or this machine, and exit with code 1 if a check fails."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.cli.arguments import (
    add_checkpoint,
    add_runs_folder,
    add_source,
    load_plugins,
    resolve_source,
)
from glassformer.cli.export import show_destinations
from glassformer.cli.output import DelayedProgress, Output

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from glassformer.doctor.report import Check, Progress, Report, Value

MARKS = {"passed": "✓", "warning": "!", "skipped": "–", "failed": "✗"}
STYLES = {"passed": "green", "warning": "yellow", "skipped": "dim", "failed": "bold red"}

EXAMPLES = (
    "glassformer doctor  # this machine",
    "glassformer doctor reversal model.num_layers=2  # a model before its training",
    "glassformer doctor runs/reversal-1  # a trained model",
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_source(parser, is_optional=True)
    parser.epilog = f"Without SOURCE, the command checks this machine.\n\n{parser.epilog}"
    add_checkpoint(parser)
    add_runs_folder(parser)


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    with DelayedProgress("checks") as progress:
        report = _examine(arguments, lambda done, total: progress("checks", done, total))
    output.show(table(report))
    output.print(summary(report))
    if report.exports is not None:
        show_destinations(report.exports, output)
    output.exit_code = 0 if report.passed else 1
    return report.document()


def _examine(arguments: argparse.Namespace, progress: Progress) -> Report:
    if arguments.source is None:
        from glassformer.doctor.machine import check_machine

        return check_machine(arguments.runs, progress)

    from glassformer.core.errors import user_error
    from glassformer.doctor.runner import check_model, check_run
    from glassformer.runs.experiment import Experiment
    from glassformer.runs.folder import RunFolder

    load_plugins(arguments)
    folder = RunFolder(Path(arguments.source))
    if folder.exists() and folder.checkpoints().names():
        if arguments.overrides:
            raise user_error(
                "the options of a trained run cannot be changed",
                path=arguments.source,
                value=arguments.overrides[0],
                hint="leave PATH=VALUE out, or name a preset or a YAML file instead of the run",
            )
        return check_run(folder.path, arguments.checkpoint, progress=progress)
    return check_model(Experiment(resolve_source(arguments)), source=arguments.source, progress=progress)


def table(report: Report) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    rendered = Table(title=report.source, title_justify="left", caption=report.note, box=SIMPLE_HEAD)
    rendered.caption_justify = "left"
    rendered.add_column("")
    rendered.add_column("check", overflow="fold")
    rendered.add_column("measured", justify="right", no_wrap=True)
    rendered.add_column("limit", justify="right", no_wrap=True)
    rendered.add_column("s", justify="right", no_wrap=True)
    for check in report.checks:
        rendered.add_row(*_row(check))
    return rendered


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
    words += [f"{counts['warning']} warnings"] if counts["warning"] else []
    words += [f"{counts['skipped']} not applicable"] if counts["skipped"] else []
    return ", ".join(words)
