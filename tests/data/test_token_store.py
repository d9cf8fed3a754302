"""Token store: what is written is read back, re-used, complete or absent, and not held in memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.core.errors import UserError
from glassformer.data import token_store
from glassformer.data.token_rows import RaggedRows, Windows
from glassformer.data.token_store import DamagedStore, TokenStore, cache_folder, open_or_build

ROWS = st.lists(st.lists(st.one_of(st.integers(0, 9), st.integers(0, 2**32 - 1)), max_size=9), max_size=20)
SMALL_ROWS = st.lists(st.lists(st.integers(0, 99), max_size=12), max_size=12)


def arrays(rows: list[list[int]]) -> list[np.ndarray]:
    return [np.array(row, dtype=np.int64) for row in rows]


def lists(rows: Any) -> list[list[int]]:
    return [row.tolist() for row in rows]


class TestStore:
    @settings(max_examples=40, deadline=None)
    @given(ROWS, st.integers(1, 50))
    def test_round_trip(
        self, tmp_path_factory: pytest.TempPathFactory, rows: list[list[int]], shard_tokens: int
    ) -> None:
        folder = tmp_path_factory.mktemp("stores") / "store"
        backwards = [row[::-1] for row in rows]
        pairs = zip(arrays(rows), arrays(backwards), strict=True)
        store = TokenStore.build(folder, pairs, ["a", "b"], {"x": 1}, shard_tokens=shard_tokens)
        assert len(store) == len(store["a"]) == len(rows) and store.columns == ["a", "b"]
        assert lists(store["a"]) == rows and lists(store["b"]) == backwards
        assert store["a"].lengths().tolist() == [len(row) for row in rows]
        assert all(row.dtype == np.int64 for row in store["a"])
        memory = RaggedRows.of(arrays(rows))
        assert lists(memory) == rows and memory.lengths().tolist() == store["a"].lengths().tolist()
        assert memory.checksum() == store["a"].checksum()
        assert lists(TokenStore.open(folder)["b"]) == backwards

    def test_as_a_sequence(self) -> None:
        rows = RaggedRows.of(arrays([[1], [2, 3], []]))
        assert rows[np.int64(1)].tolist() == [2, 3] and rows[-2].tolist() == [2, 3]
        assert lists(rows[1:]) == [[2, 3], []]
        for place in (3, -4):
            with pytest.raises(IndexError):
                rows[place]
        rows[1][0] = 7
        assert rows[1].tolist() == [2, 3]

    def test_16_bits_until_32_are_needed(self, tmp_path: Path) -> None:
        rows = arrays([[1, 2, 65_535], [65_536], [1]])
        store = TokenStore.build(tmp_path / "store", ((row,) for row in rows), ["a"], {}, shard_tokens=1)
        types = [shard["type"] for shard in store.manifest["columns"]["a"]["shards"]]
        assert types == ["<u2", "<u4", "<u2"]
        assert (tmp_path / "store" / "a.0000.tokens").read_bytes() == b"\1\0\2\0\xff\xff"
        assert lists(store["a"]) == lists(rows)

    def test_checksums_distinguish_rows(self) -> None:
        different = [[[1, 2], [3]], [[1], [2, 3]], [[1, 2, 3]], [[1, 2, 3], []], [[1, 2, 4]]]
        assert len({RaggedRows.of(arrays(rows)).checksum() for rows in different}) == len(different)

    @pytest.mark.parametrize("row", [[-1], [2**32], [0.5], [[1, 2]]])
    def test_invalid_tokens_are_rejected_and_leave_no_files(self, tmp_path: Path, row: list[Any]) -> None:
        with pytest.raises(ValueError):
            TokenStore.build(tmp_path / "store", [(np.array([1]),), (np.array(row),)], ["a"], {})
        assert list(tmp_path.iterdir()) == []

    def test_an_existing_folder(self, tmp_path: Path) -> None:
        TokenStore.build(tmp_path / "store", [(np.array([1]),)], ["a"], {})
        with pytest.raises(FileExistsError):
            TokenStore.build(tmp_path / "store", [(np.array([2]),)], ["a"], {})
        assert lists(TokenStore.open(tmp_path / "store")["a"]) == [[1]]
        assert [path.name for path in tmp_path.iterdir()] == ["store"]


def plain_windows(documents: list[list[int]], length: int) -> list[list[int]]:
    """Reference implementation of windows."""
    windows = []
    for tokens in documents:
        for start in range(0, len(tokens) - 1, length):
            windows.append(tokens[start : start + length + 1])
    return windows


class TestWindows:
    @settings(max_examples=200, deadline=None)
    @given(SMALL_ROWS, st.integers(1, 8), st.sampled_from([None, 100]), st.booleans())
    def test_against_a_plain_loop(
        self, rows: list[list[int]], length: int, separator: int | None, within_documents: bool
    ) -> None:
        followed = [row if separator is None else [*row, separator] for row in rows]
        documents = followed if within_documents else [[token for row in followed for token in row]]
        expected = plain_windows(documents, length)
        windows = Windows(
            RaggedRows.of(arrays(rows)), length, separator=separator, within_documents=within_documents
        )
        assert len(windows) == len(expected) and lists(windows) == expected
        assert windows.lengths().tolist() == [len(window) for window in expected]
        predicted = [token for window in windows for token in window[1:].tolist()]
        assert predicted == [token for document in documents for token in document[1:]]

    def test_over_many_shards(self, tmp_path: Path) -> None:
        rows = arrays([[row * 10 + place for place in range(row)] for row in range(12)])
        store = TokenStore.build(tmp_path / "store", ((row,) for row in rows), ["a"], {}, shard_tokens=5)
        assert len(store.manifest["columns"]["a"]["shards"]) > 3
        for options in ({}, {"separator": 7}, {"separator": 7, "within_documents": True}):
            on_disk, in_memory = Windows(store["a"], 4, **options), Windows(RaggedRows.of(rows), 4, **options)
            assert lists(on_disk) == lists(in_memory) and on_disk.checksum() == in_memory.checksum()

    def test_checksum_and_length(self) -> None:
        rows = RaggedRows.of(arrays([[1, 2, 3]]))
        different = [
            Windows(rows, 2),
            Windows(rows, 1),
            Windows(rows, 2, separator=0),
            Windows(rows, 2, within_documents=True),
            Windows(RaggedRows.of(arrays([[1, 2, 4]])), 2),
        ]
        assert len({windows.checksum() for windows in different}) == len(different)
        with pytest.raises(ValueError):
            Windows(rows, 0)


class Corpus:
    """A text file, its characters as tokens, and all messages about the store."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "corpus.txt"
        self.cache = folder / "cache"
        self.messages: list[str] = []
        self.built = 0
        self.write("abc\nd\n")

    def write(self, text: str) -> None:
        self.path.write_text(text, encoding="utf-8")

    def rows(self) -> Iterator[tuple[np.ndarray, ...]]:
        self.built += 1
        for line in self.path.read_text(encoding="utf-8").split():
            yield (np.array([ord(character) for character in line]),)

    def open(self, **fingerprint: Any) -> TokenStore:
        self.messages = []
        return open_or_build(
            self.cache,
            {"tokenizer": "characters", **fingerprint},
            self.rows,
            self.messages.append,
            columns=["text"],
            sources=[self.path],
        )

    def stores(self) -> list[Path]:
        return [path for path in self.cache.iterdir() if path.is_dir() and path.name != "locks"]


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return Corpus(tmp_path)


