"""The Z-order ledger: a Delta table per pipeline that records which partitions OPTIMIZE has rewritten, and how fast.

Delta's Z-order rewrites complete partitions on every run. The ledger stores the state of each partition after Z-order,
so ordered partitions are recognized, and the duration, so nights can be planned. It has one row per partition and
commit.

A process can die between a commit and its ledger row. So `begin` records the group before its first commit, and the
next run's `record_interrupted` finds the commits in the log and writes the rows.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.provenance import current_run, user_metadata
from deltaworks.control.records.store import StateRecord
from deltaworks.maintenance.table_health.measure import PartitionHealth
from deltaworks.specs.descriptions import control_description
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.changes import Partition, RewrittenPartition, rewritten_partitions
from deltaworks.tables.commit import Step
from deltaworks.tables.descriptions import ensure_described
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
#: Number of newest runs that determine the rates. Older runs are ignored, because machines and tables change.
_RATE_RUNS = 30
#: Smaller runs measure the fixed cost of a command, larger ones the byte rate.
_LARGE_RUN_BYTES = 64 << 20
#: Actions on a partition: order all files, or merge small ones (`compact_small` without Spark).
Action = Literal["zorder", "compact", "compact_small"]
#: Actions that need Spark.
SPARK_ACTIONS: frozenset[Action] = frozenset({"zorder", "compact"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedPartition:
    """The state of a partition right after Z-order, with its version.

    A partition is unchanged while count, bytes and newest time of its files are equal: no file was added, removed or
    restored. Comparing them reads no commit.
    """

    columns: tuple[str, ...]
    version: int
    files: int
    bytes: int
    newest_file_at: datetime
    at: datetime

    def is_unchanged(self, health: PartitionHealth) -> bool:
        """Whether the partition has exactly the files that Z-order wrote."""
        recorded = (self.files, self.bytes, self.newest_file_at)
        return recorded == (health.files, health.bytes, health.newest_file_at)

    def unordered_share(self, health: PartitionHealth) -> float:
        """Returns the approximate share (0 to 1) of unordered bytes.

        If files were only added, this is the share of new files. If files may have been removed or rewritten, it is 1.
        """
        if self.is_unchanged(health):
            return 0.0
        fewer = health.files <= self.files or health.bytes <= self.bytes
        # The newest ordered file no longer exists, because the table was restored.
        if fewer or health.newest_file_at < self.newest_file_at:
            return 1.0
        return 1.0 - self.bytes / health.bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteRate:
    """The speed of rewriting: fixed seconds per partition, and bytes per second."""

    seconds_per_partition: float
    bytes_per_second: float

    def seconds(self, size: int) -> float:
        """Returns the seconds to rewrite a partition of `size` bytes."""
        return self.seconds_per_partition + size / self.bytes_per_second


#: Rates before the first measured run: two cores and a local disk.
DEFAULT_RATES: Mapping[Action, RewriteRate] = {
    "zorder": RewriteRate(seconds_per_partition=1.0, bytes_per_second=12e6),
    "compact": RewriteRate(seconds_per_partition=0.5, bytes_per_second=25e6),
    "compact_small": RewriteRate(seconds_per_partition=0.05, bytes_per_second=25e6),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ZOrderState:
    """The ledger state of one table: ordered partitions, and the rates of runs."""

    ordered: Mapping[Partition, OrderedPartition] = field(default_factory=dict)
    rates: Mapping[Action, RewriteRate] = field(default_factory=lambda: dict(DEFAULT_RATES))


class RewriteGroup(StateRecord):
    """Partitions that one command rewrites. The metadata of its commits contains `name`."""

    name: str
    table: str
    action: Action
    columns: tuple[str, ...]
    after_version: int
    round: str
    run: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerState:
    """The content of a pipeline's ledger: ordered partitions by table, and the measured rates."""

    ordered: Mapping[str, Mapping[Partition, OrderedPartition]]
    rates: Mapping[Action, RewriteRate]

    def table_state(self, table: str) -> ZOrderState:
        """Returns the state of one table, with the pipeline's rates."""
        return ZOrderState(ordered=self.ordered.get(table, {}), rates=self.rates)


def read_ledger(lake: Lake, pipeline: str) -> LedgerState:
    """Reads a pipeline's ledger. Needs no JVM."""
    rows = lake.rows(paths.zorder_ledger(pipeline))
    return ledger_state_from_rows([] if rows is None else rows.to_pylist())


