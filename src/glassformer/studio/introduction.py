"""What a page must know of a run before it can ask its model: inputs to try, layers and heads, decoding.

It needs the task and the model, which may take a while to load: who asks before they are there gets none of
it, and asks again.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from glassformer.core.config import validate
from glassformer.core.errors import ErrorDetail, UserError
from glassformer.core.registry import kinds
from glassformer.generation import DecodingConfig
from glassformer.inspection.record import attentions
from glassformer.models.base import Model
from glassformer.runs.experiment import Experiment, ExperimentConfig
from glassformer.runs.folder import RunFolder
from glassformer.studio import limits
from glassformer.studio.state import Studio
from glassformer.tasks.base import CausalLMTask, Task

EXAMPLES = 8
PATIENCE_SECONDS = 1.0

UNKNOWN: dict[str, Any] = {
    "places": None,
    "examples": None,
    "decoding": None,
    "writes": None,
    "max_length": None,
    "is_pending": True,
}


async def introduce(studio: Studio, folder: RunFolder) -> dict[str, Any]:
    key = (folder.path, os.stat(folder.path / "config.yaml").st_mtime_ns)
    known = studio.introductions.get(key)
    if known is None:
        # Refused, if the worker has no room; the page asks again.
        known = studio.worker.submit(lambda: _introduction(studio, folder))
        known.add_done_callback(_retrieve)
        studio.introductions.add(key, known)
    done, _ = await asyncio.wait([known], timeout=PATIENCE_SECONDS)
    if not done:
        return UNKNOWN
    problem = known.exception()
    if problem is not None:
        if not isinstance(problem, (UserError, ErrorDetail)):
            raise problem
        studio.introductions.drop(key)  # what was wrong may have been put right when it is asked again
        return {**UNKNOWN, "is_pending": False, "problem": str(problem).splitlines()[0]}
    result: dict[str, Any] = known.result()
    return result


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Whoever asked may have left; that is no error to log."""
    if not future.cancelled():
        future.exception()


def _introduction(studio: Studio, folder: RunFolder) -> dict[str, Any]:
    if folder.checkpoints().names():
        run = studio.loaded.get(folder, None)
        task, model = run.task, run.model
    else:
        config = validate(ExperimentConfig, folder.config())
        task = folder.restore_task(config.task, config.seed)
        model = Experiment(config, task).build_model()
    writes = task.generates_outputs or isinstance(task, CausalLMTask)
    return {
        "places": _places(model),
        "examples": _examples(task),
        "decoding": sorted(kinds(DecodingConfig)) if writes else [],
        "writes": writes,
        "max_length": getattr(task.task_type, "max_length", None),
        "is_pending": False,
    }


def _places(model: Model) -> dict[str, dict[str, int]]:
    places: dict[str, dict[str, int]] = {}
    for attention, place in attentions(model).items():
        of_place = places.setdefault(place, {"layers": 0, "heads": 0})
        of_place["layers"] += 1
        of_place["heads"] = max(of_place["heads"], attention.num_heads)
    return places


def _examples(task: Task) -> list[str]:
    """The first inputs of the test set that a person could type."""
    found: list[str] = []
    examples = task.splits.get("test") or task.splits["validation"]
    for number in range(min(len(examples), 4 * EXAMPLES)):
        text = task.show_input([int(token) for token in examples.inputs[number]])
        if text and len(text) <= limits.INPUT_CHARACTERS and text not in found and _can_be_read(task, text):
            found.append(text)
    return found[:EXAMPLES]


def _can_be_read(task: Task, text: str) -> bool:
    try:
        task.parse(text)
    except ErrorDetail:
        return False
    return True
