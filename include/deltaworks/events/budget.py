"""Parse budgets: limits on the work and memory that one payload may cost.

A crafted payload of a few bytes can cost minutes or gigabytes. Every framer counts its work against the budgets that
the source declares. Exceeding a budget yields one quarantine row that names the budget; events parsed before it are
kept. Budgets count operations and sizes, never time or the process's memory, so parsing a payload again yields the same
rows. A payload without any event before the limit becomes one row, which can be replayed. For other payloads,
reprocessing the object reads the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from deltaworks.events.reasons import ConversionError, ReasonCode
from deltaworks.specs.record_sources import BudgetSpec

#: Estimated memory of a decoded Python value, including its slot in a container: about 50 bytes for a number or short
#: text, 200 for an object with one field.
BYTES_PER_VALUE = 100
#: Scanned bytes that are charged for each attempt to parse at an offset, even if it fails at the first byte.
PARSE_ATTEMPT_BYTES = 128
#: Lower bound of scannable bytes, because broken events of small payloads are scanned many times. It allows 2,000
#: attempts (at most 30 ms), enough for the worst known payload of 5 KB.
_MIN_SCANNABLE_BYTES = 256 << 10

#: Default limits of records and values: a minimum for small payloads, a number per byte, and a maximum. A record takes
#: up to 16 us and a value 1 us, so a few kilobytes cost at most two seconds. Real records have more than one byte, even
#: compressed.
_MIN_RECORDS, _RECORDS_PER_BYTE, _MAX_RECORDS = 100_000, 1, 10_000_000
_MIN_VALUES, _VALUES_PER_BYTE, _MAX_VALUES = 2_000_000, 100, 1_000_000_000

#: A parsed value and its raw bytes.
FramedEvent = tuple[Any, bytes]


@dataclass(slots=True)
class EventRun:
    """Consecutive decoded events with their raw bytes, processed as a unit because common work is then done once."""

    events: list[Any] = field(default_factory=list)
    raws: list[bytes] = field(default_factory=list)
    size: int = 0

    def __len__(self) -> int:
        return len(self.events)

    def first(self, count: int) -> EventRun:
        """Returns a run with the first `count` events."""
        raws = self.raws[:count]
        return EventRun(self.events[:count], raws, sum(map(len, raws)))


def event_count(value: Any) -> int:
    """Returns the number of events in a framed value: the length of an `EventRun`, otherwise 1."""
    return len(value) if type(value) is EventRun else 1


@dataclass(frozen=True, slots=True)
class OverBudget:
    """Placeholder for events beyond a budget. Its `raw` is empty if the bytes of these events are unknown.

    Attributes:
        events: number of events it stands for; estimated if they were not framed.
    """

    raw: bytes
    budget: str
    detail: str
    events: int = 1


class BudgetExceededError(ConversionError):
    """Raised if a payload exceeds a budget. Its `unread` has the bytes not parsed, if the framer knows them; `events`
    the number of events that were not framed.
    """

    def __init__(self, budget: str, detail: str) -> None:
        super().__init__(ReasonCode.OVER_BUDGET, detail, path=budget)
        self.unread = b""
        self.events = 1


class Budget:
    """Counts the cost of one payload against its limits. Not thread-safe.

    Args:
        size: bytes of the payload; None if the input is part of a payload whose size was counted before.
        max_event_bytes: longer texts of a single event are rejected without parsing.
        on_exceeded: called once with the name of each exceeded budget.
    """

    __slots__ = (
        "_limits",
        "_max_records",
        "_max_values",
        "_on_exceeded",
        "_remaining_bytes",
        "_remaining_values",
        "_reported_budgets",
        "_scannable_bytes",
        "_size",
        "max_event_bytes",
    )

    def __init__(
        self,
        limits: BudgetSpec | None = None,
        *,
        size: int | None,
        max_event_bytes: int = 16 << 20,
        on_exceeded: Callable[[str], None] | None = None,
    ) -> None:
        self._limits = limits or BudgetSpec()
        self._size = size or 0
        self._scannable_bytes = max(_MIN_SCANNABLE_BYTES, self._limits.max_scans * self._size)
        self._remaining_bytes = self._scannable_bytes
        by_size = (_MAX_RECORDS, _MAX_VALUES)
        if size is not None:
            by_size = (
                min(_MAX_RECORDS, max(_MIN_RECORDS, _RECORDS_PER_BYTE * size)),
                min(_MAX_VALUES, max(_MIN_VALUES, _VALUES_PER_BYTE * size)),
            )
        self._max_records = self._limits.max_records or by_size[0]
        self._max_values = self._limits.max_values or by_size[1]
        self._remaining_values = self._max_values
        self._on_exceeded = on_exceeded
        self._reported_budgets: set[str] = set()
        self.max_event_bytes = max_event_bytes

    @property
    def max_decoded_bytes(self) -> int:
        """Limit of memory for decoded values, in bytes."""
        return self._limits.max_decoded_bytes

    def count_scanned(self, count: int) -> None:
        """Counts scanned bytes.

        Raises:
            BudgetExceededError: max_scans.
        """
        self._remaining_bytes -= count
        if self._remaining_bytes < 0:
            detail = (
                f"its {self._size} bytes were scanned {self._limits.max_scans} times without being parsed completely"
            )
            raise self.exceeded_error("max_scans", detail)

    def reserve_values(self, count: int) -> None:
        """Counts values that the caller is about to create.

        Raises:
            BudgetExceededError: max_values.
        """
        self._remaining_values -= count
        if self._remaining_values < 0:
            why = self._size_explanation(self._limits.max_values)
            raise self.exceeded_error("max_values", f"it has more than {self._max_values} values{why}")

    def check_announced_records(self, records: int) -> None:
        """Rejects a payload whose header announces too many records.

        Raises:
            BudgetExceededError: max_records.
        """
        if records > self._max_records:
            why = self._size_explanation(self._limits.max_records)
            detail = f"it has {records} records; at most {self._max_records} are allowed{why}"
            over = self.exceeded_error("max_records", detail)
            over.events = records
            raise over

    def may_exceed_memory(self, size: int) -> bool:
        """Returns whether a text of this size could contain so many values that they must be counted before
        decoding."""
        return size * (BYTES_PER_VALUE + 2) > self._limits.max_decoded_bytes

    def check_memory(self, size: int, values: int) -> None:
        """Raises if decoding would take too much memory.

        Args:
            size: bytes of text.
            values: number of values in the text.

        Raises:
            BudgetExceededError: max_decoded_bytes.
        """
        decoded_bytes = 2 * size + BYTES_PER_VALUE * values
        if decoded_bytes > self._limits.max_decoded_bytes:
            detail = (
                f"{values} values in {size} bytes take about {decoded_bytes} bytes; at most "
                f"{self._limits.max_decoded_bytes} are allowed"
            )
            raise self.exceeded_error("max_decoded_bytes", detail)

    def check_json_memory(self, text: bytes | str) -> None:
        """Calls `check_memory` for a JSON text. Its commas and brackets give an upper bound of the number of values.

        Raises:
            BudgetExceededError: max_decoded_bytes.
        """
        if self.may_exceed_memory(len(text)):
            marks: Iterator[int] = (
                map(text.count, ",[{") if isinstance(text, str) else map(text.count, (b",", b"[", b"{"))
            )
            self.check_memory(len(text), 1 + sum(marks))

    def reserve_values_of_text(self, payload: bytes, separators: Sequence[bytes]) -> None:
        """Calls `reserve_values` for all values of a text, counted by their separators.

        Raises:
            BudgetExceededError: max_values.
        """
        if len(payload) > self._max_values:
            self.reserve_values(sum(payload.count(mark) for mark in separators))

    def _size_explanation(self, declared: int | None) -> str:
        return "" if declared else f" in {self._size} bytes by default"

    def exceeded_error(self, budget: str, detail: str) -> BudgetExceededError:
        """Returns the error for an exceeded budget, and calls `on_exceeded` the first time."""
        if budget not in self._reported_budgets and self._on_exceeded is not None:
            self._reported_budgets.add(budget)
            self._on_exceeded(budget)
        return BudgetExceededError(budget, detail)

    def limit(self, events: Iterator[FramedEvent], payload: bytes) -> Iterator[FramedEvent]:
        """Yields events up to the budgets, then one `OverBudget` for all remaining events.

        Args:
            payload: bytes for the `OverBudget` if the payload has too many events.

        Raises:
            ConversionError: no event can be parsed; `BudgetExceededError` is a subclass.
        """
        yielded = size = 0
        try:
            for value, raw in events:
                count = event_count(value)
                if yielded + count > self._max_records:
                    if yielded < self._max_records:
                        yield value.first(self._max_records - yielded), raw
                    yielded = self._max_records
                    over = self.exceeded_error("max_records", f"it has more than {self._max_records} records")
                    over.unread = payload
                    over.events = _estimated_events(self._size - size, size, yielded)
                    raise over
                yield value, raw
                yielded += count
                # One byte separates two events.
                size += count + (value.size if type(value) is EventRun else len(raw))
        except BudgetExceededError as over:
            if not yielded:
                raise
            if over.unread is not payload:
                over.events = max(over.events, _estimated_events(len(over.unread), size, yielded))
            yield over_budget_event(over), over.unread


def _estimated_events(unread: int, size: int, events: int) -> int:
    """Estimates the number of events in unread bytes by the average size of the events before them."""
    return max(1, round(unread * events / size)) if size else 1


def over_budget_event(over: BudgetExceededError, raw: bytes | None = None, *, events: int | None = None) -> OverBudget:
    """Returns the placeholder for events that were not parsed.

    Args:
        raw: their bytes, if these are not the error's `unread`.
        events: their number, if it is not the error's.
    """
    return OverBudget(
        over.unread if raw is None else raw, over.path, over.detail, over.events if events is None else events
    )
