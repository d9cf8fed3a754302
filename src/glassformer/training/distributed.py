"""Process groups: collectives, rank 0, and a checkpoint store shared by all ranks."""

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
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as collective
from torch import Tensor

from glassformer.core.errors import ErrorDetail, UserError, user_error
from glassformer.data.batching import Batch
from glassformer.tasks.base import Task
from glassformer.training.checkpoints import Checkpoint, CheckpointStore, DamagedCheckpoint

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


PATIENCE = timedelta(minutes=30)
"""How long a rank waits for the others: the first one may be reading data or writing a large checkpoint."""

ROLL_CALL_SECONDS = 3.0
"""How long the ranks that are left wait for each other's word before they say who is gone."""

SIOCGIFADDR = 0x8915
"""Linux's request for the address of a network interface."""

OUR_RUN = "glassformer"
"""The elastic launcher's name for a run that `--processes` has started."""

BROKEN = re.compile(r"gloo|nccl|[Cc]onnection|[Ss]ocket|[Tt]imed out|timeout|Broken pipe", re.ASCII)
"""In PyTorch's errors, when another rank did not answer."""


class LostRanks(Exception):
    """ProcessGroup that were there and are gone; the others cannot go on without them."""

    def __init__(self, lost: Mapping[int, str], count: int) -> None:
        self.lost = dict(lost)
        names = "; ".join(f"rank {rank} of {count} is gone ({where})" for rank, where in lost.items())
        super().__init__(names or "a rank did not answer, though all of them are there")


class WriterFailed(UserError):
    """The rank that writes has failed, and says so itself."""


