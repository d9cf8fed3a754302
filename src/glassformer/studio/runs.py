"""Runs in a folder: the table of runs, their growing event logs, and the routes that serve both.

A resumed run truncates its event log to its checkpoint and appends. A reader that was ahead must then start
again. It notices that the log is shorter than before, or that the bytes before its position have changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from glassformer.core.config import Tree, dump_yaml, flatten
from glassformer.core.errors import UserError
from glassformer.runs.folder import (
    CONFIG,
    CONFIG_JSON,
    RunFolder,
    Status,
    list_run_groups,
    options_in_force,
)
from glassformer.storage.files import SUMS
from glassformer.studio import limits
from glassformer.studio.models import model_info
from glassformer.web.messages import Refusal, query_number, refusal

if TYPE_CHECKING:
    from glassformer.studio.app import Studio


MARK_BYTES = 512
TAIL_BYTES = 1 << 14
STEP = b'{"event": "step"'
"""Start of a step event as `EventLog` writes it. Only lines that start so may be dropped from a long log."""
LOSS = re.compile(rb'"loss": (-?[0-9.]+(?:e[-+]?[0-9]+)?|NaN|-?Infinity)')


def read_after(
    path: Path,
    after: int,
    mark: str | None,
    *,
    max_steps: int = limits.STEPS,
    max_bytes: int = limits.EVENTS_BYTES,
) -> dict[str, Any]:
    """Return a reply with the events of a log from byte `after` on.

    `mark` is the hash in the previous reply, which ended at that byte. If the log no longer matches it, the
    reply asks the reader to start again.
    """
    try:
        with open(path, "rb") as file:
            if after > 0 and not _continues(file, after, mark):
                return _reply([], 0, None, is_cut=True, is_more=True)
            file.seek(after)
            data = file.read(max_bytes)
            end = after + data.rfind(b"\n") + 1  # the last line may be incomplete
            is_more = len(data) == max_bytes and end > after
            lines = _thin_steps(data[: end - after].splitlines(), max_steps)
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


def _thin_steps(lines: list[bytes], max_steps: int) -> list[bytes]:
    """Return the lines of a log with at most `max_steps` step events; other events stay.

    Each stretch of steps keeps its first step and the steps with the lowest and the highest loss.
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
    """Return the loss in a step event, or infinity if the loss is missing or NaN."""
    match = LOSS.search(line)
    loss = float(match[1]) if match else math.nan
    return math.inf if math.isnan(loss) else loss


def _continues(file: IO[bytes], after: int, mark: str | None) -> bool:
    if os.fstat(file.fileno()).st_size < after:
        return False
    file.seek(after - 1)
    return file.read(1) == b"\n" and mark in (None, _mark(file, after))


def _mark(file: IO[bytes], end: int) -> str | None:
    """Return a hash of the last bytes of a log before `end`, which shows if the log was rewritten.

    Events contain times, so the logs of two equal runs have different hashes.
    """
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
    """Return the last event of a kind in the last `TAIL_BYTES` bytes of the log, or None."""
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


TASK = "task.kind"
NAME = re.compile(r"[^/\\\0.][^/\\\0]{0,254}")
"""Pattern for run names: a folder directly in the runs folder that is not hidden."""
SUMMARISED = (CONFIG, CONFIG_JSON, SUMS, "results.json", "environment.json")
PARTS = (*SUMMARISED, "events.jsonl", "status.json", "task.json", "lock", "checkpoints")
LIVE_STATES = {"new", "running", "stalled"}
"""States that change without a change of a file if the process ends."""

UNKNOWN = Status("new", 0, None, None)

Signature = tuple[tuple[int, int] | None, ...]


@dataclass
class _CachedRun:
    """Cached table row of a run, with times and sizes of the files it was read from."""

    signature: Signature = ()
    summary: dict[str, Any] = field(default_factory=dict)
    options: Tree = field(default_factory=dict)
    status_signature: Signature = ()
    status: Status = UNKNOWN
    log_signature: Signature = ()
    last: dict[str, Any] | None = None


