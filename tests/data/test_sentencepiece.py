"""SentencePiece models, encoded here byte by byte, tokenize text by their pieces and scores."""

from __future__ import annotations

import itertools
import math
import random
import struct
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.core.errors import UserError
from glassformer.data.tokenizers import (
    END,
    RESERVED,
    UNKNOWN,
    Tokenizer,
    TokenizerFileConfig,
    read_sentencepiece,
)

NORMAL, UNKNOWN_PIECE, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
UNIGRAM, BPE, WORD = 1, 2, 3

Piece = tuple[str, float, int]
HEAD: list[Piece] = [("<unk>", 0.0, UNKNOWN_PIECE), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
BYTES: list[Piece] = [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]


def varint(number: int) -> bytes:
    low, high = number & 127, number >> 7
    return bytes([low | 128]) + varint(high) if high else bytes([low])


def whole(field: int, number: int) -> bytes:
    return varint(field << 3) + varint(number)


def data(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def encode_piece(text: str, score: float, kind: int) -> bytes:
    message = data(1, text.encode()) + varint(2 << 3 | 5) + struct.pack("<f", score)
    return message if kind == NORMAL else message + whole(3, kind)


def encode_model(pieces: list[Piece], kind: int, normalizer: Mapping[int, int] | None = None) -> bytes:
    trainer = data(1, b"corpus.txt") + whole(3, kind) + whole(4, len(pieces))
    steps = data(1, b"identity") + b"".join(whole(key, value) for key, value in (normalizer or {}).items())
    return b"".join([*(data(1, encode_piece(*piece)) for piece in pieces), data(2, trainer), data(3, steps)])


def tokenizer_of(pieces: dict[str, float], kind: int, **more: object) -> Tokenizer:
    normalizer = more.get("normalizer")
    assert normalizer is None or isinstance(normalizer, dict)
    extra = more.get("extra", [])
    assert isinstance(extra, list)
    own = [(text, score, NORMAL) for text, score in pieces.items()]
    return Tokenizer.from_json_tree(
        read_sentencepiece(encode_model([*HEAD, *extra, *own], kind, normalizer), "x")
    )


def cut(tokenizer: Tokenizer, text: str) -> list[str]:
    return tokenizer.symbols(tokenizer.encode(text))


LETTERS = {letter: -10.0 for letter in "▁abcd"}


def test_unigram_takes_the_likeliest_pieces() -> None:
    tokenizer = tokenizer_of({**LETTERS, "▁ab": -3.0, "▁a": -2.0, "bc": -2.5, "c": -4.0}, UNIGRAM)
    # ▁a + bc = -4.5, ▁ab + c = -7; single letters have much lower scores.
    assert cut(tokenizer, "abc") == ["▁a", "bc"]
    assert cut(tokenizer, "ab c") == ["▁ab", "▁", "c"]
    assert tokenizer.decode(tokenizer.encode("abc ab")) == "abc ab"


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="abcd", min_size=1, max_size=7), st.integers(0, 5))
def test_unigram_against_all_segmentations(text: str, seed: int) -> None:
    draw = random.Random(seed)
    scores = {letter: -8.0 - draw.random() for letter in "▁abcd"}
    for _ in range(12):
        scores["".join(draw.choices("abcd", k=draw.randint(2, 4)))] = -2.0 - 6 * draw.random()
    marked = "▁" + text
    best = float("-inf")
    for borders in itertools.product([False, True], repeat=len(marked) - 1):
        pieces = [""]
        for letter, border in zip(marked, [False, *borders], strict=True):
            pieces = [*pieces, letter] if border else [*pieces[:-1], pieces[-1] + letter]
        if all(piece in scores for piece in pieces):
            best = max(best, sum(scores[piece] for piece in pieces))
    found = cut(tokenizer_of(scores, UNIGRAM), text)
    assert "".join(found) == marked and sum(scores[piece] for piece in found) == pytest.approx(best)


def test_bpe_merges_the_best_pair_first() -> None:
    # Scores of a BPE model are ranks: ab before bc before abc.
    pieces = {"ab": -0.0, "bc": -1.0, "▁ab": -2.0, "abc": -3.0, "▁": -4.0, "a": -5.0, "b": -6.0, "c": -7.0}
    tokenizer = tokenizer_of(pieces, BPE)
    assert cut(tokenizer, "abc") == ["▁ab", "c"]  # a+b, then ▁+ab, which stands before ab+c
    assert cut(tokenizer, "bc") == ["▁", "bc"]
    assert cut(tokenizer, "cabc") == ["▁", "c", "abc"]
    without = {piece: score for piece, score in pieces.items() if piece != "ab"}
    # No merge of ▁, a and b alone remains, so ▁ab is never reached.
    assert cut(tokenizer_of(without, BPE), "abc") == ["▁", "abc"]


