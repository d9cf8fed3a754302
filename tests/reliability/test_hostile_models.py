"""Hostile models that an import once accepted, or ended with a traceback, are refused in a few words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reliability.imports import CASES, import_once, replace_in_gguf, replace_in_header, replace_value
from reliability.models import gguf_parts, model_path, pack_gguf, write_specimens

ONCE_WRONG = [
    "config.json: an architecture that is a list",
    "config.json: more key heads than heads",
    "config.json: stretched angles",
    "model.safetensors: a scalar",
    "GGUF: scores that are texts",
    "tokenizer.bin: equal pieces",
]


@pytest.mark.parametrize("name", ONCE_WRONG)
def test_it_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    CASES[name](tmp_path / "evil")
    assert list(import_once(str(model_path(tmp_path / "evil")), False)) == [None]


@pytest.mark.thorough
def test_good_models_are_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_specimens(tmp_path / "whole")
    for folder in (tmp_path / "whole").iterdir():
        assert list(import_once(str(model_path(folder)), False)) == ["it was imported"]
        (tmp_path / "imported").rename(tmp_path / f"imported-{folder.name}")


def test_values_are_replaced() -> None:
    assert json.loads(replace_value(b'{"a": {"b": [1, 2]}}', [0, 0, 1], "x")) == {"a": {"b": [1, "x"]}}
    header = b'{"a":{"shape":[1]}}'
    data = len(header).to_bytes(8, "little") + header + b"data"
    changed = replace_in_header(data, [0, 0], None)
    assert changed[8:-4] == b'{"a": {"shape": null}}' and changed.endswith(b"data")
    good = pack_gguf(*gguf_parts())
    assert replace_in_gguf(good, [1, 2, 3], 0) != good != replace_in_gguf(good, [0, 2, 3], 0)
