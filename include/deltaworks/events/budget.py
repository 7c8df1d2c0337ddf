"""What one payload may cost: how often its bytes are looked at, and how much is made of them.

A few bytes can be made to cost minutes or gigabytes. Every framer counts what it does against the budgets that the
source declares. What lies beyond one becomes a single row in quarantine that names the budget; events that came before
it land. Only counts and sizes decide, never a clock or a process's memory, so that a payload that is read again comes
to the same rows. A payload that is beyond a budget before it gave an event is one row as a whole, and can be replayed;
the rest of a payload is read again by a reprocess of its object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from deltaworks.events.conversion_errors import ConversionError
from deltaworks.events.reasons import ReasonCode
from deltaworks.specs.sources.payload import BudgetSpec

#: What a decoded value takes in Python, with its place in what holds it: some 50 bytes for a number or a short text,
#: 200 for an object of one field.
BYTES_PER_VALUE = 100
#: What looking at a place costs, however soon it shows that nothing can be read from there.
PARSE_ATTEMPT_BYTES = 128
#: So much may be looked at in a payload however small it is: a few broken events are looked at many times over. These
#: are 2,000 attempts, which take 30 ms at most; the worst payload of 5 KB needs no more.
_MIN_SCANNABLE_BYTES = 256 << 10

#: What a payload may hold where nothing is declared: so much however small it is, so much for each of its bytes, and no
#: more than so much. A record takes up to 16 us and a value 1 us, so that a few kilobytes cost two seconds. Records of
#: one byte are none that anybody sends: an id or a time alone takes more, compressed too.
_MIN_RECORDS, _RECORDS_PER_BYTE, _MAX_RECORDS = 100_000, 1, 10_000_000
_MIN_VALUES, _VALUES_PER_BYTE, _MAX_VALUES = 2_000_000, 100, 1_000_000_000

#: An event as a framer gives it: its value and its bytes. A `Run` stands for as many events as it has.
FramedEvent = tuple[Any, bytes]


@dataclass(slots=True)
class EventRun:
    """Decoded events one behind the other, each with its bytes: what is the same for all of them is done once."""

    events: list[Any] = field(default_factory=list)
    raws: list[bytes] = field(default_factory=list)
    size: int = 0

    def __len__(self) -> int:
        return len(self.events)

    def first(self, count: int) -> EventRun:
        """The first so many of them."""
        raws = self.raws[:count]
        return EventRun(self.events[:count], raws, sum(map(len, raws)))


def event_count(value: Any) -> int:
    """For how many events a value stands."""
    return len(value) if type(value) is EventRun else 1


@dataclass(frozen=True, slots=True)
class OverBudget:
    """What lies beyond a budget, in place of an event. `raw` is empty where its bytes cannot be told apart."""

    raw: bytes
    budget: str
    detail: str


class BudgetExceededError(ConversionError):
    """A payload has gone beyond a budget; `rest` is what was not read of it, where its framer can tell."""

    def __init__(self, budget: str, detail: str) -> None:
        super().__init__(ReasonCode.OVER_BUDGET, detail, path=budget)
        self.unread = b""


class Budget:
    """Counts what one payload costs. Of one payload and one thread.

    Args:
        size: bytes of the payload; None where what is read is not the payload itself, which was counted before.
        max_event_bytes: a piece of text that is longer is no event, and need not be looked at.
        note: told the name of each budget that the payload goes beyond, once.
    """

    __slots__ = (
        "_remaining_bytes",
        "_remaining_values",
        "_limits",
        "_max_records",
        "_max_values",
        "_on_exceeded",
        "_noted",
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
    def max_held_bytes(self) -> int:
        """What may be held decoded at once."""
        return self._limits.max_held_bytes

    def count_scanned(self, count: int) -> None:
        """Count bytes that were looked at.

        Raises:
            Exceeded: max_scans.
        """
        self._remaining_bytes -= count
        if self._remaining_bytes < 0:
            detail = f"its {self._size} bytes were looked at {self._limits.max_scans} times over, and are not read yet"
            raise self.exceeded_error("max_scans", detail)

    def reserve_values(self, count: int) -> None:
        """Count values that are about to be made.

        Raises:
            Exceeded: max_values.
        """
        self._remaining_values -= count
        if self._remaining_values < 0:
            why = self._size_explanation(self._limits.max_values)
            raise self.exceeded_error("max_values", f"it holds more than {self._max_values} values{why}")

    def check_announced_records(self, records: int) -> None:
        """Refuse a payload that says itself how many records it has, before the first is read.

        Raises:
            Exceeded: max_records.
        """
        if records > self._max_records:
            why = self._size_explanation(self._limits.max_records)
            detail = f"it holds {records} records; at most {self._max_records} are read{why}"
            raise self.exceeded_error("max_records", detail)

    def may_exceed_memory(self, size: int) -> bool:
        """Whether so many bytes of text can hold so many values that the values have to be counted."""
        return size * (BYTES_PER_VALUE + 2) > self._limits.max_held_bytes

    def check_memory(self, size: int, values: int) -> None:
        """Refuse what would take too much memory decoded: so many bytes, in so many values.

        Raises:
            Exceeded: max_held_bytes.
        """
        held = 2 * size + BYTES_PER_VALUE * values
        if held > self._limits.max_held_bytes:
            detail = f"{values} values in {size} bytes take {held} bytes or so; at most {self._limits.max_held_bytes}"
            raise self.exceeded_error("max_held_bytes", detail)

    def check_json_memory(self, text: bytes | str) -> None:
        """`hold` for JSON, whose commas and brackets tell how many values it has at most.

        Raises:
            Exceeded: max_held_bytes.
        """
        if self.may_exceed_memory(len(text)):
            marks: Iterator[int] = (
                map(text.count, ",[{") if isinstance(text, str) else map(text.count, (b",", b"[", b"{"))
            )
            self.check_memory(len(text), 1 + sum(marks))

    def reserve_values_of_text(self, payload: bytes, separators: Sequence[bytes]) -> None:
        """`make` for all values of a text, which a mark stands before or behind.

        Raises:
            Exceeded: max_values.
        """
        if len(payload) > self._max_values:
            self.reserve_values(sum(payload.count(mark) for mark in separators))

    def _size_explanation(self, declared: int | None) -> str:
        return "" if declared else f" of {self._size} bytes, as no other number is declared"

    def exceeded_error(self, budget: str, detail: str) -> BudgetExceededError:
        """What to raise, noted: the payload has gone beyond a budget."""
        if budget not in self._reported_budgets and self._on_exceeded is not None:
            self._reported_budgets.add(budget)
            self._on_exceeded(budget)
        return BudgetExceededError(budget, detail)

    def limit(self, events: Iterator[FramedEvent], payload: bytes) -> Iterator[FramedEvent]:
        """The events of the payload as far as its budgets reach; then one `OverBudget` for what is left.

        `payload` stands for what is left where there are too many events: one of them would be taken for the rest.

        Raises:
            Misfit: nothing of the payload can be read; `Exceeded` among them.
        """
        yielded = 0
        try:
            for value, raw in events:
                count = event_count(value)
                if yielded + count > self._max_records:
                    if yielded < self._max_records:
                        yield value.first(self._max_records - yielded), raw
                    yielded = self._max_records
                    over = self.exceeded_error("max_records", f"it holds more than {self._max_records} records")
                    over.unread = payload
                    raise over
                yield value, raw
                yielded += count
        except BudgetExceededError as over:
            if not yielded:
                raise
            yield over_budget_event(over), over.unread


def over_budget_event(over: BudgetExceededError, raw: bytes | None = None) -> OverBudget:
    """What stands for the events that are not read; `raw` are their bytes, where that is not all that is left."""
    return OverBudget(over.unread if raw is None else raw, over.path, over.detail)
