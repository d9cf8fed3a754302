"""Export of trained models: write a folder for another library, load it there, and compare the outputs.

    export(Run("runs/language-model-1"), "huggingface", Path("exported"))

A target writes its files to a temporary folder. A child process then loads that folder with the target's own
engine and runs examples of the run's data. The folder gets its final name only if the outputs are the same.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from glassformer.core.errors import ErrorDetail, UserError, shorten, user_error
from glassformer.data.batching import pad
from glassformer.generation import GreedyConfig
from glassformer.interchange import TARGETS
from glassformer.interchange.exported_tokenizer import (
    ExportedVocabulary,
    source_vocabulary,
    target_vocabulary,
)
from glassformer.models.base import Model, ModelConfig
from glassformer.models.task_types import CausalLM, MaskedLM, Seq2Seq, SequenceClassification, TaskType
from glassformer.models.transformer import TransformerConfig
from glassformer.runs.run import Run
from glassformer.storage.files import json_bytes
from glassformer.storage.folders import put_in_place, temporary_folder
from glassformer.tasks.base import Task, evaluated_rows

EXAMPLES = 64
"""Number of examples of the run's data that an export is verified with."""
SPLITS = ("test", "validation", "train")
"""Splits that the examples come from, in this order, until there are enough."""
BATCH = 16
"""Number of examples per padded batch, in this process and in the engine."""
MAX_VALUES = 1 << 25
VERIFICATION = "verification.json"
ENGINES = Path(__file__).parent / "engines"

Report = Callable[[str], None]
"""Callback that receives what an export does now, in a few words."""


@dataclass(frozen=True)
class Obstacle:
    """Part of a model that a target cannot represent, with the reason and what to do about it."""

    option: str
    """Config option, such as `model.output_bias`."""
    reason: str
    remedy: str


@dataclass(frozen=True)
class ExportPlan:
    """Model config and task, which decide before any training whether a target can represent the model."""

    model: ModelConfig
    task: Task

    @property
    def task_type(self) -> TaskType:
        return self.task.task_type

    @property
    def config(self) -> TransformerConfig:
        """Config of the Transformer. Targets check first that the model is one."""
        assert isinstance(self.model, TransformerConfig)
        return self.model


@dataclass(frozen=True)
class ExportExample:
    """Input for the comparison of two engines."""

    text: str
    """Input as a user writes it."""
    tokens: list[int]
    """Token ids of the text as the model reads them, with begin and end tokens if the task adds them."""
    target: list[int] | None = None
    """Decoder input of an encoder-decoder: the target of the data without its last token."""
    split: str = ""
    """Split of the data that the example comes from."""


