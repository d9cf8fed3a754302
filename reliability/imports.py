"""Hostile models to import: hand-made folders and files, and mutations of good ones."""

from __future__ import annotations

import copy
import json
import os
import pickle
import resource
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import glassformer.runs.experiment  # noqa: F401  imported before the fork
from glassformer.core.errors import UserError
from glassformer.interchange.imports import import_model
from reliability.base import Outcome, Tries, Workspace, fault
from reliability.fuzzing import attempt, examples
from reliability.fuzzing import warm_up as warm_up_fuzzing
from reliability.hostile import DEEP, SAFETENSORS, Steals, listing
from reliability.loaders import EDITS, mutate
from reliability.models import (
    ARRAY,
    FLOAT32,
    INT32,
    KINDS,
    TEXT,
    UINT8,
    UINT32,
    UINT64,
    edit_json,
    gguf_parts,
    llama2c_parts,
    model_path,
    pack_gguf,
    pack_piece,
    replace_specimen,
    write_huggingface,
    write_specimens,
)

MEMORY = 256 << 20
SECONDS = 2.0
ADDRESS_SPACE = 2 << 30
"""Memory in bytes that fuzzed imports may use beyond what the process has."""
Make = Callable[[Path], None]
"""Function that writes a hostile model into a new folder, from which it is imported."""


def folder_of(change: Make, kind: str = "llama") -> Make:
    """Return a case: a good Hugging Face folder that `change` damages."""

    def make(folder: Path) -> None:
        write_huggingface(folder, kind)
        change(folder)

    return make


def config(**changes: Any) -> Make:
    return folder_of(lambda folder: edit_json(folder / "config.json", **changes))


def file(name: str, data: bytes) -> Make:
    return folder_of(lambda folder: (folder / name).write_bytes(data) and None)


def tensors(change: Callable[[dict[str, np.ndarray]], Any], kind: str = "llama") -> Make:
    def damage(folder: Path) -> None:
        path = folder / "model.safetensors"
        found = load_file(path)
        change(found)
        save_file(found, path)

    return folder_of(damage, kind)


def index(*names: object) -> Make:
    """Return a case with an index of shards that has these names."""

    def damage(folder: Path) -> None:
        mapping = {f"tensor {number}": name for number, name in enumerate(names)}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": mapping}))

    return folder_of(damage)


def link(name: str, target: str | None) -> Make:
    """Return a case in which a file is a link, or a FIFO if there is no target."""

    def damage(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        if target is None:
            os.mkfifo(folder / name)
        else:
            shutil.copytree(folder, folder.parent / "elsewhere")
            (folder / name).symlink_to(target)

    return folder_of(damage)


def sparse(name: str) -> Make:
    return folder_of(lambda folder: os.truncate(folder / name, 1 << 40))


def tokenizer(change: Callable[[dict[str, Any]], Any]) -> Make:
    def damage(folder: Path) -> None:
        path = folder / "tokenizer.json"
        tree = json.loads(path.read_text(encoding="utf-8"))
        change(tree)
        path.write_text(json.dumps(tree), encoding="utf-8")

    return folder_of(damage)


def only_pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Steals()))


def with_code(folder: Path) -> None:
    edit_json(folder / "config.json", auto_map={"AutoModelForCausalLM": "modeling_evil.Evil"})
    for name in ("modeling_evil.py", "__init__.py", "setup.py"):
        (folder / name).write_text("open('stolen', 'w').close()")


def gguf(
    change: Callable[[dict[str, Any], list[Any]], Any] = lambda fields, tensors: None, **options: Any
) -> Make:
    """Return a case: a good GGUF file whose fields and tensors `change` damages."""

    def make(folder: Path) -> None:
        fields, entries, data = gguf_parts()
        change(fields, entries)
        folder.mkdir()
        (folder / "model.gguf").write_bytes(pack_gguf(fields, entries, data, **options))

    return make


def gguf_field(name: str, kind: int, value: Any) -> Make:
    return gguf(lambda fields, tensors: fields.update({name: (kind, value)}))


def gguf_tensor(*entry: Any) -> Make:
    """Return a case in which the first tensor has this name, axes, type and offset."""
    return gguf(lambda fields, tensors: tensors.__setitem__(0, entry))


