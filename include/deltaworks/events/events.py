"""Reads single events as a pipeline declares them: unwraps, names and routes them to tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from deltaworks.events.budget import Budget, BudgetExceededError, EventRun, OverBudget, over_budget_event
from deltaworks.events.erasure_tombstones import is_tombstone
from deltaworks.events.formats import json
from deltaworks.events.formats.json import Malformed, dump_element
from deltaworks.events.lossless_numbers import has_rounded_number, parse_lossless
from deltaworks.events.reasons import ConversionError, ReasonCode, format_value
from deltaworks.specs.base import format_path, path_names
from deltaworks.specs.pipeline import PipelineSpec

_EMPTY_OBJECT: dict[str, Any] = {}
_MAX_CACHED_NAMES = 10_000
_ARRAY_OR_SPACE = frozenset("[ \t\r\n")

Path = tuple[str, ...]


def value_at(value: Any, path: Path) -> Any:
    """Returns the value at a path of field names, or None."""
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def path_getter(path: Path) -> Callable[[Any], Any]:
    """Returns a function equal to `value_at` with this path; a path of one name, the common case, needs no loop."""
    if len(path) != 1:
        return lambda value: value_at(value, path)
    name = path[0]
    return lambda value: value.get(name) if isinstance(value, dict) else None


def parent_objects(events: Sequence[Mapping[str, Any]], path: Path) -> list[dict[str, Any]]:
    """Returns, for each event, the object at `path`; an empty object if there is none."""
    if len(path) == 1:
        name = path[0]
        values = [event.get(name) for event in events]
    else:
        values = [value_at(event, path) for event in events]
    return [value if type(value) is dict else _EMPTY_OBJECT for value in values]


def is_valid_unicode(text: str) -> bool:
    """Returns whether a text can be encoded as UTF-8; text with surrogates from invalid bytes cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def require_event(value: Any) -> dict[str, Any]:
    """Returns a parsed value if it is an object.

    Raises:
        ConversionError: it could not be parsed, or is not an object.
    """
    if type(value) is dict:
        return value
    if isinstance(value, Malformed):
        raise ConversionError(ReasonCode.MALFORMED, value.detail)
    if isinstance(value, OverBudget):
        raise ConversionError(ReasonCode.OVER_BUDGET, value.detail, path=value.budget)
    raise ConversionError(ReasonCode.NOT_AN_OBJECT, f"found a {type(value).__name__}, not an object")


