"""Healthy models of every task type with every position, and every preset, pass every check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from glassformer.blocks.heads import ClassHead
from glassformer.blocks.positions import PositionConfig
from glassformer.core.errors import UserError
from glassformer.core.registry import kinds
from glassformer.doctor.checks import CheckContext
from glassformer.doctor.report import Report
from glassformer.doctor.runner import MODEL_CHECKS, check_model
from glassformer.models.base import Model
from glassformer.models.task_types import TaskType
from glassformer.runs.experiment import Experiment, ExperimentConfig, presets, resolve

SHAPES = ["per token", "per sequence", "next token", "masked token", "sequence to sequence"]

ContextOf = Callable[..., CheckContext]


def failures(report: Report) -> dict[str, str]:
    return {check.name: check.measurement.detail for check in report.checks if not check.passed}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("position", sorted(kinds(PositionConfig)))
def test_every_shape_with_every_position(shape: str, position: str, context_of: ContextOf) -> None:
    report = check_model(context_of(shape, num_layers=1, position={"kind": position}).experiment)
    assert failures(report) == {}
    assert [check.name for check in report.checks] == list(MODEL_CHECKS)
    assert "fp64" in report.note


@pytest.mark.parametrize(
    "options",
    [
        {"norm_placement": "post", "attention_dropout": 0.2},
        {
            "norm": {"kind": "rms"},
            "num_key_value_heads": 1,
            "tied_output": True,
            "feed_forward": {"kind": "swiglu"},
        },
        {"input": {"kind": "one-hot"}, "dropout": 0.0, "is_causal": True, "pooling": {"kind": "attention"}},
    ],
)
@pytest.mark.parametrize("shape", ["per token", "real number", "next token", "sequence to sequence"])
def test_other_blocks(shape: str, options: dict[str, Any], context_of: ContextOf) -> None:
    assert failures(check_model(context_of(shape, **options).experiment)) == {}


def test_what_does_not_apply_says_why(context_of: ContextOf) -> None:
    report = check_model(context_of("real number", position={"kind": "none"}).experiment)
    skipped = {
        check.name: check.measurement for check in report.checks if check.measurement.verdict == "skipped"
    }
    assert set(skipped) == {
        "future tokens do not affect earlier outputs",
        "inputs do not contain their targets",
        "cached decoding equals full decoding",
        "positions affect the outputs",
        "initial loss is near ln V",
    }
    for found in skipped.values():
        assert found.value is None and found.detail.startswith("does not apply: ")


class WordCounts(Model):
    """Model without our blocks that averages word embeddings, in fp32 only."""

    def __init__(self, shape: Any) -> None:
        super().__init__(shape)
        self.words = nn.Embedding(shape.vocabulary, 32)
        self.head = ClassHead(32, shape.outputs)

    def hidden(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        attention_mask_BL = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
        shares_BL = attention_mask_BL.float() / attention_mask_BL.sum(1, keepdim=True).clamp(min=1)
        return torch.bmm(shares_BL[:, None], self.words(tokens))[:, 0]


def test_a_users_model_without_fp64(context_of: ContextOf, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(task_type: TaskType) -> Model:
        torch.manual_seed(0)
        return WordCounts(task_type)

    context = context_of("per sequence")
    monkeypatch.setattr(context.experiment, "build_model", lambda: build(context.task_type))
    model_kind = type(context.experiment.config.model)
    monkeypatch.setattr(model_kind, "build", lambda self, task_type: build(task_type))
    report = check_model(context.experiment)
    assert failures(report) == {}
    assert "fp32" in report.note
    fused = report["fused attention equals the reference"].measurement
    assert fused.verdict == "skipped"


def test_a_trained_model_is_checked_unchanged(context_of: ContextOf) -> None:
    context = context_of("next token")
    trained = context.experiment.build_model()
    with torch.no_grad():
        trained.head.weight.mul_(50)  # as after long training; the initial loss uses a fresh model
    report = check_model(context.experiment, trained)
    assert failures(report) == {}
    assert "fresh" in report["initial loss is near ln V"].measurement.detail


def test_checks_change_nothing(context_of: ContextOf) -> None:
    context = context_of("next token")
    trained = context.experiment.build_model()
    before, random = {k: v.clone() for k, v in trained.state_dict().items()}, torch.get_rng_state()
    kernels = [module.kernel for module in trained.modules() if hasattr(module, "kernel")]
    check_model(context.experiment, trained)
    assert all(torch.equal(tensor, before[name]) for name, tensor in trained.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())
    assert kernels == [module.kernel for module in trained.modules() if hasattr(module, "kernel")]
    assert trained.training and all(parameter.grad is None for parameter in trained.parameters())


def shrunk(preset: str) -> ExperimentConfig:
    """Reduce a preset to two narrow blocks and few generated examples."""
    config = resolve(preset)
    model = config.model.dump()
    overrides: dict[str, Any] = {}
    if "hidden_dim" in model:
        overrides = {
            "model.num_layers": min(2, model["num_layers"]),
            "model.hidden_dim": min(model["hidden_dim"], 8 * model["num_heads"]),
            "model.feed_forward_dim": min(model["feed_forward_dim"], 64),
        }
    if "train_examples" in config.task.dump():
        overrides |= {f"task.{split}_examples": 100 for split in ("train", "validation", "test")}
    return resolve(preset, overrides)


@pytest.mark.parametrize("preset", presets())
def test_every_preset(preset: str) -> None:
    try:
        experiment = Experiment(shrunk(preset))
        _ = experiment.task.splits
    except UserError as error:
        pytest.skip(f"the data of {preset} are not here: {error}")
    assert failures(check_model(experiment)) == {}
