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


class ShareCommits:
    """Commits one share through the writer of its table, again where that can help."""

    def __init__(self, tables: TableSet, writers: dict[str, TableWriter], *, owner: Step) -> None:
        self._tables = tables
        self._writers = writers
        self._owner = owner

    def commit(self, batch: PreparedBatch, share: PreparedTable) -> StepOutcome:
        """Make the share part of its table, once.

        Raises:
            DeltaworksError: the last attempt's, at once where trying again cannot help.
        """
        for wait_seconds in (*RETRY_SECONDS, None):
            try:
                return self._once(batch, share)
            except Exception as error:
                own = as_deltaworks_error(error)
                if wait_seconds is None or not own.retryable:
                    raise own from error
                log.warning(
                    "pipeline=%s batch=%d table=%s is tried again: %s", batch.pipeline, batch.batch_id, share.table, own
                )
                time.sleep(wait_seconds)
        raise AssertionError("the last attempt returned or raised")

    def _once(self, batch: PreparedBatch, share: PreparedTable) -> StepOutcome:
        problem = self._tables.problems.get(share.table)
        if problem is not None:
            raise problem
        if share.table not in self._tables.handles:
            raise ContractError(
                "TABLE_NOT_DECLARED",
                f"Pipeline {batch.pipeline!r} declares no table {share.table!r} any more, and batches hold rows of it.",
                hint="Declare the table again until it has caught up.",
            )
        # Files that were staged only Spark can move; a table that has changed since may need it for the others.
        by_spark = "spark" in (share.writer, self._tables.writer_by_table[share.table])
        return self._writers["spark" if by_spark else "fan_out"].commit(batch, share, owner=self._owner)


def held_outcome(batch: PreparedBatch, share: PreparedTable) -> StepOutcome:
    """The ledger's row of a share that stays in its prepared batch."""
    return StepOutcome(
        step=batch_step(batch.pipeline, batch.generation, share.table, batch.batch_id).app_id,
        table_name=share.table,
        writer=share.writer,
        outcome=HELD,
        rows=share.rows,
        files=len(share.files),
        bytes=sum(file["size"] for file in share.files),
        delta_version=None,
        seconds=0.0,
    )


def commit_shares(
    batch: PreparedBatch,
    commits: ShareCommits,
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

    def one(share: PreparedTable) -> StepOutcome | DeltaworksError:
        if is_held(share.table):
            return held_outcome(batch, share)
        try:
            return commits.commit(batch, share)
        except DeltaworksError as error:
            return error

    outcomes: dict[str, StepOutcome] = {}
    for shares in _in_turn(batch, tables):
        with ThreadPoolExecutor(COMMIT_THREADS) as pool:
            done = dict(zip((share.table for share in shares), pool.map(one, shares), strict=True))
        failed = {table: result for table, result in done.items() if isinstance(result, DeltaworksError)}
        if failed:
            _raise_what_concerns_all(failed, tables, of=len(shares))
        for table, error in failed.items():
            suspend(table, batch.batch_id, error)
        for share in shares:
            result = done[share.table]
            outcomes[share.table] = held_outcome(batch, share) if isinstance(result, DeltaworksError) else result
            if outcomes[share.table].outcome == HELD:
                tables.note_waiting(share)
    return [outcomes[share.table] for share in batch.tables]


def _in_turn(batch: PreparedBatch, tables: TableSet) -> Iterator[list[PreparedTable]]:
    """The shares that are committed together: of data, then of the notifications of it."""
    for announcing in (False, True):
        shares = [share for share in batch.tables if (share.table in tables.announced) is announcing]
        if shares:
            yield shares


def _raise_what_concerns_all(failed: dict[str, DeltaworksError], tables: TableSet, *, of: int) -> None:
    for error in failed.values():
        if isinstance(error, FencedError):
            raise error
    if QUARANTINE_TABLE in failed:
        raise failed[QUARANTINE_TABLE]
    first = next(iter(failed.values()))
    everywhere = len(failed) == of > 1 and all(error.retryable for error in failed.values())
    if everywhere or not tables.storage_answers():
        raise first


def as_caught_up(outcome: StepOutcome) -> StepOutcome:
    """The ledger's row of a share that was held back and is committed now."""
    return replace(outcome, outcome=CAUGHT_UP)
