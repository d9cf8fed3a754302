"""Projection of a training's time and memory onto many devices."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass

from pydantic import Field

from glassformer.core.config import Node
from glassformer.core.errors import user_error
from glassformer.cost.parameters import Size

_BLOCK = re.compile(r"(.*\blayers\.\d+)(\.|$)")


class ClusterConfig(Node):
    """Devices that are all alike. The defaults are those of a GPU with 80 GB on a network of 400 Gbit/s."""

    devices: int = Field(8, ge=1, description="one process each")
    tokens: float = Field(1e9, gt=0, description="to train on")
    peak: float = Field(989e12, gt=0, description="operations a second of a device, by its data sheet")
    utilization: float = Field(0.4, gt=0, le=1, description="the share of the peak that a training reaches")
    memory: float = Field(80e9, gt=0, description="bytes a device")
    bandwidth: float = Field(50e9, gt=0, description="bytes a second and device, between devices")


@dataclass(frozen=True)
class Sharing:
    """One way to share the work: what a device holds, and what it sends and receives in a step."""

    memory_bytes: float
    fits: bool
    traffic_bytes: float
    traffic_seconds: float
    seconds: tuple[float, float]
    """Of the whole training, if traffic is hidden behind computing as far as it can be, and if none is."""


@dataclass(frozen=True)
class Projection:
    operations: float
    steps: int
    tokens_per_step: int
    seconds_per_step: float
    """Of computing alone."""
    checkpoint_bytes: int
    by_copies: Sharing
    by_shards: Sharing


def project(
    size: Size, batch: int, cluster: ClusterConfig, optimizer_floats: int, *, is_averaged: bool = False
) -> Projection:
    """For a batch of so many sequences, which all devices share evenly, as `size` was traced for."""
    training = size.flops_per_token()["training"]
    if training is None or size.activation_bytes is None:
        raise user_error("cannot be told for this model", path="--cluster", hint=size.why_not)
    if batch % cluster.devices:
        raise user_error(
            f"{cluster.devices} devices do not share {batch} sequences evenly",
            path="training.batch_size",
            value=batch,
            hint=f"training.batch_size={cluster.devices * max(1, round(batch / cluster.devices))}",
        )
    rate = cluster.devices * cluster.peak * cluster.utilization
    memory = size.memory_bytes(optimizer_floats, is_averaged)
    kept = sum(memory[name] or 0 for name in ("weights", "gradients", "optimizer", "average"))
    activations = size.activation_bytes / cluster.devices
    block, rest = _largest_block(size)
    blocks = size.weight_bytes - rest
    others = (cluster.devices - 1) / cluster.devices
    # Around a block: its weights, those of the next one, and its gradient. What is no block stays whole.
    gathered = 3 * block + 2 * rest
    steps = math.ceil(cluster.tokens / size.tokens)
    computing = training * size.tokens / rate

    def sharing(memory: float, traffic: float) -> Sharing:
        seconds = traffic / cluster.bandwidth
        whole = steps * max(computing, seconds), steps * (computing + seconds)
        return Sharing(memory, memory <= cluster.memory, traffic, seconds, whole)

    return Projection(
        operations=training * cluster.tokens,
        steps=steps,
        tokens_per_step=size.tokens,
        seconds_per_step=computing,
        checkpoint_bytes=kept - size.trainable_bytes,
        by_copies=sharing(kept + activations, 2 * others * size.trainable_bytes),
        by_shards=sharing(
            kept / cluster.devices + (gathered if cluster.devices > 1 else 0) + activations,
            others * (3 * blocks + 2 * rest),
        ),
    )


def _largest_block(size: Size) -> tuple[int, int]:
    """Bytes of the largest block, and of all that is in none."""
    counts: Counter[str] = Counter()
    for path, count in size.by_module.items():
        found = _BLOCK.match(path)
        counts[found[1] if found else ""] += count
    bytes_each = size.weight_bytes / max(size.total, 1)
    rest = counts.pop("", 0)
    return round(bytes_each * max(counts.values(), default=0)), round(bytes_each * rest)
