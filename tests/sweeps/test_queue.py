"""Every (setting, seed) counts once, even if workers die, are suspended or disconnected."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from glassformer.cli import sweep as sweep_command
from glassformer.cli.output import Output
from glassformer.sweeps import queue as rules
from glassformer.sweeps.definition import SweepDefinition, define
from glassformer.sweeps.queue import (
    MAX_ATTEMPTS,
    Claim,
    TrialQueue,
    active_trials,
    attempts,
    trial_key,
    trial_state,
)
from glassformer.sweeps.results import write_results
from glassformer.sweeps.storage import Database, TrialLost
from glassformer.sweeps.worker import TrialRun

Join = Callable[[], TrialQueue]
LENGTHS = ["task.length=4,5,6"]


@pytest.fixture
def join(tmp_path: Path, tiny_file: Path) -> Iterator[Callable[[SweepDefinition], Join]]:
    """Queues of one study, each with its own connection, as workers have."""
    opened: list[Database] = []

    def begin(definition: SweepDefinition) -> Join:
        def connect() -> TrialQueue:
            database = Database(f"sqlite:///{tmp_path}/sweep.db")
            database.set_heartbeat(1)
            opened.append(database)
            return TrialQueue.create(database, "study", definition, None)

        return connect

    yield begin
    for database in opened:
        database.close()


def take(queue: TrialQueue, worker: str = "w") -> Claim:
    claim = queue.claim(worker, queue.reconcile())
    assert claim is not None
    return claim


def complete(queue: TrialQueue, claim: Claim, value: float = 0.5) -> None:
    queue.finish(claim.trial._trial_id, "complete", value)


def test_racing_workers_cover_a_grid_once(tiny_file: Path, join: Callable[[SweepDefinition], Join]) -> None:
    connect = join(define(str(tiny_file), [*LENGTHS, "model.num_layers=1,2"], seeds=2))
    connect()  # creates only the study: the racing workers add all trials, some of them twice
    done: list[tuple[int, int]] = []

    def work(queue: TrialQueue) -> None:
        while True:
            trials = queue.reconcile()
            claim = queue.claim("w", trials)
            if claim is not None:
                done.append(claim.key)
                complete(queue, claim)
            elif queue.is_finished(trials):
                return

    workers = [threading.Thread(target=work, args=(connect(),)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert Counter(done) == {(setting, seed): 1 for setting in range(6) for seed in range(2)}
    trials = connect().trials()
    points = [tuple(trial.params.values()) for trial in trials if trial_state(trial) == "complete"]
    assert Counter(points) == {(length, layers): 2 for length in (4, 5, 6) for layers in (1, 2)}
    assert {trial_state(trial) for trial in trials} <= {"complete", "duplicate"}


def test_a_duplicate_is_left_to_the_lower_number(
    tiny_file: Path, join: Callable[[SweepDefinition], Join]
) -> None:
    queue = join(define(str(tiny_file), LENGTHS))()
    first = take(queue)
    queue._add(first.key, first.trial.params)  # by a worker that had not seen the first
    others = [take(queue), take(queue)]
    assert [claim.key for claim in (first, *others)] == [(0, 0), (1, 0), (2, 0)]
    assert queue.claim("w", queue.reconcile()) is None
    assert Counter(map(trial_state, queue.trials())) == {"running": 3, "duplicate": 1}


def test_a_duplicate_of_a_dead_worker_does_not_run_for_ever(
    tiny_file: Path, join: Callable[[SweepDefinition], Join], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = join(define(str(tiny_file), LENGTHS))()
    first = take(queue)
    queue._add(first.key, first.trial.params)  # by a worker that had not seen the first
    (copy,) = [
        trial for trial in queue.trials() if trial_state(trial) == "waiting" and trial_key(trial) == first.key
    ]
    assert queue._take(copy)  # and the worker dies here
    for claim in (first, take(queue), take(queue)):
        complete(queue, claim)
    assert not queue.is_finished(queue.reconcile())
    monkeypatch.setattr(rules, "STALE_INTERVALS", 0)
    monkeypatch.setattr(type(queue.database.storage), "_get_stale_trial_ids", lambda *_: [copy._trial_id])
    trials = queue.reconcile()
    assert queue.is_finished(trials) and Counter(map(trial_state, trials)) == {"complete": 3, "abandoned": 1}


def test_a_stale_trial_is_reassigned_and_its_late_result_is_rejected(
    tiny_file: Path, join: Callable[[SweepDefinition], Join], monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = join(define(str(tiny_file), LENGTHS))
    asleep, awake = connect(), connect()
    late = take(asleep)
    asleep.set_attributes(late.trial._trial_id, run="/somewhere")
    monkeypatch.setattr(
        type(awake.database.storage), "_get_stale_trial_ids", lambda *_: [late.trial._trial_id]
    )
    awake.reconcile()
    assert trial_state(active_trials(awake.trials())[late.key]) == "running"  # one check is not enough
    monkeypatch.setattr(rules, "STALE_INTERVALS", 0)
    trials = awake.reconcile()
    assert [trial_state(trial) for trial in attempts(trials, late.key)] == ["abandoned"]

    with pytest.raises(TrialLost):
        asleep.heartbeat(late.trial._trial_id)
    with pytest.raises(TrialLost):
        complete(asleep, late, 0.99)
    with pytest.raises(TrialLost):
        asleep.release(late.trial._trial_id)

    monkeypatch.undo()
    claims = [take(awake) for _ in range(3)]
    (again,) = [claim for claim in claims if claim.key == late.key]
    assert again.trial.params == late.trial.params
    assert [trial.user_attrs["run"] for trial in again.earlier] == ["/somewhere"]
    for claim in claims:
        complete(awake, claim, 0.25)
    assert {trial.value for trial in active_trials(awake.reconcile()).values()} == {0.25}
    assert awake.is_finished(awake.reconcile())


def test_a_lost_connection_does_not_make_a_trial_stale(
    tiny_file: Path, join: Callable[[SweepDefinition], Join], monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = join(define(str(tiny_file), LENGTHS))
    queue = connect()
    claim = take(queue)
    clock = iter(range(0, 10_000, 100))
    monkeypatch.setattr(rules, "time", SimpleNamespace(monotonic=lambda: next(clock), time=time.time))
    monkeypatch.setattr(
        type(queue.database.storage), "_get_stale_trial_ids", lambda *_: [claim.trial._trial_id]
    )
    for _ in range(3):
        queue.database.disconnections += 1  # no heartbeat was written since
        queue._fail_stale()
        assert trial_state(active_trials(queue.trials())[claim.key]) == "running"
    queue._fail_stale()
    assert claim.key not in active_trials(queue.trials())


def test_a_death_between_two_writes_loses_nothing(
    tiny_file: Path, join: Callable[[SweepDefinition], Join]
) -> None:
    queue = join(define(str(tiny_file), LENGTHS))()
    claims = [take(queue, "dead") for _ in range(3)]
    queue.set_attributes(claims[0].trial._trial_id, outcome="complete", metrics={})  # but no final state
    complete(queue, claims[2])
    queue.abandon_worker("dead")
    states = {key: trial_state(trial) for key, trial in active_trials(queue.reconcile()).items()}
    assert states == {(0, 0): "waiting", (1, 0): "waiting", (2, 0): "complete"}


def test_a_trial_that_kills_its_workers_is_exhausted_but_not_a_released_one(
    tiny_file: Path, join: Callable[[SweepDefinition], Join]
) -> None:
    queue = join(define(str(tiny_file), ["task.length=4,5"], trials=1))()
    for _ in range(MAX_ATTEMPTS):
        queue.release(take(queue).trial._trial_id)
    for _ in range(MAX_ATTEMPTS):
        take(queue, "dies")
        queue.abandon_worker("dies")
    trials = queue.reconcile()
    assert active_trials(trials) == {} and queue.is_finished(trials)


def test_a_lost_response_is_not_a_lost_trial(
    tiny_file: Path, join: Callable[[SweepDefinition], Join], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sqlalchemy.exc import OperationalError

    queue = join(define(str(tiny_file), LENGTHS))()
    claim, storage = take(queue), queue.database.storage
    really = storage.set_trial_state_values
    failures = [True]

    def once_lost(*arguments: object) -> bool:
        answer = really(*arguments)
        if failures:
            failures.pop()
            raise OperationalError("", {}, Exception("server closed the connection"))
        return bool(answer)

    monkeypatch.setattr(storage, "set_trial_state_values", once_lost)
    complete(queue, claim, 0.75)
    assert active_trials(queue.trials())[claim.key].value == 0.75


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_seeds_of_a_drawn_setting_share_its_values_and_the_budget_is_kept(
    tiny_file: Path, join: Callable[[SweepDefinition], Join], sampler: str
) -> None:
    asked = ["training.optimizer.learning_rate=log:1e-4..1e-2", "task.length=4..9"]
    connect = join(define(str(tiny_file), asked, sampler=sampler, seeds=2, trials=4))
    queues = [connect(), connect()]
    claims: list[Claim] = []
    while True:
        queue = queues[len(claims) % 2]
        claim = queue.claim("w", queue.reconcile())
        if claim is None:
            break
        claims.append(claim)
        complete(queue, claim, len(claims) / 10)
    assert sorted(claim.key for claim in claims) == [
        (setting, seed) for setting in range(4) for seed in (0, 1)
    ]
    values: dict[int, set[tuple[float, ...]]] = {}
    for claim in claims:
        values.setdefault(claim.key[0], set()).add(tuple(claim.trial.params.values()))
    assert all(len(drawn) == 1 for drawn in values.values())
    assert len(set.union(*values.values())) == 4
    more = dataclasses.replace(queues[0].definition, trials=5)
    larger = TrialQueue.create(queues[0].database, "study", more, None)
    assert trial_key(active_trials(larger.reconcile())[(4, 0)]) == (
        4,
        0,
    )  # the same study continues


def test_time_is_a_budget_too(
    tiny_file: Path, join: Callable[[SweepDefinition], Join], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["training.optimizer.learning_rate=log:1e-4..1e-2"]
    queue = join(define(str(tiny_file), asked, minutes=1))()
    queue.study.set_user_attr(rules.DEADLINE, 1000.0)
    monkeypatch.setattr(rules, "time", SimpleNamespace(monotonic=time.monotonic, time=lambda: 999.0))
    first, second = take(queue), take(queue)
    assert (first.key, second.key) == ((0, 0), (1, 0))
    complete(queue, first)
    monkeypatch.setattr(rules, "time", SimpleNamespace(monotonic=time.monotonic, time=lambda: 1001.0))
    assert queue.claim("w", queue.reconcile()) is None
    assert not queue.is_finished(queue.reconcile())  # running trials finish
    complete(queue, second)
    assert queue.is_finished(queue.reconcile())


def test_warnings_about_the_data_are_reported_once(
    tmp_path: Path, join: Callable[[SweepDefinition], Join], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        f"row {number} is fine,{'good' if number % 2 else 'bad'},{'ab'[number % 3 == 0]}"
        for number in range(40)
    ]
    (tmp_path / "own.csv").write_text("\n".join(["text,sentiment,topic", *rows]) + "\n")
    options = [f"task.data.train={tmp_path / 'own.csv'}", "model.hidden_dim=8,16", "model.num_heads=1"]
    small = ["model.num_layers=1", "training.max_steps=2", "training.max_epochs=null", "training.threads=1"]
    queue = join(define("classification", [*options, *small]))()
    for _ in range(2):
        TrialRun(queue, take(queue), tmp_path / "runs").run(lambda: False)
    document = write_results(queue, tmp_path)
    (warning,) = [text for text in document["warnings"] if "2 columns may be the target" in text]
    assert len(set(document["warnings"])) == len(document["warnings"])
    assert (tmp_path / "table.md").read_text().count(warning) == 1
    sweep_command._show(document, tmp_path, Output(is_json=False))
    assert capsys.readouterr().out.count(warning) == 1