def gguf_bytes(data: bytes) -> Make:
    def make(folder: Path) -> None:
        folder.mkdir()
        (folder / "model.gguf").write_bytes(data)

    return make


def item_bomb(folder: Path) -> None:
    """Write many fields with many items, which need much more memory than the file."""
    fields, entries, data = gguf_parts()
    many = struct.pack("<IQ", UINT8, 1 << 20) + bytes(1 << 20)
    fields |= {f"bomb.{number}": (ARRAY, many) for number in range(48)}
    texts = struct.pack("<IQ", TEXT, 1 << 20) + bytes(8 << 20)
    fields |= {f"texts.{number}": (ARRAY, texts) for number in range(6)}
    folder.mkdir()
    (folder / "model.gguf").write_bytes(pack_gguf(fields, entries, data))


def llama2c(
    header: dict[int, int] | None = None, pieces: bytes | None = None, data: bytes | None = None
) -> Make:
    """Return a case: a good llama2.c file with other numbers in its header, other weights or other pieces."""

    def make(folder: Path) -> None:
        numbers, weights, tokenizer = llama2c_parts()
        for place, number in (header or {}).items():
            numbers[place] = number
        folder.mkdir()
        (folder / "model.bin").write_bytes(struct.pack("<7i", *numbers) + (weights if data is None else data))
        (folder / "tokenizer.bin").write_bytes(tokenizer if pieces is None else pieces)

    return make


def without_pieces(folder: Path) -> None:
    llama2c()(folder)
    (folder / "tokenizer.bin").unlink()


def pickled_llama2c(folder: Path) -> None:
    llama2c()(folder)
    (folder / "model.bin").write_bytes(pickle.dumps(Steals()))


def deep(name: str) -> Make:
    return file(name, b'{"a":' * DEEP)


