"""Word alignment: the error rate by hand, gold links from the grammar, and links of known attention."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import glassformer as gf
from glassformer.cli import main
from glassformer.core.errors import UserError
from glassformer.datasets.grammar.analysis import Analysis, first_analyses
from glassformer.inspection.alignment import (
    Aligned,
    AlignmentHead,
    GoldPairs,
    align_split,
    alignment_error_rate,
    best_head,
    check_aligns,
    diagonal_links,
    read_gold,
    read_pairs,
)
from glassformer.runs.run import Run
from glassformer.tasks.base import GoldLinks, Link, Seq2SeqTask, Word

from .conftest import experiment
from .test_patching import sharpened

ARITHMETIC = {"kind": "arithmetic", "max_examples": 60}
GERMAN = GoldLinks({(0, 0), (1, 2)}, {(0, 0), (1, 2), (2, 1), (2, 2)})


def test_the_error_rate_counted_by_hand() -> None:
    """|A∩S| = 1, |A∩P| = 2, |A| = 3, |S| = 2: 1 − 3/5. Two pairs add up their counts."""
    links: list[Link] = [(0, 0), (2, 1), (1, 1)]
    assert alignment_error_rate([(links, GERMAN)]) == pytest.approx(0.4)
    assert alignment_error_rate([(sorted(GERMAN.sure), GERMAN)]) == 0
    assert alignment_error_rate([([], GERMAN)]) == 1
    assert alignment_error_rate(
        [(links, GERMAN), ([(0, 0)], GoldLinks({(0, 0)}, {(0, 0)}))]
    ) == pytest.approx(1 - 5 / 7)


def test_links_of_known_attention_join_subwords() -> None:
    """Three source words of 1, 2 and 1 tokens, and the end token; each target token reads one token."""
    source = [Word("le", [0]), Word("chat", [1, 2]), Word("dort", [3])]
    target = [Word("the", [0]), Word("cat", [1, 2]), Word("sleeps", [3])]
    weights = np.eye(5)[[0, 2, 3, 4, 4]] * 0.9 + 0.02
    aligned = Aligned(source, target, {"attention": weights[None, None]})
    pair = aligned.pair(AlignmentHead(0, 0, "attention", "request"))
    assert pair.links == [(0, 0), (1, 1), (2, 1)]  # `cat` reads a piece of `chat`, and `dort`
    assert pair.weights[1, 1] == pytest.approx(0.92) and pair.weights[2, 2] == pytest.approx(0.02)


def test_reversal_seen_as_translation_has_no_error() -> None:
    """Weights on the anti-diagonal give the links of a reversal; uniform ones do not."""
    length = 6
    words = [Word(str(number), [number]) for number in range(length)]
    gold = GoldLinks(*2 * [{(length - 1 - row, row) for row in range(length)}])
    weights = np.stack([np.full((length, length), 1 / length), np.eye(length)[::-1]])[None]
    aligned = Aligned(words, words, {"attention": weights})
    head, rows = best_head([aligned], [gold])
    assert (head.layer, head.head, head.chosen_by) == (0, 1, "error rate") and rows is not None
    assert [row["aer"] for row in rows] == [pytest.approx(1 - 2 / 12), 0]
    assert best_head([aligned], [None])[0] == AlignmentHead(0, 1, "attention", "coverage")
    assert alignment_error_rate([(diagonal_links(length, length), gold)]) == 1


def test_weights_are_those_of_one_pass_without_padding() -> None:
    built = experiment({"kind": "translation", "examples": 200, "max_length": 60})
    task, model = built.task, sharpened(built, 1.5)
    assert isinstance(task, Seq2SeqTask)
    pairs = GoldPairs.of(task, "test", 8)
    together = read_pairs(model, task, pairs.sources, pairs.targets)
    for index, one in enumerate(together):
        (alone,) = read_pairs(model, task, pairs.sources[index : index + 1], pairs.targets[index : index + 1])
        target = torch.tensor([[task.begin, *pairs.targets[index]]])
        with gf.record(model) as tape, torch.no_grad():
            model(tokens=torch.from_numpy(pairs.sources[index])[None], target=target)
        maps = torch.stack([layer[0] for layer in tape.attention["cross"]]).double().numpy()
        expected = maps[:, :, :-1]  # the last row predicts the end token
        np.testing.assert_allclose(one.weights["attention"], expected, atol=1e-5)
        for name, weights in alone.weights.items():
            np.testing.assert_allclose(one.weights[name], weights, atol=1e-5)
            np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)


def test_words_of_tokens_are_the_words_of_the_gold_links() -> None:
    task = experiment({"kind": "translation", "examples": 200, "max_length": 60}).task
    assert isinstance(task, Seq2SeqTask)
    indices = list(range(len(task.splits["test"].inputs)))
    gold = task.gold_links("test", indices)
    assert gold is not None
    for index, links in zip(indices, gold, strict=True):
        source = task.source_words(task.splits["test"].inputs[index].tolist())
        target = task.target_words(task.splits["test"].targets[index][1:-1].tolist())
        assert links.sure <= links.possible and links.sure
        assert max(one for one, _ in links.possible) < len(source)
        assert max(other for _, other in links.possible) < len(target)
        # Names are spelt the same in both languages, and are linked to themselves.
        for one, other in links.sure:
            if source[one].text in ("Marie", "Paul", "Pierre", "Alice"):
                assert target[other].text == source[one].text
        tokens = [token for word in source for token in word.tokens]
        assert sorted(set(tokens)) == list(range(len(task.splits["test"].inputs[index]) - 1))


def linked(analysis: Analysis, links: set[Link]) -> set[str]:
    source = [analysis.source[word.start : word.end] for word in analysis.source_words]
    target = [analysis.target[word.start : word.end] for word in analysis.target_words]
    return {f"{source[one]}-{target[other]}" for one, other in links}


def test_gold_links_of_the_grammar() -> None:
    found = {analysis.source: analysis for analysis in first_analyses(400, 6, "train")}
    one = found["The chair is heavier than the table."]
    sure, possible = one.links()
    assert one.target == "La chaise est plus lourde que la table."
    expected = {
        "The-La",
        "chair-chaise",
        "is-est",
        "heavier-lourde",
        "than-que",
        "the-la",
        "table-table",
        ".-.",
    }
    assert linked(one, sure) == expected
    assert linked(one, possible - sure) == {"heavier-plus"}
    features = {one.source[word.start : word.end]: (word.gender, word.number) for word in one.source_words}
    assert features["chair"] == ("feminine", "singular") and features["is"] == (None, None)
    for analysis in found.values():
        sure, possible = analysis.links()
        linked_words = {row for row, _ in possible}
        # Nearly every English word has a counterpart.
        assert len(linked_words) >= len(analysis.source_words) - 2, analysis.source


def test_gold_links_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "links.txt"
    path.write_text("0-0 1-2 2?1 2?2\n\n")
    assert read_gold(path) == [GERMAN, GoldLinks(set(), set())]
    path.write_text("0-0\n0:1\n")
    with pytest.raises(UserError, match=r"links.txt:2: not a link"):
        read_gold(path)
    with pytest.raises(UserError, match="cannot be read"):
        read_gold(tmp_path / "missing.txt")


def test_a_split_is_measured_beside_controls() -> None:
    built = experiment({"kind": "translation", "examples": 200, "max_length": 60})
    assert isinstance(built.task, Seq2SeqTask)
    model = sharpened(built)
    found = align_split(model, built.build_model().eval(), built.task, "test", 10)
    assert found.aer is not None and found.interval is not None and found.untrained_aer is not None
    assert 0.5 < found.untrained_aer <= 1 and found.interval[0] <= found.aer <= found.interval[1]
    assert found.by_head is not None and len(found.by_head) == 2 * 2 * 2 and found.skipped == 0
    document = json.loads(json.dumps(found.document()))
    assert {"links", "aer", "untrained_aer", "layer", "head"} <= set(document)


def test_models_without_cross_attention_are_refused() -> None:
    with pytest.raises(UserError, match="only an encoder-decoder"):
        check_aligns(experiment({"kind": "reversal", "length": 5, "categories": 4}).task)


@pytest.fixture(scope="module")
def arithmetic_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "arithmetic"
    small = {"model.num_layers": 1, "model.hidden_dim": 16, "model.feed_forward_dim": 16}
    run = gf.train("arithmetic", {"task.max_examples": 60, "training.max_steps": 2, **small}, run=str(folder))
    return run.path


def test_the_verb(arithmetic_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for suffix in ("csv", "json", "png", "svg"):
        out = tmp_path / f"links.{suffix}"
        assert main(["align", str(arithmetic_run), "27 - 35", "--out", str(out), "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["chosen_by"] == "coverage" and document["aer"] is None and out.stat().st_size > 50
    gold = tmp_path / "gold.txt"
    gold.write_text("3-2 7-2\n" * 4)
    assert main(["align", str(arithmetic_run), "--gold", str(gold), "--examples", "4"]) == 0
    assert "untrained model" in capsys.readouterr().out
    for wrong, message in (
        (["--layer", "0"], "give both a layer and a head"),
        (["--layer", "9", "--head", "0"], "no such number"),
        (["--weighting", "x"], "no such weighting"),
        (["2 + 2", "--gold", str(gold)], "cannot be combined with INPUT"),
        (["--out", "x.pdf"], "unknown kind of file"),
    ):
        assert main(["align", str(arithmetic_run), *wrong]) == 2
        assert message in capsys.readouterr().err


def test_predictions_have_an_alignment(arithmetic_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(arithmetic_run), "27 - 35", "nonsense", "--json"]) == 2
    first, second = json.loads(capsys.readouterr().out)["predictions"]
    assert len(first["alignment"]["source"]) == 9 and second["alignment"] is None
    assert all(len(link) == 2 for link in first["alignment"]["links"])
    alone = Run(arithmetic_run).predict("27 - 35", align=True)
    assert alone["alignment"] == first["alignment"]
    assert "alignment" not in Run(arithmetic_run).predict("27 - 35")


@pytest.mark.thorough
def test_a_trained_reversal_is_aligned_without_error(tmp_path: Path) -> None:
    """An encoder-decoder learns to reverse words of a file; its links are the anti-diagonal."""
    random = np.random.default_rng(0)
    rows = [random.permutation(8)[:5].tolist() for _ in range(3000)]
    (tmp_path / "rows.tsv").write_text(
        "".join(f"{' '.join(map(str, row))}\t{' '.join(map(str, row[::-1]))}\n" for row in rows)
    )
    config = tmp_path / "reversal.yaml"
    config.write_text(f"""
