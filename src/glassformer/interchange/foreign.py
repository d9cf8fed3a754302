"""Foreign models on disk: what a reader hands to the converters, and safe access to the files."""

from __future__ import annotations

import json
import os
import stat
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from glassformer.core.errors import ErrorDetail, UserError, user_error
from glassformer.core.system import read_regular_file

MAX_HEADER_BYTES = 1 << 24
"""Longest header of a safetensors file that is read: 16 MiB. A header of 100,000 tensors has 10 MiB."""
MAX_TENSORS = 100_000
FLOATS = ("F64", "F32", "F16", "BF16")
PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
"""First bytes of the files that `torch.save` writes: a zip archive, or a pickle."""
CONVERT = (
    "if you trust the file, convert it with transformers:"
    " CLASS.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER), where CLASS is named in config.json,"
    " and the same with AutoTokenizer"
)


@dataclass(frozen=True)
class ForeignModel:
    """Foreign model before its conversion: config, tensors and tokenizers."""

    format: str
    """Name of the format, such as `GGUF`."""
    architecture: str
    """Name of the class in Hugging Face's `transformers` that the config and the tensors belong to."""
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    tokenizer: TokenizerFile
    target_tokenizer: TokenizerFile | None = None
    labels: Sequence[str] = ()
    """Names of the classes of a classifier."""
    files: Sequence[Path] = ()
    """Files that were read, for their checksums."""
    licence: str = ""
    """Licence that the files state, or an empty string."""


@dataclass(frozen=True)
class TokenizerFile:
    """Content of a foreign `tokenizer.json`, and the ids of its special tokens by role."""

    tree: Mapping[str, Any]
    roles: Mapping[str, int] = field(default_factory=dict)


def refuse(message: str, path: Path | str, hint: str = "use a complete and unchanged copy") -> UserError:
    """Return the error for a foreign file that is not used."""
    return user_error(message, path=str(path), hint=hint)


def inner_file(folder: Path, name: object) -> Path:
    """Return the path of a file in `folder`. Refuse names with folders, and links that lead elsewhere.

    A link may lead to the folder `blobs` of Hugging Face's cache, which is two folders above.
    """
    if not isinstance(name, str) or not name or os.path.basename(name) != name or name in (".", ".."):
        raise refuse("names a file outside of the folder", folder, f"remove {name!r} from it")
    path = folder / name
    top = Path(os.path.realpath(folder))
    real = Path(os.path.realpath(path))
    if top not in real.parents and top.parent.parent / "blobs" != real.parent:
        raise refuse("the link leads out of the folder", path, "replace the link by a copy of the file")
    return path


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object from a file of at most 64 MiB."""
    try:
        document = json.loads(read_regular_file(path))
        if not isinstance(document, dict):
            raise ValueError("it is not a JSON object")
        return document
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error or type(error).__name__
        raise refuse(f"cannot be read: {reason}", path) from None


def check_regular(path: Path) -> int:
    """Return the size of a regular file. Refuse folders, FIFOs, devices and missing files."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise refuse(f"cannot be read: {error.strerror}", path, "check the path") from None
    if not stat.S_ISREG(found.st_mode):
        raise refuse("it is not a regular file", path)
    return found.st_size


def refuse_pickle(path: Path) -> None:
    """Refuse a file that `torch.save` wrote, because reading a pickle runs the code in it."""
    with open(path, "rb") as file:
        start = file.read(4)
    if start.startswith(PICKLES):
        raise refuse("a pickle of PyTorch can contain programs, and is never read", path, CONVERT)


def check_finite(name: str, tensor: Tensor, path: Path) -> Tensor:
    """Return the tensor in float32. Refuse NaN and infinity."""
    tensor = tensor.float()
    if not bool(torch.isfinite(tensor).all()):
        raise refuse(f"the tensor {name} contains NaN or infinity", path)
    return tensor


class SafetensorsFiles(Mapping[str, Tensor]):
    """Tensors of one or more safetensors files. Each is read when it is asked for, as float32."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Read the headers alone, and check them."""
        self._location: dict[str, Path] = {}
        self._is_float: dict[str, bool] = {}
        for path in paths:
            for name, kind in _header(path):
                if name in self._location:
                    raise refuse(f"the tensor {name} is in two files", path)
                self._location[name] = path
                self._is_float[name] = kind in FLOATS
            if len(self._location) > MAX_TENSORS:
                raise refuse(f"more than {MAX_TENSORS:,} tensors", path)

    def __getitem__(self, name: str) -> Tensor:
        path = self._location[name]
        if not self._is_float[name]:
            raise refuse(f"the tensor {name} does not contain floating-point numbers", path)
        try:
            with safe_open(path, framework="pt") as file:
                return check_finite(name, file.get_tensor(name), path)
        except (SafetensorError, OSError, ValueError, RuntimeError) as error:
            raise refuse(f"the tensor {name} cannot be read: {error}", path) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._location)

    def __len__(self) -> int:
        return len(self._location)


def _header(path: Path) -> list[tuple[str, str]]:
    """Return name and type of each tensor of a safetensors file, after the checks of its library."""
    size = check_regular(path)
    with open(path, "rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= min(size - 8, MAX_HEADER_BYTES):
            raise refuse("not a safetensors file: its header has a wrong length", path)
        data = file.read(length)
    try:
        document = json.loads(data)
        with safe_open(path, framework="pt") as opened:
            names = list(opened.keys())
        return [(name, str(document[name]["dtype"])) for name in names]
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise refuse(f"not a safetensors file: {error}", path) from None


def as_user_error(error: ErrorDetail, path: Path) -> UserError:
    """Return an error of a converter as an error about the file or folder that was imported."""
    return user_error(
        f"{error.path}: {error.message}" if error.path else error.message,
        path=str(path),
        value=error.value,
        allowed=error.allowed,
        hint=error.hint,
    )
