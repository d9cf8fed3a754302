"""Resolved presets: every option of each preset, and its fingerprint, as golden files.

`GLASSFORMER_WRITE_GOLDEN=1 python -m pytest tests/runs/test_presets_golden.py` writes them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from glassformer.core.config import dump_yaml
from glassformer.runs.commands import preset_sentence
from glassformer.runs.experiment import preset_text, presets, resolve

MOST_CHARACTERS = 80
"""Maximum length of the sentence that describes a preset in a list."""
GOLDEN = Path(__file__).with_name("presets")
WRITES = bool(os.environ.get("GLASSFORMER_WRITE_GOLDEN"))


@pytest.mark.parametrize("name", presets())
def test_a_preset_resolves_to_the_same_tree(name: str) -> None:
    config = resolve(name)
    text = f"# fingerprint {config.fingerprint()}\n{dump_yaml(config.dump())}"
    golden = GOLDEN / f"{name}.yaml"
    if WRITES:
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", presets())
def test_a_resolved_preset_resolves_to_itself(name: str, tmp_path: Path) -> None:
    config = resolve(name)
    file = tmp_path / "resolved.yaml"
    file.write_text(dump_yaml(config.dump()), encoding="utf-8")
    assert resolve(str(file)) == config
    assert resolve(str(file)).fingerprint() == config.fingerprint()


def test_no_preset_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.glob("*.yaml")} == set(presets())


@pytest.mark.parametrize("name", presets())
def test_a_preset_describes_itself(name: str) -> None:
    """The head comment has a description, the command, the expected result and the time."""
    head = [line.lstrip("# ") for line in preset_text(name).splitlines() if line.startswith("#")]
    assert len(head) >= 4
    assert {"command", "expected", "time"} <= {line.split()[0] for line in head if line}
    assert any(f"glassformer {verb} {name}" in line for verb in ("train", "params") for line in head)


@pytest.mark.parametrize("name", presets())
def test_a_preset_begins_with_one_short_sentence(name: str) -> None:
    """Lists of presets were cut in mid-sentence, or had four identical lines."""
    sentence = preset_sentence(name)
    assert sentence[0].isupper() and sentence.endswith(".") and len(sentence) <= MOST_CHARACTERS
    assert len(re.findall(r"[.:;](?= |$)", sentence)) == 1
    assert [preset_sentence(other) for other in presets()].count(sentence) == 1


def test_a_fingerprint_depends_on_the_options_only(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("seed: 3\ntask: {length: 7, kind: reversal}\nmodel: {position: {base: 500}}\n")
    config = resolve(str(file))
    file.write_text("task: {kind: reversal, length: 7}\nmodel: {position: {base: 500.0}}\nseed: 3  # ours\n")
    assert resolve(str(file)).fingerprint() == config.fingerprint()
    assert resolve(str(file), ["seed=4"]).fingerprint() != config.fingerprint()
    assert resolve(str(file), ["task.length=7"]).fingerprint() == config.fingerprint()
