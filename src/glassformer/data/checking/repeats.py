"""Examples that stand twice, in a split or in two, and labels that look like others.

Of each example eight bytes a key are kept, so that large files can be compared; two texts whose hashes agree
by chance are as good as impossible (one in a million for ten million lines).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

import numpy as np

from glassformer.core.errors import near_match
from glassformer.data.checking.findings import Findings, Leak, Location, excerpt
from glassformer.data.checking.lines import CheckedLines
from glassformer.data.checking.rows import Batch
from glassformer.data.columns import is_number

MOST_LABELS = 1000
NEARNESS = 0.8
"""Of `difflib`: "postive" and "positive" have 0.93, "negative" and "positive" 0.75."""


@dataclass
class Ledger:
    """Keys and places of a split's examples."""

    split: str
    files: list[CheckedLines] = field(default_factory=list)
    inputs: array[int] = field(default_factory=lambda: array("q"))
    examples: array[int] = field(default_factory=lambda: array("q"))
    file_numbers: array[int] = field(default_factory=lambda: array("i"))
    lines: array[int] = field(default_factory=lambda: array("q"))
    offsets: array[int] = field(default_factory=lambda: array("q"))
    """-1 where rows are not lines."""
    excerpts: list[str] = field(default_factory=list)
    """Kept only where rows are not lines, and so could not be found again."""
    labels: dict[str, array[int]] = field(default_factory=dict)
    """The rows of each label."""

    def __len__(self) -> int:
        return len(self.examples)

    def enter(self, batch: Batch, rows: Sequence[int], has_labels: bool) -> None:
        file = batch.files[0]
        if not self.files or self.files[-1] is not file:
            self.files.append(file)
        columns = [[column[row] for row in rows] for column in batch.columns]
        if has_labels:
            for number, label in enumerate(columns[1], start=len(self)):
                if len(self.labels) <= MOST_LABELS:
                    self.labels.setdefault(label, array("q")).append(number)
        self.inputs.extend(map(hash, columns[0]))
        self.examples.extend(map(hash, zip(*columns, strict=True)))
        self.file_numbers.extend([len(self.files) - 1] * len(rows))
        self.lines.extend([batch.lines[row] for row in rows])
        if batch.offsets is None:
            self.offsets.extend([-1] * len(rows))
            self.excerpts += [excerpt(text) for text in columns[0]]
        else:
            self.offsets.extend([batch.offsets[0][row] for row in rows])

    def name(self, row: int) -> str:
        return f"{self.files[self.file_numbers[row]].path.name}:{self.lines[row]}"

    def places(self, rows: list[int], details: list[str]) -> list[Location]:
        """With excerpts, for which the files are opened once more."""
        shown: dict[int, dict[int, str]] = {}
        for number in {self.file_numbers[row] for row in rows}:
            offsets = [self.offsets[row] for row in rows if self.file_numbers[row] == number]
            if min(offsets) >= 0:
                shown[number] = self.files[number].excerpts(offsets)
        places = []
        for row, detail in zip(rows, details, strict=True):
            number, offset = self.file_numbers[row], self.offsets[row]
            byte = None if offset < 0 else offset
            text = self.excerpts[row] if offset < 0 else shown[number][offset]
            places.append(Location(self.files[number].name, self.lines[row], byte, text, detail))
        return places

    def keys(self) -> tuple[np.ndarray, np.ndarray]:
        return np.asarray(self.inputs, np.int64), np.asarray(self.examples, np.int64)


def find_duplicates(ledger: Ledger, has_labels: bool, findings: Findings, scope: str) -> None:
    """Every one after the first."""
    inputs, examples = ledger.keys()
    first_example, first_input = _first_rows(examples, examples), _first_rows(inputs, inputs)
    numbers = np.arange(len(ledger))
    is_duplicate = first_example != numbers
    where = join_scope(scope, ledger.split)
    _add(ledger, "duplicate", is_duplicate, ledger, first_example, findings, where)
    is_other = (first_input != numbers) & ~is_duplicate
    kind = "two-labels" if has_labels else "other-target"
    _add(ledger, kind, is_other, ledger, first_input, findings, where)


