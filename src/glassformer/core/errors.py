"""Errors that a user can act on: path, value, allowed values and a hint.

Any other exception is a bug in the package and keeps its traceback.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass


class UserError(Exception):
    """Error caused by the user's input. The CLI prints it without a traceback and exits with code 2."""

    def __init__(self, *details: ErrorDetail) -> None:
        self._details = list(details)
        super().__init__(str(self))

    @property
    def details(self) -> list[ErrorDetail]:
        """Mistakes in the user's input, the first of which is shown in full."""
        return self._details

    def __str__(self) -> str:
        first, *rest = self.details
        lines = first.lines()
        if rest:
            lines[4:] = []
            others = "; ".join(f"{detail.path}: {detail.message}" for detail in rest)
            lines.append(f"  also:    {shorten(others, 160)}")
        return "\n".join(lines)


@dataclass(eq=False, repr=False)
class ErrorDetail(UserError, ValueError):
    """One mistake in the user's input: config path or file, value given, allowed values, and a hint.

    It is a `UserError` itself, so that callers of the library catch one class. It is a `ValueError` too,
    because pydantic requires one of a validator.
    """

    message: str
    _: KW_ONLY
    path: str = ""
    value: object = None
    allowed: Sequence[str] = ()
    hint: str = ""

    @property
    def details(self) -> list[ErrorDetail]:
        """List of this mistake alone."""
        return [self]

    def lines(self) -> list[str]:
        """Return the text of the error as two to four lines."""
        message = shorten(self.message, 300)
        lines = [f"{self.path}: {message}" if self.path else message]
        if self.value is not None:
            lines.append(f"  given:   {shorten(repr(self.value))}")
        if self.allowed:
            lines.append(f"  allowed: {join_names(self.allowed, 160, self.value)}")
        near = near_match(self.value, self.allowed)
        if near:
            lines.append(f"  did you mean {near!r}?")
        elif self.hint:
            lines.append(f"  try:     {self.hint}")
        if len(lines) == 1:
            lines.append("  try:     glassformer --help")
        return lines

    def __str__(self) -> str:
        return "\n".join(self.lines())


def user_error(
    message: str, *, path: str = "", value: object = None, allowed: Sequence[str] = (), hint: str = ""
) -> UserError:
    """Return a `UserError` with one `ErrorDetail`."""
    return UserError(ErrorDetail(message, path=path, value=value, allowed=allowed, hint=hint))


