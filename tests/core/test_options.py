"""Options as data: every kind and every field is explained, and a query finds what it names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import pytest
from pydantic import Field

from glassformer.core.config import Node
from glassformer.core.errors import OTHER_NAMES, UserError, join_names, near_match, suggest_path
from glassformer.core.options import KindEntry, OptionEntry, describe, find_options, option_tree
from glassformer.runs.experiment import ExperimentConfig

FEWEST_WORDS = 5
ROOT = option_tree(ExperimentConfig)


def every_option(entry: OptionEntry) -> Iterator[OptionEntry]:
    below = [*entry.options, *(option for kind in entry.kinds for option in kind.options)]
    for option in below:
        yield option
        yield from every_option(option)


def every_kind() -> dict[str, tuple[OptionEntry, KindEntry]]:
    return {
        f"{entry.path}={kind.name}": (entry, kind) for entry in every_option(ROOT) for kind in entry.kinds
    }


@pytest.mark.parametrize("name", every_kind())
def test_every_kind_says_what_it_does_and_when_to_use_it(name: str) -> None:
    _, kind = every_kind()[name]
    assert len(kind.description.split()) >= FEWEST_WORDS
    assert kind.description.endswith(".")
    assert kind.use.startswith("Use it ") and kind.use.endswith(".")


@pytest.mark.parametrize("path", sorted({entry.path for entry in every_option(ROOT)}))
def test_every_field_has_a_description(path: str) -> None:
    for match in find_options(ROOT, path):
        option = match.entry.option
        assert option.description and not option.description.startswith(("Base class", "Config "))
        assert option.type_text or option.type == "kind"


def test_every_choice_that_users_were_promised() -> None:
    choices = {entry.path for entry in every_option(ROOT) if entry.kinds}
    model = {f"model.{name}" for name in ("position", "norm", "feed_forward", "pooling", "output", "input")}
    training = {f"training.{name}" for name in ("optimizer", "schedule", "embedding_init", "parallel")}
    assert choices >= model | training | {"task", "model", "task.tokenizer", "evaluation.decoding"}


class Section(Node):
    """Section for these tests."""

    count: Annotated[int, Field(ge=1, le=8)] | None = Field(None, description="a number")
    names: str | list[str] = Field("a", description="one name or several")
    sides: list[Literal["left", "right"]] = Field([], description="sides")
    ratio: float = Field(0.5, gt=0, lt=1, description="a fraction")
    groups: int = Field(4, multiple_of=4, description="a number of groups")


def test_type_bounds_and_default_of_a_field() -> None:
    found = {name: describe(name, info) for name, info in Section.model_fields.items()}
    assert found["count"].type == "integer" and found["count"].is_optional
    assert found["count"].bounds == {"minimum": 1, "maximum": 8}
    assert found["names"].type_text == "text or list of text" and found["names"].is_yaml
    assert found["sides"].choices == ["left", "right"] and found["sides"].type_text == "list of left, right"
    assert found["ratio"].bounds == {"above": 0, "below": 1} and found["ratio"].default == 0.5
    assert found["groups"].bounds == {"multiple_of": 4}


@pytest.mark.parametrize(
    ("query", "path", "kind"),
    [
        ("model.position", "model.position", None),
        ("model.position.kind", "model.position", None),
        ("position", "model.position", None),
        ("model.position.kind=rotary", "model.position", "rotary"),
        ("model.position=rotary", "model.position", "rotary"),
        ("rotary", "model.position", "rotary"),
        ("task.kind=classification", "task", "classification"),
        ("dropout", "model.dropout", None),
        ("optimizer.learning_rate", "training.optimizer.learning_rate", None),
        ("training", "training", None),
    ],
)
def test_a_query_finds_an_option_or_a_kind(query: str, path: str, kind: str | None) -> None:
    first = find_options(ROOT, query)[0]
    assert (first.entry.path, first.kind) == (path, kind)


def test_an_option_of_several_kinds_is_found_once_for_equal_fields() -> None:
    lengths = find_options(ROOT, "task.length")
    assert len(lengths) == len({match.entry.document()["default"] for match in lengths})
    assert {"task.kind=reversal", "task.kind=copy"} <= set(lengths[0].conditions)
    names = {match.entry.path for match in find_options(ROOT, "none")}
    assert names == {"model.position", "model.norm"}


@pytest.mark.parametrize(
    ("query", "suggestion"),
    [
        ("model.pos", "model.position"),
        ("learing_rate", "learning_rate"),
        ("drpout", "dropout"),
        ("model.position.kind=rottary", "rotary"),
        ("sinusiodal", "sinusoidal"),
    ],
)
def test_a_near_name_is_suggested(query: str, suggestion: str) -> None:
    with pytest.raises(UserError) as caught:
        find_options(ROOT, query)
    assert f"did you mean '{suggestion}'?" in str(caught.value)


def test_a_query_without_near_name_points_to_its_section() -> None:
    with pytest.raises(UserError, match=r"try: +glassformer options model"):
        find_options(ROOT, "model.zzzzzzzzzz")


def test_the_beginning_of_a_name_is_a_near_match() -> None:
    names = ["num_layers", "position", "pooling", "norm_placement"]
    assert near_match("pos", names) == "position"
    assert near_match("p", names) is None
    assert near_match("norm", ["form", "norm_placement"]) == "norm_placement"
    assert near_match("norm", ["norm", "norm_placement"]) == "norm"


def test_a_long_list_has_the_nearest_names() -> None:
    names = [f"option_{number}" for number in range(50)] + ["position"]
    assert "position, … (4 of 51)" in join_names(names, 60, "pos")
    assert join_names(names, 60).startswith("option_0, option_1, ")
    assert join_names(["b", "a"], 60, "a") == "b, a"


@pytest.mark.parametrize("usual", OTHER_NAMES)
def test_a_usual_name_finds_the_option_or_kind(usual: str) -> None:
    """`lr` and `rope` were unknown, although the help explains rotary as RoPE."""
    (first, *_) = find_options(option_tree(ExperimentConfig), usual)
    assert OTHER_NAMES[usual] in (first.entry.path.rpartition(".")[2], first.kind)


def test_the_names_in_an_error_are_sorted_and_counted() -> None:
    names = [f"name_{letter}{number}" for number in range(9) for letter in "zyx"]
    text = join_names(names, 60, "name_y3")
    shown, _, count = text.partition(", … ")
    assert shown.split(", ") == sorted(shown.split(", ")) and "name_y3" in shown
    assert count == f"({len(shown.split(', '))} of 27)" and len(text) <= 60
    assert join_names(["b", "a"], 60) == "b, a"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("training.lr", "training.optimizer.learning_rate"),
        ("lenght", "task.length"),
        ("data.train", "task.data.train"),
        ("model.attention.heads", "model.num_heads"),
        ("seed", "seed"),
        ("base", None),
        ("training.checkpoint.every", "training.save_every"),
        ("training.other.every", None),
        ("model.attention.bias", "model.bias"),
    ],
)
def test_an_option_of_another_section_is_suggested(given: str, meant: str | None) -> None:
    paths = ["seed", "task.length", "task.data.train", "task.train_limit", "model.bias", "model.num_heads"]
    paths += ["inspection.every", "training.unfreeze.every", "training.save_every", "training.log_every"]
    assert suggest_path(given, [*paths, "training.optimizer.learning_rate"]) == meant
