"""Reads the file event log of a relay by `seq`; defines its schema and when two file events are the same.

A damaged log is an error of its own. Retries could not repair it, so it must not be treated as an outage.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from deltaworks.control.paths import relay_control
from deltaworks.errors import ContractError
from deltaworks.specs.relay import Overwrites
from deltaworks.specs.sources import glob_expression
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.commit import refresh
from deltaworks.tables.files import read_parquet
from deltaworks.tables.lake import Lake, arrow_path

if TYPE_CHECKING:
    from deltaworks.sources.objects.relay.messages import FileEvent

#: The message of delta-rs for a commit that is not JSON; it has no error class. A missing commit may be a delayed
#: listing.
_DAMAGE_MESSAGE: Final = re.compile(r"\bJson error\b")


@contextmanager
def raise_log_damage(key: str) -> Iterator[None]:
    """Raises LOG_DAMAGED if delta-rs finds the log damaged within the block; other errors pass through.

    Raises:
        ContractError: LOG_DAMAGED.
    """
    try:
        yield
    except DeltaError as error:
        if not _DAMAGE_MESSAGE.search(str(error)):
            raise
        raise ContractError(
            "LOG_DAMAGED",
            # delta-rs appends a backtrace after the first line.
            f"The file event log {key} cannot be read because its `_delta_log` is damaged: "
            f"{str(error).splitlines()[0]}.",
        ) from error


#: `seq` increases by one from 1 without gaps. `event_time` is the store's time; `batch` is the relay's append number.
FILE_EVENT_COLUMNS: Mapping[str, str] = {
    "seq": "long",
    "bucket": "string",
    "key": "string",
    "size": "long",
    "etag": "string",
    "version_id": "string",
    "event_time": "timestamp",
    "event_name": "string",
    "sequencer": "string",
    "message_id": "string",
    "origin": "string",
    "received_at": "timestamp",
    "batch": "long",
}
MESSAGE_QUARANTINE_COLUMNS: Mapping[str, str] = {
    "message_id": "string",
    "body": "string",
    "reason": "string",
    "received_at": "timestamp",
    "batch": "long",
}
FILE_EVENT_SCHEMA = arrow_schema(FILE_EVENT_COLUMNS)
MESSAGE_QUARANTINE_SCHEMA = arrow_schema(MESSAGE_QUARANTINE_COLUMNS)
_READ_THREADS = 8
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_MAX_CACHED_ROWS = 200_000
_PART_ROWS = 50_000


@dataclass(frozen=True, slots=True)
class LogReader:
    """A pipeline that reads the log: which objects it reads, and the `seq` up to which it has read."""

    pipeline: str
    bucket: str
    prefix: str
    glob: str | None
    seq: int


@dataclass(frozen=True, slots=True)
class LogFile:
    """One data file of the log with its `seq` range, both ends inclusive."""

    path: str
    first_seq: int
    last_seq: int
    rows: int


@dataclass(frozen=True, slots=True)
class UnprocessedFiles:
    """The file events that a reader has not processed: number, bytes, and the store's time of the oldest object."""

    files: int
    bytes: int
    oldest_at: datetime | None


def file_events_key(relay: str) -> str:
    """Returns the lake key of the relay's file event log."""
    return relay_control(relay, "file_events")


def message_quarantine_key(relay: str) -> str:
    """Returns the lake key of the table of messages that the relay could not parse."""
    return relay_control(relay, "message_quarantine")


