"""Parse budgets: limits on the work and memory that one payload may cost.

A few bytes can be crafted to cost minutes or gigabytes. Every framer counts its work against the budgets declared by
the source. Exceeding one yields a single quarantine row that names the budget; events parsed before it are kept. Only
counts and sizes decide, never a clock or the process's memory, so parsing a payload again yields the same rows. A
payload that exceeds a budget before its first event becomes one row and can be replayed; the rest of any other payload
is read again by reprocessing its object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from deltaworks.events.conversion_errors import ConversionError
from deltaworks.events.reasons import ReasonCode
from deltaworks.specs.sources.payload import BudgetSpec

#: Memory of a decoded Python value with its slot in a container: about 50 bytes for a number or short text, 200 for an
#: object with one field.
BYTES_PER_VALUE = 100
#: Charged for each attempt to parse at an offset, however soon it fails.
PARSE_ATTEMPT_BYTES = 128
#: Lower bound for small payloads, whose broken events are scanned many times: 2,000 attempts, 30 ms at most. This
#: suffices for the worst payload of 5 KB that was found.
_MIN_SCANNABLE_BYTES = 256 << 10

#: Defaults: a minimum for small payloads, a number per byte, and a maximum. A record takes up to 16 us and a value 1
#: us, so a few kilobytes cost at most two seconds. No real record has one byte: an id or a time alone is longer,
#: compressed too.
_MIN_RECORDS, _RECORDS_PER_BYTE, _MAX_RECORDS = 100_000, 1, 10_000_000
_MIN_VALUES, _VALUES_PER_BYTE, _MAX_VALUES = 2_000_000, 100, 1_000_000_000

#: A parsed value and its raw bytes.
FramedEvent = tuple[Any, bytes]


@dataclass(slots=True)
class EventRun:
    """Consecutive decoded events with their raw bytes, so that work common to all of them is done once."""

    events: list[Any] = field(default_factory=list)
    raws: list[bytes] = field(default_factory=list)
    size: int = 0

    def __len__(self) -> int:
        return len(self.events)

    def first(self, count: int) -> EventRun:
        """Returns the first `count` events."""
        raws = self.raws[:count]
        return EventRun(self.events[:count], raws, sum(map(len, raws)))


def event_count(value: Any) -> int:
    """Returns the number of events a value represents."""
    return len(value) if type(value) is EventRun else 1


@dataclass(frozen=True, slots=True)
class OverBudget:
    """Placeholder for events beyond a budget. `raw` is empty where their bytes are unknown."""

    raw: bytes
    budget: str
    detail: str


class BudgetExceededError(ConversionError):
    """A payload exceeded a budget. `unread` holds the bytes not parsed, if the framer knows them."""

    def __init__(self, budget: str, detail: str) -> None:
        super().__init__(ReasonCode.OVER_BUDGET, detail, path=budget)
        self.unread = b""


class Budget:
    """Tracks the cost of one payload. Not thread-safe.

    Args:
        size: bytes of the payload; None where the input is not the payload itself, which was counted before.
        max_event_bytes: longer pieces of text are rejected without parsing.
        on_exceeded: called with the name of each exceeded budget, once.
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
        """The limit on memory for decoded values, in bytes."""
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
        """Counts values before they are created.

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
            raise self.exceeded_error("max_records", detail)

    def may_exceed_memory(self, size: int) -> bool:
        """Returns whether text of this size could hold so many values that they must be counted."""
        return size * (BYTES_PER_VALUE + 2) > self._limits.max_decoded_bytes

    def check_memory(self, size: int, values: int) -> None:
        """Rejects values that would take too much memory once decoded.

        Args:
            size: bytes of text.
            values: number of values in it.

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
        """Calls `check_memory` for JSON; commas and brackets give an upper bound of its values.

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
        """Returns the error to raise, and reports the budget."""
        if budget not in self._reported_budgets and self._on_exceeded is not None:
            self._reported_budgets.add(budget)
            self._on_exceeded(budget)
        return BudgetExceededError(budget, detail)

    def limit(self, events: Iterator[FramedEvent], payload: bytes) -> Iterator[FramedEvent]:
        """Yields events up to the budgets, then one `OverBudget` for the rest.

        Args:
            payload: bytes of that `OverBudget` where there are too many events.

        Raises:
            ConversionError: no event can be parsed; `BudgetExceededError` is one of its kinds.
        """
        yielded = 0
        try:
            for value, raw in events:
                count = event_count(value)
                if yielded + count > self._max_records:
                    if yielded < self._max_records:
                        yield value.first(self._max_records - yielded), raw
                    yielded = self._max_records
                    over = self.exceeded_error("max_records", f"it has more than {self._max_records} records")
                    over.unread = payload
                    raise over
                yield value, raw
                yielded += count
        except BudgetExceededError as over:
            if not yielded:
                raise
            yield over_budget_event(over), over.unread


def over_budget_event(over: BudgetExceededError, raw: bytes | None = None) -> OverBudget:
    """Returns the placeholder for unparsed events; `raw` are their bytes where these are not the complete rest."""
    return OverBudget(over.unread if raw is None else raw, over.path, over.detail)
