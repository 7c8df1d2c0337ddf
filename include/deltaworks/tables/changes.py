"""Finds the partitions that commits changed, from the Delta log alone, and stores how far readers have read them.

Commits that rearrange rows without changing them, such as OPTIMIZE (`dataChange: false`), are not changes.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from deltaworks.control.provenance import parse_user_metadata
from deltaworks.errors import ConfigError
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import Action, commit_history, commit_info_of, data_change_actions, read_commits

#: A partition as written in the Delta log: (column, value) pairs with text values, None for null.
Partition = tuple[tuple[str, str | None], ...]
#: Key of `userMetadata` whose value all commits of one command share.
COMMIT_GROUP_KEY = "group"
#: Where changes are read: in the notification table, or in the table's Delta change data feed.
ChangeSource = Literal["notifications", "change_feed"]
#: Key of `userMetadata` that stores up to which position a reader's table contains all changes.
POSITION_KEY = "changes_position"
_POSITION_FORMAT = "1"


@dataclass(frozen=True, slots=True)
class Changes:
    """Partitions with changed rows. With `is_unbounded` any partition may have changed, and `reason` says why.

    Attributes:
        hours: hours that contain all changed rows, by partition, if known.
        first_seq: minimum `_seq` of added rows, by partition; only if no rows were removed.
        removed: partitions from which a commit removed rows, perhaps to add others.
        added_rows: number of added rows, by partition; 0 for files without a count.
    """

    partitions: frozenset[Partition] = field(default_factory=frozenset)
    is_unbounded: bool = False
    reason: str = ""
    hours: Mapping[Partition, frozenset[dt.datetime]] = field(default_factory=dict)
    first_seq: Mapping[Partition, int] = field(default_factory=dict)
    removed: frozenset[Partition] = frozenset()
    added_rows: Mapping[Partition, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.is_unbounded or bool(self.partitions)

    def partition_values(self, column: str) -> frozenset[str | None] | None:
        """Returns the values of one partition column in changed partitions.

        Returns None if any value may have changed, or if the table is not partitioned by `column`.
        """
        if self.is_unbounded:
            return None
        partitions = [dict(partition) for partition in self.partitions]
        if any(column not in partition for partition in partitions):
            return None
        return frozenset(partition[column] for partition in partitions)


def changed_partitions(
    lake: Lake,
    key: str,
    *,
    after_version: int | None,
    up_to_version: int,
    on_commit: Callable[[Sequence[Action]], None] = lambda actions: None,
) -> Changes:
    """Returns the partitions whose rows changed after `after_version`, up to and including `up_to_version`.

    Reads one small object per commit.

    Args:
        after_version: version of the table at `key`; -1 includes its creation, None means that it is unknown.
        on_commit: called with the actions of each commit.
    """
    if after_version is None:
        return Changes(is_unbounded=True, reason="no earlier version is known")
    if after_version > up_to_version:
        return Changes(is_unbounded=True, reason=f"version {up_to_version} is older than {after_version}")
    partitions: set[Partition] = set()
    removed: set[Partition] = set()
    for version, actions in read_commits(lake, key, range(after_version + 1, up_to_version + 1)):
        if actions is None:
            return Changes(is_unbounded=True, reason=f"the commit of version {version} is no longer in the log")
        for action in actions:
            for change in data_change_actions([action]):
                values = change.get("partitionValues")
                if values is None:
                    return Changes(is_unbounded=True, reason=f"version {version} removes a file without its partition")
                partition = tuple(sorted(values.items()))
                partitions.add(partition)
                if "remove" in action:
                    removed.add(partition)
        on_commit(actions)
    return Changes(partitions=frozenset(partitions), removed=frozenset(removed))


def sql_literal(value: str | None, column_type: str) -> str:
    """Converts a partition value from the Delta log to a SQL literal of the column's type."""
    if value is None:
        return "NULL"
    if column_type in ("int", "long", "boolean"):
        return value
    # A raw string would end at a quote, and a backslash starts an escape sequence in Spark strings.
    text = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"DATE'{text}'" if column_type == "date" else f"'{text}'"


def partition_predicate(partitions: Collection[Partition], types: Mapping[str, str]) -> str:
    """Returns the SQL predicate that selects rows of these partitions; `true` if the table has no partition columns."""
    columns = sorted({name for partition in partitions for name, _ in partition})
    if not columns:
        return "true"
    if len(columns) == 1:
        return _column_predicate(
            columns[0], [dict(partition)[columns[0]] for partition in partitions], types[columns[0]]
        )
    return " OR ".join(
        "(" + " AND ".join(_column_predicate(name, [value], types[name]) for name, value in sorted(partition)) + ")"
        for partition in sorted(partitions, key=str)
    )


