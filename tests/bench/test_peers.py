"""The comparison is fair: with the same weights, the other libraries generate the same outputs."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from glassformer.bench import peers, train
from glassformer.bench.base import Sizes
from glassformer.cost.parameters import trace
from glassformer.data.batching import Batch, pad
from glassformer.data.tokenizers import BEGIN, END, MASK, PAD, UNKNOWN
from glassformer.generation import BeamConfig, GreedyConfig, generate
from glassformer.models.base import Model
from glassformer.models.task_types import Seq2Seq
from glassformer.models.transformer import TransformerConfig

SIZES = Sizes(layers=2, heads=4, width=32, feed_forward=64, vocabulary=60, max_length=24, dropout=0.0)
FORBIDDEN = [PAD, UNKNOWN, BEGIN, MASK]


@pytest.fixture(scope="module")
def model() -> Model:
    config = TransformerConfig(
        num_layers=SIZES.layers,
        num_heads=SIZES.heads,
        hidden_dim=SIZES.width,
        feed_forward_dim=SIZES.feed_forward,
        dropout=0.0,
        norm_placement="post",
        feed_forward={"kind": "relu"},
        tied_output=True,
    )
    torch.manual_seed(0)
    model = config.build(
        Seq2Seq(SIZES.vocabulary, SIZES.max_length, SIZES.vocabulary, SIZES.max_length, True)
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        model.head.bias[END] += 2
    return model


@pytest.fixture(scope="module")
def rows() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(5, SIZES.vocabulary, int(length)) for length in rng.integers(3, 15, 30)]


def positions(model: Model) -> torch.Tensor:
    nothing = torch.zeros(1, SIZES.max_length, SIZES.width)
    return model.embedding.position.embed(nothing, torch.arange(SIZES.max_length)[None])[0]


def ours(model: Model, rows: list[np.ndarray], beam: int) -> list[list[int]]:
    tokens, attention_mask = pad(rows)
    strategy = BeamConfig(size=beam) if beam > 1 else GreedyConfig()
    found = generate(
        model,
        {"tokens": tokens, "mask": attention_mask},
        begin=BEGIN,
        end=END,
        strategy=strategy,
        forbidden=FORBIDDEN,
    )
    return [best.tokens for best, *_ in found]


@pytest.mark.parametrize("beam", [1, 4])
def test_hugging_face_generates_the_same(model: Model, rows: list[np.ndarray], beam: int) -> None:
    pytest.importorskip("transformers")
    weights = peers.marian_weights(dict(model.state_dict()), positions(model), SIZES.layers)
    write = peers.huggingface_decoder(SIZES, weights, FORBIDDEN)
    assert write(rows, beam) == ours(model, rows, beam)


def test_ctranslate2_generates_the_same(model: Model, rows: list[np.ndarray]) -> None:
    """Compare greedy outputs only: with a beam, CTranslate2 stops earlier and may differ."""
    pytest.importorskip("ctranslate2")
    for concurrency in (1, 2):
        before = torch.get_num_threads()
        write = peers.ctranslate2_decoder(model, FORBIDDEN, threads=2, concurrency=concurrency)
        assert torch.get_num_threads() == before
        assert write(rows, 1, 2) == ours(model, rows, 1)
        assert len(write(rows, 4, 2)) == len(rows)


def batch(rows: list[np.ndarray]) -> Batch:
    tokens, attention_mask = pad(rows)
    target, _ = pad([np.array([BEGIN, *row, END]) for row in rows])
    answers = target[:, 1:].masked_fill(target[:, 1:] == PAD, -100)
    return Batch(
        {"tokens": tokens, "mask": attention_mask, "target": target[:, :-1]},
        answers,
        np.arange(len(rows)),
    )


@pytest.mark.parametrize("trainer", [peers.torch_nn_trainer, peers.huggingface_trainer])
def test_their_training_trains(
    trainer: Callable[[Sizes, list[Batch]], Callable[[], None]],
    rows: list[np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    losses = []
    backward = torch.Tensor.backward
    monkeypatch.setattr(
        torch.Tensor, "backward", lambda loss: (losses.append(float(loss.detach())), backward(loss))[1]
    )
    train = trainer(SIZES, [batch(rows)])
    for _ in range(15):
        train()
    assert losses[-1] < losses[0]


def test_flops_equal_those_of_a_trace(model: Model) -> None:
    same = [np.arange(5, 12), np.arange(6, 13)]
    inputs = batch(same).inputs
    traced, _ = trace(model, {**inputs, "mask": None})
    counted = train.encoder_decoder_flops(SIZES, np.array([7, 7]), np.array([8, 8]))
    assert counted == traced
