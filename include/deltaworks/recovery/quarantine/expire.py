"""Expires quarantined rows, quarantined messages, archived payloads and old events after their declared retention.

Raw values in quarantine may hold more personal data than any column, so a row is deleted after
`quarantine.retain_days` even if no replay has landed it; the result counts these open rows. The archive loses complete
dates after `archive.retain_days`, and a table with `retention_days` loses complete values of `event_date`. Dependent
gold tables are rebuilt as after any change. Deleted rows stay readable by time travel until VACUUM. The table of
quarantined messages is vacuumed here, since no other job does it.
"""

from __future__ import annotations

import datetime as dt
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable

from deltaworks.control.clock import utc_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.write_turn import write_turn
from deltaworks.control.provenance import current_run, user_metadata
from deltaworks.events.reasons import QUARANTINE_TABLE
from deltaworks.maintenance.deletion_limits import DeletionLimit, alert_limit_exceeded, resolve_limit_exceeded
from deltaworks.maintenance.vacuum import exclusive_maintenance
from deltaworks.recovery.quarantine.open_rows import Quarantine, QuarantineFilter
from deltaworks.sources.objects.file_event_log import message_quarantine_key
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline_sections import ARCHIVE
from deltaworks.specs.sources import FileSourceSpec
from deltaworks.specs.table import TableSpec
from deltaworks.tables.file_workers import table_rows
from deltaworks.tables.lake import Lake, rows_of

OPERATION = "expire_quarantine"
_EVENT_DATE = "event_date"
#: VACUUM retention of the table of quarantined messages, the same as for the pipeline's tables.
_VACUUM_RETENTION_HOURS = 168
_TIMESTAMP_TYPE = 'Timestamp(Microsecond, Some("UTC"))'


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryResult:
    """Number of rows deleted from one table (in a dry run: the expected number).

    Of these, `open_rows` are quarantined rows that no replay has landed.
    """

    table: str
    dry_run: bool
    rows: int = 0
    open_rows: int = 0
    before: str = ""
    seconds: float = 0.0
    reason: str = ""


def expire_quarantine(
    catalog: Catalog,
    pipeline: str,
    *,
    dry_run: bool = True,
    now: dt.datetime | None = None,
    limit: DeletionLimit | None = None,
) -> list[ExpiryResult]:
    """Deletes expired rows from a pipeline's quarantine, archive and tables, and from its relay's quarantined messages.

    Idempotent; safe while the stream, the relay and replays run. Needs no JVM.

    Args:
        limit: delete only the oldest days that fit, at least one, and raise an alert; later runs continue.

    Raises:
        ConcurrencyError: MAINTENANCE_RUNNING, MAINTENANCE_LOCK_LOST, TURN_NOT_GRANTED, TURN_LOST; not in a dry run.
    """
    spec, lake, now = catalog.pipeline(pipeline), Lake(catalog.environment.lake), now or utc_now()
    run = _ExpiryRun(lake, pipeline, dry_run=dry_run, now=now, bound=limit)
    relay = catalog.relays.get(spec.source.relay) if isinstance(spec.source, FileSourceSpec) else None

    def results() -> list[ExpiryResult]:
        of_tables = [run.expire_rows(QUARANTINE_TABLE, spec.quarantine.retain_days)]
        of_tables += [run.expire_events(table) for table in spec.tables if table.retention_days is not None]
        if spec.archive is not None:
            of_tables.append(run.expire_rows(ARCHIVE, spec.archive.retain_days))
        return (
            of_tables if relay is None else [*of_tables, run.expire_messages(relay.relay, relay.message_retention_days)]
        )

    if dry_run:
        return results()
    with exclusive_maintenance(PipelineHome.open(catalog.environment.lake, pipeline), work="the expiry of quarantine"):
        return results()


