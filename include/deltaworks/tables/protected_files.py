"""Finds files that must not be deleted from a table's folder: files needed by its log, and files of uncommitted
batches.

Files of held tables and incomplete batches are referenced by no commit yet. This can last for weeks, longer than any
retention. Code that deletes files by age must call `uncommitted_files` before it reads the table: a file committed in
between is then still protected.
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow import fs

from deltaworks.control import paths
from deltaworks.control.clock import parse_iso
from deltaworks.control.foreign_errors import data_file_error, describe_cause
from deltaworks.control.home import PipelineHome
from deltaworks.control.records.prepared import PreparedBatch, PreparedReplay
from deltaworks.specs.maintenance import DEFAULT_RETENTION_HOURS
from deltaworks.tables.files import open_data_file, open_parquet, parquet_batches
from deltaworks.tables.lake import Lake, arrow_path, select_rows
from deltaworks.tables.log import Action, FileId, is_absolute_path, row_count
from deltaworks.tables.steps import (
    BATCH_METADATA_STORE,
    CAUGHT_UP,
    HELD,
    batches_by_table,
    held_commit_steps,
    read_last_completed,
    read_last_replay,
)

#: Up to this many files are checked one by one; for more, one listing is cheaper.
_MAX_STAT_REQUESTS = 1_000
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_ENCODED_UUID_LENGTH = 20
_STAT_BATCH_SIZE = 1_000
#: How thoroughly data files are checked.
Depth = Literal["size", "footer", "rows"]
#: Threads per check. A thread that reads rows holds a batch of them in memory.
_CHECK_THREADS: Final[Mapping[Depth, int]] = {"footer": 16, "rows": 4}
#: The problem of a file that does not exist.
MISSING: Final = "is missing"
_INTERVAL_PART = r"(\d+)\s+(microsecond|millisecond|second|minute|hour|day|week|month|year)s?"
_INTERVAL = re.compile(rf"(?:interval\s+)?{_INTERVAL_PART}(?:\s+{_INTERVAL_PART})*", re.IGNORECASE)
#: Hours of a unit; of months and years, which Delta does not define as a length, the longest.
_HOURS = {
    "microsecond": 1 / 3_600_000_000,
    "millisecond": 1 / 3_600_000,
    "second": 1 / 3_600,
    "minute": 1 / 60,
    "hour": 1,
    "day": 24,
    "week": 168,
    "month": 31 * 24,
    "year": 366 * 24,
}
#: Retention of a table whose property cannot be parsed, so that no file is deleted too early.
_UNKNOWN_RETENTION_HOURS = 100 * 366 * 24
_FILE_NAME = re.compile(rb'"([^"]+\.parquet)"')


def find_missing_files(lake: Lake, key: str, files: Mapping[FileId, Action] | Iterable[Action]) -> list[str]:
    """Returns, sorted, the paths that these add actions require and that do not exist, or have another size than the
    log says. A listing returns sizes too, so the check costs nothing.

    Files with an absolute path belong to another table and are not checked.
    """
    actions = list(files.values()) if isinstance(files, Mapping) else list(files)
    sizes = {unquote(action["path"]): action.get("size") for action in actions}
    required = sorted({path for action in actions for path in required_objects(action)})
    if not required:
        return []
    root = arrow_path(lake.storage, key)
    if len(required) <= _MAX_STAT_REQUESTS:
        infos = lake.filesystem.get_file_info([f"{root}/{path}" for path in required])
    else:
        infos = lake.filesystem.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
    present = {info.path.removeprefix(f"{root}/"): info.size for info in infos if info.type is fs.FileType.File}
    # A deletion vector's object holds several vectors, and the log has the size of each.
    return [path for path in required if path not in present or sizes.get(path) not in (None, present[path])]


def find_damaged_files(
    lake: Lake, key: str, files: Mapping[FileId, Action] | Iterable[Action], *, depth: Depth = "size"
) -> dict[str, str]:
    """Returns the files of these add actions that cannot be read, sorted by path, with the problem of each.

    Files with an absolute path belong to another table and are not checked.

    Args:
        depth: `size` compares sizes with the log, as `find_missing_files`; `footer` also reads the footer of each file,
            a request or two; `rows` reads all rows of each file.
    """
    actions = list(files.values()) if isinstance(files, Mapping) else list(files)
    absent = find_missing_files(lake, key, actions)
    root = arrow_path(lake.storage, key)
    infos = lake.filesystem.get_file_info([f"{root}/{path}" for path in absent]) if absent else []
    problems = {
        path: f"has {info.size:,} bytes, which is not the size in the log" if info.is_file else MISSING
        for path, info in zip(absent, infos, strict=True)
    }
    if depth != "size":
        read = {unquote(action["path"]): action for action in actions if not is_absolute_path(action["path"])}
        remaining = [action for path, action in read.items() if path not in problems]
        with ThreadPoolExecutor(_CHECK_THREADS[depth]) as pool:
            checked = pool.map(partial(_file_problem, lake.filesystem, root, depth == "rows"), remaining)
            problems |= {path: problem for path, problem in checked if problem}
    return dict(sorted(problems.items()))


def _file_problem(filesystem: fs.FileSystem, root: str, with_rows: bool, added: Action) -> tuple[str, str]:
    """Returns the path of a file and why it cannot be read; empty if it can."""
    path, logged_rows = unquote(added["path"]), row_count(added)
    try:
        # The footer is at the end, so a file is not read whole for it.
        limit = {} if with_rows else {"single_request_bytes": 0}
        with open_data_file(filesystem, f"{root}/{path}", added["size"], **limit) as source:
            rows = open_parquet(source).metadata.num_rows
            if with_rows:
                rows = sum(batch.num_rows for batch in parquet_batches(source))
    except FileNotFoundError:
        return path, MISSING
    except (OSError, pa.ArrowException) as error:
        if (damage := data_file_error(error, tables=[root])) is None:
            raise
        return path, MISSING if damage.condition == "DATA_FILE_MISSING" else describe_cause(error)
    if logged_rows is not None and rows != logged_rows:
        return path, f"has {rows:,} rows, and the log says {logged_rows:,}"
    return path, ""


def required_objects(action: Action) -> list[str]:
    """Returns the paths of the objects needed to read an add action's file: the file and its deletion vector."""
    path = unquote(action["path"])
    required = [] if is_absolute_path(path) else [path]
    vector = action.get("deletionVector")
    if vector and vector["storageType"] == "u":
        required.append(deletion_vector_path(vector["pathOrInlineDv"]))
    return required


