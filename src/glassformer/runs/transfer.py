"""Transfer: copy the weights of another run (`training.start_from`) into a new model.

Modules have the same names in every model, so the backbone is copied by name and shape, each module
completely or not at all. A transfer that would only seem to work is rejected: another tokenizer, another
width, or another option that changes the meaning of weights without changing their shapes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer.core.config import Tree, flatten, validate
from glassformer.core.errors import UserError, user_error
from glassformer.models.base import Model, ModelConfig
from glassformer.models.task_types import CausalLM, Seq2Seq, SequenceClassification, TokenClassification
from glassformer.runs.folder import RunFolder, differences
from glassformer.storage.files import file_sha256
from glassformer.tasks.base import Task, TaskConfig
from glassformer.training.checkpoints import DamagedCheckpoint
from glassformer.training.optimizers import is_head

OPTION = "training.start_from"
MAX_SHOWN = 3
"""Maximum number of mismatched tensors that an error message lists."""

MAY_DIFFER = frozenset(
    {
        "dropout",
        "attention_dropout",
        "output",
        "output_bias",
        "tied_output",
        "pooling",
        "is_causal",
        "decoder_layers",
    }
)
"""Model options that may differ. The copied weights keep their meaning, or the report shows the change."""

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class PartialCopy:
    """Partial copy of a position embedding table whose length differs between the two models."""

    rows: int
    """Number of rows (positions) copied."""
    source_rows: int
    model_rows: int
    parameters: int
    """Number of parameters copied."""


@dataclass(frozen=True)
class TransferReport:
    """Report of a weight transfer: tensors copied, left out and new, with their parameter counts."""

    run: str
    checkpoint: str
    weights: str
    """Name of the copied weights: `averaged` if the run has averaged weights, else `model`."""
    sha256: str
    """SHA-256 of the checkpoint file that the weights were copied from."""
    loaded: dict[str, int] = field(default_factory=dict)
    partly: dict[str, PartialCopy] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)
    """Tensors of the run that were not copied, with their number of parameters."""
    new: dict[str, int] = field(default_factory=dict)
    """Tensors of the model that keep their initial weights, with their number of parameters."""
    note: str = ""
    """Remark if only one of the two models is causal, else empty."""

    @property
    def loaded_parameters(self) -> int:
        """Number of parameters copied."""
        return sum(self.loaded.values()) + sum(part.parameters for part in self.partly.values())

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        facts = [
            f"{len(self.loaded) + len(self.partly)} tensors, {self.loaded_parameters:,} parameters loaded",
            f"left out {_by_module(self.left_out)}",
            f"new {_by_module(self.new)}",
        ]
        lines = [f"start from {self.run} ({self.checkpoint}): {'; '.join(facts)}"]
        for name, part in self.partly.items():
            lines.append(
                f"{name}: {part.rows:,} positions copied; the run has {part.source_rows:,},"
                f" this model {part.model_rows:,}"
            )
        return [*lines, self.note] if self.note else lines

    def origin(self) -> dict[str, str]:
        """Return checkpoint name, weights and SHA-256 of the copied weights, without the path of the run."""
        return {"checkpoint": self.checkpoint, "weights": self.weights, "sha256": self.sha256}


def _module(name: str) -> str:
    return name.split(".")[0]


def _by_module(counts: Mapping[str, int]) -> str:
    sums: dict[str, int] = {}
    for name, count in counts.items():
        sums[_module(name)] = sums.get(_module(name), 0) + count
    return ", ".join(f"{module} ({count:,})" for module, count in sums.items()) or "nothing"


@dataclass(frozen=True)
class Source:
    """Trained run whose best weights are copied, with its task and its model options."""

    path: Path
    checkpoint: str
    weights: str
    sha256: str
    tensors: Tensors
    task: Task
    state: Mapping[str, Any]
    options: Tree

    @classmethod
    def open(cls, path: Path) -> Source:
        """Load the best checkpoint, the task and the model options of the run at `path`."""
        folder = RunFolder.open(path)
        config, state = folder.config(), folder.task_state()
        task = folder.restore_task(validate(TaskConfig, config.get("task", {})))
        options = validate(ModelConfig, config.get("model", {})).dump()
        store = folder.checkpoints()
        name = store.find("best")
        try:
            tensors = store.load(name, ["model", "averaged"]).tensors
        except DamagedCheckpoint as damage:
            raise user_error(
                f"the best checkpoint of this run is damaged: {damage}",
                path=OPTION,
                value=str(path),
                hint="restore the folder from a copy, or train that run again",
            ) from None
        weights = "averaged" if "averaged" in tensors else "model"
        sha256 = file_sha256(store.folder / name / f"{weights}.safetensors")
        return cls(path, name, weights, sha256, tensors[weights], task, state, options)

    def has_type_of(self, task: Task) -> bool:
        """Return True if the task of the run has the same task type as `task`."""
        return type(task.task_type) is type(self.task.task_type)

    def error(self, message: str, hint: str) -> UserError:
        """Return a UserError for `training.start_from` with the path of this run."""
        return user_error(message, path=OPTION, value=str(self.path), hint=hint)


def transfer(path: Path, task: Task, model: Model, config: ModelConfig) -> TransferReport:
    """Copy the matching weights of the run at `path` into `model` in place, and report what was copied."""
    source = Source.open(path)
    own: Tensors = model.state_dict()
    _check_symbols(source, task)
    parts = _match_backbone(source, own, config)
    copied = _common_modules(source.tensors, own)
    if _has_same_head(source, task, own):
        copied |= {_module(name) for name in own if is_head(name)}
    loaded: dict[str, int] = {}
    with torch.no_grad():
        for name, tensor in own.items():
            if name in parts:
                rows = parts[name].rows
                tensor[:rows].copy_(source.tensors[name][:rows])
            elif _module(name) in copied:
                tensor.copy_(source.tensors[name])
                loaded[name] = tensor.numel()
    return TransferReport(
        run=str(path),
        checkpoint=source.checkpoint,
        weights=source.weights,
        sha256=source.sha256,
        loaded=loaded,
        partly=parts,
        left_out={n: t.numel() for n, t in source.tensors.items() if _module(n) not in copied},
        new={n: t.numel() for n, t in own.items() if _module(n) not in copied},
        note=_direction_note(source, model),
    )


def _common_modules(theirs: Tensors, own: Tensors) -> set[str]:
    """Return the names of backbone modules that both models have, such as `embedding` and `encoder`."""
    return {_module(n) for n in theirs if not is_head(n)} & {_module(n) for n in own}


def _match_backbone(source: Source, own: Tensors, config: ModelConfig) -> dict[str, PartialCopy]:
    """Return the position tables of which only a part can be copied, because their lengths differ.

    Raise UserError if other shapes differ, or a model option that is not in `MAY_DIFFER`.
    """
    if not _common_modules(source.tensors, own):
        raise source.error(
            f"the run's {_modules(source.tensors)} have nothing in common with this model's {_modules(own)}",
            "use a model of the same kind as the run's",
        )
    parts, mismatches = _compare(source.tensors, own)
    differing = {
        option: values
        for option, values in differences(source.options, config.dump()).items()
        if MAY_DIFFER.isdisjoint(option.split("."))
    }
    if mismatches:
        more = f"; and {len(mismatches) - MAX_SHOWN} more" if len(mismatches) > MAX_SHOWN else ""
        raise source.error(
            f"the run's backbone does not fit this model: {'; '.join(mismatches[:MAX_SHOWN])}{more}",
            _same_options(source, differing) or "use a task and a model of the same kind as the run's",
        )
    if differing:
        shown = [f"model.{name} is {here}, in the run {there}" for name, (there, here) in differing.items()]
        raise source.error(
            f"the run's weights fit, but were trained with other options: {'; '.join(shown)}",
            _same_options(source, differing) or "use a model of the same kind as the run's",
        )
    return parts


def _compare(theirs: Tensors, own: Tensors) -> tuple[dict[str, PartialCopy], list[str]]:
    """Return position tables that differ only in length, and one line of text per other mismatch."""
    common = _common_modules(theirs, own)
    parts: dict[str, PartialCopy] = {}
    mismatches = []
    for name in {**own, **theirs}:
        if _module(name) not in common:
            continue
        here, there = own.get(name), theirs.get(name)
        if here is None or there is None:
            mismatches.append(f"{name} is only {'in the run' if here is None else 'here'}")
        elif here.shape == there.shape:
            continue
        elif "position" in name.split(".") and here.shape[1:] == there.shape[1:]:
            rows = min(len(here), len(there))
            parts[name] = PartialCopy(rows, len(there), len(here), here[:rows].numel())
        else:
            mismatches.append(f"{name} is {_size(here)} here, {_size(there)} in the run")
    return parts, mismatches


def _modules(tensors: Tensors) -> str:
    return ", ".join(dict.fromkeys(_module(name) for name in tensors if not is_head(name)))


def _size(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape))


def _same_options(source: Source, differing: Mapping[str, Any]) -> str:
    """Return overrides such as `model.hidden_dim=64` that give the new model the source run's options."""
    known = flatten(source.options)
    values = {name: known[name] for name in differing if name in known}
    return " ".join(
        f"model.{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in values.items()
    )


