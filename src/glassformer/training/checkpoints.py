"""Checkpoints: safetensors and a JSON manifest with a SHA-256 per file. No pickle anywhere.

A checkpoint is written to a new folder, fsynced, read back and verified, renamed; only then does `latest`
move, and only then do old ones go. A crash at any moment leaves a complete older checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from glassformer.core.errors import UserError, user_error
from glassformer.core.system import read_document
from glassformer.storage.checksums import open_json, seal_json
from glassformer.storage.files import (
    file_sha256,
    json_bytes,
    replace_file,
    storage_error,
    sync_folder,
    write_durably,
)

FORMAT = 2
"""Of a manifest; in the first one it was not sealed."""
MANIFEST = "manifest.json"
STATE = "state.json"
POINTERS = ("best", "latest")
SAVING = ".saving-"
EXTRA = "-extra"
"""Ends the name of a checkpoint that an uninterrupted run would not have; it goes when a newer one comes."""

WATCHED = "-watched"
"""Ends the name of weights that are kept to be looked at: never pruned, and no state to go on from."""

Tensors = Mapping[str, Tensor]


class DamagedCheckpoint(Exception):
    """A file of a checkpoint is missing or not what was written."""


@dataclass(frozen=True)
class Checkpoint:
    """Named groups of tensors (`model`, `optimizer`, …) and the small state beside them."""

    tensors: Mapping[str, Tensors]
    state: Mapping[str, Any]


class CheckpointStore:
    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder = folder
        self.keep = keep

    def save(self, name: str, checkpoint: Checkpoint, *, is_best: bool = False) -> Path:
        """Commit, verify, point, delete: in that order."""
        return self._save(name, checkpoint, is_best=is_best)

    def keep_watched(self, name: str, checkpoint: Checkpoint) -> Path:
        """Weights to look at: no pointer moves, and no other checkpoint goes."""
        return self._save(name + WATCHED, checkpoint, is_state=False)

    def _save(
        self, name: str, checkpoint: Checkpoint, *, is_best: bool = False, is_state: bool = True
    ) -> Path:
        files = {
            f"{group}.safetensors": safetensors.torch.save({k: v.contiguous() for k, v in tensors.items()})
            for group, tensors in checkpoint.tensors.items()
        }
        files[STATE] = json_bytes(checkpoint.state)
        manifest = {
            "format": FORMAT,
            "files": {
                file: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
                for file, data in files.items()
            },
        }
        files[MANIFEST] = seal_json(manifest)
        try:
            path = self._commit(name, files)
            if is_state:
                self._go_on_from(name, is_best)
            return path
        except (OSError, DamagedCheckpoint) as error:
            self._discard_unfinished()
            needed = sum(len(data) for data in files.values())
            raise storage_error(error, self.folder / name, needed) from error

    def _commit(self, name: str, files: Mapping[str, bytes]) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        sync_folder(self.folder.parent)
        self._discard_unfinished()
        temporary, final = self.folder / f"{SAVING}{name}", self.folder / name
        temporary.mkdir()
        for file, data in files.items():
            write_durably(temporary / file, data)
        sync_folder(temporary)
        self.verify(temporary)
        if final.exists():  # a damaged one of the same step, which a resumed run has reached again
            os.rename(final, self.folder / f"{SAVING}old-{name}")
        os.rename(temporary, final)
        sync_folder(self.folder)
        return final

    def _go_on_from(self, name: str, is_best: bool) -> None:
        if is_best:
            self._point("best", name)
        self._point("latest", name)
        self._prune()

    def verify(self, path: Path) -> None:
        """Read every file back and compare it with the manifest."""
        for file, entry in self._manifest(path).items():
            target = path / file
            if not target.is_file():
                raise DamagedCheckpoint(f"{target} is missing")
            if target.stat().st_size != entry["bytes"] or file_sha256(target) != entry["sha256"]:
                raise DamagedCheckpoint(f"{target} is not what was written")

    def load(self, name: str, groups: Sequence[str] | None = None) -> Checkpoint:
        """A verified checkpoint, or DamagedCheckpoint."""
        path = self.folder / name
        self.verify(path)
        files = [file for file in self._manifest(path) if file.endswith(".safetensors")]
        wanted = [f for f in files if groups is None or f.removesuffix(".safetensors") in groups]
        try:
            tensors = {file.removesuffix(".safetensors"): _load_tensors(path / file) for file in wanted}
            state = json.loads(read_document(path / STATE))
        except (SafetensorError, ValueError, OSError, RecursionError) as error:
            raise DamagedCheckpoint(f"{path}: {error}") from error
        return Checkpoint(tensors, state)

    def load_newest(
        self, warn: Callable[[str], None] | None = None, *, only_regular: bool = False
    ) -> tuple[str, Checkpoint] | None:
        """The newest checkpoint that is whole; what is damaged is said and passed over."""
        latest, names = self.pointed("latest"), self.regular() if only_regular else self.states()
        if latest is None and names and warn is not None:
            warn(f"{self.folder / 'latest'} names no checkpoint; using the newest")
        candidates = [name for name in (latest, *reversed(names)) if name in names]
        for name in dict.fromkeys(candidates):
            try:
                return name, self.load(name)
            except DamagedCheckpoint as damage:
                if warn is not None:
                    warn(f"{damage}; using the checkpoint before it")
        if candidates:
            raise user_error(
                "every checkpoint here is damaged",
                path=str(self.folder),
                hint="restore the folder from a copy, or train anew",
            )
        return None

    def names(self) -> list[str]:
        """From the oldest to the newest; watched weights only where no other checkpoint holds the same."""
        there = self._folders()
        return [
            name for name in there if not name.endswith(WATCHED) or name.removesuffix(WATCHED) not in there
        ]

    def states(self) -> list[str]:
        """Those that a run can go on from."""
        return [name for name in self._folders() if not name.endswith(WATCHED)]

    def regular(self) -> list[str]:
        """Those that an uninterrupted run has too."""
        return [name for name in self.states() if not name.endswith(EXTRA)]

    def _folders(self) -> list[str]:
        if not self.folder.is_dir():
            return []
        return sorted(p.name for p in self.folder.iterdir() if p.is_dir() and p.name.startswith("step-"))

    def forget_watched(self, after_step: int) -> None:
        """Of steps that will be taken again, perhaps otherwise."""
        for name in self._folders():
            if name.endswith(WATCHED) and name >= checkpoint_name(after_step + 1):
                shutil.rmtree(self.folder / name)

    def before(self, name: str) -> list[str]:
        """The regular ones before this one, the newest first; that of step 0 is not a trained model."""
        untrained = checkpoint_name(0)
        return [
            other for other in reversed(self.regular()) if other < name and not other.startswith(untrained)
        ]

    def pointed(self, pointer: str) -> str | None:
        """The name that `latest` or `best` holds, if that checkpoint exists."""
        try:
            content = read_document(self.folder / pointer)
        except (OSError, ValueError):
            return None
        # From before there were checksums in it, a pointer is the bare name.
        return next(
            (name for name in self.names() if content in (_pointer(name), f"{name}\n".encode())), None
        )

    def damaged_pointer(self, pointer: str) -> UserError | None:
        """What is wrong if a pointer is there and names no checkpoint."""
        if self.pointed(pointer) or not os.path.lexists(self.folder / pointer):
            return None
        return user_error(
            "does not name a checkpoint",
            path=str(self.folder / pointer),
            hint=f"choose one: --checkpoint {self.names()[-1]}" if self.names() else "restore the folder",
        )

    def mend_pointers(self, best: int | None, latest: int, tell: Callable[[str], None]) -> None:
        """Point to these steps again where a pointer is damaged, and tell."""
        for pointer, step in (("best", best), ("latest", latest)):
            if step is None or self.damaged_pointer(pointer) is None:
                continue
            of_step = [name for name in self.states() if name.startswith(checkpoint_name(step))]
            if of_step:
                self._point(pointer, of_step[-1])
                tell(f"{self.folder / pointer} named no checkpoint; it was {of_step[-1]}")

    def find(self, which: str) -> str:
        """`best`, `latest`, a step's number or a checkpoint's name, as a name."""
        names = self.names()
        if not names:
            raise user_error(
                "no checkpoint yet", path=str(self.folder), hint="glassformer train … --resume goes on"
            )
        if which in POINTERS:
            damage = self.damaged_pointer(which)
            if damage is not None:
                raise damage
            return self.pointed(which) or self.pointed("latest") or names[-1]
        if which.isdecimal():
            of_step = [name for name in names if name.startswith(checkpoint_name(int(which)))]
            which = of_step[-1] if of_step else which
        if which not in names and which + WATCHED in names:  # it was pruned since, and its weights were kept
            which += WATCHED
        if which not in names:
            raise user_error(
                "no such checkpoint", path=str(self.folder), value=which, allowed=[*POINTERS, *names]
            )
        return which

    def _manifest(self, path: Path) -> dict[str, dict[str, Any]]:
        try:
            data = read_document(path / MANIFEST)
            manifest = open_json(data, must_be_sealed=b'"format": 1' not in data)
            if manifest["format"] not in (1, FORMAT):
                raise ValueError(f"it is of format {manifest['format']}")
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
        replace_file(self.folder / pointer, _pointer(name))

    def _prune(self) -> None:
        if self.damaged_pointer("best"):
            return  # which one to keep is not known
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
    except UnicodeEncodeError:  # the library opens files by names in UTF-8 alone
        return dict(safetensors.torch.load(path.read_bytes()))
    return dict(safetensors.torch.load_file(path))


def _pointer(name: str) -> bytes:
    """The name and its checksum: one changed digit may be the name of another checkpoint."""
    return f"{name} {hashlib.sha256(name.encode()).hexdigest()[:16]}\n".encode()


def checkpoint_name(step: int, rollbacks: int = 0, *, is_extra: bool = False) -> str:
    return f"step-{step:08d}" + (f"-rollback-{rollbacks}" if rollbacks else "") + (EXTRA if is_extra else "")
