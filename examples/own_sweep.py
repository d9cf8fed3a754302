"""Sweep over two options from Python, and read the best setting."""

import tempfile
from pathlib import Path

import glassformer as gf


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        result = gf.sweep(
            "reversal",
            [
                "task.length=8",
                "task.train_examples=2000",
                "training.max_steps=40",
                "training.optimizer.learning_rate=1e-3,1e-2",
                "model.position.kind=sinusoidal,none",
            ],
            seeds=2,
            workers=2,
            out=Path(folder) / "sweep",
        )
        for row in result["trials"]:
            print(row)
        print(f"best: {result['best']['params']}")


if __name__ == "__main__":
    main()
