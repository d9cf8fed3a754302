"""Main functions of the library: `train` on a preset, a config file or data in memory, and `sweep`."""

from __future__ import annotations

import random
import re
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from glassformer.core.config import merge, parse_overrides, unflatten
from glassformer.core.errors import UserError, user_error
from glassformer.data.columns import count
from glassformer.data.memory import (
    LABEL_REPEATS,
    Column,
    MemoryRows,
    describe_columns,
    plain,
    reject_file,
    select_columns,
)
from glassformer.data.readers import file_ending
from glassformer.runs.experiment import DATA_ENDINGS, ExperimentConfig, apply_overrides, read_source
from glassformer.runs.folder import RunFolder, new_run_path
from glassformer.runs.run import Run
from glassformer.runs.session import DEFAULT_RUNS, TrainingSession, open_session
from glassformer.storage.files import atomic_write
from glassformer.training.progress import Reporter, reporter_for

TASKS: dict[str, dict[str, Any]] = {
    "classification": {"preset": "classification"},
    "regression": {"preset": "classification", "task.target": "number"},
    "translation": {"preset": "translation"},
    "language-model": {"preset": "language-model"},
    "masked-language-model": {"preset": "masked-language-model"},
    "token-classification": {"task.kind": "tokens", "task.target": "token-labels"},
    "sequence-classification": {"task.kind": "tokens", "task.target": "label"},
    "sequence-regression": {"task.kind": "tokens", "task.target": "number"},
    "sequence-to-sequence": {"task.kind": "tokens", "task.target": "sequence"},
}
"""Config options for each value of `task` in `train`. The first five read texts, the others read tokens."""

TOKEN_LABEL_ROWS = 0.9
"""Fraction of rows with one label per token from which rows with other lengths are mistakes."""

Split = tuple[Column, Column | None]


@contextmanager
def _keep_random_states() -> Iterator[None]:
    """Restore the global random states of the caller, which a training sets from its own seed."""
    python, numpy = random.getstate(), np.random.get_state()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@_keep_random_states()
def train(
    source: str | Path | None = None,
    overrides: Iterable[str] | Mapping[str, Any] = (),
    *,
    inputs: Column | None = None,
    targets: Column | None = None,
    validation: Split | None = None,
    test: Split | None = None,
    task: str | None = None,
    run: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    reporter: Reporter | None = None,
) -> Run:
    """Train a model and return its `Run`.

        gf.train("reversal", {"task.length": 100})
        gf.train(inputs=texts, targets=labels)
        gf.train(inputs=df["english"], targets=df["french"], task="translation")

    `source` is a preset, a config file or a run. `overrides` map paths of its options to new values.

    `inputs` and `targets` are data in memory: lists, arrays, tensors, or columns of a pandas or polars
    DataFrame. Several columns of texts are joined, as `task.data.columns` joins those of a file. An input is
    a text, or a sequence of tokens (integers or strings). A target is a label, a real number, a text, a
    sequence of tokens, or one label per token; without targets a language model is trained.
    `task` is a key of `glassformer.api.TASKS`. By default it is inferred from the data.

    `validation` and `test` are pairs (inputs, targets). Without `validation`, a part is split off.
    The data are written to `data/` in the run folder, so that the run can be evaluated and resumed later.

    `run` is the folder to write. `resume` continues a stopped run as if it had not stopped; `source`, options
    and data may then be omitted. `progress` prints a progress bar or lines.

    The global random states of PyTorch, NumPy and Python are afterwards as before the call.

    Ctrl-C saves a checkpoint and then raises KeyboardInterrupt. SIGTERM saves one and raises SystemExit.
    """
    if reporter is None:
        reporter = reporter_for(sys.stderr) if progress else Reporter()
    overrides = _plain_options(overrides)
    if inputs is None:
        source = _checked_source(source, run, resume)
        session = open_session(str(source), overrides, run=run, resume=resume, reporter=reporter)
        return _finish(session)
    changes = parse_overrides(overrides)
    _reject_text(inputs, has_targets=targets is not None)
    rows = MemoryRows("", inputs, targets)
    splits = {"train": rows}
    for name, split in (("validation", validation), ("test", test)):
        if split is not None:
            own, of_own = _pair(name, split)
            own = select_columns(own, rows.columns, f"{name}.inputs", is_text=rows.is_text)
            splits[name] = MemoryRows(name, own, of_own)
    return _train_in_memory(source, changes, splits, task, run, resume, reporter)


