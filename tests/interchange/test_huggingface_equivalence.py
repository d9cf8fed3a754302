"""Compare converted models with the originals, built from a config with random weights; fp32, 1e-5."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    MarianConfig,
    MarianMTModel,
)

from glassformer.core.errors import ErrorDetail
from glassformer.interchange.huggingface import from_huggingface
from glassformer.models.task_types import CausalLM, MaskedLM, Seq2Seq

VOCABULARY, LENGTH, WIDTH, PADDING = 23, 9, 16, 0
equal = partial(assert_close, atol=1e-5, rtol=1e-5)

REAL = torch.arange(LENGTH) < torch.tensor([[9], [5], [1]])


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(11)


def gpt2(**options: Any) -> GPT2LMHeadModel:
    config = {"vocab_size": VOCABULARY, "n_positions": 12, "n_embd": WIDTH, "n_layer": 2, "n_head": 4}
    return shaken(GPT2LMHeadModel(GPT2Config(**config, bos_token_id=1, eos_token_id=1, **options)))


def bert(**options: Any) -> BertForMaskedLM:
    config = {"vocab_size": VOCABULARY, "max_position_embeddings": 12, "hidden_size": WIDTH}
    config |= {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
    return shaken(BertForMaskedLM(BertConfig(**config, **options)))


def marian(**options: Any) -> MarianMTModel:
    config: dict[str, Any] = {"vocab_size": VOCABULARY, "max_position_embeddings": 12, "d_model": WIDTH}
    config |= {"encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
    config |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    config |= {"pad_token_id": PADDING, "eos_token_id": 1, "decoder_start_token_id": PADDING}
    return shaken(MarianMTModel(MarianConfig(**{**config, **options})))


def shaken(model: nn.Module) -> Any:
    """Evaluation mode, with biases and norms (and Marian's buffer of biases) moved away from 0 and 1."""
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.is_floating_point():
                tensor.add_(0.1 * torch.randn_like(tensor))
    return model.eval()


def tokens(vocabulary: int = VOCABULARY) -> Tensor:
    return torch.randint(2, vocabulary, (len(REAL), LENGTH)).masked_fill(~REAL, PADDING)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"activation_function": "relu", "n_inner": 40},
        {"tie_word_embeddings": False},
        {"layer_norm_epsilon": 0.1},
    ],
    ids=str,
)
def test_gpt2(options: dict[str, Any]) -> None:
    theirs = gpt2(**options)
    ours = from_huggingface(theirs)
    assert ours.task_type == CausalLM(VOCABULARY, 12)
    read = tokens()
    logits = ours(tokens=read, mask=REAL)
    equal(logits[REAL], theirs(input_ids=read, attention_mask=REAL.long()).logits[REAL])
    equal(ours(tokens=read), theirs(input_ids=read).logits)


@pytest.mark.parametrize("options", [{}, {"tie_word_embeddings": False}, {"layer_norm_eps": 0.1}], ids=str)
def test_bert(options: dict[str, Any]) -> None:
    theirs = bert(**options)
    ours = from_huggingface(theirs)
    assert ours.task_type == MaskedLM(VOCABULARY, 12)
    read = tokens()
    equal(ours(tokens=read, mask=REAL), theirs(input_ids=read, attention_mask=REAL.long()).logits)
    equal(ours(tokens=read), theirs(input_ids=read).logits)


@pytest.mark.parametrize(
    ("options", "is_shared"),
    [
        ({"scale_embedding": True, "activation_function": "swish"}, True),
        ({"activation_function": "relu"}, True),
        ({"activation_function": "gelu", "tie_word_embeddings": False}, False),
        ({"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 19}, False),
    ],
    ids=str,
)
def test_marian(options: dict[str, Any], is_shared: bool) -> None:
    theirs = marian(**options)
    ours = from_huggingface(theirs)
    target_vocabulary = options.get("decoder_vocab_size", VOCABULARY)
    assert ours.task_type == Seq2Seq(VOCABULARY, 12, target_vocabulary, 12, is_shared)
    read, target = tokens(), tokens(target_vocabulary)[:, :7]
    for attention_mask in (None, REAL):
        mask = None if attention_mask is None else attention_mask.long()
        expected = theirs(input_ids=read, attention_mask=mask, decoder_input_ids=target).logits
        equal(ours(tokens=read, mask=attention_mask, target=target), expected)


@pytest.mark.parametrize("build", [gpt2, bert, marian])
def test_rounding_is_all_that_differs(build: Any) -> None:
    """The same comparison holds to 1e-12 in fp64."""
    theirs = build().double()
    ours = from_huggingface(theirs)
    read = tokens()
    inputs, arguments = (
        {"tokens": read, "mask": REAL},
        {"input_ids": read, "attention_mask": REAL.long()},
    )
    if isinstance(ours.task_type, Seq2Seq):
        inputs["target"] = arguments["decoder_input_ids"] = read.flip(1)
    logits, expected = ours(**inputs), theirs(**arguments).logits
    assert_close(logits[REAL], expected[REAL], atol=1e-12, rtol=1e-12)


def test_the_weights_are_copies_and_the_mode_is_kept() -> None:
    theirs = gpt2()
    ours = from_huggingface(theirs)
    assert not ours.training
    theirs.train()
    assert from_huggingface(theirs).training
    read = tokens()
    before = ours(tokens=read)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.zero_()
    assert torch.equal(ours(tokens=read), before)


@pytest.mark.parametrize(
    ("model", "path"),
    [
        (lambda: nn.Linear(2, 2), "architecture"),
        (lambda: gpt2(activation_function="quick_gelu"), "config.activation_function"),
        (lambda: gpt2(scale_attn_by_inverse_layer_idx=True), "config.scale_attn_by_inverse_layer_idx"),
        (lambda: gpt2(scale_attn_weights=False), "config.scale_attn_weights"),
        (lambda: gpt2(add_cross_attention=True), "config.add_cross_attention"),
        (lambda: bert(hidden_act="relu"), "config.hidden_act"),
        (lambda: bert(is_decoder=True), "config.is_decoder"),
        (lambda: marian(decoder_ffn_dim=32), "config.decoder_ffn_dim"),
        (lambda: marian(decoder_attention_heads=2), "config.decoder_attention_heads"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_what_ours_cannot_do_is_refused(model: Any, path: str) -> None:
    with pytest.raises(ErrorDetail) as caught:
        from_huggingface(model())
    assert caught.value.path == path
    assert caught.value.allowed and len(caught.value.lines()) <= 5


def test_added_and_missing_weights_are_refused() -> None:
    added = gpt2()
    added.transformer.h[0].adapter = nn.Linear(WIDTH, WIDTH)
    with pytest.raises(ErrorDetail, match="no counterpart in our model") as caught:
        from_huggingface(added)
    assert caught.value.path == "transformer.h.0.adapter.weight"
    missing = gpt2()
    del missing.transformer.h[1].ln_2
    with pytest.raises(ErrorDetail, match="does not have this weight"):
        from_huggingface(missing)


def test_the_product_does_not_import_transformers() -> None:
    code = "import sys, glassformer.interchange.huggingface; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
