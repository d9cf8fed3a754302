"""Target `web`: pages in a real browser, hostile names, and the tokenizer in JavaScript."""

from __future__ import annotations

import io
import json
import random
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from hashlib import sha256
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import glassformer.interchange
from glassformer.cli.export import _show
from glassformer.cli.output import Output
from glassformer.core.errors import UserError
from glassformer.data.tokenizers import BPEConfig, Tokenizer
from glassformer.interchange import web_export
from glassformer.interchange.export import Exported, ExportPlan, ExportSource, Verification
from glassformer.interchange.exported_text import describe_text, describe_tokenizer
from glassformer.interchange.exported_tokenizer import tokenizer_document
from glassformer.interchange.onnx_export import shipped, write_description
from glassformer.interchange.web_export import PACKAGE, RUNTIME, WebTarget, find_browser, find_runtime
from glassformer.tasks.translation import TranslationTask
from tests.data.loopback import serving
from tests.interchange.small_runs import random_run, small_run
from tests.interchange.test_exported_text import KINDS, TEXTS, hostile_texts
from tests.interchange.test_onnx_export import RUNS, token_options

SCRIPTS = Path(glassformer.interchange.__file__).parent / "web_folder"
COMPARE = """
import { readFileSync } from "node:fs";
const [script, path] = process.argv.slice(2);
const { Tokenizer, showNumber } = await import(script);
const { kinds, numbers } = JSON.parse(readFileSync(path, "utf-8"));
function compare(what, found, expected) {
  if (JSON.stringify(found) === JSON.stringify(expected)) return;
  throw new Error([what, found, expected].map((each) => JSON.stringify(each)).join(" "));
}
for (const { name, tree, how, texts, ids } of kinds) {
  const tokenizer = new Tokenizer(tree, how);
  for (const [text, expected, continued] of texts) {
    compare([name, text], tokenizer.encode(text), expected);
    compare([name, text], tokenizer.encode(text, how.has_space_before), continued);
  }
  for (const [row, expected] of ids) compare([name, row], tokenizer.decode(row), expected);
}
for (const [number, expected] of numbers) compare(number, showNumber(number, 6), expected);
"""
HOSTILE = [
    "<img/src=x/onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "__proto__",
    "constructor",
    '"&amp;',
]


@pytest.fixture(scope="module")
def runtime() -> str:
    """Return the folder of onnxruntime-web. It is fetched once, if the registry can be reached."""
    try:
        return str(find_runtime(None))
    except UserError:
        pass
    try:
        return str(find_runtime("fetch"))
    except UserError as error:
        pytest.skip(f"onnxruntime-web is not here, and cannot be fetched: {error.details[0].message}")


def test_runtime_is_never_fetched_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLASSFORMER_DATA", str(tmp_path))
    with pytest.raises(UserError, match="--runtime fetch"):
        find_runtime(None)
    with pytest.raises(UserError, match="does not have the files"):
        find_runtime(str(tmp_path))


