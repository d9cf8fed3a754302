"""The studio under attack: a crowd of clients beside a training, and what the tests of its gate try."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import statistics
import threading
import time
from pathlib import Path

from programme.base import Outcome, Place, Tries, fault
from programme.cases import cases
from programme.children import Child
from programme.kills import OFTEN, differences

CLIENTS = 64
HEALTH_SECONDS = 0.1
GROWTH = 64 << 20
ASKED = ["/api/runs", "/api/runs/run", "/api/runs/run/events?after=0", "/", "/api/health", "/api/nothing"]


@fault(
    "the studio's gate",
    "every route × every method × (no, wrong, right token); Host and Origin cases; slow clients; 1 GB bodies;"
    " 1,000 disconnects; paths that lead out",
    "default deny; 4xx, or 429/503 with Retry-After; only loopback listens",
    quick=1,
    full=1,
    in_tests=0,
    unit="cases",
)
def gate(place: Place, count: int) -> Tries:
    yield from cases("tests/studio/test_gate.py", "tests/studio/test_server.py")


class Studio:
    """The verb as a process of its own, with a link to it."""

    def __init__(self, place: Place, runs: Path) -> None:
        words = ["studio", "--json", "--no-browser", "--port", "0", "--runs", str(runs)]
        self.child: Child = place.start(*words)
        self.child.wait_until(lambda: self.child.output.endswith("\n"), "it has a link")
        document = json.loads(self.child.output)
        self.port, self.token = document["port"], document["token"]

    def ask(self, path: str, seconds: float = 30) -> tuple[int, str | None, float]:
        """Status, Retry-After, and how long it took."""
        began = time.monotonic()
        asking = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            asking.request("GET", path, headers={"Authorization": f"Bearer {self.token}"})
            reply = asking.getresponse()
            reply.read()
            return reply.status, reply.headers.get("Retry-After"), time.monotonic() - began
        finally:
            asking.close()

    @property
    def memory(self) -> int:
        fields = Path(f"/proc/{self.child.pid}/statm").read_text().split()
        return int(fields[1]) * 4096


def crowd(studio: Studio, seconds: float) -> tuple[list[str], list[float]]:
    """What 64 clients got that they should not, and how long the question for its health took meanwhile."""
    wrong: list[str] = []
    end = time.monotonic() + seconds

    def ask(number: int) -> None:
        turn = number
        while time.monotonic() < end:
            path = ASKED[turn % len(ASKED)]
            turn += 1
            try:
                status, retry, _ = studio.ask(path)
                if (status >= 500 and status != 503) or (status in (429, 503) and retry is None):
                    wrong.append(f"{path}: {status}, Retry-After {retry}")
            except ConnectionError:
                pass  # more than it takes at once: the system says so
            except OSError as error:
                wrong.append(f"{path}: {error!r}")
            time.sleep(0.05)

    threads = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    health = []
    while time.monotonic() < end:
        health.append(studio.ask("/api/health")[2])
        time.sleep(0.1)
    for thread in threads:
        thread.join(60)
    return wrong, health


def leave(studio: Studio, times: int) -> None:
    """Ask, and go before the answer."""
    for number in range(times):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", studio.port), 10) as opened:
            if number % 3:
                opened.sendall(f"GET {ASKED[number % len(ASKED)]} HTTP/1.1\r\n".encode())
            if number % 3 == 2:
                opened.sendall(f"Host: 127.0.0.1\r\nAuthorization: Bearer {studio.token}\r\n\r\n".encode())


@fault(
    "a crowd at the studio",
    f"{CLIENTS} clients at once for so many seconds, beside a training, and 1,000 who leave in the middle",
    "no reply but 2xx, 4xx or 503 with Retry-After; health in under 100 ms (median); memory flat; training"
    " untouched, to the bit",
    quick=60,
    full=600,
    in_tests=4,
    unit="seconds",
)
def load(place: Place, count: int) -> Tries:
    runs = place.new("runs")
    runs.mkdir()
    shutil.copytree(place.trained, runs / "run")
    alone = place.train(place.new("alone"), *OFTEN)
    studio = Studio(place, runs)
    crowd(studio, 1)
    before = studio.memory
    beside = place.start("train", place.tiny_file, *OFTEN, "--run", runs / "beside", "--quiet")
    for _ in range(count):
        wrong, health = crowd(studio, 1)
        yield judge(wrong, health)
    leave(studio, 1000)
    status, _, seconds = studio.ask("/api/health")
    yield None if status == 200 else f"after 1,000 disconnects: {status} in {seconds:.3f} s"
    grown = studio.memory - before
    yield None if grown < GROWTH else f"memory grew by {grown / 2**20:.0f} MB"
    yield None if beside.wait() == 0 else f"the training beside it: {beside.errors}"
    yield differences(alone, runs / "beside")
    studio.child.kill()


def judge(wrong: list[str], health: list[float]) -> Outcome:
    if wrong:
        return f"{len(wrong)} replies, such as {wrong[0]}"
    middle = statistics.median(health)
    return None if middle < HEALTH_SECONDS else f"health took {middle:.3f} s"


@fault(
    "sweep workers",
    "workers killed and frozen; connections cut; a PostgreSQL server restarted",
    "no trial lost or counted twice",
    quick=1,
    full=20,
    in_tests=0,
    unit="cases",
)
def sweeps(place: Place, count: int) -> Tries:
    for _ in range(count):
        yield from cases(
            "tests/sweeps/test_workers.py", "tests/sweeps/test_postgresql.py", "tests/sweeps/test_study.py"
        )
