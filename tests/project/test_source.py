"""Rules for the source, checked on the source: sizes, docstrings, and nothing that runs data as code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "glassformer"
TREES = {
    str(path.relative_to(PACKAGE)): ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted(PACKAGE.rglob("*.py"))
}

Found = list[tuple[int, str]]


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and full name of every import, nested ones included; imports for type checking are left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute here"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        yield from imports(node)


def test_every_module_has_a_docstring() -> None:
    assert [name for name, tree in TREES.items() if len(ast.get_docstring(tree) or "") < 20] == []


FORBIDDEN_IMPORTS = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "joblib",
    "jsonpickle",
    "shelve",
    "marshal",
}
FORBIDDEN_IMPORTS |= {"runpy", "code", "codeop", "pty"}
FORBIDDEN_NAMES = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_CALLS = {
    *(f"builtins.{name}" for name in FORBIDDEN_NAMES),
    "subprocess.getoutput",
    "subprocess.getstatusoutput",
    "asyncio.create_subprocess_shell",
    "torch.load",
    "torch.save",
    "torch.hub.load",
    "yaml.unsafe_load",
    "yaml.full_load",
    "yaml.load_all",
    "yaml.unsafe_load_all",
    "yaml.full_load_all",
    "os.system",
    "os.popen",
    "pd.read_pickle",
}
SAFE_LOADERS = {"_StrictLoader", "yaml.SafeLoader", "SafeLoader"}


def dangers(tree: ast.Module) -> Found:
    """Constructs that could run data as code."""
    found: Found = []
    for line, name in imports(tree):
        # An alias would hide the call from the check below.
        if name.split(".")[0] in FORBIDDEN_IMPORTS or name in FORBIDDEN_CALLS | {"yaml.load"}:
            found.append((line, f"import {name}"))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        keywords = {word.arg: ast.unparse(word.value) for word in node.keywords}
        if called in FORBIDDEN_NAMES | FORBIDDEN_CALLS:
            found.append((node.lineno, called))
        if called == "yaml.load" and keywords.get("Loader") not in SAFE_LOADERS:
            found.append((node.lineno, called))
        if keywords.get("shell", "False") != "False":
            found.append((node.lineno, "shell=True"))
        if keywords.get("allow_pickle", "False") != "False":
            found.append((node.lineno, "allow_pickle=True"))
        words = [ast.unparse(word) for word in ast.walk(node) if isinstance(word, ast.Constant)]
        if (
            called.startswith(("subprocess.", "os.exec", "os.spawn"))
            and "'-c'" in words
            and SHELLS & {*words}
        ):
            found.append((node.lineno, "a shell's command line"))
    return found


SHELLS = {repr(f"{folder}{name}") for name in ("sh", "bash", "zsh", "dash") for folder in ("", "/bin/")}


def test_no_data_can_run_as_code() -> None:
    assert {name: dangers(tree) for name, tree in TREES.items() if dangers(tree)} == {}


def test_nor_in_the_scripts() -> None:
    texts = {
        path: path.read_text(encoding="utf-8") for path in (ROOT / "scripts").iterdir() if path.is_file()
    }
    trees = {
        path.name: ast.parse(text)
        for path, text in texts.items()
        if path.suffix == ".py" or text.startswith("#!/usr/bin/env python3")
    }
    assert len(trees) >= 6
    assert {name: dangers(tree) for name, tree in trees.items() if dangers(tree)} == {}


def test_nor_in_the_pages() -> None:
    """Pages insert text as text, never as markup or code."""
    sources = [path for path in PACKAGE.rglob("*") if path.suffix in (".js", ".html")]
    assert sources
    bad = re.compile(r"\beval\(|new Function\(|innerHTML|outerHTML|insertAdjacentHTML|document\.write")
    assert not [path.name for path in sources if bad.search(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "def f():\n    import marshal",
        "torch.load('x', weights_only=True)",
        "yaml.load(text)",
        "yaml.load(text, Loader=yaml.Loader)",
        "yaml.load(text, Loader=yaml.FullLoader)",
        "yaml.unsafe_load(text)",
        "eval('1')",
        "exec(code)",
        "subprocess.run(command, shell=True)",
        "np.load(path, allow_pickle=True)",
        "os.system('ls')",
        "from torch import load",
        "from yaml import unsafe_load as safe",
        "subprocess.getoutput('ls')",
        "subprocess.run(['sh', '-c', text])",
        "builtins.eval('1')",
    ],
)
def test_dangers_are_seen(code: str) -> None:
    assert dangers(ast.parse(code))


def test_what_is_harmless_is_not_seen() -> None:
    code = "model.eval(); yaml.load(t, Loader=_StrictLoader); run(c, shell=False); spec.loader.exec_module(m)"
    assert dangers(ast.parse(code)) == []


def test_no_module_is_a_catch_all() -> None:
    assert not {Path(name).stem for name in TREES} & {"utils", "util", "helpers", "misc", "common"}


LONGEST_FILE, LONGEST_FUNCTION, FRAGMENT = 700, 60, 60
"""Lines. A fragment is a smaller file that only one other file imports: it belongs in that file."""


def line_count(name: str) -> int:
    return len((PACKAGE / name).read_text(encoding="utf-8").splitlines())


def test_files_and_functions_stay_readable() -> None:
    long = [name for name in TREES if line_count(name) > LONGEST_FILE]
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = (node.end_lineno or 0) - node.lineno + 1
                long += [f"{name}: {node.name}"] if lines > LONGEST_FUNCTION else []
    assert not long


def module_name(name: str) -> str:
    return "glassformer." + name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def test_no_file_is_a_fragment() -> None:
    importers: dict[str, set[str]] = {module_name(name): set() for name in TREES}
    for name, tree in TREES.items():
        for _, imported in imports(tree):
            for module in (imported, imported.rpartition(".")[0]):
                if module in importers and module != module_name(name):
                    importers[module].add(name)
    assert not [
        name
        for name in TREES
        if not name.endswith(("__init__.py", "__main__.py")) and not name.startswith("cli/")
        if line_count(name) < FRAGMENT and len(importers[module_name(name)]) == 1
    ]


def test_no_assertion_checks_user_input() -> None:
    """Assertions may help the type checker; a user needs an error with a path and a hint."""
    asserted = [
        f"{name}, line {node.lineno}: {ast.unparse(node.test)}"
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert)
    ]
    assert [text for text in asserted if not re.search("is not None|isinstance", text)] == []
