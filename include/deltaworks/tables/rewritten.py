"""What commits that rearranged files left in each partition of a table, read from its log."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from deltaworks.control.provenance import read_user_metadata
from deltaworks.tables.changes import Partition
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import Action, read_commits

#: Key of `userMetadata` that tells the commits of one command from all others.
GROUP = "group"


@dataclass(slots=True)
class RewrittenPartition:
    """Files and bytes that were taken out of a partition and put into it; `version` is that of the last commit."""

    partition: Partition
    version: int = -1
    files_before: int = 0
    bytes_before: int = 0
    files: int = 0
    bytes: int = 0
    newest_file_at: dt.datetime = field(default=dt.datetime.fromtimestamp(0, tz=dt.UTC))


def rewritten_partitions(lake: Lake, key: str, *, after_version: int, group: str) -> list[RewrittenPartition]:
    """What the commits of `group` after a version did to each partition they put files into, sorted by partition."""
    opened = lake.open(key)
    if opened is None:
        return []
    found: dict[Partition, RewrittenPartition] = {}
    for version, actions in read_commits(lake, key, range(after_version + 1, opened.version() + 1)):
        if actions is not None and _group_of(actions) == group:
            _take(found, version, actions)
    return [found[place] for place in sorted(found, key=str) if found[place].files]


def _group_of(actions: Iterable[Action]) -> str | None:
    said: Mapping[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    return read_user_metadata(said.get("userMetadata")).get(GROUP)


def _take(found: dict[Partition, RewrittenPartition], version: int, actions: Iterable[Action]) -> None:
    for action in actions:
        moved = action.get("add") or action.get("remove")
        if moved is None:
            continue
        place: Partition = tuple(sorted((moved.get("partitionValues") or {}).items()))
        each = found.setdefault(place, RewrittenPartition(place))
        each.version = version
        if "add" in action:
            at = dt.datetime.fromtimestamp(moved["modificationTime"] / 1000, tz=dt.UTC)
            each.files, each.bytes = each.files + 1, each.bytes + moved["size"]
            each.newest_file_at = max(each.newest_file_at, at)
        else:
            each.files_before, each.bytes_before = each.files_before + 1, each.bytes_before + moved.get("size", 0)
