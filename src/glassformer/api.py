"""Main functions of the library: `train` on a preset, a config file or data in memory, and `sweep`."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from glassformer.core.config import merge, parse_overrides, unflatten
from glassformer.core.errors import user_error
from glassformer.runs.experiment import ExperimentConfig, apply_overrides, read_source
from glassformer.runs.folder import RunFolder, new_run_path
from glassformer.runs.run import Run
from glassformer.runs.session import DEFAULT_RUNS, TrainingSession
from glassformer.runs.session import train as train_source
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

LABEL_REPEATS = 2
"""Minimum mean number of rows per distinct text target for which targets are labels, not translations."""

Column = Iterable[Any]
Split = tuple[Column, Column | None]


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
    DataFrame. An input is a text, or a sequence of tokens (integers or strings). A target is a label, a real
    number, a text, a sequence of tokens, or one label per token; without targets a language model is trained.
    `task` is a key of `glassformer.api.TASKS`. By default it is inferred from the data.

    `validation` and `test` are pairs (inputs, targets). Without `validation`, a part is split off.
    The data are written to `data/` in the run folder, so that the run can be evaluated and resumed later.

    `run` is the folder to write. `resume` continues a stopped run as if it had not stopped. `progress` prints
    a progress bar or lines.
    """
    if reporter is None:
        reporter = reporter_for(sys.stderr) if progress else Reporter()
    if inputs is None:
        if source is None:
            raise user_error(
                "nothing to train on", path="source", hint='call gf.train("reversal"), or pass inputs='
            )
        return train_source(str(source), overrides, run=run, resume=resume, reporter=reporter)
    changes = parse_overrides(overrides)
    splits = {"train": _Rows("", inputs, targets)}
    for name, split in (("validation", validation), ("test", test)):
        if split is not None:
            splits[name] = _Rows(name, *split)
    return _train_in_memory(source, changes, splits, task, run, resume, reporter)


def _train_in_memory(
    source: str | Path | None,
    changes: dict[str, Any],
    splits: Mapping[str, _Rows],
    task: str | None,
    run: str | Path | None,
    resume: bool,
    reporter: Reporter,
) -> Run:
    name = task or _infer_task(splits["train"])
    if name not in TASKS:
        raise user_error("unknown kind of data", path="task", value=name, allowed=list(TASKS))
    options = dict(TASKS[name])
    preset = options.pop("preset", None)
    if source is None and preset is None:
        tree = ExperimentConfig.fill_kinds({"task": {"kind": "tokens"}})
    else:
        tree = read_source(str(source or preset))
    reporter.info(f"task: {name}, {len(splits['train']):,} examples")
    path = _run_folder(name, run, resume)
    files = {split: path / "data" / f"{split}.jsonl" for split in splits}
    columns = {"input": "input"} | ({} if splits["train"].targets is None else {"target": "target"})
    data = {split: str(file) for split, file in files.items()} | {"format": "jsonl", "columns": columns}
    try:
        config = apply_overrides(merge(merge(tree, unflatten(options)), {"task": {"data": data}}), changes)
        for split, rows in splits.items():
            rows.write(files[split])
        session = TrainingSession(config, RunFolder(path), reporter)
        session.report_end(session.run())
    except BaseException:
        if not RunFolder(path).exists():
            shutil.rmtree(path, ignore_errors=True)
        raise
    return Run(path)


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


