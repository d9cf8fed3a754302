"""Predictions for rows of token ids: pad the rows, run the model or a decoding engine, read the outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Literal, TypeVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from glassformer.blocks.heads import RegressionHead
from glassformer.core.errors import ErrorDetail, UserError
from glassformer.core.registry import Kind, register
from glassformer.core.system import ThreadPool
from glassformer.data.batching import pad
from glassformer.generation.cpu import is_local, numpy_matmul, prepack
from glassformer.generation.decoding import generate, is_tracing
from glassformer.generation.search import Hypothesis
from glassformer.generation.strategies import BeamConfig, DecodingConfig, GreedyConfig
from glassformer.models.base import GenerativeModel, Model, ModelConfig, SupportsGeneration, evaluating
from glassformer.models.task_types import TaskType


@dataclass(frozen=True)
class Prediction:
    """Prediction for one input: token ids with probabilities (a single id for a class), or a real value."""

    tokens: list[int]
    probability: float | None
    probabilities: list[float]
    alternatives: list[list[tuple[int, float]]]
    """Most probable tokens at each position, with their probabilities."""
    value: float | None = None
    class_probabilities: np.ndarray | None = field(default=None, compare=False)
    """Probability of every class, if the prediction is a class for the whole sequence."""


@dataclass(frozen=True)
class PredictedText:
    """Predictions for one text, or the reason why there are none."""

    text: str
    tokens: np.ndarray | None
    """Token ids of the text; None if it cannot be read."""
    candidates: Sequence[Prediction]
    """Predictions, the most likely first; empty if there is an error."""
    error: str | None = None


ALTERNATIVES = 5


class Engine:
    """Base class of engines, which generate whole outputs with the weights of a model.

    decoder = with_engine(model, CTranslate2EngineConfig().build(model))
    task.predict(decoder, rows, GreedyConfig())

    Training, attention maps and traces always use the model itself.
    """

    name: str
    """Name and version, for the protocol of an evaluation."""

    def translate(
        self,
        rows: Sequence[np.ndarray],
        *,
        begin: int,
        end: int,
        decoding: DecodingConfig,
        forbidden: Sequence[int],
        is_scored: bool,
    ) -> list[list[Hypothesis]]:
        """Generate a target sequence for each source row. See `generation.generate`."""
        raise NotImplementedError

    def continue_rows(
        self,
        rows: Sequence[np.ndarray],
        *,
        end: int | None,
        max_length: Sequence[int],
        decoding: DecodingConfig,
        forbidden: Sequence[int],
    ) -> list[list[Hypothesis]]:
        """Continue each row with at most `max_length` tokens, which has one number per row."""
        raise NotImplementedError


def with_engine(model: Model, engine: Engine | None) -> Model:
    """Return a model with the same weights whose outputs the engine generates. None: the model itself."""
    if engine is None or not isinstance(model, GenerativeModel):
        return model
    twin = copy(model)
    twin.engine = engine
    return twin


def with_weights(model: Model, weights: str) -> Model:
    """Return a model that multiplies with weights of this type. `fp32`: the model itself."""
    if weights == "fp32":
        return model
    from glassformer.generation.int8 import quantise  # needed with these weights only

    return quantise(model)


class EngineConfig(Kind):
    """Base class of the configs of decoding engines."""

    def build(self, model: Model) -> Engine | None:
        """Build the engine for a trained model. None: the model itself decodes."""
        raise NotImplementedError

    def check(self, model: ModelConfig, task_type: TaskType) -> None:
        """Raise an ErrorDetail if the engine cannot run a model of this config."""

    def check_decoding(self, decoding: DecodingConfig) -> None:
        """Raise an ErrorDetail if the engine does not have this decoding strategy."""


@register
class OwnEngineConfig(EngineConfig):
    """Decoding of this package, on any device, with every option.

    Use it as the default.
    """

    kind: Literal["glassformer"] = "glassformer"

    def build(self, model: Model) -> Engine | None:
        return None


@register
class CTranslate2EngineConfig(EngineConfig):
    """CTranslate2, an inference engine in C++, with the same weights: greedy decoding and beam search of
    language models and encoder-decoders on a CPU.

    Use it to decode a large test set or to serve a translation model. It needs
    `pip install 'glassformer[export]'`. The first outputs are compared with this package's own decoding.
    Its beam search stops as soon as `size` hypotheses have ended, which is earlier than ours.
    """

    kind: Literal["ctranslate2"] = "ctranslate2"
    fallback: bool = Field(
        False, description="continue with glassformer, with a warning, if the first outputs differ"
    )

    def build(self, model: Model) -> Engine | None:
        from glassformer.generation.ctranslate2_engine import CTranslate2Engine

        if model.config is not None:
            self.check(model.config, model.task_type)
        return CTranslate2Engine(model, self.fallback)

    def check(self, model: ModelConfig, task_type: TaskType) -> None:
        from glassformer.generation.ctranslate2 import limits  # needed with this engine only

        if find_spec("ctranslate2") is None:
            raise ErrorDetail(
                "CTranslate2 is not installed",
                path="evaluation.engine",
                value=self.kind,
                hint="pip install 'glassformer[export]'",
            )
        found = limits(model, task_type)
        if found:
            raise UserError(
                ErrorDetail(
                    "CTranslate2 cannot run this model",
                    path="evaluation.engine",
                    value=self.kind,
                    hint="use evaluation.engine=glassformer",
                ),
                *found,
            )

    def check_decoding(self, decoding: DecodingConfig) -> None:
        if not isinstance(decoding, (GreedyConfig, BeamConfig)):
            raise ErrorDetail(
                "CTranslate2 does not have this decoding strategy",
                path="decoding.kind",
                value=decoding.kind,
                allowed=["beam", "greedy"],
                hint="use evaluation.engine=glassformer",
            )


def predict_tokens(
    model: Model, rows: Sequence[np.ndarray], forbidden: Sequence[int] = ()
) -> list[Prediction]:
    """Predict one class or token per position of each row. Ids in `forbidden` are never chosen."""
    logits_BLV = _forward(model, rows)
    if forbidden:
        logits_BLV = logits_BLV.index_fill(-1, torch.tensor(forbidden), -torch.inf)
    return [
        _choose(logits[: len(row)].double().softmax(-1)) for logits, row in zip(logits_BLV, rows, strict=True)
    ]


def predict_sequences(model: Model, rows: Sequence[np.ndarray]) -> list[Prediction]:
    """Predict one class or real value per row."""
    outputs_BV = _forward(model, rows)
    if isinstance(model.head, RegressionHead):
        return [Prediction([], None, [], [], float(value)) for value in outputs_BV.squeeze(-1)]
    return _choose_classes(outputs_BV.double().softmax(-1))


def predict_by_decoding(
    model: Model,
    rows: Sequence[np.ndarray],
    *,
    begin: int,
    end: int,
    decoding: DecodingConfig,
    forbidden: Sequence[int] = (),
    is_scored: bool = True,
) -> list[list[Prediction]]:
    """Generate a target sequence for each source row. Return the hypotheses of each row, best first.

    If `is_scored` is False, probabilities may be missing.
    """
    if not isinstance(model, SupportsGeneration):
        raise TypeError(f"{type(model).__name__} cannot generate")
    engine = _engine(model)
    if engine is not None:
        return _predictions(
            engine.translate(
                rows,
                begin=begin,
                end=end,
                decoding=decoding,
                forbidden=[begin, *forbidden],
                is_scored=is_scored,
            )
        )
    tokens_BL, mask_BL = _tensors(model, rows)
    hypotheses = generate(
        model,
        {"tokens": tokens_BL, "mask": mask_BL},
        begin=begin,
        end=end,
        strategy=decoding,
        forbidden=[begin, *forbidden],
        is_scored=is_scored,
    )
    return _predictions(hypotheses)


def predict_continuations(
    model: Model,
    rows: Sequence[np.ndarray],
    decoding: DecodingConfig,
    end: int | None = None,
    forbidden: Sequence[int] = (),
    max_tokens: int | None = None,
) -> list[list[Prediction]]:
    """Continue each row with a language model. Return the hypotheses.

    A row ends at the model's maximum length, or sooner after `max_tokens` generated tokens.
    """
    if not isinstance(model, SupportsGeneration):
        raise TypeError(f"{type(model).__name__} cannot generate")
    room = [max(1, model.task_type.max_length - len(row)) for row in rows]
    if max_tokens is not None:
        room = [min(left, max_tokens) for left in room]
    engine = _engine(model)
    if engine is not None:
        return _predictions(
            engine.continue_rows(rows, end=end, max_length=room, decoding=decoding, forbidden=forbidden)
        )
    tokens_BL, mask_BL = _tensors(model, rows)
    hypotheses = generate(
        model,
        prompt=tokens_BL,
        mask=mask_BL,
        end=end,
        max_length=room,
        strategy=decoding,
        forbidden=forbidden,
    )
    return _predictions(hypotheses)


def _engine(model: nn.Module) -> Engine | None:
    """Return the engine that decodes instead of the model. A trace needs the steps of the model itself."""
    return model.engine if isinstance(model, GenerativeModel) and not is_tracing() else None


def _predictions(rows: list[list[Hypothesis]]) -> list[list[Prediction]]:
    return [[_prediction(hypothesis) for hypothesis in hypotheses] for hypotheses in rows]


def _prediction(hypothesis: Hypothesis) -> Prediction:
    logs = hypothesis.log_probabilities
    probability = math.exp(hypothesis.log_probability) if logs else None
    return Prediction(hypothesis.tokens, probability, [math.exp(log) for log in logs], [])


def _tensors(model: Model, rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor | None]:
    """Return the padded tokens and their mask, on the model's device."""
    device = next(model.parameters()).device
    tokens_BL, mask_BL = pad(list(rows))
    return tokens_BL.to(device), None if mask_BL is None else mask_BL.to(device)


