"""Chooses what OPTIMIZE does with a table: which partitions, what with each, at what cost, and why not the others.

It goes by the health of the partitions and by the ledger of what is in order, and reads nothing itself:

- A partition of one file is as it should be, and one that lies as Z-order left it is not rewritten.
- One that is still written is left, since it would be rewritten again tomorrow; in bad shape (`open_small_files`) its
  small files are merged, without an order. A partition is *closed* `closed_after` after the end of the day that its
  date column names; without such a column, when no file has come for as long. Where its writer would fail beside that
  (`only_closed`) it is left until then.
- A closed partition whose rows are not in order is Z-ordered, which rewrites it whole. Where few of them are
  (`unordered_share`: late arrivals), only small files are merged, until it is worth it.
- A clustered table is one partition that is never closed: it is clustered, as by Z-order, once it is worth it.
- Without Z-order columns, small files are merged where they are `fewest_small_files`.
- A partition with more deleted rows than `deleted_share` is rewritten without them.

Needs no JVM.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from deltaworks.maintenance.layout import Layout
from deltaworks.maintenance.table_health.measure import PartitionHealth, TableHealth
from deltaworks.maintenance.zorder_state import Action, ZOrderState
from deltaworks.tables.changes import Partition

Round = Literal["daily", "weekly", "inline"]
#: What opening one more file costs a reader, in bytes it could have read: Spark's own figure.
OPEN_COST_BYTES = 4 << 20
_REASONS_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizePolicy:
    """From when on a partition is worth rewriting. The module says what each word means.

    `closed_after` None takes every partition as closed: for who has the table to himself.
    """

    round: Round = "daily"
    target_file_bytes: int = 256 << 20
    fewest_small_files: int = 4
    unordered_share: float = 0.1
    deleted_share: float = 0.05
    closed_after: dt.timedelta | None = dt.timedelta(hours=3)
    open_small_files: int = 100

    def weekly(self) -> OptimizePolicy:
        """The second round, over what the daily one left: late arrivals are put in order, and pairs merged."""
        return replace(self, round="weekly", fewest_small_files=2, unordered_share=0.01, open_small_files=20)

    def inline(self) -> OptimizePolicy:
        """For who merges a table and holds its write turn: nobody else writes it meanwhile."""
        return replace(self, round="inline", fewest_small_files=2, unordered_share=0.0, closed_after=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChoice:
    """What is to be done with one partition. `benefit` is in bytes that a read of all of it is spared."""

    partition: Partition
    action: Action
    why: str
    files: int
    bytes: int
    files_saved: int
    bytes_rewritten: int
    benefit: float
    cost_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is to be done with a table, and why; the reason is a sentence, also where nothing is."""

    table: str
    partitions: tuple[PartitionChoice, ...]
    reason: str
    left: int = 0

    @property
    def files_saved(self) -> int:
        """How many files fewer a reader has to open."""
        return sum(each.files_saved for each in self.partitions)

    @property
    def bytes_rewritten(self) -> int:
        """How many bytes are read and written anew."""
        return sum(each.bytes_rewritten for each in self.partitions)

    @property
    def benefit(self) -> float:
        """Bytes that a read of all chosen partitions is spared, opening files included."""
        return sum(each.benefit for each in self.partitions)

    @property
    def cost_seconds(self) -> float:
        """How long it takes, going by earlier runs."""
        return sum(each.cost_seconds for each in self.partitions)


def choose(
    health: TableHealth | None, layout: Layout, *, ledger: ZOrderState, now: dt.datetime, policy: OptimizePolicy
) -> Choice:
    """What OPTIMIZE should do with a table now. Pure.

    Args:
        health: with its `partition_health`; None for a table that does not exist yet.
        now: with its time zone.
    """
    if health is None:
        return Choice(table=layout.name, partitions=(), reason="it does not exist yet")
    if set(health.partition_by) != set(layout.partition_by):
        has = ", ".join(health.partition_by) or "nothing"
        return Choice(table=layout.name, partitions=(), reason=f"it is partitioned by {has}, not as declared")
    if not health.partition_health:
        return Choice(table=layout.name, partitions=(), reason="it is empty")
    taken: list[PartitionChoice] = []
    left: Counter[str] = Counter()
    for found in health.partition_health:
        verdict = _judge(found, layout, ledger, now, policy)
        if isinstance(verdict, str):
            left[verdict] += 1
        else:
            taken.append(verdict)
    return Choice(table=layout.name, partitions=tuple(taken), reason=_sentence(taken, left), left=left.total())


def _judge(
    found: PartitionHealth, layout: Layout, ledger: ZOrderState, now: dt.datetime, policy: OptimizePolicy
) -> PartitionChoice | str:
    """What to do with a partition, or why it is left."""
    purge = _deleted_share(found) > policy.deleted_share
    share = _unordered_share(found, layout, ledger) if layout.ordered_by else 0.0
    if any(value is None for _, value in found.partition):
        # Rows without a value gather what has gone wrong; ordering them helps nobody.
        return "without a value"
    if found.files == 1 and not purge:
        return "of one file"
    if layout.ordered_by and share == 0.0 and not purge:
        return "in order"
    if _is_open(found, layout, now, policy):
        if layout.only_closed or found.small_files < policy.open_small_files:
            return "still written"
        return _compact(found, ledger, policy, why=f"still written, with {found.small_files} small files")
    return _of_closed(found, layout, ledger, policy, share=share, purge=purge)


