"""`glassformer generate RUN [PROMPT]`: sample text from a language model."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from glassformer.cli.arguments import add_run, add_weights, check_minimum, open_run
from glassformer.cli.output import Output

EXAMPLES = ('glassformer generate runs/shakespeare-1 "ROMEO:" --length 300 --temperature 0.7',)


def configure(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add = parser.add_argument
    add("prompt", metavar="PROMPT", nargs="?", default="", help="text that the model continues")
    add("--length", type=int, default=200, help="maximum number of new tokens per text")
    add("--count", type=int, default=1, help="number of texts to generate")
    add("--temperature", type=float, default=0.8, metavar="T", help="sampling temperature; 0 is greedy")
    add("--top-k", type=int, metavar="K", help="sample only from the K most probable tokens")
    add("--top-p", type=float, metavar="P", help="sample only from the top tokens with total probability P")
    add_weights(parser)
    add("--seed", type=int, default=0, help="random seed; the same seed generates the same texts")


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    from glassformer.core.errors import UserError
    from glassformer.tasks.language import prompt_warning

    check_minimum(arguments, length=1, count=1, seed=0)
    trained = open_run(arguments, weights=arguments.weights)
    options = {name: getattr(arguments, name) for name in ("temperature", "top_k", "top_p", "seed")}
    warning = prompt_warning(trained.task, arguments.prompt)
    if warning is not None:
        print(f"warning: the prompt: {warning}", file=sys.stderr, flush=True)
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
    return {"run": str(arguments.run), "prompt": arguments.prompt, "warning": warning, "texts": texts}


def _type(text: str, output: Output) -> None:
    print(text, end="", file=sys.stderr if output.is_json else sys.stdout, flush=True)
