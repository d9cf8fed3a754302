"""Predictions over HTTP: every task type as `Run.predict`, batches, errors per input, and wrong requests."""

from __future__ import annotations

import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from glassformer.models.task_types import TaskType
from glassformer.runs.run import Run
from glassformer.serving.app import ROUTES

from .conftest import TASKS, Running


def test_every_task_type_is_tested(server: Running) -> None:
    tested = {type(served.task.task_type) for served in server.service.runs.values()}
    assert tested == set(TaskType.__subclasses__())


def close(first: Any, second: Any) -> bool:
    """Compare two predictions: equal, but for rounding of the probabilities."""
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(close(first[key], second[key]) for key in first)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(close, first, second))
    if isinstance(first, float) and isinstance(second, float):
        return abs(first - second) <= 1e-5
    return bool(first == second)


@pytest.mark.parametrize("name", TASKS)
def test_every_task_is_predicted_as_by_the_run(server: Running, name: str) -> None:
    served = server.run(name)
    assert served.examples
    expected = json.loads(json.dumps(served.run.predict(served.examples)))
    found = server.post("/v1/predict", {"run": name, "inputs": served.examples})
    assert found["run"] == name and close(found["predictions"], expected)
    one = server.post("/v1/predict", {"run": name, "inputs": served.examples[0]})
    assert len(one["predictions"]) == 1 and close(one["predictions"][0], expected[0])


@pytest.mark.parametrize("name", ["classification", "translation", "masked", "arithmetic", "play"])
def test_answers_do_not_depend_on_the_batch(server: Running, name: str) -> None:
    """Send many requests at once; each reply must be that of the request alone."""
    examples = server.run(name).examples
    alone = [server.post("/v1/predict", {"run": name, "inputs": text}) for text in examples]
    sizes = server.service.metrics.batch_size._counts.copy()
    with ThreadPoolExecutor(16) as pool:
        asked = [number % len(examples) for number in range(32)]
        replies = list(
            pool.map(
                lambda number: server.post("/v1/predict", {"run": name, "inputs": examples[number]}), asked
            )
        )
    assert all(close(reply, alone[number]) for number, reply in zip(asked, replies, strict=True))
    key = (("model", name),)
    assert sizes[key] is server.service.metrics.batch_size._counts[key]
    assert sum(sizes[key][1:]) > 0  # some batches had more than one input


def test_an_input_that_cannot_be_read_has_an_error_of_its_own(server: Running) -> None:
    good = server.run("reversal").examples[0]
    found = server.post("/v1/predict", {"run": "reversal", "inputs": [good, "no digits", good]})[
        "predictions"
    ]
    assert [each["error"] is None for each in found] == [True, False, True]
    # The server may have put the two into batches of different sizes.
    assert found[1]["output"] is None and close(found[0], found[2])


def test_the_warning_about_single_tokens_is_per_request(server: Running) -> None:
    single = server.post("/v1/predict", {"run": "tokens", "inputs": ["1", "2"]})["predictions"]
    assert all("one token" in each["warning"] for each in single)
    listed = server.post("/v1/predict", {"run": "tokens", "inputs": [["1", "2"]]})["predictions"]
    assert listed[0]["input"] == "1 2" and listed[0]["warning"] is None


def test_decoding_options(server: Running) -> None:
    text = server.run("translation").examples[0]
    body = {"run": "translation", "inputs": text, "decoding": {"kind": "beam", "size": 3, "n_best": 3}}
    assert len(server.post("/v1/predict", body)["predictions"][0]["candidates"]) == 3


