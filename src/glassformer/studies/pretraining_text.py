"""The text that a study pre-trains on: gathered from the data folder, without any text of the test split.

A line is a text. What was left out is counted. Which model reads the file is not this module's business.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from glassformer.core.config import validate
from glassformer.data.readers import DataConfig
from glassformer.storage.files import replace_file
from glassformer.tasks.classification import ClassificationConfig
from glassformer.tasks.text import DataReport

ROLES = {"input": "text"}
OWN = "the task's own texts, {}"
ANCHOR_WORDS = 5
"""A test text of so many words is looked for anywhere in a line; a shorter one is compared with whole lines,
since many a line that has nothing to do with it holds the same few words."""

_WORD = re.compile(r"\w+")
_LINE_BREAK = re.compile(r"<br\s*/?>")
_SIGN = re.compile(r"\s*([^\w\s'’-])\s*")


@dataclass(frozen=True)
class TextSource:
    """Files with texts, as `task.data` names them."""

    data: Mapping[str, Any]
    as_polarity: bool = False
    """Written like the sentences of movie_polarity: small letters, and signs between spaces."""

    @property
    def name(self) -> str:
        return str(self.data["train"])

    def texts(self) -> Iterator[str]:
        stream = validate(DataConfig, dict(self.data)).stream("train", ROLES)
        assert stream is not None  # there is always a train
        for record in stream:
            text = _LINE_BREAK.sub(" ", str(record.values["input"]))
            yield _SIGN.sub(r" \1 ", text.lower()) if self.as_polarity else text


@dataclass(frozen=True)
class TextPlan:
    """Where the text comes from: files, and splits of the classification task, whose labels are not read."""

    sources: Sequence[TextSource]
    own_splits: Sequence[str]
    own_times: int = 1
    """How often each text of the task's own splits is read in an epoch, hidden words differing each time."""
    quick_lines: int = 4000
    """Of each source, in the small version."""


@dataclass(frozen=True)
class PretrainingText:
    path: Path
    record: dict[str, Any]
    """Lines by source, what was left out, and the checksum."""

    @property
    def sha256(self) -> str:
        return str(self.record["sha256"])


class TestTexts:
    """Texts that must not be seen before the test, compared word by word, without case and signs."""

    __test__ = False  # for pytest: these are texts of a test, not a test

    def __init__(self, texts: Iterable[str]) -> None:
        self._short: set[tuple[str, ...]] = set()
        self._long: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
        for text in texts:
            words = _words(text)
            if 0 < len(words) < ANCHOR_WORDS:
                self._short.add(words)
            elif words:
                self._long.setdefault(words[:ANCHOR_WORDS], []).append(words)

    def stand_in(self, line: str) -> bool:
        words = _words(line)
        if words in self._short:
            return True
        for start in range(len(words) - ANCHOR_WORDS + 1):
            for sought in self._long.get(words[start : start + ANCHOR_WORDS], ()):
                if words[start : start + len(sought)] == sought:
                    return True
        return False


def _words(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(text.casefold()))


def gather(plan: TextPlan, task: ClassificationConfig, folder: Path, *, is_quick: bool) -> PretrainingText:
    """Written once: its name holds its checksum, so another text is another file."""
    splits = task.model_copy(update={"train_limit": None}).texts(DataReport())
    test = TestTexts(str(text) for text in splits["test"].column("input"))
    parts: dict[str, Iterable[str]] = {source.name: source.texts() for source in plan.sources}
    for split in plan.own_splits:
        parts[OWN.format(split)] = map(str, splits[split].column("input"))
    times = dict.fromkeys(map(OWN.format, plan.own_splits), plan.own_times)
    lines: dict[str, int] = {}
    counts, left_out = Counter[str](), Counter[str](test=0, twice=0, empty=0)
    for name, texts in parts.items():
        for text in islice(texts, plan.quick_lines if is_quick else None):
            line = " ".join(text.split())
            if not line:
                left_out["empty"] += 1
            elif line in lines:
                left_out["twice"] += 1
            elif test.stand_in(line):
                left_out["test"] += 1
            else:
                lines[line] = times.get(name, 1)
                counts[name] += 1
    data = "".join(f"{line}\n" * number for line, number in lines.items()).encode()
    sha256 = hashlib.sha256(data).hexdigest()
    path = folder / f"text-{sha256[:8]}.txt"
    if not path.exists():
        replace_file(path, data)
    record = {
        "file": path.name,
        "sha256": sha256,
        "lines": len(lines),
        "by_source": dict(counts),
        "own_times": plan.own_times,
        "left_out": {
            "holds a test text": left_out["test"],
            "stands twice": left_out["twice"],
            "empty": left_out["empty"],
        },
    }
    return PretrainingText(path, record)
