"""A converted model has the log-probabilities and greedy outputs of ours, or is refused by name."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glassformer.blocks.positions import PositionConfig
from glassformer.core.config import validate
from glassformer.core.errors import ErrorDetail
from glassformer.core.registry import kinds
from glassformer.data.batching import pad
from glassformer.generation import generate
from glassformer.generation.ctranslate2 import Vocabulary, limits, write_model
from glassformer.models.base import Model
from glassformer.models.task_types import (
    CausalLM,
    MaskedLM,
    Seq2Seq,
    SequenceClassification,
    TaskType,
    TokenClassification,
)
from glassformer.models.transformer import TransformerConfig

ctranslate2 = pytest.importorskip("ctranslate2")

SIZE, LONGEST = 23, 24
BEGIN, END, FORBIDDEN = 2, 3, [0, 1, 2, 4]
# Strings with every kind of odd character: white space, quotes, a null byte, no text at all, other scripts.
ODD = ["", " ", "\n", "\r", "\t", '"', "\\", "\0", "é", "▁", "字", "😀", "\u200b", "<s>", "a b"]
WORDS = [*[f"w{number}" for number in range(SIZE - len(ODD))], *ODD]
VOCABULARY = Vocabulary(WORDS, WORDS[BEGIN], WORDS[END], WORDS[1])
SEQ2SEQ = Seq2Seq(SIZE, LONGEST, SIZE, LONGEST, True)
CAUSAL = CausalLM(SIZE, LONGEST)

SWIGLU = {"norm": "rms", "feed_forward": "swiglu", "bias": False, "output_bias": False}
POSITIONS = sorted(kinds(PositionConfig))
VARIANTS: list[dict[str, Any]] = [
    SWIGLU,
    {"norm_placement": "post"},
    {"norm_placement": "post", "final_norm": True},
    {"norm": "rms", "embedding_norm": True},
    {"final_norm": False},
    {"feed_forward": "relu"},
    {"feed_forward": "silu"},
    {"feed_forward": {"kind": "gelu", "approximate": "tanh"}},
    {"input": "one-hot"},
    {"input": "one-hot", "tied_output": True},
    {"input": {"kind": "tokens", "scale": False}},
    {"tied_output": True},
    {"num_key_value_heads": 2},
    {"num_key_value_heads": 1},
    {"decoder_layers": 1},
    {"norm": {"kind": "layer", "epsilon": 0.01}},
    {"hidden_dim": 48, "num_heads": 6},
    {"position": {"kind": "rotary", "base": 500.0}},
    {"position": {"kind": "t5", "num_buckets": 8, "max_distance": 12}},
]
QUICK = [
    ({"position": "rotary", "num_key_value_heads": 2, **SWIGLU}, SEQ2SEQ),
    ({"position": "rotary", "num_key_value_heads": 2, **SWIGLU}, CAUSAL),
    ({"norm_placement": "post", "tied_output": True}, SEQ2SEQ),
    ({"position": "alibi"}, CAUSAL),
    ({"position": "relative"}, SEQ2SEQ),
]


def build(options: dict[str, Any], task_type: TaskType) -> Model:
    sizes = {"num_layers": 2, "num_heads": 4, "hidden_dim": 32, "feed_forward_dim": 48, "dropout": 0.0}
    torch.manual_seed(0)
    model = validate(TransformerConfig, {**sizes, **options}).build(task_type).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
    return model


def as_words(row: list[int]) -> list[str]:
    return [WORDS[token] for token in row]


def sequences(seed: int, least: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(5, SIZE, int(length)).tolist() for length in rng.integers(least, 14, 16)]


SUPPRESSED = {"suppress_sequences": [[WORDS[token]] for token in FORBIDDEN]}


def check_seq2seq(model: Model, folder: Path) -> None:
    translator = ctranslate2.Translator(str(folder), compute_type="float32", intra_threads=1)
    sources, targets = sequences(0, 1), sequences(1, 1)
    tokens, mask = pad([np.array(row) for row in sources])
    inputs, _ = pad([np.array([BEGIN, *row]) for row in targets])
    ours = model(tokens=tokens, target=inputs, mask=mask).log_softmax(-1)
    scored = translator.score_batch(list(map(as_words, sources)), list(map(as_words, targets)))
    for row, target, found in zip(ours, targets, scored, strict=True):
        expected = row[range(len(target) + 1), [*target, END]].tolist()
        assert found.log_probs == pytest.approx(expected, abs=1e-4)
    generated = generate(
        model, {"tokens": tokens, "mask": mask}, begin=BEGIN, end=END, forbidden=FORBIDDEN, max_length=LONGEST
    )
    translated = translator.translate_batch(
        list(map(as_words, sources)),
        beam_size=1,
        max_decoding_length=LONGEST,
        min_decoding_length=0,
        **SUPPRESSED,
    )
    assert [as_words(best.tokens) for best, *_ in generated] == [each.hypotheses[0] for each in translated]


def check_language_model(model: Model, folder: Path) -> None:
    generator = ctranslate2.Generator(str(folder), compute_type="float32", intra_threads=1)
    prompts = sequences(0, 4)
    tokens, mask = pad([np.array(row) for row in prompts])
    ours = model(tokens=tokens, mask=mask).log_softmax(-1).detach().numpy()
    found = np.array(generator.forward_batch(list(map(as_words, prompts)), return_log_probs=True))
    for row, other, prompt in zip(ours, found, prompts, strict=True):
        np.testing.assert_allclose(other[: len(prompt)], row[: len(prompt)], atol=1e-4)
    generated = generate(model, prompt=tokens, mask=mask, end=END, forbidden=FORBIDDEN, max_length=10)
    continued = generator.generate_batch(
        list(map(as_words, prompts)), max_length=10, include_prompt_in_result=False, **SUPPRESSED
    )
    assert [as_words(best.tokens) for best, *_ in generated] == [each.sequences[0] for each in continued]


def check(options: dict[str, Any], task_type: TaskType, folder: Path) -> None:
    model = build(options, task_type)
    if limits(model.config, task_type):
        with pytest.raises(ErrorDetail, match=r"model\.position\.kind"):
            write_model(model, folder, VOCABULARY)
        assert not list(folder.iterdir())
        return
    write_model(model, folder, VOCABULARY)
    (check_seq2seq if isinstance(task_type, Seq2Seq) else check_language_model)(model, folder)


@pytest.mark.parametrize(("options", "task_type"), QUICK, ids=str)
def test_the_converted_model_is_the_same(
    options: dict[str, Any], task_type: TaskType, tmp_path: Path
) -> None:
    assert not limits(build(options, task_type).config, task_type)
    check(options, task_type, tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("task_type", [SEQ2SEQ, CAUSAL], ids=["seq2seq", "causal"])
@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_every_variant_is_the_same_with_every_position(
    options: dict[str, Any], task_type: TaskType, tmp_path: Path
) -> None:
    for number, position in enumerate([options["position"]] if "position" in options else POSITIONS):
        folder = tmp_path / str(number)
        folder.mkdir()
        check({"position": position, **options}, task_type, folder)


@pytest.mark.thorough
@pytest.mark.parametrize(("placement", "norm"), list(product(["pre", "post"], ["layer", "rms"])))
def test_two_vocabularies_and_lengths(placement: str, norm: str, tmp_path: Path) -> None:
    model = build({"norm_placement": placement, "norm": norm}, Seq2Seq(SIZE, 9, SIZE - 2, 30, False))
    target = Vocabulary(WORDS[: SIZE - 2], WORDS[BEGIN], WORDS[END], WORDS[1])
    write_model(model, tmp_path, VOCABULARY, target)
    translator = ctranslate2.Translator(str(tmp_path), compute_type="float32", intra_threads=1)
    source = [5, 6, 7, 22, 9]
    generated = generate(
        model, {"tokens": torch.tensor([source]), "mask": None}, begin=BEGIN, end=END, forbidden=FORBIDDEN
    )
    (found,) = translator.translate_batch(
        [as_words(source)], beam_size=1, max_decoding_length=30, min_decoding_length=0, **SUPPRESSED
    )
    assert as_words(generated[0][0].tokens) == found.hypotheses[0]


REFUSED = [
    ({}, MaskedLM(SIZE, LONGEST), "task.kind"),
    ({}, TokenClassification(SIZE, LONGEST, 3), "task.kind"),
    ({}, SequenceClassification(SIZE, LONGEST, 3), "task.kind"),
    ({"norm": "none"}, CAUSAL, "model.norm.kind"),
    ({"output": "mlp"}, CAUSAL, "model.output.kind"),
    ({"output": "transform"}, SEQ2SEQ, "model.output.kind"),
    ({"position": "alibi"}, SEQ2SEQ, "model.position.kind"),
    ({"position": "t5"}, CAUSAL, "model.position.kind"),
]


@pytest.mark.parametrize(("options", "task_type", "path"), REFUSED, ids=str)
def test_what_it_does_not_have_is_named(options: dict[str, Any], task_type: TaskType, path: str) -> None:
    (found,) = limits(validate(TransformerConfig, options), task_type)
    assert found.path == path and "CTranslate2" in found.message and found.hint


def test_rounding_of_t5_buckets_is_compared() -> None:
    """Single precision puts 8 × 2^(1/2 × …) elsewhere for some sizes; those are refused, not approximated."""
    refused = [
        (buckets, distance)
        for buckets, distance in product(range(8, 132, 4), range(9, 400, 7))
        if distance > buckets // 2
        and limits(
            validate(
                TransformerConfig,
                {"position": {"kind": "t5", "num_buckets": buckets, "max_distance": distance}},
            ),
            Seq2Seq(SIZE, 500, SIZE, 500, True),
        )
    ]
    assert len(refused) < 20


def test_int8_is_close(tmp_path: Path) -> None:
    model = build({"position": "rotary"}, CAUSAL)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    write_model(model, tmp_path, VOCABULARY, quantization="int8")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    generator = ctranslate2.Generator(str(tmp_path), intra_threads=1)
    assert generator.compute_type == "int8_float32"
    prompts = sequences(0, 4)
    tokens, mask = pad([np.array(row) for row in prompts])
    ours = model(tokens=tokens, mask=mask).log_softmax(-1).detach().numpy()
    found = np.array(generator.forward_batch(list(map(as_words, prompts)), return_log_probs=True))
    largest = max(abs(found[i, : len(p)] - ours[i, : len(p)]).max() for i, p in enumerate(prompts))
    assert 1e-4 < largest < 0.5


def test_repeated_words_are_refused(tmp_path: Path) -> None:
    model = build({}, CAUSAL)
    with pytest.raises(ValueError, match="not distinct"):
        write_model(model, tmp_path, Vocabulary(["a"] * SIZE, "a", "a", "a"))
