"""Base classes for tasks: examples in splits, collation, parsing of inputs, and display of outputs."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np

from glassformer.core.errors import ErrorDetail, UserError, shorten, user_error
from glassformer.core.registry import Kind
from glassformer.data.batching import (
    Batch,
    Examples,
    collate_causal_lm,
    collate_seq2seq,
    collate_sequence_classification,
    collate_token_classification,
)
from glassformer.data.formats import Stream
from glassformer.data.readers import DataConfig
from glassformer.data.roles import comma_number
from glassformer.data.text_files import undecoded
from glassformer.evaluation.metrics import Decoded, Progress
from glassformer.generation import DecodingConfig, GreedyConfig
from glassformer.generation.predict import (
    Prediction,
    decode_batches,
    predict_by_decoding,
    predict_continuations,
    predict_sequences,
    predict_tokens,
)
from glassformer.models.base import Model
from glassformer.models.task_types import CausalLM, SequenceClassification, TaskType

UNKNOWN_MARKS = ("‹", "›")
"""Signs around a part of a text that the model does not know, in a terminal and on the axes of a map."""
TWIN_EXAMPLES = 1000
"""Number of examples whose tokens may replace a token of an input in `Task.twin`."""
MAX_NUMBER = float(np.finfo(np.float32).max)
"""Largest absolute value of a target that is a number."""
FLOAT64_SPREAD = 1e-12
"""Ratio of standard deviation to mean up to which numbers differ by rounding errors of float64 only."""
_WORD = re.compile(r"\S+")


class Word(NamedTuple):
    """Word of an input or output, and the indices of the tokens that encode it."""

    text: str
    tokens: list[int]


Link = tuple[int, int]
"""Number of a source word, and number of the target word that translates it."""


class GoldLinks(NamedTuple):
    """Correct links between the words of a source and a target (Och and Ney 2003)."""

    sure: set[Link]
    possible: set[Link]
    """Links that are neither right nor wrong. The sure ones are among them."""


class Piece(NamedTuple):
    """Part of a text that becomes one token: `text[start:end]`."""

    start: int
    end: int
    is_known: bool = True


Splits = Mapping[str, Examples]
Inputs = Sequence[np.ndarray]
Predictions = list[list[Prediction]]
Outputs = Sequence[Sequence[int]]
Patterns = dict[str, dict[str, np.ndarray]]
"""Boolean masks of shape (queries, keys), by stack (`encoder`, `decoder`, `cross`) and pattern name."""
Labels = dict[str, list[Hashable | None]]
"""Labels of one example, by stack (`encoder`, `decoder`), one per position. None marks an unlabelled one."""


class NotANumber(ErrorDetail):
    """Error for a table cell that is not a number."""


def parse_number(value: Any) -> float:
    """Return a table cell as a float; raise ErrorDetail if it is not a number or is not finite in float32."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number):
        comma = comma_number(value) if isinstance(value, str) else ""
        hint = comma or "write a number such as 0.5; or set task.target=label"
        raise NotANumber("not a number", value=value, hint=hint)
    if abs(number) > MAX_NUMBER:
        size = "infinite" if math.isinf(number) else f"too large (at most {MAX_NUMBER:.1e})"
        raise ErrorDetail(f"the number is {size}", value=value, hint="correct it, or remove the row")
    return number


def target_statistics(targets: np.ndarray, path: str) -> dict[str, float]:
    """Return mean and standard deviation of the training targets as `target_mean` and `target_scale`.

    Raise UserError if all targets are equal, or differ by the rounding errors of float64 only.
    """
    mean, scale = float(targets.mean()), float(targets.std())
    if scale <= FLOAT64_SPREAD * abs(mean):
        raise user_error(
            f"all {len(targets):,} training targets are {targets[0]:g}: nothing to predict",
            path=path,
            hint="check that the targets are the right column, and that the rows are not a sorted subset",
        )
    return {"target_mean": mean, "target_scale": scale}


def show_numbers(task_type: TaskType, numbers: Sequence[float]) -> list[str]:
    """Return predicted numbers as text, with the digits that the spread of the targets requires."""
    assert isinstance(task_type, SequenceClassification)
    return [f"{number:.{task_type.digits}g}" for number in numbers]


