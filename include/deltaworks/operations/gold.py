"""Builds gold tables (partitions changed by new data, or complete tables in shadows), and trains the models on them.

A training can be repeated, to check that it is reproducible.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from deltaworks.control import paths
from deltaworks.control.clock import instant_or_none, parse_iso
from deltaworks.control.health.heartbeat import read_heartbeat
from deltaworks.control.listing import Listing
from deltaworks.control.summaries.jobs import late_rows_of, read_gold_verification
from deltaworks.control.summaries.stream import RecentBatches, gold_waiting_since, read_recent
from deltaworks.errors import ConfigError, DeltaworksError
from deltaworks.operations.base import Look, OperationContext, Report
from deltaworks.operations.options import ENGINE_SECTION, Options, Positional, TableNames

if TYPE_CHECKING:
    from deltaworks.control.objects import ObjectStore
    from deltaworks.control.records.model import FoldReport, ModelRun
    from deltaworks.specs.catalog import Catalog
    from deltaworks.specs.gold import GoldTableSpec
    from deltaworks.specs.pipeline import PipelineSpec
    from deltaworks.tables.lake import Lake


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldState:
    """Whether a gold table is `failing`, `stale`, `never built`, `fresh`, or `built` without a declared age.

    The last build that found the table up to date was at `fresh_at`. Rows that landed after it wait since
    `waiting_since`, and too long from `stale_at` on; without such rows the table is not stale, however old it is.
    Builds fail since `failing_since` with `error`, whose next step is `next_step`. `late_rows` are the rows of frozen
    dates that arrived late and are not in the table, by date.
    """

    state: str
    fresh_at: dt.datetime | None
    waiting_since: dt.datetime | None
    stale_at: dt.datetime | None
    max_age_minutes: float | None
    failing_since: dt.datetime | None = None
    error: str = ""
    next_step: str = ""
    late_rows: Mapping[str, int] = field(default_factory=dict)


def gold_states(
    objects: ObjectStore, spec: PipelineSpec, *, now: dt.datetime, is_strict: bool = False
) -> dict[str, GoldState]:
    """Returns the state of each gold table of a pipeline. A record that cannot be read counts as missing.

    Args:
        is_strict: raise if the storage does not say whether rows wait; otherwise none do.
    """
    stream_failures = _stream_failures(objects, spec.pipeline)
    recent = functools.cache(functools.partial(read_recent, objects))
    return {
        table.name: _gold_state(
            objects,
            spec,
            table,
            stream_failure=stream_failures.get(table.name),
            recent=recent,
            is_strict=is_strict,
            now=now,
        )
        for table in spec.gold.tables
    }


def _gold_state(
    objects: ObjectStore,
    spec: PipelineSpec,
    table: GoldTableSpec,
    *,
    stream_failure: Mapping[str, Any] | None,
    recent: Callable[[str], RecentBatches | None],
    is_strict: bool,
    now: dt.datetime,
) -> GoldState:
    record, max_age_minutes = _build_record(objects, spec.pipeline, table.name), spec.gold.max_age_of(table)
    fresh_at, stale_at = instant_or_none(record.get("at")), None
    waits = None
    if max_age_minutes is not None:
        with contextlib.nullcontext() if is_strict else contextlib.suppress(DeltaworksError):
            waits = gold_waiting_since(objects, spec, table, record, recent=recent)
    if waits is not None and max_age_minutes is not None:
        stale_at = waits + dt.timedelta(minutes=max_age_minutes)
    promised = "built" if max_age_minutes is None else "stale" if stale_at is not None and now > stale_at else "fresh"
    built = GoldState(
        state="never built" if fresh_at is None else promised,
        fresh_at=fresh_at,
        waiting_since=waits,
        stale_at=stale_at,
        max_age_minutes=max_age_minutes,
        late_rows=late_rows_of(record),
    )
    # The stream retries a table that it cannot refresh; a scheduled build records its failure in the lake.
    failure = stream_failure or record
    failing_since = instant_or_none(failure.get("failing_since") or failure.get("since"))
    if failing_since is None:
        return built
    return replace(
        built,
        state="failing",
        failing_since=failing_since,
        error=f"[{failure.get('condition')}] {failure.get('message')}",
        next_step=str(failure.get("hint") or ""),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldExplanation:
    """How a gold table is refreshed, and why not with less work; `reason` is empty if new rows alone are read.

    `engines` counts what computed its newest builds; `last_engine` and `last_rows` describe the newest, at `last_at`.
    Partitions were last compared with the SQL at `verified_at`, with the outcome `verified`. `late_rows`: of frozen
    dates, not in the table.
    """

    refresh_class: str
    reason: str
    engines: Mapping[str, int]
    last_engine: str = ""
    last_at: dt.datetime | None = None
    last_rows: int | None = None
    verified_at: dt.datetime | None = None
    verified: str = ""
    late_rows: Mapping[str, int] = field(default_factory=dict)


#: Number of builds that an explanation counts.
EXPLAINED_BUILDS = 20


def explain_gold(catalog: Catalog, pipeline: str, *, tables: Collection[str] = ()) -> dict[str, GoldExplanation]:
    """Returns how gold tables are refreshed, from their SQL and the newest commits of their logs.

    Raises:
        ConfigError: GOLD_TABLE_UNKNOWN.
        OSError: a file of SQL cannot be read.
    """
    from deltaworks.gold.plan import select_gold_tables
    from deltaworks.specs.checks.refresh_class import classify
    from deltaworks.tables.lake import Lake

    spec, lake = catalog.pipeline(pipeline), Lake(catalog.environment.lake)
    explained = {}
    for table in select_gold_tables(spec, list(tables) or None):
        refresh = classify(table, (catalog.folder(pipeline) / table.sql).read_text(encoding="utf-8"), spec)
        built = _built(lake, paths.table(pipeline, table.name))
        record = read_gold_verification(lake.objects, pipeline, table.name)
        explained[table.name] = replace(
            built,
            refresh_class=refresh.refresh_class,
            reason=refresh.reason,
            verified_at=None if record is None else record.newest_at,
            verified="" if record is None else record.describe(),
            late_rows=late_rows_of(_build_record(lake.objects, pipeline, table.name)),
        )
    return explained


def _built(lake: Lake, key: str) -> GoldExplanation:
    from deltaworks.gold.table_commit import ENGINE
    from deltaworks.tables.log import commit_history

    opened = lake.open(key)
    commits = [] if opened is None else commit_history(lake, key, newest=opened.version(), limit=EXPLAINED_BUILDS)
    builds = [commit for commit in commits if commit.changes_rows and ENGINE in commit.metadata]
    explained = GoldExplanation(
        refresh_class="", reason="", engines=Counter(str(build.metadata[ENGINE]) for build in builds)
    )
    if not builds:
        return explained
    rows = builds[0].metrics.get("numOutputRows")
    return replace(
        explained,
        last_engine=str(builds[0].metadata[ENGINE]),
        last_at=builds[0].at,
        last_rows=None if rows is None else int(rows),
    )


def _build_record(objects: ObjectStore, pipeline: str, table: str) -> dict[str, Any]:
    """Returns the record of a table's last build; empty if there is none, or if it cannot be read."""
    try:
        item = objects.get(paths.gold_state(pipeline, table))
        record = json.loads(item.data) if item else {}
    except (DeltaworksError, ValueError, TypeError):
        return {}
    return record if isinstance(record, dict) else {}


