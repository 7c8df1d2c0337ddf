"""Shares of a shard re-read completely or not at all, and aggregated records as another implementation writes them."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.control import paths
from deltaworks.control.objects import open_objects
from deltaworks.errors import ContractError
from deltaworks.sources.kinesis.client import KinesisStream
from deltaworks.sources.kinesis.positions import Offset, Position, ShardRange, ShardRangeEnd, ShardRangeLimits
from deltaworks.sources.kinesis.rows import MAGIC, UserRecord, deaggregate
from deltaworks.sources.kinesis.shard_range_reader import FetchOptions, get_or_fetch
from deltaworks.sources.kinesis.source import KinesisRecordSource, oldest_sequence_number, reread_shard_range
from deltaworks.sources.kinesis.state import QueryState
from deltaworks.sources.record_source import LAST_ORDINAL, BatchOffsets, RecordRange, RetainedRange
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.storage import AwsSpec
from deltaworks.testing import environment_spec, pipeline_spec, present
from tests.kinesis_server import WireStream
from tests.unit.recovery.replay_harness import orders

SHARD = "shardId-000000000000"
LIMITS = ShardRangeLimits(rows=100, size=1 << 20, seconds=5.0)


class StreamHarness:
    """A stream of one shard, read in batches as a query would; the state lies where the pipeline's does."""

    def __init__(self, endpoint: str, raw: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TEST_KEY", "testing")
        self.wire = WireStream(raw)
        aws = AwsSpec.model_validate({"endpoint": endpoint, "access_key": "env:TEST_KEY", "secret_key": "env:TEST_KEY"})
        lake = {"root": f"file://{root}"}
        environment = environment_spec(root, lake=lake, messaging=aws)
        spec = pipeline_spec(orders("int"), source={"kind": "kinesis", "stream": self.wire.name})
        self.stream = KinesisStream(aws, name=self.wire.name)
        self.records = KinesisRecordSource(Catalog(environment, {}, {"shop": spec}, root), spec)
        folder = environment.lake.uri(paths.kinesis_state("shop", 1))
        self.state = QueryState(open_objects(environment.lake.model_copy(update={"root": folder})))
        self.offsets: list[Offset] = []

    def batch(self, *texts: str) -> None:
        """Put records and read them as the next batch."""
        self.wire.put(*texts)
        start = Position() if not self.offsets else self.end(len(self.offsets) - 1).end
        offset = Offset(run="run", batch=len(self.offsets), shards={SHARD: start})
        self.state.record_plan(offset)
        shard_range = ShardRange(
            run="run",
            batch=offset.batch,
            shard_id=SHARD,
            start=start,
            limits=LIMITS,
            until=None,
            retention_seconds=86_400,
        )
        get_or_fetch(self.stream, self.state, shard_range, FetchOptions())
        self.offsets.append(offset)

    def end(self, batch: int) -> ShardRangeEnd:
        return present(self.state.shard_range_end("run", batch, SHARD))

    def ranges(self) -> list[RecordRange]:
        return self.records.ranges(
            [
                BatchOffsets(generation=1, batch_id=number + 5, start=None, end=offset.to_json())
                for number, offset in enumerate(self.offsets)
            ]
        )

    def again(self, one: RecordRange) -> list[tuple[int, str]]:
        batches = reread_shard_range(self.stream, SHARD, one.details, stream_name=self.wire.name)
        rows = [row for batch in batches for row in batch.to_pylist()]
        return [(row["ordinal"], row["data"].decode()) for row in rows]


@pytest.fixture
def harness(endpoint: str, raw: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StreamHarness:
    harness = StreamHarness(endpoint, raw, tmp_path, monkeypatch)
    harness.batch("a", "b")
    harness.batch("c")
    harness.batch("d", "e", "f")
    return harness


def test_a_batch_is_the_share_between_its_offset_and_the_next_one(harness: StreamHarness) -> None:
    ranges = harness.ranges()

    assert [(one.batch_id, one.first, one.last, one.is_gapless) for one in ranges] == [
        (5, 0, 1, True),
        (6, 2, 2, True),
        (7, 3, 5, True),
    ]
    assert [harness.again(one) for one in ranges] == [
        [(0, "a"), (1, "b")],
        [(2, "c")],
        [(3, "d"), (4, "e"), (5, "f")],
    ]


def test_a_share_that_lost_a_record_yields_no_rows_rather_than_shifted_ordinals(harness: StreamHarness) -> None:
    (first, *_) = harness.ranges()
    one_more = {**first.details, "rows": 3}

    assert list(reread_shard_range(harness.stream, SHARD, one_more, stream_name="s")) == []


def test_only_the_record_before_a_share_proves_that_it_is_complete(harness: StreamHarness) -> None:
    ranges = harness.ranges()
    oldest = oldest_sequence_number(harness.stream, SHARD)
    never = LAST_ORDINAL + 1

    assert [harness.records.retained_range(one, oldest) for one in ranges] == [
        RetainedRange(never, 0),
        RetainedRange(2, 2),
        RetainedRange(3, 3),
    ]
    after_first = int(str(ranges[1].details["start"]["after"]))
    trimmed = [harness.records.retained_range(one, after_first + 1) for one in ranges]
    assert trimmed == [RetainedRange(never, never), RetainedRange(never, 2), RetainedRange(3, 3)]
    assert harness.records.retained_range(ranges[0], None) == RetainedRange(never, never)


def test_sequence_numbers_select_shares(harness: StreamHarness) -> None:
    ranges = harness.ranges()
    place, name = ranges[1].details, harness.wire.name
    through = place["through"]

    assert harness.records.select(ranges, f"{name}/{SHARD}/{through}-{through}") == [ranges[1]]
    assert harness.records.select(ranges, f"{name}/{SHARD}/{through}-") == ranges[1:]
    assert harness.records.select(ranges, f"{name}/{SHARD}/0-{through}") == ranges[:2]
    assert harness.records.select(ranges, f"{name}/another/0-") == []
    assert harness.records.select(ranges, "no place") is None


def test_nothing_is_read_if_the_end_of_the_latest_batch_is_not_recorded(harness: StreamHarness) -> None:
    harness.state.delete_batches("run", before=3, all_older=True)

    with pytest.raises(ContractError, match="records where batch 7 ended in shardId-000000000000") as unknown:
        harness.ranges()

    assert unknown.value.condition == "LEDGER_WITHOUT_OFFSET"


def test_the_last_share_of_a_closed_shard_reaches_to_its_end(harness: StreamHarness) -> None:
    harness.wire.split(0)
    closed = Offset(run="run", batch=3, finished={SHARD: None})
    harness.offsets.append(closed)
    harness.state.delete_batches("run", before=3, all_older=True)

    last = harness.ranges()[-1]

    assert (last.first, last.last, last.is_gapless) == (3, LAST_ORDINAL, False)
    assert harness.again(last) == [(3, "d"), (4, "e"), (5, "f")]


THREE = base64.b64decode(
    "84mawgoIcGxheWVyIDEKCHBsYXllciAyGhkIABoVeyJldmVudE5hbWUiOiJsb2dpbiJ9GhwIARoYeyJldmVudE5hbWUiOiJwdXJjaGFzZSJ9"
    "GhoIABoWeyJldmVudE5hbWUiOiJsb2dvdXQiffmWLRxlaQOm01LzTAwR7UM="
)
WITH_HASH_KEY = base64.b64decode(
    "84mawgoBYRInMzQwMjgyMzY2OTIwOTM4NDYzNDYzMzc0NjA3NDMxNzY4MjExNDU1GgkIABAAGgMA/4D9HfFeaTlHMNYxRLirMDAk"
)


def packed(message: bytes) -> bytes:
    return MAGIC + message + hashlib.md5(message).digest()


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def user_record(index: int, data: bytes) -> bytes:
    return field(3, varint(1 << 3) + varint(index) + field(3, data))


def test_records_aggregated_by_another_implementation_are_deaggregated() -> None:
    assert deaggregate(THREE) == [
        UserRecord("player 1", b'{"eventName":"login"}'),
        UserRecord("player 2", b'{"eventName":"purchase"}'),
        UserRecord("player 1", b'{"eventName":"logout"}'),
    ]
    assert deaggregate(WITH_HASH_KEY) == [UserRecord("a", b"\x00\xff\x80")]


@given(st.lists(st.tuples(st.text(min_size=1, max_size=20), st.binary(max_size=200)), min_size=1, max_size=30))
def test_manually_aggregated_records_are_returned_in_order(records: list[tuple[str, bytes]]) -> None:
    keys = sorted({key for key, _ in records})
    message = b"".join(field(1, key.encode()) for key in keys)
    message += b"".join(user_record(keys.index(key), data) for key, data in records)

    assert deaggregate(packed(message)) == [UserRecord(key, data) for key, data in records]


def test_tags_and_unknown_fields_are_ignored() -> None:
    tag = field(4, field(1, b"name") + field(2, b"value"))
    record = field(3, varint(1 << 3) + varint(0) + field(3, b"x") + tag)

    assert deaggregate(packed(field(1, b"k") + record + field(15, b"of the future"))) == [UserRecord("k", b"x")]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"plain",
        MAGIC,
        MAGIC + bytes(16),
        THREE[:-1],
        THREE[:20] + b"!" + THREE[21:],
        packed(b""),
        packed(field(1, b"k")),
        packed(user_record(0, b"no key table")),
        packed(field(1, b"k") + user_record(1, b"index too large")),
        packed(field(1, b"\xff\xfe") + user_record(0, b"key is no UTF-8")),
        packed(field(1, b"k") + field(3, field(3, b"no index"))),
        packed(field(1, b"k") + b"\x1a\x7fcut off"),
    ],
    ids=str,
)
def test_inconsistent_data_is_not_an_aggregate(data: bytes) -> None:
    assert deaggregate(data) is None


@given(st.binary(max_size=300))
def test_no_bytes_after_the_magic_fail_the_parser(message: bytes) -> None:
    found = deaggregate(packed(message))

    assert deaggregate(MAGIC + message) is None, "it lacks the right digest"
    assert found is None or (found and all(record.data in message for record in found))
