"""Probing heads during training changes no weight to the bit, and a resumed run has the same events."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from glassformer.core.config import validate
from glassformer.core.errors import UserError
from glassformer.inspection.examples import group_examples
from glassformer.inspection.heads import HeadProbe, average_heads
from glassformer.runs.experiment import Experiment, ExperimentConfig, resolve
from glassformer.runs.folder import RunFolder
from glassformer.runs.run import Run
from glassformer.runs.session import TrainingSession, train
from glassformer.training.checkpoints import SNAPSHOT, Checkpoint, CheckpointStore
from glassformer.training.trainer import Trainer

from .test_attention_verb import REVERSAL

PROBING = {
    "inspection.probe_heads": True,
    "inspection.every": 5,
    "inspection.examples": 3,
    "inspection.keep_snapshots": True,
}
MakeConfig = Callable[..., ExperimentConfig]


def run_of(config: ExperimentConfig, path: Path) -> RunFolder:
    TrainingSession(config, RunFolder(path)).run()
    return RunFolder(path)


def final(folder: RunFolder) -> dict[str, Tensor]:
    store = folder.checkpoints()
    checkpoint = store.load(store.find("latest"))
    return {
        f"{group}.{name}": tensor
        for group, tensors in checkpoint.tensors.items()
        for name, tensor in tensors.items()
    }


def probes(folder: RunFolder) -> list[dict[str, Any]]:
    return [event for event in folder.events if event["event"] == "head_probe"]


def without_clock(folder: RunFolder) -> list[dict[str, Any]]:
    from glassformer.training.events import CLOCK_FIELDS

    return [{k: v for k, v in event.items() if k not in CLOCK_FIELDS} for event in folder.events]


@pytest.mark.parametrize("more", [{}, {"training.ema_decay": 0.9}, {"training.average_last": 3}], ids=str)
def test_weights_are_the_same_to_the_bit(
    more: dict[str, Any], tiny_config: MakeConfig, tmp_path: Path, one_thread: None
) -> None:
    """The model has dropout, so a random number drawn by a probe would change the weights."""
    plain = run_of(tiny_config(more), tmp_path / "plain")
    probed = run_of(tiny_config({**more, **PROBING}), tmp_path / "probed")
    one, other = final(plain), final(probed)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert [event["step"] for event in probes(probed)] == [0, 5, 10, 15, 20, 24] and not probes(plain)
    rest = [event for event in without_clock(probed) if event["event"] != "head_probe"]
    assert rest == without_clock(plain)
    assert plain.checkpoints().regular() == probed.checkpoints().regular()
    assert plain.results()["metrics"] == probed.results()["metrics"]


@pytest.mark.parametrize("stop", [3, 5, 13])
def test_a_resumed_run_has_the_same_events(
    stop: int,
    tiny_config: MakeConfig,
    tmp_path: Path,
    one_thread: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run is killed after a probe that no checkpoint contains."""
    config = tiny_config({**PROBING, "training.save_every": 4})
    whole = run_of(config, tmp_path / "whole")
    take = Trainer.step

    def dies(self: Trainer, batches: Any) -> bool:
        if self.state.step == stop:
            raise KeyboardInterrupt
        return take(self, batches)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", dies)
        with pytest.raises(KeyboardInterrupt):
            run_of(config, tmp_path / "killed")
    resumed = run_of(config, tmp_path / "killed")
    assert without_clock(resumed) == without_clock(whole)
    one, other = final(whole), final(resumed)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert resumed.checkpoints().names() == whole.checkpoints().names()
    for name in whole.checkpoints().names():
        weights = [folder.checkpoints().load(name).tensors["model"] for folder in (whole, resumed)]
        assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_events_match_the_snapshots(tiny_config: MakeConfig, tmp_path: Path) -> None:
    folder = run_of(tiny_config(PROBING), tmp_path / "run")
    names = folder.checkpoints().names()
    steps = [int(name.split("-")[1]) for name in names]
    assert {0, 5, 10, 15, 20, 24} <= set(steps) and len(set(steps)) == len(steps)
    for event in probes(folder):
        run = Run(folder.path, str(event["step"]))
        groups = group_examples(run.task, "validation", 3)
        average = average_heads(run.model, run.task, groups)["encoder"].patterns["anti-diagonal"].mass
        np.testing.assert_allclose(event["scores"]["encoder"]["anti-diagonal"], average.mean, atol=1e-5)
        assert event["examples"] == 3
        assert event["uniform"]["encoder"]["anti-diagonal"] == pytest.approx(1 / 6, abs=1e-5)
    first = Run(folder.path, "0").attention("1 2 3")["encoder"].weights
    control = Run(folder.path).attention("1 2 3", untrained=True)["encoder"].weights
    np.testing.assert_array_equal(first, control)


