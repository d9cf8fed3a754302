"""Batches at once write what they write one after another, and leave everything as it was."""

from __future__ import annotations

import errno
import io
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from glassformer.generation import (
    BeamConfig,
    GreedyConfig,
    Hypothesis,
    SampleConfig,
    generate,
    observing,
    side_by_side,
)
from glassformer.models.shapes import SequenceToSequence
from glassformer.models.transformer import TransformerConfig

BEGIN, END, VOCABULARY = 0, 1, 37


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
    return config.build(SequenceToSequence(VOCABULARY, 9, VOCABULARY, 20)).double().train()


@pytest.fixture
def batches() -> list[Tensor]:
    random = torch.Generator().manual_seed(1)
    return [torch.randint(2, VOCABULARY, (5, length), generator=random) for length in (9, 8, 7, 5, 4, 2, 1)]


@pytest.fixture(params=["copies", "threads"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whatever threads the test runner has."""
    monkeypatch.setattr(
        sys.modules[side_by_side.__module__], "_can_be_copied", lambda: request.param == "copies"
    )
    return request.param


def worker() -> tuple[int, int]:
    return os.getpid(), threading.get_ident()


@pytest.mark.parametrize("strategy", [GreedyConfig(), BeamConfig(size=3), SampleConfig()])
def test_it_is_what_one_after_another_gives(model, batches, strategy, way):
    def answer(tokens_BM: Tensor) -> tuple[list[list[Hypothesis]], tuple[int, int], int]:
        written = generate(model, {"tokens": tokens_BM}, begin=BEGIN, end=END, strategy=strategy)
        return written, worker(), torch.get_num_threads()

    done: list[int] = []
    together, workers, threads = zip(*side_by_side(model, answer, batches, done.append), strict=True)
    assert set(threads) == {1} and worker() not in workers
    assert ({pid for pid, _ in workers} == {os.getpid()}) == (way == "threads")
    assert done == list(range(1, len(batches) + 1))
    assert torch.get_num_threads() == 3
    assert all(module.training for module in model.modules())
    assert all(parameter.is_contiguous() for parameter in model.parameters())
    torch.set_num_threads(1)
    again, workers, _ = zip(*side_by_side(model, answer, batches), strict=True)
    assert again == together and set(workers) == {worker()}


def test_a_process_with_other_threads_is_not_copied(model, batches):
    is_over = threading.Event()
    thread = threading.Thread(target=is_over.wait)
    thread.start()
    assert set(side_by_side(model, lambda batch: os.getpid(), batches)) == {os.getpid()}
    is_over.set()
    thread.join()
    with Progress(console=Console(file=io.StringIO(), force_terminal=True)) as progress:
        threads = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
        is_alone = len(threads) == 1  # a test runner may have its own
        progress.add_task("decoding", total=None)
        pids = set(side_by_side(model, lambda batch: os.getpid(), batches))
    assert (os.getpid() not in pids) == is_alone


@pytest.mark.parametrize("way", ["copies"], indirect=True)
def test_a_copy_that_dies_is_told_and_none_is_left(model, batches, way):
    def answer(tokens_BM: Tensor) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    with pytest.raises(RuntimeError, match="has died, exit code -9"):
        side_by_side(model, answer, batches)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("way", ["copies"], indirect=True)
def test_where_no_copy_can_be_made_there_are_threads(model, batches, way, monkeypatch):
    def refuse() -> int:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(os, "fork", refuse)
    assert set(side_by_side(model, lambda batch: os.getpid(), batches)) == {os.getpid()}


def test_copies_end_with_the_process_that_asks(tmp_path):
    program = tmp_path / "asks.py"
    program.write_text(
        "import os, sys, time, torch\n"
        "from glassformer.generation import side_by_side\n"
        "torch.set_num_threads(2)\n"
        "def answer(item):\n"
        "    print(os.getpid(), flush=True)\n"
        "    time.sleep(0.5)\n"
        "side_by_side(torch.nn.Linear(1, 1), answer, range(100))\n"
    )
    asking = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True)
    assert asking.stdout is not None
    copies: set[int] = set()
    while len(copies) < 2:
        copies.add(int(asking.stdout.readline()))
    asking.kill()
    asking.wait()
    waiting_until = time.monotonic() + 30
    while any(Path(f"/proc/{copy}").exists() for copy in copies) and time.monotonic() < waiting_until:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{copy}").exists() for copy in copies)


def test_new_threads_get_all_cores_again(model, batches, way):
    side_by_side(model, len, batches)
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert found == [3]


def test_an_error_is_the_callers_and_the_mode_is_set_back(model, batches, way):
    def answer(tokens_BM: Tensor) -> int:
        if tokens_BM.shape[1] == 5:
            raise ValueError("no fives")
        return tokens_BM.shape[1]

    with pytest.raises(ValueError, match="no fives"):
        side_by_side(model, answer, batches)
    assert model.training and torch.get_num_threads() == 3


def test_what_is_observed_is_written_in_turn(model, batches):
    def answer(tokens_BM: Tensor) -> int:
        generate(model, {"tokens": tokens_BM}, begin=BEGIN, end=END)
        return threading.get_ident()

    with observing() as trace:
        assert set(side_by_side(model, answer, batches)) == {threading.get_ident()}
    assert len(trace.rows) == len(batches[-1])
