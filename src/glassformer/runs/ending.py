"""End of a training: why it ended, which checkpoint is best by which metric, and useful next commands."""

from __future__ import annotations

import contextlib
import math
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glassformer.core.errors import ErrorDetail, UserError
from glassformer.data.tokenizers import MASK, RESERVED
from glassformer.models.task_types import MaskedLM
from glassformer.runs.commands import command
from glassformer.runs.experiment import ExperimentConfig, presets
from glassformer.tasks.base import Seq2SeqTask, SequenceClassificationTask, Task, evaluated_rows
from glassformer.tasks.language import CausalLanguageTask
from glassformer.training.trainer import Trainer

LIMITS = ("max_steps", "max_epochs", "max_minutes")
MAX_TRIES = 20
"""Number of words from which a cut of a long input is tried to begin."""
EXAMINED = 50
"""Number of examples among which the input of the next commands is chosen."""
SHORT = 60
"""Number of characters above which an input is cut, if the model reads the cut input without a warning."""
SHORT_PROMPT = 40
"""The same number for the prompt of a language model."""
PROMPT_WORDS = 3
"""Number of words of a prompt. A language model returns a finished sentence as it is."""
MAX_CHARACTERS = 300
"""Maximum number of characters of an input in a command, for a model that reads only long inputs."""

FITTED = 0.9
"""Accuracy (or r_squared) on the training examples from which a model fits them."""
OVERFITTING_GAP = 0.1
"""Difference between the metrics on training and other examples from which a model overfits."""


def explain_end(trainer: Trainer, signal_name: str | None = None) -> str:
    """Return the reason why a training ended or stopped, with the values that decided it."""
    state, config = trainer.state, trainer.config
    metric = trainer.primary_metric(state.last_metrics)
    if state.ended == "target":
        times = config.stopping.consecutive
        validations = "1 validation" if times == 1 else f"{times} consecutive validations"
        value = f"{state.last_metrics[metric]:.4f} at step {state.step:,}"
        return f"validation {metric} reached the target {config.stopping.target:g} in {validations} ({value})"
    if state.ended == "patience":
        count = state.validations_without_best
        validations = "1 validation" if count == 1 else f"{count} validations"
        metric = trainer.selecting_metric(state.last_metrics)
        return f"validation {metric} did not improve in {validations} (training.stopping.patience)"
    if state.ended in LIMITS and getattr(config, state.ended) is None:
        return f"it had reached its limit (training.{state.ended}), which is no longer set"
    if state.ended == "max_steps":
        return f"the limit of {config.max_steps:,} steps is reached (training.max_steps)"
    if state.ended == "max_epochs":
        return f"the limit of {config.max_epochs:,} epochs is reached (training.max_epochs)"
    if state.ended == "max_minutes":
        return f"the limit of {config.max_minutes:g} minutes is reached (training.max_minutes)"
    return f"stopped by {signal_name}" if signal_name else "a stop was requested"


def train_longer(path: Path, trainer: Trainer) -> str:
    """Return the command that continues a training that has ended, with the option that lets it go on."""
    steps, reason = trainer.state.step, trainer.reason_to_end()
    epochs, minutes = max(1, trainer.state.epoch), math.ceil(trainer.state.elapsed / 60)
    options = {
        "max_steps": f"training.max_steps={2 * steps}",
        "max_epochs": f"training.max_epochs={2 * epochs}",
        "max_minutes": f"training.max_minutes={2 * minutes}",
        "target": "training.stopping.target=null",
        "patience": "training.stopping.patience=null",
    }
    return f"{resume_command(path)} {options[reason]}"


def show_metric(results: Mapping[str, Any]) -> str:
    """Return the primary metric on the test split, or on the validation split if there is no test."""
    split, metric = "test" if "test" in results["metrics"] else "validation", results["primary_metric"]
    return f"{split} {metric} {results['metrics'][split][metric]:.4f}"


