"""Benchmark of translation: ours, Hugging Face and CTranslate2 decode a test set with the same weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from glassformer.bench.base import Progress, Result, empty_table, seconds_per_call, time_alternately
from glassformer.bench.train import TranslationBenchmark
from glassformer.core.errors import UserError
from glassformer.core.registry import register
from glassformer.core.system import machine

if TYPE_CHECKING:
    from rich.table import Table

    from glassformer.models.base import Model
    from glassformer.runs.run import Run

OURS, OURS_INT8 = "glassformer", "glassformer_int8"
RATIOS = {
    "huggingface": ("huggingface", OURS),
    "huggingface_int8": ("huggingface", OURS_INT8),
    "ctranslate2": ("ctranslate2", OURS),
    "ctranslate2_int8": ("ctranslate2_int8", OURS_INT8),
    "ctranslate2_as_it_comes": ("ctranslate2_as_it_comes", OURS),
    "int8": (OURS, OURS_INT8),
}
"""Ratios by name: how many times as long the first form takes as the second."""
REFERENCES = {OURS_INT8: OURS, "ctranslate2_int8": OURS_INT8}
"""Form with whose outputs another form is compared; all others are compared with ours in fp32."""
SLOW = {"huggingface": 4, "ctranslate2_as_it_comes": 4}
"""Forms that decode only every n-th sentence, so that the benchmark ends in time."""
GREEDY_BATCH_SIZES, BEAM_BATCH_SIZES = (64, 128, 256), (32, 64, 128)
"""Batch sizes that are tried, in greedy decoding and in beam search."""
GREEDY_TRIAL, BEAM_TRIAL = 512, 192
"""Maximum number of sentences on which the batch sizes are tried, in greedy decoding and in beam search."""
RETRY_FACTOR = 1.3
"""A batch size is timed again if it takes at most this many times as long as the fastest one."""
CTRANSLATE2: dict[str, Literal["float32", "int8"]] = {"ctranslate2": "float32", "ctranslate2_int8": "int8"}
"""Number type of the matrices of each form of CTranslate2."""
MAX_TOKENS = 40
"""Maximum length in tokens. The briefly trained model does not always generate an end token."""
MIN_AGREEMENT = 0.95
"""Minimum share of greedy outputs in fp32 that equal ours, because rounding may flip a near tie.

