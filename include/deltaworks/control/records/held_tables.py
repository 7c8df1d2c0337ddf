"""Held tables: tables whose commits wait while batches complete without them.

The files of a held table stay in the prepared batch, and the ledger marks the table's step as `held`. There are four
reasons: the table was *suspended* because its commits failed, another job has its *write turn*, it is *reprocessed* in
place, or it *announces* changes of another table that is held. One object per held table records this. Only the stream
that owns the pipeline's lease writes these objects and commits the held files; other processes read them or write a
request.

The ledger decides which steps must still be committed. A lost record is recreated from the ledger, and a former owner's
record has no effect, so neither can lose or duplicate rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict

from deltaworks.control import paths
from deltaworks.control.clock import iso_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import Record, RecordKind, UnversionedRecord
from deltaworks.errors import ContractError

HoldReason = Literal["suspended", "write_turn", "reprocess", "announces"]


class HeldTable(Record):
    """One held table. `since_batch` is the first batch that may be missing from it."""

    model_config = ConfigDict(extra="ignore")
    kind: ClassVar[RecordKind] = RecordKind(
        noun="record of a held table",
        unreadable_condition="HELD_RECORD_UNREADABLE",
        hint="Resume the table; the ledger has its held batches.",
    )

    table: str
    reason: HoldReason
    since_batch: int
    at: str
    condition: str = ""
    message: str = ""
    hint: str = ""
    by: str = ""
    retryable: bool = False

    def summary(self) -> dict[str, Any]:
        """Returns the fields that the heartbeat shows."""
        brief = ("table", "reason", "since_batch", "at", "condition", "message", "by")
        return {name: getattr(self, name) for name in brief}


class ResumeRequest(UnversionedRecord):
    """A request to the stream to catch a held table up. The stream only checks that it exists."""

    table: str
    by: str
    at: str


class HeldTableRecords:
    """Reads the held tables of one pipeline, for any process."""

    def __init__(self, objects: ObjectStore, pipeline: str) -> None:
        self._objects = objects
        self._pipeline = pipeline

    def read(self) -> dict[str, HeldTable]:
        """Reads every held table, by name. One listing, and a read per table.

        An unreadable record counts as a suspension from the first batch on; the ledger knows which batches are missing.
        """
        prefix = paths.held_table(self._pipeline, "").removesuffix(".json")
        held = {}
        for key in self._objects.list(prefix):
            stored = self._objects.get(key)
            if stored is None or not key.endswith(".json"):
                continue
            name = key.removeprefix(prefix).removesuffix(".json")
            held[name] = _decode(name, stored.data, key)
        return held

    def request_resume(self, table: str, *, by: str) -> ResumeRequest:
        """Requests the stream, or its next start, to catch a held table up. Idempotent."""
        request = ResumeRequest(table=table, by=by, at=iso_now())
        self._objects.put(paths.resume_request(self._pipeline, table), request.encode())
        return request


def _decode(table: str, data: bytes, key: str) -> HeldTable:
    try:
        return HeldTable.decode(data, key=key).replace(table=table)
    except ContractError as error:
        return HeldTable(
            table=table,
            reason="suspended",
            since_batch=0,
            at=iso_now(),
            condition=error.condition,
            message=error.message,
            hint=error.hint,
        )


class HeldTables:
    """The held tables as the owner of the lease sees them: in memory, and then in the objects. Single-threaded.

    While the owner lives only its memory counts: if a former owner removes an object, the table stays held.
    """

    def __init__(self, objects: ObjectStore, pipeline: str) -> None:
        self._objects = objects
        self._pipeline = pipeline
        self._held = HeldTableRecords(objects, pipeline).read()

    def __contains__(self, table: object) -> bool:
        return table in self._held

    def __iter__(self) -> Iterator[HeldTable]:
        # A copy: the heartbeat iterates from another thread.
        return iter([record for _, record in sorted(self._held.copy().items())])

    def get(self, table: str) -> HeldTable | None:
        """Returns the record of a table, None if it is not held."""
        return self._held.get(table)

    def hold(self, record: HeldTable) -> HeldTable:
        """Holds a table; durable when this returns. A table that is already held keeps its first batch."""
        existing = self._held.get(record.table)
        if existing is not None:
            record = record.replace(since_batch=min(existing.since_batch, record.since_batch))
        self._objects.put(paths.held_table(self._pipeline, record.table), record.encode())
        self._held[record.table] = record
        return record

    def advance(self, table: str, *, since_batch: int) -> None:
        """Records that all batches before `since_batch` are committed."""
        record = self._held[table]
        if since_batch > record.since_batch:
            renewed = record.replace(since_batch=since_batch)
            self._objects.put(paths.held_table(self._pipeline, table), renewed.encode())
            self._held[table] = renewed

    def release(self, table: str) -> None:
        """Releases a table. Does nothing if it is not held."""
        self._objects.delete(paths.held_table(self._pipeline, table))
        self._held.pop(table, None)
