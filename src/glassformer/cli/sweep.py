"""`glassformer sweep WHAT PATH=v1,v2,… [PATH=VALUE …]` and `glassformer sweep worker STUDY --storage URL`"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from glassformer.cli.output import Output
from glassformer.cli.what import add_what, load_plugins

EPILOG = """values:   model.num_layers=1,2,4          each of these
          model.num_layers=1..8           whole numbers from 1 to 8
          model.dropout=0.0..0.5          any number between
          training.optimizer.learning_rate=log:1e-5..1e-2
any other PATH=VALUE sets an option of every run. The same command goes on with a sweep that was stopped.

workers:  glassformer sweep worker STUDY --storage postgresql://USER@HOST/DATABASE
joins a sweep from any machine; the sweep itself says its name when it begins."""


def configure(parser: argparse.ArgumentParser) -> None:
    from glassformer.sweeps.definition import PRUNERS, SAMPLERS

    add_what(parser)
    parser.epilog = EPILOG
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="runs a setting (default: 1)")
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="runs at a time here; they share the cores"
    )
    parser.add_argument(
        "--sampler",
        choices=list(SAMPLERS),
        help="how settings are chosen (default: grid, or tpe if a range has no end of values)",
    )
    parser.add_argument("--trials", type=int, metavar="N", help="settings at most (default: the grid, or 20)")
    parser.add_argument(
        "--minutes", type=float, metavar="M", help="no run begins later; those that run come to their end"
    )
    parser.add_argument("--prune", action="store_true", help="stop runs whose validation falls behind")
    parser.add_argument(
        "--pruner", choices=list(PRUNERS), default="median", help="what --prune goes by (default: median)"
    )
    parser.add_argument("--metric", metavar="NAME", help="of the validation set (default: the task's own)")
    parser.add_argument(
        "--storage", metavar="URL", help="postgresql://… or sqlite:///… (default: a file in the folder)"
    )
    parser.add_argument(
        "--heartbeat",
        type=int,
        metavar="SECONDS",
        help="between signs of life; who misses 6 is taken for dead (default: 5)",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="the folder (default: runs/sweep-STUDY)")


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    if arguments.what == "worker":
        return _work(arguments, output)
    from glassformer.sweeps.coordinator import warm_up

    warm_up()  # before this process begins to import the same

    from glassformer.sweeps.coordinator import conduct
    from glassformer.sweeps.definition import define, study_name
    from glassformer.sweeps.storage import HEARTBEAT_SECONDS, shown, storage_url

    load_plugins(arguments)
    definition = define(
        arguments.what,
        arguments.overrides,
        sampler=arguments.sampler,
        pruner=arguments.pruner if arguments.prune else None,
        metric=arguments.metric,
        seeds=arguments.seeds,
        trials=arguments.trials,
        minutes=arguments.minutes,
        heartbeat=HEARTBEAT_SECONDS if arguments.heartbeat is None else arguments.heartbeat,
    )
    study = study_name(arguments.what, definition)
    folder = arguments.out or Path("runs") / f"sweep-{study}"
    url = storage_url(arguments.storage, folder)
    output.say(f"sweep {folder}")
    if arguments.storage is not None:
        output.say(f"join it:  glassformer sweep worker {study} --storage {shown(url)}")
    document, output.exit_code = conduct(
        definition,
        study,
        url,
        folder,
        workers=arguments.workers,
        minutes=arguments.minutes,
        plugins=[path.absolute() for path in arguments.plugin],
        command=_command(arguments, folder),
        say=output.say,
    )
    _show(document, folder, output)
    return document


def _command(arguments: argparse.Namespace, folder: Path) -> list[str]:
    """What was typed, in full; a database without its password."""
    from glassformer.sweeps.storage import shown

    options = {
        "--seeds": arguments.seeds,
        "--workers": arguments.workers,
        "--sampler": arguments.sampler,
        "--trials": arguments.trials,
        "--minutes": arguments.minutes,
        "--pruner": arguments.pruner if arguments.prune else None,
        "--metric": arguments.metric,
        "--storage": None if arguments.storage is None else shown(arguments.storage),
        "--heartbeat": arguments.heartbeat,
        "--out": folder,
    }
    words = ["glassformer", "sweep", arguments.what, *arguments.overrides]
    words += ["--prune"] if arguments.prune else []
    for name, value in options.items():
        words += [] if value is None else [name, str(value)]
    for plugin in arguments.plugin:
        words += ["--plugin", str(plugin)]
    return words


def _show(document: dict[str, Any], folder: Path, output: Output) -> None:
    from rich.table import Table

    from glassformer.sweeps.definition import setting_text
    from glassformer.sweeps.results import notes_of, table_of

    head, lines = table_of(document)
    shown_table = Table(*head, title=f"{len(lines)} settings, {len(document['trials'])} runs")
    for line in lines:
        shown_table.add_row(*line)
    output.show(shown_table)
    for note in notes_of(document):
        output.say(note)
    best = document["best"]
    if output.exit_code:
        output.say("stopped; the same command goes on")
    if best is None:
        output.say("no setting came to its end yet" if output.exit_code else "no setting came to its end")
        output.exit_code = output.exit_code or 2
    else:
        output.say(f"best: {setting_text(best['params'])}", style="bold")
        output.say(f"  glassformer train {best['config']}")
    output.say("written: " + ", ".join(str(folder / name) for name in document["written"]))


def _work(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    from glassformer.core.errors import user_error

    if len(arguments.overrides) != 1 or arguments.storage is None:
        raise user_error(
            "a worker needs a study and its database",
            path="glassformer sweep worker",
            hint="glassformer sweep worker STUDY --storage postgresql://USER@HOST/DATABASE",
        )
    (study,) = arguments.overrides
    from glassformer.studies.jobs import threads_for
    from glassformer.sweeps.storage import shown, storage_url
    from glassformer.sweeps.worker import serve, worker_name

    folder = arguments.out or Path("runs") / f"sweep-{study}"
    url = storage_url(arguments.storage, folder)
    worker, output.exit_code = serve(
        url,
        study,
        folder / "runs",
        name=worker_name(),
        threads=threads_for(max(1, arguments.workers)),
        plugins=arguments.plugin,
        say=output.say,
        on_joined=lambda: output.say(f"joined {study}"),
    )
    output.say(f"{worker.finished} trials; the study has nothing left to begin")
    return {"study": study, "storage": shown(url), "worker": worker.name, "trials": worker.finished}
