"""Table of runs: content, speed, and runs that are damaged or killed."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from glassformer.runs.folder import RunFolder
from glassformer.storage.files import ChecksummedFolder, json_bytes
from glassformer.studio.runs import RunsFolder

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


def test_differences_are_the_options_that_differ(client: TestClient, runs: Path) -> None:
    shutil.copytree(runs / "tiny", runs / "other")
    config = json.loads((runs / "other" / "config.json").read_bytes())
    config |= {"seed": 7, "model": config["model"] | {"num_heads": 4}}
    ChecksummedFolder(runs / "other").write({"config.json": json_bytes(config)})
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
    RunFolder(run).write_status(status)


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
    assert rows(client)["tiny"]["status"] == "crashed"  # the lock was released when its holder died
    reply = client.get("/api/runs/tiny/events").json()
    assert (reply["status"], reply["step"]) == ("crashed", 9)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.yaml", b"\xff\xfe"),
        ("config.json", b"\xff\xfe"),
        ("config.json", b"[]"),
        ("SHA256SUMS", b""),
        ("status.json", b"{"),
        ("status.json", b"[1]"),
        ("results.json", b"null"),
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
    assert found["broken"]["error"]
    assert client.get("/api/runs/broken").status_code in (200, 400)
    shutil.copy(runs / "tiny" / file, runs / "broken" / file)
    assert rows(client)["broken"]["status"] == "done"


def test_a_run_whose_fields_have_wrong_types_is_damaged(client: TestClient, runs: Path) -> None:
    """Correct checksums, but invalid content: another program has written the files."""
    shutil.copytree(runs / "tiny", runs / "broken")
    RunFolder(runs / "broken").write_status({"state": "running", "time": "now"})
    assert rows(client)["broken"]["status"] == "damaged"
    shutil.copy(runs / "tiny" / "status.json", runs / "broken")
    RunFolder(runs / "broken").write_results({"metrics": 3, "primary_metric": "x"})
    assert rows(client)["broken"]["status"] == "damaged"
    assert rows(client)["tiny"]["status"] == "done"


def test_a_folder_that_does_not_exist_has_no_runs(tmp_path: Path) -> None:
    assert RunsFolder(tmp_path / "nothing").table() == {"runs": [], "common": {}}


def test_a_thousand_runs_are_listed_in_two_seconds(trained_once: Path, tmp_path: Path) -> None:
    """Check the limit for the first listing; the second, from the cache, must take half of it."""
    names = ("config.yaml", "config.json", "status.json", "results.json", "environment.json", "events.jsonl")
    files = {name: (trained_once / name).read_bytes() for name in names}
    config = json.loads(files["config.json"])
    sums = (trained_once / "SHA256SUMS").read_bytes()
    old = hashlib.sha256(files["config.json"]).hexdigest().encode()
    for number in range(1000):
        run = tmp_path / f"run-{number}"
        run.mkdir()
        files["config.json"] = json_bytes(config | {"seed": number})
        new = hashlib.sha256(files["config.json"]).hexdigest().encode()
        for name, data in {**files, "SHA256SUMS": sums.replace(old, new)}.items():
            (run / name).write_bytes(data)
    folder = RunsFolder(tmp_path)
    for limit in (2.0, 1.0):
        start = time.process_time()
        document = folder.table()
        assert time.process_time() - start < limit
        assert len(document["runs"]) == 1000
    assert {row["differences"]["seed"] for row in document["runs"]} == set(range(1000))
