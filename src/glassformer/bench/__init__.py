"""Benchmarks: speed of this package and of other libraries, measured alternately in one run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glassformer.bench.base import Benchmark


def benchmarks() -> dict[str, type[Benchmark]]:
    """Import all benchmark modules and return their benchmark classes by name."""
    from glassformer.bench import (  # noqa: F401
        attention,
        decode,
        growth,
        language_model,
        predict,
        resources,
        serve,
        sweep,
        train,
    )
    from glassformer.bench.base import Benchmark
    from glassformer.core.registry import kinds

    return {name: kind for name, kind in kinds(Benchmark).items() if issubclass(kind, Benchmark)}
