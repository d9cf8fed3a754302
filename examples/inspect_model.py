"""Look inside a trained model: attention maps, a head ablation, and everything that a pass computes."""

import tempfile
from pathlib import Path

import torch

import glassformer as gf


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = gf.train(
            "reversal", {"task.length": 12, "task.train_examples": 20000}, run=Path(folder) / "reversal"
        )
        maps = run.attention("3 1 4 1 5 9 2 6 5 3 5 8")
        weights = maps["encoder"].weights[0, 0]  # first layer, first head: (queries, keys)
        anti_diagonal = torch.from_numpy(weights).flip(1).diagonal().mean().item()
        print(f"mean weight on the anti-diagonal: {anti_diagonal:.2f}")
        maps.save(Path(folder) / "map.png")
        assert anti_diagonal > 0.5

        effects = run.ablate_head("encoder", 0, 0)  # cause: the model without this head
        print(effects)

        tokens = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]])
        with gf.record(run.model) as tape:
            run.model(tokens)
        print(f"attention {tuple(tape.attention['encoder'][0].shape)}")
        print(f"residual stream: {[tuple(x.shape) for x in tape.residual['encoder']]}")


if __name__ == "__main__":
    main()
