"""Embedding initialisation from co-occurrence counts (PPMI and SVD)."""

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

TOKENS_AT_A_TIME = 1 << 20
SPARE = 16
"""Directions more than asked for: the last ones of a random start are the worst."""
ITERATIONS = 4
SMOOTHING = 0.75
"""Rare neighbours count as somewhat less rare than they are, else chance meetings look telling."""


def co_occurrence_vectors(
    rows: Iterable[np.ndarray], vocabulary: int, dim: int, window: int, tell: Callable[[str], None]
) -> Tensor:
    """A vector of length 1 for each token that has a neighbour, and zeros for each that has none."""
    keys, counts = _count_pairs(rows, vocabulary, window)
    tell(f"{len(keys):,} pairs of tokens stand within {window} of each other")
    if not len(keys):
        return torch.zeros(vocabulary, dim)
    token, neighbour, counts = _both_ways(keys // vocabulary, keys % vocabulary, counts)
    return _vectors(token, neighbour, counts, (vocabulary, vocabulary), dim)


def same_text_vectors(
    texts: Iterable[np.ndarray], vocabulary: int, dim: int, tell: Callable[[str], None]
) -> Tensor:
    """A vector of length 1 for each token that some texts have more than others, and zeros for the rest.

    What a text is about, and what it thinks of that, runs through all of it, further than a window.
    """
    tokens, places, counts = [], [], []
    number = 0
    for number, text in enumerate(texts, 1):
        found, often = np.unique(np.asarray(text, dtype=np.int64), return_counts=True)
        tokens.append(found)
        places.append(np.full(len(found), number - 1))
        counts.append(often.astype(np.float64))
    if not number:
        return torch.zeros(vocabulary, dim)
    tell(f"{sum(map(len, tokens)):,} pairs of a token and one of {number:,} texts that it stands in")
    table = (np.concatenate(tokens), np.concatenate(places), np.concatenate(counts))
    return _vectors(*table, (vocabulary, number), dim)


def _vectors(
    token: np.ndarray, context: np.ndarray, counts: np.ndarray, shape: tuple[int, int], dim: int
) -> Tensor:
    """How much oftener than by chance a token meets a context; what is not oftener counts as nothing."""
    vocabulary, contexts = shape
    totals = np.bincount(context, counts, contexts)
    chances = totals**SMOOTHING / (totals**SMOOTHING).sum()
    information = np.log(counts / (np.bincount(token, counts, vocabulary)[token] * chances[context]))
    is_kept = information > 0
    padded_VD = torch.zeros(vocabulary, dim)
    if is_kept.any():
        vectors_VD = _factors(
            _sparse(token[is_kept], context[is_kept], information[is_kept], (vocabulary, contexts)),
            _sparse(context[is_kept], token[is_kept], information[is_kept], (contexts, vocabulary)),
            min(dim, vocabulary, contexts),
        )
        meets_any = torch.from_numpy(np.unique(token[is_kept]))  # all others have but rounding
        padded_VD[meets_any, : vectors_VD.shape[1]] = vectors_VD[meets_any]
    return torch.nn.functional.normalize(padded_VD, dim=1)


def _count_pairs(rows: Iterable[np.ndarray], vocabulary: int, window: int) -> tuple[np.ndarray, np.ndarray]:
    """Each pair that stands together, its lower token first, as one number; and how often it does."""
    keys: np.ndarray = np.empty(0, np.int64)
    counts: np.ndarray = np.empty(0)
    for tokens, ends in _blocks(rows):
        found = [keys]
        weights = [counts]
        for distance in range(1, window + 1):
            is_within = np.arange(len(tokens) - distance) + distance < ends[: len(tokens) - distance]
            left, right = tokens[:-distance][is_within], tokens[distance:][is_within]
            pairs = np.minimum(left, right) * vocabulary + np.maximum(left, right)
            new, often = np.unique(pairs, return_counts=True)
            found.append(new)
            weights.append(often.astype(np.float64))
        keys, place = np.unique(np.concatenate(found), return_inverse=True)
        counts = np.bincount(place, np.concatenate(weights), len(keys))
    return keys, counts


def _blocks(rows: Iterable[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Many rows as one: the tokens, and for each where its row ends."""
    kept: list[np.ndarray] = []
    size = 0
    for row in rows:
        kept.append(np.asarray(row, dtype=np.int64))
        size += len(kept[-1])
        if size >= TOKENS_AT_A_TIME:
            yield _joined(kept)
            kept, size = [], 0
    if kept:
        yield _joined(kept)


def _joined(rows: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.array([len(row) for row in rows])
    return np.concatenate(rows), np.repeat(np.cumsum(lengths), lengths)


def _both_ways(first: np.ndarray, second: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, ...]:
    is_apart = first != second
    return (
        np.append(first, second[is_apart]),
        np.append(second, first[is_apart]),
        np.append(counts, counts[is_apart]),
    )


def _sparse(rows: np.ndarray, columns: np.ndarray, values: np.ndarray, shape: tuple[int, int]) -> Tensor:
    places = torch.from_numpy(np.stack([rows, columns]))
    entries = torch.from_numpy(values).float()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that compressed rows are new in PyTorch
        return torch.sparse_coo_tensor(places, entries, shape, check_invariants=True).to_sparse_csr()


def _factors(matrix_VC: Tensor, transposed_CV: Tensor, dim: int) -> Tensor:
    """The directions of the largest singular values, each by its root (Halko et al. 2011)."""
    width = min(dim + SPARE, *matrix_VC.shape)
    start_CK = generator(0, "co-occurrence").standard_normal((matrix_VC.shape[1], width), dtype=np.float32)
    basis_VK = torch.linalg.qr(matrix_VC @ torch.from_numpy(start_CK)).Q
    for _ in range(ITERATIONS):
        basis_VK = torch.linalg.qr(matrix_VC @ torch.linalg.qr(transposed_CV @ basis_VK).Q).Q
    turned_KK, values_K, _ = torch.linalg.svd((transposed_CV @ basis_VK).T, full_matrices=False)
    return basis_VK @ turned_KK[:, :dim] * values_K[:dim].sqrt()


PLACE = "training.embedding_init.kind"


class FirstVectorsConfig(Kind):
    """How the vectors of the tokens begin."""

    def apply(self, model: Model, task: Task, tell: Callable[[str], None]) -> None:
        """Change the vectors of a fresh model in place."""
        raise NotImplementedError


@register
class RandomVectorsConfig(FirstVectorsConfig):
    """As the model made them."""

    kind: Literal["random"] = "random"

    def apply(self, model: Model, task: Task, tell: Callable[[str], None]) -> None:
        pass


@register
class CoOccurrenceConfig(FirstVectorsConfig):
    """From which tokens stand together in the inputs of the training split: no step is needed."""

    kind: Literal["co-occurrence"] = "co-occurrence"
    window: int = Field(8, ge=1, le=1000, description="tokens that are at most this far apart are neighbours")
    text_share: float = Field(
        0.0,
        ge=0,
        le=1,
        description="of the width, for which tokens stand in the same text, at any distance",
    )

    def apply(self, model: Model, task: Task, tell: Callable[[str], None]) -> None:
        table_VD = model.token_embedding()
        if table_VD is None:
            raise user_error(
                "a model of this kind does not say where its vectors are",
                path=PLACE,
                value=self.kind,
                hint="training.embedding_init.kind=random",
            )
        vocabulary, dim = table_VD.shape
        vectors_VD = self._vectors(task.splits["train"].inputs, vocabulary, dim, tell)
        has_vector_V = vectors_VD.any(1)
        with torch.no_grad():
            # As long as the random ones, which the layers above are made for.
            length = float(table_VD.norm(dim=1).mean())
            table_VD[has_vector_V] = vectors_VD[has_vector_V] * length

    def _vectors(self, inputs: Sequences, vocabulary: int, dim: int, tell: Callable[[str], None]) -> Tensor:
        """Both kinds side by side; a component of either is as large as one of the other."""
        far = round(dim * self.text_share)
        texts = inputs.rows if isinstance(inputs, Windows) else inputs
        parts = []
        if far < dim:
            near_VD = co_occurrence_vectors(_each(inputs), vocabulary, dim - far, self.window, tell)
            parts.append(near_VD * (1 - far / dim) ** 0.5)
        if far:
            parts.append(same_text_vectors(_each(texts), vocabulary, far, tell) * (far / dim) ** 0.5)
        return torch.cat(parts, 1)


def _each(rows: Sequences) -> Iterator[np.ndarray]:
    return (rows[number] for number in range(len(rows)))