def at_location(detail: ErrorDetail, location: str) -> UserError:
    """Return a UserError like `detail`, with a location (file and line) as its path."""
    hint = detail.hint
    if isinstance(detail, NotANumber) and location.endswith(", line 1"):
        hint += "; or set task.data.header=true, if the line is a header"
    return user_error(detail.message, path=location, value=detail.value, hint=hint)


def check_length(tokens: Sequence[int] | np.ndarray, longest: int) -> np.ndarray:
    """Return token ids as an int64 array; raise ErrorDetail if there are more than `longest` of them."""
    if len(tokens) > longest:
        raise ErrorDetail(f"too long: {len(tokens)} tokens, and the model reads at most {longest}")
    return np.array(tokens, dtype=np.int64)


def mark_piece(text: str) -> str:
    return text.join(UNKNOWN_MARKS)


def mark_unknown(task: Task, text: str) -> list[tuple[str, bool]]:
    """Split a text into pairs (part, is_unknown), where True marks parts that the tokenizer does not know.

    The parts in order are the whole text.
    """
    parts: list[tuple[str, bool]] = []
    at = 0
    for start, end, is_known in task.pieces(text):
        if is_known or end <= at:
            continue
        parts += [(text[at:start], False)] if start > at else []
        parts.append((text[max(start, at) : end], True))
        at = end
    return [*parts, (text[at:], False)] if at < len(text) else parts


def evaluated_rows(task: Task, split: str, indices: Sequence[int]) -> list[np.ndarray]:
    """Return the input tokens of examples as the model sees them in evaluation: some may be masked."""
    batches = (task.batch(split, np.array([index])).inputs["tokens"] for index in indices)
    return [tokens_BL[0].numpy() for tokens_BL in batches if tokens_BL is not None]


class TaskConfig(Kind):
    """Config of the task to learn, and of its data. Each kind of task has its own subclass."""

    needs_absolute_positions: ClassVar[bool] = False
    """True if the task needs the exact position of a token: distances between tokens do not suffice."""

    def build(self, seed: int) -> Task:
        """Build the task. The `seed` of a run never affects the examples or their splits."""
        raise NotImplementedError

    def restore(self, state: Mapping[str, Any], seed: int = 0) -> Task:
        """Restore a trained run's task from its `Task.state`. Data files are read on first use of a split."""
        return self.build(seed)


