"""Train a module of your own, made of Glassformer's blocks, in a loop of your own."""

import torch
from torch import nn

import glassformer as gf

LENGTH, CATEGORIES, WIDTH = 12, 10, 64


class Reverser(nn.Module):
    """Two encoder blocks with learned positions; predicts one category per position."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(CATEGORIES, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(gf.nn.EncoderBlock(WIDTH, num_heads=4) for _ in range(2))
        self.norm = gf.nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CATEGORIES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main() -> None:
    torch.manual_seed(0)
    model = Reverser()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    accuracy = 0.0
    for step in range(1, 401):
        tokens = torch.randint(CATEGORIES, (64, LENGTH))
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flip(1).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            accuracy = (logits.argmax(-1) == tokens.flip(1)).float().mean().item()
            print(f"step {step}: loss {loss.item():.3f}, accuracy {accuracy:.3f}")
    assert accuracy > 0.99, accuracy

    # The same task with a whole model from one call; `loss` is a mean.
    whole = gf.Transformer(
        gf.TokenClassification(vocabulary=CATEGORIES, max_length=LENGTH, classes=CATEGORIES),
        num_layers=1,
        num_heads=1,
        hidden_dim=WIDTH,
    )
    tokens = torch.randint(CATEGORIES, (64, LENGTH))
    print(f"initial loss of a fresh gf.Transformer: {whole.loss(tokens, tokens.flip(1)).item():.2f}")


if __name__ == "__main__":
    main()
