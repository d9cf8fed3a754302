"""`glassformer generate RUN [PROMPT]`: a language model writes."""

from __future__ import annotations

import argparse
from itertools import count
from typing import Any

from glassformer.cli.output import Output
from glassformer.cli.what import add_plugin, load_plugins


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="the folder of a language model's run")
    parser.add_argument("prompt", metavar="PROMPT", nargs="?", default="", help="how the text begins")
    parser.add_argument("--length", type=int, default=200, help="tokens at most (default: 200)")
    parser.add_argument("--count", type=int, default=1, help="how many texts (default: 1)")
    parser.add_argument(
        "--temperature", type=float, default=0.8, help="0: always the likeliest (default: 0.8)"
    )
    parser.add_argument("--top-k", type=int, help="draw from this many likeliest tokens")
    parser.add_argument("--top-p", type=float, help="draw from the likeliest tokens with this probability")
    parser.add_argument("--seed", type=int, default=0, help="the same seed writes the same (default: 0)")
    parser.add_argument("--checkpoint", default="best", help="best, latest or a step (default: best)")
    add_plugin(parser)


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    from glassformer.core.config import validate
    from glassformer.core.errors import UserError, user_error
    from glassformer.evaluation.evaluate import EvaluationConfig
    from glassformer.runs.run import Run
    from glassformer.tasks.language import CausalLanguageTask

    load_plugins(arguments)
    for name, least in (("length", 1), ("count", 1), ("seed", 0)):
        if getattr(arguments, name) < least:
            raise user_error(f"must be at least {least}", path=f"--{name}", value=getattr(arguments, name))
    trained = Run(arguments.run, arguments.checkpoint)
    task = trained.task
    if not isinstance(task, CausalLanguageTask):
        raise user_error(
            "is no language model of text",
            path=arguments.run,
            hint=f"glassformer predict {arguments.run} INPUT",
        )

    def decoding(seed: int) -> Any:
        if arguments.temperature == 0:
            options: dict[str, Any] = {"kind": "greedy"}
        else:
            options = {"kind": "sample", "temperature": arguments.temperature, "seed": seed}
            options |= {"top_k": arguments.top_k, "top_p": arguments.top_p}
        try:
            return validate(EvaluationConfig, {"decoding": options}).decoding
        except UserError as error:
            for problem in error.details:  # a person typed --top-p, not decoding.top_p
                problem.path = "--" + problem.path.rpartition(".")[2].replace("_", "-")
            raise

    texts = []
    for number in range(arguments.count):
        first = (arguments.seed * 1009 + number) * 1_000_003
        tokens = task.start(arguments.prompt)
        begun = len(tokens)
        shown = ""
        for part in task.write(trained.model, tokens, arguments.length, map(decoding, count(first))):
            tokens += part
            text = task.show_output(tokens)
            _type(text[len(shown) :], output)
            shown = text
        output.say()
        texts.append({"text": shown, "tokens": len(tokens) - begun})
    return {"run": str(arguments.run), "prompt": arguments.prompt, "texts": texts}


def _type(text: str, output: Output) -> None:
    import sys

    print(text, end="", file=sys.stderr if output.is_json else sys.stdout, flush=True)
