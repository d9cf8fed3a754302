"""Several ranks that train one model over loopback, against one process with the same batches."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._C._distributed_c10d import FileStore

from glassformer.blocks.heads import LossOutput
from glassformer.core.errors import UserError
from glassformer.runs.experiment import Experiment, resolve
from glassformer.runs.folder import RunFolder
from glassformer.runs.session import TrainingSession
from glassformer.training import bf16
from glassformer.training.checkpoints import CheckpointStore
from glassformer.training.distributed import (
    LostRanks,
    ProcessGroup,
    TorchProcessGroup,
    fresh_store,
    use_loopback,
)
from glassformer.training.strategies import DDPStrategy, IdleBatch
from glassformer.training.trainer import Trainer, TrainingContext

SECONDS = 120.0
Together = Callable[..., list[Any]]


@pytest.fixture
def together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Together:
    """Run a function in `count` processes of one group and return their results as JSON."""
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    calls = iter(range(1000))

    def run(work: Callable[[ProcessGroup], Any], count: int = 2, may_die: bool = False) -> list[Any]:
        folder = tmp_path / f"together-{next(calls)}"
        folder.mkdir()
        children = [_fork(work, folder, rank, count) for rank in range(count)]
        end = time.monotonic() + SECONDS
        codes = [_wait(child, end) for child in children]
        files = [folder / f"{rank}.json" for rank in range(count)]
        if not may_die:
            assert codes == [0] * count, (folder / "errors").read_text()
        return [json.loads(file.read_text()) if file.exists() else None for file in files]

    return run


def _fork(work: Callable[[ProcessGroup], Any], folder: Path, rank: int, count: int) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        use_loopback()
        os.dup2(os.open(folder / "errors", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), 2)
        group = TorchProcessGroup(FileStore(str(folder / "store"), count), rank, count)
        (folder / f"{rank}.json").write_text(json.dumps(work(group)))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _wait(child: int, end: float) -> int:
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -signal.SIGALRM


def trained(config: Any, task: Any, process_group: ProcessGroup, steps: int) -> dict[str, Any]:
    """Train a new model for this many steps and return its weights and state."""
    trainer = Experiment(config, task).build_trainer(TrainingContext(process_group=process_group))
    trainer.model.train()
    groups = trainer.step_batches()
    for _ in range(steps):
        trainer.step(next(groups))
    return summary(trainer)


def summary(trainer: Trainer) -> dict[str, Any]:
    stored = trainer.eval_model.state_dict()
    weights = {name: getattr(weight, "full_tensor", lambda w=weight: w)() for name, weight in stored.items()}
    state = trainer.state.to_json()
    facts = {name: state[name] for name in ("step", "tokens", "order", "recent_losses")}
    window = {name: state["window"][name] for name in ("correct", "count", "tokens")}
    return {**facts, "window": window, "weights": {name: w.tolist() for name, w in weights.items()}}


def largest_difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    assert one.keys() == other.keys()
    return max(float(np.max(np.abs(np.asarray(one[k]) - np.asarray(other[k])), initial=0)) for k in one)


def assert_same(several: list[Any], alone: Mapping[str, Any], tolerance: float = 1e-5) -> None:
    for of_rank in several:
        assert largest_difference(of_rank["weights"], alone["weights"]) < tolerance
        assert np.allclose(of_rank["recent_losses"], alone["recent_losses"], atol=tolerance, rtol=0)
        for name in ("step", "tokens", "order", "window"):
            assert of_rank[name] == alone[name]
    assert all(of_rank["weights"] == several[0]["weights"] for of_rank in several)


# No biases of keys: their gradient is only rounding error, which Adam scales up to full steps.
PLAIN = {"model.dropout": 0.0, "model.bias": False, "training.max_epochs": None, "training.max_steps": 50}


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_processes_train_as_one(
    kind: str, together: Together, tiny_config: Any, ragged_task: Any
) -> None:
    """Compare 50 steps in fp32 on rows of unequal length: same batches, loss and weights."""
    config = tiny_config({**PLAIN, "training.parallel.kind": kind, "training.batch_size": 7})
    alone = trained(config, ragged_task, ProcessGroup(), 50)
    assert alone["step"] == 50
    assert_same(together(lambda process_group: trained(config, ragged_task, process_group, 50)), alone)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_processes_multiply_in_bf16(
    kind: str,
    bf16_runs: None,
    together: Together,
    tiny_config: Any,
    ragged_task: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rounding depends on the rows of a product, so one process is a rough reference for two."""
    monkeypatch.setattr(bf16, "MIN_WEIGHTS", 0)
    monkeypatch.setattr(bf16, "MIN_MULTIPLY_ADDS", 0)
    options = {"training.optimizer.kind": "sgd", "training.gradient_accumulation": 2}
    fp32 = {**PLAIN, **options, "training.parallel.kind": kind}
    config = tiny_config({**fp32, "training.precision": "bf16"})
    plain = trained(tiny_config(fp32), ragged_task, ProcessGroup(), 1)
    alone = trained(config, ragged_task, ProcessGroup(), 6)
    several = together(lambda process_group: trained(config, ragged_task, process_group, 6))
    assert alone["recent_losses"][0] != plain["recent_losses"][0]
    assert_same(several, alone, tolerance=5e-3)
    assert several == together(lambda process_group: trained(config, ragged_task, process_group, 6))


