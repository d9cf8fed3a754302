"""Imported models give the logits of the originals, keep their token ids, and work like trained runs."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch.testing import assert_close
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

from glassformer.core.errors import UserError
from glassformer.interchange.imports import import_model
from glassformer.interchange.tokenizer_files import sentencepiece_tree
from glassformer.reports.summary import read_run
from glassformer.runs.run import Run
from glassformer.runs.session import train
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

equal = partial(assert_close, atol=1e-5, rtol=1e-5)
BERT = {
    "vocab_size": len(BERT_VOCABULARY),
    "max_position_embeddings": 64,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
}
LLAMA: dict[str, Any] = {
    "vocab_size": len(llama_pieces()[0]),
    "max_position_embeddings": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(5)


@pytest.fixture(scope="module", autouse=True)
def _no_gradients() -> Any:
    with torch.no_grad():
        yield


def llama_tokenizer() -> Tokenizer:
    return Tokenizer.from_str(json.dumps(sentencepiece_tree(*llama_pieces(), begin=1)))


LLAMA_SPECIAL = {"bos": "<s>", "eos": "</s>", "unk": "<unk>"}


def tokens(size: int, shape: tuple[int, int] = (2, 7)) -> torch.Tensor:
    return torch.randint(0, size, shape)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tie_word_embeddings": True, "num_key_value_heads": 4},
        {"attention_bias": True, "rms_norm_eps": 0.1},
        {"mlp_bias": True, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    ],
    ids=str,
)
def test_llama(options: dict[str, Any], tmp_path: Path) -> None:
    theirs = shaken(LlamaForCausalLM(LlamaConfig(**{**LLAMA, **options})))
    folder = save(theirs, llama_tokenizer(), tmp_path / "llama", LLAMA_SPECIAL)
    run = import_model(folder, tmp_path / "run")
    read = tokens(LLAMA["vocab_size"])
    equal(run.model(tokens=read), theirs(input_ids=read).logits)


def test_sharded_half_precision(tmp_path: Path) -> None:
    theirs = shaken(LlamaForCausalLM(LlamaConfig(**LLAMA))).bfloat16()
    folder = save(theirs, llama_tokenizer(), tmp_path / "llama", LLAMA_SPECIAL, max_shard_size="20KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    run = import_model(folder, tmp_path / "run")
    read = tokens(LLAMA["vocab_size"])
    again = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    equal(run.model(tokens=read), again(input_ids=read).logits)


def test_gpt2(tmp_path: Path) -> None:
    tokenizer = gpt2_tokenizer()
    size = tokenizer.get_vocab_size() + 3  # more rows than tokens, as in padded tables
    end = size - 4
    config = GPT2Config(
        vocab_size=size, n_positions=48, n_embd=16, n_layer=2, n_head=4, bos_token_id=end, eos_token_id=end
    )
    theirs = shaken(GPT2LMHeadModel(config))
    folder = save(theirs, tokenizer, tmp_path / "gpt2", {"eos": "<|endoftext|>"})
    run = import_model(folder, tmp_path / "run")
    read = tokens(size)
    equal(run.model(tokens=read), theirs(input_ids=read).logits)
    own = run.task.tokenizer  # type: ignore[attr-defined]
    assert (own.begin, own.end, len(own)) == (end, end, size)
    assert not own.begins_prompts
    assert own.encode(" the <|endoftext|>").tolist() != tokenizer.encode(" the <|endoftext|>").ids
    assert own.decode(own.encode(" the thé <|endoftext|>")) == " the thé <|endoftext|>"
    assert run.generate("the", max_tokens=3).startswith("the")


@pytest.mark.parametrize("build", [BertForMaskedLM, BertModel])
def test_bert(build: Any, tmp_path: Path) -> None:
    theirs = shaken(build(BertConfig(**BERT)))
    folder = save(theirs, bert_tokenizer(), tmp_path / "bert", BERT_SPECIAL)
    run = import_model(folder, tmp_path / "run")
    read = tokens(BERT["vocab_size"])
    if build is BertModel:
        equal(run.model.encode(read), theirs(input_ids=read).last_hidden_state)  # type: ignore[operator]
        assert any("no output head" in warning for warning in run.folder.warnings())
        assert run.folder.environment()["imported"]["left_out"] == [
            "pooler.dense.bias",
            "pooler.dense.weight",
        ]
    else:
        equal(run.model(tokens=read), theirs(input_ids=read).logits)


def test_bert_classifier(tmp_path: Path) -> None:
    labels = {0: "bad", 1: "fair", 2: "good"}
    config = BertConfig(**BERT, num_labels=3, id2label=labels, label2id={v: k for k, v in labels.items()})
    theirs = shaken(BertForSequenceClassification(config))
    folder = save(theirs, bert_tokenizer(), tmp_path / "bert", BERT_SPECIAL)
    run = import_model(folder, tmp_path / "run")
    text = "the film was not good, it is <mask> ."
    ids = bert_tokenizer()
    ids.no_padding()
    ids.no_truncation()
    read = torch.tensor([ids.encode(text).ids])
    expected = theirs(input_ids=read).logits
    assert run.task.parse(text).tolist() == read[0].tolist()
    equal(run.model(tokens=read), expected)
    prediction = run.predict(text)
    assert prediction["output"] == labels[int(expected.argmax())]
    assert prediction["probability"] == pytest.approx(float(expected.softmax(-1).max()), abs=1e-5)


def test_marian(tmp_path: Path) -> None:
    tokenizer = marian_tokenizer()
    size = tokenizer.get_vocab_size()
    config = MarianConfig(
        vocab_size=size,
        max_position_embeddings=48,
        d_model=16,
        encoder_layers=2,
        decoder_layers=1,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        pad_token_id=size - 1,
        eos_token_id=0,
        forced_eos_token_id=None,
        decoder_start_token_id=size - 1,
        scale_embedding=True,
    )
    theirs = shaken(MarianMTModel(config))
    folder = save(theirs, tokenizer, tmp_path / "marian", {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"})
    run = import_model(folder, tmp_path / "run")
    theirs = MarianMTModel.from_pretrained(folder)  # the sinusoidal positions are not stored
    read, target = tokens(size), tokens(size, (2, 5))
    expected = theirs(input_ids=read, decoder_input_ids=target).logits
    equal(run.model(tokens=read, target=target), expected)
    text = "the film was a film"
    ids = torch.tensor([tokenizer.encode(text).ids])
    assert run.task.parse(text).tolist() == ids[0].tolist()
    banned = [[size - 1], [1]]
    generated = theirs.generate(ids, num_beams=1, do_sample=False, max_length=48, bad_words_ids=banned)
    expected_text = tokenizer.decode([t for t in generated[0].tolist() if t not in (0, size - 1)])
    assert run.predict(text)["output"].startswith(expected_text)  # it may have one token more


@pytest.mark.parametrize("tied", [True, False])
def test_llama2c(tied: bool, tmp_path: Path) -> None:
    path = write_llama2c(tmp_path / "source", tied=tied)
    run = import_model(path, tmp_path / "run")
    assert run.config.model.tied_output == tied  # type: ignore[attr-defined]
    read = run.task.parse("once the")
    assert read.tolist() == llama_tokenizer().encode("once the").ids
    assert run.task.show_output(read.tolist()) == "once the"
    logits = run.model(tokens=torch.from_numpy(read)[None])
    equal(logits[0], torch.from_numpy(reference_llama2c(path, read, tied)))


def reference_llama2c(path: Path, read: np.ndarray, tied: bool) -> np.ndarray:
    """Compute the logits as run.c does: token by token, pairs of neighbouring components rotate."""
    header = np.fromfile(path, "<i4", 7)
    dim, hidden, layers, heads, kv_heads, vocabulary, length = (abs(int(n)) for n in header)
    width, kv = dim // heads, dim // heads * kv_heads
    data, at = np.fromfile(path, "<f4", offset=28).astype(np.float64), 0

    def take(*shape: int) -> np.ndarray:
        nonlocal at
        count = int(np.prod(shape))
        at += count
        return data[at - count : at].reshape(shape)

    table, norm1, wq = take(vocabulary, dim), take(layers, dim), take(layers, dim, dim)
    wk, wv, wo = take(layers, kv, dim), take(layers, kv, dim), take(layers, dim, dim)
    norm2, w1, w2 = take(layers, dim), take(layers, hidden, dim), take(layers, dim, hidden)
    w3, last = take(layers, hidden, dim), take(dim)
    take(length * width)
    head = table if tied else take(vocabulary, dim)

    def rms(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return np.asarray(x / np.sqrt((x * x).mean() + 1e-5) * weight)

    def rotate(x: np.ndarray, position: int) -> np.ndarray:
        out = x.copy()
        for i in range(0, len(x), 2):
            angle = position * 10000.0 ** (-(i % width) / width)
            a, b = x[i], x[i + 1]
            out[i], out[i + 1] = a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)
        return out

    keys: list[list[np.ndarray]] = [[] for _ in range(layers)]
    values: list[list[np.ndarray]] = [[] for _ in range(layers)]
    logits = []
    for position, token in enumerate(read.tolist()):
        x = table[token].copy()
        for layer in range(layers):
            normed = rms(x, norm1[layer])
            query = rotate(wq[layer] @ normed, position)
            keys[layer].append(rotate(wk[layer] @ normed, position))
            values[layer].append(wv[layer] @ normed)
            mixed = np.zeros(dim)
            for h in range(heads):
                own, shared = slice(h * width, (h + 1) * width), h // (heads // kv_heads) * width
                group = slice(shared, shared + width)
                scores = np.array([query[own] @ key[group] for key in keys[layer]]) / np.sqrt(width)
                weights = np.exp(scores - scores.max())
                weights /= weights.sum()
                mixed[own] = sum(w * value[group] for w, value in zip(weights, values[layer], strict=True))
            x = x + wo[layer] @ mixed
            normed = rms(x, norm2[layer])
            gate = w1[layer] @ normed
            x = x + w2[layer] @ (gate / (1 + np.exp(-gate)) * (w3[layer] @ normed))
        logits.append(head @ rms(x, last))
    return np.array(logits).astype(np.float32)


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_gguf(name: str, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    kind = gguf.GGMLQuantizationType[name]
    theirs = shaken(LlamaForCausalLM(LlamaConfig(**LLAMA)))
    path = write_gguf(tmp_path / "tiny.gguf", theirs, None if name == "F32" else kind)
    run = import_model(path, tmp_path / "run")
    for (
        parameter
    ) in theirs.parameters():  # the original gets the rounded weights, so that the logits must be equal
        if parameter.ndim == 2 and name != "F32":
            rounded = gguf.dequantize(gguf.quantize(parameter.numpy(), kind), kind)
            parameter.copy_(torch.from_numpy(np.array(rounded)))
    read = tokens(LLAMA["vocab_size"])
    equal(run.model(tokens=read), theirs(input_ids=read).logits)
    assert run.task.parse("once the").tolist() == llama_tokenizer().encode("once the").ids


def test_the_run_is_complete(tmp_path: Path) -> None:
    theirs = shaken(BertForMaskedLM(BertConfig(**BERT)))
    folder = save(theirs, bert_tokenizer(), tmp_path / "bert", BERT_SPECIAL)
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    run = import_model(folder, tmp_path / "run", provenance={"name": "tiny"})
    about = run.folder.environment()["imported"]
    assert about["licence"] == "apache-2.0" and about["name"] == "tiny"
    assert about["architecture"] == "BertForMaskedLM"
    assert set(about["sha256"]) == {"config.json", "model.safetensors", "tokenizer.json"}
    assert run.folder.status().name == "done"
    done = subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=tmp_path / "run", check=False)
    assert done.returncode == 0
    copied = load_file(tmp_path / "run" / "checkpoints" / "step-00000000" / "model.safetensors")
    assert torch.equal(
        copied["embedding.vectors.table.weight"], theirs.bert.embeddings.word_embeddings.weight
    )
    assert (
        Tokenizer.from_file(str(tmp_path / "run" / "tokenizer.json")).encode("the film").tokens[0] == "[CLS]"
    )


def test_every_verb_works(tmp_path: Path) -> None:
    theirs = shaken(BertForMaskedLM(BertConfig(**BERT)))
    import_model(save(theirs, bert_tokenizer(), tmp_path / "bert", BERT_SPECIAL), tmp_path / "run")
    run = Run(tmp_path / "run")
    text = "the film was <mask> good."
    assert run.predict(text)["error"] is None
    maps = run.attention(text)
    assert maps["encoder"].queries[0] == "[CLS]"
    assert run.heads(examples=4)["split"] == "test"
    run.attention()
    run.ablate_head("encoder", 0, 1, examples=4, text=text)
    run.ablate_edge(text, "encoder", 0, 0, 1, 2)
    run.occlude(text, 2, examples=4)
    run.logit_lens(text)


@torch.enable_grad()
def test_training_starts_from_it(tmp_path: Path) -> None:
    theirs = shaken(BertModel(BertConfig(**BERT)))
    source = import_model(save(theirs, bert_tokenizer(), tmp_path / "bert", BERT_SPECIAL), tmp_path / "run")
    data = tmp_path / "data.tsv"
    texts = [f"the film was {word} {n}\t{word}\n" for n in range(12) for word in ("good", "bad", "very")]
    data.write_text("".join(texts))
    model = {k: v for k, v in source.config.model.dump().items() if k not in ("tied_output", "output_bias")}
    trained = train(
        "classification",
        {
            "task.data.train": str(data),
            "task.data.columns": {"input": 0, "target": 1},
            "task.tokenizer": {"kind": "file", "path": str(tmp_path / "run")},
            "model": model,
            "training.start_from": str(tmp_path / "run"),
            "training.max_steps": 2,
        },
        run=tmp_path / "trained",
    )
    row = trained.task.parse("the film was good")
    assert [BERT_VOCABULARY[n] for n in row] == ["[CLS]", "the", "film", "was", "good", "[SEP]"]
    assert trained.folder.environment()["start_from"]["checkpoint"] == "step-00000000"
    with pytest.raises(UserError, match="imported"):
        train(str(tmp_path / "run"), run=tmp_path / "run", resume=True)


def test_long_contexts_are_limited_unless_asked_for(tmp_path: Path) -> None:
    theirs = shaken(LlamaForCausalLM(LlamaConfig(**{**LLAMA, "max_position_embeddings": 5000})))
    folder = save(theirs, llama_tokenizer(), tmp_path / "llama", LLAMA_SPECIAL)
    run = import_model(folder, tmp_path / "run")
    assert run.task.task_type.max_length == 1024
    assert run.folder.environment()["imported"]["source_max_length"] == 5000
    assert import_model(folder, tmp_path / "long", max_length=5000).task.task_type.max_length == 5000
    with pytest.raises(UserError, match="a number from 2 to 5000"):
        import_model(folder, tmp_path / "longer", max_length=5001)
    bert = save(shaken(BertModel(BertConfig(**BERT))), bert_tokenizer(), tmp_path / "bert", BERT_SPECIAL)
    with pytest.raises(UserError, match="learned, for 64 tokens"):
        import_model(bert, tmp_path / "none", max_length=32)
    assert not (tmp_path / "none").exists()


def test_scores_on_generated_texts_carry_a_warning(tmp_path: Path) -> None:
    run = import_model(write_llama2c(tmp_path / "source"), tmp_path / "run")
    (warning,) = run.evaluate("test")["warnings"]
    assert "do not measure the model" in warning
    summary = read_run(str(tmp_path / "run"))
    assert summary.is_imported and summary.status.name == "done" and not summary.warnings
    assert "imported" in summary.state()
    assert run.folder.events.find_damage(run.folder.checkpoints().load("step-00000000", []).state) is None


def test_a_run_that_is_moved_finds_its_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    import_model(write_llama2c(tmp_path / "source"), "run")
    before = Run("run").evaluate("test")
    (tmp_path / "run").rename(tmp_path / "moved")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    moved = Run("../moved")
    assert moved.evaluate("test")["metrics"] == before["metrics"]
    assert moved.heads(examples=2)["split"] == "test"


def test_a_llama2c_tokenizer_may_have_bytes_as_characters(tmp_path: Path) -> None:
    """As the first versions of llama2.c wrote them: the byte pieces look like pieces that also exist."""
    named = import_model(write_llama2c(tmp_path / "named"), tmp_path / "run")
    raw = import_model(write_llama2c(tmp_path / "raw", has_raw_bytes=True), tmp_path / "other")
    text = "once\tupon é\n"
    assert raw.task.parse(text).tolist() == named.task.parse(text).tolist()
    assert raw.generate("once", 8, temperature=0) == named.generate("once", 8, temperature=0)


def test_transformers_is_not_needed(tmp_path: Path) -> None:
    path = write_llama2c(tmp_path / "source")
    code = (
        "import sys; sys.modules['transformers'] = None; sys.modules['gguf'] = None\n"
        "from glassformer.interchange.imports import import_model\n"
        f"print(import_model({str(path)!r}, {str(tmp_path / 'run')!r}).generate('once', 3, temperature=0))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("once")
