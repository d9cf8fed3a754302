"""Token store: memory-mapped shards on disk, and the cache that keeps them between runs."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from glassformer.core.errors import UserError, user_error
from glassformer.core.system import read_regular_file
from glassformer.data.token_rows import MappedFiles, RaggedRows, as_tokens, checksum_of
from glassformer.storage.files import atomic_write, sync_folder, write_durably

VERSION = 1
SHARD_TOKENS = 64 << 20
TOKENS_AT_A_TIME = 1 << 16
MANIFEST = "manifest.json"
UNFINISHED = ".building-"
"""Between the name of a store and the process that writes it."""
VERIFIED = "verified.json"
"""Which states of the files were found to have the manifest's checksums."""

Row = tuple[np.ndarray, ...]
Progress = Callable[[int], None]
"""Is told now and then how many rows there are."""


class DamagedStore(Exception):
    """A store that is not what its manifest says. The message says in a few words why."""


class TokenStore:
    """The columns of a corpus as tokens, each a sequence of rows."""

    def __init__(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        self.folder = folder
        self.manifest = manifest
        self._files = MappedFiles()
        self._columns = {
            name: RaggedRows(
                [self._files.array(folder / shard["file"], shard["type"]) for shard in column["shards"]],
                self._files.array(folder / column["offsets"], "<i8"),
                checksum=column["checksum"],
                files=self._files,
            )
            for name, column in manifest["columns"].items()
        }

    def __len__(self) -> int:
        return int(self.manifest["rows"])

    def __getitem__(self, column: str) -> RaggedRows:
        return self._columns[column]

    @property
    def columns(self) -> list[str]:
        return list(self._columns)

    @property
    def facts(self) -> dict[str, Any]:
        """What was counted as the rows were made."""
        return dict(self.manifest["facts"])

    @classmethod
    def build(
        cls,
        folder: Path,
        rows: Iterable[Row],
        columns: Sequence[str],
        fingerprint: Mapping[str, Any],
        progress: Progress | None = None,
        *,
        sources: Mapping[str, str] | None = None,
        facts: Mapping[str, Any] | None = None,
        shard_tokens: int = SHARD_TOKENS,
    ) -> TokenStore:
        """Write a store of rows, each with an array a column, into `folder`, which must not exist.

        `sources` are checksums by path. `facts` may be filled in as the rows are made: they are written at
        the end. What a killed process leaves goes by another name: see UNFINISHED.
        """
        unfinished = folder.with_name(f"{folder.name}{UNFINISHED}{os.getpid()}")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        try:
            manifest = cls._write(unfinished, rows, columns, progress, shard_tokens)
            manifest |= {"fingerprint": dict(fingerprint), "sources": dict(sources or {})}
            manifest |= {"version": VERSION, "facts": dict(facts or {})}
            manifest = json.loads(json.dumps(manifest))  # its checksum is that of what will be read back
            data = json.dumps({**manifest, "checksum": json_sha256(manifest)}, indent=1).encode()
            write_durably(unfinished / MANIFEST, data)
            sync_folder(unfinished)
            _rename_new(unfinished, folder)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        return cls.open(folder)

    @staticmethod
    def _write(
        folder: Path,
        rows: Iterable[Row],
        columns: Sequence[str],
        progress: Progress | None,
        shard_tokens: int,
    ) -> dict[str, Any]:
        """All but the manifest, and what it says of the rest."""
        writers = [_ColumnWriter(folder, name, shard_tokens) for name in columns]
        try:
            for row in rows:
                flushed = [writer.add(tokens) for writer, tokens in zip(writers, row, strict=True)]
                if progress and flushed[0]:
                    progress(writers[0].row_count)
            written = {writer.name: writer.finish() for writer in writers}
        finally:
            for writer in writers:
                writer.close()
        return {
            "rows": writers[0].row_count,
            "columns": written,
            "files": {name: said for writer in writers for name, said in writer.said().items()},
        }

    @classmethod
    def open(cls, folder: Path) -> TokenStore:
        """The store in a folder; sizes are always checked, checksums whenever a file has changed since.

        Raises FileNotFoundError where there is none, and DamagedStore.
        """
        manifest = read_manifest(folder)
        states = {}
        for name, said in manifest["files"].items():
            try:
                found = (folder / name).stat()
            except OSError:
                raise DamagedStore(f"{name} is missing") from None
            if found.st_size != said["bytes"]:
                raise DamagedStore(f"{name} has {found.st_size:,} bytes instead of {said['bytes']:,}")
            states[name] = found.st_mtime_ns
        if read_json(folder / VERIFIED) != states:
            for name, said in manifest["files"].items():
                if file_sha256(folder / name) != said["sha256"]:
                    raise DamagedStore(f"{name} has another checksum")
            replace_json(folder / VERIFIED, states)
        return cls(folder, manifest)


class _HashedFile:
    """A file that is being written, and its SHA-256."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self.digest = hashlib.sha256()
        self.size = 0
        self._file = open(path, "xb")  # noqa: SIM115  closed by `close`

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self.digest.update(data)
        self.size += len(data)

    def finish(self) -> None:
        """See it through to the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self.close()

    def close(self) -> None:
        self._file.close()


class _ColumnWriter:
    """Rows of one column, joined; a row may begin in one shard and end in the next."""

    def __init__(self, folder: Path, name: str, shard_tokens: int) -> None:
        self.name = name
        self.row_count = 0
        self._folder = folder
        self._shard_tokens = shard_tokens
        self._shards: list[tuple[_HashedFile, np.dtype[Any]]] = []
        self._offsets = _HashedFile(folder / f"{name}.offsets")
        self._offsets.write(np.zeros(1, dtype="<i8").tobytes())
        self._token_count = 0
        self._tokens_digest = hashlib.sha256()
        self._pending: list[np.ndarray] = []
        self._pending_tokens = 0

    def add(self, row: np.ndarray) -> bool:
        """Whether it, and what came before, was written on."""
        self._pending.append(row)
        self._pending_tokens += len(row)
        self.row_count += 1
        is_enough = max(self._pending_tokens, len(self._pending)) >= min(TOKENS_AT_A_TIME, self._shard_tokens)
        if is_enough:
            self._flush()
        return is_enough

    def _flush(self) -> None:
        offsets = self._token_count + np.cumsum([len(row) for row in self._pending], dtype="<i8")
        self._offsets.write(offsets.tobytes())
        tokens = as_tokens(
            np.concatenate([np.empty(0, np.uint8), *(row for row in self._pending if len(row))])
        )
        self._tokens_digest.update(tokens.astype("<u4").tobytes())
        if len(tokens):
            file, dtype = self._shard_for(int(tokens.max()))
            file.write(tokens.astype(dtype).tobytes())
        self._token_count += len(tokens)
        self._pending, self._pending_tokens = [], 0

    def _shard_for(self, largest: int) -> tuple[_HashedFile, np.dtype[Any]]:
        """The last shard, or another where it is full or its numbers are too narrow."""
        if self._shards:
            file, dtype = self._shards[-1]
            if file.size < self._shard_tokens * dtype.itemsize and largest <= np.iinfo(dtype).max:
                return file, dtype
            file.finish()
        dtype = np.dtype("<u2" if largest < 2**16 else "<u4")
        path = self._folder / f"{self.name}.{len(self._shards):04}.tokens"
        self._shards.append((_HashedFile(path), dtype))
        return self._shards[-1]

    def finish(self) -> dict[str, Any]:
        """What the manifest says of the column."""
        if self._pending:
            self._flush()
        for file, _ in self._shards[-1:]:
            file.finish()
        self._offsets.finish()
        return {
            "tokens": self._token_count,
            "offsets": self._offsets.name,
            "shards": [{"file": file.name, "type": dtype.str} for file, dtype in self._shards],
            "checksum": checksum_of(self._tokens_digest.digest(), self._offsets.digest.digest()),
        }

    def close(self) -> None:
        for file in self._files():
            file.close()

    def said(self) -> dict[str, dict[str, Any]]:
        """Size and SHA-256 of each file."""
        return {file.name: {"bytes": file.size, "sha256": file.digest.hexdigest()} for file in self._files()}

    def _files(self) -> list[_HashedFile]:
        return [self._offsets, *(file for file, _ in self._shards)]


def read_manifest(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise FileNotFoundError(folder)
    manifest = read_json(folder / MANIFEST)
    if not isinstance(manifest, dict) or manifest.pop("checksum", None) != json_sha256(manifest):
        raise DamagedStore(f"{MANIFEST} is missing or damaged")
    return manifest


def file_sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_sha256(value: Any) -> str:
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


def read_json(path: Path) -> Any:
    """None where there is nothing that can be read."""
    try:
        return json.loads(read_regular_file(path))
    except (OSError, ValueError, RecursionError):
        return None


def replace_json(path: Path, value: Any) -> None:
    """For what can be found out again: it need not outlast a crash, nor be possible at all."""
    with contextlib.suppress(OSError):
        atomic_write(path, json.dumps(value).encode(), durable=False, shared=True)


def _rename_new(old: Path, new: Path) -> None:
    try:
        os.rename(old, new)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            raise FileExistsError(error.errno, "there already", str(new)) from None
        raise
    sync_folder(new.parent)


CHECKSUMS = "sources.json"
LOCKS = "locks"
DISCARDED = ".discarded-"
SETTLED_SECONDS = 2.0
"""A file that was written later than so long ago may be written again within the same tick of its clock."""

Say = Callable[[str], None]


def cache_folder() -> Path:
    """Where tokens are kept: GLASSFORMER_CACHE, the user's own cache, or else a folder for the time being."""
    named = os.environ.get("GLASSFORMER_CACHE")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        own = (Path(base) if base else Path.home() / ".cache") / "glassformer"
    except RuntimeError:  # nobody knows where the user's home is
        return _temporary_cache()
    return own if _may_be_written(own) else _temporary_cache()


def _may_be_written(folder: Path) -> bool:
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def _temporary_cache() -> Path:
    """The same for all processes of a user; if somebody else has taken the name, one for this process."""
    folder = Path(tempfile.gettempdir()) / f"glassformer-{os.getuid()}"
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        found = os.lstat(folder)
        if found.st_uid == os.getuid() and stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o022:
            return folder
    return _own_folder()


@functools.cache
def _own_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="glassformer-"))


