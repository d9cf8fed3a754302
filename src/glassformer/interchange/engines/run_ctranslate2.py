"""Engine of the target `ctranslate2`: run an exported folder with CTranslate2, as its users do.

Usage: python run_ctranslate2.py FOLDER REQUEST ANSWER
"""

import json
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
from tokenizers import Tokenizer


def main(folder: str, request_path: str, answer: str) -> None:
    request = read_json(Path(request_path))
    options = read_json(Path(folder, "options.json"))
    source, target = read_vocabularies(Path(folder))
    tokenizer = read_tokenizer(Path(folder, "tokenizer.json"))
    examples = request["examples"]
    sources = [[source[token] for token in example["tokens"]] for example in examples]
    inputs = None
    if tokenizer is not None:
        encoded = [tokenizer.encode(example["text"]) for example in examples]
        sources, inputs = [each.tokens for each in encoded], [each.ids for each in encoded]
    if request["is_seq2seq"]:
        logs, outputs = translate(folder, sources, target, options, request)
    else:
        logs, outputs = generate(folder, sources, options, request)
    ids = {token: number for number, token in enumerate(target)}
    tokens = [[ids[token] for token in output] for output in outputs]
    decoder = read_tokenizer(Path(folder, "target_tokenizer.json")) or tokenizer
    arrays: dict[str, Any] = {str(number): row for number, row in enumerate(logs)}
    np.savez(answer + ".npz", **arrays)
    document = {
        "engine": "ctranslate2",
        "version": ctranslate2.__version__,
        "inputs": inputs,
        "tokens": tokens,
        "texts": [decoder.decode(row) for row in tokens] if request["has_texts"] else None,
    }
    with open(answer + ".json", "w", encoding="utf-8") as file:
        json.dump(document, file)


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def read_vocabularies(folder: Path) -> tuple[list[str], list[str]]:
    """Return the source and the target tokens."""
    names = [("source_vocabulary", "target_vocabulary"), ("shared_vocabulary",) * 2, ("vocabulary",) * 2]
    paths = next(pair for pair in names if (folder / f"{pair[0]}.json").exists())
    source, target = (read_json(folder / f"{name}.json") for name in paths)
    return source, target


def read_tokenizer(path: Path) -> Any:
    if not path.exists():
        return None
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.encode_special_tokens = True  # the text `<end>` is not an end token
    return tokenizer


def batches(rows: list[Any], size: int) -> list[list[Any]]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def translate(
    folder: str, sources: list[list[str]], target: list[str], options: dict[str, Any], request: dict[str, Any]
) -> tuple[list[np.ndarray], list[list[str]]]:
    """Return the log-probabilities of the target tokens of the data, and the greedy outputs."""
    translator = ctranslate2.Translator(folder)
    # The first target token is the begin token, which CTranslate2 adds by itself.
    targets = [[target[token] for token in example["target"][1:]] for example in request["examples"]]
    logs, outputs = [], []
    for rows, references in zip(
        batches(sources, request["batch"]), batches(targets, request["batch"]), strict=True
    ):
        scored = translator.score_batch(rows, references, max_input_length=options["max_input_length"])
        logs += [np.array(each.log_probs[-request["positions"] :]) for each in scored]
        outputs += [each.hypotheses[0] for each in translator.translate_batch(rows, **options)]
    return logs, outputs


def generate(
    folder: str, prompts: list[list[str]], options: dict[str, Any], request: dict[str, Any]
) -> tuple[list[np.ndarray], list[list[str]]]:
    """Return the log-probabilities of all next tokens, and the greedy continuations."""
    generator = ctranslate2.Generator(folder)
    logs = []
    for rows in batches(prompts, request["batch"]):
        found = np.array(generator.forward_batch(rows, return_log_probs=True))
        # A copy: a view would keep the logits of the whole batch in memory.
        logs += [
            log[: len(row)][-request["positions"] :].copy() for log, row in zip(found, rows, strict=True)
        ]
    outputs: dict[int, list[str]] = {}
    order = sorted(range(len(prompts)), key=lambda index: request["rooms"][index])
    for room, group in groupby(order, key=lambda index: request["rooms"][index]):
        for indices in batches(list(group), request["batch"]):
            rows = [prompts[index] for index in indices]
            results = generator.generate_batch(rows, max_length=room, **options)
            outputs |= {index: each.sequences[0] for index, each in zip(indices, results, strict=True)}
    return logs, [outputs[index] for index in range(len(prompts))]


if __name__ == "__main__":
    main(*sys.argv[1:])
