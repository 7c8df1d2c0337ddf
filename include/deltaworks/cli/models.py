"""`deltaworks models`: training runs of models and their evaluation; and `deltaworks gold`, the tables that they read
and write: their state, how they are refreshed, and what their SQL answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from deltaworks.cli.context import PipelineArgument, catalog
from deltaworks.cli.output import CommandOutput, OutputPart, listing_command
from deltaworks.control.clock import utc_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.listing import Listing, timestamp_cell
from deltaworks.control.objects import open_objects
from deltaworks.control.records.model import ModelRun, ModelRuns
from deltaworks.errors import ConfigError
from deltaworks.operations.gold import explain_gold, fold_listing, gold_states
from deltaworks.specs.base import shorten_names
from deltaworks.specs.catalog import find_by_name

if TYPE_CHECKING:
    from deltaworks.gold.preview import GoldPreview

app = typer.Typer(no_args_is_help=True)
gold = typer.Typer(no_args_is_help=True)


@gold.command("list")
@listing_command
def list_gold(pipeline: PipelineArgument) -> Listing:
    """List the gold tables of a pipeline: built, failing since when with the error, or stale."""
    spec, objects = catalog().pipeline(pipeline), open_objects(catalog().environment.lake)
    listing = Listing(
        ("table", "state", "up to date", "rows wait at most", "since", "error", "next step"), layout="blocks"
    )
    for name, table in gold_states(objects, spec, now=utc_now()).items():
        since = table.failing_since or (table.stale_at if table.state == "stale" else None)
        age = "" if table.max_age_minutes is None else f"{table.max_age_minutes:g} min"
        fresh_at = timestamp_cell(table.fresh_at)
        listing.add(name, table.state, fresh_at, age, timestamp_cell(since), table.error, table.next_step)
    return listing


@gold.command()
@listing_command
def explain(pipeline: PipelineArgument, table: str = typer.Argument("", help="Only this gold table.")) -> Listing:
    """Explain how gold tables are refreshed, what computed their newest builds, and why it takes no less work."""
    listing = Listing(
        (
            "table",
            "refresh",
            "why not less",
            "last build",
            "at",
            "rows",
            "builds",
            "compared with its SQL",
            "outcome",
            "late rows not in it",
        ),
        layout="blocks",
    )
    for name, explained in explain_gold(catalog(), pipeline, tables=[table] if table else []).items():
        builds = ", ".join(f"{count} by {engine}" for engine, count in explained.engines.items())
        rows = "" if explained.last_rows is None else f"{explained.last_rows:,}"
        at = timestamp_cell(explained.last_at)
        late = ", ".join(f"{count:,} of {date}" for date, count in sorted(explained.late_rows.items()))
        last_build = (explained.last_engine, at, rows, builds)
        verified = (timestamp_cell(explained.verified_at), explained.verified)
        listing.add(name, explained.refresh_class, explained.reason, *last_build, *verified, late)
    return listing


@gold.command()
@listing_command
def preview(
    table: str = typer.Argument(help="The gold table, such as games.daily_active_users."),
    dates: str = typer.Option(
        "", help="Only these dates: 2026-01-01..2026-01-07, or separated by commas; by default the newest ones."
    ),
    limit: int = typer.Option(20, min=1, help="Maximum number of rows to print."),
    explain: bool = typer.Option(
        False, "--explain", help="Also print where DuckDB spells or computes the SQL in another way, and its query."
    ),
) -> CommandOutput:
    """Answer a gold table's SQL now, with DuckDB instead of Spark; writes nothing.

    Reads the files of the checkout, so that changed SQL can be tried before a build.
    """
    from deltaworks.gold.plan import parse_dates
    from deltaworks.gold.preview import preview_gold

    pipeline, separator, name = table.partition(".")
    if not separator:
        raise typer.BadParameter("write PIPELINE.TABLE, such as games.daily_active_users")
    answer = preview_gold(catalog(), pipeline, name, dates=parse_dates(dates) if dates else None)
    rows = Listing(tuple(answer.rows.column_names), title="rows")
    for row in answer.rows.slice(0, limit).to_pylist():
        rows.add(*row.values())
    parts: list[OutputPart] = [rows, *_preview_summary(answer, limit)]
    notes = [difference for difference in answer.differences if explain or difference.note]
    if notes:
        differences = Listing(("line", "Spark", "DuckDB", "difference"), title="differences", layout="blocks")
        for difference in notes:
            differences.add(difference.line, difference.spark, difference.duckdb, difference.note or "the same result")
        parts.append(differences)
    return CommandOutput([*parts, f"DuckDB's query: {answer.translation.sql}"] if explain else parts)


def _preview_summary(answer: GoldPreview, limit: int) -> list[str]:
    total = answer.rows.num_rows
    shown = f", of which the first {limit}," if total > limit else ""
    dates = "all rows" if answer.dates is None else shorten_names(answer.dates)
    if answer.dates and len(answer.dates) > 1:
        dates = f"{len(answer.dates)} dates from {answer.dates[0]} to {answer.dates[-1]}"
    versions = ", ".join(
        f"{name} {'(computed)' if version is None else f'version {version}'}"
        for name, version in answer.versions.items()
    )
    return [f"{total:,} rows{shown} of {answer.table} for {dates}, from {versions}, in {answer.seconds:.2f} s."]


@app.command("list")
@listing_command
def list_models(pipeline: PipelineArgument, name: str = typer.Argument("", help="Only this model.")) -> Listing:
    """List the models of a pipeline with every training run: time, outcome and gain."""
    spec = catalog().pipeline(pipeline)
    models_by_name = {model.name: model for model in spec.models}
    models = [find_by_name(name, models_by_name, "model")] if name else list(spec.models)
    listing = Listing(("model", "as of", "outcome", "algorithm", "PR-AUC", "gains", "trained", "why"))
    for model in models:
        runs = _runs(pipeline).all(model.name)
        for run in runs:
            listing.add(
                run.label,
                run.until[:16],
                run.outcome.upper(),
                run.model.algorithm if run.model is not None else "",
                _pr_aucs(run),
                ", ".join(f"{fold.gain.value:.3f}" for fold in run.folds if fold.gain is not None),
                run.at[:16],
                run.reason,
            )
        if not runs:
            listing.add(model.name, "", "never trained", "", "", "", "", "")
    return listing


@app.command()
@listing_command
def show(
    pipeline: PipelineArgument,
    name: str = typer.Argument(..., help="The model."),
    number: int = typer.Argument(0, help="Training run; by default the newest."),
) -> CommandOutput:
    """Show one training run: its inputs, and the evaluation of the model and its baselines in each fold."""
    find_by_name(name, {model.name: model for model in catalog().pipeline(pipeline).models}, "model")
    runs = _runs(pipeline)
    numbers = runs.numbers(name)
    run = runs.read(name, number or max(numbers, default=0))
    if run is None:
        numbers_text = ", ".join(map(str, numbers)) or "none"
        raise ConfigError(
            "MODEL_RUN_UNKNOWN",
            f"There is no training run {name}/{number or 1}.",
            hint=f"Existing runs: {numbers_text}.",
        )
    versions = Listing(("table", "version"))
    for table, version in run.versions.items():
        versions.add(table, str(version))
    parts: list[OutputPart] = [
        f"{run.label}, as of {run.until}: {run.outcome.upper()}, {run.reason}.",
        f"Trained {run.at} by {run.run}, code {run.code} of {run.code_version}.",
        versions,
        fold_listing(run.folds),
        *_calibration(run),
    ]
    return CommandOutput(parts)


def _runs(pipeline: str) -> ModelRuns:
    return PipelineHome.open(catalog().environment.lake, pipeline).models


def _pr_aucs(run: ModelRun) -> str:
    values = [fold.scores["model"].pr_auc for fold in run.folds if "model" in fold.scores]
    return ", ".join(f"{area:.3f}" for area in values if area is not None)


def _calibration(run: ModelRun) -> list[OutputPart]:
    folds = [fold for fold in run.folds if "model" in fold.scores]
    if not folds:
        return []
    listing = Listing(
        ("rows", "mean score", "share positive"), title=f"Calibration, tested from {folds[-1].test_from[:16]}"
    )
    for rows, score, share in folds[-1].scores["model"].calibration:
        listing.add(str(rows), f"{score:.4f}", f"{share:.4f}")
    return [listing]
