"""Study of induction heads: in language models of the preset, while they form, and in an imported model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glassformer.inspection.ablation import ablate_heads, mean_outputs
from glassformer.inspection.heads import average_heads, repeated_document
from glassformer.inspection.induction import (
    INDUCTION,
    RepeatedTokens,
    half_losses,
    mean_losses,
    repeat_rows,
    repeated_tokens,
)
from glassformer.inspection.record import HeadId
from glassformer.inspection.statistics import nested
from glassformer.interchange.model_catalogue import fetch_model, find_model, is_fetched
from glassformer.plotting.grid import Panel, draw_panels
from glassformer.plotting.lines import Axis, Chart, draw, mean_line, save
from glassformer.runs.folder import RunFolder
from glassformer.runs.run import Run
from glassformer.studies.inside import InsideStudy, first_step
from glassformer.studies.recipes import Setting
from glassformer.studies.study import Job, StudyContext, load_definition, table_head, table_row, texts_of
from glassformer.tasks.base import CausalLMTask, Task
from glassformer.tasks.language import CausalLanguageTask

DEFINITION = load_definition("inside")["language-model"]
MODEL: str = DEFINITION["model"]
STORIES, STORY_TOKENS = 16, 48
"""Number of generated stories that are repeated, and tokens of each."""
STRONG = 0.5
"""Share of the highest induction score that makes a head an induction head."""


def look(run: Run, groups: Sequence[RepeatedTokens], task: Task) -> dict[str, Any]:
    """Return scores, losses and ablations of a model on sequences that repeat."""
    model, site = run.model, groups[0].site
    averages = average_heads(model, task, groups)
    document = repeated_document(model, None, groups, averages)
    score = averages[site].patterns[INDUCTION].mass
    best = np.unravel_index(int(score.mean.argmax()), score.mean.shape)
    strong = [
        HeadId(site, int(layer), int(head))
        for layer, head in zip(*np.where(score.mean >= STRONG * score.mean.max()), strict=True)
    ]
    with ablate_heads(model, mean_outputs(model, groups, strong))():
        without = mean_losses(half_losses(model, groups))
    first = next(row for row in document["ablated"] if (row["layer"], row["head"]) == best)
    change = first["metrics"]["second_half_loss"]
    needed = max(document["ablated"], key=lambda row: row["metrics"]["second_half_loss"]["change"])
    numbers = {
        "induction score of the best head": float(score.mean[best]),
        "loss of the first half": document["loss"]["first_half"],
        "loss of the second half": document["loss"]["second_half"],
        "change of the second half's loss without the best head": change["change"],
        "change of the first half's loss without the best head": first["metrics"]["first_half_loss"][
            "change"
        ],
        "induction heads (at least half the best score)": len(strong),
        "loss of the second half without these heads": without["second_half"],
        "largest change without one head": needed["metrics"]["second_half_loss"]["change"],
    }
    intervals = {
        "induction score of the best head": [float(score.low[best]), float(score.high[best])],
        "change of the second half's loss without the best head": list(change["interval"]),
        "change of the first half's loss without the best head": list(
            first["metrics"]["first_half_loss"]["interval"]
        ),
    }
    return {
        "numbers": numbers,
        "intervals": intervals,
        "scores": {name: nested(of.mass.mean) for name, of in averages[site].patterns.items()},
        "repeated": document,
    }


@dataclass(frozen=True, kw_only=True)
class InsideLanguageModel(InsideStudy):
    """Study of the induction heads of language models."""

    def inspect(self, run: Run, job: Job, context: StudyContext) -> dict[str, Any]:
        found = look(run, repeated_tokens(run.task), run.task)
        del found["intervals"]  # over sequences; the table has those over seeds
        events = [event for event in run.folder.events if event["event"] == "head_probe"]
        steps = [event["step"] for event in events]
        scores = [float(np.max(event["scores"]["encoder"][INDUCTION])) for event in events]
        losses = [event["repeated_loss"]["second_half"] for event in events]
        halved = [float(loss <= losses[0] / 2) for loss in losses]
        found["numbers"] |= {
            "first step with an induction score of 0.5": first_step(steps, scores, 0.5),
            "first step with half of the second half's first loss": first_step(steps, halved, 1.0),
        }
        return {**found, "steps": steps, "curves": {"score": scores, "loss": losses}}

    def more(self, context: StudyContext) -> list[dict[str, Any]]:
        """Look inside the imported model, on random tokens and on its own stories, each of them twice."""
        folder = RunFolder(context.folder / "runs" / MODEL)
        if not folder.exists():
            if not is_fetched(find_model(MODEL)):
                context.log(f"{MODEL} is left out; to include it: glassformer models fetch {MODEL}")
                return []
            context.log(f"importing {MODEL}")
            fetch_model(MODEL, folder.path)
        run = Run(folder.path)
        task = run.task
        assert isinstance(task, CausalLanguageTask)
        context.log(f"looking inside {MODEL}")
        found = []
        kinds = {"random tokens": repeated_tokens(task), "its own stories": [self.stories(run, task)]}
        for name, groups in kinds.items():
            found.append({"setting": f"{MODEL}, {name}", "seed": 0, **look(run, groups, task)})
        return found

    def stories(self, run: Run, task: CausalLanguageTask) -> RepeatedTokens:
        """Return stories that the model generates, each of them twice."""
        rows: list[np.ndarray] = []
        seed = 0
        while len(rows) < STORIES:
            text = run.generate("", STORY_TOKENS + 16, temperature=1.0, seed=seed)
            tokens = task.tokenizer.encode(text)[:STORY_TOKENS]
            rows += [np.asarray(tokens)] if len(tokens) == STORY_TOKENS else []
            seed += 1
        assert isinstance(task, CausalLMTask)
        return repeat_rows(task, np.stack(rows))

    def pictures(self, found: Sequence[Mapping[str, Any]], folder: Path) -> list[str]:
        trained = [each for each in found if "curves" in each]
        charts = []
        for name, label in (
            ("score", "induction score of the best head"),
            ("loss", "loss of the second half"),
        ):
            curves = [each["curves"][name] for each in trained]
            line = mean_line("mean over seeds", trained[0]["steps"], curves)
            charts.append(Chart(label, [line], Axis("training step"), Axis(label)))
        caption = "Bands: from the lowest seed to the highest."
        title = "An induction head forms, and the second half becomes predictable"
        panels = []
        for each in found:
            cells = np.array(each["scores"][INDUCTION])
            columns = [f"head {head}" for head in range(cells.shape[1])]
            heading = f"{each['setting']}, seed {each['seed']}" if "curves" in each else each["setting"]
            rows = [f"layer {layer}" for layer in range(len(cells))]
            panels.append(Panel(heading, rows, columns, cells, shows_numbers=True))
        about = "Share of attention on the token after the earlier occurrence of the current one"
        return [
            *save(draw(charts, title, caption), folder / "forming"),
            *save(draw_panels(panels, "Induction scores", about), folder / "scores"),
        ]

    def sections(self, document: Mapping[str, Any]) -> list[str]:
        """Return the lines of `table.md`: forming, scores, and the heads of each model."""
        lines = ["## While they form", "", "![Forming](forming.png)", ""]
        lines += ["## Scores of all heads", "", "![Scores](scores.png)", ""]
        for each in document["inside"]:
            seed = f", seed {each['seed']}" if "curves" in each else ""
            lines += [f"## {each['setting']}{seed}", ""]
            lines += table_head("head", "induction", "copying", "second half, without it", "first half")
            copies = each["repeated"]["copying"]
            for row in each["repeated"]["ablated"]:
                layer, head = row["layer"], row["head"]
                copied = "" if copies is None else f"{copies[layer][head]:+.2f}"
                cells = [f"{layer}:{head}", f"{each['scores'][INDUCTION][layer][head]:.3f}", copied]
                for half in ("second_half_loss", "first_half_loss"):
                    change, (low, high) = (row["metrics"][half][key] for key in ("change", "interval"))
                    cells.append(f"{change:+.3f} ({low:+.3f} … {high:+.3f})")
                lines.append(table_row(cells))
            lines.append("")
        return [*lines, DEFINITION["reading"], ""]


INSIDE_LANGUAGE_MODEL = InsideLanguageModel(
    **texts_of(DEFINITION),
    settings=[
        Setting(
            name="induction",
            published=None,
            source="induction",
            overrides={},
            is_quick=True,
            quick=DEFINITION["quick"],
        )
    ],
)
