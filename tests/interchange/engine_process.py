"""Child process that runs one engine for many exported folders, so that its library is imported only once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from glassformer.interchange.export import Outputs

LOOP = """
import importlib.util, json, os, sys
specification = importlib.util.spec_from_file_location("engine", sys.argv[1])
engine = importlib.util.module_from_spec(specification)
specification.loader.exec_module(engine)
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # libraries print to standard output
for line in sys.stdin:
    engine.main(*json.loads(line))
    print("done", file=answers, flush=True)
"""


class EngineProcess:
    """Replacement for `export.run_engine` that keeps its child process."""

    def __init__(self, script: Path, log: Path) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self.log = log
        self._errors = log.open("w")
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", LOOP, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            text=True,
        )

    def __call__(
        self, script: Path, folder: Path, request: Mapping[str, Any]
    ) -> tuple[Outputs, dict[str, Any]]:
        assert self.process.stdin is not None and self.process.stdout is not None
        request_path, answer = (folder.parent / f"{folder.name}.{name}" for name in ("request", "answer"))
        request_path.write_text(json.dumps(request))
        print(json.dumps([str(folder), str(request_path), str(answer)]), file=self.process.stdin, flush=True)
        if self.process.stdout.readline().strip() != "done":
            raise AssertionError(f"the engine failed:\n{self.log.read_text()[-3000:]}")
        document = json.loads(Path(f"{answer}.json").read_text())
        with np.load(f"{answer}.npz") as arrays:
            logits = [arrays[str(number)] for number in range(len(arrays.files))]
        outputs = Outputs(logits, document["tokens"], document.get("texts"), document.get("inputs"))
        return outputs, document

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)
        self._errors.close()
