"""Random bytes and random mutations, into every loader and every argument of the command line."""

from __future__ import annotations

import argparse
import contextlib
import gzip
import importlib
import io
import json
import os
import resource
import shutil
import signal
import struct
import traceback
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from glassformer.cli import VERBS, main
from glassformer.errors import Problem, UserError
from programme.base import Outcome, Place, Tries, fault

SECONDS = 20.0
"""Of processor time that any one of them may take: none should take one."""

HANGS = 60
Tell = Callable[[Outcome], None]


class Hangs(BaseException):
    """Nothing of ours catches this one."""


@contextlib.contextmanager
def no_hang() -> Iterator[None]:
    def stop(number: int, frame: object) -> None:
        raise Hangs

    signal.signal(signal.SIGVTALRM, stop)
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    signal.setitimer(signal.ITIMER_REAL, SECONDS * HANGS / 10)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def attempt(action: Callable[[], object], what: object) -> Outcome:
    """None if it works, or says in our words why not."""
    try:
        with no_hang():
            action()
    except (UserError, Problem):
        return None
    except Hangs:
        return f"{what}: hangs at {traceback.format_exc(limit=-3)}"
    except Exception:
        return f"{what}: {traceback.format_exc(limit=-4)}"
    return None


def of_the_command(arguments: Sequence[str]) -> Outcome:
    """None if it ends with 0 or 2 and shows no traceback; `--json` must be one document of UTF-8."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))

    def run() -> None:
        code = main(list(arguments))
        printed = out.buffer.getvalue().decode()  # type: ignore[attr-defined]
        said = err.buffer.getvalue().decode(errors="replace")  # type: ignore[attr-defined]
        # `doctor` may well find something in a model that was made by chance.
        if code not in (0, 2) and (code != 1 or arguments[0] != "doctor"):
            raise RuntimeError(f"exit {code}: {said[-300:]}")
        if "Traceback (most recent call last)" in said + printed:
            raise RuntimeError(said[-600:])
        if code == 2 and not said.strip() and arguments:
            raise RuntimeError("exit 2 without a word")
        if "--json" in arguments and code == 0 and printed and "-h" not in arguments:
            json.loads(printed)

    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        return attempt(run, " ".join(map(repr, arguments)))


def examples(
    strategy: st.SearchStrategy[Any], check: Callable[[Any], Outcome], count: int, number: int
) -> Iterator[Outcome]:
    """As many outcomes; nothing is shrunk, since one failure must not end the rest."""
    outcomes: list[Outcome] = []

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[phase for phase in settings.default.phases if phase.name == "generate"],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def test(example: Any) -> None:
        outcomes.append(check(example))

    test()
    yield from outcomes


# ---------------------------------------------------------------- arguments

NO_UTF8 = "\udcff\udcfe"
NUMBERS = ["0", "-1", "1", "3", "1e400", "nan", "0.5", "99999999999999999999", "0x10", "١", "1_0", " 2", "²"]
ODD = [
    "",
    " ",
    "-",
    "=",
    "a=b",
    "=1",
    "a.b=",
    ".=1",
    "{",
    "[1,",
    "~",
    "null",
    "true",
    "\t",
    "\n",
    "é",
    "日本",
    "🙂",
]
HARD = [
    NO_UTF8,
    f"x{NO_UTF8}.yaml",
    "%s%n",
    "../..",
    "/",
    "/dev/null",
    "a" * 300,
    "*",
    "$(id)",
    "\x1b[31m",
    "\ud800",
]
PATHS = ["tiny.yaml", "run", "none.yaml", "none", "noise.bin", "folder", "texts.tsv", "fifo"]
OPTIONS = [
    "model.num_layers=0",
    "model.num_layers=x",
    "model.num_heads=3",
    "model.position.kind=rotary",
    "model.position={kind: nonsense}",
    "training.max_steps=1",
    "training.batch_size=-4",
    "training.optimizer.learning_rate=1e400",
    "training.optimizer={}",
    "task.length=2",
    "task.kind=nothing",
    "task=1",
    "seed=1.5",
    "seed=18446744073709551616",
    "task.data.train=texts.tsv",
    "evaluation.decoding=beam",
    "a.b.c=1",
    "model.norm=!!python/name:os.system",
]
NAMES = ["best", "latest", "1", "test", "train", "validation", "beam", "kind=beam,size=2", "layer-1"]
# Without a bad value these would serve, train or fetch for a long time.
SPOILED = {
    "studio": ["--port", "x"],
    "sweep": ["PATH"],
    "prove-resume": ["--kills", "x"],
    "bench": ["nothing"],
}
NO_RUN = {"runs", "sweep", "prove-resume", "studio", "bench", "reproduce"}
NOT_TOLD = {"--help", "-h", "--measure", "--plugin"}


def flags(verb: str) -> list[str]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    importlib.import_module(f"glassformer.cli.{verb.replace('-', '_')}").configure(parser)
    return sorted(set(parser._option_string_actions) - NOT_TOLD)


@st.composite
def command_lines(draw: st.DrawFn, known: dict[str, list[str]]) -> list[str]:
    verb = draw(st.sampled_from(sorted(known)) | st.sampled_from(ODD + HARD))
    values = st.sampled_from(NUMBERS + ODD + HARD + NAMES) | st.text(max_size=12)
    if verb not in NO_RUN:
        values |= st.sampled_from(PATHS) | st.sampled_from(["run", "tiny.yaml"])
    values |= st.sampled_from(OPTIONS)
    words = draw(st.lists(values | st.sampled_from(known.get(verb) or ["--json"]), max_size=7))
    return [verb, *words, *SPOILED.get(verb, [])]


def prepare(trained: str, texts: str) -> Callable[[], None]:
    """A folder with something of everything; what it returns puts it back as it was."""
    from glassformer.config import dump_yaml
    from programme.base import TINY

    text = dump_yaml({**TINY, "training": {**TINY["training"], "max_epochs": None, "max_steps": 1}})
    Path("folder").mkdir()
    os.mkfifo("fifo")
    Path("noise.bin").write_bytes(os.urandom(3000))

    def restore() -> None:
        Path("tiny.yaml").write_text(text)
        shutil.copy(texts, "texts.tsv")
        shutil.rmtree("run", ignore_errors=True)
        shutil.copytree(trained, "run")

    restore()
    return restore


def fuzz_arguments(trained: str, texts: str, count: int, number: int) -> Iterator[Outcome]:
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
    restore = prepare(trained, texts)
    known = {verb: flags(verb) for verb in VERBS}
    before = set(os.listdir("."))

    def check(arguments: list[str]) -> Outcome:
        outcome = of_the_command([argument.replace("\0", "") for argument in arguments])
        new = set(os.listdir(".")) - before
        if new or os.stat("run").st_mtime_ns != stamp[0] or len(arguments) > 3:
            for name in new - {"runs"}:
                with contextlib.suppress(OSError):
                    shutil.rmtree(name) if os.path.isdir(name) else os.unlink(name)
            restore()
            stamp[0] = os.stat("run").st_mtime_ns
        return outcome

    stamp = [os.stat("run").st_mtime_ns]
    yield from examples(command_lines(known), check, count, number)


@fault(
    "fuzzed arguments",
    "random arguments to every verb of the command line",
    "exit 0 or 2, a few words, never a traceback, never a hang; `--json` is one document",
    quick=500,
    full=25_000,
    part=250,
)
def arguments(place: Place, numbers: range) -> Tries:
    _ = place.text_file
    given = (str(place.trained), str(place.folder / "texts.tsv"), len(numbers), place.dice.randrange(1 << 30))
    yield from place.do("programme.fuzzing:fuzz_arguments", *given, seconds=120 + 3 * len(numbers))


# ---------------------------------------------------------------- loaders

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
    for how, place, piece in edits:
        at = place % (len(data) + 1)
        if how == "flip" and data:
            at %= len(data)
            data = data[:at] + bytes([data[at] ^ (1 << place % 8)]) + data[at + 1 :]
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
    from glassformer.experiment import resolve

    resolve(str(path))


def load_data(path: Path) -> None:
    from glassformer.experiment import resolve

    outcome = of_the_command(["data", "check", str(path), "--json"])
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
    from glassformer.registry import load_plugin

    load_plugin(path)


NOT_OF_THE_MODEL = {"status.json", "results.json", "events.jsonl"}
"""Who loads or trains the model does not read them."""


def load_run(path: Path) -> None:
    """A file of a run's folder, whose checksums its maker has made right again."""
    from glassformer.experiment import Experiment
    from glassformer.reports.reading import read_run
    from glassformer.runs import RunFolder
    from glassformer.trained import Run
    from glassformer.training.trainer import Surroundings

    run = path.parent if path.parent.name == "run" else path.parents[2]
    read_run(str(run))
    RunFolder(run).status()
    if path.name in NOT_OF_THE_MODEL:
        return
    loaded = Run(run)
    loaded.predict("a good book")
    newest = loaded.folder.checkpoints().load_newest()
    if newest is not None:
        Experiment(loaded.config, loaded.task).build_trainer(Surroundings()).restore(newest[1])


