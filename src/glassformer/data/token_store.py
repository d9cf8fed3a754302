"""Token store: memory-mapped shards of token ids on disk, cached between runs."""

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
from glassformer.storage.files import atomic_write, file_sha256, sync_folder, write_durably

VERSION = 1
SHARD_TOKENS = 64 << 20
FLUSH_TOKENS = 1 << 16
MANIFEST = "manifest.json"
UNFINISHED = ".building-"
"""Part of a folder's name while a store is being written. The process id follows."""
VERIFIED = "verified.json"
"""File with the modification times of the store's files when their checksums were last verified."""

Row = tuple[np.ndarray, ...]


class DamagedStore(Exception):
    """Error: the files of a token store do not match its manifest. The message gives the reason."""


class TokenStore:
    """Tokenized corpus on disk: named columns, each a sequence of rows of token ids."""

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
        """Counts made while the rows were written, such as the number of unknown tokens, by name."""
        return dict(self.manifest["facts"])

    @classmethod
    def build(
        cls,
        folder: Path,
        rows: Iterable[Row],
        columns: Sequence[str],
        fingerprint: Mapping[str, Any],
        *,
        sources: Mapping[str, str] | None = None,
        facts: Mapping[str, Any] | None = None,
        shard_tokens: int = SHARD_TOKENS,
    ) -> TokenStore:
        """Write a store into `folder`, which must not exist yet. Each row has one array per column.

        `sources` are checksums by path. `facts` may be filled while the rows are made, because it is written
        at the end. The store is written under a temporary name, and renamed when it is complete.
        """
        unfinished = folder.with_name(f"{folder.name}{UNFINISHED}{os.getpid()}")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        try:
            manifest = cls._write(unfinished, rows, columns, shard_tokens)
            manifest |= {"fingerprint": dict(fingerprint), "sources": dict(sources or {})}
            manifest |= {"version": VERSION, "facts": dict(facts or {})}
            manifest = json.loads(json.dumps(manifest))  # the checksum must be that of the parsed file
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
        folder: Path, rows: Iterable[Row], columns: Sequence[str], shard_tokens: int
    ) -> dict[str, Any]:
        """Write all files except the manifest; return the manifest's entries for them."""
        writers = [_ColumnWriter(folder, name, shard_tokens) for name in columns]
        try:
            for row in rows:
                for writer, tokens in zip(writers, row, strict=True):
                    writer.add(tokens)
            written = {writer.name: writer.finish() for writer in writers}
        finally:
            for writer in writers:
                writer.close()
        return {
            "rows": writers[0].row_count,
            "columns": written,
            "files": {name: entry for writer in writers for name, entry in writer.checksums().items()},
        }

    @classmethod
    def open(cls, folder: Path) -> TokenStore:
        """Open a store. File sizes are always verified, checksums only if a modification time has changed.

        Raises FileNotFoundError if the folder does not exist, and DamagedStore if a file was changed.
        """
        manifest = read_manifest(folder)
        states = {}
        for name, entry in manifest["files"].items():
            try:
                found = (folder / name).stat()
            except OSError:
                raise DamagedStore(f"{name} is missing") from None
            if found.st_size != entry["bytes"]:
                raise DamagedStore(f"{name} has {found.st_size:,} bytes instead of {entry['bytes']:,}")
            states[name] = found.st_mtime_ns
        if read_json(folder / VERIFIED) != states:
            for name, entry in manifest["files"].items():
                if file_sha256(folder / name) != entry["sha256"]:
                    raise DamagedStore(f"the checksum of {name} differs")
            replace_json(folder / VERIFIED, states)
        return cls(folder, manifest)


class _HashedFile:
    """File that is being written, with the SHA-256 of the bytes written so far."""

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
        """Flush the file to disk and close it."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self.close()

    def close(self) -> None:
        self._file.close()


class _ColumnWriter:
    """Writer of one column. Rows are joined into shard files. A row may continue in the next shard."""

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

    def add(self, row: np.ndarray) -> None:
        self._pending.append(row)
        self._pending_tokens += len(row)
        self.row_count += 1
        if max(self._pending_tokens, len(self._pending)) >= min(FLUSH_TOKENS, self._shard_tokens):
            self._flush()

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
        """Return the last shard, or a new shard if the last is full or its integer type is too narrow."""
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
        """Close the files; return the manifest's entry for the column."""
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

    def checksums(self) -> dict[str, dict[str, Any]]:
        """Return the size and the SHA-256 of each file."""
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


def json_sha256(value: Any) -> str:
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


def read_json(path: Path) -> Any:
    """Read a JSON file; return None if it is missing or invalid."""
    try:
        return json.loads(read_regular_file(path))
    except (OSError, ValueError, RecursionError):
        return None


def replace_json(path: Path, value: Any) -> None:
    """Write a JSON file without fsync. Failures are ignored, since its content can be computed again."""
    with contextlib.suppress(OSError):
        atomic_write(path, json.dumps(value).encode(), durable=False, shared=True)


def _rename_new(old: Path, new: Path) -> None:
    try:
        os.rename(old, new)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            raise FileExistsError(error.errno, "exists already", str(new)) from None
        raise
    sync_folder(new.parent)


CHECKSUMS = "sources.json"
LOCKS = "locks"
DISCARDED = ".discarded-"
SETTLED_SECONDS = 2.0
"""Minimum age of a source file, in seconds, before its checksum is cached by its modification time."""

