"""What every kind of model part must do, in every shape: the registry is asked which kinds there are.

A kind of one's own, registered by the test itself, is held to the same contract at the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any, Literal

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.testing import assert_close

from glassformer.blocks.embedding import InputConfig
from glassformer.blocks.feed_forward import FeedForwardConfig
from glassformer.blocks.heads import IGNORED, OutputConfig, PoolingConfig
from glassformer.blocks.norms import NormConfig
from glassformer.blocks.positions import Position, PositionConfig, distances
from glassformer.core.config import validate
from glassformer.core.errors import ErrorDetail, UserError
from glassformer.core.registry import Kind, kinds, register, unregister
from glassformer.models.base import Model, SupportsGeneration
from glassformer.models.task_types import (
    CausalLM,
    MaskedLM,
    Seq2Seq,
    SequenceClassification,
    TaskType,
    TokenClassification,
)
from glassformer.models.transformer import TransformerConfig

VOCABULARY, LENGTH, TARGET_VOCABULARY, TARGET_LENGTH, CLASSES = 13, 7, 11, 5, 3
SMALL = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "feed_forward_dim": 12}

SHAPES: dict[str, TaskType] = {
    "per token": TokenClassification(VOCABULARY, LENGTH, CLASSES),
    "per sequence": SequenceClassification(VOCABULARY, LENGTH, CLASSES),
    "real number": SequenceClassification(VOCABULARY, LENGTH, 1, is_regression=True),
    "next token": CausalLM(VOCABULARY, LENGTH),
    "masked token": MaskedLM(VOCABULARY, LENGTH),
    "sequence to sequence": Seq2Seq(VOCABULARY, LENGTH, TARGET_VOCABULARY, TARGET_LENGTH),
    "shared vocabulary": Seq2Seq(VOCABULARY, LENGTH, VOCABULARY, TARGET_LENGTH, True),
}
ANSWERS = {
    "per token": (2, LENGTH, CLASSES),
    "per sequence": (2, CLASSES),
    "real number": (2, 1),
    "next token": (2, LENGTH, VOCABULARY),
    "masked token": (2, LENGTH, VOCABULARY),
    "sequence to sequence": (2, TARGET_LENGTH, TARGET_VOCABULARY),
    "shared vocabulary": (2, TARGET_LENGTH, VOCABULARY),
}
FAMILIES: dict[str, type[Kind]] = {
    "feed_forward": FeedForwardConfig,
    "input": InputConfig,
    "pooling": PoolingConfig,
    "output": OutputConfig,
}

each_shape = pytest.mark.parametrize("task_type", SHAPES)
each_placement = pytest.mark.parametrize("placement", ["pre", "post"])
each_position = pytest.mark.parametrize("position", sorted(kinds(PositionConfig)))


def configure(**options: Any) -> TransformerConfig:
    return validate(TransformerConfig, {**SMALL, **options})


def built(config: TransformerConfig, task_type: TaskType, seed: int = 0) -> Model:
    torch.manual_seed(seed)
    return config.build(task_type)


def inputs_for(task_type: TaskType) -> dict[str, Tensor | None]:
    """Two rows, the second one padded."""
    random = torch.Generator().manual_seed(0)
    inputs: dict[str, Tensor | None] = {
        "tokens": torch.randint(task_type.vocabulary, (2, LENGTH), generator=random),
        "mask": torch.arange(LENGTH) < torch.tensor([[LENGTH], [LENGTH - 3]]),
    }
    if isinstance(task_type, Seq2Seq):
        inputs["target"] = torch.randint(task_type.target_vocabulary, (2, TARGET_LENGTH), generator=random)
    return inputs


def targets_for(name: str) -> Tensor:
    """A right answer for each question, but one is not asked."""
    *questions, classes = ANSWERS[name]
    if name == "real number":
        return torch.tensor([0.5, -1.0])
    targets = torch.arange(math.prod(questions)).view(questions) % classes
    targets.view(-1)[-1] = IGNORED
    return targets


def fulfil_contract(config: TransformerConfig, name: str) -> None:
    shape = SHAPES[name]
    assert validate(TransformerConfig, config.dump()) == config

    model = built(config, shape)
    inputs, targets = inputs_for(shape), targets_for(name)
    score = model.compute_loss(inputs, targets)
    assert score.loss.isfinite() and 0 <= score.correct <= score.count
    assert score.count == (targets != IGNORED).sum()
    score.loss.backward()
    for path, parameter in model.named_parameters():
        assert parameter.grad is not None, f"{path} gets no gradient"
        assert parameter.grad.isfinite().all() and parameter.grad.any(), f"the gradient of {path} is empty"

    saved = save(model.state_dict())  # refuses tensors that share their memory
    other = built(config, shape, seed=1)
    other.load_state_dict(load(saved))
    answers = model.eval()(**inputs)
    assert answers.shape == ANSWERS[name] and answers.dtype == torch.float32
    assert torch.equal(other.eval()(**inputs), answers)
    assert isinstance(model, SupportsGeneration) == isinstance(shape, (CausalLM, Seq2Seq))


@each_shape
@each_placement
@each_position
@pytest.mark.parametrize("norm", sorted(kinds(NormConfig)))
def test_every_position_norm_and_placement(norm: str, position: str, placement: str, task_type: str) -> None:
    fulfil_contract(configure(position=position, norm=norm, norm_placement=placement), task_type)


@each_shape
@each_placement
@pytest.mark.parametrize(
    ("part", "kind"),
    [(part, kind) for part, family in FAMILIES.items() for kind in sorted(kinds(family))],
)
def test_every_other_part(part: str, kind: str, placement: str, task_type: str) -> None:
    fulfil_contract(configure(norm_placement=placement, **{part: kind}), task_type)


@each_shape
@pytest.mark.parametrize(
    "options",
    [
        {"num_key_value_heads": 1},
        {"bias": False},
        {"embedding_norm": True},
        {"final_norm": True, "norm_placement": "post"},
        {"final_norm": False},
        {"output_bias": False},
        {"tied_output": True},
        {"tied_output": True, "input": "one-hot"},
        {"tied_output": True, "output": "transform", "output_bias": False},
        {"is_causal": True, "pooling": "last"},
        {"decoder_layers": 2},
        {"attention_dropout": 0.5, "dropout": 0.5},
    ],
    ids=str,
)
def test_every_option(options: dict[str, Any], task_type: str) -> None:
    fulfil_contract(configure(**options), task_type)


# ---------------------------------------------------------------- one backbone, by name


def backbone(model: Model) -> dict[str, tuple[int, ...]]:
    state = model.state_dict()
    return {name: tuple(x.shape) for name, x in state.items() if name.startswith(("embedding.", "encoder."))}


@each_placement
@each_position
def test_the_backbone_has_the_same_names_in_every_shape(position: str, placement: str) -> None:
    config = configure(position=position, norm_placement=placement, embedding_norm=True)
    first, *others = [backbone(built(config, shape)) for shape in SHAPES.values()]
    assert first and all(other == first for other in others)


def test_a_backbone_moves_between_shapes_by_name() -> None:
    config = configure(position="learned")
    trained, fresh = built(config, SHAPES["masked token"]), built(config, SHAPES["per sequence"], seed=1)
    # "head" alone is left over: a head over words says nothing about classes.
    trunk = {name: x for name, x in trained.state_dict().items() if not name.startswith("head.")}
    result = fresh.load_state_dict(trunk, strict=False)
    assert not result.unexpected_keys and {name.split(".")[0] for name in result.missing_keys} == {"head"}
    tokens = inputs_for(SHAPES["per token"])["tokens"]
    assert torch.equal(fresh.eval().encode(tokens), trained.eval().encode(tokens))


# ---------------------------------------------------------------- limits are said


@each_position
@each_shape
def test_a_sequence_that_is_too_long_works_or_says_why(position: str, task_type: str) -> None:
    model = built(configure(position=position), SHAPES[task_type]).eval()
    inputs = inputs_for(SHAPES[task_type])
    longer = {name: torch.cat([x, x], 1) for name, x in inputs.items() if x is not None}
    try:
        assert model(**longer).isfinite().all()
    except ErrorDetail as problem:
        assert position == "learned"
        assert "learned positions end at length" in problem.message and problem.hint


@each_shape
def test_learned_positions_end_where_the_shape_says(task_type: str) -> None:
    """Also on the side that is written, which has a limit of its own."""
    model = built(configure(position="learned"), SHAPES[task_type])
    inputs = {name: x for name, x in inputs_for(SHAPES[task_type]).items() if x is not None}
    for name, limit in (("tokens", LENGTH), ("target", TARGET_LENGTH)):
        if name in inputs:
            longer = {**inputs, "mask": None, name: torch.zeros(2, limit + 1, dtype=torch.long)}
            with pytest.raises(ErrorDetail, match=f"end at length {limit}, this sequence needs {limit + 1}"):
                model(**longer)


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"num_heads": 3}, "num_heads"),
        ({"num_heads": 4, "num_key_value_heads": 3}, "num_key_value_heads"),
        ({"num_heads": 8, "position": "rotary"}, "position.kind"),
        ({"position": {"kind": "t5", "max_distance": 16}}, "position.max_distance"),
        ({"position": "rotery"}, "position.kind"),
        ({"hidden_dim": -8}, "hidden_dim"),
    ],
    ids=str,
)
def test_what_cannot_be_built_is_refused_before(options: dict[str, Any], path: str) -> None:
    with pytest.raises(UserError) as caught:
        configure(**options)
    assert caught.value.details[0].path == path
    assert 2 <= len(str(caught.value).splitlines()) <= 5


def test_an_unknown_shape_is_refused() -> None:
    with pytest.raises(ErrorDetail, match="does not support TaskType"):
        configure().build(TaskType(VOCABULARY, LENGTH))


# ---------------------------------------------------------------- a kind of one's own


class Fading(Position):
    """A learned rate at which a head forgets: the score falls with the distance."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.rates_H = nn.Parameter(torch.linspace(0.1, 1.0, num_heads))

    def score_bias(self, q_BHLK: Tensor, query_positions_BL: Tensor, key_positions_BM: Tensor) -> Tensor:
        return -self.rates_H[:, None, None] * distances(query_positions_BL, key_positions_BM)[:, None].abs()


