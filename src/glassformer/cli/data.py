"""`glassformer data list | fetch NAME … | check SOURCE|FILES …`: list, download and check data sets."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.cli.arguments import add_plugin, check_minimum, load_plugins
from glassformer.cli.output import DelayedProgress, Output

if TYPE_CHECKING:
    from rich.table import Table

    from glassformer.data.catalogue import DataSet, Presence
    from glassformer.data.check import Corpus, Limits
    from glassformer.data.findings import Finding

ACTIONS = ["list", "fetch", "check"]
EPILOG = """list             list the public data sets, their licences, and which are on this machine
list NAME …      show a data set in full: its home page, and each file with its size, SHA-256 and URL
fetch NAME …     download data sets into GLASSFORMER_DATA or your data folder, and verify checksums
check SOURCE     check the data of a preset, a YAML file, a run or a data set; PATH=VALUE changes options
check FILES …    check your own files as the training split. Two text files are line-aligned pairs.
                 tsv, csv, jsonl and json files are tables. A folder has one file or folder per class:
                 glassformer data check a.en a.fr --validation b.en b.fr --test c.en c.fr"""
MEGABYTE = 1_000_000

EXAMPLES = (
    "glassformer data check mine.tsv --test other.tsv",
    "glassformer data check a.en a.fr --validation b.en b.fr --test c.en c.fr",
    "glassformer data fetch multi30k",
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add = parser.add_argument
    add("action", nargs="?", default="list", help="list, fetch or check (default: list)")
    add("items", metavar="SOURCE", nargs="*", help="names of data sets, or what to check (see below)")
    add("--to", type=Path, metavar="DIR", help="fetch: folder to download the data sets into")
    for split in ("validation", "test"):
        add(f"--{split}", nargs="+", default=[], metavar="FILE", help=f"check: files of the {split} split")
    add("--format", help="check: file format, such as tsv, csv or csv-semicolon (see task.data.format)")
    add("--columns", metavar="YAML", help="check: columns of a table, as '{input: text, target: label}'")
    add("--header", metavar="true|false", help="check: the first line of a table is a header, or is not")
    add("--separator", default=" | ", help="check: text between columns that are joined into one input")
    add("--encoding", default="utf-8", help="check: encoding of the files")
    add("--separate", action="store_true", help="check: the text files are not line-aligned")
    add(
        "--max-words", type=int, help="check: report texts with more words (default: 200, or task.max_length)"
    )
    add(
        "--max-ratio",
        type=float,
        metavar="R",
        help="check: report pairs in which one text has more than R times the characters (default: 3)",
    )
    add("--locations", type=int, default=5, help="check: maximum number of locations to show per problem")
    add("--all", action="store_true", help="check: show all locations")
    add_plugin(parser)


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    from glassformer.core.errors import user_error

    if arguments.action not in ACTIONS:
        raise user_error("unknown action", path="data", value=arguments.action, allowed=ACTIONS)
    if arguments.action == "list":
        return _list(arguments.items, output)
    if not arguments.items:
        example = {"fetch": "fetch multi30k", "check": "check train.en train.fr"}[arguments.action]
        raise user_error(
            f"{arguments.action} needs a name or a file", path="data", hint=f"glassformer data {example}"
        )
    return _fetch(arguments, output) if arguments.action == "fetch" else _check(arguments, output)


def _list(names: list[str], output: Output) -> dict[str, Any]:
    """Print the named data sets in full, or a table of all data sets if none is named."""
    from glassformer.data.catalogue import CATALOGUE, FOLDER_VARIABLE, fetch_folder, find_set, presence

    sets = [find_set(name) for name in names] or list(CATALOGUE.values())
    found = [presence(data_set) for data_set in sets]
    if names:
        for data_set, present in zip(sets, found, strict=True):
            _show_set(data_set, present, output)
    else:
        output.show(_set_table(sets, found))
        by_hand = [data_set.name for data_set in sets if not data_set.is_fetchable]
        output.print(f"manual download only: {', '.join(by_hand)}")
        output.print(f"fetched sets go to {fetch_folder()}; {FOLDER_VARIABLE} selects another folder")
    return {"folder": str(fetch_folder()), "sets": list(map(_set_document, sets, found))}


def _set_table(sets: list[DataSet], found: list[Presence]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("set", no_wrap=True)
    table.add_column("MB", justify="right", no_wrap=True)
    table.add_column("here", no_wrap=True)
    table.add_column("content", overflow="fold")
    table.add_column("licence", overflow="fold")
    styles = {"whole": "green", "changed": "bold red", "in part": "yellow", "absent": "dim"}
    for data_set, present in zip(sets, found, strict=True):
        state = f"[{styles[present.state]}]{present.state}[/]"
        size = f"{data_set.size / MEGABYTE:.1f}"
        table.add_row(data_set.name, size, state, data_set.summary, data_set.licence)
    return table


def _show_set(data_set: DataSet, present: Presence, output: Output) -> None:
    size = f"{data_set.size / MEGABYTE:.1f} MB"
    output.print(f"{data_set.name}: {data_set.summary}; {size}; {present.state}")
    output.print(f"  licence  {data_set.licence}")
    output.print(f"  home     {data_set.home}")
    if not data_set.is_fetchable:
        output.print(f"  manual download: {data_set.instructions}")
    for file in data_set.files:
        output.print(f"  {file.path}, {file.size:,} bytes")
        output.print(f"    sha256 {file.sha256}")
        if file.address:
            output.print(f"    {file.address}")


def _set_document(data_set: DataSet, present: Presence) -> dict[str, Any]:
    return {
        "name": data_set.name,
        "summary": data_set.summary,
        "licence": data_set.licence,
        "home": data_set.home,
        "bytes": data_set.size,
        "is_fetchable": data_set.is_fetchable,
        "files": [
            {"path": file.path, "size": file.size, "sha256": file.sha256, "address": file.address}
            for file in data_set.files
        ],
        "state": present.state,
        "changed": list(present.changed),
    }


def _fetch(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    from glassformer.data.catalogue import fetch, fetch_folder, find_set, presence

    sets = [find_set(name) for name in arguments.items]
    folder = arguments.to or fetch_folder()
    rows = []
    for data_set in sets:
        if arguments.to is None and presence(data_set).state == "whole":
            output.print(f"{data_set.name}: already here and complete")
            rows.append({"name": data_set.name, "fetched": []})
            continue
        if data_set.is_fetchable:
            output.print(f"{data_set.name}: {data_set.size / MEGABYTE:.1f} MB; licence: {data_set.licence}")
        with DelayedProgress(data_set.name, delay=0, in_bytes=True) as progress:
            fetched = fetch(data_set, folder, progress)
        output.print(
            f"{data_set.name}: {len(fetched)} files in {folder / data_set.name}; the checksums are correct"
        )
        rows.append({"name": data_set.name, "fetched": [str(path) for path in fetched]})
    return {"folder": str(folder), "sets": rows}


def _check(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    from glassformer.cli.data_report import render, summary
    from glassformer.data.check import check_corpora

    corpora, limits, damaged = _subject(arguments)
    if not corpora:
        output.print(f"{arguments.items[0]}: the examples are generated, so there is no file to check")
        return {"files": [], "findings": [], "leaks": [], "passed": True}
    with DelayedProgress("reading", in_bytes=True) as progress:
        report = check_corpora(corpora, limits, lambda done, total: progress("reading", done, total))
    report.findings[:0] = damaged
    output.show(*render(report, output.console.width))
    output.print(summary(report))
    if report.encoding:
        output.print(f"if the files are {report.encoding}: {_encoding_command(arguments, report.encoding)}")
    command = _training_command(arguments, report.source)
    if command and report.passed:
        output.print(f"train on it: {command}")
    output.exit_code = 0 if report.passed else 2
    return report.document() | {"command": command}


def _encoding_command(arguments: argparse.Namespace, encoding: str) -> str:
    """Return the command that checks the same data in another encoding."""
    words = ["glassformer", "data", "check", *arguments.items]
    if _is_config(arguments.items[0]):
        return shlex.join([*words, f"task.data.encoding={encoding}"])
    for option in ("validation", "test"):
        words += [f"--{option}", *getattr(arguments, option)] if getattr(arguments, option) else []
    for option in ("format", "columns", "header"):
        words += [f"--{option}", getattr(arguments, option)] if getattr(arguments, option) else []
    return shlex.join([*words, "--encoding", encoding])


def _training_command(arguments: argparse.Namespace, source: str) -> str:
    """Return the `glassformer train` command for the checked files, or an empty string if none is known."""
    from glassformer.core.config import format_value

    if not source:
        return ""
    given = {"train": arguments.items, "validation": arguments.validation, "test": arguments.test}
    options: dict[str, str] = {
        split: names[0] if len(names) == 1 else f"[{', '.join(names)}]"
        for split, names in given.items()
        if names
    }
    options |= {
        name: getattr(arguments, name) for name in ("format", "columns", "header") if getattr(arguments, name)
    }
    if arguments.encoding != "utf-8":
        options["encoding"] = arguments.encoding
    if arguments.separator != " | ":
        options["separator"] = format_value(arguments.separator)
    settings = [shlex.quote(f"task.data.{name}={value}") for name, value in options.items()]
    return " ".join(["glassformer train", source, *settings])


def _is_config(name: str) -> bool:
    from glassformer.runs.experiment import presets
    from glassformer.runs.folder import RunFolder

    path = Path(name)
    return name in presets() or path.suffix in (".yaml", ".yml") or RunFolder(path).exists()


def _subject(arguments: argparse.Namespace) -> tuple[list[Corpus], Limits, list[Finding]]:
    """Return the corpora to check, the thresholds to check with, and findings on damaged catalogue files."""
    from glassformer.core.errors import user_error
    from glassformer.data.catalogue import CATALOGUE
    from glassformer.runs.experiment import presets

    first, path = arguments.items[0], Path(arguments.items[0])
    is_config = _is_config(first)
    if not is_config and first not in CATALOGUE:
        if path.name == first and not path.suffix and not path.exists():
            names = [*CATALOGUE, *presets()]
            raise user_error("no data set, preset, file or run has this name", value=first, allowed=names)
        return [_file_corpus(arguments)], _limits(arguments, None), []
    for option in ("validation", "test", "format", "columns", "header"):
        if getattr(arguments, option):
            raise user_error(
                f"this option is for your own files, and {first} has its own",
                path=f"--{option}",
                hint=f"leave --{option} out, or name files instead of {first}",
            )
    if is_config:
        return *_config_corpora(arguments), []
    corpora, damaged = _catalogue_corpora(CATALOGUE[first])
    return corpora, _limits(arguments, None), damaged


def _catalogue_corpora(data_set: DataSet) -> tuple[list[Corpus], list[Finding]]:
    from glassformer.data.catalogue import locate, presence
    from glassformer.data.check import Corpus
    from glassformer.data.findings import Finding, Location

    corpora = []
    for part in data_set.parts:
        splits = {
            split: [locate(f"{data_set.name}/{name}") for name in names]
            for split, names in part.splits.items()
        }
        corpus = Corpus(splits, part.format, part.columns, classes=part.classes, part=part.name)
        corpora.append(corpus)
    changed = [Location(str(path), 1, 0, detail="SHA-256") for path in presence(data_set).changed.values()]
    return corpora, [Finding("wrong-checksum", len(changed), locations=changed)] if changed else []


def _config_corpora(arguments: argparse.Namespace) -> tuple[list[Corpus], Limits]:
    from glassformer.data.catalogue import locate
    from glassformer.data.check import Corpus
    from glassformer.data.readers import DataConfig
    from glassformer.runs.experiment import resolve

    load_plugins(arguments)
    task = resolve(arguments.items[0], arguments.items[1:]).task
    data = getattr(task, "data", None)
    limits = _limits(arguments, getattr(task, "max_length", None))
    if not isinstance(data, DataConfig):
        return [], limits
    splits = {}
    for split in ("train", "validation", "test"):
        source = data.source(split)
        if source is not None:
            splits[split] = [locate(path) for path in ([source] if isinstance(source, str) else source)]
    format = data.format if isinstance(data.train, str) else "text"
    target = getattr(task, "target", None)
    corpus = Corpus(
        splits,
        format,
        data.columns,
        data.header,
        data.separator,
        data.classes,
        data.encoding,
        roles=getattr(task, "roles", None),
        has_classes=None if target is None else target == "label",
        fractions=getattr(task, "fractions", data.fractions),
        hash_seed=getattr(task, "hash_seed", None),
    )
    return [corpus], limits


def _file_corpus(arguments: argparse.Namespace) -> Corpus:
    from typing import get_args

    from glassformer.core.config import parse_yaml, validate
    from glassformer.core.errors import user_error
    from glassformer.data.catalogue import locate
    from glassformer.data.check import Corpus
    from glassformer.data.readers import DataConfig, Format
    from glassformer.data.text_files import check_encoding

    if arguments.format not in (None, *get_args(Format)):
        raise user_error(
            "unknown format", path="--format", value=arguments.format, allowed=list(get_args(Format))
        )
    check_encoding(arguments.encoding, "--encoding")
    columns = parse_yaml(arguments.columns, "--columns") if arguments.columns else {}
    header = parse_yaml(arguments.header, "--header") if arguments.header else None
    validate(DataConfig, {"train": arguments.items[0], "columns": columns, "header": header})
    unknown = [role for role in columns if role not in ("input", "target")]
    if unknown:
        raise user_error("unknown column", path="--columns", value=unknown[0], allowed=["input", "target"])
    given = {"train": arguments.items, "validation": arguments.validation, "test": arguments.test}
    splits = {split: [locate(name) for name in names] for split, names in given.items() if names}
    return Corpus(
        splits,
        arguments.format,
        columns,
        header,
        arguments.separator,
        encoding=arguments.encoding,
        is_aligned=len(arguments.items) <= 2 and not arguments.separate,
    )


def _limits(arguments: argparse.Namespace, max_length: int | None) -> Limits:
    """Return the thresholds of the check, from the arguments or their defaults.

    Without `--max-words`, `max_length` (in tokens) limits the words, because a word is at least one token.
    """
    from dataclasses import replace

    from glassformer.data.check import Limits

    check_minimum(arguments, max_words=1, max_ratio=1, locations=0)
    limits = Limits(max_locations=None if arguments.all else arguments.locations)
    max_words = arguments.max_words or max_length
    limits = replace(limits, max_words=max_words) if max_words else limits
    return replace(limits, max_ratio=arguments.max_ratio) if arguments.max_ratio else limits
