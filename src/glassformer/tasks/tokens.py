"""A user's own sequences: a label for each token, a label or a number for the whole, or another sequence.

Vocabularies come from the training split and are kept in the task's state, so that a trained model can be
asked without the files that it learned from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from glassformer.data.batching import Examples
from glassformer.data.readers import DataConfig, Rows, split_off
from glassformer.data.vocabulary import Vocabulary
from glassformer.errors import Problem, UserError, shorten, user_error
from glassformer.models.shapes import PerSequence, PerToken, SequenceToSequence, Shape
from glassformer.registry import register
from glassformer.tasks.base import PerSequenceTask, PerTokenTask, SequenceToSequenceTask, Task, TaskConfig

UNKNOWN, BEGIN, END = "<unknown>", "<begin>", "<end>"
RESERVED = [UNKNOWN, BEGIN, END]
ROLES = {"input": "input", "target": "target"}

Answer = Literal["token-labels", "label", "number", "sequence"]


@register
class TokensConfig(TaskConfig):
    """Your own sequences, from TSV, CSV or JSONL files."""

    kind: Literal["tokens"] = "tokens"
    data: DataConfig
    answer: Answer = Field(
        "token-labels", description="a label a token; one label or one number a sequence; or another sequence"
    )
    separator: str | None = Field(
        None, description="what stands between tokens; none: white space; '': each character is a token"
    )
    shared_vocabulary: bool = Field(False, description="for sequences: both sides use one list of symbols")
    data_seed: int = Field(0, ge=0, description="drives which rows are split off; the run's seed does not")

    def build(self, seed: int) -> TokensTask:
        return _TASKS[self.answer].learn(self)

    def restore(self, state: Mapping[str, Any], seed: int = 0) -> TokensTask:
        task = _TASKS[self.answer]
        return task(self, state, lambda: task.encode_all(self, state, task.read(self)))

    def tokens(self, value: Any) -> list[str]:
        """A cell of the file, or a typed line, as tokens."""
        if isinstance(value, list):
            return [_symbol(item) for item in value]
        text = _symbol(value)
        if self.separator == "":
            return list(text.strip())
        return [token for token in text.split(self.separator) if token]


def _symbol(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (bool, int, float)):
        return str(value).lower()
    raise Problem(f"a string or a number belongs here, not {shorten(repr(value), 40)}")


class Parsed:
    """A split's rows as tokens and targets, each with its place in a file."""

    def __init__(self, rows: Rows, inputs: list[list[str]], targets: list[Any]) -> None:
        self.rows = rows
        self.inputs = inputs
        self.targets = targets
