"""What a task is: examples in splits, the shape of model it needs, and how a person reads and writes them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

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
from glassformer.generation import DecodingConfig, GreedyConfig, concurrency, round_robin, run_concurrently
from glassformer.generation.predict import (
    Prediction,
    predict_by_decoding,
    predict_continuations,
    predict_sequences,
    predict_tokens,
)
from glassformer.models.base import Model
from glassformer.models.task_types import TaskType

Splits = Mapping[str, Examples]


class TaskConfig(Kind):
    """What is to be learned, and from which data."""

    def build(self, seed: int) -> Task:
        """The task; a run's `seed` never decides which examples there are, nor in which split."""
        raise NotImplementedError

    def restore(self, state: Mapping[str, Any], seed: int = 0) -> Task:
        """The task of a trained run, from its `state`: no data file is read before a split is asked for."""
        return self.build(seed)


class Task:
    """Examples in splits `train`, `validation` and, where there is one, `test`."""

    primary_metric: ClassVar[str] = "accuracy"
    """The metric a person looks at first."""
    drop_last: ClassVar[bool] = False
    """Whether training leaves out the last, incomplete batch of an epoch."""
    generates_outputs: ClassVar[bool] = False
    """Whether answers are written token by token, and so are decoded to be measured."""

    def __init__(
        self, task_type: TaskType, splits: Splits | Callable[[], Splits], notes: Sequence[str] = ()
    ) -> None:
        """`splits` may be a function, called when first needed; `notes` tell a person about the data."""
        self.task_type = task_type
        self.notes = list(notes)
        self._splits = splits

    @cached_property
    def splits(self) -> dict[str, Examples]:
        return dict(self._splits() if callable(self._splits) else self._splits)

    def state(self) -> dict[str, Any]:
        """What `restore` needs besides the config, as JSON: what was learned from the data files."""
        return {}

    def collate(self, examples: Examples, indices: np.ndarray) -> Batch:
        raise NotImplementedError

    def batch(self, split: str, indices: np.ndarray, epoch: int | None = None) -> Batch:
        """These examples as tensors; the same for the same arguments, always.

        An epoch is given where they are trained on, and none where they are measured.
        """
        return self.collate(self.splits[split], indices)

    def checksum(self) -> str:
        """SHA-256 over all examples of all splits."""
        digest = hashlib.sha256()
        for name, examples in sorted(self.splits.items()):
            digest.update(f"{name}:{examples.checksum()};".encode())
        return digest.hexdigest()

    def parse(self, text: str) -> np.ndarray:
        """What a person typed, as token numbers; a ErrorDetail if it cannot be."""
        raise NotImplementedError

    def input_symbols(self, tokens: Sequence[int]) -> list[str]:
        """Input tokens as a person reads them, one string a token."""
        raise NotImplementedError

    def show_input(self, tokens: Sequence[int]) -> str:
        """Input tokens as a person would type them."""
        return " ".join(self.input_symbols(tokens))

    def output_symbols(self, tokens: Sequence[int]) -> list[str]:
        """Answers as a person reads them, one string a token, or the one label."""
        raise NotImplementedError

    def show_output(self, tokens: Sequence[int]) -> str:
        """The whole answer as one line."""
        return " ".join(self.output_symbols(tokens))

    def predict(
        self, model: Model, rows: Sequence[np.ndarray], decoding: DecodingConfig | None = None
    ) -> list[list[Prediction]]:
        """What the model says to each input, the likeliest answer first."""
        raise NotImplementedError

    def decode(
        self,
        model: Model,
        split: str,
        batches: Sequence[np.ndarray],
        decoding: DecodingConfig,
        progress: Progress | None = None,
    ) -> Decoded:
        """What the model writes for these examples, the best answer to each."""
        raise NotImplementedError

    def compare(
        self, outputs: Sequence[Sequence[int]], references: Sequence[Sequence[int]]
    ) -> dict[str, float]:
        """Metrics of decoded answers against the right ones, for a task that writes answers."""
        raise NotImplementedError

    def text_pairs(self, split: str) -> tuple[Sequence[str], Sequence[str]] | None:
        """The inputs and the right answers of a split as they stand in the data, where answers are text.

        BLEU, chrF and TER are then measured against these, not against what a tokenizer made of them.
        """
        return None

    def places(self, split: str, numbers: Sequence[int]) -> list[str]:
        """Where these examples of a split are to be found, for a person who looks for them."""
        return [f"example {number + 1}" for number in numbers]

    def characters(self, split: str) -> int | None:
        """How many characters of text the predicted tokens of a whole split stand for.

        The bits per character of a language model are counted over these; none: it has no such number.
        """
        return None

    def caution(self, tokens: Sequence[int], text: str = "") -> str | None:
        """Why an answer to this input should not be trusted, if the task knows a reason.

        `text` is what was typed, of which the tokens may be a part.
        """
        return None

    def solve(self, tokens: Sequence[int]) -> list[int] | None:
        """The right answer to an input, where the task itself knows it."""
        return None

    def attention_patterns(
        self, tokens: Sequence[int], written: Sequence[int] = ()
    ) -> dict[str, dict[str, np.ndarray]]:
        """What a head that serves this task might look at, besides the patterns that every task has.

        By place (`encoder`, `decoder`, `cross`) and name, True on the cells (query, key). `written` are the
        tokens that are being written, a row of `decoder` and `cross` each.
        """
        return {}


