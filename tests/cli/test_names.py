"""Paths that a file system refuses are reported in a few words."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

import glassformer
from glassformer.cli import main
from glassformer.core.errors import UserError

LONG = "a" * 300
TINY = str(Path(__file__).parents[1] / "tiny.yaml")
HALF = "\ud800"
"""Half of a surrogate pair, which no file name can contain."""


@pytest.mark.parametrize(
    "words",
    [
        ["report", LONG],
        ["report", f"{LONG}/run"],
        ["runs", "--runs", LONG],
        ["studio", "--runs", LONG, "--no-browser"],
        ["train", TINY, "--plugin", f"{LONG}.py"],
        ["train", "language-model", f"task.data.train={LONG}.txt"],
        ["train", "classification", f"task.data.train={LONG}/rows.tsv"],
        ["train", "language-model", f"task.tokenizer={{kind: file, path: {LONG}}}"],
        ["data", "check", f"{LONG}.tsv"],
        ["prove-resume", TINY, "--keep", LONG],
        ["train", TINY, "--run", LONG],
        ["evaluate", LONG],
        ["doctor", LONG],
    ],
)
def test_too_long_a_name(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, said = main(words), capsys.readouterr().err
    # It lists no runs, like any folder that does not exist.
    assert code == 0 if words[0] == "runs" else code == 2 and "aaaaaaaa" in said
    assert "Traceback" not in said and len(said.splitlines()) <= 6
    assert not list(tmp_path.rglob("*.yaml"))


@pytest.mark.parametrize("name", [HALF, LONG])
def test_a_report_of_a_name_that_cannot_be(name: str) -> None:
    with pytest.raises(UserError, match="no such run"):
        glassformer.report(name)


@pytest.mark.parametrize("number", [errno.EACCES, errno.ELOOP])
def test_a_path_that_may_not_be_looked_at(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Report a folder without access; root always has access."""
    look = os.stat

    def refuse(path: object, **options: object) -> os.stat_result:
        if str(path) == "closed/rows.tsv":
            raise OSError(number, os.strerror(number), path)
        return look(path, **options)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(os, "stat", refuse)
    assert main(["data", "check", "closed/rows.tsv"]) == 2
    said = capsys.readouterr().err
    assert "closed/rows.tsv" in said and "Traceback" not in said


def test_our_own_mistakes_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(arguments: object, output: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "ours.json")

    monkeypatch.setattr("glassformer.cli.params.run", forgets)
    with pytest.raises(FileNotFoundError):
        main(["params", "reversal"])
