"""Trace of a decoding: alternatives at each step, and the search tree with kept and dropped beams.

The trace observes the decoding itself; nothing is decoded twice. A model that does not generate has no tree:
its steps are the labelled positions, or one prediction for the whole sequence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from glassformer.blocks.heads import RegressionHead
from glassformer.core.errors import ErrorDetail
from glassformer.generation import DecodingConfig, Hypothesis, Step, tracing
from glassformer.generation import Trace as Observed
from glassformer.generation.predict import Prediction
from glassformer.generation.search import Candidate
from glassformer.inspection.examples import TokenProbability, prepare_generated, row
from glassformer.inspection.record import ModelInput
from glassformer.models.base import Model, evaluating
from glassformer.tasks.base import Task

State = Literal["kept", "dropped", "finished", "chosen"]


@dataclass(frozen=True)
class SearchNode:
    """One candidate token in the search tree. Its number is its index in `Trace.nodes`."""

    parent: int | None
    step: int
    token: int
    name: str
    log_probability: float
    total: float
    """Sum of the log-probabilities from the first token to this one."""
    state: State
    """`chosen`: part of the best output. `finished`: the last token of another hypothesis."""
    is_truncated: bool = False
    """True if the length limit ended the hypothesis, not the end token."""


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
    """One output that the search found."""

    output: str
    probability: float | None
    tokens: list[str]
    node: int | None = None
    score: float | None = None
    """Score by which the search ranks hypotheses."""
    is_returned: bool = True
    """False if the output was found but is not among the n best that the strategy returns."""


@dataclass(frozen=True)
class Trace:
    """Trace of one input: outputs, steps of the best output, and the search tree."""

    input: list[str]
    outputs: list[TraceOutput]
    """All outputs found, best first."""
    steps: list[TraceStep]
    nodes: list[SearchNode] | None
    """Every candidate of the search, in step order; None if the model does not generate."""
    end: int | None = field(default=None, repr=False)

    @property
    def chosen(self) -> int:
        """Number of the last node of the best output."""
        node = self.outputs[0].node if self.outputs else None
        if node is None:
            raise ErrorDetail(
                "this model does not generate, so it has no search tree",
                path="node",
                hint="leave out node and decoding",
            )
        return node

    def generated(self, node: int | None = None) -> list[int]:
        """Return the tokens up to this node, end token included; by default those of the best output."""
        best, nodes = self.chosen, self.nodes or []
        at: int | None = best if node is None else node
        if at is None or not 0 <= at < len(nodes):
            raise ErrorDetail(
                f"no such node: they are numbered from 0 to {len(nodes) - 1}",
                path="node",
                value=node,
                hint="glassformer trace lists them",
            )
        tokens = []
        while at is not None:
            tokens.append(nodes[at].token)
            at = nodes[at].parent
        return tokens[::-1]

    def document(self) -> dict[str, Any]:
        """Return the trace for JSON."""
        tree = None
        if self.nodes is not None:
            tree = {"nodes": [_node(number, node) for number, node in enumerate(self.nodes)]}
        return {
            "trust": "fact",
            "input": self.input,
            "outputs": [asdict(outcome) for outcome in self.outputs],
            "steps": [asdict(step) for step in self.steps],
            "tree": tree,
        }


def _node(number: int, node: SearchNode) -> dict[str, Any]:
    return {
        "id": number,
        "parent": node.parent,
        "step": node.step,
        "token": node.name,
        "log_probability": node.log_probability,
        "total": node.total,
        "state": node.state,
        "is_truncated": node.is_truncated,
    }


def trace(
    model: Model,
    task: Task,
    tokens: np.ndarray,
    decoding: DecodingConfig | None = None,
    alternatives: int = 5,
) -> Trace:
    """Decode one input and trace it, with the `alternatives` most likely tokens of each step."""
    if alternatives < 1:
        raise ErrorDetail("at least 1", path="alternatives", value=alternatives, hint="5")
    names = task.input_symbols(tokens.tolist())
    with evaluating(model), tracing(alternatives) as observed:
        (predictions,) = task.predict(model, [tokens], decoding)
    if observed.rows:
        return _trace_search(task, names, observed, len(predictions))
    return _trace_labels(model, task, names, tokens, predictions[0], alternatives)


def prepare_node(
    model: Model, task: Task, tokens: np.ndarray, decoding: DecodingConfig, node: int | None
) -> tuple[ModelInput, dict[str, str]]:
    """Return the pass that generates the tokens up to a node, kept or dropped, and a description of it.

    By default the node is the last one of the best output.
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
    return prepare_generated(model, task, tokens, generated), about


