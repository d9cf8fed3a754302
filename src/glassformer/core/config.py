"""Config tree: frozen nodes, strict YAML, `PATH=VALUE` overrides, fingerprints, and errors with a path.

This module does not know the options. Each config class is defined next to the module that it builds, and
`runs/experiment.py` joins them into one tree.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Self, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from glassformer.core.errors import (
    ErrorDetail,
    UserError,
    near_match,
    shorten,
    suggest_path,
    user_error,
)
from glassformer.core.system import read_regular_file

MAX_CONFIG_BYTES = 1 << 20
MAX_SUGGESTED_VALUE = 60
"""Maximum number of characters of a value that the hint of an error repeats."""
MAX_CONFIG_DEPTH = 24
"""Maximum nesting depth of a config file. A hostile file would keep PyYAML busy for seconds."""

Tree = dict[str, Any]

OPTION_PATH = re.compile(r"[a-z_0-9]*[a-z][a-z_0-9]*(?:\.[a-z_0-9]+)*")
"""Pattern that matches the dotted path of an option."""

EXAMPLES = {
    "int": "use a whole number, such as 4",
    "float": "use a number, such as 0.1 or 1e-3",
    "bool": "use true or false",
}
"""Hint for a value of the wrong type. The key is the start of pydantic's error type, such as `int_type`."""
YAML_HINTS = {
    "a key must be a name": "write one name before the colon, such as seed: 1",
    "appears twice": "remove one of the two keys",
    "tag": "write the value without the tag: a config contains data only and runs no code",
    "alias": "replace the alias by its value",
    "another document": "remove the line '---': a config is one YAML document",
    "": "check indentation, colons and brackets there",
}
"""Hint for invalid YAML. The first entry whose key occurs in the error message is used."""


class UnknownOption(ErrorDetail):
    """Error for an unknown option. Its hint may name an option of the same name in another section."""


