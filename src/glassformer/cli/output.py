"""Where words go. With `--json`, standard output is one JSON document, and all else is on standard error."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from glassformer.core.errors import UserError
from glassformer.storage.files import finite

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


class Output:
    """`say` and `show` speak to a person; what a verb returns is for a program."""

    def __init__(self, is_json: bool) -> None:
        self.is_json = is_json
        self.exit_code = 0
        self._has_given = False
        self._is_muted = False
        self._console: Console | None = None

    @property
    def console(self) -> Console:
        if self._console is None:
            from rich.console import Console

            self._console = Console(stderr=self.is_json, highlight=False, soft_wrap=True)
        return self._console

    def mute(self) -> None:
        """For one of several processes that do the same: another one speaks."""
        self._is_muted = True

    def say(self, text: str = "", style: str = "") -> None:
        """A plain line: brackets in it are brackets."""
        if self._is_muted:
            return
        stream = sys.stderr if self.is_json else sys.stdout
        if style and stream.isatty():
            self.console.print(text, style=style, markup=False)
        else:
            print(text, file=stream, flush=True)

    def show(self, *renderables: RenderableType) -> None:
        """Tables and the like."""
        for renderable in renderables:
            self.console.print(renderable)

    def error(self, error: UserError) -> None:
        self._has_given = True
        print(f"glassformer: {error}", file=sys.stderr, flush=True)
        if self.is_json and not self._is_muted:
            problems = [
                {"place": problem.path, "problem": problem.message, "hint": problem.hint}
                for problem in error.details
            ]
            _print_json({"errors": problems})

    def give(self, document: dict[str, Any]) -> None:
        """The one JSON document, now: for a verb that goes on long after it."""
        self._has_given = True
        if self.is_json and not self._is_muted:
            _print_json(document)

    def finish(self, result: dict[str, Any] | None) -> int:
        if not self._has_given:
            self.give(result or {})
        return self.exit_code


def _print_json(document: dict[str, Any]) -> None:
    is_unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(json.dumps(finite(document), ensure_ascii=not is_unicode), flush=True)
