"""The files a table needs: whether those its log names are there, and what waits for its commit.

Files that no commit names yet must not be removed: those of shares that are held back, and of torn batches. A share may
wait for weeks, longer than any retention. So whoever deletes files of a table by their age asks here first, and before
it looks at the table: a file that is committed in between was protected when it was asked about.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import unquote

from deltalake import DeltaTable
from pyarrow import fs

from deltaworks.control import paths
from deltaworks.control.clock import parse_iso
from deltaworks.control.home import PipelineHome
from deltaworks.control.records.prepared import PreparedBatch, PreparedReplay
from deltaworks.specs.maintenance import DEFAULT_RETENTION_HOURS
from deltaworks.tables.lake import Lake, arrow_path, select_rows
from deltaworks.tables.log import Action, FileId, is_absolute_path
from deltaworks.tables.steps import (
    BATCH_METADATA_STORE,
    CAUGHT_UP,
    HELD,
    batches_by_table,
    held_steps,
    read_last_completed,
    read_last_replay,
)

#: Up to so many files are asked for one by one; above it a listing is cheaper, of all that lies there.
_MAX_STAT_REQUESTS = 1_000
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_ENCODED_UUID_LENGTH = 20
_STAT_BATCH_SIZE = 1_000
_INTERVAL = re.compile(r"^(?:interval\s+)?(\d+)\s+(hour|day|week)s?$", re.IGNORECASE)
_HOURS = {"hour": 1, "day": 24, "week": 168}
_FILE_NAME = re.compile(rb'"([^"]+\.parquet)"')


def find_missing_files(lake: Lake, key: str, files: Mapping[FileId, Action] | Iterable[Action]) -> list[str]:
    """The paths below the table that these add actions need and that are not there, in order.

    A file of an absolute path belongs to another table and is not looked for.
    """
    actions = list(files.values()) if isinstance(files, Mapping) else list(files)
    required = sorted({path for action in actions for path in required_objects(action)})
    if not required:
        return []
    root = arrow_path(lake.storage, key)
    if len(required) <= _MAX_STAT_REQUESTS:
        infos = lake.filesystem.get_file_info([f"{root}/{path}" for path in required])
        return [path for path, info in zip(required, infos, strict=True) if info.type is not fs.FileType.File]
    listed = lake.filesystem.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
    present = {info.path.removeprefix(f"{root}/") for info in listed if info.type is fs.FileType.File}
    return [path for path in required if path not in present]


def required_objects(action: Action) -> list[str]:
    """The objects below the table that reading the file of an add action takes."""
    path = unquote(action["path"])
    required = [] if is_absolute_path(path) else [path]
    vector = action.get("deletionVector")
    if vector and vector["storageType"] == "u":
        required.append(deletion_vector_path(vector["pathOrInlineDv"]))
    return required


def deletion_vector_path(encoded: str) -> str:
    """Where a deletion vector lies: its name is a UUID in Z85 behind the folder's name, if that has one."""
    folder, text = encoded[:-_ENCODED_UUID_LENGTH], encoded[-_ENCODED_UUID_LENGTH:]
    name = f"deletion_vector_{uuid.UUID(bytes=decode_z85(text))}.bin"
    return f"{folder}/{name}" if folder else name


def decode_z85(text: str) -> bytes:
    """The bytes that a text of Z85 (ZeroMQ RFC 32) stands for, four for every five letters.

    Raises:
        ValueError, OverflowError: it is none.
    """
    data = b""
    for start in range(0, len(text), 5):
        number = 0
        for letter in text[start : start + 5]:
            number = number * 85 + _Z85.index(letter)
        data += number.to_bytes(4, "big")
    return data


def table_retention_hours(table: DeltaTable) -> int:
    """For how long the log keeps in mind what was removed, by the table's property, in hours."""
    declared = table.metadata().configuration.get("delta.deletedFileRetentionDuration") or ""
    interval = _INTERVAL.match(declared.strip())
    return int(interval[1]) * _HOURS[interval[2].lower()] if interval else DEFAULT_RETENTION_HOURS


def existing_files(lake: Lake, files: Sequence[str]) -> Iterator[fs.FileInfo]:
    """What storage says of those of these places that are files, in terms of the lake's filesystem."""
    for start in range(0, len(files), _STAT_BATCH_SIZE):
        for info in lake.filesystem.get_file_info(list(files[start : start + _STAT_BATCH_SIZE])):
            if info.type is fs.FileType.File:
                yield info


@dataclass(slots=True)
class UncommittedFiles:
    """The files of one table that wait to be committed, by their paths below it, and since when the oldest does.

    `held_back`: batches were completed without this table; otherwise its batch is under way.
    """

    paths: set[str] = field(default_factory=set)
    oldest_prepared_at: datetime | None = None
    is_held: bool = False


def uncommitted_files(lake: Lake, home: PipelineHome) -> dict[str, UncommittedFiles]:
    """Files of prepared batches and replays that are not, or not yet, committed, by table.

    Reads the ledger, the record of replays, and the prepared objects that matter.

    Raises:
        ContractError: PREPARED_BATCH_UNREADABLE, PREPARED_REPLAY_UNREADABLE: what it protects is not known.
    """
    generation = home.generations.current()
    files_by_table: dict[str, UncommittedFiles] = {}
    last = read_last_completed(lake, home.pipeline, generation)
    next_batch = 0 if last is None else last + 1
    # A batch may be completed, and the next one prepared, while this looks.
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
    return batches_by_table(held_steps(select_rows(lake, key, store, columns=columns, values=selection)))


def _add_incomplete_replays(files_by_table: dict[str, UncommittedFiles], lake: Lake, home: PipelineHome) -> None:
    """A replay of quarantined rows that was left half done may wait for weeks too, until somebody replays again."""
    last = read_last_replay(lake, home.pipeline)
    # One may be completed, and the next one prepared, while this looks.
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
    """File names in the records of replays, reprocesses and rollbacks, whatever their state: none is an orphan."""
    names: set[str] = set()
    for folder in ("replays", "reprocess", "rollbacks"):
        for key in home.objects.list(f"{home.control(folder)}/"):
            record = home.objects.get(key) if key.endswith(".json") else None
            if record is not None:
                names |= {match.decode(errors="replace") for match in _FILE_NAME.findall(record.data)}
    return names
