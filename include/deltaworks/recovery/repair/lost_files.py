"""Recovers missing or unreadable data files of a table, or a dropped table.

Missing or unreadable files: one commit removes them from the log and adds their rows again. The file statistics in the
log name the batches of these rows. The objects of these batches are read again, and only rows that no other file of the
table contains are written.

Dropped table: it is created as declared, and every batch in the ledger is committed again. If the data files of all
batches still exist (only the log was deleted), they are added to the new table; otherwise the objects are read again.
The second commit of the new table carries the transactions of these batches, so none lands twice.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from deltaworks.control.home import PipelineHome
from deltaworks.control.provenance import user_metadata
from deltaworks.control.records.generations import RowSource
from deltaworks.engine.batch_history import BatchHistory
from deltaworks.engine.ledger import CommittedBatches, committed_batches
from deltaworks.errors import ConfigError
from deltaworks.events.reasons import QUARANTINE_PARTITION, QUARANTINE_SCHEMA, QUARANTINE_TABLE
from deltaworks.recovery.quarantine.replay_commit import exclusive_reread
from deltaworks.recovery.restore.lost_commits import add_actions, prepared_table
from deltaworks.recovery.restore.plan import TableRestoreRequest
from deltaworks.recovery.restore.restore_points import RestorePoint
from deltaworks.recovery.restore.table_restore import TableRestore, TableRestoreResult
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.descriptions import table_descriptions
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.descriptions import ensure_described
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import TableState, list_log, row_count, state_at, stats_of
from deltaworks.tables.log_writer import commit_info, txn_action, write_commit
from deltaworks.tables.protected_files import find_damaged_files, find_missing_files, required_objects
from deltaworks.tables.steps import batch_step

OPERATION = "recover_table"


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesRepair:
    """The missing or unreadable files of a table, their number of rows from statistics, their batches, and the restore.
    Files without a count are `uncounted`; their rows are not included. `problems` are those of the objects that a file
    consists of, by path.
    """

    pipeline: str
    table: str
    dry_run: bool
    files: tuple[str, ...]
    rows: int
    batches: tuple[int, ...]
    restore: TableRestoreResult | None
    uncounted: int = 0
    problems: Mapping[str, str] = field(default_factory=dict)


def repair_files(
    catalog: Catalog,
    pipeline: str,
    table: str,
    *,
    dry_run: bool = True,
    max_rows: int | None = None,
    allow_missing: bool = False,
    full: bool = False,
) -> FilesRepair:
    """Recovers the rows of missing or unreadable data files; a dry run only counts them. Idempotent.

    Args:
        max_rows: reject if the files held more rows.
        allow_missing: skip rows whose objects no longer exist; these rows are lost.
        full: read all rows of each file to find unreadable ones, instead of its footer only.

    Raises:
        The errors of a restore, and ContractError RELAND_OBJECTS_MISSING or RELAND_NEEDS_SPARK.
    """
    lake, home = Lake(catalog.environment.lake), PipelineHome.open(catalog.environment.lake, pipeline)
    restore = TableRestore(catalog, pipeline, table)
    nothing = FilesRepair(pipeline=pipeline, table=table, dry_run=dry_run, files=(), rows=0, batches=(), restore=None)
    if not dry_run and restore.has_unfinished:
        return replace(nothing, restore=restore.run(allow_missing=allow_missing))
    key = home.table(table)
    state = state_at(lake, home.objects, key)
    problems = find_damaged_files(lake, key, state.files, depth="rows" if full else "footer")
    affected = {file: added for file, added in state.files.items() if problems.keys() & set(required_objects(added))}
    files, counts = tuple(sorted(path for path, _ in affected)), [row_count(added) for added in affected.values()]
    rows, uncounted = sum(count or 0 for count in counts), counts.count(None)
    batches = (
        _batches_in_files(BatchHistory(lake, home.objects, catalog.pipeline(pipeline)), state, files) if files else ()
    )
    damage = replace(nothing, files=files, rows=rows, batches=batches, uncounted=uncounted, problems=problems)
    if dry_run or not files:
        return damage
    request = TableRestoreRequest(
        point=RestorePoint(version=state.version),
        repair="source",
        max_rows=max_rows,
        reason=f"{len(files)} files are missing or unreadable",
        exclude_files=files,
        reread_batches=batches,
    )
    return replace(damage, restore=restore.run(request, allow_missing=allow_missing))


def _batches_in_files(history: BatchHistory, state: TableState, files: tuple[str, ...]) -> tuple[int, ...]:
    """Returns the batches that may have rows in these files: the range of `_batch_id` in their statistics."""
    batches: set[int] = set()
    for (path, _), added in state.files.items():
        if path not in files:
            continue
        stats = stats_of(added)
        least, greatest = ((stats.get(name) or {}).get("_batch_id") for name in ("minValues", "maxValues"))
        last = None if greatest is None else int(greatest)
        batches |= {batch.batch_id for batch in history.completed(int(least or 0), last)}
    return tuple(sorted(batches))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRepair:
    """The recovery of a dropped table: its batches, their number of rows in the ledger, and the restore."""

    pipeline: str
    table: str
    dry_run: bool
    last_batches: dict[int, int]
    rows: int
    repair: RowSource
    restore: TableRestoreResult | None


def repair_table(
    catalog: Catalog, pipeline: str, table: str, *, dry_run: bool = True, allow_missing: bool = False
) -> TableRepair:
    """Creates a dropped bronze or quarantine table and recovers all its batches. Resumes after an interruption.

    Args:
        allow_missing: skip rows whose objects no longer exist; these rows are lost.

    Raises:
        ConfigError: TABLE_NOT_DROPPED, the table exists; TABLE_UNKNOWN.
        ContractError: RESTORE_MUTABLE; RELAND_OBJECTS_MISSING, RELAND_NEEDS_SPARK.
        ConcurrencyError: LEASE_HELD, TURN_NOT_GRANTED.
    """
    spec = catalog.pipeline(pipeline)
    lake, home = Lake(catalog.environment.lake), PipelineHome.open(catalog.environment.lake, pipeline)
    restore = TableRestore(catalog, pipeline, table)
    key = home.table(table)
    newest = list_log(home.objects, key).newest
    landed = committed_batches(lake, home, table)
    # An earlier call may have created the table without files.
    begun = newest in (0, 1) and bool(landed) and not state_at(lake, home.objects, key).files
    if newest is not None and not begun and not restore.has_unfinished:
        raise ConfigError(
            "TABLE_NOT_DROPPED",
            f"{pipeline}.{table} exists, at version {newest}.",
            hint=f"`deltaworks tables check {pipeline}` lists what is damaged, and how to repair it.",
        )
    plan = TableRepair(
        pipeline=pipeline,
        table=table,
        dry_run=dry_run,
        last_batches=dict(landed.last_by_generation),
        rows=landed.rows,
        repair=_row_source(lake, home, table, landed),
        restore=None,
    )
    if dry_run:
        return plan
    if restore.has_unfinished:
        return replace(plan, restore=restore.run(allow_missing=allow_missing))
    with exclusive_reread(home):
        _create_table(spec, table, lake, home, landed)
    request = TableRestoreRequest(
        point=RestorePoint(version=0), repair=plan.repair, max_rows=0, reason="the table was dropped"
    )
    return replace(plan, restore=restore.run(request, allow_missing=allow_missing))


def _row_source(lake: Lake, home: PipelineHome, table: str, landed: CommittedBatches) -> RowSource:
    """Returns `prepared` if all prepared batches and their files still exist, otherwise `source`."""
    for generation, batch in landed.by_version.values():
        prepared = home.prepared.read(generation, batch)
        share = None if prepared is None else prepared_table(prepared.tables, table)
        if share is None or share.writer != "fan_out":
            return "source"
        if find_missing_files(lake, home.table(table), add_actions(share.files)):
            return "source"
    return "prepared"


def _create_table(spec: PipelineSpec, table: str, lake: Lake, home: PipelineHome, landed: CommittedBatches) -> None:
    """Creates the declared table with the transactions of all landed batches."""
    pipeline, key = home.pipeline, home.table(table)
    schema = QUARANTINE_SCHEMA if table == QUARANTINE_TABLE else arrow_schema(spec.table(table).column_types())
    partition_by = QUARANTINE_PARTITION if table == QUARANTINE_TABLE else spec.table(table).partition_by
    metadata = user_metadata(pipeline=pipeline, batch="none", operation=OPERATION)
    created = ensure_described(
        lake, key, schema, table_descriptions(spec)[table], user_metadata=metadata, partition_by=partition_by
    )
    if created.version() > 0:
        return
    now = int(time.time() * 1000)
    info = commit_info("RECOVER", user_metadata=metadata, at_ms=now, read_version=0)
    steps = [
        batch_step(pipeline, generation, table, last) for generation, last in sorted(landed.last_by_generation.items())
    ]
    write_commit(home.objects, key, 1, [info, *(txn_action(step, now) for step in steps)])