def test_three_processes_and_batches_smaller_than_they_are(together: Together, tiny_config: Any) -> None:
    """Accumulate three batches of two sequences per step; the last step of an epoch has one."""
    config = tiny_config({**PLAIN, "training.batch_size": 2, "training.gradient_accumulation": 3})
    task = config.task.build(0)
    alone = trained(config, task, ProcessGroup(), 24)
    assert_same(together(lambda process_group: trained(config, task, process_group, 24), count=3), alone)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_an_idle_rank_keeps_in_step(kind: str, together: Together, tiny_config: Any) -> None:
    config = tiny_config({**PLAIN, "training.batch_size": 1, "training.parallel.kind": kind})
    task = config.task.build(0)

    def work(process_group: ProcessGroup) -> Any:
        trainer = Experiment(config, task).build_trainer(TrainingContext(process_group=process_group))
        (batch,) = trainer.micro_batches([np.arange(1)], 0)
        assert isinstance(batch, IdleBatch) == (process_group.rank == 1)
        return trained(config, task, process_group, 8)

    assert_same(together(work), trained(config, task, ProcessGroup(), 8))


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd", "lion"])
def test_shards_and_averages_with_every_optimizer(
    optimizer: str, together: Together, tiny_config: Any, ragged_task: Any
) -> None:
    options = {"training.optimizer": {"kind": optimizer}, "training.ema_decay": 0.9}
    config = tiny_config({**PLAIN, **options, "training.parallel.kind": "fsdp"})
    alone = trained(config, ragged_task, ProcessGroup(), 5)
    assert_same(together(lambda process_group: trained(config, ragged_task, process_group, 5)), alone)


def test_muon_needs_whole_matrices(together: Together, tiny_config: Any, ragged_task: Any) -> None:
    config = tiny_config({**PLAIN, "training.optimizer": {"kind": "muon"}, "training.parallel.kind": "fsdp"})

    def work(process_group: ProcessGroup) -> Any:
        with pytest.raises(UserError, match="Muon cannot be used with FSDP"):
            trained(config, ragged_task, process_group, 1)
        return {}

    together(work)


def test_layers_that_are_unfrozen(together: Together, tiny_config: Any, ragged_task: Any) -> None:
    """DDP wraps the model again when a layer is unfrozen."""
    options = {"training.freeze": ["backbone"], "training.unfreeze": {"every": 2, "unit": "steps"}}
    config = tiny_config({**PLAIN, **options, "training.divergence.spike_factor": None})
    alone = trained(config, ragged_task, ProcessGroup(), 8)
    first = Experiment(config, ragged_task).build_model().state_dict()
    before = {name: weight.tolist() for name, weight in first.items()}
    assert largest_difference(before, alone["weights"]) > 1e-3
    assert_same(together(lambda process_group: trained(config, ragged_task, process_group, 8)), alone)


