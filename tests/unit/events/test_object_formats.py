"""TSV, Parquet and Avro objects, and objects in another format than declared."""

from __future__ import annotations

import datetime as dt
import decimal
import gzip
import io
import uuid
from pathlib import Path
from typing import Any, ClassVar, get_args

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.formats.json import Malformed
from deltaworks.events.formats.registry import FORMATS, create_framer
from deltaworks.events.parse import Parser
from deltaworks.events.reasons import ConversionError, Reason, ReasonCode
from deltaworks.events.task_findings import TaskFindings
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.record_sources import PayloadSpec
from deltaworks.specs.sources import FileSourceSpec
from deltaworks.testing import declare_columns, declare_table, parse_events, pipeline_spec

STAMP = BatchMetadata(batch_id=0, ingested_at_us=1_700_000_000_000_000, fingerprint="fp")


def source(**options: Any) -> FileSourceSpec:
    return FileSourceSpec.model_validate({"kind": "s3_sqs", "relay": "landing", "bucket": "landing"} | options)


def read(payload: bytes, **options: Any) -> list[Any]:
    """The events; `None` for one that is malformed."""
    return [None if isinstance(value, Malformed) else value for value, _ in create_framer(source(**options))(payload)]


def parsed(payloads: list[Payload], **declared: Any) -> dict[str, list[dict[str, Any]]]:
    """The rows of all tables of a pipeline."""
    return parse_events(pipeline_spec(**declared), *payloads, stamp=STAMP)


def reasons(found: dict[str, list[dict[str, Any]]]) -> list[tuple[int, str]]:
    return [(row["_position"], row["reasons"][0]["code"]) for row in found.get("quarantine", [])]


class TestFieldLines:
    def test_names_come_from_the_line_before_and_may_change(self) -> None:
        text = "#Version: 1.0\n#Fields: a b\n1\t2\n\n3\t-\n#Fields: b c\n4\t5\r\n"
        assert read(text.encode(), format="tsv") == [{"a": "1", "b": "2"}, {"a": "3"}, {"b": "4", "c": "5"}]

    def test_a_line_of_another_length_is_malformed_and_others_are_read(self) -> None:
        assert read(b"#Fields: a b\n1\t2\n3\n4\t5\n", format="tsv") == [
            {"a": "1", "b": "2"},
            None,
            {"a": "4", "b": "5"},
        ]

    def test_a_date_and_a_time_make_an_instant(self) -> None:
        (event,) = read(b"#Fields: date time x\n2018-11-01\t12:30:59\ty\n", format="tsv")
        assert event["datetime"] == "2018-11-01T12:30:59Z"

    def test_names_are_declared_where_there_are_none(self) -> None:
        options = {"format": "tsv", "tsv": {"columns": ["a", "b"], "null_values": ["", "-"]}}
        # A single `#` is a directive without content; where a line has one field, it is a value.
        assert read(b"#\n1\t2\n# x\n\t3\n", **options) == [{"a": "1", "b": "2"}, None, {"b": "3"}]
        assert read(b"#\nx\n", format="tsv", tsv={"columns": ["a"]}) == [{"a": "#"}, {"a": "x"}]
        with pytest.raises(ConversionError, match="no #Fields line"):
            read(b"1\t2\n", format="tsv")

    @pytest.mark.parametrize(
        ("name", "rows", "fields"),
        [("sample-cloudfront-access-logs.gz", 66, 26), ("cloudfront_docs_example.log", 6, 33)],
    )
    def test_logs_of_cloudfront_with_a_header(self, cloudfront_logs: Path, name: str, rows: int, fields: int) -> None:
        data = (cloudfront_logs / name).read_bytes()
        data = gzip.decompress(data) if name.endswith(".gz") else data
        lines = data.decode().splitlines()
        names = next(line for line in lines if line.startswith("#Fields:")).split()[1:]
        found = read(data, format="tsv")
        assert (len(names), len(found)) == (fields, rows)
        for line, event in zip([line for line in lines if line[:1] not in "#"], found, strict=True):
            # One line of the documentation's own example has a field too many.
            assert (event is None) == (line.count("\t") != fields - 1)
            if event is not None:
                assert [event.get(each, "-") for each in names] == line.split("\t")
                assert event["datetime"] == f"{event['date']}T{event['time']}Z"

    def test_each_line_of_a_log_with_spaces_is_malformed(self, cloudfront_logs: Path) -> None:
        assert read((cloudfront_logs / "cloudfront.log").read_bytes(), format="tsv") == [None, None]

    def test_logs_of_cloudfront_without_a_header(self, cloudfront_logs: Path) -> None:
        data = gzip.decompress((cloudfront_logs / "cf-access-log-sample.gz").read_bytes())
        columns = [f"f{number}" for number in range(19)]
        found = read(data, format="tsv", tsv={"columns": columns})
        lines = [line for line in data.decode().splitlines() if line and not line.startswith("#")]
        assert len(found) == len(lines) == 28_949
        whole = [line for line in lines if line.count("\t") == 18]
        assert sum(event is not None for event in found) == len(whole)


