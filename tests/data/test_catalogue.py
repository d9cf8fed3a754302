"""Catalogue of public data sets: search folders, verification, and downloads from a local server."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from glassformer.core.errors import UserError
from glassformer.data import catalogue
from glassformer.data.catalogue import CATALOGUE, CatalogueFile, DataSet, Part, fetch, locate, presence
from tests.data.loopback import Server, serving

TEXT = b"".join(b"line %d of some text\n" % number for number in range(5000))


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as state:
        yield state


def entry(path: str, content: bytes, address: str) -> CatalogueFile:
    return CatalogueFile(path, len(content), hashlib.sha256(content).hexdigest(), address)


def set_of(*files: CatalogueFile, name: str = "mine") -> DataSet:
    return DataSet(name, "", "", "https://example.org", files, (Part({"train": (files[0].path,)}),))


def quiet(name: str, done: int, total: int) -> None: ...


def test_every_set_is_complete() -> None:
    for name, data_set in CATALOGUE.items():
        assert name == data_set.name and data_set.summary and data_set.licence
        assert data_set.home.startswith("https://")
        assert data_set.is_fetchable or data_set.instructions, "a set that cannot be fetched has instructions"
        paths = [file.path for file in data_set.files]
        assert len(set(paths)) == len(paths)
        for file in data_set.files:
            assert re.fullmatch("[0-9a-f]{64}", file.sha256) and file.size > 0
            assert re.fullmatch("(https?://[^ {}]+)?", file.address)
        for part in data_set.parts:
            named = {path for split in part.splits.values() for path in split} - {"."}
            assert named | set(part.classes.values()) <= set(paths)
            assert "train" in part.splits


def test_search_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named, here, home = tmp_path / "named", tmp_path / "here", tmp_path / "home"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("GLASSFORMER_DATA", str(named))
    monkeypatch.setenv("XDG_DATA_HOME", str(home))
    path = "multi30k/train.en"
    with pytest.raises(UserError) as caught:
        locate(path)
    assert "glassformer data fetch multi30k, or set GLASSFORMER_DATA" in str(caught.value)
    for folder, found in ((home / "glassformer", None), (here, Path(path)), (named, named / path)):
        (folder / path).parent.mkdir(parents=True)
        (folder / path).write_bytes(b"")
        assert locate(path) == (found or folder / path)
    assert locate("multi30k") == named / "multi30k"
    assert presence(CATALOGUE["multi30k"]).state == "changed"  # an empty file has other bytes


@pytest.mark.parametrize(
    "path", ["a.txt", "/multi30k/a", "./multi30k/a", "../multi30k/a", "mine/multi30k", ""]
)
def test_other_paths_are_left_alone(path: str) -> None:
    assert locate(path) == Path(path)


def test_a_mistyped_file_of_a_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLASSFORMER_DATA", str(tmp_path))
    with pytest.raises(UserError, match=r"did you mean 'multi30k/train\.en'"):
        locate("multi30k/trian.en")


def test_files_and_archives_are_fetched(server: Server, tmp_path: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("folder/c.txt", b"three")
        archive.writestr("folder/d.txt", b"four")
    server.contents = {"a.txt": TEXT, "b.txt.gz": gzip.compress(b"two"), "cd.zip": packed.getvalue()}
    data_set = set_of(
        entry("a.txt", TEXT, f"{server.address}/a.txt"),
        entry("b.txt", b"two", f"{server.address}/b.txt.gz"),
        entry("c.txt", b"three", f"{server.address}/cd.zip"),
        entry("d.txt", b"four", f"{server.address}/cd.zip"),
    )
    seen: list[tuple[str, int, int]] = []
    brought = fetch(data_set, tmp_path, lambda *progress: seen.append(progress))
    assert [path.name for path in brought] == ["a.txt", "b.txt", "c.txt", "d.txt"]
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["a.txt", "b.txt", "c.txt", "d.txt"]
    assert [path.read_bytes() for path in brought] == [TEXT, b"two", b"three", b"four"]
    assert ("a.txt", len(TEXT), len(TEXT)) in seen
    assert [name for name, _ in server.asked] == ["a.txt", "b.txt.gz", "cd.zip"], (
        "an archive is downloaded once"
    )

    server.asked.clear()
    assert fetch(data_set, tmp_path, quiet) == []
    assert server.asked == [], "complete files are not downloaded again"


def test_a_wrong_checksum_is_rejected(server: Server, tmp_path: Path) -> None:
    server.contents = {"a.txt": TEXT.replace(b"line 7 ", b"line 8 ")}
    data_set = set_of(entry("a.txt", TEXT, f"{server.address}/a.txt"))
    with pytest.raises(UserError, match=r"a\.txt from http.*rejected: its SHA-256 is"):
        fetch(data_set, tmp_path, quiet)
    assert list((tmp_path / "mine").iterdir()) == [], "nothing of it is kept"
    server.contents = {"a.txt": TEXT}
    assert fetch(data_set, tmp_path, quiet) == [tmp_path / "mine" / "a.txt"]


@pytest.mark.parametrize("content", [b"no archive", gzip.compress(TEXT)[:-20]], ids=["other", "cut"])
def test_an_invalid_archive_is_rejected(content: bytes, server: Server, tmp_path: Path) -> None:
    server.contents = {"a.txt.gz": content}
    with pytest.raises(UserError, match="not a valid archive with this file"):
        fetch(set_of(entry("a.txt", TEXT, f"{server.address}/a.txt.gz")), tmp_path, quiet)
    assert list((tmp_path / "mine").iterdir()) == []


def test_a_changed_file_is_not_overwritten(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "mine" / "a.txt"
    path.parent.mkdir()
    path.write_bytes(b"my own")
    with pytest.raises(UserError, match="does not have the catalogue's checksum"):
        fetch(set_of(entry("a.txt", TEXT, f"{server.address}/a.txt")), tmp_path, quiet)
    assert path.read_bytes() == b"my own" and server.asked == []


def test_an_interrupted_download_is_resumed(server: Server, tmp_path: Path) -> None:
    server.contents, server.cuts = {"a.txt": TEXT}, {"a.txt": [1000, 0, 500]}
    data_set = set_of(entry("a.txt", TEXT, f"{server.address}/a.txt"))
    with pytest.raises(UserError, match="after 1,500 bytes: the connection was closed"):
        fetch(data_set, tmp_path, quiet)
    assert (tmp_path / "mine" / "a.txt.part").read_bytes() == TEXT[:1500]
    assert fetch(data_set, tmp_path, quiet)[0].read_bytes() == TEXT
    assert server.asked[-1] == ("a.txt", "bytes=1500-")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["a.txt"]


def test_a_server_without_ranges_starts_again(server: Server, tmp_path: Path) -> None:
    server.contents, server.cuts, server.ranges = {"a.txt": TEXT}, {"a.txt": [1000]}, False
    assert fetch(set_of(entry("a.txt", TEXT, f"{server.address}/a.txt")), tmp_path, quiet)
    assert (tmp_path / "mine" / "a.txt").read_bytes() == TEXT


def test_a_complete_part_file_is_not_downloaded_again(server: Server, tmp_path: Path) -> None:
    server.contents = {"a.txt": TEXT}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.txt.part").write_bytes(TEXT)
    fetch(set_of(entry("a.txt", TEXT, f"{server.address}/a.txt")), tmp_path, quiet)
    assert (tmp_path / "mine" / "a.txt").read_bytes() == TEXT


def test_an_absent_file_and_an_absent_server(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the server replied 404"):
        fetch(set_of(entry("a.txt", TEXT, f"{server.address}/a.txt")), tmp_path, quiet)
    with pytest.raises(UserError, match=r"download failed: .*\n.*check the network"):
        fetch(set_of(entry("a.txt", TEXT, "http://127.0.0.1:1/a.txt")), tmp_path, quiet)


def test_a_folder_that_cannot_be_written(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UserError, match="cannot be written"):
        fetch(set_of(entry("a.txt", TEXT, f"{server.address}/a.txt")), tmp_path / "file", quiet)


def test_a_manual_download_has_instructions(tmp_path: Path) -> None:
    by_hand = [data_set for data_set in CATALOGUE.values() if not data_set.is_fetchable]
    assert by_hand
    for data_set in by_hand:
        with pytest.raises(UserError) as caught:
            fetch(data_set, tmp_path, quiet)
        text = str(caught.value)
        assert data_set.home in text and data_set.files[0].path in text
        assert str(tmp_path / data_set.name) in caught.value.details[0].hint


def test_states_of_presence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLASSFORMER_DATA", str(tmp_path))
    monkeypatch.setattr(catalogue, "_own_folder", lambda: tmp_path)
    data_set = set_of(entry("a", b"one", ""), entry("b", b"two", ""))
    folder = tmp_path / "mine"
    assert presence(data_set).state == "absent"
    folder.mkdir()
    (folder / "a").write_bytes(b"one")
    assert presence(data_set).state == "in part"
    (folder / "b").write_bytes(b"two")
    assert presence(data_set).state == "whole"
    (folder / "b").write_bytes(b"TWO")  # of the same size
    assert presence(data_set).state == "changed" and list(presence(data_set).changed) == ["b"]


def packed_tgz(members: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def test_a_member_is_taken_by_its_path_and_offset(server: Server, tmp_path: Path) -> None:
    """Two members have the same name; one of them contains two files."""
    data = packed_tgz({"other/all.data": b"wrong", "package/all.data": b"firstsecond!"})
    server.contents = {"pack.tgz": data}
    address = f"{server.address}/pack.tgz?version=1"
    first = replace(entry("a", b"first", address), member="package/all.data")
    second = replace(entry("b", b"second!", address), member="package/all.data", start=5)
    assert [path.read_bytes() for path in fetch(set_of(first, second), tmp_path, quiet)] == [
        b"first",
        b"second!",
    ]


def test_members_never_leave_the_folder(server: Server, tmp_path: Path) -> None:
    """The catalogue decides where a file goes, and not the archive."""
    server.contents = {"pack.tgz": packed_tgz({"../../escaped": b"content"})}
    file = replace(entry("inside", b"content", f"{server.address}/pack.tgz"), member="../../escaped")
    assert fetch(set_of(file), tmp_path / "deep" / "folder", quiet)[0].name == "inside"
    assert not list(tmp_path.rglob("escaped"))


def test_an_archive_with_another_checksum_is_not_opened(server: Server, tmp_path: Path) -> None:
    data = packed_tgz({"package/a": b"content"})
    server.contents = {"pack.tgz": data}
    file = entry("a", b"content", f"{server.address}/pack.tgz")
    right = replace(file, archive_sha256=hashlib.sha256(data).hexdigest())
    fetch(set_of(right), tmp_path / "one", quiet)
    with pytest.raises(UserError, match="its SHA-256 is not 000"):
        fetch(set_of(replace(file, archive_sha256="0" * 64)), tmp_path / "two", quiet)
    assert not list((tmp_path / "two").rglob("*.part"))


def test_a_password_is_sent_and_never_shown(server: Server, tmp_path: Path) -> None:
    server.contents = {"a.txt": b"content"}
    address = server.address.replace("//", "//me:se%2Fcret@")
    fetch(set_of(entry("a.txt", b"content", f"{address}/a.txt")), tmp_path, quiet)
    assert server.logins == ["Basic bWU6c2UvY3JldA=="]
    with pytest.raises(UserError) as caught:
        fetch(set_of(entry("b.txt", b"content", f"{address}/b.txt")), tmp_path, quiet)
    assert "cret" not in str(caught.value) and "127.0.0.1" in str(caught.value)
