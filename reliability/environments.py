"""Where a run may find itself: clocks, zones, locales, homes, names and other people."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from reliability.base import Outcome, Place, Tries, fault
from reliability.children import start_fresh
from reliability.kills import OFTEN, differences, killed
from reliability.storage import small_disk

ACCENTS = "Läufe & été/ein Pfad mit Leerzeichen, 日本 🙂"


def went(child: object) -> Outcome:
    code = child.wait()  # type: ignore[attr-defined]
    said = child.errors  # type: ignore[attr-defined]
    return None if code == 0 and "Traceback" not in said else f"exit {code}: {said[-600:]}"


def clock_set_back(place: Place) -> Outcome:
    alone, run = place.train(place.new("alone"), *OFTEN), place.new("run")
    command = ["train", place.tiny_file, *OFTEN, "--run", run, "--resume"]
    outcome = went(place.start(*command, clock={"step": 9, "seconds": -86_400}))
    listed = place.start("runs", "--runs", run.parent, "--json")
    return outcome or went(listed) or differences(alone, run)


def another_time_zone(place: Place) -> Outcome:
    alone, run = place.train(place.new("alone"), *OFTEN), place.new("run")
    if not killed(
        place, run, OFTEN, die_at_event={"kind": "step", "step": 11}, environment={"TZ": "Pacific/Kiritimati"}
    ):
        return "no kill"
    command = ["train", place.tiny_file, *OFTEN, "--run", run, "--resume"]
    return went(place.start(*command, environment={"TZ": "America/Anchorage"})) or differences(alone, run)


def fresh(place: Place, environment: dict[str, str | None], *words: str | Path) -> Outcome:
    """As a person starts it, in another environment."""
    folder = place.new("fresh")
    folder.mkdir()
    given = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    given.pop("GLASSFORMER_CACHE", None)
    kept = {name: value for name, value in given.items() if value is not None}
    return went(start_fresh([str(word) for word in words], folder, kept))


def locale_c(place: Place) -> Outcome:
    """Without Python's own way out of it."""
    run = place.new("run") / "é ✓"
    environment: dict[str, str | None] = {"LC_ALL": "C", "LANG": None, "LC_CTYPE": None}
    environment |= {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": None}
    return fresh(place, environment, "train", place.text_file, "--run", run, "--json")


def read_only_home(place: Place) -> Outcome:
    with small_disk(place.new("home")) as disk:
        disk.remount("ro")
        environment: dict[str, str | None] = {"HOME": str(disk.path), "XDG_CACHE_HOME": None}
        environment |= {"TMPDIR": str(place.folder)}
        return fresh(place, environment, "train", place.text_file, "--run", place.new("run"))


def no_home(place: Place) -> Outcome:
    environment: dict[str, str | None] = {"HOME": "/nonexistent/home", "XDG_CACHE_HOME": None}
    environment |= {"TMPDIR": str(place.folder)}
    out = place.folder / "map.png"
    outcome = fresh(place, environment, "attention", place.trained, "1 2 3", "--out", out)
    return outcome or (None if out.stat().st_size > 1000 else "no picture")


def spaces_and_accents(place: Place) -> Outcome:
    folder = place.folder / ACCENTS
    folder.mkdir(parents=True)
    shutil.copy(place.text_file, folder / "Wörter.yaml")
    run = folder / "run ✓"
    return (
        went(place.start("train", folder / "Wörter.yaml", "--run", run, "--quiet"))
        or went(place.start("evaluate", run))
        or went(place.start("report", run, "--out", folder / "Bericht ✓.html"))
        or went(place.start("runs", "--runs", folder, "--json"))
    )


def long_names(place: Place) -> Outcome:
    run = place.folder / ("n" * 250)
    page = run / ("r" * 245 + ".html")
    return (
        went(place.start("train", place.tiny_file, "--run", run, "--quiet"))
        or went(place.start("evaluate", run))
        or went(place.start("attention", run, "1 2 3", "--out", run / ("m" * 246 + ".npz")))
        or went(place.start("report", run, "--out", page))
        or (None if page.exists() else "no page")
    )


def two_users(place: Place) -> Outcome:
    """One has trained; another may look, and is told in a few words that it may not go on."""
    run = place.new("shared")
    shutil.copytree(place.trained, run)
    if os.geteuid() == 0:
        for path in (run, *run.rglob("*")):
            os.chown(path, 12345, 12345)
    run.chmod(0o555)
    outcome = went(place.start("evaluate", run, without_privileges=True))
    refused = place.start("train", run, "--resume", without_privileges=True)
    run.chmod(0o755)
    if refused.wait() != 2 or "Permission denied" not in refused.errors:
        return f"exit {refused.wait()}: {refused.errors[-300:]}"
    return outcome


SURROUNDINGS: dict[str, Callable[[Place], Outcome]] = {
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
    "surroundings",
    "clock set back, time zone, spaces and accents, 250-character names, two users, locale C, read-only home,"
    " no home",
    "works",
    quick=len(SURROUNDINGS),
    full=len(SURROUNDINGS),
    part=3,
)
def context(place: Place, numbers: range) -> Tries:
    if sys.platform == "win32":
        return
    for name, check in list(SURROUNDINGS.items())[numbers.start : numbers.stop]:
        outcome = check(place)
        yield f"{name}: {outcome}" if outcome else None
