"""Config tree: frozen nodes, strict YAML, `PATH=VALUE` overrides, fingerprints, and errors with a path.

This module does not know the options. Each config class is defined next to the module that it builds, and
`runs/experiment.py` joins them into one tree.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Self, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from glassformer.core.errors import ErrorDetail, UserError, user_error
from glassformer.core.system import read_regular_file

MAX_CONFIG_BYTES = 1 << 20
MAX_CONFIG_DEPTH = 24
"""Deeper files are rejected at once; PyYAML needs seconds to reach Python's recursion limit."""

Tree = dict[str, Any]

EXAMPLES = {
    "int": "a whole number, such as 4",
    "float": "a number, such as 0.1 or 1e-3",
    "bool": "true or false",
}
"""Hint for a value of the wrong type, by the beginning of pydantic's name of the error."""
YAML_HINTS = {
    "tag": "remove the tag: a config contains data only, and runs no code",
    "alias": "write the value out",
    "twice": "keep one of the two",
    "": "check indentation, colons and brackets there",
}
"""Hint for invalid YAML, by a word of the error message; the first that applies."""


class UnknownOption(ErrorDetail):
    """Unknown option; another section of the config may have one of this name."""


class Node(BaseModel):
    """Frozen section of the config. Unknown options are rejected, and values are not converted."""

    # defer_build: pydantic builds a class when it is first used, and a command uses few of them.
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, validate_default=True, allow_inf_nan=False, defer_build=True
    )

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            if isinstance(data, Node):
                return data
            raise ErrorDetail("expected a mapping of options", value=data, allowed=list(cls.model_fields))
        for key in data:
            if key not in cls.model_fields:
                raise UnknownOption(
                    "unknown option", path=str(key), value=key, allowed=list(cls.model_fields)
                )
        return cls.fill_kinds(data)

    @classmethod
    def fill_kinds(cls, tree: Mapping[str, Any]) -> Tree:
        """Add the default `kind` wherever a tree leaves it out, so that `merge` recognises another kind."""
        filled = dict(tree)
        for key, value in tree.items():
            field = cls.model_fields.get(key)
            default = field.get_default(call_default_factory=True) if field else None
            if not isinstance(default, Node) or not isinstance(value, Mapping):
                continue
            kind = getattr(default, "kind", None)
            filled[key] = value if kind is None else {"kind": kind, **value}
            if filled[key].get("kind") == kind:
                filled[key] = type(default).fill_kinds(filled[key])
        return filled

    @classmethod
    def chosen(cls, options: Mapping[str, Any]) -> type[Node] | None:
        """Return the config class that these options select, or None if their kind is unknown."""
        return cls

    def dump(self) -> Tree:
        """Return the section as a tree of JSON values."""
        return self.model_dump(mode="json", serialize_as_any=True)

    def identity(self) -> Tree:
        """Return the options that the fingerprint covers."""
        return self.dump()

    def fingerprint(self) -> str:
        """Return the SHA-256 of `identity()`: equal configs have equal fingerprints on every machine."""
        canonical = json.dumps(self.identity(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(canonical.encode(errors="backslashreplace")).hexdigest()

    def with_overrides(self, overlay: Tree) -> Self:
        """Return a validated copy with some options changed."""
        return validate(type(self), merge(self.dump(), overlay))


NodeType = TypeVar("NodeType", bound=Node)


def validate(node: type[NodeType], tree: Tree) -> NodeType:
    """Build a config from a tree; a UserError lists everything that is wrong with it."""
    try:
        return node.model_validate(tree)
    except ValidationError as error:
        raise UserError(*_details(error, set(_paths(node, tree)))) from None


def _details(error: ValidationError, paths: set[str]) -> list[ErrorDetail]:
    details = []
    for item in error.errors():
        path = ".".join(str(part) for part in item["loc"])
        cause = item.get("ctx", {}).get("error")
        if isinstance(cause, ErrorDetail):
            detail = replace(cause, path=".".join(part for part in (path, cause.path) if part))
            if isinstance(cause, UnknownOption) and (hint := _renamed_or_elsewhere(detail.path, paths)):
                # No value: a similar name would be suggested instead of the hint.
                detail = replace(detail, value=None, hint=hint)
        elif item["type"] == "missing":
            detail = ErrorDetail("a value is required", path=path, hint=f"{path}=VALUE")
        elif item["type"] == "literal_error":
            allowed = re.findall(r"'([^']*)'", item["ctx"]["expected"])
            detail = ErrorDetail("not one of the choices", path=path, value=item["input"], allowed=allowed)
        else:
            message = item["msg"].replace("Input should be", "must be").replace("Value error, ", "")
            hint = EXAMPLES.get(item["type"].partition("_")[0], "")
            detail = ErrorDetail(message, path=path, value=item["input"], hint=hint)
        details.append(detail)
    return details


def _paths(node: type[Node], tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the paths of all options of the config, for the kinds that the tree selects."""
    for key, field in node.model_fields.items():
        yield prefix + key
        given = tree.get(key)
        options = given if isinstance(given, Mapping) else {}
        default = field.get_default(call_default_factory=True)
        section = type(default) if isinstance(default, Node) else None
        if isinstance(field.annotation, type) and issubclass(field.annotation, Node):
            section = field.annotation.chosen(options) or section
        if section is not None:
            yield from _paths(section, options, f"{prefix}{key}.")


@cache
def renamed_options() -> dict[str, str]:
    """Return the options that had another name, old path to new path.

    An old name is an error whose hint is the new one.
    """
    text = (resources.files("glassformer.core") / "renamed_options.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def _renamed_or_elsewhere(path: str, paths: set[str]) -> str:
    """Suggest the new name of a renamed option, or an option of this name in another section, or ''."""
    if path in renamed_options():
        return f"it is called {renamed_options()[path]} now"
    name = path.rpartition(".")[2]
    same = [other for other in paths if other.rpartition(".")[2] == name]
    longer = [other for other in paths if other.endswith(f"_{name}")]
    nearest = min(same or longer, key=lambda other: (other.count("."), len(other), other), default="")
    return f"{nearest}=VALUE" if nearest else ""


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML: `1e-3` is a float, `010` is ten, only true and false are booleans; no tags, no aliases."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()
        if self.depth > MAX_CONFIG_DEPTH:
            raise RecursionError
        if self.check_event(yaml.AliasEvent):
            raise _yaml_error("aliases are not supported", event)
        if getattr(event, "tag", None) is not None:
            raise _yaml_error(f"the tag {event.tag!r} is not supported", event)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _yaml_error("a key must be a name", key)
            if key.value in seen:
                raise _yaml_error(f"the key {key.value!r} appears twice", key)
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_decimal(self, node: Any) -> int:
        try:
            return int(self.construct_scalar(node))
        except ValueError:
            raise _yaml_error("a number with too many digits", node) from None


def _yaml_error(problem: str, item: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=item.start_mark)


class _StrictDumper(yaml.SafeDumper):
    """YAML dumper that quotes every text that this or another YAML reader would not read as text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        style = None if text.isprintable() else '"'  # other styles lose some line breaks
        return self.represent_scalar("tag:yaml.org,2002:str", text, style)


_StrictLoader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"true|false", "tf"),
    ("null", r"null|~|", ["n", "~", ""]),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan",
        "-+.0123456789",
    ),
):
    _StrictLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first)
    )
