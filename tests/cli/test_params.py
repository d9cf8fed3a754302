"""`glassformer params`: JSON document, tree and exit code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from glassformer.blocks.norms import NormConfig
from glassformer.cli import main
from glassformer.cli.output import DelayedProgress
from glassformer.core.registry import kinds, unregister
from glassformer.cost.parameters import longest_batch
from glassformer.interchange.export import TARGETS
from glassformer.runs.experiment import Experiment, resolve

SMALL = ["task.train_examples=300", "task.validation_examples=10", "task.test_examples=10"]


@pytest.fixture
def forget_plugins() -> Iterator[None]:
    """Unregister the kinds of a test's plug-in, so that they do not reach the contract tests."""
    before = set(kinds(NormConfig).values())
    yield
    for kind in set(kinds(NormConfig).values()) - before:
        unregister(kind)


def params(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any], str]:
    code = main(["params", *arguments, "--json"])
    captured = capsys.readouterr()
    return code, json.loads(captured.out), captured.err


def test_the_stages_of_the_work_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stages = []

    class Recorded(DelayedProgress):
        def __init__(self, name: str) -> None:
            super().__init__(name)
            stages.append(name)

        def stage(self, name: str) -> None:
            stages.append(name)

    monkeypatch.setattr("glassformer.cli.params.DelayedProgress", Recorded)
    assert params(capsys, "reversal", *SMALL)[0] == 0
    assert stages == ["building the data", "tracing the model"]


@pytest.mark.parametrize(
    ("preset", "total"), [("counting-classifier", 988_402), ("counting-language-model", 1_008_100)]
)
def test_presets_have_the_count_that_their_head_comment_promises(
    preset: str, total: int, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document, _ = params(capsys, preset, *SMALL)
    assert code == 0
    assert document["total"] == document["closed_form"] == total
    assert sum(document["by_module"].values()) == total
    assert (
        f"{total:,}"
        in Path(__file__).parents[2].joinpath(f"src/glassformer/presets/{preset}.yaml").read_text()
    )


def test_the_document_has_all_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    _, document, _ = params(capsys, "counting-classifier", *SMALL, "training.batch_size=7")
    assert document["flops_per_token"]["training"] == 3 * document["flops_per_token"]["forward"] > 0
    memory = document["memory_bytes"]
    assert {"weights", "gradients", "optimizer", "activations", "total"} <= set(memory)
    assert memory["total"] == sum(count for name, count in memory.items() if name != "total")
    assert (memory["weights"], memory["optimizer"]) == (4 * 988_402, 8 * 988_402)
    assert document["batch"] == {"sequences": 7, "tokens": 7 * 32}


def test_a_token_budget_gives_the_batch(capsys: pytest.CaptureFixture[str]) -> None:
    _, document, _ = params(capsys, "counting-classifier", *SMALL, "training.batch_tokens=100")
    assert document["batch"] == {"sequences": 3, "tokens": 3 * 32}


def test_options_change_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    _, tied, _ = params(capsys, "counting-language-model", *SMALL, "model.tied_output=true")
    assert tied["total"] == 1_008_100 - 100 * 200
    _, averaged, _ = params(capsys, "counting-language-model", *SMALL, "training.ema_decay=0.99")
    assert averaged["memory_bytes"]["average"] == 4 * 1_008_100


def test_a_person_sees_the_formula_with_its_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["params", "counting-classifier", *SMALL]) == 0
    shown = capsys.readouterr().out
    assert "vocabulary × hidden_dim = 100 × 200 = 20,000" in shown
    assert "= 4 × (4 × 200 × 200 + 4 × 200)" in shown
    assert "988,402 parameters  closed form 988,402, the same" in shown


@pytest.mark.usefixtures("forget_plugins")
def test_a_wrong_formula_of_a_plugin_is_exit_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugin = tmp_path / "lying.py"
    plugin.write_text(
        """
from typing import Literal
from torch import nn
from glassformer.blocks.norms import NormConfig
from glassformer.core.registry import register

@register
class LyingConfig(NormConfig):
    kind: Literal["lying"] = "lying"
    def build(self, dim: int) -> nn.Module:
        return nn.LayerNorm(dim)
    def parameter_count(self, dim: int) -> int:
        return 3 * dim
"""
    )
    arguments = ["counting-classifier", *SMALL, "model.norm=lying", "--plugin", str(plugin)]
    code, document, shown = params(capsys, *arguments)
    assert code == 1
    assert document["total"] == 988_402 and document["closed_form"] == 988_402 + 8 * 200
    assert "NOT the same" in shown and "2,400, but the model has 1,600" in shown


@pytest.mark.usefixtures("forget_plugins")
def test_a_plugin_without_a_formula_is_sized_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = tmp_path / "silent.py"
    plugin.write_text(
        """
from typing import Literal
from torch import nn
from glassformer.blocks.norms import NormConfig
from glassformer.core.registry import register

@register
class SilentConfig(NormConfig):
    kind: Literal["silent"] = "silent"
    def build(self, dim: int) -> nn.Module:
        return nn.LayerNorm(dim)
"""
    )
    arguments = ["counting-classifier", *SMALL, "model.norm=silent", "--plugin", str(plugin)]
    code, document, shown = params(capsys, *arguments)
    assert (code, document["total"], document["closed_form"]) == (0, 988_402, None)
    assert document["flops_per_token"]["forward"] and "no closed form" in shown


def test_an_unknown_name_is_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["params", "counting-clasifier"]) == 2
    captured = capsys.readouterr()
    assert "did you mean 'counting-classifier'?" in captured.err and not captured.out


@pytest.mark.parametrize("preset", ["counting-classifier", "counting-language-model"])
def test_a_preset_builds_the_model_that_is_counted(preset: str) -> None:
    config = resolve(preset, SMALL)
    model = Experiment(config).build_model()
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert counted == sum(config.model.parameter_terms(model.task_type).values())


def test_targets_of_an_export_are_known_before_training(capsys: pytest.CaptureFixture[str]) -> None:
    code, document, printed = params(capsys, "reversal", "model.position.kind=alibi", *SMALL)
    assert code == 0
    exports = {each["target"]: each for each in document["exports"]}
    assert list(exports) == list(TARGETS) and exports["onnx"]["possible"]
    assert not exports["huggingface"]["possible"]
    obstacle = exports["huggingface"]["obstacles"][0]
    assert obstacle["option"] == "model.position.kind" and "or export to onnx" in obstacle["remedy"]
    assert "  onnx: yes\n" in printed and "  huggingface: no, model.position.kind: " in printed


def test_the_batch_of_small_data_is_that_of_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"text number {number}\t{'ab'[number % 2]}" for number in range(80)]
    (tmp_path / "own.tsv").write_text("\n".join(lines))
    options = [f"task.data.train={tmp_path / 'own.tsv'}"]
    _, document, text = params(capsys, "classification", *options)
    experiment = Experiment(resolve("classification", options))
    given, used = (
        len(longest_batch(experiment.task, training).indices)
        for training in (experiment.config.training, experiment.fitted_training())
    )
    assert document["batch"]["sequences"] == used < given
    assert "training examples are few: training uses batch_tokens=" in text
