"""Task base classes: examples in splits, the task type of the model, parsing of inputs, text of outputs."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from glassformer.core.errors import ErrorDetail, UserError, user_error
from glassformer.core.registry import Kind
from glassformer.data.batching import (
    Batch,
    Examples,
    collate_causal_lm,
    collate_seq2seq,
    collate_sequence_classification,
    collate_token_classification,
)
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
from glassformer.models.task_types import TaskType

Splits = Mapping[str, Examples]
Inputs = Sequence[np.ndarray]
Predictions = list[list[Prediction]]
Outputs = Sequence[Sequence[int]]
Patterns = dict[str, dict[str, np.ndarray]]
"""Masks over (query, key) by stack and name."""


def parse_number(value: Any) -> float:
    """Read a finite float32 number from a cell of a file; raise ErrorDetail if it is not one."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, bool) or not abs(number) <= np.finfo(np.float32).max:
        hint = "a number with a point, such as 0.5; task.data.header=true, if that is a header"
        raise ErrorDetail("not a number", value=value, hint=f"{hint}; or task.target=label")
    return number


def at_location(detail: ErrorDetail, location: str) -> UserError:
    """Add the file and line to an error in the data."""
    return user_error(detail.message, path=location, value=detail.value, hint=detail.hint)


def check_length(tokens: Sequence[int] | np.ndarray, longest: int) -> np.ndarray:
    """Convert the tokens of an input to an array; raise ErrorDetail if they are more than `longest`."""
    if len(tokens) > longest:
        raise ErrorDetail(f"too long: {len(tokens)} tokens, and the model reads at most {longest}")
    return np.array(tokens, dtype=np.int64)


class TaskConfig(Kind):
    """Task to learn, and its data."""

    def build(self, seed: int) -> Task:
        """Build the task. The `seed` of a run never affects the examples or their splits."""
        raise NotImplementedError

    def restore(self, state: Mapping[str, Any], seed: int = 0) -> Task:
        """Restore the task of a trained run from its `state`. Data files are read on first use of a split."""
        return self.build(seed)


