"""`record` returns what the model computed, for every task type and for a user's own module."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from glassformer.blocks.attention import MultiHeadAttention, fused_kernel
from glassformer.blocks.layers import EncoderBlock, EncoderStack
from glassformer.inspection.record import record
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

TASK_TYPES: dict[str, TaskType] = {
    "token labels": TokenClassification(vocabulary=11, max_length=9, classes=4),
    "classes": SequenceClassification(vocabulary=11, max_length=9, outputs=3),
    "causal": CausalLM(vocabulary=11, max_length=9),
    "masked": MaskedLM(vocabulary=11, max_length=9),
    "seq2seq": Seq2Seq(vocabulary=11, max_length=9, target_vocabulary=7, max_target_length=8),
}


def build(name: str, norm_placement: str = "pre") -> Model:
    torch.manual_seed(0)
    options = {"num_layers": 3, "num_heads": 2, "hidden_dim": 8, "feed_forward_dim": 16, "dropout": 0.3}
    config = TransformerConfig.model_validate({**options, "norm_placement": norm_placement})
    return config.build(TASK_TYPES[name])


def inputs_for(name: str) -> dict[str, Tensor | None]:
    tokens = torch.arange(12).reshape(2, 6) % 11
    inputs: dict[str, Tensor | None] = {"tokens": tokens, "mask": None}
    return inputs | ({"target": torch.arange(10).reshape(2, 5) % 7} if name == "seq2seq" else {})


@pytest.mark.parametrize("norm_placement", ["pre", "post"])
@pytest.mark.parametrize("name", TASK_TYPES)
def test_results_stay_and_shapes_are_as_documented(name: str, norm_placement: str) -> None:
    model, inputs = build(name, norm_placement), inputs_for(name)
    expected = model.eval()(**inputs)
    model.train()
    with record(model) as tape:
        actual = model(**inputs)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    lengths = {"encoder": (6, 6), "decoder": (5, 5), "cross": (5, 6)}
    sites = ["encoder", "decoder", "cross"] if name == "seq2seq" else ["encoder"]
    assert set(tape.attention) == set(sites)
    for site in tape.attention:
        weights = tape.attention[site]
        assert [tuple(layer.shape) for layer in weights] == [(2, 2, *lengths[site])] * 3
        for layer in weights:
            torch.testing.assert_close(layer.sum(-1), torch.ones(layer.shape[:3]))
    assert set(tape.residual) == set(sites) - {"cross"}
    for site in tape.residual:
        assert [tuple(states.shape) for states in tape.residual[site]] == [(2, lengths[site][0], 8)] * 4
    assert "3 layers" in repr(tape) and "4 states" in repr(tape)


def test_the_residual_stream_is_what_the_blocks_pass_on() -> None:
    model = build("causal").eval()
    with record(model) as tape:
        hidden = model.hidden(**inputs_for("causal"))
    (stack,) = [module for module in model.modules() if isinstance(module, EncoderStack)]
    torch.testing.assert_close(stack.final_norm(tape.residual["encoder"][-1]), hidden)


def test_kernels_hooks_and_mode_are_restored_after_an_error() -> None:
    model = build("causal").train()

    def stop() -> None:
        with record(model):
            model(**inputs_for("causal"))
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        stop()
    assert all(module.training for module in model.modules())
    for module in model.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks
        if isinstance(module, MultiHeadAttention):
            assert module.kernel is fused_kernel


def test_two_passes_append() -> None:
    model = build("causal")
    with record(model) as tape:
        model(**inputs_for("causal"))
        model(**inputs_for("causal"))
    assert len(tape.attention["encoder"]) == 6 and len(tape.residual["encoder"]) == 8
    torch.testing.assert_close(tape.residual["encoder"][:4], tape.residual["encoder"][4:])


class OwnModel(nn.Module):
    """A user's module: our blocks without our stacks."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 8)
        self.blocks = nn.ModuleList(EncoderBlock(8, num_heads=2) for _ in range(2))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return x


def test_a_users_own_module() -> None:
    torch.manual_seed(0)
    model, tokens = OwnModel(), torch.tensor([[1, 2, 3]])
    expected = model(tokens)
    with record(model) as tape:
        output = model(tokens)
    torch.testing.assert_close(output, expected)
    assert [layer.shape for layer in tape.attention["encoder"]] == [(1, 2, 3, 3)] * 2
    torch.testing.assert_close(tape.residual["encoder"][0], model.embedding(tokens).detach())
    torch.testing.assert_close(tape.residual["encoder"][-1], output.detach())
    assert output.requires_grad and not tape.residual["encoder"][-1].requires_grad


def test_recording_imports_neither_tasks_nor_data() -> None:
    code = """
import sys
from glassformer.inspection.record import capture, record
loaded = {name.split(".")[1] for name in sys.modules if name.startswith("glassformer.")}
assert loaded <= {"blocks", "models", "core", "storage", "inspection"}, loaded
"""
    subprocess.run([sys.executable, "-c", code], check=True)
