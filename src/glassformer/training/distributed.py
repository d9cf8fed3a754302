"""Process group of a distributed run: collectives, rank 0, rendezvous and a shared checkpoint store."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import socket
import struct
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as collective
from torch import Tensor

from glassformer.core.errors import ErrorDetail, UserError, user_error
from glassformer.training.checkpoints import Checkpoint, CheckpointStore, DamagedCheckpoint

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

TIMEOUT = timedelta(minutes=30)
"""Maximum wait for another rank. It is long because rank 0 may read data or write a large checkpoint."""

ROLL_CALL_SECONDS = 3.0
"""Seconds that the remaining ranks wait for each other before they report which ranks are gone."""

SIOCGIFADDR = 0x8915
"""Linux ioctl request code that returns the address of a network interface."""

RUN_ID = "glassformer"
"""Run ID in PyTorch's elastic launcher for processes started by `--processes`."""

CONNECTION_ERROR = re.compile(r"gloo|nccl|[Cc]onnection|[Ss]ocket|[Tt]imed out|timeout|Broken pipe", re.ASCII)
"""Pattern of PyTorch's error messages about a rank that does not respond."""


class LostRanks(Exception):
    """Exception for ranks that ended or do not respond. The other ranks cannot continue without them."""

    def __init__(self, lost: Mapping[int, str], count: int) -> None:
        self.lost = dict(lost)
        names = "; ".join(f"rank {rank} of {count} is gone ({where})" for rank, where in lost.items())
        super().__init__(names or "a rank did not respond, although all ranks are running")


class RankZeroFailed(UserError):
    """Error on the other ranks if work on rank 0 failed. Rank 0 reports the cause itself."""


