"""Language modelling: each token from those before it, or hidden ones from both sides. One way of the data.

A text stands between a begin and an end token; the begin is never predicted. Texts are joined and cut into
windows, so that each token is predicted exactly once in a pass over a split. A running text is one stream.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import groupby
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
from glassformer.data.readers import split_stream
from glassformer.data.row_keys import stand_in
from glassformer.data.token_rows import RaggedRows, Windows
from glassformer.data.tokenizers import (
    BEGIN,
    END,
    MASK,
    PAD,
    RESERVED,
    UNKNOWN,
    Tokenizer,
    TokenizerConfig,
    WordsConfig,
)
from glassformer.datasets.reviews import review_texts
from glassformer.generation import DecodingConfig, GreedyConfig
from glassformer.generation.predict import Prediction, predict_continuations, predict_tokens
from glassformer.models.base import Model
from glassformer.models.task_types import CausalLM, MaskedLM
from glassformer.tasks.base import CausalLMTask, Task
from glassformer.tasks.text import (
    SPLITS,
    WORDS_OF_A_LINE,
    Corpus,
    DataReport,
    TextTaskConfig,
    keys_of,
    unknown_words,
)

ROLES = {"input": "text"}


class LanguageConfig(TextTaskConfig):
    """Options of both kinds of language model."""

    roles: ClassVar[Mapping[str, str]] = ROLES
    tokenizer: TokenizerConfig = WordsConfig()
    examples: int = Field(40_000, ge=10, description="texts to make for training, without data")
    across_texts: bool = Field(True, description="a window may run from the end of a text into the next")

    @property
    def is_running(self) -> bool:
        return self.data is not None and self.data.format == "running-text"

    def leaks(self, corpora: Mapping[str, Corpus]) -> DataReport:
        """What a file of validation or test texts shares with the training file."""
        told = DataReport()
        if self.data is None:
            return told
        given = [split for split in ("validation", "test") if self.data.source(split) is not None]
        what = f"lines of {WORDS_OF_A_LINE} words or more" if self.is_running else "texts"
        train = keys_of(corpora["train"].comparable() if given else ())
        for split in given:
            is_seen = stand_in(keys_of(corpora[split].comparable()), train)
            note = f"WARNING: {split} {what} that also stand in train"
            told.count(int(np.count_nonzero(is_seen)), len(is_seen), note)
        return told

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


class LanguageTask(Task):
    primary_metric = "loss"
    config: LanguageConfig

    def __init__(self, config: LanguageConfig, tokenizer: Tokenizer, task_type: CausalLM | MaskedLM) -> None:
        self.config = config
        self.tokenizer = tokenizer
        super().__init__(task_type, self._encode)

    def state(self) -> dict[str, Any]:
        return {"tokenizer": self.tokenizer.tree()}

    @cached_property
    def corpora(self) -> dict[str, Corpus]:
        return self.config.corpora()

    @cached_property
    def _rows(self) -> dict[str, tuple[RaggedRows, int]]:
        told = DataReport()
        rows = {split: corpus.rows(self.tokenizer, told) for split, corpus in self.corpora.items()}
        data = self.config.data
        given = [corpus for split, corpus in self.corpora.items() if data is not None and data.source(split)]
        self.notes += [note for corpus in given for note in corpus.notes()]
        if data is not None and data.validation is None:
            validation, train = (len(rows[split][0]) for split in ("validation", "train"))
            self.notes.append(
                f"validation: the last {100 * data.validation_fraction:g} % of the training text, split off"
                if self.config.is_running
                else f"validation: {validation:,} of {validation + train:,} training texts, split off"
            )
        self.notes += told.notes
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
        """How many tokens a window predicts."""
        return self.config.max_length

    @property
    def stride(self) -> int | None:
        """How many tokens a window goes on by where a split is measured; none: by all it predicts."""
        return None

    def characters(self, split: str) -> int | None:
        """How many characters the tokens that are predicted stand for; the end of a text counts as one."""
        return self._rows[split][1]

    def input_symbols(self, tokens: Sequence[int]) -> list[str]:
        return self.tokenizer.symbols(tokens)

    def show_input(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(tokens)

    def output_symbols(self, tokens: Sequence[int]) -> list[str]:
        return self.tokenizer.symbols(tokens)

    def show_output(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(tokens)

    def caution(self, tokens: Sequence[int], text: str = "") -> str | None:
        return unknown_words(tokens)

    def _checked(self, tokens: Sequence[int], longest: int) -> np.ndarray:
        if len(tokens) > longest:
            raise ErrorDetail(f"too long: {len(tokens)} tokens, and the model reads at most {longest}")
        return np.array(tokens, dtype=np.int64)


def _trained_on(corpus: Iterable[str], config: TokenizerConfig) -> Tokenizer:
    return config.train(lambda: corpus)


@register
class LanguageModelConfig(LanguageConfig):
    """Each token from those before it: your own texts, or reviews that are made here."""

    kind: Literal["language-model"] = "language-model"
    stride: int | None = Field(
        None,
        ge=1,
        description="tokens a window goes on by when a split is measured; fewer than max_length gives each "
        "token more to go by, and takes longer; none: max_length",
    )

    @model_validator(mode="after")
    def _no_token_is_passed_over(self) -> Self:
        if self.stride is not None and self.stride > self.max_length:
            raise ErrorDetail(
                f"at most max_length, which is {self.max_length}, else tokens are passed over",
                path="stride",
                value=self.stride,
                hint=f"task.stride={max(1, self.max_length // 2)}",
            )
        return self

    def build(self, seed: int) -> CausalLanguageTask:
        task = CausalLanguageTask(self, _trained_on(self.corpora()["train"], self.tokenizer))
        _ = task.splits  # a file's faults show now, not at the first batch
        task.notes += self.leaks(task.corpora).notes
        return task

    def restore(self, state: Mapping[str, Any], seed: int = 0) -> CausalLanguageTask:
        return CausalLanguageTask(self, Tokenizer.from_tree(state["tokenizer"]))


class CausalLanguageTask(LanguageTask, CausalLMTask):
    config: LanguageModelConfig

    def __init__(self, config: LanguageModelConfig, tokenizer: Tokenizer) -> None:
        super().__init__(config, tokenizer, CausalLM(len(tokenizer), config.max_length))

    @property
    def stride(self) -> int | None:
        return self.config.stride

    def collate(self, examples: Examples, indices: np.ndarray) -> Batch:
        batch = collate_causal_lm(examples, indices)
        batch.targets.masked_fill_(batch.targets == BEGIN, IGNORED)
        if isinstance(examples.inputs, Windows):
            for targets_L, index in zip(batch.targets, indices, strict=True):
                targets_L[: examples.inputs.seen_before(int(index))] = IGNORED
        return batch

    def parse(self, text: str) -> np.ndarray:
        if not text:
            raise ErrorDetail("the line is empty: nothing to go on from", hint="glassformer generate RUN")
        return self._checked(self.start(text), self.config.max_length)

    def start(self, text: str) -> list[int]:
        """The beginning of a text. Nothing at all is one too; a running text has no begin, but lines."""
        tokens = [int(token) for token in self.tokenizer.encode(text)]
        if not self.config.is_running:
            return [BEGIN, *tokens]
        return tokens or [int(token) for token in self.tokenizer.encode("\n")]

    def predict(
        self, model: Model, rows: Sequence[np.ndarray], decoding: DecodingConfig | None = None
    ) -> list[list[Prediction]]:
        forbidden = [PAD, UNKNOWN, BEGIN, MASK]
        end = None if self.config.is_running else END
        if end is None:
            forbidden.append(END)
        return predict_continuations(model, rows, decoding or GreedyConfig(), end=end, forbidden=forbidden)

    def write(
        self, model: Model, tokens: Sequence[int], length: int, decodings: Iterable[DecodingConfig]
    ) -> Iterator[list[int]]:
        """Up to `length` tokens more, part by part, each with a decoding of its own.

        Where the model's window is full, it goes on from the later half of it.
        """
        written, left = list(tokens), length
        half = self.config.max_length // 2
        for decoding in decodings:
            window = written if len(written) < self.config.max_length else written[-half:]
            ((answer, *_),) = self.predict(model, [np.array(window)], decoding)
            part = answer.tokens[:left]
            written += part
            left -= len(part)
            yield part
            has_ended = len(answer.probabilities) > len(answer.tokens)
            if has_ended or left <= 0:
                return


@register
class MaskedLanguageModelConfig(LanguageConfig):
    """Hidden tokens from both sides (Devlin et al. 2019): your own texts, or reviews that are made here."""

    kind: Literal["masked-language-model"] = "masked-language-model"
    masked_fraction: float = Field(0.15, gt=0, lt=1, description="of the tokens, to be predicted")

    def build(self, seed: int) -> MaskedLanguageTask:
        task = MaskedLanguageTask(self, _trained_on(self.corpora()["train"], self.tokenizer))
        _ = task.splits
        task.notes += self.leaks(task.corpora).notes
        return task

    def restore(self, state: Mapping[str, Any], seed: int = 0) -> MaskedLanguageTask:
        return MaskedLanguageTask(self, Tokenizer.from_tree(state["tokenizer"]))


class MaskedLanguageTask(LanguageTask):
    """Of the tokens to predict 80 % are hidden, 10 % are replaced by any other, and 10 % stay."""

    config: MaskedLanguageModelConfig

    def __init__(self, config: MaskedLanguageModelConfig, tokenizer: Tokenizer) -> None:
        super().__init__(config, tokenizer, MaskedLM(len(tokenizer), config.max_length))

    @property
    def window(self) -> int:
        return self.config.max_length - 1  # a window's last token is the next one's first

    def characters(self, split: str) -> int | None:
        return None

    def batch(self, split: str, indices: np.ndarray, epoch: int | None = None) -> Batch:
        """What is hidden follows from split, epoch and number of an example."""
        plain = collate_token_classification(self.splits[split], indices)
        tokens_BL, targets_BL = plain.inputs["tokens"], plain.targets
        assert tokens_BL is not None
        # A place takes its draws before the next: the longest row is another's.
        shape = (tokens_BL.shape[1], 3)
        draws_BL3 = draw_each(shape, self.config.data_seed, "mask", split, epoch or 0, indices=indices)
        chosen, fate, other = draws_BL3.unbind(-1)
        is_asked = (chosen < self.config.masked_fraction) & (tokens_BL >= len(RESERVED))
        replaced = (other * (len(self.tokenizer) - len(RESERVED))).long() + len(RESERVED)
        seen_BL = torch.where(is_asked & (fate < 0.8), MASK, tokens_BL)
        seen_BL = torch.where(is_asked & (fate >= 0.9), replaced, seen_BL)
        targets_BL = targets_BL.masked_fill(~is_asked, IGNORED)
        return replace(plain, inputs={**plain.inputs, "tokens": seen_BL}, targets=targets_BL)

    def parse(self, text: str) -> np.ndarray:
        """A typed text in which `<mask>` stands for a hidden token."""
        parts = text.split(RESERVED[MASK])
        if len(parts) == 1:
            raise ErrorDetail(f"no {RESERVED[MASK]} in the line: nothing to fill in")
        first, *others = parts
        tokens = self.tokenizer.encode(self._without_space_after(first)).tolist()
        for part in others:
            tokens += [MASK, *self._encode_after_mask(self._without_space_after(part))]
        return self._checked([BEGIN, *tokens, END], self.config.max_length)

    def _without_space_after(self, text: str) -> str:
        """The space before a hidden word is a part of the word, unless each space is a token."""
        return text.rstrip(" ") if self.tokenizer.has_space_before else text

    def _encode_after_mask(self, text: str) -> list[int]:
        """A sign may follow at once; a tokenizer that puts a space before a text would part the two."""
        if not self.tokenizer.has_space_before:
            return [int(token) for token in self.tokenizer.encode(text)]
        if not text or text.startswith(" "):
            return [int(token) for token in self.tokenizer.encode(text[1:])]
        word, whole = (self.tokenizer.encode(begun).tolist() for begun in ("a", f"a{text}"))
        is_apart = whole[: len(word)] == word
        return whole[len(word) :] if is_apart else self.tokenizer.encode(text).tolist()

    def show_input(self, tokens: Sequence[int]) -> str:
        parts = [list(run) for is_mask, run in groupby(tokens, key=lambda token: token == MASK)]
        shown = [RESERVED[MASK] * len(run) if run[0] == MASK else self._as_typed(run) for run in parts]
        return "".join(shown).strip()

    def _as_typed(self, tokens: Sequence[int]) -> str:
        kept = [token for token in tokens if token not in (PAD, BEGIN, END)]
        return "".join(self.tokenizer.symbols(kept)).replace("▁", " ")

    def predict(
        self, model: Model, rows: Sequence[np.ndarray], decoding: DecodingConfig | None = None
    ) -> list[list[Prediction]]:
        """The hidden tokens; those that were seen stay as they are, and are certain.

        None of the reserved ones is ever asked for in training, and so none is an answer.
        """
        filled = []
        for row, answer in zip(rows, predict_tokens(model, rows, range(len(RESERVED))), strict=True):
            hidden = np.flatnonzero(np.asarray(row) == MASK)
            tokens = [int(token) for token in row]
            probabilities = [1.0] * len(tokens)
            for place in hidden:
                tokens[place] = answer.tokens[place]
                probabilities[place] = answer.probabilities[place]
            filled.append(
                [
                    replace(
                        answer,
                        tokens=tokens,
                        probability=math.prod(probabilities),
                        probabilities=probabilities,
                    )
                ]
            )
        return filled
