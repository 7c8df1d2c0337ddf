"""Every event of a payload lands or is in quarantine: events in = rows + events that quarantine stands for."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import fastavro
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deltaworks.events.budget import Budget
from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.formats.json import Malformed, read_events
from deltaworks.events.formats.registry import FORMATS
from deltaworks.events.parse import Parser
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.testing import SOURCE, declare_table, pipeline_spec
from tests.examples import examples

STAMP = BatchMetadata(batch_id=0, ingested_at_us=1_700_000_000_000_000, fingerprint="fp")
KAFKA = {"kind": "kafka", "bootstrap_servers": "localhost:9092", "topics": ["orders"]}
KINESIS = {"kind": "kinesis", "stream": "orders"}
SOURCES: Mapping[str, Mapping[str, Any]] = {"objects": SOURCE, "kafka": KAFKA, "kinesis": KINESIS}


def spec_of(source: Mapping[str, Any], **more: Any) -> PipelineSpec:
    event = {"name": {"constant": "order"}, "time": {"arrival": True}}
    return pipeline_spec(declare_table("orders", "n long required"), source=dict(source), event=event, **more)


def counted(spec: PipelineSpec, data: bytes, *, columnar: bool = False) -> tuple[list[int], int, int]:
    """The numbers that landed, the events of quarantine, and the events that the findings count."""
    parser = Parser(spec, columnar_from_bytes=0 if columnar else None)
    rows, quarantined = [], 0
    for name, part in parser.parse([Payload(1, "k", data, arrived_at_us=STAMP.ingested_at_us)], STAMP):
        if name == "quarantine":
            quarantined += sum(part.column("events").to_pylist())
        else:
            rows += part.column("n").to_pylist()
    assert parser.findings.quarantined == quarantined
    return rows, quarantined, parser.findings.events


def avro(numbers: list[Any]) -> bytes:
    written = io.BytesIO()
    schema = {"type": "record", "name": "order", "fields": [{"name": "n", "type": ["long", "string"]}]}
    fastavro.writer(written, fastavro.parse_schema(schema), [{"n": number} for number in numbers])
    return written.getvalue()


def parquet(numbers: list[Any]) -> bytes:
    written = io.BytesIO()
    pq.write_table(pa.table({"n": pa.array(numbers, pa.int64())}), written)
    return written.getvalue()


#: By format: the options of the source, and a payload of the numbers 1 and 3, two broken events, and what is no event.
CASES: Mapping[str, tuple[dict[str, Any], list[bytes]]] = {
    "json": (
        {},
        [
            b'{"n":1}\n\n{"n":}\nnonsense\n{"n":3}\n',
            b'[{"n":1},{"n":},{"n":x},{"n":3}]',
            b'[\n {"n": 1},\n {"n": },\n nonsense,\n {"n": 3}\n]\n',
            b'{"n":1},{"n":},{"n":x},{"n":3}',
            b'{"n":1},\n{"n":},\n{"n":x},\n{"n":3},\n',
            b'\xef\xbb\xbf{"n":1}\n\xef\xbb\xbf{"n":}\n{"n":x}\n\xef\xbb\xbf{"n":3}',
            b'\x1e{"n":1}\n\x1e{"n":}\n\x1e{"n":x}\n\x1e{"n":3}\n',
            b'[{"n":1}]\n[{"n":},{"n":"\\ud800"}]\n[{"n":3}]\n',
            b'[{"n":1},{"n":"\xff"},{"n":"\xfe"},{"n":3}]',
            b'{"n":1}\n[1,2]\n{"n":3}',
            b'[{"n":1},null,{"n":,"in":[{"n":7},{"n":8}]},{"n":3}]',
        ],
    ),
    "csv": (
        {"csv": {"header": False, "columns": ["tag", "n"]}},
        [b'a,1\n\nb\n#c,x\n"d\n,",3\n', b"#,1\r\n#Fields: a b\r\n,\r\n,3\r\n"],
    ),
    "tsv": (
        {"tsv": {"columns": ["tag", "n"]}},
        [
            b"#Version: 1.0\n#Fields: tag n\n#go\t1\n\n#\n#nothing\tx\n\t3\n",
            b"#Software: x\r\n#version: 2\r\n#\t1\r\n\t\r\n#Field: a\tb\r\n#Fields\t3\r\n",
            b"#Start-Date: x\n#End-Date: x\n#Date: x\n#Remark: #\n# 1\t1\n \n# 2\n# 3\n# 4\t3",
        ],
    ),
    "text": (
        {"pattern": r"(?P<tag>\S+) (?P<n>\S+)"},
        [b"a 1\n\n#b\n# x\nd 3\n", b"\r\n# 1\r\n#Fields: a b\r\nx\ry 3"],
    ),
    "avro": ({}, [avro([1, "x", "y", 3])]),
    "parquet": ({}, [parquet([1, None, None, 3])]),
}


def test_every_format_has_a_case() -> None:
    assert set(CASES) == set(FORMATS)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("form", "at"), [(form, at) for form, (_, payloads) in CASES.items() for at in range(len(payloads))]
)
def test_events_in_are_rows_and_quarantined_events(form: str, at: int, source: str) -> None:
    options, payloads = CASES[form]
    if source != "objects" and form in ("avro", "parquet"):
        pytest.skip("a format of objects")
    spec = spec_of(SOURCES[source] | {"format": form} | options)

    assert counted(spec, payloads[at]) == ([1, 3], 2, 4)
    assert counted(spec, payloads[at], columnar=True) == ([1, 3], 2, 4)


@pytest.mark.parametrize(
    ("source", "data", "events"),
    [
        ({}, b"one\ntwo\nthree\n", 3),
        ({}, b'[{"n":"x},{"n":"1"},{"n":"2"}]', 3),
        ({"budget": {"max_records": 2}}, b'{"n":1}\n{"n":2}\n{"n":3}\n{"n":4}', 2),
        ({"budget": {"max_records": 2}}, b'[{"n":1},{"n":2},{"n":3},{"n":4}]', 2),
        ({"format": "tsv"}, b"a\t1\nb\t2\n\n", 2),
        ({"format": "csv"}, b"a,a\n1,2\n3,4\n", 3),
        ({"format": "avro", "budget": {"max_records": 2}}, avro([1, 2, 3]), 3),
        ({"format": "avro"}, avro([1, 2, 3])[:-20] + b"x" * 20, 1),
        ({}, b"PK\x03\x04 a\nb\n", 1),
    ],
)
def test_a_row_that_stands_for_many_events_says_how_many(source: dict[str, Any], data: bytes, events: int) -> None:
    _, quarantined, _ = counted(spec_of(SOURCE | source), data)

    assert quarantined == events


def test_an_unreadable_block_stands_for_its_records() -> None:
    data = bytearray(avro([1, 2, 3]))
    data[-17] ^= 0xFF

    rows, quarantined, events = counted(spec_of(SOURCE | {"format": "avro"}), bytes(data))

    assert (rows, quarantined, events) == ([], 3, 3)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_broken_element_in_the_text_of_a_wrapper_costs_itself(wrapped: bool) -> None:
    body = '[{"n":1},{"n":},{"n":"\\ud800"},{"n":12345678901234567}]'
    data = json.dumps([{"stage": "prod", "body": body}] if wrapped else {"stage": "prod", "body": body}).encode()
    spec = spec_of(SOURCE, unwrap={"path": "body", "keep": ["stage"]})

    assert counted(spec, data) == ([1, 12345678901234567], 2, 4)
    assert counted(spec, data, columnar=True) == ([1, 12345678901234567], 2, 4)


class TestSchemaHeaders:
    CONFLUENT, GLUE = b"\x00\x00\x00\x00\x2a", b"\x03\x00" + bytes(range(16))

    @pytest.mark.parametrize(("key", "header"), [("confluent", CONFLUENT), ("glue", GLUE)])
    @pytest.mark.parametrize("source", [KAFKA, KINESIS])
    def test_a_declared_header_is_removed(self, key: str, header: bytes, source: Mapping[str, Any]) -> None:
        spec = spec_of(dict(source) | {"schema_header": key})

        assert counted(spec, header + b'{"n":1}') == ([1], 0, 1)
        assert counted(spec, header + b'[{"n":1},{"n":2}]', columnar=True) == ([1, 2], 0, 2)
        assert counted(spec, b'{"n":1}') == ([1], 0, 1)
        text = spec_of(dict(source) | {"schema_header": key, "format": "csv", "csv": CASES["csv"][0]["csv"]})
        assert counted(text, header + b"a,1") == ([1], 0, 1)

    @pytest.mark.parametrize(
        ("declared", "data", "hint"),
        [
            ("none", CONFLUENT + b'{"n":1}', "declare source.schema_header: confluent"),
            ("glue", CONFLUENT + b' [{"n":1}]', "declare source.schema_header: confluent"),
            ("none", GLUE + b'{"n":1}', "declare source.schema_header: glue"),
            ("confluent", GLUE + b'{"n":1}', "declare source.schema_header: glue"),
            ("none", CONFLUENT + b"\x02\x06abc", "let the producer write JSON"),
            ("confluent", CONFLUENT + b"\x00\x0a\x03abc", "let the producer write JSON"),
            ("glue", b"\x03\x05" + GLUE[2:] + b"x\x9c", "turn compression off"),
        ],
    )
    def test_another_header_is_a_reason_that_names_the_key(self, declared: str, data: bytes, hint: str) -> None:
        parser = Parser(spec_of(KAFKA | {"schema_header": declared}))

        ((name, rows),) = parser.parse([Payload(1, "k", data, arrived_at_us=STAMP.ingested_at_us)], STAMP)

        (row,) = rows.to_pylist()
        (reason,) = row["reasons"]
        assert (name, reason["code"]) == ("quarantine", "object_wrong_format")
        assert hint in reason["detail"]


# A slow, obvious reader of arrays and joined objects.


def slow_elements(text: str) -> list[str]:
    """The texts between commas, line ends and record separators that are outside of strings and objects."""
    elements, depth, in_string, begin = [""], 0, False, 0
    body = text.strip()
    body = body[1:-1] if body.startswith("[") else body
    while begin < len(body):
        mark = body[begin]
        if in_string and mark == "\\":
            elements[-1] += body[begin : begin + 2]
            begin += 2
            continue
        in_string ^= mark == '"'
        depth += (not in_string) * ((mark in "{[") - (mark in "}]"))
        if depth == 0 and not in_string and mark in ",\n\x1e":
            elements.append("")
        else:
            elements[-1] += mark
        begin += 1
    return [element.strip() for element in elements if element.strip()]


def slow_read(text: str) -> tuple[list[Any], int]:
    """The events, and the number of texts that are none."""
    events, broken = [], 0
    for element in slow_elements(text):
        try:
            events.append(orjson.loads(element))
        except orjson.JSONDecodeError:
            broken += 1
    return events, broken


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.text('{}[]"\\ ,:\n\x1e#é', max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
GOOD = st.dictionaries(TEXTS, VALUES, max_size=3).map(lambda value: json.dumps(value, ensure_ascii=False))
#: Objects without objects or what looks like them inside.
FLAT = st.dictionaries(st.text("abé", max_size=3), st.integers(0, 99) | st.text('xyé"', max_size=3), max_size=3).map(
    lambda value: json.dumps(value, ensure_ascii=False)
)
#: Objects with a mistake of which the brackets and quotes are complete.
BROKEN = st.tuples(
    GOOD.filter(lambda text: text != "{}" and not re.search(r"\}\s*,?\s*\{", text)),
    st.sampled_from(["", "undefined", "NaN", "1_000", "'x'", "01", "+1", "1 2", '"a" "b"', "[1,]", '{"a"}', '{"a":}']),
    st.booleans(),
).map(lambda of: f'{{"x":{of[1]},{of[0][1:]}' if of[2] else f'{of[0][:-1]},"x":{of[1]}}}')
JOIN: Mapping[str, Callable[[list[str]], str]] = {
    "array": lambda elements: f"[{','.join(elements)}]",
    "array on lines": lambda elements: "[\n  " + ",\n  ".join(elements) + "\n]\n",
    "array, commas first": lambda elements: "[ " + "\n, ".join(elements) + "\n]",
    "commas": ",".join,
    "commas and lines": lambda elements: ",\n".join(elements) + ",\n",
    "lines": "\n".join,
    "record separators": lambda elements: "".join(f"\x1e{element}\n" for element in elements),
}


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(GOOD | BROKEN, min_size=1, max_size=6), st.sampled_from(sorted(JOIN)))
@example(['{"n":0}', '{"n":}', '{"n":1}'], "array")
@example(['{"a": 1, "x":}', '{"in":[{"a":1},{"b":2}],"x":}', "{}"], "array")
@example(['{"x":"}{"}', '{"x":,"a":"},{"}'], "commas")
def test_a_broken_element_costs_itself_only(elements: list[str], join: str) -> None:
    text = JOIN[join](elements)

    found = list(read_events(text.encode(), Budget(size=len(text))))

    events, broken = slow_read(text)
    assert [value for value, _ in found if not isinstance(value, Malformed)] == events
    assert sum(value.events for value, _ in found if isinstance(value, Malformed)) == broken


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(GOOD, max_size=5), GOOD, st.lists(GOOD, max_size=3), st.sampled_from(sorted(JOIN)), st.data())
def test_elements_before_a_truncated_one_land(
    before: list[str], cut: str, after: list[str], join: str, data: st.DataObject
) -> None:
    broken = cut[: data.draw(st.integers(1, len(cut) - 1))]
    text = JOIN[join]([*before, broken, *after])

    found = list(read_events(text.encode()))

    assert [value for value, _ in found][: len(before)] == [orjson.loads(element) for element in before]
    assert any(isinstance(value, Malformed) for value, _ in found)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(FLAT, min_size=1, max_size=5), st.data())
def test_a_payload_that_ends_within_an_array_says_so(elements: list[str], data: st.DataObject) -> None:
    text = JOIN["array"](elements).encode()
    cut = text[: data.draw(st.integers(2, len(text) - 1))]

    *found, (last, _) = read_events(cut)

    assert isinstance(last, Malformed)
    assert [value for value, _ in found] == [orjson.loads(element) for element in elements][: len(found)]
    ends = [sum(map(len, (element.encode() for element in elements[: at + 1]))) + at + 1 for at in range(len(elements))]
    assert len(found) == sum(end <= len(cut) for end in ends)


def test_two_hundred_thousand_objects_joined_by_commas_land() -> None:
    numbers = range(200_000)
    data = ",".join(f'{{"n":{number}}}' for number in numbers).encode()

    assert [value["n"] for value, _ in read_events(data)] == list(numbers)