task:
  kind: tokens
  target: sequence
  data: {{train: {tmp_path}/rows.tsv, columns: {{input: 0, target: 1}}}}
model: {{num_layers: 1, num_heads: 1, hidden_dim: 32, feed_forward_dim: 64, position: {{kind: sinusoidal}}}}
training: {{optimizer: {{kind: adamw, learning_rate: 5e-3}}, max_steps: 400, batch_size: 64}}
""")
    run = gf.train(config, run=tmp_path / "run")
    gold = tmp_path / "gold.txt"
    gold.write_text(" ".join(f"{4 - row}-{row}" for row in range(5)) + "\n")
    gold.write_text(gold.read_text() * 40)
    found = run.align(gold=gold, split="validation", examples=40)
    assert found.aer == 0 and found.untrained_aer is not None and found.untrained_aer > 0.5


def test_eflomal_agrees_with_the_gold_links(tmp_path: Path) -> None:
    """An aligner without any model of ours finds most of the links that the grammar knows."""
    eflomal = pytest.importorskip(
        "eflomal", reason="eflomal is compiled at installation: pip install eflomal"
    )
    found = list(first_analyses(3000, 0, "train"))
    sides = [
        [
            " ".join(text[word.start : word.end].lower() for word in own)
            for text, own in ((getattr(each, side), getattr(each, f"{side}_words")) for each in found)
        ]
        for side in ("source", "target")
    ]
    path = tmp_path / "links"
    eflomal.Aligner().align(*sides, links_filename_fwd=str(path))
    pairs = []
    for line, each in zip(path.read_text().splitlines(), found, strict=True):
        links = [(int(one), int(other)) for one, other in (link.split("-") for link in line.split())]
        pairs.append((links, GoldLinks(*each.links())))
    assert alignment_error_rate(pairs) < 0.25
