"""Write turns: exclusive write access of a job to a table, while its stream keeps running.

A MERGE and continuous appends into the same partitions always conflict. So a job requests the table's turn, and the
stream grants it between two batches. Until the turn ends, the stream postpones its own commits to that table;
afterwards it commits the postponed batches. A turn ends when the job releases it, when the job has not renewed it for
its time to live, or when it takes too long. If no stream runs, the job grants itself the turn, and a starting stream
respects it.

The request is one object, replaced only by conditional put. No clocks are compared: a job counts as dead when the
object stays unchanged for a full time to live by the observer's monotonic clock. A paused job that continues after its
turn was revoked fails in Delta's conflict detection, so no data is lost.

Jobs use `write_turn`; the owner of a pipeline's lease uses `WriteTurnServer`. Before the server grants a turn, it stops
its own commits to the table and records the table as held. If it crashes before the grant, the next check of requests
releases the table.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from deltaworks.control import paths
from deltaworks.control.clock import iso_now
from deltaworks.control.locks.lease import LeaseWatch, UnchangedTimer
from deltaworks.control.objects import ObjectStore, StoredObject
from deltaworks.control.provenance import current_run
from deltaworks.control.records.store import StateRecord
from deltaworks.errors import ConcurrencyError, DeltaworksError

POLL_SECONDS = 0.5
TurnState = Literal["requested", "granted", "released", "refused", "revoked"]
TurnReason = Literal["write_turn", "reprocess"]


class Turn(Protocol):
    """The right to be the only writer of a table."""

    def check(self) -> None:
        """Raises a ConcurrencyError if the turn is lost. Call it before each commit."""


#: Returns a context manager that holds the turn of the table with this name.
TurnFactory = Callable[[str], AbstractContextManager[Turn]]


class _UncontestedTurn:
    def check(self) -> None:
        """Never raises."""


@contextlib.contextmanager
def uncontested_turn(table: str) -> Iterator[Turn]:
    """Returns a turn without a lock, for tables with no other writers, or with writers that only append."""
    yield _UncontestedTurn()


class TurnRecord(StateRecord):
    """A turn from its request to its end. `turn` is the unique id of the request; `renewal` grows with every
    renewal. Any job may replace a damaged object."""

    table: str
    turn: str
    reason: TurnReason
    state: TurnState
    by: str
    run: str
    renewal: int
    ttl_seconds: float
    max_turn_seconds: float
    requested_at: str
    granted_at: str = ""
    granted_by: str = ""
    message: str = ""
    format: Literal[1] = 1

    @property
    def is_over(self) -> bool:
        """Whether the turn has ended or was never granted."""
        return self.state not in ("requested", "granted")


class WriteTurn:
    """A job's claim on a table's turn. Use `write_turn`, which always releases it."""

    def __init__(
        self,
        objects: ObjectStore,
        pipeline: str,
        record: TurnRecord,
        *,
        stream: LeaseWatch,
        poll_seconds: float,
    ) -> None:
        self._objects = objects
        self._key = paths.turn_request(pipeline, record.table)
        self._pipeline = pipeline
        self._record = record
        self._etag = ""
        self._stream = stream
        self._poll_seconds = poll_seconds
        self._answered = threading.Event()
        self._stop = threading.Event()
        self._lost = threading.Event()
        self._renewed_at = 0.0
        self._unchanged = UnchangedTimer()
        self._thread = threading.Thread(
            target=self._renew_until_stopped, name=f"write-turn-{record.table}", daemon=True
        )

    @property
    def is_lost(self) -> bool:
        """Whether the turn was revoked or refused, or could not be renewed for its time to live."""
        return self._lost.is_set()

    @property
    def record(self) -> TurnRecord:
        """The turn as this job last read or wrote it."""
        return self._record

    def check(self) -> None:
        """Raises if the turn is lost. Call it before each commit that needs the turn.

        Raises:
            ConcurrencyError: TURN_LOST.
        """
        if self.is_lost:
            reason = self._record.message or "it was not renewed in time"
            raise ConcurrencyError(
                "TURN_LOST", f"The write turn of {self._pipeline}.{self._record.table} was lost: {reason}."
            )

    def acquire(self, *, wait_seconds: float) -> None:
        """Requests the turn and waits for the grant; then renews it in the background.

        Raises:
            ConcurrencyError: TURN_NOT_GRANTED, or TURN_LOST if the stream refused it.
        """
        deadline = time.monotonic() + wait_seconds
        while not self._request():
            if time.monotonic() >= deadline:
                raise self._not_granted_error(wait_seconds)
            time.sleep(self._poll_seconds)
        self._thread.start()
        if not self._answered.wait(max(0.0, deadline - time.monotonic())):
            self.release()
            raise self._not_granted_error(wait_seconds)
        self.check()

    def _not_granted_error(self, wait_seconds: float) -> ConcurrencyError:
        return ConcurrencyError(
            "TURN_NOT_GRANTED",
            f"The write turn of {self._pipeline}.{self._record.table} was not granted within {wait_seconds:.0f} s.",
        )

    def _request(self) -> bool:
        current = self._objects.get(self._key)
        if current is None:
            # The object is read back for its ETag. If another job was first, it is that job's object.
            self._objects.put_if_absent(self._key, self._record.encode())
            return self._adopt_stored(self._objects.get(self._key))
        stored = TurnRecord.decode_or_none(current.data)
        if stored is None or stored.is_over or self._unchanged.seconds(current.etag) >= stored.ttl_seconds:
            etag = self._objects.put_if_match(self._key, self._record.encode(), current.etag)
            if etag is not None:
                self._etag, self._renewed_at = etag, time.monotonic()
                return True
        return False

    def _adopt_stored(self, current: StoredObject | None) -> bool:
        """Adopts the stored record if it belongs to this turn; returns False otherwise."""
        record = TurnRecord.decode_or_none(current.data) if current else None
        if current is None or record is None or record.turn != self._record.turn:
            return False
        self._record, self._etag, self._renewed_at = record, current.etag, time.monotonic()
        return True

    def _renew_until_stopped(self) -> None:
        while not self._stop.is_set():
            try:
                is_valid = self._step()
            except Exception:  # any storage failure is tolerated until the time to live is over
                is_valid = time.monotonic() - self._renewed_at < self._record.ttl_seconds
            if not is_valid:
                self._lost.set()
                self._answered.set()
                return
            waiting = not self._answered.is_set()
            self._stop.wait(self._poll_seconds if waiting else min(2.0, self._record.ttl_seconds / 4))

    def _step(self) -> bool:
        """Reads the turn, renews it if due, and grants it if no stream runs. Returns False when it is over."""
        current = self._objects.get(self._key)
        renewed_at = self._renewed_at
        if not self._adopt_stored(current):
            # The object was removed with the previous turn, or another job replaced it. This job's request is still
            # unanswered.
            if self._record.state == "requested":
                self._request()
            return self._record.state == "requested"
        if self._record.is_over:
            return False
        self._renewed_at = renewed_at
        if self._record.state == "granted":
            self._answered.set()
        elif not self._stream.is_held():
            return self._replace(state="granted", granted_at=iso_now(), granted_by="the job: no stream runs")
        if time.monotonic() - renewed_at >= self._record.ttl_seconds / 3:
            return self._replace()
        return True

    def _replace(self, **changes: Any) -> bool:
        """Rewrites the turn. The next step resolves a conflict."""
        renewed = self._record.replace(renewal=self._record.renewal + 1, **changes)
        etag = self._objects.put_if_match(self._key, renewed.encode(), self._etag)
        if etag is not None:
            self._record, self._etag, self._renewed_at = renewed, etag, time.monotonic()
            if renewed.state == "granted":
                self._answered.set()
        return True

    def release(self) -> None:
        """Releases the turn. Does nothing if it is lost."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=self._record.ttl_seconds)
        for _ in range(3):
            with contextlib.suppress(DeltaworksError):
                if not self._adopt_stored(self._objects.get(self._key)) or self._record.is_over:
                    return
                released = self._record.replace(state="released", renewal=self._record.renewal + 1)
                if self._objects.put_if_match(self._key, released.encode(), self._etag) is not None:
                    self._record = released
                    return