def open_or_build(
    cache: Path,
    fingerprint: Mapping[str, Any],
    make_rows: Callable[[], Iterable[Row]],
    say: Say,
    *,
    columns: Sequence[str],
    sources: Sequence[Path] = (),
    facts: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> TokenStore:
    """The store of what `make_rows` gives, re-used from `cache` where it is there and whole.

    It depends on the bytes of `sources` and on `fingerprint`, which holds everything else that the rows
    follow from. `facts` may be filled in by `make_rows`; a store that is re-used has those of its making.
    """
    try:
        cache.mkdir(parents=True, exist_ok=True)
        states, checksums = _checksums(cache, sources)
        key = json_sha256([VERSION, dict(fingerprint), list(checksums.values()), list(columns)])[:32]
        store = _reuse(cache / key, say, may_discard=False)
        if store is not None:
            return store
        with _lock(cache, key, say) as is_held:
            store = _reuse(cache / key, say, may_discard=True)  # another may have built it meanwhile
            if store is not None:
                return store
            _clear(cache, checksums, say, own=key if is_held else None)
            store = _build(cache / key, make_rows, columns, fingerprint, progress, checksums, facts)
        _refuse_changed(states, store)
    except OSError as error:
        raise storage_error(error, cache) from error
    say(f"tokens: {_rows(store)} kept in {store.folder}")
    return store


def _rows(store: TokenStore) -> str:
    return "1 row" if len(store) == 1 else f"{len(store):,} rows"


def _reuse(folder: Path, say: Say, *, may_discard: bool) -> TokenStore | None:
    """What is damaged goes only under the lock: else another process may have mended it by now."""
    try:
        store = TokenStore.open(folder)
    except FileNotFoundError:
        return None
    except DamagedStore as error:
        if may_discard:
            say(f"tokens: {folder} is damaged ({error}): building again")
            _discard(folder)
        return None
    say(f"tokens: {_rows(store)} re-used from {folder}")
    return store


def _build(
    folder: Path,
    make_rows: Callable[[], Iterable[Row]],
    columns: Sequence[str],
    fingerprint: Mapping[str, Any],
    progress: Progress | None,
    sources: Mapping[str, str],
    facts: Mapping[str, Any] | None,
) -> TokenStore:
    try:
        return TokenStore.build(
            folder, make_rows(), columns, fingerprint, progress, sources=sources, facts=facts
        )
    except FileExistsError:  # where there are no locks, another process may have been faster
        return TokenStore.open(folder)


def _clear(cache: Path, checksums: Mapping[str, str], say: Say, own: str | None) -> None:
    """Remove what nobody will use: stores of source files as they once were, and what was never finished."""
    changed: dict[str, None] = {}
    for folder in list(cache.iterdir()):
        name, mark, _ = folder.name.partition(UNFINISHED)
        if folder.name.startswith(DISCARDED) or (mark and (name == own or _is_unlocked(cache, name))):
            _discard(folder)
        elif folder.is_dir() and not mark and folder.name != LOCKS:
            stale = [path for path, was in _sources_of(folder).items() if checksums.get(path, was) != was]
            if stale:
                changed |= dict.fromkeys(stale)
                _discard(folder)
    for path in changed:
        say(f"source file changed: {path}; building its tokens again")


def _sources_of(folder: Path) -> dict[str, str]:
    try:
        return dict(read_manifest(folder)["sources"])
    except (OSError, DamagedStore):
        return {}


def _discard(folder: Path) -> None:
    """Under another name first, so that nobody finds half of it."""
    renamed = folder.with_name(f"{DISCARDED}{os.getpid()}-{time.monotonic_ns()}")
    with contextlib.suppress(OSError):
        os.rename(folder, renamed)
        shutil.rmtree(renamed)


@contextlib.contextmanager
def _lock(cache: Path, key: str, say: Say) -> Iterator[bool]:
    """One process builds and others wait; the lock goes with the process, however it ends.

    It only saves work: a store is whole when it gets its name, whoever gives it. Says whether it is held.
    """
    with _lock_file(cache, key) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("tokens: waiting for another process that builds them")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:  # a file system without locks
            yield False
            return
        yield True


def _is_unlocked(cache: Path, key: str) -> bool:
    """Whether it is certain that nobody builds this."""
    try:
        with _lock_file(cache, key) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except OSError:
        return False


def _lock_file(cache: Path, key: str) -> BinaryIO:
    (cache / LOCKS).mkdir(exist_ok=True)
    return open(cache / LOCKS / key, "ab")


def _state(path: Path) -> list[int]:
    """What changes when a file does."""
    found = path.stat()
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def _checksums(cache: Path, sources: Sequence[Path]) -> tuple[dict[Path, list[int]], dict[str, str]]:
    """The state of each file, and its SHA-256 by its full path; remembered while the state is the same."""
    remembered = read_json(cache / CHECKSUMS)
    known: dict[str, Any] = remembered if isinstance(remembered, dict) else {}
    states, checksums, new = {}, {}, {}
    for path in sources:
        name = str(path.resolve())
        try:
            state = _state(path)
            was = known.get(name)
            checksum = was[0] if isinstance(was, list) and was[1:] == state else file_sha256(path)
        except OSError as error:
            hint = "check the path and its permissions"
            raise user_error(f"cannot be read: {error.strerror}", path=str(path), hint=hint) from None
        if was != [checksum, *state] and time.time() - state[2] / 1e9 > SETTLED_SECONDS:
            new[name] = [checksum, *state]
        states[path], checksums[name] = state, checksum
    if new:
        replace_json(cache / CHECKSUMS, known | new)
    return states, checksums


def _refuse_changed(states: Mapping[Path, list[int]], store: TokenStore) -> None:
    for path, state in states.items():
        if _state(path) != state:
            _discard(store.folder)
            raise user_error("changed while it was read", path=str(path), hint="the same command again")


def storage_error(error: OSError, cache: Path) -> UserError:
    try:
        free = f", {shutil.disk_usage(cache).free:,} bytes free"
    except OSError:
        free = ""
    return user_error(
        f"tokens cannot be kept: {error.strerror}{free}",
        path=str(error.filename or cache),
        hint="free some space or check permissions, or GLASSFORMER_CACHE=FOLDER",
    )
