"""Public surface: names, verbs, a fast `--help`, and the commands of the README."""

from __future__ import annotations

import importlib.util
import re
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import glassformer
from glassformer.cli import VERBS, main, make_parser
from glassformer.runs.experiment import presets, resolve

ROOT = Path(__file__).resolve().parents[2]

PUBLIC_NAMES = {
    "CausalLM",
    "Experiment",
    "ExperimentConfig",
    "MaskedLM",
    "Run",
    "Seq2Seq",
    "SequenceClassification",
    "TokenClassification",
    "Transformer",
    "UserError",
    "__version__",
    "fetch_model",
    "from_huggingface",
    "generate",
    "import_model",
    "load_plugin",
    "nn",
    "presets",
    "record",
    "register",
    "replace",
    "report",
    "resolve",
    "sites",
    "sweep",
    "train",
}
"""Removing a name breaks scripts: record it in the CHANGELOG."""


def test_public_names() -> None:
    assert set(glassformer.__all__) == PUBLIC_NAMES == set(dir(glassformer))
    for name in PUBLIC_NAMES:
        assert getattr(glassformer, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = glassformer.nonsense


def test_help_is_quick() -> None:
    """Take the best of five by CPU time, which other processes do not disturb."""
    seconds = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "glassformer", "--help"], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < 0.3


def test_help_imports_nothing_heavy() -> None:
    code = """
import sys
from glassformer.cli import main
import glassformer
main(["--help"]); main(["--version"]); main(["trian"])
print(sorted({"torch", "pydantic", "numpy", "yaml", "rich", "matplotlib"} & set(sys.modules)))
"""
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert printed.stdout.splitlines()[-1] == "[]"


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, code in ((["--help"], 0), (["-h"], 0), (["help"], 0), ([], 2)):
        assert main(arguments) == code
        text = capsys.readouterr().out
        assert all(f"\n  {verb} " in text for verb in VERBS)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"glassformer {glassformer.__version__}\n"


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself_and_takes_json(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert importlib.util.find_spec(f"glassformer.cli.{verb.replace('-', '_')}") is not None
    assert main([verb, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: glassformer {verb} ") and "--json" in text


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_examples_that_it_accepts(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    _, _, section = capsys.readouterr().out.partition("\nexamples:\n")
    examples = section.strip().splitlines()
    assert examples
    for example in examples:
        program, name, *words = shlex.split(example, comments=True)
        assert (program, name) == ("glassformer", verb)
        if "<" in words:  # the shell's redirection of standard input
            words = words[: words.index("<")]
        arguments = make_parser(verb).parse_intermixed_args(words)
        if getattr(arguments, "source", None) in presets() and verb != "sweep":
            resolve(arguments.source, arguments.overrides)


def test_the_page_of_all_options_is_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "write-options"), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


# ---------------------------------------------------------------- the README


def readme_commands() -> list[list[str]]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    pattern = r"(?:^ +|`)(?:\.venv/bin/)?glassformer ([a-z][^`\n#]*)"
    return [found.split() for found in re.findall(pattern, text, flags=re.MULTILINE)]


def test_the_readme_has_commands() -> None:
    assert len(readme_commands()) >= 10


@pytest.mark.parametrize("words", readme_commands(), ids=" ".join)
def test_readme_commands_exist(words: list[str]) -> None:
    verb, *rest = words
    assert verb in VERBS
    if verb in ("train", "params") and rest and not rest[0].startswith("["):
        what = rest[0]
        assert what in presets() or what == "SOURCE" or what.endswith(".yaml")


def test_readme_options_exist(capsys: pytest.CaptureFixture[str]) -> None:
    for verb, *rest in readme_commands():
        main([verb, "--help"])
        text = capsys.readouterr().out
        for option in (word.strip("[]") for word in rest if word.strip("[").startswith("--")):
            assert option in text, f"glassformer {verb} {option}"


def test_readme_targets_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = set(re.findall(r"(?:^ +|`)make ([a-z-]+)", text, flags=re.MULTILINE))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert {"demo", "test"} <= targets
    assert all(re.search(rf"^{target}:", makefile, flags=re.MULTILINE) for target in targets)


def test_the_readme_speaks_python_that_exists() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    names = set(re.findall(r"\bgf\.(\w+)", text))
    assert names and names <= PUBLIC_NAMES
    methods = set(re.findall(r"\brun\.(\w+)\(", text))
    assert all(hasattr(glassformer.Run, method) for method in methods), methods