class TestCache:
    def test_built_once(self, corpus: Corpus) -> None:
        first = corpus.open()
        assert corpus.messages == [f"tokens: 2 rows stored in {first.folder}"]
        again = corpus.open()
        assert corpus.messages == [f"tokens: 2 rows re-used from {first.folder}"]
        assert corpus.built == 1 and lists(again["text"]) == lists(first["text"]) == [[97, 98, 99], [100]]
        corpus.open(max_length=3)
        assert corpus.built == 2 and len(corpus.stores()) == 2

    def test_a_file_elsewhere_with_the_same_bytes(self, corpus: Corpus) -> None:
        corpus.open()
        corpus.path = corpus.path.rename(corpus.path.with_name("other.txt"))
        corpus.open()
        assert corpus.built == 1

    @pytest.mark.parametrize("other_tokenizer", [False, True])
    def test_a_changed_source_file(self, corpus: Corpus, other_tokenizer: bool) -> None:
        old = corpus.open()
        corpus.open(max_length=3)
        corpus.write("abc\ne\n")
        store = corpus.open(**({"vocabulary": 2} if other_tokenizer else {}))
        assert corpus.messages == [
            f"source file changed: {corpus.path}; building its tokens again",
            f"tokens: 2 rows stored in {store.folder}",
        ]
        assert lists(store["text"]) == [[97, 98, 99], [101]] and corpus.stores() == [store.folder]
        assert lists(old["text"]) == [[97, 98, 99], [100]], "who has it open keeps it"

    def test_unchanged_files_are_not_hashed_again(
        self, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(token_store, "SETTLED_SECONDS", -60.0)
        hashed: list[str] = []

        def note(path: Path) -> str:
            hashed.append(path.name)
            return hash_file(path)

        hash_file = token_store.file_sha256
        monkeypatch.setattr(token_store, "file_sha256", note)
        monkeypatch.setattr(token_store, "file_sha256", note)
        store = corpus.open()
        assert hashed == ["corpus.txt", "text.offsets", "text.0000.tokens"]
        corpus.open()
        assert len(hashed) == 3
        os.utime(store.folder / "text.offsets", ns=(1, 1))
        corpus.open()
        assert hashed[3:] == ["text.offsets", "text.0000.tokens"]
        corpus.write("abc\ne\n")
        corpus.open()
        assert hashed[5] == "corpus.txt" and corpus.built == 2

    def test_the_checksum_of_a_new_file_is_not_cached(self, corpus: Corpus) -> None:
        corpus.open()
        state = corpus.path.stat()
        corpus.write("abc\ne\n")
        os.utime(corpus.path, ns=(state.st_atime_ns, state.st_mtime_ns))
        assert lists(corpus.open()["text"])[1] == [101]

    @pytest.mark.parametrize(
        "damage", ["flip", "cut", "remove", "manifest", "remove manifest", "flip offsets"]
    )
    def test_damage_is_found_reported_and_repaired(self, corpus: Corpus, damage: str) -> None:
        folder = corpus.open().folder
        name = "manifest.json" if "manifest" in damage else "text.offsets" if "offsets" in damage else None
        path = folder / (name or "text.0000.tokens")
        data = path.read_bytes()
        if "remove" in damage:
            path.unlink()
        elif damage == "cut":
            path.write_bytes(data[:-2])
        elif damage == "manifest":
            path.write_bytes(data.replace(b'"rows": 2', b'"rows": 3'))
        else:
            path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
        with pytest.raises(DamagedStore):
            TokenStore.open(folder)
        store = corpus.open()
        assert corpus.messages[0].startswith(f"tokens: {folder} is damaged (")
        assert path.name in corpus.messages[0] and corpus.messages[0].endswith("): building again")
        assert lists(store["text"]) == [[97, 98, 99], [100]] and corpus.built == 2
        corpus.open()
        assert corpus.built == 2

    def test_a_change_while_it_is_read(self, corpus: Corpus) -> None:
        rows = corpus.rows

        def change() -> Iterator[tuple[np.ndarray, ...]]:
            yield from rows()
            corpus.write("something else\n")

        corpus.rows = change  # type: ignore[method-assign]
        with pytest.raises(UserError, match=r"corpus\.txt: changed while it was read"):
            corpus.open()
        assert corpus.stores() == []

    def test_failed_rows_leave_no_files(self, corpus: Corpus) -> None:
        def fail() -> Iterator[tuple[np.ndarray, ...]]:
            yield (np.arange(100_000),)
            raise KeyboardInterrupt

        corpus.rows = fail  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            corpus.open()
        assert corpus.stores() == []

    def test_facts(self, tmp_path: Path) -> None:
        facts: dict[str, int] = {}

        def rows() -> Iterator[tuple[np.ndarray, ...]]:
            for number in range(3):
                yield (np.full(40_000, number),)
            facts["cut"] = 3

        def open_store() -> TokenStore:
            return open_or_build(tmp_path, {}, rows, lambda line: None, columns=["a"], facts=facts)

        assert open_store().facts == {"cut": 3}
        facts.clear()
        assert open_store().facts == {"cut": 3}

    def test_a_cache_that_cannot_be_written(self, corpus: Corpus) -> None:
        corpus.cache.write_text("a file", encoding="utf-8")
        with pytest.raises(UserError, match="GLASSFORMER_CACHE=FOLDER"):
            corpus.open()

    def test_a_missing_source(self, corpus: Corpus) -> None:
        corpus.path.unlink()
        with pytest.raises(UserError, match=r"corpus\.txt: cannot be read: No such file"):
            corpus.open()

    def test_a_full_disk(self, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(UserError, match=r"cannot be stored: No space left on device, .* bytes free"):
            corpus.open()
        assert corpus.stores() == []

    def test_where_it_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GLASSFORMER_CACHE", "/a")
        monkeypatch.setenv("XDG_CACHE_HOME", "/b")
        assert cache_folder() == Path("/a")
        monkeypatch.delenv("GLASSFORMER_CACHE")
        assert cache_folder() == Path("/b/glassformer")
        monkeypatch.delenv("XDG_CACHE_HOME")
        assert cache_folder() == Path.home() / ".cache" / "glassformer"


BUILDER = """
import sys, time
from pathlib import Path
import numpy as np
from glassformer.data.token_store import open_or_build

folder, seconds = Path(sys.argv[1]), float(sys.argv[2])

def rows():
    print("building", flush=True)
    for number in range(40):
        yield (np.full(10_000, number),)
        time.sleep(seconds / 40)

store = open_or_build(folder, {}, rows, lambda line: print(line, flush=True), columns=["a"])
print("sum", sum(int(row.sum()) for row in store["a"]))
"""
TOTAL = 10_000 * sum(range(40))

Start = Callable[[Path, float], "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    running = []

    def start_process(folder: Path, seconds: float) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", BUILDER, str(folder), str(seconds)]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return running[-1]

    yield start_process
    for process in running:
        process.kill()
        process.communicate()


def test_killed_while_building(tmp_path: Path, start: Start) -> None:
    process = start(tmp_path, 10.0)
    deadline = time.monotonic() + 20
    while not any(path.stat().st_size > 100_000 for path in tmp_path.glob("*/a.0000.tokens")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (left,) = (path for path in tmp_path.iterdir() if path.name not in ("locks", "sources.json"))
    assert ".building-" in left.name
    messages, _ = start(tmp_path, 0.0).communicate(timeout=20)
    assert messages.startswith("building\ntokens: 40 rows stored in") and f"sum {TOTAL}" in messages
    assert not left.exists()


def test_at_the_same_time(tmp_path: Path, start: Start) -> None:
    processes = [start(tmp_path, 1.5) for _ in range(3)]
    messages = [process.communicate(timeout=30)[0] for process in processes]
    assert sum("building\n" in text for text in messages) == 1
    assert all(f"sum {TOTAL}" in text for text in messages)
    assert sum("re-used" in text for text in messages) == 2


def test_at_the_same_time_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both build; the second opens the store that the first completed."""

    def fail(*arguments: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(token_store.fcntl, "flock", fail)
    messages: list[str] = []

    def rows(inner: bool) -> Iterator[tuple[np.ndarray, ...]]:
        yield (np.array([1]),)
        if not inner:
            store = TokenStore.build(tmp_path / key, [(np.array([1]),)], ["a"], {})
            assert lists(store["a"]) == [[1]]

    other = tmp_path / "other"
    key = open_or_build(other, {}, lambda: rows(True), messages.append, columns=["a"]).folder.name
    # This process plays the other one, so its temporary name must differ.
    monkeypatch.setattr(token_store.os, "getpid", iter(range(1, 100)).__next__)
    store = open_or_build(tmp_path, {}, lambda: rows(False), messages.append, columns=["a"])
    assert lists(store["a"]) == [[1]] and store.folder == tmp_path / key
    (store.folder / "a.offsets").write_bytes(b"")
    assert lists(open_or_build(tmp_path, {}, lambda: rows(True), messages.append, columns=["a"])["a"]) == [
        [1]
    ]
    assert any("damaged" in line for line in messages)


MEMORY = """
import sys
from pathlib import Path
import numpy as np
from glassformer.data.formats import AlignedLines
from glassformer.data.text_files import TextFile
from glassformer.data.token_store import open_or_build
from glassformer.data.token_rows import Windows

path, cache = Path(sys.argv[1]), Path(sys.argv[2])
stream = AlignedLines([TextFile(path, "here")], ["text"], "here")

def rows():
    for record in stream:
        yield (np.frombuffer(record.values["text"].encode(), dtype=np.uint8),)

for _ in range(2):
    store = open_or_build(cache, {}, rows, print, columns=["text"], sources=stream.files)
windows = Windows(store["text"], 256, separator=300)
random = np.random.default_rng(0)
for index in random.integers(len(windows), size=5_000):
    assert len(windows[int(index)]) > 1
assert store["text"].token_count + len(store) == path.stat().st_size
assert "torch" not in sys.modules
(peak,) = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(int(peak) / 1024)
"""


def peak_megabytes(folder: Path, megabytes: int) -> float:
    words = np.random.default_rng(0).integers(97, 123, size=(20_000, 100), dtype=np.uint8)
    words[:, 7::8], words[:, -1] = 32, 10
    path = folder / f"{megabytes}.txt"
    with open(path, "wb") as file:
        for _ in range(megabytes // 2):
            file.write(words.tobytes())
    command = [sys.executable, "-c", MEMORY, str(path), str(folder / f"cache {megabytes}")]
    messages = subprocess.run(command, check=True, capture_output=True, text=True, timeout=110).stdout
    assert "re-used" in messages
    return float(messages.split()[-1])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize(("megabytes", "allowed"), [(10, 20), pytest.param(200, 80, marks=pytest.mark.long)])
def test_memory_stays_flat(tmp_path: Path, megabytes: int, allowed: int) -> None:
    """The corpus has one byte per token, so its tokens take twice its size on disk."""
    assert peak_megabytes(tmp_path, megabytes) - peak_megabytes(tmp_path, 2) < allowed
