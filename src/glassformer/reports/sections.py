"""Sections of a report, from the question to the commands that reproduce it."""

from __future__ import annotations

import base64
import inspect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from glassformer import __version__
from glassformer.core.config import dump_yaml, flatten, format_value
from glassformer.core.registry import kinds
from glassformer.inspection.maps import CAPTION, AttentionMaps
from glassformer.models.closed_form import Count
from glassformer.plotting.attention import png
from glassformer.plotting.lines import COLOURS, DASHES, Axis, Chart, Line, Point, legend, svg, thin
from glassformer.plotting.markup import Markup, format_interval, join, tag
from glassformer.reports.content import (
    ModelSize,
    ModelView,
    ReportContent,
    differences_tables,
    results_tables,
    runs_table,
)
from glassformer.reports.samples import ExamplePrediction, SampleSet, Segment
from glassformer.reports.summary import TEST, RunGroup, RunSummary
from glassformer.reports.tables import Cell, Table, exact, facts, package_file
from glassformer.runs.commands import command, nearest_preset, plugin_arguments, preset_summary, train_command
from glassformer.runs.experiment import ExperimentConfig
from glassformer.tasks.base import TaskConfig

MAX_LINES = COLOURS * DASHES
"""Maximum number of groups of runs in a chart, which is the number of distinct line styles."""
FAILED = {"diverged", "crashed"}


def curves(groups: Sequence[RunGroup]) -> list[Markup]:
    """Build the charts of the loss and the primary metrics by step, with one colour per group of runs."""
    drawn = [group for group in groups if any(_has_curve(summary) for summary in group.summaries)]
    omitted, drawn = drawn[MAX_LINES:], drawn[:MAX_LINES]
    if not drawn:
        return []
    charts = [
        Chart("loss", _losses(drawn), Axis("step"), Axis("thin: training, bold: validation", is_log=True))
    ]
    for metric in _primary_metrics(drawn):
        lines = [
            _line(summary, summary.name, summary.curve.of(metric), series)
            for series, group in enumerate(drawn)
            for summary in group.summaries
        ]
        if any(line.points for line in lines):
            charts.append(Chart(metric.replace("_", " "), lines, Axis("step"), Axis("on the validation set")))
    parts = [legend([group.label for group in drawn])] if len(drawn) > 1 else []
    parts += [tag("div", *map(svg, charts), class_="charts"), tag("p", _curve_note(drawn), class_="note")]
    if omitted:
        parts.append(tag("p", f"{len(omitted)} further settings are not drawn.", class_="warning"))
    return parts


def _has_curve(summary: RunSummary) -> bool:
    return bool(summary.curve.losses or summary.curve.validations)


def _line(summary: RunSummary, label: str, points: Sequence[Point], series: int) -> Line:
    return Line(label, points, series=series, has_failed=summary.status.name in FAILED)


def _primary_metrics(groups: Sequence[RunGroup]) -> list[str]:
    """Return the runs' primary metrics except the loss; if no run has one, a validated accuracy."""
    names = [group.primary_metric for group in groups if group.primary_metric]
    if not names:
        curves = [summary.curve for group in groups for summary in group.summaries]
        measured = [name for curve in curves for _, metrics in curve.validations for name in metrics]
        names = [name for name in measured if name in ("accuracy", "exact_match")][:1]
    return [name for name in dict.fromkeys(names) if name != "loss"]


def _losses(groups: Sequence[RunGroup]) -> list[Line]:
    lines = []
    for series, group in enumerate(groups):
        for summary in group.summaries:
            validations = summary.curve.of("loss")
            training = _line(summary, f"{summary.name}, training", thin(summary.curve.losses)[0], series)
            lines.append(replace(training, is_faint=bool(validations)))
            lines.append(Line(f"{summary.name}, validation", validations, series=series))
    return lines


