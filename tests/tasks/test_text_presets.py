"""Every text preset trains one step, is evaluated and predicts: offline, or on small files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from glassformer.data.readers import DataConfig
from glassformer.runs.experiment import presets, resolve
from glassformer.runs.folder import RunFolder
from glassformer.runs.run import Run
from glassformer.runs.session import TrainingSession
from glassformer.tasks.text import TextTaskConfig

TEXT_PRESETS = [name for name in presets() if isinstance(resolve(name).task, TextTaskConfig)]
OFFLINE = {"translation", "classification", "language-model", "masked-language-model"}
SMALL = {
    "task.max_length": 16,
    "model.num_layers": 1,
    "model.num_heads": 2,
    "model.hidden_dim": 8,
    "model.feed_forward_dim": 8,
    "training.max_steps": 1,
    "training.threads": 1,
    "training.device": "cpu",
    "evaluation.max_examples": 4,
}
INPUTS = {
    "translation": "a cat",
    "classification": "a good book",
    "language-model": "the",
    "masked-language-model": "a <mask> book",
}


def text(split: str, number: int) -> str:
    return f"{split[:2]} {'good' if number % 2 else 'bad'} {number}"


def lay_out(data: DataConfig, folder: Path) -> None:
    """Write small files with the names and formats of the preset."""

    def write(path: str, lines: list[str]) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    for split in ("train", "validation", "test"):
        source = data.source(split)
        texts = [text(split, number) for number in range(12)]
        if isinstance(source, list):
            for side, path in enumerate(source):
                write(path, [f"{line} {side}" for line in texts])
        elif source is not None and data.classes:
            for name, path in data.classes.items():
                write(f"{source}/{path}", [f"{name} {line}" for line in texts])
        elif source is not None and data.columns:
            columns = {column: role for role, column in data.columns.items()}
            rows = [{"input": line, "target": line.split()[1]} for line in texts]
            write(source, ["\t".join(row[columns[column]] for column in sorted(columns)) for row in rows])
        elif source is not None:
            write(source, texts * 20)


def test_the_offline_ones_are_there() -> None:
    assert set(TEXT_PRESETS) >= OFFLINE | {"shakespeare", "multi30k-en-fr", "book-reviews", "movie-polarity"}


@pytest.mark.parametrize("name", TEXT_PRESETS)
def test_a_step_an_evaluation_and_a_prediction(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GLASSFORMER_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    task = resolve(name).task
    assert isinstance(task, TextTaskConfig)
    assert (task.data is None) == (name in OFFLINE)
    overrides: dict[str, Any] = dict(SMALL)
    if task.data is None:
        overrides["task.examples"] = 20
    else:
        lay_out(task.data, tmp_path / "data")
    results = TrainingSession(resolve(name, overrides), RunFolder(tmp_path / "run")).run()
    assert results["steps"] == 1 and results["parameters"] > 0
    run = Run(tmp_path / "run")
    measured = run.evaluate()
    assert measured["examples"] in (3, 4) and measured["metrics"][run.task.primary_metric] is not None
    assert results["primary_metric"] == run.task.primary_metric
    prediction = run.predict(INPUTS[task.kind])
    assert prediction["error"] is None and isinstance(prediction["output"], str)
    assert (tmp_path / "run" / "tokenizer.json").is_file()
