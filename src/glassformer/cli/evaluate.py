"""`glassformer evaluate RUN [--split test] [--hypotheses FILE]`"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from glassformer.cli.output import Output
from glassformer.cli.what import add_plugin, open_run
from glassformer.core.errors import shorten, user_error

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table

SECONDS_BEFORE_PROGRESS = 2.0
SECONDS_BETWEEN_LINES = 10.0
MOST_CLASSES_IN_A_TABLE = 12
MOST_CONFUSIONS = 10
MOST_CHARACTERS = 240


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's folder")
    parser.add_argument("overrides", metavar="PATH=VALUE", nargs="*", help="evaluation.decoding.kind=beam …")
    parser.add_argument("--split", help="train, validation or test (default: test, if there is one)")
    parser.add_argument("--checkpoint", default="best", help="best, latest or a step (default: best)")
    parser.add_argument(
        "--hypotheses", metavar="FILE", help="write the model's answers, a line each, in the data's order"
    )
    parser.add_argument(
        "--samples",
        type=int,
        default=3,
        metavar="N",
        help="best, typical and worst translations (default: 3)",
    )
    add_plugin(parser)


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    from glassformer.core.config import parse_overrides

    overrides = parse_overrides(arguments.overrides)
    other = [path for path, value in overrides.items() if path != "evaluation" or not isinstance(value, dict)]
    if other:
        raise user_error(
            "only evaluation.* can change after training",
            path=other[0],
            hint="evaluation.decoding.kind=beam",
        )
    if arguments.samples < 0:
        raise user_error(
            "0 or more belongs here", path="--samples", value=arguments.samples, hint="--samples 3"
        )
    with Waiting() as waiting:
        result = open_run(arguments).evaluate(
            arguments.split,
            overrides.get("evaluation", {}),
            hypotheses=arguments.hypotheses,
            samples=arguments.samples,
            progress=waiting.tell,
        )
    _show(arguments.run, result, output)
    if arguments.hypotheses:
        result["hypotheses"] = arguments.hypotheses
        output.say(f"wrote {arguments.hypotheses}")
    return result


class Waiting:
    """How far it is, on standard error, for what takes more than a moment: a bar, or a line now and then."""

    def __init__(self) -> None:
        self.started = self.last_line = time.monotonic()
        self.progress: Progress | None = None

    def __enter__(self) -> Waiting:
        return self

    def __exit__(self, *error: object) -> None:
        if self.progress is not None:
            self.progress.stop()

    def tell(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self.started < SECONDS_BEFORE_PROGRESS:
            return
        if sys.stderr.isatty():
            self._draw(what, done, total)
        elif now - self.last_line >= SECONDS_BETWEEN_LINES:
            self.last_line = now
            print(f"{what} {done}/{total}", file=sys.stderr, flush=True)

    def _draw(self, what: str, done: int, total: int) -> None:
        from rich.console import Console
        from rich.progress import Progress

        if self.progress is None:
            self.progress = Progress(console=Console(stderr=True), transient=True)
            self.progress.start()
        for bar in self.progress.tasks:
            if bar.description == what:
                self.progress.update(bar.id, completed=done, total=total)
                return
        self.progress.add_task(what, total=total, completed=done)


def _show(run: str, result: dict[str, Any], output: Output) -> None:
    from rich.table import Table

    details = result["details"]
    table = Table(
        "metric", "value", "95 % interval", title=f"{run}, {result['split']}, {result['examples']:,} examples"
    )
    for name, value in result["metrics"].items():
        low_high = result["intervals"].get(name)
        table.add_row(
            name, f"{value:.6g}", "" if low_high is None else f"{low_high[0]:.5g} – {low_high[1]:.5g}"
        )
    output.show(table)
    for warning in result["warnings"]:
        output.say(warning, style="bold red")
    for signature in result["protocol"].get("signatures", {}).values():
        output.say(signature)
    if "per_class" in details:
        output.show(_confusion_table(details), _calibration_table(details["calibration"]))
    for which, sentences in details.get("sentences", {}).items():
        for sentence in sentences:
            scores = f"BLEU {sentence['bleu']:.1f}, chrF {sentence['chrf']:.1f}"
            output.say(f"\n{which}: {_short(sentence['place'])}, {scores}")
            for part in ("source", "reference", "hypothesis"):
                output.say(f"  {part:<11} {shorten(sentence[part], MOST_CHARACTERS)}")


def _short(place: str) -> str:
    """Without the folder in which a set was looked for."""
    from pathlib import Path

    from glassformer.data.catalogue import search_folders

    for folder in search_folders():
        if folder != Path():
            place = place.replace(f"{folder}/", "")
    return place


def _confusion_table(details: dict[str, Any]) -> Table:
    """All of it where there are few classes; the commonest confusions where there are many."""
    from rich.table import Table

    names = [shorten(name, 16) for name in details["classes"]]
    if len(names) <= MOST_CLASSES_IN_A_TABLE:
        table = Table("actual", title="taken for …", title_justify="left")
        for heading in [*names, "precision", "recall", "F1"]:
            table.add_column(heading, justify="right")
        for name, row, scores in zip(names, details["confusion"], details["per_class"], strict=True):
            numbers = [_share(scores[score]) for score in ("precision", "recall", "f1")]
            table.add_row(name, *(f"{count:,}" for count in row), *numbers)
        return table
    table = Table("actual", "taken for", "times", title="commonest confusions", title_justify="left")
    wrong = [
        (count, actual, predicted)
        for actual, row in enumerate(details.get("confusion", []))
        for predicted, count in enumerate(row)
        if count and actual != predicted
    ]
    for count, actual, predicted in sorted(wrong, reverse=True)[:MOST_CONFUSIONS]:
        table.add_row(names[actual], names[predicted], f"{count:,}")
    return table


def _calibration_table(calibration: dict[str, Any]) -> Table:
    from rich.table import Table

    table = Table(
        title=f"calibration: mean confidence {calibration['mean_confidence']:.3f}", title_justify="left"
    )
    for heading in ("confidence", "mean", "accuracy", "examples"):
        table.add_column(heading, justify="right")
    for place in calibration["bins"]:
        if place["examples"]:
            span = f"{place['from']:.1f} – {place['to']:.1f}"
            table.add_row(
                span, _share(place["confidence"]), _share(place["accuracy"]), f"{place['examples']:,}"
            )
    return table


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
