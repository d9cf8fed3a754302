"""Matrix products in int8 for evaluation and prediction on a CPU, by PyTorch's own quantised kernels.

Each row of activations has its own scale, and so has each output of a weight matrix. A row's output therefore
does not depend on the other rows of a batch. Sums are exact integers; norms, softmax and the residual stream
stay in float32.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from threading import Lock

import torch
from torch import Tensor, nn

from glassformer.blocks.embedding import InputNet
from glassformer.blocks.heads import ClassHead, Head, pad_to_alignment
from glassformer.core.errors import user_error
from glassformer.core.system import cpu_name
from glassformer.generation.cpu import PLAIN_MODULES, is_local
from glassformer.generation.probes import cached, run_child
from glassformer.models.base import Model

_PROBE = """
import json, torch
from glassformer.generation.int8 import FULL, REDUCED, quantised_product
ones = torch.ones(2, 1024)
rows = torch.cat([ones, -ones, (-ones).cumprod(1)])
weight_OI = torch.stack([ones[0], -ones[0], (-ones[0]).cumprod(0), torch.linspace(-1, 1, 1024).sign()])
expected = rows @ weight_OI.t()
exact = [
    half for half in (FULL, REDUCED)
    if torch.allclose(quantised_product(weight_OI, None, half)(rows), expected, atol=1e-2, rtol=0)
]
assert exact, "sums overflow with 7-bit activations too"
print(json.dumps(exact[0]))
"""

FULL, REDUCED = 127, 63
"""Largest activation after quantisation. On a processor that adds pairs in 16 bits, FULL overflows."""
MAX_WEIGHT = 127
"""Largest weight after quantisation."""
MIN_WEIGHTS = 1 << 15
"""Minimum size of a matrix. Products with smaller ones are faster in float32."""
SMALLEST_SCALE = 1e-30
"""Smallest scale of a row, so that a row of zeros gives zeros."""

_engine_lock = Lock()

Product = Callable[[Tensor], Tensor]


@cache
def activation_limit() -> int:
    """Return the largest quantised activation that this processor adds up exactly: FULL or REDUCED.

    A child process tests it once, and a file keeps the result. Raise a UserError if the kernels do not run.
    """
    found = cached("int8", _probe)
    if found.get("limit") not in (FULL, REDUCED):
        raise user_error(
            f"the quantised kernels of PyTorch do not run on this {cpu_name()}: {found.get('failure')}",
            path="evaluation.weights",
            value="int8",
            hint="evaluation.weights=fp32",
        )
    return int(found["limit"])


def _probe() -> dict[str, object]:
    printed, failure = run_child(_PROBE)
    return {"limit": int(printed)} if failure is None else {"failure": failure}


class Int8Matrix:
    """Weight matrix in int8, with one scale per output.

    `limit` is the largest activation after quantisation.
    """

    def __init__(self, weight_OI: Tensor, limit: int) -> None:
        weight_OI = weight_OI.detach().float()
        self.outputs, self.inputs = weight_OI.shape
        self.limit = limit
        self.scale_O = (weight_OI.abs().amax(1) / MAX_WEIGHT).clamp_(min=SMALLEST_SCALE)
        self._packed = _pack(weight_OI, self.scale_O)
        self._multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32

    def product(self, rows_NI: Tensor, bias_O: Tensor | None) -> Tensor:
        """Return `F.linear` of these rows with this matrix and a bias, from int8 factors."""
        scale_N1 = row_scales(rows_NI)
        y_NO = self._multiply(rows_NI / scale_N1, 1 / self.limit, self.limit + 1, self._packed)
        return y_NO.mul_(scale_N1) if bias_O is None else torch.addcmul(bias_O, y_NO, scale_N1, out=y_NO)

    def product_of_integers(self, rows_NI: Tensor) -> Tensor:
        """Return the product with rows of whole numbers from −limit to limit, which are not rounded again."""
        product_NO: Tensor = self._multiply(rows_NI, 1.0, self.limit + 1, self._packed)
        return product_NO


def row_scales(rows_NI: Tensor) -> Tensor:
    """Return the largest absolute value of each row (N, 1), or a tiny number for a row of zeros."""
    return rows_NI.abs().amax(1, keepdim=True).clamp_(min=SMALLEST_SCALE)


def quantised_product(weight_OI: Tensor, bias_O: Tensor | None, limit: int) -> Product:
    """Return a function that computes `F.linear` with this weight and bias from int8 factors."""
    matrix = Int8Matrix(weight_OI, limit)
    bias_O = None if bias_O is None else bias_O.detach().float()

    def product(x: Tensor) -> Tensor:
        rows_NI = x.reshape(-1, matrix.inputs)
        if not len(rows_NI):
            return x.new_empty(*x.shape[:-1], matrix.outputs)
        return matrix.product(rows_NI, bias_O).view(*x.shape[:-1], matrix.outputs)

    return product


def _pack(weight_OI: Tensor, scale_O: Tensor) -> torch.ScriptObject:
    """Return the weight in the layout of the quantised kernels."""
    zero_points_O = torch.zeros(len(weight_OI), dtype=torch.long)
    with _engine_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the operators stay, the constructor of their tensors is deprecated
        before = torch.backends.quantized.engine
        torch.backends.quantized.engine = "fbgemm"
        try:
            quantised = torch.quantize_per_channel(weight_OI, scale_O, zero_points_O, 0, torch.qint8)
            return torch.ops.quantized.linear_prepack(quantised, None)
        finally:
            torch.backends.quantized.engine = before


class Int8Head:
    """Last layer of a head in int8. It has the arguments of `F.linear`, and its own weight and bias.

    Weight and bias are padded to a multiple of 16 outputs, whose logits are −∞ before they are cut off.
    """

    def __init__(self, weight_VD: Tensor, bias_V: Tensor | None, limit: int) -> None:
        self.outputs = len(weight_VD)
        padded_VD, _ = pad_to_alignment(weight_VD.detach(), None)
        self.bias_V = padded_VD.new_full((len(padded_VD),), -torch.inf)
        self.bias_V[: self.outputs] = 0.0 if bias_V is None else bias_V.detach()
        self.matrix = Int8Matrix(padded_VD, limit)

    def __call__(self, x: Tensor, weight_VD: Tensor, bias_V: Tensor | None) -> Tensor:
        rows_ND = x.reshape(-1, self.matrix.inputs)
        if not len(rows_ND):
            return x.new_empty(*x.shape[:-1], self.outputs)
        logits_NV = self.matrix.product(rows_ND, self.bias_V)[:, : self.outputs]
        return logits_NV.unflatten(0, x.shape[:-1]) if x.ndim > 2 else logits_NV


class QuantisedLinear(nn.Module):
    """Linear layer that multiplies in int8. Its parameters stay those of the float32 layer."""

    def __init__(self, layer: nn.Linear, limit: int) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.product = quantised_product(layer.weight, layer.bias, limit)

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x)


PLAIN_MODULES.add(QuantisedLinear)


def quantise(model: Model) -> Model:
    """Return a copy of a model that shares its parameters and multiplies in int8, in evaluation mode.

    Small matrices, regression heads and heads with their own `forward` stay in float32. The copy quantises
    the weights once, so later changes of the parameters have no effect on it.
    """
    if not all(is_local(parameter) for parameter in model.parameters()):
        raise user_error(
            "int8 runs on a CPU only, and on weights that are not sharded",
            path="evaluation.weights",
            value="int8",
            hint="evaluation.weights=fp32, or training.device=cpu",
        )
    limit = activation_limit()
    shared = [*model.parameters(), *model.buffers()]
    twin: Model = deepcopy(model, {id(tensor): tensor for tensor in shared}).eval()
    for parent in twin.modules():
        if isinstance(parent, InputNet):
            continue  # reads the weight of its layer
        for name, part in parent.named_children():
            if type(part) is nn.Linear and is_worth_it(part.weight):
                setattr(parent, name, QuantisedLinear(part, limit))
    head = twin.head
    if isinstance(head, ClassHead) and type(head).forward is Head.forward:
        weight_VD = head.output_weight(twin.tied_weight())
        if is_worth_it(weight_VD):
            head.linear = Int8Head(weight_VD, head.bias, limit)
    return twin


def is_worth_it(weight_OI: Tensor) -> bool:
    """Return True if products with this matrix are faster in int8."""
    return weight_OI.dtype == torch.float32 and weight_OI.numel() >= MIN_WEIGHTS


def has_large_matrices(model: Model) -> bool:
    """Return True if at least one matrix of the model is large enough for products in int8."""
    layers = (layer.weight for layer in model.modules() if type(layer) is nn.Linear)
    return any(map(is_worth_it, layers)) or is_worth_it(model.head.output_weight(model.tied_weight()))
