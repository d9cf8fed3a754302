"""Training an encoder-decoder: ours, Hugging Face's Marian, `torch.nn.Transformer`, and the limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from glassformer.bench import flops
from glassformer.bench.base import Progress, Result, time_alternately
from glassformer.bench.peers import Sizes, is_importable
from glassformer.bench.translation import TranslationBenchmark
from glassformer.core.registry import register
from glassformer.core.system import machine

if TYPE_CHECKING:
    import numpy as np
    from rich.console import RenderableType

    from glassformer.data.batching import Batch
    from glassformer.training.trainer import Trainer

OURS, LIMIT = "glassformer", "matrix product"


@register
class TrainBenchmark(TranslationBenchmark):
    """Training an encoder-decoder on the same pairs: ours beside Hugging Face and torch.nn."""

    kind: Literal["train"] = "train"
    repeats: int = Field(3, ge=1, le=10_000, description="samples of each form")
    batch_tokens: int = Field(2048, ge=1, description="tokens a step of ours, on the longer side")
    batch_size: int = Field(64, ge=1, description="pairs a step of the others, in any order, padded")
    batches: int = Field(16, ge=1, description="batches of ours whose pairs all engines train on")

    def measure(self, progress: Progress) -> Result:
        import numpy as np

        from glassformer.data.batching import plan_batches
        from glassformer.runs.experiment import Experiment

        changes = {"training.batch_tokens": self.batch_tokens, "training.average_last": None}
        experiment = Experiment(self.config(changes))
        trainer = experiment.build_trainer()
        task, examples = experiment.task, experiment.task.splits["train"]
        groups = trainer.plan(0)[: self.batches]
        pairs = np.concatenate([indices for group in groups for indices in group])
        order = plan_batches(np.zeros(len(pairs)), seed=0, split="bench", epoch=0, batch_size=self.batch_size)
        padded = [task.batch("train", pairs[places]) for places in order]
        sizes = self.sizes(task)
        forms = {OURS: _ours(trainer, groups), **_peers(sizes, padded), LIMIT: flops.matrix_product()}
        timings = time_alternately(forms, self.repeats, progress)

        chosen = examples.take(pairs)
        sources = np.array([len(row) for row in chosen.inputs])
        targets = np.array([len(row) - 1 for row in chosen.targets])
        useful = flops.TRAINING * flops.encoder_decoder_flops(sizes, sources, targets)
        limit = flops.product_flops() / timings[LIMIT].median
        rows = [
            {
                "form": name,
                **timing.as_row(),
                "target_tokens_per_second": targets.sum() / timing.median,
                "peak_share": useful / timing.median / limit,
            }
            for name, timing in timings.items()
            if name != LIMIT
        ]
        ratios = {row["form"]: timings[row["form"]].median / timings[OURS].median for row in rows[1:]}
        ratios["peak_share"] = rows[0]["peak_share"]
        notes = {
            "pairs": len(pairs),
            "target_tokens": int(targets.sum()),
            "our_steps": len(groups),
            "their_steps": len(padded),
            "limit_gflops": limit / 1e9,
        }
        return Result(self.kind, machine(), rows, ratios, notes=notes)

    def show(self, result: Result) -> RenderableType:
        from rich.table import Table

        notes = result.notes
        table = Table(title=f"training on {notes['pairs']:,} pairs of {self.what}", title_justify="left")
        table.add_column("form")
        for heading in ("target tokens/s", "ours is", "of the limit"):
            table.add_column(heading, justify="right", no_wrap=True)
        for row in result.rows:
            faster = result.ratios.get(row["form"])
            table.add_row(
                row["form"],
                f"{row['target_tokens_per_second']:,.0f}",
                f"{faster:.2f} × as fast" if faster else "",
                f"{row['peak_share']:.0%}",
            )
        table.caption = (
            f"real target tokens; {notes['our_steps']} steps of ours with pairs of like length,"
            f" {notes['their_steps']} of the others with {self.batch_size} pairs as they come;"
            f" limit: products of matrices at {notes['limit_gflops']:,.0f} GFLOP/s"
        )
        table.caption_justify = "left"
        return table


def _ours(trainer: Trainer, groups: list[list[np.ndarray]]) -> Callable[[], None]:
    """The training loop's own step, with batches that are made as it goes."""
    trainer.model.train()

    def train() -> None:
        for group in groups:
            trainer.step(trainer.batches(group, 0))

    return train


def _peers(sizes: Sizes, batches: list[Batch]) -> dict[str, Callable[[], Any]]:
    from glassformer.bench.peers import torch_nn

    forms = {"torch_nn": torch_nn.trainer(sizes, batches)}
    if is_importable("transformers"):
        from glassformer.bench.peers import huggingface

        forms["huggingface"] = huggingface.trainer(sizes, batches)
    return forms
