"""Engine of the target `huggingface`: run an exported folder with `transformers`, as its users do.

Usage: python run_huggingface.py FOLDER REQUEST ANSWER
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoConfig, AutoTokenizer


def main(folder: str, request_path: str, answer: str) -> None:
    with open(request_path, encoding="utf-8") as file:
        request = json.load(file)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    name = AutoConfig.from_pretrained(folder).architectures[0]
    model = getattr(transformers, request["auto_class"]).from_pretrained(folder, dtype=torch.float32).eval()
    if type(model).__name__ != name:
        sys.exit(f"the folder is loaded as {type(model).__name__}, not as {name}")
    texts = [example["text"] for example in request["examples"]]
    with torch.inference_mode():
        logits, tokens = compute_logits(model, tokenizer, request)
        if request["outputs"] == "CausalLM":
            tokens = continue_texts(model, tokenizer, texts, request)
        if request["outputs"] == "Seq2Seq":
            tokens = generate_targets(model, tokenizer, texts, request)
    arrays: dict[str, Any] = {str(number): row for number, row in enumerate(logits)}
    np.savez(answer + ".npz", **arrays)
    document = {
        "engine": "transformers",
        "version": transformers.__version__,
        "class": name,
        "inputs": [tokenizer(text, truncation=request["is_cut"])["input_ids"] for text in texts],
        "tokens": tokens,
    }
    if request["has_texts"]:
        if request["target_tokenizer"]:
            tokenizer = AutoTokenizer.from_pretrained(folder, subfolder=request["target_tokenizer"])
        document["texts"] = [tokenizer.decode(row, skip_special_tokens=True) for row in tokens]
    with open(answer + ".json", "w", encoding="utf-8") as file:
        json.dump(document, file)


def batches(tokenizer: Any, request: dict[str, Any]) -> Iterator[tuple[list[dict[str, Any]], Any]]:
    """Yield examples and their padded inputs. Without a padding token, each batch has one example."""
    examples = request["examples"]
    size = 1 if tokenizer.pad_token is None else request["batch"]
    for start in range(0, len(examples), size):
        batch = examples[start : start + size]
        texts = [example["text"] for example in batch]
        yield batch, tokenizer(texts, padding=size > 1, truncation=request["is_cut"], return_tensors="pt")


def compute_logits(
    model: Any, tokenizer: Any, request: dict[str, Any]
) -> tuple[list[np.ndarray], list[list[int]]]:
    """Return the logits of each example at its last positions, and the most probable classes."""
    tokenizer.padding_side = "right"
    found, classes = [], []
    for batch, inputs in batches(tokenizer, request):
        lengths = inputs["attention_mask"].sum(1).tolist()
        if batch[0]["target"] is not None:
            lengths = [len(example["target"]) for example in batch]
            rows = [example["target"] + [0] * (max(lengths) - len(example["target"])) for example in batch]
            inputs["decoder_input_ids"] = torch.tensor(rows)
        logits = model(**inputs).logits.numpy()
        for row, length, tokens in zip(logits, lengths, inputs["input_ids"].tolist(), strict=True):
            real = row[None] if row.ndim == 1 else row[:length]
            found.append(row if row.ndim == 1 else real[-request["positions"] :].copy())
            classes.append(real.argmax(-1).tolist())
            if request["outputs"] == "MaskedLM":
                real[:, request["forbidden"]] = -np.inf
                best = real.argmax(-1)
                is_mask = np.array(tokens[:length]) == request["mask"]
                classes[-1] = np.where(is_mask, best, tokens[:length]).tolist()
    return found, classes


def continue_texts(model: Any, tokenizer: Any, texts: list[str], request: dict[str, Any]) -> list[list[int]]:
    """Return the greedy continuation of each text as token ids, without the end token."""
    tokenizer.padding_side = "left"
    found = []
    for text in texts:
        inputs = tokenizer(text, return_tensors="pt")
        (row,) = model.generate(**inputs)
        found.append(_until(request["end"], row[inputs["input_ids"].shape[1] :].tolist()))
    return found


def generate_targets(
    model: Any, tokenizer: Any, texts: list[str], request: dict[str, Any]
) -> list[list[int]]:
    """Return the greedy output for each text as token ids, without the begin and end tokens."""
    found = []
    for _, inputs in batches(tokenizer, request):
        found += [_until(request["end"], row[1:]) for row in model.generate(**inputs).tolist()]
    return found


def _until(end: int | None, tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(end)] if end is not None and end in tokens else tokens


if __name__ == "__main__":
    main(*sys.argv[1:])
