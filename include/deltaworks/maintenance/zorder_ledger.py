"""The Z-order ledger: what OPTIMIZE did with which partition, a Delta table of each pipeline.

Delta's Z-order rewrites whole partitions each time it runs. The ledger records the state it left, so that an ordered
partition is recognised, and how long that took, so that a night can be planned. One row for each partition of each
commit.

A run that dies between a commit and its row would order the partition once more. So it first records which commit comes
next (`begin`), and the next run searches for that commit only (`settle`) and makes the row from the log.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.provenance import current_run, user_metadata
from deltaworks.maintenance.table_health.measure import PartitionHealth
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.changes import Partition, RewrittenPartition, rewritten_partitions
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake

TABLE = "zorder_ledger"
OPERATION = "record_optimize"
ZORDER_LEDGER_SCHEMA = arrow_schema(
    {
        "table_name": "string",
        "partition": "string",
        "action": "string",
        "columns": "array<string>",
        "version": "long",
        "files_before": "long",
        "bytes_before": "long",
        "files": "long",
        "bytes": "long",
        "newest_file_at": "timestamp",
        "seconds": "double",
        "round": "string",
        "group": "string",
        "run": "string",
        "at": "timestamp",
    }
)
#: Paces are computed from this many newest runs: machines and tables change.
_PACE_RUNS = 30
#: Smaller runs measure a command's fixed cost, larger ones the rate at which bytes are rewritten.
_LARGE_RUN_BYTES = 64 << 20
#: What OPTIMIZE does with a partition: order all its files, or merge its small ones; `compact_small` without Spark.
Action = Literal["zorder", "compact", "compact_small"]
#: Those that need Spark.
SPARK_ACTIONS: frozenset[Action] = frozenset({"zorder", "compact"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedPartition:
    """The state in which Z-order left a partition, and the version it did.

    It is recognised by the count, the bytes and the newest time of its files. While the health of the partition shows
    these three, no file has been added, removed or restored since. No commit has to be read for it.
    """

    columns: tuple[str, ...]
    version: int
    files: int
    bytes: int
    newest_file_at: datetime
    at: datetime

    def is_unchanged(self, health: PartitionHealth) -> bool:
        """Whether the partition holds exactly the files that Z-order left."""
        recorded = (self.files, self.bytes, self.newest_file_at)
        return recorded == (health.files, health.bytes, health.newest_file_at)

    def unordered_share(self, health: PartitionHealth) -> float:
        """The approximate share (0 to 1) of the partition's bytes that is not in order.

        It is the share of new files where files were only added, and 1 where any may have been removed or rewritten.
        """
        if self.is_unchanged(health):
            return 0.0
        fewer = health.files <= self.files or health.bytes <= self.bytes
        # Without a file as new as the newest one left, that one is gone: the table was restored.
        if fewer or health.newest_file_at < self.newest_file_at:
            return 1.0
        return 1.0 - self.bytes / health.bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteRate:
    """The speed of rewriting: a fixed time for each partition, and a rate of bytes."""

    seconds_per_partition: float
    bytes_per_second: float

    def seconds(self, size: int) -> float:
        """Seconds to rewrite one partition of `size` bytes."""
        return self.seconds_per_partition + size / self.bytes_per_second


#: Used until a run has been measured: two cores and local disk.
DEFAULT_RATES: Mapping[Action, RewriteRate] = {
    "zorder": RewriteRate(seconds_per_partition=1.0, bytes_per_second=12e6),
    "compact": RewriteRate(seconds_per_partition=0.5, bytes_per_second=25e6),
    "compact_small": RewriteRate(seconds_per_partition=0.05, bytes_per_second=25e6),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ZOrderState:
    """The state of one table by the ledger: its ordered partitions, and the pace of runs."""

    ordered: Mapping[Partition, OrderedPartition] = field(default_factory=dict)
    rates: Mapping[Action, RewriteRate] = field(default_factory=lambda: dict(DEFAULT_RATES))


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteGroup:
    """Partitions of a table that one command rewrites. Its commits carry `name`."""

    name: str
    table: str
    action: Action
    columns: tuple[str, ...]
    after_version: int
    round: str
    run: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerState:
    """The contents of a pipeline's ledger: the ordered partitions of its tables, and the pace of its runs."""

    ordered: Mapping[str, Mapping[Partition, OrderedPartition]]
    rates: Mapping[Action, RewriteRate]

    def table_state(self, table: str) -> ZOrderState:
        """The state of one table, with the paces of the whole pipeline."""
        return ZOrderState(ordered=self.ordered.get(table, {}), rates=self.rates)


def read_ledger(lake: Lake, pipeline: str) -> LedgerState:
    """Read a pipeline's ledger. Needs no JVM."""
    rows = lake.rows(paths.zorder_ledger(pipeline))
    return ledger_state_from_rows([] if rows is None else rows.to_pylist())


def ledger_state_from_rows(rows: Iterable[Mapping[str, Any]]) -> LedgerState:
    """The order by these rows of a ledger; the newest version that ordered a partition counts."""
    by_version = sorted(rows, key=lambda row: (row["version"], row["at"]))
    ordered: dict[str, dict[Partition, OrderedPartition]] = {}
    for row in by_version:
        partitions = ordered.setdefault(row["table_name"], {})
        if row["action"] != "zorder":
            continue
        partitions[_decode_partition(row["partition"])] = OrderedPartition(
            columns=tuple(row["columns"] or ()),
            version=row["version"],
            files=row["files"],
            bytes=row["bytes"],
            newest_file_at=row["newest_file_at"],
            at=row["at"],
        )
    paces: dict[Action, RewriteRate] = {
        action: _rewrite_rate(by_version, action, guess) for action, guess in DEFAULT_RATES.items()
    }
    return LedgerState(ordered=ordered, rates=paces)


