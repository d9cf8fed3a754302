"""Hostile files: none may run code, write outside its folder, or exhaust memory or time."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from glassformer.storage.files import json_bytes
from reliability.base import Outcome, Tries, Workspace, fault
from reliability.loaders import renew_checksums, renew_manifest

MEMORY = 256 << 20
SECONDS = 1.0
DEEP = 100_000


class Steals:
    """Object whose unpickling runs a shell command."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch stolen",)


def with_header(header: object, data: bytes = bytes(64), length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(shape: list[int], start: int, end: int, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


SAFETENSORS: dict[str, bytes] = {
    "a header of 2⁶³ bytes": with_header({}, length=1 << 63),
    "a header longer than the file": with_header({}, length=10_000),
    "a header of the file's whole length": with_header({}, length=66),
    "a header that is not JSON": with_header(b"{{{{"),
    "a header that is not UTF-8": with_header(b"\xff\xfe{}"),
    "a header nested deeply": with_header(b'{"a":' * 20_000 + b"1" + b"}" * 20_000),
    "offsets beyond the end": with_header({"a": tensor([1 << 20], 0, 4 << 20)}),
    "offsets that overlap": with_header({"a": tensor([16], 0, 64), "b": tensor([16], 0, 64)}),
    "offsets that run backwards": with_header({"a": tensor([16], 64, 0)}),
    "a shape of 2⁶² numbers": with_header({"a": tensor([1 << 31, 1 << 31], 0, 64)}),
    "a negative shape": with_header({"a": tensor([-16], 0, 64)}),
    "an unknown type": with_header({"a": tensor([16], 0, 64, "F128")}),
    "a pickle": pickle.dumps(Steals()),
    "nothing": b"",
    "one byte": b"\0",
    "tensors of another model": with_header({"a": tensor([16], 0, 64)}),
}
MANIFESTS: dict[str, bytes] = {
    "paths upwards": json_bytes({"format": 1, "files": {"../../../stolen": {"bytes": 1, "sha256": "x"}}}),
    "an absolute path": json_bytes({"format": 1, "files": {"/etc/passwd": {"bytes": 1, "sha256": "x"}}}),
    "a list": b"[]",
    "nested deeply": b"[" * DEEP,
    "a number of many digits": b'{"format": 1, "files": {"state.json": {"bytes": ' + b"9" * 10_000 + b"}}}",
    "a format of the future": json_bytes({"format": 99, "files": {}}),
    "a manifest of nothing": json_bytes({"format": 1, "files": {}}),
}
YAML: dict[str, bytes] = {
    "a tag that runs a command": b"task: !!python/object/apply:os.system [touch stolen]\n",
    "a tag that makes an object": b"task: !!python/object:os.stat_result {}\n",
    "a tag that names a function": b"task: !!python/name:os.system\n",
    "aliases that multiply": b"".join(
        b"a%d: &a%d [%s]\n" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 9) if n else b"x") for n in range(12)
    ),
    "brackets nested deeply": b"task: " + b"[" * DEEP,
    "maps nested deeply": b"{a: " * DEEP,
    "two megabytes": b"# " + b"x" * (2 << 20),
    "a number of many digits": b"seed: " + b"9" * 100_000,
    "a binary file": bytes(range(256)) * 10,
    "a key that is a map": b"? {a: 1}\n: 2\n",
    "a merge key": b"<<: {task: 1}\n",
}
JSONS: dict[str, bytes] = {
    "nested deeply": b"[" * DEEP,
    "objects nested deeply": b'{"a":' * DEEP,
    "a number of many digits": b'{"a": ' + b"9" * 100_000 + b"}",
    "a list": b"[1, 2]",
}


def npz(name: str, data: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, data)
    return buffer.getvalue()


def npy(shape: str, data: bytes = b"") -> bytes:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def pickled() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, about=np.array([Steals()], dtype=object))
    return buffer.getvalue()


