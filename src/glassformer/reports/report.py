"""The report as one page: nothing is fetched, only its own script may run, and text is never markup."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from glassformer.core.errors import user_error
from glassformer.plotting.page import SHARED_SCRIPTS, SHARED_STYLES, content_hash, joined, page_data, static
from glassformer.reports.content import Content, Inside, look_inside
from glassformer.reports.records import Record, Setting, by_setting, read_run
from glassformer.reports.sections import header, sections
from glassformer.reports.studies import Study, is_study, read_study
from glassformer.reports.tables import Markup, join, tag
from glassformer.runs.folder import RunFolder, list_runs
from glassformer.storage.files import replace_file, storage_error


def page(content: Content) -> str:
    script = joined([static(name) for name in SHARED_SCRIPTS] + [_own("report.js")])
    style = "".join([_own("report.css"), *(static(name) for name in SHARED_STYLES)])
    policy = (
        f"default-src 'none'; script-src {content_hash(script)}; style-src {content_hash(style)};"
        " img-src data:; base-uri 'none'; form-action 'none'"
    )
    body = [header(content), *sections(content)]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
{tag("title", content.title)}
<style>{style}</style>
</head>
<body>
{tag("main", *body)}
{_maps(content)}
<script type="module">{script}</script>
</body>
</html>
"""


def _maps(content: Content) -> Markup:
    """The weights that the script paints, a figure each."""
    found = [inside.maps for inside in content.insides if inside.maps is not None]
    made = []
    for place, maps in enumerate(found):
        # "<" in a token must not end the element that the data stand in.
        data = json.dumps(page_data(maps), ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
        made.append(Markup(f'<script type="application/json" id="maps-{place}">{data}</script>\n'))
    return join(made)


def _own(name: str) -> str:
    return (resources.files("glassformer.reports") / name).read_text(encoding="utf-8")


Say = Callable[[str], None]

ENDINGS = {"--out": (".html", ".htm"), "--markdown": (".md", ".markdown"), "--latex": (".tex",)}
MOST_INSIDES = 4
"""Settings whose model is asked: a page with twenty models' maps is no page."""


def report(
    runs: str | Path | Sequence[str | Path],
    out: str | Path = "report.html",
    *,
    markdown: str | Path | None = None,
    latex: str | Path | None = None,
    samples: int = 6,
    maps: int = 2,
    checkpoint: str = "best",
    plugins: Sequence[str] = (),
    say: Say = lambda text: None,
) -> dict[str, Any]:
    """Write the report on runs and studies, by their folders; what `report --json` prints.

    `samples` is how many answers of a model are shown, and `maps` of how many models the attention maps are.
    """
    given = [str(path) for path in ([runs] if isinstance(runs, (str, Path)) else runs)]
    files = {"--out": Path(out)}
    files |= {"--markdown": Path(markdown)} if markdown is not None else {}
    files |= {"--latex": Path(latex)} if latex is not None else {}
    _check(given, files, samples, maps)
    records, studies = _read(given, say)
    settings = by_setting(records)
    insides = [
        _inside(setting, checkpoint, samples, place < maps, say)
        for place, setting in enumerate(settings[:MOST_INSIDES])
    ]
    content = Content(records, studies, insides, _words(given, files), list(plugins))
    texts = {
        "--out": lambda: page(content),
        "--markdown": lambda: "\n".join(table.markdown() for table in content.tables()),
        "--latex": lambda: (
            "% \\usepackage{booktabs}\n" + "\n".join(table.latex() for table in content.tables())
        ),
    }
    for option, path in files.items():
        _write(path, texts[option]())
    return _document(content, files)


def _check(given: Sequence[str], files: dict[str, Path], samples: int, maps: int) -> None:
    """Before the work is done."""
    if not given:
        raise user_error("which runs?", path="RUN", hint="glassformer report RUN … --out report.html")
    for option, path in files.items():
        if path.suffix.lower() not in ENDINGS[option]:
            raise user_error(
                "the ending says what it is",
                path=option,
                value=str(path),
                hint=f"{path.stem}{ENDINGS[option][0]}",
            )
        if not os.path.isdir(path.parent):
            raise user_error(
                "no such folder", path=option, value=str(path.parent), hint="make it, or name another"
            )
    for option, count in (("--samples", samples), ("--maps", maps)):
        if count < 0:
            raise user_error("0 or more belongs here", path=option, value=count, hint=f"{option} 2")


def _read(given: Sequence[str], say: Say) -> tuple[list[Record], list[Study]]:
    records: dict[Path, Record] = {}
    studies: dict[Path, Study] = {}
    for path in given:
        place = _place(path)
        if place in records or place in studies:
            say(f"{path}: named twice, shown once")
        elif is_study(place):
            studies[place] = study = read_study(path)
            for run in study.runs:
                records.setdefault(run.resolve(), read_run(str(run)))
        else:
            records[place] = read_run(_checked(path))
    for record in records.values():
        if not record.is_finished:
            say(f"{record.given}: {record.state()}")
    return list(records.values()), list(studies.values())


def _place(path: str) -> Path:
    """One for all names of a folder; a name that no folder can have stays as it is, and is not found."""
    try:
        return Path(path).resolve()
    except (OSError, ValueError):
        return Path(path)


def _checked(path: str) -> str:
    """A folder of runs is none itself, and says how to name them all."""
    if not RunFolder(Path(path)).exists() and list_runs(Path(path)):
        raise user_error(
            "is a folder of runs, not a run", path=path, hint=f"glassformer report {path.rstrip('/')}/*"
        )
    return path


def _inside(setting: Setting, checkpoint: str, samples: int, with_maps: bool, say: Say) -> Inside:
    """Of the first run that is finished; where none is, of the first."""
    record = next(iter(setting.finished), setting.records[0])
    say(f"asking the model of {record.given}")
    inside = look_inside(record, checkpoint, samples, with_maps)
    for problem in inside.problems:
        say(f"{record.given}: {problem}")
    return inside


def _words(given: Sequence[str], files: dict[str, Path]) -> list[str]:
    return [*given, *(word for option, path in files.items() for word in (option, str(path)))]


def _write(path: Path, text: str) -> None:
    data = text.encode("utf-8", errors="replace")
    try:
        replace_file(path, data)
    except OSError as error:
        raise storage_error(error, path, len(data)) from error


def _document(content: Content, files: dict[str, Path]) -> dict[str, Any]:
    return {
        "out": str(files["--out"]),
        "markdown": str(files["--markdown"]) if "--markdown" in files else None,
        "latex": str(files["--latex"]) if "--latex" in files else None,
        "title": content.title,
        "studies": [study.given for study in content.studies],
        "runs": [
            {
                "run": record.given,
                "status": record.status.name,
                "seed": record.seed,
                "problems": record.problems,
            }
            for record in content.records
        ],
        "settings": [_setting_document(setting) for setting in content.settings],
        "problems": content.problems + [problem for inside in content.insides for problem in inside.problems],
    }


def _setting_document(setting: Setting) -> dict[str, Any]:
    split = setting.split
    measured = (
        {} if split is None else {name: setting.quantity(split, name) for name in setting.metrics(split)}
    )
    return {
        "setting": setting.label,
        "runs": [record.given for record in setting.records],
        "seeds": [record.seed for record in setting.finished],
        "split": split,
        "primary_metric": setting.primary_metric,
        "metrics": {name: quantity.value for name, quantity in measured.items() if quantity},
        "intervals": {name: quantity.interval for name, quantity in measured.items() if quantity},
    }
