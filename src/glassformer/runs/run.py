"""Trained model with its task: evaluate, predict, generate and inspect."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import torch

from glassformer.core.config import unflatten, validate
from glassformer.core.errors import ErrorDetail, UserError, user_error
from glassformer.data.readers import Format
from glassformer.data.text_files import printable
from glassformer.evaluation.evaluate import EvaluationConfig, measure
from glassformer.evaluation.metrics import Measured, Progress
from glassformer.evaluation.text_scores import one_line, sentence_table
from glassformer.generation import DecodingConfig
from glassformer.generation.predict import PredictedText, Prediction, run_concurrently
from glassformer.generation.strategies import SampleConfig
from glassformer.models.base import Model
from glassformer.runs.experiment import Experiment, ExperimentConfig
from glassformer.runs.folder import CONFIG_JSON, RunFolder
from glassformer.tasks.base import SequenceClassificationTask, Task
from glassformer.tasks.language import CausalLanguageTask, warn_about_prompt
from glassformer.tasks.tokens import TokensTask
from glassformer.training.checkpoints import DamagedCheckpoint
from glassformer.training.precision import choose_device

if TYPE_CHECKING:  # imported in the methods that inspect: training evaluates runs, and does not inspect them
    from glassformer.inspection.ablation import Ablation, Effects
    from glassformer.inspection.attribution import LogitLens
    from glassformer.inspection.examples import ReferenceInput
    from glassformer.inspection.maps import AttentionMaps, Site
    from glassformer.inspection.trace import Trace
    from glassformer.runs.predict_file import FileSummary

MAX_CLASSES_SHOWN = 10
"""Maximum number of classes for which a prediction lists the probability of every class."""
CLASSES_SHOWN_OF_MORE = 5
"""Number of classes that a prediction lists if there are more than MAX_CLASSES_SHOWN."""
BATCH_ROWS = 64
"""Maximum number of inputs per batch in `predict`."""
BATCH_TOKENS = 8192
"""Maximum number of tokens per batch in `predict`, including padding."""
SINGLE_TOKENS = "read as an input of one token; join the tokens of one input, or pass them as [[...]]"
"""Warning for a list of texts that has one token per text."""


class Run:
    """Trained model with its task: evaluate, predict, generate and inspect.

    run = Run("runs/reversal-1")
    run.evaluate("test"); run.predict(["3 1 4", "1 5 9"]); run.attention("3 1 4")
    """

    def __init__(
        self,
        path: str | Path,
        checkpoint: str = "best",
        task: Task | None = None,
        device: str = "auto",
    ) -> None:
        """Load a checkpoint (`best`, `latest`, a step number or a name) of the run at `path`.

        Pass a loaded `task` to avoid reading the data again.
        """
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
                hint=f"use --checkpoint {others[0]}" if others else "restore the folder from a copy",
            ) from None
        with torch.random.fork_rng(devices=[]):
            self.model = self.config.model.build(self.task.task_type)
        try:
            self.model.load_state_dict(dict(tensors.get("averaged", tensors["model"])))
        except RuntimeError:
            raise user_error(
                f"the file does not describe the model of {self.checkpoint}",
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
        """Evaluate the model on a split (default: `test`, or `validation` if there is no test split).

        Return the dict that `evaluate --json` prints. `overrides` change `evaluation` options. `hypotheses`
        is a file to write the generated outputs to, one line per example in the order of the data. For text
        outputs, `samples` is how many of the best, typical and worst sentences the details show.
        """
        split = self._split(split)
        config = self.config.evaluation
        if overrides:
            config = self.config.with_overrides({"evaluation": unflatten(overrides)}).evaluation
        if hypotheses is not None:
            self._check_hypotheses(Path(hypotheses))
        changed = self._changed_data()
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
            "warnings": changed + self.folder.warnings(split) + self.folder.training_warnings(split),
            "details": measured.details | self._sentences(split, measured, samples),
        }

    def _changed_data(self) -> list[str]:
        """Return a warning if the data are not those of the training; raise an error if the run has them."""
        data = getattr(self.config.task, "data", None)
        if data is None or self.task.checksum() == self.folder.environment().get("data_sha256"):
            return []
        message = "the data have changed since the run started"
        train = getattr(data, "train", None)
        if isinstance(train, str) and (self.path / "data").resolve() == Path(train).resolve().parent:
            raise user_error(message, path=str(self.path / "data"), hint="restore the files in this folder")
        return [f"WARNING: {message}: examples of training may be among those that are measured"]

    def _check_hypotheses(self, path: Path) -> None:
        """Raise UserError if the model does not generate outputs, or if the file cannot be written."""
        if not self.task.generates_outputs:
            raise user_error(
                "the model does not generate outputs that could be written to this file",
                path=str(path),
                value=self.config.task.kind,
                hint="evaluate without --hypotheses; glassformer predict shows single predictions",
            )
        is_new = not path.exists()
        _write(path, "ab", b"")
        if is_new:
            path.unlink(missing_ok=True)

    def _sentences(self, split: str, measured: Measured, samples: int) -> dict[str, Any]:
        """Return the best, typical and worst generated sentences, each with its location in the data."""
        pairs = self.task.text_pairs(split)
        if pairs is None or measured.decoded is None or not samples:
            return {}
        sources, references = (
            [side[number] for number in measured.decoded.numbers.tolist()] for side in pairs
        )
        table = sentence_table(sources, measured.decoded.lines, references, samples)
        shown = [sentence.number for found in table.values() for sentence in found]
        numbers = [int(measured.decoded.numbers[number - 1]) for number in shown]
        locations = dict(zip(shown, self.task.locations(split, numbers), strict=True))
        return {
            "sentences": {
                which: [asdict(sentence) | {"location": locations[sentence.number]} for sentence in found]
                for which, found in table.items()
            }
        }

    @overload
    def predict(
        self, text: str, decoding: Mapping[str, Any] | None = None, *, why: bool = False
    ) -> dict[str, Any]: ...

    @overload
    def predict(
        self, text: Iterable[Any], decoding: Mapping[str, Any] | None = None, *, why: bool = False
    ) -> list[dict[str, Any]]: ...

    def predict(
        self, text: str | Iterable[Any], decoding: Mapping[str, Any] | None = None, *, why: bool = False
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """Predict one text, or a list, array or column of texts in batches.

        An input of a task on tokens may also be a list of tokens, so one sequence is `[["a", "b"]]`.
        Return one dict per input, in order: `input`, `output`, `probability`, `candidates` (the hypotheses of
        a beam search) and `warning`. An input that the task cannot read has an `error` instead of an output.
        A label has its type in the training data, such as int or bool. A regression returns a float.
        `decoding` is a strategy such as `{"kind": "beam", "size": 4}`. With `why`, a classifier also returns
        `words`, the effect of each word on the prediction.
        """
        from glassformer.data.memory import plain_list  # training need not load it

        if why and not isinstance(self.task, SequenceClassificationTask):
            raise user_error(
                "this option needs a model with one prediction for the whole input",
                path="--why",
                hint="use glassformer attention to see where this model attends",
            )
        inputs = [text] if isinstance(text, str) else plain_list(text, "predict")
        results = [self._prediction(each, why) for each in self.predict_texts(inputs, decoding)]
        if isinstance(self.task, TokensTask) and self.task.are_single_tokens(inputs):
            for result in results:
                result["warning"] = "; ".join(filter(None, (result["warning"], SINGLE_TOKENS)))
        return results[0] if isinstance(text, str) else results

    def predict_texts(
        self, inputs: Sequence[Any], decoding: Mapping[str, Any] | None = None
    ) -> list[PredictedText]:
        """Return the predictions for texts or token lists, in batches. `predict` returns them as dicts."""
        rows: list[np.ndarray | None] = []
        texts: list[str] = []
        errors: dict[int, str] = {}
        for index, value in enumerate(inputs):
            try:
                tokens, text = self.task.read_input(value)
            except ErrorDetail as detail:
                tokens, text, errors[index] = None, str(value), detail.message
            rows.append(tokens)
            texts.append(text)
        found = self._predict_rows(rows, self._strategy(decoding), errors)
        return [
            PredictedText(text, rows[index], found.get(index, []), errors.get(index))
            for index, text in enumerate(texts)
        ]

    def predict_file(
        self,
        source: str | Path,
        out: str | Path,
        *,
        columns: str | int | Sequence[str | int] | None = None,
        format: Format | None = None,
        header: bool | None = None,
        encoding: str | None = None,
        decoding: Mapping[str, Any] | None = None,
        probabilities: bool = False,
        prefix: str = "",
        progress: Progress | None = None,
    ) -> FileSummary:
        """Predict each row of a file, and write the rows to `out` with the predictions as added columns.

        Columns `output`, `probability`, `error` and `warning` follow those of the input, after `prefix` in
        their names. With `probabilities`, a classifier also writes the probability of each class. The ending
        of `source` determines its format: .csv, .tsv, .jsonl or .json, otherwise one text per line. The model
        reads the same columns as in training, unless `columns` names others. `out` is .csv, .tsv or .jsonl
        and is replaced only at the end. Return the number of `rows`, the number of `failed` rows and the
        first `errors`.
        """
        from glassformer.runs.predict_file import (  # training need not load it
            InputReader,
            PredictionWriter,
            bytes_progress,
            check_out,
            class_labels,
            source_path,
            write_predictions,
        )

        source = source_path(source)
        check_out(Path(out), source)
        reader = InputReader(
            source,
            self.config.task,
            self.task,
            columns=_as_columns(columns),
            format=format,
            header=header,
            encoding=encoding,
            on_read=bytes_progress(source, progress),
        )
        labels = class_labels(self.task) if probabilities else []
        writer = PredictionWriter(Path(out), reader, self.show_output, prefix=prefix, labels=labels)
        return write_predictions(self, reader, writer, Path(out), decoding)

    def predict_each(
        self,
        source: str | Path,
        *,
        columns: str | int | Sequence[str | int] | None = None,
        format: Format | None = None,
        header: bool | None = None,
        encoding: str | None = None,
        decoding: Mapping[str, Any] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Yield the prediction for each row of a file, in order, as `predict` returns it.

        Each dict also has the `line` of the row and all its columns as `row`. Only a part of the file is in
        memory at a time.
        """
        from glassformer.runs.predict_file import (  # training need not load it
            InputReader,
            predict_rows,
            source_path,
        )

        reader = InputReader(
            source_path(source),
            self.config.task,
            self.task,
            columns=_as_columns(columns),
            format=format,
            header=header,
            encoding=encoding,
        )
        for block in predict_rows(self, reader, decoding):
            for row, predicted, _ in block:
                found = self._prediction(predicted, why=False)
                yield found | {"line": row.line, "row": dict(row.columns)}

    def _predict_rows(
        self, rows: Sequence[np.ndarray | None], strategy: DecodingConfig, errors: dict[int, str]
    ) -> dict[int, list[Prediction]]:
        """Return the predictions by row index. Batches run concurrently. Errors are added to `errors`."""

        def predict(indices: Sequence[int]) -> dict[int, list[Prediction]]:
            batch = [row for index in indices if (row := rows[index]) is not None]
            try:
                return dict(zip(indices, self.task.predict(self.model, batch, strategy), strict=True))
            except ErrorDetail as detail:
                if len(indices) == 1:
                    errors[indices[0]] = detail.message
                    return {}
            return {index: own for single in indices for index, own in predict([single]).items()}

        # A sampled output depends on the index in the batch: alone, each row draws as it would by itself.
        limit = 1 if isinstance(strategy, SampleConfig) else BATCH_ROWS
        batches = list(_batches(rows, limit))
        if len(batches) == 1:
            return predict(batches[0])
        results = run_concurrently(self.model, predict, batches)
        return {index: own for result in results for index, own in result.items()}

    def _prediction(self, predicted: PredictedText, why: bool) -> dict[str, Any]:
        """Return the prediction for one text as a JSON-serialisable dict."""
        candidates = [self._show(candidate) for candidate in predicted.candidates]
        prediction: dict[str, Any] = {
            "input": printable(predicted.text),
            "output": candidates[0]["output"] if candidates else None,
            "probability": candidates[0]["probability"] if candidates else None,
            "error": predicted.error,
            "warning": None,
            "candidates": candidates,
        }
        if predicted.tokens is None or not candidates:
            return prediction
        prediction["warning"] = self.task.warning(predicted.tokens.tolist(), predicted.text)
        if isinstance(self.task, SequenceClassificationTask):
            prediction["probabilities"] = self._class_probabilities(predicted.candidates[0])
            if why:
                from glassformer.inspection.attribution import word_effects

                words = word_effects(self.model, self.task, predicted.text)
                prediction["words"] = [asdict(word) for word in words]
        return prediction

    def _class_probabilities(self, prediction: Prediction) -> dict[Any, float] | None:
        """Return class probabilities, the highest first. With more than 10 classes, return only the top 5."""
        if prediction.class_probabilities is None:
            return None
        order = np.argsort(-prediction.class_probabilities, kind="stable")
        shown = order if len(order) <= MAX_CLASSES_SHOWN else order[:CLASSES_SHOWN_OF_MORE]
        labels = (" ".join(self.task.output_symbols([number])) for number in shown.tolist())
        return {
            self.task.label_values.get(label, label): float(prediction.class_probabilities[number])
            for label, number in zip(labels, shown.tolist(), strict=True)
        }

    def generate(self, prompt: str = "", max_tokens: int = 200, **sampling: Any) -> str:
        """Return the prompt and up to `max_tokens` new tokens as text. `sampling` are options of `stream`."""
        warn_about_prompt(self.task, prompt)
        *_, (text, _) = self.stream(prompt, max_tokens, **sampling)
        return text

    def stream(
        self,
        prompt: str = "",
        max_tokens: int = 200,
        *,
        temperature: float = 0.8,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        number: int = 0,
    ) -> Iterator[tuple[str, int]]:
        """Continue a prompt, and yield (text so far, number of new tokens) after each generated chunk.

        A `temperature` of 0 means greedy decoding. Equal arguments give equal texts. To sample several texts
        with the same prompt and seed, pass a different `number` for each.
        """
        task = self.task
        if not isinstance(task, CausalLanguageTask):
            raise user_error(
                "this run is not a text language model",
                path=str(self.path),
                hint=f"glassformer predict {self.path} INPUT",
            )

        def decoding(seed: int) -> DecodingConfig:
            if temperature == 0:
                return self._strategy({"kind": "greedy"})
            options = {"kind": "sample", "temperature": temperature, "top_k": top_k, "top_p": top_p}
            return self._strategy(options | {"seed": seed})

        first = (seed * 1009 + number) * 1_000_003
        tokens = task.start(prompt)
        start = len(tokens)
        for part in task.generate(self.model, tokens, max_tokens, map(decoding, count(first))):
            tokens += part
            yield task.show_output(tokens), len(tokens) - start

    def attention(
        self,
        text: str | Sequence[Any] | None = None,
        *,
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        rows: tuple[int, int] | None = None,
        site: Site | None = None,
        untrained: bool = False,
        decoding: Mapping[str, Any] | None = None,
        node: int | None = None,
    ) -> AttentionMaps:
        """Return the attention maps for an input (default: the first test example) and its predicted output.

        `layers`, `heads`, `rows` (queries) and `site` (`encoder`, `decoder` or `cross`) select a part.
        With `untrained`, the model has its initial weights. `decoding` is the strategy for the output, such
        as `{"kind": "beam"}`. `node` is the number of a node in the search tree that `trace` returns. With
        `decoding` or `node`, the maps of a language model include the generated tokens.
        """
        from glassformer.inspection.examples import prepare_input
        from glassformer.inspection.maps import Selection
        from glassformer.inspection.record import attention_maps
        from glassformer.inspection.trace import prepare_node

        tokens, text = self._input(text)
        model = self._untrained() if untrained else self.model
        about = {
            "run": self.path.name,
            "checkpoint": "untrained" if untrained else self.checkpoint,
            "input": text,
        }
        if decoding is None and node is None:
            prepared = prepare_input(model, self.task, tokens, self.config.evaluation.decoding, text)
            predicted = prepared.prediction
            about["output"] = "" if predicted is None else self.show_output(predicted)
        else:
            prepared, facts = prepare_node(model, self.task, tokens, self._strategy(decoding), node, text)
            about |= facts
        return attention_maps(model, prepared, Selection(layers, heads, rows, site), about)

    def trace(
        self, text: str | None = None, decoding: Mapping[str, Any] | None = None, alternatives: int = 5
    ) -> Trace:
        """Decode an input. Return each step with its `alternatives` likeliest tokens, and the search tree."""
        from glassformer.inspection.trace import trace

        tokens, text = self._input(text)
        return trace(self.model, self.task, tokens, self._strategy(decoding), alternatives, text)

    def heads(
        self,
        examples: int = 64,
        split: str | None = None,
        untrained: bool = False,
        ablate: Ablation | None = None,
    ) -> dict[str, Any]:
        """Return statistics of every attention head, averaged over examples, as a JSON-serialisable dict.

        The dict covers the trained and the untrained model, or with `untrained` only the untrained one. With
        `ablate` (`zero` or `mean`), it also has the effect of ablating each head, as in `ablate_head`.
        """
        from glassformer.inspection.ablation import ablate_each_head
        from glassformer.inspection.examples import group_examples
        from glassformer.inspection.heads import heads_document

        split = self._split(split)
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
        """Measure the effect of ablating one attention head on examples, and on the prediction for `text`.

        `site` is `encoder`, `decoder` or `cross`. `ablation` replaces the output of the head by zero (`zero`)
        or by its mean over the examples (`mean`).
        """
        from glassformer.inspection.ablation import head_effects
        from glassformer.inspection.examples import group_examples
        from glassformer.inspection.record import HeadId

        return head_effects(
            self.model,
            self.task,
            HeadId(site, layer, head),
            ablation,
            group_examples(self.task, self._split(split), examples),
            example=None if text is None else self._reference_input(text),
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
        """Measure the effect of ablating an attention edge: in this head, `query` may not attend to `key`.

        `site` is `encoder`, `decoder` or `cross`. With `examples`, the edge is also ablated in that many
        examples of the same length as the input. By default the remaining weights of the query are rescaled
        to sum to 1; without `renormalise` they sum to less.
        """
        from glassformer.inspection.ablation import Edge, edge_effects
        from glassformer.inspection.record import HeadId

        return edge_effects(
            self.model,
            self.task,
            Edge(HeadId(site, layer, head), query, key),
            self._reference_input(text),
            split=self._split(split),
            examples=examples,
            renormalise=renormalise,
            decoding=self.config.evaluation.decoding,
        )

    def occlude(
        self, text: str | None, position: int, examples: int = 16, split: str | None = None
    ) -> Effects:
        """Measure the effect of replacing one token by tokens that other examples have at its position."""
        from glassformer.inspection.ablation import token_effects

        return token_effects(
            self.model,
            self.task,
            self._reference_input(text),
            position,
            split=self._split(split),
            examples=examples,
            decoding=self.config.evaluation.decoding,
        )

    def rollout(self, text: str | None = None) -> AttentionMaps:
        """Return the attention rollout, a rough hint at influence: one map per site, such as `encoder`."""
        from glassformer.inspection.attribution import rollout

        return rollout(self.attention(text))

    def logit_lens(self, text: str | None = None, top: int = 5) -> LogitLens:
        """Return the logit lens: the `top` tokens that the output head predicts after each layer."""
        from glassformer.inspection.attribution import logit_lens
        from glassformer.inspection.examples import prepare_input

        tokens, text = self._input(text)
        prepared = prepare_input(self.model, self.task, tokens, self.config.evaluation.decoding, text)
        return logit_lens(self.model, self.task, prepared, top)

    def _reference_input(self, text: str | None) -> ReferenceInput:
        from glassformer.inspection.examples import reference_input

        tokens, text = self._input(text)
        return reference_input(self.model, self.task, tokens, self.config.evaluation.decoding, text)

    def _split(self, split: str | None) -> str:
        """Return `split`, or by default `test` if it exists, else `validation`. Reject an unknown split."""
        if split is None:
            return "test" if "test" in self.task.splits else "validation"
        if not isinstance(split, str) or split not in self.task.splits:
            raise user_error("no such split", path="split", value=split, allowed=sorted(self.task.splits))
        return split

    def _strategy(self, decoding: Mapping[str, Any] | None) -> DecodingConfig:
        if not decoding:
            return self.config.evaluation.decoding
        return validate(EvaluationConfig, {"decoding": dict(decoding)}).decoding

    def _input(self, text: str | Sequence[Any] | None) -> tuple[np.ndarray, str]:
        """Return token ids and text of an input. If `text` is None, the input is the first example."""
        from glassformer.inspection.examples import first_input

        if text is None:
            return first_input(self.task)
        if not isinstance(text, (str, list, tuple)) or (text and isinstance(text[0], (list, tuple))):
            raise user_error("expected one input", path="text", value=text, hint="pass one text")
        return self.task.read_input(text)

    def _untrained(self) -> Model:
        """Build the same model with its initial weights."""
        model = Experiment(self.config, self.task).build_model()
        return model.to(next(self.model.parameters()).device).eval()

    def __repr__(self) -> str:
        try:
            measured: dict[str, Any] = self.folder.results().get("metrics", {})
            metrics = measured.get("test") or measured.get("validation") or {}
            shown = "".join(f", {name}={value:.4g}" for name, value in metrics.items())
            warnings = self.folder.training_warnings()
        except (UserError, AttributeError, TypeError, ValueError):  # damaged results
            shown, warnings = "", []
        return "\n".join([f"Run({str(self.path)!r}, task={self.config.task.kind!r}{shown})", *warnings])

    def _repr_html_(self) -> str:
        return self.folder._repr_html_()

    def _show(self, prediction: Prediction) -> dict[str, Any]:
        """Return a hypothesis as a dict: output, probability, and each token with its probability."""
        if prediction.value is not None:
            return {"output": float(prediction.value), "probability": None, "steps": []}
        symbols = self.task.output_symbols(prediction.tokens)
        steps = [
            {"token": symbol, "probability": probability}
            for symbol, probability in zip(symbols, prediction.probabilities, strict=False)
        ]
        text = self.show_output(prediction)
        output = self.task.label_values.get(text, text)
        return {"output": output, "probability": prediction.probability, "steps": steps}

    def show_output(self, prediction: Prediction) -> str:
        """Return a prediction as one line of text."""
        if prediction.value is not None:
            return f"{prediction.value:.6g}"
        return self.task.show_output(prediction.tokens)


def _batches(rows: Sequence[np.ndarray | None], max_rows: int) -> Iterator[list[int]]:
    """Yield batches of row indices. Rows in a batch have similar lengths, and the longest come first."""
    lengths = {index: len(row) for index, row in enumerate(rows) if row is not None}
    batch: list[int] = []
    for index in sorted(lengths, key=lambda index: -lengths[index]):
        if batch and (len(batch) >= max_rows or (len(batch) + 1) * lengths[batch[0]] > BATCH_TOKENS):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _as_columns(columns: str | int | Sequence[str | int] | None) -> list[str | int] | None:
    if columns is None:
        return None
    return [columns] if isinstance(columns, (str, int)) else list(columns)


def _write(path: Path, mode: Literal["ab", "wb"], data: bytes) -> None:
    try:
        with open(path, mode) as file:
            file.write(data)
    except OSError as error:
        raise user_error(
            f"the file cannot be written: {error.strerror or error}",
            path=str(path),
            hint="choose a file in an existing folder that you may write to",
        ) from None
