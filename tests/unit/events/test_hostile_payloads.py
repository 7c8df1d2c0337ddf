"""Hostile payloads: none raises, and each costs no more than its size allows."""

from __future__ import annotations

import datetime as dt
import io
import json
import tracemalloc
import zlib
from collections import Counter
from collections.abc import Iterable
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltaworks.events.budget import Budget, BudgetExceededError
from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.formats.registry import create_framer
from deltaworks.events.parse import Parser
from deltaworks.events.task_findings import TaskFindings
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.record_sources import BudgetSpec
from deltaworks.testing import declare_table, pipeline_spec

STAMP = BatchMetadata(batch_id=0, ingested_at_us=1_700_000_000_000_000, fingerprint="fp")
GOOD = b'{"n":"good","t":1700000000,"id":"g","c":"x"}'
MIB = 1 << 20


def spec(form: str = "json", *, event: dict[str, Any] | None = None, **source: Any) -> PipelineSpec:
    return pipeline_spec(
        declare_table("events", "c string", evolve="rescue"),
        source={"kind": "s3_sqs", "relay": "landing", "bucket": "b", "format": form} | source,
        event={"name": {"path": "n"}, "time": {"path": "t", "unit": "epoch_seconds"}, "id": "id"} | (event or {}),
    )


class Landed:
    """What a parser makes of payloads: rows by table, and what it noted."""

    def __init__(self, declared: PipelineSpec, *payloads: bytes) -> None:
        parser = Parser(declared)
        self.rows: dict[str, list[dict[str, Any]]] = {"events": [], "quarantine": []}
        inputs = [Payload(seq, f"k{seq}", data) for seq, data in enumerate(payloads, start=1)]
        for table, rows in parser.parse(inputs, STAMP):
            self.rows[table].extend(rows.to_pylist())
        self.findings: TaskFindings = parser.findings

    @property
    def events(self) -> list[dict[str, Any]]:
        return self.rows["events"]

    def reasons(self) -> list[tuple[int, str, str]]:
        """Position, code and path of what is in quarantine."""
        return [
            (row["_position"], row["reasons"][0]["code"], row["reasons"][0]["path"]) for row in self.rows["quarantine"]
        ]


def peak_bytes(declared: PipelineSpec, payload: bytes, count: int) -> int:
    """What the framer of a pipeline holds at most while it gives the events of a payload, which are this many."""
    frame = create_framer(declared.source)
    tracemalloc.start()
    try:
        assert sum(1 for _ in frame(payload)) == count
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


class TestNestedJson:
    @pytest.mark.parametrize("depth", [100, 900, 970, 990, 1_000, 1_015, 1_030, 5_000])
    @pytest.mark.parametrize("field", ["c", "t", "id", "n", "other"])
    def test_a_value_however_deep_costs_its_own_event_at_most(self, depth: int, field: str) -> None:
        event = json.dumps({"n": "deep", "t": 1700000000, "id": "d", "c": "x"} | {field: "@"})
        deep = event.replace('"@"', "[" * depth + "]" * depth).encode()

        landed = Landed(spec(), GOOD + deep + GOOD)

        assert [row["event_id"] for row in landed.events if row["event_id"] != "d"] == ["g", "g"]
        assert len(landed.events) + len(landed.rows["quarantine"]) == 3

    def test_the_message_for_a_deeply_nested_value_is_short(self) -> None:
        (row,) = Landed(spec(), b'{"n":"a","t":1,"id":"i","c":' + b"[" * 990 + b"]" * 990 + b"}").rows["quarantine"]
        assert len(row["reasons"][0]["detail"]) < 200


