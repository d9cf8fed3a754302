"""Activation patching: its checks hold in every task type, and effects appear where they must."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glassformer.cli import main
from glassformer.core.errors import ErrorDetail
from glassformer.inspection.contrast import contrast_inputs
from glassformer.inspection.patching import PatchedSite, PatchResult, find_twin, patch, patch_pairs
from glassformer.models.base import Model
from glassformer.plotting.grid import draw_grid
from glassformer.runs.experiment import Experiment
from glassformer.tasks.base import Task

from .conftest import experiment

FEW = {"train_examples": 8, "validation_examples": 2, "test_examples": 40}

TASKS: dict[str, dict[str, Any]] = {
    "tokens": {"kind": "reversal", "length": 7, "categories": 5, **FEW},
    "sequence": {"kind": "palindrome", "length": 6, "categories": 3, **FEW},
    "causal": {"kind": "random-tokens", "target": "next", "length": 8, "categories": 5, **FEW},
    "masked": {"kind": "masked-language-model", "examples": 600, "max_length": 12},
    "seq2seq": {"kind": "arithmetic", "max_examples": 60},
}


def sharpened(built: Experiment, factor: float = 3) -> Model:
    """Return the untrained model with larger weights, so that its outputs depend on its inputs."""
    model = built.build_model().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter *= factor
    return model


def pair(task: Task, model: Model) -> tuple[np.ndarray, np.ndarray]:
    split = "test" if "test" in task.splits else "validation"
    for index in range(len(task.splits[split])):
        tokens = task.batch(split, np.array([index])).inputs["tokens"]
        assert tokens is not None
        clean = tokens[0].numpy()
        try:
            return clean, find_twin(model, task, clean, split)
        except ErrorDetail:
            continue
    raise AssertionError("no example has a twin with another output")


@pytest.mark.parametrize("direction", ["denoising", "noising"])
@pytest.mark.parametrize("name", TASKS)
def test_everything_is_one_and_nothing_is_zero(name: str, direction: str) -> None:
    built = experiment(TASKS[name])
    model = sharpened(built)
    found = patch(model, built.task, *pair(built.task, model), direction=direction)  # type: ignore[arg-type]
    assert found.everything == pytest.approx(1, abs=1e-4)
    assert found.nothing == pytest.approx(0, abs=1e-4)
    assert all(np.isfinite(site.effects).all() for site in found.sites)
    document = json.loads(json.dumps(found.document()))
    assert set(document["grid"]) == {site["name"] for site in document["sites"]}
    assert all(len(site["labels"]) == len(document["grid"][site["name"]]) for site in document["sites"])


def test_effects_of_a_changed_token_are_at_its_position_before_the_first_block() -> None:
    built = experiment(TASKS["seq2seq"])
    model = sharpened(built)
    clean, twin = pair(built.task, model)
    found = patch(model, built.task, clean, twin, ["encoder.embedding", "encoder.output"])
    (changed,) = np.flatnonzero(clean != twin)
    effects = found.sites[0].effects
    assert effects[changed] == pytest.approx(1, abs=1e-4)
    assert np.abs(np.delete(effects, changed)).max() < 1e-4


def test_the_gradient_is_exact_where_the_metric_is_linear() -> None:
    """The logits are a linear function of a final hidden state without a norm."""
    built = experiment(TASKS["tokens"], norm_placement="pre", final_norm=False)
    model = sharpened(built)
    found = patch(model, built.task, *pair(built.task, model), ["encoder.output"])
    (site,) = found.sites
    np.testing.assert_allclose(site.gradient, site.effects, atol=1e-4)


def test_pairs_of_examples_have_intervals() -> None:
    built = experiment({**TASKS["tokens"], "test_examples": 30})
    found = patch_pairs(sharpened(built), built.task, "test", 5, ["*.heads"])
    assert found.pairs == 5 and found.everything == pytest.approx(1, abs=1e-3)
    for site in found.sites:
        assert site.intervals is not None
        assert all(
            low <= effect <= high for effect, (low, high) in zip(site.effects, site.intervals, strict=True)
        )


def test_unusable_inputs_are_explained() -> None:
    built = experiment(TASKS["tokens"])
    model = sharpened(built)
    clean, twin = pair(built.task, model)
    with pytest.raises(ErrorDetail, match="7 and 6 tokens"):
        contrast_inputs(model, built.task, clean, clean[:6])
    with pytest.raises(ErrorDetail, match="same output"):
        contrast_inputs(model, built.task, clean, clean)
    with pytest.raises(ErrorDetail, match="neither positions nor heads"):
        patch(model, built.task, clean, twin, ["logits"])
    with pytest.raises(ErrorDetail, match="no such site"):
        patch(model, built.task, clean, twin, ["encoder.9.heads"])
    with pytest.raises(ErrorDetail, match="no such direction"):
        patch(model, built.task, clean, twin, direction="sideways")  # type: ignore[arg-type]


def test_the_figure_names_run_and_inputs() -> None:
    """Only the clean tokens were on an axis, so a reader could not know what had been changed."""
    sites = [PatchedSite("encoder.0.heads", "head", [0.5], [0.5])]
    texts = {"clean_text": "27 - 35", "corrupted_text": "27 - 45"}
    found = PatchResult("logit of '0'", "denoising", 1, 0, 1, 0, sites, {}, texts)
    title = draw_grid(found, "arithmetic-1").get_suptitle()
    assert title.splitlines()[1:] == ["logit of '0'", "arithmetic-1", "clean: 27 - 35", "corrupted: 27 - 45"]


def test_the_verb_prints_checks_and_draws(
    trained_once: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["patch", str(trained_once), "--out", str(tmp_path / "grid.png"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {"sites", "grid", "everything", "nothing", "clean", "corrupted", "untrained"} <= set(document)
    assert (tmp_path / "grid.png").stat().st_size > 1000
    assert main(["patch", str(trained_once), "--out", str(tmp_path / "grid.jpg")]) == 2
    assert "everything patched 1.0000" in capsys.readouterr().out
