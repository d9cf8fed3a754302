"""`glassformer attention RUN [INPUT] --out map.png`: write attention maps as PNG, SVG, HTML or NPZ."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.cli.arguments import (
    add_decoding,
    add_input,
    add_run,
    open_run,
    parse_decoding,
    print_warning,
)
from glassformer.cli.output import Output, plain_table, three_decimals
from glassformer.core.errors import shorten, user_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from rich.table import Table

    from glassformer.inspection.maps import AttentionMaps
    from glassformer.inspection.statistics import HeadStatistics

MOST_HEADS_SHOWN = 48
"""Maximum number of heads for which the statistics are printed as a table; `--json` always has them."""

EXAMPLES = (
    "glassformer attention runs/reversal-1 --out map.png  # the first test example",
    'glassformer attention runs/arithmetic-1 "27 - -35" --layers 0 --out map.html',
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_input(parser)
    add_decoding(parser)
    add = parser.add_argument
    out_help = "output file, whose extension is .png, .svg, .html or .npz"
    add("--out", type=Path, default=Path("attention.png"), metavar="FILE", help=out_help)
    add("--layers", metavar="0,1", help="draw only these layers (default: all)")
    add("--heads", metavar="0,1", help="draw only these heads (default: all)")
    add("--rows", metavar="0:100", help="draw only these rows, here queries 0 to 99 (default: all)")
    add(
        "--site",
        help="draw only encoder, decoder or cross-attention: encoder, decoder or cross (default: all)",
    )
    add("--untrained", action="store_true", help="draw the same model before training, for comparison")
    add("--node", type=int, help="draw node N of the beam search; glassformer trace lists the nodes")
    add(
        "--rollout",
        action="store_true",
        help="multiply all layers into one map, averaged over heads (a hint)",
    )


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    from glassformer.inspection.attribution import rollout
    from glassformer.inspection.statistics import head_statistics
    from glassformer.plotting.page import check_extension

    check_extension(arguments.out)
    rows = _numbers("--rows", arguments.rows, ":", "0:100")
    if rows is not None and len(rows) != 2:
        raise user_error("expected two numbers", path="--rows", value=arguments.rows, hint="--rows 0:100")
    if arguments.rollout and (arguments.layers or arguments.heads or arguments.rows):
        raise user_error(
            "cannot be combined with --layers, --heads or --rows",
            path="--rollout",
            hint="leave these options out, because a rollout uses every layer, head and row",
        )
    model = open_run(arguments)
    maps = model.attention(
        " ".join(arguments.input) or None,
        layers=_numbers("--layers", arguments.layers, ",", "0,1"),
        heads=_numbers("--heads", arguments.heads, ",", "0,1"),
        rows=None if rows is None else (rows[0], rows[1]),
        site=arguments.site,
        untrained=arguments.untrained,
        decoding=parse_decoding(arguments),
        node=arguments.node,
    )
    if arguments.rollout:
        maps = rollout(maps)
    maps.save(arguments.out)
    statistics = {site: head_statistics(site_maps) for site, site_maps in maps.sites.items()}
    _show(maps, statistics, model.task.pattern_explanations, arguments.out, output)
    print_warning(maps.warning, output)
    return {
        **maps.about,
        "warning": maps.warning,
        "run": str(arguments.run),
        "out": str(arguments.out),
        "checks": maps.checks.document(),
        "sites": {
            site: {
                "layers": site_maps.layers,
                "heads": site_maps.heads,
                "queries": site_maps.weights.shape[2],
                "keys": site_maps.weights.shape[3],
                "largest_weight": site_maps.largest,
                "statistics": statistics[site].document(),
            }
            for site, site_maps in maps.sites.items()
        },
    }


def _numbers(option: str, text: str | None, separator: str, example: str) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(number) for number in text.split(separator))
    except ValueError:
        raise user_error(
            "expected whole numbers", path=option, value=text, hint=f"{option} {example}"
        ) from None


def _show(
    maps: AttentionMaps,
    statistics: dict[str, HeadStatistics],
    explanations: Mapping[str, str],
    out: Path,
    output: Output,
) -> None:
    from glassformer.inspection.statistics import explain

    output.print(f"{maps.title}:  {shorten(maps.subtitle, 120)}")
    shown: dict[str, dict[str, np.ndarray]] = {}
    for site, site_maps in maps.sites.items():
        if site_maps.weights.shape[0] * site_maps.weights.shape[1] <= MOST_HEADS_SHOWN:
            shown[site] = _columns(statistics[site])
            output.show_table(_table(site_maps.name, site_maps.layers, site_maps.heads, statistics[site]))
    output.explain_sites(shown, {site: explain(site, explanations) for site in shown})
    for _, line in maps.checks.lines():
        output.print(line)
    output.print(f"wrote {out}")
    if not maps.checks.passed:
        output.exit_code = 1


def _columns(statistics: HeadStatistics) -> dict[str, np.ndarray]:
    """Return the columns of the table: name to an array (layers, heads) of one statistic."""
    masses = {name: pattern.mass for name, pattern in statistics.patterns.items()}
    return masses | {"entropy": statistics.entropy, "distance": statistics.distance}


def _table(name: str, layers: list[int], heads: list[int], statistics: HeadStatistics) -> Table:
    measured = _columns(statistics)
    table = plain_table(f"{name}: share of attention on …", ("layer", "head", *measured))
    for row, layer in enumerate(layers):
        for column, head in enumerate(heads):
            cells = [three_decimals(values[row, column]) for values in measured.values()]
            table.add_row(str(layer), str(head), *cells)
    return table
