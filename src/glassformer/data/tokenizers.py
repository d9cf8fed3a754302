"""Tokenizers: text to token ids and back, on Hugging Face `tokenizers`; each algorithm is a kind."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as HuggingFaceTokenizer

from glassformer.core.errors import ErrorDetail, UserError, user_error
from glassformer.core.registry import Kind, register
from glassformer.core.system import read_regular_file

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
        tokenizer = HuggingFaceTokenizer(make(kept))
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
    return user_error(problem, path=place, hint="a .model file as SentencePiece writes it")


PAD, UNKNOWN, BEGIN, END, MASK = range(5)
RESERVED = ["<pad>", "<unknown>", "<begin>", "<end>", "<mask>"]
"""How the reserved numbers are shown."""
UNREADABLE = "⁇"
"""What stands in decoded text for a token that is none."""

_UNKNOWN_SYMBOL = "<unknown>"
_WORD = r" ?[\p{L}\p{M}\p{N}_]+['’]?| ?[^\s\p{L}\p{M}\p{N}_]|\s"
_CHARACTER = r"[\s\S]"
_UNSEEN_BYTES_APART = 256 * 1e-4
"""The unigram trainer gives each byte without a place of its own 1e-4 more than the one before."""

Texts = Callable[[], Iterable[str]]


class Tokenizer:
    """Numbers from `len(RESERVED)` on are the underlying tokenizer's, in its order, its unknown apart."""

    def __init__(self, inner: HuggingFaceTokenizer) -> None:
        self._inner = inner
        inner.no_padding()
        inner.no_truncation()
        numbers = sorted(inner.get_vocab(with_added_tokens=False).values())  # a file's may have gaps
        model = json.loads(inner.to_str())["model"]
        unknown = model.get("unk_id")
        if unknown is None and model.get("unk_token") is not None:
            unknown = inner.token_to_id(model["unk_token"])
        own = [number for number in numbers if number != unknown]
        self._number_of = np.full(max(numbers, default=-1) + 1, UNKNOWN, dtype=np.int64)
        self._number_of[own] = np.arange(len(RESERVED), len(RESERVED) + len(own))
        self._inner_of = [*[-1] * len(RESERVED), *own]

    def __len__(self) -> int:
        return len(self._inner_of)

    def encode(self, text: str) -> np.ndarray:
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        given = [_encodable(text) for text in texts]
        try:
            found = self._inner.encode_batch_fast(given, add_special_tokens=False)
        except Exception as error:  # of a file of another hand; the library raises plain Exceptions
            raise ErrorDetail(
                f"this tokenizer cannot cut the text: {error}",
                hint="one whose vocabulary has a token for what it does not know",
            ) from None
        return [self._number_of[np.array(encoding.ids, dtype=np.int64)] for encoding in found]

    def decode(self, numbers: Iterable[int]) -> str:
        """The text; padding, begin and end are left out."""
        kept = [number for number in map(int, numbers) if number not in (PAD, BEGIN, END)]
        text = ""
        for is_own, run in groupby(kept, key=lambda number: number >= len(RESERVED)):
            numbers = list(run)
            if is_own:
                inner = [self._inner_of[number] for number in numbers]
                part = self._inner.decode(inner, skip_special_tokens=False)
                has_space = self._symbol(numbers[0]).startswith("▁")
            else:
                part = (" " if self.has_space_before else "").join(UNREADABLE for _ in numbers)
                has_space = not text.endswith(" ")
            # The decoder takes off the space before what it thinks is the beginning.
            text += " " + part if text and has_space and self.has_space_before else part
        return text

    def symbols(self, numbers: Iterable[int]) -> list[str]:
        """Each token as a person reads it; `▁` is the space before a word."""
        return [self._symbol(int(number)) for number in numbers]

    def _symbol(self, number: int) -> str:
        if number < len(RESERVED):
            return RESERVED[number]
        piece = str(self._inner.id_to_token(self._inner_of[number]))
        if self._is_of_bytes and _BYTE_OF.keys() >= set(piece):
            data = bytes(_BYTE_OF[character] for character in piece)
            piece = data.decode("utf-8", errors="backslashreplace")
        return piece.replace(" ", "▁").replace("\n", "⏎").replace("\t", "⇥")

    @cached_property
    def has_space_before(self) -> bool:
        """Whether a text is cut as if a space stood before it, so that its first word is like any other."""
        tree = self.tree()
        steps = json.dumps([tree["normalizer"], tree["pre_tokenizer"]])
        return '"Prepend"' in steps or '"prepend_scheme": "always"' in steps

    @cached_property
    def _is_of_bytes(self) -> bool:
        return '"ByteLevel"' in json.dumps(self.tree()["pre_tokenizer"])

    def tree(self) -> dict[str, Any]:
        """What `tokenizer.json` holds."""
        return dict(json.loads(self._inner.to_str()))

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> Tokenizer:
        """Tokens that a file adds to be found in raw text are left out: what stands in a text is text."""
        plain = {**tree, "added_tokens": [], "post_processor": None, "padding": None, "truncation": None}
        return cls(HuggingFaceTokenizer.from_str(json.dumps(plain)))

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(self.tree(), sort_keys=True).encode()).hexdigest()


