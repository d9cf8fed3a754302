"""Package registries: the address of a file is found as pip and npm would find it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from glassformer.core.errors import UserError
from glassformer.data import package_index
from glassformer.data.package_index import (
    NPM,
    PYPI,
    Package,
    find_address,
    npm_addresses,
    pip_addresses,
)
from tests.data.loopback import Server, serving

WHEEL = Package("PyPI", "tiny-model", "1.0", "tiny_model-1.0-py3-none-any.whl", 1, "")
ARCHIVE = Package("npm", "@mine/tiny.model", "1.0.0", "tiny.model-1.0.0.tgz", 1, "")

VARIABLES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "UV_DEFAULT_INDEX")


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as state:
        yield state


def configure(monkeypatch: pytest.MonkeyPatch, pip: str = "", npm: str = "") -> None:
    """Make the tools report this configuration, and remove what the machine has in its environment."""
    for name in (
        "PIP_INDEX_URL",
        "PIP_EXTRA_INDEX_URL",
        "PIP_FIND_LINKS",
        "PIP_NO_INDEX",
        "UV_DEFAULT_INDEX",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(package_index, "_output_of", lambda command: npm if "registry" in command else pip)
    monkeypatch.setattr(package_index.shutil, "which", lambda name: f"/bin/{name}" if npm else None)


@pytest.mark.parametrize(
    "link",
    [
        '<a href="../../files/tiny_model-1.0-py3-none-any.whl#sha256=00">tiny_model</a>',
        '<A data-x="1" HREF="/files/tiny_model-1.0-py3-none-any.whl">x</A>',
    ],
)
def test_a_page_of_links(link: str, server: Server) -> None:
    page = '<a href="tiny_model-1.0.tar.gz">s</a><br>' + link
    server.contents = {"simple/tiny-model/": page.encode()}
    server.types = {"simple/tiny-model/": "text/html; charset=utf-8"}
    expected = f"{server.address}/files/tiny_model-1.0-py3-none-any.whl"
    assert find_address(WHEEL, f"{server.address}/simple") == expected
    assert find_address(WHEEL, f"{server.address}/simple/") == expected


def test_a_json_page(server: Server) -> None:
    files = [{"filename": WHEEL.file, "url": f"https://files.example/a/{WHEEL.file}"}]
    server.contents = {"simple/tiny-model/": json.dumps({"files": files}).encode()}
    server.types = {"simple/tiny-model/": "application/vnd.pypi.simple.v1+json"}
    assert find_address(WHEEL, f"{server.address}/simple") == f"https://files.example/a/{WHEEL.file}"


def test_folders_are_registries_too(tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / WHEEL.file).write_bytes(b"")
    assert find_address(WHEEL, str(tmp_path / "links")) == (tmp_path / "links" / WHEEL.file).as_uri()
    index = tmp_path / "simple" / "tiny-model"
    index.mkdir(parents=True)
    (index / "index.html").write_text(f'<a href="{WHEEL.file}">x</a>')
    assert find_address(WHEEL, (tmp_path / "simple").as_uri()) == (index / WHEEL.file).as_uri()


def test_npm(server: Server) -> None:
    page = "@mine%2Ftiny.model/1.0.0"
    tarball = f"https://registry.npmjs.org/@mine/tiny.model/-/{ARCHIVE.file}"
    server.contents = {page: json.dumps({"dist": {"tarball": tarball}}).encode()}
    # As npm does, a mirror is asked for what is at the public registry.
    assert find_address(ARCHIVE, server.address) == f"{server.address}/@mine/tiny.model/-/{ARCHIVE.file}"
    own = f"{server.address}/own/{ARCHIVE.file}"
    server.contents[page] = json.dumps({"dist": {"tarball": own}}).encode()
    assert find_address(ARCHIVE, server.address) == own


def test_the_password_of_a_registry(server: Server) -> None:
    server.contents = {"simple/tiny-model/": f'<a href="{WHEEL.file}">x</a>'.encode()}
    address = server.address.replace("//", "//me:secret@")
    assert find_address(WHEEL, f"{address}/simple") == f"{address}/simple/tiny-model/{WHEEL.file}"
    assert len(server.logins) == 1
    with pytest.raises(UserError) as caught:
        find_address(WHEEL, f"{address}/none")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("page", [b"", b"<a href>", b"{", b'{"dist": []}', b"\xff"])
def test_a_strange_reply_is_an_error_of_few_words(page: bytes, server: Server) -> None:
    server.contents = {"tiny-model/": page, "@mine%2Ftiny.model/1.0.0": page}
    for package in (WHEEL, ARCHIVE):
        with pytest.raises(UserError, match=r"was not found: http://127\.0\.0\.1") as caught:
            find_address(package, server.address)
        assert package.command in str(caught.value)


def test_all_registries_are_asked_in_order(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.contents = {"b/tiny-model/": f'<a href="{WHEEL.file}">x</a>'.encode()}
    lines = [
        f"global.index-url='{server.address}/a'",
        f"global.extra-index-url='{server.address}/b {server.address}/c'",
        "global.cert='/none'",
        "not a line",
    ]
    configure(monkeypatch, pip="\n".join(lines))
    assert find_address(WHEEL) == f"{server.address}/b/tiny-model/{WHEEL.file}"
    assert [name for name, _ in server.asked] == ["a/tiny-model/", "b/tiny-model/"]


def test_configuration_of_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch)
    assert pip_addresses() == [PYPI]
    configure(monkeypatch, pip="global.index-url='https://a'\ndownload.index-url='https://b'")
    assert pip_addresses() == ["https://b"]
    monkeypatch.setenv("PIP_INDEX_URL", "https://c")
    monkeypatch.setenv("PIP_FIND_LINKS", "/folder")
    assert pip_addresses() == ["/folder", "https://c"]
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert pip_addresses() == ["/folder"]


def test_configuration_of_npm(monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch)
    monkeypatch.delenv("NPM_CONFIG_REGISTRY", raising=False)
    assert npm_addresses() == [NPM]
    configure(monkeypatch, npm="https://mirror/npm/\n")
    assert npm_addresses() == ["https://mirror/npm/"]
    configure(monkeypatch, npm="undefined\n")
    assert npm_addresses() == [NPM]


def test_a_tool_that_fails_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise subprocess.TimeoutExpired("pip", 1)

    monkeypatch.setattr(subprocess, "run", fail)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert pip_addresses() == [PYPI]
