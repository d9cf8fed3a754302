"""Ablations equal models that are changed by hand, and leave the model as it was."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from glassformer.blocks import reference
from glassformer.blocks.attention import MultiHeadAttention, explicit_scores
from glassformer.blocks.masks import Mask
from glassformer.core.errors import ErrorDetail
from glassformer.evaluation.evaluate import EvaluationConfig, measure
from glassformer.generation import BeamConfig, GreedyConfig
from glassformer.inspection.ablation import (
    Edge,
    ablate_edge,
    ablate_head,
    compare,
    edge_effects,
    head_effects,
    mean_outputs,
    measure_examples,
    show_output,
    token_effects,
)
from glassformer.inspection.examples import first_example, group_examples, reference_input
from glassformer.inspection.record import HeadId, attention_at, attentions
from glassformer.models.base import Model
from glassformer.runs.experiment import Experiment
from glassformer.runs.run import Run
from glassformer.runs.session import train

from .conftest import experiment
from .test_attention_verb import REVERSAL

FEW: dict[str, Any] = {"train_examples": 16, "validation_examples": 6, "test_examples": 12}
TASKS: dict[str, dict[str, Any]] = {
    "per token": {"kind": "reversal", "length": 6, "categories": 4, **FEW},
    "per sequence": {"kind": "palindrome", "length": 6, "categories": 4, **FEW},
    "sequence to sequence": {"kind": "arithmetic", "max_examples": 40},
    "next token": {"kind": "language-model", "examples": 20, "max_length": 10},
    "masked token": {"kind": "masked-language-model", "examples": 20, "max_length": 10},
    "texts of all lengths": {"kind": "classification", "examples": 20, "max_length": 24},
}


@pytest.fixture(scope="module")
def built() -> dict[str, tuple[Experiment, Model]]:
    return {name: sharp(experiment(task)) for name, task in TASKS.items()}


def sharp(of: Experiment) -> tuple[Experiment, Model]:
    model = of.build_model()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(2)
    return of, model.eval()


def tokens_of(of: Experiment) -> np.ndarray:
    return first_example(of.task)


def kernels(model: Model) -> list[Any]:
    return [attention.kernel for attention in attentions(model)]


# ---------------------------------------------------------------- what is measured


@pytest.mark.parametrize("name", TASKS)
def test_without_a_change_it_is_what_the_evaluator_measures(
    name: str, built: dict[str, tuple[Experiment, Model]]
) -> None:
    of, model = built[name]
    count = min(8, len(of.task.splits["test"]))
    ours = measure_examples(model, of.task, group_examples(of.task, "test", count), GreedyConfig())
    theirs = measure(model, of.task, "test", EvaluationConfig(max_examples=count)).metrics
    assert len(ours["loss"]) == count
    assert ours["loss"].sum() / ours["count"].sum() == pytest.approx(theirs["loss"], rel=1e-4)
    assert ours["correct"].sum() / ours["count"].sum() == pytest.approx(theirs["accuracy"])
    if "exact_match" in theirs:
        assert ours["exact"].mean() == pytest.approx(theirs["exact_match"])
    nothing = compare(ours, ours)
    assert all(effect.change == 0 and effect.interval is None for effect in nothing.values())


@pytest.mark.parametrize("name", TASKS)
def test_every_task_type_can_be_ablated_and_is_restored(
    name: str, built: dict[str, tuple[Experiment, Model]]
) -> None:
    of, model = built[name]
    before, weights = kernels(model), {k: v.clone() for k, v in model.state_dict().items()}
    state = torch.get_rng_state()
    example = reference_input(model, of.task, tokens_of(of))
    where = HeadId("encoder", 0, 1)
    off = head_effects(model, of.task, where, "mean", group_examples(of.task, "test", 4), example=example)
    edge = edge_effects(model, of.task, Edge(where, 2, 1), example, split="test", examples=3)
    token = token_effects(model, of.task, example, 2, split="train", examples=6)
    for effects in (off, edge, token):
        document = effects.document()
        assert document["trust"] == "cause" and document["output"].keys() >= {"before", "after"}
        assert {"before", "after", "change", "interval"} == document["metrics"]["loss"].keys()
        for effect in effects.metrics.values():
            assert effect.change == pytest.approx(effect.after - effect.before)
            if effect.interval is not None:  # None if all examples change by the same amount
                assert effect.interval[0] - 1e-9 <= effect.change <= effect.interval[1] + 1e-9
        assert effects.examples == 1 or effects.metrics["loss"].interval is not None
    assert off.metrics["loss"].change != 0 and edge.metrics["loss"].change != 0
    assert kernels(model) == before and torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())


# ---------------------------------------------------------------- a head


def test_an_ablated_head_equals_a_projection_without(
    built: dict[str, tuple[Experiment, Model]],
) -> None:
    """Ablation by zero equals an output projection with the head's columns set to zero."""
    of, model = built["sequence to sequence"]
    groups = group_examples(of.task, "test", 6)
    where = HeadId("cross", 1, 1)
    changed = measure_examples(model, of.task, groups, None, ablate_head(model, where, "zero", groups))
    by_hand = experiment(TASKS["sequence to sequence"]).build_model()
    by_hand.load_state_dict(model.state_dict())
    attention = attention_at(by_hand, where)
    with torch.no_grad():
        attention.output.weight[:, attention.head_dim :] = 0
    expected = measure_examples(by_hand, of.task, groups, None)
    np.testing.assert_allclose(changed["loss"], expected["loss"], rtol=1e-4)
    np.testing.assert_array_equal(changed["exact"], expected["exact"])
    untouched = measure_examples(model, of.task, groups, None)
    assert not np.allclose(changed["loss"], untouched["loss"], rtol=1e-4)


