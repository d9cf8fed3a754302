"""Public datasets by name: contents, licence, checksums, addresses; where they are here; downloads."""

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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from glassformer import __version__
from glassformer.core.errors import UserError, user_error

FOLDER_VARIABLE = "GLASSFORMER_DATA"
BLOCK_BYTES = 1 << 20

Progress = Callable[[str, int, int], None]
"""Of what, how many bytes are done, and of how many."""


@dataclass(frozen=True)
class CatalogueFile:
    path: str
    """Inside the set's folder."""
    size: int
    sha256: str
    address: str = ""
    """Where it is published; `.gz` and `.zip` are unpacked on arrival. Empty: nowhere in this form."""


@dataclass(frozen=True)
class Part:
    """The files of each split, as `task.data` would name them."""

    splits: Mapping[str, tuple[str, ...]]
    name: str = ""
    format: str | None = None
    """This and the others as in `task.data`."""
    columns: Mapping[str, str | int] = field(default_factory=dict)
    classes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DataSet:
    name: str
    what: str
    licence: str
    home: str
    files: tuple[CatalogueFile, ...]
    parts: tuple[Part, ...]
    how: str = ""
    """What a person does where there is no address to fetch from."""

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def is_fetchable(self) -> bool:
        return all(file.address for file in self.files)


def _files(table: str, address: str = "") -> tuple[CatalogueFile, ...]:
    """Rows of checksum, bytes and path; `{path}` stands for the path in the address."""
    files = []
    for line in table.strip().splitlines():
        sha256, size, path = line.split()
        files.append(CatalogueFile(path, int(size), sha256, address.format(path=path)))
    return tuple(files)


_SCAN = "https://raw.githubusercontent.com/brendenlake/SCAN/master"

