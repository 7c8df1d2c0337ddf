"""Handles write turns and resume requests in the stream: grants, refuses and revokes turns.

The owner of a pipeline's lease reads the requests between two batches. Before it grants a turn, it stops its own
commits to the table and records the table as held. If it crashes before the grant, the next check of requests releases
the table.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from deltaworks.control import paths
from deltaworks.control.clock import iso_now
from deltaworks.control.locks.lease import UnchangedTimer
from deltaworks.control.locks.write_turn import TurnRecord
from deltaworks.control.objects import ObjectStore, StoredObject

#: Upper limit of a turn: prepared batches accumulate while it lasts.
MAX_TURN_SECONDS = 3_600.0


@dataclass(frozen=True, slots=True)
class PendingRequests:
    """The requests of a pipeline: tables to resume, requested and granted turns, and tables whose turn has ended."""

    resume: tuple[str, ...]
    turns: dict[str, TurnRecord]
    ended: tuple[str, ...]


class WriteTurnServer:
    """Reads requests and answers them. Single-threaded; only the owner of the pipeline's lease may use it."""

    def __init__(
        self,
        objects: ObjectStore,
        pipeline: str,
        *,
        granted_by: str,
        max_turn_seconds: float = MAX_TURN_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._objects = objects
        self._pipeline = pipeline
        self._granted_by = granted_by
        self._max_turn_seconds = max_turn_seconds
        self._clock = clock
        self._unchanged: dict[str, UnchangedTimer] = {}
        self._granted_at: dict[str, tuple[str, float]] = {}

    def read_requests(self) -> PendingRequests:
        """Reads all current requests: one listing, and one read per turn.

        Revokes a turn if its holder was silent for the time to live, or it took too long.
        """
        folder = paths.requests(self._pipeline)
        resume, turns, over = [], {}, []
        for key in self._objects.list(folder):
            kind, _, table = key.removeprefix(folder).removesuffix(".json").partition("-")
            if kind == "resume":
                resume.append(table)
            elif kind == "turn":
                record = self._active_turn(table)
                if record is not None:
                    turns[table] = record
                else:
                    over.append(table)
        return PendingRequests(tuple(resume), turns, tuple(over))

    def _active_turn(self, table: str) -> TurnRecord | None:
        """Returns the active turn of a table; None if it has ended."""
        current = self._objects.get(paths.turn_request(self._pipeline, table))
        record = TurnRecord.decode_or_none(current.data) if current else None
        if current is None or record is None or record.is_over:
            return None
        unchanged = self._unchanged.setdefault(table, UnchangedTimer(self._clock))
        if unchanged.seconds(current.etag) >= record.ttl_seconds:
            return self._revoke(current, record, f"its holder was silent for {record.ttl_seconds:.0f} s")
        if record.state == "granted":
            now = self._clock()
            if self._granted_at.get(table, ("", 0.0))[0] != record.turn:
                self._granted_at[table] = (record.turn, now)
            max_seconds = min(record.max_turn_seconds, self._max_turn_seconds)
            if now - self._granted_at[table][1] >= max_seconds:
                return self._revoke(current, record, f"it lasted {max_seconds:.0f} s")
        return record

    def _revoke(self, current: StoredObject, record: TurnRecord, message: str) -> TurnRecord | None:
        """Revokes a turn; returns None on success, or the current record if the holder changed it meanwhile."""
        ended = record.replace(state="revoked", message=message)
        key = paths.turn_request(self._pipeline, record.table)
        etag = self._objects.put_if_match(key, ended.encode(), current.etag)
        return None if etag is not None else record

    def grant(self, request: TurnRecord) -> bool:
        """Grants a requested turn.

        Returns False if the job changed or withdrew the request meanwhile. The caller must then read the requests
        again.
        """
        return self._answer(request, state="granted", granted_at=iso_now(), granted_by=self._granted_by)

    def refuse(self, request: TurnRecord, message: str) -> bool:
        """Refuses a requested turn permanently.

        Returns False if the job changed or withdrew the request meanwhile. The caller must then read the requests
        again.
        """
        return self._answer(request, state="refused", message=message)

    def _answer(self, request: TurnRecord, **changes: str) -> bool:
        key = paths.turn_request(self._pipeline, request.table)
        current = self._objects.get(key)
        record = TurnRecord.decode_or_none(current.data) if current else None
        if current is None or record is None or (record.turn, record.state) != (request.turn, "requested"):
            return False
        answer = record.replace(**changes)
        return self._objects.put_if_match(key, answer.encode(), current.etag) is not None

    def remove_resume_request(self, table: str) -> None:
        """Removes a completed request to resume a table."""
        self._objects.delete(paths.resume_request(self._pipeline, table))

    def remove_ended_turn(self, table: str) -> None:
        """Removes the record of an ended turn, so that it is not read again."""
        key = paths.turn_request(self._pipeline, table)
        current = self._objects.get(key)
        record = TurnRecord.decode_or_none(current.data) if current else None
        if current is not None and (record is None or record.is_over):
            self._objects.delete(key)
            self._unchanged.pop(table, None)
            self._granted_at.pop(table, None)
