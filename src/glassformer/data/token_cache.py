"""Which stores of tokens are kept between runs, and when one is made again.

A store is named by what it depends on: the bytes of its source files, and whatever else its maker says,
such as the tokenizer. So a store that is found is the right one, and what is left to see to is damage,
source files that have changed, and processes that want the same store at the same time.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from glassformer.data.shards import (
    UNFINISHED,
    VERSION,
    DamagedStore,
    Progress,
    Row,
    TokenStore,
    file_sha256,
    json_sha256,
    read_json,
    read_manifest,
    replace_json,
)
from glassformer.errors import UserError, user_error

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
            remedy = "check the path and its permissions"
            raise user_error(f"cannot be read: {error.strerror}", place=str(path), remedy=remedy) from None
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
            raise user_error("changed while it was read", place=str(path), remedy="the same command again")


def storage_error(error: OSError, cache: Path) -> UserError:
    try:
        free = f", {shutil.disk_usage(cache).free:,} bytes free"
    except OSError:
        free = ""
    return user_error(
        f"tokens cannot be kept: {error.strerror}{free}",
        place=str(error.filename or cache),
        remedy="free some space or check permissions, or GLASSFORMER_CACHE=FOLDER",
    )