class FadingConfig(PositionConfig):
    kind: Literal["fading"] = "fading"

    def build(self, *, hidden_dim: int, num_heads: int, max_length: int, is_causal: bool) -> Position:
        return Fading(num_heads)

    def parameter_count(self, *, hidden_dim: int, num_heads: int, max_length: int) -> int:
        return num_heads


class Loudness(nn.Module):
    """A vector at a learned loudness, the same for all components."""

    def __init__(self) -> None:
        super().__init__()
        self.loudness = nn.Parameter(torch.ones(1))

    def forward(self, x_BLD: Tensor) -> Tensor:
        return self.loudness * nn.functional.normalize(x_BLD, dim=-1)


class LoudnessConfig(NormConfig):
    kind: Literal["loudness"] = "loudness"

    def build(self, dim: int) -> nn.Module:
        return Loudness()

    def parameter_count(self, dim: int) -> int:
        return 1


@pytest.fixture
def own_kinds() -> Iterator[None]:
    own = [FadingConfig, LoudnessConfig]
    for kind in own:
        register(kind)
    yield
    for kind in own:
        unregister(kind)


@pytest.mark.usefixtures("own_kinds")
def test_kinds_of_ones_own_fulfil_the_contract() -> None:
    for task_type, placement in product(SHAPES, ["pre", "post"]):
        config = configure(position="fading", norm="loudness", norm_placement=placement)
        fulfil_contract(config, task_type)
        counted = sum(parameter.numel() for parameter in config.build(SHAPES[task_type]).parameters())
        assert sum(config.parameter_terms(SHAPES[task_type]).values()) == counted


@pytest.mark.usefixtures("own_kinds")
def test_a_position_of_ones_own_works_with_a_cache() -> None:
    model = built(configure(position="fading"), SHAPES["next token"]).double().eval()
    assert isinstance(model, SupportsGeneration)
    tokens = torch.arange(LENGTH)[None]
    state = model.start(tokens=tokens)
    for place in range(LENGTH):
        logits = model.advance(state, tokens[:, place : place + 1])
        assert_close(logits, model(tokens=tokens[:, : place + 1])[:, -1], atol=1e-9, rtol=1e-9)


def test_without_registration_they_are_unknown() -> None:
    with pytest.raises(UserError, match="unknown kind"):
        configure(position="fading")