NAN = float("nan")
HUGE = 1 << 62
EMBEDDING = "model.embed_tokens.weight"
CASES: dict[str, Make] = {
    "config.json: not JSON": file("config.json", b"{{{"),
    "config.json: a list": file("config.json", b"[1]"),
    "config.json: nested deeply": deep("config.json"),
    "config.json: a number of many digits": file("config.json", b'{"hidden_size": ' + b"9" * 100_000 + b"}"),
    "config.json: no architecture": config(architectures=...),
    "config.json: an architecture that is a list": config(architectures=[["x"]]),
    "config.json: an unknown architecture": config(architectures=["os.system"]),
    "config.json: a million layers": config(num_hidden_layers=1_000_000),
    "config.json: no heads": config(num_attention_heads=0),
    "config.json: three heads": config(num_attention_heads=3),
    "config.json: more key heads than heads": config(num_key_value_heads=64),
    "config.json: a negative width": config(hidden_size=-8),
    "config.json: a million columns": config(hidden_size=1_000_000),
    "config.json: a width that is text": config(hidden_size="8"),
    "config.json: a width that is a list": config(hidden_size=[8]),
    "config.json: NaN": config(rms_norm_eps=NAN),
    "config.json: infinity": config(rope_theta=float("inf"), rope_parameters=...),
    "config.json: a length of 2⁶²": config(max_position_embeddings=HUGE),
    "config.json: stretched angles": config(rope_scaling={"rope_type": "yarn", "factor": 1e300}),
    "config.json: angles that are a list": config(rope_parameters=[]),
    "config.json: a link to a device without end": link("config.json", "/dev/zero"),
    "config.json: a FIFO": link("config.json", None),
    "config.json: a terabyte of nothing": sparse("config.json"),
    **{f"model.safetensors: {name}": file("model.safetensors", data) for name, data in SAFETENSORS.items()},
    "model.safetensors: a missing tensor": tensors(lambda found: found.pop(EMBEDDING)),
    "model.safetensors: one tensor more": tensors(lambda found: found.update(x=np.ones(3, np.float32))),
    "model.safetensors: a wrong shape": tensors(
        lambda found: found.update({EMBEDDING: found[EMBEDDING].T.copy()})
    ),
    "model.safetensors: no rows": tensors(lambda found: found.update({EMBEDDING: found[EMBEDDING][:0]})),
    "model.safetensors: a scalar": tensors(lambda found: found.update({EMBEDDING: np.array(1, np.float32)})),
    "model.safetensors: whole numbers": tensors(
        lambda found: found.update({EMBEDDING: found[EMBEDDING].astype(np.int32)})
    ),
    "model.safetensors: NaN": tensors(lambda found: found[EMBEDDING].fill(NAN)),
    "model.safetensors: infinity": tensors(lambda found: found[EMBEDDING].fill(np.inf)),
    "model.safetensors: a wrong shape in Marian": tensors(
        lambda found: found.update({"final_logits_bias": found["final_logits_bias"][:, :-1].copy()}), "marian"
    ),
    "model.safetensors: a link that leads out": link("model.safetensors", "../elsewhere/model.safetensors"),
    "model.safetensors: a FIFO": link("model.safetensors", None),
    "model.safetensors: a device": link("model.safetensors", "/dev/zero"),
    "model.safetensors: a terabyte of nothing": sparse("model.safetensors"),
    "index: a shard above the folder": index("../../stolen.safetensors"),
    "index: an absolute path": index("/etc/passwd"),
    "index: a pickle as a shard": index("pytorch_model-00001-of-00002.bin"),
    "index: a missing shard": index("model-00001-of-00002.safetensors"),
    "index: the same shard twice under two names": index("model.safetensors", "./model.safetensors"),
    "index: 2,000 shards": index(*(f"{number}.safetensors" for number in range(2000))),
    "index: names that are numbers": index(1, None),
    "index: a list": file("model.safetensors.index.json", b'{"weight_map": []}'),
    "a pickle alone": folder_of(only_pickle),
    "an empty folder": lambda folder: folder.mkdir(),
    "tokenizer.json: nested deeply": deep("tokenizer.json"),
    "tokenizer.json: a list": file("tokenizer.json", b"[]"),
    "tokenizer.json: no vocabulary": tokenizer(lambda tree: tree["model"].pop("vocab")),
    "tokenizer.json: an unknown model": tokenizer(lambda tree: tree["model"].update(type="Code")),
    "tokenizer.json: ids beyond the model": tokenizer(lambda tree: tree["model"]["vocab"].update(zzz=4000)),
    "tokenizer.json: an id of 2³¹": tokenizer(lambda tree: tree["model"]["vocab"].update(zzz=1 << 31)),
    "tokenizer.json: a negative id": tokenizer(lambda tree: tree["model"]["vocab"].update(zzz=-1)),
    "tokenizer.json: added tokens that are text": tokenizer(lambda tree: tree.update(added_tokens="<s>")),
    "tokenizer.json: a broken expression": tokenizer(
        lambda tree: tree.update(normalizer={"type": "Replace", "pattern": {"Regex": "(("}, "content": ""})
    ),
    "tokenizer.json: a broken map of characters": tokenizer(
        lambda tree: tree.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"})
    ),
    "tokenizer.json: a template with unknown tokens": tokenizer(
        lambda tree: tree.update(
            post_processor={
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "x", "type_id": 0}}],
                "pair": [],
                "special_tokens": {},
            }
        )
    ),
    "tokenizer.json: a FIFO": link("tokenizer.json", None),
    "tokenizer_config.json: a list": file("tokenizer_config.json", b"[]"),
    "GGUF: its first bytes": gguf_bytes(b"GGUF"),
    "GGUF: version 99": gguf(version=99),
    "GGUF: 2⁶² tensors": gguf(tensor_count=HUGE),
    "GGUF: 2⁶² fields": gguf(field_count=HUGE),
    "GGUF: more tensors than there are": gguf(tensor_count=90_000),
    "GGUF: a text of 2⁶² bytes": gguf_field("general.name", TEXT, struct.pack("<Q", HUGE)),
    "GGUF: a list of 2⁶² numbers": gguf_field("x", ARRAY, struct.pack("<IQ", UINT64, HUGE)),
    "GGUF: a list of lists": gguf_field("x", ARRAY, struct.pack("<IQ", ARRAY, 1) * 1000),
    "GGUF: a field of an unknown type": gguf_field("x", 77, b"\0" * 8),
    "GGUF: fields with 50 million items": item_bomb,
    "GGUF: an alignment of 0": gguf_field("general.alignment", UINT32, 0),
    "GGUF: an alignment of 2³¹": gguf_field("general.alignment", UINT32, 1 << 31),
    "GGUF: a tensor beyond the end": gguf_tensor("token_embd.weight", [8, 1 << 20], 0, 0),
    "GGUF: an offset of 2⁶³": gguf_tensor("token_embd.weight", [8, 263], 0, 1 << 63),
    "GGUF: a shape of 2¹²⁴ numbers": gguf_tensor("token_embd.weight", [HUGE, HUGE], 0, 0),
    "GGUF: a shape of no numbers": gguf_tensor("token_embd.weight", [0, 263], 0, 0),
    "GGUF: five axes": gguf_tensor("token_embd.weight", [8, 263, 1, 1, 1], 0, 0),
    "GGUF: an unknown type of weights": gguf_tensor("token_embd.weight", [8, 263], 999, 0),
    "GGUF: a tensor of another model": gguf_tensor("../../stolen", [8, 263], 0, 0),
    "GGUF: another architecture": gguf_field("general.architecture", TEXT, "mamba"),
    "GGUF: an architecture that is a list": gguf_field("general.architecture", ARRAY, (UINT32, [1])),
    "GGUF: experts": gguf_field("llama.expert_count", UINT32, 8),
    "GGUF: heads that are a list": gguf_field("llama.attention.head_count", ARRAY, (UINT32, [2])),
    "GGUF: no heads": gguf_field("llama.attention.head_count", UINT32, 0),
    "GGUF: three heads": gguf_field("llama.attention.head_count", UINT32, 3),
    "GGUF: four billion layers": gguf_field("llama.block_count", UINT32, (1 << 32) - 1),
    "GGUF: an epsilon that is NaN": gguf_field("llama.attention.layer_norm_rms_epsilon", FLOAT32, NAN),
    "GGUF: no tokens": gguf_field("tokenizer.ggml.tokens", ARRAY, (TEXT, [])),
    "GGUF: equal tokens": gguf_field("tokenizer.ggml.tokens", ARRAY, (TEXT, ["a"] * 263)),
    "GGUF: a token of a megabyte": gguf_field("tokenizer.ggml.tokens", ARRAY, (TEXT, ["a" * (1 << 20)])),
    "GGUF: scores that are NaN": gguf_field("tokenizer.ggml.scores", ARRAY, (FLOAT32, [NAN] * 263)),
    "GGUF: scores that are texts": gguf_field("tokenizer.ggml.scores", ARRAY, (TEXT, ["1"] * 263)),
    "GGUF: types that are missing": gguf_field("tokenizer.ggml.token_type", ARRAY, (INT32, [1])),
    "GGUF: types that are texts": gguf_field("tokenizer.ggml.token_type", ARRAY, (TEXT, ["1"] * 263)),
    "GGUF: a tokenizer of another kind": gguf_field("tokenizer.ggml.model", TEXT, "bert"),
    "GGUF: byte pairs without merges": gguf_field("tokenizer.ggml.model", TEXT, "gpt2"),
    "llama2.c: a pickle": pickled_llama2c,
    "llama2.c: a header alone": llama2c(data=b""),
    "llama2.c: a later version": llama2c({0: 0x616B3432}),
    "llama2.c: a negative width": llama2c({0: -8}),
    "llama2.c: a million of everything": llama2c({place: 1_000_000 for place in range(7)}),
    "llama2.c: three heads": llama2c({3: 3}),
    "llama2.c: a layer more": llama2c({2: 2}),
    "llama2.c: NaN": llama2c(data=np.full(len(llama2c_parts()[1]) // 4, NAN, "<f4").tobytes()),
    "llama2.c: no tokenizer.bin": without_pieces,
    "tokenizer.bin: half of it": llama2c(pieces=llama2c_parts()[2][:1000]),
    "tokenizer.bin: a piece of a negative length": llama2c(pieces=bytes(4) + pack_piece("a", 0.0, -1) * 263),
    "tokenizer.bin: a piece of 2³¹ bytes": llama2c(
        pieces=bytes(4) + pack_piece("a", 0.0, (1 << 31) - 1) * 263
    ),
    "tokenizer.bin: a score that is NaN": llama2c(pieces=bytes(4) + pack_piece("a", NAN) * 263),
    "tokenizer.bin: equal pieces": llama2c(pieces=bytes(4) + pack_piece("a", 0.0) * 263),
    "tokenizer.bin: a piece more": llama2c(pieces=llama2c_parts()[2] + pack_piece("x", 0.0)),
}
HARMLESS: dict[str, Make] = {
    "a folder with programs": folder_of(with_code),
    "README.md: a licence of a megabyte": file("README.md", b"license: " + b"x" * (1 << 20)),
    "README.md: a FIFO": link("README.md", None),
    "GGUF: a licence of a megabyte": gguf_field("general.license", TEXT, "x" * (1 << 20)),
}
"""Models that may be imported, if nothing else happens."""


def import_once(path: str, may_work: bool) -> Iterator[Outcome]:
    """Import a model in the working directory; a refusal must be short and leave nothing."""
    try:
        import_model(path, "imported")
    except UserError as error:
        text = str(error)
        if len(text.splitlines()) > 5 or len(text) > 900:
            yield f"printed: {text[:900]}"
        elif os.path.exists("imported"):
            yield "the folder of the run is left"
        else:
            yield None
        return
    yield None if may_work else "it was imported"


@fault(
    "hostile models",
    "models to import with wrong sizes, shapes, tensors, links, paths, headers, tokenizers; bombs, pickles:"
    " Hugging Face folders, GGUF, llama2.c",
    "refused in a few words; no code runs, no file is written elsewhere; under 256 MB, under 2 s of CPU",
    quick=len(CASES) + len(HARMLESS),
    full=len(CASES) + len(HARMLESS),
    part=40,
)
def hostile_models(workspace: Workspace, numbers: range) -> Tries:
    for name, make in list((CASES | HARMLESS).items())[numbers.start : numbers.stop]:
        folder = workspace.made("hostile")
        make(folder / "evil")
        outcome = _import_in(workspace, folder, name in HARMLESS)
        yield f"{name}: {outcome}" if outcome else None
        shutil.rmtree(folder)


def _import_in(workspace: Workspace, folder: Path, may_work: bool) -> Outcome:
    before = listing(folder)
    given = [str(model_path(folder / "evil")), may_work]
    child = workspace.zygote.start(given, folder, job="reliability.imports:import_once")
    code = child.wait()
    if code:
        return f"exit {code}: {child.errors[-900:]}"
    used = child.report
    new = {path for path in listing(folder) - before if path.split("/")[0] not in ALLOWED}
    if new:
        return f"new files: {sorted(new)[:5]}"
    if not may_work and (used["memory"] > MEMORY or used["seconds"] > SECONDS):
        return f"{used['memory'] / 2**20:.0f} MB and {used['seconds']:.2f} s"
    return json.loads((folder / "outcomes").read_text())


ALLOWED = {"out", "err", "used", "outcomes", "imported"}
VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    3,
    1 << 20,
    HUGE,
    1e-30,
    1e300,
    NAN,
    "",
    "x",
    [],
    {},
    [1],
    {"a": 1},
    ["x"] * 3,
]

