"""Causal and masked language modelling on the same texts.

Each text is enclosed in a begin and an end token; the begin token is never predicted. Texts are concatenated
and cut into windows, so that a pass over a split predicts each token exactly once. A running text
is one long text without begin and end tokens.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import groupby, islice
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator

from glassformer.blocks.heads import IGNORED
from glassformer.core.errors import ErrorDetail
from glassformer.core.registry import register
from glassformer.data.batching import (
    Batch,
    Examples,
    collate_causal_lm,
    collate_token_classification,
    draw_each,
)
from glassformer.data.columns import TEXT_ROLES
from glassformer.data.formats import Stream
from glassformer.data.readers import DataConfig
from glassformer.data.splits import is_contained, split_stream
from glassformer.data.token_rows import RaggedRows, Windows
from glassformer.data.tokenizers import MASK, RESERVED, Tokenizer, TokenizerConfig, WordsConfig
from glassformer.datasets.reviews import review_texts
from glassformer.generation import DecodingConfig
from glassformer.generation.predict import Prediction, predict_tokens
from glassformer.models.base import Model
from glassformer.models.task_types import CausalLM, MaskedLM
from glassformer.tasks.base import CausalLMTask, Inputs, Piece, Task, check_length
from glassformer.tasks.text import (
    MIN_WORDS_PER_LINE,
    SPLITS,
    Corpus,
    DataReport,
    TextTask,
    TextTaskConfig,
    keys_of,
)

ROLES = TEXT_ROLES
MASKED = RESERVED[MASK]
"""Text that marks a token to predict, for every tokenizer."""


class LanguageConfig(TextTaskConfig):
    """Options shared by all language-model tasks."""

    roles: ClassVar[Mapping[str, str]] = ROLES
    tokenizer: TokenizerConfig = Field(WordsConfig(), description="tokenizer, trained on the train split")
    max_length: int = Field(
        128,
        ge=2,
        le=100_000,
        description="tokens per window; longer texts are cut into several windows, and no token is left out",
    )
    examples: int = Field(40_000, ge=10, description="training texts to generate, unless data is set")
    across_texts: bool = Field(True, description="let windows continue from one text into the next")

    def make_task(self, tokenizer: Tokenizer) -> LanguageTask:
        raise NotImplementedError

    def build(self, seed: int) -> LanguageTask:
        corpus = self.corpora()["train"]
        task = self.make_task(self.tokenizer.train(lambda: corpus))
        task.layout = corpus.layout()
        _ = task.splits  # report errors in the files now, not at the first batch
        task.notes += self.leaks(task.corpora).notes
        return task

    def restore(self, state: Mapping[str, Any], seed: int = 0) -> LanguageTask:
        task = self.make_task(Tokenizer.from_json_tree(state["tokenizer"]))
        task.layout = state.get("layout")
        return task

    @property
    def is_running(self) -> bool:
        return self.data is not None and self.data.format == "running-text"

    @property
    def fractions(self) -> dict[str, float]:
        """Fraction of train to split off, by split: validation only. `data.test_fraction` is ignored."""
        fractions = {} if self.data is None else self.data.fractions
        return {split: part for split, part in fractions.items() if split == "validation"}

    @property
    def hash_seed(self) -> int:
        """Seed of the hashes that decide which texts are split off for validation."""
        return self.data_seed

    def leaks(self, corpora: Mapping[str, Corpus]) -> DataReport:
        """Return a report on texts of the validation and test files that also appear in the training file."""
        report = DataReport()
        if self.data is None:
            return report
        given = [split for split in ("validation", "test") if self.data.source(split) is not None]
        what = f"lines of {MIN_WORDS_PER_LINE} words or more" if self.is_running else "texts"
        train = keys_of(corpora["train"].comparable() if given else ())
        for split in given:
            is_seen = is_contained(keys_of(corpora[split].comparable()), train)
            note = f"WARNING: {split} {what} that also appear in train"
            report.count(int(np.count_nonzero(is_seen)), len(is_seen), note)
        return report

    def corpora(self) -> dict[str, Corpus]:
        if self.data is None:
            few = max(5, self.examples // 20)
            return {
                split: Corpus(review_texts(self.examples if split == "train" else few, self.data_seed, split))
                for split in SPLITS
            }
        streams = {split: self.data.stream(split, ROLES) for split in SPLITS}
        found = {split: stream for split, stream in streams.items() if stream is not None}
        if "validation" not in found:
            found |= split_stream(found["train"], "input", self.data.validation_fraction, self.data_seed)
        identity = {"data": self.data.dump(), "data_seed": self.data_seed}
        return {split: Corpus(stream, {**identity, "split": split}) for split, stream in found.items()}


class LanguageTask(TextTask):
    """Base class for language-model tasks, whose examples are windows of tokens."""

    primary_metric = "loss"
    make_task_type: ClassVar[type[CausalLM] | type[MaskedLM]] = MaskedLM
    config: LanguageConfig

    def __init__(self, config: LanguageConfig, tokenizer: Tokenizer) -> None:
        self.config = config
        self.tokenizer = tokenizer
        super().__init__(self.make_task_type(len(tokenizer), config.max_length), self._encode)

    @cached_property
    def corpora(self) -> dict[str, Corpus]:
        return self.config.corpora()

    def replace_data(self, split: str, stream: Stream, data: DataConfig) -> list[str]:
        self.corpora = {split: Corpus(stream, {"data": data.dump(), "split": split})}
        report = DataReport(self.corpora[split].notes())
        self._rows = {split: self.corpora[split].rows(self.tokenizer, report)}
        return report.notes

    def comparable(self, split: str) -> Iterable[Hashable]:
        return self.corpora[split].comparable()

    @cached_property
    def _rows(self) -> dict[str, tuple[RaggedRows, int]]:
        report = DataReport()
        rows = {split: corpus.rows(self.tokenizer, report) for split, corpus in self.corpora.items()}
        data = self.config.data
        given = [corpus for split, corpus in self.corpora.items() if data is not None and data.source(split)]
        self.notes += [note for corpus in given for note in corpus.notes()]
        if data is not None and data.validation is None:
            validation, train = (len(rows[split][0]) for split in ("validation", "train"))
            fraction = f"{100 * data.validation_fraction:g} %"
            self.notes.append(
                f"validation: the last {fraction} of the training text, split off"
                if self.config.is_running
                else f"validation: {validation:,} of {validation + train:,} training texts, split off"
                f" by a hash of each text (about {fraction})"
            )
        self.notes += report.notes
        return rows

    def _encode(self) -> dict[str, Examples]:
        examples = {}
        for split, (rows, _) in self._rows.items():
            is_within = not (self.config.across_texts or self.corpora[split].is_running)
            stride = None if split == "train" else self.stride
            windows = Windows(rows, self.window, stride=stride, within_documents=is_within)
            examples[split] = Examples(windows, windows)
        return examples

    @property
    def window(self) -> int:
        """Number of tokens that are predicted in each window."""
        return self.config.max_length

    @property
    def stride(self) -> int | None:
        """Number of tokens from one evaluation window to the next; None if the windows do not overlap."""
        return None

    def input_texts(self, split: str, indices: Sequence[int], rows: Inputs | None = None) -> list[str]:
        """Return windows as text, as they are written in the data, except for masked and replaced tokens."""
        originals = [self.splits[split].inputs[index] for index in indices]
        return [
            self._with_pieces(row, original, self._window_pieces(split, index))
            for index, original, row in zip(indices, originals, rows or originals, strict=True)
        ]

    def _with_pieces(self, row: np.ndarray, original: np.ndarray, pieces: Sequence[str]) -> str:
        shown = []
        for token, other, piece in zip(row.tolist(), original.tolist(), pieces, strict=False):
            symbol = MASKED if token == self.mask_token else self.tokenizer.decode([token]).strip()
            space = piece[: len(piece) - len(piece.lstrip())]
            shown.append(piece if token == other else space + symbol)
        return "".join(shown).strip()

    def _window_pieces(self, split: str, index: int) -> list[str]:
        """Return the part of the text that each token of a window encodes, with any space before it."""
        windows = self.splits[split].inputs
        assert isinstance(windows, Windows)
        start, stop = windows.span(index)
        offsets = windows.rows.offsets
        first = int(np.searchsorted(offsets, start, side="right")) - 1
        last = int(np.searchsorted(offsets, stop, side="left"))
        pieces: list[str] = []
        for text in islice(self.corpora[split], first, last):
            own = self._text_pieces(text)
            pieces += own if self.corpora[split].is_running else [" ", *own, ""]
        return pieces[start - int(offsets[first]) :]

    def _text_pieces(self, text: str) -> list[str]:
        """Split a text into the parts that its tokens encode, one part per token."""
        ends = [end for _, _, end in self.tokenizer.spans(text)]
        if ends:
            ends[-1] = len(text)
        return [text[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]

    def output_symbols(self, tokens: Sequence[int]) -> list[str]:
        return self.tokenizer.symbols(tokens)

    def show_output(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(tokens)


@register
class LanguageModelConfig(LanguageConfig):
    """Causal language model: predict each token from the preceding ones, on your own or generated texts.

    Use it to generate text, and to pre-train a model for other tasks.
    """

    kind: Literal["language-model"] = "language-model"
    stride: int | None = Field(
        None,
        ge=1,
        description="step between evaluation windows in tokens; a smaller step gives each token more context "
        "and takes longer; none: max_length",
    )

    @model_validator(mode="after")
    def _check_stride(self) -> Self:
        if self.stride is not None and self.stride > self.max_length:
            raise ErrorDetail(
                f"must be at most max_length, which is {self.max_length}; otherwise tokens are skipped",
                path="stride",
                value=self.stride,
                hint=f"task.stride={max(1, self.max_length // 2)}",
            )
        return self

    def make_task(self, tokenizer: Tokenizer) -> CausalLanguageTask:
        return CausalLanguageTask(self, tokenizer)


class CausalLanguageTask(LanguageTask, CausalLMTask):
    """Causal language-model task: predicts each token from the preceding tokens."""

    make_task_type = CausalLM
    config: LanguageModelConfig

    @property
    def stride(self) -> int | None:
        return self.config.stride

    def count_characters(self, split: str) -> int:
        """Return the number of characters that the model predicts in a pass over a split.

        An end token counts as one character. The first token of a running text is not predicted.
        """
        return self._rows[split][1]

    def collate(self, examples: Examples, indices: np.ndarray) -> Batch:
        batch = collate_causal_lm(examples, indices)
        if self.tokenizer.begin != self.tokenizer.end:  # a model that has one token for both predicts it
            batch.targets.masked_fill_(batch.targets == self.tokenizer.begin, IGNORED)
        if isinstance(examples.inputs, Windows):
            for targets_L, index in zip(batch.targets, indices, strict=True):
                targets_L[: examples.inputs.seen_before(int(index))] = IGNORED
        return batch

    def parse(self, text: str) -> np.ndarray:
        if not text:
            raise ErrorDetail("the line is empty: nothing to continue", hint="glassformer generate RUN")
        return check_length(self.start(text), self.config.max_length)

    def start(self, text: str) -> list[int]:
        """Return a prompt as token ids, never empty: a begin token and the tokens of the text.

        For running text there is no begin token, and an empty prompt becomes a line break. Some imported
        models read the begin token only if the prompt is empty.
        """
        tokens: list[int] = self.tokenizer.encode(text).tolist()
        if self.config.is_running:
            return tokens or self.tokenizer.encode("\n").tolist()
        return [self.tokenizer.begin, *tokens] if self.tokenizer.begins_prompts or not tokens else tokens

    @property
    def begin(self) -> int | None:
        return self.tokenizer.begin if not self.config.is_running and self.tokenizer.begins_prompts else None

    @property
    def end(self) -> int | None:
        return None if self.config.is_running else self.tokenizer.end

    @property
    def forbidden(self) -> Sequence[int]:
        return [token for token in self.tokenizer.special_ids if token != self.end]

    def generate(
        self, model: Model, tokens: Sequence[int], length: int, decodings: Iterable[DecodingConfig]
    ) -> Iterator[list[int]]:
        """Yield up to `length` generated tokens in chunks, each decoded with the next of `decodings`.

        A chunk ends when the context is full. The next chunk continues from the second half of the context.
        """
        generated, left = list(tokens), length
        half = self.config.max_length // 2
        for decoding in decodings:
            window = generated if len(generated) < self.config.max_length else generated[-half:]
            ((best, *_),) = self.predict(model, [np.array(window)], decoding, max_tokens=left)
            chunk = best.tokens
            generated += chunk
            left -= len(chunk)
            yield chunk
            has_ended = len(best.probabilities) > len(best.tokens)
            if has_ended or left <= 0:
                return


@register
class MaskedLanguageModelConfig(LanguageConfig):
    """Predict masked tokens from the tokens on both sides (Devlin et al. 2019), on your own or generated
    texts.

    Use it to pre-train a classifier when labels are few and text is plenty.
    """

    kind: Literal["masked-language-model"] = "masked-language-model"
    masked_fraction: float = Field(0.15, gt=0, lt=1, description="fraction of tokens to predict")

    def make_task(self, tokenizer: Tokenizer) -> MaskedLanguageTask:
        return MaskedLanguageTask(self, tokenizer)


class MaskedLanguageTask(LanguageTask):
    """Masked language-model task: 80 % of the target tokens are masked, 10 % replaced, 10 % unchanged."""

    config: MaskedLanguageModelConfig

    def __init__(self, config: MaskedLanguageModelConfig, tokenizer: Tokenizer) -> None:
        if tokenizer.mask < 0:
            hint = "use task.kind=language-model, or a tokenizer with a mask token"
            raise ErrorDetail("the tokenizer has no mask token", path="task.tokenizer", hint=hint)
        self.mask_token = tokenizer.mask
        super().__init__(config, tokenizer)

    @cached_property
    def _is_text_V(self) -> torch.Tensor:
        return torch.from_numpy(self.tokenizer.is_text)

    @cached_property
    def _text_ids(self) -> torch.Tensor:
        return self._is_text_V.nonzero().squeeze(1)

    @property
    def window(self) -> int:
        return self.config.max_length - 1  # consecutive windows share one token

    def batch(self, split: str, indices: np.ndarray, epoch: int | None = None) -> Batch:
        """Collate examples and mask tokens. The mask depends on seed, split, epoch and example index."""
        plain = collate_token_classification(self.splits[split], indices)
        tokens_BL, targets_BL = plain.inputs["tokens"], plain.targets
        assert tokens_BL is not None
        # Drawn position by position, so that the length of the batch does not change a row.
        shape = (tokens_BL.shape[1], 3)
        draws_BL3 = draw_each(shape, self.config.data_seed, "mask", split, epoch or 0, indices=indices)
        chosen, action, other = draws_BL3.unbind(-1)
        is_predicted = (chosen < self.config.masked_fraction) & self._is_text_V[tokens_BL]
        replaced = self._text_ids[(other * len(self._text_ids)).long()]
        seen_BL = torch.where(is_predicted & (action < 0.8), self.mask_token, tokens_BL)
        seen_BL = torch.where(is_predicted & (action >= 0.9), replaced, seen_BL)
        targets_BL = targets_BL.masked_fill(~is_predicted, IGNORED)
        return replace(plain, inputs={**plain.inputs, "tokens": seen_BL}, targets=targets_BL)

    def parse(self, text: str) -> np.ndarray:
        """Return the token ids of a text in which `<mask>` marks each token to predict."""
        parts = text.split(MASKED)
        if len(parts) == 1:
            raise ErrorDetail(f"no {MASKED} in the line: nothing to fill in")
        first, *others = parts
        tokens = self.tokenizer.encode(self._without_space_after(first)).tolist()
        for part in others:
            tokens += [self.mask_token, *self._encode_after_mask(self._without_space_after(part))]
        enclosed = [self.tokenizer.begin, *tokens, self.tokenizer.end]
        return check_length(enclosed, self.config.max_length)

    def _without_space_after(self, text: str) -> str:
        """Return the text before a mask without the space at its end, if tokens start with a space.

        The predicted word then contains that space.
        """
        return text.rstrip(" ") if self.tokenizer.has_space_before else text

    def _encode_after_mask(self, text: str) -> list[int]:
        """Return the token ids of the text that follows a mask.

        No space is added before the text, because it may start with punctuation.
        """
        if self.tokenizer.has_space_before and text.startswith(" "):
            return self.tokenizer.encode(text[1:]).tolist()
        return self.tokenizer.encode_continuation(text).tolist()

    def pieces(self, text: str) -> list[Piece]:
        found, at = [], 0
        for number, part in enumerate(text.split(MASKED)):
            if number:
                found.append(Piece(at - len(MASKED), at))
            read = self._without_space_after(part)
            skipped = int(bool(number) and self.tokenizer.has_space_before and read.startswith(" "))
            found += [
                Piece(at + skipped + start, at + skipped + end, is_known)
                for start, end, is_known in super().pieces(read[skipped:])
            ]
            at += len(part) + len(MASKED)
        return found

    def show_input(self, tokens: Sequence[int]) -> str:
        parts = [list(run) for _, run in groupby(tokens, key=lambda token: token == self.mask_token)]
        shown = [MASKED * len(run) if run[0] == self.mask_token else self._as_typed(run) for run in parts]
        return (" " if self.tokenizer.omits_spaces else "").join(shown).strip()

    def _as_typed(self, tokens: Sequence[int]) -> str:
        if self.tokenizer.omits_spaces:
            return self.tokenizer.decode(tokens)
        unseen = (self.tokenizer.pad, self.tokenizer.begin, self.tokenizer.end)
        shown = [token for token in tokens if token not in unseen]
        return "".join(self.tokenizer.symbols(shown)).replace("▁", " ")

    def predict_best(self, model: Model, rows: Inputs) -> list[Prediction]:
        """Predict the masked tokens. Visible tokens are copied with probability 1.

        Special tokens are never predicted, because they are never targets in training.
        """
        filled = []
        for row, best in zip(rows, predict_tokens(model, rows, self.tokenizer.special_ids), strict=True):
            is_masked = np.asarray(row) == self.mask_token
            tokens = np.where(is_masked, best.tokens, row).tolist()
            probabilities = np.where(is_masked, best.probabilities, 1.0).tolist()
            probability = math.prod(probabilities)
            filled.append(replace(best, tokens=tokens, probability=probability, probabilities=probabilities))
        return filled


def prompt_warning(task: Task, prompt: str) -> str | None:
    """Return which parts of a prompt are unknown to a language model, or None."""
    return task.warning(task.start(prompt), prompt) if isinstance(task, CausalLanguageTask) else None


def warn_about_prompt(task: Task, prompt: str) -> None:
    """Give a Python warning, at the caller of the calling function, if the model does not know a word."""
    warning = prompt_warning(task, prompt)
    if warning is not None:
        warnings.warn(f"the prompt: {warning}", stacklevel=3)
