"""Commits a batch to all tables in parallel, each with its own retries.

A table that still fails after its retries is suspended: its files stay in the prepared batch, and the other tables
commit. The batch fails only if a successor has taken over, quarantine cannot be written, or the storage is unreachable.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from deltaworks.control.job import as_deltaworks_error
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.prepared import PreparedBatch, PreparedTable
from deltaworks.engine.ledger import Ledger, StepOutcome
from deltaworks.engine.table_set import TableSet
from deltaworks.engine.writers import TableWriter
from deltaworks.errors import ContractError, DeltaworksError, FencedError
from deltaworks.events.reasons import QUARANTINE_TABLE
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake
from deltaworks.tables.steps import CAUGHT_UP, HELD, batch_step

log = logging.getLogger(__name__)
COMMIT_THREADS = 8
#: Waits between attempts of one commit. Each attempt already retries 30 times after conflicts with other writers.
RETRY_SECONDS = (0.5, 1.0, 2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStores:
    """The stores that a batch writes to: lake, control objects, ledger and tables."""

    lake: Lake
    objects: ObjectStore
    ledger: Ledger
    tables: TableSet


class TableCommitter:
    """Commits one table's files of a batch through the table's writer, with retries."""

    def __init__(self, tables: TableSet, writers: dict[str, TableWriter], *, owner: Step) -> None:
        self._tables = tables
        self._writers = writers
        self._owner = owner

    def commit(self, batch: PreparedBatch, prepared_table: PreparedTable) -> StepOutcome:
        """Commits the prepared files to their table, exactly once.

        Raises:
            DeltaworksError: the error of the last attempt; raised without further attempts if it is not retryable.
        """
        for wait_seconds in (*RETRY_SECONDS, None):
            try:
                return self._commit_once(batch, prepared_table)
            except Exception as error:
                mapped = as_deltaworks_error(error)
                if wait_seconds is None or not mapped.retryable:
                    raise mapped from error
                log.warning(
                    "pipeline=%s batch=%d table=%s is tried again: %s",
                    batch.pipeline,
                    batch.batch_id,
                    prepared_table.table,
                    mapped,
                )
                time.sleep(wait_seconds)
        raise AssertionError("the last attempt returned or raised")

    def _commit_once(self, batch: PreparedBatch, prepared_table: PreparedTable) -> StepOutcome:
        problem = self._tables.problems.get(prepared_table.table)
        if problem is not None:
            raise problem
        if prepared_table.table not in self._tables.handles:
            raise ContractError(
                "TABLE_NOT_DECLARED",
                f"Pipeline {batch.pipeline!r} no longer declares table {prepared_table.table!r}, but batches have "
                "rows for it.",
            )
        # Only Spark can commit staged files; a changed table may need Spark for other files too.
        needs_spark = "spark" in (prepared_table.writer, self._tables.writer_by_table[prepared_table.table])
        return self._writers["spark" if needs_spark else "fan_out"].commit(batch, prepared_table, owner=self._owner)


def held_outcome(batch: PreparedBatch, prepared_table: PreparedTable) -> StepOutcome:
    """Returns the ledger row of a batch's commit that is skipped because its table is held."""
    return StepOutcome(
        step=batch_step(batch.pipeline, batch.generation, prepared_table.table, batch.batch_id).app_id,
        table_name=prepared_table.table,
        writer=prepared_table.writer,
        outcome=HELD,
        rows=prepared_table.rows,
        files=len(prepared_table.files),
        bytes=sum(file["size"] for file in prepared_table.files),
        delta_version=None,
        seconds=0.0,
    )


def commit_tables(
    batch: PreparedBatch,
    committer: TableCommitter,
    *,
    tables: TableSet,
    is_held: Callable[[str], bool],
    suspend: Callable[[str, int, DeltaworksError], None],
) -> list[StepOutcome]:
    """Commits all tables of the batch that are not held, in parallel, and suspends failing tables.

    Notification tables are committed after the tables they announce. Suspensions are recorded before this returns, so
    no batch completes with an unrecorded failure.

    Raises:
        DeltaworksError: the batch cannot continue; the next run retries the same prepared batch.
    """

    def commit_one(share: PreparedTable) -> StepOutcome | DeltaworksError:
        if is_held(share.table):
            return held_outcome(batch, share)
        try:
            return committer.commit(batch, share)
        except DeltaworksError as error:
            return error

    outcomes: dict[str, StepOutcome] = {}
    for prepared_tables in _commit_order(batch, tables):
        with ThreadPoolExecutor(COMMIT_THREADS) as pool:
            results = dict(
                zip((share.table for share in prepared_tables), pool.map(commit_one, prepared_tables), strict=True)
            )
        failed = {table: result for table, result in results.items() if isinstance(result, DeltaworksError)}
        if failed:
            _raise_if_batch_fails(failed, tables, total=len(prepared_tables))
        for table, error in failed.items():
            suspend(table, batch.batch_id, error)
        for prepared_table in prepared_tables:
            result = results[prepared_table.table]
            outcomes[prepared_table.table] = (
                held_outcome(batch, prepared_table) if isinstance(result, DeltaworksError) else result
            )
            if outcomes[prepared_table.table].outcome == HELD:
                tables.add_pending_columns(prepared_table)
    return [outcomes[share.table] for share in batch.tables]


def _commit_order(batch: PreparedBatch, tables: TableSet) -> Iterator[list[PreparedTable]]:
    """Yields the tables of each phase, which commit in parallel: data tables first, then notification tables."""
    for is_notification in (False, True):
        prepared_tables = [
            share for share in batch.tables if (share.table in tables.announced_table_of) is is_notification
        ]
        if prepared_tables:
            yield prepared_tables


def _raise_if_batch_fails(failed: dict[str, DeltaworksError], tables: TableSet, *, total: int) -> None:
    for error in failed.values():
        if isinstance(error, FencedError):
            raise error
    if QUARANTINE_TABLE in failed:
        raise failed[QUARANTINE_TABLE]
    first_error = next(iter(failed.values()))
    all_failed = len(failed) == total > 1 and all(error.retryable for error in failed.values())
    if all_failed or not tables.is_storage_reachable():
        raise first_error


def caught_up_outcome(outcome: StepOutcome) -> StepOutcome:
    """Returns the ledger row of a commit that was postponed in its batch and is committed now."""
    return replace(outcome, outcome=CAUGHT_UP)
