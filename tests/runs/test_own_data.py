"""Options of a preset for the user's own data, and the commands that reproduce a config."""

from pathlib import Path
from typing import Any

import pytest

from glassformer.runs.commands import nearest_preset
from glassformer.runs.experiment import Experiment, resolve
from glassformer.runs.run import Run
from glassformer.runs.session import open_session


def test_a_preset_has_other_options_for_the_users_own_data() -> None:
    generated = resolve("classification")
    own = resolve("classification", {"task.data.train": "mine.csv"})
    assert generated.model.dropout != own.model.dropout
    assert (
        resolve("classification", {"task.data.train": "mine.csv", "model.dropout": 0.2}).model.dropout == 0.2
    )
    assert resolve("classification", ["model.dropout=0.2"]).model.dropout == 0.2


@pytest.mark.parametrize("change", [{}, {"model.dropout": 0.1}, {"model.dropout": 0.5, "seed": 3}])
def test_the_command_of_a_config_with_own_data_gives_the_same_config(change: dict[str, Any]) -> None:
    config = resolve("classification", {"task.data.train": "mine.csv", **change})
    found = nearest_preset(config)
    assert found is not None
    name, overrides = found
    assert name == "classification" and overrides.keys() >= change.keys() - {"model.dropout"}
    assert resolve(name, overrides) == config


def test_a_model_that_starts_from_a_run_keeps_the_options_of_the_preset() -> None:
    changes = {"task.data.train": "mine.csv", "training.start_from": "runs/masked-language-model-1"}
    assert resolve("classification", changes).model == resolve("classification").model


def test_evaluate_warns_if_the_data_files_have_changed(tmp_path: Path) -> None:
    """Reverse the lines of the file: other lines are split off, so training examples would be measured."""
    file, lines = (
        tmp_path / "mine.tsv",
        [f"text {i} is {'good' if i % 2 else 'bad'}\t{i % 2}" for i in range(80)],
    )
    file.write_text("\n".join(lines))
    options = {"task.data.train": str(file), "training.max_steps": 2}
    open_session("classification", options, run=tmp_path / "run").run()
    assert not [text for text in Run(tmp_path / "run").evaluate()["warnings"] if "have changed" in text]
    file.write_text("\n".join(reversed(lines)))
    assert "the data have changed since the run started" in Run(tmp_path / "run").evaluate()["warnings"][0]


def test_a_label_that_looks_like_a_missing_value_has_a_warning(tmp_path: Path) -> None:
    lines = [f"text {i} here\t{('good', 'bad', 'NaN')[i % 3]}" for i in range(60)]
    (tmp_path / "mine.tsv").write_text("\n".join(lines))
    notes = Experiment(resolve("classification", {"task.data.train": str(tmp_path / "mine.tsv")})).notes
    assert [note for note in notes if "'NaN' may be a missing value" in note]