def closing_lines(results: Mapping[str, Any]) -> list[str]:
    """Return the lines that end a training: reason to end, choice of the best checkpoint, baselines."""
    total = results["total_steps"]  # below the steps taken if a resumed run has a lower limit
    of = f" of {total:,}" if total and total >= results["steps"] else ""
    lines = [f"ended at step {results['steps']:,}{of}: {results['ended_because']}"]
    if results["uses_last"]:
        few = "there are too few validation examples to select one (training.small_data.min_validation)"
        lines.append(f"the last checkpoint is used: {few}")
    elif results["best_step"] is not None:
        metric, value = results["best_metric"], results["best_value"]
        lines.append(f"best checkpoint: step {results['best_step']:,}, by validation {metric} {value:.4f}")
    if "test" not in results["metrics"] and (note := selection_note(results, has_test=False)):
        lines.append(note)
    lines += [
        f"for comparison, {split} {describe_baselines(baselines)}"
        for split, baselines in results["baselines"].items()
        if baselines
    ]
    return lines


def selection_note(results: Mapping[str, Any], *, has_test: bool) -> str | None:
    """Return a note that validation chose the checkpoint and flatters it, or None if it chose nothing."""
    if results.get("uses_last") or results.get("best_step") is None:
        return None
    chosen = "the checkpoint was chosen on the validation examples, so their score is optimistic"
    if has_test:
        return f"{chosen}; --split test has others"
    return f"no test set: {chosen}; give one (for your own data: task.data.test=FILE)"


def describe_baselines(baselines: Mapping[str, Any]) -> str:
    """Return the metric of each baseline as text: `accuracy: 0.8000 a bag of words, …`."""
    if "train_mean" in baselines:
        return f"mean_absolute_error: {baselines['train_mean']:.4f} the mean of the training targets"
    if "most_frequent_label" in baselines:
        return f"accuracy: {baselines['most_frequent_label']:.4f} the most frequent label of train"
    parts = [f"{baselines['bag_of_words']:.4f} a bag of words"]
    majority, best = (baselines.get(name) for name in ("majority_label", "best_constant_label"))
    constant = (
        "the majority class" if majority is None else f"always {majority!r}, the majority class of train"
    )
    parts.append(f"{baselines['majority_class']:.4f} {constant}")
    if best != majority:
        parts.append(f"{baselines['best_constant']:.4f} always {best!r}, the most frequent class here")
    return f"accuracy: {'; '.join(parts)}"


def _best_constant(baselines: Mapping[str, Any]) -> tuple[float, str]:
    """Return the accuracy of the best constant prediction on a split, and its name."""
    label = baselines.get("best_constant_label")
    if label is None:  # in the results of an earlier version
        return baselines["majority_class"], "the majority class"
    return baselines["best_constant"], f"always {label!r}"


def baseline_warnings(results: Mapping[str, Any], task: Task, config: ExperimentConfig) -> list[str]:
    """Return a warning with advice if the model is not better than a constant or than a bag of words."""
    for split, baselines in results["baselines"].items():
        if not baselines:
            continue
        count = len(task.splits[split])
        if "train_mean" in baselines:
            warning = _regression_warning(results, split, count)
        elif "most_frequent_label" in baselines:
            warning = _tagger_warning(results, split, count)
        else:
            warning = _classification_warning(results, split, count)
        if warning is not None:
            advice = _advice(results, split, config)
            return [f"WARNING: {split} {warning}; what usually helps: {advice}"]
    return []


def _classification_warning(results: Mapping[str, Any], split: str, count: int) -> str | None:
    """Return what a classifier's accuracy does not exceed, or None if it exceeds both baselines."""
    accuracy, baselines = results["metrics"][split]["accuracy"], results["baselines"][split]
    (constant, name), bag_of_words = _best_constant(baselines), baselines["bag_of_words"]
    error = math.sqrt(accuracy * (1 - accuracy) / max(1, count))
    if accuracy - 2 * error <= constant < 1:
        warning = f"on {count:,} examples is not clearly better than {name} ({constant:.4f})"
    elif accuracy + error < bag_of_words:
        warning = "is below a bag of words on the same tokens"
    else:
        return None
    if bag_of_words > max(accuracy, constant):
        warning += f"; a linear model on word counts is better here (a bag of words has {bag_of_words:.4f})"
    return f"accuracy {accuracy:.4f} {warning}"