class TestLongNumbers:
    @pytest.mark.parametrize("digits", [400, 4_300, 4_301, 100_000])
    @pytest.mark.parametrize("field", ["c", "t", "id", "n", "other"])
    def test_a_number_of_any_length_costs_its_own_event_at_most(self, digits: int, field: str) -> None:
        event = json.dumps({"n": "long", "t": 1700000000, "id": "d", "c": "x"} | {field: "@"})
        long = event.replace('"@"', "9" * digits).encode()

        landed = Landed(spec(), GOOD + long + GOOD + b"\n" + long + GOOD)

        assert [row["_position"] for row in landed.events if row["event_id"] == "g"] == [0, 2, 4]
        assert len(landed.events) + len(landed.rows["quarantine"]) == 5


class TestBytesThatAreNoText:
    HEADER = b"n,t,id,c"
    ROW = (b"good", b"1700000000", b"1", b"a")

    @pytest.mark.parametrize(("place", "path"), [(0, ""), (1, "t"), (2, "id"), (3, "c")])
    @pytest.mark.parametrize("ids", ["id", ["id", "c"]])
    def test_a_field_of_csv_costs_its_record(self, place: int, path: str, ids: Any) -> None:
        fields = [*self.ROW]
        fields[place] = b"\xff" + fields[place]
        payload = b"\n".join((self.HEADER, b",".join(self.ROW), b",".join(fields), b",".join(self.ROW), b""))

        landed = Landed(spec("csv", event={"id": ids}), payload)

        assert [row["_position"] for row in landed.events] == [0, 2]
        assert [(position, code) for position, code, _ in landed.reasons()] == [(1, "type_mismatch")]
        assert "\\xff" in landed.rows["quarantine"][0]["raw"]

    def test_an_undeclared_field_is_rescued_as_far_as_it_can_be_serialized(self) -> None:
        payload = self.HEADER + b",o\xfe\n" + b",".join(self.ROW) + b",x\xffy\n"
        (row,) = Landed(spec("csv"), payload).events
        assert json.loads(row["_rescued"]) == {"o\\xfe": "x\\xffy"}

    def test_a_repeated_name_in_the_header_costs_the_object(self) -> None:
        landed = Landed(spec("csv"), self.HEADER + b",\xff,\xff\n1,2,3,4,5,6\n", b"n,t,id,c\ngood,1700000000,1,a\n")
        assert landed.reasons() == [(-1, "malformed", "")]
        assert len(landed.events) == 1

    @pytest.mark.parametrize("field", ["n", "id"])
    def test_a_line_of_text_or_of_tabs_costs_itself(self, field: str) -> None:
        line = {"n": b"good", "t": b"1700000000", "id": b"1"}
        bad = line | {field: b"\xc3"}
        for form, between, options in (
            ("tsv", b"\t", {"tsv": {"columns": ["n", "t", "id"]}}),
            ("text", b" ", {"pattern": r"(?P<n>\S+) (?P<t>\S+) (?P<id>\S+)"}),
        ):
            payload = b"\n".join(between.join(each.values()) for each in (line, bad, line))
            landed = Landed(spec(form, **options), payload)
            assert [row["_position"] for row in landed.events] == [0, 2], form
            assert [position for position, _, _ in landed.reasons()] == [1]

    @pytest.mark.parametrize("digits", [4_000, 5_000])
    def test_a_number_with_thousands_of_digits_is_a_conversion_error(self, digits: int) -> None:
        landed = Landed(spec("csv"), self.HEADER + b"\ngood," + b"9" * digits + b",1,a\n")
        assert [position for position, _, _ in landed.reasons()] == [0]


