"""Sequences of numbers: vocabularies, examples, batches. It knows nothing of models or tasks."""
