"""From events of a chunk to rows of its tables: their columns, rules, partitions, and what tables keep of other fields.

Events that go to the same tables are converted together, so that a column that several of these tables have is made
once. An event that fits not every one of its tables is taken out of all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from deltaworks.events.chunks import Chunk
from deltaworks.events.envelope import Envelope
from deltaworks.events.event_times import EventTimes
from deltaworks.events.events import Router
from deltaworks.events.evolution import Evolved
from deltaworks.events.findings import Findings
from deltaworks.events.origins import answer_fields
from deltaworks.events.partitions import OpenPartitions
from deltaworks.events.reasons import Reason, ReasonCode, Rejected
from deltaworks.events.rules import RuleChecker, RuleEngine, rule_failed
from deltaworks.events.table_columns import Reasons, SharedColumns, TableColumns
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.sources.payload import TEXT_FORMATS

if TYPE_CHECKING:
    from deltaworks.events.parse import BatchStamp

#: Rows on their way to their table, by its name.
Part = tuple[str, pa.Table]
Rows = npt.NDArray[np.int64]
_NO_ROWS: Rows = np.empty(0, np.int64)


@dataclass(slots=True)
class Converted:
    """The rows of each table with the indexes of their events, in order; and the reasons of events that do not fit.

    `unusable` are events that have the time they arrived at in place of one of no use. `rejected` cannot be read after
    all. So many events have rows `by_columns`. `refused` are the indexes of those that were dropped by their columns.
    """

    tables: dict[str, tuple[Rows, pa.Table]] = field(default_factory=dict)
    reasons: Reasons = field(default_factory=dict)
    unusable: list[int] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    by_columns: int = 0
    stripped: Counter[str] = field(default_factory=Counter)
    refused: list[int] = field(default_factory=list)


class Conversion:
    """Converts events as a pipeline declares them. Used by one thread: partitions that are open are remembered.

    Args:
        exact_event: reads the bytes of one event again with its numbers as they were sent.
        masked_event: the same, of which nothing private is left.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        router: Router,
        *,
        evolved: Evolved | None,
        exact_event: Callable[[bytes], Any],
        masked_event: Callable[[bytes], Any],
        note_over_budget: Callable[[str], None],
    ) -> None:
        self._order = router.order
        self.times = EventTimes(spec)
        self._envelope = Envelope(spec, self.times, exact_event)
        self._masked_event = masked_event
        self._partitions = OpenPartitions.of(spec, note_over_budget)
        of_text, answers = spec.source.format in TEXT_FORMATS, answer_fields(spec)
        self.columns: Mapping[str, TableColumns] = {
            table.name: TableColumns(
                table, spec.event, (evolved or {}).get(table.name, ()), of_text=of_text, answers=answers
            )
            for table in spec.event_tables
        }
        engine = RuleEngine()
        self._rules = {table.name: RuleChecker(table, engine) for table in spec.tables if table.rules}

    def by_rows(self, chunk: Chunk, stamp: BatchStamp) -> Converted:
        """The columns of all events of a chunk."""
        envelope, reasons, unusable = self._envelope.columns(chunk, stamp)
        parts: dict[str, list[tuple[Rows, pa.Table]]] = {}
        for tables, some in self._together(chunk):
            shared = SharedColumns([chunk.events[row] for row in some])
            rows = np.array(some, np.int64)
            own = envelope if len(rows) == len(chunk.events) else envelope.take(pa.array(rows))
            for name in tables:
                arrays, of_table = self.columns[name].convert(shared)
                table = pa.Table.from_arrays([*own.columns, *arrays], schema=self.columns[name].schema)
                parts.setdefault(name, []).append((rows, table))
                for index, of_row in of_table.items():
                    noted = reasons.setdefault(some[index], [])
                    noted.extend(reason for reason in of_row if reason not in noted)
        return Converted(self.in_order(parts), reasons, unusable)

    def _together(self, chunk: Chunk) -> Iterator[tuple[tuple[str, ...], list[int]]]:
        """Events that are converted together, with their tables."""
        # Where conditions mix freely there are more sets of tables than tables.
        few = len(chunk.rows_by_tables) <= len(self.columns)
        yield from (chunk.rows_by_tables if few else chunk.rows_by_table(self._order)).items()

    def in_order(self, parts: Mapping[str, Sequence[tuple[Rows, pa.Table]]]) -> dict[str, tuple[Rows, pa.Table]]:
        """The parts of each table as one, its rows in the order of their events."""
        return {name: _in_order(parts[name]) for name in self._order if name in parts}

    def landing(self, chunk: Chunk, converted: Converted, findings: Findings) -> tuple[list[Part], Reasons]:
        """The rows of each table that land, and the reasons of all events that do not.

        Raises:
            ContractError: RULE_FAILED, FIELD_UNDECLARED where that is declared; RULE_UNUSABLE.
        """
        reasons = converted.reasons
        if self._rules:
            self._hold_to_rules(chunk, converted, findings)
        self._hold_to_partitions(converted)
        findings.unusable_times += sum(row not in reasons for row in converted.unusable)
        misfits, parts = _rows_of(reasons), []
        for name in list(converted.tables):
            rows, fitting = _fitting(converted.tables.pop(name), misfits)
            columns = self.columns[name]
            if fitting.num_rows and columns.keeps_other_fields:
                events = [chunk.events[row] for row in rows]
                exact = partial(self._exact_event, [chunk.raws[row] for row in rows])
                fitting = columns.complete(fitting, events, findings, exact)
            if fitting.num_rows:
                parts.append((name, columns.untouched(fitting)))
        return parts, reasons

    def _exact_event(self, raws: Sequence[bytes], index: int) -> Any:
        return self._masked_event(raws[index])

    def _hold_to_rules(self, chunk: Chunk, converted: Converted, findings: Findings) -> None:
        """Note the reasons of events that fail a rule; rows that do not fit anyway are held to none."""
        reasons = converted.reasons
        misfits = _rows_of(reasons)
        warned: list[tuple[str, list[int]]] = []
        for name, checker in self._rules.items():
            if name not in converted.tables:
                continue
            rows, table = _fitting(converted.tables[name], misfits)
            if not len(rows):
                continue
            for rule, places in checker.failing(table):
                failing = rows[places].tolist()
                if rule.on_fail == "warn":
                    warned.append((f"{name}.{rule.name}", failing))
                    continue
                if rule.on_fail == "fail":
                    raise rule_failed(name, rule, seq=chunk.seqs[failing[0]], position=chunk.positions[failing[0]])
                reason = Reason(ReasonCode.RULE, rule.name, f"{name}: not {rule.check}")
                for row in failing:
                    reasons.setdefault(row, []).append(reason)
        for rule_name, failing in warned:
            landing = sum(row not in reasons for row in failing)
            if landing:
                findings.rule_warnings[rule_name] += landing

    def _hold_to_partitions(self, converted: Converted) -> None:
        """Note the reasons of events that would go to one partition too many of a table."""
        for name, table in converted.tables.items():
            rows, fitting = _fitting(table, _rows_of(converted.reasons))
            for place, reason in self._partitions.beyond(name, fitting):
                converted.reasons.setdefault(int(rows[place]), []).append(reason)


def _in_order(parts: Sequence[tuple[Rows, pa.Table]]) -> tuple[Rows, pa.Table]:
    if len(parts) == 1:
        return parts[0]
    rows, table = np.concatenate([some for some, _ in parts]), pa.concat_tables([part for _, part in parts])
    if (np.diff(rows) > 0).all():
        return rows, table
    order = np.argsort(rows, kind="stable")
    return rows[order], table.combine_chunks().take(pa.array(order))


def _rows_of(reasons: Collection[int]) -> Rows:
    return np.fromiter(reasons, np.int64, len(reasons)) if reasons else _NO_ROWS


def _fitting(table: tuple[Rows, pa.Table], misfits: Rows) -> tuple[Rows, pa.Table]:
    """The rows of a table whose events are no misfits, with the indexes of these events."""
    if not len(misfits):
        return table
    fits = ~np.isin(table[0], misfits)
    return (table[0][fits], table[1].filter(pa.array(fits))) if not fits.all() else table
