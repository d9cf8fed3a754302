"""ONNX graphs of models: equal outputs for other batch sizes and lengths, with padding, and with a cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glassformer as gf
from glassformer.blocks.feed_forward import FeedForwardConfig
from glassformer.blocks.norms import NormConfig
from glassformer.blocks.positions import PositionConfig
from glassformer.core.registry import kinds
from glassformer.interchange.onnx_graphs import traceable, write_graphs
from glassformer.models.base import Model
from glassformer.models.task_types import TaskType

pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")

LIMIT = 1e-5
SHAPES = ((1, 1), (1, 7), (4, 1), (5, 9), (2, 20))
"""Batch size and length of inputs. The graphs are traced with 3 rows of 5 tokens."""
TASK_TYPES: dict[str, TaskType] = {
    "labels": gf.TokenClassification(11, 24, classes=7),
    "class": gf.SequenceClassification(11, 24, outputs=3),
    "number": gf.SequenceClassification(11, 24, is_regression=True, target_mean=3.0, target_scale=2.0),
    "causal": gf.CausalLM(11, 24),
    "masked": gf.MaskedLM(11, 24),
    "seq2seq": gf.Seq2Seq(11, 24, target_vocabulary=13, max_target_length=20),
    "shared": gf.Seq2Seq(11, 24, target_vocabulary=11, max_target_length=20, is_shared_vocabulary=True),
}


def random_model(task_type: TaskType, seed: int = 0, **options: Any) -> Model:
    """Build a model with random weights and biases, because fresh biases are zero."""
    torch.manual_seed(seed)
    sizes = {"num_layers": 2, "num_heads": 4, "hidden_dim": 16, "feed_forward_dim": 24}
    model = gf.Transformer(task_type, **{**sizes, **options}).eval()
    for parameter in model.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return model


def inputs(vocabulary: int, batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random tokens and a mask with padding on the right of all rows but the first."""
    tokens_BL = torch.randint(0, vocabulary, (batch, length))
    lengths_B1 = torch.tensor([[max(1, length - 2 * row)] for row in range(batch)])
    return tokens_BL, torch.arange(length)[None] < lengths_B1


