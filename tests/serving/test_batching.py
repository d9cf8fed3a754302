"""Batching: full queues, failures of a model, cancelled requests, and the end of the worker."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer.generation import GreedyConfig
from glassformer.generation.predict import PredictedText
from glassformer.serving.batching import Batcher, Call, Prediction
from glassformer.serving.limits import Settings
from glassformer.serving.metrics import Metrics
from glassformer.web.messages import Refusal

from .conftest import Running, serving


class Model:
    """Prediction function that records its batches, and waits if it is told to."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, inputs: Sequence[Any], decoding: Any) -> list[PredictedText]:
        self.batches.append(list(inputs))
        self.gate.wait(20)
        if "bad" in inputs:
            raise MemoryError
        return [PredictedText(text, None, [], text) for text in inputs]


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def batcher(model: Model) -> Iterator[Batcher]:
    made = Batcher("test", model, None, Settings(max_batch=4, queue=6, drain_seconds=10), Metrics())
    yield made
    model.gate.set()
    made.stop()


def hold(model: Model, batcher: Batcher) -> Prediction:
    """Let the worker wait inside a first batch."""
    model.gate.clear()
    first = Prediction(["first"], GreedyConfig())
    batcher.submit(first)
    while not model.batches:
        time.sleep(0.001)
    return first


def test_waiting_inputs_become_one_batch(model: Model, batcher: Batcher) -> None:
    first = hold(model, batcher)
    jobs = [Prediction([str(number)], GreedyConfig()) for number in range(6)]
    for job in jobs:
        batcher.submit(job)
    model.gate.set()
    assert [job.future.result(10)[0].text for job in jobs] == list("012345")
    assert first.future.result(10)[0].text == "first"
    assert model.batches == [["first"], ["0", "1", "2", "3"], ["4", "5"]]


def test_inputs_with_other_decoding_options_wait(model: Model, batcher: Batcher) -> None:
    from glassformer.generation import BeamConfig

    hold(model, batcher)
    decodings = [GreedyConfig(), BeamConfig(size=2), GreedyConfig(), BeamConfig(size=2)]
    jobs = [Prediction([str(number)], each) for number, each in enumerate(decodings)]
    batcher.submit(*jobs)
    model.gate.set()
    assert [job.future.result(10)[0].text for job in jobs] == list("0123")
    assert model.batches[1:] == [["0", "2"], ["1", "3"]]


def test_a_full_queue_refuses_all_of_a_request(model: Model, batcher: Batcher) -> None:
    hold(model, batcher)
    batcher.submit(Prediction(["a"] * 5, GreedyConfig()))
    with pytest.raises(Refusal) as refused:
        batcher.submit(Prediction(["b"], GreedyConfig()), Prediction(["c"], GreedyConfig()))
    assert refused.value.status == 503 and refused.value.headers["Retry-After"]
    assert batcher.queue_length == 5


def test_a_cancelled_request_is_not_computed(model: Model, batcher: Batcher) -> None:
    hold(model, batcher)
    gone, stays = Prediction(["gone"], GreedyConfig()), Prediction(["stays"], GreedyConfig())
    batcher.submit(gone, stays)
    assert gone.future.cancel()
    model.gate.set()
    assert stays.future.result(10)[0].text == "stays"
    assert model.batches[1:] == [["stays"]]


def test_only_the_request_with_the_cause_fails(model: Model, batcher: Batcher) -> None:
    hold(model, batcher)
    jobs = [Prediction([text], GreedyConfig()) for text in ("a", "bad", "b")]
    batcher.submit(*jobs)
    model.gate.set()
    assert jobs[0].future.result(10)[0].text == "a" and jobs[2].future.result(10)[0].text == "b"
    with pytest.raises(Refusal) as failed:
        jobs[1].future.result(10)
    assert failed.value.status == 500 and "out of memory" in failed.value.detail.message


def test_the_worker_finishes_what_waits(model: Model) -> None:
    batcher = Batcher("test", model, None, Settings(drain_seconds=10), Metrics())
    hold(model, batcher)
    last = Prediction(["last"], GreedyConfig())
    batcher.submit(last)
    threading.Timer(0.1, model.gate.set).start()
    batcher.stop()
    assert last.future.result(0)[0].text == "last"
    with pytest.raises(Refusal, match="shutting down"):
        batcher.submit(Prediction(["late"], GreedyConfig()))


def test_a_lone_client_does_not_wait(model: Model) -> None:
    batcher = Batcher("test", model, None, Settings(max_wait_ms=5000), Metrics())
    start = time.monotonic()
    for _ in range(3):
        job = Prediction(["a"], GreedyConfig())
        batcher.submit(job)
        job.future.result(10)
    assert time.monotonic() - start < 3
    batcher.stop()


def test_clients_do_not_form_groups_that_take_turns(model: Model) -> None:
    """The clients of a batch send their next requests at its end, and join those that waited meanwhile."""
    batcher = Batcher("test", model, None, Settings(max_batch=4, max_wait_ms=5000), Metrics())
    first = hold(model, batcher)
    waiting = Prediction(["waiting"], GreedyConfig())
    batcher.submit(waiting)
    time.sleep(0.5)
    model.gate.set()
    first.future.result(10)
    batcher.submit(again := Prediction(["again"], GreedyConfig()))
    assert again.future.result(10)[0].text == "again"
    assert model.batches == [["first"], ["waiting", "again"]]
    batcher.stop()