@pytest.mark.parametrize(
    ("body", "status", "path", "message"),
    [
        ({"inputs": "x"}, 400, "run", "name one"),
        ({"run": "nothing", "inputs": "x"}, 404, "run", "no run of this name"),
        ({"run": "reversal"}, 400, "inputs", "a value is required"),
        ({"run": "reversal", "inputs": 5}, 400, "inputs", "a text or a list of inputs"),
        ({"run": "reversal", "inputs": []}, 400, "inputs", "at least 1"),
        ({"run": "reversal", "inputs": [1]}, 400, "inputs.0", "a text or a list of tokens"),
        ({"run": "reversal", "inputs": ["x", ["y", 3]]}, 400, "inputs.1.1", "string"),
        ({"run": "reversal", "inputs": ["x"] * 257}, 400, "inputs", "at most 256"),
        ({"run": "reversal", "inputs": "x" * 20_001}, 400, "inputs", "at most 20000"),
        ({"run": "reversal", "input": "x"}, 400, "input", "unknown option"),
        ({"run": "reversal", "inputs": "1", "decoding": {"kind": "beam"}}, 400, "decoding", "token by token"),
        ({"run": "translation", "inputs": "x", "decoding": {"kind": "bean"}}, 400, "decoding.kind", ""),
        ({"run": "translation", "inputs": "x", "decoding": {}}, 400, "decoding.kind", "required"),
        (
            {"run": "translation", "inputs": "x", "decoding": {"kind": "beam", "sizes": 3}},
            400,
            "decoding.sizes",
            "",
        ),
        (
            {"run": "translation", "inputs": "x", "decoding": {"kind": "beam", "size": 65}},
            400,
            "decoding.size",
            "",
        ),
        ([], 400, "", "not a JSON object"),
    ],
)
def test_wrong_requests(server: Running, body: Any, status: int, path: str, message: str) -> None:
    found, error = server.refused("/v1/predict", body)
    assert (found, error["path"]) == (status, path) and message in error["message"]
    assert error["hint"] or error["allowed"]


@pytest.mark.parametrize(
    ("route", "body", "name"),
    [
        ("predict", {"model": "reversal", "inputs": "1"}, "run"),
        ("attention", {"model": "reversal", "input": "1"}, "run"),
        ("completions", {"run": "play", "prompt": "a"}, "model"),
    ],
)
def test_the_other_name_of_the_run_is_suggested(server: Running, route: str, body: Any, name: str) -> None:
    status, error = server.refused(f"/v1/{route}", body)
    found = {detail["path"]: detail["hint"] for detail in error.get("details", [error])}
    assert status == 400 and any(f"use {name}:" in hint for hint in found.values()), error


def test_bodies_that_are_not_json(server: Running) -> None:
    json_type = {"Content-Type": "application/json"}
    assert server.refused("/v1/predict", b"{", headers=json_type)[0] == 400
    assert server.refused("/v1/predict", b'{"inputs": NaN}', headers=json_type)[0] == 400
    assert server.refused("/v1/predict", b"[" * 100_000, headers=json_type)[0] == 400
    assert server.refused("/v1/predict", b"{}", headers={"Content-Type": "text/plain"})[0] == 415
    too_long = json_type | {"Content-Length": str((1 << 20) + 1)}
    status, error = server.refused("/v1/predict", b"{", headers=too_long)
    assert status == 413 and "1,048,576 bytes" in error["hint"]


@pytest.mark.parametrize("path", ["/v1/predict", "/v1/completions", "/translate"])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_that_is_too_large_gets_its_reply(server: Running, path: str, is_chunked: bool) -> None:
    """The client still sends when the reply is decided; a reset connection would hide the reply."""
    piece, count = b"x" * (1 << 16), 96
    asking = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    length = {} if is_chunked else {"Content-Length": str(count * len(piece))}
    asking.request("POST", path, (piece for _ in range(count)), length | {"Content-Type": "application/json"})
    reply = asking.getresponse()
    document = json.loads(reply.read())
    error = document.get("detail") or document["error"]
    assert reply.status == 413 and error["type"] == "invalid_request_error" and error["hint"]
    assert (path == "/translate") == isinstance(document["error"], str)
    asking.close()


def test_whole_numbers_may_have_a_fraction_of_zero(server: Running) -> None:
    text = server.run("translation").examples[0]
    for size in ("2", "2.0", "2e0", "20e-1"):
        body = json.dumps({"run": "translation", "inputs": text, "decoding": {"kind": "beam", "size": "N"}})
        body = body.replace('"N"', size)
        status, _, reply = server.request(
            "POST", "/v1/predict", body.encode(), {"Content-Type": "application/json"}
        )
        assert status == 200, reply


def test_a_request_that_only_the_model_refuses_has_a_code(server: Running) -> None:
    """A client can tell its own mistake from a text that this model cannot read."""
    limit = {"run": "reversal", "inputs": "1", "decoding": "greedy"}
    assert server.refused("/v1/predict", limit)[1]["code"] == "unsupported_by_model"
    mistake = {"run": "reversal", "inputs": "1", "decoding": "greed"}
    assert server.refused("/v1/predict", mistake)[1]["code"] is None