class _ExpiryRun:
    """One expiry run over the tables of a pipeline."""

    def __init__(
        self, lake: Lake, pipeline: str, *, dry_run: bool, now: dt.datetime, bound: DeletionLimit | None
    ) -> None:
        self._lake = lake
        self._pipeline = pipeline
        self._dry_run = dry_run
        self._now = now
        self._limit = bound
        self._home = PipelineHome.open(lake.storage, pipeline)

    def expire_rows(self, name: str, days: int | None) -> ExpiryResult:
        """Expires rows of the quarantine or the archive."""
        return self._expire_dates(name, days, f"{name}_date")

    def expire_events(self, spec: TableSpec) -> ExpiryResult:
        """Expires events older than the table's retention. Takes the write turn of a mutable table."""
        if spec.mutable is None or self._dry_run:
            return self._expire_dates(spec.name, spec.retention_days, _EVENT_DATE)
        with write_turn(self._home.objects, self._pipeline, spec.name, by=current_run()) as turn:
            return self._expire_dates(spec.name, spec.retention_days, _EVENT_DATE, check=turn.check)

    def _expire_dates(
        self, name: str, days: int | None, column: str, *, check: Callable[[], None] = lambda: None
    ) -> ExpiryResult:
        started = time.monotonic()
        key = self._home.table(name)
        table = self._lake.open(key)
        if table is None or days is None:
            return self._nothing_to_expire(name, days)
        # Whole days, since the table is partitioned by date: no file is rewritten, and a row may stay some hours
        # longer.
        before = (self._now - dt.timedelta(days=days)).date()
        old = rows_of(self._lake, table, columns=[column], filters=pc.field(column) < before)
        bounded = self._limited_cutoff(name, key, table, old.column(column).to_pylist(), before)
        if bounded != before:
            before = bounded
            old = old.filter(pc.field(column) < before)
        still_open = 0
        if name == QUARANTINE_TABLE and old.num_rows:
            older = QuarantineFilter(to_date=before - dt.timedelta(days=1))
            still_open = Quarantine(self._lake, self._pipeline).keys(older).num_rows
        if old.num_rows and not self._dry_run:
            check()
            self._delete(table, f"{column} < CAST('{before.isoformat()}' AS DATE)", before.isoformat())
        return ExpiryResult(
            table=name,
            dry_run=self._dry_run,
            rows=old.num_rows,
            open_rows=still_open,
            before=before.isoformat(),
            seconds=time.monotonic() - started,
        )

    def expire_messages(self, relay: str, days: int | None) -> ExpiryResult:
        started, name = time.monotonic(), f"message_quarantine of {relay}"
        key = message_quarantine_key(relay)
        table = self._lake.open(key)
        if table is None or days is None:
            return self._nothing_to_expire(name, days)
        before = self._now - dt.timedelta(days=days)
        old = rows_of(self._lake, table, columns=["received_at"], filters=pc.field("received_at") < before)
        received = [at.date() for at in old.column("received_at").to_pylist()]
        bounded = self._limited_cutoff(f"message_quarantine_{relay}", key, table, received, before.date())
        if bounded != before.date():
            before = dt.datetime.combine(bounded, dt.time(), tzinfo=dt.UTC)
            old = old.filter(pc.field("received_at") < before)
        text = before.isoformat()
        if not self._dry_run:
            if old.num_rows:
                self._delete(table, f"received_at < arrow_cast('{text}', '{_TIMESTAMP_TYPE}')", text)
            table.vacuum(_VACUUM_RETENTION_HOURS, dry_run=False, commit_properties=self._properties(text))
        return ExpiryResult(
            table=name,
            dry_run=self._dry_run,
            rows=old.num_rows,
            open_rows=old.num_rows,
            before=text,
            seconds=time.monotonic() - started,
        )

    def _limited_cutoff(
        self, subject: str, key: str, table: DeltaTable, days: Sequence[dt.date], before: dt.date
    ) -> dt.date:
        """Returns the date before which rows are deleted: `before`, or an earlier date that respects the limit of one
        night.

        Raises:
            ContractError: ROWS_UNKNOWN.
        """
        if self._limit is None or self._dry_run:
            return before
        max_rows = self._limit.max_rows(table_rows(self._lake, key, table))
        if len(days) <= max_rows:
            resolve_limit_exceeded(self._home, subject)
            return before
        counts = sorted(Counter(days).items())
        rows, fits = 0, counts[0][0]
        for day, count in counts:
            rows += count
            if rows > max_rows and day != counts[0][0]:
                break
            fits = day
        summary = f"{len(days):,} rows are older than declared, more than a night removes: the oldest went."
        command = f"`deltaworks quarantine expire {self._pipeline} --no-dry-run`, or let the next nights do it"
        alert_limit_exceeded(self._home, subject, summary=summary, command=command)
        return fits + dt.timedelta(days=1)

    def _nothing_to_expire(self, name: str, days: int | None) -> ExpiryResult:
        reason = "its rows are kept without limit, as declared" if days is None else "it does not exist yet"
        return ExpiryResult(table=name, dry_run=self._dry_run, reason=reason)

    def _delete(self, table: DeltaTable, condition: str, before: str) -> None:
        table.delete(condition, commit_properties=self._properties(before))

    def _properties(self, before: str) -> CommitProperties:
        metadata = user_metadata(pipeline=self._pipeline, batch=0, operation=OPERATION, before=before)
        return CommitProperties(custom_metadata={"userMetadata": metadata})
