"""Report as one offline HTML page; only its own script may run, and all text is escaped."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from glassformer.core.errors import user_error
from glassformer.plotting.markup import Markup, join, tag
from glassformer.plotting.page import SHARED_SCRIPTS, SHARED_STYLES, content_hash, joined, page_data, static
from glassformer.reports.content import ModelView, ReportContent, inspect_model
from glassformer.reports.sections import header, sections
from glassformer.reports.study_folder import StudyFolder, is_study, read_study
from glassformer.reports.summary import RunGroup, RunSummary, group_runs, read_run
from glassformer.reports.tables import package_file
from glassformer.runs.folder import RunFolder, list_runs
from glassformer.storage.files import atomic_write, storage_error


def page(content: ReportContent) -> str:
    """Return the HTML page of a report as text."""
    script = joined([static(name) for name in SHARED_SCRIPTS] + [package_file("report.js")])
    style = "".join([package_file("report.css"), *(static(name) for name in SHARED_STYLES)])
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


def _maps(content: ReportContent) -> Markup:
    """Build one `<script>` element per figure with its attention weights as JSON."""
    found = [view.maps for view in content.views if view.maps is not None]
    made = []
    for index, maps in enumerate(found):
        # A "<" in a token must not end the script element.
        data = json.dumps(page_data(maps), ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
        made.append(Markup(f'<script type="application/json" id="maps-{index}">{data}</script>\n'))
    return join(made)


Log = Callable[[str], None]

ENDINGS = {"--out": (".html", ".htm"), "--markdown": (".md", ".markdown"), "--latex": (".tex",)}
MAX_MODELS = 4
"""Maximum number of models that one report loads, which limits the size of the page."""


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
    log: Log = lambda text: None,
) -> dict[str, Any]:
    """Write a report about runs and studies, given by their folders; return a JSON-serialisable summary.

    `samples` is the number of predictions per model. `maps` is the number of models with attention maps.
    """
    given = [str(path) for path in ([runs] if isinstance(runs, (str, Path)) else runs)]
    asked = {"--out": out, "--markdown": markdown, "--latex": latex}
    files = {option: Path(path) for option, path in asked.items() if path is not None}
    _check(given, files, samples, maps)
    summaries, studies = _read(given, log)
    groups = group_runs(summaries)
    views = [
        _view(group, checkpoint, samples, index < maps, log)
        for index, group in enumerate(groups[:MAX_MODELS])
    ]
    words = [*given, *(word for option, path in files.items() for word in (option, str(path)))]
    content = ReportContent(summaries, studies, views, words, list(plugins))
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
    """Raise a user error if an argument is invalid, before any file is read or written."""
    if not given:
        raise user_error("no run was given", path="RUN", hint="glassformer report RUN … --out report.html")
    for option, path in files.items():
        if path.suffix.lower() not in ENDINGS[option]:
            hint = f"{path.stem}{ENDINGS[option][0]}"
            raise user_error("wrong file extension", path=option, value=str(path), hint=hint)
        if not os.path.isdir(path.parent):
            hint = "create the folder, or choose another one"
            raise user_error("no such folder", path=option, value=str(path.parent), hint=hint)
    for option, count in (("--samples", samples), ("--maps", maps)):
        if count < 0:
            raise user_error("must be 0 or more", path=option, value=count, hint=f"{option} 2")


def _read(given: Sequence[str], log: Log) -> tuple[list[RunSummary], list[StudyFolder]]:
    summaries: dict[Path, RunSummary] = {}
    studies: dict[Path, StudyFolder] = {}
    for path in given:
        location = _resolve(path)
        if location in summaries or location in studies:
            log(f"{path}: given twice, shown once")
        elif is_study(location):
            studies[location] = study = read_study(path)
            for run in study.runs:
                summaries.setdefault(run.resolve(), read_run(str(run)))
        else:
            _reject_parent(path)
            summaries[location] = read_run(path)
    for summary in summaries.values():
        if not summary.is_finished:
            log(f"{summary.given}: {summary.state()}")
    return list(summaries.values()), list(studies.values())


def _resolve(path: str) -> Path:
    """Return the absolute path, or the path unchanged if the system cannot resolve it."""
    try:
        return Path(path).resolve()
    except (OSError, ValueError):
        return Path(path)


def _reject_parent(path: str) -> None:
    """Raise a user error if the folder contains runs but is not a run itself."""
    if not RunFolder(Path(path)).exists() and list_runs(Path(path)):
        hint = f"glassformer report {path.rstrip('/')}/*"
        raise user_error("this is a folder of runs, not a run", path=path, hint=hint)


def _view(group: RunGroup, checkpoint: str, samples: int, with_maps: bool, log: Log) -> ModelView:
    """Inspect the model of one run in a group: the first finished run, or the first if none is finished."""
    summary = next(iter(group.finished), group.summaries[0])
    log(f"loading the model of {summary.given}")
    view = inspect_model(summary, checkpoint, samples, with_maps)
    for warning in view.warnings:
        log(f"{summary.given}: {warning}")
    return view


def _write(path: Path, text: str) -> None:
    data = text.encode("utf-8", errors="replace")
    try:
        atomic_write(path, data)
    except OSError as error:
        raise storage_error(error, path, len(data)) from error


def _document(content: ReportContent, files: dict[str, Path]) -> dict[str, Any]:
    return {
        **{option[2:]: str(files[option]) if option in files else None for option in ENDINGS},
        "title": content.title,
        "studies": [study.given for study in content.studies],
        "runs": [
            {
                "run": summary.given,
                "status": summary.status.name,
                "seed": summary.seed,
                "warnings": summary.warnings,
            }
            for summary in content.summaries
        ],
        "settings": [_setting_document(group) for group in content.groups],
        "warnings": content.warnings + [warning for view in content.views for warning in view.warnings],
    }


def _setting_document(group: RunGroup) -> dict[str, Any]:
    split = group.split
    measured = {} if split is None else {name: group.quantity(split, name) for name in group.metrics(split)}
    return {
        "setting": group.label,
        "runs": [summary.given for summary in group.summaries],
        "seeds": [summary.seed for summary in group.finished],
        "split": split,
        "primary_metric": group.primary_metric,
        "metrics": {name: quantity.value for name, quantity in measured.items() if quantity},
        "intervals": {name: quantity.interval for name, quantity in measured.items() if quantity},
    }