class WrapperFields:
    """Copies fields of a wrapper object to each event inside it, at the same paths."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = list(map(path_names, paths))

    def __bool__(self) -> bool:
        return bool(self._paths)

    def extract(self, wrapper: Any) -> dict[str, Any]:
        """Returns the declared fields of a wrapper as a new object."""
        extracted: dict[str, Any] = {}
        for path in self._paths:
            parent = value_at(wrapper, path[:-1])
            if isinstance(parent, dict) and path[-1] in parent:
                target = extracted
                for name in path[:-1]:
                    target = target.setdefault(name, {})
                target[path[-1]] = parent[path[-1]]
        return extracted

    def merge_into(self, event: dict[str, Any], wrapper: Any) -> dict[str, Any]:
        """Returns the event with the declared fields of its wrapper.

        Raises:
            ConversionError: the event has a field of the same name.
        """
        extracted = self.extract(wrapper)
        for name in extracted:
            if name in event:
                raise ConversionError(
                    ReasonCode.NAME_TAKEN, "the event and its wrapper both have this field", path=name
                )
        return {**extracted, **event}


class EventReader:
    """Reads single events. Stateless.

    Args:
        record_over_budget: called with the name of a budget exceeded by an array inside a wrapper.
    """

    def __init__(self, spec: PipelineSpec, *, record_over_budget: Callable[[str], None] | None = None) -> None:
        self._budget = spec.source.budget
        self._record_over_budget = record_over_budget
        self._unwrap = path_names(spec.unwrap.path) if spec.unwrap else ()
        self._unwrap_text = format_path(self._unwrap)
        self._get_inner = path_getter(self._unwrap)
        self._wrapper_fields = WrapperFields(spec.unwrap.keep if spec.unwrap else ())
        self._constant_name = spec.event.name.constant
        self._name_path_text = spec.event.name.path or ""
        self._get_name = path_getter(path_names(self._name_path_text) if self._name_path_text else ())

    def unwrap_arrays(self, values: Iterable[tuple[Any, bytes]]) -> Iterable[tuple[Any, bytes]]:
        """Yields values with their bytes. If a wrapper contains an array, yields one value per element."""
        if not self._unwrap:
            return values
        budget = Budget(self._budget, size=None, on_exceeded=self._record_over_budget)
        return budget.limit(self._unwrap_arrays(values, budget), b"")

    def _unwrap_arrays(self, values: Iterable[tuple[Any, bytes]], budget: Budget) -> Iterator[tuple[Any, bytes]]:
        for value, raw in values:
            if type(value) is EventRun:
                yield value, raw
                continue
            text = inner = self._get_inner(value)
            try:
                # Checks the first character before stripping white space, to avoid copying texts that are nearly always
                # objects.
                if type(inner) is str and inner[:1] in _ARRAY_OR_SPACE and inner.lstrip().startswith("["):
                    budget.check_json_memory(inner)
                    inner = orjson.loads(inner)
                wrapper_fields = (
                    self._wrapper_fields.extract(value) if self._wrapper_fields and type(inner) is list else {}
                )
                if wrapper_fields:
                    # The wrapper's fields are copied to each element, so a small payload could expand to gigabytes.
                    budget.check_memory(len(dump_element(wrapper_fields, raw)) * len(inner), len(inner))
            except orjson.JSONDecodeError:
                yield from self._recover_elements(value, inner, raw, budget)
                continue
            except BudgetExceededError as over:
                yield over_budget_event(over, raw), raw
                continue
            if type(inner) is not list:
                yield value, raw
                continue
            elements, lossless_fields = self._lossless_elements(inner, wrapper_fields, text, raw)
            for element, sent in zip(inner, elements, strict=True):
                yield (
                    self._wrap_element(element, wrapper_fields),
                    dump_element(self._wrap_element(sent, lossless_fields), raw),
                )

    def _recover_elements(self, wrapper: Any, text: str, raw: bytes, budget: Budget) -> Iterator[tuple[Any, bytes]]:
        """Yields the elements of an array in a wrapper that cannot be parsed as one; corrupt ones as texts, which are
        rejected when the event is read.
        """
        wrapper_fields = self._wrapper_fields.extract(wrapper) if self._wrapper_fields else {}
        try:
            elements = list(json.read_events(text.encode("utf-8", "surrogatepass"), budget))
            budget.check_memory(len(dump_element(wrapper_fields, raw)) * len(elements), len(elements))
        except BudgetExceededError as over:
            yield over_budget_event(over, raw), raw
            return
        if len(elements) <= 1:
            yield wrapper, raw
            return
        for element, sent in elements:
            # The bytes have each element as text, which keeps its numbers exact.
            content = sent.decode("utf-8", "surrogatepass")
            value = content if isinstance(element, Malformed | OverBudget) else element
            yield (
                self._wrap_element(value, wrapper_fields),
                dump_element(self._wrap_element(content, wrapper_fields), raw),
            )

    def _lossless_elements(
        self, elements: list[Any], wrapper_fields: dict[str, Any], text: Any, raw: bytes
    ) -> tuple[list[Any], dict[str, Any]]:
        """Returns the elements and wrapper fields; with numbers as literals if parsing may have rounded one."""
        is_text = type(text) is str
        try:
            lossless = parse_lossless(raw) if (wrapper_fields or not is_text) and has_rounded_number(raw) else None
            if is_text and has_rounded_number(text.encode()):
                elements = parse_lossless(text)
            elif not is_text and lossless is not None:
                elements = self._get_inner(lossless)
            return elements, wrapper_fields if lossless is None else self._wrapper_fields.extract(lossless)
        except (ValueError, RecursionError):
            # A number id in these fields is rejected as ambiguous, because an element's bytes do not contain it.
            return [None] * len(elements), {}

    def _wrap_element(self, element: Any, wrapper_fields: dict[str, Any]) -> Any:
        for depth in range(len(self._unwrap) - 1, -1, -1):
            surrounding = value_at(wrapper_fields, self._unwrap[:depth]) if wrapper_fields else None
            element = {**(surrounding or _EMPTY_OBJECT), self._unwrap[depth]: element}
        return element

    def read_event(self, value: Any) -> dict[str, Any]:
        """Returns the event inside a value.

        Raises:
            ConversionError: the value contains no event.
        """
        if not self._unwrap:
            return require_event(value)
        event = require_event(self._unwrap_value(value))
        return self._wrapper_fields.merge_into(event, value) if self._wrapper_fields else event

    def is_erased(self, value: Any) -> bool:
        """Returns whether the value contains a tombstone instead of an event."""
        if is_tombstone(value) or not self._unwrap or type(value) is not dict:
            return is_tombstone(value)
        inner = self._get_inner(value)
        if type(inner) is str:
            try:
                inner = orjson.loads(inner)
            except orjson.JSONDecodeError:
                return False
        return is_tombstone(inner)

    def rewrap(self, event: dict[str, Any], wrapper: Any) -> Any:
        """Returns the event in a new wrapper that contains only the fields copied to events."""
        wrapper_fields = self._wrapper_fields.extract(wrapper)
        inner = {name: value for name, value in event.items() if name not in wrapper_fields}
        return self._wrap_element(inner, {name: event[name] for name in wrapper_fields if name in event})

    def lossless_event(self, raw: bytes) -> Any:
        """Parses the event inside raw bytes with its numbers as literals; None if that fails."""
        try:
            value = parse_lossless(raw)
            inner = self._get_inner(value) if self._unwrap else value
            event = parse_lossless(inner) if type(inner) is str else inner
        except (ValueError, RecursionError):
            return None
        return (
            {**self._wrapper_fields.extract(value), **event} if self._wrapper_fields and type(event) is dict else event
        )

    def _unwrap_value(self, value: Any) -> Any:
        if type(value) is not dict:
            return value
        inner = self._get_inner(value)
        if type(inner) is str:
            try:
                return orjson.loads(inner)
            except orjson.JSONDecodeError as error:
                raise ConversionError(ReasonCode.MALFORMED, f"{self._unwrap_text} is not valid JSON: {error}") from None
        if inner is None:
            raise ConversionError(ReasonCode.MISSING_REQUIRED, f"the wrapper has no {self._unwrap_text}")
        return inner

    def event_name(self, event: dict[str, Any]) -> str:
        """Returns the event's name.

        Raises:
            ConversionError: the event has no name.
        """
        if self._constant_name is not None:
            return self._constant_name
        name = self._get_name(event)
        if type(name) is str and name:
            if name.isascii() or is_valid_unicode(name):
                return name
            raise ConversionError(
                ReasonCode.TYPE_MISMATCH, f"{self._name_path_text}: {format_value(name)} is not valid UTF-8"
            )
        raise ConversionError(ReasonCode.UNKNOWN_EVENT, f"{self._name_path_text} has no event name")


class Router:
    """Maps events to tables."""

    def __init__(self, spec: PipelineSpec) -> None:
        self._catch_all = tuple(table.name for table in spec.event_tables if table.catch_all is True)
        self._fallback_tables = tuple(table.name for table in spec.event_tables if table.catch_all == "rest")
        self._conditional = [
            (table.name, [(path_names(path), frozenset(values)) for path, values in table.when.items()])
            for table in spec.event_tables
            if not table.catch_all
        ]
        #: True if routing depends on the event's name only; results are then cached by name.
        self.by_name_only = all(
            list(table.when) == [spec.event.name.path] for table in spec.event_tables if not table.catch_all
        )
        #: All tables, in the order in which routing returns them.
        self.order = (*self._catch_all, *(name for name, _ in self._conditional), *self._fallback_tables)
        self._tables_by_name: dict[str, tuple[str, ...] | None] = {}

    def tables(self, event: Mapping[str, Any], name: str) -> tuple[str, ...]:
        """Returns the tables that accept an event, in order.

        Raises:
            ConversionError: no table accepts the event.
        """
        if not self.by_name_only:
            matched = self._match(event)
        elif name in self._tables_by_name:
            matched = self._tables_by_name[name]
        else:
            if len(self._tables_by_name) > _MAX_CACHED_NAMES:
                self._tables_by_name.clear()
            matched = self._tables_by_name[name] = self._match(event)
        if matched is None:
            raise ConversionError(ReasonCode.UNKNOWN_EVENT, f"no table accepts events named {name!r}")
        return matched

    def _match(self, event: Mapping[str, Any]) -> tuple[str, ...] | None:
        matched = tuple(
            name
            for name, conditions in self._conditional
            if all(_matches(event, *condition) for condition in conditions)
        )
        if not matched and self._conditional and not self._fallback_tables:
            return None
        return self._catch_all + (matched or self._fallback_tables)


def _matches(event: Mapping[str, Any], path: Path, values: frozenset[Any]) -> bool:
    value = value_at(event, path)
    if type(value) is bool or not isinstance(value, str | int | float):
        return type(value) is bool and any(expected is value for expected in values)
    # True equals 1 in Python but not in JSON.
    return any(type(expected) is not bool and expected == value for expected in values)
