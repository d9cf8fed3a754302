"""Attribution by gradients and by parts: which input tokens, heads and layers carry a logit difference.

    attribute(model, task, tokens, "integrated-gradients")     # tokens (Sundararajan et al. 2017)
    attribute(model, task, tokens, "gradient-input")           # tokens, first order
    logit_parts(model, task, tokens)                           # heads and layers (Elhage et al. 2021)

Gradients are taken at the token embedding. The baseline of a token is the zero vector at its position.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from glassformer.blocks.attention import MultiHeadAttention
from glassformer.blocks.embedding import Embedding
from glassformer.blocks.heads import AttentionPooling, FirstPooling
from glassformer.core.errors import ErrorDetail
from glassformer.evaluation.metrics import Progress
from glassformer.generation import GreedyConfig
from glassformer.inspection.contrast import Contrast, Inputs, generated_tokens
from glassformer.inspection.examples import TOKENS_PER_BATCH, row
from glassformer.inspection.maps import Trust
from glassformer.inspection.record import record
from glassformer.inspection.sites import change_sites, record_states, sites
from glassformer.models.base import Backbone, Model, evaluating
from glassformer.models.task_types import CausalLM, MaskedLM, SequenceClassification
from glassformer.tasks.base import Seq2SeqTask, Task

Method = Literal["integrated-gradients", "gradient-input", "occlusion"]
METHODS: tuple[Method, ...] = get_args(Method)
NODES, MOST_NODES = 64, 512
"""Number of Gauss–Legendre nodes between the baseline and the input. It is doubled until the sum is right."""
EXACT = 0.01
"""Completeness error, as a share of the difference, at which no more nodes are added."""
SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)
"""Shares of the tokens that the faithfulness scores remove or keep (DeYoung et al. 2020)."""
MOST_OF_BASELINE = 0.5
"""Share of the input's logit difference above which the baseline holds most of it."""
RANDOM_ORDERS = 8
"""Number of random orders of the tokens that the faithfulness scores are compared with."""
SITE = "encoder.embedding"


@dataclass(frozen=True)
class Faithfulness:
    """Effect of removing, or keeping, only the tokens with the largest attributions, in units of the logit.

    Both are means over 1, 5, 10, 20 and 50 % of the tokens.
    """

    comprehensiveness: float
    """Decrease if the tokens with the largest attributions are removed. Large is better."""
    sufficiency: float
    """Decrease if only these tokens are kept. Small is better."""
    random_comprehensiveness: float
    random_sufficiency: float
    occlusion_comprehensiveness: float
    occlusion_sufficiency: float


@dataclass(frozen=True)
class TokenAttribution:
    """Contribution of each input token to a logit difference, with the checks of the method."""

    method: Method
    contrast: str
    tokens: list[str]
    values: list[float]
    target_difference: float
    """Logit difference of the input, or its predicted value."""
    baseline_difference: float
    """Logit difference of the baseline: a zero vector in place of each token embedding."""
    faithfulness: Faithfulness
    untrained_correlation: float | None = None
    """Correlation with the attributions of the untrained model: high means that training does not matter."""
    trust: Trust = "hint"
    warning: str | None = None
    """Reason not to trust the output for this input, such as an unseen length."""

    @property
    def shared_difference(self) -> float:
        """Difference of the input minus that of the baseline: the number that the values share out."""
        return self.target_difference - self.baseline_difference

    @property
    def completeness_error(self) -> float:
        """Absolute difference between the sum of the values and `shared_difference`."""
        return abs(sum(self.values) - self.shared_difference)

    @property
    def baseline_warning(self) -> str | None:
        """Reason why gradient methods explain little of the difference, or None. Occlusion sums nothing."""
        if self.method == "occlusion":
            return None
        if self.baseline_difference * self.target_difference <= MOST_OF_BASELINE * self.target_difference**2:
            return None
        return (
            f"the baseline without any token already has {self.baseline_difference:.2f} of the difference"
            f" {self.target_difference:.2f}, so the values explain little of it: use occlusion"
            " (--method occlusion), which hides one token at a time"
        )

    def document(self) -> dict[str, Any]:
        """Return the attribution as a JSON-serialisable dict."""
        return {
            "method": self.method,
            "contrast": self.contrast,
            "tokens": self.tokens,
            "values": self.values,
            "sum": sum(self.values),
            "target_difference": self.target_difference,
            "baseline_difference": self.baseline_difference,
            "shared_difference": self.shared_difference,
            "completeness_error": self.completeness_error,
            **asdict(self.faithfulness),
            "untrained_correlation": self.untrained_correlation,
            "trust": self.trust,
            "warning": self.warning,
        }