def _column_predicate(column: str, values: Sequence[str | None], column_type: str) -> str:
    non_null = sorted({value for value in values if value is not None})
    conditions = [f"`{column}` IS NULL"] if None in values else []
    if non_null:
        conditions.append(f"`{column}` IN ({', '.join(sql_literal(value, column_type) for value in non_null)})")
    return conditions[0] if len(conditions) == 1 else f"({' OR '.join(conditions)})"


@dataclass(slots=True)
class RewrittenPartition:
    """Totals of files and bytes removed from and added to a partition; `version` is the last commit with such files."""

    partition: Partition
    version: int = -1
    files_before: int = 0
    bytes_before: int = 0
    files: int = 0
    bytes: int = 0
    newest_file_at: dt.datetime = field(default=dt.datetime.fromtimestamp(0, tz=dt.UTC))


def rewritten_partitions(lake: Lake, key: str, *, after_version: int, group: str) -> list[RewrittenPartition]:
    """Returns the totals of rewritten files per partition, for commits of `group` after a version, sorted by
    partition."""
    opened = lake.open(key)
    if opened is None:
        return []
    rewritten: dict[Partition, RewrittenPartition] = {}
    for version, actions in read_commits(lake, key, range(after_version + 1, opened.version() + 1)):
        if actions is not None and _commit_group(actions) == group:
            _count_rewritten_files(rewritten, version, actions)
    return [rewritten[partition] for partition in sorted(rewritten, key=str) if rewritten[partition].files]


def _commit_group(actions: Iterable[Action]) -> str | None:
    return parse_user_metadata(commit_info_of(actions).get("userMetadata")).get(COMMIT_GROUP_KEY)


def _count_rewritten_files(
    rewritten: dict[Partition, RewrittenPartition], version: int, actions: Iterable[Action]
) -> None:
    for action in actions:
        file_action = action.get("add") or action.get("remove")
        if file_action is None:
            continue
        partition: Partition = tuple(sorted((file_action.get("partitionValues") or {}).items()))
        entry = rewritten.setdefault(partition, RewrittenPartition(partition))
        entry.version = version
        if "add" in action:
            at = dt.datetime.fromtimestamp(file_action["modificationTime"] / 1000, tz=dt.UTC)
            entry.files, entry.bytes = entry.files + 1, entry.bytes + file_action["size"]
            entry.newest_file_at = max(entry.newest_file_at, at)
        else:
            entry.files_before, entry.bytes_before = (
                entry.files_before + 1,
                entry.bytes_before + file_action.get("size", 0),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePosition:
    """A reader's position in the changes of table `table_id`: it has read all changes up to `version`.

    Store `str(position)` and restore it with `ChangePosition.parse`. The format of the text may change.
    """

    source: ChangeSource
    table_id: str
    version: int

    def __str__(self) -> str:
        return f"{_POSITION_FORMAT}:{self.source}:{self.version}:{self.table_id}"

    @classmethod
    def parse(cls, text: str) -> ChangePosition:
        """Parses a stored position.

        Raises:
            ConfigError: CHANGES_POSITION_UNKNOWN.
        """
        version_text, _, rest = text.partition(":")
        source_text, _, rest = rest.partition(":")
        version, _, table_id = rest.partition(":")
        try:
            if version_text != _POSITION_FORMAT or source_text not in ("notifications", "change_feed"):
                raise ValueError(text)
            source: ChangeSource = "notifications" if source_text == "notifications" else "change_feed"
            return cls(source=source, version=int(version), table_id=table_id)
        except ValueError as error:
            raise ConfigError(
                "CHANGES_POSITION_UNKNOWN", f"{text[:200]!r} is not a position returned by a read of changes."
            ) from error


def last_committed_position(lake: Lake, key: str) -> ChangePosition | None:
    """Returns the position stored in the newest commit at `key` that has one; None without a table or such a commit.

    Raises:
        ConfigError: CHANGES_POSITION_UNKNOWN.
    """
    table = lake.open(key)
    if table is None:
        return None
    for commit in commit_history(lake, key, newest=table.version()):
        if POSITION_KEY in commit.metadata:
            return ChangePosition.parse(str(commit.metadata[POSITION_KEY]))
    return None


def partitions_of(adds: pa.Table) -> list[Partition]:
    """Returns the partition of each add action of a snapshot; the empty tuple if the table is not partitioned."""
    if "partition" not in adds.column_names:
        return [()] * adds.num_rows
    values = adds.column("partition").to_pylist()
    return [
        tuple(sorted((name, _logged_value(value)) for name, value in (partition or {}).items())) for partition in values
    ]


def _logged_value(value: object) -> str | None:
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)
