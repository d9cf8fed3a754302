"""Engine of the target `gguf`: run an exported file with the server of llama.cpp, as its users do.

Usage: python run_gguf.py FOLDER REQUEST ANSWER
"""

import json
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import xllamacpp


def main(folder: str, request_path: str, answer: str) -> None:
    with open(request_path, encoding="utf-8") as file:
        request = json.load(file)
    server = start_server(Path(folder, request["file"]), request)
    texts = [example["text"] for example in request["examples"]]
    inputs = [read_text(server, text) for text in texts]
    found = [
        continue_text(server, text, room, request) for text, room in zip(texts, request["rooms"], strict=True)
    ]
    arrays: dict[str, Any] = {str(number): logs for number, (logs, _, _) in enumerate(found)}
    np.savez(answer + ".npz", **arrays)
    document = {
        "engine": "llama.cpp",
        "version": xllamacpp.__version__,
        "inputs": inputs,
        "tokens": [tokens for _, tokens, _ in found],
        "texts": [text for _, _, text in found],
    }
    with open(answer + ".json", "w", encoding="utf-8") as file:
        json.dump(document, file)


def start_server(path: Path, request: dict[str, Any]) -> Any:
    """Start the server on loopback. Keys and values are kept in float32, as in the trained model."""
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.port = 0
    params.n_ctx = request["length"]
    params.n_parallel = 1
    params.n_gpu_layers = 0
    params.warmup = False
    params.ui = False
    params.cpuparams.n_threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    params.cpuparams_batch.n_threads = params.cpuparams.n_threads
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return xllamacpp.Server(params)


def ask(server: Any, path: str, document: dict[str, Any]) -> Any:
    """Send a request to the server, and return its answer."""
    request = urllib.request.Request(
        server.listening_address + path,
        json.dumps(document).encode(),
        {"Content-Type": "application/json"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=600) as response:
        return json.load(response)


def read_text(server: Any, text: str) -> list[int]:
    """Return the token ids of a prompt, with the begin token if the file asks for it."""
    found = ask(server, "/tokenize", {"content": text, "add_special": True, "parse_special": True})
    return list(found["tokens"])


def continue_text(
    server: Any, text: str, room: int, request: dict[str, Any]
) -> tuple[np.ndarray, list[int], str]:
    """Return log-probabilities, token ids and text of the greedy continuation.

    Row 0 has the most probable tokens after the prompt, and each other row has the chosen token alone. All
    other numbers are NaN.
    """
    common = {"prompt": text, "temperature": 0, "top_k": 1, "return_tokens": True}
    # The server returns no probabilities with a part of a character, so the first token is a whole one.
    whole_character = {"logit_bias": [[request["whole_character"], 1000]]}
    first = ask(
        server,
        "/completion",
        {**common, **whole_character, "n_predict": 1, "n_probs": request["most_probable"]},
    )
    found = ask(server, "/completion", {**common, "n_predict": room, "n_probs": 1})
    tokens, chosen = list(found["tokens"]), found.get("completion_probabilities", [])
    rows = [first["completion_probabilities"][0]["top_logprobs"]]
    if len(chosen) == len(tokens):
        rows += [[each] for each in chosen[1 : request["positions"]]]
    logs = np.full((len(rows), request["vocabulary"]), np.nan, dtype=np.float32)
    for log, row in zip(logs, rows, strict=True):
        for each in row:
            log[each["id"]] = each["logprob"]
    if tokens[-1:] == [request["end"]]:
        tokens.pop()
    return logs, tokens, found["content"]


if __name__ == "__main__":
    main(*sys.argv[1:])
