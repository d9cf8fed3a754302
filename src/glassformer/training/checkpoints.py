"""Checkpoints: safetensors and a JSON manifest with one SHA-256 per file, without pickle.

A checkpoint is written to a new folder, fsynced, read back, verified and renamed. Then the file `latest` is
updated, and then old checkpoints are deleted. A crash at any moment leaves a complete older checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from glassformer.core.errors import UserError, user_error
from glassformer.core.system import read_regular_file
from glassformer.storage.files import (
    atomic_write,
    file_sha256,
    json_bytes,
    storage_error,
    sync_folder,
    write_durably,
)

FORMAT = 1
"""Version of the manifest format."""
MANIFEST = "manifest.json"
STATE = "state.json"
POINTERS = ("best", "latest")
SAVING = ".saving-"
EXTRA = "-extra"
"""Name suffix of a checkpoint saved by time or on a stop request. It is deleted after the next save."""

SNAPSHOT = "-snapshot"
"""Name suffix of weights saved for inspection. They are kept, but a run cannot resume from them."""

FIRST_SAVE_SECONDS = (1.0, 20.0)
"""Earliest and latest time of the first save, in seconds of training."""
SAVE_BYTES_PER_SECOND = 1e8
"""Assumed speed of writing and verifying a checkpoint, until a save has been timed."""
COST_FACTOR = 50
"""Minimum ratio of the time between two saves to the time that a save takes: saving takes at most 2 %."""
FIRST_COST_FACTOR = 10
"""The same ratio for the first save, which is worth more because nothing is saved yet."""

Tensors = Mapping[str, Tensor]


class DamagedCheckpoint(Exception):
    """Exception for a checkpoint with a file that is missing or that was changed."""


@dataclass(frozen=True)
class Checkpoint:
    """Content of a checkpoint: groups of tensors (`model`, `optimizer`, …) and a JSON-serialisable state."""

    tensors: Mapping[str, Tensors]
    state: Mapping[str, Any]


class SaveTimer:
    """Timer for extra checkpoints between the scheduled ones, so that a killed run loses little work.

    The first save is due after 1 to 20 seconds of training: the larger the checkpoint, the later. Then the
    wait before each save equals the training time so far, up to `minutes`. If `minutes` is None, no save is
    due. All ranks must pass the same times, so that they save together.
    """

    def __init__(self, minutes: float | None, num_bytes: int) -> None:
        self.longest = None if minutes is None else 60 * minutes
        self.last: float | None = None
        """Training time of the newest checkpoint in seconds, or None if there is no checkpoint."""
        self.cost = num_bytes / SAVE_BYTES_PER_SECOND
        """Seconds that the last save took; before the first save, an estimate."""

    def is_due(self, elapsed: float) -> bool:
        """Return True if a checkpoint should be saved after `elapsed` seconds of training."""
        earliest, latest = FIRST_SAVE_SECONDS
        if self.longest is None:
            return False
        if self.last is None:
            return elapsed >= min(max(earliest, FIRST_COST_FACTOR * self.cost), latest, self.longest)
        wait = min(max(earliest, self.last), self.longest)
        return elapsed - self.last >= max(wait, COST_FACTOR * self.cost)

    def saved(self, elapsed: float, cost: float | None = None) -> None:
        """Restart the timer after a save, which took `cost` seconds, or after a checkpoint was loaded."""
        self.last, self.cost = elapsed, self.cost if cost is None else cost


class CheckpointStore:
    """Folder of checkpoints, with the files `best` and `latest` that each contain a checkpoint name."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder = folder
        self.keep = keep

    def save(self, name: str, checkpoint: Checkpoint, *, is_best: bool = False) -> None:
        """Write and verify a checkpoint, update `latest` and, if `is_best`, `best`; then delete old ones."""
        self._save(name, checkpoint, POINTERS if is_best else ("latest",))

    def keep_snapshot(self, name: str, checkpoint: Checkpoint) -> None:
        """Save weights for inspection. `best` and `latest` stay unchanged, and no checkpoint is deleted."""
        self._save(name + SNAPSHOT, checkpoint, ())

    def _save(self, name: str, checkpoint: Checkpoint, pointers: Sequence[str]) -> None:
        files = {
            f"{group}.safetensors": safetensors.torch.save({k: v.contiguous() for k, v in tensors.items()})
            for group, tensors in checkpoint.tensors.items()
        }
        files[STATE] = json_bytes(checkpoint.state)
        entries = {
            file: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for file, data in files.items()
        }
        files[MANIFEST] = json_bytes({"format": FORMAT, "files": entries})
        try:
            self._commit(name, files)
            for pointer in pointers:
                self._point(pointer, name)
            if pointers:
                self._prune()
        except (OSError, DamagedCheckpoint) as error:
            self._discard_unfinished()
            needed = sum(len(data) for data in files.values())
            raise storage_error(error, self.folder / name, needed) from error

    def _commit(self, name: str, files: Mapping[str, bytes]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        sync_folder(self.folder.parent)
        self._discard_unfinished()
        temporary, final = self.folder / f"{SAVING}{name}", self.folder / name
        temporary.mkdir()
        for file, data in files.items():
            write_durably(temporary / file, data)
        sync_folder(temporary)
        self.verify(temporary)
        if final.exists():  # a damaged checkpoint of the same step, which a resumed run has reached again
            os.rename(final, self.folder / f"{SAVING}old-{name}")
        os.rename(temporary, final)
        sync_folder(self.folder)

    def verify(self, path: Path) -> None:
        """Raise DamagedCheckpoint if a file of the checkpoint differs from the checksum in its manifest."""
        for file, entry in self._manifest(path).items():
            target = path / file
            if not target.is_file():
                raise DamagedCheckpoint(f"{target} is missing")
            if target.stat().st_size != entry["bytes"] or file_sha256(target) != entry["sha256"]:
                raise DamagedCheckpoint(f"{target} was changed after it was written")

    def load(self, name: str, groups: Sequence[str] | None = None) -> Checkpoint:
        """Load a checkpoint; raise DamagedCheckpoint if a file was changed.

        If `groups` is given, load only these groups of tensors, such as `model`.
        """
        path = self.folder / name
        self.verify(path)
        saved = [Path(file).stem for file in self._manifest(path) if file.endswith(".safetensors")]
        wanted = [group for group in saved if groups is None or group in groups]
        try:
            tensors = {group: _load_tensors(path / f"{group}.safetensors") for group in wanted}
            state = json.loads(read_regular_file(path / STATE))
        except (SafetensorError, ValueError, OSError, RecursionError) as error:
            raise DamagedCheckpoint(f"{path}: {error}") from error
        return Checkpoint(tensors, state)

    def load_newest(
        self, warn: Callable[[str], None] | None = None, *, only_regular: bool = False
    ) -> tuple[str, Checkpoint] | None:
        """Return name and content of the newest intact checkpoint, or None; warn about damaged ones."""
        latest, names = self.pointed("latest"), self.regular() if only_regular else self.states()
        if latest is None and names and warn is not None:
            warn(f"{self.folder / 'latest'} does not name a checkpoint; using the newest")
        candidates = [name for name in (latest, *reversed(names)) if name in names]
        for name in dict.fromkeys(candidates):
            try:
                return name, self.load(name)
            except DamagedCheckpoint as damage:
                if warn is not None:
                    warn(f"{damage}; using the previous checkpoint")
        if candidates:
            raise user_error(
                "every checkpoint here is damaged",
                path=str(self.folder),
                hint="restore the folder from a backup, or train again",
            )
        return None

    def names(self) -> list[str]:
        """Return the names of all checkpoints, oldest first.

        A snapshot holds only the weights. It is listed if the full checkpoint of its step does not exist.
        """
        there = self._folders()
        return [n for n in there if not n.endswith(SNAPSHOT) or n.removesuffix(SNAPSHOT) not in there]

    def states(self) -> list[str]:
        """Return the names of the checkpoints that a run can resume from, oldest first."""
        return [name for name in self._folders() if not name.endswith(SNAPSHOT)]

    def regular(self) -> list[str]:
        """Return the names of the checkpoints that were saved on schedule, oldest first.

        Checkpoints that the timer or a stop request caused are not included.
        """
        return [name for name in self.states() if not name.endswith(EXTRA)]

    def _folders(self) -> list[str]:
        if not self.folder.is_dir():
            return []
        return sorted(p.name for p in self.folder.iterdir() if p.is_dir() and p.name.startswith("step-"))

    def delete_snapshots_after(self, after_step: int) -> None:
        """Delete the snapshots of steps after `after_step`, because a resumed run saves them again."""
        for name in self._folders():
            if name.endswith(SNAPSHOT) and name >= checkpoint_name(after_step + 1):
                shutil.rmtree(self.folder / name)

    def before(self, name: str) -> list[str]:
        """Return the names of the `regular` checkpoints before `name`, newest first.

        The checkpoint of step 0 is not included, because its weights are untrained.
        """
        earlier = [other for other in reversed(self.regular()) if other < name]
        return [other for other in earlier if not other.startswith(checkpoint_name(0))]

    def pointed(self, pointer: str) -> str | None:
        """Return the checkpoint name in the file `latest` or `best`, or None if no such checkpoint exists."""
        try:
            content = read_regular_file(self.folder / pointer)
        except (OSError, ValueError):
            return None
        return next((name for name in self.names() if content == _pointer(name)), None)

    def damaged_pointer(self, pointer: str) -> UserError | None:
        """Return a UserError if the file `latest` or `best` exists but names no checkpoint, else None."""
        if self.pointed(pointer) or not os.path.lexists(self.folder / pointer):
            return None
        return user_error(
            "this file does not name an existing checkpoint",
            path=str(self.folder / pointer),
            hint=f"--checkpoint {self.names()[-1]}" if self.names() else "restore the folder from a backup",
        )

    def repair_pointers(self, best: int | None, latest: int, report: Callable[[str], None]) -> None:
        """Rewrite the files `best` and `latest` if they are damaged, and report each repair.

        The arguments `best` and `latest` are the steps whose checkpoints the files should name.
        """
        for pointer, step in (("best", best), ("latest", latest)):
            if step is None or self.damaged_pointer(pointer) is None:
                continue
            of_step = [name for name in self.states() if name.startswith(checkpoint_name(step))]
            if of_step:
                self._point(pointer, of_step[-1])
                report(f"{self.folder / pointer} did not name a checkpoint; repaired: {of_step[-1]}")

    def find(self, which: str) -> str:
        """Return the checkpoint name for `best`, `latest`, a step number or a name; raise if not found."""
        names = self.names()
        if not names:
            raise user_error(
                "no checkpoint yet",
                path=str(self.folder),
                hint=f"glassformer train {shlex.quote(str(self.folder.parent))} --resume",
            )
        if which in POINTERS:
            damage = self.damaged_pointer(which)
            if damage is not None:
                raise damage
            return self.pointed(which) or self.pointed("latest") or names[-1]
        if which.isdecimal():
            of_step = [name for name in names if name.startswith(checkpoint_name(int(which)))]
            which = of_step[-1] if of_step else which
        if which not in names and which + SNAPSHOT in names:  # pruned: its snapshot is left
            which += SNAPSHOT
        if which not in names:
            raise user_error(
                "no such checkpoint", path=str(self.folder), value=which, allowed=[*POINTERS, *names]
            )
        return which

    def _manifest(self, path: Path) -> dict[str, dict[str, Any]]:
        try:
            data = read_regular_file(path / MANIFEST)
            manifest = json.loads(data)
            # Every value is compared with a file, and the rest must equal what we write: all damage is found.
            if data != json_bytes(manifest):
                raise ValueError("its content was changed")
            if manifest["format"] != FORMAT:
                raise ValueError(f"it has format {manifest['format']}, not {FORMAT}")
            files = manifest["files"]
            for file, entry in files.items():
                if Path(file).name != file or not isinstance(entry["bytes"], int) or not entry["sha256"]:
                    raise ValueError(f"it names {file!r}")
            if not {STATE, "model.safetensors"} <= files.keys():
                raise ValueError("it is not complete")
            return dict(files)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedCheckpoint(f"{path / MANIFEST} cannot be read: {error}") from error

    def _point(self, pointer: str, name: str) -> None:
        atomic_write(self.folder / pointer, _pointer(name))

    def _prune(self) -> None:
        if self.damaged_pointer("best"):
            return  # the best checkpoint is unknown: delete none
        kept = {self.pointed("best"), self.pointed("latest"), *self.regular()[-self.keep :]}
        for name in self.states():
            if name not in kept:
                shutil.rmtree(self.folder / name)
        self._discard_unfinished()

    def _discard_unfinished(self) -> None:
        if self.folder.is_dir():
            for path in self.folder.glob(f"{SAVING}*"):
                shutil.rmtree(path, ignore_errors=True)


def _load_tensors(path: Path) -> Tensors:
    try:
        str(path).encode()
    except UnicodeEncodeError:  # safetensors opens only names that are valid UTF-8
        return dict(safetensors.torch.load(path.read_bytes()))
    return dict(safetensors.torch.load_file(path))


def _pointer(name: str) -> bytes:
    """Return the content of `best` or `latest`: a checkpoint name and the checksum of that name."""
    return f"{name} {hashlib.sha256(name.encode()).hexdigest()[:16]}\n".encode()


def checkpoint_name(step: int, rollbacks: int = 0, *, is_extra: bool = False) -> str:
    """Return the name of a checkpoint, such as `step-00000100` or `step-00000100-rollback-1`.

    Names sort by step, then by the number of roll-backs before the save.
    """
    return f"step-{step:08d}" + (f"-rollback-{rollbacks}" if rollbacks else "") + (EXTRA if is_extra else "")