def read_status(run: RunFolder) -> Status:
    """Return the status of a run, which is `damaged` if the status file is invalid."""
    try:
        return run.status()
    except (UserError, TypeError, AttributeError):
        return Status("damaged", 0, None, None)


def display_path(path: Path) -> str:
    """Return a path relative to the working directory, or unchanged if it is outside."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


class RunsFolder:
    """Folder that contains runs. Its table reads only files that have changed since the last request."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._cached: dict[str, _CachedRun] = {}
        self._changes = 0
        self._compared: dict[Any, tuple[Tree, list[str]]] = {}
        self._compared_state: tuple[int, list[str]] | None = None
        self._colours: dict[str, int] = {}
        self._lock = threading.Lock()

    def path_of(self, name: str) -> Path:
        """Return the path of a run by name, or raise a `Refusal` if the name leads out of the folder."""
        path = self.path / name
        if not NAME.fullmatch(name) or path.parent != self.path or os.path.islink(path):
            raise _no_run(name)
        return path

    def open(self, name: str) -> RunFolder:
        run = RunFolder(self.path_of(name))
        if not run.exists() or _has_link(str(run.path)):
            raise _no_run(name)
        return run

    def names(self) -> list[str]:
        """Return the names of the runs, the newest first."""
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
                if not _has_link(entry.path):
                    found.append((config.st_mtime_ns, entry.name))
        return [name for _, name in sorted(found, reverse=True)]

    def groups(self) -> list[dict[str, Any]]:
        """Return name and number of runs of each sweep or study in the folder."""
        with contextlib.suppress(OSError):
            found = list_run_groups(self.path).items()
            return [
                {"name": path.name, "runs": len(runs)} for path, runs in found if NAME.fullmatch(path.name)
            ]
        return []

    def table(self) -> dict[str, Any]:
        """Return one row per run, with the config options in which the runs of a task differ."""
        with self._lock:  # one reader at a time; the next one finds everything cached
            names = self.names()
            for removed in self._cached.keys() - set(names):
                del self._cached[removed]
            rows = [self._row(name) for name in names]
            options = [self._cached[name].options for name in names]
            compared = self._compare(names)
            self._colours = assign_colours(self._colours, names[::-1])
        for row, run_options in zip(rows, options, strict=True):
            _, different = compared.get(row["task"], ({}, []))
            row["differences"] = {path: run_options[path] for path in different if path in run_options}
            row["colour"] = self._colours[row["name"]]
        tasks = {
            str(task): {"common": common, "labels": short_labels(different, {*common, *different})}
            for task, (common, different) in compared.items()
        }
        return {"runs": rows, "tasks": tasks}

    def _row(self, name: str) -> dict[str, Any]:
        cached = self._cached.setdefault(name, _CachedRun())
        self._refresh(f"{self.path}/{name}", cached)
        last = cached.last or {}
        summary = dict(cached.summary)
        if summary.get("seconds") is None:
            summary["seconds"] = last.get("elapsed", last.get("seconds"))
        return {"name": name, **_status_document(cached.status), **summary, "last": cached.last}

    def _refresh(self, path: str, cached: _CachedRun) -> None:
        """Read changed files. Paths are strings, because `Path` is too slow for a thousand runs."""
        try:
            status = _signature(path, ("status.json",))
            if status != cached.status_signature or cached.status.name in LIVE_STATES:
                cached.status, cached.status_signature = RunFolder(Path(path)).status(), status
            signature = _signature(path, SUMMARISED)
            if signature != cached.signature:
                run = RunFolder(Path(path))
                cached.options = flatten(run.config())
                cached.summary = _summary_of(cached.options, run.results(), run.environment())
                cached.signature = signature
                self._changes += 1
            log = _signature(path, ("events.jsonl",))
            if log != cached.log_signature:
                cached.last, cached.log_signature = last_event(f"{path}/events.jsonl", "step"), log
        except (UserError, OSError, TypeError, AttributeError) as error:
            cached.status = Status("damaged", 0, None, None)
            cached.signature = cached.status_signature = ()
            cached.summary = {**_summary_of({}, {}, {}), "error": str(error).splitlines()[0]}
            cached.options = {}
            self._changes += 1

    def _compare(self, names: list[str]) -> dict[Any, tuple[Tree, list[str]]]:
        """Return for each task: the options that are equal in its runs, and the paths of the others."""
        state = (self._changes, names)
        if state != self._compared_state:
            by_task = group_by_task({name: self._cached[name].options for name in names})
            self._compared = {task: compare_options(list(group.values())) for task, group in by_task.items()}
            self._compared_state = state
        return self._compared