def test_unknown_endpoints_and_methods(server: Running) -> None:
    status, error = server.refused("/v1/chat/completions", {})
    assert status == 404 and "/v1/completions" in error["hint"]
    status, headers, _ = server.request("GET", "/v1/predict")
    assert status == 405 and "POST" in headers["allow"]


def test_models_can_be_listed(server: Running) -> None:
    listed = server.get("/v1/models")["data"]
    assert [each["id"] for each in listed] == list(TASKS)
    assert server.get("/v1/models/translation") == next(
        each for each in listed if each["id"] == "translation"
    )
    assert server.request("GET", "/v1/models/nothing")[0] == 404
    by_name = {each["id"]: each for each in listed}
    assert by_name["translation"]["languages"] == ["en", "fr"]
    assert "/v1/completions" in by_name["play"]["endpoints"]
    assert by_name["reversal"]["endpoints"] == ["/v1/predict", "/v1/attention"]


def test_attention_maps_are_those_of_the_run(server: Running) -> None:
    served: Any = server.run("translation")
    run: Run = served.run
    text = served.examples[0]
    found = server.post("/v1/attention", {"run": "translation", "input": text, "site": "cross"})
    maps = run.attention(text, site="cross").sites["cross"]
    assert list(found["sites"]) == ["cross"] and found["checks"]["passed"]
    assert close(found["sites"]["cross"]["weights"], maps.weights.astype(float).tolist())
    assert found["sites"]["cross"]["keys"] == maps.keys
    one = server.post("/v1/attention", {"run": "translation", "input": text, "layers": [1], "heads": [0]})
    assert one["sites"]["encoder"]["layers"] == [1] and len(one["sites"]["encoder"]["weights"]) == 1


def test_attention_maps_are_bounded(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    from glassformer.serving import limits

    text = server.run("translation").examples[0]
    monkeypatch.setattr(limits, "CELLS", 200)
    status, error = server.refused("/v1/attention", {"run": "translation", "input": text})
    assert status == 400 and "weights" in error["message"] and "layers [0]" in error["hint"]
    status, error = server.refused("/v1/attention", {"run": "reversal", "input": "no digits"})
    assert status == 400


def test_prometheus_reads_the_metrics(server: Running) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    server.get("/v1/models/play")
    server.request("GET", '/nothing"%0a%22')
    server.post("/v1/completions", {"model": "play", "prompt": "R", "max_tokens": 2})
    families = list(parser.text_string_to_metric_families(server.request("GET", "/metrics")[2].decode()))
    assert all(family.documentation and family.name.startswith("glassformer_") for family in families)
    by_name = {family.name: family for family in families}
    kinds = {name.removeprefix("glassformer_"): family.type for name, family in by_name.items()}
    assert kinds == {
        "requests": "counter",
        "request_seconds": "histogram",
        "batch_size": "histogram",
        "queue_length": "gauge",
        "inputs": "counter",
        "tokens": "counter",
        "model_failures": "counter",
    }
    endpoints = {sample.labels["endpoint"] for sample in by_name["glassformer_requests"].samples}
    assert (
        {"/v1/completions", "/v1/models/{model}", "other"}
        <= endpoints
        <= {
            *(path.replace(":path", "") for path in ROUTES),
            "other",
        }
    )
    seconds = by_name["glassformer_request_seconds"].samples
    for endpoint in endpoints:
        counts = [each.value for each in seconds if each.labels == {"endpoint": endpoint}]
        buckets = [each.value for each in seconds if each.labels.items() > {"endpoint": endpoint}.items()]
        assert buckets == sorted(buckets) and buckets[-1] in counts


def test_health_and_metrics(server: Running) -> None:
    assert server.get("/health")["status"] == "ok"
    server.post("/v1/predict", {"run": "reversal", "inputs": server.run("reversal").examples[0]})
    status, headers, body = server.request("GET", "/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = body.decode().splitlines()
    assert 'glassformer_queue_length{model="reversal"} 0' in lines
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(values['glassformer_tokens_total{direction="input",model="reversal"}']) > 0
    for name in ("request_seconds", "batch_size"):
        buckets = [line for line in lines if line.startswith(f"glassformer_{name}_bucket")]
        assert buckets and any('le="+Inf"' in line for line in buckets)
    assert all(line.startswith(("# HELP", "# TYPE", "glassformer_")) for line in lines)
