"""Dynamic batching: one worker thread per model computes the waiting inputs of all requests together.

Three kinds of work wait for a model: predictions, which are grouped by their decoding options and computed as
one batch; completions of a language model, which join and leave one batch between its steps; and single
calls, such as attention maps. The results do not depend on what else is computed.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

from glassformer.core.errors import ErrorDetail, UserError, is_out_of_memory
from glassformer.generation import DecodingConfig
from glassformer.generation.continuous import Continuation, ContinuousBatch
from glassformer.generation.predict import PredictedText
from glassformer.serving.limits import Settings
from glassformer.serving.metrics import Metrics
from glassformer.web.limits import RETRY_SECONDS
from glassformer.web.messages import Refusal, refusal

Predict = Callable[[Sequence[Any], DecodingConfig], list[PredictedText]]


@dataclass(eq=False)
class Prediction:
    """Inputs of one request, with a future of their predictions."""

    inputs: list[Any]
    decoding: DecodingConfig
    future: Future[list[PredictedText]] = field(default_factory=Future)


@dataclass(eq=False)
class Call:
    """Call that uses the model alone and as it was trained, with a future of its result."""

    work: Callable[[], Any]
    future: Future[Any] = field(default_factory=Future)


@dataclass(eq=False)
class Stream:
    """Completion of one prompt."""

    continuation: Continuation
    on_token: Callable[[], None]
    """Function that the worker calls after each token and at the end. It must not raise an exception."""
    error: Refusal | None = None


def model_failure(error: BaseException | str) -> Refusal:
    """Return the reply for a request that failed because of the model: status 500 and a plain message."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, UserError):
        return Refusal(500, error.details[0])
    if isinstance(error, BaseException) and is_out_of_memory(error):
        return refusal(500, "out of memory", hint="send fewer or shorter inputs")
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    return refusal(
        500, f"the model failed: {text}", hint="try another input; glassformer doctor RUN checks the model"
    )


