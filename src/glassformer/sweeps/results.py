"""What a sweep has found: each trial, a row a setting with means and intervals, the best one, files."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.core.config import dump_yaml
from glassformer.evaluation.intervals import student_interval
from glassformer.evaluation.metrics import falls, is_better
from glassformer.storage.files import atomic_write, finite, json_bytes
from glassformer.sweeps.definition import Definition, setting_text, short
from glassformer.sweeps.plots import draw_curves, write_explorations
from glassformer.sweeps.queue import Board, Key, attempts, is_given_up, key_of, living, outcome_of
from glassformer.sweeps.storage import shown

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

STABLE = 0.95
"""A setting is stable if none of its runs failed and it reaches this share of the best one's metric."""
WORST_FIRST = ("failed", "diverged", "pruned", "running", "waiting")
"""A setting is what the worst of its runs is."""

Row = dict[str, Any]


def write_results(board: Board, folder: Path, command: Sequence[str] = ()) -> dict[str, Any]:
    """`results.json`, `table.md`, `best.yaml`, curves; with several values varied, Optuna's plots too.

    `command` is what one types to get the same.
    """
    definition, trials = board.definition, board.trials()
    entries = trial_entries(definition, trials)
    rows = setting_rows(definition, entries)
    best = best_row(definition, rows)
    mark_stable(definition, rows, best)
    document: dict[str, Any] = {
        "study": board.name,
        "storage": shown(board.database.url),
        "folder": str(folder),
        "command": list(command),
        "metric": definition.metric,
        "varied": dict(definition.texts),
        "sampler": definition.sampler,
        "pruner": definition.pruner,
        "seeds": list(definition.seed_range()),
        "best": None if best is None else {**best, "config": str(folder / "best.yaml")},
        "settings": rows,
        "trials": entries,
        "counts": {state: 0 for state in ("complete", *WORST_FIRST)},
        "written": ["results.json", "table.md"],
    }
    for entry in entries:
        document["counts"][entry["state"]] += 1
    if best is not None:
        atomic_write(folder / "best.yaml", _best_yaml(definition, best, folder).encode())
        document["written"] += ["best.yaml", *draw_curves(definition, rows, folder)]
        importances, files = write_explorations(board, folder)
        document["importances"] = importances
        document["written"] += files
    atomic_write(folder / "table.md", markdown(definition, document).encode())
    atomic_write(folder / "results.json", json_bytes(finite(document)))
    return document


def trial_entries(definition: Definition, trials: Sequence[FrozenTrial]) -> list[dict[str, Any]]:
    """A (setting, seed) each, in order: the trial that counts."""
    counted = living(trials)
    for trial in trials:  # of those that were given up, the last attempt
        key = key_of(trial)
        if key not in counted and outcome_of(trial) == "abandoned":
            counted[key] = attempts(trials, key)[0]
    return [
        _entry(definition, counted[key], attempts(trials, key), key)
        for key in sorted(counted)
        if key[1] in definition.seed_range()
    ]


def _entry(
    definition: Definition, trial: FrozenTrial, abandoned: Sequence[FrozenTrial], key: Key
) -> dict[str, Any]:
    attributes, state = trial.user_attrs, outcome_of(trial)
    explanation = attributes.get("explanation")
    if state == "abandoned":
        state = "failed" if is_given_up(abandoned) else "waiting"
        explanation = f"its worker died {len(abandoned)} times" if state == "failed" else None
    is_drawn = trial.params.keys() == definition.texts.keys()
    return {
        "trial": key[0],
        "seed": key[1],
        "params": definition.space.point(trial.params) if is_drawn else {},
        "state": state,
        "run": _from_here(attributes.get("run")),
        "metrics": attributes.get("metrics", {}),
        "steps": attributes.get("steps"),
        "seconds": attributes.get("seconds"),
        "attempts": len(abandoned) + (state not in ("waiting",) and outcome_of(trial) != "abandoned"),
        "explanation": explanation,
    }


def _from_here(path: str | None) -> str | None:
    """A run's folder as one would type it."""
    if path is None or not Path(path).is_relative_to(Path.cwd()):
        return path
    return str(Path(path).relative_to(Path.cwd()))


def setting_rows(definition: Definition, entries: Sequence[Mapping[str, Any]]) -> list[Row]:
    rows: list[Row] = []
    for setting in sorted({entry["trial"] for entry in entries}):
        runs = [entry for entry in entries if entry["trial"] == setting]
        states = {entry["state"] for entry in runs}
        complete = [entry for entry in runs if entry["state"] == "complete"]
        means, intervals = _means([entry["metrics"] for entry in complete])
        is_whole = states == {"complete"} and len(runs) == definition.seeds
        rows.append(
            {
                "trial": setting,
                "params": next((entry["params"] for entry in runs if entry["params"]), {}),
                "state": "complete" if is_whole else _worst(states),
                "seeds": [entry["seed"] for entry in complete],
                "value": means.get("validation", {}).get(definition.metric),
                "interval": intervals.get("validation", {}).get(definition.metric),
                "metrics": means,
                "intervals": intervals,
                "runs": [entry["run"] for entry in runs],
            }
        )
    return rows