def _encodable(text: str) -> str:
    """Half a pair of surrogates, as a JSON escape or a broken argument may hold, is no character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _byte_of_character() -> dict[str, int]:
    """The printable stand-ins for bytes that byte-level tokenizers use."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + place): byte for place, byte in enumerate(others)
    }


_BYTE_OF = _byte_of_character()


class TokenizerConfig(Kind):
    """How text is cut into tokens."""

    def train(self, texts: Texts) -> Tokenizer:
        """Learned from these texts, which may be read more than once."""
        raise NotImplementedError


Lowercase = Annotated[bool, Field(description="capital letters are read as small ones")]
VocabularySize = Annotated[int, Field(ge=300, le=1_000_000, description="at most; all bytes are always in")]


def _pipeline(
    model: models.Model, cut: pre_tokenizers.PreTokenizer, decoder: decoders.Decoder, *, lowercase: bool
) -> HuggingFaceTokenizer:
    """A space is put before the text, and taken off again: the first word is a word like any other."""
    tokenizer = HuggingFaceTokenizer(model)
    steps: list[normalizers.Normalizer] = [normalizers.Lowercase()] if lowercase else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Prepend(" ")])
    tokenizer.pre_tokenizer = cut
    tokenizer.decoder = decoders.Sequence([decoder, decoders.Strip(content=" ", left=1, right=0)])
    return tokenizer


def _in_blocks(texts: Iterable[str], size: int = 1000) -> Iterator[list[str]]:
    block: list[str] = []
    for text in texts:
        block.append(_encodable(text))
        if len(block) == size:
            yield block
            block = []
    yield block


def _whole_list(symbols: Iterable[str], cut: str) -> HuggingFaceTokenizer:
    vocabulary = {symbol: number for number, symbol in enumerate([_UNKNOWN_SYMBOL, *symbols])}
    tokenizer = HuggingFaceTokenizer(models.WordLevel(vocabulary, unk_token=_UNKNOWN_SYMBOL))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(cut), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


@register
class CharactersConfig(TokenizerConfig):
    """Each character is a token."""

    kind: Literal["characters"] = "characters"
    lowercase: Lowercase = False

    def train(self, texts: Texts) -> Tokenizer:
        found: set[str] = set()
        lower = normalizers.Lowercase()
        for text in map(_encodable, texts()):
            found.update(lower.normalize_str(text) if self.lowercase else text)
        tokenizer = _whole_list(sorted(found), _CHARACTER)
        if self.lowercase:
            tokenizer.normalizer = lower
        return Tokenizer(tokenizer)