def parquet(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


class TestParquet:
    TABLE = pa.table(
        {
            "id": pa.array([1, 2, None], pa.int64()),
            "at": pa.array([dt.datetime(2026, 1, 2, 3, 4, 5, 678901, dt.UTC)] * 3, pa.timestamp("ns", "UTC")),
            "day": pa.array([dt.date(2026, 1, 2)] * 3),
            "price": pa.array([decimal.Decimal("4.99"), decimal.Decimal("12345678901234567.89"), None]),
            "tags": pa.array([["a"], [], None], pa.list_(pa.string())),
            "of": pa.array([{"x": 1}, None, {"x": 2}]),
            "counts": pa.array([[("a", 1)], [], None], pa.map_(pa.string(), pa.int64())),
            "raw": pa.array([b"abc", b"\xff\x00", None]),
        }
    )
    DECLARED: ClassVar[dict[str, Any]] = {
        "source": {"kind": "cloud_files", "relay": "landing", "bucket": "landing", "format": "parquet"},
        "event": {"name": {"constant": "e"}, "time": {"path": "at"}, "id": "id"},
        "tables": [
            declare_table(
                "events",
                "day date",
                "price decimal(20,2)",
                "tags array<string>",
                "x int from of.x",
                "counts map<string,long>",
                "raw string",
            )
        ],
    }

    @pytest.mark.parametrize(
        "options", [{}, {"compression": "gzip"}, {"row_group_size": 1}, {"data_page_version": "2.0"}]
    )
    def test_rows_are_events_with_their_types(self, options: dict[str, Any]) -> None:
        found = parsed([Payload(7, "a.parquet", parquet(self.TABLE, **options))], **self.DECLARED)
        first, second = found["events"]
        assert first["event_time"] == dt.datetime(2026, 1, 2, 3, 4, 5, 678901, dt.UTC)
        assert (first["day"], first["price"], first["tags"]) == (dt.date(2026, 1, 2), decimal.Decimal("4.99"), ["a"])
        assert (first["x"], first["counts"], first["raw"]) == (1, [("a", 1)], "616263")
        assert (second["price"], second["x"], second["raw"]) == (decimal.Decimal("12345678901234567.89"), None, "ff00")
        assert [row["_position"] for row in found["events"]] == [0, 1]
        assert reasons(found) == [(2, "missing_required")]

    def test_a_truncated_object_is_unreadable(self) -> None:
        data = parquet(self.TABLE)
        found = parsed([Payload(7, "a.parquet", data[: len(data) // 2])], **self.DECLARED)
        assert reasons(found) == [(-1, "object_unreadable")]

    def test_a_corrupt_row_group_is_malformed_and_others_are_read(self) -> None:
        table = pa.table({"id": list(range(3000)), "at": ["2026-01-02T03:04:05Z"] * 3000})
        data = parquet(table, row_group_size=1000, write_page_checksum=True, compression="none", use_dictionary=False)
        start = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(1).column(0).data_page_offset
        damaged = data[: start + 600] + bytes([data[start + 600] ^ 0xFF]) + data[start + 601 :]
        found = parsed([Payload(7, "a.parquet", damaged)], **self.DECLARED)
        assert len(found["events"]) == 2000
        assert reasons(found) == [(1000, "malformed")]
        assert [row["events"] for row in found["quarantine"]] == [1000], "it stands for the rows of its group"
        assert len(parsed([Payload(7, "a", data)], **self.DECLARED)["events"]) == 3000

    @pytest.mark.parametrize("year", [1, 1601, 1969, 2026, 2500, 9999])
    @pytest.mark.parametrize("stored", [{"use_deprecated_int96_timestamps": True}, {"coerce_timestamps": "us"}])
    def test_times_are_read_in_every_year_and_on_every_level(self, stored: dict[str, Any], year: int) -> None:
        at = dt.datetime(year, 12, 31, 23, 59, 59, 123456)
        kind = pa.timestamp("us")
        columns = {
            "top": pa.array([at], kind),
            "inner": pa.array([{"at": at}], pa.struct([("at", kind)])),
            "list": pa.array([[{"at": [at]}]], pa.list_(pa.struct([("at", pa.list_(kind))]))),
            "map": pa.array([[("k", at)]], pa.map_(pa.string(), kind)),
        }
        text = at.isoformat()

        (event,) = read(parquet(pa.table(columns), store_schema=False, **stored), format="parquet")

        assert event == {"top": text, "inner": {"at": text}, "list": [{"at": [text]}], "map": {"k": text}}

    def test_bytes_have_one_form(self) -> None:
        values = [b"\xff\x00", b"ff00", b"text"]
        table = pa.table({"raw": values, "keys": pa.array([[(b"k1", 1)]] * 3, pa.map_(pa.binary(), pa.int64()))})

        events = read(parquet(table), format="parquet")

        assert [event["raw"] for event in events] == [value.hex() for value in values]
        assert events[0]["keys"] == {b"k1".hex(): 1}

    @pytest.mark.parametrize("use_dictionary", [True, False])
    def test_enumerated_values_are_text_which_arrow_takes_for_bytes(self, use_dictionary: bool) -> None:
        table = pa.table({"kind": ["ON", "OFF"], "of": pa.array([[{"kind": "ON"}], None])})
        text, enumeration = b"\x25\x00\x4c\x1c\x00\x00", b"\x25\x08\x4c\x4c\x00\x00"
        content = parquet(table, store_schema=False, use_dictionary=use_dictionary)
        body = content.replace(text, enumeration)
        assert pq.read_schema(io.BytesIO(body)).field("kind").type == pa.binary()

        assert read(body, format="parquet") == [{"kind": "ON", "of": [{"kind": "ON"}]}, {"kind": "OFF", "of": None}]


JSON_TYPES = (str, int, float, bool, type(None))
AT = dt.datetime(2020, 1, 2, 3, 4, 5, 678901)
#: Values of each type that Parquet stores, in the form of pyarrow.
PARQUET_VALUES: dict[pa.DataType, Any] = {
    pa.bool_(): True,
    pa.int8(): -1,
    pa.uint64(): 2**64 - 1,
    pa.float16(): 1.5,
    pa.float32(): 1.5,
    pa.float64(): -0.1,
    pa.string(): "a",
    pa.large_string(): "a",
    pa.string_view(): "a",
    pa.binary(): b"\xff",
    pa.large_binary(): b"a",
    pa.binary_view(): b"a",
    pa.binary(2): b"ab",
    pa.timestamp("s"): AT,
    pa.timestamp("ms"): AT,
    pa.timestamp("us"): AT,
    pa.timestamp("ns"): AT,
    pa.timestamp("ns", tz="UTC"): AT.replace(tzinfo=dt.UTC),
    pa.timestamp("ns", tz="Europe/Berlin"): AT.replace(tzinfo=dt.UTC),
    pa.date32(): AT.date(),
    pa.date64(): AT.date(),
    pa.time32("ms"): dt.time(1, 2, 3),
    pa.time64("us"): dt.time(1, 2, 3, 4),
    pa.time64("ns"): dt.time(1, 2, 3, 4),
    pa.duration("s"): dt.timedelta(seconds=2),
    pa.duration("ns"): dt.timedelta(seconds=1.5),
    pa.decimal32(5, 2): decimal.Decimal("1.25"),
    pa.decimal128(38, 2): decimal.Decimal("123456789012345678.25"),
    pa.decimal256(60, 2): decimal.Decimal("1.25"),
    pa.dictionary(pa.int32(), pa.string()): "a",
    pa.dictionary(pa.int32(), pa.binary()): b"a",
    pa.dictionary(pa.int32(), pa.int64()): 1,
}
#: Each level of nesting: its type for the type of what it holds, and its value.
NESTINGS: dict[str, tuple[Any, Any]] = {
    "top": (lambda kind: kind, lambda value: value),
    "struct": (lambda kind: pa.struct([("f", kind)]), lambda value: {"f": value}),
    "list": (pa.list_, lambda value: [value, None]),
    "large list": (pa.large_list, lambda value: [value]),
    "fixed list": (lambda kind: pa.list_(kind, 1), lambda value: [value]),
    "map": (lambda kind: pa.map_(pa.string(), kind), lambda value: [("k", value)]),
    "key": (lambda kind: pa.map_(kind, pa.int32()), lambda value: [(value, 1)]),
    "structured key": (
        lambda kind: pa.map_(pa.struct([("f", kind)]), pa.int32()),
        lambda value: [({"f": value}, 1)],
    ),
    "deep": (
        lambda kind: pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(kind)))])),
        lambda value: [{"m": [("k", [value])]}],
    ),
}


