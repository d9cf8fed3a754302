"""All faults: what is to be done, two at a time, what is left of it, and what an interruption leaves done."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import reliability.all_faults  # noqa: F401  registers every fault
from reliability import pages
from reliability.base import FAULTS, Fault, Place, Row, run_part
from reliability.children import Zygote

ROOT = Path(__file__).resolve().parents[1]
IN_MEMORY = Path("/dev/shm")
ROOM = 2 << 30
GUESS = 1.0
"""Seconds a try, of which nothing is known yet."""


@contextlib.contextmanager
def a_place(seed: object, zygote: Zygote) -> Iterator[Place]:
    """A folder for one fault, gone afterwards. In memory where there is room: what SIGKILL leaves behind does
    not depend on the disk, and is not kept waiting by it."""
    has_room = IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free > ROOM
    parent = IN_MEMORY if has_room and os.access(IN_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(
        prefix="glassformer-faults-", dir=parent, ignore_cleanup_errors=True
    ) as folder:
        try:
            yield Place(Path(folder), random.Random(str(seed)), zygote)
        finally:
            zygote.kill_children()


@dataclass
class Plan:
    """Parts of faults that are to be done, those that are done, and how long the rest will take."""

    chosen: list[Fault]
    tier: str
    seed: int = 0
    rates: dict[str, float] = field(default_factory=dict)
    """Seconds a try, from before."""
    rows: dict[str, Row] = field(default_factory=dict)
    done: set[tuple[str, int]] = field(default_factory=set)
    is_over: threading.Event = field(default_factory=threading.Event)
    """Nothing more is begun."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _zygotes: list[Zygote] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows = {fault.name: Row(fault) for fault in self.chosen if fault.count(self.tier)}

    def left(self) -> list[tuple[Fault, range]]:
        """The longest first, so that the last ones end together; at the very end those that want quiet."""
        parts = [(row.fault, part) for row in self.rows.values() for part in row.fault.parts(self.tier)]
        parts = [(fault, part) for fault, part in parts if (fault.name, part.start) not in self.done]
        return sorted(parts, key=lambda item: (item[0].is_alone, -self.seconds_for(*item)))

    def seconds_for(self, fault: Fault, part: range) -> float:
        row = self.rows[fault.name]
        rate = row.seconds / row.tried if row.tried else self.rates.get(fault.name, GUESS)
        return rate * len(part)

    def seconds_left(self, jobs: int) -> float:
        parts = self.left()
        alone = sum(self.seconds_for(*item) for item in parts if item[0].is_alone)
        return alone + sum(self.seconds_for(*item) for item in parts if not item[0].is_alone) / jobs

    def add(self, part: range, found: Row) -> None:
        """Once: of two commands at once both may have kept it."""
        key = (found.fault.name, part.start)
        with self._lock:
            if key not in self.done:
                self.rows[found.fault.name].add(found)
                self.done.add(key)

    def is_done(self, name: str) -> bool:
        with self._lock:
            return all((name, part.start) in self.done for part in FAULTS[name].parts(self.tier))

    def run(self, jobs: int, tell: Callable[[range, Row], None] = lambda part, row: None) -> None:
        """So many parts at a time."""
        for is_alone in (False, True):
            waiting: queue.SimpleQueue[tuple[Fault, range]] = queue.SimpleQueue()
            for item in self.left():
                if item[0].is_alone == is_alone:
                    waiting.put(item)
            workers = [
                threading.Thread(target=self._work, args=(waiting, tell))
                for _ in range(min(1 if is_alone else jobs, waiting.qsize()))
            ]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()

    def stop(self) -> None:
        """At once: what is under way is killed and does not count."""
        self.is_over.set()
        for zygote in self._zygotes:
            zygote.kill()

    def _work(
        self, waiting: queue.SimpleQueue[tuple[Fault, range]], tell: Callable[[range, Row], None]
    ) -> None:
        zygote = Zygote()
        self._zygotes.append(zygote)
        try:
            while not self.is_over.is_set():
                try:
                    fault, part = waiting.get_nowait()
                except queue.Empty:
                    return
                with a_place((self.seed, fault.name, part.start), zygote) as place:
                    found = run_part(fault, place, part)
                if not self.is_over.is_set():
                    self.add(part, found)
                    tell(part, found)
        finally:
            zygote.close()


