"""Products in int8: a row's output never depends on its neighbours, and is near the one in float32."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from glassformer.core.errors import UserError
from glassformer.evaluation.evaluate import EvaluationConfig
from glassformer.generation import BeamConfig, GreedyConfig, generate, int8
from glassformer.generation.int8 import FULL, REDUCED, QuantisedLinear, quantise, quantised_product
from glassformer.generation.predict import decoding_mode, predict_by_decoding
from glassformer.models.task_types import (
    CausalLM,
    MaskedLM,
    Seq2Seq,
    SequenceClassification,
    TaskType,
    TokenClassification,
)
from glassformer.models.transformer import TransformerConfig

VOCABULARY, BEGIN, END = 180, 0, 1
TASK_TYPES: list[TaskType] = [
    CausalLM(VOCABULARY, 20),
    Seq2Seq(VOCABULARY, 20, VOCABULARY, 20),
    MaskedLM(VOCABULARY, 20),
    TokenClassification(VOCABULARY, 20, VOCABULARY),
    SequenceClassification(VOCABULARY, 20, VOCABULARY),
]


def build(task_type: TaskType, **options: Any) -> Any:
    torch.manual_seed(0)
    config = TransformerConfig(num_layers=2, num_heads=2, hidden_dim=192, feed_forward_dim=192, **options)
    model = config.build(task_type).eval()
    for parameter in model.parameters():
        parameter.data.mul_(2)  # so that outputs vary
    return model


def rows_of(count: int, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.integers(2, VOCABULARY, random.integers(1, 18)) for _ in range(count)]


@given(
    rows=st.integers(1, 20),
    inputs=st.integers(1, 300),
    outputs=st.integers(1, 70),
    has_bias=st.booleans(),
    seed=st.integers(0, 9),
)
def test_an_output_row_does_not_depend_on_the_other_rows(
    rows: int, inputs: int, outputs: int, has_bias: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    x_NI = torch.randn(rows, inputs) * 10.0 ** torch.randint(-3, 4, (rows, 1))
    bias_O = torch.randn(outputs) if has_bias else None
    product = quantised_product(torch.randn(outputs, inputs), bias_O, int8.activation_limit())
    together = product(x_NI)
    for row in range(rows):
        assert torch.equal(product(x_NI[row : row + 1])[0], together[row])
    padded = torch.cat([torch.full((3, inputs), 1e6), x_NI, torch.zeros(2, inputs)])
    assert torch.equal(product(padded)[3:-2], together)


@pytest.mark.parametrize("limit", [FULL, REDUCED])
def test_the_error_is_at_most_that_of_rounding_both_factors(limit: int) -> None:
    torch.manual_seed(0)
    x_NI, weight_OI, bias_O = torch.randn(40, 200), torch.randn(60, 200), torch.randn(60)
    found_NO = quantised_product(weight_OI, bias_O, limit)(x_NI)
    step_N1, step_O = x_NI.abs().amax(1, keepdim=True) / limit, weight_OI.abs().amax(1) / int8.MAX_WEIGHT
    bound_NO = (step_N1 / 2) * weight_OI.abs().sum(1) + (
        (x_NI.abs() + step_N1 / 2).sum(1, keepdim=True) * step_O / 2
    )
    error_NO = (found_NO - F.linear(x_NI, weight_OI, bias_O)).abs()
    assert (error_NO <= bound_NO + 1e-4).all()
    assert error_NO.mean() < 0.02 * float(found_NO.std()) * FULL / limit


def test_sums_of_extreme_values_are_exact_on_this_processor() -> None:
    ones = torch.ones(1, 4096)
    product = quantised_product(torch.cat([ones, -ones]), None, int8.activation_limit())
    assert product(torch.cat([ones, -ones])).tolist() == [[4096, -4096], [-4096, 4096]]


def test_zeros_empty_batches_and_broken_rows() -> None:
    product = quantised_product(torch.randn(5, 8), None, FULL)
    assert not product(torch.zeros(2, 3, 8)).any()
    assert product(torch.zeros(0, 8)).shape == (0, 5)
    x_NI = torch.randn(3, 8)
    expected = product(x_NI)
    x_NI[1, 2] = torch.nan
    found = product(x_NI)
    assert found[1].isnan().all() and torch.equal(found[[0, 2]], expected[[0, 2]])


@pytest.mark.parametrize("task_type", TASK_TYPES, ids=lambda task_type: type(task_type).__name__)
@pytest.mark.parametrize("is_tied", [False, True])
def test_every_task_type_multiplies_in_int8_near_float32(task_type: TaskType, is_tied: bool) -> None:
    if is_tied and not isinstance(task_type, (CausalLM, MaskedLM, Seq2Seq)):
        is_tied = False
    model = build(task_type, tied_output=is_tied)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    twin = quantise(model)
    assert sum(isinstance(module, QuantisedLinear) for module in twin.modules()) >= 8
    assert not any(isinstance(module, QuantisedLinear) for module in model.modules())
    shared = {id(parameter) for parameter in model.parameters()}
    assert {id(parameter) for parameter in twin.parameters()} == shared
    tokens = torch.randint(2, VOCABULARY, (4, 9))
    inputs = {"tokens": tokens} | ({"target": tokens} if isinstance(task_type, Seq2Seq) else {})
    with torch.inference_mode():
        exact, found = model(**inputs), twin(**inputs)
        with decoding_mode(twin):
            assert torch.allclose(twin(**inputs), found, atol=0.2 * float(exact.std()))
    error = (found - exact).std() / exact.std()
    assert 0 < error < 0.2
    assert torch.equal(model(**inputs), exact)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_the_loss_uses_the_products_in_int8() -> None:
    model = build(TASK_TYPES[0])
    twin = quantise(model)
    tokens, targets = torch.randint(2, VOCABULARY, (2, 4, 9))
    with torch.inference_mode():
        hidden = twin.hidden(tokens)
        losses, _ = twin.head.loss_per_target(hidden, targets, None)
        expected = F.cross_entropy(twin(tokens).transpose(1, 2), targets, reduction="none")
        assert torch.allclose(losses, expected, atol=1e-4)
        exact, _ = model.head.loss_per_target(model.hidden(tokens), targets, None)
    assert not torch.allclose(losses, exact, atol=1e-4)


@pytest.mark.parametrize("strategy", [GreedyConfig(), BeamConfig(size=3, n_best=3)], ids=["greedy", "beam"])
@pytest.mark.parametrize("is_scored", [True, False])
def test_a_sequence_is_decoded_alike_alone_in_a_batch_and_with_padding(
    strategy: Any, is_scored: bool
) -> None:
    twin = quantise(build(TASK_TYPES[1]))
    rows = rows_of(12)

    def decode(some: list[np.ndarray]) -> list[list[list[int]]]:
        found = predict_by_decoding(
            twin, some, begin=BEGIN, end=END, decoding=strategy, forbidden=[5], is_scored=is_scored
        )
        return [[prediction.tokens for prediction in predictions] for predictions in found]

    together = decode(rows)
    assert len({str(tokens) for tokens in together}) > 6
    assert [decode([row])[0] for row in rows] == together
    with decoding_mode(twin):
        assert decode(rows[::-1])[::-1] == together


def test_a_language_model_continues_alike_alone_and_in_a_batch() -> None:
    twin = quantise(build(TASK_TYPES[0]))
    prompts = torch.randint(2, VOCABULARY, (6, 5))

    def decode(some: torch.Tensor) -> list[list[int]]:
        return [best.tokens for best, *_ in generate(twin, prompt=some, end=END, max_length=9)]

    together = decode(prompts)
    assert [decode(prompts[row : row + 1])[0] for row in range(6)] == together


def test_small_matrices_and_other_number_types_stay_as_they_are() -> None:
    config = TransformerConfig(num_layers=1, num_heads=2, hidden_dim=16, feed_forward_dim=24)
    for model in (config.build(TASK_TYPES[0]), build(TASK_TYPES[0]).double()):
        twin = quantise(model)
        assert not any(isinstance(module, QuantisedLinear) for module in twin.modules())
        assert twin.head.linear is F.linear


def test_weights_on_another_device_are_refused() -> None:
    with pytest.raises(UserError, match=r"evaluation\.weights: int8 runs on a CPU only"):
        quantise(build(TASK_TYPES[0]).to("meta"))


def test_another_engine_with_int8_is_refused() -> None:
    with pytest.raises(ValueError, match="another engine decodes with its own copy"):
        EvaluationConfig(engine={"kind": "ctranslate2"}, weights="int8")  # type: ignore[arg-type]


@pytest.fixture
def _no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GLASSFORMER_CACHE", str(tmp_path / "cache"))
    int8.activation_limit.cache_clear()
    yield
    int8.activation_limit.cache_clear()


@pytest.mark.usefixtures("_no_cache")
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "the test was stopped by signal 4"),
        ("raise SystemExit('Could not run quantized::linear_prepack')", "Could not run quantized"),
    ],
)
def test_a_processor_without_the_kernels_is_an_error(
    script: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(int8, "_PROBE", script)
    with pytest.raises(UserError, match=words) as error:
        quantise(build(TASK_TYPES[0]))
    detail = error.value.details[0]
    assert (detail.path, detail.value) == ("evaluation.weights", "int8")
    assert detail.hint == "evaluation.weights=fp32"


@pytest.mark.usefixtures("_no_cache")
def test_a_processor_that_overflows_gets_smaller_activations_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setattr(int8, "_PROBE", f"open({str(log)!r}, 'a').write('x')\nprint(63)")
    for _ in range(2):
        assert int8.activation_limit() == REDUCED
        int8.activation_limit.cache_clear()  # as in a new process
    assert log.read_text() == "x"


@pytest.mark.usefixtures("_no_cache")
def test_the_probe_finds_a_limit_on_this_processor() -> None:
    assert int8._probe()["limit"] in (FULL, REDUCED)


def test_a_quantised_layer_is_a_linear_layer() -> None:
    layer = nn.Linear(200, 100)
    x = torch.randn(2, 3, 200)
    assert torch.allclose(QuantisedLinear(layer, FULL)(x), layer(x), atol=0.05)
