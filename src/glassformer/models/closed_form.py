"""Parameter count of a Transformer as a readable formula, to compare with the count of the built model.

Each block's config computes its own count in plain arithmetic, in its method `parameter_count`. The method
receives integers that record their names (`Count`), so that its result can be printed as a formula. This
module does not refer to any particular kind of block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from glassformer.models.task_types import (
    CausalLM,
    MaskedLM,
    Seq2Seq,
    SequenceClassification,
    TaskType,
    TokenClassification,
)

if TYPE_CHECKING:
    from glassformer.models.transformer import TransformerConfig

_SUM, _QUOTIENT, _PRODUCT, _ATOM = 1, 2, 3, 4  # operator precedence


class Count(int):
    """Integer that records how it was computed: `formula` with names, `numbers` with digits."""

    formula: str
    numbers: str
    _binding: int

    def __new__(cls, value: int, formula: str, numbers: str = "", binding: int = _ATOM) -> Count:
        count = super().__new__(cls, value)
        count.formula, count.numbers, count._binding = formula, numbers or f"{value:,}", binding
        return count

    @classmethod
    def of(cls, value: int) -> Count:
        """Convert an integer to a Count whose formula is its digits."""
        return value if isinstance(value, Count) else cls(value, f"{value:,}")

    def __add__(self, other: int) -> Count:
        return _combine(self, "+", other, int(self) + int(other))

    def __radd__(self, other: int) -> Count:
        return _combine(other, "+", self, int(other) + int(self))

    def __sub__(self, other: int) -> Count:
        return _combine(self, "−", other, int(self) - int(other))

    def __rsub__(self, other: int) -> Count:
        return _combine(other, "−", self, int(other) - int(self))

    def __mul__(self, other: int) -> Count:
        return _combine(self, "×", other, int(self) * int(other))

    def __rmul__(self, other: int) -> Count:
        return _combine(other, "×", self, int(other) * int(self))

    def __floordiv__(self, other: int) -> Count:
        return _combine(self, "÷", other, int(self) // int(other))

    def __rfloordiv__(self, other: int) -> Count:
        return _combine(other, "÷", self, int(other) // int(self))


# Precedence of the result, and the least precedence of the left and right operand without brackets.
# A quotient is rounded down, so 5 × (7 ÷ 2) is not 5 × 7 ÷ 2.
_BINDING = {
    "+": (_SUM, _SUM, _SUM),
    "−": (_SUM, _SUM, _QUOTIENT),
    "×": (_PRODUCT, _PRODUCT, _PRODUCT),
    "÷": (_QUOTIENT, _QUOTIENT, _ATOM),
}
_NEUTRAL = {"+": "0", "−": "0", "×": "1", "÷": "1"}


def _combine(left: int, operator: str, right: int, value: int) -> Count:
    """Return a Count that joins two formulas. Neutral operands, such as + 0, are left out."""
    left, right = Count.of(left), Count.of(right)
    if right.formula == _NEUTRAL[operator]:
        return left
    if operator in "+×" and left.formula == _NEUTRAL[operator]:
        return right
    binding, least_left, least_right = _BINDING[operator]
    frame = f"{'({})' if left._binding < least_left else '{}'} {operator} "
    frame += "({})" if right._binding < least_right else "{}"
    return Count(
        value,
        frame.format(left.formula, right.formula),
        frame.format(left.numbers, right.numbers),
        binding,
    )


def transformer_terms(config: TransformerConfig, task_type: TaskType) -> dict[str, int]:
    """Return the parameter count of each module that has parameters, by its path.

    `encoder.layers.*.attention` is the path of the attention modules of all encoder blocks together.
    """
    hidden_dim = Count(config.hidden_dim, "hidden_dim")
    vocabulary = Count(task_type.vocabulary, "vocabulary")
    max_length = Count(task_type.max_length, "max_length")
    outputs, is_tied = _head_size(config, task_type)
    terms = _embedding(config, "embedding", vocabulary, max_length)
    terms |= _stack(config, "encoder", Count(config.num_layers, "num_layers"), ["attention"])
    if isinstance(task_type, Seq2Seq):
        target_vocabulary = None if task_type.is_shared_vocabulary else outputs
        max_target_length = Count(task_type.max_target_length, "max_target_length")
        terms |= _embedding(config, "target_embedding", target_vocabulary, max_target_length)
        layers = Count(config.num_decoder_layers, "decoder_layers")
        terms |= _stack(config, "decoder", layers, ["attention", "cross_attention"])
    if isinstance(task_type, SequenceClassification):
        terms["pooling"] = config.pooling.parameter_count(hidden_dim)
    terms["head.body"] = config.output.parameter_count(hidden_dim)
    terms["head"] = (0 if is_tied else outputs * hidden_dim) + (outputs if config.output_bias else 0)
    return {path: Count.of(term) for path, term in terms.items() if term}


def _head_size(config: TransformerConfig, task_type: TaskType) -> tuple[Count, bool]:
    """Return the number of outputs of the head, and True if the head shares the embedding matrix."""
    match task_type:
        case TokenClassification():
            return Count(task_type.classes, "classes"), False
        case SequenceClassification():
            return Count(task_type.outputs, "outputs"), False
        case CausalLM() | MaskedLM():
            return Count(task_type.vocabulary, "vocabulary"), config.tied_output
        case Seq2Seq():
            return Count(task_type.target_vocabulary, "target_vocabulary"), config.tied_output
        case _:
            raise config.refuse(task_type)


def _embedding(
    config: TransformerConfig, path: str, vocabulary: Count | None, max_length: Count
) -> dict[str, int]:
    hidden_dim = Count(config.hidden_dim, "hidden_dim")
    num_heads = Count(config.num_heads, "num_heads")
    position = config.position.parameter_count(
        hidden_dim=hidden_dim, num_heads=num_heads, max_length=max_length
    )
    return {
        f"{path}.vectors": 0 if vocabulary is None else config.input.parameter_count(vocabulary, hidden_dim),
        f"{path}.position": position,
        f"{path}.norm": config.norm.parameter_count(hidden_dim) if config.embedding_norm else 0,
    }


def _stack(config: TransformerConfig, path: str, layers: Count, attentions: list[str]) -> dict[str, int]:
    hidden_dim = Count(config.hidden_dim, "hidden_dim")
    feed_forward_dim = Count(config.feed_forward_dim, "feed_forward_dim")
    norm = config.norm.parameter_count(hidden_dim)
    feed_forward = config.feed_forward.parameter_count(hidden_dim, feed_forward_dim, config.bias)
    terms: dict[str, int] = {}
    for attention in attentions:
        terms[f"{path}.layers.*.{attention}"] = layers * _attention(config, hidden_dim)
    terms[f"{path}.layers.*.feed_forward"] = layers * feed_forward
    for sublayer in [*attentions, "feed_forward"]:
        terms[f"{path}.layers.*.{sublayer}_residual"] = layers * norm
    terms[f"{path}.final_norm"] = norm if config.has_final_norm else 0
    return terms


def _attention(config: TransformerConfig, hidden_dim: Count) -> Count:
    """Return the number of parameters of one attention module, which may have fewer key/value heads."""
    if config.num_key_value_heads is None:
        return 4 * hidden_dim * hidden_dim + (4 * hidden_dim if config.bias else 0)
    head_dim = config.hidden_dim // config.num_heads
    both = hidden_dim + Count(config.num_key_value_heads * head_dim, "key_value_dim")
    return 2 * hidden_dim * both + (2 * both if config.bias else 0)


@dataclass(frozen=True)
class Comparison:
    """Two parameter counts of one module path: `term` by formula, and `counted` in the built model.

    `term` is None if the model has no formulas.
    """

    path: str
    term: int | None
    counted: int

    @property
    def agrees(self) -> bool:
        """True if both counts are equal, or if there is no formula."""
        return self.term is None or self.term == self.counted


def compare(terms: Mapping[str, int], by_module: Mapping[str, int]) -> list[Comparison]:
    """Compare the parameter counts by formula (`terms`) with those of the built model (`by_module`).

    A module's parameters are added to the longest path in `terms` that contains the module.
    """
    counted = Counter(dict.fromkeys(terms, 0))
    for module, count in by_module.items():
        path = starred(module)
        covering = [term for term in terms if path == term or path.startswith(f"{term}.")]
        counted[max(covering, key=len, default=path)] += count
    missing = 0 if terms else None
    return [Comparison(path, terms.get(path, missing), count) for path, count in counted.items()]


def starred(path: str) -> str:
    """Replace block numbers by `*`: `encoder.layers.3.attention` becomes `encoder.layers.*.attention`.

    Only a number after `layers` is replaced, because blocks are equal and parts of a Sequential are not.
    """
    parts = path.split(".")
    return ".".join(
        "*" if part.isdigit() and before == "layers" else part
        for before, part in zip(["", *parts], parts, strict=False)
    )
