"""Access control: every route with every method and token, hosts, origins, sizes, paths out of the folder."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from glassformer.studio.app import ROUTES, Studio, create_app
from glassformer.studio.limits import INPUT_CHARACTERS
from glassformer.studio.runs import RunsFolder
from glassformer.web import limits
from glassformer.web.gate import Admission, Gate

TOKEN = "a-token-of-this-test"
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "BREW"]
OPEN = {"/", "/static/{name:path}", "/api/health"}
"""Paths without a token: they contain nothing of the user's."""
FILLED = {
    "{name:path}": "index.html",
    "{run}": "tiny",
    "{map}": "unknown",
    "{site}": "encoder",
    "{layer}": "0",
    "{head}": "0",
}


def filled(path: str) -> str:
    return re.sub(r"\{[^}]*\}", lambda match: FILLED[match[0]], path)


@pytest.mark.parametrize(
    "path", [*ROUTES, "/api/nothing", "/api/", "/api/runs/tiny/nothing", "/nothing", "/api"]
)
def test_every_route_with_every_method_and_token(stranger: TestClient, path: str) -> None:
    """Refuse everything without the token, even whether it exists; with it, accept only known routes."""
    for method in METHODS:
        for token in (None, "", "wrong", TOKEN[:-1], f"{TOKEN}x", TOKEN):
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            reply = stranger.request(method, filled(path), headers=headers)
            needs_token = path.startswith("/api/") and path not in OPEN
            if needs_token and token != TOKEN:
                assert reply.status_code == 401, (method, token)
                assert reply.headers["www-authenticate"] == "Bearer"
            elif path not in ROUTES:
                assert reply.status_code == 404, (method, token)
            elif method in ROUTES[path] or (method == "HEAD" and "GET" in ROUTES[path]):
                assert reply.status_code not in (401, 403, 405, 421, 500), (method, token)
            else:
                assert reply.status_code == 405, (method, token)
            assert_guarded(reply.headers)


def assert_guarded(headers: Any) -> None:
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy and "*" not in policy and "http:" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-opener-policy"] == "same-origin"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in headers
    assert headers["cache-control"] in ("no-store", "no-cache")
    assert "set-cookie" not in headers


@pytest.mark.parametrize(
    "value", ["Basic {}", "{}", "Bearer", "bearer  ", "Token {}", "Bearer {} {}", "Bearer,{}"]
)
def test_a_token_in_another_form_is_none(stranger: TestClient, value: str) -> None:
    headers = {"Authorization": value.format(TOKEN, TOKEN)}
    assert stranger.get("/api/studio", headers=headers).status_code == 401


def test_a_token_is_taken_from_nowhere_else(stranger: TestClient) -> None:
    assert stranger.get(f"/api/studio?token={TOKEN}").status_code == 401
    assert stranger.get("/api/studio", headers={"Cookie": f"token={TOKEN}"}).status_code == 401
    twice = [("Authorization", f"Bearer {TOKEN}"), ("Authorization", f"Bearer {TOKEN}")]
    assert stranger.get("/api/studio", headers=twice).status_code == 401
    assert stranger.get("/api/studio", headers={"Authorization": f"bearer {TOKEN}"}).status_code == 200


HOSTS = {
    "127.0.0.1:8770": True,
    "localhost:8770": True,
    "LOCALHOST:8770": True,
    "localhost.:8770": True,
    "[::1]:8770": True,
    "localhost:9999": True,  # the other end of a tunnel
    "localhost": True,
    "127.0.0.1": True,
    "evil.example": False,
    "evil.example:8770": False,
    "127.0.0.1.evil.example:8770": False,
    "localhost.evil.example:8770": False,
    "evil.example@127.0.0.1:8770": False,
    "127.0.0.1:8770@evil.example": False,
    "127.0.0.1:8770, evil.example": False,
    "127.0.0.1:8770 evil.example": False,
    "127.0.0.1:8770/": False,
    "127.0.0.1:port": False,
    "127.0.0.1:": False,
    "127.0.0.1:99999": False,
    "127.0.0.1:0": False,
    "127.0.0.1:-1": False,
    "192.168.0.7:8770": False,
    "0.0.0.0:8770": False,
    "[::ffff:127.0.0.1]:8770": False,
    "[::1": False,
    "": False,
    "\u0130localhost": False,
    "local\u212aost": False,
}


