"""Language modelling: targets, context, masking and caching, compared with a plain loop."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import glassformer.tasks  # noqa: F401  registers the kinds
from glassformer.blocks.heads import IGNORED
from glassformer.core.config import validate
from glassformer.core.errors import ErrorDetail, UserError
from glassformer.data.token_rows import RaggedRows, Windows
from glassformer.data.tokenizers import BEGIN, END, MASK, PAD, RESERVED, UNKNOWN
from glassformer.evaluation.evaluate import EvaluationConfig, evaluate
from glassformer.models.base import Model
from glassformer.models.transformer import TransformerConfig
from glassformer.tasks.base import Task, TaskConfig
from glassformer.tasks.language import CausalLanguageTask, MaskedLanguageTask

SMALL = TransformerConfig(num_layers=1, num_heads=2, hidden_dim=8, feed_forward_dim=8)
TEXTS = ["a b c d e f g", "b", "c a b. d e", "", "the end of a b", "f g a b c d e f g a b c d", "zz top"]
VALIDATION = ["a b c", "g f e d c b a b c. a", "", "new words here"]

Make = Callable[..., Any]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Build tasks on these texts, with the token cache in a folder of the test."""
    monkeypatch.setenv("GLASSFORMER_CACHE", str(tmp_path / "cache"))

    def write(name: str, texts: Sequence[str]) -> str:
        (tmp_path / name).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        return str(tmp_path / name)

    def build(kind: str = "language-model", running: str | None = None, **options: Any) -> Task:
        if running is None:
            data = {"train": write("train.txt", TEXTS), "validation": write("validation.txt", VALIDATION)}
        else:
            (tmp_path / "running.txt").write_text(running, encoding="utf-8")
            data = {"train": str(tmp_path / "running.txt"), "format": "running-text"}
        tree = {"kind": kind, "max_length": 5, "tokenizer": {"kind": "words"}, **options}
        return validate(TaskConfig, {**tree, "data": {**data, **options.get("data", {})}}).build(seed=0)

    return build


def model_of(task: Task) -> Model:
    torch.manual_seed(0)
    return SMALL.build(task.task_type).eval()


def tokens_of(task: Any, texts: Sequence[str]) -> list[list[int]]:
    return [[BEGIN, *task.tokenizer.encode(text).tolist(), END] for text in texts]


def batches(task: Task, split: str, size: int) -> list[Any]:
    indices = np.arange(len(task.splits[split]))
    return [task.batch(split, indices[start : start + size]) for start in range(0, len(indices), size)]


def predicted(task: Task, split: str, size: int = 3) -> list[int]:
    """Every target that is not ignored, in order."""
    targets = [row for batch in batches(task, split, size) for row in batch.targets]
    return [int(token) for row in targets for token in row if token != IGNORED]


def nats(model: Model, context: Sequence[int], target: int) -> float:
    """Negative log-likelihood, in nats, of one token after a context."""
    with torch.inference_mode():
        logits_LV = model(tokens=torch.tensor([list(context)]), mask=None)[0].double()
    return -float(logits_LV[-1].log_softmax(-1)[target])


def plain_loss(model: Model, streams: list[list[int]], length: int, stride: int) -> tuple[float, int]:
    """Sum the loss token by token: the first `length` see all preceding tokens, later ones their window."""
    total, count = 0.0, 0
    for tokens in streams:
        for index in range(1, len(tokens)):
            if tokens[index] == BEGIN:
                continue
            start = 0 if index <= length else math.ceil((index - length) / stride) * stride
            total += nats(model, tokens[start:index], tokens[index])
            count += 1
    return total, count


