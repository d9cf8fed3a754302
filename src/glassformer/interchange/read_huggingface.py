"""Reader of Hugging Face folders: `config.json`, safetensors and `tokenizer.json`, without `transformers`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from glassformer.core.system import read_regular_file
from glassformer.data.tokenizers import read_sentencepiece
from glassformer.interchange.converters import CONVERTERS
from glassformer.interchange.foreign import (
    CONVERT,
    ForeignModel,
    SafetensorsFiles,
    TokenizerFile,
    inner_file,
    read_json,
    refuse,
)

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_SHARDS = 1000
_NAMES = {
    "pad": ("pad",),
    "unknown": ("unk",),
    "begin": ("bos", "cls"),
    "end": ("eos", "sep"),
    "mask": ("mask",),
}
"""Names of the special tokens in Hugging Face's files, by our role: `pad_token`, `pad_token_id`."""
SAVE_TOKENIZER = "with transformers: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"


def read_huggingface(folder: Path) -> ForeignModel:
    """Read the config, the headers of the weights and the tokenizer of a folder. Weights are read later."""
    config = read_json(_required(folder, "config.json", "name a folder of Hugging Face"))
    architecture = _architecture(config, folder)
    weights = _weight_files(folder)
    if architecture == "MarianMTModel" and not (folder / "tokenizer.json").exists():
        tokenizer, target, read = _marian_tokenizers(folder, config)
    else:
        tokenizer, target, read = *_tokenizer(folder, config, architecture), None, ["tokenizer.json"]
    return ForeignModel(
        format="Hugging Face",
        architecture=architecture,
        config=config,
        tensors=SafetensorsFiles(weights),
        tokenizer=tokenizer,
        target_tokenizer=target,
        labels=_labels(config),
        files=[folder / "config.json", *weights, *(folder / name for name in read)],
        licence=_licence(folder),
    )


def _required(folder: Path, name: str, hint: str) -> Path:
    path = inner_file(folder, name)
    if not path.is_file():
        raise refuse(f"there is no {name} in this folder", folder, hint)
    return path


def _architecture(config: Mapping[str, Any], folder: Path) -> str:
    named = config.get("architectures")
    found = named[0] if isinstance(named, list) and named else None
    if not isinstance(found, str) or found not in CONVERTERS:
        raise refuse(
            f"models of the class {str(found)[:60]!r} cannot be imported",
            folder / "config.json",
            f"these can: {', '.join(CONVERTERS)}",
        )
    return str(found)


