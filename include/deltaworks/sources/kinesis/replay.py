"""Reads a share again, up to its recorded end, and makes sure that it is what was read the first time.

By GetRecords, also where the first reading is pushed: a shard that has just been subscribed to cannot be subscribed to
again for five seconds, and attempts that run beside each other would take the subscription from one another.
"""

from __future__ import annotations

import time
from dataclasses import replace

from deltaworks.errors import ContractError
from deltaworks.sources.kinesis.calls import LARGEST_PAGE, ShardGone, StreamCalls
from deltaworks.sources.kinesis.fetch import Fetched, FetchOptions, position_expired
from deltaworks.sources.kinesis.pages import Page
from deltaworks.sources.kinesis.rows import Rows
from deltaworks.sources.kinesis.shard_pages import PolledPages
from deltaworks.sources.kinesis.shares import Gap, Share, ShareEnd

#: What was read once can be behind the tip of a slower copy for a moment.
_PATIENCE_SECONDS = 30.0
_PAUSE_SECONDS = 0.5
_NO_LIMIT = 1 << 62


def fetch_again(
    stream: StreamCalls, share: Share, recorded: ShareEnd, options: FetchOptions, *, patience: float = _PATIENCE_SECONDS
) -> Fetched:
    """Read exactly what a record says.

    Where trimming is allowed, the records that are left are given with the ordinals they had, and a gap is told.

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


def _differs(share: Share, recorded: ShareEnd, found: str) -> ContractError:
    return ContractError(
        "KINESIS_REPLAY_DIFFERS",
        f"Batch {share.batch} of {share.shard_id} read {recorded.records} records in {recorded.rows} rows, up to "
        f"{recorded.end.after}, the first time; {found}.",
        hint="Check that deaggregate is what it was, and that stateLocation belongs to this query and stream alone.",
    )
