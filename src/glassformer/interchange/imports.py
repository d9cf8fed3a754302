"""Import of foreign models: read a folder or a file, convert it, and write an ordinary run folder."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from glassformer.blocks.positions import RotaryConfig
from glassformer.core.config import validate
from glassformer.core.errors import ErrorDetail, user_error
from glassformer.data.imported_tokenizers import ImportedTokenizer
from glassformer.datasets.reviews import review_texts
from glassformer.interchange.converters import Converted, convert
from glassformer.interchange.fine_tuning import FILE, example_command, fine_tuning_kind, fine_tuning_yaml
from glassformer.interchange.foreign import ForeignModel, as_user_error, check_regular, refuse, refuse_pickle
from glassformer.interchange.read_gguf import MAGIC, read_gguf
from glassformer.interchange.read_huggingface import read_huggingface
from glassformer.interchange.read_llama2c import read_llama2c
from glassformer.interchange.tokenizer_files import complete
from glassformer.models.base import Model, WithoutInitialisation
from glassformer.models.task_types import CausalLM, MaskedLM, Seq2Seq, SequenceClassification, TaskType
from glassformer.runs.commands import command
from glassformer.runs.ending import next_commands as commands_for_trained
from glassformer.runs.experiment import ExperimentConfig
from glassformer.runs.folder import RunFolder, environment, new_run_path
from glassformer.runs.run import Run
from glassformer.runs.session import DEFAULT_RUNS
from glassformer.storage.files import atomic_write, file_sha256
from glassformer.tasks.base import Task
from glassformer.training.checkpoints import Checkpoint, checkpoint_name

MAX_LENGTH = 1024
"""Maximum tokens per text of an imported model with rotary positions, unless `max_length` is given.

Its weights do not depend on this number, and attention over longer texts is slow on a CPU.
"""
MAX_TASK_LENGTH = 100_000
"""Largest number of tokens per text that a task may have."""
TEXTS = {"train": 24, "validation": 12, "test": 12}
"""Number of generated texts that an imported run has as examples, by split."""
MAX_OUTPUT = 32
"""Longest output of an encoder-decoder model for a generated text, in tokens."""
NO_SCORE = (
    "WARNING: {split}: the texts of an imported run are generated, as examples for inspection;"
    " scores on them do not measure the model"
)
NO_HEAD = (
    "WARNING: the source has no output head: predictions and losses mean nothing;"
    " use it for training.start_from and to see its attention"
)

Report = Callable[[str], None]


def import_model(
    source: str | Path,
    run: str | Path | None = None,
    *,
    max_length: int | None = None,
    provenance: Mapping[str, Any] | None = None,
    report: Report = lambda line: None,
) -> Run:
    """Import a foreign model as a run, and return the run.

    `source` is a Hugging Face folder, a GGUF file, or a llama2.c file with its `tokenizer.bin` beside it.
    `run` is the folder of the run (default: a new folder in `runs/`). `max_length` is the maximum number of
    tokens per text of a model with rotary positions (default: that of the model, but at most 1024).
    `provenance` is added to what the run stores about its source. The run can be used like a trained one,
    and in `training.start_from`.
    """
    path = Path(source)
    foreign = read_foreign(path)
    report(f"reading {path}")
    try:
        whole = convert(foreign.architecture, foreign.config, foreign.tensors)
    except ErrorDetail as error:
        raise as_user_error(error, path) from None
    converted = _shortened(whole, max_length)
    origin = {**(provenance or {}), "source_max_length": whole.task_type.max_length}
    tokenizers = _tokenizers(foreign, converted.task_type, path)
    labels = _class_labels(foreign, converted.task_type)
    folder = _new_folder(path.stem if path.is_file() else path.resolve().name, run)
    try:
        _write_run(folder, foreign, converted, tokenizers, labels, origin, report)
    except BaseException:
        if not RunFolder(folder).exists():
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return Run(folder)


def read_foreign(path: Path) -> ForeignModel:
    """Read a folder or a file in any of the known formats. The weights are read when they are converted."""
    if os.path.isdir(path):
        return read_huggingface(path)
    check_regular(path)
    with open(path, "rb") as file:
        start = file.read(4)
    if start == MAGIC:
        return read_gguf(path)
    refuse_pickle(path)
    if path.suffix == ".safetensors":
        raise refuse("weights alone are not a model", path, f"name the folder: {path.parent}")
    if path.suffix == ".bin":
        return read_llama2c(path)
    raise refuse(
        "not a model that can be imported",
        path,
        "name a Hugging Face folder, a .gguf file or a llama2.c .bin file",
    )


def _new_folder(name: str, run: str | Path | None) -> Path:
    """Create and return the folder of the run. Refuse a folder that contains anything."""
    if run is None:
        return new_run_path(DEFAULT_RUNS, name or "imported")
    path = Path(run)
    try:
        path.mkdir(parents=True, exist_ok=True)
        is_empty = not any(path.iterdir())
    except OSError as error:
        message = f"the folder cannot be used: {error.strerror}"
        raise user_error(message, path=str(path), hint="choose another --run") from None
    if not is_empty:
        raise user_error("this folder is not empty", path=str(path), hint="choose another --run")
    return path


def _shortened(converted: Converted, max_length: int | None) -> Converted:
    """Limit the length of texts of a model with rotary positions."""
    task_type = converted.task_type
    longest = min(task_type.max_length, MAX_TASK_LENGTH)
    if not isinstance(task_type, CausalLM) or not isinstance(converted.config.position, RotaryConfig):
        if max_length not in (None, longest):
            message = f"the positions of this model are learned, for {longest:,} tokens"
            raise user_error(message, path="max_length", value=max_length, hint=f"{longest}, or omit it")
        return converted
    if max_length is not None and not 2 <= max_length <= longest:
        hint = f"a number from 2 to {longest}"
        raise user_error(
            "the model does not support this length", path="max_length", value=max_length, hint=hint
        )
    return replace(converted, task_type=replace(task_type, max_length=max_length or min(longest, MAX_LENGTH)))


def _tokenizers(foreign: ForeignModel, task_type: TaskType, path: Path) -> dict[str, ImportedTokenizer]:
    """Return the tokenizers by their names in a task's state."""
    found = {"tokenizer": complete(foreign.tokenizer, task_type.vocabulary, path)}
    if foreign.target_tokenizer is not None and isinstance(task_type, Seq2Seq):
        found["target_tokenizer"] = complete(foreign.target_tokenizer, task_type.target_vocabulary, path)
    return found