def test_no_wait_is_longer_than_the_last_batch(model: Model) -> None:
    batcher = Batcher("test", model, None, Settings(max_wait_ms=60_000), Metrics())
    jobs = [Prediction([text], GreedyConfig()) for text in "abc"]
    batcher.submit(*jobs)
    for job in jobs:
        job.future.result(10)
    start = time.monotonic()
    batcher.submit(alone := Prediction(["alone"], GreedyConfig()))
    alone.future.result(50)
    assert time.monotonic() - start < 20
    batcher.stop()


def test_single_calls_are_outside_of_the_fast_mode(model: Model) -> None:
    entered: list[bool] = []

    @contextmanager
    def fast_mode() -> Iterator[None]:
        entered.append(True)
        yield
        entered.append(False)

    batcher = Batcher("test", model, None, Settings(), Metrics(), fast_mode)
    seen = []
    for _ in range(2):
        batcher.submit(job := Prediction(["a"], GreedyConfig()))
        job.future.result(10)
        seen.append(entered[-1])
    batcher.submit(call := Call(lambda: seen.append(entered[-1])))
    call.future.result(10)
    batcher.stop()
    assert seen == [True, True, False] and entered == [True, False]


def test_a_bug_of_the_worker_ends_neither_it_nor_leaves_clients_waiting(
    model: Model, batcher: Batcher, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(batcher, "_count", lambda found: 1 / 0)
    batcher.submit(job := Prediction(["a"], GreedyConfig()))
    with pytest.raises(Refusal, match="division by zero"):
        job.future.result(10)
    assert "ZeroDivisionError" in capsys.readouterr().err
    monkeypatch.undo()
    batcher.submit(job := Prediction(["a"], GreedyConfig()))
    assert job.future.result(10)[0].text == "a"


@pytest.fixture
def broken(trained: dict[str, Path]) -> Iterator[Running]:
    """Server with models whose weights are NaN."""
    names = ("reversal", "classification", "regression", "translation", "play", "masked")
    with serving({name: trained[name] for name in names}) as server:
        for served in server.service.runs.values():
            for weight in served.run.model.parameters():
                torch.nn.init.constant_(weight, torch.nan)
        yield server


def test_a_model_that_diverged_is_an_error_500(broken: Running, server: Running) -> None:
    for name in broken.service.runs:
        body = {"run": name, "inputs": server.run(name).examples[0]}
        status, error = broken.refused("/v1/predict", body)
        assert status == 500 and "the model failed" in error["message"] and "NaN" in error["message"], name
        body = {"run": name, "input": server.run(name).examples[0]}
        status, error = broken.refused("/v1/attention", body)
        assert status == 500 and "NaN" in error["message"] and error["hint"], (name, error)
    status, error = broken.refused("/v1/completions", {"model": "play", "prompt": "ROM"})
    assert status == 500 and "NaN" in error["message"]
    body = {"model": "play", "prompt": "ROM", "stream": True}
    status, _, reply = broken.request("POST", "/v1/completions", body)
    event = json.loads(reply.decode().removeprefix("data: "))
    assert status == 200 and "NaN" in event["error"]["message"]
    assert broken.get("/health")["status"] == "ok"
    assert b'glassformer_model_failures_total{model="play"}' in broken.request("GET", "/metrics")[2]


def test_a_failing_prompt_does_not_end_other_streams(
    trained: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving({"play": trained["play"]}) as server:
        served = server.run("play")
        batch = served.batcher._batch
        assert batch is not None
        join = batch.join

        def fail_at(rows: Sequence[Any]) -> None:
            if any(row.max_tokens == 7 for row in rows):
                raise MemoryError
            join(rows)

        monkeypatch.setattr(batch, "join", fail_at)
        long = {"model": "play", "prompt": "ROM", "max_tokens": 300, "temperature": 0}
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(server.post, "/v1/completions", long)
            time.sleep(0.05)
            status, error = server.refused("/v1/completions", {**long, "max_tokens": 7})
            assert status == 500 and error["message"] == "out of memory"
            whole = running.result(60)
        assert whole["choices"][0]["text"] == server.post("/v1/completions", long)["choices"][0]["text"]


def test_a_busy_server_asks_to_retry(trained: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({"reversal": trained["reversal"]}, Settings(queue=2)) as server:
        served = server.run("reversal")
        predict, gate = served.batcher._predict, threading.Event()

        def slow(inputs: Sequence[Any], decoding: Any) -> list[PredictedText]:
            gate.wait(20)
            return predict(inputs, decoding)

        monkeypatch.setattr(served.batcher, "_predict", slow)
        with ThreadPoolExecutor(12) as pool:
            asked = [
                pool.submit(server.request, "POST", "/v1/predict", {"inputs": "1 2 3"}) for _ in range(12)
            ]
            time.sleep(0.5)
            gate.set()
            replies = [each.result() for each in asked]
        statuses = [status for status, _, _ in replies]
        assert statuses.count(200) >= 3 and set(statuses) == {200, 503}
        assert all(int(headers["retry-after"]) > 0 for status, headers, _ in replies if status == 503)