class Batcher:
    """Worker thread of one model, with the inputs that wait for it."""

    def __init__(
        self,
        name: str,
        predict: Predict,
        streams: ContinuousBatch | None,
        settings: Settings,
        metrics: Metrics,
        fast_mode: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Start the thread. Batches are computed inside a `fast_mode` block, and single calls outside."""
        self.name = name
        self._predict = predict
        self._fast_mode = fast_mode
        self._fast = ExitStack()
        self._is_fast = False
        self._batch = streams
        self._streams: dict[Continuation, Stream] = {}
        """Streams that are in the batch."""
        self._settings = settings
        self._metrics = metrics
        self._condition = threading.Condition()
        self._predictions: deque[Prediction] = deque()
        self._waiting_streams: deque[Stream] = deque()
        self._calls: deque[Call] = deque()
        self._expected = 1
        """Number of inputs of the last batch and of those that waited at its end: the next batch may have
        as many."""
        self._seconds = 0.0
        """Duration of the last batch."""
        self._is_stopped = False
        self._thread = threading.Thread(target=self._work, name=f"model {name}", daemon=True)
        self._thread.start()
        metrics.queue_length.watch(lambda: float(self.queue_length), model=name)

    @property
    def queue_length(self) -> int:
        """Number of inputs that wait."""
        with self._condition:
            inputs = sum(len(job.inputs) for job in self._predictions)
            return inputs + len(self._waiting_streams) + len(self._calls)

    def submit(self, *jobs: Prediction | Call | Stream) -> None:
        """Queue the jobs of one request, all or none. Raise a 503 `Refusal` if the queue is full."""
        size = sum(len(job.inputs) if isinstance(job, Prediction) else 1 for job in jobs)
        with self._condition:
            if self._is_stopped:
                raise refusal(503, "the server is shutting down", retry_after=RETRY_SECONDS)
            waiting = self.queue_length
            if waiting and waiting + size > self._settings.queue:
                raise refusal(
                    503,
                    f"the model is busy: {waiting:,} inputs wait for it",
                    retry_after=RETRY_SECONDS,
                    hint="repeat the request later, or start the server with a larger --queue",
                )
            for job in jobs:
                if isinstance(job, Prediction):
                    self._predictions.append(job)
                elif isinstance(job, Stream):
                    self._waiting_streams.append(job)
                else:
                    self._calls.append(job)
            self._condition.notify_all()

    def stop(self, seconds: float | None = None) -> None:
        """Refuse new work, let the thread finish what waits, and wait for its end, at most this long."""
        with self._condition:
            self._is_stopped = True
            self._condition.notify_all()
        self._thread.join(self._settings.drain_seconds if seconds is None else seconds)

    def _work(self) -> None:
        import torch

        torch.set_num_threads(self._settings.threads)
        while True:
            with self._condition:
                while not (self._has_waiting or self._streams or self._is_stopped):
                    self._condition.wait()
                if self._is_stopped and not (self._has_waiting or self._streams):
                    break
                self._await_more()
                predictions = self._take_predictions()
                call = self._calls.popleft() if self._calls else None
                joining = self._take_streams()
            try:
                if call is not None:
                    self._set_fast(False)
                    _run_call(call)
                self._run_predictions(predictions)
                self._step(joining)
            except Exception as error:  # a bug of this module must not leave clients waiting for ever
                traceback.print_exception(error, file=sys.stderr)
                self._fail_all(predictions, joining, error)
        self._set_fast(False)

    def _set_fast(self, is_fast: bool) -> None:
        """Enter or leave the fast mode. It stays on between batches, because to enter it copies weights."""
        if is_fast and not self._is_fast:
            self._fast.enter_context(self._fast_mode())
        elif self._is_fast and not is_fast:
            self._fast.close()
        self._is_fast = is_fast

    @property
    def _has_waiting(self) -> bool:
        return bool(self._predictions or self._waiting_streams or self._calls)

    def _await_more(self) -> None:
        """Wait up to `max_wait_ms` for the clients of the last batch, which often send their next request.

        Otherwise the clients would form groups that take turns, each with a batch of its own. A lone client
        never waits, nor do sequences that are being generated, and no wait is longer than the last batch.
        """
        deadline = time.monotonic() + min(self._settings.max_wait_ms / 1000, self._seconds)
        while self.queue_length < min(self._expected, self._settings.max_batch):
            left = deadline - time.monotonic()
            if left <= 0 or self._streams or self._calls or self._is_stopped:
                return
            self._condition.wait(left)

    def _take_predictions(self) -> list[Prediction]:
        """Take the next predictions with equal decoding options, up to `max_batch` inputs."""
        taken: list[Prediction] = []
        others: deque[Prediction] = deque()
        size = 0
        while self._predictions and size < self._settings.max_batch:
            job = self._predictions.popleft()
            if taken and job.decoding != taken[0].decoding:
                others.append(job)
            elif job.future.set_running_or_notify_cancel():  # False: its client has disconnected
                taken.append(job)
                size += len(job.inputs)
        self._predictions.extendleft(reversed(others))
        return taken

    def _take_streams(self) -> list[Stream]:
        room = self._settings.max_batch - len(self._streams)
        joining: list[Stream] = []
        while self._waiting_streams and len(joining) < room:
            stream = self._waiting_streams.popleft()
            if stream.continuation.is_cancelled:
                self._end(stream)
            else:
                joining.append(stream)
        if joining and not self._streams:
            self._expect(len(joining), 0.0)
        return joining

    def _expect(self, size: int, seconds: float) -> None:
        """Remember the size and the duration of a batch, just before its clients get their replies."""
        self._expected, self._seconds = size + self.queue_length, seconds

    def _run_predictions(self, jobs: Sequence[Prediction]) -> None:
        if not jobs:
            return
        inputs, start = [value for job in jobs for value in job.inputs], time.monotonic()
        try:
            self._set_fast(True)
            found = self._predict(inputs, jobs[0].decoding)
        except Exception as error:
            if len(jobs) > 1:  # only the request with the cause fails
                for job in jobs:
                    self._run_predictions([job])
                return
            self._metrics.failures.add(model=self.name)
            jobs[0].future.set_exception(model_failure(error))
            return
        self._count(found)
        self._expect(len(found), time.monotonic() - start)
        for job in jobs:
            own, found = found[: len(job.inputs)], found[len(job.inputs) :]
            job.future.set_result(own)

    def _count(self, found: Sequence[PredictedText]) -> None:
        self._metrics.batch_size.observe(len(found), model=self.name)
        self._metrics.inputs.add(len(found), model=self.name)
        read = sum(len(each.tokens) for each in found if each.tokens is not None)
        generated = sum(len(each.candidates[0].tokens) for each in found if each.candidates)
        self._metrics.tokens.add(read, model=self.name, direction="input")
        self._metrics.tokens.add(generated, model=self.name, direction="output")

    def _step(self, joining: Sequence[Stream]) -> None:
        """Let streams join the batch, and generate one token for each stream in it."""
        if self._batch is None or not (joining or self._streams):
            return
        self._join(self._batch, joining)
        size = len(self._batch.rows)
        try:
            ended = self._batch.step()
        except Exception as error:
            self._fail_streams(error)
            return
        self._metrics.batch_size.observe(size, model=self.name)
        self._metrics.tokens.add(size, model=self.name, direction="output")
        for continuation in ended:
            stream = self._streams.pop(continuation)
            if continuation.ending == "failed":
                self._fail([stream], "its logits are NaN or infinite")
            else:
                stream.on_token()
        for stream in self._streams.values():
            stream.on_token()

    def _join(self, batch: ContinuousBatch, joining: Sequence[Stream]) -> None:
        """Read the prompts of new streams. If that fails, the streams in the batch continue without them."""
        try:
            self._set_fast(True)
            batch.join([stream.continuation for stream in joining])
        except Exception as error:
            batch.clear()
            batch.join(list(self._streams))
            self._fail(joining, error)
            return
        self._streams |= {stream.continuation: stream for stream in joining}
        self._metrics.inputs.add(len(joining), model=self.name)
        read = sum(len(stream.continuation.prompt) for stream in joining)
        self._metrics.tokens.add(read, model=self.name, direction="input")

    def _fail(self, streams: Sequence[Stream], error: BaseException | str) -> None:
        for stream in streams:
            stream.error = model_failure(error)
            self._metrics.failures.add(model=self.name)
            self._end(stream)

    def _fail_streams(self, error: BaseException) -> None:
        """End all streams of the batch."""
        if self._batch is not None:
            self._batch.clear()
        failed, self._streams = list(self._streams.values()), {}
        self._fail(failed, error)

    def _fail_all(
        self, predictions: Sequence[Prediction], joining: Sequence[Stream], error: BaseException
    ) -> None:
        """Fail everything that was being computed."""
        for job in predictions:
            if not job.future.done():
                job.future.set_exception(model_failure(error))
        self._streams |= {stream.continuation: stream for stream in joining}
        self._fail_streams(error)

    def _end(self, stream: Stream) -> None:
        stream.continuation.ending = stream.continuation.ending or "cancelled"
        stream.on_token()


def _run_call(call: Call) -> None:
    if not call.future.set_running_or_notify_cancel():
        return
    try:
        result = call.work()
    except (ErrorDetail, UserError) as wrong_input:
        call.future.set_exception(wrong_input)
    except Exception as error:
        call.future.set_exception(model_failure(error))
    else:
        call.future.set_result(result)
