"""Tokenizers, based on Hugging Face `tokenizers`: convert text to token ids and back."""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, groupby, islice, pairwise
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
"""Name of the unknown piece. It contains a space, so that no text can match it."""


@dataclass(frozen=True)
class _Piece:
    """Entry of a SentencePiece vocabulary."""

    text: str
    score: float
    kind: int


def read_sentencepiece(data: bytes, path: str) -> dict[str, Any]:
    """Convert a SentencePiece model to the contents of a `tokenizer.json`, as a dict.

    Control pieces such as `<s>` are left out, because they are not text.
    """
    try:
        message = list(_fields(data))
        pieces = [_read_piece(value) for number, value in message if number == _PIECES]
        trainer, normalizer = (dict(_fields(dict(message)[part])) for part in (_TRAINER, _NORMALIZER))
    except (ValueError, LookupError, TypeError, AttributeError, struct.error):
        raise _invalid("not a SentencePiece model, or an incomplete one", path) from None
    kept = [piece for piece in pieces if piece.kind in (_NORMAL, _UNKNOWN, _USER_DEFINED, _BYTE)]
    if not any(piece.kind == _UNKNOWN for piece in kept):
        raise _invalid("this SentencePiece model has no unknown piece", path)
    make = {_UNIGRAM: _unigram, _BPE: _bpe}.get(trainer.get(3, _UNIGRAM))
    if make is None:
        raise _invalid("this SentencePiece model is neither unigram nor BPE", path)
    try:
        tokenizer = HuggingFaceTokenizer(make(kept))
        tokenizer.normalizer = _normalizer(normalizer)
    except Exception as error:  # the library raises plain Exceptions
        raise _invalid(f"not a SentencePiece model: {error}", path) from None
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
    """Build a unigram model.

    SentencePiece gives byte pieces the highest score, 0. Here they get the lowest score, so that the text
    `<0x41>` is not read as a byte.
    """
    unknown = next(number for number, piece in enumerate(pieces) if piece.kind == _UNKNOWN)
    least = min(piece.score for piece in pieces) - 100
    scored = [(piece.text, least if piece.kind == _BYTE else piece.score) for piece in pieces]
    return models.Unigram(scored, unknown, byte_fallback=_has_bytes(pieces))


def _has_bytes(pieces: list[_Piece]) -> bool:
    return any(piece.kind == _BYTE for piece in pieces)


def _bpe(pieces: list[_Piece]) -> models.Model:
    """Build a BPE model. Each piece is a merge of two others, and pieces with a higher score merge first."""
    numbers = {piece.text: number for number, piece in enumerate(pieces)}
    merges = []
    for piece in pieces:
        if piece.kind not in (_NORMAL, _USER_DEFINED):
            continue
        for middle in range(1, len(piece.text)):
            left, right = piece.text[:middle], piece.text[middle:]
            if left in numbers and right in numbers:
                merges.append((-piece.score, numbers[left], numbers[right], (left, right)))
    ordered = [pair for *_, pair in sorted(merges)]
    unknown = next((piece.text for piece in pieces if piece.kind == _UNKNOWN), _UNKNOWN_NAME)
    return models.BPE(numbers, ordered, unk_token=unknown, fuse_unk=True, byte_fallback=_has_bytes(pieces))


def sentencepiece_bpe(pieces: Sequence[str], scores: Sequence[float], types: Sequence[int]) -> models.Model:
    """Build the BPE model of SentencePiece pieces, listed in the order of their ids, as in GGUF files.

    `types` are SentencePiece's numbers for normal, unknown, control, user-defined and byte pieces.
    """
    listed = [_Piece(text, score, kind) for text, score, kind in zip(pieces, scores, types, strict=True)]
    return _bpe(listed)


