"""Whole models, built from `blocks/`. They do not depend on tasks, files or training."""

from glassformer.models.base import DecodingState, Model, ModelConfig
from glassformer.models.seq2seq import EncoderDecoder
from glassformer.models.task_types import (
    CausalLM,
    MaskedLM,
    Seq2Seq,
    SequenceClassification,
    TaskType,
    TokenClassification,
)
from glassformer.models.transformer import (
    CausalLanguageModel,
    SequenceClassifier,
    TokenPredictor,
    Transformer,
    TransformerConfig,
)

__all__ = [
    "CausalLM",
    "CausalLanguageModel",
    "DecodingState",
    "EncoderDecoder",
    "MaskedLM",
    "Model",
    "ModelConfig",
    "Seq2Seq",
    "SequenceClassification",
    "SequenceClassifier",
    "TaskType",
    "TokenClassification",
    "TokenPredictor",
    "Transformer",
    "TransformerConfig",
]
