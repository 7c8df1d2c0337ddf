"""Replays quarantined rows after the spec, a rule or the landed object was corrected. Each row lands exactly once.

The stream's parser reads the open rows again, in slices. A row contains its event if the stored value is complete and
unchanged. Otherwise the landed object is read again, provided that it has not been overwritten, and the event at the
row's position is used if it still matches the row.

A slice is committed like a batch, in three phases: *prepare* writes the data files and records them in one put-if-
absent object, *commit* adds the files to every table under the step `<pipeline>/replay/<table>`, *complete* appends the
outcomes to `quarantine_replays`. The next call first completes an interrupted replay. A lease serializes concurrent
replays. Without the lease only one process can create the next replay record; the other process completes that replay
and selects its rows again.

Rows keep `_seq`, `_position` and `_batch_id`. A row whose key is already in a table is not added to it again. Gold
tables are rebuilt because their input dates have changed.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from deltaworks.events.chunks import BatchMetadata, Payload, PositionedEvent
from deltaworks.events.evolution import EvolvedColumns, to_records
from deltaworks.events.parse import Parser, ParserInputs
from deltaworks.events.reasons import ENTIRE_OBJECT, QUARANTINE_TABLE, ConversionError
from deltaworks.events.source_fields import RowKey, row_keys
from deltaworks.recovery.quarantine.open_rows import LANDED, STILL_REJECTED, Quarantine, QuarantineFilter, split_keys
from deltaworks.recovery.quarantine.replay_commit import Fault, ReplayCommits, exclusive_reread
from deltaworks.sources.objects.file_event_log import FileEventLog, event_time_us
from deltaworks.sources.objects.payloads import FileOpener, FileReference
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.sources import FileSourceSpec
from deltaworks.tables.features import reasons_to_use_spark
from deltaworks.tables.lake import Lake

Row = Mapping[str, Any]


@dataclass(slots=True)
class ReplayPayloads:
    """Payloads grouped by batch id and ingest time, and the reason for each row without a payload."""

    by_batch: dict[tuple[int, int], list[Payload]] = field(default_factory=dict)
    missing: dict[RowKey, str] = field(default_factory=dict)

    def add(self, row: Row, payload: Payload) -> None:
        """Adds the payload of a row."""
        self.by_batch.setdefault((row["_batch_id"], row["ingested_at_us"]), []).append(payload)


def row_key(row: Row) -> RowKey:
    """Returns the key that identifies a row."""
    return row["_seq"], row["_position"]


class LandedObjects:
    """Reads the landed objects that rows came from."""

    def __init__(self, log: FileEventLog, opener: FileOpener) -> None:
        self._log = log
        self._opener = opener

    def payload(self, row: Row) -> Payload | str:
        """Returns the object of the row, or the reason why it cannot be read."""
        event = self._event(row)
        if event is None:
            return "file_event_missing"
        made_at = event_time_us(event["event_time"])
        payload = self._opener(FileReference(row["_seq"], event["key"], event["etag"], event["version_id"], made_at))
        if payload.data is None:
            return str(payload.problem.code) if payload.problem else "object_unreadable"
        return payload

    def _event(self, row: Row) -> Row | None:
        seq = row["_seq"]
        columns = ["seq", "key", "etag", "version_id", "event_time"]
        event = next(iter(self._log.read(seq - 1, seq, columns=columns).to_pylist()), None)
        return event if event is not None and event["key"] == row["object_key"] else None


class PayloadFinder:
    """Finds the payloads of quarantined rows.

    The parser frames payloads as in the stream. If the source keeps no objects, `landed` is None and only rows that
    contain their event can be replayed.
    """

    def __init__(self, parser: Parser, landed: LandedObjects | None) -> None:
        self._parser = parser
        self._landed = landed

    def find(self, rows: Iterable[Row]) -> ReplayPayloads:
        """Returns the payloads of these rows, which must be ordered by `_seq`."""
        payloads = ReplayPayloads()
        for _, group in groupby(rows, key=lambda row: row["_seq"]):
            self._find_in_object(list(group), payloads)
        return payloads

    def _find_in_object(self, rows: Sequence[Row], payloads: ReplayPayloads) -> None:
        rest = []
        for row in rows:
            event = self._from_row(row)
            if event is None:
                rest.append(row)
            else:
                record = json.loads(row["record"]) if row["record"] else None
                payloads.add(
                    row,
                    Payload(
                        row["_seq"],
                        row["object_key"],
                        None,
                        events=(event,),
                        record=record,
                        arrived_at_us=row["arrived_at_us"],
                    ),
                )
        if rest:
            self._from_object(rest, payloads)

    def _from_row(self, row: Row) -> PositionedEvent | None:
        if not row["is_complete"] or row["_position"] == ENTIRE_OBJECT:
            return None
        raw = str(row["raw"]).encode()
        try:
            framed = list(self._parser.frame(Payload(row["_seq"], row["object_key"], raw)))
        except ConversionError:  # such as a CSV row without the header of its object
            return None
        # Outside its object the same text may be framed differently, for example an array that was a single event.
        return (row["_position"], framed[0][1]) if len(framed) == 1 and framed[0][1][1] == raw else None

    def _from_object(self, rows: Sequence[Row], payloads: ReplayPayloads) -> None:
        payload = self._landed.payload(rows[0]) if self._landed else "record_gone"
        if isinstance(payload, str):
            payloads.missing.update({row_key(row): payload for row in rows})
            return
        by_position = {row["_position"]: row for row in rows}
        entire_object_row = by_position.pop(ENTIRE_OBJECT, None)
        if entire_object_row is not None:
            payloads.add(entire_object_row, payload)
        for position, event in self._frame_or_nothing(payload) if by_position else ():
            row = by_position.get(position)
            if row is not None and _is_same_event(row, *self._parser.redaction.redact_raw(event[1])):
                del by_position[position]
                payloads.add(row, replace(payload, data=None, events=((position, event),)))
        payloads.missing.update({row_key(row): "event_not_found" for row in by_position.values()})

    def _frame_or_nothing(self, payload: Payload) -> Iterator[PositionedEvent]:
        try:
            yield from self._parser.frame(payload)
        except ConversionError:  # the object cannot be framed
            return


def _is_same_event(row: Row, raw: bytes, length: int) -> bool:
    """Returns whether an event of the object matches the row, as far as the row's value allows."""
    stored_text = str(row["raw"] or "")
    return length == row["raw_bytes"] and raw.decode("utf-8", "backslashreplace").startswith(
        stored_text.rstrip("\\x0123456789abcdef")
    )


