"""Benchmark of encoder-decoder training: ours, torch.nn, Hugging Face's Marian, and the hardware limit.

Each of them trains in fp32 and, if the processor runs it, in bf16.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from glassformer.bench.base import Benchmark, Progress, Result, Sizes, empty_table, time_alternately
from glassformer.core.registry import register
from glassformer.core.system import machine

if TYPE_CHECKING:
    import numpy as np
    from rich.table import Table

    from glassformer.data.batching import Batch
    from glassformer.runs.experiment import ExperimentConfig
    from glassformer.training.trainer import Trainer


PRODUCT = 1024
"""Rows and columns of the matrices whose product measures the hardware limit; large enough for all cores."""
TRAINING = 3
"""Cost of a training step in forward passes: one forward pass, and a backward pass that costs two."""


PRODUCTS = 40
"""Matrix products per timed call, which then takes long enough to average over disturbances."""


def matrix_product() -> Callable[[], object]:
    """Return a call that multiplies square fp32 matrices, the fastest operation in a Transformer."""
    import torch

    left, right = torch.randn(PRODUCT, PRODUCT), torch.randn(PRODUCT, PRODUCT)
    out = torch.empty(PRODUCT, PRODUCT)
    return lambda: [torch.mm(left, right, out=out) for _ in range(PRODUCTS)]


def product_flops() -> int:
    return PRODUCTS * 2 * PRODUCT**3


def encoder_decoder_flops(sizes: Sizes, sources: np.ndarray, targets: np.ndarray) -> int:
    """Return the forward FLOPs for sentence pairs of these lengths. A causal mask does not reduce them."""
    width, wide = sizes.width, sizes.feed_forward
    source_tokens, target_tokens = int(sources.sum()), int(targets.sum())
    square = width * width
    encoder = source_tokens * (4 * square + 2 * width * wide) + 2 * width * int((sources**2).sum())
    decoder = target_tokens * (6 * square + 2 * width * wide) + source_tokens * 2 * square
    decoder += 2 * width * int((targets**2).sum() + (sources * targets).sum())
    output = target_tokens * width * sizes.vocabulary
    return 2 * (sizes.layers * (encoder + decoder) + output)


class TranslationBenchmark(Benchmark):
    """Base class for benchmarks of a post-norm encoder-decoder that all compared libraries can build."""

    source: str = Field("multi30k-en-fr", description="translation data: a preset, a config file or a run")
    layers: int = Field(3, ge=1, description="layers in the encoder, and in the decoder")
    heads: int = Field(4, ge=1, description="attention heads per layer")
    width: int = Field(256, ge=1, description="hidden dimension")
    feed_forward: int = Field(1024, ge=1, description="feed-forward dimension")
    vocabulary: int = Field(8000, ge=1, description="vocabulary size, shared by both languages")
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout rate during training")

    def config(self, changes: dict[str, Any]) -> ExperimentConfig:
        from glassformer.runs.experiment import resolve

        model = {
            "kind": "transformer",
            "num_layers": self.layers,
            "num_heads": self.heads,
            "hidden_dim": self.width,
            "feed_forward_dim": self.feed_forward,
            "dropout": self.dropout,
            "position": {"kind": "sinusoidal"},
            "norm_placement": "post",
            "feed_forward": {"kind": "relu"},
            "tied_output": True,
        }
        fixed = {
            **{f"model.{name}": value for name, value in model.items()},
            "task.tokenizer.vocabulary_size": self.vocabulary,
            "training.optimizer.kind": "adamw",
            "training.optimizer.learning_rate": 1e-3,
        }
        return resolve(self.source, {**fixed, **changes})

    def sizes(self, task: Any) -> Sizes:
        return Sizes(
            self.layers,
            self.heads,
            self.width,
            self.feed_forward,
            task.task_type.vocabulary,
            max(task.task_type.max_length, task.task_type.max_target_length),
            self.dropout,
        )


OURS, LIMIT, WIDE = "glassformer", "matrix product", "glassformer_wide"
BF16 = "_bf16"
"""Ending of the name of a form that trains in bf16."""
WIDE_MODEL = {"model.num_layers": 2, "model.hidden_dim": 512, "model.feed_forward_dim": 2048}
"""Sizes of the wider model, whose larger products gain more from bf16."""


@register
class TrainBenchmark(TranslationBenchmark):
    """Training speed of an encoder-decoder on the same sentence pairs: ours, Hugging Face and torch.nn."""

    kind: Literal["train"] = "train"
    repeats: int = Field(3, ge=1, le=10_000, description="timed samples per implementation")
    batch_tokens: int = Field(
        2048, ge=1, description="our batches: tokens per step, counted on the longer side"
    )
    batch_size: int = Field(
        64, ge=1, description="batches of the others: padded pairs per step, in random order"
    )
    batches: int = Field(6, ge=1, description="number of our batches; all models train on their pairs")

    def measure(self, progress: Progress) -> Result:
        import numpy as np

        from glassformer.data.batching import plan_batches
        from glassformer.runs.experiment import Experiment
        from glassformer.training.precision import bf16_speed

        speed = bf16_speed()
        changes = {"training.batch_tokens": self.batch_tokens, "training.average_last": None}
        experiment = Experiment(self.config(changes))
        trainer = experiment.build_trainer()
        task, examples = experiment.task, experiment.task.splits["train"]
        groups = trainer.plan(0)[: self.batches]
        pairs = np.concatenate([indices for group in groups for indices in group])
        order = plan_batches(np.zeros(len(pairs)), seed=0, split="bench", epoch=0, batch_size=self.batch_size)
        padded = [task.batch("train", pairs[indices]) for indices in order]
        sizes = self.sizes(task)
        forms = {OURS: _steps(trainer, groups), **_peers(sizes, padded, with_bf16=not speed.failure)}
        for name, model in {OURS: {}, WIDE: WIDE_MODEL}.items():
            for precision in ["fp32"] if speed.failure else ["fp32", "bf16"]:
                if (form := name + (BF16 if precision == "bf16" else "")) not in forms:
                    config = self.config({**changes, **model, "training.precision": precision})
                    forms[form] = _steps(Experiment(config).build_trainer(), groups)
        timings = time_alternately({**forms, LIMIT: matrix_product()}, self.repeats, progress)

        chosen = examples.take(pairs)
        sources = np.array([len(row) for row in chosen.inputs])
        targets = np.array([len(row) - 1 for row in chosen.targets])
        useful = TRAINING * encoder_decoder_flops(sizes, sources, targets)
        limit = product_flops() / timings[LIMIT].median
        rows = [
            {
                "form": name,
                **timing.as_row(),
                "target_tokens_per_second": targets.sum() / timing.median,
                "peak_share": None if name.startswith(WIDE) else useful / timing.median / limit,
            }
            for name, timing in timings.items()
            if name != LIMIT
        ]
        ratios = _ratios({name: timing.median for name, timing in timings.items()})
        ratios["peak_share"] = rows[0]["peak_share"]
        notes = {
            "pairs": len(pairs),
            "target_tokens": int(targets.sum()),
            "our_steps": len(groups),
            "their_steps": len(padded),
            "limit_gflops": limit / 1e9,
            "bf16": speed.describe(),
        }
        return Result(self.kind, machine(), rows, ratios, notes=notes)

    def show(self, result: Result) -> Table:
        notes = result.notes
        table = empty_table(
            f"training on {notes['pairs']:,} pairs of {self.source}",
            ["form"],
            ["target tokens/s", "share of fp32 limit"],
            caption=f"target tokens without padding; our {notes['our_steps']} steps: pairs of similar length;"
            f" the others' {notes['their_steps']} steps: {self.batch_size} random pairs;"
            f" limit: matrix products in fp32 at {notes['limit_gflops']:,.0f} GFLOP/s; {notes['bf16']}\n"
            + "\n".join(
                f"{RATIOS[name]}: {value:.2f} ×" for name, value in result.ratios.items() if name in RATIOS
            ),
        )
        for row in result.rows:
            share = row["peak_share"]
            speed = f"{row['target_tokens_per_second']:,.0f}"
            table.add_row(row["form"], speed, "" if share is None else f"{share:.0%}")
        return table


RATIOS = {
    "huggingface": "ours in fp32 over Hugging Face in fp32",
    "torch_nn": "ours in fp32 over torch.nn in fp32",
    "bf16": "ours in bf16 over ours in fp32",
    "wide_bf16": "the same at width 512",
    "huggingface_fp32_vs_bf16": "ours in bf16 over Hugging Face in fp32",
    "huggingface_bf16": "ours in bf16 over Hugging Face under autocast to bf16",
    "torch_nn_bf16": "ours in bf16 over torch.nn under autocast to bf16",
}
"""Meaning of each ratio of speeds, by its key."""


def _ratios(seconds: dict[str, float]) -> dict[str, float]:
    """Return the speed of our forms as a multiple of other forms that have been measured."""
    pairs = {
        "huggingface": (OURS, "huggingface"),
        "torch_nn": (OURS, "torch_nn"),
        "bf16": (OURS + BF16, OURS),
        "wide_bf16": (WIDE + BF16, WIDE),
        "huggingface_fp32_vs_bf16": (OURS + BF16, "huggingface"),
        "huggingface_bf16": (OURS + BF16, "huggingface" + BF16),
        "torch_nn_bf16": (OURS + BF16, "torch_nn" + BF16),
    }
    return {
        name: seconds[other] / seconds[ours]
        for name, (ours, other) in pairs.items()
        if ours in seconds and other in seconds
    }


def _steps(trainer: Trainer, groups: list[list[np.ndarray]]) -> Callable[[], None]:
    """Return a call that runs one training step per group of micro-batches, given by their example indices.

    The time of the call includes building the batches from the examples.
    """
    trainer.model.train()

    def train() -> None:
        for group in groups:
            trainer.step(trainer.micro_batches(group, 0))

    return train


def _peers(sizes: Sizes, batches: list[Batch], with_bf16: bool) -> dict[str, Callable[[], Any]]:
    """Return calls that train models of other libraries on these batches, by the name of the form."""
    from glassformer.bench import peers

    trainers = {"torch_nn": peers.torch_nn_trainer}
    if find_spec("transformers"):
        trainers["huggingface"] = peers.huggingface_trainer
    forms = {name: make(sizes, batches) for name, make in trainers.items()}
    if with_bf16:
        forms |= {name + BF16: make(sizes, batches, autocast=True) for name, make in trainers.items()}
    return forms
