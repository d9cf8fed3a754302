"""Studies of published tables: run what is missing, write `results.json`, `table.md` and pictures.

Every run of a study is a `glassformer train` process of its own. Finished runs are reused, stopped runs
resumed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from glob import escape
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from glassformer.core.config import Tree, parse_yaml
from glassformer.core.errors import UserError, user_error
from glassformer.core.system import threads_per_worker
from glassformer.runs.experiment import ExperimentConfig, resolve
from glassformer.runs.folder import RunFolder
from glassformer.storage.files import atomic_write, json_bytes
from glassformer.training.trainer import StopSignals

Log = Callable[[str], None]
Results = Mapping[str, Any]
"""Content of a run's `results.json` as a mapping."""
Overrides = Mapping[str, Any]
Row = dict[str, Any]

POLL_SECONDS = 0.5
STATUS_SECONDS = 30.0
"""Interval between two progress lines of a long run, in seconds."""


@dataclass(frozen=True)
class Job:
    """One training run of a study."""

    name: str
    """Name of the run in progress messages."""
    config: ExperimentConfig
    path: Path
    plugins: Sequence[Path] = ()

    def results(self) -> dict[str, Any]:
        """Return the content of the run's `results.json`, or an empty dict if the run is not finished."""
        folder = RunFolder(self.path)
        return folder.results() if folder.exists() else {}

    def validations(self) -> list[dict[str, Any]]:
        """Return the last validation event of each epoch; a training that rolls back repeats epochs."""
        events = (event for event in RunFolder(self.path).events if event["event"] == "validation")
        found = {event["epoch"]: event for event in events}
        return [found[epoch] for epoch in sorted(found)]


def config_key(config: ExperimentConfig, *others: str) -> str:
    """Return a short hash of everything that determines a run's results.

    The hash is part of the run's name, so that a table never includes a run with other options.
    """
    return hashlib.sha256(json.dumps([config.fingerprint(), *others]).encode()).hexdigest()[:8]


def run_path(folder: Path, name: str, config: ExperimentConfig, key: str) -> Path:
    """Return the run folder `name-key`. If it does not exist, prefer a folder `name-*` with an equal config.

    A new option of the program changes the hash `key`. Earlier runs are still found by their config.
    """
    path = folder / f"{name}-{key}"
    if RunFolder(path).exists():
        return path
    earlier = (other for other in sorted(folder.glob(f"{escape(name)}-*")) if _has_config(other, config))
    return next(earlier, path)


def _has_config(path: Path, config: ExperimentConfig) -> bool:
    try:
        return RunFolder(path).exists() and resolve(str(path)).identity() == config.identity()
    except UserError:  # from another version, or with kinds of a plug-in that is not loaded
        return False


def run_all(
    jobs: Sequence[Job], *, workers: int, threads: int, describe: Callable[[Results], str], log: Log
) -> None:
    """Run all jobs on concurrent workers, and log the text that `describe` returns for each result.

    A stop signal is forwarded to the runs, so that they save and stop.
    """
    done = 0

    def run(job: Job) -> None:
        nonlocal done
        if signals.is_set():
            return
        results = job.results() or _train(job, threads, log, signals)
        if results:
            done += 1
            log(f"{done}/{len(jobs)}  {job.name}: {describe(results)}")

    with StopSignals(log) as signals, ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(run, jobs):
            pass
    if signals.is_set():
        raise SystemExit(signals.exit_code)