def _read_piece(data: bytes) -> _Piece:
    fields = dict(_fields(data))
    (score,) = struct.unpack("<f", fields.get(2, b"\0\0\0\0"))
    if not math.isfinite(score):
        raise ValueError(score)
    kind = fields.get(3, _NORMAL)
    return _Piece(_UNKNOWN_NAME if kind == _UNKNOWN else fields[1].decode("utf-8"), score, kind)


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each field of a protocol-buffer message. Values are int or bytes."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, position = _varint(data, position)
            yield number, value
            continue
        if wire == 2:
            size, position = _varint(data, position)
        else:
            size = {1: 8, 5: 4}.get(wire, -1)
        if size < 0 or position + size > len(data):
            raise ValueError("not a message")
        yield number, data[position : position + size]
        position += size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Parse a protocol-buffer varint; return its value and the position after it."""
    value = shift = 0
    while shift < 70:
        byte = data[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position
    raise ValueError("not a message")


def _invalid(message: str, path: str) -> UserError:
    return user_error(message, path=path, hint="use a .model file that SentencePiece wrote")


PAD, UNKNOWN, BEGIN, END, MASK = range(5)
RESERVED = ["<pad>", "<unknown>", "<begin>", "<end>", "<mask>"]
"""Display names of the reserved token ids, 0 to 4."""
UNREADABLE = "⁇"
"""Symbol that replaces unknown and mask tokens in decoded text."""

_UNKNOWN_SYMBOL = "<unknown>"
UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
"""Scripts that put no spaces between words, so that each character is a word."""
WORD_PATTERN = (
    rf" ?[{UNSPACED}]| ?[[\p{{L}}\p{{M}}\p{{N}}_]&&[^{UNSPACED}]]+['’]?"
    r"| ?[^\s\p{L}\p{M}\p{N}_]|\s"
)
CHARACTER_PATTERN = r"[\s\S]"
_WORD_OR_MARK = re.compile(r"\w+(?:-\w+)*['’]?|[^\w\s]")
TEXTS_PER_BLOCK = 1000
_UNSEEN_BYTE_SPREAD = 256 * 1e-4
"""Width of the score range of unseen bytes, because the unigram trainer spaces them by 1e-4."""

Texts = Callable[[], Iterable[str]]


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return the start and end of each word and punctuation mark: `l'` and `homme` are two words."""
    return [match.span() for match in _WORD_OR_MARK.finditer(text)]


