"""Reports show the numbers in the files of their runs, for every kind of task and every state."""

from __future__ import annotations

import json
import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest

import glassformer as gf
from glassformer.cli import main
from glassformer.core.config import validate
from glassformer.core.errors import UserError
from glassformer.evaluation.intervals import student_interval
from glassformer.runs.experiment import ExperimentConfig
from glassformer.runs.folder import RunFolder
from glassformer.runs.run import Run
from glassformer.runs.session import TrainingSession
from glassformer.storage.files import ChecksummedFolder, json_bytes

from .conftest import SMALL, TASKS, TrainedRun, read_page, small_config

WITHOUT_TEST = ("numbers-of-texts", "numbers-of-tokens")
SECTIONS = [
    "Question",
    "Setting",
    "Results",
    "Curves",
    "Samples",
    "Attention maps",
    "Parameters",
    "Environment",
]


@pytest.mark.parametrize("name", TASKS)
def test_every_kind_of_task(name: str, trained_run: TrainedRun, tmp_path: Path) -> None:
    folder = RunFolder(trained_run(name))
    document = gf.report(folder.path, tmp_path / "report.html", samples=3)
    assert document["warnings"] == []
    page = read_page(tmp_path / "report.html")
    page.assert_offline()
    assert [heading for heading in page.headings if heading in SECTIONS] == SECTIONS
    results = folder.results()
    for split, metrics in results["metrics"].items():
        for metric, value in metrics.items():
            assert value in page.numbers
            assert set(results["intervals"][split].get(metric) or [value]) <= set(page.numbers)
    assert results["parameters"] in page.numbers
    assert ("no test set" in page.text) == (name in WITHOUT_TEST) == ("test" not in results["metrics"])
    task_type = Run(folder.path).task.task_type  # its docstring was shown, with the names of fields
    assert f"Task type: {task_type.describe()}" in page.text and "`" not in page.text
    assert f"glassformer evaluate {folder.path}" in page.text
    assert f"ended because {results['ended_because']}." in page.text
    assert folder.environment()["data_sha256"] in page.text
    samples = [
        attributes for attributes in page.all("li") if (attributes.get("class") or "").startswith("is-")
    ]
    assert 1 <= len(samples) <= 3


def test_seeds_of_one_setting_are_one_measurement(trained_run: TrainedRun, tmp_path: Path) -> None:
    paths = seeds_of_reversal(tmp_path, [0, 1, 2])
    shutil.copytree(paths[0], tmp_path / "again")
    other = trained_run("reversal")  # another number of steps
    document = gf.report([*paths, tmp_path / "again", other], tmp_path / "report.html", samples=0, maps=0)
    three, one = document["settings"]
    values = [RunFolder(path).results()["metrics"]["test"]["loss"] for path in paths]
    assert three["seeds"] == [0, 1, 2] and one["seeds"] == [0]
    assert three["metrics"]["loss"] == statistics.fmean(values)
    assert list(three["intervals"]["loss"]) == student_interval(values)
    page = read_page(tmp_path / "report.html")
    assert {statistics.fmean(values), *(student_interval(values) or [])} <= set(page.numbers)
    assert "again has the same seed 0 as run-0 and is not counted" in page.text
    assert (three["setting"], one["setting"]) == ("max_steps 3", "max_steps 2")
    assert "Differences between settings" in page.text


def seeds_of_reversal(folder: Path, seeds: list[int]) -> list[Path]:
    paths = []
    for seed in seeds:
        paths.append(folder / f"run-{seed}")
        config = small_config({"task": TASKS["reversal"]}, **{"seed": seed, "training.max_steps": 3})
        TrainingSession(config, RunFolder(paths[-1])).run()
    return paths


def test_the_command_gives_the_same_config(run_folder: RunFolder, tmp_path: Path) -> None:
    import shlex

    gf.report(run_folder.path, tmp_path / "report.html", samples=0, maps=0)
    text = read_page(tmp_path / "report.html").text
    (line,) = [line for line in text.splitlines() if "glassformer train " in line]
    words = shlex.split(line[line.index("glassformer train ") :])
    what, overrides = words[2], words[3 : words.index("--run")]
    assert gf.resolve(what, overrides) == gf.resolve(str(run_folder.path))