@contextlib.contextmanager
def write_turn(
    objects: ObjectStore,
    pipeline: str,
    table: str,
    *,
    by: str,
    ttl_seconds: float = 30.0,
    wait_seconds: float = 900.0,
    max_turn_seconds: float = 3_600.0,
    reason: TurnReason = "write_turn",
    poll_seconds: float = POLL_SECONDS,
) -> Iterator[WriteTurn]:
    """Holds the write turn of one table while the block runs; the stream postpones its commits to that table.

    Call `turn.check()` before each commit. The turn is released when the block ends; a killed process loses it after
    `ttl_seconds`.

    Args:
        by: the requesting run, for messages.
        wait_seconds: how long to wait for the grant; the stream grants between two batches.
        max_turn_seconds: maximum length of the turn; the stream revokes it then, and may allow less.

    Raises:
        ConcurrencyError: TURN_NOT_GRANTED in time, or TURN_LOST.
    """
    record = TurnRecord(
        table=table,
        turn=uuid.uuid4().hex,
        reason=reason,
        state="requested",
        by=by,
        run=current_run(),
        renewal=0,
        ttl_seconds=ttl_seconds,
        max_turn_seconds=max_turn_seconds,
        requested_at=iso_now(),
    )
    stream = LeaseWatch(objects, paths.stream_lease(pipeline), silent_seconds=max(60.0, ttl_seconds))
    turn = WriteTurn(objects, pipeline, record, stream=stream, poll_seconds=poll_seconds)
    try:
        turn.acquire(wait_seconds=wait_seconds)
        yield turn
    finally:
        turn.release()


# Handling of turns in the stream.

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
