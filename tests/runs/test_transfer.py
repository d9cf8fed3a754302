"""Transfer: weights are copied to the bit, reported in full, and rejected where it would only seem to work.

Also the training after it: frozen layers, gradual unfreezing, layer-wise learning rates, and a resume that
needs no source.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import yaml
from torch import Tensor

from glassformer.cli import main
from glassformer.core.config import Tree, dump_yaml, merge, unflatten, validate
from glassformer.core.errors import UserError
from glassformer.core.registry import kinds
from glassformer.models.base import Model
from glassformer.models.task_types import Seq2Seq
from glassformer.models.transformer import TransformerConfig
from glassformer.runs.experiment import Experiment, ExperimentConfig, resolve
from glassformer.runs.folder import RunFolder
from glassformer.runs.session import TrainingSession
from glassformer.runs.transfer import PartialCopy, transfer
from glassformer.runs.verify import prove_resume, without_clocks
from glassformer.storage.files import ChecksummedFolder, file_sha256, json_bytes
from glassformer.tasks.base import Seq2SeqTask
from glassformer.training.checkpoints import CheckpointStore
from glassformer.training.optimizers import OptimizerConfig, layers_of
from glassformer.training.progress import Reporter
from glassformer.training.trainer import StopSignals, Trainer

SMALL: Tree = {
    "task": {
        "kind": "random-tokens",
        "target": "class",
        "length": 8,
        "categories": 6,
        "train_examples": 64,
        "validation_examples": 16,
        "test_examples": 16,
    },
    "model": {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "feed_forward_dim": 16, "dropout": 0.1},
    "training": {"batch_size": 16, "max_epochs": 3, "log_every": 1, "threads": 1, "device": "cpu"},
}
"""Classifier with 4 steps per epoch, 12 in all."""

BACKBONE = {"embedding": 6 * 8, "encoder": 2 * (4 * 64 + 4 * 8 + 2 * 8 * 16 + 16 + 8 + 2 * 16) + 16}
TENSORS = 1 + 2 * (2 * 2 + 4 + 4) + 2
"""Tensors of the embedding, of two blocks (attention, feed-forward, two norms) and of the last norm."""


def small(overrides: Mapping[str, Any] | None = None) -> ExperimentConfig:
    tree = merge(ExperimentConfig.fill_kinds(SMALL), unflatten(overrides or {}))
    return validate(ExperimentConfig, tree)


def train(config: ExperimentConfig, path: Path, reporter: Reporter | None = None) -> RunFolder:
    folder = RunFolder(path)
    TrainingSession(config, folder, reporter).run()
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Make runs to start from, cached by their options; the default is a language model."""
    known: dict[str, Path] = {}

    def make(**overrides: Any) -> Path:
        options = {"task.target": "next", "training.max_steps": 6, "seed": 5}
        options |= {name.replace("__", "."): value for name, value in overrides.items()}
        key = json.dumps(options)
        if key not in known:
            known[key] = train(small(options), tmp_path_factory.mktemp("source") / "run").path
        return known[key]

    return make


def best(path: Path, group: str = "model") -> dict[str, Tensor]:
    store = RunFolder(path).checkpoints()
    return safetensors.torch.load_file(store.folder / store.find("best") / f"{group}.safetensors")


def start(path: Path, overrides: Mapping[str, Any] | None = None) -> tuple[Experiment, Trainer]:
    experiment = Experiment(small({"training.start_from": str(path), **(overrides or {})}))
    return experiment, experiment.build_trainer()


def equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> dict[str, bool]:
    return {name: torch.equal(tensor, other[name]) for name, tensor in one.items()}


# ---------------------------------------------------------------- what is copied


def test_the_backbone_is_copied_to_the_bit_and_the_head_is_new(runs: Any) -> None:
    source = runs()
    experiment, trainer = start(source)
    model, fresh, theirs = trainer.model.state_dict(), experiment.build_model().state_dict(), best(source)
    for name, tensor in model.items():
        is_head = name.startswith("head")
        assert torch.equal(tensor, fresh[name] if is_head else theirs[name]), name
    learned = [name for name in theirs if not name.startswith("head")]
    assert not any(torch.equal(fresh[name], theirs[name]) for name in learned if theirs[name].ndim > 1)