def _tagger_warning(results: Mapping[str, Any], split: str, count: int) -> str | None:
    """Return a comparison with the most frequent label, or None if the model is clearly better."""
    accuracy, baselines = results["metrics"][split]["accuracy"], results["baselines"][split]
    majority = baselines["most_frequent_label"]
    lowest, _ = results["intervals"][split].get("accuracy", (accuracy, accuracy))
    if lowest > majority or majority == 1:
        return None
    return (
        f"accuracy {accuracy:.4f} on {count:,} sequences is not clearly better than the most frequent label"
        f" for every token ({majority:.4f}); per_class in the details of evaluate has the F1 of each label"
    )


def _regression_warning(results: Mapping[str, Any], split: str, count: int) -> str | None:
    """Return a comparison with the mean of the training targets, or None if the model is clearly better."""
    metrics, constant = results["metrics"][split], results["baselines"][split]["train_mean"]
    error, r_squared = metrics["mean_absolute_error"], metrics.get("r_squared", 1.0)
    _, highest_error = results["intervals"][split].get("mean_absolute_error", (error, error))
    if r_squared > 0 and highest_error < constant:
        return None
    return (
        f"mean_absolute_error {error:.4f} (r_squared {r_squared:.4f}) on {count:,} examples is not clearly"
        f" better than the mean of the training targets ({constant:.4f}); a linear model may be"
    )


def _advice(results: Mapping[str, Any], split: str, config: ExperimentConfig) -> str:
    """Return options that usually improve the model.

    If the model does not fit its training examples either, they train more and regularise less. Otherwise
    they reduce overfitting, unless the last checkpoint was the best.
    """
    more = _longer(results)
    if _is_underfitted(results, split):
        fit = f"the model does not fit its training examples either ({_show_train(results)})"
        return f"{', '.join([*_less_regularisation(config), more])}; {fit}"
    if results["best_step"] == results["steps"] and not results["uses_last"]:
        return f"{more}, another learning rate, more data"
    fewer = "fewer model.num_layers, " if getattr(config.model, "num_layers", 1) > 1 else ""
    noise = " or task.unknown_fraction" if hasattr(config.task, "unknown_fraction") else ""
    return f"more data, more model.dropout{noise}, {fewer}a pre-trained start (training.start_from)"


def _longer(results: Mapping[str, Any]) -> str:
    """Return advice to train longer that names the limit which ended the training."""
    if results["ended"] == "max_steps":
        return f"more steps (training.max_steps={2 * results['steps']})"
    if results["ended"] == "max_minutes":
        return "more time (training.max_minutes)"
    return f"more epochs (training.max_epochs={2 * max(1, results['epochs'])})"


def _less_regularisation(config: ExperimentConfig) -> list[str]:
    """Return options that let the model fit its training examples, without those that it already has."""
    model = config.model
    return [
        option
        for option, is_useful in (
            ("model.dropout=0.1", getattr(model, "dropout", 0.0) > 0.1),
            ("model.stochastic_depth=0", getattr(model, "stochastic_depth", 0.0) > 0),
            ("model.num_layers=2", getattr(model, "num_layers", 2) < 2),
        )
        if is_useful
    ]


def _is_underfitted(results: Mapping[str, Any], split: str) -> bool:
    """Return True if the metric is low on the training examples, and hardly higher than on the split."""
    train, measured = results.get("train_metrics", {}), results["metrics"][split]
    name = "accuracy" if "accuracy" in train else "r_squared"
    if name not in train or name not in measured:
        return False
    return bool(train[name] < FITTED and train[name] - measured[name] < OVERFITTING_GAP)


def _show_train(results: Mapping[str, Any]) -> str:
    train = results["train_metrics"]
    name = "accuracy" if "accuracy" in train else "r_squared"
    return f"{name} {train[name]:.4f}"


def resume_command(path: Path) -> str:
    """Return the shortest command that resumes a run.

    The command writes a run as `./NAME` if NAME alone would mean a preset.
    """
    return command("train", f"./{path}" if str(path) in presets() else str(path), "--resume")