def _plain_options(value: Any) -> Any:
    """Return options with scalars and arrays of NumPy and PyTorch as plain numbers and lists."""
    if isinstance(value, Mapping):
        return {path: _plain_options(own) for path, own in value.items()}
    if isinstance(value, (list, tuple)):
        return [*map(_plain_options, value)]
    return plain(value)


def _checked_source(source: str | Path | None, run: str | Path | None, resume: bool) -> str | Path:
    """Return the source of a training without data in memory. With `resume`, it may be the run itself."""
    if source is None and run is not None and resume:
        return RunFolder.open(Path(run)).path
    if source is None:
        raise user_error(
            "nothing to train on", path="source", hint='call gf.train("reversal"), or pass inputs='
        )
    if not isinstance(source, (str, Path)):
        raise user_error(
            f"expected a preset, a config file or a run, not data ({type(source).__name__})",
            path="source",
            hint="pass data by name: gf.train(inputs=texts, targets=labels)",
        )
    return source


def _reject_text(inputs: Any, *, has_targets: bool) -> None:
    """Raise a UserError if the inputs are the name of a file, or one running text, instead of examples."""
    if isinstance(inputs, (str, Path)):
        preset = DATA_ENDINGS.get(file_ending(Path(inputs)), "classification")
        reject_file(inputs, "inputs", f'gf.train("{preset}", {{"task.data.train": {str(inputs)!r}}})')
    is_single = isinstance(inputs, (list, tuple)) and len(inputs) == 1 and isinstance(inputs[0], str)
    if not has_targets and (isinstance(inputs, str) or is_single):
        raise user_error(
            "this is one text, not a list of texts",
            path="inputs",
            value=inputs,
            hint="pass a list of its paragraphs, or train on a file with one running text: gf.train("
            '"language-model", {"task.data.train": "text.txt", "task.data.format": "running-text"})',
        )


def _pair(name: str, split: Any) -> Split:
    """Return inputs and targets of a split. Raise a UserError if `split` is not a pair."""
    if isinstance(split, (tuple, list)) and len(split) == 2:
        return split[0], split[1]
    hint = f"pass {name}=(inputs, targets)"
    if isinstance(split, (int, float)):
        hint += f', or overrides={{"task.data.{name}_fraction": {split}}} to split off a part'
    raise user_error("expected a pair (inputs, targets)", path=name, value=split, hint=hint)


def _finish(session: TrainingSession) -> Run:
    """Train, and return the run. If a signal stopped the training, raise what the signal would have raised.

    Otherwise a script that Ctrl-C should end would continue with a model that is trained in part.
    """
    session.report_end(session.run())
    path = session.folder.path
    if session.exit_code == 128 + signal.SIGINT:
        step = session.trainer.state.step
        raise KeyboardInterrupt(
            f"stopped at step {step:,}; a checkpoint is saved; continue with"
            f" gf.train({str(path)!r}, resume=True)"
        )
    if session.exit_code:
        raise SystemExit(session.exit_code)
    return Run(path)


