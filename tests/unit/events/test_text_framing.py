"""CSV and text lines: fields by name, types by column, and broken records reported one by one."""

from __future__ import annotations

import csv
import io
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.formats.csv import MAX_RECORD_LINES
from deltaworks.events.formats.json import Malformed
from deltaworks.events.formats.registry import create_framer
from deltaworks.events.parse import Parser
from deltaworks.events.reasons import ConversionError
from deltaworks.recovery.quarantine.open_rows import QuarantineFilter
from deltaworks.recovery.quarantine.replay import replay_quarantine
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.sources import FileSourceSpec
from deltaworks.testing import pipeline_spec
from tests.unit.recovery.replay_harness import ReplayHarness

STAMP = BatchMetadata(batch_id=0, ingested_at_us=1_700_000_000_000_000, fingerprint="fp")
NGINX = r'(?P<host>\S+) \[(?P<at>[^\]]+)\] "(?P<method>\S+) (?P<path>\S+)" (?P<status>\d+)(?: (?P<agent>.+))?'


def source(**options: Any) -> FileSourceSpec:
    return FileSourceSpec.model_validate({"kind": "s3_sqs", "relay": "landing", "bucket": "landing"} | options)


def read(payload: bytes | str, **csv_options: Any) -> list[Any]:
    """The records; `None` for one that is malformed."""
    data = payload.encode() if isinstance(payload, str) else payload
    found = create_framer(source(format="csv", csv=csv_options))(data)
    return [None if isinstance(value, Malformed) else value for value, _ in found]


def test_records_have_the_names_of_the_header() -> None:
    assert read("\ufeffa,b\r\n1,2\r\n\r\n3,\r\n") == [{"a": "1", "b": "2"}, {"a": "3"}]


def test_names_are_declared_where_there_is_no_header() -> None:
    options = {"header": False, "columns": ["a", "b"], "delimiter": "\t", "quote": "'", "null_values": ["", "\\N"]}

    assert read("'x\ty'\t\\N\n1\t2", **options) == [{"a": "x\ty"}, {"a": "1", "b": "2"}]


def test_quoted_fields_hold_delimiters_quotes_and_line_ends() -> None:
    assert read('a,b\n"1,\n2","say ""x"""\n3,4\n') == [{"a": "1,\n2", "b": 'say "x"'}, {"a": "3", "b": "4"}]


@pytest.mark.parametrize(
    "broken",
    ["1", "1,2,3", '"x"y,2', '"never closed,2', '1,"never closed'],
)
def test_a_broken_record_is_malformed_and_others_are_read(broken: str) -> None:
    assert read(f"a,b\n1,2\n{broken}\n3,4\n5,6\n") == [
        {"a": "1", "b": "2"},
        None,
        {"a": "3", "b": "4"},
        {"a": "5", "b": "6"},
    ]


def test_a_quote_that_is_never_closed_costs_its_line_only_however_long_the_object_is() -> None:
    lines = ["1,2"] * (3 * MAX_RECORD_LINES)
    lines[5] = '1,"2'

    found = read("a,b\n" + "\n".join(lines))

    assert Counter(map(str, found)) == {"{'a': '1', 'b': '2'}": len(lines) - 1, "None": 1}


@pytest.mark.parametrize("header", ["a,a", "a,", '"a,b'])
def test_an_invalid_header_rejects_the_complete_object(header: str) -> None:
    with pytest.raises(ConversionError):
        read(f"{header}\n1,2\n")


def test_an_object_without_records_has_no_events() -> None:
    assert read("a,b\n") == []


# Python's writer leaves a lone carriage return without quotes, where it ends a line to every reader.
FIELDS = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=6)


@settings(deadline=None)
@given(
    st.lists(st.tuples(FIELDS, FIELDS, st.integers().map(str)), max_size=8),
    st.sampled_from([",", ";", "\t", "|"]),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
)
def test_written_records_round_trip(
    records: list[tuple[str, str, str]], delimiter: str, end: str, quoting: Any
) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter, lineterminator=end, quoting=quoting)
    writer.writerows([("a", "b", "c"), *records])

    found = read(text.getvalue(), delimiter=delimiter)

    assert found == [{k: v for k, v in zip("abc", record, strict=True) if v} for record in records]


