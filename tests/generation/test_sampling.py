"""Samples depend on the distribution, the seed and the row's number, and on nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from glassformer.generation import GreedyConfig, SampleConfig, generate
from glassformer.generation.strategies import Sample, Scores

BEGIN, END, VOCABULARY = 0, 1, 8
LOGITS = [0.5, 0.0, 2.0, 1.0, -1.0, 1.0, 0.0, -3.0]

CONFIGS = [
    SampleConfig(seed=1),
    SampleConfig(seed=2, temperature=0.5),
    SampleConfig(seed=3, temperature=2.0),
    SampleConfig(seed=4, top_k=3),
    SampleConfig(seed=5, top_p=0.7),
    SampleConfig(seed=6, temperature=1.5, top_k=5, top_p=0.8),
    SampleConfig(seed=7, top_p=1e-6),
]
each_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.temperature}-{c.top_k}-{c.top_p}")


def by_definition(log_probabilities_V: Tensor, config: SampleConfig) -> Tensor:
    """Distribution computed one token at a time."""
    probabilities = (log_probabilities_V.double() / config.temperature).softmax(0).tolist()
    order = sorted(range(len(probabilities)), key=lambda token: (-probabilities[token], token))
    kept = order[: config.top_k]
    if config.top_p is not None:
        whole, so_far, nucleus = sum(probabilities[token] for token in kept), 0.0, []
        for token in kept:
            if so_far >= config.top_p * whole:
                break
            nucleus.append(token)
            so_far += probabilities[token]
        kept = nucleus
    total = sum(probabilities[token] for token in kept)
    chosen = [probabilities[token] / total if token in kept else 0.0 for token in range(len(probabilities))]
    return torch.tensor(chosen, dtype=torch.float64)


def chooser(config: SampleConfig, rows: int = 1) -> Sample:
    built = config.build(range(rows), 1)
    assert isinstance(built, Sample)
    return built


def names(count: int) -> dict[str, Tensor | None]:
    return {"tokens": torch.zeros(count, 1, dtype=torch.long)}


@each_config
@pytest.mark.parametrize("loudness", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("vocabulary", [VOCABULARY, 1000])
def test_the_weights_are_those_of_the_definition(config, loudness, vocabulary):
    """A vocabulary of 1,000 needs the full sort of top-p at one temperature and not at the other."""
    random = torch.Generator().manual_seed(0)
    logits_BV = loudness * torch.randn(3, vocabulary, generator=random, dtype=torch.float64)
    log_probabilities_BV = logits_BV.log_softmax(-1)
    weights_BV = chooser(config).weights(log_probabilities_BV)
    for weights_V, log_probabilities_V in zip(weights_BV, log_probabilities_BV, strict=True):
        expected = by_definition(log_probabilities_V, config)
        assert_close(weights_V / weights_V.sum(), expected, rtol=1e-9, atol=1e-12)


@each_config
def test_tokens_are_drawn_in_proportion(scripted, config):
    """Pearson's statistic over 8,000 rows; the limit is far above its 99.9 % quantile (7 degrees)."""
    rows = 8_000
    model = scripted(lambda name, generated: LOGITS)
    generated = generate(model, names(rows), begin=BEGIN, end=None, max_length=1, strategy=config)
    drawn = torch.tensor([hypotheses[0].tokens[0] for hypotheses in generated])
    counts = drawn.bincount(minlength=VOCABULARY).double()
    expected = rows * by_definition(torch.tensor(LOGITS, dtype=torch.float64).log_softmax(0), config)
    assert torch.equal(counts > 0, expected > 0)
    possible = expected > 0
    statistic = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
    assert float(statistic) < 25


def test_successive_tokens_are_drawn_independently(scripted):
    model = scripted(lambda name, generated: [0.0, 0.0])
    generated = generate(
        model, names(4000), begin=BEGIN, end=None, max_length=3, strategy=SampleConfig(seed=9)
    )
    numbers = torch.tensor([hypotheses[0].tokens for hypotheses in generated]) @ torch.tensor([4, 2, 1])
    counts = numbers.bincount(minlength=8).double()
    assert float(((counts - 500) ** 2 / 500).sum()) < 25


