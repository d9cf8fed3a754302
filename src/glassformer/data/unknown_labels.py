"""Rows of a split whose labels train does not have: a few are left out, many are an error.

The classes of a model come from train alone. More than 3 rows and more than 1 % of a split are probably
another column or another data set, and stop the training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from glassformer.core.errors import shorten, user_error

MAX_ROWS = 3
MAX_FRACTION = 0.01


def are_too_many(rows: int, total: int) -> bool:
    """Return True if a split has too many rows with unknown labels to leave them out."""
    return rows > MAX_ROWS and rows > MAX_FRACTION * total


@dataclass(frozen=True)
class UnknownRows:
    """Rows of one split with labels that train does not have."""

    split: str
    labels: Mapping[int, Sequence[str]]
    """Unknown labels by row number from 0. Each row has at least one."""
    total: int
    """Number of rows of the split."""
    locate: Callable[[Sequence[int]], Sequence[str]]
    """Function that returns the file and line of each row."""

    @property
    def distinct(self) -> list[str]:
        return list(dict.fromkeys(label for labels in self.labels.values() for label in labels))

    def leave_out(self, known: Sequence[str], *, is_split_off: bool) -> str:
        """Return a warning for the user; raise UserError if there are too many rows to leave them out.

        A part that was split off from train is not another data set: it is an error only if no row is left.
        """
        rows, total = len(self.labels), self.total
        locations = self.locate(list(self.labels)[:MAX_ROWS])
        if rows == total or (are_too_many(rows, total) and not is_split_off):
            message = (
                f"{rows:,} of {total:,} rows have labels that train does not have: {_listed(self.distinct)}; "
                f"train has {_listed(known)}"
            )
            hint = "check that the columns mean the same as in train, or add these labels to train"
            if is_split_off:
                hint = "add examples, so that each label has several; or name a validation file"
            raise user_error(message, path=locations[0], hint=hint)
        more = "; …" if rows > len(locations) else ""
        return (
            f"WARNING: {self.split}: left out, because train does not have their labels: "
            f"{rows:,} of {total:,} rows, {_listed(self.distinct)} ({'; '.join(locations)}{more})"
        )

    def reject_new(self, left_out: Iterable[str], known: Sequence[str]) -> None:
        """Raise UserError for a label that appeared after the task was built: a file has changed."""
        left_out = set(left_out)
        for row, labels in self.labels.items():
            for label in labels:
                if label not in left_out or self.split == "train":
                    path = self.locate([row])[0]
                    raise user_error("unknown label", path=path, value=label, allowed=known)


def _listed(labels: Iterable[str]) -> str:
    return shorten(", ".join(map(repr, labels)), 80)