def test_the_mean_of_a_head_is_the_mean_of_what_it_mixes(built: dict[str, tuple[Experiment, Model]]) -> None:
    of, model = built["texts of all lengths"]
    groups = group_examples(of.task, "test", 5)
    assert len(groups) > 1  # several lengths, none of them padded
    seen: list[Tensor] = []
    where = HeadId("encoder", 1, 0)
    attention = attention_at(model, where)
    kernel = attention.kernel

    def note(*arguments: Any) -> Tensor:
        seen.append(kernel(*arguments)[:, 0].flatten(0, 1))
        return kernel(*arguments)

    attention.kernel = note
    try:
        with torch.inference_mode():
            for group in groups:
                for row in group.inputs:
                    model(tokens=torch.from_numpy(row)[None])
    finally:
        attention.kernel = kernel
    expected = torch.cat(seen).double().mean(0)
    torch.testing.assert_close(mean_outputs(model, groups, [where])[where], expected, rtol=1e-4, atol=1e-6)


# ---------------------------------------------------------------- an edge


@pytest.mark.parametrize("renormalise", [True, False])
def test_an_ablated_row_is_the_softmax_without_the_key(renormalise: bool) -> None:
    _, model = sharp(experiment(TASKS["per token"]))
    where = HeadId("encoder", 0, 1)
    q, k, v = (torch.randn(2, 2, 5, 8) for _ in range(3))
    allowed = torch.ones(2, 1, 1, 5, dtype=torch.bool)
    allowed[1, ..., 4] = False
    bias = torch.randn(1, 2, 5, 5)
    attention = attention_at(model, where)
    whole = attention.kernel(q, k, v, Mask(allowed=allowed), bias, 0.0)
    with ablate_edge(model, Edge(where, 3, 2), renormalise=renormalise)():
        found = attention.kernel(q, k, v, Mask(allowed=allowed), bias, 0.0)
    weights = reference.weights(explicit_scores(q, k, bias), allowed)[:, 1, 3].clone()
    weights[:, 2] = 0
    if renormalise:
        weights = weights / weights.sum(-1, keepdim=True)
    torch.testing.assert_close(found[:, 1, 3], (weights[:, None] @ v[:, 1])[:, 0])
    found[:, 1, 3] = whole[:, 1, 3]
    torch.testing.assert_close(found, whole)  # nothing else is changed


