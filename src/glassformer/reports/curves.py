"""The curves of runs: losses on a logarithmic axis, and the metric that is looked at first."""

from __future__ import annotations

from collections.abc import Sequence

from glassformer.reports.charts import COLOURS, DASHES, Line, line_chart, swatch, thin
from glassformer.reports.markup import Markup, join, tag
from glassformer.reports.reading import Record
from glassformer.reports.settings import Setting

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
    notes = [_legend(drawn), tag("div", *charts, class_="charts"), tag("p", _words(drawn), class_="note")]
    if left_out > 0:
        notes.append(tag("p", f"{left_out} further settings are not drawn.", class_="caution"))
    return notes


def _has_curve(record: Record) -> bool:
    return bool(record.curve.losses or record.curve.validations)


def _headlines(settings: Sequence[Setting]) -> list[str]:
    """What the runs are judged by, besides the loss; where none says so, what their validations have."""
    told = [setting.headline for setting in settings if setting.headline]
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


def _words(settings: Sequence[Setting]) -> str:
    each = max(thin(record.curve.losses)[1] for setting in settings for record in setting.records)
    words = "The loss has a logarithmic axis."
    if each > 1:
        words += f" Of a long record, a point of the training loss is the mean of up to {each} logged ones."
    if max(len(setting.records) for setting in settings) > 1:
        words += " Runs of one setting have one colour, a line each."
    if any(record.status.name in FAILED for setting in settings for record in setting.records):
        words += " A cross: the run ended there without reaching its end."
    return words
