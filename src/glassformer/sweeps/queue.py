"""Trial queue of a sweep in its database: missing trials, claims and final states.

A trial is one setting (a combination of option values) with one seed, trained as an ordinary run. Workers may
be killed, suspended or disconnected at any moment, and no lock is held during training. Four rules make every
(setting, seed) count once:

1. A trial is claimed by one atomic change of its state, `WAITING` to `RUNNING`, and ended by another one.
2. A trial without heartbeats is failed. This is final: a later result is rejected.
3. Any worker may add a trial for a (setting, seed) that has no active trial. Two workers may add one at once.
4. A worker that claimed a trial drops it if the same (setting, seed) has an active trial with a lower number.
   Numbers follow the order in which trials become visible, so all workers agree on the lower one.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.core.errors import user_error
from glassformer.data.batching import generator
from glassformer.evaluation.metrics import lower_is_better
from glassformer.sweeps.definition import SweepDefinition, build_pruner, build_sampler
from glassformer.sweeps.storage import Database, TrialLost, without_password

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial, Trial


MAX_ATTEMPTS = 5
"""Maximum number of workers that may die in a trial before the trial counts as failed."""
STALE_INTERVALS = 2
"""Heartbeat intervals between two checks. A trial is abandoned if both checks find no heartbeats."""
DEFINITION, DEADLINE = "definition", "deadline"

OUTCOMES = {
    # A diverged run is a bad setting, as is a pruned one; Optuna's samplers learn from both.
    "complete": ("complete",),
    "pruned": ("pruned", "diverged"),
    "fail": ("failed", "duplicate"),
}
"""Final states of a trial in this package, for each final state in Optuna."""

Key = tuple[int, int]
"""Identity of a trial: the index of its combination of option values, and its seed."""


@dataclass(frozen=True)
class Claim:
    """Trial that a worker has claimed, so that no other worker trains it."""

    trial: Trial
    key: Key
    earlier: Sequence[FrozenTrial]
    """Earlier trials with the same option values and seed whose workers died or stopped, latest first."""


def trial_key(trial: FrozenTrial) -> Key:
    """Return the index of the trial's combination of option values, and its seed."""
    return trial.user_attrs["setting"], trial.user_attrs["seed"]


def trial_state(trial: FrozenTrial) -> str:
    """Return the state of a trial: `waiting`, `running`, `abandoned`, or a final state in `OUTCOMES`."""
    name, recorded = str(trial.state.name).lower(), trial.user_attrs.get("outcome")
    # The recorded outcome counts only with the matching final state: a worker may die between the two writes.
    return str(recorded) if recorded in OUTCOMES.get(name, ()) else "abandoned" if name == "fail" else name


def active_trials(trials: Iterable[FrozenTrial]) -> dict[Key, FrozenTrial]:
    """Return the valid trial for each key (option values and seed), ignoring abandoned and duplicate ones."""
    found: dict[Key, FrozenTrial] = {}
    for trial in sorted(trials, key=lambda trial: trial.number):
        if trial_state(trial) not in ("abandoned", "duplicate"):
            found.setdefault(trial_key(trial), trial)
    return found


def attempts(trials: Iterable[FrozenTrial], key: Key) -> list[FrozenTrial]:
    """Return the abandoned trials with this key (option values and seed), latest first."""
    abandoned = [trial for trial in trials if trial_state(trial) == "abandoned" and trial_key(trial) == key]
    return sorted(abandoned, key=lambda trial: -trial.number)


def is_exhausted(abandoned: Sequence[FrozenTrial]) -> bool:
    """Return True if `MAX_ATTEMPTS` workers died in a trial. Workers that were stopped do not count."""
    return len([trial for trial in abandoned if "is_released" not in trial.user_attrs]) >= MAX_ATTEMPTS


