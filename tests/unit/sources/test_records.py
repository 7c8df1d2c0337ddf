"""Records of streams as payloads, converted from Spark's rows inside tasks."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from deltaworks.errors import ConfigError, ContractError
from deltaworks.events.chunks import BatchMetadata
from deltaworks.events.parse import Parser
from deltaworks.events.reasons import ReasonCode
from deltaworks.sources.delta import RowReader
from deltaworks.sources.kafka.brokers import client_properties
from deltaworks.sources.kafka.offsets import count_offsets_between
from deltaworks.sources.kafka.source import KafkaReader
from deltaworks.sources.kinesis.rows import ROW_SCHEMA
from deltaworks.sources.kinesis.shards import shard_number
from deltaworks.sources.kinesis.source import KinesisReader
from deltaworks.sources.records import ORDINAL_BITS, PARTITION_NUMBER_BITS, ReadStatistics, Record, record_seq
from deltaworks.specs.record_sources import KafkaSecuritySpec

PLACES = st.tuples(st.integers(0, (1 << PARTITION_NUMBER_BITS) - 1), st.integers(0, (1 << ORDINAL_BITS) - 1))
KAFKA_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("value", pa.binary()),
        pa.field("key", pa.binary()),
        pa.field("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)


@given(PLACES, PLACES)
def test_positions_and_seqs_have_the_same_order_and_are_unique(one: tuple[int, int], other: tuple[int, int]) -> None:
    assert (record_seq(*one) < record_seq(*other)) == (one < other)
    assert 0 <= record_seq(*one) < 1 << 63


@pytest.mark.parametrize("place", [(-1, 0), (0, -1), (1 << PARTITION_NUMBER_BITS, 0), (0, 1 << ORDINAL_BITS)])
def test_a_position_out_of_range_is_rejected(place: tuple[int, int]) -> None:
    with pytest.raises(ContractError) as refused:
        record_seq(*place)

    assert refused.value.condition == "RECORD_SEQ_EXHAUSTED"


def kafka(*rows: dict[str, Any], topics: tuple[str, ...] = ("a", "b"), **options: Any) -> list[Record]:
    whole = {"topic": "a", "partition": 0, "offset": 0, "timestamp": 1_000_000, "key": None, "headers": None}
    batch = pa.RecordBatch.from_pylist([{**whole, **row} for row in rows], schema=KAFKA_SCHEMA)
    defaults = {"has_tombstone_events": False, "with_fields": True, "compression": "auto", "max_bytes": 1_000}
    return list(KafkaReader(topics=topics, **{**defaults, **options})([batch]))


def test_kafka_records_are_identified_by_topic_partition_and_offset() -> None:
    places = [("a", 0, 0), ("a", 0, 1), ("a", 1, 0), ("a", 8191, 0), ("b", 0, 0)]
    found = kafka(*({"topic": t, "partition": p, "offset": o, "value": b"{}"} for t, p, o in places))

    seqs = [record.payload.seq for record in found]
    assert seqs == sorted(set(seqs))
    assert [record.payload.key for record in found] == [f"{t}/{p}/{o}" for t, p, o in places]


def test_a_partition_beyond_the_maximum_is_rejected() -> None:
    with pytest.raises(ContractError) as refused:
        kafka({"partition": 8192, "value": b"{}"})

    assert refused.value.condition == "RECORD_SEQ_EXHAUSTED"


def test_record_metadata_is_preserved() -> None:
    headers = [{"key": "h", "value": b"1"}, {"key": "n", "value": None}]
    [record] = kafka({"offset": 7, "value": b"{}", "key": b"\xffk", "headers": headers})

    assert record.arrived_at_us == 1_000_000
    assert record.payload.record == {
        "topic": "a",
        "partition": 0,
        "offset": 7,
        "key": "\\xffk",
        "headers": {"h": "1", "n": None},
        "tombstone": False,
        "timestamp": "1970-01-01T00:00:01+00:00",
    }


def test_compressed_records_are_decompressed_and_damaged_or_large_ones_kept_unchanged() -> None:
    small, large = gzip.compress(b"{}"), gzip.compress(b"x" * 5_000)
    found = kafka(*({"offset": at, "value": value} for at, value in enumerate((small, b"\x1f\x8bno", large))))

    assert [record.payload.data for record in found] == [b"{}", b"\x1f\x8bno", large]
    codes = [record.payload.problem and record.payload.problem.code for record in found]
    assert codes == [None, ReasonCode.MALFORMED, ReasonCode.TOO_LARGE]
    [untouched] = kafka({"value": small}, compression="none")
    assert untouched.payload.data == small


def test_tombstones_are_rejected_or_events() -> None:
    [rejected] = kafka({"value": None})
    [event] = kafka({"value": None}, has_tombstone_events=True)

    assert rejected.payload.problem is not None
    assert rejected.payload.problem.code == ReasonCode.TOMBSTONE
    assert (event.payload.events, event.payload.problem) == (((0, ({}, b"{}")),), None)


@pytest.mark.parametrize("value", [b"{}", b"\x1f\x8bno", None])
@pytest.mark.parametrize(("timestamp", "arrived"), [(1_000_000, 1_000_000), (-1_000, None), (None, None)])
def test_the_arrival_time_is_the_records_timestamp(
    value: bytes | None, timestamp: int | None, arrived: int | None
) -> None:
    """A client that sends no time has -1 for one, which is none."""
    for options in ({}, {"has_tombstone_events": True}, {"with_fields": False}):
        [record] = kafka({"value": value, "timestamp": timestamp}, **options)

        assert record.payload.arrived_at_us == arrived


def test_the_backlog_counts_all_partitions_and_new_ones_completely() -> None:
    assert count_offsets_between({"a": {"0": 5}}, {"a": {"0": 9, "1": 3}, "b": {"0": 2}}) == 4 + 3 + 2
    assert count_offsets_between({"a": {"0": 9}}, {"a": {"0": 5}}) == 0


def test_a_login_is_quoted_for_jaas(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("U", 'a"b')
    monkeypatch.setenv("P", "c\\d")
    authority = tmp_path / "ca.pem"
    authority.write_text("a certificate")
    declared = {"protocol": "SASL_SSL", "mechanism": "SCRAM-SHA-256", "username": "env:U", "password": "env:P"}
    found = client_properties(KafkaSecuritySpec.model_validate(declared | {"truststore": str(authority)}))

    assert found == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="a\\"b" password="c\\\\d";',
        "ssl.truststore.location": str(authority),
        "ssl.truststore.type": "PEM",
    }


def test_keystores_and_passwords_are_references(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = tmp_path / "client.p12"
    store.write_bytes(b"key and certificate")
    monkeypatch.setenv("STORE", str(store))
    monkeypatch.setenv("OPENS", "secret")
    declared = {"protocol": "SSL", "keystore": "env:STORE", "keystore_type": "PKCS12", "keystore_password": "env:OPENS"}

    assert client_properties(KafkaSecuritySpec.model_validate(declared)) == {
        "security.protocol": "SSL",
        "ssl.keystore.location": str(store),
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.password": "secret",
    }
    store.unlink()
    with pytest.raises(ConfigError, match=r"source.security.keystore: .*client.p12 does not exist") as missing:
        client_properties(KafkaSecuritySpec.model_validate(declared))
    assert missing.value.condition == "SOURCE_CERTIFICATE_MISSING"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"keystore": "k.p12", "keystore_type": "PKCS12"}, "needs keystore_password"),
        ({"keystore": "k.pem", "keystore_password": "env:P"}, "a PEM file has none"),
        ({"truststore_password": "env:P"}, "truststore_password opens a truststore"),
        ({"key_password": "env:P"}, "declare keystore"),
        ({"keystore_password": "plain"}, "references"),
    ],
)
def test_incomplete_keystore_declarations_are_rejected(changes: dict[str, str], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        KafkaSecuritySpec.model_validate({"protocol": "SSL"} | changes)


def test_kinesis_records_are_identified_by_shard_and_ordinal() -> None:
    whole = {"stream": "s", "partitionKey": "k", "data": b"{}", "approximateArrivalTimestamp": 2_000_000}
    rows = [
        {**whole, "shardId": f"shardId-{shard:012d}", "sequenceNumber": f"49{at}", "ordinal": at}
        for shard, at in ((0, 0), (0, 1), (3, 0))
    ]
    reader = KinesisReader(stream="s", with_fields=True, compression="auto", max_bytes=100)
    found = list(reader([pa.RecordBatch.from_pylist(rows, schema=ROW_SCHEMA)]))

    assert [record.payload.seq for record in found] == [record_seq(0, 0), record_seq(0, 1), record_seq(3, 0)]
    assert found[2].payload.key == "s/shardId-000000000003/490"
    assert found[2].payload.arrived_at_us == 2_000_000
    assert found[2].payload.record == {
        "stream": "s",
        "shard": "shardId-000000000003",
        "sequence_number": "490",
        "partition_key": "k",
        "timestamp": "1970-01-01T00:00:02+00:00",
    }
    with pytest.raises(ContractError, match="KINESIS_SHARD_UNNUMBERED"):
        shard_number("shard")


def test_rows_of_a_table_are_events_with_their_position_in_the_batch() -> None:
    batch = pa.RecordBatch.from_pydict({"position": [3, 9], "row": ['{"a": 1}', '{"a": null}']})
    found = [record.payload for record in RowReader(key="p/t", seq=12)([batch])]

    assert [(payload.seq, payload.key, payload.events) for payload in found] == [
        (12, "p/t", ((3, ({"a": 1}, b'{"a": 1}')),)),
        (12, "p/t", ((9, ({"a": None}, b'{"a": null}')),)),
    ]


#: Microseconds that a producer sent as milliseconds, as Spark hands them over; and the first instant past year 9999.
MICROS_AS_MILLIS = 1_700_000_000_000_000_000
YEAR_10000 = 253_402_300_800_000_000


@pytest.mark.parametrize("at", [MICROS_AS_MILLIS, YEAR_10000, 2**63 - 1, -62_135_596_800_000_001])
def test_a_record_with_a_time_out_of_range_is_read_and_counted(at: int) -> None:
    records = kafka({"value": b"{}", "timestamp": at}, {"offset": 1, "value": b"{}"}, with_fields=False)
    facts = ReadStatistics()
    assert len(list(facts.count(records))) == 2
    total = ReadStatistics()
    total.add(facts)

    metadata = total.as_metadata()

    assert metadata["times_out_of_range"] == 1
    times = (metadata["oldest_arrived_at"], metadata["newest_arrived_at"])
    other = "1970-01-01T00:00:01+00:00"
    assert times in [(other, "9999-12-31T23:59:59.999999+00:00"), ("0001-01-01T00:00:00+00:00", other)]


def test_records_with_valid_times_are_not_counted_as_out_of_range() -> None:
    facts = ReadStatistics()
    list(facts.count(kafka({"value": b"{}", "timestamp": YEAR_10000 - 1})))

    assert "times_out_of_range" not in facts.as_metadata()


def test_a_time_out_of_range_fits_no_time_column_and_does_not_affect_others(make_spec: Callable[..., Any]) -> None:
    columns = [{"name": "device", "path": "device", "type": "string"}]
    timed = [*columns, {"name": "at", "path": "_record.timestamp", "type": "timestamp"}]
    value = b'{"name": "x", "id": "1", "time": 1700000000, "device": "d"}'
    [record] = kafka({"value": value, "timestamp": MICROS_AS_MILLIS})
    stamp = BatchMetadata(0, 0, "f")

    def parsed(columns: list[dict[str, str]]) -> dict[str, list[dict[str, Any]]]:
        source = {"kind": "kafka", "bootstrap_servers": "b:1", "topics": ["a"]}
        spec = make_spec(source=source, tables=[{"name": "events", "catch_all": True, "columns": columns}])
        return {name: table.to_pylist() for name, table in Parser(spec).parse([record.payload], stamp)}

    assert [row["device"] for row in parsed(columns)["events"]] == ["d"]
    [row] = parsed(timed)["quarantine"]
    assert [(reason["code"], reason["path"]) for reason in row["reasons"]] == [("out_of_range", "_record.timestamp")]


@given(st.lists(st.lists(st.tuples(st.binary(max_size=9), st.integers(0, 9)), max_size=5), max_size=4))
def test_read_statistics_are_the_sum_of_all_tasks(tasks: list[list[tuple[bytes, int]]]) -> None:
    total = ReadStatistics()
    for task in tasks:
        own = ReadStatistics()
        records = kafka(*({"value": value, "timestamp": at} for value, at in task), compression="none")
        assert len(list(own.count(records))) == len(task)
        total.add(
            ReadStatistics(**json.loads(json.dumps({name: getattr(own, name) for name in ReadStatistics.__slots__})))
        )

    sent = [each for task in tasks for each in task]
    assert (total.records, total.bytes) == (len(sent), sum(len(value) for value, _ in sent))
    times = [at for _, at in sent]
    assert (total.oldest_us, total.latest_us) == (min(times, default=None), max(times, default=None))
