"""The machine: processor, cores, memory and thread counts."""

from __future__ import annotations

import contextlib
import os
import platform
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from glassformer import __version__


@dataclass(frozen=True)
class Machine:
    cpu: str
    cores: int
    """Those that this process may use."""
    threads: int
    """Those that PyTorch uses."""
    memory_bytes: int | None
    system: str
    python: str
    torch: str
    glassformer: str

    def document(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.cpu}, {self.cores} cores, {self.threads} threads; "
            f"torch {self.torch}, Python {self.python}, {self.system}"
        )


def machine() -> Machine:
    import torch

    return Machine(
        cpu=cpu_name(),
        cores=usable_cores(),
        threads=torch.get_num_threads(),
        memory_bytes=memory_bytes(),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        torch=str(torch.__version__),
        glassformer=__version__,
    )


def usable_cores() -> int:
    """Fewer than the machine has, where the process is bound to some of them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_name() -> str:
    """As the maker calls it; the architecture where no name is to be had."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
    return platform.processor() or platform.machine()


def memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


@contextlib.contextmanager
def threads_set_to(threads: int | None) -> Iterator[None]:
    """So many threads inside, and as many as before afterwards."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


MOST_BYTES = 64 << 20
"""Of a document: the largest tokenizers have half of that."""


def read_document(path: Path) -> bytes:
    """The bytes of a file that is a file and not too large: never one that has no end, or never begins."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is not a regular file")
        if found.st_size > MOST_BYTES:
            raise ValueError(f"it is too large: {found.st_size:,} bytes")
        return file.read(MOST_BYTES)
