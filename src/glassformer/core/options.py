"""Options of the config classes as data: type, bounds, default, description and kinds.

`glassformer options`, `docs/options.md` and the studio's form read the config classes with this module only.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

from glassformer.core.config import Node
from glassformer.core.errors import OTHER_NAMES, UserError, suggest_path, user_error
from glassformer.core.registry import Kind, kinds

NodeClass: TypeAlias = type[Node]
SIMPLE: dict[Any, str] = {bool: "boolean", int: "integer", float: "number", str: "text"}
BOUNDS = {
    annotated_types.Ge: ("minimum", "ge"),
    annotated_types.Gt: ("above", "gt"),
    annotated_types.Le: ("maximum", "le"),
    annotated_types.Lt: ("below", "lt"),
    annotated_types.MultipleOf: ("multiple_of", "multiple_of"),
}


@dataclass(frozen=True)
class Option:
    """Field of a config class: a value, a section with options of its own, or a choice of a kind."""

    name: str
    type: str
    """`integer`, `number`, `boolean`, `text`, `choice`, `list`, `kind` or `section`."""
    description: str
    default: Any
    """Default value, as a JSON-serialisable dict for a section or a kind."""
    is_optional: bool = False
    """True if the value may be null, which means none."""
    is_required: bool = False
    is_yaml: bool = False
    """True if the value may be a list or a mapping."""
    choices: list[Any] | None = None
    bounds: dict[str, float] = field(default_factory=dict)
    type_text: str = ""
    """Type of the value in words, such as `text or list of text`."""
    node: NodeClass | None = None
    """Config class of a section, or the class whose registered kinds can be chosen."""
    keys_in: str = ""
    """Attribute of the enclosing kind with the possible keys of a mapping; empty if any key is possible."""


def options_of(node: type[Node]) -> list[Option]:
    """Return the options of a config class in their order, without `kind`."""
    return [describe(name, info) for name, info in node.model_fields.items() if name != "kind"]


def describe(name: str, info: FieldInfo) -> Option:
    """Return a field of a config class as an `Option`."""
    plain, is_optional, metadata = _unwrapped(info.annotation)
    node = plain if isinstance(plain, type) and issubclass(plain, Node) else None
    choices: list[Any] | None = None
    if node is not None:
        kind = "kind" if issubclass(node, Kind) else "section"
    elif get_origin(plain) is Literal:
        kind, choices = "choice", list(get_args(plain))
    elif get_origin(plain) is list:
        kind = "list"
        item, _, _ = _unwrapped(get_args(plain)[0])
        choices = list(get_args(item)) if get_origin(item) is Literal else None
    else:
        kind = SIMPLE.get(plain, "text")
    return Option(
        name=name,
        type=kind,
        description=info.description or (first_paragraph(node) if node else ""),
        default=_default(info),
        is_optional=is_optional,
        is_required=info.is_required(),
        is_yaml=kind == "text" and plain is not str,
        choices=choices,
        bounds=_bounds([*info.metadata, *metadata]),
        type_text=_type_text(plain),
        node=node,
        keys_in=str(info.json_schema_extra.get("keys_in", ""))
        if isinstance(info.json_schema_extra, dict)
        else "",
    )


TYPE_TEXTS: dict[Any, str] = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    dict: "mapping",
    types.NoneType: "null",
}


def _type_text(annotation: Any) -> str:
    """Return a type annotation in words."""
    plain, _, _ = _unwrapped(annotation)
    origin, arguments = get_origin(plain), get_args(plain)
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin in (Union, types.UnionType):
        return " or ".join(_type_text(member) for member in arguments if member is not types.NoneType)
    if origin is list:
        return f"list of {_type_text(arguments[0]).removeprefix('one of ')}"
    return TYPE_TEXTS.get(origin or plain, "section")


def _default(info: FieldInfo) -> Any:
    if info.is_required():
        return None
    default = info.get_default(call_default_factory=True, validated_data={})
    return default.dump() if isinstance(default, Node) else default


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


# ---------------------------------------------------------------- explanations of kinds

ADVICE = "Use "
"""First word of the paragraph of a kind's docstring that says when to use the kind."""


def first_paragraph(node: type[Node]) -> str:
    """Return the first paragraph of a config class's own docstring as one line."""
    return next(iter(_paragraphs(node)), "")


def advice(kind: type[Kind]) -> str:
    """Return the paragraph of a kind's docstring that says when to use it, or '' if it has none."""
    return next((text for text in _paragraphs(kind) if text.startswith(ADVICE)), "")


def _paragraphs(node: type[Node]) -> list[str]:
    # The attribute `__doc__` of a class without docstring would be that of pydantic's base class.
    documentation = node.__dict__.get("__doc__") or ""
    return [" ".join(paragraph.split()) for paragraph in documentation.split("\n\n")]


# ---------------------------------------------------------------- the tree of all options


@dataclass(frozen=True)
class KindEntry:
    """Kind that can be chosen, with its explanation and its own options."""

    name: str
    description: str
    use: str
    """Sentence that says when to use the kind, or ''."""
    options: list[OptionEntry]

    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "description": self.description,
            "use": self.use,
            "options": [entry.document() for entry in self.options],
        }


@dataclass(frozen=True)
class OptionEntry:
    """Option with its path, and the options and kinds below it."""

    path: str
    option: Option
    options: list[OptionEntry]
    """Options of a section."""
    kinds: list[KindEntry]
    """Kinds that can be chosen."""

    @property
    def default(self) -> Any:
        """Default value. For a choice, the name of the default kind."""
        default = self.option.default
        return default.get("kind") if self.option.type == "kind" and default else default

    def document(self) -> dict[str, Any]:
        """Return the option and everything below it as a JSON-serialisable dict."""
        option = self.option
        document: dict[str, Any] = {
            "path": self.path,
            "type": option.type,
            "bounds": option.bounds,
            "default": None if option.type == "section" else self.default,
            "description": option.description,
            "is_optional": option.is_optional,
            "is_required": option.is_required,
            "kinds": [kind.document() for kind in self.kinds],
        }
        if option.choices is not None:
            document["choices"] = option.choices
        if option.type == "section":
            document["options"] = [entry.document() for entry in self.options]
        return document