def test_runtime_comes_from_the_registry_of_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mirror was not asked before: the download had the public address."""
    files, packed = [], io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for file in RUNTIME.files:
            content = file.path.encode()
            info = tarfile.TarInfo(f"package/dist/{file.path}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
            files.append(replace(file, size=len(content), sha256=sha256(content).hexdigest()))
    package = replace(PACKAGE, sha256=sha256(packed.getvalue()).hexdigest())
    files = [replace(file, archive_sha256=package.sha256) for file in files]
    monkeypatch.setattr(web_export, "PACKAGE", package)
    monkeypatch.setattr(web_export, "RUNTIME", replace(RUNTIME, files=tuple(files)))
    monkeypatch.setenv("GLASSFORMER_DATA", str(tmp_path))
    monkeypatch.setenv("PATH", "")  # without npm, the environment names the registry
    with serving() as server:
        monkeypatch.setenv("NPM_CONFIG_REGISTRY", server.address)
        with pytest.raises(UserError, match="--runtime FOLDER"):
            find_runtime("fetch")
        address = f"onnxruntime-web/-/{package.file}"
        server.contents[address] = packed.getvalue()
        page = {"dist": {"tarball": f"https://registry.npmjs.org/{address}"}}
        server.contents[f"onnxruntime-web/{package.version}"] = json.dumps(page).encode()
        lines: list[str] = []
        folder = find_runtime("fetch", lines.append)
        assert {path.name for path in folder.iterdir()} == {file.path for file in RUNTIME.files}
        assert lines[0].startswith("downloading onnxruntime-web") and " MB" in lines[-1]
        asked = len(server.asked)
        assert find_runtime("fetch") == find_runtime(None) == folder and len(server.asked) == asked


def test_changed_runtime_is_refused(tmp_path: Path) -> None:
    for file in RUNTIME.files:
        (tmp_path / file.path).write_text("alert(1)")
    with pytest.raises(UserError, match=r"not the file of onnxruntime-web"):
        find_runtime(str(tmp_path))


def test_foreign_tokenizer_is_an_obstacle(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", RUNS["learned positions, characters"])
    plan = ExportPlan(run.config.model, run.task)
    assert not WebTarget().obstacles(plan)
    tree = BPEConfig(vocabulary_size=330).train(lambda: TEXTS).json_tree()
    tree["pre_tokenizer"] = {"type": "Digits", "individual_digits": True}
    run.task.tokenizer = Tokenizer.from_json_tree(tree)  # type: ignore[attr-defined]
    (obstacle,) = WebTarget().obstacles(plan)
    assert obstacle.option == "task.tokenizer"


@pytest.mark.thorough
def test_a_page_opened_as_a_file_shows_how_to_open_it(browser: Any, tmp_path: Path) -> None:
    for name in ("index.html", "app.js"):
        (tmp_path / name).write_bytes(shipped("web_folder", name))
    page = browser.new_page()
    page.goto((tmp_path / "index.html").as_uri())
    assert "python -m http.server" in page.inner_text("#status")
    page.close()


def test_the_command_to_open_the_page_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    usage = WebTarget.usage.format(folder="ex web")
    assert usage == "open it with: python -m http.server -d ex web, then http://localhost:8000 in a browser"
    checked = Verification(3, 0.0, 1.0, 1e-4, "web", "1", "test")
    _show(Exported(Path("run"), "web", Path("ex"), ["index.html"], checked, usage), Output(is_json=False))
    assert usage in capsys.readouterr().out


def test_page_needs_a_javascript_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = small_run(tmp_path / "run", RUNS["labels of tokens"])
    monkeypatch.setattr(WebTarget, "javascript", {"browser": None, "node": None})
    with pytest.raises(UserError, match="neither Chromium nor Node"):
        run.export("web", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
def test_tokenizer_in_javascript(tmp_path: Path) -> None:
    """Compare `text.js` with our tokenizers on texts of every plane of Unicode."""
    kinds, rng = [], random.Random(2)
    for name, config in KINDS.items():
        tokenizer = config.train(lambda: TEXTS)
        texts = [
            (text, tokenizer.encode(text).tolist(), tokenizer.encode_continuation(text).tolist())
            for text in hostile_texts()
        ]
        rows = [[rng.randrange(len(tokenizer)) for _ in range(12)] for _ in range(200)]
        rows += [ids for _, ids, _ in texts]
        kinds.append(
            {
                "name": name,
                "tree": tokenizer_document(tokenizer, [None]),
                "how": describe_tokenizer(tokenizer, "tokenizer.json"),
                "texts": texts,
                "ids": [(row, tokenizer.decode(row)) for row in rows],
            }
        )
    floats = [
        0.0,
        1.0,
        -1.5,
        3.14159265,
        1e-5,
        1.23456789e-7,
        123456.7,
        1234567.0,
        1e20,
        0.1,
        99999.95,
        999999.5,
    ]
    floats += [rng.gauss(0, 1) * 10 ** rng.randint(-9, 12) for _ in range(500)]
    data = {"kinds": kinds, "numbers": [(number, f"{number:.6g}") for number in floats]}
    (tmp_path / "data.json").write_text(json.dumps(data), encoding="utf-8")
    (tmp_path / "compare.mjs").write_text(COMPARE, encoding="utf-8")
    command = ["node", tmp_path / "compare.mjs", SCRIPTS / "text.js", tmp_path / "data.json"]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-1500:]


WARN = """
import { readFileSync } from "node:fs";
const [script, folder, ...inputs] = process.argv.slice(2);
const { Text } = await import(script);
const parse = (name) => JSON.parse(readFileSync(`${folder}/${name}`, "utf-8"));
const config = parse("config.json");
const trees = Object.fromEntries(Object.keys(config.tokenizers).map((file) => [file, parse(file)]));
const text = new Text(config, trees);
console.log(JSON.stringify(inputs.map((input) => text.warning(input, text.read(input)))));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
@pytest.mark.parametrize(
    ("options", "inputs"),
    [
        (RUNS["labels of tokens"], ["1 2 3", "1 2 3 4 5 6 7 8 9", "1"]),
        ("label", ["fa fa", "fa zzyx"]),
        pytest.param(
            RUNS["classification"],
            ["a good book", "a zzyx 漢 book", "good " * 300, "good " * 300 + "zzyx"],
            marks=pytest.mark.thorough,
        ),
        pytest.param(RUNS["two vocabularies"], ["the cat", "the zzyx"], marks=pytest.mark.thorough),
    ],
    ids=["length", "symbols", "text", "translation"],
)
def test_page_warns_as_predict_does(options: Any, inputs: list[str], tmp_path: Path) -> None:
    """Compare the warnings of `text.js` with those of the task."""
    found = token_options(tmp_path, options) if isinstance(options, str) else options
    run = random_run(found)
    write_description(ExportSource.of(run), tmp_path, [])
    (tmp_path / "warn.mjs").write_text(WARN, encoding="utf-8")
    command = ["node", tmp_path / "warn.mjs", SCRIPTS / "text.js", tmp_path, *inputs]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-1500:]
    expected = [run.task.warning(run.task.parse(text).tolist(), text) for text in inputs]
    assert any(expected) and json.loads(process.stdout) == expected


