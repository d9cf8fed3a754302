"""Embedding initialisation: random, or from co-occurrence counts (PPMI and truncated SVD)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from glassformer.core.errors import user_error
from glassformer.core.registry import Kind, register
from glassformer.data.batching import Sequences, generator
from glassformer.data.token_rows import Windows
from glassformer.models.base import Model
from glassformer.tasks.base import Task

TOKENS_PER_BLOCK = 1 << 20
OVERSAMPLING = 16
"""Number of extra dimensions in the randomised SVD, dropped at the end because they are inaccurate."""
ITERATIONS = 4
SMOOTHING = 0.75
"""Exponent on context frequencies that reduces the PPMI of rare contexts."""


def co_occurrence_vectors(
    rows: Iterable[np.ndarray], vocabulary: int, dim: int, window: int, report: Callable[[str], None]
) -> Tensor:
    """Return one unit vector per token, computed from the tokens within `window` positions of it.

    A token gets a vector of zeros if no token occurs near it more often than by chance.
    """
    keys, counts = _count_pairs(rows, vocabulary, window)
    report(f"{len(keys):,} pairs of tokens occur within {window} positions of each other")
    if not len(keys):
        return torch.zeros(vocabulary, dim)
    first, second = keys // vocabulary, keys % vocabulary
    differs = first != second  # add the reverse of each pair of different tokens
    token, neighbour = np.append(first, second[differs]), np.append(second, first[differs])
    return _vectors(token, neighbour, np.append(counts, counts[differs]), (vocabulary, vocabulary), dim)


def same_text_vectors(
    texts: Iterable[np.ndarray], vocabulary: int, dim: int, report: Callable[[str], None]
) -> Tensor:
    """Return one unit vector per token, computed from the texts that contain the token.

    Whole texts show topic and opinion, which a window of a few tokens may not. A token gets a
    vector of zeros if no text contains it more often than by chance.
    """
    found = [np.unique(np.asarray(text, dtype=np.int64), return_counts=True) for text in texts]
    if not found:
        return torch.zeros(vocabulary, dim)
    tokens, counts = map(np.concatenate, zip(*found, strict=True))
    report(f"{len(tokens):,} pairs of a token and one of {len(found):,} texts that contain it")
    text_numbers = np.repeat(np.arange(len(found)), [len(distinct) for distinct, _ in found])
    return _vectors(tokens, text_numbers, counts.astype(np.float64), (vocabulary, len(found)), dim)


def _vectors(
    token: np.ndarray, context: np.ndarray, counts: np.ndarray, shape: tuple[int, int], dim: int
) -> Tensor:
    """Return one unit vector per token, by an SVD of the PPMI matrix (rows: tokens, columns: contexts).

    A context is a neighbouring token or a text. `counts[i]` is the count of `token[i]` in `context[i]`.
    """
    vocabulary, contexts = shape
    totals = np.bincount(context, counts, contexts)
    chances = totals**SMOOTHING / (totals**SMOOTHING).sum()
    information = np.log(counts / (np.bincount(token, counts, vocabulary)[token] * chances[context]))
    is_positive = information > 0
    padded_VD = torch.zeros(vocabulary, dim)
    if is_positive.any():
        token, context, information = token[is_positive], context[is_positive], information[is_positive]
        matrix_VC = _sparse(token, context, information, (vocabulary, contexts))
        transposed_CV = _sparse(context, token, information, (contexts, vocabulary))
        vectors_VD = _factors(matrix_VC, transposed_CV, min(dim, vocabulary, contexts))
        has_context = torch.from_numpy(np.unique(token))  # other rows hold only rounding errors
        padded_VD[has_context, : vectors_VD.shape[1]] = vectors_VD[has_context]
    return torch.nn.functional.normalize(padded_VD, dim=1)


def _count_pairs(rows: Iterable[np.ndarray], vocabulary: int, window: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs of tokens within `window` positions of each other, and the count of each pair.

    A pair is encoded as one integer: lower token id × vocabulary + higher token id.
    """
    keys: np.ndarray = np.empty(0, np.int64)
    counts: np.ndarray = np.empty(0)
    for tokens, ends in _blocks(rows):
        found, weights = [keys], [counts]
        for distance in range(1, window + 1):
            is_within = np.arange(len(tokens) - distance) + distance < ends[: len(tokens) - distance]
            left, right = tokens[:-distance][is_within], tokens[distance:][is_within]
            pairs = np.minimum(left, right) * vocabulary + np.maximum(left, right)
            new, often = np.unique(pairs, return_counts=True)
            found.append(new)
            weights.append(often.astype(np.float64))
        keys, inverse = np.unique(np.concatenate(found), return_inverse=True)
        counts = np.bincount(inverse, np.concatenate(weights), len(keys))
    return keys, counts


