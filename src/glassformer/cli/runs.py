"""`glassformer runs [list | compare RUN RUN … | remove RUN …]`: list, compare and remove runs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from glassformer.cli.arguments import add_runs_folder
from glassformer.cli.output import Output

ACTIONS = ["list", "compare", "remove"]

EXAMPLES = (
    "glassformer runs",
    "glassformer runs compare runs/reversal-1 runs/reversal-2",
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", default="list", help="list, compare or remove (default: list)")
    parser.add_argument("paths", metavar="RUN", nargs="*", type=Path, help="run folders")
    add_runs_folder(parser)


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    from glassformer.core.errors import user_error
    from glassformer.runs.folder import RunFolder, list_run_groups, list_runs

    if arguments.action not in ACTIONS:
        raise user_error("unknown action", path="runs", value=arguments.action, allowed=ACTIONS)
    if arguments.action == "list":
        groups = list_run_groups(arguments.runs)
        document = _list(list_runs(arguments.runs), arguments.runs, output, is_empty=not groups)
        return {**document, "groups": _list_groups(groups, output)}
    folders = [RunFolder.open(path) for path in arguments.paths]
    if not folders:
        raise user_error(
            "at least one run is needed",
            path=arguments.action,
            hint=f"glassformer runs {arguments.action} RUN …",
        )
    if arguments.action == "compare":
        return _compare(folders, output)
    for folder in folders:
        folder.remove()
        output.print(f"removed {folder.path}")
    return {"removed": [str(folder.path) for folder in folders]}


def _list_groups(groups: dict[Path, list[Any]], output: Output) -> list[dict[str, Any]]:
    """Print one row per sweep or study, with its number of runs and its best value."""
    from rich.table import Column, Table

    table = Table(Column("sweep or study", no_wrap=True), "runs", "finished", "metric", "best")
    rows = []
    for path, folders in groups.items():
        finished = sum((folder.path / "results.json").is_file() for folder in folders)
        metric, value = _best_of_sweep(path / "results.json")
        rows.append(
            {"path": str(path), "runs": len(folders), "finished": finished, "metric": metric, "best": value}
        )
        number = "" if value is None else f"{value:.4f}"
        table.add_row(str(path), str(len(folders)), str(finished), metric or "", number)
    if rows:
        output.show_table(table)
        inner = next(iter(groups)) / "runs"
        output.print(f"their runs: glassformer runs --runs {inner}, or glassformer studio --runs {inner}")
    return rows


def _best_of_sweep(path: Path) -> tuple[str | None, float | None]:
    """Return the metric of a sweep and its best value; None if there are no results, or of a study."""
    try:
        results = json.loads(path.read_bytes())
        return str(results["metric"]), float(results["best"]["value"])
    except (OSError, ValueError, KeyError, TypeError):
        return None, None


def _list(folders: list[Any], where: Path, output: Output, *, is_empty: bool) -> dict[str, Any]:
    from rich.table import Column, Table

    from glassformer.core.errors import UserError
    from glassformer.runs.folder import Status

    table = Table(Column("run", no_wrap=True), "status", "step", "ended by", "metric", "value")
    rows = []
    for folder in folders:
        try:
            status, results = folder.status(), folder.results()
        except UserError as error:
            output.print(f"{error}")
            status, results = Status("damaged", 0, None, None), {}
        primary_metric, value = _primary_metric(results)
        rows.append(
            {
                "run": str(folder.path),
                "status": status.name,
                "step": status.step,
                "primary_metric": primary_metric,
                "value": value,
                "ended": results.get("ended"),
                "ended_because": results.get("ended_because"),
            }
        )
        of = f"/{status.total_steps}" if status.total_steps and status.total_steps >= status.step else ""
        number = "" if value is None else f"{value:.4f}"
        table.add_row(
            str(folder.path),
            status.name,
            f"{status.step}{of}",
            results.get("ended", ""),
            primary_metric or "",
            number,
        )
    if rows:
        output.show_table(table)
    elif is_empty:
        output.print(f"no runs in {where}; start one: glassformer train reversal")
    return {"runs": rows}


def _primary_metric(results: dict[str, Any]) -> tuple[str | None, float | None]:
    metrics = results.get("metrics", {})
    best = metrics.get("test") or metrics.get("validation") or {}
    primary_metric = results.get("primary_metric")
    return primary_metric, best.get(primary_metric)


def _compare(folders: list[Any], output: Output) -> dict[str, Any]:
    from rich.table import Column, Table

    from glassformer.core.config import flatten
    from glassformer.runs.folder import options_in_force

    names = [str(folder.path) for folder in folders]
    trees = [
        flatten({"config": options_in_force(flatten(folder.config())), "results": _numbers(folder.results())})
        for folder in folders
    ]
    table = Table("", *(Column(name, min_width=len(name)) for name in names))
    rows = {}
    for path in dict.fromkeys(path for tree in trees for path in tree):
        values = [tree.get(path) for tree in trees]
        if len(folders) == 1 or any(value != values[0] for value in values[1:]):
            rows[path] = dict(zip(names, values, strict=True))
            table.add_row(path, *(_cell(path, value) for value in values))
    output.show_table(table)
    return {"differences": rows}


def _cell(path: str, value: Any) -> str:
    """Return a value as text; a measured number has four digits, and an option all of them."""
    if isinstance(value, float) and path.startswith("results."):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "" if value is None else str(value)


def _numbers(results: dict[str, Any]) -> dict[str, Any]:
    return {
        key: results[key] for key in ("steps", "seconds", "tokens_per_second", "metrics") if key in results
    }