def test_the_report_counts_every_tensor(runs: Any) -> None:
    source = runs()
    experiment, trainer = start(source)
    report = experiment.transferred
    assert report is not None and report.partly == {}
    assert len(report.loaded) == TENSORS and report.loaded_parameters == sum(BACKBONE.values())
    assert report.left_out == {"head.weight": 6 * 8, "head.bias": 6}
    assert report.new == {"head.weight": 2 * 8, "head.bias": 2}
    assert {*report.loaded, *report.new} == set(trainer.model.state_dict())
    assert {*report.loaded, *report.left_out} == set(best(source))
    assert report.lines() == [
        f"start from {source} ({report.checkpoint}): {TENSORS} tensors, {sum(BACKBONE.values()):,} parameters"
        " loaded; left out head (54); new head (18)",
        "NOTE: the run's model is causal, this one is bidirectional; model.is_causal=true keeps it",
    ]


def test_a_causal_classifier_reads_like_the_language_model(runs: Any) -> None:
    source = runs()
    experiment, trainer = start(source, {"model.is_causal": True, "model.pooling": "last"})
    assert experiment.transferred is not None and experiment.transferred.note == ""
    language_model = Experiment(small({"task.target": "next"})).build_model()
    language_model.load_state_dict(best(source))
    tokens = torch.tensor([[3, 1, 4, 1, 5, 2], [0, 0, 5, 5, 0, 1]])
    with torch.no_grad():
        read = trainer.model.eval().encode(tokens)  # type: ignore[operator]
        assert torch.equal(read, language_model.eval().encode(tokens))  # type: ignore[operator]


def test_the_same_outputs_copy_the_head_too(runs: Any) -> None:
    source = runs()
    experiment, trainer = start(source, {"task.target": "next", "task.data_seed": 9, "task.length": 10})
    assert all(equal(trainer.model.state_dict(), best(source)).values())
    assert experiment.transferred is not None
    assert experiment.transferred.left_out == experiment.transferred.new == {}
    assert "left out nothing; new nothing" in experiment.transferred.lines()[0]


@pytest.mark.parametrize(
    ("source", "here"),
    [
        ({}, {"task": {"kind": "reversal", "length": 8, "categories": 6}}),  # a label is not a next token
        ({"task__target": "class"}, {"task": {"kind": "palindrome", "length": 8, "categories": 6}}),
        ({"model__output": "mlp"}, {"task.target": "next"}),  # the same outputs, a head of another shape
    ],
)
def test_a_head_with_other_outputs_is_left_out(source: Any, here: Any, runs: Any) -> None:
    """The head is left out even if its shapes fit."""
    path = runs(**source)
    experiment, trainer = start(path, here)
    fresh = experiment.build_model().state_dict()
    assert experiment.transferred is not None
    assert {"head.weight", "head.bias"} <= {*experiment.transferred.new}
    assert best(path)["head.weight"].shape == fresh["head.weight"].shape
    assert torch.equal(trainer.model.state_dict()["head.weight"], fresh["head.weight"])


def test_averaged_weights_are_taken_and_the_new_average_starts_with_them(runs: Any) -> None:
    source = runs(training__ema_decay=0.9)
    experiment, trainer = start(source, {"training.ema_decay": 0.99})
    averaged = best(source, "averaged")
    assert experiment.transferred is not None and experiment.transferred.weights == "averaged"
    assert not all(equal(averaged, best(source)).values())
    assert trainer.averaged is not None
    for model in (trainer.model.state_dict(), trainer.averaged.state_dict()):
        assert all(equal({name: averaged[name] for name in experiment.transferred.loaded}, model).values())


