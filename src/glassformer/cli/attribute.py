"""`glassformer attribute RUN [INPUT]`: which input tokens, heads or layers carry an output."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from glassformer.cli.arguments import add_input, add_run, open_run, print_warning
from glassformer.cli.output import DelayedProgress, Output

if TYPE_CHECKING:
    from glassformer.inspection.gradients import LogitParts, TokenAttribution

BAR = 20
"""Length of the longest bar, in characters."""
MOST_ROWS = 40
DIRECT = "exact arithmetic; counts direct contributions, not those through later layers"
EXAMPLES = (
    'glassformer attribute runs/classification-1 "a lovely film" --rather-than negative',
    'glassformer attribute runs/arithmetic-1 "27 - 35" --output 1 --matrix',
    'glassformer attribute runs/arithmetic-1 "27 - 35" --method logits',
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_input(parser)
    add = parser.add_argument
    method_help = "integrated-gradients, gradient-input or occlusion of tokens; logits of heads and layers"
    add("--method", default="integrated-gradients", metavar="METHOD", help=method_help)
    add("--output", type=int, help="position of the output to explain, counted from 0 (default: the first)")
    add("--rather-than", metavar="OUTPUT", help="output to contrast with (default: the second most likely)")
    matrix_help = "also attribute every generated token of an encoder-decoder to every input token"
    add("--matrix", action="store_true", help=matrix_help)


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    model = open_run(arguments)
    text = " ".join(arguments.input) or None
    with DelayedProgress("computing the attributions") as progress:
        found = model.attribute(
            text,
            arguments.method,
            output=arguments.output,
            rather_than=arguments.rather_than,
            progress=progress,
        )
    document = {"run": str(arguments.run), **found.document()}
    _show(found, output)
    if arguments.matrix:
        with DelayedProgress("attributing generated tokens") as progress:
            outputs, matrix = model.attribution_matrix(text, arguments.method, progress=progress)
        document |= {"outputs": outputs, "matrix": matrix.tolist()}
        output.print("attribution of each generated token (rows) to each input token")
        for name, row in zip(outputs, matrix.tolist(), strict=True):
            output.print(f"  {name:<12} " + " ".join(f"{value:7.2f}" for value in row))
    print_warning(found.warning, output)
    return document


def _show(found: TokenAttribution | LogitParts, output: Output) -> None:
    from glassformer.inspection.maps import MEANING

    document = found.document()
    output.print(f"{document['method']}: {document['contrast']} is {document['target_difference']:.4f}")
    rows = list(zip(document["tokens"], document["values"], strict=True))
    largest = max((abs(value) for _, value in rows), default=0.0) or 1.0
    if len(rows) > MOST_ROWS:
        rows = sorted(rows, key=lambda each: -abs(each[1]))[:MOST_ROWS]
        output.print(f"the {MOST_ROWS} largest of {len(document['tokens'])}")
    for name, value in rows:
        bar = ("+" if value >= 0 else "−") * round(BAR * abs(value) / largest)
        output.print(f"  {name:<24} {value:8.3f}  {bar}")
    output.print(_check(document))
    if "comprehensiveness" in document:
        output.print(
            f"faithfulness: removing the top tokens lowers the difference by"
            f" {document['comprehensiveness']:.3f} (random order {document['random_comprehensiveness']:.3f},"
            f" occlusion {document['occlusion_comprehensiveness']:.3f})"
        )
        output.print(
            f"              keeping only them lowers it by {document['sufficiency']:.3f}"
            f" (random order {document['random_sufficiency']:.3f},"
            f" occlusion {document['occlusion_sufficiency']:.3f})"
        )
    if document.get("untrained_correlation") is not None:
        output.print(f"correlation with the untrained model: {document['untrained_correlation']:.2f}")
    meaning = DIRECT if document["method"] == "logits" else MEANING[found.trust]
    output.print(f"{document['trust']}: {meaning}")


def _check(document: dict[str, Any]) -> str:
    """Return the line that compares the sum of the values with the number that they share out."""
    total, target = f"the values sum to {document['sum']:.4f}", f"{document['target_difference']:.4f}"
    error = f"(error {document['completeness_error']:.2g})"
    if "baseline_difference" not in document:
        return f"check: {total}; the difference is {target} {error}"
    return (
        f"check: input {target} − baseline {document['baseline_difference']:.4f}"
        f" = {document['shared_difference']:.4f} to share out; {total} {error}"
    )
