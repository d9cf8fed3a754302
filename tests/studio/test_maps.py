"""Attention maps over HTTP: bytes and exact rows equal the tensor, files equal those of the command."""

from __future__ import annotations

import io
import json
import shlex
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from glassformer.cli import main
from glassformer.inspection.maps import AttentionMaps, Checks, SiteMaps
from glassformer.plotting.attention import to_bytes
from glassformer.runs.run import Run
from glassformer.studio import limits
from glassformer.studio.app import Studio
from glassformer.studio.maps import MapStore
from glassformer.web.messages import Refusal

INPUT = "1 2 3 0 1 2"


@pytest.fixture
def asked(client: TestClient) -> dict[str, Any]:
    reply = client.post("/api/runs/tiny/attention", json={"input": INPUT})
    assert reply.status_code == 200
    document: dict[str, Any] = reply.json()
    return document


def make_maps(shape: tuple[int, int, int, int], *, is_causal: bool = False) -> AttentionMaps:
    layers, heads, queries, keys = shape
    weights = np.random.default_rng(0).dirichlet(np.ones(keys), (layers, heads, queries)).astype(np.float32)
    allowed = np.tril(np.ones((1, 1, queries, keys), dtype=bool)) if is_causal else None
    site = SiteMaps(
        "self-attention",
        weights,
        allowed,
        list(range(layers)),
        list(range(heads)),
        [f"q{number}" for number in range(queries)],
        [f"={number}" for number in range(keys)],
        "query token",
        "key token",
    )
    return AttentionMaps({"encoder": site}, Checks(0, 0, 1))


def test_attention_is_that_of_the_run(client: TestClient, runs: Path, asked: dict[str, Any]) -> None:
    maps = Run(runs / "tiny").attention(INPUT)
    site = asked["sites"]["encoder"]
    assert asked["about"] == maps.about and asked["checks"] == [list(line) for line in maps.checks.lines()]
    assert site["queries"] == INPUT.split() and site["layers"] == [0] and site["heads"] == [0, 1]
    assert site["statistics"]["patterns"]["anti-diagonal"]["mass"] and "maps" not in site
    for head in range(2):
        address = f"/api/maps/{asked['map']}/encoder/0/{head}"
        reply = client.get(address)
        assert reply.headers["content-type"] == "application/octet-stream"
        assert reply.content == to_bytes(maps["encoder"].weights[0, head], None).tobytes()
        rows = client.get(f"{address}/rows?start=1&stop=4").content
        assert np.frombuffer(rows, "<f4").tolist() == maps["encoder"].weights[0, head, 1:4].ravel().tolist()


def test_a_large_map_travels_small(client: TestClient, studio: Studio) -> None:
    maps = make_maps((1, 1, 1000, 1000), is_causal=True)
    reply = client.get(f"/api/maps/{studio.maps.add(maps)}/encoder/0/0", headers={"Accept-Encoding": "gzip"})
    assert reply.headers["content-encoding"] == "gzip" and int(reply.headers["content-length"]) < 1 << 20
    cells = np.frombuffer(reply.content, np.uint8).reshape(1000, 1000)
    assert (cells[np.triu_indices(1000, 1)] == 0).all() and (cells[np.tril_indices(1000)] > 0).all()
    plain = client.get(f"/api/maps/{studio.maps.add(maps)}/encoder/0/0", headers={"Accept-Encoding": ""})
    assert "content-encoding" not in plain.headers and plain.content == reply.content


NOT_THERE = ["encoder/1/0", "encoder/0/2", "decoder/0/0", "encoder/0/0/rows?start=0&stop=99"]
NOT_THERE += ["encoder/0/0/rows?start=3&stop=3", "encoder/0/0/rows?start=5&stop=1"]
NO_NUMBERS = ["encoder/x/0", "encoder/-1/0", "encoder/0/0/rows", "encoder/0/0/rows?start=x"]


def test_maps_that_are_not_there(client: TestClient, asked: dict[str, Any]) -> None:
    for path in NOT_THERE + NO_NUMBERS:
        reply = client.get(f"/api/maps/{asked['map']}/{path}")
        assert reply.status_code == (404 if path in NOT_THERE else 400), path
        assert reply.json()["error"]["message"]


def test_files_are_those_of_the_verb(
    client: TestClient, runs: Path, asked: dict[str, Any], tmp_path: Path
) -> None:
    address = f"/api/maps/{asked['map']}/export"
    for ending in ("svg", "html"):
        out = tmp_path / f"map.{ending}"
        assert main(["attention", str(runs / "tiny"), INPUT, "--out", str(out)]) == 0
        reply = client.get(f"{address}?format={ending}")
        assert reply.content == out.read_bytes()
        assert reply.headers["content-disposition"].startswith("attachment")
    assert client.get(f"{address}?format=png").content.startswith(b"\x89PNG")
    xml.etree.ElementTree.fromstring(client.get(f"{address}?format=svg").content)
    npz = np.load(io.BytesIO(client.get(f"{address}?format=npz&site=encoder&head=1").content))
    expected = Run(runs / "tiny").attention(INPUT)["encoder"].weights[:, 1:]
    assert np.array_equal(npz["encoder.weights"], expected)
    assert json.loads(str(npz["about"]))["sites"]["encoder"]["heads"] == [1]


