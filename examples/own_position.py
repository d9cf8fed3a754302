"""Add a positional encoding of your own, and train with it.

The same file is a plug-in for the command line:

    glassformer train reversal model.position.kind=decay --plugin examples/own_position.py
"""

import tempfile
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from torch import Tensor

import glassformer as gf
from glassformer.blocks.positions import Position, PositionConfig, distances


class Decay(Position):
    """Subtract the distance between query and key, times a strength, from each score."""

    def __init__(self, strength: float) -> None:
        super().__init__()
        self.strength = strength

    def score_bias(self, q_BHLK: Tensor, query_positions_BL: Tensor, key_positions_BM: Tensor) -> Tensor:
        return -self.strength * distances(query_positions_BL, key_positions_BM)[:, None].abs().float()


@gf.register
class DecayConfig(PositionConfig):
    """Subtract the distance between query and key, times a strength, from each score."""

    kind: Literal["decay"] = "decay"
    strength: float = Field(0.5, gt=0, description="factor of the distance")

    def build(self, **sizes: Any) -> Position:
        return Decay(self.strength)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = gf.train(
            "copy",
            {
                "task.length": 8,
                "task.train_examples": 4000,
                "model.position": {"kind": "decay", "strength": 1.0},
                "training.max_steps": 150,
            },
            run=Path(folder) / "copy",
        )
        print(run.evaluate("test")["metrics"])


if __name__ == "__main__":
    main()
