"""Enhanced fan-out in real queries returns the rows of polling, across mode changes, resharding and actions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sandbox.servers.moto_kinesis import MotoKinesis
from tests.spark.sources.kinesis.conftest import QueryHarness

pytestmark = pytest.mark.integration
FAN_OUT = {"consumerMode": "fan_out", "consumerName": "games"}


def numbers(begin: int, end: int) -> list[str]:
    return [str(number) for number in range(begin, end)]


def test_a_query_can_change_its_mode_on_restart_while_the_stream_is_resharded(
    make_harness: Callable[..., QueryHarness], switches: MotoKinesis
) -> None:
    switches.takeover_seconds, switches.heartbeat_seconds, switches.records_per_event = 0.5, 0.2, 50
    harness = make_harness()
    harness.actions = 2
    harness.put(*numbers(0, 300))

    assert harness.drain(maxRecords=200, **FAN_OUT) == doubled(numbers(0, 200)) + doubled(numbers(200, 300))
    pushed = switches.subscriptions
    assert pushed > 0
    harness.split(0)
    harness.put(*numbers(300, 600))
    assert sorted(harness.drain(maxRecords=200), key=int) == sorted(doubled(numbers(300, 600)), key=int)
    assert switches.subscriptions == pushed, "polled"
    harness.merge(1, 2)
    harness.put(*numbers(600, 700))
    assert sorted(harness.drain(**FAN_OUT), key=int) == sorted(doubled(numbers(600, 700)), key=int)
    assert switches.subscriptions > pushed

    for first, again in zip(harness.batches[::2], harness.batches[1::2], strict=True):
        assert first.batch_id == again.batch_id
        assert first.digest == again.digest
    shards = [row["shardId"][-1] for batch in harness.batches for row in batch.rows]
    assert [shard for at, shard in enumerate(shards) if at == 0 or shards[at - 1] != shard][-1] == "3"


def doubled(texts: list[str]) -> list[str]:
    """What two actions of a batch give."""
    return texts * 2
