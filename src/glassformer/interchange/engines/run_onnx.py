"""Engine of the target `onnx`: run an exported folder with ONNX Runtime, through the folder's own `run.py`.

Usage: python run_onnx.py FOLDER REQUEST ANSWER
"""

import json
import sys
from importlib import import_module

import numpy as np
import onnxruntime


def main(folder: str, request_path: str, answer: str) -> None:
    sys.path.insert(0, folder)
    with open(request_path, encoding="utf-8") as file:
        request = json.load(file)
    model = import_module("run").Model(folder)
    logits, answers, inputs = [], [], []
    for start in range(0, len(request["examples"]), request["batch"]):
        batch = request["examples"][start : start + request["batch"]]
        targets = None if batch[0]["target"] is None else [example["target"] for example in batch]
        texts = [example["text"] for example in batch]
        found = model.logits([example["tokens"] for example in batch], targets)
        logits += [row if row.ndim == 1 else row[-request["positions"] :] for row in found]
        inputs += [model.text.read(text) for text in texts]
        answers += model.predict(texts)
    np.savez(answer + ".npz", **{str(number): row for number, row in enumerate(logits)})
    document = {
        "engine": "onnxruntime",
        "version": onnxruntime.__version__,
        "inputs": inputs,
        "tokens": [each["tokens"] for each in answers],
        "texts": [each["output"] for each in answers],
    }
    with open(answer + ".json", "w", encoding="utf-8") as file:
        json.dump(document, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