@dataclass(frozen=True)
class Question:
    """Input of one forward pass, and the contrast of its output with the runner-up."""

    inputs: Inputs
    contrast: Contrast
    outputs: list[str]
    """Symbols of the model's own output."""


def ask(
    model: Model, task: Task, tokens: np.ndarray, output: int | None = None, other: int | None = None
) -> Question:
    """Return the contrast of the model's output at position `output` with its runner-up, or with `other`.

    `output` counts the generated tokens of an encoder-decoder, and the positions of a token classifier. By
    default it is the first one, the first masked one, or the next token of a language model.
    """
    with evaluating(model), torch.no_grad():
        inputs: dict[str, Tensor | None] = {"tokens": row(model, tokens)}
        task_type = task.task_type
        generated: list[int] = []
        if isinstance(task, Seq2SeqTask):
            generated = generated_tokens(task, task.predict(model, [tokens], GreedyConfig())[0][0])
            inputs["target"] = row(model, np.array([task.begin, *generated[:-1]]))
        logits = model(**inputs)[0]
    if isinstance(task_type, SequenceClassification):
        if output not in (None, 0):
            raise ErrorDetail("the model has one output", path="output", value=output, allowed=["0"])
        if task_type.is_regression:
            return Question(inputs, Contrast(None, 0, None, "predicted value"), [])
        return Question(inputs, _runner_up(task, None, logits, other), [])
    positions = list(range(len(logits)))
    if isinstance(task_type, CausalLM):
        positions = positions[-1:]
    if isinstance(task_type, MaskedLM):
        positions = np.flatnonzero(tokens == task.mask_token).tolist()
    position = positions[0] if output is None else output
    if position not in positions:
        allowed = [str(number) for number in positions]
        raise ErrorDetail("no such output position", path="output", value=output, allowed=allowed)
    names = task.output_symbols(generated) if generated else []
    return Question(inputs, _runner_up(task, position, logits[position], other), names)


def _runner_up(task: Task, position: int | None, logits_V: Tensor, other: int | None) -> Contrast:
    if len(logits_V) < 2:
        hint = "train on data with several labels"
        raise ErrorDetail("the model has one class, and no other to compare it with", path="task", hint=hint)
    best = logits_V.topk(2).indices.tolist()
    answer = int(best[0])
    rival = int(best[1]) if other is None else other
    if not 0 <= rival < len(logits_V) or rival == answer:
        raise ErrorDetail(
            "this is the model's own output" if rival == answer else "no such output",
            path="other",
            value=" ".join(task.output_symbols([rival])) if rival == answer else rival,
            hint="name another output than the predicted one",
        )
    names = [" ".join(task.output_symbols([token])) or str(token) for token in (answer, rival)]
    where = "" if position is None else f" at output {position}"
    return Contrast(position, answer, rival, f"logit of {names[0]!r} − logit of {names[1]!r}{where}")


def attribute(
    model: Model,
    task: Task,
    tokens: np.ndarray,
    method: Method = "integrated-gradients",
    *,
    output: int | None = None,
    other: int | None = None,
    text: str | None = None,
    untrained: Model | None = None,
    progress: Progress | None = None,
) -> TokenAttribution:
    """Return the contribution of each input token to the contrast of two outputs."""
    if method not in METHODS:
        raise ErrorDetail("no such method", path="method", value=method, allowed=[*METHODS, "logits"])
    question = ask(model, task, tokens, output, other)
    path = _Path(model, question, progress, "attributing to each token")
    values = path.values(method)
    correlation = None
    if untrained is not None and len(values) > 2:
        # A control need not be complete, and an untrained model may not be with any number of nodes.
        control = _Path(untrained, question, progress, "the same for the untrained model")
        theirs = control.values(method, path.nodes)
        if values.std() and theirs.std():
            correlation = float(np.corrcoef(values, theirs)[0, 1])
    return TokenAttribution(
        method,
        question.contrast.name,
        task.input_labels(tokens.tolist(), text),
        values.tolist(),
        path.full,
        path.empty,
        path.faithfulness(values),
        correlation,
    )


