"""Model checks: causal masking, padding, cached decoding, attention kernels, positions, dropout.

Each check is a function that takes a CheckContext and returns a Measurement.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from glassformer.blocks.attention import Kernel, MultiHeadAttention, explicit_weights
from glassformer.blocks.heads import IGNORED
from glassformer.blocks.masks import Mask
from glassformer.blocks.positions import Position
from glassformer.data.batching import Batch
from glassformer.doctor.report import DoesNotApply, Measurement, at_least, at_most
from glassformer.generation.no_cache import NoCache
from glassformer.models.base import Model, SupportsGeneration
from glassformer.models.task_types import CausalLM, MaskedLM, Seq2Seq, TaskType
from glassformer.runs.experiment import Experiment
from glassformer.tasks.base import Task

Inputs = dict[str, Tensor | None]

ROWS = 4
"""Number of sequences that most checks compare."""
LENGTH = 16
"""Number of tokens to which sequences are truncated."""
SAMPLE = 64
"""Number of training examples from which the sequences are chosen."""

DOUBLE_LIMIT = 1e-6
"""Largest accepted relative difference in fp64. It allows for plug-ins that compute partly in fp32."""
SINGLE_LIMIT = 1e-4
"""Largest accepted relative difference for a model that does not run in fp64."""


@dataclass
class CheckContext:
    """Models and batches that all checks share. `trained` is the model of a run, if a run is checked."""

    experiment: Experiment
    trained: Model | None = None

    @property
    def task(self) -> Task:
        return self.experiment.task

    @property
    def task_type(self) -> TaskType:
        return self.experiment.task.task_type

    @cached_property
    def fresh(self) -> Model:
        """Newly initialised model in eval mode. All checks share the model: copy it before you change it."""
        return self.experiment.build_model().eval()

    def build_other(self) -> Model:
        """Build a model with the same config and another seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.experiment.config.seed + 1)
            return self.experiment.config.model.build(self.task_type).eval()

    @cached_property
    def weights(self) -> Model:
        """Model to check, in fp32: the trained model, or a new one with noise added to its weights.

        The noise is needed because weights that start at zero would hide a leak.
        """
        if self.trained is not None:
            return copy.deepcopy(self.trained).cpu().eval()
        return add_noise(copy.deepcopy(self.fresh))

    @cached_property
    def model(self) -> Model:
        """Model to check, in fp64 if it runs in fp64. All checks share it: copy it before you change it."""
        model = copy.deepcopy(self.weights).double()
        try:
            with torch.no_grad():
                is_double = model(**self.batch.inputs).dtype == torch.float64
        except Exception:
            # The checks will meet the same error in fp32 and report it.
            is_double = False
        return model if is_double else self.weights

    @property
    def limit(self) -> float:
        """Largest accepted difference between results that should be equal, relative to the largest value."""
        return DOUBLE_LIMIT if next(self.model.parameters()).dtype == torch.float64 else SINGLE_LIMIT

    @property
    def note(self) -> str:
        """Text about precision and data, shown below the table of checks."""
        precision = "fp64" if self.limit == DOUBLE_LIMIT else "fp32 (the model does not run in fp64)"
        rows = len(self.batch.indices)
        return f"compared in {precision} on {rows} training sequences, truncated to {LENGTH} tokens"

    @cached_property
    def sample(self) -> Batch:
        """Batch of up to 64 examples spread over the training set, truncated to 16 tokens."""
        examples = len(self.task.splits["train"])
        indices = np.unique(np.linspace(0, examples - 1, SAMPLE).astype(np.int64))
        return truncate(self.task.batch("train", indices), LENGTH)

    @cached_property
    def batch(self) -> Batch:
        """Batch of up to 4 sequences from `sample`.

        Sequences with targets in their first half are preferred, or, for one label each, different labels.
        """
        targets = self.sample.targets
        if targets.ndim == 1:
            _, first_B = np.unique(targets.numpy(), return_index=True)
            order = [*first_B.tolist(), *(row for row in range(len(targets)) if row not in first_B)]
        else:
            early_B = (targets[:, : max(1, targets.shape[1] // 2)] != IGNORED).any(1)
            order = torch.argsort(early_B.int(), descending=True, stable=True).tolist()
        return take_rows(self.sample, sorted(order[:ROWS]))

    @cached_property
    def ragged(self) -> Batch:
        """Batch of the same sequences, each truncated to a different length and padded."""
        return ragged(self.batch)

    @property
    def causal_input(self) -> str | None:
        """Name of the input with causal attention, `tokens` or `target`; None if the model is not causal."""
        if isinstance(self.task_type, Seq2Seq):
            return "target"
        if isinstance(self.task_type, CausalLM) or getattr(self.fresh, "is_causal", False):
            return "tokens"
        return None

    def other_tokens(self, name: str, tokens: Tensor) -> Tensor:
        """Return random tokens for the input `name`, each different from the given token."""
        vocabulary = self.task_type.vocabulary
        if name == "target" and isinstance(self.task_type, Seq2Seq):
            vocabulary = self.task_type.target_vocabulary
        if vocabulary < 2:
            raise DoesNotApply("the vocabulary has one token")
        generator = torch.Generator().manual_seed(0)
        return (tokens + torch.randint(1, vocabulary, tokens.shape, generator=generator)) % vocabulary


def add_noise(model: Model) -> Model:
    """Add random noise to every weight in place, scaled by the layer's input width; return the model."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            scale = 0.2 * parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.05
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=scale)
    return model


def difference(actual: Tensor, expected: Tensor) -> float:
    """Return the largest difference relative to the largest expected value.

    Return infinity if a value is NaN or infinite.
    """
    return largest_difference([actual], [expected])


def largest_difference(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the largest difference in all pairs of tensors, relative to the largest expected value."""
    with torch.no_grad():
        pairs = [(a, e) for a, e in zip(actual, expected, strict=True) if e.numel()]
        largest = [float((a - e).abs().max()) for a, e in pairs]
        scale = max((float(e.abs().max()) for _, e in pairs), default=0.0) or 1.0
    if not all(map(math.isfinite, [*largest, scale])):
        return math.inf
    return max(largest, default=0.0) / scale


def gradients(model: nn.Module) -> list[Tensor]:
    """Return the gradient of every parameter, zeros for those without one, and clear the gradients."""
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    return found


def map_columns(batch: Batch, change: Callable[[str, Tensor], Tensor]) -> Batch:
    """Return the batch with `change` applied to every tensor of shape (B, L), such as tokens and masks.

    Targets are changed too, unless there is one label per sequence, of shape (B).
    """
    inputs = {name: None if x is None else change(name, x) for name, x in batch.inputs.items()}
    targets = batch.targets if batch.targets.ndim == 1 else change("targets", batch.targets)
    return replace(batch, inputs=inputs, targets=targets)


def truncate(batch: Batch, length: int) -> Batch:
    """Return the batch with all sequences truncated to `length` tokens."""
    return map_columns(batch, lambda _, x: x[:, :length])


def take_rows(batch: Batch, rows: list[int]) -> Batch:
    """Return a batch of these rows only."""
    inputs = {name: None if x is None else x[rows] for name, x in batch.inputs.items()}
    return Batch(inputs, batch.targets[rows], batch.indices[rows])


def ragged(batch: Batch) -> Batch:
    """Return the batch with its sequences truncated to different lengths and the rest masked as padding."""

    def lengths(x: Tensor) -> Tensor:
        width = x.shape[1]
        lost_B = torch.arange(len(x)) * max(1, width // (2 * len(x)))
        return (width - lost_B).clamp(min=min(2, width))

    def within(x: Tensor) -> Tensor:
        return torch.arange(x.shape[1]) < lengths(x)[:, None]

    def shorten(name: str, x: Tensor) -> Tensor:
        return x.masked_fill(~within(x), IGNORED if name == "targets" else 0)

    tokens, attention_mask = _given(batch.inputs, "tokens"), batch.inputs.get("mask")
    mask = within(tokens) if attention_mask is None else within(tokens) & attention_mask
    return map_columns(replace(batch, inputs={**batch.inputs, "mask": mask}), shorten)


def trimmed(batch: Batch) -> Batch:
    """Return the batch without columns that are all padding, and without the mask if no padding is left."""
    tokens, attention_mask = _given(batch.inputs, "tokens"), _given(batch.inputs, "mask")
    longest = int(attention_mask.sum(1).max())
    is_mask_needed = not bool(attention_mask[:, :longest].all())
    inputs = {
        **batch.inputs,
        "tokens": tokens[:, :longest],
        "mask": attention_mask[:, :longest] if is_mask_needed else None,
    }
    # Token labels have the width of the input; the target of a seq2seq task has its own.
    is_aligned = batch.targets.ndim == 2 and "target" not in batch.inputs
    return replace(batch, inputs=inputs, targets=batch.targets[:, :longest] if is_aligned else batch.targets)


MOST_SHOWN = 0.5
"""Largest accepted share of masked-LM targets that are visible in the input. In BERT it is 0.1."""

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout)


def future(context: CheckContext) -> Measurement:
    """Check that the outputs of a causal model stay the same if later tokens change."""
    name = context.causal_input
    if name is None:
        raise DoesNotApply("the model is not causal")
    inputs = context.batch.inputs
    tokens_BL = _given(inputs, name)
    length = tokens_BL.shape[1]
    if length < 2:
        raise DoesNotApply("the sequences have a single token")
    with torch.no_grad():
        expected = context.model(**inputs)
        if expected.ndim < 3:
            raise DoesNotApply("the model has one output for the whole sequence")
        moved = {}
        for start in sorted({1, length // 3 or 1, 2 * length // 3 or 1, length - 1}):
            changed_BL = tokens_BL.clone()
            changed_BL[:, start:] = context.other_tokens(name, tokens_BL[:, start:])
            actual = context.model(**{**inputs, name: changed_BL})
            moved[start] = difference(actual[:, :start], expected[:, :start])
    worst = max(moved, key=lambda start: moved[start])
    detail = f"later tokens changed, starting at {len(moved)} different positions"
    if moved[worst] > context.limit:
        detail = f"tokens from position {worst} on affect earlier outputs"
    return at_most(moved[worst], context.limit, detail)


def padding(context: CheckContext) -> Measurement:
    """Check that outputs and loss are the same without padding, with padding and with random padding."""
    ragged, model = context.ragged, context.model
    attention_mask = _given(ragged.inputs, "mask")
    if bool(attention_mask.all()):
        raise DoesNotApply("the sequences have a single token")
    with torch.no_grad():
        alone = [trimmed(take_rows(ragged, [row])) for row in range(len(attention_mask))]
        expected = torch.cat([_relevant(row, model(**row.inputs)).flatten(0, -2) for row in alone])
        losses = [model.compute_loss(row.inputs, row.targets) for row in alone]
        loss = sum(float(loss_output.loss) for loss_output in losses)
        count = sum(int(loss_output.count) for loss_output in losses)
        worst, detail = 0.0, "same outputs and loss without padding, with padding, and with other padding"
        for kind, batch in (("padding", ragged), ("the content of padding", _other_padding(context))):
            logits = _relevant(batch, model(**batch.inputs))
            loss_output = model.compute_loss(batch.inputs, batch.targets)
            moved = difference(logits, expected)
            loss_moved = abs(float(loss_output.loss) - loss) / (abs(loss) or 1.0)
            if int(loss_output.count) != count or not math.isfinite(loss_moved):
                loss_moved = math.inf
            for affected, share in (("outputs", moved), ("the loss", loss_moved)):
                if share > max(worst, context.limit):
                    detail = f"{kind} affects {affected}"
                worst = max(worst, share)
    return at_most(worst, context.limit, detail)


def _relevant(batch: Batch, logits: Tensor) -> Tensor:
    """Return the logits without those of padding; all logits if there is one output per sequence."""
    if logits.ndim < 3:
        return logits
    attention_mask = batch.inputs["mask"] if "target" not in batch.inputs else batch.targets != IGNORED
    return logits.flatten(0, 1) if attention_mask is None else logits[attention_mask]


def _other_padding(context: CheckContext) -> Batch:
    """Return the ragged batch with random padding tokens, and with more padding if the length allows it."""
    task_type, ragged = context.task_type, context.ragged
    room = {"tokens": task_type.max_length, "mask": task_type.max_length}
    room["target"] = getattr(task_type, "max_target_length", 0)
    aligned = "target" if "target" in ragged.inputs else "tokens"
    room["targets"] = room[aligned]

    def widen(name: str, x: Tensor) -> Tensor:
        more = max(0, min(3, room.get(name, 0) - x.shape[1]))
        return nn.functional.pad(x, (0, more), value=IGNORED if name == "targets" else 0)

    wide = map_columns(ragged, widen)
    inputs = dict(wide.inputs)
    tokens, attention_mask = _given(inputs, "tokens"), _given(inputs, "mask")
    inputs["tokens"] = torch.where(attention_mask, tokens, context.other_tokens("tokens", tokens))
    if "target" in inputs:
        target = _given(inputs, "target")
        other = context.other_tokens("target", target)
        inputs["target"] = torch.where(wide.targets != IGNORED, target, other)
    return replace(wide, inputs=inputs)


def neighbours(context: CheckContext) -> Measurement:
    """Check that each sequence has the same outputs alone and in a batch."""
    batch, model = context.batch, context.model
    if len(batch.indices) < 2:
        raise DoesNotApply("there is only one example")
    attention_mask = batch.inputs.get("mask")
    if attention_mask is not None:
        shortest = max(1, int(attention_mask.sum(1).min()))
        inputs = {
            **batch.inputs,
            "tokens": _given(batch.inputs, "tokens")[:, :shortest],
            "mask": None,
        }
        batch = replace(batch, inputs=inputs)
    with torch.no_grad():
        together = model(**batch.inputs)
        alone = [model(**take_rows(batch, [row]).inputs) for row in range(len(batch.indices))]
    moved = difference(together, torch.cat(alone))
    return at_most(moved, context.limit, f"{len(alone)} sequences, in one batch and one by one")


def cached_decoding(context: CheckContext) -> Measurement:
    """Check that decoding with a key/value cache gives the logits of decoding without one.

    Prompts differ in length, a step adds 1 or 2 tokens, and the rows are reordered after each step.
    """
    model, name = context.model, context.causal_input
    if name is None or not isinstance(model, SupportsGeneration):
        raise DoesNotApply("the model does not generate")
    tokens_BL = _given(context.batch.inputs, name)
    rows, length = tokens_BL.shape
    prompts_B = 1 + torch.arange(rows) % max(1, min(3, length - 1))
    prompt_mask_BL = torch.arange(int(prompts_B.max())) < prompts_B[:, None]
    chunks = [tokens_BL[:, : prompt_mask_BL.shape[1]], *_continuations(tokens_BL, prompts_B)]
    inputs = {key: x for key, x in context.ragged.inputs.items() if key != "target"}
    order, swap = torch.arange(rows), torch.arange(rows).flip(0)
    moved = []
    with torch.no_grad():
        uncached = NoCache(model)
        state, whole = model.start(**inputs), uncached.start(**inputs)
        for number, chunk_BL in enumerate(chunks):
            attention_mask_BL = None if number else prompt_mask_BL
            logits_BV = model.advance(state, chunk_BL[order], attention_mask_BL)
            moved.append(difference(logits_BV, uncached.advance(whole, chunk_BL[order], attention_mask_BL)))
            state.select(swap)
            whole.select(swap)
            order = order[swap]
    worst = max(range(len(moved)), key=lambda number: moved[number])
    detail = f"{len(moved)} steps after prompts of {int(prompts_B.min())} to {int(prompts_B.max())} tokens"
    if moved[worst] > context.limit:
        detail = f"decoding with and without a cache differ, most at step {worst + 1} of {len(moved)}"
    return at_most(moved[worst], context.limit, detail)


def _continuations(tokens_BL: Tensor, prompts_B: Tensor) -> list[Tensor]:
    """Return the tokens after each row's prompt, split into steps of 1, 2, 1, 1 and 1 tokens."""
    left = tokens_BL.shape[1] - int(prompts_B.max())
    next_BL = prompts_B[:, None] + torch.arange(left)
    following_BL = tokens_BL.gather(1, next_BL)
    chunks, start = [], 0
    for size in (1, 2, 1, 1, 1):
        if start + size <= left:
            chunks.append(following_BL[:, start : start + size])
            start += size
    return chunks


def reference_kernel(
    q_BHLK: Tensor, k_BHMK: Tensor, v_BHMK: Tensor, mask: Mask, bias: Tensor | None, dropout: float
) -> Tensor:
    """Compute attention by its definition, with an explicit softmax and without dropout."""
    return explicit_weights(q_BHLK, k_BHMK, mask, bias) @ v_BHMK


def fused_attention(context: CheckContext) -> Measurement:
    """Check that the model has the same logits and gradients with its own and with the reference kernel."""
    model = copy.deepcopy(context.model)
    batch, attentions = context.ragged, _attentions(model)
    if not attentions:
        raise DoesNotApply("the model has no MultiHeadAttention whose kernel can be replaced")

    def run() -> tuple[Tensor, list[Tensor]]:
        logits = model(**batch.inputs)
        model.head.compute_loss(logits, batch.targets).loss.backward()
        return logits, gradients(model)

    fused_logits, fused_gradients = run()
    for attention in attentions:
        attention.kernel = reference_kernel
    logits, reference_gradients = run()
    moved = difference(fused_logits, logits), largest_difference(fused_gradients, reference_gradients)
    detail = f"{len(attentions)} modules; logits differ by {moved[0]:.1e}, gradients by {moved[1]:.1e}"
    return at_most(max(moved), context.limit, detail)


def masked_row(context: CheckContext) -> Measurement:
    """Check that a fully masked query gives zeros, and that a sequence of only padding affects no other."""
    model = context.model
    kernels = {(each.kernel, each.num_heads, each.head_dim) for each in _attentions(model)}
    masked = max(
        (
            _masked_row_size(kernel, heads, width, is_biased, next(model.parameters()).dtype)
            for kernel, heads, width in kernels
            for is_biased in (False, True)
        ),
        default=0.0,
    )
    batch = context.ragged
    attention_mask_BL = _given(batch.inputs, "mask").clone()
    attention_mask_BL[0] = False
    with torch.no_grad():
        expected = model(**batch.inputs)
        actual = model(**{**batch.inputs, "mask": attention_mask_BL})
    others = difference(actual[1:], expected[1:]) if bool(torch.isfinite(actual).all()) else math.inf
    detail = f"{len(kernels)} kernels, with and without a bias; a sequence of only padding"
    if masked > context.limit:
        detail = "a query without keys does not give zeros"
    elif others > context.limit:
        detail = "a sequence of only padding affects the outputs of others"
    return at_most(max(masked, others), context.limit, detail)


def _masked_row_size(kernel: Kernel, heads: int, width: int, is_biased: bool, dtype: torch.dtype) -> float:
    """Return the largest absolute output of a fully masked query; infinity if a value is not finite."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype).requires_grad_()

    q_BHLK, k_BHMK, v_BHMK = draw(2, heads, 3, width), draw(2, heads, 4, width), draw(2, heads, 4, width)
    bias = draw(1, heads, 3, 4) if is_biased else None
    allowed = torch.ones(2, 1, 3, 4, dtype=torch.bool)
    allowed[0, :, 1] = False
    mixed_BHLK = kernel(q_BHLK, k_BHMK, v_BHMK, Mask(allowed=allowed), bias, 0.0)
    mixed_BHLK.sum().backward()
    grads = [x.grad for x in (q_BHLK, k_BHMK, v_BHMK, bias) if x is not None and x.grad is not None]
    if not all(bool(torch.isfinite(x).all()) for x in (mixed_BHLK, *grads)):
        return math.inf
    return float(mixed_BHLK[0, :, 1].detach().abs().max())


def positions(context: CheckContext) -> Measurement:
    """Check that the outputs change if the positions that the model receives are permuted."""
    model = copy.deepcopy(context.model)
    modules = [module for module in model.modules() if isinstance(module, Position)]
    if not modules:
        raise DoesNotApply("the model has no Position module")
    if all(type(module) is Position for module in modules):
        raise DoesNotApply("the model has no positional encoding")
    inputs = context.batch.inputs
    if _given(inputs, "tokens").shape[1] < 3:
        raise DoesNotApply("the sequences have fewer than three tokens")
    with torch.no_grad():
        expected = model(**inputs)
        for module in modules:
            _permute_positions(module)
        moved = difference(model(**inputs), expected)
    if moved >= context.limit:
        return at_least(moved, context.limit, "outputs change if positions are permuted")
    return at_least(moved, context.limit, "positions have no effect on the outputs")


def _permute_positions(module: Position) -> None:
    """Patch a position module so that it permutes all positions that it receives."""
    embed, rotate, score_bias = module.embed, module.rotate, module.score_bias

    def other(positions: Tensor) -> Tensor:
        """Return the permuted positions: odd ones come first, which changes most distances."""
        order = torch.arange(int(positions.max()) + 1)
        return torch.cat([order[1::2], order[0::2]])[positions]

    changed: dict[str, Callable[..., Tensor | None]] = {
        "embed": lambda x, positions: embed(x, other(positions)),
        "rotate": lambda x, positions: rotate(x, other(positions)),
        "score_bias": lambda q, queries, keys: score_bias(q, other(queries), other(keys)),
    }
    for name, method in changed.items():
        setattr(module, name, method)


def dropout(context: CheckContext) -> Measurement:
    """Check that two passes are equal in eval mode, and differ in training mode if the model has dropout."""
    inputs, model = context.batch.inputs, copy.deepcopy(context.model)
    rates = [module.p for module in model.modules() if isinstance(module, DROPOUTS)]
    rates += [attention.dropout for attention in _attentions(model)]
    with torch.no_grad():
        trained = [model.train()(**inputs) for _ in range(2)]
        evaluated = [model.eval()(**inputs) for _ in range(2)]
    moved, moved_in_training = difference(*evaluated), difference(*trained)
    if moved > context.limit:
        detail = "two passes in eval mode differ: something random is active"
    elif max(rates, default=0.0) == 0.0:
        detail = "equal in eval mode; the model has no dropout"
    elif moved_in_training <= context.limit:
        return Measurement(
            "failed", moved, context.limit, "two passes in training mode are equal: dropout is off"
        )
    else:
        detail = f"equal in eval mode; different by {moved_in_training:.2g} in training mode"
    return at_most(moved, context.limit, detail)


def target_leak(context: CheckContext) -> Measurement:
    """Check that no target is visible in the input at the position that has to predict it."""
    batch, task_type = context.sample, context.task_type
    if isinstance(task_type, MaskedLM):
        tokens, asked = _given(batch.inputs, "tokens"), batch.targets != IGNORED
        if not bool(asked.any()):
            raise DoesNotApply("these examples have no targets in their first tokens")
        shown = float((tokens == batch.targets)[asked].double().mean())
        detail = f"{shown:.0%} of {int(asked.sum())} targets are visible in the input"
        return at_most(shown, MOST_SHOWN, detail)
    if not isinstance(task_type, (CausalLM, Seq2Seq)):
        raise DoesNotApply("the targets are not part of the input")
    tokens = _given(batch.inputs, "target" if isinstance(task_type, Seq2Seq) else "tokens")
    asked = batch.targets != IGNORED
    asked = asked[:, :-1] & asked[:, 1:]
    wrong, total = int((tokens[:, 1:] != batch.targets[:, :-1])[asked].sum()), int(asked.sum())
    if not total:
        raise DoesNotApply("the sequences are too short")
    return at_most(wrong, 0, f"{total - wrong} of {total} targets are the next input token")


def _given(inputs: Inputs, name: str) -> Tensor:
    tensor = inputs[name]
    assert tensor is not None
    return tensor


def _attentions(model: Model) -> list[MultiHeadAttention]:
    return [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