class TokenClassificationTask(Task):
    collate = staticmethod(collate_token_classification)

    def predict(
        self, model: Model, rows: Sequence[np.ndarray], decoding: DecodingConfig | None = None
    ) -> list[list[Prediction]]:
        return [[answer] for answer in predict_tokens(model, rows)]


class SequenceClassificationTask(Task):
    collate = staticmethod(collate_sequence_classification)

    def predict(
        self, model: Model, rows: Sequence[np.ndarray], decoding: DecodingConfig | None = None
    ) -> list[list[Prediction]]:
        return [[answer] for answer in predict_sequences(model, rows)]


class CausalLMTask(Task):
    """A language model: asked, it goes on from what it was given."""

    primary_metric = "loss"
    collate = staticmethod(collate_causal_lm)

    def predict(
        self, model: Model, rows: Sequence[np.ndarray], decoding: DecodingConfig | None = None
    ) -> list[list[Prediction]]:
        return predict_continuations(model, rows, decoding or GreedyConfig())


class Seq2SeqTask(Task):
    """Targets begin with `begin` and end with `end`; answers are written token by token."""

    primary_metric = "exact_match"
    generates_outputs = True
    collate = staticmethod(collate_seq2seq)
    begin: int
    end: int
    forbidden: ClassVar[Sequence[int]] = ()
    """Tokens that an answer never holds, besides `begin`."""

    def predict(
        self,
        model: Model,
        rows: Sequence[np.ndarray],
        decoding: DecodingConfig | None = None,
        is_scored: bool = True,
    ) -> list[list[Prediction]]:
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
        def report(done: int) -> None:
            if progress is not None:
                progress("decoding", done, len(taken))

        parts = concurrency(model)
        dealt_out = [np.array(part) for indices in batches for part in round_robin(indices.tolist(), parts)]
        taken = [(indices, list(self.splits[split].take(indices).inputs)) for indices in dealt_out]
        taken.sort(key=lambda batch: -sum(map(len, batch[1])))
        answers = run_concurrently(
            model,
            lambda batch: self.predict(model, batch[1], decoding, is_scored=False),
            taken,
            report,
        )
        outputs = {
            int(index): best.tokens
            for (indices, _), of_batch in zip(taken, answers, strict=True)
            for index, (best, *_) in zip(indices, of_batch, strict=True)
        }
        numbers = np.array(sorted(outputs), dtype=np.int64)
        written = [outputs[number] for number in numbers.tolist()]
        targets = self.splits[split].take(numbers).targets
        return Decoded(
            numbers,
            written,
            [[int(token) for token in target[1:-1]] for target in targets],
            [self.show_output(tokens) for tokens in written],
        )

    def compare(
        self, outputs: Sequence[Sequence[int]], references: Sequence[Sequence[int]]
    ) -> dict[str, float]:
        """Both are without `begin` and `end`."""
        same = sum(
            list(output) == list(reference) for output, reference in zip(outputs, references, strict=True)
        )
        return {"exact_match": same / max(len(references), 1)}
