"""Determines the batches and replays that a table loses in a restore, and reads their rows again from the objects.

The transactions of a table version state which batches and replays it contains, independent of the ledger and of
compaction. Lost are those that the current version has and the earlier version lacks, with the files of their rows.

If these files no longer exist, the objects of lost batches are read again, and rows that the table would lack are
staged for the restore's commit. Rows that are in the remaining files (by position in their object) or in quarantine are
not staged. Rows keep batch, arrival time and position. Objects are read by this process without Spark; use `deltaworks
reprocess` for large volumes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.dataset as ds

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.records.generations import LostCommit, Rollback, StagedRows
from deltaworks.control.records.prepared import PreparedBatch, PreparedTable
from deltaworks.errors import ContractError
from deltaworks.events.evolution import EvolvedColumns, evolved_columns
from deltaworks.events.parse import ParserInputs
from deltaworks.events.reasons import QUARANTINE_TABLE
from deltaworks.events.source_fields import ROW_KEY_COLUMNS, RowKey, row_keys
from deltaworks.recovery.quarantine.open_rows import Quarantine
from deltaworks.recovery.reprocess.reread import Opener, Rereader, RereadScope, open_landing
from deltaworks.recovery.reprocess.selection import ObjectResolver, Selection, SourceObject
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.features import reasons_to_use_spark
from deltaworks.tables.files import WrittenFile, read_parquet, split_by_partition, write_file
from deltaworks.tables.files_commit import TargetState
from deltaworks.tables.lake import Lake, arrow_path, select_rows
from deltaworks.tables.log import Action, FileId, TableState, stats_of
from deltaworks.tables.steps import replay_step

_READERS = 8


@dataclass(frozen=True, slots=True)
class LostTablePart:
    """A lost batch or replay with the add actions of its files; None if no record lists them."""

    commit: LostCommit
    files: dict[FileId, Action] | None


class LostCommits:
    """Computes the batches and replays that one table loses. Not thread-safe."""

    def __init__(self, lake: Lake, home: PipelineHome, table: str) -> None:
        self._lake = lake
        self._home = home
        self._pipeline = home.pipeline
        self._table = table

    def between(
        self, then: TableState, now: TableState, *, generation: int, skipped: Set[int] = frozenset()
    ) -> list[LostTablePart]:
        """Returns the batches and replays in `now` that `then` lacks, ordered by batch, replays last.

        Args:
            generation: current generation.
            skipped: batches that an earlier rollback of the table dropped on purpose.

        Raises:
            ContractError: RESTORE_GENERATION_ENDED, `then` holds rows that have landed again since; and the errors of
                reading prepared batches.
        """
        # A rollback of the complete pipeline before `then` removed batches that the transactions of `then` still name.
        generation_then = then.transactions.get(f"{self._pipeline}/start_over/{self._table}", 1)
        lost: list[LostTablePart] = []
        for past_generation in range(1, generation + 1):
            last_surviving = self._home.start_overs.last_surviving_batch(past_generation, current=generation)
            app_id = f"{self._pipeline}/g{past_generation}/{self._table}"
            batch_then, batch_now = then.transactions.get(app_id, -1), now.transactions.get(app_id, -1)
            surviving_then = self._home.start_overs.last_surviving_batch(past_generation, current=generation_then)
            batch_then = batch_then if surviving_then is None else min(batch_then, surviving_then)
            if last_surviving is not None:
                self._reject_abandoned_batches(then, past_generation, batch_then, last_surviving)
                batch_now = min(batch_now, last_surviving)
            numbers = [number for number in range(batch_then + 1, batch_now + 1) if number not in skipped]
            lost += self._lost_batches(past_generation, numbers)
        return lost + self._lost_replays(then, now)

    def _reject_abandoned_batches(
        self, then: TableState, generation: int, last_batch: int, last_surviving: int
    ) -> None:
        if last_batch > last_surviving:
            raise ContractError(
                "RESTORE_GENERATION_ENDED",
                f"Version {then.version} of {self._pipeline}.{self._table} holds batches of generation {generation} up "
                f"to {last_batch}. Those after {last_surviving} were abandoned and have landed again since.",
            )

    def _lost_replays(self, then: TableState, now: TableState) -> list[LostTablePart]:
        app_id = replay_step(self._pipeline, self._table, 0).app_id
        lost: list[LostTablePart] = []
        for ordinal in range(then.transactions.get(app_id, 0) + 1, now.transactions.get(app_id, 0) + 1):
            record = self._home.replays.read(ordinal)
            share = None if record is None else prepared_table(record.tables, self._table)
            lost += _lost_parts("replay", 0, ordinal, share)
        return lost

    def _lost_batches(self, generation: int, numbers: list[int]) -> list[LostTablePart]:
        def read(number: int) -> PreparedBatch | None:
            return self._home.prepared.read(generation, number)

        with ThreadPoolExecutor(_READERS) as pool:
            prepared = dict(zip(numbers, pool.map(read, numbers), strict=True))
        # Prepared objects of old batches are deleted; the ledger records whether this table had rows.
        steps = self._ledger_steps(generation, [number for number, batch in prepared.items() if batch is None])
        lost = []
        for number, batch in prepared.items():
            if batch is not None:
                lost += _lost_parts("batch", generation, number, prepared_table(batch.tables, self._table))
            elif number in steps:
                rows, files = int(steps[number]["rows"]), int(steps[number]["files"])
                share = LostCommit(kind="batch", generation=generation, number=number, rows=rows, files=files)
                lost.append(LostTablePart(share, None))
        return lost

    def _ledger_steps(self, generation: int, numbers: list[int]) -> dict[int, dict[str, Any]]:
        key = paths.batch_metadata_store(self._pipeline)
        store = self._lake.open(key) if numbers else None
        if store is None:
            return {}
        values: dict[str, list[Any]] = {
            "table_name": [self._table],
            "batch_id": list(numbers),
            "generation": [generation],
        }
        rows = select_rows(self._lake, key, store, columns=["batch_id", "rows", "files"], values=values)
        return {row["batch_id"]: row for row in rows if row["rows"]}


def prepared_table(tables: Iterable[PreparedTable], table: str) -> PreparedTable | None:
    """Returns the entry of one table in a prepared batch or replay, or None."""
    return next((share for share in tables if share.table == table), None)


def add_actions(files: Iterable[Mapping[str, Any]]) -> dict[FileId, Action]:
    """Converts recorded files to add actions."""
    now = int(time.time() * 1000)
    return {
        (file["path"], ""): {
            "path": file["path"],
            "partitionValues": file["partition"],
            "size": file["size"],
            "modificationTime": now,
            "dataChange": True,
            "stats": file["stats"],
        }
        for file in files
    }


def _lost_parts(
    kind: Literal["batch", "replay"], generation: int, number: int, prepared: PreparedTable | None
) -> list[LostTablePart]:
    if prepared is None or not prepared.files:
        return []
    files = prepared.files
    share = LostCommit(kind=kind, generation=generation, number=number, rows=prepared.rows, files=len(files))
    return [LostTablePart(share, add_actions(files) if prepared.writer == "fan_out" else None)]


#: Maximum number of rows that are combined into one file per partition.
ROWS_PER_FILE = 200_000
_KEYS_SHOWN = 5


def stage_lost_rows(
    catalog: Catalog,
    lake: Lake,
    home: PipelineHome,
    rollback: Rollback,
    target: TargetState,
    *,
    allow_missing: bool = False,
) -> StagedRows:
    """Writes the rows of lost batches that the target lacks, and records the files.

    Idempotent: if the files were recorded before, returns this record.

    Args:
        target: state of the table without these rows.
        allow_missing: skip rows of objects that no longer exist.

    Raises:
        ConfigError: the source keeps no objects; REPROCESS_EMPTY.
        ContractError: RELAND_NEEDS_SPARK, RELAND_OBJECTS_MISSING.
    """
    rollbacks = home.rollbacks
    fixed = rollbacks.staged(rollback.ordinal)
    if fixed is not None or not rollback.batches:
        return fixed or StagedRows(rows=0, files=(), missing=())
    staged = _LostRowStager(catalog, lake, home, rollback, target).stage(allow_missing)
    return rollbacks.get_or_create_staged(rollback.ordinal, staged)


class _LostRowStager:
    def __init__(
        self, catalog: Catalog, lake: Lake, home: PipelineHome, rollback: Rollback, target: TargetState
    ) -> None:
        self._environment = catalog.environment
        self._spec = catalog.pipeline(rollback.pipeline)
        self._rollback = rollback
        self._target = target
        self._lake = lake
        self._objects = home.objects
        self._key = paths.table(rollback.pipeline, rollback.table)

    def stage(self, allow_missing: bool) -> StagedRows:
        """Reads the lost objects, and stages the rows that the target lacks."""
        self._reject_unsupported_table()
        objects = self._lost_objects()
        seqs = {source.seq for source in objects}
        present = self._present_keys(seqs) | self._quarantined_keys(seqs)
        opener: Opener = open_landing(self._environment, self._spec)
        scope = RereadScope(frozenset([self._rollback.table]), all_tables=False)
        inputs = ParserInputs.pin(self._spec, self._lake.storage)
        rereader = Rereader(self._spec, scope, opener, evolved=self._evolved_columns(), inputs=inputs)
        files = list(self._write_files(_missing_rows(rereader.read_objects(objects), present)))
        missing_keys = tuple(key for _, key in sorted(rereader.result.missing_keys.items()))
        if missing_keys and not allow_missing:
            raise ContractError(
                "RELAND_OBJECTS_MISSING",
                f"{len(missing_keys)} of {len(objects)} objects that held lost rows cannot be read any more: "
                f"{', '.join(missing_keys[:_KEYS_SHOWN])}{', …' * (len(missing_keys) > _KEYS_SHOWN)}.",
            )
        rows = sum(file.rows for file in files)
        return StagedRows(rows=rows, files=tuple(asdict(file) for file in files), missing=missing_keys)

    def _reject_unsupported_table(self) -> None:
        handle = self._lake.open(self._key)
        reasons = ["the quarantine"] if self._rollback.table == QUARANTINE_TABLE else []
        reasons += [] if handle is None else reasons_to_use_spark(handle)
        if reasons:
            batches = f"{min(self._rollback.batches)}-{max(self._rollback.batches)}"
            raise ContractError(
                "RELAND_NEEDS_SPARK",
                f"Rows of {self._rollback.pipeline}.{self._rollback.table} cannot be read again without Spark, "
                f"because of {', '.join(reasons)}.",
                hint=f"`deltaworks reprocess {self._rollback.pipeline} --batches {batches}` reads them through Spark.",
            )

    def _lost_objects(self) -> list[SourceObject]:
        lost = set(self._rollback.batches)
        selection = Selection(batches=(min(lost), max(lost)))
        resolved = ObjectResolver(self._lake, self._objects, self._spec).resolve(selection)
        return [source for source in resolved.objects if source.batch_id in lost]

    def _present_keys(self, seqs: set[int]) -> set[RowKey]:
        """Returns the row keys of these objects in the target's files."""
        root = arrow_path(self._lake.storage, self._key)
        first, last = min(seqs, default=0), max(seqs, default=0)
        present: set[RowKey] = set()
        for (path, _), added in self._target.files.items():
            stats = stats_of(added)
            low, high = ((stats.get(name) or {}).get("_seq") for name in ("minValues", "maxValues"))
            if low is not None and high is not None and (int(high) < first or int(low) > last):
                continue
            with self._lake.filesystem.open_input_file(f"{root}/{path}") as source:
                present |= set(row_keys(read_parquet(source, columns=list(ROW_KEY_COLUMNS))))
        return {place for place in present if place[0] in seqs}

    def _quarantined_keys(self, seqs: set[int]) -> set[RowKey]:
        """Returns the keys of quarantined rows that no replay has landed. No table contains these rows."""
        condition = ds.field("_seq").isin(sorted(seqs))
        key = paths.table(self._rollback.pipeline, QUARANTINE_TABLE)
        rows = self._lake.rows(key, columns=list(ROW_KEY_COLUMNS), filters=condition)
        closed = Quarantine(self._lake, self._rollback.pipeline).closed_keys()
        return set() if rows is None else {place for place in row_keys(rows) if place not in closed}

    def _evolved_columns(self) -> EvolvedColumns:
        table = self._spec.table(self._rollback.table)
        handle = self._lake.open(self._key) if table.evolve == "add_columns" else None
        return {} if handle is None else {table.name: evolved_columns(handle, table)}

    def _write_files(self, parts: Iterator[pa.Table]) -> Iterator[WrittenFile]:
        root = arrow_path(self._lake.storage, self._key)
        partition_by = self._spec.table(self._rollback.table).partition_by
        for together in _concatenated(parts):
            for partition, rows in split_by_partition(together, partition_by):
                yield write_file(self._lake.filesystem, root, rows, partition=partition)


def _missing_rows(parts: Iterable[tuple[str, pa.Table]], present: set[RowKey]) -> Iterator[pa.Table]:
    for _, rows in parts:
        missing = rows.filter(pa.array([place not in present for place in row_keys(rows)], pa.bool_()))
        if missing.num_rows:
            yield missing


def _concatenated(parts: Iterator[pa.Table]) -> Iterator[pa.Table]:
    waiting: list[pa.Table] = []
    for part in parts:
        waiting.append(part)
        if sum(rows.num_rows for rows in waiting) >= ROWS_PER_FILE:
            yield pa.concat_tables(waiting, promote_options="default")
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting, promote_options="default")
