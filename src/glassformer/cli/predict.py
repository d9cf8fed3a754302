"""`glassformer predict RUN [INPUT ...]`: each line is answered, or says in one line why not."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import Any

from glassformer.cli.output import Output
from glassformer.cli.what import add_plugin, open_run
from glassformer.core.errors import shorten

STEPS_ON_A_LINE = 12
MOST_WORDS_SHOWN = 30
BAR_WIDTH = 24
WORD_WIDTH = 24


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's folder")
    parser.add_argument(
        "inputs", metavar="INPUT", nargs="*", help='"-" or nothing reads lines from standard input'
    )
    parser.add_argument("--checkpoint", default="best", help="best, latest or a step (default: best)")
    parser.add_argument("--beam", type=int, metavar="N", help="search with N beams and show all of them")
    parser.add_argument("--steps", action="store_true", help="each token of an answer on its own line")
    parser.add_argument(
        "--why", action="store_true", help="which words carried the decision: each is left out in turn"
    )
    add_plugin(parser)


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    model = open_run(arguments)
    decoding = (
        {"kind": "beam", "size": arguments.beam, "n_best": arguments.beam}
        if arguments.beam is not None
        else None
    )
    predictions = []
    for line in _lines(arguments.inputs):
        prediction = model.predict(line, decoding, why=arguments.why)
        predictions.append(prediction)
        _show(prediction, arguments.steps, output)
    return {"run": str(arguments.run), "predictions": predictions}


def _lines(inputs: list[str]) -> Iterable[str]:
    if inputs and inputs != ["-"]:
        return inputs
    text = (line.decode("utf-8", errors="replace") for line in sys.stdin.buffer)
    return (line.removesuffix("\n").removesuffix("\r") for line in text)


def _show(prediction: dict[str, Any], shows_steps: bool, output: Output) -> None:
    if prediction["error"]:
        output.say(f"{prediction['input']}  →  error: {prediction['error']}")
        return
    for answer in prediction["answers"]:
        probability = "" if answer["probability"] is None else f"   (p = {answer['probability']:.4f})"
        output.say(f"{prediction['input']}  →  {answer['output']}{probability}")
        if shows_steps:
            for step in answer["steps"]:
                output.say(f"    {step['token']:<12} p = {step['probability']:.4f}")
        elif 1 < len(answer["steps"]) <= STEPS_ON_A_LINE:
            output.say(
                "    " + "  ".join(f"{step['token']} {step['probability']:.3f}" for step in answer["steps"])
            )
    if prediction.get("probabilities"):
        output.say("    " + "  ".join(f"{name} {p:.4f}" for name, p in prediction["probabilities"].items()))
    if prediction["caution"]:
        output.say(f"    caution: {prediction['caution']}")
    if prediction.get("words"):
        _show_words(prediction, output)
        _show_unread(prediction["words"], output)


def _show_words(prediction: dict[str, Any], output: Output) -> None:
    """In the order of the text; of many words the weakest are passed over."""
    words = [word for word in prediction["words"] if word["effect"] is not None]
    if not words:
        output.say("    no word can be left out")
        return
    what = "log-probability" if prediction.get("probabilities") else "value"
    output.say(f"    what each word adds to the {what} of {prediction['output']}:")
    strongest = sorted(range(len(words)), key=lambda place: -abs(words[place]["effect"]))
    shown = [words[place] for place in sorted(strongest[:MOST_WORDS_SHOWN])]
    largest = abs(words[strongest[0]]["effect"]) or 1.0
    names = [shorten(word["word"], WORD_WIDTH) for word in shown]
    width = max(map(len, names))
    for name, word in zip(names, shown, strict=True):
        effect = word["effect"]
        bar = ("█" if effect > 0 else "░") * round(BAR_WIDTH * abs(effect) / largest)
        output.say(f"    {name:<{width}} {effect:+8.3f}  {bar}", "green" if effect > 0 else "red")
    if len(words) > len(shown):
        output.say(f"    and {len(words) - len(shown)} weaker ones")


def _show_unread(words: list[dict[str, Any]], output: Output) -> None:
    """That a word carried nothing is not known of those that the model never saw."""
    unread = [shorten(word["word"], WORD_WIDTH) for word in words if not word["is_read"]]
    if unread:
        others = f" and the {len(unread) - 1:,} after it" if unread[1:] else ""
        output.say(f"    not read, since the text is too long for the model: {unread[0]!r}{others}")
