"""What the vectors of the tokens are before the first step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from glassformer.data.batching import Sequences
from glassformer.data.co_occurrence import co_occurrence_vectors, same_text_vectors
from glassformer.data.token_rows import Windows
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
    """From which tokens stand together in the inputs of the training split: no step is needed."""

    kind: Literal["co-occurrence"] = "co-occurrence"
    window: int = Field(8, ge=1, le=1000, description="tokens that are at most this far apart are neighbours")
    text_share: float = Field(
        0.0,
        ge=0,
        le=1,
        description="of the width, for which tokens stand in the same text, at any distance",
    )

    def apply(self, model: Model, task: Task, tell: Callable[[str], None]) -> None:
        table_VD = model.token_vectors()
        if table_VD is None:
            raise user_error(
                "a model of this kind does not say where its vectors are",
                place=PLACE,
                value=self.kind,
                remedy="training.first_vectors.kind=random",
            )
        vocabulary, dim = table_VD.shape
        vectors_VD = self._vectors(task.splits["train"].inputs, vocabulary, dim, tell)
        has_vector_V = vectors_VD.any(1)
        with torch.no_grad():
            # As long as the random ones, which the layers above are made for.
            length = float(table_VD.norm(dim=1).mean())
            table_VD[has_vector_V] = vectors_VD[has_vector_V] * length

    def _vectors(self, inputs: Sequences, vocabulary: int, dim: int, tell: Callable[[str], None]) -> Tensor:
        """Both kinds side by side; a component of either is as large as one of the other."""
        far = round(dim * self.text_share)
        texts = inputs.rows if isinstance(inputs, Windows) else inputs
        parts = []
        if far < dim:
            near_VD = co_occurrence_vectors(_each(inputs), vocabulary, dim - far, self.window, tell)
            parts.append(near_VD * (1 - far / dim) ** 0.5)
        if far:
            parts.append(same_text_vectors(_each(texts), vocabulary, far, tell) * (far / dim) ** 0.5)
        return torch.cat(parts, 1)


def _each(rows: Sequences) -> Iterator[np.ndarray]:
    return (rows[number] for number in range(len(rows)))
