"""Faults in a sweep: workers killed or frozen, the database restarted, connections cut."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from reliability.base import Outcome, Tries, Workspace, fault, is_fresh
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
    """Sweep of a few tiny runs in the server's database, with its workers."""

    def __init__(self, workspace: Workspace, server: Server, number: int) -> None:
        self.workspace, self.server, self.name = workspace, server, f"study-{number}"
        self.folder = workspace.made("sweep")
        self.workers: list[Child] = []

    def join(self, count: int) -> None:
        """Start workers as another machine would: by the study's name and the database."""
        options = ["--storage", self.server.url, "--out", self.folder, "--json"]
        self.workers += [self.workspace.start("sweep", "worker", self.name, *options) for _ in range(count)]

    def ended(self) -> int:
        return len(list(self.folder.glob("runs/*/results.json")))

    def wait_for(self, count: int) -> None:
        """Wait until a number of runs have ended, and a random moment longer."""
        self.workers[0].wait_until(lambda: self.ended() >= count, f"{count} runs have ended", PATIENCE)
        time.sleep(self.workspace.rng.random() * 0.3)

    def worker(self) -> Child:
        """Choose a random worker."""
        return self.workspace.rng.choice(self.workers)

    def wait(self) -> Outcome:
        codes = [worker.wait(PATIENCE) for worker in self.workers]
        if any(code not in (0, -signal.SIGKILL) for code in codes):
            return f"workers ended with {codes}: " + " ".join(worker.errors[-300:] for worker in self.workers)
        return None


def kill(study: Study) -> None:
    """Kill a worker; another one takes over its run."""
    study.worker().send(signal.SIGKILL)


def freeze(study: Study) -> None:
    """Stop a worker until the others have done everything; its late result must not count."""
    sleeper = study.worker()
    sleeper.send(signal.SIGSTOP)
    for worker in study.workers:
        if worker is not sleeper:
            worker.wait(PATIENCE)
    sleeper.send(signal.SIGCONT)


def restart(study: Study) -> None:
    study.server.stop()
    time.sleep(study.workspace.rng.random())
    study.server.start()


def cut(study: Study) -> None:
    """Cut all connections, three times."""
    import psycopg

    for _ in range(3):
        with psycopg.connect(study.server.url) as connection:
            others = "backend_type = 'client backend' AND pid <> pg_backend_pid()"
            connection.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")
        time.sleep(study.workspace.rng.random() * 0.5)


FAULT_KINDS: list[Callable[[Study], None]] = [kill, restart, freeze, cut]


@fault(
    "sweep workers",
    "during a sweep: a worker killed or frozen, the PostgreSQL server restarted, all connections cut",
    "the sweep finishes; no trial is lost or counted twice",
    quick=10,
    full=200,
    part=5,
)
def sweeps(workspace: Workspace, numbers: range) -> Tries:
    with a_server() as server:
        for number in numbers:
            inject = FAULT_KINDS[number % len(FAULT_KINDS)]
            if is_fresh(number):
                outcome = by_the_command(workspace, server, inject, number)
            else:
                outcome = by_workers(workspace, server, inject, number)
            yield f"{inject.__name__}: {outcome}" if outcome else None


def by_workers(workspace: Workspace, server: Server, inject: Callable[[Study], None], number: int) -> Outcome:
    from glassformer.sweeps.definition import define
    from glassformer.sweeps.queue import TrialQueue
    from glassformer.sweeps.storage import Database, storage_url

    study = Study(workspace, server, number)
    database = Database(storage_url(server.url, study.folder))
    database.set_heartbeat(HEARTBEAT)
    definition = define(str(workspace.tiny_file), ASKED, heartbeat=HEARTBEAT)
    queue = TrialQueue.create(database, study.name, definition, None)
    try:
        study.join(2)
        for worker in study.workers:  # a refused first connection is a user error, not a fault
            worker.wait_for_text(f"joined {study.name}")
        study.wait_for(workspace.rng.randrange(0, len(LENGTHS) - 2))
        inject(study)
        return study.wait() or counted(queue, study.folder)
    finally:
        database.close()


def by_the_command(
    workspace: Workspace, server: Server, inject: Callable[[Study], None], number: int
) -> Outcome:
    """Run `glassformer sweep` with two workers, as a user would."""
    from glassformer.sweeps.queue import open_queue
    from glassformer.sweeps.storage import storage_url

    study = Study(workspace, server, number)
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
    command = workspace.start("sweep", workspace.tiny_file, *ASKED, *options, "--json", is_fresh=True)
    study.workers.append(command)
    study.wait_for(2)
    if inject is kill:
        kill_training_worker(study)
    else:
        inject(study)
    outcome = study.wait()
    if outcome or command.wait():
        return outcome or f"exit {command.wait()}"
    if inject is kill and "a worker has died" not in command.errors:
        return f"the death of the worker is not reported: {command.errors[-300:]}"
    name = command.errors.split("glassformer sweep worker ")[1].split()[0]
    queue = open_queue(storage_url(server.url, study.folder), name)
    try:
        return counted(queue, study.folder)
    finally:
        queue.database.close()


def kill_training_worker(study: Study) -> None:
    """Kill the worker that trains; its pid is in the lock of the run."""

    def is_killed() -> bool:
        for lock in study.folder.glob("runs/*/lock"):
            try:
                os.kill(int(lock.read_text()), signal.SIGKILL)
                return True
            except (OSError, ValueError):
                continue
        return False

    study.workers[0].wait_until(is_killed, "a worker trains")


def counted(queue: object, folder: Path) -> Outcome:
    """Check that every setting was counted once, in the database and on disk."""
    from glassformer.sweeps.queue import active_trials, trial_state

    trials = queue.reconcile()  # type: ignore[attr-defined]
    outcomes = Counter(map(trial_state, trials))
    if outcomes["complete"] != len(LENGTHS) or not set(outcomes) <= {"complete", "abandoned", "duplicate"}:
        return f"the database has {dict(outcomes)}"
    complete = [trial for trial in trials if trial_state(trial) == "complete"]
    settings = Counter(trial.params["task.length"] for trial in complete)
    if settings != dict.fromkeys(LENGTHS, 1):
        return f"settings were counted {dict(settings)} times"
    runs = {trial.user_attrs["run"] for trial in active_trials(trials).values()}
    there = {str(path) for path in (folder / "runs").iterdir()}
    ended = {str(path.parent) for path in folder.glob("runs/*/results.json")}
    if not runs == there == ended:
        return f"runs {sorted(runs)}, on disk {sorted(there)}, of which ended {sorted(ended)}"
    return None
