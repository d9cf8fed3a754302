"""Sections that need the model: its answers, its attention maps, its parameters."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from glassformer.inspection.maps import CAPTION, AttentionMaps
from glassformer.inspection.plots import png
from glassformer.models.closed_form import Count
from glassformer.reports.inside import Inside, Parameters
from glassformer.reports.markup import Markup, join, tag
from glassformer.reports.samples import Part, Sample, Samples
from glassformer.reports.tables import Cell, Table, number

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