def test_probes_show_when_a_head_learned_to_reverse(tmp_path: Path) -> None:
    (tmp_path / "reversal.yaml").write_text("task: {kind: reversal}\n")
    options = {**REVERSAL, "inspection.probe_heads": True, "inspection.every": 25}
    train(str(tmp_path / "reversal.yaml"), options, run=tmp_path / "run")
    scores = {
        event["step"]: event["scores"]["encoder"]["anti-diagonal"][0][0]
        for event in probes(RunFolder(tmp_path / "run"))
    }
    assert scores[0] < 0.3
    assert list(scores.values())[-1] >= 0.9
    assert not [path for path in (tmp_path / "run" / "checkpoints").iterdir() if path.name.endswith(SNAPSHOT)]


def test_a_probe_changes_neither_model_nor_random_state(tiny_config: MakeConfig) -> None:
    experiment = Experiment(tiny_config())
    model = experiment.build_model().train()
    probe = HeadProbe(experiment.task, every=3, examples=2)
    assert [step for step in range(8) if probe.is_due(step)] == [0, 3, 6]
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    assert probe.measure(model) == probe.measure(model)
    assert torch.equal(torch.get_rng_state(), state) and model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


# ---------------------------------------------------------------- the config


def test_probing_can_begin_when_a_run_is_resumed(
    tiny_config: MakeConfig, tmp_path: Path, one_thread: None
) -> None:
    folder = run_of(tiny_config({"training.max_epochs": 2}), tmp_path / "run")
    longer = tiny_config({"training.max_epochs": 3, **PROBING})
    assert run_of(longer, folder.path).results()["steps"] == 24
    assert [event["step"] for event in probes(folder)] == [20, 24]


def test_probing_is_not_part_of_the_fingerprint(tiny_config: MakeConfig) -> None:
    plain, probed = tiny_config(), tiny_config(PROBING)
    assert plain != probed and plain.fingerprint() == probed.fingerprint()
    assert validate(ExperimentConfig, probed.dump()) == probed
    with pytest.raises(UserError, match=r"inspection\.every"):
        resolve("reversal", {"inspection.every": 0})


# ---------------------------------------------------------------- snapshots


def checkpoint(value: float) -> Checkpoint:
    return Checkpoint({"model": {"w": torch.tensor([value])}}, {"training": {}})


def test_snapshots_are_kept_and_never_resumed_from(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", keep=1)
    store.keep_snapshot("step-00000000", checkpoint(0))
    assert store.names() == [f"step-00000000{SNAPSHOT}"] and store.load_newest() is None
    assert store.find("latest") == f"step-00000000{SNAPSHOT}" and store.pointed("latest") is None
    for step in (10, 20, 30):
        store.save(f"step-000000{step}", checkpoint(step))
        store.keep_snapshot(f"step-000000{step}", checkpoint(step))
    store.keep_snapshot("step-00000035", checkpoint(35))
    assert store.states() == store.regular() == ["step-00000030"]
    # A step with a checkpoint and a snapshot is listed once.
    kept = [f"step-000000{step}{SNAPSHOT}" for step in ("00", "10", "20")]
    assert store.names() == [*kept, "step-00000030", f"step-00000035{SNAPSHOT}"]
    assert store.pointed("latest") == store.find("latest") == "step-00000030"
    newest = store.load_newest()
    assert newest is not None and newest[0] == "step-00000030"
    assert store.find("10") == store.find("step-00000010") == f"step-00000010{SNAPSHOT}"
    store.delete_snapshots_after(20)
    assert store.names() == [*kept, "step-00000030"]
    store.save("step-00000040", checkpoint(40))
    assert store.names() == [*kept, "step-00000040"]
