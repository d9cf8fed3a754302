"""Experiment: from a config to task, model, probe and trainer. The only module that builds them all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from pydantic import Field

import glassformer.tasks  # noqa: F401  registers the kinds of tasks, here for the whole package
from glassformer.core.config import (
    Node,
    Tree,
    merge,
    parse_overrides,
    parse_yaml,
    read_yaml_file,
    validate,
)
from glassformer.core.errors import ErrorDetail, UserError, user_error
from glassformer.cost.estimate import Estimate, estimate
from glassformer.data.batching import generator
from glassformer.evaluation.evaluate import EvaluationConfig
from glassformer.models.base import Model, ModelConfig
from glassformer.models.transformer import TransformerConfig
from glassformer.runs.folder import RunFolder
from glassformer.runs.transfer import TransferReport, transfer
from glassformer.tasks.base import Task, TaskConfig
from glassformer.training.config import TrainingConfig
from glassformer.training.distributed import ProcessGroup
from glassformer.training.precision import check_precision, choose_device
from glassformer.training.trainer import Probe, Trainer, TrainingContext


class InspectionConfig(Node):
    """Inspection during training. It does not affect the weights."""

    probe_heads: bool = Field(False, description="log the attention patterns of all heads during training")
    every: int = Field(
        50, ge=1, description="steps between two measurements; the first and the last step are measured too"
    )
    examples: int = Field(16, ge=1, description="validation examples per measurement")
    keep_snapshots: bool = Field(
        False, description="keep a snapshot of the weights at each measurement, for animations"
    )


class ExperimentConfig(Node):
    """Complete config of a run."""

    task: TaskConfig
    model: ModelConfig = TransformerConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    inspection: InspectionConfig = InspectionConfig()
    seed: int = Field(0, ge=0, lt=2**31, description="seed of initial weights, order of examples and dropout")

    def identity(self) -> Tree:
        """Return the config without `inspection` and `training.parallel`, which do not affect results."""
        tree = {name: part for name, part in self.dump().items() if name != "inspection"}
        return tree | {"training": {k: v for k, v in tree["training"].items() if k != "parallel"}}


def presets() -> list[str]:
    """List the names of the presets."""
    folder = resources.files("glassformer") / "presets"
    return sorted(
        entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")
    )


def preset_text(name: str) -> str:
    """Read a preset's YAML, with its head comment."""
    return (resources.files("glassformer") / "presets" / f"{name}.yaml").read_text(encoding="utf-8")


def resolve(source: str, overrides: Iterable[str] | Mapping[str, Any] = ()) -> ExperimentConfig:
    """Read the config of a source (a preset, a YAML file or a run) and apply overrides.

    Overrides are `["model.num_layers=2"]`, or a mapping of paths to values.
    """
    return apply_overrides(read_source(source), parse_overrides(overrides))


def read_source(source: str) -> Tree:
    """Read the tree of a preset, a YAML file or a run. `apply_overrides` validates it."""
    path = Path(source)
    if source in presets():
        tree = parse_yaml(preset_text(source), f"preset {source}")
    elif RunFolder(path).exists():
        tree = RunFolder(path).config()
    elif path.suffix in (".yaml", ".yml") or "/" in source or os.path.exists(path):
        tree = read_yaml_file(path)
    else:
        raise user_error(
            "no preset, YAML file or run of this name", value=source, allowed=presets(), hint="check the name"
        )
    return ExperimentConfig.fill_kinds(tree)


def apply_overrides(tree: Tree, changes: Tree) -> ExperimentConfig:
    """Validate a tree with changes. An explicit `batch_size` removes a `batch_tokens` of the tree."""
    given = changes.get("training")
    if isinstance(given, Mapping) and given.get("batch_size") and "batch_tokens" not in given:
        tree = merge(tree, {"training": {"batch_tokens": None}})
    return validate(ExperimentConfig, merge(tree, changes))


class Experiment:
    """Builder of everything that a config describes: task, model, probe and trainer."""

    def __init__(self, config: ExperimentConfig, task: Task | None = None) -> None:
        """Build the task from its data, unless one is given."""
        self.config = config
        self.task = config.task.build(config.seed) if task is None else task
        self.transferred: TransferReport | None = None
        """Weights that `build_trainer` copied from the run at `training.start_from`."""

    @classmethod
    def of_run(cls, config: ExperimentConfig, folder: RunFolder, process_group: ProcessGroup) -> Experiment:
        """Build the experiment of a run on every rank.

        Rank 0 restores the task from the run, or builds it from the data if the run is new. The other ranks
        restore it from rank 0's state, so that a tokenizer is trained once.
        """
        task: Task | None = None

        def task_state() -> dict[str, Any]:
            nonlocal task
            is_new, own = not folder.exists(), config.task
            task = own.build(config.seed) if is_new else folder.restore_task(own, config.seed)
            return task.state()

        state = process_group.on_rank_zero(task_state)
        return cls(config, task or config.task.restore(state, config.seed))

    def build_model(self) -> Model:
        """Build a model with initial weights. Equal config and seed give equal weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_torch_seed(self.config.seed, "weights"))
            try:
                return self.config.model.build(self.task.task_type)
            except ErrorDetail as detail:
                raise UserError(detail) from None

    def build_probe(self) -> Probe | None:
        """Build the probe of `inspection.probe_heads`, or return None."""
        config = self.config.inspection
        if not config.probe_heads:
            return None
        from glassformer.inspection.heads import HeadProbe  # training without a probe need not load it

        return HeadProbe(self.task, config.every, config.examples, config.keep_snapshots)

    def build_trainer(self, context: TrainingContext | None = None, *, initialise: bool = True) -> Trainer:
        """Build the trainer, and `initialise` its model: embeddings, and weights from `training.start_from`.

        A checkpoint to resume contains the weights; the run that they came from may have been deleted since.
        """
        model, config = self.build_model(), self.config.training
        context = context or TrainingContext(probe=self.build_probe())
        if initialise and not (context.store and context.store.states()):
            with context.reporter.status("initialising embeddings"):
                config.embedding_init.apply(model, self.task, context.reporter.info)
            if config.start_from is not None:
                self.transferred = transfer(Path(config.start_from), self.task, model, self.config.model)
        device = choose_device(config.device)
        check_precision(config.precision, device)
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        model.to(device)
        rank = context.process_group.rank  # each rank draws its own dropout; rank 0 draws as a single process
        torch.manual_seed(_torch_seed(self.config.seed, "training", *([rank] if rank else [])))
        return Trainer(self.task, model, config, self.config.evaluation, self.config.seed, context)

    def measure(self) -> Estimate:
        """Measure time and memory of a step. They do not depend on the weights, so none are copied."""
        return estimate(self.build_trainer(TrainingContext(), initialise=False))


def _torch_seed(seed: int, *purpose: str | int) -> int:
    return int(generator(seed, *purpose).integers(2**62))
