"""The config tree: frozen nodes, YAML, `PATH=VALUE`, fingerprints, errors with a path.

Nothing here knows what is configured: each node is defined next to the module it builds, and
`runs/experiment.py` joins them into one tree.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Self, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from glassformer.core.errors import ErrorDetail, UserError, user_error
from glassformer.core.system import read_document

MAX_CONFIG_BYTES = 1 << 20
MAX_CONFIG_DEPTH = 24
"""The parser's own limit costs seconds to reach."""

Tree = dict[str, Any]


class UnknownKey(ErrorDetail):
    """Which may be known elsewhere in the tree."""


class Node(BaseModel):
    """A frozen part of the tree. Unknown keys are refused; a number is a number."""

    # Built when first used: most commands use a few kinds of the many.
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, validate_default=True, allow_inf_nan=False, defer_build=True
    )

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            if isinstance(data, Node):
                return data
            raise ErrorDetail("a mapping of options belongs here", value=data, allowed=list(cls.model_fields))
        for key in data:
            if key not in cls.model_fields:
                raise UnknownKey("unknown key", path=str(key), value=key, allowed=list(cls.model_fields))
        return cls.fill_kinds(data)

    @classmethod
    def fill_kinds(cls, tree: Mapping[str, Any]) -> Tree:
        """The tree with the default kinds that it leaves out, so that options of another kind can be told."""
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
    def chosen(cls, branch: Mapping[str, Any]) -> type[Node] | None:
        """The class that such options are of, if that can be told."""
        return cls

    def dump(self) -> Tree:
        return self.model_dump(mode="json", serialize_as_any=True)

    def identity(self) -> Tree:
        """What a fingerprint is of."""
        return self.dump()

    def fingerprint(self) -> str:
        """The same for the same resolved tree, on every machine."""
        canonical = json.dumps(self.identity(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(canonical.encode(errors="backslashreplace")).hexdigest()

    def with_overrides(self, overlay: Tree) -> Self:
        return validate(type(self), merge(self.dump(), overlay))


NodeType = TypeVar("NodeType", bound=Node)


def validate(node: type[NodeType], tree: Tree) -> NodeType:
    try:
        return node.model_validate(tree)
    except ValidationError as error:
        raise UserError(*_problems(error, set(_paths(node, tree)))) from None


def _problems(error: ValidationError, paths: set[str]) -> list[ErrorDetail]:
    problems = []
    for item in error.errors():
        place = ".".join(str(part) for part in item["loc"])
        cause = item.get("ctx", {}).get("error")
        if isinstance(cause, ErrorDetail):
            place = ".".join(part for part in (place, cause.path) if part)
            value, hint = cause.value, cause.hint
            if isinstance(cause, UnknownKey) and (other := _elsewhere(place, paths)):
                value, hint = None, other  # the name is right, so none is looked for that is like it
            problem = ErrorDetail(cause.message, path=place, value=value, allowed=cause.allowed, hint=hint)
        elif item["type"] == "missing":
            problem = ErrorDetail("a value is required", path=place, hint=f"{place}=VALUE")
        elif item["type"] == "literal_error":
            allowed = re.findall(r"'([^']*)'", item["ctx"]["expected"])
            problem = ErrorDetail("not one of the choices", path=place, value=item["input"], allowed=allowed)
        else:
            message = item["msg"].replace("Input should be", "must be").replace("Value error, ", "")
            problem = ErrorDetail(message, path=place, value=item["input"], hint=_remedy(item["type"]))
        problems.append(problem)
    return problems


def _paths(node: type[Node], tree: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Of all options that there are, with the kinds that the tree chooses."""
    for key, field in node.model_fields.items():
        yield above + key
        given = tree.get(key)
        branch = given if isinstance(given, Mapping) else {}
        default = field.get_default(call_default_factory=True)
        part = type(default) if isinstance(default, Node) else None
        if isinstance(field.annotation, type) and issubclass(field.annotation, Node):
            part = field.annotation.chosen(branch) or part
        if part is not None:
            yield from _paths(part, branch, f"{above}{key}.")


def _elsewhere(place: str, paths: set[str]) -> str:
    """The option of this name, or whose name ends with it, that another part of the tree has."""
    name = place.rpartition(".")[2]
    same = [path for path in paths if path.rpartition(".")[2] == name]
    longer = [path for path in paths if path.endswith(f"_{name}")]
    return f"{min(same or longer, key=_height)}=VALUE" if same or longer else ""


def _height(path: str) -> tuple[int, int, str]:
    return path.count("."), len(path), path


def _remedy(error_type: str) -> str:
    if error_type.startswith("int"):
        return "a whole number, such as 4"
    if error_type.startswith("float"):
        return "a number, such as 0.1 or 1e-3"
    if error_type.startswith("bool"):
        return "true or false"
    return ""


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML: `1e-3` is a float, `010` is ten, only true/false are booleans; no tags, no aliases."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()
        if self.depth > MAX_CONFIG_DEPTH:
            raise RecursionError
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "aliases are not supported", event.start_mark)
        if getattr(event, "tag", None) is not None:
            raise yaml.composer.ComposerError(
                None, None, f"the tag {event.tag!r} is not supported", event.start_mark
            )
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a name", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} stands twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_decimal(self, node: Any) -> int:
        try:
            return int(self.construct_scalar(node))
        except ValueError:
            raise yaml.constructor.ConstructorError(
                None, None, "a number of too many digits", node.start_mark
            ) from None


class _StrictDumper(yaml.SafeDumper):
    """Quotes every text that `_StrictLoader` or another YAML reader would take for something else."""

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
    """What `parse_yaml` reads as the same tree."""
    return yaml.dump(tree, Dumper=_StrictDumper, sort_keys=False, allow_unicode=True)


def parse_yaml(text: str, place: str) -> Any:
    try:
        return yaml.load(text, Loader=_StrictLoader)  # a subclass of SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{place}, line {mark.line + 1}, column {mark.column + 1}" if mark else place
        raise user_error(f"not valid YAML: {error.problem}", path=where, hint=_yaml_remedy(error)) from None
    except (yaml.YAMLError, ValueError) as error:
        raise user_error(
            f"not valid YAML: {error}", path=place, hint="save the file as plain UTF-8 text"
        ) from None
    except RecursionError:
        raise user_error("nested too deeply", path=place, hint="flatten the file") from None


def _yaml_remedy(error: yaml.MarkedYAMLError) -> str:
    if "tag" in (error.problem or ""):
        return "remove the tag: a config holds data only, and runs no code"
    if "alias" in (error.problem or ""):
        return "write the value out"
    if "twice" in (error.problem or ""):
        return "keep one of the two"
    return "check indentation, colons and brackets there"


def read_yaml_file(path: Path) -> Tree:
    """The mapping in a small UTF-8 YAML file, or an error that says what to do."""
    place = str(path)
    if os.path.isdir(path):
        raise user_error("is a folder, not a YAML file", path=place, hint="name the file in it")
    if not os.path.isfile(path):
        siblings = sorted(str(sibling) for sibling in path.parent.glob("*.y*ml"))
        raise user_error("no such file", path=place, value=place, allowed=siblings, hint="check the path")
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise user_error(
            f"too large for a config ({path.stat().st_size:,} bytes)",
            path=place,
            hint=f"a config is at most {MAX_CONFIG_BYTES:,} bytes; is this a data file?",
        )
    try:
        text = read_document(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise user_error(f"not UTF-8 at byte {error.start}", path=place, hint="save it as UTF-8") from None
    except OSError as error:
        raise user_error(
            f"cannot be read: {error.strerror}", path=place, hint="check its permissions"
        ) from None
    tree = parse_yaml(text, place)
    if tree is None:
        raise user_error("the file is empty", path=place, hint="start with 'task: {kind: reversal}'")
    if not isinstance(tree, dict):
        raise user_error(
            f"a mapping belongs at the top, not a {type(tree).__name__}",
            path=place,
            hint="start with 'task: {kind: reversal}'",
        )
    return tree


_COMMENTS_ABOVE = re.compile(r"\A(?:#[^\n]*\n)+")
_WRITTEN_LINE = re.compile(r"( *)([A-Za-z_]\w*):(?: (.+))?", re.ASCII)


def read_written_yaml(path: Path) -> Tree:
    """The same as `read_yaml_file`, many times faster for what `dump_yaml` has written: a line a key.

    Whatever looks otherwise is left to the other one, with its errors.
    """
    try:
        text = read_document(path).decode("utf-8") if path.stat().st_size <= MAX_CONFIG_BYTES else ""
        tree = _read_lines(text)
    except (OSError, ValueError, UserError):
        tree = None
    return tree or read_yaml_file(path)


def _read_lines(text: str) -> Tree | None:
    tree: Tree = {}
    branches = [(0, tree)]
    opened: str | None = None
    for line in _COMMENTS_ABOVE.sub("", text).removesuffix("\n").split("\n"):
        match = _WRITTEN_LINE.fullmatch(line)
        if match is None or match[2] in ("true", "false", "null"):
            return None
        indent, key, value = len(match[1]), match[2], match[3]
        if opened is not None:
            if indent != branches[-1][0] + 2:
                return None
            branches.append((indent, branches[-1][1].setdefault(opened, {})))
            opened = None
        while indent < branches[-1][0]:
            branches.pop()
        depth, branch = branches[-1]
        if indent != depth or key in branch:
            return None
        if value is None:
            opened = key
        else:
            branch[key] = _read_value(value)
    return None if opened is not None else tree


@lru_cache(maxsize=4096)
def _read_scalar(text: str) -> Any:
    """Of a line; runs of one folder have most of them alike."""
    value = parse_yaml(text, "")
    if text[0] in "|>&*!#" or isinstance(value, (dict, list)):
        raise ValueError(text)
    return value


def _read_value(text: str) -> Any:
    return {"[]": [], "{}": {}}[text] if text in ("[]", "{}") else _read_scalar(text)


def parse_overrides(overrides: Iterable[str]) -> Tree:
    """`["a.b=1", "a.c=x"]` as one tree, so that their order does not matter."""
    flat: Tree = {}
    for override in overrides:
        path, equals, text = override.partition("=")
        path = path.strip()
        if not equals or not all(path.split(".")):
            raise user_error("not of the form PATH=VALUE", value=override, hint="model.num_layers=2")
        if not text.strip():
            raise user_error("no value after '='", path=path, hint=f"{path}=null, if none is meant")
        if path in flat:
            raise user_error("set twice", path=path, hint="give it once")
        flat[path] = parse_yaml(text, path)
    return unflatten(flat)


def format_value(value: Any) -> str:
    """One line that `parse_overrides` reads as this value."""
    text = yaml.dump(
        value, Dumper=_StrictDumper, default_flow_style=True, allow_unicode=True, width=2**30, sort_keys=False
    )
    return text.removesuffix("\n").removesuffix("...").strip()


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Tree:
    """`{"a": {"b": 1}}` as `{"a.b": 1}`."""
    flat: Tree = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{path}."))
        else:
            flat[path] = value
    return flat


def unflatten(flat: Mapping[str, Any]) -> Tree:
    """The tree of a mapping whose keys may be dotted paths."""
    tree: Tree = {}
    for path, value in flat.items():
        *parents, last = str(path).split(".")
        branch = tree
        for depth, key in enumerate(parents, start=1):
            if ".".join(parents[:depth]) in flat:
                raise user_error("set twice, once as a whole", path=str(path), hint="give one of the two")
            branch = branch.setdefault(key, {})
        branch[last] = value
    return tree


def merge(base: Any, overlay: Any) -> Any:
    """`overlay` on top of `base`. Another kind replaces the whole choice, since options belong to a kind."""
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