class ProcessGroup:
    """The only process: it has all of the work, and everyone agrees with it."""

    rank = 0
    count = 1

    @property
    def is_rank_zero(self) -> bool:
        """One of them writes the record, checkpoints and results, and speaks to people."""
        return self.rank == 0

    def sum(self, *numbers: float) -> list[float]:
        return list(numbers)

    def largest(self, *numbers: float) -> list[float]:
        return list(numbers)

    def from_rank_zero(self, value: Any) -> Any:
        """What the writer has, anything that JSON can hold; the others' value is not looked at."""
        return value

    def tensors_from_writer(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(tensors)

    def gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Everyone's: `name` is the writer's, `name.1` that of rank 1. All have the same names and shapes."""
        return dict(tensors)

    def own(self, gathered: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What this rank gave to `gather`; nothing if there was no such rank then."""
        if self.is_rank_zero:
            return {name: tensor for name, tensor in gathered.items() if "." not in name}
        ending = f".{self.rank}"
        return {name.removesuffix(ending): t for name, t in gathered.items() if name.endswith(ending)}

    def on_rank_zero(self, work: Callable[[], Any]) -> Any:
        """What the writer's work gives, if JSON can hold it. If it fails, all ranks fail."""
        failure: Exception | None = None
        outcome: dict[str, Any] = {}
        if self.is_rank_zero:
            try:
                outcome = {"value": work()}
            except Exception as error:
                failure, outcome = error, {"failure": str(error)}
        outcome = self.from_rank_zero(outcome)
        if failure is not None:
            raise failure
        if "failure" in outcome:
            raise WriterFailed(ErrorDetail(outcome["failure"], path="rank 0"))
        return outcome["value"]

    def part(self, task: Task, indices: np.ndarray, epoch: int) -> Batch:
        """This rank's share of a batch of the training split; `indices` stay those of the whole batch."""
        share = indices[self.rank :: self.count]
        kind = Batch if len(share) else IdleBatch
        batch = task.batch("train", share if len(share) else indices[:1], epoch)
        return kind(batch.inputs, batch.targets, indices)

    def is_said_by_writer(self, text: str) -> bool:
        """Whether another rank tells people the same, so that this one need not."""
        return False

    def explain(self, error: Exception) -> Exception:
        """The error itself or, if it came from a rank that is gone, which one that is."""
        return error

    def leave(self) -> None: ...


class IdleBatch(Batch):
    """For a rank that a small batch has no example for: it computes to keep in step, and does not count."""

    def target_count(self) -> int:
        return 0

    def token_count(self) -> int:
        return 0


class Group(ProcessGroup):
    """One of several processes, joined by `torch.distributed`."""

    def __init__(self, store: Store, rank: int, count: int) -> None:
        from torch._C._distributed_c10d import PrefixStore

        self.rank, self.count = rank, count
        self._store = PrefixStore("glassformer", store)
        has_gpus = torch.cuda.is_available() and collective.is_nccl_available()
        collective.init_process_group(
            "cpu:gloo,cuda:nccl" if has_gpus else "gloo",
            store=PrefixStore("group", store),
            rank=rank,
            world_size=count,
            timeout=PATIENCE,
        )
        self._where: list[str] = self._everyones(f"process {os.getpid()} on {socket.gethostname()}")

    def _everyones(self, text: str) -> list[str]:
        """Known from the beginning: who is gone cannot be asked where it was."""
        self._store.set(f"where.{self.rank}", text)
        return [self._store.get(f"where.{rank}").decode() for rank in range(self.count)]

    def sum(self, *numbers: float) -> list[float]:
        return self._reduce(numbers, collective.ReduceOp.SUM)

    def largest(self, *numbers: float) -> list[float]:
        return self._reduce(numbers, collective.ReduceOp.MAX)

    def _reduce(self, numbers: tuple[float, ...], operation: Any) -> list[float]:
        together = torch.tensor(numbers, dtype=torch.float64)
        collective.all_reduce(together, operation)
        return [float(number) for number in together]

    def from_rank_zero(self, value: Any) -> Any:
        data = json.dumps(value).encode() if self.is_rank_zero else b""
        size = torch.tensor(len(data))
        collective.broadcast(size, 0)
        content = torch.empty(int(size), dtype=torch.uint8)
        if self.is_rank_zero:
            content = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        collective.broadcast(content, 0)
        return json.loads(content.numpy().tobytes())

    def tensors_from_writer(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        listed = [[name, str(t.dtype).removeprefix("torch."), list(t.shape)] for name, t in tensors.items()]
        received = {}
        for name, dtype, shape in self.from_rank_zero(listed):
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
            everyones = [torch.empty_like(tensor) for _ in range(self.count)]
            collective.all_gather(everyones, tensor)
            gathered |= {f"{name}.{rank}" if rank else name: t for rank, t in enumerate(everyones)}
        return gathered

    def is_said_by_writer(self, text: str) -> bool:
        try:
            if self.is_rank_zero:
                self._store.set("said", text)
            return (
                not self.is_rank_zero
                and self._wait_for(["said"])
                and self._store.get("said").decode() == text
            )
        except RuntimeError:  # the store is gone, and so is who kept it
            return False

    def explain(self, error: Exception) -> Exception:
        is_broken = isinstance(error, RuntimeError) and BROKEN.search(str(error)) is not None
        return LostRanks(self._roll_call(), self.count) if is_broken else error

    def _roll_call(self) -> dict[int, str]:
        """Who does not answer within a while. Collectives are broken now, the store may still be there."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a launcher ends us soon; this is said before
        names = [f"here.{rank}" for rank in range(self.count)]
        try:
            self._store.set(names[self.rank], "")
            self._wait_for(names)
            return {r: self._where[r] for r in range(self.count) if not self._store.check([names[r]])}
        except RuntimeError:  # it went with the process that kept it
            return {0: self._where[0]}

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
    """Whether `torchrun`, or another program that speaks its language, has started this process."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


def join() -> ProcessGroup:
    """Become one of the processes that were started together; alone if there is only one."""
    if not is_launched() or os.environ["WORLD_SIZE"] == "1":
        return ProcessGroup()
    from torch.distributed.rendezvous import rendezvous

    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    is_one_machine = os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]
    if is_one_machine:
        stay_on_this_machine()
    elif (interface := interface_towards(os.environ["MASTER_ADDR"])) is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    if torch.cuda.is_available():
        if local_rank >= torch.cuda.device_count():
            raise user_error(
                f"rank {os.environ['RANK']} has no GPU of its own",
                path="processes",
                value=os.environ.get("LOCAL_WORLD_SIZE"),
                hint=f"{torch.cuda.device_count()} processes on this machine, one for each GPU",
            )
        torch.cuda.set_device(local_rank)
    store, rank, count = next(rendezvous("env://", timeout=PATIENCE))
    return Group(fresh_store(store, rank, count), rank, count)


def fresh_store(store: Store, rank: int, count: int) -> Store:
    """A part of the store that no earlier attempt has written to.

    A launcher keeps its store when it starts ranks again, and what they left there leads nowhere now. Of the
    attempt's number each machine has its own idea; so every rank makes up a name, and the first one's counts.
    """
    from torch._C._distributed_c10d import PrefixStore

    name = uuid.uuid4().hex
    if rank:
        store.set(f"name.{rank}", name)
        store.wait([f"group.{name}"], PATIENCE)
        group = store.get(f"group.{name}").decode()
        store.set(f"{group}.{rank}", "")
        return PrefixStore(group, store)
    missing, end = list(range(1, count)), time.monotonic() + PATIENCE.total_seconds()
    while missing:
        for other in missing:  # its name may still be that of an earlier attempt: the next round sees
            if store.check([f"name.{other}"]):
                store.set(f"group.{store.get(f'name.{other}').decode()}", name)
        missing = [other for other in missing if not store.check([f"{name}.{other}"])]
        if missing and time.monotonic() > end:
            raise LostRanks(dict.fromkeys(missing, "it never came"), count)
        time.sleep(0.02 if missing else 0)
    return PrefixStore(name, store)


def is_ours() -> bool:
    """Whether `--processes` has started this process: then the one that started it tells the result."""
    return os.environ.get("TORCHELASTIC_RUN_ID") == OUR_RUN


def restarts() -> int:
    """How often the launcher has started this process again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def stay_on_this_machine() -> None:
    """Let ranks listen on the loopback interface alone: nobody else gets in, and no name is looked up."""
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    if loopback is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", loopback)


def interface_towards(host: str) -> str | None:
    """The network interface that leads to a machine; gloo would take the one of this machine's own name."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # nothing is sent
        address = socket.inet_aton(probe.getsockname()[0])
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has no address
                found = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()))
                if found[20:24] == address:
                    return name
    return None


