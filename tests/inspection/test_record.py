"""Captured weights equal the reference, and logits equal those of the fused kernel and cached decoding."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from glassformer.blocks import reference
from glassformer.blocks.attention import MultiHeadAttention, PositionContext, SelfAttention, fused_kernel
from glassformer.blocks.masks import Mask
from glassformer.blocks.positions import ALiBiConfig, NoPositionConfig
from glassformer.core.errors import ErrorDetail, UserError
from glassformer.generation import BeamConfig, generate
from glassformer.inspection import maps as maps_module
from glassformer.inspection import record as record_module
from glassformer.inspection.examples import prepare_input, prepare_prediction
from glassformer.inspection.maps import EVERYTHING, AttentionMaps, Selection
from glassformer.inspection.record import AttentionRecorder, attention_maps, capture
from glassformer.inspection.statistics import head_statistics
from glassformer.runs.experiment import Experiment

from .conftest import experiment


def first_tokens(of: Experiment) -> np.ndarray:
    return np.asarray(of.task.splits["test"].inputs[0]).astype(np.int64)


def maps_of(of: Experiment, selection: Selection = EVERYTHING) -> AttentionMaps:
    model = of.build_model()
    return attention_maps(model, prepare_input(model, of.task, first_tokens(of)), selection)


def random_heads(queries: int, keys: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(1, 2, queries, 4), torch.randn(1, 2, keys, 4), torch.randn(1, 2, keys, 4)


@pytest.mark.parametrize("block_cells", [1, 100, 1 << 22])
def test_weights_and_output_equal_the_reference_for_made_up_heads(
    block_cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_module, "BLOCK_CELLS", block_cells)
    q, k, v = random_heads(5, 7)
    allowed = torch.rand(1, 1, 5, 7) > 0.4
    allowed[0, 0, 2] = False  # a query without keys
    bias = torch.randn(1, 2, 5, 7)
    recorder = AttentionRecorder(EVERYTHING)
    output = recorder.kernel("encoder")(q, k, v, Mask(allowed=allowed), bias, 0.5)
    expected = reference.weights(q @ k.transpose(-2, -1) / math.sqrt(4) + bias, allowed)
    (record,) = recorder.records["encoder"]
    torch.testing.assert_close(record.weights_BHLM, expected)
    torch.testing.assert_close(output, expected @ v)
    assert (record.weights_BHLM[0, :, 2] == 0).all()
    assert recorder.row_error < 1e-6


def test_a_row_that_does_not_sum_to_1_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "weights", lambda scores, mask: scores.softmax(-1) * 0.9)
    q, k, v = random_heads(3, 3)
    recorder = AttentionRecorder(EVERYTHING)
    recorder.kernel("encoder")(q, k, v, Mask(), None, 0.0)
    assert recorder.row_error == pytest.approx(0.1, abs=1e-6)


def test_a_weight_that_is_not_a_number_is_detected() -> None:
    q, k, v = random_heads(3, 3)
    recorder = AttentionRecorder(EVERYTHING)
    recorder.kernel("encoder")(q * torch.nan, k, v, Mask(), None, 0.0)
    recorder.kernel("encoder")(q, k, v, Mask(), None, 0.0)
    assert math.isnan(recorder.row_error)


def test_every_attention_is_recorded_and_the_checks_pass(arithmetic: Experiment) -> None:
    maps = maps_of(arithmetic)
    assert list(maps.sites) == ["encoder", "decoder", "cross"]
    source, target = len(first_tokens(arithmetic)), len(maps["decoder"].queries)
    assert maps["encoder"].weights.shape == (2, 2, source, source)
    assert maps["decoder"].weights.shape == (3, 2, target, target)
    assert maps["cross"].weights.shape == (3, 2, target, source)
    for site in maps.sites.values():
        assert site.weights.dtype == np.float32
        np.testing.assert_allclose(site.weights.sum(-1), 1, atol=1e-6)
    assert maps.checks.passed and maps.checks.logit_error < 1e-5
    assert maps["encoder"].allowed is None
    decoder = maps["decoder"]
    assert decoder.allowed is not None
    np.testing.assert_array_equal(decoder.allowed, np.tril(np.ones((1, 1, target, target), dtype=bool)))
    assert (decoder.weights[..., ~decoder.allowed[0, 0]] == 0).all()


def test_the_text_of_maps_is_short(reversal: Experiment) -> None:
    maps = maps_of(reversal)
    assert repr(maps).startswith("AttentionMaps(encoder: ") and len(repr(maps)) < 200


def test_a_kernel_with_other_outputs_fails_the_check(reversal: Experiment) -> None:
    model = reversal.build_model()
    model_input = prepare_input(model, reversal.task, first_tokens(reversal))
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            module.kernel = lambda q, k, v, mask, bias, dropout: fused_kernel(
                3 * q, k, v, mask, bias, dropout
            )
    checks = attention_maps(model, model_input).checks
    assert checks.rows_agree and not checks.logits_agree and not checks.passed
    assert any(line.startswith("✗ logits differ") for _, line in checks.lines())


def test_the_model_is_restored_even_after_an_error(reversal: Experiment) -> None:
    model = reversal.build_model()
    model.train()
    model.head.eval()  # a submodule in another mode than the model
    modes = [module.training for module in model.modules()]
    kernels = [module.kernel for module in model.modules() if isinstance(module, MultiHeadAttention)]

    def stop() -> None:
        with capture(model):
            assert not any(module.training for module in model.modules())
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        stop()
    assert [module.training for module in model.modules()] == modes
    assert [m.kernel for m in model.modules() if isinstance(m, MultiHeadAttention)] == kernels
    assert kernels == [fused_kernel] * 2


def test_dropout_has_no_effect(reversal: Experiment) -> None:
    model = reversal.build_model()
    model.train()
    tokens = first_tokens(reversal)
    one, other = (attention_maps(model, prepare_input(model, reversal.task, tokens)) for _ in range(2))
    np.testing.assert_array_equal(one["encoder"].weights, other["encoder"].weights)
    assert one["encoder"].outputs == other["encoder"].outputs


def test_one_pass_attends_as_the_cached_decoding_does(arithmetic: Experiment) -> None:
    model, task = arithmetic.build_model(), arithmetic.task
    tokens = first_tokens(arithmetic)
    maps = attention_maps(model, prepare_input(model, task, tokens))
    with capture(model) as recorder:
        generate(
            model,
            {"tokens": torch.from_numpy(tokens)[None]},
            begin=task.begin,
            end=task.end,
            forbidden=[task.begin],
        )
    for site in ("decoder", "cross"):
        records, layers = recorder.records[site], len(maps[site].layers)
        steps = len(maps[site].queries)
        assert len(records) == layers * steps
        for number, record in enumerate(records):
            step, layer = divmod(number, layers)
            row = maps[site].weights[layer, :, step]
            seen = record.weights_BHLM[0, :, 0].numpy()
            np.testing.assert_allclose(row[:, : seen.shape[1]], seen, atol=1e-5)
            assert (row[:, seen.shape[1] :] == 0).all()
    assert len(recorder.records["encoder"]) == 2


def test_labels_of_a_generated_output(arithmetic: Experiment) -> None:
    """Rows are labelled by the generated token, columns by the token that is read."""
    model, task = arithmetic.build_model(), arithmetic.task
    tokens = first_tokens(arithmetic)
    model_input = prepare_input(model, task, tokens)
    assert model_input.prediction is not None
    written = task.output_symbols(model_input.prediction.tokens)
    cross, decoder = model_input.labels["cross"], model_input.labels["decoder"]
    assert decoder.keys[0] == "BOS"
    assert decoder.queries[:-1] == decoder.keys[1:]
    assert (decoder.queries if decoder.queries[-1] != "EOS" else decoder.queries[:-1]) == written
    assert cross.keys == task.input_symbols(tokens.tolist())


def test_a_prediction_that_was_not_chosen_has_maps(arithmetic: Experiment) -> None:
    model, task = arithmetic.build_model(), arithmetic.task
    tokens = first_tokens(arithmetic)
    (answers,) = task.predict(model, [tokens], BeamConfig(size=3, n_best=3))
    readings = [prepare_prediction(model, task, tokens, answer) for answer in answers]
    assert len({tuple(model_input.labels["decoder"].queries) for model_input in readings}) == 3
    for model_input in readings:
        assert attention_maps(model, model_input).checks.passed


@pytest.mark.parametrize(
    "task", [{"kind": "palindrome", "length": 6}, {"kind": "random-tokens", "target": "next"}]
)
def test_classifiers_and_language_models_have_maps_too(task: dict[str, object]) -> None:
    maps = maps_of(experiment({**task, "train_examples": 8, "validation_examples": 2, "test_examples": 2}))
    assert list(maps.sites) == ["encoder"]
    assert maps["encoder"].name == "self-attention"
    assert maps["encoder"].has_masked == (task["kind"] == "random-tokens")
    assert maps.checks.passed


def test_layers_heads_and_rows_can_be_chosen(reversal: Experiment) -> None:
    every = maps_of(reversal)["encoder"]
    some = maps_of(reversal, Selection(layers=[1], heads=[1], rows=(3, 5)))["encoder"]
    np.testing.assert_array_equal(some.weights, every.weights[1:, 1:, 3:5])
    assert (some.layers, some.heads, some.first_query, some.is_part) == ([1], [1], 3, True)
    assert some.queries == every.queries[3:5] and some.keys == every.keys
    assert some.outputs == (every.outputs or [])[3:5]


def test_chosen_rows_across_blocks(reversal: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    every = maps_of(reversal)["encoder"]
    monkeypatch.setattr(record_module, "BLOCK_CELLS", 4 * 9 * 2)  # four rows at a time
    some = maps_of(reversal, Selection(rows=(3, 9)))["encoder"]
    np.testing.assert_allclose(some.weights, every.weights[:, :, 3:9], atol=1e-6)


def test_one_site_can_be_selected(arithmetic: Experiment) -> None:
    maps = maps_of(arithmetic, Selection(site="cross", layers=[2]))
    assert list(maps.sites) == ["cross"]
    assert maps["cross"].name == "cross-attention" and maps["cross"].layers == [2]
    assert np.isnan(head_statistics(maps["cross"]).distance).all()


@pytest.mark.parametrize(
    ("selection", "path"),
    [
        (Selection(layers=[2]), "layers"),
        (Selection(layers=[-1]), "layers"),
        (Selection(layers=[0, 0]), "layers"),
        (Selection(heads=[7]), "heads"),
        (Selection(heads=[]), "heads"),
        (Selection(rows=(9, 12)), "rows"),
        (Selection(rows=(3, 3)), "rows"),
        (Selection(site="cross"), "site"),
    ],
)
def test_an_invalid_selection_is_refused(selection: Selection, path: str, reversal: Experiment) -> None:
    with pytest.raises(ErrorDetail) as caught:
        maps_of(reversal, selection)
    assert caught.value.path == path
    assert len(caught.value.lines()) > 1


def test_maps_that_do_not_fit_are_refused_with_an_offer(
    reversal: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, lengths = {"encoder": [2, 2]}, {"encoder": (9, 9)}
    whole, one_layer = (
        maps_module.needed_bytes(selection, sizes, lengths, record_module.BLOCK_CELLS)
        for selection in (EVERYTHING, Selection(layers=[0]))
    )
    assert one_layer < whole
    monkeypatch.setattr(maps_module, "peak_memory", lambda: 0)
    monkeypatch.setattr(maps_module, "available_memory", lambda: one_layer)
    with pytest.raises(ErrorDetail) as caught:
        maps_of(reversal)
    assert "memory" in caught.value.message and "--layers 0" in caught.value.hint
    assert maps_of(reversal, Selection(layers=[0]))["encoder"].weights.shape[0] == 1
    monkeypatch.setattr(maps_module, "available_memory", lambda: 0)
    with pytest.raises(ErrorDetail, match="a shorter input"):
        maps_of(reversal)


def test_a_position_that_biases_scores_is_part_of_the_weights() -> None:
    torch.manual_seed(0)
    attention = SelfAttention(8, 2)
    x, positions = torch.randn(1, 6, 8), torch.arange(6)[None]

    def weights(config: ALiBiConfig | NoPositionConfig) -> Tensor:
        position = config.build(hidden_dim=8, num_heads=2, max_length=6, is_causal=False)
        with capture(attention) as recorder:
            attention(x, PositionContext(position, positions, positions))
        return recorder.records["encoder"][0].weights_BHLM

    assert not torch.allclose(weights(ALiBiConfig()), weights(NoPositionConfig()), atol=1e-3)


def test_npz_round_trip(arithmetic: Experiment, tmp_path: Path) -> None:
    maps = maps_of(arithmetic)
    maps.save(tmp_path / "maps.npz")
    again = AttentionMaps.load(tmp_path / "maps.npz")
    assert again.checks == maps.checks and again.about == maps.about
    assert list(again.sites) == list(maps.sites)
    for site, site_maps in maps.sites.items():
        np.testing.assert_array_equal(again[site].weights, site_maps.weights)
        assert again[site].document() == site_maps.document()
    np.testing.assert_array_equal(again["decoder"].allowed, maps["decoder"].allowed)
    assert again["cross"].allowed is None


def test_a_file_without_maps_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no zip")
    np.savez(tmp_path / "other.npz", weights=np.zeros(3))
    for name in ("text.npz", "other.npz", "missing.npz"):
        with pytest.raises(UserError, match=name):
            AttentionMaps.load(tmp_path / name)