def test_pieces_unseen_in_training_are_described(tmp_path: Path) -> None:
    task = random_run(RUNS["translation"]).task
    assert isinstance(task, TranslationTask) and task.splits
    assert describe_text(task)["input"]["untrained"] == sorted(task.untrained)


@pytest.mark.thorough
@pytest.mark.skipif(find_browser() is None, reason="Chromium or playwright is not installed")
@pytest.mark.parametrize("name", ["classification", "llama", "two vocabularies", "arithmetic", "number"])
def test_page_answers_as_the_run(name: str, runtime: str, tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", RUNS[name] if name in RUNS else token_options(tmp_path, name))
    found = run.export("web", tmp_path / "out", runtime=runtime).verification
    assert found.passed and found.engine == "ONNX Runtime Web in Chromium"


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
def test_verification_without_a_browser_says_so(
    runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_export, "find_browser", lambda: None)
    run = small_run(tmp_path / "run", RUNS["t5 positions, unigram, masked"])
    found = run.export("web", tmp_path / "out", runtime=runtime).verification
    assert found.passed and "no browser" in found.engine


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None: ...


@pytest.fixture
def serve() -> Iterator[Callable[[Path], str]]:
    """Serve folders on the loopback interface, as `python -m http.server` does."""
    servers = []

    def start(folder: Path) -> str:
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder)))
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}/"

    yield start
    for server in servers:
        server.shutdown()


@pytest.mark.thorough
def test_hostile_names_stay_text(
    runtime: str, tmp_path: Path, serve: Callable[[Path], str], browser: Any
) -> None:
    """Train on symbols and labels that look like markup, and read them on a phone's page."""
    lines = ["input\tlabel"]
    lines += [f"{' '.join([*HOSTILE, str(row % 7)])}\t{HOSTILE[row % 2]}" for row in range(100)]
    (tmp_path / "hostile.tsv").write_text("\n".join(lines), encoding="utf-8")
    options = {
        "task.kind": "tokens",
        "task.data.train": str(tmp_path / "hostile.tsv"),
        "task.data.columns": {"input": "input", "target": "label"},
        "task.target": "label",
    }
    out = tmp_path / "out"
    small_run(tmp_path / "<b>run", options).export("web", out, runtime=runtime)
    origin = serve(out)
    seen: list[str] = []
    page = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme="dark")
    page.set_default_timeout(180_000)
    page.on("dialog", lambda dialog: seen.append(dialog.message))
    page.on("pageerror", lambda error: seen.append(str(error)))
    page.on("request", lambda each: seen.append(each.url))
    page.goto(origin)
    page.wait_for_selector(".map-detail .map-canvas")
    page.wait_for_selector("button[type=submit]:text-is('Run')")
    page.fill("#input", " ".join([*HOSTILE, "unknown<i>"]))
    page.click("button[type=submit]")
    page.wait_for_selector(".tokens li:nth-child(6):text-is('<unknown>')")
    page.wait_for_selector("button[type=submit]:text-is('Run')")
    assert page.inner_text(".tokens li:nth-child(1)").startswith("<img/src=x")
    assert page.inner_text("h1") == "<b>run"
    assert page.inner_text("#answer .output") in HOSTILE
    assert not page.query_selector_all("main img, main script, main b, main i")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.fill("#input", "")
    page.click("button[type=submit]")
    problem = page.wait_for_selector("#status.problem").inner_text()
    assert problem.startswith("Type an input first. Below: the last result, for the input “<img/src=x")
    assert page.inner_text("#warning") == "Warning: 1 of 6 tokens are unknown to the model: ‹unknown<i>›"
    page.close()
    assert all(each.startswith((origin, "data:")) for each in seen)
