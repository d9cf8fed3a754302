"""OpenAI's completions for text language models: whole replies, and server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from glassformer.core.errors import ErrorDetail
from glassformer.generation import DecodingConfig, GreedyConfig, SampleConfig
from glassformer.generation.continuous import Continuation
from glassformer.serving.batching import Stream, model_failure
from glassformer.serving.messages import CompletionBody
from glassformer.serving.served import ServedRun
from glassformer.tasks.language import CausalLanguageTask

FinishReason = Literal["stop", "length"]
UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""Character that a decoder returns for the first bytes of a character whose other bytes are missing."""
SEED_STRIDE = 1_000_003
"""Distance of the random seeds of two texts, the same as in `Run.stream`."""


@dataclass(frozen=True)
class Progress:
    """State of a completion that a request may read. The worker replaces it as a whole after each token."""

    tokens: int = 0
    """Number of generated tokens that were searched for stop texts."""
    stop_at: int | None = None
    """Number of characters before the first stop text."""
    is_done: bool = False


@dataclass(eq=False)
class Completion:
    """Completion of one prompt: its text so far, and where it stops."""

    index: int
    task: CausalLanguageTask
    prompt: str
    continuation: Continuation
    stops: Sequence[str]
    notify: Callable[[], None]
    """Function that is called in the worker's thread after each token, and at the end."""
    stream: Stream = field(init=False)
    progress: Progress = field(init=False, default_factory=Progress)
    _start: str = field(init=False)

    def __post_init__(self) -> None:
        self.stream = Stream(self.continuation, self._on_token)
        self._start = self.task.show_output(self.continuation.prompt)

    def _on_token(self) -> None:
        """Search the new text for stop texts, in the worker's thread."""
        count, stop_at = len(self.continuation.tokens), self.progress.stop_at
        try:
            if stop_at is None and self.stops:
                stop_at = self._find_stop(count)
        except Exception as error:
            self.stream.error = model_failure(error)
        is_over = stop_at is not None or self.stream.error is not None
        if is_over:
            self.continuation.is_cancelled = True
        self.progress = Progress(count, stop_at, is_over or self.continuation.ending is not None)
        self.notify()

    def _find_stop(self, count: int) -> int | None:
        text = self._decoded(count)
        return min((at for stop in self.stops if (at := text.find(stop)) >= 0), default=None)

    def _decoded(self, count: int) -> str:
        """Return the first generated tokens as text. A token is shown as it is after the prompt."""
        tokens = self.continuation.tokens[:count]
        whole = self.task.show_output([*self.continuation.prompt, *tokens])
        return (
            whole.removeprefix(self._start)
            if whole.startswith(self._start)
            else self.task.show_output(tokens)
        )

    @property
    def is_done(self) -> bool:
        return self.progress.is_done

    @property
    def finish_reason(self) -> FinishReason | None:
        """Return why the completion ended; None while it is generated."""
        progress = self.progress
        if not progress.is_done:
            return None
        is_stopped = progress.stop_at is not None or self.continuation.ending == "end"
        return "stop" if is_stopped else "length"

    def text(self) -> str:
        """Return the text so far. While it is generated, only what further tokens cannot change."""
        progress = self.progress
        text = self._decoded(progress.tokens)
        if progress.is_done:
            return text[: progress.stop_at]
        text = text.rstrip(UNFINISHED)
        held = max((_overlap(text, stop) for stop in self.stops), default=0)
        return text[: len(text) - held]


def _overlap(text: str, stop: str) -> int:
    """Return how many characters at the end of the text may be the beginning of a stop text."""
    return next((size for size in range(len(stop) - 1, 0, -1) if text.endswith(stop[:size])), 0)