def _stream_failures(objects: ObjectStore, pipeline: str) -> dict[str, Mapping[str, Any]]:
    """Returns the tables that the pipeline's stream cannot refresh at present, each with its error."""
    try:
        heartbeat = read_heartbeat(objects, paths.heartbeat(paths.pipeline_control(pipeline)))
    except (DeltaworksError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {str(failure.get("table")): failure for failure in heartbeat.gold_failures} if heartbeat else {}


class BuildOptions(Options):
    """Options of a build."""

    tables: Annotated[tuple[str, ...], TableNames(("gold",))] = Field((), description="Only these gold tables.")
    dates: str | None = Field(
        None, description=("Only these dates: 2026-01-01..2026-01-07, or separated by commas; by default changed ones.")
    )
    full: bool = Field(False, description="Build all partitions, changed or not.")
    spark: Annotated[bool, ENGINE_SECTION] = Field(
        True, description="Off: only list the partitions to build, without Spark."
    )


def build(context: OperationContext, options: BuildOptions) -> Report:
    """Updates gold tables. Idempotent; safe while inputs are appended."""
    from deltaworks.gold.build import rebuild_gold
    from deltaworks.gold.plan import parse_dates
    from deltaworks.gold.refresh import pending_gold

    dates = parse_dates(options.dates) if options.dates else None
    tables = list(options.tables) or None
    if not options.spark:
        return Report(
            results=pending_gold(context.catalog, context.subject, tables=tables, full=options.full, dates=dates)
        )
    from deltaworks.lineage.runs import batch_lineage

    with batch_lineage(context.catalog, context.subject, "gold") as lineage:
        result = rebuild_gold(
            context.spark, context.catalog, context.subject, tables=tables, full=options.full, dates=dates
        )
        for table in result.tables:
            if table.version is not None:
                lineage.add(table.table, table.rows)
    return Report(results=result.tables)


def look(context: OperationContext, options: BuildOptions) -> Look:
    """Tells whether a scheduled build has work. Records tables that are up to date.

    A change of a reference table or a model is work, since only a job may commit. So is gold of another pipeline that
    waits for this one: its build starts once this pipeline's task has succeeded.
    """
    from deltaworks.gold.model_tables import changed_external_inputs
    from deltaworks.gold.refresh import pending_gold

    catalog, pipeline = context.catalog, context.subject
    if changed := changed_external_inputs(catalog, pipeline):
        return Look(work=len(changed), reason=f"{', '.join(changed)} changed")
    own = pending_gold(catalog, pipeline, tables=list(options.tables) or None, refresh_inputs=False)
    if waiting := [result.table for result in own if result.spark_work_count]:
        return Look(work=len(waiting), reason=f"{', '.join(waiting)} to build")
    for other in catalog.pipelines.values():
        tables = [table.name for table in other.gold.tables if pipeline in _pipelines_read(table)]
        results = pending_gold(catalog, other.pipeline, tables=tables, refresh_inputs=False) if tables else []
        if waiting := [f"{other.pipeline}.{result.table}" for result in results if result.spark_work_count]:
            return Look(work=len(waiting), reason=f"{', '.join(waiting)} of another pipeline to build")
    return Look(work=0, reason="nothing to build", results=own)


def _pipelines_read(table: GoldTableSpec) -> set[str]:
    from deltaworks.specs.gold import cross_pipeline_table

    return {other[0] for name in table.reads if (other := cross_pipeline_table(name)) is not None}


class RefreshOptions(Options):
    """Options of a refresh."""

    tables: Annotated[tuple[str, ...], Positional(), TableNames(("gold",))] = Field(
        (), description="Only these gold tables."
    )
    dry_run: bool = Field(True, description="Only list the tables that would be swapped.")


def refresh(context: OperationContext, options: RefreshOptions) -> Report:
    """Builds complete gold tables in shadow tables and swaps them in. Readers see the old table or the new one."""
    tables = list(options.tables) or None
    if not options.dry_run:
        from deltaworks.gold.refresh import refresh_gold
        from deltaworks.lineage.runs import batch_lineage

        with batch_lineage(context.catalog, context.subject, "gold") as lineage:
            refreshed = refresh_gold(context.spark(), context.catalog, context.subject, tables=tables, dry_run=False)
            for table in refreshed:
                if table.swapped:
                    lineage.add(table.table, table.rows)
        return Report(results=refreshed)
    from deltaworks.gold.refresh import plan_refresh

    planned = plan_refresh(context.catalog, context.subject, tables=tables)
    listing = Listing(("table", "rows now", "MB now", "inputs now", "shadow", "what"))
    for table in planned:
        inputs = ", ".join(f"{name}@{version}" for name, version in table.built_from.items())
        size = f"{table.bytes_before / 1e6:,.1f}"
        listing.add(
            table.table,
            "?" if table.rows_before is None else f"{table.rows_before:,}",
            size,
            inputs,
            table.shadow,
            table.reason,
        )
    return Report(parts=[listing, "Nothing was changed. Use --no-dry-run to build, check and swap."], results=planned)


class VerifyOptions(Options):
    """Options of a comparison. The limits hold for each table; later runs compare other partitions."""

    tables: Annotated[tuple[str, ...], Positional(), TableNames(("gold",))] = Field(
        (), description="Only these gold tables."
    )
    max_partitions: int = Field(14, ge=1, description="Partitions of each table, such as dates, compared in a run.")
    max_megabytes: int = Field(2_000, ge=1, description="Megabytes of input files read for each table.")


def verify(context: OperationContext, options: VerifyOptions) -> Report:
    """Compares partitions of gold tables with their SQL over the same inputs. Changes no table; safe at any time.

    By hand it exits with 1 if rows differ; a scheduled run leaves that to the alert.
    """
    from deltaworks.gold.verification import (
        Comparison,
        VerificationLimits,
        compare_with_spark,
        has_differences,
        verify_gold,
    )
    from deltaworks.tables.lake import Lake

    catalog, pipeline = context.catalog, context.subject
    lake, spec = Lake(catalog.environment.lake), catalog.pipeline(pipeline)

    def compare(comparison: Comparison) -> Mapping[str, int]:
        return compare_with_spark(context.spark(), lake, spec, comparison)

    limits = VerificationLimits(partitions=options.max_partitions, bytes=options.max_megabytes * 1_000_000)
    results = verify_gold(catalog, pipeline, limits=limits, compare=compare, tables=list(options.tables) or None)
    listing = Listing(
        ("table", "compared", "differing rows", "left to later runs", "MB read", "seconds", "not compared")
    )
    for result in results:
        listing.add(
            result.table,
            f"{len(result.partitions):,}",
            "" if result.differing_rows is None else f"{result.differing_rows:,}",
            f"{result.deferred:,}",
            f"{result.bytes / 1e6:,.1f}",
            f"{result.seconds:,.1f}",
            result.reason,
        )
    exit_code = 0 if context.nightly else int(has_differences(results))
    return Report(parts=[listing], results=results, exit_code=exit_code)


def look_for_unverified(context: OperationContext, options: VerifyOptions) -> Look:
    """Tells whether a table was not compared for a week, so that a nightly task compares weekly."""
    from deltaworks.control.clock import utc_now
    from deltaworks.control.objects import open_objects
    from deltaworks.tables.lake import Lake

    storage, spec, now = context.catalog.environment.lake, context.catalog.pipeline(context.subject), utc_now()
    objects, lake = open_objects(storage), Lake(storage)
    records = {table.name: read_gold_verification(objects, spec.pipeline, table.name) for table in spec.gold.tables}
    due = [name for name, record in records.items() if record is None or record.is_due(now)]
    # A table that was not built yet has nothing to compare.
    due = [name for name in due if lake.open(paths.table(spec.pipeline, name)) is not None]
    if due:
        return Look(work=len(due), reason=f"{', '.join(due)} to compare")
    return Look(work=0, reason="all gold tables were compared within a week")


class TrainOptions(Options):
    """Options of a training."""

    names: Annotated[tuple[str, ...], Positional(), TableNames(("model",))] = Field(
        (), description="Only these models."
    )
    until: str | None = Field(
        None, description=("Train as of this time in UTC: later data is left out, and the model is valid from then on.")
    )
    repeat: int | None = Field(
        None, ge=1, description="Repeat the training with this number on the versions it read; writes nothing."
    )


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """The outcome of a training. For repetitions `is_reproduced` is whether the metrics are the same."""

    model: str
    number: int
    outcome: str
    reason: str
    is_reproduced: bool | None = None


def train(context: OperationContext, options: TrainOptions) -> Report:
    """Trains models and records the outcome of each. Safe at any time, because it reads fixed table versions.

    A training that publishes no model succeeds and states the reason. A repetition with other metrics fails.
    """
    from deltaworks.models.training import declared_model

    spec = context.catalog.pipeline(context.subject)
    names = list(options.names) or [model.name for model in spec.models]
    for name in names:
        declared_model(context.catalog, context.subject, name)
    if options.repeat is not None:
        return _repeat(context, names, options.repeat)
    from deltaworks.models.training import train_model

    until = _parse_until(options.until)
    runs = [train_model(context.spark(), context.catalog, context.subject, name, until=until) for name in names]
    results = [TrainingResult(run.name, run.number, run.outcome.upper(), run.reason) for run in runs]
    parts = [part for run in runs for part in (_describe_run(run), fold_listing(run.folds))]
    return Report(parts=parts, results=results)


def _repeat(context: OperationContext, names: list[str], number: int) -> Report:
    from deltaworks.models.training import repeat_training

    if len(names) != 1:
        raise ConfigError(
            "OPTION_INVALID", "A training number needs one model.", hint=("Give the model: models train PIPELINE NAME.")
        )
    repetition = repeat_training(context.spark(), context.catalog, context.subject, names[0], number)
    run = repetition.run
    outcome = (
        "the same metrics" if not repetition.differences else f"other metrics: {'; '.join(repetition.differences)}"
    )
    if repetition.differences and repetition.has_other_code:
        outcome += ". The training code has changed since"
    result = TrainingResult(run.name, number, run.outcome.upper(), outcome, is_reproduced=not repetition.differences)
    return Report(
        parts=[f"{run.label} repeated: {outcome}.", fold_listing(repetition.folds)],
        results=[result],
        exit_code=int(bool(repetition.differences)),
    )


def _parse_until(text: str | None) -> dt.datetime | None:

    try:
        return parse_iso(text)
    except ValueError as error:
        raise ConfigError(
            "OPTION_INVALID", f"--until {text} is not a time.", hint="Write 2026-01-31T04:00 or 2026-01-31."
        ) from error


def _describe_run(run: ModelRun) -> str:
    return f"{run.label}: {run.outcome.upper()}, {run.reason}."


def fold_listing(folds: tuple[FoldReport, ...]) -> Listing:
    """Returns the folds of a training, one row per score."""
    listing = Listing(
        ("test from", "scores", "PR-AUC", "Brier", "alarms", "right", "lead minutes", "gain", "95 % from", "to")
    )
    for fold in folds:
        gains = {"model": fold.gain, **fold.group_gains}
        for name, metrics in fold.scores.items():
            gain = gains.pop(name, None) if name == "model" else None
            listing.add(
                fold.test_from[:16],
                name,
                _format_metric(metrics.pr_auc),
                _format_metric(metrics.brier_score),
                str(metrics.alarms),
                _format_metric(metrics.alarm_precision),
                "" if metrics.lead_seconds is None else f"{metrics.lead_seconds / 60:.1f}",
                "" if gain is None else f"{gain.value:.3f} over {gain.baseline}",
                "" if gain is None else f"{gain.low:.3f}",
                "" if gain is None else f"{gain.high:.3f}",
            )
        for group, gain in fold.group_gains.items():
            listing.add(
                fold.test_from[:16],
                f"gain of {group}",
                "",
                "",
                "",
                "",
                "",
                f"{gain.value:.3f} over {gain.baseline}",
                f"{gain.low:.3f}",
                f"{gain.high:.3f}",
            )
    return listing


def _format_metric(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
