"""Starting from another run: what of its weights is copied, what is left out, and what is new.

A model's parts have the same names whatever the task asks, so the backbone is copied by name and shape: each
part as a whole or not at all. What would only look right is refused: another tokenizer, another width,
options that the weights do not show. It knows nothing of the training that follows.
"""

from __future__ import annotations

import dataclasses
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

PLACE = "training.start_from"
SHOWN = 3
"""So many parts that do not match are named."""

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
"""Options of a model that say nothing about how copied weights are meant, or that the report tells."""

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Part:
    """A table of positions of another length: the rows that both have are copied."""

    rows: int
    rows_there: int
    rows_here: int
    parameters: int


@dataclass(frozen=True)
class TransferReport:
    """What became of each tensor of a run and of the new model; the numbers are parameters."""

    run: str
    checkpoint: str
    weights: str
    """`averaged`, where the run has such, or `model`."""
    sha256: str
    """Of the file with these weights."""
    loaded: dict[str, int] = field(default_factory=dict)
    partly: dict[str, Part] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)
    new: dict[str, int] = field(default_factory=dict)
    note: str = ""

    @property
    def loaded_parameters(self) -> int:
        return sum(self.loaded.values()) + sum(part.parameters for part in self.partly.values())

    def lines(self) -> list[str]:
        """As a person is told."""
        facts = [
            f"{len(self.loaded) + len(self.partly)} tensors, {self.loaded_parameters:,} parameters loaded",
            f"left out {_by_module(self.left_out)}",
            f"new {_by_module(self.new)}",
        ]
        lines = [f"start from {self.run} ({self.checkpoint}): {'; '.join(facts)}"]
        for name, part in self.partly.items():
            lines.append(
                f"{name}: {part.rows:,} positions copied; the run has {part.rows_there:,},"
                f" this model {part.rows_here:,}"
            )
        return [*lines, self.note] if self.note else lines

    def origin(self) -> dict[str, str]:
        """Which weights these were, wherever the run may lie: what a result depends on."""
        return {"checkpoint": self.checkpoint, "weights": self.weights, "sha256": self.sha256}

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def _module(name: str) -> str:
    return name.split(".")[0]


def _by_module(counts: Mapping[str, int]) -> str:
    sums: dict[str, int] = {}
    for name, count in counts.items():
        sums[_module(name)] = sums.get(_module(name), 0) + count
    return ", ".join(f"{module} ({count:,})" for module, count in sums.items()) or "nothing"


@dataclass(frozen=True)
class Source:
    """A trained run as far as another model may start from it: its best weights, its task, its options."""

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
                f"its best checkpoint is damaged: {damage}",
                path=PLACE,
                value=str(path),
                hint="restore the folder from a copy, or train that run anew",
            ) from None
        weights = "averaged" if "averaged" in tensors else "model"
        sha256 = file_sha256(store.folder / name / f"{weights}.safetensors")
        return cls(path, name, weights, sha256, tensors[weights], task, state, options)

    def refuse(self, problem: str, hint: str) -> UserError:
        return user_error(problem, path=PLACE, value=str(self.path), hint=hint)


def transfer(path: Path, task: Task, model: Model, config: ModelConfig) -> TransferReport:
    """Copy what fits from the run at `path` into a fresh model for `task`, in place; say what that was."""
    source = Source.open(path)
    own: Tensors = model.state_dict()
    _check_symbols(source, task)
    parts = _match_backbone(source, own, config)
    copied = _common_modules(source.tensors, own)
    if _asks_the_same(source, task, own):
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
    """The parts of the backbone that both have: `embedding`, `encoder`, …"""
    return {_module(n) for n in theirs if not is_head(n)} & {_module(n) for n in own}


def _match_backbone(source: Source, own: Tensors, config: ModelConfig) -> dict[str, Part]:
    """What is to be copied in part. A backbone that would be half the run's, or work otherwise: refused."""
    if not _common_modules(source.tensors, own):
        raise source.refuse(
            f"the run's {_modules(source.tensors)} have nothing in common with this model's {_modules(own)}",
            "a model of the same kind as the run's",
        )
    parts, problems = _compare(source.tensors, own)
    differing = {
        option: values
        for option, values in differences(source.options, config.dump()).items()
        if MAY_DIFFER.isdisjoint(option.split("."))
    }
    if problems:
        more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise source.refuse(
            f"the run's backbone does not fit this model: {'; '.join(problems[:SHOWN])}{more}",
            _same_options(source, differing) or "a task and a model of the same kind as the run's",
        )
    if differing:
        shown = [f"model.{name} is {here}, in the run {there}" for name, (there, here) in differing.items()]
        raise source.refuse(
            f"the run's weights fit, but they were trained to work otherwise: {'; '.join(shown)}",
            _same_options(source, differing) or "a model of the same kind as the run's",
        )
    return parts