_StrictLoader.add_constructor("tag:yaml.org,2002:int", _StrictLoader.construct_decimal)
_StrictDumper.add_representer(str, _StrictDumper.represent_text)
_StrictDumper.yaml_implicit_resolvers = {
    first: [
        *yaml.SafeDumper.yaml_implicit_resolvers.get(first, []),
        *_StrictLoader.yaml_implicit_resolvers.get(first, []),
    ]
    for first in {*yaml.SafeDumper.yaml_implicit_resolvers, *_StrictLoader.yaml_implicit_resolvers}
}


def dump_yaml(tree: Tree) -> str:
    """Encode a tree as YAML that `parse_yaml` reads back as the same tree."""
    return yaml.dump(tree, Dumper=_StrictDumper, sort_keys=False, allow_unicode=True)


def parse_yaml(text: str, location: str) -> Any:
    """Parse YAML; errors name the location, the line and the column."""
    try:
        return yaml.load(text, Loader=_StrictLoader)  # a subclass of SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{location}, line {mark.line + 1}, column {mark.column + 1}" if mark else location
        hint = next(hint for word, hint in YAML_HINTS.items() if word in (error.problem or ""))
        raise user_error(f"not valid YAML: {error.problem}", path=where, hint=hint) from None
    except (yaml.YAMLError, ValueError) as error:
        raise user_error(
            f"not valid YAML: {error}", path=location, hint="save the file as plain UTF-8 text"
        ) from None
    except RecursionError:
        raise user_error("nested too deeply", path=location, hint="flatten the file") from None