def _curve_note(groups: Sequence[RunGroup]) -> str:
    summaries = [summary for group in groups for summary in group.summaries]
    size = max(thin(summary.curve.losses)[1] for summary in summaries)
    sentences = ["The loss has a logarithmic axis."]
    if size > 1:
        sentences.append(f"Each point of the training loss is the mean of up to {size} logged values.")
    if len(summaries) > len(groups):
        sentences.append("Runs of one setting have the same colour, one line per run.")
    if any(summary.status.name in FAILED for summary in summaries):
        sentences.append("A cross marks where a run ended early.")
    return " ".join([*sentences, *_ends(summaries)])


MAX_ENDS = 6
"""Maximum number of runs for which the report states why each training ended."""


def _ends(summaries: Sequence[RunSummary]) -> list[str]:
    """Return one sentence per run about why its training ended, unless there are many runs."""
    reasons = {summary.name: summary.results.facts.get("ended_because") for summary in summaries}
    if len(reasons) > MAX_ENDS:
        return []
    return [f"{name} ended because {reason}." for name, reason in reasons.items() if reason]


PICTURE_DPI = 110
MAX_OPEN_ROWS = 16
"""Maximum number of rows of a parameter table that is expanded by default."""


def model_sections(content: ReportContent) -> dict[str, list[Markup]]:
    """Build the sections on predictions, attention maps and parameters, by title, each with all models."""
    label = {summary.given: group.label for group in content.groups for summary in group.summaries}
    made: dict[str, list[Markup]] = {"Samples": [], "Attention maps": [], "Parameters": []}
    figures = itertools.count()
    sizes: list[dict[str, int]] = []
    for view in content.views:
        heading = _heading(view, label) if len(content.views) > 1 else join([])
        if view.samples is not None:
            made["Samples"] += [heading, *_samples(view.samples)]
        if view.maps is not None:
            made["Attention maps"] += [heading, _figure(next(figures), view.maps, view.maps_note)]
        if view.size is not None and view.size.by_module not in sizes:  # equal models appear once
            sizes.append(view.size.by_module)
            made["Parameters"] += [heading, *_parameters(view.size)]
    return made


def _heading(view: ModelView, label: dict[str, str]) -> Markup:
    shown = label.get(view.summary.given, "")
    run = "" if shown == view.summary.name else tag("span", f" · {view.summary.name}", class_="aside")
    return tag("h3", shown or view.summary.name, run if shown else "")


def _samples(samples: SampleSet) -> list[Markup]:
    shown = [_sample(samples.split, sample) for sample in samples.shown]
    note: list[Markup | str] = [samples.description]
    if any(segment.is_unknown for sample in samples.shown for segment in (*sample.input, *sample.expected)):
        note += [" ", tag("u", "Underlined"), " words are unknown to the model."]
    return [tag("p", *note, class_="note"), tag("ol", *shown, class_="samples")]


def _sample(split: str, sample: ExamplePrediction) -> Markup:
    state = {True: "is-right", False: "is-wrong", None: "is-neither"}[sample.is_right]
    sign = {True: "✓ ", False: "✗ ", None: ""}[sample.is_right]
    expected = "in the data" if sample.is_right is None else "expected"
    gap = sample.separator
    outputs = {expected: _segments(sample.expected, gap), "the model": _segments(sample.output, gap)}
    # A fixed-width font aligns the tokens of both outputs.
    class_ = "tokens" if len(sample.expected) > 1 and gap == " " else None
    listed = [
        part
        for name, value in {"input": _segments(sample.input, ""), **outputs}.items()
        for part in (tag("dt", name), tag("dd", value, class_=class_))
    ]
    verdict = tag("b", f"{sign}{sample.verdict}")
    title = tag("p", verdict, f" · {split} example {sample.index:,}", class_="verdict")
    return tag("li", title, tag("dl", *listed), class_=state)


def _segments(segments: Sequence[Segment], gap: str) -> Markup:
    """Return a text as HTML, with wrong segments in `<mark>` and unknown ones in `<u>` elements."""
    shown = [_segment(segment) for segment in segments]
    return join(piece for index, part in enumerate(shown) for piece in ((gap, part) if index else (part,)))


