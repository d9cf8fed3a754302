"""Statistics over many examples equal those of single maps and of known maps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glassformer.evaluation.intervals import mean_intervals
from glassformer.inspection.attribution import logit_lens, rollout
from glassformer.inspection.examples import group_examples, prepare_generated, prepare_input
from glassformer.inspection.heads import average_heads, heads_document
from glassformer.inspection.maps import AttentionMaps
from glassformer.inspection.record import attention_maps, capture
from glassformer.inspection.statistics import head_statistics
from glassformer.runs.experiment import Experiment
from glassformer.runs.session import train
from glassformer.tasks.arithmetic import ArithmeticTask

from .conftest import experiment, make_maps


@pytest.mark.parametrize("block", [1, 1 << 22])
def test_averages_are_those_of_the_single_maps(
    block: int, arithmetic: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glassformer.inspection.heads.CELLS_AT_ONCE", block)
    model, task = arithmetic.build_model(), arithmetic.task
    groups = group_examples(task, "test", 5)
    averages = average_heads(model, task, groups)
    assert list(averages) == ["encoder", "decoder", "cross"]
    inputs = [row for group in groups for row in group.inputs]
    written = [[*right, task.end] for group in groups for right in group.references or []]  # type: ignore[attr-defined]
    single = [
        attention_maps(model, prepare_generated(model, task, tokens, answer))
        for tokens, answer in zip(inputs, written, strict=True)
    ]
    for site, site_maps in averages.items():
        found = [head_statistics(maps[site]) for maps in single]
        names = found[0].patterns
        assert site_maps.patterns.keys() == names.keys()
        for name in names:
            for kind in ("mass", "above_uniform", "value_weighted"):
                expected = np.mean([getattr(each.patterns[name], kind) for each in found], axis=0)
                np.testing.assert_allclose(getattr(site_maps.patterns[name], kind).mean, expected, atol=1e-5)
        for kind in ("entropy", "distance", "value_share"):
            expected = np.mean([getattr(each, kind) for each in found], axis=0)
            np.testing.assert_allclose(getattr(site_maps, kind).mean, expected, atol=1e-5)
            low, high = getattr(site_maps, kind).low, getattr(site_maps, kind).high
            assert (np.isnan(expected) | ((low <= expected + 1e-6) & (expected - 1e-6 <= high))).all()


def test_texts_of_all_lengths_are_never_padded() -> None:
    of = experiment({"kind": "classification", "examples": 20, "max_length": 24})
    model, groups = of.build_model(), group_examples(of.task, "test", 5)
    assert all(group.batch.inputs["mask"] is None for group in groups) and len(groups) > 1
    averages = average_heads(model, of.task, groups)["encoder"]
    rows = [row for group in groups for row in group.inputs]
    found = [
        head_statistics(attention_maps(model, prepare_input(model, of.task, row))["encoder"]) for row in rows
    ]
    np.testing.assert_allclose(
        averages.entropy.mean, np.mean([each.entropy for each in found], axis=0), atol=1e-5
    )


def test_a_document_has_the_control_beside_it(reversal: Experiment) -> None:
    model, control = reversal.build_model(), reversal.build_model()
    groups = group_examples(reversal.task, "test", 2)
    document = heads_document(model, control, reversal.task, groups)
    assert document["trust"] == "fact" and document["examples"] == 2
    assert document["sites"] == document["untrained"]  # the same first weights
    assert "untrained" not in heads_document(model, None, reversal.task, groups)
    encoder = document["sites"]["encoder"]
    assert (encoder["layers"], encoder["heads"]) == ([0, 1], [0, 1])
    mass = encoder["patterns"]["anti-diagonal"]["mass"]
    assert np.shape(mass["mean"]) == (2, 2) and np.shape(mass["interval"]) == (2, 2, 2)


def test_intervals_of_means_know_what_is_missing() -> None:
    random = np.random.default_rng(0)
    values = random.normal(2, 1, (400, 3))
    values[::2, 1] = np.nan
    values[:, 2] = np.nan
    mean, low, high = mean_intervals(values)
    np.testing.assert_allclose(mean[:2], [values[:, 0].mean(), np.nanmean(values[:, 1])])
    assert math.isnan(mean[2]) and math.isnan(low[2])
    for column, count in ((0, 400), (1, 200)):
        # The normal interval of a mean, which the bootstrap approximates.
        half = 1.96 * np.nanstd(values[:, column]) / math.sqrt(count)
        assert high[column] - low[column] == pytest.approx(2 * half, rel=0.15)
    means, *nothing = mean_intervals(values, resamples=0)
    np.testing.assert_array_equal(means, mean)
    assert all(np.isnan(each).all() for each in nothing)


# ---------------------------------------------------------------- value-weighted norms


def test_value_norms_are_the_lengths_of_what_is_added(arithmetic: Experiment) -> None:
    """Weight × value through the head's slice of the output projection, by hand for each cell of one head."""
    model, task = arithmetic.build_model(), arithmetic.task
    tokens = np.asarray(task.splits["test"].inputs[0]).astype(np.int64)
    model_input = prepare_input(model, task, tokens)
    maps = attention_maps(model, model_input)
    seen: dict[str, torch.Tensor] = {}
    attention = model.decoder.layers[1].cross_attention  # type: ignore[union-attr, index]
    inner = attention.kernel

    def note(*arguments: Any) -> torch.Tensor:
        seen["values"] = arguments[2]
        return inner(*arguments)

    attention.kernel = note
    with torch.inference_mode():
        model.eval()(**model_input.inputs)
    attention.kernel = inner
    head, width = 1, attention.head_dim
    part = attention.output.weight.detach()[:, head * width : (head + 1) * width]
    expected = (seen["values"][0, head] @ part.T).norm(dim=-1).numpy()
    cross = maps["cross"]
    assert cross.value_norms is not None
    np.testing.assert_allclose(cross.value_norms[1, head], expected, rtol=1e-5)
    added = cross.weights[1, head] * expected
    first = (added[:, 0] / added.sum(1)).mean()
    assert head_statistics(cross).patterns["first token"].value_weighted[1, head] == pytest.approx(first)
    lengths = (cross.weights * cross.value_norms[:, :, None]).sum(-1).mean(-1)
    np.testing.assert_allclose(
        head_statistics(cross).value_share, lengths / lengths.sum(1, keepdims=True), rtol=1e-5
    )


