"""Study inside reversal models: which heads move a token to its mirrored position, where, and since when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassformer.inspection.circuits import effect_on_outputs, smallest_set, teacher_forced
from glassformer.inspection.examples import group_examples
from glassformer.inspection.heads import average_heads
from glassformer.inspection.patching import PairBatch
from glassformer.inspection.sites import sites
from glassformer.models.base import Model
from glassformer.plotting.grid import Panel, draw_panels
from glassformer.plotting.lines import save
from glassformer.runs.run import Run
from glassformer.studies.inside import (
    InsideStudy,
    draw_removal,
    draw_steps,
    first_step,
    head_set_numbers,
    snapshots,
)
from glassformer.studies.recipes import Setting
from glassformer.studies.study import Job, StudyContext, load_definition, texts_of
from glassformer.tasks.base import Task

DEFINITION = load_definition("inside")["reversal"]
PATTERN = "anti-diagonal"
PAIRS = 128
CHOOSING, MEASURING = 64, 256
"""Number of examples on which heads are chosen, and number on which the choice is measured."""
PLACES = ("own position", "mirrored position")


def token_pairs(task: Task, count: int = PAIRS) -> tuple[PairBatch, Tensor]:
    """Return pairs of sequences that differ in one token, and the position of that token in each pair (N)."""
    rows = np.stack([np.asarray(task.splits["test"].inputs[index]) for index in range(count)])
    base = torch.from_numpy(rows.astype(np.int64))
    vocabulary, length = task.task_type.vocabulary, base.shape[1]
    rng = np.random.default_rng(0)
    at, shift = (
        torch.from_numpy(rng.integers(low, high, count)) for low, high in ((0, length), (1, vocabulary))
    )
    every = torch.arange(count)
    donor = base.clone()
    donor[every, at] = (donor[every, at] + shift) % vocabulary
    pairs = PairBatch(
        {"tokens": base, "mask": None},
        {"tokens": donor, "mask": None},
        length - 1 - at,
        donor[every, at],
        base[every, at],
    )
    return pairs, at


def patch_token(model: Model, pairs: PairBatch, at: Tensor) -> dict[str, list[float]]:
    """Return the effects of patching the token's own and its mirrored position, and each head, by site."""
    cells: dict[str, Sequence[Tensor | int]] = {}
    for name, site in sites(model).items():
        part = name.split(".")[-1]
        if part in ("embedding", "attention", "feed_forward", "residual_post"):
            cells[name] = [at, pairs.output]
        elif part == "heads":
            cells[name] = range(site.module.num_heads)  # type: ignore[arg-type]
    return pairs.effects(model, cells)


@dataclass(frozen=True, kw_only=True)
class InsideReversal(InsideStudy):
    """Study of the heads that mirror a sequence."""

    def inspect(self, run: Run, job: Job, context: StudyContext) -> dict[str, Any]:
        task, model = run.task, run.model
        choosing = group_examples(task, "validation", CHOOSING)
        measuring = group_examples(task, "test", MEASURING)
        smallest = smallest_set(model, choosing, measuring)
        outputs = {
            name: float(np.mean(values))
            for name, values in effect_on_outputs(model, choosing, measuring).items()
        }
        mass = (
            average_heads(model, task, choosing, has_intervals=False)["encoder"].patterns[PATTERN].mass.mean
        )
        curves: dict[str, list[Any]] = {"step": [], "outputs right": [], "best head on the anti-diagonal": []}
        for step, earlier in snapshots(run):
            seen = average_heads(earlier, task, choosing, has_intervals=False)["encoder"]
            values = (
                step,
                float(teacher_forced(earlier, choosing)[0].mean()),
                float(seen.patterns[PATTERN].mass.mean.max()),
            )
            for name, value in zip(curves, values, strict=True):
                curves[name].append(value)
        steps = curves.pop("step")
        patched = patch_token(model, *token_pairs(task))
        numbers: dict[str, float | None] = {
            **head_set_numbers(smallest),
            "fall of the accuracy without the most important head": max(outputs.values()),
            "attention of the best head on the anti-diagonal": float(mass.max()),
        }
        for site, effects in patched.items():
            if site.split(".")[-1] in ("embedding", "residual_post"):
                numbers |= {
                    f"token moved by {site}, {place}": effect
                    for place, effect in zip(PLACES, effects, strict=True)
                }
        numbers["first step with 90 % of the outputs right"] = first_step(steps, curves["outputs right"])
        numbers["first step with half of the best head's attention on the anti-diagonal"] = first_step(
            steps, curves["best head on the anti-diagonal"], 0.5
        )
        return {
            "numbers": numbers,
            "smallest": smallest.document(),
            "outputs": outputs,
            "anti-diagonal": mass.tolist(),
            "patched": patched,
            "steps": steps,
            "curves": curves,
        }

    def pictures(self, found: Sequence[Mapping[str, Any]], folder: Path) -> list[str]:
        names = ["outputs right", "best head on the anti-diagonal"]
        return [
            *self._draw_heads(found, folder / "heads"),
            *draw_steps(found, names, "When reversal is learnt", "share", folder / "steps"),
            *draw_removal(found, "How few heads suffice", folder / "removal"),
        ]

    def _draw_heads(self, found: Sequence[Mapping[str, Any]], file: Path) -> list[str]:
        """Draw attention on the anti-diagonal, patching effect and ablation effect of each head."""
        panels = []
        for each in found:
            heads = list(each["outputs"])
            effects = [
                value
                for name, values in each["patched"].items()
                if name.endswith(".heads")
                for value in values
            ]
            rows = {
                "attention on the anti-diagonal": [
                    value for layer in each["anti-diagonal"] for value in layer
                ],
                "token moved by patching the head": effects,
                "fall of the accuracy without it": list(each["outputs"].values()),
            }
            title = f"{each['setting']}, seed {each['seed']}"
            panels.append(Panel(title, list(rows), heads, np.array(list(rows.values())), shows_numbers=True))
        caption = "Where a head reads, what it carries, and how much it is needed"
        return save(draw_panels(panels, "Heads of reversal models", caption), file)

    def sections(self, document: Mapping[str, Any]) -> list[str]:
        """Return the lines of `table.md` on heads, patching and training."""
        lines = ["## Which heads move the tokens", "", "![Heads](heads.png)", "", DEFINITION["heads"], ""]
        lines += ["## When it appears", "", "![Training](steps.png)", ""]
        lines += ["## Which heads suffice", "", "![Removal](removal.png)", ""]
        for each in document["inside"]:
            smallest = each["smallest"]
            heads = ", ".join(smallest["heads"]) or "no head"
            exact = f"an exact match of {smallest['exact_match']:.3f}"
            lines.append(f"- {each['setting']}, seed {each['seed']}: {heads} keep {exact}.")
        return [*lines, ""]


INSIDE_REVERSAL = InsideReversal(
    **texts_of(DEFINITION),
    settings=[
        Setting(
            name=name,
            published=None,
            source="reversal",
            overrides={**DEFINITION["overrides"], **changes},
            is_quick=True,
            quick=DEFINITION["quick"],
        )
        for name, changes in DEFINITION["settings"].items()
    ],
)