def test_the_only_key_of_a_row_leaves_zeros() -> None:
    _, model = sharp(experiment(TASKS["next token"]))
    where = HeadId("encoder", 0, 0)
    q, k, v = (torch.randn(1, 2, 4, 8) for _ in range(3))
    with ablate_edge(model, Edge(where, 0, 0))():
        found = attention_at(model, where).kernel(q, k, v, Mask(is_causal=True), None, 0.0)
    assert (found[0, 0, 0] == 0).all() and (found[0, 1, 0] != 0).any()


@pytest.mark.parametrize("site", ["decoder", "cross"])
@pytest.mark.parametrize("decoding", [GreedyConfig(), BeamConfig(size=3)], ids=lambda each: each.kind)
def test_an_edge_is_ablated_in_cached_decoding_too(
    site: Any, decoding: Any, built: dict[str, tuple[Experiment, Model]]
) -> None:
    """Compare with decoding without a cache, which reads the whole sequence at each step."""
    from glassformer.generation import generate
    from glassformer.generation.no_cache import NoCache

    of, model = built["sequence to sequence"]
    tokens = torch.from_numpy(tokens_of(of))[None]
    answers = []
    for query, key in ((0, 0), (1, 1), (2, 1)):
        change = ablate_edge(model, Edge(HeadId(site, 0, 1), query, key))
        options = {"begin": 10, "end": 11, "max_length": 5, "strategy": decoding}
        with change():
            cached = generate(model, {"tokens": tokens, "mask": None}, **options)

        class Anew(NoCache):
            def advance(self, *arguments: Any, change: Any = change) -> Tensor:
                with change():  # each pass begins with the first query
                    return super().advance(*arguments)

        whole = generate(Anew(model), {"tokens": tokens, "mask": None}, **options)
        assert [h.tokens for h in cached[0]] == [h.tokens for h in whole[0]]
        np.testing.assert_allclose(cached[0][0].log_probabilities, whole[0][0].log_probabilities, atol=1e-4)
        answers.append(cached[0][0].log_probabilities)
    untouched = generate(model, {"tokens": tokens, "mask": None}, **options)[0][0].log_probabilities
    assert all(not np.allclose(each, untouched, atol=1e-6) for each in answers[1:])


def test_unknown_heads_edges_and_tokens_are_refused(built: dict[str, tuple[Experiment, Model]]) -> None:
    of, model = built["sequence to sequence"]
    example = reference_input(model, of.task, tokens_of(of))
    for where, path in (
        (HeadId("middle", 0, 0), "site"),  # type: ignore[arg-type]
        (HeadId("cross", 2, 0), "layer"),
        (HeadId("cross", 0, 2), "head"),
        (HeadId("cross", -1, 0), "layer"),
    ):
        with pytest.raises(ErrorDetail) as caught:
            ablate_head(model, where, "zero", [])
        assert caught.value.path == path and caught.value.lines()
    for edge, path in (
        (Edge(HeadId("cross", 0, 0), 99, 0), "query"),
        (Edge(HeadId("cross", 0, 0), 0, 99), "key"),
        (Edge(HeadId("decoder", 0, 0), 1, 2), "key"),
    ):
        with pytest.raises(ErrorDetail) as caught:
            edge_effects(model, of.task, edge, example, split="test")
        assert caught.value.path == path
    with pytest.raises(ErrorDetail, match="no replacement found"):  # every expression begins with BOS
        token_effects(model, of.task, example, 0, split="test", examples=5)
    with pytest.raises(ErrorDetail, match="no such token"):
        token_effects(model, of.task, example, 99, split="test", examples=5)
    with pytest.raises(ErrorDetail, match="at least 1"):
        group_examples(of.task, "test", 0)
    with pytest.raises(ErrorDetail, match="no such ablation"):
        ablate_head(model, HeadId("cross", 0, 0), "half", [])  # type: ignore[arg-type]


# ---------------------------------------------------------------- a model that has learned something


