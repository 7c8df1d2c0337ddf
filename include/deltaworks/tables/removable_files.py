"""The files of a table's folder that no retained version needs any more, as Delta's VACUUM has it; needs no JVM.

A file stays that the newest version names, or that a commit took out within the retention, its deletion vector with it.
By the log alone those go that older commits took out, and the files of their change feed; by a listing everything else
that is old enough. What is hidden stays, `_delta_log` before all. Folders stay: a writer may be about to use one.

delta-rs counts live deletion vectors among what may go, leaves the change feed, and deletes nothing where the name of a
partition's folder is escaped, so none of that is left to it.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyarrow import fs

from deltaworks.control.objects import ObjectStore
from deltaworks.tables.features import HARMLESS_FEATURES
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.log import (
    Action,
    FileId,
    LogFiles,
    commit_version,
    file_id,
    log_files,
    read_commits,
    replay_base,
)
from deltaworks.tables.needed_files import vector_path

#: Features that neither change which files a version needs nor how its log is read, beside those that are harmless.
_UNDERSTOOD = HARMLESS_FEATURES | {
    "clustering",
    "domainMetadata",
    "rowTracking",
    "typeWidening",
    "typeWidening-preview",
    "variantType",
    "variantType-preview",
}
_NEWEST_WRITER = 7
#: A path with a scheme, or from the root on: of another table, or of this one by another name.
_ABSOLUTE = re.compile(r"^(?:[A-Za-z][A-Za-z0-9+.-]*:/|/)")
_VISIBLE_THOUGH_UNDERSCORED = ("_delta_index", "_change_data")
_VECTOR = tuple(f"deletionVector.{name}" for name in ("storageType", "pathOrInlineDv", "offset"))
_LEAVES = (
    "remove.deletionTimestamp",
    *(f"{kind}.{leaf}" for kind in ("add", "remove") for leaf in ("path", *_VECTOR)),
)
#: Listings and requests are latency and nothing else.
_READERS = 16
#: A listing is no snapshot on every server: it may hold a commit and not yet the one before it.
_LOOKS = 5
_LAST_VACUUM = "_last_vacuum_info"
_UP_TO = "latestCommitVersionOutsideOfRetentionWindow"


class LeftToSpark(Exception):
    """A table whose files cannot be told apart here; the text is the reason."""


class LogTooShort(Exception):
    """The log does not reach back to what the last VACUUM has dealt with: the folder has to be listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removable:
    """Paths below the table, with their bytes, that may go.

    `taken_out` are paths that the log says a commit took out, needed or not. `up_to` is the newest commit older than
    the retention, None where there is none.
    """

    files: Mapping[str, int]
    taken_out: frozenset[str]
    up_to: int | None

    @property
    def bytes(self) -> int:
        """The bytes of all of them."""
        return sum(self.files.values())


def reasons_against_removal(table: DeltaTable) -> list[str]:
    """Why this project cannot tell which files of the open table may go, in words; empty where it can."""
    protocol = table.protocol()
    features = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
    reasons = [f"the feature {name}" for name in sorted(features - _UNDERSTOOD)]
    if protocol.min_writer_version > _NEWEST_WRITER:
        reasons.append(f"writer version {protocol.min_writer_version}")
    return reasons


def removable_by_listing(lake: Lake, key: str, table: DeltaTable, *, before_ms: int) -> Removable:
    """What lies in the folder of the open table that was written before this time, and that nothing needs.

    The log is read first: a file that is committed while the folder is listed is young, or waits to be committed, which
    whoever deletes has asked about before.

    Args:
        before_ms: milliseconds since 1970; what was taken out, or written, later is kept.

    Raises:
        LeftToSpark: the table asks for more than is understood here.
        ContractError: TABLE_LOG_ABSENT, TABLE_LOG_GAP.
    """
    log = _Log.read(lake, key, table)
    replay = log.replay()
    needed = replay.needed(before_ms)
    files = {
        path: info.size or 0
        for path, info in _listed(lake, key, table.metadata().partition_columns)
        if path not in needed and info.mtime_ns is not None and info.mtime_ns // 1_000_000 < before_ms
    }
    return Removable(files=files, taken_out=replay.taken_out(), up_to=log.newest_before(before_ms))


