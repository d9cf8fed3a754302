"""Choice of the device, and a test that a precision works on it.

A CPU may advertise bf16 and still stop the process with an illegal instruction. Therefore a precision is
tested in a child process.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache

import torch

from glassformer.core.errors import user_error

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

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
PROBE_SECONDS = 120
"""Time limit in seconds for the test of a precision."""


@cache
def probe(precision: str, device: str = "cpu") -> str | None:
    """Test a forward and a backward pass in this precision. Return None, or the error if they fail."""
    command = [sys.executable, "-c", _PROBE, DTYPES[precision], device]
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"no result within {PROBE_SECONDS} seconds"
    if child.returncode == 0:
        return None
    if child.returncode < 0:
        return f"the test was stopped by signal {-child.returncode}"
    lines = child.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit code {child.returncode}"


def check_precision(precision: str, device: torch.device) -> None:
    """Raise a UserError if this precision (`fp32` or `bf16`) does not work on the device."""
    if precision == "fp32":
        return
    failure = probe(precision, str(device))
    if failure:
        raise user_error(
            f"this precision does not run on {device}: {failure}",
            path="training.precision",
            value=precision,
            hint="training.precision=fp32",
        )


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
