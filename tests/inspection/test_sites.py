"""Named sites: recording changes no result, replacement is exact, names are the same in all task types."""

import pytest
import torch
from torch import Tensor

import glassformer as gf
from glassformer.core.errors import ErrorDetail
from glassformer.inspection import sites as module
from glassformer.inspection.sites import sites

TYPES = {
    "tokens": gf.TokenClassification(vocabulary=20, max_length=12, classes=5),
    "sequence": gf.SequenceClassification(vocabulary=20, max_length=12, outputs=3),
    "causal": gf.CausalLM(vocabulary=20, max_length=12),
    "masked": gf.MaskedLM(vocabulary=20, max_length=12),
    "seq2seq": gf.Seq2Seq(vocabulary=20, max_length=12, target_vocabulary=20, max_target_length=9),
}
BLOCK = ["residual_pre", "scores", "weights", "heads", "attention", "residual_mid", "feed_forward"]


def build(name: str, **options: object) -> gf.Transformer:
    torch.manual_seed(0)
    return gf.Transformer(
        TYPES[name], num_layers=2, num_heads=4, hidden_dim=16, feed_forward_dim=32, dropout=0.2, **options
    )


def inputs(name: str, batch: int = 3) -> dict[str, Tensor]:
    torch.manual_seed(1)
    found = {"tokens": torch.randint(0, 20, (batch, 7))}
    found["mask"] = torch.arange(7)[None] < torch.tensor([7, 5, 6])[:batch, None]
    if name == "seq2seq":
        found["target"] = torch.randint(0, 20, (batch, 5))
    return found


@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("name", TYPES)
def test_recording_every_site_changes_no_result(name: str, placement: str) -> None:
    model = build(name, norm_placement=placement, position="rotary").eval()
    before = model(**inputs(name))
    with gf.record(model, sites=["*"]) as tape:
        after = model(**inputs(name))
    torch.testing.assert_close(after, before, rtol=0, atol=1e-5)
    assert list(tape.states) == [site for site in sites(model) if site in tape.states]
    assert all(len(states) == 1 for states in tape.states.values())
    torch.testing.assert_close(tape["logits"], after)
    torch.testing.assert_close(model(**inputs(name)), before, rtol=0, atol=0)  # everything is restored


@pytest.mark.parametrize("name", TYPES)
def test_names_are_the_same_in_all_task_types(name: str) -> None:
    names = list(sites(build(name)))
    for stack in ["encoder", "decoder"] if name == "seq2seq" else ["encoder"]:
        for part in [*BLOCK, "residual_post"]:
            assert f"{stack}.1.{part}" in names
        assert f"{stack}.embedding" in names and f"{stack}.output" in names
    assert ("decoder.0.cross_heads" in names) == (name == "seq2seq")
    assert ("pooled" in names) == (name == "sequence")
    assert names[-1] == "logits"


def test_the_residual_stream_is_the_sum_of_its_parts() -> None:
    model = build("seq2seq", norm_placement="pre").eval()
    with gf.record(model, sites=["*"]) as tape:
        model(**inputs("seq2seq"))
    for layer in range(2):
        parts = [tape[f"decoder.{layer}.{part}"] for part in ("attention", "cross_attention", "feed_forward")]
        total = tape[f"decoder.{layer}.residual_pre"] + sum(parts)
        torch.testing.assert_close(tape[f"decoder.{layer}.residual_post"], total)
    torch.testing.assert_close(tape["decoder.0.residual_pre"], tape["decoder.embedding"])
    torch.testing.assert_close(tape["decoder.0.residual_post"], tape["decoder.1.residual_pre"])
    torch.testing.assert_close(tape["decoder.0.cross_weights"].sum(-1), torch.ones(3, 4, 5))


@pytest.mark.parametrize("name", TYPES)
def test_replacing_a_site_by_itself_changes_nothing_and_by_another_input_gives_its_output(name: str) -> None:
    model = build(name).eval()
    clean, other = inputs(name), {**inputs(name), "tokens": inputs(name)["tokens"].flip(1)}
    with gf.record(model, sites=["*"]) as tape:
        expected = model(**clean)
    for site in tape.states:
        with gf.replace(model, {site: tape[site]}):
            torch.testing.assert_close(model(**clean), expected, rtol=0, atol=1e-5)
    last = "decoder" if name == "seq2seq" else "encoder"
    with gf.replace(model, {f"{last}.output": tape[f"{last}.output"]}):
        torch.testing.assert_close(model(**other), expected, rtol=0, atol=1e-5)


def test_replacements_nest_and_are_seen_by_the_recorder() -> None:
    model = build("causal").eval()
    zero = {"encoder.0.weights": lambda weights: torch.zeros_like(weights)}
    with gf.replace(model, zero), gf.record(model, sites=["encoder.0.heads", "encoder.0.scores"]) as tape:
        model(**inputs("causal"))
    assert not tape["encoder.0.heads"].any() and tape["encoder.0.scores"].any()


def test_the_graph_is_kept_on_request() -> None:
    model = build("sequence")
    with gf.record(model, sites=["encoder.0.residual_post"], keeps_graph=True) as tape:
        logits = model(**inputs("sequence"))
    (gradient,) = torch.autograd.grad(logits[:, 0].sum(), tape["encoder.0.residual_post"])
    assert gradient.abs().sum() > 0
    with gf.record(model, sites=["encoder.0.residual_post"]) as tape:
        model(**inputs("sequence"))
    assert not tape["encoder.0.residual_post"].requires_grad


def test_wrong_names_and_shapes_are_explained() -> None:
    model = build("causal").eval()
    with pytest.raises(ErrorDetail, match="no such site"), gf.record(model, sites=["encoder.7.heads"]):
        pass
    with (
        pytest.raises(ErrorDetail, match=r"has the shape \(3, 7, 16\)"),
        gf.replace(model, {"encoder.0.attention": torch.zeros(3, 5, 16)}),
    ):
        model(**inputs("causal"))
    with pytest.raises(ErrorDetail, match="expected a tensor"), gf.replace(model, {"logits": 3}):  # type: ignore[dict-item]
        pass
    with pytest.raises(ErrorDetail, match="no blocks"):
        sites(torch.nn.Linear(3, 3))
    with gf.record(model, sites=["logits"]) as tape:
        model(**inputs("causal"))
        model(**inputs("causal"))
    with pytest.raises(ErrorDetail, match="more than once"):
        tape["logits"]


def test_tensors_that_do_not_fit_into_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MEMORY_STEP", 1)
    monkeypatch.setattr(module, "available_memory", lambda: 4000)
    model = build("causal").eval()
    with (
        pytest.raises(ErrorDetail, match="GiB of memory"),
        gf.record(model, sites=["encoder.*.residual_*"]),
    ):
        model(**inputs("causal"))