def test_value_norms_and_patterns_come_back_from_a_file(arithmetic: Experiment, tmp_path: Path) -> None:
    model = arithmetic.build_model()
    tokens = np.asarray(arithmetic.task.splits["test"].inputs[0]).astype(np.int64)
    maps = attention_maps(model, prepare_input(model, arithmetic.task, tokens))
    maps.save(tmp_path / "maps.npz")
    again = AttentionMaps.load(tmp_path / "maps.npz")
    for site in maps.sites:
        np.testing.assert_array_equal(again[site].value_norms, maps[site].value_norms)  # type: ignore[arg-type]
        assert again[site].patterns.keys() == maps[site].patterns.keys()
        assert head_statistics(again[site]).document() == head_statistics(maps[site]).document()


# ---------------------------------------------------------------- digits


def test_digits_of_the_same_power_of_ten(arithmetic: Experiment) -> None:
    task = arithmetic.task
    assert isinstance(task, ArithmeticTask)
    tokens = task.parse("-31 + 4").tolist()  # BOS NEGATIVE 3 1 add POSITIVE 0 4 EOS
    written = [*(task.solve(tokens)), task.end]  # NEGATIVE 2 7 EOS
    patterns = task.attention_patterns(tokens, written)
    cells = {
        name: [tuple(cell) for cell in np.argwhere(mask).tolist()] for name, mask in patterns["cross"].items()
    }
    assert cells == {"same digit": [(1, 2), (1, 6), (2, 3), (2, 7)]}
    (other,) = patterns["encoder"].values()
    assert [tuple(cell) for cell in np.argwhere(other).tolist()] == [(2, 6), (3, 7), (6, 2), (7, 3)]
    assert "cross" not in task.attention_patterns(tokens)


def test_a_longer_output_has_digits_that_no_operand_has() -> None:
    of = experiment({"kind": "arithmetic", "digits": 1, "operations": ["multiply"], "max_examples": 50})
    task = of.task
    assert isinstance(task, ArithmeticTask)
    tokens = task.parse("4 * 4").tolist()  # BOS POSITIVE 4 multiply POSITIVE 4 EOS
    cells = task.attention_patterns(tokens, [*task.solve(tokens), task.end])["cross"]["same digit"]
    assert np.argwhere(cells).tolist() == [[2, 2], [2, 5]]  # the last digit of POSITIVE 1 6


def test_alignment_of_a_map_that_is_known(arithmetic: Experiment) -> None:
    task = arithmetic.task
    assert isinstance(task, ArithmeticTask)
    tokens = task.parse("-31 + 4").tolist()
    cells = task.attention_patterns(tokens, [*task.solve(tokens), task.end])["cross"]
    weights = np.full((4, 9), 1 / 9)
    weights[1] = 0
    weights[1, [2, 6]] = 0.3, 0.6
    weights[1, 0] = 0.1
    from dataclasses import replace

    site = replace(make_maps(weights)["encoder"], is_cross=True, patterns=cells)
    pattern = head_statistics(site).patterns["same digit"]
    assert pattern.mass.item() == pytest.approx((0.9 + 2 / 9) / 2)
    assert (pattern.mass - pattern.above_uniform).item() == pytest.approx(2 / 9)
    assert pattern.above_uniform.item() == pytest.approx((0.9 - 2 / 9) / 2)