class TestCausal:
    @pytest.mark.parametrize("across", [True, False])
    @pytest.mark.parametrize("stride", [None, 1, 2, 5])
    def test_every_token_is_predicted_once_and_begin_never(
        self, make: Make, across: bool, stride: int | None
    ) -> None:
        task = make(across_texts=across, stride=stride)
        for split, texts in (("train", TEXTS), ("validation", VALIDATION)):
            expected = [token for row in tokens_of(task, texts) for token in row if token != BEGIN]
            for size in (1, 3, 100):
                assert predicted(task, split, size) == expected

    @pytest.mark.parametrize("across", [True, False])
    @pytest.mark.parametrize("stride", [None, 1, 2, 5])
    def test_perplexity_is_that_of_a_plain_loop(self, make: Make, across: bool, stride: int | None) -> None:
        task = make(across_texts=across, stride=stride)
        model = model_of(task)
        rows = tokens_of(task, VALIDATION)
        streams = [[token for row in rows for token in row]] if across else rows
        total, count = plain_loss(model, streams, 5, stride or 5)
        measured = evaluate(model, task, "validation", EvaluationConfig(batch_tokens=23))
        assert measured["loss"] == pytest.approx(total / count, rel=1e-5)
        assert measured["perplexity"] == pytest.approx(math.exp(total / count), rel=1e-5)
        # The end of each text counts as one character, because it must be transmitted too.
        characters = sum(len(text) + 1 for text in VALIDATION)
        assert task.count_characters("validation") == characters
        assert measured["bits_per_character"] == pytest.approx(total / math.log(2) / characters, rel=1e-5)

    def test_a_shorter_stride_changes_no_training(self, make: Make) -> None:
        plain, strided = make(), make(stride=2)
        assert plain.splits["train"].checksum() == strided.splits["train"].checksum()
        assert plain.splits["validation"].checksum() != strided.splits["validation"].checksum()
        assert len(strided.splits["validation"]) > len(plain.splits["validation"])

    def test_a_stride_may_not_pass_tokens_over(self, make: Make) -> None:
        with pytest.raises(UserError, match=r"stride: must be at most max_length, which is 5"):
            make(stride=6)
        with pytest.raises(UserError, match="stride"):
            make(kind="masked-language-model", stride=2)

    def test_windows_cross_texts_or_do_not(self, make: Make) -> None:
        across = [row.tolist() for row in make().splits["train"].inputs]
        assert any(BEGIN in row[1:] for row in across)
        assert {len(row) for row in across[:-1]} == {6}
        within = [row.tolist() for row in make(across_texts=False).splits["train"].inputs]
        assert not any(BEGIN in row[1:] or END in row[:-1] for row in within)
        assert [BEGIN, END] in within, "an empty text ends at once"

    def test_the_tokenizer_knows_the_training_texts_only(self, make: Make) -> None:
        task = make()
        assert task.tokenizer.encode("new words here a").tolist()[:3] == [UNKNOWN] * 3
        assert UNKNOWN not in task.tokenizer.encode("the end of a b. zz top")

    def test_continue_a_text(self, make: Make) -> None:
        task = make()
        assert task.parse("a b").tolist() == [BEGIN, *task.tokenizer.encode("a b")]
        with pytest.raises(ErrorDetail, match="empty"):
            task.parse("")
        with pytest.raises(ErrorDetail, match="too long: 7 tokens, and the model reads at most 5"):
            task.parse("a b c d e f")
        [[prediction]] = task.predict(model_of(task), [task.parse("a b")])
        assert not {PAD, UNKNOWN, BEGIN, MASK} & set(prediction.tokens) and len(prediction.tokens) <= 2