def test_the_seed_and_the_rows_number_decide(scripted, random_table):
    model = scripted(random_table(1, VOCABULARY))
    options: dict[str, Any] = {"begin": BEGIN, "end": END, "max_length": 10}
    all_rows = {"tokens": torch.arange(12)[:, None]}
    first = generate(model, all_rows, strategy=SampleConfig(seed=3), **options)
    assert first == generate(model, all_rows, strategy=SampleConfig(seed=3), **options)
    assert first != generate(model, all_rows, strategy=SampleConfig(seed=4), **options)
    # Other batches, another order.
    chosen = [7, 2, 11]
    some = generate(
        model,
        {"tokens": torch.tensor(chosen)[:, None]},
        strategy=SampleConfig(seed=3),
        row_numbers=chosen,
        **options,
    )
    assert some == [first[row] for row in chosen]
    # Two rows with the same input differ.
    twins = generate(model, names(8), strategy=SampleConfig(seed=3), **options)
    assert len({tuple(hypotheses[0].tokens) for hypotheses in twins}) > 1


def test_torchs_own_random_numbers_are_neither_used_nor_moved(scripted, random_table):
    model = scripted(random_table(1, VOCABULARY))
    options: dict[str, Any] = {"begin": BEGIN, "end": END, "max_length": 10, "strategy": SampleConfig()}
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = generate(model, names(5), **options)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert generate(model, names(5), **options) == first


def test_a_longer_limit_draws_the_same_beginning(scripted, random_table):
    model = scripted(random_table(1, VOCABULARY))
    options: dict[str, Any] = {"begin": BEGIN, "end": None, "strategy": SampleConfig()}
    short = generate(model, names(5), max_length=4, **options)
    long = generate(model, names(5), max_length=9, **options)
    assert [h[0].tokens for h in short] == [h[0].tokens[:4] for h in long]


@pytest.mark.parametrize(
    "config", [SampleConfig(top_k=1), SampleConfig(temperature=1e-3), SampleConfig(top_p=1e-9)]
)
def test_without_chance_it_is_greedy(scripted, random_table, config):
    model = scripted(random_table(6, VOCABULARY))
    rows = {"tokens": torch.arange(20)[:, None]}
    options: dict[str, Any] = {"begin": BEGIN, "end": END, "max_length": 8}
    greedy = generate(model, rows, strategy=GreedyConfig(), **options)
    assert generate(model, rows, strategy=config, **options) == greedy


@pytest.mark.parametrize(
    "config", [SampleConfig(top_k=VOCABULARY), SampleConfig(top_k=99), SampleConfig(top_p=1.0)]
)
def test_limits_that_exclude_nothing_change_nothing(scripted, random_table, config):
    model = scripted(random_table(6, VOCABULARY))
    options: dict[str, Any] = {"begin": BEGIN, "end": END, "max_length": 8}
    plain = generate(model, names(50), strategy=SampleConfig(), **options)
    assert generate(model, names(50), strategy=config, **options) == plain


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_impossible_tokens_are_not_drawn_at_the_edges_of_the_unit_interval(size):
    random = torch.Generator().manual_seed(size)
    nothing_B1 = torch.full((200, 1), -torch.inf)
    logits_BV = torch.cat([nothing_B1, torch.randn(200, size, generator=random), nothing_B1], 1)
    scores = Scores(logits_BV[:, None], logits_BV.double().logsumexp(-1)[:, None, None])
    rows_B = torch.arange(200)
    for uniform, token in ((0.0, 1), (1 - 2**-53, size)):
        drawn = Sample(1.0, None, None, torch.full((200, 1), uniform, dtype=torch.float64))
        _, token_B1 = drawn.choose(torch.zeros(200, 1), scores, rows_B, 0)
        assert token_B1.tolist() == [[token]] * 200
