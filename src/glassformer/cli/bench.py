"""`glassformer bench NAME`: a benchmark's options are the fields of its class."""

from __future__ import annotations

import argparse
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.bench import benchmarks
from glassformer.bench.records import DEFAULT, MAY_FALL_TO, fallen, record
from glassformer.cli.output import Output

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo
    from rich.progress import Progress

QUIET_SECONDS = 2.0


def configure(parser: argparse.ArgumentParser) -> None:
    known = benchmarks()
    width = max(map(len, known)) + 2
    lines = [
        f"  {name:<{width}}{(kind.__doc__ or '').strip().splitlines()[0]}" for name, kind in known.items()
    ]
    parser.epilog = "\n".join(["benchmarks:", *lines])
    parser.add_argument("name", metavar="NAME", help="which benchmark")
    for option, help_text in (
        ("--record", "keep the result in FILE, and a page beside it"),
        ("--check", f"fail when a ratio is below {MAY_FALL_TO:g} of the one kept in FILE"),
    ):
        parser.add_argument(
            option, nargs="?", const=DEFAULT, type=Path, metavar="FILE", help=f"{help_text} ({DEFAULT})"
        )
    fields: dict[str, dict[str, FieldInfo]] = {}
    for kind_name, kind in known.items():
        for name, field in kind.model_fields.items():
            if name != "kind":
                fields.setdefault(name, {})[kind_name] = field
    for name, by_kind in fields.items():
        _add_option(parser, name, by_kind)


def _add_option(parser: argparse.ArgumentParser, name: str, by_kind: dict[str, FieldInfo]) -> None:
    """Without a default: that is written once, on the field."""
    flag = f"--{name.replace('_', '-')}"
    described: dict[str, list[str]] = {}
    for kind_name, field in by_kind.items():
        unless_said = "" if field.default in (None, False) else f" ({field.default} unless said)"
        described.setdefault(f"{field.description}{unless_said}", []).append(kind_name)
    parts = [
        text if len(described) == 1 else f"{', '.join(names)}: {text}" for text, names in described.items()
    ]
    # The help of an option is a format string.
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
    kept = ("name", "json", "record", "check")
    given = {key: value for key, value in vars(arguments).items() if key not in kept}
    options = {
        key: parse_yaml(value, f"--{key}") if isinstance(value, str) else value
        for key, value in given.items()
    }
    benchmark = validate(known[arguments.name], {"kind": arguments.name, **options})
    with LateProgress(output) as progress:
        result = benchmark.run(progress)
    output.show(benchmark.show(result))
    output.say(str(result.machine))
    complaints = [result.complaint] if result.complaint else []
    if arguments.check:
        complaints += fallen(arguments.check, result)
    if arguments.record:
        changed = [f"--{key.replace('_', '-')} {value}" for key, value in given.items()]
        page = record(arguments.record, result, " ".join(["glassformer bench", arguments.name, *changed]))
        output.say(f"recorded in {arguments.record} and {page}")
    for complaint in complaints:
        output.say(f"FAILED: {complaint}")
        output.exit_code = 1
    return result.document()


class LateProgress:
    """A bar on a terminal, a line elsewhere, and nothing at all for what is soon over."""

    def __init__(self, output: Output, unit: str = "samples") -> None:
        self.output = output
        self.unit = unit
        self.done, self.total = 0, 0
        self.bar: Progress | None = None
        self.timer = threading.Timer(QUIET_SECONDS, self._appear)
        self.timer.daemon = True

    def __call__(self, done: int, total: int) -> None:
        self.done, self.total = done, total
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=done, total=total)

    def _appear(self) -> None:
        """In a thread of its own: the first sample may take long."""
        if not self.output.console.is_terminal:
            of_all = f": {self.done} of {self.total} {self.unit}" if self.total else ""
            self.output.say(f"measuring{of_all}")
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

        columns = (MofNCompleteColumn(), BarColumn(), TimeElapsedColumn())
        bar = Progress(*columns, console=self.output.console, transient=True)
        bar.add_task(self.unit, total=self.total or None, completed=self.done)
        bar.start()
        self.bar = bar

    def __enter__(self) -> LateProgress:
        self.timer.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.timer.cancel()
        self.timer.join()
        if self.bar is not None:
            self.bar.stop()
