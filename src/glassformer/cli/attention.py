"""`glassformer attention RUN [INPUT] --out map.png|svg|html|npz`"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.cli.output import Output
from glassformer.cli.what import add_decoding, add_plugin, decoding_of, load_plugins
from glassformer.core.errors import shorten, user_error

if TYPE_CHECKING:
    from rich.table import Table

    from glassformer.inspection import AttentionMaps, HeadStatistics

MOST_HEADS_SHOWN = 48


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's folder")
    parser.add_argument(
        "input", metavar="INPUT", nargs="*", help="what the model reads (default: the first test example)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("attention.png"), metavar="FILE", help=".png, .svg, .html or .npz"
    )
    parser.add_argument("--layers", metavar="0,1", help="only these (default: all)")
    parser.add_argument("--heads", metavar="0,1", help="only these (default: all)")
    parser.add_argument(
        "--rows", metavar="0:100", help="only the queries from the first to before the second"
    )
    parser.add_argument("--part", help="only encoder, decoder or cross (default: all there are)")
    parser.add_argument("--checkpoint", default="best", help="best, latest or a step (default: best)")
    parser.add_argument("--random", action="store_true", help="the same model untrained, for comparison")
    add_decoding(parser)
    parser.add_argument(
        "--branch",
        type=int,
        metavar="N",
        help="as it wrote this branch, chosen or dropped; glassformer trace has their numbers",
    )
    parser.add_argument(
        "--rollout", action="store_true", help="all layers and heads multiplied to one map (a hint)"
    )
    add_plugin(parser)


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    from glassformer.inspection import head_statistics
    from glassformer.inspection.attribution import rollout
    from glassformer.plotting.page import check_ending
    from glassformer.runs.run import Run

    load_plugins(arguments)
    check_ending(arguments.out)
    rows = _numbers("--rows", arguments.rows, ":", "0:100")
    if rows is not None and len(rows) != 2:
        raise user_error("two numbers belong here", path="--rows", value=arguments.rows, hint="--rows 0:100")
    if arguments.rollout and (arguments.layers or arguments.heads or arguments.rows):
        raise user_error("takes every layer, head and row", path="--rollout", hint="leave them out")
    maps = Run(arguments.run, arguments.checkpoint).attention(
        " ".join(arguments.input) or None,
        layers=_numbers("--layers", arguments.layers, ",", "0,1"),
        heads=_numbers("--heads", arguments.heads, ",", "0,1"),
        rows=None if rows is None else (rows[0], rows[1]),
        part=arguments.part,
        is_untrained=arguments.random,
        decoding=decoding_of(arguments),
        branch=arguments.branch,
    )
    if arguments.rollout:
        maps = rollout(maps)
    maps.save(arguments.out)
    statistics = {place: head_statistics(of_place) for place, of_place in maps.places.items()}
    _show(maps, statistics, arguments.out, output)
    return {
        **maps.about,
        "run": str(arguments.run),
        "out": str(arguments.out),
        "checks": maps.checks.document(),
        "parts": {
            place: {
                "layers": of_place.layers,
                "heads": of_place.heads,
                "queries": of_place.weights.shape[2],
                "keys": of_place.weights.shape[3],
                "largest_weight": of_place.largest,
                "statistics": statistics[place].document(),
            }
            for place, of_place in maps.places.items()
        },
    }


def _numbers(option: str, text: str | None, separator: str, example: str) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(number) for number in text.split(separator))
    except ValueError:
        raise user_error("not numbers", path=option, value=text, hint=f"{option} {example}") from None


def _show(maps: AttentionMaps, statistics: dict[str, HeadStatistics], out: Path, output: Output) -> None:
    output.say(f"{maps.title}:  {shorten(maps.subtitle, 120)}")
    for place, of_place in maps.places.items():
        if of_place.weights.shape[0] * of_place.weights.shape[1] <= MOST_HEADS_SHOWN:
            output.show(_table(of_place.name, of_place.layers, of_place.heads, statistics[place]))
    for _, line in maps.checks.lines():
        output.say(line)
    output.say(f"wrote {out}")
    if not maps.checks.passed:
        output.exit_code = 1


def _table(name: str, layers: list[int], heads: list[int], statistics: HeadStatistics) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    measured = {heading: pattern.mass for heading, pattern in statistics.patterns.items()}
    measured |= {"entropy": statistics.entropy, "distance": statistics.distance}
    table = Table(
        title=f"{name}: share of attention on …", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    for heading in ("layer", "head", *measured):
        table.add_column(heading.replace(" ", "\n").replace("-", "-\n"), justify="right")
    for row, layer in enumerate(layers):
        for column, head in enumerate(heads):
            values = [values[row, column] for values in measured.values()]
            cells = ["–" if math.isnan(value) else f"{value:.3f}" for value in values]
            table.add_row(str(layer), str(head), *cells)
    return table