def deletion_vector_path(encoded: str) -> str:
    """Returns a deletion vector's path: an optional folder prefix, then a UUID encoded in Z85."""
    folder, text = encoded[:-_ENCODED_UUID_LENGTH], encoded[-_ENCODED_UUID_LENGTH:]
    name = f"deletion_vector_{uuid.UUID(bytes=decode_z85(text))}.bin"
    return f"{folder}/{name}" if folder else name


def decode_z85(text: str) -> bytes:
    """Decodes Z85 text (ZeroMQ RFC 32): four bytes for every five characters.

    Raises:
        ValueError, OverflowError: the text is not valid Z85.
    """
    data = b""
    for start in range(0, len(text), 5):
        number = 0
        for letter in text[start : start + 5]:
            number = number * 85 + _Z85.index(letter)
        data += number.to_bytes(4, "big")
    return data


def table_retention_hours(table: DeltaTable) -> int:
    """Returns the table's `delta.deletedFileRetentionDuration` in hours, rounded up; a century if it is not an interval
    such as `interval 30 days 12 hours`.
    """
    declared = (table.metadata().configuration.get("delta.deletedFileRetentionDuration") or "").strip()
    return interval_hours(declared) if declared else DEFAULT_RETENTION_HOURS


def interval_hours(interval: str) -> int:
    """Returns the length of one of Spark's intervals; see `table_retention_hours`."""
    if _INTERVAL.fullmatch(interval) is None:
        return _UNKNOWN_RETENTION_HOURS
    parts = re.findall(_INTERVAL_PART, interval, re.IGNORECASE)
    return math.ceil(sum(int(count) * _HOURS[unit.lower()] for count, unit in parts))


