"""Removes orphans: data files that no commit references, because the driver that wrote them died.

Does not remove files that are young, files that a prepared batch, replay or reprocess references, or files that are or
were in the table's log (VACUUM removes these). Orphaned files staged for the Spark writer are removed too.

Old prepared batches that are complete are removed as well, since there is one object per batch. The ledger records the
result of a batch. Its prepared object is only needed to rebuild a ledger or to inspect the batch. Needs no JVM.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from pyarrow import fs

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.exclusive import run_unless_files_held
from deltaworks.errors import ConfigError, ContractError
from deltaworks.maintenance.deletion_limits import DeletionLimit, alert_limit_exceeded, resolve_limit_exceeded
from deltaworks.maintenance.vacuum import exclusive_maintenance
from deltaworks.specs.base import nearest_names_hint
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.features import is_unsupported_table
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.protected_files import (
    UncommittedFiles,
    existing_files,
    files_in_recovery_records,
    uncommitted_files,
)
from deltaworks.tables.steps import read_last_completed
from deltaworks.tables.table_swap import table_content
from deltaworks.tables.vacuum_candidates import SparkRequired, candidates_by_listing

#: Longer than any driver takes to prepare a batch, and longer than the retention of removed files.
MINIMUM_AGE_HOURS = 168
#: Maximum files removed per table and run, to limit the damage of an error.
MAX_FILES = 100_000
#: Prepared batches to keep: all younger ones, and the newest complete ones.
PREPARED_RETENTION_DAYS = 30
MIN_KEPT_BATCHES = 1_000
#: Maximum prepared batches removed per run.
MAX_PREPARED = 50_000
_MANUAL_COMMAND = "deltaworks tables orphans {} --tables {} --no-dry-run"


@dataclass(frozen=True, slots=True)
class OrphanResult:
    """The orphans removed (in a dry run: found) for one table, for its staged files, or for prepared batches."""

    target: str
    dry_run: bool
    files: int
    bytes: int
    oldest: str
    seconds: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PreparedCleanup:
    """The number of prepared batches removed (in a dry run: to be removed)."""

    removed: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    size: int
    changed_at: datetime


def remove_orphans(
    catalog: Catalog,
    pipeline: str,
    *,
    dry_run: bool = True,
    age_hours: int = MINIMUM_AGE_HOURS,
    tables: Sequence[str] | None = None,
    limit: DeletionLimit | None = None,
) -> list[OrphanResult]:
    """Lists or removes the orphans of a pipeline's bronze tables and quarantine. Idempotent; safe while the stream
    runs.

    Args:
        age_hours: minimum age of removed files. Only a dry run allows less than `MINIMUM_AGE_HOURS`.
        tables: names of tables; by default all.
        limit: skip a table whose orphans exceed this share of its bytes, and raise an alert.

    Raises:
        ConfigError: ORPHAN_AGE_TOO_SHORT or TABLE_UNKNOWN.
        ConcurrencyError: MAINTENANCE_RUNNING, MAINTENANCE_LOCK_LOST; not in a dry run.
    """
    spec = catalog.pipeline(pipeline)
    if age_hours < MINIMUM_AGE_HOURS and not dry_run:
        raise ConfigError(
            "ORPHAN_AGE_TOO_SHORT",
            f"Files younger than {MINIMUM_AGE_HOURS} h may belong to a batch or version that is still needed.",
            hint=f"Use {MINIMUM_AGE_HOURS} h or more.",
        )
    removable = [table.name for table in spec.tables]
    removable += [keyed.name for keyed in (*spec.keyed_tables, *spec.latest_tables)]
    removable += spec.engine_tables
    unknown = sorted(set(tables or ()) - set(removable))
    if unknown:
        raise ConfigError(
            "TABLE_UNKNOWN",
            f"Pipeline {pipeline!r} has no table {', '.join(unknown)}.",
            hint=nearest_names_hint(unknown, removable, prefix="Its bronze, keyed and latest tables are"),
        )
    names = [name for name in removable if not tables or name in tables]
    run = partial(_remove_all, catalog, pipeline, names, age_hours=age_hours, dry_run=dry_run, limit=limit)
    if dry_run:
        return run(lambda: None)
    with exclusive_maintenance(
        PipelineHome.open(catalog.environment.lake, pipeline), work="the removal of orphans"
    ) as lock:
        return run(lock.check)


def _remove_all(
    catalog: Catalog,
    pipeline: str,
    names: Sequence[str],
    check: Callable[[], None],
    *,
    age_hours: int,
    dry_run: bool,
    limit: DeletionLimit | None,
) -> list[OrphanResult]:
    before = datetime.now(tz=UTC) - timedelta(hours=age_hours)
    lake, home = Lake(catalog.environment.lake), PipelineHome.open(catalog.environment.lake, pipeline)
    # Protected files are read before listing, so files committed in between are protected.
    uncommitted = uncommitted_files(lake, home)
    recovery_files = files_in_recovery_records(home)
    results = []
    for name in names:
        check()
        protected = uncommitted.get(name, UncommittedFiles()).paths | recovery_files
        remove_of_table = partial(
            _remove_orphans_of, lake, home, name, before, protected, age_hours=age_hours, dry_run=dry_run, limit=limit
        )
        skipped = partial(OrphanResult, name, dry_run, 0, 0, "", 0.0)
        results.append(
            run_unless_files_held(
                home.objects,
                pipeline,
                name,
                work="Removing orphans",
                run=remove_of_table,
                on_skip=skipped,
                dry_run=dry_run,
            )
        )
        staged = _staged_orphans(lake, home, name, before, protected)
        if staged:
            results.append(_remove_files(lake, f"{name} (staged)", staged, dry_run=dry_run))
    check()
    results.append(_clean_prepared(lake, home, uncommitted, dry_run=dry_run))
    return results


def _remove_orphans_of(
    lake: Lake,
    home: PipelineHome,
    name: str,
    before: datetime,
    protected: set[str],
    *,
    age_hours: int,
    dry_run: bool,
    limit: DeletionLimit | None,
) -> OrphanResult:
    key = home.table(name)
    try:
        table = lake.open(key)
        if table is None:
            return OrphanResult(name, dry_run, 0, 0, "", 0.0, "it does not exist yet")
        removable = candidates_by_listing(lake, key, table, before_ms=int(before.timestamp() * 1000))
    except SparkRequired as problem:
        return OrphanResult(name, dry_run, 0, 0, "", 0.0, f"left to VACUUM: {problem}")
    except ContractError as error:
        if not is_unsupported_table(error):
            raise
        return OrphanResult(name, dry_run, 0, 0, "", 0.0, f"skipped: {error.message}")
    # Files that the log once named were committed and are left to VACUUM.
    unreferenced = removable.files.keys() - removable.removed_paths - protected
    candidates = sorted(path for path in unreferenced if not path.startswith("_"))
    root = arrow_path(lake.storage, key)
    orphans = [file for file in _stat_files(lake, root, candidates) if file.changed_at < before]
    size = sum(file.size for file in orphans)
    if limit is not None and not dry_run:
        if size > limit.max_bytes(size + table_content(table).bytes):
            reason = f"{len(orphans):,} orphaned files ({size / 1e9:,.1f} GB) exceed the nightly deletion limit."
            alert_limit_exceeded(home, name, summary=reason, command=f"`{_MANUAL_COMMAND.format(home.pipeline, name)}`")
            return OrphanResult(name, dry_run, 0, 0, "", 0.0, f"skipped: {reason}")
        resolve_limit_exceeded(home, name)
    return _remove_files(lake, name, orphans[:MAX_FILES], dry_run=dry_run)


def _stat_files(lake: Lake, root: str, candidates: Sequence[str]) -> Iterator[_File]:
    for info in existing_files(lake, [f"{root}/{path}" for path in candidates]):
        if info.mtime is not None:
            yield _File(info.path, info.size or 0, info.mtime)


def _staged_orphans(lake: Lake, home: PipelineHome, name: str, before: datetime, protected: set[str]) -> list[_File]:
    """Returns staged files that no uncommitted batch references."""
    root = arrow_path(lake.storage, paths.staging(home.pipeline, name))
    selector = fs.FileSelector(root, recursive=True, allow_not_found=True)
    return [
        _File(info.path, info.size or 0, info.mtime)
        for info in lake.filesystem.get_file_info(selector)
        if info.type is fs.FileType.File
        and info.mtime is not None
        and info.mtime < before
        and info.path.removeprefix(f"{root}/") not in protected
    ]


def _remove_files(lake: Lake, target: str, files: Sequence[_File], *, dry_run: bool) -> OrphanResult:
    started = time.monotonic()
    if not dry_run:
        for file in files:
            lake.filesystem.delete_file(file.path)
    oldest = min((file.changed_at for file in files), default=None)
    return OrphanResult(
        target=target,
        dry_run=dry_run,
        files=len(files),
        bytes=sum(file.size for file in files),
        oldest=oldest.isoformat(timespec="seconds") if oldest else "",
        seconds=time.monotonic() - started,
    )


def _clean_prepared(
    lake: Lake, home: PipelineHome, uncommitted: dict[str, UncommittedFiles], *, dry_run: bool
) -> OrphanResult:
    started = time.monotonic()
    held_back = any(files.is_held for files in uncommitted.values())
    result = remove_old_prepared(lake, home, keep_all=held_back, dry_run=dry_run)
    return OrphanResult("prepared batches", dry_run, result.removed, 0, "", time.monotonic() - started, result.reason)


def remove_old_prepared(
    lake: Lake,
    home: PipelineHome,
    *,
    keep_all: bool,
    dry_run: bool = True,
    retention_days: int = PREPARED_RETENTION_DAYS,
    min_batches: int = MIN_KEPT_BATCHES,
) -> PreparedCleanup:
    """Removes prepared batches older than `retention_days`, oldest first and without gaps.

    The last `min_batches` complete batches are kept. Idempotent.

    Args:
        keep_all: remove none, because a held table may need any of them.
    """
    if keep_all:
        return PreparedCleanup(0, "none removed: a table is held")
    current = home.generations.current()
    last = read_last_completed(lake, home.pipeline, current)
    # Batches of an ended generation are never read again.
    old = [
        paths.prepared_batch(home.pipeline, generation, batch)
        for generation in range(1, current + 1)
        for batch in home.prepared.numbers(generation)
        if generation < current or (last is not None and batch <= last - min_batches)
    ]
    before = datetime.now(tz=UTC) - timedelta(days=retention_days)

    def is_old(key: str) -> bool:
        changed_at = lake.filesystem.get_file_info(arrow_path(lake.storage, key)).mtime
        return changed_at is not None and changed_at < before

    removed = 0
    for key in itertools.takewhile(is_old, old[:MAX_PREPARED]):
        if not dry_run:
            home.objects.delete(key)
        removed += 1
    return PreparedCleanup(removed, "" if removed or last is not None else "no batch is complete yet")
