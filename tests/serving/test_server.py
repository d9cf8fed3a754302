"""The server as a whole: the verb, the gate, the token, shutdown, the page, and the OpenAPI document."""

from __future__ import annotations

import http.client
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from glassformer.cli import main
from glassformer.serving.app import DEFAULT_PORT, ROUTES, STATIC, Server

from .conftest import Running, serving

HERE = Path(__file__).parent
TOKEN = "a-token-of-this-test"
OPEN = {"/", "/health", *STATIC}
"""Paths that need no token on loopback."""
PATHS = [
    *(path.replace("{name:path}", "try.js").replace("{model:path}", "play") for path in ROUTES),
    *sorted(STATIC),
    "/nothing",
    "/static/nothing.js",
]


@pytest.fixture(scope="module")
def guarded(trained: dict[str, Path]) -> Iterator[Running]:
    with serving({"play": trained["play"]}, token=TOKEN) as running:
        yield running


@pytest.mark.parametrize("path", dict.fromkeys(PATHS))
def test_every_path_needs_the_token(guarded: Running, path: str) -> None:
    for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"):
        for token in ("", "wrong", f"{TOKEN}x"):
            status, headers, _ = guarded.request(
                method, path, b"{}", {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            )
            assert "default-src 'none'" in headers["content-security-policy"]
            assert "access-control-allow-origin" not in headers
            allowed = [*ROUTES.get(path, {"GET": None}), "HEAD"]
            if path in OPEN:
                assert status in (200, 405)
            elif path in ("/translate", "/languages", "/detect") and method not in allowed:
                assert status == 405
            elif path == "/translate":
                # The key is in the body, and this body is wrong anyway.
                assert status == (400 if method == "POST" else 405)
            elif path == "/detect":
                assert status in (404, 405)
            else:
                assert status == 401, (method, path)


def test_with_the_token(guarded: Running) -> None:
    assert guarded.get("/v1/models")["data"][0]["id"] == "play"
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{guarded.url}/v1", api_key=TOKEN, max_retries=0)
    assert client.completions.create(model="play", prompt="R", max_tokens=3).choices[0].text
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="wrong", max_retries=0).models.list()
    assert guarded.get("/openapi.json")["security"] == [{"token": []}]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "evil.example:8780"}, 421),
        ({"Host": "localhost"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
def test_pages_of_other_sites_are_refused(server: Running, headers: dict[str, str], status: int) -> None:
    """A page in the user's browser can neither read nor use a server without a token."""
    assert server.request("GET", "/v1/models", headers=headers)[0] == status
    body = json.dumps({"run": "reversal", "inputs": "1"}).encode()
    json_type = {"Content-Type": "application/json"}
    assert server.request("POST", "/v1/predict", body, headers | json_type)[0] == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "models.example.org", "Origin": "https://models.example.org"}, 200),
        ({"Origin": "https://models.example.org", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Host": "models.example.org"}, 200),
        ({"Origin": "http://models.example.org"}, 403),
        ({"Origin": "https://models.example.org.evil.example"}, 403),
        ({"Origin": ""}, 403),
        ({"Host": "evil.example"}, 421),
        ({"Host": "models.example.org", "Origin": "https://models.example.org", "Authorization": "no"}, 401),
    ],
)
def test_behind_a_proxy(trained: dict[str, Path], headers: dict[str, str], status: int) -> None:
    """A proxy with TLS keeps the Host header or sets its own; the origin is the one browsers see."""
    url = "https://models.example.org"
    with serving({"reversal": trained["reversal"]}, token=TOKEN, public_url=url) as running:
        body = json.dumps({"inputs": "1"}).encode()
        json_type = {"Content-Type": "application/json"}
        assert running.request("POST", "/v1/predict", body, json_type | headers)[0] == status


def test_without_a_proxy_no_origin_is_empty(server: Running) -> None:
    assert server.request("GET", "/v1/models", headers={"Origin": ""})[0] == 403


def test_the_page_and_its_files(server: Running) -> None:
    status, headers, page = server.request("GET", "/")
    assert status == 200 and headers["content-type"].startswith("text/html")
    text = page.decode()
    assert "http://" not in text and "https://" not in text and "<style" not in text and "onclick" not in text
    for path in STATIC:
        assert path in text or path == "/static/scale.css"
        status, _, body = server.request("GET", path)
        assert status == 200 and b"http" + b"://" not in body.replace(b"http://www.w3.org", b"")
    script = server.request("GET", "/static/try.js")[2].decode()
    assert "innerHTML" not in script and "insertAdjacentHTML" not in script and "eval(" not in script
    for name in ("../app.py", "%2e%2e/app.py", "nothing.js"):
        assert server.request("GET", f"/static/{name}")[0] == 404