def test_a_trained_arithmetic_model_has_three_kinds_of_maps(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("task: {kind: arithmetic, digits: 1, largest: 4, smallest: -4}\n")
    options = {
        "model.num_layers": 1,
        "model.num_heads": 2,
        "model.hidden_dim": 16,
        "model.feed_forward_dim": 32,
        "training.max_steps": 20,
        "training.max_epochs": None,
        "training.threads": 1,
    }
    run = train(str(tmp_path / "a.yaml"), options, run=tmp_path / "run")
    assert list(run.attention().sites) == ["encoder", "decoder", "cross"]
    document = run.heads(6)
    assert list(document["sites"]) == list(document["untrained"]) == ["encoder", "decoder", "cross"]
    assert "same digit" in document["sites"]["cross"]["patterns"]


# ---------------------------------------------------------------- hints


def test_rollout_of_known_maps() -> None:
    """Two layers that attend to one token: half stays, half moves, twice."""
    first, second = np.eye(3)[[1, 1, 1]], np.eye(3)[[2, 2, 2]]
    maps = make_maps(np.stack([first, second])[:, None])
    rolled = rollout(maps)["encoder"].weights[0, 0]
    step = 0.5 * np.eye(3) + 0.5 * first
    np.testing.assert_allclose(rolled, (0.5 * np.eye(3) + 0.5 * second) @ step, atol=1e-6)
    np.testing.assert_allclose(rolled.sum(-1), 1, atol=1e-6)


def test_rollout_of_a_decoder_adds_up_over_both_of_its_sources(arithmetic: Experiment) -> None:
    model = arithmetic.build_model()
    tokens = np.asarray(arithmetic.task.splits["test"].inputs[0]).astype(np.int64)
    maps = attention_maps(model, prepare_input(model, arithmetic.task, tokens))
    rolled = rollout(maps)
    both = rolled["decoder"].weights.sum(-1) + rolled["cross"].weights.sum(-1)
    np.testing.assert_allclose(both, 1, atol=1e-5)
    assert rolled.about["trust"] == "hint" and rolled.checks.passed
    assert (np.triu(rolled["decoder"].weights[0, 0], 1) == 0).all()  # no token attends to a later one


def test_the_last_lens_is_the_models_own_output_and_the_first_is_the_embedding(reversal: Experiment) -> None:
    model, task = reversal.build_model().eval(), reversal.task
    tokens = np.asarray(task.splits["test"].inputs[0]).astype(np.int64)
    lens = logit_lens(model, task, prepare_input(model, task, tokens), top=3)
    assert lens.layers == [0, 1, 2] and lens.positions == [str(token) for token in tokens]
    (answer,) = task.predict(model, [tokens])[0]
    assert lens.outputs == task.output_symbols(answer.tokens)
    for row, probability in zip(lens.guesses[-1], answer.probabilities, strict=True):
        assert row[0].probability == pytest.approx(probability, rel=1e-5) and len(row) == 3
    with torch.inference_mode():
        positions = torch.arange(len(tokens))[None]
        x = model.embedding(torch.from_numpy(tokens)[None], positions)  # type: ignore[operator]
        first = model.head(model.encoder.final_norm(x))[0].softmax(-1)  # type: ignore[union-attr, operator]
    for row, expected in zip(lens.guesses[0], first, strict=True):
        assert row[0].probability == pytest.approx(float(expected.max()), rel=1e-5)
    with capture(model) as recorder:  # its blocks are restored
        model(tokens=torch.from_numpy(tokens)[None])
    assert len(recorder.records["encoder"]) == 2


def test_the_lens_of_a_decoder_and_of_a_classifier(arithmetic: Experiment) -> None:
    tokens = np.asarray(arithmetic.task.splits["test"].inputs[0]).astype(np.int64)
    model = arithmetic.build_model()
    lens = logit_lens(model, arithmetic.task, prepare_input(model, arithmetic.task, tokens))
    assert len(lens.layers) == 4 and lens.outputs == lens.positions  # greedy decoding
    of = experiment({"kind": "palindrome", "length": 6, "categories": 4, "train_examples": 8})
    row = np.asarray(of.task.splits["test"].inputs[0]).astype(np.int64)
    classifier = of.build_model()
    assert logit_lens(classifier, of.task, prepare_input(classifier, of.task, row)).positions == [
        "whole sequence"
    ]