def _train(job: Job, threads: int, log: Log, signals: StopSignals) -> dict[str, Any]:
    """Run `glassformer train --json`; return its results, or an empty dict if a signal stopped it."""
    job.path.mkdir(parents=True, exist_ok=True)
    file = job.path / "requested.yaml"
    file.write_text(yaml.safe_dump(job.config.dump(), sort_keys=False), encoding="utf-8")
    command = [sys.executable, "-m", "glassformer", "train", str(file), "--run", str(job.path), "--resume"]
    command += [word for plugin in job.plugins for word in ("--plugin", str(plugin))]
    child = subprocess.Popen(
        [*command, "--quiet", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
    )
    output, errors = _wait(child, job, log, signals)
    if signals.is_set():
        return {}
    if child.returncode:
        raise user_error(
            f"training failed: {errors.strip()[-300:]}", path=str(job.path), hint=" ".join(command[2:])
        )
    return dict(json.loads(output))


def _wait(child: subprocess.Popen[str], job: Job, log: Log, signals: StopSignals) -> tuple[str, str]:
    """Wait for a training process to end; return its standard output and standard error."""
    last_logged = time.monotonic()
    while True:
        try:
            return child.communicate(timeout=POLL_SECONDS)
        except subprocess.TimeoutExpired:
            if signals.is_set():
                child.terminate()
                return child.communicate()
        if time.monotonic() - last_logged > STATUS_SECONDS:
            last_logged = time.monotonic()
            status = RunFolder(job.path).status()
            if status.total_steps:
                log(f"{job.name}: step {status.step:,} of {status.total_steps:,}")


@dataclass(frozen=True)
class StudyContext:
    """Folder and command-line options of one `glassformer reproduce`."""

    folder: Path
    is_quick: bool
    seeds: int
    workers: int
    threads: int
    """Number of threads per worker."""
    with_theirs: bool
    """True if the published recipe is trained besides ours."""
    log: Log
    trains: bool = True
    """True if unfinished runs are trained; False if only finished runs are reported."""
    earlier: Mapping[str, Any] = field(default_factory=dict)
    """Content of an earlier `results.json` whose measurements are reused."""

    def run(self, jobs: Sequence[Job], describe: Callable[[Results], str]) -> None:
        """Run jobs with the number of workers and threads that the user chose."""
        run_all(jobs, workers=self.workers, threads=self.threads, describe=describe, log=self.log)

    def reject_partial_options(self, *, may_be_unfinished: bool = False) -> None:
        """Raise a user error for `--finished` and `--keep`, because the table is measured as a whole.

        With `may_be_unfinished`, `--finished` is accepted: the table then has the rows that are complete.
        """
        is_unfinished = not self.trains and not may_be_unfinished
        for option, is_given in (("--finished", is_unfinished), ("--keep", bool(self.earlier))):
            if is_given:
                raise user_error("this table is measured as a whole", path=option, hint="omit this option")


@dataclass(frozen=True, kw_only=True)
class Study:
    """Published table that `glassformer reproduce` can measure again."""

    name: str
    title: str
    metric: str
    about: str
    seeds: int = 3

    def measure(self, context: StudyContext) -> dict[str, Any]:
        """Run the measurements that are missing; return `rows` and further content of `results.json`."""
        raise NotImplementedError

    def markdown(self, document: Mapping[str, Any]) -> str:
        """Return the text of `table.md` for the content of `results.json`."""
        raise NotImplementedError


def load_definition(name: str) -> Tree:
    """Read the published numbers, recipes and texts of a study from its YAML file in this package."""
    file = resources.files("glassformer.studies") / f"{name}.yaml"
    definition = parse_yaml(file.read_text(encoding="utf-8"), file.name)
    assert isinstance(definition, dict)
    return definition


def texts_of(definition: Tree) -> dict[str, Any]:
    """Return the name, title, metric and description in a study's definition, by key."""
    return {key: definition[key] for key in ("name", "title", "metric", "about")}


def reproduce(
    study: Study,
    folder: Path,
    *,
    is_quick: bool = False,
    seeds: int | None = None,
    workers: int = 1,
    with_theirs: bool = True,
    trains: bool = True,
    keep: Path | None = None,
    log: Log = lambda text: None,
) -> dict[str, Any]:
    """Run missing measurements, write `results.json` and `table.md`, and return the content of the former."""
    if seeds is not None and seeds < 1:
        raise user_error("must be at least 1", path="--seeds", value=seeds, hint="--seeds 3")
    earlier = {} if keep is None else _read_earlier(keep, study.name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise user_error(
            f"cannot be created: {error.strerror}", path=str(folder), hint="choose another folder with --out"
        ) from None
    options: dict[str, Any] = {"--quick": is_quick, "--seeds": seeds}
    options |= {"--workers": workers} if workers > 1 else {}
    options |= {"--ours-only": not with_theirs, "--finished": not trains, "--keep": keep}
    seeds = seeds or (1 if is_quick else study.seeds)
    threads = threads_per_worker(workers)
    try:
        context = StudyContext(folder, is_quick, seeds, workers, threads, with_theirs, log, trains, earlier)
        measured = study.measure(context)
    except BaseException:
        with contextlib.suppress(OSError):  # a study that failed before its first run leaves no folder
            folder.rmdir()
        raise
    document = {
        "name": study.name,
        "title": study.title,
        "metric": study.metric,
        "command": ["glassformer", "reproduce", study.name, *_words(options)],
        "is_quick": is_quick,
        "with_theirs": with_theirs,
        "workers": workers,
        "threads_per_worker": threads,
        "about": study.about,
        **measured,
    }
    atomic_write(folder / "results.json", json_bytes(document))
    atomic_write(folder / "table.md", study.markdown(document).encode())
    return document


def _words(options: Mapping[str, Any]) -> list[str]:
    """Return command-line arguments, such as `--seeds 3`, for the options that are set."""
    given = {name: value for name, value in options.items() if value not in (None, False)}
    return [
        word for name, value in given.items() for word in ([name] if value is True else [name, str(value)])
    ]


def _read_earlier(file: Path, name: str) -> dict[str, Any]:
    try:
        document = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise user_error(
            f"cannot be read: {error}",
            path="--keep",
            value=str(file),
            hint="give the results.json of an earlier full run",
        ) from None
    if not isinstance(document, dict) or document.get("name") != name or document.get("is_quick"):
        raise user_error(
            f"is not a full measurement of {name}",
            path="--keep",
            value=str(file),
            hint=f"give a results.json of glassformer reproduce {name}",
        )
    return document


def metric_on_test(results: Results, metric: str) -> float:
    """Return the value of a metric on the test set."""
    return float(results["metrics"]["test"][metric])


def heading(document: Mapping[str, Any]) -> list[str]:
    """Return the first lines of `table.md`: title, description and command."""
    lines = [f"# {document['title']}", "", document["about"], ""]
    command = document.get("command")
    return [*lines, f"Written by `{shlex.join(command)}`.", ""] if command else lines


def table_row(cells: Sequence[object]) -> str:
    """Return one row of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def table_head(*headings: str) -> list[str]:
    """Return the heading row and the separator line of a Markdown table."""
    return [table_row(headings), f"|{'---|' * len(headings)}"]


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, such as `1 worker` or `2 workers`."""
    return f"{count} {noun}{'s' if count > 1 else ''}"
