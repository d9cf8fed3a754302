"""Error messages for wrong input, word for word.

    GLASSFORMER_WRITE_GOLDEN=1 python -m pytest tests/cli/test_errors_golden.py

writes the expected texts in `errors/` again. Read the difference before you commit it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from glassformer.cli import main

from ..interchange.small_runs import small_run

GOLDEN = Path(__file__).with_name("errors")
WRITES = bool(os.environ.get("GLASSFORMER_WRITE_GOLDEN"))

TASK = b"task: {kind: reversal}\n"
BOMB = b"a: &a [x, x]\n" + b"".join(
    b"%c: &%c [*%c, *%c]\n" % (name, name, name - 1, name - 1) for name in range(ord("b"), ord("z"))
)
NEW_NORM = b"""from typing import Literal
from glassformer.blocks.norms import NormConfig
from glassformer.core.registry import register

@register
class Mine(NormConfig):
    kind: Literal["layer"] = "layer"
"""


@dataclass
class Case:
    """Arguments of one command, and the files in its working folder."""

    arguments: list[str]
    files: dict[str, bytes] = field(default_factory=dict)
    run: str = ""
    """Fixture of a finished run, which the command finds as `mine`."""


def of_file(content: bytes) -> Case:
    return Case(["params", "mine.yaml"], {"mine.yaml": content})


def of_override(*overrides: str) -> Case:
    return Case(["params", "counting-classifier", *overrides])


def of_text(preset: str, files: dict[str, bytes], *overrides: str) -> Case:
    return Case(["train", preset, *overrides, "--quiet"], files)


PAIRS = {"a.en": b"one\ntwo\nthree\n", "a.fr": b"un\ndeux\ntrois\n"}
BOTH = "task.data.train=[a.en, a.fr]"


def of_plugin(content: bytes, name: str = "mine.py") -> Case:
    return Case(["params", "counting-classifier", "--plugin", name], {name: content})


CASES: dict[str, Case] = {
    # The command itself.
    "unknown-verb": Case(["trian", "reversal"]),
    "unknown-verb-without-a-near-match": Case(["xyzzy"]),
    "unknown-option": Case(["params", "counting-classifier", "--jsno"]),
    "missing-argument": Case(["params"]),
    "option-without-value": Case(["train", "counting-classifier", "--run"]),
    "wrong-choice": Case(["runs", "lsit"]),
    "train-nothing": Case(["train"]),
    "unknown-preset": Case(["train", "counting-clasifier"]),
    "unknown-preset-without-a-near-match": Case(["train", "q"]),
    "missing-run": Case(["evaluate", "runs/none"]),
    "unknown-benchmark": Case(["bench", "atention"]),
    # Reports.
    "report-of-nothing": Case(["report"]),
    "report-of-a-missing-run": Case(["report", "runs/none"]),
    "report-of-a-folder-without-a-run": Case(["report", "folder"], {"folder/file.txt": b""}),
    "report-of-a-folder-of-runs": Case(["report", "folder"], {"folder/run/config.yaml": TASK}),
    "report-of-no-study": Case(["report", "folder"], {"folder/results.json": b'{"metrics": {}}'}),
    "report-with-another-extension": Case(
        ["report", "folder", "--out", "report.pdf"], {"folder/config.yaml": TASK}
    ),
    # Trained models of other libraries.
    "models-unknown-action": Case(["models", "improt", "folder"]),
    "models-unknown-name": Case(["models", "fetch", "stories15"]),
    "models-fetch-nothing": Case(["models", "fetch"]),
    "models-import-nothing": Case(["models", "import"]),
    "models-import-a-missing-file": Case(["models", "import", "none.gguf"]),
    "models-import-a-pickle": Case(
        ["models", "import", "pytorch_model.bin"], {"pytorch_model.bin": b"PK\x03\x04archive"}
    ),
    "models-import-a-folder-with-a-pickle": Case(
        ["models", "import", "folder"],
        {
            "folder/config.json": b'{"architectures": ["BertModel"]}',
            "folder/pytorch_model.bin": b"\x80\x02pickle",
        },
    ),
    "models-import-another-architecture": Case(
        ["models", "import", "folder"], {"folder/config.json": b'{"architectures": ["MambaForCausalLM"]}'}
    ),
    "models-import-weights-alone": Case(
        ["models", "import", "folder/model.safetensors"], {"folder/model.safetensors": b"\0" * 16}
    ),
    "models-import-no-model": Case(["models", "import", "notes.txt"], {"notes.txt": b"hello"}),
    "models-import-half-a-file": Case(["models", "import", "a.gguf"], {"a.gguf": b"GGUF\3\0\0\0"}),
    "models-import-without-a-tokenizer": Case(
        ["models", "import", "a.bin"],
        {"a.bin": b"".join(n.to_bytes(4, "little") for n in (8, 8, 1, 2, 2, 9, 8))},
    ),
    # Verbs that look into a finished run.
    "probe-unknown-label": Case(["probe", "mine", "tokn"], run="trained_once"),
    "probe-of-a-column-that-is-missing": Case(
        ["probe", "mine", "genre", "--file", "a.csv"], {"a.csv": b"text,kind\n1 2 3,x\n"}, "trained_once"
    ),
    "probe-of-a-missing-file": Case(["probe", "mine", "genre", "--file", "none.csv"], run="trained_once"),
    "probe-unknown-site": Case(["probe", "mine", "token", "--sites", "encoder.9.heads"], run="trained_once"),
    "probe-measured-on-train": Case(["probe", "mine", "token", "--split", "train"], run="trained_once"),
    "probe-too-few-examples": Case(["probe", "mine", "token", "--examples", "2"], run="trained_once"),
    "probe-with-another-extension": Case(["probe", "mine", "token", "--out", "a.pdf"], run="trained_once"),
    "align-a-model-without-cross-attention": Case(["align", "mine"], run="trained_once"),
    "align-with-a-missing-gold-file": Case(["align", "mine", "--gold", "none.txt"], run="arithmetic_once"),
    "align-with-gold-that-is-no-link": Case(
        ["align", "mine", "--gold", "gold.txt"], {"gold.txt": b"0-0 1-1\n0-0 1:1\n"}, "arithmetic_once"
    ),
    "align-with-empty-gold": Case(
        ["align", "mine", "--gold", "gold.txt"], {"gold.txt": b""}, "arithmetic_once"
    ),
    "align-with-binary-gold": Case(
        ["align", "mine", "--gold", "gold.txt"], {"gold.txt": bytes(range(128, 256))}, "arithmetic_once"
    ),
    "align-with-gold-for-an-input": Case(
        ["align", "mine", "27 - 35", "--gold", "gold.txt"], {"gold.txt": b"0-0\n"}, "arithmetic_once"
    ),
    "align-with-a-layer-alone": Case(["align", "mine", "--layer", "0"], run="arithmetic_once"),
    "align-unknown-head": Case(["align", "mine", "--layer", "0", "--head", "99"], run="arithmetic_once"),
    "align-unknown-weighting": Case(["align", "mine", "--weighting", "norms"], run="arithmetic_once"),
    "align-with-another-extension": Case(["align", "mine", "--out", "a.pdf"], run="arithmetic_once"),
    # Overrides.
    "renamed-key": of_override("training.clip_norm=1"),
    "unknown-key": of_override("model.num_layer=2"),
    "unknown-path": of_override("trainer.max_steps=2"),
    "key-of-another-section": of_override("training.seed=1"),
    "key-of-a-subsection": of_override("learning_rate=1e-3"),
    "end-of-a-key": of_override("model.layers=3"),
    "key-of-no-section": of_override("model.foo=1", "training.foo=2"),
    "key-of-the-task": of_override("model.train_examples=9"),
    "unknown-kind": of_override("model.position.kind=rotory"),
    "unknown-task": Case(["params", "mine.yaml"], {"mine.yaml": b"task: {kind: reversl}\n"}),
    "wrong-type": of_override("model.num_layers=two"),
    "fraction-for-a-count": of_override("model.num_layers=1.5"),
    "number-for-a-boolean": of_override("model.bias=1"),
    "yes-for-a-boolean": of_override("model.bias=yes"),
    "negative-size": of_override("model.hidden_dim=-4"),
    "zero-size": of_override("training.batch_size=0"),
    "not-a-number": of_override("training.optimizer.learning_rate=.nan"),
    "infinite-learning-rate": of_override("training.optimizer.learning_rate=.inf"),
    "too-large": of_override("model.dropout=1.0"),
    "heads-that-do-not-divide": of_override("model.num_heads=3"),
    "key-value-heads-that-do-not-divide": of_override("model.num_heads=4", "model.num_key_value_heads=3"),
    "odd-head-with-rotary": of_override("model.hidden_dim=20", "model.num_heads=4", "model.position=rotary"),
    "wrong-choice-of-placement": of_override("model.norm_placement=pree"),
    "usual-name-of-an-option": of_override("training.lr=0.1"),
    "usual-name-of-an-option-below": of_override("optimizer.lr=0.1"),
    "usual-name-of-a-kind": of_override("model.position.kind=rope"),
    "misspelt-key-of-another-section": of_override("lenght=16"),
    "space-for-the-equals-sign": of_override("task.length", "16"),
    "option-of-the-config": of_override("--length", "16"),
    "usual-name-as-an-option": of_override("--lr=0.1"),
    "data-file-without-its-option": Case(["train", "classification", "d/ag.csv"], {"d/ag.csv": b"a,b\n"}),
    "data-without-its-section": Case(["train", "classification", "data.train=ag.csv"]),
    "usual-name-in-options": Case(["options", "training.learning_rate"]),
    "option-of-another-kind": of_override("model.position.kind=alibi", "model.position.base=500"),
    "list-for-a-choice": of_override("model.position=[rotary]"),
    "number-for-a-section": of_override("training=5"),
    "nothing-for-a-section": of_override("model=null"),
    "no-value": of_override("model.num_layers="),
    "no-equals-sign": of_override("model.num_layers"),
    "no-path": of_override("=5"),
    "hole-in-the-path": of_override("model..num_layers=2"),
    "set-twice": of_override("seed=1", "seed=2"),
    "set-twice-once-as-a-whole": of_override("model.position=rotary", "model.position.base=500"),
    "path-below-a-value": of_override("seed.value=1"),
    "value-not-yaml": of_override("model.position={kind: rotary"),
    "value-with-a-tag": of_override("seed=!!python/object/apply:os.getpid []"),
    "no-end-of-training": of_override("training.max_epochs=null", "training.max_steps=null"),
    "several-at-once": of_override("model.num_layers=0", "training.batch_size=0", "seed=-1"),
    "too-many-threads": of_override("training.threads=100000"),
    "unknown-device": Case(["train", "counting-classifier", "training.device=gpu", "--quiet"]),
    # Files.
    "data-file": Case(["train", "my data.csv"], {"my data.csv": b"text,label\na,x\n"}),
    "missing-file": Case(["train", "none.yaml"]),
    "missing-file-with-a-near-match": Case(["train", "folder/min.yaml"], {"folder/mine.yaml": TASK}),
    "directory": Case(["train", "folder/"], {"folder/file.txt": b""}),
    "directory-named-yaml": Case(["train", "folder.yaml"], {"folder.yaml/file.txt": b""}),
    "empty-file": of_file(b""),
    "only-comments": of_file(b"# nothing\n\n---\n"),
    "list-at-the-top": of_file(b"- task\n- model\n"),
    "text-at-the-top": of_file(b"reversal\n"),
    "list-for-a-mapping": of_file(TASK + b"model: [num_layers, 2]\n"),
    "no-task": of_file(b"model: {num_layers: 2}\n"),
    "task-without-kind": of_file(b"task: {length: 5}\n"),
    "key-that-is-a-number": of_file(TASK + b"5: 6\n"),
    "key-that-is-a-list": of_file(TASK + b"? [a, b]\n: 1\n"),
    "invalid-yaml": of_file(TASK + b"model: {num_layers: 2\ntraining: {}\n"),
    "tabs": of_file(b"task:\n\tkind: reversal\n"),
    "two-documents": of_file(TASK + b"---\n" + TASK),
    "duplicate-key": of_file(TASK + b"seed: 1\nmodel: {}\nseed: 2\n"),
    "duplicate-key-deeper": of_file(TASK + b"model: {num_layers: 1, num_layers: 2}\n"),
    "ten-megabytes": of_file(TASK + b"# " + b"x" * 10_000_000),
    "code-in-a-tag": of_file(b"task: !!python/object/apply:os.system ['touch stolen']\n"),
    "class-in-a-tag": of_file(b"task: !!python/name:os.system\n"),
    "harmless-tag": of_file(TASK + b"seed: !!bool maybe\n"),
    "alias": of_file(b"task: &t {kind: reversal}\nmodel: *t\n"),
    "alias-bomb": of_file(BOMB),
    "deep-nesting": of_file(b"task: " + b"[" * 3_000),
    "binary-file": of_file(bytes(range(256))),
    "control-characters": of_file(b"task: \x00\x01\n"),
    "latin-1": of_file("task: {kind: größe}\n".encode("latin-1")),
    "endless-number": of_file(TASK + b"seed: " + b"9" * 5000 + b"\n"),
    # Texts.
    "text-file-missing": of_text("translation", PAIRS, "task.data.train=[a.en, b.fr]"),
    "text-files-unequal": of_text("translation", PAIRS | {"a.fr": b"un\ndeux\n"}, BOTH),
    "text-one-file-for-two": of_text("translation", PAIRS, "task.data.train=[a.en]"),
    "text-without-a-format": of_text("translation", PAIRS, "task.data.train=a.en"),
    "text-not-utf-8": of_text("translation", PAIRS | {"a.fr": "un\ndéjà\ntrois\n".encode("latin-1")}, BOTH),
    "text-encoding-unknown": of_text("translation", PAIRS, BOTH, "task.data.encoding=latin-99"),
    "text-empty-file": of_text("translation", PAIRS | {"a.fr": b"\n\n"}, BOTH),
    "text-half-a-gzip-file": of_text("language-model", {"a.gz": b"\x1f\x8b\x08"}, "task.data.train=a.gz"),
    "text-all-too-long": of_text("translation", PAIRS, BOTH, "task.max_length=2"),
    "text-all-seen-in-train": of_text(
        "translation", PAIRS, BOTH, "task.data.validation=[a.en, a.fr]", "task.unseen_only=true"
    ),
    "text-too-few-to-split": of_text(
        "translation", {"a.tsv": b"one\tun\none\tune\n"}, "task.data.train=a.tsv"
    ),
    "text-null": of_text(
        "language-model", {"a.jsonl": b'{"text": "one"}\n{"text": null}\n'}, "task.data.train=a.jsonl"
    ),
    "text-column-missing": of_text(
        "classification", {"a.jsonl": b'{"txt": "one", "label": 1}\n'}, "task.data.train=a.jsonl"
    ),
    "text-commas-or-semicolons": of_text(
        "classification", {"a.csv": b"nice;0,5\nbad;0,1\n"}, "task.data.train=a.csv"
    ),
    "text-running-pairs": of_text(
        "translation", PAIRS, "task.data.train=a.en", "task.data.format=running-text"
    ),
    "text-set-missing": of_text("multi30k-en-fr", {}),
    "text-set-without-this-file": of_text("shakespeare", {}, "task.data.train=tinyshakespeare/inputs.txt"),
    "text-stride-too-long": of_text("language-model", {}, "task.stride=97"),
    "label-empty": of_text(
        "classification", {"a.tsv": b"one\tgood\ntwo\tbad\n" * 9 + b"three\t\n"}, "task.data.train=a.tsv"
    ),
    "label-only-in-test": of_text(
        "classification",
        {"a.tsv": b"one\tgood\ntwo\tbad\n" * 5, "b.tsv": b"one\tso so\n" * 4 + b"two\tbad\n"},
        "task.data.train=a.tsv",
        "task.data.validation=a.tsv",
        "task.data.test=b.tsv",
    ),
    "text-other-header": of_text(
        "classification",
        {"a.tsv": b"label\tsentence\n" + b"x\tone\ny\ttwo\n" * 5, "b.tsv": b"label\tcontent\nx\tone\n"},
        "task.data.train=a.tsv",
        "task.data.validation=b.tsv",
    ),
    "text-columns-of-another-type": of_text(
        "classification", {}, "task.data.train=a.tsv", "task.data.columns={input: [1, 2.5], target: 0}"
    ),
    "label-only-one": of_text(
        "classification", {"a.tsv": b"one\tgood\ntwo\tgood\n"}, "task.data.train=a.tsv"
    ),
    "label-not-a-number": of_text(
        "classification",
        {"a.tsv": b"one\t0.5\ntwo\thalf\n"},
        "task.data.train=a.tsv",
        "task.data.validation=a.tsv",
        "task.target=number",
    ),
    "tokenizer-missing": of_text(
        "language-model", {}, "task.examples=20", "task.tokenizer={kind: file, path: mine.json}"
    ),
    "tokenizer-of-a-folder-without": of_text(
        "language-model",
        {"run/config.yaml": b""},
        "task.examples=20",
        "task.tokenizer={kind: file, path: run}",
    ),
    "tokenizer-invalid": of_text(
        "language-model",
        {"mine.json": b"[1, 2]"},
        "task.examples=20",
        "task.tokenizer={kind: file, path: mine.json}",
    ),
    "tokenizer-cut": of_text(
        "language-model",
        {"mine.model": b"\x0a\x0e\x0a\x05<unk>\x15"},
        "task.examples=20",
        "task.tokenizer={kind: file, path: mine.model}",
    ),
    # Plug-ins.
    "plugin-missing": Case(["params", "counting-classifier", "--plugin", "none.py"]),
    "plugin-that-fails": of_plugin(b"import glassformer\n\n1 / 0\n"),
    "plugin-not-python": of_plugin(b"class :\n"),
    "plugin-with-an-existing-kind": of_plugin(NEW_NORM),
    "plugin-that-ends-the-program": of_plugin(b"import sys\nsys.exit(0)\n"),
    "plugin-with-another-extension": of_plugin(b"x = 1\n", "mine.txt"),
}


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Run in an empty working folder, and unregister plug-ins afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GLASSFORMER_DATA", "data")
    monkeypatch.setenv("XDG_DATA_HOME", "home")
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("glassformer_plugin_")]:
        del sys.modules[name]


@pytest.fixture(scope="session")
def arithmetic_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of an encoder-decoder."""
    options = {"task.kind": "arithmetic", "task.max_examples": 60}
    return small_run(tmp_path_factory.mktemp("arithmetic") / "run", options).path


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if "__pycache__" not in path.parts}


