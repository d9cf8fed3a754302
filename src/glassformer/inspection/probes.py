"""Probes: labels that a linear classifier can read from each layer and position, with the controls they need.

A probe is a logistic regression on hidden states, fitted on training examples and measured on others. A high
accuracy alone means little, so each probe has three controls: the same classifier on a control task, in which
each token type has a random label (Hewitt and Liang 2019); the same label in untrained models; and the most
frequent label. A label that can be read need not be used: `Removal` removes the directions in which a probe
reads it, and runs the model again (Elazar et al. 2021).

Axes: G groups of states, T label sets, N states, D hidden, C classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from glassformer.blocks.heads import IGNORED
from glassformer.core.errors import ErrorDetail
from glassformer.data.batching import Batch
from glassformer.evaluation.intervals import Interval, ratio_interval, share_interval
from glassformer.evaluation.metrics import Progress
from glassformer.inspection.ablation import Effect, compare, measure_examples
from glassformer.inspection.examples import TOKENS_PER_BATCH, ExampleGroup
from glassformer.inspection.maps import Trust
from glassformer.inspection.sites import change_sites, record_states, select_sites, sites
from glassformer.models.base import Model
from glassformer.models.task_types import SequenceClassification
from glassformer.tasks.base import Labels, Task

DEFAULT_SITES = ("*.embedding", "*.residual_post")
"""Sites that are probed unless others are chosen: the residual stream."""
GENERAL_LABELS = {
    "token": "the token that is read at this position",
    "position": "the position, counted from 0",
    "output": "the correct output at this position, or of the whole sequence",
}
"""Labels of every task, with their meaning."""
MOST_STATES = 4000
"""Maximum number of states that one probe is fitted on; of more, a random part is drawn."""
MOST_CLASSES = 50
"""Maximum number of labels that are told apart: the most frequent ones. States with others are left out."""
MOST_POSITIONS = 32
"""Maximum number of positions that have a probe of their own."""
PENALTY = 1.0
"""Strength of the L2 penalty: half the squared weights are added to the summed loss, as in scikit-learn."""
ITERATIONS = 100
NOISE = 1e-5
"""Standard deviation, as a share of the largest one, below which a feature is rounding noise."""
RANDOM_REMOVALS = 3
"""Number of random subspaces that a removal is compared with."""


@dataclass(frozen=True)
class ProbeRow:
    """Accuracy of one probe, with its controls."""

    site: str
    position: int | None
    """Position whose states are probed; None: all positions together."""
    accuracy: float
    interval: Interval
    """95 % interval of the accuracy over the measured examples."""
    control: float | None
    """Accuracy on the control task, a mean over seeds. None: all states are of one token type."""
    selectivity: float | None
    """Accuracy minus that on the control task."""
    selectivity_interval: Interval | None
    untrained: float
    """Accuracy in untrained models, a mean over seeds."""
    untrained_range: tuple[float, float]
    """Smallest and largest accuracy over the untrained models."""
    majority: float
    """Accuracy of always answering with the most frequent label of train."""
    states: int
    """Number of measured states."""


@dataclass(frozen=True)
class Removal:
    """Effect of removing the directions of a site from which a label can be read."""

    site: str
    position: int | None
    """Position at which they are removed: that of the best probe of the site; None: all positions."""
    rank: int
    """Number of removed directions."""
    accuracy: float
    """Accuracy of a new probe after the removal; near `majority` if nothing is left to read."""
    majority: float
    loss: Effect
    """Loss of the model before and after the removal, on the measured examples."""
    random_loss: float
    """Mean change of the loss if as many random directions of equal variance are removed."""


@dataclass(frozen=True)
class ProbeResult:
    """Probes of one label at all chosen sites."""

    label: str
    meaning: str
    classes: list[str]
    coverage: float
    """Share of the labelled states whose label is one of the classes."""
    rows: list[ProbeRow]
    removals: list[Removal]
    train_examples: int
    examples: int
    """Number of examples on which the probes are measured."""
    split: str
    seeds: int
    trust: Trust = "fact"

    def document(self) -> dict[str, Any]:
        """Return the result as a JSON-serialisable dict."""
        return {
            **asdict(self),
            "removals": [{**asdict(each), "trust": "cause"} for each in self.removals],
        }

    def best(self) -> ProbeRow:
        """Return the row with the highest accuracy; of equal ones, the first."""
        return max(self.rows, key=lambda row: row.accuracy)


@dataclass(frozen=True)
class LabelledBatch:
    """Batch of examples, with the labels of each example's positions by stack."""

    batch: Batch
    labels: list[Labels]


