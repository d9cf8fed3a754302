"""How a model came to its answer: what it weighed at each step, which branches it took and which it dropped.

The decoding itself is observed, none is done a second time. A model that writes nothing has no tree: its
steps are the positions that it labels, or the one answer to the whole.
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
from glassformer.generation import DecodingConfig, Hypothesis, Step, observing
from glassformer.generation import Trace as Observed
from glassformer.generation.predict import Prediction
from glassformer.inspection.examples import Reading, read_written, row
from glassformer.models.base import Model, evaluating
from glassformer.tasks.base import Task

State = Literal["kept", "dropped", "finished", "chosen"]


@dataclass(frozen=True)
class Branch:
    """A token after a branch, and so a branch of its own. Its number is its place in `Trace.branches`."""

    parent: int | None
    step: int
    token: int
    name: str
    log_probability: float
    total: float
    """Of the log-probabilities of the whole branch up to here."""
    state: State
    """`chosen`: a part of the best answer. `finished`: the last token of another answer."""
    is_cut: bool = False
    """Whether the limit ended it, and not the end token."""


@dataclass(frozen=True)
class Alternative:
    token: str
    probability: float


@dataclass(frozen=True)
class Moment:
    """One token of the best answer, and what else was likely there."""

    step: int
    chosen: str
    probability: float | None
    alternatives: list[Alternative]
    branch: int | None = None


@dataclass(frozen=True)
class Outcome:
    output: str
    probability: float | None
    tokens: list[str]
    branch: int | None = None
    score: float | None = None
    """What a search ranks by."""
    is_answer: bool = True
    """Whether the strategy answers with it; others were found and are not among its n best."""


@dataclass(frozen=True)
class Trace:
    input: list[str]
    answers: list[Outcome]
    """The best first."""
    steps: list[Moment]
    branches: list[Branch] | None
    """Every token that the strategy proposed, in the order of the steps; None where nothing is written."""
    end: int | None = field(default=None, repr=False)

    @property
    def chosen(self) -> int:
        """The branch of the best answer."""
        branch = self.answers[0].branch if self.answers else None
        if branch is None:
            raise ErrorDetail(
                "this model writes no answer token by token: it has no branches",
                path="branch",
                hint="ask without a branch and without a decoding",
            )
        return branch

    def written(self, branch: int | None = None) -> list[int]:
        """The tokens from the first to this branch's own, the end included; None: of the best answer."""
        best, branches = self.chosen, self.branches or []
        at: int | None = best if branch is None else branch
        if at is None or not 0 <= at < len(branches):
            raise ErrorDetail(
                f"no such branch: they are numbered from 0 to {len(branches) - 1}",
                path="branch",
                value=branch,
                hint="glassformer trace lists them",
            )
        tokens = []
        while at is not None:
            tokens.append(branches[at].token)
            at = branches[at].parent
        return tokens[::-1]

    def document(self) -> dict[str, Any]:
        tree = None
        if self.branches is not None:
            tree = {"nodes": [_node(number, branch) for number, branch in enumerate(self.branches)]}
        return {
            "trust": "fact",
            "input": self.input,
            "answers": [asdict(answer) for answer in self.answers],
            "steps": [asdict(step) for step in self.steps],
            "tree": tree,
        }


def _node(number: int, branch: Branch) -> dict[str, Any]:
    return {
        "id": number,
        "parent": branch.parent,
        "step": branch.step,
        "token": branch.name,
        "log_probability": branch.log_probability,
        "total": branch.total,
        "state": branch.state,
        "is_cut": branch.is_cut,
    }


def trace(
    model: Model,
    task: Task,
    tokens: np.ndarray,
    decoding: DecodingConfig | None = None,
    alternatives: int = 5,
) -> Trace:
    """How the model answers this input; a ErrorDetail if the number of alternatives makes no sense."""
    if alternatives < 1:
        raise ErrorDetail("at least 1", path="alternatives", value=alternatives, hint="5")
    names = task.input_symbols(tokens.tolist())
    with evaluating(model), observing(alternatives) as observed:
        (answers,) = task.predict(model, [tokens], decoding)
    if observed.rows:
        return _of_writing(task, names, observed, len(answers))
    return _of_labels(model, task, names, tokens, answers[0], alternatives)


def read_branch(
    model: Model, task: Task, tokens: np.ndarray, decoding: DecodingConfig, branch: int | None
) -> tuple[Reading, dict[str, str]]:
    """The model as it wrote a branch, chosen or dropped (None: the best answer), and what branch it is."""
    traced = trace(model, task, tokens, decoding)
    written = traced.written(branch)
    number = traced.chosen if branch is None else branch
    assert traced.branches is not None
    about = {
        "output": task.show_output(written[:-1] if written[-1] == traced.end else written),
        "decoding": " ".join(f"{name}={value}" for name, value in decoding.dump().items()),
        "branch": f"{number} ({traced.branches[number].state})",
    }
    return read_written(model, task, tokens, written), about


