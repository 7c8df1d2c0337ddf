"""Runs VACUUM of one table: finds obsolete files by our own rules and deletes them, here or on Spark's executors.

Log and rules are read in this process, without a JVM; listings and deletions run in its threads or as Spark's tasks.

Writes the same commits as Spark's VACUUM (START and END), and the record from which the next VACUUM of either kind
continues.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from datetime import datetime

from deltaworks.control.objects import ObjectStore
from deltaworks.tables.commit import guarded_commit
from deltaworks.tables.features import has_deletion_vectors, reasons_to_use_spark
from deltaworks.tables.file_workers import FileWorkers, TableFolder, ThreadWorkers, delete_file
from deltaworks.tables.lake import Lake
from deltaworks.tables.log_writer import commit_info, write_commit, write_due_checkpoint
from deltaworks.tables.protected_files import table_retention_hours
from deltaworks.tables.vacuum_candidates import (
    SparkRequired,
    candidates_by_listing,
    candidates_by_log,
    reasons_against_vacuum,
    record_vacuumed_version,
)

_HOUR_MS = 3_600_000


def vacuum_files(
    lake: Lake,
    objects: ObjectStore,
    key: str,
    *,
    hours: int,
    full: bool,
    dry_run: bool,
    now: datetime,
    user_metadata: str,
    workers: FileWorkers | None = None,
) -> tuple[int, int]:
    """Deletes files that the table has not needed for `hours`. Returns the number of files and their bytes.

    Idempotent; safe with writers whose commits take less than `hours`. The caller checks holds and uncommitted files
    first.

    Args:
        full: list the folder instead of using only the log.
        dry_run: only count.
        workers: list and delete files; by default threads of this process.

    Raises:
        SparkRequired: the table has unsupported features. Nothing was deleted.
        LogTooShort: not `full`, and the log no longer reaches back to the last VACUUM. Nothing was deleted.
        ConcurrencyError: COMMIT_CONTENDED, before anything was deleted.
        TransientError: the storage is unreachable; the next run continues.
    """
    table = lake.open(key)
    if table is None:
        return 0, 0
    before_ms = int(now.timestamp() * 1000) - hours * _HOUR_MS
    workers = workers or ThreadWorkers()
    find = candidates_by_listing if full else candidates_by_log
    removable = find(lake, key, table, before_ms=before_ms, workers=workers)
    counted = len(removable.files), removable.bytes
    if dry_run:
        return counted
    log = _VacuumCommits(lake, objects, key, user_metadata)
    log.add(
        "VACUUM START",
        {
            "retentionCheckEnabled": str(hours >= table_retention_hours(table)).lower(),
            "specifiedRetentionMillis": str(hours * _HOUR_MS),
            "defaultRetentionMillis": str(table_retention_hours(table) * _HOUR_MS),
        },
        {"numFilesToDelete": counted[0], "sizeOfDataToDelete": counted[1]},
    )
    try:
        delete_files(TableFolder(lake, objects, key), removable.files, workers)
    except BaseException:
        log.end("FAILED", {})
        raise
    log.end("COMPLETED", {"numDeletedFiles": counted[0], "numVacuumedDirectories": 0})
    record_vacuumed_version(lake, objects, key, removable.up_to_version)
    return counted


def delete_files(table: TableFolder, paths: Iterable[str], workers: FileWorkers) -> None:
    """Deletes files of a table. Idempotent: a run that was interrupted is repeated."""
    workers.map(delete_file, table, sorted(paths))


class _VacuumCommits:
    """Writes commits that only record the start and end of VACUUM."""

    def __init__(self, lake: Lake, objects: ObjectStore, key: str, user_metadata: str) -> None:
        self._lake = lake
        self._objects = objects
        self._key = key
        self._user_metadata = user_metadata

    def add(self, operation: str, parameters: Mapping[str, str], metrics: Mapping[str, int]) -> None:
        """Writes one commit; nothing if the table does not exist any more."""

        def attempt(_: int) -> bool | None:
            table = self._lake.open(self._key)
            if table is None:
                return False
            # The table may require additional features since it was checked.
            if reasons := reasons_against_vacuum(table):
                raise SparkRequired(", ".join(reasons))
            version = table.version() + 1
            info = commit_info(
                operation,
                user_metadata=self._user_metadata,
                at_ms=int(time.time() * 1000),
                read_version=version - 1,
                parameters=parameters,
                metrics=metrics,
                changes_rows=False,
                is_blind_append=True,
            )
            if not write_commit(self._objects, self._key, version, [info]):
                return None
            if not reasons_to_use_spark(table) and not has_deletion_vectors(table):
                properties = table.metadata().configuration
                write_due_checkpoint(self._lake, self._key, version, configuration=properties)
            return True

        guarded_commit(self._key, attempt, action=f"commit {operation}")

    def end(self, status: str, metrics: Mapping[str, int]) -> None:
        """Records the end of VACUUM, unless the table now requires unsupported features."""
        with contextlib.suppress(SparkRequired):
            self.add("VACUUM END", {"status": status}, metrics)
