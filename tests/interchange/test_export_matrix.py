"""Matrix of exports: every target takes each combination of options exactly, or refuses it with a way out.

The first part compares all obstacles with tables that are written down here, without an engine. The second
part runs models with the engines of the targets. Other files do so for every class of transformers
(`test_huggingface_export.py`), for the graphs of every task type and position (`test_onnx_graphs.py`), and
for pages in a browser (`test_web_export.py`).
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from glassformer.blocks.feed_forward import FeedForwardConfig
from glassformer.blocks.norms import NormConfig
from glassformer.blocks.positions import PositionConfig
from glassformer.core.registry import kinds
from glassformer.data.tokenizers import TokenizerConfig
from glassformer.interchange import export as flow
from glassformer.interchange import gguf_export, web_export
from glassformer.interchange.export import (
    ENGINES,
    TARGETS,
    ExportPlan,
    ExportSource,
    Obstacle,
    make_target,
    verify,
)
from glassformer.interchange.huggingface_classes import ModelClass
from glassformer.interchange.huggingface_export import find_class
from glassformer.models.transformer import TransformerConfig
from glassformer.runs.experiment import resolve
from glassformer.tasks.base import Task
from tests.interchange.engine_process import EngineProcess
from tests.interchange.small_runs import random_run, small_config

Options = Mapping[str, Any]

TEXT = {"task.examples": 300, "task.max_length": 32}
SEQUENCES = {"task.train_examples": 50, "task.validation_examples": 30, "task.test_examples": 30}
TASKS: dict[str, dict[str, Any]] = {
    "causal": {"task.kind": "language-model", **TEXT},
    "masked": {"task.kind": "masked-language-model", **TEXT},
    "labels": {"task.kind": "reversal", "task.length": 12, **SEQUENCES},
    "class": {"task.kind": "classification", **TEXT},
    "numbers": {"task.kind": "random-tokens", "task.target": "next", "task.length": 12, **SEQUENCES},
    "pairs": {"task.kind": "translation", "task.examples": 300, "task.max_length": 60},
}
PIECES = {"task.tokenizer.vocabulary_size": 400}
TOKENIZERS: dict[str, dict[str, Any]] = {
    "words": {},
    "characters": {},
    "bytes": {},
    "bpe": PIECES,
    "bpe without a space": {**PIECES, "task.tokenizer.add_prefix_space": False},
    "unigram": PIECES,
}
POSITIONS, NORMS, NETWORKS = (
    {name: kind() for name, kind in kinds(base).items()}
    for base in (PositionConfig, NormConfig, FeedForwardConfig)
)
TABLES = ("none", "sinusoidal", "learned", "simple")
TIED = ("causal", "masked", "numbers", "pairs")
"""Tasks whose output layer can share the embedding matrix."""


def with_tokenizer(task: str, tokenizer: str) -> dict[str, Any]:
    kind = tokenizer.split(" ")[0]
    return {**TASKS[task], "task.tokenizer.kind": kind, **TOKENIZERS[tokenizer]}


@cache
def _task(options: str) -> Task:
    return small_config(json.loads(options)).task.build(0)


def task_of(options: Options) -> Task:
    """Return the task with these options, built once."""
    chosen = {name: value for name, value in options.items() if name.startswith("task.")}
    return _task(json.dumps(chosen, sort_keys=True))


def shapes(is_tied: bool) -> Iterator[tuple[dict[str, Any], TransformerConfig]]:
    """Yield the full cross product of the model's options, and its config."""
    base = small_config(TASKS["labels"]).model
    assert isinstance(base, TransformerConfig)
    for position, norm, placement, network, groups, tied, bias in itertools.product(
        POSITIONS, NORMS, ("pre", "post"), NETWORKS, (None, 2), (False, True)[: 1 + is_tied], (False, True)
    ):
        chosen = {
            "position": position,
            "norm": norm,
            "norm_placement": placement,
            "feed_forward": network,
            "num_key_value_heads": groups,
            "tied_output": tied,
            "output_bias": bias,
        }
        built = {
            "position": POSITIONS[position],
            "norm": NORMS[norm],
            "feed_forward": NETWORKS[network],
        }
        yield chosen, base.model_copy(update={**chosen, **built})


def is_expected(target: str, task: str, options: Options) -> bool:
    """Return True if the target should take the model: written down apart from the code."""
    position, norm, placement = (options[name] for name in ("position", "norm", "norm_placement"))
    is_llama = (position, norm, placement, options["feed_forward"]) == ("rotary", "rms", "pre", "swiglu")
    is_plain = norm == "layer" and options["feed_forward"] != "swiglu"
    if target in ("onnx", "web"):
        return True
    if target == "ctranslate2":
        refused = {"causal": "t5", "numbers": "t5", "pairs": "alibi"}
        return task in refused and norm != "none" and position != refused[task]
    if target == "gguf":
        return task == "causal" and is_llama and not options["output_bias"]
    if task in ("causal", "numbers"):
        is_known = is_llama or (is_plain and placement == "pre" and position in (*TABLES, "rotary"))
        return is_known and not options["output_bias"]
    if task == "class":  # mean pooling
        return False
    if task == "pairs":
        return is_plain and position in TABLES
    return is_llama or (is_plain and placement == "pre" and position in TABLES and task == "labels")


