"""The command line: one small module a verb. Nothing heavy is imported until a verb needs it.

A verb's module has `configure(parser)` and `run(arguments, output)`; what `run` returns is the one JSON
document of `--json`, and `output` carries everything meant for people.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from glassformer import __version__
from glassformer.core.errors import ErrorDetail, UserError, is_out_of_memory, near_match, user_error

VERBS = {
    "train": "train a model; its folder keeps everything about it",
    "evaluate": "measure a trained model on a split",
    "predict": "ask a trained model",
    "generate": "let a trained language model write",
    "attention": "draw the attention maps of a trained model for an input",
    "studio": "a page on this machine: runs as they train, and a look inside them",
    "trace": "how a trained model came to its answer: steps, alternatives, branches",
    "heads": "every head of a trained model in numbers, beside the untrained one",
    "intervene": "switch a head off, cut an attention edge or hide a token, and see what it does",
    "params": "parameters, FLOPs, memory, expected time here",
    "doctor": "check a model, or this machine, before a long run",
    "bench": "measure speed",
    "prove-resume": "show that an interrupted run equals an uninterrupted one, to the bit",
    "sweep": "train many variants, on one machine or many, and say which is best",
    "reproduce": "regenerate a published table beside ours",
    "report": "one page about runs or a study: results, curves, samples, maps, commands",
    "runs": "list, compare and remove runs",
    "data": "list and fetch public data sets; check your own files before training",
}


REFUSED_NAMES = {errno.ENAMETOOLONG, errno.EACCES, errno.ELOOP}
"""What a system says of a name that a person gave; everywhere, so it is answered here. Even to ask whether
such a file exists is an error."""


def main(argv: Sequence[str] | None = None) -> int:
    _print_whatever_comes()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        print(f"glassformer {__version__}")
        return 0
    return _run_verb(arguments[0], arguments[1:])


def _print_whatever_comes() -> None:
    """A name of a file may be no UTF-8, and a terminal may know ASCII alone: neither is a reason to fail."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _help() -> str:
    lines = ["Train Transformers on your own sequences, and see through them.", ""]
    lines += ["usage: glassformer VERB ... [--json]      glassformer VERB --help says more", ""]
    lines += [f"  {verb:<14}{text}" for verb, text in VERBS.items()]
    lines += ["", "first:  glassformer train reversal", f"version {__version__}"]
    return "\n".join(lines)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in two lines, without the usage."""

    def error(self, message: str) -> NoReturn:
        if "are required" in message:  # argparse would also name what may be left out
            needed = [
                str(action.metavar)
                for action in self._get_positional_actions()
                if action.nargs in (None, argparse.ONE_OR_MORE)
            ]
            message = f"needs {' '.join(needed)}"
        near = near_match(message.rpartition(": ")[2], self._option_string_actions)
        hint = f"did you mean {near!r}?" if near else f"try:     {self.prog} --help"
        self.exit(2, f"{self.prog}: {message}\n  {hint}\n")


def _run_verb(verb: str, rest: list[str]) -> int:
    from glassformer.cli.output import Output

    if verb not in VERBS:
        near = near_match(verb, VERBS)
        hint = f"  did you mean {near!r}?" if near else f"  allowed: {', '.join(VERBS)}"
        print(f"glassformer: unknown verb {verb!r}\n{hint}", file=sys.stderr)
        return 2
    module = importlib.import_module(f"glassformer.cli.{verb.replace('-', '_')}")
    parser = _Parser(
        prog=f"glassformer {verb}",
        description=VERBS[verb],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="standard output is exactly one JSON document")
    module.configure(parser)
    try:
        arguments = parser.parse_intermixed_args(rest)
    except SystemExit as stop:
        return int(stop.code or 0)
    output = Output(is_json=arguments.json)
    try:
        return output.finish(module.run(arguments, output))
    except UserError as error:
        output.error(error)
        return 2
    except ErrorDetail as problem:
        output.error(UserError(problem))
        return 2
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        output.error(user_error("not enough memory here", hint="a smaller model, batch or data set"))
        return 2
    except KeyboardInterrupt:
        output.say("stopped")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in REFUSED_NAMES or error.filename is None:
            raise
        name, reason = os.fsdecode(error.filename), os.strerror(error.errno)
        output.error(user_error(f"cannot be looked at: {reason}", path=name, hint="check the name"))
        return 2