@pytest.fixture(scope="module")
def reversing(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("reversing")
    (folder / "reversal.yaml").write_text("task: {kind: reversal}\n")
    return train(str(folder / "reversal.yaml"), REVERSAL, run=folder / "run")


@pytest.mark.parametrize("ablation", ["zero", "mean"])
def test_without_its_only_head_a_reversal_model_guesses(ablation: Any, reversing: Run) -> None:
    effects = reversing.ablate_head("encoder", 0, 0, ablation=ablation, examples=100, text="0 1 2 3 4 5 6 7")
    accuracy, chance = effects.metrics["accuracy"], 1 / 8
    assert accuracy.before > 0.99
    # One position in eight could be guessed without reading another; none can be in this task.
    assert accuracy.after == pytest.approx(chance, abs=0.06)
    assert accuracy.interval is not None and accuracy.interval[1] < -0.7
    assert effects.metrics["loss"].interval is not None and effects.metrics["loss"].interval[0] > 1
    assert effects.metrics["exact_match"].after < 0.05
    assert effects.output is not None and effects.output["before"] == "7 6 5 4 3 2 1 0"
    assert effects.output["after"] != effects.output["before"]


def test_the_edge_that_matters_is_the_bright_one(reversing: Run) -> None:
    """Position 2 reads position 5: without that edge its output is wrong, without another it is not."""
    bright = reversing.ablate_edge("0 1 2 3 4 5 6 7", "encoder", 0, 0, 2, 5, examples=50)
    other = reversing.ablate_edge("0 1 2 3 4 5 6 7", "encoder", 0, 0, 2, 3, examples=50)
    assert bright.examples == other.examples == 50
    assert bright.metrics["accuracy"].change == pytest.approx(-1 / 8, abs=0.04)
    assert bright.metrics["accuracy"].interval is not None and bright.metrics["accuracy"].interval[1] < -0.08
    assert abs(other.metrics["accuracy"].change) < 0.02
    assert bright.output is not None and other.output is not None
    before, after = (bright.output[name].split() for name in ("before", "after"))
    assert [place for place in range(8) if before[place] != after[place]] == [2]
    assert other.output["before"] == other.output["after"]
    assert bright.notes == []
    (note,) = other.notes
    assert note.startswith("weight of this edge 0.0") and note.endswith("(encoder:0:0:2:5)")
    assert "the row's largest is key 5 with 0." in note


def test_a_replaced_token_changes_its_own_position_in_the_output(reversing: Run) -> None:
    effects = reversing.occlude("0 1 2 3 4 5 6 7", 1, examples=30)
    assert effects.output is not None
    for other in effects.output["others"]:
        assert other["output"] == f"7 6 5 4 3 2 {other['token']} 0" and other["token"] != "1"
    assert effects.metrics["accuracy"].change == pytest.approx(-1 / 8, abs=0.02)
    assert effects.metrics["exact_match"].after == 0


def test_of_a_text_without_a_right_answer_the_models_own_is_the_measure(
    built: dict[str, tuple[Experiment, Model]],
) -> None:
    of, model = built["texts of all lengths"]
    example = reference_input(model, of.task, tokens_of(of))
    assert "own output" in example.reference
    (loss,) = measure_examples(model, of.task, [example.group], None)["loss"]
    chosen = of.task.predict(model, [example.group.inputs[0]])[0][0]
    assert loss == pytest.approx(-math.log(chosen.probability or 0), rel=1e-4)
    assert show_output(model, of.task, example.group.inputs[0], None) == of.task.show_output(chosen.tokens)


def test_every_verb_of_the_run_ends_in_json(reversing: Run, tmp_path: Path) -> None:
    import json

    json.dumps(reversing.trace("1 2 3").document(), allow_nan=False)
    json.dumps(reversing.heads(4, ablate="zero"), allow_nan=False)
    json.dumps(reversing.logit_lens("1 2 3").document(), allow_nan=False)
    reversing.rollout("1 2 3").save(tmp_path / "rollout.npz")


def test_only_attention_modules_are_found() -> None:
    _, model = sharp(experiment(TASKS["per token"]))
    assert all(isinstance(attention, MultiHeadAttention) for attention in attentions(model))
