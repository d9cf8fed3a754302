"""Form for a new run, generated from the config classes, and routes to validate it and to start runs.

This module names no option: the fields come from the config classes, the choices of kinds from the registry,
and the errors from the validation that the command line uses.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from starlette.requests import Request
from starlette.responses import Response

from glassformer.core.config import Node, Tree, format_value, merge, parse_yaml, unflatten
from glassformer.core.errors import ErrorDetail, UserError, user_error
from glassformer.core.options import Option, advice, first_paragraph, options_of
from glassformer.core.registry import Kind, kinds
from glassformer.runs.experiment import OWN_DATA, ExperimentConfig, presets, read_source, resolve
from glassformer.runs.folder import CONFIG
from glassformer.studio.messages import FormBody
from glassformer.studio.runs import RunsFolder, display_path
from glassformer.web.messages import error_document, json_reply, read_body, refusal

if TYPE_CHECKING:
    from glassformer.studio.app import Studio


KIND = ".kind"
UNSET = re.compile(r"; (?:none|null): (?P<meaning>[^;]+)")
"""Part of an option's description that states the meaning of None."""


@dataclass(frozen=True)
class FormField:
    """Form field for one config option, with its type, bounds and description."""

    path: str
    type: str
    """Type of the value: `integer`, `number`, `boolean`, `text`, `choice`, `list`, `columns` or `kind`."""
    description: str
    group: str
    default: Any
    value: Any
    is_optional: bool = False
    """True if the field may be left empty. The option is unset then: None, or an empty mapping or list."""
    unset: str = ""
    """Meaning of an unset option, such as "no limit"."""
    is_required: bool = False
    is_yaml: bool = False
    """True if the text is parsed as YAML, because the option may be a list or a mapping."""
    choices: list[Any] | None = None
    about_choice: str = ""
    """Description of the chosen kind."""
    bounds: dict[str, float] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        labelled = self.group if self.type == "kind" else self.path
        document = {
            "path": self.path,
            "label": labelled.rpartition(".")[2].replace("_", " "),
            "description": self.description,
            "type": self.type,
            "group": self.group,
            "default": self._shown(self.default),
            "value": self._shown(self.value),
            "is_optional": self.is_optional,
            "is_required": self.is_required,
            "unset": self.unset,
            "about_choice": self.about_choice,
            **self.bounds,
        }
        return document if self.choices is None else document | {"choices": self.choices}

    def _shown(self, value: Any) -> Any:
        """Return a value as the page shows it: None if the option is unset, text if it is typed as YAML."""
        if value is None or (self.is_optional and value in ({}, [])):
            return None
        if self.is_yaml:
            return format_value(value)
        if self.type == "columns" and isinstance(value, str) and "," in value:
            return f'"{value}"'
        if self.type in ("columns", "list") and not self.choices and isinstance(value, list):
            text = format_value(value)
            return text if "'" in text or '"' in text else text.strip("[]")
        return value


def form_fields(tree: Tree) -> list[FormField]:
    """Return the form fields for a config tree, which may contain invalid values."""
    return list(_walk(ExperimentConfig, tree, "", ExperimentConfig))


def _walk(node: type[Node], tree: Mapping[str, Any], prefix: str, owner: type[Node]) -> Iterator[FormField]:
    """Yield the form fields of a config section and its subsections.

    `owner` is the config class of the innermost kind (registered variant) that contains the section.
    """
    for option in options_of(node):
        path = f"{prefix}{option.name}"
        value = tree.get(option.name, option.default)
        section = value if isinstance(value, Mapping) else {}
        roles = getattr(owner, option.keys_in, {}) if option.keys_in else {}
        if roles:
            yield from _columns(path, section, roles)
        elif option.type == "kind" and option.node is not None:
            yield from _kind(option.node, path, option, value)
        elif option.type == "section" and option.node is not None:
            yield from _walk(option.node, section, f"{path}.", owner)
        else:
            yield _field(path, option, value)


def _columns(path: str, value: Mapping[str, Any], roles: Mapping[str, str]) -> Iterator[FormField]:
    """Yield one form field per part of an example, such as `input` and `target`, to name its data columns."""
    for role, default_name in roles.items():
        yield FormField(
            path=f"{path}.{role}",
            type="columns",
            description=f"column of the {role}: a name, or a number from 0; several with commas",
            group=path,
            default=None,
            value=value.get(role),
            is_optional=True,
            unset=f"found by its name, such as {default_name}",
        )


