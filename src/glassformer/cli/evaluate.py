"""`glassformer evaluate RUN [--split test | --file new.csv]`: measure a model on a split or on new data."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from glassformer.cli.arguments import add_run, add_split, check_minimum, open_run
from glassformer.cli.output import DelayedProgress, Output, three_decimals
from glassformer.core.errors import shorten, user_error

if TYPE_CHECKING:
    from rich.table import Table

MOST_CLASSES_IN_A_TABLE = 12
MOST_LABELS_IN_A_TABLE = 30
MOST_CONFUSIONS = 10
MOST_CHARACTERS = 240

FORMATS = ("csv", "csv-comma", "csv-semicolon", "tsv", "jsonl", "json", "text", "running-text", "folder")

EXAMPLES = (
    "glassformer evaluate runs/reversal-1",
    "glassformer evaluate runs/classification-1 --file new.csv",
    "glassformer evaluate runs/translation-1 --split validation evaluation.decoding.kind=beam",
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_split(parser)
    add = parser.add_argument
    override_help = "evaluation options to change, such as evaluation.decoding.kind=beam"
    add("overrides", metavar="PATH=VALUE", nargs="*", help=override_help)
    file_help = "measure on the labelled examples of FILE, in any format that training reads, such as new.csv"
    add("--file", metavar="FILE", help=f"{file_help}; aligned files: '[new.en, new.fr]'")
    columns_help = "columns of --file, such as '{input: text, target: label}' (default: as in training)"
    add("--columns", metavar="COLUMNS", help=columns_help)
    add("--format", choices=FORMATS, help="format of --file (default: by its ending)")
    add("--header", choices=("true", "false"), help="true if the first line of --file names its columns")
    add("--encoding", metavar="NAME", help="encoding of --file (default: as in training)")
    add("--hypotheses", metavar="FILE", help="write the model's outputs to FILE, one line per example")
    add("--samples", type=int, default=3, help="print N of the best, typical and worst translations each")


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    from glassformer.core.config import parse_overrides
    from glassformer.runs.ending import selection_note

    overrides = parse_overrides(arguments.overrides)
    other = [path for path, value in overrides.items() if path != "evaluation" or not isinstance(value, dict)]
    if other:
        raise user_error(
            "only options below evaluation can be changed after training",
            path=other[0],
            hint=_new_data_hint(arguments.run, overrides)
            or "change an option such as evaluation.decoding.kind=beam",
        )
    check_minimum(arguments, samples=0)
    reading = _reading(arguments)
    with DelayedProgress("measuring") as progress:
        # The results have the warning that a training was stopped before its end.
        model = open_run(arguments, reports_unfinished=False)
        result = model.evaluate(
            arguments.split,
            overrides.get("evaluation", {}),
            **reading,
            hypotheses=arguments.hypotheses,
            samples=arguments.samples,
            progress=progress,
        )
    if result["split"] == "validation" and arguments.file is None and arguments.checkpoint == "best":
        note = selection_note(model.folder.results(), has_test="test" in model.task.splits)
        result |= {"notes": [note]} if note else {}
    _show(arguments.run, result, output)
    if arguments.hypotheses:
        result["hypotheses"] = arguments.hypotheses
        output.print(f"wrote {arguments.hypotheses}")
    return result


def _new_data_hint(run: str, overrides: Mapping[str, Any]) -> str | None:
    """Return the command that evaluates on the files of `task.data`, if these are to be changed."""
    from glassformer.runs.commands import command

    task = overrides.get("task")
    data = task.get("data") if isinstance(task, Mapping) else None
    files = [data[split] for split in ("test", "validation", "train") if data.get(split)] if data else []
    if not files:
        return None
    file = files[0] if isinstance(files[0], str) else f"[{', '.join(map(str, files[0]))}]"
    return f"to measure on new labelled data: {command('evaluate', run, '--file', file)}"


def _reading(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options for reading --file. Raise UserError if one is given without --file."""
    options = ("columns", "format", "header", "encoding")
    given = [f"--{name}" for name in options if getattr(arguments, name) is not None]
    if arguments.file is None and given:
        raise user_error("this option needs --file", path=given[0], hint="evaluate RUN --file new.csv")
    if arguments.file is not None and arguments.split is not None:
        raise user_error("cannot be combined with --file", path="--split", hint="leave one out")
    return {
        "file": _parse_file(arguments.file),
        "columns": _parse_columns(arguments.columns),
        "format": arguments.format,
        "header": None if arguments.header is None else arguments.header == "true",
        "encoding": arguments.encoding,
    }


def _parse_file(text: str | None) -> str | list[str] | None:
    """Parse the path of a file, or a list of line-aligned files as in `task.data.train`."""
    from glassformer.core.config import parse_overrides

    if text is None or not text.startswith("["):
        return text
    return [str(path) for path in parse_overrides([f"file={text}"])["file"]]


def _parse_columns(text: str | None) -> Any:
    """Parse `{input: text, target: label}` or `target=label`."""
    from glassformer.core.config import parse_overrides

    if text is None:
        return None
    given = f"columns={text}" if text.startswith("{") else text
    found = parse_overrides([given]) if "=" in given else {}
    columns = found.get("columns", found)
    if not isinstance(columns, dict) or not columns:
        example = "--columns '{input: text, target: label}'"
        message = "expected the columns of input and target"
        raise user_error(message, path="--columns", value=text, hint=example)
    return columns


def _show(run: str, result: dict[str, Any], output: Output) -> None:
    from rich.table import Table

    from glassformer.evaluation.intervals import PROTOCOL
    from glassformer.evaluation.metrics import EXPLANATIONS
    from glassformer.runs.ending import describe_baselines

    details = result["details"]
    table = Table(
        "metric",
        "value",
        "95 % confidence interval",
        title=f"{run}, {result.get('data', result['split'])}, {result['examples']:,} examples",
    )
    for note in result.get("notes", []):
        output.print(note)
    for name, value in result["metrics"].items():
        low_high = result["intervals"].get(name)
        table.add_row(
            name, f"{value:.6g}", "" if low_high is None else f"{low_high[0]:.5g} – {low_high[1]:.5g}"
        )
    output.show(table)
    output.explain(result["metrics"], EXPLANATIONS)
    output.print(f"confidence intervals: {PROTOCOL}", style="dim")
    for warning in result["warnings"]:
        output.print(warning, style="bold red")
    if result.get("baselines"):
        output.print(f"for comparison, {describe_baselines(result['baselines'])}")
    for signature in result["protocol"].get("signatures", {}).values():
        output.print(signature)
    if "per_class" in details:
        output.show(*_class_tables(details))
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


def _class_tables(details: dict[str, Any]) -> list[Table]:
    """Return the tables on classes: confusions and calibration, or F1 by label for one label per token."""
    from rich.table import Table

    if "calibration" in details:
        return [_confusion_table(details), _calibration_table(details["calibration"])]
    title = f"labels of tokens, macro F1 {details['macro_f1']:.3f}"
    table = Table("label", "precision", "recall", "F1", "tokens", title=title, title_justify="left")
    for scores in details["per_class"][:MOST_LABELS_IN_A_TABLE]:
        numbers = [three_decimals(scores[score]) for score in ("precision", "recall", "f1")]
        table.add_row(shorten(scores["class"], 16), *numbers, f"{scores['examples']:,}")
    if len(details["per_class"]) > MOST_LABELS_IN_A_TABLE:
        table.add_row("…", *[""] * 3, f"{len(details['per_class']):,} labels")
    return [table]


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
