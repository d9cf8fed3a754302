"""Command line with one module per verb, such as `glassformer train`.

Each module has `EXAMPLES`, command lines for its `--help`; `configure(parser)`, which adds its options; and
`run(arguments, output)`, which prints text to `output` and returns the dict that `--json` prints. Heavy
packages are imported only inside `run`.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import os
import re
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

from glassformer import __version__
from glassformer.core.errors import (
    ErrorDetail,
    UserError,
    is_out_of_memory,
    near_match,
    suggest_path,
    user_error,
)

VERBS = {
    "train": "train a model and store everything about it in a run folder",
    "evaluate": "measure a trained model on a split",
    "predict": "apply a trained model to inputs",
    "generate": "generate text with a trained language model",
    "attention": "draw the attention maps of a trained model for an input",
    "serve": "serve trained models over HTTP: predictions, completions, translations, attention maps",
    "studio": "serve a local web page that shows runs while they train, and inspects them",
    "trace": "show how a trained model decoded an output: steps, alternatives, beams",
    "heads": "measure what each attention head attends to, and compare with the untrained model",
    "intervene": "ablate a head, ablate an attention edge or hide a token, and measure the effect",
    "patch": "copy activations between two inputs, and measure which of them carry the output",
    "attribute": "show which input tokens, heads or layers carry an output rather than another",
    "probe": "measure which labels can be read from each layer and position, beside controls",
    "align": "link source words to generated words by cross-attention, and measure the links",
    "options": "list and explain config options: types, bounds, defaults, and every kind of a choice",
    "params": "count parameters, FLOPs and memory, and estimate the training time on this machine",
    "doctor": "check a model, or this machine, before a long run",
    "bench": "measure the speed of training, decoding and other parts, and compare with other libraries",
    "prove-resume": "prove that a run that was killed and resumed is bit-identical to an uninterrupted one",
    "sweep": "train many variants of a config, on one or more machines, and report the best",
    "reproduce": "reproduce a published table of results, beside the published numbers",
    "report": "write one HTML page about runs or a study: results, curves, samples, maps, commands",
    "export": "write a trained model for another library, and verify that its outputs are the same",
    "models": "list, fetch and import trained models of other libraries, as runs",
    "runs": "list, compare and remove runs",
    "data": "list and fetch public data sets; check your own files before training",
}

FINISHING = ("train", "sweep", "reproduce", "bench", "prove-resume", "report", "export", "serve", "studio")
"""Verbs whose main result is not their output. They finish if the reader of their output ends early."""
CLOSED_PIPE = 141
"""Exit code of the other verbs if the reader of their output ends early: 128 + SIGPIPE, as usual."""

UNUSABLE_PATH = {errno.ENAMETOOLONG, errno.EACCES, errno.ELOOP}
"""Error numbers of the operating system for a path that cannot be used. Even `Path.exists` raises them."""


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
    """Make the output streams escape characters that the terminal cannot encode, as in some file names."""
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
    """Help formatter that appends the default of each option to its help text."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        is_hidden = action.default is False or action.default in (None, "", [], argparse.SUPPRESS)
        return action.help if is_hidden else f"{action.help} (default: %(default)s)"

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        return "N" if action.type is int else super()._get_default_metavar_for_optional(action)


class _Parser(argparse.ArgumentParser):
    """Argument parser that reports an error in two lines and does not print the usage."""

    def error(self, message: str) -> NoReturn:
        if "are required" in message:  # argparse would also list the optional arguments
            needed = [
                str(action.metavar)
                for action in self._get_positional_actions()
                if action.nargs in (None, argparse.ONE_OR_MORE)
            ]
            message = f"needs {' '.join(needed)}"
        near = near_match(message.rpartition(": ")[2], self._option_string_actions)
        hint = f"did you mean {near!r}?" if near else f"try:     {self._meant(message)}"
        self.exit(2, f"{self.prog}: {message}\n  {hint}\n")

    def _meant(self, message: str) -> str:
        """Return the config option that an unknown `--NAME VALUE` means, as PATH=VALUE; else the help."""
        unknown = re.search(r"unrecognized arguments: --([\w.-]+)(?:[ =](\S+))?", message)
        if unknown is None or not any(action.dest == "overrides" for action in self._actions):
            return f"{self.prog} --help"
        from glassformer.core.options import all_options, option_tree
        from glassformer.runs.experiment import ExperimentConfig

        paths = [match.entry.path for match in all_options(option_tree(ExperimentConfig))]
        path = suggest_path(unknown[1].replace("-", "_"), paths)
        return f"{path}={unknown[2] or 'VALUE'}" if path else f"{self.prog} --help"


def make_parser(verb: str) -> argparse.ArgumentParser:
    """Return the argument parser of a verb. Its help ends with the verb's examples."""
    module = _module(verb)
    parser = _Parser(
        prog=f"glassformer {verb}",
        description=VERBS[verb],
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--json", action="store_true", help="print the result as one JSON object on standard output"
    )
    module.configure(parser)
    examples = "\n".join(["examples:", *(f"  {example}" for example in module.EXAMPLES)])
    parser.epilog = f"{parser.epilog}\n\n{examples}" if parser.epilog else examples
    return parser


def _module(verb: str) -> ModuleType:
    return importlib.import_module(f"glassformer.cli.{verb.replace('-', '_')}")


def _run_verb(verb: str, rest: list[str]) -> int:
    from glassformer.cli.output import Output, discard_unread_output

    if verb not in VERBS:
        near = near_match(verb, VERBS)
        hint = f"  did you mean {near!r}?" if near else f"  allowed: {', '.join(VERBS)}"
        print(f"glassformer: unknown verb {verb!r}\n{hint}", file=sys.stderr)
        return 2
    module = _module(verb)
    try:
        arguments = make_parser(verb).parse_intermixed_args(rest)
    except SystemExit as stop:
        return int(stop.code or 0)
    output = Output(is_json=arguments.json)
    if verb in FINISHING:
        discard_unread_output()
    try:
        return output.finish(module.run(arguments, output))
    except KeyboardInterrupt:
        output.print("stopped")
        return 130
    except BrokenPipeError:
        for stream in (sys.stdout, sys.stderr):  # Python flushes both at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return CLOSED_PIPE
    except Exception as error:
        reported = _as_user_error(error)
        if reported is None:
            raise
        output.error(reported)
        return 2


def _as_user_error(error: Exception) -> UserError | None:
    """Return the error to print without a traceback, or None if the error is a bug in this package."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, ErrorDetail):
        return UserError(error)
    if is_out_of_memory(error):
        return user_error("out of memory", hint="use a smaller model, batch or data set")
    if isinstance(error, OSError) and error.errno in UNUSABLE_PATH and error.filename is not None:
        reason = f"the path cannot be opened: {os.strerror(error.errno)}"
        return user_error(reason, path=os.fsdecode(error.filename), hint="check the path and its permissions")
    return None
