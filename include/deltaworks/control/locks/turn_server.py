"""The stream's side of write turns and resume requests: what is asked, what is granted, what is over.

The owner of a pipeline's lease looks at the requests between two batches. It holds a table first and grants its turn
then, so that a crash between the two leaves a table that is held for nobody, which the next look frees.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from deltaworks.control import paths
from deltaworks.control.clock import iso_now
from deltaworks.control.locks.turn import TurnRecord
from deltaworks.control.objects import Found, ObjectStore

#: The longest turn a stream gives, whatever is asked: behind a turn prepared batches pile up.
MAX_TURN_SECONDS = 3_600.0


@dataclass(frozen=True, slots=True)
class Requests:
    """What one look found: tables to resume, turns that are asked for or under way, and turns that are over."""

    resume: tuple[str, ...]
    turns: dict[str, TurnRecord]
    over: tuple[str, ...]


class TurnDesk:
    """Reads requests and answers them. Used by one thread at a time, by the owner of the lease only."""

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
        self._etags: dict[str, str] = {}
        self._changed_at: dict[str, float] = {}
        self._granted_at: dict[str, tuple[str, float]] = {}

    def look(self) -> Requests:
        """Every request in force. One listing, and one read a turn.

        A turn whose holder has been silent for its time to live, or that has lasted too long, is taken back here.
        """
        folder = paths.requests(self._pipeline)
        resume, turns, over = [], {}, []
        for key in self._objects.list(folder):
            kind, _, table = key.removeprefix(folder).removesuffix(".json").partition("-")
            if kind == "resume":
                resume.append(table)
            elif kind == "turn":
                record = self._turn(table)
                if record is not None:
                    turns[table] = record
                else:
                    over.append(table)
        return Requests(tuple(resume), turns, tuple(over))

    def _turn(self, table: str) -> TurnRecord | None:
        """The turn of a table while it lasts; None once it is over."""
        found = self._objects.get(paths.turn_request(self._pipeline, table))
        record = TurnRecord.decode(found.data) if found else None
        if found is None or record is None or record.over:
            return None
        now = self._clock()
        if self._etags.get(table) != found.etag:
            self._etags[table], self._changed_at[table] = found.etag, now
        if now - self._changed_at[table] >= record.ttl_seconds:
            return self._end(found, record, f"its holder was silent for {record.ttl_seconds:.0f} s")
        if record.state == "granted":
            if self._granted_at.get(table, ("", 0.0))[0] != record.turn:
                self._granted_at[table] = (record.turn, now)
            longest = min(record.max_turn_seconds, self._max_turn_seconds)
            if now - self._granted_at[table][1] >= longest:
                return self._end(found, record, f"it lasted {longest:.0f} s")
        return record

    def _end(self, found: Found, record: TurnRecord, message: str) -> TurnRecord | None:
        """Take a turn back. None, unless its holder has changed it at this very moment."""
        ended = replace(record, state="taken_back", message=message)
        key = paths.turn_request(self._pipeline, record.table)
        taken = self._objects.put_if_match(key, ended.encode(), found.etag)
        return None if taken is not None else record

    def grant(self, asked: TurnRecord) -> bool:
        """Give a turn that is asked for. False where its holder has just changed or withdrawn it: look again then."""
        return self._answer(asked, state="granted", granted_at=iso_now(), granted_by=self._granted_by)

    def refuse(self, asked: TurnRecord, message: str) -> bool:
        """Say that this turn cannot be had."""
        return self._answer(asked, state="refused", message=message)

    def _answer(self, asked: TurnRecord, **changes: str) -> bool:
        key = paths.turn_request(self._pipeline, asked.table)
        found = self._objects.get(key)
        record = TurnRecord.decode(found.data) if found else None
        if found is None or record is None or (record.turn, record.state) != (asked.turn, "asked"):
            return False
        answered = replace(record, **changes)  # type: ignore[arg-type]
        return self._objects.put_if_match(key, answered.encode(), found.etag) is not None

    def resumed(self, table: str) -> None:
        """The request to resume has been dealt with."""
        self._objects.delete(paths.resume_request(self._pipeline, table))

    def forget(self, table: str) -> None:
        """Remove a turn that is over, so that the next look need not read it."""
        key = paths.turn_request(self._pipeline, table)
        found = self._objects.get(key)
        record = TurnRecord.decode(found.data) if found else None
        if found is not None and (record is None or record.over):
            self._objects.delete(key)
            self._etags.pop(table, None)
            self._changed_at.pop(table, None)
            self._granted_at.pop(table, None)
