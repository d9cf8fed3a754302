"""Command line: one module per verb. Heavy packages are imported only by the verb that needs them.

The module of a verb has `configure(parser)` and `run(arguments, output)`. The result of `run` is the JSON
document of `--json`; text for people goes to `output`.
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
    "train": "train a model and store everything about it in a run folder",
    "evaluate": "measure a trained model on a split",
    "predict": "apply a trained model to inputs",
    "generate": "generate text with a trained language model",
    "attention": "draw the attention maps of a trained model for an input",
    "studio": "serve a local web page: watch runs train, and inspect them",
    "trace": "trace how a trained model decoded its output: steps, alternatives, beams",
    "heads": "statistics of every attention head, beside those of the untrained model",
    "intervene": "ablate a head, ablate an attention edge or hide a token, and measure the effect",
    "params": "count parameters, FLOPs and memory; estimate the training time here",
    "doctor": "check a model, or this machine, before a long run",
    "bench": "measure speed",
    "prove-resume": "prove that an interrupted run equals an uninterrupted one, to the bit",
    "sweep": "train many variants, on one or more machines, and report the best",
    "reproduce": "regenerate a published table beside ours",
    "report": "write one page about runs or a study: results, curves, samples, maps, commands",
    "runs": "list, compare and remove runs",
    "data": "list and fetch public data sets; check your own files before training",
}


UNUSABLE_PATH = {errno.ENAMETOOLONG, errno.EACCES, errno.ELOOP}
"""OS errors for an unusable path, handled here for all verbs: even testing whether it exists raises them."""


def main(argv: Sequence[str] | None = None) -> int:
    _escape_unencodable_output()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        print(f"glassformer {__version__}")
        return 0
    return _run_verb(arguments[0], arguments[1:])


def _escape_unencodable_output() -> None:
    """Escape characters that the terminal cannot encode: a file name may not be UTF-8."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _help() -> str:
    lines = ["Train Transformers on your own sequences, and see through them.", ""]
    lines += ["usage: glassformer VERB ... [--json]      details: glassformer VERB --help", ""]
    lines += [f"  {verb:<14}{text}" for verb, text in VERBS.items()]
    lines += ["", "start with:  glassformer train reversal", f"version {__version__}"]
    return "\n".join(lines)


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help texts with the default of each option, which is declared once."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        is_hidden = action.default is False or action.default in (None, "", [], argparse.SUPPRESS)
        return action.help if is_hidden else f"{action.help} (default: %(default)s)"

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        return "N" if action.type is int else super()._get_default_metavar_for_optional(action)


class _Parser(argparse.ArgumentParser):
    """Argument parser that reports an error in two lines, without the usage."""

    def error(self, message: str) -> NoReturn:
        if "are required" in message:  # argparse would also list the optional arguments
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
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document to standard output, and nothing else"
    )
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
    except ErrorDetail as detail:
        output.error(UserError(detail))
        return 2
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        output.error(user_error("out of memory", hint="a smaller model, batch or data set"))
        return 2
    except KeyboardInterrupt:
        output.print("stopped")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in UNUSABLE_PATH or error.filename is None:
            raise
        name, reason = os.fsdecode(error.filename), os.strerror(error.errno)
        output.error(user_error(f"cannot be opened: {reason}", path=name, hint="check the name"))
        return 2
