"""Induction heads: scores and losses by hand, ablation of a trained head, and every task type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import glassformer as gf
from glassformer.cli import main
from glassformer.core.errors import ErrorDetail
from glassformer.inspection.heads import HeadProbe, average_heads, heads_document
from glassformer.inspection.induction import (
    DUPLICATE,
    INDUCTION,
    copying,
    half_losses,
    repeated_tokens,
    why_left_out,
)
from glassformer.inspection.sites import record_states
from glassformer.runs.experiment import Experiment
from glassformer.runs.run import Run
from glassformer.runs.session import train
from glassformer.tasks.random_tokens import RandomTokensConfig

from .conftest import FEW, experiment
from .test_patching import TASKS, sharpened

REPEATING = {"kind": "random-tokens", "target": "next", "length": 20, "categories": 12, **FEW}
LANGUAGE = {"kind": "language-model", "examples": 1300, "max_length": 24}
TRANSLATION = {"kind": "translation", "examples": 600, "max_length": 24}


def causal(**model: Any) -> Experiment:
    return experiment(REPEATING, **model)


@pytest.mark.parametrize("task", [REPEATING, LANGUAGE, TRANSLATION], ids=lambda task: str(task["kind"]))
def test_scores_and_losses_are_those_of_the_recorded_weights(task: dict[str, Any]) -> None:
    built = experiment(task)
    model, groups = sharpened(built), repeated_tokens(built.task, 6)
    site = groups[0].site
    assert site == ("decoder" if task is TRANSLATION else "encoder")
    assert len({group.period for group in groups}) == len(groups) > 1
    expected: dict[str, list[torch.Tensor]] = {INDUCTION: [], DUPLICATE: []}
    losses = []
    for group in groups:
        inputs, period, start = group.batch.inputs, group.period, group.start
        rows = inputs["target" if site == "decoder" else "tokens"]
        assert rows is not None and rows.shape[1] == start + 2 * period
        first, second = rows[:, start : start + period], rows[:, start + period :]
        assert torch.equal(first, second) and all(len(set(row)) == period for row in first.tolist())
        states = record_states(model, inputs, [f"{site}.*.weights"])
        weights = torch.stack(list(states.values()), 1)  # (B, layers, H, L, M)
        for name, after in ((INDUCTION, 1), (DUPLICATE, 0)):
            at = [weights[..., start + period + i, start + i + after] for i in range(period)]
            expected[name].append(torch.stack(at).mean(0))
        with torch.no_grad():
            logits = model(**inputs)
        each = F.cross_entropy(logits[:, :-1].mT, rows[:, 1:], reduction="none")
        ends = start + period
        halves = (each[:, start : ends - 1].mean(1), each[:, ends : ends + period - 1].mean(1))
        losses.append(torch.stack(halves, 1))
    found = average_heads(model, built.task, groups)[site].patterns
    for name, parts in expected.items():
        np.testing.assert_allclose(found[name].mass.mean, torch.cat(parts).mean(0), atol=1e-6)
    np.testing.assert_allclose(half_losses(model, groups), torch.cat(losses), atol=1e-5)


def test_the_losses_do_not_depend_on_how_they_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    built = causal()
    model, groups = sharpened(built), repeated_tokens(built.task, 3)
    chunked = half_losses(model, groups)
    monkeypatch.setattr(type(model.head), "is_plain", property(lambda self: False))
    np.testing.assert_allclose(half_losses(model, groups), chunked, atol=1e-5)


@pytest.mark.parametrize("model", [{}, {"norm": {"kind": "rms"}, "num_key_value_heads": 1}], ids=str)
def test_copying_is_the_sign_of_the_own_logit(model: dict[str, Any]) -> None:
    """Each head's output for a single token, through the last norm without its scale, against all logits."""
    built = causal(**model)
    network, groups = sharpened(built), repeated_tokens(built.task, 1)
    found = copying(network, groups)
    assert found is not None and found.shape == (2, 2)
    expected = []
    for group in groups:
        tokens = group.batch.inputs["tokens"]
        assert tokens is not None
        states = record_states(network, group.batch.inputs, ["*.residual_pre"])
        signs = np.zeros((2, 2))
        for layer, block in enumerate(network.encoder.layers):  # type: ignore[union-attr, arg-type]
            with torch.no_grad():
                read = block.attention_residual.before(states[f"encoder.{layer}.residual_pre"])
                values = block.attention.query_key_value(read).split(block.attention.parts, -1)[2]
                values = values.unflatten(-1, (block.attention.num_key_value_heads, -1))
                for head in range(2):
                    own = values[:, :, head if values.shape[2] == 2 else 0]
                    output = own @ block.attention.output.weight[:, 8 * head : 8 * head + 8].T
                    norm = network.encoder.final_norm  # type: ignore[union-attr]
                    is_centred = isinstance(norm, torch.nn.LayerNorm)
                    output = output - output.mean(-1, keepdim=True) if is_centred else output
                    logits = (output * norm.weight) @ network.head.output_weight(network.tied_weight()).T  # type: ignore[operator]
                    mine = logits.gather(-1, tokens[..., None]).squeeze(-1)
                    signs[layer, head] = (mine - logits.mean(-1)).sign().mean()
        expected.append(signs)
    np.testing.assert_allclose(found, np.mean(expected, 0), atol=1e-6)


