"""Building blocks of a Transformer, exported as `gf.nn`.

    block = gf.nn.EncoderBlock(64, num_heads=4, norm=gf.nn.RMSNorm, position=gf.nn.Rotary(16))
    y = block(x)     # x and y: (batch, length, 64)

A block receives its parts as modules. It does not know about tasks, distributed ranks or devices. A variant
that users can choose by name has a config class next to it, which validates options and builds the block.

The name of a tensor ends in its axes, here and in `models/` and `generation/`:
B batch, L query length, M key length, D hidden, H heads, K head width, F feed-forward, V vocabulary.
"""

from glassformer.blocks.attention import (
    CrossAttention,
    LayerCache,
    MultiHeadAttention,
    PositionContext,
    SelfAttention,
    explicit_weights,
    fused_kernel,
)
from glassformer.blocks.dropout import Dropout
from glassformer.blocks.embedding import Embedding, InputNet, OneHot, TokenEmbedding
from glassformer.blocks.feed_forward import FeedForward, SwiGLU
from glassformer.blocks.heads import (
    AttentionPooling,
    ClassHead,
    FirstPooling,
    Head,
    LastPooling,
    LossOutput,
    MaxPooling,
    MeanPooling,
    RegressionHead,
    linear_cross_entropy,
)
from glassformer.blocks.layers import (
    BlockCache,
    DecoderBlock,
    DecoderStack,
    EncoderBlock,
    EncoderStack,
    Residual,
)
from glassformer.blocks.masks import Mask
from glassformer.blocks.norms import LayerNorm, RMSNorm
from glassformer.blocks.positions import (
    ALiBi,
    Learned,
    Position,
    Rotary,
    ShawRelative,
    SimplePosition,
    Sinusoidal,
    T5Relative,
)
from glassformer.blocks.reference import attention_batch_loops, attention_no_loop, attention_one_sequence

__all__ = [
    "ALiBi",
    "AttentionPooling",
    "BlockCache",
    "ClassHead",
    "CrossAttention",
    "DecoderBlock",
    "DecoderStack",
    "Dropout",
    "Embedding",
    "EncoderBlock",
    "EncoderStack",
    "FeedForward",
    "FirstPooling",
    "Head",
    "InputNet",
    "LastPooling",
    "LayerCache",
    "LayerNorm",
    "Learned",
    "LossOutput",
    "Mask",
    "MaxPooling",
    "MeanPooling",
    "MultiHeadAttention",
    "OneHot",
    "Position",
    "PositionContext",
    "RMSNorm",
    "RegressionHead",
    "Residual",
    "Rotary",
    "SelfAttention",
    "ShawRelative",
    "SimplePosition",
    "Sinusoidal",
    "SwiGLU",
    "T5Relative",
    "TokenEmbedding",
    "attention_batch_loops",
    "attention_no_loop",
    "attention_one_sequence",
    "explicit_weights",
    "fused_kernel",
    "linear_cross_entropy",
]
