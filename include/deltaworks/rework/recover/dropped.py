"""Has a table again that was dropped: it is created as declared, and every batch that had landed comes back.

With the files their batches had written where these are still there (only the log was deleted), else by reading the
objects again. The ledger says which batches had landed; the new table says so too, in the transactions of its second
commit, so that nothing lands twice.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import open_objects
from deltaworks.control.provenance import user_metadata
from deltaworks.control.records.prepared import PreparedTable
from deltaworks.control.records.rollback import Repair
from deltaworks.engine.ledger import LandedBatches, landed_batches
from deltaworks.errors import ConfigError
from deltaworks.events.reasons import QUARANTINE, QUARANTINE_PARTITION, QUARANTINE_SCHEMA
from deltaworks.rework.quarantine.replay import rereading
from deltaworks.rework.restore.lost import added_files
from deltaworks.rework.restore.one_table import TableRestore, TableRestoreResult
from deltaworks.rework.restore.points import RestorePoint
from deltaworks.rework.restore.table_plan import TableRestoreRequest
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import list_log, state_at
from deltaworks.tables.needed_files import absent_files
from deltaworks.tables.restore import RestoreCommit, commit_info, put_commit, txn
from deltaworks.tables.steps import batch_step

OPERATION = "recover_table"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMend:
    """How the rows of a dropped table come back: which batches, how many rows the ledger knows, and what was done."""

    pipeline: str
    table: str
    dry_run: bool
    last_batches: dict[int, int]
    rows: int
    repair: Repair
    restore: TableRestoreResult | None


def mend_table(
    catalog: Catalog, pipeline: str, table: str, *, dry_run: bool = True, allow_missing: bool = False
) -> TableMend:
    """Create a dropped bronze table, or quarantine, and bring all its batches back. Gone on with where broken off.

    Args:
        allow_missing: leave out rows whose objects are gone: they are lost.

    Raises:
        ConfigError: TABLE_NOT_DROPPED, it is there; TABLE_UNKNOWN.
        ContractError: RESTORE_MUTABLE; RELAND_OBJECTS_GONE, RELAND_NEEDS_SPARK.
        ConcurrencyError: LEASE_HELD, TURN_NOT_GRANTED.
    """
    lake, home = Lake(catalog.environment.lake), PipelineHome.open(catalog.environment.lake, pipeline)
    restore = TableRestore(catalog, pipeline, table)
    newest = list_log(home.objects, home.table(table)).newest
    known = landed_batches(lake, home, table)
    # One that this had only begun to create has no files yet.
    begun = newest in (0, 1) and bool(known) and not state_at(lake, home.objects, home.table(table)).files
    if newest is not None and not begun and not restore.unfinished:
        raise ConfigError(
            "TABLE_NOT_DROPPED",
            f"{pipeline}.{table} is there, at version {newest}.",
            hint=f"`deltaworks tables check {pipeline}` says what is damaged, and what mends it.",
        )
    repair = _repair(catalog, pipeline, table, known)
    if dry_run:
        return _result(pipeline, table, known, repair, None)
    if restore.unfinished:
        return _result(pipeline, table, known, repair, restore.run(allow_missing=allow_missing))
    with rereading(catalog, pipeline):
        _create(catalog, pipeline, table, known)
    request = TableRestoreRequest(
        point=RestorePoint(version=0), repair=repair, max_rows=0, reason="the table was dropped"
    )
    return _result(pipeline, table, known, repair, restore.run(request, allow_missing=allow_missing))


def _repair(catalog: Catalog, pipeline: str, table: str, known: LandedBatches) -> Repair:
    """From prepared batches where all of these and all of their files are still there."""
    lake, home = Lake(catalog.environment.lake), PipelineHome.open(catalog.environment.lake, pipeline)
    for generation, batch in known.by_version.values():
        prepared = home.prepared.read(generation, batch)
        share: PreparedTable | None = None
        if prepared is not None:
            share = next((each for each in prepared.tables if each.table == table), None)
        if share is None or share.writer != "fan_out":
            return "source"
        if absent_files(lake, home.table(table), added_files(share.files)):
            return "source"
    return "prepared"


def _create(catalog: Catalog, pipeline: str, table: str, known: LandedBatches) -> None:
    """The declared table, and the transactions of all that had landed in it."""
    lake, objects = Lake(catalog.environment.lake), open_objects(catalog.environment.lake)
    spec, key = catalog.pipeline(pipeline), paths.table(pipeline, table)
    schema = QUARANTINE_SCHEMA if table == QUARANTINE else arrow_schema(spec.table(table).column_types())
    partition_by = QUARANTINE_PARTITION if table == QUARANTINE else spec.table(table).partition_by
    made = user_metadata(pipeline=pipeline, batch="none", operation=OPERATION)
    created = lake.ensure(key, schema, user_metadata=made, partition_by=partition_by)
    if created.version() > 0:
        return
    now = int(time.time() * 1000)
    commit = RestoreCommit(step=Step(f"{pipeline}/rollback/{table}", 0), user_metadata=made, operation="RECOVER")
    steps = [batch_step(pipeline, generation, table, last) for generation, last in sorted(known.last.items())]
    put_commit(objects, key, 1, [commit_info(commit, read_version=0, at_ms=now), *(txn(step, now) for step in steps)])


def _result(
    pipeline: str, table: str, known: LandedBatches, repair: Repair, restore: TableRestoreResult | None
) -> TableMend:
    return TableMend(
        pipeline=pipeline,
        table=table,
        dry_run=restore is None,
        last_batches=dict(known.last),
        rows=known.rows,
        repair=repair,
        restore=restore,
    )
