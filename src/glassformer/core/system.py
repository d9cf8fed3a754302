"""Machine: processor, cores, memory, thread pool, and safe reading of files."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import stat
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Barrier
from typing import Any, TypeVar

from glassformer import __version__


@dataclass(frozen=True)
class Machine:
    """Hardware and software versions, recorded with every measurement."""

    cpu: str
    cores: int
    """Number of CPU cores that this process may use."""
    threads: int
    """Number of PyTorch intra-op threads."""
    memory_bytes: int | None
    system: str
    python: str
    torch: str
    glassformer: str

    def document(self) -> dict[str, Any]:
        """Return the fields as a JSON-serialisable dict."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.cpu}, {self.cores} cores, {self.threads} threads; "
            f"torch {self.torch}, Python {self.python}, {self.system}"
        )


def machine() -> Machine:
    """Return the hardware of this machine and the installed versions."""
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
    """Return the number of CPU cores that this process may use. CPU affinity can lower the number."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_name() -> str:
    """Return the processor's product name, or the architecture if the system does not report a name."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
    return platform.processor() or platform.machine()


def threads_per_worker(workers: int) -> int:
    """Return the number of threads per worker: `OMP_NUM_THREADS`, or an equal share of the cores."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdecimal() and int(asked) else max(1, (os.cpu_count() or 1) // workers)


def memory_bytes() -> int | None:
    """Return the physical memory of the machine in bytes, or None if the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


@contextlib.contextmanager
def threads_set_to(threads: int | None) -> Iterator[None]:
    """Set the number of PyTorch intra-op threads within a `with` block. None keeps the current number."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


MAX_FILE_BYTES = 64 << 20
"""Maximum size of a file for `read_regular_file`, in bytes. Tokenizer files are half as large."""


def read_regular_file(path: Path) -> bytes:
    """Return the bytes of a regular file. Raise ValueError for FIFOs, devices and files over 64 MiB."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is not a regular file")
        if found.st_size > MAX_FILE_BYTES:
            raise ValueError(f"it is too large: {found.st_size:,} bytes")
        return file.read(MAX_FILE_BYTES)


def peak_memory() -> int:
    """Return the peak resident set size of this process in bytes."""
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def available_memory() -> int | None:
    """Return free memory plus the memory of this process, in bytes, or None if the system has no /proc."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        resident_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return None
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    return free + resident_pages * resource.getpagesize()


Item = TypeVar("Item")
Result = TypeVar("Result")


class ThreadPool:
    """Pool of worker threads that share PyTorch's intra-op threads evenly, so that they do not compete."""

    def __init__(self, workers: int, name: str) -> None:
        import torch

        self.workers = workers
        threads = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(
            workers, name, initializer=_take_share, initargs=(max(1, threads // workers),)
        )
        started = Barrier(workers)  # all must have started before the number of threads is restored
        try:
            for _ in self._pool.map(lambda _: started.wait(), range(workers)):
                pass
        except BaseException:  # a worker failed to start, and the others would wait for it for ever
            started.abort()
            raise
        finally:
            torch.set_num_threads(threads)  # each worker has lowered the default for new threads

    def each(
        self, function: Callable[[Item], Result], items: Iterable[Item], ahead: int | None = None
    ) -> Iterator[Result]:
        """Yield `function(item)` in the order of the items. At most `ahead` results are pending at a time."""
        pending: deque[Future[Result]] = deque()
        try:
            for item in items:
                if len(pending) == ahead:
                    yield pending.popleft().result()
                pending.append(self._pool.submit(function, item))
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()

    def close(self) -> None:
        """Cancel calls that have not started, and wait for the running ones."""
        self._pool.shutdown(cancel_futures=True)


def _take_share(threads: int) -> None:
    import torch

    torch.get_num_threads()  # a thread's first call initialises its number, and would undo the next line
    torch.set_num_threads(threads)