def test_the_openapi_document_names_every_endpoint(server: Running) -> None:
    document = server.get("/openapi.json")
    assert document["openapi"].startswith("3.1")
    described = {path.replace("{model}", "{model:path}") for path in document["paths"]}
    assert described == set(ROUTES) - {"/", "/static/{name:path}", "/openapi.json", "/detect"}
    references = set()

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            references.update([node["$ref"]] if "$ref" in node else [])
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(document)
    names = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references <= names
    body = document["components"]["schemas"]["PredictBody"]
    assert body["properties"]["run"]["enum"] == list(server.service.runs) and "run" in body["required"]


def test_requests_of_the_page_are_answered(trained: dict[str, Path], server: Running) -> None:
    """docs/serve.md shows complete commands. Their runs have the names of the fixture."""
    page = (HERE.parents[1] / "docs" / "serve.md").read_text(encoding="utf-8")
    blocks = re.findall(r"<!-- request -->\n```sh\n(.*?)```", page, re.DOTALL)
    replies = []
    for block in blocks:
        _, url, *options = shlex.split(block.replace("\\\n", " "))
        assert url.startswith(f"http://127.0.0.1:{DEFAULT_PORT}/") and options[-2] == "-d"
        replies.append(
            server.post(url.removeprefix(f"http://127.0.0.1:{DEFAULT_PORT}"), json.loads(options[-1]))
        )
    predicted, completed, translation, attention = replies
    assert [each["error"] for each in predicted["predictions"]] == [None, None]
    assert completed["choices"][0]["text"] and len(translation["alternatives"]) == 2
    assert all(site["heads"] == [0] for site in attention["sites"].values())
    endpoints = set(re.findall(r"`(?:GET|POST) (/[^`]*)`", page))
    assert endpoints == {path for path in ROUTES if "{" not in path and path != "/detect"}


