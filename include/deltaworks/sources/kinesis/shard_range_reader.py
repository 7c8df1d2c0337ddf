"""Reads a shard range, the part of a shard that belongs to one batch, inside a task. Every attempt returns the same
rows.

The first read stops at the limits and stores its end in the state before it delivers rows. Every later read stops at
the stored end and is compared with the first. Later reads use GetRecords even if the first used enhanced fan-out: a
shard cannot be subscribed to again within five seconds, and concurrent attempts would take the subscription from each
other.
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
from deltaworks.sources.kinesis.pages import Page
from deltaworks.sources.kinesis.positions import Gap, Position, ShardRange, ShardRangeEnd, latest_time
from deltaworks.sources.kinesis.rows import Rows
from deltaworks.sources.kinesis.shard_pages import PolledPages, PushedPages, ShardPages, epoch_us
from deltaworks.sources.kinesis.state import QueryState
from deltaworks.sources.kinesis.stream_api import MAX_PAGE_RECORDS, RETRY_SECONDS, ShardNotFound, StreamApi


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """Options that apply to every shard range of a query."""

    deaggregate: bool = True
    allow_data_loss: bool = False


@dataclass(frozen=True, slots=True)
class FetchedShardRange:
    """The rows of a shard range (one batch's part of a shard), and its end."""

    rows: Rows
    end: ShardRangeEnd


def fetch_first(stream: StreamApi, shard_range: ShardRange, options: FetchOptions) -> FetchedShardRange:
    """Reads a shard range whose end is not stored yet: up to a limit, the shard's latest record or end, or the batch's
    `until`.

    The time limit applies only after the first record, because a sparse shard returns many empty pages.

    Raises:
        ContractError: KINESIS_POSITION_EXPIRED, records may be lost and that is not allowed.
        TransientError: KINESIS_UNREACHABLE, nothing could be read.
    """
    return _FirstRead(stream, shard_range, options).run()


class _FirstRead:
    def __init__(self, stream: StreamApi, shard_range: ShardRange, options: FetchOptions) -> None:
        self._stream = stream
        self._shard_range = shard_range
        self._options = options
        self._rows = Rows(should_deaggregate=options.deaggregate)
        self._deadline = time.monotonic() + shard_range.limits.seconds
        self._last: tuple[str, int] | None = None
        self._behind_ms: int | None = None
        self._is_checked = False
        self._gap: Gap | None = None

    def run(self) -> FetchedShardRange:
        try:
            pages = self._open_pages()
        except ShardNotFound:
            self._record_gap(None, is_shard_missing=True)
            return self._finish(closed=True)
        with closing(pages):
            while True:
                page = self._next_page(pages)
                if page is None:
                    return self._finish(has_more=True)
                self._behind_ms = page.behind_ms
                if not self._is_checked and (pages.is_intact is not None or pages.is_ended or not page.behind_ms):
                    self._check_trimmed(pages, page)
                ended = self._append(page, pages)
                if ended is not None:
                    return ended

    def _open_pages(self) -> ShardPages:
        stream, shard_range = self._stream, self._shard_range
        if shard_range.consumer is None:
            return PolledPages(stream, shard_range.shard_id, shard_range.start)
        return PushedPages(stream, shard_range.shard_id, shard_range.start, consumer=shard_range.consumer)

    def _next_page(self, pages: ShardPages) -> Page | None:
        """Returns the next page; None if the shard throttles after some records were read."""
        limits, rows = self._shard_range.limits, self._rows
        remaining_seconds = max(self._deadline - time.monotonic(), 1.0)
        count = min(max(limits.rows - len(rows), 1), MAX_PAGE_RECORDS)
        try:
            return pages.next_page(count, retry_seconds=remaining_seconds if rows.records else RETRY_SECONDS)
        except TransientError:
            if rows.records:
                return None
            raise

    def _append(self, page: Page, pages: ShardPages) -> FetchedShardRange | None:
        """Appends a page; returns the fetched range if it ends with this page."""
        shard_range, rows, limits = self._shard_range, self._rows, self._shard_range.limits
        available = page if shard_range.until is None else page.slice(0, _count_arrived_by(page, shard_range.until))
        appended = rows.append(available, max_rows=limits.rows, max_bytes=limits.size)
        self._last = self._last or pages.skipped_record
        if appended:
            self._last = (page.sequence_numbers[appended - 1], page.arrivals_us[appended - 1])
        if appended < len(available):
            return self._finish(has_more=True)
        if len(available) < len(page):
            return self._finish(since=shard_range.until)
        if pages.is_ended:
            return self._finish(closed=True)
        if not page.behind_ms:
            return self._finish(since=pages.requested_at)
        full = len(rows) >= limits.rows or rows.bytes >= limits.size or time.monotonic() >= self._deadline
        return self._finish(has_more=True) if rows.records and full else None

    def _finish(
        self, *, closed: bool = False, has_more: bool = False, since: datetime | None = None
    ) -> FetchedShardRange:
        start, rows = self._shard_range.start, self._rows
        after, at = start.after, start.at
        if self._last is not None:
            after, at = self._last[0], None
            since = latest_time(since, datetime.fromtimestamp(self._last[1] / 1e6, UTC))
        end = Position(after=after, at=at, rows=start.rows + len(rows), since=latest_time(start.since, since))
        return FetchedShardRange(
            rows,
            ShardRangeEnd(
                start=start,
                end=end,
                records=rows.records,
                rows=len(rows),
                digest=rows.digest,
                closed=closed,
                has_more=has_more,
                behind_ms=self._behind_ms,
                read_at=self._stream.now(),
                gap=self._gap,
            ),
        )

    def _check_trimmed(self, pages: ShardPages, page: Page) -> None:
        """Records a gap if records after the start position may have expired before they were read."""
        self._is_checked = True
        since, retention = self._shard_range.start.since, timedelta(seconds=self._shard_range.retention_seconds)
        if not pages.is_intact and since is not None and since < self._stream.now() - retention:
            self._record_gap(page, is_shard_missing=False)

    def _record_gap(self, page: Page | None, *, is_shard_missing: bool) -> None:
        shard_range, start = self._shard_range, self._shard_range.start
        oldest = (page.sequence_numbers[0], page.arrivals_us[0]) if page else (None, None)
        self._gap = Gap(
            shard_id=shard_range.shard_id,
            batch=shard_range.batch,
            after=start.after,
            since=start.since,
            first=oldest[0],
            first_arrival=None if oldest[1] is None else datetime.fromtimestamp(oldest[1] / 1e6, UTC),
            detected_at=self._stream.now(),
            is_shard_missing=is_shard_missing,
        )
        if not self._options.allow_data_loss:
            raise position_expired_error(self._gap, shard_range)


def position_expired_error(gap: Gap, shard_range: ShardRange) -> ContractError:
    """Returns KINESIS_POSITION_EXPIRED, with the shard and the possibly lost records."""
    first_text = (
        "none is retained"
        if gap.first is None
        else (f"the oldest retained record is {gap.first} of {gap.first_arrival}")
    )
    start_text = f"record {gap.after}" if gap.after else "its beginning"
    problem = (
        "no longer exists"
        if gap.is_shard_missing
        else f"retains records for {shard_range.retention_seconds / 3600:g} h"
    )
    return ContractError(
        "KINESIS_POSITION_EXPIRED",
        f"{gap.shard_id} {problem}. Records after {start_text} that arrived since {gap.since} may be lost; "
        f"{first_text}.",
    )


def _count_arrived_by(page: Page, until: datetime) -> int:
    bound = epoch_us(until)
    return next((index for index, arrival in enumerate(page.arrivals_us) if arrival > bound), len(page))


#: A slower replica may not have a record yet that was read before.
_RETRY_SECONDS = 30.0
_PAUSE_SECONDS = 0.5
_NO_LIMIT = 1 << 62
_LOGGER = logging.getLogger(__name__)


def read_shard_range(
    stream: StreamApi, state: QueryState, shard_range: ShardRange, options: FetchOptions, *, stream_name: str
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a shard range. They are the same for every attempt, Spark action and driver.

    The first reader stores the end; later readers stop there. All rows of the range are held in memory.

    Raises:
        ContractError: KINESIS_POSITION_EXPIRED, KINESIS_REPLAY_DIFFERS.
        ConfigError: KINESIS_STATE_NOT_SHARED, this task cannot see the driver's plan.
    """
    fetched = get_or_fetch(stream, state, shard_range, options)
    first_ordinal = fetched.end.end.rows - len(fetched.rows)
    yield from fetched.rows.batches(stream=stream_name, shard_id=shard_range.shard_id, first_ordinal=first_ordinal)


def get_or_fetch(
    stream: StreamApi, state: QueryState, shard_range: ShardRange, options: FetchOptions
) -> FetchedShardRange:
    """Reads the rows of a shard range, up to its end in the state. If no end is stored yet, this read decides and
    stores it.
    """
    recorded = state.shard_range_end(shard_range.run, shard_range.batch, shard_range.shard_id)
    if recorded is None:
        if state.plan(shard_range.run, shard_range.batch) is None:
            raise _state_not_shared_error(shard_range)
        fetched = fetch_first(stream, shard_range, options)
        own_end = replace(fetched.end, reader=f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex}")
        if own_end.gap is not None:
            state.add_gap(shard_range.run, own_end.gap)
            _LOGGER.warning("Records of %s may be lost: %s", shard_range.shard_id, own_end.gap.to_json())
        recorded = state.record_shard_range_end(shard_range, own_end)
        if (recorded.end.after, recorded.rows, recorded.digest) == (own_end.end.after, own_end.rows, own_end.digest):
            return FetchedShardRange(fetched.rows, recorded)
    fetched = refetch(stream, shard_range, recorded, options)
    if fetched.end.gap is not None and fetched.end.gap != recorded.gap:
        state.add_gap(shard_range.run, fetched.end.gap)
        _LOGGER.warning("Records of %s were lost before a replay: %s", shard_range.shard_id, fetched.end.gap.to_json())
    return fetched


def _state_not_shared_error(shard_range: ShardRange) -> ConfigError:
    return ConfigError(
        "KINESIS_STATE_NOT_SHARED",
        f"This task on {socket.gethostname()} cannot find the plan of batch {shard_range.batch} in the query's state.",
    )


def refetch(
    stream: StreamApi,
    shard_range: ShardRange,
    recorded: ShardRangeEnd,
    options: FetchOptions,
    *,
    retry_seconds: float = _RETRY_SECONDS,
) -> FetchedShardRange:
    """Reads a shard range again, up to its stored end.

    If losses are allowed and records have expired, the remaining records keep their ordinals, and the end has a gap.

    Raises:
        ContractError: KINESIS_REPLAY_DIFFERS, start, count or content differ; KINESIS_POSITION_EXPIRED, the range's
            first
            records have expired and that is not allowed.
    """
    if recorded.start != shard_range.start:
        raise _replay_differs_error(shard_range, recorded, f"the record starts at {recorded.start.to_json()}")
    rows = Rows(should_deaggregate=options.deaggregate)
    if not recorded.records:
        return FetchedShardRange(rows, recorded)
    pages = None
    try:
        pages = PolledPages(stream, shard_range.shard_id, shard_range.start)
        _read_to_end(rows, pages, shard_range, recorded, retry_seconds)
    except ShardNotFound:
        pass
    if rows.records == recorded.records and rows.digest == recorded.digest and len(rows) == recorded.rows:
        return FetchedShardRange(rows, recorded)
    is_trimmed = (pages is None or pages.is_intact is not True) and rows.records < recorded.records
    if not is_trimmed or len(rows) > recorded.rows:
        raise _replay_differs_error(
            shard_range, recorded, f"this read returned {rows.records} records in {len(rows)} rows"
        )
    gap = Gap(
        shard_id=shard_range.shard_id,
        batch=shard_range.batch,
        after=shard_range.start.after,
        since=shard_range.start.since,
        first=rows.first_sequence_number,
        first_arrival=None,
        detected_at=stream.now(),
        is_shard_missing=pages is None,
    )
    if not options.allow_data_loss:
        raise position_expired_error(gap, shard_range)
    return FetchedShardRange(rows, replace(recorded, gap=gap))


def _read_to_end(
    rows: Rows, pages: PolledPages, shard_range: ShardRange, recorded: ShardRangeEnd, retry_seconds: float
) -> None:
    """Appends records up to the stored end, or as many as are available."""
    last = int(recorded.end.after or 0)
    deadline = time.monotonic() + retry_seconds
    while True:
        page = pages.next_page(min(recorded.records - rows.records + 1, MAX_PAGE_RECORDS))
        available = _up_to_number(page, last)
        rows.append(available, max_rows=_NO_LIMIT, max_bytes=_NO_LIMIT)
        is_end_reached = len(available) < len(page) or (
            len(available) > 0 and int(available.sequence_numbers[-1]) == last
        )
        if is_end_reached or pages.is_ended:
            return
        if not page.behind_ms:
            if time.monotonic() >= deadline:
                return
            time.sleep(_PAUSE_SECONDS)


def _up_to_number(page: Page, last: int) -> Page:
    count = next((index for index, number in enumerate(page.sequence_numbers) if int(number) > last), len(page))
    return page.slice(0, count)


def _replay_differs_error(shard_range: ShardRange, recorded: ShardRangeEnd, difference: str) -> ContractError:
    return ContractError(
        "KINESIS_REPLAY_DIFFERS",
        f"Batch {shard_range.batch} of {shard_range.shard_id} read {recorded.records} records in {recorded.rows} rows, "
        f"up to {recorded.end.after}, the first time; {difference}.",
    )
