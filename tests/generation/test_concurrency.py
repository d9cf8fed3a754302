"""Concurrent batches generate the same as sequential ones, and restore the model's mode and threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits
from torch import Tensor

from glassformer.generation import (
    BeamConfig,
    GreedyConfig,
    Hypothesis,
    SampleConfig,
    cpu,
    generate,
    round_robin,
    run_concurrently,
    tracing,
)
from glassformer.models.task_types import Seq2Seq
from glassformer.models.transformer import TransformerConfig

BEGIN, END, VOCABULARY = 0, 1, 37


@pytest.fixture(autouse=True)
def no_other_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget users of NumPy that other tests of this process have not ended yet, such as served models."""
    monkeypatch.setattr(cpu, "_numpy_users", 0)


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    config = TransformerConfig(num_layers=2, num_heads=2, hidden_dim=16, feed_forward_dim=24, dropout=0.5)
    return config.build(Seq2Seq(VOCABULARY, 9, VOCABULARY, 20)).double().train()


@pytest.fixture
def batches() -> list[Tensor]:
    random = torch.Generator().manual_seed(1)
    return [torch.randint(2, VOCABULARY, (5, length), generator=random) for length in (9, 8, 7, 5, 4, 2, 1)]


@pytest.fixture(params=[False, True], ids=["PyTorch's products", "NumPy's"])
def uses_numpy(request, monkeypatch):
    monkeypatch.setattr(cpu, "numpy_is_faster", lambda: request.param)
    return request.param


def test_the_end_of_numpy_matmul_keeps_the_threads_of_its_own_thread(monkeypatch):
    monkeypatch.setattr(cpu, "numpy_is_faster", lambda: True)
    block = cpu.numpy_matmul()

    def enter() -> None:
        torch.set_num_threads(1)
        block.__enter__()

    entering = threading.Thread(target=enter)
    entering.start()
    entering.join()
    torch.set_num_threads(3)  # the other thread has lowered the default
    block.__exit__(None, None, None)
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize("strategy", [GreedyConfig(), BeamConfig(size=3), SampleConfig()])
def test_concurrent_equals_sequential(model, batches, strategy, uses_numpy):
    seen: set[tuple[int, int]] = set()

    def run(tokens_BM: Tensor) -> list[list[Hypothesis]]:
        seen.add((threading.get_ident(), torch.get_num_threads()))
        return generate(model, {"tokens": tokens_BM}, begin=BEGIN, end=END, strategy=strategy)

    done: list[int] = []
    together = run_concurrently(model, run, batches, done.append)
    assert {threads for _, threads in seen} == {1} and threading.get_ident() not in dict(seen)
    assert done == list(range(1, len(batches) + 1))
    assert torch.get_num_threads() == 3
    assert all(module.training for module in model.modules())
    assert all(parameter.is_contiguous() for parameter in model.parameters())
    torch.set_num_threads(1)
    seen.clear()
    assert run_concurrently(model, run, batches) == together
    assert seen == {(threading.get_ident(), 1)}


def approximately(found: list[list[Hypothesis]]) -> list[list[tuple[list[int], Any]]]:
    return [[(h.tokens, pytest.approx(h.log_probabilities, abs=1e-9)) for h in row] for row in found]


@pytest.mark.parametrize("strategy", [GreedyConfig(), BeamConfig(size=3)])
def test_numpy_generates_what_pytorch_generates(model, batches, strategy, monkeypatch):
    used: list[int] = []

    def run(tokens_BM: Tensor) -> list[list[Hypothesis]]:
        used.append(cpu.use_numpy(torch.ones(1)))
        attention_mask_BM = tokens_BM % 5 > 0
        attention_mask_BM[:, 0] = tokens_BM.shape[1] > 4  # the shortest rows may have no real token
        inputs = {"tokens": tokens_BM, "mask": attention_mask_BM}
        return generate(model, inputs, begin=BEGIN, end=END, strategy=strategy)

    generated = {}
    for is_faster in (False, True):
        monkeypatch.setattr(cpu, "numpy_is_faster", lambda is_faster=is_faster: is_faster)
        used.clear()
        generated[is_faster] = run_concurrently(model, run, batches)
        assert set(used) == {is_faster}
    assert not cpu.use_numpy(torch.ones(1))
    for mine, theirs in zip(generated[True], generated[False], strict=True):
        assert [[(h.tokens, h.log_probabilities) for h in row] for row in mine] == approximately(theirs)


def test_numpy_has_one_thread_then_and_as_many_as_before_afterwards(model, batches, monkeypatch):
    monkeypatch.setattr(cpu, "numpy_is_faster", lambda: True)

    def threads(_: object = None) -> set[int]:
        return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

    with threadpool_limits(2, user_api="blas"):
        before = threads()
        assert set().union(*run_concurrently(model, threads, batches)) == {1}
        assert threads() == before


def test_round_robin_has_every_row_once_in_parts_of_similar_size():
    assert round_robin(range(7), 3) == [[0, 3, 6], [1, 4], [2, 5]]
    assert round_robin("ab", 3) == [["a"], ["b"]]
    assert round_robin([], 3) == []


def test_new_threads_get_all_cores_again(model, batches):
    run_concurrently(model, len, batches)
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert found == [3]


def test_an_error_is_the_callers_and_the_mode_is_set_back(model, batches):
    def run(tokens_BM: Tensor) -> int:
        if tokens_BM.shape[1] == 5:
            raise ValueError("no fives")
        return tokens_BM.shape[1]

    with pytest.raises(ValueError, match="no fives"):
        run_concurrently(model, run, batches)
    assert model.training and torch.get_num_threads() == 3


def test_traced_batches_run_sequentially(model, batches):
    def run(tokens_BM: Tensor) -> int:
        generate(model, {"tokens": tokens_BM}, begin=BEGIN, end=END)
        return threading.get_ident()

    with tracing() as trace:
        assert set(run_concurrently(model, run, batches)) == {threading.get_ident()}
    assert len(trace.rows) == len(batches[-1])