LOADERS: dict[str, Callable[[Path], None]] = {
    "config.yaml": load_config,
    "tokenizer.json": load_tokenizer,
    "pieces.model": load_tokenizer,
    "maps.npz": load_maps,
    **dict.fromkeys(SEEDS, load_data),
}
IN_A_RUN = [
    "config.yaml",
    "task.json",
    "tokenizer.json",
    "status.json",
    "results.json",
    "environment.json",
    "events.jsonl",
]
IN_A_CHECKPOINT = ["manifest.json", "state.json", "model.safetensors", "random.safetensors"]


def sentencepiece() -> bytes:
    """A model of a few pieces, as the protocol of its format has them."""

    def field(number: int, data: bytes) -> bytes:
        return bytes([number << 3 | 2, len(data)]) + data

    def piece(text: str, kind: int) -> bytes:
        return field(1, field(1, text.encode()) + b"\x15" + struct.pack("<f", -1.0) + bytes([3 << 3, kind]))

    pieces = [piece("<unk>", 2), *(piece(text, 1) for text in ("▁", "▁a", "o", "g", "d", "b", "k"))]
    return b"".join(pieces) + field(2, bytes([3 << 3, 1])) + field(3, field(1, b"identity"))


def unseal(run: Path) -> None:
    """As a run of the first versions, or one that somebody made with care: no checksum is in the way."""
    config = run / "config.yaml"
    config.write_bytes(config.read_bytes().split(b"\n", 1)[1])
    for file in run.glob("*.json"):
        tree = json.loads(file.read_bytes())
        if isinstance(tree.get("sha256"), str):
            del tree["sha256"]
        if file.name == "task.json":
            tree["tokenizer"] = None
        file.write_text(json.dumps(tree, indent=1))


