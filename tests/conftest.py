"""Fixtures of tests on whole runs: a config that trains in a fraction of a second, and a run of it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from glassformer.core.config import Tree, dump_yaml, merge, read_yaml_file, unflatten, validate
from glassformer.runs.experiment import ExperimentConfig
from glassformer.runs.folder import RunFolder
from glassformer.runs.session import TrainingSession

settings.register_profile("glassformer", max_examples=10, deadline=None, derandomize=True)
settings.load_profile("glassformer")

TINY: Tree = read_yaml_file(Path(__file__).with_name("tiny.yaml"))

TinyConfig = Callable[..., ExperimentConfig]


def tiny(overrides: Mapping[str, Any] | None = None) -> ExperimentConfig:
    tree = merge(ExperimentConfig.fill_kinds(TINY), unflatten(overrides or {}))
    return validate(ExperimentConfig, tree)


THOROUGH = (
    "bench/test_benchmarks.py",
    "doctor/test_healthy.py::test_every_preset",
    "project/test_wheel.py",
    "reliability/",
    "studies/test_published.py",
    "studies/test_transfer.py",
    "studio/browser/",
    "studio/test_trainings.py",
    "sweeps/test_sweep.py",
    "sweeps/test_workers.py",
    "training/test_launcher.py",
)
"""Slow files, folders and tests, which `make test-all` runs and `make test` leaves out."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow tests for `make test-all`."""
    for item in items:
        name = f"{item.path.relative_to(Path(__file__).parent).as_posix()}::{item.name}"
        if name.startswith(THOROUGH):
            item.add_marker(pytest.mark.thorough)


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use a cache of tokens for the tests alone, not the one of whoever runs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLASSFORMER_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def tiny_config() -> TinyConfig:
    return tiny


@pytest.fixture
def tiny_file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(dump_yaml(TINY), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trained") / "run"
    threads = torch.get_num_threads()
    TrainingSession(tiny(), RunFolder(path)).run()
    torch.set_num_threads(threads)
    return path


@pytest.fixture
def run_folder(trained_once: Path, tmp_path: Path) -> RunFolder:
    """A finished run that a test may break."""
    path = tmp_path / "run"
    shutil.copytree(trained_once, path)
    return RunFolder(path)


@pytest.fixture(scope="session")
def chromium() -> Path:
    """The browser; a test that wants it is skipped where there is none, but not in continuous integration."""
    script = Path(__file__).parent.parent / "scripts" / "find-browser"
    # What `make test-all` has installed is found; a bare pytest installs nothing.
    done = subprocess.run(["sh", script, "--no-install"], capture_output=True, text=True)
    if done.returncode == 0:
        return Path(done.stdout.strip())
    if os.environ.get("CI") == "true":
        pytest.fail(done.stderr.strip())
    pytest.skip(done.stderr.strip())


BROWSER_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def browser(chromium: Path) -> Iterator[Any]:
    """One real browser for all tests of a process: playwright starts only once in a process."""
    # In continuous integration a missing driver is a failure.
    if os.environ.get("CI"):
        import playwright.sync_api as sync_api
    else:
        sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        # Playwright gives each launch a fresh profile.
        browser = playwright.chromium.launch(executable_path=str(chromium), args=BROWSER_FLAGS, headless=True)
        yield browser
        browser.close()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """What a test of speed or of bits relies on, put back afterwards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
