"""Choice of the device and of the precision: a precision must run on the processor, and `auto` be faster.

A CPU may advertise bf16 and still stop the process with an illegal instruction. Therefore a precision is
tested in a child process.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache

import torch

from glassformer.core.errors import user_error
from glassformer.core.system import cpu_name
from glassformer.models.base import Model
from glassformer.training.bf16 import Products

_PROBE = """
import sys, torch
dtype = getattr(torch, sys.argv[1])
device = sys.argv[2]
x = torch.ones(64, 64, device=device, requires_grad=True)
with torch.autocast(device.split(":")[0], dtype):
    y = torch.nn.functional.scaled_dot_product_attention(*[(x @ x).view(1, 2, 32, 64)] * 3)
    y = torch.nn.functional.linear(y, x)
y.float().sum().backward()
assert torch.isfinite(x.grad).all()
"""

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@cache
def probe(precision: str, device: str = "cpu") -> str | None:
    """Test a forward and a backward pass in this precision. Return None, or the error if they fail."""
    from glassformer.generation.probes import run_child  # only reduced precisions need it

    return run_child(_PROBE, DTYPES[precision], device)[1]


def check_precision(precision: str, device: torch.device) -> None:
    """Raise a UserError if this precision (`fp32`, `bf16` or `fp16`) does not work on the device."""
    if precision == "fp32":
        return
    is_measured = precision == "bf16" and device.type == "cpu"
    failure = bf16_speed().failure if is_measured else probe(precision, str(device))
    if failure:
        raise user_error(
            f"this precision does not run on {device}: {failure}",
            path="training.precision",
            value=precision,
            hint="training.precision=fp32",
        )


# ---------------------------------------------------------------- automatic choice

_SPEED = """
import json, time, torch
torch.set_num_threads(1)
x, weight, gradient = torch.randn(512, 512), torch.randn(1024, 512), torch.randn(512, 1024)
weight16 = weight.bfloat16()

def products(x, weight, gradient):
    return x @ weight.T, gradient @ weight, gradient.T @ x

def fp32():
    products(x, weight, gradient)

def bf16():
    [y.float() for y in products(x.bfloat16(), weight16, gradient.bfloat16())]

seconds = {"fp32": [], "bf16": []}
for _ in range(8):
    for name, run in (("fp32", fp32), ("bf16", bf16)):
        started = time.thread_time()
        run()
        seconds[name].append(time.thread_time() - started)
print(json.dumps(min(seconds["fp32"][1:]) / min(seconds["bf16"][1:])))
"""
MIN_SPEEDUP = 1.3
"""Minimum speed of the products in bf16, as a multiple of fp32. Below it, a whole step gains nothing."""
SAFE_INSTRUCTIONS = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
"""Environment variable that keeps PyTorch's matrix library from instructions such as those of AMX."""


@dataclass(frozen=True)
class BF16Speed:
    """Speed of matrix products in bf16 on a processor, measured once and cached in a file."""

    ratio: float | None
    """Speed as a multiple of fp32, or None if bf16 does not run."""
    failure: str = ""
    limited_ratio: float | None = None
    """Speed with the instructions in SAFE_INSTRUCTIONS, measured if bf16 does not run without them."""

    @property
    def is_worth_it(self) -> bool:
        """True if training in bf16 is faster."""
        return self.ratio is not None and self.ratio >= MIN_SPEEDUP

    def describe(self) -> str:
        if self.ratio is not None:
            return f"matrix products in bf16 are {self.ratio:.1f} × as fast as in fp32 on this {cpu_name()}"
        text = f"bf16 does not run on this {cpu_name()}: {self.failure}"
        if self.limited_ratio is not None and self.limited_ratio >= MIN_SPEEDUP:
            variable = " ".join(f"{name}={value}" for name, value in SAFE_INSTRUCTIONS.items())
            text += f"; with {variable} set before the command it runs {self.limited_ratio:.1f} × as fast"
        return text


@cache
def bf16_speed() -> BF16Speed:
    """Return the speed of bf16 on this processor, from the cache or by a measurement of a few seconds."""
    from glassformer.generation.probes import cached

    return BF16Speed(**cached("precision", lambda: asdict(_measure_bf16())))


def _measure_bf16() -> BF16Speed:
    from glassformer.generation.probes import run_child

    printed, failure = run_child(_SPEED)
    if failure is None:
        return BF16Speed(float(printed))
    printed, still = run_child(_SPEED, **SAFE_INSTRUCTIONS)
    return BF16Speed(None, failure, None if still else float(printed))


@dataclass(frozen=True)
class PrecisionChoice:
    """Precision of a run, which is saved with it because a resumed run must use the same."""

    asked: str
    """Value of `training.precision`."""
    precision: str
    """`fp32`, `bf16` or `fp16`."""
    reason: str

    def describe(self) -> str:
        return f"precision {self.precision}: {self.reason}"


def choose_precision(asked: str, device: torch.device, model: Model) -> PrecisionChoice:
    """Return the precision for `training.precision`. `auto` is bf16 if it is faster, else fp32."""
    if asked != "auto":
        return PrecisionChoice(asked, asked, "as set by training.precision")
    if device.type == "cuda":
        is_native = torch.cuda.get_device_capability(device) >= (8, 0)
        reason = f"this GPU {'computes' if is_native else 'does not compute'} in bf16"
        return PrecisionChoice(asked, "bf16" if is_native else "fp32", reason)
    if device.type != "cpu":
        return PrecisionChoice(asked, "fp32", f"bf16 is not tested on {device.type}")
    if not Products(model).has_large_matrices:
        return PrecisionChoice(asked, "fp32", "all matrices of this model are too small to gain from bf16")
    speed = bf16_speed()
    return PrecisionChoice(asked, "bf16" if speed.is_worth_it else "fp32", speed.describe())


# ---------------------------------------------------------------- device


def choose_device(name: str) -> torch.device:
    """Return the PyTorch device with this name; `auto` prefers CUDA, then MPS, then the CPU."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    available = ["auto", "cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    available += ["cuda"] if torch.cuda.is_available() else []
    available += ["mps"] if torch.backends.mps.is_available() else []
    if name.lower().startswith("gpu"):  # without `allowed`: the nearest match would be cpu
        raise user_error(
            f"{name!r} is not a device name; a GPU is called cuda, or mps on a Mac",
            path="training.device",
            value=name,
            hint="training.device=auto, which uses the GPU if this machine has one",
        )
    if name not in available:
        raise user_error(
            "no such device on this machine", path="training.device", value=name, allowed=available
        )
    return torch.device(name)