def _trace_search(task: Task, names: list[str], observed: Observed, returned: int) -> Trace:
    """Build the trace of a decoding that returned the `returned` best hypotheses."""
    (steps,), (found,) = observed.rows, observed.hypotheses
    drafts = _tree(steps)
    ends = {tuple(_path(drafts, number)): number for number, draft in enumerate(drafts) if _is_last(draft)}
    hypotheses = {ends[tuple(_with_end(hypothesis, observed.end))]: hypothesis for hypothesis in found}
    best = next(iter(hypotheses))
    path = _ancestors(drafts, best)
    tokens = task.output_symbols([draft.candidate.token for draft in drafts])
    nodes = [
        SearchNode(
            draft.parent,
            draft.step,
            draft.candidate.token,
            name,
            draft.candidate.log_probability,
            draft.candidate.sum,
            _state(draft.candidate, is_chosen=number in path),
            is_truncated=draft.candidate.status == "truncated",
        )
        for number, (draft, name) in enumerate(zip(drafts, tokens, strict=True))
    ]
    outputs = [
        TraceOutput(
            task.show_output(hypothesis.tokens),
            math.exp(hypothesis.log_probability),
            [nodes[number].name for number in _ancestors(drafts, node)],
            node,
            hypothesis.score,
            is_returned=rank < returned,
        )
        for rank, (node, hypothesis) in enumerate(hypotheses.items())
    ]
    chosen = [
        TraceStep(
            nodes[number].step,
            nodes[number].name,
            math.exp(nodes[number].log_probability),
            _named(task, steps[nodes[number].step].alternatives[drafts[number].candidate.beam]),
            number,
        )
        for number in path
    ]
    return Trace(names, outputs, chosen, nodes, observed.end)


@dataclass(frozen=True)
class _Draft:
    """A candidate with its step and the number of its parent in the tree."""

    parent: int | None
    step: int
    candidate: Candidate


def _tree(steps: Sequence[Step]) -> list[_Draft]:
    """Number all candidates in step order and link each to its parent."""
    drafts: list[_Draft] = []
    beams: list[int | None] = [None]
    for number, step in enumerate(steps):
        kept: list[int | None] = []
        for candidate in step.candidates:
            if candidate.status == "kept":
                kept.append(len(drafts))
            drafts.append(_Draft(beams[candidate.beam], number, candidate))
        beams = kept
    return drafts


def _is_last(draft: _Draft) -> bool:
    return draft.candidate.status in ("finished", "truncated")


def _state(candidate: Candidate, *, is_chosen: bool) -> State:
    if is_chosen:
        return "chosen"
    return "finished" if candidate.status == "truncated" else candidate.status


def _ancestors(drafts: Sequence[_Draft], number: int) -> list[int]:
    """Return the numbers of all nodes from the first token to this one."""
    path: list[int] = []
    at: int | None = number
    while at is not None:
        path.append(at)
        at = drafts[at].parent
    return path[::-1]


def _path(drafts: Sequence[_Draft], number: int) -> list[int]:
    return [drafts[at].candidate.token for at in _ancestors(drafts, number)]


def _with_end(hypothesis: Hypothesis, end: int | None) -> list[int]:
    """Return the tokens of a hypothesis, end token included if it reached it."""
    return [*hypothesis.tokens, end] if hypothesis.is_finished and end is not None else hypothesis.tokens


def _named(task: Task, likely: Sequence[tuple[int, float]]) -> list[TokenProbability]:
    names = task.output_symbols([token for token, _ in likely])
    return [TokenProbability(name, value) for name, (_, value) in zip(names, likely, strict=True)]


def _trace_labels(
    model: Model, task: Task, names: list[str], tokens: np.ndarray, prediction: Prediction, alternatives: int
) -> Trace:
    """Build the trace of a model that labels tokens, classifies or predicts a number."""
    if isinstance(model.head, RegressionHead):
        value = f"{prediction.value:.6g}"
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