@register
class BytesConfig(TokenizerConfig):
    """Each byte of the text's UTF-8 is a token: no text is unknown."""

    kind: Literal["bytes"] = "bytes"

    def train(self, texts: Texts) -> Tokenizer:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), key=_BYTE_OF.__getitem__)
        vocabulary = {character: number for number, character in enumerate(alphabet)}
        tokenizer = HuggingFaceTokenizer(models.BPE(vocabulary, []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        return Tokenizer(tokenizer)


@register
class WordsConfig(TokenizerConfig):
    """Each word, with the space before it, and each sign is a token; rare words are unknown."""

    kind: Literal["words"] = "words"
    vocabulary_size: int = Field(20_000, ge=1, description="the most frequent words")
    min_frequency: int = Field(1, ge=1, description="words that are rarer are unknown")
    lowercase: Lowercase = False

    def train(self, texts: Texts) -> Tokenizer:
        counting = pre_tokenizers.Split(Regex(_WORD), behavior="isolated")
        tokenizer = _pipeline(
            models.WordLevel(unk_token=_UNKNOWN_SYMBOL), counting, decoders.Fuse(), lowercase=self.lowercase
        )
        trainer = trainers.WordLevelTrainer(
            vocab_size=self.vocabulary_size + 1,
            min_frequency=self.min_frequency,
            special_tokens=[_UNKNOWN_SYMBOL],
            show_progress=False,
        )
        tokenizer.train_from_iterator(_in_blocks(texts()), trainer)
        return Tokenizer.from_tree(json.loads(tokenizer.to_str()))


class PiecesConfig(TokenizerConfig):
    """Pieces of words, down to single bytes: no text is unknown."""

    vocabulary_size: VocabularySize = 8000
    lowercase: Lowercase = False

    def _train(self, texts: Texts, model: models.Model, trainer: trainers.Trainer) -> Tokenizer:
        cut = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        tokenizer = _pipeline(model, cut, decoders.ByteLevel(), lowercase=self.lowercase)
        tokenizer.train_from_iterator(_in_blocks(texts()), trainer)
        return Tokenizer.from_tree(self._settled(json.loads(tokenizer.to_str())))

    def _settled(self, tree: dict[str, Any]) -> dict[str, Any]:
        """What was learned, the same for the same texts."""
        return tree


@register
class BPEConfig(PiecesConfig):
    """The most frequent pairs are merged again and again (Sennrich et al. 2016)."""

    kind: Literal["bpe"] = "bpe"
    min_frequency: int = Field(2, ge=1, description="pairs that are rarer are not merged")

    def train(self, texts: Texts) -> Tokenizer:
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocabulary_size,
            min_frequency=self.min_frequency,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        return self._train(texts, models.BPE(), trainer)


@register
class UnigramConfig(PiecesConfig):
    """The pieces that make the text likeliest (Kudo 2018)."""

    kind: Literal["unigram"] = "unigram"

    def train(self, texts: Texts) -> Tokenizer:
        trainer = trainers.UnigramTrainer(
            vocab_size=self.vocabulary_size,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        return self._train(texts, models.Unigram(), trainer)

    def _settled(self, tree: dict[str, Any]) -> dict[str, Any]:
        """The trainer sums in any order, and tells bytes that it never saw apart by the order of a hash."""
        found = [score for _, score in tree["model"]["vocab"] if score is not None]
        lowest = min(found, default=-1.0)
        pieces = []
        for piece, score in tree["model"]["vocab"]:
            is_unseen = score is None or (len(piece) == 1 and score < lowest + _UNSEEN_BYTES_APART)
            pieces.append([piece, round(lowest if is_unseen else score, 6)])
        ordered = sorted(pieces, key=lambda pair: (-pair[1], pair[0]))
        return {**tree, "model": {**tree["model"], "vocab": ordered}}


@register
class TokenizerFileConfig(TokenizerConfig):
    """One that exists: a `tokenizer.json`, a SentencePiece `.model`, or that of a run, by its folder."""

    kind: Literal["file"] = "file"
    path: str = Field(description="tokenizer.json, NAME.model, or a run's folder")

    def train(self, texts: Texts) -> Tokenizer:
        from glassformer.data.catalogue import locate

        path = locate(self.path)
        if path.is_dir():
            path = path / "tokenizer.json"
        try:
            data = read_regular_file(path)
        except (OSError, ValueError) as error:
            raise user_error(
                f"cannot be read: {getattr(error, 'strerror', None) or error}",
                path=f"task.tokenizer.path: {path}",
                hint="a tokenizer.json, a SentencePiece .model, or the folder of a run on text",
            ) from None
        if path.suffix == ".model":
            return Tokenizer.from_tree(read_sentencepiece(data, f"task.tokenizer.path: {path}"))
        return _read_tree(data, path)


def _read_tree(data: bytes, path: Path) -> Tokenizer:
    try:
        tree = json.loads(data)
        if not isinstance(tree, dict):
            raise ValueError("no JSON object")
        return Tokenizer.from_tree(tree)
    except Exception as error:  # the library raises plain Exceptions
        raise user_error(
            f"not a tokenizer: {error}",
            path=f"task.tokenizer.path: {path}",
            hint="a tokenizer.json as Hugging Face `tokenizers` writes it",
        ) from None
