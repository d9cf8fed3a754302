"""The decoding engine CTranslate2 gives the outputs, probabilities and keys of our own decoding."""

import numpy as np
import pytest
import torch

from glassformer.core.config import validate
from glassformer.core.errors import ErrorDetail, UserError
from glassformer.evaluation.evaluate import EvaluationConfig
from glassformer.generation import (
    BeamConfig,
    DecodingConfig,
    GreedyConfig,
    ctranslate2_engine,
    predict,
    tracing,
)
from glassformer.generation.predict import (
    CTranslate2EngineConfig,
    OwnEngineConfig,
    Prediction,
    predict_by_decoding,
    predict_continuations,
    with_engine,
)
from glassformer.models.base import Model
from glassformer.models.task_types import CausalLM, Seq2Seq, TaskType
from glassformer.models.transformer import TransformerConfig

pytest.importorskip("ctranslate2")

VOCABULARY, LONGEST, BEGIN, END = 23, 20, 2, 3
FORBIDDEN = [0, 1, 4]


def build(task_type: TaskType, **options: object) -> Model:
    sizes = {"num_layers": 2, "num_heads": 4, "hidden_dim": 32, "feed_forward_dim": 48, "dropout": 0.0}
    torch.manual_seed(0)
    model = validate(TransformerConfig, {**sizes, **options}).build(task_type).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        if model.head.bias is not None:
            model.head.bias[END] += 1
            model.head.bias[[*FORBIDDEN, BEGIN]] -= 20  # as if trained: forbidden tokens are improbable
    return model


@pytest.fixture(scope="module")
def translator() -> Model:
    return build(Seq2Seq(VOCABULARY, LONGEST, VOCABULARY, LONGEST, True), position="rotary")


@pytest.fixture(scope="module")
def language_model() -> Model:
    return build(CausalLM(VOCABULARY, LONGEST), position="rotary")


@pytest.fixture(scope="module")
def rows() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(5, VOCABULARY, int(length)) for length in rng.integers(2, 15, 40)]


def translate(
    model: Model, rows: list[np.ndarray], decoding: DecodingConfig, is_scored: bool = True
) -> list[list[Prediction]]:
    return predict_by_decoding(
        model, rows, begin=BEGIN, end=END, decoding=decoding, forbidden=FORBIDDEN, is_scored=is_scored
    )


def assert_equal(ours: list[list[Prediction]], theirs: list[list[Prediction]]) -> None:
    for (mine, *_), (other, *_) in zip(ours, theirs, strict=True):
        assert mine.tokens == other.tokens
        assert other.probabilities == pytest.approx(mine.probabilities, abs=1e-5)
        assert other.probability == pytest.approx(mine.probability, abs=1e-5)


def decoder(model: Model) -> Model:
    return with_engine(model, CTranslate2EngineConfig().build(model))


@pytest.mark.parametrize(
    "decoding", [GreedyConfig(), BeamConfig(size=1), BeamConfig(size=4, length_penalty=0)]
)
def test_translations_are_the_same(
    translator: Model, rows: list[np.ndarray], decoding: DecodingConfig
) -> None:
    ours = translate(translator, rows, decoding)
    assert len({len(best.tokens) for best, *_ in ours}) > 3
    assert_equal(ours, translate(decoder(translator), rows, decoding))


@pytest.mark.parametrize("position", ["sinusoidal", "learned", "none", "rotary"])
def test_targets_of_maximum_length_have_probabilities(position: str, rows: list[np.ndarray]) -> None:
    """A target that never ends has as many tokens as the decoder has positions."""
    model = build(Seq2Seq(VOCABULARY, LONGEST, VOCABULARY, LONGEST, True), position=position)
    with torch.no_grad():
        model.head.bias[END] -= 50
    ours = translate(model, rows, GreedyConfig())
    assert {len(best.probabilities) for best, *_ in ours} == {LONGEST}
    assert_equal(ours, translate(decoder(model), rows, GreedyConfig()))


def test_sources_of_begin_and_end_tokens_are_decoded(translator: Model) -> None:
    """CTranslate2 by itself returns nothing for them."""
    rows = [np.array(row) for row in ([END], [BEGIN, END], [BEGIN, END, 7], [BEGIN, BEGIN])]
    ours = translate(translator, rows, GreedyConfig())
    assert_equal(ours, translate(decoder(translator), rows, GreedyConfig()))


def test_length_penalty_counts_the_end_token(translator: Model, rows: list[np.ndarray]) -> None:
    """Both divide by the same length. CTranslate2 stops earlier, so its best hypothesis may score less."""
    decoding = BeamConfig(size=4, length_penalty=0.6)
    ours = translate(translator, rows, decoding)
    theirs = translate(decoder(translator), rows, decoding)
    same = np.mean([mine[0].tokens == other[0].tokens for mine, other in zip(ours, theirs, strict=True)])
    assert same >= 0.8

    def score(prediction: Prediction) -> float:
        return float(np.log(prediction.probability) / len(prediction.probabilities) ** 0.6)

    for mine, other in zip(ours, theirs, strict=True):
        assert score(other[0]) <= score(mine[0]) + 1e-5


