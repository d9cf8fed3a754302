"""`trace`, `heads`, `intervene` and `attention --node`, on an arithmetic model trained for a few steps."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassformer.cli import main
from glassformer.cli.intervene import excerpt, first_difference, show_difference
from glassformer.inspection.maps import AttentionMaps
from glassformer.runs.run import Run
from glassformer.runs.session import train

OPTIONS: dict[str, Any] = {
    "model.num_layers": 1,
    "model.num_heads": 2,
    "model.hidden_dim": 16,
    "model.feed_forward_dim": 16,
    "training.max_steps": 10,
    "training.max_epochs": None,
    "training.threads": 1,
}
BEAM = "kind=beam,size=3,n_best=2"


@pytest.fixture(scope="module")
def adding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adding")
    (folder / "adding.yaml").write_text("task: {kind: arithmetic, max_examples: 200}\n")
    train(str(folder / "adding.yaml"), OPTIONS, run=folder / "run")
    return folder / "run"


def ask(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(list(map(str, arguments)))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def document(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    code, out, _ = ask(capsys, *arguments, "--json")
    assert code == 0
    found = json.loads(out)
    assert isinstance(found, dict)
    return found


def test_a_trace_and_the_maps_of_its_branches(
    adding: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(capsys, "trace", adding, "4 + -11", "--decoding", BEAM)
    answers = [answer for answer in found["outputs"] if answer["is_returned"]]
    predicted = Run(adding).predict("4 + -11", {"kind": "beam", "size": 3, "n_best": 2})["candidates"]
    assert [answer["output"] for answer in answers] == [answer["output"] for answer in predicted]
    nodes = found["tree"]["nodes"]
    dropped = next(node for node in nodes if node["state"] == "dropped")
    out = tmp_path / "branch.npz"
    asked = ("attention", adding, "4 + -11", "--decoding", BEAM, "--out", out)
    chosen = document(capsys, *asked)
    assert chosen["node"] == f"{answers[0]['node']} (chosen)" and chosen["checks"]["passed"]
    other = document(capsys, *asked, "--node", dropped["id"])
    assert other["node"] == f"{dropped['id']} (dropped)" and "beam" in other["decoding"]
    maps = AttentionMaps.load(out)
    assert maps["cross"].queries[-1] == dropped["token"]
    assert len(maps["cross"].queries) == dropped["step"] + 1


def test_text_output(adding: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, expected in (
        (
            ("trace", adding, "1 + 2", "--decoding", "beam", "--lens"),
            ("chosen", "dropped", "logit lens (a hint)"),
        ),
        (("trace", adding, "1 + 2"), ("→", "p = ")),
        (("heads", adding, "--examples", 4, "--ablate", "zero"), ("same", "fact:", "cause:", "cross")),
        (
            ("intervene", adding, "1 + 2", "--edge", "cross:0:1:0:2"),
            ("before", "cause:", "by the correct output"),
        ),
        (("intervene", adding, "--head", "decoder:0:0", "--examples", 4), ("4 examples", "95 %")),
        (("intervene", adding, "1 + 2", "--token", 3), ("replaced by", "most frequent")),
        (
            ("attention", adding, "--rollout", "--out", tmp_path / "rollout.svg"),
            ("✓ each row", "rollout (a hint)"),
        ),
    ):
        code, out, err = ask(capsys, *arguments)
        assert code == 0 and not err
        assert all(words in out for words in expected), out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["trace", "RUN", "1 + 2", "--decoding", "beem"], "did you mean 'beam'?"),
        (["trace", "RUN", "1 + 2", "--decoding", "kind=beam,size=many"], "decoding.size"),
        (["trace", "RUN", "1 + 2", "--decoding", "kind=greedy,size=2"], "unknown option"),
        (["trace", "RUN", "1 + 2", "--alternatives", "0"], "alternatives: must be at least 1"),
        (["trace", "RUN", "1 ? 2"], "not one operation"),
        (["attention", "RUN", "1 + 2", "--node", "999"], "no such node"),
        (["attention", "RUN", "1 + 2", "--rollout", "--layers", "0"], "--rollout"),
        (["heads", "RUN", "--examples", "0"], "examples: must be at least 1"),
        (["heads", "RUN", "--split", "tset"], "did you mean 'test'?"),
        (["heads", "RUN", "--ablate", "zer"], "did you mean 'zero'?"),
        (["intervene", "RUN"], "--head --edge --token"),
        (["intervene", "RUN", "--head", "cross:0"], "--head encoder:0:0"),
        (["intervene", "RUN", "--head", "crss:0:0"], "did you mean 'cross'?"),
        (["intervene", "RUN", "--head", "cross:4:0"], "no such layer"),
        (["intervene", "RUN", "--edge", "cross:0:0:0:x"], "--edge encoder:0:0:2:3"),
        (["intervene", "RUN", "--edge", "0:0:2:1"], "--edge encoder:0:0:2:1"),
        (["intervene", "RUN", "--head", "encoder:1:0"], "the only layer is 0"),
        (["intervene", "RUN", "--edge", "cross:0:0:0:99"], "key: no such key"),
        (["intervene", "RUN", "--edge", "decoder:0:0:1:2"], "the edge is masked"),
        (["intervene", "RUN", "--token", "0"], "no replacement found"),
        (["intervene", "RUN", "--token", "99"], "no such token"),
    ],
)
def test_what_is_wrong_is_said_in_a_few_lines(
    arguments: list[str], expected: str, adding: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = ask(capsys, *[str(adding) if word == "RUN" else word for word in arguments])
    assert (code, out) == (2, "")
    assert expected in err and len(err.splitlines()) <= 5 and "Traceback" not in err


def test_a_model_that_does_not_generate_has_no_search_tree(
    trained_once: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (
        ("trace", trained_once, "1 2", "--decoding", "beam"),
        ("attention", trained_once, "1 2", "--node", 0),
    ):
        code, _, err = ask(capsys, *arguments)
        assert code == 2 and "does not generate" in err


def test_a_beam_of_the_run_is_what_its_own_decoding_says(adding: Path) -> None:
    run = Run(adding)
    own = run.attention("1 + 2")
    greedy = run.attention("1 + 2", decoding={"kind": "greedy"})
    np.testing.assert_array_equal(own["cross"].weights, greedy["cross"].weights)
    assert own.about["output"] == greedy.about["output"] == run.predict("1 + 2")["output"]


def test_heads_explains_every_column(adding: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ask(capsys, "heads", adding, "--examples", 4)
    assert code == 0
    found = document(capsys, "heads", adding, "--examples", 4)
    for site, statistics in found["sites"].items():
        for name in {*statistics["patterns"], "entropy", "distance", "value share"}:
            meaning = found["explanations"][site][name]
            assert any(
                line.startswith((f"{name}: ", f"{name} (")) and line.endswith(f": {meaning}")
                for line in out.splitlines()
            )
    assert "diagonal (encoder): share of attention that a token pays to itself" in out
    assert "diagonal (decoder): share of attention on the token generated just before" in out
    assert "diagonal (cross): share of attention of a generated token on the input token with the same" in out


def test_equal_replacements_of_a_token_are_one_line(adding: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("intervene", adding, "1 + 2", "--token", 1, "--examples", 40)
    others = document(capsys, *arguments)["output"]["others"]
    _, out, _ = ask(capsys, *arguments)
    lines = out[out.index("output by replacement") :].splitlines()[1:]
    rows = [line for line in lines if "→" in line and line.startswith("    ")]
    distinct = Counter((other["token"], other["output"]) for other in others)
    shown = [line for line in rows if "  →  " in line and "." not in line]
    (_, times), *_ = distinct.most_common(1)
    assert times > 1 and f"(×{times})" in shown[0] and len(shown) == min(len(distinct), 10)


def test_a_long_output_is_shown_around_its_first_difference() -> None:
    before = " ".join(str(number % 10) for number in range(100))
    after = " ".join("1" if number == 96 else str(number % 10) for number in range(100))
    at = first_difference(before, after)
    assert at == 96
    assert show_difference(before, after, at) == "differs at 96: 6 → 1"
    assert excerpt(before, at) == "… 8 9 0 1 2 3 4 5 6 7 8 9"
    assert excerpt(after, at) == "… 8 9 0 1 2 3 4 5 1 7 8 9"
    assert first_difference(before, before) is None
    assert show_difference("a b", "a", 1) == "differs at 1: b → (end)"


def test_the_outputs_of_a_token_are_counted(adding: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ask(capsys, "intervene", adding, "1 + 2", "--token", 3, "--examples", 40)
    assert code == 0
    assert re.search(r"output by replacement\n    \S+ +→  .*\(×\d+\)", out)
    assert "`" not in out and "others" not in out