def ledger_state_from_rows(rows: Iterable[Mapping[str, Any]]) -> LedgerState:
    """Builds the state from ledger rows. The newest version that ordered a partition counts."""
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


def _rewrite_rate(rows: Sequence[Mapping[str, Any]], action: Action, default: RewriteRate) -> RewriteRate:
    """Computes a rate from the newest runs: fixed seconds from small runs, bytes per second from large ones."""
    newest = [row for row in sorted(rows, key=lambda row: row["at"]) if row["action"] == action and row["seconds"] > 0]
    newest = newest[-_RATE_RUNS:]
    small = [row["seconds"] for row in newest if row["bytes_before"] < _LARGE_RUN_BYTES]
    fixed = statistics.median(small) if small else default.seconds_per_partition
    rates = [
        row["bytes_before"] / max(row["seconds"] - fixed, row["seconds"] / 2)
        for row in newest
        if row["bytes_before"] >= _LARGE_RUN_BYTES
    ]
    return RewriteRate(
        seconds_per_partition=fixed,
        bytes_per_second=statistics.median(rates) if rates else default.bytes_per_second,
    )


class ZOrderLedger:
    """The ledger of one pipeline. Not thread-safe; at most one process per `writer`.

    Args:
        writer: separates concurrent writers: the nightly run, and mutations under their write turn.
    """

    def __init__(self, lake: Lake, home: PipelineHome, *, writer: str = "maintenance") -> None:
        self._lake = lake
        self._objects = home.objects
        self._pipeline = home.pipeline
        self._key = paths.zorder_ledger(home.pipeline)
        self._pending_group_key = paths.zorder_group(home.pipeline, writer)
        self._app_id = f"{home.pipeline}/{TABLE}/{writer}"

    def seconds_of_run(self, run: str, round_name: str) -> float:
        """Returns the seconds that a round has taken so far, over all attempts of a task; 0 for a manual run."""
        task = task_of_try(run)
        rows = self._lake.rows(self._key, columns=["run", "round", "seconds"]) if task else None
        if rows is None:
            return 0.0
        runs = zip(rows.column("run").to_pylist(), rows.column("round").to_pylist(), strict=True)
        is_own_run = pa.array([(task_of_try(name), kind) == (task, round_name) for name, kind in runs], pa.bool_())
        return float(pc.sum(rows.filter(is_own_run).column("seconds")).as_py() or 0.0)

    def begin(self, group: RewriteGroup) -> None:
        """Records the group before its first commit."""
        self._objects.put(self._pending_group_key, group.encode())

    def record_interrupted(self) -> int:
        """Writes the missing ledger rows of a group whose process died after its commits. Returns the number of
        partitions.
        """
        group = RewriteGroup.read(self._objects, self._pending_group_key)
        if group is None:
            return 0
        rewritten = self.rewritten(group)
        self.record(group, rewritten, seconds=0.0)
        return len(rewritten)

    def rewritten(self, group: RewriteGroup) -> list[RewrittenPartition]:
        """Returns the partitions rewritten by a group's commits, from the table's log."""
        key = paths.table(self._pipeline, group.table)
        return rewritten_partitions(self._lake, key, after_version=group.after_version, group=group.name)

    def record(self, group: RewriteGroup, rewritten: Sequence[RewrittenPartition], *, seconds: float) -> None:
        """Records the result of a group. Its seconds are divided among the partitions by bytes."""
        if rewritten:
            self._append(self._rows(group, rewritten, seconds))
        self._objects.delete(self._pending_group_key)

    def _rows(
        self, group: RewriteGroup, rewritten: Sequence[RewrittenPartition], seconds: float
    ) -> list[dict[str, Any]]:
        at: datetime = utc_now()
        # Plus one, so that empty partitions get a share of the seconds.
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
        table = ensure_described(
            self._lake, self._key, ZORDER_LEDGER_SCHEMA, control_description("zorder_ledger"), user_metadata=metadata
        )
        step = Step(self._app_id, (table.transaction_version(self._app_id) or 0) + 1)
        data = pa.Table.from_pylist(rows, schema=ZORDER_LEDGER_SCHEMA)
        self._lake.append(table, self._key, data, step=step, user_metadata=metadata)


def task_of_try(run: str) -> str:
    """Returns `dag/run/task` for `dag/run/task/try`; empty for a manual run."""
    return run.rpartition("/")[0]


def _encode_partition(partition: Partition) -> str:
    return json.dumps(dict(partition), sort_keys=True)


def _decode_partition(text: str) -> Partition:
    return tuple(sorted(json.loads(text).items()))
