"""Fuzzing of command-line arguments, and the checks that all fuzzing shares."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import resource
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from glassformer.cli import VERBS, main
from glassformer.core.errors import ErrorDetail, UserError
from glassformer.training.precision import DTYPES, probe
from reliability.base import Outcome, Tries, Workspace, fault

SECONDS = 20.0
"""Limit of processor time per example; one second is already unusual."""

BLOCKED_SECONDS = 300.0
"""Limit of time per example spent waiting for anything but a processor."""

TICK = 5.0


class Hangs(BaseException):
    """Raised when an example hangs; a BaseException, so that no handler of the package catches it."""


class Blocked:
    """Timer of the time this process is blocked; time on a busy or paused machine does not count."""

    def __init__(self) -> None:
        self.seconds, self.last = 0.0, self.clocks()

    @staticmethod
    def clocks() -> tuple[float, float]:
        """Return wall-clock time, and time spent running or ready to run."""
        try:
            ran, waited = Path("/proc/self/schedstat").read_text().split()[:2]
            return time.monotonic(), (int(ran) + int(waited)) / 1e9
        except (OSError, ValueError):
            return time.monotonic(), time.process_time()

    def tick(self, number: int, frame: object) -> None:
        now = self.clocks()
        # A stopped process receives only one tick when it continues.
        self.seconds += max(0.0, min(now[0] - self.last[0], 2 * TICK) - (now[1] - self.last[1]))
        self.last = now
        if self.seconds > BLOCKED_SECONDS:
            raise Hangs


@contextlib.contextmanager
def no_hang() -> Iterator[None]:
    """Context: raise Hangs if the block exceeds the limits."""

    def stop(number: int, frame: object) -> None:
        raise Hangs

    signal.signal(signal.SIGVTALRM, stop)
    signal.signal(signal.SIGALRM, Blocked().tick)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    signal.setitimer(signal.ITIMER_REAL, TICK, TICK)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def attempt(action: Callable[[], object], description: object) -> Outcome:
    """Run an action that may succeed or raise a user error; anything else is a failure."""
    try:
        with no_hang():
            action()
    except (UserError, ErrorDetail):
        return None
    except Hangs:
        return f"{description}: hangs at {traceback.format_exc(limit=-3)}"
    except Exception:
        return f"{description}: {traceback.format_exc(limit=-4)}"
    return None


def run_command(arguments: Sequence[str]) -> Outcome:
    """Run a command: it must exit with 0 or 2, without a traceback; `--json` must print one document."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))

    def run() -> None:
        code = main(list(arguments))
        printed = out.buffer.getvalue().decode()  # type: ignore[attr-defined]
        errors = err.buffer.getvalue().decode(errors="replace")  # type: ignore[attr-defined]
        # `doctor` exits with 1 if it finds a fault in a random model.
        if code not in (0, 2) and (code != 1 or arguments[0] != "doctor"):
            raise RuntimeError(f"exit {code}: {errors[-300:]}")
        if "Traceback (most recent call last)" in errors + printed:
            raise RuntimeError(errors[-600:])
        if code == 2 and not errors.strip() and arguments:
            raise RuntimeError("exit 2 without a message")
        if "--json" in arguments and code == 0 and printed and "-h" not in arguments:
            json.loads(printed)

    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        return attempt(run, " ".join(map(repr, arguments)))


def examples(
    strategy: st.SearchStrategy[Any], check: Callable[[Any], Outcome], count: int, number: int
) -> Iterator[Outcome]:
    """Yield the outcomes of `count` random examples. Failures are not shrunk and do not end the rest."""
    outcomes: list[Outcome] = []

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[phase for phase in settings.default.phases if phase.name == "generate"],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def test(example: Any) -> None:
        outcomes.append(check(example))

    test()
    yield from outcomes


def warm_up() -> None:
    """Compute before the fork what all forks need: imports, Hypothesis's caches, supported precisions."""
    for verb in VERBS:
        importlib.import_module(f"glassformer.cli.{verb.replace('-', '_')}")
    list(examples(st.text() | st.integers() | st.binary(), lambda example: None, 30, 0))
    for precision in DTYPES:
        probe(precision, "cpu")  # cached by these arguments


