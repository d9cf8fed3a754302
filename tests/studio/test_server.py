"""The studio on a real socket: command, shutdown, and clients that are slow or never read."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from glassformer.cli import main
from glassformer.studio.app import DEFAULT_PORT, Server
from glassformer.web import limits
from glassformer.web.gate import Admission
from glassformer.web.listening import listen

TOKEN = "a-token-of-this-test"


class Running:
    """Server in a thread of this process."""

    def __init__(self, server: Server) -> None:
        self.port = server.port or 0
        self._server = server.uvicorn()
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [server.socket]})

    def __enter__(self) -> Running:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.should_exit = True
        self._thread.join()

    def ask(self, path: str = "/api/runs", *, seconds: float = 20) -> tuple[int, float]:
        """Return the status and the seconds until the reply."""
        start = time.monotonic()
        asking = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        asking.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"})
        status = asking.getresponse().status
        asking.close()
        return status, time.monotonic() - start

    def open(self, data: bytes = b"", *, room: int | None = None) -> socket.socket:
        opened = socket.socket()
        opened.settimeout(20)
        if room is not None:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        opened.connect(("127.0.0.1", self.port))
        opened.sendall(data)
        return opened

    @property
    def connections(self) -> int:
        return len(self._server.server_state.connections)


@pytest.fixture
def server(runs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr(limits, "HEAD_SECONDS", 0.5)
    monkeypatch.setattr(limits, "BODY_SECONDS", 0.5)
    monkeypatch.setattr(limits, "WRITE_SECONDS", 0.5)
    with Running(Server(runs, Admission(TOKEN), 0)) as running:
        yield running


def is_closed(opened: socket.socket) -> bool:
    with contextlib.suppress(ConnectionError):
        while opened.recv(1 << 16):
            pass
    return True


HEAD = f"Host: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n".encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"G",
        b"GET /api/runs HTTP/1.1\r\n",
        b"GET /api/runs HTTP/1.1\r\n" + HEAD,
        b"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /api",
    ],
)
def test_a_silent_client_is_disconnected(server: Running, data: bytes) -> None:
    with server.open(data) as opened:
        assert is_closed(opened)
    assert server.ask()[0] == 200


def test_a_slow_head_is_disconnected(server: Running) -> None:
    with server.open(b"GET /api/runs HTTP/1.1\r\n") as opened:
        start = time.monotonic()
        with pytest.raises(ConnectionError):
            while True:
                opened.sendall(b"X-Drip: 1\r\n")
                time.sleep(0.05)
                assert time.monotonic() - start < 15


def test_a_body_that_never_arrives_is_refused(server: Running) -> None:
    with server.open(b"POST /api/form HTTP/1.1\r\n" + HEAD + b"Content-Length: 100\r\n\r\n{") as opened:
        assert opened.recv(1 << 16).startswith(b"HTTP/1.1 408 ")
        assert is_closed(opened)


@pytest.mark.parametrize(
    "promise", [b"Content-Length: 1073741824\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"]
)
def test_a_gigabyte_is_not_read(server: Running, promise: bytes) -> None:
    piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n" if b"chunked" in promise else b"x" * 0x10000
    sent = 0
    start = b"POST /api/form HTTP/1.1\r\n" + HEAD + promise + b"\r\n\r\n"
    with server.open(start) as opened, contextlib.suppress(ConnectionError):
        while sent < 1 << 30:
            opened.sendall(piece)
            sent += len(piece)
    assert sent < 64 << 20  # only what the system buffers
    assert server.ask()[0] == 200


def test_a_client_that_never_reads_is_disconnected(server: Running) -> None:
    request = b"GET /static/plotly.min.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with server.open(request * 4, room=4096) as opened:
        time.sleep(0.2)
        assert server.connections == 1
        deadline = time.monotonic() + limits.IDLE_SECONDS - 2  # later, the idle timeout would close it
        while server.connections and time.monotonic() < deadline:
            time.sleep(0.05)
        assert server.connections == 0
        assert is_closed(opened)


def test_many_clients_disconnect_early(server: Running) -> None:
    start = b"GET /api/runs HTTP/1.1\r\n" + HEAD
    for number in range(200):
        server.open((start + b"\r\n")[: 1 + number % (len(start) + 2)]).close()
    status, seconds = server.ask("/api/health")
    assert status == 200 and seconds < 5
    deadline = time.monotonic() + 20
    while server.connections > 1 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert server.connections <= 1


def test_too_many_connections(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONNECTIONS", 5)
    monkeypatch.setattr(limits, "HEAD_SECONDS", 30)
    opened = [server.open() for _ in range(5)]
    with server.open() as one_more:
        reply = one_more.recv(1 << 16)
    assert reply.startswith(b"HTTP/1.1 503 ") and b"Retry-After" in reply
    for each in opened:
        each.close()
    deadline = time.monotonic() + 20
    while server.connections and time.monotonic() < deadline:
        time.sleep(0.05)
    assert server.ask()[0] == 200


NO_REQUESTS = [b"\x00\x01\x02\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"]


@pytest.mark.parametrize("request_line", [*NO_REQUESTS, b"A" * (limits.HEAD_BYTES + 9)])
def test_an_invalid_request(server: Running, request_line: bytes) -> None:
    with server.open(request_line) as opened:
        assert opened.recv(1 << 16).startswith(b"HTTP/1.1 4")
    assert server.ask()[0] == 200


def test_only_loopback_listens(server: Running) -> None:
    addresses = {address[4][0] for address in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    for address in addresses:
        if not address.startswith("127."):
            with pytest.raises(OSError):
                socket.create_connection((address, server.port), timeout=5)


def test_a_port_that_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with listen("127.0.0.1", 0, DEFAULT_PORT) as taken:
        port = taken.getsockname()[1]
        assert main(["studio", "--runs", str(tmp_path), "--no-browser", "--port", str(port)]) == 2
    said = capsys.readouterr().err
    assert "another program uses this port" in said and "--port 0" in said and str(port) in said


def test_replies_are_sent_at_once() -> None:
    """With Nagle's algorithm, each reply on a kept connection would wait 40 ms for an acknowledgement."""
    with (
        listen("127.0.0.1", 0, DEFAULT_PORT) as listening,
        socket.create_connection(listening.getsockname()),
        listening.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_without_a_port_the_next_free_one_is_taken() -> None:
    with listen("127.0.0.1", 0, DEFAULT_PORT) as taken:
        port = taken.getsockname()[1]
        other = listen("127.0.0.1", None, port)
        assert other.getsockname()[1] != port
        other.close()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--port", "x"], "--port"),
        (["--port", "99999"], "--port"),
        (["--port", "-1"], "--port"),
        (["--host", "no.such.host.invalid"], "--host"),
        (["--host", "203.0.113.7"], "--host"),
        (["--runs", "FILE"], "--runs"),
        (["--plugin", "nothing.py"], "nothing.py"),
    ],
)
def test_arguments_that_cannot_be(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    words = [str(file) if word == "FILE" else word for word in arguments]
    assert main(["studio", "--no-browser", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_the_verb_prints_its_link_and_ends_at_a_signal(tmp_path: Path, number: int, code: int) -> None:
    command = [sys.executable, "-m", "glassformer", "studio", "--json", "--no-browser", "--port", "0"]
    with subprocess.Popen(
        [*command, "--runs", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A background job of a shell ignores SIGINT, and its children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        document = json.loads(process.stdout.readline())
        assert document["url"] == f"http://127.0.0.1:{document['port']}/#token={document['token']}"
        assert len(document["token"]) >= 32
        asking = http.client.HTTPConnection("127.0.0.1", document["port"], timeout=60)
        asking.request("GET", "/api/runs", headers={"Authorization": f"Bearer {document['token']}"})
        assert json.loads(asking.getresponse().read())["runs"] == []
        process.send_signal(number)  # while a connection is open
        assert process.wait(60) == code
        said = process.stderr.read()
        assert process.stdout.read() == "" and "Traceback" not in said and document["url"] in said


def test_beyond_loopback_the_verb_warns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Server, "serve", lambda self, **options: self.socket.close())
    assert main(["studio", "--host", "0.0.0.0", "--port", "0", "--no-browser"]) == 0
    assert "WARNING" in capsys.readouterr().out
    assert main(["studio", "--port", "0", "--no-browser"]) == 0
    assert "WARNING" not in capsys.readouterr().out
