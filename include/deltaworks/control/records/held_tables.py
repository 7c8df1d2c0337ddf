"""Tables whose commits are held back while batches complete without them.

A held table's share of a batch stays in the prepared batch, and the ledger notes the step as `held`. What holds it is
one of four: it was *suspended* because its commits failed, another job has the *write turn*, it is being *reprocessed*
in place, or it *announces* a table that is held. One object per held table says so. Only the stream that owns the
pipeline's lease writes these objects and commits what was held back; everybody else reads them, or puts a request.

The ledger is what decides which shares are to be caught up with. A record that is lost is recreated from it, and one
that is left over by a former owner holds nothing back, so that neither can lose or double a row.
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
    """One held table. `since_batch` is the first batch that may not have been committed to it."""

    model_config = ConfigDict(extra="ignore")
    kind: ClassVar[RecordKind] = RecordKind(
        noun="record of a held table",
        unreadable_condition="HELD_RECORD_UNREADABLE",
        hint="Resume the table; the ledger knows what was held back.",
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
        """What the heartbeat says of it."""
        brief = ("table", "reason", "since_batch", "at", "condition", "message", "by")
        return {name: getattr(self, name) for name in brief}


class ResumeRequest(UnversionedRecord):
    """Somebody asks the stream to catch a held table up. The stream reads no more than that it is there."""

    table: str
    by: str
    at: str


class HeldTableRecords:
    """The records of the held tables of one pipeline, as anybody reads them."""

    def __init__(self, objects: ObjectStore, pipeline: str) -> None:
        self._objects = objects
        self._pipeline = pipeline

    def read(self) -> dict[str, HeldTable]:
        """Every held table of a pipeline, by name. One listing, and a read for each.

        A record that cannot be read counts as a suspension from the beginning on: what is really missing, the ledger
        says.
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
        """Ask for a held table; the stream, or its next start, catches it up. Idempotent."""
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
    """The owner's view of what is held: memory first, the objects after it. Used by one thread at a time.

    Memory decides while the owner lives, so that an object removed by a former owner frees nothing.
    """

    def __init__(self, objects: ObjectStore, pipeline: str) -> None:
        self._objects = objects
        self._pipeline = pipeline
        self._held = HeldTableRecords(objects, pipeline).read()

    def __contains__(self, table: object) -> bool:
        return table in self._held

    def __iter__(self) -> Iterator[HeldTable]:
        # A copy: the heartbeat looks from another thread.
        return iter([record for _, record in sorted(self._held.copy().items())])

    def get(self, table: str) -> HeldTable | None:
        """The record of a table, None where it is not held."""
        return self._held.get(table)

    def hold(self, record: HeldTable) -> HeldTable:
        """Hold a table, durably before this returns. One that is held already keeps its first batch."""
        before = self._held.get(record.table)
        if before is not None:
            record = record.replace(since_batch=min(before.since_batch, record.since_batch))
        self._objects.put(paths.held_table(self._pipeline, record.table), record.encode())
        self._held[record.table] = record
        return record

    def advance(self, table: str, *, since_batch: int) -> None:
        """Note that everything before `since_batch` is committed."""
        record = self._held[table]
        if since_batch > record.since_batch:
            renewed = record.replace(since_batch=since_batch)
            self._objects.put(paths.held_table(self._pipeline, table), renewed.encode())
            self._held[table] = renewed

    def release(self, table: str) -> None:
        """Hold the table no more. Harmless where it is not held."""
        self._objects.delete(paths.held_table(self._pipeline, table))
        self._held.pop(table, None)