class Task:
    """Examples in the splits `train`, `validation` and optionally `test`, with their parsing and display."""

    label_values: Mapping[str, Any] = MappingProxyType({})
    """Labels that are numbers or booleans in the data: text to value."""
    primary_metric: ClassVar[str] = "accuracy"
    """Metric that is shown first and selects the best checkpoint."""
    drop_last: ClassVar[bool] = False
    """True if the last, incomplete batch of each training epoch is dropped."""
    generates_outputs: ClassVar[bool] = False
    """True if outputs are generated token by token. Evaluation then decodes them and scores the result."""
    mask_token: int = -1
    """Id of the token that hides a token to predict; −1 if the task has no such token."""
    pattern_explanations: ClassVar[Mapping[str, str]] = {}
    """One-sentence explanation of each pattern in `attention_patterns`, by name."""

    def __init__(
        self, task_type: TaskType, splits: Splits | Callable[[], Splits], notes: Sequence[str] = ()
    ) -> None:
        """Store the splits, or a function that reads them on first use. `notes` describe the data."""
        self.task_type = task_type
        self.notes = list(notes)
        self._splits = splits

    @cached_property
    def splits(self) -> dict[str, Examples]:
        return dict(self._splits() if callable(self._splits) else self._splits)

    def state(self) -> dict[str, Any]:
        """Return the tokenizers and vocabularies that `restore` needs, as a JSON-serialisable dict."""
        return {}

    def replace_data(self, split: str, stream: Stream, data: DataConfig) -> list[str]:
        """Replace all splits of a restored task by one with new labelled examples. Return notes on them.

        Rows whose labels do not occur in train are left out or rejected, as in a test split. `data` is the
        config with which the stream was opened.
        """
        raise NotImplementedError

    def comparable(self, split: str) -> Iterable[Hashable]:
        """Yield the inputs of a split in a form in which equal examples of two splits are equal."""
        return ()

    def collate(self, examples: Examples, indices: np.ndarray) -> Batch:
        raise NotImplementedError

    def batch(self, split: str, indices: np.ndarray, epoch: int | None = None) -> Batch:
        """Collate the examples at `indices` into tensors. Equal arguments always give the same batch.

        `epoch` is a number in training and None in evaluation.
        """
        return self.collate(self.splits[split], indices)

    def checksum(self) -> str:
        """Return the SHA-256 over all examples of all splits, in hexadecimal."""
        digest = hashlib.sha256()
        for name, examples in sorted(self.splits.items()):
            digest.update(f"{name}:{examples.checksum()};".encode())
        return digest.hexdigest()

    def parse(self, text: str) -> np.ndarray:
        """Convert the text a user typed to token ids; raise ErrorDetail if it is invalid."""
        raise NotImplementedError

    def read_input(self, value: Any) -> tuple[np.ndarray, str]:
        """Return token ids and text of an input; raise ErrorDetail if it is not valid.

        The input is a text or, unless the task reads natural language, a list of tokens.
        """
        if isinstance(value, (list, tuple)):
            value = " ".join(map(str, value))
        if not isinstance(value, str):
            raise ErrorDetail(f"expected a text, not {shorten(repr(value), 40)}", hint="pass a text")
        problem = undecoded(value)
        if problem is not None:
            raise ErrorDetail(problem)
        return self.parse(value), value

    def input_symbols(self, tokens: Sequence[int]) -> list[str]:
        """Return the input tokens in readable form, one string per token."""
        raise NotImplementedError

    def show_input(self, tokens: Sequence[int]) -> str:
        """Return the input as the text that a user would type."""
        return " ".join(self.input_symbols(tokens))

    def input_texts(self, split: str, indices: Sequence[int], rows: Inputs | None = None) -> list[str]:
        """Return the inputs of examples as text, spelled as in the data.

        If the model sees other tokens than the stored ones, because some are masked or cut off, pass these as
        `rows`.
        """
        shown = [self.splits[split].inputs[index] for index in indices] if rows is None else rows
        return [self.show_input([int(token) for token in row]) for row in shown]

    def pieces(self, text: str) -> list[Piece]:
        """Return the part of a text that each token encodes, in order, without begin and end tokens."""
        return [Piece(*match.span()) for match in _WORD.finditer(text)]

    def is_unknown(self, token: int) -> bool:
        """Return True for the token id that replaces every unknown piece of a text."""
        return False

    def input_labels(self, tokens: Sequence[int], text: str | None = None) -> list[str]:
        """Return one label per token: its symbol or, if the token is unknown, its part of `text`, marked."""
        labels = self.input_symbols(tokens)
        pieces = [] if text is None else self.pieces(text)
        unknown = [piece for piece in pieces if not piece.is_known]
        places = [index for index, token in enumerate(tokens) if self.is_unknown(token)]
        has_rest = len(pieces) > len(tokens)  # the tokens end before the text
        if text is None or not (len(unknown) == len(places) or (has_rest and len(unknown) > len(places))):
            return labels
        for index, piece in zip(places, unknown, strict=False):
            labels[index] = mark_piece(text[piece.start : piece.end])
        return labels

    def output_symbols(self, tokens: Sequence[int]) -> list[str]:
        """Return the output in readable form: one string per token, or the label of a classifier."""
        raise NotImplementedError

    def show_output(self, tokens: Sequence[int]) -> str:
        """Return the output as one line of text."""
        return " ".join(self.output_symbols(tokens))

    def show_prediction(self, prediction: Prediction) -> str:
        """Return a predicted output or number as one line of text."""
        if prediction.value is None:
            return self.show_output(prediction.tokens)
        return show_numbers(self.task_type, [prediction.value])[0]

    def predict(self, model: Model, rows: Inputs, decoding: DecodingConfig | None = None) -> Predictions:
        """Return a list of predictions for each input, the most likely first."""
        return [[prediction] for prediction in self.predict_best(model, rows)]

    def predict_best(self, model: Model, rows: Inputs) -> list[Prediction]:
        """Return the most likely prediction for each input."""
        raise NotImplementedError

    def decode(
        self,
        model: Model,
        split: str,
        batches: Sequence[np.ndarray],
        decoding: DecodingConfig,
        progress: Progress | None = None,
    ) -> Decoded:
        """Generate one output per example of a split. Each of `batches` is an array of example indices."""
        raise NotImplementedError

    def compare(self, outputs: Outputs, references: Outputs) -> dict[str, float]:
        """Return metrics, by name, that compare generated outputs with the references."""
        raise NotImplementedError

    def text_pairs(self, split: str) -> tuple[Sequence[str], Sequence[str]] | None:
        """Return the inputs and references of a split as text, or None if the outputs are not text.

        BLEU, chrF and TER use this original text, not a text that is reconstructed from tokens.
        """
        return None

    def locations(self, split: str, numbers: Sequence[int]) -> list[str]:
        """Return where each example comes from, as text for the user: a file and line, or a number."""
        return [f"example {number + 1}" for number in numbers]

    def count_characters(self, split: str) -> int | None:
        """Return the number of characters of a split that a language model predicts, or None for other tasks.

        The metric `bits_per_character` divides the total loss by this number.
        """
        return None

    def warning(self, tokens: Sequence[int], text: str = "") -> str | None:
        """Return a reason not to trust the output for this input, or None if there is none.

        `text` is the complete input. The tokens may cover only the beginning of the text.
        """
        return None

    def solve(self, tokens: Sequence[int]) -> list[int] | None:
        """Return the correct output tokens for an input, or None if the task cannot compute them."""
        return None

    def twin(self, tokens: np.ndarray, split: str, seed: int = 0) -> np.ndarray | None:
        """Return the input with one token changed to one that another example has at its position.

        Each seed gives another twin. Return None if no example of the same length differs.
        """
        examples = self.splits[split].inputs
        others = [np.asarray(examples[index]) for index in range(min(len(examples), TWIN_EXAMPLES))]
        if isinstance(self.task_type, CausalLM):  # the input is a prompt: the beginning of a text
            others = [other[: len(tokens)] for other in others]
        choices = [
            (int(position), int(other[position]))
            for other in others
            if len(other) == len(tokens)
            for position in np.flatnonzero(other != tokens)
        ]
        # A masked token stays masked: it is what a masked language model predicts.
        choices = [pair for pair in dict.fromkeys(choices) if int(tokens[pair[0]]) != self.mask_token]
        if not choices:
            return None
        position, token = choices[int(np.random.default_rng(seed).integers(len(choices)))]
        twin = np.array(tokens, dtype=np.int64)
        twin[position] = token
        return twin

    def label_names(self) -> Mapping[str, str]:
        """Return the labels that a probe may look for in hidden states, with a one-line explanation of each.

        Every task has the labels token, position and output besides.
        """
        return {}

    def position_labels(self, name: str, split: str, indices: Sequence[int]) -> list[Labels]:
        """Return one label of `label_names` for the positions of examples.

        A position of a decoder is that of the token it reads, one before the token that it predicts.
        """
        raise NotImplementedError

    def source_words(self, tokens: Sequence[int]) -> list[Word]:
        """Return the words of an input. Tokens that are not text belong to no word."""
        return [Word(symbol, [index]) for index, symbol in enumerate(self.input_symbols(tokens))]

    def target_words(self, tokens: Sequence[int]) -> list[Word]:
        """Return the words of an output without begin and end tokens."""
        return [Word(symbol, [index]) for index, symbol in enumerate(self.output_symbols(tokens))]

    def gold_links(self, split: str, indices: Sequence[int]) -> list[GoldLinks] | None:
        """Return the correct links between the words of inputs and targets, or None if they are not known."""
        return None

    def attention_patterns(self, tokens: Sequence[int], generated: Sequence[int] = ()) -> Patterns:
        """Return attention patterns that would solve this task, besides those that apply to every task.

        The boolean masks of shape (queries, keys) are grouped by stack (`encoder`, `decoder`, `cross`) and by
        name. Each generated token is one row of the masks for `decoder` and `cross`.
        """
        return {}


