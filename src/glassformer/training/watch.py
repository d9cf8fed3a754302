"""What the loop asks of whoever looks at a model while it trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from glassformer.models.base import Model


class Watch(Protocol):
    """Looks, and leaves the model and every random number as they were."""

    @property
    def keeps_weights(self) -> bool:
        """Whether the weights of each look are kept."""
        ...

    def is_due(self, step: int) -> bool: ...

    def look(self, model: Model) -> Mapping[str, Any]:
        """What goes into the record."""
        ...
