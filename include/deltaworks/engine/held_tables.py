"""Holds commits to tables of a stream, and lets held tables catch up: suspensions, write turns and resume requests.

A held table catches up exactly once and in batch order: each late commit uses the transaction of its batch. The table's
transaction shows which batches it has, and the ledger shows which batches completed without it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from deltaworks.control.clock import iso_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.job import as_deltaworks_error
from deltaworks.control.locks.write_turn import TurnRecord, WriteTurnServer
from deltaworks.control.records.held_tables import HeldTable, HeldTables
from deltaworks.control.records.prepared import PreparedBatch, PreparedTable
from deltaworks.engine.commit import BatchStores, TableCommitter, caught_up_outcome
from deltaworks.engine.keyed.catchup_threads import KeyedTables
from deltaworks.engine.ledger import StepOutcome
from deltaworks.errors import ContractError, DeltaworksError, FencedError
from deltaworks.events.reasons import QUARANTINE_TABLE
from deltaworks.events.table_columns import conform_prepared_table
from deltaworks.tables.commit import Step

log = logging.getLogger(__name__)
#: Time limit for catching up between two batches, so that the other tables do not wait.
CATCH_UP_SECONDS = 30.0
#: Number of late commits that are recorded in the ledger together.
STEPS_PER_LEDGER_COMMIT = 20
_MESSAGE_LENGTH = 1_000
T = TypeVar("T")


class _TableFailure(Exception):
    """Raised if a table cannot catch up for a reason that concerns this table only."""

    def __init__(self, error: DeltaworksError) -> None:
        super().__init__(error)
        self.error = error


class TableHolds:
    """Holds and releases tables of one pipeline. Used by one thread at a time, by the owner of the pipeline's lease.

    Args:
        on_caught_up: called with a batch and its table after the late commit is recorded.
    """

    def __init__(
        self,
        stores: BatchStores,
        home: PipelineHome,
        *,
        keyed: KeyedTables,
        generation: int,
        committer: TableCommitter,
        owner: Step,
        on_caught_up: Callable[[PreparedBatch, PreparedTable], None],
    ) -> None:
        self._lake = stores.lake
        self._home = home
        self._keyed = keyed
        self._pipeline = home.pipeline
        self._generation = generation
        self._tables = stores.tables
        self._committer = committer
        self._ledger = stores.ledger
        self._owner = owner
        self._on_caught_up = on_caught_up
        self._held = HeldTables(home.objects, home.pipeline)
        self._turns = WriteTurnServer(
            home.objects, home.pipeline, granted_by=f"the stream, owner epoch {owner.version}"
        )
        self._resuming: set[str] = set()

    def is_held(self, table: str) -> bool:
        """Returns whether the table's commits are held."""
        return table in self._held

    def _announces_held_table(self, table: str) -> bool:
        """Returns whether this is a notification table whose announced table is held."""
        return self._tables.announced_table_of.get(table) in self._held

    def _hold_notification_tables(self) -> None:
        """Holds the notification tables of held tables, so that notifications never precede the rows they announce."""
        for table in self._tables.announced_table_of:
            held = self._held.get(self._tables.announced_table_of[table])
            if held is not None and table not in self._held:
                notification_hold = held.replace(table=table, reason="announces", condition="", message="", hint="")
                self._held.hold(notification_hold)

    def records(self) -> list[HeldTable]:
        """Returns all held tables."""
        return list(self._held)

    def start(self, last_completed: int | None) -> None:
        """Restores the held tables when an owner starts: from the ledger, the hold records, and tables that failed to
        open.

        Suspensions are lifted if their cause is retryable or no batch was held.
        """
        uncommitted = self._ledger.uncommitted_batches()
        for table, batches in uncommitted.items():
            record = self._held.get(table)
            if record is None:
                self._held.hold(_recovered_hold(table, batches[0]))
            elif batches[0] < record.since_batch:
                self._held.hold(record.replace(since_batch=batches[0]))
        for table, batches in uncommitted.items():
            self._record_pending_columns(table, batches)
        for record in self.records():
            if record.reason == "suspended" and record.table not in uncommitted:
                self._held.release(record.table)
            elif record.reason == "suspended" and record.retryable:
                self._resuming.add(record.table)
        for table, problem in self._tables.problems.items():
            self.suspend(table, _next_batch(last_completed), problem)
            self._resuming.discard(table)
        self._hold_notification_tables()
        self.serve_requests(last_completed)

    def _record_pending_columns(self, table: str, batches: list[int]) -> None:
        for batch_id in batches:
            batch = self._home.prepared.read(self._generation, batch_id)
            for prepared_table in batch.tables if batch else ():
                if prepared_table.table == table:
                    self._tables.add_pending_columns(prepared_table)

    def suspend(self, table: str, batch_id: int, error: DeltaworksError) -> None:
        """Suspends a table whose commits fail, starting with this batch, until an operator resumes it. Recorded on
        return.
        """
        self._held.hold(
            HeldTable(
                table=table,
                reason="suspended",
                since_batch=batch_id,
                at=iso_now(),
                condition=error.condition,
                message=error.message[:_MESSAGE_LENGTH],
                hint=error.hint,
                by="the stream",
                retryable=error.retryable,
            )
        )
        self._hold_notification_tables()
        log.error("pipeline=%s table=%s is suspended from batch %d on: %s", self._pipeline, table, batch_id, error)

    def serve_requests(self, last_completed: int | None) -> None:
        """Handles table requests between two batches: grants and ends write turns, and resumes tables.

        Raises:
            FencedError: a successor has taken over.
            TransientError: the storage is unreachable.
        """
        self._suspend_failed_keyed(_next_batch(last_completed))
        requests = self._turns.read_requests()
        for table, turn in requests.turns.items():
            self._grant_turn(table, turn, _next_batch(last_completed))
        for record in self.records():
            is_turn_over = record.reason in ("write_turn", "reprocess") and record.table not in requests.turns
            if is_turn_over or (record.table in self._resuming and record.table not in requests.turns):
                self._resume(record.table)
        for table in set(requests.resume) - set(requests.turns):
            held = self._held.get(table)
            if held is not None and held.reason == "suspended" and table not in self._resuming:
                self._resuming.add(table)
                self._resume(table)
            if table not in self._resuming:
                self._turns.remove_resume_request(table)
        for record in self.records():
            # Notification tables come last, because the tables they announce may have been released above.
            if record.reason == "announces" and record.table not in requests.turns:
                self._resume(record.table)
        for table in requests.ended:
            self._turns.remove_ended_turn(table)

    def _suspend_failed_keyed(self, next_batch: int) -> None:
        for table, error in self._keyed.pop_failures().items():
            self.suspend(table, next_batch, error)

    def _grant_turn(self, table: str, turn: TurnRecord, next_batch: int) -> None:
        """Holds the table, then grants the requested write turn."""
        if table not in self._tables.writer_by_table and table not in self._keyed.names:
            self._turns.refuse(turn, f"pipeline {self._pipeline!r} has no bronze table {table!r}")
            return
        if table not in self._held:
            self._held.hold(
                HeldTable(table=table, reason=turn.reason, since_batch=next_batch, at=iso_now(), by=turn.by)
            )
            self._hold_notification_tables()
        if table in self._keyed.names and not self._keyed.is_idle(table):
            # The table is held, so no new merge starts. The turn is granted after the running merge has ended.
            return
        if turn.state == "requested":
            self._turns.grant(turn)

    def _resume(self, table: str) -> None:
        """Catches a table up and releases it; suspends it again if it fails."""
        if self._announces_held_table(table):
            return
        try:
            finished = self._catch_up(table)
        except _TableFailure as failed:
            if table == QUARANTINE_TABLE:
                raise failed.error from failed
            self._resuming.discard(table)
            record = self._held.get(table)
            self.suspend(table, record.since_batch if record else 0, failed.error)
            return
        if finished:
            self._resuming.discard(table)
            self._held.release(table)
            log.warning("pipeline=%s table=%s has caught up", self._pipeline, table)

    def _catch_up(self, table: str) -> bool:
        """Commits the held batches in order. Returns False if the time limit ended it early."""
        record = self._held.get(table)
        if record is None or table in self._keyed.names:
            # Keyed tables have no files in batches; once released they catch up from their history.
            return True
        deadline = time.monotonic() + CATCH_UP_SECONDS
        self._classify_failure(lambda: self._tables.reopen(table, self._owner))
        batches = self._ledger.uncommitted_batches(table, since_batch=record.since_batch).get(table, [])
        for start in range(0, len(batches), STEPS_PER_LEDGER_COMMIT):
            chunk = batches[start : start + STEPS_PER_LEDGER_COMMIT]
            self._commit_held_batches(table, chunk, conform_schema=record.reason == "suspended")
            self._held.advance(table, since_batch=chunk[-1] + 1)
            if time.monotonic() >= deadline and start + STEPS_PER_LEDGER_COMMIT < len(batches):
                return False
        return True

    def _commit_held_batches(self, table: str, batches: list[int], *, conform_schema: bool) -> None:
        outcomes: list[tuple[PreparedBatch, StepOutcome]] = []
        committed = []
        try:
            for batch_id in batches:
                batch, prepared_table, outcome = self._classify_failure(
                    partial(self._commit_one, table, batch_id, conform_schema=conform_schema)
                )
                outcomes.append((batch, outcome))
                committed.append((batch, prepared_table))
        except _TableFailure:
            # The batches before the failed one are committed and must be recorded.
            self._ledger.catch_up(outcomes, owner=self._owner)
            raise
        self._ledger.catch_up(outcomes, owner=self._owner)
        for batch, prepared_table in committed:
            self._on_caught_up(batch, prepared_table)

    def _commit_one(
        self, table: str, batch_id: int, *, conform_schema: bool
    ) -> tuple[PreparedBatch, PreparedTable, StepOutcome]:
        batch, prepared_table = self._prepared_table(table, batch_id)
        conformed = prepared_table
        if conform_schema and prepared_table.writer == "fan_out":
            conformed = conform_prepared_table(self._lake, self._tables.handles[table], batch, prepared_table)
        return batch, prepared_table, caught_up_outcome(self._committer.commit(batch, conformed))

    def _classify_failure(self, work: Callable[[], T]) -> T:
        """Runs `work`. Raises _TableFailure for errors of this table; re-raises fencing and storage outages."""
        try:
            return work()
        except FencedError:
            raise
        except Exception as error:
            if not self._tables.is_storage_reachable():
                raise
            raise _TableFailure(as_deltaworks_error(error)) from error

    def _prepared_table(self, table: str, batch_id: int) -> tuple[PreparedBatch, PreparedTable]:
        batch = self._home.prepared.read(self._generation, batch_id)
        prepared_table = next((item for item in batch.tables if item.table == table), None) if batch else None
        if batch is None or prepared_table is None:
            raise ContractError(
                "HELD_BATCH_MISSING",
                f"Prepared batch {batch_id} of {self._pipeline!r}, with rows of {table!r}, is missing.",
                hint=f"Restore the object from the bucket's versions, or reprocess the batch for {table!r}.",
            )
        return batch, prepared_table


def _next_batch(last_completed: int | None) -> int:
    return 0 if last_completed is None else last_completed + 1


def _recovered_hold(table: str, since_batch: int) -> HeldTable:
    return HeldTable(
        table=table,
        reason="suspended",
        since_batch=since_batch,
        at=iso_now(),
        condition="HELD_RECORD_LOST",
        message=f"The ledger has held batches of {table!r}, but the record of the hold is missing.",
        by="the ledger",
        # The cause is unknown, so it is retried immediately.
        retryable=True,
    )