def removable_by_log(lake: Lake, key: str, table: DeltaTable, *, before_ms: int) -> Removable:
    """What commits took out of the open table before this time, since the last VACUUM, and that still lies there.

    Raises:
        LogTooShort: the log no longer has all of these commits.
        LeftToSpark, ContractError: what `removable_by_listing` raises.
    """
    log = _Log.read(lake, key, table)
    replay = log.replay()
    up_to, taken = log.newest_before(before_ms), set[str]()
    if up_to is not None:
        taken.update(_taken_out_by(lake, key, range(log.first_not_vacuumed(), up_to + 1), before_ms))
    files = dict(_sizes(lake, key, sorted(taken - replay.needed(before_ms))))
    return Removable(files=files, taken_out=replay.taken_out(), up_to=up_to)


def note_vacuumed(lake: Lake, objects: ObjectStore, key: str, up_to: int | None) -> None:
    """Say in the log up to which commit all has gone that was taken out: the next VACUUM by the log begins there.

    Spark's VACUUM reads the same note. After a listing it empties it, and then no log suffices that was cleaned up.
    """
    if up_to is not None:
        noted = {_UP_TO: max(up_to, _last_vacuumed(lake, key) or 0)}
        objects.put(f"{key}/_delta_log/{_LAST_VACUUM}", json.dumps(noted).encode())


@dataclass(slots=True)
class _Replay:
    """The files of a version, and those that commits took out, with when, in milliseconds."""

    live: set[FileId] = field(default_factory=set)
    removed: dict[FileId, int] = field(default_factory=dict)
    #: Where each vector lies, since an identity holds its name only.
    vectors: dict[FileId, str] = field(default_factory=dict)

    def apply(self, actions: Iterable[Action]) -> None:
        """Take in one commit. Removals first: a commit may replace a file by itself with other rows deleted."""
        commit = list(actions)
        for action in commit:
            if (removed := action.get("remove")) is not None:
                name = self._named(removed)
                self.live.discard(name)
                self.removed[name] = int(removed.get("deletionTimestamp") or 0)
        for action in commit:
            if (added := action.get("add")) is not None:
                name = self._named(added)
                self.removed.pop(name, None)
                self.live.add(name)

    def _named(self, action: Action) -> FileId:
        _refuse_absolute(action["path"])
        name = file_id(action)
        vector = action.get("deletionVector")
        if vector:
            if vector["storageType"] not in "ui":
                raise LeftToSpark("a deletion vector of an absolute path")
            if vector["storageType"] == "u":
                self.vectors[name] = vector_path(vector["pathOrInlineDv"])
        return name

    def needed(self, before_ms: int) -> set[str]:
        """The paths that stay."""
        return self._paths([*self.live, *(name for name, at in self.removed.items() if at >= before_ms)])

    def taken_out(self) -> frozenset[str]:
        """The paths that were taken out, as far as the log remembers."""
        return frozenset(self._paths(self.removed))

    def _paths(self, names: Iterable[FileId]) -> set[str]:
        paths = set[str]()
        for name in names:
            paths.add(name[0])
            if name in self.vectors:
                paths.add(self.vectors[name])
        return paths


@dataclass(frozen=True, slots=True)
class _Log:
    """The log of a table as one listing has it, with when each commit was written, by the storage's clock."""

    lake: Lake
    key: str
    files: LogFiles
    written_ms: Mapping[int, int]

    @classmethod
    def read(cls, lake: Lake, key: str, table: DeltaTable) -> _Log:
        if reasons := reasons_against_removal(table):
            raise LeftToSpark(", ".join(reasons))
        for look in range(_LOOKS):
            log = cls._listed(lake, key)
            if not log.files.missing(log.files.newest or 0):
                break
            time.sleep(0.05 * look)
        return log

    @classmethod
    def _listed(cls, lake: Lake, key: str) -> _Log:
        folder = f"{arrow_path(lake.storage, key)}/_delta_log"
        infos = lake.filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True))
        names = {f"{key}/_delta_log/{info.base_name}": info for info in infos if info.type is fs.FileType.File}
        written = {
            version: (info.mtime_ns or 0) // 1_000_000
            for name, info in names.items()
            if (version := commit_version(name)) is not None
        }
        return cls(lake, key, log_files(names), dict(sorted(written.items())))

    def replay(self) -> _Replay:
        """Replay the newest version."""
        newest, base = replay_base(self.files, self.key)
        replay = _Replay()
        for name in () if base is None else self.files.checkpoints[base]:
            for action in _checkpointed(self.lake, name):
                # It has one of each file, so their order is no matter, and they need not all be in memory.
                replay.apply((action,))
        for version, actions in read_commits(self.lake, self.key, range(0 if base is None else base + 1, newest + 1)):
            if actions is None:
                raise LeftToSpark(f"the commit of version {version} went while it was read")
            replay.apply(actions)
        return replay

    def newest_before(self, before_ms: int) -> int | None:
        """The newest commit that is older. A commit counts as younger than the one before it, whatever clocks say."""
        newest, last_ms = None, -1
        for version, written in self.written_ms.items():
            last_ms = max(written, last_ms + 1)
            if last_ms > before_ms:
                break
            newest = version
        return newest

    def first_not_vacuumed(self) -> int:
        earliest = min(self.files.commits, default=0)
        last = _last_vacuumed(self.lake, self.key)
        if earliest > 0 and (last is None or last + 1 < earliest):
            raise LogTooShort
        return earliest if last is None else last + 1


