"""Folder of a study, written by `reproduce` or `sweep`: document, table, pictures and runs.

The code does not depend on study names. `results.json` has `rows`, or `trials` and `best`. Each key of a row
becomes a column if its value is a number, a word or a short list.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glassformer.core.config import Tree, flatten, format_value
from glassformer.core.errors import user_error
from glassformer.core.system import read_regular_file
from glassformer.plotting.markup import format_interval, format_number
from glassformer.reports.summary import interval_of, is_number
from glassformer.reports.tables import Cell, Quantity, Table
from glassformer.runs.folder import CONFIG, list_runs

RESULTS, BEST = "results.json", "best.yaml"
PICTURES = {".svg": "image/svg+xml", ".png": "image/png"}
"""Media types by file extension, preferred first. SVG is preferred because it is sharp at any size."""
SIGNATURES = {".svg": (b"<?xml", b"<svg"), ".png": (b"\x89PNG\r\n",)}
MAX_PICTURE_BYTES = 4 << 20
MAX_IN_CELL = 12
SPLIT_KEYS = {"params", "metrics", "intervals", "interval", "value", "runs", "run", "config"}
"""Keys of a sweep's row that are split into several columns or shown elsewhere in the report."""

FIRST_COLUMNS = ("setting", "published", "theirs", "ours", "lowest")
HEADINGS = {
    "theirs": "their recipe",
    "ours": "ours, mean",
    "interval": "95 % interval",
    "lowest": "lowest seed",
}


@dataclass(frozen=True)
class Picture:
    """Picture in the folder of a study."""

    name: str
    url: str
    """`data:` URL with the content of the file."""


@dataclass(frozen=True)
class StudyFolder:
    """Content of a study's folder, as a report shows it."""

    path: Path
    given: str
    title: str
    about: list[str]
    """Paragraphs of the study's description."""
    tables: list[Table]
    notes: list[str]
    pictures: list[Picture]
    runs: list[Path]
    commands: list[list[str]]
    """Commands that repeat the study, each as a list of arguments without the leading `glassformer`."""
    warnings: list[str] = field(default_factory=list)


def is_study(path: Path) -> bool:
    """Return True if the folder has a `results.json` and is not a run."""
    return os.path.isfile(path / RESULTS) and not os.path.isfile(path / CONFIG)


def read_study(given: str) -> StudyFolder:
    """Read the folder of a study; raise a user error if the folder has no valid results of a study."""
    path = Path(given)
    document = _document(path)
    warnings: list[str] = []
    about, notes = _words(document, path)
    folders = [run.path for run in reversed(list_runs(path / "runs"))]
    return StudyFolder(
        path,
        given,
        str(document.get("title") or document.get("name") or document.get("study") or path.resolve().name),
        about,
        study_tables(document),
        notes,
        _pictures(path, document, warnings),
        sorted(folders),
        _commands(document, path, given),
        warnings,
    )


def _document(path: Path) -> Tree:
    location = str(path / RESULTS)
    try:
        document = json.loads(read_regular_file(path / RESULTS))
    except (OSError, ValueError, RecursionError) as error:
        raise user_error(f"cannot be read: {error}", path=location, hint="run the study again") from None
    keys = ("rows", "settings", "trials")
    if not isinstance(document, dict) or not any(isinstance(document.get(key), list) for key in keys):
        raise user_error(
            "contains neither rows nor trials, so these are not the results of a study",
            path=location,
            hint="give the folder of a run, or one that glassformer reproduce or sweep wrote",
        )
    return document


def study_tables(document: Mapping[str, Any]) -> list[Table]:
    """Build the tables from the content of a study's `results.json`."""
    tables = []
    metric = document.get("metric")
    own_metric = metric if isinstance(metric, str) else None
    best = document.get("best")
    if isinstance(best, dict):
        flat = _flat(best, own_metric)
        rows = [[_heading(key), _cell(value)] for key, value in flat.items() if _is_shown(value)]
        tables.append(Table("Best setting", ["", "value"], rows))
    for key, caption in (("rows", ""), ("settings", "Every setting"), ("trials", "Every trial")):
        entries = document.get(key)
        if isinstance(entries, list) and entries:
            notes = [f"Metric: {own_metric}."] if own_metric and key == "rows" else []
            tables += _tables(caption, [_flat(entry, own_metric) for entry in entries], notes)
    return tables


def _flat(entry: Any, metric: str | None) -> Any:
    """Flatten a sweep's row to one value per column: varied options, the sweep's metric and the loss."""
    if not isinstance(entry, dict) or not isinstance(entry.get("params"), dict):
        return entry
    flat: Tree = {path.rpartition(".")[2]: value for path, value in flatten(entry["params"]).items()}
    metrics = flatten(entry["metrics"]) if isinstance(entry.get("metrics"), dict) else {}
    limits = _intervals(entry.get("intervals"))
    for path, value in metrics.items():
        if path.rpartition(".")[2] in (metric, "loss") and is_number(value):
            flat[path.replace(".", " ")] = Quantity(value, limits.get(path))
    others = {key: value for key, value in entry.items() if key not in SPLIT_KEYS}
    return {**flat, **others}


def _intervals(limits: Any) -> dict[str, tuple[float, float]]:
    found = flatten(limits) if isinstance(limits, dict) else {}
    return {path: pair for path, value in found.items() if (pair := interval_of(value)) is not None}


