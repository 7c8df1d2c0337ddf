"""Rewrites chosen partitions of one table in groups, and records each group in the Z-order ledger.

A repeated run has nothing to do, and a run after a crash continues. Small partitions are compacted in this process
(`tables.compaction`), others by Spark's OPTIMIZE; the Spark session is opened on first use. Appends may continue. A
table that mutations merge is optimized under its write turn, in small groups, so its stream is not blocked for long.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.write_turn import Turn, TurnFactory, uncontested_turn
from deltaworks.control.objects import open_objects
from deltaworks.control.provenance import OPTIMIZE, current_run, user_metadata
from deltaworks.maintenance.layout import Layout
from deltaworks.maintenance.partition_choice import (
    OptimizePolicy,
    PartitionChoice,
    choose_partitions,
    count_partitions,
    describe_partition,
)
from deltaworks.maintenance.table_health.measure import SMALL_FILE_BYTES, table_health
from deltaworks.maintenance.zorder_ledger import SPARK_ACTIONS, Action, RewriteGroup, ZOrderLedger, read_ledger
from deltaworks.tables.changes import Partition, partition_predicate
from deltaworks.tables.compaction import MAX_BYTES_PER_PARTITION, compact_partitions
from deltaworks.tables.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

#: Approximate bytes per group. Bounded, so that a failed job loses little.
BYTES_PER_GROUP = 16 << 30
#: Bytes per group under a write turn, since the stream waits for the end of a group.
BYTES_PER_WRITE_TURN = 1 << 30
#: Bytes per commit of compaction in this process.
BYTES_PER_SMALL_GROUP = 256 << 20
#: Maximum partitions per group.
PARTITIONS_PER_GROUP = 1_000
#: An OPTIMIZE command commits after this many bytes. Its commits survive a failure.
BYTES_PER_COMMIT = 4 << 30
#: Bytes of a row group in files that Z-order writes, before compression. Readers skip complete row groups, and with
#: Parquet's default of 128 MiB a partition below some 32 MiB has one.
ORDERED_BLOCK_BYTES = 2 << 20
_PARQUET_BLOCK_SIZE = "parquet.block.size"
#: Delta orders files by default, and leaves the rows of each file unordered: with one file nothing would be skipped.
_SORT_WITHIN_FILES = "spark.databricks.io.skipping.mdc.sortWithinFiles"
#: Returns the Spark session, opening it on first use.
SessionFactory = Callable[[], "SparkSession"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizeResult:
    """The result for one table in one round. Counts cover rewritten partitions.

    - `compacted`: partitions whose files were merged; `without_spark`: those of them compacted in this process.
    - `deferred`: partitions that did not fit into the night or had a commit conflict.
    - `spark_work_count`: partitions that need Spark, which this run does not have.
    - `error`: the failure that ended the table.
    - `engine`: which engine rewrote how many partitions, and why.
    """

    table: str
    round: str
    partitions: int = 0
    zordered: int = 0
    compacted: int = 0
    without_spark: int = 0
    deferred: int = 0
    spark_work_count: int = 0
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    seconds: float = 0.0
    error: str = ""
    engine: str = ""
    reason: str = ""

    @property
    def skipped(self) -> bool:
        """Whether there was nothing to do."""
        return self.partitions == 0


class TableOptimizer:
    """Rewrites chosen partitions of one table in groups, and updates the ledger.

    Args:
        spark: None leaves partitions that need Spark to another run.
        acquire_turn: acquires the write turn for each group.
        check: called before each group; raises to stop.
        deadline: `time.monotonic` value after which no group starts.
        merge_below_bytes: size below which files are merged; by default that of small files.

    `result` is the result so far, also after `run` has raised.
    """

    def __init__(
        self,
        spark: SessionFactory | None,
        lake: Lake,
        ledger: ZOrderLedger,
        pipeline: str,
        layout: Layout,
        *,
        policy: OptimizePolicy,
        acquire_turn: TurnFactory = uncontested_turn,
        check: Callable[[], None] = lambda: None,
        deadline: float = float("inf"),
        merge_below_bytes: int | None = None,
    ) -> None:
        # Larger files are ordered already and are not rewritten.
        small = min(SMALL_FILE_BYTES, policy.target_file_bytes // 2)
        self._merge_below_bytes = small if merge_below_bytes is None else merge_below_bytes
        self.result = OptimizeResult(table=layout.name, round=policy.round)
        self._spark = spark
        self._lake = lake
        self._ledger = ledger
        self._pipeline = pipeline
        self._layout = layout
        self._policy = policy
        self._acquire_turn = acquire_turn
        self._check = check
        self._deadline = deadline
        self._key = paths.table(pipeline, layout.name)
        self._objects = open_objects(lake.storage)
        self._work: Counter[tuple[str, str]] = Counter()

    def run(self, chosen: Sequence[PartitionChoice], result: OptimizeResult) -> OptimizeResult:
        """Rewrites the partitions. Returns `result` with updated counts.

        Partitions in groups that cannot start before the deadline count as deferred.
        """
        self.result = result
        for group in _group_partitions(
            chosen, BYTES_PER_WRITE_TURN if self._layout.has_mutable_rows else BYTES_PER_GROUP
        ):
            if group[0].action in SPARK_ACTIONS and self._spark is None:
                self._work.update((LEFT_TO_SPARK, f"({choice.spark_reason})") for choice in group)
                result = replace(result, spark_work_count=result.spark_work_count + len(group))
            elif time.monotonic() >= self._deadline:
                result = replace(result, deferred=result.deferred + len(group))
            else:
                result = self._rewrite_group(group, result)
            self.result = result = replace(result, engine=describe_engines(self._work))
        return result

    def _rewrite_group(self, chosen: Sequence[PartitionChoice], result: OptimizeResult) -> OptimizeResult:
        action, partitions = chosen[0].action, [choice.partition for choice in chosen]
        if action in SPARK_ACTIONS and self._spark is not None:
            # Opened before the write turn, because the stream waits during the turn.
            self._spark()
        with self._acquire_turn(self._layout.name) as turn:
            self._check()
            turn.check()
            started = time.monotonic()
            group = self._new_group(action)
            self._ledger.begin(group)
            remaining, overtaken = partitions, 0
            reasons = {choice.partition: choice.spark_reason for choice in chosen}
            if action not in SPARK_ACTIONS:
                unsupported, overtaken = self._compact(group, partitions, turn)
                remaining, reasons = list(unsupported), reasons | unsupported
            without_spark = len(self._ledger.rewritten(group)) if action not in SPARK_ACTIONS else 0
            if remaining and self._spark is not None:
                self._optimize_with_retries(self._spark, group, remaining, turn)
                remaining = []
            self._work.update((LEFT_TO_SPARK, f"({reasons[partition]})") for partition in remaining)
            rewritten = self._ledger.rewritten(group)
            seconds = time.monotonic() - started
            self._ledger.record(group, rewritten, seconds=seconds)
            self._work.update(_engine_of(action, reasons.get(done.partition, "")) for done in rewritten)
        total = replace(
            result,
            partitions=result.partitions + len(rewritten),
            zordered=result.zordered + (len(rewritten) if action == "zorder" else 0),
            compacted=result.compacted + (len(rewritten) if action != "zorder" else 0),
            without_spark=result.without_spark + without_spark,
            deferred=result.deferred + overtaken,
            spark_work_count=result.spark_work_count + len(remaining),
            files_before=result.files_before + sum(partition.files_before for partition in rewritten),
            files_after=result.files_after + sum(partition.files for partition in rewritten),
            bytes_before=result.bytes_before + sum(partition.bytes_before for partition in rewritten),
            bytes_after=result.bytes_after + sum(partition.bytes for partition in rewritten),
            seconds=result.seconds + seconds,
        )
        log.info("table=%s action=%s partitions=%d seconds=%.1f", group.table, action, len(rewritten), seconds)
        return total

    def _compact(
        self, group: RewriteGroup, partitions: Sequence[Partition], turn: Turn
    ) -> tuple[dict[Partition, str], int]:
        """Compacts in this process. Returns the partitions left to Spark with reasons, and the number of partitions
        with commit conflicts.
        """
        outcome = compact_partitions(
            self._lake,
            self._objects,
            self._key,
            partitions,
            below_bytes=self._merge_below_bytes,
            user_metadata=self._commit_metadata(group),
            before_commit=turn.check,
        )
        for partition, reason in outcome.unsupported.items():
            log.info("table=%s partition=%s is left to Spark: %s", group.table, describe_partition(partition), reason)
        if outcome.conflicting:
            names = ", ".join(map(describe_partition, outcome.conflicting))
            log.info("table=%s a concurrent commit was first, retried the next night: %s", group.table, names)
        return dict(outcome.unsupported), len(outcome.conflicting)

    def _optimize_with_retries(
        self, spark: SessionFactory, group: RewriteGroup, partitions: Sequence[Partition], turn: Turn
    ) -> None:
        """Rewrites the partitions. After a conflict, rewrites only the partitions that are not committed yet."""
        from deltaworks.tables.spark_session import retry_conflicts

        session = spark()
        for attempt in retry_conflicts(group.table):
            with attempt:
                turn.check()
                rewritten_partitions = {rewritten.partition for rewritten in self._ledger.rewritten(group)}
                remaining = [partition for partition in partitions if partition not in rewritten_partitions]
                if remaining:
                    self._run_optimize(session, group, remaining)

    def _new_group(self, action: Action) -> RewriteGroup:
        opened = self._lake.open(self._key)
        return RewriteGroup(
            name=uuid.uuid4().hex,
            table=self._layout.name,
            action=action,
            columns=self._layout.ordered_by if action == "zorder" else (),
            after_version=-1 if opened is None else opened.version(),
            round=self._policy.round,
            run=current_run(),
        )

    def _run_optimize(self, session: SparkSession, group: RewriteGroup, partitions: Sequence[Partition]) -> None:
        """Runs one OPTIMIZE command for some partitions of a group."""
        from deltaworks.tables.spark_session import override_settings

        where = f" WHERE {partition_predicate(partitions, self._layout.types)}" if self._layout.partition_by else ""
        names = () if self._layout.cluster_by else group.columns
        by = f" ZORDER BY ({', '.join(f'`{name}`' for name in names)})" if names else ""
        with override_settings(session, self._spark_settings(group)):
            session.sql(f"OPTIMIZE delta.`{self._lake.storage.spark_uri(self._key)}`{where}{by}").collect()

    def _spark_settings(self, group: RewriteGroup) -> dict[str, str]:
        from deltaworks.tables.spark_session import USER_METADATA

        prefix = "spark.databricks.delta.optimize"
        order = {_PARQUET_BLOCK_SIZE: str(ORDERED_BLOCK_BYTES), _SORT_WITHIN_FILES: "true"}
        return (order if group.action == "zorder" else {}) | {
            USER_METADATA: self._commit_metadata(group),
            f"{prefix}.maxFileSize": str(self._policy.target_file_bytes),
            f"{prefix}.minFileSize": str(self._merge_below_bytes),
            f"{prefix}.maxDeletedRowsRatio": str(self._policy.deleted_share),
            f"{prefix}.batchSize": str(BYTES_PER_COMMIT),
        }

    def _commit_metadata(self, group: RewriteGroup) -> str:
        return user_metadata(pipeline=self._pipeline, batch=group.after_version, operation=OPTIMIZE, group=group.name)


#: Engines in the `engine` text of a result.
SPARK, THIS_PROCESS, LEFT_TO_SPARK = "Spark", "this process", "left to Spark"


def _engine_of(action: Action, spark_reason: str) -> tuple[str, str]:
    """Returns the engine that rewrote a partition, and its work with the reason."""
    if action == "zorder":
        return SPARK, "Z-ordered"
    if spark_reason:
        return SPARK, f"compacted ({spark_reason})"
    return THIS_PROCESS, f"compacted (at most {MAX_BYTES_PER_PARTITION >> 20} MiB of small files each)"


def describe_engines(work: Counter[tuple[str, str]]) -> str:
    """Returns the work of each engine, such as `Spark: 2 partitions Z-ordered; this process: 1 partition compacted`."""
    return "; ".join(
        f"{engine}: {_describe_work(counts)}"
        for engine in (SPARK, THIS_PROCESS, LEFT_TO_SPARK)
        if (counts := [(text, count) for (name, text), count in work.items() if name == engine])
    )


def _describe_work(counts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{count_partitions(count)} {text}" for text, count in counts)


def _group_partitions(chosen: Sequence[PartitionChoice], max_bytes: int) -> Iterator[list[PartitionChoice]]:
    """Groups partitions by action. A group has at most `max_bytes`, or a single larger partition."""
    for action in dict.fromkeys(choice.action for choice in chosen):
        bound = max_bytes if action in SPARK_ACTIONS else min(max_bytes, BYTES_PER_SMALL_GROUP)
        group: list[PartitionChoice] = []
        group_bytes = 0
        for choice in (choice for choice in chosen if choice.action == action):
            if group and (group_bytes + choice.bytes_rewritten > bound or len(group) >= PARTITIONS_PER_GROUP):
                yield group
                group, group_bytes = [], 0
            group.append(choice)
            group_bytes += choice.bytes_rewritten
        if group:
            yield group


def optimize_table(
    spark: SessionFactory | None,
    lake: Lake,
    pipeline: str,
    layout: Layout,
    *,
    acquire_turn: TurnFactory = uncontested_turn,
) -> OptimizeResult:
    """Runs OPTIMIZE on all partitions of a table that need it, for a job that holds the table exclusively. Idempotent.

    Args:
        spark: None leaves partitions that need Spark to another run.
        acquire_turn: acquires the write turn for each group.
    """
    policy = OptimizePolicy().inline()
    ledger = ZOrderLedger(lake, PipelineHome.open(lake.storage, pipeline), writer="mutations")
    ledger.record_interrupted()
    health = table_health(lake, paths.table(pipeline, layout.name), history_commits=0)
    choice = choose_partitions(
        health, layout, ledger=read_ledger(lake, pipeline).table_state(layout.name), now=utc_now(), policy=policy
    )
    result = OptimizeResult(table=layout.name, round=policy.round, reason=choice.reason)
    if not choice.partitions:
        return result
    optimizer = TableOptimizer(spark, lake, ledger, pipeline, layout, policy=policy, acquire_turn=acquire_turn)
    return optimizer.run(choice.partitions, result)