def _rewrite_rate(rows: Sequence[Mapping[str, Any]], action: Action, guess: RewriteRate) -> RewriteRate:
    """The pace of the newest runs: small ones give the cost of a partition, large ones that of bytes."""
    newest = [row for row in sorted(rows, key=lambda row: row["at"]) if row["action"] == action and row["seconds"] > 0]
    newest = newest[-_PACE_RUNS:]
    small = [row["seconds"] for row in newest if row["bytes_before"] < _LARGE_RUN_BYTES]
    fixed = statistics.median(small) if small else guess.seconds_per_partition
    rates = [
        row["bytes_before"] / max(row["seconds"] - fixed, row["seconds"] / 2)
        for row in newest
        if row["bytes_before"] >= _LARGE_RUN_BYTES
    ]
    return RewriteRate(
        seconds_per_partition=fixed,
        bytes_per_second=statistics.median(rates) if rates else guess.bytes_per_second,
    )


class ZOrderLedger:
    """One pipeline's ledger, written by one process at a time under each `writer`. Not safe to share between threads.

    Args:
        writer: separates concurrent writers: the nightly run, and mutations within their write turn.
    """

    def __init__(self, lake: Lake, home: PipelineHome, *, writer: str = "maintenance") -> None:
        self._lake = lake
        self._objects = home.objects
        self._pipeline = home.pipeline
        self._key = paths.zorder_ledger(home.pipeline)
        self._pending_group_key = paths.zorder_group(home.pipeline, writer)
        self._app_id = f"{home.pipeline}/{TABLE}/{writer}"

    def seconds_of_run(self, run: str, round_name: str) -> float:
        """Seconds that the commands of a round took so far in all tries of a task; 0 for a run by hand."""
        task = task_of_try(run)
        rows = self._lake.rows(self._key, columns=["run", "round", "seconds"]) if task else None
        if rows is None:
            return 0.0
        runs = zip(rows.column("run").to_pylist(), rows.column("round").to_pylist(), strict=True)
        mine = pa.array([(task_of_try(name), kind) == (task, round_name) for name, kind in runs], pa.bool_())
        return float(pc.sum(rows.filter(mine).column("seconds")).as_py() or 0.0)

    def begin(self, group: RewriteGroup) -> None:
        """Record that the commits of a group come next."""
        self._objects.put(self._pending_group_key, json.dumps(asdict(group)).encode())

    def record_interrupted(self) -> int:
        """Record a group whose run died after its commits, from the log. Returns the number of its partitions."""
        begun = self._objects.get(self._pending_group_key)
        if begun is None:
            return 0
        record = json.loads(begun.data)
        group = RewriteGroup(**{**record, "columns": tuple(record["columns"])})
        rewritten = self.rewritten(group)
        self.record(group, rewritten, seconds=0.0)
        return len(rewritten)

    def rewritten(self, group: RewriteGroup) -> list[RewrittenPartition]:
        """The partitions as the commits of a group left them, from the log of its table."""
        key = paths.table(self._pipeline, group.table)
        return rewritten_partitions(self._lake, key, after_version=group.after_version, group=group.name)

    def record(self, group: RewriteGroup, rewritten: Sequence[RewrittenPartition], *, seconds: float) -> None:
        """Record the result of a group. Its seconds are divided by bytes."""
        if rewritten:
            self._append(self._rows(group, rewritten, seconds))
        self._objects.delete(self._pending_group_key)

    def _rows(
        self, group: RewriteGroup, rewritten: Sequence[RewrittenPartition], seconds: float
    ) -> list[dict[str, Any]]:
        at: datetime = utc_now()
        # One more for each partition, so that those without bytes get a share too.
        total = sum(partition.bytes_before + 1 for partition in rewritten)
        return [
            {
                "table_name": group.table,
                "partition": _encode_partition(partition.partition),
                "action": group.action,
                "columns": list(group.columns),
                "version": partition.version,
                "files_before": partition.files_before,
                "bytes_before": partition.bytes_before,
                "files": partition.files,
                "bytes": partition.bytes,
                "newest_file_at": partition.newest_file_at,
                "seconds": seconds * (partition.bytes_before + 1) / total,
                "round": group.round,
                "group": group.name,
                "run": group.run or current_run(),
                "at": at,
            }
            for partition in rewritten
        ]

    def _append(self, rows: list[dict[str, Any]]) -> None:
        metadata = user_metadata(pipeline=self._pipeline, batch=rows[0]["group"], operation=OPERATION)
        table = self._lake.ensure(self._key, ZORDER_LEDGER_SCHEMA, user_metadata=metadata)
        step = Step(self._app_id, (table.transaction_version(self._app_id) or 0) + 1)
        data = pa.Table.from_pylist(rows, schema=ZORDER_LEDGER_SCHEMA)
        self._lake.append(table, self._key, data, step=step, user_metadata=metadata)


def task_of_try(run: str) -> str:
    """`dag/run/task` of `dag/run/task/try`; empty for a run by hand."""
    return run.rpartition("/")[0]


def _encode_partition(partition: Partition) -> str:
    return json.dumps(dict(partition), sort_keys=True)


def _decode_partition(text: str) -> Partition:
    return tuple(sorted(json.loads(text).items()))
