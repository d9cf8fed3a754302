"""What can be learned: one file a task. Importing this package makes every kind known.

Tasks know models only by their shapes, and nothing of training or of run folders.
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