@dataclass(slots=True)
class ReplayRows:
    """The result of parsing one slice again.

    - `by_table`: the rows to land, including quarantine rows for events of an object that was unreadable before.
    - `landed`: the rows that are closed now, with the tables that received them.
    - `rejected`: the rows that still do not fit, with the reasons.
    - `missing`: the rows without a readable payload, with the cause.
    """

    by_table: dict[str, list[pa.Table]] = field(default_factory=dict)
    landed: dict[RowKey, tuple[str, ...]] = field(default_factory=dict)
    rejected: dict[RowKey, tuple[str, ...]] = field(default_factory=dict)
    missing: dict[RowKey, str] = field(default_factory=dict)

    def exclude_tables(self, tables: Mapping[str, str]) -> None:
        """Excludes every event that belongs to one of these tables.

        Args:
            tables: the cause by table name; it becomes the cause in `missing`.
        """
        for table, cause in tables.items():
            blocked = {key for part in self.by_table.get(table, ()) for key in row_keys(part)}
            seqs = {seq for seq, position in self.landed if position == ENTIRE_OBJECT}
            # An unreadable object is a single quarantined row, so all of its events land or none.
            entire_objects = {(seq, ENTIRE_OBJECT) for seq, _ in blocked if seq in seqs}
            for key in blocked | entire_objects:
                if self.landed.pop(key, None) is not None:
                    self.missing[key] = cause
            self._drop(blocked, {seq for seq, _ in entire_objects})

    def rejection_counts(self) -> Counter[str]:
        """Counts the reasons of rows that still do not fit; a row counts once per reason."""
        return Counter(code for codes in self.rejected.values() for code in set(codes))

    def _drop(self, keys: set[RowKey], seqs: set[int]) -> None:
        for name, parts in self.by_table.items():
            self.by_table[name] = [
                part.filter(pa.array([key not in keys and key[0] not in seqs for key in row_keys(part)], pa.bool_()))
                for part in parts
            ]


def replay_rows(
    parser: Parser, rows: Iterable[Mapping[str, Any]], payloads: ReplayPayloads, *, now_us: int, fingerprint: str
) -> ReplayRows:
    """Parses the rows again. They keep batch, position, arrival time, and the time they were first read."""
    result = ReplayRows(missing=dict(payloads.missing))
    readable = {row_key(row) for row in rows} - result.missing.keys()
    entire_object_seqs = {seq for seq, position in readable if position == ENTIRE_OBJECT}
    tables: dict[RowKey, list[str]] = {(seq, ENTIRE_OBJECT): [] for seq in entire_object_seqs}
    for (batch_id, read_at_us), group in sorted(payloads.by_batch.items()):
        stamp = BatchMetadata(batch_id, now_us, fingerprint, read_at_us)
        for name, part in parser.parse(sorted(group, key=lambda payload: payload.seq), stamp):
            if name == QUARANTINE_TABLE:
                _record_rejected(result, part, entire_object_seqs)
                continue
            result.by_table.setdefault(name, []).append(part)
            for key in row_keys(part):
                tables.setdefault(key if key in readable else (key[0], ENTIRE_OBJECT), []).append(name)
    for key, names in tables.items():
        if key in readable and key not in result.rejected:
            result.landed[key] = tuple(sorted(set(names)))
    return result


def _record_rejected(result: ReplayRows, part: pa.Table, complete_object_seqs: set[int]) -> None:
    """Keeps a quarantined row that is rejected again; adds a quarantine row per rejected event of an unreadable
    object."""
    new_rows = []
    for key, reasons in zip(row_keys(part), part.column("reasons").to_pylist(), strict=True):
        is_new = key[0] in complete_object_seqs and key[1] != ENTIRE_OBJECT
        new_rows.append(is_new)
        if not is_new:
            result.rejected[key] = tuple(reason["code"] for reason in reasons)
    if any(new_rows):
        result.by_table.setdefault(QUARANTINE_TABLE, []).append(part.filter(pa.array(new_rows)))


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