def _compare(theirs: Tensors, own: Tensors) -> tuple[dict[str, Part], list[str]]:
    """Tables of positions that differ in length alone, and whatever else does not match."""
    common = _common_modules(theirs, own)
    parts: dict[str, Part] = {}
    problems = []
    for name in {**own, **theirs}:
        if _module(name) not in common:
            continue
        here, there = own.get(name), theirs.get(name)
        if here is None or there is None:
            problems.append(f"{name} is only {'in the run' if here is None else 'here'}")
        elif here.shape == there.shape:
            continue
        elif "position" in name.split(".") and here.shape[1:] == there.shape[1:]:
            rows = min(len(here), len(there))
            parts[name] = Part(rows, len(there), len(here), here[:rows].numel())
        else:
            problems.append(f"{name} is {_size(here)} here, {_size(there)} in the run")
    return parts, problems


def _modules(tensors: Tensors) -> str:
    return ", ".join(dict.fromkeys(_module(name) for name in tensors if not is_head(name)))


def _size(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape))


def _same_options(source: Source, differing: Mapping[str, Any]) -> str:
    """What to type for a model like the run's."""
    known = flatten(source.options)
    values = {name: known[name] for name in differing if name in known}
    return " ".join(
        f"model.{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in values.items()
    )


def _check_symbols(source: Source, task: Task) -> None:
    """The same number must mean the same token, on the input side and, if both write, on the output side."""
    here, there = task.state(), source.state
    both_write = isinstance(task.task_type, Seq2Seq) and type(task.task_type) is type(source.task.task_type)
    if here.get("tokenizer") != there.get("tokenizer"):
        hint = "a task that reads the same kind of data"
        if "tokenizer" in here and "tokenizer" in there:
            hint = f"'task.tokenizer={{kind: file, path: {source.path}}}'"
        raise source.refuse("the run has another tokenizer than this task", hint)
    if both_write and here.get("target_tokenizer") != there.get("target_tokenizer"):
        raise source.refuse(
            "the run has another tokenizer for the targets", "the same task.data and task.tokenizer"
        )
    old, new = (_symbols(each, with_answers=both_write) for each in (source.task, task))
    if old != new:
        unequal = (
            f"; {n} is {a!r} there, {b!r} here"
            for n, (a, b) in enumerate(zip(old, new, strict=False))
            if a != b
        )
        raise source.refuse(
            f"the run has other symbols: {len(old):,} there, {len(new):,} here{next(unequal, '')}",
            "data with the same symbols, or no training.start_from",
        )


def _symbols(task: Task, *, with_answers: bool) -> list[str]:
    symbols = task.input_symbols(range(task.task_type.vocabulary))
    return symbols + _answers(task) if with_answers else symbols


def _answers(task: Task) -> list[str]:
    """What the outputs of the head mean, where the input symbols do not say it."""
    match task.task_type:
        case SequenceClassification(is_real=False, outputs=count) | TokenClassification(classes=count):
            return task.output_symbols(range(count))
        case Seq2Seq(target_vocabulary=count):
            return task.output_symbols(range(count))
        case _:
            return []


def _asks_the_same(source: Source, task: Task, own: Tensors) -> bool:
    """Whether the run's head answers the new task's question, and has the form that the new one has."""
    if type(task.task_type) is not type(source.task.task_type) or _answers(task) != _answers(source.task):
        return False
    here = {name: tensor.shape for name, tensor in own.items() if is_head(name)}
    return here == {name: tensor.shape for name, tensor in source.tensors.items() if is_head(name)}


def _direction_note(source: Source, model: Model) -> str:
    """A model that looked only back may go on looking both ways, but nobody should find out by chance."""
    looked_back = isinstance(source.task.task_type, CausalLM) or (
        isinstance(source.task.task_type, TokenClassification | SequenceClassification)
        and bool(source.options.get("is_causal"))
    )
    looks_back = getattr(model, "is_causal", looked_back)
    if looked_back == looks_back:
        return ""
    there, here = ("only back", "both ways") if looked_back else ("both ways", "only back")
    same = f"; model.is_causal={json.dumps(looked_back)} would keep it so"
    may_choose = isinstance(model.task_type, TokenClassification | SequenceClassification)
    return f"NOTE: the run's model looks {there}, this one {here}{same if may_choose else ''}"
