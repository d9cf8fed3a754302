"""New labelled data for the evaluation of a run: a file, or data in memory, that training has not seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from glassformer.core.errors import UserError, user_error
from glassformer.data.columns import Column, LayoutMismatch, Reference, TableLayout, format_columns
from glassformer.data.formats import Stream
from glassformer.data.memory import (
    MemoryRows,
    MemoryStream,
    column_names,
    describe_columns,
    reject_file,
)
from glassformer.data.readers import ENDINGS, DataConfig, Format, file_ending
from glassformer.data.token_store import cache_folder
from glassformer.evaluation.baselines import measure_baselines
from glassformer.models.task_types import SequenceClassification, TokenClassification
from glassformer.runs.predict_file import training_layout
from glassformer.storage.files import file_sha256
from glassformer.tasks.base import Task

if TYPE_CHECKING:
    from glassformer.runs.run import Run

NEW_DATA = "new data"
"""Name of the split that holds the new examples."""
Source = str | Path | Sequence[str | Path]
Columns = Mapping[str, Column | Sequence[Column]]


@dataclass
class NewData:
    """Labelled examples that a run has not been trained on."""

    task: Task
    """Task of the run, with the new examples as its only split."""
    name: str
    """Name of the file, or `inputs` for data in memory."""
    files: dict[str, str] = field(default_factory=dict)
    """SHA-256 of each file by its name; empty for data in memory."""
    notes: list[str] = field(default_factory=list)
    """Sentences on how the data are read, on rows that are left out, and on examples that train also has."""
    baselines: dict[str, Any] = field(default_factory=dict)
    """Metric of simple baselines, as at the end of a training; empty if there are none for the task."""

    split: ClassVar[str] = NEW_DATA

    def complete(self, measured: dict[str, Any]) -> dict[str, Any]:
        """Return the result of an evaluation with the name and checksums of the data, notes and baselines."""
        about = {"data": self.name, "data_sha256": self.task.checksum(), "files": self.files}
        return measured | {
            "data": self.name,
            "protocol": measured["protocol"] | about,
            "warnings": measured["warnings"] + [note for note in self.notes if note.startswith("WARNING")],
            "notes": [note for note in self.notes if not note.startswith("WARNING")],
            "baselines": self.baselines,
        }


def read_memory(run: Run, inputs: Any, targets: Any) -> NewData:
    """Read examples from lists, arrays or columns. A language model has no targets."""
    reject_file(inputs, "inputs", f"run.evaluate(file={str(inputs)!r})")
    roles, names = _roles(run), column_names(inputs)
    inputs = run.select_columns(inputs, "inputs")
    rows = MemoryRows("", inputs, targets)
    if "target" in roles and rows.targets is None:
        raise user_error("there are no targets", path="targets", hint="pass one target per input: targets=")
    if "target" not in roles and rows.targets is not None:
        raise user_error("a language model has no targets", path="targets", hint="pass only inputs=")
    # No file is read with this config: its path is only a name.
    new = _read(run, MemoryStream(rows), DataConfig(train="inputs"), "inputs")
    new.notes += [f"WARNING: {warning}" for warning in rows.warnings]
    if rows.is_table and rows.columns != names:
        new.notes.append(describe_columns(rows.columns or (), is_text=rows.is_text))
    return _add_comparison(run, new)


def read_file(
    run: Run,
    source: Source,
    *,
    columns: Columns | None = None,
    format: Format | None = None,
    header: bool | None = None,
    encoding: str | None = None,
) -> NewData:
    """Read examples from a file, from line-aligned files, or from a folder of classes.

    The file is read as `predict_file` reads one: for each option that is None, the layout, the format and the
    encoding of the training file apply.
    """
    paths = [str(source)] if isinstance(source, (str, Path)) else [str(path) for path in source]
    is_single = isinstance(source, (str, Path))
    roles = _roles(run)
    trained: DataConfig | None = getattr(run.config.task, "data", None)
    options: dict[str, Any] = {} if trained is None else trained.dump()
    options = {name: options[name] for name in ("encoding", "separator", "classes") if name in options}
    if not (is_single and Path(paths[0]).is_dir()):
        options["classes"] = {}
    options |= {"format": format or _format(paths, trained, roles), "header": header}
    options |= {"encoding": encoding} if encoding is not None else {}
    layout = training_layout(run.task)
    reference, requested = _layout(layout, columns, header, trained)
    data = DataConfig(train=paths[0] if is_single else paths, columns=requested, **options)
    stream = data.open(data.train, roles, "", reference=reference)
    try:
        stream.layout()
    except LayoutMismatch as error:
        _name_columns(error, data, roles)
        raise
    name = " + ".join(Path(path).name for path in paths)
    new = _read(run, stream, data, name)
    new.files = {path.name: file_sha256(path) for path in stream.files}
    return _add_comparison(run, new)


def _name_columns(error: LayoutMismatch, data: DataConfig, roles: Mapping[str, str]) -> None:
    """Put the option with the names of the file's likely columns into the hint of an error."""
    try:
        own = data.model_copy(update={"columns": {}}).open(data.train, roles, "").layout()
    except UserError:
        return
    names = None if own is None else own.role_names()
    if names is not None:
        error.details[0].hint = f"name the columns: --columns '{format_columns(names)}'"