def test_a_post_norm_model_has_no_copying_score() -> None:
    built = causal(norm_placement="post")
    model, groups = built.build_model(), repeated_tokens(built.task, 1)
    assert copying(model, groups) is None
    assert heads_document(model, model, built.task, group_of(built))["repeated"]["copying"] is None


def group_of(built: Experiment) -> Any:
    from glassformer.inspection.examples import group_examples

    return group_examples(built.task, "validation", 2)


@pytest.mark.parametrize("name", TASKS)
def test_every_task_type_is_measured_or_left_out_by_name(name: str) -> None:
    built = experiment({**TASKS[name], "length": 9} if name == "causal" else TASKS[name])
    model = built.build_model()
    document = heads_document(model, model, built.task, group_of(built))
    json.dumps(document, allow_nan=False)
    probe = HeadProbe(built.task, 1, 2).measure(model)
    patterns = document["sites"]["encoder"]["patterns"]
    if name == "causal":
        assert why_left_out(built.task) is None and document["repeated"]["periods"] == [4]
        assert patterns[INDUCTION] == document["untrained"]["encoder"]["patterns"][INDUCTION]
        assert probe["scores"]["encoder"].keys() == patterns.keys()
        assert probe["repeated_loss"].keys() == {"first_half", "second_half"}
        return
    reason = why_left_out(built.task)
    assert reason and document["repeated"] == {"left_out": reason}
    assert ("too few" if name == "seq2seq" else "all tokens at once") in reason
    assert INDUCTION not in patterns and "repeated_loss" not in probe
    with pytest.raises(ErrorDetail, match="no induction heads"):
        repeated_tokens(built.task)


# ---------------------------------------------------------------- trained


SMALL = {
    "task.length": 24,
    "task.categories": 16,
    "task.shortest_period": 4,
    "task.train_examples": 20_000,
    "task.test_examples": 100,
    "training.max_steps": 300,
    "training.validate_every": None,
    "training.batch_size": 128,
    "training.threads": 1,
    "model.num_heads": 1,
    "model.hidden_dim": 48,
    "inspection.every": 50,
    "inspection.keep_snapshots": False,
}


@pytest.mark.thorough
def test_a_trained_head_is_needed_for_the_second_half(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train("induction", SMALL, run=tmp_path / "run")
    run = Run(tmp_path / "run")
    document = run.heads(4)
    repeated, scores = document["repeated"], document["sites"]["encoder"]["patterns"][INDUCTION]["mass"]
    assert repeated["loss"]["second_half"] < 1 < repeated["loss"]["first_half"] < 3.5
    assert repeated["untrained_loss"]["second_half"] > 2.5
    first = repeated["ablated"][0]
    assert (first["layer"], first["head"]) == (1, 0) and scores["mean"][1][0] > 0.5
    assert first["metrics"]["second_half_loss"]["interval"][0] > 1
    assert abs(first["metrics"]["first_half_loss"]["change"]) < 0.3
    assert repeated["copying"][1][0] > 0.8
    events = [event for event in run.folder.events if event["event"] == "head_probe"]
    assert events[0]["scores"]["encoder"][INDUCTION][1][0] < 0.2
    assert events[-1]["scores"]["encoder"][INDUCTION][1][0] > 0.5
    assert events[-1]["repeated_loss"]["second_half"] < events[0]["repeated_loss"]["second_half"] - 1.5
    assert main(["heads", str(run.path), "--examples", "2"]) == 0
    shown = capsys.readouterr().out
    assert "random tokens that repeat" in shown and "of the second half" in shown


def test_a_repeating_sequence_has_one_rest() -> None:
    config = RandomTokensConfig.model_validate({**REPEATING, "shortest_period": 5})
    task = config.build(0)
    for row in task.splits["train"].inputs:
        periods = [each for each in range(5, 11) if np.array_equal(row[each:], row[:-each])]
        assert periods
        if len(periods) == 1:
            assert task.solve(row[:-2].tolist()) == row[-2:].tolist()
    assert task.solve(task.splits["train"].inputs[0][:8].tolist()) is None
    assert task.solve([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]) is None


@pytest.mark.parametrize(
    "options", [{"target": "class", "shortest_period": 5}, {"target": "next", "shortest_period": 11}], ids=str
)
def test_a_period_that_no_sequence_can_have_is_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(gf.UserError, match=r"task\.shortest_period"):
        experiment({**REPEATING, **options})