class ProcessGroup:
    """Process group with one process, and base class of groups with several processes."""

    rank = 0
    world_size = 1

    @property
    def is_rank_zero(self) -> bool:
        """True on rank 0, the only rank that prints and that writes events, checkpoints and results."""
        return self.rank == 0

    def sum(self, *numbers: float) -> list[float]:
        """Return each number summed over all ranks."""
        return list(numbers)

    def max(self, *numbers: float) -> list[float]:
        """Return the maximum of each number over all ranks."""
        return list(numbers)

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's value on all ranks. The value must be JSON-serialisable."""
        return value

    def broadcast_tensors(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return rank 0's tensors on all ranks."""
        return dict(tensors)

    def gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of all ranks: `name` from rank 0, `name.1` from rank 1. Shapes must agree."""
        return dict(tensors)

    def select_own(self, gathered: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return this rank's tensors from the result of `gather`, which a checkpoint may have stored.

        The result is empty if the group had fewer ranks at that time.
        """
        if self.is_rank_zero:
            return {name: tensor for name, tensor in gathered.items() if "." not in name}
        ending = f".{self.rank}"
        return {name.removesuffix(ending): t for name, t in gathered.items() if name.endswith(ending)}

    def on_rank_zero(self, work: Callable[[], Any]) -> Any:
        """Call `work` on rank 0 and return its JSON result on all ranks. If it fails, all ranks raise."""
        failure: Exception | None = None
        outcome: dict[str, Any] = {}
        if self.is_rank_zero:
            try:
                outcome = {"value": work()}
            except Exception as error:
                failure, outcome = error, {"failure": str(error)}
        outcome = self.broadcast(outcome)
        if failure is not None:
            raise failure
        if "failure" in outcome:
            raise RankZeroFailed(ErrorDetail(outcome["failure"], path="rank 0"))
        return outcome["value"]

    def is_reported_by_rank_zero(self, text: str) -> bool:
        """Return True if rank 0 reports the same error text, so that this rank need not print it."""
        return False

    def explain(self, error: Exception) -> Exception:
        """Return a LostRanks with the missing ranks if a lost connection caused `error`, else `error`."""
        return error

    def leave(self) -> None:
        """Leave the process group and close its connections."""


class TorchProcessGroup(ProcessGroup):
    """Process group with several processes, connected by `torch.distributed`."""

    def __init__(self, store: Store, rank: int, count: int) -> None:
        from torch._C._distributed_c10d import PrefixStore

        self.rank, self.world_size = rank, count
        self._store = PrefixStore("glassformer", store)
        has_gpus = torch.cuda.is_available() and collective.is_nccl_available()
        collective.init_process_group(
            "cpu:gloo,cuda:nccl" if has_gpus else "gloo",
            store=PrefixStore("group", store),
            rank=rank,
            world_size=count,
            timeout=TIMEOUT,
        )
        # Exchange process and host of all ranks now; a lost rank cannot be asked later.
        self._store.set(f"location.{rank}", f"process {os.getpid()} on {socket.gethostname()}")
        self._locations = [self._store.get(f"location.{other}").decode() for other in range(count)]

    def sum(self, *numbers: float) -> list[float]:
        return self._reduce(numbers, collective.ReduceOp.SUM)

    def max(self, *numbers: float) -> list[float]:
        return self._reduce(numbers, collective.ReduceOp.MAX)

    def _reduce(self, numbers: tuple[float, ...], operation: Any) -> list[float]:
        reduced = torch.tensor(numbers, dtype=torch.float64)
        collective.all_reduce(reduced, operation)
        return reduced.tolist()

    def broadcast(self, value: Any) -> Any:
        data = bytearray(json.dumps(value).encode() if self.is_rank_zero else b"")
        size = torch.tensor(len(data))
        collective.broadcast(size, 0)
        content = torch.frombuffer(data or bytearray(int(size)), dtype=torch.uint8)
        collective.broadcast(content, 0)
        return json.loads(content.numpy().tobytes())

    def broadcast_tensors(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        listed = [[name, str(t.dtype).removeprefix("torch."), list(t.shape)] for name, t in tensors.items()]
        received = {}
        for name, dtype, shape in self.broadcast(listed):
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            if self.is_rank_zero:
                tensor = tensors[name].detach().cpu().contiguous()
            if tensor.numel():
                collective.broadcast(tensor.reshape(-1).view(torch.uint8), 0)
            received[name] = tensor
        return received

    def gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        gathered: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            by_rank = [torch.empty_like(tensor) for _ in range(self.world_size)]
            collective.all_gather(by_rank, tensor)
            gathered |= {f"{name}.{rank}" if rank else name: t for rank, t in enumerate(by_rank)}
        return gathered

    def is_reported_by_rank_zero(self, text: str) -> bool:
        try:
            if self.is_rank_zero:
                self._store.set("reported", text)
                return False
            return self._wait_for(["reported"]) and self._store.get("reported").decode() == text
        except RuntimeError:  # the store ended with the process that hosted it
            return False

    def explain(self, error: Exception) -> Exception:
        is_lost = isinstance(error, RuntimeError) and CONNECTION_ERROR.search(str(error)) is not None
        return LostRanks(self._roll_call(), self.world_size) if is_lost else error

    def _roll_call(self) -> dict[int, str]:
        """Return each rank that does not respond, with its location (process and host).

        Ranks respond through the key-value store, because collectives fail if a rank is missing.
        """
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # report before the launcher ends this process
        names = [f"present.{rank}" for rank in range(self.world_size)]
        try:
            self._store.set(names[self.rank], "")
            self._wait_for(names)
            missing = [r for r in range(self.world_size) if not self._store.check([names[r]])]
            return {rank: self._locations[rank] for rank in missing}
        except RuntimeError:  # the store ended with rank 0, which hosted it
            return {0: self._locations[0]}

    def _wait_for(self, names: list[str]) -> bool:
        end = time.monotonic() + ROLL_CALL_SECONDS
        while not self._store.check(names):
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        return True

    def leave(self) -> None:
        collective.destroy_process_group()


def is_launched() -> bool:
    """Return True if `torchrun` or a launcher with the same environment variables started this process."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


def join() -> ProcessGroup:
    """Join the process group of this launch and return it; a single process gets a group of its own."""
    if not is_launched() or os.environ["WORLD_SIZE"] == "1":
        return ProcessGroup()
    from torch.distributed.rendezvous import rendezvous

    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:  # one machine
        use_loopback()
    elif (interface := interface_to(os.environ["MASTER_ADDR"])) is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    if torch.cuda.is_available():
        if local_rank >= torch.cuda.device_count():
            raise user_error(
                f"no GPU is left for rank {os.environ['RANK']}",
                path="processes",
                value=os.environ.get("LOCAL_WORLD_SIZE"),
                hint=f"start {torch.cuda.device_count()} processes on this machine, one per GPU",
            )
        torch.cuda.set_device(local_rank)
    store, rank, count = next(rendezvous("env://", timeout=TIMEOUT))
    return TorchProcessGroup(fresh_store(store, rank, count), rank, count)


def fresh_store(store: Store, rank: int, count: int) -> Store:
    """Return a view of the key-value store under a prefix that no earlier attempt has used.

    A launcher keeps its store when it restarts ranks, with the stale entries of the earlier attempt. Machines
    may count attempts differently. Therefore rank 0 draws a random prefix and passes it to all ranks.
    """
    from torch._C._distributed_c10d import PrefixStore

    name = uuid.uuid4().hex
    if rank:
        store.set(f"name.{rank}", name)
        store.wait([f"group.{name}"], TIMEOUT)
        group = store.get(f"group.{name}").decode()
        store.set(f"{group}.{rank}", "")
        return PrefixStore(group, store)
    missing, end = list(range(1, count)), time.monotonic() + TIMEOUT.total_seconds()
    while missing:
        for other in missing:  # a name of an earlier attempt may still be there: try again in the next round
            if store.check([f"name.{other}"]):
                store.set(f"group.{store.get(f'name.{other}').decode()}", name)
        missing = [other for other in missing if not store.check([f"{name}.{other}"])]
        if missing and time.monotonic() > end:
            raise LostRanks(dict.fromkeys(missing, "it never joined"), count)
        time.sleep(0.02 if missing else 0)
    return PrefixStore(name, store)


def is_launched_by_us() -> bool:
    """Return True if `--processes` started this process, in which case the parent prints the result."""
    return os.environ.get("TORCHELASTIC_RUN_ID") == RUN_ID


def restarts() -> int:
    """Return how often the launcher has restarted this process."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def use_loopback() -> None:
    """Restrict Gloo and NCCL to the loopback interface, so that no other machine can connect."""
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    if loopback is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", loopback)


def interface_to(host: str) -> str | None:
    """Return the name of the network interface that reaches a host, for Gloo; None if it is unknown."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # nothing is sent
        address = socket.inet_aton(probe.getsockname()[0])
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # the interface has no address
                found = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()))
                if found[20:24] == address:
                    return name
    return None


class SharedStore(CheckpointStore):
    """Checkpoint store whose files only rank 0 reads and writes. Other ranks get checkpoints by broadcast."""

    def __init__(self, store: CheckpointStore, process_group: ProcessGroup) -> None:
        super().__init__(store.folder, store.keep)
        self._own = store
        self._on_rank_zero = process_group.on_rank_zero
        self._broadcast = process_group.broadcast_tensors

    def save(self, name: str, checkpoint: Checkpoint, *, is_best: bool = False) -> None:
        self._on_rank_zero(lambda: self._own.save(name, checkpoint, is_best=is_best))

    def keep_snapshot(self, name: str, checkpoint: Checkpoint) -> None:
        self._on_rank_zero(lambda: self._own.keep_snapshot(name, checkpoint))

    def delete_snapshots_after(self, after_step: int) -> None:
        self._on_rank_zero(lambda: self._own.delete_snapshots_after(after_step))

    def repair_pointers(self, best: int | None, latest: int, report: Callable[[str], None]) -> None:
        self._on_rank_zero(lambda: self._own.repair_pointers(best, latest, report))

    def states(self) -> list[str]:
        return list(self._on_rank_zero(self._own.states))

    def before(self, name: str) -> list[str]:
        return list(self._on_rank_zero(lambda: self._own.before(name)))

    def load(self, name: str, groups: Sequence[str] | None = None) -> Checkpoint:
        found = self._read(lambda: (name, self._own.load(name, groups)))
        assert found is not None
        return found[1]

    def load_newest(
        self, warn: Callable[[str], None] | None = None, *, only_regular: bool = False
    ) -> tuple[str, Checkpoint] | None:
        return self._read(lambda: self._own.load_newest(warn, only_regular=only_regular))

    def _read(self, read: Callable[[], tuple[str, Checkpoint] | None]) -> tuple[str, Checkpoint] | None:
        """Call `read` on rank 0 and return its checkpoint, with all tensors, on all ranks."""
        found: tuple[str, Checkpoint] | None = None

        def describe() -> dict[str, Any] | None:
            nonlocal found
            try:
                found = read()
            except DamagedCheckpoint as damage:
                return {"damage": str(damage)}
            if found is None:
                return None
            return {"name": found[0], "state": found[1].state, "groups": list(found[1].tensors)}

        described = self._on_rank_zero(describe)
        if described is None:
            return None
        if "damage" in described:
            raise DamagedCheckpoint(described["damage"])
        own = found[1].tensors if found else {}
        tensors = {group: self._broadcast(own.get(group, {})) for group in described["groups"]}
        return described["name"], Checkpoint(tensors, described["state"])