# ---------------------------------------------------------------- whole runs


def run_of(
    config: Any, path: Path, process_group: ProcessGroup, stop_at: int | None = None
) -> dict[str, Any]:
    """Run a whole training; with `stop_at`, the last rank receives a stop request after that step."""
    training = TrainingSession(config, RunFolder(path), process_group=process_group)
    if stop_at is not None and process_group.rank == process_group.world_size - 1:
        training.should_stop = lambda: (  # type: ignore[method-assign]
            training.trainer.state.step == stop_at and signal.raise_signal(signal.SIGTERM) is None
        )
    results = training.run()
    return {"results": results, "exit_code": training.exit_code, **summary(training.trainer)}


def files_of(path: Path) -> dict[str, Any]:
    """Files of a run without the fields measured by a clock."""
    store = CheckpointStore(path / "checkpoints")
    _, newest = store.load_newest() or pytest.fail("no checkpoint")
    tensors = {
        f"{group}/{name}": tensor.tolist()
        for group, tensors in newest.tensors.items()
        for name, tensor in tensors.items()
    }
    lines = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
    clock = {"tokens_per_second", "seconds"}
    events = [{name: value for name, value in line.items() if name not in clock} for line in lines]
    return {"tensors": tensors, "events": events, "checkpoints": store.names()}


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.parametrize("step", [5, 8])  # after step 8, the end of an epoch, it arrives during a validation
def test_a_run_stopped_on_one_rank_resumes_to_the_bit(
    step: int, kind: str, together: Together, tiny_config: Any, tmp_path: Path
) -> None:
    """Use dropout, which each rank draws for itself. Rank 1 receives the signal; both save and exit."""
    config = tiny_config({"training.max_epochs": 2, "training.parallel.kind": kind})
    uninterrupted, resumed = tmp_path / "uninterrupted", tmp_path / "resumed"
    first, second = together(lambda process_group: run_of(config, uninterrupted, process_group))
    assert first["exit_code"] == second["exit_code"] == 0
    assert first["weights"] == second["weights"]
    stopped = together(lambda process_group: run_of(config, resumed, process_group, stop_at=step))
    assert [rank["exit_code"] for rank in stopped] == [143, 143]
    assert [rank["results"]["ended"] for rank in stopped] == ["signal", "signal"]
    assert CheckpointStore(resumed / "checkpoints").names() == [f"step-{step:08}-extra"]
    together(lambda process_group: run_of(config, resumed, process_group))
    assert files_of(resumed) == files_of(uninterrupted)
    assert RunFolder(resumed).results()["metrics"] == RunFolder(uninterrupted).results()["metrics"]
    assert RunFolder(uninterrupted).results()["processes"] == 2


