"""OpenAI's completions: the same text as `Run.generate`, streams, stops, usage, and OpenAI's own client."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.types import Message

from glassformer.generation import GreedyConfig
from glassformer.generation.continuous import Continuation
from glassformer.serving.app import CompletionStream
from glassformer.serving.completions import Completion, CompletionRequest
from glassformer.serving.messages import CompletionBody

from .conftest import Running

openai = pytest.importorskip("openai")


@pytest.fixture(scope="module")
def client(server: Running) -> Any:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def expected(server: Running, name: str, prompt: str, tokens: int, **options: Any) -> str:
    run: Any = server.run(name).run
    *_, (text, _) = run.stream(prompt, tokens, **options)
    return str(text).removeprefix(run.task.show_output(run.task.start(prompt)))


PROMPTS = [("language-model", "The room was"), ("play", "ROM"), ("play", "I take thee at")]


@pytest.mark.parametrize(("name", "prompt"), PROMPTS)
def test_a_completion_is_that_of_the_run(server: Running, client: Any, name: str, prompt: str) -> None:
    greedy = client.completions.create(model=name, prompt=prompt, max_tokens=40, temperature=0)
    assert greedy.choices[0].text == expected(server, name, prompt, 40, temperature=0)
    # A sampled text is the same as long as the context is not full.
    sampled = client.completions.create(
        model=name, prompt=prompt, max_tokens=2, temperature=0.7, top_p=0.9, seed=3
    )
    text = expected(server, name, prompt, 2, temperature=0.7, top_p=0.9, seed=3)
    assert sampled.choices[0].text == text


@pytest.mark.parametrize(("name", "prompt"), PROMPTS)
def test_a_stream_adds_up_to_the_whole_reply(client: Any, name: str, prompt: str) -> None:
    options: Any = {
        "model": name,
        "prompt": prompt,
        "max_tokens": 30,
        "seed": 5,
        "n": 2,
        "stop": ["zz", "th"],
    }
    whole = client.completions.create(**options)
    texts, reasons, usages = ["", ""], [None, None], []
    for chunk in client.completions.create(**options, stream=True, stream_options={"include_usage": True}):
        assert chunk.object == "text_completion" and chunk.model == name
        usages += [chunk.usage] if chunk.usage else []
        for choice in chunk.choices:
            assert reasons[choice.index] is None  # nothing follows the end of a choice
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason
    assert texts == [choice.text for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert usages == [whole.usage]


def test_prompts_and_choices_are_in_order(server: Running, client: Any) -> None:
    reply = client.completions.create(
        model="play", prompt=["ROM", "I take"], n=2, max_tokens=5, temperature=0, echo=True
    )
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    assert [choice.text[:6] for choice in reply.choices[2:]] == ["I take"] * 2
    assert (
        reply.choices[0].text
        == reply.choices[1].text
        == "ROM" + expected(server, "play", "ROM", 5, temperature=0)
    )
    assert reply.usage.prompt_tokens == 9 and reply.usage.completion_tokens == 20
    assert {choice.finish_reason for choice in reply.choices} == {"length"}


def test_a_text_ends_at_a_stop(server: Running, client: Any) -> None:
    text = expected(server, "play", "ROM", 30, temperature=0)
    stop = text[7:10]
    reply = client.completions.create(model="play", prompt="ROM", max_tokens=30, temperature=0, stop=stop)
    assert reply.choices[0].text == text[: text.index(stop)]
    assert reply.choices[0].finish_reason == "stop"
    streamed = client.completions.create(
        model="play", prompt="ROM", max_tokens=30, temperature=0, stop=stop, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in streamed) == text[: text.index(stop)]


def test_the_end_of_a_text_is_a_stop(server: Running, client: Any) -> None:
    """A language model of texts generates an end token within its context sooner or later."""
    reply = client.completions.create(model="language-model", prompt="", max_tokens=1500, n=4, seed=1)
    assert all(choice.finish_reason == "stop" or len(choice.text.split()) > 100 for choice in reply.choices)
    assert "stop" in {choice.finish_reason for choice in reply.choices}


def test_many_clients_get_the_texts_of_one(server: Running, client: Any) -> None:
    """Sequences of other clients, which join and leave between, change nothing."""
    asked = [
        {
            "model": "play",
            "prompt": "I take thee"[: 3 + number % 8],
            "max_tokens": 3 + 5 * (number % 7),
            "temperature": (0, 0.5, 1.5)[number % 3],
            "seed": number,
        }
        for number in range(24)
    ]
    alone = [client.completions.create(**each).choices[0].text for each in asked]
    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(lambda each: client.completions.create(**each).choices[0].text, asked))
    assert together == alone


def test_a_seed_is_drawn_if_none_is_given(client: Any) -> None:
    texts = {
        client.completions.create(model="play", prompt="R", max_tokens=12, temperature=2).choices[0].text
        for _ in range(4)
    }
    assert len(texts) > 1


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        ({"model": "nothing"}, 404, "no run of this name"),
        ({"model": "reversal"}, 400, "not a text language model"),
        ({"prompt": "x" * 17}, 400, "the prompt has 17 tokens, and the model reads at most 16"),
        ({"prompt": ["x", "x" * 17]}, 400, "17 tokens"),
        ({"max_tokens": 0}, 400, "must be"),
        ({"temperature": -1}, 400, "must be"),
        ({"top_p": 0}, 400, "must be"),
        ({"n": 1000}, 400, "must be"),
        ({"logprobs": 3}, 400, "does not support the option"),
        ({"logprobs": True}, 400, "does not support the option"),
        ({"suffix": "x"}, 400, "does not support the option"),
        ({"best_of": 2}, 400, "does not support the option"),
        ({"logit_bias": {"5": 1}}, 400, "does not support the option"),
        ({"presence_penalty": 1}, 400, "does not support the option"),
        ({"frequency_penalty": 0.5}, 400, "does not support the option"),
        ({"prompt": [1, 2]}, 400, "must be a valid string"),
        ({"seed": 2**63}, 400, "must be"),
        ({"stop": [""]}, 400, "must have"),
        ({"extra_body": {"min_p": 1}}, 400, "unknown option"),
    ],
)
def test_wrong_requests(client: Any, options: dict[str, Any], status: int, message: str) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        client.completions.create(**{"model": "play", "prompt": "ROM"} | options)
    assert refused.value.status_code == status
    assert message in refused.value.body["message"]
    assert refused.value.body["hint"] and "glassformer options" not in refused.value.body["hint"]
    assert refused.value.param is not None


def test_options_at_their_defaults_are_accepted(server: Running, client: Any) -> None:
    """Clients and proxies send the defaults of OpenAI, and null for what is not set."""
    defaults = {"best_of": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "echo": False, "n": 1}
    nulls = dict.fromkeys(("logprobs", "suffix", "logit_bias", "stop", "stream", "user", "top_p"))
    body = {"model": "play", "prompt": "ROM", "max_tokens": 5, "temperature": 0, **defaults, **nulls}
    text = server.post("/v1/completions", body)["choices"][0]["text"]
    assert text == expected(server, "play", "ROM", 5, temperature=0)
    for seed in (-1, 2**63 - 1):
        options: Any = {"model": "play", "prompt": "R", "max_tokens": 8, "temperature": 2, "seed": seed}
        first, second = (client.completions.create(**options).choices[0].text for _ in range(2))
        assert first == second


def test_chunks_of_a_stream_have_usage_only_if_it_is_asked_for(server: Running) -> None:
    body = {"model": "play", "prompt": "ROM", "max_tokens": 3, "stream": True, "echo": True}
    for options in (None, {"include_usage": True}):
        _, headers, reply = server.request("POST", "/v1/completions", body | {"stream_options": options})
        assert headers["content-type"].startswith("text/event-stream")
        *events, done = reply.decode().removesuffix("\n\n").split("\n\n")
        assert done == "data: [DONE]"
        chunks = [json.loads(event.removeprefix("data: ")) for event in events]
        assert chunks[0]["choices"][0]["text"] == "ROM"
        if options is None:
            assert not any("usage" in chunk for chunk in chunks)
        else:
            assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
            assert chunks[-1] == chunks[-1] | {
                "choices": [],
                "usage": {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6},
            }


class Letters:
    """Task whose tokens are the letters of the alphabet."""

    def show_output(self, tokens: Sequence[int]) -> str:
        return "".join(chr(ord("a") + token) for token in tokens)


def completion(*stops: str) -> Completion:
    task: Any = Letters()
    continuation = Continuation([0, 1], 10, GreedyConfig())
    return Completion(0, task, "ab", continuation, stops, lambda: None)


def test_a_request_sees_only_what_was_searched_for_stops() -> None:
    """The worker appends a token before it searches for stop texts; a request may read between the two."""
    made = completion("yz")
    made.continuation.tokens += [2, 24]
    made.stream.on_token()
    assert made.text() == "c" and made.finish_reason is None  # "y" may be the beginning of the stop
    made.continuation.tokens.append(25)
    made.continuation.ending = "length"
    assert made.text() == "c" and not made.is_done and made.finish_reason is None
    made.stream.on_token()
    assert made.text() == "c" and made.is_done and made.finish_reason == "stop"
    assert made.continuation.is_cancelled


def test_a_text_that_cannot_be_decoded_ends_with_an_error() -> None:
    made = completion("yz")
    made.continuation.tokens.append(1 << 40)
    made.stream.on_token()
    assert made.is_done and made.stream.error is not None and made.stream.error.status == 500


def test_a_client_that_leaves_before_the_first_event_frees_its_work(server: Running) -> None:
    async def leave() -> CompletionRequest:
        asked = CompletionRequest(
            server.run("play"), CompletionBody(model="play", prompt="ROM", max_tokens=4096, stream=True)
        )
        asked.submit()

        async def receive() -> Message:
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            await asyncio.sleep(60)  # the connection takes nothing any more

        scope: Any = {"type": "http", "asgi": {"spec_version": "2.3"}}
        async with asyncio.timeout(20):
            await CompletionStream(asked)(scope, receive, send)
        return asked

    asked = asyncio.run(leave())
    assert all(made.continuation.is_cancelled for made in asked.completions)


def test_a_client_that_disconnects_frees_its_work(server: Running) -> None:
    body = {"model": "play", "prompt": "ROM", "max_tokens": 4096, "n": 8, "stream": True, "seed": 1}
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n"
    batcher = server.run("play").batcher
    with socket.create_connection(("127.0.0.1", server.port), 20) as opened:
        opened.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + data)
        assert opened.recv(1 << 12).startswith(b"HTTP/1.1 200")
        deadline = time.monotonic() + 20
        while not batcher._streams and time.monotonic() < deadline:
            time.sleep(0.001)
        assert batcher._streams
    deadline = time.monotonic() + 20
    while batcher._streams and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not batcher._streams


def test_models_by_the_client(client: Any) -> None:
    assert "play" in [model.id for model in client.models.list()]
    assert client.models.retrieve("play").owned_by == "glassformer"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nothing")
