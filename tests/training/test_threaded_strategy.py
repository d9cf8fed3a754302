"""A step in parts, a thread each, against the whole step; and what is drawn does not depend on threads."""

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

from glassformer.core.threads import ThreadPool
from glassformer.data.batching import Examples, collate_seq2seq, split_balanced
from glassformer.training import strategies
from glassformer.training.strategies import ThreadedStrategy, can_learn_in_parts
from glassformer.training.trainer import Trainer

MakeTrainer = Callable[..., Trainer]


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step is worth four parts, if it has so many examples."""
    monkeypatch.setattr(strategies, "WORTH_PARTING", 0.0)
    monkeypatch.setattr(ThreadedStrategy, "parts", lambda self, lengths: min(4, len(lengths)))


@pytest.fixture(params=[1, 3])
def threads(request: Any) -> Iterator[int]:
    before = torch.get_num_threads()
    yield request.param
    torch.set_num_threads(before)


def weights_after(trainer: Trainer, steps: int) -> dict[str, Tensor]:
    trainer.model.train()
    groups = trainer._groups()
    for _ in range(steps):
        trainer.step(next(groups))
    return {name: weight.clone() for name, weight in trainer.model.state_dict().items()}


def test_parts_give_the_whole_gradient(
    make_trainer: MakeTrainer, ragged_task: Any, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {
        "model.dropout": 0.0,
        "training.optimizer.kind": "sgd",
        "training.batch_size": 20,
        "training.threads": threads,
    }
    whole, parted = make_trainer(options, ragged_task), make_trainer(options, ragged_task)
    plan = whole.plan(0)[0]
    (batch,) = whole.batches(plan, 0)
    whole.step([batch])
    monkeypatch.setattr(strategies, "WORTH_PARTING", 0.0)
    monkeypatch.setattr(parted.strategy, "parts", lambda lengths: 4)
    names: set[str] = set()
    score = parted.strategy.score
    monkeypatch.setattr(
        parted.strategy, "compute_loss", lambda *a: (names.add(threading.current_thread().name), score(*a))[1]
    )
    parted.step(parted.batches(plan, 0))
    assert len(parted.batches(plan, 0)) == 4
    assert all(name.startswith("training" if threads > 1 else "MainThread") for name in names)
    for (name, one), other in zip(whole.model.named_parameters(), parted.model.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-5, atol=1e-7, msg=name)
    assert parted.state.recent_losses == pytest.approx(whole.state.recent_losses, rel=1e-6)
    assert parted.state.window.correct == whole.state.window.correct
    assert parted.state.tokens == whole.state.tokens
    assert torch.get_num_threads() == threads


def test_what_is_drawn_does_not_depend_on_threads(make_trainer: MakeTrainer, parts: None) -> None:
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


def test_the_same_seed_gives_the_same_bits(make_trainer: MakeTrainer, parts: None, threads: int) -> None:
    options = {"model.dropout": 0.5, "training.threads": threads}
    once, again = (weights_after(make_trainer(options), 5) for _ in range(2))
    other = weights_after(make_trainer({**options, "seed": 1}), 5)
    assert all(torch.equal(once[name], again[name]) for name in once)
    assert not all(torch.equal(once[name], other[name]) for name in once)


def test_it_is_resumed_to_the_bit(make_trainer: MakeTrainer, parts: None, threads: int) -> None:
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


def test_what_is_frozen_gets_no_gradient(make_trainer: MakeTrainer, parts: None, threads: int) -> None:
    trainer = make_trainer({"training.freeze": ["embedding"], "training.threads": threads})
    weights_after(trainer, 1)
    for name, parameter in trainer.model.named_parameters():
        assert (parameter.grad is None) == name.startswith("embedding"), name


def test_a_fault_in_a_part_is_a_fault_of_the_step(
    make_trainer: MakeTrainer, parts: None, threads: int, monkeypatch: pytest.MonkeyPatch
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


def test_a_worker_that_cannot_be_started_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_small_steps_stay_whole(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer()
    assert isinstance(trainer.strategy, ThreadedStrategy)
    assert len(next(trainer._groups())) == 1


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
def test_parts_are_a_power_of_two_that_grows_with_the_work(
    millions: float, tokens: int, examples: int, expected: int
) -> None:
    lengths = np.full(examples, tokens // examples)
    assert strategies.number_of_parts(int(millions * 1e6), lengths) == expected


@pytest.mark.parametrize("count, workers, expected", [(2, 2, 3), (4, 2, 4), (8, 1, 2), (16, 4, 6)])
def test_no_more_gradients_are_held_than_are_told(
    make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch, count: int, workers: int, expected: int
) -> None:
    assert strategies.gradients_held(count, workers) == expected
    monkeypatch.setattr(strategies, "WORTH_PARTING", 0.0)
    monkeypatch.setattr(ThreadedStrategy, "parts", lambda self, lengths: min(count, len(lengths)))
    before = torch.get_num_threads()
    trainer = make_trainer({"training.threads": workers, "training.batch_size": 16})
    begun, added, most = [0], [0], [0]
    score, add = trainer.strategy.score, strategies._add

    def counting_score(*arguments: Any) -> Any:
        begun[0] += 1
        most[0] = max(most[0], begun[0] - added[0])
        return score(*arguments)

    def counting_add(*arguments: Any) -> None:
        add(*arguments)
        added[0] += 1

    monkeypatch.setattr(trainer.strategy, "compute_loss", counting_score)
    monkeypatch.setattr(strategies, "_add", counting_add)
    try:
        weights_after(trainer, 2)
    finally:
        torch.set_num_threads(before)
    assert 1 + most[0] <= expected
    assert strategies.gradients_held(1, workers) == 1


@pytest.mark.parametrize("longer", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("parameters", [300_000, 600_000, 900_000, 10_000_000])
def test_what_is_parted_is_worked_on_side_by_side(
    make_trainer: MakeTrainer, longer: float, parameters: int
) -> None:
    """Also where the side by whose length batches are planned is not the one that is read."""
    parallel = make_trainer().parallel
    assert isinstance(parallel, ThreadedStrategy)
    parallel._parameters = parameters
    rng = np.random.default_rng(0)
    rows = [np.full(length, 3) for length in rng.integers(4, 60, 100)]
    targets = [np.full(int(longer * len(row)), 3) for row in rows]
    examples, indices = Examples(rows, targets), np.arange(100)
    count = parallel.parts(examples.lengths())
    parts = [collate_seq2seq(examples, part) for part in split_balanced(examples, indices, count)]
    assert len(parts) == count
    assert count == 1 or parallel._is_much(parts)


class OwnNoise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


def test_models_that_draw_otherwise_stay_whole(make_trainer: MakeTrainer) -> None:
    """One generator that several threads draw from would give each of them something else in each run."""
    model = make_trainer({"model.dropout": 0.5}).model
    assert can_learn_in_parts(model)
    assert not can_learn_in_parts(make_trainer({"model.attention_dropout": 0.1}).model)
    for module in (OwnNoise(), nn.Dropout(0.1), nn.AlphaDropout(0.1)):
        model.add_module("more", module)
        assert not can_learn_in_parts(model)


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_a_batch_falls_into_parts_of_like_work(count: int) -> None:
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


def test_examples_with_one_answer_are_parted_by_their_length() -> None:
    rows = [np.zeros(length, dtype=np.int64) for length in (5, 1, 9, 3)]
    short, long = split_balanced(Examples(rows, np.arange(4)), np.arange(4), 2)
    assert max(len(rows[i]) for i in short) <= min(len(rows[i]) for i in long)