def _check_symbols(source: Source, task: Task) -> None:
    """Raise UserError unless each token id means the same in both tasks, in inputs and outputs."""
    here, there = task.state(), source.state
    both_generate = isinstance(task.task_type, Seq2Seq) and source.has_type_of(task)
    if here.get("tokenizer") != there.get("tokenizer"):
        hint = "use a task that reads the same kind of data"
        if "tokenizer" in here and "tokenizer" in there:
            hint = f"'task.tokenizer={{kind: file, path: {source.path}}}'"
        raise source.error("the run has another tokenizer than this task", hint)
    if both_generate and here.get("target_tokenizer") != there.get("target_tokenizer"):
        raise source.error(
            "the run has another tokenizer for the targets", "use the same task.data and task.tokenizer"
        )
    old, new = (each.input_symbols(range(each.task_type.vocabulary)) for each in (source.task, task))
    if both_generate:
        old, new = old + _output_symbols(source.task), new + _output_symbols(task)
    if old != new:
        unequal = (
            f"; {n} is {a!r} there, {b!r} here"
            for n, (a, b) in enumerate(zip(old, new, strict=False))
            if a != b
        )
        raise source.error(
            f"the run has other symbols: {len(old):,} there, {len(new):,} here{next(unequal, '')}",
            "use data with the same symbols, or remove training.start_from",
        )


