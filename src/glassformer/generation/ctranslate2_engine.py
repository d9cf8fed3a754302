"""Decoding engine CTranslate2: it generates the outputs of a model, after a comparison with our own."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version
from itertools import repeat
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

import numpy as np
import torch

from glassformer.core.errors import user_error
from glassformer.data.batching import pad
from glassformer.generation.ctranslate2 import Vocabulary, write_model
from glassformer.generation.decoding import generate
from glassformer.generation.predict import CTranslate2EngineConfig, Engine
from glassformer.generation.search import Hypothesis
from glassformer.generation.strategies import BeamConfig, DecodingConfig, GreedyConfig
from glassformer.models.base import Model
from glassformer.models.task_types import Seq2Seq, TaskType

Hypotheses = list[list[Hypothesis]]
Decode = Callable[[Sequence[int], DecodingConfig], Hypotheses]
"""Function of row indices and a decoding strategy that returns the hypotheses of each row."""

CHECKED_ROWS = 16
"""Number of rows of the first batch that are decoded by both engines and compared."""
MAX_BATCH_ROWS = 64
"""Maximum number of rows that CTranslate2 decodes at once."""


class CTranslate2Engine(Engine):
    """CTranslate2 with the weights of a model, whose token ids are its words.

    The model is converted on first use. Later changes of its weights have no effect on the engine.
    """

    def __init__(self, model: Model, fallback: bool = False) -> None:
        self.name = f"ctranslate2 {version('ctranslate2')}"
        self._model = model
        self._fallback = fallback
        self._lock = Lock()
        self._runner: Any = None
        self._is_checked = self._is_rejected = False

    def translate(
        self,
        rows: Sequence[np.ndarray],
        *,
        begin: int,
        end: int,
        decoding: DecodingConfig,
        forbidden: Sequence[int],
        is_scored: bool,
    ) -> Hypotheses:
        sources = [[_source_word(token) for token in row.tolist()] for row in rows]

        def own(indices: Sequence[int], strategy: DecodingConfig) -> Hypotheses:
            tokens_BL, mask_BL = pad([rows[index] for index in indices])
            return generate(
                self._model,
                {"tokens": tokens_BL, "mask": mask_BL},
                begin=begin,
                end=end,
                strategy=strategy,
                forbidden=forbidden,
                is_scored=is_scored,
            )

        def theirs(indices: Sequence[int], strategy: DecodingConfig) -> Hypotheses:
            chosen = [sources[index] for index in indices]
            results = self._runner.translate_batch(
                chosen,
                max_input_length=0,
                max_decoding_length=_longest(self._model.task_type),
                min_decoding_length=0,
                **self._options(strategy, forbidden),
            )
            found = [result.hypotheses for result in results]
            return self._hypotheses(found, end, strategy, chosen if is_scored else None)

        self._prepare(begin, end)
        return self._decode(own, theirs, len(rows), decoding)

    def continue_rows(
        self,
        rows: Sequence[np.ndarray],
        *,
        end: int | None,
        max_length: Sequence[int],
        decoding: DecodingConfig,
        forbidden: Sequence[int],
    ) -> Hypotheses:
        prompts = [[str(token) for token in row.tolist()] for row in rows]

        def own(indices: Sequence[int], strategy: DecodingConfig) -> Hypotheses:
            tokens_BL, mask_BL = pad([rows[index] for index in indices])
            return generate(
                self._model,
                prompt=tokens_BL,
                mask=mask_BL,
                end=end,
                max_length=[max_length[index] for index in indices],
                strategy=strategy,
                forbidden=forbidden,
            )

        def theirs(indices: Sequence[int], strategy: DecodingConfig) -> Hypotheses:
            found: dict[int, list[Hypothesis]] = {}
            # CTranslate2 has one limit per call.
            for limit in {max_length[index] for index in indices}:
                group = [index for index in indices if max_length[index] == limit]
                chosen = [prompts[index] for index in group]
                results = self._runner.generate_batch(
                    chosen,
                    max_length=limit,
                    include_prompt_in_result=False,
                    **self._options(strategy, forbidden),
                )
                texts = [result.sequences for result in results]
                found |= zip(group, self._hypotheses(texts, end, strategy, chosen), strict=True)
            return [found[index] for index in indices]

        self._prepare(None, end)
        return self._decode(own, theirs, len(rows), decoding)

    def _prepare(self, begin: int | None, end: int | None) -> None:
        """Convert the model and load it, once."""
        with self._lock:
            if self._runner is not None:
                return
            import ctranslate2

            task_type, threads = self._model.task_type, torch.get_num_threads()
            is_seq2seq = isinstance(task_type, Seq2Seq)
            names = ["<none>" if token is None else str(token) for token in (begin, end)]
            size = _generated_vocabulary(task_type)
            target = Vocabulary([str(number) for number in range(size)], names[0], names[1], "<unknown>")
            source = replace(target, tokens=[_source_word(number) for number in range(task_type.vocabulary)])
            with TemporaryDirectory(prefix="glassformer-engine-") as folder:
                write_model(self._model, folder, source if is_seq2seq else target, target, extra_positions=1)
                make = ctranslate2.Translator if is_seq2seq else ctranslate2.Generator
                self._runner = make(
                    folder, device="cpu", compute_type="float32", inter_threads=threads, intra_threads=1
                )
            torch.set_num_threads(threads)  # CTranslate2 changes the threads of the whole process

    def _decode(self, own: Decode, theirs: Decode, count: int, decoding: DecodingConfig) -> Hypotheses:
        """Decode all rows. The first call compares the greedy outputs of both engines for a few rows."""
        with self._lock:
            if not self._is_checked and count:
                self._check(own, theirs, range(min(count, CHECKED_ROWS)))
        return (own if self._is_rejected else theirs)(range(count), decoding)

    def _check(self, own: Decode, theirs: Decode, indices: Sequence[int]) -> None:
        ours, others = own(indices, GreedyConfig()), theirs(indices, GreedyConfig())
        pairs = zip(ours, others, strict=True)
        different = sum(mine[0].tokens != other[0].tokens for mine, other in pairs)
        self._is_checked = True
        if not different:
            return
        message = f"CTranslate2 decodes {different} of the first {len(indices)} outputs differently"
        if not self._fallback:
            self._is_checked = False
            raise user_error(
                message,
                path="evaluation.engine",
                value="ctranslate2",
                hint="use evaluation.engine=glassformer (--engine glassformer), or"
                " evaluation.engine.fallback=true",
            )
        self._is_rejected, self.name = True, "glassformer, because CTranslate2 decodes differently"
        warnings.warn(f"{message}: glassformer decodes instead", stacklevel=2)

    def _options(self, decoding: DecodingConfig, forbidden: Sequence[int]) -> dict[str, Any]:
        """Return the options of a decoding strategy. With the end token, lengths count as ours do."""
        CTranslate2EngineConfig().check_decoding(decoding)
        options: dict[str, Any] = {
            "max_batch_size": MAX_BATCH_ROWS,
            "suppress_sequences": [[str(token)] for token in forbidden],
            "return_end_token": True,
            "beam_size": 1,
        }
        if isinstance(decoding, BeamConfig):
            options |= {
                "beam_size": decoding.size,
                "length_penalty": decoding.length_penalty,
                "num_hypotheses": decoding.n_best,
            }
        return options

    def _hypotheses(
        self,
        found: Sequence[Sequence[list[str]]],
        end: int | None,
        decoding: DecodingConfig,
        inputs: Sequence[list[str]] | None,
    ) -> Hypotheses:
        """Return words as hypotheses. With the `inputs` of the rows, each token gets its log-probability."""
        rows = [[[int(word) for word in words] for words in texts] for texts in found]
        logs: Iterator[list[float]] = repeat([])
        if inputs is not None:
            pairs = [(row, words) for row, texts in zip(inputs, found, strict=True) for words in texts]
            logs = iter(self._log_probabilities(pairs, str(end)))
        hypotheses = []
        for row in rows:
            ranked = []
            for tokens in row:
                values = next(logs)[: len(tokens)]
                is_finished = tokens[-1:] == [end]
                score = math.fsum(values) if values else math.nan
                if isinstance(decoding, BeamConfig):
                    score /= max(len(tokens), 1) ** decoding.length_penalty
                shown = tokens[:-1] if is_finished else tokens
                ranked.append(Hypothesis(shown, values, score, is_finished))
            hypotheses.append(ranked)
        return hypotheses

    def _log_probabilities(self, pairs: Sequence[tuple[list[str], list[str]]], end: str) -> list[list[float]]:
        """Return the log-probability of each generated word, for pairs (input, output).

        Suppressed words do not change it, as they do in the scores that CTranslate2 decodes by.
        """
        if isinstance(self._model.task_type, Seq2Seq):
            sources = [source for source, _ in pairs]
            targets = [words[:-1] if words[-1:] == [end] else words for _, words in pairs]
            results = self._runner.score_batch(
                sources, targets, max_batch_size=MAX_BATCH_ROWS, max_input_length=0
            )
            return [result.log_probs for result in results]
        whole = [prompt + words for prompt, words in pairs]
        results = self._runner.score_batch(whole, max_batch_size=MAX_BATCH_ROWS, max_input_length=0)
        return [
            result.log_probs[len(prompt) - 1 :] for result, (prompt, _) in zip(results, pairs, strict=True)
        ]


def _source_word(token: int) -> str:
    """Return the word of a source token. CTranslate2 skips sources of only begin and end words."""
    return f"source {token}"


def _generated_vocabulary(task_type: TaskType) -> int:
    return task_type.target_vocabulary if isinstance(task_type, Seq2Seq) else task_type.vocabulary


def _longest(task_type: TaskType) -> int:
    return task_type.max_target_length if isinstance(task_type, Seq2Seq) else task_type.max_length
