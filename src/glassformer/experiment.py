"""The composition root: from a config to task, model, trainer and run. The only file that knows them all."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field

import glassformer.models.transformer
import glassformer.tasks  # noqa: F401  registers the kinds
from glassformer.config import (
    Node,
    Tree,
    merge,
    parse_overrides,
    parse_yaml,
    read_yaml_file,
    unflatten,
    validate,
)
from glassformer.data.batching import generator
from glassformer.errors import Problem, UserError, user_error
from glassformer.evaluation.evaluator import EvaluationConfig, evaluate
from glassformer.inspection.capture import attention_maps
from glassformer.inspection.maps import AttentionMaps, Place
from glassformer.inspection.reading import read
from glassformer.inspection.selection import Selection
from glassformer.models.base import Model, ModelConfig
from glassformer.models.transformer import TransformerConfig
from glassformer.runs import CONFIG, RunFolder, differences, environment, list_runs, new_run_path
from glassformer.tasks.answering import Answer
from glassformer.tasks.base import Task, TaskConfig
from glassformer.training.checkpoints import DamagedCheckpoint
from glassformer.training.config import TrainingConfig
from glassformer.training.estimate import Estimate, estimate
from glassformer.training.precision import check_precision, choose_device
from glassformer.training.progress import Reporter
from glassformer.training.signals import StopSignals
from glassformer.training.state import TrainingState
from glassformer.training.tensorboard import TensorBoardMirror
from glassformer.training.trainer import Surroundings, Trainer

DEFAULT_RUNS = Path("runs")

MAY_CHANGE_ON_RESUME = (
    "training.max_steps",
    "training.max_epochs",
    "training.max_minutes",
    "training.stopping",
    "training.log_every",
    "training.save_every",
    "training.keep_checkpoints",
    "training.tensorboard",
    "training.threads",
    "training.device",
)


class ExperimentConfig(Node):
    task: TaskConfig
    model: ModelConfig = TransformerConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    seed: int = Field(
        0, ge=0, lt=2**31, description="drives the first weights, the order of examples and dropout"
    )


def presets() -> list[str]:
    folder = resources.files("glassformer") / "presets"
    return sorted(
        entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")
    )


def preset_text(name: str) -> str:
    return (resources.files("glassformer") / "presets" / f"{name}.yaml").read_text(encoding="utf-8")


def resolve(what: str, overrides: Iterable[str] | Mapping[str, Any] = ()) -> ExperimentConfig:
    """A preset's name, a YAML file or a run's folder, with options changed."""
    overlay = unflatten(overrides) if isinstance(overrides, Mapping) else parse_overrides(overrides)
    return validate(ExperimentConfig, merge(ExperimentConfig.fill_kinds(_read(what)), overlay))


def _read(what: str) -> Tree:
    path = Path(what)
    if what in presets():
        return dict(parse_yaml(preset_text(what), f"preset {what}"))
    if RunFolder(path).exists():
        return RunFolder(path).config()
    if path.suffix in (".yaml", ".yml") or "/" in what or os.path.exists(path):
        return read_yaml_file(path)
    raise user_error(
        "no preset, YAML file or run of this name", value=what, allowed=presets(), remedy="check the name"
    )


class Experiment:
    """A config and what it builds."""

    def __init__(self, config: ExperimentConfig, task: Task | None = None) -> None:
        self.config = config
        self.task = config.task.build(config.seed) if task is None else task

    def build_model(self) -> Model:
        """A fresh model; the same for the same config and seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_torch_seed(self.config.seed, "weights"))
            try:
                return self.config.model.build(self.task.shape)
            except Problem as problem:
                raise UserError(problem) from None

    def build_trainer(self, surroundings: Surroundings | None = None) -> Trainer:
        config = self.config.training
        device = choose_device(config.device)
        check_precision(config.precision, device)
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        model = self.build_model().to(device)
        torch.manual_seed(_torch_seed(self.config.seed, "training"))
        return Trainer(self.task, model, config, self.config.evaluation, self.config.seed, surroundings)

    def measure(self) -> Estimate:
        return estimate(self.build_trainer())


def _torch_seed(seed: int, purpose: str) -> int:
    return int(generator(seed, purpose).integers(2**62))


