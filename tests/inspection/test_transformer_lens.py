"""Patching, logit attribution and induction scores beside TransformerLens, on an exported model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from glassformer.inspection.contrast import contrast_inputs
from glassformer.inspection.gradients import ask, logit_parts
from glassformer.inspection.heads import average_heads
from glassformer.inspection.induction import DUPLICATE, INDUCTION, repeat_rows, repeated_tokens
from glassformer.inspection.patching import find_twin, patch
from glassformer.runs.run import Run

from ..interchange.small_runs import LLAMA, small_run

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Any]:
    """Return a small run with sharp weights, and its export in TransformerLens."""
    lens = pytest.importorskip("transformer_lens.model_bridge", reason="pip install transformer-lens")
    folder = tmp_path_factory.mktemp("lens")
    run = small_run(folder / "run", LLAMA)
    run.export("huggingface", folder / "exported")
    bridge = lens.TransformerBridge.boot_transformers(str(folder / "exported"), device="cpu")
    return run, bridge


def test_the_patching_grid_is_equal(pair: tuple[Run, Any]) -> None:
    run, bridge = pair
    patching = pytest.importorskip("transformer_lens.patching")
    tokens = np.asarray(run.task.splits["test"].inputs[0]).astype(np.int64)[:8]
    twin = find_twin(run.model, run.task, tokens, "test")
    names = ["encoder.0.residual_pre", "encoder.1.residual_pre", "encoder.0.feed_forward"]
    found = patch(run.model, run.task, tokens, twin, names)
    contrast = contrast_inputs(run.model, run.task, tokens, twin).contrast

    def metric(logits: torch.Tensor) -> torch.Tensor:
        value = logits[0, -1, contrast.answer] - logits[0, -1, contrast.other]
        return (value - found.corrupted) / (found.clean - found.corrupted)

    clean, corrupted = (torch.from_numpy(each)[None] for each in (tokens, twin))
    logits, cache = bridge.run_with_cache(clean)
    torch.testing.assert_close(logits, run.model(tokens=clean).detach(), atol=1e-4, rtol=0)
    grid = patching.get_act_patch_resid_pre(bridge, corrupted, cache, metric)
    outputs = patching.get_act_patch_mlp_out(bridge, corrupted, cache, metric)
    ours = {site.name: site.effects for site in found.sites}
    for name, theirs in zip(names, (*grid, outputs[0]), strict=True):
        np.testing.assert_allclose(ours[name], theirs.detach().numpy(), atol=1e-4, err_msg=name)


def test_the_parts_of_a_logit_difference_are_equal(pair: tuple[Run, Any]) -> None:
    """Only differences of logits compare: TransformerLens may centre the unembedding."""
    run, bridge = pair
    tokens = np.asarray(run.task.splits["test"].inputs[0]).astype(np.int64)[:8]
    found = logit_parts(run.model, run.task, tokens)
    contrast = ask(run.model, run.task, tokens).contrast
    _, cache = bridge.run_with_cache(torch.from_numpy(tokens)[None])
    weights = bridge.unembed.W_U
    direction = weights[:, contrast.answer] - weights[:, contrast.other]
    norm = bridge.original_model.model.norm
    stream = cache["blocks.1.hook_resid_post"][0, -1]
    scale = (stream.square().mean() + norm.variance_epsilon).sqrt()
    names = {
        "encoder.embedding": "blocks.0.hook_resid_pre",
        "encoder.0.feed_forward": "blocks.0.hook_mlp_out",
        "encoder.1.feed_forward": "blocks.1.hook_mlp_out",
    }
    for ours, theirs in names.items():
        part = (cache[theirs][0, -1] / scale * norm.weight) @ direction
        assert found.parts[ours] == pytest.approx(float(part.detach()), abs=1e-4)
    for layer in range(2):
        heads = sum(value for name, value in found.parts.items() if name.startswith(f"encoder.{layer}.heads"))
        part = (cache[f"blocks.{layer}.hook_attn_out"][0, -1] / scale * norm.weight) @ direction
        assert heads == pytest.approx(float(part.detach()), abs=1e-4)


def test_the_effects_of_patching_heads_are_equal(pair: tuple[Run, Any]) -> None:
    run, bridge = pair
    patching = pytest.importorskip("transformer_lens.patching")
    tokens = np.asarray(run.task.splits["test"].inputs[0]).astype(np.int64)[:8]
    twin = find_twin(run.model, run.task, tokens, "test")
    found = patch(run.model, run.task, tokens, twin, ["encoder.*.heads"])
    contrast = contrast_inputs(run.model, run.task, tokens, twin).contrast
    clean, corrupted = (torch.from_numpy(each)[None] for each in (tokens, twin))
    _, cache = bridge.run_with_cache(clean)
    theirs = patching.get_act_patch_attn_head_out_all_pos(
        bridge, corrupted, cache, lambda logits: contrast.value(logits).squeeze()
    )
    effects = (theirs.detach().numpy() - found.corrupted) / (found.clean - found.corrupted)
    np.testing.assert_allclose([site.effects for site in found.sites], effects, atol=1e-4)


def test_induction_scores_equal_those_of_the_head_detector(
    pair: tuple[Run, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, bridge = pair
    detector = pytest.importorskip("transformer_lens.head_detector")
    (group, *_) = repeated_tokens(run.task, 3)
    for row in group.inputs:
        tokens = torch.from_numpy(row)[None]
        monkeypatch.setattr(bridge, "to_tokens", lambda text, tokens=tokens: tokens)
        half = row[group.start : group.start + group.period]
        (ours,) = average_heads(run.model, run.task, [repeat_rows(run.task, half[None])]).values()
        for name, pattern in (("induction_head", INDUCTION), ("duplicate_token_head", DUPLICATE)):
            # Their mean is over all rows, ours over those that have such a cell.
            found = detector.detect_head(bridge, "", name, error_measure="mul") * len(row) / group.period
            np.testing.assert_allclose(ours.patterns[pattern].mass.mean, found, atol=1e-5)
