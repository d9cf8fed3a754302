"""Every (setting, seed) counts once, whoever dies, sleeps or is cut off, and whenever. No training here."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from glassformer.sweeps import queue as rules
from glassformer.sweeps.definition import Definition, define
from glassformer.sweeps.queue import MOST_ATTEMPTS, Board, Claim, Lost, attempts, key_of, living, outcome_of
from glassformer.sweeps.storage import Database

Join = Callable[[], Board]
LENGTHS = ["task.length=4,5,6"]


@pytest.fixture
def join(tmp_path: Path, tiny_file: Path) -> Iterator[Callable[[Definition], Join]]:
    """Boards of one study, each with a connection of its own, as workers have."""
    opened: list[Database] = []

    def begin(definition: Definition) -> Join:
        def connect() -> Board:
            database = Database(f"sqlite:///{tmp_path}/sweep.db")
            database.set_heartbeat(1)
            opened.append(database)
            return Board.create(database, "study", definition, None)

        return connect

    yield begin
    for database in opened:
        database.close()


def take(board: Board, worker: str = "w") -> Claim:
    claim = board.claim(worker, board.settle())
    assert claim is not None
    return claim


def complete(board: Board, claim: Claim, value: float = 0.5) -> None:
    board.finish(claim.trial._trial_id, "complete", value)


def test_a_grid_is_covered_once_by_workers_that_race(
    tiny_file: Path, join: Callable[[Definition], Join]
) -> None:
    connect = join(define(str(tiny_file), [*LENGTHS, "model.num_layers=1,2"], seeds=2))
    connect()  # only the study: the racing workers add all trials, some of them twice
    done: list[tuple[int, int]] = []

    def work(board: Board) -> None:
        while True:
            trials = board.settle()
            claim = board.claim("w", trials)
            if claim is not None:
                done.append(claim.key)
                complete(board, claim)
            elif board.is_over(trials):
                return

    workers = [threading.Thread(target=work, args=(connect(),)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert Counter(done) == {(setting, seed): 1 for setting in range(6) for seed in range(2)}
    trials = connect().trials()
    points = [tuple(trial.params.values()) for trial in trials if outcome_of(trial) == "complete"]
    assert Counter(points) == {(length, layers): 2 for length in (4, 5, 6) for layers in (1, 2)}
    assert {outcome_of(trial) for trial in trials} <= {"complete", "duplicate"}


def test_a_duplicate_is_left_to_the_lower_number(tiny_file: Path, join: Callable[[Definition], Join]) -> None:
    board = join(define(str(tiny_file), LENGTHS))()
    first = take(board)
    board._add(first.key, first.trial.params)  # by one who had not seen the first
    others = [take(board), take(board)]
    assert [claim.key for claim in (first, *others)] == [(0, 0), (1, 0), (2, 0)]
    assert board.claim("w", board.settle()) is None
    assert Counter(map(outcome_of, board.trials())) == {"running": 3, "duplicate": 1}


def test_a_duplicate_whose_worker_died_before_leaving_it_does_not_run_for_ever(
    tiny_file: Path, join: Callable[[Definition], Join], monkeypatch: pytest.MonkeyPatch
) -> None:
    board = join(define(str(tiny_file), LENGTHS))()
    first = take(board)
    board._add(first.key, first.trial.params)  # by one who had not seen the first
    (copy,) = [
        trial for trial in board.trials() if outcome_of(trial) == "waiting" and key_of(trial) == first.key
    ]
    assert board._take(copy)  # and died here
    for claim in (first, take(board), take(board)):
        complete(board, claim)
    assert not board.is_over(board.settle())
    monkeypatch.setattr(rules, "SIGHTINGS_APART", 0)
    monkeypatch.setattr(type(board.database.storage), "_get_stale_trial_ids", lambda *_: [copy._trial_id])
    trials = board.settle()
    assert board.is_over(trials) and Counter(map(outcome_of, trials)) == {"complete": 3, "abandoned": 1}


def test_a_silent_trial_is_given_to_another_and_its_late_result_is_refused(
    tiny_file: Path, join: Callable[[Definition], Join], monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = join(define(str(tiny_file), LENGTHS))
    asleep, awake = connect(), connect()
    late = take(asleep)
    asleep.write(late.trial._trial_id, run="/somewhere")
    monkeypatch.setattr(
        type(awake.database.storage), "_get_stale_trial_ids", lambda *_: [late.trial._trial_id]
    )
    awake.settle()
    assert outcome_of(living(awake.trials())[late.key]) == "running"  # one look is not enough
    monkeypatch.setattr(rules, "SIGHTINGS_APART", 0)
    trials = awake.settle()
    assert [outcome_of(trial) for trial in attempts(trials, late.key)] == ["abandoned"]

    with pytest.raises(Lost):
        asleep.beat(late.trial._trial_id)
    with pytest.raises(Lost):
        complete(asleep, late, 0.99)
    with pytest.raises(Lost):
        asleep.give_back(late.trial._trial_id)

    monkeypatch.undo()
    claims = [take(awake) for _ in range(3)]
    (again,) = [claim for claim in claims if claim.key == late.key]
    assert again.trial.params == late.trial.params
    assert [trial.user_attrs["run"] for trial in again.earlier] == ["/somewhere"]
    for claim in claims:
        complete(awake, claim, 0.25)
    assert {trial.value for trial in living(awake.settle()).values()} == {0.25}
    assert awake.is_over(awake.settle())


def test_a_break_of_the_connection_is_no_silence(
    tiny_file: Path, join: Callable[[Definition], Join], monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = join(define(str(tiny_file), LENGTHS))
    board = connect()
    claim = take(board)
    clock = iter(range(0, 10_000, 100))
    monkeypatch.setattr(rules.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(
        type(board.database.storage), "_get_stale_trial_ids", lambda *_: [claim.trial._trial_id]
    )
    for _ in range(3):
        board.database.drops += 1  # nobody's signs of life have been written since
        board._fail_silent()
        assert outcome_of(living(board.trials())[claim.key]) == "running"
    board._fail_silent()
    assert claim.key not in living(board.trials())


def test_who_dies_between_any_two_writes_loses_nothing(
    tiny_file: Path, join: Callable[[Definition], Join]
) -> None:
    board = join(define(str(tiny_file), LENGTHS))()
    claims = [take(board, "dead") for _ in range(3)]
    board.write(claims[0].trial._trial_id, outcome="complete", metrics={})  # and no end after it
    complete(board, claims[2])
    board.abandon_all_of("dead")
    states = {key: outcome_of(trial) for key, trial in living(board.settle()).items()}
    assert states == {(0, 0): "waiting", (1, 0): "waiting", (2, 0): "complete"}


def test_a_trial_that_kills_its_workers_is_given_up_but_not_one_that_was_given_back(
    tiny_file: Path, join: Callable[[Definition], Join]
) -> None:
    board = join(define(str(tiny_file), ["task.length=4,5"], trials=1))()
    for _ in range(MOST_ATTEMPTS):
        board.give_back(take(board).trial._trial_id)
    for _ in range(MOST_ATTEMPTS):
        take(board, "dies")
        board.abandon_all_of("dies")
    trials = board.settle()
    assert living(trials) == {} and board.is_over(trials)


def test_an_answer_lost_with_the_connection_is_not_a_lost_trial(
    tiny_file: Path, join: Callable[[Definition], Join], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sqlalchemy.exc import OperationalError

    board = join(define(str(tiny_file), LENGTHS))()
    claim, storage = take(board), board.database.storage
    really = storage.set_trial_state_values
    failures = [True]

    def once_lost(*arguments: object) -> bool:
        answer = really(*arguments)
        if failures:
            failures.pop()
            raise OperationalError("", {}, Exception("server closed the connection"))
        return bool(answer)

    monkeypatch.setattr(storage, "set_trial_state_values", once_lost)
    complete(board, claim, 0.75)
    assert living(board.trials())[claim.key].value == 0.75


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_seeds_of_a_drawn_setting_share_its_values_and_the_budget_is_kept(
    tiny_file: Path, join: Callable[[Definition], Join], sampler: str
) -> None:
    asked = ["training.optimizer.learning_rate=log:1e-4..1e-2", "task.length=4..9"]
    connect = join(define(str(tiny_file), asked, sampler=sampler, seeds=2, trials=4))
    boards = [connect(), connect()]
    claims: list[Claim] = []
    while True:
        board = boards[len(claims) % 2]
        claim = board.claim("w", board.settle())
        if claim is None:
            break
        claims.append(claim)
        complete(board, claim, len(claims) / 10)
    assert sorted(claim.key for claim in claims) == [
        (setting, seed) for setting in range(4) for seed in (0, 1)
    ]
    values: dict[int, set[tuple[float, ...]]] = {}
    for claim in claims:
        values.setdefault(claim.key[0], set()).add(tuple(claim.trial.params.values()))
    assert all(len(drawn) == 1 for drawn in values.values())
    assert len(set.union(*values.values())) == 4
    more = dataclasses.replace(boards[0].definition, trials=5)
    larger = Board.create(boards[0].database, "study", more, None)
    assert key_of(living(larger.settle())[(4, 0)]) == (4, 0)  # asked for more, the same study goes on


def test_time_is_a_budget_too(
    tiny_file: Path, join: Callable[[Definition], Join], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["training.optimizer.learning_rate=log:1e-4..1e-2"]
    board = join(define(str(tiny_file), asked, minutes=1))()
    board.study.set_user_attr(rules.DEADLINE, 1000.0)
    monkeypatch.setattr(rules.time, "time", lambda: 999.0)
    first, second = take(board), take(board)
    assert (first.key, second.key) == ((0, 0), (1, 0))
    complete(board, first)
    monkeypatch.setattr(rules.time, "time", lambda: 1001.0)
    assert board.claim("w", board.settle()) is None
    assert not board.is_over(board.settle())  # what runs comes to its end
    complete(board, second)
    assert board.is_over(board.settle())
