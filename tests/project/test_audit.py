"""The audit of the pinned versions, against an index that this test makes."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "audit"
WEAKNESS = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fixed_in": ["1.1"]}
PAGES: dict[str, Any] = {
    "/simple/sound/": '<a href="x">sound-1.0-py3-none-any.whl</a>',
    "/simple/weak/": '<a href="x">weak-1.0.tar.gz</a>',
    "/simple/taken-back/": '<a href="x" data-yanked="broken">taken_back-1.0-py3-none-any.whl</a>',
    "/simple/gone/": '<a href="x">gone-2.0.tar.gz</a>',
    "/pypi/sound/1.0/json": json.dumps({"vulnerabilities": [{**WEAKNESS, "withdrawn": "2024"}]}),
    "/pypi/weak/1.0/json": json.dumps({"vulnerabilities": [WEAKNESS]}),
}


class Index(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        page = PAGES.get(self.path)
        self.send_response(404 if page is None else 200)
        self.end_headers()
        self.wfile.write((page or "").encode())

    def log_message(self, *words: object) -> None: ...


@pytest.fixture
def audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    loader = importlib.machinery.SourceFileLoader("audit", str(SCRIPT))
    spec = importlib.util.spec_from_loader("audit", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    with ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setattr(module, "INDEX", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setattr(module, "CONSTRAINTS", tmp_path / "constraints.txt")
        yield module
        server.shutdown()
        thread.join()


def test_what_is_wrong_is_found(audit: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    audit.CONSTRAINTS.write_text("# pinned\nsound==1.0\nweak==1.0\ntaken-back==1.0\ngone==1.0\n")
    assert audit.main() == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "weak==1.0: PYSEC-1, CVE-1, fixed in 1.1",
        "taken-back==1.0: yanked",
        "gone==1.0: not in the index",
        "4 versions, 3 findings",
        "the index has no vulnerability data for 2 versions",
    ]


def test_nothing_is_wrong(audit: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    audit.CONSTRAINTS.write_text("sound==1.0\n")
    assert audit.main() == 0
    assert capsys.readouterr().out == "1 versions, 0 findings\n"


def test_no_index(
    audit: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    audit.CONSTRAINTS.write_text("sound==1.0\n")
    monkeypatch.setattr(audit, "INDEX", "http://127.0.0.1:9")
    assert audit.main() == 3
    assert "cannot be reached" in capsys.readouterr().err
