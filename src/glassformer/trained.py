"""A trained model with its task: ask it, measure it, look inside."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import glassformer.models.transformer
import glassformer.tasks  # noqa: F401  registers the kinds
from glassformer.config import (
    unflatten,
    validate,
)
from glassformer.errors import Problem, user_error
from glassformer.evaluation.evaluator import EvaluationConfig, evaluate
from glassformer.experiment import Experiment, ExperimentConfig
from glassformer.inspection.capture import attention_maps
from glassformer.inspection.maps import AttentionMaps, Place
from glassformer.inspection.reading import read
from glassformer.inspection.selection import Selection
from glassformer.runs import CONFIG, RunFolder
from glassformer.tasks.answering import Answer
from glassformer.training.checkpoints import DamagedCheckpoint
from glassformer.training.precision import choose_device


class Run:
    """A trained model with its task: ask it, measure it, look inside."""

    def __init__(self, path: str | Path, checkpoint: str = "best") -> None:
        self.folder = RunFolder.open(Path(path))
        self.path = self.folder.path
        self.config = validate(ExperimentConfig, self.folder.config())
        self.task = self.config.task.restore(self.folder.task_state(), self.config.seed)
        store = self.folder.checkpoints()
        self.checkpoint = store.find(checkpoint)
        try:
            tensors = store.load(self.checkpoint, ["model", "averaged"]).tensors
        except DamagedCheckpoint as damage:
            others = [name for name in reversed(store.names()) if name != self.checkpoint]
            raise user_error(
                f"the checkpoint is damaged: {damage}",
                place=str(self.path),
                remedy=f"--checkpoint {others[0]}" if others else "restore the folder from a copy",
            ) from None
        with torch.random.fork_rng(devices=[]):
            self.model = self.config.model.build(self.task.shape)
        try:
            self.model.load_state_dict(dict(tensors.get("averaged", tensors["model"])))
        except RuntimeError:
            raise user_error(
                f"does not describe the model of {self.checkpoint}",
                place=str(self.path / CONFIG),
                remedy="restore it from a copy of the run",
            ) from None
        self.model.to(choose_device("auto")).eval()

    def evaluate(
        self, split: str | None = None, overrides: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """What `evaluate --json` prints; without a split it is the test set, if there is one."""
        if split is None:
            split = "test" if "test" in self.task.splits else "validation"
        if split not in self.task.splits:
            raise user_error("no such split", place="split", value=split, allowed=sorted(self.task.splits))
        config = self.config.evaluation
        if overrides:
            config = self.config.with_overrides({"evaluation": unflatten(overrides)}).evaluation
        metrics = evaluate(self.model, self.task, split, config)
        examples = min(len(self.task.splits[split]), config.max_examples or math.inf)
        return {
            "run": str(self.path),
            "split": split,
            "examples": int(examples),
            "metrics": metrics,
            "protocol": {
                "checkpoint": self.checkpoint,
                "seed": self.config.seed,
                "config": self.config.fingerprint(),
                "data_sha256": self.folder.environment().get("data_sha256"),
                "decoding": config.decoding.dump(),
                "padding": "never counted",
            },
        }

    def predict(self, text: str, decoding: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """One element of what `predict --json` prints; what cannot be answered has an `error` instead."""
        empty: dict[str, Any] = {
            "input": text,
            "output": None,
            "probability": None,
            "error": None,
            "caution": None,
            "answers": [],
        }
        strategy = self.config.evaluation.decoding
        if decoding:
            strategy = validate(EvaluationConfig, {"decoding": dict(decoding)}).decoding
        try:
            tokens = self.task.parse(text)
            (answers,) = self.task.answer(self.model, [tokens], strategy)
        except Problem as problem:
            return empty | {"error": problem.problem}
        shown = [self._show(answer) for answer in answers]
        return empty | {
            "output": shown[0]["output"],
            "probability": shown[0]["probability"],
            "caution": self.task.caution(tokens.tolist()),
            "answers": shown,
        }

    def attention(
        self,
        text: str | None = None,
        *,
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        rows: tuple[int, int] | None = None,
        part: Place | None = None,
        is_untrained: bool = False,
    ) -> AttentionMaps:
        """The maps for an input as the model reads and answers it; without one, for the first test example.

        All layers, heads, rows (queries) and parts (`encoder`, `decoder`, `cross`) unless some are chosen.
        With `is_untrained`, those of the same model with its first weights: what training has not made.
        """
        tokens = self._first_example() if text is None else self.task.parse(text)
        model = Experiment(self.config, self.task).build_model() if is_untrained else self.model
        reading = read(model, self.task, tokens, self.config.evaluation.decoding)
        about = {
            "run": self.path.name,
            "checkpoint": "untrained" if is_untrained else self.checkpoint,
            "input": text or " ".join(self.task.input_symbols(tokens.tolist())),
            "output": "" if reading.answer is None else self._show(reading.answer)["output"],
        }
        return attention_maps(model, reading, Selection(layers, heads, rows, part), about)

    def _repr_html_(self) -> str:
        return self.folder._repr_html_()

    def _first_example(self) -> np.ndarray:
        examples = self.task.splits.get("test") or self.task.splits["validation"]
        return np.asarray(examples.inputs[0]).astype(np.int64)

    def _show(self, answer: Answer) -> dict[str, Any]:
        if answer.value is not None:
            return {"output": f"{answer.value:.6g}", "probability": None, "steps": []}
        symbols = self.task.output_symbols(answer.tokens)
        steps = [
            {"token": symbol, "probability": probability}
            for symbol, probability in zip(symbols, answer.probabilities, strict=False)
        ]
        output = self.task.show_output(answer.tokens)
        return {"output": output, "probability": answer.probability, "steps": steps}
