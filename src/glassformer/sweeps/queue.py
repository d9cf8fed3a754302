"""The trials of a sweep in its database: what is missing, who has what, what became of it.

A trial is a setting with a seed, and an ordinary run. Workers may be killed, paused or cut off at any moment,
and nothing holds a lock meanwhile. Four rules make every (setting, seed) count once:

1. A trial is taken by one atomic change of its state, `WAITING` to `RUNNING`, and ended by another one.
2. A trial whose worker is silent is failed. That is final: a result that comes later is refused.
3. For a (setting, seed) without a living trial anybody may add one; that two do so is no harm, because
4. whoever has taken a trial leaves it if the same (setting, seed) has a living one with a lower number.
   Numbers are given in the order in which trials become visible, so all agree on which is lower.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.core.errors import user_error
from glassformer.data.batching import generator
from glassformer.evaluation.metrics import falls
from glassformer.sweeps.definition import SAMPLERS, Definition, build_pruner
from glassformer.sweeps.storage import Database, connect, shown

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial, Trial


MOST_ATTEMPTS = 5
"""After so many workers have died over a trial, it is not tried again."""
SIGHTINGS_APART = 2
"""Heartbeats between the two looks that must both find a trial silent."""
DEFINITION, DEADLINE = "definition", "deadline"

OUTCOMES = {
    # To a sampler, a run that diverged is like one that was not worth its end: a bad setting.
    "complete": ("complete",),
    "pruned": ("pruned", "diverged"),
    "fail": ("failed", "duplicate"),
}
"""By Optuna's state, what a trial can have come to."""

Key = tuple[int, int]
"""A setting's number and a seed."""


class Lost(Exception):
    """The trial was given to another worker; what this one makes of it does not count."""


@dataclass(frozen=True)
class Claim:
    """A trial that this worker has taken."""

    trial: Trial
    key: Key
    earlier: Sequence[FrozenTrial]
    """Attempts of workers that died, the last one first."""


def key_of(trial: FrozenTrial) -> Key:
    return trial.user_attrs["setting"], trial.user_attrs["seed"]


def outcome_of(trial: FrozenTrial) -> str:
    """`waiting`, `running`, `complete`, `pruned`, `diverged`, `failed`, `duplicate` or `abandoned`."""
    name, written = str(trial.state.name).lower(), trial.user_attrs.get("outcome")
    # What was written counts if the end came that it announces; a worker may die in between.
    return str(written) if written in OUTCOMES.get(name, ()) else "abandoned" if name == "fail" else name


def living(trials: Iterable[FrozenTrial]) -> dict[Key, FrozenTrial]:
    """The one trial of each key that counts."""
    found: dict[Key, FrozenTrial] = {}
    for trial in sorted(trials, key=lambda trial: trial.number):
        if outcome_of(trial) not in ("abandoned", "duplicate"):
            found.setdefault(key_of(trial), trial)
    return found


def attempts(trials: Iterable[FrozenTrial], key: Key) -> list[FrozenTrial]:
    """Those that came to nothing, the last one first."""
    abandoned = [trial for trial in trials if outcome_of(trial) == "abandoned" and key_of(trial) == key]
    return sorted(abandoned, key=lambda trial: -trial.number)


def is_given_up(abandoned: Sequence[FrozenTrial]) -> bool:
    """A worker that was asked to stop has given its trial back; that is no attempt."""
    return len([trial for trial in abandoned if "is_given_back" not in trial.user_attrs]) >= MOST_ATTEMPTS


