"""The runs folder as the studio sees it: runs by name, none of which leads out of it, and their table.

A table of many runs is asked for every second, so what a run's files say is kept until they change.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from glassformer.core.config import Node, Tree, flatten
from glassformer.core.errors import UserError
from glassformer.runs.experiment import ExperimentConfig
from glassformer.runs.folder import CONFIG, CONFIG_JSON, RunFolder, Status
from glassformer.storage.checksums import SUMS
from glassformer.studio.record import last_event
from glassformer.studio.replies import Refusal, refusal

NAME = re.compile(r"[^/\\\0.][^/\\\0]{0,254}")
"""Of a folder directly in the runs folder that is not hidden."""
SUMMARISED = (CONFIG, CONFIG_JSON, SUMS, "results.json", "environment.json")
PARTS = (*SUMMARISED, "events.jsonl", "status.json", "task.json", "lock", "checkpoints")
CAN_CHANGE_UNSEEN = {"new", "running", "stalled"}
"""Whether their process lives is in no file."""

UNKNOWN = Status("new", 0, None, None)

Signature = tuple[tuple[int, int] | None, ...]


@dataclass
class _Known:
    """What was read of a run, and of which state of its files."""

    signature: Signature = ()
    summary: dict[str, Any] = field(default_factory=dict)
    options: Tree = field(default_factory=dict)
    beat_signature: Signature = ()
    status: Status = UNKNOWN
    record_signature: Signature = ()
    last: dict[str, Any] | None = None


def status_of(run: RunFolder) -> Status:
    """A run whose status is no status is damaged, and nothing worse happens."""
    try:
        return run.status()
    except (UserError, TypeError, AttributeError):
        return Status("damaged", 0, None, None)


def shown_path(path: Path) -> str:
    """As one would type it from where the studio was started."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


class RunsFolder:
    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._known: dict[str, _Known] = {}
        self._changes = 0
        self._compared: tuple[Tree, list[str]] = ({}, [])
        self._compared_state: tuple[int, list[str]] | None = None
        self._lock = threading.Lock()

    def path_of(self, name: str) -> Path:
        """Where a run of this name would be; a Refusal if that is not in this folder."""
        path = self.path / name
        if not NAME.fullmatch(name) or path.parent != self.path or os.path.islink(path):
            raise _no_run(name)
        return path

    def open(self, name: str) -> RunFolder:
        run = RunFolder(self.path_of(name))
        if not run.exists() or _leads_out(str(run.path)):
            raise _no_run(name)
        return run

    def names(self) -> list[str]:
        """The newest first."""
        found: list[tuple[int, str]] = []
        try:
            entries = list(os.scandir(self.path))
        except OSError:
            return []
        for entry in entries:
            if NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                try:
                    config = os.lstat(os.path.join(entry.path, CONFIG))
                except OSError:
                    continue
                if not _leads_out(entry.path):
                    found.append((config.st_mtime_ns, entry.name))
        return [name for _, name in sorted(found, reverse=True)]

    def table(self) -> dict[str, Any]:
        """Every run in a row, and the options in which they are not all alike."""
        with self._lock:  # one reader; the next one finds everything known
            names = self.names()
            for gone in self._known.keys() - set(names):
                del self._known[gone]
            rows = [self._row(name) for name in names]
            options = [self._known[name].options for name in names]
            common, different = self._compare(names)
        for row, of_run in zip(rows, options, strict=True):
            row["differences"] = {path: of_run[path] for path in different if path in of_run}
        return {"runs": rows, "common": common}

    def _row(self, name: str) -> dict[str, Any]:
        known = self._known.setdefault(name, _Known())
        self._refresh(f"{self.path}/{name}", known)
        status = known.status
        last = known.last or {}
        summary = dict(known.summary)
        if summary.get("seconds") is None:
            summary["seconds"] = last.get("elapsed", last.get("seconds"))
        return {
            "name": name,
            "status": status.name,
            "step": status.step,
            "total_steps": status.total_steps,
            **summary,
            "last": known.last,
        }

    def _refresh(self, path: str, known: _Known) -> None:
        """Paths are texts here: of a thousand runs, Path alone would cost more than all the rest."""
        try:
            beat = _signature(path, ("status.json",))
            if beat != known.beat_signature or known.status.name in CAN_CHANGE_UNSEEN:
                known.status, known.beat_signature = RunFolder(Path(path)).status(), beat
            signature = _signature(path, SUMMARISED)
            if signature != known.signature:
                run = RunFolder(Path(path))
                known.options = flatten(_own_defaults() | run.config())
                known.summary = _summary_of(known.options, run.results(), run.environment())
                known.signature = signature
                self._changes += 1
            record = _signature(path, ("events.jsonl",))
            if record != known.record_signature:
                known.last, known.record_signature = last_event(f"{path}/events.jsonl", "step"), record
        except (UserError, OSError, TypeError, AttributeError) as error:
            known.status = Status("damaged", 0, None, None)
            known.signature = known.beat_signature = ()
            known.summary = {**_summary_of({}, {}, {}), "problem": str(error).splitlines()[0]}
            known.options = {}
            self._changes += 1

    def _compare(self, names: list[str]) -> tuple[Tree, list[str]]:
        """What all configs have alike, and the paths at which they do not agree; of the damaged, nothing."""
        state = (self._changes, names)
        if state != self._compared_state:
            options = [self._known[name].options for name in names]
            self._compared = compare_options([of_run for of_run in options if of_run])
            self._compared_state = state
        return self._compared