class Sessions:
    """Graphs of a folder in ONNX Runtime."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self.of = {name: onnxruntime.InferenceSession(folder / name) for name in names}

    def run(self, name: str, **tensors: Any) -> dict[str, np.ndarray]:
        session = self.of[name]
        outputs = session.run(None, {key: np.asarray(value) for key, value in tensors.items()})
        return dict(zip([each.name for each in session.get_outputs()], outputs, strict=True))

    def empty(self, name: str, batch: int) -> np.ndarray:
        """Return an empty cache."""
        shape = next(each.shape for each in self.of[name].get_inputs() if each.name == "keys")
        return np.zeros((batch, shape[1], shape[2], 0, shape[4]), np.float32)


def forward_error(model: Model, sessions: Sessions, batch: int, length: int) -> float:
    tokens_BL, mask_BL = inputs(11, batch, length)
    # Without the check of the maximum length, which a graph does not have.
    ours = model.head(model.hidden(tokens=tokens_BL, mask=mask_BL), model.tied_weight()).numpy()
    theirs = sessions.run("model.onnx", tokens=tokens_BL, mask=mask_BL)["outputs"]
    assert ours.shape == theirs.shape
    error = np.abs(ours - theirs)
    return float((error[mask_BL.numpy()] if error.ndim == 3 else error).max())


def step_error(model: Model, sessions: Sessions, batch: int, length: int) -> float:
    """Return the error of a language model that reads a part of each row, then the rest in one step."""
    tokens_BL, mask_BL = inputs(11, batch, length)
    ours = model(tokens=tokens_BL, mask=mask_BL).numpy()
    keys = values = sessions.empty("step.onnx", batch)
    found, middle = [], max(1, length // 2)
    for part in (slice(0, middle), slice(middle, length)) if length > 1 else (slice(0, 1),):
        out = sessions.run(
            "step.onnx", tokens=tokens_BL[:, part], mask=mask_BL[:, : part.stop], keys=keys, values=values
        )
        keys, values = out["new_keys"], out["new_values"]
        found.append(out["outputs"])
    return float(np.abs(np.concatenate(found, 1) - ours)[mask_BL.numpy()].max())


def decoder_error(model: Model, sessions: Sessions, batch: int, length: int) -> float:
    """Return the error of an encoder-decoder that reads its target at once, and token by token."""
    tokens_BL, mask_BL = inputs(11, batch, length)
    target_BL = torch.randint(0, 11, (batch, 6))
    ours = model(tokens=tokens_BL, target=target_BL, mask=mask_BL).numpy()
    source: dict[str, Any] = dict(sessions.run("encoder.onnx", tokens=tokens_BL, mask=mask_BL))
    source["source_mask"] = mask_BL
    empty = sessions.empty("decoder.onnx", batch)
    every_BL = np.ones((batch, 6), bool)
    whole = sessions.run("decoder.onnx", tokens=target_BL, mask=every_BL, keys=empty, values=empty, **source)
    found, keys, values = [], empty, empty
    for at in range(6):
        out = sessions.run(
            "decoder.onnx",
            tokens=target_BL[:, at : at + 1],
            mask=every_BL[:, : at + 1],
            keys=keys,
            values=values,
            **source,
        )
        keys, values = out["new_keys"], out["new_values"]
        found.append(out["outputs"])
    stepwise = np.abs(np.concatenate(found, 1) - ours).max()
    return float(max(np.abs(whole["outputs"] - ours).max(), stepwise))


CHECKS = {"model.onnx": forward_error, "step.onnx": step_error, "decoder.onnx": decoder_error}


@torch.no_grad()
def largest_error(model: Model, folder: Path) -> float:
    """Write the graphs of a model, and return the largest error over all shapes of inputs."""
    names = write_graphs(model, folder)
    sessions = Sessions(folder, names)
    checks = [CHECKS[name] for name in names if name in CHECKS]
    return max(check(model, sessions, *shape) for check in checks for shape in SHAPES)


def test_graphs_equal_the_model(tmp_path: Path) -> None:
    assert largest_error(random_model(TASK_TYPES["class"], num_layers=1), tmp_path) < LIMIT


def test_model_is_unchanged_after_the_export() -> None:
    model = random_model(TASK_TYPES["causal"], position="learned")
    kernels = [module.kernel for module in model.modules() if isinstance(module, gf.nn.SelfAttention)]
    with traceable(model):
        assert "embed" in vars(model.embedding.position)
    assert "embed" not in vars(model.embedding.position)
    assert kernels == [each.kernel for each in model.modules() if isinstance(each, gf.nn.SelfAttention)]


def combinations() -> list[tuple[str, str, dict[str, Any]]]:
    """Return every task type with every positional encoding; the other options take turns."""
    found = []
    names = list(kinds(FeedForwardConfig))
    for number, task in enumerate(TASK_TYPES):
        for index, position in enumerate(kinds(PositionConfig)):
            turn = number + index
            options = {
                "position": position,
                "norm": list(kinds(NormConfig))[turn % len(kinds(NormConfig))],
                "norm_placement": ("pre", "post")[(turn // 2) % 2],
                "feed_forward": names[(number + 2 * index) % len(names)],
                "num_key_value_heads": (None, 2, 1)[turn % 3],
                "tied_output": bool((turn // 3) % 2),
                "bias": turn % 5 != 0,
                "input": ("tokens", "one-hot")[turn % 7 == 0],
                "pooling": ("mean", "max", "first", "last", "attention")[turn % 5],
                "output": ("linear", "mlp", "transform")[(turn // 2) % 3],
                "is_causal": turn % 4 == 3,
            }
            found.append((task, position, options))
    return found


@pytest.mark.thorough
@pytest.mark.parametrize(("task", "position", "options"), combinations())
def test_every_task_type_and_position(
    task: str, position: str, options: dict[str, Any], tmp_path: Path
) -> None:
    assert largest_error(random_model(TASK_TYPES[task], **options), tmp_path) < LIMIT


@pytest.mark.thorough
@pytest.mark.parametrize("position", ["sinusoidal", "rotary", "t5", "alibi", "relative"])
def test_lengths_beyond_the_maximum(position: str, tmp_path: Path) -> None:
    model = random_model(TASK_TYPES["masked"], position=position)
    names = write_graphs(model, tmp_path)
    with torch.no_grad():
        assert forward_error(model, Sessions(tmp_path, names), 3, 300) < LIMIT


@pytest.mark.thorough
def test_attention_weights_are_outputs(tmp_path: Path) -> None:
    model = random_model(TASK_TYPES["seq2seq"], position="rotary", num_key_value_heads=2)
    sessions = Sessions(tmp_path, write_graphs(model, tmp_path, with_attention=True))
    tokens_BL, mask_BL = inputs(11, 3, 8)
    target_BL = torch.randint(0, 13, (3, 5))
    with torch.no_grad(), gf.record(model) as tape:
        model(tokens=tokens_BL, target=target_BL, mask=mask_BL)
    source: dict[str, Any] = dict(sessions.run("encoder.onnx", tokens=tokens_BL, mask=mask_BL))
    found = {"encoder": source.pop("encoder_attention")}
    empty = sessions.empty("decoder.onnx", 3)
    out = sessions.run(
        "decoder.onnx",
        tokens=target_BL,
        mask=np.ones((3, 5), bool),
        keys=empty,
        values=empty,
        source_mask=mask_BL,
        **source,
    )
    found |= {site: out[f"{site}_attention"] for site in ("decoder", "cross")}
    for site, weights_BNHLM in found.items():
        recorded = torch.stack(tape.attention[site], 1).numpy()
        assert np.abs(weights_BNHLM - recorded).max() < LIMIT


@pytest.mark.thorough
def test_files_name_no_path_of_this_machine(tmp_path: Path) -> None:
    (name,) = write_graphs(random_model(TASK_TYPES["labels"]), tmp_path)
    data = (tmp_path / name).read_bytes()
    assert b".py" not in data and str(Path.home()).encode() not in data
