"""Baselines that a model should beat: a constant prediction, and a bag of words on the same tokens."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassformer.data.batching import Examples, Sequences, generator
from glassformer.models.task_types import SequenceClassification, TokenClassification

MAX_EXAMPLES = 20_000
"""Maximum number of training examples of the bag of words, a random sample, to keep it within seconds."""
INVERSE_REGULARISATION = 10.0
"""Inverse regularisation strength C of the logistic regression, in the convention of scikit-learn."""
ITERATIONS = 60


def measure_baselines(
    splits: Mapping[str, Examples],
    split: str,
    task_type: SequenceClassification | TokenClassification,
    label: Callable[[int], str] = str,
) -> dict[str, Any]:
    """Return the accuracy of each baseline on a split, by name; in a regression, the mean absolute error.

    `majority_class` always predicts the most frequent class of train, which is `majority_label`.
    `best_constant` always predicts the most frequent class of the split, `best_constant_label`. They differ
    if the classes are balanced differently. `label` returns the name of a class.
    """
    train, measured = splits["train"], splits[split]
    if isinstance(task_type, TokenClassification):
        labels = (np.concatenate(list(examples.targets)) for examples in (train, measured))
        of_train, of_split = (np.bincount(each, minlength=task_type.classes) for each in labels)
        return {"most_frequent_label": float(of_split[of_train.argmax()] / max(of_split.sum(), 1))}
    if task_type.is_regression:
        mean = np.mean(train.targets, dtype=np.float64)
        return {"train_mean": float(np.mean(np.abs(np.asarray(measured.targets, dtype=np.float64) - mean)))}
    majority, best = most_frequent_class(train), most_frequent_class(measured)
    return {
        "majority_class": float(np.mean(np.asarray(measured.targets) == majority)),
        "majority_label": label(majority),
        "best_constant": float(np.mean(np.asarray(measured.targets) == best)),
        "best_constant_label": label(best),
        "bag_of_words": bag_of_words_accuracy(train, measured, task_type),
    }


def most_frequent_class(examples: Examples) -> int:
    """Return the most frequent target of a split."""
    return int(np.bincount(np.asarray(examples.targets)).argmax())


def bag_of_words_accuracy(train: Examples, measured: Examples, task_type: SequenceClassification) -> float:
    """Return the accuracy of logistic regression on TF-IDF weights of the tokens, without their order."""
    if len(train) > MAX_EXAMPLES:
        chosen = generator(0, "bag of words").choice(len(train), MAX_EXAMPLES, replace=False)
        train = train.take(np.sort(chosen))
    counts_V = _document_counts(train.inputs, task_type.vocabulary)
    idf_V = np.log((1 + len(train)) / (1 + counts_V)) + 1
    features_NV = _tf_idf(train.inputs, idf_V)
    weight_VC, bias_C = _fit(features_NV, np.asarray(train.targets), task_type.outputs)
    logits_NC = _tf_idf(measured.inputs, idf_V) @ weight_VC + bias_C
    return float(np.mean(logits_NC.argmax(1).numpy() == np.asarray(measured.targets)))


def _document_counts(rows: Sequences, vocabulary: int) -> np.ndarray:
    """Return the number of rows in which each token occurs."""
    counts_V = np.zeros(vocabulary)
    for index in range(len(rows)):
        counts_V[np.unique(rows[index])] += 1
    return counts_V


def _tf_idf(rows: Sequences, idf_V: np.ndarray) -> Tensor:
    """Return a sparse matrix of TF-IDF weights with sublinear term frequencies and rows of length 1."""
    ends, tokens, weights = [0], [], []
    for index in range(len(rows)):
        distinct, counts = np.unique(np.asarray(rows[index]), return_counts=True)
        row = (1 + np.log(counts)) * idf_V[distinct]
        tokens.append(distinct)
        weights.append(row / max(np.linalg.norm(row), 1e-12))
        ends.append(ends[-1] + len(distinct))
    return _sparse(np.array(ends), np.concatenate(tokens), np.concatenate(weights), (len(rows), len(idf_V)))


def _sparse(ends: np.ndarray, columns: np.ndarray, values: np.ndarray, shape: tuple[int, int]) -> Tensor:
    parts = (torch.from_numpy(ends), torch.from_numpy(columns.astype(np.int64)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # CSR support is in beta
        return torch.sparse_csr_tensor(*parts, torch.from_numpy(values).float(), shape)


def _fit(features_NV: Tensor, targets_N: np.ndarray, classes: int) -> tuple[Tensor, Tensor]:
    """Return weights and bias of multinomial logistic regression, by L-BFGS."""
    count = len(targets_N)
    transposed_VN = features_NV.to_sparse_coo().t().to_sparse_csr()
    one_hot_NC = torch.nn.functional.one_hot(torch.from_numpy(targets_N.astype(np.int64)), classes).float()
    weight_VC = torch.zeros(features_NV.shape[1], classes, requires_grad=True)
    bias_C = torch.zeros(classes, requires_grad=True)
    strength = 1 / (INVERSE_REGULARISATION * count)
    optimizer = torch.optim.LBFGS([weight_VC, bias_C], max_iter=ITERATIONS, line_search_fn="strong_wolfe")

    @torch.no_grad()
    def closure() -> float:
        log_probabilities_NC = (features_NV @ weight_VC + bias_C).log_softmax(1)
        error_NC = (log_probabilities_NC.exp() - one_hot_NC) / count
        weight_VC.grad = transposed_VN @ error_NC + strength * weight_VC
        bias_C.grad = error_NC.sum(0)
        loss = -(log_probabilities_NC * one_hot_NC).sum() / count
        return float(loss + strength / 2 * weight_VC.square().sum())

    optimizer.step(closure)
    return weight_VC.detach(), bias_C.detach()