class TrialQueue:
    """Queue of all trials of one sweep. Any number of workers may call its methods concurrently."""

    def __init__(self, database: Database, name: str) -> None:
        self.database, self.storage = database, database.storage
        self.name = name
        self._stale: dict[int, float] = {}
        self._disconnections = 0

    @classmethod
    def open(cls, database: Database, name: str) -> TrialQueue:
        """Open the queue of an existing sweep; raise a user error if the sweep is not in the database."""
        queue = cls(database, name)
        if name not in (names := queue.names()):
            where = without_password(database.url)
            raise user_error("no such study", path=where, value=name, allowed=names, hint="check its name")
        return queue

    @classmethod
    def create(
        cls, database: Database, name: str, definition: SweepDefinition, deadline: float | None
    ) -> TrialQueue:
        """Create a sweep in the database, or open it and update its definition and deadline."""
        import optuna

        queue = cls(database, name)
        direction = "minimize" if lower_is_better(definition.metric) else "maximize"
        study = database.query(
            lambda: optuna.create_study(
                study_name=name, storage=database.storage, direction=direction, load_if_exists=True
            )
        )
        database.query(lambda: study.set_user_attr(DEADLINE, deadline))
        database.query(lambda: study.set_user_attr(DEFINITION, asdict(definition)))
        return queue

    def names(self) -> list[str]:
        """Return the names of all sweeps in the database."""
        import optuna

        return self.database.query(lambda: optuna.get_all_study_names(self.storage))

    @cached_property
    def definition(self) -> SweepDefinition:
        """Definition of the sweep. The first access waits until the definition is in the database."""
        while True:
            attributes = self.database.query(lambda: self.study.user_attrs)
            if DEFINITION in attributes:
                return SweepDefinition(**attributes[DEFINITION])
            time.sleep(0.2)

    def is_past_deadline(self) -> bool:
        """Return True if the deadline has passed, after which no trial may start."""
        deadline = self.database.query(lambda: self.study.user_attrs).get(DEADLINE)
        return deadline is not None and time.time() > deadline

    @cached_property
    def study(self) -> Study:
        """Optuna study that is used to read trials. Optuna reloads changed trials from the database."""
        return self.database.query(self._load)

    def _load(self, **methods: Any) -> Study:
        import optuna

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return optuna.load_study(study_name=self.name, storage=self.storage, **methods)

    def _study_for_sampling(self, setting: int) -> Study:
        """Return a new Optuna study with its own sampler, because a sampler caches state of one trial.

        Each setting has its own seed. Concurrent workers therefore draw different values, and a random sweep
        does not depend on the number of workers.
        """
        seed = int(generator(self.definition.first_seed, "sweep", setting).integers(2**31))
        sampler = build_sampler(self.definition.sampler, seed)
        study = self._load(sampler=sampler, pruner=build_pruner(self.definition.pruner))
        study.get_trials(deepcopy=False)  # fills its cache, which must contain the trial to draw
        return study

    def trials(self) -> list[FrozenTrial]:
        """Return all trials of the sweep, in any state."""
        return self.database.query(lambda: self.study.get_trials(deepcopy=False))

    # ------------------------------------------------------------ missing trials

    def reconcile(self) -> list[FrozenTrial]:
        """Abandon trials without heartbeats, add missing trials to the queue, and return all trials."""
        self._fail_stale()
        trials = self.trials()
        missing = self._missing(trials)
        if not missing:
            return trials
        for key, labels in missing:
            self._add(key, labels)
        return self.trials()

    def _missing(self, trials: Sequence[FrozenTrial]) -> list[tuple[Key, dict[str, Any]]]:
        """Return the keys (setting and seed) without a valid trial, with the option values drawn so far."""
        definition, alive, missing = self.definition, active_trials(trials), []
        chosen = self._chosen(trials)
        first, *others = definition.seed_range()
        for setting in self._settings(trials):
            labels = chosen.get(setting, {})
            # The other seeds follow after the first has drawn the values of the setting.
            for seed in [first, *others] if labels else [first]:
                key = (setting, seed)
                if key not in alive and not is_exhausted(attempts(trials, key)):
                    missing.append((key, labels))
        return missing

    def _settings(self, trials: Sequence[FrozenTrial]) -> range:
        definition = self.definition
        if definition.is_grid:
            return range(min(len(self._grid), definition.trials or len(self._grid)))
        if definition.trials is not None:
            return range(definition.trials)
        known = 1 + max((trial_key(trial)[0] for trial in trials), default=-1)
        has_waiting = any(trial_state(trial) == "waiting" for trial in active_trials(trials).values())
        return range(known if has_waiting or self.is_past_deadline() else known + 1)

    @cached_property
    def _grid(self) -> list[dict[str, Any]]:
        space = self.definition.space
        return [space.labels(point) for point in space.grid()]

    def _chosen(self, trials: Sequence[FrozenTrial]) -> dict[int, dict[str, Any]]:
        if self.definition.is_grid:
            return dict(enumerate(self._grid))
        chosen: dict[int, dict[str, Any]] = {}
        for trial in trials:
            if trial.params.keys() == self.definition.texts.keys():
                chosen.setdefault(trial_key(trial)[0], trial.params)
        return chosen

    def _add(self, key: Key, labels: Mapping[str, Any]) -> None:
        from optuna.trial import TrialState, create_trial

        trial = create_trial(
            state=TrialState.WAITING,
            params=dict(labels),
            distributions=self.definition.space.distributions() if labels else {},
            user_attrs={"setting": key[0], "seed": key[1]},
        )
        self.database.query(lambda: self.study.add_trial(trial))

    def is_finished(self, trials: Sequence[FrozenTrial]) -> bool:
        """Return True if no trial is running and none will start. `trials` is the result of `reconcile`.

        A worker may die before it drops a duplicate. Such a trial counts as running until it is abandoned.
        """
        runs = any(trial_state(trial) == "running" for trial in trials)
        waits = any(trial_state(trial) == "waiting" for trial in active_trials(trials).values())
        return not runs and (not waits or self.is_past_deadline())

    # ------------------------------------------------------------ claims

    def claim(self, worker: str, trials: Sequence[FrozenTrial]) -> Claim | None:
        """Claim a waiting trial for this worker; return None if none waits or the deadline has passed."""
        waiting = [trial for trial in trials if trial_state(trial) == "waiting"]
        if not waiting or self.is_past_deadline():
            return None
        for trial in sorted(waiting, key=lambda trial: trial.number):
            if self._take(trial):
                current = self.trials()
                key = trial_key(trial)
                if active_trials(current).get(key, trial).number < trial.number:
                    self.finish(trial._trial_id, "duplicate")
                    continue
                self.set_attributes(trial._trial_id, worker=worker)
                return Claim(self._open_trial(trial), key, attempts(current, key))
        return None

    def _take(self, trial: FrozenTrial) -> bool:
        # The heartbeat comes first, so that a worker that dies right after the claim is detected.
        self.database.query(lambda: self.storage.record_heartbeat(trial._trial_id))
        return self._set_state(trial._trial_id, "RUNNING")

    def _set_state(self, trial_id: int, state: str) -> bool:
        """Change the state of a trial; return False if it has ended or another process claimed it first."""
        from optuna.trial import TrialState

        try:
            return self.database.query(
                lambda: self.storage.set_trial_state_values(trial_id, TrialState[state])
            )
        except TrialLost:
            return False

    def _open_trial(self, trial: FrozenTrial) -> Trial:
        """Return Optuna's trial with its option values. The sampler draws the values that are missing."""
        import optuna

        def draw() -> Trial:
            opened = optuna.trial.Trial(self._study_for_sampling(trial_key(trial)[0]), trial._trial_id)
            for path, values in self.definition.space.axes.items():
                values.suggest(opened, path)
            return opened

        return self.database.query(draw)

    def _fail_stale(self) -> None:
        """Abandon each trial for which two checks, some time apart, found no heartbeats.

        A lost connection restarts the checks, because an unreachable server receives no heartbeats.
        """
        now = time.monotonic()
        stale = self.database.query(lambda: self.storage._get_stale_trial_ids(self.study._study_id))
        if self.database.disconnections != self._disconnections:
            self._disconnections, self._stale = self.database.disconnections, {}
        self._stale = {trial_id: self._stale.get(trial_id, now) for trial_id in stale}
        for trial_id, since in self._stale.items():
            if now - since >= STALE_INTERVALS * self.database.heartbeat:
                self._set_state(trial_id, "FAIL")

    def abandon_worker(self, worker: str) -> None:
        """Mark all running trials of a dead worker as abandoned, so that other workers repeat them."""
        for trial in self.trials():
            if trial_state(trial) == "running" and trial.user_attrs.get("worker") == worker:
                self._set_state(trial._trial_id, "FAIL")

    # ------------------------------------------------------------ progress and final states

    def heartbeat(self, trial_id: int) -> None:
        """Record a heartbeat for a trial; raise `TrialLost` if the trial is no longer running."""
        if self.database.query(lambda: self.storage.get_trial(trial_id)).state.name != "RUNNING":
            raise TrialLost
        self.database.query(lambda: self.storage.record_heartbeat(trial_id))

    def set_attributes(self, trial_id: int, **attributes: Any) -> None:
        """Store attributes of a running trial; raise `TrialLost` if the trial has ended."""
        for name, value in attributes.items():
            self.database.query(partial(self.storage.set_trial_user_attr, trial_id, name, value))

    def finish(self, trial_id: int, outcome: str, value: float | None = None, **attributes: Any) -> None:
        """Set the final state of a trial; raise `TrialLost` if the trial has already ended."""
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        state = next(TrialState[name.upper()] for name, ours in OUTCOMES.items() if outcome in ours)
        self.set_attributes(trial_id, **attributes, outcome=outcome)
        values = None if value is None else [value]
        is_retry = False

        def end() -> None:
            nonlocal is_retry
            try:
                self.storage.set_trial_state_values(trial_id, state, values)
            except UpdateFinishedTrialError:
                # Our own change may have succeeded although the connection was lost before the response.
                if not is_retry or self.storage.get_trial(trial_id).state != state:
                    raise
            finally:
                is_retry = True

        self.database.query(end)

    def release(self, trial_id: int) -> None:
        """Return the trial of a stopped worker to the queue; the next worker resumes it."""
        self.set_attributes(trial_id, is_released=True)
        self._set_state(trial_id, "FAIL")


def open_queue(url: str, name: str, **callbacks: Any) -> TrialQueue:
    """Open the queue of an existing sweep, and set the heartbeat interval of the sweep's definition."""
    file = url.removeprefix("sqlite:///")
    if file != url and not Path(file).exists():  # SQLite would create an empty one
        raise user_error("no such file", path=file, hint="check --storage")
    database = Database(url, **callbacks)
    queue = TrialQueue.open(database, name)
    database.set_heartbeat(queue.definition.heartbeat)
    return queue
