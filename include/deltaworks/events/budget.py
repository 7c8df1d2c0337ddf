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

from deltaworks.events.misfits import Misfit
from deltaworks.events.reasons import ReasonCode
from deltaworks.specs.sources.payload import BudgetSpec

#: What a decoded value takes in Python, with its place in what holds it: some 50 bytes for a number or a short text,
#: 200 for an object of one field.
VALUE_BYTES = 100
#: What looking at a place costs, however soon it shows that nothing can be read from there.
ATTEMPT_BYTES = 128
#: So much may be looked at in a payload however small it is: a few broken events are looked at many times over. These
#: are 2,000 attempts, which take 30 ms at most; the worst payload of 5 KB needs no more.
_LEAST_SCANNED_BYTES = 256 << 10

#: What a payload may hold where nothing is declared: so much however small it is, so much for each of its bytes, and no
#: more than so much. A record takes up to 16 us and a value 1 us, so that a few kilobytes cost two seconds. Records of
#: one byte are none that anybody sends: an id or a time alone takes more, compressed too.
_LEAST_RECORDS, _RECORDS_PER_BYTE, _MOST_RECORDS = 100_000, 1, 10_000_000
_LEAST_VALUES, _VALUES_PER_BYTE, _MOST_VALUES = 2_000_000, 100, 1_000_000_000

#: An event as a framer gives it: its value and its bytes. A `Run` stands for as many events as it has.
Event = tuple[Any, bytes]


@dataclass(slots=True)
class Run:
    """Decoded events one behind the other, each with its bytes: what is the same for all of them is done once."""

    events: list[Any] = field(default_factory=list)
    raws: list[bytes] = field(default_factory=list)
    size: int = 0

    def __len__(self) -> int:
        return len(self.events)

    def first(self, count: int) -> Run:
        """The first so many of them."""
        raws = self.raws[:count]
        return Run(self.events[:count], raws, sum(map(len, raws)))


def events_in(value: Any) -> int:
    """For how many events a value stands."""
    return len(value) if type(value) is Run else 1


@dataclass(frozen=True, slots=True)
class OverBudget:
    """What lies beyond a budget, in place of an event. `raw` is empty where its bytes cannot be told apart."""

    raw: bytes
    budget: str
    detail: str


class Exceeded(Misfit):
    """A payload has gone beyond a budget; `rest` is what was not read of it, where its framer can tell."""

    def __init__(self, budget: str, detail: str) -> None:
        super().__init__(ReasonCode.OVER_BUDGET, detail, path=budget)
        self.rest = b""


