"""Fuzzing of files: random bytes and mutations of a good file of each kind that the package reads."""

from __future__ import annotations

import contextlib
import gzip
import json
import resource
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hypothesis import strategies as st

from reliability.base import Outcome, Tries, Workspace, fault
from reliability.fuzzing import attempt, examples, run_command, warm_up  # noqa: F401  for the zygote

ROWS = [
    (label, f"{word} {number}") for number in range(6) for label, word in (("yes", "good ü"), ("no", "bad ✓"))
]
TABLE = "label\ttext\n" + "".join(f"{label}\t{text}\n" for label, text in ROWS)
LINES = [{"text": text, "label": label} for label, text in ROWS]
SEEDS: dict[str, bytes] = {
    "a.tsv": TABLE.encode(),
    "a.csv": TABLE.replace("\t", ",").encode(),
    "a.jsonl": "".join(json.dumps(line) + "\n" for line in LINES).encode(),
    "a.json": json.dumps({key: [line[key] for line in LINES] for key in LINES[0]}).encode(),
    "b.csv": TABLE.replace("\t", ";").encode(),
    "b.json": json.dumps(LINES).encode(),
    "a.txt": "".join(f"{text}\n" for _, text in ROWS).encode(),
    "a.tsv.gz": gzip.compress(TABLE.encode()),
    "a.txt.gz": gzip.compress("".join(f"{text}\n" for _, text in ROWS).encode()),
}
INTERESTING = [
    b"",
    b"\0",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\r",
    b"\n",
    b'"',
    b"\\ud800",
    b"{",
    b"[" * 2000,
    b"\t\t\t",
    b"1e999",
    b"[" * 2000,
    b"9" * 5000,
    b"null",
    b"-1",
    b"[]",
    b"\xe2\x80\xa8",
    b"NaN",
]
EDITS = st.lists(
    st.tuples(
        st.sampled_from(["flip", "insert", "delete", "repeat", "cut"]),
        st.integers(0, 1 << 16),
        st.sampled_from(INTERESTING) | st.binary(max_size=8),
    ),
    min_size=1,
    max_size=6,
)


def mutate(data: bytes, edits: Sequence[tuple[str, int, bytes]]) -> bytes:
    """Apply random edits: flip a bit, insert, delete or repeat bytes, cut the end."""
    for how, index, piece in edits:
        at = index % (len(data) + 1)
        if how == "flip" and data:
            at %= len(data)
            data = data[:at] + bytes([data[at] ^ (1 << index % 8)]) + data[at + 1 :]
        elif how == "insert":
            data = data[:at] + piece + data[at:]
        elif how == "delete":
            data = data[:at] + data[at + 1 + len(piece) :]
        elif how == "repeat":
            data = data[:at] + data[at : at + 40] * 3 + data[at:]
        elif how == "cut":
            data = data[:at]
    return data


def load_config(path: Path) -> None:
    from glassformer.runs.experiment import resolve

    resolve(str(path))


def load_data(path: Path) -> None:
    from glassformer.runs.experiment import resolve

    outcome = run_command(["data", "check", str(path), "--json"])
    if outcome:
        raise RuntimeError(outcome)
    options: dict[str, object] = {"task.data.train": str(path), "task.max_length": 8}
    if ".txt" in path.name:
        resolve("language-model", {**options, "task.tokenizer": {"kind": "characters"}}).task.build(0)
    else:
        columns = {"input": "text", "target": "label"}
        options |= {"task.data.columns": columns, "task.tokenizer": {"kind": "words"}}
        resolve("classification", options).task.build(0)


def load_tokenizer(path: Path) -> None:
    from glassformer.data.tokenizers import TokenizerFileConfig

    tokenizer = TokenizerFileConfig(path=str(path)).train(["a good book"])
    tokenizer.encode("a good book ü ✓ \0")


def load_maps(path: Path) -> None:
    from glassformer.inspection.maps import AttentionMaps

    AttentionMaps.load(path)


def load_plugin(path: Path) -> None:
    from glassformer.core.registry import load_plugin

    load_plugin(path)


NOT_OF_THE_MODEL = {"status.json", "results.json", "events.jsonl"}
"""Files that loading and training the model do not read."""


def load_run(path: Path) -> None:
    """Read everything of the run that contains this file, whose checksums are true again."""
    from glassformer.reports.summary import read_run
    from glassformer.runs.experiment import Experiment
    from glassformer.runs.folder import RunFolder
    from glassformer.runs.run import Run
    from glassformer.training.trainer import TrainingContext

    run = path.parent if path.parent.name == "run" else path.parents[2]
    read_run(str(run))
    RunFolder(run).status()
    if path.name in NOT_OF_THE_MODEL:
        return
    loaded = Run(run)
    loaded.predict("a good book")
    newest = loaded.folder.checkpoints().load_newest()
    if newest is not None:
        Experiment(loaded.config, loaded.task).build_trainer(TrainingContext()).restore(newest[1])


IN_A_RUN = [
    "SHA256SUMS",
    "config.yaml",
    "config.json",
    "task.json",
    "tokenizer.json",
    "status.json",
    "results.json",
    "environment.json",
    "events.jsonl",
]
IN_A_CHECKPOINT = ["manifest.json", "state.json", "model.safetensors", "random.safetensors"]