def attribution_matrix(
    model: Model,
    task: Seq2SeqTask,
    tokens: np.ndarray,
    method: Method = "integrated-gradients",
    *,
    progress: Progress | None = None,
) -> tuple[list[str], np.ndarray]:
    """Return the generated tokens, and the attribution of each to each input token (generated, input)."""
    names, rows = ask(model, task, tokens).outputs, []
    for step in range(len(names)):
        rows.append(_Path(model, ask(model, task, tokens, step)).values(method))
        if progress is not None:
            progress("attributing generated tokens", step + 1, len(names))
    return names, np.stack(rows)


class _Path:
    """Straight path from the baseline to the embedding of one input."""

    def __init__(
        self, model: Model, question: Question, progress: Progress | None = None, activity: str = ""
    ) -> None:
        self.model, self.question = model, question
        self.progress, self.activity = progress, activity
        self.nodes = NODES
        self.end_LD = record_states(model, question.inputs, [SITE])[SITE][0].clone()
        self.start_LD = _baseline(model, question.inputs).to(self.end_LD)
        self.full, self.empty = (
            float(each) for each in self.metric(torch.stack([self.end_LD, self.start_LD]))
        )

    @property
    def difference(self) -> float:
        return self.full - self.empty

    def metric(self, states_BLD: Tensor) -> Tensor:
        """Return the contrast for each embedding in a batch, without gradients."""
        found, parts = [], states_BLD.split(self._size())
        with torch.no_grad():
            for number, part in enumerate(parts, start=1):
                found.append(self._run(part))
                self._report(number, len(parts))
        return torch.cat(found)

    def _report(self, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(self.activity, done, total)

    def _size(self) -> int:
        return max(1, TOKENS_PER_BATCH // max(1, len(self.end_LD)))

    def _run(self, states_BLD: Tensor) -> Tensor:
        repeated = {
            name: None if value is None else value.expand(len(states_BLD), *value.shape[1:])
            for name, value in self.question.inputs.items()
        }
        with change_sites(self.model, {SITE: lambda _: states_BLD}):
            return self.question.contrast.value(self.model(**repeated))

    def gradient(self, states_BLD: Tensor) -> Tensor:
        """Return the gradient of the contrast at each embedding in a batch."""
        found, parts = [], states_BLD.split(self._size())
        for number, part in enumerate(parts, start=1):
            at = part.detach().clone().requires_grad_()
            with torch.enable_grad():
                metric = self._run(at).sum()
            found.append(torch.autograd.grad(metric, at)[0])
            self._report(number, len(parts))
        return torch.cat(found)

    def values(self, method: Method, most_nodes: int = MOST_NODES) -> np.ndarray:
        """Return the value of each token; integrated gradients use at most `most_nodes` nodes."""
        change_LD = self.end_LD - self.start_LD
        if method == "occlusion":
            count = len(self.end_LD)
            removed = self.end_LD.expand(count, -1, -1).clone()
            index = torch.arange(count)
            removed[index, index] = self.start_LD
            return np.asarray((self.full - self.metric(removed)).double().cpu())
        if method == "gradient-input":
            slope_LD = self.gradient(self.end_LD[None])[0]
            return np.asarray((slope_LD * change_LD).sum(-1).double().cpu())
        values = self._integrate(self.nodes)
        while self.nodes < most_nodes and abs(values.sum() - self.difference) > EXACT * abs(self.difference):
            self.nodes *= 2
            values = self._integrate(self.nodes)
        return values

    def _integrate(self, nodes: int) -> np.ndarray:
        """Return the mean gradient on the path times the change of each token's embedding."""
        change_LD = self.end_LD - self.start_LD
        at, weights = np.polynomial.legendre.leggauss(nodes)
        alphas = torch.tensor((at + 1) / 2).to(change_LD)
        shares = torch.tensor(weights / 2).to(change_LD)
        slopes = self.gradient(self.start_LD + alphas[:, None, None] * change_LD)
        return np.asarray(((slopes * shares[:, None, None]).sum(0) * change_LD).sum(-1).double().cpu())

    def faithfulness(self, values: np.ndarray) -> Faithfulness:
        """Return comprehensiveness and sufficiency, beside random orders and the order by occlusion."""
        self.activity = "measuring faithfulness by hiding tokens"
        random = np.random.default_rng(0)
        orders = [np.argsort(-values), np.argsort(-self.values("occlusion"))]
        orders += [random.permutation(len(values)) for _ in range(RANDOM_ORDERS)]
        removed, kept = np.array([self._scores(order) for order in orders]).T
        scores = (removed[0], kept[0], removed[2:].mean(), kept[2:].mean(), removed[1], kept[1])
        return Faithfulness(*map(float, scores))

    def _scores(self, order: np.ndarray) -> tuple[float, float]:
        count = len(order)
        masks = torch.zeros(len(SHARES), count, 1)
        for number, share in enumerate(SHARES):
            masks[number, order[: max(1, math.ceil(share * count))].copy()] = 1
        masks = masks.to(self.end_LD)
        without = self.metric(self.end_LD * (1 - masks) + self.start_LD * masks)
        only = self.metric(self.end_LD * masks + self.start_LD * (1 - masks))
        return self.full - float(without.mean()), self.full - float(only.mean())


def _baseline(model: Model, inputs: Inputs) -> Tensor:
    """Return the embedding (L, D) of zero vectors: positions, and the norm of the embedding, alone."""
    if not isinstance(model, Backbone):
        raise ErrorDetail("the model has no token embedding", path="model", value=type(model).__name__)
    embedding, tokens = model.embedding, inputs["tokens"]
    assert isinstance(embedding, Embedding) and tokens is not None
    positions_BL = torch.arange(tokens.shape[1], device=tokens.device)[None]
    with torch.no_grad():
        zeros_BLD = torch.zeros_like(embedding.input_net()(tokens))
        found: Tensor = embedding.norm(embedding.position.embed(zeros_BLD, positions_BL))
    return found[0]


@dataclass(frozen=True)
class LogitParts:
    """Direct contribution of each head and layer to a logit difference, through the last norm."""

    contrast: str
    parts: dict[str, float]
    """Contribution by name, such as `encoder.0.heads.2`; `bias` is what no input changes."""
    target_difference: float
    trust: Trust = "fact"
    warning: str | None = None

    @property
    def error(self) -> float:
        """Absolute difference between the sum of the parts and the logit difference."""
        return abs(sum(self.parts.values()) - self.target_difference)

    def document(self) -> dict[str, Any]:
        """Return the parts as a JSON-serialisable dict."""
        return {
            "method": "logits",
            "contrast": self.contrast,
            "tokens": list(self.parts),
            "values": list(self.parts.values()),
            "sum": sum(self.parts.values()),
            "target_difference": self.target_difference,
            "completeness_error": self.error,
            "trust": self.trust,
            "warning": self.warning,
        }


def logit_parts(
    model: Model, task: Task, tokens: np.ndarray, *, output: int | None = None, other: int | None = None
) -> LogitParts:
    """Decompose the contrast of two outputs into the direct contributions of heads and layers.

    The scale of the last norm is held fixed. Only pre-norm models with a linear output are sums of parts.
    """
    stack = "decoder" if "decoder.output" in sites(model) else "encoder"
    norm = check_linear(model, stack)
    question = ask(model, task, tokens, output, other)
    with torch.enable_grad(), record(model, [f"{stack}.*"], keeps_graph=True) as tape:
        metric = question.contrast.value(model(**question.inputs)).sum()
    result = tape[f"{stack}.output"]
    (slope,) = torch.autograd.grad(metric, result)
    layers = 1 + max(int(name.split(".")[1]) for name in tape.states if name.split(".")[1].isdigit())
    stream = tape[f"{stack}.{layers - 1}.residual_post"]
    through = _frozen(norm, stream.detach(), slope)
    parts = {f"{stack}.embedding": through(tape[f"{stack}.embedding"])}
    for layer in range(layers):
        for name in ("heads", "cross_heads"):
            site = f"{stack}.{layer}.{name}"
            if site in tape.states:
                parts |= _head_parts(site, sites(model)[site].module, tape[site], through)
        parts[f"{stack}.{layer}.feed_forward"] = through(tape[f"{stack}.{layer}.feed_forward"])
    total, constant = float(metric.detach()), float((metric - (result * slope).sum()).detach())
    bias = getattr(norm, "bias", None)
    parts["bias"] = constant + (0.0 if bias is None else float((bias.detach() * slope).sum()))
    return LogitParts(question.contrast.name, parts, total)


def _head_parts(
    site: str, module: nn.Module, heads_BHLK: Tensor, through: Callable[[Tensor], float]
) -> dict[str, float]:
    """Return the contribution of each head, and of the bias of the output projection."""
    assert isinstance(module, MultiHeadAttention)
    slices_HDK = module.output.weight.unflatten(1, (module.num_heads, -1)).transpose(0, 1)
    parts = {
        f"{site}.{head}": through(heads_BHLK[:, head] @ slices_HDK[head].T)
        for head in range(module.num_heads)
    }
    if module.output.bias is not None:
        parts[f"{site}.bias"] = through(module.output.bias.expand(1, heads_BHLK.shape[2], -1))
    return parts


def _frozen(norm: nn.Module, stream_BLD: Tensor, slope_BLD: Tensor) -> Callable[[Tensor], float]:
    """Return the function from a part of the stream to its contribution, with the scale of the norm fixed."""
    is_centred = isinstance(norm, nn.LayerNorm)
    scale_BL1: Tensor | float = 1.0
    weight: Tensor | float = 1.0
    if isinstance(norm, (nn.LayerNorm, nn.RMSNorm)):
        x = stream_BLD - stream_BLD.mean(-1, keepdim=True) if is_centred else stream_BLD
        epsilon = norm.eps if norm.eps is not None else torch.finfo(x.dtype).eps
        scale_BL1 = (x.square().mean(-1, keepdim=True) + epsilon).rsqrt()
        weight = norm.weight.detach()

    def through(part: Tensor) -> float:
        part = part.detach()
        part = part - part.mean(-1, keepdim=True) if is_centred else part
        return float((part * scale_BL1 * weight * slope_BLD).sum())

    return through


def check_linear(model: Model, stack: str) -> nn.Module:
    """Return the final norm; raise an ErrorDetail if the logits are not a sum of parts of the stream."""
    module = getattr(model, stack)
    if not isinstance(module.layers[0].attention_residual.after, nn.Identity):
        reason, option = "each block of a post-norm model rescales the parts before it", "norm_placement=pre"
    elif not isinstance(getattr(model.head, "body", nn.Identity()), nn.Identity):
        reason, option = "the output network is not linear", "output.kind=linear"
    elif _has_curved_pooling(model):
        reason, option = "the pooling is not linear", "pooling.kind=mean"
    elif not isinstance(module.final_norm, (nn.LayerNorm, nn.RMSNorm, nn.Identity)):
        reason, option = "this norm is not known", "norm.kind=layer"
    else:
        return module.final_norm
    raise ErrorDetail(
        f"logits cannot be split into parts: {reason}",
        path="method",
        value="logits",
        hint=f"use --method integrated-gradients, or train with model.{option}",
    )


def _has_curved_pooling(model: Model) -> bool:
    pooling = getattr(model, "pooling", None)
    if isinstance(pooling, FirstPooling):
        return pooling.linear is not None
    return isinstance(pooling, AttentionPooling)


def output_named(task: Task, text: str) -> int:
    """Return the id of the class or output token whose symbol is `text`."""
    if getattr(task.task_type, "is_regression", False):
        raise ErrorDetail(
            "a regression has one value and no other output", path="other", value=text, hint="leave it out"
        )
    sizes = ("outputs", "classes", "target_vocabulary", "vocabulary")
    count = next(size for name in sizes if (size := getattr(task.task_type, name, None)))
    names = [" ".join(task.output_symbols([token])).strip() for token in range(count)]
    if text.strip() not in names:
        raise ErrorDetail("the model has no such output", path="other", value=text, allowed=names[:20])
    return names.index(text.strip())
