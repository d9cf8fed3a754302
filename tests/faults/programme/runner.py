"""All faults, one after the other: progress, counts, and the page that publishes them."""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import programme  # noqa: F401  all faults
from glassformer import __version__
from glassformer.bench.machine import machine
from glassformer.errors import shorten
from programme.base import FAULTS, Fault, Place, Row, run_fault
from programme.children import Zygote

MOST_SHOWN = 5


@contextmanager
def a_place(seed: int, zygote: Zygote) -> Iterator[Place]:
    """A folder for one fault, gone afterwards, with the caches of a person who has none yet."""
    with tempfile.TemporaryDirectory(prefix="glassformer-faults-") as folder:
        try:
            yield Place(Path(folder), random.Random(seed), zygote)
        finally:
            zygote.kill_children()


def run_all(chosen: list[Fault], tier: str, seed: int, jobs: int) -> list[Row]:
    """In the order of the programme, however many are done at the same time."""
    zygotes: SimpleQueue[Zygote] = SimpleQueue()
    for _ in range(jobs):
        zygotes.put(Zygote())

    def run(fault: Fault) -> Row:
        zygote = zygotes.get()
        try:
            with a_place(seed, zygote) as place:
                row = run_fault(fault, place, tier, tell)
        finally:
            zygotes.put(zygote)
        finish(row)
        return row

    try:
        with ThreadPoolExecutor(jobs) as pool:
            return list(pool.map(run, [fault for fault in chosen if fault.count(tier)]))
    finally:
        while not zygotes.empty():
            zygotes.get().close()


def tell(row: Row) -> None:
    if sys.stderr.isatty():
        print(f"\r{row.fault.name}: {row.held:,} of {row.tried:,} held", end="", file=sys.stderr, flush=True)


def finish(row: Row) -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    mark = "–" if row.not_here else "✓" if row.is_good else "✗"
    said = f"not here: {row.not_here}" if row.not_here else f"{row.held:,} of {row.tried:,} held"
    print(f"{mark} {row.fault.name}: {said} ({row.seconds:.1f} s)", flush=True)
    for failure in row.failures:
        print("    " + failure.rstrip().replace("\n", "\n    "), flush=True)


def main(*, tier: str, only: list[str], seed: int, jobs: int, is_kept: bool, results: Path) -> int:
    unknown = set(only) - FAULTS.keys()
    if unknown:
        print(f"no such fault: {', '.join(sorted(unknown))}; there are: {', '.join(FAULTS)}", file=sys.stderr)
        return 2
    os.environ["GLASSFORMER_CACHE"] = tempfile.mkdtemp(prefix="glassformer-cache-")
    rows = run_all([FAULTS[name] for name in only or FAULTS], tier, seed, jobs)
    if not only or is_kept:
        document = document_of(rows, tier, seed)
        if only:
            document = replaced(results / "reliability.json", document)
        (results / "reliability.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
        (results / "reliability.md").write_text(page_of(document))
    return 0 if all(row.is_good for row in rows) else 1


def replaced(path: Path, new: dict[str, Any]) -> dict[str, Any]:
    """What was kept of the same tier, with the rows that were tried again."""
    kept = json.loads(path.read_bytes())
    if kept["tier"] != new["tier"]:
        raise SystemExit(f"{path} is of the tier {kept['tier']}")
    again = {row["name"]: row for row in new["rows"]}
    return kept | {"rows": [again.pop(row["name"], row) for row in kept["rows"]] + list(again.values())}


def document_of(rows: list[Row], tier: str, seed: int) -> dict[str, Any]:
    return {
        "glassformer": __version__,
        "tier": tier,
        "seed": seed,
        "machine": machine().document(),
        "rows": [
            {
                "name": row.fault.name,
                "fault": row.fault.what,
                "expected": row.fault.expected,
                "tried": row.tried,
                "held": row.held,
                "unit": row.fault.unit,
                "seconds": round(row.seconds, 1),
                "not_here": row.not_here,
                "failures": [shorten(failure, 300) for failure in row.failures[:MOST_SHOWN]],
            }
            for row in rows
        ],
    }


def page_of(document: dict[str, Any]) -> str:
    tried = sum(row["tried"] for row in document["rows"])
    held = sum(row["held"] for row in document["rows"])
    seconds = sum(row["seconds"] for row in document["rows"])
    lines = [
        "# Faults, bad input and attacks",
        "",
        f"Written by `make prove TIER={document['tier']}`: {tried:,} tries, {held:,} held, in"
        f" {seconds / 60:.0f} minutes of a busy machine. The faults are in `tests/faults/programme/`.",
        "",
        "| fault | tried | expected | held |",
        "|---|---:|---|---:|",
    ]
    for row in document["rows"]:
        times = f"{row['tried']:,} {row['unit']}".strip()
        result = f"not run: {row['not_here']}" if row["not_here"] else f"{row['held']:,}"
        lines.append(f"| {row['fault']} | {times} | {row['expected']} | {result} |")
    failed = [f"- {row['name']}: {text}" for row in document["rows"] for text in row["failures"]]
    if failed:
        lines += ["", "What did not hold:", "", *failed]
    return "\n".join(lines) + "\n"