class Tokenizer:
    """Hugging Face tokenizer, with the ids 0 to 4 reserved for padding, unknown, begin, end and mask.

    The tokens of the underlying tokenizer follow in their order, without its own unknown token. The tokenizer
    of an imported model has other special ids: see `ImportedTokenizer`.
    """

    pad: int = PAD
    unknown: int = UNKNOWN
    begin: int = BEGIN
    end: int = END
    mask: int = MASK
    begins_prompts: bool = True
    """True if the prompt of a language model starts with the begin token."""
    ends_inputs: bool = False
    """True if the input of a classifier ends with the end token."""

    def __init__(self, inner: HuggingFaceTokenizer) -> None:
        self._inner = inner
        inner.no_padding()
        inner.no_truncation()
        inner_ids = sorted(inner.get_vocab(with_added_tokens=False).values())  # may have gaps
        model = json.loads(inner.to_str())["model"]
        unknown = model.get("unk_id")
        if unknown is None and model.get("unk_token") is not None:
            unknown = inner.token_to_id(model["unk_token"])
        known = [number for number in inner_ids if number != unknown]
        self._outer_ids = np.full(max(inner_ids, default=-1) + 1, UNKNOWN, dtype=np.int64)
        self._outer_ids[known] = np.arange(len(RESERVED), len(RESERVED) + len(known))
        self._inner_ids = [*[-1] * len(RESERVED), *known]

    def __len__(self) -> int:
        return len(self._inner_ids)

    @cached_property
    def is_text(self) -> np.ndarray:
        """Boolean array (V,): True for the ids of text, False for special tokens such as begin and mask."""
        return np.arange(len(self)) >= len(RESERVED)

    @cached_property
    def special_ids(self) -> list[int]:
        """Ids that are not text, which no text is encoded to, except the id of unknown text."""
        return [int(number) for number in np.flatnonzero(~self.is_text)]

    @cached_property
    def _undisplayed(self) -> frozenset[int]:
        """Special ids that decoded text does not show."""
        return frozenset(self.special_ids) - {self.unknown, self.mask}

    def enclose(self, tokens: Sequence[int] | np.ndarray, limit: int) -> np.ndarray:
        """Return the input of a classifier: a begin token, the tokens, and the end token if there is one.

        The beginning of longer tokens is taken, so that the input has at most `limit` tokens.
        """
        end = [self.end] if self.ends_inputs else []
        return np.array([self.begin, *tokens[: limit - 1 - len(end)], *end], dtype=np.int64)

    def encode(self, text: str) -> np.ndarray:
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        given = [_encodable(text) for text in texts]
        try:
            found = self._inner.encode_batch_fast(given, add_special_tokens=False)
        except Exception as error:  # a tokenizer from a file; the library raises plain Exceptions
            raise ErrorDetail(
                f"this tokenizer cannot tokenize the text: {error}",
                hint="use one whose vocabulary has an unknown token",
            ) from None
        # One conversion for all texts: one per text would take a third of the time of the tokenizer itself.
        ids = [encoding.ids for encoding in found]
        lengths = list(map(len, ids))
        flat = self._outer_ids[np.fromiter(chain.from_iterable(ids), dtype=np.int64, count=sum(lengths))]
        ends = list(accumulate(lengths, initial=0))
        return [flat[start:end] for start, end in pairwise(ends)]

    def encode_continuation(self, text: str) -> np.ndarray:
        """Convert a text that continues another one to ids: no space is added before it."""
        found = self._continuing.encode(_encodable(text), add_special_tokens=False)
        return self._outer_ids[np.array(found.ids, dtype=np.int64)]

    @cached_property
    def _continuing(self) -> HuggingFaceTokenizer:
        """Underlying tokenizer, which adds no space before a text."""
        if not self.has_space_before:
            return self._inner
        return HuggingFaceTokenizer.from_str(json.dumps(without_space_before(self.json_tree(), "never")))

    def spans(self, text: str) -> list[tuple[int, int, int]]:
        """Return id, start and end of each token of `encode(text)`: the token encodes `text[start:end]`.

        The span does not include the space before a word. If several tokens encode one character, the span
        of each is the whole character.
        """
        found = self._inner.encode(_encodable(text), add_special_tokens=False)
        spans = []
        for number, (start, end) in zip(found.ids, found.offsets, strict=True):
            start += len(text[start:end]) - len(text[start:end].lstrip()) if text[start:end].strip() else 0
            spans.append((int(self._outer_ids[number]), start, end))
        return spans

    def decode(self, ids: Iterable[int]) -> str:
        """Convert ids to text, without padding, begin and end tokens."""
        kept = [number for number in map(int, ids) if number not in self._undisplayed]
        text, splits_words = "", self.has_space_before or self.omits_spaces
        for is_text, run in groupby(kept, key=lambda number: bool(self.is_text[number])):
            some = list(run)
            if is_text:
                inner = [self._inner_ids[number] for number in some]
                part = self._inner.decode(inner, skip_special_tokens=False)
                has_space = self.omits_spaces or self._symbol(some[0]).startswith("▁")
            else:
                part = (" " if splits_words else "").join(UNREADABLE for _ in some)
                has_space = not text.endswith(" ")
            # The decoder removes the space at what it takes for the beginning of the text.
            text += " " + part if text and has_space and splits_words else part
        return text

    def token_strings(self) -> list[str]:
        """Return the string of each token id: the reserved names, then the underlying tokenizer's tokens."""
        return RESERVED + [
            str(self._inner.id_to_token(number)) for number in self._inner_ids[len(RESERVED) :]
        ]

    def symbols(self, ids: Iterable[int]) -> list[str]:
        """Return each token in readable form. `▁` marks the space before a word."""
        return [self._symbol(int(number)) for number in ids]

    def _special_symbol(self, number: int) -> str:
        return RESERVED[number]

    def _symbol(self, number: int) -> str:
        if not self.is_text[number]:
            return self._special_symbol(number)
        piece = str(self._inner.id_to_token(self._inner_ids[number]))
        if self._is_byte_level and _BYTE_OF.keys() >= set(piece):
            data = bytes(_BYTE_OF[character] for character in piece)
            piece = data.decode("utf-8", errors="backslashreplace")
        return piece.replace(" ", "▁").replace("\n", "⏎").replace("\t", "⇥")

    @cached_property
    def has_space_before(self) -> bool:
        """True if a space is added before the text, so that its first word is tokenized like the others."""
        tree = self.json_tree()
        steps = json.dumps([tree["normalizer"], tree["pre_tokenizer"]])
        return '"Prepend"' in steps or '"prepend_scheme": "always"' in steps

    @cached_property
    def omits_spaces(self) -> bool:
        """True if no token contains a space, so that decoding puts one between all words."""
        steps = json.dumps(self.json_tree()["pre_tokenizer"])
        return '"WhitespaceSplit"' in steps or '"BertPreTokenizer"' in steps

    @cached_property
    def _is_byte_level(self) -> bool:
        return '"ByteLevel"' in json.dumps(self.json_tree()["pre_tokenizer"])

    def json_tree(self) -> dict[str, Any]:
        """Return the contents of `tokenizer.json` as a dict."""
        return dict(json.loads(self._inner.to_str()))

    @classmethod
    def from_json_tree(cls, tree: Mapping[str, Any]) -> Tokenizer:
        """Build a tokenizer from the contents of `tokenizer.json`.

        Added tokens such as `<s>` are left out, so that they are not recognised inside ordinary text. The
        tree of an imported tokenizer names the roles of its special tokens, and they keep their ids.
        """
        if any("roles" in token for token in tree.get("added_tokens", ())):
            from glassformer.data.imported_tokenizers import ImportedTokenizer  # few runs need it

            return ImportedTokenizer(tree)
        plain = {**tree, "added_tokens": [], "post_processor": None, "padding": None, "truncation": None}
        return cls(HuggingFaceTokenizer.from_str(json.dumps(plain)))

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(self.json_tree(), sort_keys=True).encode()).hexdigest()


