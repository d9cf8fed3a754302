"""Faults in data: each kind of bad line, and paths that are not regular files."""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from glassformer.core.config import dump_yaml
from reliability.base import TINY, Outcome, Tries, Workspace, fault, is_fresh
from reliability.children import start_fresh

GOOD = "".join(f"yes\ta good book {n}\nno\ta bad film {n}\n" for n in range(20)).encode()
LONG = 100 << 20
SURROGATES = b"".join(
    b'{"0": "%s", "1": "\\ud800 %d"}\n' % (label, n) for n in range(9) for label in (b"yes", b"no")
)

Make = Callable[[Path], None]


def content(data: bytes) -> Make:
    return lambda path: path.write_bytes(data) and None


def after(line: int, bad: bytes) -> bytes:
    lines = GOOD.splitlines(keepends=True)
    return b"".join([*lines[:line], bad, *lines[line:]])


def a_long_line(path: Path) -> None:
    with open(path, "wb") as file:
        file.write(GOOD + b"yes\t")
        for _ in range(LONG >> 20):
            file.write(b"word " * ((1 << 20) // 5))
        file.write(b"\n")


BAD: dict[str, tuple[str, Make, tuple[str, ...]]] = {
    # name: file name, function that creates it, words that the error must contain if the file is rejected
    "bytes that are not UTF-8": ("a.tsv", content(after(3, b"yes\t\xff\xfe bad\n")), ("line 4", "UTF-8")),
    "half a character": ("a.tsv", content(after(5, b"yes\tcaf\xc3\n")), ("line 6", "UTF-8")),
    "UTF-16 with its mark": ("a.tsv", content(GOOD.decode().encode("utf-16")), ("UTF-16", "utf-16")),
    "UTF-16 without a mark": ("a.tsv", content(GOOD.decode().encode("utf-16-le")), ("line 1",)),
    "UTF-32": ("a.tsv", content(GOOD.decode().encode("utf-32")), ("UTF",)),
    "zero bytes inside": ("a.tsv", content(after(2, b"yes\ta \0 b\n")), ("line 3",)),
    "a byte-order mark": ("a.tsv", content(b"\xef\xbb\xbf" + GOOD), ("line",)),
    "old Mac line ends": ("a.tsv", content(GOOD.replace(b"\n", b"\r")), ("carriage returns",)),
    "mixed line ends": ("a.tsv", content(GOOD.replace(b"\n", b"\r\n", 7)), ("line",)),
    "no line end at the end": ("a.tsv", content(GOOD[:-1]), ("line",)),
    "a column missing": ("a.tsv", content(after(4, b"yes\n")), ("line 5", "column")),
    "a column too many": ("a.tsv", content(after(4, b"yes\ta\tb\n")), ("line 5", "column")),
    "an empty line": ("a.tsv", content(after(4, b"\n")), ("line 5",)),
    "an empty text": ("a.tsv", content(after(4, b"yes\t\n")), ("line 5",)),
    "an empty label": ("a.tsv", content(after(4, b"\ta text\n")), ("line 5",)),
    "only white space": ("a.tsv", content(after(4, b"yes\t \xc2\xa0 \n")), ("line 5",)),
    "a quote that never ends": (
        "a.csv",
        content(GOOD.replace(b"\t", b",") + b'yes,"never ends\n'),
        ("line",),
    ),
    "invalid JSON": ("a.jsonl", content(b'{"0": "yes", "1": "a"}\n{"0": \n'), ("line 2",)),
    "JSON that is a list": ("a.jsonl", content(b'{"0": "yes", "1": "a"}\n[1, 2]\n'), ("line 2",)),
    "JSON without the key": ("a.jsonl", content(b'{"0": "yes", "1": "a"}\n{"0": "no"}\n'), ("line 2",)),
    "JSON of another type": ("a.jsonl", content(b'{"0": "yes", "1": {"a": 1}}\n'), ("line 1",)),
    "JSON nested deeply": ("a.jsonl", content(b'{"0": ' + b"[" * 100_000 + b"\n"), ("line 1",)),
    "half a surrogate": ("a.jsonl", content(SURROGATES), ("line",)),
    "one class": ("a.tsv", content(b"".join(b"yes\ttext %d\n" % n for n in range(20))), ("a.tsv",)),
    "the same line again and again": ("a.tsv", content(b"yes\tsame\n" * 50), ("a.tsv",)),
    "no bytes": ("a.tsv", content(b""), ("empty",)),
    "only line ends": ("a.tsv", content(b"\n" * 100), ("a.tsv",)),
    "one line of 100 MB": ("a.tsv", a_long_line, ("a.tsv",)),
    "random bytes": ("a.tsv", lambda path: path.write_bytes(os.urandom(10_000)) and None, ("line",)),
    "a program": ("a.tsv", lambda path: shutil.copy("/bin/sh", path) and None, ("line",)),
    "a gzip that is cut": ("a.tsv.gz", content(gzip.compress(GOOD)[:-40]), ("gzip",)),
    "a gzip name without gzip data": ("a.tsv.gz", content(GOOD), ("gzip",)),
    "a FIFO": ("a.tsv", lambda path: os.mkfifo(path), ("a.tsv",)),
    "a folder": ("a.tsv", lambda path: path.mkdir(), ("a.tsv",)),
    "a device without end": ("a.tsv", lambda path: path.symlink_to("/dev/zero"), ("a.tsv",)),
    "a device without anything": ("a.tsv", lambda path: path.symlink_to("/dev/null"), ("a.tsv",)),
    "a link to itself": ("a.tsv", lambda path: path.symlink_to(path), ("a.tsv",)),
    "missing file": ("a.tsv", lambda path: None, ("a.tsv", "no such file")),
}


@fault(
    "bad corpora",
    "each kind of bad line; UTF-16, FIFO, folder, device, no bytes, one line of 100 MB",
    "an error with file, line or byte, and a hint; or counted and reported; no partial files",
    quick=len(BAD),
    full=len(BAD),
    part=20,
)
def corpora(workspace: Workspace, numbers: range) -> Tries:
    for number, name in list(enumerate(BAD))[numbers.start : numbers.stop]:
        file, make, words = BAD[name]
        folder = workspace.made("corpus")
        make(folder / file)
        columns = {"target": 0, "input": 1} if "jsonl" not in file else {"target": "0", "input": "1"}
        data = {"train": file, "columns": columns}
        tree = {**TINY, "task": {"kind": "classification", "max_length": 16, "data": data}}
        training = {**TINY["training"], "max_steps": 1, "max_epochs": None}
        (folder / "bad.yaml").write_text(dump_yaml({**tree, "training": training}))
        outcome = checked(workspace, folder, file) or trained(workspace, folder, words, number)
        yield f"{name}: {outcome}" if outcome else None
        shutil.rmtree(folder)


def checked(workspace: Workspace, folder: Path, file: str) -> Outcome:
    child = workspace.zygote.start(["data", "check", "bad.yaml"], folder)
    code, printed = child.wait(), child.errors + child.output
    if code not in (0, 1, 2) or "Traceback" in printed:
        return f"data check: exit {code}: {printed[-600:]}"
    if code and file not in printed:
        return f"data check does not name the file: {printed[-300:]}"
    return None


def trained(workspace: Workspace, folder: Path, words: tuple[str, ...], number: int) -> Outcome:
    cache = folder / "cache"
    environment = {"GLASSFORMER_CACHE": str(cache)}
    command = ["train", "bad.yaml", "--run", "run"]
    if is_fresh(number):
        child = start_fresh(command, folder, order={"environment": environment})
    else:
        child = workspace.zygote.start(command, folder, environment=environment)
    code, errors = child.wait(), child.errors
    if code == 0:
        return None if (folder / "run" / "results.json").exists() else "no results"
    if code != 2 or "Traceback" in errors:
        return f"exit {code}: {errors[-800:]}"
    error = errors[errors.rindex("glassformer: ") :]
    missing = [word for word in words if word not in error]
    if missing:
        return f"does not mention {missing}: {error}"
    if "try:" not in error and "did you mean" not in error:
        return f"no hint: {error}"
    left = [str(path) for path in [folder / "run", *cache.rglob("*.building-*")] if path.exists()]
    return f"left behind: {left}" if left else None
