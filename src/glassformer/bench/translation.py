"""The encoder-decoder of the benchmarks, and the pairs that it learns and translates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from glassformer.bench.base import Benchmark
from glassformer.bench.peers import Sizes

if TYPE_CHECKING:
    from glassformer.runs.experiment import ExperimentConfig


class TranslationBenchmark(Benchmark):
    """Options of what all engines can do: post-norm, sinusoidal positions, ReLU, tied output, AdamW."""

    what: str = Field("multi30k-en-fr", description="a translation preset, file or run, for its data")
    layers: int = Field(3, ge=1, description="of the encoder, and of the decoder")
    heads: int = Field(4, ge=1, description="heads of a layer")
    width: int = Field(256, ge=1, description="numbers in a vector")
    feed_forward: int = Field(1024, ge=1, description="numbers in the middle of a feed-forward net")
    vocabulary: int = Field(8000, ge=1, description="tokens of both languages together, before reserved ones")
    dropout: float = Field(0.1, ge=0, lt=1, description="in training")

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
        return resolve(self.what, {**fixed, **changes})

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
