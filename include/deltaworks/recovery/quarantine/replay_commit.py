"""Commits replays of quarantined rows in the phases of a batch: prepare, commit, complete.

Every operation that reads landed rows again starts with `exclusive_reread` and first completes an interrupted replay.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from deltaworks import __version__
from deltaworks.control import paths
from deltaworks.control.clock import iso_now, utc_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.lease import WAIT_SECONDS, reread_lease
from deltaworks.control.provenance import current_run, user_metadata
from deltaworks.control.records.prepared import PreparedReplay, PreparedTable
from deltaworks.engine.table_set import TableSet
from deltaworks.errors import ConcurrencyError
from deltaworks.events.evolution import add_columns
from deltaworks.events.source_fields import ROW_KEY_COLUMNS, RowKey, row_keys
from deltaworks.recovery.quarantine.open_rows import (
    LANDED,
    REPLAYS_SCHEMA,
    REPROCESSED,
    Quarantine,
    QuarantineFilter,
    landed_seqs,
)
from deltaworks.specs.descriptions import control_description
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.commit import commit_step, refresh
from deltaworks.tables.descriptions import ensure_described
from deltaworks.tables.files import WrittenFile, read_parquet, split_by_partition, write_file, write_file_body
from deltaworks.tables.lake import Lake, arrow_path, rows_of
from deltaworks.tables.steps import REPLAYS_TABLE, last_replay, read_last_replay, replay_step

log = logging.getLogger(__name__)
OPERATION = "replay_quarantine"
Fault = Callable[[str], None]


@contextlib.contextmanager
def exclusive_reread(home: PipelineHome, *, starting_over: bool = False, rolling_back: bool = False) -> Iterator[None]:
    """Holds the lease for reading landed rows again, so that replays and reprocesses exclude each other.

    Args:
        starting_over: whether the caller resumes an interrupted start over, which blocks all other operations.
        rolling_back: whether the caller resumes an interrupted rollback, which also blocks all others.

    Raises:
        ConcurrencyError: LEASE_HELD.
        ContractError: START_OVER_UNFINISHED, ROLLBACK_UNFINISHED.
    """
    with reread_lease(home).held(wait_seconds=WAIT_SECONDS):
        if not starting_over:
            home.start_overs.reject_unfinished()
        if not rolling_back:
            home.rollbacks.reject_unfinished()
        yield


def complete_prepared_replay(spec: PipelineSpec, lake: Lake, home: PipelineHome) -> None:
    """Completes the prepared but incomplete replay, if there is one. Call it inside `exclusive_reread`."""
    if home.replays.read(1 + read_last_replay(lake, spec.pipeline)) is not None:
        commits = ReplayCommits(spec, lake, home)
        commits.tables.open()
        commits.complete_prepared()


def void_replays(spec: PipelineSpec, lake: Lake, home: PipelineHome, *, replay_id: str) -> int:
    """Marks all replays void. Uses up the next ordinal, so that a concurrent replay selects its rows again.

    Idempotent. Call it inside `exclusive_reread` with an empty quarantine. Returns the ordinal.
    """
    commits = ReplayCommits(spec, lake, home)
    while (ordinal := commits.void_all(replay_id)) is None:
        commits.complete_prepared()
    return ordinal


def close_landed_rows(spec: PipelineSpec, lake: Lake, home: PipelineHome, *, reason: str) -> int:
    """Records open quarantined rows as landed if the tables contain them, as after a restore; returns their number.

    A restore can bring back quarantined rows that have left quarantine since, and voids replays whose rows stay in the
    tables. A row that lacks in a table of its last replay stays open: another replay adds it there.

    Idempotent. Call it inside `exclusive_reread`. Rows of tables that cannot be read stay open, because another damaged
    table must not prevent a restore.
    """
    try:
        quarantine = Quarantine(lake, spec.pipeline)
        tables_of = quarantine.last_landed_tables()
        keys = quarantine.keys(QuarantineFilter()).select(list(ROW_KEY_COLUMNS))
    except Exception as error:
        log.warning("Open rows of %s stay as they are, because quarantine cannot be read: %s", spec.pipeline, error)
        return 0
    tables_by_row = _tables_by_row(spec, lake, keys)
    closed = {
        place: sorted(tables_by_row[place])
        for place in sorted({*row_keys(keys)} & tables_by_row.keys())
        if set(tables_of.get(place, ())) <= tables_by_row[place]
    }
    commits = ReplayCommits(spec, lake, home)
    while closed:
        ordinal = commits.next_ordinal()
        shared = {"replay_id": reason, "replay": ordinal, "at": utc_now(), "spec_fingerprint": spec.fingerprint()}
        outcomes = [
            {**shared, "_seq": seq, "_position": position, "outcome": LANDED, "table_names": names}
            for (seq, position), names in closed.items()
        ]
        if commits.land(ordinal, reason, (), outcomes):
            break
        commits.complete_prepared()
    return len(closed)


def _tables_by_row(spec: PipelineSpec, lake: Lake, keys: pa.Table) -> dict[RowKey, set[str]]:
    """Returns the readable event tables that contain rows of the file events of these keys."""
    tables: dict[RowKey, set[str]] = defaultdict(set)
    of_these = ds.field("_seq").isin(pc.unique(keys.column("_seq")))
    for table in spec.event_tables if keys.num_rows else ():
        try:
            rows = lake.rows(paths.table(spec.pipeline, table.name), columns=ROW_KEY_COLUMNS, filters=of_these)
        except Exception as error:
            log.warning("Quarantined rows of %s.%s stay open: %s", spec.pipeline, table.name, error)
            continue
        for place in () if rows is None else row_keys(rows):
            tables[place].add(table.name)
    return tables


class ReplayCommits:
    """Writes and commits the replays of one pipeline. Not thread-safe.

    `rows_by_table` counts the rows added by this object.
    """

    def __init__(
        self, spec: PipelineSpec, lake: Lake, home: PipelineHome, *, fault: Fault = lambda point: None
    ) -> None:
        self.tables = TableSet(lake, spec)
        self.rows_by_table: Counter[str] = Counter()
        self._spec = spec
        self._lake = lake
        self._home = home
        self._fault = fault
        self._replays_table: DeltaTable | None = None

    def next_ordinal(self) -> int:
        """Returns the ordinal after the last complete replay."""
        record = self._open_replays_table()
        refresh(record)
        return 1 + last_replay(record, self._spec.pipeline)

    def complete_prepared(self) -> int:
        """Completes the prepared but incomplete replay. Returns 1 if there was one, otherwise 0."""
        replay = self._home.replays.read(self.next_ordinal())
        if replay is None:
            return 0
        self._commit(replay)
        return 1

    def land(
        self,
        ordinal: int,
        replay_id: str,
        prepared_tables: Sequence[PreparedTable],
        outcomes: Sequence[Mapping[str, Any]],
    ) -> bool:
        """Prepares and commits a replay. Returns False if another process prepared this ordinal first.

        Args:
            prepared_tables: results of `write`, in commit order.
            outcomes: rows of `quarantine_replays`, committed last.
        """
        record = self.write(REPLAYS_TABLE, pa.Table.from_pylist(list(outcomes), schema=REPLAYS_SCHEMA))
        replay = PreparedReplay(
            pipeline=self._spec.pipeline,
            ordinal=ordinal,
            replay_id=replay_id,
            run=current_run(),
            prepared_at=iso_now(),
            spec_fingerprint=self._spec.fingerprint(),
            code_version=__version__,
            tables=(*prepared_tables, record),
        )
        self._fault("files_written")
        if not self._home.replays.create(replay):
            return False
        self._fault("prepared")
        self._commit(replay)
        return True

    def void_all(self, replay_id: str) -> int | None:
        """Records a replay that voids all earlier ones.

        Returns its ordinal, or None if another process prepared that ordinal first.
        """
        ordinal, at, fingerprint = self.next_ordinal(), utc_now(), self._spec.fingerprint()
        shared = {"replay_id": replay_id, "replay": ordinal, "at": at, "spec_fingerprint": fingerprint}
        outcomes = [
            {**shared, "_seq": seq, "_position": None, "outcome": REPROCESSED, "table_names": []}
            for seq in sorted(landed_seqs(self._lake, self._spec.pipeline))
        ]
        return ordinal if self.land(ordinal, replay_id, (), outcomes) else None

    def write(
        self, table: str, rows: pa.Table, *, partition_by: Sequence[str] = (), new_columns: Sequence[Any] = ()
    ) -> PreparedTable:
        """Writes the data files of one table; commits nothing.

        Args:
            new_columns: columns to add to the table first, as built by `events.evolution.to_records`.
        """
        root = arrow_path(self._lake.storage, self._key(table))
        files = [
            write_file(self._lake.filesystem, root, part, partition=values)
            for values, part in split_by_partition(rows, partition_by)
        ]
        return PreparedTable(
            table=table,
            writer="fan_out",
            rows=rows.num_rows,
            files=tuple(asdict(file) for file in files),
            new_columns=tuple(new_columns),
        )

    def _key(self, table: str) -> str:
        if table == REPLAYS_TABLE:
            return paths.quarantine_replays(self._spec.pipeline)
        return paths.table(self._spec.pipeline, table)

    def _open_replays_table(self) -> DeltaTable:
        if self._replays_table is None:
            created = user_metadata(pipeline=self._spec.pipeline, batch="none", operation="create_table")
            self._replays_table = ensure_described(
                self._lake,
                self._key(REPLAYS_TABLE),
                REPLAYS_SCHEMA,
                control_description(REPLAYS_TABLE),
                user_metadata=created,
            )
        return self._replays_table

    def _commit(self, replay: PreparedReplay) -> None:
        """Commits every table, `quarantine_replays` last. Idempotent."""
        held = self._home.held.read()
        for share in replay.tables:
            if share.table in held:
                raise ConcurrencyError(
                    "TABLE_HELD",
                    f"Replay {replay.ordinal} of {replay.pipeline!r} has rows for {share.table!r}, which is held.",
                    hint=f"Replay again once `deltaworks tables resume {replay.pipeline} {share.table}` has freed it.",
                )
            step = replay_step(replay.pipeline, share.table, replay.ordinal)
            metadata = user_metadata(
                pipeline=replay.pipeline,
                batch=f"replay {replay.ordinal}",
                operation=OPERATION,
                step=step.app_id,
                step_version=step.version,
            )
            handle = self._open_table(share.table)
            if share.new_columns:
                add_columns(handle, share.new_columns, owner=None, user_metadata=metadata)
            if share.table == REPLAYS_TABLE or share.table in self.tables.announced_table_of:
                actions = [WrittenFile(**file).add_action() for file in share.files]
                commit_step(handle, actions, step=step, user_metadata=metadata)
            else:
                files = PreparedTableFiles(self._lake, self._key(share.table), share)
                if commit_step(handle, files.files_missing_from, step=step, user_metadata=metadata).newly_committed:
                    self.rows_by_table[share.table] += files.rows
            self._fault(f"committed:{share.table}")

    def _open_table(self, table: str) -> DeltaTable:
        if table == REPLAYS_TABLE:
            return self._open_replays_table()
        handle = self.tables.handles.get(table) or self._lake.open(self._key(table))
        if handle is None:
            raise self.tables.problems[table]
        return handle


class PreparedTableFiles:
    """The files of one table in a prepared replay, and the number of rows that the last attempt added.

    An event may have landed since the replay was prepared, for example by a reprocess of its object. So each commit
    attempt compares the rows with the snapshot it is based on, and adds only missing rows. This needs neither a lease
    nor a clock.
    """

    def __init__(self, lake: Lake, key: str, share: PreparedTable) -> None:
        self._lake = lake
        self._root = arrow_path(lake.storage, key)
        self._files = [WrittenFile(**record) for record in share.files]
        self._row_keys = [set(row_keys(self._read(file, list(ROW_KEY_COLUMNS)))) for file in self._files]
        self.rows = share.rows

    def _read(self, file: WrittenFile, columns: list[str] | None = None) -> pa.Table:
        with self._lake.filesystem.open_input_file(f"{self._root}/{file.path}") as source:
            return read_parquet(source, columns=columns)

    def files_missing_from(self, table: DeltaTable) -> list[AddAction]:
        """Returns the add actions for rows that this snapshot of the table lacks."""
        seqs = sorted({seq for file_places in self._row_keys for seq, _ in file_places})
        condition = ds.field("_seq").isin(pa.array(seqs, pa.int64()))
        present = set(row_keys(rows_of(self._lake, table, columns=ROW_KEY_COLUMNS, filters=condition)))
        offered = [
            rest
            for file, file_places in zip(self._files, self._row_keys, strict=True)
            if (rest := self._without_present_rows(file, file_places, present)) is not None
        ]
        self.rows = sum(file.rows for file in offered)
        return [file.add_action() for file in offered]

    def _without_present_rows(
        self, file: WrittenFile, file_places: set[RowKey], present: set[RowKey]
    ) -> WrittenFile | None:
        """Returns the file if all its rows are missing, a smaller file if some are, and None if none is."""
        if not file_places & present:
            return file
        if file_places <= present:
            return None
        rows = self._read(file)
        rows = rows.filter(pa.array([place not in present for place in row_keys(rows)], pa.bool_()))
        return write_file_body(self._lake.filesystem, self._root, rows, partition=file.partition)
