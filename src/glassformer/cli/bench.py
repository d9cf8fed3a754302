"""`glassformer bench NAME`: run one benchmark, and record its result or compare with a recorded one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.bench import benchmarks
from glassformer.bench.base import DEFAULT, RATIO_TOLERANCE, record, regressions
from glassformer.cli.output import DelayedProgress, Output

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

EXAMPLES = (
    "glassformer bench attention",
    "glassformer bench startup --json",
)


def configure(parser: argparse.ArgumentParser) -> None:
    known = benchmarks()
    width = max(map(len, known)) + 2
    lines = [
        f"  {name:<{width}}{(kind.__doc__ or '').strip().splitlines()[0]}" for name, kind in known.items()
    ]
    parser.epilog = "\n".join(["benchmarks:", *lines])
    parser.add_argument("name", metavar="NAME", help="name of the benchmark, from the list below")
    for option, help_text in (
        ("--record", "store the result in the JSON file FILE, and write a Markdown page beside it"),
        ("--check", f"fail if a speed ratio is below {RATIO_TOLERANCE:g} times the one recorded in FILE"),
    ):
        parser.add_argument(
            option,
            nargs="?",
            const=DEFAULT,
            type=Path,
            metavar="FILE",
            help=f"{help_text} (default: {DEFAULT})",
        )
    fields: dict[str, dict[str, FieldInfo]] = {}
    for kind_name, kind in known.items():
        for name, field in kind.model_fields.items():
            if name != "kind":
                fields.setdefault(name, {})[kind_name] = field
    for name, by_kind in fields.items():
        _add_option(parser, name, by_kind)


def _add_option(parser: argparse.ArgumentParser, name: str, by_kind: dict[str, FieldInfo]) -> None:
    """Add one command-line option for a config field that one or more benchmarks have.

    If their descriptions of the field differ, the help text lists each one after the names of its benchmarks.
    """
    flag = f"--{name.replace('_', '-')}"
    described: dict[str, list[str]] = {}
    for kind_name, field in by_kind.items():
        default = "" if field.default in (None, False) else f" (default: {field.default})"
        described.setdefault(f"{field.description}{default}", []).append(kind_name)
    parts = [
        text if len(described) == 1 else f"{', '.join(names)}: {text}" for text, names in described.items()
    ]
    # argparse formats the help text with %.
    help_text = "; ".join(parts).replace("%", "%%")
    if all(field.default is False for field in by_kind.values()):
        parser.add_argument(flag, action="store_true", default=argparse.SUPPRESS, help=help_text)
    else:
        parser.add_argument(flag, dest=name, metavar="VALUE", default=argparse.SUPPRESS, help=help_text)


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    from glassformer.core.config import parse_yaml, validate
    from glassformer.core.errors import user_error

    known = benchmarks()
    if arguments.name not in known:
        raise user_error("no such benchmark", path="NAME", value=arguments.name, allowed=list(known))
    common = ("name", "json", "record", "check")
    given = {key: value for key, value in vars(arguments).items() if key not in common}
    options = {
        key: parse_yaml(value, f"--{key}") if isinstance(value, str) else value
        for key, value in given.items()
    }
    benchmark = validate(known[arguments.name], {"kind": arguments.name, **options})
    with DelayedProgress("samples") as progress:
        result = benchmark.run(lambda done, total: progress("samples", done, total))
    output.show(benchmark.show(result))
    output.print(str(result.machine))
    errors = [result.error] if result.error else []
    if arguments.check:
        errors += regressions(arguments.check, result)
    if arguments.record:
        changed = [f"--{key.replace('_', '-')} {value}" for key, value in given.items()]
        page = record(arguments.record, result, " ".join(["glassformer bench", arguments.name, *changed]))
        output.print(f"recorded in {arguments.record} and {page}")
    for error in errors:
        output.print(f"FAILED: {error}")
        output.exit_code = 1
    return result.document()