def test_ranks_agree_on_when_to_save_by_time(
    together: Together, tiny_config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of rank 1 runs 100 times as fast. Ranks that disagree on a save would wait for ever."""
    config = tiny_config({"training.max_epochs": 2})
    saved: list[str] = []
    save, clock = Trainer.save, time.perf_counter

    def remember(trainer: Trainer, *, is_extra: bool = False) -> None:
        saved.append(f"{trainer.state.step}{' extra' if is_extra else ''}")
        save(trainer, is_extra=is_extra)

    def work(process_group: ProcessGroup) -> Any:
        factor = 1 + 99 * process_group.rank
        monkeypatch.setattr("glassformer.training.trainer.time.perf_counter", lambda: factor * clock())
        monkeypatch.setattr("glassformer.training.checkpoints.FIRST_SAVE_SECONDS", (0.2, 0.2))
        monkeypatch.setattr("glassformer.training.checkpoints.COST_FACTOR", 0)
        monkeypatch.setattr(Trainer, "save", remember)
        return {**run_of(config, tmp_path / "saved", process_group), "saved": saved}

    first, second = together(work)
    assert first["saved"] == second["saved"] and any("extra" in step for step in first["saved"])
    together(lambda process_group: run_of(config, tmp_path / "plain", process_group))
    assert files_of(tmp_path / "saved") == files_of(tmp_path / "plain")


def test_a_signal_during_the_last_evaluation(
    together: Together, tiny_config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal during the last evaluation, after the other ranks have ended, leaves a resumable run."""
    config, finish = tiny_config({"training.max_epochs": 1}), Trainer._finish

    def with_a_signal(trainer: Trainer) -> None:
        finish(trainer)
        if trainer.process_group.is_rank_zero:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_finish", with_a_signal)
        first, second = together(lambda process_group: run_of(config, tmp_path, process_group))
    assert (first["exit_code"], second["exit_code"]) == (143, 0)
    assert (RunFolder(tmp_path).status().name, RunFolder(tmp_path).results()) == ("stopped", {})
    monkeypatch.setattr(Trainer, "step", None)
    first, second = together(lambda process_group: run_of(config, tmp_path, process_group))
    assert (first["exit_code"], first["results"]["ended"]) == (0, "max_epochs")
    assert RunFolder(tmp_path).results()["metrics"]["test"]


@pytest.mark.parametrize("counts", [(2, 1), (1, 2), (2, 3)])
def test_another_number_of_processes_resumes(
    counts: tuple[int, int], together: Together, tiny_config: Any, tmp_path: Path
) -> None:
    """Resume within rounding, and report it."""
    kinds = {1: "ddp", 2: "fsdp", 3: "ddp"}
    before, after = (
        tiny_config({"model.dropout": 0.0, "model.bias": False, "training.parallel.kind": kinds[count]})
        for count in counts
    )
    alone, path = tmp_path / "alone", tmp_path / "several"
    expected = run_of(before, alone, ProcessGroup())
    together(lambda process_group: run_of(before, path, process_group, stop_at=5), count=counts[0])

    def resume(process_group: ProcessGroup) -> dict[str, Any]:
        training = TrainingSession(after, RunFolder(path), process_group=process_group)
        messages: list[str] = []
        training.reporter.info = messages.append  # type: ignore[method-assign]
        training.run()
        return {"messages": messages, **summary(training.trainer)}

    several = together(resume, count=counts[1])
    assert_same(several, expected)
    wanted = f"checkpoint from {counts[0]} processes, resuming with {counts[1]}"
    assert any(wanted in text for text in several[0]["messages"])


def test_the_last_checkpoints_are_averaged_by_all(
    together: Together, tiny_config: Any, tmp_path: Path
) -> None:
    """Rank 0 has the checkpoints; all ranks evaluate the average and keep it or not."""
    config = tiny_config({"model.dropout": 0.0, "model.bias": False, "training.average_last": 2})
    run_of(config, tmp_path / "alone", ProcessGroup())
    together(lambda process_group: run_of(config, tmp_path / "several", process_group))
    alone, several = (files_of(tmp_path / name) for name in ("alone", "several"))
    kept = [event for event in alone["events"] if event["event"] == "averaged"]
    assert kept and kept == [event for event in several["events"] if event["event"] == "averaged"]
    assert several["tensors"].keys() - alone["tensors"].keys() == {"random/cpu.1"}
    for name in alone["tensors"].keys() - {"random/cpu"}:
        assert np.allclose(alone["tensors"][name], several["tensors"][name], atol=1e-5, rtol=0), name


def test_all_ranks_roll_back_together(together: Together, tiny_config: Any, tmp_path: Path) -> None:
    """One rank's loss is NaN; all ranks return to the checkpoint that rank 0 reads."""
    options = {"training.divergence.action": "roll-back", "training.max_epochs": 1}
    config = tiny_config(options)

    def work(process_group: ProcessGroup) -> dict[str, Any]:
        training = TrainingSession(config, RunFolder(tmp_path / "run"), process_group=process_group)
        compute_loss, calls = DDPStrategy.compute_loss, iter(range(10**6))

        def spoiled(strategy: DDPStrategy, *arguments: Any) -> LossOutput:
            right = compute_loss(strategy, *arguments)
            is_wrong = next(calls) == 3 and process_group.rank == 1
            return replace(right, loss=right.loss * float("nan")) if is_wrong else right

        DDPStrategy.compute_loss = spoiled  # type: ignore[method-assign]  this process ends with the function
        training.run()
        state = training.trainer.state
        return {"rollbacks": state.rollbacks, "lr_factor": state.lr_factor, **summary(training.trainer)}

    first, second = together(work)
    assert first["rollbacks"] == second["rollbacks"] == 1
    assert first["lr_factor"] == second["lr_factor"] == 0.5
    assert first["weights"] == second["weights"]


@pytest.mark.parametrize("decoding", [{"kind": "greedy"}, {"kind": "beam", "size": 2}])
def test_shards_are_probed_and_decode(together: Together, tmp_path: Path, decoding: dict[str, Any]) -> None:
    """Decoding and head probes of a sharded encoder-decoder run on all ranks together."""
    model = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "feed_forward_dim": 16, "dropout": 0.0}
    training = {"batch_size": 16, "max_steps": 4, "max_epochs": None, "validate_every": 2, "threads": 1}
    inspection = {"probe_heads": True, "every": 2, "examples": 4, "keep_snapshots": True}
    training |= {"parallel": {"kind": "fsdp"}, "log_every": 1}
    changes = {"task.digits": 1, "model": model, "training": training, "inspection": inspection}
    config = resolve("arithmetic", {**changes, "evaluation.decoding": decoding})
    run_of(config, tmp_path / "alone", ProcessGroup())
    together(lambda process_group: run_of(config, tmp_path / "shards", process_group))
    alone, shards = (files_of(tmp_path / name) for name in ("alone", "shards"))
    assert shards["checkpoints"] == alone["checkpoints"]
    assert len(shards["events"]) == len(alone["events"])
    for here, there in zip(shards["events"], alone["events"], strict=True):
        assert here["event"] == there["event"] and here.keys() == there.keys()
        if here["event"] == "validation":
            assert here["exact_match"] == there["exact_match"]
            assert here["loss"] == pytest.approx(there["loss"], abs=1e-5)
    assert "head_probe" in {event["event"] for event in shards["events"]}


