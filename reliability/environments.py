"""Unusual environments: clocks, time zones, locales, home folders, file names and other users."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from reliability.base import Outcome, Tries, Workspace, fault
from reliability.children import Child, start_fresh
from reliability.kills import OFTEN, differences, killed
from reliability.storage import small_disk

ACCENTS = "Läufe & été/ein Pfad mit Leerzeichen, 日本 🙂"


def succeeded(child: Child) -> Outcome:
    """Check that a command ends with exit code 0 and without a traceback."""
    code, errors = child.wait(), child.errors
    return None if code == 0 and "Traceback" not in errors else f"exit {code}: {errors[-600:]}"


def clock_set_back(workspace: Workspace) -> Outcome:
    alone, run = workspace.train(workspace.new("alone"), *OFTEN), workspace.new("run")
    command = ["train", workspace.tiny_file, *OFTEN, "--run", run, "--resume"]
    outcome = succeeded(workspace.start(*command, clock={"step": 9, "seconds": -86_400}))
    listed = workspace.start("runs", "--runs", run.parent, "--json")
    return outcome or succeeded(listed) or differences(alone, run)


def another_time_zone(workspace: Workspace) -> Outcome:
    alone, run = workspace.train(workspace.new("alone"), *OFTEN), workspace.new("run")
    if not killed(
        workspace,
        run,
        OFTEN,
        die_at_event={"kind": "step", "step": 11},
        environment={"TZ": "Pacific/Kiritimati"},
    ):
        return "no kill"
    command = ["train", workspace.tiny_file, *OFTEN, "--run", run, "--resume"]
    return succeeded(workspace.start(*command, environment={"TZ": "America/Anchorage"})) or differences(
        alone, run
    )


def fresh(workspace: Workspace, environment: dict[str, str | None], *words: str | Path) -> Outcome:
    """Run a command in a new interpreter with other environment variables."""
    folder = workspace.new("fresh")
    folder.mkdir()
    given = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    given.pop("GLASSFORMER_CACHE", None)
    environment_set = {name: value for name, value in given.items() if value is not None}
    return succeeded(start_fresh([str(word) for word in words], folder, environment_set))


def locale_c(workspace: Workspace) -> Outcome:
    """Train in the C locale, with Python's UTF-8 fallback switched off."""
    run = workspace.new("run") / "é ✓"
    environment: dict[str, str | None] = {"LC_ALL": "C", "LANG": None, "LC_CTYPE": None}
    environment |= {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": None}
    return fresh(workspace, environment, "train", workspace.text_file, "--run", run, "--json")


def read_only_home(workspace: Workspace) -> Outcome:
    with small_disk(workspace.new("home")) as disk:
        disk.remount("ro")
        environment: dict[str, str | None] = {"HOME": str(disk.path), "XDG_CACHE_HOME": None}
        environment |= {"TMPDIR": str(workspace.folder)}
        return fresh(workspace, environment, "train", workspace.text_file, "--run", workspace.new("run"))


def no_home(workspace: Workspace) -> Outcome:
    environment: dict[str, str | None] = {"HOME": "/nonexistent/home", "XDG_CACHE_HOME": None}
    environment |= {"TMPDIR": str(workspace.folder)}
    out = workspace.folder / "map.png"
    outcome = fresh(workspace, environment, "attention", workspace.trained, "1 2 3", "--out", out)
    return outcome or (None if out.stat().st_size > 1000 else "no picture")


def spaces_and_accents(workspace: Workspace) -> Outcome:
    folder = workspace.folder / ACCENTS
    folder.mkdir(parents=True)
    shutil.copy(workspace.text_file, folder / "Wörter.yaml")
    run = folder / "run ✓"
    return (
        succeeded(workspace.start("train", folder / "Wörter.yaml", "--run", run, "--quiet"))
        or succeeded(workspace.start("evaluate", run))
        or succeeded(workspace.start("report", run, "--out", folder / "Bericht ✓.html"))
        or succeeded(workspace.start("runs", "--runs", folder, "--json"))
    )


def long_names(workspace: Workspace) -> Outcome:
    run = workspace.folder / ("n" * 250)
    page = run / ("r" * 245 + ".html")
    return (
        succeeded(workspace.start("train", workspace.tiny_file, "--run", run, "--quiet"))
        or succeeded(workspace.start("evaluate", run))
        or succeeded(workspace.start("attention", run, "1 2 3", "--out", run / ("m" * 246 + ".npz")))
        or succeeded(workspace.start("report", run, "--out", page))
        or (None if page.exists() else "no page")
    )


def two_users(workspace: Workspace) -> Outcome:
    """One user has trained; another can evaluate, and gets a short error when resuming."""
    run = workspace.new("shared")
    shutil.copytree(workspace.trained, run)
    if os.geteuid() == 0:
        for path in (run, *run.rglob("*")):
            os.chown(path, 12345, 12345)
    run.chmod(0o555)
    outcome = succeeded(workspace.start("evaluate", run, without_privileges=True))
    refused = workspace.start("train", run, "--resume", without_privileges=True)
    run.chmod(0o755)
    if refused.wait() != 2 or "Permission denied" not in refused.errors:
        return f"exit {refused.wait()}: {refused.errors[-300:]}"
    return outcome


ENVIRONMENTS: dict[str, Callable[[Workspace], Outcome]] = {
    "the clock set back by a day": clock_set_back,
    "another time zone": another_time_zone,
    "spaces and accents in paths": spaces_and_accents,
    "names of 250 characters": long_names,
    "two users": two_users,
    "the locale C": locale_c,
    "a read-only home": read_only_home,
    "no home": no_home,
}


@fault(
    "environments",
    "clock set back, time zone, spaces and accents, 250-character names, two users, locale C, read-only home,"
    " no home",
    "works",
    quick=len(ENVIRONMENTS),
    full=len(ENVIRONMENTS),
    part=3,
)
def environments(workspace: Workspace, numbers: range) -> Tries:
    if sys.platform == "win32":
        return
    for name, check in list(ENVIRONMENTS.items())[numbers.start : numbers.stop]:
        outcome = check(workspace)
        yield f"{name}: {outcome}" if outcome else None
