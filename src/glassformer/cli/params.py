"""`glassformer params SOURCE`: count the parameters, FLOPs and memory of a model before it is trained."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from glassformer.cli.arguments import add_source, resolve_source
from glassformer.cli.export import show_destinations
from glassformer.cli.output import DelayedProgress, Output

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text
    from rich.tree import Tree

    from glassformer.cost.cluster import ClusterConfig, Projection
    from glassformer.cost.parameters import Size
    from glassformer.data.batching import Batch
    from glassformer.models.closed_form import Comparison
    from glassformer.runs.experiment import Experiment

CONVENTION = """\
FLOPs: matrix products with 2 FLOPs per multiply-add. Attention scores are included, and a causal mask does
not halve them. A backward pass counts as 2 forward passes. Activations: tensors saved for backward passes."""

LINE_WIDTH = 56
"""Maximum width in characters of a name and its formula on one line, so that the line fits into 80."""

EXAMPLES = (
    "glassformer params reversal",
    "glassformer params translation model.hidden_dim=512 --measure",
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument(
        "--measure",
        action="store_true",
        help="also time a few training steps, to estimate the training time and peak memory on this machine",
    )
    parser.add_argument(
        "--cluster",
        metavar="devices=1024,tokens=1e12",
        help="also estimate the cost of training on many devices;"
        " peak=, utilization=, memory= and bandwidth= describe one device",
    )


def run(arguments: argparse.Namespace, output: Output) -> dict[str, Any]:
    import torch

    from glassformer.cost.parameters import longest_batch, measure, training_memory
    from glassformer.interchange.export import ExportPlan, destinations
    from glassformer.models.closed_form import compare
    from glassformer.runs.experiment import Experiment
    from glassformer.training.precision import DTYPES

    with DelayedProgress("building the data") as progress:
        experiment = Experiment(resolve_source(arguments))
        training = experiment.fitted_training()
        batch = longest_batch(experiment.task, training)
        progress.stage("tracing the model")
        size = measure(
            lambda: experiment.config.model.build(experiment.task.task_type),
            batch,
            dtype=getattr(torch, DTYPES.get(training.precision, "float32")),  # auto: the larger estimate
        )
    terms = stated_terms(experiment)
    comparisons = compare(terms, size.by_module)
    flops = size.flops_per_token()
    memory = training_memory(size, experiment.task, training, batch)

    output.show(tree(size.total, comparisons))
    output.show(costs(flops, memory, batch, size.tokens))
    output.print(CONVENTION)
    if (changes := experiment.small_data_note()) is not None:
        output.print(changes)
    exports = destinations(ExportPlan(experiment.config.model, experiment.task))
    show_destinations(exports, output)
    if size.why_not:
        output.print(f"FLOPs and activation memory are unknown: {size.why_not}")
    if not all(comparison.agrees for comparison in comparisons):
        output.exit_code = 1
    projection = None
    if arguments.cluster is not None:
        projection = project_onto(arguments.cluster, experiment, size, batch)
        output.show(projected(*projection))
    expected = experiment.measure() if arguments.measure else None
    if expected is not None:
        output.print(f"Measured here: {expected.describe()}")
    return {
        "total": size.total,
        "by_module": size.by_module,
        "closed_form": sum(map(int, terms.values())) if terms else None,
        "terms": {comparison.path: _term_document(comparison) for comparison in comparisons},
        "flops_per_token": flops,
        "memory_bytes": memory,
        "batch": {"sequences": len(batch.indices), "tokens": size.tokens},
        "note": size.why_not,
        "exports": [each.document() for each in exports],
        "measured": None if expected is None else asdict(expected),
        "cluster": None if projection is None else projection[0].dump() | asdict(projection[1]),
    }


def project_onto(
    options: str, experiment: Experiment, size: Size, batch: Batch
) -> tuple[ClusterConfig, Projection]:
    from glassformer.core.config import parse_overrides, validate
    from glassformer.cost.cluster import ClusterConfig, project

    cluster = validate(ClusterConfig, parse_overrides(options.split(",")))
    training = experiment.fitted_training()
    floats = training.optimizer.state_floats_per_parameter
    is_averaged = training.ema_decay is not None
    return cluster, project(size, len(batch.indices), cluster, floats, is_averaged=is_averaged)


def projected(cluster: ClusterConfig, projection: Projection) -> Table:
    table = _two_columns(
        f"{cluster.tokens:,.4g} tokens on {cluster.devices:,} devices of {cluster.peak:.3g} FLOP/s,"
        f" {cluster.utilization:.0%} of them used"
    )
    table.add_row("FLOPs", f"{projection.operations:.3g}")
    table.add_row("steps", f"{projection.steps:,} of {projection.tokens_per_step:,} tokens")
    table.add_row("computation per step", f"{projection.seconds_per_step:.3g} s")
    table.add_row("checkpoint", f"{projection.checkpoint_bytes / 1e9:,.1f} GB")
    for name, strategy_cost in (("ddp", projection.ddp), ("fsdp", projection.fsdp)):
        table.add_section()
        verdict = "fits" if strategy_cost.fits else "does NOT fit"
        memory = f"{strategy_cost.memory_bytes / 1e9:,.1f} of {cluster.memory / 1e9:,.0f} GB: {verdict}"
        table.add_row(f"{name}, memory per device", memory)
        traffic = f"{strategy_cost.traffic_bytes / 1e9:,.1f} GB in {strategy_cost.traffic_seconds:.3g} s"
        table.add_row(f"{name}, traffic per step and device", traffic)
        hidden, shown = (seconds / 3600 for seconds in strategy_cost.seconds)
        table.add_row(f"{name}, time", f"{hidden:,.1f} h if traffic is hidden, {shown:,.1f} h if not")
    return table


def stated_terms(experiment: Experiment) -> dict[str, int]:
    """Return the closed-form parameter count by module, or an empty dict if a part has no formula."""
    try:
        return experiment.config.model.parameter_terms(experiment.task.task_type)
    except NotImplementedError:
        return {}


def _term_document(comparison: Comparison) -> dict[str, Any]:
    from glassformer.models.closed_form import Count

    formula = comparison.term.formula if isinstance(comparison.term, Count) else None
    term = None if comparison.term is None else int(comparison.term)
    return {"formula": formula, "closed_form": term, "counted": comparison.counted}


def tree(total: int, comparisons: Sequence[Comparison]) -> Tree:
    """Return a tree of the parameters by module. A module with a single child shares a line with it."""
    from rich.text import Text
    from rich.tree import Tree

    stated = [int(comparison.term) for comparison in comparisons if comparison.term is not None]
    head = Text(f"{total:,} parameters", style="bold")
    if not stated:
        head.append("  no closed form: a part of the model does not define parameter_count", style="dim")
    elif sum(stated) == total and all(comparison.agrees for comparison in comparisons):
        head.append(f"  closed form {sum(stated):,}, the same", style="green")
    else:
        head.append(f"  closed form {sum(stated):,}, NOT the same", style="bold red")
    root = Tree(head)
    _grow(root, [(comparison.path.split("."), comparison) for comparison in comparisons])
    return root


def _grow(branch: Tree, entries: Sequence[tuple[list[str], Comparison]]) -> None:
    from rich.text import Text

    groups: dict[str, list[tuple[list[str], Comparison]]] = {}
    for parts, comparison in entries:
        groups.setdefault(parts[0], []).append((parts[1:], comparison))
    for name, group in groups.items():
        while len({tuple(parts[:1]) for parts, _ in group}) == 1 and group[0][0]:
            name = f"{name}.{group[0][0][0]}"
            group = [(parts[1:], comparison) for parts, comparison in group]
        own = [comparison for parts, comparison in group if not parts]
        below = [(parts, comparison) for parts, comparison in group if parts]
        label = Text(name, style="bold", no_wrap=False, overflow="fold")
        if own:
            label.append_text(_describe(own[0], LINE_WIDTH - len(name)))
        else:
            label.append(f"  {sum(comparison.counted for _, comparison in below):,}", style="cyan")
        _grow(branch.add(label), below)


def _describe(comparison: Comparison, width: int) -> Text:
    """Return a formula with its result. A formula of more than `width` characters goes below the result."""
    from rich.text import Text

    from glassformer.models.closed_form import Count

    term = comparison.term
    result = Text(f"{comparison.counted:,}", style="cyan")
    if not comparison.agrees:
        result = Text(f"{int(term or 0):,}, but the model has {comparison.counted:,}", style="bold red")
    if not isinstance(term, Count):
        return Text("  ").append_text(result)
    steps = [term.formula] if term.numbers == f"{term:,}" else [term.formula, term.numbers]
    if sum(map(len, steps)) > width:
        below = Text("\n" + "\n= ".join(steps), style="dim")
        return Text("  ").append_text(result).append_text(below)
    return Text("  ").append(" = ".join(steps) + " = ", style="dim").append_text(result)


def costs(flops: dict[str, int | None], memory: dict[str, int | None], batch: Batch, tokens: int) -> Table:
    table = _two_columns(f"one batch: {len(batch.indices):,} sequences, {tokens:,} tokens")
    for name, count in flops.items():
        table.add_row(f"FLOPs per token, {name}", "unknown" if count is None else f"{count:,}")
    table.add_section()
    for name, count in memory.items():
        if count != 0:
            table.add_row(f"memory, {name}", "unknown" if count is None else megabytes(count))
    return table


def _two_columns(title: str) -> Table:
    """Return a table without rows and headings, for names on the left and numbers on the right."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    return table


def megabytes(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"