@pytest.mark.parametrize("length", [5, 8, 12])
def test_learned_positions_of_another_length_are_copied_in_part(length: int, runs: Any) -> None:
    source = runs(model__position="learned")
    experiment, trainer = start(source, {"model.position": "learned", "task.length": length})
    name = "embedding.position.table.weight"
    mine, theirs = trainer.model.state_dict()[name], best(source)[name]
    fresh, common = experiment.build_model().state_dict()[name], min(length, 8)
    assert torch.equal(mine[:common], theirs[:common]) and torch.equal(mine[common:], fresh[common:])
    report = experiment.transferred
    assert report is not None
    if length == 8:
        assert report.partly == {} and report.loaded[name] == 64
    else:
        assert report.partly == {name: PartialCopy(common, 8, length, common * 8)}
        assert name not in report.loaded
        assert f"{name}: {common} positions copied; the run has 8, this model {length}" in report.lines()
    assert report.loaded_parameters == sum(BACKBONE.values()) + common * 8


class Rewriting(Seq2SeqTask):
    """Seq2seq task with the inputs of the small tasks and without examples."""

    def __init__(self, letters: str = "abcd") -> None:
        super().__init__(Seq2Seq(6, 8, target_vocabulary=len(letters), max_target_length=8), {})
        self.letters = letters

    def input_symbols(self, tokens: Sequence[int]) -> list[str]:
        return [str(token) for token in tokens]

    def output_symbols(self, tokens: Sequence[int]) -> list[str]:
        return [self.letters[token] for token in tokens]


def model_for(task: Any) -> tuple[Model, TransformerConfig]:
    config = small().model
    assert isinstance(config, TransformerConfig)
    return config.build(task.task_type), config


def test_a_module_that_only_one_model_has_is_new_as_a_whole(runs: Any) -> None:
    task = Rewriting()
    model, config = model_for(task)
    report = transfer(runs(), task, model, config)
    assert len(report.loaded) == TENSORS
    assert {name.split(".")[0] for name in report.new} == {"target_embedding", "decoder", "head"}
    assert sum(report.new.values()) + report.loaded_parameters == sum(p.numel() for p in model.parameters())


