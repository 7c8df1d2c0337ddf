"""Expected summaries and silences."""

from __future__ import annotations

from deltaworks.alerts.silences import Silence
from deltaworks.control.records.store import UnversionedRecord
from deltaworks.control.summaries import jobs
from deltaworks.control.summaries.erasures import ErasureRow, ErasuresSummary
from deltaworks.control.summaries.jobs import GoldVerification, Night, NightResult, NightsSummary, NightTask
from deltaworks.control.summaries.quarantine import OpenRowCount, QuarantineSummary
from deltaworks.control.summaries.rule_warnings import RowCount, RuleWarnings, RuleWarningsSummary
from deltaworks.control.summaries.stream import (
    BatchSummary,
    HourSummary,
    ProblemSummary,
    RecentBatches,
    StreamHours,
)
from deltaworks.control.summaries.tables import (
    HealthPoint,
    HoldSummary,
    MaintenancePlan,
    ScorePenalty,
    TablesSummary,
    TableSummary,
)

AT = "2026-01-02T03:04:05+00:00"
RESULT = NightResult(
    subject="games.events", files=412, files_after=12, rows=9000, bytes=1 << 20, seconds=3.5, deferred=1
)
TABLE = TableSummary(
    name="events",
    kind="bronze",
    version=812,
    score=41,
    costs=(ScorePenalty(name="small_files", weight=3, cost=0.7, reason="22 of 31 files are small"),),
    files=31,
    bytes=1 << 30,
    rows=120_000,
    small_files=22,
    partitions=7,
    skew=1.5,
    size_histogram=(22, 9),
    deleted_rows=0,
    unordered_share=0.2,
    log_commits=80,
    commits_since_checkpoint=3,
    unreferenced_files=4,
    unreferenced_bytes=4096,
    last_write_at=AT,
    last_optimize_at=AT,
    last_vacuum_at=AT,
    next_plan=MaintenancePlan(
        reason="small files",
        order="orders from 8.0 MiB",
        partitions=3,
        files_saved=400,
        bytes_rewritten=1 << 28,
        seconds=60.0,
        deferred=1,
    ),
    holds=(HoldSummary(by="reader crm", since=AT),),
    nights=(HealthPoint(date="2026-01-01", score=40, bytes=1 << 29),),
)
SUMMARIES: dict[str, UnversionedRecord] = {
    "recent_batches": RecentBatches(
        pipeline="games",
        written_at=AT,
        batches=(
            BatchSummary(
                batch_id=812,
                at=AT,
                rows=12_400,
                quarantined=3,
                files=19,
                bytes=1 << 20,
                tables=31,
                prepare_seconds=2.5,
                commit_seconds=1.0,
                complete_seconds=0.1,
                backlog_files=4,
                backlog_bytes=4096,
                oldest_pending_seconds=9.0,
                arrival_ages=(4.0, 9.0),
            ),
        ),
        problems=(ProblemSummary(at=AT, text="batch 811: the lake did not answer"),),
    ),
    "stream_hours": StreamHours(
        pipeline="games",
        written_at=AT,
        hours=(
            HourSummary(at=AT, batches=60, rows=90_000, quarantined=7, files=60, bytes=1 << 25, busy_seconds=200.0),
        ),
    ),
    "tables_summary": TablesSummary(pipeline="games", at=AT, tables=(TABLE,), size_bounds=(1 << 20,), omitted=2),
    "nights_summary": NightsSummary(
        pipeline="games",
        at=AT,
        nights=(
            Night(
                run="scheduled__2026-01-02",
                date="2026-01-02",
                started_at=AT,
                ended_at=AT,
                tasks=(NightTask(task="optimize_tables", state="success", files=412, results=(RESULT,), omitted=1),),
            ),
        ),
    ),
    "quarantine_summary": QuarantineSummary(
        pipeline="games",
        at=AT,
        generation=2,
        through_batch=812,
        open_rows=(
            OpenRowCount(
                date="2026-01-01", reason="type_mismatch", event="purchase", field="amount", spec="4f2a", rows=1100
            ),
        ),
        other_rows=5,
    ),
    "rule_warnings_summary": RuleWarningsSummary(
        pipeline="games",
        at=AT,
        generation=2,
        through_batch=812,
        rules=(
            RuleWarnings(
                table="purchase",
                rule="amount_is_positive",
                days=(RowCount(at="2026-01-02", rows=9000, failed=12),),
                intervals=(RowCount(at="2026-01-02T03:00:00+00:00", rows=410, failed=3),),
            ),
        ),
    ),
    "gold_verification": GoldVerification(
        pipeline="games",
        at=AT,
        table="events_per_hour",
        partitions=("2026-01-01",),
        differing_rows=2,
        deferred=3,
        verified_at={"2025-12-31": AT, "2026-01-01": AT},
        differing={"2026-01-01": 2},
    ),
    "mutations_summary": jobs.MutationsSummary(
        pipeline="crm",
        at=AT,
        batches=(
            jobs.BatchSummary(
                number=77,
                outcome="applied",
                at=AT,
                engine="process",
                requests={"rename": 12},
                invalid_requests=1,
                rows=40,
                tables=3,
                conflicts=1,
                pause_seconds=22.0,
                seconds={"resolve": 9.0, "merge": 20.0},
            ),
        ),
        waiting_requests=3204,
        oldest_at=AT,
        checked_at=AT,
    ),
    "erasures_summary": ErasuresSummary(
        namespace="players",
        requests=(
            ErasureRow(
                request_id="e20260102-0a1b2c3d4e",
                state="purged",
                since=AT,
                received_at=AT,
                purge_by=AT,
                deadline_at=AT,
                is_extended=True,
                steps=6,
            ),
        ),
        omitted=1,
    ),
    "silence": Silence(
        id="0a1b",
        pipeline="games",
        cause="STREAM_UNHEALTHY",
        subject="stream games",
        at=AT,
        until="2026-01-02T04:04:05+00:00",
        by="ada",
        reason="upgrade",
    ),
}