def _of_writing(task: Task, names: list[str], observed: Observed, answers: int) -> Trace:
    (steps,), (found,) = observed.rows, observed.hypotheses
    drafts = _tree(steps)
    ends = {tuple(_path(drafts, number)): number for number, draft in enumerate(drafts) if _is_last(draft)}
    hypotheses = {ends[tuple(_whole(hypothesis, observed.end))]: hypothesis for hypothesis in found}
    best = next(iter(hypotheses))
    way = _ancestors(drafts, best)
    tokens = task.output_symbols([draft.token for draft in drafts])
    branches = [
        Branch(
            draft.parent,
            draft.step,
            draft.token,
            name,
            draft.log_probability,
            draft.total,
            "chosen" if number in way else "finished" if _is_last(draft) else draft.fate,
            is_cut=draft.fate == "cut",
        )
        for number, (draft, name) in enumerate(zip(drafts, tokens, strict=True))
    ]
    outcomes = [
        Outcome(
            task.show_output(hypothesis.tokens),
            math.exp(hypothesis.log_probability),
            [branches[number].name for number in _ancestors(drafts, branch)],
            branch,
            hypothesis.score,
            is_answer=place < answers,
        )
        for place, (branch, hypothesis) in enumerate(hypotheses.items())
    ]
    moments = [
        Moment(
            branches[number].step,
            branches[number].name,
            math.exp(branches[number].log_probability),
            _named(task, steps[branches[number].step].alternatives[drafts[number].branch]),
            number,
        )
        for number in way
    ]
    return Trace(names, outcomes, moments, branches, observed.end)


@dataclass(frozen=True)
class _Draft:
    parent: int | None
    branch: int
    """Which of the branches of its step its parent was."""
    step: int
    token: int
    log_probability: float
    total: float
    fate: Any


def _tree(steps: Sequence[Step]) -> list[_Draft]:
    drafts: list[_Draft] = []
    going: list[int | None] = [None]
    for number, step in enumerate(steps):
        kept: list[int | None] = []
        for candidate in step.candidates:
            if candidate.fate == "kept":
                kept.append(len(drafts))
            drafts.append(
                _Draft(
                    going[candidate.branch],
                    candidate.branch,
                    number,
                    candidate.token,
                    candidate.log_probability,
                    candidate.sum,
                    candidate.fate,
                )
            )
        going = kept
    return drafts


def _is_last(draft: _Draft) -> bool:
    return draft.fate in ("finished", "cut")


def _ancestors(drafts: Sequence[_Draft], number: int) -> list[int]:
    """From the first token to this one."""
    way, at = [], number
    while True:
        way.append(at)
        parent = drafts[at].parent
        if parent is None:
            return way[::-1]
        at = parent


def _path(drafts: Sequence[_Draft], number: int) -> list[int]:
    return [drafts[at].token for at in _ancestors(drafts, number)]


def _whole(hypothesis: Hypothesis, end: int | None) -> list[int]:
    is_ended = hypothesis.is_finished and end is not None
    return [*hypothesis.tokens, end] if is_ended and end is not None else hypothesis.tokens


def _named(task: Task, likely: Sequence[tuple[int, float]]) -> list[Alternative]:
    names = task.output_symbols([token for token, _ in likely])
    return [Alternative(name, value) for name, (_, value) in zip(names, likely, strict=True)]


def _of_labels(
    model: Model, task: Task, names: list[str], tokens: np.ndarray, answer: Prediction, alternatives: int
) -> Trace:
    if isinstance(model.head, RegressionHead):
        value = f"{answer.value:.6g}"
        return Trace(names, [Outcome(value, None, [value])], [Moment(0, value, None, [])], None)
    with evaluating(model), torch.inference_mode():
        logits = model(tokens=row(model, tokens))[0].float().cpu().double()
    probabilities_LV = logits.softmax(-1).reshape(-1, logits.shape[-1])
    best_LA, tokens_LA = probabilities_LV.topk(min(alternatives, probabilities_LV.shape[-1]), dim=-1)
    chosen = task.output_symbols(answer.tokens)
    moments = [
        Moment(
            step,
            name,
            float(probabilities_LV[step, token]),
            _named(task, list(zip(tokens_LA[step].tolist(), best_LA[step].tolist(), strict=True))),
        )
        for step, (token, name) in enumerate(zip(answer.tokens, chosen, strict=True))
    ]
    outcome = Outcome(task.show_output(answer.tokens), answer.probability, chosen)
    return Trace(names, [outcome], moments, None)
