"""Writing, token by token, with every model that can `start` and `advance`.

    [[best]] = generate(model, {"tokens": source_BM}, begin=BOS, end=EOS, max_length=20,
                        strategy=BeamConfig(size=4), forbidden=[PAD, BOS])

It knows nothing of tasks or tokenizers: tokens are numbers, and the caller says which are special.
"""

from glassformer.generation.decoding import generate, observing
from glassformer.generation.no_cache import NoCache
from glassformer.generation.predict import concurrency, round_robin, run_concurrently
from glassformer.generation.search import Candidate, Hypothesis, Step, Trace
from glassformer.generation.strategies import BeamConfig, Chooser, DecodingConfig, GreedyConfig, SampleConfig

__all__ = [
    "BeamConfig",
    "Candidate",
    "Chooser",
    "DecodingConfig",
    "GreedyConfig",
    "Hypothesis",
    "NoCache",
    "SampleConfig",
    "Step",
    "Trace",
    "concurrency",
    "generate",
    "observing",
    "round_robin",
    "run_concurrently",
]