def next_commands(path: Path, task: Task) -> list[str]:
    """Return three commands to try on a trained run. They suit its task and use an input from its data."""
    measure, see = command("evaluate", str(path)), command("attention", str(path))
    text = example_input(task)
    if text is None:
        return [measure, f"{see} --out map.png", command("heads", str(path))]
    # Without an input, these commands use the first example of the test split.
    shown = f" {_quote(text)}" if len(text) <= SHORT else ""
    see += f"{shown} --out map.png"
    if isinstance(task, CausalLanguageTask):
        return [f"{command('generate', str(path))} {_quote(_prompt(task, text))}", see, measure]
    predict = f"{command('predict', str(path))} {_quote(text)}"
    if isinstance(task, SequenceClassificationTask):
        return [f"{predict} --why", measure, see]
    if isinstance(task, Seq2SeqTask):
        return [predict, f"{command('trace', str(path))}{shown}", see]
    return [predict, see, measure]


def example_input(task: Task) -> str | None:
    """Return a short input from the test or validation split as a user would type it, or None."""
    return next(iter(example_inputs(task, 1)), None)


def example_inputs(task: Task, count: int) -> list[str]:
    """Return up to `count` inputs from the test or validation split as a user would type them.

    These are the first inputs that are short and give no warning, or else the inputs that come closest.
    """
    split = "test" if "test" in task.splits else "validation"
    indices = range(min(len(task.splits[split]), EXAMINED))
    rows = evaluated_rows(task, split, indices)
    written = None
    with contextlib.suppress(OSError, UserError, ErrorDetail):  # a file may have gone since it was read
        written = task.input_texts(split, indices, rows)
    found: list[tuple[bool, bool, int, str]] = []
    for index in indices:
        try:
            text = _typed(task, task.show_input(rows[index].tolist()) if written is None else written[index])
            cut = _cut(task, text)
            is_doubtful = _has_warning(task, cut)
        except (ErrorDetail, UserError, NotImplementedError):  # not every input can be typed
            continue
        found.append((is_doubtful, cut != text, len(cut) if len(cut) > SHORT else 0, cut))
        if len({entry[3] for entry in found if not any(entry[:3])}) >= count:
            break
    best = dict.fromkeys(entry[3] for entry in sorted(found, key=lambda entry: entry[:3]))
    return [text for text in best if 0 < len(text) <= MAX_CHARACTERS][:count]


def _typed(task: Task, text: str) -> str:
    """Return an input on one line; raise ErrorDetail if it cannot be typed in a command."""
    if isinstance(task, CausalLanguageTask):
        lines = [line.strip() for line in text.split("\n")]
        whole = [line for line in lines[1:-1] if line]  # the first and the last line may be cut
        text = whole[0] if whole else text
    text = " ".join(text.split())
    if not text or text.startswith("-") or not text.isprintable():
        raise ErrorDetail("the input is empty, looks like an option, or cannot be typed", value=text)
    return text


def _cut(task: Task, text: str) -> str:
    """Return a short excerpt of a long input that gives no warning, or the whole input if there is none.

    The excerpt is as near to the beginning as possible and consists of whole sentences if possible. For a
    masked language model, it is the excerpt with the fewest masks.
    """
    width = SHORT_PROMPT if isinstance(task, CausalLanguageTask) else SHORT
    if len(text) <= width:
        return text
    readable = []
    for start in [0, *(match.end() for match in re.finditer(" ", text))][:MAX_TRIES]:
        words = text[start : start + width + 1]
        sentences = re.match(r".*[.!?](?= )", words)
        cut = sentences[0] if sentences else words.rpartition(" ")[0] or words[:width]
        with contextlib.suppress(ErrorDetail):
            if not _has_warning(task, cut):
                readable.append(cut)
        if readable and not isinstance(task.task_type, MaskedLM):
            break
    return min(readable, key=lambda cut: cut.count(RESERVED[MASK]), default=text)


def _prompt(task: Task, text: str) -> str:
    """Return the first words of a text to continue, or the whole text if they give a warning."""
    words = text.split()
    prompt = " ".join(words[: min(PROMPT_WORDS, max(1, len(words) - 1))])
    return text if _has_warning(task, prompt) else prompt


def _has_warning(task: Task, text: str) -> bool:
    return task.warning(task.parse(text).tolist(), text) is not None


def _quote(text: str) -> str:
    """Return a text quoted for a shell, in double quotes unless a character is special within them."""
    return shlex.quote(text) if re.search(r'["$`\\!]', text) else f'"{text}"'
