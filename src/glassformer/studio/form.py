"""A form from the config tree: every field that the chosen kinds have, with its type, bounds and text.

Nothing here knows an option or a kind: fields come from the pydantic models, kinds from the registry, and
what is wrong with a value from the validation that the command line has too.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

from glassformer.core.config import Node, Tree, format_value
from glassformer.core.registry import Kind, kinds
from glassformer.runs.experiment import ExperimentConfig

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