def test_other_data_on_another_machine(together: Together, tiny_config: Any, tmp_path: Path) -> None:
    def work(process_group: ProcessGroup) -> str:
        config = tiny_config({"task.data_seed": process_group.rank})
        try:
            TrainingSession(config, RunFolder(tmp_path / "run"), process_group=process_group).run()
        except UserError as error:
            return str(error)
        except RuntimeError as error:
            return str(process_group.explain(error))
        return ""

    first, second = together(work, may_die=True)
    assert "rank 1 of 2 is gone" in first
    assert second.startswith("task: the data of this rank differ from the data of rank 0")


# ---------------------------------------------------------------- lost ranks


def test_a_killed_rank_is_named_by_the_others(together: Together, tiny_config: Any, tmp_path: Path) -> None:
    config = tiny_config({"training.max_epochs": 1000})

    def work(process_group: ProcessGroup) -> dict[str, Any]:
        training = TrainingSession(config, RunFolder(tmp_path / "run"), process_group=process_group)
        if process_group.rank == 1:
            training.should_stop = lambda: (  # type: ignore[method-assign]
                training.trainer.state.step == 3 and os.kill(os.getpid(), signal.SIGKILL) is None
            )
        started = time.monotonic()
        try:
            training.run()
        except Exception as error:
            lost = process_group.explain(error)
            assert isinstance(lost, LostRanks), error
            return {"lost": str(lost), "seconds": time.monotonic() - started}
        return {}

    first, second, third = together(work, count=3, may_die=True)
    assert second is None
    for left in (first, third):
        assert left["lost"].startswith("rank 1 of 3 is gone (process ")
        assert left["seconds"] < 60


