"""Generation: token-by-token decoding with any model that has `start` and `advance`.

    [[best]] = generate(model, {"tokens": source_BM}, begin=BOS, end=EOS, max_length=20,
                        strategy=BeamConfig(size=4), forbidden=[PAD, BOS])

This package does not depend on tasks or tokenizers. Tokens are ids, and the caller passes the special ones.
"""

from glassformer.generation.decoding import generate, tracing
from glassformer.generation.predict import concurrency, round_robin, run_concurrently
from glassformer.generation.search import Candidate, Hypothesis, Step, Trace
from glassformer.generation.strategies import BeamConfig, DecodingConfig, GreedyConfig, SampleConfig, Strategy

__all__ = [
    "BeamConfig",
    "Candidate",
    "DecodingConfig",
    "GreedyConfig",
    "Hypothesis",
    "SampleConfig",
    "Step",
    "Strategy",
    "Trace",
    "concurrency",
    "generate",
    "round_robin",
    "run_concurrently",
    "tracing",
]
