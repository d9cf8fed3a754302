"""How far a number about a model's inside can be trusted: said with every such number, in the same words."""

from __future__ import annotations

from typing import Literal

Trust = Literal["fact", "cause", "hint"]

MEANING: dict[Trust, str] = {
    "fact": "measured on the weights themselves; it says what a head reads, not what it is for",
    "cause": "the model was changed and asked again; it says what this change did, all else as it was",
    "hint": "a model of the model, which can mislead; look at facts and causes before you believe it",
}