@pytest.fixture(autouse=True)
def tokenizers_are_described_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_export, "describe_tokenizer", cache(gguf_export.describe_tokenizer))
    monkeypatch.setattr(web_export, "needs_library", cache(web_export.needs_library))


def test_every_kind_is_in_the_matrix() -> None:
    known = {name.split(" ")[0] for name in TOKENIZERS}
    assert known == {name for name in kinds(TokenizerConfig) if name != "file"}
    found = {type(task_of(options).task_type) for options in TASKS.values()}
    assert len(found) == 5, "one task for each task type"


@pytest.mark.parametrize("task", TASKS)
def test_obstacles_are_those_of_the_tables(task: str) -> None:
    """Every combination of options of the model, for every target."""
    built = task_of(TASKS[task])
    targets = {name: make_target(name) for name in TARGETS}
    count = 0
    for options, config in shapes(task in TIED):
        plan = ExportPlan(config, built)
        for name, target in targets.items():
            obstacles = target.obstacles(plan)
            assert bool(obstacles) != is_expected(name, task, options), (name, options, obstacles)
            assert all(each.reason and each.remedy and each.option for each in obstacles)
            count += 1
    assert count == len(TARGETS) * (1536 if task in TIED else 768)


@pytest.mark.parametrize("task", ["causal", "masked", "class", "pairs"])
def test_tokenizers_are_an_obstacle_for_llama_cpp_alone(task: str) -> None:
    """Every tokenizer, with a model that each target takes if it takes any of this task."""
    for tokenizer in TOKENIZERS:
        plans = [
            (options, ExportPlan(config, task_of(with_tokenizer(task, tokenizer))))
            for options, config in shapes(is_tied=False)
            if options["norm"] != "none"
            and options["num_key_value_heads"] is None
            and options["feed_forward"] in ("gelu", "swiglu")
        ]
        for name in TARGETS:
            target = make_target(name)
            for options, plan in plans:
                is_known = name != "gguf" or tokenizer in (
                    "words",
                    "characters",
                    "bytes",
                    "bpe without a space",
                )
                found = target.obstacles(plan)
                expected = is_known and is_expected(name, task, options)
                assert bool(found) != expected, (name, tokenizer, options, found)


@pytest.mark.parametrize("preset", ["language-model", "shakespeare"])
def test_language_models_among_the_presets_go_everywhere(preset: str) -> None:
    """Their data are generated here, because a data set may not be on this machine."""
    config = resolve(preset, {"task.data": None, "task.examples": 300})
    plan = ExportPlan(config.model, config.task.build(0))
    for name in TARGETS:
        assert make_target(name).obstacles(plan) == []
    found = find_class(plan)
    assert isinstance(found, ModelClass) and found.name == "LlamaForCausalLM"


ADVICE = re.compile(r"train with ((?:[\w.]+=[\w.]+(?: and )?)+)")
OTHERS = re.compile(r"export to ([\w, ]+)$|export to ([\w ]+),")


@pytest.mark.parametrize("task", TASKS)
def test_advice_leads_to_an_export(task: str) -> None:
    """Options that the remedies name lead to an export, and targets that they name take the model."""
    built = task_of(TASKS[task])
    for name in TARGETS:
        target, seen = make_target(name), set()
        for options, config in shapes(task in TIED):
            if options["num_key_value_heads"] is not None:
                continue
            obstacles = target.obstacles(ExportPlan(config, built))
            if obstacles and (key := tuple(obstacles)) not in seen:
                seen.add(key)
                check_advice(name, {**TASKS[task], **_paths(options)}, obstacles)


def _paths(options: Options) -> dict[str, Any]:
    suffix = {"position": ".kind", "norm": ".kind", "feed_forward": ".kind"}
    return {f"model.{name}{suffix.get(name, '')}": value for name, value in options.items()}


def check_advice(name: str, options: dict[str, Any], obstacles: Sequence[Obstacle]) -> None:
    target, first = make_target(name), list(obstacles)
    others = {other for each in obstacles for other in _others(each.remedy)}
    plan = _plan(options)
    assert others <= set(TARGETS)
    taking = {other for other in others if not make_target(other).obstacles(plan)}
    assert not others or taking, (others, first)
    assert len(first) > 1 or taking == others, (others, first)
    for _ in range(5):
        advice = dict(pair.split("=") for each in obstacles for pair in _advice(each.remedy))
        if not advice:
            assert others, (name, first)
            return
        options = {**options, **{path: _value(value) for path, value in advice.items()}}
        obstacles = target.obstacles(_plan(options))
        if not obstacles:
            return
    raise AssertionError(f"{name}: following {first} ends at {obstacles}")