@pytest.mark.parametrize("kind", [UNIGRAM, BPE])
class TestBothKinds:
    def test_control_pieces_are_left_out_and_ids_start_after_the_reserved(self, kind: int) -> None:
        tokenizer = tokenizer_of(LETTERS, kind)
        assert len(tokenizer) == len(RESERVED) + len(LETTERS)
        assert tokenizer.encode("a").tolist() == [5, 6]

    def test_unknown_text(self, kind: int) -> None:
        tokenizer = tokenizer_of({**LETTERS, "▁a": -1.0, "▁b": -1.0}, kind)
        assert tokenizer.symbols([UNKNOWN]) == ["<unknown>"]
        assert cut(tokenizer, "a zz b") == ["▁a", "▁", "<unknown>", "▁b"]  # together they are one
        assert tokenizer.decode(tokenizer.encode("a zz b")) == "a ⁇ b"

    def test_no_text_is_a_special_piece(self, kind: int) -> None:
        letters = {letter: -9.0 for letter in "▁<>/unks0x41"}
        merged = {
            "<u": -1.0,
            "nk>": -1.0,
            "un": -1.0,
            "k>": -1.0,
            "<0x": -1.0,
            "0x": -1.0,
            "41>": -1.0,
            "1>": -1.0,
        }
        tokenizer = tokenizer_of({**letters, **merged}, kind, extra=BYTES)
        for text in ("<unk>", "<s>", "</s>", "<0x41>", " unknown"):
            numbers = tokenizer.encode(text.strip()).tolist()
            assert min(numbers) > UNKNOWN, text
            assert tokenizer.decode(numbers) == text.strip()

    def test_byte_fallback(self, kind: int) -> None:
        tokenizer = tokenizer_of(LETTERS, kind, extra=BYTES)
        assert cut(tokenizer, "aé") == ["▁", "a", "<0xC3>", "<0xA9>"]
        for text in ("aé", "日本 a", "👩‍👩‍👧", "a\nb", "ZZ"):
            assert tokenizer.decode([*tokenizer.encode(text), END]) == text

    def test_spaces(self, kind: int) -> None:
        tokenizer = tokenizer_of(LETTERS, kind)
        assert cut(tokenizer, "  a   b ") == ["▁", "a", "▁", "b"]
        assert tokenizer.encode("").tolist() == tokenizer.encode("   ").tolist() == []
        kept = tokenizer_of(LETTERS, kind, normalizer={4: 0})
        assert cut(kept, "a  b") == ["▁", "a", "▁", "▁", "b"]
        bare = tokenizer_of(LETTERS, kind, normalizer={3: 0})
        assert cut(bare, "a b") == ["a", "▁", "b"] and bare.decode(bare.encode("a b")) == "a b"

    def test_user_defined_pieces_are_pieces(self, kind: int) -> None:
        tokenizer = tokenizer_of({**LETTERS, "ab": -0.5}, kind, extra=[("cd", 0.0, USER_DEFINED)])
        assert cut(tokenizer, "acd") == ["▁", "a", "cd"]

    def test_the_json_tree_restores_the_tokenizer(self, kind: int) -> None:
        tokenizer = tokenizer_of({**LETTERS, "ab": -0.5}, kind, extra=BYTES)
        again = Tokenizer.from_json_tree(tokenizer.json_tree())
        assert again.fingerprint == tokenizer.fingerprint and len(again) == len(tokenizer)
        assert again.encode("abcd é").tolist() == tokenizer.encode("abcd é").tolist()


MODEL = encode_model([*HEAD, *((text, score, NORMAL) for text, score in LETTERS.items())], UNIGRAM)


def test_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.model"
    path.write_bytes(MODEL)
    assert cut(TokenizerFileConfig(path=str(path)).train(list), "ab") == ["▁", "a", "b"]


@pytest.mark.parametrize("size", range(0, len(MODEL), 3))
def test_a_truncated_model_is_rejected(size: int) -> None:
    with pytest.raises(UserError, match=r"an incomplete one|without an unknown"):
        read_sentencepiece(MODEL[:size], "mine.model")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"the cat sat on the mat\n", "not a SentencePiece model"),
        (b"\x80" * 1_000_000, "not a SentencePiece model"),
        (b'{"model": {}}', "not a SentencePiece model"),
        (whole(1, 10**12) + whole(2, 10**12) + whole(3, 10**12), "not a SentencePiece model"),
        (data(1, b"") + data(2, b"") + data(3, b""), "not a SentencePiece model"),
        (encode_model([("a", 0.0, NORMAL)], UNIGRAM), "has no unknown piece"),
        (encode_model(HEAD, WORD), "neither unigram nor BPE"),
        (encode_model([*HEAD, ("a", math.nan, NORMAL)], UNIGRAM), "not a SentencePiece model"),
        (encode_model([*HEAD, ("a", math.inf, NORMAL)], BPE), "not a SentencePiece model"),
        (MODEL + data(3, data(2, b"nothing sensible")), "not a SentencePiece model"),
    ],
)
def test_other_files_are_rejected(content: bytes, said: str) -> None:
    with pytest.raises(UserError, match=said) as refusal:
        read_sentencepiece(content, "task.tokenizer.path: mine.model")
    assert "task.tokenizer.path: mine.model" in str(refusal.value) and "try:" in str(refusal.value)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(MODEL) - 1), st.integers(0, 255), st.binary(max_size=6))
def test_damage_is_rejected_or_gives_a_tokenizer(place: int, byte: int, more: bytes) -> None:
    damaged = MODEL[:place] + bytes([byte]) + more + MODEL[place + 1 :]
    try:
        tokenizer = Tokenizer.from_json_tree(read_sentencepiece(damaged, "x"))
    except UserError:
        return
    assert all(0 < number < len(tokenizer) for number in tokenizer.encode("ab zé"))
