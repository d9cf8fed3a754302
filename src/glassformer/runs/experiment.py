"""The composition root: from a config to task, model and trainer. The only file that knows them all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from pydantic import Field

import glassformer.models.transformer
import glassformer.tasks  # noqa: F401  registers the kinds
from glassformer.core.config import (
    Node,
    Tree,
    merge,
    parse_overrides,
    parse_yaml,
    read_yaml_file,
    unflatten,
    validate,
)
from glassformer.core.errors import ErrorDetail, UserError, user_error
from glassformer.cost.estimate import Estimate, estimate
from glassformer.data.batching import generator
from glassformer.evaluation.evaluate import EvaluationConfig
from glassformer.inspection.heads import HeadProbe, InspectionConfig
from glassformer.models.base import Model, ModelConfig
from glassformer.models.transformer import TransformerConfig
from glassformer.runs.folder import RunFolder
from glassformer.runs.transfer import TransferReport, transfer
from glassformer.tasks.base import Task, TaskConfig
from glassformer.training.config import TrainingConfig
from glassformer.training.context import TrainingContext
from glassformer.training.precision import check_precision, choose_device
from glassformer.training.progress import Reporter
from glassformer.training.trainer import Trainer


class ExperimentConfig(Node):
    task: TaskConfig
    model: ModelConfig = TransformerConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    inspection: InspectionConfig = InspectionConfig()
    seed: int = Field(
        0, ge=0, lt=2**31, description="drives the first weights, the order of examples and dropout"
    )

    def identity(self) -> Tree:
        """Without what is looked at meanwhile and how processes share the work: neither decides numbers."""
        tree = {name: part for name, part in self.dump().items() if name != "inspection"}
        return tree | {"training": {k: v for k, v in tree["training"].items() if k != "parallel"}}


def presets() -> list[str]:
    folder = resources.files("glassformer") / "presets"
    return sorted(
        entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")
    )


def preset_text(name: str) -> str:
    return (resources.files("glassformer") / "presets" / f"{name}.yaml").read_text(encoding="utf-8")


def resolve(what: str, overrides: Iterable[str] | Mapping[str, Any] = ()) -> ExperimentConfig:
    """A preset's name, a YAML file or a run's folder, with options changed."""
    changes = unflatten(overrides) if isinstance(overrides, Mapping) else parse_overrides(overrides)
    return overlay(read_source(what), changes)


def read_source(what: str) -> Tree:
    """The tree of a preset, a file or a run, not yet validated: `overlay` does it."""
    return ExperimentConfig.fill_kinds(_read(what))


def overlay(tree: Tree, changes: Tree) -> ExperimentConfig:
    """A size of batches in sequences that is asked for goes before one in tokens that was there before."""
    asked = changes.get("training")
    if isinstance(asked, Mapping) and asked.get("batch_size") and "batch_tokens" not in asked:
        tree = merge(tree, {"training": {"batch_tokens": None}})
    return validate(ExperimentConfig, merge(tree, changes))


def _read(what: str) -> Tree:
    path = Path(what)
    if what in presets():
        return dict(parse_yaml(preset_text(what), f"preset {what}"))
    if RunFolder(path).exists():
        return RunFolder(path).config()
    if path.suffix in (".yaml", ".yml") or "/" in what or os.path.exists(path):
        return read_yaml_file(path)
    raise user_error(
        "no preset, YAML file or run of this name", value=what, allowed=presets(), hint="check the name"
    )


class Experiment:
    """A config and what it builds."""

    def __init__(self, config: ExperimentConfig, task: Task | None = None) -> None:
        self.config = config
        self.task = config.task.build(config.seed) if task is None else task
        self.transferred: TransferReport | None = None
        """What `build_trainer` copied from the run of `training.start_from`."""

    def build_model(self) -> Model:
        """A fresh model; the same for the same config and seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_torch_seed(self.config.seed, "weights"))
            try:
                return self.config.model.build(self.task.task_type)
            except ErrorDetail as problem:
                raise UserError(problem) from None

    def build_trainer(self, context: TrainingContext | None = None) -> Trainer:
        """With first weights, some of them copied if `training.start_from` says so.

        Where there are checkpoints to go on from nothing is copied: they hold it, and that run may be gone.
        """
        model, context = self.build_model(), context or TrainingContext()
        if self.config.inspection.probe_heads:
            context = replace(context, probe=HeadProbe(self.task, self.config.inspection))
        if not (context.store and context.store.states()):
            self._set_first_weights(model, context.reporter)
        return self._assemble(model, context)

    def _set_first_weights(self, model: Model, reporter: Reporter) -> None:
        training = self.config.training
        with reporter.status("first vectors"):
            training.embedding_init.apply(model, self.task, reporter.info)
        if training.start_from is not None:
            self.transferred = transfer(Path(training.start_from), self.task, model, self.config.model)

    def _assemble(self, model: Model, context: TrainingContext) -> Trainer:
        config = self.config.training
        device = choose_device(config.device)
        check_precision(config.precision, device)
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        model.to(device)
        rank = context.process_group.rank  # each draws its own dropout; the first one as if it were alone
        torch.manual_seed(_torch_seed(self.config.seed, "training", *([rank] if rank else [])))
        return Trainer(self.task, model, config, self.config.evaluation, self.config.seed, context)

    def measure(self) -> Estimate:
        """Time and memory do not depend on the weights, so none are copied."""
        return estimate(self._assemble(self.build_model(), TrainingContext()))


def _torch_seed(seed: int, *purpose: str | int) -> int:
    return int(generator(seed, *purpose).integers(2**62))