_SETS = (
    DataSet(
        name="multi30k",
        what="image captions, English, French, German",
        licence="research and education",
        home="https://github.com/multi30k/dataset",
        files=_files(
            """
            460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6 1801238 train.en
            5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d 2111303 train.fr
            2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72 2110398 train.de
            1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227 63297 val.en
            5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc 73924 val.fr
            660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660 75981 val.de
            399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182 62076 test_2016_flickr.en
            cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6 72261 test_2016_flickr.fr
            4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16 70649 test_2016_flickr.de
            """,
            "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/{path}.gz",
        ),
        parts=tuple(
            Part(
                {
                    "train": ("train.en", f"train.{language}"),
                    "validation": ("val.en", f"val.{language}"),
                    "test": ("test_2016_flickr.en", f"test_2016_flickr.{language}"),
                },
                name=f"en-{language}",
                format="text",
            )
            for language in ("fr", "de")
        ),
    ),
    DataSet(
        name="ted_enfr",
        what="TED talks, English and French, 30,000 pairs",
        licence="CC BY-NC-ND (TED)",
        home="https://wit3.fbk.eu",
        how="30,000 / 887 / 1,305 pairs of the TED talks there",
        files=_files(
            """
            69df29de80f462ba8d07b62f1c102675959d0e647520e4d55ffe99b9eb4be1a8 2885083 train.en
            a5065e385bee5d64307ba0e8187abc9a0e041223354c4ddac80752bec9511824 3358288 train.fr
            2fcfd5c3347c27ded1ffa67cf7d5bf075cdf0a77b84045f1fc363a794c2828af 96477 dev.en
            3786dc3bccf0c84a4494e12d7ffdaab93b5c984b2632aa5ed04452b69e913b1e 104347 dev.fr
            47e1c66b3297abe55893c27104a4721b6d02a27883009a7985f87d3b84bec6de 117545 test.en
            41a56c4aa86fa6b35c36b0aa234411edae514ca45bb355a583675a742621886f 139304 test.fr
            """
        ),
        parts=(
            Part(
                {
                    "train": ("train.en", "train.fr"),
                    "validation": ("dev.en", "dev.fr"),
                    "test": ("test.en", "test.fr"),
                },
                format="text",
            ),
        ),
    ),
    DataSet(
        name="two_digit_op",
        what="sums and differences of two digits, 5,000",
        licence="course data",
        home="https://web.eecs.umich.edu/~justincj/teaching/eecs498/WI2022/assignment5.html",
        how="the file is in the assignment's archive",
        files=_files(
            "7fcd4a95351bb3c8b9ce0c9ca853068ab5c030603e95d537e351da7bf6602602 322300 two_digit_op.json"
        ),
        parts=(
            Part(
                {"train": ("two_digit_op.json",)},
                format="json",
                columns={"input": "inp_expression", "target": "out_expression"},
            ),
        ),
    ),
    DataSet(
        name="cls_books_fr",
        what="French book reviews, two classes",
        licence="research (Webis CLS-10)",
        home="https://webis.de/data/webis-cls-10.html",
        how="its French book reviews as lines of label, tab and text: 1,600 / 400 / 2,000 of them",
        files=_files(
            """
        26db7ef390dc13685bf099e2a1af1a0f5f4651d2b035d59c668dc45c852a13a3 968678 train.tsv
        a5d90b5fa6754f2b0d9e06d818f1fe9e122a7177cfe8de75686af5826e86467f 251881 valid.tsv
        7a5c8bc98691c261e571d2f042f80a9d45338f62fc5a42c05ca9281c448fb46b 1206316 test.tsv
        4cc472d2d984575d2d1774cfc0150ff9acad6f4430f2f34901d3a30062cd164b 1115362 sentencepiece.french.model
            """
        ),
        parts=(
            Part(
                {"train": ("train.tsv",), "validation": ("valid.tsv",), "test": ("test.tsv",)},
                format="tsv",
                columns={"input": 1, "target": 0},
            ),
        ),
    ),
    DataSet(
        name="tatoeba_enfr",
        what="short sentences, English and French, 167,130",
        licence="CC BY 2.0 (tatoeba.org)",
        home="https://www.manythings.org/anki/",
        files=_files(
            "0bb85dbaa1c896844649094d7eaf2e34bee34e84fe362b26ce7e8f2e12aae104 11669748 fra.txt",
            "http://d2l-data.s3-accelerate.amazonaws.com/fra-eng.zip",
        ),
        parts=(Part({"train": ("fra.txt",)}, format="tsv", columns={"input": 0, "target": 1}),),
    ),
    DataSet(
        name="movie_polarity",
        what="sentences of film reviews, two classes",
        licence="CC BY 4.0 (Pang and Lee)",
        home="https://www.cs.cornell.edu/people/pabo/movie-review-data/",
        files=_files(
            """
            614274f81185a850e5a88d533d4679f916d6f62e9af6f0b4ec71fb94bf466ea5 612441 rt-polarity.neg
            c2dc6b2f55bcf725725372916287cc3f8f9b19402edaa9167de5287cb3ade421 626334 rt-polarity.pos
            """,
            "https://raw.githubusercontent.com/nltk/nltk_data/gh-pages/packages/corpora/sentence_polarity.zip",
        ),
        parts=(
            Part(
                {"train": (".",)},
                format="folder",
                classes={"negative": "rt-polarity.neg", "positive": "rt-polarity.pos"},
            ),
        ),
    ),
    DataSet(
        name="imdb",
        what="long film reviews, two classes",
        licence="research (Maas et al.)",
        home="https://ai.stanford.edu/~amaas/data/sentiment/",
        how="its training reviews as gzipped lines of JSON with id, label, rating and text",
        files=_files(
            "1744f9bb0361ec832ec3bad30983b271cc133627f489de242cb389f2081da583 10501571 train.jsonl.gz"
        ),
        parts=(
            Part(
                {"train": ("train.jsonl.gz",)}, format="jsonl", columns={"input": "text", "target": "label"}
            ),
        ),
    ),
    DataSet(
        name="tinyshakespeare",
        what="Shakespeare's plays, one running text",
        licence="public domain",
        home="https://github.com/karpathy/char-rnn",
        files=_files(
            "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed 1115394 input.txt",
            "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/{path}",
        ),
        parts=(Part({"train": ("input.txt",)}, format="running-text"),),
    ),
    DataSet(
        name="scan",
        what="commands and the actions they mean",
        licence="BSD",
        home="https://github.com/brendenlake/SCAN",
        files=(
            *_files(
                """
            941bb8a088c5f53ceff12fde902dc008933cf0c4203cc672c47b5f79d73262dd 3267938 tasks_train_simple.txt
            1fe1c8f5a19d0dc40e41bab94278f45f66f3dc415a978bd29855a23440610fc6 812450 tasks_test_simple.txt
                """,
                f"{_SCAN}/simple_split/{{path}}",
            ),
            *_files(
                """
            b034212dc7cf87ce62f3a067dd6ad49c4d5cd18d51d615d13825516bcb1ebbc2 2723418 tasks_train_length.txt
            0760752ed34a75116ae11dcc1ee17526b7500060da1366540730fa24894d7db3 1356970 tasks_test_length.txt
                """,
                f"{_SCAN}/length_split/{{path}}",
            ),
            *_files(
                "5caff9408d400e1d9b271bf48b967154cdf6a37c16c965f91775da3af9291f67 1532 LICENSE",
                f"{_SCAN}/{{path}}",
            ),
        ),
        parts=tuple(
            Part(
                {"train": (f"tasks_train_{split}.txt",), "test": (f"tasks_test_{split}.txt",)},
                name=split,
                format="text",
            )
            for split in ("simple", "length")
        ),
    ),
)

