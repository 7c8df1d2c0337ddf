"""The file event log of a relay: its columns, which events are the same one, and slices of it by `seq`."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from deltaworks.control.paths import relay_control
from deltaworks.errors import ContractError
from deltaworks.sources.objects.log_damage import raise_log_damage
from deltaworks.specs.globs import glob_expression
from deltaworks.specs.relay import Overwrites
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.commit import refresh
from deltaworks.tables.lake import Lake, arrow_path

#: `seq` grows by one from 1 without gaps. `event_time` is the store's; `batch` is the relay's append number.
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
    """A pipeline that reads the log: which part of it, and up to which `seq` it has."""

    pipeline: str
    bucket: str
    prefix: str
    glob: str | None
    seq: int


@dataclass(frozen=True, slots=True)
class LogFile:
    """One data file of the log and the `seq` it spans, both ends included."""

    path: str
    first_seq: int
    last_seq: int
    rows: int


@dataclass(frozen=True, slots=True)
class UnprocessedFiles:
    """What a reader has not read yet. `oldest_at` is when the store made the oldest of it."""

    files: int
    bytes: int
    oldest_at: datetime | None


def file_events_key(relay: str) -> str:
    """Where the relay's file event log lies in the lake."""
    return relay_control(relay, "file_events")


def message_quarantine_key(relay: str) -> str:
    """Where the messages lie that the relay could not use."""
    return relay_control(relay, "message_quarantine")


class FileEventLog:
    """A relay's log as streams read it. One per thread; safe beside the relay that writes it.

    A log that does not exist yet reads as empty. Errors of storage pass through as they are: callers decide
    how long to wait.
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
        """Distinguishes this log from another one at the same place; empty while there is none."""
        if self._table is None:
            self.files()
        return "" if self._table is None else str(self._table.metadata().id)

    def check_position(self, position: Mapping[str, Any]) -> None:
        """Refuse a position that was taken from another log, or from this one when it was longer.

        A number says another object then, and what has numbers below it would never be read.

        Args:
            position: `seq`, and `log`, the id of the log it is of, where that is known.

        Raises:
            ContractError: LOG_REPLACED, LOG_ROLLED_BACK.
        """
        seq, of_log = int(position["seq"]), str(position.get("log") or "")
        last_seq = self.last_seq()
        if of_log and of_log != self.table_id:
            raise ContractError(
                "LOG_REPLACED",
                f"The file event log {self._key} was recreated: {seq} is a number of another one ({of_log}).",
                hint="Put the former log back, or start over: `deltaworks pipelines start-over`.",
            )
        if seq > last_seq:
            raise ContractError(
                "LOG_ROLLED_BACK",
                f"The file event log {self._key} ends at {last_seq}, and was read to {seq}: it has been set back.",
                hint="Stop the relay, put the log back as it was, or start over: `deltaworks pipelines start-over`.",
            )

    def last_seq(self) -> int:
        """The newest `seq`; 0 in an empty log."""
        return max((file.last_seq for file in self.files()), default=0)

    def read(
        self,
        after_seq: int,
        up_to_seq: int | None = None,
        limit: int | None = None,
        *,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Events with `after_seq` < seq <= `up_to_seq`, at most the first `limit`, in the order of `seq`."""
        if limit is not None:
            # `seq` has no gaps, so a number of events is a range of it.
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
        """What `read` gives, in parts of a bounded size of which none is empty. `columns` have `seq` among them."""
        while (part := self.read(after_seq, up_to_seq, _PART_ROWS, columns=columns)).num_rows:
            yield part
            after_seq = part.column("seq")[-1].as_py()

    def backlog(self, after_seq: int, *, bucket: str, prefix: str = "", glob: str | None = None) -> UnprocessedFiles:
        """What lies after `after_seq` for one bucket, prefix and glob. Reads all of it, a slice at a time."""
        files = size = 0
        oldest: datetime | None = None
        for rows in self.read_parts(after_seq, self.last_seq()):
            part = filter_events(rows, bucket=bucket, prefix=prefix, glob=glob)
            if part.num_rows == 0:
                continue
            files += part.num_rows
            size += pc.sum(part.column("size")).as_py()
            earliest = pc.min(part.column("event_time")).as_py()
            oldest = earliest if oldest is None else min(oldest, earliest)
        return UnprocessedFiles(files=files, bytes=size, oldest_at=oldest)

    def files(self) -> list[LogFile]:
        """The log's data files now, by first `seq`.

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
        """The files' rows inside the bounds, each table sorted and the tables in order."""
        if not files:
            return []
        missing = [file for file in files if file.path not in self._cache]
        with ThreadPoolExecutor(max_workers=_READ_THREADS) as pool:
            loaded = dict(zip((file.path for file in missing), pool.map(self._read_file, missing), strict=True))
        tables = [loaded[file.path] if file.path in loaded else self._cache[file.path] for file in files]
        self._cache_tables(loaded)
        parts = [_filter_seq(table, after_seq, up_to_seq) for table in tables]
        if any(left.last_seq >= right.first_seq for left, right in pairwise(files)):
            parts = [pa.concat_tables(parts).sort_by("seq")]
        return [part for part in parts if part.num_rows]

    def _read_file(self, file: LogFile) -> pa.Table:
        path = arrow_path(self._lake.storage, f"{self._key}/{file.path}")
        with self._lake.filesystem.open_input_file(path) as source:
            table = pq.read_table(source)
        return table.select(FILE_EVENT_SCHEMA.names).cast(FILE_EVENT_SCHEMA).sort_by("seq")

    def _cache_tables(self, loaded: dict[str, pa.Table]) -> None:
        """Keep what was read last: planning a slice reads it more than once."""
        self._cache.update(loaded)
        rows = sum(table.num_rows for table in self._cache.values())
        while rows > _MAX_CACHED_ROWS:
            _, dropped = self._cache.popitem(last=False)
            rows -= dropped.num_rows