def _worst(states: set[str]) -> str:
    """A setting whose other seeds are yet to be made waits for them."""
    return next((state for state in WORST_FIRST if state in states), "waiting")


def _means(
    measured: Sequence[Mapping[str, Mapping[str, float]]],
) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, list[float] | None]]]:
    """Of each metric of each split that all runs have."""
    means: dict[str, dict[str, float]] = {}
    intervals: dict[str, dict[str, list[float] | None]] = {}
    for split in measured[0] if measured else ():
        for name in measured[0][split]:
            values = [run.get(split, {}).get(name) for run in measured]
            numbers = [float(value) for value in values if value is not None]
            if len(numbers) == len(values):
                means.setdefault(split, {})[name] = statistics.fmean(numbers)
                intervals.setdefault(split, {})[name] = student_interval(numbers)
    return means, intervals


def best_row(definition: Definition, rows: Sequence[Row]) -> Row | None:
    """By the validation set's mean, among settings all of whose runs came to their end."""
    best: Row | None = None
    for row in rows:
        is_comparable = row["state"] == "complete" and row["value"] is not None
        if is_comparable and is_better(
            definition.metric, row["value"], None if best is None else best["value"]
        ):
            best = row
    return best


def mark_stable(definition: Definition, rows: Sequence[Row], best: Row | None) -> None:
    for row in rows:
        row["is_stable"] = (
            best is not None
            and row["state"] == "complete"
            and row["value"] is not None
            and _is_near(definition.metric, row["value"], best["value"])
        )


def _is_near(metric: str, value: float, best: float) -> bool:
    return value * STABLE <= best if falls(metric) else value >= STABLE * best


def _best_yaml(definition: Definition, best: Row, folder: Path) -> str:
    metric, seeds = definition.metric, len(best["seeds"])
    lines = [f"# {setting_text(best['params'])}: the best of a sweep"]
    lines += [f"# validation {metric} {short(best['value'])}, {_seeds(seeds)}{_low_high(best['interval'])}"]
    lines += [f"# glassformer train {folder / 'best.yaml'}"]
    config = definition.config(best["params"], definition.first_seed)
    return "\n".join(lines) + "\n" + dump_yaml(config.dump())


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"mean of {count} seeds"


def _low_high(pair: Sequence[float] | None) -> str:
    return "" if pair is None else f", 95 % interval {short(pair[0])} … {short(pair[1])}"


def table_of(document: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Head and lines: a setting each, the best first; what has no value comes last."""
    rows, metric, varied = document["settings"], document["metric"], list(document["varied"])
    has_test = any("test" in row["metrics"] for row in rows)
    head = [path.rpartition(".")[2] for path in varied]
    if len(set(head)) < len(head):
        head = varied
    head = [*head, f"validation {metric}", "95 % interval", *(["loss"] if metric != "loss" else [])]
    head += [*([f"test {metric}"] if has_test else []), "runs", "state"]
    sign = 1 if falls(metric) else -1
    lines = []
    for row in sorted(rows, key=lambda row: (_is_last(row), sign * (row["value"] or 0.0), row["trial"])):
        pair, means = row["interval"], row["metrics"]
        line = [short(row["params"].get(path, "")) for path in varied]
        line += [_number(row["value"]), "" if pair is None else f"{pair[0]:.4f} … {pair[1]:.4f}"]
        line += [_number(means.get("validation", {}).get("loss"))] if metric != "loss" else []
        line += [_number(means.get("test", {}).get(metric))] if has_test else []
        state = "stable" if row["is_stable"] else row["state"]
        lines.append([*line, str(len(row["seeds"])), state])
    return head, lines


def notes_of(document: Mapping[str, Any]) -> list[str]:
    """Why runs did not come to their end."""
    return [
        f"{setting_text(entry['params'])}, seed {entry['seed']} {entry['state']}: {entry['explanation']}"
        for entry in document["trials"]
        if entry["explanation"]
    ]


def _is_last(row: Row) -> tuple[bool, bool]:
    return row["value"] is None, row["state"] != "complete"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def markdown(definition: Definition, document: Mapping[str, Any]) -> str:
    head, lines = table_of(document)
    varied = ", ".join(f"`{path}={text}`" for path, text in definition.texts.items())
    text = [f"# Sweep {document['study']}", "", f"Varied: {varied}. Sampler: {definition.sampler}."]
    text += ["", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    text += [f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines]
    text += ["", *(f"- {note}" for note in notes_of(document))]
    text += ["", f"The best is chosen by validation {definition.metric}, never by the test set."]
    text += [f"Stable: no run failed, and the metric is within {100 * (1 - STABLE):.0f} % of the best one's."]
    counts = ", ".join(f"{count} {state}" for state, count in document["counts"].items() if count)
    return "\n".join([*text, f"Runs: {counts}.", ""])