OUT_OF_MEMORY = re.compile("can't allocate memory|out of memory")
"""Pattern that matches PyTorch's error messages for a failed allocation."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if the error means that Python or PyTorch could not allocate memory."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(str(error)) is not None
    )


SHORTEST_PREFIX = 2
"""Minimum number of characters with which a name must begin to be suggested."""


OTHER_NAMES = {
    "lr": "learning_rate",
    "wd": "weight_decay",
    "bs": "batch_size",
    "batch": "batch_size",
    "warmup": "warmup_steps",
    "clip": "gradient_clip_norm",
    "grad_clip": "gradient_clip_norm",
    "max_grad_norm": "gradient_clip_norm",
    "accumulate": "gradient_accumulation",
    "epochs": "max_epochs",
    "num_epochs": "max_epochs",
    "checkpoint_every": "save_every",
    "save_steps": "save_every",
    "n_layers": "num_layers",
    "depth": "num_layers",
    "n_heads": "num_heads",
    "heads": "num_heads",
    "d_model": "hidden_dim",
    "width": "hidden_dim",
    "hidden_size": "hidden_dim",
    "d_ff": "feed_forward_dim",
    "ffn_dim": "feed_forward_dim",
    "vocab_size": "vocabulary_size",
    "vocab": "vocabulary_size",
    "beam_size": "size",
    "rope": "rotary",
    "cosine": "warmup-cosine",
    "noam": "inverse-square-root",
    "layernorm": "layer",
    "rmsnorm": "rms",
    "top-k": "top_k",
    "top-p": "top_p",
}
"""Usual names of options and kinds elsewhere, with ours. They are suggested, not accepted, in a config."""


def near_match(value: object, allowed: Iterable[str]) -> str | None:
    """Return the allowed name that means `value`, starts with it or is most similar to it, or None."""
    if not isinstance(value, str):
        return None
    lowered = {name.lower(): name for name in allowed}
    for name in (value.lower(), OTHER_NAMES.get(value.lower(), "")):
        if name in lowered:
            return lowered[name]
    longer = [name for name in lowered if name.startswith(value.lower())]
    if len(value) >= SHORTEST_PREFIX and longer:
        return lowered[min(longer, key=len)]
    matches = difflib.get_close_matches(value.lower(), lowered, n=1, cutoff=0.6)
    return lowered[matches[0]] if matches else None


def near_file(name: str, siblings: Iterable[str]) -> str | None:
    """Return the file name that is similar to `name` without its extension; None if none is."""
    stems = {sibling: sibling.partition(".")[0].lower() for sibling in siblings}
    stem = name.partition(".")[0].lower()
    found = difflib.get_close_matches(stem, set(stems.values()), n=1, cutoff=SIMILAR)
    # Several files may have this stem: the whole names decide among them.
    same = [sibling for sibling, other in stems.items() if found and other == found[0]]
    return max(same, key=lambda sibling: _similarity(name.lower(), sibling.lower()), default=None)


SIMILAR = 0.8
"""Minimum similarity, of 1, of the name of an option in any section for it to be suggested."""


def suggest_path(given: str, paths: Iterable[str]) -> str | None:
    """Return the config path that is meant by an unknown one, in any section; None if none is similar.

    `data.train` and `train` mean `task.data.train`, `lr` means `training.optimizer.learning_rate`, and
    `lenght` means `task.length`.
    """
    parts = given.lower().split(".")
    ranks = {path: rank for path in paths if (rank := _path_rank(parts, path)) is not None}

    def order(path: str) -> tuple[int, bool, int, int, str]:
        return ranks[path], path.partition(".")[0] != parts[0], path.count("."), len(path), path

    return min(ranks, key=order, default=None)


def _path_rank(given: Sequence[str], path: str) -> int | None:
    """Return how far the end of a config path is from the words given, 0 for equal; None for too far."""
    name, last, whole = given[-1], path.rpartition(".")[2], "_".join(given[-2:])
    if path == ".".join(given) or path.endswith("." + ".".join(given)):
        return 0
    # A short name such as `every` means little in another group of options: checkpoint.every, unfreeze.every.
    groups = set(path.split(".")[:-1])
    is_other = len(given) > 2 and not groups <= set(given)
    is_similar = "." in path and difflib.SequenceMatcher(None, last, name).ratio() >= SIMILAR
    tests = (
        last == name and not is_other,
        last in (OTHER_NAMES.get(name), OTHER_NAMES.get(whole), whole),
        last.endswith(f"_{name}") and len(given) <= 2,
        is_similar and not is_other,
    )
    return next((rank for rank, holds in enumerate(tests, start=1) if holds), None)


def join_names(names: Sequence[str], width: int, value: object = None) -> str:
    """Join names with commas, in at most `width` characters.

    If they do not fit, join the names most similar to `value`, sorted, and add how many of them these are.
    """
    text = ", ".join(names)
    if len(text) <= width:
        return text
    ranked = sorted(names)
    if isinstance(value, str):
        ranked.sort(key=lambda name: -_similarity(value.lower(), name.lower()))
    room, shown = width - len(f", … ({len(names)} of {len(names)})"), 0
    while shown < len(ranked) and len(", ".join(ranked[: shown + 1])) <= room:
        shown += 1
    if not shown:
        return shorten(text, width)
    return f"{', '.join(sorted(ranked[:shown]))}, … ({shown} of {len(names)})"


def _similarity(value: str, name: str) -> float:
    """Return the similarity of a name to `value`: 0 to 1, or 2 if the name starts with `value`."""
    is_prefix = len(value) >= SHORTEST_PREFIX and name.startswith(value)
    return 2.0 if is_prefix else difflib.SequenceMatcher(None, name, value).ratio()


def shorten(text: str, width: int = 100) -> str:
    """Return the text with white space collapsed, cut to `width` characters."""
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"
