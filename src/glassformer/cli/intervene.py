"""`glassformer intervene RUN [INPUT]`: ablate a head or an edge, or hide a token, and measure the effect."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from glassformer.cli.arguments import add_input, add_run, add_split, open_run, warn_about_input
from glassformer.cli.output import Output
from glassformer.core.errors import shorten, user_error

if TYPE_CHECKING:
    from glassformer.inspection.ablation import Effect, Effects
    from glassformer.inspection.maps import Site
    from glassformer.runs.run import Run

NUMBERS = """\
SITE is encoder, decoder or cross; a model with a single stack has only encoder. LAYER, HEAD, QUERY and
KEY are counted from 0. QUERY is the token that reads (a row of the attention map), KEY the token that is
read (a column): encoder:0:1:2:15 is layer 0, head 1, from token 2 to token 15."""
EXAMPLES = (
    "glassformer intervene runs/reversal-1 --head encoder:0:0  # layer 0, head 0",
    "glassformer intervene runs/reversal-1 --edge encoder:0:0:2:15  # token 2 may not read token 15",
    "glassformer intervene runs/reversal-1 --token 3  # hide token 3, counted from 0",
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_input(parser)
    add_split(parser)
    parser.epilog = NUMBERS
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--head", metavar="SITE:LAYER:HEAD", help="ablate this head of a layer")
    target.add_argument(
        "--edge",
        metavar="SITE:LAYER:HEAD:QUERY:KEY",
        help="ablate this attention edge: in a layer's head, the token QUERY may not read the token KEY",
    )
    target.add_argument("--token", type=int, help="hide token N of the input, counted from 0")
    add = parser.add_argument
    ablation_help = "with --head: replace the head's output by its mean, or by zero"
    add("--ablation", default="mean", metavar="mean|zero", help=ablation_help)
    renormalise_help = "with --edge: do not rescale the remaining attention weights of the query to sum to 1"
    add("--no-renormalise", action="store_true", help=renormalise_help)
    examples_help = "measure on N examples (default: 64 for a head, 16 for a token, only INPUT for an edge)"
    add("--examples", type=int, help=examples_help)


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    measure = _measurement(arguments)
    model = open_run(arguments)
    effects = measure(model)
    _show(effects, output)
    warning = warn_about_input(model, " ".join(arguments.input) or None, output)
    about = {"run": str(arguments.run), "checkpoint": model.checkpoint, "warning": warning}
    return {**about, **effects.document()}


def _parse_site(option: str, text: str, example: str) -> tuple[Site, list[int]]:
    """Parse text such as `encoder:0:0` to an attention site (`encoder`) and the numbers after it.

    The model checks later whether the site and the numbers exist.
    """
    site, *numbers = text.split(":")
    if len(numbers) != example.count(":") or not all(number.isdecimal() for number in numbers):
        raise user_error(
            "expected encoder, decoder or cross, followed by numbers",
            path=option,
            value=text,
            hint=f"{option} {example}",
        )
    return cast("Site", site), [int(number) for number in numbers]


def _measurement(arguments: argparse.Namespace) -> Callable[[Run], Effects]:
    """Parse the intervention before the model is loaded, and return a function that applies it to a run."""
    text = " ".join(arguments.input) or None
    more: dict[str, Any] = {"split": arguments.split}
    if arguments.examples is not None:
        more["examples"] = arguments.examples
    if arguments.head is not None:
        site, (layer, head) = _parse_site("--head", arguments.head, "encoder:0:0")
        return lambda model: model.ablate_head(site, layer, head, arguments.ablation, text=text, **more)
    if arguments.edge is not None:
        site, (layer, head, query, key) = _parse_site("--edge", arguments.edge, "cross:0:0:2:3")
        more["renormalise"] = not arguments.no_renormalise
        return lambda model: model.ablate_edge(text, site, layer, head, query, key, **more)
    return lambda model: model.occlude(text, arguments.token, **more)


def _show(effects: Effects, output: Output) -> None:
    from glassformer.inspection.maps import MEANING

    output.print(effects.intervention)
    if effects.output is not None:
        before, after = (shorten(str(effects.output[name]), 80) for name in ("before", "after"))
        same = "   (the same)" if effects.output["before"] == effects.output["after"] else ""
        output.print(f"output before  {before}\n       after   {after}{same}")
        for other in effects.output.get("others", [])[:10]:
            output.print(f"    {other['token']:<12} →  {shorten(other['output'], 80)}")
    if effects.input_metrics is not None:
        _show_metrics("this input", effects.input_metrics, output)
    _show_metrics(
        f"{effects.examples} example{'s' * (effects.examples != 1)}, by {effects.reference}",
        effects.metrics,
        output,
    )
    for note in effects.notes:
        output.print(note)
    output.print(f"{effects.trust}: {MEANING[effects.trust]}")


def _show_metrics(title: str, metrics: dict[str, Effect], output: Output) -> None:
    output.print(title)
    for name, effect in metrics.items():
        interval = ""
        if effect.interval is not None:
            interval = f"   95 % interval {effect.interval[0]:+.4f} to {effect.interval[1]:+.4f}"
        output.print(
            f"    {name:<12} {effect.before:8.4f}  →  {effect.after:8.4f}   {effect.change:+.4f}{interval}"
        )
