"""`glassformer align RUN [INPUT]`: link source words to generated words by cross-attention."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.cli.arguments import add_run, add_split, check_minimum, open_run, print_warning
from glassformer.cli.output import DelayedProgress, Output
from glassformer.core.errors import user_error

if TYPE_CHECKING:
    from glassformer.inspection.alignment import AlignedPair, AlignmentResult

SHOWN = 5
"""Number of aligned pairs of a split that are printed."""
EXAMPLES = (
    'glassformer align runs/translation-1 "The small girl does not see the birds." --out links.png',
    "glassformer align runs/translation-1 --split test --examples 500",
    "glassformer align runs/mine --gold links.txt --out links.csv  # your own links: 0-0 1-2 2?1",
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_split(parser)
    add = parser.add_argument
    input_help = "input to translate and align (default: the targets of a split, with their error rate)"
    add("input", nargs="*", metavar="INPUT", help=input_help)
    add("--examples", type=int, default=200, help="align N examples, and choose the head on as many others")
    add("--layer", type=int, help="layer of the cross-attention (default: the best on the validation set)")
    add("--head", type=int, help="head of that layer")
    weighting_help = "attention, or norm: times the norms of the value vectors (default: the better)"
    add("--weighting", metavar="NAME", help=weighting_help)
    gold_help = "correct links, one line per example of the split: 0-0 1-2 are sure, 2?1 is possible"
    add("--gold", type=Path, metavar="FILE", help=gold_help)
    out_help = "also write the links (.csv, .json) or draw the first pair (.png, .svg)"
    add("--out", type=Path, metavar="FILE", help=out_help)


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    from glassformer.plotting.findings import check_suffix, draw_alignment, save_findings

    check_minimum(arguments, examples=1)
    if arguments.out is not None:
        check_suffix(arguments.out)
    text = " ".join(arguments.input) or None
    for option in ("split", "gold"):
        if text is not None and getattr(arguments, option) is not None:
            hint = "leave INPUT out to align the examples of a split"
            raise user_error("cannot be combined with INPUT", path=f"--{option}", value=text, hint=hint)
    with DelayedProgress("aligning") as progress:
        found = open_run(arguments).align(
            text,
            split=arguments.split,
            examples=arguments.examples,
            layer=arguments.layer,
            head=arguments.head,
            weighting=arguments.weighting,
            gold=arguments.gold,
            progress=progress,
        )
    _show(found, output)
    print_warning(found.warning, output)
    document = {"run": str(arguments.run), **found.document()}
    if arguments.out is not None:
        title = f"cross-attention, layer {found.head.layer}, head {found.head.head}"
        save_findings(arguments.out, document, _rows(found), lambda: draw_alignment(found.pairs[0], title))
        output.print(f"wrote {arguments.out}")
    return document


def _rows(found: AlignmentResult) -> list[dict[str, Any]]:
    """Return one row per link."""
    return [
        {
            "pair": number,
            "source": source,
            "target": target,
            "source_word": pair.source[source],
            "target_word": pair.target[target],
            "weight": float(pair.weights[source, target]),
            "is_sure": "" if pair.sure is None else (source, target) in pair.sure,
            "is_possible": "" if pair.possible is None else (source, target) in pair.possible,
        }
        for number, pair in enumerate(found.pairs)
        for source, target in pair.links
    ]


def _show(found: AlignmentResult, output: Output) -> None:
    from glassformer.inspection.maps import MEANING

    for pair in found.pairs[:SHOWN]:
        _show_pair(pair, output)
    if len(found.pairs) > SHOWN:
        output.print(f"… {len(found.pairs) - SHOWN} more pairs")
    head = found.head
    reason = {
        "error rate": "the lowest error rate on other examples",
        "coverage": "no gold links are known: the head that reads most source words",
        "request": "as requested",
    }[head.chosen_by]
    output.print(f"layer {head.layer}, head {head.head}, weighted by {head.weighting} ({reason})")
    if found.aer is not None and found.interval is not None:
        low, high = found.interval
        output.print(f"alignment error rate  {found.aer:.4f}, 95 % interval {low:.4f} to {high:.4f}")
        output.print(f"  untrained model     {found.untrained_aer:.4f}, with the best of its own heads")
        output.print(f"  diagonal            {found.diagonal_aer:.4f}, without a model")
    if found.skipped:
        output.print(
            f"{found.skipped} pairs have no usable gold links: they are truncated or have other words"
        )
    output.print(f"{found.trust}: {MEANING[found.trust]}")


def _show_pair(pair: AlignedPair, output: Output) -> None:
    """Print a pair with the source words of each target word; a wrong link has an exclamation mark."""
    output.print(" ".join(pair.source))
    cells = []
    for column, word in enumerate(pair.target):
        linked = []
        for one, other in pair.links:
            is_wrong = pair.possible is not None and (one, other) not in pair.possible
            linked += [pair.source[one] + "!" * is_wrong] if other == column else []
        cells.append(f"{word}[{' '.join(linked) or '–'}]")
    output.print("  " + " ".join(cells))
