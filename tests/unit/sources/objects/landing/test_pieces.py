"""The same events land for any content, layout and object size."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.events.formats.json import Malformed, read_events
from tests.examples import examples
from tests.unit.sources.objects.landing.landing_harness import landed, source
from tests.unit.sources.objects.landing.reference_reader import (
    content,
    csv_events,
    field_lines,
    json_events,
    lines,
)

#: Texts that look like structure where structure is looked for.
TRAPS = st.sampled_from(["}{", '"}{"', "},{", "\\", '\\"', "}\n{", "[", "]", "\n", "\r\n", "#Fields: a", "é", "𝄞"])
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8) | TRAPS
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(-1e300, 1e300) | TEXTS
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4), max_leaves=8
)
OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=5)
ANY_SIZE = st.integers(1, 300)
SETTINGS = settings(max_examples=examples(30))


def on_lines(events: list[Any]) -> bytes:
    return b"".join(json.dumps(event, ensure_ascii=False).encode() + b"\n" for event in events)


def on_lines_of_windows(events: list[Any]) -> bytes:
    return b"\xef\xbb\xbf" + b"\r\n".join(json.dumps(event).encode() for event in events)


def one_behind_the_other(events: list[Any]) -> bytes:
    return b"".join(json.dumps(event).encode() for event in events)


def pretty(events: list[Any]) -> bytes:
    return b"\n".join(json.dumps(event, indent=2, ensure_ascii=False).encode() for event in events)


def one_array(events: list[Any]) -> bytes:
    return json.dumps(events, ensure_ascii=False).encode()


def pretty_array(events: list[Any]) -> bytes:
    return b"\n " + json.dumps(events, indent=1).encode() + b"\n"


def arrays_on_lines(events: list[Any]) -> bytes:
    return b"".join(json.dumps(events[start : start + 3]).encode() + b"\n" for start in range(0, len(events), 3))


def all_of_it(events: list[Any]) -> bytes:
    return one_array(events) + on_lines(events) + one_behind_the_other(events) + pretty_array(events)


WRITERS = [
    on_lines,
    on_lines_of_windows,
    one_behind_the_other,
    pretty,
    one_array,
    pretty_array,
    arrays_on_lines,
    all_of_it,
]


@pytest.mark.parametrize("write", WRITERS)
@SETTINGS
@given(events=st.lists(OBJECTS, max_size=12), size=ANY_SIZE)
def test_json_lands_as_the_same_events_in_their_order(
    write: Callable[[list[Any]], bytes], events: list[Any], size: int
) -> None:
    data = write(events)

    objects, result = landed(data, source(), object_bytes=size)

    assert [event for stored in objects for event in json_events(content(stored))] == json_events(data)
    assert (result.events, result.unreadable) == (len(json_events(data)), 0)


@SETTINGS
@given(rows=st.lists(st.lists(VALUES, max_size=3) | SCALARS, max_size=12), size=ANY_SIZE)
def test_values_on_lines_other_than_objects_are_not_split(rows: list[Any], size: int) -> None:
    data = on_lines(rows)

    objects, _ = landed(data, source(), object_bytes=size)

    assert [event for stored in objects for event in json_events(content(stored))] == json_events(data)


@SETTINGS
@given(events=st.lists(OBJECTS, max_size=8), size=ANY_SIZE)
def test_a_wrapper_of_many_events_is_not_split(events: list[Any], size: int) -> None:
    data = on_lines([{"records": events}, {"body": json.dumps(events)}])

    objects, result = landed(data, source(), object_bytes=size)

    assert [event for stored in objects for event in json_events(content(stored))] == json_events(data)
    assert result.events == 2


@SETTINGS
@given(pieces=st.lists(OBJECTS.map(json.dumps).map(str.encode) | st.binary(max_size=30), max_size=10), size=ANY_SIZE)
def test_malformed_lines_land_byte_for_byte(pieces: list[bytes], size: int) -> None:
    data = b"{}\n" + b"\n".join(pieces)  # an array that is broken may come as several

    objects, _ = landed(data, source(), object_bytes=size)

    together = b"".join(content(stored) for stored in objects)
    if b"[" not in data:
        assert together.strip() == data.strip()
    assert together.count(b"{") == data.count(b"{")


@SETTINGS
@given(events=st.lists(OBJECTS.filter(bool), min_size=2, max_size=12), at=st.integers(0, 11), size=ANY_SIZE)
def test_a_truncated_line_does_not_affect_other_events(events: list[Any], at: int, size: int) -> None:
    written = [json.dumps(event).encode() for event in events]
    written.insert(at % len(events), b'{"torn": "of')
    data = b"\n".join(written)

    objects, _ = landed(data, source(), object_bytes=size)

    def read(whole: bytes) -> list[Any]:
        return [value for value, _ in read_events(whole) if not isinstance(value, Malformed)]

    assert [event for stored in objects for event in read(content(stored))] == read(data)


FIELDS = st.lists(st.text("ab,;\"'\n\r é", max_size=6), min_size=2, max_size=2)


@SETTINGS
@given(rows=st.lists(FIELDS, max_size=15), size=ANY_SIZE, end=st.sampled_from(["\n", "\r\n"]))
def test_csv_lands_with_its_header_in_every_object(rows: list[list[str]], size: int, end: str) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator=end).writerows([["first", "second"], *rows])
    data = text.getvalue().encode()

    objects, result = landed(data, source(format="csv"), object_bytes=size)

    assert [event for stored in objects for event in csv_events(content(stored))] == csv_events(data)
    assert all(content(stored).startswith(b"first,second\n") for stored in objects)
    assert result.events == len(csv_events(data))


@SETTINGS
@given(rows=st.lists(st.sampled_from(["a\tb", "c\td", "#Fields: x y", "#Version: 1", ""]), max_size=20), size=ANY_SIZE)
def test_tsv_lines_land_with_their_field_names(rows: list[str], size: int) -> None:
    data = "\n".join(["#Fields: p q", *rows]).encode()

    objects, result = landed(data, source(format="tsv"), object_bytes=size)

    assert [event for stored in objects for event in field_lines(content(stored))] == field_lines(data)
    assert result.events == len(field_lines(data))


@SETTINGS
@given(
    rows=st.lists(st.text("ab {}\t#é", max_size=10), max_size=20), size=ANY_SIZE, end=st.sampled_from(["\n", "\r\n"])
)
def test_text_lines_are_not_split(rows: list[str], size: int, end: str) -> None:
    data = end.join(rows).encode()

    objects, result = landed(data, source(format="text", pattern="(?P<all>.*)"), object_bytes=size)

    assert [line for stored in objects for line in lines(content(stored))] == lines(data)
    assert result.events == len(lines(data))


@pytest.mark.parametrize(
    "compress", [gzip.compress, bz2.compress, lambda data: pa.compress(data, "zstd", asbytes=True)]
)
def test_compressed_input_is_split_too(compress: Callable[[bytes], bytes]) -> None:
    data = on_lines([{"number": number, "text": "x" * 50} for number in range(2_000)])

    objects, result = landed(compress(data), source(), object_bytes=20_000)

    assert len(objects) == 8
    assert b"".join(content(stored) for stored in objects).replace(b"\n", b"") == data.replace(b"\n", b"")
    assert (result.events, result.read_bytes) == (2_000, len(compress(data)))


def test_several_members_of_gzip_are_one_file() -> None:
    data = gzip.compress(b'{"a": 1}') + gzip.compress(b'{"a": 2}')

    objects, result = landed(data, source(), object_bytes=1_000)

    assert [content(stored) for stored in objects] == [b'{"a": 1}{"a": 2}']
    assert result.events == 2


def test_objects_have_about_the_requested_size() -> None:
    data = one_array([{"number": number, "inside": [{"x": 1}, {"y": 2}]} for number in range(5_000)])

    objects, _ = landed(data, source(), object_bytes=10_000)

    sizes = [len(content(stored)) for stored in objects]
    assert all(9_800 <= size <= 10_002 for size in sizes[:-1])


def test_an_empty_file_lands_no_object() -> None:
    for spec in (source(), source(format="csv"), source(format="tsv")):
        objects, result = landed(b"\n \n", spec, object_bytes=100)

        assert objects == []
        assert (result.objects, result.events) == (0, 0)
