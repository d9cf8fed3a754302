"""Kinds by name. A kind is a config class that builds its module; a family is what it competes in.

class PositionConfig(Kind): ...                       # a family: a direct subclass of Kind

@register
class RotaryConfig(PositionConfig):
    kind: Literal["rotary"] = "rotary"
    base: float = 10000.0
    def build(self, ...): ...
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ModelWrapValidatorHandler, model_validator

from glassformer.core.config import Node
from glassformer.core.errors import ErrorDetail, UserError, user_error

_families: dict[type[Kind], dict[str, type[Kind]]] = {}


class Kind(Node):
    """A choice by name: `{kind: rotary, base: 500}`, or just `rotary`."""

    kind: str

    @model_validator(mode="wrap")
    @classmethod
    def _choose(cls, data: Any, handler: ModelWrapValidatorHandler[Any]) -> Any:
        if isinstance(data, cls):
            return data
        if cls not in _families:
            return handler(data)
        if isinstance(data, str):
            data = {"kind": data}
        known = _families[cls]
        if not isinstance(data, Mapping):
            raise ErrorDetail("a choice belongs here: {kind: NAME, ...}", value=data, allowed=sorted(known))
        name = data.get("kind")
        if name is None:
            raise ErrorDetail("which kind?", path="kind", value="", allowed=sorted(known))
        if not isinstance(name, str) or name not in known:
            raise ErrorDetail(
                "unknown kind",
                path="kind",
                value=name,
                allowed=sorted(known),
                hint="--plugin FILE.py, if it is a kind of your own",
            )
        return known[name].model_validate(data)

    @classmethod
    def chosen(cls, branch: Mapping[str, Any]) -> type[Node] | None:
        return _families[cls].get(str(branch.get("kind"))) if cls in _families else cls


KindType = TypeVar("KindType", bound=Kind)


def register(cls: type[KindType]) -> type[KindType]:
    """Make a kind known to its family under the default of its `kind` field."""
    family = family_of(cls)
    name = cls.model_fields["kind"].default
    if not isinstance(name, str):
        raise TypeError(f'{cls.__name__} must give its name: kind: Literal["name"] = "name"')
    known = _families.setdefault(family, {})
    if name in known:
        taken = known[name]
        raise user_error(
            f"the kind {name!r} of {family.__name__} is registered twice",
            path=f"{cls.__module__}.{cls.__name__}",
            hint=f"another name: {taken.__module__}.{taken.__name__} has this one",
        )
    known[name] = cls
    return cls


def unregister(cls: type[Kind]) -> None:
    _families[family_of(cls)].pop(cls.model_fields["kind"].default)


def family_of(cls: type[Kind]) -> type[Kind]:
    for ancestor in cls.__mro__:
        if Kind in ancestor.__bases__:
            return ancestor
    raise TypeError(f"{cls.__name__} belongs to no family")


def kinds(family: type[Kind]) -> dict[str, type[Kind]]:
    return dict(_families.get(family, {}))


def load_plugin(path: Path) -> None:
    """Run a user's own Python file, which registers its kinds. Only ever on the user's word."""
    if not path.is_file():
        raise user_error("no such plug-in file", path=str(path), hint="--plugin PATH/TO/FILE.py")
    name = f"glassformer_plugin_{path.resolve().as_posix().replace('/', '_').removesuffix('.py')}"
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise user_error("not a Python file", path=str(path), hint="a plug-in's name ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if Path(frame.filename).resolve() == path.resolve()
        ]
        place = f"{path}, line {frames[-1].lineno}" if frames else str(path)
        if isinstance(error, UserError):
            problem = error.details[0]
            raise user_error(problem.message, path=place, hint=problem.hint) from error
        raise user_error(
            f"the plug-in failed: {type(error).__name__}: {error}",
            path=place,
            hint=f"python {path} shows the whole error",
        ) from error