Report = Callable[[str], None]
"""Callback that receives a message for the user."""


def cache_folder() -> Path:
    """Return the cache folder: GLASSFORMER_CACHE, the user's cache folder, or a temporary folder."""
    named = os.environ.get("GLASSFORMER_CACHE")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        own = (Path(base) if base else Path.home() / ".cache") / "glassformer"
    except RuntimeError:  # the home folder is unknown
        return _temporary_cache()
    return own if _is_writable(own) else _temporary_cache()


def _is_writable(folder: Path) -> bool:
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def _temporary_cache() -> Path:
    """Return a temporary folder of this user, or of this process if another user owns that folder."""
    folder = Path(tempfile.gettempdir()) / f"glassformer-{os.getuid()}"
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        found = os.lstat(folder)
        if found.st_uid == os.getuid() and stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o022:
            return folder
    return _process_folder()


@functools.cache
def _process_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="glassformer-"))


def open_or_build(
    cache: Path,
    fingerprint: Mapping[str, Any],
    make_rows: Callable[[], Iterable[Row]],
    report: Report,
    *,
    columns: Sequence[str],
    sources: Sequence[Path] = (),
    facts: Mapping[str, Any] | None = None,
) -> TokenStore:
    """Open a token store in `cache`, or build it from `make_rows` if it is missing or damaged.

    The cache key is a hash of the bytes of `sources` and of `fingerprint`, which must contain everything else
    that determines the rows. `make_rows` may fill `facts`, which are saved with the store.
    """
    try:
        cache.mkdir(parents=True, exist_ok=True)
        states, checksums = _checksums(cache, sources)
        key = json_sha256([VERSION, dict(fingerprint), list(checksums.values()), list(columns)])[:32]
        store = _reuse(cache / key, report, may_discard=False)
        if store is not None:
            return store
        with _lock(cache, key, report) as is_held:
            store = _reuse(cache / key, report, may_discard=True)  # another process may have built it
            if store is not None:
                return store
            _clear(cache, checksums, report, own=key if is_held else None)
            try:
                store = TokenStore.build(
                    cache / key, make_rows(), columns, fingerprint, sources=checksums, facts=facts
                )
            except FileExistsError:  # on a file system without locks, another process may be faster
                store = TokenStore.open(cache / key)
        _reject_changed(states, store)
    except OSError as error:
        raise cache_error(error, cache) from error
    report(f"tokens: {_rows(store)} stored in {store.folder}")
    return store


def _rows(store: TokenStore) -> str:
    return "1 row" if len(store) == 1 else f"{len(store):,} rows"


def _reuse(folder: Path, report: Report, *, may_discard: bool) -> TokenStore | None:
    """Return a cached store, or None. With `may_discard`, which needs the lock, delete a damaged store."""
    try:
        store = TokenStore.open(folder)
    except FileNotFoundError:
        return None
    except DamagedStore as error:
        if may_discard:
            report(f"tokens: {folder} is damaged ({error}): building again")
            _discard(folder)
        return None
    report(f"tokens: {_rows(store)} re-used from {folder}")
    return store


def _clear(cache: Path, checksums: Mapping[str, str], report: Report, own: str | None) -> None:
    """Delete stores whose source files have changed, and stores that were left unfinished."""
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
        report(f"source file changed: {path}; building its tokens again")


def _sources_of(folder: Path) -> dict[str, str]:
    try:
        return dict(read_manifest(folder)["sources"])
    except (OSError, DamagedStore):
        return {}


def _discard(folder: Path) -> None:
    """Rename a folder, then delete it, so that no process opens a half-deleted store."""
    renamed = folder.with_name(f"{DISCARDED}{os.getpid()}-{time.monotonic_ns()}")
    with contextlib.suppress(OSError):
        os.rename(folder, renamed)
        shutil.rmtree(renamed)


@contextlib.contextmanager
def _lock(cache: Path, key: str, report: Report) -> Iterator[bool]:
    """Lock a store, so that one process builds it while others wait. Yield True if the lock is held.

    The lock ends with the process. It only avoids duplicate work, since a store is renamed when complete.
    """
    with _lock_file(cache, key) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("tokens: waiting for another process that builds them")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:  # a file system without locks
            yield False
            return
        yield True


def _is_unlocked(cache: Path, key: str) -> bool:
    """Return True if it is certain that no process is building this store."""
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
    """Return size, modification and change times, and inode of a file. New contents change at least one."""
    found = path.stat()
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def _checksums(cache: Path, sources: Sequence[Path]) -> tuple[dict[Path, list[int]], dict[str, str]]:
    """Return the state and the SHA-256 of each file. A checksum is cached until the file's state changes."""
    cached = read_json(cache / CHECKSUMS)
    known: dict[str, Any] = cached if isinstance(cached, dict) else {}
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


def _reject_changed(states: Mapping[Path, list[int]], store: TokenStore) -> None:
    for path, state in states.items():
        if _state(path) != state:
            _discard(store.folder)
            raise user_error("changed while it was read", path=str(path), hint="run the same command again")


def cache_error(error: OSError, cache: Path) -> UserError:
    try:
        free = f", {shutil.disk_usage(cache).free:,} bytes free"
    except OSError:
        free = ""
    return user_error(
        f"tokens cannot be stored: {error.strerror}{free}",
        path=str(error.filename or cache),
        hint="free some space, check permissions, or set GLASSFORMER_CACHE=FOLDER",
    )
