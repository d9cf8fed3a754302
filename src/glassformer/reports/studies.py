"""The folder of a study, as `reproduce` or `sweep` leave it: document, table, pictures, runs.

It knows no study by name. A document has `rows`, or `trials` and a `best` one; whatever else a row holds is a
column, if it is a number, a word or a few of them.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from glassformer.core.config import Tree, flatten, format_value
from glassformer.core.errors import user_error
from glassformer.core.system import read_document
from glassformer.reports.records import interval_of, is_number
from glassformer.reports.tables import Cell, Quantity, Table, number, span
from glassformer.runs.folder import CONFIG, list_runs

RESULTS, BEST = "results.json", "best.yaml"
PICTURES = {".svg": "image/svg+xml", ".png": "image/png"}
"""The first one of the same name is taken: it is as sharp on paper as on a phone."""
BEGINNINGS = {".svg": (b"<?xml", b"<svg"), ".png": (b"\x89PNG\r\n",)}
LARGEST_PICTURE = 4 << 20
MOST_IN_A_CELL = 12
TAKEN_APART = {"params", "metrics", "intervals", "interval", "value", "runs", "run", "config"}
"""Of a setting of a sweep: shown as columns of their own, or told elsewhere."""

FIRST_COLUMNS = ("setting", "published", "theirs", "ours", "lowest")
HEADINGS = {
    "theirs": "their recipe",
    "ours": "ours, mean",
    "interval": "95 % interval",
    "lowest": "lowest seed",
}


@dataclass(frozen=True)
class Picture:
    name: str
    address: str
    """A `data:` address: the picture itself."""


@dataclass(frozen=True)
class Study:
    path: Path
    given: str
    title: str
    about: list[str]
    """Paragraphs."""
    tables: list[Table]
    notes: list[str]
    pictures: list[Picture]
    runs: list[Path]
    commands: list[list[str]]
    """Words after `glassformer`, as far as the study tells."""
    problems: list[str] = field(default_factory=list)


def is_study(path: Path) -> bool:
    return os.path.isfile(path / RESULTS) and not os.path.isfile(path / CONFIG)


def read_study(given: str) -> Study:
    path = Path(given)
    document = _document(path)
    problems: list[str] = []
    about, notes = _words(document, path)
    folders = [run.path for run in reversed(list_runs(path / "runs"))]
    return Study(
        path,
        given,
        str(document.get("title") or document.get("name") or document.get("study") or path.resolve().name),
        about,
        study_tables(document),
        notes,
        _pictures(path, document, problems),
        sorted(folders),
        _commands(document, path, given),
        problems,
    )


def _document(path: Path) -> Tree:
    place = str(path / RESULTS)
    try:
        document = json.loads(read_document(path / RESULTS))
    except (OSError, ValueError, RecursionError) as error:
        raise user_error(f"cannot be read: {error}", path=place, hint="run the study again") from None
    if not isinstance(document, dict) or not any(
        isinstance(document.get(key), list) for key in ("rows", "settings", "trials")
    ):
        raise user_error(
            "holds neither rows nor trials: not the results of a study",
            path=place,
            hint="a run's folder, or one that glassformer reproduce or sweep wrote",
        )
    return document


def study_tables(document: Mapping[str, Any]) -> list[Table]:
    tables = []
    metric = document.get("metric")
    wanted = metric if isinstance(metric, str) else None
    best = document.get("best")
    if isinstance(best, dict):
        flat = _flat(best, wanted)
        rows = [[_heading(key), _cell(value)] for key, value in flat.items() if _is_shown(value)]
        tables.append(Table("The best setting", ["", "value"], rows))
    for key, caption in (("rows", ""), ("settings", "Every setting"), ("trials", "Every trial")):
        entries = document.get(key)
        if isinstance(entries, list) and entries:
            notes = [f"Metric: {wanted}."] if wanted and key == "rows" else []
            tables += _tables(caption, [_flat(entry, wanted) for entry in entries], notes)
    return tables


def _flat(entry: Any, metric: str | None) -> Any:
    """What was chosen and what was measured, a column each: of all metrics the study's own, and the loss."""
    if not isinstance(entry, dict) or not isinstance(entry.get("params"), dict):
        return entry
    flat: Tree = {path.rpartition(".")[2]: value for path, value in flatten(entry["params"]).items()}
    metrics = flatten(entry["metrics"]) if isinstance(entry.get("metrics"), dict) else {}
    limits = _intervals(entry.get("intervals"))
    for path, value in metrics.items():
        if path.rpartition(".")[2] in (metric, "loss") and is_number(value):
            flat[path.replace(".", " ")] = Quantity(value, limits.get(path))
    others = {key: value for key, value in entry.items() if key not in TAKEN_APART}
    return {**flat, **others}


def _intervals(limits: Any) -> dict[str, tuple[float, float]]:
    found = flatten(limits) if isinstance(limits, dict) else {}
    return {path: pair for path, value in found.items() if (pair := interval_of(value)) is not None}


