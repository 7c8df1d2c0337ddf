"""Puts records into a Kinesis stream; after a partially failed call, only the failed records are retried.

A record that the stream can never accept is isolated, so it does not affect others.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from collector.records import OutgoingRecord

#: Limits of one PutRecords call. A record counts with its key; a stream can allow records of up to 10 MiB.
MAX_RECORDS_PER_CALL, MAX_BYTES_PER_CALL = 500, 5 << 20
MAX_RECORD_BYTES = 1 << 20
_ATTEMPTS = 8
_FIRST_WAIT_SECONDS, _MAX_WAIT_SECONDS = 0.1, 5.0
_BAD_REQUEST, _TOO_LARGE = 400, 413
#: Errors of a call that are caused by its records.
_RECORD_ERROR_CODES = ("ValidationException", "InvalidArgumentException", "ParamValidationError")

IndexedRecord = tuple[int, OutgoingRecord]


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """A record that is not in the stream, by index. `status` is None if a retry may succeed."""

    index: int
    reason: str
    status: int | None = None


class StreamWriter:
    """Writes to one stream. Thread-safe, as its client is.

    A record whose reply was lost may be duplicated: Kinesis has no ids, so events carry one and gold deduplicates by
    it.
    """

    def __init__(
        self,
        client: Any,
        stream: str,
        *,
        record_bytes: int = MAX_RECORD_BYTES,
        attempts: int = _ATTEMPTS,
        sleep: Callable[[float], None] = time.sleep,
        seed: int | None = None,
    ) -> None:
        self._client = client
        self._stream = stream
        self._record_bytes = record_bytes
        self._attempts = attempts
        self._sleep = sleep
        self._random = random.Random(seed)

    def put(self, records: Sequence[OutgoingRecord]) -> list[RejectedRecord]:
        """Puts records in as few calls as possible; returns the rejected records, in order."""
        rejected, accepted = [], []
        for index, record in enumerate(records):
            if record.size_bytes > self._record_bytes:
                reason = f"{record.size_bytes} bytes as a record, more than {self._record_bytes}"
                rejected.append(RejectedRecord(index, reason, _TOO_LARGE))
            else:
                accepted.append((index, record))
        for batch in _batches(accepted):
            rejected += self._put_batch(batch)
        return sorted(rejected, key=lambda rejection: rejection.index)

    def _put_batch(self, batch: list[IndexedRecord]) -> list[RejectedRecord]:
        reason = ""
        for attempt in range(self._attempts):
            if attempt:
                max_wait = min(_MAX_WAIT_SECONDS, _FIRST_WAIT_SECONDS * 2**attempt)
                self._sleep(self._random.uniform(max_wait / 2, max_wait))
            try:
                entries = [record.request_entry() for _, record in batch]
                response = self._client.put_records(StreamName=self._stream, Records=entries)
            except Exception as error:  # the entire call failed, so no record was accepted
                reason = f"{type(error).__name__}: {error}"
                if _is_record_error(error):
                    return self._put_halves(batch, reason)
                continue
            results = response["Records"]
            batch = [record for record, result in zip(batch, results, strict=True) if result.get("ErrorCode")]
            if not batch:
                return []
            reason = next(result["ErrorCode"] for result in results if result.get("ErrorCode"))
        return [RejectedRecord(index, reason) for index, _ in batch]

    def _put_halves(self, batch: list[IndexedRecord], reason: str) -> list[RejectedRecord]:
        """Splits a batch that fails because of one record, and puts both halves. Rejects the record once it is alone in
        a batch.
        """
        if len(batch) == 1:
            return [RejectedRecord(batch[0][0], reason, _BAD_REQUEST)]
        middle = len(batch) // 2
        return self._put_batch(batch[:middle]) + self._put_batch(batch[middle:])


def _is_record_error(error: Exception) -> bool:
    """Returns whether a call failed because of its records, not because of stream, permissions or load."""
    response = getattr(error, "response", None)
    code = response.get("Error", {}).get("Code") if isinstance(response, dict) else type(error).__name__
    return code in _RECORD_ERROR_CODES and "records" in str(error).partition(":")[2].lower()


def _batches(records: Sequence[IndexedRecord]) -> Iterator[list[IndexedRecord]]:
    batch: list[IndexedRecord] = []
    size = 0
    for index, record in records:
        if batch and (len(batch) == MAX_RECORDS_PER_CALL or size + record.size_bytes > MAX_BYTES_PER_CALL):
            yield batch
            batch, size = [], 0
        batch.append((index, record))
        size += record.size_bytes
    if batch:
        yield batch
