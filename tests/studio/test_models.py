"""What the page asks of a model is what the Python interface answers."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from glassformer.cli import main
from glassformer.documents import finite
from glassformer.trained import Run

INPUT = "1 2 3 0 1 2"


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, (list, tuple)) else value


def ask(client: TestClient, what: str, **body: Any) -> dict[str, Any]:
    reply = client.post(f"/api/runs/tiny/{what}", json=body)
    assert reply.status_code == 200, reply.text
    document: dict[str, Any] = reply.json()
    return document


def test_trace(client: TestClient, runs: Path) -> None:
    document = ask(client, "trace", input=INPUT, alternatives=3)
    expected = finite(Run(runs / "tiny").trace(INPUT, alternatives=3).document())
    assert rounded({key: document[key] for key in expected}) == rounded(expected)
    assert document["attention"]["map"] == document["map"]
    assert client.get(f"/api/maps/{document['map']}/encoder/0/0").status_code == 200


def test_heads_are_measured_once(client: TestClient, runs: Path) -> None:
    assert client.get("/api/runs/tiny/heads?examples=8").status_code == 404
    document = ask(client, "heads", examples=8)
    assert document["examples"] == 8 and document["untrained"].keys() == document["places"].keys()
    assert client.get("/api/runs/tiny/heads?examples=8").json() == document
    assert client.get("/api/runs/tiny/heads").status_code == 404


@pytest.mark.parametrize("how", ["zero", "mean"])
def test_a_head_switched_off(client: TestClient, runs: Path, how: str) -> None:
    document = ask(client, "intervene", kind="head", layer=0, head=1, how=how, examples=8, input=INPUT)
    expected = Run(runs / "tiny").switch_off("encoder", 0, 1, how, 8, text=INPUT).document()
    assert rounded({key: document[key] for key in expected}) == rounded(expected)
    assert document["trust"] == "cause" and document["answer"]


def test_an_edge_cut_and_a_token_hidden(client: TestClient, runs: Path) -> None:
    document = ask(client, "intervene", kind="edge", input=INPUT, query=1, key=2, head=1)
    expected = Run(runs / "tiny").cut_edge(INPUT, "encoder", 0, 1, 1, 2).document()
    assert rounded({key: document[key] for key in expected}) == rounded(expected)
    document = ask(client, "intervene", kind="token", input=INPUT, key=2, examples=8)
    expected = Run(runs / "tiny").occlude(INPUT, 2, 8).document()
    assert rounded({key: document[key] for key in expected}) == rounded(expected)


@pytest.mark.parametrize(
    ("what", "body"),
    [
        ("intervene", {"kind": "nothing"}),
        ("intervene", {"kind": "head", "layer": 9}),
        ("intervene", {"kind": "head", "place": "cross"}),
        ("intervene", {"kind": "edge", "input": INPUT, "query": 99}),
        ("intervene", {"kind": "token", "input": INPUT, "key": 99}),
        ("intervene", {"kind": "head", "examples": 10**9}),
        ("intervene", {"kind": "head", "how": "gently"}),
        ("trace", {"input": "x y z"}),
        ("trace", {"alternatives": 0}),
        ("trace", {"decoding": {"kind": "beam", "size": 10**9}}),
        ("trace", {"decoding": {"kind": "nothing"}}),
        ("attention", {"decoding": {"kind": ["a"]}}),
        ("attention", {"branch": 3}),
        ("attention", {"layers": [9]}),
        ("attention", {"rows": [5]}),
        ("heads", {"examples": 0}),
        ("heads", {"checkpoint": "../../etc"}),
    ],
)
def test_what_cannot_be_is_told(client: TestClient, what: str, body: dict[str, Any]) -> None:
    reply = client.post(f"/api/runs/tiny/{what}", json=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["problem"]


def test_a_film(client: TestClient, runs: Path) -> None:
    document = client.get("/api/runs/tiny/film").json()
    assert [point[0] for point in document["loss"]] == list(range(1, 25))
    assert [item["step"] for item in document["checkpoints"]] == sorted(
        item["step"] for item in document["checkpoints"]
    )
    assert document["scores"] == []


@pytest.mark.parametrize(
    ("what", "body"),
    [
        ("trace", {"input": INPUT, "alternatives": 2}),
        ("heads", {"examples": 8, "checkpoint": "latest"}),
        ("intervene", {"kind": "head", "head": 1, "how": "zero", "examples": 8, "input": INPUT}),
        ("intervene", {"kind": "edge", "input": INPUT, "query": 1, "key": 4}),
        ("intervene", {"kind": "token", "input": INPUT, "key": 2, "examples": 8}),
    ],
)
def test_the_command_says_the_same(
    client: TestClient, what: str, body: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    document = ask(client, what, **body)
    program, *words = shlex.split(document["command"])
    capfd.readouterr()
    assert program == "glassformer" and main([words[0], "--json", *words[1:]]) == 0
    printed = json.loads(capfd.readouterr().out)
    shared = printed.keys() & document.keys()
    assert {"trust"} < shared
    assert rounded({key: printed[key] for key in shared}) == rounded({key: document[key] for key in shared})
