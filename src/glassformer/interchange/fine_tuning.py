"""Config file in an imported run with which its model is trained further on a user's own data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from glassformer.core.config import Tree, dump_yaml
from glassformer.models.task_types import CausalLM, MaskedLM, Seq2Seq, SequenceClassification, TaskType
from glassformer.models.transformer import TransformerConfig
from glassformer.runs.commands import command

FILE = "fine-tune.yaml"
"""Name of the config file in the run folder."""
HEAD_OPTIONS = ("output", "output_bias", "tied_output")
"""Options of the output head of a language model, which a classifier does not take over."""
TEXT_TOKENS = {"classification": 128, "language-model": 256, "translation": 128}
"""Maximum tokens per text by kind of task: attention over longer texts is slow on a CPU."""
TRAINING: Tree = {
    "optimizer": {"kind": "adamw", "learning_rate": 1e-4, "weight_decay": 0.01},
    "schedule": {"kind": "warmup-cosine", "warmup_steps": 50},
    "layerwise_lr_decay": 0.9,
    "batch_tokens": 1024,
    "max_epochs": 3,
}
"""Options of `training` that suit pre-trained weights: a low learning rate, lower still in low layers."""
EXAMPLE_DATA = {
    "classification": ["task.data.train=mine.csv"],
    "language-model": ["task.data.train=mine.txt"],
    "translation": ["task.data.train=[mine.en, mine.fr]"],
}
"""Overrides that name a user's data, by kind of task, as examples for commands."""


def fine_tuning_kind(task_type: TaskType) -> str:
    """Return the kind of task that a model of this type is fine-tuned for."""
    match task_type:
        case CausalLM():
            return "language-model"
        case Seq2Seq():
            return "translation"
        case _:
            return "classification"


def fine_tuning_yaml(run: Path, task_type: TaskType, model: TransformerConfig) -> str:
    """Return the content of the config file: the run's tokenizer, model and weights, and training options."""
    kind = fine_tuning_kind(task_type)
    task: dict[str, Any] = {
        "kind": kind,
        "tokenizer": {"kind": "file", "path": str(run)},
        "max_length": min(TEXT_TOKENS[kind], task_type.max_length),
    }
    if isinstance(task_type, Seq2Seq):
        task["shared_vocabulary"] = task_type.is_shared_vocabulary
    if isinstance(task_type, SequenceClassification) and task_type.is_regression:
        task["target"] = "number"
    options = model.dump()
    if isinstance(task_type, MaskedLM):  # its head predicts words, not classes
        options = {name: value for name, value in options.items() if name not in HEAD_OPTIONS}
    tree = {"task": task, "model": options, "training": {"start_from": str(run), **TRAINING}}
    return f"# Train the imported model further on your own data:\n#   {example_command(run, kind)}\n\n" + (
        dump_yaml(tree)
    )


def example_command(run: Path, kind: str) -> str:
    """Return the command that trains with the config file, with an example of a user's data."""
    return command("train", str(run / FILE), *EXAMPLE_DATA[kind])