def holds_json_types_only(value: Any) -> bool:
    if isinstance(value, dict):
        return all(type(name) is str and holds_json_types_only(item) for name, item in value.items())
    if isinstance(value, list):
        return all(map(holds_json_types_only, value))
    return type(value) in JSON_TYPES


@pytest.mark.parametrize("nesting", NESTINGS)
@pytest.mark.parametrize("store_schema", [True, False])
def test_what_leaves_the_parquet_reader_is_json_on_every_level(nesting: str, store_schema: bool) -> None:
    nested_type, nested_value = NESTINGS[nesting]
    failed: dict[str, Any] = {}
    for kind, value in PARQUET_VALUES.items():
        column = pa.array([nested_value(value), None], nested_type(kind))
        events = read(parquet(pa.table({"x": column}), store_schema=store_schema), format="parquet")
        if len(events) != 2 or not all(event is not None and holds_json_types_only(event) for event in events):
            failed[str(kind)] = events

    assert not failed


@pytest.mark.parametrize("store_schema", [True, False])
def test_extension_types_of_arrow_are_read_as_what_they_store(store_schema: bool) -> None:
    stored = {
        "id": (pa.uuid(), [uuid.UUID(int=5).bytes], ["00000000-0000-0000-0000-000000000005"]),
        "json": (pa.json_(), ['{"a":1}'], ['{"a":1}']),
        "flag": (pa.bool8(), [1], [1]),
    }
    table = pa.table(
        {
            name: pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
            for name, (kind, values, _) in stored.items()
        }
    )

    (event,) = read(parquet(table, store_schema=store_schema), format="parquet")

    assert event == {name: expected for name, (_, _, (expected,)) in stored.items()}