Collect = Callable[[], Iterator[LabelledBatch]]


@dataclass
class States:
    """Hidden states of one site (N, D) with their labels, and where they come from."""

    states_ND: Tensor
    labels: np.ndarray
    """Class number of each state."""
    tokens: np.ndarray
    positions: np.ndarray
    examples: np.ndarray


def label_names(task: Task) -> dict[str, str]:
    """Return the labels that a probe of this task can look for, with their meaning."""
    names = {**task.label_names(), **GENERAL_LABELS}
    if isinstance(task.task_type, SequenceClassification) and task.task_type.is_regression:
        del names["output"]
    return names


def labelled_batches(
    task: Task, label: str, split: str, indices: np.ndarray, tokens_per_batch: int = TOKENS_PER_BATCH
) -> Iterator[LabelledBatch]:
    """Yield the examples of a split at `indices`, with the labels of each position."""
    known = label_names(task)
    if label not in known:
        hint = "use --file FILE to probe for a column of your own file"
        raise ErrorDetail(
            "the task has no such label", path="label", value=label, allowed=[*known], hint=hint
        )
    longest = max((len(task.splits[split].inputs[int(index)]) for index in indices), default=1)
    size = max(1, tokens_per_batch // max(1, longest))
    for start in range(0, len(indices), size):
        part = indices[start : start + size]
        batch = task.batch(split, part)
        if label in GENERAL_LABELS:
            rows = _general_labels(task, label, batch)
        else:
            rows = task.position_labels(label, split, part.tolist())
        yield LabelledBatch(batch, rows)


def _general_labels(task: Task, label: str, batch: Batch) -> list[Labels]:
    """Return labels that follow from the batch alone: token, position or output."""
    found: list[Labels] = []
    tokens = _tokens(batch)
    last = list(tokens)[-1]
    for row in range(len(batch.targets)):
        labels: Labels = {}
        for stack, tokens_BL in tokens.items():
            length = tokens_BL.shape[1]
            if label == "position":
                labels[stack] = list(range(length))
            elif label == "token":
                symbols = task.input_symbols if stack == "encoder" else task.output_symbols
                labels[stack] = list(symbols(tokens_BL[row].tolist()))
            elif batch.targets.ndim == 1:
                labels[stack] = [" ".join(task.output_symbols([int(batch.targets[row])]))] * length
            elif stack == last:
                labels[stack] = [
                    None if target == IGNORED else " ".join(task.output_symbols([target]))
                    for target in batch.targets[row].tolist()
                ]
        found.append(labels)
    return found


def _tokens(batch: Batch) -> dict[str, Tensor]:
    """Return the tokens that each stack reads, by stack: `encoder`, and `decoder` of an encoder-decoder."""
    encoder, decoder = batch.inputs["tokens"], batch.inputs.get("target")
    assert encoder is not None
    return {"encoder": encoder} if decoder is None else {"encoder": encoder, "decoder": decoder}


def _is_real(batch: Batch, stack: str) -> Tensor:
    """Return a boolean tensor (B, L): True at real tokens, False at padding."""
    if stack == "decoder":
        return batch.targets != IGNORED
    mask, tokens_BL = batch.inputs.get("mask"), batch.inputs["tokens"]
    assert tokens_BL is not None
    return torch.ones_like(tokens_BL, dtype=torch.bool) if mask is None else mask.bool()


def collect(model: Model, batches: Iterator[LabelledBatch], names: Sequence[str]) -> dict[str, States]:
    """Run the model on the batches, and return the labelled states of each site. Padding is left out."""
    device = next(model.parameters()).device
    parts: dict[str, list[tuple[Any, ...]]] = {name: [] for name in names}
    count = 0
    for each in batches:
        inputs = each.batch.to(device).inputs
        recorded = record_states(model, inputs, names)
        tokens = _tokens(each.batch)
        for stack, tokens_BL in tokens.items():
            rows, positions, labels = [], [], []
            for row, column in _is_real(each.batch, stack).nonzero().tolist():
                given = each.labels[row].get(stack, ())
                if column < len(given) and given[column] is not None:
                    rows.append(row)
                    positions.append(column)
                    labels.append(given[column])
            at = torch.tensor(rows, dtype=torch.long), torch.tensor(positions, dtype=torch.long)
            types = tokens_BL[at].numpy()
            for name in names:
                if name.startswith(f"{stack}."):
                    states_ND = recorded[name].float().cpu()[at]
                    parts[name].append((states_ND, labels, types, positions, np.array(rows, int) + count))
        count += len(each.batch.targets)
    found = {}
    for name, pieces in parts.items():
        every = np.empty(sum(len(piece[1]) for piece in pieces), dtype=object)
        every[:] = [label for piece in pieces for label in piece[1]]
        columns = [np.concatenate([np.asarray(piece[at], int) for piece in pieces]) for at in (2, 3, 4)]
        found[name] = States(torch.cat([piece[0] for piece in pieces]), every, *columns)
    return {name: states for name, states in found.items() if len(states.labels)}


def probed_sites(model: Model, names: Sequence[str]) -> list[str]:
    """Return the selected sites, which must have one vector per position."""
    selected = select_sites(model, [name for name in names if _matches(model, name)] or names)
    wrong = [site.name for site in selected if site.axes != "BLD"]
    if wrong:
        allowed = [name for name, site in sites(model).items() if site.axes == "BLD"]
        raise ErrorDetail(
            "this site has no vector per position", path="site", value=wrong[0], allowed=allowed
        )
    return [site.name for site in selected]


def _matches(model: Model, pattern: str) -> bool:
    """Return False for a default pattern that this model has no site for."""
    try:
        return bool(select_sites(model, [pattern]))
    except ErrorDetail:
        if "*" in pattern:
            return False
        raise


# ---------------------------------------------------------------- logistic regression


def fit(
    states_GND: Tensor,
    labels_GTN: Tensor,
    weights_GTN: Tensor,
    classes: int,
    penalty: float = PENALTY,
    floor: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Fit multinomial logistic regressions; return weights (G, T, C, D) and biases (G, T, C).

    Features are standardised, and the weights returned are those of the original features. A feature whose
    standard deviation is below `floor` is rounding noise. A state with weight 0 does not count.
    """
    used_GN1 = (weights_GTN[:, 0] > 0).to(states_GND)[..., None]
    total = used_GN1.sum(1, keepdim=True).clamp(min=1)
    mean = (states_GND * used_GN1).sum(1, keepdim=True) / total
    scale = (((states_GND - mean).square() * used_GN1).sum(1, keepdim=True) / total).sqrt()
    smallest = (NOISE * scale.amax()).clamp(min=max(floor, 1e-30))
    scale = torch.where(scale < smallest, torch.ones_like(scale), scale)
    x_GND = (states_GND - mean) / scale
    groups, sets, _ = labels_GTN.shape
    dim = states_GND.shape[-1]
    weight = torch.zeros(groups, sets, classes, dim, requires_grad=True)
    bias = torch.zeros(groups, sets, classes, requires_grad=True)
    share_GTN = weights_GTN / weights_GTN.sum(-1, keepdim=True).clamp(min=1)
    strength_GT = penalty / (2 * weights_GTN.sum(-1).clamp(min=1))
    optimizer = torch.optim.LBFGS(
        [weight, bias],
        max_iter=ITERATIONS,
        tolerance_grad=1e-5,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def closure() -> float:
        optimizer.zero_grad()
        logits = torch.einsum("gnd,gtcd->gtnc", x_GND, weight) + bias[:, :, None]
        losses = functional.cross_entropy(logits.flatten(0, 2), labels_GTN.flatten(), reduction="none")
        loss = (losses.view_as(share_GTN) * share_GTN).sum()
        loss = loss + (strength_GT * weight.square().sum((-1, -2))).sum()
        loss.backward()
        return float(loss.detach())

    with torch.enable_grad():
        optimizer.step(closure)
    own = weight.detach() / scale[:, :, None]
    return own, bias.detach() - (own * mean[:, :, None]).sum(-1)


def predicted(states_GND: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the class of each state by each probe (G, T, N)."""
    return (torch.einsum("gnd,gtcd->gtnc", states_GND, weight) + bias[:, :, None]).argmax(-1)


def control_labels(labels: np.ndarray, types: np.ndarray, seed: int) -> dict[int, int]:
    """Return a random class for each token type, drawn from the distribution of the labels."""
    random = np.random.default_rng(seed)
    return {int(token): int(random.choice(labels)) for token in np.unique(types)}


# ---------------------------------------------------------------- probing


@dataclass(frozen=True)
class _Group:
    """Train and test states that one probe uses: indices into the states of a site."""

    position: int | None
    train: np.ndarray
    test: np.ndarray


def _groups(train: States, test: States) -> list[_Group]:
    """Return the group of all positions, and one per position if all examples have the same positions."""
    random = np.random.default_rng(0)
    every = np.arange(len(train.labels))
    if len(every) > MOST_STATES:
        every = np.sort(random.choice(every, MOST_STATES, replace=False))
    groups = [_Group(None, every, np.arange(len(test.labels)))]
    lengths = {
        int(length)
        for states in (train, test)
        for length in Counter(zip(states.examples.tolist(), states.positions.tolist(), strict=True)).values()
    }
    counts = [len(set(states.examples.tolist())) for states in (train, test)]
    common = sorted(set(train.positions.tolist()) & set(test.positions.tolist()))
    regular = all(
        int((states.positions == position).sum()) == count
        for states, count in zip((train, test), counts, strict=True)
        for position in common
    )
    if lengths != {1} or not regular or not 1 < len(common) <= MOST_POSITIONS:
        return groups
    for position in common:
        at = np.flatnonzero(train.positions == position)
        if len(set(train.labels[at].tolist())) > 1:
            groups.append(_Group(position, at, np.flatnonzero(test.positions == position)))
    return groups


def _accuracies(
    train: States, test: States, groups: Sequence[_Group], classes: int, seeds: int
) -> list[tuple[np.ndarray, np.ndarray | None]]:
    """Return whether each test state of each group is right, by the probe and by each control probe."""
    found: list[tuple[np.ndarray, np.ndarray | None]] = []
    # The groups of single positions have the same size, so that they are fitted together.
    for chunk in (groups[:1], groups[1:]):
        if not chunk:
            continue
        x = torch.stack([train.states_ND[group.train] for group in chunk])
        y = torch.stack([torch.from_numpy(train.labels[group.train].astype(np.int64)) for group in chunk])[
            :, None
        ]
        tests = torch.stack([test.states_ND[group.test] for group in chunk])
        right = torch.stack([torch.from_numpy(test.labels[group.test].astype(np.int64)) for group in chunk])[
            :, None
        ]
        tables = [
            [
                control_labels(train.labels[group.train], train.tokens[group.train], seed)
                for seed in range(seeds)
            ]
            for group in chunk
        ]
        if seeds:
            y = torch.cat([y, _controls(tables, [train.tokens[group.train] for group in chunk])], 1)
            right = torch.cat([right, _controls(tables, [test.tokens[group.test] for group in chunk])], 1)
        weight, bias = fit(x, y, torch.ones(y.shape), classes)
        is_right = (predicted(tests, weight, bias) == right).numpy()
        for group, table, each in zip(chunk, tables, is_right, strict=True):
            has_types = bool(table) and len(np.unique(train.tokens[group.train])) > 1
            found.append((each[0], each[1:] if has_types else None))
    return found


def _controls(tables: list[list[dict[int, int]]], tokens: list[np.ndarray]) -> Tensor:
    """Return the control labels (G, T, N). A token type that train does not have has the label −1."""
    rows = [
        [[table.get(int(token), -1) for token in types] for table in own]
        for own, types in zip(tables, tokens, strict=True)
    ]
    return torch.tensor(rows, dtype=torch.long)


def _per_example(is_right: np.ndarray, examples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of right states, and of all states, of each example."""
    _, own = np.unique(examples, return_inverse=True)
    return np.bincount(own, weights=is_right), np.bincount(own).astype(np.float64)


def _row(
    site: str,
    group: _Group,
    train: States,
    test: States,
    trained: tuple[np.ndarray, np.ndarray | None],
    untrained: Sequence[float],
) -> ProbeRow:
    is_right, controls = trained
    right, counts = _per_example(is_right, test.examples[group.test])
    accuracy = float(is_right.mean())
    control, selectivity, interval = None, None, None
    if controls is not None:
        by_control = controls.mean(0)
        control = float(by_control.mean())
        selectivity = accuracy - control
        differences, _ = _per_example(is_right - by_control, test.examples[group.test])
        interval = ratio_interval(differences, counts)
    majority = Counter(train.labels[group.train].tolist()).most_common(1)[0][0]
    return ProbeRow(
        site,
        group.position,
        accuracy,
        share_interval(right, counts),
        control,
        selectivity,
        interval,
        float(np.mean(untrained)),
        (float(min(untrained)), float(max(untrained))),
        float((test.labels[group.test] == majority).mean()),
        len(group.test),
    )


def probe(
    model: Model,
    task: Task,
    label: str,
    train: Collect,
    test: Collect,
    *,
    untrained: Sequence[Model],
    measured: Sequence[Batch],
    split: str,
    meaning: str = "",
    names: Sequence[str] = DEFAULT_SITES,
    removes: bool = True,
    progress: Progress | None = None,
) -> ProbeResult:
    """Fit a probe at each site and position on the states of `train`, and measure it on those of `test`.

    `untrained` are models with the initial weights of different seeds. There are as many control tasks.
    `measured` are batches on which the effect of a removal is measured.
    """
    names, seeds = probed_sites(model, names), len(untrained)
    if progress is not None:
        progress("reading states", 0, 1 + seeds)
    pairs = []
    for number, each in enumerate((model, *untrained)):
        pairs.append((collect(each, train(), names), collect(each, test(), names)))
        if progress is not None:
            progress("reading states", number + 1, 1 + seeds)
    found = [name for name in names if name in pairs[0][0] and name in pairs[0][1]]
    classes, coverage = _number_classes(label, pairs)
    rows, removals = [], []
    for number, name in enumerate(found):
        if progress is not None:
            progress("fitting probes", number, len(found))
        own, other = (states[name] for states in pairs[0])
        if not len(own.labels) or not len(other.labels):
            continue
        groups = _groups(own, other)
        trained = _accuracies(own, other, groups, len(classes), seeds)
        controls = [
            [
                float(right.mean())
                for right, _ in _accuracies(first[name], second[name], groups, len(classes), 0)
            ]
            for first, second in pairs[1:]
        ]
        for at, group in enumerate(groups):
            rows.append(_row(name, group, own, other, trained[at], [column[at] for column in controls]))
        if removes:
            best = max(range(len(groups)), key=lambda at: rows[at - len(groups)].accuracy)
            removals.append(_remove(model, task, name, own, other, groups[best], len(classes), measured))
    if progress is not None:
        progress("fitting probes", len(found), len(found))
    if not rows:
        raise ErrorDetail("no state of the chosen sites has this label", path="label", value=label)
    counts = [len({index for states in side.values() for index in states.examples}) for side in pairs[0]]
    return ProbeResult(label, meaning, classes, coverage, rows, removals, counts[0], counts[1], split, seeds)


def _number_classes(
    label: str, pairs: Sequence[tuple[dict[str, States], dict[str, States]]]
) -> tuple[list[str], float]:
    """Replace labels by class numbers, and leave out states of rare or unseen labels, in place."""
    train = next(iter(pairs[0][0].values()), None)
    every: Counter[Hashable] = Counter()
    for name, states in pairs[0][0].items():
        if name.endswith((".embedding", ".0.residual_post")) or states is train:
            every.update(dict(Counter(states.labels.tolist())))
    if len(every) < 2:
        value = next(iter(every), None)
        raise ErrorDetail(
            f"all states have the label {value!r}"
            if every
            else "no state of the training examples has this label",
            path="label",
            value=label,
            hint="choose a label that differs between examples, or more examples",
        )
    chosen = [value for value, _ in every.most_common(MOST_CLASSES)]
    chosen.sort(
        key=lambda value: (isinstance(value, str), value if isinstance(value, (int, str)) else str(value))
    )
    numbers = {value: number for number, value in enumerate(chosen)}
    kept = total = 0
    for side in (states for pair in pairs for part in pair for states in part.values()):
        at = np.array([number for number, value in enumerate(side.labels) if value in numbers], dtype=int)
        kept, total = kept + len(at), total + len(side.labels)
        side.labels = np.array([numbers[side.labels[number]] for number in at], dtype=np.int64)
        side.states_ND = side.states_ND[at]
        side.tokens, side.positions, side.examples = side.tokens[at], side.positions[at], side.examples[at]
    return [str(value) for value in chosen], kept / max(total, 1)


# ---------------------------------------------------------------- removal


def _remove(
    model: Model,
    task: Task,
    name: str,
    train: States,
    test: States,
    group: _Group,
    classes: int,
    measured: Sequence[Batch],
) -> Removal:
    """Remove what a linear probe can read, and measure what a new probe still reads, and the loss."""
    x, y = train.states_ND[group.train], torch.from_numpy(train.labels[group.train])
    others, right = test.states_ND[group.test], torch.from_numpy(test.labels[group.test])
    at = slice(None) if group.position is None else slice(group.position, group.position + 1)
    majority = float((right == y.mode().values).double().mean())
    erasure = Erasure.of(x, y, classes)
    floor = NOISE * float(x.std(0).max())
    weight, bias = fit(erasure.apply(x)[None], y[None, None], torch.ones(1, 1, len(y)), classes, floor=floor)
    guesses = predicted(erasure.apply(others)[None], weight, bias)[0, 0]
    groups = [ExampleGroup(batch, [], None) for batch in measured]
    before = measure_examples(model, task, groups, None)

    def loss_without(own: Erasure) -> Effect:
        def change_states(x_BLD: Tensor) -> Tensor:
            x_BLD = x_BLD.clone()
            x_BLD[:, at] = own.apply(x_BLD[:, at])
            return x_BLD

        def change() -> AbstractContextManager[None]:
            return change_sites(model, {name: change_states})

        return compare(before, measure_examples(model, task, groups, None, change))["loss"]

    changes = [loss_without(erasure.random(seed)).change for seed in range(RANDOM_REMOVALS)]
    accuracy = float((guesses == right).double().mean())
    effect = loss_without(erasure)
    return Removal(name, group.position, erasure.rank, accuracy, majority, effect, float(np.mean(changes)))


@dataclass(frozen=True)
class Erasure:
    """Smallest change of states after which no linear probe reads a label (Belrose et al. 2023).

    Directions are removed in coordinates in which all directions of the states have the variance 1.
    """

    mean_D: Tensor
    whiten_DD: Tensor
    colour_DD: Tensor
    """Inverse of the whitening, within the directions in which the states vary."""
    basis_DR: Tensor
    """Orthonormal directions of the whitened states in which the means of the classes differ."""

    @classmethod
    def of(cls, states_ND: Tensor, labels_N: Tensor, classes: int) -> Erasure:
        mean_D = states_ND.double().mean(0)
        x_ND = states_ND.double() - mean_D
        sizes_D, rotation_DD = torch.linalg.eigh(x_ND.T @ x_ND / len(x_ND))
        is_used = sizes_D > NOISE**2 * sizes_D[-1].clamp(min=1e-30)
        scale = torch.where(is_used, sizes_D, torch.ones_like(sizes_D)).sqrt()
        own = rotation_DD * is_used
        whiten_DD, colour_DD = own / scale @ rotation_DD.T, own * scale @ rotation_DD.T
        z_NC = functional.one_hot(labels_N, classes).double()
        directions, strengths, _ = torch.linalg.svd(whiten_DD @ x_ND.T @ (z_NC - z_NC.mean(0)) / len(x_ND))
        rank = int((strengths > 1e-6 * strengths[0].clamp(min=1e-30)).sum())
        return cls(mean_D, whiten_DD, colour_DD, directions[:, :rank])

    @property
    def rank(self) -> int:
        return int(self.basis_DR.shape[1])

    def apply(self, states: Tensor) -> Tensor:
        """Return states (…, D) without the removed directions, which get the value of the mean state."""
        device = states.device
        mean_D, basis_DR = self.mean_D.to(device), self.basis_DR.to(device)
        read_DR, write_RD = self.whiten_DD.to(device) @ basis_DR, basis_DR.T @ self.colour_DD.to(device)
        return (states - (states.double() - mean_D) @ read_DR @ write_RD).to(states)

    def random(self, seed: int) -> Erasure:
        """Return the removal of as many random directions of the whitened states."""
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(self.basis_DR.shape, generator=generator, dtype=torch.float64)
        within = self.whiten_DD @ self.colour_DD @ drawn
        return replace(self, basis_DR=torch.linalg.qr(within)[0] if self.rank else self.basis_DR)
