"""Runner of the fault programme: counts, parts, interruption and journal, published page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from reliability import pages, runner
from reliability.base import FAULTS, Fault, Row, Tries, Unsupported, Workspace
from reliability.network import check_latency
from reliability.runner import Journal, Plan

Add = Callable[..., Fault]


@pytest.fixture
def add(monkeypatch: pytest.MonkeyPatch) -> Iterator[Add]:
    """Register faults for one test, instead of those of the programme."""
    monkeypatch.setattr(runner, "FAULTS", known := {})
    some = next(iter(FAULTS.values()))

    def make(name: str, inject: Callable[[Workspace, range], Tries], **other: object) -> Fault:
        settings = {"quick": 4, "full": 10, "part": 4, "is_alone": False, "counts_tests": False, **other}
        known[name] = replace(some, name=name, inject=inject, **settings)
        return known[name]

    yield make


def holds(workspace: Workspace, numbers: range) -> Tries:
    for _ in numbers:
        yield None


def test_every_number_is_tried_once(add: Add) -> None:
    seen: list[int] = []

    def inject(workspace: Workspace, numbers: range) -> Tries:
        assert workspace.folder.is_dir() and not any(workspace.folder.iterdir())
        for number in numbers:
            seen.append(number)
            yield None if number != 5 else "did not hold"

    plan = Plan([add("a", inject)], "full")
    plan.run(2)
    assert sorted(seen) == list(range(10)) and plan.is_done("a")
    assert (plan.rows["a"].tried, plan.rows["a"].held) == (10, 9)
    assert plan.rows["a"].failures == ["did not hold"] and not plan.rows["a"].is_good


def test_an_exception_is_not_a_success(add: Add) -> None:
    def breaks(workspace: Workspace, numbers: range) -> Tries:
        yield None
        raise RuntimeError("broken")

    def unsupported(workspace: Workspace, numbers: range) -> Tries:
        raise Unsupported("no such disk")
        yield None

    plan = Plan([add("breaks", breaks), add("absent", unsupported)], "quick")
    plan.run(1)
    assert (plan.rows["breaks"].tried, plan.rows["breaks"].held) == (2, 1)
    assert "RuntimeError: broken" in plan.rows["breaks"].failures[0]
    assert plan.rows["absent"].unsupported == "no such disk"


def test_time_measurements_run_last_and_alone(add: Add) -> None:
    order: list[str] = []

    def harm_of(name: str) -> Callable[[Workspace, range], Tries]:
        def inject(workspace: Workspace, numbers: range) -> Tries:
            order.append(name)
            yield from holds(workspace, numbers)

        return inject

    faults = [add("loud", harm_of("loud"), is_alone=True), add("other", harm_of("other"))]
    plan = Plan(faults, "quick", rates={"loud": 100.0, "other": 1.0})
    assert plan.seconds_left(jobs=2) == 4 * 100 + 4 * 1 / 2
    plan.run(2)
    assert order == ["other", "loud"] and plan.seconds_left(2) == 0


def test_an_interrupted_run_continues(add: Add, tmp_path: Path) -> None:
    done: list[range] = []

    def inject(workspace: Workspace, numbers: range) -> Tries:
        if len(done) == 2:
            plan.is_over.set()
        done.append(numbers)
        yield from holds(workspace, numbers)

    journal = Journal(tmp_path / "build" / "journal.jsonl", seed=0)
    plan = Plan([add("a", inject)], "full")
    plan.run(1, journal.add)
    assert len(done) == 3 and not plan.is_done("a")  # the third was interrupted, and does not count

    plan = Plan([runner.FAULTS["a"]], "full")
    assert journal.load(plan) == 2 and plan.rows["a"].tried == 8
    plan.run(1, journal.add)
    assert done[2:] == [range(8, 10)] * 2 and plan.rows["a"].held == 10

    journal.path.write_text(2 * journal.path.read_text())  # as if another command had run at the same time
    plan = Plan([runner.FAULTS["a"]], "full")
    assert journal.load(plan) == 3 and plan.rows["a"].tried == 10

    other = Journal(journal.path, seed=1)
    assert other.load(Plan([runner.FAULTS["a"]], "full")) == 0
    journal.source = "another source"
    assert journal.load(Plan([runner.FAULTS["a"]], "full")) == 0


def test_what_failed_is_tried_again(add: Add, tmp_path: Path) -> None:
    journal, fault = Journal(tmp_path / "journal.jsonl", seed=0), add("a", holds)
    journal.add(range(0, 4), Row(fault, 4, 3, ["it broke"]))
    assert journal.load(Plan([fault], "full")) == 0


def test_the_page_shows_both_tiers(tmp_path: Path) -> None:
    first, second = list(FAULTS.values())[:2]
    pages.publish(
        tmp_path, {}, "quick", [Row(first, 5, 5, seconds=60.0)], seed=0, jobs=2, seconds=30.0, source="abc"
    )
    text = (tmp_path / "reliability.md").read_text()
    assert "5 of 5 held, 0.5 minutes with 2 jobs" in text and "has not been run" in text

    published = pages.read(tmp_path)
    assert pages.rates(published) == {first.name: 12.0}
    rows = [Row(second, 3, 2, ["it broke"], notes=["judged absolute"])]
    pages.publish(tmp_path, published, "full", rows, seed=0, jobs=1, seconds=9.0, source="abc")
    text = (tmp_path / "reliability.md").read_text()
    assert f"| {first.what} | {first.expected} | 5 of 5 {first.unit} | – |".replace("  ", " ") in text
    assert "2 of 3" in text and f"{second.name}: it broke" in text and "judged absolute" in text
    assert f"0 of {len(FAULTS)} rows are complete" in text
    assert json.loads((tmp_path / "reliability.json").read_text())["full"]["rows"][second.name]["held"] == 2


@pytest.mark.parametrize(
    ("health", "bare", "is_good", "how"),
    [
        (0.05, 0.01, True, "absolute"),
        (0.11, 0.02, False, "absolute"),
        (0.15, 0.06, True, "relative to a bare server"),
        (0.20, 0.06, False, "relative to a bare server"),
    ],
)
def test_health_has_an_absolute_limit_on_a_quiet_machine(
    health: float, bare: float, is_good: bool, how: str
) -> None:
    workspace = Workspace(Path(), None, None)  # type: ignore[arg-type]
    assert (check_latency(workspace, [health] * 5, [bare] * 5) is None) == is_good
    assert how in workspace.notes[0]


def test_two_commands_publish_together(add: Add, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that another command has published during this one are kept."""

    def inject(workspace: Workspace, numbers: range) -> Tries:
        if numbers.start == 0:
            monkeypatch.setattr(pages, "commit", lambda: "a later one")
            pages.publish(
                tmp_path, {}, "full", [Row(second, 3, 3)], seed=0, jobs=1, seconds=1.0, source="abc"
            )
        yield from holds(workspace, numbers)

    first, second = add("first", inject), add("second", holds)
    monkeypatch.setattr(pages, "FAULTS", runner.FAULTS)
    monkeypatch.setattr(pages, "commit", lambda: "the first")
    monkeypatch.setattr(runner.signal, "signal", lambda number, handler: None)  # keep the handlers of pytest
    given = {"only": ["first"], "seed": 0, "jobs": 1, "restart": False}
    assert runner.main(tier="full", results=tmp_path, journal_file=tmp_path / "journal.jsonl", **given) == 0
    rows = pages.read(tmp_path)["full"]["rows"]
    assert (rows["second"]["held"], rows["first"]["held"]) == (3, first.full)
    assert rows["first"]["commit"] == "the first", "the commit at the start counts"


def test_the_page_does_not_contain_paths() -> None:
    trace = (
        'Traceback (most recent call last):\n  File "/home/me/a.py", line 1, in f\n    g()\nOSError: no\nmore'
    )
    assert pages.shorten_traceback(trace) == "OSError: no"
    assert pages.shorten_traceback(f"'report' 'x': {trace}") == "'report' 'x': OSError: no"
    assert pages.shorten_traceback("exit 1: no") == "exit 1: no"
