"""Induction and duplicate-token heads: attention and loss on random tokens that repeat.

A sequence is T distinct random tokens, twice. Only the first half predicts the second: an induction head
finds the earlier occurrence of the current token and reads the token after it (Olsson et al. 2022). T varies
between the sequences, so that a head with a fixed distance has no high score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.blocks.attention import Kernel
from glassformer.blocks.heads import IGNORED, ClassHead
from glassformer.blocks.masks import Mask
from glassformer.core.errors import ErrorDetail
from glassformer.data.batching import Batch, generator
from glassformer.inspection.ablation import Effect, ablate_heads, compare, mean_outputs
from glassformer.inspection.examples import ExampleGroup
from glassformer.inspection.gradients import check_linear
from glassformer.inspection.maps import Site, Trust
from glassformer.inspection.record import HeadId, layers, swap_kernels
from glassformer.models.base import Model, evaluating
from glassformer.models.task_types import Seq2Seq
from glassformer.tasks.base import CausalLMTask, Seq2SeqTask, Task

INDUCTION = "induction"
DUPLICATE = "duplicate token"
SEQUENCES = 24
"""Number of sequences that `heads` measures."""
LONGEST, SHORTEST = 50, 4
"""Largest and smallest number of tokens that a sequence repeats."""
SHARES = (1.0, 0.75, 0.5)
"""Periods of the sequences, as shares of the largest one."""
MOST_ABLATED = 8
"""Maximum number of heads that are ablated: those with the highest induction scores."""
HALVES = ("first_half", "second_half")


@dataclass(frozen=True)
class RepeatedTokens(ExampleGroup):
    """Sequences of random tokens that repeat after `period` tokens, with the next tokens as targets."""

    site: Site
    """Site of the self-attention that reads the sequences: `encoder` or `decoder`."""
    period: int
    start: int
    """Number of tokens before the random ones: 1 if texts of the task begin with a token of their own."""

    def patterns(self, task: Task) -> list[dict[str, dict[str, np.ndarray]]]:
        """Return the cells that an induction head and a duplicate-token head attend to, for each sequence.

        Their rows are the tokens of the second half.
        """
        length = self.start + 2 * self.period
        query, key = np.arange(length)[:, None], np.arange(length)
        is_second = query >= self.start + self.period
        cells = {
            INDUCTION: is_second & (key == query - self.period + 1),
            DUPLICATE: is_second & (key == query - self.period),
        }
        return [{self.site: cells}] * len(self.inputs)

    def targets(self) -> Tensor:
        """Return which targets belong to the first and to the second half, as booleans (2, L).

        The first token of the second half belongs to neither: no earlier token announces it.
        """
        at = torch.arange(self.start + 2 * self.period)
        first = (at >= self.start) & (at < self.start + self.period - 1)
        second = (at >= self.start + self.period) & (at < self.start + 2 * self.period - 1)
        return torch.stack([first, second])


def why_left_out(task: Task) -> str | None:
    """Return the reason why a task's models cannot be measured on repeated tokens, or None."""
    task_type = task.task_type
    if not isinstance(task, (CausalLMTask, Seq2SeqTask)):
        return f"a {task_type.name} reads all tokens at once; only a model that predicts next tokens has them"
    if _longest(task) < SHORTEST:
        reader = "decoder" if isinstance(task, Seq2SeqTask) else "model"
        return f"the {reader} reads too few or too similar tokens: {SHORTEST} different ones do not fit twice"
    return None


def repeated_tokens(task: Task, count: int = SEQUENCES) -> list[RepeatedTokens]:
    """Return about `count` sequences in groups of equal period; raise ErrorDetail if the task has none."""
    reason = why_left_out(task)
    if reason is not None:
        raise ErrorDetail(f"no induction heads: {reason}", path="model")
    assert isinstance(task, (CausalLMTask, Seq2SeqTask))
    longest, rng = _longest(task), generator(0, "repeated tokens")
    periods = sorted({max(SHORTEST, round(share * longest)) for share in SHARES})
    rows = max(1, round(count / len(periods)))
    return [_group(task, period, rows, rng) for period in periods]


