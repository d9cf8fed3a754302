"""Table, notes and charts of a sweep, made of rows without training."""

from __future__ import annotations

from typing import Any

from glassformer.sweeps.definition import SweepDefinition, define
from glassformer.sweeps.results import Row, _chart, results_table, table_notes

KINDS = "model.position.kind"


def row(
    value: float, *, is_best_group: bool = True, interval: list[float] | None = None, **params: Any
) -> Row:
    metrics = {"validation": {"accuracy": value}}
    return {
        "trial": 0,
        "params": {path.replace("__", "."): chosen for path, chosen in params.items()},
        "state": "complete",
        "is_best_group": is_best_group,
        "seeds": [0],
        "value": value,
        "interval": interval,
        "metrics": metrics,
        "intervals": {"validation": {"accuracy": interval}},
    }


def document(rows: list[Row], **about: Any) -> dict[str, Any]:
    asked = {"metric": "accuracy", "varied": {KINDS: "sinusoidal,rotary"}, "seeds": [0], "notes": []}
    return {"settings": rows, **asked, **about}


def definition(*arguments: str) -> SweepDefinition:
    return define("reversal", ["task.length=16", "task.train_examples=100", *arguments])


def test_the_words_for_good_and_bad_settings_say_which_is_which() -> None:
    """They were called stable and complete."""
    rows = [row(1.0, model__position__kind="sinusoidal")]
    rows += [row(0.5, is_best_group=False, model__position__kind="rotary")]
    head, lines = results_table(document(rows))
    assert head == ["kind", "validation accuracy", "loss", "runs", "state"]
    assert [line[-1] for line in lines] == ["best group", "worse"]
    best, worse, seeds = table_notes(document(rows))
    assert best == "best group: no run failed, and validation accuracy is within 5 % of the best"
    assert worse == "worse: no run failed, but validation accuracy is not within 5 % of the best"
    assert "--seeds 3" in seeds
    assert table_notes(document(rows[:1], seeds=[0, 1])) == [best]


def test_the_interval_has_a_column_only_if_there_is_one() -> None:
    head, lines = results_table(document([row(0.5, interval=[0.4, 0.6], model__position__kind="rotary")]))
    assert head[2] == "95 % interval" and lines[0][2] == "0.4000 … 0.6000"
    head, lines = results_table(document([row(0.5, model__position__kind="rotary")]))
    assert "95 % interval" not in head and len(lines[0]) == len(head)


def test_the_notes_of_the_settings_are_below_the_table() -> None:
    assert table_notes(document([], notes=["why"], seeds=[0, 1])) == ["why"]


def test_names_are_dots_and_numbers_a_line() -> None:
    names = definition(f"{KINDS}=sinusoidal,rotary")
    rows = [row(1.0, model__position__kind="sinusoidal"), row(0.5, model__position__kind="rotary")]
    assert not _chart(names, rows, KINDS, "accuracy", 0).lines[0].is_connected
    numbers = definition("model.num_layers=1,2")
    rows = [row(1.0, model__num_layers=1), row(0.5, model__num_layers=2)]
    assert _chart(numbers, rows, "model.num_layers", "accuracy", 0).lines[0].is_connected
