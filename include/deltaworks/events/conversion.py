"""Converts a chunk of events to table rows, and applies table rules and partition limits.

Events with the same set of tables are converted together, so a column shared by several tables is built once. An event
that one of its tables rejects is removed from all of them.

Rules are checked with one DuckDB query per chunk, which reads the Arrow columns without a copy. If a rule cannot be
evaluated for a row (for example a failed cast), the rule fails for that row only. Partitions of a task are limited,
because each one costs a file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from deltaworks.control.foreign_errors import redact_values
from deltaworks.errors import ContractError
from deltaworks.events.chunks import Chunk
from deltaworks.events.envelope import EnvelopeBuilder, EventTimes
from deltaworks.events.events import Router
from deltaworks.events.evolution import EvolvedColumns
from deltaworks.events.reasons import Reason, ReasonCode, RejectedEvent
from deltaworks.events.source_fields import lookup_fields
from deltaworks.events.table_columns import Reasons, SharedColumns, TableColumns
from deltaworks.events.task_findings import TaskFindings
from deltaworks.specs.mutation import NOTIFICATION_COLUMNS
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.record_sources import TEXT_FORMATS, RecordSourceSpec
from deltaworks.specs.table import TableRuleSpec, TableSpec, open_duckdb, select_item

if TYPE_CHECKING:
    from deltaworks.events.chunks import BatchMetadata

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


_ROWS = "rows_"


class RuleEngine:
    """The DuckDB connection that all tables of a task share. Opened on first use, because opening takes 20 ms."""

    def __init__(self) -> None:
        self._connection: duckdb.DuckDBPyConnection | None = None

    def evaluate(self, rows: pa.Table, expressions: Sequence[str]) -> list[pa.ChunkedArray]:
        """Evaluates each expression for every row. Results are in row order.

        Raises:
            duckdb.Error: an expression cannot be evaluated for some row.
        """
        if self._connection is None:
            self._connection = open_duckdb()
        connection = self._connection
        connection.register(_ROWS, rows)
        try:
            items = ", ".join(f"{expression} AS v{index}" for index, expression in enumerate(expressions))
            # DuckDB preserves the row order of a projection.
            answer = connection.sql(f"SELECT {items} FROM {_ROWS}").to_arrow_table()
        finally:
            connection.unregister(_ROWS)
        return list(answer.columns)


class RuleChecker:
    """Checks the rules of one table. Not thread-safe."""

    def __init__(self, table: TableSpec, engine: RuleEngine) -> None:
        self.rules = table.rules
        self._table = table.name
        self._engine = engine

    def failed_rows(self, rows: pa.Table) -> list[tuple[TableRuleSpec, list[int]]]:
        """Returns each failed rule with the indexes of its failing rows.

        Raises:
            ContractError: RULE_UNUSABLE, a rule cannot be evaluated for any row.
        """
        if not self.rules or not rows.num_rows:
            return []
        try:
            results = self._engine.evaluate(
                rows, [f"CAST({select_item(rule.check)} AS BOOLEAN)" for rule in self.rules]
            )
        except duckdb.Error:
            results = [self._evaluate_leniently(rows, rule) for rule in self.rules]
        failures = []
        for rule, result in zip(self.rules, results, strict=True):
            # A null result passes, as in a SQL CHECK constraint.
            indexes = pc.indices_nonzero(pc.invert(result).fill_null(False)).to_pylist()
            if indexes:
                failures.append((rule, indexes))
        return failures

    def _evaluate_leniently(self, rows: pa.Table, rule: TableRuleSpec) -> pa.ChunkedArray:
        """Evaluates one rule, so that rows for which it cannot be evaluated fail instead of raising."""
        lenient_check = f"TRY(coalesce(CAST({select_item(rule.check)} AS BOOLEAN), true))"
        try:
            (result,) = self._engine.evaluate(rows, [f"coalesce({lenient_check}, false)"])
        except duckdb.Error as error:
            raise ContractError(
                "RULE_UNUSABLE",
                f"Rule {rule.name!r} of table {self._table!r} cannot be evaluated: {redact_values(str(error))}",
            ) from None
        return result


def rule_failed_error(table: str, rule: TableRuleSpec, *, seq: int, position: int) -> ContractError:
    """Returns the error that stops the stream if a rule with `on_fail: fail` fails."""
    return ContractError(
        "RULE_FAILED", f"Event {position} of file event {seq} fails rule {rule.name!r} of table {table!r}: {rule.check}"
    )


#: Table name and rows.
TableRows = tuple[str, pa.Table]
RowIndexes = npt.NDArray[np.int64]
_NO_ROWS: RowIndexes = np.empty(0, np.int64)


@dataclass(slots=True)
class ConvertedChunk:
    """Result of converting a chunk: rows by table with sorted event indexes, and the reasons of rejected events by
    index.

    Attributes:
        unusable_time_rows: indexes of events whose unusable time was replaced by their arrival time.
        rejected: events that the row parser could not read.
        columnar_count: number of events that were decoded into structs and converted by columns.
        opted_out_rows: indexes of events dropped because their subject has opted out.
    """

    tables: dict[str, tuple[RowIndexes, pa.Table]] = field(default_factory=dict)
    reasons: Reasons = field(default_factory=dict)
    unusable_time_rows: list[int] = field(default_factory=list)
    rejected: list[RejectedEvent] = field(default_factory=list)
    columnar_count: int = 0
    redaction_counts: Counter[str] = field(default_factory=Counter)
    opted_out_rows: list[int] = field(default_factory=list)


class ChunkConverter:
    """Converts events of one pipeline. Counts the partitions written by the task; not thread-safe.

    Args:
        lossless_event: parses one event's bytes with its numbers as literals.
        redacted_event: same, with personal and private data removed.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        router: Router,
        *,
        evolved: EvolvedColumns | None,
        lossless_event: Callable[[bytes], Any],
        redacted_event: Callable[[bytes], Any],
        record_over_budget: Callable[[str], None],
    ) -> None:
        self._order = router.order
        self.times = EventTimes(spec)
        self._envelope = EnvelopeBuilder(spec, self.times, lossless_event)
        self._redacted_event = redacted_event
        self._partitions = PartitionLimiter.from_spec(spec, record_over_budget)
        values_are_text, lookup_result_fields = spec.source.format in TEXT_FORMATS, lookup_fields(spec)
        self.columns: Mapping[str, TableColumns] = {
            table.name: TableColumns(
                table,
                spec.event,
                (evolved or {}).get(table.name, ()),
                values_are_text=values_are_text,
                lookup_fields=lookup_result_fields,
            )
            for table in spec.event_tables
        }
        engine = RuleEngine()
        self._rules = {table.name: RuleChecker(table, engine) for table in spec.tables if table.rules}

    def convert_by_rows(self, chunk: Chunk, stamp: BatchMetadata) -> ConvertedChunk:
        """Converts a chunk whose events are all held as Python objects."""
        envelope, reasons, unusable = self._envelope.columns(chunk, stamp)
        parts: dict[str, list[tuple[RowIndexes, pa.Table]]] = {}
        for tables, indexes in self._table_groups(chunk):
            shared = SharedColumns([chunk.events[row] for row in indexes])
            rows = np.array(indexes, np.int64)
            row_envelope = envelope if len(rows) == len(chunk.events) else envelope.take(pa.array(rows))
            for name in tables:
                arrays, table_reasons = self.columns[name].convert(shared)
                table = pa.Table.from_arrays([*row_envelope.columns, *arrays], schema=self.columns[name].schema)
                parts.setdefault(name, []).append((rows, table))
                for index, new_reasons in table_reasons.items():
                    row_reasons = reasons.setdefault(indexes[index], [])
                    row_reasons.extend(reason for reason in new_reasons if reason not in row_reasons)
        return ConvertedChunk(self.merge_in_order(parts), reasons, unusable)

    def _table_groups(self, chunk: Chunk) -> Iterator[tuple[tuple[str, ...], list[int]]]:
        """Yields groups of tables with the indexes of the events to convert for all tables of the group."""
        # If tables have independent conditions, there can be more sets than tables; converting per table is then
        # cheaper.
        few = len(chunk.rows_by_table_set) <= len(self.columns)
        yield from (chunk.rows_by_table_set if few else chunk.rows_by_table(self._order)).items()

    def merge_in_order(
        self, parts: Mapping[str, Sequence[tuple[RowIndexes, pa.Table]]]
    ) -> dict[str, tuple[RowIndexes, pa.Table]]:
        """Concatenates the parts of each table, sorted by event index."""
        return {name: _concat_in_order(parts[name]) for name in self._order if name in parts}

    def accept_rows(
        self, chunk: Chunk, converted: ConvertedChunk, findings: TaskFindings
    ) -> tuple[list[TableRows], Reasons]:
        """Applies rules and partition limits. Returns the rows to commit per table, and the reasons of all rejected
        events.

        Raises:
            ContractError: RULE_FAILED or FIELD_UNDECLARED, if the table declares to fail; RULE_UNUSABLE.
        """
        reasons = converted.reasons
        if self._rules:
            self._apply_rules(chunk, converted, findings)
        self._apply_partition_limits(converted)
        findings.unusable_times += sum(row not in reasons for row in converted.unusable_time_rows)
        errors, parts = _row_indexes(reasons), []
        for name in list(converted.tables):
            rows, fitting = _without_rejected(converted.tables.pop(name), errors)
            columns = self.columns[name]
            if fitting.num_rows and columns.keeps_undeclared_fields:
                events = [chunk.events[row] for row in rows]
                exact = partial(self._exact_event, [chunk.raw_values[row] for row in rows])
                fitting = columns.add_undeclared_fields(fitting, events, findings, exact)
            if fitting.num_rows:
                parts.append((name, columns.with_mutation_columns(fitting)))
        return parts, reasons

    def _exact_event(self, raws: Sequence[bytes], index: int) -> Any:
        return self._redacted_event(raws[index])

    def _apply_rules(self, chunk: Chunk, converted: ConvertedChunk, findings: TaskFindings) -> None:
        """Adds reasons for events that fail a table rule. Events that were rejected before are not checked."""
        reasons = converted.reasons
        errors = _row_indexes(reasons)
        warned: list[tuple[str, list[int]]] = []
        for name, checker in self._rules.items():
            if name not in converted.tables:
                continue
            rows, table = _without_rejected(converted.tables[name], errors)
            if not len(rows):
                continue
            for rule, indexes in checker.failed_rows(table):
                failing = rows[indexes].tolist()
                if rule.on_fail == "warn":
                    warned.append((f"{name}.{rule.name}", failing))
                    continue
                if rule.on_fail == "fail":
                    raise rule_failed_error(
                        name, rule, seq=chunk.seqs[failing[0]], position=chunk.positions[failing[0]]
                    )
                reason = Reason(ReasonCode.RULE, rule.name, f"{name}: not {rule.check}")
                for row in failing:
                    reasons.setdefault(row, []).append(reason)
        for rule_name, failing in warned:
            accepted_count = sum(row not in reasons for row in failing)
            if accepted_count:
                findings.rule_warnings[rule_name] += accepted_count

    def _apply_partition_limits(self, converted: ConvertedChunk) -> None:
        """Adds reasons for events whose partitions exceed the limit of a table."""
        for name, table in converted.tables.items():
            rows, fitting = _without_rejected(table, _row_indexes(converted.reasons))
            for index, reason in self._partitions.rows_over_limit(name, fitting):
                converted.reasons.setdefault(int(rows[index]), []).append(reason)


def _concat_in_order(parts: Sequence[tuple[RowIndexes, pa.Table]]) -> tuple[RowIndexes, pa.Table]:
    if len(parts) == 1:
        return parts[0]
    rows, table = np.concatenate([indexes for indexes, _ in parts]), pa.concat_tables([part for _, part in parts])
    if (np.diff(rows) > 0).all():
        return rows, table
    order = np.argsort(rows, kind="stable")
    return rows[order], table.combine_chunks().take(pa.array(order))


def _row_indexes(reasons: Collection[int]) -> RowIndexes:
    return np.fromiter(reasons, np.int64, len(reasons)) if reasons else _NO_ROWS


def _without_rejected(table: tuple[RowIndexes, pa.Table], errors: RowIndexes) -> tuple[RowIndexes, pa.Table]:
    """Returns a table's rows, and their event indexes, without rejected events."""
    if not len(errors):
        return table
    fits = ~np.isin(table[0], errors)
    return (table[0][fits], table[1].filter(pa.array(fits))) if not fits.all() else table
