"""A run's folder may be given away: it holds no path, name or secret that its owner did not write there."""

from __future__ import annotations

import getpass
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from glassformer.cli import main

SECRET = "hunter2-correct-horse"


def texts(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_bytes().decode("utf-8", "replace")
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of one's own, a cache with a telling name, and a secret in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GLASSFORMER_CACHE", str(tmp_path / "cache-of-somebody"))
    monkeypatch.setenv("API_TOKEN", SECRET)
    monkeypatch.setenv("OPTUNA_STORAGE", f"postgresql://me:{SECRET}@server/db")
    rows = [f"{label}\t{word} {number}" for number in range(12) for label, word in (("a", "x"), ("b", "y"))]
    Path("mine.tsv").write_text("".join(f"{row}\n" for row in rows))
    Path("mine.yaml").write_text(
        "task: {kind: classification, max_length: 8,\n"
        "       data: {train: mine.tsv, columns: {target: 0, input: 1}}}\n"
        "model: {num_layers: 1, num_heads: 2, hidden_dim: 8, feed_forward_dim: 8}\n"
        "training: {max_steps: 2, max_epochs: null, batch_size: 8, threads: 1, device: cpu}\n"
    )
    return tmp_path


@pytest.mark.parametrize("is_absolute", [False, True])
def test_a_run_contains_nothing_about_its_owner(elsewhere: Path, is_absolute: bool) -> None:
    """The path of the run is not in it either: sweeps, studies and the studio use absolute paths."""
    run = elsewhere / "run" if is_absolute else Path("run")
    assert main(["train", "mine.yaml", "training.tensorboard=true", "--run", str(run), "--quiet"]) == 0
    found = texts(elsewhere / "run")
    assert {
        "SHA256SUMS",
        "config.json",
        "config.yaml",
        "environment.json",
        "events.jsonl",
        "results.json",
        "tokenizer.json",
    } <= found.keys()
    private = [SECRET, str(elsewhere), str(Path.home()) + "/", sys.prefix, "cache-of-somebody"]
    for name, text in found.items():
        assert not [word for word in private if word in text], name
        # The host is stored only in the status, which needs it.
        if name != "status.json" and len(socket.gethostname()) > 3:
            assert socket.gethostname() not in text, name
        if len(getpass.getuser()) > 4:
            assert getpass.getuser() not in text, name


def test_paths_in_the_config_are_kept(elsewhere: Path) -> None:
    """An absolute path that the user gave is needed to find the data again."""
    data = f"task.data.train={elsewhere / 'mine.tsv'}"
    assert main(["train", "mine.yaml", data, "--run", "run", "--quiet"]) == 0
    assert str(elsewhere / "mine.tsv") in (elsewhere / "run" / "config.yaml").read_text()


def test_nothing_is_written_for_others_to_change(elsewhere: Path) -> None:
    code = "import sys; from glassformer.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "train", "mine.yaml", "--run", "run", "--quiet"]
    done = subprocess.run(command, umask=0o022, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for path in (elsewhere / "run").rglob("*"):
        assert not os.stat(path).st_mode & 0o022, path