def _longest(task: CausalLMTask | Seq2SeqTask) -> int:
    """Return the largest period: two of them fit into the context, and all of its tokens are distinct."""
    task_type = task.task_type
    limit = task_type.max_target_length - 1 if isinstance(task_type, Seq2Seq) else task_type.max_length
    return min(LONGEST, (limit - len(_prefix(task))) // 2, len(_ordinary_tokens(task)))


def _prefix(task: CausalLMTask | Seq2SeqTask) -> list[int]:
    return [] if task.begin is None else [task.begin]


def _ordinary_tokens(task: CausalLMTask | Seq2SeqTask) -> np.ndarray:
    """Return all tokens that a text may contain, without those for its begin, its end and unknown pieces."""
    special = {task.begin, task.end, *task.forbidden}
    known = (token for token in range(task.task_type.num_outputs) if token not in special)
    return np.array([token for token in known if not task.is_unknown(token)])


def _group(
    task: CausalLMTask | Seq2SeqTask, period: int, count: int, rng: np.random.Generator
) -> RepeatedTokens:
    ordinary = _ordinary_tokens(task)
    return repeat_rows(task, np.stack([rng.choice(ordinary, period, replace=False) for _ in range(count)]))


def repeat_rows(task: CausalLMTask | Seq2SeqTask, halves: np.ndarray) -> RepeatedTokens:
    """Return sequences that consist of the rows of `halves` (N, T), each of them twice."""
    count, period = halves.shape
    prefix = np.tile(np.array(_prefix(task), dtype=np.int64), (count, 1))
    rows = np.hstack([prefix, halves, halves]).astype(np.int64)
    tokens_BL = torch.from_numpy(rows)
    targets_BL = F.pad(tokens_BL[:, 1:], (0, 1), value=IGNORED)
    inputs: dict[str, Tensor | None] = {"tokens": tokens_BL, "mask": None}
    site: Site = "encoder"
    if isinstance(task.task_type, Seq2Seq):  # the decoder reads the tokens, the encoder one real input
        source = np.asarray(next(iter(task.splits.values())).inputs[0]).astype(np.int64)
        inputs = {"tokens": torch.from_numpy(source).expand(count, -1), "mask": None, "target": tokens_BL}
        site = "decoder"
    batch = Batch(inputs, targets_BL, np.arange(count))
    return RepeatedTokens(batch, list(rows), None, site, period, len(prefix[0]))


def half_losses(model: Model, groups: Sequence[RepeatedTokens]) -> np.ndarray:
    """Return the mean loss per token of the first and of the second half, for each sequence (N, 2)."""
    device, found = next(model.parameters()).device, []
    with evaluating(model), torch.inference_mode():
        for group in groups:
            batch, halves_2L = group.batch.to(device), group.targets().to(device)
            targets_BL = batch.targets.masked_fill(~halves_2L.any(0), IGNORED)
            hidden_BLD = model.hidden(**batch.inputs)
            if isinstance(model.head, ClassHead) and model.head.is_plain:
                losses_BL, _ = model.head.loss_per_target(hidden_BLD, targets_BL, model.tied_weight())
            else:
                logits_BLV = model.head(hidden_BLD, model.tied_weight())
                losses_BL = F.cross_entropy(logits_BLV.mT, targets_BL, ignore_index=IGNORED, reduction="none")
            found.append((losses_BL.double() @ halves_2L.double().T / halves_2L.sum(1)).cpu().numpy())
    return np.concatenate(found)


def mean_losses(losses_N2: np.ndarray) -> dict[str, float]:
    """Return the mean loss of each half, by name."""
    return dict(zip(HALVES, losses_N2.mean(0).tolist(), strict=True))


def ablate_on_repeated(
    model: Model, groups: Sequence[RepeatedTokens], heads: Sequence[HeadId]
) -> list[dict[str, Any]]:
    """Replace each head's output by its mean; return the change of the loss of both halves, by head."""
    before, found = half_losses(model, groups), []
    means = mean_outputs(model, groups, heads)
    trust: Trust = "cause"
    for where in heads:
        with ablate_heads(model, {where: means[where]})():
            after = half_losses(model, groups)
        metrics = {
            f"{half}_loss": asdict(_effect(before[:, index], after[:, index]))
            for index, half in enumerate(HALVES)
        }
        found.append({**asdict(where), "ablation": "mean", "trust": trust, "metrics": metrics})
    return found


def _effect(before: np.ndarray, after: np.ndarray) -> Effect:
    ones = np.ones(len(before))
    return compare({"loss": before, "count": ones}, {"loss": after, "count": ones})["loss"]


def copying(model: Model, groups: Sequence[RepeatedTokens]) -> np.ndarray | None:
    """Return how surely each head copies, from −1 to 1 (layers, heads): the mean sign of own-token logits.

    The sign is positive if the value and output weights of a head raise the logit of the token that the head
    reads above the mean of all logits. Later layers are left out. Return None if the logits are not linear in
    the output of a head, as in a post-norm model.
    """
    site = groups[0].site
    try:
        norm = check_linear(model, site)
    except ErrorDetail:
        return None
    if not isinstance(model.head, ClassHead):
        return None
    unembedding_VD = model.head.output_weight(model.tied_weight()).detach()
    centred_VD = (unembedding_VD - unembedding_VD.mean(0)) * getattr(norm, "weight", torch.ones(()))
    if isinstance(norm, torch.nn.LayerNorm):  # the norm subtracts the mean of the stream
        centred_VD = centred_VD - centred_VD.mean(-1, keepdim=True)
    modules, device = layers(model)[site], next(model.parameters()).device
    signs = np.zeros((len(modules), modules[0].num_heads))
    values: dict[int, Tensor] = {}

    def recorder(layer: int, inner: Kernel) -> Kernel:
        def kernel(
            q_BHLK: Tensor, k_BHMK: Tensor, v_BHMK: Tensor, mask: Mask, bias: Tensor | None, dropout: float
        ) -> Tensor:
            values[layer] = v_BHMK
            return inner(q_BHLK, k_BHMK, v_BHMK, mask, bias, dropout)

        return kernel

    kernels = {module: recorder(layer, module.kernel) for layer, module in enumerate(modules)}
    with torch.inference_mode(), swap_kernels(model, kernels):
        for group in groups:
            batch = group.batch.to(device)
            model.hidden(**batch.inputs)
            tokens_BM = batch.inputs["target" if site == "decoder" else "tokens"]
            assert tokens_BM is not None
            own_BMD = centred_VD[tokens_BM]
            for layer, module in enumerate(modules):
                slices_HDK = module.output.weight.unflatten(1, (module.num_heads, -1)).transpose(0, 1)
                logits_BHM = torch.einsum("bhmk,hdk,bmd->bhm", values[layer], slices_HDK, own_BMD)
                signs[layer] += logits_BHM[:, :, group.start :].sign().mean((0, 2)).cpu().numpy()
    return signs / len(groups)