def _segment(segment: Segment) -> Markup | str:
    if segment.is_wrong:
        return tag("mark", segment.text)
    return tag("u", segment.text, title="unknown to the model") if segment.is_unknown else segment.text


def _figure(index: int, maps: AttentionMaps, note: str) -> Markup:
    """Build a figure with a picture of the attention maps. On screen, a script makes the maps interactive."""
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
            tag("p", note) if note else None,
        ),
        class_="maps",
        data_maps=f"maps-{index}",
    )


def _parameters(parameters: ModelSize) -> list[Markup]:
    stated = [comparison for comparison in parameters.comparisons if comparison.term is not None]
    agrees = all(comparison.agrees for comparison in parameters.comparisons)
    words = [tag("b", exact(parameters.total), " parameters")]
    if stated and agrees:
        words.append(tag("span", ", equal to the closed form"))
    elif stated:
        words.append(tag("span", ", different from the closed form", class_="map-failed"))
    rows: list[list[Cell]] = [
        [comparison.path, _formula(comparison.term), comparison.counted]
        for comparison in parameters.comparisons
        if comparison.counted or comparison.term
    ]
    modules: list[list[Cell]] = [
        [path or "(the model itself)", count] for path, count in parameters.by_module.items()
    ]
    by_part = Table("", ["part", "formula", "parameters"], rows).html()
    by_module = folded("By module", Table("", ["module", "parameters"], modules).html())
    return [
        tag("p", *words),
        by_part if len(rows) <= MAX_OPEN_ROWS else folded("By part, with formulas", by_part),
        tag("div", by_module, class_="not-on-paper"),
    ]


def _formula(term: int | None) -> str | None:
    if not isinstance(term, Count):
        return None
    return term.formula if term.numbers == f"{term:,}" else f"{term.formula} = {term.numbers}"


def folded(title: str, *body: object) -> Markup:
    """Return content that is collapsed under a title and opens on click."""
    return tag("details", tag("summary", title), *body)


MAX_COMMANDS = 24


def environment_section(content: ReportContent) -> list[Markup]:
    """Build the section on the environment: values that all runs share, then a table of the differences."""
    with_one = [(run, flatten(run.environment)) for run in content.summaries if run.environment]
    if not with_one:
        return []
    listed = [facts.pop("data_notes", None) for _, facts in with_one]
    names = list(dict.fromkeys(name for _, facts in with_one for name in facts))
    shared = [name for name in names if len({format_value(facts.get(name)) for _, facts in with_one}) == 1]
    rows: list[list[Cell]] = [
        [_words(name), _shown(value)] for name in shared if (value := with_one[0][1].get(name)) is not None
    ]
    parts = [tag("p", "The same for all runs:", class_="note")] if rows and len(with_one) > 1 else []
    parts += [facts(rows)] if rows else []
    other = [name for name in names if name not in shared]
    if other:
        cells: list[list[Cell]] = [
            [run.name, *(_shown(facts.get(name)) for name in other)] for run, facts in with_one
        ]
        parts.append(Table("Run by run", ["run", *map(_words, other)], cells).html())
    notes = dict.fromkeys(str(note) for notes in listed if isinstance(notes, list) for note in notes)
    if notes:
        parts.append(tag("p", "Notes about the data:"))
        parts.append(tag("ul", *(tag("li", note) for note in notes), class_="note"))
    return parts


def _shown(value: Any) -> str | None:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return None if value is None else str(value)


def _words(name: str) -> str:
    words = name.replace("_", " ").replace(".", " ")
    return words.replace("sha256", "SHA-256").replace(" is clean", ", all committed")