def existing_files(lake: Lake, files: Sequence[str]) -> Iterator[fs.FileInfo]:
    """Yields the file infos of the paths that exist."""
    for start in range(0, len(files), _STAT_BATCH_SIZE):
        for info in lake.filesystem.get_file_info(list(files[start : start + _STAT_BATCH_SIZE])):
            if info.type is fs.FileType.File:
                yield info


@dataclass(slots=True)
class UncommittedFiles:
    """Prepared files of one table that are not committed yet, as paths below the table, and the time of the oldest.

    With `is_held`, the batches completed without this table; otherwise the batch is still in progress.
    """

    paths: set[str] = field(default_factory=set)
    oldest_prepared_at: datetime | None = None
    is_held: bool = False


def uncommitted_files(lake: Lake, home: PipelineHome) -> dict[str, UncommittedFiles]:
    """Returns the prepared but uncommitted files of batches and replays, by table.

    Reads the ledger, the record of replays, and the prepared objects of these batches.

    Raises:
        ContractError: PREPARED_BATCH_UNREADABLE, PREPARED_REPLAY_UNREADABLE: the files to protect are unknown.
    """
    generation = home.generations.current()
    files_by_table: dict[str, UncommittedFiles] = {}
    last = read_last_completed(lake, home.pipeline, generation)
    next_batch = 0 if last is None else last + 1
    # A batch may complete and the next one be prepared while this runs.
    for batch_id in (next_batch, next_batch + 1):
        batch = home.prepared.read(generation, batch_id)
        if batch is not None:
            for prepared_table in batch.tables:
                _add_files(files_by_table, batch, prepared_table.table)
    for table, batches in _held_batches(lake, home.pipeline, generation).items():
        for batch_id in batches:
            batch = home.prepared.read(generation, batch_id)
            if batch is not None:
                _add_files(files_by_table, batch, table)
        files_by_table.setdefault(table, UncommittedFiles()).is_held = True
    _add_incomplete_replays(files_by_table, lake, home)
    for table in home.held.read():
        files_by_table.setdefault(table, UncommittedFiles()).is_held = True
    return files_by_table


def _held_batches(lake: Lake, pipeline: str, generation: int) -> dict[str, list[int]]:
    key = paths.pipeline_control(pipeline, BATCH_METADATA_STORE)
    store = lake.open(key)
    if store is None:
        return {}
    columns = ["table_name", "batch_id", "outcome"]
    selection: dict[str, list[Any]] = {"outcome": [HELD, CAUGHT_UP], "generation": [generation]}
    return batches_by_table(held_commit_steps(select_rows(lake, key, store, columns=columns, values=selection)))


def _add_incomplete_replays(files_by_table: dict[str, UncommittedFiles], lake: Lake, home: PipelineHome) -> None:
    """Adds the files of incomplete replays, which the next replay completes, possibly weeks later."""
    last = read_last_replay(lake, home.pipeline)
    # A replay may complete and the next one be prepared while this runs.
    for ordinal in (last + 1, last + 2):
        replay = home.replays.read(ordinal)
        for prepared_table in replay.tables if replay else ():
            _add_files(files_by_table, replay, prepared_table.table)


def _add_files(
    files_by_table: dict[str, UncommittedFiles], batch: PreparedBatch | PreparedReplay | None, table: str
) -> None:
    if batch is None:
        return
    table_files = files_by_table.setdefault(table, UncommittedFiles())
    prepared_at = parse_iso(batch.prepared_at)
    for prepared_table in batch.tables:
        if prepared_table.table == table:
            table_files.paths |= {file["path"] for file in prepared_table.files}
    if prepared_at is not None and (
        table_files.oldest_prepared_at is None or prepared_at < table_files.oldest_prepared_at
    ):
        table_files.oldest_prepared_at = prepared_at


def files_in_recovery_records(home: PipelineHome) -> set[str]:
    """Returns all file names in records of replays, reprocesses and rollbacks. Files with these names are not
    orphans."""
    names: set[str] = set()
    for folder in ("replays", "reprocess", "rollbacks"):
        for key in home.objects.list(f"{home.control(folder)}/"):
            record = home.objects.get(key) if key.endswith(".json") else None
            if record is not None:
                names |= {match.decode(errors="replace") for match in _FILE_NAME.findall(record.data)}
    return names
