"""`glassformer patch RUN [CLEAN] [CORRUPTED]`: copy activations between two inputs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.cli.arguments import add_run, add_split, check_minimum, open_run, print_warning
from glassformer.cli.output import Output

if TYPE_CHECKING:
    from glassformer.inspection.patching import PatchedSite, PatchResult

MOST_COLUMNS = 12
"""Maximum number of positions or heads that a printed row shows."""
EXAMPLES = (
    'glassformer patch runs/arithmetic-1 "27 - 35" "27 - 45"',
    "glassformer patch runs/arithmetic-1 --out grid.png  # an example, and a twin with one token changed",
    "glassformer patch runs/arithmetic-1 --examples 32 --sites '*.heads' '*.cross_heads'",
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_split(parser)
    add = parser.add_argument
    add("clean", nargs="?", metavar="CLEAN", help="input with the output to explain (default: an example)")
    corrupted_help = "input of the same length with another output (default: CLEAN with one token changed)"
    add("corrupted", nargs="?", metavar="CORRUPTED", help=corrupted_help)
    sites_help = "sites to patch, such as encoder.0.residual_post or '*.heads'"
    add("--sites", nargs="+", metavar="SITE", help=sites_help)
    noising_help = "copy corrupted activations into the clean pass, instead of the reverse"
    add("--noising", action="store_true", help=noising_help)
    add("--examples", type=int, help="patch N examples and their twins, and print mean effects")
    add("--out", type=Path, metavar="FILE", help="also draw the effects: .png or .svg")


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    check_minimum(arguments, examples=1)
    found = open_run(arguments).patch(
        arguments.clean,
        arguments.corrupted,
        sites=arguments.sites,
        direction="noising" if arguments.noising else "denoising",
        examples=arguments.examples,
        split=arguments.split,
    )
    _show(found, output)
    print_warning(found.warning, output)
    if arguments.out is not None:
        from glassformer.plotting.grid import save_grid

        save_grid(found, arguments.out, Path(arguments.run).name)
        output.print(f"wrote {arguments.out}")
    return {"run": str(arguments.run), **found.document()}


def _show(found: PatchResult, output: Output) -> None:
    from glassformer.inspection.maps import MEANING

    for name, text in found.texts.items():
        output.print(f"{name.removesuffix('_text'):<10} {text}")
    output.print(f"metric     {found.contrast}: clean {found.clean:.3f}, corrupted {found.corrupted:.3f}")
    pairs = f", mean of {found.pairs} pairs" if found.pairs > 1 else ""
    output.print(f"effect of patching ({found.direction}{pairs}): 1 restores the whole difference, 0 nothing")
    for sites in _groups(found.sites):
        columns = _columns(sites)
        if len(columns) < len(sites[0].effects):
            numbers = "  ".join(f"{column:6}" for column in columns)
            shown = f"the {len(columns)} of {len(sites[0].effects)} {sites[0].axis}s with the largest effects"
            output.print(f"  {shown}\n  {'':<24} {numbers}")
        for site in sites:
            cells = "  ".join(f"{round(site.effects[column], 2) + 0.0:6.2f}" for column in columns)
            output.print(f"  {site.name:<24} {cells}")
    output.print("largest effects")
    for name, label, effect in found.largest(6):
        output.print(f"  {effect:6.2f}  {name}, {label}")
    output.print(f"check: everything patched {found.everything:.4f} (1), nothing {found.nothing:.4f} (0)")
    if found.gradient_correlation is not None:
        output.print(f"hint: the gradient approximation correlates by {found.gradient_correlation:.2f}")
    if found.untrained is not None:
        difference = found.untrained["clean"] - found.untrained["corrupted"]
        output.print(f"untrained model: the metric differs by {difference:.3f} between the inputs")
    output.print(f"{found.trust}: {MEANING[found.trust]}")


def _groups(sites: Sequence[PatchedSite]) -> list[list[PatchedSite]]:
    """Return the sites in groups with the same columns: positions of one stack, or a number of heads."""
    groups: dict[tuple[str, str, int], list[PatchedSite]] = {}
    for site in sites:
        groups.setdefault((site.name.split(".")[0], site.axis, len(site.effects)), []).append(site)
    return list(groups.values())


def _columns(sites: Sequence[PatchedSite]) -> list[int]:
    """Return the columns to print, in order: at most `MOST_COLUMNS`, those with the largest effects."""
    largest = [max(map(abs, column)) for column in zip(*(site.effects for site in sites), strict=True)]
    return sorted(sorted(range(len(largest)), key=lambda column: -largest[column])[:MOST_COLUMNS])
