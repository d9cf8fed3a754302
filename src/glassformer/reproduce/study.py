"""A study: settings × recipes × seeds, each an ordinary run, and one table with intervals.

A study that was interrupted goes on: finished runs are kept, unfinished ones are resumed.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from glassformer.errors import user_error
from glassformer.experiment import ExperimentConfig, resolve
from glassformer.runs import RunFolder
from glassformer.training.files import json_bytes, replace_file

Say = Callable[[str], None]

# Two-sided 95 % quantiles of Student's t, by degrees of freedom.
T_95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


@dataclass(frozen=True)
class Setting:
    """A row of the table: what was published for it, and how we run it."""

    name: str
    published: float | None
    what: str
    overrides: Mapping[str, Any]
    theirs: Mapping[str, Any] | None = None
    """The published recipe, as further overrides; None where it is not run."""
    is_quick: bool = False
    quick: Mapping[str, Any] | None = None
    """Further overrides of the small version."""


@dataclass(frozen=True)
class Study:
    name: str
    title: str
    metric: str
    settings: Sequence[Setting]
    about: str
    seeds: int = 3


@dataclass(frozen=True)
class _Job:
    setting: Setting
    recipe: str
    seed: int
    config: ExperimentConfig
    path: Path


def reproduce(
    study: Study,
    folder: Path,
    *,
    is_quick: bool = False,
    seeds: int | None = None,
    workers: int = 1,
    with_theirs: bool = True,
    say: Say = lambda text: None,
) -> dict[str, Any]:
    """Run what is missing, then write `table.md` and `results.json` into the folder and return the latter."""
    jobs = _jobs(study, folder, is_quick, seeds or (1 if is_quick else study.seeds), with_theirs)
    threads = max(1, (os.cpu_count() or 1) // workers)
    done = 0

    def train(job: _Job) -> None:
        nonlocal done
        results = _train(job, threads)
        done += 1
        value = _value(results, study.metric)
        who = f"{job.setting.name}, {job.recipe}, seed {job.seed}"
        say(f"{done}/{len(jobs)}  {who}: {study.metric} {value:.5f}")

    with ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(train, jobs):
            pass
    document = {
        "name": study.name,
        "title": study.title,
        "metric": study.metric,
        "is_quick": is_quick,
        "workers": workers,
        "threads_per_worker": threads,
        "rows": _rows(study, jobs),
    }
    replace_file(folder / "results.json", json_bytes(document))
    replace_file(folder / "table.md", markdown(study, document).encode())
    return document


def _jobs(study: Study, folder: Path, is_quick: bool, seeds: int, with_theirs: bool) -> list[_Job]:
    jobs = []
    for setting in study.settings:
        if is_quick and not setting.is_quick:
            continue
        recipes: dict[str, Mapping[str, Any]] = {"ours": {}}
        if setting.theirs is not None and with_theirs:
            recipes["theirs"] = setting.theirs
        for recipe, changes in recipes.items():
            for seed in range(seeds):
                overrides = {**setting.overrides, **changes, **((setting.quick or {}) if is_quick else {})}
                config = resolve(setting.what, {**overrides, "seed": seed})
                path = folder / "runs" / f"{setting.name.replace(' ', '-')}-{recipe}-{seed}"
                jobs.append(_Job(setting, recipe, seed, config, path))
    # The longest first, so that the last worker does not wait alone.
    return sorted(jobs, key=lambda job: -job.config.dump()["task"].get("length", 0))


def _train(job: _Job, threads: int) -> dict[str, Any]:
    folder = RunFolder(job.path)
    if folder.exists() and folder.results():
        return folder.results()
    job.path.mkdir(parents=True, exist_ok=True)
    file = job.path / "asked.yaml"
    file.write_text(yaml.safe_dump(job.config.dump(), sort_keys=False), encoding="utf-8")
    command = [sys.executable, "-m", "glassformer", "train", str(file), "--run", str(job.path)]
    child = subprocess.run(
        [*command, "--resume", "--quiet", "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        check=False,
    )
    if child.returncode:
        raise user_error(
            f"training failed: {child.stderr.strip()[-300:]}",
            place=str(job.path),
            remedy=" ".join([*command[2:], "--resume"]),
        )
    return dict(json.loads(child.stdout))


def _value(results: Mapping[str, Any], metric: str) -> float:
    return float(results["metrics"]["test"][metric])


def _rows(study: Study, jobs: Sequence[_Job]) -> list[dict[str, Any]]:
    rows = []
    run = {job.setting.name for job in jobs}
    for setting in (setting.name for setting in study.settings if setting.name in run):
        row: dict[str, Any] = {"setting": setting, "theirs": None, "ours": None, "interval": None}
        for recipe in ("theirs", "ours"):
            runs = [job for job in jobs if (job.setting.name, job.recipe) == (setting, recipe)]
            if not runs:
                continue
            results = [RunFolder(job.path).results() for job in runs]
            values = [_value(result, study.metric) for result in results]
            row["published"] = runs[0].setting.published
            row[recipe] = statistics.fmean(values)
            if recipe == "ours":
                row["interval"] = interval(values)
                row["lowest"] = min(values)
                row["seeds"] = [job.seed for job in runs]
                row["steps"] = [result["steps"] for result in results]
                row["seconds"] = [result["seconds"] for result in results]
                row["config"] = runs[0].config.fingerprint()
        rows.append(row)
    return rows


def interval(values: Sequence[float]) -> list[float] | None:
    """The 95 % interval of the mean by Student's t; None for fewer than two values."""
    if len(values) < 2:
        return None
    quantile = T_95.get(len(values) - 1, 1.96)
    half = quantile * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.fmean(values)
    return [mean - half, mean + half]


def markdown(study: Study, document: Mapping[str, Any]) -> str:
    command = f"glassformer reproduce {study.name}" + (" --quick" if document["is_quick"] else "")
    lines = [f"# {study.title}", "", study.about, "", f"Written by `{command}`.", ""]
    lines += [
        "| setting | published | their recipe | ours, mean | 95 % interval | lowest seed | steps | seconds |"
    ]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for row in document["rows"]:
        low_high = "" if row["interval"] is None else f"{row['interval'][0]:.5f} … {row['interval'][1]:.5f}"
        steps = "/".join(str(step) for step in row.get("steps", []))
        seconds = "/".join(f"{value:.0f}" for value in row.get("seconds", []))
        cells = [row["setting"], _number(row["published"]), _number(row["theirs"]), _number(row["ours"])]
        cells += [low_high, _number(row.get("lowest")), steps, seconds]
        lines.append(f"| {' | '.join(cells)} |")
    workers, threads = document["workers"], document["threads_per_worker"]
    total = sum(value for row in document["rows"] for value in row.get("seconds", []))
    lines += [
        "",
        f"Metric: test {study.metric}. Training time of our runs together: {total / 60:.1f} minutes,"
        f" with {workers} workers of {threads} thread{'s' if threads > 1 else ''}.",
        "",
    ]
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.5f}"
