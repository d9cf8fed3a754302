"""Fixtures: a studio over a folder with one small trained run, without a socket."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from glassformer.studio.app import Studio, create_app
from glassformer.studio.runs import RunsFolder
from glassformer.web.gate import Admission

TOKEN = "a-token-of-this-test"
ADDRESS = "http://127.0.0.1:8770"


@pytest.fixture
def runs(trained_once: Path, tmp_path: Path) -> Path:
    path = tmp_path / "runs"
    shutil.copytree(trained_once, path / "tiny")
    return path


@pytest.fixture
def studio(runs: Path) -> Iterator[Studio]:
    studio = Studio(RunsFolder(runs))
    yield studio
    studio.worker.stop()


@pytest.fixture
def stranger(studio: Studio) -> Iterator[TestClient]:
    """Client without the token."""
    app = create_app(studio, Admission(TOKEN))
    with TestClient(app, base_url=ADDRESS, raise_server_exceptions=False) as client:  # one event loop
        yield client


@pytest.fixture
def client(stranger: TestClient) -> TestClient:
    stranger.headers["Authorization"] = f"Bearer {TOKEN}"
    return stranger
