"""Inspection of a trained model: the methods of `Run` that record, trace, ablate and attribute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from glassformer.core.config import validate
from glassformer.core.errors import user_error
from glassformer.data.columns import TableLayout
from glassformer.evaluation.evaluate import EvaluationConfig
from glassformer.evaluation.metrics import Progress
from glassformer.generation import DecodingConfig
from glassformer.generation.predict import Prediction
from glassformer.models.base import Model, evaluating
from glassformer.runs.experiment import Experiment, ExperimentConfig
from glassformer.runs.folder import RunFolder
from glassformer.tasks.base import Task
from glassformer.tasks.text import TextTask

if TYPE_CHECKING:  # imported in the methods that inspect: training evaluates runs, and does not inspect them
    from torch import Tensor

    from glassformer.inspection.ablation import Ablation, Effects
    from glassformer.inspection.alignment import AlignmentResult, Weighting
    from glassformer.inspection.attribution import LogitLens
    from glassformer.inspection.examples import ReferenceInput
    from glassformer.inspection.gradients import LogitParts, Method, TokenAttribution
    from glassformer.inspection.maps import AttentionMaps, Site
    from glassformer.inspection.patching import Direction, PatchResult
    from glassformer.inspection.probes import ProbeResult
    from glassformer.inspection.trace import Trace


class InspectedRun:
    """Base class of `Run` with the methods that look inside the model."""

    path: Path
    folder: RunFolder
    config: ExperimentConfig
    task: Task
    model: Model
    checkpoint: str

    def attention(
        self,
        text: str | Sequence[Any] | None = None,
        *,
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        rows: tuple[int, int] | None = None,
        site: Site | None = None,
        untrained: bool = False,
        decoding: Mapping[str, Any] | None = None,
        node: int | None = None,
    ) -> AttentionMaps:
        """Return the attention maps for an input (default: the first test example) and its predicted output.

        `layers`, `heads`, `rows` (queries) and `site` (`encoder`, `decoder` or `cross`) select a part.
        With `untrained`, the model has its initial weights. `decoding` is the strategy for the output, such
        as `{"kind": "beam"}`. `node` is the number of a node in the search tree that `trace` returns. With
        `decoding` or `node`, the maps of a language model include the generated tokens.
        """
        from glassformer.inspection.examples import prepare_input
        from glassformer.inspection.maps import Selection
        from glassformer.inspection.record import attention_maps
        from glassformer.inspection.trace import prepare_node

        tokens, text = self._input(text)
        model = self._untrained() if untrained else self.model
        about = {
            "run": self.path.name,
            "checkpoint": "untrained" if untrained else self.checkpoint,
            "input": text,
        }
        warning = self.task.warning(tokens.tolist(), text)
        about |= {} if warning is None else {"warning": warning}
        if decoding is None and node is None:
            prepared = prepare_input(model, self.task, tokens, self.config.evaluation.decoding, text)
            predicted = prepared.prediction
            about["output"] = "" if predicted is None else self.show_output(predicted)
        else:
            prepared, facts = prepare_node(model, self.task, tokens, self._strategy(decoding), node, text)
            about |= facts
        return attention_maps(model, prepared, Selection(layers, heads, rows, site), about)

    def trace(
        self, text: str | None = None, decoding: Mapping[str, Any] | None = None, alternatives: int = 5
    ) -> Trace:
        """Decode an input. Return each step with its `alternatives` likeliest tokens, and the search tree."""
        from glassformer.inspection.trace import trace

        tokens, text = self._input(text)
        traced = trace(self.model, self.task, tokens, self._strategy(decoding), alternatives, text)
        return replace(traced, warning=self.task.warning(tokens.tolist(), text))

    def heads(
        self,
        examples: int = 64,
        split: str | None = None,
        untrained: bool = False,
        ablate: Ablation | None = None,
    ) -> dict[str, Any]:
        """Return statistics of every attention head, averaged over examples, as a JSON-serialisable dict.

        The dict covers the trained and the untrained model, or with `untrained` only the untrained one. With
        `ablate` (`zero` or `mean`), it also has the effect of ablating each head, as in `ablate_head`.
        """
        from glassformer.inspection.ablation import ablate_each_head
        from glassformer.inspection.examples import group_examples
        from glassformer.inspection.heads import heads_document

        split = self._split(split)
        groups = group_examples(self.task, split, examples)
        model = self._untrained() if untrained else self.model
        return {
            "run": str(self.path),
            "checkpoint": "untrained" if untrained else self.checkpoint,
            "split": split,
            **heads_document(model, None if untrained else self._untrained(), self.task, groups),
            "ablated": ablate
            and ablate_each_head(model, self.task, ablate, groups, self.config.evaluation.decoding),
        }

    def ablate_head(
        self,
        site: Site,
        layer: int,
        head: int,
        ablation: Ablation = "mean",
        examples: int = 64,
        split: str | None = None,
        text: str | None = None,
    ) -> Effects:
        """Measure the effect of ablating one attention head on examples, and on the prediction for `text`.

        `site` is `encoder`, `decoder` or `cross`. `ablation` replaces the output of the head by zero (`zero`)
        or by its mean over the examples (`mean`).
        """
        from glassformer.inspection.ablation import head_effects
        from glassformer.inspection.examples import group_examples
        from glassformer.inspection.record import HeadId

        effects = head_effects(
            self.model,
            self.task,
            HeadId(site, layer, head),
            ablation,
            group_examples(self.task, self._split(split), examples),
            example=None if text is None else self._reference_input(text),
            decoding=self.config.evaluation.decoding,
        )
        return effects if text is None else replace(effects, warning=self._warning(text))

    def ablate_edge(
        self,
        text: str | None,
        site: Site,
        layer: int,
        head: int,
        query: int,
        key: int,
        examples: int | None = None,
        split: str | None = None,
        renormalise: bool = True,
    ) -> Effects:
        """Measure the effect of ablating an attention edge: in this head, `query` may not attend to `key`.

        `site` is `encoder`, `decoder` or `cross`. With `examples`, the edge is also ablated in that many
        examples of the same length as the input. By default the remaining weights of the query are rescaled
        to sum to 1; without `renormalise` they sum to less.
        """
        from glassformer.inspection.ablation import Edge, edge_effects
        from glassformer.inspection.record import HeadId

        effects = edge_effects(
            self.model,
            self.task,
            Edge(HeadId(site, layer, head), query, key),
            self._reference_input(text),
            split=self._split(split),
            examples=examples,
            renormalise=renormalise,
            decoding=self.config.evaluation.decoding,
        )
        return replace(effects, warning=self._warning(text))

    def occlude(
        self, text: str | None, position: int, examples: int = 16, split: str | None = None
    ) -> Effects:
        """Measure the effect of replacing one token by tokens that other examples have at its position."""
        from glassformer.inspection.ablation import token_effects

        effects = token_effects(
            self.model,
            self.task,
            self._reference_input(text),
            position,
            split=self._split(split),
            examples=examples,
            decoding=self.config.evaluation.decoding,
        )
        return replace(effects, warning=self._warning(text))

    def rollout(self, text: str | None = None) -> AttentionMaps:
        """Return the attention rollout, a rough hint at influence: one map per site, such as `encoder`."""
        from glassformer.inspection.attribution import rollout

        return rollout(self.attention(text))

    def logit_lens(self, text: str | None = None, top: int = 5) -> LogitLens:
        """Return the logit lens: the `top` tokens that the output head predicts after each layer."""
        from glassformer.inspection.attribution import logit_lens
        from glassformer.inspection.examples import prepare_input

        tokens, text = self._input(text)
        prepared = prepare_input(self.model, self.task, tokens, self.config.evaluation.decoding, text)
        return logit_lens(self.model, self.task, prepared, top)

    def states(self, text: str | Sequence[Any] | None, site: str) -> dict[str, Tensor]:
        """Return the tensors of an input at a site, such as `encoder.0.residual_post`, by the site's name.

        `gf.sites(run.model)` lists the names. A pattern such as `encoder.*.heads` selects several. The
        decoder of an encoder-decoder reads the model's own output. Tensors have no batch axis.
        """
        from glassformer.inspection.examples import prepare_input
        from glassformer.inspection.sites import record_states

        tokens, text = self._input(text)
        prepared = prepare_input(self.model, self.task, tokens, self.config.evaluation.decoding, text)
        found = record_states(self.model, prepared.inputs, [site])
        return {name: tensor[0] for name, tensor in found.items()}

    def patch(
        self,
        clean: str | Sequence[Any] | None = None,
        corrupted: str | Sequence[Any] | None = None,
        *,
        sites: Sequence[str] | None = None,
        direction: Direction = "denoising",
        examples: int | None = None,
        split: str | None = None,
    ) -> PatchResult:
        """Copy activations from one input's pass to another's, one at a time, and measure the effects.

            run.patch("27 - 35", "27 - 45")

        By default `clean` is the first test example, and `corrupted` is the same input with one token changed
        so that the output changes. `denoising` copies clean activations into the corrupted pass, `noising`
        the reverse. With `examples`, patch that many examples and their twins and return mean effects.
        """
        from glassformer.inspection.patching import DEFAULT_SITES, find_twin, patch, patch_pairs

        names, split = tuple(sites or DEFAULT_SITES), self._split(split)
        if examples is not None:
            return patch_pairs(self.model, self.task, split, examples, names, direction)
        tokens, _ = self._input(clean)
        if corrupted is None:
            other = find_twin(self.model, self.task, tokens, split)
        else:
            other, _ = self._input(corrupted)
        untrained = self._untrained()
        found = patch(self.model, self.task, tokens, other, names, direction, untrained=untrained)
        return replace(found, warning=self._warning(clean))

    def attribute(
        self,
        text: str | Sequence[Any] | None = None,
        method: Method | Literal["logits"] = "integrated-gradients",
        *,
        output: int | None = None,
        rather_than: str | None = None,
        progress: Progress | None = None,
    ) -> TokenAttribution | LogitParts:
        """Return what carries the model's output rather than another one.

            run.attribute("a lovely film", rather_than="negative")
            run.attribute("27 - 35", method="logits", output=1)

        `integrated-gradients`, `gradient-input` and `occlusion` attribute to input tokens, `logits` to heads
        and layers. `output` is the position of the output, counted from 0. `rather_than` is the other output
        (default: the second most likely).
        """
        from glassformer.inspection.gradients import attribute, logit_parts, output_named

        tokens, shown = self._input(text)
        other = None if rather_than is None else output_named(self.task, rather_than)
        if method == "logits":
            parts = logit_parts(self.model, self.task, tokens, output=output, other=other)
            return replace(parts, warning=self._warning(shown))
        found = attribute(
            self.model,
            self.task,
            tokens,
            method,
            output=output,
            other=other,
            text=shown,
            untrained=self._untrained(),
            progress=progress,
        )
        warnings = [each for each in (self._warning(shown), found.baseline_warning) if each is not None]
        return replace(found, warning="; ".join(warnings) or None)

    def attribution_matrix(
        self,
        text: str | Sequence[Any] | None = None,
        method: Method = "integrated-gradients",
        *,
        progress: Progress | None = None,
    ) -> tuple[list[str], np.ndarray]:
        """Return the generated tokens of an encoder-decoder, and the attributions (generated, input)."""
        from glassformer.inspection.gradients import attribution_matrix
        from glassformer.tasks.base import Seq2SeqTask

        if not isinstance(self.task, Seq2SeqTask):
            hint = "attribute without --matrix: this model has no decoder"
            raise user_error("only an encoder-decoder generates from an input", path="matrix", hint=hint)
        return attribution_matrix(self.model, self.task, self._input(text)[0], method, progress=progress)

    @cached_property
    def input_columns(self) -> list[str] | None:
        """Names of the columns that the inputs were read from in training; None if they had no names."""
        from glassformer.runs.predict_file import training_layout  # training need not load it

        names: list[str] | None = self.folder.environment().get("input_columns")
        layout = training_layout(self.task)
        if names is None and layout is not None:
            roles = TableLayout.from_document(layout).role_names()
            names = list(roles["input"]) if roles and "input" in roles else None
        return names

    def select_columns(self, values: Any, path: str) -> Any:
        """Return the columns of a DataFrame that the model reads. Return other data as they are.

        Raise UserError if the DataFrame lacks one of `input_columns`.
        """
        from glassformer.data.memory import select_columns  # training need not load it

        return select_columns(values, self.input_columns, path, is_text=isinstance(self.task, TextTask))

    def probe(
        self,
        label: str,
        *,
        examples: int = 500,
        split: str | None = None,
        sites: Sequence[str] | None = None,
        seeds: int = 3,
        file: str | Path | None = None,
        removes: bool = True,
        progress: Progress | None = None,
    ) -> ProbeResult:
        """Measure how well a linear classifier reads a label from each layer and position.

            run.probe("carry"); run.probe("gender"); run.probe("token")
            run.probe("genre", file="texts.csv")     # a column of your own file

        `examples` of train fit the probes, and as many of `split` measure them; of a file, every fifth row
        measures. `seeds` is the number of control tasks and of untrained models. With `removes`, the
        directions that were found are removed, and the loss is measured again.
        """
        from glassformer.inspection.probes import (
            DEFAULT_SITES,
            Collect,
            label_names,
            labelled_batches,
            probe,
        )
        from glassformer.runs.labelled_file import labelled_file

        split = self._split(split)
        indices = self._probed(split, examples)
        train: Collect
        test: Collect
        train, test = (partial(labelled_batches, self.task, label, *pair) for pair in indices.items())
        meaning = label_names(self.task).get(label, "")
        if file is not None:
            strategy = self.config.evaluation.decoding
            train, test = labelled_file(self.model, self.task, Path(file), label, self.config, strategy)
            meaning = f"column of {Path(file).name}"
        measured = labelled_batches(self.task, "token", split, indices[split])
        return probe(
            self.model,
            self.task,
            label,
            train,
            test,
            untrained=[self._untrained(self.config.seed + number) for number in range(seeds)],
            measured=[each.batch for each in measured],
            split=split if file is None else Path(file).name,
            meaning=meaning,
            names=tuple(sites or DEFAULT_SITES),
            removes=removes,
            progress=progress,
        )

    def _probed(self, split: str, count: int) -> dict[str, np.ndarray]:
        """Return the indices of the examples that fit probes, and of those that measure them."""
        if split == "train":
            hint = "probes are fitted on train: measure them on validation or test"
            raise user_error("not measured on the examples of the fit", path="split", value=split, hint=hint)
        random = np.random.default_rng(self.config.seed)
        return {
            name: np.sort(random.permutation(len(self.task.splits[name]))[:count])
            for name in ("train", split)
        }

    def align(
        self,
        text: str | Sequence[Any] | None = None,
        *,
        split: str | None = None,
        examples: int = 200,
        layer: int | None = None,
        head: int | None = None,
        weighting: Weighting | None = None,
        gold: str | Path | None = None,
        progress: Progress | None = None,
    ) -> AlignmentResult:
        """Link source words to generated words by the cross-attention of one head of an encoder-decoder.

            run.align("The small girl sings.")       # the model's own output
            run.align(split="test").aer              # the targets of a split, and the error rate

        The head is the best one on `examples` of the validation set, unless `layer` and `head` choose it.
        `weighting` is `attention` or `norm`; by default, the better one. `gold` is a file with one line of
        links such as `0-0 1-2` per example of the split, for tasks that do not know them.
        """
        from glassformer.inspection.alignment import (
            AlignmentResult,
            GoldPairs,
            align_split,
            best_head,
            check_aligns,
            chosen_head,
            read_gold,
            read_pairs,
        )

        task = check_aligns(self.task)
        chosen = chosen_head(self.model, layer, head, weighting)
        if text is None or split is not None or gold is not None:
            split = self._split(split)
            return align_split(
                self.model,
                self._untrained(),
                task,
                split,
                examples,
                chooses_on="train" if split == "validation" else "validation",
                head=chosen,
                weighting=weighting,
                gold=None if gold is None else read_gold(Path(gold)),
                progress=progress,
            )
        tokens, shown = self._input(text)
        if chosen is None:
            pairs = GoldPairs.of(task, "validation", examples)
            found = read_pairs(self.model, task, pairs.sources, pairs.targets)
            chosen, _ = best_head(found, pairs.fitting(found), weighting)
        with evaluating(self.model):
            best = task.predict(self.model, [tokens], self.config.evaluation.decoding)[0][0]
        (aligned,) = read_pairs(self.model, task, [tokens], [best.tokens])
        return AlignmentResult([aligned.pair(chosen)], chosen, warning=self._warning(shown))

    def _reference_input(self, text: str | None) -> ReferenceInput:
        from glassformer.inspection.examples import reference_input

        tokens, text = self._input(text)
        return reference_input(self.model, self.task, tokens, self.config.evaluation.decoding, text)

    def _split(self, split: str | None) -> str:
        """Return `split`, or by default `test` if it exists, else `validation`. Reject an unknown split."""
        if split is None:
            return "test" if "test" in self.task.splits else "validation"
        if not isinstance(split, str) or split not in self.task.splits:
            raise user_error("no such split", path="split", value=split, allowed=sorted(self.task.splits))
        return split

    def _strategy(self, decoding: Mapping[str, Any] | None) -> DecodingConfig:
        if not decoding:
            return self.config.evaluation.decoding
        return validate(EvaluationConfig, {"decoding": dict(decoding)}).decoding

    def _input(self, text: str | Sequence[Any] | None) -> tuple[np.ndarray, str]:
        """Return token ids and text of an input. If `text` is None, the input is the first example."""
        from glassformer.inspection.examples import first_input

        if text is None:
            return first_input(self.task)
        from glassformer.data.memory import is_table, plain_list

        text = self.select_columns(text, "text")
        if is_table(text):
            rows = plain_list(text, "text")
            if len(rows) != 1:
                raise user_error(
                    f"expected one input, not a table of {len(rows):,}", path="text", hint="df.iloc[[0]]"
                )
            text = rows[0]
        if not isinstance(text, (str, list, tuple)) or (text and isinstance(text[0], (list, tuple))):
            raise user_error("expected one input", path="text", value=text, hint="pass one text")
        return self.task.read_input(text)

    def _warning(self, text: str | Sequence[Any] | None) -> str | None:
        """Return a reason not to trust the output for an input, as `predict` has it, or None."""
        tokens, shown = self._input(text)
        return self.task.warning(tokens.tolist(), shown)

    def _untrained(self, seed: int | None = None) -> Model:
        """Build the same model with its initial weights, or with those of another seed."""
        config = self.config if seed is None else self.config.model_copy(update={"seed": seed})
        model = Experiment(config, self.task).build_model()
        return model.to(next(self.model.parameters()).device).eval()

    def show_output(self, prediction: Prediction) -> str:
        """Return a prediction as one line of text."""
        return self.task.show_prediction(prediction)