class SharedStore(CheckpointStore):
    """Only the writer's folder is looked at, so that the others need not see it."""

    def __init__(self, store: CheckpointStore, process_group: ProcessGroup) -> None:
        super().__init__(store.folder, store.keep)
        self._own = store
        self.process_group = process_group

    def save(self, name: str, checkpoint: Checkpoint, *, is_best: bool = False) -> Path:
        return Path(
            self.process_group.on_rank_zero(lambda: str(self._own.save(name, checkpoint, is_best=is_best)))
        )

    def keep_watched(self, name: str, checkpoint: Checkpoint) -> Path:
        return Path(self.process_group.on_rank_zero(lambda: str(self._own.keep_watched(name, checkpoint))))

    def forget_watched(self, after_step: int) -> None:
        self.process_group.on_rank_zero(lambda: self._own.forget_watched(after_step))

    def mend_pointers(self, best: int | None, latest: int, tell: Callable[[str], None]) -> None:
        self.process_group.on_rank_zero(lambda: self._own.mend_pointers(best, latest, tell))

    def states(self) -> list[str]:
        return list(self.process_group.on_rank_zero(self._own.states))

    def before(self, name: str) -> list[str]:
        return list(self.process_group.on_rank_zero(lambda: self._own.before(name)))

    def load(self, name: str, groups: Sequence[str] | None = None) -> Checkpoint:
        found = self._read(lambda: (name, self._own.load(name, groups)))
        assert found is not None
        return found[1]

    def load_newest(
        self, warn: Callable[[str], None] | None = None, *, only_regular: bool = False
    ) -> tuple[str, Checkpoint] | None:
        return self._read(lambda: self._own.load_newest(warn, only_regular=only_regular))

    def _read(self, read: Callable[[], tuple[str, Checkpoint] | None]) -> tuple[str, Checkpoint] | None:
        """Every rank gets the whole checkpoint; what it keeps of it is its own business."""
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

        described = self.process_group.on_rank_zero(describe)
        if described is None:
            return None
        if "damage" in described:
            raise DamagedCheckpoint(described["damage"])
        tensors = {
            group: self.process_group.tensors_from_writer(found[1].tensors[group] if found else {})
            for group in described["groups"]
        }
        return described["name"], Checkpoint(tensors, described["state"])
