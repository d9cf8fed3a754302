"""Trained model with its task: evaluate, predict, generate and inspect."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import torch

from glassformer.core.config import unflatten, validate
from glassformer.core.errors import UserError, user_error
from glassformer.data.readers import Format
from glassformer.evaluation.evaluate import EvaluationConfig, measure
from glassformer.evaluation.metrics import Measured, Progress
from glassformer.generation import DecodingConfig
from glassformer.generation.predict import Engine, PredictedText, with_engine, with_weights
from glassformer.generation.strategies import LEAST_TEMPERATURE
from glassformer.models.base import Model, WithoutInitialisation
from glassformer.runs.experiment import ExperimentConfig
from glassformer.runs.folder import CONFIG_JSON, RunFolder
from glassformer.runs.inspected import InspectedRun
from glassformer.tasks.base import Task
from glassformer.tasks.language import CausalLanguageTask, warn_about_prompt
from glassformer.training.checkpoints import DamagedCheckpoint
from glassformer.training.precision import choose_device

if TYPE_CHECKING:
    from glassformer.interchange.export import Exported
    from glassformer.runs.new_data import NewData
    from glassformer.runs.predict_file import FileSummary


class Run(InspectedRun):
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
        engine: str | Mapping[str, Any] | None = None,
        weights: Literal["fp32", "int8"] | None = None,
    ) -> None:
        """Load a checkpoint (`best`, `latest`, a step number or a name) of the run at `path`.

        Pass a loaded `task` to avoid reading the data again. `engine` decodes in `predict`, and `weights`
        (`fp32` or `int8`) multiply in `predict` and `generate`, as the options `evaluation.engine` and
        `evaluation.weights`, whose values are the defaults.
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
        with torch.random.fork_rng(devices=[]), WithoutInitialisation():
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
        evaluation = self.config.evaluation
        if engine is not None or weights is not None:
            given = {"engine": engine, "weights": weights}
            kept = {"engine": evaluation.engine.dump(), "weights": evaluation.weights}
            changes = {name: value for name, value in given.items() if value is not None}
            evaluation = validate(EvaluationConfig, kept | changes)
        self._engine_config, self._weights = evaluation.engine, evaluation.weights

    def evaluate(
        self,
        split: str | None = None,
        overrides: Mapping[str, Any] | None = None,
        *,
        inputs: Iterable[Any] | None = None,
        targets: Iterable[Any] | None = None,
        file: str | Path | Sequence[str | Path] | None = None,
        columns: Mapping[str, Any] | None = None,
        format: Format | None = None,
        header: bool | None = None,
        encoding: str | None = None,
        hypotheses: str | Path | None = None,
        samples: int = 3,
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """Evaluate the model on a split (default: `test`, or `validation` if there is no test split).

            run.evaluate("test")
            run.evaluate(inputs=texts, targets=labels)
            run.evaluate(file="new.csv")

        New labelled data are `inputs` and `targets`, as `gf.train` takes them (of a DataFrame, the columns of
        the training data are read), or a `file`: a path, a list of
        line-aligned files, or a folder of classes. A file is read with the layout of the training file;
        `columns` (such as `{"input": "text", "target": "label"}`), `format`, `header` and `encoding` change
        it. The labels must be those of the training data, as in a test split.

        Return the dict that `evaluate --json` prints. `overrides` change `evaluation` options. `hypotheses`
        is a file to write the generated outputs to, one line per example in the order of the data. For text
        outputs, `samples` is how many of the best, typical and worst sentences the details show.
        """
        for name, value, type_ in (("split", split, str), ("overrides", overrides, Mapping)):
            if value is not None and not isinstance(value, type_):
                hint = "pass new data by name: run.evaluate(inputs=texts, targets=labels)"
                expected = "the name of a split" if name == "split" else "options of evaluation"
                raise user_error(f"expected {expected}, not data", path=name, hint=hint)
        config = self.config.evaluation
        if overrides:
            config = self.config.with_overrides({"evaluation": unflatten(overrides)}).evaluation
        if hypotheses is not None:
            self._check_hypotheses(Path(hypotheses))
        reading = {"columns": columns, "format": format, "header": header, "encoding": encoding}
        new = self._new_data(split, inputs, targets, file, reading)
        task, split = (self.task, self._split(split)) if new is None else (new.task, new.split)
        doubts = self._unfinished() + (self._changed_data() if new is None else [])
        measured = measure(self.model, task, split, config, progress=progress)
        if hypotheses is not None and measured.decoded is not None:
            _write_lines(Path(hypotheses), measured.decoded.lines)
        found: dict[str, Any] = {
            "run": str(self.path),
            "split": split,
            "examples": int(min(len(task.splits[split]), config.max_examples or math.inf)),
            "metrics": measured.metrics,
            "intervals": {name: list(interval) for name, interval in measured.intervals.items()},
            "protocol": self._protocol(config) | measured.protocol,
            "warnings": doubts + self.folder.warnings(split) + self.folder.training_warnings(split),
            "details": measured.details | _sentences(task, split, measured, samples),
        }
        return found if new is None else new.complete(found)

    def _unfinished(self) -> list[str]:
        """Return a warning if the training was stopped before its end."""
        from glassformer.runs.ending import resume_command  # a finished run need not load it

        unfinished = self.folder.unfinished()
        return [f"WARNING: {unfinished}; to finish it: {resume_command(self.path)}"] if unfinished else []

    def _protocol(self, config: EvaluationConfig) -> dict[str, Any]:
        """Return the facts on the model and its training data that belong to each measured number."""
        return {
            "checkpoint": self.checkpoint,
            "seed": self.config.seed,
            "config": self.config.fingerprint(),
            "data_sha256": self.folder.environment().get("data_sha256"),
            "decoding": config.decoding.dump(),
            "padding": "never counted",
        }

    def _new_data(
        self, split: Any, inputs: Any, targets: Any, file: Any, reading: Mapping[str, Any]
    ) -> NewData | None:
        """Read the new data to evaluate on, or return None if a split of the run is to be measured."""
        given = {"split": split, "inputs": inputs, "file": file}
        names = [name for name, value in given.items() if value is not None]
        options = [name for name, value in reading.items() if value is not None]
        if len(names) > 1:
            raise user_error(f"cannot be combined with {names[0]}", path=names[1], hint="leave one out")
        if targets is not None and inputs is None:
            raise user_error("there are targets without inputs", path="inputs", hint="pass inputs=")
        if options and file is None:
            raise user_error("this option needs a file", path=options[0], hint="pass file=")
        if inputs is None and file is None:
            return None
        from glassformer.runs.new_data import read_file, read_memory  # training need not load it

        return read_memory(self, inputs, targets) if file is None else read_file(self, file, **reading)

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

    @overload
    def predict(
        self, text: str, decoding: Mapping[str, Any] | None = None, *, why: bool = False, align: bool = False
    ) -> dict[str, Any]: ...

    @overload
    def predict(
        self,
        text: Iterable[Any],
        decoding: Mapping[str, Any] | None = None,
        *,
        why: bool = False,
        align: bool = False,
    ) -> list[dict[str, Any]]: ...

    def predict(
        self,
        text: str | Iterable[Any],
        decoding: Mapping[str, Any] | None = None,
        *,
        why: bool = False,
        align: bool = False,
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """Predict one text, or a list, array, column or DataFrame of inputs in batches.

        Of a DataFrame, the columns that the model was trained on are read, by name: see `input_columns`.
        An input of a task on tokens may also be a list of tokens, so one sequence is `[["a", "b"]]`.
        Return one dict per input, in order: `input`, `output`, `probability`, `candidates` (the hypotheses of
        a beam search) and `warning`. An input that the task cannot read has an `error` instead of an output.
        The probability of a generated output is the product over its tokens, which `candidates` list. It is
        smaller for a longer output, and label smoothing in training keeps each factor below 1.
        A label has its type in the training data, such as int or bool. A regression returns a float.
        `decoding` is a strategy such as `{"kind": "beam", "size": 4}`. With `why`, a classifier also returns
        `words`, the effect of each word on the prediction. With `align`, an encoder-decoder also returns
        `alignment`, the source words that each generated word reads (`run.align` chooses the head better).
        """
        from glassformer.runs.prediction import predict  # training need not load it

        strategy = self._strategy(decoding)
        text = self.select_columns(text, "predict")
        aligner = self.model if align else None
        return predict(self.decoder(strategy), self.task, text, strategy, why=why, aligner=aligner)

    def predict_texts(
        self, inputs: Sequence[Any], decoding: Mapping[str, Any] | None = None
    ) -> list[PredictedText]:
        """Return the predictions for texts or token lists, in batches. `predict` returns them as dicts."""
        from glassformer.runs.prediction import predict_texts

        strategy = self._strategy(decoding)
        return predict_texts(self.decoder(strategy), self.task, inputs, strategy)

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
        from glassformer.runs.prediction import describe_prediction

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
                found = describe_prediction(self.model, self.task, predicted)
                yield found | {"line": row.line, "row": dict(row.columns)}

    def generate(self, prompt: str = "", max_tokens: int = 200, **sampling: Any) -> str:
        """Return the prompt and up to `max_tokens` new tokens as text. `sampling` are options of `stream`."""
        if not isinstance(prompt, str):
            raise user_error("expected one text", path="prompt", value=prompt, hint='run.generate("The ")')
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

        if not (temperature == 0 or temperature >= LEAST_TEMPERATURE):
            raise user_error(
                f"expected 0, or at least {LEAST_TEMPERATURE:g}",
                path="decoding.temperature",
                value=temperature,
                hint="0 is greedy decoding",
            )

        def decoding(seed: int) -> DecodingConfig:
            if temperature == 0:
                return self._strategy({"kind": "greedy"})
            options = {"kind": "sample", "temperature": temperature, "top_k": top_k, "top_p": top_p}
            return self._strategy(options | {"seed": seed})

        first = (seed * 1009 + number) * 1_000_003
        tokens = task.start(prompt)
        start = len(tokens)
        for part in task.generate(self._predictor, tokens, max_tokens, map(decoding, count(first))):
            tokens += part
            yield task.show_output(tokens), len(tokens) - start

    def export(self, to: str, out: str | Path, **options: Any) -> Exported:
        """Write the model to the new folder `out` for another library, such as `huggingface`, and verify it.

            exported = run.export("ctranslate2", "exported", quantization="int8")
            exported.folder, exported.files, exported.verification.largest_difference

        `options` are those of the target. The folder holds a model card, and how to load it. A model that
        the target cannot represent raises UserError; then, and if the outputs differ, nothing is written.
        """
        from glassformer.interchange.export import export

        return export(self, to, out, **options)

    @cached_property
    def _engine(self) -> Engine | None:
        return self._engine_config.build(self.model)

    @property
    def has_engine(self) -> bool:
        """True if an engine other than the model itself decodes. Raise a UserError if it cannot."""
        return self._engine is not None

    def decoder(self, strategy: DecodingConfig) -> Model:
        """Return the model that predicts, with its engine. Raise an ErrorDetail if that lacks `strategy`."""
        self._engine_config.check_decoding(strategy)
        return with_engine(self._predictor, self._engine)

    @cached_property
    def _predictor(self) -> Model:
        """Model that predicts and generates: `model`, or a copy of it that multiplies in int8."""
        return with_weights(self.model, self._weights)

    def __repr__(self) -> str:
        about = f"{self.task.task_type.describe()}, task={self.config.task.kind!r}"
        try:
            about += f", columns={self.input_columns}" if self.input_columns else ""
            measured: dict[str, Any] = self.folder.results().get("metrics", {})
            split = "test" if measured.get("test") else "validation"
            metrics = "".join(f" {name}={value:.4g}" for name, value in measured.get(split, {}).items())
            shown = f", {split}:{metrics}" if metrics else ""
            warnings = [*self.folder.warnings(), *self.folder.training_warnings()]
        except (UserError, AttributeError, TypeError, ValueError):  # damaged results
            shown, warnings = "", []
        return "\n".join([f"Run({str(self.path)!r}, {about}{shown})", *warnings])

    def _repr_html_(self) -> str:
        return self.folder._repr_html_()


def _sentences(task: Task, split: str, measured: Measured, samples: int) -> dict[str, Any]:
    """Return the best, typical and worst generated sentences, each with its location in the data."""
    pairs = task.text_pairs(split)
    if pairs is None or measured.decoded is None or not samples:
        return {}
    from glassformer.evaluation.text_scores import sentence_table

    sources, references = ([side[number] for number in measured.decoded.numbers.tolist()] for side in pairs)
    table = sentence_table(sources, measured.decoded.lines, references, samples)
    shown = [sentence.number for found in table.values() for sentence in found]
    numbers = [int(measured.decoded.numbers[number - 1]) for number in shown]
    locations = dict(zip(shown, task.locations(split, numbers), strict=True))
    return {
        "sentences": {
            which: [asdict(sentence) | {"location": locations[sentence.number]} for sentence in found]
            for which, found in table.items()
        }
    }


def _as_columns(columns: str | int | Sequence[str | int] | None) -> list[str | int] | None:
    if columns is None:
        return None
    return [columns] if isinstance(columns, (str, int)) else list(columns)


def _write_lines(path: Path, texts: Iterable[str]) -> None:
    from glassformer.evaluation.text_scores import one_line  # most tasks need not load it

    lines = "".join(f"{one_line(text)}\n" for text in texts)
    _write(path, "wb", lines.encode("utf-8", errors="replace"))


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
