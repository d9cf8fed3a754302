"""Decoding with a cache finds what decoding without one finds: every strategy, position kind and shape.

In double precision, so that the last bits of a score, which depend on the order of additions, decide nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from glassformer.blocks.positions import PositionConfig
from glassformer.core.registry import kinds
from glassformer.generation import BeamConfig, GreedyConfig, NoCache, SampleConfig, generate
from glassformer.models.base import Model
from glassformer.models.task_types import CausalLM, Seq2Seq, TaskType
from glassformer.models.transformer import TransformerConfig

BEGIN, VOCABULARY, LONGEST, ROWS = 0, 23, 14, 9
TOLERANCE = 1e-9
STRATEGIES = [
    GreedyConfig(),
    SampleConfig(top_k=15, top_p=0.95, temperature=1.3),
    BeamConfig(size=1),
    BeamConfig(size=4, n_best=3),
]
SHAPES: list[TaskType] = [CausalLM(VOCABULARY, LONGEST), Seq2Seq(VOCABULARY, 7, VOCABULARY, LONGEST)]


def build(task_type: TaskType, position: str, **options: Any) -> Model:
    torch.manual_seed(1)
    config = TransformerConfig(
        num_layers=2, num_heads=2, hidden_dim=16, feed_forward_dim=24, position={"kind": position}, **options
    )
    return config.build(task_type).double()


def start(task_type: TaskType) -> dict[str, Any]:
    """Rows of every length, as inputs or as prompts."""
    random = torch.Generator().manual_seed(2)
    tokens_BL = torch.randint(1, VOCABULARY, (ROWS, 7), generator=random)
    attention_mask_BL = torch.arange(7) < torch.randint(1, 8, (ROWS, 1), generator=random)
    if isinstance(task_type, Seq2Seq):
        prompts = {"prompt": tokens_BL[:, 4:], "mask": attention_mask_BL.flip(0)[:, 2:5]}
        return {
            "inputs": {"tokens": tokens_BL, "mask": attention_mask_BL},
            "begin": BEGIN,
            **prompts,
        }
    return {"prompt": tokens_BL, "mask": attention_mask_BL}


@pytest.fixture
def check(half_of_them_write: Callable[..., int]) -> Callable[[Model, TaskType, Any], None]:
    def check(model: Model, task_type: TaskType, strategy: Any) -> None:
        options: dict[str, Any] = {**start(task_type), "forbidden": [BEGIN], "strategy": strategy}
        end = half_of_them_write(generate(model, **options, end=None))
        cached = generate(model, **options, end=end, min_length=1)
        full = generate(NoCache(model), **options, end=end, min_length=1)
        for found, expected in zip(cached, full, strict=True):
            assert [(h.tokens, h.is_finished) for h in found] == [(h.tokens, h.is_finished) for h in expected]
            for one, other in zip(found, expected, strict=True):
                assert one.log_probabilities == pytest.approx(other.log_probabilities, abs=TOLERANCE)
                assert one.score == pytest.approx(other.score, abs=TOLERANCE)
        endings = [(len(h[0].tokens), h[0].is_finished) for h in cached]
        assert len(set(endings)) > 2 and any(is_finished for _, is_finished in endings)

    return check


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: type(shape).__name__)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: f"{s.kind}-{getattr(s, 'size', 1)}")
@pytest.mark.parametrize("position", sorted(kinds(PositionConfig)))
def test_cache_equals_no_cache(check, position, strategy, shape):
    check(build(shape, position), shape, strategy)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: type(shape).__name__)
def test_cache_equals_no_cache_with_shared_heads_and_post_norm(check, shape):
    model = build(shape, "rotary", num_key_value_heads=1, norm_placement="post", tied_output=True)
    check(model, shape, BeamConfig(size=3))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: type(shape).__name__)
def test_without_a_cache_the_logits_are_those_of_the_whole_model(shape):
    """The definition itself: a prefix, its log-probabilities, and nothing in between."""
    model = build(shape, "sinusoidal").eval()
    source_BM = torch.randint(2, VOCABULARY, (1, 7))
    prompt_BL = torch.tensor([[BEGIN, 5, 6]])
    inputs = {"tokens": source_BM} if isinstance(shape, Seq2Seq) else {"tokens": prompt_BL}
    [[best]] = generate(NoCache(model), inputs, prompt=prompt_BL, end=None, max_length=5)
    written = torch.tensor([[BEGIN, 5, 6, *best.tokens]])
    with torch.no_grad():
        if isinstance(shape, Seq2Seq):
            logits_BLV = model(tokens=source_BM, target=written)
        else:
            logits_BLV = model(tokens=written)
    assert len(best.log_probabilities) == 5
    for place, value in enumerate(best.log_probabilities):
        after = logits_BLV[0, place + 2].log_softmax(-1)
        assert float(after[written[0, place + 3]]) == pytest.approx(value, abs=1e-9)