def _weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files: those of the index, or the only one."""
    if inner_file(folder, INDEX).exists():
        index = read_json(folder / INDEX).get("weight_map")
        if not isinstance(index, dict) or not index:
            raise refuse("the index names no files", folder / INDEX)
        names = list(dict.fromkeys(map(str, index.values())))
        if len(names) > MAX_SHARDS:
            raise refuse(f"the index names more than {MAX_SHARDS:,} files", folder / INDEX)
        return [_shard(folder, name) for name in names]
    if inner_file(folder, SINGLE).exists():
        return [folder / SINGLE]
    found = sorted(path.name for path in folder.glob("*.safetensors"))
    if len(found) == 1:
        return [inner_file(folder, found[0])]
    if found:
        raise refuse(f"several safetensors files, and no {INDEX}", folder, f"name one of them {SINGLE}")
    pickles = [path for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for path in folder.glob(pattern)]
    if pickles:
        raise refuse(
            "a pickle of PyTorch can contain programs, and is never read", sorted(pickles)[0], CONVERT
        )
    raise refuse("there are no weights (*.safetensors) in this folder", folder)


def _shard(folder: Path, name: str) -> Path:
    if not name.endswith(".safetensors"):
        raise refuse(
            f"the index names {name[:60]!r}, which is not a safetensors file", folder / INDEX, CONVERT
        )
    return _required(folder, name, "download all parts of the model")


def _labels(config: Mapping[str, Any]) -> list[str]:
    """Return the names of the classes, in the order of the outputs; [] if the config has none."""
    names = config.get("id2label")
    if not isinstance(names, dict):
        return []
    try:
        ordered = sorted((int(number), str(name)) for number, name in names.items())
    except ValueError:
        return []
    return [name for _, name in ordered]


def _licence(folder: Path) -> str:
    """Return the licence that the model card states in its first lines, or an empty string."""
    path = folder / "README.md"
    try:
        lines = read_regular_file(inner_file(folder, path.name)).decode("utf-8", "replace").splitlines()[:100]
    except (OSError, ValueError):
        return ""
    found = (line.partition(":")[2].strip() for line in lines if line.startswith("license:"))
    return next(found, "")[:100]


def _tokenizer(folder: Path, config: Mapping[str, Any], architecture: str) -> tuple[TokenizerFile]:
    path = _required(folder, "tokenizer.json", SAVE_TOKENIZER)
    tree = read_json(path)
    ids = _ids_by_name(tree, path)
    documents = [read_json(folder / name) for name in _present(folder)]
    roles = {role: _special_id(names, [*documents, config], ids) for role, names in _NAMES.items()}
    found = {role: number for role, number in roles.items() if number is not None}
    if architecture == "MarianMTModel":
        found["begin"] = _start_id(config, folder)
    return (TokenizerFile(tree, found),)


def _present(folder: Path) -> Iterator[str]:
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if inner_file(folder, name).is_file():
            yield name


def _ids_by_name(tree: Mapping[str, Any], path: Path) -> dict[str, int]:
    """Return the id of each token of a `tokenizer.json`, by name."""
    try:
        vocabulary = tree["model"]["vocab"]
        if isinstance(vocabulary, dict):
            ids = {str(name): int(number) for name, number in vocabulary.items()}
        else:
            ids = {str(piece): number for number, (piece, _) in enumerate(vocabulary)}
        return ids | {str(token["content"]): int(token["id"]) for token in tree.get("added_tokens") or ()}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise refuse("not a tokenizer.json: it has no vocabulary", path, SAVE_TOKENIZER) from None


def _special_id(
    names: tuple[str, ...], documents: list[Mapping[str, Any]], ids: Mapping[str, int]
) -> int | None:
    """Return the id of a special token from the first document that names it, as text or as a number."""
    for name in names:
        for document in documents:
            text, number = document.get(f"{name}_token"), document.get(f"{name}_token_id")
            text = text.get("content") if isinstance(text, dict) else text
            number = number[0] if isinstance(number, list) and number else number
            if isinstance(text, str) and text in ids:
                return ids[text]
            if isinstance(number, int) and not isinstance(number, bool) and number in ids.values():
                return number
    return None


def _start_id(config: Mapping[str, Any], folder: Path) -> int:
    """Return the id with which the decoder starts: `decoder_start_token_id`, or the padding."""
    for name in ("decoder_start_token_id", "pad_token_id"):
        if isinstance(config.get(name), int):
            return int(config[name])
    raise refuse("there is no decoder_start_token_id", folder / "config.json")


def _marian_tokenizers(
    folder: Path, config: Mapping[str, Any]
) -> tuple[TokenizerFile, TokenizerFile, list[str]]:
    """Return the tokenizers of both sides: pieces of SentencePiece with the ids of `vocab.json`."""
    names = ["vocab.json", "source.spm", "target.spm"]
    paths = [_required(folder, name, SAVE_TOKENIZER) for name in names]
    ids = read_json(paths[0])
    if not ids or not all(isinstance(number, int) and number >= 0 for number in ids.values()):
        raise refuse("is not a vocabulary", paths[0])
    roles = {"pad": ids.get("<pad>"), "unknown": ids.get("<unk>"), "end": ids.get("</s>")}
    known = {role: number for role, number in roles.items() if number is not None}
    known["begin"] = _start_id(config, folder)
    source, target = (TokenizerFile(_numbered(path, ids), known) for path in paths[1:])
    return source, target, names


def _numbered(path: Path, ids: Mapping[str, int]) -> dict[str, Any]:
    """Return a SentencePiece model as a `tokenizer.json` whose tokens have the given ids.

    Pieces that only the other language has are the least likely ones.
    """
    try:
        tree = read_sentencepiece(read_regular_file(path), str(path))
    except (OSError, ValueError) as error:
        raise refuse(f"cannot be read: {error}", path) from None
    model = tree["model"]
    if model["type"] != "Unigram":
        raise refuse("is not a unigram model", path)
    scores = {piece: float(score) for piece, score in model["vocab"]}
    unknown = ids.get("<unk>", 0)
    least = min(scores.values(), default=0.0) - 1000.0
    if max(ids.values()) >= 2 * len(ids):
        raise refuse("the ids of the vocabulary have gaps", path.parent / "vocab.json")
    pieces = [[f"<unused-{number}>", least] for number in range(max(ids.values()) + 1)]
    for piece, number in ids.items():
        pieces[number] = [piece, scores.get(piece, least)]
    return json.loads(json.dumps({**tree, "model": {**model, "vocab": pieces, "unk_id": unknown}}))
