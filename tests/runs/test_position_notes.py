"""Note about a position kind that does not see what a task needs."""

from __future__ import annotations

import pytest

from glassformer.blocks.positions import PositionConfig
from glassformer.core.registry import kinds
from glassformer.runs.experiment import Experiment, position_notes, resolve


@pytest.mark.parametrize("name", kinds(PositionConfig))
def test_a_kind_that_sees_no_positions_is_noted_for_a_task_that_needs_them(name: str) -> None:
    notes = position_notes(resolve("reversal", {"model.position.kind": name}))
    assert bool(notes) == (kinds(PositionConfig)[name].sees != "absolute")
    assert not position_notes(resolve("copy", {"model.position.kind": name}))


def test_the_note_is_one_of_the_experiment() -> None:
    config = resolve("reversal", {"model.position.kind": "rotary", "task.length": 16})
    (note,) = Experiment(config).notes
    assert (
        "the position kind rotary sees only distances" in note and "reversal needs absolute positions" in note
    )
    causal = resolve("reversal", {"model.position.kind": "rotary", "model.is_causal": True})
    assert not position_notes(causal)


def test_several_configs_share_a_note() -> None:
    kinds = ("sinusoidal", "rotary", "none", "alibi")
    notes = position_notes(*(resolve("reversal", {"model.position.kind": kind}) for kind in kinds))
    assert len(notes) == 2
    assert "the position kinds rotary, alibi see only distances between tokens" in notes[0]
    assert "the position kind none does not see the order of tokens" in notes[1]