def _train_in_memory(
    source: str | Path | None,
    changes: dict[str, Any],
    splits: Mapping[str, MemoryRows],
    task: str | None,
    run: str | Path | None,
    resume: bool,
    reporter: Reporter,
) -> Run:
    rows = splits["train"]
    name = task or _infer_task(rows)
    if name not in TASKS:
        raise user_error("unknown kind of data", path="task", value=name, allowed=list(TASKS))
    is_labelled = "classification" in name and name != "token-classification"
    if is_labelled:
        rows.reject_single_label()
    reporter.info(f"task: {name}, {count(len(rows), 'example')}")
    if rows.is_table and rows.columns:
        reporter.info(describe_columns(rows.columns, is_text=rows.is_text))
    warnings = rows.type_warnings(name) if task is None else []
    warnings += rows.contradictions() if is_labelled else []
    warnings += [warning for split in splits.values() for warning in split.warnings]
    path = _run_folder(name, run, resume)
    files = {split: path / "data" / f"{split}.jsonl" for split in splits}
    columns = {"input": "input"} | ({} if rows.targets is None else {"target": "target"})
    data = {split: str(file) for split, file in files.items()} | {"format": "jsonl", "columns": columns}
    restored: list[Path] = []

    def named(text: str) -> str:
        return _name_arguments(text, path / "data", rows.targets is not None)

    try:
        tree = _options(source, name, task, path)
        config = apply_overrides(merge(tree, {"task": {"data": data}}), changes)
        restored = _write_data(splits, files, RunFolder(path))
        session = TrainingSession(config, RunFolder(path), reporter)
        session.input_columns = rows.columns
        notes = session.experiment.task.notes
        notes[:] = [f"WARNING: {warning}" for warning in warnings] + list(map(named, notes))
        notes += rows.hints(name) if task is None else []
        return _finish(session)
    except UserError as error:
        for file in restored:
            file.unlink()  # it may not be the data of this run
        details = [
            replace(each, message=named(each.message), path=named(each.path), hint=named(each.hint))
            for each in error.details
        ]
        raise UserError(*details) from None
    finally:
        if not RunFolder(path).exists():
            shutil.rmtree(path, ignore_errors=True)


def _name_arguments(text: str, folder: Path, has_targets: bool) -> str:
    """Return a message about the copies of the data in `folder` as one about the caller's arguments."""

    def name(match: re.Match[str]) -> str:
        split, line = match.groups()
        prefix, index = "" if split == "train" else f"{split}.", "" if line is None else f"[{int(line) - 1}]"
        return f"{prefix}inputs{index}" + (f", {prefix}targets{index}" if has_targets else "")

    text = text.replace("task.target=number", 'task="regression"')
    return re.sub(rf"{re.escape(str(folder))}[/\\](\w+)\.jsonl(?:, line (\d+))?", name, text)


def _options(source: str | Path | None, name: str, task: str | None, path: Path) -> dict[str, Any]:
    """Return the config tree of a training on data in memory. A run that is resumed keeps its options."""
    if source is None and RunFolder(path).exists():
        tree = read_source(str(path))
        return tree if task is None else merge(tree, unflatten(_without_preset(name)))
    preset = TASKS[name].get("preset")
    if source is None and preset is None:
        tree = ExperimentConfig.fill_kinds({"task": {"kind": "tokens"}})
    else:
        tree = read_source(str(source or preset))
    return merge(tree, unflatten(_without_preset(name)))


def _without_preset(name: str) -> dict[str, Any]:
    return {path: value for path, value in TASKS[name].items() if path != "preset"}


def _write_data(splits: Mapping[str, MemoryRows], files: Mapping[str, Path], folder: RunFolder) -> list[Path]:
    """Write the splits to their files. Return the files that an existing run did not have any more.

    The data of an existing run are never replaced. If others are given, raise a UserError.
    """
    is_new = not folder.exists()
    contents = {files[split]: rows.json_lines() for split, rows in splits.items()}
    if not is_new:
        for file in [file for file in contents if file.exists()]:
            if file.read_bytes() != contents.pop(file):
                raise user_error(
                    f"the run was trained on other data: {file.stem} differs",
                    path=str(folder.path),
                    hint=f"gf.train({str(folder.path)!r}, resume=True) continues with its own data;"
                    " for other data pass a new folder as run=",
                )
    for file, content in contents.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(file, content)
    return [] if is_new else list(contents)


