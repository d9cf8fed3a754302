"""Answer inputs with numpy and onnxruntime: python run.py "input" ["input" ...]"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from text import Text, print_answers


class Model:
    """Exported model: its graphs, and the reading and showing of text."""

    def __init__(self, folder):
        self.config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        self.text, self.output = Text(Path(folder), self.config), self.config["output"]
        self.graphs = {n: onnxruntime.InferenceSession(Path(folder) / n) for n in self.config["graphs"]}

    def logits(self, rows, targets=None):
        """Return the logits of each row: one vector per token, or one for the whole row."""
        tokens, mask = pad(rows)
        if targets is None:
            (outputs,) = self.graphs["model.onnx"].run(None, {"tokens": tokens, "mask": mask})
        else:
            outputs = Decoder(self, len(rows), self.encode(tokens, mask)).read(*pad(targets))
        return [each if each.ndim == 1 else each[: len(row)] for row, each in zip(targets or rows, outputs)]

    def encode(self, tokens, mask):
        """Return the inputs of the decoder that come from the source."""
        keys, values = self.graphs["encoder.onnx"].run(None, {"tokens": tokens, "mask": mask})
        return {"source_mask": mask, "cross_keys": keys, "cross_values": values}

    def generate(self, rows):
        """Return the greedy outputs of a language model or an encoder-decoder, token by token."""
        how, (tokens, mask), source = self.output, pad(rows), {}
        limits = [max(1, how["max_length"] - len(row)) for row in rows]
        if how["kind"] == "generated":
            source, limits = self.encode(tokens, mask), [how["max_length"]] * len(rows)
            tokens, mask = pad([[how["begin"]] for _ in rows])
        decoder, found = Decoder(self, len(rows), source), [[] for _ in rows]
        logits = decoder.read(tokens, mask)[np.arange(len(rows)), mask.sum(1) - 1]
        goes_on = np.ones((len(rows), 1), bool)
        while True:
            logits[:, how["forbidden"]] = -np.inf
            best = logits.argmax(1)
            for row in np.flatnonzero(goes_on).tolist():
                found[row] += [int(best[row])] if best[row] != how["end"] else []
                goes_on[row] = best[row] != how["end"] and len(found[row]) < limits[row]
            if not goes_on.any():
                return found
            logits = decoder.read(best[:, None], goes_on)[:, -1]

    def predict(self, texts):
        """Return for each input the output as text, its token ids, and the probability of a class."""
        rows = [self.text.read(text) for text in texts]
        if "end" in self.output:
            return [{"output": self.text.show(ids), "tokens": ids} for ids in self.generate(rows)]
        return [self.choose(row, logits) for row, logits in zip(rows, self.logits(rows))]

    def choose(self, row, logits):
        """Return the number, the class, or the class of each token that the logits represent."""
        if self.output["kind"] == "number":
            return {"output": f"{logits[0]:.{self.output['digits']}g}", "tokens": []}
        if self.output["kind"] == "label":
            best, odds = int(logits.argmax()), np.exp(logits - logits.max(), dtype=np.float64)
            label = self.output["symbols"][best]
            return {"output": label, "tokens": [best], "probability": odds[best] / odds.sum()}
        logits[:, self.output["forbidden"]] = -np.inf
        ids = logits.argmax(1).tolist()
        if self.output["kind"] == "filled":
            ids = [best if old == self.config["input"]["mask"] else old for best, old in zip(ids, row)]
        return {"output": self.text.show(ids), "tokens": ids}


class Decoder:
    """Decoder with a cache of keys and values, which reads each token once."""

    def __init__(self, model, batch, source):
        self.graph, self.source = model.graphs["decoder.onnx" if source else "step.onnx"], source
        self.keys = self.values = np.zeros((batch, *model.config["empty_cache"]), np.float32)
        self.mask = np.zeros((batch, 0), bool)

    def read(self, tokens, mask):
        """Append tokens, and return the logits after each of them."""
        self.mask = np.concatenate([self.mask, mask], 1)
        own = {"tokens": tokens, "mask": self.mask, "keys": self.keys, "values": self.values}
        logits, self.keys, self.values = self.graph.run(None, own | self.source)
        return logits


def pad(rows):
    """Return rows of token ids as one array, and the mask that is true at real tokens."""
    mask = np.arange(max(map(len, rows))) < np.array([[len(row)] for row in rows])
    return np.array([row + [0] * (mask.shape[1] - len(row)) for row in rows], np.int64), mask


if __name__ == "__main__":
    texts, folder = sys.argv[1:] or sys.exit(__doc__), Path(__file__).parent
    sys.exit(print(__doc__) if texts in (["-h"], ["--help"]) else print_answers(Model(folder).predict, texts))
