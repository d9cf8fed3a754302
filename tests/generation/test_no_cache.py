"""Decoding with and without a cache gives equal results for every strategy, position kind and task type.

Double precision keeps the last bits of a score, which depend on the order of additions, from deciding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from glassformer.blocks.positions import PositionConfig
from glassformer.core.registry import kinds
from glassformer.generation import BeamConfig, GreedyConfig, SampleConfig, generate
from glassformer.generation.no_cache import NoCache
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
TASK_TYPES: list[TaskType] = [CausalLM(VOCABULARY, LONGEST), Seq2Seq(VOCABULARY, 7, VOCABULARY, LONGEST)]


def build(task_type: TaskType, position: str, **options: Any) -> Model:
    torch.manual_seed(1)
    config = TransformerConfig(
        num_layers=2, num_heads=2, hidden_dim=16, feed_forward_dim=24, position={"kind": position}, **options
    )
    return config.build(task_type).double()


def start(task_type: TaskType) -> dict[str, Any]:
    """Inputs or prompts of every length."""
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
def check(token_of_half_the_rows: Callable[..., int]) -> Callable[[Model, TaskType, Any], None]:
    def check(model: Model, task_type: TaskType, strategy: Any) -> None:
        options: dict[str, Any] = {**start(task_type), "forbidden": [BEGIN], "strategy": strategy}
        end = token_of_half_the_rows(generate(model, **options, end=None))
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


@pytest.mark.parametrize("task_type", TASK_TYPES, ids=lambda task_type: type(task_type).__name__)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: f"{s.kind}-{getattr(s, 'size', 1)}")
@pytest.mark.parametrize("position", sorted(kinds(PositionConfig)))
def test_cache_equals_no_cache(check, position, strategy, task_type):
    check(build(task_type, position), task_type, strategy)


@pytest.mark.parametrize("task_type", TASK_TYPES, ids=lambda task_type: type(task_type).__name__)
def test_cache_equals_no_cache_with_shared_heads_and_post_norm(check, task_type):
    model = build(task_type, "rotary", num_key_value_heads=1, norm_placement="post", tied_output=True)
    check(model, task_type, BeamConfig(size=3))


@pytest.mark.parametrize("task_type", TASK_TYPES, ids=lambda task_type: type(task_type).__name__)
def test_without_a_cache_the_logits_are_those_of_the_whole_model(task_type):
    """Compare with the log-probabilities of the whole model on a prefix."""
    model = build(task_type, "sinusoidal").eval()
    source_BM = torch.randint(2, VOCABULARY, (1, 7))
    prompt_BL = torch.tensor([[BEGIN, 5, 6]])
    inputs = {"tokens": source_BM} if isinstance(task_type, Seq2Seq) else None
    [[best]] = generate(NoCache(model), inputs, prompt=prompt_BL, end=None, max_length=5)
    generated = torch.tensor([[BEGIN, 5, 6, *best.tokens]])
    with torch.no_grad():
        if isinstance(task_type, Seq2Seq):
            logits_BLV = model(tokens=source_BM, target=generated)
        else:
            logits_BLV = model(tokens=generated)
    assert len(best.log_probabilities) == 5
    for step, value in enumerate(best.log_probabilities):
        after = logits_BLV[0, step + 2].log_softmax(-1)
        assert float(after[generated[0, step + 3]]) == pytest.approx(value, abs=1e-9)
