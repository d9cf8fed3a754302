"""What can be reproduced, and the files that a reproduction leaves: `results.json`, `table.md`, pictures."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from glassformer.core.errors import user_error
from glassformer.storage.files import json_bytes, replace_file
from glassformer.studies.jobs import Job, Results, Say, run_all, threads_for

# Two-sided 95 % quantiles of Student's t, by degrees of freedom.


@dataclass(frozen=True)
class Effort:
    """Where a study works, and how much of it is done."""

    folder: Path
    is_quick: bool
    seeds: int
    workers: int
    threads: int
    with_theirs: bool
    say: Say
    trains: bool = True
    """Else only what is finished is told."""
    kept: Mapping[str, Any] = field(default_factory=dict)
    """An earlier `results.json`: what it has measured is not measured again."""

    def run(self, jobs: Sequence[Job], describe: Callable[[Results], str]) -> None:
        run_all(jobs, workers=self.workers, threads=self.threads, describe=describe, say=self.say)

    def refuse_parts(self) -> None:
        """For tables that are measured whole or not at all."""
        for option, is_asked in (("--finished", not self.trains), ("--keep", bool(self.kept))):
            if is_asked:
                raise user_error("this table is measured as a whole", path=option, hint="leave it out")


class Table(Protocol):
    """What can be reproduced."""

    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def metric(self) -> str: ...

    @property
    def seeds(self) -> int: ...

    def measure(self, effort: Effort) -> dict[str, Any]:
        """Run what is missing; `rows`, and whatever else `results.json` should hold."""
        ...

    def markdown(self, document: Mapping[str, Any]) -> str:
        """What `table.md` shows of `results.json`."""
        ...


def reproduce(
    table: Table,
    folder: Path,
    *,
    is_quick: bool = False,
    seeds: int | None = None,
    workers: int = 1,
    with_theirs: bool = True,
    trains: bool = True,
    keep: Path | None = None,
    say: Say = lambda text: None,
) -> dict[str, Any]:
    """Run what is missing, then write `table.md` and `results.json` into the folder and return the latter."""
    if seeds is not None and seeds < 1:
        raise user_error("at least one run a setting", path="--seeds", value=seeds, hint="--seeds 3")
    kept = {} if keep is None else _earlier(keep, table.name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise user_error(
            f"cannot be made: {error.strerror}", path=str(folder), hint="another --out"
        ) from None
    options: dict[str, Any] = {
        "--quick": is_quick,
        "--seeds": seeds,
        "--workers": workers if workers > 1 else None,
    }
    options |= {"--ours-only": not with_theirs, "--finished": not trains, "--keep": keep}
    seeds = seeds or (1 if is_quick else table.seeds)
    threads = threads_for(workers)
    try:
        effort = Effort(folder, is_quick, seeds, workers, threads, with_theirs, say, trains, kept)
        measured = table.measure(effort)
    except BaseException:
        with contextlib.suppress(OSError):  # what failed before its first run leaves nothing behind
            folder.rmdir()
        raise
    document = {
        "name": table.name,
        "title": table.title,
        "metric": table.metric,
        "command": ["glassformer", "reproduce", table.name, *_typed(options)],
        "is_quick": is_quick,
        "with_theirs": with_theirs,
        "workers": workers,
        "threads_per_worker": threads,
        **measured,
    }
    replace_file(folder / "results.json", json_bytes(document))
    replace_file(folder / "table.md", table.markdown(document).encode())
    return document


def _typed(options: Mapping[str, Any]) -> list[str]:
    """Options that were given, as one would type them."""
    given = {name: value for name, value in options.items() if value not in (None, False)}
    return [
        word for name, value in given.items() for word in ([name] if value is True else [name, str(value)])
    ]


def _earlier(file: Path, name: str) -> dict[str, Any]:
    try:
        document = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise user_error(
            f"cannot be read: {error}", path="--keep", value=str(file), hint="a results.json"
        ) from None
    if not isinstance(document, dict) or document.get("name") != name or document.get("is_quick"):
        raise user_error(
            f"is not a full measurement of {name}", path="--keep", value=str(file), hint="its results.json"
        )
    return document


def test_value(results: Results, metric: str) -> float:
    return float(results["metrics"]["test"][metric])


def written_by(document: Mapping[str, Any]) -> str:
    """All options that decide what stands in the table, as they were typed: not where it was written."""
    return f"Written by `{shlex.join(document['command'])}`."