def _forward(model: Model, rows: Sequence[np.ndarray]) -> Tensor:
    tokens_BL, mask_BL = _tensors(model, rows)
    with torch.inference_mode():
        outputs = model(tokens=tokens_BL, mask=mask_BL)
    return outputs.to(torch.promote_types(outputs.dtype, torch.float32)).cpu()


def _choose(probabilities_LV: Tensor) -> Prediction:
    """Return the most probable token of each position, with its alternatives."""
    tokens, chosen, alternatives = _most_probable(probabilities_LV)
    return Prediction(tokens, math.prod(chosen), chosen, alternatives)


def _choose_classes(probabilities_BV: Tensor) -> list[Prediction]:
    """Return the most probable class of each row, with its alternatives and all probabilities."""
    tokens, chosen, alternatives = _most_probable(probabilities_BV)
    every = probabilities_BV.numpy()
    return [
        Prediction([tokens[row]], chosen[row], [chosen[row]], [alternatives[row]], None, every[row])
        for row in range(len(tokens))
    ]


def _most_probable(
    probabilities_LV: Tensor,
) -> tuple[list[int], list[float], list[list[tuple[int, float]]]]:
    """Return the most probable token of each row, its probability, and the most probable alternatives."""
    best_LA, tokens_LA = probabilities_LV.topk(min(ALTERNATIVES, probabilities_LV.shape[-1]), dim=-1)
    alternatives = [
        list(zip(tokens, values, strict=True))
        for tokens, values in zip(tokens_LA.tolist(), best_LA.tolist(), strict=True)
    ]
    return tokens_LA[:, 0].tolist(), best_LA[:, 0].tolist(), alternatives


