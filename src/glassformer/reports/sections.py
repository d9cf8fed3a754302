"""Sections of a report, from the question to the commands that reproduce it."""

from __future__ import annotations

import base64
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from glassformer import __version__
from glassformer.core.config import dump_yaml, flatten, format_value
from glassformer.core.registry import kinds
from glassformer.inspection.maps import CAPTION, AttentionMaps
from glassformer.models.closed_form import Count
from glassformer.plotting.attention import png
from glassformer.reports.charts import COLOURS, DASHES, Line, line_chart, swatch, thin
from glassformer.reports.content import (
    Content,
    Inside,
    Parameters,
    differences_tables,
    results_tables,
    runs_table,
)
from glassformer.reports.records import TEST, Record, Setting
from glassformer.reports.samples import Part, Sample, Samples
from glassformer.reports.tables import Cell, Markup, Table, facts, join, number, span, tag
from glassformer.runs.commands import command, nearest_preset, plugin_words, preset_words, train_command
from glassformer.runs.experiment import ExperimentConfig
from glassformer.tasks.base import TaskConfig

MOST_SETTINGS = COLOURS * DASHES
"""Beyond them, lines could not be told apart."""
FAILED = {"diverged", "crashed"}


def curves(settings: Sequence[Setting]) -> list[Markup]:
    drawn = [setting for setting in settings if any(_has_curve(record) for record in setting.records)]
    if not drawn:
        return []
    left_out = len(drawn) - MOST_SETTINGS
    drawn = drawn[:MOST_SETTINGS]
    charts = [_losses(drawn)]
    for metric in _headlines(drawn):
        lines = [
            Line(style, record.curve.of(metric), name=record.name, has_failed=record.status.name in FAILED)
            for style, setting in enumerate(drawn)
            for record in setting.records
        ]
        if any(line.points for line in lines):
            charts.append(line_chart(lines, metric.replace("_", " "), "step", "on the validation set"))
    notes = [
        _legend(drawn),
        tag("div", *charts, class_="charts"),
        tag("p", _curve_words(drawn), class_="note"),
    ]
    if left_out > 0:
        notes.append(tag("p", f"{left_out} further settings are not drawn.", class_="caution"))
    return notes


def _has_curve(record: Record) -> bool:
    return bool(record.curve.losses or record.curve.validations)


def _headlines(settings: Sequence[Setting]) -> list[str]:
    """What the runs are judged by, besides the loss; where none says so, what their validations have."""
    told = [setting.primary_metric for setting in settings if setting.primary_metric]
    if not told:
        measured = [
            name
            for setting in settings
            for record in setting.records
            for _, metrics in record.curve.validations
            for name in metrics
        ]
        told = [name for name in measured if name in ("accuracy", "exact_match")][:1]
    return [name for name in dict.fromkeys(told) if name != "loss"]


def _losses(settings: Sequence[Setting]) -> Markup:
    lines = []
    for style, setting in enumerate(settings):
        for record in setting.records:
            has_failed = record.status.name in FAILED
            points, _ = thin(record.curve.losses)
            validations = record.curve.of("loss")
            lines.append(
                Line(
                    style,
                    points,
                    is_faint=bool(validations),
                    name=f"{record.name}, training",
                    has_failed=has_failed,
                )
            )
            lines.append(Line(style, validations, name=f"{record.name}, validation"))
    return line_chart(lines, "loss", "step", "thin: training, bold: validation", is_log=True)


def _legend(settings: Sequence[Setting]) -> Markup:
    if len(settings) == 1:
        return join([])
    entries = [tag("li", swatch(style), setting.label) for style, setting in enumerate(settings)]
    return tag("ul", *entries, class_="legend")


def _curve_words(settings: Sequence[Setting]) -> str:
    each = max(thin(record.curve.losses)[1] for setting in settings for record in setting.records)
    words = "The loss has a logarithmic axis."
    if each > 1:
        words += f" Of a long record, a point of the training loss is the mean of up to {each} logged ones."
    if max(len(setting.records) for setting in settings) > 1:
        words += " Runs of one setting have one colour, a line each."
    if any(record.status.name in FAILED for setting in settings for record in setting.records):
        words += " A cross: the run ended there without reaching its end."
    return words


PICTURE_DPI = 110
MOST_IN_FRONT = 16
"""Rows of a table of parameters; with more, the parts of the model stand in front."""


def samples_section(insides: Sequence[Inside], label: dict[str, str]) -> list[Markup]:
    parts: list[Markup] = []
    for inside in insides:
        if inside.samples is not None:
            parts += [_heading(inside, insides, label), tag("p", inside.samples.words, class_="note")]
            parts.append(_samples(inside.samples))
    return parts


def _heading(inside: Inside, insides: Sequence[Inside], label: dict[str, str]) -> Markup:
    if len(insides) == 1:
        return join([])
    said = label.get(inside.record.given, "")
    of_run = "" if said == inside.record.name else tag("span", f" · {inside.record.name}", class_="aside")
    return tag("h3", said or inside.record.name, of_run if said else "")


def _samples(samples: Samples) -> Markup:
    return tag("ol", *(_sample(samples.split, sample) for sample in samples.shown), class_="samples")


