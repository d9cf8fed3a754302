"""Published results: docs/results/reliability.json and reliability.md."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from glassformer import __version__
from glassformer.core.errors import shorten
from glassformer.core.system import machine
from reliability.base import FAULTS, Row

MAX_SHOWN = 5
TIERS = ("quick", "full")
ROOT = Path(__file__).resolve().parents[1]
Document = dict[str, Any]
"""Results per tier: date, machine, commit, and `rows` by the name of the fault."""


def read(results: Path) -> Document:
    """Read the published results."""
    path = results / "reliability.json"
    tree = json.loads(path.read_bytes()) if path.exists() else {}
    return {tier: tree[tier] for tier in TIERS if tier in tree}


def rates(published: Document) -> dict[str, float]:
    """Return the seconds per try of each fault that was measured before."""
    found: dict[str, float] = {}
    for tier in reversed(TIERS):
        for name, row in published.get(tier, {}).get("rows", {}).items():
            if row["tried"] and name in FAULTS:
                found[name] = row["seconds"] / (row["planned"] if row["unit"] == "cases" else row["tried"])
    return found


def commit() -> str:
    """Return the commit of the source, or the version outside of a git checkout."""
    try:
        name = _git("rev-parse", "--short", "HEAD")
        return f"{name} with changes" if _git("status", "--porcelain", "src", "reliability") else name
    except (OSError, subprocess.CalledProcessError):
        return __version__


def _git(*words: str) -> str:
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def publish(
    results: Path,
    published: Document,
    tier: str,
    rows: list[Row],
    *,
    seed: int,
    jobs: int,
    seconds: float,
    source: str,
) -> None:
    """Write the results: all of the quick tier, or the rows of the full tier that were tried now."""
    new = {row.fault.name: row_document(row, tier, source) for row in rows}
    old = published.get(tier, {}).get("rows", {}) if tier == "full" else {}
    merged = {**old, **new}
    published[tier] = {
        "glassformer": __version__,
        "commit": source,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "seed": seed,
        "jobs": jobs,
        "seconds": round(seconds, 1),
        "machine": machine().document(),
        "rows": {name: merged[name] for name in FAULTS if name in merged},
    }
    (results / "reliability.json").write_text(json.dumps(published, indent=1, ensure_ascii=False) + "\n")
    (results / "reliability.md").write_text(page_of(published))


def row_document(row: Row, tier: str, source: str) -> Document:
    """Make the document of one fault."""
    return {
        "tried": row.tried,
        "held": row.held,
        "planned": row.fault.count(tier),
        "unit": row.fault.unit,
        "seconds": round(row.seconds, 1),
        "commit": source,
        "notes": row.notes,
        "unsupported": row.unsupported,
        "failures": [shorten(shorten_traceback(failure), 300) for failure in row.failures[:MAX_SHOWN]],
    }


def shorten_traceback(failure: str) -> str:
    """Reduce a traceback to the exception, which does not contain paths of this machine."""
    before, found, trace = failure.partition("Traceback (most recent call last):")
    if not found:
        return failure
    raised = [line for line in trace.splitlines() if line and not line.startswith(" ")]
    return f"{shorten(before, 200)} {raised[0] if raised else 'an error'}".strip()


def page_of(published: Document) -> str:
    """Format the Markdown page."""
    lines = ["# Faults, bad input and attacks", ""]
    for tier in TIERS:
        lines += [*summary(tier, published[tier]), ""] if tier in published else []
    if "full" not in published:
        lines += ["The full tier (`make prove TIER=full`) has not been run on this version.", ""]
    lines += [
        "The faults are in `reliability/`; `make test-all` runs the quick tier. Tries that held, of all:",
        "",
        "| fault | expected | quick | full |",
        "|---|---|---:|---:|",
    ]
    tiers = [published.get(tier, {}).get("rows", {}) for tier in TIERS]
    for name, fault in FAULTS.items():
        shown = " | ".join(cell(rows.get(name)) for rows in tiers)
        lines.append(f"| {fault.what} | {fault.expected} | {shown} |")
    notes = [f"- {name}: {note}" for rows in tiers for name, row in rows.items() for note in row["notes"]]
    lines += ["", "Remarks:", "", *dict.fromkeys(notes)] if notes else []
    failed = [f"- {name}: {text}" for rows in tiers for name, row in rows.items() for text in row["failures"]]
    lines += ["", "Failures:", "", *failed] if failed else []
    return "\n".join(lines) + "\n"


def summary(tier: str, document: Document) -> list[str]:
    rows = document["rows"].values()
    tried, held = sum(row["tried"] for row in rows), sum(row["held"] for row in rows)
    if tier == "quick":
        return [
            f"`make prove` (quick tier): {held:,} of {tried:,} held, {document['seconds'] / 60:.1f} minutes"
            f" with {document['jobs']} jobs on {document['machine']['cores']} cores, {document['date']},"
            f" commit {document['commit']}."
        ]
    whole = [row for row in rows if row["tried"] >= row["planned"]]
    commits = ", ".join(sorted({row["commit"] for row in rows}))
    counted = f"{len(whole)} of {len(FAULTS)} rows are complete"
    if len(whole) < len(FAULTS):
        counted += ", the others partial"
    return [
        f"`make prove TIER=full`: {held:,} of {tried:,} held, {sum(row['seconds'] for row in rows) / 60:.0f}"
        f" minutes of work, {document['date']}, commit {commits}; {counted}."
    ]


def cell(row: Document | None) -> str:
    if row is None:
        return "–"
    if row["unsupported"]:
        return f"not run: {row['not_here']}"
    return f"{row['held']:,} of {row['tried']:,} {row['unit']}".strip()
