"""Fixtures of the study tests: train in this process, because starting Python takes longer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from glassformer.core.registry import kinds, unregister
from glassformer.models.base import ModelConfig
from glassformer.runs import session
from glassformer.studies import study
from glassformer.studies.study import Job, Log
from glassformer.training.trainer import StopSignals


def in_this_process(job: Job) -> dict[str, Any]:
    file = job.path.parent / f"{job.path.name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(job.config.dump()), encoding="utf-8")
    return session.train(str(file), run=job.path, resume=True).folder.results()


@pytest.fixture(autouse=True)
def own_kinds() -> Iterator[None]:
    """Unregister the kinds of a study's plug-in after its test."""
    known = kinds(ModelConfig)
    yield
    for name in kinds(ModelConfig).keys() - known.keys():
        unregister(kinds(ModelConfig)[name])
    for name in [name for name in sys.modules if name.startswith("glassformer_plugin_")]:
        del sys.modules[name]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Names of the jobs that were trained."""
    names: list[str] = []

    def train(job: Job, threads: int, log: Log, signals: StopSignals) -> dict[str, Any]:
        names.append(job.name)
        return in_this_process(job)

    monkeypatch.setattr(study, "_train", train)
    monkeypatch.setenv("GLASSFORMER_CACHE", str(tmp_path / "cache"))
    return names