class Training:
    """One training in one run folder, from its first step or from where it stopped."""

    def __init__(self, config: ExperimentConfig, folder: RunFolder, reporter: Reporter | None = None) -> None:
        self.config = config
        self.folder = folder
        self.reporter = reporter or Reporter()
        try:
            self.experiment = Experiment(config)
        except BaseException:
            folder.discard_empty()
            raise
        self.signals = StopSignals(self.reporter.note)
        self.trainer: Trainer

    def run(self) -> dict[str, Any]:
        """Train, measure, write the results; what `train --json` prints."""
        self.folder.lock()
        try:
            with self.signals:
                self._prepare()
                if type(self.reporter) is not Reporter:
                    self._announce()
                self._beat("running")
                try:
                    state = self.trainer.fit()
                except UserError:
                    if self.trainer.state.ended == "diverged":
                        self._beat("diverged")
                    raise
                return self._conclude(state)
        finally:
            self.folder.unlock()

    def _prepare(self) -> None:
        for note in self.experiment.task.notes:
            self.reporter.note(note)
        checksum = self.experiment.task.checksum()
        around = Surroundings(
            store=self.folder.checkpoints(self.config.training.checkpoints_kept()),
            events=self.folder.events,
            reporter=self.reporter,
            heartbeat=lambda state: self._beat("running"),
            stop_requested=self.signals.is_set,
        )
        self.trainer = self.experiment.build_trainer(around)
        if self.folder.exists():
            self._check_same(checksum)
        else:
            self.folder.create(
                self.config.dump(),
                self.experiment.task.state(),
                environment(checksum, torch.get_num_threads()),
            )
        newest = around.store.load_newest(self.reporter.note) if around.store else None
        if newest is None:
            self.folder.events.truncate(0)
        else:
            self.trainer.restore(newest[1])
            self.reporter.note(f"going on from {newest[0]}")
        if self.config.training.tensorboard:
            self.folder.events.mirror = TensorBoardMirror(
                self.folder.path / "tensorboard", self.trainer.state.step
            )

    def _check_same(self, checksum: str) -> None:
        """A resumed run is the same run: config and data."""
        changed = {
            path: pair
            for path, pair in differences(self.folder.config(), self.config.dump()).items()
            if not path.startswith(MAY_CHANGE_ON_RESUME)
        }
        if changed:
            shown = "; ".join(f"{path}: {old!r} → {new!r}" for path, (old, new) in list(changed.items())[:6])
            raise user_error(
                f"the run was started with another config: {shown}",
                place=str(self.folder.path),
                remedy="resume with the same options, or choose another --run",
            )
        if self.folder.environment().get("data_sha256") != checksum:
            raise user_error(
                "the data have changed since the run was started",
                place=str(self.folder.path),
                remedy="restore the data, or choose another --run",
            )

    def _announce(self) -> None:
        expected = estimate(self.trainer)
        size = sum(parameter.numel() for parameter in self.trainer.model.parameters())
        self.reporter.note(f"{size:,} parameters on {self.trainer.device}; {expected.describe()}")
        if not expected.fits():
            self.reporter.note(
                f"WARNING: only {(expected.available_bytes or 0) / 2**20:,.0f} MiB are free;"
                " lower training.batch_size or use training.accumulation"
            )

    def _beat(self, state: str) -> None:
        self.folder.beat(state, self.trainer.state.step, self.trainer.total_steps)

    def _conclude(self, state: TrainingState) -> dict[str, Any]:
        metrics = {"validation": state.last_metrics}
        if state.ended:
            loaded = Run(self.folder.path)
            metrics = {
                split: loaded.evaluate(split)["metrics"]
                for split in ("validation", "test")
                if split in self.experiment.task.splits
            }
        results = {
            "run": str(self.folder.path),
            "seed": self.config.seed,
            "steps": state.step,
            "epochs": state.epoch,
            "seconds": round(state.elapsed, 3),
            "tokens_per_second": round(state.tokens / state.seconds, 1) if state.seconds else 0.0,
            "parameters": sum(parameter.numel() for parameter in self.trainer.model.parameters()),
            "best_step": state.best_step,
            "ended": state.ended or "signal",
            "headline": self.trainer.headline(metrics["validation"]),
            "metrics": metrics,
        }
        if state.ended:
            self.folder.write_results(results)
        self._beat("done" if state.ended else "stopped")
        return results


def train(
    what: str,
    overrides: Iterable[str] | Mapping[str, Any] = (),
    *,
    run: str | Path | None = None,
    resume: bool = False,
    reporter: Reporter | None = None,
) -> Run:
    """Train WHAT and return the run. With `resume`, go on where it stopped, or start if it never did."""
    config = resolve(what, overrides)
    folder = RunFolder(run_path(what, config, run, resume))
    Training(config, folder, reporter).run()
    return Run(folder.path)


def run_path(what: str, config: ExperimentConfig, run: str | Path | None, resume: bool) -> Path:
    """Where a training happens; a folder that already holds a run is taken only to resume it."""
    if run is None and resume:
        run = what if (Path(what) / "config.yaml").is_file() else _unfinished(config)
    if run is None:
        name = Path(what).name.removesuffix(".yaml").removesuffix(".yml")
        return new_run_path(DEFAULT_RUNS, name or "run")
    path = Path(run)
    if RunFolder(path).exists() and not resume:
        raise user_error("holds a run already", place=str(path), remedy="--resume, or another --run")
    return path


def _unfinished(config: ExperimentConfig) -> Path | None:
    for folder in list_runs(DEFAULT_RUNS):
        if not folder.results() and folder.config() == config.dump():
            return folder.path
    return None