def commands_section(content: ReportContent) -> list[Markup]:
    """Build the section with the commands that repeat the studies, runs, evaluations and this report."""
    plugins = plugin_arguments(content.plugins)
    lines = [command(*words) for study in content.studies for words in study.commands]
    parts: list[Markup] = []
    if lines:
        parts += [tag("p", "Repeat the study; finished runs are reused:"), _lines(lines)]
    trainings, without = _trainings(content)
    if trainings:
        listed = _lines(trainings)
        is_long = bool(content.studies) or len(trainings) > 6
        title = f"Train each run ({len(trainings)})"
        parts.append(folded(title, listed) if is_long else tag("div", tag("p", "Train:"), listed))
    if without:
        words = f"No preset gives {', '.join(without)}: save its complete config above as config.yaml, then"
        parts += [tag("p", words), _lines([command("train", "config.yaml", *plugins)])]
    inspection = [line for view in content.views for line in _inspection_commands(view, plugins)]
    if inspection:
        parts += [tag("p", "Evaluate and inspect:"), _lines(inspection)]
    parts += [tag("p", "Write this report:"), _lines([command("report", *content.arguments, *plugins)])]
    checksums = {summary.environment.get("data_sha256") for summary in content.summaries} - {None}
    data = "Equal numbers require equal data: compare the checksum above. " if checksums else ""
    words = f"Written by glassformer {__version__}. {data}Every number is read from the files of the runs."
    return [*parts, tag("p", words, class_="note")]


def _trainings(content: ReportContent) -> tuple[list[str], list[str]]:
    """Return the training commands, and the names of runs that no preset with options can express."""
    lines: list[str] = []
    without: list[str] = []
    for summary in content.summaries:
        if summary.config is not None and len(lines) < MAX_COMMANDS:
            line = train_command(summary.config, summary.given, content.plugins)
            lines += [line] if line else []
            without += [] if line else [summary.name]
    return lines, without


def _inspection_commands(view: ModelView, plugins: Sequence[str]) -> list[str]:
    if view.checkpoint is None:
        return []
    given, split = view.summary.given, view.summary.results.split
    lines = [command("evaluate", given, *(["--split", split] if split else []), *plugins)]
    if view.maps is not None:
        lines.append(command("attention", given, "--out", "map.html", *plugins))
    return lines


def _lines(lines: Sequence[str]) -> Markup:
    return tag("pre", "\n".join(lines), class_="commands")


ESSENTIAL = package_file("essential_options.txt").split()
"""Config paths of the options that a report shows outside the complete config."""
MAX_COLUMNS = 6
"""Maximum number of groups of runs (columns) in a table that is expanded by default."""
MAX_CARDS = 6
MAX_ROWS = 12
"""Maximum number of rows of a table with a caption that is expanded by default."""


def header(content: ReportContent) -> Markup:
    """Build the header of the page: title, primary metrics and warnings."""
    kinds_shown = ", ".join(dict.fromkeys(summary.task_kind for summary in content.summaries))
    environments = [summary.environment for summary in content.summaries]
    created = sorted({str(found["created"])[:10] for found in environments if "created" in found})
    when = "" if not created else f" · {created[0]}" + (f" to {created[-1]}" if len(created) > 1 else "")
    count = len(content.summaries)
    runs = f"{kinds_shown} · {count} run{'' if count == 1 else 's'}{when}" if count else "a study"
    is_alone = len(content.groups) == 1
    cards = [_card(group, is_alone) for group in content.groups[:MAX_CARDS]]
    return tag(
        "header",
        tag("p", f"Glassformer report · {runs}", class_="kicker"),
        tag("h1", content.title),
        tag("div", *cards, class_="cards") if cards and not content.studies else None,
        _unfinished(content),
    )


