"""`glassformer options [PATH]`: list and explain config options, their types, bounds, defaults and kinds."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from typing import TYPE_CHECKING, Any

from glassformer.cli.arguments import add_plugin, load_plugins
from glassformer.cli.output import Output

if TYPE_CHECKING:
    from glassformer.core.options import KindEntry, Match, OptionEntry

EXAMPLES = (
    "glassformer options  # the sections of a config",
    "glassformer options model  # all options of a section",
    "glassformer options model.position  # every kind of a choice, explained",
    "glassformer options training.optimizer.learning_rate",
    "glassformer options task.kind=classification",
    "glassformer options rotary  # a kind by its name",
    "glassformer options dropout  # an option by its name, in any section",
)
MOST_COLUMNS = 100
INDENT = 4


def configure(parser: argparse.ArgumentParser) -> None:
    path_help = "path of an option, section or choice; the end of a path; or the name of a kind"
    parser.add_argument("path", metavar="PATH", nargs="?", default="", help=path_help)
    add_plugin(parser)


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    from glassformer.cli.arguments import import_without_gc

    import_without_gc("glassformer.runs.experiment")
    from glassformer.core.options import find_options, option_tree
    from glassformer.runs.experiment import ExperimentConfig

    load_plugins(arguments)
    root = option_tree(ExperimentConfig)
    page = _Page(output, min(shutil.get_terminal_size().columns, MOST_COLUMNS))
    if not arguments.path:
        page.show_sections(root)
        return {"query": "", **root.document()}
    first, *others = find_options(root, arguments.path)
    for match in (first, *others):
        page.show(match)
    page.show_how_to_set(first)
    return {
        "query": arguments.path,
        **first.document(),
        "others": [match.document() for match in others],
    }


class _Page:
    """Text of the explanations, wrapped to the width of the terminal."""

    def __init__(self, output: Output, width: int) -> None:
        self.output = output
        self.width = width

    def show_sections(self, root: OptionEntry) -> None:
        """Print one line per section of the config."""
        self._write("A config has these sections. PATH=VALUE sets an option, as in")
        self._write("glassformer train reversal model.num_layers=2", INDENT)
        for entry in root.options:
            kinds = f" ({len(entry.kinds)} kinds)" if len(entry.kinds) > 1 else ""
            self._write(f"{entry.path:<12}{entry.option.description}{kinds}", hanging=12)
        self._write("details: glassformer options model, or any other section, path or name")

    def show(self, match: Match) -> None:
        """Print everything about one option."""
        entry = match.entry
        if match.conditions:
            self._write(f"with {conditions_text(match.conditions)}:", style="dim")
        if entry.kinds:
            self._show_choice(entry, match.kind)
        elif entry.options:
            self._write(f"{entry.path}: {entry.option.description}", style="bold")
            self._show_options(entry.options, 2)
        else:
            self._write(entry.path, style="bold")
            self._write(value_text(entry), INDENT)
            self._write(entry.option.description, INDENT)
        self.output.print()

    def show_how_to_set(self, match: Match) -> None:
        """Print how a choice or an option is set on the command line."""
        entry = match.entry
        if entry.kinds:
            self._write(f"choose a kind: {entry.path}.kind={match.kind or 'NAME'}")
        elif not entry.options:
            self._write(f"set it: {entry.path}=VALUE")

    def _show_choice(self, entry: OptionEntry, only: str | None) -> None:
        default = "required" if entry.option.is_required else f"default: {entry.default}"
        self._write(f"{entry.path}: {entry.option.description} ({default})", style="bold")
        shown = [kind for kind in entry.kinds if only in (None, kind.name)]
        shown.sort(key=lambda kind: kind.name != entry.default)
        for kind in shown:
            self._show_kind(kind, is_brief=len(shown) > 1)

    def _show_kind(self, kind: KindEntry, is_brief: bool) -> None:
        self._write(kind.name, 2, style="bold")
        for text in (kind.description, kind.use):
            self._write(text, 2 + INDENT)
        if is_brief:
            values = ", ".join(_assignment(entry) for entry in kind.options)
            self._write(values and f"options: {values}", 2 + INDENT)
        else:
            self._show_options(kind.options, 2 + INDENT)

    def _show_options(self, entries: list[OptionEntry], indent: int) -> None:
        for entry in entries:
            self._write(f"{entry.path}  {value_text(entry)}", indent, hanging=2 * INDENT)
            self._write(entry.option.description, indent + INDENT)

    def _write(self, text: str, indent: int = 0, *, hanging: int = 0, style: str = "") -> None:
        lines = textwrap.wrap(
            text,
            self.width,
            initial_indent=" " * indent,
            subsequent_indent=" " * (indent + hanging),
            break_on_hyphens=False,
        )
        for line in lines:
            self.output.print(line, style=style)


def _assignment(entry: OptionEntry) -> str:
    """Return an option with its default, as in `base=10000.0`; only its name if it is a section."""
    from glassformer.core.config import format_value

    is_bare = entry.option.is_required or entry.option.type == "section"
    return entry.option.name if is_bare else f"{entry.option.name}={format_value(entry.default)}"


def conditions_text(conditions: tuple[str, ...]) -> str:
    """Join conditions to one text: `task.kind=copy` and `task.kind=sort` give `task.kind=copy or sort`."""
    names: dict[str, list[str]] = {}
    for condition in conditions:
        path, _, name = condition.partition("=")
        names.setdefault(path, []).append(name)
    return " and ".join(f"{path}={' or '.join(kinds)}" for path, kinds in names.items())


BOUND_TEXTS = {
    "minimum": "at least {:,}",
    "above": "above {:,}",
    "maximum": "at most {:,}",
    "below": "below {:,}",
    "multiple_of": "a multiple of {:,}",
}


def value_text(entry: OptionEntry) -> str:
    """Return type, bounds and default of an option as one line."""
    from glassformer.core.config import format_value

    option = entry.option
    text = option.type_text
    is_section = option.type == "section" or len(entry.kinds) == 1
    if len(entry.kinds) > 1:
        text = "one of " + ", ".join(kind.name for kind in entry.kinds)
    limits = [BOUND_TEXTS[name].format(limit) for name, limit in option.bounds.items()]
    text = ", ".join([text, *limits]) + (", or null" if option.is_optional else "")
    if option.is_required:
        return f"{text} (required)"
    return text if is_section else f"{text} (default: {format_value(entry.default)})"
