"""Text to token ids and back, as the exported model was trained with, from the Python standard library alone.

Only a tokenizer that config.json marks with "library" needs the package `tokenizers`.
"""

from __future__ import annotations

import json
import re
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_CHARACTER = {byte: chr(byte) for byte in _PRINTABLE} | {b: chr(256 + i) for i, b in enumerate(_OTHERS)}
"""Character for each byte in the pieces of a byte-level tokenizer."""
_BYTE = {character: byte for byte, character in _CHARACTER.items()}
_CLEANED = [" .", " ?", " !", " ,", " ' ", " n't", " 'm", " do not", " 's", " 've", " 're"]
UNKNOWN = 1


class Tokenizer:
    """Tokenizer of a `tokenizer.json`, applied as config.json describes."""

    def __init__(self, folder: Path, how: dict[str, Any]) -> None:
        self.how = how
        self.library: Any = None
        if how["library"]:
            from tokenizers import Tokenizer as Library

            tree = json.loads((folder / how["file"]).read_text(encoding="utf-8"))
            self.library = Library.from_str(json.dumps(tree))
            self.continuing = Library.from_str(json.dumps(_without_space_before(tree)))
            self.library.encode_special_tokens = self.continuing.encode_special_tokens = True
            return
        model = json.loads((folder / how["file"]).read_text(encoding="utf-8"))["model"]
        self.splits = [re.compile(pattern) for pattern in how["split"]]
        vocabulary = model["vocab"]
        pairs = enumerate(vocabulary) if model["type"] == "Unigram" else None
        scored = [(piece, number, score) for number, (piece, score) in pairs] if pairs else []
        self.scores = {piece: (score, number) for piece, number, score in scored if number >= how["reserved"]}
        ids = {piece: number for piece, number, _ in scored} if scored else vocabulary
        self.ids = {piece: number for piece, number in ids.items() if number >= how["reserved"]}
        self.tokens = {number: piece for piece, number in ids.items()}
        merges = [merge if isinstance(merge, list) else merge.split(" ") for merge in model.get("merges", [])]
        self.ranks = {tuple(merge): rank for rank, merge in enumerate(merges)}
        self.longest = max(map(len, self.ids), default=0)

    def encode(self, text: str, continues: bool = False) -> list[int]:
        """Return the token ids of a text, without begin and end.

        If it continues another text, no space is added before it.
        """
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        if self.library:
            library = self.continuing if continues else self.library
            return list(library.encode(text, add_special_tokens=False).ids)
        for step, argument in self.how["normalize"] if text else ():
            if step == "replace":
                text = "".join(argument.get(character, character) for character in text)
            elif not continues:
                text = argument + text
        parts = [text] if text else []
        for split in self.splits:
            parts = [found for part in parts for found in split.findall(part)]
        if self.how["has_bytes"]:
            parts = ["".join(map(_CHARACTER.__getitem__, part.encode())) for part in parts]
        pieces = {"WordLevel": self._word, "BPE": self._merge, "Unigram": self._best}[self.how["model"]]
        return [number for part in parts for number in pieces(part)]

    def _word(self, word: str) -> list[int]:
        return [self.ids.get(word, UNKNOWN)]

    def _merge(self, word: str) -> list[int]:
        """Merge the pair of the lowest rank, the leftmost first, until no pair can be merged."""
        pieces = list(word)
        while len(pieces) > 1:
            ranks = [self.ranks.get(pair, len(self.ranks)) for pair in pairwise(pieces)]
            lowest = min(ranks)
            if lowest == len(self.ranks):
                break
            at = ranks.index(lowest)
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
        return [self.ids.get(piece, UNKNOWN) for piece in pieces]

    def _best(self, word: str) -> list[int]:
        """Return the pieces with the largest sum of scores."""
        best: list[tuple[float, int, int] | None] = [(0.0, 0, 0), *[None] * len(word)]
        for start in range(len(word)):
            before = best[start]
            for end in range(start + 1, min(len(word), start + self.longest) + 1) if before else ():
                found = self.scores.get(word[start:end])
                known = best[end]
                if found and before and (known is None or before[0] + found[0] > known[0]):
                    best[end] = (before[0] + found[0], start, found[1])
        ids: list[int] = []
        at = len(word)
        while at:
            step = best[at]
            if step is None:
                return [UNKNOWN]
            ids, at = [step[2], *ids], step[1]
        return ids

    def decode(self, ids: list[int]) -> str:
        """Return the text of token ids, without padding, begin and end."""
        text, omits_spaces = "", self.how["omits_spaces"]
        splits_words = self.how["has_space_before"] or omits_spaces
        kept = [number for number in ids if number not in self.how["hidden"]]
        for is_text, run in groupby(kept, key=lambda number: number not in self.how["special"]):
            some = list(run)
            if is_text:
                part = self._join(some)
                has_space = omits_spaces or self._starts_with_space(some[0])
            else:
                part = (" " if splits_words else "").join("⁇" for _ in some)
                has_space = not text.endswith(" ")
            text += " " + part if text and has_space and splits_words else part
        return text

    def _starts_with_space(self, number: int) -> bool:
        token = self.library.id_to_token(number) if self.library else self.tokens[number]
        return bool(token[0] in " ▁") or (self.how.get("has_bytes", True) and token[0] == _CHARACTER[32])

    def _join(self, ids: list[int]) -> str:
        if self.library:
            return str(self.library.decode(ids, skip_special_tokens=False))
        tokens = [self.tokens[number] for number in ids]
        if self.how["joins_words"]:
            tokens = [_clean(token if number == 0 else " " + token) for number, token in enumerate(tokens)]
        text = "".join(tokens)
        if self.how["has_bytes"]:
            text = bytes(map(_BYTE.__getitem__, text)).decode("utf-8", "replace")
        return text[1:] if self.how["has_space_before"] and text.startswith(" ") else text