def _tables(caption: str, rows: Sequence[Any], notes: Sequence[str]) -> list[Table]:
    """Build the main table with all columns.

    If the rows compare the published recipe with ours, the main table has only that comparison. All other
    columns go into a second, collapsed table.
    """
    entries = [row for row in rows if isinstance(row, dict)]
    present = dict.fromkeys(key for row in entries for key, value in row.items() if _is_shown(value))
    notes = [*notes, *_interval_notes(entries)]

    def table(caption: str, columns: Sequence[str], *, is_aside: bool = False) -> Table:
        cells = [[_row_cell(row, key) for key in columns] for row in entries]
        headings = [_heading(key) for key in columns]
        return Table(caption, headings, cells, () if is_aside else notes, is_aside)

    if "ours" not in present:
        return [table(caption, list(present))] if present else []
    front = [key for key in FIRST_COLUMNS if key in present]
    others = [key for key in present if key not in (*FIRST_COLUMNS, "interval", "values")]
    asides = [table("Details by seed", [*front[:1], *others], is_aside=True)] if others else []
    return [table(caption, front), *asides]


def _interval_notes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence on the confidence intervals, or an empty list if no row has an interval."""
    seeds = [row.get("seeds") for row in rows if row.get("interval") or _has_interval(row)]
    if not seeds:
        return []
    if all(isinstance(of_row, list) and len(of_row) > 1 for of_row in seeds):
        return ["Intervals: 95 %, of the mean over seeds (Student's t)."]
    return ["Intervals: 95 %; with several seeds, of their mean (Student's t)."]


def _heading(key: str) -> str:
    return HEADINGS.get(key, key.replace("_", " "))


def _row_cell(row: Mapping[str, Any], key: str) -> Cell:
    limits = interval_of(row.get("interval"))
    if key == "ours" and is_number(row.get(key)):
        return Quantity(row[key], limits)
    return _cell(row.get(key))


def _has_interval(row: Mapping[str, Any]) -> bool:
    return any(isinstance(value, Quantity) and value.interval is not None for value in row.values())


def _is_shown(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return 0 < len(value) <= MAX_IN_CELL and all(item is None or is_number(item) for item in value)
    return isinstance(value, (int, float, str, Quantity))


def _cell(value: Any) -> Cell:
    if isinstance(value, (list, tuple)):
        if len(value) == 2 and all(isinstance(item, float) for item in value):
            return format_interval(value)
        return ", ".join(format_number(item) if is_number(item) else str(item) for item in value)
    if isinstance(value, str) and len(value) == 64 and not set(value) - set("0123456789abcdef"):
        return value[:12]  # a checksum
    if isinstance(value, bool):
        return format_number(value)
    return value if value is None or isinstance(value, (int, float, str, Quantity)) else format_value(value)


def _words(document: Mapping[str, Any], path: Path) -> tuple[list[str], list[str]]:
    """Return the description of the study, and the paragraphs below the table in `table.md`."""
    try:
        text = (path / "table.md").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        text = ""
    before, _, after = text.partition("\n|")
    description = document.get("about")
    about = [description] if isinstance(description, str) else _paragraphs(before)
    return about, [note for note in _paragraphs(after) if note not in about]


def _paragraphs(text: str) -> list[str]:
    """Return the paragraphs of Markdown text, without headings, tables and pictures."""
    blocks = re.split(r"\n\n|\n- ", text.replace("`", "").replace("**", ""))
    paragraphs = [" ".join(block.split()) for block in blocks if block.strip()]
    return [
        paragraph.removeprefix("- ")
        for paragraph in paragraphs
        if not paragraph.startswith(("#", "|", "!", "Written by")) and " | " not in paragraph
    ]


def _pictures(path: Path, document: Mapping[str, Any], warnings: list[str]) -> list[Picture]:
    """Read the pictures that `results.json` names, then all other pictures in the folder."""
    named = document.get("plot") or document.get("plots") or []
    names = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    found = {file.stem: file for name in names if (file := path / Path(name).name).is_file()}
    for ending in PICTURES:
        for file in sorted(path.glob(f"*{ending}")):
            found.setdefault(file.stem, file)
    pictures = []
    for stem, file in found.items():
        best = next((other for ending in PICTURES if (other := file.with_suffix(ending)).is_file()), file)
        url = _data_url(best)
        if url is None:
            warnings.append(f"{best.name} is too large, or not a valid picture.")
        else:
            pictures.append(Picture(stem, url))
    return pictures


def _data_url(file: Path) -> str | None:
    if file.is_symlink() or file.stat().st_size > MAX_PICTURE_BYTES or file.suffix not in PICTURES:
        return None
    content = file.read_bytes()
    if not content.startswith(SIGNATURES[file.suffix]):
        return None
    return f"data:{PICTURES[file.suffix]};base64,{base64.b64encode(content).decode('ascii')}"


def _commands(document: Mapping[str, Any], path: Path, given: str) -> list[list[str]]:
    """Return the arguments of the `glassformer` commands that repeat the study and train its best config."""
    best = [["train", str(Path(given) / BEST)]] if (path / BEST).is_file() else []
    command = document.get("command")
    if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        return best
    return [command[1:] if command[:1] == ["glassformer"] else command, *best]