class Task:
    """Examples in the splits `train`, `validation` and, if there is one, `test`."""

    primary_metric: ClassVar[str] = "accuracy"
    """Metric that is shown first and selects the best checkpoint."""
    drop_last: ClassVar[bool] = False
    """Drop the last, incomplete batch of a training epoch."""
    generates_outputs: ClassVar[bool] = False
    """Outputs are generated token by token, so evaluation decodes them."""

    def __init__(
        self, task_type: TaskType, splits: Splits | Callable[[], Splits], notes: Sequence[str] = ()
    ) -> None:
        """Pass `splits` as a function to read them on first use. `notes` describe the data for the user."""
        self.task_type = task_type
        self.notes = list(notes)
        self._splits = splits

    @cached_property
    def splits(self) -> dict[str, Examples]:
        return dict(self._splits() if callable(self._splits) else self._splits)

    def state(self) -> dict[str, Any]:
        """JSON state that `restore` needs besides the config: tokenizers and vocabularies."""
        return {}

    def collate(self, examples: Examples, indices: np.ndarray) -> Batch:
        raise NotImplementedError

    def batch(self, split: str, indices: np.ndarray, epoch: int | None = None) -> Batch:
        """Collate examples into tensors, a function of the arguments alone.

        `epoch` is a number in training and None in evaluation.
        """
        return self.collate(self.splits[split], indices)

    def checksum(self) -> str:
        """SHA-256 over all examples of all splits."""
        digest = hashlib.sha256()
        for name, examples in sorted(self.splits.items()):
            digest.update(f"{name}:{examples.checksum()};".encode())
        return digest.hexdigest()

    def parse(self, text: str) -> np.ndarray:
        """Convert the text a user typed to token ids; raise ErrorDetail if it is invalid."""
        raise NotImplementedError

    def input_symbols(self, tokens: Sequence[int]) -> list[str]:
        """Readable input tokens, one string per token."""
        raise NotImplementedError

    def show_input(self, tokens: Sequence[int]) -> str:
        """Input as a user would type it."""
        return " ".join(self.input_symbols(tokens))

    def output_symbols(self, tokens: Sequence[int]) -> list[str]:
        """Readable output, one string per token, or the label."""
        raise NotImplementedError

    def show_output(self, tokens: Sequence[int]) -> str:
        """Output as one line."""
        return " ".join(self.output_symbols(tokens))

    def predict(self, model: Model, rows: Inputs, decoding: DecodingConfig | None = None) -> Predictions:
        """Predict for each input, most likely output first."""
        return [[prediction] for prediction in self.predict_best(model, rows)]

    def predict_best(self, model: Model, rows: Inputs) -> list[Prediction]:
        """Predict the most likely output of each input."""
        raise NotImplementedError

    def decode(
        self,
        model: Model,
        split: str,
        batches: Sequence[np.ndarray],
        decoding: DecodingConfig,
        progress: Progress | None = None,
    ) -> Decoded:
        """Decode these examples of a split, one output per example."""
        raise NotImplementedError

    def compare(self, outputs: Outputs, references: Outputs) -> dict[str, float]:
        """Metrics of generated outputs against references."""
        raise NotImplementedError

    def text_pairs(self, split: str) -> tuple[Sequence[str], Sequence[str]] | None:
        """Inputs and references of a split as text, or None if the outputs are not text.

        BLEU, chrF and TER use this text of the data, not its reconstruction from tokens.
        """
        return None

    def locations(self, split: str, numbers: Sequence[int]) -> list[str]:
        """File and line of examples of a split, for the user."""
        return [f"example {number + 1}" for number in numbers]

    def count_characters(self, split: str) -> int | None:
        """Number of characters of the predicted tokens of a split, or None if the outputs are not text.

        The metric `bits_per_character` divides by it.
        """
        return None

    def warning(self, tokens: Sequence[int], text: str = "") -> str | None:
        """Reason not to trust the output for this input, or None.

        `text` is the complete input, which the tokens may cover only in part.
        """
        return None

    def solve(self, tokens: Sequence[int]) -> list[int] | None:
        """Correct output for an input, or None if the task cannot compute it."""
        return None

    def attention_patterns(self, tokens: Sequence[int], generated: Sequence[int] = ()) -> Patterns:
        """Attention patterns that would solve this task, besides those that every task has.

        Masks over (query, key) by stack (`encoder`, `decoder`, `cross`) and name. Each generated token is one
        row of `decoder` and `cross`.
        """
        return {}


class TokenClassificationTask(Task):
    """One class per token."""

    collate = staticmethod(collate_token_classification)
    predict_best = staticmethod(predict_tokens)


class SequenceClassificationTask(Task):
    """One class or one real value per sequence."""

    collate = staticmethod(collate_sequence_classification)
    predict_best = staticmethod(predict_sequences)


class CausalLMTask(Task):
    """Causal language model; it predicts a continuation of its input."""

    primary_metric = "loss"
    collate = staticmethod(collate_causal_lm)

    def predict(self, model: Model, rows: Inputs, decoding: DecodingConfig | None = None) -> Predictions:
        return predict_continuations(model, rows, decoding or GreedyConfig())


class Seq2SeqTask(Task):
    """Generated output sequences; targets start with `begin` and end with `end`."""

    primary_metric = "exact_match"
    generates_outputs = True
    collate = staticmethod(collate_seq2seq)
    begin: int
    end: int
    forbidden: ClassVar[Sequence[int]] = ()
    """Tokens that are never generated, besides `begin`."""

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
            lambda done, total: progress("decoding", done, total) if progress else None,
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
        """Fraction of exact matches; both sides are without `begin` and `end`."""
        pairs = zip(outputs, references, strict=True)
        same = sum(list(output) == list(reference) for output, reference in pairs)
        return {"exact_match": same / max(len(references), 1)}