@settings(deadline=None)
@given(st.lists(st.sampled_from(["1,2", '"x",y', "bad", '"open', "", '"a""b","c', ",,", "é,\x85"]), max_size=30))
def test_the_bytes_of_records_and_broken_pieces_are_those_of_their_lines(lines: list[str]) -> None:
    payload = "a,b\n" + "\n".join(lines)

    found = [raw for _, raw in create_framer(source(format="csv"))(payload.encode())]

    assert "\n".join(raw.decode() for raw in found).split("\n") == [line for line in lines if line] or not found
    assert all(raw in payload.encode() for raw in found)


def spec_of(of: dict[str, Any], *columns: dict[str, Any], unit: str = "iso8601") -> PipelineSpec:
    return pipeline_spec(
        {"name": "orders", "catch_all": True, "columns": list(columns)},
        source={"kind": "s3_sqs", "relay": "landing", "bucket": "landing"} | of,
        event={"name": {"constant": "row"}, "time": {"path": "at", "unit": unit}},
    )


def column(name: str, kind: str, **options: Any) -> dict[str, Any]:
    return {"name": name, "path": name, "type": kind} | options


def parse(spec: PipelineSpec, payload: bytes) -> dict[str, list[dict[str, Any]]]:
    return {name: rows.to_pylist() for name, rows in Parser(spec).parse([Payload(1, "k", payload)], STAMP)}


GOOD = {
    "int": ("-5", -5),
    "long": ("9007199254740993", 9007199254740993),
    "double": ("1e3", 1000.0),
    "boolean": ("True", True),
    "string": (" 007 ", " 007 "),
    "array<int>": ('"[1, 2]"', [1, 2]),
}


@pytest.mark.parametrize("kind", GOOD)
def test_texts_are_parsed_by_their_column_s_type(kind: str) -> None:
    written, value = GOOD[kind]

    rows = parse(spec_of({"format": "csv"}, column("v", kind)), f"at,v\n2023-11-14T00:00:00Z,{written}\n".encode())

    assert [row["v"] for row in rows["orders"]] == [value]


@pytest.mark.parametrize(
    ("kind", "written", "value"),
    [
        ("array<int>", '["1", 2, null]', [1, 2, None]),
        ("array<struct<n: int, t: string>>", '[{"n": "1", "t": "1", "more": "2"}]', [{"n": 1, "t": "1"}]),
        ("map<string,double>", '{"a": "1.5", "b": 2}', [("a", 1.5), ("b", 2.0)]),
        (
            "struct<ok: boolean, in: struct<n: long>>",
            '{"ok": "TRUE", "in": {"n": " 7 "}}',
            {"ok": True, "in": {"n": 7}},
        ),
        ("struct<in: array<int>>", '{"in": "[1]"}', {"in": [1]}),
    ],
)
@pytest.mark.parametrize("form", [{"format": "tsv", "tsv": {"columns": ["at", "v"]}}, {"format": "text"}])
def test_texts_inside_json_texts_are_parsed_too(form: dict[str, Any], kind: str, written: str, value: Any) -> None:
    if form["format"] == "text":
        form = form | {"pattern": "(?P<at>[^\t]*)\t(?P<v>.*)"}

    rows = parse(spec_of(form, column("v", kind)), f"2023-11-14T00:00:00Z\t{written}\n".encode())

    assert [row["v"] for row in rows["orders"]] == [value]


def test_a_text_in_a_json_event_is_not_a_number() -> None:
    body = b'{"at": "2023-11-14T00:00:00Z", "v": [{"n": "1"}]}'

    rows = parse(spec_of({"format": "json"}, column("v", "array<struct<n: int>>")), body)

    (reason,) = rows["quarantine"][0]["reasons"]
    assert (reason["path"], reason["detail"]) == ("v[].n", "the text '1' is not a valid whole number")


