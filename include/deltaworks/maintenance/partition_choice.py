"""Chooses the partitions of a table to OPTIMIZE, with action and cost, and reasons for skipping the others.

Pure: decides from partition health and the Z-order ledger.

- A partition with one file, or without changes since the last Z-order, is skipped.
- An open partition is skipped, since it would be rewritten again; with `open_small_files` its small files are merged. A
  partition is closed `closed_after` after the end of the day in its date column, or after its newest file if it has no
  such column. If its writer would conflict with OPTIMIZE (`only_closed`), it is skipped until then.
- A partition below `zorder_from_bytes` is not Z-ordered, since readers would hardly read less. Its small files
  are merged without Spark.
- A larger closed partition that is not in order is Z-ordered, which rewrites it completely. If only a small share is
  unordered (`unordered_share`, late arrivals), small files are merged until the share is large enough. A single file
  is ordered only if its order splits it into several row groups, because readers read complete row groups.
- A clustered table counts as one partition that never closes; it is clustered by the same shares.
- Without Z-order columns, small files are merged from `min_small_files` on; without Spark if they have few bytes and
  the table has no features that need Spark.
- A partition with more deleted rows than `deleted_share` is rewritten without them.

Needs no JVM.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from deltaworks.control.listing import format_bytes
from deltaworks.maintenance.layout import Layout
from deltaworks.maintenance.table_health.measure import PartitionHealth, TableHealth
from deltaworks.maintenance.zorder_ledger import SPARK_ACTIONS, Action, ZOrderState
from deltaworks.specs.maintenance import DEFAULT_ZORDER_FROM_BYTES
from deltaworks.tables.changes import Partition
from deltaworks.tables.compaction import MAX_BYTES_PER_PARTITION

OptimizeRound = Literal["daily", "weekly", "inline", "forced"]
#: The cost of opening a file, expressed as bytes that could be read in the same time. This is Spark's default.
OPEN_COST_BYTES = 4 << 20
#: Size from which a mutation batch Z-orders the partitions that it merged.
INLINE_ZORDER_FROM_BYTES = 32 << 20
#: Approximate size on disk of a row group that Z-order writes, see `ORDERED_BLOCK_BYTES` of `optimize`.
ORDERED_ROW_GROUP_BYTES = 512 << 10
_MAX_LISTED_REASONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizePolicy:
    """The thresholds for rewriting a partition, as described in this module.

    If `closed_after` is None every partition counts as closed, for a job that holds the table exclusively.
    """

    round: OptimizeRound = "daily"
    target_file_bytes: int = 256 << 20
    min_small_files: int = 4
    unordered_share: float = 0.1
    deleted_share: float = 0.05
    zorder_from_bytes: int = DEFAULT_ZORDER_FROM_BYTES
    closed_after: dt.timedelta | None = dt.timedelta(hours=3)
    open_small_files: int = 100

    def weekly(self) -> OptimizePolicy:
        """Returns the policy of the weekly round, which also orders late arrivals and merges pairs of files."""
        return replace(self, round="weekly", min_small_files=2, unordered_share=0.01, open_small_files=20)

    def inline(self) -> OptimizePolicy:
        """Returns the policy for a job that optimizes the table it merges, under its write turn, without concurrent
        writers.

        Orders only partitions of INLINE_ZORDER_FROM_BYTES, because the stream waits; the nightly run orders the others.
        """
        zorder_from = max(self.zorder_from_bytes, INLINE_ZORDER_FROM_BYTES)
        return replace(
            self,
            round="inline",
            min_small_files=2,
            unordered_share=0.0,
            zorder_from_bytes=zorder_from,
            closed_after=None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChoice:
    """The action for one partition. `benefit` is the number of bytes saved by a full read of the partition.

    `spark_reason` says why Spark rewrites it; empty if this process does.
    """

    partition: Partition
    action: Action
    reason: str
    files: int
    bytes: int
    files_saved: int
    bytes_rewritten: int
    benefit: float
    cost_seconds: float
    spark_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChoice:
    """The actions for a table, and the reason for them or for doing nothing.

    `order` says whether Z-order would act, from which size, or why it would skip nothing; empty without `zorder_by`.
    """

    table: str
    partitions: tuple[PartitionChoice, ...]
    reason: str
    skipped_count: int = 0
    order: str = ""

    def without_spark(self) -> TableChoice:
        """Returns only the partitions that are rewritten without Spark."""
        return replace(
            self, partitions=tuple(choice for choice in self.partitions if choice.action not in SPARK_ACTIONS)
        )

    @property
    def spark_work_count(self) -> int:
        """The number of partitions that need Spark."""
        return sum(choice.action in SPARK_ACTIONS for choice in self.partitions)

    @property
    def files_saved(self) -> int:
        """The number of files that readers no longer have to open."""
        return sum(choice.files_saved for choice in self.partitions)

    @property
    def bytes_rewritten(self) -> int:
        """The number of bytes rewritten."""
        return sum(choice.bytes_rewritten for choice in self.partitions)

    @property
    def benefit(self) -> float:
        """The bytes saved by a full read of the chosen partitions, including file opens."""
        return sum(choice.benefit for choice in self.partitions)

    @property
    def cost_seconds(self) -> float:
        """Estimated seconds of rewriting."""
        return sum(choice.cost_seconds for choice in self.partitions)


def choose_partitions(
    health: TableHealth | None, layout: Layout, *, ledger: ZOrderState, now: dt.datetime, policy: OptimizePolicy
) -> TableChoice:
    """Chooses the partitions that OPTIMIZE rewrites. Pure.

    Args:
        health: including `partition_health`; None if the table does not exist.
        now: timezone-aware.
    """
    if health is None:
        return TableChoice(table=layout.name, partitions=(), reason="it does not exist yet")
    if set(health.partition_by) != set(layout.partition_by):
        has = ", ".join(health.partition_by) or "nothing"
        return TableChoice(table=layout.name, partitions=(), reason=f"it is partitioned by {has}, not as declared")
    if not health.partition_health:
        return TableChoice(table=layout.name, partitions=(), reason="it is empty")
    chooser = _PartitionChooser(layout, ledger, now, policy, spark_only=", ".join(health.spark_only_reasons))
    verdicts = [(partition, chooser.choose(partition)) for partition in health.partition_health]
    chosen = [verdict for _, verdict in verdicts if isinstance(verdict, PartitionChoice)]
    skipped = Counter(verdict for _, verdict in verdicts if isinstance(verdict, str))
    return TableChoice(
        table=layout.name,
        partitions=tuple(chosen),
        reason=_describe_choice(chosen, skipped),
        skipped_count=skipped.total(),
        order=_describe_order(verdicts, layout, policy, now) if layout.zorder_by else "",
    )


def forced_choice(
    health: PartitionHealth, layout: Layout, *, ledger: ZOrderState, policy: OptimizePolicy
) -> TableChoice:
    """Returns the rewrite of one partition that a person asked for: Z-order, or a merge of its files without one."""
    if layout.ordered_by:
        choice = _zorder(health, ledger, policy, share=1.0, why="forced")
    elif health.files > 1 or health.deletion_vector_rows:
        after = max(1, -(-health.bytes // policy.target_file_bytes))
        choice = _partition_choice(
            health, "compact", ledger, why="forced", spark_reason="forced", after=after, rewritten=health.bytes
        )
    else:
        return TableChoice(table=layout.name, partitions=(), reason="nothing to do: one file, and no order is declared")
    return TableChoice(table=layout.name, partitions=(choice,), reason=_describe_choice([choice], Counter()))


class _PartitionChooser:
    """Chooses the action for each partition of a table."""

    def __init__(
        self, layout: Layout, ledger: ZOrderState, now: dt.datetime, policy: OptimizePolicy, *, spark_only: str
    ) -> None:
        self._layout = layout
        self._ledger = ledger
        self._now = now
        self._policy = policy
        self._spark_only = spark_only

    def choose(self, health: PartitionHealth) -> PartitionChoice | str:
        """Returns the action for a partition, or the reason for skipping it."""
        layout, policy = self._layout, self._policy
        purge = _deleted_share(health) > policy.deleted_share
        ordered = _benefits_from_order(health, layout, policy)
        share = _unordered_share(health, layout, self._ledger) if ordered else 0.0
        if any(value is None for _, value in health.partition):
            # Rows without a partition value are mostly errors, and ordering them is useless.
            return "without a value"
        # One file of one row group is read completely in any order.
        one_row_group = health.bytes <= ORDERED_ROW_GROUP_BYTES
        if health.files == 1 and not purge and (not ordered or share == 0.0 or one_row_group):
            return "of one file"
        if ordered and share == 0.0 and not purge:
            return "in order"
        closed_at = closes_at(health, layout, policy)
        if closed_at is not None and self._now < closed_at:
            if layout.only_closed or health.small_files < policy.open_small_files:
                return "still written"
            return self._compaction(health, why=f"still written, with {health.small_files} small files")
        return self._choose_closed(health, ordered=ordered, share=share, purge=purge)

    def _choose_closed(
        self, health: PartitionHealth, *, ordered: bool, share: float, purge: bool
    ) -> PartitionChoice | str:
        layout, policy = self._layout, self._policy
        deleted = f"{_deleted_share(health):.0%} deleted"
        if ordered and (purge or share >= policy.unordered_share):
            unordered = "not in order" if share == 1.0 else f"{share:.0%} not in order"
            return _zorder(health, self._ledger, policy, share=share, why=deleted if purge else unordered)
        if purge:
            return _purge(health, self._ledger, why=deleted)
        # Any OPTIMIZE of a clustered table clusters it.
        if health.small_files >= policy.min_small_files and not layout.cluster_by:
            return self._compaction(health, why=f"{health.small_files} small files")
        return "with few late rows" if ordered else "with few small files"

    def _compaction(self, health: PartitionHealth, *, why: str) -> PartitionChoice:
        spark_reason = self._spark_only
        if health.small_bytes > MAX_BYTES_PER_PARTITION:
            spark_reason = spark_reason or f"more than {MAX_BYTES_PER_PARTITION >> 20} MiB of small files"
        action: Action = "compact" if spark_reason else "compact_small"
        after = health.files - health.small_files + max(1, -(-health.small_bytes // self._policy.target_file_bytes))
        return _partition_choice(
            health,
            action,
            self._ledger,
            why=why,
            spark_reason=spark_reason,
            after=after,
            rewritten=health.small_bytes,
        )


def _benefits_from_order(health: PartitionHealth, layout: Layout, policy: OptimizePolicy) -> bool:
    """Whether an order lets readers skip data. True for a clustered table."""
    return bool(layout.cluster_by) or (bool(layout.zorder_by) and health.bytes >= policy.zorder_from_bytes)


def _deleted_share(health: PartitionHealth) -> float:
    if not health.rows or health.deletion_vector_rows is None:
        return 0.0
    return health.deletion_vector_rows / health.rows


def _unordered_share(health: PartitionHealth, layout: Layout, ledger: ZOrderState) -> float:
    entry = ledger.ordered.get(health.partition)
    if entry is None or entry.columns != layout.ordered_by:
        return 1.0
    share = entry.unordered_share(health)
    # A merge replaces files, so the bytes of new files do not show the unordered share.
    return 1.0 if layout.has_mutable_rows and share > 0 else share


def closes_at(health: PartitionHealth, layout: Layout, policy: OptimizePolicy) -> dt.datetime | None:
    """Returns when a partition counts as closed; None if it always does."""
    if policy.closed_after is None or layout.cluster_by:
        return None
    final_after = max(policy.closed_after, layout.final_after)
    days = [
        day
        for name, value in health.partition
        if name in layout.date_columns and (day := _parse_date(value)) is not None
    ]
    if days:
        return dt.datetime.combine(max(days), dt.time(), dt.UTC) + dt.timedelta(days=1) + final_after
    return health.newest_file_at + final_after


def _parse_date(value: str | None) -> dt.date | None:
    try:
        return None if value is None else dt.date.fromisoformat(value)
    except ValueError:
        return None


def _zorder(
    health: PartitionHealth, ledger: ZOrderState, policy: OptimizePolicy, *, share: float, why: str
) -> PartitionChoice:
    after = max(1, -(-health.bytes // policy.target_file_bytes))
    groups = max(1, -(-health.bytes // ORDERED_ROW_GROUP_BYTES))
    # A filtered read reads every row group of an unordered partition, but about one of an ordered partition.
    skipped = health.bytes * share * (1 - 1 / groups)
    return _partition_choice(
        health,
        "zorder",
        ledger,
        why=why,
        spark_reason="order",
        after=after,
        rewritten=health.bytes,
        skipped=skipped,
    )


def _purge(health: PartitionHealth, ledger: ZOrderState, *, why: str) -> PartitionChoice:
    """Delta rewrites the files with deleted rows; partition health does not show which."""
    return _partition_choice(
        health,
        "compact",
        ledger,
        why=why,
        spark_reason="deletion vectors",
        after=health.files,
        rewritten=health.bytes,
    )


def _partition_choice(
    health: PartitionHealth,
    action: Action,
    ledger: ZOrderState,
    *,
    why: str,
    spark_reason: str,
    after: int,
    rewritten: int,
    skipped: float = 0.0,
) -> PartitionChoice:
    saved = max(0, health.files - after)
    return PartitionChoice(
        partition=health.partition,
        action=action,
        reason=why,
        files=health.files,
        bytes=health.bytes,
        files_saved=saved,
        bytes_rewritten=rewritten,
        benefit=saved * OPEN_COST_BYTES + skipped + _deleted_share(health) * health.bytes,
        cost_seconds=ledger.rates[action].seconds(rewritten),
        spark_reason=spark_reason,
    )


def describe_partition(partition: Partition) -> str:
    """Returns the name of a partition for messages."""
    return "/".join("null" if value is None else value for _, value in partition) or "the table"


def _describe_order(
    verdicts: Sequence[tuple[PartitionHealth, PartitionChoice | str]],
    layout: Layout,
    policy: OptimizePolicy,
    now: dt.datetime,
) -> str:
    """Says whether Z-order would act on a table, from which size, or why it would skip nothing."""
    orders_from = f"orders from {format_bytes(policy.zorder_from_bytes)}"
    large = [(health, verdict) for health, verdict in verdicts if health.bytes >= policy.zorder_from_bytes]
    ordered = [health.bytes for health, verdict in large if _action_of(verdict) == "zorder"]
    if ordered:
        return f"would order {count_partitions(len(ordered))}, the largest {format_bytes(max(ordered))}; {orders_from}"
    if large:
        counts = Counter(_order_verdict(health, verdict, layout, policy, now) for health, verdict in large)
        return f"{_describe_counts(counts.most_common())}; {orders_from}"
    closed = [health for health, _ in verdicts if (closes_at(health, layout, policy) or now) <= now]
    largest = max(closed or [health for health, _ in verdicts], key=lambda health: health.bytes)
    kind = "date" if layout.date_columns else "partition"
    return f"largest {'closed ' if closed else ''}{kind} {format_bytes(largest.bytes)}; {orders_from}"


def _action_of(verdict: PartitionChoice | str) -> Action | None:
    return None if isinstance(verdict, str) else verdict.action


def _order_verdict(
    health: PartitionHealth, verdict: PartitionChoice | str, layout: Layout, policy: OptimizePolicy, now: dt.datetime
) -> str:
    """Returns why a partition that is large enough is not ordered now."""
    closed_at = closes_at(health, layout, policy)
    if closed_at is not None and now < closed_at and verdict != "in order":
        return f"still written until {closed_at.astimezone(dt.UTC):%Y-%m-%d %H:%M}"
    if verdict == "of one file":
        return "in order" if health.bytes > ORDERED_ROW_GROUP_BYTES else "of one row group"
    return verdict if isinstance(verdict, str) else "with few late rows"


def _describe_choice(chosen: list[PartitionChoice], skipped: Counter[str]) -> str:
    parts = []
    if chosen:
        ranked = sorted(chosen, key=lambda choice: -choice.benefit)
        named = [f"{describe_partition(choice.partition)} ({choice.reason})" for choice in ranked[:_MAX_LISTED_REASONS]]
        more = f" and {len(chosen) - _MAX_LISTED_REASONS} more" if len(chosen) > _MAX_LISTED_REASONS else ""
        parts.append(f"{count_partitions(len(chosen))} to rewrite: {', '.join(named)}{more}")
    if skipped:
        parts.append(f"{'left' if chosen else 'nothing to do'}: {_describe_counts(skipped.most_common())}")
    return "; ".join(parts)


def _describe_counts(kinds: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{count_partitions(count)} {kind}" for kind, count in kinds)


def count_partitions(count: int) -> str:
    """Returns a number of partitions for messages."""
    return f"{count:,} partition{'' if count == 1 else 's'}"
