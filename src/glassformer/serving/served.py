"""Served run: a loaded model with its worker thread, and what clients must know about it."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from glassformer.core.errors import ErrorDetail, UserError, user_error
from glassformer.generation import BeamConfig, DecodingConfig
from glassformer.generation.continuous import ContinuousBatch
from glassformer.generation.predict import PredictedText, decoding_mode
from glassformer.models.base import GenerativeModel
from glassformer.models.transformer import CausalLanguageModel
from glassformer.runs.ending import example_inputs
from glassformer.runs.prediction import describe_predictions, predict_texts
from glassformer.runs.run import Run
from glassformer.serving.batching import Batcher, Prediction, model_failure
from glassformer.serving.limits import BEAMS, Settings
from glassformer.serving.metrics import Metrics
from glassformer.tasks.base import Task
from glassformer.tasks.language import CausalLanguageTask
from glassformer.tasks.translation import TranslationTask
from glassformer.web.messages import Refusal

COMPARED = 16
"""Number of inputs of the data that are decoded to compare an engine with our own decoding."""


@dataclass(frozen=True)
class Languages:
    """Codes of the languages that a translation model reads and generates, such as `en` and `fr`."""

    source: str
    target: str


@dataclass
class ServedRun:
    """Run that the server offers under a name."""

    name: str
    run: Run
    languages: Languages | None
    batcher: Batcher
    examples: list[str] = field(default_factory=list)
    """Inputs of the run's data. An `ExampleReader` sets them, because it may take long to read them."""
    has_examples: threading.Event = field(default_factory=threading.Event)
    """Event that is set when the examples are read, or cannot be."""

    def set_examples(self, examples: list[str]) -> None:
        self.examples = examples
        self.has_examples.set()

    @property
    def task(self) -> Task:
        return self.run.task

    @property
    def completes(self) -> bool:
        """True if the run is a text language model, which /v1/completions needs."""
        return isinstance(self.task, CausalLanguageTask) and isinstance(self.run.model, CausalLanguageModel)

    @property
    def decodes(self) -> bool:
        """True if outputs are generated token by token, so that decoding options have an effect."""
        return self.task.generates_outputs or isinstance(self.run.model, GenerativeModel)

    @property
    def max_length(self) -> int:
        """Maximum number of input tokens."""
        return int(self.task.task_type.max_length)

    def info(self) -> dict[str, Any]:
        """Return what a client must know about the run, in the shape of OpenAI's model object."""
        languages = self.languages
        return {
            "id": self.name,
            "object": "model",
            "created": int(self.run.folder.path.stat().st_mtime),
            "owned_by": "glassformer",
            "task": self.run.config.task.kind,
            "task_type": type(self.task.task_type).__name__,
            "checkpoint": self.run.checkpoint,
            "max_length": self.max_length,
            "languages": None if languages is None else [languages.source, languages.target],
            "endpoints": self.endpoints,
            "examples": self.examples,
            "warnings": self.run.folder.training_warnings(),
        }

    @property
    def endpoints(self) -> list[str]:
        found = ["/v1/predict", "/v1/attention"]
        found += ["/v1/completions"] if self.completes else []
        return found + (["/translate"] if self.languages else [])

    def decoding(self, found: DecodingConfig | None) -> DecodingConfig:
        """Return the decoding strategy of a request, if the run has it; by default that of the run."""
        if found is None:
            return self.run.config.evaluation.decoding
        if not self.decodes:
            raise ErrorDetail(
                "this run does not generate its outputs token by token",
                path="decoding",
                hint="leave decoding out",
            )
        if isinstance(found, BeamConfig) and found.size > BEAMS:
            raise ErrorDetail(
                f"at most {BEAMS} beams are allowed",
                path="decoding.size",
                value=found.size,
                hint=f"use {BEAMS}",
            )
        self.run.decoder(found)
        return found

    def describe(self, inputs: Sequence[Any], found: Sequence[PredictedText]) -> list[dict[str, Any]]:
        """Return the predictions of one request as dicts. Raise a 500 `Refusal` if the model failed."""
        for each in found:
            if each.tokens is not None and not each.candidates:
                raise model_failure(each.error or "it has no output")
            for candidate in each.candidates[:1]:
                value = candidate.probability if candidate.value is None else candidate.value
                if value is not None and not math.isfinite(value):
                    raise model_failure("its output is NaN or infinite")
        return describe_predictions(self.run.model, self.task, inputs, found)


def load(
    name: str,
    path: Path,
    checkpoint: str,
    languages: Languages | None,
    settings: Settings,
    metrics: Metrics,
    engine: str | None = None,
    weights: Literal["fp32", "int8"] | None = None,
) -> ServedRun:
    """Load a run on the CPU, and start its worker thread. `engine` decodes; None: that of the run.

    `weights` is the number type of the matrices of predictions and completions. None: that of the run.
    """
    run = Run(path, checkpoint, device="cpu", engine=engine, weights=weights)
    decoder = run.decoder(run.config.evaluation.decoding)
    streams = None
    if isinstance(run.task, CausalLanguageTask) and isinstance(decoder, CausalLanguageModel):
        streams = ContinuousBatch(decoder, end=run.task.end, forbidden=run.task.forbidden)
    if languages is not None and not isinstance(run.task, TranslationTask):
        raise user_error(
            "this run does not translate", path="--languages", value=name, hint="name a translation run"
        )
    if languages is None and isinstance(run.task, TranslationTask):
        languages = detect_languages(run.task)
    batcher = Batcher(
        name,
        lambda inputs, decoding: predict_texts(run.decoder(decoding), run.task, inputs, decoding),
        streams,
        settings,
        metrics,
        fast_mode=lambda: decoding_mode(decoder),
    )
    served = ServedRun(name, run, languages, batcher)
    if run.has_engine:
        _compare_engine(served)
    return served


def _compare_engine(served: ServedRun) -> None:
    """Decode inputs of the data once, because an engine compares its first outputs with our own decoding.

    Without data, the first request is compared.
    """
    inputs: list[str] = []
    with contextlib.suppress(UserError, OSError):
        inputs = example_inputs(served.task, COMPARED)
    if not inputs:
        return
    job = Prediction(inputs, served.decoding(None))
    served.batcher.submit(job)
    try:
        job.future.result()
    except Refusal as refused:
        served.batcher.stop()
        raise UserError(refused.detail) from None


def detect_languages(task: TranslationTask) -> Languages | None:
    """Return the languages that the names of the data files or columns state, or None.

    The generated sentences are English and French. Files such as `train.en` and `train.fr` have their
    languages as endings.
    """
    data = task.config.data
    if data is None:
        return Languages("en", "fr")
    names: list[str] = []
    if isinstance(data.train, (list, tuple)):
        names = [Path(str(each)).suffix.removeprefix(".") for each in data.train]
    elif data.columns:
        names = [str(data.columns.get(role, "")) for role in ("input", "target")]
    is_code = len(names) == 2 and all(
        len(each) in (2, 3) and each.isascii() and each.isalpha() and each not in ("txt", "tsv", "csv")
        for each in names
    )
    return Languages(names[0].lower(), names[1].lower()) if is_code and names[0] != names[1] else None