CATALOGUE = {data_set.name: data_set for data_set in _SETS}


def find_set(name: str) -> DataSet:
    if name not in CATALOGUE:
        raise user_error("no such set in the catalogue", path="data", value=name, allowed=list(CATALOGUE))
    return CATALOGUE[name]


def fetch_folder() -> Path:
    """Where fetched sets go: `GLASSFORMER_DATA` if it is set, and otherwise a folder of the user's own."""
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named) if named else _own_folder()


def _own_folder() -> Path:
    base = os.environ.get("XDG_DATA_HOME", "")
    # The XDG rules let a relative path count as unset.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "share") / "glassformer"


def search_folders() -> list[Path]:
    """Where a set is looked for, the first place first."""
    return list(dict.fromkeys([fetch_folder(), Path(), _own_folder()]))


def locate(path: str) -> Path:
    """A file of a set by name, such as `multi30k/train.en`, wherever it is; any other path as it is."""
    asked = Path(path)
    if asked.is_absolute() or path.startswith(".") or not asked.parts or asked.parts[0] not in CATALOGUE:
        return asked
    found = _search(asked)
    if found is not None:
        return found
    data_set = CATALOGUE[asked.parts[0]]
    listed = [f"{data_set.name}/{file.path}" for file in data_set.files]
    if len(asked.parts) > 1 and asked.as_posix() not in listed:
        raise user_error("no such file in the set", path=path, value=asked.as_posix(), allowed=listed)
    hint = f"glassformer data fetch {data_set.name}, or set {FOLDER_VARIABLE}"
    if not data_set.is_fetchable:
        hint = f"set {FOLDER_VARIABLE}; glassformer data list {data_set.name} says where it is from"
    raise user_error("this set is not here", path=path, hint=hint)


def _search(path: Path) -> Path | None:
    return next((folder / path for folder in search_folders() if (folder / path).exists()), None)


@dataclass(frozen=True)
class Presence:
    """Which of a set's files are here; none of the three lists overlap."""

    whole: dict[str, Path]
    changed: dict[str, Path]
    """Here, but not the listed bytes."""
    missing: list[str]

    @property
    def state(self) -> str:
        if self.changed:
            return "changed"
        if not self.missing:
            return "whole"
        return "in part" if self.whole else "absent"


def presence(data_set: DataSet) -> Presence:
    """Reads every byte of the set that is here."""
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
    """Which of these files have a name of the catalogue, but not the listed bytes."""
    listed = {
        folder / data_set.name / file.path: (f"{data_set.name}/{file.path}", file)
        for folder in search_folders()
        for data_set in CATALOGUE.values()
        for file in data_set.files
    }
    named = [(path, *listed[path]) for path in paths if path in listed]
    return [name for path, name, file in named if not is_whole(path, file)]


def is_whole(path: Path, file: CatalogueFile) -> bool:
    try:
        if path.stat().st_size != file.size:
            return False
        digest = hashlib.sha256()
        with path.open("rb") as stream:
            while block := stream.read(BLOCK_BYTES):
                digest.update(block)
    except OSError as error:
        raise user_error(
            f"cannot be read: {error.strerror}", path=str(path), hint="check its permissions"
        ) from None
    return digest.hexdigest() == file.sha256


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
            path=str(error.filename or folder),
            hint="--to DIR names another folder",
        ) from None
    return brought


def _by_hand(data_set: DataSet, folder: Path) -> UserError:
    layout = ", ".join(file.path for file in data_set.files)
    return user_error(
        f"not published in this form, so it cannot be fetched; its home is {data_set.home} ({data_set.how})",
        path=data_set.name,
        hint=f"put {layout} into {folder / data_set.name}",
    )


def _is_wanted(path: Path, file: CatalogueFile) -> bool:
    if not path.exists():
        return True
    if not is_whole(path, file):
        raise user_error(
            "is here, but does not have the catalogue's checksum",
            path=str(path),
            hint="remove it, and fetch it again",
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
                f"the server says {error.code} {error.reason}", path=address, hint="try again later"
            ) from None
        except urllib.error.URLError as error:
            cause = str(error.reason)
        except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
            cause = str(error) or type(error).__name__
    here = f" after {part.stat().st_size:,} bytes" if part.exists() else ""
    raise user_error(
        f"could not be fetched{here}: {cause}",
        path=address,
        hint="check the network; the same command goes on from there",
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
                path=f"{target.name} from {address}",
                hint="fetch it again; if it stays, the publisher has changed it",
            )
        os.replace(new, target)
    except (KeyError, gzip.BadGzipFile, zipfile.BadZipFile, zlib.error, EOFError):
        raise user_error(
            "refused: not the archive that was expected", path=address, hint="fetch it again"
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