def _without_space_before(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a `tokenizer.json` whose steps add no space before a text."""

    def change(step: Any) -> Any:
        if not isinstance(step, dict):
            return step
        for name in {"normalizers", "pretokenizers"} & step.keys():
            step = {**step, name: [change(each) for each in step[name] if each.get("type") != "Prepend"]}
        return {**step, "prepend_scheme": "never"} if "prepend_scheme" in step else step

    first = tree.get("normalizer") or {}
    normalizer = None if first.get("type") == "Prepend" else change(tree.get("normalizer"))
    return {**tree, "normalizer": normalizer, "pre_tokenizer": change(tree.get("pre_tokenizer"))}


def _clean(token: str) -> str:
    """Remove spaces before punctuation and contractions."""
    for found in _CLEANED:
        token = token.replace(found, " don't" if found == " do not" else found.strip())
    return token


class Text:
    """Reading of inputs and showing of outputs, as config.json describes."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.input, self.output = config["input"], config["output"]
        self.tokenizers = {file: Tokenizer(folder, how) for file, how in config["tokenizers"].items()}
        self.symbols = {symbol: number for number, symbol in enumerate(self.input.get("symbols", []))}

    def read(self, text: str) -> list[int]:
        """Return the token ids of an input; raise ValueError if it cannot be read."""
        ids = getattr(self, "_read_" + self.input["kind"])(text)
        if len(ids) > self.input["max_length"]:
            raise ValueError(f"too long: {len(ids)} tokens, and the model reads {self.input['max_length']}")
        return list(ids)

    def _read_text(self, text: str) -> list[int]:
        how = self.input
        ids = self.tokenizers[how["tokenizer"]].encode(text)
        if not (text if how["may_be_blank"] else text.strip()):
            raise ValueError("the input is empty")
        room = how["max_length"] - len(how["before"]) - len(how["after"])
        return how["before"] + (ids[:room] if how["is_cut"] else ids) + how["after"]

    def _read_masked(self, text: str) -> list[int]:
        how = self.input
        tokenizer = self.tokenizers[how["tokenizer"]]
        first, *others = text.split(how["mask_name"])
        if not others:
            raise ValueError(f"no {how['mask_name']} in the input: nothing to fill in")
        has_space = tokenizer.how["has_space_before"]
        ids = tokenizer.encode(first.rstrip(" ") if has_space else first)
        for part in others:
            part = part.rstrip(" ") if has_space else part
            ids = [*ids, how["mask"], *self._after_mask(tokenizer, part)]
        return how["before"] + ids + how["after"]

    @staticmethod
    def _after_mask(tokenizer: Tokenizer, text: str) -> list[int]:
        """Return the ids of the text after a mask."""
        if tokenizer.how["has_space_before"] and text.startswith(" "):
            return tokenizer.encode(text[1:])
        return tokenizer.encode(text, continues=tokenizer.how["has_space_before"])

    def _read_ids(self, text: str) -> list[int]:
        return [int(word) for word in text.replace(",", " ").split()]

    def _read_numbers(self, text: str) -> list[int]:
        words = text.strip().strip("[]()").replace(",", " ").split()
        if len(words) == 1 and self.input["categories"] <= 10 and words[0].isdigit():
            words = list(words[0])
        known = [word for word in words if word.isascii() and word.isdigit() and len(word) < 20]
        if not words or len(known) < len(words) or max(map(int, known)) >= self.input["categories"]:
            raise ValueError(f"expected numbers from 0 to {self.input['categories'] - 1}, such as 3 1 4")
        return [int(word) for word in known]

    def _read_symbols(self, text: str) -> list[int]:
        how = self.input
        found = list(text.strip()) if how["separator"] == "" else text.split(how["separator"])
        symbols = [symbol for symbol in found if symbol]
        if not symbols:
            raise ValueError("the input is empty")
        known = [None if symbol in how["reserved"] else self.symbols.get(symbol) for symbol in symbols]
        return [how["unknown"] if number is None else number for number in known]

    def _read_expression(self, text: str) -> list[int]:
        how = self.input
        typed = "".join(how["typed"].get(character, character) for character in text).strip()
        match = re.fullmatch(how["pattern"], typed, re.ASCII | re.IGNORECASE)
        operation = match and how["operations"].get(match[2].lower())
        if not match or operation is None:
            raise ValueError("expected one operation between two numbers, such as 4 + -11")
        first, second = (self._operand(operand) for operand in (match[1], match[3]))
        return list(how["before"] + first + [operation] + second + how["after"])

    def _operand(self, text: str) -> list[int]:
        how = self.input
        digits = re.sub(r"\D", "", text).lstrip("0") or "0"
        number = (-1 if "-" in text or "NEGATIVE" in text.upper() else 1) * int(digits[:20])
        if not int(how["smallest"]) <= number <= int(how["largest"]):
            raise ValueError(f"operands range from {how['smallest']} to {how['largest']}")
        return [how["signs"][number < 0], *map(int, str(abs(number)).zfill(how["digits"]))]

    def show(self, ids: list[int]) -> str:
        """Return output tokens as text."""
        how = self.output
        if "tokenizer" in how:
            return self.tokenizers[how["tokenizer"]].decode(ids)
        if "signs" in how and len(ids) > 1 and ids[0] in how["signs"] and max(ids[1:]) < 10:
            return ("-" if ids[0] == how["signs"][1] else "") + str(int("".join(map(str, ids[1:]))))
        return str(how["separator"]).join(how["symbols"][number] for number in ids)


def print_answers(predict, texts):
    """Print one line per input: its output or an error. Return the exit code: 1 if there is an error."""
    exit_code = 0
    for text in texts:
        try:
            (answer,) = predict([text])
            line = answer["output"] + (f" ({answer['probability']:.1%})" if "probability" in answer else "")
        except ValueError as error:
            exit_code, line = 1, f"error: {error}"
        print(line, flush=True)
    return exit_code
