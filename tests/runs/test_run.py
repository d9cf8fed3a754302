"""Trained run as an object: batched predictions, generation, repr, and what training imports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glassformer.core.errors import UserError
from glassformer.models.base import WithoutInitialisation
from glassformer.runs import prediction
from glassformer.runs.folder import RunFolder
from glassformer.runs.run import Run
from glassformer.runs.session import TrainingSession, train

SMALL = {
    "model.num_layers": 1,
    "model.num_heads": 2,
    "model.hidden_dim": 16,
    "training.max_steps": 3,
    "training.max_epochs": None,
    "training.batch_tokens": None,
    "training.batch_size": 8,
    "training.device": "cpu",
    "evaluation.max_examples": 4,
}
LANGUAGE = {"task.examples": 30, "task.max_length": 24, "task.tokenizer": {"kind": "characters"}}


@pytest.fixture(scope="module")
def adding(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train("arithmetic", SMALL, run=tmp_path_factory.mktemp("adding") / "run")


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train("language-model", {**SMALL, **LANGUAGE}, run=tmp_path_factory.mktemp("language") / "run")


TEXTS = ["4 + 1", "not a sum", "3 - 8", "", "0 + 0", "9 - 9", "-5 + 2"]


def rounded(prediction: dict[str, Any]) -> str:
    """Encode a prediction without the last digits of its probabilities."""
    return json.dumps(json.loads(json.dumps(prediction), parse_float=lambda text: round(float(text), 4)))


@pytest.mark.parametrize("rows", [1, 2, 3, 64])
@pytest.mark.parametrize("decoding", [None, {"kind": "beam", "size": 3, "n_best": 2}, {"kind": "sample"}])
def test_a_list_is_predicted_in_batches_as_one_by_one(
    rows: int, decoding: Any, adding: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Order, errors and values do not depend on the size of the batches."""
    monkeypatch.setattr(prediction, "BATCH_ROWS", rows)
    predictions = adding.predict(TEXTS, decoding)
    assert [prediction["input"] for prediction in predictions] == TEXTS
    assert [bool(prediction["error"]) for prediction in predictions] == [
        text in ("not a sum", "") for text in TEXTS
    ]
    assert list(map(rounded, predictions)) == [rounded(adding.predict(text, decoding)) for text in TEXTS]
    assert adding.predict([]) == []


def test_batches_have_few_rows_and_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "BATCH_TOKENS", 12)
    rows = [None if length is None else np.zeros(length) for length in (3, 9, None, 4, 1, 20, 3)]
    batches = list(prediction._batches(rows, 3))
    assert batches == [[5], [1], [3, 0, 6], [4]]


def test_generate(language: Run) -> None:
    text = language.generate("the ", max_tokens=30, seed=3)
    assert text.startswith("the ") and len(text) > 4
    assert text == language.generate("the ", max_tokens=30, seed=3)
    assert language.generate("the ", 5, temperature=0) == language.generate("the ", 5, temperature=0, seed=9)
    *_, (streamed, tokens) = language.stream("the ", 30, seed=3)
    assert streamed == text and 0 < tokens <= 30
    with pytest.raises(UserError, match=r"decoding\.top_p"):
        language.generate("the ", top_p=2.0)


def test_no_more_is_decoded_than_is_returned(language: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was decoded up to the maximum length of the model, and then cut."""
    lengths = []
    advance = type(language.model).advance

    def counted(*arguments: Any, **named: Any) -> Any:
        lengths.append(1)
        return advance(*arguments, **named)

    monkeypatch.setattr(type(language.model), "advance", counted)
    whole = language.generate("the ", max_tokens=9, seed=3)
    assert language.generate("the ", max_tokens=3, seed=3) == whole[: len("the ") + 3]
    assert len(lengths) <= 9 + 3


def test_weights_that_are_loaded_are_not_drawn_first(language: Run) -> None:
    """Drawing them took most of the time to open a large model."""
    state = torch.random.get_rng_state()
    with WithoutInitialisation():
        torch.nn.init.normal_(torch.nn.Linear(3, 4).weight)
    assert torch.equal(state, torch.random.get_rng_state())
    torch.nn.Linear(3, 4)
    assert not torch.equal(state, torch.random.get_rng_state())
    weights = language.model.state_dict()
    again = Run(language.path).model.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in again.items())


def test_only_language_models_generate(adding: Run) -> None:
    with pytest.raises(UserError, match="this run is not a text language model"):
        adding.generate("4 + 1")


def test_a_run_has_a_repr(adding: Run) -> None:
    type_and_split = "sequence to sequence, task='arithmetic', test: loss="
    assert repr(adding).startswith(f"Run({str(adding.path)!r}, {type_and_split}")
    assert "exact_match=" in repr(adding) and "\n" not in repr(adding)


def test_training_needs_neither_inspection_nor_plotting(tmp_path: Path) -> None:
    """At most 95 modules of the package are imported to train, and to measure at the end."""
    options = [
        "training.max_steps=2",
        "training.max_epochs=null",
        "task.length=8",
        "--quiet",
        "--run",
        str(tmp_path / "run"),
    ]
    code = (
        "import sys; from glassformer.cli import main; assert main(sys.argv[1:]) == 0;"
        " print(*[name for name in sys.modules if name.startswith('glassformer')], file=sys.stderr)"
    )
    command = [sys.executable, "-c", code, "train", "reversal", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    modules = done.stderr.split()
    assert not [name for name in modules if name.split(".")[1:2] in (["inspection"], ["plotting"])]
    assert len(modules) <= 95, sorted(modules)


def test_a_session_builds_its_context_once(tiny_config: Any, tmp_path: Path) -> None:
    config = tiny_config({"training.max_steps": 2, "inspection.probe_heads": True})
    session = TrainingSession(config, RunFolder(tmp_path / "run"))
    session.run()
    assert session.trainer.context.probe is not None
    assert [event["event"] for event in session.folder.events].count("head_probe") >= 2
