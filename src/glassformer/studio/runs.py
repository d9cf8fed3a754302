"""A run's record, read as it grows: what came after a byte, whole lines only.

A resumed run cuts its record back to its checkpoint and writes on. A reader who had read further begins
again: the record is shorter than what was read, or what stands before the byte is not what stood there.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from glassformer.core.config import Node, Tree, dump_yaml, flatten
from glassformer.core.errors import UserError
from glassformer.runs.experiment import ExperimentConfig
from glassformer.runs.folder import CONFIG, CONFIG_JSON, RunFolder, Status
from glassformer.storage.checksums import SUMS
from glassformer.studio import limits
from glassformer.studio.messages import Refusal, number_of, refusal
from glassformer.studio.models import introduce

if TYPE_CHECKING:
    from glassformer.studio.app import Studio


MARK_BYTES = 512
TAIL_BYTES = 1 << 14
STEP = b'{"event": "step"'
"""As `EventLog` writes it; a step that is written otherwise is never left out."""
LOSS = re.compile(rb'"loss": (-?[0-9.]+(?:e[-+]?[0-9]+)?|NaN|-?Infinity)')


def read_after(
    path: Path,
    after: int,
    mark: str | None,
    *,
    max_steps: int = limits.STEPS,
    max_bytes: int = limits.EVENTS_BYTES,
) -> dict[str, Any]:
    """The events from byte `after` on; `mark` is what the reply that ended there had."""
    try:
        with open(path, "rb") as file:
            if after > 0 and not _continues(file, after, mark):
                return _reply([], 0, None, is_cut=True, is_more=True)
            file.seek(after)
            data = file.read(max_bytes)
            end = after + data.rfind(b"\n") + 1  # the last line may be half written
            is_more = len(data) == max_bytes and end > after
            lines = _thinned(data[: end - after].splitlines(), max_steps)
            return _reply(_parse_events(lines), end, _mark(file, end), is_more=is_more)
    except FileNotFoundError:
        return _reply([], 0, None, is_cut=after > 0)


def _reply(
    events: list[dict[str, Any]],
    end: int,
    mark: str | None,
    *,
    is_cut: bool = False,
    is_more: bool = False,
) -> dict[str, Any]:
    return {"events": events, "next": end, "mark": mark, "restart": is_cut, "more": is_more}


def _thinned(lines: list[bytes], max_steps: int) -> list[bytes]:
    """Of a long record a part of the steps, from which no spike is missing; all else stays.

    Of each stretch of steps there are the first one, and those with the smallest and the largest loss.
    """
    steps = [number for number, line in enumerate(lines) if line.startswith(STEP)]
    if len(steps) <= max_steps:
        return lines
    dropped = set(steps[:-1])
    stretch = -(-3 * len(steps) // max_steps)
    for start in range(0, len(steps), stretch):
        here = steps[start : start + stretch]
        losses = [_loss(lines[number]) for number in here]
        dropped -= {here[0], here[losses.index(min(losses))], here[losses.index(max(losses))]}
    return [line for number, line in enumerate(lines) if number not in dropped]


def _loss(line: bytes) -> float:
    """What is no number is the largest of all."""
    match = LOSS.search(line)
    loss = float(match[1]) if match else math.nan
    return math.inf if math.isnan(loss) else loss


def _continues(file: IO[bytes], after: int, mark: str | None) -> bool:
    if os.fstat(file.fileno()).st_size < after:
        return False
    file.seek(after - 1)
    return file.read(1) == b"\n" and mark in (None, _mark(file, after))


def _mark(file: IO[bytes], end: int) -> str | None:
    """Tells what stands before a byte: equal runs write equal lines but for their clocks."""
    if end == 0:
        return None
    start = max(0, end - MARK_BYTES)
    file.seek(start)
    return hashlib.sha256(file.read(end - start)).hexdigest()[:16]


def _parse_events(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    found = []
    for line in lines:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            found.append(event)
    return found


def last_event(path: str | Path, kind: str) -> dict[str, Any] | None:
    """The last of a kind near the end of the record."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - TAIL_BYTES))
            data = file.read(TAIL_BYTES)
    except OSError:
        return None
    for line in reversed(data[: data.rfind(b"\n") + 1].splitlines()):
        for event in _parse_events([line]):
            if event.get("event") == kind:
                return event
    return None


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
    return refusal(404, "no such run", path="run", value=name, hint="the table of runs has all there are")


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


