"""What must hold for a model to learn: a sane start, gradients everywhere, exact sums, exact saves.

Like the other checks these take a Subject and return a Measurement.
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
    DoesNotApply,
    Measurement,
    Subject,
    at_most,
    difference,
    gradients,
    largest_difference,
    take_rows,
    trimmed,
)
from glassformer.models.base import Model
from glassformer.models.task_types import Seq2Seq, SequenceClassification, TaskType, TokenClassification
from glassformer.training.checkpoints import Checkpoint, CheckpointStore, checkpoint_name
from glassformer.training.config import TrainingConfig
from glassformer.training.trainer import Trainer

INITIAL_EXCESS = 0.5
"""Nats above or below ln V. Random logits of standard deviation s cost s²/2 nats more than equal ones do,
so this is where a first guess stops being modest: logits that differ by one in the mean."""

FITTED = 0.1
"""Of the first loss."""
FIT_STEPS = 120
FIT_RATES = (0.1, 0.01)
"""Divided by how many numbers a weight's layer reads, so that one rate serves wide and narrow models.
The second is for deep models without norms, which the first makes explode."""
FIT_WARMUP = 5


def initial_loss(subject: Subject) -> Measurement:
    """Before training all answers should be about equally likely."""
    answers = _answers(subject.task_type)
    batch = subject.sample
    with torch.no_grad():
        loss_output = subject.fresh.compute_loss(batch.inputs, batch.targets)
    loss, equal = float(loss_output.loss) / max(1, int(loss_output.count)), math.log(answers)
    excess = abs(loss - equal) if math.isfinite(loss) else math.inf
    detail = f"loss {loss:.4f}, ln {answers:,} = {equal:.4f}"
    return at_most(excess, INITIAL_EXCESS, detail + _fresh_note(subject))


def _answers(task_type: TaskType) -> int:
    """Among how many answers the model chooses."""
    if isinstance(task_type, SequenceClassification):
        if task_type.is_real:
            raise DoesNotApply("the answer is a number, not a choice")
        return task_type.outputs
    if isinstance(task_type, TokenClassification):
        return task_type.classes
    return task_type.target_vocabulary if isinstance(task_type, Seq2Seq) else task_type.vocabulary


def _fresh_note(subject: Subject) -> str:
    return "" if subject.trained is None else " (a fresh model of the run's config)"


def overfitting(subject: Subject) -> Measurement:
    """A few sequences by heart, without dropout, in a few steps of Adam."""
    batch = memorable(subject.batch, is_causal=subject.causal_input is not None)
    tries = []
    for rate in FIT_RATES:
        losses = _fit(copy.deepcopy(subject.fresh), batch, rate)
        share = losses[-1] / losses[0] if losses[0] > 0 else 0.0
        tries.append((share if math.isfinite(share) else math.inf, losses))
        if share <= FITTED:
            break
    share, losses = min(tries, key=lambda found: found[0])
    steps = len(losses) - 1
    detail = f"loss {losses[0]:.3f} → {losses[-1]:.3f} in {steps} steps on {len(batch.indices)} sequences"
    return at_most(share, FITTED, detail + _fresh_note(subject))


def _fit(model: Model, batch: Batch, rate: float) -> list[float]:
    """The losses until the batch is learned, or cannot be."""
    groups: dict[float, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        reads = parameter.shape[-1] if parameter.ndim > 1 else 10
        groups.setdefault(rate / reads, []).append(parameter)
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


def memorable(batch: Batch, *, is_causal: bool) -> Batch:
    """The batch with one answer to each question, even for a model that knows no order.

    Without positions attention sees what tokens there are, in which proportions. Where two places look
    alike in that way, the second is given the answer of the first. Numbers are brought to a common scale.
    """
    targets = batch.targets.clone()
    if targets.is_floating_point():
        spread = targets.std(unbiased=False) if len(targets) > 1 else torch.tensor(0.0)
        targets = (targets - targets.mean()) / (spread if spread > 0 else 1.0)
        targets = targets if spread > 0 else targets + 1.0
    tokens, attention_mask = batch.inputs["tokens"], batch.inputs.get("attention_mask")
    assert tokens is not None
    target = batch.inputs.get("target")
    read = tokens if target is None else target
    answers: dict[tuple[object, ...], Tensor] = {}
    for row in range(len(targets)):
        source = _proportions(tokens[row] if attention_mask is None else tokens[row][attention_mask[row]])
        if targets.ndim == 1:
            targets[row] = answers.setdefault((source,), targets[row].clone())
            continue
        for place in range(targets.shape[1]):
            seen = _proportions(read[row, : place + 1]) if is_causal else source
            whole = None if target is None else source
            question = (whole, seen, int(read[row, place]), bool(targets[row, place] == IGNORED))
            targets[row, place] = answers.setdefault(question, targets[row, place].clone())
    return replace(batch, targets=targets)


def _proportions(tokens: Tensor) -> tuple[tuple[int, int], ...]:
    counts = Counter(tokens.tolist())
    common = math.gcd(*counts.values()) or 1
    return tuple(sorted((token, count // common) for token, count in counts.items()))


def gradient_accumulation(subject: Subject) -> Measurement:
    """The trainer's own step, on one batch and on parts of unequal size: the same gradient."""
    batch = subject.ragged
    rows = len(batch.indices)
    if rows < 2:
        raise DoesNotApply("there is a single example")
    parts = [trimmed(take_rows(batch, [0])), trimmed(take_rows(batch, list(range(1, rows))))]
    config, model = subject.experiment.config, copy.deepcopy(subject.model)
    trainer = Trainer(subject.task, model, _plain(config.training), config.evaluation, config.seed)
    trainer.step([batch])
    whole = gradients(model)
    trainer.step(parts)
    counts = " + ".join(str(part.target_count()) for part in parts)
    moved = largest_difference(gradients(model), whole)
    return at_most(moved, subject.limit, f"gradients of {counts} targets, in two batches and in one")


