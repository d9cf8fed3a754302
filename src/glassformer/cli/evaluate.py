"""`glassformer evaluate RUN [--split test]`: measure a trained model on one split of the data."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from glassformer.cli.arguments import add_run, add_split, check_minimum, open_run
from glassformer.cli.output import DelayedProgress, Output, three_decimals
from glassformer.core.errors import shorten, user_error

if TYPE_CHECKING:
    from rich.table import Table

MOST_CLASSES_IN_A_TABLE = 12
MOST_CONFUSIONS = 10
MOST_CHARACTERS = 240

EXAMPLES = (
    "glassformer evaluate runs/reversal-1",
    "glassformer evaluate runs/translation-1 --split validation evaluation.decoding.kind=beam",
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_split(parser)
    add = parser.add_argument
    override_help = "evaluation options to change, such as evaluation.decoding.kind=beam"
    add("overrides", metavar="PATH=VALUE", nargs="*", help=override_help)
    add("--hypotheses", metavar="FILE", help="write the model's outputs to FILE, one line per example")
    add("--samples", type=int, default=3, help="print N of the best, typical and worst translations each")


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    from glassformer.core.config import parse_overrides

    overrides = parse_overrides(arguments.overrides)
    other = [path for path, value in overrides.items() if path != "evaluation" or not isinstance(value, dict)]
    if other:
        raise user_error(
            "only options below evaluation can be changed after training",
            path=other[0],
            hint="change an option such as evaluation.decoding.kind=beam",
        )
    check_minimum(arguments, samples=0)
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

    from glassformer.evaluation.metrics import EXPLANATIONS

    details = result["details"]
    table = Table(
        "metric",
        "value",
        "95 % confidence interval",
        title=f"{run}, {result['split']}, {result['examples']:,} examples",
    )
    for name, value in result["metrics"].items():
        low_high = result["intervals"].get(name)
        table.add_row(
            name, f"{value:.6g}", "" if low_high is None else f"{low_high[0]:.5g} – {low_high[1]:.5g}"
        )
    output.show(table)
    output.explain(result["metrics"], EXPLANATIONS)
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
    """Return the confusion matrix if there are few classes, otherwise a table of the commonest errors."""
    from rich.table import Table

    names = [shorten(name, 16) for name in details["classes"]]
    if len(names) <= MOST_CLASSES_IN_A_TABLE:
        table = Table("actual", title="predicted as …", title_justify="left")
        for heading in [*names, "precision", "recall", "F1"]:
            table.add_column(heading, justify="right")
        for name, row, scores in zip(names, details["confusion"], details["per_class"], strict=True):
            numbers = [three_decimals(scores[score]) for score in ("precision", "recall", "f1")]
            table.add_row(name, *(f"{count:,}" for count in row), *numbers)
        return table
    table = Table("actual", "predicted", "times", title="most common confusions", title_justify="left")
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
            table.add_row(
                span,
                three_decimals(each["confidence"]),
                three_decimals(each["accuracy"]),
                f"{each['examples']:,}",
            )
    return table