class TestRunningText:
    TEXT = "To be, or not to be:\nthat is the question.\n" * 20

    def test_first_and_last_part(self, make: Make) -> None:
        task = make(running=self.TEXT, tokenizer={"kind": "characters"})
        border = len(self.TEXT) * 9 // 10
        parts = {"train": self.TEXT[:border], "validation": self.TEXT[border:]}
        assert set(task.splits) == set(parts)
        for split, part in parts.items():
            tokens = task.tokenizer.encode(part).tolist()
            assert UNKNOWN not in tokens
            assert predicted(task, split) == tokens[1:], "no begin, no end, and all but the first"
            assert task.count_characters(split) == len(part) - 1

    def test_bits_per_character(self, make: Make) -> None:
        task = make(running=self.TEXT, tokenizer={"kind": "characters"}, max_length=7, stride=3)
        model = model_of(task)
        part = self.TEXT[len(self.TEXT) * 9 // 10 :]
        total, count = plain_loss(model, [task.tokenizer.encode(part).tolist()], 7, 3)
        assert count == len(part) - 1
        measured = evaluate(model, task, "validation", EvaluationConfig())
        assert measured["bits_per_character"] == pytest.approx(total / math.log(2) / count, rel=1e-5)

    def test_the_fraction_can_be_chosen(self, make: Make) -> None:
        task = make(running=self.TEXT, tokenizer={"kind": "characters"}, data={"validation_fraction": 0.5})
        assert len(predicted(task, "train")) == len(self.TEXT) // 2 - 1

    def test_across_texts_means_nothing_here(self, make: Make) -> None:
        ways = [make(running=self.TEXT, across_texts=across) for across in (True, False)]
        assert ways[0].checksum() == ways[1].checksum()

    def test_nothing_to_go_on_from_is_a_new_line(self, make: Make) -> None:
        task = make(running=self.TEXT, tokenizer={"kind": "characters"})
        assert task.start("") == task.tokenizer.encode("\n").tolist()
        assert task.start("To") == task.tokenizer.encode("To").tolist()
        [[prediction]] = task.predict(model_of(task), [task.parse("T")])
        assert len(prediction.tokens) == 4 and min(prediction.tokens) >= len(RESERVED), (
            "a running text never ends"
        )


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 99), max_size=14), max_size=6),
    st.integers(1, 6),
    st.integers(1, 6),
    st.booleans(),
)
def test_windows_with_a_stride(rows: list[list[int]], length: int, stride: int, within: bool) -> None:
    stride = min(stride, length)
    windows = Windows(
        RaggedRows.of(np.array(row, dtype=np.int64) for row in rows),
        length,
        stride=stride,
        within_documents=within,
    )
    documents = rows if within else [[token for row in rows for token in row]]
    expected = []
    for tokens in documents:
        start = 0
        while len(tokens) > (start - stride + length + 1 if start else 1):
            expected.append((tokens[start : start + length + 1], length - stride if start else 0))
            start += stride
    assert [(row.tolist(), windows.seen_before(i)) for i, row in enumerate(windows)] == expected
    assert windows.lengths().tolist() == [len(row) for row, _ in expected]
    counted = [token for row, seen in expected for token in row[1 + seen :]]
    assert counted == [token for tokens in documents for token in tokens[1:]]
    assert (windows.checksum() == Windows(windows.rows, length, within_documents=within).checksum()) == (
        stride == length
    )


def test_a_stride_out_of_range() -> None:
    rows = RaggedRows.of([np.arange(5)])
    for stride in (0, 4):
        with pytest.raises(ValueError, match="the stride of windows is 1 to 3 tokens"):
            Windows(rows, 3, stride=stride)