def _tables(caption: str, rows: Sequence[Any], notes: Sequence[str]) -> list[Table]:
    """What was asked and what came out; where a row says much more, that stands in a table of its own."""
    entries = [row for row in rows if isinstance(row, dict)]
    present = dict.fromkeys(key for row in entries for key, value in row.items() if _is_shown(value))
    told = [*notes, *_interval_notes(entries)]
    if "ours" not in present:
        return [_table(caption, entries, list(present), told)] if present else []
    front = [key for key in FIRST_COLUMNS if key in present]
    others = [key for key in present if key not in (*FIRST_COLUMNS, "interval", "values")]
    tables = [_table(caption, entries, front, told)]
    if others:
        aside = _table("Seed by seed, and all else", entries, [*front[:1], *others], ())
        tables.append(replace(aside, is_aside=True))
    return tables


def _table(
    caption: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], notes: Sequence[str]
) -> Table:
    cells = [[_row_cell(row, key) for key in columns] for row in rows]
    return Table(caption, [_heading(key) for key in columns], cells, notes)


def _interval_notes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Over seeds, if every row that has an interval has several of them."""
    with_one = [row for row in rows if row.get("interval") or _has_interval(row)]
    if not with_one:
        return []
    seeds = [row.get("seeds") for row in with_one]
    if all(isinstance(of_row, list) and len(of_row) > 1 for of_row in seeds):
        return ["Intervals: 95 %, of the mean over seeds, by Student's t."]
    return ["Intervals: 95 %; of more than one seed, of their mean by Student's t."]


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
        return 0 < len(value) <= MOST_IN_A_CELL and all(item is None or is_number(item) for item in value)
    return isinstance(value, (int, float, str, Quantity))


def _cell(value: Any) -> Cell:
    if isinstance(value, (list, tuple)):
        if len(value) == 2 and all(isinstance(item, float) for item in value):
            return span(value)
        return ", ".join(number(item) if is_number(item) else str(item) for item in value)
    if isinstance(value, str) and len(value) == 64 and not set(value) - set("0123456789abcdef"):
        return value[:12]  # a checksum
    if isinstance(value, bool):
        return number(value)
    return value if value is None or isinstance(value, (int, float, str, Quantity)) else format_value(value)


def _words(document: Mapping[str, Any], path: Path) -> tuple[list[str], list[str]]:
    """What the study says of itself, and what `table.md` says under its table."""
    try:
        text = (path / "table.md").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        text = ""
    before, _, after = text.partition("\n|")
    told = document.get("about")
    about = [told] if isinstance(told, str) else _paragraphs(before)
    return about, [note for note in _paragraphs(after) if note not in about]


def _paragraphs(text: str) -> list[str]:
    """Without headings, tables and pictures, which are shown by themselves."""
    plain = text.replace("`", "").replace("**", "")
    paragraphs = [
        " ".join(part.split())
        for block in plain.split("\n\n")
        for part in block.split("\n- ")
        if part.strip()
    ]
    shown = [
        part.removeprefix("- ") for part in paragraphs if not part.startswith(("#", "|", "!", "Written by"))
    ]
    return [part for part in shown if " | " not in part]


def _pictures(path: Path, document: Mapping[str, Any], problems: list[str]) -> list[Picture]:
    """Those that the document names first, then all others in the folder."""
    named = document.get("plot") or document.get("plots") or []
    names = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    found = {file.stem: file for name in names if (file := path / Path(name).name).is_file()}
    for ending in PICTURES:
        for file in sorted(path.glob(f"*{ending}")):
            found.setdefault(file.stem, file)
    pictures = []
    for stem, file in found.items():
        sharpest = next((other for ending in PICTURES if (other := file.with_suffix(ending)).is_file()), file)
        address = _address(sharpest)
        if address is None:
            problems.append(f"{sharpest.name} is no picture that can be shown, or too large.")
        else:
            pictures.append(Picture(stem, address))
    return pictures


def _address(file: Path) -> str | None:
    if file.is_symlink() or file.stat().st_size > LARGEST_PICTURE or file.suffix not in PICTURES:
        return None
    content = file.read_bytes()
    if not content.startswith(BEGINNINGS[file.suffix]):
        return None
    return f"data:{PICTURES[file.suffix]};base64,{base64.b64encode(content).decode('ascii')}"


def _commands(document: Mapping[str, Any], path: Path, given: str) -> list[list[str]]:
    best = [["train", str(Path(given) / BEST)]] if (path / BEST).is_file() else []
    told = document.get("command")
    if isinstance(told, list) and all(isinstance(word, str) for word in told):
        return [told[1:] if told[:1] == ["glassformer"] else told, *best]
    if not isinstance(document.get("name"), str) or "is_quick" not in document:
        return best
    rows = [row for row in document.get("rows") or [] if isinstance(row, dict)]
    seeds = max((len(row["seeds"]) for row in rows if isinstance(row.get("seeds"), list)), default=0)
    words = ["reproduce", document["name"]]
    words += ["--quick"] if document["is_quick"] else []
    words += ["--ours-only"] if document.get("with_theirs") is False else []
    words += ["--seeds", str(seeds)] if seeds else []
    if isinstance(document.get("workers"), int):
        words += ["--workers", str(document["workers"])]
    return [[*words, "--out", given], *best]
