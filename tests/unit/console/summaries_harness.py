"""Writes summaries to a console's storage as the product writes them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from deltaworks.control.clock import utc_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.paths import nights_summary, quarantine_summary, tables_summary
from deltaworks.control.summaries.jobs import Night, NightResult, NightsSummary, NightTask
from deltaworks.control.summaries.quarantine import OpenRowCount, QuarantineSummary
from deltaworks.control.summaries.tables import (
    HealthPoint,
    HoldSummary,
    MaintenancePlan,
    ScorePenalty,
    TablesSummary,
    TableSummary,
)


def at(seconds_ago: float = 0.0) -> str:
    """Returns an instant in the past."""
    return (utc_now() - timedelta(seconds=seconds_ago)).isoformat(timespec="seconds")


def table(name: str, **changes: Any) -> TableSummary:
    """Returns a table of average health, measured for three nights."""
    sound = TableSummary(
        name=name,
        kind="bronze",
        version=812,
        score=77,
        costs=(
            ScorePenalty(name="order", weight=20, cost=12.0, reason="60% of the bytes are not in Z-order"),
            ScorePenalty(name="log", weight=15, cost=0.0, reason="3 commits on top of the last checkpoint"),
        ),
        files=9_120,
        bytes=1_200_000_000_000,
        rows=4_000_000,
        small_files=6_475,
        partitions=90,
        skew=2.0,
        size_histogram=(10, 20, 30, 0, 0, 0, 1),
        deleted_rows=0,
        unordered_share=0.6,
        log_commits=800,
        commits_since_checkpoint=3,
        unreferenced_files=12,
        unreferenced_bytes=5_000,
        last_write_at=at(60),
        last_optimize_at=at(86_400),
        next_plan=MaintenancePlan(
            reason="3 partitions to rewrite", partitions=3, files_saved=400, bytes_rewritten=10**9, seconds=360
        ),
        nights=tuple(HealthPoint(date=f"2026-03-0{day}", score=70 + day, bytes=day * 10**9) for day in (1, 2, 3)),
    )
    return sound.replace(**changes)


def put_tables(objects: ObjectStore, pipeline: str, *tables: TableSummary) -> None:
    """Writes the table summaries of a pipeline."""
    bounds = (1 << 20, 16 << 20, 64 << 20, 128 << 20, 256 << 20, 1 << 30)
    summary = TablesSummary(pipeline=pipeline, at=at(30), tables=tables, size_bounds=bounds)
    objects.put(tables_summary(pipeline), summary.encode())


def held_by(by: str) -> tuple[HoldSummary, ...]:
    """Returns a hold of a table's files."""
    return (HoldSummary(by=by, since=at(3_600)),)


def rows(
    reason: str, number: int, *, event: str = "", field: str = "", date: str = "2026-03-01", spec: str = "4f2a"
) -> OpenRowCount:
    """Returns open rows of a group."""
    return OpenRowCount(date=date, reason=reason, event=event, field=field, spec=spec, rows=number)


def put_quarantine(objects: ObjectStore, pipeline: str, *kinds: OpenRowCount, other: int = 0) -> None:
    """Writes the quarantine summary of a pipeline."""
    summary = QuarantineSummary(pipeline=pipeline, at=at(30), open_rows=kinds, other_rows=other)
    objects.put(quarantine_summary(pipeline), summary.encode())


def night(run: str, *, failed: str = "", seconds_ago: float = 3_600, **changes: Any) -> Night:
    """Returns a maintenance run that rewrote two tables, deleted files of one, and skipped one."""
    tasks = (
        NightTask(
            task="optimize_tables",
            state="success",
            files=4_102,
            bytes=38 * 10**9,
            seconds=600,
            results=(
                NightResult(
                    subject="events", files=4_000, files_after=90, bytes=37 * 10**9, seconds=500, reason="small files"
                ),
                NightResult(subject="session", deferred=2, reason="2 deferred for lack of time"),
            ),
        ),
        NightTask(
            task="vacuum_tables",
            state="success",
            files=22,
            bytes=12 * 10**9,
            seconds=60,
            results=(
                NightResult(subject="items", files=22, bytes=12 * 10**9),
                NightResult(subject="orders", files=5, bytes=10**9, dry_run=True, reason="stream crm stands at v640"),
            ),
        ),
    )
    if failed:
        tasks = tuple(task.replace(state="failed") if task.task == failed else task for task in tasks)
    began_at, ended_at = at(seconds_ago), at(seconds_ago - 60)
    made = Night(run=run, date=began_at[:10], started_at=began_at, ended_at=ended_at, tasks=tasks)
    return made.replace(**changes)


def put_nights(objects: ObjectStore, pipeline: str, *nights: Night) -> None:
    """Writes the maintenance runs of a pipeline."""
    summary = NightsSummary(pipeline=pipeline, at=at(), nights=nights)
    objects.put(nights_summary(pipeline), summary.encode())
