"""The fuzzer's slow Avro reader reads a library's files, and survives input that overflows a library's stack."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.avro_reader import avro_records
from tests.fuzz.container_inputs import avro_container, encoded, long
from tests.fuzz.plain_readers import BROKEN

LONGS = st.integers(-(2**63) + 1, 2**63 - 1)
PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": LONGS,
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.text(st.characters(codec="utf-8"), max_size=5),
    "string": st.text(st.characters(codec="utf-8"), max_size=5),
}
TYPES: st.SearchStrategy[tuple[Any, st.SearchStrategy[Any]]] = st.recursive(
    st.sampled_from(list(PRIMITIVES.items())),
    lambda inner: st.one_of(
        inner.filter(lambda kind: kind[0] != "null").map(
            lambda kind: ({"type": "array", "items": kind[0]}, st.lists(kind[1], max_size=3))
        ),
        inner.map(
            lambda kind: (
                {"type": "map", "values": kind[0]},
                st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=3), kind[1], max_size=3),
            )
        ),
    ),
    max_leaves=3,
)
LONG_FIELD = {"name": "at", "type": "long"}


def record_of(*fields: Any, name: str = "event") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def written(schema: Any, value: Any) -> Any:
    """A value as a library takes it: bytes stand as texts in events."""
    if schema == "bytes":
        return value.encode()
    if isinstance(schema, dict):
        if schema["type"] == "array":
            return [written(schema["items"], item) for item in value]
        return {name: written(schema["values"], item) for name, item in value.items()}
    return value


@settings(deadline=None)
@given(st.data())
def test_what_a_library_writes_is_read_value_by_value(data: st.DataObject) -> None:
    kind, values = data.draw(TYPES)
    schema = record_of(LONG_FIELD, {"name": "a", "type": kind})
    records = [{"at": 1, "a": value} for value in data.draw(st.lists(values, max_size=4))]
    blocks = [(1, encoded(schema, {"at": 1, "a": written(kind, record["a"])})) for record in records]

    reading = avro_records(avro_container(schema, blocks))

    assert reading.is_exact
    assert list(reading.events) == records


def test_named_types_unions_and_logical_types_are_followed() -> None:
    place = {"type": "record", "name": "place", "namespace": "geo", "fields": [{"name": "x", "type": "double"}]}
    schema = record_of(
        {"name": "name", "type": {"type": "enum", "name": "names", "symbols": ["login", "order"]}},
        {"name": "from", "type": ["null", place]},
        {"name": "to", "type": "geo.place"},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}},
        {"name": "mark", "type": {"type": "fixed", "name": "two", "size": 2}},
        {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
    )
    record = {
        "name": "order",
        "from": {"x": 1.5},
        "to": {"x": 2.0},
        "amount": Decimal("1.25"),
        "mark": b"\xff\x00",
        "uuid": "none",
    }
    fastavro.parse_schema(schema)

    (event,) = avro_records(avro_container(schema, [(1, encoded(schema, record))])).events

    assert type(event.pop("amount")).__name__ == "_Typed"
    assert event == {"name": "order", "from": {"x": 1.5}, "to": {"x": 2.0}, "mark": "ff00", "uuid": "none"}


@pytest.mark.parametrize(
    "schema",
    [
        record_of({"name": "next", "type": ["null", "event"]}),
        record_of({"name": "a", "type": "null"}),
        record_of({"name": "a", "type": {"type": "array", "items": "null"}}),
        record_of({"name": "a", "type": "nothing"}),
        record_of({"name": "a", "type": json.loads('{"type":' * 300 + '"int"' + "}" * 300)}),
    ],
    ids=["inside itself", "no bytes", "items without bytes", "no type", "deep"],
)
def test_what_readers_are_free_to_refuse_decides_nothing(schema: Any) -> None:
    reading = avro_records(avro_container(schema, [(1, b"\x02" * 100_000)]))

    assert (reading.least, reading.most, reading.whole, reading.may_be_empty) == (0, float("inf"), True, False)


@pytest.mark.parametrize(
    ("block", "bounds"),
    [
        ((1, long(5)), (1, 1, 0)),
        ((2, long(5)), (1, 3, 1)),
        ((1, long(5) * 2), (1, 2, 1)),
        ((1, b"\xff" * 11), (1, 2, 1)),
        ((1, b"\xff" * 11 + b"\0"), (1, 1, 0)),
        ((-1, long(5)), (1, 1, 1)),
        ((0, b""), (0, 0, 0)),
    ],
    ids=["right", "too few", "too many", "no end", "beyond 64 bits", "negative", "none"],
)
def test_a_block_has_as_many_events_as_can_be_said_of_it(
    block: tuple[int, bytes], bounds: tuple[int, int, int]
) -> None:
    reading = avro_records(avro_container(record_of(LONG_FIELD), [block]))

    assert (reading.least, reading.most, reading.broken) == bounds


def test_a_text_that_is_none_breaks_its_record_and_no_other() -> None:
    schema = record_of({"name": "name", "type": "string"})
    good, bad = long(1) + b"a", long(2) + b"\xff\xfe"

    reading = avro_records(avro_container(schema, [(3, good + bad + good)]))

    assert list(reading.events) == [{"name": "a"}, BROKEN, {"name": "a"}]
