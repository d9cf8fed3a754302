"""Runs to report on, one per kind of task, trained for two steps; and a parser of pages."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from glassformer.core.config import merge, unflatten, validate
from glassformer.runs.experiment import ExperimentConfig
from glassformer.runs.folder import RunFolder
from glassformer.runs.session import TrainingSession

SMALL: dict[str, Any] = {
    "model": {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "feed_forward_dim": 8},
    "training": {"max_steps": 2, "batch_size": 8, "threads": 1, "device": "cpu", "log_every": 1},
}
NUMBERS = "".join(f"{'a ' * (format_number % 5 + 1)}b\t{format_number / 10}\n" for format_number in range(40))
FILES = {"numbers.tsv": NUMBERS, "labels.tsv": re.sub(r"\t.*", "\tx y", NUMBERS.replace("a ", "a"))}
TASKS: dict[str, dict[str, Any]] = {
    "reversal": {
        "kind": "reversal",
        "length": 4,
        "train_examples": 40,
        "validation_examples": 8,
        "test_examples": 8,
    },
    "palindrome": {
        "kind": "palindrome",
        "length": 4,
        "train_examples": 40,
        "validation_examples": 8,
        "test_examples": 8,
    },
    "arithmetic": {"kind": "arithmetic", "digits": 1, "max_examples": 60},
    "translation": {"kind": "translation", "examples": 20, "max_length": 24},
    "language-model": {"kind": "language-model", "examples": 20, "max_length": 12},
    "masked-language-model": {"kind": "masked-language-model", "examples": 20, "max_length": 12},
    "classification": {"kind": "classification", "examples": 20, "max_length": 24},
    "numbers-of-texts": {
        "kind": "classification",
        "target": "number",
        "max_length": 12,
        "data": {"train": "numbers.tsv"},
    },
    "numbers-of-tokens": {
        "kind": "tokens",
        "target": "number",
        "data": {"train": "numbers.tsv", "columns": {"input": 0, "target": 1}},
    },
}
"""The last two have no test set."""

TrainedRun = Callable[[str], Path]


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    """Run of the task of this name, trained on first use."""
    folder = tmp_path_factory.mktemp("kinds")
    for name, content in FILES.items():
        (folder / name).write_text(content, encoding="utf-8")

    def train(name: str) -> Path:
        path = folder / "runs" / name
        if not path.exists():
            task = dict(TASKS[name])
            if "data" in task:
                task["data"] = {**task["data"], "train": str(folder / task["data"]["train"])}
            TrainingSession(small_config({"task": task}), RunFolder(path)).run()
        return path

    return train


def small_config(tree: dict[str, Any], **overrides: Any) -> ExperimentConfig:
    whole = merge(ExperimentConfig.fill_kinds(merge(SMALL, tree)), unflatten(overrides))
    return validate(ExperimentConfig, whole)


class Page(HTMLParser):
    """Parsed page: elements with their attributes, visible text, and exact numbers."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.source = source
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.numbers: list[float] = []
        self.headings: list[str] = []
        self._open: list[str] = []
        self._text: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        if tag not in ("meta", "img", "wbr"):
            self._open.append(tag)
        if tag == "data":
            self.numbers.append(float(attributes["value"] or "nan"))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self._open):
            self._text.append(data)
            if self._open and self._open[-1] == "h2":
                self.headings.append(data)

    @property
    def text(self) -> str:
        return "".join(self._text)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def assert_offline(self) -> None:
        """Check that the page fetches nothing, and that no data can run as code."""
        addresses = [
            value
            for _, attributes in self.elements
            for name, value in attributes.items()
            if name in ("src", "href", "srcset", "action", "data", "poster", "background", "xlink:href")
        ]
        assert all(address and address.startswith(("#", "data:image/")) for address in addresses)
        assert not [
            name for name, _ in self.elements if name in ("link", "iframe", "object", "embed", "base")
        ]
        assert not [name for _, attributes in self.elements for name in attributes if name.startswith("on")]
        assert "url(" not in self.source and "@import" not in self.source
        scripts = [attributes.get("type") for attributes in self.all("script")]
        assert scripts.count("module") == 1 and set(scripts) <= {"module", "application/json"}
        (policy,) = [
            attributes["content"] or ""
            for attributes in self.all("meta")
            if attributes.get("http-equiv") == "Content-Security-Policy"
        ]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy


def read_page(path: Path) -> Page:
    page = Page(path.read_text(encoding="utf-8"))
    page.close()
    return page
