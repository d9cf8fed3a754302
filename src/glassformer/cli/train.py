"""`glassformer train WHAT [PATH=VALUE ...]`"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from glassformer.cli.output import Output
from glassformer.cli.what import add_what, load_plugins


def configure(parser: argparse.ArgumentParser) -> None:
    add_what(parser, is_optional=True)
    parser.add_argument("--run", type=Path, metavar="DIR", help="the run's folder (default: runs/WHAT-N)")
    parser.add_argument(
        "--resume", action="store_true", help="go on where the run stopped, to the bit; start if it never did"
    )
    parser.add_argument("--presets", action="store_true", help="list the presets and stop")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any] | None:
    from glassformer.experiment import resolve
    from glassformer.launch import Training, run_path
    from glassformer.runs import RunFolder
    from glassformer.training.progress import Reporter, reporter_for

    load_plugins(arguments)
    if arguments.presets or arguments.what is None:
        return _list_presets(arguments, output)
    config = resolve(arguments.what, arguments.overrides)
    path = run_path(arguments.what, config, arguments.run, arguments.resume)
    reporter = Reporter() if arguments.quiet else reporter_for(sys.stderr)
    reporter.note(f"run {path}")
    training = Training(config, RunFolder(path), reporter)
    results = training.run()
    if results["ended"] == "signal":
        output.exit_code = training.signals.exit_code
    _show(results, output)
    return results


def _show(results: dict[str, Any], output: Output) -> None:
    path, headline = results["run"], results["headline"]
    if results["ended"] == "signal":
        output.say(f"stopped at step {results['steps']} and saved; go on with:")
        output.say(f"  glassformer train {path} --resume")
        return
    split = "test" if "test" in results["metrics"] else "validation"
    output.say(f"{split} {headline} {results['metrics'][split][headline]:.4f}", style="bold")
    output.say(
        f"{results['steps']} steps in {results['seconds']:.1f} s, {results['parameters']:,} parameters"
    )
    output.say(f"the run is in {path}; next:")
    for verb in ("evaluate {}", "predict {}", "attention {} INPUT --out map.png"):
        output.say(f"  glassformer {verb.format(path)}")


def _list_presets(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    from glassformer.errors import user_error
    from glassformer.experiment import preset_text, presets

    if not arguments.presets:
        raise user_error(
            "train what?", place="WHAT", value="", allowed=presets(), remedy="glassformer train reversal"
        )
    heads = {name: _first_comment(preset_text(name)) for name in presets()}
    for name, head in heads.items():
        output.say(f"{name:<24}{head}")
    return {"presets": heads}


def _first_comment(text: str) -> str:
    return text.splitlines()[0].lstrip("# ").strip() if text.startswith("#") else ""
