"""A process with everything imported, whose forks run the command: children to kill, and no wait for torch.

A line of JSON in asks for a child or for its exit code; a line of JSON out answers.
"""

import importlib
import json
import os
import sys
import time
import traceback

from glassformer.cli import main

for module in (
    "glassformer.launch",
    "glassformer.cli.train",
    "torch._dynamo",
):  # optimizers need it
    importlib.import_module(module)


def run(order: dict) -> None:
    os.chdir(order["folder"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), descriptor)
    try:
        code = main(order["arguments"])
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def wait(pid: int, seconds: float) -> int | None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    return None


for line in sys.stdin:
    order = json.loads(line)
    if "wait" in order:
        answer = wait(order["wait"], order["seconds"])
    else:
        answer = os.fork()
        if answer == 0:
            run(order)
    print(json.dumps(answer), flush=True)