def test_a_table_of_cells(client: TestClient, studio: Studio) -> None:
    maps = make_maps((1, 2, 3, 3), is_causal=True)
    address = f"/api/maps/{studio.maps.add(maps)}/export?format=csv&site=encoder&layer=0&head=1"
    lines = client.get(address).text.splitlines()
    assert len(lines) == 1 + 9
    site, layer, head, query, query_token, key, key_token, weight = lines[4].split(",")
    assert (site, layer, head, query, query_token, key) == ("encoder", "0", "1", "1", "q1", "0")
    assert key_token == "'=0"  # a spreadsheet would evaluate it
    assert float(weight) == pytest.approx(float(maps["encoder"].weights[0, 1, 1, 0]), rel=1e-6)
    assert lines[2].endswith(",")  # masked


def test_a_table_that_would_be_too_long(client: TestClient, studio: Studio) -> None:
    address = f"/api/maps/{studio.maps.add(make_maps((1, 3, 1000, 1000)))}/export?format=csv"
    reply = client.get(address)
    assert reply.status_code == 400 and "npz" in reply.json()["error"]["hint"]


def test_files_that_cannot_be(client: TestClient, asked: dict[str, Any]) -> None:
    for query in ("format=exe", "format=", "format=png&head=0", "format=../x"):
        reply = client.get(f"/api/maps/{asked['map']}/export?{query}")
        assert reply.status_code == 400 and reply.json()["error"]["message"]


def test_the_longest_unused_maps_go_when_there_is_no_room() -> None:
    maps = make_maps((1, 1, 10, 10))
    store = MapStore(max_bytes=3 * maps["encoder"].weights.nbytes)
    names = [store.add(maps) for _ in range(3)]
    store.get(names[0])
    names.append(store.add(maps))
    with pytest.raises(Refusal):
        store.get(names[1])
    for name in (names[0], names[2], names[3]):
        assert store.get(name) is maps
    large = make_maps((1, 1, 100, 100))
    assert store.get(store.add(large)) is large  # the newest maps stay, however large


def test_untrained_other_checkpoints_and_parts(client: TestClient, runs: Path) -> None:
    body = {"input": INPUT, "untrained": True, "layers": [0], "heads": [1], "rows": [1, 3]}
    document = client.post("/api/runs/tiny/attention", json=body).json()
    assert document["about"]["checkpoint"] == "untrained"
    site = document["sites"]["encoder"]
    assert site["heads"] == [1] and site["first_query"] == 1 and len(site["queries"]) == 2
    name = client.get("/api/runs/tiny").json()["checkpoints"][0]["name"]
    document = client.post("/api/runs/tiny/attention", json={"checkpoint": name}).json()
    assert document["about"]["checkpoint"] == name
    reply = client.post("/api/runs/tiny/attention", json={"checkpoint": "step-7"})
    assert reply.status_code == 400 and name in reply.json()["error"]["allowed"]


def test_the_command_draws_the_same_map(client: TestClient, tmp_path: Path, monkeypatch: Any) -> None:
    body = {"input": INPUT, "heads": [1], "rows": [0, 2], "untrained": True}
    document = client.post("/api/runs/tiny/attention", json=body).json()
    monkeypatch.chdir(tmp_path)
    program, *words = shlex.split(document["command"])
    words[words.index("map.png")] = "map.npz"
    assert program == "glassformer" and main(words) == 0
    saved = AttentionMaps.load(tmp_path / "map.npz")["encoder"]
    rows = client.get(f"/api/maps/{document['map']}/encoder/0/0/rows?start=0&stop=2").content
    assert np.array_equal(np.frombuffer(rows, "<f4"), saved.weights.ravel())


def test_an_introduction_comes_when_it_is_ready(client: TestClient) -> None:
    for _ in range(100):
        document = client.get("/api/runs/tiny").json()
        if not document["is_pending"]:
            break
    assert document["sites"] == {"encoder": {"layers": 1, "heads": 2}}
    assert 0 < len(document["examples"]) <= 8
    assert document["generates"] is False and document["decoding"] == []
    for text in document["examples"]:
        assert client.post("/api/runs/tiny/attention", json={"input": text}).status_code == 200


def test_a_full_queue_gives_a_time_to_retry(client: TestClient, studio: Studio) -> None:
    import threading
    from concurrent.futures import ThreadPoolExecutor

    let_go = threading.Event()

    def ask(_: int) -> int:
        return client.post("/api/runs/tiny/attention", json={"input": INPUT}).status_code

    async def block() -> None:
        studio.worker.submit(let_go.wait)

    assert client.portal is not None
    client.portal.call(block)
    with ThreadPoolExecutor(limits.QUEUED_JOBS + 8) as pool:
        replies = [pool.submit(ask, number) for number in range(limits.QUEUED_JOBS + 4)]
        while sum(reply.done() for reply in replies) < 3:
            assert client.get("/api/health").status_code == 200  # other requests do not wait
        let_go.set()
        found = [reply.result() for reply in replies]
    assert found.count(503) >= 3 and found.count(200) >= limits.QUEUED_JOBS - 1
