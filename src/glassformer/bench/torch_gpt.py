"""Plain GPT written with `torch.nn`: a separate program that uses no code of this package.

    python -m glassformer.bench.torch_gpt FILE --steps 2000 --threads 2

Tokens are characters. The first nine tenths of FILE are the training set, the rest is the validation set.
The program prints the validation loss as JSON.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LAYERS, WIDTH, HEADS, CONTEXT = 4, 128, 4, 64
BATCH, LEARNING_RATE, MIN_LEARNING_RATE, WARMUP = 12, 1e-3, 1e-4, 100
TRAINED_SHARE = 0.9


class GPT(nn.Module):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.output = nn.Linear(WIDTH, vocabulary, bias=False)
        self.output.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens_BL: Tensor) -> Tensor:
        length = tokens_BL.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        vectors_BLD = self.tokens(tokens_BL) + self.positions(torch.arange(length))
        return self.output(self.blocks(vectors_BLD, mask=mask, is_causal=True))


def loss_of(model: GPT, windows_BL: Tensor) -> Tensor:
    logits = model(windows_BL[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), windows_BL[:, 1:].flatten())


def learning_rate(step: int, steps: int) -> float:
    if step < WARMUP:
        return LEARNING_RATE * (step + 1) / (WARMUP + 1)
    share = (step - WARMUP) / max(1, steps - WARMUP)
    return MIN_LEARNING_RATE + 0.5 * (1 + math.cos(math.pi * share)) * (LEARNING_RATE - MIN_LEARNING_RATE)


def train(text: str, steps: int) -> float:
    symbols = sorted(set(text))
    number = {symbol: index for index, symbol in enumerate(symbols)}
    data = torch.tensor([number[symbol] for symbol in text])
    border = int(TRAINED_SHARE * len(data))
    trained, rest = data[:border], data[border:]
    model = GPT(len(symbols))
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.99))
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps)
        starts = torch.randint(len(trained) - CONTEXT, (BATCH,))
        loss = loss_of(model, torch.stack([trained[start : start + CONTEXT + 1] for start in starts]))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()
    windows = rest[: (len(rest) - 1) // CONTEXT * CONTEXT + 1].unfold(0, CONTEXT + 1, CONTEXT)
    with torch.inference_mode():
        losses = [float(loss_of(model, part)) * len(part) for part in windows.split(256)]
    return sum(losses) / len(windows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    print(json.dumps({"loss": train(arguments.file.read_text(encoding="utf-8"), arguments.steps)}))


if __name__ == "__main__":
    main()