class FileEventLog:
    """A relay's log as streams read it. Not thread-safe; safe while the relay writes.

    A log that does not exist reads as empty. Storage errors are not wrapped: callers decide how long to retry.
    """

    def __init__(self, lake: Lake, relay: str) -> None:
        self._lake = lake
        self._key = file_events_key(relay)
        self._table: DeltaTable | None = None
        self._files: list[LogFile] = []
        self._files_version = -1
        self._cache: OrderedDict[str, pa.Table] = OrderedDict()

    @property
    def table_id(self) -> str:
        """The id that distinguishes this log from another one at the same location; empty if there is none."""
        if self._table is None:
            self.files()
        return "" if self._table is None else str(self._table.metadata().id)

    def check_position(self, position: Mapping[str, Any]) -> None:
        """Rejects the position of a reader if it belongs to another log, or lies beyond this log's end.

        Such a `seq` would name another object, and objects with lower numbers would never be read.

        Args:
            position: `seq`, and `log`, the id of its log, if known.

        Raises:
            ContractError: LOG_REPLACED, LOG_ROLLED_BACK.
        """
        seq, log_id = int(position["seq"]), str(position.get("log") or "")
        last_seq = self.last_seq()
        if log_id and log_id != self.table_id:
            raise ContractError(
                "LOG_REPLACED",
                f"The file event log {self._key} was recreated: position {seq} belongs to the former log {log_id}.",
            )
        if seq > last_seq:
            raise ContractError(
                "LOG_ROLLED_BACK",
                f"The file event log {self._key} ends at {last_seq}, but it was read up to {seq}: an older state "
                "was restored.",
            )

    def last_seq(self) -> int:
        """Returns the highest `seq`; 0 for an empty log."""
        return max((file.last_seq for file in self.files()), default=0)

    def read(
        self,
        after_seq: int,
        up_to_seq: int | None = None,
        limit: int | None = None,
        *,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Returns events with `after_seq` < seq <= `up_to_seq`, at most the first `limit`, ordered by `seq`."""
        if limit is not None:
            # `seq` has no gaps, so a number of events is a range of `seq`.
            up_to_seq = after_seq + limit if up_to_seq is None else min(up_to_seq, after_seq + limit)
        needed = [
            file
            for file in self.files()
            if file.last_seq > after_seq and (up_to_seq is None or file.first_seq <= up_to_seq)
        ]
        names = list(columns or FILE_EVENT_SCHEMA.names)
        tables = [table.select(names) for table in self._load(needed, after_seq, up_to_seq)]
        if not tables:
            return FILE_EVENT_SCHEMA.empty_table().select(names)
        return pa.concat_tables(tables)

    def read_parts(
        self, after_seq: int = 0, up_to_seq: int | None = None, *, columns: Sequence[str] | None = None
    ) -> Iterator[pa.Table]:
        """Yields the rows of `read` in non-empty tables of bounded size. `columns` must include `seq`."""
        while (chunk := self.read(after_seq, up_to_seq, _PART_ROWS, columns=columns)).num_rows:
            yield chunk
            after_seq = chunk.column("seq")[-1].as_py()

    def backlog(self, after_seq: int, *, bucket: str, prefix: str = "", glob: str | None = None) -> UnprocessedFiles:
        """Returns the unprocessed events after `after_seq` for one bucket, prefix and glob. Reads all of them, in
        parts.
        """
        files = size = 0
        oldest: datetime | None = None
        for rows in self.read_parts(after_seq, self.last_seq()):
            chunk = filter_events(rows, bucket=bucket, prefix=prefix, glob=glob)
            if chunk.num_rows == 0:
                continue
            files += chunk.num_rows
            size += pc.sum(chunk.column("size")).as_py()
            earliest = pc.min(chunk.column("event_time")).as_py()
            oldest = earliest if oldest is None else min(oldest, earliest)
        return UnprocessedFiles(files=files, bytes=size, oldest_at=oldest)

    def files(self) -> list[LogFile]:
        """Returns the log's current data files, ordered by first `seq`.

        Raises:
            ContractError: LOG_DAMAGED.
        """
        with raise_log_damage(self._key):
            if self._table is None:
                self._table = self._lake.open(self._key)
            else:
                refresh(self._table)
        if self._table is None:
            return []
        if self._table.version() != self._files_version:
            self._files = data_files(self._table)
            self._files_version = self._table.version()
        return self._files

    def _load(self, files: list[LogFile], after_seq: int, up_to_seq: int | None) -> list[pa.Table]:
        """Returns the rows of these files with `after_seq` < seq <= `up_to_seq`, sorted by `seq`."""
        if not files:
            return []
        missing = [file for file in files if file.path not in self._cache]
        with ThreadPoolExecutor(max_workers=_READ_THREADS) as pool:
            loaded = dict(zip((file.path for file in missing), pool.map(self._read_file, missing), strict=True))
        tables = [loaded[file.path] if file.path in loaded else self._cache[file.path] for file in files]
        self._cache_tables(loaded)
        parts = [_filter_seq(table, after_seq, up_to_seq) for table in tables]
        if any(first_file.last_seq >= next_file.first_seq for first_file, next_file in pairwise(files)):
            parts = [pa.concat_tables(parts).sort_by("seq")]
        return [chunk for chunk in parts if chunk.num_rows]

    def _read_file(self, file: LogFile) -> pa.Table:
        path = arrow_path(self._lake.storage, f"{self._key}/{file.path}")
        with self._lake.filesystem.open_input_file(path) as source:
            table = read_parquet(source)
        return table.select(FILE_EVENT_SCHEMA.names).cast(FILE_EVENT_SCHEMA).sort_by("seq")

    def _cache_tables(self, loaded: dict[str, pa.Table]) -> None:
        """Caches the tables read last, because planning a slice reads them more than once."""
        self._cache.update(loaded)
        rows = sum(table.num_rows for table in self._cache.values())
        while rows > _MAX_CACHED_ROWS:
            _, dropped = self._cache.popitem(last=False)
            rows -= dropped.num_rows


def _filter_seq(table: pa.Table, after_seq: int, up_to_seq: int | None) -> pa.Table:
    seq = table.column("seq")
    mask = pc.greater(seq, after_seq)
    if up_to_seq is not None:
        mask = pc.and_(mask, pc.less_equal(seq, up_to_seq))
    return table.filter(mask)


def event_time_us(event_time: datetime | None) -> int | None:
    """Converts the time of a file event to microseconds since 1970. It is the arrival time of all events in the
    object."""
    return None if event_time is None else (event_time - _EPOCH) // _MICROSECOND


def filter_events(events: pa.Table, *, bucket: str | None, prefix: str = "", glob: str | None = None) -> pa.Table:
    """Returns the events of one bucket (or all) whose key begins with `prefix` and matches `glob`."""
    mask = pc.is_valid(events.column("bucket"))
    if bucket is not None:
        mask = pc.equal(events.column("bucket"), bucket)
    if prefix:
        mask = pc.and_(mask, pc.starts_with(events.column("key"), prefix))
    if glob is not None:
        mask = pc.and_(mask, pc.match_substring_regex(events.column("key"), f"^{glob_expression(glob)}$"))
    return events.filter(mask)


def data_files(table: DeltaTable) -> list[LogFile]:
    """Returns the data files of a log table from its statistics, ordered by first `seq`.

    Raises:
        ContractError: LOG_WITHOUT_STATISTICS, a file has no statistics, so its `seq` range is unknown.
    """
    actions = pa.table(table.get_add_actions(flatten=True))
    if actions.num_rows == 0:
        return []
    names = ("path", "min.seq", "max.seq", "num_records")
    columns = [actions.column(name) if name in actions.column_names else None for name in names]
    if any(column is None or column.null_count for column in columns):
        raise ContractError(
            "LOG_WITHOUT_STATISTICS",
            f"{table.table_uri}: a data file has no statistics on seq, so its range is unknown.",
        )
    rows = zip(*(column.to_pylist() for column in columns if column is not None), strict=True)
    return sorted((LogFile(*row) for row in rows), key=lambda file: (file.first_seq, file.last_seq))


#: The columns that identify a file event, as `row_identity` takes them.
IDENTITY_COLUMNS = ("bucket", "key", "etag", "version_id", "size", "event_time")
_identity_values = attrgetter(*IDENTITY_COLUMNS)


def file_event_identity(
    bucket: str,
    key: str,
    etag: str,
    version_id: str | None = None,
    *,
    size: int | None = None,
    event_time: datetime | None = None,
    overwrites: Overwrites = "latest",
) -> bytes:
    """Returns a 16-byte hash that is equal for redeliveries of a file event and different for other file events.

    The overwrite policy decides whether the same key with another content, or another version of the same content, is
    another file. The ETag stands for the content. Without one, version, size and time (in seconds) do: an unknown
    content never equals another one.
    """
    content: tuple[str, ...] = (etag,)
    if not etag:
        seconds = "" if event_time is None else str((event_time_us(event_time) or 0) // 1_000_000)
        content = ("", version_id or "", "" if size is None else str(size), seconds)
    parts = {
        "ignore": (bucket, key),
        "latest": (bucket, key, *content),
        "every_version": (bucket, key, *content, version_id or ""),
    }[overwrites]
    digest = hashlib.blake2b(digest_size=16)
    for chunk in parts:
        encoded = chunk.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "big"))
        digest.update(encoded)
    return digest.digest()


def row_identity(row: Sequence[Any], *, overwrites: Overwrites) -> bytes:
    """Returns the identity of a row of the log, given its IDENTITY_COLUMNS."""
    *parts, size, event_time = row
    return file_event_identity(*parts, size=size, event_time=event_time, overwrites=overwrites)


def event_identity(event: FileEvent, *, overwrites: Overwrites) -> bytes:
    """Returns the identity that the event's row in the log has."""
    return row_identity(_identity_values(event), overwrites=overwrites)


class IdentitySet:
    """A memory-saving set of file event identities. Not thread-safe.

    Initial identities are sorted arrays (16 MB per million). Added ones are a Python set (about 110 MB per million),
    which stays small because a relay ends after hours. All 16 bytes are compared, so two files are never confused.
    """

    def __init__(self, identities: Iterable[bytes] = ()) -> None:
        loaded = np.frombuffer(b"".join(identities), dtype=">u8").reshape(-1, 2).astype(np.uint64)
        order = np.argsort(loaded[:, 0], kind="stable")
        self._high: npt.NDArray[np.uint64] = np.ascontiguousarray(loaded[order, 0])
        self._low: npt.NDArray[np.uint64] = np.ascontiguousarray(loaded[order, 1])
        self._added: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._high) + len(self._added)

    def __contains__(self, item: bytes) -> bool:
        if item in self._added:
            return True
        high, low = np.frombuffer(item, dtype=">u8").astype(np.uint64)
        first = int(np.searchsorted(self._high, high, side="left"))
        last = int(np.searchsorted(self._high, high, side="right"))
        return bool((self._low[first:last] == low).any())

    def add(self, item: bytes) -> None:
        """Adds an identity. Idempotent."""
        if item not in self:
            self._added.add(item)
