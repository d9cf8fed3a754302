"""Search spaces: syntax of values, and messages for invalid ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from glassformer.core.errors import UserError
from glassformer.sweeps.definition import define
from glassformer.sweeps.space import Choices, Range, format_overrides, split_arguments

RATE = "training.optimizer.learning_rate"


def test_choices_ranges_and_ordinary_values_are_distinguished() -> None:
    space, fixed = split_arguments(
        [
            "model.num_layers=1,2",
            f"{RATE}=log:1e-5..1e-2",
            "task.length=4..6",
            "model.dropout=0.0..0.5",
            "model.position={kind: rotary, base: 500},sinusoidal",
            "training.freeze=[embedding, encoder]",
            "task.data.train=../texts/a..b.txt",
            "seed=3",
        ]
    )
    assert space.axes == {
        "model.num_layers": Choices((1, 2)),
        RATE: Range(1e-5, 1e-2, is_whole=False, is_log=True),
        "task.length": Range(4, 6, is_whole=True, is_log=False),
        "model.dropout": Range(0.0, 0.5, is_whole=False, is_log=False),
        "model.position": Choices(({"kind": "rotary", "base": 500}, "sinusoidal")),
    }
    assert fixed == ["training.freeze=[embedding, encoder]", "task.data.train=../texts/a..b.txt", "seed=3"]
    assert space.unlisted() == [RATE, "model.dropout"]


def test_a_mapping_has_lists_of_values() -> None:
    position = {"kind": "rotary", "base": 500}
    arguments = format_overrides(
        {
            "model.num_layers": [1, 2],
            "model": {"position": [position, "sinusoidal"]},
            "training.betas": [[0.9, 0.99], (0.8, 0.9)],
            "task.name": ["a, b", "1", "null", "c"],
            RATE: "log:1e-5..1e-2",
            "task.length": 6,
            "seed": [3],
            "task.limit": None,
        }
    )
    space, fixed = split_arguments(arguments)
    assert space.axes == {
        "model.num_layers": Choices((1, 2)),
        "model.position": Choices((position, "sinusoidal")),
        "training.betas": Choices(([0.9, 0.99], [0.8, 0.9])),
        "task.name": Choices(("a, b", "1", "null", "c")),
        RATE: Range(1e-5, 1e-2, is_whole=False, is_log=True),
    }
    assert fixed == ["task.length=6", "seed=3", "task.limit=null"]
    with pytest.raises(UserError, match="no values to sweep over"):
        format_overrides({RATE: []})


def test_a_grid_has_every_combination_once_and_labels_lead_back() -> None:
    space, _ = split_arguments(["model.position={kind: rotary, base: 500},sinusoidal", "task.length=4..6"])
    grid = space.grid()
    assert len(grid) == 6 and all(grid.count(point) == 1 for point in grid)
    assert [space.point(space.labels(point)) for point in grid] == grid
    for point in grid:
        for path, label in space.labels(point).items():
            assert space.distributions()[path]._contains(space.distributions()[path].to_internal_repr(label))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["model.num_layers=2"], "PATH=v1,v2,…: no option is varied"),
        ([f"{RATE}=log:1e-2"], f"{RATE}: not a range\n  given:   'log:1e-2'"),
        ([f"{RATE}=log:0..1"], f"{RATE}: a logarithmic range must start above zero"),
        ([f"{RATE}=1e-2..1e-3"], f"{RATE}: the lower end of the range must come first"),
        ([f"{RATE}=1e-2,"], f"{RATE}: empty value between commas"),
        ([f"{RATE}=1e-2,0.01"], f"{RATE}: appears twice"),
        ([f"{RATE}=1,2..3"], f"{RATE}: is a range inside a list"),
        ([f"{RATE}=1,2", f"{RATE}=3,4"], f"{RATE}: is varied twice"),
        ([".a=1,2"], "not of the form PATH=v1,v2,…"),
        (
            ["seed=1,2"],
            "seed: a sweep cannot vary the seed, it averages over seeds\n  try:     --seeds 3",
        ),
        (["model.num_layers=1,two"], "model.num_layers: must be a valid integer"),
        (["model.num_layers=0..3"], "model.num_layers: must be greater than or equal to 1"),
        (["model.num_layer=1,2"], "model.num_layer: unknown option"),
        ([f"{RATE}=1e-3...1e-2", "task.length=4,5"], f"{RATE}: must be a valid number"),
        (["model.position.kind=rotary,sinusodial"], "did you mean 'sinusoidal'?"),
        (["model.hidden_dim=16,18", "model.num_heads=1,4"], "model"),
        (["task.length=4,5", "task.length=6"], "task.length: is both set to one value and varied"),
    ],
)
def test_invalid_values_are_reported_with_their_path(
    tiny_file: Path, arguments: list[str], expected: str
) -> None:
    with pytest.raises(UserError) as error:
        define(str(tiny_file), arguments)
    assert expected in str(error.value)


def test_a_grid_rejects_a_continuous_range(tiny_file: Path) -> None:
    with pytest.raises(UserError, match="a grid needs a list of values"):
        define(str(tiny_file), [f"{RATE}=log:1e-4..1e-2"], sampler="grid")
    assert define(str(tiny_file), [f"{RATE}=log:1e-4..1e-2"]).sampler == "tpe"
    assert define(str(tiny_file), ["task.length=4..6"]).sampler == "grid"


def test_the_name_depends_on_the_definition_and_not_on_the_budget(tiny_file: Path) -> None:
    asked = ["task.length=4,5"]
    name = define(str(tiny_file), asked).name()
    assert define(str(tiny_file), asked, seeds=5, trials=1, heartbeat=9).name() == name
    assert define(str(tiny_file), [*asked, "seed=1"]).name() != name
    assert define(str(tiny_file), asked, metric="loss").name() != name