def seal_checkpoint(folder: Path) -> None:
    from glassformer.seals import seal_json
    from glassformer.training.files import file_sha256

    files = {
        file.name: {"bytes": file.stat().st_size, "sha256": file_sha256(file)}
        for file in folder.iterdir()
        if file.name != "manifest.json"
    }
    (folder / "manifest.json").write_bytes(seal_json({"format": 2, "files": files}))


def fuzz_loaders(trained: str, count: int, number: int) -> Iterator[Outcome]:
    from glassformer.trained import Run

    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    run = Path("run").absolute()
    shutil.copytree(trained, run)
    unseal(run)
    seeds = {name: (Path(name), LOADERS[name], data) for name, data in SEEDS.items()}
    seeds["config.yaml"] = (Path("config.yaml"), load_config, (run / "config.yaml").read_bytes())
    seeds["tokenizer.json"] = (Path("tokenizer.json"), load_tokenizer, (run / "tokenizer.json").read_bytes())
    seeds["pieces.model"] = (Path("pieces.model"), load_tokenizer, sentencepiece())
    seeds["mine.py"] = (Path("mine.py"), load_plugin, b"x = 1\n")
    Run(run).attention("a good book").save("maps.npz")
    seeds["maps.npz"] = (Path("maps.npz"), load_maps, Path("maps.npz").read_bytes())
    newest = max((run / "checkpoints").glob("step-*"))
    for name in IN_A_RUN:
        seeds[f"run/{name}"] = (run / name, load_run, (run / name).read_bytes())
    for name in IN_A_CHECKPOINT:
        seeds[f"checkpoint/{name}"] = (newest / name, load_run, (newest / name).read_bytes())

    for path, load, data in seeds.values():
        path.write_bytes(data)
        load(path)  # what is mutated is good before

    def check(example: tuple[str, list[tuple[str, int, bytes]], bytes | None]) -> Outcome:
        name, edits, noise = example
        path, load, data = seeds[name]
        given = mutate(data, edits) if noise is None else noise
        path.write_bytes(given)
        if name.startswith("checkpoint/") and path.name != "manifest.json":
            seal_checkpoint(path.parent)
        outcome = attempt(lambda: load(path), f"{name} {given[:200]!r} ({zlib.crc32(given):08x})")
        if outcome:
            Path(f"failed-{path.name}").write_bytes(given)
        path.write_bytes(data)
        if name.startswith("checkpoint/"):
            seal_checkpoint(path.parent)
        return outcome

    noise = st.none() | st.none() | st.none() | st.binary(max_size=200)
    yield from examples(st.tuples(st.sampled_from(sorted(seeds)), EDITS, noise), check, count, number)


@fault(
    "fuzzed files",
    "random bytes and mutations in configs, data, tokenizers, maps, plug-ins and every file of a run",
    "read, or refused in a few words; never a traceback, never a hang",
    quick=1500,
    full=75_000,
    part=750,
)
def files(place: Place, numbers: range) -> Tries:
    given = (str(place.trained_on_text), len(numbers), place.dice.randrange(1 << 30))
    yield from place.do("programme.fuzzing:fuzz_loaders", *given, seconds=120 + 2 * len(numbers))
