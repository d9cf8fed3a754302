"""The four published sets of translation, scaled to two cores: loss, BLEU, and what was scaled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassformer.data.catalogue import locate
from glassformer.experiment import resolve
from glassformer.reproduce import charts
from glassformer.reproduce.recipes import OURS, THEIRS, Cell, Overrides, Row, Setting, Study
from glassformer.reproduce.study import Effort
from glassformer.runs import RunFolder
from glassformer.training.files import replace_file

PUBLISHED = {"ted-set-1": 37.45, "ted-set-2": 37.96, "ted-set-3": 38.54, "ted-set-4": 31.54}
"""BLEU, by preset; published as fractions of 1."""

SET = "ted_enfr"
SPLITS = {"train": "train", "validation": "dev", "test": "test"}
LANGUAGES = ("en", "fr")
MOST_WORDS = 10
"""Longer pairs are left out of all three splits, so that references are whole."""

WIDTH_DIVISOR, QUICK_WIDTH_DIVISOR = 8, 16
VOCABULARY, QUICK_VOCABULARY = 4000, 1000

SCALED = {
    "task.tokenizer": {"kind": "bpe", "vocabulary_size": VOCABULARY},
    "task.max_length": 40,
    "training.batch_tokens": 2048,
    "training.max_epochs": 10,
    "training.optimizer": {"kind": "adamw", "learning_rate": 3e-3, "beta2": 0.98, "weight_decay": 0.01},
    "training.schedule": {"kind": "warmup-cosine", "warmup_steps": 100},
    "training.validation_examples": 200,
}
"""A narrow model takes a higher rate than the preset's wide one."""

RECIPE = {
    "model.norm_placement": "post",
    "training.optimizer": {"kind": "adam", "learning_rate": 1e-3},
    "training.schedule": {"kind": "constant", "warmup_steps": 0},
    "training.clip_norm": None,
    "training.label_smoothing": 0.0,
    "training.divergence.spike_factor": None,
}
"""Theirs: norms after the sublayers, and a rate that is constant from the first step."""

GRAMMAR = {
    "task.data": None,
    "task.examples": 2500,
    "task.tokenizer.vocabulary_size": QUICK_VOCABULARY,
    "training.batch_tokens": 1024,
    "training.max_epochs": 2,
    "training.schedule.warmup_steps": 20,
    "training.validation_examples": 50,
    "evaluation.max_examples": 100,
}
"""The quick version needs no files: sentences of the offline grammar."""


def _narrowed(preset: str, divisor: int) -> dict[str, int]:
    model = resolve(preset).dump()["model"]
    return {f"model.{name}": model[name] // divisor for name in ("hidden_dim", "feed_forward_dim")}


def _setting(preset: str, published: float) -> Setting:
    files = {split: [f"short/{name}.{language}" for language in LANGUAGES] for split, name in SPLITS.items()}
    return Setting(
        name=preset,
        published=published,
        what=preset,
        overrides={**SCALED, **_narrowed(preset, WIDTH_DIVISOR), "task.data": files},
        theirs=RECIPE,
        is_quick=True,
        quick={**GRAMMAR, **_narrowed(preset, QUICK_WIDTH_DIVISOR)},
    )


@dataclass(frozen=True)
class TranslationStudy(Study):
    def cells(self, effort: Effort) -> list[Cell]:
        if not effort.is_quick:
            _write_short_pairs(effort.folder / "data")
        return super().cells(effort)

    def places(self, setting: Setting, effort: Effort) -> Overrides:
        if effort.is_quick:
            return {}
        folder = (effort.folder / "data").resolve()
        files = setting.overrides["task.data"]
        return {f"task.data.{split}": [str(folder / name) for name in pair] for split, pair in files.items()}

    def more(self, cells: Sequence[Cell], rows: list[Row], effort: Effort) -> dict[str, Any]:
        signatures = {cell.job.results()["protocol"]["test"]["signatures"]["bleu"]: None for cell in cells}
        for row in rows:
            own = [cell for cell in cells if cell.setting.name == row["setting"]]
            for recipe in (THEIRS, OURS):
                runs = [cell for cell in own if cell.recipe == recipe]
                if runs:
                    row["parameters"] = runs[0].job.results()["parameters"]
                    row[f"{recipe}_validations"] = [_validations(cell) for cell in runs]
        return {
            "signatures": list(signatures),
            "sizes": [_sizes(setting, effort) for setting in self.chosen(effort)],
            "plot": self._plot(rows, effort) if rows else [],
        }

    def _plot(self, rows: Sequence[Row], effort: Effort) -> list[str]:
        panels = []
        for recipe, title in ((THEIRS, "their recipe"), (OURS, "ours: pre-norm, warm-up, cosine")):
            for metric, label in (("loss", "validation loss"), ("bleu", "validation BLEU")):
                lines = [_line(row, recipe, metric) for row in rows if f"{recipe}_validations" in row]
                if lines:
                    panels.append(charts.Panel(title, lines, "epoch", label, is_whole=True))
        caption = "Means over seeds; bands from the lowest to the highest."
        return charts.write(charts.draw(panels, self.title, caption, columns=2), effort.folder / "training")

    def sections(self, document: Mapping[str, Any]) -> list[str]:
        lines = ["## What was scaled", ""]
        lines += ["| set | layers | heads | dropout | width, published | here | parameters here |"]
        lines += ["|---|---|---|---|---|---|---|"]
        parameters = {row["setting"]: row["parameters"] for row in document["rows"]}
        for size in document["sizes"]:
            cells = [size["setting"], size["layers"], size["heads"], size["dropout"]]
            cells += [size["published_width"], size["width"], f"{parameters.get(size['setting']) or 0:,}"]
            lines.append(f"| {' | '.join(map(str, cells))} |")
        lines += ["", "Nothing was run at its full size.", ""]
        lines += [f"BLEU by sacreBLEU: `{signature}`." for signature in document["signatures"]]
        return [*lines, "", "![Loss and BLEU against epochs](training.png)", ""]


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
    """What is there is kept."""
    for name in SPLITS.values():
        targets = [folder / "short" / f"{name}.{language}" for language in LANGUAGES]
        if all(target.is_file() for target in targets):
            continue
        # Not splitlines(): it also splits at characters that stand within sentences.
        sides = [
            locate(f"{SET}/{name}.{language}").read_text(encoding="utf-8").removesuffix("\n").split("\n")
            for language in LANGUAGES
        ]
        kept = [
            pair for pair in zip(*sides, strict=True) if all(len(side.split()) <= MOST_WORDS for side in pair)
        ]
        for number, target in enumerate(targets):
            target.parent.mkdir(parents=True, exist_ok=True)
            replace_file(target, "".join(f"{pair[number]}\n" for pair in kept).encode())


TRANSLATION_SETS = TranslationStudy(
    name="translation-sets",
    title="Translation: the four published sets, scaled down",
    metric="bleu",
    settings=[_setting(preset, published) for preset, published in PUBLISHED.items()],
    about="TED talks, English to French. Kept as published: layers, heads, dropout and 10 epochs. Scaled:"
    " the width is an eighth, and only pairs of at most 10 words a side are used, in training and in test,"
    " so the BLEU is that of short sentences and is not to be compared with the published one; what can be"
    " compared is the order of the sets. Their recipe: norms after the sublayers, Adam at a constant 1e-3,"
    " no warm-up; the published rate is not known. Ours: norms before the sublayers, AdamW at 3e-3 with"
    " warm-up and cosine, smoothed labels. The quick version is half as wide again and translates"
    " sentences of the offline grammar.",
    seeds=1,
)
