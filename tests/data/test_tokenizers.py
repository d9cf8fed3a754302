"""Tokenizers: decoding restores any text, and no text is a special token."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers import models, pre_tokenizers, processors

from glassformer.core.config import validate
from glassformer.core.errors import ErrorDetail, UserError
from glassformer.core.registry import kinds
from glassformer.data.tokenizers import (
    BEGIN,
    END,
    MASK,
    PAD,
    RESERVED,
    UNKNOWN,
    Tokenizer,
    TokenizerConfig,
    TokenizerFileConfig,
    WordsConfig,
)
from glassformer.datasets.grammar import translation_pairs

TRAINING = [
    "The cat sat on the mat, and the mat was flat.",
    "Les élèves n'ont pas d'idée; où êtes-vous ?",
    "<begin> is a word here, and so is </s>.",
] * 3

HARD = {
    "empty": "",
    "a space": " ",
    "only spaces": "     ",
    "spaces around and between": "  two  spaces ",
    "a line feed": "\n",
    "lines": "one\ntwo\n\nthree\n",
    "a tab": "\tx\t",
    "carriage return": "a\r\nb\r",
    "combining marks": "e\u0301 \u0915\u094d\u0937 q\u0323\u0307",
    "letter and mark apart": "é e\u0301",
    "emoji joined": "👩‍👩‍👧‍👦 and 🏳️‍🌈",
    "line separator": "a\u2028b\u2029c\x85d",
    "NUL": "a\x00b",
    "byte order mark": "\ufeffx",
    "no-break space": "a\u00a0b\u3000c",
    "special tokens": "<begin> <pad> </s> <unknown> <mask> <end> [MASK] <|endoftext|>",
    "what others use for a space": "▁a Ġb ⁇",
    "bytes by name": "<0x41> <0xC3>",
    "right to left": "مرحبا \u200fa",
    "no spaces": "日本語のテキスト",
    "far planes": "\U0001f9ff\U0010ffff\ue000",
    "long": "a" * 500,
}

OPTIONS: dict[str, dict[str, Any]] = {
    "characters": {},
    "words": {},
    "bytes": {},
    "bpe": {"vocabulary_size": 300},
    "unigram": {"vocabulary_size": 300},
}
ANY_TEXT = ["bytes", "bpe", "unigram"]
KNOWN_TEXT = ["characters", "words"]


def train(kind: str, texts: list[str], **options: Any) -> Tokenizer:
    config = validate(TokenizerConfig, {"kind": kind, **OPTIONS.get(kind, {}), **options})
    return config.train(lambda: texts)


@pytest.fixture(scope="module")
def trained() -> dict[str, Tokenizer]:
    """Tokenizers of each kind, trained on the hard texts."""
    return {kind: train(kind, TRAINING + (list(HARD.values()) * (kind in KNOWN_TEXT))) for kind in OPTIONS}


def test_no_kind_is_forgotten() -> None:
    assert set(kinds(TokenizerConfig)) == {*OPTIONS, "file"}


@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("kind", OPTIONS)
def test_hard_text_comes_back(kind: str, name: str, trained: dict[str, Tokenizer]) -> None:
    tokenizer, text = trained[kind], HARD[name]
    numbers = tokenizer.encode(text)
    assert all(len(RESERVED) <= number < len(tokenizer) for number in numbers), (
        "nothing in a text is reserved"
    )
    assert tokenizer.decode(numbers) == text
    assert tokenizer.decode([BEGIN, *numbers, END, PAD, PAD]) == text
    symbols = tokenizer.symbols(numbers)
    assert len(symbols) == len(numbers) and not any(c in s for s in symbols for c in " \n\t")


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=30))
@pytest.mark.parametrize("kind", ANY_TEXT)
def test_any_text_comes_back(kind: str, trained: dict[str, Tokenizer], text: str) -> None:
    numbers = trained[kind].encode(text)
    assert trained[kind].decode(numbers) == text and min(numbers, default=9) >= len(RESERVED)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=20), min_size=1, max_size=4))
@pytest.mark.parametrize("kind", KNOWN_TEXT)
def test_known_text_comes_back(kind: str, texts: list[str]) -> None:
    tokenizer = train(kind, texts)
    assert [tokenizer.decode(numbers) for numbers in tokenizer.encode_all(texts)] == texts


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=20))
@pytest.mark.parametrize("kind", KNOWN_TEXT)
def test_unknown_text_is_unknown_and_nothing_else(
    kind: str, trained: dict[str, Tokenizer], text: str
) -> None:
    assert all(number == UNKNOWN or number >= len(RESERVED) for number in trained[kind].encode(text))


def test_words_are_words() -> None:
    tokenizer = train("words", ["The cat's here, d'accord: naïve e\u0301tat_1!"])
    assert tokenizer.symbols(tokenizer.encode("here, the cat: The cat!")) == [
        "▁here",
        ",",
        "<unknown>",  # a capital letter makes another word
        "<unknown>",  # it was only known with its apostrophe
        ":",
        "▁The",
        "<unknown>",
        "!",
    ]
    assert tokenizer.symbols(tokenizer.encode("naïve e\u0301tat_1")) == ["▁naïve", "▁e\u0301tat_1"]
    lower = train("words", ["THE cat"], lowercase=True)
    assert lower.decode(lower.encode("the CAT")) == "the cat"


def test_unknown_words_are_shown_in_position() -> None:
    tokenizer = train("words", ["the cat sat."])
    assert tokenizer.decode(tokenizer.encode("the dog sat.")) == "the ⁇ sat."
    assert tokenizer.decode(tokenizer.encode("dogs")) == "⁇"
    assert tokenizer.decode(tokenizer.encode("big dogs.")) == "⁇ ⁇."
    characters = train("characters", ["abc"])
    assert characters.decode(characters.encode("axxb")) == "a⁇⁇b"


@pytest.mark.parametrize("kind", ["characters", "words", "bpe", "unigram"])
def test_lower_case(kind: str) -> None:
    tokenizer = train(kind, ["ΟΔΟΣ and STRASSE ABC"] * 3, lowercase=True)
    assert UNKNOWN not in tokenizer.encode("ΟΔΟΣ AND strasse abc")
    assert tokenizer.decode(tokenizer.encode("Abc AND")) == "abc and"


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_first_word_without_a_space_before_it(kind: str, lowercase: bool) -> None:
    texts = ["the end is the end of the end"] * 20
    options = {"add_prefix_space": False, "lowercase": lowercase}
    plain, usual = train(kind, texts, **options), train(kind, texts, lowercase=lowercase)
    assert "".join(usual.symbols(usual.encode("the end"))) == "▁the▁end" and usual.has_space_before
    assert "".join(plain.symbols(plain.encode("the end"))) == "the▁end" and not plain.has_space_before
    for text in HARD.values():
        if not lowercase:
            assert plain.decode(plain.encode(text)) == text


def test_rare_words() -> None:
    texts = ["a a a b b c"]
    assert train("words", texts, vocabulary_size=2).symbols([5, 6]) == ["▁a", "▁b"]
    assert len(train("words", texts, vocabulary_size=2)) == len(RESERVED) + 2
    rare = train("words", texts, min_frequency=3)
    assert rare.encode("a b c").tolist() == [5, UNKNOWN, UNKNOWN]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_pieces_are_few_for_what_is_frequent(kind: str) -> None:
    texts = [text for pair in translation_pairs(200, 0, "train") for text in pair]
    tokenizer = train(kind, texts, vocabulary_size=600)
    assert len(tokenizer) <= 600 + len(RESERVED)
    assert sum(map(len, tokenizer.encode_all(texts))) < sum(map(len, texts)) / 2


@pytest.mark.parametrize("texts", [[], [""], ["", "   "], ["\n"]])
@pytest.mark.parametrize("kind", OPTIONS)
def test_hardly_anything_to_learn_from(kind: str, texts: list[str]) -> None:
    tokenizer = train(kind, texts)
    numbers = tokenizer.encode("Été 1")
    assert all(number >= UNKNOWN for number in numbers)
    if kind in ANY_TEXT:
        assert tokenizer.decode(numbers) == "Été 1"


@pytest.mark.parametrize("kind", OPTIONS)
def test_half_a_surrogate_is_a_replacement_character(kind: str) -> None:
    """JSON may contain "\\ud83d", and a shell argument bytes that are not text."""
    tokenizer = train(kind, ["a\ud83db", "\ufffd 😀"] * 3)
    assert tokenizer.decode(tokenizer.encode("a\udcffb")) == "a\ufffdb"
    assert tokenizer.decode(tokenizer.encode("\ufffd \ud83d\ude00")) == "\ufffd 😀"


@pytest.mark.parametrize("kind", OPTIONS)
def test_the_json_tree_restores_the_tokenizer(kind: str, trained: dict[str, Tokenizer]) -> None:
    tokenizer = trained[kind]
    again = Tokenizer.from_json_tree(json.loads(json.dumps(tokenizer.json_tree())))
    assert again.json_tree() == tokenizer.json_tree() and again.fingerprint == tokenizer.fingerprint
    assert len(again) == len(tokenizer)
    for text in HARD.values():
        assert again.encode(text).tolist() == tokenizer.encode(text).tolist()
    every = range(len(tokenizer))
    assert again.symbols(every) == tokenizer.symbols(every)


TWICE = """
from glassformer.core.config import validate
from glassformer.datasets.grammar import translation_pairs
from glassformer.data.tokenizers import TokenizerConfig
texts = [text for pair in translation_pairs(300, 0, "train") for text in pair]
for kind in ("words", "bpe", "unigram"):
    config = validate(TokenizerConfig, {"kind": kind, "vocabulary_size": 600})
    print(config.train(lambda: texts).fingerprint)
