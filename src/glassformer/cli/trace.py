"""`glassformer trace RUN [INPUT]`: show how the model decoded its output: steps, alternatives, beams."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from glassformer.cli.arguments import (
    add_decoding,
    add_input,
    add_run,
    open_run,
    parse_decoding,
    print_warning,
)
from glassformer.cli.output import Output
from glassformer.core.errors import shorten, user_error

if TYPE_CHECKING:
    from glassformer.inspection.attribution import LogitLens
    from glassformer.inspection.trace import Trace

MOST_NODES_SHOWN = 200
MOST_POSITIONS_SHOWN = 40
TOKEN_WIDTH = 14

EXAMPLES = (
    'glassformer trace runs/arithmetic-1 "4 + -11"',
    'glassformer trace runs/arithmetic-1 "4 + -11" --decoding kind=beam,size=4',
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_input(parser)
    add_decoding(parser)
    add = parser.add_argument
    add("--alternatives", type=int, default=5, help="show the N most probable tokens per step")
    add(
        "--lens", action="store_true", help="also show the logit lens: a prediction after each layer (a hint)"
    )


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    decoding = parse_decoding(arguments)
    model = open_run(arguments)
    text = " ".join(arguments.input) or None
    traced = model.trace(text, decoding, arguments.alternatives)
    if decoding is not None and traced.nodes is None:
        raise user_error(
            "this model does not generate token by token", path="--decoding", hint="leave --decoding out"
        )
    document = {"run": str(arguments.run), "checkpoint": model.checkpoint, **traced.document()}
    _show(traced, output)
    print_warning(traced.warning, output)
    if arguments.lens:
        lens = model.logit_lens(text, arguments.alternatives)
        document["logit_lens"] = lens.document()
        _show_lens(lens, output)
    return document


def _show(traced: Trace, output: Output) -> None:
    output.print(shorten(" ".join(traced.input), 120))
    for found in traced.outputs:
        probability = "" if found.probability is None else f"   p = {found.probability:.4f}"
        node = "" if found.node is None else f"   node {found.node}"
        rest = "" if found.is_returned else "   (found, not returned)"
        output.print(f"→  {shorten(found.output, 100)}{probability}{node}{rest}")
    for step in traced.steps:
        others = [each for each in step.alternatives if each.token != step.chosen]
        likely = "  ".join(f"{each.token} {each.probability:.3f}" for each in others)
        probability = "" if step.probability is None else f"{step.probability:.4f}"
        output.print(f"{step.step:>4}  {step.chosen:<{TOKEN_WIDTH}} {probability}   {likely}")
    nodes = traced.nodes or []
    if not nodes or len(nodes) == len(traced.steps):  # a single path: the steps above show all of it
        return
    if len(nodes) > MOST_NODES_SHOWN:
        output.print(f"{len(nodes):,} nodes; --json prints all of them")
        return
    output.print(f"{'node':>6} {'after':>6}  {'step':>4}  {'token':<{TOKEN_WIDTH}} {'p':>6} {'sum':>8}")
    for number, each in enumerate(nodes):
        after = "" if each.parent is None else each.parent
        output.print(
            f"{number:>6} {after:>6}  {each.step:>4}  {each.name:<{TOKEN_WIDTH}}"
            f" {math.exp(each.log_probability):6.4f} {each.total:8.3f}  {each.state}",
            "bold" if each.state == "chosen" else "",
        )


def _show_lens(lens: LogitLens, output: Output) -> None:
    output.print("logit lens (a hint): the most probable token after each layer")
    for position, name in list(enumerate(lens.positions))[:MOST_POSITIONS_SHOWN]:
        guesses = (lens.guesses[layer][position][0] for layer in lens.layers)
        line = "  ".join(f"{guess.token:<8} {guess.probability:.3f}" for guess in guesses)
        output.print(f"{position:>4}  {name:<{TOKEN_WIDTH}} {line}")
    if len(lens.positions) > MOST_POSITIONS_SHOWN:
        output.print(
            f"and {len(lens.positions) - MOST_POSITIONS_SHOWN} more positions; --json prints all of them"
        )
