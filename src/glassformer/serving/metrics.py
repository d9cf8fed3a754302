"""Metrics of the server in the text format of Prometheus: counters, gauges and histograms."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
Labels = tuple[tuple[str, str], ...]


class Metric:
    """Named metric with one value per combination of labels."""

    kind = "counter"

    def __init__(self, name: str, description: str) -> None:
        self.name = f"glassformer_{name}"
        self.description = description
        self._values: dict[Labels, float] = {}
        self._lock = threading.Lock()

    def add(self, amount: float = 1.0, **labels: str) -> None:
        with self._lock:
            key = tuple(sorted(labels.items()))
            self._values[key] = self._values.get(key, 0.0) + amount

    def lines(self) -> list[str]:
        """Return the metric in Prometheus' text format."""
        with self._lock:
            values = sorted(self._values.items())
        return [*self._head(), *(_line(self.name, labels, value) for labels, value in values)]

    def _head(self) -> list[str]:
        return [f"# HELP {self.name} {self.description}", f"# TYPE {self.name} {self.kind}"]


class Gauge(Metric):
    """Metric whose values are read at the time of a request."""

    kind = "gauge"

    def __init__(self, name: str, description: str) -> None:
        super().__init__(name, description)
        self._read: dict[Labels, Callable[[], float]] = {}

    def watch(self, read: Callable[[], float], **labels: str) -> None:
        """Report what `read` returns as the value for these labels."""
        self._read[tuple(sorted(labels.items()))] = read

    def lines(self) -> list[str]:
        return [*self._head(), *(_line(self.name, labels, read()) for labels, read in self._read.items())]


class Histogram(Metric):
    """Metric that counts values in buckets, with their sum and number."""

    kind = "histogram"

    def __init__(self, name: str, description: str, bounds: Sequence[float]) -> None:
        super().__init__(name, description)
        self.bounds = bounds
        self._counts: dict[Labels, list[int]] = {}

    def observe(self, value: float, **labels: str) -> None:
        key = tuple(sorted(labels.items()))
        with self._lock:
            counts = self._counts.setdefault(key, [0] * (len(self.bounds) + 1))
            counts[bisect_left(self.bounds, value)] += 1
            self._values[key] = self._values.get(key, 0.0) + value

    def lines(self) -> list[str]:
        with self._lock:
            found = sorted(
                (labels, list(counts), self._values[labels]) for labels, counts in self._counts.items()
            )
        lines = self._head()
        for labels, counts, total in found:
            bounds = [*(f"{bound:g}" for bound in self.bounds), "+Inf"]
            for bound, count in zip(bounds, accumulate(counts), strict=True):
                lines.append(_line(f"{self.name}_bucket", (*labels, ("le", bound)), count))
            lines.append(_line(f"{self.name}_sum", labels, total))
            lines.append(_line(f"{self.name}_count", labels, sum(counts)))
        return lines


def _line(name: str, labels: Labels, value: float) -> str:
    shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
    return f"{name}{{{shown}}} {value:.10g}" if shown else f"{name} {value:.10g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Metrics:
    """All metrics of a server."""

    def __init__(self) -> None:
        self.requests = Metric("requests_total", "Requests by endpoint and HTTP status.")
        self.seconds = Histogram(
            "request_seconds", "Time from a request to the end of its reply, in seconds.", SECONDS
        )
        self.batch_size = Histogram(
            "batch_size", "Inputs or sequences that a model computed together.", SIZES
        )
        self.queue_length = Gauge("queue_length", "Inputs that wait for a model.")
        self.inputs = Metric("inputs_total", "Inputs of predictions, translations and completions.")
        self.tokens = Metric("tokens_total", "Tokens that models read (input) and generated (output).")
        self.failures = Metric("model_failures_total", "Requests that failed because of the model.")

    def text(self) -> str:
        metrics: list[Metric] = [
            self.requests,
            self.seconds,
            self.batch_size,
            self.queue_length,
            self.inputs,
            self.tokens,
            self.failures,
        ]
        return "".join(f"{line}\n" for metric in metrics for line in metric.lines())
