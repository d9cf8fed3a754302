"""Checkpoints of several ranks: one of them reads and writes, all of them know what came of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from glassformer.training.checkpoints import Checkpoint, CheckpointStore, DamagedCheckpoint
from glassformer.training.distributed import Ranks


class SharedStore(CheckpointStore):
    """Only the writer's folder is looked at, so that the others need not see it."""

    def __init__(self, store: CheckpointStore, ranks: Ranks) -> None:
        super().__init__(store.folder, store.keep)
        self._own = store
        self.ranks = ranks

    def save(self, name: str, checkpoint: Checkpoint, *, is_best: bool = False) -> Path:
        return Path(self.ranks.on_writer(lambda: str(self._own.save(name, checkpoint, is_best=is_best))))

    def keep_watched(self, name: str, checkpoint: Checkpoint) -> Path:
        return Path(self.ranks.on_writer(lambda: str(self._own.keep_watched(name, checkpoint))))

    def forget_watched(self, after_step: int) -> None:
        self.ranks.on_writer(lambda: self._own.forget_watched(after_step))

    def mend_pointers(self, best: int | None, latest: int, tell: Callable[[str], None]) -> None:
        self.ranks.on_writer(lambda: self._own.mend_pointers(best, latest, tell))

    def states(self) -> list[str]:
        return list(self.ranks.on_writer(self._own.states))

    def before(self, name: str) -> list[str]:
        return list(self.ranks.on_writer(lambda: self._own.before(name)))

    def load(self, name: str, groups: Sequence[str] | None = None) -> Checkpoint:
        found = self._read(lambda: (name, self._own.load(name, groups)))
        assert found is not None
        return found[1]

    def load_newest(
        self, warn: Callable[[str], None] | None = None, *, only_regular: bool = False
    ) -> tuple[str, Checkpoint] | None:
        return self._read(lambda: self._own.load_newest(warn, only_regular=only_regular))

    def _read(self, read: Callable[[], tuple[str, Checkpoint] | None]) -> tuple[str, Checkpoint] | None:
        """Every rank gets the whole checkpoint; what it keeps of it is its own business."""
        found: tuple[str, Checkpoint] | None = None

        def describe() -> dict[str, Any] | None:
            nonlocal found
            try:
                found = read()
            except DamagedCheckpoint as damage:
                return {"damage": str(damage)}
            if found is None:
                return None
            return {"name": found[0], "state": found[1].state, "groups": list(found[1].tensors)}

        described = self.ranks.on_writer(describe)
        if described is None:
            return None
        if "damage" in described:
            raise DamagedCheckpoint(described["damage"])
        tensors = {
            group: self.ranks.tensors_from_writer(found[1].tensors[group] if found else {})
            for group in described["groups"]
        }
        return described["name"], Checkpoint(tensors, described["state"])
