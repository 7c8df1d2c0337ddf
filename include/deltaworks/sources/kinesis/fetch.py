"""Reads a share's records: up to its limits the first time, up to its recorded end every time after."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from deltaworks.errors import ContractError, TransientError
from deltaworks.sources.kinesis.calls import LARGEST_PAGE, PATIENCE_SECONDS, ShardGone, StreamCalls
from deltaworks.sources.kinesis.pages import Page
from deltaworks.sources.kinesis.positions import Gap, Position, Share, ShareEnd, later
from deltaworks.sources.kinesis.rows import Rows
from deltaworks.sources.kinesis.shard_pages import PolledPages, PushedPages, ShardPages, micros


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
    """The error that names what may be lost, and how to go on."""
    first = "none is left" if gap.first is None else f"the oldest one left is {gap.first} of {gap.first_arrival}"
    begin = f"record {gap.after}" if gap.after else "its beginning"
    what = "is no longer there" if gap.shard_gone else f"keeps records for {share.retention_seconds / 3600:g} h"
    return ContractError(
        "KINESIS_POSITION_EXPIRED",
        f"{gap.shard_id} {what}: records behind {begin} that arrived since {gap.since} may be lost; {first}.",
        hint="Set allowDataLoss to go on behind the gap, which is then recorded; raise the retention.",
    )


def _arrived_by(page: Page, until: datetime) -> int:
    bound = micros(until)
    return next((index for index, arrival in enumerate(page.arrivals) if arrival > bound), len(page))