@pytest.mark.parametrize(
    ("kind", "written", "code"),
    [
        ("int", "1_000", "type_mismatch"),
        ("int", "1.5", "type_mismatch"),
        ("int", "2147483648", "out_of_range"),
        ("double", "nan", "type_mismatch"),
        ("boolean", "yes", "type_mismatch"),
        ("array<int>", "[1", "type_mismatch"),
        ("decimal(4,2)", "1.234", "out_of_range"),
    ],
)
def test_a_text_that_does_not_parse_is_quarantined(kind: str, written: str, code: str) -> None:
    rows = parse(spec_of({"format": "csv"}, column("v", kind)), f"at,v\n2023-11-14T00:00:00Z,{written}\n".encode())

    assert [[reason["code"] for reason in row["reasons"]] for row in rows["quarantine"]] == [[code]]


def test_bytes_that_are_no_text_are_in_quarantine_as_they_were() -> None:
    rows = parse(spec_of({"format": "csv"}, column("v", "string")), b"at,v\n2023-11-14T00:00:00Z,\xff\n")

    (row,) = rows["quarantine"]
    assert (row["raw"], row["reasons"][0]["path"]) == ("2023-11-14T00:00:00Z,\\xff", "v")


def test_times_as_digits_are_read() -> None:
    rows = parse(spec_of({"format": "csv"}, unit="epoch_seconds"), b"at\n1700000000\nsoon\n")

    assert [row["event_time"].timestamp() for row in rows["orders"]] == [1_700_000_000]
    assert len(rows["quarantine"]) == 1


def test_lines_are_parsed_by_a_pattern() -> None:
    columns = [column("status", "int"), column("path", "string"), column("agent", "string"), column("line", "string")]
    line = '10.0.0.1 [2023-11-14T00:00:00Z] "GET /a" 200'

    rows = parse(spec_of({"format": "text", "pattern": NGINX}, *columns), f"{line}\r\n\nnonsense\n{line} x".encode())

    assert [(row["status"], row["path"], row["agent"]) for row in rows["orders"]] == [
        (200, "/a", None),
        (200, "/a", "x"),
    ]
    assert rows["orders"][0]["line"] == line
    assert [(row["raw"], row["reasons"][0]["code"]) for row in rows["quarantine"]] == [("nonsense", "malformed")]


@pytest.mark.parametrize(
    "of",
    [
        {"format": "text"},
        {"format": "text", "pattern": "("},
        {"format": "text", "pattern": "no groups"},
        {"format": "json", "pattern": "(?P<a>.)"},
        {"format": "csv", "csv": {"header": False}},
        {"format": "csv", "csv": {"columns": ["a"]}},
        {"format": "csv", "csv": {"header": False, "columns": ["a", "a"]}},
        {"format": "csv", "csv": {"delimiter": ";;"}},
    ],
)
def test_a_source_that_could_not_be_read_is_refused(of: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        source(**of)


def test_quarantined_records_are_replayed_with_the_header_of_their_object(tmp_path: Path) -> None:
    stage = ReplayHarness(tmp_path)
    stage.ingest(
        spec_of({"format": "csv"}, column("v", "int")),
        b"at,v\n2023-11-14T00:00:00Z,1\n2023-11-14T00:00:00Z,x\n",
        b"at,at\n2023-11-14T00:00:00Z,3\n",
    )
    assert stage.open_places() == Counter([(1, 1), (2, -1)])
    declared = {"header": False, "columns": ["at", "text"]}
    mended = spec_of({"format": "csv"}, column("w", "string", path="v"))

    first = replay_quarantine(stage.catalog(mended), "shop", QuarantineFilter(), dry_run=False)
    by_names = spec_of({"format": "csv", "csv": declared}, column("u", "string", path="text"))
    second = replay_quarantine(stage.catalog(by_names), "shop", QuarantineFilter(), dry_run=False)

    assert (first.landed, first.still_rejected) == (1, 1)
    assert second.landed == 1
    assert stage.places("orders") == Counter([(1, 0), (1, 1), (2, 1)])
    assert stage.open_places() == Counter([(2, 0)])
