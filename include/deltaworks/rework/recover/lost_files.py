"""Mends a table whose data files were deleted: one commit takes them out of the log and puts their rows back.

Which batches had rows in them is told by the statistics in the log; their objects are read again, and of their rows
those are written that no other file of the table has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from deltaworks.control import paths
from deltaworks.control.objects import open_objects
from deltaworks.engine.history import BatchHistory
from deltaworks.rework.restore.one_table import TableRestore, TableRestoreResult
from deltaworks.rework.restore.points import RestorePoint
from deltaworks.rework.restore.table_plan import TableRestoreRequest
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import TableState, rows_of, state_at, stats_of
from deltaworks.tables.needed_files import absent_files, needed_by


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesMend:
    """The files that are gone, the rows they had by their statistics, the batches these are of, and what was done."""

    pipeline: str
    table: str
    dry_run: bool
    files: tuple[str, ...]
    rows: int
    batches: tuple[int, ...]
    restore: TableRestoreResult | None


def mend_files(
    catalog: Catalog,
    pipeline: str,
    table: str,
    *,
    dry_run: bool = True,
    max_rows: int | None = None,
    allow_missing: bool = False,
) -> FilesMend:
    """Find the files that are gone and, unless it is a dry run, have their rows again. Idempotent.

    Args:
        max_rows: go on only where the files had no more rows than this.
        allow_missing: leave out rows whose objects are gone too: they are lost.

    Raises:
        What a restore raises; ContractError RELAND_OBJECTS_GONE and RELAND_NEEDS_SPARK among it.
    """
    lake, objects = Lake(catalog.environment.lake), open_objects(catalog.environment.lake)
    restore = TableRestore(catalog, pipeline, table)
    nothing = FilesMend(pipeline=pipeline, table=table, dry_run=dry_run, files=(), rows=0, batches=(), restore=None)
    if not dry_run and restore.unfinished:
        done = restore.run(allow_missing=allow_missing)
        return replace(nothing, restore=done)
    key = paths.table(pipeline, table)
    state = state_at(lake, objects, key)
    gone = set(absent_files(lake, key, state.files))
    affected = {name: each for name, each in state.files.items() if gone & set(needed_by(each))}
    files, rows = tuple(sorted(path for path, _ in affected)), sum(map(rows_of, affected.values()))
    batches = _batches(BatchHistory(lake, objects, catalog.pipeline(pipeline)), state, files) if files else ()
    found = replace(nothing, files=files, rows=rows, batches=batches)
    if dry_run or not files:
        return found
    request = TableRestoreRequest(
        point=RestorePoint(version=state.version),
        repair="source",
        max_rows=max_rows,
        reason=f"{len(files)} files are gone",
        leave_out=files,
        reread=batches,
    )
    return replace(found, restore=restore.run(request, allow_missing=allow_missing))


def _batches(history: BatchHistory, state: TableState, files: tuple[str, ...]) -> tuple[int, ...]:
    """The batches that may have rows in these files: all between the least and the greatest in their statistics."""
    found: set[int] = set()
    for (path, _), added in state.files.items():
        if path not in files:
            continue
        stats = stats_of(added)
        least, greatest = ((stats.get(name) or {}).get("_batch_id") for name in ("minValues", "maxValues"))
        last = None if greatest is None else int(greatest)
        found |= {batch.batch_id for batch in history.complete(int(least or 0), last)}
    return tuple(sorted(found))