@pytest.mark.parametrize("name", CASES)
def test_error_message(
    name: str, nowhere: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    case = CASES[name]
    if case.run:
        (nowhere / "mine").symlink_to(request.getfixturevalue(case.run))
    for file, content in case.files.items():
        (nowhere / file).parent.mkdir(parents=True, exist_ok=True)
        (nowhere / file).write_bytes(content)
    before = files_in(nowhere)
    code = main(case.arguments)
    output = capsys.readouterr()
    assert code == 2
    assert output.out == ""
    assert "Traceback" not in output.err
    lines = output.err.splitlines()
    assert 2 <= len(lines) <= 5, output.err
    assert all(len(line) <= 400 for line in lines)
    assert lines[0].startswith("glassformer")
    assert files_in(nowhere) - before <= {"runs"}  # nothing was written, and no code of the file was executed
    text = f"$ glassformer {' '.join(case.arguments)}\n{output.err}"
    text = re.sub(r"allowed: .*counting-classifier.*", "allowed: (the presets)", text)
    golden = GOLDEN / f"{name}.txt"
    if WRITES:
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


def test_no_text_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(CASES)


@pytest.mark.parametrize("name", ["unknown-key", "unknown-kind", "unknown-verb", "unknown-preset"])
def test_a_near_match_is_offered(name: str) -> None:
    assert "did you mean" in (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


def test_json_does_not_change_the_error(nowhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["params", "none.yaml"]) == 2
    plain = capsys.readouterr()
    assert main(["params", "none.yaml", "--json"]) == 2
    assert capsys.readouterr().err == plain.err


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 745. GiB for an array"),
        RuntimeError(
            "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes"
        ),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    ],
)
def test_out_of_memory(
    error: Exception, nowhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr("glassformer.runs.experiment.Experiment.build_model", fail)
    arguments = ["train", "counting-classifier", "task.train_examples=100", "--quiet"]
    assert main(arguments) == 2
    assert capsys.readouterr().err == (
        "glassformer: out of memory\n  try:     use a smaller model, batch or data set\n"
    )
    assert files_in(nowhere) <= {"runs"}


def test_our_own_faults_keep_their_traceback(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("glassformer.runs.experiment.Experiment.build_model", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["train", "counting-classifier", "task.train_examples=100", "--quiet"])