Item = TypeVar("Item")
Output = TypeVar("Output")


def decode_batches(
    model: nn.Module,
    batches: Sequence[np.ndarray],
    read: Callable[[np.ndarray], Sequence[np.ndarray]],
    predict: Callable[[Sequence[np.ndarray]], list[list[Prediction]]],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[int, list[int]]:
    """Decode examples in threads. Return the tokens of the best hypothesis of each example, by its index.

    Each of the `batches` is an array of example indices, and `read` returns the input rows of such an array.
    Each batch is divided among the threads. The parts with the most input tokens run first.
    """
    parts = [np.array(part) for batch in batches for part in round_robin(batch.tolist(), concurrency(model))]
    items = [(part, read(part)) for part in parts]
    items.sort(key=lambda item: -sum(map(len, item[1])))
    predictions = run_concurrently(
        model, lambda item: predict(item[1]), items, lambda done: progress(done, len(items))
    )
    return {
        int(index): best.tokens
        for (indices, _), of_part in zip(items, predictions, strict=True)
        for index, (best, *_) in zip(indices, of_part, strict=True)
    }


def round_robin(rows: Sequence[Item], parts: int) -> list[list[Item]]:
    """Split rows into at most `parts` lists, one row to each list in turn.

    The lists take similar time to process if neighbouring rows do.
    """
    return [list(rows[part::parts]) for part in range(min(parts, len(rows)))]


def concurrency(model: nn.Module) -> int:
    """Return the number of batches to run with this model at the same time, one thread each."""
    return torch.get_num_threads() if _is_whole(model) and not is_tracing() else 1


@contextmanager
def decoding_mode(model: nn.Module) -> Iterator[None]:
    """Make a model fast inside a `with` block: evaluation mode, prepacked weights, the faster BLAS library.

    The weights must not change inside the block.
    """
    packed = prepack(model) if _is_whole(model) and _engine(model) is None else nullcontext()
    with evaluating(model), packed, numpy_matmul():
        yield


def run_concurrently(
    model: nn.Module,
    function: Callable[[Item], Output],
    items: Sequence[Item],
    progress: Callable[[int], None] = lambda done: None,
) -> list[Output]:
    """Call `function`, which uses the model, with each item in threads. Return the results in order.

    One worker runs per PyTorch thread. Put the largest items first, so that no thread ends long after the
    others.
    """
    workers = min(concurrency(model), len(items))
    # Mode and weights belong to the model, which the threads share, so they are set once, outside of the
    # threads.
    with decoding_mode(model):
        if workers <= 1:
            return _collect(map(function, items), progress)
        pool = ThreadPool(workers, "decoding")
        try:
            return _collect(pool.each(function, items), progress)
        finally:
            pool.close()


def _is_whole(model: nn.Module) -> bool:
    """Return True if all weights are on the CPU and not sharded, so that threads can run the model."""
    return all(map(is_local, model.parameters()))


def _collect(outputs: Iterable[Output], progress: Callable[[int], None]) -> list[Output]:
    """Return the outputs as a list, and call `progress` with the count after each output."""
    collected = []
    for output in outputs:
        collected.append(output)
        progress(len(collected))
    return collected