class Board:
    """All trials of one sweep. Every method may be called by any number of workers at once."""

    def __init__(self, database: Database, name: str) -> None:
        self.database = database
        self.name = name
        self._silent: dict[int, float] = {}
        self._drops = 0

    @classmethod
    def open(cls, database: Database, name: str) -> Board:
        board = cls(database, name)
        if name not in (names := board.names()):
            raise user_error(
                "no such study", path=shown(database.url), value=name, allowed=names, hint="check its name"
            )
        return board

    @classmethod
    def create(cls, database: Database, name: str, definition: Definition, deadline: float | None) -> Board:
        """Or open it, and change its budget to the one that is now asked for."""
        import optuna

        board = cls(database, name)
        direction = "minimize" if falls(definition.metric) else "maximize"
        study = database.ask(
            lambda: optuna.create_study(
                study_name=name, storage=database.storage, direction=direction, load_if_exists=True
            )
        )
        database.ask(lambda: study.set_user_attr(DEADLINE, deadline))
        database.ask(lambda: study.set_user_attr(DEFINITION, definition.to_json()))
        return board

    def names(self) -> list[str]:
        import optuna

        return self.database.ask(lambda: optuna.get_all_study_names(self.database.storage))

    @cached_property
    def definition(self) -> Definition:
        while True:
            attributes = self.database.ask(lambda: self.study.user_attrs)
            if DEFINITION in attributes:
                return Definition.from_json(attributes[DEFINITION])
            time.sleep(0.2)  # its creator is about to write it

    def is_late(self) -> bool:
        """Whether the time in which trials may begin is over."""
        deadline = self.database.ask(lambda: self.study.user_attrs).get(DEADLINE)
        return deadline is not None and time.time() > deadline

    @cached_property
    def study(self) -> Study:
        """To read from; Optuna re-reads what can have changed."""
        return self.database.ask(self._load)

    def _load(self, **methods: Any) -> Study:
        import optuna

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return optuna.load_study(study_name=self.name, storage=self.database.storage, **methods)

    def _study_to_draw(self, setting: int) -> Study:
        """A fresh one: what Optuna's samplers remember of other trials is true for one trial only.

        A seed for each setting: workers that draw at once draw differently, and a random sweep is the same
        however many draw.
        """
        seed = int(generator(self.definition.first_seed, "sweep", setting).integers(2**31))
        sampler = SAMPLERS[self.definition.sampler].build(seed)
        study = self._load(sampler=sampler, pruner=build_pruner(self.definition.pruner))
        study.get_trials(deepcopy=False)  # its cache must know the trial that is to be drawn
        return study

    def trials(self) -> list[FrozenTrial]:
        return self.database.ask(lambda: self.study.get_trials(deepcopy=False))

    # ------------------------------------------------------------ what is missing

    def settle(self) -> list[FrozenTrial]:
        """Fail what is silent, add what is missing; all trials after that."""
        self._fail_silent()
        trials = self.trials()
        missing = self._missing(trials)
        if not missing:
            return trials
        for key, labels in missing:
            self._add(key, labels)
        return self.trials()

    def _missing(self, trials: Sequence[FrozenTrial]) -> list[tuple[Key, dict[str, Any]]]:
        """(setting, seed) without a trial, and the setting's values as far as they are chosen."""
        definition, alive, missing = self.definition, living(trials), []
        chosen = self._chosen(trials)
        first, *others = definition.seed_range()
        for setting in self._settings(trials):
            labels = chosen.get(setting, {})
            # The other seeds come when the first one has drawn its values.
            for seed in [first, *others] if labels else [first]:
                key = (setting, seed)
                if key not in alive and not is_given_up(attempts(trials, key)):
                    missing.append((key, labels))
        return missing

    def _settings(self, trials: Sequence[FrozenTrial]) -> range:
        definition = self.definition
        if definition.is_grid:
            return range(min(len(self._grid), definition.trials or len(self._grid)))
        if definition.trials is not None:
            return range(definition.trials)
        known = 1 + max((key_of(trial)[0] for trial in trials), default=-1)
        is_one_free = any(outcome_of(trial) == "waiting" for trial in living(trials).values())
        return range(known if is_one_free or self.is_late() else known + 1)

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
                chosen.setdefault(key_of(trial)[0], trial.params)
        return chosen

    def _add(self, key: Key, labels: Mapping[str, Any]) -> None:
        from optuna.trial import TrialState, create_trial

        trial = create_trial(
            state=TrialState.WAITING,
            params=dict(labels),
            distributions=self.definition.space.distributions() if labels else {},
            user_attrs={"setting": key[0], "seed": key[1]},
        )
        self.database.ask(lambda: self.study.add_trial(trial))

    def is_over(self, trials: Sequence[FrozenTrial]) -> bool:
        """Nothing runs, and nothing more is to begin. Of settled trials.

        Who took a duplicate may die before leaving it: that one runs too, until its silence is noticed.
        """
        runs = any(outcome_of(trial) == "running" for trial in trials)
        waits = any(outcome_of(trial) == "waiting" for trial in living(trials).values())
        return not runs and (not waits or self.is_late())

    # ------------------------------------------------------------ who has what

    def claim(self, worker: str, trials: Sequence[FrozenTrial]) -> Claim | None:
        """A trial for this worker alone; None if none is free."""
        waiting = [trial for trial in trials if outcome_of(trial) == "waiting"]
        if not waiting or self.is_late():
            return None
        for trial in sorted(waiting, key=lambda trial: trial.number):
            if self._take(trial):
                current = self.trials()
                key = key_of(trial)
                if living(current).get(key, trial).number < trial.number:
                    self.finish(trial._trial_id, "duplicate")
                    continue
                self.write(trial._trial_id, worker=worker)
                return Claim(self._open_trial(trial), key, attempts(current, key))
        return None

    def _take(self, trial: FrozenTrial) -> bool:
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        storage = self.database.storage
        # A sign of life before there is life: who dies right after taking a trial is missed too.
        self.database.ask(lambda: storage.record_heartbeat(trial._trial_id))
        try:
            return self.database.ask(
                lambda: storage.set_trial_state_values(trial._trial_id, TrialState.RUNNING)
            )
        except UpdateFinishedTrialError:
            return False

    def _open_trial(self, trial: FrozenTrial) -> Trial:
        """With its values: those it has, or new ones by the sampler."""
        import optuna
        from optuna.exceptions import UpdateFinishedTrialError

        def draw() -> Trial:
            opened = optuna.trial.Trial(self._study_to_draw(key_of(trial)[0]), trial._trial_id)
            for path, values in self.definition.space.axes.items():
                values.suggest(opened, path)
            return opened

        try:
            return self.database.ask(draw)
        except UpdateFinishedTrialError:
            raise Lost from None

    def _fail_silent(self) -> None:
        """Twice silent, some time apart and with no break in the connection between: a server that was
        away for a while has no signs of life of anybody."""
        storage, now = self.database.storage, time.monotonic()
        silent = self.database.ask(lambda: storage._get_stale_trial_ids(self.study._study_id))
        if self.database.drops != self._drops:
            self._drops, self._silent = self.database.drops, {}
        self._silent = {trial_id: self._silent.get(trial_id, now) for trial_id in silent}
        for trial_id, since in self._silent.items():
            if now - since >= SIGHTINGS_APART * self.database.heartbeat:
                self._abandon(trial_id)

    def abandon_all_of(self, worker: str) -> None:
        """Of a worker that is known to be dead."""
        for trial in self.trials():
            if outcome_of(trial) == "running" and trial.user_attrs.get("worker") == worker:
                self._abandon(trial._trial_id)

    def _abandon(self, trial_id: int) -> None:
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        storage = self.database.storage
        with contextlib.suppress(UpdateFinishedTrialError):  # it ended by itself, or another was faster
            self.database.ask(lambda: storage.set_trial_state_values(trial_id, TrialState.FAIL))

    # ------------------------------------------------------------ what became of it

    def beat(self, trial_id: int) -> None:
        """A sign of life; Lost if it comes too late."""
        from optuna.trial import TrialState

        storage = self.database.storage
        state = self.database.ask(lambda: storage.get_trial(trial_id)).state
        if state != TrialState.RUNNING:
            raise Lost
        self.database.ask(lambda: storage.record_heartbeat(trial_id))

    def write(self, trial_id: int, **attributes: Any) -> None:
        from optuna.exceptions import UpdateFinishedTrialError

        storage = self.database.storage
        for name, value in attributes.items():
            try:
                self.database.ask(lambda n=name, v=value: storage.set_trial_user_attr(trial_id, n, v))  # type: ignore[misc]
            except UpdateFinishedTrialError:
                raise Lost from None

    def finish(self, trial_id: int, outcome: str, value: float | None = None, **attributes: Any) -> None:
        """The end of a trial, once and for all; Lost if it has ended otherwise."""
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        state = next(TrialState[name.upper()] for name, those in OUTCOMES.items() if outcome in those)
        self.write(trial_id, **attributes, outcome=outcome)
        storage, values = self.database.storage, None if value is None else [value]
        has_asked = False

        def end() -> None:
            nonlocal has_asked
            try:
                storage.set_trial_state_values(trial_id, state, values)
            except UpdateFinishedTrialError:
                # The answer to our own change may have been lost with the connection.
                if not has_asked or storage.get_trial(trial_id).state != state:
                    raise Lost from None
            finally:
                has_asked = True

        self.database.ask(end)

    def give_back(self, trial_id: int) -> None:
        """Of a worker that was asked to stop: the next one goes on with it."""
        self.write(trial_id, is_given_back=True)
        self._abandon(trial_id)


def join(url: str, name: str, **callbacks: Any) -> Board:
    """The board of a study that is there, with the heartbeat that its creator chose."""
    file = url.removeprefix("sqlite:///")
    if file != url and not Path(file).exists():  # SQLite would make an empty one
        raise user_error("no such file", path=file, hint="check --storage")
    database = connect(url, **callbacks)
    board = Board.open(database, name)
    database.set_heartbeat(board.definition.heartbeat)
    return board
