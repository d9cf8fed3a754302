"""`glassformer predict RUN [INPUT ...]`: print one prediction, or a one-line error, per input."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from glassformer.cli.arguments import add_run, open_run
from glassformer.cli.output import Output
from glassformer.core.errors import shorten

if TYPE_CHECKING:
    from io import BufferedReader

GROUP_LINES = 256
"""Maximum number of inputs passed to the model at once. The model batches inputs of similar length."""
READ_BYTES = 1 << 16
STEPS_ON_A_LINE = 12
MOST_WORDS_SHOWN = 30
BAR_WIDTH = 24
WORD_WIDTH = 24

EXAMPLES = (
    'glassformer predict runs/arithmetic-1 "4 + -11" "3 - 8"',
    "glassformer predict runs/classification-1 - < texts.txt",
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add = parser.add_argument
    input_help = 'inputs for the model; "-" or no INPUT reads one input per line from standard input'
    add("inputs", metavar="INPUT", nargs="*", help=input_help)
    add("--beam", type=int, help="decode by beam search with N beams, and print all N outputs")
    add("--steps", action="store_true", help="print each output token with its probability on its own line")
    add(
        "--why",
        action="store_true",
        help="show how the prediction changes if a word is left out, for each word",
    )


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    model = open_run(arguments)
    decoding = (
        {"kind": "beam", "size": arguments.beam, "n_best": arguments.beam}
        if arguments.beam is not None
        else None
    )
    predictions = []
    for lines in _groups(arguments.inputs):
        for prediction in model.predict(lines, decoding, why=arguments.why):
            predictions.append(prediction)
            _show(prediction, arguments.steps, output)
    return {"run": str(arguments.run), "predictions": predictions}


def _groups(inputs: list[str]) -> Iterator[list[str]]:
    """Yield the inputs, or the lines of standard input, in groups of at most `GROUP_LINES`."""
    if inputs and inputs != ["-"]:
        yield from _cut(inputs)
        return
    for lines in _available_lines():
        yield from _cut([line.decode("utf-8", errors="replace").removesuffix("\r") for line in lines])


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


def _show(prediction: dict[str, Any], shows_steps: bool, output: Output) -> None:
    if prediction["error"]:
        output.print(f"{prediction['input']}  →  error: {prediction['error']}")
        return
    for candidate in prediction["candidates"]:
        probability = "" if candidate["probability"] is None else f"   (p = {candidate['probability']:.4f})"
        output.print(f"{prediction['input']}  →  {candidate['output']}{probability}")
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
    """Print the effect of each word in text order, or only the strongest effects of a long text."""
    words = [word for word in prediction["words"] if word["effect"] is not None]
    if not words:
        output.print("    the effect of the words is unknown, because no word can be left out")
        return
    quantity = "log-probability" if prediction.get("probabilities") else "value"
    output.print(f"    contribution of each word to the {quantity} of {prediction['output']}:")
    strongest = sorted(range(len(words)), key=lambda index: -abs(words[index]["effect"]))
    shown = [words[index] for index in sorted(strongest[:MOST_WORDS_SHOWN])]
    largest = abs(words[strongest[0]]["effect"]) or 1.0
    names = [shorten(word["word"], WORD_WIDTH) for word in shown]
    width = max(map(len, names))
    for name, word in zip(names, shown, strict=True):
        effect = word["effect"]
        bar = ("█" if effect > 0 else "░") * round(BAR_WIDTH * abs(effect) / largest)
        output.print(f"    {name:<{width}} {effect:+8.3f}  {bar}", "green" if effect > 0 else "red")
    if len(words) > len(shown):
        output.print(f"    and {len(words) - len(shown)} words with weaker effects")


def _show_unread(words: list[dict[str, Any]], output: Output) -> None:
    """Print which words the model did not read because the text is too long. Their effect is unknown."""
    unread = [shorten(word["word"], WORD_WIDTH) for word in words if not word["is_read"]]
    if unread:
        others = f" and the {len(unread) - 1:,} words after it" if unread[1:] else ""
        output.print(f"    not read, because the text is too long for the model: {unread[0]!r}{others}")
