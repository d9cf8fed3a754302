"""Stops, limits, prompts, forbidden tokens and errors of `generate`, with a model of known logits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from glassformer.core.config import Node, validate
from glassformer.core.errors import ErrorDetail, UserError
from glassformer.generation import (
    BeamConfig,
    DecodingConfig,
    GreedyConfig,
    SampleConfig,
    Trace,
    generate,
)
from glassformer.generation.no_cache import NoCache
from glassformer.generation.search import _log_total
from glassformer.models.task_types import CausalLM, Seq2Seq, TokenClassification
from glassformer.models.transformer import TransformerConfig

BEGIN, END, VOCABULARY = 0, 1, 6
STRATEGIES = [GreedyConfig(), SampleConfig(), BeamConfig(size=1), BeamConfig(size=3, n_best=2)]
each_strategy = pytest.mark.parametrize(
    "strategy", STRATEGIES, ids=lambda s: f"{s.kind}-{getattr(s, 'size', 1)}"
)


def sure(token: int) -> list[float]:
    """Logits that leave no other choice."""
    return [0.0 if other == token else -1000.0 for other in range(VOCABULARY)]


def spell(name: int, generated: tuple[int, ...]) -> list[float]:
    """Row `name` generates that many tokens of 2, 3, 4, …, then ends."""
    step = len(generated) - 1
    return sure(END if step >= name else 2 + step % 4)


def inputs(*names: int) -> dict[str, torch.Tensor | None]:
    return {"tokens": torch.tensor([[name] for name in names])}


def tokens_of(generated: list[list[Any]]) -> list[list[int]]:
    return [hypotheses[0].tokens for hypotheses in generated]


@each_strategy
def test_rows_stop_at_their_end_and_leave_the_batch(scripted, strategy):
    model = scripted(spell)
    generated = generate(model, inputs(2, 0, 3, 0), begin=BEGIN, end=END, max_length=9, strategy=strategy)
    assert tokens_of(generated) == [[2, 3], [], [2, 3, 4], []]
    assert all(hypotheses[0].is_finished for hypotheses in generated)
    if strategy.kind != "beam" or strategy.size == 1:
        assert model.lines == [4, 2, 2, 1]


def test_log_probabilities_are_the_models_and_the_ends_comes_last(scripted):
    table = {(): [0.0, 0.1, 0.2, 2.0, 0.3, 0.4], (3,): [0.0, 3.0, 0.2, 0.1, 0.3, 0.4]}
    model = scripted(lambda name, generated: table[generated[1:]])
    [[best]] = generate(model, inputs(0), begin=BEGIN, end=END, max_length=5)
    first, second = (torch.tensor(row, dtype=torch.float64).log_softmax(0) for row in table.values())
    assert best.tokens == [3]
    assert best.log_probabilities == pytest.approx([float(first[3]), float(second[END])], abs=1e-12)
    assert best.score == pytest.approx(float(first[3] + second[END]), abs=1e-12)
    assert best.log_probability == pytest.approx(best.score, abs=1e-12)


@each_strategy
def test_the_limit_counts_the_end(scripted, strategy):
    for limit, tokens, is_finished in ((1, [2], False), (3, [2, 3, 4], False), (4, [2, 3, 4], True)):
        [[best, *_]] = generate(
            scripted(spell), inputs(3), begin=BEGIN, end=END, max_length=limit, strategy=strategy
        )
        assert (best.tokens, best.is_finished) == (tokens, is_finished)
        assert len(best.log_probabilities) == len(tokens) + is_finished


@each_strategy
def test_each_row_has_its_own_limit(scripted, strategy):
    model = scripted(lambda name, generated: sure(2))
    generated = generate(
        model, inputs(0, 0, 0), begin=BEGIN, end=END, max_length=[2, 5, 1], strategy=strategy
    )
    assert tokens_of(generated) == [[2] * 2, [2] * 5, [2]]


@each_strategy
def test_an_empty_batch_needs_no_model(strategy):
    nothing: Any = scripted_that_must_not_run()
    empty = {"tokens": torch.empty(0, 3, dtype=torch.long)}
    assert generate(nothing, empty, begin=BEGIN, end=END, max_length=5, strategy=strategy) == []


def scripted_that_must_not_run() -> Any:
    class Untouchable:
        def start(self, **inputs: Any) -> Any:
            raise AssertionError("nothing to read")

        advance = start

    return Untouchable()


@each_strategy
def test_all_rows_may_end_at_once(scripted, strategy):
    model = scripted(lambda name, generated: sure(END))
    generated = generate(model, inputs(0, 1, 2), begin=BEGIN, end=END, max_length=5, strategy=strategy)
    assert tokens_of(generated) == [[], [], []]
    assert generated[0][0].log_probabilities == pytest.approx([0.0])
    if getattr(strategy, "n_best", 1) == 1:
        assert model.lines == [3]


@each_strategy
def test_without_an_end_only_the_limit_stops(scripted, strategy):
    generated = generate(scripted(spell), inputs(0), begin=BEGIN, end=None, max_length=4, strategy=strategy)
    assert tokens_of(generated) == [[END] * 4]
    assert not generated[0][0].is_finished


@each_strategy
def test_min_length_puts_the_end_off(scripted, strategy):
    model = scripted(lambda name, generated: [0.0, 9.0, 5.0, 0.0, 0.0, 0.0])
    for least in range(4):
        [hypotheses] = generate(
            model, inputs(0), begin=BEGIN, end=END, max_length=8, min_length=least, strategy=strategy
        )
        assert min(len(hypothesis.tokens) for hypothesis in hypotheses) >= least
        if strategy.kind == "greedy":
            assert hypotheses[0].tokens == [2] * least


@each_strategy
def test_forbidden_tokens_are_never_written_and_probabilities_stay_the_models(
    scripted, random_table, strategy
):
    table = random_table(3, VOCABULARY)
    generated = generate(
        scripted(table),
        inputs(*range(20)),
        begin=BEGIN,
        end=END,
        max_length=6,
        forbidden=[BEGIN, 2, 4],
        strategy=strategy,
    )
    for name, hypotheses in enumerate(generated):
        for hypothesis in hypotheses:
            assert set(hypothesis.tokens) <= {3, 5}
            path = [*hypothesis.tokens, END] if hypothesis.is_finished else hypothesis.tokens
            for step, token in enumerate(path):
                logits = torch.tensor(table(name, (BEGIN, *path[:step])), dtype=torch.float64)
                expected = float(logits.log_softmax(0)[token])
                assert hypothesis.log_probabilities[step] == pytest.approx(expected, abs=1e-12)


@each_strategy
def test_a_prompt_follows_the_beginning_and_may_be_ragged(scripted, random_table, strategy):
    model = scripted(random_table(1, VOCABULARY))
    prompt_BL = torch.tensor([[2, 3, 4], [5, 0, 0], [0, 0, 0]])
    attention_mask_BL = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]]).bool()
    options: dict[str, Any] = {"begin": BEGIN, "end": END, "max_length": 5, "strategy": strategy}
    together = generate(model, inputs(7, 8, 9), prompt=prompt_BL, mask=attention_mask_BL, **options)
    for row, prompt in enumerate(([2, 3, 4], [5], [])):
        alone = generate(
            model,
            inputs(7 + row),
            prompt=torch.tensor([prompt], dtype=torch.long),
            row_numbers=[row],
            **options,
        )
        assert alone == [together[row]]


def test_of_equal_tokens_the_lowest_is_taken(scripted):
    model = scripted(lambda name, generated: [-1.0] * 3 + [0.0] * 500)
    for strategy in (GreedyConfig(), BeamConfig(size=1), BeamConfig(size=4, n_best=4)):
        [hypotheses] = generate(model, inputs(0), begin=BEGIN, end=END, max_length=1, strategy=strategy)
        assert [hypothesis.tokens for hypothesis in hypotheses] == [[3 + i] for i in range(len(hypotheses))]


def test_dropout_is_off_and_each_module_gets_its_mode_back():
    torch.manual_seed(0)
    model = TransformerConfig(num_layers=1, num_heads=1, hidden_dim=8, dropout=0.5).build(CausalLM(7, 12))
    model.train()
    model.encoder.layers[0].eval()
    modes = [module.training for module in model.modules()]
    prompt_BL = torch.tensor([[2, 3]])
    first = generate(model, prompt=prompt_BL, end=None, max_length=5)
    assert first == generate(model, prompt=prompt_BL, end=None, max_length=5)
    assert [module.training for module in model.modules()] == modes


def test_the_default_limit_is_the_models_room():
    for position in ("learned", "rotary"):
        config = TransformerConfig(num_layers=1, num_heads=1, hidden_dim=8, position={"kind": position})
        language_model = config.build(CausalLM(7, 12))
        prompt_BL, attention_mask_BL = (
            torch.ones(2, 4, dtype=torch.long),
            torch.tensor([[1] * 4, [1, 1, 0, 0]]).bool(),
        )
        generated = generate(language_model, prompt=prompt_BL, mask=attention_mask_BL, end=None)
        assert [len(hypotheses[0].tokens) for hypotheses in generated] == [9, 11]
        translator = config.build(Seq2Seq(7, 5, 7, max_target_length=6))
        generated = generate(
            translator, {"tokens": prompt_BL, "mask": attention_mask_BL}, begin=BEGIN, end=None
        )
        assert [len(hypotheses[0].tokens) for hypotheses in generated] == [6, 6]


# ---------------------------------------------------------------- errors

LANGUAGE_MODEL = CausalLM(7, 12)
LEFT_PADDED = torch.tensor([[0, 1, 1]]).bool()


@pytest.mark.parametrize(
    ("options", "path", "words"),
    [
        ({"max_length": 11}, "max_length", "max_length=10"),
        ({"max_length": [10, 11], "prompt": torch.ones(2, 3).long()}, "max_length", "row 1"),
        ({"max_length": 0}, "max_length", "at least 1"),
        ({"max_length": 3, "min_length": 4}, "max_length", "at least 4"),
        ({"prompt": torch.ones(1, 13).long()}, "prompt", "at most 12"),
        ({"prompt": torch.ones(1, 0).long()}, "prompt", "row 0 is empty"),
        ({"mask": torch.zeros(1, 3).bool()}, "prompt", "row 0 is empty"),
        ({"mask": LEFT_PADDED}, "mask", "on the right"),
        (
            {"prompt": None, "begin": 1, "inputs": {"tokens": torch.ones(1, 3).long()}},
            "inputs",
            "prompt=tokens",
        ),
        ({"prompt": None, "inputs": torch.ones(1, 3).long()}, "inputs", "named tensors"),
        ({"prompt": None}, "begin", "no token to start with"),
        ({"end": 7}, "end", "0 to 6"),
        ({"forbidden": [-1]}, "forbidden", "0 to 6"),
        ({"forbidden": range(7)}, "forbidden", "all tokens are forbidden"),
    ],
)
@pytest.mark.parametrize("wrap", [lambda model: model, NoCache], ids=["cache", "no-cache"])
def test_errors_have_a_path_and_a_hint(options, path, words, wrap):
    model = wrap(TransformerConfig(num_layers=1, num_heads=1, hidden_dim=8).build(LANGUAGE_MODEL))
    with pytest.raises(ErrorDetail) as caught:
        generate(model, **{"prompt": torch.ones(1, 3).long(), "end": 1, **options})
    assert caught.value.path == path
    assert words in str(caught.value)
    assert caught.value.hint


def test_a_model_without_a_task_type_needs_a_limit(scripted):
    with pytest.raises(ErrorDetail, match="a limit is required"):
        generate(scripted(spell), inputs(0), begin=BEGIN, end=END)


def test_an_input_that_a_translator_does_not_read_is_named():
    translator = TransformerConfig(num_layers=1, num_heads=1, hidden_dim=8).build(Seq2Seq(7, 5, 7, 6))
    with pytest.raises(ErrorDetail, match="no such input") as caught:
        generate(translator, {"source": torch.ones(1, 3).long()}, begin=1, end=2)
    assert caught.value.allowed == ["tokens", "mask"]


def test_a_model_that_cannot_generate_is_refused():
    labeller = TransformerConfig(num_layers=1, num_heads=1, hidden_dim=8).build(
        TokenClassification(7, 5, classes=3)
    )
    with pytest.raises(ErrorDetail, match="TokenPredictor cannot generate"):
        generate(labeller, prompt=torch.ones(1, 2).long(), end=1, max_length=2)


@each_strategy
@pytest.mark.parametrize("is_scored", [False, True])
@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_reported(scripted, strategy, broken, is_scored):
    def logits(name: int, generated: tuple[int, ...]) -> list[float]:
        ill = name == 5 and len(generated) == 3
        return [0.0, -9.0, 1.0, 0.5, broken if ill else 0.0, 0.0]

    with pytest.raises(ErrorDetail, match="token 3 of row 1"):
        generate(
            scripted(logits),
            inputs(4, 5),
            begin=BEGIN,
            end=END,
            max_length=9,
            strategy=strategy,
            is_scored=is_scored,
        )


@each_strategy
def test_without_probabilities_the_same_is_written(scripted, random_table, strategy):
    options = {"begin": BEGIN, "end": END, "max_length": 7, "forbidden": [3], "strategy": strategy}
    scored, bare = (
        generate(scripted(random_table(3, VOCABULARY)), inputs(*range(8)), is_scored=is_scored, **options)
        for is_scored in (True, False)
    )
    assert tokens_of(bare) == tokens_of(scored) and len({tuple(row) for row in tokens_of(bare)}) > 3
    has_numbers = strategy.kind != "greedy"  # other strategies need probabilities to choose
    assert all(bool(h.log_probabilities) is has_numbers for hypotheses in bare for h in hypotheses)
    trace = Trace(alternatives=2)
    generate(scripted(random_table(3, VOCABULARY)), inputs(0), is_scored=False, trace=trace, **options)
    assert sum(p for _, p in trace.rows[0][0].alternatives[0]) <= 1


@pytest.mark.parametrize("shift", [-200.0, -60.0, 0.0, 80.0, 200.0])
def test_probabilities_do_not_depend_on_how_large_all_logits_are(shift):
    logits_NV = torch.randn(40, 50, generator=torch.Generator().manual_seed(0)) + shift
    expected_N1 = logits_NV.double().logsumexp(1, keepdim=True)
    torch.testing.assert_close(_log_total(logits_NV), expected_N1, atol=2e-6, rtol=1e-7)


# ---------------------------------------------------------------- configuration


class Options(Node):
    decoding: DecodingConfig = GreedyConfig()


def test_strategies_are_kinds():
    assert validate(Options, {"decoding": "sample"}).decoding == SampleConfig()
    beam = validate(Options, {"decoding": {"kind": "beam", "size": 6, "n_best": 2}}).decoding
    assert beam == BeamConfig(size=6, n_best=2)


@pytest.mark.parametrize(
    ("decoding", "words"),
    [
        ({"kind": "beam", "size": 2, "n_best": 3}, "decoding.n_best"),
        ({"kind": "beam", "size": 0}, "decoding.size"),
        ({"kind": "beam", "length_penalty": -1.0}, "decoding.length_penalty"),
        ({"kind": "sample", "temperature": 0.0}, "decoding.temperature"),
        ({"kind": "sample", "top_p": 1.5}, "decoding.top_p"),
        ({"kind": "sample", "topk": 3}, "did you mean 'top_k'"),
        ({"kind": "beem"}, "did you mean 'beam'"),
    ],
)
def test_wrong_options_are_refused(decoding, words):
    with pytest.raises(UserError) as caught:
        validate(Options, {"decoding": decoding})
    assert words in str(caught.value)


# ---------------------------------------------------------------- trace


def test_a_trace_shows_the_alternatives(scripted):
    model = scripted(lambda name, generated: [0.0, -1.0, 3.0, 2.0, -2.0, 1.0])
    for strategy in (GreedyConfig(), SampleConfig(seed=4)):
        trace = Trace(alternatives=3)
        generated = generate(
            model,
            inputs(0, 1),
            begin=BEGIN,
            end=END,
            max_length=3,
            forbidden=[3],
            strategy=strategy,
            trace=trace,
        )
        probabilities = torch.tensor(model.logits(0, ()), dtype=torch.float64).softmax(0).tolist()
        for [best], steps in zip(generated, trace.rows, strict=True):
            for step in steps:
                [alternatives] = step.alternatives
                assert [token for token, _ in alternatives] == [2, 5, 0]
                assert [p for _, p in alternatives] == pytest.approx([probabilities[t] for t in (2, 5, 0)])
            chosen = [candidate for step in steps for candidate in step.candidates]
            path = [*best.tokens, END] if best.is_finished else best.tokens
            assert [candidate.token for candidate in chosen] == path
            assert [candidate.log_probability for candidate in chosen] == best.log_probabilities
            last = "finished" if best.is_finished else "truncated"
            assert [candidate.status for candidate in chosen] == ["kept"] * (len(path) - 1) + [last]


def test_a_beams_trace_is_a_tree_with_every_hypothesis_in_it(scripted, random_table):
    trace, size = Trace(), 3
    generated = generate(
        scripted(random_table(5, VOCABULARY)),
        inputs(0, 1, 2),
        begin=BEGIN,
        end=END,
        max_length=5,
        strategy=BeamConfig(size=size, n_best=size),
        trace=trace,
    )
    for hypotheses, steps in zip(generated, trace.rows, strict=True):
        beams: list[tuple[int, ...]] = [()]
        leaves = {}
        for step in steps:
            assert len(step.alternatives) == len(beams) <= size
            paths = [(*beams[candidate.beam], candidate.token) for candidate in step.candidates]
            statuses = [candidate.status for candidate in step.candidates]
            for path, candidate in zip(paths, step.candidates, strict=True):
                if candidate.status in ("finished", "truncated"):
                    leaves[path] = candidate.sum
            beams = [path for path, status in zip(paths, statuses, strict=True) if status == "kept"]
            assert statuses.count("kept") in (0, size)
            sums = [candidate.sum for candidate in step.candidates]
            assert sums == sorted(sums, reverse=True)
        for hypothesis in hypotheses:
            path = (*hypothesis.tokens, END) if hypothesis.is_finished else tuple(hypothesis.tokens)
            assert leaves[path] == pytest.approx(hypothesis.log_probability, abs=1e-12)
