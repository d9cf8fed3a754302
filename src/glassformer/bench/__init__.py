"""Speed, measured side by side in one run. Each benchmark is a kind in a file of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glassformer.bench.base import Benchmark


def benchmarks() -> dict[str, type[Benchmark]]:
    """Every benchmark by its name; importing a file makes it known."""
    from glassformer.bench import attention, decode, language_model, memory, startup, sweep, train  # noqa: F401
    from glassformer.bench.base import Benchmark
    from glassformer.core.registry import kinds

    return {name: kind for name, kind in kinds(Benchmark).items() if issubclass(kind, Benchmark)}
