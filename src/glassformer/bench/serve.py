"""Benchmark of `glassformer serve`: throughput with batches across clients, and one request at a time."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from glassformer.bench.base import (
    Benchmark,
    Progress,
    Result,
    empty_table,
    time_alternately,
    trained_run,
)
from glassformer.core.errors import user_error
from glassformer.core.registry import register
from glassformer.core.system import machine

if TYPE_CHECKING:
    from rich.table import Table

    from glassformer.runs.run import Run

ONE_CLIENT, UNBATCHED, BATCHED = "one client", "no batches", "batches"
TARGET = 5.0
"""Minimum throughput of batches across clients, as a multiple of one request at a time."""
NEW_TOKENS = 32
"""Number of tokens that a language model generates per request."""
HOST = "127.0.0.1"


@register
class ServeBenchmark(Benchmark):
    """Throughput of the server for many clients: batches across requests against one request at a time."""

    kind: Literal["serve"] = "serve"
    source: str = Field("translation", description="model to serve: a preset, a config file or a run")
    training_steps: int = Field(
        300, ge=1, description="training steps of the model, which is trained once and reused"
    )
    folder: str = Field("runs", description="folder for the trained model")
    clients: int = Field(
        32, ge=2, le=200, description="number of clients that send requests at the same time"
    )
    requests: int = Field(128, ge=1, description="requests per timed sample")

    def measure(self, progress: Progress) -> Result:
        run = trained_run("serve", self.source, self.training_steps, self.folder)
        bodies, path = self._bodies(run)
        with _server(run, self.threads, "--max-batch", "1") as single, _server(run, self.threads) as batching:
            outputs: dict[str, list[Any]] = {}

            def form(name: str, port: int, clients: int) -> None:
                outputs[name] = asyncio.run(send_all(port, path, bodies, clients))

            forms = {
                ONE_CLIENT: partial(form, ONE_CLIENT, single, 1),
                UNBATCHED: partial(form, UNBATCHED, single, self.clients),
                BATCHED: partial(form, BATCHED, batching, self.clients),
            }
            timings = time_alternately(forms, self.repeats, progress)
        rows = [
            {
                "form": name,
                "clients": 1 if name == ONE_CLIENT else self.clients,
                **timing.as_row(),
                "requests_per_second": len(bodies) / timing.median,
            }
            for name, timing in timings.items()
        ]
        speed = {row["form"]: row["requests_per_second"] for row in rows}
        ratios = {
            "batched": speed[BATCHED] / speed[UNBATCHED],
            "batched_over_one_client": speed[BATCHED] / speed[ONE_CLIENT],
        }
        notes = {"requests": len(bodies), "endpoint": path, "run": str(run.path)}
        return Result(self.kind, machine(), rows, ratios, _error(outputs, ratios["batched"]), notes)

    def _bodies(self, run: Run) -> tuple[list[bytes], str]:
        """Return the requests as JSON, and their endpoint: completions or predictions."""
        from glassformer.models.transformer import CausalLanguageModel
        from glassformer.runs.ending import example_inputs
        from glassformer.tasks.language import CausalLanguageTask

        inputs = example_inputs(run.task, self.requests)
        if not inputs:
            raise user_error(
                "the run has no example to send",
                path="--source",
                value=self.source,
                hint="--source translation",
            )
        texts = [inputs[number % len(inputs)] for number in range(self.requests)]
        if isinstance(run.task, CausalLanguageTask) and isinstance(run.model, CausalLanguageModel):
            options = {"model": run.path.name, "max_tokens": NEW_TOKENS, "temperature": 0}
            return [json.dumps({**options, "prompt": text}).encode() for text in texts], "/v1/completions"
        return [json.dumps({"inputs": text}).encode() for text in texts], "/v1/predict"

    def show(self, result: Result) -> Table:
        requests, endpoint = result.notes["requests"], result.notes["endpoint"]
        table = empty_table(
            f"{requests:,} requests to {endpoint} of a model of {self.source}",
            ["server"],
            ["clients", "requests/s", "batches are"],
        )
        faster = {
            UNBATCHED: f"{result.ratios['batched']:.1f} ×",
            ONE_CLIENT: f"{result.ratios['batched_over_one_client']:.1f} ×",
        }
        for row in result.rows:
            name = row["form"]
            table.add_row(
                name, str(row["clients"]), f"{row['requests_per_second']:,.0f}", faster.get(name, "")
            )
        return table


def _error(outputs: dict[str, list[Any]], ratio: float) -> str:
    """Return why the benchmark failed; empty if it passed."""
    alone, together = outputs[ONE_CLIENT], outputs[BATCHED]
    different = sum(mine != other for mine, other in zip(alone, together, strict=True))
    if different:
        return f"{different:,} of {len(alone):,} outputs depend on the other requests of a batch"
    return f"batches are {ratio:.1f} times as fast, not {TARGET:g} times" if ratio < TARGET else ""


@contextmanager
def _server(run: Run, threads: int | None, *options: str) -> Iterator[int]:
    """Context: `glassformer serve` in a process of its own. Yield its port."""
    command = [sys.executable, "-m", "glassformer", "serve", str(run.path), "--json", "--port", "0", *options]
    command += [] if threads is None else ["--threads", str(threads)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
    ) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"the server did not start: {process.stderr.read()}")
            yield int(json.loads(line)["port"])
        finally:
            process.terminate()


async def send_all(port: int, path: str, bodies: Sequence[bytes], clients: int) -> list[Any]:
    """Send requests from a number of clients, each over one connection. Return the outputs in order."""
    outputs: list[Any] = [None] * len(bodies)
    waiting = iter(enumerate(bodies))

    async def client() -> None:
        reader, writer = await asyncio.open_connection(HOST, port)
        try:
            for number, body in waiting:
                head = f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
                writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                outputs[number] = output_of(await _read(reader))
        finally:
            writer.close()

    await asyncio.gather(*(client() for _ in range(min(clients, len(bodies)))))
    return outputs


async def _read(reader: asyncio.StreamReader) -> Any:
    """Read one reply of our server, which always has a Content-Length."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    lengths = [line.partition(":")[2] for line in head.splitlines() if line.startswith("content-length:")]
    document = json.loads(await reader.readexactly(int(lengths[0])))
    if not head.startswith("http/1.1 200"):
        raise RuntimeError(f"the server replied {head.splitlines()[0]}: {document}")
    return document


def output_of(document: dict[str, Any]) -> Any:
    """Return the output in a reply: the text of a completion or the output of a prediction."""
    if "choices" in document:
        return document["choices"][0]["text"]
    return document["predictions"][0]["output"]