class CompletionRequest:
    """Completions that one request asks for. A client that disconnects calls `cancel`."""

    def __init__(self, served: ServedRun, body: CompletionBody) -> None:
        self.served = served
        self.body = body
        self.id = f"cmpl-{secrets.token_hex(12)}"
        self.created = int(time.time())
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._is_waking = False
        self.completions = self._make()
        self.prompt_tokens = sum(
            len(completion.continuation.prompt) for completion in self.completions[:: self.choices]
        )

    @property
    def choices(self) -> int:
        return self.body.n or 1

    def _make(self) -> list[Completion]:
        body, task = self.body, self.served.task
        assert isinstance(task, CausalLanguageTask)
        prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
        stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
        seed = secrets.randbelow(2**32) if body.seed is None else body.seed % 2**64
        made = []
        for number, prompt in enumerate(prompts):
            tokens = task.start(prompt)
            path = "prompt" if isinstance(body.prompt, str) else f"prompt.{number}"
            self._check_length(len(tokens), path)
            for choice in range(self.choices):
                decoding = _decoding(body, (seed * 1009 + choice) * SEED_STRIDE)
                continuation = Continuation(tokens, body.max_tokens or 16, decoding)
                index = number * self.choices + choice
                made.append(Completion(index, task, prompt, continuation, stops, self._notify))
        return made

    def _check_length(self, tokens: int, path: str) -> None:
        if tokens > self.served.max_length:
            raise ErrorDetail(
                f"the prompt has {tokens:,} tokens, and the model reads at most {self.served.max_length:,}",
                path=path,
                hint="send the end of the text only",
            )

    def _notify(self) -> None:
        """Wake the request up, from the worker's thread. Whole replies are only woken at their end."""
        if not self.body.stream and not self.is_done:
            return
        if not self._is_waking:
            self._is_waking = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._is_waking = False
        self._changed.set()

    @property
    def is_done(self) -> bool:
        return all(completion.is_done for completion in self.completions)

    def submit(self) -> None:
        self.served.batcher.submit(*(completion.stream for completion in self.completions))

    def cancel(self) -> None:
        """Free the work for this request."""
        for completion in self.completions:
            completion.continuation.is_cancelled = True

    async def reply(self) -> dict[str, Any]:
        """Wait for all completions, and return the whole reply."""
        while not self.is_done:
            await self._changed.wait()
            self._changed.clear()
        self._raise_error()
        choices = [
            _choice(completion, self._echo(completion) + completion.text(), completion.finish_reason)
            for completion in self.completions
        ]
        return self._document(choices) | {"usage": self._usage()}

    async def events(self) -> AsyncIterator[str]:
        """Yield server-sent events until all completions are done."""
        has_usage = self.body.stream_options is not None and self.body.stream_options.include_usage
        none = {"usage": None} if has_usage else {}
        sent = dict.fromkeys(self.completions, "")
        for completion in self.completions:
            if echo := self._echo(completion):
                yield _data(self._document([_choice(completion, echo, None)]) | none)
        while sent:
            self._raise_error()
            for completion in list(sent):
                reason, text = completion.finish_reason, completion.text()
                new = text[len(sent[completion]) :]
                sent[completion] = text
                if reason is not None:
                    del sent[completion]
                if new or reason is not None:
                    yield _data(self._document([_choice(completion, new, reason)]) | none)
            if sent:
                await self._changed.wait()
                self._changed.clear()
        if has_usage:
            yield _data(self._document([]) | {"usage": self._usage()})
        yield "data: [DONE]\n\n"

    def _raise_error(self) -> None:
        for completion in self.completions:
            if completion.stream.error is not None:
                raise completion.stream.error

    def _echo(self, completion: Completion) -> str:
        return completion.prompt if self.body.echo else ""

    def _document(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.served.name,
            "choices": choices,
        }

    def _usage(self) -> dict[str, int]:
        generated = sum(completion.progress.tokens for completion in self.completions)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": generated,
            "total_tokens": self.prompt_tokens + generated,
        }


def _decoding(body: CompletionBody, seed: int) -> DecodingConfig:
    temperature = 1.0 if body.temperature is None else body.temperature
    if temperature == 0:
        return GreedyConfig()
    top_p = None if body.top_p == 1.0 else body.top_p
    return SampleConfig(temperature=max(temperature, 1e-3), top_k=body.top_k, top_p=top_p, seed=seed)


def _choice(completion: Completion, text: str, reason: FinishReason | None) -> dict[str, Any]:
    return {"index": completion.index, "text": text, "logprobs": None, "finish_reason": reason}


def _data(document: dict[str, Any]) -> str:
    return f"data: {json.dumps(document, ensure_ascii=False)}\n\n"