def number(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    parts = bytearray()
    while value & ~0x7F:
        parts.append((value & 0x7F) | 0x80)
        value >>= 7
    return bytes([*parts, value])


def container(schema: Any, blocks: Iterable[tuple[int, bytes]], codec: str = "null") -> bytes:
    metadata = {b"avro.schema": json.dumps(schema).encode(), b"avro.codec": codec.encode()}
    parts = [b"Obj\x01", number(len(metadata))]
    for key, value in metadata.items():
        parts += [number(len(key)), key, number(len(value)), value]
    parts += [number(0), b"S" * 16]
    for count, data in blocks:
        parts += [number(count), number(len(data)), data, b"S" * 16]
    return b"".join(parts)


def record(*fields: tuple[str, Any], name: str = "r") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": field, "type": kind} for field, kind in fields]}


def nested(levels: int) -> Any:
    kind: Any = "int"
    for _ in range(levels):
        kind = {"type": "array", "items": kind}
    return record(("t", "long"), ("a", kind))


def doubling(levels: int) -> Any:
    """A record of records, whose values double with every level, and take no bytes."""
    kind: Any = record(("a", "null"), name="r0")
    for level in range(1, levels):
        kind = record(("a", kind), ("b", f"r{level - 1}"), name=f"r{level}")
    return record(("t", "long"), ("of", kind), name="top")


class TestAvro:
    RECURSIVE = record(("n", ["null", "N"]), name="N")

    @pytest.mark.parametrize(
        ("schema", "blocks"),
        [
            (RECURSIVE, [(1, b"\x02" * 300 + b"\x00")]),
            (RECURSIVE, [(1, b"\x02" * 5_000 + b"\x00")]),
            (record(("a", "null")), [(10**9, b"")]),
            (
                record(("t", "long"), ("a", {"type": "array", "items": "null"})),
                [(1, b"\x00" + number(10**9) + b"\x00")],
            ),
            (nested(200), [(1, b"\x00" * 2)]),
            (doubling(40), [(1, b"\x00")]),
        ],
        ids=["deep", "deeper", "records of nothing", "items of nothing", "types", "doubling"],
    )
    def test_a_schema_without_a_bound_makes_the_object_unreadable(self, schema: Any, blocks: Any) -> None:
        landed = Landed(spec("avro"), container(schema, blocks))

        assert landed.reasons() == [(-1, "object_unreadable", "")]
        assert not landed.events

    @pytest.mark.parametrize("levels", [500, 5_000, 100_000])
    def test_a_schema_of_types_in_types_makes_the_object_unreadable(self, levels: int) -> None:
        opening, closing = '{"type":"array","items":' * levels, "}" * levels
        schema = '{"type":"record","name":"r","fields":[{"name":"a","type":' + opening + '"int"' + closing + "}]}"
        data = container("@", [(1, b"\x00")]).replace(number(3) + b'"@"', number(len(schema)) + schema.encode())
        assert Landed(spec("avro"), data).reasons() == [(-1, "object_unreadable", "")]

    def test_a_block_that_announces_more_records_than_it_has_bytes_for_is_malformed(self) -> None:
        schema = record(("t", "long"), ("n", "string"))
        landed = Landed(spec("avro"), container(schema, [(50_000, b"\x00\x00"), (1, b"\x02\x02a")]))
        assert landed.reasons()[0] == (0, "malformed", "")
        assert len(landed.rows["quarantine"]) == 2

    @pytest.mark.parametrize("kind", ["float", "double", "boolean"])
    def test_a_block_that_ends_within_a_value_has_the_same_reason_whenever_it_is_read(self, kind: str) -> None:
        payload = container(record(("n", "string"), ("v", kind)), [(1, number(20) + b"a" * 20)])
        details = {
            Landed(spec("avro"), *[payload] * 3).rows["quarantine"][index]["reasons"][0]["detail"] for index in range(3)
        }
        assert len(details) == 1
        assert " at 0x" not in details.pop()

    def test_an_object_of_more_records_than_are_read_is_one_row(self) -> None:
        schema = record(("t", "long"), ("n", "string"))
        data = container(schema, [(2, b"\x02\x02a" * 2)] * 3)
        declared = spec("avro", budget={"max_records": 5})
        landed = Landed(declared, data)
        assert landed.reasons() == [(-1, "over_budget", "max_records")]
        assert landed.findings.over_budget == {"max_records": 1}

    @pytest.mark.parametrize("kind", ["bytes", {"type": "array", "items": "int"}])
    def test_a_block_is_inflated_no_further_than_its_values_may_take(self, kind: Any) -> None:
        compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
        size = 64 * MIB
        data = compressor.compress(b"\x00" + number(size) + b"\0" * size + b"\0") + compressor.flush()
        payload = container(record(("t", "long"), ("a", kind)), [(1, data)], "deflate")
        assert len(payload) < 100_000

        declared = spec("avro", budget={"max_decoded_bytes": 16 * MIB})
        assert peak_bytes(declared, payload, 1) < 40 * MIB
        landed = Landed(declared, payload)
        assert landed.reasons() == [(0, "over_budget", "max_decoded_bytes")]

    @pytest.mark.parametrize("codec", ["null", "deflate", "zstandard", "snappy"])
    def test_a_value_without_a_form_costs_its_record(self, codec: str) -> None:
        schema = record(("t", "long"), ("n", "string"), ("id", "string"), ("c", "string"), ("at", "long"))
        far = {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}}
        good = {"t": 1_700_000_000, "n": "a", "id": "1", "c": "x", "at": 0}
        sink = io.BytesIO()
        fastavro.writer(sink, schema, [good, good | {"at": 10**18}, good | {"c": "@@"}, good], codec="null")
        written = sink.getvalue().replace(b"@@", b"\xff\xfe")
        blocks = list(fastavro.block_reader(io.BytesIO(sink.getvalue())))
        content = written[blocks[0].offset : blocks[0].offset + blocks[0].size]
        content = content[2 if len(content) < 64 else 3 : -16]
        packed = {
            "null": content,
            "deflate": zlib.compress(content)[2:-4],
            "zstandard": bytes(pa.compress(content, codec="zstd", asbytes=True)),
            "snappy": bytes(pa.compress(content, codec="snappy", asbytes=True)) + zlib.crc32(content).to_bytes(4),
        }[codec]
        with_instants = schema | {"fields": [*schema["fields"][:-1], far]}

        landed = Landed(
            spec("avro", event={"time": {"path": "t", "unit": "epoch_seconds"}}),
            container(with_instants, [(4, packed)], codec),
        )

        assert [row["_position"] for row in landed.events] == [0, 1, 3]
        assert landed.reasons() == [(2, "malformed", "")]


