"""Lands quarantined rows once the spec, a rule or the landed object has been mended: exactly once, and recorded.

The open rows are read again by the code of the stream, slice by slice. A slice is a replay of its own and goes through
the three records of a batch: *prepare* writes the files and fixes them with one put-if-absent object, *commit* adds
them to every table under the step `<pipeline>/replay/<table>` at the replay's ordinal, *complete* adds the rows' record
to `quarantine_replays`, under a step like the others. Whatever dies in between, the next call completes first. Of two
that replay at once, one waits for the other; and were it not so, one would fix the next ordinal, and the other complete
that one and select anew.

Rows keep `_seq`, `_position` and `_batch_id`; a row whose place a table has already is not added to it again. Gold
follows by itself: the dates the files are in have changed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pyarrow as pa

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.lease import Lease
from deltaworks.rework.quarantine.open_rows import Quarantine, QuarantineFilter, slices
from deltaworks.rework.quarantine.replayer import Fault, Replayer, ReplayResult
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake
from deltaworks.tables.steps import read_last_replay

SLICE_ROWS, SLICE_BYTES = 10_000, 64 << 20
LEASE_SECONDS = 30


def replay_quarantine(
    catalog: Catalog,
    pipeline: str,
    wanted: QuarantineFilter,
    *,
    dry_run: bool = True,
    limit: int | None = None,
    slice_rows: int = SLICE_ROWS,
    fault: Fault = lambda point: None,
) -> ReplayResult:
    """Land what fits now of the open rows that are wanted. Idempotent, and safe beside the stream and other replays.

    Args:
        dry_run: only count; nothing is written.
        limit: at most this many rows, the oldest first.

    Raises:
        ContractError: RULE_FAILED, FIELD_UNDECLARED where tables declare to stop; PREPARED_REPLAY_UNREADABLE.
        ConcurrencyError: LEASE_HELD by a reprocess or another replay; TABLE_HELD, COMMIT_CONTENDED, after which the
            next call completes what was prepared.
    """
    started = time.monotonic()
    result = ReplayResult(pipeline=pipeline, dry_run=dry_run)
    replayer = Replayer(catalog, pipeline, result, fault=fault)

    def parts() -> Iterator[pa.Table]:
        keys = Quarantine(replayer.lake, pipeline).keys(wanted, limit=limit)
        return slices(keys, max_rows=slice_rows, max_bytes=SLICE_BYTES)

    if dry_run:
        for part in parts():
            replayer.count(part)
    else:
        replayer.open()
        with rereading(catalog, pipeline):
            result.completed_earlier = replayer.complete_torn()
            for part in parts():
                while not replayer.land(part):
                    replayer.complete_torn()
    result.seconds = time.monotonic() - started
    return result


@contextlib.contextmanager
def rereading(
    catalog: Catalog, pipeline: str, *, starting_over: bool = False, rolling_back: bool = False
) -> Iterator[None]:
    """The right to read again what has landed: a replay does not run beside a reprocess, which decides by quarantine.

    Args:
        starting_over: go on with a start over that was broken off, which keeps all others out.
        rolling_back: go on with a rollback that was broken off, which does so too.

    Raises:
        ConcurrencyError: LEASE_HELD.
        ContractError: START_OVER_UNFINISHED, ROLLBACK_UNFINISHED.
    """
    home = PipelineHome.open(catalog.environment.lake, pipeline)
    lease = Lease(home.objects, paths.rereading_lease(pipeline), ttl_seconds=LEASE_SECONDS, name=pipeline)
    with lease.held(wait_seconds=2 * LEASE_SECONDS):
        if not starting_over:
            home.start_overs.refuse_unfinished()
        if not rolling_back:
            home.rollbacks.refuse_unfinished()
        yield


def complete_torn_replay(catalog: Catalog, pipeline: str) -> None:
    """Complete a replay that was prepared and is not complete, if there is one. Call it while `rereading`."""
    lake, home = Lake(catalog.environment.lake), PipelineHome.open(catalog.environment.lake, pipeline)
    if home.replays.read(1 + read_last_replay(lake, pipeline)) is not None:
        replayer = Replayer(catalog, pipeline, ReplayResult(pipeline=pipeline, dry_run=False), fault=lambda point: None)
        replayer.open()
        replayer.complete_torn()


def void_replays(catalog: Catalog, pipeline: str, *, replay_id: str) -> int:
    """Make what all replays landed void, and the next ordinal used up, so that one that was under way selects anew.

    Safe to repeat. Call it while `rereading`, with a quarantine that is empty. Returns the ordinal.
    """
    replayer = Replayer(catalog, pipeline, ReplayResult(pipeline=pipeline, dry_run=False), fault=lambda point: None)
    replayer.open_record()
    while (ordinal := replayer.void_all(replay_id)) is None:
        replayer.complete_torn()
    return ordinal