def test_between_seq2seq_models_everything_is_copied(
    runs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Rewriting()
    model, config = model_for(task)
    source = tmp_path / "source"
    shutil.copytree(runs(), source)
    name = replace_weights(source, model.state_dict())
    other, _ = model_for(task)
    monkeypatch.setattr("glassformer.tasks.random_tokens.RandomTokensConfig.build", lambda *_: Rewriting())
    report = transfer(source, task, other, config)
    assert report.checkpoint == name and report.new == report.left_out == {}
    assert all(equal(model.state_dict(), other.state_dict()).values())
    with pytest.raises(
        UserError, match="the run has other symbols: 10 there, 10 here; 7 is 'b' there, 'x' here"
    ):
        transfer(source, Rewriting("axcd"), other, config)


def replace_weights(run: Path, tensors: Mapping[str, Tensor]) -> str:
    store = RunFolder(run).checkpoints()
    name = store.find("best")
    checkpoint = store.load(name)
    store.save(
        name, type(checkpoint)({**checkpoint.tensors, "model": tensors}, checkpoint.state), is_best=True
    )
    return name


# ---------------------------------------------------------------- what is refused


def refusal(path: Path, overrides: Mapping[str, Any] | None = None) -> str:
    with pytest.raises(UserError) as caught:
        start(path, overrides)
    text = str(caught.value)
    assert 2 <= len(text.splitlines()) <= 5
    return text


def test_a_backbone_of_another_size_is_refused_with_both_sizes(runs: Any) -> None:
    text = refusal(runs(), {"model.hidden_dim": 16, "model.num_layers": 3})
    assert text.startswith("training.start_from: the run's backbone does not fit this model: ")
    assert "embedding.vectors.table.weight is 6×16 here, 6×8 in the run; encoder.layers.0." in text
    assert "more\n" in text
    assert text.endswith("try:     model.num_layers=2 model.hidden_dim=8")


def test_half_a_backbone_is_refused(runs: Any) -> None:
    text = refusal(runs(), {"model.num_layers": 3})
    assert "encoder.layers.2.attention" in text and "is only here" in text
    assert text.endswith("try:     model.num_layers=2")
    text = refusal(runs(), {"model.num_layers": 1})
    assert "encoder.layers.1.attention" in text and "is only in the run" in text


@pytest.mark.parametrize(
    ("option", "value", "message", "hint"),
    [
        ("num_heads", 4, "model.num_heads is 4, in the run 2", "model.num_heads=2"),
        (
            "position.base",
            500.0,
            "model.position.base is 500.0, in the run 10000.0",
            "model.position.base=10000.0",
        ),
        ("position", "alibi", "model.position.kind is alibi", "model.position.kind=sinusoidal"),
        ("feed_forward", "relu", "model.feed_forward.kind is relu", "model.feed_forward.kind=gelu"),
        ("norm.epsilon", 0.1, "model.norm.epsilon is 0.1", "model.norm.epsilon=1e-05"),
        ("input.scale", False, "model.input.scale is False, in the run True", "model.input.scale=true"),
    ],
)
def test_what_the_weights_do_not_show_is_refused(
    option: str, value: Any, message: str, hint: str, runs: Any
) -> None:
    text = refusal(runs(), {f"model.{option}": value})
    assert "the run's weights fit, but were trained with other options" in text
    assert message in text and hint in text.splitlines()[-1]


def test_the_hint_works(runs: Any) -> None:
    """With the options of the hint, the run starts."""
    changes = {"model.num_heads": 1, "model.num_layers": 3, "model.position": "learned"}
    words = refusal(runs(), changes).splitlines()[-1].removeprefix("  try:     ").split()
    chosen = {path: yaml.safe_load(value) for path, _, value in (word.partition("=") for word in words)}
    del changes["model.position"]  # the kind and its options replace it
    assert start(runs(), {**changes, **chosen})[0].transferred is not None


def test_options_of_head_and_dropout_may_differ(runs: Any) -> None:
    start(runs(), {"model.dropout": 0.5, "model.output": "mlp", "model.pooling": "attention"})


def test_other_symbols_are_refused(runs: Any) -> None:
    text = refusal(runs(), {"task.categories": 7})
    assert "the run has other symbols: 6 there, 7 here" in text


class Tokenized(Rewriting):
    def __init__(self, tree: Tree) -> None:
        super().__init__()
        self.tree = tree

    def state(self) -> dict[str, Any]:
        return {"tokenizer": self.tree}


def test_another_tokenizer_is_refused_with_what_to_type(runs: Any, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(runs(), source)
    folder = RunFolder(source)
    folder.create(resolve(str(source)), {"tokenizer": {"model": ["a", "b"]}}, folder.environment())
    task = Tokenized({"model": ["a", "c"]})
    model, config = model_for(task)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(UserError) as caught:
        transfer(source, task, model, config)
    assert str(caught.value).splitlines() == [
        "training.start_from: the run has another tokenizer than this task",
        f"  given:   {str(source)!r}",
        f"  try:     'task.tokenizer={{kind: file, path: {source}}}'",
    ]
    assert all(equal(before, model.state_dict()).values())
    assert transfer(source, Tokenized({"model": ["a", "b"]}), model, config).loaded
    with pytest.raises(UserError, match="a task that reads the same kind of data"):
        start(source)


def test_a_model_with_nothing_in_common_is_refused(runs: Any, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(runs(), source)
    replace_weights(source, {"body.weight": torch.zeros(3), "head.weight": torch.zeros(3)})
    assert "the run's body have nothing in common with this model's embedding, encoder" in refusal(source)


def test_a_source_that_is_not_a_run(runs: Any, tmp_path: Path) -> None:
    assert "no such run" in refusal(tmp_path / "nowhere")
    source = tmp_path / "source"
    shutil.copytree(runs(), source)
    for file in (source / "checkpoints").rglob("model.safetensors"):
        file.write_bytes(file.read_bytes()[:-1])
    assert "the best checkpoint of this run is damaged" in refusal(source)
    shutil.rmtree(source / "checkpoints")
    assert "no checkpoint yet" in refusal(source)


def test_a_refused_start_leaves_no_folder(runs: Any, tmp_path: Path) -> None:
    config = small({"training.start_from": str(runs()), "model.num_heads": 4})
    with pytest.raises(UserError):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------- what is trained


def weights(trainer: Trainer) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}


def steps(trainer: Trainer, count: int) -> None:
    for batches in islice(trainer.step_batches(), count):
        trainer.step(batches)


def moved(trainer: Trainer, count: int) -> set[str]:
    """Return the parameters that a number of steps change."""
    before = weights(trainer)
    trainer.model.train()
    steps(trainer, count)
    return {name for name, same in equal(before, weights(trainer)).items() if not same}


@pytest.mark.parametrize("optimizer", sorted(kinds(OptimizerConfig)))
@pytest.mark.parametrize(
    ("freeze", "prefixes"),
    [
        ("backbone", ("embedding.", "encoder.")),
        (["embedding", "encoder.layers.0"], ("embedding.", "encoder.layers.0.")),
        (["head.bias", "encoder.layers.1.attention"], ("head.bias", "encoder.layers.1.attention.")),
        (None, ()),
    ],
)
def test_what_is_frozen_stays_to_the_bit_and_all_else_moves(
    optimizer: str, freeze: Any, prefixes: tuple[str, ...]
) -> None:
    options = {"kind": optimizer, "weight_decay": 0.5, "learning_rate": 0.01}
    trainer = Experiment(small({"training.freeze": freeze, "training.optimizer": options})).build_trainer()
    names = [name for name, _ in trainer.model.named_parameters()]
    expected = {name for name in names if not (prefixes and name.startswith(prefixes))}
    assert moved(trainer, 3) == expected
    assert set(trainer.freezing.frozen(1)) == set(names) - expected


def test_a_module_is_selected_by_its_whole_name() -> None:
    trainer = Experiment(
        small({"model.num_layers": 11, "training.freeze": "encoder.layers.1"})
    ).build_trainer()
    assert {name.split(".")[2] for name in trainer.freezing.frozen(1)} == {"1"}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"training.freeze": ["encodr"]}, "did you mean 'encoder'?"),
        ({"training.freeze": ["encoder.layers.2"]}, "did you mean 'encoder.layers.1'?"),
        ({"training.freeze": ["nonsense"]}, "training.freeze: no such module in the model"),
        ({"training.freeze": ["backbone", "head"]}, "training.freeze: every parameter is frozen"),
        (
            {"training.unfreeze.every": 2},
            "training.unfreeze.every: there is nothing to unfreeze, because no module is frozen",
        ),
        ({"training.freeze": [3]}, "training.freeze.0: must be a valid string"),
        (
            {"training.layerwise_lr_decay": 1.5},
            "training.layerwise_lr_decay: must be less than or equal to 1",
        ),
    ],
)
def test_what_cannot_be_frozen(overrides: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        Experiment(small(overrides)).build_trainer()
    assert message in str(caught.value)


@pytest.mark.parametrize("unit", ["steps", "epochs"])
def test_layers_unfreeze_from_the_top_down(unit: str) -> None:
    """Embedding and two blocks: one more every eight steps, until everything is trained."""
    every = {"steps": 8, "epochs": 2}[unit]
    options = {"training.freeze": "backbone", "training.unfreeze": {"every": every, "unit": unit}}
    trainer = Experiment(small({**options, "training.max_epochs": 9})).build_trainer()
    trained: set[str] = {"head"}
    for more in (
        set(),
        {"encoder.layers.1", "encoder.final_norm"},
        {"encoder.layers.0"},
        {"embedding.vectors"},
    ):
        trained |= more
        found = {_place(name) for name in moved(trainer, 1)}
        assert found == trained
        assert {_place(name) for name in moved(trainer, 7)} == trained
    assert trainer.state.step == 32


def _place(name: str) -> str:
    parts = name.split(".")
    depth = 1 if parts[0] == "head" else 3 if parts[1] == "layers" else 2
    return ".".join(parts[:depth])


def test_layers_are_counted_as_the_data_go() -> None:
    model, _ = model_for(Rewriting())
    found = {_place(name): layer for name, layer in layers_of(model).items()}
    assert found == {
        "embedding.vectors": 0,
        "target_embedding.vectors": 0,
        "encoder.layers.0": 1,
        "encoder.layers.1": 2,
        "encoder.final_norm": 2,
        "decoder.layers.0": 3,
        "decoder.layers.1": 4,
        "decoder.final_norm": 4,
        "head": 5,
    }


def test_each_layer_has_its_learning_rate() -> None:
    """Without momentum, a step of SGD is the learning rate times the gradient."""
    options = {"kind": "sgd", "learning_rate": 0.1, "momentum": 0.0}
    overrides = {
        "training.optimizer": options,
        "training.schedule": "constant",
        "training.gradient_clip_norm": None,
    }
    trainer = Experiment(small({**overrides, "training.layerwise_lr_decay": 0.5})).build_trainer()
    before = weights(trainer)
    steps(trainer, 1)
    shares = {"embedding": 0.125, "encoder.layers.0": 0.25, "encoder": 0.5, "head": 1.0}
    for name, parameter in trainer.model.named_parameters():
        share = next(share for prefix, share in shares.items() if name.startswith(prefix))
        assert parameter.grad is not None
        expected = before[name] - 0.1 * share * parameter.grad
        torch.testing.assert_close(parameter.detach(), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("optimizer", sorted(kinds(OptimizerConfig)))
def test_every_optimizer_has_all_parameters_once_for_any_learning_rates(optimizer: str) -> None:
    trainer = Experiment(
        small({"training.layerwise_lr_decay": 0.9, "training.optimizer.kind": optimizer})
    ).build_trainer()
    grouped = [id(p) for group in trainer.optimizer.param_groups for p in group["params"]]
    assert sorted(grouped) == sorted(id(p) for p in trainer.model.parameters())
    assert {round(group["lr_scale"], 6) for group in trainer.optimizer.param_groups} == {
        1,
        0.9,
        0.81,
        0.729,
    }


# ---------------------------------------------------------------- the run and its record

FINE_TUNING = {
    "model.dropout": 0.2,
    "training.freeze": "backbone",
    "training.unfreeze": {"every": 3, "unit": "steps"},
    "training.layerwise_lr_decay": 0.7,
    "training.ema_decay": 0.9,
    "training.optimizer.weight_decay": 0.1,
    "training.save_every": 2,
}


class Listener(Reporter):
    is_active = True

    def __init__(self) -> None:
        self.notes: list[str] = []

    def info(self, text: str) -> None:
        self.notes.append(text)


class StopAt(StopSignals):
    def __init__(self, training: TrainingSession, step: int) -> None:
        super().__init__()
        self.training, self.at = training, step

    def is_set(self) -> bool:
        if self.training.trainer.state.step >= self.at:
            self.number = signal.SIGTERM
        return super().is_set()


def stop(config: ExperimentConfig, path: Path, step: int) -> None:
    training = TrainingSession(config, RunFolder(path), Listener())
    training.signals = StopAt(training, step)
    assert training.run()["steps"] == step


def facts(path: Path) -> dict[str, Any]:
    files = {str(f.relative_to(path)): file_sha256(f) for f in sorted(path.rglob("*.safetensors"))}
    return {**files, "events": [without_clocks(event) for event in RunFolder(path).events]}


@pytest.mark.parametrize("stops", [[1], [3], [4, 6, 9, 11]])
def test_a_resumed_run_is_exact_and_needs_no_source(stops: list[int], runs: Any, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(runs(), source)
    config = small({"training.start_from": str(source), **FINE_TUNING})
    train(config, tmp_path / "left-alone")
    for step in stops:
        stop(config, tmp_path / "stopped", step)
        shutil.rmtree(source, ignore_errors=True)
    listener = Listener()
    train(config, tmp_path / "stopped", listener)
    assert facts(tmp_path / "stopped") == facts(tmp_path / "left-alone")
    assert not any("start from" in note for note in listener.notes)


def test_the_run_reports_and_logs_where_it_started(runs: Any, tmp_path: Path) -> None:
    source, listener = runs(), Listener()
    folder = train(small({"training.start_from": str(source), **FINE_TUNING}), tmp_path / "run", listener)
    sha256 = file_sha256(RunFolder(source).checkpoints().folder / "step-00000006" / "model.safetensors")
    assert folder.environment()["start_from"] == {
        "checkpoint": "step-00000006",
        "weights": "model",
        "sha256": sha256,
    }
    first, *others = folder.events
    assert first["event"] == "transfer" and first["sha256"] == sha256 and first["run"] == str(source)
    assert sum(first["loaded"].values()) == sum(BACKBONE.values()) and sum(first["new"].values()) == 18
    unfreezes = [event for event in others if event["event"] == "unfreeze"]
    assert [(event["step"], event["released"]) for event in unfreezes] == [
        (4, ["encoder.layers.1", "encoder.final_norm"]),
        (7, ["encoder.layers.0"]),
        (10, ["embedding.vectors.table"]),
    ]
    assert unfreezes[-1]["frozen_parameters"] == 0
    printed = "\n".join(listener.notes)
    assert f"start from {source} (step-00000006): {TENSORS} tensors" in printed
    assert f"{sum(BACKBONE.values()):,} of {sum(BACKBONE.values()) + 18:,} parameters are frozen" in printed
    assert "step 4: unfroze encoder.layers.1, encoder.final_norm" in printed


def test_a_source_that_changed_before_the_first_checkpoint_is_refused(
    runs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    shutil.copytree(runs(), source)
    config = small({"training.start_from": str(source)})

    def die(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointStore, "save", die)
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "run")
    replace_weights(source, {name: tensor + 1 for name, tensor in best(source).items()})
    with pytest.raises(UserError, match="has changed since this run started from it"):
        train(config, tmp_path / "run")
    shutil.rmtree(source)
    shutil.copytree(runs(), source)
    folder = train(config, tmp_path / "run")
    assert [event["event"] for event in folder.events].count("transfer") == 1


def test_a_run_without_these_options_resumes(tmp_path: Path) -> None:
    stop(small(), tmp_path / "run", 5)
    tree = RunFolder(tmp_path / "run").config()
    for option in ("start_from", "freeze", "unfreeze", "layerwise_lr_decay"):
        del tree["training"][option]
    ChecksummedFolder(tmp_path / "run").write({"config.json": json_bytes(tree)})
    assert train(small(), tmp_path / "run").results()["steps"] == 12


def test_sizes_and_estimates_need_no_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.yaml"
    overrides = {"training.start_from": str(tmp_path / "gone"), **FINE_TUNING}
    file.write_text(dump_yaml(small(overrides).dump()))
    assert main(["params", str(file), "--measure", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["total"] == sum(BACKBONE.values()) + 18 and document["measured"]["steps"] == 12


@pytest.mark.long
def test_resume_is_proved(runs: Any, tmp_path: Path) -> None:
    config = small({"training.start_from": str(runs()), **FINE_TUNING})
    proof = prove_resume(config, tmp_path, kills=2, steps=80)
    assert proof.passed and proof.kills == 2, proof.compared


def test_the_seed_decides_the_new_head_and_nothing_that_is_copied(runs: Any) -> None:
    one, other = (start(runs(), {"seed": seed})[1].model.state_dict() for seed in (0, 1))
    differing = {name for name, same in equal(one, other).items() if not same}
    assert differing == {"head.weight"}
