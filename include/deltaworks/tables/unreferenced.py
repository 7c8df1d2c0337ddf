"""What lies in a table's folder and no version within its retention needs: removed rows' files, and crashed writers'.

It lists the folder, which costs a request for each thousand files, so it is asked for and bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from deltalake import DeltaTable
from pyarrow import fs

from deltaworks.specs.maintenance import DEFAULT_KEPT_HOURS
from deltaworks.tables.lake import Lake, arrow_path

#: Tables of more files than this are not listed, and of more unneeded files than this only so many are measured.
MOST_LISTED = 100_000
_STAT_AT_ONCE = 1_000
_INTERVAL = re.compile(r"^(?:interval\s+)?(\d+)\s+(hour|day|week)s?$", re.IGNORECASE)
_HOURS = {"hour": 1, "day": 24, "week": 168}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreferenced:
    """Files nothing needs, with their bytes. Not `complete` where there are more than were measured."""

    files: int
    bytes: int
    complete: bool


def kept_hours(table: DeltaTable) -> int:
    """For how long the log keeps in mind what was removed, by the table's property, in hours."""
    declared = table.metadata().configuration.get("delta.deletedFileRetentionDuration") or ""
    found = _INTERVAL.match(declared.strip())
    return int(found[1]) * _HOURS[found[2].lower()] if found else DEFAULT_KEPT_HOURS


def unreferenced(lake: Lake, key: str, *, limit: int = MOST_LISTED) -> Unreferenced | None:
    """Count the files below `key` that no version within the table's retention needs; None where it is too large.

    Files that were written within the retention count as needed: a writer may be about to commit them.

    Args:
        limit: tables of more files are not listed.

    Raises:
        DeltaError: delta-rs cannot tell what this table needs.
    """
    table = lake.open(key)
    if table is None or len(table.file_uris()) > limit:
        return None
    unneeded = [path for path in table.vacuum(kept_hours(table), dry_run=True, full=True) if not path.startswith("_")]
    root = arrow_path(lake.storage, key)
    sizes = [info.size or 0 for info in file_infos(lake, [f"{root}/{path}" for path in unneeded[:limit]])]
    return Unreferenced(files=len(sizes), bytes=sum(sizes), complete=len(unneeded) <= limit)


def file_infos(lake: Lake, places: Sequence[str]) -> Iterator[fs.FileInfo]:
    """What storage says of those of these places that are files, in terms of the lake's filesystem."""
    for start in range(0, len(places), _STAT_AT_ONCE):
        for info in lake.filesystem.get_file_info(list(places[start : start + _STAT_AT_ONCE])):
            if info.type is fs.FileType.File:
                yield info