class Kept:
    """Parts that were done on this very source, a line each: an interrupted run goes on after them."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path, self.seed, self.source = path, seed, source_digest()

    def load(self, plan: Plan) -> int:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        for line in lines:
            tree = json.loads(line)
            part = range(tree["first"], tree["end"])
            fault = FAULTS.get(tree["name"])
            is_same = (tree["source"], tree["seed"]) == (self.source, self.seed)
            if is_same and fault and fault.name in plan.rows and part in fault.parts(plan.tier):
                row = Row(
                    fault, tree["tried"], tree["held"], [], tree["not_here"], tree["seconds"], tree["notes"]
                )
                plan.add(part, row)
        return len(plan.done)

    def add(self, part: range, row: Row) -> None:
        """What has failed is tried again."""
        if row.failures:
            return
        tree = {"source": self.source, "seed": self.seed, "name": row.fault.name}
        tree |= {"first": part.start, "end": part.stop, "tried": row.tried, "held": row.held}
        tree |= {"not_here": row.not_here, "seconds": round(row.seconds, 2), "notes": row.notes}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a") as file:
            file.write(json.dumps(tree) + "\n")


def source_digest() -> str:
    """Of the package and of the programme: what is done on other code does not count for this one."""
    digest = hashlib.sha256()
    for folder in (ROOT / "src", ROOT / "reliability"):
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".py", ".yaml", ".js", ".html", ".css"):
                digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


class Teller:
    """A line for each part: what came of it, how much is done, how long the rest will take."""

    def __init__(self, plan: Plan, jobs: int, kept: Kept | None) -> None:
        self.plan, self.jobs, self.kept = plan, jobs, kept
        self.began = time.monotonic()

    def __call__(self, part: range, row: Row) -> None:
        if self.kept is not None:
            self.kept.add(part, row)
        parts = len(row.fault.parts(self.plan.tier))
        which = f" {part.start + 1}–{part.stop}" if parts > 1 else ""
        mark = "–" if row.not_here else "✓" if row.is_good else "✗"
        said = f"not here: {row.not_here}" if row.not_here else f"{row.held:,} of {row.tried:,} held"
        left = self.plan.seconds_left(self.jobs)
        clock = f"{minutes(time.monotonic() - self.began)}, about {minutes(left)} left"
        lines = [f"{mark} {row.fault.name}{which}: {said} ({row.seconds:.1f} s) · {clock}"]
        lines += ["    " + text.rstrip().replace("\n", "\n    ") for text in row.failures]
        print("\n".join(lines), flush=True)


def minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def main(
    *, tier: str, only: list[str], seed: int, jobs: int, is_anew: bool, results: Path, kept: Path
) -> int:
    unknown = set(only) - FAULTS.keys()
    if unknown:
        print(f"no such fault: {', '.join(sorted(unknown))}; there are: {', '.join(FAULTS)}", file=sys.stderr)
        return 2
    plan = Plan([FAULTS[name] for name in only or FAULTS], tier, seed, pages.rates(pages.read(results)))
    keeper = Kept(kept, seed) if tier == "full" else None
    if keeper is not None and not is_anew and keeper.load(plan):
        done = len(plan.done)
        print(f"{done} parts were done before on this source and count; --anew does them again", flush=True)
    print(f"about {minutes(plan.seconds_left(jobs))} of a quiet machine", flush=True)
    began, source = time.monotonic(), pages.commit()  # now: hours later there may be another
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        plan.run(jobs, Teller(plan, jobs, keeper))
    except KeyboardInterrupt:
        plan.stop()
        print("interrupted; the same command goes on" if keeper else "interrupted", file=sys.stderr)
    rows = [row for name, row in plan.rows.items() if row.tried or row.not_here]
    if tier == "full" or (not only and all(plan.is_done(name) for name in plan.rows)):
        seconds = time.monotonic() - began
        # As they are now: another command may have published other rows meanwhile.
        facts = {"seed": seed, "jobs": jobs, "seconds": seconds, "source": source}
        pages.publish(results, pages.read(results), tier, rows, **facts)
    for row in sorted(rows, key=lambda row: -row.seconds):
        print(f"{row.seconds:8.1f} s  {row.held:7,} of {row.tried:7,}  {row.fault.name}")
    is_whole = all(plan.is_done(name) for name in plan.rows)
    return 0 if is_whole and all(row.is_good for row in rows) else 1
