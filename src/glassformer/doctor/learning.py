"""Training checks: initial loss, overfitting of one batch, gradients, gradient accumulation, saving.

Each check is a function that takes a CheckContext and returns a Measurement.
"""

from __future__ import annotations

import copy
import math
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.blocks.heads import IGNORED
from glassformer.data.batching import Batch
from glassformer.doctor.checks import (
    SINGLE_LIMIT,
    CheckContext,
    difference,
    gradients,
    largest_difference,
    take_rows,
    trimmed,
)
from glassformer.doctor.report import DoesNotApply, Measurement, at_most
from glassformer.models.base import Model
from glassformer.models.task_types import Seq2Seq, SequenceClassification, TaskType, TokenClassification
from glassformer.training.checkpoints import Checkpoint, CheckpointStore, checkpoint_name
from glassformer.training.config import TrainingConfig
from glassformer.training.trainer import Trainer

INITIAL_EXCESS = 0.5
"""Largest accepted difference between the initial loss and ln V, in nats. Random logits with standard
deviation s raise the loss by s²/2 nats, so the limit corresponds to a standard deviation of 1."""

FITTED = 0.1
"""Fraction of the initial loss below which a batch counts as overfitted."""
FIT_STEPS = 120
FIT_LEARNING_RATES = (0.1, 0.01)
"""Learning rates to try. Each is divided by the input width of a layer, so that one value serves wide and
narrow models. The second is for deep models without norms, which diverge with the first."""
FIT_WARMUP = 5
"""Number of optimizer steps with a linearly increasing learning rate."""


def initial_loss(context: CheckContext) -> Measurement:
    """Check that the loss of a newly initialised model is near that of a uniform prediction, ln V."""
    classes = _classes(context.task_type)
    batch = context.sample
    with torch.no_grad():
        loss_output = context.fresh.compute_loss(batch.inputs, batch.targets)
    loss, equal = float(loss_output.loss) / max(1, int(loss_output.count)), math.log(classes)
    excess = abs(loss - equal) if math.isfinite(loss) else math.inf
    detail = f"loss {loss:.4f}, ln {classes:,} = {equal:.4f}"
    return at_most(excess, INITIAL_EXCESS, detail + _fresh_note(context))


def _classes(task_type: TaskType) -> int:
    """Return the number of classes that the model chooses from."""
    if isinstance(task_type, SequenceClassification):
        if task_type.is_regression:
            raise DoesNotApply("the model predicts a number")
        return task_type.outputs
    if isinstance(task_type, TokenClassification):
        return task_type.classes
    return task_type.target_vocabulary if isinstance(task_type, Seq2Seq) else task_type.vocabulary


def _fresh_note(context: CheckContext) -> str:
    return "" if context.trained is None else " (a fresh model of the run's config)"


def overfitting(context: CheckContext) -> Measurement:
    """Check that a new model can overfit a few sequences, without dropout, in at most 120 steps of Adam."""
    batch = consistent_targets(context.batch, is_causal=context.causal_input is not None)
    tries = []
    for lr in FIT_LEARNING_RATES:
        losses = _fit(copy.deepcopy(context.fresh), batch, lr)
        share = losses[-1] / losses[0] if losses[0] > 0 else 0.0
        tries.append((share if math.isfinite(share) else math.inf, losses))
        if share <= FITTED:
            break
    share, losses = min(tries, key=lambda found: found[0])
    steps = len(losses) - 1
    detail = f"loss {losses[0]:.3f} → {losses[-1]:.3f} in {steps} steps on {len(batch.indices)} sequences"
    return at_most(share, FITTED, detail + _fresh_note(context))


