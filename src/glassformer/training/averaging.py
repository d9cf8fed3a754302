"""The mean of the weights of several checkpoints."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch

from glassformer.models.base import Model
from glassformer.training.checkpoints import CheckpointStore, DamagedCheckpoint


def mean_of(
    model: Model, store: CheckpointStore, earlier: Sequence[str], group: str, note: Callable[[str], None]
) -> tuple[Model, int]:
    """A copy of the model with the mean of its weights and those of these checkpoints, and of how many."""
    others = []
    for name in earlier:
        try:
            others.append(store.load(name, [group]).tensors[group])
        except DamagedCheckpoint as damage:
            note(f"{damage}; averaging without it")
    averaged = copy.deepcopy(model).requires_grad_(False)
    for name, weight in averaged.state_dict().items():
        weight.copy_(torch.stack([weight, *(t[name].to(weight.device) for t in others)]).mean(0))
    return averaged, len(others) + 1