def without_space_before(tree: Mapping[str, Any], scheme: str) -> dict[str, Any]:
    """Return the contents of a `tokenizer.json` in which no step adds a space before a text.

    `scheme` replaces the option `prepend_scheme` of steps that always add one: `first` or `never`.
    """

    def change(step: Any) -> Any:
        if not isinstance(step, dict):
            return step
        kept = {
            name: [change(each) for each in value if each.get("type") != "Prepend"]
            if name in ("normalizers", "pretokenizers")
            else value
            for name, value in step.items()
        }
        return {**kept, "prepend_scheme": scheme} if kept.get("prepend_scheme") == "always" else kept

    found = {name: change(tree[name]) for name in ("normalizer", "pre_tokenizer")}
    if (tree["normalizer"] or {}).get("type") == "Prepend":
        found["normalizer"] = None
    return {**tree, **found}


def _encodable(text: str) -> str:
    """Replace lone surrogates, which cannot be encoded as UTF-8 but may come from JSON escapes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _byte_of_character() -> dict[str, int]:
    """Return the byte that each printable character represents in byte-level tokenizers."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + index): byte for index, byte in enumerate(others)
    }


_BYTE_OF = _byte_of_character()


class TokenizerConfig(Kind):
    """Algorithm that splits text into tokens."""

    def train(self, texts: Texts) -> Tokenizer:
        """Train a tokenizer on texts, which may be read more than once."""
        raise NotImplementedError