def _last_vacuumed(lake: Lake, key: str) -> int | None:
    path = f"{arrow_path(lake.storage, key)}/_delta_log/{_LAST_VACUUM}"
    try:
        with lake.filesystem.open_input_stream(path) as stream:
            last = json.loads(stream.read()).get(_UP_TO)
    except (FileNotFoundError, ValueError, AttributeError):
        return None
    return last if isinstance(last, int) else None


def _taken_out_by(lake: Lake, key: str, versions: range, before_ms: int) -> Iterator[str]:
    """The paths that these commits took out before this time, with those of their change feed."""
    for _, actions in read_commits(lake, key, versions):
        if actions is None:
            raise LogTooShort
        replay = _Replay()
        replay.apply(action for action in actions if "remove" in action)
        yield from replay.needed(0) - replay.needed(before_ms)
        for action in actions:
            if (changes := action.get("cdc")) is not None:
                _refuse_absolute(changes["path"])
                yield unquote(changes["path"])


def _refuse_absolute(path: str) -> None:
    if _ABSOLUTE.match(path):
        raise LeftToSpark("a file of an absolute path is part of it")


def _checkpointed(lake: Lake, name: str) -> Iterator[Action]:
    """The add and remove actions of a checkpoint, with no more of them than is needed here."""
    with lake.filesystem.open_input_file(arrow_path(lake.storage, name)) as source:
        file = pq.ParquetFile(source)
        leaves = {file.schema.column(index).path for index in range(len(file.schema))}
        for batch in file.iter_batches(columns=[leaf for leaf in _LEAVES if leaf in leaves]):
            for kind in batch.schema.names:
                for row in batch.column(kind).to_pylist():
                    if row is not None and row.get("path") is not None:
                        yield {kind: _plain(row)}


def _plain(row: dict[str, Any]) -> Action:
    vector = row.get("deletionVector")
    return row if vector and vector.get("storageType") else {**row, "deletionVector": None}


def _listed(lake: Lake, key: str, partition_columns: Iterable[str]) -> Iterator[tuple[str, fs.FileInfo]]:
    """The files below a table that are not hidden, by their paths below it: one listing for each folder in it."""
    root = arrow_path(lake.storage, key)
    own = tuple(f"{name}=" for name in partition_columns)

    def visible(name: str) -> bool:
        return name[:1] not in "._" or name.startswith((*_VISIBLE_THOUGH_UNDERSCORED, *own))

    def below(folder: str) -> list[fs.FileInfo]:
        listed: list[fs.FileInfo] = lake.filesystem.get_file_info(fs.FileSelector(folder, recursive=True))
        return listed

    top = [info for info in lake.filesystem.get_file_info(fs.FileSelector(root)) if visible(info.base_name)]
    folders = [info.path for info in top if info.type is fs.FileType.Directory]
    with ThreadPoolExecutor(_READERS) as pool:
        for infos in ([info for info in top if info.type is fs.FileType.File], *pool.map(below, folders)):
            for info in infos:
                path = info.path.removeprefix(f"{root}/")
                if info.type is fs.FileType.File and all(map(visible, path.split("/"))):
                    yield path, info


def _sizes(lake: Lake, key: str, paths: list[str]) -> Iterator[tuple[str, int]]:
    """Those of these paths that are files, with their bytes."""
    root = arrow_path(lake.storage, key)
    with ThreadPoolExecutor(_READERS) as pool:
        for path, info in zip(
            paths, pool.map(lambda path: lake.filesystem.get_file_info(f"{root}/{path}"), paths), strict=True
        ):
            if info.type is fs.FileType.File:
                yield path, info.size or 0
