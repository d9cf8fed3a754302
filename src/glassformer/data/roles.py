"""Roles of a classifier's columns: decides by names and contents which column is the input or the target."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from glassformer.core.errors import shorten

USUAL_NAMES = {
    "input": ("input", "text", "sentence", "review", "source", "inp_expression"),
    "target": ("target", "label", "class", "sentiment", "out_expression"),
}
"""Column names to try for each role, if none is requested and the task's own name is absent."""

CLASSIFIER_NAMES = {
    "input": (
        *USUAL_NAMES["input"][:-2],
        *("texts", "sentences", "reviews", "content", "contents", "body", "article", "document", "abstract"),
        *("description", "message", "comment", "tweet", "post", "question", "query", "utterance", "sms"),
        *("headline", "title", "subject", "source", "inp_expression"),
    ),
    "target": (
        *USUAL_NAMES["target"][:-1],
        *(
            "labels",
            "category",
            "topic",
            "genre",
            "intent",
            "emotion",
            "polarity",
            "rating",
            "stars",
            "score",
        ),
        *("tag", "section", "classes", "categories", "outcome", "language", "out_expression"),
    ),
}
"""Column names to try for a task with one label per text, the most specific first."""
DECISIVE_NAMES = {"input": ("input", "text"), "target": ("target", "label")}
"""Names that decide a role alone, even if other columns also have usual names."""

MIN_CONTENT_ROWS = 8
"""Minimum number of rows whose contents show which columns are labels. Fewer may repeat by chance."""
EXAMPLE_CHARACTERS = 30
"""Maximum number of characters of a value that a warning shows as an example of its column."""
_DECIMAL_COMMA = re.compile(r"[-+]?(\d+|\d{1,3}(\.\d{3})+),\d+", re.ASCII)
_GROUPED = re.compile(r"[-+]?\d{1,3}(,\d{3})+(\.\d+)?", re.ASCII)
_WIDE = re.compile("[\u2e80-\uffef]")
"""Characters of scripts without spaces between words, such as Chinese."""
_WIDE_PER_WORD = 2
_URL = re.compile(r"(https?:|www\.)\S+", re.IGNORECASE)
_DATE = re.compile(
    r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})([T ]\d{1,2}:\d{2}\S*( ?[ap]m)?)?|"
    r"\d{1,2}:\d{2}(:\d{2})?",
    re.IGNORECASE,
)


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def comma_number(text: str) -> str:
    """Return advice for a number with a comma, such as 14,7 or 1,200; empty for any other text."""
    text = text.strip()
    if _GROUPED.fullmatch(text) and (_DECIMAL_COMMA.fullmatch(text) is None):
        return f"thousands separators? write {text.replace(',', '')}"
    if not _DECIMAL_COMMA.fullmatch(text):
        return ""
    decimal = text.replace(".", "").replace(",", ".")
    if _GROUPED.fullmatch(text):
        return f"thousands separator? write {text.replace(',', '')}; decimal comma? write {decimal}"
    return f"decimal comma? write {decimal}"


def are_comma_numbers(values: Collection[str]) -> bool:
    """Return True if all values are numbers, some of them with a comma. Ignores empty values."""
    filled = [value for value in values if value.strip()]
    commas = sum(map(bool, map(comma_number, filled)))
    return commas > 0 and all(is_number(value) or comma_number(value) for value in filled)


def looks_like_labels(values: Sequence[str]) -> bool:
    """Return True if all values are numbers, or all are short and few are distinct. Ignores empty values."""
    return ColumnContents(values).is_labels