@pytest.mark.parametrize("host", HOSTS)
def test_hosts(client: TestClient, host: str) -> None:
    for path in ("/api/health", "/api/runs", "/"):
        reply = client.get(path, headers={"Host": host.encode()})
        if HOSTS[host]:
            assert reply.status_code in (200, 404)
        else:
            assert reply.status_code == 421


def test_two_hosts_are_none(client: TestClient) -> None:
    headers = [("Host", "127.0.0.1:8770"), ("Host", "127.0.0.1:8770")]
    assert client.get("/api/health", headers=headers).status_code == 421


ORIGINS = {
    "http://127.0.0.1:8770": True,
    "HTTP://127.0.0.1:8770": True,
    "https://127.0.0.1:8770": False,
    "http://127.0.0.1:8771": False,
    "http://127.0.0.1": False,
    "http://localhost:8770": False,
    "http://localhost:3000": False,
    "http://evil.example": False,
    "http://127.0.0.1:8770.evil.example": False,
    "http://evil.example#http://127.0.0.1:8770": False,
    "http://127.0.0.1:8770/": False,
    "http://user@127.0.0.1:8770": False,
    "null": False,
    "file://": False,
    "": False,
    "127.0.0.1:8770": False,
}


@pytest.mark.parametrize("origin", ORIGINS)
def test_origins(client: TestClient, origin: str) -> None:
    for method, path in (("GET", "/api/runs"), ("POST", "/api/runs"), ("GET", "/")):
        reply = client.request(method, path, headers={"Origin": origin})
        assert (reply.status_code != 403) == ORIGINS[origin], (method, path)


@pytest.mark.parametrize(
    ("site", "is_let_in"),
    [("same-origin", True), ("none", True), ("same-site", False), ("cross-site", False)],
)
def test_requests_of_another_site_are_refused(client: TestClient, site: str, is_let_in: bool) -> None:
    assert (client.get("/api/runs", headers={"Sec-Fetch-Site": site}).status_code == 200) == is_let_in
    assert client.get("/", headers={"Sec-Fetch-Site": site}).status_code in (200, 404)


