"""Evaluation gives equal metrics with and without intervals, and outputs in the order of the data."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from glassformer.data.batching import Examples
from glassformer.evaluation.evaluate import EvaluationConfig, evaluate, measure
from glassformer.evaluation.text_scores import score_corpus
from glassformer.generation import DecodingConfig
from glassformer.generation.predict import Prediction
from glassformer.models.base import Model
from glassformer.models.task_types import Seq2Seq, SequenceClassification
from glassformer.models.transformer import TransformerConfig
from glassformer.runs.experiment import Experiment, resolve
from glassformer.tasks.base import CausalLMTask, Seq2SeqTask, SequenceClassificationTask, Task

SMALL = TransformerConfig(num_layers=1, num_heads=2, hidden_dim=8, feed_forward_dim=8)
FEW_A_BATCH = EvaluationConfig(batch_tokens=24)


def build(task: Task) -> Model:
    torch.manual_seed(0)
    return SMALL.build(task.task_type).eval()


class Echo(Seq2SeqTask):
    """Predict the input without its last token; the reference is the input. 0 begins and 1 ends."""

    begin, end = 0, 1

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        inputs = [random.integers(2, 12, size) for size in random.integers(2, 9, 30)]
        targets = [np.array([0, *row, 1]) for row in inputs]
        self.sources = [" ".join(map(str, row)) for row in inputs]
        super().__init__(Seq2Seq(12, 10, 12, 12), {"test": Examples(inputs, targets)})

    def predict(
        self,
        model: Model,
        rows: Sequence[np.ndarray],
        decoding: DecodingConfig | None = None,
        is_scored: bool = True,
    ) -> list[list[Prediction]]:
        return [[Prediction(row[: max(len(row) - 1, 2)].tolist(), None, [], [])] for row in rows]

    def output_symbols(self, tokens: Sequence[int]) -> list[str]:
        return [str(token) for token in tokens]


class EchoOfText(Echo):
    def text_pairs(self, split: str) -> tuple[list[str], list[str]]:
        return self.sources, [source.replace("3", "three") for source in self.sources]


def test_outputs_are_in_the_order_of_the_data() -> None:
    task = Echo()
    reports: list[tuple[str, int, int]] = []
    measured = measure(
        build(task),
        task,
        "test",
        FEW_A_BATCH,
        progress=lambda activity, done, total: reports.append((activity, done, total)),
    )
    assert measured.decoded is not None
    assert measured.decoded.numbers.tolist() == list(range(30))
    inputs = [row.tolist() for row in task.splits["test"].inputs]
    assert measured.decoded.references == inputs
    assert measured.decoded.outputs == [row[: max(len(row) - 1, 2)] for row in inputs]
    assert measured.decoded.lines == [" ".join(map(str, output)) for output in measured.decoded.outputs]
    share = sum(len(row) == 2 for row in inputs) / 30
    assert 0 < share < 0.5 and measured.metrics["exact_match"] == share
    low, high = measured.intervals["exact_match"]
    assert low < share < high
    assert reports[-1][0] == "decoding batches" and reports[-1][1] == reports[-1][2] > 3
    first = measure(build(task), task, "test", EvaluationConfig(batch_tokens=24, max_examples=7))
    assert first.decoded is not None and first.decoded.outputs == measured.decoded.outputs[:7]


def test_text_is_scored_against_the_text_of_the_data() -> None:
    task = EchoOfText()
    model = build(task)
    measured = measure(model, task, "test", FEW_A_BATCH)
    assert measured.decoded is not None
    expected = score_corpus(measured.decoded.lines, task.text_pairs("test")[1])
    for name, score in expected.by_name().items():
        assert measured.metrics[name] == score.value and measured.intervals[name] == score.interval
        assert measured.protocol["signatures"][name] == score.signature
    assert measured.metrics["bleu"] < score_corpus(measured.decoded.lines, task.sources).bleu.value
    during_training = evaluate(model, task, "test", FEW_A_BATCH)
    assert during_training.keys() == measured.metrics.keys() - {"chrf", "ter"}


@pytest.mark.parametrize(
    "preset", ["reversal", "counting-classifier", "counting-language-model", "arithmetic"]
)
def test_intervals_change_no_metric(preset: str) -> None:
    few = {"model.num_layers": 1, "model.hidden_dim": 16, "model.feed_forward_dim": 16, "model.num_heads": 2}
    experiment = Experiment(resolve(preset, few))
    model = experiment.build_model().train()
    config = EvaluationConfig(batch_tokens=400, max_examples=60)
    quick = evaluate(model, experiment.task, "validation", config)
    measured = measure(model, experiment.task, "validation", config)
    assert measured.metrics == quick and model.training
    assert {"loss", "accuracy"} <= measured.intervals.keys() <= quick.keys()
    for name, (low, high) in measured.intervals.items():
        assert low <= quick[name] <= high and low < high


class Letters(CausalLMTask):
    """Rows of unequal length; each token counts as two characters."""

    def __init__(self, task: Task) -> None:
        random = np.random.default_rng(0)
        rows = [random.integers(0, 5, size) for size in random.integers(3, 9, 20)]
        super().__init__(task.task_type, {"test": Examples(rows, rows)})

    def count_characters(self, split: str) -> int:
        return 2 * sum(len(row) - 1 for row in self.splits[split].inputs)


def test_bits_per_character_equal_a_plain_loop() -> None:
    task = Letters(Experiment(resolve("counting-language-model")).task)
    model = build(task)
    loss, tokens = 0.0, 0
    with torch.inference_mode():
        for row in task.splits["test"].inputs:
            logits_LV = model(tokens=torch.from_numpy(row[None, :-1]), mask=None)[0]
            loss += float(F.cross_entropy(logits_LV, torch.from_numpy(row[1:]), reduction="sum"))
            tokens += len(row) - 1
    measured = measure(model, task, "test", EvaluationConfig(batch_tokens=30))
    assert measured.metrics["perplexity"] == pytest.approx(math.exp(loss / tokens))
    assert measured.metrics["bits_per_character"] == pytest.approx(loss / math.log(2) / (2 * tokens))
    assert measured.protocol["characters"] == 2 * tokens
    low, high = measured.intervals["bits_per_character"]
    assert low < measured.metrics["bits_per_character"] < high
    # The number of characters of a part of the split is unknown.
    assert "bits_per_character" not in evaluate(model, task, "test", EvaluationConfig(max_examples=5))


class Sums(SequenceClassificationTask):
    primary_metric = "mean_absolute_error"

    def __init__(self) -> None:
        rows = np.random.default_rng(0).integers(0, 9, (50, 4))
        examples = Examples(rows, rows.sum(1).astype(np.float32))
        super().__init__(SequenceClassification(9, 4, outputs=1, is_regression=True), {"test": examples})


def test_real_targets() -> None:
    task = Sums()
    model = build(task)
    measured = measure(model, task, "test", EvaluationConfig(batch_tokens=30))
    names = {"mean_absolute_error", "root_mean_squared_error", "r_squared", "correlation"}
    assert measured.metrics.keys() == measured.intervals.keys() == names | {"loss"}
    assert measured.metrics["root_mean_squared_error"] ** 2 == pytest.approx(measured.metrics["loss"])
    targets = np.asarray(task.splits["test"].targets)
    values = [prediction.value for [prediction] in task.predict(model, list(task.splits["test"].inputs))]
    assert measured.metrics["mean_absolute_error"] == pytest.approx(np.abs(values - targets).mean())
