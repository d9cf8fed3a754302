"""Experiment: from a config to task, model, probe and trainer. The only module that builds them all."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from glassformer.data.readers import file_ending
from glassformer.evaluation.evaluate import EvaluationConfig
from glassformer.models.base import Model, ModelConfig
from glassformer.models.task_types import SequenceClassification, TokenClassification
from glassformer.models.transformer import TransformerConfig
from glassformer.runs.folder import RunFolder
from glassformer.tasks.base import Task, TaskConfig
from glassformer.training.config import TrainingConfig
from glassformer.training.distributed import ProcessGroup
from glassformer.training.precision import PrecisionChoice, check_precision, choose_device, choose_precision
from glassformer.training.small_data import describe_changes, disabled_rules, fit_to_data
from glassformer.training.trainer import Probe, Trainer, TrainingContext

if TYPE_CHECKING:
    from glassformer.runs.transfer import TransferReport

NO_EFFECT = ("parallel", "save_minutes")
"""Options of `training` that do not affect results."""


class InspectionConfig(Node):
    """Options for recording attention heads during training. They do not affect the weights."""

    probe_heads: bool = Field(False, description="log the attention patterns of all heads during training")
    every: int = Field(
        50, ge=1, description="steps between two measurements; the first and the last step are measured too"
    )
    examples: int = Field(16, ge=1, description="validation examples per measurement")
    keep_snapshots: bool = Field(
        False, description="keep a snapshot of the weights at each measurement, for animations"
    )


class ExperimentConfig(Node):
    """Complete config of a training run."""

    task: TaskConfig = Field(description="the task to learn, and its data")
    model: ModelConfig = Field(TransformerConfig(), description="the model: its size and its parts")
    training: TrainingConfig = Field(
        TrainingConfig(), description="optimizer, batches, limits, checkpoints and hardware"
    )
    evaluation: EvaluationConfig = Field(
        EvaluationConfig(), description="how a model is measured, during training and after it"
    )
    inspection: InspectionConfig = Field(
        InspectionConfig(), description="recording of attention heads during training, without effect on it"
    )
    seed: int = Field(0, ge=0, lt=2**31, description="seed of initial weights, order of examples and dropout")

    def identity(self) -> Tree:
        """Return the options that affect results, as a dict.

        The section `inspection` and the `training` options in `NO_EFFECT` are left out.
        """
        tree = {name: part for name, part in self.dump().items() if name != "inspection"}
        return tree | {"training": {k: v for k, v in tree["training"].items() if k not in NO_EFFECT}}


DATA_ENDINGS = dict.fromkeys((".tsv", ".csv", ".jsonl", ".ndjson"), "classification") | {
    ".txt": "language-model"
}
"""Endings of data files that a user may name instead of a config, each with a preset that reads it."""


def presets() -> list[str]:
    """Return the sorted names of the presets (configs that ship with the package)."""
    folder = resources.files("glassformer") / "presets"
    return sorted(
        entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")
    )


def preset_text(name: str) -> str:
    """Return the YAML text of a preset, including the comment at its top."""
    return (resources.files("glassformer") / "presets" / f"{name}.yaml").read_text(encoding="utf-8")


def resolve(source: str, overrides: Iterable[str] | Mapping[str, Any] = ()) -> ExperimentConfig:
    """Return the validated config of a source (a preset, a YAML file or a run) with overrides applied.

    Overrides are `["model.num_layers=2"]`, or a mapping from dotted option paths to values.
    """
    return apply_overrides(read_source(source), parse_overrides(overrides))


def read_source(source: str) -> Tree:
    """Return the config of a preset, a YAML file or a run as a nested dict that is not validated yet."""
    path = Path(source)
    if source in presets():
        tree = dict(parse_yaml(preset_text(source), f"preset {source}"))
        own_data = {OWN_DATA: tree.pop(OWN_DATA)} if OWN_DATA in tree else {}
        return ExperimentConfig.fill_kinds(tree) | own_data
    if RunFolder(path).exists():
        tree = RunFolder(path).config()
    elif file_ending(path) in DATA_ENDINGS and path.is_file():
        preset = DATA_ENDINGS[file_ending(path)]
        hint = f"glassformer train {preset} {shlex.quote(f'task.data.train={source}')}"
        raise user_error("this is a data file, not a preset, a YAML file or a run", path=source, hint=hint)
    elif path.suffix in (".yaml", ".yml") or "/" in source or os.path.exists(path):
        tree = read_yaml_file(path)
    else:
        raise user_error(
            "no preset, YAML file or run has this name",
            value=source,
            allowed=presets(),
            hint="check the name",
        )
    return ExperimentConfig.fill_kinds(tree)


OWN_DATA = "own_data"
"""Section of a preset with options for a user's own data, which replace those for generated data."""