Lowercase = Annotated[bool, Field(description="convert the text to lower case")]
VocabularySize = Annotated[
    int, Field(ge=300, le=1_000_000, description="maximum number of tokens; all bytes are always included")
]


def _train_pipeline(
    texts: Texts,
    model: models.Model,
    split: pre_tokenizers.PreTokenizer,
    decoder: decoders.Decoder,
    trainer: trainers.Trainer,
    *,
    lowercase: bool,
    add_prefix_space: bool = True,
) -> dict[str, Any]:
    """Train a tokenizer; return its `tokenizer.json` as a dict.

    With `add_prefix_space`, the tokenizer adds a space before the first word.
    """
    tokenizer = HuggingFaceTokenizer(model)
    steps: list[normalizers.Normalizer] = [normalizers.Lowercase()] if lowercase else []
    if add_prefix_space:
        steps.append(normalizers.Prepend(" "))
        decoder = decoders.Sequence([decoder, decoders.Strip(content=" ", left=1, right=0)])
    if steps:
        tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoder
    source = map(_encodable, texts())
    tokenizer.train_from_iterator(iter(lambda: list(islice(source, TEXTS_PER_BLOCK)), []), trainer)
    return dict(json.loads(tokenizer.to_str()))


@register
class CharactersConfig(TokenizerConfig):
    """One token per character of the text.

    Use it for small language models and spelling; sequences become long.
    """

    kind: Literal["characters"] = "characters"
    lowercase: Lowercase = False

    def train(self, texts: Texts) -> Tokenizer:
        found: set[str] = set()
        lower = normalizers.Lowercase()
        for text in map(_encodable, texts()):
            found.update(lower.normalize_str(text) if self.lowercase else text)
        vocabulary = {symbol: number for number, symbol in enumerate([_UNKNOWN_SYMBOL, *sorted(found)])}
        tokenizer = HuggingFaceTokenizer(models.WordLevel(vocabulary, unk_token=_UNKNOWN_SYMBOL))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(CHARACTER_PATTERN), behavior="isolated")
        tokenizer.decoder = decoders.Fuse()
        if self.lowercase:
            tokenizer.normalizer = lower
        return Tokenizer(tokenizer)


@register
class BytesConfig(TokenizerConfig):
    """One token per byte of UTF-8: 256 tokens, and no text is unknown.

    Use it for any language or binary text without training a tokenizer; sequences become longest.
    """

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
    """One token per word (with the space before it) or punctuation mark. Rare words are unknown.

    Scripts without spaces, such as Chinese, Japanese and Thai, have one token per character.

    Use it for small data with few distinct words; it is the easiest to inspect.
    """

    kind: Literal["words"] = "words"
    vocabulary_size: int = Field(20_000, ge=1, description="number of the most frequent words")
    min_frequency: int = Field(1, ge=1, description="minimum count; rarer words are unknown")
    lowercase: Lowercase = False
    marks_spaces: bool = Field(
        True,
        description="keep the space before a word in its token, so that decoded text has the same spaces;"
        " false: the same token with and without a space, which suits classification",
    )

    def train(self, texts: Texts) -> Tokenizer:
        split: pre_tokenizers.PreTokenizer = pre_tokenizers.Split(Regex(WORD_PATTERN), behavior="isolated")
        decoder: decoders.Decoder = decoders.Fuse()
        if not self.marks_spaces:
            split = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), split])
            decoder = decoders.Sequence([decoders.WordPiece(), decoders.Fuse()])
        model = models.WordLevel(unk_token=_UNKNOWN_SYMBOL)
        trainer = trainers.WordLevelTrainer(
            vocab_size=self.vocabulary_size + 1,
            min_frequency=self.min_frequency,
            special_tokens=[_UNKNOWN_SYMBOL],
            show_progress=False,
        )
        tree = _train_pipeline(texts, model, split, decoder, trainer, lowercase=self.lowercase)
        return Tokenizer.from_json_tree(tree)


