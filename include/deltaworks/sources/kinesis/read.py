"""What a task does with its share: fix where it ends, once for all attempts, and only then hand over rows.

A share whose end is fixed is read again up to it, and compared with what was read the first time. That is done by
GetRecords, also where the first reading is pushed: a shard that has just been subscribed to cannot be subscribed to
again for five seconds, and attempts beside each other would take the subscription from one another.
"""

from __future__ import annotations

import logging
import os
import socket
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from deltaworks.errors import ConfigError, ContractError
from deltaworks.sources.kinesis.calls import LARGEST_PAGE, ShardGone, StreamCalls
from deltaworks.sources.kinesis.fetch import Fetched, FetchOptions, fetch_next, position_expired
from deltaworks.sources.kinesis.pages import Page
from deltaworks.sources.kinesis.positions import Gap, Share, ShareEnd
from deltaworks.sources.kinesis.rows import Rows
from deltaworks.sources.kinesis.shard_pages import PolledPages
from deltaworks.sources.kinesis.state import QueryState

#: What was read once can be behind the tip of a slower copy for a moment.
_PATIENCE_SECONDS = 30.0
_PAUSE_SECONDS = 0.5
_NO_LIMIT = 1 << 62
_LOGGER = logging.getLogger(__name__)


def read_share(
    stream: StreamCalls, state: QueryState, share: Share, options: FetchOptions, *, stream_name: str
) -> Iterator[pa.RecordBatch]:
    """The rows of a share: the same ones for every attempt, action and driver, however often it is read.

    Whoever reads first fixes the end; others read up to it. The share is in memory until then.

    Raises:
        ContractError: KINESIS_POSITION_EXPIRED, KINESIS_REPLAY_DIFFERS.
        ConfigError: KINESIS_STATE_NOT_SHARED when the driver wrote its plan where this task cannot see it.
    """
    fetched = settled(stream, state, share, options)
    first_ordinal = fetched.end.end.rows - len(fetched.rows)
    yield from fetched.rows.batches(stream=stream_name, shard_id=share.shard_id, first_ordinal=first_ordinal)


def settled(stream: StreamCalls, state: QueryState, share: Share, options: FetchOptions) -> Fetched:
    """The share's rows and the record that counts, which exists from now on."""
    recorded = state.end(share.run, share.batch, share.shard_id)
    if recorded is None:
        if state.plan(share.run, share.batch) is None:
            raise _not_shared(share)
        fetched = fetch_next(stream, share, options)
        mine = replace(fetched.end, reader=f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex}")
        if mine.gap is not None:
            state.add_gap(share.run, mine.gap)
            _LOGGER.warning("Records of %s may be lost: %s", share.shard_id, mine.gap.to_json())
        recorded = state.fix_end(share, mine)
        if (recorded.end.after, recorded.rows, recorded.digest) == (mine.end.after, mine.rows, mine.digest):
            return Fetched(fetched.rows, recorded)
    fetched = fetch_again(stream, share, recorded, options)
    if fetched.end.gap is not None and fetched.end.gap != recorded.gap:
        state.add_gap(share.run, fetched.end.gap)
        _LOGGER.warning("Records of %s were lost before a replay: %s", share.shard_id, fetched.end.gap.to_json())
    return fetched


def _not_shared(share: Share) -> ConfigError:
    return ConfigError(
        "KINESIS_STATE_NOT_SHARED",
        f"This task on {socket.gethostname()} finds no plan of batch {share.batch} in the query's state.",
        hint="Give a stateLocation that the driver and all executors share, such as s3://bucket/folder.",
    )


def fetch_again(
    stream: StreamCalls, share: Share, recorded: ShareEnd, options: FetchOptions, *, patience: float = _PATIENCE_SECONDS
) -> Fetched:
    """Read exactly what a record says.

    Where trimming is allowed, the records that are left keep the ordinals they had, and the end has a gap.

    Raises:
        ContractError: KINESIS_REPLAY_DIFFERS when start, count or content differ; KINESIS_POSITION_EXPIRED when the
            share's first records have been trimmed and that is not allowed.
    """
    if recorded.start != share.start:
        raise _differs(share, recorded, f"the record starts at {recorded.start.to_json()}")
    rows = Rows(deaggregate=options.deaggregate)
    if not recorded.records:
        return Fetched(rows, recorded)
    pages = None
    try:
        pages = PolledPages(stream, share.shard_id, share.start)
        _fill(rows, pages, share, recorded, patience)
    except ShardGone:
        pass
    if rows.records == recorded.records and rows.digest == recorded.digest and len(rows) == recorded.rows:
        return Fetched(rows, recorded)
    trimmed = (pages is None or pages.intact is not True) and rows.records < recorded.records
    if not trimmed or len(rows) > recorded.rows:
        raise _differs(share, recorded, f"{rows.records} records in {len(rows)} rows came this time")
    gap = Gap(
        shard_id=share.shard_id,
        batch=share.batch,
        after=share.start.after,
        since=share.start.since,
        first=rows.first_sequence_number,
        first_arrival=None,
        noticed_at=stream.now(),
        shard_gone=pages is None,
    )
    if not options.allow_data_loss:
        raise position_expired(gap, share)
    return Fetched(rows, replace(recorded, gap=gap))


def _fill(rows: Rows, pages: PolledPages, share: Share, recorded: ShareEnd, patience: float) -> None:
    """Take records up to the recorded end, or as many as are there."""
    last = int(recorded.end.after or 0)
    deadline = time.monotonic() + patience
    while True:
        page = pages.next(min(recorded.records - rows.records + 1, LARGEST_PAGE))
        due = _up_to(page, last)
        rows.take(due, up_to_rows=_NO_LIMIT, up_to_bytes=_NO_LIMIT)
        reached = len(due) < len(page) or (len(due) > 0 and int(due.sequence_numbers[-1]) == last)
        if reached or pages.ended:
            return
        if not page.behind_ms:
            if time.monotonic() >= deadline:
                return
            time.sleep(_PAUSE_SECONDS)


def _up_to(page: Page, last: int) -> Page:
    count = next((index for index, number in enumerate(page.sequence_numbers) if int(number) > last), len(page))
    return page.part(0, count)


def _differs(share: Share, recorded: ShareEnd, difference: str) -> ContractError:
    return ContractError(
        "KINESIS_REPLAY_DIFFERS",
        f"Batch {share.batch} of {share.shard_id} read {recorded.records} records in {recorded.rows} rows, up to "
        f"{recorded.end.after}, the first time; {difference}.",
        hint="Check that deaggregate is what it was, and that stateLocation belongs to this query and stream alone.",
    )