GGUF_VALUES: list[tuple[int, Any]] = [
    (UINT32, 0),
    (UINT32, 1),
    (UINT32, (1 << 32) - 1),
    (UINT64, HUGE),
    (FLOAT32, NAN),
    (FLOAT32, -1.0),
    (TEXT, ""),
    (TEXT, "gpt2"),
    (ARRAY, (UINT32, [1, 2, 3])),
    (ARRAY, (TEXT, ["a", "b", "c"])),
    (ARRAY, (FLOAT32, [NAN] * 263)),
    (ARRAY, (INT32, [7] * 263)),
    (ARRAY, (INT32, [3] * 263)),
]


def warm_up() -> None:
    """Compute before the fork what all forks need, also the good models."""
    warm_up_fuzzing()
    for kind in KINDS:
        shutil.rmtree("warm", ignore_errors=True)
        write_huggingface(Path("warm"), kind)
    shutil.rmtree("warm", ignore_errors=True)


class Specimens:
    """Good models in the working directory, with the files that are mutated."""

    def __init__(self) -> None:
        write_specimens(Path("whole"))
        self.files = {
            f"{folder.name}/{path.name}": path.read_bytes()
            for folder in sorted(Path("whole").iterdir())
            for path in sorted(folder.iterdir())
            if path.name != "generation_config.json"
        }
        for folder in sorted(Path("whole").iterdir()):
            replace_specimen(Path(folder.name), folder)
            import_model(model_path(Path(folder.name)), "imported")  # the unchanged model must be readable
            shutil.rmtree("imported")
        self.before = listing(Path())

    def check(self, name: str, data: bytes) -> Outcome:
        """Import the model with one file replaced, and restore the file."""
        path = Path(name)
        path.write_bytes(data)
        outcome = attempt(lambda: import_model(model_path(path.parent), "imported"), f"{name} {data[:200]!r}")
        path.write_bytes(self.files[name])
        shutil.rmtree("imported", ignore_errors=True)
        new = listing(Path()) - self.before - {"outcomes"}
        return outcome or (f"{name}: new files {sorted(new)[:5]}" if new else None)


