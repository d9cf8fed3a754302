"""Compare beam search with one in plain Python and with the enumeration of all sequences."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.generation import BeamConfig, GreedyConfig, Hypothesis, generate
from glassformer.generation.strategies import top
from glassformer.models.task_types import CausalLM, Seq2Seq
from glassformer.models.transformer import TransformerConfig

BEGIN, END = 0, 1
Logits = Callable[[int, tuple[int, ...]], list[float]]
Path = tuple[int, ...]


def log_probabilities(logits: Logits, name: int, generated: Path) -> list[float]:
    return torch.tensor(logits(name, (BEGIN, *generated)), dtype=torch.float64).log_softmax(0).tolist()


def beam_by_hand(
    logits: Logits, name: int, size: int, penalty: float, limit: int
) -> list[tuple[float, Path]]:
    """Score and path of all hypotheses, best first; a path includes its end token."""
    beams: list[tuple[float, Path]] = [(0.0, ())]
    ended: list[tuple[float, Path]] = []
    for length in range(1, limit + 1):
        candidates = [
            (total + value, (*path, token))
            for total, path in beams
            for token, value in enumerate(log_probabilities(logits, name, path))
        ]
        candidates.sort(key=lambda candidate: -candidate[0])
        ended += [(total / length**penalty, path) for total, path in candidates[:size] if path[-1] == END]
        beams = [candidate for candidate in candidates if candidate[1][-1] != END][:size]
        ended.sort(key=lambda hypothesis: -hypothesis[0])
        if len(ended) >= size and beams[0][0] / length**penalty <= ended[size - 1][0]:
            return ended
    ended += [(total / limit**penalty, path) for total, path in beams]
    return sorted(ended, key=lambda hypothesis: -hypothesis[0])


def all_sequences(
    logits: Logits, name: int, vocabulary: int, penalty: float, limit: int
) -> list[tuple[float, Path]]:
    """Score and path of every sequence that ends within the limit or reaches it, best first."""
    others = [token for token in range(vocabulary) if token != END]
    paths = [(*path, END) for n in range(limit) for path in itertools.product(others, repeat=n)]
    paths += list(itertools.product(others, repeat=limit))
    scored = []
    for path in paths:
        total = sum(log_probabilities(logits, name, path[:step])[token] for step, token in enumerate(path))
        scored.append((total / len(path) ** penalty, path))
    return sorted(scored, key=lambda hypothesis: -hypothesis[0])


def path_of(hypothesis: Hypothesis) -> Path:
    return (*hypothesis.tokens, END) if hypothesis.is_finished else tuple(hypothesis.tokens)


def assert_same(found: list[Hypothesis], expected: list[tuple[float, Path]], penalty: float) -> None:
    assert [path_of(hypothesis) for hypothesis in found] == [path for _, path in expected]
    for hypothesis, (score, path) in zip(found, expected, strict=True):
        assert hypothesis.score == pytest.approx(score, abs=1e-9)
        assert hypothesis.score == pytest.approx(hypothesis.log_probability / len(path) ** penalty, abs=1e-9)
        assert len(hypothesis.log_probabilities) == len(path)


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize(("size", "n_best"), [(1, 1), (2, 1), (2, 2), (5, 3), (7, 7)])
def test_it_finds_what_beam_search_by_hand_finds(scripted, random_table, penalty, size, n_best):
    """The plain version never stops a row early, so early stopping must not change the result."""
    rows, limits = 12, [1, 2, 3, 4, 5, 6] * 2
    table = random_table(size, 4)
    generated = generate(
        scripted(table),
        {"tokens": torch.arange(rows)[:, None]},
        begin=BEGIN,
        end=END,
        max_length=limits,
        strategy=BeamConfig(size=size, n_best=n_best, length_penalty=penalty),
    )
    for name, found in enumerate(generated):
        expected = beam_by_hand(table, name, size, penalty, limits[name])[:n_best]
        assert_same(found, expected, penalty)


@pytest.mark.parametrize("penalty", [0.0, 1.0])
@pytest.mark.parametrize(("vocabulary", "limit"), [(2, 4), (3, 4), (4, 3)])
def test_a_beam_as_wide_as_the_space_finds_the_best_sequences(
    scripted, random_table, penalty, vocabulary, limit
):
    size, rows = vocabulary**limit, 4
    table = random_table(11, vocabulary)
    generated = generate(
        scripted(table),
        {"tokens": torch.arange(rows)[:, None]},
        begin=BEGIN,
        end=END,
        max_length=limit,
        strategy=BeamConfig(size=size, n_best=size, length_penalty=penalty),
    )
    for name, found in enumerate(generated):
        everything = all_sequences(table, name, vocabulary, penalty, limit)
        # The search may stop once the n best are certain, which may be before all are found.
        assert len(found) == len(everything)
        assert_same(found, everything, penalty)


def test_a_row_stops_when_it_is_hopeless(scripted):
    """The end has probability ~1 at the first step, and no other beam can reach its score."""
    model = scripted(lambda name, generated: [0.0, 20.0, 0.0, 0.0])
    options: dict[str, Any] = {"begin": BEGIN, "end": END, "max_length": 50}
    one = {"tokens": torch.zeros(1, 1, dtype=torch.long)}
    [[best]] = generate(model, one, strategy=BeamConfig(size=3, length_penalty=0.5), **options)
    assert best.tokens == []
    assert model.lines == [1]
    generate(model, one, strategy=BeamConfig(size=3, n_best=2, length_penalty=0.5), **options)
    assert len(model.lines) > 2


def test_the_length_penalty_favours_longer_sequences(scripted):
    """The empty sequence has log 0.5; the sequence 2, 3 has log 0.4."""

    def logits(name: int, generated: tuple[int, ...]) -> list[float]:
        sure = {(0, 2): [0.0, 0.0, 0.0, 1.0], (0, 2, 3): [0.0, 1.0, 0.0, 0.0]}
        row = torch.tensor(sure.get(generated, [0.05, 0.5, 0.4, 0.05]), dtype=torch.float64)
        return row.clamp(min=1e-9).log().tolist()

    one = {"tokens": torch.zeros(1, 1, dtype=torch.long)}
    for penalty, tokens in ((0.0, []), (1.0, [2, 3])):
        strategy = BeamConfig(size=2, length_penalty=penalty)
        [[best]] = generate(scripted(logits), one, begin=BEGIN, end=END, max_length=6, strategy=strategy)
        assert best.tokens == tokens


def test_the_n_best_are_sorted_distinct_and_begin_with_the_best(scripted, random_table):
    rows = {"tokens": torch.arange(30)[:, None]}
    options: dict[str, Any] = {"begin": BEGIN, "end": END, "max_length": 7}
    model = scripted(random_table(2, 5))
    only = generate(model, rows, strategy=BeamConfig(size=4), **options)
    several = generate(model, rows, strategy=BeamConfig(size=4, n_best=4), **options)
    for [best], found in zip(only, several, strict=True):
        assert found[0] == best
        assert len(found) == 4
        assert len({path_of(hypothesis) for hypothesis in found}) == 4
        scores = [hypothesis.score for hypothesis in found]
        assert scores == sorted(scores, reverse=True)


def test_ties_keep_the_order_of_beams_then_of_tokens(scripted):
    model = scripted(lambda name, generated: [0.0, -1.0, 0.0])
    one = {"tokens": torch.zeros(1, 1, dtype=torch.long)}
    [found] = generate(model, one, begin=BEGIN, end=END, max_length=2, strategy=BeamConfig(size=3, n_best=3))
    assert [hypothesis.tokens for hypothesis in found] == [[0, 0], [0, 2], [2, 0]]


@pytest.mark.parametrize("seed", range(5))
def test_a_beam_of_one_is_exactly_greedy(token_of_half_the_rows, seed):
    torch.manual_seed(seed)
    config = TransformerConfig(num_layers=1, num_heads=2, hidden_dim=16, feed_forward_dim=16)
    source_BM = torch.randint(2, 300, (40, 6))
    cases: list[tuple[Any, dict[str, Any]]] = [
        (
            config.build(Seq2Seq(300, 6, 300, 30)),
            {"inputs": {"tokens": source_BM}, "begin": BEGIN},
        ),
        (config.build(CausalLM(300, 30)), {"prompt": source_BM}),
    ]
    for model, start in cases:
        end = token_of_half_the_rows(generate(model, **start, end=None, max_length=20))
        greedy = generate(model, **start, end=end, max_length=20, strategy=GreedyConfig())
        # Without a length penalty the scores are equal too.
        beam = BeamConfig(size=1, length_penalty=0.0)
        assert generate(model, **start, end=end, max_length=20, strategy=beam) == greedy
        assert {hypotheses[0].is_finished for hypotheses in greedy} == {True, False}
        averaged = generate(model, **start, end=end, max_length=20, strategy=BeamConfig(size=1))
        assert [h[0].log_probabilities for h in averaged] == [h[0].log_probabilities for h in greedy]


def test_a_row_is_decoded_as_if_alone(scripted, random_table):
    model = scripted(random_table(8, 6))
    options: dict[str, Any] = {"begin": BEGIN, "end": END, "max_length": 6}
    strategy = BeamConfig(size=3, n_best=3)
    together = generate(model, {"tokens": torch.arange(9)[:, None]}, strategy=strategy, **options)
    for name, found in enumerate(together):
        assert generate(model, {"tokens": torch.tensor([[name]])}, strategy=strategy, **options) == [found]


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    values=st.lists(st.lists(st.integers(-3, 3), min_size=40, max_size=40), min_size=1, max_size=4),
    count=st.integers(1, 45),
    impossible=st.integers(0, 40),
)
def test_top_is_a_stable_sort(values, count, impossible):
    values_BV = torch.tensor(values, dtype=torch.float32)
    values_BV[:, :impossible] = -torch.inf
    best, indices = top(values_BV[None], count)
    expected = values_BV[None].sort(dim=-1, descending=True, stable=True)
    possible = expected.values[..., :count] > -torch.inf
    assert torch.equal(best, expected.values[..., :count])
    assert torch.equal(indices[possible], expected.indices[..., :count][possible])


@given(data=st.data(), count=st.integers(1, 6), width=st.integers(350, 600), distinct=st.integers(2, 900))
def test_top_of_long_rows_is_a_stable_sort_too(data, count, width, distinct):
    """Long rows are searched in blocks; few distinct values make ties within and across blocks."""
    seed = data.draw(st.integers(0, 10**6))
    drawn = torch.randint(0, distinct, (3, width), generator=torch.Generator().manual_seed(seed))
    values_BV = drawn.float()
    values_BV[drawn == 0] = -torch.inf
    best, indices = top(values_BV[:, : width - 3], count)  # rows that are not contiguous
    expected = values_BV[:, : width - 3].sort(dim=-1, descending=True, stable=True)
    possible = expected.values[..., :count] > -torch.inf
    assert torch.equal(best, expected.values[..., :count])
    assert torch.equal(indices[possible], expected.indices[..., :count][possible])