FILM_POINTS = 2000


async def table(studio: Studio, request: Request) -> Response:
    return await studio.reply(request, _table, studio)


def _table(studio: Studio) -> dict[str, Any]:
    document = studio.folder.table()
    there = {row["name"] for row in document["runs"]}
    return document | {"runs": [*studio.trainings.rows(there), *document["runs"]]}


async def run(studio: Studio, request: Request) -> Response:
    folder = studio.folder.open(request.path_params["run"])
    introduction = await introduce(studio, folder)
    return await studio.reply(request, lambda: _described(studio, folder) | introduction)


def _described(studio: Studio, folder: RunFolder) -> dict[str, Any]:
    config = folder.config()
    return {
        "name": folder.path.name,
        **_status(folder),
        "config": flatten(config),
        "yaml": dump_yaml(config),
        "results": folder.results(),
        "environment": folder.environment(),
        "checkpoints": checkpoints(folder),
        "said": studio.trainings.said(folder.path.name),
        "command": studio.commands.train_again(folder),
    }


def _status(folder: RunFolder) -> dict[str, Any]:
    status = status_of(folder)
    return {"status": status.name, "step": status.step, "total_steps": status.total_steps}


def checkpoints(folder: RunFolder) -> list[dict[str, Any]]:
    """From the oldest to the newest, one a step: what was kept for the film too has the same weights."""
    store = folder.checkpoints()
    best, latest = store.pointed("best"), store.pointed("latest")
    names: dict[int, str] = {}
    for name in sorted(store.names(), key=len):
        if (step := name.split("-")[1]).isdecimal():
            names.setdefault(int(step), name)
    return [
        {"name": name, "step": step, "is_best": name == best, "is_latest": name == latest}
        for step, name in sorted(names.items())
    ]


async def events(studio: Studio, request: Request) -> Response:
    folder = studio.folder.open(request.path_params["run"])
    after, mark = number_of(request, "after", 0), request.query_params.get("mark")
    return await studio.reply(request, _events, folder, after, mark)


def _events(folder: RunFolder, after: int, mark: str | None) -> dict[str, Any]:
    # The status first: when it says that the run is over, the record below it is complete.
    status = _status(folder)
    return read_after(folder.events.path, after, mark) | status


async def compare(studio: Studio, request: Request) -> Response:
    names = request.query_params.getlist("run")
    if not 1 <= len(names) <= limits.COMPARED_RUNS:
        raise refusal(
            400,
            "which runs?",
            path="run",
            value=len(names),
            hint=f"run=A&run=B, at most {limits.COMPARED_RUNS}",
        )
    folders = [studio.folder.open(name) for name in dict.fromkeys(names)]
    return await studio.reply(request, lambda: {"differences": _differences(folders)})


def _differences(folders: list[RunFolder]) -> dict[str, dict[str, Any]]:
    options = {folder.path.name: flatten(folder.config()) for folder in folders}
    paths = dict.fromkeys(path for of_run in options.values() for path in of_run)
    missing = object()
    return {
        path: {name: of_run[path] for name, of_run in options.items() if path in of_run}
        for path in paths
        if len({repr(of_run.get(path, missing)) for of_run in options.values()}) > 1
    }


async def film(studio: Studio, request: Request) -> Response:
    folder = studio.folder.open(request.path_params["run"])
    return await studio.reply(request, _film, folder)


def _film(folder: RunFolder) -> dict[str, Any]:
    events: list[dict[str, Any]] = []
    reply: dict[str, Any] = {"next": 0, "mark": None, "more": True}
    while reply["more"] and not reply.get("restart"):
        reply = read_after(folder.events.path, reply["next"], reply["mark"], max_steps=FILM_POINTS)
        events += reply["events"]
    return {
        "checkpoints": [{"name": item["name"], "step": item["step"]} for item in checkpoints(folder)],
        "scores": [event for event in events if event.get("event") == "head_probe"],
        "loss": [[event.get("step"), event.get("loss")] for event in events if event.get("event") == "step"],
    }
