"""Replays quarantined rows after the spec, a rule or the landed object was corrected. Each row lands exactly once.

The stream's parser reads the open rows again, in slices. A slice is committed like a batch, in three phases: *prepare*
writes the data files and records them in one put-if-absent object, *commit* adds the files to every table under the
step `<pipeline>/replay/<table>`, *complete* appends the outcomes to `quarantine_replays`. The next call first completes
an interrupted replay. A lease serializes concurrent replays. Without the lease only one process can create the next
replay record; the other process completes that replay and selects its rows again.

Rows keep `_seq`, `_position` and `_batch_id`. A row whose key is already in a table is not added to it again. Gold
tables are rebuilt because their input dates have changed.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

import pyarrow as pa

from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.health.throughput import EventTotals, Throughput, record_replayed
from deltaworks.control.home import PipelineHome
from deltaworks.control.summaries.base import log_failures
from deltaworks.engine.fan_out import FanOutResult, partition_columns, write_with_new_columns
from deltaworks.engine.notifications import notification_tables_by_source, with_notifications
from deltaworks.errors import ContractError
from deltaworks.events.evolution import EvolvedColumns, to_records
from deltaworks.events.parse import ParserInputs
from deltaworks.recovery.quarantine.open_rows import LANDED, STILL_REJECTED, Quarantine, QuarantineFilter, split_keys
from deltaworks.recovery.quarantine.replay_commit import Fault, ReplayCommits, exclusive_reread
from deltaworks.recovery.quarantine.replay_rows import (
    LandedObjects,
    PayloadFinder,
    ReplayRows,
    replay_rows,
    row_key,
)
from deltaworks.sources.objects.file_event_log import FileEventLog
from deltaworks.sources.objects.payloads import FileOpener
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.sources.selection import FileSourceSpec
from deltaworks.tables.features import reasons_to_use_spark
from deltaworks.tables.lake import Lake

SLICE_ROWS, SLICE_BYTES = 10_000, 64 << 20


@dataclass(slots=True, kw_only=True)
class ReplayResult:
    """Row counts of a replay, or of a dry run. `rows_by_table` counts the rows added to each table."""

    pipeline: str
    dry_run: bool
    selected: int = 0
    landed: int = 0
    still_rejected: int = 0
    not_replayable: int = 0
    replays: int = 0
    resumed_replays: int = 0
    rows_by_table: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    missing_causes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def add(self, rows: ReplayRows) -> None:
        """Adds the counts of one slice."""
        self.selected += len(rows.landed) + len(rows.rejected) + len(rows.missing)
        self.landed += len(rows.landed)
        self.still_rejected += len(rows.rejected)
        self.not_replayable += len(rows.missing)
        self.reasons.update(rows.rejection_counts())
        self.missing_causes.update(rows.missing.values())
        if self.dry_run:
            for table, parts in rows.by_table.items():
                self.rows_by_table[table] += sum(part.num_rows for part in parts)


def replay_quarantine(
    catalog: Catalog,
    pipeline: str,
    selection: QuarantineFilter,
    *,
    dry_run: bool = True,
    limit: int | None = None,
    slice_rows: int = SLICE_ROWS,
    fault: Fault = lambda point: None,
) -> ReplayResult:
    """Lands the selected open rows that fit the present spec. Idempotent; safe during the stream and other replays.

    Args:
        dry_run: only count; nothing is written.
        limit: maximum number of rows, oldest first.
        fault: test hook, called at `files_written`, `prepared` and `committed:<table>`.

    Raises:
        ConfigError: ENRICHMENT_UNREADABLE.
        ContractError: RULE_FAILED or FIELD_UNDECLARED, if a table is declared to stop at such data;
            PREPARED_REPLAY_UNREADABLE; QUARANTINE_EVENTS_NOT_KEPT, no selected row contains its event and the source
            keeps no objects.
        ConcurrencyError: LEASE_HELD by a reprocess or another replay; TABLE_HELD or COMMIT_CONTENDED, after which the
            next call completes the prepared replay.
    """
    started = time.monotonic()
    result = ReplayResult(pipeline=pipeline, dry_run=dry_run)
    lake, home = Lake(catalog.environment.lake), PipelineHome.open(catalog.environment.lake, pipeline)
    spec = catalog.pipeline(pipeline)
    _reject_withheld(spec, lake, selection)
    commits = ReplayCommits(spec, lake, home, fault=fault)
    replayer = _Replayer(catalog, lake, home, commits, result)

    def parts() -> Iterator[pa.Table]:
        keys = Quarantine(lake, pipeline).keys(selection, limit=limit)
        return split_keys(keys, max_rows=slice_rows, max_bytes=SLICE_BYTES)

    if dry_run:
        for part in parts():
            replayer.count_slice(part)
    else:
        commits.tables.open()
        with exclusive_reread(home):
            result.resumed_replays = commits.complete_prepared()
            for part in parts():
                while not replayer.land_slice(part):
                    commits.complete_prepared()
        result.rows_by_table = commits.rows_by_table
    result.seconds = time.monotonic() - started
    return result


def _reject_withheld(spec: PipelineSpec, lake: Lake, selection: QuarantineFilter) -> None:
    """Rejects a replay for which neither quarantine nor the source has the events.

    Quarantine stores no raw values if the pipeline declares private fields, and a stream source keeps no objects.
    """
    if not spec.private or isinstance(spec.source, FileSourceSpec):
        return
    rows, replayable = Quarantine(lake, spec.pipeline).count_replayable(selection)
    if rows and not replayable:
        raise ContractError(
            "QUARANTINE_EVENTS_NOT_KEPT",
            f"None of the {rows} selected rows contains its event: {spec.pipeline!r} declares private fields, so "
            f"quarantine stores no raw values, and {spec.source.kind} keeps no objects to read again.",
            hint=f"Read the records again that the source still has: `deltaworks reprocess {spec.pipeline}`.",
        )


class _Replayer:
    """Replays or counts slices of one pipeline's quarantine. Not thread-safe."""

    def __init__(
        self, catalog: Catalog, lake: Lake, home: PipelineHome, commits: ReplayCommits, result: ReplayResult
    ) -> None:
        self._spec = catalog.pipeline(result.pipeline)
        self._lake = lake
        self._home = home
        self._commits = commits
        self._result = result
        self._partition_by = partition_columns(self._spec)
        self._announcers = notification_tables_by_source(self._spec)
        self._landed: LandedObjects | None = None
        if isinstance(self._spec.source, FileSourceSpec):
            log = FileEventLog(lake, self._spec.source.relay)
            environment = catalog.environment
            opener = FileOpener.for_source(environment.landing, self._spec.source, lake=environment.lake)
            self._landed = LandedObjects(log, opener)

    def count_slice(self, keys: pa.Table) -> None:
        """Counts the rows that `land_slice` would land, without regard to held tables. Writes nothing."""
        rows, _, _ = self._read_slice(keys)
        tables = {name: self._lake.open(paths.table(self._spec.pipeline, name)) for name in rows.by_table}
        refused = [name for name, table in tables.items() if table is not None and reasons_to_use_spark(table)]
        rows.exclude_tables(dict.fromkeys(refused, "table_needs_spark"))
        self._result.add(rows)

    def land_slice(self, keys: pa.Table) -> bool:
        """Lands the rows of a slice that now fit. Returns False if another process prepared the next replay first."""
        # Read the ordinal first, so that the selection reflects every earlier replay.
        ordinal = self._commits.next_ordinal()
        rows, new_columns, open_rows = self._read_slice(keys)
        rows.exclude_tables(self._unavailable_tables(rows))
        if rows.landed or rows.rejected:
            replay_id, at = uuid.uuid4().hex, utc_now()
            shares = [
                self._commits.write(
                    name,
                    part,
                    partition_by=self._partition_by[name],
                    new_columns=to_records(new_columns.get(name, ())),
                )
                for name, part in self._rows_in_commit_order(rows)
                if part.num_rows
            ]
            fingerprint = self._spec.fingerprint()
            shared = {"replay_id": replay_id, "replay": ordinal, "at": at, "spec_fingerprint": fingerprint}
            if not self._commits.land(ordinal, replay_id, shares, _outcome_rows(rows, shared)):
                return False
            self._result.replays += 1
            landed = [row for row in open_rows if row_key(row) in rows.landed]
            with log_failures(f"What was quarantined lately of {self._spec.pipeline}"):
                record_replayed(self._home.objects, self._home.control(), _throughput_of(landed), now=utc_now())
        self._result.add(rows)
        return True

    def _read_slice(self, keys: pa.Table) -> tuple[ReplayRows, EvolvedColumns, list[dict[str, Any]]]:
        open_rows = Quarantine(self._lake, self._spec.pipeline).open_rows(keys)
        passes: list[ReplayRows] = []
        now_us = time.time_ns() // 1000
        inputs = ParserInputs.pin(self._spec, self._lake.storage)

        def one_pass(evolved: EvolvedColumns) -> FanOutResult:
            parser = inputs.create_parser(self._spec, evolved=evolved)
            payloads = PayloadFinder(parser, self._landed).find(open_rows)
            fingerprint = self._spec.fingerprint()
            passes.append(replay_rows(parser, open_rows, payloads, now_us=now_us, fingerprint=fingerprint))
            return FanOutResult(findings=parser.findings)

        written = write_with_new_columns(one_pass, self._spec, self._commits.tables.evolved())
        return passes[-1], written.new_columns, open_rows

    def _unavailable_tables(self, rows: ReplayRows) -> dict[str, str]:
        """Returns the tables that cannot be appended to now, with the reason."""
        held, handles = self._home.held.read(), self._commits.tables.handles
        blocked = {}
        for name in rows.by_table:
            for written in (name, *self._announcers.get(name, ())):
                if written in held:
                    blocked[name] = "table_held"
                elif written not in handles:
                    blocked[name] = "table_not_open"
                elif reasons_to_use_spark(handles[written]):
                    blocked[name] = "table_needs_spark"
        return blocked

    def _rows_in_commit_order(self, rows: ReplayRows) -> Iterator[tuple[str, pa.Table]]:
        """Yields the rows to add per table; notification tables come last."""
        data = ((name, part) for name, parts in sorted(rows.by_table.items()) for part in parts)
        parts: dict[str, list[pa.Table]] = {}
        for name, part in with_notifications(self._spec, data):
            parts.setdefault(name, []).append(part)
        announced = self._commits.tables.announced_table_of
        for name in sorted(parts, key=lambda name: (name in announced, name)):
            yield name, pa.concat_tables(parts[name])


