"""The transfer experiment's `table.md`, from its `results.json` alone."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from glassformer.studies.study import written_by

Row = Mapping[str, Any]


def markdown(document: Mapping[str, Any]) -> str:
    rows: Sequence[Row] = document["rows"]
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    labels = list(dict.fromkeys(row["labels"] for row in rows))
    cells = {(row["arm"], row["labels"]): row for row in rows}
    lines = [f"# {document['title']}", "", document["about"], "", written_by(document), ""]
    lines += ["## Test accuracy", ""]
    lines += _grid(arms, labels, lambda arm, count: _accuracy(cells[arm, count]))
    lines += _published(arms, labels, cells)
    lines += ["", *_explained(document), ""]
    lines += ["## Validation accuracy after the first epoch, mean", ""]
    trained = [arm for arm in arms if "accuracy_by_epoch" in cells[arm, labels[0]]]
    lines += _grid(trained, labels, lambda arm, count: _first_epoch(cells[arm, count]))
    plot = next(name for name in document["plot"] if name.endswith(".png"))
    lines += ["", f"![Validation accuracy against epochs]({plot})", ""]
    lines += ["## Pre-training", "", *_pretraining(document["pretraining"]), ""]
    return "\n".join(lines)


def _grid(arms: Sequence[str], labels: Sequence[int], show: Callable[[str, int], str]) -> list[str]:
    lines = [f"| labels | {' | '.join(arms)} |", f"|---|{'---|' * len(arms)}"]
    return lines + [f"| {count:,} | {' | '.join(show(arm, count) for arm in arms)} |" for count in labels]


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _accuracy(row: Row) -> str:
    if row["interval"] is None:
        return f"{_percent(row['ours'])} %"
    low, high = row["interval"]
    return f"{_percent(row['ours'])} % ({_percent(low)} … {_percent(min(high, 1.0))})"


def _first_epoch(row: Row) -> str:
    return f"{_percent(statistics.fmean(run[0] for run in row['accuracy_by_epoch']))} %"


def _published(arms: Sequence[str], labels: Sequence[int], cells: Mapping[tuple[str, int], Row]) -> list[str]:
    lines = []
    for count in labels:
        values = [cells[arm, count]["published"] for arm in arms]
        if any(value is not None for value in values):
            shown = ("" if value is None else f"about {100 * value:.0f} %" for value in values)
            lines.append(f"| {count:,}, published | {' | '.join(shown)} |")
    return lines


def _explained(document: Mapping[str, Any]) -> list[str]:
    rows: Sequence[Row] = document["rows"]
    seeds = len(rows[0]["seeds"])
    control = next((row["control"] for row in rows if "control" in row), None)
    models = sum(value for row in rows if "control" not in row for value in row["seconds"])
    lines = [
        f"Models: mean of {seeds} seed{'s' if seeds > 1 else ''}, of the weights that were best on the"
        " validation split"
        + (", with the 95 % interval of the mean over seeds by Student's t" if seeds > 1 else "")
        + ". They have the same architecture and the same tokenizer; those that are not from scratch start"
        " from **one** pre-training (seed 0), so their intervals do not cover another pre-training."
    ]
    if control is not None:
        lines += [
            "TF-IDF + logistic regression: words and pairs of words, C chosen on the validation split. It is"
            f" deterministic, so one run; its interval is over the {control['test_examples']:,} test texts"
            " (bootstrap), which the others do not show. The same labels, validation and test texts."
        ]
    lines += [f"Left out: {arm}; {why}." for arm, why in document["left_out"].items()]
    workers, threads = document["workers"], document["threads_per_worker"]
    lines += [
        f"Training time of all models together: {models / 60:.1f} minutes, besides the pre-training, with"
        f" {workers} worker{'s' if workers > 1 else ''} of {threads} thread{'s' if threads > 1 else ''}."
    ]
    return "\n\n".join(lines).split("\n")


def _pretraining(record: Mapping[str, Any]) -> list[str]:
    measured = ", ".join(f"{name} {value:.4g}" for name, value in record["validation"].items())
    training = (
        f"{record['steps']:,} steps in {record['seconds'] / 60:.1f} minutes."
        f" On its validation split: {measured}."
        if record["steps"]
        else "no step: its first weights."
    )
    lines = [
        f"Preset `{record['preset']}`, task `{record['task']}`, {record['parameters']:,} parameters;"
        f" first vectors: {record['embedding_init']}; {training}"
    ]
    text = record["text"]
    if text is not None:
        left_out = "; ".join(f"{why} {count:,}" for why, count in text["left_out"].items())
        lines += ["", f"Text: {text['lines']:,} lines, SHA-256 `{text['sha256']}`. Left out: {left_out}.", ""]
        lines += [f"- {name}: {count:,}" for name, count in text["by_source"].items()]
        if text["own_times"] > 1:
            lines += ["", f"An epoch reads the task's own texts {text['own_times']} times."]
    return lines
