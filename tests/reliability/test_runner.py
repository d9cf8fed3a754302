"""What runs the fault programme: counts, parts, an interruption and what it leaves, the page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from reliability import pages, runner
from reliability.base import FAULTS, Fault, NotHere, Place, Row, Tries
from reliability.network import judge
from reliability.runner import Kept, Plan

Add = Callable[..., Fault]


@pytest.fixture
def add(monkeypatch: pytest.MonkeyPatch) -> Iterator[Add]:
    """Faults of this test beside those of the programme."""
    monkeypatch.setattr(runner, "FAULTS", known := {})
    some = next(iter(FAULTS.values()))

    def make(name: str, harm: Callable[[Place, range], Tries], **other: object) -> Fault:
        settings = {"quick": 4, "full": 10, "part": 4, "is_alone": False, "is_of_tests": False, **other}
        known[name] = replace(some, name=name, harm=harm, **settings)
        return known[name]

    yield make


def holds(place: Place, numbers: range) -> Tries:
    for _ in numbers:
        yield None


def test_every_number_is_tried_once(add: Add) -> None:
    seen: list[int] = []

    def harm(place: Place, numbers: range) -> Tries:
        assert place.folder.is_dir() and not any(place.folder.iterdir())
        for number in numbers:
            seen.append(number)
            yield None if number != 5 else "did not hold"

    plan = Plan([add("a", harm)], "full")
    plan.run(2)
    assert sorted(seen) == list(range(10)) and plan.is_done("a")
    assert (plan.rows["a"].tried, plan.rows["a"].held) == (10, 9)
    assert plan.rows["a"].failures == ["did not hold"] and not plan.rows["a"].is_good


def test_an_error_in_the_harm_is_no_success(add: Add) -> None:
    def breaks(place: Place, numbers: range) -> Tries:
        yield None
        raise RuntimeError("broken")

    def is_not_here(place: Place, numbers: range) -> Tries:
        raise NotHere("no such disk")
        yield None

    plan = Plan([add("breaks", breaks), add("absent", is_not_here)], "quick")
    plan.run(1)
    assert (plan.rows["breaks"].tried, plan.rows["breaks"].held) == (2, 1)
    assert "RuntimeError: broken" in plan.rows["breaks"].failures[0]
    assert plan.rows["absent"].not_here == "no such disk"


def test_what_wants_quiet_is_done_last_and_alone(add: Add) -> None:
    order: list[str] = []

    def harm_of(name: str) -> Callable[[Place, range], Tries]:
        def harm(place: Place, numbers: range) -> Tries:
            order.append(name)
            yield from holds(place, numbers)

        return harm

    faults = [add("loud", harm_of("loud"), is_alone=True), add("other", harm_of("other"))]
    plan = Plan(faults, "quick", rates={"loud": 100.0, "other": 1.0})
    assert plan.seconds_left(jobs=2) == 4 * 100 + 4 * 1 / 2
    plan.run(2)
    assert order == ["other", "loud"] and plan.seconds_left(2) == 0


def test_an_interrupted_run_goes_on(add: Add, tmp_path: Path) -> None:
    done: list[range] = []

    def harm(place: Place, numbers: range) -> Tries:
        if len(done) == 2:
            plan.is_over.set()
        done.append(numbers)
        yield from holds(place, numbers)

    kept = Kept(tmp_path / "build" / "kept.jsonl", seed=0)
    plan = Plan([add("a", harm)], "full")
    plan.run(1, kept.add)
    assert len(done) == 3 and not plan.is_done("a")  # the third was cut off, and does not count

    plan = Plan([runner.FAULTS["a"]], "full")
    assert kept.load(plan) == 2 and plan.rows["a"].tried == 8
    plan.run(1, kept.add)
    assert done[2:] == [range(8, 10)] * 2 and plan.rows["a"].held == 10

    kept.path.write_text(2 * kept.path.read_text())  # by another command at the same time
    plan = Plan([runner.FAULTS["a"]], "full")
    assert kept.load(plan) == 3 and plan.rows["a"].tried == 10

    other = Kept(kept.path, seed=1)
    assert other.load(Plan([runner.FAULTS["a"]], "full")) == 0
    kept.source = "another source"
    assert kept.load(Plan([runner.FAULTS["a"]], "full")) == 0


def test_what_failed_is_tried_again(add: Add, tmp_path: Path) -> None:
    kept, fault = Kept(tmp_path / "kept.jsonl", seed=0), add("a", holds)
    kept.add(range(0, 4), Row(fault, 4, 3, ["it broke"]))
    assert kept.load(Plan([fault], "full")) == 0


def test_the_page_tells_both_tiers(tmp_path: Path) -> None:
    first, second = list(FAULTS.values())[:2]
    pages.publish(
        tmp_path, {}, "quick", [Row(first, 5, 5, seconds=60.0)], seed=0, jobs=2, seconds=30.0, source="abc"
    )
    text = (tmp_path / "reliability.md").read_text()
    assert "5 of 5 held, 0.5 minutes with 2 jobs" in text and "has not been run" in text

    published = pages.read(tmp_path)
    assert pages.rates(published) == {first.name: 12.0}
    rows = [Row(second, 3, 2, ["it broke"], notes=["judged by the clock"])]
    pages.publish(tmp_path, published, "full", rows, seed=0, jobs=1, seconds=9.0, source="abc")
    text = (tmp_path / "reliability.md").read_text()
    assert f"| {first.what} | {first.expected} | 5 of 5 {first.unit} | – |".replace("  ", " ") in text
    assert "2 of 3" in text and f"{second.name}: it broke" in text and "judged by the clock" in text
    assert f"0 of {len(FAULTS)} rows were tried as often as planned" in text
    assert json.loads((tmp_path / "reliability.json").read_text())["full"]["rows"][second.name]["held"] == 2


@pytest.mark.parametrize(
    ("health", "bare", "is_good", "how"),
    [
        (0.05, 0.01, True, "by the clock"),
        (0.11, 0.02, False, "by the clock"),
        (0.15, 0.06, True, "beside a bare server"),
        (0.20, 0.06, False, "beside a bare server"),
    ],
)
def test_health_is_judged_by_the_clock_where_it_can_be(
    health: float, bare: float, is_good: bool, how: str
) -> None:
    place = Place(Path(), None, None)  # type: ignore[arg-type]
    assert (judge(place, [health] * 5, [bare] * 5) is None) == is_good
    assert how in place.notes[0]


def test_two_commands_publish_beside_each_other(
    add: Add, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that another command has published while this one ran are not forgotten."""

    def harm(place: Place, numbers: range) -> Tries:
        if numbers.start == 0:
            monkeypatch.setattr(pages, "commit", lambda: "a later one")
            pages.publish(
                tmp_path, {}, "full", [Row(second, 3, 3)], seed=0, jobs=1, seconds=1.0, source="abc"
            )
        yield from holds(place, numbers)

    first, second = add("first", harm), add("second", holds)
    monkeypatch.setattr(pages, "FAULTS", runner.FAULTS)
    monkeypatch.setattr(pages, "commit", lambda: "the first")
    monkeypatch.setattr(runner.signal, "signal", lambda number, handler: None)  # those of the tests stay
    given = {"only": ["first"], "seed": 0, "jobs": 1, "is_anew": False}
    assert runner.main(tier="full", results=tmp_path, kept=tmp_path / "kept.jsonl", **given) == 0
    rows = pages.read(tmp_path)["full"]["rows"]
    assert (rows["second"]["held"], rows["first"]["held"]) == (3, first.full)
    assert rows["first"]["commit"] == "the first", "what was tried, and not what there is by now"


def test_the_page_does_not_tell_where_our_files_lie() -> None:
    trace = (
        'Traceback (most recent call last):\n  File "/home/me/a.py", line 1, in f\n    g()\nOSError: no\nmore'
    )
    assert pages.essence(trace) == "OSError: no"
    assert pages.essence(f"'report' 'x': {trace}") == "'report' 'x': OSError: no"
    assert pages.essence("exit 1: no") == "exit 1: no"
