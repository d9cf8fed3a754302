"""Projection of the time, memory and traffic of a training run on many devices."""

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
    """Cluster of identical devices. The defaults describe GPUs with 80 GB on a network with 400 Gbit/s."""

    devices: int = Field(8, ge=1, description="number of devices, one process per device")
    tokens: float = Field(1e9, gt=0, description="number of tokens to train on")
    peak: float = Field(989e12, gt=0, description="peak FLOP/s per device, from its data sheet")
    utilization: float = Field(
        0.4, gt=0, le=1, description="fraction of the peak FLOP/s that training reaches"
    )
    memory: float = Field(80e9, gt=0, description="bytes of memory per device")
    bandwidth: float = Field(50e9, gt=0, description="network bandwidth per device in bytes per second")


@dataclass(frozen=True)
class StrategyCost:
    """Costs of one strategy (DDP or FSDP): memory per device, network traffic per device and step."""

    memory_bytes: float
    fits: bool
    traffic_bytes: float
    traffic_seconds: float
    seconds: tuple[float, float]
    """Seconds for the whole training: with full overlap of traffic and computing, and without overlap."""


@dataclass(frozen=True)
class Projection:
    """Projected costs of a training run on a cluster, for DDP and for FSDP."""

    operations: float
    steps: int
    tokens_per_step: int
    seconds_per_step: float
    """Computing time of one step in seconds, without network traffic."""
    checkpoint_bytes: int
    ddp: StrategyCost
    fsdp: StrategyCost


def project(
    size: Size, batch: int, cluster: ClusterConfig, optimizer_floats: int, *, is_averaged: bool = False
) -> Projection:
    """Return the projected training costs of a model on a cluster, with DDP and with FSDP.

    `size` was traced for `batch` sequences, which the devices share evenly.
    """
    training = size.flops_per_token()["training"]
    if training is None or size.activation_bytes is None:
        raise user_error(
            f"the projection cannot be computed: {size.why_not}", path="--cluster", hint="omit --cluster"
        )
    if batch % cluster.devices:
        raise user_error(
            f"{batch} sequences cannot be divided evenly among {cluster.devices} devices",
            path="training.batch_size",
            value=batch,
            hint=f"training.batch_size={cluster.devices * max(1, round(batch / cluster.devices))}",
        )
    flops_per_second = cluster.devices * cluster.peak * cluster.utilization
    memory = size.memory_bytes(optimizer_floats, is_averaged)
    resident = sum(memory[name] or 0 for name in ("weights", "gradients", "optimizer", "average"))
    activations = size.activation_bytes / cluster.devices
    block, rest = _largest_block(size)
    blocks = size.weight_bytes - rest
    others = (cluster.devices - 1) / cluster.devices
    # Per block: its weights, those of the next block, and its gradient. Other parameters stay gathered.
    gathered = 3 * block + 2 * rest
    steps = math.ceil(cluster.tokens / size.tokens)
    computing = training * size.tokens / flops_per_second

    def strategy_cost(memory: float, traffic: float) -> StrategyCost:
        seconds = traffic / cluster.bandwidth
        whole = steps * max(computing, seconds), steps * (computing + seconds)
        return StrategyCost(memory, memory <= cluster.memory, traffic, seconds, whole)

    return Projection(
        operations=training * cluster.tokens,
        steps=steps,
        tokens_per_step=size.tokens,
        seconds_per_step=computing,
        checkpoint_bytes=resident - size.trainable_bytes,
        ddp=strategy_cost(resident + activations, 2 * others * size.trainable_bytes),
        fsdp=strategy_cost(
            resident / cluster.devices + (gathered if cluster.devices > 1 else 0) + activations,
            others * (3 * blocks + 2 * rest),
        ),
    )


def _largest_block(size: Size) -> tuple[int, int]:
    """Return the bytes of the largest block, and of all parameters outside the blocks."""
    counts: Counter[str] = Counter()
    for path, count in size.by_module.items():
        found = _BLOCK.match(path)
        counts[found[1] if found else ""] += count
    bytes_each = size.weight_bytes / max(size.total, 1)
    rest = counts.pop("", 0)
    return round(bytes_each * max(counts.values(), default=0)), round(bytes_each * rest)
