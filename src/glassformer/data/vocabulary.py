"""A fixed list of symbols and their numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from glassformer.errors import Problem


class Vocabulary:
    def __init__(self, symbols: Iterable[str]) -> None:
        self.symbols = list(symbols)
        self.number = {symbol: number for number, symbol in enumerate(self.symbols)}
        if len(self.number) != len(self.symbols):
            raise ValueError("a symbol stands twice in the vocabulary")

    def __len__(self) -> int:
        return len(self.symbols)

    def encode(self, symbols: Iterable[str]) -> list[int]:
        numbers = []
        for place, symbol in enumerate(symbols, start=1):
            if symbol not in self.number:
                raise Problem(
                    f"unknown symbol at place {place}",
                    value=symbol,
                    allowed=self.symbols,
                    remedy="check the input",
                )
            numbers.append(self.number[symbol])
        return numbers

    def decode(self, numbers: Sequence[int]) -> list[str]:
        return [self.symbols[number] for number in numbers]
