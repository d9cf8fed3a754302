"""Event log as it grows: complete lines only, each once, and from the start again after a truncation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from glassformer.studio.runs import last_event, read_after


def write(path: Path, *events: dict[str, Any]) -> None:
    with open(path, "ab") as file:
        for event in events:
            file.write(json.dumps(event).encode() + b"\n")


def step(number: int, **more: Any) -> dict[str, Any]:
    return {"event": "step", "step": number, "loss": 1 / (number + 1), **more}


def test_a_reader_gets_every_line_once(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    seen: list[Any] = []
    after, mark = 0, None
    for number in range(20):
        write(path, *(step(3 * number + part) for part in range(3)))
        with open(path, "ab") as file:
            file.write(b'{"event": "st')  # an incomplete line
        for _ in range(2):
            reply = read_after(path, after, mark)
            assert not reply["restart"]
            seen += reply["events"]
            after, mark = reply["next"], reply["mark"]
        with open(path, "r+b") as file:
            file.truncate(path.stat().st_size - len(b'{"event": "st'))
    assert [event["step"] for event in seen] == list(range(60))


def test_a_reader_with_little_room_gets_it_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path, *map(step, range(100)))
    seen: list[Any] = []
    reply: dict[str, Any] = {"next": 0, "mark": None, "more": True}
    while reply["more"]:
        reply = read_after(path, reply["next"], reply["mark"], max_bytes=200)
        seen += reply["events"]
    assert [event["step"] for event in seen] == list(range(100))


def test_a_long_record_loses_steps_but_no_spike(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    events = [step(number) for number in range(5000)]
    events[1234]["loss"], events[2345]["loss"], events[4321]["loss"] = 1e6, float("nan"), 1e-9
    events.insert(777, {"event": "validation", "step": 777})
    write(path, *events)
    reply = read_after(path, 0, None, max_steps=300)
    steps = [event["step"] for event in reply["events"] if event["event"] == "step"]
    assert {0, 1234, 2345, 4321, 4999} <= set(steps) and 100 < len(steps) <= 301
    assert steps == sorted(set(steps)) and {"event": "validation", "step": 777} in reply["events"]
    assert reply["next"] == path.stat().st_size and not reply["more"]
    assert len(read_after(path, 0, None, max_steps=5000)["events"]) == 5001


def test_a_record_that_was_cut_back(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path, *map(step, range(10)))
    reply = read_after(path, 0, None)
    kept = len(json.dumps(step(0))) + 1
    with open(path, "r+b") as file:
        file.truncate(kept)
    cut = read_after(path, reply["next"], reply["mark"])
    assert cut["restart"] and cut["next"] == 0 and cut["events"] == []
    assert [event["step"] for event in read_after(path, 0, None)["events"]] == [0]


def test_a_record_that_was_cut_back_and_has_grown_to_the_same_byte(tmp_path: Path) -> None:
    """Detect a truncation even if the new lines have equal length and differ only in their times."""
    path = tmp_path / "events.jsonl"
    write(path, step(0, seconds=1.5), step(1, seconds=2.5), step(2, seconds=3.5))
    reply = read_after(path, 0, None)
    path.unlink()
    write(path, step(0, seconds=1.5), step(1, seconds=2.7), step(2, seconds=3.9), step(3))
    assert not read_after(path, reply["next"], None)["restart"]  # without a mark, the change is not detected
    assert read_after(path, reply["next"], reply["mark"])["restart"]


def test_bytes_from_the_middle_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path, step(0), step(1))
    assert read_after(path, 5, None)["restart"]


def test_lines_that_are_no_events_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(
        b'nonsense\n[1]\n"x"\n\xff\xfe\n' + b"[" * 5000 + b"\n" + b'{"event": "step", "step": 1}\n'
    )
    assert read_after(path, 0, None)["events"] == [{"event": "step", "step": 1}]


def test_no_record_yet_and_then_one(client: TestClient, runs: Path) -> None:
    path = runs / "tiny" / "events.jsonl"
    path.unlink()
    reply = client.get("/api/runs/tiny/events?after=0").json()
    assert (reply["events"], reply["next"], reply["restart"]) == ([], 0, False)
    write(path, step(1, loss=float("nan")))
    reply = client.get("/api/runs/tiny/events?after=0").json()
    assert reply["events"] == [{"event": "step", "step": 1, "loss": None}]  # JSON has no NaN


@pytest.mark.parametrize("after", ["-1", "x", "1.5", "9" * 40, "%D9%A3"])
def test_offsets_that_are_not_numbers(client: TestClient, after: str) -> None:
    assert client.get(f"/api/runs/tiny/events?after={after}").status_code == 400


def test_the_last_event_of_a_kind(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    assert last_event(path, "step") is None
    write(path, *map(step, range(1000)), {"event": "end"})
    with open(path, "ab") as file:
        file.write(b'{"event": "step", "step": 5')
    assert (last_event(path, "step") or {})["step"] == 999
