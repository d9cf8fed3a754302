"""Translating a test set with the same weights: ours, Hugging Face's `generate`, CTranslate2."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from glassformer.bench.base import Progress, Result, time_alternately
from glassformer.bench.peers import is_importable
from glassformer.bench.translation import TranslationBenchmark
from glassformer.core.registry import register
from glassformer.core.system import machine

if TYPE_CHECKING:
    from rich.console import RenderableType

    from glassformer.runs.run import Run

OURS = "glassformer"
BATCH_SIZES = (32, 64, 128, 256)
MOST_TO_TRY = 512
"""Sentences on which the best of these is found."""
NEAR = 1.3
"""How much longer than the best a first try may take to get a second one."""
LONGEST = 40
"""Tokens of a sentence: a model of so few steps does not always find an end."""
SAME_ENOUGH = 0.95
"""Of the greedy outputs. Rounding may turn a near tie, but engines that differ more are not the same model;
with a beam each ends a search by its own rule."""

Writer = Callable[[Sequence[Any], int, int], list[list[int]]]
"""Writes for rows with a beam, so many rows in a batch."""

TOGETHER, SIDE_BY_SIDE = "all on one batch", "a batch each"
"""What the threads work on."""


@register
class DecodeBenchmark(TranslationBenchmark):
    """Translating a test set with the same weights: ours beside Hugging Face and CTranslate2."""

    kind: Literal["decode"] = "decode"
    repeats: int = Field(3, ge=1, le=10_000, description="samples of each form")
    beam: int = Field(4, ge=2, description="branches, besides greedy")
    sentences: int = Field(1000, ge=1, description="of the test set, at most")
    training_steps: int = Field(
        300, ge=1, description="trained once, and kept, so that sentences end where they should"
    )
    folder: str = Field("runs", description="where the trained model is kept")

    def measure(self, progress: Progress) -> Result:
        import torch

        run = self._trained()
        examples = run.task.splits["test"]
        sources = [examples.inputs[number] for number in range(min(self.sentences, len(examples)))]
        sources.sort(key=len)
        writers = self._writers(run, torch.get_num_threads())
        rows: list[dict[str, Any]] = []
        for beam in (1, self.beam):
            rows += self._race(writers, sources, beam, progress)
        seconds = {(row["form"], row["beam"]): row["seconds"] for row in rows}
        ratios: dict[str, float] = {}
        for name in list(writers)[1:]:
            each = {beam: seconds[name, beam] / seconds[OURS, beam] for beam in (1, self.beam)}
            ratios |= {f"{name}_{_search(beam)}": ratio for beam, ratio in each.items()}
            ratios[name] = min(each.values())
        wrong = [row["form"] for row in rows if row["beam"] == 1 and row["same_outputs"] < SAME_ENOUGH]
        complaint = f"writes otherwise with the same weights: {', '.join(wrong)}" if wrong else ""
        notes = {"sentences": len(sources), "run": str(run.path)}
        return Result(self.kind, machine(), rows, ratios, complaint, notes)

    def _trained(self) -> Run:
        from glassformer.runs.folder import RunFolder
        from glassformer.runs.run import Run
        from glassformer.runs.session import Training
        from glassformer.training.progress import LineReporter

        changes = {
            "task.max_length": LONGEST,
            "training.max_steps": self.training_steps,
            "training.max_epochs": None,
            "training.schedule.warmup_steps": min(100, self.training_steps // 3),
            "training.batch_tokens": 2048,
            "training.validate_every": self.training_steps,
            "training.save_every": None,
            "training.average_last": None,
            "evaluation.max_examples": 8,
        }
        config = self.config(changes)
        folder = RunFolder(Path(self.folder) / f"bench-decode-{config.fingerprint()[:8]}")
        if not folder.results():
            Training(config, folder, LineReporter()).run()
        return Run(folder.path)

    def _writers(self, run: Run, threads: int) -> dict[str, dict[str, Writer]]:
        """Each engine with the ways of sharing threads that it offers."""
        import torch

        from glassformer.data.tokenizers import BEGIN, MASK, PAD, UNKNOWN
        from glassformer.generation import BeamConfig, GreedyConfig, round_robin, run_concurrently
        from glassformer.models.seq2seq import EncoderDecoder
        from glassformer.tasks.base import Seq2SeqTask

        model, task = run.model, run.task
        assert isinstance(model, EncoderDecoder) and isinstance(task, Seq2SeqTask)
        sizes = self.sizes(task)
        forbidden = [PAD, UNKNOWN, BEGIN, MASK]

        def answer(rows: Sequence[Any], beam: int) -> list[list[int]]:
            decoding = BeamConfig(size=beam) if beam > 1 else GreedyConfig()
            return [best.tokens for best, *_ in task.predict(model, rows, decoding, is_scored=False)]

        def ours_side_by_side(rows: Sequence[Any], beam: int, size: int) -> list[list[int]]:
            parts = [
                part for some in _cut(range(len(rows)), size * threads) for part in round_robin(some, threads)
            ]
            parts = parts[::-1]  # the longest first
            written = run_concurrently(
                model, lambda part: answer([rows[place] for place in part], beam), parts
            )
            outputs = dict(zip(chain(*parts), chain(*written), strict=True))
            return [outputs[place] for place in range(len(rows))]

        writers = {OURS: {TOGETHER: _one_by_one(answer), SIDE_BY_SIDE: ours_side_by_side}}
        weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}
        nothing = torch.zeros(1, sizes.max_length, sizes.width)
        places = torch.arange(sizes.max_length)[None]
        positions_LD = model.embedding.position.embed(nothing, places)[0]
        if is_importable("transformers"):
            from glassformer.bench.peers import huggingface

            theirs = huggingface.marian_weights(weights, positions_LD, sizes.layers)
            writers["huggingface"] = {TOGETHER: _one_by_one(huggingface.writer(sizes, theirs, forbidden))}
        if is_importable("ctranslate2"):
            from glassformer.bench.peers import ctranslate

            together, apart = (
                ctranslate.writer(sizes, weights, positions_LD, forbidden, threads, concurrency)
                for concurrency in (1, threads)
            )
            writers["ctranslate2"] = {TOGETHER: together, SIDE_BY_SIDE: apart}
            writers["ctranslate2_as_it_comes"] = {TOGETHER: together}
        return writers

    def _race(
        self, writers: dict[str, dict[str, Writer]], sources: list[Any], beam: int, progress: Progress
    ) -> list[dict[str, Any]]:
        """Each engine at the batch size and the way that are best for it."""
        some = sources[:: math.ceil(len(sources) / MOST_TO_TRY)]
        tried = {
            (name, way, size): partial(writer, some, beam, size)
            for name, ways in writers.items()
            for way, writer in ways.items()
            for size in BATCH_SIZES
            if way == TOGETHER or size < len(some)
        }
        for ways in writers.values():
            for writer in ways.values():
                writer(some[-8:], beam, 4)  # a first call allocates
        best = _quickest(tried, progress)
        outputs: dict[str, list[list[int]]] = {}
        forms = {
            name: _keeping(outputs, name, partial(ways[best[name][0]], sources, beam, best[name][1]))
            for name, ways in writers.items()
        }
        timings = time_alternately(forms, self.repeats, progress)
        ours = outputs[OURS]
        rows = []
        for name, timing in timings.items():
            tokens = sum(len(output) + 1 for output in outputs[name])
            same = sum(mine == other for mine, other in zip(ours, outputs[name], strict=True))
            rows.append(
                {
                    "form": name,
                    "beam": beam,
                    "batch_size": best[name][1],
                    "threads": best[name][0],
                    **timing.as_row(),
                    "tokens": tokens,
                    "tokens_per_second": tokens / timing.median,
                    "same_outputs": same / len(ours),
                }
            )
        return rows

    def show(self, result: Result) -> RenderableType:
        from rich.table import Table

        table = Table(
            title=f"translating {result.notes['sentences']:,} sentences of {self.what}", title_justify="left"
        )
        table.add_column("form", overflow="fold")
        table.add_column("search", no_wrap=True)
        table.add_column("threads work on", overflow="fold")
        for heading in ("rows", "tokens/s", "ours is", "same"):
            table.add_column(heading, justify="right", no_wrap=True)
        for row in result.rows:
            faster = result.ratios.get(f"{row['form']}_{_search(row['beam'])}")
            table.add_row(
                row["form"],
                _search(row["beam"]),
                row["threads"],
                str(row["batch_size"]),
                f"{row['tokens_per_second']:,.0f}",
                f"{faster:.2f} ×" if faster else "",
                f"{row['same_outputs']:.1%}",
            )
        return table


def _search(beam: int) -> str:
    return "greedy" if beam == 1 else f"beam_{beam}"


def _cut(rows: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _one_by_one(write: Callable[[Sequence[Any], int], list[list[int]]]) -> Writer:
    return lambda rows, beam, size: [output for batch in _cut(rows, size) for output in write(batch, beam)]


def _keeping(
    outputs: dict[str, list[list[int]]], name: str, write: Callable[[], list[list[int]]]
) -> Callable[[], None]:
    def form() -> None:
        outputs[name] = write()

    return form


def _quickest(
    tried: Mapping[tuple[str, str, int], Callable[[], object]], progress: Progress
) -> dict[str, tuple[str, int]]:
    """Of each engine the way and the size that took least.

    One try may have been disturbed, so those that came near the best are tried once more.
    """
    seconds: dict[tuple[str, str, int], float] = {}
    for number, (form, call) in enumerate(tried.items(), start=1):
        seconds[form] = _seconds(call)
        progress(number, len(tried))
    least = {name: min(seconds[form] for form in tried if form[0] == name) for name, *_ in tried}
    near = [form for form in tried if seconds[form] <= NEAR * least[form[0]]]
    for number, form in enumerate(near, start=1):
        seconds[form] = min(seconds[form], _seconds(tried[form]))
        progress(number, len(near))
    return {
        name: min((form for form in near if form[0] == name), key=lambda form: seconds[form])[1:]
        for name in least
    }


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
