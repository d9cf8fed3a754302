"""Checks of this machine: processor, memory, disk, PyTorch, precision, packages.

A missing optional feature, such as a GPU or bf16, is reported but does not fail. PyTorch is imported only
inside the checks, so that a broken installation gives a failed check instead of a crash.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import platform
import re
import shutil
import tempfile
import time
from functools import partial
from pathlib import Path
from types import ModuleType

from glassformer.core.system import available_memory, cpu_name, memory_bytes, usable_cores
from glassformer.doctor.report import (
    DoesNotApply,
    Measure,
    Measurement,
    Progress,
    Report,
    at_least,
    run_checks,
)

GIBIBYTE = 2**30
ENOUGH_BYTES = GIBIBYTE
"""Bytes of free memory, and of free disk space, that a small run needs. Less gives a warning."""
MATRIX = 1024
"""Rows and columns of the matrices whose product is timed."""
NOT_EXTRAS = ("all", "dev")
"""Extras of the package that have no check of their own."""
CGROUP = Path("/sys/fs/cgroup")


def check_machine(runs: Path, progress: Progress | None = None) -> Report:
    """Run all machine checks and return the report. `runs` is the folder in which runs are saved."""
    measures: dict[str, Measure] = {
        "processor": processor,
        "threads": threads,
        "memory": memory,
        "runs folder": partial(runs_folder, runs),
        "required packages": required_packages,
        "PyTorch": pytorch,
        "GPU": gpu,
    }
    for device in _devices():
        measures |= {f"{name} on {device}": partial(precision, name, device) for name in ("fp32", "bf16")}
    measures["fp32 matmul"] = matmul
    measures |= {f"extra {name}": partial(extra, name, needs) for name, needs in extras().items()}
    return Report("this machine", run_checks(measures, progress))


def _fact(value: float | int | str | None, detail: str) -> Measurement:
    return Measurement("passed", value, None, detail)


def _enough(free: float, detail: str) -> Measurement:
    """Return free memory or disk space in GiB, with a warning if it is too little for a small run."""
    return at_least(round(free / GIBIBYTE, 2), ENOUGH_BYTES / GIBIBYTE, detail, otherwise="warning")


def processor() -> Measurement:
    cores, busy = available_cores(), os.getloadavg()[0]
    detail = f"{cpu_name()}; {cores:g} cores for this process, load {busy:.1f}"
    if busy > cores:
        return Measurement(
            "warning", cores, None, f"{detail}: other processes use the cores; runs will be slow"
        )
    return _fact(cores, detail)


def available_cores() -> float:
    """Return the number of cores that this process may use, limited by the CPU quota of its container."""
    try:
        quota, period = (CGROUP / "cpu.max").read_text(encoding="ascii").split()
        return min(usable_cores(), int(quota) / int(period))
    except (OSError, ValueError):  # no container, or no quota
        return usable_cores()


def threads() -> Measurement:
    used, cores = _torch().get_num_threads(), available_cores()
    asked = os.environ.get("OMP_NUM_THREADS")
    detail = f"OMP_NUM_THREADS={asked}" if asked else "chosen by PyTorch; OMP_NUM_THREADS is not set"
    if used > cores:
        wanted = max(1, int(cores))
        detail = f"{detail}: more threads than cores slow training down; set OMP_NUM_THREADS={wanted}"
        return Measurement("warning", used, cores, detail)
    if used < int(cores):
        detail += f"; {int(cores) - used} cores are idle"
    return Measurement("passed", used, cores, detail)


def memory() -> Measurement:
    total, free = memory_bytes(), available_memory()
    try:
        limit = int((CGROUP / "memory.max").read_text(encoding="ascii"))
        left = limit - int((CGROUP / "memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):
        limit, left = total or 0, free or 0
    if total is None or free is None:
        raise DoesNotApply("the system does not report its memory")
    total, free = min(total, limit), min(free, left)
    return _enough(free, f"GiB free of {total / GIBIBYTE:.1f}")


def runs_folder(runs: Path) -> Measurement:
    """Check that a file can be written, synced, locked and renamed in the runs folder, as training does."""
    folder = runs.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".doctor-") as name:
            written = Path(name) / "written"
            with open(written, "wb") as file:
                file.write(bytes(1 << 20))
                file.flush()
                os.fsync(file.fileno())
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.replace(written, Path(name) / "renamed")
        free = shutil.disk_usage(folder).free
    except OSError as error:
        reason = error.strerror or str(error)
        return Measurement(
            "failed", None, None, f"{folder} cannot be written: {reason}; choose another --runs"
        )
    return _enough(free, f"GiB free; {folder} is writable and lockable")


def pytorch() -> Measurement:
    try:
        import torch

        product = torch.arange(6.0).view(2, 3) @ torch.ones(3, 2)
    except Exception as error:
        return Measurement("failed", None, None, f"cannot be used: {type(error).__name__}: {error}")
    if product.tolist() != [[3.0, 3.0], [12.0, 12.0]]:
        return Measurement("failed", torch.__version__, None, "gives a wrong product of two small matrices")
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"
    build = f"ROCm {torch.version.hip}" if torch.version.hip else build
    return _fact(
        torch.__version__, f"build for {build}; instructions {torch.backends.cpu.get_cpu_capability()}"
    )


def gpu() -> Measurement:
    torch = _torch()
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        return _fact(len(names), "; ".join(names))
    if torch.backends.mps.is_available():
        return _fact(1, "Apple GPU (mps)")
    raise DoesNotApply("PyTorch finds none; models train on the CPU")


def _devices() -> list[str]:
    try:
        torch = _torch()
    except DoesNotApply:
        return ["cpu"]
    gpus = ["cuda"] if torch.cuda.is_available() else []
    return ["cpu", *gpus, *(["mps"] if torch.backends.mps.is_available() else [])]


def precision(name: str, device: str) -> Measurement:
    """Run a forward and a backward pass in fp32 or bf16, in a child process because it may crash."""
    _torch()
    from glassformer.training.precision import probe

    failure = probe(name, device)
    if failure is None:
        return _fact("runs", "forward and backward pass in a child process")
    is_required = name == "fp32"
    detail = failure if is_required else f"{failure}; do not use training.precision={name} on this machine"
    return Measurement("failed" if is_required else "skipped", "does not run", None, detail)


def matmul() -> Measurement:
    """Measure the speed of a large fp32 matrix product, in GFLOP/s."""
    torch = _torch()
    one, other = torch.ones(MATRIX, MATRIX), torch.ones(MATRIX, MATRIX)
    seconds = []
    for _ in range(8):
        started = time.perf_counter()
        torch.mm(one, other)
        seconds.append(time.perf_counter() - started)
    speed = 2 * MATRIX**3 / min(seconds) / 1e9
    return _fact(round(speed, 1), f"GFLOP/s, {MATRIX} × {MATRIX}, {torch.get_num_threads()} threads")


def required_packages() -> Measurement:
    """Check that all required packages are installed in a supported version."""
    needs = {name: version for name, version, extra in requirements() if not extra}
    wrong = _complaints(needs)
    detail = "; ".join(wrong) or f"Python {platform.python_version()} and {len(needs)} packages"
    return Measurement("failed" if wrong else "passed", len(wrong), 0, detail)


def extra(name: str, needs: dict[str, str]) -> Measurement:
    """Check that the packages of an extra (an optional dependency group) are installed."""
    wrong = _complaints(needs)
    if not wrong:
        return _fact("installed", ", ".join(needs))
    return Measurement(
        "skipped", "not installed", None, f"{'; '.join(wrong)}; pip install 'glassformer[{name}]'"
    )


def extras() -> dict[str, dict[str, str]]:
    """Return {package: oldest supported version} for each extra (optional dependency group)."""
    found: dict[str, dict[str, str]] = {}
    try:
        for name, version, extra_name in requirements():
            if extra_name and extra_name not in NOT_EXTRAS:
                found.setdefault(extra_name, {})[name] = version
    except DoesNotApply:
        return {}
    return found


def requirements() -> list[tuple[str, str, str]]:
    """Return (package, oldest supported version, extra) for each dependency in the package metadata."""
    try:
        lines = importlib.metadata.requires("glassformer") or []
    except importlib.metadata.PackageNotFoundError:
        raise DoesNotApply("glassformer is not installed; it runs from its source folder") from None
    found = []
    for line in lines:
        match = re.match(r"([\w.-]+)(?:\[[^]]*\])?\s*(?:>=\s*([\d.]+))?", line)
        extra_name = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", line)
        if match and match[1] != "glassformer":
            found.append((match[1], match[2] or "0", extra_name[1] if extra_name else ""))
    return found


def _complaints(needs: dict[str, str]) -> list[str]:
    """Return one complaint per package that is missing or older than required."""
    return [complaint for package, oldest in needs.items() if (complaint := _missing(package, oldest))]


def _missing(package: str, oldest: str) -> str:
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return f"{package} is missing"
    return f"{package} {version} is older than {oldest}" if _numbers(version) < _numbers(oldest) else ""


def _numbers(version: str) -> list[int]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    return [int(part) for part in match[0].split(".")] if match else []


def _torch() -> ModuleType:
    try:
        import torch
    except Exception as error:
        raise DoesNotApply(f"PyTorch cannot be imported: {error}") from None
    return torch
