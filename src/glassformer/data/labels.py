"""Doubtful labels of a classifier: missing values, typos, lists of labels, numbers that are not classes."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher

from glassformer.core.errors import near_match, shorten
from glassformer.data.roles import are_comma_numbers, comma_number, is_number

MAX_LABELS = 1000
"""Maximum number of labels. A column with more distinct values probably has no labels."""
LABEL_SIMILARITY = 0.8
"""Similarity ratio (`difflib`) from which a rare label may be a typo of a frequent one.

The ratio is 0.93 for postive and positive, and 0.75 for negative and positive.
"""
MAX_COMPARED = 200
"""Number of labels above which a training does not compare all pairs of them. `data check` always does."""
MAX_WARNINGS = 5
"""Maximum number of warnings about single labels that training prints."""
MAX_NUMBERS = 20
"""Number of different whole numbers above which they are probably not classes."""
MISSING = frozenset(
    ("na", "n/a", "#n/a", "nan", "null", "none", "nil", "<na>", "-", "--", "–", "?", "missing", "undefined")
)
"""Labels, without case, that spreadsheets, programs and people write for a missing value."""
PROBLEMS = {
    "missing-label": "a missing value; remove its rows, or rename it",
    "label-typo": "a typo of {intended}; each spelling is a class of its own",
    "label-list": "a list of labels; each list is a class of its own: keep one label per example",
}
"""End of the warning about a doubtful label, by kind."""
SEPARATORS = re.compile(r"\s*[;|,/+&]\s*")


@dataclass(frozen=True)
class Doubt:
    """Reason why a label may be a mistake."""

    kind: str
    """Kind of finding of `data check`, such as `label-typo`."""
    label: str
    """Label in quotes."""
    intended: str = ""
    """Label in quotes of which this one may be a typo."""

    @property
    def detail(self) -> str:
        return f"{self.label}: {self.intended}?" if self.intended else self.label

    def warning(self, split: str, count: int) -> str:
        """Return the warning that training prints. `count` is the number of examples with the label."""
        rows = "1 example" if count == 1 else f"{count:,} examples"
        problem = PROBLEMS[self.kind].format(intended=self.intended)
        return f"WARNING: {split}: the label {self.label} ({rows}) may be {problem}"


def find_doubts(counts: Mapping[str, int], *, compares_all: bool = True) -> dict[str, Doubt]:
    """Return the reason for each doubtful label. `counts` are the numbers of examples by label.

    Without `compares_all`, only labels that are equal but for their writing are found as typos.
    """
    by_form = _by_form(counts)
    members = _members(counts)
    found = {}
    for label in sorted(counts, key=lambda label: (counts[label], label)):
        if label.casefold() in MISSING:
            found[label] = Doubt("missing-label", repr(label))
            continue
        intended = _same_label(label, counts, by_form[plain_label(label)])
        if intended is None and compares_all:
            intended = _similar_label(label, counts)
        if intended is not None:
            found[label] = Doubt("label-typo", _written(label, intended), _written(intended, label))
        elif _is_list(label, counts, members):
            found[label] = Doubt("label-list", repr(label))
    return found


def label_warnings(counts: Mapping[str, int], split: str = "train") -> list[str]:
    """Return the warnings about the labels of a split that training and the preview of its files show."""
    if are_rather_numbers(counts):
        shown = shorten(", ".join(sorted(_values(counts), key=float)), 40)
        return [
            f"WARNING: {split}: the {len(counts):,} labels are numbers ({shown}), and each is a class of its"
            " own; to predict a number: task.target=number"
        ]
    if are_comma_numbers(counts):
        shown = next(advice for label in counts if (advice := comma_number(label)))
        return [
            f"WARNING: {split}: the {len(counts):,} labels are numbers with commas, and each is a class of"
            f" its own; to predict a number: task.target=number ({shown})"
        ]
    doubts = find_doubts(counts, compares_all=len(counts) <= MAX_COMPARED)
    lines = [doubt.warning(split, counts[label]) for label, doubt in doubts.items()]
    if len(lines) > MAX_WARNINGS:
        more = f"{len(lines) - MAX_WARNINGS:,} more labels may be mistakes: glassformer data check"
        lines = [*lines[:MAX_WARNINGS], f"WARNING: {split}: {more}"]
    return lines


def are_real_values(labels: Collection[str]) -> bool:
    """Return True if all labels are numbers, and not all are whole. Whole numbers may be classes."""
    values = _values(labels)
    return bool(values) and not all(float(label).is_integer() for label in values)


def are_rather_numbers(labels: Collection[str]) -> bool:
    """Return True if labels are real values, or many whole numbers that do not count classes from 0 or 1."""
    values = {float(label) for label in _values(labels)}
    if are_real_values(labels):
        return len(values) > 2
    is_numbered = values in ({*range(len(values))}, {*range(1, len(values) + 1)})
    return len(values) > MAX_NUMBERS and not is_numbered


def _values(labels: Collection[str]) -> list[str]:
    """Return the labels without missing values if all of them are numbers, else []."""
    values = [label for label in labels if label.casefold() not in MISSING]
    return values if all(map(is_number, values)) else []


def plain_label(label: str) -> str:
    """Return a label without differences in case, spaces, Unicode forms, and the writing of a number."""
    plain = " ".join(unicodedata.normalize("NFKC", label).split()).casefold()
    return repr(float(plain)) if is_number(plain) else plain


def _by_form(counts: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for label in counts:
        found.setdefault(plain_label(label), []).append(label)
    return found


def _same_label(label: str, counts: Mapping[str, int], same: Iterable[str]) -> str | None:
    """Return the most frequent label that differs only in writing, unless it is `label` itself."""
    best = max(same, key=lambda other: (counts[other], other))
    return None if best == label else best


def _similar_label(label: str, counts: Mapping[str, int]) -> str | None:
    """Return the more frequent label of which this label is probably a misspelling, or None."""
    if is_number(label):
        return None
    # A label seen once or twice is compared with labels 3 times as frequent, others with 20 times.
    times = 3 if counts[label] <= 2 else 20
    frequent = [other for other, count in counts.items() if count >= times * counts[label]]
    near = near_match(label, frequent)
    if near is None or SequenceMatcher(None, label.casefold(), near.casefold()).ratio() < LABEL_SIMILARITY:
        return None
    return near


def _parts(label: str) -> list[str]:
    if is_number(label):
        return [label]
    return [part for part in SEPARATORS.split(label.strip("[](){} ")) if part]


def _members(counts: Iterable[str]) -> Counter[str]:
    """Count the labels in which each part occurs."""
    return Counter(part for label in counts for part in set(_parts(label)))


def _is_list(label: str, counts: Mapping[str, int], members: Mapping[str, int]) -> bool:
    """Return True if a label has several parts, all of which also occur alone or in other labels."""
    parts = _parts(label)
    return len(parts) > 1 and all(part in counts or members[part] > 1 for part in parts)


def _written(label: str, other: str) -> str:
    """Return a label in quotes, with its Unicode characters as escapes if it looks like the other one."""
    looks_same = unicodedata.normalize("NFKC", label) == unicodedata.normalize("NFKC", other)
    return ascii(label) if looks_same and not label.isascii() else repr(label)
