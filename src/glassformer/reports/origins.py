"""Sections on where the numbers come from: machine, data, and the commands that give them again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glassformer import __version__
from glassformer.config import flatten, format_value
from glassformer.reports.commands import command, plugin_words, train_command
from glassformer.reports.content import Content
from glassformer.reports.inside import Inside
from glassformer.reports.markup import Markup, tag
from glassformer.reports.reading import Record
from glassformer.reports.tables import Cell, Table, facts

NOTES = "data_notes"
APART = {NOTES}
MOST_COMMANDS = 24


def environment_section(content: Content) -> list[Markup]:
    """What all runs have alike, then where they differ."""
    with_one = [(record, _facts(record)) for record in content.records if record.environment]
    if not with_one:
        return []
    names = list(dict.fromkeys(name for _, facts in with_one for name in facts))
    alike = [name for name in names if len({format_value(facts.get(name)) for _, facts in with_one}) == 1]
    rows: list[list[Cell]] = [
        [_words(name), _shown(value)] for name in alike if (value := with_one[0][1].get(name)) is not None
    ]
    parts = [tag("p", "The same for all runs:", class_="note")] if rows and len(with_one) > 1 else []
    parts += [facts(rows)] if rows else []
    other = [name for name in names if name not in alike]
    if other:
        cells: list[list[Cell]] = [
            [record.name, *(_shown(facts.get(name)) for name in other)] for record, facts in with_one
        ]
        parts.append(Table("Run by run", ["run", *map(_words, other)], cells).html())
    notes = dict.fromkeys(note for record, _ in with_one for note in _notes(record))
    if notes:
        parts.append(tag("p", "What was noted about the data:"))
        parts.append(tag("ul", *(tag("li", note) for note in notes), class_="note"))
    return parts


def _facts(record: Record) -> dict[str, Any]:
    return {name: value for name, value in flatten(record.environment).items() if name not in APART}


def _notes(record: Record) -> list[str]:
    notes = record.environment.get(NOTES)
    return [str(note) for note in notes] if isinstance(notes, list) else []


def _shown(value: Any) -> str | None:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return None if value is None else str(value)


def _words(name: str) -> str:
    return (
        name.replace("_", " ")
        .replace(".", " ")
        .replace("sha256", "SHA-256")
        .replace(" is clean", ", all committed")
    )


def commands_section(content: Content) -> list[Markup]:
    plugins = plugin_words(content.plugins)
    lines = [command(*words) for study in content.studies for words in study.commands]
    parts: list[Markup] = []
    if lines:
        parts += [tag("p", "The study again; what is finished is not run twice:"), _lines(lines)]
    trainings, without = _trainings(content)
    if trainings:
        listed = _lines([line for _, line in trainings])
        told = f"Each run by itself ({len(trainings)})" if content.studies or len(trainings) > 6 else None
        parts.append(
            tag("details", tag("summary", told), listed) if told else tag("div", tag("p", "Train:"), listed)
        )
    if without:
        parts.append(
            tag(
                "p",
                f"No preset leads to {', '.join(without)}: save the whole config above as config.yaml, then",
            ),
        )
        parts.append(_lines([command("train", "config.yaml", *plugins)]))
    asked = [line for inside in content.insides for line in _questions(inside, plugins)]
    if asked:
        parts += [tag("p", "Measure, and look inside:"), _lines(asked)]
    parts += [tag("p", "This report:"), _lines([command("report", *content.arguments, *plugins)])]
    checksums = {record.environment.get("data_sha256") for record in content.records} - {None}
    told = "Equal numbers need equal data: the checksum above tells." if checksums else ""
    words = f"Written by glassformer {__version__}. {told} Every number was read from the files of the runs."
    return [*parts, tag("p", words, class_="note")]


def _trainings(content: Content) -> tuple[list[tuple[Record, str]], list[str]]:
    """A command for each run, and the names of those that no preset leads to."""
    found: list[tuple[Record, str]] = []
    without: list[str] = []
    for record in content.records:
        line = None
        if record.config is not None and len(found) < MOST_COMMANDS:
            line = train_command(record.config, record.given, content.plugins)
        if line is not None:
            found.append((record, line))
        elif record.config is not None and len(found) < MOST_COMMANDS:
            without.append(record.name)
    return found, without


def _questions(inside: Inside, plugins: Sequence[str]) -> list[str]:
    if inside.checkpoint is None:
        return []
    given = inside.record.given
    split = inside.record.results.split
    lines = [command("evaluate", given, *(["--split", split] if split else []), *plugins)]
    if inside.maps is not None:
        lines.append(command("attention", given, "--out", "map.html", *plugins))
    return lines


def _lines(lines: Sequence[str]) -> Markup:
    return tag("pre", "\n".join(lines), class_="commands")
