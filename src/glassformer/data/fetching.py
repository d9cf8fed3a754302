"""Sets of the catalogue brought over the network: resumed where they were cut, kept only if whole.

What arrives stands in a `.part` file until it is complete; a file gets its name after its checksum was right.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.client
import os
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from glassformer import __version__
from glassformer.data.catalogue import BLOCK_BYTES, CatalogueFile, DataSet, Progress, is_whole
from glassformer.errors import UserError, user_error

ATTEMPTS = 3
SECONDS_OF_SILENCE = 30.0


def fetch(data_set: DataSet, folder: Path, progress: Progress) -> list[Path]:
    """The files that were brought; those that are here already are left alone."""
    if not data_set.is_fetchable:
        raise _by_hand(data_set, folder)
    wanted = [file for file in data_set.files if _is_wanted(folder / data_set.name / file.path, file)]
    brought = []
    try:
        for address in dict.fromkeys(file.address for file in wanted):
            files = [file for file in wanted if file.address == address]
            brought += _bring(address, files, folder / data_set.name, progress)
    except OSError as error:
        raise user_error(
            f"cannot be written: {error.strerror}",
            place=str(error.filename or folder),
            remedy="--to DIR names another folder",
        ) from None
    return brought


def _by_hand(data_set: DataSet, folder: Path) -> UserError:
    layout = ", ".join(file.path for file in data_set.files)
    return user_error(
        f"not published in this form, so it cannot be fetched; its home is {data_set.home} ({data_set.how})",
        place=data_set.name,
        remedy=f"put {layout} into {folder / data_set.name}",
    )


def _is_wanted(path: Path, file: CatalogueFile) -> bool:
    if not path.exists():
        return True
    if not is_whole(path, file):
        raise user_error(
            "is here, but does not have the catalogue's checksum",
            place=str(path),
            remedy="remove it, and fetch it again",
        )
    return False


def _bring(address: str, files: list[CatalogueFile], folder: Path, progress: Progress) -> list[Path]:
    """One download, and all files that are in it."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / (address.rpartition("/")[2] + ".part")
    _download(address, part, progress)
    try:
        return [_unpack(part, address, file, folder / file.path) for file in files]
    finally:
        # Complete by now: what is wrong with it would be wrong the next time, too.
        part.unlink(missing_ok=True)


def _download(address: str, part: Path, progress: Progress) -> None:
    """Until the part file is complete. What an earlier attempt has left is gone on with."""
    cause = ""
    for _ in range(ATTEMPTS):
        try:
            if _continue_download(address, part, progress):
                return
            cause = "the connection was cut"
        except urllib.error.HTTPError as error:
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and part.exists():
                return  # nothing is left to ask for; the checksum decides
            raise user_error(
                f"the server says {error.code} {error.reason}", place=address, remedy="try again later"
            ) from None
        except urllib.error.URLError as error:
            cause = str(error.reason)
        except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
            cause = str(error) or type(error).__name__
    here = f" after {part.stat().st_size:,} bytes" if part.exists() else ""
    raise user_error(
        f"could not be fetched{here}: {cause}",
        place=address,
        remedy="check the network; the same command goes on from there",
    )


def _continue_download(address: str, part: Path, progress: Progress) -> bool:
    """Whether it is complete afterwards."""
    start = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": f"glassformer/{__version__}"}
    if start:
        headers["Range"] = f"bytes={start}-"
    request = urllib.request.Request(address, headers=headers)
    with urllib.request.urlopen(request, timeout=SECONDS_OF_SILENCE) as response:
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
    """The file under its name, if it has the catalogue's checksum."""
    new = target.with_name(target.name + ".new")
    digest = hashlib.sha256()
    try:
        with _opened(part, address, file) as source, new.open("wb") as stream:
            while (block := source.read(BLOCK_BYTES)) and stream.tell() <= file.size:
                digest.update(block)
                stream.write(block)
            stream.flush()
            os.fsync(stream.fileno())
        if digest.hexdigest() != file.sha256:
            raise user_error(
                f"refused: its SHA-256 is {digest.hexdigest()[:16]}…, not {file.sha256[:16]}…",
                place=f"{target.name} from {address}",
                remedy="fetch it again; if it stays, the publisher has changed it",
            )
        os.replace(new, target)
    except (KeyError, gzip.BadGzipFile, zipfile.BadZipFile, zlib.error, EOFError):
        raise user_error(
            "refused: not the archive that was expected", place=address, remedy="fetch it again"
        ) from None
    finally:
        new.unlink(missing_ok=True)
    return target


@contextlib.contextmanager
def _opened(part: Path, address: str, file: CatalogueFile) -> Iterator[IO[bytes] | gzip.GzipFile]:
    if address.endswith(".zip"):
        with zipfile.ZipFile(part) as archive:
            names = {name.rpartition("/")[2]: name for name in archive.namelist()}
            with archive.open(names[file.path]) as stream:
                yield stream
    elif address.endswith(".gz") and not file.path.endswith(".gz"):
        with gzip.open(part) as stream:
            yield stream
    else:
        with part.open("rb") as stream:
            yield stream
