"""Smallest sets of heads: found exactly where the needed heads are known, and equal to greedy decoding."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from glassformer.core.errors import ErrorDetail
from glassformer.inspection.ablation import ablate_heads, all_heads, mean_outputs, measure_examples
from glassformer.inspection.circuits import effect_on_outputs, name_of, smallest_set, teacher_forced
from glassformer.inspection.examples import group_examples
from glassformer.inspection.patching import PairBatch, patch
from glassformer.inspection.record import HeadId, attention_at
from glassformer.models.base import Model
from glassformer.runs.experiment import Experiment

from .conftest import experiment
from .test_patching import TASKS, pair, sharpened


def mirroring() -> tuple[Model, Experiment]:
    """Return a trained-by-hand model: head 1 of layer 0 reverses, no other head adds anything."""
    built = experiment(
        {"kind": "reversal", "length": 5, "categories": 6, "train_examples": 60, "validation_examples": 30},
        num_layers=1,
        hidden_dim=32,
        feed_forward_dim=8,
        position={"kind": "learned"},
        dropout=0.0,
    )
    model = built.build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    module = attention_at(model, HeadId("encoder", 0, 0))
    with torch.no_grad():
        module.output.weight[:, :16] = 0  # head 0 writes nothing
    rows = np.random.default_rng(0).integers(0, 6, (256, 5))
    tokens = torch.from_numpy(rows)
    for _ in range(150):
        optimizer.zero_grad()
        model.loss(tokens, tokens.flip(1)).backward()
        assert module.output.weight.grad is not None
        module.output.weight.grad[:, :16] = 0
        optimizer.step()
    return model.eval(), built


def test_the_only_head_that_works_is_found() -> None:
    model, built = mirroring()
    choosing, measuring = (
        group_examples(built.task, "validation", 30),
        group_examples(built.task, "train", 60),
    )
    found = smallest_set(model, choosing, measuring)
    needed = HeadId("encoder", 0, 1)
    assert found.heads == [needed] and found.removed == [HeadId("encoder", 0, 0), needed]
    assert found.whole == found.exact_match == found.curve[0] == found.curve[1] > 0.9 > 0.2 > found.curve[2]
    assert found.random <= found.exact_match
    assert json.loads(json.dumps(found.document()))["heads"] == [name_of(needed)] == ["encoder:0:1"]
    effects = effect_on_outputs(model, choosing, measuring)
    assert effects["encoder:0:0"] == [0.0] * 5 and np.mean(effects["encoder:0:1"]) > 0.5


def test_teacher_forcing_gives_the_exact_match_of_decoding(arithmetic: Experiment) -> None:
    model, groups = sharpened(arithmetic), group_examples(arithmetic.task, "test", 12)
    hits, loss = teacher_forced(model, groups)
    measured = measure_examples(model, arithmetic.task, groups, None)
    np.testing.assert_array_equal(hits.all(1), measured["exact"])
    np.testing.assert_array_equal(hits.sum(1), measured["correct"])
    assert loss == pytest.approx(measured["loss"].sum() / measured["count"].sum(), rel=1e-5)


def test_several_heads_are_replaced_by_their_means_at_once(arithmetic: Experiment) -> None:
    model, groups = sharpened(arithmetic), group_examples(arithmetic.task, "test", 4)
    heads = all_heads(model)
    assert len(heads) == len(set(heads)) == 2 * 2 + 2 * 3 * 2  # 2 encoder layers and 3 decoder layers
    means = mean_outputs(model, groups, heads)
    inputs = groups[0].batch.inputs
    with torch.inference_mode(), ablate_heads(model, means)():
        whole = model(**inputs)
        tokens = inputs["tokens"]
        assert tokens is not None
        other = model(**{**inputs, "tokens": tokens.flip(0)})
    # Without any attention, the outputs depend on the target alone.
    torch.testing.assert_close(whole, other)


def test_one_output_per_sequence_is_refused() -> None:
    built = experiment(TASKS["sequence"])
    with pytest.raises(ErrorDetail, match="one output per sequence"):
        teacher_forced(built.build_model(), group_examples(built.task, "test", 2))


def test_a_batch_of_pairs_has_the_effects_of_single_pairs() -> None:
    built = experiment(TASKS["tokens"])
    model, task = sharpened(built), built.task
    clean, corrupted = pair(task, model)
    names = ("encoder.embedding", "encoder.0.residual_post", "encoder.1.heads")
    single = patch(model, task, clean, corrupted, names)
    with torch.no_grad():
        outputs = [model(torch.from_numpy(each)[None])[0].argmax(-1) for each in (clean, corrupted)]
    output = int((outputs[0] != outputs[1]).nonzero()[0])
    twice = [
        {"tokens": torch.from_numpy(np.stack([each, each])), "mask": None} for each in (corrupted, clean)
    ]
    answer, other = (torch.tensor([int(each[output])] * 2) for each in outputs)
    batch = PairBatch(twice[0], twice[1], torch.tensor([output] * 2), answer, other)
    cells = {site.name: range(len(site.effects)) for site in single.sites}
    found = batch.effects(model, cells)
    for site in single.sites:
        np.testing.assert_allclose(found[site.name], site.effects, atol=1e-4)
    at = torch.tensor([0, 1])  # another position for each pair
    (mixed,) = batch.effects(model, {names[0]: [at]})[names[0]]
    assert mixed == pytest.approx(np.mean([found[names[0]][0], found[names[0]][1]]), abs=1e-4)
