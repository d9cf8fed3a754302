"""Is this machine fit for a run: processor, memory, disk, PyTorch, number formats, packages.

A fact that a run can do without, such as a GPU or bf16, is told and never fails. PyTorch is imported only
inside the checks, so that a broken one is found like anything else.
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

from glassformer.core.system import cpu_name, memory_bytes, usable_cores
from glassformer.doctor.checks import (
    DoesNotApply,
    Measure,
    Measurement,
    Progress,
    Report,
    Verdict,
    run_checks,
)

GIBIBYTE = 2**30
ENOUGH_BYTES = GIBIBYTE
"""Of memory and of disk: a small run with its checkpoints. Less is told, since smaller runs exist."""
MATRIX = 1024
NOT_EXTRAS = ("all", "dev")
CGROUP = Path("/sys/fs/cgroup")


def examine_machine(runs: Path, progress: Progress | None = None) -> Report:
    """All machine checks; `runs` is where runs would be written."""
    measures: dict[str, Measure] = {
        "processor": processor,
        "threads": threads,
        "memory": memory,
        "runs folder": partial(runs_folder, runs),
        "needed packages": needed_packages,
        "PyTorch": pytorch,
        "GPU": gpu,
    }
    for device in _devices():
        measures |= {f"{name} on {device}": partial(precision, name, device) for name in ("fp32", "bf16")}
    measures["fp32 matrix products"] = matrix_products
    measures |= {f"extra {name}": partial(extra, name, needs) for name, needs in extras().items()}
    return Report("this machine", run_checks(measures, progress))


def _fact(value: float | int | str | None, detail: str) -> Measurement:
    return Measurement("passed", value, None, detail)


def _enough(value: float, limit: float, detail: str) -> Measurement:
    """Less than the limit is worth a word, and stops nothing."""
    verdict: Verdict = "passed" if value >= limit else "warning"
    return Measurement(verdict, value, limit, detail, is_lower_limit=True)


def processor() -> Measurement:
    cores, busy = cores_for_us(), os.getloadavg()[0]
    detail = f"{cpu_name()}; {cores:g} cores for this process, load {busy:.1f}"
    if busy > cores:
        return Measurement(
            "warning", cores, None, f"{detail}: others compute here too, and times will be long"
        )
    return _fact(cores, detail)


def cores_for_us() -> float:
    """Those that the process may use, or fewer where a container's share is smaller."""
    try:
        quota, period = (CGROUP / "cpu.max").read_text(encoding="ascii").split()
        return min(usable_cores(), int(quota) / int(period))
    except (OSError, ValueError):  # no container, or no limit in it
        return usable_cores()


def threads() -> Measurement:
    used, cores = _torch().get_num_threads(), cores_for_us()
    asked = os.environ.get("OMP_NUM_THREADS")
    detail = f"OMP_NUM_THREADS={asked}" if asked else "as PyTorch chose; OMP_NUM_THREADS is not set"
    if used > cores:
        wanted = max(1, int(cores))
        detail = f"{detail}: more threads than cores slow each other down; OMP_NUM_THREADS={wanted}"
        return Measurement("warning", used, cores, detail)
    if used < int(cores):
        detail += f"; {int(cores) - used} cores stay idle"
    return Measurement("passed", used, cores, detail)