NO_UTF8 = "\udcff\udcfe"
NUMBERS = ["0", "-1", "1", "3", "1e400", "nan", "0.5", "99999999999999999999", "0x10", "١", "1_0", " 2", "²"]
ODD = [
    "",
    " ",
    "-",
    "=",
    "a=b",
    "=1",
    "a.b=",
    ".=1",
    "{",
    "[1,",
    "~",
    "null",
    "true",
    "\t",
    "\n",
    "é",
    "日本",
    "🙂",
]
HARD = [
    NO_UTF8,
    f"x{NO_UTF8}.yaml",
    "%s%n",
    "../..",
    "/",
    "/dev/null",
    "a" * 300,
    "*",
    "$(id)",
    "\x1b[31m",
    "\ud800",
]
PATHS = ["tiny.yaml", "run", "none.yaml", "none", "noise.bin", "folder", "texts.tsv", "fifo"]
OPTIONS = [
    "model.num_layers=0",
    "model.num_layers=x",
    "model.num_heads=3",
    "model.position.kind=rotary",
    "model.position={kind: nonsense}",
    "training.max_steps=1",
    "training.batch_size=-4",
    "training.optimizer.learning_rate=1e400",
    "training.optimizer={}",
    "task.length=2",
    "task.kind=nothing",
    "task=1",
    "seed=1.5",
    "seed=18446744073709551616",
    "task.data.train=texts.tsv",
    "evaluation.decoding=beam",
    "a.b.c=1",
    "model.norm=!!python/name:os.system",
]
NAMES = ["best", "latest", "1", "test", "train", "validation", "beam", "kind=beam,size=2", "layer-1"]
# Verbs that would serve, train or download for a long time get a bad value.
SPOILED = {
    "studio": ["--port", "x"],
    "sweep": ["PATH"],
    "prove-resume": ["--kills", "x"],
    "bench": ["nothing"],
}
NO_RUN = {"runs", "sweep", "prove-resume", "studio", "bench", "reproduce"}
EXCLUDED = {"--help", "-h", "--measure", "--plugin"}


def flags(verb: str) -> list[str]:
    """List the options of a verb."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    importlib.import_module(f"glassformer.cli.{verb.replace('-', '_')}").configure(parser)
    return sorted(set(parser._option_string_actions) - EXCLUDED)


@st.composite
def command_lines(draw: st.DrawFn, known: dict[str, list[str]]) -> list[str]:
    verb = draw(st.sampled_from(sorted(known)) | st.sampled_from(ODD + HARD))
    values = st.sampled_from(NUMBERS + ODD + HARD + NAMES) | st.text(max_size=12)
    if verb not in NO_RUN:
        values |= st.sampled_from(PATHS) | st.sampled_from(["run", "tiny.yaml"])
    values |= st.sampled_from(OPTIONS)
    words = draw(st.lists(values | st.sampled_from(known.get(verb) or ["--json"]), max_size=7))
    return [verb, *words, *SPOILED.get(verb, [])]


def prepare(trained: str, texts: str) -> Callable[[], None]:
    """Fill the working directory with a run, a config, data and odd files. Return a reset function."""
    from glassformer.core.config import dump_yaml
    from reliability.base import TINY

    text = dump_yaml({**TINY, "training": {**TINY["training"], "max_epochs": None, "max_steps": 1}})
    Path("folder").mkdir()
    os.mkfifo("fifo")
    Path("noise.bin").write_bytes(os.urandom(3000))

    def restore() -> None:
        Path("tiny.yaml").write_text(text)
        shutil.copy(texts, "texts.tsv")
        shutil.rmtree("run", ignore_errors=True)
        shutil.copytree(trained, "run")

    restore()
    return restore


def fuzz_arguments(trained: str, texts: str, count: int, number: int) -> Iterator[Outcome]:
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
    restore = prepare(trained, texts)
    known = {verb: flags(verb) for verb in VERBS}
    before = set(os.listdir("."))

    def check(arguments: list[str]) -> Outcome:
        outcome = run_command([argument.replace("\0", "") for argument in arguments])
        new = set(os.listdir(".")) - before
        if new or os.stat("run").st_mtime_ns != stamp[0] or len(arguments) > 3:
            for name in new - {"runs"}:
                with contextlib.suppress(OSError):
                    shutil.rmtree(name) if os.path.isdir(name) else os.unlink(name)
            restore()
            stamp[0] = os.stat("run").st_mtime_ns
        return outcome

    stamp = [os.stat("run").st_mtime_ns]
    yield from examples(command_lines(known), check, count, number)


@fault(
    "fuzzed arguments",
    "random arguments to every verb of the command line",
    "exit 0 or 2, a short message, no traceback, no hang; `--json` prints one document",
    quick=500,
    full=25_000,
    part=1250,
)
def arguments(workspace: Workspace, numbers: range) -> Tries:
    _ = workspace.text_file
    given = (
        str(workspace.trained),
        str(workspace.folder / "texts.tsv"),
        len(numbers),
        workspace.rng.randrange(1 << 30),
    )
    yield from workspace.do("reliability.fuzzing:fuzz_arguments", *given, seconds=600 + 10 * len(numbers))
