"""`glassformer train SOURCE [PATH=VALUE ...]`: train a model in one process or in several."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.cli.arguments import add_source, check_minimum, import_without_gc, load_plugins
from glassformer.cli.output import Output
from glassformer.core.errors import UserError, user_error

if TYPE_CHECKING:
    from glassformer.training.distributed import ProcessGroup

EXAMPLES = (
    "glassformer train reversal",
    "glassformer train reversal task.length=16 model.position.kind=learned",
    "glassformer train classification task.data.train=mine.tsv",
    "glassformer train reversal --run runs/mine --resume  # continue this run, or start it",
    "glassformer train --run runs/mine --resume training.max_steps=5000  # train this run for longer",
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_source(parser, is_optional=True)
    add = parser.add_argument
    add("--run", type=Path, metavar="DIR", help="folder for the run (default: runs/SOURCE-N)")
    resume_help = "continue a stopped run bit-identically; start a new run if the folder does not exist"
    add("--resume", action="store_true", help=resume_help)
    add(
        "--processes",
        type=int,
        default=1,
        help="train with N processes on this machine",
    )
    restart_help = "with --processes: if a process dies, restart from the last checkpoint, at most N times"
    add("--max-restarts", type=int, default=0, help=restart_help)
    add("--presets", action="store_true", help="list the presets and exit")
    add("--quiet", action="store_true", help="do not print progress")


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any] | None:
    if "RANK" in os.environ:  # PyTorch's C++ code would log warnings in each of the processes
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    load_plugins(arguments)
    if arguments.run is not None and arguments.resume:
        _use_run_as_source(arguments)
    if arguments.presets or arguments.source is None:
        return _list_presets(arguments, output)
    if arguments.processes != 1 or arguments.max_restarts:
        return _launch(arguments, output)

    import_without_gc("glassformer.runs.session")
    from glassformer.runs.commands import plugin_arguments
    from glassformer.runs.session import open_session
    from glassformer.training.distributed import is_launched_by_us, join, restarts
    from glassformer.training.progress import Reporter, reporter_for

    process_group = join()  # this process may be one of several
    try:
        if not process_group.is_rank_zero:
            output.mute()
        (restarted,) = process_group.max(restarts())
        is_quiet = arguments.quiet or not process_group.is_rank_zero
        session = open_session(
            arguments.source,
            arguments.overrides,
            run=arguments.run,
            resume=arguments.resume,
            restarts=int(restarted),
            reporter=Reporter() if is_quiet else reporter_for(sys.stderr),
            process_group=process_group,
        )
        results = session.run()
        plugins = " ".join(map(shlex.quote, plugin_arguments([str(path) for path in arguments.plugin])))
        results["next"] = [f"{line} {plugins}".strip() for line in session.next_commands()]
        # Our launcher prints the result itself, and would take the exit code of a signal for a failure.
        if not is_launched_by_us():
            output.exit_code = session.exit_code
            _show(results, output)
        return results
    except Exception as error:
        _fail(error, arguments, output, process_group)
        return None
    finally:
        process_group.leave()


def _use_run_as_source(arguments: argparse.Namespace) -> None:
    """Make the run of --run the SOURCE of a command with --resume that names no SOURCE."""
    is_option = arguments.source is not None and "=" in arguments.source
    if arguments.source is not None and not is_option:
        return
    from glassformer.runs.folder import RunFolder

    path = RunFolder.open(arguments.run).path
    if is_option:  # argparse took the first PATH=VALUE for SOURCE
        arguments.overrides = [arguments.source, *arguments.overrides]
    arguments.source = os.path.join(os.curdir, path)


def _fail(
    error: Exception, arguments: argparse.Namespace, output: Output, process_group: ProcessGroup
) -> None:
    """Report an error once: rank 0 prints errors that all ranks share, other ranks print only their own."""
    from glassformer.training.distributed import LostRanks, RankZeroFailed

    if isinstance(error, UserError):
        output.exit_code = 2
        if isinstance(error, RankZeroFailed) or process_group.is_reported_by_rank_zero(str(error)):
            return
        if not process_group.is_rank_zero:
            first = error.details[0]
            first.path = f"rank {process_group.rank}" + (f", {first.path}" if first.path else "")
        raise error
    explained = process_group.explain(error)
    if not isinstance(explained, LostRanks):
        raise error
    output.exit_code = 1
    output.mute()  # the launcher may restart all processes, and print the result of the second attempt
    output.error(_lost(str(explained), arguments.run))


def _lost(message: str, run: Path | None) -> UserError:
    from glassformer.runs.ending import resume_command

    return user_error(message, hint=f"{resume_command(run or Path('RUN'))}  # from the last checkpoint")


def _launch(arguments: argparse.Namespace, output: Output) -> dict[str, Any] | None:
    """Start the same command in several processes, after checking it in this one."""
    from glassformer.runs.experiment import resolve
    from glassformer.runs.session import run_path
    from glassformer.training.distributed import is_launched
    from glassformer.training.launcher import launch

    check_minimum(arguments, processes=1, max_restarts=0)
    if is_launched():
        raise user_error(
            "torchrun or another launcher has already started several processes",
            path="--processes",
            value=arguments.processes,
            hint="leave --processes out, or run the command without the launcher",
        )
    config = resolve(arguments.source, arguments.overrides)
    path = run_path(arguments.source, config, arguments.run, arguments.resume)
    command = [sys.executable, "-m", "glassformer", "train", arguments.source, *arguments.overrides]
    command += ["--json", "--run", str(path)]
    command += [word for plugin in arguments.plugin for word in ("--plugin", str(plugin))]
    command += [f"--{name}" for name in ("resume", "quiet") if getattr(arguments, name)]
    outcome = launch(command, arguments.processes, arguments.max_restarts)
    output.exit_code = outcome.exit_code
    results: dict[str, Any] = {}
    with contextlib.suppress(ValueError):  # a killed process may have printed half of the document
        results = json.loads(outcome.output)
    if "run" in results:
        output.exit_code = 128 + signal.Signals[results["signal"]] if results["signal"] else 0
        if results["ended"] == "signal":
            results["next"] = [f"{line} --processes {arguments.processes}" for line in results["next"]]
        _show(results, output)
        return results
    if outcome.failure:
        output.error(_lost(outcome.failure, path))
    return results


def _show(results: dict[str, Any], output: Output) -> None:
    from glassformer.runs.ending import closing_lines, show_metric

    if results["ended"] == "signal":
        because = results["ended_because"]
        output.print(f"{because} at step {results['steps']:,}, after saving a checkpoint; continue with:")
        for line in results["next"]:
            output.print(f"  {line}")
        return
    output.print(show_metric(results), style="bold")
    for line in closing_lines(results):
        output.print(line)
    for warning in results["warnings"]:
        output.print(warning, style="bold red")
    output.print(
        f"{results['steps']:,} steps in {results['seconds']:.1f} s, {results['parameters']:,} parameters"
    )
    output.print(f"the run is in {results['run']}; next:")
    for line in results["next"]:
        output.print(f"  {line}")


def _list_presets(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    from glassformer.runs.commands import preset_sentence
    from glassformer.runs.experiment import presets

    if not arguments.presets:
        raise user_error(
            "a preset, a config file or a run is needed",
            path="SOURCE",
            allowed=presets(),
            hint="glassformer train reversal",
        )
    sentences = {name: preset_sentence(name) for name in presets()}
    for name, sentence in sentences.items():
        output.print(f"{name:<24}{sentence}")
    return {"presets": sentences}
