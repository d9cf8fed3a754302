"""The four published sets of translation: trained at a quarter of their width, and at all of it by heart."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassformer.data.catalogue import locate
from glassformer.datasets.grammar import translation_pairs
from glassformer.runs.experiment import resolve
from glassformer.runs.folder import RunFolder
from glassformer.storage.files import replace_file
from glassformer.studies import charts
from glassformer.studies.recipes import OURS, THEIRS, Cell, Overrides, Row, Setting, Study, both
from glassformer.studies.study import Effort, test_value

PUBLISHED = {"ted-set-1": 37.45, "ted-set-2": 37.96, "ted-set-3": 38.54, "ted-set-4": 31.54}
"""BLEU, by preset; published as fractions of 1."""

SET = "ted_enfr"
SPLITS = {"train": "train", "validation": "dev", "test": "test"}
LANGUAGES = ("en", "fr")
MOST_WORDS = 10
"""Longer pairs are left out of all three splits, so that references are whole."""

WIDTH_DIVISOR, QUICK_WIDTH_DIVISOR = 4, 8
VOCABULARY = 4000

SCALED = {
    "task.tokenizer": {"kind": "bpe", "vocabulary_size": VOCABULARY},
    "task.max_length": 48,
    "training.batch_tokens": 1024,
    "training.max_epochs": 10,
    "training.optimizer": {"kind": "adamw", "learning_rate": 2e-3, "beta2": 0.98, "weight_decay": 0.01},
    "training.schedule": {"kind": "warmup-cosine", "warmup_steps": 200},
    "training.validation_examples": 200,
}
"""A narrow model takes a higher rate than the preset's wide one."""

RECIPE = {
    "model.norm_placement": "post",
    "training.optimizer": {"kind": "adam", "learning_rate": 1e-3},
    "training.schedule": {"kind": "constant", "warmup_steps": 0},
    "training.gradient_clip_norm": None,
    "training.label_smoothing": 0.0,
    "training.divergence.spike_factor": None,
}
"""Theirs: norms after the sublayers, and a rate that is constant from the first step."""

PAIRS, WORDS_BY_HEART = 32, 6
STEPS_BY_HEART = 80
BY_HEART = "by-heart"
FULL_SIZE = {
    "task.tokenizer": {"kind": "words"},
    "task.max_length": 16,
    "training.batch_tokens": 288,
    "training.max_epochs": None,
    "training.max_steps": STEPS_BY_HEART,
    "training.validate_every": STEPS_BY_HEART,
    "training.schedule.warmup_steps": 10,
    "training.divergence.spike_factor": None,
    "training.keep_checkpoints": 1,
}
"""Few short sentences, so that a step of a hundred million parameters takes seconds: can it learn at all?"""

QUICK = {**FULL_SIZE, "training.max_steps": 150, "training.validate_every": 30}
"""The quick version needs no files: narrow models learn the same sentences by heart."""

FITS = 0.95
"""Learned by heart, if so many of the tokens are right."""
TRAINED = 2.0
"""A model that is right more rarely than this many times the commonest token comes has learned nothing."""


