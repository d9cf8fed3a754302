"""Runner of the fault programme: parallel parts, progress, and a journal that lets the full tier continue."""

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
from reliability.base import FAULTS, Fault, Row, Workspace, run_part
from reliability.children import Zygote

ROOT = Path(__file__).resolve().parents[1]
IN_MEMORY = Path("/dev/shm")
MIN_FREE_BYTES = 2 << 30
DEFAULT_SECONDS = 1.0
"""Estimated seconds per try of a fault that was never measured."""


@contextlib.contextmanager
def new_workspace(seed: object, zygote: Zygote) -> Iterator[Workspace]:
    """Context: a temporary workspace for one part.

    It is in memory if there is space: the files that SIGKILL leaves behind do not depend on the disk.
    """
    has_room = IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free > MIN_FREE_BYTES
    parent = IN_MEMORY if has_room and os.access(IN_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(
        prefix="glassformer-faults-", dir=parent, ignore_cleanup_errors=True
    ) as folder:
        try:
            yield Workspace(Path(folder), random.Random(str(seed)), zygote)
        finally:
            zygote.kill_children()


@dataclass
class Plan:
    """Parts to run, parts done, and the estimated time of the rest."""

    chosen: list[Fault]
    tier: str
    seed: int = 0
    rates: dict[str, float] = field(default_factory=dict)
    """Seconds per try, measured before."""
    rows: dict[str, Row] = field(default_factory=dict)
    done: set[tuple[str, int]] = field(default_factory=set)
    is_over: threading.Event = field(default_factory=threading.Event)
    """Set when no further part may start."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _zygotes: list[Zygote] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows = {fault.name: Row(fault) for fault in self.chosen if fault.count(self.tier)}

    def left(self) -> list[tuple[Fault, range]]:
        """Return the parts to run: the longest first, so that jobs end together; time measurements last."""
        parts = [(row.fault, part) for row in self.rows.values() for part in row.fault.parts(self.tier)]
        parts = [(fault, part) for fault, part in parts if (fault.name, part.start) not in self.done]
        return sorted(parts, key=lambda item: (item[0].is_alone, -self.seconds_for(*item)))

    def seconds_for(self, fault: Fault, part: range) -> float:
        """Estimate the time of a part."""
        row = self.rows[fault.name]
        rate = row.seconds / row.tried if row.tried else self.rates.get(fault.name, DEFAULT_SECONDS)
        return rate * len(part)

    def seconds_left(self, jobs: int) -> float:
        """Estimate the time of all remaining parts."""
        parts = self.left()
        alone = sum(self.seconds_for(*item) for item in parts if item[0].is_alone)
        return alone + sum(self.seconds_for(*item) for item in parts if not item[0].is_alone) / jobs

    def add(self, part: range, found: Row) -> None:
        """Add the result of a part, once: two concurrent commands may both have written it to the journal."""
        key = (found.fault.name, part.start)
        with self._lock:
            if key not in self.done:
                self.rows[found.fault.name].add(found)
                self.done.add(key)

    def is_done(self, name: str) -> bool:
        """Return True if all parts of a fault are done."""
        with self._lock:
            return all((name, part.start) in self.done for part in FAULTS[name].parts(self.tier))

    def run(self, jobs: int, report: Callable[[range, Row], None] = lambda part, row: None) -> None:
        """Run all parts, `jobs` at a time; faults with `is_alone` run last and one at a time."""
        for is_alone in (False, True):
            waiting: queue.SimpleQueue[tuple[Fault, range]] = queue.SimpleQueue()
            for item in self.left():
                if item[0].is_alone == is_alone:
                    waiting.put(item)
            workers = [
                threading.Thread(target=self._work, args=(waiting, report))
                for _ in range(min(1 if is_alone else jobs, waiting.qsize()))
            ]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()

    def stop(self) -> None:
        """Stop at once: kill the running parts, which do not count."""
        self.is_over.set()
        for zygote in self._zygotes:
            zygote.kill()

    def _work(
        self, waiting: queue.SimpleQueue[tuple[Fault, range]], report: Callable[[range, Row], None]
    ) -> None:
        zygote = Zygote()
        self._zygotes.append(zygote)
        try:
            while not self.is_over.is_set():
                try:
                    fault, part = waiting.get_nowait()
                except queue.Empty:
                    return
                with new_workspace((self.seed, fault.name, part.start), zygote) as workspace:
                    found = run_part(fault, workspace, part)
                if not self.is_over.is_set():
                    self.add(part, found)
                    report(part, found)
        finally:
            zygote.close()


class Journal:
    """File of the parts done on this source, one line each, so that an interrupted run can continue."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path, self.seed, self.source = path, seed, source_digest()

    def load(self, plan: Plan) -> int:
        """Mark the parts of the journal as done, and return their number."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        for line in lines:
            tree = json.loads(line)
            part = range(tree["first"], tree["end"])
            fault = FAULTS.get(tree["name"])
            is_same = (tree["source"], tree["seed"]) == (self.source, self.seed)
            if is_same and fault and fault.name in plan.rows and part in fault.parts(plan.tier):
                row = Row(
                    fault,
                    tree["tried"],
                    tree["held"],
                    [],
                    tree["unsupported"],
                    tree["seconds"],
                    tree["notes"],
                )
                plan.add(part, row)
        return len(plan.done)

    def add(self, part: range, row: Row) -> None:
        """Append a part, unless it failed: failed parts are tried again."""
        if row.failures:
            return
        tree = {"source": self.source, "seed": self.seed, "name": row.fault.name}
        tree |= {"first": part.start, "end": part.stop, "tried": row.tried, "held": row.held}
        tree |= {"unsupported": row.unsupported, "seconds": round(row.seconds, 2), "notes": row.notes}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a") as file:
            file.write(json.dumps(tree) + "\n")


def source_digest() -> str:
    """Compute a digest of the package and of the programme; results of other code do not count."""
    digest = hashlib.sha256()
    for folder in (ROOT / "src", ROOT / "reliability"):
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".py", ".yaml", ".js", ".html", ".css"):
                digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


class Printer:
    """Print one line per part: the result, the time so far and the estimated rest."""

    def __init__(self, plan: Plan, jobs: int, journal: Journal | None) -> None:
        self.plan, self.jobs, self.journal = plan, jobs, journal
        self.start = time.monotonic()

    def __call__(self, part: range, row: Row) -> None:
        if self.journal is not None:
            self.journal.add(part, row)
        parts = len(row.fault.parts(self.plan.tier))
        which = f" {part.start + 1}–{part.stop}" if parts > 1 else ""
        mark = "–" if row.unsupported else "✓" if row.is_good else "✗"
        result = f"not run: {row.unsupported}" if row.unsupported else f"{row.held:,} of {row.tried:,} held"
        left = self.plan.seconds_left(self.jobs)
        clock = f"{minutes(time.monotonic() - self.start)}, about {minutes(left)} left"
        lines = [f"{mark} {row.fault.name}{which}: {result} ({row.seconds:.1f} s) · {clock}"]
        lines += ["    " + text.rstrip().replace("\n", "\n    ") for text in row.failures]
        print("\n".join(lines), flush=True)


def minutes(seconds: float) -> str:
    """Format seconds as M:SS."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def main(
    *, tier: str, only: list[str], seed: int, jobs: int, restart: bool, results: Path, journal_file: Path
) -> int:
    """Run the faults of a tier, publish the results, and return the exit code."""
    unknown = set(only) - FAULTS.keys()
    if unknown:
        print(f"no such fault: {', '.join(sorted(unknown))}; there are: {', '.join(FAULTS)}", file=sys.stderr)
        return 2
    plan = Plan([FAULTS[name] for name in only or FAULTS], tier, seed, pages.rates(pages.read(results)))
    journal = Journal(journal_file, seed) if tier == "full" else None
    if journal is not None and not restart and journal.load(plan):
        done = len(plan.done)
        print(
            f"{done} parts were done before on this source and count; --restart runs them again", flush=True
        )
    print(f"about {minutes(plan.seconds_left(jobs))} minutes on a quiet machine", flush=True)
    start, source = time.monotonic(), pages.commit()  # before the tries: hours later it may be another
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        plan.run(jobs, Printer(plan, jobs, journal))
    except KeyboardInterrupt:
        plan.stop()
        print("interrupted; the same command continues" if journal else "interrupted", file=sys.stderr)
    rows = [row for name, row in plan.rows.items() if row.tried or row.unsupported]
    if tier == "full" or (not only and all(plan.is_done(name) for name in plan.rows)):
        seconds = time.monotonic() - start
        # Read again: another command may have published other rows since.
        facts = {"seed": seed, "jobs": jobs, "seconds": seconds, "source": source}
        pages.publish(results, pages.read(results), tier, rows, **facts)
    for row in sorted(rows, key=lambda row: -row.seconds):
        print(f"{row.seconds:8.1f} s  {row.held:7,} of {row.tried:7,}  {row.fault.name}")
    is_whole = all(plan.is_done(name) for name in plan.rows)
    return 0 if is_whole and all(row.is_good for row in rows) else 1
