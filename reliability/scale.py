"""Scale: a run with a day of events, and a folder of 1,000 runs, are listed and opened quickly."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from reliability.base import Outcome, Tries, Workspace, fault

SECONDS = 2.0
STEPS_A_SECOND = 10
LOG_EVERY = 10
DAY = 24 * 3600 * STEPS_A_SECOND


def measured(name: str, action: Callable[[], object]) -> Outcome:
    """Check the processor time of an action; wall-clock time depends on other programs."""
    start = time.process_time()
    action()
    seconds = time.process_time() - start
    return None if seconds < SECONDS else f"{name} takes {seconds:.2f} s"


@fault(
    "a day of training",
    "24 h worth of events and checkpoints in a run's folder",
    "each of listing, opening, the curve and the studio's first reply within 2 s of CPU",
    quick=4,
    full=4,
    unit="views",
)
def a_day(workspace: Workspace, numbers: range) -> Tries:
    runs = workspace.new("runs")
    shutil.copytree(workspace.trained, runs / "long")
    yield from workspace.do("reliability.scale:open_a_day", str(runs), seconds=300)


def open_a_day(folder: str) -> Iterator[Outcome]:
    from glassformer.cli import main
    from glassformer.reports.summary import read_run
    from glassformer.runs.run import Run
    from glassformer.studio.runs import RunsFolder, read_after

    run = Path(folder) / "long"
    with open(run / "events.jsonl", "w") as file:
        for step in range(LOG_EVERY, DAY + 1, LOG_EVERY):
            event = {"event": "step", "step": step, "epoch": step // 1000, "loss": 1.0 + 1 / step}
            event |= {"accuracy": 0.5, "learning_rate": 1e-3, "gradient_norm": 0.1, "order": "0" * 16}
            file.write(json.dumps({**event, "tokens_per_second": 9999.9, "seconds": step / 10}) + "\n")
            if step % 5000 == 0:
                metrics = {"loss": 1.0, "accuracy": 0.5}
                file.write(json.dumps({"event": "validation", "step": step, **metrics}) + "\n")
    source = max((run / "checkpoints").glob("step-*"))
    for number in range(24):
        shutil.copytree(source, run / "checkpoints" / f"step-{DAY - number * 1000:08d}")
    yield measured("listing", lambda: main(["runs", "--runs", folder]))
    yield measured("opening", lambda: Run(run))
    yield measured("the curve", lambda: read_run(str(run)))

    def ask() -> None:
        RunsFolder(Path(folder)).table()
        read_after(run / "events.jsonl", 0, None)

    yield measured("the studio's first reply", ask)


@fault(
    "a thousand runs",
    "1,000 runs in a folder",
    "listed by the command and by the studio, and one opened, each within 2 s of CPU",
    quick=3,
    full=3,
    unit="views",
)
def a_thousand(workspace: Workspace, numbers: range) -> Tries:
    runs = workspace.new("runs")
    runs.mkdir()
    names = ["config.yaml", "config.json", "task.json", "environment.json", "results.json", "SHA256SUMS"]
    names += ["status.json", "events.jsonl"]
    files = {name: (workspace.trained / name).read_bytes() for name in names}
    for number in range(1000):
        run = runs / f"run-{number:04d}"
        run.mkdir()
        for name, data in files.items():
            (run / name).write_bytes(data)
    shutil.copytree(workspace.trained / "checkpoints", runs / "run-0500" / "checkpoints")
    yield from workspace.do("reliability.scale:open_a_thousand", str(runs), seconds=300)


def open_a_thousand(folder: str) -> Iterator[Outcome]:
    from glassformer.cli import main
    from glassformer.runs.run import Run
    from glassformer.studio.runs import RunsFolder

    yield measured("listing", lambda: main(["runs", "--runs", folder]))
    yield measured("the studio's table", lambda: RunsFolder(Path(folder)).table())
    yield measured("opening", lambda: Run(Path(folder) / "run-0500"))
