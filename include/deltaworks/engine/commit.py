"""The commit phase of a batch: every table's share, in parallel, each retried on its own.

One table that keeps failing does not hold the others: once its retries are spent it is suspended, its share stays in
the prepared batch, and the batch continues. A batch fails as a whole only where nothing else would be right: a
successor has taken over, quarantine cannot be written, or the storage does not answer.
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
#: What is waited between the attempts of one step. A commit that merely met other writers has tried 30 times before.
RETRY_SECONDS = (0.5, 1.0, 2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStores:
    """What the batches of one pipeline land in, and what keeps the records of them."""

    lake: Lake
    objects: ObjectStore
    ledger: Ledger
    tables: TableSet


class TableCommitter:
    """Commits one share through the writer of its table, again where that can help."""

    def __init__(self, tables: TableSet, writers: dict[str, TableWriter], *, owner: Step) -> None:
        self._tables = tables
        self._writers = writers
        self._owner = owner

    def commit(self, batch: PreparedBatch, prepared_table: PreparedTable) -> StepOutcome:
        """Make the share part of its table, once.

        Raises:
            DeltaworksError: the last attempt's, at once where trying again cannot help.
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
                f"Pipeline {batch.pipeline!r} declares no table {prepared_table.table!r} any more, and batches hold rows of it.",
                hint="Declare the table again until it has caught up.",
            )
        # Files that were staged only Spark can move; a table that has changed since may need it for the others.
        needs_spark = "spark" in (prepared_table.writer, self._tables.writer_by_table[prepared_table.table])
        return self._writers["spark" if needs_spark else "fan_out"].commit(batch, prepared_table, owner=self._owner)


def held_outcome(batch: PreparedBatch, prepared_table: PreparedTable) -> StepOutcome:
    """The ledger's row of a share that stays in its prepared batch."""
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
    """Commit every share of the batch that is not held, tables in parallel, and suspend the tables that fail.

    Notification tables come after the others: what they tell of has landed, or is held back as they are then. A
    suspension is durable before this returns, so that the batch is never complete without it.

    Raises:
        DeltaworksError: the batch must not continue; it is met again as it is.
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
    """The shares that are committed together: of data, then of the notifications of it."""
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
    first = next(iter(failed.values()))
    all_failed = len(failed) == total > 1 and all(error.retryable for error in failed.values())
    if all_failed or not tables.is_storage_reachable():
        raise first


def caught_up_outcome(outcome: StepOutcome) -> StepOutcome:
    """The ledger's row of a share that was held back and is committed now."""
    return replace(outcome, outcome=CAUGHT_UP)