class PiecesConfig(TokenizerConfig):
    """Base class for subword tokenizers. All 256 bytes are tokens, so that any text can be encoded."""

    vocabulary_size: VocabularySize = 8000
    lowercase: Lowercase = False
    add_prefix_space: bool = Field(
        True,
        description="add a space before the text, so that its first word is the same token as elsewhere;"
        " false: as in GPT-2, which llama.cpp requires",
    )

    def _train(self, texts: Texts, model: models.Model, trainer: trainers.Trainer) -> Tokenizer:
        split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        tree = _train_pipeline(
            texts,
            model,
            split,
            decoders.ByteLevel(),
            trainer,
            lowercase=self.lowercase,
            add_prefix_space=self.add_prefix_space,
        )
        return Tokenizer.from_json_tree(self._deterministic(tree))

    def _deterministic(self, tree: dict[str, Any]) -> dict[str, Any]:
        """Remove differences between equal trainings from a `tokenizer.json` dict. The default has none."""
        return tree


@register
class BPEConfig(PiecesConfig):
    """Byte-pair encoding: pieces of words, from repeated merges of the most frequent pair (Sennrich et al.
    2016).

    Use it for most text: frequent words stay whole, and rare words are spelt from pieces.
    """

    kind: Literal["bpe"] = "bpe"
    min_frequency: int = Field(2, ge=1, description="minimum count; rarer pairs are not merged")

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
    """Unigram language model: the pieces of words that make the text most probable (Kudo 2018).

    Use it for translation and for languages with rich inflection, as SentencePiece does.
    """

    kind: Literal["unigram"] = "unigram"

    def train(self, texts: Texts) -> Tokenizer:
        trainer = trainers.UnigramTrainer(
            vocab_size=self.vocabulary_size,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        return self._train(texts, models.Unigram(), trainer)

    def _deterministic(self, tree: dict[str, Any]) -> dict[str, Any]:
        """Round and sort the scores, because rounding errors and the order of unseen bytes vary by run."""
        found = [score for _, score in tree["model"]["vocab"] if score is not None]
        lowest = min(found, default=-1.0)
        pieces = []
        for piece, score in tree["model"]["vocab"]:
            is_unseen = score is None or (len(piece) == 1 and score < lowest + _UNSEEN_BYTE_SPREAD)
            pieces.append([piece, round(lowest if is_unseen else score, 6)])
        ordered = sorted(pieces, key=lambda pair: (-pair[1], pair[0]))
        return {**tree, "model": {**tree["model"], "vocab": ordered}}


@register
class TokenizerFileConfig(TokenizerConfig):
    """An existing tokenizer: a `tokenizer.json`, a SentencePiece `.model`, or the folder of a run.

    Use it to share a tokenizer with another run or with a pre-trained model.
    """

    kind: Literal["file"] = "file"
    path: str = Field(description="tokenizer.json, NAME.model, or a run's folder")

    def train(self, texts: Texts) -> Tokenizer:
        from glassformer.data.catalogue import locate

        path = locate(self.path)
        if path.is_dir():
            path = path / "tokenizer.json"
        setting = f"task.tokenizer.path: {path}"
        try:
            data = read_regular_file(path)
        except (OSError, ValueError) as error:
            message = f"cannot be read: {getattr(error, 'strerror', None) or error}"
            hint = "name a tokenizer.json, a SentencePiece .model, or the folder of a run on text"
            raise user_error(message, path=setting, hint=hint) from None
        if path.suffix == ".model":
            return Tokenizer.from_json_tree(read_sentencepiece(data, setting))
        try:
            tree = json.loads(data)
            if not isinstance(tree, dict):
                raise ValueError("not a JSON object")
            return Tokenizer.from_json_tree(tree)
        except Exception as error:  # the library raises plain Exceptions
            hint = "use a tokenizer.json that Hugging Face `tokenizers` wrote"
            raise user_error(f"not a tokenizer: {error}", path=setting, hint=hint) from None
