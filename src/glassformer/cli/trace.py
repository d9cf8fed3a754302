"""`glassformer trace RUN [INPUT]`: how the model came to its answer, step by step and branch by branch."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from glassformer.cli.output import Output
from glassformer.cli.what import add_decoding, add_plugin, decoding_of, open_run
from glassformer.core.errors import shorten, user_error

if TYPE_CHECKING:
    from glassformer.inspection.attribution import LogitLens
    from glassformer.inspection.trace import Trace

MOST_BRANCHES_SHOWN = 200
MOST_POSITIONS_SHOWN = 40
TOKEN_WIDTH = 14


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's folder")
    parser.add_argument(
        "input", metavar="INPUT", nargs="*", help="what the model reads (default: the first test example)"
    )
    add_decoding(parser)
    parser.add_argument(
        "--alternatives", type=int, default=5, metavar="N", help="likeliest tokens a step (default: 5)"
    )
    parser.add_argument(
        "--lens", action="store_true", help="also the logit lens: what each layer would answer (a hint)"
    )
    parser.add_argument("--checkpoint", default="best", help="best, latest or a step (default: best)")
    add_plugin(parser)


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    decoding = decoding_of(arguments)
    model = open_run(arguments)
    text = " ".join(arguments.input) or None
    traced = model.trace(text, decoding, arguments.alternatives)
    if decoding is not None and traced.branches is None:
        raise user_error("this model writes no answer token by token", path="--decoding", hint="leave it out")
    document = {"run": str(arguments.run), "checkpoint": model.checkpoint, **traced.document()}
    _show(traced, output)
    if arguments.lens:
        lens = model.logit_lens(text, arguments.alternatives)
        document["logit_lens"] = lens.document()
        _show_lens(lens, output)
    return document


def _show(traced: Trace, output: Output) -> None:
    output.say(shorten(" ".join(traced.input), 120))
    for answer in traced.answers:
        probability = "" if answer.probability is None else f"   p = {answer.probability:.4f}"
        branch = "" if answer.branch is None else f"   branch {answer.branch}"
        rest = "" if answer.is_answer else "   (found, not answered with)"
        output.say(f"→  {shorten(answer.output, 100)}{probability}{branch}{rest}")
    for step in traced.steps:
        others = [each for each in step.alternatives if each.token != step.chosen]
        likely = "  ".join(f"{each.token} {each.probability:.3f}" for each in others)
        probability = "" if step.probability is None else f"{step.probability:.4f}"
        output.say(f"{step.step:>4}  {step.chosen:<{TOKEN_WIDTH}} {probability}   {likely}")
    branches = traced.branches or []
    if len(branches) == len(traced.steps):  # one way only: the steps have told it
        return
    if len(branches) > MOST_BRANCHES_SHOWN:
        output.say(f"{len(branches):,} branches; --json has them all")
        return
    output.say(f"{'branch':>6} {'after':>6}  {'step':>4}  {'token':<{TOKEN_WIDTH}} {'p':>6} {'sum':>8}")
    for number, each in enumerate(branches):
        after = "" if each.parent is None else each.parent
        output.say(
            f"{number:>6} {after:>6}  {each.step:>4}  {each.name:<{TOKEN_WIDTH}}"
            f" {math.exp(each.log_probability):6.4f} {each.total:8.3f}  {each.state}",
            "bold" if each.state == "chosen" else "",
        )


def _show_lens(lens: LogitLens, output: Output) -> None:
    output.say("logit lens (a hint): the likeliest token after so many layers")
    for place, name in list(enumerate(lens.positions))[:MOST_POSITIONS_SHOWN]:
        guesses = (lens.guesses[layer][place][0] for layer in lens.layers)
        told = "  ".join(f"{guess.token:<8} {guess.probability:.3f}" for guess in guesses)
        output.say(f"{place:>4}  {name:<{TOKEN_WIDTH}} {told}")
    if len(lens.positions) > MOST_POSITIONS_SHOWN:
        output.say(f"and {len(lens.positions) - MOST_POSITIONS_SHOWN} positions more; --json has them all")
