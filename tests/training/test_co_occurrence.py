"""Co-occurrence vectors, by window and by text, against the definition on a dense matrix."""

import numpy as np
import pytest
import torch

from glassformer.training import embedding_init
from glassformer.training.embedding_init import co_occurrence_vectors, same_text_vectors

VOCABULARY, WINDOW = 9, 2


def rows(seed: int = 0) -> list[np.ndarray]:
    """Rows in which token 8 never occurs; a row of one token has no neighbours."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 8, int(length)) for length in rng.integers(1, 12, 60)]


def dense_information(texts: list[np.ndarray]) -> np.ndarray:
    counts = np.zeros((VOCABULARY, VOCABULARY))
    for row in texts:
        for index, token in enumerate(row):
            for other in range(index + 1, min(index + WINDOW + 1, len(row))):
                counts[token, row[other]] += 1
                if token != row[other]:
                    counts[row[other], token] += 1
    totals = counts.sum(1)
    chances = totals**0.75 / (totals**0.75).sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(np.maximum(np.log(counts / (totals[:, None] * chances)), 0))


def test_angles_are_those_of_the_dense_factorisation() -> None:
    texts = rows()
    left, values, _ = np.linalg.svd(dense_information(texts))
    expected = torch.nn.functional.normalize(torch.from_numpy(left * np.sqrt(values)).float(), dim=1)
    found = co_occurrence_vectors(texts, VOCABULARY, VOCABULARY, WINDOW, lambda note: None)
    torch.testing.assert_close(found @ found.T, expected @ expected.T, atol=2e-3, rtol=0)


def test_blocks_do_not_change_the_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = co_occurrence_vectors(rows(), VOCABULARY, 4, WINDOW, lambda note: None)
    monkeypatch.setattr(embedding_init, "TOKENS_PER_BLOCK", 7)
    torch.testing.assert_close(co_occurrence_vectors(rows(), VOCABULARY, 4, WINDOW, lambda note: None), whole)


def test_a_token_without_neighbours_has_no_vector_and_others_have_length_one() -> None:
    lengths = co_occurrence_vectors(rows(), VOCABULARY, 4, WINDOW, lambda note: None).norm(dim=1)
    torch.testing.assert_close(lengths[:8], torch.ones(8))
    assert lengths[8] == 0


def test_first_tokens_that_never_occur_have_no_vector_either() -> None:
    """Reserved tokens come first. Rounding errors of the SVD must not become unit vectors."""
    texts = [row + 5 for row in rows()]
    for found in (
        co_occurrence_vectors(texts, 50, 4, WINDOW, lambda note: None),
        same_text_vectors(texts, 50, 4, lambda note: None),
    ):
        has_vector = found.norm(dim=1) > 0
        assert has_vector.nonzero().squeeze(1).tolist() == list(range(5, 13))


@pytest.mark.parametrize("texts", [[], [np.array([3])]])
def test_texts_without_neighbours_give_no_vectors(texts: list[np.ndarray]) -> None:
    assert not co_occurrence_vectors(texts, VOCABULARY, 4, WINDOW, lambda note: None).any()


def test_more_dimensions_than_tokens() -> None:
    assert co_occurrence_vectors(rows(), VOCABULARY, 20, WINDOW, lambda note: None).shape == (9, 20)


def test_vectors_of_shared_texts_are_those_of_the_dense_factorisation() -> None:
    texts = rows()
    counts = np.stack([np.bincount(row, minlength=VOCABULARY) for row in texts], 1)
    chances = counts.sum(0) ** 0.75 / (counts.sum(0) ** 0.75).sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        information = np.nan_to_num(np.maximum(np.log(counts / (counts.sum(1)[:, None] * chances)), 0))
    left, values, _ = np.linalg.svd(information, full_matrices=False)
    expected = torch.nn.functional.normalize(torch.from_numpy(left * np.sqrt(values)).float(), dim=1)
    found = same_text_vectors(texts, VOCABULARY, VOCABULARY, lambda note: None)
    torch.testing.assert_close(found @ found.T, expected @ expected.T, atol=2e-3, rtol=0)


def test_tokens_of_the_same_texts_are_similar_at_any_distance() -> None:
    texts = [np.array([0, *[4] * 50, 1]), np.array([2, *[4] * 50, 3])] * 5
    vectors = same_text_vectors(texts, VOCABULARY, 2, lambda note: None)
    split_balanced = vectors @ vectors.T
    assert split_balanced[0, 1] > 0.99
    assert split_balanced[2, 3] > 0.99
    assert split_balanced[0, 2] < 0.01


@pytest.mark.parametrize("texts", [[], [np.array([3, 4, 4])]])
def test_one_text_gives_no_vectors(texts: list[np.ndarray]) -> None:
    assert not same_text_vectors(texts, VOCABULARY, 4, lambda note: None).any()
