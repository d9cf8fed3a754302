"""Batch plans: a function of seed, split and epoch, within the token budget, each example once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.data import batching
from glassformer.data.batching import generator, pad, plan_batches, shuffled

quick = settings(max_examples=60, deadline=None, derandomize=True)
LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=80).map(np.array)


def lists(batches: Sequence[np.ndarray]) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


@quick
@given(LENGTHS, st.integers(1, 300), st.integers(0, 3), st.booleans())
def test_a_budget_is_never_exceeded(lengths: np.ndarray, budget: int, epoch: int, shuffle: bool) -> None:
    """Only an example that is longer than the budget exceeds it, in a batch of its own."""
    batches = plan_batches(lengths, seed=0, split="train", epoch=epoch, batch_tokens=budget, shuffle=shuffle)
    for batch in batches:
        padded = len(batch) * lengths[batch].max()
        assert padded <= budget or len(batch) == 1
    assert sorted(np.concatenate(batches)) == list(range(len(lengths)))


@quick
@given(LENGTHS, st.integers(60, 300))
def test_buckets_are_full(lengths: np.ndarray, budget: int) -> None:
    """Sorted by length, no batch has room for the first example of the next one."""
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
    """Earlier random draws do not change the order."""
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
    """Recorded numbers: with another order, an older run could not be resumed."""
    plan = plan_batches(np.arange(1, 13), seed=3, split="train", epoch=2, batch_tokens=24)
    assert lists(plan) == [[4, 5, 6], [11], [0, 1, 2, 3], [9, 10], [7, 8]]


def planned_at_once(
    lengths: np.ndarray, seed: int, epoch: int, budget: int, shuffle: bool
) -> list[list[int]]:
    """Reference implementation with 8-byte indices: simple, slow and large."""
    random = generator(seed, "order", "train", epoch)
    order = random.permutation(len(lengths)) if shuffle else np.arange(len(lengths))
    batches: list[list[int]] = []
    for index in order[np.argsort(lengths[order], kind="stable")].tolist():
        if batches and lengths[index] * (len(batches[-1]) + 1) <= budget:
            batches[-1].append(index)
        else:
            batches.append([index])
    return [batches[turn] for turn in random.permutation(len(batches))] if shuffle else batches


@quick
@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=80),
    st.integers(1, 300),
    st.integers(0, 5),
    st.booleans(),
    st.sampled_from([np.int32, np.int64, np.uint16]),
)
def test_a_compact_plan_is_the_same_plan(
    lengths: list[int], budget: int, epoch: int, shuffle: bool, dtype: type
) -> None:
    """Recorded results depend on the order; sorting in blocks gives the same as one sort."""
    options = {"seed": 1, "epoch": epoch, "shuffle": shuffle}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batching, "EXAMPLES_PER_BLOCK", 7)
        plan = plan_batches(np.array(lengths, dtype), split="train", batch_tokens=budget, **options)
    assert lists(plan) == planned_at_once(np.array(lengths), budget=budget, **options)
    assert all(batch.dtype == np.int64 for batch in plan)


@pytest.mark.parametrize("count", [0, 1, 2, 1000, 70_000])
def test_an_order_of_int32_is_the_same_order(count: int) -> None:
    narrow, wide = (generator(3, "order") for _ in range(2))
    assert shuffled(count, narrow).tolist() == wide.permutation(count).tolist()
    assert narrow.random() == wide.random(), "and what is drawn next is the same"


@quick
@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=12), min_size=1, max_size=10))
def test_padding_returns_the_attention_mask(rows: list[list[int]]) -> None:
    padded_BL, attention_mask_BL = pad([np.array(row) for row in rows], padding=0)
    longest = max(map(len, rows))
    assert padded_BL.shape == (len(rows), longest)
    if attention_mask_BL is None:
        assert all(len(row) == longest for row in rows)
    else:
        assert attention_mask_BL.sum(1).tolist() == [len(row) for row in rows]
        assert (padded_BL[~attention_mask_BL] == 0).all()
    assert [row[: len(given)].tolist() for row, given in zip(padded_BL, rows, strict=True)] == rows