Outputs in int8 need not be equal, because each library rounds in its own way. Beam search is not compared:
each library has its own stopping rule.
"""

Decoder = Callable[[Sequence[Any], int, int], list[list[int]]]
"""Function of token rows, beam size and batch size that returns the decoded token rows."""

ONE_BATCH, CONCURRENT = "all on one batch", "one batch each"
"""Two ways to use the CPU threads."""


@register
class DecodeBenchmark(TranslationBenchmark):
    """Translation speed with the same weights, in fp32 and in int8: ours, Hugging Face and CTranslate2."""

    kind: Literal["decode"] = "decode"
    repeats: int = Field(3, ge=1, le=10_000, description="timed samples per implementation")
    beam: int = Field(4, ge=2, description="beam size; greedy decoding is measured too")
    sentences: int = Field(1000, ge=1, description="maximum number of test sentences")
    training_steps: int = Field(
        300, ge=1, description="training steps of the model, which is trained once and reused"
    )
    folder: str = Field("runs", description="folder for the trained model")

    def measure(self, progress: Progress) -> Result:
        import torch

        run = self._trained()
        examples = run.task.splits["test"]
        sources = [examples.inputs[number] for number in range(min(self.sentences, len(examples)))]
        sources.sort(key=len)
        decoders = self._decoders(run, torch.get_num_threads())
        rows: list[dict[str, Any]] = []
        for beam in (1, self.beam):
            rows += self._compare(decoders, sources, beam, progress)
        seconds = {(row["form"], row["beam"]): row["seconds"] / row["sentences"] for row in rows}
        ratios: dict[str, float] = {}
        for name, (form, ours) in RATIOS.items():
            if form in decoders and ours in decoders:
                each = {beam: seconds[form, beam] / seconds[ours, beam] for beam in (1, self.beam)}
                ratios |= {f"{name}_{_search(beam)}": ratio for beam, ratio in each.items()}
                ratios[name] = min(each.values())
        required = {form for form in decoders if not form.endswith("int8")}
        wrong = [
            row["form"]
            for row in rows
            if row["beam"] == 1 and row["form"] in required and row["same_outputs"] < MIN_AGREEMENT
        ]
        error = f"different outputs with the same weights: {', '.join(wrong)}" if wrong else ""
        notes = {"sentences": len(sources), "run": str(run.path)}
        return Result(self.kind, machine(), rows, ratios, error, notes)

    def _trained(self) -> Run:
        from glassformer.runs.folder import RunFolder
        from glassformer.runs.run import Run
        from glassformer.runs.session import TrainingSession
        from glassformer.training.progress import LineReporter

        changes = {
            "task.max_length": MAX_TOKENS,
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
            TrainingSession(config, folder, LineReporter()).run()
        return Run(folder.path)

    def _decoders(self, run: Run, threads: int) -> dict[str, dict[str, Decoder]]:
        """Return the decoding functions: library → way to use the threads → function."""
        import torch

        from glassformer.data.tokenizers import BEGIN, MASK, PAD, UNKNOWN
        from glassformer.generation import BeamConfig, GreedyConfig
        from glassformer.generation.predict import with_weights
        from glassformer.models.seq2seq import EncoderDecoder
        from glassformer.tasks.base import Seq2SeqTask

        model, task = run.model, run.task
        assert isinstance(model, EncoderDecoder) and isinstance(task, Seq2SeqTask)
        sizes = self.sizes(task)
        forbidden = [PAD, UNKNOWN, BEGIN, MASK]

        def own(model: Model) -> dict[str, Decoder]:
            def decode(rows: Sequence[Any], beam: int) -> list[list[int]]:
                decoding = BeamConfig(size=beam) if beam > 1 else GreedyConfig()
                return [best.tokens for best, *_ in task.predict(model, rows, decoding, is_scored=False)]

            return {ONE_BATCH: _sequentially(decode), CONCURRENT: _concurrently(model, decode, threads)}

        from glassformer.bench import peers

        decoders = {OURS: own(model)}
        with suppress(UserError):  # a processor without the kernels has no rows in int8
            decoders[OURS_INT8] = own(with_weights(model, "int8"))
        weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}
        zeros = torch.zeros(1, sizes.max_length, sizes.width)
        positions = torch.arange(sizes.max_length)[None]
        positions_LD = model.embedding.position.embed(zeros, positions)[0]
        if find_spec("transformers"):
            theirs = peers.marian_weights(weights, positions_LD, sizes.layers)
            decoders["huggingface"] = {
                ONE_BATCH: _sequentially(peers.huggingface_decoder(sizes, theirs, forbidden))
            }
        if find_spec("ctranslate2"):
            for name, number_type in CTRANSLATE2.items():
                sequential, concurrent = (
                    peers.ctranslate2_decoder(model, forbidden, threads, concurrency, number_type)
                    for concurrency in (1, threads)
                )
                decoders[name] = {ONE_BATCH: sequential, CONCURRENT: concurrent}
            decoders["ctranslate2_as_it_comes"] = {ONE_BATCH: decoders["ctranslate2"][ONE_BATCH]}
        return decoders

    def _compare(
        self, decoders: dict[str, dict[str, Decoder]], sources: list[Any], beam: int, progress: Progress
    ) -> list[dict[str, Any]]:
        """Return one row per form, timed with its fastest batch size and use of threads."""
        sizes, trial = (GREEDY_BATCH_SIZES, GREEDY_TRIAL) if beam == 1 else (BEAM_BATCH_SIZES, BEAM_TRIAL)
        of_form = {name: sources[:: SLOW.get(name, 1)] for name in decoders}
        some = {name: own[:: math.ceil(len(own) / trial)] for name, own in of_form.items()}
        tried = {
            (name, way, size): partial(decoder, some[name], beam, size)
            for name, ways in decoders.items()
            for way, decoder in ways.items()
            for size in sizes
            if way == ONE_BATCH or size < len(some[name])
        }
        for ways in decoders.values():
            for decoder in ways.values():
                decoder(sources[-8:], beam, 4)  # warm-up: the first call allocates memory
        best = _quickest(tried, progress)
        outputs: dict[str, list[list[int]]] = {}
        forms = {
            name: _storing(outputs, name, partial(ways[best[name][0]], of_form[name], beam, best[name][1]))
            for name, ways in decoders.items()
        }
        timings = time_alternately(forms, self.repeats, progress)
        rows = []
        for name, timing in timings.items():
            tokens = sum(len(output) + 1 for output in outputs[name])
            reference = outputs[REFERENCES.get(name, OURS)][:: SLOW.get(name, 1)]
            same = sum(mine == other for mine, other in zip(reference, outputs[name], strict=True))
            rows.append(
                {
                    "form": name,
                    "beam": beam,
                    "batch_size": best[name][1],
                    "threads": best[name][0],
                    **timing.as_row(),
                    "sentences": len(of_form[name]),
                    "tokens": tokens,
                    "tokens_per_second": tokens / timing.median,
                    "same_outputs": same / len(reference),
                }
            )
        return rows

    def show(self, result: Result) -> Table:
        table = empty_table(
            f"translating {result.notes['sentences']:,} sentences of {self.source}",
            ["form", "search", "threads work on"],
            ["batch", "tokens/s", "relative", "same"],
        )
        seconds = {(row["form"], row["beam"]): row["seconds"] / row["sentences"] for row in result.rows}
        for row in result.rows:
            of_ours = seconds[OURS, row["beam"]] / seconds[row["form"], row["beam"]]
            table.add_row(
                row["form"],
                _search(row["beam"]),
                row["threads"],
                str(row["batch_size"]),
                f"{row['tokens_per_second']:,.0f}",
                f"{of_ours:.2f} ×",
                f"{row['same_outputs']:.1%}",
            )
        return table


def _search(beam: int) -> str:
    return "greedy" if beam == 1 else f"beam_{beam}"


def _batches(rows: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _sequentially(decode: Callable[[Sequence[Any], int], list[list[int]]]) -> Decoder:
    return lambda rows, beam, size: [
        output for batch in _batches(rows, size) for output in decode(batch, beam)
    ]


def _concurrently(
    model: Model, decode: Callable[[Sequence[Any], int], list[list[int]]], threads: int
) -> Decoder:
    """Return a decoder that computes one batch per thread at the same time."""

    from glassformer.generation import round_robin, run_concurrently

    def decode_concurrently(rows: Sequence[Any], beam: int, size: int) -> list[list[int]]:
        parts = [
            part for some in _batches(range(len(rows)), size * threads) for part in round_robin(some, threads)
        ]
        parts = parts[::-1]  # the longest first
        decoded = run_concurrently(model, lambda part: decode([rows[index] for index in part], beam), parts)
        outputs = dict(zip(chain(*parts), chain(*decoded), strict=True))
        return [outputs[index] for index in range(len(rows))]

    return decode_concurrently


def _storing(
    outputs: dict[str, list[list[int]]], name: str, decode: Callable[[], list[list[int]]]
) -> Callable[[], None]:
    def form() -> None:
        outputs[name] = decode()

    return form


def _quickest(
    tried: Mapping[tuple[str, str, int], Callable[[], object]], progress: Progress
) -> dict[str, tuple[str, int]]:
    """Return the fastest use of threads and batch size by library.

    Combinations close to the fastest are timed again, because a single timing may have been disturbed.
    """
    seconds: dict[tuple[str, str, int], float] = {}
    for number, (form, call) in enumerate(tried.items(), start=1):
        seconds[form] = seconds_per_call(call)
        progress(number, len(tried))
    least = {name: min(seconds[form] for form in tried if form[0] == name) for name, *_ in tried}
    near = [form for form in tried if seconds[form] <= RETRY_FACTOR * least[form[0]]]
    for number, form in enumerate(near, start=1):
        seconds[form] = min(seconds[form], seconds_per_call(tried[form]))
        progress(number, len(near))
    return {
        name: min((form for form in near if form[0] == name), key=lambda form: seconds[form])[1:]
        for name in least
    }
