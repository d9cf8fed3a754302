"""Launch several processes on this machine with PyTorch's elastic agent, on the loopback interface only."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from glassformer.training.distributed import RUN_ID

LOOPBACK = "127.0.0.1"
BACKEND = "glassformer-loopback"
SECONDS_TO_SAVE = 50
"""Seconds that processes have to save a checkpoint after a stop signal, before they are killed."""


@dataclass(frozen=True)
class Outcome:
    """Result of a launch: exit code, output of rank 0, and failure."""

    exit_code: int
    output: str
    """Standard output of rank 0."""
    failure: str = ""
    """Description of the rank that failed, if no rank printed it; else empty."""


def launch(command: Sequence[str], processes: int, max_restarts: int) -> Outcome:
    """Run a command in several processes until they end, and return the result; restart all if one dies."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // processes)))
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(SECONDS_TO_SAVE))
    with tempfile.TemporaryDirectory(prefix="glassformer-") as folder, _quiet_agent():
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            run_id=RUN_ID,
            rdzv_backend=BACKEND,
            rdzv_endpoint=LOOPBACK,
            local_addr=LOOPBACK,
            max_restarts=max_restarts,
            logs_specs=DefaultLogsSpecs(log_dir=folder, redirects=Std.OUT),
        )
        exit_code, failure = 0, ""
        try:
            elastic_launch(config, command[0])(*command[1:])
        except SignalException as stop:
            exit_code = 128 + stop.sigval
        except ChildFailedError as failed:
            exit_code, failure = _first_failure(failed)
        return Outcome(exit_code, _output_of_rank_zero(Path(folder)), failure)


def _first_failure(failed: ChildFailedError) -> tuple[int, str]:
    """Return the exit code and a description of the process that failed first.

    Of several that failed at the same time, a process that was killed by a signal comes first.
    """
    rank, failure = min(failed.failures.items(), key=lambda item: (item[1].timestamp, item[1].exitcode >= 0))
    if failure.exitcode >= 0:
        return failure.exitcode, "" if failure.exitcode > 1 else f"rank {rank} failed"
    name = signal.Signals(-failure.exitcode).name
    return 1, f"rank {rank} (process {failure.pid}) was killed by {name}; the other ranks were stopped"


def _output_of_rank_zero(folder: Path) -> str:
    """Return the standard output of rank 0 in the last attempt."""
    attempts = {int(path.parts[-3].split("_")[1]): path for path in folder.glob("*/attempt_*/0/stdout.log")}
    return attempts[max(attempts)].read_text(encoding="utf-8") if attempts else ""


@contextlib.contextmanager
def _quiet_agent() -> Iterator[None]:
    """Context manager that silences the elastic agent's log and restores our signal handlers at the end."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    handlers = {number: signal.getsignal(number) for number in numbers}
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        for number, handler in handlers.items():
            signal.signal(number, handler)


class LoopbackRendezvous(RendezvousHandler):
    """Rendezvous for one machine. Its store listens on loopback only, unlike PyTorch's own rendezvous."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self._store: TCPStore | None = None

    @property
    def use_agent_store(self) -> bool:
        return True

    def get_backend(self) -> str:
        return BACKEND

    def next_rendezvous(self) -> RendezvousInfo:
        """Create a new key-value store for each attempt and return its rendezvous info."""
        listener = socket.create_server((LOOPBACK, 0))
        port = listener.getsockname()[1]
        options: dict[str, Any] = {"wait_for_workers": False, "master_listen_fd": listener.detach()}
        self._store = TCPStore(LOOPBACK, port, is_master=True, **options)
        store = PrefixStore(self.run_id, self._store)
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(LOOPBACK, port))

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None: ...

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self.run_id

    def shutdown(self) -> bool:
        self._store = None
        return True


rendezvous_handler_registry.register(BACKEND, lambda parameters: LoopbackRendezvous(parameters.run_id))