def find_overlap(ledger: Ledger, other: Ledger, findings: Findings, scope: str, unit: str) -> Leak:
    inputs, examples = ledger.keys()
    other_inputs, other_examples = other.keys()
    in_example, in_input = _first_rows(examples, other_examples), _first_rows(inputs, other_inputs)
    is_same = in_example >= 0
    is_same_input = (in_input >= 0) & ~is_same
    where = join_scope(scope, f"{ledger.split} in {other.split}")
    _add(ledger, "in-two-splits", is_same, other, in_example, findings, where)
    _add(ledger, "input-in-two-splits", is_same_input, other, in_input, findings, where)
    same, same_input = int(is_same.sum()), int(is_same_input.sum())
    return Leak(ledger.split, other.split, same, same_input, len(ledger), scope, unit)


def _first_rows(keys: np.ndarray, among: np.ndarray) -> np.ndarray:
    """For each key the first row of `among` with it, or -1."""
    if not len(among):
        return np.full(len(keys), -1)
    values, first = np.unique(among, return_index=True)
    nearest = np.minimum(np.searchsorted(values, keys), len(values) - 1)
    return np.where(values[nearest] == keys, first[nearest], -1)


def _add(
    ledger: Ledger,
    kind: str,
    is_meant: np.ndarray,
    other: Ledger,
    other_rows: np.ndarray,
    findings: Findings,
    scope: str,
) -> None:
    rows = np.nonzero(is_meant)[0]
    kept = rows[: findings.room(kind)].tolist()
    places = ledger.places(kept, [f"as {other.name(int(other_rows[row]))}" for row in kept])
    findings.add_places(kind, len(rows), places, scope)


def check_labels(ledgers: Mapping[str, Ledger], findings: Findings, scope: str) -> None:
    """A label that is another one but for case and spaces, or rare and nearly another; one not in train."""
    counts: dict[str, int] = {}
    for ledger in ledgers.values():
        for label, rows in ledger.labels.items():
            counts[label] = counts.get(label, 0) + len(rows)
    if len(counts) > MOST_LABELS or _are_measured(counts):
        return
    learnt = ledgers["train"].labels if "train" in ledgers else counts
    for label in sorted(counts, key=lambda label: (counts[label], label)):
        meant = _meant(label, counts)
        for ledger in ledgers.values():
            rows = ledger.labels.get(label, array("q"))
            if meant is not None:
                kind, detail = "label-typo", f"{label!r}: {meant!r}?"
            elif label not in learnt:
                kind, detail = "new-label", repr(label)
            else:
                continue
            kept = rows[: findings.room(kind)].tolist()
            places = ledger.places(kept, [detail] * len(kept))
            findings.add_places(kind, len(rows), places, join_scope(scope, ledger.split))


def _are_measured(labels: Iterable[str]) -> bool:
    """Real values, of which each may be new. Whole numbers may be classes, such as stars."""
    return all(map(is_number, labels)) and not all(float(label).is_integer() for label in labels)


def _meant(label: str, counts: Mapping[str, int]) -> str | None:
    """The label that this one probably stands for."""
    more = {other: count for other, count in counts.items() if count > counts[label] and other != label}
    split_balanced = [other for other in more if _plain(other) == _plain(label)]
    if split_balanced:
        return max(split_balanced, key=lambda other: more[other])
    if is_number(label):
        return None
    # Seen once or twice, a label is rare beside a few others; later only beside many.
    times = 3 if counts[label] <= 2 else 20
    frequent = [other for other, count in more.items() if count >= times * counts[label]]
    near = near_match(label, frequent)
    if near is None or SequenceMatcher(None, label.casefold(), near.casefold()).ratio() < NEARNESS:
        return None
    return near


def join_scope(part: str, split: str) -> str:
    return f"{part} {split}" if part else split


def _plain(label: str) -> str:
    return " ".join(label.split()).casefold()
