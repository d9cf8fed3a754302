"""Translation task: a text is generated from another, token by token, and scored as text (BLEU, chrF)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from glassformer.core.errors import ErrorDetail, shorten, user_error
from glassformer.core.registry import register
from glassformer.data.batching import Examples
from glassformer.data.columns import PAIR_ROLES
from glassformer.data.token_rows import RaggedRows
from glassformer.data.tokenizers import Tokenizer
from glassformer.models.task_types import Seq2Seq
from glassformer.tasks.base import GoldLinks, Labels, Seq2SeqTask, Word, check_length, mark_piece
from glassformer.tasks.text import (
    UNKNOWN_WIDTH,
    DataReport,
    Encoded,
    PairConfig,
    PairTask,
    Texts,
    encode_texts,
    generate_splits,
    read_splits,
    train_tokenizer,
    words_of,
)

if TYPE_CHECKING:
    from glassformer.datasets.grammar.analysis import Analysis, Segment

ROLES = PAIR_ROLES
TOKENS_PER_BLOCK = 1 << 20
LABELS = {
    "gender": "French gender of the noun, name or pronoun that a word belongs to",
    "number": "singular or plural of the noun, name or pronoun that a word belongs to",
    "tense": "tense of the first clause, a label of the whole sentence",
    "negation": "negation of the first clause, a label of the whole sentence",
}
"""Labels of the generated sentences, which the grammar knows from their derivations."""
_WORD = re.compile(r"\w+")


def _feature(name: str, words: Sequence[Segment], start: int) -> str | None:
    """Return the gender or number of the word that contains a character."""
    word = next((word for word in words if word.start <= start < word.end), None)
    return None if word is None else word.gender if name == "gender" else word.number


@register
class TranslationConfig(PairConfig):
    """Generate one text from another, token by token: your own aligned files, or generated English and
    French sentences.

    Use it for translation, and for any other task from text to text.
    """

    kind: Literal["translation"] = "translation"
    roles: ClassVar[Mapping[str, str]] = ROLES
    text_roles: ClassVar[Sequence[str]] = tuple(ROLES)
    max_length: int = Field(
        128,
        ge=2,
        le=100_000,
        description="maximum tokens per text; longer pairs are left out of training and truncated elsewhere",
    )
    shared_vocabulary: bool = Field(True, description="one tokenizer and one embedding for source and target")
    examples: int = Field(100_000, ge=10, description="training pairs to generate, unless data is set")
    unseen_only: bool = Field(
        False, description="omit validation and test examples whose input also appears in train"
    )

    def learn(self, texts: Mapping[str, Texts]) -> TranslationTask:
        train = [texts["train"].column(role) for role in ROLES]
        if self.shared_vocabulary:
            source = target = train_tokenizer(self.tokenizer, train)
        else:
            source, target = (train_tokenizer(self.tokenizer, [column]) for column in train)
        return TranslationTask(self, source, target)

    def restore(self, state: Mapping[str, Any], seed: int = 0) -> TranslationTask:
        source = Tokenizer.from_json_tree(state["tokenizer"])
        target = source
        if "target_tokenizer" in state:
            target = Tokenizer.from_json_tree(state["target_tokenizer"])
        task = TranslationTask(self, source, target)
        task.layout, task.untrained = state.get("layout"), frozenset(state.get("untrained", ()))
        return task

    def texts(self, report: DataReport) -> dict[str, Texts]:
        if self.data is not None:
            return read_splits(self, self.data, self.unseen_only, report)
        from glassformer.datasets.grammar import translation_pairs  # reading the lexicon is slow

        few = min(1000, max(5, self.examples // 20))
        return generate_splits(translation_pairs, self.examples, few, self.data_seed)


def _absent(rows: RaggedRows, tokenizer: Tokenizer) -> frozenset[int]:
    """Return the ids of text tokens that do not occur in the rows."""
    is_present = ~tokenizer.is_text
    for start in range(0, rows.token_count, TOKENS_PER_BLOCK):
        is_present[rows.tokens(start, min(start + TOKENS_PER_BLOCK, rows.token_count))] = True
    return frozenset(np.flatnonzero(~is_present).tolist())


class TranslationTask(PairTask, Seq2SeqTask):
    """Translation task with a tokenizer for the source and one for the target, which may be the same."""

    config: TranslationConfig
    primary_metric = "bleu"

    def __init__(self, config: TranslationConfig, source: Tokenizer, target: Tokenizer) -> None:
        self.config = config
        self.target_tokenizer = target
        self.begin, self.end = target.begin, target.end
        self.forbidden = [token for token in (target.pad, target.unknown, target.mask) if token >= 0]
        self.untrained: frozenset[int] = frozenset()
        """Ids of source tokens that train does not have. Their embeddings are random."""
        task_type = Seq2Seq(
            vocabulary=len(source),
            max_length=config.max_length,
            target_vocabulary=len(target),
            max_target_length=config.max_length,
            is_shared_vocabulary=config.shared_vocabulary,
        )
        super().__init__(config, source, task_type)

    def state(self) -> dict[str, Any]:
        state = super().state()
        if self.target_tokenizer is not self.tokenizer:
            state["target_tokenizer"] = self.target_tokenizer.json_tree()
        if self.untrained:
            state["untrained"] = sorted(self.untrained)
        return state

    def encode_split(self, split: str, texts: Texts, report: DataReport) -> Examples:
        """Encode a split. Train omits empty and long pairs; other splits keep all pairs and cut long ones."""
        limit, is_training = self.config.max_length, split == "train"
        source_end, begin, end = [self.tokenizer.end], [self.begin], [self.end]

        def arrange(sides: Sequence[Encoded], facts: Counter[str]) -> tuple[np.ndarray, ...] | None:
            (source_text, source), (target_text, target) = sides
            is_empty = not (source_text.strip() and target_text.strip())
            is_long = not is_empty and (len(source) + 1 > limit or len(target) + 2 > limit)
            facts["empty"] += is_empty
            facts["long"] += is_long
            if is_training and (is_empty or is_long):
                return None
            return (
                np.concatenate([source[: limit - 1], source_end]),
                np.concatenate([begin, target[: limit - 2], end]),
            )

        tokenizers = {"input": self.tokenizer, "target": self.target_tokenizer}
        columns = encode_texts(texts, tokenizers, arrange, {"limit": limit, "cuts": not is_training}, report)
        long_note = f"{split}: truncated to {limit} tokens, scored against the complete reference"
        if is_training:
            report.count(columns.facts["empty"], len(texts), "train: omitted, one side empty")
            long_note = f"train: omitted, longer than {limit} tokens"
        report.count(columns.facts["long"], len(texts), long_note)
        if is_training and not len(columns):
            long, empty = columns.facts["long"], columns.facts["empty"]
            raise user_error(
                f"no pairs are left: {long:,} are longer than task.max_length, {empty:,} have an empty side",
                path=texts.name,
                value=f"task.max_length={limit}",
                hint="increase task.max_length, or check the files",
            )
        if is_training:
            self.untrained = _absent(columns.rows["input"], self.tokenizer)
        columns.report_unknown(split, report)
        self.texts[split] = columns.select(texts)
        return Examples(columns.rows["input"], columns.rows["target"])

    def parse(self, text: str) -> np.ndarray:
        tokens = self.tokenizer.encode(text)
        if not text.strip():
            raise ErrorDetail("the line is empty: nothing to translate")
        return np.append(check_length(tokens, self.task_type.max_length - 1), self.tokenizer.end)

    def warning(self, tokens: Sequence[int], text: str = "") -> str | None:
        """Report unknown tokens, and words with pieces that never occur in train, as in an unseen word."""
        words = [match.span() for match in _WORD.finditer(text)]
        found: dict[str, None] = {}
        for token, start, end in self.tokenizer.spans(text):
            if token in self.untrained:
                word = next((word for word in words if word[0] <= start < word[1]), (start, end))
                found[mark_piece(text[slice(*word)])] = None
        unseen = f"unseen in training: {shorten(' '.join(found), UNKNOWN_WIDTH)}" if found else None
        return "; ".join(reason for reason in (super().warning(tokens, text), unseen) if reason) or None

    def output_symbols(self, tokens: Sequence[int]) -> list[str]:
        return self.target_tokenizer.symbols(tokens)

    def label_names(self) -> Mapping[str, str]:
        return LABELS if self.config.data is None else {}

    def _analyses(self, split: str, indices: Sequence[int]) -> list[Analysis]:
        """Return what the grammar knows about examples of generated data."""
        from glassformer.datasets.grammar.analysis import analyses  # reading the lexicon is slow

        texts = self.input_texts(split, indices)
        missing = set(texts) - self._analysed.keys()
        self._analysed |= analyses(missing, self.config.data_seed, split)
        return [self._analysed[text] for text in texts]

    @cached_property
    def _analysed(self) -> dict[str, Analysis]:
        return {}

    def position_labels(self, name: str, split: str, indices: Sequence[int]) -> list[Labels]:
        found: list[Labels] = []
        examples = self.splits[split]
        for index, each in zip(indices, self._analyses(split, indices), strict=True):
            lengths = len(examples.inputs[index]), len(examples.targets[index]) - 1
            if name in ("tense", "negation"):
                label = each.tense if name == "tense" else ("negated" if each.is_negated else "affirmative")
                found.append({"encoder": [label] * lengths[0], "decoder": [label] * lengths[1]})
                continue
            sides = (
                (self.tokenizer, each.source, each.source_words),
                (self.target_tokenizer, each.target, each.target_words),
            )
            source, target = (
                [_feature(name, words, start) for _, start, _ in tokenizer.spans(text)]
                for tokenizer, text, words in sides
            )
            # The source ends with an end token, and the decoder first reads the begin token.
            labels: Labels = {"encoder": [*source, None], "decoder": [None, *target]}
            cut = zip(labels.items(), lengths, strict=True)
            found.append({stack: own[:length] for (stack, own), length in cut})
        return found

    def source_words(self, tokens: Sequence[int]) -> list[Word]:
        return words_of(self.tokenizer, tokens)

    def target_words(self, tokens: Sequence[int]) -> list[Word]:
        return words_of(self.target_tokenizer, tokens)

    def gold_links(self, split: str, indices: Sequence[int]) -> list[GoldLinks] | None:
        if self.config.data is not None:
            return None
        return [GoldLinks(*each.links()) for each in self._analyses(split, indices)]

    def show_output(self, tokens: Sequence[int]) -> str:
        return self.target_tokenizer.decode(tokens)

    def text_pairs(self, split: str) -> tuple[list[str], list[str]]:
        """Return the sources and references as they are in the data, including unknown words."""
        texts = self.texts[split]
        return list(texts.column("input")), list(texts.column("target"))

    def locations(self, split: str, numbers: Sequence[int]) -> list[str]:
        return self.texts[split].locations(numbers)
