"""Whole models, made of `blocks/`. They know nothing of tasks, files or training."""
