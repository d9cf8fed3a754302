"""Results that are kept: a file of them, a page made from it, and whether a new one falls behind.

By benchmark and processor: ratios of one kind of processor say little about another.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from glassformer.bench.base import Result
from glassformer.core.errors import user_error
from glassformer.storage.files import replace_file

DEFAULT = Path("docs") / "results" / "speed.json"
MAY_FALL_TO = 0.8
"""Of the recorded ratio, before it counts as lost."""


def record(path: Path, result: Result, command: str) -> Path:
    """Keep the result under its name and processor, and write the page anew; returns the page."""
    kept = read(path) if path.exists() else {}
    date = datetime.now(UTC).date().isoformat()
    document = {"command": command, "date": date, **result.document()}
    kept.setdefault(result.name, {})[result.machine.cpu] = document
    replace_file(path, (json.dumps(kept, indent=1, ensure_ascii=False) + "\n").encode())
    page = path.with_suffix(".md")
    replace_file(page, _page(kept).encode())
    return page


def read(path: Path) -> dict[str, Any]:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise user_error(
            f"cannot be read: {error}", path=str(path), hint="glassformer bench NAME --record FILE"
        ) from None
    if not isinstance(kept, dict) or not all(isinstance(by_cpu, dict) for by_cpu in kept.values()):
        raise user_error("holds no results of benchmarks", path=str(path))
    return kept


def fallen(path: Path, result: Result) -> list[str]:
    """The ratios that are more than a fifth below those recorded on such a processor, in words."""
    kept = read(path).get(result.name, {}).get(result.machine.cpu)
    if kept is None:
        raise user_error(
            "has no such benchmark of this processor",
            path=str(path),
            value=f"{result.name}, {result.machine.cpu}",
            hint=f"glassformer bench {result.name} --record {path}",
        )
    return [
        f"{name} {now:.2f}, recorded {before:.2f}"
        for name, before in kept["ratios"].items()
        if (now := result.ratios.get(name, 0.0)) < MAY_FALL_TO * before
    ]


def _page(kept: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    parts = ["# Speed", "Each table is written by its command; ratios are of one run, side by side."]
    for name, cpu, result in [(name, cpu, by_cpu[cpu]) for name, by_cpu in kept.items() for cpu in by_cpu]:
        machine = result["machine"]
        parts += [
            f"## {name}, {cpu}",
            f"`{result['command']}`, {result['date']}: {machine['cores']} cores,"
            f" {machine['threads']} threads; torch {machine['torch']}, Python {machine['python']}.",
            _table(result["rows"]),
            "Ratios: " + ", ".join(f"{key} {value:.2f}" for key, value in result["ratios"].items()) + ".",
        ]
        if result["notes"]:
            notes = [f"{key.replace('_', ' ')} {_cell(value)}" for key, value in result["notes"].items()]
            parts.append(f"Notes: {', '.join(notes)}.")
        if result["complaint"]:
            parts.append(f"**Not reached**: {result['complaint']}.")
    return "\n\n".join(parts) + "\n"


def _table(rows: list[dict[str, Any]]) -> str:
    names = [name for name in rows[0] if not any(isinstance(row.get(name), list) for row in rows)]
    lines = [
        "| " + " | ".join(name.replace("_", " ") for name in names) + " |",
        "|" + "---|" * len(names),
    ]
    lines += ["| " + " | ".join(_cell(row.get(name)) for name in names) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