def parquet(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


class TestParquet:
    COUNT = 2_500

    def table(self, **columns: Any) -> pa.Table:
        base = {"t": [1_700_000_000] * self.COUNT, "n": ["a"] * self.COUNT, "id": list(map(str, range(self.COUNT)))}
        return pa.table(base | columns)

    def test_a_value_without_a_form_costs_its_row(self) -> None:
        instants = [0] * self.COUNT
        instants[7] = instants[2_000] = 10**18
        texts = pa.array(["ab"] * self.COUNT)
        data = bytearray(texts.buffers()[2].to_pybytes())
        data[2 * 30 : 2 * 30 + 2] = b"\xff\xfe"
        bad = pa.Array.from_buffers(pa.string(), self.COUNT, [None, texts.buffers()[1], pa.py_buffer(bytes(data))])
        days = pa.array([2_000_000_000 if row == 9 else 0 for row in range(self.COUNT)], pa.int32()).cast(pa.date32())

        landed = Landed(
            spec("parquet"),
            parquet(self.table(at=pa.array(instants, pa.int64()).cast(pa.timestamp("us", "UTC")), c=bad, day=days)),
        )

        assert landed.reasons() == [(row, "malformed", "") for row in (7, 9, 30, 2_000)]
        assert len(landed.events) == self.COUNT - 4
        assert json.loads(landed.rows["quarantine"][0]["raw"])["id"] == "7"

    def test_a_dictionary_text_shared_by_all_rows_is_expanded_in_small_batches(self) -> None:
        texts = pa.DictionaryArray.from_arrays(pa.array([0] * self.COUNT, pa.int32()), pa.array(["x" * 200_000]))
        of = pa.StructArray.from_arrays([texts], names=["text"])
        data = parquet(self.table(c=texts, of=of), store_schema=False, compression="zstd")
        assert len(data) < 100_000

        assert peak_bytes(spec("parquet"), data, self.COUNT) < 64 * MIB

    @pytest.mark.parametrize(
        ("budget", "position"),
        [({"max_records": 2_499}, -1), ({"max_values": 7_499}, -1), ({"max_decoded_bytes": 99}, 0)],
    )
    def test_footer_values_are_checked_against_the_budgets(self, budget: dict[str, int], position: int) -> None:
        data = parquet(self.table())
        landed = Landed(spec("parquet", budget=budget), data)
        assert landed.reasons() == [(position, "over_budget", *budget)]
        assert not landed.events
        assert len(Landed(spec("parquet", budget={"max_records": 2_500, "max_values": 7_500}), data).events) == 2_500

    @pytest.mark.parametrize(("columns", "rows", "budget"), [(1, 100_001, "max_records"), (21, 99_000, "max_values")])
    def test_a_small_object_holds_as_much_as_its_size_allows(self, columns: int, rows: int, budget: str) -> None:
        same = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), rows), pa.array([7]))
        data = parquet(pa.table({f"c{number}": same for number in range(columns)}), compression="zstd")
        assert len(data) < 100_000

        assert Landed(spec("parquet"), data).reasons() == [(-1, "over_budget", budget)]

    def test_budgets_grow_with_the_payload(self) -> None:
        Budget(size=3_000_000).check_announced_records(3_000_000)
        with pytest.raises(BudgetExceededError, match="at most 3000000 are allowed in 3000000 bytes"):
            Budget(size=3_000_000).check_announced_records(3_000_001)
        with pytest.raises(BudgetExceededError, match="at most 10000000"):
            Budget(size=1 << 30).check_announced_records(10_000_001)
        with pytest.raises(BudgetExceededError, match=r"at most 5 are allowed$"):
            Budget(BudgetSpec(max_records=5), size=3_000_000).check_announced_records(6)

    def test_long_lists_are_expanded_in_small_batches(self) -> None:
        lists = pa.array([[None] * 1_000] * self.COUNT, pa.list_(pa.int32()))
        landed = Landed(spec("parquet", budget={"max_values": 1_000_000}), parquet(self.table(c=lists)))
        assert landed.reasons() == [(-1, "over_budget", "max_values")]