def group_by_task(options: Mapping[str, Tree]) -> dict[Any, dict[str, Tree]]:
    """Group the options of runs by task kind. Runs of different tasks have few options in common."""
    groups: dict[Any, dict[str, Tree]] = {}
    for name, run_options in options.items():
        if run_options:
            groups.setdefault(run_options.get(TASK), {})[name] = run_options
    return groups


def assign_colours(known: Mapping[str, int], names: Sequence[str]) -> dict[str, int]:
    """Return the colour number of each run, from the oldest to the newest. A run keeps its colour.

    A hash of the name selects one of the solid colours. If another run has it, the next of the least used
    colours is used, a dashed one only if all solid ones are used as often.
    """
    colours = {name: known[name] for name in names if name in known}
    used = Counter(colours.values())
    for name in names:
        if name in colours:
            continue
        first = int.from_bytes(hashlib.sha256(name.encode("utf-8", "replace")).digest()[:4], "big")
        solid = [(first + offset) % limits.COLOURS for offset in range(limits.COLOURS)]
        order = [*solid, *(colour + limits.COLOURS for colour in solid)]
        colours[name] = min(order, key=lambda colour: used[colour])
        used[colours[name]] += 1
    return colours


def short_labels(paths: Iterable[str], among: Collection[str]) -> dict[str, str]:
    """Return the shortest unambiguous name of each option: `position` for `model.position.kind`."""
    ends = {path: _ends(path, among) for path in among}
    counts = Counter(end for of_path in ends.values() for end in of_path)
    return {path: next((end for end in ends[path] if counts[end] == 1), path) for path in paths}


def _ends(path: str, among: Collection[str]) -> list[str]:
    """Return possible labels of a config path, shortest first: `position`, then `model position`.

    Both are labels of `model.position.kind`, without `kind`. A label of another option of that section starts
    at the section: `position base` for `model.position.base`.
    """
    section = path.rpartition(".")[0]
    parts = path.removesuffix(".kind").split(".")
    is_option_of_kind = len(parts) > 2 and path != f"{section}.kind" and f"{section}.kind" in among
    shortest = len(parts) - (2 if is_option_of_kind else 1)
    return [" ".join(parts[start:]).replace("_", " ") for start in range(shortest, -1, -1)]


def compare_options(options: Sequence[Tree]) -> tuple[Tree, list[str]]:
    missing = object()
    common: Tree = {}
    different: list[str] = []
    for path in dict.fromkeys(path for run_options in options for path in run_options):
        first = options[0].get(path, missing)
        if all(run_options.get(path, missing) == first for run_options in options[1:]):
            common[path] = first
        else:
            different.append(path)
    # Kinds first, then options that all runs have: other options belong to one kind only.
    order = {
        path: (not path.endswith(".kind"), not all(path in run_options for run_options in options))
        for path in different
    }
    return common, sorted(different, key=lambda path: order[path])


def _no_run(name: str) -> Refusal:
    return refusal(404, "no such run", path="run", value=name, hint="choose a run from the table")


