"""The front door of the models: `Transformer(...)`, positional inputs, the mean loss and the summary line."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from glassformer.blocks.positions import Rotary, RotaryConfig
from glassformer.core.errors import ErrorDetail, UserError
from glassformer.models import (
    CausalLM,
    EncoderDecoder,
    MaskedLM,
    Model,
    Seq2Seq,
    SequenceClassification,
    TaskType,
    TokenClassification,
    Transformer,
)

SMALL: dict[str, Any] = {
    "num_layers": 1,
    "num_heads": 2,
    "hidden_dim": 8,
    "feed_forward_dim": 12,
    "dropout": 0.0,
}
TOKENS = torch.randint(13, (3, 7), generator=torch.Generator().manual_seed(0))
MASK = torch.arange(7) < torch.tensor([[7], [4], [2]])


def build(task_type: TaskType, **options: Any) -> Model:
    torch.manual_seed(0)
    return Transformer(task_type, **SMALL, **options)


def test_options_are_those_of_the_config() -> None:
    model = build(CausalLM(vocabulary=13, max_length=9), position="rotary", norm="rms")
    assert isinstance(model.embedding.position, Rotary)
    other = build(CausalLM(13, 9), position=RotaryConfig(base=500.0), norm={"kind": "rms"})
    assert not torch.equal(other.embedding.position.frequencies, model.embedding.position.frequencies)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_layer": 2}, "did you mean 'num_layers'?"),
        ({"position": "rotery"}, "did you mean 'rotary'?"),
        ({"num_heads": 3}, "3 heads do not divide hidden_dim 128"),
        ({"dropout": 2.0}, "dropout"),
    ],
    ids=str,
)
def test_wrong_options_are_refused_with_a_near_match(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        Transformer(CausalLM(13, 9), **options)
    assert words in str(caught.value)


def test_a_wrong_task_type_is_refused() -> None:
    with pytest.raises(UserError, match="not a task type"):
        Transformer("causal-lm")  # type: ignore[arg-type]
    with pytest.raises(ErrorDetail, match="does not support TaskType"):
        Transformer(TaskType(13, 9))


def test_inputs_are_positional() -> None:
    model = build(CausalLM(13, 9))
    assert torch.equal(model(TOKENS), model(tokens=TOKENS))
    labeller = build(TokenClassification(vocabulary=13, max_length=9, classes=4))
    assert torch.equal(labeller(TOKENS, mask=MASK), labeller(tokens=TOKENS, mask=MASK))
    translator = build(Seq2Seq(vocabulary=13, max_length=9, target_vocabulary=13, max_target_length=9))
    assert torch.equal(translator(TOKENS, TOKENS[:, :4]), translator(tokens=TOKENS, target=TOKENS[:, :4]))


def test_the_loss_of_a_language_model_shifts_by_itself() -> None:
    model = build(CausalLM(13, 9))
    expected = F.cross_entropy(model(TOKENS[:, :-1]).flatten(0, 1), TOKENS[:, 1:].flatten())
    assert_close(model.loss(TOKENS), expected)
    assert_close(model.loss(TOKENS[:, :-1], TOKENS[:, 1:]), expected)
    padded = TOKENS[:, 1:].masked_fill(~MASK[:, 1:], -100)
    logits = model(TOKENS[:, :-1]).flatten(0, 1)
    assert_close(model.loss(TOKENS, mask=MASK), F.cross_entropy(logits, padded.flatten()))
    model.loss(TOKENS).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("task_type", [TokenClassification(13, 9, 13), MaskedLM(13, 9)])
def test_the_loss_of_token_targets_ignores_padding(task_type: TaskType) -> None:
    model = build(task_type)
    targets = (TOKENS + 1) % 13
    logits = model(TOKENS, mask=MASK)
    assert_close(model.loss(TOKENS, targets, mask=MASK), F.cross_entropy(logits[MASK], targets[MASK]))
    smoothed = F.cross_entropy(logits[MASK], targets[MASK], label_smoothing=0.1)
    assert_close(model.loss(TOKENS, targets, mask=MASK, label_smoothing=0.1), smoothed)


def test_the_loss_of_sequence_targets() -> None:
    model = build(SequenceClassification(13, 9, outputs=4))
    targets = torch.tensor([0, 3, 2])
    expected = F.cross_entropy(model(TOKENS, mask=MASK), targets)
    assert_close(model.loss(TOKENS, targets, mask=MASK), expected)
    real = build(SequenceClassification(13, 9, is_regression=True))
    values = torch.tensor([0.5, -1.0, 2.0])
    assert_close(real.loss(TOKENS, values), F.mse_loss(real(TOKENS)[:, 0], values))


def test_the_number_of_classes_is_required() -> None:
    with pytest.raises(UserError, match="outputs: the number of classes is required"):
        SequenceClassification(13, 9)
    assert SequenceClassification(13, 9, is_regression=True).outputs == 1


@pytest.mark.parametrize(
    "task_type",
    [
        SequenceClassification(13, 9, outputs=4),
        TokenClassification(13, 9, classes=4),
        CausalLM(13, 9),
        Seq2Seq(13, 9, 13, 9),
    ],
)
def test_a_mask_of_numbers_is_a_mask_of_booleans(task_type: TaskType) -> None:
    """Attention would add a mask of floats to its scores."""
    model = build(task_type)
    named = {"target": TOKENS} if isinstance(task_type, Seq2Seq) else {}
    targets = TOKENS % 4 if not isinstance(task_type, SequenceClassification) else torch.tensor([0, 3, 2])
    expected = model(TOKENS, **named, mask=MASK)
    for mask in (MASK.float(), MASK.long(), MASK.to(torch.uint8)):
        torch.testing.assert_close(model(TOKENS, **named, mask=mask), expected, rtol=0, atol=0)
        assert_close(model.loss(TOKENS, targets, mask=mask), model.loss(TOKENS, targets, mask=MASK))
    for mask in (MASK.float() - 1, MASK.float() * -1e9, torch.full_like(MASK, 3, dtype=torch.long)):
        if not isinstance(task_type, CausalLM):  # padding on the right is never seen
            with pytest.raises(UserError, match="mask: a mask has only True"):
                model(TOKENS, **named, mask=mask)
        with pytest.raises(UserError, match="mask: a mask has only True"):
            model.loss(TOKENS, targets, mask=mask)


def test_the_loss_of_an_encoder_decoder_is_teacher_forcing() -> None:
    model = build(Seq2Seq(13, 9, 13, 9))
    target = TOKENS.flip(1).clone()
    target[1, 5:] = -100  # padding
    expected = F.cross_entropy(
        model(TOKENS, target[:, :-1].clamp(min=0), mask=MASK).flatten(0, 1), target[:, 1:].flatten()
    )
    assert_close(model.loss(TOKENS, target, mask=MASK), expected)


def test_without_any_target_the_loss_is_zero() -> None:
    model = build(MaskedLM(13, 9))
    assert float(model.loss(TOKENS, torch.full_like(TOKENS, -100)).detach()) == 0


@pytest.mark.parametrize(
    ("task_type", "targets"),
    [
        (CausalLM(13, 9), TOKENS[:, :3]),
        (SequenceClassification(13, 9, outputs=2), TOKENS),
        (Seq2Seq(13, 9, 13, 9), TOKENS[:2]),
    ],
)
def test_targets_of_a_wrong_shape_are_explained(task_type: TaskType, targets: torch.Tensor) -> None:
    with pytest.raises(ErrorDetail, match="expected a tensor of shape") as caught:
        build(task_type).loss(TOKENS, targets)
    assert caught.value.path == "targets" and caught.value.value == tuple(targets.shape)


def test_the_first_line_of_repr_is_a_summary() -> None:
    model = build(Seq2Seq(13, 9, 13, 9), position="alibi")
    assert isinstance(model, EncoderDecoder)
    first, second, *_ = repr(model).splitlines()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert first.startswith("EncoderDecoder, Seq2Seq(vocabulary=13, max_length=9")
    assert f"{parameters:,} parameters, num_layers 1, num_heads 2, hidden_dim 8, position ALiBi" in first
    assert second == "EncoderDecoder("