class TokenClassificationTask(Task):
    """Base class for tasks that predict one class per token."""

    collate = staticmethod(collate_token_classification)
    predict_best = staticmethod(predict_tokens)


class SequenceClassificationTask(Task):
    """Base class for tasks that predict one class or one real value per sequence."""

    collate = staticmethod(collate_sequence_classification)
    predict_best = staticmethod(predict_sequences)


class LabelTypes:
    """Distinct labels of the training split with their values in the data: texts, numbers or booleans."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, type], tuple[Any, int]] = {}
        self._stripped = 0

    def add(self, label: str, value: Any, index: int) -> None:
        """Add the label of one example, as text and as the value in the data."""
        self._first.setdefault((label, type(value)), (value, index))
        self._stripped += isinstance(value, str) and value != label

    def values(self, location: Callable[[int], str]) -> dict[str, Any]:
        """Return the labels that are not text in the data, as text to value.

        A label that occurs as text too, such as 1 and "1", is left out. Raise UserError for two labels whose
        values are equal in Python, such as True and 1: a dict of probabilities would hold only one of them.
        """
        equal: dict[Any, tuple[str, Any, int]] = {}
        numbers = {key: first for key, first in self._first.items() if issubclass(key[1], (int, float))}
        for (label, _), (value, index) in numbers.items():
            other, other_value, other_index = equal.setdefault(value, (label, value, index))
            if other != label:
                raise user_error(
                    f"the label {value!r} equals the label {other_value!r} of another type at"
                    f" {location(other_index)}",
                    path=location(index),
                    value=value,
                    hint="use one type for all labels: text, integers or booleans",
                )
        texts = {label for label, kind in self._first if kind is str}
        return {label: value for (label, _), (value, _) in numbers.items() if label not in texts}

    def notes(self) -> list[str]:
        """Return notes on labels of different types, and on labels with white space around them."""
        shown = {kind: repr(value) for (_, kind), (value, _) in self._first.items()}
        spaces = f"train: white space around {self._stripped:,} labels is not read"
        notes = [spaces] if self._stripped else []
        if not {str, bool} & shown.keys() or len(shown) == 1:
            return notes
        examples = ", ".join(f"{value} ({kind.__name__})" for kind, value in shown.items())
        return [*notes, f"WARNING: train: the labels have different types, such as {examples}"]


class CausalLMTask(Task):
    """Base class for causal language-model tasks, which predict a continuation of the input."""

    primary_metric = "loss"
    collate = staticmethod(collate_causal_lm)

    @property
    def begin(self) -> int | None:
        """Id of the token that begins a text, or None if texts begin with their first token."""
        return None

    @property
    def end(self) -> int | None:
        """Id of the token that ends a text, or None if texts end at the maximum length only."""
        return None

    @property
    def forbidden(self) -> Sequence[int]:
        """Ids of tokens that are never generated."""
        return ()

    def predict(
        self,
        model: Model,
        rows: Inputs,
        decoding: DecodingConfig | None = None,
        max_tokens: int | None = None,
    ) -> Predictions:
        return predict_continuations(
            model,
            rows,
            decoding or GreedyConfig(),
            end=self.end,
            forbidden=self.forbidden,
            max_tokens=max_tokens,
        )


class Seq2SeqTask(Task):
    """Base class for tasks that generate a sequence. Targets start with `begin` and end with `end`."""

    primary_metric = "exact_match"
    generates_outputs = True
    collate = staticmethod(collate_seq2seq)
    begin: int
    end: int
    forbidden: Sequence[int] = ()
    """Ids of tokens that are never generated, besides `begin`."""

    def predict(
        self, model: Model, rows: Inputs, decoding: DecodingConfig | None = None, is_scored: bool = True
    ) -> Predictions:
        return predict_by_decoding(
            model,
            rows,
            begin=self.begin,
            end=self.end,
            decoding=decoding or GreedyConfig(),
            forbidden=self.forbidden,
            is_scored=is_scored,
        )

    def decode(
        self,
        model: Model,
        split: str,
        batches: Sequence[np.ndarray],
        decoding: DecodingConfig,
        progress: Progress | None = None,
    ) -> Decoded:
        examples = self.splits[split]
        outputs = decode_batches(
            model,
            batches,
            lambda indices: list(examples.take(indices).inputs),
            lambda rows: self.predict(model, rows, decoding, is_scored=False),
            lambda done, total: progress("decoding batches", done, total) if progress else None,
        )
        numbers = np.array(sorted(outputs), dtype=np.int64)
        decoded = [outputs[number] for number in numbers.tolist()]
        return Decoded(
            numbers,
            decoded,
            [[int(token) for token in target[1:-1]] for target in examples.take(numbers).targets],
            [self.show_output(tokens) for tokens in decoded],
        )

    def compare(self, outputs: Outputs, references: Outputs) -> dict[str, float]:
        """Return the fraction of exact matches. Outputs and references are without `begin` and `end`."""
        pairs = zip(outputs, references, strict=True)
        same = sum(list(output) == list(reference) for output, reference in pairs)
        return {"exact_match": same / max(len(references), 1)}
