"""The Z-order ledger: what OPTIMIZE did with which partition, a Delta table of each pipeline.

Delta's Z-order rewrites whole partitions each time it runs. The ledger says what it left, so that this is found again
(`zorder_state`), and how long that took, so that a night can be planned. One row for each partition of each commit.

A run that dies between a commit and its row would order the partition once more. So it first says which commit comes
next (`begin`), and the run after it looks for that one alone (`settle`): the row is made from the log.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.provenance import current_run, user_metadata
from deltaworks.maintenance.zorder_state import FIRST_GUESS, Action, Ordered, Pace, ZOrderState
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
#: Paces are those of the newest runs: machines and tables change.
_RUNS_LOOKED_AT = 30
#: Below this a command's fixed cost is what is measured, above it how fast bytes are rewritten.
_LARGE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Partitions of a table that one command takes. `name` is in the commits it makes."""

    name: str
    table: str
    action: Action
    columns: tuple[str, ...]
    after_version: int
    round: str
    run: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownOrder:
    """What a pipeline's ledger knows: the order of its tables, and how fast its runs were."""

    ordered: Mapping[str, Mapping[Partition, Ordered]]
    paces: Mapping[Action, Pace]

    def of(self, table: str) -> ZOrderState:
        """What it knows of one table, whose rewriting goes at the pipeline's pace."""
        return ZOrderState(ordered=self.ordered.get(table, {}), paces=self.paces)


def read_order(lake: Lake, pipeline: str) -> KnownOrder:
    """What a pipeline's ledger knows. Needs no JVM."""
    rows = lake.rows(paths.pipeline_control(pipeline, TABLE))
    return known_order([] if rows is None else rows.to_pylist())


def known_order(rows: Iterable[Mapping[str, Any]]) -> KnownOrder:
    """What these rows say together: of each partition the newest version that ordered it."""
    kept = sorted(rows, key=lambda row: (row["version"], row["at"]))
    ordered: dict[str, dict[Partition, Ordered]] = {}
    for row in kept:
        known = ordered.setdefault(row["table_name"], {})
        if row["action"] != "zorder":
            continue
        known[_partition_of(row["partition"])] = Ordered(
            columns=tuple(row["columns"] or ()),
            version=row["version"],
            files=row["files"],
            bytes=row["bytes"],
            newest_file_at=row["newest_file_at"],
            at=row["at"],
        )
    paces: dict[Action, Pace] = {action: _pace(kept, action, guess) for action, guess in FIRST_GUESS.items()}
    return KnownOrder(ordered=ordered, paces=paces)


def _pace(rows: Sequence[Mapping[str, Any]], action: Action, guess: Pace) -> Pace:
    """How fast the newest runs were. Those that moved little tell the cost of a partition, the others that of bytes."""
    newest = [row for row in sorted(rows, key=lambda row: row["at"]) if row["action"] == action and row["seconds"] > 0]
    newest = newest[-_RUNS_LOOKED_AT:]
    small = [row["seconds"] for row in newest if row["bytes_before"] < _LARGE_BYTES]
    fixed = statistics.median(small) if small else guess.seconds_per_partition
    rates = [
        row["bytes_before"] / max(row["seconds"] - fixed, row["seconds"] / 2)
        for row in newest
        if row["bytes_before"] >= _LARGE_BYTES
    ]
    return Pace(
        seconds_per_partition=fixed,
        bytes_per_second=statistics.median(rates) if rates else guess.bytes_per_second,
    )


class ZOrderLedger:
    """One pipeline's ledger, written by one process at a time under each `writer`. Not safe to share between threads.

    Args:
        writer: tells apart who writes at the same time: the night, and mutations within their write turn.
    """

    def __init__(self, lake: Lake, objects: ObjectStore, pipeline: str, *, writer: str = "maintenance") -> None:
        self._lake = lake
        self._objects = objects
        self._pipeline = pipeline
        self._key = paths.pipeline_control(pipeline, TABLE)
        self._begun = paths.pipeline_control(pipeline, f"maintenance/group-{writer}.json")
        self._app_id = f"{pipeline}/{TABLE}/{writer}"

    def seconds_of_run(self, run: str, round_name: str) -> float:
        """How long the commands of a round took so far, all tries of a task together; 0 for a run by hand."""
        whole = run_of_try(run)
        rows = self._lake.rows(self._key, columns=["run", "round", "seconds"]) if whole else None
        if rows is None:
            return 0.0
        told = zip(rows.column("run").to_pylist(), rows.column("round").to_pylist(), strict=True)
        mine = pa.array([(run_of_try(each), kind) == (whole, round_name) for each, kind in told], pa.bool_())
        return float(pc.sum(rows.filter(mine).column("seconds")).as_py() or 0.0)

    def begin(self, group: Group) -> None:
        """Say that the commits of a group come next."""
        self._objects.put(self._begun, json.dumps(asdict(group)).encode())

    def settle(self) -> int:
        """Make the rows of a group whose run died before it made them, from what it committed; how many partitions."""
        found = self._objects.get(self._begun)
        if found is None:
            return 0
        given = json.loads(found.data)
        group = Group(**{**given, "columns": tuple(given["columns"])})
        rewritten = self.rewritten(group)
        self.record(group, rewritten, seconds=0.0)
        return len(rewritten)

    def rewritten(self, group: Group) -> list[RewrittenPartition]:
        """What the commits of a group left in each partition, read from the log of its table."""
        key = paths.table(self._pipeline, group.table)
        return rewritten_partitions(self._lake, key, after_version=group.after_version, group=group.name)

    def record(self, group: Group, rewritten: Sequence[RewrittenPartition], *, seconds: float) -> None:
        """Keep what a group did. Its seconds are shared out by bytes."""
        if rewritten:
            self._append(self._rows(group, rewritten, seconds))
        self._objects.delete(self._begun)

    def _rows(self, group: Group, rewritten: Sequence[RewrittenPartition], seconds: float) -> list[dict[str, Any]]:
        at: datetime = utc_now()
        # One for each, so that partitions without bytes share too.
        total = sum(each.bytes_before + 1 for each in rewritten)
        return [
            {
                "table_name": group.table,
                "partition": _name_of(each.partition),
                "action": group.action,
                "columns": list(group.columns),
                "version": each.version,
                "files_before": each.files_before,
                "bytes_before": each.bytes_before,
                "files": each.files,
                "bytes": each.bytes,
                "newest_file_at": each.newest_file_at,
                "seconds": seconds * (each.bytes_before + 1) / total,
                "round": group.round,
                "group": group.name,
                "run": group.run or current_run(),
                "at": at,
            }
            for each in rewritten
        ]

    def _append(self, rows: list[dict[str, Any]]) -> None:
        made = user_metadata(pipeline=self._pipeline, batch=rows[0]["group"], operation=OPERATION)
        table = self._lake.ensure(self._key, ZORDER_LEDGER_SCHEMA, user_metadata=made)
        step = Step(self._app_id, (table.transaction_version(self._app_id) or 0) + 1)
        data = pa.Table.from_pylist(rows, schema=ZORDER_LEDGER_SCHEMA)
        self._lake.append(table, self._key, data, step=step, user_metadata=made)


def run_of_try(run: str) -> str:
    """`dag/run/task` of `dag/run/task/try`; empty for a run by hand."""
    return run.rpartition("/")[0]


def _name_of(partition: Partition) -> str:
    return json.dumps(dict(partition), sort_keys=True)


def _partition_of(text: str) -> Partition:
    return tuple(sorted(json.loads(text).items()))
