"""The sections of a report, from the question to the commands that answer it again."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from glassformer.config import dump_yaml, flatten, format_value
from glassformer.experiment import ExperimentConfig
from glassformer.registry import kinds
from glassformer.reports.commands import nearest_preset, preset_words
from glassformer.reports.content import Content, differences_tables, results_tables, runs_table
from glassformer.reports.curves import curves
from glassformer.reports.evidence import folded, maps_section, parameters_section, samples_section
from glassformer.reports.markup import Markup, join, tag
from glassformer.reports.origins import commands_section, environment_section
from glassformer.reports.reading import TEST, Record
from glassformer.reports.settings import Setting
from glassformer.reports.tables import Cell, facts, number, span
from glassformer.tasks.base import TaskConfig

ESSENTIAL = (
    "model.kind",
    "model.num_layers",
    "model.decoder_layers",
    "model.num_heads",
    "model.hidden_dim",
    "model.feed_forward_dim",
    "model.position.kind",
    "model.norm.kind",
    "model.norm_placement",
    "model.dropout",
    "training.optimizer.kind",
    "training.optimizer.learning_rate",
    "training.schedule.kind",
    "training.batch_size",
    "training.batch_tokens",
    "training.max_epochs",
    "training.max_steps",
    "training.start_from",
    "training.precision",
)
"""What a reader looks for first, after the task; those that are there are shown in front."""
MOST_COLUMNS = 6
"""Settings side by side: beyond them, a table is read on its side."""
MOST_CARDS = 6
MOST_ROWS = 12
"""Of a table in front, if there is another."""


def header(content: Content) -> Markup:
    kinds_shown = ", ".join(dict.fromkeys(record.task_kind for record in content.records))
    created = sorted(
        {
            str(record.environment["created"])[:10]
            for record in content.records
            if "created" in record.environment
        }
    )
    when = "" if not created else f" · {created[0]}" + (f" to {created[-1]}" if len(created) > 1 else "")
    count = len(content.records)
    runs = f"{kinds_shown} · {count} run{'' if count == 1 else 's'}{when}" if count else "a study"
    is_alone = len(content.settings) == 1
    cards = [_card(setting, is_alone) for setting in content.settings[:MOST_CARDS]]
    return tag(
        "header",
        tag("p", f"Glassformer report · {runs}", class_="kicker"),
        tag("h1", content.title),
        tag("div", *cards, class_="cards") if cards and not content.studies else None,
        _unfinished(content),
    )


def _card(setting: Setting, is_alone: bool) -> Markup:
    """The one number of a setting, large."""
    parts = [] if is_alone else [tag("p", setting.label, class_="of")]
    quantity = None
    if setting.split is not None and setting.headline is not None:
        quantity = setting.quantity(setting.split, setting.headline)
    if quantity is None:
        record = setting.records[0]
        return tag("div", *parts, tag("p", record.status.name, class_="state"), class_="card has-none")
    name = f"{setting.split} {str(setting.headline).replace('_', ' ')}"
    seeds = len(setting.finished)
    how = f"mean of {seeds} seeds" if seeds > 1 else "one run"
    within = "" if quantity.interval is None else f"95 %: {span(quantity.interval)} · "
    parts += [
        tag("p", tag("data", number(quantity.value), value=repr(quantity.value)), class_="large"),
        tag("p", name, class_="name"),
        tag("p", f"{within}{how}", class_="note"),
    ]
    return tag("div", *parts, class_="card")


def _unfinished(content: Content) -> Markup | None:
    """What went wrong stands at the top, not in a corner."""
    lines = [
        tag("li", tag("b", record.name), f" {record.state()}.", *_reasons(record.problems))
        for record in content.records
        if not record.is_finished or record.problems
    ]
    lines += [tag("li", problem) for study in content.studies for problem in study.problems]
    lines += [
        tag("li", tag("b", inside.record.name), f": {problem}")
        for inside in content.insides
        for problem in inside.problems
    ]
    if not lines:
        return None
    return tag("aside", tag("b", "Not everything here is whole"), tag("ul", *lines), class_="alarm")


def _reasons(problems: list[str]) -> list[Markup]:
    return [tag("ul", *(tag("li", problem) for problem in problems))] if problems else []


def sections(content: Content) -> Iterator[Markup]:
    label = {record.given: setting.label for setting in content.settings for record in setting.records}
    made = {
        "Question": _question(content),
        "Table": _study(content),
        "Setting": _setting(content),
        "Results": _results(content),
        "Curves": curves(content.settings),
        "Samples": samples_section(content.insides, label),
        "Attention maps": maps_section(content.insides, label),
        "Parameters": parameters_section(content.insides, label),
        "Environment": environment_section(content),
        "Commands": commands_section(content),
    }
    shown = {title: body for title, body in made.items() if body}
    yield tag("nav", *(tag("a", title, href=f"#{_anchor(title)}") for title in shown), aria_label="sections")
    for title, body in shown.items():
        yield tag("section", tag("h2", title), *body, id=_anchor(title))


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _question(content: Content) -> list[Markup]:
    parts = [tag("p", paragraph) for study in content.studies for paragraph in study.about]
    if not content.studies or len({record.task_kind for record in content.records}) == 1:
        for kind in dict.fromkeys(record.task_kind for record in content.records):
            records = [record for record in content.records if record.task_kind == kind]
            parts.append(_task(kind, records, content))
    return parts


def _task(kind: str, records: list[Record], content: Content) -> Markup:
    known = kinds(TaskConfig).get(kind)
    words = (
        " ".join((inspect.getdoc(known) or "").split()) if known else "A kind of task that is not known here."
    )
    shape = next(
        (inside.shape for inside in content.insides if inside.record in records and inside.shape), ""
    )
    config = next((record.config for record in records if record.config is not None), None)
    exactly = _exact_preset(config) if config is not None else None
    options = {path: value for path, value in flatten(records[0].tree).items() if path.startswith("task.")}
    same = {
        path.removeprefix("task."): format_value(value)
        for path, value in options.items()
        if path != "task.kind" and all(flatten(record.tree).get(path) == value for record in records)
    }
    facts = " · ".join(f"{name} {value}" for name, value in same.items() if value != "null")
    return tag(
        "div",
        tag("p", tag("b", kind), f": {words}", class_="lead"),
        tag("p", f"What is asked of the model: {shape}") if shape else None,
        tag("p", f"Preset {exactly}: {preset_words(exactly)}") if exactly else None,
        tag("p", facts, class_="note") if facts else None,
    )


def _exact_preset(config: ExperimentConfig) -> str | None:
    """Its words hold for the preset as it is, and not for one with other options."""
    nearest = nearest_preset(config)
    return nearest[0] if nearest is not None and not nearest[1].keys() - {"seed"} else None


def _study(content: Content) -> list[Markup]:
    parts: list[Markup] = []
    for study in content.studies:
        if len(content.studies) > 1:
            parts.append(tag("h3", study.title))
        for table in study.tables:
            is_long = table.is_aside or (len(table.rows) > MOST_ROWS and bool(table.caption))
            title = f"{table.caption} ({len(table.rows)})"
            parts.append(folded(title, replace(table, caption="").html()) if is_long else table.html())
        parts += [tag("p", note, class_="note") for note in study.notes]
        for picture in study.pictures:
            image = tag("img", src=picture.address, alt=picture.name)
            parts.append(tag("figure", image, tag("figcaption", picture.name), class_="picture"))
    return parts


def _setting(content: Content) -> list[Markup]:
    parts: list[Markup] = []
    shared, own = differences_tables(content.settings) if len(content.settings) > 1 else (None, None)
    if shared is not None:
        # Many settings side by side would be read by nobody.
        is_wide = len(content.settings) > MOST_COLUMNS
        parts.append(folded(shared.caption, shared.html()) if is_wide else shared.html())
    if own is not None:
        parts.append(folded(own.caption, replace(own, caption="").html()))
    common = _common(content)
    front = [path for path in ESSENTIAL if path in common]
    rows: list[list[Cell]] = [
        [path, format_value(common[path])] for path in front if common[path] is not None
    ]
    if rows:
        parts.append(tag("p", "The same in all:", class_="note") if len(content.settings) > 1 else join([]))
        parts.append(facts(rows))
    for setting in content.settings:
        record = setting.records[0]
        if record.tree:
            name = "The whole config" + (f": {setting.label}" if len(content.settings) > 1 else "")
            is_told = record.config is not None and nearest_preset(record.config) is not None
            whole = tag("pre", dump_yaml(record.tree), class_="long")
            # Where a command says it all, paper is spared.
            parts.append(tag("div", folded(name, whole), class_="not-on-paper" if is_told else None))
    return parts


def _common(content: Content) -> dict[str, Any]:
    options = [setting.options for setting in content.settings if setting.options]
    if not options:
        return {}
    return {
        path: value
        for path, value in options[0].items()
        if all(path in of_one and of_one[path] == value for of_one in options)
    }


def _results(content: Content) -> list[Markup]:
    tables = results_tables(content.settings)
    if len(content.settings) == 1:
        tables = [replace(table, caption="") for table in tables]  # the title has said it
    parts = [table.html() for table in tables]
    without = [
        record.name
        for record in content.records
        if record.is_finished and not record.results.metrics.get(TEST)
    ]
    if without:
        names = "This run has" if len(content.records) == 1 else f"{', '.join(without)}:"
        parts.append(
            tag(
                "p",
                f"{names} no test set: these numbers are of the validation set, which training has seen"
                " to choose its best checkpoint.",
                class_="caution",
            )
        )
    if not content.records:
        return []
    if not parts:
        parts.append(tag("p", "No run is finished: there are no results yet.", class_="caution"))
    if len(content.records) > 1 or not all(record.is_finished for record in content.records):
        table = tag("div", runs_table(content.settings).html())
        parts.append(
            folded(f"Every run ({len(content.records)})", table)
            if content.studies
            else join([tag("h3", "Every run"), table])
        )
    protocols = dict.fromkeys(line for record in content.records for line in _protocol(record))
    parts += [tag("p", line, class_="note") for line in protocols]
    return parts


def _protocol(record: Record) -> list[str]:
    """How its numbers came about, in the words of the run."""
    told = record.results.protocol.get(record.results.split or "", {})
    lines = []
    if isinstance(told.get("intervals"), str):
        lines.append(f"Intervals of one run: {told['intervals']}. Padding: {told.get('padding', 'unknown')}.")
    signatures = told.get("signatures")
    if isinstance(signatures, dict):
        lines += [str(signature) for signature in signatures.values()]
    return lines
