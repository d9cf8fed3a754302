"""The `sweep worker` verb on a real PostgreSQL server.

`reliability/sweeping.py` kills, suspends and disconnects workers of such a server.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from glassformer.cli import main
from glassformer.sweeps import storage
from glassformer.sweeps.definition import define
from glassformer.sweeps.queue import TrialQueue, trial_state
from glassformer.sweeps.storage import Database, is_connection_error, storage_url
from reliability.base import Unsupported
from reliability.postgresql import Server, a_server


@pytest.fixture
def server() -> Iterator[Server]:
    try:
        with a_server() as server:
            yield server
    except Unsupported as reason:
        if os.environ.get("CI") == "true":
            pytest.fail(str(reason))
        pytest.skip(str(reason))


def test_the_worker_verb_takes_its_trials_from_the_server(
    server: Server, tiny_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Join from a machine that knows only the server and the name of the study."""
    definition = define(str(tiny_file), ["model.num_layers=1,2", "training.max_epochs=1"], heartbeat=1)
    url = storage_url(server.url, tmp_path)
    database = Database(url)
    database.set_heartbeat(1)
    queue = TrialQueue.create(database, "shared", definition, None)
    command = ["sweep", "worker", "shared", "--storage", server.url, "--out", str(tmp_path), "--json"]
    assert main(command) == 0
    document = json.loads(capfd.readouterr().out)
    trials = queue.trials()
    database.close()
    assert document["trials"] == 2 and document["storage"] == server.url
    assert [trial_state(trial) for trial in trials] == ["complete", "complete"]
    assert {trial.user_attrs["run"] for trial in trials} == {
        str(tmp_path / "runs" / f"trial-000{setting}-seed-0") for setting in (0, 1)
    }


def test_a_worker_suspended_with_a_lock_does_not_block_the_others(
    server: Server, tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker suspended inside a transaction loses its session and reconnects when it resumes."""
    monkeypatch.setattr(storage, "LOCKED_SECONDS", 1)
    url = storage_url(server.url, tmp_path)
    sleeper, other = Database(url), Database(url)
    definition = define(str(tiny_file), ["model.num_layers=1,2"], heartbeat=1)
    queue = TrialQueue.create(sleeper, "shared", definition, None)
    lock = text("SELECT study_id FROM studies FOR UPDATE NOWAIT")
    patient = text("SELECT study_id FROM studies FOR UPDATE")
    try:
        with sleeper.storage.engine.connect() as held, other.storage.engine.connect() as asking:
            held.execute(lock)
            asking.execute(text("SET lock_timeout = '60s'"))
            assert asking.execute(patient).all(), "the server ended the session of the suspended worker"
            asking.rollback()
            with pytest.raises(DBAPIError) as woken:
                held.execute(lock)
            assert is_connection_error(woken.value)
        assert len(sleeper.query(queue.trials)) == 0
    finally:
        sleeper.close()
        other.close()