class TestJsonFraming:
    def test_an_object_of_nothing_but_objects_is_read_as_it_goes(self) -> None:
        # Some thousand pieces are cut ahead; all of them together would take twenty times as much.
        assert peak_bytes(spec(), b"{}" * 400_000, 400_000) < 4 * MIB

    def test_events_beyond_the_budget_are_one_row_and_earlier_ones_are_kept(self) -> None:
        landed = Landed(spec(budget={"max_records": 3}), GOOD * 5, GOOD * 3, GOOD * 4)
        assert [(row["_seq"], row["_position"]) for row in landed.events] == [
            (seq, position) for seq in (1, 2, 3) for position in range(3)
        ]
        assert landed.reasons() == [(3, "over_budget", "max_records")] * 2
        assert landed.findings.over_budget == {"max_records": 2}
        assert TaskFindings.from_record(landed.findings.as_record()).ledger_entry()["over_budget"] == {"max_records": 2}

    def test_a_payload_that_is_scanned_too_often_is_rejected_early(self) -> None:
        hostile = b'{"a":"' * 20_000
        landed = Landed(spec(), GOOD + hostile, GOOD, hostile)
        assert len(landed.events) == 2
        assert landed.reasons() == [(1, "over_budget", "max_scans"), (-1, "over_budget", "max_scans")]
        assert landed.rows["quarantine"][0]["raw_bytes"] == len(hostile)
        assert landed.findings.over_budget == {"max_scans": 2}

    @pytest.mark.parametrize("line", [b'{"n\n', b"{\n", b"[{\n", b'"{\n', b'{"\\\n', b"{{{{\n"])
    @pytest.mark.parametrize("lines", [10, 480, 60_000])
    def test_valid_lines_after_any_number_of_broken_ones_are_kept(self, line: bytes, lines: int) -> None:
        landed = Landed(spec(), GOOD + b"\n" + line * lines + GOOD + b"\n" + GOOD)
        assert len(landed.events) == 3
        assert [code for _, code, _ in landed.reasons()] == ["malformed"]

    @pytest.mark.parametrize("piece", [b'{"":}', b"x{}", b"{{}", b'{"a":{}x', b'{"a":"', b'{"a":1,}\n'])
    def test_a_small_payload_is_always_read_to_its_end(self, piece: bytes) -> None:
        landed = Landed(spec(), piece * (5_000 // len(piece)) + b"\n" + GOOD + b"\n" + GOOD)
        assert not landed.findings.over_budget
        assert len(landed.events) == 2

    def test_an_error_does_not_count_the_lines_before_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        counted: list[int] = []

        class Counting(json.JSONDecodeError):
            def __init__(self, message: str, text: str, position: int) -> None:
                super().__init__(message, text, position)
                counted.append(text.count("", 0, position))

        monkeypatch.setattr("json.decoder.JSONDecodeError", Counting)
        Landed(spec(), b'{"a":"' * 1_000)

        # One look at everything before it for each error makes a megabyte cost a minute.
        assert len(counted) > 900
        assert sum(counted) == 0

    @pytest.mark.parametrize(
        "piece", [b"[" + b"[]," * MIB + b"{}]", GOOD[:-1] + b',"o":[' + b"[]," * MIB + b"[]]}"], ids=["array", "object"]
    )
    def test_a_piece_beyond_the_memory_limit_is_one_row(self, piece: bytes) -> None:
        landed = Landed(spec(budget={"max_decoded_bytes": 32 * MIB}), GOOD, piece, GOOD * 3)
        assert [row["_seq"] for row in landed.events] == [1, 3, 3, 3]
        assert landed.reasons() == [(0, "over_budget", "max_decoded_bytes")]

    def test_an_array_in_a_wrapper_counts_against_the_budgets(self) -> None:
        declared = spec(budget={"max_decoded_bytes": 32 * MIB, "max_records": 10})
        declared = declared.model_validate(declared.model_dump() | {"unwrap": {"path": "body"}})
        large = json.dumps({"body": "[" + "[]," * MIB + "{}]"}).encode()
        many = json.dumps({"body": "[" + ",".join([GOOD.decode()] * 12) + "]"}).encode()
        wrapped = json.dumps({"body": GOOD.decode()}).encode()
        landed = Landed(declared, wrapped + large + wrapped, many)
        assert landed.reasons() == [(1, "over_budget", "max_decoded_bytes"), (10, "over_budget", "max_records")]
        assert len(landed.events) == 2 + 10

    def test_values_are_counted_before_they_are_created(self) -> None:
        landed = Landed(spec(budget={"max_values": 40}), GOOD * 20, GOOD)
        assert landed.reasons() == [(-1, "over_budget", "max_values")]
        assert len(landed.events) == 1

    def test_the_rest_beyond_a_budget_is_not_an_oversized_event(self) -> None:
        landed = Landed(spec(budget={"max_records": 3}, max_event_bytes=100), GOOD * 50)
        assert landed.reasons() == [(3, "over_budget", "max_records")]


class TestLines:
    def test_the_search_for_a_closing_quote_is_bounded(self) -> None:
        header, good = b"n,t,id,c\n", b"good,1700000000,1,a\n"
        hostile = header + good + b'"a\n' * 20_000
        landed = Landed(spec("csv"), hostile, header + good)
        assert [row["_seq"] for row in landed.events] == [1, 2]
        assert landed.reasons()[-1][1:] == ("over_budget", "max_scans")
        assert Counter(code for _, code, _ in landed.reasons())["over_budget"] == 1
        assert sum(row["raw_bytes"] for row in landed.rows["quarantine"]) > len(hostile) // 2

    @pytest.mark.parametrize("form", ["csv", "tsv", "text"])
    def test_an_oversized_line_is_not_parsed(self, form: str) -> None:
        by_form: dict[str, dict[str, Any]] = {
            "csv": {"csv": {"header": False, "columns": ["n", "t", "id", "c"]}},
            "tsv": {"tsv": {"columns": ["n", "t", "id", "c"]}},
            "text": {"pattern": r"(?P<n>\S+)[,\t](?P<t>\d+)[,\t](?P<id>\S+)[,\t](?P<c>\S+)"},
        }
        options = by_form[form]
        between = b"\t" if form == "tsv" else b","
        good = between.join((b"good", b"1700000000", b"1", b"a")) + b"\n"
        landed = Landed(spec(form, max_event_bytes=1_000, **options), good + b"x" + between * 2_000 + b"\n" + good)
        assert [row["_position"] for row in landed.events] == [0, 2]
        assert landed.reasons() == [(1, "too_large", "")]

    @pytest.mark.parametrize("form", ["csv", "tsv"])
    def test_lines_are_read_lazily(self, form: str) -> None:
        options: dict[str, Any] = {form: {"columns": ["n", "t", "id"]} | ({"header": False} if form == "csv" else {})}
        line = b"1,2,3\n" if form == "csv" else b"1\t2\t3\n"
        assert peak_bytes(spec(form, **options), line * 50_000, 50_000) < MIB // 2


class TestPartitions:
    def days(self, first: int, count: int) -> bytes:
        return b"".join(
            b'{"n":"a","t":%d,"id":%d,"c":"x"}' % (86_400 * day, day) for day in range(first, first + count)
        )

    def test_a_task_opens_so_many_partitions_of_a_table_and_quarantines_the_rest(self) -> None:
        declared = spec(budget={"max_partitions": 10})
        landed = Landed(declared, self.days(0, 8), self.days(6, 12), self.days(0, 3))
        epoch = dt.date(1970, 1, 1)
        # The second object opens two that there is room for, and three of its own.
        assert {row["event_date"] for row in landed.events} == {epoch + dt.timedelta(day) for day in range(13)}
        assert len(landed.events) == 8 + 7 + 3
        assert landed.reasons() == [(position, "over_budget", "max_partitions") for position in range(7, 12)]
        assert landed.findings.over_budget == {"max_partitions": 1}

    @pytest.mark.parametrize("days", [1, 3])
    def test_an_object_of_a_few_days_is_kept_after_one_of_all_days(self, days: int) -> None:
        landed = Landed(spec(budget={"max_partitions": 10}), self.days(0, 500), self.days(900, days))
        assert [row["_position"] for row in landed.events if row["_seq"] == 2] == list(range(days))
        assert len(landed.events) == 10 + 3 + days
        assert landed.findings.over_budget == {"max_partitions": 1}

    def test_a_record_has_no_partitions_of_its_own(self) -> None:
        topic = {"kind": "kafka", "bootstrap_servers": "unused:9092", "topics": ["a"], "budget": {"max_partitions": 10}}
        declared = PipelineSpec.model_validate(spec().model_dump(mode="json", exclude_unset=True) | {"source": topic})
        landed = Landed(declared, *(self.days(day, 1) for day in range(20)))
        assert len(landed.events) == 10
        assert landed.findings.over_budget == {"max_partitions": 10}

    def test_the_same_payloads_give_the_same_rows_for_any_chunk_size(self) -> None:
        declared = spec(budget={"max_partitions": 10, "max_records": 30})
        payloads = [Payload(1, "k", self.days(0, 40)), Payload(2, "k", self.days(5, 20)), Payload(3, "k", b"{" * 9_999)]

        def rows(chunk_events: int) -> dict[str, Counter[str]]:
            made: dict[str, Counter[str]] = {}
            for table, part in Parser(declared, chunk_events=chunk_events).parse(payloads, STAMP):
                made.setdefault(table, Counter()).update(map(repr, part.to_pylist()))
            return made

        assert rows(1) == rows(7) == rows(10_000)