def _kind(family: type[Node], path: str, option: Option, value: Any) -> Iterator[FormField]:
    """Yield the field that chooses a kind (a registered variant), then the fields of the chosen kind."""
    known = kinds(cast(type[Kind], family))
    options = {"kind": value} if isinstance(value, str) else value if isinstance(value, Mapping) else {}
    default = option.default and option.default["kind"]
    name = options.get("kind", default)
    chosen = known.get(name) if isinstance(name, str) else None
    yield FormField(
        path=f"{path}{KIND}",
        type="kind",
        description=option.description,
        group=path,
        default=default,
        value=name,
        is_required=option.is_required,
        choices=sorted(known),
        about_choice=f"{first_paragraph(chosen)} {advice(chosen)}".strip() if chosen else "",
    )
    if chosen is not None:
        yield from _walk(chosen, options, f"{path}.", chosen)


def _field(path: str, option: Option, value: Any) -> FormField:
    description, unset = _split_unset(option.description)
    return FormField(
        path=path,
        type=option.type,
        description=description,
        group=path.rpartition(".")[0],
        default=option.default,
        value=value,
        is_optional=option.is_optional or (option.default in ({}, []) and option.choices is None),
        unset=unset,
        is_required=option.is_required,
        is_yaml=option.is_yaml,
        choices=option.choices,
        bounds=option.bounds,
    )


def _split_unset(description: str) -> tuple[str, str]:
    """Split "limit on steps; none: no limit" into the description and the meaning of an unset option."""
    match = UNSET.search(description)
    if match is None:
        return description, ""
    return description[: match.start()] + description[match.end() :], match["meaning"]


@dataclass(frozen=True)
class Draft:
    """New run that has not been started: its source, the filled-in form, and the errors in the form."""

    name: str
    """Name of the preset or run that the user selected."""
    source: str
    """Argument SOURCE for `glassformer train`: a preset, or the path of a run's config."""
    fields: list[FormField]
    overrides: Tree
    """Changed options by path: those that differ from the source."""
    details: list[ErrorDetail]

    @property
    def words(self) -> list[str]:
        """Arguments for `glassformer train`."""
        return [self.source, *(f"{path}={format_value(value)}" for path, value in self.overrides.items())]

    def document(self) -> dict[str, Any]:
        return {
            "source": self.name,
            "fields": [form_field.document() for form_field in self.fields],
            "errors": self.errors(),
        }

    def errors(self) -> list[dict[str, Any]]:
        """Return each error as a JSON-serialisable dict that also names the form field with the error."""
        paths = [form_field.path for form_field in self.fields]
        return [
            error_document(detail) | {"field": nearest_field(detail.path, paths)} for detail in self.details
        ]


def draft(folder: RunsFolder, name: str, values: Mapping[str, Any]) -> Draft:
    """Return a `Draft`: the config of a preset or run, with the form values applied and validated."""
    source = _source(folder, name)
    base = resolve(source).dump()
    file = values.get("task.data.train")
    named: Tree = {}
    if file and isinstance(file, str) and OWN_DATA in read_source(source):
        named = {"task.data.train": file}  # the preset has other options for a user's own data
        base = resolve(source, named).dump()
    chosen = {path: value for path, value in values.items() if path.endswith(KIND)}
    given, details = _read(values, form_fields(_merged(base, chosen)), base)
    overrides = named | _changed(given, base)
    if not details:
        try:
            resolve(source, overrides)
        except UserError as error:
            details = error.details
    return Draft(name, source, form_fields(_merged(base, given)), overrides, details)


def _source(folder: RunsFolder, name: str) -> str:
    """Return the SOURCE argument for a preset or a run in this folder, or raise a 404 `Refusal`."""
    if name in presets():
        return name
    if name in folder.names():
        return display_path(folder.open(name).path / CONFIG)
    raise refusal(
        404,
        "no preset or run has this name",
        path="source",
        value=name,
        allowed=[*presets(), *folder.names()[:20]],
    )


def _merged(base: Tree, values: Mapping[str, Any]) -> Tree:
    """Merge form values into a config. Kinds are merged first, because another kind has other options."""
    tree = base
    for path in sorted(values, key=lambda path: (not path.endswith(KIND), path.count("."))):
        tree = merge(tree, unflatten({path: values[path]}))
    return tree


def _read(values: Mapping[str, Any], known: list[FormField], base: Tree) -> tuple[Tree, list[ErrorDetail]]:
    """Return the parsed form values by option path, and the errors in values that cannot be parsed.

    If the form chooses another `kind`, options of the previous kind are ignored without an error.
    """
    fields = {form_field.path: form_field for form_field in known}
    given: Tree = {}
    details: list[ErrorDetail] = []
    for path, value in values.items():
        if path not in fields:
            if not _is_orphaned(path, values, base):
                details.append(ErrorDetail("unknown option", path=path, value=path, allowed=sorted(fields)))
            continue
        try:
            given[path] = _value(fields[path], value)
        except UserError as error:
            (wrong,) = error.details
            details.append(ErrorDetail(wrong.message, path=path, value=value, hint=wrong.hint))
    return given, details