class Run:
    """A trained model with its task: ask it, measure it, look inside."""

    def __init__(self, path: str | Path, checkpoint: str = "best") -> None:
        self.folder = RunFolder.open(Path(path))
        self.path = self.folder.path
        self.config = validate(ExperimentConfig, self.folder.config())
        self.task = self.config.task.restore(self.folder.task_state(), self.config.seed)
        store = self.folder.checkpoints()
        self.checkpoint = store.find(checkpoint)
        try:
            tensors = store.load(self.checkpoint, ["model", "averaged"]).tensors
        except DamagedCheckpoint as damage:
            others = [name for name in reversed(store.names()) if name != self.checkpoint]
            raise user_error(
                f"the checkpoint is damaged: {damage}",
                place=str(self.path),
                remedy=f"--checkpoint {others[0]}" if others else "restore the folder from a copy",
            ) from None
        with torch.random.fork_rng(devices=[]):
            self.model = self.config.model.build(self.task.shape)
        try:
            self.model.load_state_dict(dict(tensors.get("averaged", tensors["model"])))
        except RuntimeError:
            raise user_error(
                f"does not describe the model of {self.checkpoint}",
                place=str(self.path / CONFIG),
                remedy="restore it from a copy of the run",
            ) from None
        self.model.to(choose_device(self.config.training.device)).eval()

    def evaluate(self, split: str = "test", overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What `evaluate --json` prints."""
        if split not in self.task.splits:
            raise user_error("no such split", place="split", value=split, allowed=sorted(self.task.splits))
        config = self.config.evaluation
        if overrides:
            config = self.config.with_overrides({"evaluation": unflatten(overrides)}).evaluation
        metrics = evaluate(self.model, self.task, split, config)
        examples = min(len(self.task.splits[split]), config.max_examples or math.inf)
        return {
            "run": str(self.path),
            "split": split,
            "examples": int(examples),
            "metrics": metrics,
            "protocol": {
                "checkpoint": self.checkpoint,
                "seed": self.config.seed,
                "config": self.config.fingerprint(),
                "data_sha256": self.folder.environment().get("data_sha256"),
                "decoding": config.decoding.dump(),
                "padding": "never counted",
            },
        }

    def predict(self, text: str, decoding: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """One element of what `predict --json` prints; what cannot be answered has an `error` instead."""
        empty: dict[str, Any] = {
            "input": text,
            "output": None,
            "probability": None,
            "error": None,
            "caution": None,
            "answers": [],
        }
        strategy = self.config.evaluation.decoding
        if decoding:
            strategy = validate(EvaluationConfig, {"decoding": dict(decoding)}).decoding
        try:
            tokens = self.task.parse(text)
            (answers,) = self.task.answer(self.model, [tokens], strategy)
        except Problem as problem:
            return empty | {"error": problem.problem}
        shown = [self._show(answer) for answer in answers]
        return empty | {
            "output": shown[0]["output"],
            "probability": shown[0]["probability"],
            "caution": self.task.caution(tokens.tolist()),
            "answers": shown,
        }

    def attention(
        self,
        text: str | None = None,
        *,
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        rows: tuple[int, int] | None = None,
        part: Place | None = None,
        is_untrained: bool = False,
    ) -> AttentionMaps:
        """The maps for an input as the model reads and answers it; without one, for the first test example.

        All layers, heads, rows (queries) and parts (`encoder`, `decoder`, `cross`) unless some are chosen.
        With `is_untrained`, those of the same model with its first weights: what training has not made.
        """
        tokens = self._first_example() if text is None else self.task.parse(text)
        model = Experiment(self.config, self.task).build_model() if is_untrained else self.model
        reading = read(model, self.task, tokens, self.config.evaluation.decoding)
        about = {
            "run": self.path.name,
            "checkpoint": "untrained" if is_untrained else self.checkpoint,
            "input": text or " ".join(self.task.input_symbols(tokens.tolist())),
            "output": "" if reading.answer is None else self._show(reading.answer)["output"],
        }
        return attention_maps(model, reading, Selection(layers, heads, rows, part), about)

    def _repr_html_(self) -> str:
        return self.folder._repr_html_()

    def _first_example(self) -> np.ndarray:
        examples = self.task.splits.get("test") or self.task.splits["validation"]
        return np.asarray(examples.inputs[0]).astype(np.int64)

    def _show(self, answer: Answer) -> dict[str, Any]:
        if answer.value is not None:
            return {"output": f"{answer.value:.6g}", "probability": None, "steps": []}
        symbols = self.task.output_symbols(answer.tokens)
        steps = [
            {"token": symbol, "probability": probability}
            for symbol, probability in zip(symbols, answer.probabilities, strict=False)
        ]
        output = self.task.show_output(answer.tokens)
        return {"output": output, "probability": answer.probability, "steps": steps}
