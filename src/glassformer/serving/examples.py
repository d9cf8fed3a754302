"""Example inputs of served runs, read by a child process so that requests do not wait for it.

To read a few inputs, a task may have to read or generate all its data, which takes seconds. In a thread, that
would slow down every request; in this process, the data would stay in memory.

Usage: python -m glassformer.serving.examples COUNT ORDER, where ORDER is a JSON object.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glassformer.serving.served import ServedRun

EXAMPLES = 4
"""Number of inputs that the page offers for each run."""


class ExampleReader:
    """Child process that reads the examples of all runs, and the thread that receives them."""

    def __init__(self, runs: Mapping[str, ServedRun], plugins: Sequence[str | Path] = ()) -> None:
        self.runs = runs
        folders = {name: os.path.abspath(served.run.path) for name, served in runs.items()}
        order = {"plugins": [os.path.abspath(path) for path in plugins], "folders": folders}
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(EXAMPLES), json.dumps(order)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the server, which then ends this process
        )
        self._thread = threading.Thread(target=self._receive, name="examples", daemon=True)
        self._thread.start()

    def _receive(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                name, examples = json.loads(line)
                self.runs[name].set_examples(examples)
        self.process.wait()
        for served in self.runs.values():
            served.set_examples(served.examples)

    def stop(self) -> None:
        """End the child process."""
        self.process.terminate()
        self._thread.join(5)


def main(count: int, order: dict[str, object]) -> None:
    """Print one JSON line per run: its name and its examples."""
    from glassformer.core.config import validate
    from glassformer.core.errors import ErrorDetail, UserError
    from glassformer.core.registry import load_plugin
    from glassformer.runs.ending import example_inputs
    from glassformer.runs.experiment import ExperimentConfig
    from glassformer.runs.folder import RunFolder

    if hasattr(os, "nice"):
        os.nice(10)
    plugins, folders = order["plugins"], order["folders"]
    assert isinstance(plugins, list) and isinstance(folders, dict)
    with redirect_stdout(sys.stderr):  # a plug-in may print
        for plugin in plugins:
            load_plugin(plugin)
    for name, path in folders.items():
        examples: list[str] = []
        # The data files of a run may be on another machine.
        with redirect_stdout(sys.stderr), suppress(UserError, ErrorDetail, OSError):
            folder = RunFolder.open(Path(path))
            config = validate(ExperimentConfig, folder.config())
            examples = example_inputs(folder.restore_task(config.task, config.seed), count)
        print(json.dumps([name, examples]), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(sys.argv[2]))
