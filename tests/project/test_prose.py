"""Prose rules that a machine can check: the first word of each docstring, and the words of the field.

CONTRIBUTING.md has the rules. There is no list of exceptions: rewrite the sentence instead.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src" / "glassformer").rglob("*.py"))

FIRST_WORDS = frozenset(
    [
        "of",
        "what",
        "whatever",
        "whether",
        "who",
        "whoever",
        "whom",
        "whose",
        "which",
        "by",
        "how",
        "however",
        "where",
        "wherever",
        "as",
        "not",
        "from",
        "in",
        "into",
        "on",
        "for",
        "with",
        "within",
        "without",
        "after",
        "before",
        "if",
        "that",
        "to",
        "at",
        "so",
        "nor",
        "behind",
        "beside",
        "besides",
        "beyond",
        "until",
        "unless",
        "since",
        "through",
        "under",
        "upon",
        "towards",
    ]
)
"""Words that a docstring does not begin with: a noun or an imperative verb comes first."""

IDIOM = re.compile(
    r"\b(?:anew|so many|so often|(?<!here )(?:is|are) no (?!longer|more)[a-z]+|whoever|nobody|meanwhile"
    r"|stands? (?:in|at|for|on|there|beside|behind|before|between|together)"
    r"|who (?:asks|stops|has|wants|gave|reads)"
    r"|(?:an?|one|each) (?:line|row|file|token|thread|word|key|example|batch|step|sequence|text) an? [a-z]+"
    r"|of like|like (?:length|work|lengths|size)|by heart|surroundings|thaw\w*|goes on from|mend(?:s|ed)?"
    r"|a person|a human being|tells? (?:how|what|which|whether|a|the)|says? (?:how|what|which|whether|so))\b"
)
"""Turns of phrase with a plain equivalent: "again", "N", "is not an X", "one line per key", "prints", …"""


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring: of modules, classes, functions and attributes."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for before, statement in zip([None, *body], body, strict=False):
            if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
                continue
            is_first = before is None and not isinstance(node, (ast.If, ast.For, ast.With, ast.Try))
            if isinstance(statement.value.value, str) and (
                is_first or isinstance(before, (ast.Assign, ast.AnnAssign))
            ):
                yield statement.lineno, statement.value.value


def faults(text: str) -> Iterator[str]:
    """Rules that one docstring breaks."""
    first = re.match(r"[`\"'(]*([A-Za-z]+)", text.strip())
    if first and first[1].lower() in FIRST_WORDS:
        yield f"begins with {first[1]!r}"
    yield from (f"{found[0]!r}" for found in IDIOM.finditer(text))


def other_text(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of every comment and every string literal."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            yield token.start[0], token.string


@pytest.mark.parametrize(
    "path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src" / "glassformer"))
)
def test_docstrings_comments_and_messages_are_plain(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    found = [
        f"line {line}: {fault}" for line, text in docstrings(ast.parse(source)) for fault in faults(text)
    ]
    found += [
        f"line {line}: {match[0]!r}" for line, text in other_text(source) for match in IDIOM.finditer(text)
    ]
    assert not sorted(set(found))


@pytest.mark.parametrize(
    "text",
    [
        "Of a row.",
        "What programs read.",
        "Whether it is so.",
        "By the processor alone.",
        "Write one line a key.",
        "A number that is no number.",
        "Read it anew.",
        "Train with so many processes.",
    ],
)
def test_decoded_sentences_are_found(text: str) -> None:
    assert list(faults(text))


def test_plain_sentences_pass() -> None:
    for text in (
        "Thread-safe LRU cache.",
        "Write one line per key.",
        "Return the row, which is no longer needed.",
    ):
        assert not list(faults(text))