def replace_value(data: bytes, places: list[int], value: Any) -> bytes:
    """Replace a value somewhere in a JSON document: each number chooses a child, the last one is replaced."""
    tree = json.loads(data)
    node = tree
    for depth, place in enumerate(places):
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            break
        key = keys[place % len(keys)]
        if depth == len(places) - 1 or not isinstance(node[key], (dict, list)):
            node[key] = copy.deepcopy(value)
            break
        node = node[key]
    return json.dumps(tree).encode()


def replace_in_header(data: bytes, places: list[int], value: Any) -> bytes:
    """Replace a value in the header of a safetensors file, whose length stays true."""
    (length,) = struct.unpack_from("<Q", data)
    header = replace_value(data[8 : 8 + length], places, value)
    return struct.pack("<Q", len(header)) + header + data[8 + length :]


def replace_in_gguf(data: bytes, places: list[int], value: Any) -> bytes:
    """Replace a field of a good GGUF file, or the name, the axes, the type or the offset of a tensor."""
    fields, entries, weights = gguf_parts()
    place, *rest = [*places, 0, 0]
    if place % 2:
        name = sorted(fields)[rest[0] % len(fields)]
        fields[name] = GGUF_VALUES[rest[1] % len(GGUF_VALUES)]
    else:
        number = rest[0] % len(entries)
        part, size = rest[1] % 4, abs(value) if isinstance(value, int) else 1 << 40
        new = [str(value), [size, 1], size % (1 << 32), size][part]
        entries[number] = tuple(new if at == part else old for at, old in enumerate(entries[number]))
    return pack_gguf(fields, entries, weights)


