"""Model routes: replies equal the results of the Python interface."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient
from torch import nn

from glassformer.cli import main
from glassformer.runs.experiment import resolve
from glassformer.runs.run import Run
from glassformer.storage.files import finite
from glassformer.studio.app import Studio, create_app
from glassformer.studio.models import Cancelled, _examples
from glassformer.studio.runs import RunsFolder
from glassformer.tasks.base import mark_unknown
from glassformer.web.gate import Admission

from .conftest import ADDRESS, TOKEN

INPUT = "1 2 3 0 1 2"
PATIENCE_SECONDS = 60


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, (list, tuple)) else value


def ask(client: TestClient, what: str, **body: Any) -> dict[str, Any]:
    reply = client.post(f"/api/runs/tiny/{what}", json=body)
    assert reply.status_code == 200, reply.text
    document: dict[str, Any] = reply.json()
    return document


def test_trace(client: TestClient, runs: Path) -> None:
    document = ask(client, "trace", input=INPUT, alternatives=3)
    expected = finite(Run(runs / "tiny").trace(INPUT, alternatives=3).document())
    assert rounded({key: document[key] for key in expected}) == rounded(expected)
    assert document["attention"]["map"] == document["map"]
    assert client.get(f"/api/maps/{document['map']}/encoder/0/0").status_code == 200


def test_heads_are_measured_once(client: TestClient, runs: Path) -> None:
    assert client.get("/api/runs/tiny/heads?examples=8").status_code == 204
    document = ask(client, "heads", examples=8)
    assert document["examples"] == 8 and document["untrained"].keys() == document["sites"].keys()
    assert client.get("/api/runs/tiny/heads?examples=8").json() == document
    assert client.get("/api/runs/tiny/heads").status_code == 204


def test_what_carries_an_output(client: TestClient, runs: Path) -> None:
    run = Run(runs / "tiny")
    patched = ask(client, "patch", input=INPUT, sites=["*.residual_post"])
    expected = finite(run.patch(INPUT, sites=["*.residual_post"]).document())
    assert rounded({key: patched[key] for key in expected}) == rounded(expected)
    attributed = ask(client, "attribute", input=INPUT, matrix=False)
    expected = finite(run.attribute(INPUT).document())
    assert rounded({key: attributed[key] for key in expected}) == rounded(expected)
    assert "position" in client.get("/api/runs/tiny").json()["labels"]


@pytest.mark.parametrize("ablation", ["zero", "mean"])
def test_a_head_is_ablated(client: TestClient, runs: Path, ablation: str) -> None:
    target = {"kind": "head", "layer": 0, "head": 1, "ablation": ablation}
    document = ask(client, "intervene", **target, examples=8, input=INPUT)
    expected = Run(runs / "tiny").ablate_head("encoder", 0, 1, ablation, 8, text=INPUT).document()
    assert rounded({key: document[key] for key in expected}) == rounded(expected)
    assert document["trust"] == "cause" and document["output"]


def test_an_edge_cut_and_a_token_hidden(client: TestClient, runs: Path) -> None:
    document = ask(client, "intervene", kind="edge", input=INPUT, query=1, key=2, head=1)
    expected = Run(runs / "tiny").ablate_edge(INPUT, "encoder", 0, 1, 1, 2).document()
    assert rounded({key: document[key] for key in expected}) == rounded(expected)
    document = ask(client, "intervene", kind="token", input=INPUT, key=2, examples=8)
    expected = Run(runs / "tiny").occlude(INPUT, 2, 8).document()
    assert rounded({key: document[key] for key in expected}) == rounded(expected)


@pytest.mark.parametrize(
    ("what", "body"),
    [
        ("intervene", {"kind": "nothing"}),
        ("intervene", {"kind": "head", "layer": 9}),
        ("intervene", {"kind": "head", "site": "cross"}),
        ("intervene", {"kind": "edge", "input": INPUT, "query": 99}),
        ("intervene", {"kind": "token", "input": INPUT, "key": 99}),
        ("intervene", {"kind": "head", "examples": 10**9}),
        ("intervene", {"kind": "head", "ablation": "gently"}),
        ("patch", {"input": INPUT, "corrupted": "1 2"}),
        ("patch", {"input": INPUT, "sites": ["*.nothing"]}),
        ("attribute", {"input": INPUT, "method": "guess"}),
        ("attribute", {"input": INPUT, "output": 99}),
        ("align", {"input": INPUT}),
        ("probe", {"label": "nothing"}),
        ("trace", {"input": "x y z"}),
        ("trace", {"alternatives": 0}),
        ("trace", {"decoding": {"kind": "beam", "size": 10**9}}),
        ("trace", {"decoding": {"kind": "nothing"}}),
        ("attention", {"decoding": {"kind": ["a"]}}),
        ("attention", {"node": 3}),
        ("attention", {"layers": [9]}),
        ("attention", {"rows": [5]}),
        ("attention", {"rollout": True, "layers": [0]}),
        ("lens", {"input": "x y z"}),
        ("lens", {"alternatives": 10**9}),
        ("heads", {"examples": 0}),
        ("heads", {"checkpoint": "../../etc"}),
    ],
)
def test_an_impossible_request_is_refused(client: TestClient, what: str, body: dict[str, Any]) -> None:
    reply = client.post(f"/api/runs/tiny/{what}", json=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["message"]


def test_hints(client: TestClient, runs: Path) -> None:
    document = ask(client, "lens", input=INPUT, alternatives=3)
    expected = Run(runs / "tiny").logit_lens(INPUT, 3).document()
    assert rounded({key: document[key] for key in expected}) == rounded(expected)
    assert document["trust"] == "hint" and " --lens " in document["command"]
    rolled = ask(client, "attention", input=INPUT, rollout=True)
    assert rolled["about"]["trust"] == "hint" and " --rollout " in rolled["command"]
    weights = client.get(f"/api/maps/{rolled['map']}/encoder/0/0/rows?start=0&stop=6").content
    wanted = Run(runs / "tiny").rollout(INPUT)["encoder"].weights[0, 0]
    np.testing.assert_allclose(np.frombuffer(weights, "<f4").reshape(6, 6), wanted, atol=1e-6)


def test_commands_name_the_plug_ins(runs: Path, tmp_path: Path) -> None:
    """Pass the plug-ins on: a run that uses their kinds cannot be opened without them."""
    plugin = tmp_path / "my kinds.py"
    studio = Studio(RunsFolder(runs), [plugin])
    with TestClient(create_app(studio, Admission(TOKEN)), base_url=ADDRESS) as client:
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        bodies = {"attention": {}, "trace": {}, "lens": {}, "heads": {"examples": 4}}
        found = [ask(client, what, **body)["command"] for what, body in bodies.items()]
        found.append(ask(client, "intervene", kind="head", examples=4)["command"])
        found.append(client.get("/api/runs/tiny").json()["command"])
        found.append(client.get("/api/form?source=reversal").json()["command"])
        words = client.get("/api/studio").json()["plugin_words"]
    assert words == ["--plugin", str(plugin)]
    for command in found:
        assert shlex.join(words) in command
    studio.worker.stop()


def test_work_that_nobody_waits_for_ends_early(client: TestClient, studio: Studio) -> None:
    """Cancel a running job at the next call of a module."""
    part, has_begun, may_go_on, ended = nn.Identity(), Event(), Event(), []

    def work() -> None:
        has_begun.set()
        may_go_on.wait(PATIENCE_SECONDS)
        try:
            part(torch.zeros(1))
        except BaseException as error:
            ended.append(type(error))
            raise

    async def leave() -> None:
        waiting = asyncio.ensure_future(studio.worker.run(work, FakeRequest()))  # type: ignore[arg-type]
        while not has_begun.is_set():
            await asyncio.sleep(0.01)
        part(torch.zeros(1))  # a model in another thread continues
        waiting.cancel()
        await asyncio.wait([waiting])
        part(torch.zeros(1))
        may_go_on.set()

    class FakeRequest:
        async def receive(self) -> None:
            await asyncio.sleep(PATIENCE_SECONDS)

    assert client.portal is not None
    client.portal.call(leave)
    assert ask(client, "trace", input=INPUT)["outputs"]  # the next job runs
    assert ended == [Cancelled]


def test_a_film(client: TestClient, runs: Path) -> None:
    # A snapshot for the film and a checkpoint of the same step are listed once.
    kept = runs / "tiny" / "checkpoints"
    (newest,) = {path.name for path in kept.glob("step-*24")}
    shutil.copytree(kept / newest, kept / f"{newest}-snapshot")
    document = client.get("/api/runs/tiny/film").json()
    assert document["checkpoints"][-1] == {"name": newest, "step": 24}
    assert len({item["step"] for item in document["checkpoints"]}) == len(document["checkpoints"])
    assert [point[0] for point in document["loss"]] == list(range(1, 25))
    assert [item["step"] for item in document["checkpoints"]] == sorted(
        item["step"] for item in document["checkpoints"]
    )
    assert document["scores"] == []


@pytest.mark.parametrize(
    ("what", "body"),
    [
        ("trace", {"input": INPUT, "alternatives": 2}),
        ("heads", {"examples": 8, "checkpoint": "latest"}),
        ("intervene", {"kind": "head", "head": 1, "ablation": "zero", "examples": 8, "input": INPUT}),
        ("intervene", {"kind": "edge", "input": INPUT, "query": 1, "key": 4}),
        ("intervene", {"kind": "token", "input": INPUT, "key": 2, "examples": 8}),
        ("patch", {"input": INPUT, "sites": ["*.heads"], "noising": True}),
        ("attribute", {"input": INPUT, "output": 1, "method": "occlusion"}),
        ("probe", {"label": "position", "examples": 12}),
    ],
)
def test_the_command_gives_the_same(
    client: TestClient, what: str, body: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    document = ask(client, what, **body)
    program, *words = shlex.split(document["command"])
    capfd.readouterr()
    assert program == "glassformer" and main([words[0], "--json", *words[1:]]) == 0
    printed = json.loads(capfd.readouterr().out)
    shared = printed.keys() & document.keys()
    assert {"trust"} < shared
    assert rounded({key: printed[key] for key in shared}) == rounded({key: document[key] for key in shared})


def test_examples_are_texts_as_the_user_wrote_them(tmp_path: Path) -> None:
    lines = [f"Zebra{number} is VERY good\tyes\n" * 2 + f"a bad one {number}\tno\n" for number in range(40)]
    (tmp_path / "data.tsv").write_text("text\tlabel\n" + "".join(lines), encoding="utf-8")
    overrides = {"task.data.train": str(tmp_path / "data.tsv"), "task.tokenizer.kind": "words"}
    task = resolve("classification", overrides | {"task.tokenizer.vocabulary_size": 8}).task.build(0)
    texts = _examples(task)
    assert texts and all(re.fullmatch(r"Zebra\d+ is VERY good|a bad one \d+", text) for text in texts)
    marked = [text for part in texts for text, is_unknown in mark_unknown(task, part) if is_unknown]
    assert any(text.startswith("Zebra") or text.isdecimal() for text in marked)


def test_an_untrained_length_is_a_warning(client: TestClient) -> None:
    warning = "the model was trained on sequences of 6 tokens, not of 3"
    assert ask(client, "attention", input="1 2 3")["warning"] == warning
    assert ask(client, "trace", input="1 2 3")["warning"] == warning
    assert ask(client, "attention", input=INPUT)["warning"] is None


def test_statistics_are_explained_for_each_site(client: TestClient) -> None:
    explanations = client.get("/api/runs/tiny").json()["explanations"]
    assert list(explanations) in ([], ["encoder"])  # empty until the model is loaded


def test_sweeps_in_the_folder_are_counted(client: TestClient, runs: Path) -> None:
    assert client.get("/api/runs").json()["groups"] == []
    shutil.copytree(runs / "tiny", runs / "sweep-1" / "runs" / "trial-0")
    assert client.get("/api/runs").json()["groups"] == [{"name": "sweep-1", "runs": 1}]
