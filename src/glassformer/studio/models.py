"""Inference for the page: a worker thread with a short queue, a cache of loaded models, and the routes.

Trainings have priority, so the worker uses at most half of the cores and no accelerator. If a client
disconnects, its job ends before the next layer of the model.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from glassformer.core.cache import LRUCache
from glassformer.core.config import Node, validate
from glassformer.core.errors import ErrorDetail, UserError
from glassformer.core.registry import kinds
from glassformer.generation import DecodingConfig
from glassformer.inspection.attribution import rollout
from glassformer.inspection.examples import first_input
from glassformer.inspection.maps import AttentionMaps
from glassformer.inspection.patching import Direction
from glassformer.inspection.probes import label_names
from glassformer.inspection.record import attentions
from glassformer.inspection.statistics import explain
from glassformer.models.base import Model
from glassformer.models.task_types import Seq2Seq
from glassformer.plotting.page import describe
from glassformer.runs.experiment import Experiment, ExperimentConfig
from glassformer.runs.folder import CONFIG, RunFolder
from glassformer.runs.run import Run
from glassformer.studio import limits
from glassformer.studio.maps import MEDIA_TYPES, exact_rows, export_bytes, map_bytes
from glassformer.studio.messages import (
    AttentionBody,
    AttributeBody,
    HeadsBody,
    InputBody,
    InterveneBody,
    LensBody,
    PatchBody,
    ProbeBody,
    TraceBody,
)
from glassformer.tasks.base import CausalLMTask, Task, evaluated_rows, mark_unknown
from glassformer.web.limits import RETRY_SECONDS
from glassformer.web.messages import bytes_reply, error_document, json_reply, query_number, read_body, refusal

if TYPE_CHECKING:
    from glassformer.studio.app import Studio


Result = TypeVar("Result")
Body = TypeVar("Body", bound=Node)
Handler = Callable[["Studio", Request], Awaitable[Response]]


class Cancelled(BaseException):
    """Exception that cancels a job whose client has disconnected. No `except Exception` can swallow it."""


@dataclass(frozen=True)
class Job:
    """Call for the worker thread, with a future for its result and an event that cancels it."""

    work: Callable[[], Any]
    future: Future[Any] = field(default_factory=Future)
    is_cancelled: threading.Event = field(default_factory=threading.Event)


class Worker:
    """Worker thread that runs jobs with models, one at a time."""

    def __init__(self, max_queued: int = limits.QUEUED_JOBS) -> None:
        self._jobs: queue.Queue[Job | None] = queue.Queue(maxsize=max_queued)
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[], Result]) -> asyncio.Future[Result]:
        """Queue a call and return a future of its result. Cancelling the future removes a waiting call."""
        return asyncio.wrap_future(self._enqueue(work).future)

    def _enqueue(self, work: Callable[[], Any]) -> Job:
        self._start()
        job = Job(work)
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            raise refusal(
                503,
                "the model is busy",
                retry_after=RETRY_SECONDS,
                hint="repeat the request when the other requests are done",
            ) from None
        return job

    async def run(self, work: Callable[[], Result], request: Request) -> Result:
        """Run a call for a client and return its result. If the client disconnects, cancel the call."""
        job = self._enqueue(work)
        result: asyncio.Future[Result] = asyncio.wrap_future(job.future)
        disconnect = asyncio.ensure_future(_disconnected(request))
        both: list[asyncio.Future[Any]] = [result, disconnect]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            disconnect.cancel()
            if not result.done():
                job.is_cancelled.set()
                result.cancel()
        if result.cancelled():
            raise refusal(499, "the client has disconnected")
        return result.result()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="model", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Cancel the queued jobs; a running job ends with the process."""
        with contextlib.suppress(queue.Empty):
            while (job := self._jobs.get_nowait()) is not None:
                job.future.cancel()
        self._jobs.put(None)

    def _work(self) -> None:
        import torch

        # Not by niceness: a low-priority thread that waits for a core would hold the interpreter lock.
        torch.set_num_threads(max(1, min(torch.get_num_threads(), (os.cpu_count() or 2) // 2)))
        while (job := self._jobs.get()) is not None:
            if not job.future.set_running_or_notify_cancel():
                continue
            try:
                with _cancelling(job.is_cancelled):
                    job.future.set_result(job.work())
            except BaseException as error:  # raised where the result is awaited
                job.future.set_exception(error)
            del job  # it would keep a run in memory until the next job


@contextlib.contextmanager
def _cancelling(is_cancelled: threading.Event) -> Iterator[None]:
    """Make models in this thread raise `Cancelled` before their next module call once the event is set.

    A global hook makes every use of a model cancellable without a change of the code that uses it.
    """
    from torch.nn.modules.module import register_module_forward_pre_hook

    thread = threading.get_ident()

    def check(module: Any, arguments: Any) -> None:
        if is_cancelled.is_set() and threading.get_ident() == thread:
            raise Cancelled

    hook = register_module_forward_pre_hook(check)
    try:
        yield
    finally:
        hook.remove()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


Key = tuple[str, str, int, int]
"""Run folder, checkpoint name, and the modification times of the config and the checkpoint in ns."""


class LoadedRuns:
    """LRU cache of loaded models by run and checkpoint. Only the worker thread uses it."""

    def __init__(self, max_runs: int = limits.LOADED_RUNS) -> None:
        self._loaded: LRUCache[Key, Run] = LRUCache(max_runs)

    def key(self, folder: RunFolder, checkpoint: str | None) -> Key:
        """Return the cache key of a checkpoint. File times differ if the run was trained again."""
        name = folder.checkpoints().find(checkpoint or "best")
        config = os.stat(folder.path / CONFIG)
        weights = os.stat(folder.path / "checkpoints" / name)
        return str(folder.path), name, config.st_mtime_ns, weights.st_mtime_ns

    def get(self, folder: RunFolder, checkpoint: str | None) -> Run:
        key = self.key(folder, checkpoint)
        run = self._loaded.get(key)
        if run is None:
            run = Run(folder.path, key[1], self._task_of(key), device="cpu")
            self._loaded.add(key, run)
        return run

    def _task_of(self, key: Key) -> Task | None:
        """Return the task if another checkpoint of the run is loaded, so that data is read only once."""
        for other, run in self._loaded.items():
            if (other[0], other[2]) == (key[0], key[2]):
                return run.task
        return None


BINARY = "application/octet-stream"
EXAMPLES = 8
LOADING_SECONDS = 1.0
"""Seconds that a request waits for a model to load. Then the reply is pending, and the page asks again."""

UNKNOWN: dict[str, Any] = {
    **dict.fromkeys(
        ("sites", "examples", "decoding", "generates", "has_source", "labels", "max_length", "explanations")
    ),
    "is_pending": True,
}


async def model_info(studio: Studio, folder: RunFolder) -> dict[str, Any]:
    """Return what the page must know about a model: example inputs, layers, heads and decoding methods."""
    key = (folder.path, os.stat(folder.path / CONFIG).st_mtime_ns)
    cached = studio.model_infos.get(key)
    if cached is None:
        # Refused if the queue is full; the page tries again.
        cached = studio.worker.submit(lambda: _describe_model(studio, folder))
        cached.add_done_callback(_retrieve)
        studio.model_infos.add(key, cached)
    done, _ = await asyncio.wait([cached], timeout=LOADING_SECONDS)
    if not done:
        return UNKNOWN
    error = cached.exception()
    if error is not None:
        if not isinstance(error, (UserError, ErrorDetail)):
            raise error
        studio.model_infos.remove(key)  # the cause may be repaired before the next request
        return {**UNKNOWN, "is_pending": False, "error": str(error).splitlines()[0]}
    result: dict[str, Any] = cached.result()
    return result


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Retrieve the exception of a future, because asyncio logs exceptions that are never retrieved."""
    if not future.cancelled():
        future.exception()


def _describe_model(studio: Studio, folder: RunFolder) -> dict[str, Any]:
    if folder.checkpoints().names():
        run = studio.loaded.get(folder, None)
        task, model = run.task, run.model
    else:
        config = validate(ExperimentConfig, folder.config())
        task = folder.restore_task(config.task, config.seed)
        model = Experiment(config, task).build_model()
    generates = task.generates_outputs or isinstance(task, CausalLMTask)
    return {
        "sites": _sites(model),
        "examples": _examples(task),
        "decoding": sorted(kinds(DecodingConfig)) if generates else [],
        "generates": generates,
        "has_source": isinstance(task.task_type, Seq2Seq),
        "labels": label_names(task),
        "max_length": getattr(task.task_type, "max_length", None),
        "explanations": {site: explain(site, task.pattern_explanations) for site in _sites(model)},
        "is_pending": False,
    }


def _sites(model: Model) -> dict[str, dict[str, int]]:
    sites: dict[str, dict[str, int]] = {}
    for attention, site in attentions(model).items():
        counts = sites.setdefault(site, {"layers": 0, "heads": 0})
        counts["layers"] += 1
        counts["heads"] = max(counts["heads"], attention.num_heads)
    return sites


def _examples(task: Task) -> list[str]:
    """Return the first test inputs as the data have them, without those that the task cannot parse."""
    found: list[str] = []
    split = "test" if task.splits.get("test") else "validation"
    indices = range(min(len(task.splits[split]), 4 * EXAMPLES))
    for text in task.input_texts(split, indices, evaluated_rows(task, split, indices)):
        if text and len(text) <= limits.INPUT_CHARACTERS and text not in found and _is_parsable(task, text):
            found.append(text)
    return found[:EXAMPLES]


def _is_parsable(task: Task, text: str) -> bool:
    try:
        task.parse(text)
    except ErrorDetail:
        return False
    return True


def _route(body_type: type[Body], work: Callable[[Studio, RunFolder, Body], Any]) -> Handler:
    """Return a route handler that reads a request body and runs `work` on a model of the run."""

    async def handler(studio: Studio, request: Request) -> Response:
        folder = studio.folder.open(request.path_params["run"])
        body = await read_body(request, body_type)
        return await studio.ask_model(request, work, studio, folder, body)

    return handler


def _attention(studio: Studio, folder: RunFolder, body: AttentionBody) -> dict[str, Any]:
    if body.rollout and (body.layers or body.heads or body.rows):
        raise ErrorDetail(
            "a rollout uses every layer, head and row",
            path="rollout",
            hint="leave layers, heads and rows out",
        )
    run = studio.loaded.get(folder, body.checkpoint)
    maps = run.attention(
        body.input,
        layers=body.layers,
        heads=body.heads,
        rows=None if body.rows is None else (body.rows[0], body.rows[1]),
        untrained=body.untrained,
        decoding=body.decoding,
        node=body.node,
    )
    if body.rollout:
        maps = rollout(maps)
    return _shown(studio, run, maps) | {"command": studio.commands.attention(folder, body)}


def _shown(studio: Studio, run: Run, maps: AttentionMaps) -> dict[str, Any]:
    parts = mark_unknown(run.task, maps.about.get("input", ""))
    input_parts = [{"text": text, "is_unknown": is_unknown} for text, is_unknown in parts]
    return {
        "map": studio.maps.add(maps),
        "about": maps.about,
        "input_parts": input_parts,
        **describe(maps),
    }


def _trace(studio: Studio, folder: RunFolder, body: TraceBody) -> dict[str, Any]:
    run = studio.loaded.get(folder, body.checkpoint)
    traced = run.trace(body.input, body.decoding, body.alternatives)
    # An empty decoding is the run's own; with one, the maps also cover the generated tokens.
    decoding = None if traced.nodes is None else body.decoding or {}
    document = traced.document() | {"command": studio.commands.trace(folder, body)}
    try:
        shown = _shown(studio, run, run.attention(body.input, decoding=decoding))
    except ErrorDetail as detail:  # such as too little memory for the maps: the trace is still useful
        return document | {"map": None, "attention": None, "map_error": error_document(detail)}
    return document | {"map": shown["map"], "attention": shown}


def _lens(studio: Studio, folder: RunFolder, body: LensBody) -> dict[str, Any]:
    found = studio.loaded.get(folder, body.checkpoint).logit_lens(body.input, body.alternatives)
    return found.document() | {"command": studio.commands.lens(folder, body)}


def _heads(studio: Studio, folder: RunFolder, body: HeadsBody) -> dict[str, Any]:
    run = studio.loaded.get(folder, body.checkpoint)
    key = studio.loaded.key(folder, body.checkpoint), body.examples
    known = studio.heads.get(key)
    if known is None:
        known = run.heads(body.examples) | {"command": studio.commands.heads(folder, body)}
        studio.heads.add(key, known)
    return known


async def known_heads(studio: Studio, request: Request) -> Response:
    folder = studio.folder.open(request.path_params["run"])
    query = request.query_params
    examples = query_number(request, "examples", HeadsBody().examples)
    body = validate(HeadsBody, {"checkpoint": query.get("checkpoint"), "examples": examples})
    known = studio.heads.get((await studio.read(studio.loaded.key, folder, body.checkpoint), body.examples))
    # 204, not 404: a browser would log an error, and statistics not measured yet are normal.
    return Response(status_code=204) if known is None else json_reply(request, known)


def _intervene(studio: Studio, folder: RunFolder, body: InterveneBody) -> dict[str, Any]:
    run = studio.loaded.get(folder, body.checkpoint)
    more: dict[str, Any] = {} if body.examples is None else {"examples": body.examples}
    where = (body.site, body.layer, body.head)
    effects = {
        "head": lambda: run.ablate_head(*where, body.ablation, text=body.input, **more),
        "edge": lambda: run.ablate_edge(body.input, *where, body.query, body.key, **more),
        "token": lambda: run.occlude(body.input, body.key, **more),
    }[body.kind]()
    return effects.document() | {"command": studio.commands.intervene(folder, body)}


def _patch(studio: Studio, folder: RunFolder, body: PatchBody) -> dict[str, Any]:
    run = studio.loaded.get(folder, body.checkpoint)
    direction: Direction = "noising" if body.noising else "denoising"
    found = run.patch(body.input, body.corrupted, sites=body.sites, direction=direction)
    return found.document() | {"command": studio.commands.patch(folder, body)}


def _attribute(studio: Studio, folder: RunFolder, body: AttributeBody) -> dict[str, Any]:
    run = studio.loaded.get(folder, body.checkpoint)
    found = run.attribute(body.input, body.method, output=body.output, rather_than=body.rather_than)
    document = found.document() | {"command": studio.commands.attribute(folder, body)}
    if not body.matrix or body.method == "logits":
        return document
    outputs, matrix = run.attribution_matrix(body.input, body.method)
    return document | {"outputs": outputs, "matrix": matrix.tolist()}


def _align(studio: Studio, folder: RunFolder, body: InputBody) -> dict[str, Any]:
    run = studio.loaded.get(folder, body.checkpoint)
    text = first_input(run.task)[1] if body.input is None else body.input
    return run.align(text).document() | {"command": studio.commands.align(folder, body, text)}


def _probe(studio: Studio, folder: RunFolder, body: ProbeBody) -> dict[str, Any]:
    """Fit probes of one label to all positions of a site together, which is what a chart by layer needs."""
    run = studio.loaded.get(folder, body.checkpoint)
    key = studio.loaded.key(folder, body.checkpoint), body.label, body.examples
    known = studio.heads.get(key)
    if known is None:
        found = run.probe(body.label, examples=body.examples)
        known = found.document() | {"command": studio.commands.probe(folder, body)}
        studio.heads.add(key, known)
    return known


async def map_cells(studio: Studio, request: Request) -> Response:
    return await studio.read(lambda: bytes_reply(request, map_bytes(*_asked(studio, request)), BINARY))


async def map_rows(studio: Studio, request: Request) -> Response:
    start = query_number(request, "start")
    stop = query_number(request, "stop", start + 1)
    return await studio.read(
        lambda: bytes_reply(request, exact_rows(*_asked(studio, request), start, stop), BINARY)
    )


def _asked(studio: Studio, request: Request) -> tuple[AttentionMaps, str, int, int]:
    maps = studio.maps.get(request.path_params["map"])
    return maps, request.path_params["site"], query_number(request, "layer"), query_number(request, "head")


async def export(studio: Studio, request: Request) -> Response:
    """Return a file with the maps. The worker thread draws it, because that takes long."""
    maps = studio.maps.get(request.path_params["map"])
    query = request.query_params
    ending = query.get("format", "png")
    layer, head = (query_number(request, name) if name in query else None for name in ("layer", "head"))

    def drawn() -> Response:
        data = export_bytes(maps, ending, query.get("site"), layer, head)
        headers = {"Content-Disposition": f'attachment; filename="attention.{ending}"'}
        return bytes_reply(request, data, MEDIA_TYPES[ending], headers=headers)

    return await studio.worker.run(drawn, request)


attention = _route(AttentionBody, _attention)
trace = _route(TraceBody, _trace)
lens = _route(LensBody, _lens)
heads = _route(HeadsBody, _heads)
intervene = _route(InterveneBody, _intervene)
patch = _route(PatchBody, _patch)
attribute = _route(AttributeBody, _attribute)
align = _route(InputBody, _align)
probe = _route(ProbeBody, _probe)