REPLACERS = {".json": replace_value, ".safetensors": replace_in_header, ".gguf": replace_in_gguf}


def fuzz_models(count: int, number: int) -> Iterator[Outcome]:
    with open("/proc/self/statm") as file:
        own = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (own + ADDRESS_SPACE,) * 2)
    specimens = Specimens()

    def check(example: tuple[str, list[tuple[str, int, bytes]], tuple[list[int], Any] | None]) -> Outcome:
        name, edits, replaced = example
        data = specimens.files[name]
        replace = REPLACERS.get(Path(name).suffix)
        if replaced is not None and replace is not None:
            return specimens.check(name, replace(data, *replaced))
        return specimens.check(name, mutate(data, edits))

    places = st.lists(st.integers(0, 1 << 16), min_size=1, max_size=4)
    replacements = st.none() | st.tuples(places, st.sampled_from(VALUES))
    strategy = st.tuples(st.sampled_from(sorted(specimens.files)), EDITS, replacements)
    yield from examples(strategy, check, count, number)


@fault(
    "fuzzed models",
    "mutations of config.json, safetensors, tokenizer.json, GGUF and llama2.c files of models to import",
    "imported, or refused with a short error; no traceback, no hang, no file elsewhere; at most 2 GB",
    quick=200,
    full=20_000,
    part=500,
)
def fuzzed_models(workspace: Workspace, numbers: range) -> Tries:
    given = (len(numbers), workspace.rng.randrange(1 << 30))
    yield from workspace.do("reliability.imports:fuzz_models", *given, seconds=600 + 10 * len(numbers))
