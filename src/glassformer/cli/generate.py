"""`glassformer generate RUN [PROMPT]`: sample text from a language model."""

from __future__ import annotations

import argparse
from typing import Any

from glassformer.cli.arguments import add_run, open_run
from glassformer.cli.output import Output


def configure(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("prompt", metavar="PROMPT", nargs="?", default="", help="beginning of the text")
    parser.add_argument("--length", type=int, default=200, help="maximum number of new tokens")
    parser.add_argument("--count", type=int, default=1, help="number of texts")
    parser.add_argument(
        "--temperature", type=float, default=0.8, metavar="T", help="sampling temperature; 0 is greedy"
    )
    parser.add_argument("--top-k", type=int, metavar="K", help="sample from the K likeliest tokens")
    parser.add_argument(
        "--top-p", type=float, metavar="P", help="sample from the likeliest tokens of total probability P"
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed; fixes the output")


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    from glassformer.core.errors import UserError, user_error

    for name, least in (("length", 1), ("count", 1), ("seed", 0)):
        if getattr(arguments, name) < least:
            raise user_error(f"must be at least {least}", path=f"--{name}", value=getattr(arguments, name))
    trained = open_run(arguments)
    options = {name: getattr(arguments, name) for name in ("temperature", "top_k", "top_p", "seed")}
    texts = []
    for number in range(arguments.count):
        document: dict[str, Any] = {"text": "", "tokens": 0}
        try:
            for text, tokens in trained.stream(arguments.prompt, arguments.length, number=number, **options):
                _type(text[len(document["text"]) :], output)
                document = {"text": text, "tokens": tokens}
        except UserError as error:
            for detail in error.details:
                if detail.path.startswith("decoding."):  # the user typed --top-p, not decoding.top_p
                    detail.path = "--" + detail.path.rpartition(".")[2].replace("_", "-")
            raise
        output.print()
        texts.append(document)
    return {"run": str(arguments.run), "prompt": arguments.prompt, "texts": texts}


def _type(text: str, output: Output) -> None:
    import sys

    print(text, end="", file=sys.stderr if output.is_json else sys.stdout, flush=True)
