"""Two machines as two network namespaces with a virtual cable: the example of docs/scaling.md."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from glassformer.runs.folder import RunFolder
from glassformer.runs.session import TrainingSession
from glassformer.training.checkpoints import CheckpointStore
from glassformer.training.distributed import interface_to

SECONDS = 400.0
ADDRESSES = ("10.213.7.1", "10.213.7.2")
OPTIONS = {"model.dropout": 0.0, "model.bias": False, "training.save_every": 4}


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"ip {' '.join(words)}: {done.stderr.strip()}")


@pytest.fixture
def nodes() -> Iterator[list[str]]:
    """Create two network namespaces that reach only each other, and return their names."""
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("only root on Linux, with the program ip, can make network namespaces")
    names = [f"glassformer-{os.getpid()}-{number}" for number in range(2)]
    ends = [f"gf{os.getpid() % 100000}{side}" for side in "ab"]
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for name, end, address in zip(names, ends, ADDRESSES, strict=True):
            ip("link", "set", end, "netns", name)
            ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
            ip("-n", name, "link", "set", end, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


@pytest.fixture
def torchrun(nodes: list[str], tiny_file: Path, tmp_path: Path) -> Iterator[Any]:
    """Start the launcher on one of the machines; each machine has its own folder."""
    started: list[subprocess.Popen[str]] = []

    def start(node: int, *words: str) -> subprocess.Popen[str]:
        # The host name does not resolve to this address, so `is_host` marks the host of the rendezvous.
        # Without the bare "--", torchrun would parse our --run as its own option.
        launcher = f"""
            {sys.executable} -m torch.distributed.run --nnodes 2 --nproc-per-node 1 --max-restarts 1
            --rdzv-backend c10d --rdzv-endpoint {ADDRESSES[0]}:29400 --rdzv-id test
            --rdzv-conf is_host={int(node == 0)} --local-addr {ADDRESSES[node]}
            -m -- glassformer train {tiny_file} --run run --resume""".split()
        folder = tmp_path / f"machine-{node}"
        folder.mkdir()
        process = subprocess.Popen(
            ["ip", "netns", "exec", nodes[node], *launcher, *words],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=open(folder / "errors", "w"),  # noqa: SIM115  the child's
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(SECONDS)


@pytest.mark.long
def test_two_machines_train_as_one_and_survive_a_killed_rank(
    torchrun: Any, tiny_config: Any, tmp_path: Path
) -> None:
    """Kill rank 1: both machines restart from the checkpoint in the first machine's folder."""
    words = [f"{path}={json.dumps(value)}" for path, value in OPTIONS.items()]
    words += ["training.max_epochs=40"]
    processes = [torchrun(node, *words, "--json") for node in range(2)]
    run = tmp_path / "machine-0" / "run"
    end = time.monotonic() + SECONDS
    while not (run / "events.jsonl").exists() or '"step": 10,' not in (run / "events.jsonl").read_text():
        assert time.monotonic() < end and all(process.poll() is None for process in processes), errors(
            tmp_path
        )
        time.sleep(0.01)
    os.kill(_rank_below(processes[1].pid), signal.SIGKILL)
    outputs = [process.communicate(timeout=SECONDS)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors(tmp_path)
    printed = [output for output in outputs if output.strip()]
    assert len(printed) == 1  # only rank 0 prints, on whichever machine it is
    assert json.loads(printed[0])["processes"] == 2
    assert "resuming from step " in errors(tmp_path)

    alone = tiny_config({**OPTIONS, "training.max_epochs": 40})
    TrainingSession(alone, RunFolder(tmp_path / "alone")).run()
    weights = [_weights(folder) for folder in (run, tmp_path / "alone")]
    assert weights[0].keys() == weights[1].keys()
    for name, weight in weights[0].items():
        assert float((weight - weights[1][name]).abs().max()) < 1e-4, name  # 320 steps


def errors(folder: Path) -> str:
    return "\n".join(path.read_text() for path in sorted(folder.glob("machine-*/errors")))


def _rank_below(launcher: int) -> int:
    """Return the only child of a launcher; `ip netns exec` has replaced itself by the launcher."""
    (child,) = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return int(child)


def _weights(run: Path) -> dict[str, Any]:
    newest = CheckpointStore(run / "checkpoints").load_newest()
    assert newest is not None
    return dict(newest[1].tensors["model"])


def test_the_interface_that_reaches_a_host() -> None:
    if sys.platform == "linux":
        assert interface_to("127.0.0.1") == "lo"
    assert interface_to("no.such.host.invalid") is None