class TestFiles:
    def test_tokens_are_stored_and_used_again(self, make: Make, tmp_path: Path) -> None:
        first = make()
        assert sum("stored in" in note for note in first.notes) == 2
        again = make()
        assert sum("re-used from" in note for note in again.notes) == 2
        assert again.checksum() == first.checksum()
        assert again.count_characters("validation") == first.count_characters("validation")
        # Other windows use the same cached tokens; another tokenizer does not.
        assert sum("re-used" in note for note in make(max_length=9, across_texts=False).notes) == 2
        assert not any("re-used" in note for note in make(tokenizer={"kind": "bytes"}).notes)

    def test_a_changed_file_is_read_again_and_reported(self, make: Make, tmp_path: Path) -> None:
        make()
        VALIDATION.append("one more")
        try:
            task = make()
        finally:
            VALIDATION.pop()
        path = tmp_path / "validation.txt"
        assert f"source file changed: {path}; building its tokens again" in task.notes
        assert sum("re-used" in note for note in task.notes) == 1
        assert predicted(task, "validation")[-3:] == [*task.tokenizer.encode("one more"), END]

    def test_a_part_is_split_off_by_the_text_alone(self, make: Make, tmp_path: Path) -> None:
        path = tmp_path / "many.jsonl.gz"
        texts = [f"text {number % 150}" for number in range(300)]
        with gzip.open(path, "wt", encoding="utf-8") as file:
            file.writelines(json.dumps({"words": text}) + "\n" for text in texts)
        task = make(data={"train": str(path), "validation": None, "columns": {"input": "words"}})
        train, validation = (list(task.corpora[split]) for split in ("train", "validation"))
        assert sorted(train + validation) == sorted(texts) and not set(train) & set(validation)
        assert 10 <= len(validation) <= 60

    @pytest.mark.parametrize("value", ["null", "[1]", "true", '{"a": 1}'])
    def test_values_other_than_text_are_rejected(self, make: Make, tmp_path: Path, value: str) -> None:
        path = tmp_path / "mine.jsonl"
        path.write_text(f'{{"text": "a"}}\n{{"text": 5}}\n{{"text": {value}}}\n', encoding="utf-8")
        with pytest.raises(UserError, match="expected text") as refusal:
            make(data={"train": str(path)})
        assert f"{path}, line 3" in str(refusal.value)

    def test_a_restored_task_is_the_same(self, make: Make) -> None:
        task = make(stride=2)
        restored = task.config.restore(json.loads(json.dumps(task.state())))
        assert restored.task_type == task.task_type and restored.checksum() == task.checksum()
        assert restored.count_characters("validation") == task.count_characters("validation")


