"""What is written beside a map: tokens while they can be read, positions where they cannot."""

from __future__ import annotations

import unicodedata

VISIBLE = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍", "": "∅"}


def visible(token: str, most: int = 14) -> str:
    """A token that shows itself, whatever it consists of, and is not too long."""
    if token in VISIBLE:
        return VISIBLE[token]
    shown = "".join(_visible_character(character) for character in token)
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def _visible_character(character: str) -> str:
    if character in VISIBLE:
        return VISIBLE[character]
    return f"U+{ord(character):04X}" if unicodedata.category(character) in ("Cc", "Cf", "Cs") else character


def tick_positions(first: int, count: int, fewest_apart: float) -> list[int]:
    """Round positions that are at least so many cells apart; the first one if there is none."""
    step, scale = 1, 1
    while step < fewest_apart:
        for factor in (1, 2, 5):
            step = factor * scale
            if step >= fewest_apart:
                break
        scale *= 10
    return [position for position in range(first, first + count) if position % step == 0] or [first]
