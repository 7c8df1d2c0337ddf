"""Tasks that read from a Kinesis server that throttles, fails, expires iterators and truncates responses. Faults 32,
33.

The task's function runs in this process against a real server behind a proxy, so that tests can disable protections.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deltaworks.control.objects import LocalObjects
from deltaworks.errors import DeltaworksError, TransientError
from deltaworks.sources.kinesis import client, shard_pages
from deltaworks.sources.kinesis.client import KinesisStream
from deltaworks.sources.kinesis.positions import Offset, Position, ShardRange, ShardRangeLimits
from deltaworks.sources.kinesis.shard_range_reader import FetchOptions, read_shard_range
from deltaworks.sources.kinesis.state import QueryState
from deltaworks.sources.kinesis.stream_api import IteratorExpired
from deltaworks.specs.storage import AwsSpec
from deltaworks.testing import present
from sandbox.servers.fault_proxy import Action, Fault, FaultProxy, running_fault_proxy
from tests.faults.records.conftest import Tell
from tests.kinesis_server import KEYS
from tests.spark.sources.kinesis.conftest import Server, kinesis_server

__all__ = ["kinesis_server"]

SHARD = "shardId-000000000000"
RECORDS = 600
READ = "GetRecords"


@pytest.fixture
def proxy(kinesis_server: Server, seed: int) -> Iterator[FaultProxy]:
    with running_fault_proxy(kinesis_server.endpoint, seed=seed) as running:
        yield running


@pytest.fixture
def drained(
    kinesis_server: Server, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[int]]:
    """Puts records into a stream of one shard and reads them through the proxy in requests of 50."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEYS["aws_access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEYS["aws_secret_access_key"])
    name = f"games-{uuid.uuid4().hex[:8]}"
    kinesis_server.kinesis.create_stream(StreamName=name, ShardCount=1)
    for start in range(0, RECORDS, 300):
        records = [{"Data": b"%d" % number, "PartitionKey": "k"} for number in range(start, start + 300)]
        kinesis_server.kinesis.put_records(StreamName=name, Records=records)

    def drain(into: list[int]) -> list[int]:
        stream, state = KinesisStream(AwsSpec(endpoint=proxy.endpoint), name=name), QueryState(LocalObjects(tmp_path))
        start, batch = Position(), 0
        while True:
            state.record_plan(Offset(run="run", batch=batch, shards={SHARD: start}))
            limits = ShardRangeLimits(rows=50, size=1 << 20, seconds=30)
            shard_range = ShardRange(
                run="run",
                batch=batch,
                shard_id=SHARD,
                start=start,
                limits=limits,
                until=None,
                retention_seconds=86_400,
            )
            for rows in read_shard_range(stream, state, shard_range, FetchOptions(), stream_name=name):
                into += [int(data) for data in rows.column("data").to_pylist()]
            end = present(state.shard_range_end("run", batch, SHARD))
            if not end.has_more:
                return into
            start, batch = end.end, batch + 1

    return drain


def refused(code: str, *, status: int = 400, every: int = 2) -> Fault:
    return Fault(action=Action.REFUSE, operation=READ, status=status, code=code, every=every)


FAULTS = {
    "33 reads throttled": refused("ProvisionedThroughputExceededException"),
    "33 server fails": refused("InternalFailure", status=500),
    "33 answers cut short": Fault(action=Action.CUT_SHORT, operation=READ, every=3),
    "33 replies lost": Fault(action=Action.LOSE_REPLY, operation=READ, every=3),
}


@pytest.mark.parametrize("protected", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
def test_33_reads_that_fail_are_made_again_where_they_were(
    proxy: FaultProxy,
    drained: Callable[..., list[int]],
    monkeypatch: pytest.MonkeyPatch,
    report_records_fault: Tell,
    fault: str,
    *,
    protected: bool,
) -> None:
    proxy.faults = [FAULTS[fault]]
    landed: list[int] = []
    if not protected:
        monkeypatch.setattr(client, "retry_outages", lambda call, **_: call())
        with pytest.raises(DeltaworksError):
            drained(landed)
        assert report_records_fault(fault, landed, range(RECORDS), off="waiting")[0] > 0
        return

    drained(landed)

    assert landed == list(range(RECORDS)), "in order, each once"
    assert len(proxy.incidents) >= 3
    report_records_fault(fault, landed, range(RECORDS), note=f"{len(proxy.incidents)} reads")


@pytest.mark.parametrize("protected", [True, False])
def test_32_iterators_that_expire_are_replaced_behind_the_last_record(
    proxy: FaultProxy,
    drained: Callable[..., list[int]],
    monkeypatch: pytest.MonkeyPatch,
    report_records_fault: Tell,
    protected: bool,
) -> None:
    proxy.faults = [refused("ExpiredIteratorException", every=3)]
    landed: list[int] = []
    if not protected:
        monkeypatch.setattr(shard_pages, "IteratorExpired", TimeoutError)
        with pytest.raises(IteratorExpired):
            drained(landed)
        assert report_records_fault("32 iterators expired", landed, range(RECORDS), off="taking another one")[0] > 0
        return

    drained(landed)

    assert landed == list(range(RECORDS))
    report_records_fault("32 iterators expired", landed, range(RECORDS), note=f"{len(proxy.incidents)} iterators")


def test_33_a_kinesis_that_never_answers_ends_the_task_with_what_can_be_tried_again(
    proxy: FaultProxy, drained: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.faults = [refused("ProvisionedThroughputExceededException", every=1)]
    plain: Any = client.retry_outages
    monkeypatch.setattr(client, "retry_outages", lambda call, **_: plain(call, retry_seconds=2))

    with pytest.raises(TransientError) as ended:
        drained([])

    assert (ended.value.condition, ended.value.retryable) == ("KINESIS_UNREACHABLE", True)