def test_beyond_loopback_everything_of_the_interface_needs_the_token(studio: Studio) -> None:
    admission = Admission(TOKEN, "0.0.0.0")
    client = TestClient(create_app(studio, admission), base_url="http://192.168.0.7:8770")
    assert client.get("/api/health").status_code == 401
    assert client.get("/api/health", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    rebound = {"Host": "evil.example:8770", "Authorization": f"Bearer {TOKEN}"}
    assert client.get("/api/health", headers=rebound).status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_hosts(host: str) -> None:
    assert Admission(TOKEN, host).is_loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.0.7", "example.org", "::", ""])
def test_other_hosts_are_not_loopback(host: str) -> None:
    assert not Admission(TOKEN, host).is_loopback


WAYS_OUT = [
    "..",
    "../outside",
    "..%2foutside",
    "%2e%2e",
    "%2e%2e%2foutside",
    "..%5coutside",
    "%2fetc",
    "/etc",
    "tiny%2f..%2f..%2foutside",
    "tiny%00",
    ".studio",
    "%2e",
    "linked",
    "with-linked-config",
    "with-linked-checkpoints",
    "x" * 300,
    "é" * 200,
]


@pytest.mark.parametrize("name", WAYS_OUT)
def test_no_name_leads_out_of_the_runs(client: TestClient, runs: Path, name: str) -> None:
    outside = runs.parent / "outside"
    (runs / "tiny").rename(outside)
    (runs / "linked").symlink_to(outside)
    for which in ("config.yaml", "checkpoints"):
        run = runs / f"with-linked-{which.split('.')[0]}"
        run.mkdir()
        for entry in outside.iterdir():
            (run / entry.name).write_bytes(entry.read_bytes()) if entry.is_file() else None
        (run / which).unlink(missing_ok=True)
        (run / which).symlink_to(outside / which)
    for path in (f"/api/runs/{name}", f"/api/runs/{name}/events", f"/api/runs/{name}/film"):
        assert client.get(path).status_code == 404
    reply = client.post(f"/api/runs/{name}/attention", json={})
    assert reply.status_code in (404, 405)
    assert client.get("/api/runs").json()["runs"] == []


@pytest.mark.parametrize(
    "name",
    [
        "../app.py",
        "..%2fapp.py",
        "%2e%2e/app.py",
        "/etc/passwd",
        "x/../../app.py",
        ".hidden.js",
        "app.py",
        "",
        "a.js/",
    ],
)
def test_no_name_leads_out_of_the_page(stranger: TestClient, name: str) -> None:
    assert stranger.get(f"/static/{name}").status_code == 404


def test_a_long_address_is_refused(client: TestClient) -> None:
    assert client.get("/api/runs?" + "a" * limits.URL_BYTES).status_code == 414
    assert client.get("/" + "a" * limits.URL_BYTES).status_code == 414


def test_a_large_body_is_refused_by_its_promise(client: TestClient) -> None:
    reply = client.post("/api/form", content=b"x" * (limits.BODY_BYTES + 1))
    assert reply.status_code == 413 and reply.headers["connection"] == "close"


def test_a_large_body_is_refused_while_it_comes(client: TestClient) -> None:
    """Count a chunked body, which declares no length."""
    sent = 0

    def pieces() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(1000):
            sent += 1
            yield b" " * 4096

    headers = {"Content-Type": "application/json"}
    assert client.post("/api/form", content=pieces(), headers=headers).status_code == 413


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b"null", 400),
        (b'"x"', 400),
        (b"\xff\xfe", 400),
        (b'{"source": NaN}', 400),
        (b'{"source": 1}', 400),
        (b'{"source": "reversal", "more": 1}', 400),
        (b'{"source": "reversal", "values": []}', 400),
        (b"[" * 100_000, 400),
        (b'{"source": ' + b"9" * 10_000 + b"}", 400),
        (b'{"source": "../../etc/passwd"}', 404),
        (b'{"source": "reversal"}', 200),
    ],
)
def test_bodies(client: TestClient, body: bytes, status: int) -> None:
    reply = client.post("/api/form", content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code == status
    if status != 200:
        assert reply.json()["error"]["message"]


def test_a_body_that_is_not_json_by_its_type(client: TestClient) -> None:
    """Accept only JSON: a form of another site can send text without a preflight, but not JSON."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        reply = client.post("/api/form", content=b'{"source": "reversal"}', headers={"Content-Type": kind})
        assert reply.status_code == 415


def test_a_long_input_is_refused(client: TestClient) -> None:
    reply = client.post("/api/runs/tiny/attention", json={"input": "1 " * INPUT_CHARACTERS})
    assert reply.status_code == 400 and reply.json()["error"]["path"] == "input"


def test_an_input_that_looks_like_markup_stays_text(client: TestClient) -> None:
    reply = client.post("/api/runs/tiny/attention", json={"input": "<img src=x onerror=alert(1)>"})
    assert reply.status_code == 400 and reply.headers["content-type"] == "application/json"
    assert reply.headers["x-content-type-options"] == "nosniff"


def test_an_internal_error_reveals_nothing(client: TestClient, studio: Studio) -> None:
    def fails(self: RunsFolder) -> None:
        raise RuntimeError("a secret of the machine")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunsFolder, "table", fails)
        reply = client.get("/api/runs")
    assert reply.status_code == 500 and "secret" not in reply.text
    assert client.get("/api/runs").status_code == 200


async def _ask(app: Any, path: str) -> tuple[int, dict[bytes, bytes], bytes]:
    headers = [(b"host", b"127.0.0.1:8770"), (b"authorization", f"Bearer {TOKEN}".encode())]
    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b""}
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app({**scope, "headers": headers}, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"]


def test_too_many_requests_get_a_time_to_retry() -> None:
    import asyncio

    async def all_at_once() -> None:
        let_go = asyncio.Event()

        async def slow(scope: Any, receive: Any, send: Any) -> None:
            await let_go.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"done"})

        gate = Gate(slow, Admission(TOKEN))
        waiting = [asyncio.ensure_future(_ask(gate, "/api/runs")) for _ in range(limits.REQUESTS)]
        await asyncio.sleep(0)
        status, headers, body = await _ask(gate, "/api/runs")
        assert status == 503 and int(headers[b"retry-after"]) > 0
        assert json.loads(body)["error"]["hint"]
        let_go.set()
        assert [reply[0] for reply in await asyncio.gather(*waiting)] == [200] * limits.REQUESTS
        assert (await _ask(gate, "/api/runs"))[0] == 200

    with ThreadPoolExecutor(1) as pool:  # the browser of other tests has an event loop in this thread
        pool.submit(asyncio.run, all_at_once()).result()
