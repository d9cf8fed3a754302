"""Several processes on this machine under PyTorch's elastic agent, out of reach from anywhere else."""

from __future__ import annotations

import contextlib
import logging
import os
import re
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
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from glassformer.training.distributed import OUR_RUN

LOOPBACK = "127.0.0.1"
BACKEND = "glassformer-loopback"
SECONDS_TO_SAVE = 50
"""After a signal, before the processes are killed."""


@dataclass(frozen=True)
class Outcome:
    exit_code: int
    said: str
    """What the first rank wrote to standard output."""
    problem: str = ""
    """Which rank died of what, if none of them can have said it."""


def launch(command: Sequence[str], processes: int, max_restarts: int) -> Outcome:
    """Run a command so many times as ranks of one group, to its end; all are started again if one dies."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // processes)))
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(SECONDS_TO_SAVE))
    with tempfile.TemporaryDirectory(prefix="glassformer-") as folder, _quiet_and_put_back():
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            run_id=OUR_RUN,
            rdzv_backend=BACKEND,
            rdzv_endpoint=LOOPBACK,
            local_addr=LOOPBACK,
            max_restarts=max_restarts,
            logs_specs=DefaultLogsSpecs(log_dir=folder, redirects=Std.OUT),
        )
        exit_code, problem = 0, ""
        try:
            elastic_launch(config, command[0])(*command[1:])
        except SignalException as stop:
            exit_code = 128 + stop.sigval
        except ChildFailedError as failed:
            exit_code, problem = _first_failure(failed)
        return Outcome(exit_code, _first_ranks_words(Path(folder)), problem)


def _first_failure(failed: ChildFailedError) -> tuple[int, str]:
    """Of failures in the same second, a process that was killed is the cause and not the consequence."""
    rank, failure = min(failed.failures.items(), key=lambda item: (item[1].timestamp, item[1].exitcode >= 0))
    if failure.exitcode >= 0:
        return failure.exitcode, "" if failure.exitcode > 1 else f"rank {rank} has failed"
    name = signal.Signals(-failure.exitcode).name
    return 1, f"rank {rank} (process {failure.pid}) was killed by {name}; the others were ended"


def _first_ranks_words(folder: Path) -> str:
    """Of the last attempt."""
    attempts = {
        int(found[1]): path
        for path in folder.glob("*/attempt_*/0/stdout.log")
        if (found := re.search(r"attempt_(\d+)", str(path)))
    }
    return attempts[max(attempts)].read_text(encoding="utf-8") if attempts else ""


@contextlib.contextmanager
def _quiet_and_put_back() -> Iterator[None]:
    """The agent's log says what `Outcome` says, and its signal handlers are not for us."""
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
    """One agent, and a store that listens on loopback alone: PyTorch's own would listen everywhere."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self._store: TCPStore | None = None

    @property
    def use_agent_store(self) -> bool:
        return True

    def get_backend(self) -> str:
        return BACKEND

    def next_rendezvous(self) -> RendezvousInfo:
        """A new store for every attempt."""
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


def _rendezvous(parameters: RendezvousParameters) -> RendezvousHandler:
    return LoopbackRendezvous(parameters.run_id)


rendezvous_handler_registry.register(BACKEND, _rendezvous)
