"""Findings about data files: their kinds, their locations, and the report of `data check`.

Every reader takes a callback `OnFinding`. Training passes `raise_error`, which stops at the first error.
`data check` passes a collector, so that the same reader continues after an error and reports all of them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from glassformer.core.errors import UserError

SEVERITIES = ("error", "warning", "note")


@dataclass(frozen=True)
class Kind:
    """Severity, title and advice shared by all findings of one kind."""

    severity: str
    title: str
    advice: str


_TABLE = Path(__file__).with_name("findings.tsv").read_text(encoding="utf-8")
KINDS = {name: Kind(*columns) for name, *columns in (line.split("\t") for line in _TABLE.splitlines())}
"""All kinds of findings by name, in the order in which the report lists them."""


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
    """Problem that a reader found in a line or row of a file."""

    kind: str
    path: Path
    line: int
    error: UserError | None = None
    """Error that training raises; None for a warning or a note."""
    shown: str = ""
    """Text from which the excerpt in the report is cut."""
    unit: str = "line"
    """Unit of `line`: a line, or a row of a JSON document."""
    row: Any = None
    """Fields of the row as far as they were read, or a JSON value; None if nothing could be read."""


OnFinding = Callable[[Issue], None]
"""Callback that receives an issue, and either raises its error or records it and lets reading continue."""


def raise_error(issue: Issue) -> None:
    """Raise the error of an issue, and ignore warnings and notes. This is the default of every reader."""
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
    def severity(self) -> str:
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
    examples: int = 0
    """Number of examples; 0 for a running text."""
    words: int = 0
    longest: int = 0
    """Number of words of the longest text."""
    read_as: str = ""
    """Description of a table's header and columns; empty for other formats."""
    notes: list[str] = field(default_factory=list)
    """Notes that training prints about this file: how it is read, and which options may be missing."""
    columns: list[ColumnUse] = field(default_factory=list)


@dataclass(frozen=True)
class ColumnUse:
    """Column of a table or of JSON rows, with the role that it has for training."""

    column: str | int
    """Number from 0, or the name in a JSON object."""
    name: str
    """Name in the header or in the JSON object; empty if the column has none."""
    role: str
    """Role such as `input` or `target`; empty if the column is ignored."""
    example: str
    """Excerpt of the first example."""


@dataclass(frozen=True)
class ClassCount:
    """Number of examples of one class in a split."""

    split: str
    label: str
    count: int
    share: float
    """Fraction of the split's examples."""
    scope: str = ""


@dataclass(frozen=True)
class Leak:
    """Overlap of two splits: the numbers of examples in `split` whose input also appears in `other`."""

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
    """Result of `glassformer data check`: file summaries, findings, and overlaps between splits."""

    files: list[FileSummary]
    findings: list[Finding]
    leaks: list[Leak]
    classes: list[ClassCount] = field(default_factory=list)
    """Number of examples per class and split, the most frequent class of each split first."""
    source: str = ""
    """Preset and options that fit files without a task, such as `classification`; else empty."""
    encoding: str = ""
    """Encoding that the files probably have instead of UTF-8; else empty."""

    @property
    def passed(self) -> bool:
        """True if there are no errors. Warnings and notes are allowed."""
        return not any(finding.severity == "error" for finding in self.findings)

    def count(self, kind: str, scope: str | None = None) -> int:
        found = [finding for finding in self.findings if finding.kind == kind]
        return sum(each.count if scope is None else each.by_scope.get(scope, 0) for each in found)

    def document(self) -> dict[str, Any]:
        findings = [finding.document() for finding in self.findings]
        return asdict(self) | {"findings": findings, "passed": self.passed}


class Findings:
    """Collector that counts every finding and keeps the first locations of each kind."""

    def __init__(self, max_locations: int | None) -> None:
        self.max_locations = max_locations
        self._found: dict[str, Finding] = {}

    def add(
        self, kind: str, which: Sequence[int], location: Callable[[int], Location], scope: str = ""
    ) -> None:
        """Count a finding for each row number in `which`. Call `location` only for rows to be shown."""
        self.add_all(kind, which, lambda kept: list(map(location, kept)), scope)

    def add_all(
        self, kind: str, which: Sequence[int], locate: Callable[[list[int]], list[Location]], scope: str
    ) -> None:
        """Count a finding for each row number in `which`. Call `locate` once, with the rows to be shown."""
        if not len(which):
            return
        finding = self._found.setdefault(kind, Finding(kind))
        room = None if self.max_locations is None else self.max_locations - len(finding.locations)
        finding.locations += locate(list(which[:room]))
        finding.count += len(which)
        if scope:
            finding.by_scope[scope] = finding.by_scope.get(scope, 0) + len(which)

    def add_one(self, kind: str, location: Location) -> None:
        self.add(kind, [0], lambda _: location)

    def count(self, kind: str) -> int:
        return self._found[kind].count if kind in self._found else 0

    @property
    def has_error(self) -> bool:
        return any(finding.severity == "error" for finding in self._found.values())

    def in_order(self) -> list[Finding]:
        return [self._found[kind] for kind in KINDS if kind in self._found]


def excerpt(text: str, position: int = 0, width: int = 60) -> str:
    """Return up to `width` characters of the text around `position`, as one printable line."""
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
