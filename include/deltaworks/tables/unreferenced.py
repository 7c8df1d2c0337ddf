"""Counts unreferenced files in a table's folder, for table health. Deletes nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass

from deltaworks.tables.lake import Lake
from deltaworks.tables.protected_files import table_retention_hours
from deltaworks.tables.vacuum_candidates import SparkRequired, candidates_by_listing

#: Tables with more files are not listed.
MAX_LISTED_FILES = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreferencedFiles:
    """Number and total size of unreferenced files."""

    files: int
    bytes: int


def count_unreferenced(lake: Lake, key: str, *, limit: int = MAX_LISTED_FILES) -> UnreferencedFiles | None:
    """Counts the files below `key` that no version within the table's retention needs.

    Returns None if the table does not exist, has more than `limit` files, or can only be examined by Spark. Files
    written within the retention are not counted, because a writer may be about to commit them.

    Raises:
        ContractError: the log is missing a commit.
    """
    table = lake.open(key)
    if table is None or len(table.file_uris()) > limit:
        return None
    before_ms = int(time.time() * 1000) - table_retention_hours(table) * 3_600_000
    try:
        candidates = candidates_by_listing(lake, key, table, before_ms=before_ms)
    except SparkRequired:
        return None
    return UnreferencedFiles(files=len(candidates.files), bytes=candidates.bytes)
