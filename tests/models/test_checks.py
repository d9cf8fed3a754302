"""Tensors that are passed to a model: what cannot be right is refused with a clear error."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import glassformer as gf

SIZE: dict[str, Any] = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16}
TOKENS = torch.arange(32).reshape(4, 8) % 20
CLASSES = torch.tensor([0, 1, 2, 0])
LEFT = torch.tensor([[False, False, *[True] * 6]] * 4)


def classifier(**options: Any) -> Any:
    task_type = gf.SequenceClassification(vocabulary=20, max_length=8, outputs=3)
    return gf.Transformer(task_type, **(SIZE | options)).eval()


def language_model() -> Any:
    return gf.Transformer(gf.CausalLM(vocabulary=20, max_length=8), **SIZE).eval()


def translator() -> Any:
    task_type = gf.Seq2Seq(vocabulary=20, max_length=8, target_vocabulary=10, max_target_length=4)
    return gf.Transformer(task_type, **SIZE).eval()


def with_value(value: int) -> Tensor:
    tokens = TOKENS.clone()
    tokens[2, 3] = value
    return tokens


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: classifier()([[1, 2]]), "tokens: expected a tensor, not a value of type list"),
        (lambda: classifier()(TOKENS[0]), "tokens: expected a tensor of shape (any, any)"),
        (lambda: classifier()(TOKENS.float()), "tokens: token ids are integers"),
        (lambda: classifier()(TOKENS[:, :0]), "tokens: the sequences have no tokens"),
        (lambda: classifier()(with_value(20)), "tokens: ids must be from 0 to 19"),
        (lambda: classifier()(with_value(-1)), "tokens: ids must be from 0 to 19"),
        (
            lambda: classifier()(TOKENS.repeat(1, 3)),
            "tokens: the sequences have 24 tokens, and the model reads",
        ),
        (lambda: classifier()(TOKENS, mask=LEFT[:, :5]), "mask: expected a tensor of shape (4, 8)"),
        (lambda: classifier()(TOKENS, mask=[1]), "mask: expected a tensor"),
        (lambda: classifier().loss(TOKENS, CLASSES, mask=LEFT & False), "mask: row 0 has no real token"),
        (
            lambda: classifier(pooling="last")(TOKENS, mask=LEFT),
            "mask: row 0 has padding before a real token",
        ),
        (lambda: classifier()(TOKENS, mask=LEFT), "mask: row 0 has padding before a real token"),
        (
            lambda: classifier(position="learned").loss(TOKENS, CLASSES, mask=LEFT.roll(4, 1)),
            "mask: row 0 has padding before a real token",
        ),
        (lambda: translator()(TOKENS, TOKENS[:, :4] % 5, mask=LEFT), "mask: row 0 has padding before"),
        (lambda: language_model()(TOKENS, mask=LEFT), "mask: row 0 has padding before a real token"),
        (lambda: language_model().loss(TOKENS, mask=LEFT), "mask: row 0 has padding before a real token"),
        (lambda: language_model().loss(TOKENS[:, :1]), "tokens: a sequence needs two tokens"),
        (lambda: language_model().loss(with_value(20)), "tokens: ids must be from 0 to 19"),
        (lambda: classifier().loss(TOKENS, CLASSES + 1), "targets: ids must be from 0 to 2, or -100"),
        (lambda: classifier().loss(TOKENS, CLASSES.float()), "targets: classes and token ids are integers"),
        (lambda: classifier().loss(TOKENS, [0, 1, 2, 0]), "targets: expected a tensor"),
        (lambda: classifier().loss(TOKENS, TOKENS), "targets: expected a tensor of shape (4)"),
        (lambda: translator()(TOKENS, TOKENS[:, :4] % 10 + 5), "target: ids must be from 0 to 9"),
        (
            lambda: translator()(TOKENS, TOKENS % 10),
            "target: the sequences have 8 tokens, and the model reads",
        ),
        (lambda: translator()(TOKENS, TOKENS[:2, :4] % 10), "target: expected a tensor of shape (4, any)"),
        (lambda: translator()(TOKENS), "target: expected a tensor"),
        (lambda: translator().loss(TOKENS, TOKENS[:, :4]), "targets: ids must be from 0 to 9"),
        (lambda: gf.CausalLM(vocabulary=0, max_length=8), "vocabulary: must be a whole number from 1"),
        (lambda: gf.TokenClassification(vocabulary=9, max_length=8, classes=0), "classes: must be a whole"),
    ],
)
def test_wrong_tensors_are_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(gf.UserError) as error:
        call()
    assert str(error.value).startswith(message)


def test_what_is_right_passes() -> None:
    mean, right = classifier(), LEFT.flip(1)
    by_distance = classifier(position="rotary")  # its outputs do not depend on the side of the padding
    left, flush = by_distance(TOKENS, mask=LEFT), by_distance(TOKENS.roll(-2, 1), mask=LEFT.flip(1))
    torch.testing.assert_close(left, flush)
    mean(TOKENS.int(), mask=right.long())
    mean(TOKENS, mask=right & False)  # outputs without meaning, but finite
    mean.loss(TOKENS, torch.tensor([0, -100, 2, 1]))
    language_model()(TOKENS, mask=right)
    one_token = torch.zeros(4, 9, dtype=torch.bool)
    one_token[:, 0] = one_token[1:] = True
    language_model().loss(torch.cat([TOKENS, TOKENS[:, :1]], 1), mask=one_token)
    translator().loss(TOKENS, torch.tensor([[1, 2, 3, 4, -100]] * 4), mask=right)
    regression = gf.SequenceClassification(vocabulary=20, max_length=8, is_regression=True)
    gf.Transformer(regression, **SIZE).loss(TOKENS, torch.tensor([0.5, 10.0, -3.0, 1e6]))


def test_targets_that_are_not_shifted_are_a_warning() -> None:
    model = language_model()
    with pytest.warns(UserWarning, match="the targets equal the tokens"):
        model.loss(TOKENS, TOKENS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.loss(TOKENS[:, :-1], TOKENS[:, 1:])


def test_a_tensor_as_the_mask_of_a_block_names_the_mask_class() -> None:
    x = torch.randn(2, 10, 64)
    mask = torch.ones(2, 10, dtype=torch.bool)
    for block in (gf.nn.SelfAttention(64, num_heads=4), gf.nn.EncoderBlock(64, num_heads=4)):
        with pytest.raises(gf.UserError, match=r"expected a gf\.nn\.Mask"):
            block(x, mask=mask)
        block(x, mask=gf.nn.Mask.of(attention_mask=mask))


def test_a_compiled_graph_has_no_checks() -> None:
    exported = torch.export.export(
        classifier(position="none"), (TOKENS,), dynamic_shapes=(({0: torch.export.Dim("batch")},),)
    )
    assert exported.module()(TOKENS[:2]).shape == (2, 3)