def spoil_config(folder: RunFolder) -> None:
    (folder.path / "config.yaml").write_text("task: [", encoding="utf-8")


def spoil_results(folder: RunFolder) -> None:
    (folder.path / "results.json").write_text('{"metrics": {"test": ', encoding="utf-8")


def lose_results(folder: RunFolder) -> None:
    (folder.path / "results.json").unlink()


def spoil_weights(folder: RunFolder) -> None:
    for file in (folder.path / "checkpoints").rglob("model.safetensors"):
        file.write_bytes(file.read_bytes()[:-7])


def spoil_forms(folder: RunFolder) -> None:
    """Write valid JSON of an unexpected form."""
    results = {"metrics": [1], "intervals": 5, "primary_metric": {}}
    environment = {"git": 7, "data_notes": "x", "created": None}
    ChecksummedFolder(folder.path).write(
        {"results.json": json_bytes(results), "environment.json": json_bytes(environment)}
    )
    (folder.path / "events.jsonl").write_text(
        '[]\n{"event": "step", "step": "x"}\n{"event": "validation"}\nno\n'
    )


def crash(folder: RunFolder) -> None:
    lose_results(folder)
    status = json.loads((folder.path / "status.json").read_bytes())
    folder.write_status({**status, "state": "running", "step": 7})


def diverge(folder: RunFolder) -> None:
    lose_results(folder)
    status = json.loads((folder.path / "status.json").read_bytes())
    folder.write_status({**status, "state": "diverged"})
    with open(folder.path / "events.jsonl", "a", encoding="utf-8") as file:
        file.write(
            '{"event": "step", "step": 25, "loss": NaN}\n{"event": "step", "step": 26, "loss": Infinity}\n'
        )


