"""The parts of a Transformer. They receive built parts, and know nothing of configs, tasks or devices.

A tensor's name ends in its axes, here and in `models/` and `generation.py`:
B batch, L query length, M key length, D hidden, H heads, K head width, F feed-forward, V vocabulary.
"""
