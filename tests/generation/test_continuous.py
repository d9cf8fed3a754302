"""Continuous batching: every sequence has the tokens that it has alone, for all positions and norms."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import glassformer as gf
from glassformer.generation import GreedyConfig, SampleConfig, generate
from glassformer.generation.continuous import Continuation, ContinuousBatch
from glassformer.models.transformer import CausalLanguageModel

VOCABULARY, LONGEST, END = 11, 24, 2


def make_model(**options: Any) -> CausalLanguageModel:
    torch.manual_seed(0)
    task_type = gf.CausalLM(vocabulary=VOCABULARY, max_length=LONGEST)
    model = gf.Transformer(task_type, num_layers=2, num_heads=2, hidden_dim=16, **options)
    assert isinstance(model, CausalLanguageModel)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(2)  # otherwise the same token is the most probable everywhere
    return model.eval()


def continuations(count: int, longest: int) -> list[Continuation]:
    chance = random.Random(1)
    made = []
    for number in range(count):
        prompt = [chance.randrange(3, VOCABULARY) for _ in range(chance.randint(1, 12))]
        decoding = SampleConfig(seed=number, temperature=1 + number % 3) if number % 2 else GreedyConfig()
        made.append(Continuation(prompt, chance.randint(1, longest), decoding))
    return made


def run(model: CausalLanguageModel, rows: list[Continuation], size: int, end: int | None) -> None:
    """Continue the rows, which join in small groups at random steps."""
    chance, batch, waiting = random.Random(2), ContinuousBatch(model, end=end, forbidden=[0, 1]), list(rows)
    ended = []
    while waiting or batch.rows:
        if waiting and len(batch.rows) < size and (chance.random() < 0.4 or not batch.rows):
            joining = [waiting.pop(0) for _ in range(min(len(waiting), chance.randint(1, 3)))]
            batch.join(joining)
        ended += batch.step()
    assert sorted(map(id, ended)) == sorted(map(id, rows))


@pytest.mark.parametrize("position", ["sinusoidal", "learned", "rotary", "alibi", "relative"])
def test_a_sequence_does_not_depend_on_the_batch(position: str) -> None:
    model = make_model(position=position)
    rows = continuations(16, longest=12)
    run(model, rows, 6, END)
    for row in rows:
        ((best,),) = generate(
            model,
            prompt=torch.tensor([row.prompt]),
            end=END,
            max_length=row.max_tokens,
            strategy=row.decoding,
            forbidden=[0, 1],
        )
        assert row.tokens == best.tokens
        assert row.ending == ("end" if best.is_finished else "length")


def test_a_full_context_continues_from_its_second_half() -> None:
    model = make_model()
    together, alone = continuations(10, longest=80), continuations(10, longest=80)
    run(model, together, 5, None)
    for row in alone:
        run(model, [row], 1, None)
    assert [row.tokens for row in together] == [row.tokens for row in alone]
    assert all(len(row.tokens) == row.max_tokens for row in together)


def test_padding_between_tokens_is_removed() -> None:
    """Short rows that join a long one leave gaps; the caches stay about as long as the longest row."""
    model = make_model()
    batch = ContinuousBatch(model, end=None)
    for number in range(60):
        batch.join([Continuation([3], 3, SampleConfig(seed=number))])
        batch.step()
        assert batch._state is None or batch._state.attention_mask_BM.shape[1] <= 6


def test_a_cancelled_sequence_leaves() -> None:
    batch = ContinuousBatch(make_model(), end=None)
    rows = [Continuation([3, 4], 50, GreedyConfig()) for _ in range(3)]
    batch.join(rows)
    batch.step()
    rows[1].is_cancelled = True
    assert batch.step() == [rows[1]] and rows[1].ending == "cancelled"
    assert batch.rows == [rows[0], rows[2]] and rows[0].tokens == rows[2].tokens


def test_logits_that_are_nan_fail_their_sequence_alone() -> None:
    model = make_model()
    with torch.no_grad():
        weight = model.token_embedding()
        assert weight is not None
        weight[5] = torch.nan
    batch = ContinuousBatch(model, end=None, forbidden=[5])
    bad, good = Continuation([3, 5], 4, GreedyConfig()), Continuation([3, 4], 4, GreedyConfig())
    batch.join([bad, good])
    assert batch.step() == [bad] and bad.ending == "failed"
    assert batch.rows == [good]
