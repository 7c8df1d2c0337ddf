"""Decodes events into structs if a plan exists for their type, and with orjson otherwise.

Plans are compiled for the event names that tables declare. From events that the row parser reads, the decoder learns
more names (for tables that accept any name) and fields that no column reads, because decoding fails on unknown fields.
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

#: Maximum number of plans, and of unread fields per event type. Each new one recompiles all plans.
_MAX_PLANS, _MAX_UNREAD_FIELDS = 128, 64
#: Events of each type that are examined for unread fields.
_MAX_EXAMINED_EVENTS = 200
#: Nesting that both msgspec and orjson accept. Only texts long enough to exceed it are checked.
_DEEP_BRACKETS, _DEEP_BYTES = 900, 1_800
#: Number of failures after which decoding is given up if fewer events were decoded successfully.
_TRIAL_EVENTS = 1_000


class EventDecoder:
    """Decodes the events of one pipeline. Not thread-safe.

    Attributes:
        row_parser_reason: why no event is decoded into a struct; None if some are.
        row_parser_reasons: the same by event name.
        plans: the plan by struct class.
        scan_candidates: `id()` of decoded events whose texts must be scanned for personal data; cleared by the caller.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        router: Router,
        by_table: Mapping[str, TableColumns],
        redaction: ColumnarRedaction | None = None,
    ) -> None:
        """Creates a decoder. `redaction` is required for pipelines that declare personal data."""
        self._spec = spec
        self._redaction = redaction
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
        # Compiled when the first event is decoded, because a task may have none.
        self._decode: Any = _reject_all if self.row_parser_reason is not None else self._compile_and_decode
        self._decoded_count = self._refused_count = 0

    def loads(self, raw: bytes) -> Any:
        """Decodes an event into a struct, or into Python objects if no struct fits.

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
        """Learns names and fields from an event that was not decoded, so that later events like it are."""
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
        """Compiles the plan of an event name. Returns whether that succeeded."""
        try:
            tables = tables or self._router.tables({self._spec.event.name.path or "": name}, name)
            unread = tuple(self._unread_fields.get(name, ()))
            self._by_name[name] = EventPlan.compile(
                self._spec, name, tables, self._by_table, unread, redaction=self._redaction
            )
        except (NotColumnarError, ConversionError) as refusal:
            self._give_up(name, str(refusal))
            return False
        return True

    def _give_up(self, name: str, reason: str) -> None:
        self.row_parser_reasons[name] = reason
        self._by_name.pop(name, None)

    def _compile(self) -> None:
        # Classes of replaced plans stay in the mapping, because events of the current chunk may have them.
        self.plans.update((plan.layout.struct_type, plan) for plan in self._by_name.values())
        kinds = [plan.layout.struct_type for plan in self._by_name.values()]
        self._decode = create_decoder(kinds, tag_field=self._spec.event.name.path).decode if kinds else _reject_all


def _reject_all(_: Any) -> Any:
    raise TypeError("no event type has a plan")


def _is_deep(text: bytes | str) -> bool:
    brackets = (text.count("[") + text.count("{")) if isinstance(text, str) else text.count(b"[") + text.count(b"{")
    return brackets > _DEEP_BRACKETS
