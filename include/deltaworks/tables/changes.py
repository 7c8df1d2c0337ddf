"""Which partitions of a table changed between two of its versions, read from the Delta log alone.

OPTIMIZE and its like rearrange rows without changing them: their actions say `dataChange: false` and do not count.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from deltaworks.tables.lake import Lake
from deltaworks.tables.log import changing_actions, read_commits

#: A partition as the log names it: (column, value) pairs; the value is text, None for null.
Partition = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class Changes:
    """The partitions whose rows changed, or `everything` with the reason why it cannot be told more exactly."""

    partitions: frozenset[Partition] = field(default_factory=frozenset)
    everything: bool = False
    reason: str = ""

    def __bool__(self) -> bool:
        return self.everything or bool(self.partitions)

    def values(self, column: str) -> frozenset[str | None] | None:
        """The values of one partition column that changed; None when all may have.

        That is so too where the table is not partitioned by `column`.
        """
        if self.everything:
            return None
        found = [dict(partition) for partition in self.partitions]
        if any(column not in partition for partition in found):
            return None
        return frozenset(partition[column] for partition in found)


def changed_partitions(lake: Lake, key: str, *, after_version: int | None, up_to_version: int) -> Changes:
    """The partitions with rows added or removed after `after_version` and up to `up_to_version`, both of one table.

    Reads one small object per commit. Versions are those of the table at `key`; `after_version` -1 means from its
    birth on, None that nothing is known of the past.
    """
    if after_version is None:
        return Changes(everything=True, reason="no earlier version is known")
    if after_version > up_to_version:
        return Changes(everything=True, reason=f"version {up_to_version} is older than {after_version}")
    found: set[Partition] = set()
    for version, actions in read_commits(lake, key, range(after_version + 1, up_to_version + 1)):
        if actions is None:
            return Changes(everything=True, reason=f"the commit of version {version} is no longer in the log")
        for action in changing_actions(actions):
            values = action.get("partitionValues")
            if values is None:
                return Changes(everything=True, reason=f"version {version} removes a file without its partition")
            found.add(tuple(sorted(values.items())))
    return Changes(partitions=frozenset(found))