@pytest.mark.parametrize(
    ("decoding", "end"),
    [(GreedyConfig(), END), (GreedyConfig(), None), (BeamConfig(size=3, length_penalty=0), END)],
)
def test_continuations_are_the_same(
    language_model: Model, rows: list[np.ndarray], decoding: DecodingConfig, end: int | None
) -> None:
    forbidden = [*FORBIDDEN, *([END] if end is None else [])]
    ours = predict_continuations(language_model, rows, decoding, end, forbidden)
    assert_equal(ours, predict_continuations(decoder(language_model), rows, decoding, end, forbidden))


def test_several_hypotheses_are_ranked(translator: Model, rows: list[np.ndarray]) -> None:
    found = translate(decoder(translator), rows, BeamConfig(size=4, n_best=3, length_penalty=0))
    assert all(len(row) == 3 for row in found)
    assert all(row[0].probability >= row[1].probability >= row[2].probability for row in found)


def test_without_scores_there_are_no_probabilities(translator: Model, rows: list[np.ndarray]) -> None:
    found = translate(decoder(translator), rows, GreedyConfig(), is_scored=False)
    assert all(row[0].probabilities == [] and row[0].probability is None for row in found)


def test_the_model_itself_is_unchanged(translator: Model, rows: list[np.ndarray]) -> None:
    threads = torch.get_num_threads()
    twin = decoder(translator)
    translate(twin, rows, GreedyConfig())
    assert torch.get_num_threads() == threads
    assert translator.engine is None and twin.engine is not None
    assert next(twin.parameters()) is next(translator.parameters())


def test_a_trace_is_made_by_the_model_itself(translator: Model, rows: list[np.ndarray]) -> None:
    with tracing() as trace:
        translate(decoder(translator), rows[:1], GreedyConfig())
    assert trace.rows[0]


class WrongEngine(ctranslate2_engine.CTranslate2Engine):
    """Engine whose weights are not those of the model."""

    def __init__(self, model: Model, fallback: bool) -> None:
        super().__init__(model, fallback)
        self._prepare(BEGIN, END)
        self._model = build(model.task_type, position="sinusoidal")


def test_different_outputs_are_an_error(translator: Model, rows: list[np.ndarray]) -> None:
    wrong = with_engine(translator, WrongEngine(translator, fallback=False))
    for _ in range(2):
        with pytest.raises(UserError, match="of the first 16 outputs differently"):
            translate(wrong, rows, GreedyConfig())


def test_different_outputs_fall_back_only_if_told(translator: Model, rows: list[np.ndarray]) -> None:
    engine = WrongEngine(translator, fallback=True)
    wrong = with_engine(translator, engine)
    with pytest.warns(UserWarning, match="glassformer decodes instead"):
        found = translate(wrong, rows, GreedyConfig())
    assert_equal(translate(engine._model, rows, GreedyConfig()), found)
    assert engine.name.startswith("glassformer")


def test_the_first_outputs_are_compared_once(
    translator: Model, rows: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(ctranslate2_engine, "generate", _counting(calls, ctranslate2_engine.generate))
    twin = decoder(translator)
    translate(twin, rows, BeamConfig(size=2))
    translate(twin, rows, GreedyConfig())
    assert calls == [ctranslate2_engine.CHECKED_ROWS]


def _counting(calls: list[int], generate):
    def counted(model, inputs, **named):
        calls.append(len(inputs["tokens"]))
        return generate(model, inputs, **named)

    return counted


def test_sampling_is_refused() -> None:
    with pytest.raises(UserError, match="does not have this decoding strategy") as error:
        validate(EvaluationConfig, {"engine": "ctranslate2", "decoding": "sample"})
    assert "decoding.kind" in str(error.value)


@pytest.mark.parametrize(
    ("options", "path"),
    [({"norm": "none"}, "model.norm.kind"), ({"position": "alibi"}, "model.position.kind")],
)
def test_a_model_that_it_cannot_run_is_refused(options: dict[str, str], path: str) -> None:
    model = build(Seq2Seq(VOCABULARY, LONGEST, VOCABULARY, LONGEST, True), **options)
    with pytest.raises(UserError, match=f"also: +{path}"):
        CTranslate2EngineConfig().build(model)


def test_a_missing_package_is_named(translator: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "find_spec", lambda name: None)
    with pytest.raises(ErrorDetail, match="pip install 'glassformer\\[export\\]'"):
        CTranslate2EngineConfig().build(translator)


def test_our_own_engine_is_the_default(translator: Model) -> None:
    assert EvaluationConfig().engine == OwnEngineConfig()
    assert with_engine(translator, OwnEngineConfig().build(translator)) is translator


def test_training_never_uses_an_engine() -> None:
    config = validate(EvaluationConfig, {"engine": "ctranslate2"})
    assert config.during_training().engine == OwnEngineConfig()