_LONG = {"type": "long"}
#: Types of Avro, a value of each, and the value of an event.
AVRO_VALUES: list[tuple[Any, Any, Any]] = [
    (["null", "string"], None, None),
    ("boolean", True, True),
    ("int", 1, 1),
    ("double", 1.5, 1.5),
    ("string", "a", "a"),
    ("bytes", b"a\xff", "61ff"),
    ("bytes", b"text", "74657874"),
    ({"type": "fixed", "name": "F", "size": 2}, b"ab", "6162"),
    ({"type": "enum", "name": "E", "symbols": ["A"]}, "A", "A"),
    ({"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}, decimal.Decimal("1.25"), 1.25),
    ({"type": "int", "logicalType": "date"}, AT.date(), "2020-01-02"),
    ({"type": "int", "logicalType": "time-millis"}, dt.time(1, 2, 3), "01:02:03"),
    (_LONG | {"logicalType": "time-micros"}, dt.time(1, 2, 3, 4), "01:02:03.000004"),
    (_LONG | {"logicalType": "timestamp-micros"}, AT.replace(tzinfo=dt.UTC), "2020-01-02T03:04:05.678901+00:00"),
    (_LONG | {"logicalType": "local-timestamp-millis"}, AT, "2020-01-02T03:04:05.678000"),
    (_LONG | {"logicalType": "timestamp-nanos"}, 1_577_934_245_678_901_234, "2020-01-02T03:04:05.678901+00:00"),
    (_LONG | {"logicalType": "local-timestamp-nanos"}, 1_577_934_245_678_901_234, "2020-01-02T03:04:05.678901"),
    ({"type": "string", "logicalType": "uuid"}, uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    ({"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"}, b"\1" * 12, "01" * 12),
]


@pytest.mark.parametrize(("kind", "value", "expected"), AVRO_VALUES)
def test_what_leaves_the_avro_reader_is_json_on_every_level(kind: Any, value: Any, expected: Any) -> None:
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "f", "type": {"type": "array", "items": kind}}]}
    fields = [{"name": "of", "type": {"type": "map", "values": inner}}]
    sink = io.BytesIO()
    schema = fastavro.parse_schema({"type": "record", "name": "R", "fields": fields})
    fastavro.writer(sink, schema, [{"of": {"k": {"f": [value]}}}])

    (event,) = read(sink.getvalue(), format="avro")

    assert event == {"of": {"k": {"f": [expected]}}}
    assert holds_json_types_only(event)


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("csv", b"a,b\n1,x\n"),
        ("tsv", b"#Fields: a b\n1\tx\n"),
        ("text", b"x\n"),
        ("json", b'{"a": [1e400, 1, {"b": null}], "c": 18446744073709551616}'),
    ],
)
def test_what_leaves_the_other_readers_is_json(name: str, payload: bytes) -> None:
    options = {"pattern": "(?P<a>.*)"} if name == "text" else {}
    events = read(payload, format=name, **options)

    assert events
    assert all(event is None or holds_json_types_only(event) for event in events)


