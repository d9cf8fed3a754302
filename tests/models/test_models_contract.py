"""Contract of every registered kind of model part, for every task type.

User-defined kinds, registered by the test, must fulfil the same contract.
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

TASK_TYPES: dict[str, TaskType] = {
    "token classification": TokenClassification(VOCABULARY, LENGTH, CLASSES),
    "sequence classification": SequenceClassification(VOCABULARY, LENGTH, CLASSES),
    "regression": SequenceClassification(VOCABULARY, LENGTH, 1, is_regression=True),
    "causal LM": CausalLM(VOCABULARY, LENGTH),
    "masked LM": MaskedLM(VOCABULARY, LENGTH),
    "sequence to sequence": Seq2Seq(VOCABULARY, LENGTH, TARGET_VOCABULARY, TARGET_LENGTH),
    "shared vocabulary": Seq2Seq(VOCABULARY, LENGTH, VOCABULARY, TARGET_LENGTH, True),
}
OUTPUTS = {
    "token classification": (2, LENGTH, CLASSES),
    "sequence classification": (2, CLASSES),
    "regression": (2, 1),
    "causal LM": (2, LENGTH, VOCABULARY),
    "masked LM": (2, LENGTH, VOCABULARY),
    "sequence to sequence": (2, TARGET_LENGTH, TARGET_VOCABULARY),
    "shared vocabulary": (2, TARGET_LENGTH, VOCABULARY),
}
FAMILIES: dict[str, type[Kind]] = {
    "feed_forward": FeedForwardConfig,
    "input": InputConfig,
    "pooling": PoolingConfig,
    "output": OutputConfig,
}

each_task_type = pytest.mark.parametrize("task_type", TASK_TYPES)
each_placement = pytest.mark.parametrize("placement", ["pre", "post"])
each_position = pytest.mark.parametrize("position", sorted(kinds(PositionConfig)))


def configure(**options: Any) -> TransformerConfig:
    return validate(TransformerConfig, {**SMALL, **options})


def built(config: TransformerConfig, task_type: TaskType, seed: int = 0) -> Model:
    torch.manual_seed(seed)
    return config.build(task_type)


def inputs_for(task_type: TaskType) -> dict[str, Tensor | None]:
    """Inputs of two rows, the second one padded."""
    random = torch.Generator().manual_seed(0)
    inputs: dict[str, Tensor | None] = {
        "tokens": torch.randint(task_type.vocabulary, (2, LENGTH), generator=random),
        "mask": torch.arange(LENGTH) < torch.tensor([[LENGTH], [LENGTH - 3]]),
    }
    if isinstance(task_type, Seq2Seq):
        inputs["target"] = torch.randint(task_type.target_vocabulary, (2, TARGET_LENGTH), generator=random)
    return inputs


def targets_for(name: str) -> Tensor:
    """Targets for each output; one is ignored."""
    *axes, classes = OUTPUTS[name]
    if name == "regression":
        return torch.tensor([0.5, -1.0])
    targets = torch.arange(math.prod(axes)).view(axes) % classes
    targets.view(-1)[-1] = IGNORED
    return targets


def fulfil_contract(config: TransformerConfig, name: str) -> None:
    task_type = TASK_TYPES[name]
    assert validate(TransformerConfig, config.dump()) == config

    model = built(config, task_type)
    inputs, targets = inputs_for(task_type), targets_for(name)
    output = model.compute_loss(inputs, targets)
    assert output.loss.isfinite() and 0 <= output.correct <= output.count
    assert output.count == (targets != IGNORED).sum()
    output.loss.backward()
    for path, parameter in model.named_parameters():
        assert parameter.grad is not None, f"{path} gets no gradient"
        assert parameter.grad.isfinite().all() and parameter.grad.any(), f"the gradient of {path} is empty"

    saved = save(model.state_dict())  # safetensors refuses tensors that share memory
    other = built(config, task_type, seed=1)
    other.load_state_dict(load(saved))
    outputs = model.eval()(**inputs)
    assert outputs.shape == OUTPUTS[name] and outputs.dtype == torch.float32
    assert torch.equal(other.eval()(**inputs), outputs)
    assert isinstance(model, SupportsGeneration) == isinstance(task_type, (CausalLM, Seq2Seq))


@each_task_type
@each_placement
@each_position
@pytest.mark.parametrize("norm", sorted(kinds(NormConfig)))
def test_every_position_norm_and_placement(norm: str, position: str, placement: str, task_type: str) -> None:
    fulfil_contract(configure(position=position, norm=norm, norm_placement=placement), task_type)


@each_task_type
@each_placement
@pytest.mark.parametrize(
    ("part", "kind"),
    [(part, kind) for part, family in FAMILIES.items() for kind in sorted(kinds(family))],
)
def test_every_other_part(part: str, kind: str, placement: str, task_type: str) -> None:
    fulfil_contract(configure(norm_placement=placement, **{part: kind}), task_type)


@each_task_type
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


# ---------------------------------------------------------------- shared names of the backbone


def backbone(model: Model) -> dict[str, tuple[int, ...]]:
    state = model.state_dict()
    return {name: tuple(x.shape) for name, x in state.items() if name.startswith(("embedding.", "encoder."))}


@each_placement
@each_position
def test_the_backbone_has_the_same_names_for_every_task_type(position: str, placement: str) -> None:
    config = configure(position=position, norm_placement=placement, embedding_norm=True)
    first, *others = [backbone(built(config, task_type)) for task_type in TASK_TYPES.values()]
    assert first and all(other == first for other in others)


def test_a_backbone_moves_between_task_types_by_name() -> None:
    config = configure(position="learned")
    trained, fresh = (
        built(config, TASK_TYPES["masked LM"]),
        built(config, TASK_TYPES["sequence classification"], seed=1),
    )
    # Only the head differs: a head over tokens cannot be reused for classes.
    trunk = {name: x for name, x in trained.state_dict().items() if not name.startswith("head.")}
    result = fresh.load_state_dict(trunk, strict=False)
    assert not result.unexpected_keys and {name.split(".")[0] for name in result.missing_keys} == {"head"}
    tokens = inputs_for(TASK_TYPES["token classification"])["tokens"]
    assert torch.equal(fresh.eval().encode(tokens), trained.eval().encode(tokens))


# ---------------------------------------------------------------- limits


@each_position
@each_task_type
def test_a_sequence_that_is_too_long_works_or_is_refused(position: str, task_type: str) -> None:
    model = built(configure(position=position), TASK_TYPES[task_type]).eval()
    inputs = inputs_for(TASK_TYPES[task_type])
    longer = {name: torch.cat([x, x], 1) for name, x in inputs.items() if x is not None}
    try:
        assert model.hidden(**longer).isfinite().all()
    except ErrorDetail as error:
        assert position == "learned"
        assert "learned positions end at length" in error.message and error.hint


@each_task_type
def test_learned_positions_end_at_the_maximum_length(task_type: str) -> None:
    """The decoder has its own limit."""
    model = built(configure(position="learned"), TASK_TYPES[task_type])
    inputs = {name: x for name, x in inputs_for(TASK_TYPES[task_type]).items() if x is not None}
    for name, limit in (("tokens", LENGTH), ("target", TARGET_LENGTH)):
        if name in inputs:
            longer = {**inputs, "mask": None, name: torch.zeros(2, limit + 1, dtype=torch.long)}
            with pytest.raises(ErrorDetail, match=f"end at length {limit}, this sequence needs {limit + 1}"):
                model.hidden(**longer)
            with pytest.raises(ErrorDetail, match=f"have {limit + 1} tokens, and the model reads at most"):
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


def test_an_unknown_task_type_is_refused() -> None:
    with pytest.raises(ErrorDetail, match="does not support TaskType"):
        configure().build(TaskType(VOCABULARY, LENGTH))


# ---------------------------------------------------------------- user-defined kinds


class Fading(Position):
    """Penalty proportional to the distance, with a learned slope per head."""

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
    """Unit vector times one learned factor."""

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
def test_kinds_defined_by_a_user_fulfil_the_contract() -> None:
    for task_type, placement in product(TASK_TYPES, ["pre", "post"]):
        config = configure(position="fading", norm="loudness", norm_placement=placement)
        fulfil_contract(config, task_type)
        counted = sum(parameter.numel() for parameter in config.build(TASK_TYPES[task_type]).parameters())
        assert sum(config.parameter_terms(TASK_TYPES[task_type]).values()) == counted


@pytest.mark.usefixtures("own_kinds")
def test_a_position_defined_by_a_user_works_with_a_cache() -> None:
    model = built(configure(position="fading"), TASK_TYPES["causal LM"]).double().eval()
    assert isinstance(model, SupportsGeneration)
    tokens = torch.arange(LENGTH)[None]
    state = model.start(tokens=tokens)
    for step in range(LENGTH):
        logits = model.advance(state, tokens[:, step : step + 1])
        assert_close(logits, model(tokens=tokens[:, : step + 1])[:, -1], atol=1e-9, rtol=1e-9)


def test_without_registration_they_are_unknown() -> None:
    with pytest.raises(UserError, match="unknown kind"):
        configure(position="fading")
