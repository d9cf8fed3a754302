"""`glassformer predict RUN [INPUT ...]`: print one prediction, or a one-line error, per input or file row."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from glassformer.cli.arguments import add_run, add_weights, open_run
from glassformer.cli.output import DelayedProgress, Output, json_line
from glassformer.core.errors import UserError, shorten, user_error

if TYPE_CHECKING:
    from io import BufferedReader

    from glassformer.runs.predict_file import FileSummary
    from glassformer.runs.run import Run

GROUP_LINES = 2048
"""Maximum number of inputs passed to the model at once. The model batches inputs of similar length."""
READ_BYTES = 1 << 16
STEPS_ON_A_LINE = 12
MOST_WORDS_SHOWN = 30
BAR_WIDTH = 24
WORD_WIDTH = 24
MOST_DETAILED = 5
"""Maximum number of inputs that are shown with all details. Each of more inputs takes one line."""
COMPACT_WIDTH = 100
ERRORS_SHOWN = 3
CONFIG_OPTION = re.compile(r"task\.data\.(encoding|columns|header|format)=")
"""Pattern of config options in hints that are options of this command."""

EXAMPLES = (
    'glassformer predict runs/arithmetic-1 "4 + -11" "3 - 8"',
    "glassformer predict runs/classification-1 --file in.csv --out out.csv",
    "glassformer predict runs/classification-1 --file in.csv --columns input=[title,body] --out out.csv",
    "glassformer predict runs/classification-1 - < texts.txt",
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add = parser.add_argument
    input_help = 'inputs for the model; "-" or no INPUT reads one input per line from standard input'
    add("inputs", metavar="INPUT", nargs="*", help=input_help)
    add(
        "--file",
        type=Path,
        metavar="FILE",
        help="predict each row of FILE: .csv, .tsv, .jsonl, .json, or one text per line",
    )
    out_help = "write the rows of --file with their predictions to OUT: .csv, .tsv or .jsonl"
    add("--out", type=Path, metavar="OUT", help=out_help)
    columns_help = (
        "column of --file with the input: input=text, or input=1 counted from 0; input=[title,body] joins"
        " several (default: as in training)"
    )
    add("--columns", metavar="input=NAME", help=columns_help)
    formats = ("csv", "csv-comma", "csv-semicolon", "tsv", "jsonl", "json", "text")
    add("--format", choices=formats, help="format of --file (default: by its ending)")
    add("--header", choices=("true", "false"), help="true if the first line of --file names its columns")
    add("--encoding", metavar="NAME", help="encoding of --file (default: as in training)")
    add("--probabilities", action="store_true", help="with --out: also write the probability of each class")
    add("--prefix", default="", metavar="TEXT", help="with --out: text before the names of added columns")
    add("--keep-going", action="store_true", help="exit with 0 even if some inputs have no prediction")
    add("--beam", type=int, help="decode by beam search with N beams, and print all N outputs")
    add(
        "--engine",
        metavar="NAME",
        help="engine that decodes: glassformer or ctranslate2 (default: the run's)",
    )
    add_weights(parser)
    steps_help = "print each output token with its probability, of which p is the product, on its own line"
    add("--steps", action="store_true", help=steps_help)
    add(
        "--why",
        action="store_true",
        help="show how the prediction changes if a word is left out, for each word",
    )


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    _check(arguments)
    model = open_run(arguments, arguments.engine, arguments.weights)
    if not model.folder.environment().get("imported", {}).get("has_head", True):
        print(
            "WARNING: this imported model has no output head: its predictions mean nothing", file=sys.stderr
        )
    if arguments.out is not None:
        with _own_options(arguments.columns):
            return _write_file(model, arguments, output)
    with _own_options(arguments.columns), _Report(arguments, output, model) as report:
        try:
            if arguments.file is None:
                _predict_inputs(model, arguments, report)
            else:
                _predict_file(model, arguments, report)
        except KeyboardInterrupt as stop:
            stop.add_note(f"stopped after {report.summary.rows:,} inputs")
            return {"run": str(arguments.run), "predictions": []} | _stopped(stop, output)
        report.finish()
    return {}


def _check(arguments: argparse.Namespace) -> None:
    """Raise UserError if options contradict each other, or if an INPUT is the name of a file."""
    for_file = ("out", "columns", "format", "header", "encoding")
    given = [f"--{name}" for name in for_file if getattr(arguments, name) is not None]
    if arguments.file is None and given:
        raise user_error("this option needs --file", path=given[0], hint="predict RUN --file in.csv")
    if arguments.out is None and (arguments.probabilities or arguments.prefix):
        option = "--probabilities" if arguments.probabilities else "--prefix"
        raise user_error(
            "this option needs --out", path=option, hint="predict RUN --file in.csv --out out.csv"
        )
    if arguments.file is None:
        _reject_file_names(arguments)
        return
    if arguments.inputs:
        raise user_error(
            "cannot be combined with INPUT", path="--file", value=arguments.inputs[0], hint="leave one out"
        )
    for option in ("why", "steps"):
        if getattr(arguments, option):
            hint = "give the text itself: predict RUN 'some text' --why"
            raise user_error("cannot be combined with --file", path=f"--{option}", hint=hint)


def _reject_file_names(arguments: argparse.Namespace) -> None:
    for text in arguments.inputs:
        if text != "-" and os.path.isfile(text):
            name = shlex.quote(text)
            itself = f"echo {name} | glassformer predict {shlex.quote(arguments.run)} -"
            raise user_error(
                "this is the name of a file",
                path=text,
                hint=f"use --file {name}; to predict the text itself: {itself}",
            )


def _decoding(arguments: argparse.Namespace) -> dict[str, Any] | None:
    if arguments.beam is None:
        return None
    return {"kind": "beam", "size": arguments.beam, "n_best": arguments.beam}


def _reading(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options for reading --file."""
    header = None if arguments.header is None else arguments.header == "true"
    return {
        "columns": _parse_columns(arguments.columns),
        "format": arguments.format,
        "header": header,
        "encoding": arguments.encoding,
        "decoding": _decoding(arguments),
    }