def test_a_common_error_is_reported_once(together: Together) -> None:
    assert together(lambda process_group: process_group.is_reported_by_rank_zero("the same")) == [False, True]
    assert together(
        lambda process_group: process_group.is_reported_by_rank_zero(f"of rank {process_group.rank}")
    ) == [False, False]


def test_a_failure_of_rank_zero_ends_all(together: Together, tiny_config: Any, tmp_path: Path) -> None:
    """Rank 0 cannot create the folder: it reports why, and no rank waits for it."""
    (tmp_path / "file").write_text("")

    def work(process_group: ProcessGroup) -> str:
        try:
            TrainingSession(
                tiny_config(), RunFolder(tmp_path / "file" / "run"), process_group=process_group
            ).run()
        except UserError as error:
            return f"{type(error).__name__}: {error}"
        return ""

    first, second = together(work)
    assert first.startswith("UserError") and "cannot be written" in first
    assert second.startswith("RankZeroFailed: rank 0")


def test_options_that_fsdp_does_not_support_are_rejected(
    together: Together, tiny_config: Any, ragged_task: Any
) -> None:
    config = tiny_config({"training.parallel.kind": "fsdp", "training.freeze": ["embedding"]})

    def work(process_group: ProcessGroup) -> str:
        with pytest.raises(UserError) as refused:
            Experiment(config, ragged_task).build_trainer(TrainingContext(process_group=process_group))
        return str(refused.value)

    assert "training.freeze: this option is not supported with sharded weights" in together(work)[0]


# ---------------------------------------------------------------- parts


def test_a_store_that_earlier_attempts_have_used(together: Together, tmp_path: Path) -> None:
    """Earlier attempts: one in which rank 1 was alone, and one that completed."""
    file = str(tmp_path / "kept")

    def attempt(process_group: ProcessGroup) -> str:
        store = FileStore(file, 2)
        fresh = fresh_store(store, process_group.rank, process_group.world_size)
        assert not fresh.check(["address"])
        process_group.sum(1)
        fresh.set("address", "here")
        process_group.sum(1)
        return fresh.get("address").decode()

    FileStore(file, 2).set("name.1", "one that is no more")
    assert [together(attempt) for _ in range(2)] == [["here"] * 2] * 2


def test_numbers_values_and_tensors(together: Together) -> None:
    tensors = {
        "small": torch.tensor(3.5),
        "bits": torch.tensor([True, False]),
        "half": torch.arange(4, dtype=torch.bfloat16).reshape(2, 2),
        "empty": torch.empty(0, 3),
    }

    def work(process_group: ProcessGroup) -> Any:
        mine = tensors if process_group.is_rank_zero else {}
        received = process_group.broadcast_tensors(mine)
        assert received.keys() == tensors.keys()
        assert all(torch.equal(received[name], tensor) for name, tensor in tensors.items())
        gathered = process_group.gather({"state": torch.tensor([process_group.rank * 10])})
        assert {name: int(t) for name, t in gathered.items()} == {"state": 0, "state.1": 10}
        assert int(process_group.select_own(gathered)["state"]) == process_group.rank * 10
        value = process_group.broadcast({"text": "Größe"} if process_group.is_rank_zero else None)
        return [
            process_group.sum(1, 2**40 + process_group.rank),
            process_group.max(process_group.rank, -process_group.rank),
            value,
        ]

    expected = [[2, 2**41 + 1], [1, 0], {"text": "Größe"}]
    assert together(work) == [expected, expected]


def test_a_single_process_communicates_with_nobody() -> None:
    alone = ProcessGroup()
    assert alone.is_rank_zero and alone.sum(1, 2.5) == [1, 2.5] and alone.max(3) == [3]
    assert alone.on_rank_zero(lambda: object) is object  # not sent, so it need not be JSON
    with pytest.raises(KeyError):
        alone.on_rank_zero(partial({}.__getitem__, "missing"))


def test_the_strategy_is_not_part_of_the_fingerprint(tiny_config: Any) -> None:
    copies, shards = tiny_config(), tiny_config({"training.parallel.kind": "fsdp"})
    assert copies != shards and copies.fingerprint() == shards.fingerprint()
