"""Fixtures for tests that train small runs."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _quick_and_exact(one_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use one thread, since bits are compared, and skip fsync to save time."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
