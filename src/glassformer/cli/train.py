"""`glassformer train WHAT [PATH=VALUE ...]`"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.cli.output import Output
from glassformer.cli.what import add_what, import_calmly, load_plugins
from glassformer.core.errors import UserError, user_error

if TYPE_CHECKING:
    from glassformer.training.distributed import ProcessGroup


def configure(parser: argparse.ArgumentParser) -> None:
    add_what(parser, is_optional=True)
    parser.add_argument("--run", type=Path, metavar="DIR", help="the run's folder (default: runs/WHAT-N)")
    parser.add_argument(
        "--resume", action="store_true", help="go on where the run stopped, to the bit; start if it never did"
    )
    parser.add_argument(
        "--processes", type=int, default=1, metavar="N", help="train with so many processes on this machine"
    )
    parser.add_argument(
        "--max-restarts",
        type=int,
        default=0,
        metavar="N",
        help="with --processes: if one of them dies, go on from the last checkpoint, at most so often",
    )
    parser.add_argument("--presets", action="store_true", help="list the presets and stop")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any] | None:
    if "RANK" in os.environ:  # else each of several processes tells what PyTorch's C++ side thinks of it
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    load_plugins(arguments)
    if arguments.presets or arguments.what is None:
        return _list_presets(arguments, output)
    if arguments.processes != 1 or arguments.max_restarts:
        return _launch(arguments, output)

    import_calmly("glassformer.runs.session")
    from glassformer.training.distributed import join

    process_group = join()
    try:
        return _train(arguments, output, process_group)
    except Exception as error:
        _fail(error, arguments, output, process_group)
        return None
    finally:
        process_group.leave()


def _train(arguments: argparse.Namespace, output: Output, process_group: ProcessGroup) -> dict[str, Any]:
    """In this process, which may be one of several."""
    from glassformer.runs.experiment import resolve
    from glassformer.runs.folder import RunFolder
    from glassformer.runs.session import Training, run_path
    from glassformer.training.distributed import is_ours, restarts
    from glassformer.training.progress import Reporter, reporter_for

    if not process_group.is_rank_zero:
        output.mute()
    (restarted,) = process_group.largest(restarts())
    config = resolve(arguments.what, arguments.overrides)
    is_resumed = arguments.resume or restarted > 0
    path = Path(
        process_group.on_rank_zero(lambda: str(run_path(arguments.what, config, arguments.run, is_resumed)))
    )
    reporter = Reporter() if arguments.quiet or not process_group.is_rank_zero else reporter_for(sys.stderr)
    reporter.note(f"run {path}" + (f", started again ({restarted:g})" if restarted else ""))
    training = Training(config, RunFolder(path), reporter, process_group=process_group)
    results = training.run()
    if not is_ours():  # whoever started this process tells the result, and must not take a stop for a failure
        output.exit_code = training.exit_code
        _show(results, output, arguments.processes)
    return results


def _fail(
    error: Exception, arguments: argparse.Namespace, output: Output, process_group: ProcessGroup
) -> None:
    """Of several processes, each says what only it can say."""
    from glassformer.training.distributed import LostRanks, WriterFailed

    if isinstance(error, UserError):
        output.exit_code = 2
        if isinstance(error, WriterFailed) or process_group.is_said_by_writer(str(error)):
            return
        if not process_group.is_rank_zero:
            first = error.details[0]
            first.path = f"rank {process_group.rank}" + (f", {first.path}" if first.path else "")
        raise error
    explained = process_group.explain(error)
    if not isinstance(explained, LostRanks):
        raise error
    output.exit_code = 1
    output.mute()  # the launcher may start all of them again, and then there will be a result
    output.error(_lost(str(explained), arguments.run))


def _lost(problem: str, run: Path | None) -> UserError:
    return user_error(
        problem, hint=f"glassformer train {run or 'RUN'} --resume goes on from the last checkpoint"
    )


def _launch(arguments: argparse.Namespace, output: Output) -> dict[str, Any] | None:
    """The same command in several processes; what is wrong with it is said before they start."""
    from glassformer.runs.experiment import resolve
    from glassformer.runs.session import run_path
    from glassformer.training.distributed import is_launched
    from glassformer.training.launcher import launch

    for place, value in (("--processes", arguments.processes), ("--max-restarts", arguments.max_restarts)):
        if value < (place == "--processes"):
            raise user_error("is too small", path=place, value=value, hint=f"{place} 2")
    if is_launched():
        raise user_error(
            "this is one of several processes already",
            path="--processes",
            value=arguments.processes,
            hint="either torchrun, or --processes without it",
        )
    config = resolve(arguments.what, arguments.overrides)
    path = run_path(arguments.what, config, arguments.run, arguments.resume)
    command = [sys.executable, "-m", "glassformer", "train", arguments.what, *arguments.overrides]
    command += ["--json", "--run", str(path)]
    command += [word for plugin in arguments.plugin for word in ("--plugin", str(plugin))]
    command += [f"--{name}" for name in ("resume", "quiet") if getattr(arguments, name)]
    outcome = launch(command, arguments.processes, arguments.max_restarts)
    output.exit_code = outcome.exit_code
    results: dict[str, Any] = {}
    with contextlib.suppress(ValueError):  # it may have been killed in the middle of it
        results = json.loads(outcome.said)
    if "run" in results:
        output.exit_code = 128 + signal.Signals[results["signal"]] if results["signal"] else 0
        _show(results, output, arguments.processes)
        return results
    if outcome.problem:
        output.error(_lost(outcome.problem, path))
    return results


def _show(results: dict[str, Any], output: Output, processes: int) -> None:
    path, primary_metric = results["run"], results["primary_metric"]
    if results["ended"] == "signal":
        output.say(f"stopped at step {results['steps']} and saved; go on with:")
        together = f" --processes {processes}" if processes > 1 else ""
        output.say(f"  glassformer train {path} --resume{together}")
        return
    split = "test" if "test" in results["metrics"] else "validation"
    output.say(f"{split} {primary_metric} {results['metrics'][split][primary_metric]:.4f}", style="bold")
    for warning in results["warnings"]:
        output.say(warning, style="bold red")
    output.say(
        f"{results['steps']} steps in {results['seconds']:.1f} s, {results['parameters']:,} parameters"
    )
    output.say(f"the run is in {path}; next:")
    for verb in ("evaluate {}", "predict {}", "attention {} INPUT --out map.png"):
        output.say(f"  glassformer {verb.format(path)}")


def _list_presets(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    from glassformer.runs.experiment import preset_text, presets

    if not arguments.presets:
        raise user_error(
            "train what?", path="WHAT", value="", allowed=presets(), hint="glassformer train reversal"
        )
    heads = {name: _first_comment(preset_text(name)) for name in presets()}
    for name, head in heads.items():
        output.say(f"{name:<24}{head}")
    return {"presets": heads}


def _first_comment(text: str) -> str:
    return text.splitlines()[0].lstrip("# ").strip() if text.startswith("#") else ""