def memory() -> Measurement:
    _torch()
    from glassformer.cost.estimate import available_memory

    total, free = memory_bytes(), available_memory()
    try:
        limit = int((CGROUP / "memory.max").read_text(encoding="ascii"))
        left = limit - int((CGROUP / "memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):
        limit, left = total or 0, free or 0
    if total is None or free is None:
        raise DoesNotApply("this system does not tell")
    total, free = min(total, limit), min(free, left)
    return _enough(round(free / GIBIBYTE, 2), ENOUGH_BYTES / GIBIBYTE, f"GiB free of {total / GIBIBYTE:.1f}")


def runs_folder(runs: Path) -> Measurement:
    """Written, synced, renamed and locked, as a run does it, beside where the runs will be."""
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
        free = shutil.disk_usage(folder).free / GIBIBYTE
    except OSError as error:
        reason = error.strerror or str(error)
        return Measurement(
            "failed", None, None, f"{folder} cannot be written: {reason}; choose another --runs"
        )
    return _enough(round(free, 2), ENOUGH_BYTES / GIBIBYTE, f"GiB free; {folder} can be written and locked")


def pytorch() -> Measurement:
    try:
        import torch

        product = torch.arange(6.0).view(2, 3) @ torch.ones(3, 2)
    except Exception as error:
        return Measurement("failed", None, None, f"cannot be used: {type(error).__name__}: {error}")
    if product.tolist() != [[3.0, 3.0], [12.0, 12.0]]:
        return Measurement(
            "failed", torch.__version__, None, "computes a wrong product of two small matrices"
        )
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
    raise DoesNotApply("there is none that PyTorch can use; models train on the processor")


def _devices() -> list[str]:
    try:
        torch = _torch()
    except DoesNotApply:
        return ["cpu"]
    gpus = ["cuda"] if torch.cuda.is_available() else []
    return ["cpu", *gpus, *(["mps"] if torch.backends.mps.is_available() else [])]


def precision(name: str, device: str) -> Measurement:
    """Forth and back in a child process: a number format that is advertised may still kill it."""
    _torch()
    from glassformer.training.precision import probe

    failure = probe(name, device)
    if failure is None:
        return _fact("runs", "forward and backward pass in a child process")
    needed = name == "fp32"
    told = f"{failure}; training.precision={name} is not for this machine"
    return Measurement("failed" if needed else "skipped", "does not run", None, failure if needed else told)


def matrix_products() -> Measurement:
    torch = _torch()
    one, other = torch.ones(MATRIX, MATRIX), torch.ones(MATRIX, MATRIX)
    seconds = []
    for _ in range(8):
        started = time.perf_counter()
        torch.mm(one, other)
        seconds.append(time.perf_counter() - started)
    speed = 2 * MATRIX**3 / min(seconds) / 1e9
    return _fact(round(speed, 1), f"GFLOP/s, {MATRIX} × {MATRIX}, {torch.get_num_threads()} threads")


def needed_packages() -> Measurement:
    """Python itself and what `pip install glassformer` brings along, new enough."""
    needs = {name: version for name, version, extra in requirements() if not extra}
    wrong = [complaint for name, version in needs.items() if (complaint := _missing(name, version))]
    detail = "; ".join(wrong) or f"Python {platform.python_version()} and {len(needs)} packages"
    return Measurement("failed" if wrong else "passed", len(wrong), 0, detail)


def extra(name: str, needs: dict[str, str]) -> Measurement:
    wrong = [complaint for package, version in needs.items() if (complaint := _missing(package, version))]
    if not wrong:
        return _fact("installed", ", ".join(needs))
    return Measurement(
        "skipped", "not installed", None, f"{'; '.join(wrong)}; pip install 'glassformer[{name}]'"
    )


def extras() -> dict[str, dict[str, str]]:
    """The optional packages of each extra, and the oldest version that will do."""
    found: dict[str, dict[str, str]] = {}
    try:
        for name, version, extra_name in requirements():
            if extra_name and extra_name not in NOT_EXTRAS:
                found.setdefault(extra_name, {})[name] = version
    except DoesNotApply:
        return {}
    return found


def requirements() -> list[tuple[str, str, str]]:
    """(package, oldest version, extra) as the installed package itself declares them."""
    try:
        lines = importlib.metadata.requires("glassformer") or []
    except importlib.metadata.PackageNotFoundError:
        raise DoesNotApply("glassformer runs from its source folder, and is not installed") from None
    found = []
    for line in lines:
        match = re.match(r"([\w.-]+)(?:\[[^]]*\])?\s*(?:>=\s*([\d.]+))?", line)
        extra_name = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", line)
        if match and match[1] != "glassformer":
            found.append((match[1], match[2] or "0", extra_name[1] if extra_name else ""))
    return found


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
