"""Four published translation models: trained at a quarter of their width, overfitted at full width."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassformer.data.catalogue import locate
from glassformer.datasets.grammar import translation_pairs
from glassformer.plotting.lines import Axis, Chart, Line, draw, mean_line, save
from glassformer.runs.experiment import resolve
from glassformer.runs.folder import RunFolder
from glassformer.storage.files import atomic_write
from glassformer.studies.recipes import OURS, THEIRS, RecipeRun, RecipeStudy, Setting, costs
from glassformer.studies.study import (
    Overrides,
    Row,
    StudyContext,
    load_definition,
    metric_on_test,
    table_head,
    table_row,
    texts_of,
)

DEFINITION = load_definition("translation_sets")
SPLITS = {"train": "train", "validation": "dev", "test": "test"}
LANGUAGES = ("en", "fr")
CURVE = ("epoch", "step", "loss", "bleu")
"""Keys of a validation event that are copied into a row of `results.json`."""
MAX_WORDS = 10
"""Maximum number of words per sentence. Longer pairs are removed, so that references are complete."""
WIDTH_DIVISOR, QUICK_WIDTH_DIVISOR = 4, 8
MEMORISED_PAIRS, MEMORISED_WORDS = 32, 6
MEMORISED = 0.95
"""Minimum share of correct tokens for sentence pairs to count as memorised."""
TRAINED = 2.0
"""Minimum ratio of a model's accuracy to the share of the most frequent token. Below, it did not train."""


