"""Threaded micro-batches against whole steps; random numbers do not depend on the number of threads."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from glassformer.core.system import ThreadPool
from glassformer.data.batching import Examples, collate_seq2seq, split_balanced
from glassformer.training import strategies
from glassformer.training.strategies import ThreadedStrategy, supports_threads
from glassformer.training.trainer import Trainer

MakeTrainer = Callable[..., Trainer]


@pytest.fixture
def split_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split every step with enough examples into four micro-batches."""
    monkeypatch.setattr(strategies, "MIN_FLOPS_TO_SPLIT", 0.0)
    monkeypatch.setattr(ThreadedStrategy, "count_micro_batches", lambda self, lengths: min(4, len(lengths)))


@pytest.fixture(params=[1, 3])
def threads(request: Any) -> Iterator[int]:
    before = torch.get_num_threads()
    yield request.param
    torch.set_num_threads(before)


def weights_after(trainer: Trainer, steps: int) -> dict[str, Tensor]:
    trainer.model.train()
    groups = trainer.step_batches()
    for _ in range(steps):
        trainer.step(next(groups))
    return {name: weight.clone() for name, weight in trainer.model.state_dict().items()}


def test_micro_batches_give_the_whole_gradient(
    make_trainer: MakeTrainer, ragged_task: Any, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {
        "model.dropout": 0.0,
        "training.optimizer.kind": "sgd",
        "training.batch_size": 20,
        "training.threads": threads,
    }
    whole, split = make_trainer(options, ragged_task), make_trainer(options, ragged_task)
    plan = whole.plan(0)[0]
    (batch,) = whole.micro_batches(plan, 0)
    whole.step([batch])
    monkeypatch.setattr(strategies, "MIN_FLOPS_TO_SPLIT", 0.0)
    monkeypatch.setattr(split.strategy, "count_micro_batches", lambda lengths: 4)
    names: set[str] = set()
    compute_loss = split.strategy.compute_loss
    monkeypatch.setattr(
        split.strategy,
        "compute_loss",
        lambda *a: (names.add(threading.current_thread().name), compute_loss(*a))[1],
    )
    split.step(split.micro_batches(plan, 0))
    assert len(split.micro_batches(plan, 0)) == 4
    assert all(name.startswith("training" if threads > 1 else "MainThread") for name in names)
    for (name, one), other in zip(whole.model.named_parameters(), split.model.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-5, atol=1e-7, msg=name)
    assert split.state.recent_losses == pytest.approx(whole.state.recent_losses, rel=1e-6)
    assert split.state.window.correct == whole.state.window.correct
    assert split.state.tokens == whole.state.tokens
    assert torch.get_num_threads() == threads


def test_random_numbers_do_not_depend_on_threads(make_trainer: MakeTrainer, split_steps: None) -> None:
    before = torch.get_num_threads()
    try:
        outcomes = [
            weights_after(make_trainer({"model.dropout": 0.5, "training.threads": count}), 5)
            for count in (1, 2, 3)
        ]
    finally:
        torch.set_num_threads(before)
    for other in outcomes[1:]:
        for name, weight in outcomes[0].items():
            torch.testing.assert_close(other[name], weight, rtol=1e-3, atol=1e-5, msg=name)


def test_the_same_seed_gives_the_same_bits(
    make_trainer: MakeTrainer, split_steps: None, threads: int
) -> None:
    options = {"model.dropout": 0.5, "training.threads": threads}
    once, again = (weights_after(make_trainer(options), 5) for _ in range(2))
    other = weights_after(make_trainer({**options, "seed": 1}), 5)
    assert all(torch.equal(once[name], again[name]) for name in once)
    assert not all(torch.equal(once[name], other[name]) for name in once)


def test_resume_is_exact(make_trainer: MakeTrainer, split_steps: None, threads: int) -> None:
    options = {"model.dropout": 0.5, "training.threads": threads}
    first = make_trainer(options)
    weights_after(first, 3)
    checkpoint = first.checkpoint()
    checkpoint.tensors["model"] = {name: x.clone() for name, x in checkpoint.tensors["model"].items()}
    checkpoint.tensors["optimizer"] = {name: x.clone() for name, x in checkpoint.tensors["optimizer"].items()}
    expected = weights_after(first, 3)
    resumed = make_trainer(options)
    resumed.restore(checkpoint)
    found = weights_after(resumed, 3)
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


def test_frozen_parameters_get_no_gradient(
    make_trainer: MakeTrainer, split_steps: None, threads: int
) -> None:
    trainer = make_trainer({"training.freeze": ["embedding"], "training.threads": threads})
    weights_after(trainer, 1)
    for name, parameter in trainer.model.named_parameters():
        assert (parameter.grad is None) == name.startswith("embedding"), name


def test_an_error_in_a_micro_batch_is_raised_by_the_step(
    make_trainer: MakeTrainer, split_steps: None, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer({"training.threads": threads})
    before = {name: weight.clone() for name, weight in trainer.model.state_dict().items()}

    def fail(*arguments: Any) -> Any:
        raise MemoryError("no more")

    monkeypatch.setattr(trainer.strategy, "compute_loss", fail)
    with pytest.raises(MemoryError, match="no more"):
        weights_after(trainer, 1)
    assert all(torch.equal(weight, before[name]) for name, weight in trainer.model.state_dict().items())
    assert torch.get_num_threads() == threads


def test_a_worker_that_cannot_start_blocks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, []

    def fail_at_second(thread: threading.Thread) -> None:
        if thread.name.startswith("few"):
            if started:
                raise RuntimeError("can't start new thread")
            started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail_at_second)
    before = torch.get_num_threads()
    with pytest.raises(RuntimeError, match="can't start"):
        ThreadPool(3, "few")
    assert torch.get_num_threads() == before
    gc.collect()
    started[0].join(timeout=30)
    assert not started[0].is_alive()


def test_small_steps_are_not_split(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer()
    assert isinstance(trainer.strategy, ThreadedStrategy)
    assert len(next(trainer.step_batches())) == 1


@pytest.mark.parametrize(
    "millions, tokens, examples, expected",
    [
        (0.1, 2048, 64, 1),
        (2, 2048, 64, 2),
        (8, 2048, 64, 4),
        (80, 2048, 64, 4),
        (80, 8192, 64, 16),
        (80, 8192, 3, 2),
        (80, 8192, 1, 1),
        (80, 512, 64, 1),
        (1, 100_000, 64, 16),
    ],
)
def test_the_number_of_micro_batches_is_a_power_of_two_that_grows_with_the_work(
    millions: float, tokens: int, examples: int, expected: int
) -> None:
    lengths = np.full(examples, tokens // examples)
    assert strategies.count_micro_batches(int(millions * 1e6), lengths) == expected


@pytest.mark.parametrize("count, workers, expected", [(2, 2, 3), (4, 2, 4), (8, 1, 2), (16, 4, 6)])
def test_no_more_gradients_are_held_than_estimated(
    make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch, count: int, workers: int, expected: int
) -> None:
    assert strategies.count_gradient_copies(count, workers) == expected
    monkeypatch.setattr(strategies, "MIN_FLOPS_TO_SPLIT", 0.0)
    monkeypatch.setattr(
        ThreadedStrategy, "count_micro_batches", lambda self, lengths: min(count, len(lengths))
    )
    before = torch.get_num_threads()
    trainer = make_trainer({"training.threads": workers, "training.batch_size": 16})
    begun, added, most = [0], [0], [0]
    compute_loss, add = trainer.strategy.compute_loss, strategies._add_gradients

    def counting_loss(*arguments: Any) -> Any:
        begun[0] += 1
        most[0] = max(most[0], begun[0] - added[0])
        return compute_loss(*arguments)

    def counting_add(*arguments: Any) -> None:
        add(*arguments)
        added[0] += 1

    monkeypatch.setattr(trainer.strategy, "compute_loss", counting_loss)
    monkeypatch.setattr(strategies, "_add_gradients", counting_add)
    try:
        weights_after(trainer, 2)
    finally:
        torch.set_num_threads(before)
    assert 1 + most[0] <= expected
    assert strategies.count_gradient_copies(1, workers) == 1


@pytest.mark.parametrize("longer", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("parameters", [300_000, 600_000, 900_000, 10_000_000])
def test_micro_batches_run_concurrently(make_trainer: MakeTrainer, longer: float, parameters: int) -> None:
    """Also where batches are planned by the length of the other side of a pair."""
    strategy = make_trainer().strategy
    assert isinstance(strategy, ThreadedStrategy)
    strategy._parameters = parameters
    rng = np.random.default_rng(0)
    rows = [np.full(length, 3) for length in rng.integers(4, 60, 100)]
    targets = [np.full(int(longer * len(row)), 3) for row in rows]
    examples, indices = Examples(rows, targets), np.arange(100)
    count = strategy.count_micro_batches(examples.lengths())
    micro_batches = [collate_seq2seq(examples, part) for part in split_balanced(examples, indices, count)]
    assert len(micro_batches) == count
    assert count == 1 or strategy._is_worth_threads(micro_batches)


class OwnNoise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


def test_models_with_other_random_numbers_are_not_split(make_trainer: MakeTrainer) -> None:
    """A generator shared by threads would give other numbers in each run."""
    model = make_trainer({"model.dropout": 0.5}).model
    assert supports_threads(model)
    assert not supports_threads(make_trainer({"model.attention_dropout": 0.1}).model)
    for module in (OwnNoise(), nn.Dropout(0.1), nn.AlphaDropout(0.1)):
        model.add_module("more", module)
        assert not supports_threads(model)


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_a_batch_is_split_into_balanced_work(count: int) -> None:
    rng = np.random.default_rng(0)
    rows = [np.zeros(length, dtype=np.int64) for length in rng.integers(1, 40, 300)]
    targets = [np.zeros(length, dtype=np.int64) for length in rng.integers(1, 40, 300)]
    examples, indices = Examples(rows, targets), rng.permutation(300)[:200]
    found = split_balanced(examples, indices, count)
    assert len(found) == count
    assert sorted(np.concatenate(found)) == sorted(indices)
    sizes = [[len(rows[i]) + len(targets[i]) for i in part] for part in found]
    assert all(max(small) <= min(large) for small, large in pairwise(sizes))
    work = [sum(part) for part in sizes]
    assert max(work) - min(work) <= 2 * 80


def test_examples_with_one_target_are_split_by_length() -> None:
    rows = [np.zeros(length, dtype=np.int64) for length in (5, 1, 9, 3)]
    short, long = split_balanced(Examples(rows, np.arange(4)), np.arange(4), 2)
    assert max(len(rows[i]) for i in short) <= min(len(rows[i]) for i in long)