def sweep(
    source: str | Path,
    overrides: Iterable[str],
    *,
    seeds: int = 1,
    workers: int = 1,
    sampler: str | None = None,
    trials: int | None = None,
    out: str | Path | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Train one run per combination of option values and seed. Return a dict with all results.

        gf.sweep("reversal", ["training.optimizer.learning_rate=1e-3,1e-2"], seeds=3, workers=2)["best"]

    An override is `PATH=VALUE` for all runs, or a range to sweep over: `PATH=v1,v2`, `PATH=1..8`,
    `PATH=log:1e-5..1e-2`. `out` is the folder of the sweep. A second call with the same folder trains only
    the missing runs. `glassformer sweep --json` prints the same dict. A script must call this function under
    `if __name__ == "__main__":`, because workers are separate processes.
    """
    from glassformer.sweeps.coordinator import run_sweep
    from glassformer.sweeps.definition import define, study_name
    from glassformer.sweeps.storage import storage_url

    definition = define(str(source), list(overrides), seeds=seeds, sampler=sampler, trials=trials)
    study = study_name(str(source), definition)
    folder = Path(out) if out is not None else DEFAULT_RUNS / f"sweep-{study}"
    reporter = reporter_for(sys.stderr) if progress else Reporter()
    url = storage_url(None, folder)
    document, _ = run_sweep(definition, study, url, folder, workers=workers, log=reporter.info)
    return document


def _infer_task(rows: _Rows) -> str:
    """Return the key of TASKS that fits the types of inputs and targets."""
    targets = rows.targets
    if targets is None:
        return "language-model"
    if rows.is_text:
        if all(isinstance(target, float) for target in targets):
            return "regression"
        is_text = all(isinstance(target, str) for target in targets)
        is_translation = is_text and len(targets) < LABEL_REPEATS * len(set(targets))
        return "translation" if is_translation else "classification"
    if all(isinstance(target, list) for target in targets):
        same = all(len(target) == len(row) for target, row in zip(targets, rows.inputs, strict=True))
        return "token-classification" if same else "sequence-to-sequence"
    is_real = all(isinstance(target, float) for target in targets)
    return "sequence-regression" if is_real else "sequence-classification"


class _Rows:
    """Validated inputs and targets of one split, as plain Python values."""

    def __init__(self, name: str, inputs: Column, targets: Column | None) -> None:
        prefix = f"{name}." if name else ""
        self.inputs = _values(inputs, f"{prefix}inputs")
        self.targets = None if targets is None else _values(targets, f"{prefix}targets")
        if not self.inputs:
            raise user_error("no examples", path=f"{prefix}inputs", hint="pass at least a few examples")
        if self.targets is not None and len(self.targets) != len(self.inputs):
            raise user_error(
                f"there are {len(self.inputs):,} inputs and {len(self.targets):,} targets",
                path=f"{prefix}targets",
                hint="pass one target per input",
            )
        self.is_text = isinstance(self.inputs[0], str)
        for index, value in enumerate(self.inputs):
            if isinstance(value, str) != self.is_text or not isinstance(value, (str, list)):
                raise user_error(
                    "inputs must all be texts, or all be sequences of tokens",
                    path=f"{prefix}inputs[{index}]",
                    value=value,
                    hint="pass texts only, or sequences of tokens only",
                )

    def __len__(self) -> int:
        return len(self.inputs)

    def write(self, path: Path) -> None:
        """Write the examples to a file, one JSON object per line."""
        path.parent.mkdir(parents=True, exist_ok=True)
        targets: Sequence[Any] = [None] * len(self) if self.targets is None else self.targets
        lines = [
            json.dumps({"input": value} if self.targets is None else {"input": value, "target": target})
            for value, target in zip(self.inputs, targets, strict=True)
        ]
        atomic_write(path, ("\n".join(lines) + "\n").encode())


def _values(column: Column, path: str) -> list[Any]:
    """Convert a list, array, tensor or DataFrame column to a list of plain Python values."""
    if isinstance(column, (str, bytes, Mapping)) or not isinstance(column, Iterable):
        raise user_error(
            "this is not a list or a column of values", path=path, value=column, hint="pass a list"
        )
    return [_value(value, f"{path}[{index}]") for index, value in enumerate(_plain(column))]


def _plain(values: Any) -> Any:
    for method in ("tolist", "to_list"):  # NumPy, PyTorch and pandas; polars
        if hasattr(values, method):
            return getattr(values, method)()
    return values


def _value(value: Any, path: str) -> Any:
    value = _plain(value)
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        raise user_error("a value is missing", path=path, value=value, hint="drop the row, or fill it in")
    if isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, (list, tuple)):
        items = [_plain(item) for item in value]
        if all(isinstance(item, (str, int)) for item in items):
            return items
    raise user_error(
        "this is not a text, a number or a sequence of tokens", path=path, value=value, hint="convert it"
    )