def _plan(options: Options) -> ExportPlan:
    return ExportPlan(small_config(options).model, task_of(options))


def _advice(remedy: str) -> list[str]:
    found = ADVICE.search(remedy)
    return found[1].split(" and ") if found else []


def _others(remedy: str) -> list[str]:
    found = OTHERS.search(remedy)
    return re.split(r", or | or |, ", found[1] or found[2]) if found else []


def _value(text: str) -> Any:
    return json.loads(text) if text in ("true", "false") or text[0].isdigit() else text


def examples_of_shapes(target: str, task: str) -> Iterator[dict[str, Any]]:
    """Yield each combination of position, norm, placement and network that the target takes.

    Grouped heads, tying, biases and the scale of the embedding alternate, so that all their pairs occur.
    """
    seen: set[tuple[Any, ...]] = set()
    for options, _ in shapes(is_tied=False):
        key = tuple(options[name] for name in ("position", "norm", "norm_placement", "feed_forward"))
        if key in seen or not is_expected(target, task, options):
            continue
        number = len(seen)
        seen.add(key)
        yield {
            **_paths(options),
            "model.num_key_value_heads": (None, 2)[number % 2],
            "model.tied_output": number // 2 % 2 == 1,
            "model.bias": number // 4 % 2 == 0,
            "model.input.kind": "tokens",
            "model.input.scale": number // 3 % 2 == 0,
            "model.output_bias": target != "gguf" and number // 5 % 2 == 0,
        }


class Checker:
    """Exports of random models, verified by one child process with the target's engine."""

    def __init__(self, name: str, folder: Path) -> None:
        self.target, self.folder, self.count = make_target(name), folder, 0
        self.engine = EngineProcess(ENGINES / self.target.engine, folder / "log")

    def check(self, options: Options) -> None:
        source = ExportSource.of(random_run(options, task_of(options)))
        assert self.target.obstacles(source) == []
        self.count += 1
        folder = self.folder / str(self.count)
        folder.mkdir()
        self.target.write(source, folder)
        found = verify(self.target, source, folder, source.examples(3))
        assert found.passed and found.same_outputs == 1, (options, found)
        shutil.rmtree(folder)


@pytest.fixture
def checker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Checker]:
    """Checker of the target that the test names. All models are loaded in its child process."""
    name = request.param
    for package in make_target(name).packages:
        pytest.importorskip(package)
    found = Checker(name, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flow, "run_engine", found.engine)
        yield found
    found.engine.close()


def cycled(options: Sequence[Options], models: Iterator[Options]) -> Iterator[dict[str, Any]]:
    """Yield each model with the next of the options."""
    return ({**some, **model} for some, model in zip(itertools.cycle(options), models, strict=False))


@pytest.mark.thorough
@pytest.mark.parametrize("checker", ["ctranslate2"], indirect=True)
@pytest.mark.parametrize("task", ["causal", "numbers", "pairs"])
def test_ctranslate2_computes_the_same(task: str, checker: Checker) -> None:
    tasks = [TASKS[task]] if task == "numbers" else [with_tokenizer(task, name) for name in TOKENIZERS]
    for options in cycled(tasks, examples_of_shapes("ctranslate2", task)):
        checker.check(options)
    assert checker.count == 7 * 2 * 2 * 4  # positions, norms, placements, networks


@pytest.mark.thorough
@pytest.mark.parametrize("checker", ["gguf"], indirect=True)
def test_llama_cpp_computes_the_same(checker: Checker) -> None:
    """The shape is fixed, and all other options and tokenizers are combined."""
    (model,) = examples_of_shapes("gguf", "causal")
    others = {
        "model.num_key_value_heads": (None, 2),
        "model.tied_output": (False, True),
        "model.bias": (False, True),
        "model.input.scale": (False, True),
    }
    tokenizers = ("words", "characters", "bytes", "bpe without a space")
    for tokenizer, *chosen in itertools.product(tokenizers, *others.values()):
        checker.check(
            {**with_tokenizer("causal", tokenizer), **model, **dict(zip(others, chosen, strict=True))}
        )
    assert checker.count == 64


@pytest.mark.thorough
@pytest.mark.parametrize("checker", ["onnx"], indirect=True)
def test_onnx_runtime_computes_the_same(checker: Checker) -> None:
    """Writing graphs takes seconds, so every value of each option occurs, and not every combination."""
    names = {"causal": "bpe", "masked": "unigram", "class": "words", "pairs": "bytes", "labels": ""}
    tasks = [with_tokenizer(task, name) if name else TASKS[task] for task, name in names.items()]
    every = list(examples_of_shapes("onnx", "causal"))
    # 192 combinations in the order of the positions. The steps visit all norms, placements and networks.
    chosen = (every[24 * position + (5 * position) % 24] for position in range(len(POSITIONS)))
    for options in cycled(tasks, chosen):
        is_tied = options["model.tied_output"] and options["task.kind"] not in ("reversal", "classification")
        checker.check({**options, "model.tied_output": is_tied})
    assert checker.count == len(POSITIONS)