def test_decimals_of_typed_forms_arrive_whatever_their_digits() -> None:
    prices = [decimal.Decimal(text) for text in ("0.30000000000000004", "99999999999999.99", "12345678901234567.89")]
    table = pa.table(
        {
            "id": ["a", "b", "c"],
            "at": ["2026-01-02T03:04:05Z"] * 3,
            "price": pa.array(prices, pa.decimal128(38, 17)),
        }
    )
    declared = TestParquet.DECLARED | {"tables": [declare_table("events", "price decimal(38,17)")]}
    found = parsed([Payload(7, "a.parquet", parquet(table))], **declared)
    assert [row["price"] for row in found["events"]] == prices


class TestAvro:
    SCHEMA: ClassVar[dict[str, Any]] = {
        "type": "record",
        "name": "event",
        "fields": [
            {"name": "id", "type": ["null", "long"]},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 2}},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
            {
                "name": "of",
                "type": ["null", {"type": "record", "name": "of", "fields": [{"name": "x", "type": "int"}]}],
            },
            {"name": "counts", "type": {"type": "map", "values": "long"}},
            {"name": "raw", "type": "bytes"},
        ],
    }
    DECLARED: ClassVar[dict[str, Any]] = TestParquet.DECLARED | {
        "source": {"kind": "cloud_files", "relay": "landing", "bucket": "landing", "format": "avro"}
    }

    @staticmethod
    def records(count: int) -> list[dict[str, Any]]:
        return [
            {
                "id": number,
                "at": dt.datetime(2026, 1, 2, 3, 4, 5, 678901, dt.UTC),
                "day": dt.date(2026, 1, 2),
                "price": decimal.Decimal("12345678901234567.89") + number,
                "tags": ["a", "b"],
                "of": {"x": number} if number % 2 else None,
                "counts": {"a": number},
                "raw": b"\xff\x00",
            }
            for number in range(count)
        ]

    def avro(self, records: list[dict[str, Any]], **options: Any) -> bytes:
        sink = io.BytesIO()
        fastavro.writer(sink, self.SCHEMA, records, **options)
        return sink.getvalue()

    @pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
    def test_records_are_events_with_their_types(self, codec: str) -> None:
        data = self.avro([*self.records(2), {**self.records(1)[0], "id": None}], codec=codec)
        found = parsed([Payload(7, "a.avro", data)], **self.DECLARED)
        first, second = found["events"]
        assert first["event_time"] == dt.datetime(2026, 1, 2, 3, 4, 5, 678901, dt.UTC)
        assert (first["day"], first["tags"], first["x"]) == (dt.date(2026, 1, 2), ["a", "b"], None)
        assert (first["price"], first["raw"]) == (decimal.Decimal("12345678901234567.89"), "ff00")
        assert (second["x"], second["counts"]) == (1, [("a", 1)])
        assert reasons(found) == [(2, "missing_required")]

    def test_a_torn_block_is_malformed_and_earlier_ones_are_read(self) -> None:
        data = self.avro(self.records(3000), sync_interval=4000)
        blocks = list(fastavro.block_reader(io.BytesIO(data)))
        assert len(blocks) > 3
        torn = data[: blocks[2].offset + 100]
        found = parsed([Payload(7, "a.avro", torn)], **self.DECLARED)
        whole = blocks[0].num_records + blocks[1].num_records
        assert [row["_position"] for row in found["events"]] == list(range(whole))
        assert reasons(found) == [(whole, "malformed")]

    def test_a_corrupt_block_is_malformed_and_others_are_read(self) -> None:
        data = self.avro(self.records(3000), sync_interval=4000, codec="deflate")
        blocks = list(fastavro.block_reader(io.BytesIO(data)))
        middle = blocks[1].offset + blocks[1].size // 2
        damaged = data[:middle] + bytes(byte ^ 0xFF for byte in data[middle : middle + 40]) + data[middle + 40 :]
        found = parsed([Payload(7, "a.avro", damaged)], **self.DECLARED)
        assert len(found["events"]) == 3000 - blocks[1].num_records
        assert reasons(found) == [(blocks[0].num_records, "malformed")]

    @pytest.mark.parametrize("end", [4, 60])
    def test_an_object_with_a_truncated_header_is_unreadable(self, end: int) -> None:
        found = parsed([Payload(7, "a.avro", self.avro(self.records(3))[:end])], **self.DECLARED)
        assert reasons(found) == [(-1, "object_unreadable")]


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"", "object_empty"),
        (b"\xef\xbb\xbf", "object_empty"),
        (b" \n\r\n\t" * 1000, "object_empty"),
        (b"PAR1....", "object_wrong_format"),
        (gzip.compress(b"{}"), "object_wrong_format"),
        ('{"a": 1}'.encode("utf-16"), "object_wrong_format"),
        (b"BZh9", "object_wrong_format"),
        (b"<html></html>", "object_wrong_format"),
    ],
)
def test_an_empty_object_or_one_of_another_format_is_one_row(payload: bytes, code: str) -> None:
    declared = TestParquet.DECLARED | {"source": {"kind": "s3_sqs", "relay": "landing", "bucket": "landing"}}
    good = Payload(8, "b", b'\xef\xbb\xbf{"id": 1, "at": "2026-01-02"}')
    found = parsed([Payload(7, "a", payload), good], **declared)
    assert reasons(found) == [(-1, code)]
    assert found["quarantine"][0]["object_key"] == "a"
    assert len(found["events"]) == 1


