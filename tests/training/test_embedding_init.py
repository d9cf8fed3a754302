"""Co-occurrence initialisation of embeddings in a model, and exact resume with it."""

from pathlib import Path

import pytest
import torch

from glassformer.runs.experiment import Experiment, resolve
from glassformer.runs.session import train

SMALL = {
    "task.examples": 200,
    "model.num_layers": 1,
    "model.hidden_dim": 16,
    "model.num_heads": 2,
    "training.max_steps": 2,
    "training.schedule": {"kind": "constant"},
    "training.validation_examples": 20,
}
NEIGHBOURS = {"training.embedding_init.kind": "co-occurrence"}


def embedding_init(preset: str, changes: dict[str, object]) -> torch.Tensor:
    trainer = Experiment(resolve(preset, {**SMALL, **changes})).build_trainer()
    vectors_VD = trainer.model.token_embedding()
    assert vectors_VD is not None
    return vectors_VD.detach()


@pytest.mark.parametrize(
    "preset", ["language-model", "masked-language-model", "classification", "translation"]
)
def test_vectors_of_tokens_that_occur_are_replaced_at_their_usual_length(preset: str) -> None:
    random, replaced = embedding_init(preset, {}), embedding_init(preset, NEIGHBOURS)
    assert not torch.equal(random, replaced)
    usual = float(random.norm(dim=1).mean())
    is_new = (random != replaced).any(1)
    torch.testing.assert_close(replaced[is_new].norm(dim=1), torch.full((int(is_new.sum()),), usual))


@pytest.mark.parametrize("preset", ["language-model", "classification"])
def test_a_fraction_of_the_dimensions_is_from_whole_texts(preset: str) -> None:
    near = embedding_init(preset, NEIGHBOURS)
    both = embedding_init(preset, {**NEIGHBOURS, "training.embedding_init.document_fraction": 0.25})
    same_text = embedding_init(preset, {**NEIGHBOURS, "training.embedding_init.document_fraction": 1.0})
    is_new = (both != near).any(1)
    share = both[is_new, 12:].square().sum() / both[is_new].square().sum()
    assert 0.2 < share < 0.3
    assert not torch.allclose(same_text[is_new], near[is_new], atol=1e-3)


def test_the_same_texts_give_the_same_vectors_whatever_the_seed() -> None:
    one, two = (embedding_init("language-model", {**NEIGHBOURS, "seed": seed}) for seed in (0, 1))
    cosines = torch.nn.functional.cosine_similarity(one, two, dim=1)
    assert (cosines > 1 - 1e-5).float().mean() > 0.9


def test_a_resumed_run_is_not_initialised_again(tmp_path: Path) -> None:
    options = {**SMALL, **NEIGHBOURS}
    train("language-model", options, run=tmp_path / "run")
    resumed = train("language-model", {**options, "training.max_steps": 4}, run=tmp_path / "run", resume=True)
    whole = train("language-model", {**options, "training.max_steps": 4}, run=tmp_path / "whole")
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name]), name


def test_no_step_keeps_the_initial_weights(tmp_path: Path) -> None:
    options = {**SMALL, **NEIGHBOURS, "training.max_steps": 0}
    run = train("language-model", options, run=tmp_path / "run")
    assert run.folder.results()["steps"] == 0
    kept = run.model.token_embedding()
    assert kept is not None
    assert torch.equal(kept, embedding_init("language-model", NEIGHBOURS))
