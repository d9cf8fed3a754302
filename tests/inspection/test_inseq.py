"""Attributions of an encoder-decoder beside inseq, on an exported model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from glassformer.inspection.contrast import Contrast
from glassformer.inspection.gradients import Method, Question, _Path
from glassformer.interchange.export import ExportSource
from glassformer.interchange.huggingface_export import HuggingFaceTarget
from glassformer.runs.run import Run
from glassformer.tasks.base import Seq2SeqTask

from ..interchange.small_runs import random_run

pytestmark = pytest.mark.thorough

PAIRS = {
    "task.kind": "translation",
    "task.examples": 300,
    "task.max_length": 40,
    "task.tokenizer.kind": "bpe",
    "task.tokenizer.vocabulary_size": 400,
}
MODELS: dict[str, dict[str, Any]] = {
    "MarianMTModel": {"model.norm_placement": "post"},
    "PegasusForConditionalGeneration": {},
    "BlenderbotForConditionalGeneration": {"model.position.kind": "learned"},
}
METHODS: dict[Method, tuple[str, dict[str, Any]]] = {
    "gradient-input": ("input_x_gradient", {}),
    "integrated-gradients": ("integrated_gradients", {"n_steps": 64, "include_eos_baseline": True}),
}
STEPS = 6
"""Number of output tokens that are attributed; the last of them is in the middle of the sentence."""


@pytest.fixture(scope="module", params=MODELS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Any]:
    """Return a run with random, sharp weights, and its export in inseq.

    The unknown token, of which inseq makes its baseline, gets a zero vector, which is our baseline.
    """
    inseq = pytest.importorskip("inseq", reason="pip install inseq, which needs an environment of its own")
    run = random_run({**PAIRS, **MODELS[request.param]})
    folder = tmp_path_factory.mktemp("inseq")
    unknown = next(token for token in range(run.task.task_type.num_outputs) if run.task.is_unknown(token))
    with torch.no_grad():
        for parameter in run.model.parameters():
            if parameter.ndim > 1:
                parameter *= 1.5
        run.model.embedding.input_net().table.weight[unknown] = 0  # type: ignore[union-attr, operator]
    HuggingFaceTarget().write(ExportSource.of(run), folder)
    loaded = inseq.load_model(str(folder), "input_x_gradient", device="cpu")
    assert type(loaded.model).__name__ == request.param
    assert loaded.tokenizer.unk_token_id == unknown
    # inseq passes scaled embeddings; the decoders of transformers would scale them a second time.
    loaded.model.get_decoder().embed_scale = 1.0
    return run, loaded


@pytest.mark.parametrize("method", METHODS)
def test_attributions_of_each_output_token_equal_those_of_inseq(
    pair: tuple[Run, Any], method: Method
) -> None:
    """The target is the logit of one token, the baseline a zero vector, and the path has 64 nodes.

    inseq's defaults differ: it attributes the probability, from the unknown token, and shows the norm of the
    values of an embedding. Here its values are summed, as ours are.
    """
    run, loaded = pair
    task = run.task
    assert isinstance(task, Seq2SeqTask)
    examples = task.splits["test"]
    tokens = np.asarray(examples.inputs[0]).astype(np.int64)
    target = [int(token) for token in examples.targets[0]]
    texts = [loaded.tokenizer.decode(ids, skip_special_tokens=True) for ids in (tokens, target)]
    name, options = METHODS[method]
    found = loaded.attribute(
        *texts, method=name, attributed_fn="logit", attr_pos_end=STEPS, show_progress=False, **options
    ).sequence_attributions[0]
    assert [token.id for token in found.source] == tokens.tolist()
    assert [token.id for token in found.target[: STEPS + 1]] == target[: STEPS + 1]
    theirs = found.source_attributions.sum(-1).numpy()
    assert theirs.shape == (len(tokens), STEPS) and np.abs(theirs).max() > 0.1
    inputs = {"tokens": torch.from_numpy(tokens)[None], "target": torch.tensor([target[:STEPS]])}
    ours = []
    for step in range(STEPS):
        contrast = Contrast(step, target[step + 1], None, "logit")
        path = _Path(run.model, Question(inputs, contrast, []))
        ours.append(path.values(method))
    np.testing.assert_allclose(np.stack(ours, 1), theirs, rtol=1e-5, atol=1e-5)