def _roles(run: Run) -> Mapping[str, str]:
    """Return the roles of the task's columns. Raise UserError if the task has no data files."""
    roles: Mapping[str, str] | None = getattr(run.config.task, "roles", None)
    if roles is None:
        raise user_error(
            "this task generates its examples and reads no files",
            path="task.kind",
            value=run.config.task.kind,
            hint=f"glassformer evaluate {run.path} --split test",
        )
    return roles


def _format(paths: Sequence[str], trained: DataConfig | None, roles: Mapping[str, str]) -> Format | None:
    """Return the format of a file: that of its ending, or else that of the training file."""
    path, as_trained = Path(paths[0]), None if trained is None else trained.format
    by_ending = ENDINGS.get(file_ending(path))
    if len(paths) > 1 or path.is_dir():
        return None
    if by_ending == "csv" and str(as_trained).startswith("csv"):
        return as_trained
    if by_ending is None and as_trained in (None, "folder") and len(roles) > 1:
        raise user_error(
            "the ending of the file does not name a format",
            path=str(path),
            hint="add --format tsv, csv, jsonl or json; for two aligned files: --file '[new.en, new.fr]'",
        )
    return by_ending or as_trained


def _layout(
    layout: Mapping[str, Any] | None,
    columns: Columns | None,
    header: bool | None,
    trained: DataConfig | None,
) -> tuple[Reference | None, dict[str, Any]]:
    """Return the layout that the file must have, and the columns to read.

    Columns that the user names take precedence over those of the training file.
    """
    given = {role: list(each) if isinstance(each, tuple) else each for role, each in (columns or {}).items()}
    if layout is None:
        return None, given
    train = TableLayout.from_document(layout)
    if header is False and train.width:
        train = replace(train, names=(), has_header=False)
    names = train.role_names()
    usual = {role: list(each) for role, each in (train.columns if names is None else names).items()}
    if given:
        return None, usual | given
    source = "train" if trained is None else trained.train
    name = Path(source if isinstance(source, str) else source[0]).name
    return Reference(train, name), {} if names is None else usual


def _read(run: Run, stream: Stream, data: DataConfig, name: str) -> NewData:
    task = run.folder.restore_task(run.config.task, run.config.seed)
    notes = task.replace_data(NEW_DATA, stream, data)
    # Where tokens are stored is of no use to the reader of a result.
    return NewData(task, name, notes=[note for note in notes if str(cache_folder()) not in note])


def _add_comparison(run: Run, new: NewData) -> NewData:
    """Add baselines and a warning about examples that train also has, if the training data can be read."""
    try:
        is_unchanged = run.task.checksum() == run.folder.environment().get("data_sha256")
    except (UserError, OSError):
        is_unchanged = False
    if not is_unchanged:
        new.notes.append(
            "the training data have changed or cannot be read: the new data are not compared with them"
        )
        return new
    train = {hash(each) for each in run.task.comparable("train")}
    found = [hash(each) in train for each in new.task.comparable(NEW_DATA)]
    if any(found):
        new.notes.append(
            f"WARNING: {new.name}: {sum(found):,} of {len(found):,} inputs also appear in train, so that the"
            " metrics are too good"
        )
    task_type = new.task.task_type
    if isinstance(task_type, (SequenceClassification, TokenClassification)):
        splits = {"train": run.task.splits["train"], NEW_DATA: new.task.splits[NEW_DATA]}
        new.baselines = measure_baselines(
            splits, NEW_DATA, task_type, lambda number: run.task.output_symbols([number])[0]
        )
    return new
