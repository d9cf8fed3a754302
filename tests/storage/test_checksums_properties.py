"""Sealed files: what was written is read back, and no bit and no end of them can change unseen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.storage.checksums import BrokenSeal, is_sealed_text, open_json, seal_json, seal_text

VALUES = st.dictionaries(
    st.text().filter(lambda key: key != "sha256"),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=6,
    ),
    max_size=4,
)
DOCUMENT = {"state": "running", "step": 7, "names": ["a", "ü"]}
TEXT = "task:\n  kind: reversal\nseed: 0\n"


@given(VALUES)
def test_a_document_is_read_back(value: dict[str, object]) -> None:
    assert open_json(seal_json(value), must_be_sealed=True) == value


def test_a_document_is_sealed_anew() -> None:
    again = seal_json({**DOCUMENT, "sha256": "old"})
    assert again == seal_json(DOCUMENT) and open_json(again, must_be_sealed=True) == DOCUMENT


def flips(data: bytes) -> list[bytes]:
    return [
        data[:place] + bytes([data[place] ^ (1 << bit)]) + data[place + 1 :]
        for place in range(len(data))
        for bit in range(8)
    ]


def test_every_bit_of_a_document_counts() -> None:
    data = seal_json(DOCUMENT)
    for harmed in [*flips(data), *(data[:end] for end in range(len(data)))]:
        with pytest.raises(ValueError):
            open_json(harmed, must_be_sealed=True)


def test_every_bit_of_a_text_counts() -> None:
    data = seal_text(TEXT)
    assert is_sealed_text(data)
    for harmed in [*flips(data), *(data[:end] for end in range(1, len(data)))]:
        with pytest.raises(BrokenSeal):
            is_sealed_text(harmed)


def test_what_was_never_sealed_is_told_apart() -> None:
    assert not is_sealed_text(TEXT.encode())
    assert open_json(b'{"step": 7}', must_be_sealed=False) == {"step": 7}
    with pytest.raises(BrokenSeal):
        open_json(b'{"step": 7}', must_be_sealed=True)
    with pytest.raises(ValueError, match="not a JSON object"):
        open_json(b"[1]", must_be_sealed=False)
