"""Tables whose commits are held back while batches complete without them.

A held table's share of a batch stays in the prepared batch, and the ledger notes the step as `held`. What holds it is
one of four: it was *suspended* because its commits failed, another job has the *write turn*, it is being *reprocessed*
in place, or it *announces* a table that is held. One object per held table says so. Only the stream that owns the
pipeline's lease writes these objects and commits what was held back; everybody else reads them, or puts a request.

The ledger is what decides which shares are to be caught up with. A record that is lost is made anew from it, and one
that is left over by a former owner holds nothing back, so that neither can lose or double a row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from deltaworks.control import paths
from deltaworks.control.clock import iso_now
from deltaworks.control.objects import ObjectStore

FORMAT = 1
HoldReason = Literal["suspended", "write_turn", "reprocess", "announces"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTable:
    """One held table. `since_batch` is the first batch that may not have been committed to it."""

    table: str
    reason: HoldReason
    since_batch: int
    at: str
    condition: str = ""
    message: str = ""
    hint: str = ""
    by: str = ""
    retryable: bool = False
    format: int = FORMAT

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    def as_brief(self) -> dict[str, Any]:
        """What the heartbeat says of it."""
        brief = ("table", "reason", "since_batch", "at", "condition", "message", "by")
        return {name: getattr(self, name) for name in brief}


def read_held(objects: ObjectStore, pipeline: str) -> dict[str, HeldTable]:
    """Every held table of a pipeline, by name.

    A record that cannot be read counts as a suspension from the beginning on: what is really missing, the ledger says.
    """
    prefix = paths.held_table(pipeline, "").removesuffix(".json")
    held = {}
    for key in objects.list(prefix):
        found = objects.get(key)
        if found is None or not key.endswith(".json"):
            continue
        name = key.removeprefix(prefix).removesuffix(".json")
        held[name] = _decode(name, found.data)
    return held


def _decode(table: str, data: bytes) -> HeldTable:
    try:
        record = json.loads(data)
        if record["format"] != FORMAT:
            raise ValueError(f"format {record['format']} is not {FORMAT}")
        known = {name: record[name] for name in HeldTable.__slots__ if name in record}
        return HeldTable(**{**known, "table": table})
    except (ValueError, KeyError, TypeError) as error:
        return HeldTable(
            table=table,
            reason="suspended",
            since_batch=0,
            at=iso_now(),
            condition="HELD_RECORD_UNREADABLE",
            message=f"The record of {table!r} cannot be read: {error}.",
            hint="Resume the table; the ledger knows what was held back.",
        )


class HeldTables:
    """The owner's view of what is held: memory first, the objects after it. Used by one thread at a time.

    Memory decides while the owner lives, so that an object removed by a former owner frees nothing.
    """

    def __init__(self, objects: ObjectStore, pipeline: str) -> None:
        self._objects = objects
        self._pipeline = pipeline
        self._held = read_held(objects, pipeline)

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
            record = replace(record, since_batch=min(before.since_batch, record.since_batch))
        self._objects.put(paths.held_table(self._pipeline, record.table), record.encode())
        self._held[record.table] = record
        return record

    def advance(self, table: str, *, since_batch: int) -> None:
        """Note that everything before `since_batch` is committed."""
        record = self._held[table]
        if since_batch > record.since_batch:
            renewed = replace(record, since_batch=since_batch)
            self._objects.put(paths.held_table(self._pipeline, table), renewed.encode())
            self._held[table] = renewed

    def free(self, table: str) -> None:
        """Hold the table no more. Harmless where it is not held."""
        self._objects.delete(paths.held_table(self._pipeline, table))
        self._held.pop(table, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeRequest:
    """Somebody asks the stream to catch a held table up."""

    table: str
    by: str
    at: str

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def ask_to_resume(objects: ObjectStore, pipeline: str, table: str, *, by: str) -> ResumeRequest:
    """Put the request; the stream, or its next start, catches the table up. Idempotent."""
    request = ResumeRequest(table=table, by=by, at=iso_now())
    objects.put(paths.resume_request(pipeline, table), request.encode())
    return request
