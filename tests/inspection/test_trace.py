"""Traces equal the decoding, and the maps of a node equal what the decoding attended to."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from glassformer.core.errors import ErrorDetail
from glassformer.generation import (
    BeamConfig,
    DecodingConfig,
    GreedyConfig,
    SampleConfig,
    generate,
    tracing,
)
from glassformer.generation.no_cache import NoCache
from glassformer.inspection.examples import prepare_generated
from glassformer.inspection.record import attention_maps, capture
from glassformer.inspection.trace import Trace, prepare_node, trace
from glassformer.models.base import Model
from glassformer.runs.experiment import Experiment

from .conftest import experiment

DECODINGS = [GreedyConfig(), SampleConfig(temperature=2.0, seed=3), BeamConfig(size=3, n_best=2)]


def sharpened(of: Experiment) -> Model:
    """Scale the weights up: initial outputs are nearly uniform, larger weights make beams differ."""
    model = of.build_model()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3)
    return model


@pytest.fixture
def language() -> Experiment:
    return experiment({"kind": "language-model", "examples": 20, "max_length": 12})


def tokens_of(of: Experiment, count: int | None = None) -> np.ndarray:
    return np.asarray(of.task.splits["test"].inputs[0]).astype(np.int64)[:count]


@pytest.mark.parametrize("decoding", DECODINGS, ids=lambda decoding: decoding.kind)
def test_outputs_are_those_of_the_decoding(decoding: DecodingConfig, arithmetic: Experiment) -> None:
    model, tokens = sharpened(arithmetic), tokens_of(arithmetic)
    traced = trace(model, arithmetic.task, tokens, decoding)
    (answers,) = arithmetic.task.predict(model, [tokens], decoding)
    given = [outcome for outcome in traced.outputs if outcome.is_returned]
    assert len(given) == len(answers)
    for outcome, answer in zip(given, answers, strict=True):
        assert outcome.output == arithmetic.task.show_output(answer.tokens)
        assert outcome.probability == pytest.approx(answer.probability)
        is_ended = len(answer.probabilities) > len(answer.tokens)
        assert outcome.node is not None
        assert traced.generated(outcome.node) == [*answer.tokens, *[arithmetic.task.end] * is_ended]  # type: ignore[attr-defined]
    scores = [outcome.score for outcome in traced.outputs if outcome.score is not None]
    assert scores == sorted(scores, reverse=True)


def test_the_tree_adds_up(arithmetic: Experiment) -> None:
    model, tokens = sharpened(arithmetic), tokens_of(arithmetic)
    traced = trace(model, arithmetic.task, tokens, BeamConfig(size=3), alternatives=4)
    assert traced.nodes is not None
    states = {node.state for node in traced.nodes}
    assert {"chosen", "dropped", "kept"} <= states
    for node in traced.nodes:
        if node.parent is None:
            assert node.step == 0 and node.total == pytest.approx(node.log_probability)
            continue
        parent = traced.nodes[node.parent]
        assert parent.step == node.step - 1 and parent.state in ("kept", "chosen")
        assert node.total == pytest.approx(parent.total + node.log_probability)
    by_step = {step: [b for b in traced.nodes if b.step == step] for step in range(len(traced.steps))}
    for step, moment in enumerate(traced.steps):
        assert moment.node is not None and traced.nodes[moment.node] in by_step[step]
        assert traced.nodes[moment.node].state == "chosen"
        assert len(moment.alternatives) == 4
        probabilities = [each.probability for each in moment.alternatives]
        assert probabilities == sorted(probabilities, reverse=True)
        shown = {each.token: each.probability for each in moment.alternatives}
        if moment.chosen in shown:
            assert shown[moment.chosen] == pytest.approx(moment.probability)
    assert traced.outputs[0].probability == pytest.approx(
        math.prod(moment.probability or 0 for moment in traced.steps)
    )
    document = traced.document()
    assert [node["id"] for node in document["tree"]["nodes"]] == list(range(len(traced.nodes)))


def test_probabilities_are_the_models_own(arithmetic: Experiment) -> None:
    """Without a cache, the token of each node has the log-probability that the tree contains."""
    model, tokens = sharpened(arithmetic), tokens_of(arithmetic)
    traced = trace(model, arithmetic.task, tokens, BeamConfig(size=2))
    assert traced.nodes is not None
    model.eval()
    for number, node in enumerate(traced.nodes):
        model_input = prepare_generated(model, arithmetic.task, tokens, traced.generated(number))
        with torch.inference_mode():
            logits = model(**model_input.inputs)[0, -1]
        assert float(logits.log_softmax(-1)[node.token]) == pytest.approx(node.log_probability, abs=1e-4)


@pytest.mark.parametrize("decoding", DECODINGS, ids=lambda decoding: decoding.kind)
@pytest.mark.parametrize("task", ["arithmetic", "language"])
def test_maps_of_a_node_are_what_the_decoding_attended_to(
    task: str, decoding: DecodingConfig, request: pytest.FixtureRequest
) -> None:
    """Compare every node, also dropped ones, row by row with the cached steps."""
    of: Experiment = request.getfixturevalue(task)
    model, tokens = sharpened(of), tokens_of(of, None if task == "arithmetic" else 3)
    with capture(model) as recorder, tracing() as observed:
        of.task.predict(model, [tokens], decoding)
    site = "cross" if task == "arithmetic" else "encoder"
    layers = 3 if task == "arithmetic" else 2
    calls = recorder.records[site]  # type: ignore[index]
    assert len(calls) == layers * len(observed.rows[0])
    traced = trace(model, of.task, tokens, decoding)
    assert traced.nodes is not None
    candidates = [candidate for step in observed.rows[0] for candidate in step.candidates]
    assert len(candidates) == len(traced.nodes)
    for number in range(len(traced.nodes)):
        model_input, about = prepare_node(model, of.task, tokens, decoding, number)
        maps = attention_maps(model, model_input)[site]
        assert about["node"] == f"{number} ({traced.nodes[number].state})"
        at: int | None = number
        while at is not None:
            step = traced.nodes[at].step
            row = step if task == "arithmetic" else len(tokens) - 1 + step
            for layer in range(layers):
                recorded = calls[step * layers + layer].weights_BHLM[candidates[at].beam, :, -1]
                keys = recorded.shape[-1]
                np.testing.assert_allclose(maps.weights[layer, :, row, :keys], recorded, atol=1e-5)
                assert (maps.weights[layer, :, row, keys:] == 0).all()
            at = traced.nodes[at].parent


def test_observing_changes_nothing(arithmetic: Experiment) -> None:
    model, task = sharpened(arithmetic), arithmetic.task
    rows = [np.asarray(row).astype(np.int64) for row in task.splits["test"].inputs[:2]]
    alone = task.predict(model, rows, BeamConfig(size=3))
    with tracing() as observed:
        watched = task.predict(model, rows, BeamConfig(size=3))
    assert watched == alone and len(observed.rows) == 2
    observed.rows.clear()
    task.predict(model, rows, BeamConfig(size=3))
    assert observed.rows == []  # observing has ended


def test_a_trace_that_is_handed_over_goes_before(arithmetic: Experiment) -> None:
    from glassformer.generation import Trace as Observed

    model = NoCache(sharpened(arithmetic))
    mine = Observed()
    with tracing() as observed:
        generate(
            model,
            {"tokens": torch.from_numpy(tokens_of(arithmetic))[None], "mask": None},
            begin=10,
            end=11,
            max_length=4,
            trace=mine,
        )
    assert mine.rows and not observed.rows


@pytest.mark.parametrize(
    ("task", "steps"),
    [
        ({"kind": "reversal", "length": 5, "categories": 4}, 5),
        ({"kind": "palindrome", "length": 6, "categories": 4}, 1),
    ],
)
def test_a_model_that_does_not_generate_has_steps_and_no_tree(task: dict[str, Any], steps: int) -> None:
    of = experiment({**task, "train_examples": 8, "validation_examples": 2, "test_examples": 2})
    model = sharpened(of)
    traced = trace(model, of.task, tokens_of(of), alternatives=2)
    assert len(traced.steps) == steps and traced.document()["tree"] is None
    for moment in traced.steps:
        assert moment.chosen == moment.alternatives[0].token and len(moment.alternatives) == 2
        assert moment.probability == pytest.approx(moment.alternatives[0].probability)
    assert traced.outputs[0].probability == pytest.approx(
        math.prod(moment.probability or 0 for moment in traced.steps)
    )
    with pytest.raises(ErrorDetail, match="no search tree"):
        traced.generated(0)
    with pytest.raises(ErrorDetail, match="at least 1"):
        trace(model, of.task, tokens_of(of), alternatives=0)


def test_a_node_that_does_not_exist(arithmetic: Experiment) -> None:
    traced: Trace = trace(arithmetic.build_model(), arithmetic.task, tokens_of(arithmetic))
    with pytest.raises(ErrorDetail, match="numbered from 0"):
        traced.generated(10_000)