def _card(group: RunGroup, is_alone: bool) -> Markup:
    """Build a card that shows the primary metric of a group of runs in large type."""
    parts = [] if is_alone else [tag("p", group.label, class_="of")]
    quantity = group.primary_quantity
    if quantity is None:
        summary = group.summaries[0]
        return tag("div", *parts, tag("p", summary.status.name, class_="state"), class_="card has-none")
    name = f"{group.split} {str(group.primary_metric).replace('_', ' ')}"
    within = "" if quantity.interval is None else f"95 %: {format_interval(quantity.interval)} · "
    parts += [
        tag("p", exact(quantity.value), class_="large"),
        tag("p", name, class_="name"),
        tag("p", f"{within}{group.measured_on}", class_="note"),
    ]
    return tag("div", *parts, class_="card")


def _unfinished(content: ReportContent) -> Markup | None:
    """Build the warnings at the top of the page about unfinished runs and damaged files; None if none."""
    lines = [
        tag("li", tag("b", summary.name), f" {summary.state()}.", *_reasons(summary.warnings))
        for summary in content.summaries
        if not summary.is_finished or summary.warnings
    ]
    lines += [tag("li", warning) for study in content.studies for warning in study.warnings]
    lines += [
        tag("li", tag("b", view.summary.name), f": {warning}")
        for view in content.views
        for warning in view.warnings
    ]
    if not lines:
        return None
    return tag("aside", tag("b", "Incomplete or damaged"), tag("ul", *lines), class_="alarm")


def _reasons(warnings: list[str]) -> list[Markup]:
    return [tag("ul", *(tag("li", warning) for warning in warnings))] if warnings else []


def sections(content: ReportContent) -> Iterator[Markup]:
    """Yield the table of contents, then each section that has content, as HTML."""
    made = {
        "Question": _question(content),
        "Table": _study(content),
        "Setting": _setting(content),
        "Results": _results(content),
        "Curves": curves(content.groups),
        **model_sections(content),
        "Environment": environment_section(content),
        "Commands": commands_section(content),
    }
    shown = {title: body for title, body in made.items() if body}
    yield tag("nav", *(tag("a", title, href=f"#{_anchor(title)}") for title in shown), aria_label="sections")
    for title, body in shown.items():
        yield tag("section", tag("h2", title), *body, id=_anchor(title))


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _question(content: ReportContent) -> list[Markup]:
    parts = [tag("p", paragraph) for study in content.studies for paragraph in study.about]
    if not content.studies or len({summary.task_kind for summary in content.summaries}) == 1:
        for kind in dict.fromkeys(summary.task_kind for summary in content.summaries):
            summaries = [summary for summary in content.summaries if summary.task_kind == kind]
            parts.append(_task(kind, summaries, content))
    return parts


def _task(kind: str, summaries: list[RunSummary], content: ReportContent) -> Markup:
    known = kinds(TaskConfig).get(kind)
    words = (inspect.getdoc(known) or "") if known else "This kind of task is not registered here."
    described = [view.task_description for view in content.views if view.summary in summaries]
    task_description = next(filter(None, described), "")
    config = next((summary.config for summary in summaries if summary.config is not None), None)
    preset = _exact_preset(config) if config is not None else None
    options = {path: value for path, value in flatten(summaries[0].tree).items() if path.startswith("task.")}
    same = {
        path.removeprefix("task."): format_value(value)
        for path, value in options.items()
        if path != "task.kind" and all(flatten(summary.tree).get(path) == value for summary in summaries)
    }
    facts = " · ".join(f"{name} {value}" for name, value in same.items() if value != "null")
    return tag(
        "div",
        tag("p", tag("b", kind), f": {' '.join(words.split())}", class_="lead"),
        tag("p", f"Task type: {task_description}") if task_description else None,
        tag("p", f"Preset {preset}: {preset_summary(preset)}") if preset else None,
        tag("p", facts, class_="note") if facts else None,
    )


def _exact_preset(config: ExperimentConfig) -> str | None:
    """Return the name of the preset that equals the config except for the seed, or None."""
    nearest = nearest_preset(config)
    return nearest[0] if nearest is not None and not nearest[1].keys() - {"seed"} else None