def _of_closed(
    found: PartitionHealth, layout: Layout, ledger: ZOrderState, policy: OptimizePolicy, *, share: float, purge: bool
) -> PartitionChoice | str:
    deleted = f"{_deleted_share(found):.0%} deleted"
    if layout.ordered_by and (purge or share >= policy.unordered_share):
        unordered = "not in order" if share == 1.0 else f"{share:.0%} not in order"
        return _zorder(found, ledger, policy, share=share, why=deleted if purge else unordered)
    if purge:
        return _purge(found, ledger, policy, why=deleted)
    # Any OPTIMIZE of a clustered table clusters it.
    if found.small_files >= policy.fewest_small_files and not layout.cluster_by:
        return _compact(found, ledger, policy, why=f"{found.small_files} small files")
    return "with few late rows" if layout.ordered_by else "with few small files"


def _deleted_share(found: PartitionHealth) -> float:
    if not found.rows or found.deletion_vector_rows is None:
        return 0.0
    return found.deletion_vector_rows / found.rows


def _unordered_share(found: PartitionHealth, layout: Layout, ledger: ZOrderState) -> float:
    entry = ledger.ordered.get(found.partition)
    if entry is None or entry.columns != layout.ordered_by:
        return 1.0
    share = entry.unordered_share(found)
    # A merge replaces files, and the shares of bytes do not tell how many.
    return 1.0 if layout.rewritten and share > 0 else share


def _is_open(found: PartitionHealth, layout: Layout, now: dt.datetime, policy: OptimizePolicy) -> bool:
    if policy.closed_after is None or layout.cluster_by:
        return False
    settled = now - max(policy.closed_after, layout.settles_after)
    days = [day for name, value in found.partition if name in layout.date_columns and (day := _day(value)) is not None]
    if days:
        return max(days) >= settled.astimezone(dt.UTC).date()
    return found.newest_file_at > settled


def _day(value: str | None) -> dt.date | None:
    try:
        return None if value is None else dt.date.fromisoformat(value)
    except ValueError:
        return None


def _zorder(
    found: PartitionHealth, ledger: ZOrderState, policy: OptimizePolicy, *, share: float, why: str
) -> PartitionChoice:
    after = max(1, -(-found.bytes // policy.target_file_bytes))
    # Out of order, a read by an ordered column opens every file; in order, about one of them.
    skipped = found.bytes * share * (1 - 1 / after)
    return _choice(found, "zorder", ledger, why=why, after=after, rewritten=found.bytes, skipped=skipped)


def _purge(found: PartitionHealth, ledger: ZOrderState, policy: OptimizePolicy, *, why: str) -> PartitionChoice:
    """Delta rewrites the files that have deleted rows; which these are the partition's figures do not tell."""
    return _choice(found, "compact", ledger, why=why, after=found.files, rewritten=found.bytes, skipped=0.0)


def _compact(found: PartitionHealth, ledger: ZOrderState, policy: OptimizePolicy, *, why: str) -> PartitionChoice:
    after = found.files - found.small_files + max(1, -(-found.small_bytes // policy.target_file_bytes))
    return _choice(found, "compact", ledger, why=why, after=after, rewritten=found.small_bytes, skipped=0.0)


def _choice(
    found: PartitionHealth,
    action: Action,
    ledger: ZOrderState,
    *,
    why: str,
    after: int,
    rewritten: int,
    skipped: float,
) -> PartitionChoice:
    saved = max(0, found.files - after)
    return PartitionChoice(
        partition=found.partition,
        action=action,
        why=why,
        files=found.files,
        bytes=found.bytes,
        files_saved=saved,
        bytes_rewritten=rewritten,
        benefit=saved * OPEN_COST_BYTES + skipped + _deleted_share(found) * found.bytes,
        cost_seconds=ledger.paces[action].seconds(rewritten),
    )


def partition_name(partition: Partition) -> str:
    """A partition for people."""
    return "/".join("null" if value is None else value for _, value in partition) or "the table"


def _sentence(taken: list[PartitionChoice], left: Counter[str]) -> str:
    parts = []
    if taken:
        ranked = sorted(taken, key=lambda each: -each.benefit)
        named = [f"{partition_name(each.partition)} ({each.why})" for each in ranked[:_REASONS_NAMED]]
        more = f" and {len(taken) - _REASONS_NAMED} more" if len(taken) > _REASONS_NAMED else ""
        parts.append(f"{_partitions(len(taken))} to rewrite: {', '.join(named)}{more}")
    if left:
        parts.append(f"{'left' if taken else 'nothing to do'}: {_listed(left.most_common())}")
    return "; ".join(parts)


def _listed(kinds: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{_partitions(count)} {kind}" for kind, count in kinds)


def _partitions(count: int) -> str:
    return f"{count:,} partition{'' if count == 1 else 's'}"