"""


def test_the_same_texts_give_the_same_tokenizer() -> None:
    """Train in this process and in another, whose hash seed differs."""
    command = [sys.executable, "-c", TWICE]
    ways = [subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(2)]
    assert ways[0] == ways[1] and len(set(ways[0].split())) == 3
    first, second = (train("unigram", TRAINING).fingerprint for _ in range(2))
    assert first == second != train("unigram", TRAINING[:-1]).fingerprint


def test_ids_that_no_text_has() -> None:
    tokenizer = train("bpe", TRAINING)
    assert tokenizer.symbols([PAD, UNKNOWN, BEGIN, END, MASK]) == RESERVED
    assert tokenizer.decode([BEGIN, MASK, UNKNOWN, END]) == "⁇ ⁇"
    assert tokenizer.decode([]) == ""
    assert tokenizer.decode(tokenizer.encode("日")[:-1]) == "\ufffd", "a part of a character is none"


Save = Callable[[HuggingFaceTokenizer], Tokenizer]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    def through_a_file(inner: HuggingFaceTokenizer) -> Tokenizer:
        path = tmp_path / "tokenizer.json"
        inner.save(str(path))
        return TokenizerFileConfig(path=str(path)).train(list)

    return through_a_file


def test_special_tokens_of_a_file_are_not_found_in_text(save: Save) -> None:
    vocabulary = {"[UNK]": 0, "[PAD]": 1, "<s>": 2, "a": 3, "b": 4, "<": 5, "s": 6, ">": 7}
    inner = HuggingFaceTokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation("isolated")]
    )
    inner.add_special_tokens(["[PAD]", "<s>", "<new>"])
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 2)])
    inner.enable_padding(pad_id=1, pad_token="[PAD]", length=20)
    inner.enable_truncation(2)
    tokenizer = save(inner)
    assert tokenizer.symbols(tokenizer.encode("a <s> b")) == ["a", "<", "s", ">", "b"]
    assert tokenizer.encode("a zz b").tolist() == [7, UNKNOWN, 8], "no padding, no truncation, no prefix"
    # If the text is not split at its brackets, such a word is an ordinary word.
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = save(inner)
    assert all(number >= len(RESERVED) for number in tokenizer.encode("a <s> [PAD] b"))
    assert tokenizer.encode("<new>").tolist() == [UNKNOWN]


@pytest.mark.parametrize(
    "model",
    [
        models.WordLevel({"good": 0, "book": 1}, unk_token="[UNK]"),
        models.WordPiece({"good": 0, "book": 1}, unk_token="[UNK]"),
        models.Unigram([(piece, -1.0) for piece in ("good", "book", *"godbk")], unk_id=None),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a_file_without_a_token_for_the_unknown(save: Save, model: models.Model) -> None:
    """Known text is tokenized; for other text the library raises a plain Exception."""
    inner = HuggingFaceTokenizer(model)
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = save(inner)
    assert len(tokenizer.encode("good book")) == 2
    with pytest.raises(ErrorDetail, match="cannot tokenize"):
        tokenizer.encode("a good book")


def test_ids_of_a_file_may_have_gaps(save: Save) -> None:
    inner = HuggingFaceTokenizer(models.WordLevel({"a": 0, "[UNK]": 3, "b": 9}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = save(inner)
    assert len(tokenizer) == len(RESERVED) + 2
    assert tokenizer.encode("b a c").tolist() == [6, 5, UNKNOWN]
    assert tokenizer.symbols([5, 6]) == ["a", "b"]


def test_the_tokenizer_of_a_run(tmp_path: Path) -> None:
    tokenizer = train("words", TRAINING)
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer.json_tree()), encoding="utf-8")
    again = TokenizerFileConfig(path=str(tmp_path)).train(lambda: pytest.fail("nothing is learned"))
    assert again.fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("none.json", None, "No such file"),
        ("folder", None, "No such file"),
        ("empty.json", b"", "not a tokenizer"),
        ("cut.json", b'{"version": "1.0", "mod', "not a tokenizer"),
        ("other.json", b'{"a": 1}', "not a tokenizer"),
        ("list.json", b"[1, 2]", "not a tokenizer"),
        ("number.json", b"7", "not a tokenizer"),
        ("binary.json", bytes(range(256)), "not a tokenizer"),
        ("deep.json", b"[" * 100_000, "not a tokenizer"),
        ("cut.model", b"\x0a\x0e\x0a\x05<unk>\x15", "not a SentencePiece model"),
    ],
)
def test_files_that_are_not_tokenizers(tmp_path: Path, name: str, content: bytes | None, said: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    elif name == "folder":
        path.mkdir()
    with pytest.raises(UserError, match=said) as refusal:
        TokenizerFileConfig(path=str(path)).train(list)
    message = str(refusal.value)
    assert f"task.tokenizer.path: {path}" in message and "try:" in message
    assert len(message.splitlines()) <= 3


def test_words_without_marked_spaces_are_the_same_token_anywhere() -> None:
    texts = ["Reuters reports (Reuters)", "it's 1-2 well-known; films."]
    tokenizer = WordsConfig(marks_spaces=False, lowercase=True).train(lambda: texts)
    first, *_, last = tokenizer.encode("Reuters reports (Reuters")
    assert first == last
    assert tokenizer.symbols(tokenizer.encode("well-known films")) == ["well", "-", "known", "films"]
    assert tokenizer.decode(tokenizer.encode("Reuters reports films.")) == "reuters reports films."
    assert tokenizer.decode(tokenizer.encode("Reuters xyz films")) == "reuters ⁇ films"
    text = "  Reuters  reports"
    assert [text[start:end] for _, start, end in tokenizer.spans(text)] == ["Reuters", "reports"]


@pytest.mark.parametrize("marks_spaces", [True, False])
def test_words_of_scripts_without_spaces_are_characters(marks_spaces: bool) -> None:
    text = "这部电影很好 good 映画だ!"
    tokenizer = WordsConfig(marks_spaces=marks_spaces).train(lambda: [text])
    found = [text[start:end] for _, start, end in tokenizer.spans(text)]
    assert found == [*"这部电影很好", "good", *"映画だ!"]
    assert not marks_spaces or tokenizer.decode(tokenizer.encode(text)) == text
