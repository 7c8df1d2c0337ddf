"""Puts records into a Kinesis stream; of a call that took some of them, only those it did not take are sent again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from collector.records import OutgoingRecord

#: What one PutRecords takes at most.
RECORDS_PER_CALL, BYTES_PER_CALL = 500, 5 << 20
_ATTEMPTS = 8
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.1, 5.0


class RecordsRefusedError(Exception):
    """The stream did not take `count` records in all attempts; whoever sent them has to send them again."""

    def __init__(self, count: int, reason: str) -> None:
        super().__init__(f"{count} records were not taken: {reason}")
        self.count = count


class StreamWriter:
    """Writes to one stream. Safe to share between threads, as its client is.

    A record whose call failed on its way back may be in the stream twice: Kinesis has no ids, so events carry
    one, and gold counts each id once.
    """

    def __init__(
        self, client: Any, stream: str, *, sleep: Callable[[float], None] = time.sleep, seed: int | None = None
    ) -> None:
        self._client = client
        self._stream = stream
        self._sleep = sleep
        self._random = random.Random(seed)

    def put(self, records: Sequence[OutgoingRecord]) -> None:
        """Put records, in as few calls as can be.

        Raises:
            RecordsRefusedError: some were not taken; the others are in the stream.
        """
        refused, reason = 0, ""
        for batch in _batches(records):
            left, why = self._put_batch(batch)
            refused, reason = refused + left, why or reason
        if refused:
            raise RecordsRefusedError(refused, reason)

    def _put_batch(self, batch: list[OutgoingRecord]) -> tuple[int, str]:
        reason = ""
        for attempt in range(_ATTEMPTS):
            if attempt:
                longest = min(_LONGEST_WAIT_SECONDS, _FIRST_WAIT_SECONDS * 2**attempt)
                self._sleep(self._random.uniform(longest / 2, longest))
            try:
                answer = self._client.put_records(StreamName=self._stream, Records=[record.entry() for record in batch])
            except Exception as error:  # the call as a whole: all of it is sent again
                reason = f"{type(error).__name__}: {error}"
                continue
            results = answer["Records"]
            batch = [record for record, result in zip(batch, results, strict=True) if result.get("ErrorCode")]
            if not batch:
                return 0, ""
            reason = next(result["ErrorCode"] for result in results if result.get("ErrorCode"))
        return len(batch), reason


def _batches(records: Sequence[OutgoingRecord]) -> Iterator[list[OutgoingRecord]]:
    batch: list[OutgoingRecord] = []
    size = 0
    for record in records:
        more = len(record.data) + len(record.partition_key)
        if batch and (len(batch) == RECORDS_PER_CALL or size + more > BYTES_PER_CALL):
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += more
    if batch:
        yield batch
