"""Which examples stand together: a function of seed, split and epoch, within a budget, each example once."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.data.batching import pad, plan_batches

quick = settings(max_examples=60, deadline=None, derandomize=True)
LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=80).map(np.array)


def lists(batches: list[np.ndarray]) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


@quick
@given(LENGTHS, st.integers(1, 300), st.integers(0, 3), st.booleans())
def test_a_budget_is_never_exceeded(lengths: np.ndarray, budget: int, epoch: int, shuffle: bool) -> None:
    """But by an example that alone is longer, which then stands alone."""
    batches = plan_batches(lengths, seed=0, split="train", epoch=epoch, batch_tokens=budget, shuffle=shuffle)
    for batch in batches:
        padded = len(batch) * lengths[batch].max()
        assert padded <= budget or len(batch) == 1
    assert sorted(np.concatenate(batches)) == list(range(len(lengths)))


@quick
@given(LENGTHS, st.integers(60, 300))
def test_buckets_are_full(lengths: np.ndarray, budget: int) -> None:
    """In order of length, no batch could have taken the first example of the next one too."""
    batches = plan_batches(lengths, seed=0, split="s", epoch=0, batch_tokens=budget, shuffle=False)
    for batch, following in pairwise(batches):
        assert (len(batch) + 1) * lengths[following[0]] > budget


@quick
@given(LENGTHS, st.integers(1, 20), st.booleans())
def test_batches_of_a_size(lengths: np.ndarray, size: int, drop_last: bool) -> None:
    batches = plan_batches(lengths, seed=0, split="train", epoch=0, batch_size=size, drop_last=drop_last)
    assert all(len(batch) == size for batch in batches[:-1])
    seen = np.concatenate(batches)
    assert len(set(seen.tolist())) == len(seen)
    missing = len(lengths) - len(seen)
    assert missing == (len(lengths) % size if drop_last and len(lengths) >= size else 0)


@quick
@given(LENGTHS, st.integers(0, 2**31 - 1), st.integers(0, 100), st.sampled_from([None, 100]))
def test_the_order_is_a_function(lengths: np.ndarray, seed: int, epoch: int, budget: int | None) -> None:
    """Nothing that was drawn before, here or elsewhere, changes it."""
    first = plan_batches(lengths, seed=seed, split="train", epoch=epoch, batch_size=4, batch_tokens=budget)
    np.random.rand(17)
    plan_batches(lengths, seed=seed, split="train", epoch=epoch + 1, batch_size=4, batch_tokens=budget)
    again = plan_batches(lengths, seed=seed, split="train", epoch=epoch, batch_size=4, batch_tokens=budget)
    assert lists(first) == lists(again)


def test_seed_split_and_epoch_all_matter() -> None:
    lengths = np.full(64, 5)
    plans = [
        lists(plan_batches(lengths, seed=seed, split=split, epoch=epoch, batch_size=8))
        for seed, split, epoch in ((0, "train", 0), (1, "train", 0), (0, "test", 0), (0, "train", 1))
    ]
    assert all(one != other for i, one in enumerate(plans) for other in plans[:i])


def test_the_order_is_the_same_in_every_process_and_version() -> None:
    """Written down once: with another order, a run saved before could not be resumed."""
    plan = plan_batches(np.arange(1, 13), seed=3, split="train", epoch=2, batch_tokens=24)
    assert lists(plan) == [[4, 5, 6], [11], [0, 1, 2, 3], [9, 10], [7, 8]]


@quick
@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=12), min_size=1, max_size=10))
def test_padding_marks_what_is_real(rows: list[list[int]]) -> None:
    padded_BL, real_BL = pad([np.array(row) for row in rows], padding=0)
    longest = max(map(len, rows))
    assert padded_BL.shape == (len(rows), longest)
    if real_BL is None:
        assert all(len(row) == longest for row in rows)
    else:
        assert real_BL.sum(1).tolist() == [len(row) for row in rows]
        assert (padded_BL[~real_BL] == 0).all()
    assert [row[: len(given)].tolist() for row, given in zip(padded_BL, rows, strict=True)] == rows
