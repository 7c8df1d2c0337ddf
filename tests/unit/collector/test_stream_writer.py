"""Records put into a stream: only rejected records are put again."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st

from collector.records import OutgoingRecord
from collector.stream_writer import MAX_BYTES_PER_CALL, MAX_RECORDS_PER_CALL, RejectedRecord, StreamWriter


class Stream:
    """The service as the writer sees it: takes, refuses single records, or fails a call as a whole."""

    def __init__(self, *refusing: float | None, seed: int = 1) -> None:
        self.taken: list[dict[str, Any]] = []
        self.calls: list[int] = []
        self._refusing = list(refusing)
        self._random = random.Random(seed)

    def put_records(self, *, StreamName: str, Records: list[dict[str, Any]]) -> dict[str, Any]:
        assert StreamName == "events"
        assert len(Records) <= MAX_RECORDS_PER_CALL
        assert sum(len(each["Data"]) + len(each["PartitionKey"]) for each in Records) <= MAX_BYTES_PER_CALL
        self.calls.append(len(Records))
        share = self._refusing.pop(0) if self._refusing else 0.0
        if share is None:
            raise ConnectionError("cut off")
        refused = [self._random.random() < share for _ in Records]
        self.taken += [each for each, no in zip(Records, refused, strict=True) if not no]
        return {"Records": [{"ErrorCode": "ProvisionedThroughputExceededException"} if no else {} for no in refused]}


@given(
    st.lists(st.integers(1, 400_000), min_size=1, max_size=60),
    st.lists(st.floats(0, 0.9), max_size=5),
    st.integers(0, 99),
)
def test_each_record_is_accepted_once_regardless_of_rejections(
    sizes: list[int], refusing: list[float], seed: int
) -> None:
    stream = Stream(*refusing, seed=seed)
    records = [OutgoingRecord(str(at).encode().ljust(size, b"."), "1") for at, size in enumerate(sizes)]

    assert StreamWriter(stream, "events", sleep=lambda seconds: None, seed=1).put(records) == []

    assert Counter(each["Data"] for each in stream.taken) == Counter(record.data for record in records)


def test_only_rejected_records_are_resent_with_backoff() -> None:
    stream, waits = Stream(0.5, 0.5, 0.5), list[float]()
    StreamWriter(stream, "events", sleep=waits.append, seed=1).put([OutgoingRecord(b"x", "1")] * 100)

    assert stream.calls == sorted(stream.calls, reverse=True)
    assert len(stream.calls) == len(set(stream.calls)) == 4
    assert sum(stream.calls[1:]) < 100
    assert waits == sorted(waits)


def test_a_completely_failed_call_is_retried() -> None:
    stream = Stream(None, None)
    StreamWriter(stream, "events", sleep=lambda seconds: None).put([OutgoingRecord(b"x", "1")])

    assert len(stream.taken) == 1


def test_permanently_rejected_records_are_returned_and_may_be_sent_again() -> None:
    stream = Stream(*[1.0] * 8)
    refusals = StreamWriter(stream, "events", sleep=lambda seconds: None).put([OutgoingRecord(b"x", "1")] * 3)

    assert refusals == [RejectedRecord(index, "ProvisionedThroughputExceededException") for index in range(3)]


class PoisonedStream(Stream):
    """A stream that refuses any call with a poisoned record in it, as Kinesis does for records of a wrong size."""

    def put_records(self, *, StreamName: str, Records: list[dict[str, Any]]) -> dict[str, Any]:
        poisoned = [at for at, each in enumerate(Records, 1) if each["Data"].startswith(b"poison")]
        if poisoned:
            error = {"Code": "ValidationException", "Message": f"Value at 'records.{poisoned[0]}.member.data' failed"}
            raise ClientError({"Error": error}, "PutRecords")
        return super().put_records(StreamName=StreamName, Records=Records)


@given(st.lists(st.booleans(), min_size=1, max_size=700))
def test_records_that_fail_a_call_do_not_affect_others(poisoned: list[bool]) -> None:
    stream, waits = PoisonedStream(), list[float]()
    records = [OutgoingRecord(b"poison" if bad else b"good %d" % at, "1") for at, bad in enumerate(poisoned)]

    refusals = StreamWriter(stream, "events", sleep=waits.append).put(records)

    assert [(refusal.index, refusal.status) for refusal in refusals] == [
        (at, 400) for at, bad in enumerate(poisoned) if bad
    ]
    assert Counter(each["Data"] for each in stream.taken) == Counter(
        record.data for record, bad in zip(records, poisoned, strict=True) if not bad
    )
    assert waits == [], "there is nothing to wait for"


@pytest.mark.parametrize("code", ["ResourceNotFoundException", "AccessDeniedException", "ValidationException"])
def test_a_call_rejected_for_its_stream_or_permissions_blames_no_record(code: str) -> None:
    class Closed(Stream):
        def put_records(self, **call: Any) -> dict[str, Any]:
            raise ClientError({"Error": {"Code": code, "Message": "Value at 'streamName' failed"}}, "PutRecords")

    [refusal] = StreamWriter(Closed(), "events", sleep=lambda seconds: None).put([OutgoingRecord(b"x", "1")])

    assert refusal.status is None
