"""A trained model with its task: ask it, measure it, look inside."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

import glassformer.models.transformer
import glassformer.tasks  # noqa: F401  registers the kinds
from glassformer.blocks.heads import RegressionHead
from glassformer.core.config import unflatten, validate
from glassformer.core.errors import ErrorDetail, user_error
from glassformer.evaluation.evaluate import EvaluationConfig, measure
from glassformer.evaluation.metrics import Measured, Progress
from glassformer.evaluation.text_scores import one_line, sentence_table
from glassformer.generation import DecodingConfig
from glassformer.generation.predict import Prediction
from glassformer.inspection.ablation import (
    Ablation,
    Edge,
    Effects,
    ablate_each_head,
    edge_effects,
    head_effects,
    token_effects,
)
from glassformer.inspection.attribution import LogitLens, logit_lens, outputs, rollout, word_effects
from glassformer.inspection.examples import (
    ReferenceInput,
    choose_split,
    first_example,
    group_examples,
    prepare_input,
    reference_input,
)
from glassformer.inspection.heads import heads_document
from glassformer.inspection.maps import AttentionMaps, Selection, Site
from glassformer.inspection.record import HeadId, attention_maps
from glassformer.inspection.trace import Trace, prepare_node, trace
from glassformer.models.base import Model
from glassformer.runs.experiment import Experiment, ExperimentConfig
from glassformer.runs.folder import CONFIG_JSON, RunFolder
from glassformer.tasks.base import SequenceClassificationTask, Task
from glassformer.training.checkpoints import DamagedCheckpoint
from glassformer.training.precision import choose_device

MOST_CLASSES_SHOWN = 10
CLASSES_SHOWN_OF_MORE = 5


class Run:
    """A trained model with its task: ask it, measure it, look inside."""

    def __init__(
        self,
        path: str | Path,
        checkpoint: str = "best",
        task: Task | None = None,
        device: str = "auto",
    ) -> None:
        """`task` spares a caller who has it already the reading of the data."""
        self.folder = RunFolder.open(Path(path))
        self.path = self.folder.path
        self.config = validate(ExperimentConfig, self.folder.config())
        self.task = task or self.folder.restore_task(self.config.task, self.config.seed)
        store = self.folder.checkpoints()
        self.checkpoint = store.find(checkpoint)
        try:
            tensors = store.load(self.checkpoint, ["model", "averaged"]).tensors
        except DamagedCheckpoint as damage:
            others = [name for name in reversed(store.names()) if name != self.checkpoint]
            raise user_error(
                f"the checkpoint is damaged: {damage}",
                path=str(self.path),
                hint=f"--checkpoint {others[0]}" if others else "restore the folder from a copy",
            ) from None
        with torch.random.fork_rng(devices=[]):
            self.model = self.config.model.build(self.task.task_type)
        try:
            self.model.load_state_dict(dict(tensors.get("averaged", tensors["model"])))
        except RuntimeError:
            raise user_error(
                f"does not describe the model of {self.checkpoint}",
                path=str(self.path / CONFIG_JSON),
                hint="restore it from a copy of the run",
            ) from None
        self.model.to(choose_device(device)).eval()

    def evaluate(
        self,
        split: str | None = None,
        overrides: Mapping[str, Any] | None = None,
        *,
        hypotheses: str | Path | None = None,
        samples: int = 3,
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """What `evaluate --json` prints; without a split it is the test set, if there is one.

        `hypotheses` is a file for what the model writes, a line an example, in the order of the data.
        `samples` is how many best, typical and worst sentences stand in the details, where answers are text.
        """
        if split is None:
            split = "test" if "test" in self.task.splits else "validation"
        if split not in self.task.splits:
            raise user_error("no such split", path="split", value=split, allowed=sorted(self.task.splits))
        config = self.config.evaluation
        if overrides:
            config = self.config.with_overrides({"evaluation": unflatten(overrides)}).evaluation
        if hypotheses is not None:
            self._check_hypotheses(Path(hypotheses))
        measured = measure(self.model, self.task, split, config, progress=progress)
        if hypotheses is not None and measured.decoded is not None:
            lines = "".join(f"{one_line(line)}\n" for line in measured.decoded.lines)
            _write(Path(hypotheses), "wb", lines.encode("utf-8", errors="replace"))
        examples = min(len(self.task.splits[split]), config.max_examples or math.inf)
        return {
            "run": str(self.path),
            "split": split,
            "examples": int(examples),
            "metrics": measured.metrics,
            "intervals": {name: list(interval) for name, interval in measured.intervals.items()},
            "protocol": {
                "checkpoint": self.checkpoint,
                "seed": self.config.seed,
                "config": self.config.fingerprint(),
                "data_sha256": self.folder.environment().get("data_sha256"),
                "decoding": config.decoding.dump(),
                "padding": "never counted",
                **measured.protocol,
            },
            "warnings": self.folder.warnings(split),
            "details": measured.details | self._sentences(split, measured, samples),
        }

    def _check_hypotheses(self, path: Path) -> None:
        """Before the work is done."""
        if not self.task.generates_outputs:
            raise user_error(
                "the model of this run writes no answers",
                path=str(path),
                value=self.config.task.kind,
                hint="evaluate without it; predict shows single answers",
            )
        is_new = not path.exists()
        _write(path, "ab", b"")
        if is_new:
            path.unlink(missing_ok=True)

    def _sentences(self, split: str, measured: Measured, samples: int) -> dict[str, Any]:
        pairs = self.task.text_pairs(split)
        if pairs is None or measured.decoded is None or not samples:
            return {}
        sources, references = (
            [side[number] for number in measured.decoded.numbers.tolist()] for side in pairs
        )
        table = sentence_table(sources, measured.decoded.lines, references, samples)
        shown = [sentence.number for found in table.values() for sentence in found]
        numbers = [int(measured.decoded.numbers[number - 1]) for number in shown]
        places = dict(zip(shown, self.task.places(split, numbers), strict=True))
        return {
            "sentences": {
                which: [asdict(sentence) | {"place": places[sentence.number]} for sentence in found]
                for which, found in table.items()
            }
        }

    def predict(
        self, text: str, decoding: Mapping[str, Any] | None = None, *, why: bool = False
    ) -> dict[str, Any]:
        """One element of what `predict --json` prints; what cannot be answered has an `error` instead.

        With `why`, also which words carried a decision about the whole input.
        """
        if why and not isinstance(self.task, SequenceClassificationTask):
            raise user_error(
                "only for a model that gives one answer to the whole input",
                path="--why",
                hint="glassformer attention shows what the others look at",
            )
        empty: dict[str, Any] = {
            "input": text,
            "output": None,
            "probability": None,
            "error": None,
            "caution": None,
            "answers": [],
        }
        strategy = self._strategy(decoding)
        try:
            tokens = self.task.parse(text)
            (answers,) = self.task.predict(self.model, [tokens], strategy)
        except ErrorDetail as problem:
            return empty | {"error": problem.message}
        shown = [self._show(answer) for answer in answers]
        prediction = empty | {
            "output": shown[0]["output"],
            "probability": shown[0]["probability"],
            "caution": self.task.caution(tokens.tolist(), text),
            "answers": shown,
        }
        if isinstance(self.task, SequenceClassificationTask):
            prediction["probabilities"] = self._class_probabilities(self.task, tokens)
            if why:
                prediction["words"] = [asdict(word) for word in word_effects(self.model, self.task, text)]
        return prediction

    def _class_probabilities(
        self, task: SequenceClassificationTask, tokens: np.ndarray
    ) -> dict[str, float] | None:
        """The likeliest first; of many classes only the first few."""
        if isinstance(self.model.head, RegressionHead):
            return None
        probabilities = outputs(self.model, task, [tokens])[0].exp()
        count = len(probabilities)
        best = probabilities.topk(count if count <= MOST_CLASSES_SHOWN else CLASSES_SHOWN_OF_MORE)
        return {
            " ".join(task.output_symbols([number])): probability
            for number, probability in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        }

    def attention(
        self,
        text: str | None = None,
        *,
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        rows: tuple[int, int] | None = None,
        site: Site | None = None,
        untrained: bool = False,
        decoding: Mapping[str, Any] | None = None,
        node: int | None = None,
    ) -> AttentionMaps:
        """The maps for an input as the model reads and answers it; without one, for the first test example.

        All layers, heads, rows (queries) and parts (`encoder`, `decoder`, `cross`) unless some are chosen.
        With `untrained`, those of the same model with its first weights: what training has not made.
        `decoding` is how the answer is written, such as `{"kind": "beam"}`, and `node` the number of a
        node of that decoding's `trace`, chosen or dropped. With either, a language model's maps go on over
        what it writes.
        """
        tokens = self._tokens(text)
        model = self._untrained() if untrained else self.model
        about = {
            "run": self.path.name,
            "checkpoint": "untrained" if untrained else self.checkpoint,
            "input": text or self.task.show_input(tokens.tolist()),
        }
        if decoding is None and node is None:
            reading = prepare_input(model, self.task, tokens, self.config.evaluation.decoding)
            about["output"] = "" if reading.prediction is None else self._show(reading.prediction)["output"]
        else:
            reading, told = prepare_node(model, self.task, tokens, self._strategy(decoding), node)
            about |= told
        return attention_maps(model, reading, Selection(layers, heads, rows, site), about)

    def trace(
        self, text: str | None = None, decoding: Mapping[str, Any] | None = None, alternatives: int = 5
    ) -> Trace:
        """How the model came to its answer: each step with its alternatives, and the search tree."""
        return trace(self.model, self.task, self._tokens(text), self._strategy(decoding), alternatives)

    def heads(
        self,
        examples: int = 64,
        split: str | None = None,
        untrained: bool = False,
        ablate: Ablation | None = None,
    ) -> dict[str, Any]:
        """The statistics of every head, averaged over examples, beside those of the untrained model.

        With `untrained`, those of the untrained model alone. With `ablate`, also what each head is
        worth, as the method of that name finds it.
        """
        split = choose_split(self.task, split)
        groups = group_examples(self.task, split, examples)
        model = self._untrained() if untrained else self.model
        return {
            "run": str(self.path),
            "checkpoint": "untrained" if untrained else self.checkpoint,
            "split": split,
            **heads_document(model, None if untrained else self._untrained(), self.task, groups),
            "ablated": ablate
            and ablate_each_head(model, self.task, ablate, groups, self.config.evaluation.decoding),
        }

    def ablate_head(
        self,
        site: Site,
        layer: int,
        head: int,
        ablation: Ablation = "mean",
        examples: int = 64,
        split: str | None = None,
        text: str | None = None,
    ) -> Effects:
        """What a head is worth: the model without it, on examples, and its answer to `text` if there is one.

        `ablation`: the head adds nothing (`zero`), or always its mean over the examples (`mean`).
        """
        return head_effects(
            self.model,
            self.task,
            HeadId(site, layer, head),
            ablation,
            group_examples(self.task, choose_split(self.task, split), examples),
            asked=None if text is None else self._question(text),
            decoding=self.config.evaluation.decoding,
        )

    def ablate_edge(
        self,
        text: str | None,
        site: Site,
        layer: int,
        head: int,
        query: int,
        key: int,
        examples: int | None = None,
        split: str | None = None,
        renormalise: bool = True,
    ) -> Effects:
        """What one cell of a map is worth: the query may not read the key, in this head alone.

        With `examples`, the same cell is also cut in so many examples as long as this input. Without
        `renormalise` the rest of the row stays as it is, and does not fill the gap.
        """
        return edge_effects(
            self.model,
            self.task,
            Edge(HeadId(site, layer, head), query, key),
            self._question(text),
            split=choose_split(self.task, split),
            examples=examples,
            renormalise=renormalise,
            decoding=self.config.evaluation.decoding,
        )

    def occlude(
        self, text: str | None, position: int, examples: int = 16, split: str | None = None
    ) -> Effects:
        """What one token is worth: hidden behind others that stand at its place in so many examples."""
        return token_effects(
            self.model,
            self.task,
            self._question(text),
            position,
            split=choose_split(self.task, split),
            examples=examples,
            decoding=self.config.evaluation.decoding,
        )

    def rollout(self, text: str | None = None) -> AttentionMaps:
        """A hint: attention multiplied through all layers, one map per site."""
        return rollout(self.attention(text))

    def logit_lens(self, text: str | None = None, top: int = 5) -> LogitLens:
        """A hint: what the model would answer if it ended after each of its layers."""
        reading = prepare_input(self.model, self.task, self._tokens(text), self.config.evaluation.decoding)
        return logit_lens(self.model, self.task, reading, top)

    def _question(self, text: str | None) -> ReferenceInput:
        return reference_input(self.model, self.task, self._tokens(text), self.config.evaluation.decoding)

    def _strategy(self, decoding: Mapping[str, Any] | None) -> DecodingConfig:
        if not decoding:
            return self.config.evaluation.decoding
        return validate(EvaluationConfig, {"decoding": dict(decoding)}).decoding

    def _tokens(self, text: str | None) -> np.ndarray:
        """Of an input, or of the first example."""
        return first_example(self.task) if text is None else self.task.parse(text)

    def _untrained(self) -> Model:
        """The same model with its first weights."""
        model = Experiment(self.config, self.task).build_model()
        return model.to(next(self.model.parameters()).device).eval()

    def _repr_html_(self) -> str:
        return self.folder._repr_html_()

    def _show(self, answer: Prediction) -> dict[str, Any]:
        if answer.value is not None:
            return {"output": f"{answer.value:.6g}", "probability": None, "steps": []}
        symbols = self.task.output_symbols(answer.tokens)
        steps = [
            {"token": symbol, "probability": probability}
            for symbol, probability in zip(symbols, answer.probabilities, strict=False)
        ]
        output = self.task.show_output(answer.tokens)
        return {"output": output, "probability": answer.probability, "steps": steps}


def _write(path: Path, mode: Literal["ab", "wb"], data: bytes) -> None:
    try:
        with open(path, mode) as file:
            file.write(data)
    except OSError as error:
        raise user_error(
            f"cannot be written: {error.strerror or error}",
            path=str(path),
            hint="a file in a folder that exists and may be written to",
        ) from None
