"""A form from the config tree: every field that the chosen kinds have, with its type, bounds and text.

Nothing here knows an option or a kind: fields come from the pydantic models, kinds from the registry, and
what is wrong with a value from the validation that the command line has too.
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
from glassformer.studio.messages import FormBody, body_of, json_reply, problem_document, refusal
from glassformer.studio.runs import RunsFolder, shown_path

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
    path: str
    type: str
    """`integer`, `number`, `boolean`, `text`, `choice`, `list` or `kind`."""
    description: str
    group: str
    default: Any
    value: Any
    is_optional: bool = False
    """Whether it may be left empty, which means none."""
    is_required: bool = False
    is_yaml: bool = False
    """Whether its text may mean more than a text: a list, a mapping."""
    choices: list[Any] | None = None
    bounds: dict[str, float] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        named = self.group if self.type == "kind" else self.path
        shown = format_value if self.is_yaml else lambda value: value
        document = {
            "path": self.path,
            "label": named.rpartition(".")[2].replace("_", " "),
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


def fields_of(tree: Tree) -> list[FormField]:
    """Of a whole config, which need not be right."""
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
    """The choice of a kind, and the fields of the one that is chosen."""
    known = kinds(family)
    branch = {"kind": value} if isinstance(value, str) else value if isinstance(value, Mapping) else {}
    default = _default(info)
    name = branch.get("kind", default and default["kind"])
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
        yield from _walk(chosen, branch, f"{path}.")


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
    """The node that a field holds, if it holds one."""
    plain, _, _ = _unwrapped(annotation)
    return plain if isinstance(plain, type) and issubclass(plain, Node) else None


def _unwrapped(annotation: Any) -> tuple[Any, bool, list[Any]]:
    """`Optional[Annotated[int, Ge(1)]]` as int, True and the bounds."""
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
    """The first paragraph of a docstring, in one line."""
    return " ".join(documentation.split("\n\n")[0].split())


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
        404, "no such preset or run", path="what", value=what, allowed=[*presets(), *folder.names()[:20]]
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


NUMBER = re.compile(r"-\d+$")


async def form(studio: Studio, request: Request) -> Response:
    what = request.query_params.get("what")
    if not what:
        raise refusal(400, "of what?", path="what", hint="what=reversal")
    return await studio.reply(request, _form, studio, what, {})


async def filled(studio: Studio, request: Request) -> Response:
    body = await body_of(request, FormBody)
    return await studio.reply(request, _form, studio, body.what, body.values)


def _form(studio: Studio, what: str, values: Mapping[str, Any]) -> dict[str, Any]:
    made = draft(studio.folder, what, values)
    return made.document() | {"command": studio.commands.train(*made.words)}


async def start(studio: Studio, request: Request) -> Response:
    body = await body_of(request, FormBody)
    made = await studio.read(draft, studio.folder, body.what, body.values)
    if made.problems:
        errors = made.errors()
        return json_reply(request, {"error": errors[0], "errors": errors}, status=400)
    name = await studio.read(studio.trainings.start, NUMBER.sub("", body.what) or body.what, made.words)
    return json_reply(request, {"run": name, "command": studio.commands.train(*made.words)}, status=201)


async def stop(studio: Studio, request: Request) -> Response:
    name = request.path_params["run"]
    studio.folder.path_of(name)
    await studio.read(studio.trainings.stop, name)
    return json_reply(request, {"run": name, "asked": "SIGTERM"}, status=202)
