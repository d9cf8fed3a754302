"""Studio under load: many clients beside a training, and the tests of its access control."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from reliability.base import Outcome, Tries, Workspace, fault
from reliability.cases import cases
from reliability.children import Child
from reliability.kills import OFTEN, differences

CLIENTS = 64
HEALTH_SECONDS = 0.1
QUIET_SECONDS = 0.03
"""Median latency of a bare server below which the machine is quiet enough for an absolute limit."""
GROWTH = 64 << 20
ASKED = ["/api/runs", "/api/runs/run", "/api/runs/run/events?after=0", "/", "/api/health", "/api/nothing"]


@fault(
    "the studio's gate",
    "every route × every method × (no, wrong, right token); Host and Origin cases; slow clients; 1 GB bodies;"
    " 1,000 disconnects; paths that lead out",
    "default deny; 4xx, or 429/503 with Retry-After; only loopback listens",
    quick=1,
    full=1,
    unit="cases",
    counts_tests=True,
)
def gate(workspace: Workspace, numbers: range) -> Tries:
    yield from cases("tests/studio/test_gate.py", "tests/studio/test_server.py")


class Studio:
    """`glassformer studio` in a child process, with its port and token."""

    def __init__(self, workspace: Workspace, runs: Path) -> None:
        words = ["studio", "--json", "--no-browser", "--port", "0", "--runs", str(runs)]
        self.child: Child = workspace.start(*words)
        self.child.wait_until(lambda: self.child.output.endswith("\n"), "it prints its address")
        document = json.loads(self.child.output)
        self.port, self.token = document["port"], document["token"]

    def health(self) -> tuple[int, float]:
        status, _, seconds = ask_once(self.port, self.token, "/api/health")
        return status, seconds

    @property
    def memory(self) -> int:
        fields = Path(f"/proc/{self.child.pid}/statm").read_text().split()
        return int(fields[1]) * 4096


def crowd(port: int, token: str, seconds: float) -> Iterator[Outcome]:
    """Run 64 clients; yield once per second what they received that they should not."""
    wrong: list[str] = []
    end = time.monotonic() + seconds

    def ask(number: int) -> None:
        turn = number
        while time.monotonic() < end:
            path = ASKED[turn % len(ASKED)]
            turn += 1
            try:
                status, retry, _ = ask_once(port, token, path)
                if (status >= 500 and status != 503) or (status in (429, 503) and retry is None):
                    wrong.append(f"{path}: {status}, Retry-After {retry}")
            except ConnectionError:
                pass  # the listen backlog is full
            except OSError as error:
                wrong.append(f"{path}: {error!r}")
            time.sleep(0.05)

    threads = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    while time.monotonic() < end:
        time.sleep(1)
        yield f"{len(wrong)} replies, such as {wrong[0]}" if wrong else None
        wrong.clear()
    for thread in threads:
        thread.join(60)


def ask_once(port: int, token: str, path: str, seconds: float = 30) -> tuple[int, str | None, float]:
    """Send one request; return status, Retry-After and seconds."""
    start = time.monotonic()
    asking = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        asking.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        reply = asking.getresponse()
        reply.read()
        return reply.status, reply.headers.get("Retry-After"), time.monotonic() - start
    finally:
        asking.close()


def bare_server(seconds: float) -> Iterator[Outcome]:
    """Serve a constant reply; its latency is that of the machine at this moment."""
    end = time.monotonic() + seconds
    with socket.create_server(("127.0.0.1", 0)) as listener:
        Path("port").write_text(str(listener.getsockname()[1]))
        listener.settimeout(1)
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                opened, _ = listener.accept()
                with opened:
                    opened.recv(4096)
                    opened.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
    yield None


def leave(studio: Studio, times: int) -> None:
    """Open connections and close them before the reply."""
    for number in range(times):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", studio.port), 10) as opened:
            if number % 3:
                opened.sendall(f"GET {ASKED[number % len(ASKED)]} HTTP/1.1\r\n".encode())
            if number % 3 == 2:
                opened.sendall(f"Host: 127.0.0.1\r\nAuthorization: Bearer {studio.token}\r\n\r\n".encode())


@fault(
    "a crowd at the studio",
    f"{CLIENTS} concurrent clients beside a training, one check per second; then 1,000 disconnects",
    "only 2xx, 4xx or 503 with Retry-After; health under 100 ms (median), or on a busy machine within 100 ms"
    " of a bare server's; constant memory; training unchanged to the bit",
    quick=60,
    full=600,
    unit="checks",
    part=600,
    is_alone=True,
)
def load(workspace: Workspace, numbers: range) -> Tries:
    count, runs = len(numbers), workspace.made("runs")
    shutil.copytree(workspace.trained, runs / "run")
    alone = workspace.train(workspace.new("alone"), *OFTEN)
    studio = Studio(workspace, runs)
    control = workspace.zygote.start(
        [count + 60], workspace.made("control"), job="reliability.network:bare_server"
    )
    control.wait_until(lambda: (control.folder / "port").exists(), "the control listens")
    beside = workspace.start("train", workspace.tiny_file, *OFTEN, "--run", runs / "beside", "--quiet")
    list(workspace.do("reliability.network:crowd", studio.port, studio.token, 1, seconds=120))
    before = studio.memory
    health, bare = [], []
    clients = workspace.do("reliability.network:crowd", studio.port, studio.token, count, seconds=120 + count)
    for outcome in clients:
        yield outcome
        health.append(studio.health()[1])
        bare.append(ask_once(int((control.folder / "port").read_text()), "", "/")[2])
    control.kill()
    yield check_latency(workspace, health, bare)
    leave(studio, 1000)
    studio.child.wait_until(lambda: studio.health()[0] == 200, "it replies after 1,000 disconnects")
    yield None
    grown = studio.memory - before
    yield None if grown < GROWTH else f"memory grew by {grown / 2**20:.0f} MB"
    yield None if beside.wait() == 0 else f"the training beside it: {beside.errors}"
    yield differences(alone, runs / "beside")
    studio.child.kill()


def check_latency(workspace: Workspace, health: list[float], bare: list[float]) -> Outcome:
    """Check the latency: absolute on a quiet machine, else relative to a bare server."""
    took, machine = statistics.median(health), statistics.median(bare)
    is_quiet = machine < QUIET_SECONDS
    how = "absolute" if is_quiet else "relative to a bare server, since the machine was busy"
    message = f"health took {took * 1000:.0f} ms at the median, a bare server {machine * 1000:.0f} ms"
    workspace.notes.append(f"{message}; limit {how}")
    return None if took - (0 if is_quiet else machine) < HEALTH_SECONDS else message
