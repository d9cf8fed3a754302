"""Fixtures: small runs of every task type, served on a real socket of the loopback interface."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from glassformer.core.config import Tree, validate
from glassformer.runs.ending import example_inputs
from glassformer.runs.experiment import ExperimentConfig
from glassformer.runs.folder import RunFolder
from glassformer.runs.session import TrainingSession
from glassformer.serving.app import Server, Service, admission
from glassformer.serving.limits import Settings
from glassformer.serving.served import Languages, ServedRun, load

MODEL = {"num_layers": 2, "num_heads": 2, "hidden_dim": 16, "feed_forward_dim": 16}
TRAINING = {"max_steps": 4, "batch_size": 8, "threads": 1, "device": "cpu"}
FEW = {"length": 6, "train_examples": 20, "validation_examples": 6, "test_examples": 6}

TASKS: dict[str, Tree] = {
    "reversal": {"kind": "reversal", **FEW},
    "classification": {"kind": "classification", "examples": 40},
    "regression": {"kind": "classification", "target": "number", "data": {"train": "ratings.tsv"}},
    "language-model": {"kind": "language-model", "examples": 40, "tokenizer": {"kind": "words"}},
    "play": {
        "kind": "language-model",
        "data": {"train": "play.txt", "format": "running-text"},
        "tokenizer": {"kind": "characters"},
        "max_length": 16,
    },
    "next-token": {"kind": "random-tokens", "target": "next", **FEW},
    "masked": {"kind": "masked-language-model", "examples": 40},
    "translation": {"kind": "translation", "examples": 40, "tokenizer": {"kind": "words"}},
    "arithmetic": {"kind": "arithmetic", "digits": 1, "max_examples": 60},
    "tokens": {"kind": "tokens", "data": {"train": "tokens.tsv"}},
}
"""Small task by the name of its run. Together they have every task type."""


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Train one run per task, for a few steps."""
    folder = tmp_path_factory.mktemp("serving")
    rows = [f"a {'good' if number % 2 else 'bad'} book\t{number % 5 / 2}" for number in range(60)]
    (folder / "ratings.tsv").write_text("\n".join(["input\ttarget", *rows, ""]), encoding="utf-8")
    rows = [f"{n % 3} {n % 5} {n % 7}\t{n % 2} {n % 3} {n % 2}" for n in range(60)]
    (folder / "tokens.tsv").write_text("\n".join(["input\ttarget", *rows, ""]), encoding="utf-8")
    lines = [f"ROMEO:\nI take thee at thy word {n}, dear Éloïse.\n" for n in range(60)]
    (folder / "play.txt").write_text("\n".join(lines), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        for name, task in TASKS.items():
            if data := task.get("data"):
                task = task | {"data": data | {"train": str(folder / data["train"])}}
            tree = {"task": task, "model": MODEL, "training": TRAINING}
            config = validate(ExperimentConfig, ExperimentConfig.fill_kinds(tree))
            TrainingSession(config, RunFolder(folder / name)).run()
    return {name: folder / name for name in TASKS}


class Running:
    """Server in a thread of this process, and a plain client of it."""

    def __init__(self, server: Server) -> None:
        self.service = server.service
        self.port = server.port or 0
        self.url = server.url.rstrip("/")
        self.token = server.rules.token
        self._server = server.uvicorn()
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [server.socket]})

    def __enter__(self) -> Running:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        for served in self.service.runs.values():
            served.batcher.stop()

    def run(self, name: str) -> ServedRun:
        return self.service.runs[name]

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        asking = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        sent = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        if body is not None and not isinstance(body, bytes):
            body, sent["Content-Type"] = json.dumps(body).encode(), "application/json"
        asking.request(method, path, body, sent | (headers or {}))
        reply = asking.getresponse()
        found = reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read()
        asking.close()
        return found

    def get(self, path: str) -> Any:
        status, _, body = self.request("GET", path)
        assert status == 200, body
        return json.loads(body)

    def post(self, path: str, body: Any) -> Any:
        status, _, reply = self.request("POST", path, body)
        assert status == 200, reply
        return json.loads(reply)

    def refused(self, path: str, body: Any, **options: Any) -> tuple[int, dict[str, Any]]:
        """Return the status and the error of a request that must be refused."""
        status, _, reply = self.request("POST", path, body, **options)
        assert status >= 400, reply
        return status, json.loads(reply)["error"]


@contextlib.contextmanager
def serving(
    paths: dict[str, Path],
    settings: Settings | None = None,
    *,
    token: str | None = None,
    languages: dict[str, Languages] | None = None,
    engine: str | None = None,
    public_url: str | None = None,
) -> Iterator[Running]:
    service = Service({}, settings or Settings())
    service.runs = {
        name: load(name, path, "best", (languages or {}).get(name), service.settings, service.metrics, engine)
        for name, path in paths.items()
    }
    rules = admission(token, settings=service.settings, public_url=public_url)
    with Running(Server(service, rules, 0)) as running:
        yield running


@pytest.fixture(scope="session")
def server(trained: dict[str, Path]) -> Iterator[Running]:
    """Server with all runs and no token. Tests must not change it."""
    with serving(trained) as running:
        for served in running.service.runs.values():
            served.set_examples(example_inputs(served.task, 4))
        yield running