def _output_symbols(task: Task) -> list[str]:
    """Return the symbol of each model output, by output index: a class label or a target token.

    Return [] for a language model, whose outputs are the input tokens, and for a regression.
    """
    match task.task_type:
        case SequenceClassification(is_regression=False, outputs=count) | TokenClassification(classes=count):
            return task.output_symbols(range(count))
        case Seq2Seq(target_vocabulary=count):
            return task.output_symbols(range(count))
        case _:
            return []


def _has_same_head(source: Source, task: Task, own: Tensors) -> bool:
    """Return True if the output heads of both models have the same shapes and predict the same symbols."""
    if not source.has_type_of(task) or _output_symbols(task) != _output_symbols(source.task):
        return False
    here = {name: tensor.shape for name, tensor in own.items() if is_head(name)}
    return here == {name: tensor.shape for name, tensor in source.tensors.items() if is_head(name)}


def _direction_note(source: Source, model: Model) -> str:
    """Return a note if only one of the two models is causal, else an empty string."""
    was_causal = isinstance(source.task.task_type, CausalLM) or (
        isinstance(source.task.task_type, TokenClassification | SequenceClassification)
        and bool(source.options.get("is_causal"))
    )
    is_causal = getattr(model, "is_causal", was_causal)
    if was_causal == is_causal:
        return ""
    there, here = ("causal", "bidirectional") if was_causal else ("bidirectional", "causal")
    same = f"; model.is_causal={json.dumps(was_causal)} keeps it"
    may_choose = isinstance(model.task_type, TokenClassification | SequenceClassification)
    return f"NOTE: the run's model is {there}, this one is {here}{same if may_choose else ''}"
