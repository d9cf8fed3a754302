"""Config: YAML, overrides, kinds and their merging."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.core.config import (
    Tree,
    dump_yaml,
    flatten,
    merge,
    parse_overrides,
    parse_yaml,
    renamed_options,
    unflatten,
    validate,
)
from glassformer.core.errors import ErrorDetail, UserError
from glassformer.runs.experiment import ExperimentConfig, resolve
from glassformer.training.optimizers import AdamWConfig


@pytest.fixture
def mine(tmp_path: Path) -> str:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "task: {kind: reversal}\n"
        "model: {position: {kind: rotary, base: 500}, num_layers: 3}\n"
        "training: {optimizer: {learning_rate: 3e-3, beta1: 0.5}}\n"
    )
    return str(file)


def test_another_kind_drops_the_options_of_the_first(mine: str) -> None:
    config: Any = resolve(mine, ["model.position.kind=sinusoidal"])
    assert config.model.position.base == 10_000
    assert config.model.num_layers == 3
    config = resolve(mine, ["model.position=sinusoidal"])
    assert config.model.position.base == 10_000


@pytest.mark.parametrize("override", ["training.optimizer.kind=adamw", "training.optimizer.beta2=0.9"])
def test_the_same_kind_keeps_them(override: str, mine: str) -> None:
    """The kind may be left to its default in the file."""
    optimizer = resolve(mine, [override]).training.optimizer
    assert isinstance(optimizer, AdamWConfig)
    assert (optimizer.learning_rate, optimizer.beta1) == (3e-3, 0.5)
    config: Any = resolve(mine, ["model.kind=transformer"])
    assert (config.model.num_layers, config.model.position.base) == (3, 500)


def test_a_kind_and_its_option_in_any_order(mine: str) -> None:
    overrides = ["model.position.kind=sinusoidal", "model.position.base=77", "seed=4"]
    configs: list[Any] = [resolve(mine, order) for order in (overrides, overrides[::-1])]
    assert configs[0] == configs[1]
    assert configs[0].model.position.base == 77


@pytest.mark.parametrize(
    "overrides",
    [
        ["a.b={c: 1}", "a.b.c=2"],
        ["a.b.c=2", "a.b={c: 1}"],
        ["a.b={c: 1}", "a.b.d=2"],
        ["a=1", "a.b.c=2"],
        ["a=1", "a=1"],
    ],
)
def test_a_path_is_set_once(overrides: list[str]) -> None:
    with pytest.raises(UserError, match="set twice"):
        parse_overrides(overrides)


def test_paths_in_python(mine: str) -> None:
    config = resolve(mine, {"model.num_layers": 5, "training": {"batch_size": 7}})
    assert flatten(config.dump())["model.num_layers"] == 5 and config.training.batch_size == 7
    given = {"model.position": {"kind": "rotary"}, "model.position.base": 3.0}
    with pytest.raises(UserError, match="set twice"):
        resolve(mine, given)
    assert given["model.position"] == {"kind": "rotary"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1E5", 1e5),
        (".5", 0.5),
        ("-.5e-1", -0.05),
        ("3.", 3.0),
        ("010", 10),
        ("09", 9),
        ("-7", -7),
        ("1_000", "1_000"),
        ("0x10", "0x10"),
        ("12:30", "12:30"),
        ("2020-01-01", "2020-01-01"),
        ("true", True),
        ("yes", "yes"),
        ("on", "on"),
        ("null", None),
        ("~", None),
        ("[a, 1, 1e0]", ["a", 1, 1.0]),
        ("{a: {b: 2}}", {"a": {"b": 2}}),
        ("'1'", "1"),
        ("a=b", "a=b"),
    ],
)
def test_values_mean_what_they_look_like(text: str, value: object) -> None:
    (found,) = parse_overrides([f"x={text}"]).values()
    assert found == value and type(found) is type(value)


TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["1e5", "1e-3", "010", "yes", "on", "null", "~", "", " ", "0x1f", "=", "<<", "12:30", ".inf"]
    ),
    st.from_regex(r"[-+]?[0-9._eE:xo]{1,6}", fullmatch=True),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=8,
)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.dictionaries(TEXTS, VALUES, max_size=4))
def test_a_saved_config_is_read_as_it_was(tree: dict[str, Any]) -> None:
    """Text that looks like a number stays text, and floats are equal to the bit."""
    assert repr(parse_yaml(dump_yaml(tree), "here")) == repr(tree)


NAMES = st.text("abc", min_size=1, max_size=2)
TREES = st.recursive(
    st.integers(), lambda inner: st.dictionaries(NAMES, inner, min_size=1, max_size=3), max_leaves=8
).filter(lambda tree: isinstance(tree, dict))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(TREES, TREES)
def test_merging(base: dict[str, Any], overlay: dict[str, Any]) -> None:
    assert unflatten(flatten(base)) == base
    merged = merge(base, overlay)
    assert merge(base, {}) == base == merge(base, base)
    flat, over = flatten(merged), flatten(overlay)
    assert all(flat[path] == value for path, value in over.items())
    assert flat.keys() <= over.keys() | flatten(base).keys()


def test_an_explicit_batch_size_removes_an_inherited_batch_tokens(tmp_path: Path) -> None:
    file = tmp_path / "tokens.yaml"
    file.write_text("task: {kind: reversal}\ntraining: {batch_tokens: 500, batch_size: 9}\n")

    def sizes(*changes: str) -> tuple[int, int | None]:
        training = resolve(str(file), list(changes)).training
        return training.batch_size, training.batch_tokens

    assert sizes() == (9, 500), "a whole config may hold both"
    assert sizes("training.batch_size=16") == (16, None)
    assert sizes("training.batch_tokens=700") == (9, 700)
    assert sizes("training.batch_size=16", "training.batch_tokens=700") == (16, 700)


@pytest.mark.parametrize(("old", "new"), renamed_options().items())
def test_a_renamed_option_has_its_new_name_as_hint(old: str, new: str) -> None:
    tree = merge({"task": {"kind": "reversal"}}, unflatten({old: None}))
    with pytest.raises(UserError) as error:
        validate(ExperimentConfig, ExperimentConfig.fill_kinds(tree))
    detail = error.value.details[0]
    assert (detail.path, detail.message, detail.hint) == (old, "unknown option", f"use the new name, {new}")


def test_a_deep_tree_is_rejected_by_its_unknown_option() -> None:
    tree: Tree = {}
    for _ in range(5000):
        tree = {"deep": tree}
    with pytest.raises(UserError, match="unknown option"):
        validate(ExperimentConfig, {"task": {"kind": "reversal"}, "x": tree})


def test_the_hint_for_invalid_yaml_does_not_depend_on_the_names_in_it() -> None:
    with pytest.raises(UserError, match="remove one of the two keys"):
        parse_yaml("{tag: 1, tag: 2}", "here")
    with pytest.raises(UserError, match=r"not '\[tag, twice\]'(?s:.*)write one name before the colon"):
        parse_yaml("{[tag, twice]: 1}", "here")


def test_one_class_catches_every_mistake_of_a_user() -> None:
    detail = ErrorDetail("bad", path="a.b", value=3, hint="good")
    with pytest.raises(UserError) as caught:
        raise detail
    assert caught.value.details == [detail] and str(caught.value) == str(UserError(detail))
    assert isinstance(detail, ValueError), "pydantic requires it of a validator"
