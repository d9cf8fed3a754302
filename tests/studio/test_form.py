"""Form of a new run: every option of the config tree, typed values, errors at their fields."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from glassformer.core.config import flatten, format_value, parse_overrides
from glassformer.core.registry import kinds
from glassformer.runs.experiment import ExperimentConfig, presets, resolve
from glassformer.studio.forms import draft, form_fields
from glassformer.studio.runs import RunsFolder

TYPES = ("integer", "number", "boolean", "text", "choice", "list", "columns", "kind")


def fill(client: TestClient, what: str, **values: Any) -> dict[str, Any]:
    body = {"source": what, "values": {path.replace("__", "."): value for path, value in values.items()}}
    reply = client.post("/api/form", json=body)
    assert reply.status_code == 200, reply.text
    document: dict[str, Any] = reply.json()
    return document


def errors(document: dict[str, Any]) -> dict[str, str]:
    return {error["field"]: error["message"] for error in document["errors"]}


@pytest.mark.parametrize("name", presets())
def test_every_option_of_a_preset_is_a_field_with_its_value(name: str) -> None:
    tree = resolve(name).dump()
    fields = {field.path: field for field in form_fields(tree)}
    for path, value in flatten(tree).items():
        within = [field for field in fields if path == field or path.startswith(f"{field}.")]
        is_empty_node = value in (None, {}) and any(field.startswith(f"{path}.") for field in fields)
        assert within or is_empty_node, path
        if path in fields:
            assert fields[path].value == value, path
    for field in fields.values():
        assert field.type in TYPES
        if field.type == "kind":
            assert field.value in (field.choices or [])
        json.dumps(field.document(), allow_nan=False)


@pytest.mark.parametrize("name", presets())
def test_a_form_sent_back_as_it_is_changes_nothing(name: str, tmp_path: Path) -> None:
    """Send each default as a value and as typed text."""
    folder = RunsFolder(tmp_path)
    fields = draft(folder, name, {}).document()["fields"]
    values = {field["path"]: field["value"] for field in fields}
    typed = {path: value if isinstance(value, str) else _typed(value) for path, value in values.items()}
    for sent in (values, typed):
        made = draft(folder, name, sent)
        assert made.details == [] and made.overrides == {} and made.words == [name]


def _typed(value: Any) -> str:
    return "" if value is None else format_value(value)


def test_every_kind_of_every_family_can_be_chosen(tmp_path: Path) -> None:
    folder = RunsFolder(tmp_path)
    for field in draft(folder, "translation", {}).fields:
        for choice in field.choices or [] if field.type == "kind" else []:
            made = draft(folder, "translation", {field.path: choice})
            chosen = {other.path: other.value for other in made.fields}
            assert chosen[field.path] == choice
            for detail in made.details:  # such as a missing file name
                assert detail.message


def test_bounds_types_and_texts_come_from_the_models(client: TestClient) -> None:
    fields = {field["path"]: field for field in client.get("/api/form?source=reversal").json()["fields"]}
    layers = fields["model.num_layers"]
    assert layers["type"] == "integer" and layers["minimum"] == 1 and layers["value"] == 1
    smoothing = fields["training.label_smoothing"]
    assert (smoothing["minimum"], smoothing["below"], smoothing["type"]) == (0, 1, "number")
    assert fields["training.precision"]["choices"] == ["fp32", "bf16", "fp16", "auto"]
    assert fields["training.max_epochs"]["is_optional"] and fields["training.max_epochs"]["value"] is None
    description = ExperimentConfig.model_fields["seed"].description
    assert fields["seed"]["description"] == description and fields["seed"]["group"] == ""
    family = ExperimentConfig.model_fields["task"].annotation
    assert family is not None and fields["task.kind"]["choices"] == sorted(kinds(family))


def test_another_kind_brings_its_own_fields(client: TestClient) -> None:
    document = fill(client, "reversal", model__position__kind="t5", model__position__base=100)
    paths = {field["path"] for field in document["fields"]}
    assert {"model.position.num_buckets", "model.position.max_distance"} <= paths
    assert "model.position.base" not in paths  # an option of the previous kind
    assert (
        document["errors"] == []
        and document["command"] == "glassformer train reversal model.position.kind=t5"
    )


def test_values_are_read_as_the_command_line_reads_them(client: TestClient) -> None:
    document = fill(
        client,
        "reversal",
        model__num_layers="2",
        training__optimizer__learning_rate="1e-3",
        training__stopping__target="",
        training__tensorboard="true",
        training__freeze="embedding, backbone",
        training__batch_tokens=None,
    )
    assert document["errors"] == []
    program, verb, what, *overrides = shlex.split(document["command"])
    assert (program, verb, what) == ("glassformer", "train", "reversal")
    tree = resolve(what, overrides).dump()
    assert tree["model"]["num_layers"] == 2 and tree["training"]["optimizer"]["learning_rate"] == 0.001
    assert tree["training"]["stopping"]["target"] is None and tree["training"]["tensorboard"] is True
    assert tree["training"]["freeze"] == ["embedding", "backbone"]
    assert tree["training"]["batch_tokens"] is None


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model.num_layers", "two"),
        ("model.num_layers", 0),
        ("model.num_layers", 1.5),
        ("model.num_layers", True),
        ("model.num_layers", [1]),
        ("model.num_layers", None),
        ("model.position.kind", "nonsense"),
        ("model.position.kind", ["rotary"]),
        ("model.position.kind", None),
        ("training.precision", "fp8"),
        ("training.max_steps", "[1"),
        ("training.optimizer.learning_rate", {"a": 1}),
        ("training.freeze", [1]),
        ("training.nonsense", 1),
        ("nonsense", 1),
        ("", 1),
        (".", 1),
        ("model..x", 1),
        ("model", {"kind": "transformer"}),
        ("training.device", 7),
        ("seed", 2**40),
    ],
)
def test_an_error_appears_at_its_field(client: TestClient, path: str, value: Any) -> None:
    body = {"source": "reversal", "values": {path: value}}
    reply = client.post("/api/form", json=body)
    assert reply.status_code == 200
    (error,) = reply.json()["errors"]
    fields = {field["path"] for field in reply.json()["fields"]}
    assert error["field"] == path or (path not in fields and error["field"] in {*fields, path})
    assert error["message"]
    started = client.post("/api/runs", json=body)
    assert started.status_code == 400 and started.json()["errors"] == [error]


def test_several_errors_are_all_reported(client: TestClient) -> None:
    document = fill(client, "reversal", model__num_layers=0, training__batch_size="x", task__length=-1)
    assert set(errors(document)) == {"model.num_layers", "training.batch_size", "task.length"}


def test_an_error_between_two_fields_appears_at_one_of_them(client: TestClient) -> None:
    document = fill(client, "reversal", model__num_heads=7)  # 64 is not a multiple of 7
    assert set(errors(document)) <= {"model.num_heads", "model.hidden_dim"} and document["errors"]


def test_a_run_can_be_the_beginning_of_another(client: TestClient, runs: Path) -> None:
    document = fill(client, "tiny", seed=3)
    what, *overrides = shlex.split(document["command"])[2:]
    assert overrides == ["seed=3"] and resolve(what, overrides).seed == 3
    assert resolve(what).dump() == resolve(str(runs / "tiny")).dump()


@pytest.mark.parametrize(
    "what", ["nothing", "../tiny", "/etc/passwd", "runs/tiny/config.yaml", "", "tiny/config.yaml"]
)
def test_no_other_file_is_read(client: TestClient, what: str) -> None:
    assert client.get("/api/form", params={"source": what}).status_code in (400, 404)
    assert client.post("/api/runs", json={"source": what}).status_code in (400, 404)


VALUES: list[Any] = [
    None,
    True,
    3,
    -0.5,
    1e-9,
    1e300,
    "x",
    "",
    "true",
    "null",
    "1e-3",
    "[a]",
    "a: b",
    "#",
    "é",
]
VALUES += [
    "é",
    " x ",
    "a\nb",
    "'",
    '"',
    [],
    [1, "2"],
    {},
    {"a": [None, "x y"]},
    "x" * 300,
    ["long " * 30, "b"],
]


@pytest.mark.parametrize("value", VALUES)
def test_a_value_on_the_command_line_is_that_value(value: Any) -> None:
    text = format_value(value)
    assert "\n" not in text
    assert parse_overrides([f"a.b={text}"]) == {"a": {"b": value}}


def fields_of(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {field["path"]: field for field in document["fields"]}


def test_an_unset_option_states_what_unset_means(client: TestClient) -> None:
    fields = fields_of(fill(client, "classification"))
    form = fields["task.data.format"]
    assert form["is_optional"] and form["value"] is None and form["unset"] == "by the file name's ending"
    assert form["description"] == "file format"
    header = fields["task.data.header"]
    assert header["type"] == "boolean" and header["is_optional"] and header["unset"]
    assert fields["training.max_steps"]["unset"] == "no limit"
    assert "0: keep the initial weights" in fields["training.max_steps"]["description"]
    # Empty mappings and lists are unset too, not `{}` and `[]`.
    for path in ("task.data.classes", "training.freeze"):
        assert fields[path]["is_optional"] and fields[path]["value"] is None, path
        assert fill(client, "classification", **{path.replace(".", "__"): ""})["errors"] == []


@pytest.mark.parametrize(
    ("typed", "override"),
    [("review", "review"), ("1", "1"), ('"title, short"', "title, short"), (" text ", "text")],
)
def test_columns_are_fields_by_role(client: TestClient, typed: str, override: str) -> None:
    document = fill(client, "classification", task__data__train="mine.tsv", task__data__columns__input=typed)
    fields = fields_of(document)
    assert "task.data.columns" not in fields
    assert [path for path in fields if path.startswith("task.data.columns.")] == [
        "task.data.columns.input",
        "task.data.columns.target",
    ]
    assert fields["task.data.columns.input"]["value"] == (1 if typed == "1" else typed.strip())
    assert fields["task.data.columns.target"]["value"] is None
    assert "label" in fields["task.data.columns.target"]["unset"]
    assert document["errors"] == []
    assert f"task.data.columns.input={override}" in shlex.split(document["command"])
    tree = resolve("classification", shlex.split(document["command"])[3:]).dump()
    assert tree["task"]["data"]["columns"] == {"input": parse_overrides([f"a={override}"])["a"]}


def test_several_input_columns_are_typed_with_commas(tmp_path: Path) -> None:
    values = {"task.data.train": "mine.csv", "task.data.columns.input": "title, description, 3"}
    made = draft(RunsFolder(tmp_path), "classification", values)
    assert made.overrides["task.data.columns.input"] == ["title", "description", 3]
    shown = {field["path"]: field["value"] for field in made.document()["fields"]}
    assert shown["task.data.columns.input"] == "title, description, 3"


def test_the_first_preset_is_the_one_of_the_readme(client: TestClient) -> None:
    names = [preset["name"] for preset in client.get("/api/studio").json()["presets"]]
    sentences = [preset["sentence"] for preset in client.get("/api/studio").json()["presets"]]
    assert len(set(sentences)) == len(names) and all(sentence.endswith(".") for sentence in sentences)
    assert names[0] == "reversal" and names[1:] == sorted(set(presets()) - {"reversal"})


def test_a_chosen_kind_is_explained(client: TestClient) -> None:
    fields = fields_of(fill(client, "reversal", model__position__kind="rotary"))
    assert fields["model.position.kind"]["about_choice"]
    assert fields["model.position.kind"]["about_choice"] != fields["model.position.kind"]["description"]


def test_the_form_shows_the_options_of_a_preset_for_own_data(tmp_path: Path) -> None:
    """Show and send the same values as the command line: once a file is named, other options apply."""
    file = {"task.data.train": "mine.csv"}
    shown = {field.path: field.value for field in draft(RunsFolder(tmp_path), "classification", file).fields}
    expected = resolve("classification", file)
    assert shown["model.dropout"] == expected.model.dropout != resolve("classification").model.dropout
    for layers in (1, 2):
        made = draft(RunsFolder(tmp_path), "classification", file | {"model.num_layers": str(layers)})
        assert resolve("classification", made.overrides).model.num_layers == layers