def _parse_columns(text: str | None) -> Any:
    """Parse `input=NAME`, `input=[title,body]` or `{input: [title, body]}` to the columns of the input."""
    from glassformer.core.config import parse_overrides

    if text is None:
        return None
    given = parse_overrides([f"columns={text}"])["columns"] if text.startswith("{") else None
    found = parse_overrides([text]) if given is None and "=" in text else given
    if not isinstance(found, dict) or list(found) != ["input"]:
        raise user_error(
            "expected the column of the input", path="--columns", value=text, hint="--columns input=text"
        )
    return found["input"]


@contextmanager
def _own_options(columns: str | None) -> Iterator[None]:
    """Make the hints of errors name the options of this command, such as `--encoding`, not config paths."""
    try:
        yield
    except UserError as error:
        for detail in error.details:
            detail.hint = CONFIG_OPTION.sub(r"--\1 ", detail.hint)
            if columns is not None and detail.value == columns.partition("=")[2] and "," in columns:
                # A column of this name would have been found, so several are meant.
                detail.value, detail.allowed = None, ()
                detail.hint = f"--columns input=[{columns.partition('=')[2]}]"
        raise


def _write_file(model: Run, arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    """Predict --file and write --out. Print the number of rows and the first errors."""
    document: dict[str, Any] = {"run": str(arguments.run), "predictions": []}
    try:
        with _interruptible(), DelayedProgress("predicting", in_bytes=True) as progress:
            found = model.predict_file(
                arguments.file,
                arguments.out,
                **_reading(arguments),
                probabilities=arguments.probabilities,
                prefix=arguments.prefix,
                progress=progress,
            )
    except KeyboardInterrupt as stop:
        return document | _stopped(stop, output)
    for note in found.notes:
        output.print(note)
    output.print(f"wrote {arguments.out}: {found.rows:,} row{'s' * (found.rows != 1)}")
    if found.warnings:
        output.print(f"{found.warnings:,} of {found.rows:,} rows have a warning: see the column `warning`")
    _print_failures(found, "line", arguments.keep_going, output)
    return document | {"file": str(arguments.file), "out": str(arguments.out), **asdict(found)}


def _print_failures(summary: FileSummary, unit: str, keep_going: bool, output: Output) -> None:
    """Print the first errors on standard error, and set the exit code to 2 unless `keep_going`."""
    if not summary.failed:
        return
    output.exit_code = 0 if keep_going else 2
    lines = [f"{summary.failed:,} of {summary.rows:,} inputs have an error instead of a prediction:"]
    shown = summary.errors[:ERRORS_SHOWN]
    for error in shown:
        where = f"{unit} {error['line']}: "  # an error in the file itself already begins with it
        lines.append(f"  {where}{shorten(error['error'].removeprefix(where), 200)}")
    if summary.failed > ERRORS_SHOWN:
        lines.append(f"  and {summary.failed - ERRORS_SHOWN:,} more")
    if not keep_going:
        lines.append("  the exit code is 2; with --keep-going it is 0")
    print("\n".join(lines), file=sys.stderr, flush=True)


class _Terminated(KeyboardInterrupt):
    """Exception that SIGTERM raises, so that temporary files are removed."""


@contextmanager
def _interruptible() -> Iterator[None]:
    """Raise `_Terminated` on SIGTERM inside a `with` block."""

    def stop(number: int, frame: object) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _stopped(stop: KeyboardInterrupt, output: Output) -> dict[str, Any]:
    """Print how far the command came, and set the exit code of the signal."""
    number = signal.SIGTERM if isinstance(stop, _Terminated) else signal.SIGINT
    print("; ".join(getattr(stop, "__notes__", ["stopped"])), file=sys.stderr, flush=True)
    output.exit_code = 128 + number
    return {"stopped": number.name}


def _predict_file(model: Run, arguments: argparse.Namespace, report: _Report) -> None:
    with _interruptible():
        for prediction in model.predict_each(arguments.file, **_reading(arguments)):
            report.add(prediction, is_detailed=False)


def _predict_inputs(model: Run, arguments: argparse.Namespace, report: _Report) -> None:
    """Predict the inputs, or the lines of standard input, in groups of at most `GROUP_LINES`."""
    from glassformer.models.task_types import Seq2Seq

    is_given = bool(arguments.inputs) and arguments.inputs != ["-"]
    report.unit = "input" if is_given else "line"
    decoding, number = _decoding(arguments), 0
    aligns = report.output.is_json and isinstance(model.task.task_type, Seq2Seq)
    for lines in _cut(arguments.inputs) if is_given else _standard_input():
        is_detailed = len(lines) <= MOST_DETAILED or arguments.why or arguments.steps
        for prediction in model.predict(lines, decoding, why=arguments.why, align=aligns):
            number += 1
            report.add(prediction | {"line": number}, is_detailed)
    if number == 0 and not sys.stdin.isatty():
        raise user_error(
            "no input", path="standard input", hint=f"glassformer predict {arguments.run} 'some input'"
        )


def _standard_input() -> Iterator[list[str]]:
    """Yield the lines of standard input in groups. Bytes that are not UTF-8 are kept, to be reported."""
    if sys.stdin.isatty():
        print("type one input per line; Ctrl-D ends", file=sys.stderr, flush=True)
    is_first = True
    for lines in _available_lines():
        texts = [line.decode("utf-8", errors="surrogateescape").removesuffix("\r") for line in lines]
        if is_first and texts:
            texts[0], is_first = texts[0].removeprefix("\ufeff"), False
        yield from _cut(texts)


def _cut(lines: list[str]) -> list[list[str]]:
    return [lines[start : start + GROUP_LINES] for start in range(0, len(lines), GROUP_LINES)]


def _available_lines() -> Iterator[list[bytes]]:
    """Yield complete lines as they arrive, because a program may wait for each prediction before the next."""
    rest = b""
    stream = cast("BufferedReader", sys.stdin.buffer)
    while chunk := stream.read1(READ_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        yield lines
    if rest:
        yield [rest]


class _Report:
    """Output of predictions and count of errors.

    Predictions are printed as they arrive. With `--json`, a temporary file holds them until the end.
    """

    def __init__(self, arguments: argparse.Namespace, output: Output, model: Run) -> None:
        from glassformer.runs.predict_file import FileSummary

        self.arguments = arguments
        self.output = output
        self.summary = FileSummary()
        self.warnings = 0
        """Number of warnings that were not printed."""
        self.unit = "line"
        self.digits = getattr(model.task.task_type, "digits", 6)
        """Number of significant digits of a predicted number."""
        self._stored: IO[str] | None = None

    def __enter__(self) -> _Report:
        if self.output.is_json:
            self._stored = tempfile.TemporaryFile("w+", encoding="utf-8")
        return self

    def __exit__(self, *exception: object) -> None:
        if self._stored is not None:
            self._stored.close()

    def add(self, prediction: dict[str, Any], is_detailed: bool) -> None:
        self.summary.count(prediction["line"], prediction["error"])
        if self._stored is not None:
            self._stored.write(json_line(prediction))
        elif is_detailed:
            _show(prediction, self.digits, self.arguments.steps, self.output)
        else:
            self.warnings += bool(prediction["warning"])
            _show_compactly(prediction, self.digits, self.output)

    def finish(self) -> None:
        """Print the JSON object, or without `--json` how many inputs have a warning. Print the errors.

        Warnings and errors go to standard error.
        """
        if self._stored is not None:
            self._stored.seek(0)
            self.output.give_list({"run": str(self.arguments.run)}, "predictions", self._stored)
        elif self.warnings:
            rows = f"{self.warnings:,} of {self.summary.rows:,} inputs"
            print(f"{rows} have a warning, which --json lists", file=sys.stderr, flush=True)
        if self.unit == "input" and self.summary.rows == 1 and self.summary.failed:
            # The line or the JSON object above has the error of the only input.
            self.output.exit_code = 0 if self.arguments.keep_going else 2
            return
        _print_failures(self.summary, self.unit, self.arguments.keep_going, self.output)


def _show_compactly(prediction: dict[str, Any], digits: int, output: Output) -> None:
    """Print a prediction on one line. Only a terminal gets a long input shortened."""
    width = COMPACT_WIDTH if sys.stdout.isatty() else len(prediction["input"]) + 1
    text = shorten(prediction["input"], width)
    if prediction["error"]:
        output.print(f"{text}  →  error: {prediction['error']}")
        return
    best, *others = prediction["candidates"]
    outputs = "  |  ".join(shorten(_text(each["output"], digits), width) for each in (best, *others))
    output.print(f"{text}  →  {outputs}{_probability(best)}")


def _text(output: Any, digits: int) -> str:
    return f"{output:.{digits}g}" if isinstance(output, float) else str(output)


def _probability(candidate: dict[str, Any]) -> str:
    return "" if candidate["probability"] is None else f"   (p = {candidate['probability']:.4f})"


def _show(prediction: dict[str, Any], digits: int, shows_steps: bool, output: Output) -> None:
    if prediction["error"]:
        output.print(f"{prediction['input']}  →  error: {prediction['error']}")
        return
    for candidate in prediction["candidates"]:
        shown = _text(candidate["output"], digits)
        output.print(f"{prediction['input']}  →  {shown}{_probability(candidate)}")
        steps = candidate["steps"]
        if shows_steps:
            for step in steps:
                output.print(f"    {step['token']:<12} p = {step['probability']:.4f}")
        elif 1 < len(steps) <= STEPS_ON_A_LINE:
            output.print("    " + "  ".join(f"{step['token']} {step['probability']:.3f}" for step in steps))
    if prediction.get("probabilities"):
        output.print("    " + "  ".join(f"{name} {p:.4f}" for name, p in prediction["probabilities"].items()))
    if prediction["warning"]:
        output.print(f"    warning: {prediction['warning']}")
    if prediction.get("words"):
        _show_words(prediction, output)
        _show_unread(prediction["words"], output)


def _show_words(prediction: dict[str, Any], output: Output) -> None:
    """Print the effect of each word in text order, or only the strongest effects of a long text.

    For a classifier, a bar of full width is a change of the probability by 1, so that weak evidence looks
    weak. For a predicted number, a bar of full width is the largest effect.
    """
    words = [word for word in prediction["words"] if word["effect"] is not None]
    unit = "word" if len(prediction["input"].split()) > 1 else "part"
    if not words:
        output.print("    the effect of the words is unknown: no word can be left out")
        return
    is_class = bool(prediction.get("probabilities"))
    name = "probability_effect" if is_class else "effect"
    strongest = sorted(range(len(words)), key=lambda index: -abs(words[index][name]))
    shown = [words[index] for index in sorted(strongest[:MOST_WORDS_SHOWN])]
    scale = 1.0 if is_class else abs(words[strongest[0]][name]) or 1.0
    quantity = f"probability of {prediction['output']}" if is_class else "predicted number"
    output.print(f"    what each {unit} adds to the {quantity} (a full bar is {scale:.3g}):")
    names = [shorten(word["word"], WORD_WIDTH) for word in shown]
    width = max(map(len, names))
    for label, word in zip(names, shown, strict=True):
        effect = word[name]
        bar = ("█" if effect > 0 else "░") * round(BAR_WIDTH * min(1.0, abs(effect) / scale))
        output.print(f"    {label:<{width}} {effect:+8.3f}  {bar}".rstrip(), "green" if effect > 0 else "red")
    if len(words) > len(shown):
        output.print(f"    and {len(words) - len(shown)} {unit}s with weaker effects")


def _show_unread(words: list[dict[str, Any]], output: Output) -> None:
    """Print which words the model did not read because the text is too long. Their effect is unknown."""
    unread = [shorten(word["word"], WORD_WIDTH) for word in words if not word["is_read"]]
    if unread:
        others = f" and the {len(unread) - 1:,} words after it" if unread[1:] else ""
        output.print(f"    not read, because the text is too long for the model: {unread[0]!r}{others}")