class TestMasked:
    @pytest.fixture
    def task(self, make: Make) -> MaskedLanguageTask:
        task = make("masked-language-model", across_texts=False, max_length=8, masked_fraction=0.9)
        assert isinstance(task, MaskedLanguageTask)
        return task

    @pytest.fixture
    def offline(self) -> MaskedLanguageTask:
        config = validate(TaskConfig, {"kind": "masked-language-model", "examples": 300, "max_length": 32})
        task = config.build(seed=0)
        assert isinstance(task, MaskedLanguageTask)
        return task

    def test_what_is_hidden_does_not_depend_on_the_batch(self, task: MaskedLanguageTask) -> None:
        """The mask of a row does not depend on the other rows."""
        rows = len(task.splits["train"])
        assert len(set(task.splits["train"].lengths().tolist())) > 3
        whole = task.batch("train", np.arange(rows), epoch=1)
        backwards = task.batch("train", np.arange(rows)[::-1].copy(), epoch=1)
        for index in range(rows):
            alone = task.batch("train", np.array([index]), epoch=1)
            length = alone.targets.shape[1]
            for batch, row in ((whole, index), (backwards, rows - 1 - index)):
                assert torch.equal(batch.targets[row, :length], alone.targets[0])
                assert torch.equal(batch.inputs["tokens"][row, :length], alone.inputs["tokens"][0])
                assert (batch.targets[row, length:] == IGNORED).all()

    def test_it_depends_on_split_and_epoch(self, offline: MaskedLanguageTask) -> None:
        indices = np.arange(8)
        first = offline.batch("train", indices, epoch=0)
        assert torch.equal(first.targets, offline.batch("train", indices, epoch=0).targets)
        assert not torch.equal(first.targets, offline.batch("train", indices, epoch=1).targets)
        again = offline.config.restore(offline.state())
        assert torch.equal(first.inputs["tokens"], again.batch("train", indices).inputs["tokens"])

    def test_shares(self, offline: MaskedLanguageTask) -> None:
        batch = offline.batch("train", np.arange(len(offline.splits["train"])))
        plain = torch.from_numpy(np.stack(list(offline.splits["train"].inputs[:-1])))
        seen, targets = batch.inputs["tokens"][:-1, :32], batch.targets[:-1, :32]
        asked = targets != IGNORED
        may_be = plain >= len(RESERVED)
        assert not (asked & ~may_be).any(), "reserved tokens are never asked for"
        assert torch.equal(targets[asked], plain[asked]) and torch.equal(seen[~asked], plain[~asked])
        count, share = int(may_be.sum()), float(asked.sum() / may_be.sum())
        assert count > 3000 and abs(share - 0.15) < 4 * math.sqrt(0.15 * 0.85 / count)
        hidden, kept = seen[asked] == MASK, seen[asked] == plain[asked]
        others = ~hidden & ~kept
        total = int(asked.sum())
        for part, expected in ((hidden, 0.8), (kept, 0.1), (others, 0.1)):
            assert abs(float(part.float().mean()) - expected) < 4 * math.sqrt(0.25 / total)
        assert int(seen[asked][others].min()) >= len(RESERVED)
        assert len(set(seen[asked][others].tolist())) > 10

    def test_all_of_a_text_is_in_some_window(self, make: Make) -> None:
        task = make("masked-language-model", max_length=5)
        rows = [row.tolist() for row in task.splits["train"].inputs]
        stream = [token for row in tokens_of(task, TEXTS) for token in row]
        assert [*rows[0], *(token for row in rows[1:] for token in row[1:])] == stream
        assert max(map(len, rows)) == 5, "the model reads no more than max_length"

    @pytest.mark.parametrize(
        ("kind", "typed", "symbols"),
        [
            ("words", "the <mask> of", ["▁the", "<mask>", "▁of"]),
            ("words", "the <mask>.", ["▁the", "<mask>", "."]),
            ("words", "<mask> end", ["<mask>", "▁end"]),
            ("words", "<mask><mask> a", ["<mask>", "<mask>", "▁a"]),
            ("words", "a <mask> <mask>", ["▁a", "<mask>", "<mask>"]),
            ("characters", "a <mask> b", ["a", "▁", "<mask>", "▁", "b"]),
            ("characters", "t<mask>e", ["t", "<mask>", "e"]),
            ("bytes", "a<mask>. b", ["a", "<mask>", ".", "▁", "b"]),
        ],
    )
    def test_fill_in(self, make: Make, kind: str, typed: str, symbols: list[str]) -> None:
        task = make("masked-language-model", tokenizer={"kind": kind}, max_length=20)
        row = task.parse(typed)
        assert task.input_symbols(row.tolist()) == ["<begin>", *symbols, "<end>"]
        assert task.parse(task.show_input(row.tolist())).tolist() == row.tolist()
        model = model_of(task)
        [[prediction]] = task.predict(model, [row])
        hidden = row == MASK
        assert np.array_equal(np.array(prediction.tokens)[~hidden], row[~hidden])
        assert min(prediction.tokens[index] for index in np.flatnonzero(hidden)) >= len(RESERVED)
        assert all(prediction.probabilities[index] == 1 for index in np.flatnonzero(~hidden)), (
            "they were given"
        )
        with torch.inference_mode():
            logits = model(tokens=torch.from_numpy(row[None]), mask=None)[0].double()
            logits[:, : len(RESERVED)] = -torch.inf  # never a target in training
            chances = logits.softmax(-1)
        best = chances[torch.from_numpy(hidden)].max(-1)
        assert [prediction.tokens[index] for index in np.flatnonzero(hidden)] == best.indices.tolist()
        assert prediction.probability == pytest.approx(float(best.values.prod()), rel=1e-5)

    def test_unknown_tokens_are_a_warning(self, make: Make) -> None:
        task = make("masked-language-model", tokenizer={"kind": "words"}, max_length=20)
        assert task.warning(task.parse("xyzzy <mask>").tolist()) == "1 of 2 tokens are unknown to the model"
        assert task.warning(task.parse("<mask>").tolist()) is None

    def test_nothing_to_fill_in(self, task: MaskedLanguageTask) -> None:
        with pytest.raises(ErrorDetail, match="no <mask> in the line"):
            task.parse("the end")
        with pytest.raises(ErrorDetail, match="too long: 9 tokens"):
            task.parse("a b c d e f <mask>")

    def test_no_bits_per_character(self, task: MaskedLanguageTask) -> None:
        """A masked model predicts only some tokens, from both sides, so it has no such metric."""
        measured = evaluate(model_of(task), task, "validation", EvaluationConfig())
        assert "bits_per_character" not in measured and measured["perplexity"] > 1