def _is_orphaned(path: str, values: Mapping[str, Any], base: Tree) -> bool:
    """Return True if the form changes the kind of a section that contains this option."""
    parents = path.split(".")[:-1]
    choices = [f"{'.'.join(parents[:depth])}{KIND}" for depth in range(1, len(parents) + 1)]
    before = {form_field.path: form_field.value for form_field in form_fields(base)}
    return any(choice in values and values[choice] != before.get(choice) for choice in choices)


def _value(form_field: FormField, value: Any) -> Any:
    """Return the value of a field. Text is parsed as YAML, as in the terminal, unless the type is text."""
    if form_field.is_optional and (value is None or (isinstance(value, str) and not value.strip())):
        return form_field.default if form_field.default in ({}, []) else None
    if not isinstance(value, str):
        return value
    if form_field.type == "columns":
        return _column_names(value, form_field.path)
    if form_field.type in ("text", "choice", "kind") and not form_field.is_yaml:
        return value
    if form_field.type == "list" and value.strip() and not value.lstrip().startswith("["):
        value = f"[{value}]"
    return parse_yaml(value, form_field.path)


def _column_names(text: str, path: str) -> Any:
    """Parse `title` or `title, body` to one data column or a list.

    Digits are a column number. A name that contains a comma is quoted.
    """
    if text.lstrip().startswith("["):
        return parse_yaml(text, path)
    try:
        (names,) = csv.reader([text], skipinitialspace=True, strict=True)
    except csv.Error as error:
        raise user_error("the column names cannot be read", path=path, hint=str(error)) from None
    found = [int(name) if name.isascii() and name.isdecimal() else name for name in map(str.strip, names)]
    columns = [name for name in found if name != ""]
    return columns[0] if len(columns) == 1 else columns


def _changed(given: Tree, base: Tree) -> Tree:
    """Return the form values that differ from the source, or from the defaults of a newly chosen kind."""
    kinds_chosen = {path: value for path, value in given.items() if path.endswith(KIND)}
    before = {form_field.path: form_field.value for form_field in form_fields(_merged(base, kinds_chosen))}
    before |= {
        form_field.path: form_field.value for form_field in form_fields(base) if form_field.type == "kind"
    }
    return {path: value for path, value in given.items() if not _is_same(value, before.get(path))}


def _is_same(one: Any, other: Any) -> bool:
    """Return True if two values are equal in YAML, where `true` and `1` differ."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def nearest_field(path: str, fields: list[str]) -> str:
    """Return the form field for the path of an error: `training.freeze` for `training.freeze.0`."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        parent = ".".join(parts[:length])
        inside = [other for other in fields if other == parent or other.startswith(f"{parent}.")]
        if inside:
            return inside[0]
    return path


NUMBER = re.compile(r"-\d+$")


async def form(studio: Studio, request: Request) -> Response:
    source = request.query_params.get("source")
    if not source:
        raise refusal(
            400, "a preset or a run is needed", path="source", hint="add source=reversal to the URL"
        )
    return await studio.reply(request, _form, studio, source, {})


async def filled(studio: Studio, request: Request) -> Response:
    body = await read_body(request, FormBody)
    return await studio.reply(request, _form, studio, body.source, body.values)


def _form(studio: Studio, source: str, values: Mapping[str, Any]) -> dict[str, Any]:
    made = draft(studio.folder, source, values)
    return made.document() | {"command": studio.commands.train(*made.words)}


async def start(studio: Studio, request: Request) -> Response:
    body = await read_body(request, FormBody)
    made = await studio.read(draft, studio.folder, body.source, body.values)
    if made.details:
        errors = made.errors()
        return json_reply(request, {"error": errors[0], "errors": errors}, status=400)
    name = await studio.read(
        studio.trainings.start, NUMBER.sub("", body.source) or body.source, made.words, body.dump()
    )
    return json_reply(request, {"run": name, "command": studio.commands.train(*made.words)}, status=201)


async def stop(studio: Studio, request: Request) -> Response:
    name = request.path_params["run"]
    studio.folder.path_of(name)
    await studio.read(studio.trainings.stop, name)
    return json_reply(request, {"run": name, "signal": "SIGTERM"}, status=202)
