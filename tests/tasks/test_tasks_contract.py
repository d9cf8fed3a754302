"""Contract of every kind of task, from its config to a readable prediction.

A task that the test itself registers must fulfil the same contract.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

import glassformer.tasks  # noqa: F401  registers the kinds
from glassformer.core.config import validate
from glassformer.core.errors import ErrorDetail, UserError
from glassformer.core.registry import kinds, register, unregister
from glassformer.data.batching import Examples
from glassformer.models.task_types import SequenceClassification
from glassformer.models.transformer import TransformerConfig
from glassformer.tasks.base import SequenceClassificationTask, Task, TaskConfig
from glassformer.tasks.language import LanguageTask

MODEL = TransformerConfig(num_layers=1, num_heads=2, hidden_dim=8, feed_forward_dim=8)
FEW = {"length": 6, "train_examples": 20, "validation_examples": 6, "test_examples": 6}

# Small options for each kind; a kind that is not listed uses its defaults.
SMALL: dict[str, dict[str, Any]] = {
    "arithmetic": {"digits": 1},
    "classification": {"examples": 40},
    "copy": FEW,
    "language-model": {"examples": 40},
    "masked-language-model": {"examples": 40},
    "translation": {"examples": 40, "tokenizer": {"kind": "bpe", "vocabulary_size": 400}},
    "palindrome": FEW,
    "random-tokens": FEW,
    "rest-of-text": {"examples": 40},
    "reversal": FEW,
    "shift": FEW,
    "sort": FEW,
    "tokens": {"data": {"train": "pairs.tsv", "columns": {"input": 0, "target": 1}}},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to a folder with data for the kinds that read files."""
    lines = [f"{i % 3} {i % 5} {i % 7}\t{i % 2} {i % 3} {i % 2}" for i in range(40)]
    (tmp_path / "pairs.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)


def configure(kind: str) -> TaskConfig:
    return validate(TaskConfig, {"kind": kind, **SMALL.get(kind, {})})


def fulfil_contract(kind: str) -> None:
    config = configure(kind)
    assert validate(TaskConfig, config.dump()) == config
    task = config.build(seed=0)
    assert {"train", "validation"} <= set(task.splits) <= {"train", "validation", "test"}
    # Examples depend on the config alone, not on the seed of the run.
    assert config.build(seed=1).checksum() == task.checksum()
    restored = config.restore(task.state())
    assert restored.task_type == task.task_type and restored.checksum() == task.checksum()

    torch.manual_seed(0)
    model = MODEL.build(task.task_type).eval()
    for split, examples in task.splits.items():
        indices = np.arange(min(len(examples), 4))
        batch, again = task.batch(split, indices), task.batch(split, indices)
        assert torch.equal(batch.targets, again.targets)
        result = model.compute_loss(batch.inputs, batch.targets)
        assert result.loss.isfinite() and result.count == batch.target_count() > 0

    # Displayed input can be typed again, outputs can be displayed, and an empty line is rejected.
    row = task.batch("train", np.arange(1)).inputs["tokens"][0].numpy()
    assert len(task.input_symbols(row.tolist())) == len(row)
    typed = task.parse(task.show_input(row.tolist()))
    assert task.parse(task.show_input(typed.tolist())).tolist() == typed.tolist()
    assert typed.tolist() == row.tolist() or isinstance(task, LanguageTask)  # a window contains several texts
    [[prediction, *_]] = task.predict(model, [row])
    assert isinstance(task.show_output(prediction.tokens), str)
    with pytest.raises(ErrorDetail):
        task.parse("")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("kind", sorted(kinds(TaskConfig)))
def test_every_task_fulfils_the_contract(kind: str) -> None:
    fulfil_contract(kind)


# ---------------------------------------------------------------- a user's own task


class MajorityTask(SequenceClassificationTask):
    def __init__(self, config: MajorityConfig) -> None:
        self.config = config
        super().__init__(
            SequenceClassification(vocabulary=2, max_length=config.length, outputs=2), self._generate
        )

    def _generate(self) -> dict[str, Examples]:
        rng = np.random.default_rng(0)
        rows = rng.permutation(2**self.config.length)[:, None] >> np.arange(self.config.length) & 1
        targets = (rows.mean(1) > 0.5).astype(np.int64)
        cut = len(rows) * 3 // 4
        return {
            "train": Examples(rows[:cut], targets[:cut]),
            "validation": Examples(rows[cut:], targets[cut:]),
        }

    def parse(self, text: str) -> np.ndarray:
        if not text.split():
            raise ErrorDetail("the line is empty")
        return np.array([int(word) for word in text.split()])

    def input_symbols(self, tokens: Any) -> list[str]:
        return [str(token) for token in tokens]

    def output_symbols(self, tokens: Any) -> list[str]:
        return ["ones" if tokens[0] else "zeros"]


class MajorityConfig(TaskConfig):
    """Classify by the majority of tokens."""

    kind: Literal["majority"] = "majority"
    length: int = 5

    def build(self, seed: int) -> Task:
        return MajorityTask(self)


@pytest.fixture
def majority() -> Iterator[None]:
    register(MajorityConfig)
    yield
    unregister(MajorityConfig)


@pytest.mark.usefixtures("majority")
def test_a_users_own_task_fulfils_the_contract() -> None:
    fulfil_contract("majority")


def test_without_registration_it_is_unknown() -> None:
    with pytest.raises(UserError, match="unknown kind"):
        configure("majority")