def _narrowed(preset: str, divisor: int) -> dict[str, int]:
    model = resolve(preset).dump()["model"]
    return {f"model.{name}": model[name] // divisor for name in ("hidden_dim", "feed_forward_dim")}


def _files(stems: Mapping[str, str]) -> dict[str, list[str]]:
    return {split: [f"{stem}.{language}" for language in LANGUAGES] for split, stem in stems.items()}


SAME_PAIRS = _files(dict.fromkeys(SPLITS, "memorised/pairs"))
"""Data files by split for models that are trained and tested on the same sentence pairs."""


def _full_size(preset: str) -> Setting:
    overrides = {**DEFINITION["full_size"], "task.data": SAME_PAIRS}
    return Setting(f"{preset}, full size", None, preset, overrides, theirs=DEFINITION["theirs"])


def _setting(preset: str, published: float) -> Setting:
    files = _files({split: f"short/{name}" for split, name in SPLITS.items()})
    quick = {**DEFINITION["full_size"], **DEFINITION["quick"], **_narrowed(preset, QUICK_WIDTH_DIVISOR)}
    return Setting(
        name=preset,
        published=published,
        source=preset,
        overrides={**DEFINITION["scaled"], **_narrowed(preset, WIDTH_DIVISOR), "task.data": files},
        theirs=DEFINITION["theirs"],
        is_quick=True,
        quick={**quick, "task.data": SAME_PAIRS},
    )


@dataclass(frozen=True, kw_only=True)
class TranslationStudy(RecipeStudy):
    """Study of BLEU on four translation sets, with a test that full-size models can memorise."""

    full_size: Sequence[Setting] = ()
    """Further settings of the full version, in which full-size models memorise a few sentence pairs."""

    def selected(self, context: StudyContext) -> list[Setting]:
        """Return the settings (table rows) of the study. The full version also has the full-size models."""
        return [*super().selected(context), *([] if context.is_quick else self.full_size)]

    def runs(self, context: StudyContext) -> list[RecipeRun]:
        """Write the data files; return the runs to train. Full-size runs come first, as they are short."""
        _write_memorised_pairs(context.folder / "data")
        if not context.is_quick:
            _write_short_pairs(context.folder / "data")
        return sorted(super().runs(context), key=lambda run: run.setting not in self.full_size)

    def path_overrides(self, setting: Setting, context: StudyContext) -> Overrides:
        """Return config overrides that set `task.data` to the absolute paths of the study's data files."""
        folder = (context.folder / "data").resolve()
        files = SAME_PAIRS if context.is_quick else setting.overrides["task.data"]
        return {f"task.data.{split}": [str(folder / name) for name in pair] for split, pair in files.items()}

    def extra_results(
        self, runs: Sequence[RecipeRun], rows: list[Row], context: StudyContext
    ) -> dict[str, Any]:
        """Add accuracies and validation curves to `rows`; return plots, sizes and an error message."""
        signatures = {run.job.results()["protocol"]["test"]["signatures"]["bleu"]: None for run in runs}
        full_size = {setting.name for setting in self.full_size}
        for row in rows:
            row["is_full_size"] = row["setting"] in full_size
            of_setting = [run for run in runs if run.setting.name == row["setting"]]
            if of_setting:
                row["commonest"] = _most_frequent_share(of_setting[0])
            for recipe in (THEIRS, OURS):
                own = [run for run in of_setting if run.recipe == recipe]
                if own:
                    results = [run.job.results() for run in own]
                    row["parameters"] = results[0]["parameters"]
                    row[f"{recipe}_accuracy"] = [metric_on_test(result, "accuracy") for result in results]
                    row[f"{recipe}_validations"] = [
                        [{name: event[name] for name in CURVE} for event in run.job.validations()]
                        for run in own
                    ]
        return {
            "signatures": list(signatures),
            "sizes": [_sizes(setting, context) for setting in super().selected(context)],
            "plot": self._plot([row for row in rows if not row["is_full_size"]], context),
            "error": _failure(rows),
        }

    def _plot(self, rows: Sequence[Row], context: StudyContext) -> list[str]:
        charts = []
        for recipe, title in ((THEIRS, "their recipe"), (OURS, "ours: pre-norm, warm-up, cosine")):
            for metric, label in (("loss", "validation loss"), ("bleu", "validation BLEU")):
                lines = [_line(row, recipe, metric) for row in rows if f"{recipe}_validations" in row]
                if lines:
                    charts.append(Chart(title, lines, Axis("epoch", is_whole=True), Axis(label)))
        if not charts:
            return []
        runs = [row.get(f"{recipe}_validations", []) for row in rows for recipe in (THEIRS, OURS)]
        has_several = max(map(len, runs)) > 1
        caption = "Means over seeds; bands from the lowest to the highest." if has_several else "One seed."
        return save(draw(charts, self.title, caption, columns=2), context.folder / "training")

    def table(self, document: Mapping[str, Any]) -> list[str]:
        """Return the lines of the Markdown table with BLEU and accuracy of the scaled-down models."""
        heads = ("set", "BLEU, published", "their recipe", "ours", "tokens correct, theirs", "ours")
        lines = table_head(*heads, "steps", "seconds")
        for row in document["rows"]:
            if not row["is_full_size"]:
                values = [row[key] for key in ("published", THEIRS, OURS)]
                bleu = ["" if value is None else f"{value:.2f}" for value in values]
                lines.append(table_row([row["setting"], *bleu, *_tokens_correct(row), *costs(row)]))
        return lines

    def sections(self, document: Mapping[str, Any]) -> list[str]:
        """Return the lines of `table.md` with the curves, the model sizes and the full-size models."""
        rows = {row["setting"]: row for row in document["rows"]}
        lines = [
            "Tokens correct: share of test tokens, teacher-forced, without padding. *Did not train*:"
            f" correct less than {TRAINED:g} times as often as the most frequent token occurs.",
            "",
            *(["![Loss and BLEU against epochs](training.png)", ""] if document["plot"] else []),
            "## Scaling",
            "",
            *table_head("set", "layers", "heads", "dropout", "width, published", "here", "parameters here"),
        ]
        for size in document["sizes"]:
            row = rows.get(size["setting"])
            lines.append(table_row([*size.values(), f"{row['parameters']:,}" if row else "not run yet"]))
        lines += ["", *_full_size_section([row for row in rows.values() if row["is_full_size"]])]
        return [*lines, *(f"BLEU by sacreBLEU: `{signature}`." for signature in document["signatures"]), ""]


def _full_size_section(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return ["No model was run at its full size.", ""]
    lines = [
        "## Full size, memorised",
        "",
        "The four sets at their published depth, heads, width and dropout. Ten epochs of the whole set take"
        f" two cores more than a day. These models therefore memorise {MEMORISED_PAIRS} sentences of the"
        f" offline grammar, of at most {MEMORISED_WORDS} words, and are measured on the same ones: can a"
        " model of this depth and width learn at all? It can if"
        f" {100 * MEMORISED:.0f} % of the tokens are correct.",
        "",
        *table_head("set", "parameters", "tokens correct, their recipe", "ours", "steps", "seconds"),
    ]
    for row in rows:
        cells = [row["setting"].partition(",")[0], f"{row['parameters']:,}", *_tokens_correct(row)]
        lines.append(table_row([*cells, *costs(row)]))
    return [*lines, ""]


def _tokens_correct(row: Row) -> list[str]:
    """Return two table cells with the shares of correct tokens, for the published recipe and for ours."""
    cells = []
    for recipe in (THEIRS, OURS):
        values = row.get(f"{recipe}_accuracy", [])
        shares = ", ".join(f"{100 * value:.1f} %" for value in values)
        has_failed = values and max(values) < TRAINED * row["commonest"]
        cells.append(f"{shares}, *did not train*" if has_failed else shares)
    return cells


def _failure(rows: Sequence[Row]) -> str:
    """Return an error message if a full-size model with our recipe fails to memorise its few training pairs.

    Return an empty text if all memorise them.
    """
    failed = [
        row["setting"]
        for row in rows
        if row["is_full_size"] and min(row.get(f"{OURS}_accuracy", []), default=1.0) < MEMORISED
    ]
    return f"our recipe did not memorise the pairs: {'; '.join(failed)}" if failed else ""


def _most_frequent_share(run: RecipeRun) -> float:
    """Return the share of the most frequent test token, the accuracy of a constant prediction."""
    config = run.job.config
    task = RunFolder.open(run.job.path).restore_task(config.task, config.seed)
    # Without the first token, which is given and begins every sentence.
    counts = Counter(itertools.chain.from_iterable(row[1:].tolist() for row in task.splits["test"].targets))
    return counts.most_common(1)[0][1] / counts.total()


def _sizes(setting: Setting, context: StudyContext) -> dict[str, Any]:
    model = resolve(setting.source).dump()["model"]
    divisor = QUICK_WIDTH_DIVISOR if context.is_quick else WIDTH_DIVISOR
    return {
        "setting": setting.name,
        "layers": model["num_layers"],
        "heads": model["num_heads"],
        "dropout": model["dropout"],
        "published_width": model["hidden_dim"],
        "width": model["hidden_dim"] // divisor,
    }


def _line(row: Row, recipe: str, metric: str) -> Line:
    runs = row[f"{recipe}_validations"]
    epochs = [point["epoch"] for point in max(runs, key=len)]
    return mean_line(row["setting"], epochs, [[point[metric] for point in run] for run in runs])


def _write_short_pairs(folder: Path) -> None:
    for name in SPLITS.values():
        stem = folder / "short" / name
        if _is_written(stem):
            continue
        # Not splitlines(): it also splits at characters inside sentences.
        sides = [
            locate(f"ted_enfr/{name}.{language}").read_text(encoding="utf-8").removesuffix("\n").split("\n")
            for language in LANGUAGES
        ]
        _write_pairs(stem, (pair for pair in zip(*sides, strict=True) if _is_short(pair, MAX_WORDS)))


def _write_memorised_pairs(folder: Path) -> None:
    stem = folder / "memorised" / "pairs"
    if not _is_written(stem):
        # One in six pairs is short enough.
        pairs = translation_pairs(40 * MEMORISED_PAIRS, seed=0, split="train")
        short = (pair for pair in pairs if _is_short(pair, MEMORISED_WORDS))
        _write_pairs(stem, itertools.islice(short, MEMORISED_PAIRS))


def _is_short(pair: Iterable[str], words: int) -> bool:
    return all(len(side.split()) <= words for side in pair)


def _is_written(stem: Path) -> bool:
    return all(stem.with_suffix(f".{language}").is_file() for language in LANGUAGES)


def _write_pairs(stem: Path, pairs: Iterable[Sequence[str]]) -> None:
    stem.parent.mkdir(parents=True, exist_ok=True)
    for language, lines in zip(LANGUAGES, zip(*pairs, strict=True), strict=True):
        atomic_write(stem.with_suffix(f".{language}"), "".join(f"{line}\n" for line in lines).encode())


TRANSLATION_SETS = TranslationStudy(
    **texts_of(DEFINITION),
    settings=[_setting(preset, published) for preset, published in DEFINITION["published"].items()],
    full_size=[_full_size(preset) for preset in DEFINITION["published"]],
    seeds=1,
)
