"""Predictions of a trained model for texts and token lists, in batches and as dicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from glassformer.core.errors import ErrorDetail, user_error
from glassformer.data.memory import plain, plain_list
from glassformer.data.text_files import printable
from glassformer.generation import DecodingConfig
from glassformer.generation.predict import PredictedText, Prediction, run_concurrently
from glassformer.generation.strategies import SampleConfig
from glassformer.models.base import Model
from glassformer.tasks.base import SequenceClassificationTask, Task
from glassformer.tasks.tokens import TokensTask

MAX_CLASSES_SHOWN = 10
"""Maximum number of classes for which a prediction lists the probability of every class."""
CLASSES_SHOWN_OF_MORE = 5
"""Number of classes that a prediction lists if there are more than MAX_CLASSES_SHOWN."""
BATCH_ROWS = 64
"""Maximum number of inputs per batch."""
BATCH_TOKENS = 8192
"""Maximum number of tokens per batch, including padding."""
SINGLE_TOKENS = "read as an input of one token; join the tokens of one input, or pass them as [[...]]"
"""Warning for a list of texts that has one token per text."""


def predict(
    model: Model,
    task: Task,
    text: str | Iterable[Any],
    strategy: DecodingConfig,
    *,
    why: bool = False,
    aligner: Model | None = None,
) -> dict[str, Any] | list[dict[str, Any]]:
    """Return the prediction for one text as a dict, or a list of dicts for several inputs.

    With `why`, a classifier also returns `words`, the effect of each word on the prediction. `aligner` is the
    encoder-decoder whose cross-attention gives the `alignment` of each output; None: no alignments.
    """
    if why and not isinstance(task, SequenceClassificationTask):
        raise user_error(
            "this option needs a model with one prediction for the whole input",
            path="--why",
            hint="use glassformer attention to see where this model attends",
        )
    text = plain(text) if getattr(text, "ndim", None) == 0 else text  # an array of one text
    inputs = [text] if isinstance(text, str) else plain_list(text, "predict")
    found = predict_texts(model, task, inputs, strategy)
    results = describe_predictions(model, task, inputs, found, why=why)
    if aligner is not None:
        from glassformer.inspection.alignment import align_predictions, check_aligns

        alignments = align_predictions(aligner, check_aligns(task), found)
        results = [result | {"alignment": each} for result, each in zip(results, alignments, strict=True)]
    return results[0] if isinstance(text, str) else results


def describe_predictions(
    model: Model, task: Task, inputs: Sequence[Any], found: Sequence[PredictedText], *, why: bool = False
) -> list[dict[str, Any]]:
    """Return the predictions for the inputs of one request as JSON-serialisable dicts."""
    results = [describe_prediction(model, task, each, why=why) for each in found]
    if isinstance(task, TokensTask) and task.are_single_tokens(inputs):
        for result in results:
            result["warning"] = "; ".join(filter(None, (result["warning"], SINGLE_TOKENS)))
    is_number = [isinstance(value, (int, float)) and not isinstance(value, bool) for value in inputs]
    if isinstance(task, TokensTask) and len(inputs) > 1 and all(is_number):
        for result in results:
            result["error"] = f"{result['error']}; pass the tokens of one input as [[...]]"
    return results


def predict_texts(
    model: Model, task: Task, inputs: Sequence[Any], strategy: DecodingConfig
) -> list[PredictedText]:
    """Return the predictions for texts or token lists, in order. An invalid input has an error instead."""
    rows: list[np.ndarray | None] = []
    texts: list[str] = []
    errors: dict[int, str] = {}
    for index, value in enumerate(inputs):
        try:
            tokens, text = task.read_input(value)
        except ErrorDetail as detail:
            tokens, text, errors[index] = None, str(value), detail.message
        rows.append(tokens)
        texts.append(text)
    found = _predict_rows(model, task, rows, strategy, errors)
    return [
        PredictedText(text, rows[index], found.get(index, []), errors.get(index))
        for index, text in enumerate(texts)
    ]


def _predict_rows(
    model: Model,
    task: Task,
    rows: Sequence[np.ndarray | None],
    strategy: DecodingConfig,
    errors: dict[int, str],
) -> dict[int, list[Prediction]]:
    """Return the predictions by row index. Batches run concurrently. Errors are added to `errors`."""

    def predict_batch(indices: Sequence[int]) -> dict[int, list[Prediction]]:
        batch = [row for index in indices if (row := rows[index]) is not None]
        try:
            return dict(zip(indices, task.predict(model, batch, strategy), strict=True))
        except ErrorDetail as detail:
            if len(indices) == 1:
                errors[indices[0]] = detail.message
                return {}
        return {index: own for single in indices for index, own in predict_batch([single]).items()}

    # A sampled output depends on the index in the batch: alone, each row draws as it would by itself.
    limit = 1 if isinstance(strategy, SampleConfig) else BATCH_ROWS
    batches = list(_batches(rows, limit))
    if len(batches) == 1:
        return predict_batch(batches[0])
    results = run_concurrently(model, predict_batch, batches)
    return {index: own for result in results for index, own in result.items()}


def _batches(rows: Sequence[np.ndarray | None], max_rows: int) -> Iterator[list[int]]:
    """Yield batches of row indices. Rows in a batch have similar lengths, and the longest come first."""
    lengths = {index: len(row) for index, row in enumerate(rows) if row is not None}
    batch: list[int] = []
    for index in sorted(lengths, key=lambda index: -lengths[index]):
        if batch and (len(batch) >= max_rows or (len(batch) + 1) * lengths[batch[0]] > BATCH_TOKENS):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def describe_prediction(
    model: Model, task: Task, predicted: PredictedText, *, why: bool = False
) -> dict[str, Any]:
    """Return the prediction for one text as a JSON-serialisable dict."""
    candidates = [_describe_candidate(task, candidate) for candidate in predicted.candidates]
    prediction: dict[str, Any] = {
        "input": printable(predicted.text),
        "output": candidates[0]["output"] if candidates else None,
        "probability": candidates[0]["probability"] if candidates else None,
        "error": predicted.error,
        "warning": None,
        "candidates": candidates,
    }
    if predicted.tokens is None or not candidates:
        return prediction
    prediction["warning"] = task.warning(predicted.tokens.tolist(), predicted.text)
    if isinstance(task, SequenceClassificationTask):
        prediction["probabilities"] = _class_probabilities(task, predicted.candidates[0])
        if why:
            from glassformer.inspection.attribution import word_effects

            words = word_effects(model, task, predicted.text)
            prediction["words"] = [asdict(word) for word in words]
    return prediction


def _describe_candidate(task: Task, prediction: Prediction) -> dict[str, Any]:
    """Return a hypothesis as a dict: output, probability, and each token with its probability."""
    if prediction.value is not None:
        return {"output": float(prediction.value), "probability": None, "steps": []}
    symbols = task.output_symbols(prediction.tokens)
    steps = [
        {"token": symbol, "probability": probability}
        for symbol, probability in zip(symbols, prediction.probabilities, strict=False)
    ]
    text = task.show_prediction(prediction)
    output = task.label_values.get(text, text)
    return {"output": output, "probability": prediction.probability, "steps": steps}


def _class_probabilities(task: Task, prediction: Prediction) -> dict[Any, float] | None:
    """Return class probabilities, the highest first. With more than 10 classes, return only the top 5."""
    if prediction.class_probabilities is None:
        return None
    order = np.argsort(-prediction.class_probabilities, kind="stable")
    shown = order if len(order) <= MAX_CLASSES_SHOWN else order[:CLASSES_SHOWN_OF_MORE]
    labels = (" ".join(task.output_symbols([number])) for number in shown.tolist())
    return {
        task.label_values.get(label, label): float(prediction.class_probabilities[number])
        for label, number in zip(labels, shown.tolist(), strict=True)
    }
