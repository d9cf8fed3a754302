"""Registry of kinds: config classes that are selected by name and build their module.

class PositionConfig(Kind): ...                       # a choice: a direct subclass of Kind

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

_registry: dict[type[Kind], dict[str, type[Kind]]] = {}
"""Config classes by name, for each choice (direct subclass of `Kind`, such as `PositionConfig`)."""


class Kind(Node):
    """Config section whose `kind` selects a variant: `{kind: rotary, base: 500}`, or just `rotary`."""

    kind: str

    @model_validator(mode="wrap")
    @classmethod
    def _choose(cls, data: Any, handler: ModelWrapValidatorHandler[Any]) -> Any:
        if isinstance(data, cls):
            return data
        if cls not in _registry:
            return handler(data)
        if isinstance(data, str):
            data = {"kind": data}
        known = _registry[cls]
        if not isinstance(data, Mapping):
            raise ErrorDetail(
                "expected a kind, as NAME or {kind: NAME, ...}", value=data, allowed=sorted(known)
            )
        name = data.get("kind")
        if name is None:
            raise ErrorDetail("a kind is required", path="kind", value="", allowed=sorted(known))
        if not isinstance(name, str) or name not in known:
            raise ErrorDetail(
                "unknown kind",
                path="kind",
                value=name,
                allowed=sorted(known),
                hint="add --plugin FILE.py if the kind is your own",
            )
        return known[name].model_validate(data)

    @classmethod
    def chosen(cls, options: Mapping[str, Any]) -> type[Node] | None:
        return _registry[cls].get(str(options.get("kind"))) if cls in _registry else cls


KindType = TypeVar("KindType", bound=Kind)


def register(cls: type[KindType]) -> type[KindType]:
    """Register a config class as a kind (class decorator). The default of its `kind` field is the name."""
    choice = choice_of(cls)
    name = cls.model_fields["kind"].default
    if not isinstance(name, str):
        raise TypeError(f'{cls.__name__} needs a name: kind: Literal["name"] = "name"')
    known = _registry.setdefault(choice, {})
    if name in known:
        taken = known[name]
        raise user_error(
            f"the kind {name!r} of {choice.__name__} is registered twice",
            path=f"{cls.__module__}.{cls.__name__}",
            hint=f"choose another name: {taken.__module__}.{taken.__name__} has this one",
        )
    known[name] = cls
    return cls


def unregister(cls: type[Kind]) -> None:
    """Remove a config class from the registry."""
    _registry[choice_of(cls)].pop(cls.model_fields["kind"].default)


def choice_of(cls: type[Kind]) -> type[Kind]:
    """Return the base class that derives directly from `Kind`: `PositionConfig` for `RotaryConfig`."""
    for ancestor in cls.__mro__:
        if Kind in ancestor.__bases__:
            return ancestor
    raise TypeError(f"{cls.__name__} does not derive from a choice")


def kinds(choice: type[Kind]) -> dict[str, type[Kind]]:
    """Return the config classes registered for a choice (such as `PositionConfig`), by name."""
    return dict(_registry.get(choice, {}))


def load_plugin(path: Path) -> None:
    """Execute a Python file, which registers kinds. Its code is not checked: pass only a user's own path."""
    if not path.is_file():
        raise user_error(
            "this plug-in file does not exist", path=str(path), hint="check the path after --plugin"
        )
    name = f"glassformer_plugin_{path.resolve().as_posix().replace('/', '_').removesuffix('.py')}"
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise user_error("this is not a Python file", path=str(path), hint="rename it so that it ends in .py")
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
        location = f"{path}, line {frames[-1].lineno}" if frames else str(path)
        if isinstance(error, UserError):
            detail = error.details[0]
            raise user_error(detail.message, path=location, hint=detail.hint) from error
        raise user_error(
            f"the plug-in failed: {type(error).__name__}: {error}",
            path=location,
            hint=f"run python {path} to see the whole error",
        ) from error