def _blocks(rows: Iterable[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Concatenate rows into blocks of about a million tokens, and yield two arrays per block.

    The first has the tokens. The second has, for each token, the index in the block where its row ends.
    """
    block: list[np.ndarray] = []
    size = 0
    for row in rows:
        block.append(np.asarray(row, dtype=np.int64))
        size += len(block[-1])
        if size >= TOKENS_PER_BLOCK:
            yield _concatenate(block)
            block, size = [], 0
    if block:
        yield _concatenate(block)


def _concatenate(rows: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.array([len(row) for row in rows])
    return np.concatenate(rows), np.repeat(np.cumsum(lengths), lengths)


def _sparse(rows: np.ndarray, columns: np.ndarray, values: np.ndarray, shape: tuple[int, int]) -> Tensor:
    indices = torch.from_numpy(np.stack([rows, columns]))
    entries = torch.from_numpy(values).float()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # CSR support is in beta
        return torch.sparse_coo_tensor(indices, entries, shape, check_invariants=True).to_sparse_csr()


def _factors(matrix_VC: Tensor, transposed_CV: Tensor, dim: int) -> Tensor:
    """Return left singular vectors times √(singular values), by randomised SVD (Halko et al. 2011)."""
    width = min(dim + OVERSAMPLING, *matrix_VC.shape)
    start_CK = generator(0, "co-occurrence").standard_normal((matrix_VC.shape[1], width), dtype=np.float32)
    basis_VK = torch.linalg.qr(matrix_VC @ torch.from_numpy(start_CK)).Q
    for _ in range(ITERATIONS):
        basis_VK = torch.linalg.qr(matrix_VC @ torch.linalg.qr(transposed_CV @ basis_VK).Q).Q
    rotation_KK, values_K, _ = torch.linalg.svd((transposed_CV @ basis_VK).T, full_matrices=False)
    return basis_VK @ rotation_KK[:, :dim] * values_K[:dim].sqrt()


class EmbeddingInitConfig(Kind):
    """Base class of configs that set the initial values of the token embedding."""

    def apply(self, model: Model, task: Task, report: Callable[[str], None]) -> None:
        """Initialise the token embedding of a new model in place."""
        raise NotImplementedError


@register
class RandomInitConfig(EmbeddingInitConfig):
    """Random initial values of the token embedding, as the model draws them.

    Use it as the default, and whenever the training set is large.
    """

    kind: Literal["random"] = "random"

    def apply(self, model: Model, task: Task, report: Callable[[str], None]) -> None:
        pass


@register
class CoOccurrenceInitConfig(EmbeddingInitConfig):
    """Initial token embedding from the counts of which tokens occur near each other in the training
    inputs.

    Use it for texts with few labels: words of similar use start with similar vectors. It takes some
    seconds before the first step.
    """

    kind: Literal["co-occurrence"] = "co-occurrence"
    window: int = Field(8, ge=1, le=1000, description="tokens at most this far apart are neighbours")
    document_fraction: float = Field(
        0.0,
        ge=0,
        le=1,
        description="fraction of the dimensions taken from co-occurrence in the same text, at any distance",
    )

    def apply(self, model: Model, task: Task, report: Callable[[str], None]) -> None:
        table_VD = model.token_embedding()
        if table_VD is None:
            raise user_error(
                "a model of this kind has no token embedding to initialise",
                path="training.embedding_init.kind",
                value=self.kind,
                hint="training.embedding_init.kind=random",
            )
        vocabulary, dim = table_VD.shape
        vectors_VD = self._vectors(task.splits["train"].inputs, vocabulary, dim, report)
        has_vector_V = vectors_VD.any(1)
        with torch.no_grad():
            # Scale to the mean norm of the random vectors, which the layers above expect.
            length = float(table_VD.norm(dim=1).mean())
            table_VD[has_vector_V] = vectors_VD[has_vector_V] * length

    def _vectors(self, inputs: Sequences, vocabulary: int, dim: int, report: Callable[[str], None]) -> Tensor:
        """Return one vector per token: `co_occurrence_vectors` and `same_text_vectors`, concatenated.

        The latter provide the fraction `document_fraction` of the dimensions. Each of the two is multiplied
        by the square root of its fraction, so that all components have the same root mean square.
        """
        far = round(dim * self.document_fraction)
        texts = inputs.rows if isinstance(inputs, Windows) else inputs
        parts = []
        if far < dim:
            near_VD = co_occurrence_vectors(_each(inputs), vocabulary, dim - far, self.window, report)
            parts.append(near_VD * (1 - far / dim) ** 0.5)
        if far:
            parts.append(same_text_vectors(_each(texts), vocabulary, far, report) * (far / dim) ** 0.5)
        return torch.cat(parts, 1)


def _each(rows: Sequences) -> Iterator[np.ndarray]:
    return (rows[number] for number in range(len(rows)))