@dataclass(frozen=True)
class ExportSource(ExportPlan):
    """Trained model with what an export needs: config, weights, vocabularies and examples of its data."""

    run: Run

    @classmethod
    def of(cls, run: Run) -> ExportSource:
        """Return the source for a run. Its model must be on the CPU in evaluation mode."""
        return cls(run.config.model, run.task, run)

    @cached_property
    def source_tokens(self) -> ExportedVocabulary:
        """Vocabulary of the inputs."""
        return source_vocabulary(self.task)

    @cached_property
    def target_tokens(self) -> ExportedVocabulary:
        """Vocabulary of the outputs: that of the inputs, unless an encoder-decoder has two."""
        task_type = self.task_type
        if isinstance(task_type, Seq2Seq) and not task_type.is_shared_vocabulary:
            return target_vocabulary(self.task)
        return self.source_tokens

    def examples(self, count: int = EXAMPLES) -> list[ExportExample]:
        """Return up to `count` examples, spread over the test split, else the validation or train split.

        A split with too few examples is followed by the next one. Inputs that the model cannot read as a
        whole are shortened. The result has fewer examples only if the data have fewer.
        """
        found: list[ExportExample] = []
        for split in SPLITS:
            found += self._examples_of(split, count - len(found))
        return found

    def _examples_of(self, split: str, count: int) -> list[ExportExample]:
        """Return up to `count` examples, spread over a split."""
        size = len(self.task.splits.get(split, ()))
        found: list[ExportExample] = []
        if not size or not count:
            return found
        order = np.unique(np.linspace(0, size - 1, min(4 * count, size)).astype(int))
        # The first quarter is spread as widely as the whole, and the others replace unreadable examples.
        order = np.concatenate([order[start::4] for start in range(4)])
        for index in order.tolist():
            example = self._example(split, index)
            if example is not None:
                found.append(example)
            if len(found) == count:
                break
        return found

    def _example(self, split: str, index: int) -> ExportExample | None:
        """Return one example of a split, or None if no part of its text can be read."""
        task = self.task
        (row,) = evaluated_rows(task, split, [index])
        if isinstance(self.task_type, CausalLM):
            text = task.show_input(row[: max(1, len(row) // 2)].tolist())
        else:
            (text,) = task.input_texts(split, [index], [row] if self._is_masked else None)
        target = None
        if isinstance(self.task_type, Seq2Seq):
            target = [int(token) for token in task.splits[split].targets[index][:-1]]
        for _ in range(6):
            try:
                tokens, text = task.read_input(text)
                return ExportExample(text, tokens.tolist(), target, split)
            except ErrorDetail:
                text = _without_last_quarter(text)
        return None

    @property
    def _is_masked(self) -> bool:
        return isinstance(self.task_type, MaskedLM)


def _without_last_quarter(text: str) -> str:
    words = text.split(" ")
    return " ".join(words[: len(words) - -(-len(words) // 4)]) if len(words) > 1 else text[: len(text) // 2]


@dataclass(frozen=True)
class Outputs:
    """Outputs for a list of examples, by Glassformer or by another engine."""

    logits: Sequence[np.ndarray]
    """Logits of each example: (positions, V), (V,) of a classifier, or (1,) of a regression."""
    tokens: Sequence[Sequence[int]]
    """Greedy output of each example: generated ids without begin and end, or predicted classes."""
    texts: Sequence[str] | None = None
    """Outputs as text; None if the engine does not return text."""
    inputs: Sequence[Sequence[int]] | None = None
    """Token ids that the engine made of each text; None if it was given the ids."""
    margins: Sequence[float] | None = None
    """Allowed difference of each text that is the number of a regression; None if texts must be equal."""


@dataclass(frozen=True)
class Verification:
    """Comparison of an exported model, run by its own engine, with the trained model."""

    examples: int
    largest_difference: float
    same_outputs: float
    """Fraction of the examples with identical outputs."""
    tolerance: float
    engine: str
    version: str
    split: str
    first_difference: str | None = None
    """Description of the first example that differs."""
    required_outputs: float = 1.0
    """Smallest fraction of identical outputs that passes."""
    notes: list[str] = field(default_factory=list)
    """Inputs for which the engine differs, although the examples do not: one sentence each."""

    @property
    def passed(self) -> bool:
        return self.same_outputs >= self.required_outputs and self.largest_difference <= self.tolerance

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "passed": self.passed}

    def describe(self) -> str:
        """Return one line with the numbers."""
        return (
            f"{self.engine} {self.version} on {self.examples} examples of {self.split}: largest difference"
            f" {self.largest_difference:.2g} (limit {self.tolerance:.2g}),"
            f" {self.same_outputs:.1%} of the outputs identical"
        )


class VerificationFailed(Exception):
    """Error for an exported model whose outputs differ from those of the trained model."""

    def __init__(self, verification: Verification) -> None:
        self.verification = verification
        super().__init__(f"{verification.describe()}; {verification.first_difference}")


class EngineFailed(Exception):
    """Error for an engine that could not load or run an exported folder."""


@dataclass(frozen=True)
class LoadingScript:
    """Short program that loads an exported folder without Glassformer and prints the output for an input."""

    packages: str
    """Packages that the program needs, as `pip install` takes them."""
    code: str
    """Program in which the words FOLDER and TEXT appear instead of the folder and the input."""
    language: str = "python"

    def fill(self, folder: str, text: str) -> str:
        """Return the program for a folder and an input."""
        values = {"FOLDER": folder, "TEXT": text}
        return re.sub(r"\b(FOLDER|TEXT)\b", lambda found: _quoted(values[found[1]]), self.code)


def _quoted(text: str) -> str:
    """Return text as a string of Python, which is also one of JavaScript."""
    shown = "".join(c if c.isprintable() or ord(c) < 128 else "\N{REPLACEMENT CHARACTER}" for c in text)
    return json.dumps(shown, ensure_ascii=False).replace("\x7f", "\\u007f")


class Target(ABC):
    """Library or program that a trained model is exported to.

    Options of a target, such as `quantization`, are arguments of its `__init__`.
    """

    name: ClassVar[str]
    tolerance: float
    """Largest allowed difference between our logits, or log-probabilities, and the engine's."""
    required_outputs: float = 1.0
    """Smallest fraction of identical outputs that passes. Less than 1 only with quantised weights."""
    max_values: ClassVar[int] = MAX_VALUES
    """Maximum number of logits that are compared. Of longer outputs, only the last positions are compared."""
    packages: ClassVar[tuple[str, ...]]
    """Packages that writing or verifying needs, by their import names."""
    usage: ClassVar[str] = ""
    """Sentence on how to use an exported {folder}; empty if the export's README is enough."""
    engine: ClassVar[str]
    """File name of the script in `engines/` that runs an exported folder. It does not import Glassformer."""
    library: ClassVar[str]
    """Name of the library that loads the folder, as messages and model cards state it."""

    @abstractmethod
    def obstacles(self, plan: ExportPlan) -> list[Obstacle]:
        """Return what the target cannot represent. An empty list means that the export is exact."""

    @abstractmethod
    def write(self, source: ExportSource, folder: Path) -> None:
        """Write the exported files into an existing, empty folder."""

    @abstractmethod
    def loading_script(self, source: ExportSource) -> LoadingScript:
        """Return the program that the model card shows."""

    def gather(self, report: Report) -> None:
        """Find or download files that are part of every folder. By default there are none."""
        return

    def prepare(self, source: ExportSource, examples: Sequence[ExportExample]) -> list[ExportExample]:
        """Return the examples as the engine reads them. By default they are unchanged."""
        return list(examples)

    def notes(self, source: ExportSource) -> list[str]:
        """Return sentences about inputs for which the engine differs. By default there are none."""
        return []

    def request(self, source: ExportSource, examples: Sequence[ExportExample]) -> dict[str, Any]:
        """Return additional entries for the request that the engine reads. By default there are none."""
        return {}

    def reference(self, source: ExportSource, examples: Sequence[ExportExample], positions: int) -> Outputs:
        """Return our own outputs: the logits of the last `positions` positions, and the greedy outputs."""
        logits = compute_logits(source.run.model, examples, positions)
        tokens, texts = greedy(source, examples)
        return Outputs(logits, tokens, texts, [example.tokens for example in examples])

    def limit(self, source: ExportSource, examples: Sequence[ExportExample], ours: Outputs) -> float:
        """Return the tolerance in the unit of the outputs: for a regression it is of standardised targets."""
        task_type = source.task_type
        scale = task_type.target_scale if isinstance(task_type, SequenceClassification) else 1.0
        return self.tolerance * scale

    def compare(self, ours: Outputs, theirs: Outputs) -> tuple[float, list[str | None]]:
        """Return the largest difference of the logits, and for each example how its outputs differ."""
        largest = 0.0
        reasons: list[str | None] = []
        for number in range(len(ours.logits)):
            mine, other = ours.logits[number], theirs.logits[number]
            difference = np.inf
            if mine.shape == other.shape and np.isfinite(other).all():
                difference = float(np.abs(mine - other).max(initial=0.0))
            largest = max(largest, difference)
            reasons.append(self._difference(ours, theirs, number))
        return largest, reasons

    def _difference(self, ours: Outputs, theirs: Outputs, number: int) -> str | None:
        pairs = (
            ("token ids of the input", ours.inputs, theirs.inputs),
            ("outputs", ours.tokens, theirs.tokens),
            ("text of the output", ours.texts, theirs.texts),
        )
        for what, mine, others in pairs:
            if mine is None or others is None:
                continue
            left, right = _plain(mine[number]), _plain(others[number])
            margin = 0.0 if ours.margins is None else ours.margins[number]
            if margin and isinstance(left, str) and abs(float(left) - float(str(right))) <= margin:
                continue
            if left != right:
                return f"{what}: {shorten(repr(left), 60)} here, {shorten(repr(right), 60)} there"
        return None


def _plain(output: str | Sequence[int]) -> str | list[int]:
    return output if isinstance(output, str) else list(output)


def _margins(task_type: TaskType, ours: Outputs, limit: float) -> list[float] | None:
    """Return the margin of each number of a regression: the limit, and one unit of its last shown digit."""
    if not isinstance(task_type, SequenceClassification) or not task_type.is_regression:
        return None
    return [limit + task_type.resolution(float(text)) for text in ours.texts or ()]


def compute_logits(
    model: Model, examples: Sequence[ExportExample], positions: int | None = None
) -> list[np.ndarray]:
    """Return the logits of each example at its last `positions` positions, computed in padded batches."""
    found: list[np.ndarray] = []
    is_whole = isinstance(model.task_type, SequenceClassification)
    with torch.inference_mode():
        for start in range(0, len(examples), BATCH):
            batch = examples[start : start + BATCH]
            tokens_BL, mask_BL = pad([np.array(example.tokens) for example in batch])
            inputs = {"tokens": tokens_BL, "mask": mask_BL}
            rows = [example.tokens for example in batch]
            targets = [example.target for example in batch if example.target is not None]
            if targets:
                inputs["target"], _ = pad([np.array(target) for target in targets])
                rows = targets
            for row, output in zip(rows, model(**inputs).numpy(), strict=True):
                found.append(output if is_whole else output[: len(row)][-(positions or len(row)) :])
    return found


def rounding_error(source: ExportSource, examples: Sequence[ExportExample], ours: Outputs) -> float:
    """Return the largest difference of our logits to those of the same model in double precision."""
    longest = max((len(row) for row in ours.logits), default=1)
    exact = compute_logits(copy.deepcopy(source.run.model).double(), examples, longest)
    pairs = zip(ours.logits, exact, strict=True)
    return max((float(np.abs(mine - other).max(initial=0.0)) for mine, other in pairs), default=0.0)


def greedy(source: ExportSource, examples: Sequence[ExportExample]) -> tuple[list[list[int]], list[str]]:
    """Return the greedy outputs of the run as token ids and as text."""
    task, run = source.task, source.run
    rows = [np.array(example.tokens) for example in examples]
    found = [
        predictions[0]
        for start in range(0, len(rows), BATCH)
        for predictions in task.predict(run.model, rows[start : start + BATCH], GreedyConfig())
    ]
    return [list(map(int, best.tokens)) for best in found], [run.show_output(best) for best in found]


@dataclass(frozen=True)
class Exported:
    """Result of an export: the folder, its files, and the verification."""

    run: Path
    target: str
    folder: Path
    files: list[str]
    verification: Verification
    usage: str = ""
    """Sentence on how to use the folder; empty if there is none."""

    def document(self) -> dict[str, Any]:
        return {
            "run": str(self.run),
            "target": self.target,
            "folder": str(self.folder),
            "files": self.files,
            "verified": self.verification.document(),
        }


def make_target(name: str, **options: Any) -> Target:
    """Return the target of this name. Raise UserError if it does not exist or an option is unknown."""
    if name not in TARGETS:
        raise user_error("no such target", path="--to", value=name, allowed=sorted(TARGETS))
    module, _, class_name = TARGETS[name].partition(":")
    kind = getattr(import_module(module), class_name)
    given = {option: value for option, value in options.items() if value is not None}
    known = getattr(kind, "options", ())
    for option, value in given.items():
        if option not in known:
            raise user_error(
                f"the target {name} does not have this option",
                path=f"--{option.replace('_', '-')}",
                value=value,
                hint="leave it out, or choose another --to",
            )
    target: Target = kind(**given)
    return target


@dataclass(frozen=True)
class Destination:
    """Target with what keeps a model from going there."""

    target: str
    obstacles: list[Obstacle]
    missing_packages: list[str]
    """Packages that the export needs and that are not installed here."""

    @property
    def is_possible(self) -> bool:
        return not self.obstacles

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "possible": self.is_possible}

    def lines(self) -> list[str]:
        """Return the target with `yes`, or with each obstacle and what to do about it."""
        if self.is_possible:
            packages = " ".join(self.missing_packages)
            return [f"{self.target}: yes" + (f", after pip install {packages}" if packages else "")]
        return [f"{self.target}: no, {each.option}: {each.reason}; {each.remedy}" for each in self.obstacles]


def destinations(plan: ExportPlan) -> list[Destination]:
    """Return all targets with what each cannot represent of a model, also before it is trained."""
    targets = [make_target(name) for name in TARGETS]
    return [Destination(each.name, each.obstacles(plan), _missing_packages(each)) for each in targets]


def _missing_packages(target: Target) -> list[str]:
    return [name for name in target.packages if importlib.util.find_spec(name) is None]


def check_packages(target: Target) -> None:
    """Raise UserError if a package that the target needs is not installed."""
    missing = _missing_packages(target)
    if missing:
        raise user_error(
            f"the target {target.name} needs {', '.join(missing)}",
            path="--to",
            value=target.name,
            hint="pip install 'glassformer[export]'",
        )


def refusal(target: Target, obstacles: Sequence[Obstacle]) -> UserError:
    """Return the error for a model that the target cannot represent, one detail per obstacle."""
    return UserError(
        *(
            ErrorDetail(f"cannot go to {target.name}: {each.reason}", path=each.option, hint=each.remedy)
            for each in obstacles
        )
    )


def export(
    run: Run,
    target: str,
    out: str | Path,
    *,
    examples: int = EXAMPLES,
    report: Report = lambda line: None,
    **options: Any,
) -> Exported:
    """Export a run to a folder, verify it with the target's own engine, and return the result.

    Raise UserError if the target cannot represent the model, and VerificationFailed if the outputs differ.
    In both cases, and if the export is interrupted, `out` does not exist afterwards.
    """
    from glassformer.interchange.model_card import write_card  # it imports this module

    chosen = make_target(target, **options)
    out = Path(out)
    _check_out(out, run)
    source = ExportSource.of(run)
    obstacles = chosen.obstacles(source)
    if obstacles:
        raise refusal(chosen, obstacles)
    check_packages(chosen)
    chosen.gather(report)
    run.model.to("cpu", torch.float32).eval()
    with temporary_folder(out, _size(run.model)) as folder:
        report(f"writing {out}")
        chosen.write(source, folder)
        compared = source.examples(examples)
        report(f"verifying with {chosen.library}, {len(compared)} examples")
        verification = verify(chosen, source, folder, compared)
        if not verification.passed:
            raise VerificationFailed(verification)
        (folder / VERIFICATION).write_bytes(json_bytes(verification.document()))
        report("writing the model card")
        write_card(chosen, source, folder, verification, compared)
        put_in_place(folder, out)
    files = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    usage = chosen.usage.format(folder=shlex.quote(str(out)))
    return Exported(run.path, target, out, files, verification, usage)


def _check_out(out: Path, run: Run) -> None:
    hint = "choose a new folder"
    if out.resolve() == run.path.resolve() or run.path.resolve() in out.resolve().parents:
        raise user_error("this folder belongs to the run", path="--out", value=str(out), hint=hint)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise user_error("exists and is not an empty folder", path="--out", value=str(out), hint=hint)
    if out.name in ("", ".."):
        raise user_error("is not the name of a new folder", path="--out", value=str(out), hint=hint)


def _size(model: Model) -> int:
    """Return the number of bytes of the weights in float32."""
    return 4 * sum(parameter.numel() for parameter in model.parameters())


def verify(
    target: Target, source: ExportSource, folder: Path, examples: Sequence[ExportExample]
) -> Verification:
    """Run the examples with the target's engine in a child process, and compare with our own outputs."""
    examples = target.prepare(source, examples)
    vocabulary = len(source.target_tokens.tokens)
    positions = max(1, target.max_values // (len(examples) * vocabulary)) if examples else 1
    ours = target.reference(source, examples, positions)
    request = {
        "examples": [asdict(example) for example in examples],
        "batch": BATCH,
        "positions": positions,
        **target.request(source, examples),
    }
    theirs, document = run_engine(ENGINES / target.engine, folder, request)
    limit = target.limit(source, examples, ours)
    ours = replace(ours, margins=_margins(source.task_type, ours, limit))
    largest, reasons = target.compare(ours, theirs)
    first = next((number for number, reason in enumerate(reasons) if reason is not None), None)
    description = None
    if first is not None:
        description = f"the first that differs is {shorten(repr(examples[first].text), 80)}: {reasons[first]}"
    elif largest > limit:
        description = "the logits differ more than the limit allows"
    return Verification(
        examples=len(examples),
        largest_difference=largest,
        same_outputs=sum(reason is None for reason in reasons) / max(1, len(examples)),
        tolerance=limit,
        engine=document["engine"],
        version=document["version"],
        split=" and ".join(dict.fromkeys(example.split for example in examples)),
        first_difference=description,
        required_outputs=target.required_outputs,
        notes=target.notes(source),
    )


def run_engine(script: Path, folder: Path, request: Mapping[str, Any]) -> tuple[Outputs, dict[str, Any]]:
    """Run an engine script in a child process. Return its outputs, and the document that it wrote.

    The script is called as `python SCRIPT FOLDER REQUEST ANSWER`. It writes ANSWER.npz with one array of
    logits per example (`0`, `1`, …), and ANSWER.json with `engine`, `version`, `tokens`, and optionally
    `texts` and `inputs`.
    """
    with tempfile.TemporaryDirectory(prefix="glassformer-") as work:
        request_path, answer = Path(work) / "request.json", Path(work) / "answer"
        request_path.write_text(json.dumps(request))
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(torch.get_num_threads()),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        process = subprocess.run(
            [sys.executable, "-P", str(script), str(folder.resolve()), str(request_path), str(answer)],
            cwd=work,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
        )
        if process.returncode:
            lines = process.stderr.strip().splitlines()[-12:]
            raise EngineFailed(f"{script.name} exited with {process.returncode}\n" + "\n".join(lines))
        document = json.loads(answer.with_suffix(".json").read_text())
        with np.load(answer.with_suffix(".npz")) as arrays:
            logits = [arrays[str(number)] for number in range(len(arrays.files))]
    outputs = Outputs(logits, document["tokens"], document.get("texts"), document.get("inputs"))
    return outputs, document
