"""`glassformer intervene RUN [INPUT]`: a head switched off, an edge cut or a token hidden, and the effect."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from glassformer.cli.output import Output
from glassformer.cli.what import add_plugin, open_run
from glassformer.core.errors import shorten, user_error

if TYPE_CHECKING:
    from glassformer.inspection.ablation import Effect, Effects
    from glassformer.inspection.maps import Site
    from glassformer.runs.run import Run


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's folder")
    parser.add_argument(
        "input", metavar="INPUT", nargs="*", help="what the model reads (default: the first test example)"
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--head", metavar="PLACE:LAYER:HEAD", help="switch this head off: encoder:0:0")
    what.add_argument(
        "--edge", metavar="PLACE:LAYER:HEAD:QUERY:KEY", help="this query may not read this key: cross:1:0:2:3"
    )
    what.add_argument("--token", type=int, metavar="N", help="hide the input's token number N, from 0")
    parser.add_argument(
        "--how",
        default="mean",
        help="a head then adds its mean, or zero (default: mean)",
        metavar="mean|zero",
    )
    parser.add_argument(
        "--keep-rest",
        action="store_true",
        help="what is left of the edge's row stays as it is; without, it adds up to 1 again",
    )
    parser.add_argument(
        "--examples",
        type=int,
        metavar="N",
        help="measure on so many (default: 64 for a head, 16 for a token, the input alone for an edge)",
    )
    parser.add_argument("--split", help="where examples are from (default: test, if there is one)")
    parser.add_argument("--checkpoint", default="best", help="best, latest or a step (default: best)")
    add_plugin(parser)


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    ask = _effects(arguments)
    model = open_run(arguments)
    effects = ask(model)
    _show(effects, output)
    return {"run": str(arguments.run), "checkpoint": model.checkpoint, **effects.document()}


def _where(option: str, text: str, example: str) -> tuple[Site, list[int]]:
    """The place and the numbers of a head or an edge; whether they are there, the model says."""
    place, *numbers = text.split(":")
    if len(numbers) != example.count(":") or not all(number.isdecimal() for number in numbers):
        raise user_error("not a place and its numbers", path=option, value=text, hint=f"{option} {example}")
    return cast("Site", place), [int(number) for number in numbers]


def _effects(arguments: argparse.Namespace) -> Callable[[Run], Effects]:
    """What is asked for, read before the model is loaded."""
    text = " ".join(arguments.input) or None
    more: dict[str, Any] = {"split": arguments.split}
    if arguments.examples is not None:
        more["examples"] = arguments.examples
    if arguments.head is not None:
        place, (layer, head) = _where("--head", arguments.head, "encoder:0:0")
        return lambda model: model.switch_off(place, layer, head, arguments.how, text=text, **more)
    if arguments.edge is not None:
        place, (layer, head, query, key) = _where("--edge", arguments.edge, "cross:0:0:2:3")
        more["renormalises"] = not arguments.keep_rest
        return lambda model: model.cut_edge(text, place, layer, head, query, key, **more)
    return lambda model: model.occlude(text, arguments.token, **more)


def _show(effects: Effects, output: Output) -> None:
    from glassformer.inspection.maps import MEANING

    output.say(effects.what)
    if effects.answer is not None:
        before, after = (shorten(str(effects.answer[name]), 80) for name in ("before", "after"))
        same = "   (the same)" if effects.answer["before"] == effects.answer["after"] else ""
        output.say(f"answer before  {before}\n       after   {after}{same}")
        for other in effects.answer.get("others", [])[:10]:
            output.say(f"    {other['token']:<12} →  {shorten(other['output'], 80)}")
    if effects.input_metrics is not None:
        _show_metrics("this input", effects.input_metrics, output)
    _show_metrics(
        f"{effects.examples} example{'s' * (effects.examples != 1)}, by {effects.measured_by}",
        effects.metrics,
        output,
    )
    for note in effects.notes:
        output.say(note)
    output.say(f"{effects.trust}: {MEANING[effects.trust]}")


def _show_metrics(of_what: str, metrics: dict[str, Effect], output: Output) -> None:
    output.say(of_what)
    for name, effect in metrics.items():
        interval = ""
        if effect.interval is not None:
            interval = f"   95 %: {effect.interval[0]:+.4f} to {effect.interval[1]:+.4f}"
        output.say(
            f"    {name:<12} {effect.before:8.4f}  →  {effect.after:8.4f}   {effect.change:+.4f}{interval}"
        )