def sentencepiece() -> bytes:
    """Encode a SentencePiece model of a few pieces, in its protobuf format."""

    def field(number: int, data: bytes) -> bytes:
        return bytes([number << 3 | 2, len(data)]) + data

    def piece(text: str, kind: int) -> bytes:
        return field(1, field(1, text.encode()) + b"\x15" + struct.pack("<f", -1.0) + bytes([3 << 3, kind]))

    pieces = [piece("<unk>", 2), *(piece(text, 1) for text in ("▁", "▁a", "o", "g", "d", "b", "k"))]
    return b"".join(pieces) + field(2, bytes([3 << 3, 1])) + field(3, field(1, b"identity"))


def renew_checksums(run: Path) -> None:
    """Make the checksums of a run's files true again, so that a changed file is parsed, not just rejected."""
    from glassformer.runs.folder import RunFolder
    from glassformer.storage.files import SUMS, file_sha256

    names = sorted({line.split()[1] for line in (run / SUMS).read_text().splitlines()})
    (run / SUMS).write_text("".join(f"{file_sha256(run / name)}  {name}\n" for name in names))
    with contextlib.suppress(ValueError, AttributeError, RecursionError):  # damaged beyond its checksum
        RunFolder(run).write_status(json.loads((run / "status.json").read_bytes()))


def renew_manifest(folder: Path) -> None:
    """Write a true manifest for a checkpoint whose files were changed."""
    from glassformer.storage.files import file_sha256, json_bytes

    files = {
        file.name: {"bytes": file.stat().st_size, "sha256": file_sha256(file)}
        for file in folder.iterdir()
        if file.name != "manifest.json"
    }
    (folder / "manifest.json").write_bytes(json_bytes({"format": 1, "files": files}))


class Specimens:
    """Good file of every kind in the working directory, each with the function that reads it."""

    def __init__(self, trained: str) -> None:
        from glassformer.runs.run import Run

        run = Path("run").absolute()
        shutil.copytree(trained, run)
        Run(run).attention("a good book").save("maps.npz")
        self.all: dict[str, tuple[Path, Callable[[Path], None], bytes]] = {
            "config.yaml": (Path("config.yaml"), load_config, (run / "config.yaml").read_bytes()),
            "tokenizer.json": (Path("tokenizer.json"), load_tokenizer, (run / "tokenizer.json").read_bytes()),
            "pieces.model": (Path("pieces.model"), load_tokenizer, sentencepiece()),
            "mine.py": (Path("mine.py"), load_plugin, b"x = 1\n"),
            "maps.npz": (Path("maps.npz"), load_maps, Path("maps.npz").read_bytes()),
            **{name: (Path(name), load_data, data) for name, data in SEEDS.items()},
        }
        newest = max((run / "checkpoints").glob("step-*"))
        for name in IN_A_RUN:
            self.all[f"run/{name}"] = (run / name, load_run, (run / name).read_bytes())
        for name in IN_A_CHECKPOINT:
            self.all[f"checkpoint/{name}"] = (newest / name, load_run, (newest / name).read_bytes())
        for path, load, data in self.all.values():
            path.write_bytes(data)
            load(path)  # the unchanged file must be readable

    def check(self, name: str, given: bytes) -> Outcome:
        """Replace a file by other bytes, read it, and restore it; checksums are renewed each time."""
        path, load, data = self.all[name]
        path.write_bytes(given)
        if path.name not in ("manifest.json", "SHA256SUMS"):
            self._renew(name)
        outcome = attempt(lambda: load(path), f"{name} {given[:200]!r} ({zlib.crc32(given):08x})")
        path.write_bytes(data)
        self._renew(name)
        return outcome

    def _renew(self, name: str) -> None:
        path = self.all[name][0]
        if name.startswith("run/"):
            renew_checksums(path.parent)
        elif name.startswith("checkpoint/"):
            renew_manifest(path.parent)


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))


def fuzz_loaders(trained: str, count: int, number: int) -> Iterator[Outcome]:
    limit_memory()
    specimens = Specimens(trained)

    def check(example: tuple[str, list[tuple[str, int, bytes]], bytes | None]) -> Outcome:
        name, edits, noise = example
        return specimens.check(name, mutate(specimens.all[name][2], edits) if noise is None else noise)

    noise = st.none() | st.none() | st.none() | st.binary(max_size=200)
    yield from examples(st.tuples(st.sampled_from(sorted(specimens.all)), EDITS, noise), check, count, number)


@fault(
    "fuzzed files",
    "random bytes and mutations in configs, data, tokenizers, maps, plug-ins and every file of a run",
    "read, or rejected with a short error; no traceback, no hang",
    quick=1500,
    full=75_000,
    part=1500,
)
def files(workspace: Workspace, numbers: range) -> Tries:
    given = (str(workspace.trained_on_text), len(numbers), workspace.rng.randrange(1 << 30))
    yield from workspace.do("reliability.loaders:fuzz_loaders", *given, seconds=600 + 10 * len(numbers))
