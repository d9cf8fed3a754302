"""Decoding traces: the most likely tokens at each step, and the search tree with kept and dropped beams.

A trace is recorded during the decoding itself, so nothing is decoded twice. A model that does not generate
has no search tree. Its steps are the labelled positions, or one prediction for the whole sequence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch

from glassformer.blocks.heads import RegressionHead
from glassformer.core.errors import ErrorDetail
from glassformer.generation import DecodingConfig, Hypothesis, Step, tracing
from glassformer.generation import Trace as Observed
from glassformer.generation.predict import Prediction
from glassformer.inspection.examples import TokenProbability, prepare_generated, row
from glassformer.inspection.maps import check_index
from glassformer.inspection.record import ModelInput
from glassformer.models.base import Model, evaluating
from glassformer.tasks.base import Task

State = Literal["kept", "dropped", "finished", "chosen"]


@dataclass(frozen=True)
class SearchNode:
    """One candidate token in the search tree. The number of a node is its index in `Trace.nodes`."""

    parent: int | None
    step: int
    token: int
    name: str
    log_probability: float
    total: float
    """Sum of the log-probabilities from the first token to this one."""
    state: State
    """`chosen`: part of the best output. `finished`: last token of another output. Or `kept` or `dropped`."""
    is_truncated: bool = False
    """True if the length limit ended the hypothesis before an end token."""


@dataclass(frozen=True)
class TraceStep:
    """One token of the best output, and the most likely tokens at that step."""

    step: int
    chosen: str
    probability: float | None
    alternatives: list[TokenProbability]
    node: int | None = None


@dataclass(frozen=True)
class TraceOutput:
    """One output of the model for the input. A beam search finds several."""

    output: str
    probability: float | None
    tokens: list[str]
    node: int | None = None
    score: float | None = None
    """Score by which the search ranks hypotheses; None if the model does not generate."""
    is_returned: bool = True
    """False if the output was found but is not among the n best that the strategy returns."""


@dataclass(frozen=True)
class Trace:
    """Decoding trace of one input: outputs, steps of the best output, and the search tree."""

    input: list[str]
    outputs: list[TraceOutput]
    """All outputs found, best first."""
    steps: list[TraceStep]
    nodes: list[SearchNode] | None
    """Every candidate of the search, in step order; None if the model does not generate."""
    end: int | None = field(default=None, repr=False)
    warning: str | None = None
    """Reason not to trust the output for this input, such as a length that training did not have."""

    @property
    def chosen(self) -> int:
        """Number of the last node of the best output."""
        node = self.outputs[0].node if self.outputs else None
        if node is None:
            raise ErrorDetail(
                "this model does not generate, so it has no search tree",
                path="node",
                hint="leave out --node and --decoding",
            )
        return node

    def generated(self, node: int | None = None) -> list[int]:
        """Return the tokens up to a node, end token included; by default those of the best output."""
        best, nodes = self.chosen, self.nodes or []
        last = best if node is None else node
        check_index("node", last, len(nodes), hint="list the nodes: glassformer trace RUN INPUT --json")
        return [nodes[number].token for number in _ancestors(nodes, last)]

    def document(self) -> dict[str, Any]:
        """Return the trace as a JSON-serialisable dict."""
        tree = None
        if self.nodes is not None:
            tree = {"nodes": [_node(number, node) for number, node in enumerate(self.nodes)]}
        return {
            "trust": "fact",
            "input": self.input,
            "warning": self.warning,
            "outputs": [asdict(outcome) for outcome in self.outputs],
            "steps": [asdict(step) for step in self.steps],
            "tree": tree,
        }


def _node(number: int, node: SearchNode) -> dict[str, Any]:
    """Return a node of the search tree as a JSON-serialisable dict, with the token as text."""
    document = {"id": number, **asdict(node), "token": node.name}
    del document["name"]
    return document


def trace(
    model: Model,
    task: Task,
    tokens: np.ndarray,
    decoding: DecodingConfig | None = None,
    alternatives: int = 5,
    text: str | None = None,
) -> Trace:
    """Decode one input and return its trace, with the `alternatives` most likely tokens at each step.

    `text` is the input as it is written, for the labels of tokens that the model does not know.
    """
    if alternatives < 1:
        raise ErrorDetail(
            "must be at least 1", path="alternatives", value=alternatives, hint="--alternatives 5"
        )
    names = task.input_labels(tokens.tolist(), text)
    with evaluating(model), tracing(alternatives) as observed:
        (predictions,) = task.predict(model, [tokens], decoding)
    if observed.rows:
        return _trace_search(task, names, observed, len(predictions))
    return _trace_labels(model, task, names, tokens, predictions[0], alternatives)


def prepare_node(
    model: Model,
    task: Task,
    tokens: np.ndarray,
    decoding: DecodingConfig,
    node: int | None,
    text: str | None = None,
) -> tuple[ModelInput, dict[str, str]]:
    """Return the model input of the forward pass that generates the tokens up to a node of the search tree.

    The node may be kept or dropped; by default it is the last one of the best output. The second value is a
    dict that describes the output, the decoding and the node for display.
    """
    traced = trace(model, task, tokens, decoding)
    generated = traced.generated(node)
    number = traced.chosen if node is None else node
    assert traced.nodes is not None
    about = {
        "output": task.show_output(generated[:-1] if generated[-1] == traced.end else generated),
        "decoding": " ".join(f"{name}={value}" for name, value in decoding.dump().items()),
        "node": f"{number} ({traced.nodes[number].state})",
    }
    return prepare_generated(model, task, tokens, generated, text), about


def _trace_search(task: Task, names: list[str], observed: Observed, returned: int) -> Trace:
    """Return the trace of a decoding from its recorded steps; the best `returned` outputs are results."""
    (steps,), (found,) = observed.rows, observed.hypotheses
    nodes = _tree(task, steps)
    alternatives = [step.alternatives[candidate.beam] for step in steps for candidate in step.candidates]
    paths = {
        number: _ancestors(nodes, number) for number, node in enumerate(nodes) if node.state == "finished"
    }
    ends = {tuple(nodes[at].token for at in path): number for number, path in paths.items()}
    hypotheses = {ends[tuple(_with_end(hypothesis, observed.end))]: hypothesis for hypothesis in found}
    outputs = [
        TraceOutput(
            task.show_output(hypothesis.tokens),
            math.exp(hypothesis.log_probability),
            [nodes[number].name for number in paths[last]],
            last,
            hypothesis.score,
            is_returned=rank < returned,
        )
        for rank, (last, hypothesis) in enumerate(hypotheses.items())
    ]
    chosen = []
    for number in paths[next(iter(hypotheses))]:
        node = nodes[number] = replace(nodes[number], state="chosen")
        likely = _named(task, alternatives[number])
        chosen.append(TraceStep(node.step, node.name, math.exp(node.log_probability), likely, number))
    return Trace(names, outputs, chosen, nodes, observed.end)


def _tree(task: Task, steps: Sequence[Step]) -> list[SearchNode]:
    """Return one node per candidate, in step order, each linked to its parent."""
    names = iter(task.output_symbols([each.token for step in steps for each in step.candidates]))
    nodes: list[SearchNode] = []
    beams: list[int | None] = [None]
    for number, step in enumerate(steps):
        kept: list[int | None] = []
        for each in step.candidates:
            if each.status == "kept":
                kept.append(len(nodes))
            nodes.append(
                SearchNode(
                    beams[each.beam],
                    number,
                    each.token,
                    next(names),
                    each.log_probability,
                    each.sum,
                    "finished" if each.status == "truncated" else each.status,
                    is_truncated=each.status == "truncated",
                )
            )
        beams = kept
    return nodes


def _ancestors(nodes: Sequence[SearchNode], number: int) -> list[int]:
    """Return the numbers of all nodes on the path from the first token to this node."""
    path: list[int] = []
    at: int | None = number
    while at is not None:
        path.append(at)
        at = nodes[at].parent
    return path[::-1]


def _with_end(hypothesis: Hypothesis, end: int | None) -> list[int]:
    """Return the tokens of a hypothesis, followed by the end token if the hypothesis is finished."""
    return [*hypothesis.tokens, end] if hypothesis.is_finished and end is not None else hypothesis.tokens


def _named(task: Task, likely: Sequence[tuple[int, float]]) -> list[TokenProbability]:
    """Return tokens as text with their probabilities."""
    names = task.output_symbols([token for token, _ in likely])
    return [TokenProbability(name, value) for name, (_, value) in zip(names, likely, strict=True)]


def _trace_labels(
    model: Model, task: Task, names: list[str], tokens: np.ndarray, prediction: Prediction, alternatives: int
) -> Trace:
    """Return the trace of a model that labels tokens, classifies or predicts a number."""
    if isinstance(model.head, RegressionHead):
        value = task.show_prediction(prediction)
        return Trace(names, [TraceOutput(value, None, [value])], [TraceStep(0, value, None, [])], None)
    with evaluating(model), torch.inference_mode():
        logits = model(tokens=row(model, tokens))[0].float().cpu().double()
    probabilities_LV = logits.softmax(-1).reshape(-1, logits.shape[-1])
    best_LA, tokens_LA = probabilities_LV.topk(min(alternatives, probabilities_LV.shape[-1]), dim=-1)
    chosen = task.output_symbols(prediction.tokens)
    steps = [
        TraceStep(
            step,
            name,
            float(probabilities_LV[step, token]),
            _named(task, list(zip(tokens_LA[step].tolist(), best_LA[step].tolist(), strict=True))),
        )
        for step, (token, name) in enumerate(zip(prediction.tokens, chosen, strict=True))
    ]
    output = TraceOutput(task.show_output(prediction.tokens), prediction.probability, chosen)
    return Trace(names, [output], steps, None)