def option_tree(root: type[Node]) -> OptionEntry:
    """Return all options of the config class `root`, with all registered kinds, as one tree."""
    option = Option("", "section", first_paragraph(root), None, node=root)
    return OptionEntry("", option, _entries(root, ""), [])


def _entries(node: type[Node], prefix: str) -> list[OptionEntry]:
    return [_entry(f"{prefix}{option.name}", option) for option in options_of(node)]


def _entry(path: str, option: Option) -> OptionEntry:
    if option.node is None:
        return OptionEntry(path, option, [], [])
    if not issubclass(option.node, Kind):
        return OptionEntry(path, option, _entries(option.node, f"{path}."), [])
    found = [
        KindEntry(name, first_paragraph(kind), advice(kind), _entries(kind, f"{path}."))
        for name, kind in kinds(option.node).items()
    ]
    return OptionEntry(path, option, [], found)


# ---------------------------------------------------------------- lookup


@dataclass(frozen=True)
class Match:
    """Option that matches a query. `conditions` are the kinds for which the option exists."""

    entry: OptionEntry
    conditions: tuple[str, ...] = ()
    """Choices such as `task.kind=reversal`. Several of one path are alternatives."""
    kind: str | None = None
    """Name of the kind if the query names one kind of the choice `entry`."""

    def document(self) -> dict[str, Any]:
        document = self.entry.document()
        if self.kind is not None:
            document["kinds"] = [kind for kind in document["kinds"] if kind["name"] == self.kind]
        return {**document, "conditions": list(self.conditions)}


def all_options(root: OptionEntry) -> list[Match]:
    """Return all options below `root`. An option that several kinds share is one match."""
    return _merged([match for match in _matches(root, ()) if match.kind is None])


def find_options(root: OptionEntry, query: str) -> list[Match]:
    """Return the options that a query names. Raise a UserError with near matches if there are none.

    A query is a path (`model.position`), the end of a path (`position.base`, `dropout`), a choice
    (`model.position.kind=rotary`), the name of a kind (`rotary`), or its usual name elsewhere (`rope`, `lr`).
    """
    path, _, name = (part.strip().removesuffix(".kind") for part in query.partition("="))
    every = list(_matches(root, ()))
    if name:
        found = [match for match in every if match.kind == name and _is_end(match.entry.path, path)]
    else:
        plain = [match for match in every if match.kind is None]
        found = [match for match in plain if match.entry.path == path]
        found = found or [
            match for match in every if (match.kind or match.entry.path) == path or _ends(match, path)
        ]
    own_name = OTHER_NAMES.get(path.rpartition(".")[2].lower())
    if not found and own_name:
        meant = suggest_path(path, [match.entry.path for match in every])
        return find_options(root, meant or own_name)
    if not found:
        raise _unknown(query, path, name, every)
    return _merged(found)


def _is_end(path: str, end: str) -> bool:
    return path == end or path.endswith(f".{end}")


def _ends(match: Match, path: str) -> bool:
    return match.kind is None and _is_end(match.entry.path, path)


def _matches(entry: OptionEntry, conditions: tuple[str, ...]) -> Iterator[Match]:
    """Yield all options and kinds below an entry, with the kinds under which they exist."""
    for option in entry.options:
        yield Match(option, conditions)
        yield from _matches(option, conditions)
    for kind in entry.kinds:
        yield Match(entry, conditions, kind.name)
        # A choice with one kind is not a condition.
        chosen = (*conditions, f"{entry.path}.kind={kind.name}") if len(entry.kinds) > 1 else conditions
        for option in kind.options:
            yield Match(option, chosen)
            yield from _matches(option, chosen)


def _merged(found: list[Match]) -> list[Match]:
    """Merge the matches of an option that several kinds share into one, with the conditions of all."""
    by_path: dict[tuple[str, str | None], list[Match]] = {}
    for match in found:
        same_path = by_path.setdefault((match.entry.path, match.kind), [])
        for index, other in enumerate(same_path):
            if match.entry == other.entry:
                conditions = dict.fromkeys((*other.conditions, *match.conditions))
                same_path[index] = Match(other.entry, tuple(conditions), other.kind)
                break
        else:
            same_path.append(match)
    return [match for matches in by_path.values() for match in matches]


def _unknown(query: str, path: str, name: str, every: list[Match]) -> UserError:
    """Return the error for a query without a match. It suggests similar paths, option names and kinds."""
    names = [match.kind for match in every if match.kind is not None and _is_end(match.entry.path, path)]
    if name and names:
        allowed = list(dict.fromkeys(names))
        return user_error("no kind has this name", path=f"{path}.kind", value=name, allowed=allowed)
    paths = list(dict.fromkeys(match.entry.path for match in every))
    ends = [path.rpartition(".")[2] for path in paths]
    known = dict.fromkeys([*ends, *(match.kind for match in every if match.kind is not None), *paths])
    parent = next((other for other in paths if path.startswith(f"{other}.")), "")
    meant = suggest_path(path, paths) if parent else ""
    hint = f"glassformer options {meant or parent}".strip()
    message = "no option or kind has this name"
    if meant:
        return user_error(message, value=path, hint=hint)
    return user_error(message, value=path, allowed=list(known), hint=hint)