class Node(BaseModel):
    """Immutable config section (pydantic model). It rejects unknown options and does not convert types."""

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
                    "unknown option", path=str(key), value=key, allowed=sorted(cls.model_fields)
                )
        return cls.fill_kinds(data)

    @classmethod
    def fill_kinds(cls, tree: Mapping[str, Any]) -> Tree:
        """Return `tree` with the default `kind` where a section omits it, so that `merge` compares kinds."""
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
        """Return the config class that `options["kind"]` selects, or None if that kind is not registered."""
        return cls

    def dump(self) -> Tree:
        """Return the section as a JSON-serialisable dict."""
        return self.model_dump(mode="json", serialize_as_any=True)

    def identity(self) -> Tree:
        """Return the options that determine the fingerprint, by default all, as a JSON-serialisable dict."""
        return self.dump()

    def fingerprint(self) -> str:
        """Return the SHA-256 of `identity()` in hexadecimal. Equal configs have equal fingerprints."""
        canonical = json.dumps(self.identity(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(canonical.encode(errors="backslashreplace")).hexdigest()

    def with_overrides(self, overlay: Tree) -> Self:
        """Return a validated copy in which the nested dict `overlay` replaces some options."""
        return validate(type(self), merge(self.dump(), overlay))


NodeType = TypeVar("NodeType", bound=Node)


def validate(node: type[NodeType], tree: Tree) -> NodeType:
    """Build a config object from a nested dict. Raise a UserError that lists all invalid options."""
    try:
        return node.model_validate(tree)
    except ValidationError as error:
        raise UserError(*_details(error, set(_paths(node, tree)), tree)) from None


def _details(error: ValidationError, paths: set[str], tree: Tree) -> list[ErrorDetail]:
    details = []
    for item in error.errors():
        path = ".".join(str(part) for part in item["loc"])
        cause = item.get("ctx", {}).get("error")
        if isinstance(cause, ErrorDetail):
            detail = replace(cause, path=".".join(part for part in (path, cause.path) if part))
            if isinstance(cause, UnknownOption) and (hint := _meant_option(detail, paths, tree)):
                # No value: a similar name would be suggested instead of the hint.
                detail = replace(detail, value=None, hint=hint)
            elif isinstance(cause, UnknownOption):
                section = detail.path.rpartition(".")[0]
                detail = replace(detail, hint=f"glassformer options {section}".strip())
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
    """Yield the dotted path of every option of a config class, with the kinds that `tree` selects."""
    for key, field in node.model_fields.items():
        yield prefix + key
        given = tree.get(key)
        options = given if isinstance(given, Mapping) else {}
        default = field.get_default(call_default_factory=True)
        section = type(default) if isinstance(default, Node) else None
        for annotation in (field.annotation, *get_args(field.annotation)):  # a section may be optional
            if isinstance(annotation, type) and issubclass(annotation, Node):
                section = annotation.chosen(options) or section
        if section is not None:
            yield from _paths(section, options, f"{prefix}{key}.")


@cache
def renamed_options() -> dict[str, str]:
    """Return the renamed options as a dict from old path to new path.

    An old name is an error. The hint of the error is the new name.
    """
    text = (resources.files("glassformer.core") / "renamed_options.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def _meant_option(detail: ErrorDetail, paths: set[str], tree: Tree) -> str:
    """Return a hint for an unknown option: its new name, or an option of another section; else ''."""
    path = detail.path
    if path in renamed_options():
        return f"use the new name, {renamed_options()[path]}"
    value: Any = tree
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    given = path
    while isinstance(value, Mapping) and value:  # `data` may hold the option `data.train`
        key, value = next(iter(value.items()))
        given = f"{given}.{key}"
    meant = suggest_path(given, paths)
    section = path.rpartition(".")[0]
    near = near_match(detail.value, detail.allowed)
    if meant is None or (near is not None and meant == ".".join(part for part in (section, near) if part)):
        return ""  # a name of the same section is suggested by itself
    text = format_value(value) if isinstance(value, str | int | float | None) else "VALUE"
    return f"{meant}={text if len(text) <= MAX_SUGGESTED_VALUE else 'VALUE'}"


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML loader: no tags, no aliases, `1e-3` is a float, `010` is 10, `yes` is not a boolean."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()
        if self.depth > MAX_CONFIG_DEPTH:
            raise RecursionError
        if self.check_event(yaml.AliasEvent):
            raise _yaml_error("aliases are not supported", event)
        if getattr(event, "tag", None) is not None:
            written = event.tag.replace("tag:yaml.org,2002:", "!!")
            raise _yaml_error(f"tags such as {written!r} are not supported", event)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                written = key.start_mark.buffer[key.start_mark.pointer : key.end_mark.pointer]
                raise _yaml_error(f"a key must be a name, not {shorten(written, 40)!r}", key)
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
    """YAML dumper that quotes every string that some YAML parser would read as another type."""

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


def dump_yaml(tree: Tree, *, wraps: bool = True) -> str:
    """Return a nested dict as YAML text that `parse_yaml` reads back as the same dict.

    Without `wraps`, a long text stays on one line.
    """
    width = None if wraps else sys.maxsize
    return yaml.dump(tree, Dumper=_StrictDumper, sort_keys=False, allow_unicode=True, width=width)


def parse_yaml(text: str, location: str) -> Any:
    """Parse YAML text. Errors report `location` (such as the file name), the line and the column."""
    try:
        return yaml.load(text, Loader=_StrictLoader)  # a subclass of SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{location}, line {mark.line + 1}, column {mark.column + 1}" if mark else location
        hint = next(hint for word, hint in YAML_HINTS.items() if word in (error.problem or ""))
        problem = (error.problem or "").removeprefix("but ")
        raise user_error(f"not valid YAML: {problem}", path=where, hint=hint) from None
    except (yaml.YAMLError, ValueError) as error:
        raise user_error(
            f"not valid YAML: {error}", path=location, hint="save the file as plain UTF-8 text"
        ) from None
    except RecursionError:
        message, hint = "the YAML is nested too deeply", f"use at most {MAX_CONFIG_DEPTH} levels"
        raise user_error(message, path=location, hint=hint) from None


def read_yaml_file(path: Path) -> Tree:
    """Read a YAML config file (UTF-8, at most 1 MiB) and return its top-level mapping."""
    location = str(path)
    if os.path.isdir(path):
        raise user_error("this is a folder, not a YAML file", path=location, hint="name a file in it")
    if not os.path.isfile(path):
        siblings = sorted(str(sibling) for sibling in path.parent.glob("*.y*ml"))
        raise user_error(
            "no such file", path=location, value=location, allowed=siblings, hint="check the path"
        )
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise user_error(
            f"the file is too large for a config ({path.stat().st_size:,} bytes)",
            path=location,
            hint=f"name a config file, not a data file (at most {MAX_CONFIG_BYTES:,} bytes)",
        )
    try:
        text = read_regular_file(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"the file is not UTF-8 at byte {error.start}"
        raise user_error(message, path=location, hint="save the file as UTF-8") from None
    except OSError as error:
        raise user_error(
            f"the file cannot be read: {error.strerror}", path=location, hint="check its permissions"
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
    """Parse overrides such as `["a.b=1"]` or `{"a.b": 1}` into a nested dict, here `{"a": {"b": 1}}`."""
    if isinstance(overrides, Mapping):
        return unflatten(overrides)
    flat: Tree = {}
    words = list(overrides)
    for index, override in enumerate(words):
        path, equals, text = override.partition("=")
        path = path.strip()
        if not equals or not all(path.split(".")):
            hint = _meant_override(override, words[index + 1 :])
            raise user_error("this is not of the form PATH=VALUE", value=override, hint=hint)
        if not text.strip():
            raise user_error("no value after '='", path=path, hint=f"add a value; {path}=null means none")
        if path in flat:
            raise user_error("this option is set twice", path=path, hint="set it once")
        flat[path] = parse_yaml(text, path)
    return unflatten(flat)


def _meant_override(word: str, following: Sequence[str]) -> str:
    """Return a hint for a word that is not of the form PATH=VALUE: a data file, or a path without a value."""
    if "/" in word or "\\" in word or os.path.isfile(word):
        return f"task.data.train={word}"
    if not OPTION_PATH.fullmatch(word):
        return "write it like model.num_layers=2"
    value = following[0] if following and "=" not in following[0] else "VALUE"
    return f"{word}={value}"


def format_value(value: Any) -> str:
    """Return a value as one line of YAML that `parse_overrides` reads back as the same value."""
    text = yaml.dump(
        value, Dumper=_StrictDumper, default_flow_style=True, allow_unicode=True, width=2**30, sort_keys=False
    )
    return text.removesuffix("\n").removesuffix("...").strip()


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Tree:
    """Convert a nested dict to dotted paths: `{"a": {"b": 1}}` becomes `{"a.b": 1}`."""
    flat: Tree = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{path}."))
        else:
            flat[path] = value
    return flat


def unflatten(flat: Mapping[str, Any]) -> Tree:
    """Convert dotted paths to a nested dict: `{"a.b": 1}` becomes `{"a": {"b": 1}}`."""
    tree: Tree = {}
    for path, value in flat.items():
        *parents, last = str(path).split(".")
        section = tree
        for depth, key in enumerate(parents, start=1):
            if ".".join(parents[:depth]) in flat:
                message = "this option is set twice, once as part of its section"
                raise user_error(message, path=str(path), hint="set the option or its section, not both")
            section = section.setdefault(key, {})
        section[last] = value
    return tree


def merge(base: Any, overlay: Any) -> Any:
    """Merge `overlay` into `base` recursively. A section with a different `kind` is replaced as a whole."""
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
