"""`glassformer prove-resume SOURCE`: kill and resume a run, and compare it with an uninterrupted one."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from glassformer.cli.arguments import add_source, check_minimum, resolve_source
from glassformer.cli.output import Output

EXAMPLES = ("glassformer prove-resume reversal --kills 3 --steps 60",)


def configure(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    add = parser.add_argument
    add("--kills", type=int, default=5, help="kill the run N times with SIGKILL")
    add("--steps", type=int, default=200, help="number of training steps")
    add("--kill-seed", type=int, default=0, help="random seed that chooses when the run is killed")
    add("--keep", type=Path, metavar="DIR", help="keep both runs in the folder DIR")


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    from rich.table import Table

    from glassformer.core.errors import user_error
    from glassformer.runs.verify import prove_resume

    config = resolve_source(arguments)
    check_minimum(arguments, kills=1)
    if arguments.steps < 2 * arguments.kills + 2:
        raise user_error(
            f"{arguments.kills} kills need more steps",
            path="--steps",
            value=arguments.steps,
            hint=f"--steps {max(50, 10 * arguments.kills)}",
        )
    if arguments.keep is not None and arguments.keep.exists() and any(arguments.keep.iterdir()):
        raise user_error(
            "the folder is not empty", path=str(arguments.keep), hint="name a folder that does not exist"
        )
    with tempfile.TemporaryDirectory() as temporary:
        proof = prove_resume(
            config,
            arguments.keep or Path(temporary),
            kills=arguments.kills,
            steps=arguments.steps,
            seed=arguments.kill_seed,
            plugins=tuple(arguments.plugin),
            report=output.print,
        )
    table = Table("compared", "uninterrupted", "interrupted", "equal")
    for name, item in proof.compared.items():
        digests = (str(item[side])[:16] for side in ("uninterrupted", "interrupted"))
        table.add_row(name, *digests, "yes" if item["is_equal"] else "NO")
    output.show(table)
    is_complete = proof.kills == arguments.kills
    verdict = "bit-identical" if proof.passed else "NOT EQUAL"
    output.print(f"{proof.kills} kills, {proof.kills_during_save} of them during a save: {verdict}")
    if not is_complete:
        output.print(f"the run ended before kill {proof.kills + 1}; increase --steps")
    output.exit_code = 0 if proof.passed and is_complete else 1
    return {
        "passed": proof.passed and is_complete,
        "kills": proof.kills,
        "kills_during_save": proof.kills_during_save,
        "compared": proof.compared,
    }
