"""Workers of a sweep killed and frozen, its database restarted, its connections cut."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from reliability.base import Outcome, Place, Tries, fault, is_fresh
from reliability.children import Child
from reliability.postgresql import Server, a_server

LENGTHS = range(4, 9)
ASKED = [
    f"task.length={LENGTHS[0]}..{LENGTHS[-1]}",
    "training.max_epochs=1",
    "training.save_every=4",
    "evaluation.max_examples=8",
]
HEARTBEAT = 1
PATIENCE = 300.0


class Study:
    """One sweep of a few tiny runs in the server's database, and its workers."""

    def __init__(self, place: Place, server: Server, number: int) -> None:
        self.place, self.server, self.name = place, server, f"study-{number}"
        self.folder = place.made("sweep")
        self.workers: list[Child] = []

    def join(self, count: int) -> None:
        """Each as another machine would, by the study's name and the database alone."""
        options = ["--storage", self.server.url, "--out", self.folder, "--json"]
        self.workers += [self.place.start("sweep", "worker", self.name, *options) for _ in range(count)]

    def ended(self) -> int:
        return len(list(self.folder.glob("runs/*/results.json")))

    def wait_for(self, count: int) -> None:
        """Until so many runs have ended, and a moment more."""
        self.workers[0].wait_until(lambda: self.ended() >= count, f"{count} runs have ended", PATIENCE)
        time.sleep(self.place.dice.random() * 0.3)

    def worker(self) -> Child:
        """Whichever; it may be in the middle of a run, between two, or saving."""
        return self.place.dice.choice(self.workers)

    def wait(self) -> Outcome:
        codes = [worker.wait(PATIENCE) for worker in self.workers]
        if any(code not in (0, -signal.SIGKILL) for code in codes):
            return f"workers ended with {codes}: " + " ".join(worker.errors[-300:] for worker in self.workers)
        return None


def kill(study: Study) -> None:
    """Another one takes over what is silent."""
    study.worker().send(signal.SIGKILL)


def freeze(study: Study) -> None:
    """Until the other has taken over and done everything; what it then says comes too late."""
    sleeper = study.worker()
    sleeper.send(signal.SIGSTOP)
    for worker in study.workers:
        if worker is not sleeper:
            worker.wait(PATIENCE)
    sleeper.send(signal.SIGCONT)


def restart(study: Study) -> None:
    study.server.stop()
    time.sleep(study.place.dice.random())
    study.server.start()


def cut(study: Study) -> None:
    """All connections, three times."""
    import psycopg

    for _ in range(3):
        with psycopg.connect(study.server.url) as connection:
            others = "backend_type = 'client backend' AND pid <> pg_backend_pid()"
            connection.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")
        time.sleep(study.place.dice.random() * 0.5)


HARMS: list[Callable[[Study], None]] = [kill, restart, freeze, cut]


@fault(
    "sweep workers",
    "amid a sweep: a worker killed or frozen, the PostgreSQL server restarted, all connections cut",
    "the sweep comes to its end; no trial lost or counted twice",
    quick=10,
    full=200,
    part=5,
)
def sweeps(place: Place, numbers: range) -> Tries:
    with a_server() as server:
        for number in numbers:
            harm = HARMS[number % len(HARMS)]
            if is_fresh(number):
                outcome = by_the_command(place, server, harm, number)
            else:
                outcome = by_workers(place, server, harm, number)
            yield f"{harm.__name__}: {outcome}" if outcome else None


def by_workers(place: Place, server: Server, harm: Callable[[Study], None], number: int) -> Outcome:
    from glassformer.sweeps.definition import define
    from glassformer.sweeps.queue import Board
    from glassformer.sweeps.storage import Database, storage_url

    study = Study(place, server, number)
    database = Database(storage_url(server.url, study.folder))
    database.set_heartbeat(HEARTBEAT)
    definition = define(str(place.tiny_file), ASKED, heartbeat=HEARTBEAT)
    board = Board.create(database, study.name, definition, None)
    try:
        study.join(2)
        for worker in study.workers:  # a first connection that is refused is a mistake, not a fault
            worker.wait_for_words(f"joined {study.name}")
        study.wait_for(place.dice.randrange(0, len(LENGTHS) - 2))
        harm(study)
        return study.wait() or counted(board, study.folder)
    finally:
        database.close()


def by_the_command(place: Place, server: Server, harm: Callable[[Study], None], number: int) -> Outcome:
    """`glassformer sweep` with two workers of its own, as a person starts it."""
    from glassformer.sweeps.queue import join
    from glassformer.sweeps.storage import storage_url

    study = Study(place, server, number)
    options = [
        "--workers",
        "2",
        "--heartbeat",
        str(HEARTBEAT),
        "--storage",
        server.url,
        "--out",
        study.folder,
    ]
    command = place.start("sweep", place.tiny_file, *ASKED, *options, "--json", is_fresh=True)
    study.workers.append(command)
    study.wait_for(2)
    if harm is kill:
        kill_who_trains(study)
    else:
        harm(study)
    outcome = study.wait()
    if outcome or command.wait():
        return outcome or f"exit {command.wait()}"
    if harm is kill and "a worker has died" not in command.errors:
        return f"nothing is said of the worker that died: {command.errors[-300:]}"
    name = command.errors.split("glassformer sweep worker ")[1].split()[0]
    board = join(storage_url(server.url, study.folder), name)
    try:
        return counted(board, study.folder)
    finally:
        board.database.close()


def kill_who_trains(study: Study) -> None:
    """Its number stands in the lock of the run that it trains."""

    def is_killed() -> bool:
        for lock in study.folder.glob("runs/*/lock"):
            try:
                os.kill(int(lock.read_text()), signal.SIGKILL)
                return True
            except (OSError, ValueError):
                continue
        return False

    study.workers[0].wait_until(is_killed, "a worker trains")


def counted(board: object, folder: Path) -> Outcome:
    """Every setting once: in the database, and on disk."""
    from glassformer.sweeps.queue import living, outcome_of

    trials = board.settle()  # type: ignore[attr-defined]
    told = Counter(map(outcome_of, trials))
    if told["complete"] != len(LENGTHS) or not set(told) <= {"complete", "abandoned", "duplicate"}:
        return f"the database has {dict(told)}"
    complete = [trial for trial in trials if outcome_of(trial) == "complete"]
    settings = Counter(trial.params["task.length"] for trial in complete)
    if settings != dict.fromkeys(LENGTHS, 1):
        return f"settings were counted {dict(settings)} times"
    runs = {trial.user_attrs["run"] for trial in living(trials).values()}
    there = {str(path) for path in (folder / "runs").iterdir()}
    ended = {str(path.parent) for path in folder.glob("runs/*/results.json")}
    if not runs == there == ended:
        return f"runs {sorted(runs)}, on disk {sorted(there)}, of which ended {sorted(ended)}"
    return None
