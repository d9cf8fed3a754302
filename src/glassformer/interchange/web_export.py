"""Target `web`: a page that runs the model in a browser and shows its attention, without a network."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from glassformer.core.errors import UserError, user_error
from glassformer.data.catalogue import (
    CatalogueFile,
    DataSet,
    fetch,
    fetch_folder,
    is_whole,
)
from glassformer.data.package_index import Package, find_address
from glassformer.inspection.maps import CAPTION
from glassformer.interchange.export import (
    ExportExample,
    ExportPlan,
    ExportSource,
    LoadingScript,
    Obstacle,
    Report,
)
from glassformer.interchange.exported_text import needs_library, tokenizers_of
from glassformer.interchange.onnx_export import GraphTarget, shipped, write_description
from glassformer.interchange.onnx_graphs import write_graphs
from glassformer.models.base import Backbone
from glassformer.models.seq2seq import EncoderDecoder
from glassformer.models.task_types import Seq2Seq, SequenceClassification
from glassformer.plotting.page import SHARED_SCRIPTS, SHARED_STYLES, scales, static
from glassformer.plotting.style import visible
from glassformer.tasks.base import Task

VERSION = "1.30.0"
PACKAGE = Package(
    registry="npm",
    name="onnxruntime-web",
    version=VERSION,
    file=f"onnxruntime-web-{VERSION}.tgz",
    size=33_106_585,
    sha256="d2228df7e4616bc3348bf504ee888f3bec43789a273f0a63f3e68d203ce3bf71",
)
RUNTIME = DataSet(
    name=f"onnxruntime-web-{VERSION}",
    summary="ONNX Runtime for browsers",
    licence="MIT",
    home="https://www.npmjs.com/package/onnxruntime-web",
    files=(
        CatalogueFile(
            "ort.wasm.min.mjs",
            50_126,
            "219e6a1fc8a9938268d18efca3c91d310bd2f4a59bbd13744df5b2b7fc6cee3b",
            archive_sha256=PACKAGE.sha256,
        ),
        CatalogueFile(
            "ort-wasm-simd-threaded.mjs",
            24_381,
            "e13f7f94fc51b4ca72b12faeb1ee95f4ace6dfbc8939bc718aabdc0a27c4299b",
            archive_sha256=PACKAGE.sha256,
        ),
        CatalogueFile(
            "ort-wasm-simd-threaded.wasm",
            14_239_897,
            "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
            archive_sha256=PACKAGE.sha256,
        ),
    ),
    parts=(),
)
"""Files of the npm package `onnxruntime-web` that a page needs. They are not part of Glassformer."""
NOTICE = f"""ONNX Runtime Web {VERSION}, from the npm package onnxruntime-web.
Copyright (c) Microsoft Corporation. MIT licence.
https://github.com/microsoft/onnxruntime
"""
SCRIPT = """\
import { readFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";

const [folder, text] = [FOLDER, TEXT];
const url = (name) => new URL(name, pathToFileURL(folder + "/"));
const ort = await import(url("ort/ort.wasm.min.mjs"));
const { Model } = await import(url("model.js"));
Object.assign(ort.env.wasm, { numThreads: 1, wasmPaths: url("ort/").href });
ort.env.wasm.wasmBinary = await readFile(url("ort/ort-wasm-simd-threaded.wasm"));
const model = await Model.load(ort, (name) => readFile(url(name)));
console.log((await model.predict(model.text.read(text))).output);
"""
"""Program for Node.js. In a browser, the page itself answers."""
PLACES = ("", "dist", "node_modules/onnxruntime-web/dist", "ort")
"""Folders below `--runtime FOLDER` that may hold the files of the runtime."""
PAGE_FILES = ("index.html", "app.js", "model.js", "text.js", "web.css")
MAX_EXAMPLE_CHARACTERS = 200
EXAMPLES = 4
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


class WebTarget(GraphTarget):
    """Export to a page: graphs with attention outputs, ONNX Runtime Web, tokenizer and attention viewer.

    `runtime` is a folder with the files of onnxruntime-web, or `fetch` to download them once.
    """

    name = "web"
    tolerance = 1e-4
    packages = ("onnx", "onnxscript")
    usage = "open it with: python -m http.server -d {folder}, then http://localhost:8000 in a browser"
    engine = "run_web.py"
    library = "onnxruntime-web"
    options = ("runtime",)
    max_values = 1 << 20

    def __init__(self, runtime: str | None = None) -> None:
        self.runtime = runtime
        self.files = Path()
        """Folder with the files of onnxruntime-web, once they are gathered."""

    def obstacles(self, plan: ExportPlan) -> list[Obstacle]:
        found = super().obstacles(plan)
        if any(needs_library(tokenizer) for tokenizer in tokenizers_of(plan.task).values()):
            reason = "the page's tokenizer does not know a step of this tokenizer"
            found.append(
                Obstacle("task.tokenizer", reason, "train with task.tokenizer.kind=bpe, or export to onnx")
            )
        return found

    def loading_script(self, source: ExportSource) -> LoadingScript:
        return LoadingScript("", SCRIPT, "javascript")

    @cached_property
    def javascript(self) -> dict[str, str | None]:
        """Paths of the browser and of Node.js that can verify a page, or None."""
        return {"browser": find_browser(), "node": shutil.which("node")}

    def gather(self, report: Report) -> None:
        if not any(self.javascript.values()):
            raise user_error(
                "a page is verified in a browser, and there is neither Chromium nor Node.js",
                path="--to",
                value=self.name,
                hint="install Chromium and `pip install playwright`, or install Node.js",
            )
        self.files = find_runtime(self.runtime, report)

    def write(self, source: ExportSource, folder: Path) -> None:
        model = source.run.model
        graphs = write_graphs(model, folder, with_attention=True, with_forward=False)
        write_description(source, folder, graphs, page_config(source))
        for name in PAGE_FILES:
            (folder / name).write_bytes(shipped("web_folder", name))
        for name in (*SHARED_SCRIPTS, *SHARED_STYLES, "page.css"):
            (folder / name).write_text(static(name), encoding="utf-8")
        (folder / "ort").mkdir()
        for file in RUNTIME.files:
            shutil.copyfile(self.files / file.path, folder / "ort" / file.path)
        (folder / "ort" / "NOTICE.txt").write_text(NOTICE, encoding="utf-8")

    def request(self, source: ExportSource, examples: Sequence[ExportExample]) -> dict[str, Any]:
        return {**self.javascript, "is_whole": isinstance(source.task_type, SequenceClassification)}


def find_browser() -> str | None:
    """Return the path of Chromium or Chrome, or None if it or its driver, playwright, is not installed."""
    if importlib.util.find_spec("playwright") is None:
        return None
    named = os.environ.get("GLASSFORMER_BROWSER", "")
    return next((path for name in (named, *BROWSERS) if name and (path := shutil.which(name))), None)


def page_config(source: ExportSource) -> dict[str, Any]:
    """Return what the page shows besides the model's outputs, and how it labels and paints the maps."""
    task, model = source.task, source.run.model
    assert isinstance(model, Backbone)
    causal = ["decoder"] if isinstance(model, EncoderDecoder) else []
    if model.is_causal:
        causal.append("encoder")
    texts = [example.text for example in source.examples(4 * EXAMPLES)]
    short = sorted(dict.fromkeys(texts), key=lambda text: len(text) > MAX_EXAMPLE_CHARACTERS)
    return {
        "title": source.run.path.resolve().name,
        "subtitle": _subtitle(source),
        "examples": short[:EXAMPLES],
        "caption": CAPTION,
        "scales": scales(),
        "causal_sites": causal,
        "input_symbols": _symbols(task, task.task_type.vocabulary, is_output=False),
        "output_symbols": _symbols(task, _outputs(task), is_output=True),
    }


def _subtitle(source: ExportSource) -> str:
    """Return the task and the size of the model in one line."""
    config, model = source.config, source.run.model
    parameters = sum(parameter.numel() for parameter in model.parameters())
    layers = f"{config.num_layers}"
    if isinstance(model, EncoderDecoder):
        layers = f"{config.num_layers} + {config.num_decoder_layers}"
    heads = f"{config.num_heads} head{'s' * (config.num_heads != 1)}"
    size = f"{layers} layer{'s' * (layers != '1')} × {heads}, {parameters:,} parameters"
    return f"{source.run.config.task.kind}: {size}"


def _outputs(task: Task) -> int:
    """Return the number of output tokens or labels that have a name; 0 for a regression."""
    task_type = task.task_type
    if isinstance(task_type, Seq2Seq):
        return task_type.target_vocabulary
    if isinstance(task_type, SequenceClassification):
        return 0 if task_type.is_regression else task_type.outputs
    return int(getattr(task_type, "classes", task_type.vocabulary))


def _symbols(task: Task, count: int, *, is_output: bool) -> list[str]:
    """Return the label of each token on the axes of a map."""
    name = task.output_symbols if is_output else task.input_symbols
    return [visible(name([number])[0], 40) for number in range(count)]


def find_runtime(given: str | None, report: Report = lambda line: None) -> Path:
    """Return the folder with the files of onnxruntime-web; raise UserError if there are none."""
    if given == "fetch":
        _fetch_runtime(report)
    own = fetch_folder() / RUNTIME.name
    folders = [own] if given in (None, "fetch") else [Path(str(given)) / place for place in PLACES]
    for folder in folders:
        if all((folder / file.path).exists() for file in RUNTIME.files):
            _check(folder)
            return folder
    raise _missing(given)


def _fetch_runtime(report: Report) -> None:
    """Download the files that are missing, from the registry that npm is configured to use."""
    folder = fetch_folder() / RUNTIME.name
    if all((folder / file.path).exists() for file in RUNTIME.files):
        return
    address = find_address(PACKAGE, option="--runtime FOLDER")
    files = tuple(replace(file, address=address) for file in RUNTIME.files)
    report(f"downloading onnxruntime-web {VERSION}, {PACKAGE.size / 1e6:.0f} MB")
    tenths = set()

    def progress(name: str, received: int, total: int) -> None:
        tenth = 10 * received // (total or PACKAGE.size)
        if tenth not in tenths:
            tenths.add(tenth)
            report(f"{name}: {received / 1e6:.0f} of {PACKAGE.size / 1e6:.0f} MB")

    fetch(replace(RUNTIME, files=files), fetch_folder(), progress)


def _check(folder: Path) -> None:
    """Raise UserError unless the files of the runtime are those of the known version."""
    for file in RUNTIME.files:
        if not is_whole(folder / file.path, file):
            raise user_error(
                f"not the file of onnxruntime-web {VERSION}",
                path=str(folder / file.path),
                hint=f"npm pack onnxruntime-web@{VERSION}, or --runtime fetch",
            )


def _missing(given: str | None) -> UserError:
    size = f"{RUNTIME.size / 1e6:.0f} MB"
    if given not in (None, "fetch"):
        names = ", ".join(file.path for file in RUNTIME.files)
        return user_error(
            "the folder does not have the files of onnxruntime-web",
            path="--runtime",
            value=given,
            hint=f"it needs {names}, as in the folder dist of the npm package {VERSION}; or --runtime fetch",
        )
    return user_error(
        f"a page needs onnxruntime-web {VERSION} ({size}, MIT licence), which is not on this machine",
        path="--runtime",
        hint="--runtime fetch downloads it once from npm; --runtime FOLDER takes it from a folder",
    )
