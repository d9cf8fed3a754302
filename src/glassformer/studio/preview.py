"""Preview of the data files in the form for a new run: the first rows, read as training reads them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from glassformer.core.errors import ErrorDetail, UserError, shorten
from glassformer.data.check import column_uses
from glassformer.data.columns import LABEL_ROLES
from glassformer.data.findings import ColumnUse
from glassformer.data.formats import Record, Stream
from glassformer.data.labels import MAX_LABELS, are_real_values, label_warnings
from glassformer.data.readers import DataConfig
from glassformer.data.roles import as_shown
from glassformer.runs.experiment import resolve
from glassformer.studio import limits
from glassformer.studio.forms import draft, nearest_field
from glassformer.studio.messages import FormBody
from glassformer.tasks.base import TaskConfig
from glassformer.tasks.text import SPLITS
from glassformer.web.messages import error_document, read_body, refusal

if TYPE_CHECKING:
    from glassformer.studio.app import Studio

TASK = "task."


class LimitReached(Exception):
    """Exception that ends a preview: enough of the file was read, or reading it takes too long."""


class ReadLimit:
    """Limit on the bytes and the time that the preview of one file may take."""

    def __init__(self) -> None:
        self.end = time.monotonic() + limits.PREVIEW_SECONDS
        self.begin()

    def begin(self) -> None:
        """Reset the byte limit, because the file is read from its start again. The time limit stays."""
        self.bytes_left = limits.PREVIEW_BYTES

    def __call__(self, size: int = 0) -> None:
        self.bytes_left -= size
        if self.bytes_left < 0 or time.monotonic() > self.end:
            raise LimitReached


async def preview(studio: Studio, request: Request) -> Response:
    if not studio.shows_files:
        raise refusal(
            403,
            "files are previewed only if the studio listens on this machine alone",
            path="task.data.train",
            hint="start the studio without --host, and connect through a tunnel (ssh -L)",
        )
    body = await read_body(request, FormBody)
    return await studio.reply(request, _preview, studio, body)


def _preview(studio: Studio, body: FormBody) -> dict[str, Any]:
    """Return the preview of each data file, and errors that name the form field with the error."""
    made = draft(studio.folder, body.source, body.values)
    paths = [form_field.path for form_field in made.fields]
    # Errors in other parts of the form do not matter here.
    overrides = {path: value for path, value in made.overrides.items() if path.startswith(TASK)}
    try:
        task = resolve(made.source, overrides).task
    except UserError as error:
        return {"files": [], "errors": [_error(detail, "task.data.train", paths) for detail in error.details]}
    data, roles = getattr(task, "data", None), getattr(task, "roles", {})
    files: list[dict[str, Any]] = []
    errors: list[dict[str, Any]] = []
    if not isinstance(data, DataConfig):
        return {"files": files, "errors": errors}
    for split in SPLITS:
        try:
            shown = preview_split(task, data, split, roles)
        except UserError as error:
            errors += [_error(detail, f"task.data.{split}", paths) for detail in error.details]
            if split == "train":
                break  # it decides how the others are read
        else:
            files += [] if shown is None else [shown]
    return {"files": files, "errors": errors}


def _error(detail: ErrorDetail, default: str, paths: list[str]) -> dict[str, Any]:
    """Return an error and the form field that shows it: the field that it names, else `default`."""
    named = detail.path.split(":")[0]
    return error_document(detail) | {"field": nearest_field(named if named in paths else default, paths)}


def preview_split(
    task: TaskConfig, data: DataConfig, split: str, roles: Mapping[str, str]
) -> dict[str, Any] | None:
    """Return the first rows of a split, its columns with roles such as `input`, and its class counts."""
    limit = ReadLimit()
    stream = data.stream(split, roles, limit)
    if stream is None:
        return None
    rows: list[Record] = []
    counts = Counter[str]()
    total, is_whole = 0, False
    try:
        uses = column_uses(stream)[: limits.PREVIEW_COLUMNS]
        for record in _records(stream, limit):
            total += 1
            if len(rows) < limits.PREVIEW_ROWS:
                rows.append(record)
            if roles == LABEL_ROLES and len(counts) <= MAX_LABELS:
                counts[as_shown(record.values["target"])] += 1
        is_whole = True
    except LimitReached:
        if not rows:
            raise _too_large(stream) from None
    notes = [*stream.notes]
    if len(counts) <= MAX_LABELS and getattr(task, "target", None) == "label":
        notes += label_warnings({label.strip(): count for label, count in counts.items()}, split)
    are_classes = bool(counts) and len(counts) <= MAX_LABELS and not are_real_values(counts)
    return {
        "split": split,
        "file": stream.name,
        "notes": notes,
        "columns": [_column(use) for use in uses] or [_column(role) for role in roles],
        "rows": [{"line": record.number, "values": _values(record, uses, list(roles))} for record in rows],
        "examples": total,
        "is_whole": is_whole,
        "num_classes": len(counts) if are_classes else None,
        "classes": [
            {"label": shorten(label), "count": count}
            for label, count in (counts.most_common(limits.PREVIEW_CLASSES) if are_classes else ())
        ],
    }


def _records(stream: Stream, limit: ReadLimit) -> Iterator[Record]:
    limit.begin()
    for record in stream:
        limit()
        yield record


def _too_large(stream: Stream) -> UserError:
    return UserError(
        ErrorDetail(
            f"the file cannot be previewed: its beginning has more than {limits.PREVIEW_BYTES >> 20} MB",
            path=stream.name,
            hint="training can read it; glassformer data check shows how",
        )
    )


def _column(use: ColumnUse | str) -> dict[str, Any]:
    """Describe a data column as a dict with its role in an example, such as `input`.

    A file format without columns has only roles, given as text.
    """
    if isinstance(use, str):
        return {"column": None, "name": "", "role": use}
    return {key: value for key, value in asdict(use).items() if key != "example"}


def _values(record: Record, uses: list[ColumnUse], roles: list[str]) -> list[str]:
    if not uses:
        found = [record.values.get(role, "") for role in roles]
    elif isinstance(record.row, dict):
        found = [record.row.get(use.column, "") for use in uses]
    else:
        found = list(record.row)[: len(uses)]
    return [shorten(as_shown(value), limits.PREVIEW_CHARACTERS) for value in found]