class ColumnContents:
    """Contents of one column in the first rows of a file, and what they look like."""

    def __init__(self, values: Sequence[str]) -> None:
        self.values = values
        self.distinct = set(values) - {""}

    @property
    def example(self) -> str:
        return shorten(next((value for value in self.values if value.strip()), ""), EXAMPLE_CHARACTERS)

    @cached_property
    def is_repeated(self) -> bool:
        """True if all values are short, and few are distinct."""
        is_short = all(len(value) <= 40 and len(value.split()) <= 3 for value in self.distinct)
        return is_short and len(self.distinct) <= max(2, len(self.values) // 3)

    @cached_property
    def is_labels(self) -> bool:
        """True if all values are numbers, or all are short and few are distinct."""
        is_numeric = all(map(is_number, self.distinct)) or are_comma_numbers(self.distinct)
        return is_numeric or self.is_repeated

    @cached_property
    def is_text(self) -> bool:
        """True if the values have on average three words or more, and are not labels."""
        words = sum(max(len(value.split()), _wide_words(value)) for value in self.values)
        return words >= 3 * len(self.values) > 0 and not self.is_labels

    @cached_property
    def is_identifier(self) -> bool:
        """True if all values are dates, times or addresses, or all are different whole numbers."""
        values = [value.strip() for value in self.distinct]
        if len(values) == len(self.values) and all(map(str.isdecimal, values)):
            return True
        return bool(values) and all(_URL.fullmatch(value) or _DATE.fullmatch(value) for value in values)

    @property
    def is_varied(self) -> bool:
        """True if few texts repeat."""
        return 4 * len(self.distinct) >= len(self.values)


def _wide_words(text: str) -> int:
    return 0 if text.isascii() else len(_WIDE.findall(text)) // _WIDE_PER_WORD


def text_columns(columns: Iterable[int], contents: Sequence[ColumnContents]) -> list[int]:
    """Return those columns that contain texts."""
    return [column for column in columns if contents[column].is_text]


@dataclass(frozen=True)
class Choice:
    """Column that is chosen for a role, and all columns that may have the role."""

    candidates: tuple[int, ...]
    """Columns that names and contents allow, the best first."""
    is_named: bool
    """True if the candidates have usual names."""

    @property
    def column(self) -> int:
        return self.candidates[0]


def choose_roles(
    names: Sequence[str], contents: Sequence[ColumnContents], requested: Mapping[str, Collection[int]]
) -> dict[str, Choice]:
    """Choose the columns of `input` and `target` by names and contents; leave out a role that is unclear.

    `names` are those of the header; empty if there is none. `requested` are columns that the user has chosen
    for the other role.
    """
    taken = {column for columns in requested.values() for column in columns}
    free = [column for column in range(len(contents)) if column not in taken]
    found: dict[str, Choice] = {}
    for role in [role for role in ("input", "target") if role not in requested]:
        columns, is_named = _named(role, names, free, contents)
        if columns:
            found[role] = Choice(columns, is_named)
            free.remove(columns[0])
    for role in [role for role in ("input", "target") if role not in requested and role not in found]:
        others = _fitting(role, free, contents)
        if others:
            found[role] = Choice(others, is_named=False)
            free.remove(others[0])
    return found


def _named(
    role: str, names: Sequence[str], free: Sequence[int], contents: Sequence[ColumnContents]
) -> tuple[tuple[int, ...], bool]:
    """Return the columns that may have a role by their names, and True if the first has a usual name.

    A column whose contents contradict its name is left out. Unless a name is decisive, columns of texts come
    before named columns whose values have a word or two.
    """
    plain = [name.strip().casefold() for name in names]
    found = [
        column
        for name in CLASSIFIER_NAMES[role]
        for column in range(len(plain))
        if plain[column] == name and column in free
    ]
    decisive = [column for column in found if plain[column] in DECISIVE_NAMES[role]]
    if not found or len(contents[0].values) < MIN_CONTENT_ROWS or (decisive and role == "target"):
        return tuple(decisive or found), True
    fitting = [column for column in found if not _is_contradicted(role, column, free, contents)]
    decisive = [column for column in fitting if column in decisive]
    if decisive or role == "target":
        return tuple(decisive or fitting), True
    if texts := text_columns(fitting, contents):
        return tuple(texts), True
    texts = text_columns(free, contents) if fitting else []
    return (*texts, *fitting), not texts


def _is_contradicted(role: str, column: int, free: Sequence[int], contents: Sequence[ColumnContents]) -> bool:
    """Return True if the contents of a column do not fit a role, but those of another column do."""
    own, others = contents[column], [contents[other] for other in free if other != column]
    if role == "input":
        return (own.is_labels or own.is_identifier) and any(other.is_text for other in others)
    is_other = own.is_text or own.is_identifier
    return is_other and any(other.is_repeated and not other.is_identifier for other in others)


def _fitting(role: str, free: Sequence[int], contents: Sequence[ColumnContents]) -> tuple[int, ...]:
    """Return the columns whose contents fit a role, the best first."""
    if not contents or len(contents[0].values) < MIN_CONTENT_ROWS:
        return ()
    if role == "input":
        texts = text_columns(free, contents)
        varied = [column for column in texts if contents[column].is_varied]
        others = [column for column in free if not contents[column].is_labels]
        plain = [column for column in others if not contents[column].is_identifier]
        return tuple(varied or texts or (plain or others)[:1]) or _most_varied(free, contents)
    labels = [column for column in free if contents[column].is_labels and len(contents[column].distinct) > 1]
    plain = [column for column in labels if not contents[column].is_identifier]
    repeated = [column for column in plain if contents[column].is_repeated]
    found = repeated or plain or labels
    if found and found[-1] == len(contents) - 1:  # labels are usually in the last or in the first column
        found = [found[-1], *found[:-1]]
    return tuple(found)


def _most_varied(free: Sequence[int], contents: Sequence[ColumnContents]) -> tuple[int, ...]:
    """Return the column with the most distinct values; nothing if at most two columns can be chosen from."""
    plain = [column for column in free if not contents[column].is_identifier]
    if len(plain) < 3:
        return ()
    return (max(plain, key=lambda column: len(contents[column].distinct)),)


def column_contents(rows: Sequence[Any], columns: Iterable[str | int]) -> list[ColumnContents]:
    """Return the contents of each column in these rows, which are lists of fields or JSON objects."""
    return [
        ColumnContents([as_shown(row.get(column) if isinstance(row, dict) else row[column]) for row in rows])
        for column in columns
    ]


def candidates(
    chosen: Mapping[str, Choice], contents: Sequence[ColumnContents]
) -> dict[str, dict[str | int, str]]:
    """Return the roles with more than one candidate: the columns of each, with an example."""
    return {
        role: {column: contents[column].example for column in choice.candidates}
        for role, choice in chosen.items()
        if len(choice.candidates) > 1
    }


def as_shown(value: Any) -> str:
    """Return a value of a table or of JSON as text."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return " ".join(map(as_shown, value))
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return "" if value is None else str(value)