@pytest.mark.parametrize(
    ("spoil", "state", "words"),
    [
        (spoil_config, "damaged", "config.yaml: the file cannot be used"),
        (spoil_results, "damaged", "results.json: the file cannot be read"),
        (lose_results, "damaged", "its results are missing"),
        (spoil_forms, "damaged", "unreadable lines: 1"),
        (spoil_weights, "done", "the checkpoint is damaged"),
        (crash, "crashed", "it reached step 7 of 24"),
        (diverge, "diverged", "its loss grew too large"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_damage_is_reported(
    spoil: Any, state: str, words: str, run_folder: RunFolder, trained_once: Path, tmp_path: Path
) -> None:
    spoil(run_folder)
    document = gf.report([run_folder.path, trained_once], tmp_path / "report.html", samples=2, maps=1)
    assert [run["status"] for run in document["runs"]] == [state, "done"]
    page = read_page(tmp_path / "report.html")
    assert "Incomplete or damaged" in page.text and words in page.text
    assert RunFolder(trained_once).results()["metrics"]["test"]["accuracy"] in page.numbers


def test_hostile_text_is_escaped(run_folder: RunFolder, tmp_path: Path) -> None:
    evil = "<script>alert(1)<\u2215script>\"'&amp;<img src=x onerror=alert(1)>"
    path = tmp_path / evil
    run_folder.path.rename(path)
    environment = json.loads((path / "environment.json").read_bytes())
    notes = [
        "</script><script>alert(2)</script>",
        "</style><svg onload=alert(3)>",
        "a\x00b\ud800".encode("utf-8", "replace").decode(),
    ]
    environment |= {"data_notes": notes, "<b>": "<i>"}
    results = json.loads((path / "results.json").read_bytes())
    results["metrics"]["test"]["<u>"] = 0.5
    ChecksummedFolder(path).write(
        {"environment.json": json_bytes(environment), "results.json": json_bytes(results)}
    )
    gf.report(path, tmp_path / "report.html", markdown=tmp_path / "r.md", latex=tmp_path / "r.tex")
    page = read_page(tmp_path / "report.html")
    page.assert_offline()
    assert not {"b>", "<u>", "<i>"} & {f"<{name}>" for name, _ in page.elements if name in ("u", "i")}
    assert evil in page.text and all(note.replace("\x00", "\ufffd") in page.text for note in notes)
    assert "<script" not in (tmp_path / "r.md").read_text() and "<u>" not in (tmp_path / "r.md").read_text()
    assert "<" not in (tmp_path / "r.tex").read_text()


def test_tokens_that_are_markup(tmp_path: Path) -> None:
    data = tmp_path / "evil.tsv"
    data.write_text(
        "".join(f"<b> </script> {'& ' * (n % 3)}<!--\t</li> <s> {'x ' * (n % 3)}x\n" for n in range(60))
    )
    task = {
        "kind": "tokens",
        "data": {"train": str(data), "test": str(data), "columns": {"input": 0, "target": 1}},
    }
    TrainingSession(small_config({"task": task}), RunFolder(tmp_path / "run")).run()
    gf.report(tmp_path / "run", tmp_path / "report.html")
    page = read_page(tmp_path / "report.html")
    page.assert_offline()
    assert "<b> </script>" in page.text and "</li> <s>" in page.text
    assert not page.all("s") and page.source.count("</script>") == 2


def test_the_same_report_twice_is_the_same_file(trained_once: Path, tmp_path: Path) -> None:
    for name in ("a.html", "b.html"):
        gf.report(trained_once, tmp_path / "report.html")
        (tmp_path / "report.html").rename(tmp_path / name)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_the_verb(trained_once: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out, tex = tmp_path / "report.html", tmp_path / "table.tex"
    arguments = [
        "report",
        trained_once,
        trained_once,
        "--out",
        out,
        "--latex",
        tex,
        "--samples",
        0,
        "--maps",
        0,
    ]
    assert main([*map(str, arguments), "--json"]) == 0
    output = capfd.readouterr()
    document = json.loads(output.out)
    assert document["out"] == str(out) and document["latex"] == str(tex) and document["markdown"] is None
    assert [run["run"] for run in document["runs"]] == [str(trained_once)] and "given twice" in output.err
    assert "Samples" not in read_page(out).headings
    assert r"\toprule" in tex.read_text()


@pytest.mark.parametrize(
    ("out", "words"), [("report.pdf", "wrong file extension"), ("none/report.html", "no such folder")]
)
def test_an_invalid_output_path_is_rejected(out: str, words: str, trained_once: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        gf.report(trained_once, tmp_path / out)


def test_a_folder_of_runs_is_rejected_with_a_hint(trained_once: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a folder of runs, not a run"):
        gf.report(trained_once.parent, tmp_path / "report.html")
    with pytest.raises(UserError, match="this folder does not contain a run"):
        gf.report(tmp_path, tmp_path / "report.html")
    with pytest.raises(UserError, match="no such run"):
        gf.report(tmp_path / "none", tmp_path / "report.html")
    with pytest.raises(UserError, match="no run was given"):
        gf.report([], tmp_path / "report.html")


@pytest.mark.parametrize("kind", ["classification", "language-model", "masked-language-model"])
def test_samples_show_the_texts_of_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Underline words that the model does not know, instead of replacing them by a sign."""
    monkeypatch.setenv("GLASSFORMER_CACHE", str(tmp_path / "cache"))
    task = {
        "kind": kind,
        "examples": 20,
        "max_length": 24,
        "tokenizer": {"kind": "words", "vocabulary_size": 5},
    }
    config = validate(ExperimentConfig, ExperimentConfig.fill_kinds({**SMALL, "task": task}))
    TrainingSession(config, RunFolder(tmp_path / "run")).run()
    gf.report(tmp_path / "run", tmp_path / "report.html", samples=4, maps=1)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert '<u title="unknown to the model">' in page and "words are unknown to the model." in page
    assert "⁇" not in page and "&lt;unknown&gt;" not in page
