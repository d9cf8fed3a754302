"""What can be wrong with text data, and the places where it is: kinds, excerpts, the report.

How faults are found is the business of `faults`, how they are shown that of the command line.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Kind:
    severity: Severity
    title: str
    advice: str


KINDS = {
    "wrong-checksum": Kind("error", "not the listed bytes", "remove it, then: glassformer data fetch"),
    "empty-file": Kind("error", "empty file", "one example a line"),
    "damaged-gzip": Kind("error", "gzip file cut or damaged", "read up to there; fetch or pack it again"),
    "invalid-utf8": Kind("error", "not UTF-8", "task.data.encoding=latin-1, or whichever it has"),
    "unequal-lines": Kind("error", "unequal numbers of lines", "aligned files have equally many"),
    "no-example": Kind("error", "no example", "at least one, below a header"),
    "bad-row": Kind("error", "row that cannot be read", "equally many columns on each line"),
    "empty-label": Kind("error", "example without a label", "give it one, or remove the line"),
    "maybe-header": Kind("warning", "first line that may be a header", "an example: name the columns"),
    "in-two-splits": Kind("warning", "example in two splits", "remove it from one of them"),
    "input-in-two-splits": Kind(
        "warning", "input in two splits, target differs", "remove it from one of them"
    ),
    "label-typo": Kind("warning", "label that may be a typo", "rare, and near another one"),
    "new-label": Kind("warning", "label that train does not have", "it cannot be learnt"),
    "two-labels": Kind("warning", "same input, other label", "at most one of them is right"),
    "duplicate": Kind("warning", "duplicate example", "counts twice in training and in scores"),
    "empty-side": Kind("warning", "one side empty", "remove the pair"),
    "empty-line": Kind("warning", "empty line", "an example without words"),
    "length-ratio": Kind("warning", "lengths far apart", "often not a translation of each other"),
    "too-long": Kind("warning", "over-long text", "left out or cut, by task.max_length"),
    "nul": Kind("warning", "NUL character", "often a binary file, or UTF-16"),
    "line-separator": Kind("warning", "other line separator inside a line", r"only \n ends a line here"),
    "inner-byte-order-mark": Kind("warning", "byte order mark inside", "files glued together? remove it"),
    "other-target": Kind("note", "same input, other target", "fine where there are several answers"),
    "skipped-line": Kind("note", "empty line in a table", "skipped"),
    "byte-order-mark": Kind("note", "byte order mark at the start", "fine: it is not read as text"),
    "crlf": Kind("note", "line ends in CR LF", "fine: read as LF"),
    "no-final-newline": Kind("note", "no newline at the end", "fine: the last line counts"),
}
"""In the order in which they are told."""


@dataclass(frozen=True)
class Location:
    file: str
    line: int
    """From 1; in a JSON file that is one document, the row."""
    byte: int | None
    """From 0, in the unpacked file; none in such a JSON file."""
    excerpt: str = ""
    detail: str = ""

    def document(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "line": self.line,
            "byte": self.byte,
            "excerpt": self.excerpt,
            "detail": self.detail,
        }


@dataclass
class Finding:
    kind: str
    count: int = 0
    by_scope: dict[str, int] = field(default_factory=dict)
    """Of the count: how many in a split, or in one split beside another."""
    places: list[Location] = field(default_factory=list)

    @property
    def severity(self) -> Severity:
        return KINDS[self.kind].severity

    @property
    def title(self) -> str:
        return KINDS[self.kind].title

    def document(self) -> dict[str, Any]:
        places = [place.document() for place in self.places]
        head = {"kind": self.kind, "severity": self.severity, "title": self.title}
        return {**head, "count": self.count, "by_scope": self.by_scope, "places": places}


@dataclass
class FileSummary:
    file: str
    split: str
    bytes: int = 0
    lines: int = 0
    words: int = 0
    longest: int = 0
    """In words."""
    read_as: str = ""
    """Of a table: whether it has a header, and which columns are taken."""

    def document(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class Leak:
    """How many examples of a split also stand in another one, with the same target or with another."""

    split: str
    other: str
    same: int
    same_input: int
    of: int
    scope: str = ""
    unit: str = "examples"


@dataclass
class Report:
    files: list[FileSummary]
    findings: list[Finding]
    leaks: list[Leak]

    @property
    def passed(self) -> bool:
        return not any(finding.severity == "error" for finding in self.findings)

    def count(self, kind: str, scope: str | None = None) -> int:
        counts = [
            finding.count if scope is None else finding.by_scope.get(scope, 0)
            for finding in self.findings
            if finding.kind == kind
        ]
        return sum(counts)

    def document(self) -> dict[str, Any]:
        return {
            "files": [file.document() for file in self.files],
            "findings": [finding.document() for finding in self.findings],
            "leaks": [dict(vars(leak)) for leak in self.leaks],
            "passed": self.passed,
        }


class Findings:
    """Counts all, and keeps the first places of each kind."""

    def __init__(self, most_places: int | None) -> None:
        self.most_places = most_places
        self._found: dict[str, Finding] = {}

    def room(self, kind: str) -> int | None:
        """How many places more are kept; none: all of them."""
        found = self._found.get(kind)
        if self.most_places is None:
            return None
        return max(0, self.most_places - (len(found.places) if found else 0))

    def add(self, kind: str, which: Sequence[int], place: Callable[[int], Location], scope: str = "") -> None:
        """`place` gives the place of one of `which`, and is asked only for those that are kept."""
        kept = which[: self.room(kind)]
        self.add_places(kind, len(which), [place(int(index)) for index in kept], scope)

    def add_places(self, kind: str, count: int, places: list[Location], scope: str = "") -> None:
        """`places`: of those `count` that there is room for."""
        if count:
            finding = self._found.setdefault(kind, Finding(kind))
            finding.count += count
            if scope:
                finding.by_scope[scope] = finding.by_scope.get(scope, 0) + count
            finding.places += places

    def add_one(self, kind: str, place: Location) -> None:
        self.add(kind, [0], lambda _: place)

    def in_order(self) -> list[Finding]:
        order = list(KINDS)
        return sorted(self._found.values(), key=lambda finding: order.index(finding.kind))


def excerpt(text: str, around: int = 0, width: int = 60) -> str:
    """Printable, on one line, with what stands at `around` in it."""
    start = max(0, min(around - width // 3, len(text) - width))
    shown = "".join(map(_printable, text[start : start + width]))
    return ("…" if start else "") + shown + ("…" if start + width < len(text) else "")


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    if unicodedata.category(character) == "Zs":
        return " "
    number = ord(character)
    if 0xDC80 <= number <= 0xDCFF:  # a byte that was no UTF-8, kept by surrogateescape
        return f"\\x{number - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")
