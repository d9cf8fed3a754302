"""Arm of the transfer studies that fine-tunes a model of the catalogue, which was pre-trained elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glassformer.core.config import unflatten
from glassformer.core.system import threads_per_worker
from glassformer.interchange.fine_tuning import FILE
from glassformer.interchange.model_catalogue import CatalogueModel, fetch_model, find_model, is_fetched
from glassformer.runs.experiment import Experiment, ExperimentConfig, read_source, resolve
from glassformer.runs.folder import RunFolder
from glassformer.studies.study import Job, Overrides, StudyContext, config_key


@dataclass(frozen=True)
class ImportedArm:
    """Arm that starts from an imported model with its own architecture and tokenizer."""

    name: str
    model: str
    """Name of the model in the catalogue of models."""
    about: str
    """Sentences about the pre-training by others, for the table."""
    options: Overrides = field(default_factory=dict)
    by_labels: Mapping[int | None, Overrides] = field(default_factory=dict)

    @property
    def entry(self) -> CatalogueModel:
        """Entry of the model in the catalogue."""
        return find_model(self.model)

    def reason_to_omit(self, context: StudyContext) -> str:
        """Return why this arm is not measured, or an empty string. A study never downloads a model."""
        if context.is_quick:
            return "its training takes too long for the quick version"
        if self._run(context).exists() or is_fetched(self.entry):
            return ""
        return f"the model is not on this machine: glassformer models fetch {self.model}"

    def _run(self, context: StudyContext) -> RunFolder:
        return RunFolder(context.folder / "runs" / self.model)

    def import_run(self, context: StudyContext) -> Path:
        """Import the model into the study's folder, unless it is there, and return the folder of the run."""
        path = self._run(context).path
        if not self._run(context).exists():
            context.log(f"importing {self.model}")
            fetch_model(self.model, path)
        return path

    def config(self, classifier: str, run: Path, labels: int | None, every: Overrides) -> ExperimentConfig:
        """Build the config: the classifier's preset with the model of the run, without paths of the run.

        `every` are the overrides of all runs.
        """
        model = read_source(str(run / FILE))["model"]
        changes = {
            "model": model,
            **self.options,
            **self.by_labels.get(labels, {}),
            **every,
            "task.train_limit": labels,
        }
        return resolve(classifier, changes)

    def job(self, config: ExperimentConfig, name: str, run: Path) -> Job:
        """Return the training run with this config. It starts from the weights of the imported run."""
        paths = {
            "task.tokenizer": {"kind": "file", "path": str(run)},
            "training.start_from": str(run),
        }
        key = config_key(config, *(file.sha256 for file in self.entry.files))
        slug = name.replace(",", "").replace(" ", "-")
        return Job(name, config.with_overrides(unflatten(paths)), run.parent / f"{slug}-{key}")

    def record(self, run: Path) -> dict[str, Any]:
        """Return what `results.json` states about the model."""
        about = RunFolder(run).environment()["imported"]
        copied = ("name", "home", "package", "licence", "architecture", "sha256")
        return {"arm": self.name, "about": self.about, **{name: about.get(name) for name in copied}}


def log_expected_cost(arm: ImportedArm, jobs: Sequence[Job], context: StudyContext) -> None:
    """Log the time and the memory that the largest of the unfinished runs will need, from a few steps."""
    unfinished = [job for job in jobs if not job.results()]
    if not unfinished:
        return
    largest = unfinished[0]
    expected = Experiment(largest.config).measure()
    context.log(
        f"{arm.name}: {len(unfinished)} runs; {largest.name}, the largest: {expected.describe()}"
        f" with {threads_per_worker(context.workers)} thread(s)"
    )


def imported_lines(record: Mapping[str, Any]) -> list[str]:
    """Return the paragraph of `table.md` about the imported model."""
    return [
        f"**{record['arm']}** is another model, with its own architecture and tokenizer. {record['about']}"
        f" Source: {record['package']}, {record['home']}; licence: {record['licence']}.",
    ]
