"""`glassformer options`: text and JSON, plug-ins, and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from glassformer.blocks.positions import PositionConfig
from glassformer.cli import main
from glassformer.core.registry import kinds, unregister
from glassformer.runs.experiment import ExperimentConfig

PLUGIN = '''
from typing import Literal
from pydantic import Field
import glassformer as gf
from glassformer.blocks.positions import Position, PositionConfig

@gf.register
class WobbleConfig(PositionConfig):
    """Wobble of the positions."""
    kind: Literal["wobble"] = "wobble"
    strength: float = Field(0.25, gt=0, description="how much it wobbles")
    def build(self, **sizes):
        return Position()
'''


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["options", *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_the_sections_have_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["options"]) == 0
    text = capsys.readouterr().out
    for name in ExperimentConfig.model_fields:
        assert f"\n{name} " in text
    assert [entry["path"] for entry in document(capsys)["options"]] == list(ExperimentConfig.model_fields)


def test_a_choice_explains_every_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["options", "model.position"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    found = document(capsys, "model.position")
    assert found["path"] == "model.position" and found["default"] == "sinusoidal"
    assert {kind["name"] for kind in found["kinds"]} == set(kinds(PositionConfig))
    for kind in found["kinds"]:
        assert f"{kind['name']} {kind['description']} {kind['use']}" in text


def test_an_option_has_type_bounds_default_and_description(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["options", "training.label_smoothing"]) == 0
    text = capsys.readouterr().out
    assert "number, at least 0, below 1 (default: 0.0)" in text and "spread over all classes" in text
    found = document(capsys, "training.label_smoothing")
    assert found["type"] == "number" and found["bounds"] == {"minimum": 0, "below": 1}
    assert found["default"] == 0.0 and "spread" in found["description"] and found["kinds"] == []


def test_a_kind_shows_its_own_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["options", "rotary"]) == 0
    text = capsys.readouterr().out
    assert "model.position.base  number, above 1 (default: 10000.0)" in text and "alibi" not in text
    (kind,) = document(capsys, "rotary")["kinds"]
    assert kind["name"] == "rotary" and [entry["path"] for entry in kind["options"]] == [
        "model.position.base"
    ]


def test_a_plugin_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "wobble.py").write_text(PLUGIN)
    try:
        found = document(capsys, "model.position", "--plugin", str(tmp_path / "wobble.py"))
    finally:
        unregister(kinds(PositionConfig)["wobble"])
    (wobble,) = (kind for kind in found["kinds"] if kind["name"] == "wobble")
    assert wobble["description"] == "Wobble of the positions." and wobble["use"] == ""
    assert wobble["options"][0]["bounds"] == {"above": 0}


def test_a_typing_error_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["options", "model.pos"]) == 2
    assert "did you mean 'model.position'?" in capsys.readouterr().err
    assert main(["options", "rottary", "--json"]) == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out)["errors"] and "did you mean 'rotary'?" in captured.err


def test_an_unknown_option_of_a_training_suggests_a_name_it_begins(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["params", "reversal", "model.pos=rotary"]) == 2
    text = capsys.readouterr().err
    assert "did you mean 'position'?" in text and " of 23)" in text
    assert main(["params", "reversal", "model.zzzzz=1"]) == 2
    assert "glassformer options model" in capsys.readouterr().err
