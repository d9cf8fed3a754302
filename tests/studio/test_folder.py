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
from glassformer.studio import limits
from glassformer.studio.runs import RunsFolder, assign_colours, short_labels

ROWS = {
    *("name", "status", "step", "total_steps", "task", "model", "seed", "parameters", "created"),
    *("seconds", "primary_metric", "differences", "last", "colour"),
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
    common = document["tasks"]["reversal"]["common"]
    assert common["task.kind"] == "reversal" and "seed" not in common
    assert document["tasks"]["reversal"]["labels"] == {"seed": "seed", "model.num_heads": "num heads"}
    (compared,) = client.get("/api/compare?run=tiny&run=other").json()["tasks"]
    assert compared["runs"] == ["tiny", "other"] and compared["task"] == "reversal"
    assert compared["differences"]["model.num_heads"] == {"tiny": 2, "other": 4}
    assert set(compared["differences"]) <= {*found["other"], *found["tiny"]}


def change_config(run: Path, **changed: Any) -> None:
    config = json.loads((run / "config.json").read_bytes())
    ChecksummedFolder(run).write({"config.json": json_bytes(config | changed)})


def test_runs_of_different_tasks_are_compared_within_their_task(client: TestClient, runs: Path) -> None:
    for name in ("other", "sorted"):
        shutil.copytree(runs / "tiny", runs / name)
    config = json.loads((runs / "tiny" / "config.json").read_bytes())
    change_config(runs / "other", model=config["model"] | {"position": {"kind": "rotary", "base": 100.0}})
    change_config(runs / "sorted", task=config["task"] | {"kind": "sort"})
    document = client.get("/api/runs").json()
    found = {row["name"]: row["differences"] for row in document["runs"]}
    assert next(iter(found["other"].items())) == ("model.position.kind", "rotary")
    assert found["sorted"] == {} and "task.kind" not in found["tiny"]
    assert document["tasks"]["reversal"]["labels"]["model.position.kind"] == "position"
    groups = client.get("/api/compare?run=tiny&run=other&run=sorted").json()["tasks"]
    assert [(group["task"], group["runs"]) for group in groups] == [
        ("reversal", ["tiny", "other"]),
        ("sort", ["sorted"]),
    ]


def test_a_label_is_the_shortest_unambiguous_end_of_a_path() -> None:
    paths = ["model.position.kind", "model.norm.kind", "model.dropout", "model.attention.dropout", "seed"]
    assert short_labels(paths, paths) == {
        "model.position.kind": "position",
        "model.norm.kind": "norm",
        "model.dropout": "model dropout",
        "model.attention.dropout": "attention dropout",
        "seed": "seed",
    }
    paths = ["model.kind", "model.num_layers", "model.position.kind", "model.position.base"]
    assert list(short_labels(paths, paths).values()) == ["model", "num layers", "position", "position base"]


def test_a_run_keeps_its_colour_when_others_come_and_go(client: TestClient, runs: Path) -> None:
    def colours() -> dict[str, int]:
        return {row["name"]: row["colour"] for row in client.get("/api/runs").json()["runs"]}

    before = colours()["tiny"]
    for name in ("a", "b", "c"):
        shutil.copytree(runs / "tiny", runs / name)
    after = colours()
    assert after["tiny"] == before and len(set(after.values())) == 4
    shutil.rmtree(runs / "a")
    del after["a"]
    assert colours() == after
    # As many runs as there are colours: none is used twice, whatever their names.
    for count in (limits.COLOURS, 2 * limits.COLOURS):
        many = assign_colours({}, [f"run-{number}" for number in range(count)])
        assert sorted(many.values()) == list(range(count))


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
    assert RunsFolder(tmp_path / "nothing").table() == {"runs": [], "tasks": {}}


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


def test_a_run_is_described_with_its_warnings(client: TestClient, runs: Path) -> None:
    assert client.get("/api/runs/tiny").json()["warnings"] == []
    folder = RunFolder(runs / "tiny")
    about_data, about_model = "WARNING: own.csv: a doubtful column", "WARNING: test accuracy is low"
    environment = folder.environment() | {"data_notes": ["own.csv is read", about_data]}
    results = folder.results() | {"warnings": [about_data, about_model]}
    ChecksummedFolder(folder.path).write(
        {"environment.json": json_bytes(environment), "results.json": json_bytes(results)}
    )
    assert client.get("/api/runs/tiny").json()["warnings"] == [about_data, about_model]
