"""Scripts of docs/export.md: each loads an exported folder without Glassformer and answers as the run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from glassformer.core.errors import UserError
from glassformer.interchange.export import TARGETS, ExportSource, make_target
from glassformer.interchange.web_export import find_runtime
from glassformer.runs.run import Run
from tests.interchange.small_runs import LLAMA, small_run

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
SCRIPTS = {
    name: code
    for name, code in re.findall(r"^<!-- script: ([\w -]+) -->\n```\w+\n(.*?)^```$", PAGE, re.M | re.S)
}
WITHOUT_GLASSFORMER = """
import runpy, sys
sys.modules["glassformer"] = None
runpy.run_path(sys.argv[1], run_name="__main__")
"""
"""Program that runs a script in which `import glassformer` fails."""
MOST_LINES = 10
TEXT = {"task.examples": 1300, "task.max_length": 64}
LEARNED = {"model.position.kind": "learned", "model.norm_placement": "pre"}
RUNS: dict[str, dict[str, Any]] = {
    "causal": {**LLAMA, **TEXT},
    "translation": {"task.kind": "translation", **TEXT, "task.tokenizer.vocabulary_size": 400, **LEARNED},
    "classes": {
        **TEXT,
        **LEARNED,
        "task.kind": "classification",
        "model.pooling.kind": "last",
        "model.is_causal": True,
        "model.output_bias": False,
    },
    "masked": {**LLAMA, **TEXT, "task.kind": "masked-language-model"},
    "bytes": {
        **LLAMA,
        **TEXT,
        "task.tokenizer": {"kind": "bpe", "vocabulary_size": 400, "add_prefix_space": False},
    },
}


@dataclass(frozen=True)
class Case:
    """Script of the page with the run that it is tried with."""

    run: str
    text: str
    starts_with_prompt: bool = False
    """True if the script prints the prompt before its continuation."""
    is_beginning: bool = False
    """True if the script prints only the beginning of the output."""


CASES = {
    "huggingface causal": Case("causal", "The film was", starts_with_prompt=True),
    "huggingface seq2seq": Case("translation", "The cat sees the dog."),
    "huggingface classes": Case("classes", "The film was good."),
    "huggingface masked": Case("masked", "The <mask> was good."),
    "ctranslate2 translator": Case("translation", "The cat sees the dog."),
    "ctranslate2 generator": Case("causal", "The film was"),
    "onnx any": Case("classes", "The film was good."),
    "gguf causal": Case("bytes", "The film was", is_beginning=True),
    "web any": Case("classes", "The film was good."),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Run]:
    """Return the runs by name, each trained when it is first needed."""

    class Trained(dict[str, Run]):
        def __missing__(self, name: str) -> Run:
            self[name] = small_run(tmp_path_factory.mktemp("runs") / name, RUNS[name])
            return self[name]

    return Trained()


def test_page_has_a_script_for_each_case() -> None:
    assert set(SCRIPTS) == set(CASES)
    assert {name.split()[0] for name in CASES} >= set(TARGETS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_is_short(name: str) -> None:
    assert len([line for line in SCRIPTS[name].splitlines() if line.strip()]) <= MOST_LINES


def test_glassformer_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import glassformer")
    assert "glassformer" in answer("python", tmp_path / "script.py", fails=True)


def answer(language: str, script: Path, *, fails: bool = False) -> str:
    """Run a script in its folder and return what it prints; with `fails`, its error."""
    command = ["node", script.name]
    if language == "python":
        command = [sys.executable, "-P", "-c", WITHOUT_GLASSFORMER, script.name]
    done = subprocess.run(command, cwd=script.parent, capture_output=True, text=True, errors="replace")
    assert bool(done.returncode) == fails, done.stderr[-1500:]
    return done.stderr if fails else done.stdout


def export_options(target: str) -> dict[str, Any]:
    """Return the options of an export; skip the test if this machine cannot export to the target."""
    if target not in TARGETS:
        pytest.skip(f"there is no target {target}")
    if target != "web":
        return {}
    if shutil.which("node") is None:
        pytest.skip("Node.js is not installed")
    try:
        return {"runtime": str(find_runtime(None).resolve())}
    except UserError as error:
        pytest.skip(f"onnxruntime-web is not here: {error.details[0].message}")


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_script_answers_as_the_run(name: str, runs: Mapping[str, Run], tmp_path: Path) -> None:
    case, target = CASES[name], name.split()[0]
    options = export_options(target)
    run = runs[case.run]
    run.export(target, tmp_path / "exported", examples=4, **options)
    script = make_target(target, **options).loading_script(ExportSource.of(run))
    assert SCRIPTS[name] == script.fill("exported", case.text)
    path = tmp_path / {"python": "script.py", "javascript": "script.mjs"}[script.language]
    path.write_text(SCRIPTS[name], encoding="utf-8")
    printed, expected = answer(script.language, path).strip(), run.predict(case.text)["output"].strip()
    assert expected
    if case.starts_with_prompt:
        printed = printed.removeprefix(case.text).strip()
    if case.is_beginning:
        assert printed and expected.startswith(printed.rstrip("\ufffd"))
    else:
        assert printed == expected


@pytest.mark.thorough
def test_script_of_the_card_runs_in_its_folder(runs: Mapping[str, Run], tmp_path: Path) -> None:
    exported = runs["causal"].export("ctranslate2", tmp_path / "exported", examples=4)
    card = (exported.folder / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", card, re.M | re.S)
    (exported.folder / "script.py").write_text(code, encoding="utf-8")
    text = re.search(r'folder, text = "\.", (".*")', code)
    assert text is not None
    expected = runs["causal"].predict(json.loads(text[1]))["output"]
    assert answer("python", exported.folder / "script.py").strip() == expected.strip()


@pytest.mark.thorough
def test_tables_are_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "write-exports"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-1000:]
