"""`glassformer intervene RUN [INPUT]`: ablate a head or an edge, or hide a token, and measure the effect."""

from __future__ import annotations

import argparse
import itertools
import re
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from glassformer.cli.arguments import add_input, add_run, add_split, open_run, print_warning
from glassformer.cli.output import Output
from glassformer.core.errors import shorten, user_error

if TYPE_CHECKING:
    from glassformer.inspection.ablation import Effect, Effects
    from glassformer.inspection.maps import Site
    from glassformer.runs.run import Run

NUMBERS = """\
SITE is encoder, decoder or cross; a model with a single stack has only encoder. LAYER, HEAD, QUERY and
KEY are counted from 0. QUERY is the token that reads (a row of the attention map), KEY the token that is
read (a column): encoder:0:0:2:97 is layer 0, head 0, from token 2 to token 97."""
MOST_ROWS = 10
"""Maximum number of replacements of a token whose outputs are printed."""
WORDS_BEFORE = 8
"""Number of words before the first difference that an excerpt of a long output shows."""
EXAMPLES = (
    "glassformer intervene runs/reversal-1 --head encoder:0:0  # layer 0, head 0",
    "glassformer intervene runs/reversal-1 --edge encoder:0:0:2:97  # token 2 may not read token 97",
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
    print_warning(effects.warning, output)
    return {"run": str(arguments.run), "checkpoint": model.checkpoint, **effects.document()}


def _parse_site(option: str, text: str, example: str) -> tuple[Site, list[int]]:
    """Parse text such as `encoder:0:0` to an attention site (`encoder`) and the numbers after it.

    The model checks later whether the site and the numbers exist.
    """
    site, *numbers = text.split(":")
    if len(numbers) != example.count(":") or not all(number.isdecimal() for number in numbers):
        # Every model has the site encoder.
        is_only_site_missing = re.fullmatch("[0-9:]+", text) and len(numbers) + 1 == example.count(":")
        suggestion = f"encoder:{text}" if is_only_site_missing else example
        raise user_error(
            "expected encoder, decoder or cross, followed by numbers",
            path=option,
            value=text,
            hint=f"{option} {suggestion}",
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
        site, (layer, head, query, key) = _parse_site("--edge", arguments.edge, "encoder:0:0:2:3")
        more["renormalise"] = not arguments.no_renormalise
        return lambda model: model.ablate_edge(text, site, layer, head, query, key, **more)
    return lambda model: model.occlude(text, arguments.token, **more)


def _show(effects: Effects, output: Output) -> None:
    from glassformer.inspection.maps import MEANING

    output.print(effects.intervention)
    if effects.output is not None:
        _show_outputs(effects.output, output)
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


def _show_outputs(outputs: dict[str, Any], output: Output) -> None:
    """Print the output before and after, where they differ, and the outputs of up to `MOST_ROWS` tokens."""
    before, after = str(outputs["before"]), str(outputs["after"])
    at = first_difference(before, after)
    difference = "(the same)" if at is None else f"({show_difference(before, after, at)})"
    output.print(f"output before  {excerpt(before, at)}")
    output.print(f"       after   {excerpt(after, at)}   {difference}")
    others = Counter((other["token"], other["output"]) for other in outputs.get("others", []))
    if others:
        shown = f", {MOST_ROWS} of {len(others)} shown" if len(others) > MOST_ROWS else ""
        output.print(f"output by replacement{shown}")
    for (token, text), times in others.most_common(MOST_ROWS):
        at = first_difference(before, text)
        more = f"   (×{times})" if times > 1 else ""
        same = "   (the same)" if at is None else ""
        output.print(f"    {token:<12} →  {excerpt(text, at)}{more}{same}")


def first_difference(before: str, after: str) -> int | None:
    """Return the index of the first word in which two outputs differ, or None if they are the same."""
    pairs = itertools.zip_longest(before.split(), after.split())
    return next((index for index, (old, new) in enumerate(pairs) if old != new), None)


def show_difference(before: str, after: str, at: int) -> str:
    """Return the first difference of two outputs, such as `differs at 96: 8 → 1`. Words count from 0."""
    old, new = (([*text.split()[at : at + 1], "(end)"])[0] for text in (before, after))
    return f"differs at {at}: {old} → {new}"


def excerpt(text: str, at: int | None, width: int = 80) -> str:
    """Return at most `width` characters of an output. A long one begins a few words before the word `at`."""
    words = text.split()
    if at is None or len(" ".join(words)) <= width:
        return shorten(text, width)
    first = max(0, at - WORDS_BEFORE)
    return shorten("… " * (first > 0) + " ".join(words[first:]), width)


def _show_metrics(title: str, metrics: dict[str, Effect], output: Output) -> None:
    output.print(title)
    for name, effect in metrics.items():
        interval = ""
        if effect.interval is not None:
            interval = f"   95 % interval {effect.interval[0]:+.4f} to {effect.interval[1]:+.4f}"
        output.print(
            f"    {name:<12} {effect.before:8.4f}  →  {effect.after:8.4f}   {effect.change:+.4f}{interval}"
        )