def compare_options(options: Sequence[Tree]) -> tuple[Tree, list[str]]:
    missing = object()
    common: Tree = {}
    different: list[str] = []
    for path in dict.fromkeys(path for of_run in options for path in of_run):
        first = options[0].get(path, missing)
        if all(of_run.get(path, missing) == first for of_run in options[1:]):
            common[path] = first
        else:
            different.append(path)
    return common, different


@cache
def _own_defaults() -> Tree:
    """Of the parts that an older run's config may lack altogether."""
    return {
        name: info.default.dump()
        for name, info in ExperimentConfig.model_fields.items()
        if isinstance(info.default, Node)
    }


def _no_run(name: str) -> Refusal:
    return refusal(404, "no such run", place="run", value=name, hint="the table of runs has all there are")


def _leads_out(path: str) -> bool:
    """Whether a part of the run is a link, to wherever that may be."""
    return any(os.path.islink(f"{path}/{part}") for part in PARTS)


def _signature(path: str, names: tuple[str, ...]) -> Signature:
    found: list[tuple[int, int] | None] = []
    for name in names:
        try:
            status = os.stat(f"{path}/{name}")
        except FileNotFoundError:
            found.append(None)
        else:
            found.append((status.st_mtime_ns, status.st_size))
    return tuple(found)


def _summary_of(options: Tree, results: dict[str, Any], environment: dict[str, Any]) -> dict[str, Any]:
    return {
        "task": options.get("task.kind"),
        "model": options.get("model.kind"),
        "seed": options.get("seed"),
        "parameters": results.get("parameters"),
        "created": environment.get("created"),
        "seconds": results.get("seconds"),
        "primary_metric": _headline(results),
    }


def _headline(results: dict[str, Any]) -> dict[str, Any] | None:
    """The one number of a run: on the test set, if it was measured there."""
    name, metrics = results.get("primary_metric"), results.get("metrics", {})
    for split in ("test", "validation"):
        if name in metrics.get(split, {}):
            return {"name": name, "split": split, "value": metrics[split][name]}
    return None


NOTHING_KNOWN: dict[str, Any] = {
    "step": 0,
    "total_steps": None,
    **_summary_of({}, {}, {}),
    "last": None,
    "differences": {},
}
"""The row of a run that is none yet."""