def _throughput_of(landed: Sequence[Mapping[str, Any]]) -> Throughput:
    """Counts landed rows by the time and the reasons of their quarantine."""
    record, now = Throughput(), utc_now()
    for at_us, rows in groupby(sorted(landed, key=_quarantined_us), key=_quarantined_us):
        several = list(rows)
        reasons = Counter[tuple[str, str]]()
        for row in several:
            for reason in row["reasons"]:
                reasons[reason["code"], reason["path"] or ""] += row["events"]
        total = EventTotals(quarantined=sum(row["events"] for row in several), reasons=reasons)
        at = datetime.fromtimestamp(at_us / 1_000_000, UTC)
        record = record.merged(Throughput().with_batch(at, total), now=now)
    return record


def _quarantined_us(row: Mapping[str, Any]) -> int:
    return int(row["ingested_at_us"])


def _outcome_rows(rows: ReplayRows, shared: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Builds the rows of `quarantine_replays` for one slice."""
    outcomes = [(place, LANDED, tables) for place, tables in sorted(rows.landed.items())]
    outcomes += [(place, STILL_REJECTED, ()) for place in sorted(rows.rejected)]
    return [
        {**shared, "_seq": seq, "_position": position, "outcome": outcome, "table_names": list(tables)}
        for (seq, position), outcome, tables in outcomes
    ]
