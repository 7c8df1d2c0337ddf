"""Reads a share of a shard in a task: fixes where it ends, once for all attempts, and only then hands over rows.

Records are read up to the limits the first time, and up to the recorded end every time after, where they are compared
with what was read the first time. That is done by GetRecords, also where the first reading is pushed: a shard that has
just been subscribed to cannot be subscribed to again for five seconds, and attempts beside each other would take the
subscription from one another.
"""

from __future__ import annotations

import logging
import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from deltaworks.errors import ConfigError, ContractError, TransientError
from deltaworks.sources.kinesis.calls import LARGEST_PAGE, PATIENCE_SECONDS, ShardGone, StreamCalls
from deltaworks.sources.kinesis.pages import Page
from deltaworks.sources.kinesis.positions import Gap, Position, Share, ShareEnd, later
from deltaworks.sources.kinesis.rows import Rows
from deltaworks.sources.kinesis.shard_pages import PolledPages, PushedPages, ShardPages, micros
from deltaworks.sources.kinesis.state import QueryState


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """What holds for every share of a query."""

    deaggregate: bool = True
    allow_data_loss: bool = False


@dataclass(frozen=True, slots=True)
class Fetched:
    """A share's rows, and the record that fixes where it ends."""

    rows: Rows
    end: ShareEnd


def fetch_next(stream: StreamCalls, share: Share, options: FetchOptions) -> Fetched:
    """Read a share for the first time: to a limit, the shard's tip or end, or the batch's `until`.

    A share ends by time only behind its first record: a shard with few records answers many empty pages.

    Raises:
        ContractError: KINESIS_POSITION_EXPIRED when records may have been lost and that is not allowed.
        TransientError: KINESIS_UNREACHABLE when nothing could be read.
    """
    return _FirstReading(stream, share, options).run()


class _FirstReading:
    def __init__(self, stream: StreamCalls, share: Share, options: FetchOptions) -> None:
        self._stream = stream
        self._share = share
        self._options = options
        self._rows = Rows(deaggregate=options.deaggregate)
        self._deadline = time.monotonic() + share.limits.seconds
        self._last: tuple[str, int] | None = None
        self._behind_ms: int | None = None
        self._judged = False
        self._gap: Gap | None = None

    def run(self) -> Fetched:
        try:
            pages = self._pages()
        except ShardGone:
            self._lost(None, shard_gone=True)
            return self._ended(closed=True)
        with closing(pages):
            while True:
                page = self._page(pages)
                if page is None:
                    return self._ended(more=True)
                self._behind_ms = page.behind_ms
                if not self._judged and (pages.intact is not None or pages.ended or not page.behind_ms):
                    self._judge(pages, page)
                ended = self._use(page, pages)
                if ended is not None:
                    return ended

    def _pages(self) -> ShardPages:
        stream, share = self._stream, self._share
        if share.consumer is None:
            return PolledPages(stream, share.shard_id, share.start)
        return PushedPages(stream, share.shard_id, share.start, consumer=share.consumer)

    def _page(self, pages: ShardPages) -> Page | None:
        """The next page; None where a shard that throttles is left with what there is."""
        limits, rows = self._share.limits, self._rows
        left = max(self._deadline - time.monotonic(), 1.0)
        count = min(max(limits.rows - len(rows), 1), LARGEST_PAGE)
        try:
            return pages.next(count, patience_seconds=left if rows.records else PATIENCE_SECONDS)
        except TransientError:
            if rows.records:
                return None
            raise

    def _use(self, page: Page, pages: ShardPages) -> Fetched | None:
        """Take a page; the share when it ends with it."""
        share, rows, limits = self._share, self._rows, self._share.limits
        due = page if share.until is None else page.part(0, _arrived_by(page, share.until))
        taken = rows.take(due, up_to_rows=limits.rows, up_to_bytes=limits.size)
        self._last = self._last or pages.passed_over
        if taken:
            self._last = (page.sequence_numbers[taken - 1], page.arrivals[taken - 1])
        if taken < len(due):
            return self._ended(more=True)
        if len(due) < len(page):
            return self._ended(since=share.until)
        if pages.ended:
            return self._ended(closed=True)
        if not page.behind_ms:
            return self._ended(since=pages.asked_at)
        full = len(rows) >= limits.rows or rows.bytes >= limits.size or time.monotonic() >= self._deadline
        return self._ended(more=True) if rows.records and full else None

    def _ended(self, *, closed: bool = False, more: bool = False, since: datetime | None = None) -> Fetched:
        start, rows = self._share.start, self._rows
        after, at = start.after, start.at
        if self._last is not None:
            after, at = self._last[0], None
            since = later(since, datetime.fromtimestamp(self._last[1] / 1e6, UTC))
        end = Position(after=after, at=at, rows=start.rows + len(rows), since=later(start.since, since))
        return Fetched(
            rows,
            ShareEnd(
                start=start,
                end=end,
                records=rows.records,
                rows=len(rows),
                digest=rows.digest,
                closed=closed,
                more=more,
                behind_ms=self._behind_ms,
                read_at=self._stream.now(),
                gap=self._gap,
            ),
        )

    def _judge(self, pages: ShardPages, page: Page) -> None:
        """Whether what lies behind the position can have been trimmed before it was read."""
        self._judged = True
        since, retention = self._share.start.since, timedelta(seconds=self._share.retention_seconds)
        if not pages.intact and since is not None and since < self._stream.now() - retention:
            self._lost(page, shard_gone=False)

    def _lost(self, page: Page | None, *, shard_gone: bool) -> None:
        share, start = self._share, self._share.start
        oldest = (page.sequence_numbers[0], page.arrivals[0]) if page else (None, None)
        self._gap = Gap(
            shard_id=share.shard_id,
            batch=share.batch,
            after=start.after,
            since=start.since,
            first=oldest[0],
            first_arrival=None if oldest[1] is None else datetime.fromtimestamp(oldest[1] / 1e6, UTC),
            noticed_at=self._stream.now(),
            shard_gone=shard_gone,
        )
        if not self._options.allow_data_loss:
            raise position_expired(self._gap, share)


def position_expired(gap: Gap, share: Share) -> ContractError:
    """The error that names what may be lost, and how to continue."""
    first = "none is left" if gap.first is None else f"the oldest one left is {gap.first} of {gap.first_arrival}"
    begin = f"record {gap.after}" if gap.after else "its beginning"
    what = "is no longer there" if gap.shard_gone else f"keeps records for {share.retention_seconds / 3600:g} h"
    return ContractError(
        "KINESIS_POSITION_EXPIRED",
        f"{gap.shard_id} {what}: records behind {begin} that arrived since {gap.since} may be lost; {first}.",
        hint="Set allowDataLoss to continue behind the gap, which is then recorded; raise the retention.",
    )


def _arrived_by(page: Page, until: datetime) -> int:
    bound = micros(until)
    return next((index for index, arrival in enumerate(page.arrivals) if arrival > bound), len(page))


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
