"""Checks of the machine: a missing requirement fails, a missing option is reported."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path

import pytest
import torch

from glassformer.doctor import machine
from glassformer.doctor.machine import check_machine
from glassformer.doctor.report import DoesNotApply, Report
from glassformer.training import precision


@pytest.fixture
def no_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the child processes, which take seconds; one test runs them."""
    monkeypatch.setattr(precision, "probe", lambda name, device: None)


def test_this_machine(tmp_path: Path) -> None:
    report = check_machine(tmp_path / "runs")
    assert report.passed
    assert report["processor"].measurement.value >= 1
    assert report["threads"].measurement.value == torch.get_num_threads()
    assert report["PyTorch"].measurement.value == torch.__version__
    assert report["fp32 on cpu"].measurement.value == "runs"
    # bf16 may or may not run; the check must agree with what training uses.
    runs = precision.probe("bf16", "cpu") is None
    assert (report["bf16 on cpu"].measurement.value == "runs") is runs
    assert report["bf16 on cpu"].passed
    assert report["fp32 matmul"].measurement.value > 0
    assert report["runs folder"].measurement.value > 0
    assert list(tmp_path.iterdir()) == []


def test_a_precision_that_crashes_is_reported_and_fp32_is_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "probe", lambda name, device: "the test was stopped by signal 4")
    report = check_machine(tmp_path)
    assert report["bf16 on cpu"].measurement.verdict == "skipped"
    assert "signal 4" in report["bf16 on cpu"].measurement.detail
    assert not report["fp32 on cpu"].passed and not report.passed


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_folder_without_permission(tmp_path: Path, no_probes: None) -> None:
    tmp_path.chmod(0o500)
    try:
        report = check_machine(tmp_path / "runs")
    finally:
        tmp_path.chmod(0o700)
    assert_not_writable(report)


def test_a_file_system_that_cannot_be_written(no_probes: None) -> None:
    assert_not_writable(check_machine(Path("/proc/runs")))


def test_a_file_where_the_runs_should_be(tmp_path: Path, no_probes: None) -> None:
    (tmp_path / "runs").write_text("")
    assert_not_writable(check_machine(tmp_path / "runs"))


def assert_not_writable(report: Report) -> None:
    check = report["runs folder"]
    assert not check.passed and not report.passed
    assert "cannot be written" in check.measurement.detail and "--runs" in check.measurement.detail


def test_a_broken_torch(tmp_path: Path, no_probes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    report = check_machine(tmp_path)
    assert [check.name for check in report.checks if not check.passed] == ["PyTorch"]
    assert "cannot be used" in report["PyTorch"].measurement.detail
    assert report["fp32 matmul"].measurement.verdict == "skipped"


def test_a_torch_that_computes_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda one, other: one.sum() * torch.ones(2, 2))
    assert machine.pytorch().verdict == "failed"


def test_more_threads_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(machine, "available_cores", lambda: 1.5)
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    found = machine.threads()
    assert found.verdict == "warning" and "OMP_NUM_THREADS=1" in found.detail
    monkeypatch.setattr(machine, "available_cores", lambda: 8)
    assert machine.threads().verdict == "passed"


def test_the_share_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    monkeypatch.setattr(machine, "usable_cores", lambda: 64)
    assert machine.available_cores() == 64
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert machine.available_cores() == 64
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert machine.available_cores() == 1.5
    (tmp_path / "memory.max").write_text(f"{2**30}\n")
    (tmp_path / "memory.current").write_text(f"{2**29}\n")
    found = machine.memory()
    assert (found.verdict, found.value) == ("warning", 0.5)


def test_packages_that_are_missing_or_old(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = [
        "nonsense-of-nobody>=1",
        "torch>=999.0",
        "numpy>=1.26",
        'uvicorn>=0.1; extra == "studio"',
        'nobody[x]; extra == "sweep"',
        'nobody; extra == "dev"',
        'glassformer[sweep]; extra == "all"',
    ]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: needs)
    found = machine.required_packages()
    assert (found.verdict, found.value) == ("failed", 2)
    assert "nonsense-of-nobody is missing" in found.detail and "is older than 999.0" in found.detail
    assert machine.extras() == {"studio": {"uvicorn": "0.1"}, "sweep": {"nobody": "0"}}
    assert machine.extra("studio", {"uvicorn": "0.1"}).value == "installed"
    missing = machine.extra("sweep", {"nobody": "0"})
    assert missing.verdict == "skipped" and "pip install 'glassformer[sweep]'" in missing.detail


def test_a_source_folder_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", missing)
    assert machine.extras() == {}
    with pytest.raises(DoesNotApply):
        machine.required_packages()