def _has_link(path: str) -> bool:
    """Return True if a file of the run is a symbolic link, which could lead out of the folder."""
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
        "task": options.get(TASK),
        "model": options.get("model.kind"),
        "seed": options.get("seed"),
        "parameters": results.get("parameters"),
        "created": environment.get("created"),
        "seconds": results.get("seconds"),
        "primary_metric": _primary_metric(results),
    }


def _primary_metric(results: dict[str, Any]) -> dict[str, Any] | None:
    """Return the primary metric on the test set, or on the validation set if there is no test set."""
    name, metrics = results.get("primary_metric"), results.get("metrics", {})
    for split in ("test", "validation"):
        if name in metrics.get(split, {}):
            return {"name": name, "split": split, "value": metrics[split][name]}
    return None


EMPTY_ROW: dict[str, Any] = {
    "step": 0,
    "total_steps": None,
    **_summary_of({}, {}, {}),
    "last": None,
    "differences": {},
    "colour": 0,
}
"""Table row for a training that has not created its run yet."""


FILM_POINTS = 2000


async def table(studio: Studio, request: Request) -> Response:
    return await studio.reply(request, _table, studio)


def _table(studio: Studio) -> dict[str, Any]:
    document = studio.folder.table()
    names = {row["name"] for row in document["runs"]}
    rows = [*studio.trainings.rows(names), *document["runs"]]
    return document | {"runs": rows, "groups": studio.folder.groups()}


async def run(studio: Studio, request: Request) -> Response:
    folder = studio.folder.open(request.path_params["run"])
    info = await model_info(studio, folder)
    return await studio.reply(request, lambda: _described(studio, folder) | info)


def _described(studio: Studio, folder: RunFolder) -> dict[str, Any]:
    config = folder.config()
    return {
        "name": folder.path.name,
        **_status_document(read_status(folder)),
        "config": options_in_force(flatten(config)),
        "yaml": dump_yaml(config),
        "results": folder.results(),
        "warnings": [*folder.warnings(), *folder.training_warnings()],
        "environment": folder.environment(),
        "checkpoints": checkpoints(folder),
        **studio.trainings.outcome(folder.path.name),
        "command": studio.commands.train_again(folder),
    }


def _status_document(status: Status) -> dict[str, Any]:
    return {"status": status.name, "step": status.step, "total_steps": status.total_steps}


def checkpoints(folder: RunFolder) -> list[dict[str, Any]]:
    """Return the checkpoints from oldest to newest, one per step, because copies have the same weights."""
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
    after, mark = query_number(request, "after", 0), request.query_params.get("mark")
    return await studio.reply(request, _events, folder, after, mark)


def _events(folder: RunFolder, after: int, mark: str | None) -> dict[str, Any]:
    # The status is read first: if the run is over, the log read after it is complete.
    status = read_status(folder)
    return read_after(folder.events.path, after, mark) | _status_document(status)


async def compare(studio: Studio, request: Request) -> Response:
    names = request.query_params.getlist("run")
    if not 1 <= len(names) <= limits.COMPARED_RUNS:
        raise refusal(
            400,
            "the number of runs to compare is wrong",
            path="run",
            value=len(names),
            hint=f"choose 1 to {limits.COMPARED_RUNS} runs, as in run=A&run=B",
        )
    folders = [studio.folder.open(name) for name in dict.fromkeys(names)]
    return await studio.reply(request, lambda: {"tasks": _differences(folders)})


def _differences(folders: list[RunFolder]) -> list[dict[str, Any]]:
    """Return the runs of each task, and the values of the options in which they differ."""
    options = {folder.path.name: options_in_force(flatten(folder.config())) for folder in folders}
    found = []
    for task, group in group_by_task(options).items():
        _, different = compare_options(list(group.values()))
        values = {
            path: {name: run_options[path] for name, run_options in group.items() if path in run_options}
            for path in different
        }
        found.append({"task": task, "runs": list(group), "differences": values})
    return found


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
