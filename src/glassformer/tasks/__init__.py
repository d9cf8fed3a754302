"""Tasks, one file each. Importing this package registers every kind.

A task knows a model only by its task type, and nothing of training or run folders.
"""

from glassformer.tasks import (
    arithmetic,
    classification,
    language,
    random_tokens,
    rest_of_text,
    sequences,
    tokens,
    translation,
)

__all__ = [
    "arithmetic",
    "classification",
    "language",
    "random_tokens",
    "rest_of_text",
    "sequences",
    "tokens",
    "translation",
]
