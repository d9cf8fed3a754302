"""Labels from a column of the user's file: rows become batches of inputs for a probe."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from glassformer.core.errors import ErrorDetail, user_error
from glassformer.data.batching import (
    Batch,
    Examples,
    collate_seq2seq,
    collate_sequence_classification,
)
from glassformer.generation import DecodingConfig
from glassformer.inspection.examples import TOKENS_PER_BATCH
from glassformer.inspection.probes import Collect, LabelledBatch
from glassformer.models.base import Model, evaluating
from glassformer.models.task_types import Seq2Seq
from glassformer.runs.experiment import ExperimentConfig
from glassformer.runs.predict_file import InputReader
from glassformer.tasks.base import Labels, Seq2SeqTask, Task

MEASURED = 5
"""One row of this number is measured; the others fit the probes."""
MOST_ROWS = 5000
"""Maximum number of rows that are read."""


def labelled_file(
    model: Model, task: Task, path: Path, label: str, config: ExperimentConfig, decoding: DecodingConfig
) -> tuple[Collect, Collect]:
    """Read a file; return functions that yield the batches for the fit, and those that are measured.

    Every position of a row has the value of the column as its label. The decoder of an encoder-decoder reads
    the model's own output.
    """
    reader = InputReader(path, config.task, task)
    rows: list[tuple[np.ndarray, str]] = []
    for block in reader.blocks():
        for row in block:
            if label not in row.columns:
                raise user_error(
                    "the file has no such column", path=str(path), value=label, allowed=list(row.columns)
                )
            value = row.columns[label]
            try:
                if row.error is None and row.text is not None and value not in (None, ""):
                    rows.append((task.read_input(row.text)[0], str(value)))
            except ErrorDetail:
                continue  # `predict --file` reports invalid rows
        if len(rows) >= MOST_ROWS:
            break
    if len(rows) < 2 * MEASURED:
        raise user_error(
            f"only {len(rows)} valid rows have a label", path=str(path), hint="a probe needs 10 or more"
        )
    order = np.random.default_rng(0).permutation(min(len(rows), MOST_ROWS))
    examples = [rows[index] for index in order]
    cut = len(examples) // MEASURED
    batches = [list(_batches(model, task, part, decoding)) for part in (examples[cut:], examples[:cut])]
    train, test = (partial(iter, part) for part in batches)
    return train, test


def _batches(
    model: Model, task: Task, rows: list[tuple[np.ndarray, str]], decoding: DecodingConfig
) -> Iterator[LabelledBatch]:
    size = max(1, TOKENS_PER_BATCH // max(len(tokens) for tokens, _ in rows))
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        inputs = [tokens for tokens, _ in part]
        batch = _batch(model, task, inputs, decoding)
        labels: list[Labels] = []
        for _, value in part:
            lengths = {"encoder": max(map(len, inputs))}
            if isinstance(task, Seq2SeqTask):
                lengths["decoder"] = batch.targets.shape[1]
            labels.append({stack: [value] * length for stack, length in lengths.items()})
        yield LabelledBatch(batch, labels)


def _batch(model: Model, task: Task, inputs: list[np.ndarray], decoding: DecodingConfig) -> Batch:
    every = np.arange(len(inputs))
    if not isinstance(task, Seq2SeqTask):
        return collate_sequence_classification(Examples(inputs, np.zeros(len(inputs), np.int64)), every)
    with evaluating(model):
        outputs = [best[0].tokens for best in task.predict(model, inputs, decoding)]
    assert isinstance(task.task_type, Seq2Seq)
    limit = task.task_type.max_target_length + 1  # an output may be cut off before its end token
    targets = [np.array([task.begin, *tokens, task.end][:limit]) for tokens in outputs]
    return collate_seq2seq(Examples(inputs, targets), every)
