"""Study inside arithmetic models: which heads carry which digit, and where and when the carry appears."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassformer.inspection.ablation import ablate_heads, all_heads, mean_outputs
from glassformer.inspection.circuits import effect_on_outputs, smallest_set, teacher_forced
from glassformer.inspection.examples import ExampleGroup, group_examples
from glassformer.inspection.patching import PairBatch
from glassformer.inspection.record import layers
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
from glassformer.tasks.arithmetic import SYMBOLS, ArithmeticTask

DEFINITION = load_definition("inside")["arithmetic"]
OUTPUTS = ("sign", "tens", "ones", "end")
ADD = SYMBOLS.index("add")
FIRST_ONES, SECOND_ONES = 3, 7
"""Input positions of the ones digits: BOS sign tens ones operation sign tens ones EOS."""
INPUTS = ("begin", "sign 1", "tens 1", "ones 1", "operation", "sign 2", "tens 2", "ones 2", "end")
TENS = 1
"""Output position of the tens digit."""
PARTS = ("residual_post", "cross_attention", "feed_forward")
"""Sites whose effect on the carry is a row of the table."""
PAIRS = 256
EXAMPLES = 1024
KINDS = {
    "first ones digit": (True, False),
    "second ones digit": (False, True),
    "carry": (True, True),
}
"""Kinds of pairs: which of the two ones digits differ."""


def carry_pairs(task: ArithmeticTask, kind: str, count: int = PAIRS) -> PairBatch:
    """Return pairs of sums without and with a carry, which agree in their signs and tens digits.

    In the kind `carry`, both ones digits differ, and exchanging one of them alone gives no carry. Whatever
    moves the carry from one sum to the other must hold both digits, or the carry itself.
    """
    changes_first, changes_second = KINDS[kind]
    digits = range(10)
    ones = [
        (a, b, c, d)
        for a in digits
        for b in digits
        for c in (digits if changes_first else [a])
        for d in (digits if changes_second else [b])
        if a + b < 10 <= c + d and (not changes_first or not changes_second or (c + b < 10 and a + d < 10))
    ]
    rng = np.random.default_rng(0)
    signs, tens = rng.choice([1, -1], count), rng.integers(1, 5, (count, 2))
    chosen = [ones[index] for index in rng.integers(len(ones), size=count)]
    rows: list[list[np.ndarray]] = [[], []]
    targets: list[list[list[int]]] = [[], []]
    for sign, (first, second), (a, b, c, d) in zip(signs, tens, chosen, strict=True):
        for side, (one, other) in enumerate(((a, b), (c, d))):
            tokens = task.parse(f"{sign * (10 * first + one)} + {sign * (10 * second + other)}")
            rows[side].append(tokens)
            targets[side].append(task.solve(tokens.tolist()))
    base, donor = (torch.from_numpy(np.stack(each)) for each in rows)
    outputs = torch.tensor(targets)  # (2, N, sign and digits)
    prefix = torch.cat([torch.full((count, 1), task.begin), outputs[0, :, :TENS]], dim=1)
    return PairBatch(
        {"tokens": base, "mask": None, "target": prefix},
        {"tokens": donor, "mask": None, "target": prefix},
        torch.full((count,), TENS),
        outputs[1, :, TENS],
        outputs[0, :, TENS],
    )


def patch_carry(model: Model, pairs: PairBatch) -> dict[str, list[float]]:
    """Return the effects of patching each position after each sublayer, by site, and each head."""
    every = sites(model)
    cells: dict[str, Sequence[Tensor | int]] = {}
    for name in every:
        stack, part = name.split(".")[0], name.split(".")[-1]
        if part in ("embedding", "attention", "cross_attention", "feed_forward", "residual_post"):
            cells[name] = range(len(INPUTS)) if stack == "encoder" else [TENS]
        elif part in ("heads", "cross_heads"):
            module = layers(model)["cross" if part == "cross_heads" else stack][int(name.split(".")[1])]  # type: ignore[index]
            cells[name] = range(module.num_heads)
    return pairs.effects(model, cells)


def has_carry(tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which expressions are sums of two numbers of equal sign, and which of them have a carry."""
    is_sum = (tokens[:, 1] == tokens[:, 5]) & (tokens[:, 4] == ADD)
    return is_sum, is_sum & (tokens[:, FIRST_ONES] + tokens[:, SECOND_ONES] >= 10)