REPLACES = {"batch_size": "batch_tokens", "max_steps": "max_epochs", "max_epochs": "max_steps"}
"""Options of `training` that replace another one of the source, unless both are given."""


def apply_overrides(tree: Tree, changes: Tree) -> ExperimentConfig:
    """Return the validated config of `tree` with `changes` applied.

    A change also unsets the option that it replaces: `training.max_steps` unsets `training.max_epochs`. If
    `task.data` is set, the preset's section `own_data` applies before `changes`. It does not apply if
    `changes` set `training.start_from`, because the model must then have the options of the run it starts
    from.
    """
    own_data = tree.get(OWN_DATA, {})
    tree = {name: section for name, section in tree.items() if name != OWN_DATA}
    given = changes.get("training")
    starts_from = isinstance(given, Mapping) and given.get("start_from")
    if (_has_data(changes) or _has_data(tree)) and not starts_from:
        tree = merge(tree, own_data)
    if isinstance(given, Mapping):
        tree = merge(tree, {"training": _replaced_options(given)})
    return validate(ExperimentConfig, merge(tree, changes))


def _replaced_options(given: Mapping[str, Any]) -> Tree:
    """Return the `training` options to unset, each with the value None, because a given option replaces them.

    For example, `max_steps` replaces `max_epochs`, and an option that is given replaces the rule of
    `training.small_data` that would change it.
    """
    replaced = {other: None for option, other in REPLACES.items() if given.get(option) and other not in given}
    return replaced | {"small_data": disabled_rules(given)}


def _has_data(tree: Tree) -> bool:
    """Return True if a config that is not validated yet names data files."""
    task = tree.get("task")
    return isinstance(task, Mapping) and bool(task.get("data"))


SIGHTS = {
    "distance": ("sees only distances between tokens", "see only distances between tokens"),
    "nothing": ("does not see the order of tokens", "do not see the order of tokens"),
}
"""Verb phrases for one position kind, and for several, by what they know of the position of a token."""


