"""Form for a new run, generated from the config classes, and routes to validate it and to start runs.

This module names no option: the fields come from the pydantic models, the choices of kinds from the registry,
and the errors from the validation that the command line uses.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo
from starlette.requests import Request
from starlette.responses import Response

from glassformer.core.config import Node, Tree, format_value, merge, parse_yaml, unflatten
from glassformer.core.errors import ErrorDetail, UserError
from glassformer.core.registry import Kind, kinds
from glassformer.runs.experiment import ExperimentConfig, presets, resolve
from glassformer.runs.folder import CONFIG
from glassformer.studio.messages import FormBody, error_document, json_reply, read_body, refusal
from glassformer.studio.runs import RunsFolder, display_path

if TYPE_CHECKING:
    from glassformer.studio.app import Studio


SIMPLE: dict[Any, str] = {bool: "boolean", int: "integer", float: "number", str: "text"}
BOUNDS = {
    annotated_types.Ge: ("minimum", "ge"),
    annotated_types.Gt: ("above", "gt"),
    annotated_types.Le: ("maximum", "le"),
    annotated_types.Lt: ("below", "lt"),
}


@dataclass(frozen=True)
class FormField:
    """Form field for one config option, with its type, bounds and description."""

    path: str
    type: str
    """Type of the value: `integer`, `number`, `boolean`, `text`, `choice`, `list` or `kind`."""
    description: str
    group: str
    default: Any
    value: Any
    is_optional: bool = False
    """True if the field may be left empty, and the option is None then."""
    is_required: bool = False
    is_yaml: bool = False
    """True if the text is parsed as YAML, because the option may be a list or a mapping."""
    choices: list[Any] | None = None
    bounds: dict[str, float] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        labelled = self.group if self.type == "kind" else self.path
        shown = format_value if self.is_yaml else lambda value: value
        document = {
            "path": self.path,
            "label": labelled.rpartition(".")[2].replace("_", " "),
            "description": self.description,
            "type": self.type,
            "group": self.group,
            "default": None if self.default is None else shown(self.default),
            "value": None if self.value is None else shown(self.value),
            "is_optional": self.is_optional,
            "is_required": self.is_required,
            **self.bounds,
        }
        return document if self.choices is None else document | {"choices": self.choices}


def form_fields(tree: Tree) -> list[FormField]:
    """Return the form fields for a config tree, which may contain invalid values."""
    return list(_walk(ExperimentConfig, tree, ""))


def _walk(node: type[Node], tree: Mapping[str, Any], prefix: str) -> Iterator[FormField]:
    for name, info in node.model_fields.items():
        if name == "kind":
            continue
        path = f"{prefix}{name}"
        inner = _inner(info.annotation)
        value = tree[name] if name in tree else _default(info)
        if inner is None:
            yield _field(path, info, value)
        elif issubclass(inner, Kind):
            yield from _kind(inner, path, info, value)
        else:
            yield from _walk(inner, value if isinstance(value, Mapping) else {}, f"{path}.")


def _kind(family: type[Kind], path: str, info: FieldInfo, value: Any) -> Iterator[FormField]:
    """Yield the field that chooses a kind (a registered variant), then the fields of the chosen kind."""
    known = kinds(family)
    options = {"kind": value} if isinstance(value, str) else value if isinstance(value, Mapping) else {}
    default = _default(info)
    name = options.get("kind", default and default["kind"])
    chosen = known.get(name) if isinstance(name, str) else None
    yield FormField(
        path=f"{path}.kind",
        type="kind",
        description=_text(info.description or (inspect.getdoc(chosen) if chosen else "") or ""),
        group=path,
        default=default["kind"] if default else None,
        value=name,
        is_required=info.is_required(),
        choices=sorted(known),
    )
    if chosen is not None:
        yield from _walk(chosen, options, f"{path}.")


def _field(path: str, info: FieldInfo, value: Any) -> FormField:
    plain, is_optional, metadata = _unwrapped(info.annotation)
    metadata = [*info.metadata, *metadata]
    choices: list[Any] | None = None
    if get_origin(plain) is Literal:
        kind, choices = "choice", list(get_args(plain))
    elif get_origin(plain) is list:
        kind = "list"
        item, _, _ = _unwrapped(get_args(plain)[0])
        choices = list(get_args(item)) if get_origin(item) is Literal else None
    else:
        kind = SIMPLE.get(plain, "text")
    return FormField(
        path=path,
        type=kind,
        description=info.description or "",
        group=path.rpartition(".")[0],
        default=_default(info),
        value=value,
        is_optional=is_optional,
        is_required=info.is_required(),
        is_yaml=kind == "text" and plain is not str,
        choices=choices,
        bounds=_bounds(metadata),
    )


def _default(info: FieldInfo) -> Any:
    if info.is_required():
        return None
    default = info.get_default(call_default_factory=True, validated_data={})
    return default.dump() if isinstance(default, Node) else default


def _inner(annotation: Any) -> type[Node] | None:
    """Return the config class if a field is a section of the config, otherwise None."""
    plain, _, _ = _unwrapped(annotation)
    return plain if isinstance(plain, type) and issubclass(plain, Node) else None


def _unwrapped(annotation: Any) -> tuple[Any, bool, list[Any]]:
    """Split a type annotation: `Optional[Annotated[int, Ge(1)]]` returns int, True (optional) and [Ge(1)]."""
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        plain, is_optional, more = _unwrapped(inner)
        return plain, is_optional, [*metadata, *more]
    if get_origin(annotation) in (Union, types.UnionType):
        members = [member for member in get_args(annotation) if member is not types.NoneType]
        is_optional = len(members) < len(get_args(annotation))
        if len(members) == 1:
            plain, _, metadata = _unwrapped(members[0])
            return plain, is_optional, metadata
        return annotation, is_optional, []
    return annotation, False, []


def _bounds(metadata: list[Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for item in metadata:
        if isinstance(item, FieldInfo):
            found |= _bounds(item.metadata)
        for bound, (name, attribute) in BOUNDS.items():
            if isinstance(item, bound):
                found[name] = getattr(item, attribute)
    return found


def _text(documentation: str) -> str:
    """Return the first paragraph of a docstring as one line."""
    return " ".join(documentation.split("\n\n")[0].split())


KIND = ".kind"


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
        return [error_document(detail) | {"field": _nearest(detail.path, paths)} for detail in self.details]


def draft(folder: RunsFolder, name: str, values: Mapping[str, Any]) -> Draft:
    """Return a `Draft`: the config of a preset or run, with the form values applied and validated."""
    source = _source(folder, name)
    base = resolve(source).dump()
    chosen = {path: value for path, value in values.items() if path.endswith(KIND)}
    given, details = _read(values, form_fields(_merged(base, chosen)), base)
    overrides = _changed(given, base)
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
    """Return the parsed form values and the errors, without the options of kinds that were replaced."""
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
    if not isinstance(value, str):
        return value
    if not value.strip() and form_field.is_optional:
        return None
    if form_field.type in ("text", "choice", "kind") and not form_field.is_yaml:
        return value
    if form_field.type == "list" and value.strip() and not value.lstrip().startswith("["):
        value = f"[{value}]"
    return parse_yaml(value, form_field.path)


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


def _nearest(path: str, fields: list[str]) -> str:
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
    name = await studio.read(studio.trainings.start, NUMBER.sub("", body.source) or body.source, made.words)
    return json_reply(request, {"run": name, "command": studio.commands.train(*made.words)}, status=201)


async def stop(studio: Studio, request: Request) -> Response:
    name = request.path_params["run"]
    studio.folder.path_of(name)
    await studio.read(studio.trainings.stop, name)
    return json_reply(request, {"run": name, "signal": "SIGTERM"}, status=202)
