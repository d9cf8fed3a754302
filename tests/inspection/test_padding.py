"""Results are the same with padding and in batches of any size, in every task type.

Probes and alignment have such tests beside their own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from glassformer.inspection import gradients, patching
from glassformer.inspection.contrast import Inputs, contrast_inputs
from glassformer.inspection.gradients import METHODS, Method, _Path, ask, logit_parts
from glassformer.inspection.heads import average_heads
from glassformer.inspection.induction import DUPLICATE, INDUCTION, half_losses, repeat_rows, repeated_tokens
from glassformer.inspection.patching import patch
from glassformer.models.base import Model

from .conftest import experiment
from .test_gradients import build
from .test_induction import REPEATING, TRANSLATION
from .test_patching import TASKS, pair, sharpened

MORE = 3
"""Number of padding tokens."""
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def padded(model: Model, inputs: Inputs) -> Inputs:
    """Return inputs padded as in a batch with a longer example, and let the model read that many tokens."""
    tokens = inputs["tokens"]
    assert tokens is not None
    model.task_type = replace(model.task_type, max_length=tokens.shape[1] + MORE)
    mask = F.pad(torch.ones_like(tokens, dtype=torch.bool), (0, MORE))
    return {**inputs, "tokens": F.pad(tokens, (0, MORE)), "mask": mask}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", TASKS)
def test_attributions(name: str, method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    model, task, tokens = build(name)
    question = ask(model, task, tokens)
    expected = _Path(model, question).values(method)
    longer = _Path(model, replace(question, inputs=padded(model, question.inputs))).values(method)
    np.testing.assert_allclose(longer[:-MORE], expected, **CLOSE)
    np.testing.assert_allclose(longer[-MORE:], 0, atol=1e-6)
    monkeypatch.setattr(gradients, "TOKENS_PER_BATCH", 1)
    np.testing.assert_allclose(_Path(model, question).values(method), expected, **CLOSE)


@pytest.mark.parametrize("name", TASKS)
def test_parts_of_a_logit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, task, tokens = build(name, norm_placement="pre")
    expected = logit_parts(model, task, tokens).parts
    question = ask(model, task, tokens)
    longer = replace(question, inputs=padded(model, question.inputs))
    monkeypatch.setattr(gradients, "ask", lambda *arguments: longer)
    found = logit_parts(model, task, tokens).parts
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("name", TASKS)
def test_effects_of_patching(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    built = experiment(TASKS[name])
    model, task = sharpened(built, 2), built.task
    inputs = pair(task, model)
    expected = patch(model, task, *inputs)
    scale = max(1, 1 / abs(expected.clean - expected.corrupted))
    contrasted = contrast_inputs(model, task, *inputs)
    longer = replace(
        contrasted,
        clean=padded(model, contrasted.clean),
        corrupted=padded(model, contrasted.corrupted),
    )
    with monkeypatch.context() as one_at_a_time:
        one_at_a_time.setattr(patching, "TOKENS_PER_BATCH", 1)
        alone = patch(model, task, *inputs)
    monkeypatch.setattr(patching, "contrast_inputs", lambda *arguments: longer)
    with_padding = patch(model, task, *inputs)
    for site, one, more in zip(expected.sites, alone.sites, with_padding.sites, strict=True):
        count = len(site.effects)
        for values, others in (
            (site.effects, one.effects),
            (site.effects, more.effects[:count]),
            (site.gradient, more.gradient[:count]),
        ):
            np.testing.assert_allclose(others, values, atol=1e-5 * scale, err_msg=site.name)
        np.testing.assert_allclose(more.effects[count:], 0, atol=1e-5 * scale, err_msg=site.name)


@pytest.mark.parametrize("task", [REPEATING, TRANSLATION], ids=lambda task: str(task["kind"]))
def test_induction_scores(task: dict[str, Any]) -> None:
    """All sequences of a group are equally long, so there is no padding."""
    built = experiment(task)
    model = sharpened(built)
    for group in repeated_tokens(built.task, 6):
        halves = np.stack(group.inputs)[:, group.start : group.start + group.period]
        singles = [repeat_rows(built.task, half[None]) for half in halves]  # type: ignore[arg-type]
        together = average_heads(model, built.task, [group])[group.site].patterns
        alone = [average_heads(model, built.task, [single])[group.site].patterns for single in singles]
        for name in (INDUCTION, DUPLICATE):
            expected = np.mean([patterns[name].mass.mean for patterns in alone], axis=0)
            np.testing.assert_allclose(together[name].mass.mean, expected, **CLOSE)
        np.testing.assert_allclose(half_losses(model, [group]), half_losses(model, singles), **CLOSE)
