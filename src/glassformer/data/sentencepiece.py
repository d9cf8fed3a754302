"""A SentencePiece `.model` file as a tokenizer tree. Only the fields that cutting text needs are read.

The file is a protocol-buffer message: pieces with scores and types, then how it was trained (unigram or BPE)
and how text is normalized first.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from glassformer.errors import UserError, user_error

_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_UNIGRAM, _BPE = 1, 2
_NORMAL, _UNKNOWN, _USER_DEFINED, _BYTE = 1, 2, 4, 6
_SPACE = "▁"
_UNKNOWN_NAME = " unknown"
"""With a space, which no text has any more when it is cut: what stands in a text is never this piece."""


@dataclass(frozen=True)
class _Piece:
    text: str
    score: float
    kind: int


def read_sentencepiece(data: bytes, place: str) -> dict[str, Any]:
    """What `tokenizer.json` would hold. Control pieces such as `<s>` are left out: they are not text."""
    try:
        message = list(_fields(data))
        pieces = [_read_piece(value) for number, value in message if number == _PIECES]
        trainer, normalizer = (dict(_fields(dict(message)[part])) for part in (_TRAINER, _NORMALIZER))
    except (ValueError, LookupError, TypeError, AttributeError, struct.error):
        raise _refuse("not a SentencePiece model, or not a whole one", place) from None
    kept = [piece for piece in pieces if piece.kind in (_NORMAL, _UNKNOWN, _USER_DEFINED, _BYTE)]
    if not any(piece.kind == _UNKNOWN for piece in kept):
        raise _refuse("a SentencePiece model without an unknown piece", place)
    make = {_UNIGRAM: _unigram, _BPE: _bpe}.get(trainer.get(3, _UNIGRAM))
    if make is None:
        raise _refuse("a SentencePiece model that is neither unigram nor BPE", place)
    try:
        tokenizer = Tokenizer(make(kept))
        tokenizer.normalizer = _normalizer(normalizer)
    except Exception as error:  # the library raises plain Exceptions
        raise _refuse(f"not a SentencePiece model: {error}", place) from None
    scheme = "always" if normalizer.get(3, 1) else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(_SPACE, prepend_scheme=scheme)
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(_SPACE, prepend_scheme=scheme)]
    )
    return dict(json.loads(tokenizer.to_str()))


def _normalizer(normalizer: dict[int, Any]) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = []
    if normalizer.get(2):
        steps.append(normalizers.Precompiled(normalizer[2]))
    if normalizer.get(4, 1):
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    return normalizers.Sequence(steps)


def _unigram(pieces: list[_Piece]) -> models.Model:
    """Pieces for bytes come with a score of 0, the likeliest there is: `<0x41>` in a text would be one."""
    unknown = next(number for number, piece in enumerate(pieces) if piece.kind == _UNKNOWN)
    least = min(piece.score for piece in pieces) - 100
    scored = [(piece.text, least if piece.kind == _BYTE else piece.score) for piece in pieces]
    return models.Unigram(scored, unknown, byte_fallback=_has_bytes(pieces))


def _has_bytes(pieces: list[_Piece]) -> bool:
    return any(piece.kind == _BYTE for piece in pieces)


def _bpe(pieces: list[_Piece]) -> models.Model:
    """A piece is merged from two others; the better its score, the earlier."""
    numbers = {piece.text: number for number, piece in enumerate(pieces)}
    merges = []
    for piece in pieces:
        if piece.kind in (_UNKNOWN, _BYTE):
            continue
        for cut in range(1, len(piece.text)):
            left, right = piece.text[:cut], piece.text[cut:]
            if left in numbers and right in numbers:
                merges.append((-piece.score, numbers[left], numbers[right], (left, right)))
    ordered = [pair for *_, pair in sorted(merges)]
    return models.BPE(
        numbers, ordered, unk_token=_UNKNOWN_NAME, fuse_unk=True, byte_fallback=_has_bytes(pieces)
    )


def _read_piece(data: bytes) -> _Piece:
    fields = dict(_fields(data))
    (score,) = struct.unpack("<f", fields.get(2, b"\0\0\0\0"))
    if not math.isfinite(score):
        raise ValueError(score)
    kind = fields.get(3, _NORMAL)
    return _Piece(_UNKNOWN_NAME if kind == _UNKNOWN else fields[1].decode("utf-8"), score, kind)


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of each field: a whole number, or bytes."""
    place = 0
    while place < len(data):
        key, place = _whole_number(data, place)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, place = _whole_number(data, place)
            yield number, value
            continue
        if wire == 2:
            size, place = _whole_number(data, place)
        else:
            size = {1: 8, 5: 4}.get(wire, -1)
        if size < 0 or place + size > len(data):
            raise ValueError("not a message")
        yield number, data[place : place + size]
        place += size


def _whole_number(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = data[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
    raise ValueError("not a message")


def _refuse(problem: str, place: str) -> UserError:
    return user_error(problem, place=place, remedy="a .model file as SentencePiece writes it")
