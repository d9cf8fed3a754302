"""`glassformer evaluate RUN [--split test] [--hypotheses FILE]`"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from glassformer.cli.arguments import add_run, add_split, open_run
from glassformer.cli.output import DelayedProgress, Output
from glassformer.core.errors import shorten, user_error

if TYPE_CHECKING:
    from rich.table import Table

MOST_CLASSES_IN_A_TABLE = 12
MOST_CONFUSIONS = 10
MOST_CHARACTERS = 240


def configure(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "overrides",
        metavar="PATH=VALUE",
        nargs="*",
        help="evaluation options to change: evaluation.decoding.kind=beam",
    )
    add_split(parser)
    parser.add_argument(
        "--hypotheses", metavar="FILE", help="write the model's outputs, one line per example, in data order"
    )
    parser.add_argument(
        "--samples", type=int, default=3, help="number of best, typical and worst translations to print"
    )


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
        raise user_error("must be at least 0", path="--samples", value=arguments.samples, hint="--samples 3")
    with DelayedProgress("measuring") as progress:
        result = open_run(arguments).evaluate(
            arguments.split,
            overrides.get("evaluation", {}),
            hypotheses=arguments.hypotheses,
            samples=arguments.samples,
            progress=progress,
        )
    _show(arguments.run, result, output)
    if arguments.hypotheses:
        result["hypotheses"] = arguments.hypotheses
        output.print(f"wrote {arguments.hypotheses}")
    return result


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
        output.print(warning, style="bold red")
    for signature in result["protocol"].get("signatures", {}).values():
        output.print(signature)
    if "per_class" in details:
        output.show(_confusion_table(details), _calibration_table(details["calibration"]))
    for which, sentences in details.get("sentences", {}).items():
        for sentence in sentences:
            scores = f"BLEU {sentence['bleu']:.1f}, chrF {sentence['chrf']:.1f}"
            output.print(f"\n{which}: {_short(sentence['location'])}, {scores}")
            for part in ("source", "reference", "hypothesis"):
                output.print(f"  {part:<11} {shorten(sentence[part], MOST_CHARACTERS)}")


def _short(location: str) -> str:
    """Remove the data folder from a location such as `/data/multi30k/test.en, line 3`."""
    from pathlib import Path

    from glassformer.data.catalogue import search_folders

    for folder in search_folders():
        if folder != Path():
            location = location.replace(f"{folder}/", "")
    return location


def _confusion_table(details: dict[str, Any]) -> Table:
    """Show the whole matrix for few classes, and the commonest confusions for many."""
    from rich.table import Table

    names = [shorten(name, 16) for name in details["classes"]]
    if len(names) <= MOST_CLASSES_IN_A_TABLE:
        table = Table("actual", title="predicted as …", title_justify="left")
        for heading in [*names, "precision", "recall", "F1"]:
            table.add_column(heading, justify="right")
        for name, row, scores in zip(names, details["confusion"], details["per_class"], strict=True):
            numbers = [_share(scores[score]) for score in ("precision", "recall", "f1")]
            table.add_row(name, *(f"{count:,}" for count in row), *numbers)
        return table
    table = Table("actual", "predicted", "times", title="commonest confusions", title_justify="left")
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
    for each in calibration["bins"]:
        if each["examples"]:
            span = f"{each['from']:.1f} – {each['to']:.1f}"
            table.add_row(span, _share(each["confidence"]), _share(each["accuracy"]), f"{each['examples']:,}")
    return table


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
