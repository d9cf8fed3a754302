"""What a model says when it is asked: a language model goes on, and a task warns where it knows better."""

from __future__ import annotations

import numpy as np

from glassformer.runs.experiment import Experiment, resolve


def test_a_language_model_goes_on_as_far_as_it_has_room() -> None:
    config = resolve(
        "counting-language-model", {"model.num_layers": 1, "model.hidden_dim": 8, "task.length": 10}
    )
    experiment = Experiment(config)
    model = experiment.build_model().eval()
    rows = [np.array([1, 2, 3]), np.array([4, 5, 6, 7, 8])]
    together = experiment.task.predict(model, rows)
    assert [len(answers[0].tokens) for answers in together] == [7, 5]
    for row, answers in zip(rows, together, strict=True):
        (alone,) = experiment.task.predict(model, [row])
        assert alone[0].tokens == answers[0].tokens


def test_another_length_than_the_one_learned_is_told() -> None:
    task = Experiment(resolve("reversal", {"task.length": 16})).task
    assert task.caution([1] * 16) is None
    assert "16" in (task.caution([1] * 5) or "")