def read_yaml_file(path: Path) -> Tree:
    """Read the mapping in a UTF-8 YAML file of at most 1 MiB."""
    location = str(path)
    if os.path.isdir(path):
        raise user_error("is a folder, not a YAML file", path=location, hint="name the file in it")
    if not os.path.isfile(path):
        siblings = sorted(str(sibling) for sibling in path.parent.glob("*.y*ml"))
        raise user_error(
            "no such file", path=location, value=location, allowed=siblings, hint="check the path"
        )
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise user_error(
            f"too large for a config ({path.stat().st_size:,} bytes)",
            path=location,
            hint=f"a config is at most {MAX_CONFIG_BYTES:,} bytes; is this a data file?",
        )
    try:
        text = read_regular_file(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise user_error(f"not UTF-8 at byte {error.start}", path=location, hint="save it as UTF-8") from None
    except OSError as error:
        raise user_error(
            f"cannot be read: {error.strerror}", path=location, hint="check its permissions"
        ) from None
    tree = parse_yaml(text, location)
    if tree is None:
        raise user_error("the file is empty", path=location, hint="start with 'task: {kind: reversal}'")
    if not isinstance(tree, dict):
        raise user_error(
            f"expected a mapping at the top level, not a {type(tree).__name__}",
            path=location,
            hint="start with 'task: {kind: reversal}'",
        )
    return tree


def parse_overrides(overrides: Iterable[str] | Mapping[str, Any]) -> Tree:
    """Parse `["a.b=1", "a.c=x"]`, or `{"a.b": 1}`, into one tree. The order does not matter."""
    if isinstance(overrides, Mapping):
        return unflatten(overrides)
    flat: Tree = {}
    for override in overrides:
        path, equals, text = override.partition("=")
        path = path.strip()
        if not equals or not all(path.split(".")):
            raise user_error("not of the form PATH=VALUE", value=override, hint="model.num_layers=2")
        if not text.strip():
            raise user_error("no value after '='", path=path, hint=f"{path}=null for no value")
        if path in flat:
            raise user_error("set twice", path=path, hint="give it once")
        flat[path] = parse_yaml(text, path)
    return unflatten(flat)


def format_value(value: Any) -> str:
    """Format a value in one line that `parse_overrides` reads back as the same value."""
    text = yaml.dump(
        value, Dumper=_StrictDumper, default_flow_style=True, allow_unicode=True, width=2**30, sort_keys=False
    )
    return text.removesuffix("\n").removesuffix("...").strip()


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Tree:
    """Convert `{"a": {"b": 1}}` to `{"a.b": 1}`."""
    flat: Tree = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{path}."))
        else:
            flat[path] = value
    return flat


def unflatten(flat: Mapping[str, Any]) -> Tree:
    """Convert `{"a.b": 1}` to `{"a": {"b": 1}}`; keys may be dotted paths or plain names."""
    tree: Tree = {}
    for path, value in flat.items():
        *parents, last = str(path).split(".")
        section = tree
        for depth, key in enumerate(parents, start=1):
            if ".".join(parents[:depth]) in flat:
                raise user_error("set twice, once as a whole", path=str(path), hint="give one of the two")
            section = section.setdefault(key, {})
        section[last] = value
    return tree


def merge(base: Any, overlay: Any) -> Any:
    """Put `overlay` over `base`. Another kind replaces the whole section, since options belong to a kind."""
    if isinstance(base, str) and isinstance(overlay, dict):
        base = {"kind": base}
    if isinstance(overlay, str) and isinstance(base, dict) and "kind" in base:
        overlay = {"kind": overlay}
    if not isinstance(base, dict) or not isinstance(overlay, dict):
        return overlay
    if "kind" in overlay and overlay["kind"] != base.get("kind"):
        return overlay
    merged = dict(base)
    for key, value in overlay.items():
        merged[key] = merge(base[key], value) if key in base else value
    return merged