ARCHIVES: dict[str, Callable[[], bytes]] = {
    "an array of pickled objects": pickled,
    "an array of 2⁶⁰ numbers": lambda: npz("about.npy", npy("(1152921504606846976,)")),
    "a shape that is code": lambda: npz("about.npy", npy("__import__('os').system('touch stolen')")),
    "names that lead upwards": lambda: npz("../../stolen", b"mine"),
    "a gigabyte of zeros": lambda: npz("about.npy", npy("(268435456,)", bytes(1 << 30))),
    "not an archive": lambda: b"PK\x03\x04" + bytes(40),
}
RUN_FILES = ("config.json", "task.json", "results.json", "status.json", "environment.json")
Case = tuple[str, Callable[[Path, Workspace], list[str]]]
"""Name, and a function that creates the hostile file in a folder and returns the command that reads it."""


def cases() -> list[Case]:
    found: list[Case] = []
    for name, data in SAFETENSORS.items():
        found.append((f"model.safetensors: {name}", in_checkpoint("model.safetensors", data)))
    for name, data in MANIFESTS.items():
        found.append((f"manifest.json: {name}", in_checkpoint("manifest.json", data)))
    for name, data in YAML.items():
        found.append((f"config: {name}", plain("evil.yaml", data, ["params", "evil.yaml"])))
        found.append((f"config.yaml of a run: {name}", in_run("config.yaml", data)))
    for name, data in JSONS.items():
        for file in RUN_FILES:
            found.append((f"{file}: {name}", in_run(file, data)))
        found.append((f"state.json: {name}", in_checkpoint("state.json", data)))
        command = [
            "params",
            "classification",
            "task.tokenizer={kind: file, path: evil.json}",
            "task.examples=9",
        ]
        found.append((f"tokenizer.json: {name}", plain("evil.json", data, command)))
    for name, make in ARCHIVES.items():
        found.append((f"maps.npz: {name}", archive(make)))
    for name in ("model.safetensors", "state.json", "manifest.json"):
        found.append((f"{name} is a link to a device without end", linked(f"checkpoint/{name}", "/dev/zero")))
        found.append((f"{name} is a link to a file elsewhere", linked(f"checkpoint/{name}", "secret")))
    for name in (
        "SHA256SUMS",
        "config.yaml",
        "config.json",
        "task.json",
        "status.json",
        "results.json",
        "environment.json",
        "events.jsonl",
    ):
        found.append((f"{name} is a device without end", linked(name, "/dev/zero")))
        found.append((f"{name} is a FIFO", linked(name, None)))
        found.append((f"{name} has a terabyte of nothing", huge(name)))
    found.append(("latest leads out of the folder", pointing("../../../../etc")))
    found.append(("data: a gigabyte of zeros in a megabyte of gzip", bomb))
    return found


def plain(name: str, data: bytes, command: list[str]) -> Callable[[Path, Workspace], list[str]]:
    def make(folder: Path, workspace: Workspace) -> list[str]:
        (folder / name).write_bytes(data)
        return command

    return make


def copy_run(folder: Path, workspace: Workspace) -> Path:
    shutil.copytree(workspace.trained, folder / "run")
    return folder / "run"


def in_run(name: str, data: bytes) -> Callable[[Path, Workspace], list[str]]:
    def make(folder: Path, workspace: Workspace) -> list[str]:
        run = copy_run(folder, workspace)
        (run / name).write_bytes(data)
        if name != "config.yaml":  # it is never parsed: a changed one is rejected by its checksum
            renew_checksums(run)
        return reading_command(name)

    return make


def reading_command(name: str) -> list[str]:
    """Return a command that reads this file of a run."""
    if name in ("status.json", "results.json", "events.jsonl"):
        return ["report", "run", "--out", "report.html", "--maps", "0", "--samples", "0"]
    return ["train", "run", "--resume", "--quiet"] if name == "environment.json" else ["evaluate", "run"]


def in_checkpoint(name: str, data: bytes) -> Callable[[Path, Workspace], list[str]]:
    def make(folder: Path, workspace: Workspace) -> list[str]:
        for checkpoint in (copy_run(folder, workspace) / "checkpoints").glob("step-*"):
            (checkpoint / name).write_bytes(data)
            if name != "manifest.json":
                renew_manifest(checkpoint)
        return ["evaluate", "run"] if name != "state.json" else ["train", "run", "--resume", "--quiet"]

    return make


