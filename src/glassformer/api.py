"""Main functions of the library: `train` on a preset, a config file or data in memory, and `sweep`."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from glassformer.core.config import merge, parse_overrides, unflatten
from glassformer.core.errors import UserError, user_error
from glassformer.data.memory import is_missing, plain_list
from glassformer.runs.experiment import ExperimentConfig, apply_overrides, read_source
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

LABEL_REPEATS = 2
"""Minimum mean number of rows per distinct text target for which targets are labels, not translations."""

TOKEN_LABEL_ROWS = 0.9
"""Fraction of rows with one label per token from which rows with other lengths are mistakes."""

NUMBER_TARGETS = 20
"""Number of distinct integer targets from which a note mentions regression, if each has few rows."""

ROWS_PER_LABEL = 20
"""Mean number of rows per distinct integer target from which they are labels without doubt."""

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
    DataFrame. Several columns of texts are joined, as `task.data.columns` joins those of a file. An input is
    a text, or a sequence of tokens (integers or strings). A target is a label, a real number, a text, a
    sequence of tokens, or one label per token; without targets a language model is trained.
    `task` is a key of `glassformer.api.TASKS`. By default it is inferred from the data.

    `validation` and `test` are pairs (inputs, targets). Without `validation`, a part is split off.
    The data are written to `data/` in the run folder, so that the run can be evaluated and resumed later.

    `run` is the folder to write. `resume` continues a stopped run as if it had not stopped; `source`, options
    and data may then be omitted. `progress` prints a progress bar or lines.

    Ctrl-C saves a checkpoint and then raises KeyboardInterrupt. SIGTERM saves one and raises SystemExit.
    """
    if reporter is None:
        reporter = reporter_for(sys.stderr) if progress else Reporter()
    if inputs is None:
        source = _checked_source(source, run, resume)
        session = open_session(str(source), overrides, run=run, resume=resume, reporter=reporter)
        return _finish(session)
    changes = parse_overrides(overrides)
    splits = {"train": _Rows("", inputs, targets)}
    for name, split in (("validation", validation), ("test", test)):
        if split is not None:
            splits[name] = _Rows(name, *_pair(name, split))
    return _train_in_memory(source, changes, splits, task, run, resume, reporter)


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
    splits: Mapping[str, _Rows],
    task: str | None,
    run: str | Path | None,
    resume: bool,
    reporter: Reporter,
) -> Run:
    rows = splits["train"]
    name = task or _infer_task(rows)
    if name not in TASKS:
        raise user_error("unknown kind of data", path="task", value=name, allowed=list(TASKS))
    reporter.info(f"task: {name}, {len(rows):,} examples")
    if task is None and rows.has_many_integers():
        reporter.info(
            f"WARNING: the targets are integers with {len(set(rows.targets or ())):,} distinct values, taken"
            f' as labels; if they are numbers, pass task="{name.replace("classification", "regression")}"'
        )
    path = _run_folder(name, run, resume)
    files = {split: path / "data" / f"{split}.jsonl" for split in splits}
    columns = {"input": "input"} | ({} if rows.targets is None else {"target": "target"})
    data = {split: str(file) for split, file in files.items()} | {"format": "jsonl", "columns": columns}
    restored: list[Path] = []
    try:
        tree = _options(source, name, task, path)
        config = apply_overrides(merge(tree, {"task": {"data": data}}), changes)
        restored = _write_data(splits, files, RunFolder(path))
        return _finish(TrainingSession(config, RunFolder(path), reporter))
    except UserError:
        for file in restored:
            file.unlink()  # it may not be the data of this run
        raise
    finally:
        if not RunFolder(path).exists():
            shutil.rmtree(path, ignore_errors=True)


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


def _write_data(splits: Mapping[str, _Rows], files: Mapping[str, Path], folder: RunFolder) -> list[Path]:
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
    arguments = format_overrides(overrides) if isinstance(overrides, Mapping) else list(overrides)
    definition = define(str(source), arguments, seeds=seeds, sampler=sampler, trials=trials)
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
        if self.is_text:
            self._reject_list_targets(prefix)
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

    def _reject_list_targets(self, prefix: str) -> None:
        """Raise a UserError if the target of a text is a list."""
        for index, target in enumerate(self.targets or ()):
            if isinstance(target, list):
                raise user_error(
                    "the target of a text is a list, but a text has one label",
                    path=f"{prefix}targets[{index}]",
                    value=target,
                    hint="for one label per token, pass inputs that are lists of tokens; for several labels"
                    " per text, train one model per label",
                )

    def reject_texts_as_tokens(self) -> None:
        """Raise a UserError if the inputs look like rows of several text columns instead of tokens."""
        width = len(self.inputs[0])
        symbols = [symbol for row in self.inputs for symbol in row]
        with_spaces = sum(isinstance(symbol, str) and " " in symbol.strip() for symbol in symbols)
        if all(len(row) == width for row in self.inputs) and 2 * with_spaces > len(symbols):
            raise user_error(
                f"each input is a sequence of {width:,} texts, and each text would be read as one token",
                path="inputs[0]",
                value=self.inputs[0],
                hint='join the columns: inputs=[" | ".join(row) for row in rows], or pass a DataFrame; if'
                ' these are tokens, pass task="sequence-classification" or another task',
            )

    def has_many_integers(self) -> bool:
        """Return True if the targets are integers that may be numbers instead of labels."""
        targets = self.targets or []
        if not all(isinstance(target, int) and not isinstance(target, bool) for target in targets):
            return False
        distinct = len(set(targets))
        return distinct > NUMBER_TARGETS and len(targets) < ROWS_PER_LABEL * distinct

    def json_lines(self) -> bytes:
        """Return the examples as the content of a file, one JSON object per line."""
        targets: Sequence[Any] = [None] * len(self) if self.targets is None else self.targets
        lines = [
            json.dumps({"input": value} if self.targets is None else {"input": value, "target": target})
            for value, target in zip(self.inputs, targets, strict=True)
        ]
        return ("\n".join(lines) + "\n").encode()


def _values(column: Column, path: str) -> list[Any]:
    """Convert a list, array, tensor, column or DataFrame to a list of texts, numbers and token lists."""
    return [_value(value, f"{path}[{index}]") for index, value in enumerate(plain_list(column, path))]


def _value(value: Any, path: str) -> Any:
    if is_missing(value):
        raise user_error("a value is missing", path=path, value=value, hint="drop the row, or fill it in")
    if isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, list) and all(isinstance(item, (str, int)) for item in value):
        return value
    raise user_error(
        "this is not a text, a number or a sequence of tokens", path=path, value=value, hint="convert it"
    )
