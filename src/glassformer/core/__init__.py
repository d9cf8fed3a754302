"""Foundations: config tree, registry of kinds, user errors, machine and threads."""