def _sample(split: str, sample: Sample) -> Markup:
    state = {True: "is-right", False: "is-wrong", None: "is-neither"}[sample.is_right]
    sign = {True: "✓ ", False: "✗ ", None: ""}[sample.is_right]
    wanted = "in the data" if sample.is_right is None else "expected"
    gap = sample.separator
    fields = [
        ("input", sample.input),
        (wanted, _parts(sample.expected, gap)),
        ("the model", _parts(sample.answer, gap)),
    ]
    class_ = (
        "tokens" if len(sample.expected) > 1 and gap == " " else None
    )  # so that they stand below each other
    listed = [part for name, value in fields for part in (tag("dt", name), tag("dd", value, class_=class_))]
    return tag(
        "li",
        tag(
            "p",
            tag("b", f"{sign}{sample.verdict}"),
            f" · {split} example {sample.number:,}",
            class_="verdict",
        ),
        tag("dl", *listed),
        class_=state,
    )


def _parts(parts: Sequence[Part], gap: str) -> Markup:
    """Wrong ones are marked, by more than a colour."""
    shown = [tag("mark", part.text) if part.is_wrong else part.text for part in parts]
    return join(piece for place, part in enumerate(shown) for piece in ((gap, part) if place else (part,)))


def maps_section(insides: Sequence[Inside], label: dict[str, str]) -> list[Markup]:
    parts: list[Markup] = []
    shown = [inside for inside in insides if inside.maps is not None]
    for place, inside in enumerate(shown):
        assert inside.maps is not None
        parts += [_heading(inside, insides, label), _figure(place, inside.maps, inside.maps_words)]
    return parts


def _figure(place: int, maps: AttentionMaps, words: str) -> Markup:
    """A picture, which the script replaces by maps that can be pointed at; on paper it is the picture."""
    picture = base64.b64encode(png(maps, PICTURE_DPI)).decode("ascii")
    checks = [
        tag("li", line, class_=None if is_right else "map-failed") for is_right, line in maps.checks.lines()
    ]
    return tag(
        "figure",
        tag("p", maps.subtitle, class_="subtitle"),
        tag("div", class_="live"),
        tag("img", src=f"data:image/png;base64,{picture}", alt=f"Attention maps: {maps.title}"),
        tag(
            "figcaption",
            tag("p", CAPTION, class_="caption"),
            tag("ul", *checks),
            tag("p", words) if words else None,
        ),
        class_="maps",
        data_maps=f"maps-{place}",
    )


def parameters_section(insides: Sequence[Inside], label: dict[str, str]) -> list[Markup]:
    """Equal models are counted once."""
    parts: list[Markup] = []
    known: list[dict[str, int]] = []
    for inside in insides:
        if inside.parameters is None or inside.parameters.by_module in known:
            continue
        known.append(inside.parameters.by_module)
        parts += [_heading(inside, insides, label), *_parameters(inside.parameters)]
    return parts


def _parameters(parameters: Parameters) -> list[Markup]:
    stated = [comparison for comparison in parameters.comparisons if comparison.term is not None]
    agrees = all(comparison.agrees for comparison in parameters.comparisons)
    words = [tag("b", tag("data", number(parameters.total), value=parameters.total), " parameters")]
    if stated and agrees:
        words.append(tag("span", ", as the closed form has it"))
    elif stated:
        words.append(tag("span", ", and the closed form has another number", class_="map-failed"))
    rows: list[list[Cell]] = [
        [comparison.path, _formula(comparison.term), comparison.counted]
        for comparison in parameters.comparisons
        if comparison.counted or comparison.term
    ]
    modules: list[list[Cell]] = [
        [path or "(the model itself)", count] for path, count in parameters.by_module.items()
    ]
    parts = [tag("p", *words)]
    if len(rows) <= MOST_IN_FRONT:
        parts.append(Table("", ["part", "formula", "parameters"], rows).html())
    else:
        parts.append(
            folded("By part, with formulas", Table("", ["part", "formula", "parameters"], rows).html())
        )
    by_module = folded("By module", Table("", ["module", "parameters"], modules).html())
    parts.append(tag("div", by_module, class_="not-on-paper"))
    return parts


def _formula(term: int | None) -> str | None:
    if not isinstance(term, Count):
        return None
    return term.formula if term.numbers == f"{term:,}" else f"{term.formula} = {term.numbers}"


def folded(title: str, *body: object) -> Markup:
    return tag("details", tag("summary", title), *body)


NOTES = "data_notes"
APART = {NOTES}
MOST_COMMANDS = 24


def environment_section(content: Content) -> list[Markup]:
    """What all runs have alike, then where they differ."""
    with_one = [(record, _facts(record)) for record in content.records if record.environment]
    if not with_one:
        return []
    names = list(dict.fromkeys(name for _, facts in with_one for name in facts))
    split_balanced = [
        name for name in names if len({format_value(facts.get(name)) for _, facts in with_one}) == 1
    ]
    rows: list[list[Cell]] = [
        [_words(name), _shown(value)]
        for name in split_balanced
        if (value := with_one[0][1].get(name)) is not None
    ]
    parts = [tag("p", "The same for all runs:", class_="note")] if rows and len(with_one) > 1 else []
    parts += [facts(rows)] if rows else []
    other = [name for name in names if name not in split_balanced]
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
    if setting.split is not None and setting.primary_metric is not None:
        quantity = setting.quantity(setting.split, setting.primary_metric)
    if quantity is None:
        record = setting.records[0]
        return tag("div", *parts, tag("p", record.status.name, class_="state"), class_="card has-none")
    name = f"{setting.split} {str(setting.primary_metric).replace('_', ' ')}"
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
