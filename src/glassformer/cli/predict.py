"""`glassformer predict RUN [INPUT ...]`: each line is answered, or says in one line why not."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import Any

from glassformer.cli.output import Output
from glassformer.cli.what import add_plugin, load_plugins

STEPS_ON_A_LINE = 12


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's folder")
    parser.add_argument(
        "inputs", metavar="INPUT", nargs="*", help='"-" or nothing reads lines from standard input'
    )
    parser.add_argument("--checkpoint", default="best", help="best, latest or a step (default: best)")
    parser.add_argument("--beam", type=int, metavar="N", help="search with N beams and show all of them")
    parser.add_argument("--steps", action="store_true", help="each token of an answer on its own line")
    add_plugin(parser)


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    from glassformer.trained import Run

    load_plugins(arguments)
    model = Run(arguments.run, arguments.checkpoint)
    decoding = (
        {"kind": "beam", "size": arguments.beam, "n_best": arguments.beam}
        if arguments.beam is not None
        else None
    )
    predictions = []
    for line in _lines(arguments.inputs):
        prediction = model.predict(line, decoding)
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
    if prediction["caution"]:
        output.say(f"    caution: {prediction['caution']}")