class Budget:
    """Counts what one payload costs. Of one payload and one thread.

    Args:
        size: bytes of the payload; None where what is read is not the payload itself, which was counted before.
        max_event_bytes: a piece of text that is longer is no event, and need not be looked at.
        note: told the name of each budget that the payload goes beyond, once.
    """

    __slots__ = (
        "_left_bytes",
        "_left_values",
        "_limits",
        "_max_records",
        "_max_values",
        "_note",
        "_noted",
        "_scannable",
        "_size",
        "max_event_bytes",
    )

    def __init__(
        self,
        limits: BudgetSpec | None = None,
        *,
        size: int | None,
        max_event_bytes: int = 16 << 20,
        note: Callable[[str], None] | None = None,
    ) -> None:
        self._limits = limits or BudgetSpec()
        self._size = size or 0
        self._scannable = max(_LEAST_SCANNED_BYTES, self._limits.max_scans * self._size)
        self._left_bytes = self._scannable
        by_size = (_MOST_RECORDS, _MOST_VALUES)
        if size is not None:
            by_size = (
                min(_MOST_RECORDS, max(_LEAST_RECORDS, _RECORDS_PER_BYTE * size)),
                min(_MOST_VALUES, max(_LEAST_VALUES, _VALUES_PER_BYTE * size)),
            )
        self._max_records = self._limits.max_records or by_size[0]
        self._max_values = self._limits.max_values or by_size[1]
        self._left_values = self._max_values
        self._note = note
        self._noted: set[str] = set()
        self.max_event_bytes = max_event_bytes

    @property
    def max_held_bytes(self) -> int:
        """What may be held decoded at once."""
        return self._limits.max_held_bytes

    def scan(self, count: int) -> None:
        """Count bytes that were looked at.

        Raises:
            Exceeded: max_scans.
        """
        self._left_bytes -= count
        if self._left_bytes < 0:
            detail = f"its {self._size} bytes were looked at {self._limits.max_scans} times over, and are not read yet"
            raise self.exceeded("max_scans", detail)

    def make(self, count: int) -> None:
        """Count values that are about to be made.

        Raises:
            Exceeded: max_values.
        """
        self._left_values -= count
        if self._left_values < 0:
            why = self._why(self._limits.max_values)
            raise self.exceeded("max_values", f"it holds more than {self._max_values} values{why}")

    def announce(self, records: int) -> None:
        """Refuse a payload that says itself how many records it has, before the first is read.

        Raises:
            Exceeded: max_records.
        """
        if records > self._max_records:
            why = self._why(self._limits.max_records)
            detail = f"it holds {records} records; at most {self._max_records} are read{why}"
            raise self.exceeded("max_records", detail)

    def may_exceed(self, size: int) -> bool:
        """Whether so many bytes of text can hold so many values that the values have to be counted."""
        return size * (VALUE_BYTES + 2) > self._limits.max_held_bytes

    def hold(self, size: int, values: int) -> None:
        """Refuse what would take too much memory decoded: so many bytes, in so many values.

        Raises:
            Exceeded: max_held_bytes.
        """
        held = 2 * size + VALUE_BYTES * values
        if held > self._limits.max_held_bytes:
            detail = f"{values} values in {size} bytes take {held} bytes or so; at most {self._limits.max_held_bytes}"
            raise self.exceeded("max_held_bytes", detail)

    def hold_json(self, text: bytes | str) -> None:
        """`hold` for JSON, whose commas and brackets tell how many values it has at most.

        Raises:
            Exceeded: max_held_bytes.
        """
        if self.may_exceed(len(text)):
            marks: Iterator[int] = (
                map(text.count, ",[{") if isinstance(text, str) else map(text.count, (b",", b"[", b"{"))
            )
            self.hold(len(text), 1 + sum(marks))

    def count_values(self, payload: bytes, marks: Sequence[bytes]) -> None:
        """`make` for all values of a text, which a mark stands before or behind.

        Raises:
            Exceeded: max_values.
        """
        if len(payload) > self._max_values:
            self.make(sum(payload.count(mark) for mark in marks))

    def _why(self, declared: int | None) -> str:
        return "" if declared else f" of {self._size} bytes, as no other number is declared"

    def exceeded(self, budget: str, detail: str) -> Exceeded:
        """What to raise, noted: the payload has gone beyond a budget."""
        if budget not in self._noted and self._note is not None:
            self._noted.add(budget)
            self._note(budget)
        return Exceeded(budget, detail)

    def bounded(self, events: Iterator[Event], payload: bytes) -> Iterator[Event]:
        """The events of the payload as far as its budgets reach; then one `OverBudget` for what is left.

        `payload` stands for what is left where there are too many events: one of them would be taken for the rest.

        Raises:
            Misfit: nothing of the payload can be read; `Exceeded` among them.
        """
        taken = 0
        try:
            for value, raw in events:
                count = events_in(value)
                if taken + count > self._max_records:
                    if taken < self._max_records:
                        yield value.first(self._max_records - taken), raw
                    taken = self._max_records
                    over = self.exceeded("max_records", f"it holds more than {self._max_records} records")
                    over.rest = payload
                    raise over
                yield value, raw
                taken += count
        except Exceeded as over:
            if not taken:
                raise
            yield beyond(over), over.rest


def beyond(over: Exceeded, raw: bytes | None = None) -> OverBudget:
    """What stands for the events that are not read; `raw` are their bytes, where that is not all that is left."""
    return OverBudget(over.rest if raw is None else raw, over.path, over.detail)