def without_layer(
    model: Model, choosing: Sequence[ExampleGroup], measuring: Sequence[ExampleGroup]
) -> dict[str, list[float]]:
    """Return the accuracy of each output if all heads of one layer and site are replaced by their means."""
    found = {}
    for site, modules in layers(model).items():
        for layer in range(len(modules)):
            heads = [each for each in all_heads(model) if (each.site, each.layer) == (site, layer)]
            change = ablate_heads(model, mean_outputs(model, choosing, heads))
            found[f"{site} {layer}"] = teacher_forced(model, measuring, change)[0].mean(0).tolist()
    return found


@dataclass(frozen=True, kw_only=True)
class InsideArithmetic(InsideStudy):
    """Study of the heads, the digits and the carry in arithmetic models."""

    def inspect(self, run: Run, job: Job, context: StudyContext) -> dict[str, Any]:
        task, model = run.task, run.model
        assert isinstance(task, ArithmeticTask)
        choosing = group_examples(task, "validation", EXAMPLES // 4)
        measuring = group_examples(task, "test", EXAMPLES)
        smallest = smallest_set(model, choosing, measuring)
        patched = {kind: patch_carry(model, carry_pairs(task, kind)) for kind in KINDS}
        curves = self.curves(run, measuring)
        steps = curves.pop("step")
        appears = {name: first_step(steps, values) for name, values in curves.items()}
        layers_out = without_layer(model, choosing, measuring)
        numbers: dict[str, float | None] = {**head_set_numbers(smallest)}
        for site, accuracies in layers_out.items():
            for output in ("tens", "ones"):
                key = f"{output} digit right without the heads of {site}"
                numbers[key] = accuracies[OUTPUTS.index(output)]
        for site, effects in patched["carry"].items():
            if site.split(".")[-1] in PARTS:
                numbers[f"carry moved by {site} at its best position"] = max(effects)
        numbers |= {f"first step with 90 % right: {name}": step for name, step in appears.items()}
        return {
            "numbers": numbers,
            "smallest": smallest.document(),
            "outputs": effect_on_outputs(model, choosing, measuring),
            "without": layers_out,
            "patched": patched,
            "steps": steps,
            "curves": curves,
        }

    def curves(self, run: Run, groups: Sequence[ExampleGroup]) -> dict[str, list[Any]]:
        """Return the accuracy of the digits at each snapshot, with and without a carry."""
        tokens = np.concatenate([np.stack(group.inputs) for group in groups])
        is_sum, carries = has_carry(tokens)
        found: dict[str, list[Any]] = {}
        for step, model in snapshots(run):
            hits = teacher_forced(model, groups)[0]
            values = {
                "step": step,
                "sign": hits[:, 0].mean(),
                "ones digit": hits[:, 2].mean(),
                "tens digit of a sum without a carry": hits[is_sum & ~carries, TENS].mean(),
                "tens digit of a sum with a carry": hits[carries, TENS].mean(),
                "whole output": hits.all(1).mean(),
            }
            for name, value in values.items():
                found.setdefault(name, []).append(value if name == "step" else float(value))
        return found

    def pictures(self, found: Sequence[Mapping[str, Any]], folder: Path) -> list[str]:
        curves = ["sign", "ones digit", "tens digit of a sum without a carry"]
        curves += ["tens digit of a sum with a carry", "whole output"]
        return [
            *self._draw_heads(found, folder / "heads"),
            *self._draw_carry(found, folder / "carry"),
            *draw_steps(found, curves, "When each digit is learnt", "share right", folder / "steps"),
            *draw_removal(found, "How few heads suffice", folder / "removal"),
        ]

    def _draw_heads(self, found: Sequence[Mapping[str, Any]], file: Path) -> list[str]:
        panels = []
        for each in found:
            cells = np.array(list(each["outputs"].values())).T
            title = f"seed {each['seed']}: heads as site:layer:head"
            panels.append(Panel(title, OUTPUTS, list(each["outputs"]), cells))
        title = "Fall of the accuracy of each output if one head is replaced by its mean"
        return save(draw_panels(panels, title, "1: always wrong without the head; 0: no change"), file)

    def _draw_carry(self, found: Sequence[Mapping[str, Any]], file: Path) -> list[str]:
        """Draw the mean effects of patching positions of the encoder, one panel per kind of pair."""
        panels = []
        for kind in KINDS:
            own = [each["patched"][kind] for each in found]
            names = [name for name in own[0] if len(own[0][name]) == len(INPUTS)]
            cells = np.mean([[effects[name] for name in names] for effects in own], axis=0)
            rows = [name.removeprefix("encoder.").replace(".", ": ").replace("_", " ") for name in names]
            panels.append(Panel(f"pairs that differ in: {kind}", rows, INPUTS, cells, shows_numbers=True))
        title = "Effect on the tens digit of copying one position of the encoder from a sum with a carry"
        caption = "1: the carry is moved, 0: nothing changes. Means over seeds."
        return save(draw_panels(panels, title, caption), file)

    def sections(self, document: Mapping[str, Any]) -> list[str]:
        """Return the lines of `table.md` on heads, digits and carry."""
        found = document["inside"]
        lines = ["## Which heads carry which digit", "", "![Heads and digits](heads.png)", ""]
        for each in found:
            lines.append(f"- Seed {each['seed']}: {_strongest(each['outputs'])}.")
        lines += [
            "",
            "## Where the carry is computed",
            "",
            "![Carry](carry.png)",
            "",
            DEFINITION["carry"],
            "",
        ]
        lines += [f"- Seed {each['seed']}: {_where(each['patched']['carry'])}." for each in found]
        lines += ["", "## When it appears", "", "![Training](steps.png)", ""]
        lines += ["## Which heads suffice", "", "![Removal](removal.png)", ""]
        for each in found:
            smallest = each["smallest"]
            counts = Counter(":".join(name.split(":")[:2]) for name in smallest["heads"])
            shown = ", ".join(f"{count} of {site}" for site, count in counts.items())
            lines.append(
                f"- Seed {each['seed']}: {len(smallest['heads'])} of {len(smallest['removed'])} heads"
                f" ({shown}) keep an exact match of {smallest['exact_match']:.3f}."
            )
        return [*lines, ""]


def _strongest(outputs: Mapping[str, Sequence[float]]) -> str:
    """Return the head whose ablation costs most at each output but the end."""
    parts = []
    for index, output in enumerate(OUTPUTS[:-1]):
        head = max(outputs, key=lambda name: outputs[name][index])
        parts.append(f"{output} {head} (−{outputs[head][index]:.2f})")
    return ", ".join(parts)


def _where(effects: Mapping[str, Sequence[float]]) -> str:
    """Return the effect at the best position after each sublayer."""
    parts = []
    for name, values in effects.items():
        if name.split(".")[-1] in PARTS:
            best = int(np.argmax(values))
            where = f" at {INPUTS[best]}" if len(values) == len(INPUTS) else ""
            parts.append(f"{name}{where} {values[best]:.2f}")
    return ", ".join(parts)


INSIDE_ARITHMETIC = InsideArithmetic(
    **texts_of(DEFINITION),
    settings=[
        Setting(
            name="arithmetic",
            published=None,
            source="arithmetic",
            overrides=DEFINITION["overrides"],
            is_quick=True,
            quick=DEFINITION["quick"],
        )
    ],
)
