"""What can be learned: one file a task. Importing this package makes every kind known.

Tasks know models only by their shapes, and nothing of training or of run folders.
"""

from glassformer.tasks import arithmetic, random_tokens, sequences, tokens

__all__ = ["arithmetic", "random_tokens", "sequences", "tokens"]
