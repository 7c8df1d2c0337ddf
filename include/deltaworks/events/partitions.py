"""Limits the number of partitions that a task writes, because each one costs a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from deltaworks.events.reasons import Reason, ReasonCode
from deltaworks.specs.mutation import NOTIFICATION_COLUMNS
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.sources.records import RecordSourceSpec

PARTITION_BUDGET = "max_partitions"
#: Partitions that each object may write beyond the shared limit. So a producer with events of one or two days is not
#: rejected because another object of the task has events of many days.
_PARTITIONS_PER_PAYLOAD = 3


class PartitionLimiter:
    """Limits the partitions per table that a task writes: a shared limit, and a few more per payload.

    Each partition costs a file, which later jobs have to open. Not thread-safe.

    Args:
        max_shared: partitions per table, first come first served.
        max_per_payload: further partitions per table that each payload may write.
        on_exceeded: called with the budget's name.
    """

    def __init__(
        self,
        partition_by: Mapping[str, Mapping[str, tuple[str, ...]]],
        *,
        max_shared: int,
        max_per_payload: int,
        on_exceeded: Callable[[str], None],
    ) -> None:
        self._partition_by = partition_by
        self._open_partitions: dict[str, set[tuple[Any, ...]]] = {}
        self._remaining_shared: dict[str, int] = {}
        self._opened_by_payload: Counter[tuple[str, int]] = Counter()
        self._max_shared = max_shared
        self._max_per_payload = max_per_payload
        self._on_exceeded = on_exceeded
        self._reported_seq: int | None = None

    @classmethod
    def from_spec(cls, spec: PipelineSpec, on_exceeded: Callable[[str], None]) -> Self:
        """Creates a limiter for a pipeline's tables. Notification tables count with the table they announce."""
        partition_by: dict[str, dict[str, tuple[str, ...]]] = {}
        for table in spec.tables:
            columns, data = table.partition_by, table.name
            if table.announces is not None:
                columns = tuple(name for name in columns if name not in NOTIFICATION_COLUMNS)
                data = table.announces.table
            if columns:
                partition_by.setdefault(data, {})[table.name] = columns
        # A stream record is a payload of one event, so a number of partitions per payload would not limit anything.
        max_per_payload = 0 if isinstance(spec.source, RecordSourceSpec) else _PARTITIONS_PER_PAYLOAD
        return cls(
            partition_by,
            max_shared=spec.source.budget.max_partitions,
            max_per_payload=max_per_payload,
            on_exceeded=on_exceeded,
        )

    def rows_over_limit(self, table: str, rows: pa.Table) -> list[tuple[int, Reason]]:
        """Returns the indexes of rows that exceed the limit of `table`, with the reason.

        The partitions of all other rows count against the limit from then on.
        """
        if not rows.num_rows:
            return []
        opening = self._partition_by.get(table, {})
        return [row for name, columns in opening.items() for row in self._rows_over_limit(name, columns, rows)]

    def _rows_over_limit(self, table: str, columns: tuple[str, ...], rows: pa.Table) -> list[tuple[int, Reason]]:
        present = self._open_partitions.setdefault(table, set())
        new = [key for key in _distinct_keys(rows, columns) if key not in present]
        remaining = self._remaining_shared.get(table, self._max_shared)
        present.update(new[:remaining])
        self._remaining_shared[table] = max(0, remaining - len(new))
        if len(new) <= remaining:
            return []
        indexes = self._rejected_indexes(table, columns, rows, frozenset(new[remaining:]))
        detail = f"{table}: the task already writes {self._max_shared} other partitions ({', '.join(columns)})"
        reason = Reason(ReasonCode.OVER_BUDGET, PARTITION_BUDGET, detail)
        for seq in pc.unique(rows.column("_seq").take(pa.array(indexes, pa.int64()))).to_pylist():
            # A payload's events are consecutive, but may be in several chunks.
            if seq != self._reported_seq:
                self._on_exceeded(PARTITION_BUDGET)
                self._reported_seq = seq
        return [(index, reason) for index in indexes]

    def _rejected_indexes(
        self, table: str, columns: tuple[str, ...], rows: pa.Table, over_limit: frozenset[tuple[Any, ...]]
    ) -> list[int]:
        """Returns which of the rows over the shared limit also exceed the limit of their payload."""
        present, indexes = self._open_partitions[table], []
        keys = zip(*(rows.column(name).to_pylist() for name in columns), strict=True)
        for index, (seq, key) in enumerate(zip(rows.column("_seq").to_pylist(), keys, strict=True)):
            if key not in over_limit or key in present:
                continue
            if self._opened_by_payload[table, seq] < self._max_per_payload:
                self._opened_by_payload[table, seq] += 1
                present.add(key)
            else:
                indexes.append(index)
        return indexes


def _distinct_keys(rows: pa.Table, columns: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """Returns the distinct values of these columns, in order of first occurrence."""
    if len(columns) == 1:
        return [(value,) for value in pc.unique(rows.column(columns[0])).to_pylist()]
    groups = rows.select(list(columns)).group_by(list(columns), use_threads=False).aggregate([])
    return list(zip(*(groups.column(name).to_pylist() for name in columns), strict=True))
