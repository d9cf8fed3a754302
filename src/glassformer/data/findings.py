"""Findings about data files: their kinds, their locations, and the report of `data check`.

Every reader takes an `OnFinding`. Training passes `raise_error`, which stops at the first error. `data check`
passes a collector, so the same reader continues after an error and reports all of them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from glassformer.core.errors import UserError

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Kind:
    """Severity, title and advice shared by all findings of one kind."""

    severity: Severity
    title: str
    advice: str


KINDS = {
    "wrong-checksum": Kind("error", "checksum differs", "remove the file, then: glassformer data fetch"),
    "empty-file": Kind("error", "empty file", "write one example per line"),
    "damaged-gzip": Kind("error", "gzip file cut or damaged", "download or compress it again"),
    "invalid-utf8": Kind("error", "not UTF-8", "task.data.encoding=latin-1, or the encoding it has"),
    "zero-bytes": Kind("error", "a quarter zero bytes", "a binary file, or another encoding"),
    "carriage-returns": Kind("error", "carriage returns end the lines", "convert them to line feeds"),
    "unequal-lines": Kind("error", "unequal numbers of lines", "aligned files need the same number"),
    "no-example": Kind("error", "no example", "add at least one, below a header"),
    "bad-row": Kind("error", "unreadable row", "use the same columns on each line"),
    "empty-label": Kind("error", "example without a label", "add the label, or remove the line"),
    "maybe-header": Kind("warning", "first line may be a header", "read as an example: name the columns"),
    "in-two-splits": Kind("warning", "example in two splits", "remove it from one of them"),
    "input-in-two-splits": Kind(
        "warning", "input in two splits, target differs", "remove it from one of them"
    ),
    "label-typo": Kind("warning", "label may be a typo", "rare, and similar to another label"),
    "new-label": Kind("warning", "label missing from train", "a model cannot learn it"),
    "two-labels": Kind("warning", "same input, different label", "at most one of them is right"),
    "duplicate": Kind("warning", "duplicate example", "counts twice in training and in metrics"),
    "empty-side": Kind("warning", "one side empty", "remove the pair"),
    "empty-line": Kind("warning", "empty line", "read as an example without words"),
    "length-ratio": Kind("warning", "very different lengths", "often not a translation of each other"),
    "too-long": Kind("warning", "over-long text", "skipped or truncated, by task.max_length"),
    "nul": Kind("warning", "NUL character", "often a binary file, or UTF-16"),
    "line-separator": Kind("warning", "other line separator inside a line", r"only \n ends a line"),
    "inner-byte-order-mark": Kind("warning", "byte order mark inside the text", "remove it"),
    "other-target": Kind("note", "same input, different target", "fine where several targets are right"),
    "skipped-line": Kind("note", "empty line in a table", "skipped"),
    "byte-order-mark": Kind("note", "byte order mark at the start", "fine: not part of the text"),
    "crlf": Kind("note", "lines end in CR LF", "fine: read as LF"),
    "no-final-newline": Kind("note", "no newline at the end", "fine: the last line counts"),
}
"""All kinds, in the order of the report."""


@dataclass(frozen=True)
class Location:
    """Position of one finding in a file, with an excerpt of the text."""

    file: str
    line: int
    """Line number from 1; in a JSON document, the row number."""
    byte: int | None
    """Byte offset from 0 in the uncompressed file; None in a JSON document and in UTF-16 or UTF-32."""
    excerpt: str = ""
    detail: str = ""


class Issue(NamedTuple):
    """Message of a reader about a line or a row of a file."""

    kind: str
    path: Path
    line: int
    error: UserError | None = None
    """None for a warning or a note."""
    shown: str = ""
    """Text for the excerpt."""
    unit: str = "line"
    """Unit of `line`: a line, or a row of a JSON document."""


OnFinding = Callable[[Issue], None]
"""Callback of the readers: raise the error of an issue, or record it; the reader then continues."""


def raise_error(issue: Issue) -> None:
    """Raise the error of an issue; ignore warnings and notes. Default of every reader."""
    if issue.error is not None:
        raise issue.error


@dataclass
class Finding:
    """All findings of one kind: their count and the first locations."""

    kind: str
    count: int = 0
    by_scope: dict[str, int] = field(default_factory=dict)
    """Count per split, or per pair of splits such as `test in train`."""
    locations: list[Location] = field(default_factory=list)

    @property
    def severity(self) -> Severity:
        return KINDS[self.kind].severity

    @property
    def title(self) -> str:
        return KINDS[self.kind].title

    def document(self) -> dict[str, Any]:
        return {"kind": self.kind, "severity": self.severity, "title": self.title} | asdict(self)


@dataclass
class FileSummary:
    """Size of one file, and how its columns were read."""

    file: str
    split: str
    bytes: int = 0
    lines: int = 0
    words: int = 0
    longest: int = 0
    """Number of words of the longest text."""
    read_as: str = ""
    """Header and columns of a table; empty for other formats."""


@dataclass(frozen=True)
class Leak:
    """Number of examples of one split that also appear in another, by target."""

    split: str
    other: str
    same: int
    """Examples with the same input and the same target."""
    same_input: int
    """Examples with the same input and a different target."""
    of: int
    """Number of examples in `split`."""
    scope: str = ""
    unit: str = "examples"


@dataclass
class Report:
    """Result of `data check`."""

    files: list[FileSummary]
    findings: list[Finding]
    leaks: list[Leak]

    @property
    def passed(self) -> bool:
        """True without errors; warnings and notes are allowed."""
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
            "files": [asdict(file) for file in self.files],
            "findings": [finding.document() for finding in self.findings],
            "leaks": [asdict(leak) for leak in self.leaks],
            "passed": self.passed,
        }


class Findings:
    """Collector that counts every finding and keeps the first locations of each kind."""

    def __init__(self, max_locations: int | None) -> None:
        self.max_locations = max_locations
        self._found: dict[str, Finding] = {}

    def room(self, kind: str) -> int | None:
        """Return how many more locations of a kind are kept; None means all."""
        found = self._found.get(kind)
        if self.max_locations is None:
            return None
        return max(0, self.max_locations - (len(found.locations) if found else 0))

    def add(
        self, kind: str, which: Sequence[int], location: Callable[[int], Location], scope: str = ""
    ) -> None:
        """Count all of `which`; call `location` only for those that are kept."""
        kept = which[: self.room(kind)]
        self.add_locations(kind, len(which), [location(int(index)) for index in kept], scope)

    def add_locations(self, kind: str, count: int, locations: list[Location], scope: str = "") -> None:
        """Count `count` findings; `locations` are the first of them, as many as there is room for."""
        if count:
            finding = self._found.setdefault(kind, Finding(kind))
            finding.count += count
            if scope:
                finding.by_scope[scope] = finding.by_scope.get(scope, 0) + count
            finding.locations += locations

    def add_one(self, kind: str, location: Location) -> None:
        self.add(kind, [0], lambda _: location)

    @property
    def has_error(self) -> bool:
        return any(finding.severity == "error" for finding in self._found.values())

    def in_order(self) -> list[Finding]:
        order = list(KINDS)
        return sorted(self._found.values(), key=lambda finding: order.index(finding.kind))


def excerpt(text: str, position: int = 0, width: int = 60) -> str:
    """Cut a printable single line of at most `width` characters that includes `position`."""
    start = max(0, min(position - width // 3, len(text) - width))
    shown = "".join(map(_printable, text[start : start + width]))
    return ("…" if start else "") + shown + ("…" if start + width < len(text) else "")


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    if unicodedata.category(character) == "Zs":
        return " "
    number = ord(character)
    if 0xDC80 <= number <= 0xDCFF:  # a byte that surrogateescape could not decode
        return f"\\x{number - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")
