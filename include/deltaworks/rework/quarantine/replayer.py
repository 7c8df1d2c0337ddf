"""Replays slices of a quarantine: each is prepared, committed and completed like a batch, under steps of its own.

See `quarantine_replay` for what holds them together.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from deltaworks import __version__
from deltaworks.control import paths
from deltaworks.control.clock import iso_now, utc_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.provenance import current_run, user_metadata
from deltaworks.control.records.prepared import PreparedReplay, PreparedTable
from deltaworks.engine.announcements import announcers, with_announcements
from deltaworks.engine.fan_out import Written, partitioning, with_new_columns
from deltaworks.engine.table_set import TableSet
from deltaworks.errors import ConcurrencyError
from deltaworks.events.evolution import Evolved, add_columns, as_records
from deltaworks.events.parse import Parser
from deltaworks.rework.quarantine.open_rows import Quarantine
from deltaworks.rework.quarantine.replay_pass import ReplayRows, reasons_left, replay_rows
from deltaworks.rework.quarantine.replay_payloads import LandedObjects, PayloadFinder
from deltaworks.rework.quarantine.replay_record import LANDED, REPLAYS_SCHEMA, REPROCESSED, STILL_REJECTED, landed_seqs
from deltaworks.rework.quarantine.replay_share import ReplayShare
from deltaworks.sources.objects.log import FileEventLog
from deltaworks.sources.objects.payloads import FileOpener
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.sources.objects import FileSourceSpec
from deltaworks.tables.commit import commit_step, refresh
from deltaworks.tables.features import reasons_for_spark
from deltaworks.tables.files import WrittenFile, split_by_partition, write_file
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.steps import REPLAYS, last_replay, replay_step

OPERATION = "replay_quarantine"
Fault = Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class ReplayResult:
    """What a replay did, or in a dry run would do. Counts are rows; `rows_by_table` are those added to each table."""

    pipeline: str
    dry_run: bool
    selected: int = 0
    landed: int = 0
    still_rejected: int = 0
    not_replayable: int = 0
    replays: int = 0
    completed_earlier: int = 0
    rows_by_table: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


class Replayer:
    """Replays slices of one pipeline's quarantine. Used by one thread."""

    def __init__(self, catalog: Catalog, pipeline: str, result: ReplayResult, *, fault: Fault) -> None:
        self._spec = catalog.pipeline(pipeline)
        self.lake = Lake(catalog.environment.lake)
        self._home = PipelineHome.open(catalog.environment.lake, pipeline)
        self._tables = TableSet(self.lake, self._spec)
        self._partition_by = partitioning(self._spec)
        self._announcers = announcers(self._spec)
        self._landed: LandedObjects | None = None
        if isinstance(self._spec.source, FileSourceSpec):
            log = FileEventLog(self.lake, self._spec.source.relay)
            self._landed = LandedObjects(log, FileOpener.of(catalog.environment.landing, self._spec.source))
        self._result = result
        self._fault = fault
        self._record: DeltaTable | None = None

    def open(self) -> None:
        """Open what is written: the tables, with columns newly declared, and the record."""
        self._tables.open()
        self.open_record()

    def open_record(self) -> None:
        """Open the record alone, which is enough to complete what is prepared."""
        created = user_metadata(pipeline=self._spec.pipeline, batch="none", operation="create_table")
        self._record = self.lake.ensure(self._key(REPLAYS), REPLAYS_SCHEMA, user_metadata=created)

    def _key(self, table: str) -> str:
        if table == REPLAYS:
            return paths.quarantine_replays(self._spec.pipeline)
        return paths.table(self._spec.pipeline, table)

    def _next_ordinal(self) -> int:
        """The ordinal after that of the last complete replay."""
        if self._record is None:
            raise RuntimeError("open the replayer first")
        refresh(self._record)
        return 1 + last_replay(self._record, self._spec.pipeline)

    def complete_torn(self) -> int:
        """Complete the replay that was prepared and is not complete; how many there were, one or none."""
        replay = self._home.replays.read(self._next_ordinal())
        if replay is None:
            return 0
        self._commit(replay)
        return 1

    def count(self, keys: pa.Table) -> None:
        """What `land` would do, were no table held; nothing is written."""
        found, _ = self._read(Quarantine(self.lake, self._spec.pipeline).still_open(keys))
        tables = {name: self.lake.open(self._key(name)) for name in found.by_table}
        refused = [name for name, table in tables.items() if table is not None and reasons_for_spark(table)]
        found.without(dict.fromkeys(refused, "table_needs_spark"))
        self._count(found)

    def land(self, keys: pa.Table) -> bool:
        """Land the rows of these keys that fit; False where another process fixed the next replay first."""
        # The ordinal first: what is selected after it has seen every replay before it.
        ordinal = self._next_ordinal()
        rows = Quarantine(self.lake, self._spec.pipeline).still_open(keys)
        found, new_columns = self._read(rows)
        found.without(self._blocked(found))
        if found.landed or found.rejected:
            replay = self._prepared(ordinal, found, new_columns)
            self._fault("files_written")
            if not self._home.replays.create(replay):
                return False
            self._fault("prepared")
            self._commit(replay)
            self._result.replays += 1
        self._count(found)
        return True

    def void_all(self, replay_id: str) -> int | None:
        """Note, as a replay of its own, that what all replays landed is void; its ordinal, None where another process
        fixed the replay of that ordinal first."""
        ordinal, at, fingerprint = self._next_ordinal(), utc_now(), self._spec.fingerprint()
        shared = {"replay_id": replay_id, "replay": ordinal, "at": at, "spec_fingerprint": fingerprint}
        record = [
            {**shared, "_seq": seq, "_position": None, "outcome": REPROCESSED, "table_names": []}
            for seq in sorted(landed_seqs(self.lake, self._spec.pipeline))
        ]
        replay = self._fixed(ordinal, replay_id, [self._recorded(record)])
        if not self._home.replays.create(replay):
            return None
        self._commit(replay)
        return ordinal

    def _read(self, rows: Sequence[Mapping[str, Any]]) -> tuple[ReplayRows, Evolved]:
        found: list[ReplayRows] = []
        now_us = time.time_ns() // 1000

        def one_pass(evolved: Evolved) -> Written:
            parser = Parser(self._spec, evolved=evolved)
            payloads = PayloadFinder(parser, self._landed).find(rows)
            found.append(replay_rows(parser, rows, payloads, now_us=now_us, fingerprint=self._spec.fingerprint()))
            return Written(findings=parser.findings)

        written = with_new_columns(one_pass, self._spec, self._tables.evolved())
        return found[-1], written.new_columns

    def _blocked(self, found: ReplayRows) -> dict[str, str]:
        """The tables nothing can be added to now, and why."""
        held = self._home.held.read()
        blocked = {}
        for name in found.by_table:
            for written in (name, *self._announcers.get(name, ())):
                if written in held:
                    blocked[name] = "table_held"
                elif written not in self._tables.handles:
                    blocked[name] = "table_not_open"
                elif reasons_for_spark(self._tables.handles[written]):
                    blocked[name] = "table_needs_spark"
        return blocked

    def _prepared(self, ordinal: int, found: ReplayRows, new_columns: Evolved) -> PreparedReplay:
        spec, replay_id, at = self._spec, uuid.uuid4().hex, utc_now()
        shares = []
        for name, rows in self._rows(found):
            if rows.num_rows:
                columns = as_records(new_columns.get(name, ()))
                shares.append(self._write(name, rows, self._partition_by[name], columns))
        shared = {"replay_id": replay_id, "replay": ordinal, "at": at, "spec_fingerprint": spec.fingerprint()}
        outcomes = [(key, LANDED, tables) for key, tables in sorted(found.landed.items())]
        outcomes += [(key, STILL_REJECTED, ()) for key in sorted(found.rejected)]
        record = [
            {**shared, "_seq": seq, "_position": position, "outcome": outcome, "table_names": list(tables)}
            for (seq, position), outcome, tables in outcomes
        ]
        return self._fixed(ordinal, replay_id, [*shares, self._recorded(record)])

    def _rows(self, found: ReplayRows) -> Iterator[tuple[str, pa.Table]]:
        """What is added to each table, and last to those that tell of others."""
        data = ((name, part) for name, parts in sorted(found.by_table.items()) for part in parts)
        parts: dict[str, list[pa.Table]] = {}
        for name, part in with_announcements(self._spec, data):
            parts.setdefault(name, []).append(part)
        for name in sorted(parts, key=lambda name: (name in self._tables.announced, name)):
            yield name, pa.concat_tables(parts[name])

    def _recorded(self, record: Sequence[Mapping[str, Any]]) -> PreparedTable:
        return self._write(REPLAYS, pa.Table.from_pylist(list(record), schema=REPLAYS_SCHEMA), (), ())

    def _fixed(self, ordinal: int, replay_id: str, shares: Sequence[PreparedTable]) -> PreparedReplay:
        return PreparedReplay(
            pipeline=self._spec.pipeline,
            ordinal=ordinal,
            replay_id=replay_id,
            run=current_run(),
            prepared_at=iso_now(),
            spec_fingerprint=self._spec.fingerprint(),
            code_version=__version__,
            tables=tuple(shares),
        )

    def _write(
        self, name: str, rows: pa.Table, partition_by: Sequence[str], new_columns: tuple[dict[str, Any], ...]
    ) -> PreparedTable:
        root = arrow_path(self.lake.storage, self._key(name))
        files = [
            write_file(self.lake.filesystem, root, part, partition=values)
            for values, part in split_by_partition(rows, partition_by)
        ]
        return PreparedTable(
            table=name,
            writer="fan_out",
            rows=rows.num_rows,
            files=tuple(asdict(file) for file in files),
            new_columns=new_columns,
        )

    def _commit(self, replay: PreparedReplay) -> None:
        """Commit every share, the record of the rows last. Idempotent."""
        held = self._home.held.read()
        for share in replay.tables:
            if share.table in held:
                raise ConcurrencyError(
                    "TABLE_HELD",
                    f"Replay {replay.ordinal} of {replay.pipeline!r} has rows for {share.table!r}, which is held.",
                    hint=f"Replay again once `deltaworks tables resume {replay.pipeline} {share.table}` has freed it.",
                )
            step = replay_step(replay.pipeline, share.table, replay.ordinal)
            made = user_metadata(
                pipeline=replay.pipeline,
                batch=f"replay {replay.ordinal}",
                operation=OPERATION,
                step=step.app_id,
                step_version=step.version,
            )
            handle = self._handle(share.table)
            if share.new_columns:
                add_columns(handle, share.new_columns, owner=None, user_metadata=made)
            if share.table == REPLAYS or share.table in self._tables.announced:
                record = [WrittenFile(**file).add_action() for file in share.files]
                commit_step(handle, record, step=step, user_metadata=made)
            else:
                files = ReplayShare(self.lake, self._key(share.table), share)
                if commit_step(handle, files.absent, step=step, user_metadata=made).landed_now:
                    self._result.rows_by_table[share.table] += files.rows
            self._fault(f"committed:{share.table}")

    def _handle(self, table: str) -> DeltaTable:
        handle = self._record if table == REPLAYS else self._tables.handles.get(table)
        handle = handle or self.lake.open(self._key(table))
        if handle is None:
            raise self._tables.problems[table]
        return handle

    def _count(self, found: ReplayRows) -> None:
        result = self._result
        result.selected += len(found.landed) + len(found.rejected) + len(found.missing)
        result.landed += len(found.landed)
        result.still_rejected += len(found.rejected)
        result.not_replayable += len(found.missing)
        result.reasons.update(reasons_left(found))
        result.causes.update(found.missing.values())
        if result.dry_run:
            for name, parts in found.by_table.items():
                result.rows_by_table[name] += sum(part.num_rows for part in parts)
