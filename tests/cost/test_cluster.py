"""Projection onto many devices, against sums done by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from glassformer.cli import main
from glassformer.core.errors import UserError
from glassformer.cost.cluster import ClusterConfig, project
from glassformer.cost.parameters import Size

# Two blocks of 300 parameters and 100 parameters outside of blocks, 4 bytes each.
SIZE = Size(
    by_module={"embedding": 60, "encoder.layers.0.a": 200, "encoder.layers.0.b": 100}
    | {"encoder.layers.1": 300}
    | {"head": 40},
    weight_bytes=2800,
    trainable_bytes=2800,
    tokens=64,
    forward_flops=64 * 1000,
    activation_bytes=8000,
)
CLUSTER = ClusterConfig(devices=4, tokens=6400, peak=3e6, utilization=0.5, memory=10_000, bandwidth=1e3)


def test_by_hand() -> None:
    found = project(SIZE, 8, CLUSTER, optimizer_floats=2)
    assert found.operations == 3 * 1000 * 6400
    assert found.steps == 100 and found.tokens_per_step == 64
    assert found.seconds_per_step == 3 * 1000 * 64 / (4 * 1.5e6)
    assert found.checkpoint_bytes == 3 * 2800
    copies, shards = found.ddp, found.fsdp
    assert copies.memory_bytes == 4 * 2800 + 2000 and not copies.fits
    assert copies.traffic_bytes == 2 * 0.75 * 2800
    assert shards.memory_bytes == 2800 + (3 * 1200 + 2 * 400) + 2000 and shards.fits
    assert shards.traffic_bytes == 0.75 * (3 * 2400 + 2 * 400)
    assert copies.traffic_seconds == pytest.approx(4.2)
    assert copies.seconds == pytest.approx((100 * 4.2, 100 * (4.2 + 0.032)))


def test_averaged_weights_are_included() -> None:
    plain, averaged = (project(SIZE, 8, CLUSTER, 2, is_averaged=flag) for flag in (False, True))
    assert averaged.checkpoint_bytes - plain.checkpoint_bytes == 2800
    assert averaged.fsdp.memory_bytes - plain.fsdp.memory_bytes == 700


def test_one_device_sends_nothing() -> None:
    found = project(SIZE, 8, CLUSTER.model_copy(update={"devices": 1}), 2)
    assert found.ddp.traffic_bytes == found.fsdp.traffic_bytes == 0
    assert found.ddp.memory_bytes == found.fsdp.memory_bytes == 4 * 2800 + 8000


def test_models_and_batches_that_cannot_be_projected() -> None:
    with pytest.raises(UserError, match="6 sequences cannot be divided evenly among 4 devices"):
        project(SIZE, 6, CLUSTER, 2)
    with pytest.raises(UserError, match="cannot be computed"):
        project(replace(SIZE, forward_flops=None), 8, CLUSTER, 2)


def test_the_verb(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["params", "counting-language-model", "--cluster", "devices=4,tokens=1e9,utilization=0.5"]
    assert main([*words, "--json"]) == 0
    cluster = json.loads(capsys.readouterr().out)["cluster"]
    assert cluster["devices"] == 4 and cluster["fsdp"]["fits"]
    assert main(words) == 0
    assert "fsdp, memory per device" in capsys.readouterr().out
    assert main([*words[:-1], "device=4"]) == 2
    assert "did you mean 'devices'?" in capsys.readouterr().err