def _study(content: ReportContent) -> list[Markup]:
    parts: list[Markup] = []
    for study in content.studies:
        if len(content.studies) > 1:
            parts.append(tag("h3", study.title))
        for table in study.tables:
            is_long = table.is_aside or (len(table.rows) > MAX_ROWS and bool(table.caption))
            title = f"{table.caption} ({len(table.rows)})"
            parts.append(folded(title, replace(table, caption="").html()) if is_long else table.html())
        parts += [tag("p", note, class_="note") for note in study.notes]
        for picture in study.pictures:
            image = tag("img", src=picture.url, alt=picture.name)
            parts.append(tag("figure", image, tag("figcaption", picture.name), class_="picture"))
    return parts


def _setting(content: ReportContent) -> list[Markup]:
    parts: list[Markup] = []
    shared, own = differences_tables(content.groups) if len(content.groups) > 1 else (None, None)
    if shared is not None:
        # A table with many columns is collapsed.
        is_wide = len(content.groups) > MAX_COLUMNS
        parts.append(folded(shared.caption, shared.html()) if is_wide else shared.html())
    if own is not None:
        parts.append(folded(own.caption, replace(own, caption="").html()))
    common = _common(content)
    front = [path for path in ESSENTIAL if common.get(path) is not None]
    rows: list[list[Cell]] = [[path, format_value(common[path])] for path in front]
    if rows:
        parts += [tag("p", "The same in all settings:", class_="note")] if len(content.groups) > 1 else []
        parts.append(facts(rows))
    for group in content.groups:
        summary = group.summaries[0]
        if summary.tree:
            name = "Complete config" + (f": {group.label}" if len(content.groups) > 1 else "")
            has_command = summary.config is not None and nearest_preset(summary.config) is not None
            whole = tag("pre", dump_yaml(summary.tree), class_="long")
            # A command gives the same config, so it is not printed.
            parts.append(tag("div", folded(name, whole), class_="not-on-paper" if has_command else None))
    return parts


def _common(content: ReportContent) -> dict[str, Any]:
    first, *others = [group.options for group in content.groups if group.options] or [{}]
    return {
        path: value
        for path, value in first.items()
        if all(path in options and options[path] == value for options in others)
    }


def _results(content: ReportContent) -> list[Markup]:
    if not content.summaries:
        return []
    tables = results_tables(content.groups)
    if len(content.groups) == 1:
        tables = [replace(table, caption="") for table in tables]  # the title of the page names the run
    parts = [table.html() for table in tables]
    without = [
        summary.name
        for summary in content.summaries
        if summary.is_finished and not summary.results.metrics.get(TEST)
    ]
    if without:
        names = "This run has" if len(content.summaries) == 1 else f"{', '.join(without)}:"
        words = "these numbers are of the validation set, on which training chose its best checkpoint."
        parts.append(tag("p", f"{names} no test set: {words}", class_="warning"))
    if not parts:
        parts.append(tag("p", "No run is finished, so results are missing.", class_="warning"))
    if len(content.summaries) > 1 or not all(summary.is_finished for summary in content.summaries):
        table = tag("div", runs_table(content.groups).html())
        if content.studies:
            parts.append(folded(f"Every run ({len(content.summaries)})", table))
        else:
            parts += [tag("h3", "Every run"), table]
    protocols = dict.fromkeys(line for summary in content.summaries for line in _protocol(summary))
    parts += [tag("p", line, class_="note") for line in protocols]
    return parts


def _protocol(summary: RunSummary) -> list[str]:
    """Return lines on how the numbers were measured: confidence intervals, padding, scorer signatures."""
    protocol = summary.results.protocol.get(summary.results.split or "", {})
    lines = []
    if isinstance(protocol.get("intervals"), str):
        padding = protocol.get("padding", "unknown")
        lines.append(f"Intervals of one run: {protocol['intervals']}. Padding: {padding}.")
    signatures = protocol.get("signatures")
    if isinstance(signatures, dict):
        lines += [str(signature) for signature in signatures.values()]
    return lines