def linked(name: str, to: str | None) -> Callable[[Path, Workspace], list[str]]:
    def make(folder: Path, workspace: Workspace) -> list[str]:
        run = copy_run(folder, workspace)
        (folder / "secret").write_text("mine")
        targets = [run / name]
        if name.startswith("checkpoint/"):
            file = name.partition("/")[2]
            targets = [path / file for path in (run / "checkpoints").glob("step-*")]
        for target in targets:
            target.unlink()
            if to is None:
                os.mkfifo(target)
            else:
                target.symlink_to(folder / to)
        return reading_command(name)

    return make


def huge(name: str) -> Callable[[Path, Workspace], list[str]]:
    def make(folder: Path, workspace: Workspace) -> list[str]:
        path = copy_run(folder, workspace) / name
        if name == "events.jsonl":  # it may be large, and is read line by line
            path.write_bytes(b"x" * (300 << 20))
        else:
            os.truncate(path, 1 << 40)
        return reading_command(name)

    return make


def pointing(name: str) -> Callable[[Path, Workspace], list[str]]:
    def make(folder: Path, workspace: Workspace) -> list[str]:
        run = copy_run(folder, workspace)
        for pointer in ("latest", "best"):
            (run / "checkpoints" / pointer).write_text(f"{name}\n")
        return ["evaluate", "run"]

    return make


def archive(make_data: Callable[[], bytes]) -> Callable[[Path, Workspace], list[str]]:
    def make(folder: Path, workspace: Workspace) -> list[str]:
        (folder / "evil.npz").write_bytes(make_data())
        return ["load-maps"]

    return make


def bomb(folder: Path, workspace: Workspace) -> list[str]:
    with gzip.open(folder / "evil.txt.gz", "wb", compresslevel=1) as file:
        for _ in range(256):
            file.write(bytes(1 << 20))
    return ["data", "check", "evil.txt.gz"]


def load_maps() -> list[Outcome]:
    from reliability.fuzzing import attempt
    from reliability.loaders import load_maps as load

    return [attempt(lambda: load(Path("evil.npz")), "evil.npz")]


MAY_WORK = {"report", "data"}
"""Verbs that may exit with 0: they report what they could not read and continue."""


@fault(
    "hostile files",
    "hand-made safetensors, manifests, YAML, JSON, archives, links, FIFOs, huge files, pickles",
    "rejected with a reason; no code runs, no file is written elsewhere; under 256 MB, under 1 s of CPU",
    quick=len(cases()),
    full=len(cases()),
    part=26,
)
def hostile(workspace: Workspace, numbers: range) -> Tries:
    for name, make in cases()[numbers.start : numbers.stop]:
        folder = workspace.made("hostile")
        outcome = run_on(workspace, folder, make(folder, workspace))
        yield f"{name}: {outcome}" if outcome else None
        shutil.rmtree(folder)


def run_on(workspace: Workspace, folder: Path, words: list[str]) -> Outcome:
    """Run the command in the folder; check its exit, new files, memory and CPU time."""
    before = listing(folder)
    if words == ["load-maps"]:
        child = workspace.zygote.start([], folder, job="reliability.hostile:load_maps")
    else:
        child = workspace.zygote.start(words, folder)
    outcome = check(child.wait(), child.errors, words[0])
    used = child.report
    if words == ["load-maps"] and outcome is None:
        outcome = json.loads((folder / "outcomes").read_text())
    new = {path for path in listing(folder) - before if path.split("/")[0] not in ALLOWED}
    if new:
        outcome = f"new files: {sorted(new)[:5]}"
    if used["memory"] > MEMORY or (used["seconds"] > SECONDS and words[0] != "report"):
        outcome = f"{used['memory'] / 2**20:.0f} MB and {used['seconds']:.2f} s"
    return outcome


ALLOWED = {"out", "err", "used", "outcomes", "report.html", "run"}


def listing(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def check(code: int, errors: str, verb: str) -> Outcome:
    """Check the exit code and the length of the error."""
    if "Traceback" in errors or code not in ((0, 2) if verb in MAY_WORK or verb == "load-maps" else (2,)):
        return f"exit {code}: {errors[-700:]}"
    if code == 2 and not (errors.startswith("glassformer") and 2 <= len(errors.splitlines()) <= 6):
        return f"printed: {errors[:600]}"
    return None
