"""What the vectors of the tokens are before the first step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from pydantic import Field

from glassformer.data.co_occurrence import co_occurrence_vectors
from glassformer.errors import user_error
from glassformer.models.base import Model
from glassformer.registry import Kind, register
from glassformer.tasks.base import Task

PLACE = "training.first_vectors.kind"


class FirstVectorsConfig(Kind):
    """How the vectors of the tokens begin."""

    def apply(self, model: Model, task: Task, tell: Callable[[str], None]) -> None:
        """Change the vectors of a fresh model in place."""
        raise NotImplementedError


@register
class RandomVectorsConfig(FirstVectorsConfig):
    """As the model made them."""

    kind: Literal["random"] = "random"

    def apply(self, model: Model, task: Task, tell: Callable[[str], None]) -> None:
        pass


@register
class CoOccurrenceConfig(FirstVectorsConfig):
    """From which tokens stand near each other in the inputs of the training split: no step is needed."""

    kind: Literal["co-occurrence"] = "co-occurrence"
    window: int = Field(8, ge=1, le=1000, description="tokens that are at most this far apart are neighbours")

    def apply(self, model: Model, task: Task, tell: Callable[[str], None]) -> None:
        table_VD = model.token_vectors()
        if table_VD is None:
            raise user_error(
                "a model of this kind does not say where its vectors are",
                place=PLACE,
                value=self.kind,
                remedy="training.first_vectors.kind=random",
            )
        inputs = task.splits["train"].inputs
        rows = (inputs[number] for number in range(len(inputs)))
        vocabulary, dim = table_VD.shape
        vectors_VD = co_occurrence_vectors(rows, vocabulary, dim, self.window, tell)
        has_neighbours_V = vectors_VD.any(1)
        with torch.no_grad():
            # As long as the random ones, which the layers above are made for.
            length = float(table_VD.norm(dim=1).mean())
            table_VD[has_neighbours_V] = vectors_VD[has_neighbours_V] * length