def _filter_seq(table: pa.Table, after_seq: int, up_to_seq: int | None) -> pa.Table:
    seq = table.column("seq")
    keep = pc.greater(seq, after_seq)
    if up_to_seq is not None:
        keep = pc.and_(keep, pc.less_equal(seq, up_to_seq))
    return table.filter(keep)


def event_time_us(event_time: datetime | None) -> int | None:
    """The store's time of a file event, in microseconds since 1970: when the events in its object arrived."""
    return None if event_time is None else (event_time - _EPOCH) // _MICROSECOND


def filter_events(events: pa.Table, *, bucket: str | None, prefix: str = "", glob: str | None = None) -> pa.Table:
    """The events of one bucket, or of all, whose key begins with `prefix` and, as a whole, fits `glob`."""
    keep = pc.is_valid(events.column("bucket"))
    if bucket is not None:
        keep = pc.equal(events.column("bucket"), bucket)
    if prefix:
        keep = pc.and_(keep, pc.starts_with(events.column("key"), prefix))
    if glob is not None:
        keep = pc.and_(keep, pc.match_substring_regex(events.column("key"), f"^{glob_expression(glob)}$"))
    return events.filter(keep)


def data_files(table: DeltaTable) -> list[LogFile]:
    """The files of a log table by first `seq`, from its statistics.

    Raises:
        ContractError: LOG_WITHOUT_STATISTICS when a file has none, so its `seq` cannot be known.
    """
    actions = pa.table(table.get_add_actions(flatten=True))
    if actions.num_rows == 0:
        return []
    names = ("path", "min.seq", "max.seq", "num_records")
    columns = [actions.column(name) if name in actions.column_names else None for name in names]
    if any(column is None or column.null_count for column in columns):
        raise ContractError(
            "LOG_WITHOUT_STATISTICS",
            f"{table.table_uri}: a data file has no statistics on seq, so what it holds is unknown.",
            hint="Only the relay may write this table: restore it to the version before.",
        )
    rows = zip(*(column.to_pylist() for column in columns if column is not None), strict=True)
    return sorted((LogFile(*row) for row in rows), key=lambda file: (file.first_seq, file.last_seq))


def file_event_identity(
    bucket: str, key: str, etag: str, version_id: str | None = None, *, overwrites: Overwrites = "latest"
) -> bytes:
    """16 bytes that name a file event: equal for redeliveries of it, different for anything else.

    What else there is, the overwrite policy says: whether the same key with another content, or as another version of
    the same content, is another file.
    """
    parts = {
        "ignore": (bucket, key),
        "latest": (bucket, key, etag),
        "every_version": (bucket, key, etag, version_id or ""),
    }[overwrites]
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "big"))
        digest.update(encoded)
    return digest.digest()


class IdentitySet:
    """Identities seen: those given at the start in sorted arrays, 16 MB per million; those added later in a
    Python set, about 110 MB per million, which a relay's own end after hours keeps small.

    The whole 16 bytes are compared, so two files are never taken for one. Not safe to share between threads.
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
        """Remember one more; nothing changes when it is there."""
        if item not in self:
            self._added.add(item)