def position_notes(*configs: ExperimentConfig) -> list[str]:
    """Return a note on the position kinds that lack the absolute positions that the task needs."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for config in configs:
        sight, position = config.model.sees(), getattr(config.model, "position", config.model)
        if sight != "absolute" and config.task.needs_absolute_positions:
            found.setdefault((sight, config.task.kind), {})[position.kind] = None
    notes = []
    for (known, task), kinds in found.items():
        one, several = SIGHTS[known]
        subject = f"the position kind{'s' * (len(kinds) > 1)} {', '.join(kinds)}"
        notes.append(
            f"{subject} {several if len(kinds) > 1 else one}, and {task} needs absolute positions: expect a"
            " low accuracy with few layers (glassformer options model.position)"
        )
    return notes


class Experiment:
    """Builder of everything that a config describes: task, model, probe and trainer."""

    def __init__(self, config: ExperimentConfig, task: Task | None = None) -> None:
        """Build the task from its data if `task` is None."""
        self.config = config
        self.task = config.task.build(config.seed) if task is None else task
        """Facts about data and config that the user should know before training."""
        self.transferred: TransferReport | None = None
        """Report of the weights that `build_trainer` copied from `training.start_from`, or None."""
        self.precision: PrecisionChoice | None = None
        """Precision that a resumed run was saved with, then the one that `build_trainer` chose."""

    @classmethod
    def of_run(cls, config: ExperimentConfig, folder: RunFolder, process_group: ProcessGroup) -> Experiment:
        """Build the experiment of a run on every rank (process).

        Rank 0 restores the task from the run, or builds it from the data if the run is new. The other ranks
        restore the task from rank 0's state, so that a tokenizer is trained only once.
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
        """Build the model with initial weights. The same config and seed give bit-identical weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_torch_seed(self.config.seed, "weights"))
            try:
                self.config.evaluation.engine.check(self.config.model, self.task.task_type)
                return self.config.model.build(self.task.task_type)
            except ErrorDetail as detail:
                raise UserError(detail) from None

    def fitted_training(self) -> TrainingConfig:
        """Return the training options, which `training.small_data` adapts if there are few examples."""
        lengths = self.task.splits["train"].lengths()
        return fit_to_data(self.config.training, lengths, self.task.drop_last)

    def small_data_note(self) -> str | None:
        """Return the options that `fitted_training` has changed, or None if there is none."""
        examples = len(self.task.splits["train"])
        return describe_changes(self.config.training, self.fitted_training(), examples)

    @property
    def notes(self) -> list[str]:
        """Notes on the data, options that do not suit the task, and options changed for a small data set."""
        fitted = self.small_data_note()
        return [*self.task.notes, *position_notes(self.config), *([fitted] if fitted else [])]

    def baselines(self, split: str) -> dict[str, Any]:
        """Return the accuracy (or mean absolute error) of simple baselines, as `measure_baselines` does.

        They exist for tasks with one class or one number per sequence, and for the user's own data with
        one label per token. For other tasks, return {}.
        """
        task_type, is_own = self.task.task_type, getattr(self.config.task, "data", None) is not None
        kinds = (SequenceClassification, TokenClassification) if is_own else SequenceClassification
        if not isinstance(task_type, kinds):
            return {}
        from glassformer.evaluation.baselines import measure_baselines  # most tasks need not load it

        return measure_baselines(
            self.task.splits, split, task_type, lambda number: self.task.output_symbols([number])[0]
        )

    def build_probe(self) -> Probe | None:
        """Build the probe that records attention heads, or return None if `inspection.probe_heads` is off."""
        config = self.config.inspection
        if not config.probe_heads:
            return None
        from glassformer.inspection.heads import HeadProbe  # training without a probe need not load it

        return HeadProbe(self.task, config.every, config.examples, config.keep_snapshots)

    def build_trainer(self, context: TrainingContext | None = None, *, initialise: bool = True) -> Trainer:
        """Build the trainer with its model.

        With `initialise`, fill the token embedding as `training.embedding_init` states, then copy the weights
        of the run `training.start_from`. Both are skipped if there is a checkpoint to resume, which contains
        all weights.
        """
        model, config = self.build_model(), self.fitted_training()
        context = context or TrainingContext(probe=self.build_probe())
        if initialise and not (context.store and context.store.states()):
            with context.reporter.status("initialising embeddings"):
                config.embedding_init.apply(model, self.task, context.reporter.info)
            if config.start_from is not None:
                from glassformer.runs.transfer import transfer  # a training from scratch need not load it

                self.transferred = transfer(Path(config.start_from), self.task, model, self.config.model)
        device = choose_device(config.device)
        self.precision = self._choose_precision(config.precision, device, model, context)
        config = config.model_copy(update={"precision": self.precision.precision})
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        model.to(device)
        rank = context.process_group.rank  # each rank draws its own dropout; rank 0 draws as a single process
        torch.manual_seed(_torch_seed(self.config.seed, "training", *([rank] if rank else [])))
        return Trainer(self.task, model, config, self.config.evaluation, self.config.seed, context)

    def _choose_precision(
        self, asked: str, device: torch.device, model: Model, context: TrainingContext
    ) -> PrecisionChoice:
        """Return the precision: for `auto` the saved one of a resumed run, else the choice of rank 0."""
        choice = self.precision
        if choice is None or asked not in ("auto", choice.precision):
            group = context.process_group
            fields = group.on_rank_zero(lambda: asdict(choose_precision(asked, device, model)))
            choice = PrecisionChoice(**fields)
        if asked == "auto":
            context.reporter.info(choice.describe())
        check_precision(choice.precision, device)  # on every rank: each may have another processor
        return choice

    def measure(self) -> Estimate:
        """Estimate time and memory by timing a few training steps of a model with initial weights."""
        return estimate(self.build_trainer(TrainingContext(), initialise=False))


def _torch_seed(seed: int, *purpose: str | int) -> int:
    return int(generator(seed, *purpose).integers(2**62))
