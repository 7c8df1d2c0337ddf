"""Decodes events into structs where a plan exists for them, and with orjson otherwise.

Plans are compiled for event names that tables declare. From events read by the row parser the decoder learns further
names (of tables that take any name) and fields that no column reads, which would otherwise prevent decoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from deltaworks.events.columnar_plan import EventPlan, paths_without_field, row_parser_reason
from deltaworks.events.columnar_redaction import ColumnarRedaction
from deltaworks.events.columnar_structs import DECODE_ERRORS, NotColumnarError, Path, create_decoder
from deltaworks.events.conversion_errors import ConversionError
from deltaworks.events.erasure_tombstones import ERASED_BYTES
from deltaworks.events.events import Router, path_getter
from deltaworks.events.table_columns import TableColumns
from deltaworks.specs.pipeline import PipelineSpec

#: A new plan recompiles all of them, so their number is bounded; so is the number of unread fields per event type.
_MAX_PLANS, _MAX_UNREAD_FIELDS = 128, 64
#: Events per type that are examined for unread fields.
_MAX_EXAMINED_EVENTS = 200
#: Levels that both msgspec and orjson accept; only texts long enough to exceed them are checked.
_DEEP_BRACKETS, _DEEP_BYTES = 900, 1_800
#: After so many failures, if successes are fewer, decoding costs more than it saves.
_TRIAL_EVENTS = 1_000


class EventDecoder:
    """Decodes the events of one pipeline. Not thread-safe.

    Attributes:
        row_parser_reason: why no event is decoded; None if some are.
        row_parser_reasons: why events of a name are not decoded.
        plans: the plan by struct class.
        scan_candidates: `id()` of decoded events whose texts must be scanned; cleared by the caller.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        router: Router,
        by_table: Mapping[str, TableColumns],
        redaction: ColumnarRedaction | None = None,
    ) -> None:
        """Creates a decoder; `redaction` redacts the events of a pipeline with personal data."""
        self._spec = spec
        self._stripping = redaction
        self._scanner = None if redaction is None else redaction.redactor.scanner
        self.scan_candidates: set[int] = set()
        self._router = router
        self._by_table = by_table
        self.row_parser_reason = row_parser_reason(spec, router)
        self.row_parser_reasons: dict[str, str] = {}
        self.plans: dict[type, EventPlan] = {}
        self._by_name: dict[str, EventPlan] = {}
        self._unread_fields: dict[str, list[Path]] = {}
        self._examined: dict[str, int] = {}
        self._unwrap = path_getter(tuple(spec.unwrap.path.split("."))) if spec.unwrap else None
        # Compiled with the first event: a task may have few events or none to decode.
        self._decode: Any = _refuse if self.row_parser_reason is not None else self._compile_and_decode
        self._decoded_count = self._refused_count = 0

    def loads(self, raw: bytes) -> Any:
        """Returns the event as a struct, or its JSON value where it cannot be decoded.

        Raises:
            orjson.JSONDecodeError: invalid JSON.
        """
        if ERASED_BYTES in raw:
            return orjson.loads(raw)
        if self._unwrap is None:
            value = None
            text: Any = raw
        else:
            value = orjson.loads(raw)
            text = self._unwrap(value)
        try:
            if len(text) <= _DEEP_BYTES or not _is_deep(text):
                decoded = self._decode(text)
                self._decoded_count += 1
                if self._scanner is not None and self._scanner.may_contain(text):
                    self.scan_candidates.add(id(decoded))
                return decoded
        except DECODE_ERRORS:
            pass
        self._refused_count += 1
        if self._refused_count >= _TRIAL_EVENTS and self._refused_count > self._decoded_count:
            self.row_parser_reason = "most of them cannot be decoded into structs"
        return orjson.loads(raw) if self._unwrap is None else value

    def learn(self, event: Mapping[str, Any], name: str, tables: tuple[str, ...]) -> None:
        """Examines an event that the row parser read although it should have been decoded."""
        if name in self.row_parser_reasons:
            return
        plan = self._by_name.get(name)
        if plan is None:
            if len(self._by_name) < _MAX_PLANS and self._plan(name, tables):
                self._compile()
            return
        examined = self._examined[name] = self._examined.get(name, 0) + 1
        if not plan.accepts_unread_fields or examined > _MAX_EXAMINED_EVENTS:
            return
        unread = [path for path in paths_without_field(event, plan.tree) if path != plan.name_path]
        if unread:
            present = self._unread_fields.setdefault(name, [])
            present += unread
            if len(present) > _MAX_UNREAD_FIELDS:
                self._give_up(name, "they have too many fields that no column reads")
            else:
                self._plan(name, tables)
            self._compile()

    def _compile_and_decode(self, text: Any) -> Any:
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
        """Compiles a plan; returns whether that succeeded."""
        try:
            tables = tables or self._router.tables({self._spec.event.name.path or "": name}, name)
            unread = tuple(self._unread_fields.get(name, ()))
            self._by_name[name] = EventPlan.compile(
                self._spec, name, tables, self._by_table, unread, redaction=self._stripping
            )
        except (NotColumnarError, ConversionError) as refusal:
            self._give_up(name, str(refusal))
            return False
        return True

    def _give_up(self, name: str, reason: str) -> None:
        self.row_parser_reasons[name] = reason
        self._by_name.pop(name, None)

    def _compile(self) -> None:
        # Events in a chunk may still have a class that a newer one replaced.
        self.plans.update((plan.layout.struct_type, plan) for plan in self._by_name.values())
        kinds = [plan.layout.struct_type for plan in self._by_name.values()]
        self._decode = create_decoder(kinds, tag_field=self._spec.event.name.path).decode if kinds else _refuse


def _refuse(_: Any) -> Any:
    raise TypeError("no event type has a plan")


def _is_deep(text: bytes | str) -> bool:
    brackets = (text.count("[") + text.count("{")) if isinstance(text, str) else text.count(b"[") + text.count(b"{")
    return brackets > _DEEP_BRACKETS
