"""Damaged files in a run folder: detected, reported in a few lines, and never used."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from glassformer.cli import main
from glassformer.runs.folder import RunFolder
from glassformer.storage.files import ChecksummedFolder, file_sha256, json_bytes

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command; return exit code, standard output and standard error."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        output = capsys.readouterr()
        assert "Traceback" not in output.err
        return code, output.out, output.err

    return run


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) * 2 // 3] ^= 0b100
    file.write_bytes(data)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def remove(file: Path) -> None:
    file.unlink()


@pytest.mark.parametrize("inject", [flip, cut, remove])
@pytest.mark.parametrize("file", ["model.safetensors", "state.json", "manifest.json"])
def test_a_damaged_newest_checkpoint_is_passed_over(
    file: str, inject: Callable[[Path], None], run_folder: RunFolder, trained_once: Path, cli: Cli
) -> None:
    """The steps since the previous checkpoint are repeated with the same result."""
    inject(run_folder.path / "checkpoints" / "step-00000024" / file)
    code, _, errors = cli("train", run_folder.path, "--resume")
    assert code == 0
    assert "step-00000024/" in errors and "using the previous checkpoint" in errors
    assert "resuming from step 16 of " in errors
    for group in ("model", "optimizer", "random"):
        name = f"checkpoints/step-00000024/{group}.safetensors"
        assert file_sha256(run_folder.path / name) == file_sha256(trained_once / name)
    steps = [event["step"] for event in run_folder.events if event["event"] == "step"]
    assert steps == list(range(1, 25))


def test_a_damaged_best_checkpoint_is_not_measured(run_folder: RunFolder, cli: Cli) -> None:
    store = run_folder.checkpoints()
    best = store.find("best")
    flip(store.folder / best / "model.safetensors")
    for verb in (["evaluate"], ["predict"]):
        code, output, errors = cli(*verb, run_folder.path, *(["1 2"] if verb == ["predict"] else []))
        assert code == 2 and output == ""
        assert "the checkpoint is damaged" in errors and f"{best}/model.safetensors" in errors
        other = errors.split("--checkpoint ")[1].strip()
        assert other in store.names() and other != best
        assert 2 <= len(errors.splitlines()) <= 5
    assert cli("evaluate", run_folder.path, "--checkpoint", other)[0] == 0


def test_a_run_without_an_intact_checkpoint_is_not_restarted(run_folder: RunFolder, cli: Cli) -> None:
    for name in run_folder.checkpoints().names():
        flip(run_folder.path / "checkpoints" / name / "model.safetensors")
    before = (run_folder.path / "events.jsonl").read_bytes()
    code, _, errors = cli("train", run_folder.path, "--resume", "--quiet")
    assert code == 2 and "every checkpoint here is damaged" in errors
    assert (run_folder.path / "events.jsonl").read_bytes() == before


NOT_JSON = [b"", b"{", b"[1]", b"\xff\xfe\x00", b"null", b"[" * 100_000]


@pytest.mark.parametrize("content", NOT_JSON)
@pytest.mark.parametrize(
    ("file", "verb"),
    [
        ("task.json", ["evaluate"]),
        ("task.json", ["predict"]),
        ("environment.json", ["train", "--resume", "--quiet"]),
        ("results.json", ["runs", "compare"]),
    ],
)
def test_damaged_json(file: str, verb: list[str], content: bytes, run_folder: RunFolder, cli: Cli) -> None:
    (run_folder.path / file).write_bytes(content)
    code, output, errors = cli(*verb, run_folder.path)
    assert code == 2 and output == ""
    assert errors.startswith(f"glassformer: {run_folder.path / file}: ")
    assert "restore it from a copy of the run" in errors
    assert 2 <= len(errors.splitlines()) <= 5


@pytest.mark.parametrize("file", ["config.yaml", "config.json", "SHA256SUMS"])
@pytest.mark.parametrize("content", ["", "task: [", "{}"])
@pytest.mark.parametrize("verb", [["evaluate"], ["predict"], ["train", "--resume", "--quiet"], ["params"]])
def test_a_damaged_config(file: str, content: str, verb: list[str], run_folder: RunFolder, cli: Cli) -> None:
    (run_folder.path / file).write_text(content)
    code, output, errors = cli(*verb, run_folder.path)
    assert code == 2 and output == ""
    assert str(run_folder.path / "config.") in errors and "restore it from a copy of the run" in errors
    assert 2 <= len(errors.splitlines()) <= 5


NOT_CONFIGS = {
    b"": "cannot be read",
    b"[1]": "it is not a JSON object",
    b"[" * 100_000: "cannot be read",
    b'{"task": {"kind": "reversal"}, "model": {"num_layers": "many"}}': "model.num_layers",
    b'{"task": {"kind": "reversal"}, "models": {}}': "unknown option",
}


@pytest.mark.parametrize("content", NOT_CONFIGS)
@pytest.mark.parametrize("verb", [["evaluate"], ["predict"], ["train", "--resume", "--quiet"], ["params"]])
def test_a_wrong_config_with_a_right_checksum(
    content: bytes, verb: list[str], run_folder: RunFolder, cli: Cli
) -> None:
    ChecksummedFolder(run_folder.path).write({"config.json": content})
    code, output, errors = cli(*verb, run_folder.path)
    assert code == 2 and output == ""
    assert NOT_CONFIGS[content] in errors
    assert 2 <= len(errors.splitlines()) <= 5


def test_a_config_of_another_model(run_folder: RunFolder, cli: Cli) -> None:
    tree = run_folder.config()
    tree["model"]["hidden_dim"] = 32
    ChecksummedFolder(run_folder.path).write({"config.json": json_bytes(tree)})
    code, _, errors = cli("evaluate", run_folder.path)
    assert code == 2
    assert f"{run_folder.path / 'config.json'}: the file does not describe the model of step-" in errors
    assert len(errors.splitlines()) == 2


@pytest.mark.parametrize("file", ["status.json", "results.json"])
def test_one_damaged_run_does_not_hide_the_others(
    file: str, run_folder: RunFolder, trained_once: Path, cli: Cli, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "whole").symlink_to(trained_once)
    run_folder.path.rename(runs / "broken")
    (runs / "broken" / file).write_text("{")
    code, output, errors = cli("runs", "--runs", runs, "--json")
    assert code == 0
    statuses = {Path(row["run"]).name: row["status"] for row in json.loads(output)["runs"]}
    assert statuses == {"whole": "done", "broken": "damaged"}
    assert str(runs / "broken" / file) in errors


@pytest.mark.parametrize("verb", ["evaluate", "predict", "train"])
def test_a_path_without_a_run(verb: str, cli: Cli, tmp_path: Path) -> None:
    options = ["--resume"] if verb == "train" else []
    code, _, errors = cli(verb, tmp_path / "none", *options)
    assert code == 2 and len(errors.splitlines()) in (2, 3)
    code, _, errors = cli(verb, tmp_path, *options)
    assert code == 2 and "folder" in errors
    code, _, errors = cli(verb, "x" * 5000, *options)
    assert code == 2 and len(errors.splitlines()) <= 5


def test_a_cut_event_log_is_not_padded(run_folder: RunFolder, cli: Cli) -> None:
    """The last line may be incomplete; zeros never appear."""
    events = run_folder.path / "events.jsonl"
    events.write_bytes(events.read_bytes()[:-30])
    assert cli("train", run_folder.path, "--resume", "--quiet")[0] == 0
    assert b"\0" not in events.read_bytes()
    assert len(list(run_folder.events)) > 20
