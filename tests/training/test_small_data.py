"""Rules that fit batches, epochs and warm-up to little data."""

import numpy as np
import pytest

from glassformer.runs.experiment import Experiment, resolve
from glassformer.training.config import TrainingConfig
from glassformer.training.optimizers import WarmupCosineConfig
from glassformer.training.small_data import SmallDataConfig, describe_changes, fit_to_data

RULES = SmallDataConfig(min_batches=20, min_steps=400, max_warmup=0.1)


def fit(config: TrainingConfig, examples: int, length: int = 10) -> TrainingConfig:
    return fit_to_data(config, np.full(examples, length), drop_last=False)


def test_few_examples_get_smaller_batches_more_epochs_and_a_shorter_warmup() -> None:
    given = TrainingConfig(
        batch_tokens=3072, max_epochs=5, schedule=WarmupCosineConfig(warmup_steps=200), small_data=RULES
    )
    fitted = fit(given, 300)
    assert fitted.batch_tokens == 96  # nine sequences of ten tokens: 34 batches
    assert fitted.max_epochs == 12  # 12 × 34 = 408 steps
    assert fitted.schedule.warmup_steps == 41
    line = describe_changes(given, fitted, 300)
    assert line is not None
    for part in ("300", "batch_tokens=96 (not 3072)", "max_epochs=12 (not 5)", "warmup_steps=41 (not 200)"):
        assert part in line


def test_few_steps_are_named_as_the_cause_of_a_short_warmup() -> None:
    warmup = WarmupCosineConfig(warmup_steps=200)
    given = TrainingConfig(batch_size=128, max_steps=150, max_epochs=None, schedule=warmup, small_data=RULES)
    line = describe_changes(given, fit(given, 40_000), 40_000)
    assert line is not None and "40,000" not in line
    assert line.startswith("150 steps are few: training uses schedule.warmup_steps=15 (not 200);")
    line = describe_changes(given, fit(given, 300), 300)
    assert line is not None and line.startswith("300 training examples are few: training uses batch_size=")
    assert "150 steps are few: training uses schedule.warmup_steps=15" in line


def test_enough_data_change_nothing() -> None:
    given = TrainingConfig(
        batch_tokens=3072, max_epochs=5, schedule=WarmupCosineConfig(warmup_steps=40), small_data=RULES
    )
    fitted = fit(given, 100_000)
    assert fitted == given
    assert describe_changes(given, fitted, 100_000) is None


def test_a_batch_keeps_at_least_eight_sequences() -> None:
    assert fit(TrainingConfig(batch_size=128, small_data=RULES), 10).batch_size == 8
    assert fit(TrainingConfig(batch_tokens=2048, small_data=RULES), 10, length=100).batch_tokens == 1024


def test_a_config_that_states_its_options_stays_as_it_is() -> None:
    written = {"batch_size": 128, "max_epochs": 2, "schedule": {"kind": "constant", "warmup_steps": 100}}
    given = TrainingConfig.model_validate(written)
    assert set(given.small_data.dump().values()) == {None}
    assert fit(given, 3) == given


@pytest.mark.parametrize(
    ("override", "rule"),
    [
        ("training.batch_size=64", "min_batches"),
        ("training.batch_tokens=64", "min_batches"),
        ("training.max_epochs=2", "min_steps"),
        ("training.max_steps=20", "min_steps"),
        ("training.schedule.warmup_steps=7", "max_warmup"),
        ("training.best_by=loss", "min_validation"),
        ("training.stopping.patience=3", "min_validation"),
    ],
)
def test_an_option_that_the_user_sets_is_not_changed(override: str, rule: str) -> None:
    own_data = "task.data.train=mine.csv"
    assert getattr(resolve("classification", [own_data]).training.small_data, rule) is not None
    rules = resolve("classification", [own_data, override]).training.small_data
    assert getattr(rules, rule) is None
    assert sum(value is None for value in rules.dump().values()) == 1


def test_a_rule_that_the_user_sets_wins() -> None:
    overrides = ["training.max_epochs=2", "training.small_data.min_steps=50"]
    assert resolve("classification", overrides).training.small_data.min_steps == 50


def test_a_limit_on_steps_replaces_the_preset_s_limit_on_epochs() -> None:
    assert resolve("classification", ["training.max_steps=60"]).training.max_epochs is None
    assert resolve("reversal", ["training.max_epochs=2"]).training.max_steps is None
    both = resolve("classification", ["training.max_steps=60", "training.max_epochs=3"]).training
    assert (both.max_steps, both.max_epochs) == (60, 3)


TEXT_PRESETS = ("classification", "translation", "language-model", "masked-language-model")


@pytest.mark.parametrize("preset", TEXT_PRESETS)
def test_text_presets_fit_their_schedule_to_a_small_file(preset: str, tmp_path) -> None:
    file = tmp_path / "few.tsv"
    words = ["red", "green", "blue", "grey"]
    rows = [f"a {words[i % 4]} house number {i}\tle {words[i % 3]} {i % 2}" for i in range(120)]
    if preset == "classification":
        rows = [f"a {words[i % 4]} house number {i}\t{i % 2}" for i in range(120)]
    if "language-model" in preset:
        file = tmp_path / "few.txt"
        rows = [row.partition("\t")[0] for row in rows]
    file.write_text("\n".join(rows) + "\n")
    config = resolve(preset, {"task.data.train": str(file)})
    experiment = Experiment(config)
    fitted = experiment.fitted_training()
    trainer = experiment.build_trainer()
    assert trainer.total_steps is not None
    assert trainer.total_steps >= (config.training.small_data.min_steps or 10**9)
    assert fitted.schedule.warmup_steps <= 0.2 * trainer.total_steps + 1
    assert "are few" in experiment.notes[-1]


@pytest.mark.parametrize("preset", TEXT_PRESETS)
def test_the_schedule_of_a_preset_on_its_own_data_stays(preset: str) -> None:
    experiment = Experiment(resolve(preset))
    assert experiment.fitted_training() == experiment.config.training
