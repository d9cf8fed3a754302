"""Fork server: a process that has imported everything and forks children that run commands.

A child starts in milliseconds, since it need not import PyTorch. Protocol: one line of JSON on stdin requests
a child or its exit code; one line on stdout is the reply. An order may also make the child run as another
user, wait for strace, or kill itself at an exact point; see `injections`.
"""

import importlib
import json
import os
import resource
import sys
import time
import traceback

from glassformer.cli import main
from reliability.injections import Patience, prepare

# Modules that commands import lazily.
for module in (
    "glassformer.runs.session",
    "glassformer.cli.train",
    "glassformer.cli.report",
    "glassformer.sweeps.worker",
    "optuna",
    "psycopg",
    "rich.table",
    "sqlalchemy",
    "torch._dynamo",  # optimizers need it
):
    importlib.import_module(module)


warm: set[str] = set()


def warm_up(job: str) -> None:
    """Import a job's module and call its `warm_up`, once, before the fork."""
    name = job.partition(":")[0]
    if name not in warm:
        warm.add(name)
        getattr(importlib.import_module(name), "warm_up", lambda: None)()


def do_job(order: dict) -> int:
    """Run a generator function of the programme, and write its outcomes, one line of JSON each."""
    module, _, name = order["job"].partition(":")
    with open("outcomes", "w", buffering=1) as file:
        for outcome in getattr(importlib.import_module(module), name)(*order["arguments"]):
            file.write(json.dumps(outcome) + "\n")
    return 0


def run(order: dict) -> None:
    """Run an order in the forked child: redirect the streams, inject faults, run, report the resources."""
    os.chdir(order["folder"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), descriptor)
    used = os.open("used", os.O_WRONLY | os.O_CREAT, 0o644)
    before = resource.getrusage(resource.RUSAGE_SELF)
    os.environ.update(order.get("environment", {}))
    if "user" in order:
        os.setgroups([])
        os.setgid(order["user"])
        os.setuid(order["user"])
    prepare(order)
    try:
        code = do_job(order) if "job" in order else main(order["arguments"])
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    after = resource.getrusage(resource.RUSAGE_SELF)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    memory = (after.ru_maxrss - before.ru_maxrss) * 1024
    os.write(used, json.dumps({"seconds": seconds, "memory": memory}).encode())
    os._exit(code)


def wait(pid: int, seconds: float) -> int | None:
    """Wait up to some seconds and return the exit code, or None."""
    patience = Patience(seconds, pid)
    while not patience.is_over():
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
        if "job" in order:
            warm_up(order["job"])
        answer = os.fork()
        if answer == 0:
            run(order)
    print(json.dumps(answer), flush=True)
