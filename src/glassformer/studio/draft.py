"""A run that is being filled in: what a form's values make of a preset, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glassformer.core.config import Tree, format_value, merge, parse_yaml, unflatten
from glassformer.core.errors import ErrorDetail, UserError
from glassformer.runs.experiment import presets, resolve
from glassformer.runs.folder import CONFIG
from glassformer.studio.folder import RunsFolder, shown_path
from glassformer.studio.form import FormField, fields_of
from glassformer.studio.replies import problem_document, refusal

KIND = ".kind"


@dataclass(frozen=True)
class Draft:
    what: str
    """As the page named it."""
    source: str
    """As `glassformer train` takes it: a preset's name, or the path of a run's config."""
    fields: list[FormField]
    overrides: Tree
    """By path, what differs from the source."""
    problems: list[ErrorDetail]

    @property
    def words(self) -> list[str]:
        return [self.source, *(f"{path}={format_value(value)}" for path, value in self.overrides.items())]

    def document(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "fields": [of_form.document() for of_form in self.fields],
            "errors": self.errors(),
        }

    def errors(self) -> list[dict[str, Any]]:
        """Each at a field of the form, if it is about one."""
        paths = [of_form.path for of_form in self.fields]
        errors = []
        for problem in self.problems:
            document = problem_document(problem)
            errors.append({"path": _nearest(problem.path, paths), **document})
        return errors


def draft(folder: RunsFolder, what: str, values: Mapping[str, Any]) -> Draft:
    source = _source(folder, what)
    base = resolve(source).dump()
    chosen = {path: value for path, value in values.items() if path.endswith(KIND)}
    fields = {of_form.path: of_form for of_form in fields_of(_merged(base, chosen))}
    given, problems = _read(values, fields, base)
    tree = _merged(base, given)
    fields = {of_form.path: of_form for of_form in fields_of(tree)}
    overrides = _changed(given, base)
    if not problems:
        try:
            resolve(source, overrides)
        except UserError as error:
            problems = error.details
    return Draft(what, source, list(fields.values()), overrides, problems)


def _source(folder: RunsFolder, what: str) -> str:
    """Presets, and runs of this folder to begin from; no other file, whatever its name."""
    if what in presets():
        return what
    if what in folder.names():
        return shown_path(folder.open(what).path / CONFIG)
    raise refusal(
        404, "no such preset or run", place="what", value=what, allowed=[*presets(), *folder.names()[:20]]
    )


def _merged(base: Tree, values: Mapping[str, Any]) -> Tree:
    """Kinds first, the outer ones before the inner ones: another kind brings its own options."""
    tree = base
    for path in sorted(values, key=lambda path: (not path.endswith(KIND), path.count("."))):
        tree = merge(tree, unflatten({path: values[path]}))
    return tree


def _read(
    values: Mapping[str, Any], fields: Mapping[str, FormField], base: Tree
) -> tuple[Tree, list[ErrorDetail]]:
    """The values as the tree takes them. What belonged to a kind that is no longer chosen is left out."""
    given: Tree = {}
    problems: list[ErrorDetail] = []
    for path, value in values.items():
        if path not in fields:
            if not _is_left_over(path, values, base):
                problems.append(ErrorDetail("unknown option", path=path, value=path, allowed=sorted(fields)))
            continue
        try:
            given[path] = _value(fields[path], value)
        except UserError as error:
            (wrong,) = error.details
            problems.append(ErrorDetail(wrong.message, path=path, value=value, hint=wrong.hint))
    return given, problems


def _is_left_over(path: str, values: Mapping[str, Any], base: Tree) -> bool:
    """Whether a kind above this path has been changed."""
    parents = path.split(".")[:-1]
    choices = [f"{'.'.join(parents[:depth])}{KIND}" for depth in range(1, len(parents) + 1)]
    before = {of_form.path: of_form.value for of_form in fields_of(base)}
    return any(choice in values and values[choice] != before.get(choice) for choice in choices)


def _value(of_form: FormField, value: Any) -> Any:
    """A text that stands for something else is read as the command line reads it."""
    if not isinstance(value, str):
        return value
    if not value.strip() and of_form.is_optional:
        return None
    if of_form.type in ("text", "choice", "kind") and not of_form.is_yaml:
        return value
    if of_form.type == "list" and value.strip() and not value.lstrip().startswith("["):
        value = f"[{value}]"
    return parse_yaml(value, of_form.path)


def _changed(given: Tree, base: Tree) -> Tree:
    """What is not so already: in the source, or by the default of a newly chosen kind."""
    kinds_chosen = {path: value for path, value in given.items() if path.endswith(KIND)}
    there = {of_form.path: of_form.value for of_form in fields_of(_merged(base, kinds_chosen))}
    there |= {of_form.path: of_form.value for of_form in fields_of(base) if of_form.type == "kind"}
    return {path: value for path, value in given.items() if not _is_same(value, there.get(path))}


def _is_same(one: Any, other: Any) -> bool:
    """As YAML has it: true is not 1."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _nearest(place: str, paths: list[str]) -> str:
    """The field that a place lies in, or that lies first in it: `training.freeze` for its item 0."""
    parts = place.split(".")
    for length in range(len(parts), 0, -1):
        path = ".".join(parts[:length])
        inside = [other for other in paths if other == path or other.startswith(f"{path}.")]
        if inside:
            return inside[0]
    return place