def _narrowed(preset: str, divisor: int) -> dict[str, int]:
    model = resolve(preset).dump()["model"]
    return {f"model.{name}": model[name] // divisor for name in ("hidden_dim", "feed_forward_dim")}


def _files(stems: Mapping[str, str]) -> dict[str, list[str]]:
    return {split: [f"{stem}.{language}" for language in LANGUAGES] for split, stem in stems.items()}


SAME_PAIRS = _files(dict.fromkeys(SPLITS, f"{BY_HEART}/pairs"))
"""Trained and measured on the same pairs."""


def _full_size(preset: str) -> Setting:
    overrides = {**FULL_SIZE, "task.data": SAME_PAIRS}
    return Setting(f"{preset}, full size", None, preset, overrides, theirs=RECIPE)


def _setting(preset: str, published: float) -> Setting:
    files = _files({split: f"short/{name}" for split, name in SPLITS.items()})
    return Setting(
        name=preset,
        published=published,
        what=preset,
        overrides={**SCALED, **_narrowed(preset, WIDTH_DIVISOR), "task.data": files},
        theirs=RECIPE,
        is_quick=True,
        quick={**QUICK, **_narrowed(preset, QUICK_WIDTH_DIVISOR), "task.data": SAME_PAIRS},
    )


@dataclass(frozen=True)
class TranslationStudy(Study):
    full_size: Sequence[Setting] = ()
    """Further settings of the full version, which are learned by heart."""

    def chosen(self, effort: Effort) -> list[Setting]:
        return [*super().chosen(effort), *([] if effort.is_quick else self.full_size)]

    def cells(self, effort: Effort) -> list[Cell]:
        _write_pairs_by_heart(effort.folder / "data")
        if not effort.is_quick:
            _write_short_pairs(effort.folder / "data")
        # What takes minutes before what takes an hour.
        return sorted(super().cells(effort), key=lambda cell: cell.setting not in self.full_size)

    def places(self, setting: Setting, effort: Effort) -> Overrides:
        folder = (effort.folder / "data").resolve()
        files = SAME_PAIRS if effort.is_quick else setting.overrides["task.data"]
        return {f"task.data.{split}": [str(folder / name) for name in pair] for split, pair in files.items()}

    def more(self, cells: Sequence[Cell], rows: list[Row], effort: Effort) -> dict[str, Any]:
        signatures = {cell.job.results()["protocol"]["test"]["signatures"]["bleu"]: None for cell in cells}
        full_size = {setting.name for setting in self.full_size}
        for row in rows:
            row["is_full_size"] = row["setting"] in full_size
            own = [cell for cell in cells if cell.setting.name == row["setting"]]
            if own:
                row["commonest"] = _commonest(own[0])
            for recipe in (THEIRS, OURS):
                runs = [cell for cell in own if cell.recipe == recipe]
                if runs:
                    results = [cell.job.results() for cell in runs]
                    row["parameters"] = results[0]["parameters"]
                    row[f"{recipe}_accuracy"] = [test_value(result, "accuracy") for result in results]
                    row[f"{recipe}_validations"] = [_validations(cell) for cell in runs]
        return {
            "signatures": list(signatures),
            "sizes": [_sizes(setting, effort) for setting in super().chosen(effort)],
            "plot": self._plot([row for row in rows if not row["is_full_size"]], effort),
            "complaint": _complaint(rows),
        }

    def _plot(self, rows: Sequence[Row], effort: Effort) -> list[str]:
        panels = []
        for recipe, title in ((THEIRS, "their recipe"), (OURS, "ours: pre-norm, warm-up, cosine")):
            for metric, label in (("loss", "validation loss"), ("bleu", "validation BLEU")):
                lines = [_line(row, recipe, metric) for row in rows if f"{recipe}_validations" in row]
                if lines:
                    panels.append(charts.Panel(title, lines, "epoch", label, is_whole=True))
        if not panels:
            return []
        is_alone = all(len(line.runs) == 1 for panel in panels for line in panel.lines)
        caption = "One seed." if is_alone else "Means over seeds; bands from the lowest to the highest."
        return charts.write(charts.draw(panels, self.title, caption, columns=2), effort.folder / "training")

    def table(self, document: Mapping[str, Any]) -> list[str]:
        lines = [
            "| set | BLEU, published | their recipe | ours | tokens right, theirs | ours | steps | seconds |"
        ]
        lines += ["|---|---|---|---|---|---|---|---|"]
        for row in document["rows"]:
            if not row["is_full_size"]:
                cells = [row["setting"]]
                cells += [_bleu(row[key]) for key in ("published", THEIRS, OURS)]
                cells += [*_tokens_right(row), both(row, "steps", "d"), both(row, "seconds", ".0f")]
                lines.append(f"| {' | '.join(cells)} |")
        return lines

    def sections(self, document: Mapping[str, Any]) -> list[str]:
        rows = {row["setting"]: row for row in document["rows"]}
        lines = [
            "Tokens right: of the test, each after the right beginning, padding not counted. *Did not train*:"
            f" right less than {TRAINED:g} times as often as the commonest token comes.",
            "",
            *(["![Loss and BLEU against epochs](training.png)", ""] if document["plot"] else []),
            "## What was scaled",
            "",
            "| set | layers | heads | dropout | width, published | here | parameters here |",
            "|---|---|---|---|---|---|---|",
        ]
        for size in document["sizes"]:
            row = rows.get(size["setting"])
            cells = [size["setting"], size["layers"], size["heads"], size["dropout"]]
            cells += [
                size["published_width"],
                size["width"],
                f"{row['parameters']:,}" if row else "not run yet",
            ]
            lines.append(f"| {' | '.join(map(str, cells))} |")
        lines += ["", *self._full_size_section([row for row in rows.values() if row["is_full_size"]])]
        return [*lines, *(f"BLEU by sacreBLEU: `{signature}`." for signature in document["signatures"]), ""]

    def _full_size_section(self, rows: Sequence[Row]) -> list[str]:
        if not rows:
            return ["Nothing was run at its full size.", ""]
        lines = [
            "## Full size, learned by heart",
            "",
            "The four at their published depth, heads, width and dropout. Ten epochs of the whole set take"
            f" two cores more than a day, so these learn {PAIRS} sentences of the offline grammar, of at most"
            f" {WORDS_BY_HEART} words, and are measured on the same ones: can a model of this depth and width"
            f" learn at all? It can if {100 * FITS:.0f} % of the tokens are right.",
            "",
            "| set | parameters | tokens right, their recipe | ours | steps | seconds |",
            "|---|---|---|---|---|---|",
        ]
        for row in rows:
            cells = [row["setting"].partition(",")[0], f"{row['parameters']:,}", *_tokens_right(row)]
            cells += [both(row, "steps", "d"), both(row, "seconds", ".0f")]
            lines.append(f"| {' | '.join(cells)} |")
        return [*lines, ""]


def _bleu(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _tokens_right(row: Row) -> list[str]:
    """By their recipe, and by ours."""
    told = []
    for recipe in (THEIRS, OURS):
        values = row.get(f"{recipe}_accuracy", [])
        words = ", ".join(f"{100 * value:.1f} %" for value in values)
        has_failed = values and max(values) < TRAINED * row["commonest"]
        told.append(f"{words}, *did not train*" if has_failed else words)
    return told


def _complaint(rows: Sequence[Row]) -> str:
    """What ours must do at any size."""
    wanting = [
        row["setting"]
        for row in rows
        if row["is_full_size"] and min(row.get(f"{OURS}_accuracy", []), default=1.0) < FITS
    ]
    return f"ours did not learn by heart: {'; '.join(wanting)}" if wanting else ""


def _commonest(cell: Cell) -> float:
    """The share of the commonest token in the test's targets: what a model reaches that says it always."""
    config = cell.job.config
    task = RunFolder.open(cell.job.path).restore_task(config.task, config.seed)
    # Not the first of each: it is given, and begins every sentence.
    counts = Counter(itertools.chain.from_iterable(row[1:].tolist() for row in task.splits["test"].targets))
    return counts.most_common(1)[0][1] / counts.total()


def _sizes(setting: Setting, effort: Effort) -> dict[str, Any]:
    model = resolve(setting.what).dump()["model"]
    divisor = QUICK_WIDTH_DIVISOR if effort.is_quick else WIDTH_DIVISOR
    return {
        "setting": setting.name,
        "layers": model["num_layers"],
        "heads": model["num_heads"],
        "dropout": model["dropout"],
        "published_width": model["hidden_dim"],
        "width": model["hidden_dim"] // divisor,
    }


def _validations(cell: Cell) -> list[dict[str, float]]:
    events = (event for event in RunFolder(cell.job.path).events if event["event"] == "validation")
    found = {
        event["epoch"]: {name: event[name] for name in ("epoch", "step", "loss", "bleu")} for event in events
    }
    return [found[epoch] for epoch in sorted(found)]


def _line(row: Row, recipe: str, metric: str) -> charts.Line:
    runs = row[f"{recipe}_validations"]
    epochs = [point["epoch"] for point in max(runs, key=len)]
    return charts.Line(row["setting"], epochs, [[point[metric] for point in run] for run in runs])


def _write_short_pairs(folder: Path) -> None:
    for name in SPLITS.values():
        stem = folder / "short" / name
        if _is_written(stem):
            continue
        # Not splitlines(): it also splits at characters that stand within sentences.
        sides = [
            locate(f"{SET}/{name}.{language}").read_text(encoding="utf-8").removesuffix("\n").split("\n")
            for language in LANGUAGES
        ]
        _write_pairs(stem, (pair for pair in zip(*sides, strict=True) if _is_short(pair, MOST_WORDS)))


def _write_pairs_by_heart(folder: Path) -> None:
    stem = folder / BY_HEART / "pairs"
    if not _is_written(stem):
        # One in six is short enough.
        made = translation_pairs(40 * PAIRS, seed=0, split="train")
        short = (pair for pair in made if _is_short(pair, WORDS_BY_HEART))
        _write_pairs(stem, itertools.islice(short, PAIRS))


def _is_short(pair: Iterable[str], words: int) -> bool:
    return all(len(side.split()) <= words for side in pair)


def _is_written(stem: Path) -> bool:
    return all(stem.with_suffix(f".{language}").is_file() for language in LANGUAGES)


def _write_pairs(stem: Path, pairs: Iterable[Sequence[str]]) -> None:
    stem.parent.mkdir(parents=True, exist_ok=True)
    for language, lines in zip(LANGUAGES, zip(*pairs, strict=True), strict=True):
        replace_file(stem.with_suffix(f".{language}"), "".join(f"{line}\n" for line in lines).encode())


TRANSLATION_SETS = TranslationStudy(
    name="translation-sets",
    title="Translation: the four published sets, scaled down",
    metric="bleu",
    settings=[_setting(preset, published) for preset, published in PUBLISHED.items()],
    full_size=[_full_size(preset) for preset in PUBLISHED],
    about="TED talks, English to French. Kept as published: layers, heads, dropout and 10 epochs. Scaled:"
    f" the width is a quarter, and only pairs of at most {MOST_WORDS} words a side are used, in training and"
    " in test, so the BLEU is that of short sentences, learned from few of them, and is not to be compared"
    " with the published one; what can be compared is the order of the sets, and which of them train. Their"
    " recipe: norms after the sublayers, Adam at a constant 1e-3, no warm-up; the published rate is not"
    " known. Ours: norms before the sublayers, AdamW at 2e-3 (3e-4 at full size) with warm-up and cosine,"
    " smoothed labels. The quick version is half as wide again and learns the"
    f" {PAIRS} sentences by heart; nothing in it has the full size.",
    seeds=1,
)
