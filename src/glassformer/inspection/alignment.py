"""Word alignment: links from source words to generated words by cross-attention, and their error rate.

The link of a generated token is the source token with the largest weight in one head. A weight may be
multiplied by the norm of the value vector after the output projection (Kobayashi et al. 2020). Subword
tokens are joined to words: two words are linked if any of their tokens are. The head is the one with the
lowest error rate on the validation set or, without gold links, the one that covers the source words best.

Axes: B batch, H heads, L target tokens, M source tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch

from glassformer.core.errors import ErrorDetail, user_error
from glassformer.data.batching import Examples, collate_seq2seq
from glassformer.evaluation.intervals import Interval, percentile_interval, resampled_sums
from glassformer.evaluation.metrics import Progress
from glassformer.generation.predict import PredictedText
from glassformer.inspection.examples import TOKENS_PER_BATCH
from glassformer.inspection.maps import Selection, Trust
from glassformer.inspection.record import capture, layers
from glassformer.models.base import Model
from glassformer.tasks.base import GoldLinks, Link, Seq2SeqTask, Task, Word

Weighting = Literal["attention", "norm"]
WEIGHTINGS: tuple[Weighting, ...] = get_args(Weighting)
ChosenBy = Literal["error rate", "coverage", "request"]


@dataclass(frozen=True)
class AlignmentHead:
    """Head of the cross-attention whose weights are the alignment."""

    layer: int
    head: int
    weighting: Weighting
    """`attention`: weights alone; `norm`: weights times the norms of the value vectors."""
    chosen_by: ChosenBy


@dataclass(frozen=True)
class AlignedPair:
    """Words of a source and a target, their links, and the weights behind them."""

    source: list[str]
    target: list[str]
    links: list[Link]
    weights: np.ndarray
    """Share of attention (source words, target words): the largest over the tokens of both words."""
    sure: set[Link] | None = None
    possible: set[Link] | None = None

    def document(self) -> dict[str, Any]:
        """Return the pair as a JSON-serialisable dict."""
        gold = (
            {} if self.sure is None else {"sure": sorted(self.sure), "possible": sorted(self.possible or ())}
        )
        return {
            "source": self.source,
            "target": self.target,
            "links": [list(link) for link in self.links],
            "linked_words": [[self.source[one], self.target[other]] for one, other in self.links],
            **gold,
        }


@dataclass(frozen=True)
class AlignmentResult:
    """Alignments of an input or of a split, and their error rate if gold links are known."""

    pairs: list[AlignedPair]
    head: AlignmentHead
    aer: float | None = None
    """Alignment error rate of all pairs together; None if no gold links are known."""
    interval: Interval | None = None
    """95 % interval of the error rate over pairs."""
    untrained_aer: float | None = None
    """Error rate of the untrained model, with the best of its own heads."""
    diagonal_aer: float | None = None
    """Error rate of linking words at equal relative positions, without any model."""
    by_head: list[dict[str, Any]] | None = None
    """Error rate on the validation set of each layer, head and weighting."""
    split: str | None = None
    skipped: int = 0
    """Number of pairs without usable gold links, because they are truncated or have other words."""
    trust: Trust = "fact"
    warning: str | None = None

    def document(self) -> dict[str, Any]:
        """Return the result as a JSON-serialisable dict."""
        return {
            "links": [pair.document() for pair in self.pairs],
            "aer": self.aer,
            "interval": self.interval,
            "untrained_aer": self.untrained_aer,
            "diagonal_aer": self.diagonal_aer,
            "layer": self.head.layer,
            "head": self.head.head,
            "weighting": self.head.weighting,
            "chosen_by": self.head.chosen_by,
            "by_head": self.by_head,
            "split": self.split,
            "examples": len(self.pairs),
            "skipped": self.skipped,
            "trust": self.trust,
            "warning": self.warning,
        }


def error_counts(links: Sequence[Link], gold: GoldLinks) -> tuple[int, int]:
    """Return |A∩S| + |A∩P| and |A| + |S|, from which error rates of many pairs are summed."""
    found = set(links)
    return len(found & gold.sure) + len(found & gold.possible), len(found) + len(gold.sure)


def alignment_error_rate(pairs: Sequence[tuple[Sequence[Link], GoldLinks]]) -> float:
    """Return 1 − (|A∩S| + |A∩P|) / (|A| + |S|), summed over pairs (Och and Ney 2003).

    A are the links found, S the sure and P the possible gold links. Without any link it is 0.
    """
    counts = np.array([error_counts(*pair) for pair in pairs]).reshape(-1, 2).sum(0)
    return float(1 - counts[0] / counts[1]) if counts[1] else 0.0


@dataclass(frozen=True)
class Aligned:
    """Cross-attention of one pair in every head, and its words."""

    source: list[Word]
    target: list[Word]
    weights: dict[Weighting, np.ndarray]
    """Weights (layers, heads, target tokens, source tokens); rows sum to 1."""

    def pair(self, head: AlignmentHead, gold: GoldLinks | None = None) -> AlignedPair:
        """Return the links of one head."""
        weights_LM = self.weights[head.weighting][head.layer, head.head]
        return AlignedPair(
            [word.text for word in self.source],
            [word.text for word in self.target],
            self.links(weights_LM),
            self._by_word(weights_LM),
            None if gold is None else gold.sure,
            None if gold is None else gold.possible,
        )

    def links(self, weights_LM: np.ndarray) -> list[Link]:
        """Return the links: each target word to the words of the source tokens that its tokens read most."""
        best = weights_LM.argmax(-1) if weights_LM.size else np.zeros(0, int)
        at: dict[int, list[int]] = {}
        for number, word in enumerate(self.source):
            for token in word.tokens:
                at.setdefault(token, []).append(number)
        found = {
            (one, number)
            for number, word in enumerate(self.target)
            for token in word.tokens
            if token < len(best)
            for one in at.get(int(best[token]), ())
        }
        return sorted(found, key=lambda link: (link[1], link[0]))

    def _by_word(self, weights_LM: np.ndarray) -> np.ndarray:
        cells = np.zeros((len(self.source), len(self.target)))
        for row, one in enumerate(self.source):
            for column, other in enumerate(self.target):
                part = weights_LM[np.ix_([t for t in other.tokens if t < len(weights_LM)], one.tokens)]
                cells[row, column] = part.max(initial=0.0)
        return cells

    def coverage(self) -> dict[Weighting, np.ndarray]:
        """Return the share of the source words that the target reads, for each layer and head.

        A head that always reads the same token covers one word; a head that reads every word in turn covers
        all of them.
        """
        tokens = [token for word in self.source for token in word.tokens]
        rows = sorted({token for word in self.target for token in word.tokens})
        return {
            name: weights[:, :, rows][..., tokens].max(2, initial=0.0).mean(-1)
            if tokens and rows
            else np.zeros(weights.shape[:2])
            for name, weights in self.weights.items()
        }


def read_pairs(
    model: Model, task: Seq2SeqTask, sources: Sequence[np.ndarray], targets: Sequence[Sequence[int]]
) -> list[Aligned]:
    """Return the cross-attention of the model on pairs. Targets have no begin and end tokens."""
    # The decoder reads all but the last token of a row, and an output may be as long as the model reads.
    rows = [np.array([task.begin, *target] if target else [task.begin, task.end]) for target in targets]
    examples = Examples([np.asarray(source) for source in sources], rows)
    longest = max((max(len(source), len(row)) for source, row in zip(sources, rows, strict=True)), default=1)
    size = max(1, TOKENS_PER_BATCH // longest // 4)
    device = next(model.parameters()).device
    found = []
    for start in range(0, len(rows), size):
        indices = np.arange(start, min(start + size, len(rows)))
        with torch.inference_mode(), capture(model, Selection(site="cross")) as recorder:
            model(**collate_seq2seq(examples, indices).to(device).inputs)
        records = recorder.records["cross"]
        for row, index in enumerate(indices.tolist()):
            source, target = sources[index], targets[index]
            plain, weighted = [], []
            for record in records:
                weights_HLM = record.weights_BHLM[row, :, : len(target), : len(source)].double().numpy()
                plain.append(weights_HLM)
                if record.value_norms_BHM is not None:
                    norms_HM = record.value_norms_BHM[row, :, : len(source)].double().cpu().numpy()
                    products = weights_HLM * norms_HM[:, None]
                    weighted.append(products / np.maximum(products.sum(-1, keepdims=True), 1e-30))
            weights: dict[Weighting, np.ndarray] = {"attention": np.stack(plain)}
            if len(weighted) == len(plain):
                weights["norm"] = np.stack(weighted)
            words = task.source_words([int(token) for token in source]), task.target_words(list(target))
            found.append(Aligned(*words, weights))
    return found


def check_aligns(task: Task) -> Seq2SeqTask:
    """Return the task as an encoder-decoder; raise UserError if the model has no cross-attention."""
    if not isinstance(task, Seq2SeqTask):
        raise user_error(
            "only an encoder-decoder has cross-attention, from which words are aligned",
            path="task",
            value=type(task.task_type).__name__,
            hint="use glassformer attention to see where this model reads",
        )
    return task


def chosen_head(
    model: Model, layer: int | None, head: int | None, weighting: Weighting | None
) -> AlignmentHead | None:
    """Return the head that the user asked for, or None if no layer and head are given."""
    if weighting is not None and weighting not in WEIGHTINGS:
        raise ErrorDetail("no such weighting", path="weighting", value=weighting, allowed=list(WEIGHTINGS))
    if layer is None and head is None:
        return None
    modules = layers(model)["cross"]
    for name, value, count in (
        ("layer", layer, len(modules)),
        ("head", head, modules[0].num_heads),
    ):
        if value is None or not 0 <= value < count:
            raise ErrorDetail(
                "give both a layer and a head" if value is None else "the cross-attention has no such number",
                path=name,
                value=value,
                allowed=[str(number) for number in range(count)],
            )
    assert layer is not None and head is not None
    return AlignmentHead(layer, head, weighting or "norm", "request")


def best_head(
    aligned: Sequence[Aligned], gold: Sequence[GoldLinks | None], weighting: Weighting | None = None
) -> tuple[AlignmentHead, list[dict[str, Any]] | None]:
    """Return the head with the lowest error rate and all rates; without gold links, that of best coverage."""
    names = [name for name in aligned[0].weights if weighting in (None, name)]
    shape = aligned[0].weights["attention"].shape[:2]
    known = [(each, right) for each, right in zip(aligned, gold, strict=True) if right is not None]
    if not known:
        covered = {name: np.mean([each.coverage()[name] for each in aligned], axis=0) for name in names}
        cells = [(name, layer, head) for name in names for layer, head in np.ndindex(*shape)]
        name, layer, head = max(cells, key=lambda cell: float(covered[cell[0]][cell[1], cell[2]]))
        return AlignmentHead(layer, head, name, "coverage"), None
    rows = []
    for name in names:
        for layer, head in np.ndindex(shape):
            pairs = [(each.links(each.weights[name][layer, head]), right) for each, right in known]
            rows.append({"layer": layer, "head": head, "weighting": name, "aer": alignment_error_rate(pairs)})
    best = min(rows, key=lambda row: row["aer"])
    return AlignmentHead(best["layer"], best["head"], best["weighting"], "error rate"), rows


def diagonal_links(source: int, target: int) -> list[Link]:
    """Return the links of words at equal relative positions, the alignment of a model that knows nothing."""
    return (
        [(min(source - 1, column * source // target), column) for column in range(target)] if source else []
    )


@dataclass(frozen=True)
class GoldPairs:
    """Examples of a split with their gold links."""

    sources: list[np.ndarray]
    targets: list[list[int]]
    gold: list[GoldLinks | None]

    @classmethod
    def of(
        cls, task: Seq2SeqTask, split: str, count: int, gold: Sequence[GoldLinks] | None = None
    ) -> GoldPairs:
        """Return the first `count` examples of a split. Gold links are those of the task, or those given."""
        examples = task.splits[split]
        indices = list(range(min(count, len(examples))))
        taken = examples.take(np.array(indices))
        if gold is not None and len(gold) < len(indices):
            indices = indices[: len(gold)]
        links = task.gold_links(split, indices) if gold is None else gold
        return cls(
            [np.asarray(row).astype(np.int64) for row in taken.inputs][: len(indices)],
            [[int(token) for token in row[1:-1]] for row in taken.targets][: len(indices)],
            [None] * len(indices) if links is None else list(links[: len(indices)]),
        )

    def fitting(self, aligned: Sequence[Aligned]) -> list[GoldLinks | None]:
        """Return the gold links, and None where they name words that a pair does not have."""
        return [
            None
            if links is None
            or any(
                one >= len(each.source) or other >= len(each.target)
                for one, other in links.possible | links.sure
            )
            else links
            for links, each in zip(self.gold, aligned, strict=True)
        ]


def align_split(
    model: Model,
    untrained: Model,
    task: Seq2SeqTask,
    split: str,
    count: int,
    *,
    chooses_on: str = "validation",
    head: AlignmentHead | None = None,
    weighting: Weighting | None = None,
    gold: Sequence[GoldLinks] | None = None,
    progress: Progress | None = None,
) -> AlignmentResult:
    """Align examples of a split with their targets, and measure the error rate beside two controls.

    The head is chosen on another split, unless gold links are given: these have no validation part, so that
    their first half chooses, and the second half is measured.
    """
    pairs = GoldPairs.of(task, split, count, gold)
    chooser = pairs if gold is not None else GoldPairs.of(task, chooses_on, count)
    part, rest = slice(None), slice(None)
    if gold is not None and head is None and len(pairs.sources) > 1:
        part, rest = slice(len(pairs.sources) // 2), slice(len(pairs.sources) // 2, None)
    measured: list[tuple[AlignmentHead, list[AlignedPair], int]] = []
    by_head = None
    for number, each in enumerate((model, untrained)):
        if progress is not None:
            progress("aligning", number, 2)
        found = read_pairs(each, task, pairs.sources, pairs.targets)
        right = pairs.fitting(found)
        chosen, table = head, None
        if head is None:
            others = found if gold is not None else read_pairs(each, task, chooser.sources, chooser.targets)
            chosen, table = best_head(others[part], chooser.fitting(others)[part], weighting)
        assert chosen is not None
        by_head = table if number == 0 else by_head
        own = [one.pair(chosen, links) for one, links in zip(found[rest], right[rest], strict=True)]
        measured.append((chosen, own, sum(links is None for links in right[rest])))
    if progress is not None:
        progress("aligning", 2, 2)
    (chosen, own, skipped), (_, control, _) = measured
    known = [pair for pair in own if pair.sure is not None]
    if not known:
        return AlignmentResult(own, chosen, split=split, skipped=0)
    counts = np.array([error_counts(pair.links, _gold(pair)) for pair in known], dtype=np.float64)
    sums = resampled_sums(counts)
    diagonal = [(diagonal_links(len(pair.source), len(pair.target)), _gold(pair)) for pair in known]
    return AlignmentResult(
        own,
        chosen,
        _error_rate(known),
        percentile_interval(1 - sums[:, 0] / np.maximum(sums[:, 1], 1)),
        _error_rate([pair for pair in control if pair.sure is not None]),
        alignment_error_rate(diagonal),
        by_head,
        split,
        skipped,
    )


def _gold(pair: AlignedPair) -> GoldLinks:
    return GoldLinks(pair.sure or set(), pair.possible or set())


def _error_rate(pairs: Sequence[AlignedPair]) -> float:
    return alignment_error_rate([(pair.links, _gold(pair)) for pair in pairs])


def align_predictions(
    model: Model, task: Seq2SeqTask, predictions: Sequence[PredictedText]
) -> list[dict[str, Any] | None]:
    """Return the links of each prediction as a dict, and None for an input without a prediction.

    The head is chosen for each input alone, by coverage, so that it does not depend on the other inputs.
    """
    known = [index for index, each in enumerate(predictions) if each.tokens is not None and each.candidates]
    rows = [
        (np.asarray(predictions[index].tokens), predictions[index].candidates[0].tokens) for index in known
    ]
    found: list[dict[str, Any] | None] = [None] * len(predictions)
    if not rows:
        return found
    for index, aligned in zip(known, read_pairs(model, task, *zip(*rows, strict=True)), strict=True):
        head, _ = best_head([aligned], [None])
        found[index] = {**aligned.pair(head).document(), "layer": head.layer, "head": head.head}
    return found


def read_gold(path: Path) -> list[GoldLinks]:
    """Read gold links: one line per example, such as `0-0 1-2 2?1`; `-` marks sure, `?` possible links."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise user_error(f"cannot be read: {reason}", path=str(path), hint="pass a text file") from None
    found = []
    for number, line in enumerate(lines, 1):
        sure: set[Link] = set()
        possible: set[Link] = set()
        for link in line.split():
            one, mark, other = link.partition("-" if "-" in link else "?")
            if not (mark and one.isascii() and one.isdigit() and other.isascii() and other.isdigit()):
                hint = "write source-target, counted from 0, such as 0-0 1-2; 2?1 is a possible link"
                raise user_error("not a link", path=f"{path}:{number}", value=link, hint=hint)
            possible.add((int(one), int(other)))
            if mark == "-":
                sure.add((int(one), int(other)))
        found.append(GoldLinks(sure, possible))
    if not found:
        raise user_error("the file has no lines", path=str(path), hint="write one line of links per example")
    return found