def _class_labels(foreign: ForeignModel, task_type: TaskType) -> list[str]:
    """Return the names of the classes of a classifier, or numbers if the names do not fit."""
    if not isinstance(task_type, SequenceClassification) or task_type.is_regression:
        return []
    names = [name.strip() for name in foreign.labels]
    is_usable = len(set(names)) == task_type.outputs == len(names) and all(names)
    return names if is_usable else [str(number) for number in range(task_type.outputs)]


def _task_options(task_type: TaskType, labels: Sequence[str]) -> dict[str, Any]:
    """Return the options of the task that fits a task type."""
    match task_type:
        case CausalLM():
            return {"kind": "language-model", "across_texts": False}
        case MaskedLM():
            return {"kind": "masked-language-model", "across_texts": False}
        case SequenceClassification():
            return {"kind": "classification", "target": "label" if labels else "number"}
        case Seq2Seq():
            return {"kind": "translation", "shared_vocabulary": task_type.is_shared_vocabulary}
        case _:
            raise user_error("no task fits this model", value=type(task_type).__name__)


def _write_run(
    path: Path,
    foreign: ForeignModel,
    converted: Converted,
    tokenizers: Mapping[str, ImportedTokenizer],
    labels: Sequence[str],
    provenance: dict[str, Any],
    report: Report,
) -> None:
    """Write the weights, the examples and the documents of the run. The config comes last."""
    state: dict[str, Any] = {name: tokenizer.json_tree() for name, tokenizer in tokenizers.items()}
    state |= {"labels": list(labels)} if labels else {}
    state |= {"targets": {"target_mean": 0.0, "target_scale": 1.0}} if _is_regression(converted) else {}
    config = _config(path, converted, labels)
    task = config.task.restore(state)
    with torch.random.fork_rng(devices=[]), WithoutInitialisation():
        model = config.model.build(task.task_type).eval()
    model.load_state_dict(converted.weights)
    report("checksums of the source")
    sums = {file.name: file_sha256(file) for file in foreign.files}
    _write_examples(path / "data", task, model)
    atomic_write(path / FILE, fine_tuning_yaml(path, task.task_type, converted.config).encode())
    state |= config.task.restore(state).state()
    about = environment(config.task.restore(state).checksum(), torch.get_num_threads())
    about["imported"] = {
        "format": foreign.format,
        "architecture": foreign.architecture,
        "licence": provenance.pop("licence", "") or foreign.licence,
        **provenance,
        "sha256": sums,
        "left_out": list(converted.left_out),
        "has_head": converted.has_head,
    }
    about["data_notes"] = [
        *([] if converted.has_head else [NO_HEAD]),
        *(NO_SCORE.format(split=split) for split in TEXTS),
    ]
    report("writing the run")
    folder = RunFolder(path)
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    folder.events.append("import", **about["imported"])
    progress = {"step": 0, **folder.events.checksum()}
    folder.checkpoints().save(checkpoint_name(0), Checkpoint({"model": weights}, progress), is_best=True)
    folder.write_results(_results(task, model, foreign, about["data_notes"]))
    folder.heartbeat("done", 0, 0)
    folder.create(config, state, about)


