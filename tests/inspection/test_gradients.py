"""Attribution: completeness, exactness on linear models, and the sum of the parts of a logit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glassformer.cli import main
from glassformer.core.errors import ErrorDetail
from glassformer.inspection.examples import first_example
from glassformer.inspection.gradients import (
    METHODS,
    SITE,
    Faithfulness,
    TokenAttribution,
    _Path,
    _runner_up,
    ask,
    attribute,
    attribution_matrix,
    logit_parts,
    output_named,
)
from glassformer.inspection.sites import change_sites

from .conftest import experiment
from .test_patching import TASKS, sharpened


def build(name: str, **model: Any) -> tuple[Any, Any, np.ndarray]:
    built = experiment(TASKS[name], **model)
    found = sharpened(built, 1.5)
    split = "test" if "test" in built.task.splits else "validation"
    if name == "masked":
        return found, built.task, first_example(built.task)
    tokens_BL = built.task.batch(split, np.array([0])).inputs["tokens"]
    assert tokens_BL is not None
    return found, built.task, tokens_BL[0].numpy()


@pytest.mark.parametrize("name", TASKS)
def test_integrated_gradients_are_complete(name: str) -> None:
    model, task, tokens = build(name)
    found = attribute(model, task, tokens, untrained=model)
    assert len(found.values) == len(found.tokens) == len(tokens)
    assert found.completeness_error < 0.02 * max(0.5, abs(found.shared_difference))
    assert found.untrained_correlation is None or found.untrained_correlation == pytest.approx(1)
    assert {"comprehensiveness", "random_comprehensiveness", "sufficiency", "random_sufficiency"} <= set(
        json.loads(json.dumps(found.document()))
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["tokens", "masked"])
def test_the_difference_is_that_of_the_models_logits(name: str, method: Any) -> None:
    model, task, tokens = build(name)
    question = ask(model, task, tokens)
    with torch.no_grad():
        logits_V = model(**question.inputs)[0, question.contrast.position]
        zero = model.embedding.input_net().register_forward_hook(lambda *call: torch.zeros_like(call[-1]))
        baseline_V = model(**question.inputs)[0, question.contrast.position]
        zero.remove()
    answer, other = question.contrast.answer, question.contrast.other
    found = attribute(model, task, tokens, method)
    assert other is not None and found.target_difference > 0  # the model's own output is the likeliest
    assert found.target_difference == pytest.approx(float(logits_V[answer] - logits_V[other]), abs=1e-5)
    assert found.baseline_difference == pytest.approx(float(baseline_V[answer] - baseline_V[other]), abs=1e-5)
    document = found.document()
    shared = document["target_difference"] - document["baseline_difference"]
    assert document["completeness_error"] == pytest.approx(abs(document["sum"] - shared))


@pytest.mark.parametrize(
    ("method", "target", "baseline", "warns"),
    [
        ("integrated-gradients", 7.3, 7.4, True),
        ("gradient-input", -7.3, -4.0, True),
        ("integrated-gradients", 7.3, 3.0, False),
        ("integrated-gradients", 7.3, -9.0, False),
        ("integrated-gradients", 0.0, 0.0, False),
        ("occlusion", 7.3, 7.4, False),
    ],
)
def test_a_baseline_with_most_of_the_difference_is_warned_of(
    method: Any, target: float, baseline: float, warns: bool
) -> None:
    faithfulness = Faithfulness(*[0.0] * 6)
    found = TokenAttribution(method, "", ["a"], [target - baseline], target, baseline, faithfulness)
    assert ("--method occlusion" in (found.baseline_warning or "")) is warns


def test_progress_counts_every_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    model, task, tokens = build("sequence")
    monkeypatch.setattr("glassformer.inspection.gradients.TOKENS_PER_BATCH", 1)
    calls: list[tuple[str, int, int]] = []
    attribute(model, task, tokens, untrained=model, progress=lambda *call: calls.append(call))
    assert {name for name, _, _ in calls} == {
        "attributing to each token",
        "the same for the untrained model",
        "measuring faithfulness by hiding tokens",
    }
    assert ("attributing to each token", 64, 64) in calls


def test_integrated_gradients_equal_a_fine_riemann_sum() -> None:
    model, task, tokens = build("sequence")
    path = _Path(model, ask(model, task, tokens))
    alphas = (torch.arange(4000) + 0.5) / 4000
    change = path.end_LD - path.start_LD
    slopes = path.gradient(path.start_LD + alphas[:, None, None] * change)
    expected = (slopes.double().mean(0) * change).sum(-1).numpy()
    np.testing.assert_allclose(path.values("integrated-gradients"), expected, atol=2e-3)


def test_integrated_gradients_equal_captum() -> None:
    captum = pytest.importorskip("captum.attr")
    model, task, tokens = build("sequence")
    question = ask(model, task, tokens)
    path = _Path(model, question)

    def forward(states: torch.Tensor) -> torch.Tensor:
        repeated = {
            name: value.expand(len(states), -1)
            for name, value in question.inputs.items()
            if value is not None
        }
        with change_sites(model, {SITE: lambda _: states}):
            return question.contrast.value(model(**repeated))

    theirs = captum.IntegratedGradients(forward).attribute(
        path.end_LD[None], path.start_LD[None], n_steps=64, method="gausslegendre"
    )
    np.testing.assert_allclose(
        path.values("integrated-gradients"), theirs[0].sum(-1).detach().numpy(), atol=1e-5
    )


def test_faithfulness_is_measured_by_removing_and_keeping_tokens() -> None:
    model, task, tokens = build("seq2seq")
    path = _Path(model, ask(model, task, tokens))
    occlusion = path.values("occlusion")
    found = path.faithfulness(occlusion)
    assert found.comprehensiveness == pytest.approx(found.occlusion_comprehensiveness)
    assert found.sufficiency == pytest.approx(found.occlusion_sufficiency)
    first = int(np.argmax(occlusion))
    without = path.end_LD.clone()
    without[first] = path.start_LD[first]
    assert path.full - float(path.metric(without[None])) == pytest.approx(occlusion[first], abs=1e-5)


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("name", TASKS)
def test_parts_sum_to_the_logit_difference(name: str, norm: str) -> None:
    model, task, tokens = build(name, norm={"kind": norm}, norm_placement="pre", num_key_value_heads=1)
    with torch.no_grad():  # learned values instead of 1 and 0
        for norm_module in model.modules():
            if "Norm" in type(norm_module).__name__:
                for parameter in norm_module.parameters():
                    parameter += 0.3 * torch.randn_like(parameter)
    found = logit_parts(model, task, tokens)
    assert found.error < 1e-4 * max(1, abs(found.target_difference))
    stack = "decoder" if name == "seq2seq" else "encoder"
    assert {f"{stack}.embedding", f"{stack}.1.heads.1", f"{stack}.0.feed_forward", "bias"} <= set(found.parts)


def test_a_model_with_one_output_has_no_other_position() -> None:
    model, task, tokens = build("sequence")
    assert ask(model, task, tokens, output=0).contrast == ask(model, task, tokens).contrast
    with pytest.raises(ErrorDetail, match="the model has one output"):
        attribute(model, task, tokens, output=5)


def test_a_model_with_one_class_has_nothing_to_compare() -> None:
    _, task, _ = build("sequence")
    with pytest.raises(ErrorDetail, match="the model has one class"):
        _runner_up(task, None, torch.zeros(1), None)


def test_models_that_are_not_sums_are_refused() -> None:
    model, task, tokens = build("tokens", norm_placement="post")
    with pytest.raises(ErrorDetail, match="post-norm"):
        logit_parts(model, task, tokens)
    model, task, tokens = build("sequence", pooling={"kind": "attention"})
    with pytest.raises(ErrorDetail, match="pooling is not linear"):
        logit_parts(model, task, tokens)


def test_outputs_are_chosen_by_position_and_name() -> None:
    model, task, tokens = build("tokens")
    found = attribute(
        model,
        task,
        tokens,
        output=3,
        other=output_named(task, "1" if ask(model, task, tokens, 3).contrast.answer != 1 else "2"),
    )
    assert "at output 3" in found.contrast
    with pytest.raises(ErrorDetail, match="no such output position"):
        attribute(model, task, tokens, output=99)
    with pytest.raises(ErrorDetail, match="no such output"):
        output_named(task, "seventeen")
    with pytest.raises(ErrorDetail, match="own output"):
        attribute(model, task, tokens, other=ask(model, task, tokens).contrast.answer)
    with pytest.raises(ErrorDetail, match="no such method"):
        attribute(model, task, tokens, "guess")  # type: ignore[arg-type]


def test_every_generated_token_is_attributed() -> None:
    model, task, tokens = build("seq2seq")
    outputs, matrix = attribution_matrix(model, task, tokens, "gradient-input")
    assert matrix.shape == (len(outputs), len(tokens))
    first = attribute(model, task, tokens, "gradient-input", output=0)
    np.testing.assert_allclose(matrix[0], first.values, atol=1e-6)


def test_the_verb(trained_once: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attribute", str(trained_once), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    keys = {"method", "tokens", "values", "sum", "target_difference", "completeness_error"}
    assert keys | {"baseline_difference"} <= set(document)
    assert main(["attribute", str(trained_once), "--method", "gradient-input"]) == 0
    printed = capsys.readouterr().out
    assert f" is {document['target_difference']:.4f}\n" in printed
    assert f"check: input {document['target_difference']:.4f} − baseline " in printed
    assert main(["attribute", str(trained_once), "--method", "logits"]) in (0, 2)
    assert main(["attribute", str(trained_once), "--matrix"]) == 2
    assert "only an encoder-decoder" in capsys.readouterr().err
