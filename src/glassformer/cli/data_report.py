"""Terminal report of `glassformer data check`: tables, locations, and a banner if splits overlap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import HEAVY, SIMPLE_HEAD
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from glassformer.core.errors import shorten
from glassformer.data.catalogue import short_name
from glassformer.data.findings import KINDS, SEVERITIES, ClassCount, FileSummary, Finding, Location, Report

if TYPE_CHECKING:
    from rich.console import RenderableType

MARKS = {"error": "✗", "warning": "!", "note": "–"}
STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}
MEGABYTE = 1_000_000
MOST_FILES = 20
MOST_COLUMNS = 20
MOST_CLASSES = 10
MOST_LABEL_CHARACTERS = 40
LEAST_EXCERPT = 30
"""Minimum width of an excerpt in characters. A narrower excerpt is printed on its own line."""


def render(report: Report, width: int) -> list[RenderableType]:
    parts: list[RenderableType] = [
        _file_table(report),
        *_readings(report),
        *_column_tables(report),
        *_class_table(report),
    ]
    if report.findings:
        parts += [_finding_table(report), *(_locations(finding, width) for finding in report.findings)]
    if report.leaks:  # last, so that it is what the reader sees first on the terminal
        parts.append(_leak_panel(report))
    return parts


def _file_table(report: Report) -> RenderableType:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("file", overflow="fold")
    table.add_column("split")
    for name in ("lines", "examples", "words", "longest", "MB"):
        table.add_column(name, justify="right", no_wrap=True)
    rows = report.files if len(report.files) <= MOST_FILES else _by_folder(report.files)
    for file in rows[:MOST_FILES]:
        numbers = (f"{number:,}" for number in (file.lines, file.examples, file.words, file.longest))
        table.add_row(Text(_short(file.file)), file.split, *numbers, f"{file.bytes / MEGABYTE:.1f}")
    if len(rows) > MOST_FILES:
        table.add_row(f"and {len(rows) - MOST_FILES:,} more")
    return table


def _by_folder(files: Sequence[FileSummary]) -> list[FileSummary]:
    """Return one summary per folder and split, such as one per class. A single file keeps its own."""
    groups: dict[tuple[Path, str], list[FileSummary]] = {}
    for file in files:
        groups.setdefault((Path(file.file).parent, file.split), []).append(file)
    return [
        group[0]
        if len(group) == 1
        else FileSummary(
            f"{folder} ({len(group):,} files)",
            split,
            bytes=sum(file.bytes for file in group),
            lines=sum(file.lines for file in group),
            examples=sum(file.examples for file in group),
            words=sum(file.words for file in group),
            longest=max(file.longest for file in group),
        )
        for (folder, split), group in groups.items()
    ]


def _readings(report: Report) -> list[RenderableType]:
    """Return the notes on how each file is read. Training prints the same notes."""
    lines = [note for file in report.files[:MOST_FILES] for note in file.notes]
    return [Text("\n".join(lines) + "\n", overflow="fold")] if lines else []


def _column_tables(report: Report) -> list[RenderableType]:
    """Return tables that show which columns are used and which are ignored.

    Files with the same columns share one table, with an example from the first of them.
    """
    shown: list[list[tuple[str | int, str, str]]] = []
    tables: list[RenderableType] = []
    for file in report.files:
        columns = [(each.column, each.name, each.role) for each in file.columns]
        if not columns or columns in shown:
            continue
        shown.append(columns)
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        table.add_column("column", overflow="fold")
        table.add_column("used as", no_wrap=True)
        table.add_column(f"first example of {_short(file.file)}", overflow="fold")
        for each in file.columns[:MOST_COLUMNS]:
            style = "" if each.role else "dim"
            name = (
                f"{each.column} {each.name}" if each.name and each.name != each.column else str(each.column)
            )
            table.add_row(Text(name, style), each.role or "ignored", Text(each.example, style), style=style)
        if len(file.columns) > MOST_COLUMNS:
            table.add_row(f"and {len(file.columns) - MOST_COLUMNS} more")
        tables.append(table)
    return tables


def _class_table(report: Report) -> list[RenderableType]:
    """Return the most frequent classes with their counts and shares in each split."""
    tables: list[RenderableType] = []
    for scope in dict.fromkeys(each.scope for each in report.classes):
        counts = [each for each in report.classes if each.scope == scope]
        splits = list(dict.fromkeys(each.split for each in counts))
        labels = list(dict.fromkeys(each.label for each in counts))
        found = {(each.split, each.label): each for each in counts}
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        table.add_column(f"class of {scope}" if scope else "class", overflow="fold")
        for split in splits:
            table.add_column(split, justify="right", no_wrap=True)
        for label in labels[:MOST_CLASSES]:
            cells = [_count_cell(found.get((split, label))) for split in splits]
            table.add_row(Text(shorten(label, MOST_LABEL_CHARACTERS)), *cells)
        if len(labels) > MOST_CLASSES:
            table.add_row(f"and {len(labels) - MOST_CLASSES:,} more")
        top = counts[0]
        number = sum(each.split == top.split for each in counts)
        label = shorten(top.label, MOST_LABEL_CHARACTERS)
        always = f"always {label!r} is right for {100 * top.share:.1f} % of {top.split}"
        tables += [
            table,
            Text(
                f"{number:,} {'class' if number == 1 else 'classes'} in {top.split}; {always}\n",
                overflow="fold",
            ),
        ]
    return tables


def _count_cell(found: ClassCount | None) -> str:
    return "–" if found is None else f"{found.count:,}  {100 * found.share:5.1f} %"


def _leak_panel(report: Report) -> RenderableType:
    lines = []
    for leak in report.leaks:
        part = f"{leak.scope}: " if leak.scope else ""
        other = f"{leak.same_input:,} with another target" if leak.same_input else ""
        count = f"{leak.same:,} of {leak.of:,} {leak.split} {leak.unit} also appear in {leak.other}"
        lines.append(part + count + (f", and {other}" if other else ""))
    lines.append("A score on these examples does not measure performance on unseen data.")
    text = Text("\n".join(lines), no_wrap=False, overflow="fold")
    return Panel(text, title="THE SPLITS OVERLAP", style="bold red", box=HEAVY)


def _finding_table(report: Report) -> RenderableType:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    table.add_column("found", overflow="fold")
    table.add_column("count", justify="right", no_wrap=True)
    table.add_column("first", overflow="fold")
    for finding in report.findings:
        style = STYLES[finding.severity]
        title = Text.assemble((finding.title, style), (_scopes(finding), "dim"))
        first = _position(finding.locations[0]) if finding.locations else ""
        table.add_row(Text(MARKS[finding.severity], style), title, f"{finding.count:,}", Text(first))
    return table


def _scopes(finding: Finding) -> str:
    if len(finding.by_scope) == 1:
        return f" · {next(iter(finding.by_scope))}"
    parts = " · ".join(f"{scope} {count:,}" for scope, count in finding.by_scope.items())
    return f"\n{parts}" if parts else ""


def _locations(finding: Finding, width: int) -> RenderableType:
    shown = Text.assemble(
        (f"{finding.severity}: {finding.title}", STYLES[finding.severity]),
        (f" · {KINDS[finding.kind].advice}", "dim"),
    )
    if KINDS[finding.kind].advice.startswith("fine: "):  # nothing is to be done at any of its locations
        return shown.append("\n")
    rows = [
        (
            _position(location),
            "" if location.byte is None else f"byte {location.byte:,}",
            location.detail,
            location.excerpt,
        )
        for location in finding.locations
    ]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    room = width - sum(widths) - 8
    is_wide = room >= LEAST_EXCERPT
    for position, byte, detail, excerpt in rows:
        shown.append(f"\n  {position:<{widths[0]}}")
        aside = f"  {byte:>{widths[1]}}  {detail:<{widths[2]}}"
        shown.append(aside if excerpt and is_wide else aside.rstrip(), "dim")
        if excerpt:
            text = Text(excerpt)
            text.truncate(room if is_wide else width - 6, overflow="ellipsis")
            shown.append("  " if is_wide else "\n      ").append_text(text)
    if rows and finding.count > len(rows):
        shown.append(f"\n  and {finding.count - len(rows):,} more", "dim")
    return shown.append("\n")


def _position(location: Location) -> str:
    return f"{_short(location.file)}:{location.line}"


def _short(name: str) -> str:
    return short_name(Path(name))


def summary(report: Report) -> str:
    counts = Counter(finding.severity for finding in report.findings)
    kinds = [
        f"{counts[severity]} kind{'' if counts[severity] == 1 else 's'} of {severity}"
        for severity in SEVERITIES
        if counts[severity]
    ]
    if not kinds:
        return "no findings: ready for training"
    verdict = "usable for training" if report.passed else "FAILED: not usable for training"
    return f"{verdict}; {', '.join(kinds)}"
