"""Shares of a shard re-read: completely, with their former ordinals, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deltaworks.control import paths
from deltaworks.control.objects import open_objects
from deltaworks.errors import ContractError
from deltaworks.sources.kinesis.client import KinesisStream
from deltaworks.sources.kinesis.positions import Offset, Position, ShardRange, ShardRangeEnd, ShardRangeLimits
from deltaworks.sources.kinesis.shard_range_reader import FetchOptions, get_or_fetch
from deltaworks.sources.kinesis.source import KinesisRecordSource, oldest_sequence_number, reread_shard_range
from deltaworks.sources.kinesis.state import QueryState
from deltaworks.sources.record_source import LAST_ORDINAL, BatchOffsets, RecordRange, RetainedRange
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.storage import AwsSpec
from deltaworks.testing import environment_spec, pipeline_spec
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
        end = self.state.shard_range_end("run", batch, SHARD)
        assert end is not None
        return end

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