def test_both_kinds_share_the_tokens(make: Make) -> None:
    causal, masked = make(), make("masked-language-model")
    assert isinstance(causal, CausalLanguageTask)
    assert causal.tokenizer.fingerprint == masked.tokenizer.fingerprint
    assert sum("re-used from" in note for note in masked.notes) == 2


def test_texts_of_the_test_file_in_train_are_a_warning(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("one two\nthree four\nfive six\n" * 4, encoding="utf-8")
    (tmp_path / "test.txt").write_text("three four\nthree four\nnever seen\n", encoding="utf-8")
    data = {"train": str(tmp_path / "train.txt"), "test": str(tmp_path / "test.txt")}
    config = validate(TaskConfig, {"kind": "language-model", "data": data, "max_length": 8})
    notes = config.build(0).notes
    assert "WARNING: test texts that also appear in train: 2 of 3" in notes
    assert "test: unknown tokens: 2 of 6" in notes


def notes_of(folder: Path, train: str, test: str | None = None, **data: object) -> list[str]:
    sources = {"train": train} if test is None else {"train": train, "test": test}
    for split, text in sources.items():
        (folder / f"{split}.txt").write_text(text, encoding="utf-8")
    found = {**{split: str(folder / f"{split}.txt") for split in sources}, **data}
    config = validate(TaskConfig, {"kind": "language-model", "data": found, "max_length": 8})
    return config.build(0).notes


def test_empty_lines_do_not_count_as_overlap(tmp_path: Path) -> None:
    notes = notes_of(tmp_path, "one two\n\nthree four\n" * 4, "never seen\n\n")
    assert not any("WARNING" in note for note in notes)


def test_lines_of_running_text_in_train_are_a_warning(tmp_path: Path) -> None:
    """Short lines, such as names of speakers, do not count."""
    line = "it was the best of times"
    train, test = (
        f"He:\n{line}\nand the worst of them too\n",
        f"He:\n{line}\nno words of it are seen before\n",
    )
    notes = notes_of(tmp_path, train * 9, test, format="running-text", validation_fraction=0.4)
    assert "WARNING: test lines of 5 words or more that also appear in train: 1 of 2" in notes
    assert not any(
        "WARNING" in note for note in notes_of(tmp_path, train * 9, "He:\n", format="running-text")
    )


def test_what_is_split_off_is_reported(tmp_path: Path) -> None:
    texts = "".join(f"text {number}\n" for number in range(40))
    (note,) = [note for note in notes_of(tmp_path, texts) if "split off" in note]
    words = note.split()
    assert (
        words[0] == "validation:"
        and 0 < int(words[1]) < 12
        and note.endswith("of 40 training texts, split off by a hash of each text (about 10 %)")
    )
    notes = notes_of(tmp_path, texts, format="running-text", validation_fraction=0.25)
    assert "validation: the last 25 % of the training text, split off" in notes


def test_how_a_table_was_read_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("".join(f"text {n}\tx\n" for n in range(30)), encoding="utf-8")
    config = validate(TaskConfig, {"kind": "language-model", "data": {"train": str(tmp_path / "a.tsv")}})
    (note,) = [note for note in config.build(0).notes if "header" in note]
    assert "input = column 0" in note


@pytest.mark.parametrize("kind", ["language-model", "classification"])
def test_a_set_with_other_bytes_than_the_catalogue_lists_is_a_warning(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLASSFORMER_DATA", str(tmp_path))
    (tmp_path / "cls_books_fr").mkdir()
    rows = "".join(f"{n % 2}\ttext number {n}\n" for n in range(30))
    (tmp_path / "cls_books_fr" / "train.tsv").write_text(rows, encoding="utf-8")
    columns = {"input": 1, "target": 0} if kind == "classification" else {"input": 1}
    data = {"train": "cls_books_fr/train.tsv", "columns": columns}
    notes = validate(TaskConfig, {"kind": kind, "data": data}).build(0).notes
    assert "WARNING: train: cls_books_fr/train.tsv is not the file that the catalogue lists" in notes
