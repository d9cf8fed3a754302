"""Text of exported folders: `text.py` gives the ids and texts of the run's own tokenizer, for any text."""

from __future__ import annotations

import importlib.util
import json
import random
from pathlib import Path
from types import ModuleType

import pytest

import glassformer.interchange
from glassformer.data.tokenizers import (
    BPEConfig,
    BytesConfig,
    CharactersConfig,
    Tokenizer,
    TokenizerConfig,
    UnigramConfig,
    WordsConfig,
)
from glassformer.interchange.exported_text import describe_tokenizer
from glassformer.interchange.exported_tokenizer import tokenizer_document

SCRIPT = Path(glassformer.interchange.__file__).parent / "onnx_folder" / "text.py"
TEXTS = [
    "The quick brown fox's tail jumps over 12,345 lazy dogs.",
    "Don't you think   so?\n\tYes!",
    "ÄÖÜ straße naïve café",
    "日本語のテキスト と ไทย",
    "ΟΔΟΣ İstanbul",
    "a_b c-d e.f",
    "emoji 👩‍👩‍👧 ok",
] * 3
POOL = (
    "abc ABC'’.,!?\n\t  _-0123456789éßΣİ漢字ひカไล\u0301\u200d\u00a0\u2003\u0085\x1c\x00👩½²Ⅷ\ufeff\ud800<>|"
)
KINDS: dict[str, TokenizerConfig] = {
    "characters": CharactersConfig(),
    "lower-case characters": CharactersConfig(lowercase=True),
    "bytes": BytesConfig(),
    "words": WordsConfig(),
    "words without spaces": WordsConfig(lowercase=True, marks_spaces=False),
    "bpe": BPEConfig(vocabulary_size=330, min_frequency=1),
    "lower-case bpe": BPEConfig(vocabulary_size=330, lowercase=True),
    "unigram": UnigramConfig(vocabulary_size=320),
}


def hostile_texts() -> list[str]:
    """Return texts with odd spaces, marks, scripts, special tokens and characters of every plane."""
    rng = random.Random(0)
    mixed = ["".join(rng.choice(POOL) for _ in range(rng.randint(0, 30))) for _ in range(400)]
    spans = [(0x20, 0x3000), (0x3000, 0xD800), (0xE000, 0x20000), (0x20000, 0x110000)]
    planes = ["".join(chr(rng.randrange(*rng.choice(spans))) for _ in range(20)) for _ in range(300)]
    return [*TEXTS, *mixed, *planes, "<mask> </s> <pad><unknown>", "", " ", "a" * 300]


@pytest.fixture(scope="module")
def text() -> ModuleType:
    spec = importlib.util.spec_from_file_location("exported_text_script", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write(tokenizer: Tokenizer, folder: Path) -> dict[str, object]:
    """Write `tokenizer.json` and return its description, as read back from JSON."""
    document = tokenizer_document(tokenizer, [None])
    (folder / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    found: dict[str, object] = json.loads(json.dumps(describe_tokenizer(tokenizer, "tokenizer.json")))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_ids_and_texts_are_equal(kind: str, text: ModuleType, tmp_path: Path) -> None:
    tokenizer = KINDS[kind].train(lambda: TEXTS)
    how = write(tokenizer, tmp_path)
    assert not how["library"]
    exported = text.Tokenizer(tmp_path, how)
    for each in hostile_texts():
        ids = tokenizer.encode(each).tolist()
        assert exported.encode(each) == ids, each
        assert exported.encode(each, continues=True) == tokenizer.encode_continuation(each).tolist(), each
        assert exported.decode(ids) == tokenizer.decode(ids), each
    rng = random.Random(1)
    for _ in range(200):
        ids = [rng.randrange(len(tokenizer)) for _ in range(12)]
        assert exported.decode(ids) == tokenizer.decode(ids)


def test_foreign_tokenizer_needs_the_library(text: ModuleType, tmp_path: Path) -> None:
    tree = BPEConfig(vocabulary_size=330).train(lambda: TEXTS).json_tree()
    tree["pre_tokenizer"] = {"type": "Digits", "individual_digits": True}
    tokenizer = Tokenizer.from_json_tree(tree)
    how = write(tokenizer, tmp_path)
    assert how["library"]
    exported = text.Tokenizer(tmp_path, how)
    for each in ["the quick fox 123", "<mask> brown</s>"]:
        ids = tokenizer.encode(each).tolist()
        assert exported.encode(each) == ids
        assert exported.encode(each, continues=True) == tokenizer.encode_continuation(each).tolist()
        assert exported.decode(ids) == tokenizer.decode(ids)
