"""Translation: counts, omitted examples, and scores against the text of the files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sacrebleu.metrics import BLEU
from torch.nn import functional as F

import glassformer.tasks  # noqa: F401  registers the kinds
from glassformer.core.config import validate
from glassformer.core.errors import ErrorDetail, UserError
from glassformer.data.tokenizers import BEGIN, END, MASK, PAD, RESERVED, UNKNOWN
from glassformer.datasets.grammar import translation_pairs
from glassformer.evaluation.evaluate import EvaluationConfig, evaluate, measure
from glassformer.generation import BeamConfig, GreedyConfig
from glassformer.generation.predict import Prediction
from glassformer.models.base import Model
from glassformer.models.transformer import TransformerConfig
from glassformer.tasks.base import TaskConfig
from glassformer.tasks.translation import TranslationTask

SMALL = TransformerConfig(num_layers=1, num_heads=2, hidden_dim=8, feed_forward_dim=8)

Pairs = list[tuple[str, str]]
PAIRS: Pairs = [
    ("the cat", "le chat"),
    ("a dog sleeps here", "un chien dort ici"),
    ("yes", "oui"),
    ("the red house is big", "la maison rouge est grande"),
    ("no, thanks.", "non, merci."),
    ("she reads", "elle lit"),
]
VALIDATION: Pairs = [("a cat", "un chat"), ("the dog reads here", "le chien lit ici")]
TEST: Pairs = [
    ("the dog sleeps in the big red house here", "le chien dort dans la grande maison rouge ici"),
    ("the zebra", "le zèbre"),
    ("", "rien"),
    ("yes", ""),
    ("a house", "une maison"),
]

Make = Callable[..., TranslationTask]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def write(name: str, lines: Sequence[str]) -> str:
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return str(tmp_path / name)

    def build(
        train: Pairs = PAIRS,
        validation: Pairs | None = VALIDATION,
        test: Pairs | None = TEST,
        data: dict[str, Any] | None = None,
        **options: Any,
    ) -> TranslationTask:
        files = {
            split: [write(f"{split}.en", [s for s, _ in pairs]), write(f"{split}.fr", [t for _, t in pairs])]
            for split, pairs in (("train", train), ("validation", validation), ("test", test))
            if pairs is not None
        }
        tree = {"kind": "translation", "tokenizer": {"kind": "words"}, "max_length": 12, **options}
        task = validate(TaskConfig, {**tree, "data": {**files, **(data or {})}}).build(seed=0)
        assert isinstance(task, TranslationTask)
        return task

    return build


def model_of(task: TranslationTask) -> Model:
    torch.manual_seed(0)
    return SMALL.build(task.task_type).eval()


class TestAccounting:
    def test_padding_is_never_counted(self, make: Make) -> None:
        task = make()
        batch = task.batch("train", np.arange(len(PAIRS)))
        sources = [task.tokenizer.encode(source) for source, _ in PAIRS]
        targets = [task.tokenizer.encode(target) for _, target in PAIRS]
        predicted = sum(len(target) + 1 for target in targets)  # each with its end, without its begin
        read = sum(len(source) + 1 for source in sources)
        assert batch.target_count() == predicted and batch.token_count() == read + predicted
        assert batch.targets.numel() > predicted and batch.inputs["tokens"].numel() > read
        for row, source in enumerate(sources):
            expected = [*source, END]
            padding = [PAD] * (batch.inputs["tokens"].shape[1] - len(expected))
            assert batch.inputs["tokens"][row].tolist() == [*expected, *padding]
        assert batch.inputs["target"][:, 0].tolist() == [BEGIN] * len(PAIRS)

    def test_loss_and_accuracy_are_those_of_one_pair_at_a_time(self, make: Make) -> None:
        task = make()
        model = model_of(task)
        loss, right, count = 0.0, 0, 0
        with torch.inference_mode():
            for source, target in PAIRS:
                read = torch.tensor([[*task.tokenizer.encode(source), END]])
                written = torch.tensor([BEGIN, *task.tokenizer.encode(target), END])
                logits_LV = model(tokens=read, mask=None, target=written[None, :-1])[0]
                loss += float(F.cross_entropy(logits_LV, written[1:], reduction="sum"))
                right += int((logits_LV.argmax(-1) == written[1:]).sum())
                count += len(written) - 1
        for batch_tokens in (12, 10_000):
            measured = evaluate(
                model, task, "train", EvaluationConfig(batch_tokens=batch_tokens), decodes=False
            )
            assert measured["loss"] == pytest.approx(loss / count, rel=1e-5)
            assert measured["accuracy"] == pytest.approx(right / count)


class TestOmitted:
    LONG = ("word " * 20, "mot " * 3)

    def test_training_omits_and_reports_empty_and_long_examples(self, make: Make) -> None:
        train = [*PAIRS, ("", "vide"), ("nothing", "  "), self.LONG, (self.LONG[1], self.LONG[0])]
        task = make(train=train)
        assert len(task.splits["train"]) == len(PAIRS)
        assert task.text_pairs("train") == ([s for s, _ in PAIRS], [t for _, t in PAIRS])
        assert "train: omitted, one side empty: 2 of 10" in task.notes
        assert "train: omitted, longer than 12 tokens: 2 of 10" in task.notes

    def test_the_longest_that_fits(self, make: Make) -> None:
        source, target = ("a " * 11).strip(), ("b " * 10).strip()  # with END, and with BEGIN and END: 12
        task = make(train=[*PAIRS, (source, target)])
        assert len(task.splits["train"]) == len(PAIRS) + 1
        assert task.splits["train"].lengths().max() == 12

    def test_nothing_is_left(self, make: Make) -> None:
        with pytest.raises(UserError, match="no pairs are left"):
            make(max_length=2)

    def test_elsewhere_every_line_counts(self, make: Make) -> None:
        test = [*TEST, self.LONG]
        task = make(test=test, max_length=8)
        assert len(task.splits["test"]) == len(test)
        assert task.splits["test"].lengths().max() == 8
        assert "test: truncated to 8 tokens, scored against the complete reference: 2 of 6" in task.notes
        assert task.text_pairs("test") == ([s for s, _ in test], [t for _, t in test])
        measured = measure(model_of(task), task, "test", EvaluationConfig())
        assert measured.decoded is not None and len(measured.decoded.lines) == len(test)

    def test_what_also_appears_in_train(self, make: Make) -> None:
        test = [("yes", "oui !"), *TEST[:2], ("the cat", "le chat"), ("the cat", "le matou")]
        task = make(test=test)
        assert "WARNING: test examples whose input also appears in train: 3 of 5" in task.notes
        assert len(task.splits["test"]) == 5
        unseen = make(test=test, unseen_only=True)
        assert "test: omitted, also in train: 3 of 5" in unseen.notes
        assert unseen.text_pairs("test")[0] == [source for source, _ in TEST[:2]]
        assert not any("WARNING" in note for note in make(test=[TEST[0], TEST[4]]).notes)
        with pytest.raises(UserError, match="the test set is empty"):
            make(test=[("yes", "oui")], unseen_only=True)

    def test_a_part_that_is_split_off_shares_no_source_with_train(self, make: Make) -> None:
        train = [(f"word {number % 20}", f"mot {number}") for number in range(60)]
        task = make(train=train, validation=None, test=None, data={"test_fraction": 0.2})
        parts = {split: set(task.text_pairs(split)[0]) for split in task.splits}
        assert {split: len(part) for split, part in parts.items()} == {
            "train": 14,
            "validation": 2,
            "test": 4,
        }
        assert set.union(*parts.values()) == {source for source, _ in train}
        assert "validation: 6 of 60 training examples, split off, 2 different inputs" in task.notes
        again = make(train=train, validation=None, test=None, data={"test_fraction": 0.2})
        assert again.checksum() == task.checksum()
        other = make(train=train, validation=None, test=None, data={"test_fraction": 0.2}, data_seed=1)
        assert other.checksum() != task.checksum()


class TestScores:
    def test_bleu_is_that_of_the_texts_in_the_file(self, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        """A perfect translator limited to known tokens does not reach the maximum score."""
        task = make()
        examples = task.splits["test"]
        right = {tuple(s): t[1:-1].tolist() for s, t in zip(examples.inputs, examples.targets, strict=True)}

        def predict(
            model: Model, rows: Sequence[np.ndarray], decoding: object = None, is_scored: bool = True
        ) -> list[list[Prediction]]:
            return [[Prediction(right[tuple(row)], None, [], [])] for row in rows]

        monkeypatch.setattr(task, "predict", predict)
        measured = measure(model_of(task), task, "test", EvaluationConfig(batch_tokens=30))
        references = [target for _, target in TEST]
        written = ["le chien dort ⁇ la grande maison rouge ici", "le ⁇", "⁇", "", "⁇ maison"]
        assert measured.decoded is not None and measured.decoded.lines == written
        assert measured.metrics["bleu"] == pytest.approx(BLEU().corpus_score(written, [references]).score)
        assert 20 < measured.metrics["bleu"] < 90
        assert measured.metrics["exact_match"] == 1 / 5
        signature = measured.protocol["signatures"]["bleu"]
        assert {"case:mixed", "tok:13a", "nrefs:1"} <= set(signature.split("|"))

    def test_outputs_are_in_the_order_of_the_file(self, make: Make) -> None:
        test = [pair for pair in [*PAIRS, *VALIDATION, *TEST] if pair[0]]
        task = make(test=test)
        model = model_of(task)
        measured = measure(model, task, "test", EvaluationConfig(batch_tokens=24))
        assert measured.decoded is not None
        for (source, _), line in zip(test, measured.decoded.lines, strict=True):
            [[prediction]] = task.predict(model, [task.parse(source)])
            assert task.show_output(prediction.tokens) == line
        assert len(set(measured.decoded.lines)) > 1

    def test_greedy_is_a_beam_of_one(self, make: Make) -> None:
        task = make()
        model = model_of(task)
        ways = [
            measure(model, task, "test", EvaluationConfig(decoding=decoding)).decoded
            for decoding in (GreedyConfig(), BeamConfig(size=1))
        ]
        assert ways[0] is not None and ways[1] is not None
        assert ways[0].outputs == ways[1].outputs and any(ways[0].outputs)

    def test_reserved_tokens_are_never_generated(self, make: Make) -> None:
        task = make()
        model = model_of(task)
        with torch.no_grad():  # a model that prefers reserved tokens
            for parameter in model.parameters():
                if parameter.shape == (len(task.target_tokenizer),):
                    parameter[: len(RESERVED)] += 50.0
        for decoding in (GreedyConfig(), BeamConfig(size=3)):
            for [prediction, *_] in task.predict(model, [task.parse("the cat"), task.parse("yes")], decoding):
                assert not {PAD, UNKNOWN, BEGIN, MASK} & set(prediction.tokens)


class TestVocabularies:
    def test_one_for_each_side(self, make: Make) -> None:
        task = make(shared_vocabulary=False)
        assert "▁chat" not in task.tokenizer.symbols(range(len(task.tokenizer)))
        assert "▁cat" not in task.target_tokenizer.symbols(range(len(task.target_tokenizer)))
        assert task.task_type.vocabulary == len(task.tokenizer) != task.task_type.target_vocabulary
        assert task.show_output(task.splits["validation"].targets[0].tolist()) == "un chat"
        assert task.show_input(task.splits["validation"].inputs[0].tolist()) == "a cat"
        state = json.loads(json.dumps(task.state()))
        assert set(state) == {"tokenizer", "target_tokenizer"}
        restored = task.config.restore(state)
        assert restored.task_type == task.task_type and restored.checksum() == task.checksum()
        metrics = evaluate(model_of(task), task, "test", EvaluationConfig())
        assert {"loss", "accuracy", "bleu", "exact_match"} <= metrics.keys()

    def test_one_for_both(self, make: Make) -> None:
        task = make()
        assert task.tokenizer is task.target_tokenizer and task.task_type.is_shared_vocabulary
        assert set(task.state()) == {"tokenizer", "untrained"}, "French words are not trained as a source"
        assert UNKNOWN not in task.tokenizer.encode("the red cat est grande")

    def test_learned_from_train_alone(self, make: Make) -> None:
        for shared in (True, False):
            task = make(shared_vocabulary=shared)
            assert UNKNOWN in task.tokenizer.encode("zebra")
            assert UNKNOWN in task.target_tokenizer.encode("une")


class TestInput:
    def test_formats_are_the_same(self, make: Make, tmp_path: Path) -> None:
        aligned = make()
        tables, lines = {}, {}
        for split, pairs in (("train", PAIRS), ("validation", VALIDATION), ("test", TEST)):
            rows = ["source\ttarget", *(f"{source}\t{target}" for source, target in pairs)]
            tables[split] = tmp_path / f"{split}.tsv"
            tables[split].write_text("\n".join(rows) + "\n", encoding="utf-8")
            lines[split] = tmp_path / f"{split}.jsonl.gz"
            with gzip.open(lines[split], "wt", encoding="utf-8") as file:
                file.writelines(json.dumps({"fr": t, "en": s, "id": 1}) + "\n" for s, t in pairs)
        table = make(data={split: str(path) for split, path in tables.items()})
        assert table.checksum() == aligned.checksum()
        files = {split: str(path) for split, path in lines.items()}
        objects = make(data={**files, "columns": {"input": "en", "target": "fr"}})
        assert objects.checksum() == aligned.checksum()
        assert objects.text_pairs("test") == aligned.text_pairs("test")

    @pytest.mark.parametrize("value", [None, ["a"], True])
    def test_values_other_than_text_are_rejected(self, make: Make, tmp_path: Path, value: object) -> None:
        path = tmp_path / "mine.jsonl"
        rows = [{"source": "a", "target": 5}, {"source": "b", "target": value}]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        with pytest.raises(UserError, match="expected text") as refusal:
            make(data={"train": str(path)})
        assert f"{path}, line 2" in str(refusal.value)

    def test_unequal_files(self, make: Make, tmp_path: Path) -> None:
        one = tmp_path / "one.fr"
        one.write_text("un\ndeux\n", encoding="utf-8")
        with pytest.raises(UserError, match=r"2 lines, but .* has 6"):
            make(data={"train": [str(tmp_path / "train.en"), str(one)]})

    def test_special_tokens_are_words(self, make: Make) -> None:
        task = make(train=[*PAIRS, ("<begin> <pad> </s>", "<end> <mask>")])
        row = task.splits["train"].inputs[-1]
        assert row[-1] == END and min(row[:-1]) >= len(RESERVED)
        assert task.show_input(row.tolist()) == "<begin> <pad> </s>"

    def test_what_a_person_types(self, make: Make) -> None:
        task = make()
        assert task.parse("the cat").tolist() == [*task.tokenizer.encode("the cat"), END]
        for empty in ("", "   "):
            with pytest.raises(ErrorDetail, match="empty"):
                task.parse(empty)
        assert len(task.parse("the " * 10 + "cat")) == 12
        with pytest.raises(ErrorDetail, match="too long: 12 tokens, and the model reads at most 11"):
            task.parse("the " * 11 + "cat")


def test_offline_pairs_follow_from_the_config() -> None:
    options = {"kind": "translation", "examples": 60, "tokenizer": {"kind": "words"}}
    task = validate(TaskConfig, options).build(seed=0)
    sources, targets = task.text_pairs("train")
    assert list(zip(sources, targets, strict=True)) == translation_pairs(60, 0, "train")
    assert not set(sources) & {*task.text_pairs("test")[0], *task.text_pairs("validation")[0]}
    assert validate(TaskConfig, {**options, "data_seed": 1}).build(seed=0).checksum() != task.checksum()


def test_a_word_that_training_does_not_have_gives_a_warning(make: Make) -> None:
    """Pieces of words make every word readable, but the embeddings of some pieces are random."""
    task = make(tokenizer={"kind": "bpe", "vocabulary_size": 400})
    restored = task.config.restore(json.loads(json.dumps(task.state())))
    for each in (task, restored):
        assert each.warning(each.parse("the cat reads").tolist(), "the cat reads") is None
        text = "the qxzw, reads"
        assert each.warning(each.parse(text).tolist(), text) == "unseen in training: ‹qxzw›"