def _fit(model: Model, batch: Batch, base_lr: float) -> list[float]:
    """Train on one batch until it is learned or the loss diverges; return the loss of each step."""
    groups: dict[float, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        reads = parameter.shape[-1] if parameter.ndim > 1 else 10
        groups.setdefault(base_lr / reads, []).append(parameter)
    optimizer = torch.optim.Adam(
        [{"params": parameters, "lr": lr} for lr, parameters in groups.items()], betas=(0.9, 0.95), fused=True
    )
    losses: list[float] = []
    for step in range(FIT_STEPS + 1):
        loss_output = model.compute_loss(batch.inputs, batch.targets)
        loss = loss_output.loss / loss_output.count
        losses.append(float(loss.detach()))
        if not FITTED * losses[0] < losses[-1] < 3 * losses[0] or step == FIT_STEPS:
            break
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group, lr in zip(optimizer.param_groups, groups, strict=True):
            group["lr"] = lr * min(1.0, (step + 1) / FIT_WARMUP)
        optimizer.step()
    return losses


def consistent_targets(batch: Batch, *, is_causal: bool) -> Batch:
    """Return the batch with targets that even a model without positions can fit.

    Without positions, attention sees only which tokens occur and in which proportions. If two positions
    cannot be distinguished in this way, the second gets the target of the first. Real values are
    standardised.
    """
    targets = batch.targets.clone()
    if targets.is_floating_point():
        spread = targets.std(unbiased=False) if len(targets) > 1 else torch.tensor(0.0)
        targets = (targets - targets.mean()) / (spread if spread > 0 else 1.0)
        targets = targets if spread > 0 else targets + 1.0
    tokens, attention_mask = batch.inputs["tokens"], batch.inputs.get("mask")
    assert tokens is not None
    target = batch.inputs.get("target")
    read = tokens if target is None else target
    known: dict[tuple[object, ...], Tensor] = {}
    for row in range(len(targets)):
        source = _proportions(tokens[row] if attention_mask is None else tokens[row][attention_mask[row]])
        if targets.ndim == 1:
            targets[row] = known.setdefault((source,), targets[row].clone())
            continue
        for index in range(targets.shape[1]):
            seen = _proportions(read[row, : index + 1]) if is_causal else source
            whole = None if target is None else source
            visible = (whole, seen, int(read[row, index]), bool(targets[row, index] == IGNORED))
            targets[row, index] = known.setdefault(visible, targets[row, index].clone())
    return replace(batch, targets=targets)


def _proportions(tokens: Tensor) -> tuple[tuple[int, int], ...]:
    """Return sorted pairs (token, count), with all counts divided by their greatest common divisor."""
    counts = Counter(tokens.tolist())
    common = math.gcd(*counts.values()) or 1
    return tuple(sorted((token, count // common) for token, count in counts.items()))


def gradient_accumulation(context: CheckContext) -> Measurement:
    """Check that two unequal micro-batches give the same gradient in a training step as the whole batch."""
    batch = context.ragged
    rows = len(batch.indices)
    if rows < 2:
        raise DoesNotApply("there is only one example")
    micro_batches = [trimmed(take_rows(batch, [0])), trimmed(take_rows(batch, list(range(1, rows))))]
    config, model = context.experiment.config, copy.deepcopy(context.model)
    trainer = Trainer(context.task, model, _plain(config.training), config.evaluation, config.seed)
    trainer.step([batch])
    whole = gradients(model)
    trainer.step(micro_batches)
    counts = " + ".join(str(each.target_count()) for each in micro_batches)
    moved = largest_difference(gradients(model), whole)
    return at_most(moved, context.limit, f"gradients of {counts} targets, in two micro-batches and one")


def _plain(training: TrainingConfig) -> TrainingConfig:
    """Return a config without gradient clipping, which would hide a wrong scale, and with tiny updates."""
    changes: dict[str, Any] = {
        "optimizer": {"kind": "sgd", "learning_rate": 1e-30, "momentum": 0.0},
        "gradient_clip_norm": None,
        "ema_decay": None,
        "precision": "fp32",
        "divergence": {"spike_factor": None},
        "freeze": [],
        "unfreeze": {"every": None},
    }
    return training.with_overrides(changes)


def every_gradient(context: CheckContext) -> Measurement:
    """Check that every parameter gets a finite gradient that is not zero."""
    model = copy.deepcopy(context.model)
    model.compute_loss(context.ragged.inputs, context.ragged.targets).loss.backward()
    found = {name: _complaint(parameter) for name, parameter in model.named_parameters()}
    without = {name: complaint for name, complaint in found.items() if complaint}
    detail = f"{len(found)} parameters"
    if without:
        shown = "; ".join(f"{name} {complaint}" for name, complaint in list(without.items())[:3])
        detail = shown + ("; …" if len(without) > 3 else "")
    return at_most(len(without), 0, detail)


def _complaint(parameter: nn.Parameter) -> str:
    """Return what is wrong with a parameter's gradient, or an empty text."""
    if not parameter.requires_grad:
        return "is frozen"
    if parameter.grad is None:
        return "is not used"
    if not bool(torch.isfinite(parameter.grad).all()):
        return "has a gradient that is not finite"
    return "" if bool(parameter.grad.any()) else "has a gradient of zero"


def saving(context: CheckContext) -> Measurement:
    """Check that a saved model, loaded into another one, has bit-identical weights and equal outputs."""
    original, other = context.weights, context.build_other()
    with tempfile.TemporaryDirectory() as folder:
        store = CheckpointStore(Path(folder))
        store.save(checkpoint_name(1), Checkpoint({"model": original.state_dict()}, {}))
        other.load_state_dict(dict(store.load(checkpoint_name(1)).tensors["model"]))
    before, after = original.state_dict(), other.state_dict()
    wrong = [name for name, tensor in before.items() if not _same_bits(tensor, after[name])]
    if wrong:
        return at_most(len(wrong), 0, f"changed: {', '.join(wrong[:3])}{', …' if wrong[3:] else ''}")
    with torch.no_grad():
        moved = difference(other(**context.batch.inputs), original(**context.batch.inputs))
    if moved > SINGLE_LIMIT:
        return Measurement("failed", moved, 0, "outputs differ: the state does not contain everything")
    return at_most(0, 0, f"{len(before)} tensors equal to the bit after loading into another model")


def _same_bits(one: Tensor, other: Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(*(x.flatten().contiguous().view(torch.uint8) for x in (one, other)))