def _is_regression(converted: Converted) -> bool:
    return isinstance(converted.task_type, SequenceClassification) and converted.task_type.is_regression


def _config(path: Path, converted: Converted, labels: Sequence[str]) -> ExperimentConfig:
    files = {split: str(path / "data" / f"{split}.jsonl") for split in TEXTS}
    roles = {"input": "text"}
    if isinstance(converted.task_type, SequenceClassification | Seq2Seq):
        roles["target"] = "target"
    task = {
        **_task_options(converted.task_type, labels),
        "max_length": converted.task_type.max_length,
        "tokenizer": {"kind": "file", "path": str(path)},
        "data": {**files, "format": "jsonl", "columns": roles},
    }
    model = converted.config.dump()
    return validate(ExperimentConfig, {"task": task, "model": model})


def _write_examples(folder: Path, task: Task, model: Model) -> None:
    """Write generated texts as the examples of the run. Targets are the model's own outputs."""
    for split, count in TEXTS.items():
        texts = [_readable(task, text) for text in review_texts(count, 0, split)]
        rows = [{"text": text} for text in texts]
        if not isinstance(task.task_type, CausalLM | MaskedLM):
            outputs = _own_outputs(task, model, texts)
            rows = [row | {"target": output} for row, output in zip(rows, outputs, strict=True)]
        data = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write(folder / f"{split}.jsonl", data.encode())


def _readable(task: Task, text: str) -> str:
    """Return the beginning of a text that is short enough for the task."""
    words = text.split(" ")
    while len(words) > 1 and isinstance(task.task_type, Seq2Seq):
        try:
            task.parse(" ".join(words))
            break
        except ErrorDetail:
            words = words[: len(words) // 2]
    return " ".join(words)


def _own_outputs(task: Task, model: Model, texts: Sequence[str]) -> list[Any]:
    rows = [task.parse(text) for text in texts]
    best = [candidates[0] for candidates in task.predict(model, rows)]
    if isinstance(task.task_type, Seq2Seq):
        longest = min(MAX_OUTPUT, task.task_type.max_target_length // 2)
        return [task.show_output(output.tokens[:longest]) or "." for output in best]
    if best[0].value is not None:
        return [output.value for output in best]
    return [task.show_output(output.tokens) for output in best]


def _results(task: Task, model: Model, foreign: ForeignModel, notes: Sequence[str]) -> dict[str, Any]:
    """Return the document `results.json` of a run that was not trained here."""
    return {
        "seed": 0,
        "steps": 0,
        "epochs": 0,
        "seconds": 0.0,
        "tokens_per_second": 0.0,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "total_steps": 0,
        "best_step": 0,
        "best_metric": task.primary_metric,
        "best_value": None,
        "uses_last": True,
        "ended": "imported",
        "ended_because": f"imported from {foreign.format}, {foreign.architecture}",
        "signal": None,
        "processes": 1,
        "primary_metric": task.primary_metric,
        "metrics": {},
        "intervals": {},
        "protocol": {},
        "baselines": {},
        "train_metrics": {},
        "warnings": list(notes),
    }


def describe_import(run: Run) -> dict[str, Any]:
    """Return what the run stores about its source, and its size, for `glassformer models --json`."""
    about, task_type = run.folder.environment()["imported"], run.task.task_type
    return {
        "run": str(run.folder.path),
        **about,
        "task": run.config.task.kind,
        "parameters": sum(parameter.numel() for parameter in run.model.parameters()),
        "vocabulary": task_type.vocabulary,
        "max_length": task_type.max_length,
        "warnings": [] if about["has_head"] else [NO_HEAD],
    }


def next_commands(run: Run) -> list[str]:
    """Return commands to try on an imported run. The last one trains it on a user's own data."""
    path, task_type = run.folder.path, run.task.task_type
    further = example_command(path, fine_tuning_kind(task_type))
    if not run.folder.environment()["imported"]["has_head"]:  # predictions mean nothing
        see = command("attention", str(path), "--out", "map.png")
        return [see, command("heads", str(path)), further]
    measure = command("evaluate", str(path))  # the examples are generated
    return [*(line for line in commands_for_trained(path, run.task) if line != measure), further]
