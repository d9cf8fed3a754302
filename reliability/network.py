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
from collections.abc import Iterator
from pathlib import Path

from reliability.base import Outcome, Place, Tries, fault
from reliability.cases import cases
from reliability.children import Child
from reliability.kills import OFTEN, differences

CLIENTS = 64
HEALTH_SECONDS = 0.1
QUIET_SECONDS = 0.03
"""What a server that does nothing takes, at the median, on a machine that is quiet enough to be measured."""
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
    is_of_tests=True,
)
def gate(place: Place, numbers: range) -> Tries:
    yield from cases("tests/studio/test_gate.py", "tests/studio/test_server.py")


class Studio:
    """The verb as a process of its own, with a link to it."""

    def __init__(self, place: Place, runs: Path) -> None:
        words = ["studio", "--json", "--no-browser", "--port", "0", "--runs", str(runs)]
        self.child: Child = place.start(*words)
        self.child.wait_until(lambda: self.child.output.endswith("\n"), "it has a link")
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
    """What 64 clients got that they should not, told about once a second."""
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
                pass  # more than it takes at once: the system says so
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
    """Status, Retry-After, and how long it took."""
    began = time.monotonic()
    asking = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        asking.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        reply = asking.getresponse()
        reply.read()
        return reply.status, reply.headers.get("Retry-After"), time.monotonic() - began
    finally:
        asking.close()


def nothing_but_answers(seconds: float) -> Iterator[Outcome]:
    """A server that does nothing else: how long it takes is what the machine itself takes just now."""
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
    """Ask, and go before the answer."""
    for number in range(times):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", studio.port), 10) as opened:
            if number % 3:
                opened.sendall(f"GET {ASKED[number % len(ASKED)]} HTTP/1.1\r\n".encode())
            if number % 3 == 2:
                opened.sendall(f"Host: 127.0.0.1\r\nAuthorization: Bearer {studio.token}\r\n\r\n".encode())


@fault(
    "a crowd at the studio",
    f"{CLIENTS} clients at once, a check each second, beside a training; and 1,000 who leave in the middle",
    "no reply but 2xx, 4xx or 503 with Retry-After; health under 100 ms (median), or on a busy machine within"
    " 100 ms of a bare server's; memory flat; training untouched, to the bit",
    quick=60,
    full=600,
    unit="checks",
    part=600,
    is_alone=True,
)
def load(place: Place, numbers: range) -> Tries:
    count, runs = len(numbers), place.made("runs")
    shutil.copytree(place.trained, runs / "run")
    alone = place.train(place.new("alone"), *OFTEN)
    studio = Studio(place, runs)
    control = place.zygote.start(
        [count + 60], place.made("control"), job="reliability.network:nothing_but_answers"
    )
    control.wait_until(lambda: (control.folder / "port").exists(), "the control listens")
    beside = place.start("train", place.tiny_file, *OFTEN, "--run", runs / "beside", "--quiet")
    list(place.do("reliability.network:crowd", studio.port, studio.token, 1, seconds=120))
    before = studio.memory
    health, bare = [], []
    clients = place.do("reliability.network:crowd", studio.port, studio.token, count, seconds=120 + count)
    for outcome in clients:
        yield outcome
        health.append(studio.health()[1])
        bare.append(ask_once(int((control.folder / "port").read_text()), "", "/")[2])
    control.kill()
    yield judge(place, health, bare)
    leave(studio, 1000)
    studio.child.wait_until(lambda: studio.health()[0] == 200, "it answers after 1,000 have left")
    yield None
    grown = studio.memory - before
    yield None if grown < GROWTH else f"memory grew by {grown / 2**20:.0f} MB"
    yield None if beside.wait() == 0 else f"the training beside it: {beside.errors}"
    yield differences(alone, runs / "beside")
    studio.child.kill()


def judge(place: Place, health: list[float], bare: list[float]) -> Outcome:
    """By the clock where the machine is quiet; else beyond what a server that does nothing takes."""
    took, machine = statistics.median(health), statistics.median(bare)
    is_quiet = machine < QUIET_SECONDS
    how = "by the clock" if is_quiet else "beside a bare server, since the machine was busy"
    said = f"health took {took * 1000:.0f} ms at the median, a bare server {machine * 1000:.0f} ms"
    place.notes.append(f"{said}; judged {how}")
    return None if took - (0 if is_quiet else machine) < HEALTH_SECONDS else said