@contextmanager
def started(*arguments: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Context: the verb in a process of its own, and the JSON object that it prints when it is ready."""
    command = [sys.executable, "-m", "glassformer", "serve", "--json", "--port", "0", *arguments]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | variables,
        # A background job of a shell ignores SIGINT, and its children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline() or "{}")
        finally:
            process.kill()


def test_the_printed_command_works_and_sigterm_ends_normally(trained: dict[str, Path]) -> None:
    runs = [str(trained["reversal"]), f"words={trained['language-model']}"]
    with started(*runs, "--verbose", GLASSFORMER_TOKEN=TOKEN) as (process, document):
        assert document["token"] == TOKEN and document["runs"]["words"]["endpoints"][-1] == "/v1/completions"
        commands: list[str] = []
        assert process.stderr is not None
        while len(commands) < 2:
            line = process.stderr.readline()
            assert line, commands
            commands += [line.removeprefix("try ").strip()] if line.startswith("try ") else []
        for command in commands:
            replied = subprocess.run(
                [*shlex.split(command), "-s"], capture_output=True, text=True, check=True
            )
            assert json.loads(replied.stdout)["predictions"][0]["error"] is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        rest = process.stderr.read()
        assert "200" in rest and "POST /v1/predict" in rest and "all open requests are finished" in rest
        assert process.stdout is not None and process.stdout.read() == "" and "Traceback" not in rest


def test_sigterm_lets_open_requests_finish(trained: dict[str, Path]) -> None:
    with started(str(trained["play"])) as (process, document):
        body = {"model": "play", "prompt": "ROM", "max_tokens": 600, "temperature": 0, "stream": True}
        asking = http.client.HTTPConnection("127.0.0.1", document["port"], timeout=60)
        json_type = {"Content-Type": "application/json"}
        asking.request("POST", "/v1/completions", json.dumps(body).encode(), json_type)
        reply = asking.getresponse()
        first = reply.readline()
        process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", document["port"]), timeout=5)
        rest = first + reply.read()
        assert rest.endswith(b"data: [DONE]\n\n") and b'"finish_reason": "length"' in rest
        assert process.wait(60) == 0


@pytest.mark.thorough
def test_requests_that_take_too_long_are_cut_off(trained: dict[str, Path]) -> None:
    """Stop a server whose stream cannot end in time: it says so, and the model does not keep it alive."""
    runs = [str(trained["play"]), "--drain-seconds", "1", "--max-batch", "2"]
    with started(*runs) as (process, document):
        body = {"model": "play", "prompt": "ROM", "max_tokens": 4096, "n": 16, "stream": True}
        asking = http.client.HTTPConnection("127.0.0.1", document["port"], timeout=60)
        asking.request(
            "POST", "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        reply = asking.getresponse()
        first = reply.readline()
        process.send_signal(signal.SIGTERM)
        start = time.monotonic()
        assert process.wait(60) == 0 and time.monotonic() - start < 20
        assert first and process.stderr is not None
        said = process.stderr.read()
        assert "1 open request did not finish within 1 s" in said and "Traceback" not in said
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            reply.read()


def test_ctrl_c_ends_with_130(trained: dict[str, Path]) -> None:
    with started(str(trained["reversal"])) as (process, document):
        assert document["token"] is None
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "nothing"),
        (["RUN", "RUN"], "two runs have the same name"),
        (["=RUN"], "expected NAME=RUN"),
        (["RUN", "--port", "x"], "--port"),
        (["RUN", "--max-batch", "0"], "--max-batch"),
        (["RUN", "--queue", "0"], "--queue"),
        (["RUN", "--token", "short"], "at least 16"),
        (["RUN", "--languages", "english"], "--languages"),
        (["RUN", "--languages", "en:fr"], "does not translate"),
        (["RUN", "--languages", "other=en:fr"], "no run of this name"),
        (["RUN", "--checkpoint", "none"], "none"),
        (["RUN", "--engine", "ctranslate"], "did you mean 'ctranslate2'?"),
        (["RUN", "--engine", "other=ctranslate2"], "no run of this name"),
        (["RUN", "--engine", "ctranslate2"], "CTranslate2 cannot run this model"),
        (["RUN", "--public-url", "models.example.org"], "--public-url"),
        (["RUN", "--public-url", "https://models.example.org/models"], "without a path"),
        (["RUN", "--public-url", "https://[models"], "--public-url"),
    ],
)
def test_arguments_that_cannot_be(
    arguments: list[str], said: str, trained: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(trained["reversal"])
    assert main(["serve", *(word.replace("RUN", path) for word in arguments)]) == 2
    error = capsys.readouterr().err
    assert said in error and len(error.splitlines()) <= 5


def test_beyond_loopback_there_is_a_token_and_a_warning(
    trained: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Server, "serve", lambda self: self.socket.close())
    words = ["serve", str(trained["reversal"]), "--port", "0", "--json"]
    assert main([*words, "--host", "0.0.0.0"]) == 0
    output = capsys.readouterr()
    assert len(json.loads(output.out)["token"]) >= 32 and "WARNING" in output.err
    assert main(words) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["token"] is None and "WARNING" not in output.err
    assert main([*words, "--public-url", "https://Models.example.org/"]) == 0
    assert len(json.loads(capsys.readouterr().out)["token"]) >= 32
    for thread in threading.enumerate():
        if thread.name.startswith("Thread-") and "print_when_read" in thread.name:
            thread.join(20)


@pytest.mark.long
def test_schemathesis_finds_no_contradiction(server: Running, guarded: Running) -> None:
    """Send hundreds of generated requests, valid and invalid, and check the replies against the document."""
    pytest.importorskip("schemathesis")
    config, hooks = HERE / "schemathesis.toml", {"SCHEMATHESIS_HOOKS": "tests.serving.schemathesis_checks"}
    for running in (server, guarded):
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run"]
        command += [f"{running.url}/openapi.json", "--max-examples", "20", "--seed", "1"]
        command += ["--request-timeout", "300"]
        # Wrong tokens and wrong bodies have tests of their own; here replies must be as the document says.
        conformance = "status_code_conformance,content_type_conformance,response_schema_conformance"
        command += ["--checks", f"not_a_server_error,{conformance}", "--workers", "1"]
        command += ["--header", f"Authorization: Bearer {TOKEN}"] if running.token else []
        done = subprocess.run(
            command, capture_output=True, text=True, env=os.environ | hooks, cwd=HERE.parents[1]
        )
        lines = [line[:300] for line in done.stdout.splitlines()]
        assert done.returncode == 0, "\n".join(lines[-150:]) + done.stderr[-2000:]
