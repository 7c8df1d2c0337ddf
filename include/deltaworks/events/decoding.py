"""Decodes the bytes of events into slots where a plan is for them, and into what orjson makes of them otherwise.

Plans are compiled for the names that tables declare. Of what the row path reads meanwhile the decoder learns: names
that no table declares, where any name lands, and fields that events have though nobody reads them, without which no
event of such a producer would have slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from deltaworks.events.erased import ERASED_BYTES
from deltaworks.events.events import Router, reader_of
from deltaworks.events.misfits import Misfit
from deltaworks.events.plans import EventPlan, row_path_reason, undeclared
from deltaworks.events.slot_stripping import SlotStripping
from deltaworks.events.slots import REFUSALS, Path, Unslotted, decoder_of
from deltaworks.events.table_columns import TableColumns
from deltaworks.specs.pipeline import PipelineSpec

#: With so many names that have plans no other is learned: each time all are compiled anew. And so many fields may have
#: slots in a type of event though nobody reads them.
_MOST_PLANS, _MOST_OTHERS = 128, 64
#: Events of a type that are looked through for such fields.
_MOST_LOOKS = 200
#: Levels that msgspec and orjson both read; whether text is so deep is asked of texts that can be.
_DEEP, _DEEP_BYTES = 900, 1_800
#: Where so many events have no slots, and fewer have some, looking for slots costs more than it saves.
_TRIALS = 1_000


class EventDecoder:
    """Decodes events of one pipeline. Used by one thread.

    Attributes:
        reason: why no event has slots; None where some have.
        reasons: why events of a name have none.
        plans: the plan by the class of decoded events.
        suspects: decoded events, by `id`, whose texts have to be scanned; whoever takes them clears it.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        router: Router,
        by_table: Mapping[str, TableColumns],
        stripping: SlotStripping | None = None,
    ) -> None:
        """Decode events as `spec` declares; `stripping` strips those of a pipeline with personal data."""
        self._spec = spec
        self._stripping = stripping
        self._scanner = None if stripping is None else stripping.walker.scanner
        self.suspects: set[int] = set()
        self._router = router
        self._by_table = by_table
        self.reason = row_path_reason(spec, router)
        self.reasons: dict[str, str] = {}
        self.plans: dict[type, EventPlan] = {}
        self._by_name: dict[str, EventPlan] = {}
        self._others: dict[str, list[Path]] = {}
        self._looks: dict[str, int] = {}
        self._inner_of = reader_of(tuple(spec.unwrap.path.split("."))) if spec.unwrap else None
        # Compiled when the first event comes: a task of a few has none to decode.
        self._decode: Any = _none if self.reason is not None else self._first
        self._decoded = self._refused = 0

    def loads(self, raw: bytes) -> Any:
        """The event in these bytes, in slots; the value that they are as JSON where it has none.

        Raises:
            orjson.JSONDecodeError: they are no JSON.
        """
        if ERASED_BYTES in raw:
            return orjson.loads(raw)
        if self._inner_of is None:
            value = None
            text: Any = raw
        else:
            value = orjson.loads(raw)
            text = self._inner_of(value)
        try:
            if len(text) <= _DEEP_BYTES or not _is_deep(text):
                decoded = self._decode(text)
                self._decoded += 1
                if self._scanner is not None and self._scanner.may_find(text):
                    self.suspects.add(id(decoded))
                return decoded
        except REFUSALS:
            pass
        self._refused += 1
        if self._refused >= _TRIALS and self._refused > self._decoded:
            self.reason = "most of them have no slots"
        return orjson.loads(raw) if self._inner_of is None else value

    def learn(self, event: Mapping[str, Any], name: str, tables: tuple[str, ...]) -> None:
        """Look at an event that the row path reads though its bytes were to be decoded."""
        if name in self.reasons:
            return
        plan = self._by_name.get(name)
        if plan is None:
            if len(self._by_name) < _MOST_PLANS and self._plan(name, tables):
                self._compile()
            return
        looks = self._looks[name] = self._looks.get(name, 0) + 1
        if not plan.takes_others or looks > _MOST_LOOKS:
            return
        others = [path for path in undeclared(event, plan.tree) if path != plan.name_path]
        if others:
            present = self._others.setdefault(name, [])
            present += others
            if len(present) > _MOST_OTHERS:
                self._give_up(name, "they have too many fields that nobody reads")
            else:
                self._plan(name, tables)
            self._compile()

    def _first(self, text: Any) -> Any:
        for name in self._declared_names():
            self._plan(name)
        self._compile()
        return self._decode(text)

    def _declared_names(self) -> list[str]:
        event = self._spec.event.name
        if event.constant is not None:
            return [event.constant]
        names = {value for table in self._spec.event_tables for value in table.when.get(event.path or "", ())}
        return sorted(value for value in names if type(value) is str and value)

    def _plan(self, name: str, tables: tuple[str, ...] | None = None) -> bool:
        """Compile a plan; whether there is one."""
        try:
            tables = tables or self._router.tables({self._spec.event.name.path or "": name}, name)
            others = tuple(self._others.get(name, ()))
            self._by_name[name] = EventPlan.of(
                self._spec, name, tables, self._by_table, others, stripping=self._stripping
            )
        except (Unslotted, Misfit) as refusal:
            self._give_up(name, str(refusal))
            return False
        return True

    def _give_up(self, name: str, reason: str) -> None:
        self.reasons[name] = reason
        self._by_name.pop(name, None)

    def _compile(self) -> None:
        # Events in a chunk may still be of a class that a newer one has replaced.
        self.plans.update((plan.slots.kind, plan) for plan in self._by_name.values())
        kinds = [plan.slots.kind for plan in self._by_name.values()]
        self._decode = decoder_of(kinds, tag_field=self._spec.event.name.path).decode if kinds else _none


def _none(_: Any) -> Any:
    raise TypeError("no event has slots")


def _is_deep(text: bytes | str) -> bool:
    brackets = (text.count("[") + text.count("{")) if isinstance(text, str) else text.count(b"[") + text.count(b"{")
    return brackets > _DEEP
