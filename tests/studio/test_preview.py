"""Preview of data files in the form: rows as training reads them, errors at fields, limits."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from glassformer.studio import limits
from glassformer.studio.app import Studio, create_app
from glassformer.web.gate import Admission

from .conftest import ADDRESS, TOKEN

CSV = "title,body,label\n" + "".join(
    f"great film {n},I liked all of it {n},{('good', 'bad')[n % 2]}\n" for n in range(40)
)


def ask(client: TestClient, source: str = "classification", **values: Any) -> dict[str, Any]:
    named = {f"task.data.{path.replace('__', '.')}": value for path, value in values.items()}
    reply = client.post("/api/preview", json={"source": source, "values": named})
    assert reply.status_code == 200, reply.text
    document: dict[str, Any] = reply.json()
    return document


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "reviews.csv"
    path.write_text(CSV, encoding="utf-8")
    return path


def test_rows_are_shown_as_training_reads_them(client: TestClient, table: Path) -> None:
    document = ask(client, train=str(table), columns__input="title")
    (file,) = document["files"]
    assert document["errors"] == [] and file["split"] == "train" and file["examples"] == 40
    assert [(use["name"], use["role"]) for use in file["columns"]] == [
        ("title", "input"),
        ("body", ""),
        ("label", "target"),
    ]
    assert file["rows"][0] == {"line": 2, "values": ["great film 0", "I liked all of it 0", "good"]}
    assert len(file["rows"]) == limits.PREVIEW_ROWS and file["is_whole"]
    assert file["classes"] == [{"label": "good", "count": 20}, {"label": "bad", "count": 20}]
    assert any("ignored: 'body'" in note for note in file["notes"])
    both = ask(client, train=str(table), columns__input="title, body", columns__target="label")
    assert [use["role"] for use in both["files"][0]["columns"]] == ["input", "input", "target"]


def test_errors_appear_at_their_fields(client: TestClient, table: Path, tmp_path: Path) -> None:
    def fields(**values: Any) -> dict[str, str]:
        return {error["field"]: error["message"] for error in ask(client, **values)["errors"]}

    assert "task.data.train" in fields(train="not-there.csv")
    assert "task.data.train" in fields(train=str(table), columns__input="nonsense")
    other = tmp_path / "test.csv"
    other.write_text("label,content\ngood,a text\n", encoding="utf-8")
    given = {"train": str(table), "columns__input": "body", "columns__target": "label", "test": str(other)}
    document = ask(client, **given)
    assert [file["split"] for file in document["files"]] == ["train"]  # the train file stays visible
    assert {error["field"] for error in document["errors"]} == {"task.data.test"}
    # Errors elsewhere in the form do not matter, and a task without files has no preview.
    body = {"source": "classification", "values": {"task.data.train": str(table), "model.num_heads": -1}}
    assert client.post("/api/preview", json=body).json()["files"]
    assert ask(client, source="reversal") == {"files": [], "errors": []}
    assert ask(client) == {"files": [], "errors": []}


def test_other_formats_have_a_column_per_role(client: TestClient, tmp_path: Path) -> None:
    lines = tmp_path / "rows.jsonl"
    lines.write_text("".join(json.dumps({"text": f"t {n}", "label": n % 2}) + "\n" for n in range(9)))
    (file,) = ask(client, train=str(lines))["files"]
    assert [use["role"] for use in file["columns"]] == ["input", "target"]
    assert file["rows"][1]["values"] == ["t 1", "1"]
    text = tmp_path / "book.txt"
    text.write_text("Once upon a time.\nThere was a king.\n", encoding="utf-8")
    (file,) = ask(client, source="language-model", train=str(text))["files"]
    assert file["columns"] == [{"column": None, "name": "", "role": "input"}] and file["classes"] == []
    assert file["rows"][0]["values"][0].startswith("Once")


def test_reading_is_limited(client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = tmp_path / "large.tsv"
    large.write_text("text\tlabel\n" + "a long text " * 40 + "\tgood\n" * 1)
    with open(large, "a") as file:
        file.writelines("a long text " * 40 + "\tgood\n" for _ in range(5000))
    monkeypatch.setattr(limits, "PREVIEW_BYTES", 1 << 20)
    (shown,) = ask(client, train=str(large))["files"]
    assert not shown["is_whole"] and limits.PREVIEW_ROWS < shown["examples"] < 5000
    assert all(len(value) <= limits.PREVIEW_CHARACTERS for row in shown["rows"] for value in row["values"])
    columns = tmp_path / "columns.json"  # parallel lists need the whole file
    columns.write_text(json.dumps({"text": ["x" * 100] * 20_000, "label": ["a"] * 20_000}))
    (error,) = ask(client, train=str(columns))["errors"]
    assert error["field"] == "task.data.train" and "previewed" in error["message"]
    monkeypatch.setattr(limits, "PREVIEW_SECONDS", -1.0)
    (error,) = ask(client, train=str(large))["errors"]
    assert error["field"] == "task.data.train"


def test_devices_pipes_and_bombs_are_refused(client: TestClient, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.tsv"
    os.mkfifo(pipe)
    bomb = tmp_path / "bomb.tsv.gz"
    with gzip.open(bomb, "wb") as file:
        for _ in range(64):
            file.write(b"a" * (1 << 20))
    for path in ("/dev/zero", str(pipe), str(tmp_path), str(bomb)):
        document = ask(client, train=path, format="tsv")
        assert document["files"] == [] and document["errors"], path


def test_only_a_studio_on_this_machine_shows_files(studio: Studio, table: Path) -> None:
    body = {"source": "classification", "values": {"task.data.train": str(table)}}
    headers = {"Authorization": f"Bearer {TOKEN}"}
    for host, status in (("127.0.0.1", 200), ("0.0.0.0", 403)):
        with TestClient(create_app(studio, Admission(TOKEN, host)), base_url=ADDRESS) as client:
            assert client.post("/api/preview", json=body).status_code == 401
            assert client.post("/api/preview", json=body, headers=headers).status_code == status
            elsewhere = headers | {"Origin": "http://evil.example"}
            assert client.post("/api/preview", json=body, headers=elsewhere).status_code == 403


def test_doubtful_labels_have_a_warning(client: TestClient, tmp_path: Path) -> None:
    labels = [("good", "bad", "NA")[number % 3] for number in range(30)]
    rows = [f"text {number} here,{label}" for number, label in enumerate(labels)]
    (tmp_path / "own.csv").write_text("\n".join(["text,label", *rows]))
    (file,) = ask(client, train=str(tmp_path / "own.csv"))["files"]
    assert [note for note in file["notes"] if "'NA' (10 examples) may be a missing value" in note]