@pytest.mark.parametrize("payload", [b"<html></html>", b"PAR1....", "{}".encode("utf-16")])
def test_a_record_of_another_format_keeps_its_bytes_in_quarantine(payload: bytes) -> None:
    records = {"kind": "kafka", "bootstrap_servers": "b:9092", "topics": ["t"]}
    found = parsed([Payload(7, "t/0/7", payload)], **(TestParquet.DECLARED | {"source": records}))
    assert reasons(found) == [(-1, "object_wrong_format")]
    assert found["quarantine"][0]["raw"] == payload.decode("utf-8", "backslashreplace")
    assert found["quarantine"][0]["raw_bytes"] == len(payload)


@pytest.mark.parametrize("payload", [b"[]", b"null"])
def test_an_empty_array_is_not_an_empty_object(payload: bytes) -> None:
    assert [value for value in read(payload) if value is not None] == []


def test_a_json_object_in_place_of_parquet_is_of_the_wrong_format() -> None:
    assert reasons(parsed([Payload(7, "a", b'{"id": 1}')], **TestParquet.DECLARED)) == [(-1, "object_wrong_format")]


def test_parts_of_the_key_are_fields_typed_by_their_columns() -> None:
    columns = declare_columns(
        "day date from _partition.day", "shard int from _partition.shard", "region string from _partition.region"
    )
    declared = {
        "source": {
            "kind": "cloud_files",
            "relay": "landing",
            "bucket": "landing",
            "partition_columns": ["day", "shard", "region"],
        },
        "event": {"name": {"path": "_partition.region"}, "time": {"path": "at"}},
        "tables": [{"name": "events", "catch_all": True, "columns": columns, "evolve": "rescue"}],
    }
    keys = [
        "x/day=2026-01-31/shard=7/region=eu%2Fwest/1.json",
        "x/day=2026-01-31/shard=__HIVE_DEFAULT_PARTITION__/region=us/a=b.json",
        "x/day=2026-01-31/shard=seven/region=us/1.json",
        "x/no/parts.json",
    ]
    payloads = [Payload(seq, key, b'{"at": "2026-02-01T00:00:00Z"}') for seq, key in enumerate(keys)]
    found = parsed(payloads, **declared)
    assert [(row["day"], row["shard"], row["region"], row["_rescued"]) for row in found["events"]] == [
        (dt.date(2026, 1, 31), 7, "eu/west", None),
        (dt.date(2026, 1, 31), None, "us", None),
    ]
    assert {(row["_seq"], row["reasons"][0]["code"]) for row in found["quarantine"]} == {
        (2, "type_mismatch"),
        (3, "unknown_event"),
    }


def test_unreadable_objects_are_counted_and_missing_ones_named() -> None:
    gone = Reason(ReasonCode.OBJECT_MISSING, "", "not there")
    payloads = [Payload(1, "gone/1", None, gone), Payload(2, "empty", b""), Payload(3, "gone/2", None, gone)]
    spec = PipelineSpec.model_validate({"pipeline": "shop", "description": "", "owner": ""} | TestParquet.DECLARED)
    parser = Parser(spec)
    assert sum(rows.num_rows for _, rows in parser.parse(payloads, STAMP)) == 3
    told = TaskFindings.from_record(parser.findings.as_record())
    told.merge(parser.findings)
    assert told.ledger_entry() == {
        "objects_rejected": {"object_empty": 2, "object_missing": 4},
        "objects_missing": ["gone/1", "gone/2", "gone/1", "gone/2"],
        "events": 6,
        "quarantined_events": 6,
        "rejected": [["object_missing", "", 4], ["object_empty", "", 2]],
        "rejected_events": [["object_missing", "", "", 4], ["object_empty", "", "", 2]],
    }


def test_every_declarable_format_is_registered() -> None:
    assert set(FORMATS) == set(get_args(PayloadSpec.model_fields["format"].annotation))