def _plain(training: TrainingConfig) -> TrainingConfig:
    """No clipping, which would hide a wrong scale; and steps so small that the weights stay."""
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


def every_gradient(subject: Subject) -> Measurement:
    """A parameter without a gradient never learns."""
    model = copy.deepcopy(subject.model)
    model.compute_loss(subject.ragged.inputs, subject.ragged.targets).loss.backward()
    found = {name: _complaint(parameter) for name, parameter in model.named_parameters()}
    without = {name: complaint for name, complaint in found.items() if complaint}
    detail = f"{len(found)} parameters"
    if without:
        shown = "; ".join(f"{name} {complaint}" for name, complaint in list(without.items())[:3])
        detail = shown + ("; …" if len(without) > 3 else "")
    return at_most(len(without), 0, detail)


def _complaint(parameter: nn.Parameter) -> str:
    if not parameter.requires_grad:
        return "is frozen"
    if parameter.grad is None:
        return "is not used"
    if not bool(torch.isfinite(parameter.grad).all()):
        return "has a gradient that is no number"
    return "" if bool(parameter.grad.any()) else "has a gradient of zero"


def saving(subject: Subject) -> Measurement:
    """Saved, and loaded into a model that started otherwise: the same bits, and the same answers."""
    original, other = subject.weights, subject.build_otherwise()
    with tempfile.TemporaryDirectory() as folder:
        store = CheckpointStore(Path(folder))
        store.save(checkpoint_name(1), Checkpoint({"model": original.state_dict()}, {}))
        other.load_state_dict(dict(store.load(checkpoint_name(1)).tensors["model"]))
    before, after = original.state_dict(), other.state_dict()
    wrong = [name for name, tensor in before.items() if not _same_bits(tensor, after[name])]
    if wrong:
        return at_most(len(wrong), 0, f"not as it was: {', '.join(wrong[:3])}{', …' if wrong[3:] else ''}")
    with torch.no_grad():
        moved = difference(other(**subject.batch.inputs), original(**subject.batch.inputs))
    if moved > SINGLE_LIMIT:
        return Measurement("failed", moved, 0, "what decides the answers is not all in the state")
    return at_most(0, 0, f"{len(before)} tensors, to the bit, into a model that started otherwise")


def _same_bits(one: Tensor, other: Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(*(x.flatten().contiguous().view(torch.uint8) for x in (one, other)))