def _run_folder(name: str, run: str | Path | None, resume: bool) -> Path:
    """Return the folder for a run on data in memory. Raise a UserError if it cannot be used."""
    if run is None:
        if resume:
            raise user_error("resume needs a run folder", path="run", hint="pass the run to resume as run=")
        return new_run_path(DEFAULT_RUNS, name)
    path = Path(run)
    if RunFolder(path).exists() and not resume:
        raise user_error(
            "this folder already contains a run", path=str(path), hint="pass resume=True, or another run="
        )
    if path.exists() and not RunFolder(path).exists() and any(path.iterdir()):
        raise user_error("this folder has files but no run", path=str(path), hint="pass a new folder as run=")
    return path


@_keep_random_states()
def sweep(
    source: str | Path,
    overrides: Iterable[str] | Mapping[str, Any],
    *,
    seeds: int = 1,
    workers: int = 1,
    sampler: str | None = None,
    trials: int | None = None,
    out: str | Path | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Train one run per combination of option values and seed. Return a dict with all results.

        gf.sweep("reversal", {"training.optimizer.learning_rate": [1e-3, 1e-2]}, seeds=3, workers=2)["best"]
        gf.sweep("reversal", ["training.optimizer.learning_rate=log:1e-4..1e-2"], trials=10)["best"]

    `overrides` map paths of options to one value for all runs, or to a list of values to sweep over. As text,
    an override is `PATH=VALUE` for all runs, or a range to sweep over: `PATH=v1,v2`, `PATH=1..8`,
    `PATH=log:1e-5..1e-2`. `out` is the folder of the sweep. A second call with the same folder trains only
    the missing runs. `glassformer sweep --json` prints the same dict. A script must call this function under
    `if __name__ == "__main__":`, because workers are separate processes.
    """
    from glassformer.sweeps.coordinator import leave_unguarded_import, run_sweep
    from glassformer.sweeps.definition import define, study_name
    from glassformer.sweeps.space import format_overrides
    from glassformer.sweeps.storage import storage_url

    leave_unguarded_import()
    overrides = _plain_options(overrides)
    arguments = format_overrides(overrides) if isinstance(overrides, Mapping) else list(overrides)
    definition = define(str(source), arguments, seeds=seeds, sampler=sampler, trials=trials)
    study = study_name(str(source), definition)
    folder = Path(out) if out is not None else DEFAULT_RUNS / f"sweep-{study}"
    reporter = reporter_for(sys.stderr) if progress else Reporter()
    url = storage_url(None, folder)
    document, _ = run_sweep(definition, study, url, folder, workers=workers, log=reporter.info)
    return document


def _infer_task(rows: MemoryRows) -> str:
    """Return the key of TASKS that fits the types of inputs and targets."""
    targets = rows.targets
    if targets is None:
        return "language-model"
    rows.reject_numeric_texts()
    if rows.is_text:
        if all(isinstance(target, float) for target in targets):
            return "regression"
        is_text = all(isinstance(target, str) for target in targets)
        is_translation = is_text and len(targets) < LABEL_REPEATS * len(set(targets))
        if is_translation:
            rows.reject_swapped()
        return "translation" if is_translation else "classification"
    rows.reject_texts_as_tokens()
    if all(isinstance(target, list) for target in targets):
        is_labelled = [len(target) == len(row) for target, row in zip(targets, rows.inputs, strict=True)]
        if not all(is_labelled) and sum(is_labelled) >= TOKEN_LABEL_ROWS * len(rows):
            index = is_labelled.index(False)
            raise user_error(
                f"{sum(is_labelled):,} of {len(rows):,} rows have one label per token, but this one has"
                f" {len(targets[index]):,} for {len(rows.inputs[index]):,} tokens",
                path=f"targets[{index}]",
                value=targets[index],
                hint='correct the row, or pass task="sequence-to-sequence"',
            )
        return "token-classification" if all(is_labelled) else "sequence-to-sequence"
    is_real = all(isinstance(target, float) for target in targets)
    return "sequence-regression" if is_real else "sequence-classification"
