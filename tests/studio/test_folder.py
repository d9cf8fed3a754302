"""The table of runs: what it tells, how fast, and what becomes of runs that are broken or killed."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from glassformer.core.config import dump_yaml, read_written_yaml, read_yaml_file
from glassformer.core.errors import UserError
from glassformer.storage.checksums import seal_json, seal_text
from glassformer.studio.folder import RunsFolder

ROWS = {
    *("name", "status", "step", "total_steps", "task", "model", "seed", "parameters", "created"),
    *("seconds", "primary_metric", "differences", "last"),
}


def rows(client: TestClient) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in client.get("/api/runs").json()["runs"]}


def test_a_finished_run(client: TestClient, runs: Path) -> None:
    row = rows(client)["tiny"]
    results = json.loads((runs / "tiny" / "results.json").read_bytes())
    assert set(row) == ROWS
    assert (row["status"], row["step"], row["total_steps"]) == ("done", 24, 24)
    assert (row["task"], row["model"], row["seed"]) == ("reversal", "transformer", 0)
    assert row["primary_metric"] == {
        "name": "accuracy",
        "split": "test",
        "value": results["metrics"]["test"]["accuracy"],
    }
    assert row["parameters"] == results["parameters"] and row["last"]["step"] == 24
    assert row["differences"] == {}


def test_differences_are_what_is_not_alike(client: TestClient, runs: Path) -> None:
    shutil.copytree(runs / "tiny", runs / "other")
    config = runs / "other" / "config.yaml"
    _, text = config.read_text().split("\n", 1)  # without its seal
    config.write_text(text.replace("seed: 0", "seed: 7").replace("num_heads: 2", "num_heads: 4"))
    document = client.get("/api/runs").json()
    found = {row["name"]: row["differences"] for row in document["runs"]}
    assert found["other"]["seed"] == 7 and found["tiny"]["seed"] == 0
    assert found["other"]["model.num_heads"] == 4
    assert document["common"]["task.kind"] == "reversal" and "seed" not in document["common"]
    compared = client.get("/api/compare?run=tiny&run=other").json()["differences"]
    assert compared["model.num_heads"] == {"tiny": 2, "other": 4}
    assert set(compared) <= {*found["other"], *found["tiny"]}


def beat(run: Path, **changed: Any) -> None:
    status = {"state": "running", "step": 9, "total_steps": 24, "pid": os.getpid()}
    status |= {"host": socket.gethostname(), "time": time.time(), **changed}
    (run / "status.json").write_bytes(seal_json(status))


def test_a_killed_run_shows_as_crashed_though_no_file_changes(client: TestClient, runs: Path) -> None:
    run = runs / "tiny"
    with open(run / "lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        beat(run)
        assert rows(client)["tiny"]["status"] == "running"
        beat(run, time=time.time() - 1000)
        assert rows(client)["tiny"]["status"] == "stalled"
        beat(run)
        assert rows(client)["tiny"]["status"] == "running"
    assert rows(client)["tiny"]["status"] == "crashed"  # the lock went with its holder
    reply = client.get("/api/runs/tiny/events").json()
    assert (reply["status"], reply["step"]) == ("crashed", 9)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.yaml", b"\xff\xfe"),
        ("config.yaml", b"a: [1"),
        ("config.yaml", b"[]"),
        ("status.json", b"{"),
        ("status.json", b"[1]"),
        ("status.json", seal_json({"state": "running", "time": "now"})),
        ("results.json", b"null"),
        ("results.json", seal_json({"metrics": 3, "primary_metric": "x"})),
        ("environment.json", b""),
    ],
)
def test_a_damaged_run_does_not_hide_the_others(
    client: TestClient, runs: Path, file: str, content: bytes
) -> None:
    shutil.copytree(runs / "tiny", runs / "broken")
    (runs / "broken" / file).write_bytes(content)
    found = rows(client)
    assert found["broken"]["status"] == "damaged" and found["tiny"]["status"] == "done"
    assert found["broken"]["problem"]
    assert client.get("/api/runs/broken").status_code in (200, 400)
    shutil.copy(runs / "tiny" / file, runs / "broken" / file)
    assert rows(client)["broken"]["status"] == "done"


def test_a_folder_that_does_not_exist_has_no_runs(tmp_path: Path) -> None:
    assert RunsFolder(tmp_path / "nothing").table() == {"runs": [], "common": {}}


def test_a_thousand_runs_are_listed_in_two_seconds(trained_once: Path, tmp_path: Path) -> None:
    """When first asked, and again when all is known."""
    files = {
        name: (trained_once / name).read_bytes()
        for name in ("config.yaml", "status.json", "results.json", "environment.json", "events.jsonl")
    }
    _, config = files.pop("config.yaml").decode().split("\n", 1)  # without its seal
    for number in range(1000):
        run = tmp_path / f"run-{number}"
        run.mkdir()
        (run / "config.yaml").write_bytes(seal_text(config.replace("seed: 0", f"seed: {number}")))
        for name, data in files.items():
            (run / name).write_bytes(data)
    folder = RunsFolder(tmp_path)
    for limit in (2.0, 1.0):
        start = time.process_time()
        document = folder.table()
        assert time.process_time() - start < limit
        assert len(document["runs"]) == 1000
    assert {row["differences"]["seed"] for row in document["runs"]} == set(range(1000))


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=12), st.just([])
)
TREES = st.recursive(
    st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), SCALARS, min_size=1, max_size=5),
    lambda inner: st.dictionaries(
        st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.one_of(inner, SCALARS), min_size=1, max_size=4
    ),
    max_leaves=12,
)
FIXTURES_STAY = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@FIXTURES_STAY
@given(tree=TREES)
def test_a_config_is_read_fast_and_the_same(tree: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(dump_yaml(tree), encoding="utf-8")
    assert read_written_yaml(path) == tree == read_yaml_file(path)


LINES = """a: 1|b:|  c: x|  d:|    e: [1, 2]|- f|  - g|h: 'i|  j: k'|# l|m: # n||a: 2|true: 1|o: >|  p|q: &r s
t: *r|u: !v w|   x: 1|y : 2|z:\t3|---|é: 1""".replace("\n", "|").split("|")


@FIXTURES_STAY
@given(lines=st.lists(st.sampled_from(LINES), max_size=7))
def test_what_is_written_otherwise_is_read_the_same_too(lines: list[str], tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("\n".join(lines), encoding="utf-8")
    read: list[Any] = []
    for reader in (read_written_yaml, read_yaml_file):
        try:
            read.append(reader(path))
        except UserError as error:
            read.append(str(error))
    assert read[0] == read[1]
