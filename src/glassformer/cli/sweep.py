"""`glassformer sweep SOURCE PATH=v1,v2,…`: train many variants of a config and report the best."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from glassformer.cli.arguments import add_source, load_plugins
from glassformer.cli.output import Output

EPILOG = """values:   model.num_layers=1,2,4          each of these values
          model.num_layers=1..8           whole numbers from 1 to 8
          model.dropout=0.0..0.5          any number in this range
          training.optimizer.learning_rate=log:1e-5..1e-2   any number, on a logarithmic scale
Any other PATH=VALUE sets an option of every run. Run the same command again to continue a stopped sweep.

workers:  glassformer sweep worker STUDY --storage postgresql://USER@HOST/DATABASE
joins a sweep from any machine. The sweep prints its STUDY name when it starts."""

EXAMPLES = (
    "glassformer sweep reversal model.num_heads=1,2,4 --seeds 3",
    "glassformer sweep reversal training.optimizer.learning_rate=log:1e-4..1e-2 --trials 10 --workers 2",
)


def configure(parser: argparse.ArgumentParser) -> None:
    from glassformer.sweeps.definition import PRUNERS, SAMPLERS

    add_source(parser)
    parser.epilog = EPILOG
    add = parser.add_argument
    add("--seeds", type=int, default=1, help="runs per combination of values, each with another seed")
    add(
        "--workers",
        type=int,
        default=1,
        help="number of concurrent runs on this machine, which share the cores",
    )
    sampler_help = (
        "method that chooses combinations of values (default: grid, or tpe if a range is continuous)"
    )
    add("--sampler", choices=list(SAMPLERS), help=sampler_help)
    add("--trials", type=int, help="maximum number of combinations (default: the whole grid, or 20)")
    add("--minutes", type=float, metavar="M", help="start no run after M minutes; started runs finish")
    add("--prune", action="store_true", help="stop runs early if their validation metric is poor")
    add("--pruner", choices=list(PRUNERS), default="median", help="rule by which --prune stops runs")
    add("--metric", metavar="NAME", help="validation metric to optimise (default: the task's primary metric)")
    storage_help = "database: postgresql://… or sqlite:///… (default: a file in the sweep's folder)"
    add("--storage", metavar="URL", help=storage_help)
    heartbeat_help = "heartbeat interval; a worker that misses 6 heartbeats is considered dead (default: 5)"
    add("--heartbeat", type=int, metavar="SECONDS", help=heartbeat_help)
    add("--out", type=Path, metavar="DIR", help="folder for the sweep (default: runs/sweep-STUDY)")


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    if arguments.source == "worker":
        return _work(arguments, output)
    from glassformer.sweeps.coordinator import start_forkserver

    start_forkserver()  # the child imports PyTorch while this process does

    from glassformer.sweeps.coordinator import run_sweep
    from glassformer.sweeps.definition import define, study_name
    from glassformer.sweeps.storage import HEARTBEAT_SECONDS, storage_url, without_password

    load_plugins(arguments)
    definition = define(
        arguments.source,
        arguments.overrides,
        sampler=arguments.sampler,
        pruner=arguments.pruner if arguments.prune else None,
        metric=arguments.metric,
        seeds=arguments.seeds,
        trials=arguments.trials,
        minutes=arguments.minutes,
        heartbeat=HEARTBEAT_SECONDS if arguments.heartbeat is None else arguments.heartbeat,
    )
    study = study_name(arguments.source, definition)
    folder = arguments.out or Path("runs") / f"sweep-{study}"
    url = storage_url(arguments.storage, folder)
    output.print(f"sweep {folder}")
    if arguments.storage is not None:
        output.print(f"join it:  glassformer sweep worker {study} --storage {without_password(url)}")
    document, output.exit_code = run_sweep(
        definition,
        study,
        url,
        folder,
        workers=arguments.workers,
        minutes=arguments.minutes,
        plugins=[path.absolute() for path in arguments.plugin],
        command=_command(arguments, folder),
        log=output.print,
    )
    _show(document, folder, output)
    return document


def _command(arguments: argparse.Namespace, folder: Path) -> list[str]:
    """Return the words of the command that starts this sweep, without the password of the database."""
    from glassformer.sweeps.storage import without_password

    options = {
        "--seeds": arguments.seeds,
        "--workers": arguments.workers,
        "--sampler": arguments.sampler,
        "--trials": arguments.trials,
        "--minutes": arguments.minutes,
        "--pruner": arguments.pruner if arguments.prune else None,
        "--metric": arguments.metric,
        "--storage": None if arguments.storage is None else without_password(arguments.storage),
        "--heartbeat": arguments.heartbeat,
        "--out": folder,
    }
    words = ["glassformer", "sweep", arguments.source, *arguments.overrides]
    words += ["--prune"] if arguments.prune else []
    for name, value in options.items():
        words += [] if value is None else [name, str(value)]
    for plugin in arguments.plugin:
        words += ["--plugin", str(plugin)]
    return words


def _show(document: dict[str, Any], folder: Path, output: Output) -> None:
    from rich.table import Table

    from glassformer.sweeps.definition import setting_text
    from glassformer.sweeps.results import failure_notes, results_table, table_notes

    head, lines = results_table(document)
    shown_table = Table(*head, title=f"{len(lines)} combinations of values, {len(document['trials'])} runs")
    for line in lines:
        shown_table.add_row(*line)
    output.show(shown_table)
    for note in (*table_notes(document), *failure_notes(document)):
        output.print(note)
    for warning in document["warnings"]:
        output.print(warning, style="bold red")
    best = document["best"]
    if output.exit_code:
        output.print("stopped; run the same command again to continue")
    if best is None:
        output.print("no combination of values has finished" + (" yet" if output.exit_code else ""))
        output.exit_code = output.exit_code or 2
    else:
        output.print(f"best: {setting_text(best['params'])}", style="bold")
        output.print(f"  glassformer train {best['config']}")
    output.print("wrote " + ", ".join(str(folder / name) for name in document["files"]))


def _work(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    from glassformer.core.errors import user_error

    if len(arguments.overrides) != 1 or arguments.storage is None:
        raise user_error(
            "a worker needs the STUDY name that the sweep printed, and its database",
            path="glassformer sweep worker",
            hint="glassformer sweep worker STUDY --storage postgresql://USER@HOST/DATABASE",
        )
    (study,) = arguments.overrides
    from glassformer.core.system import threads_per_worker
    from glassformer.sweeps.storage import storage_url, without_password
    from glassformer.sweeps.worker import run_worker, worker_name

    folder = arguments.out or Path("runs") / f"sweep-{study}"
    url = storage_url(arguments.storage, folder)
    worker, output.exit_code = run_worker(
        url,
        study,
        folder / "runs",
        name=worker_name(),
        threads=threads_per_worker(max(1, arguments.workers)),
        plugins=arguments.plugin,
        log=output.print,
        on_joined=lambda: output.print(f"joined {study}"),
    )
    output.print(f"{worker.finished} trials finished; the study has no further trial to start")
    storage = without_password(url)
    return {"study": study, "storage": storage, "worker": worker.name, "trials": worker.finished}
