"""Finds the files in a table's folder that no retained version needs, by the rules of Delta's VACUUM, without a JVM.

Files of the newest version, and files removed within the retention, are kept with their deletion vectors. From the log
alone, candidates are files that older commits removed, and change data files of these commits. From a listing,
candidates are all other old files. Hidden files, including `_delta_log`, are kept. Folders are kept too, because a
writer may be about to use one.

delta-rs' VACUUM is not used: it deletes live deletion vectors, keeps change data files, and deletes nothing in
partition folders with escaped names.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from deltalake import DeltaTable
from pyarrow import fs

from deltaworks.control.objects import ObjectStore
from deltaworks.tables.features import FILE_COMMIT_FEATURES
from deltaworks.tables.file_workers import FileWorkers, ListedFile, TableFolder, ThreadWorkers, file_size, list_folder
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.log import (
    Action,
    FileId,
    LogFiles,
    classify_log_files,
    commit_info_of,
    commit_version,
    committed_at,
    file_id,
    is_absolute_path,
    read_commits,
    readable_base,
    replayed_actions,
)
from deltaworks.tables.protected_files import deletion_vector_path, table_retention_hours

#: Supported features: in addition to FILE_COMMIT_FEATURES, those that change neither which files a version needs nor
#: how its log is read.
_SUPPORTED_FEATURES = FILE_COMMIT_FEATURES | {
    "clustering",
    "domainMetadata",
    "rowTracking",
    "typeWidening",
    "typeWidening-preview",
    "variantType-preview",
}
_MAX_WRITER_VERSION = 7
_VISIBLE_UNDERSCORE_FOLDERS = ("_delta_index", "_change_data")
_VECTOR_COLUMNS = tuple(f"deletionVector.{name}" for name in ("storageType", "pathOrInlineDv", "offset"))
_CHECKPOINT_COLUMNS = (
    "remove.deletionTimestamp",
    *(f"{kind}.{leaf}" for kind in ("add", "remove") for leaf in ("path", *_VECTOR_COLUMNS)),
)
#: On some servers a listing is not a snapshot: it may contain a commit but not yet the one before it.
_LISTING_ATTEMPTS = 5
_LAST_VACUUM = "_last_vacuum_info"
_LAST_VACUUM_VERSION = "latestCommitVersionOutsideOfRetentionWindow"


class SparkRequired(Exception):
    """Raised if a table's unneeded files cannot be determined here; the message is the reason."""


class LogTooShort(Exception):
    """Raised if the log does not reach back to the last vacuumed version. Then the folder must be listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumCandidates:
    """Files that may be deleted, as paths below the table with their sizes.

    Attributes:
        removed_paths: all paths that the log records as removed, including files that are still needed.
        up_to_version: newest commit that is older than the retention; None if there is none.
    """

    files: Mapping[str, int]
    removed_paths: frozenset[str]
    up_to_version: int | None

    @property
    def bytes(self) -> int:
        """Total size of all candidates."""
        return sum(self.files.values())


def reasons_against_vacuum(table: DeltaTable) -> list[str]:
    """Returns why unneeded files of the open table cannot be determined here; empty if they can."""
    protocol = table.protocol()
    features = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
    reasons = [f"the feature {name}" for name in sorted(features - _SUPPORTED_FEATURES)]
    if protocol.min_writer_version > _MAX_WRITER_VERSION:
        reasons.append(f"writer version {protocol.min_writer_version}")
    return reasons


def candidates_by_listing(
    lake: Lake, key: str, table: DeltaTable, *, before_ms: int, workers: FileWorkers | None = None
) -> VacuumCandidates:
    """Lists the open table's folder. Returns files older than `before_ms` that no retained version needs.

    The log is read before the listing. A file committed in between is either young, or was uncommitted before, and the
    caller excludes uncommitted files.

    Args:
        before_ms: milliseconds since 1970; files removed or written later are kept.
        workers: list the folders; by default threads of this process.

    Raises:
        SparkRequired: the table uses features not supported here.
        ContractError: TABLE_LOG_MISSING, TABLE_LOG_GAP, TABLE_FEATURE_UNSUPPORTED.
    """
    log = _Log.read(lake, key, table)
    replay = log.replay()
    required = replay.required_paths(before_ms)
    files = {
        file.path: file.bytes
        for file in _list_files(lake, key, table.metadata().partition_columns, workers or ThreadWorkers())
        if file.path not in required and file.modified_ms is not None and file.modified_ms < before_ms
    }
    return VacuumCandidates(
        files=files, removed_paths=replay.removed_paths(), up_to_version=log.newest_before(before_ms)
    )


def candidates_by_log(
    lake: Lake, key: str, table: DeltaTable, *, before_ms: int, workers: FileWorkers | None = None
) -> VacuumCandidates:
    """Returns existing files that commits since the last VACUUM removed before `before_ms`. Needs no listing.

    Args:
        before_ms, workers: see `candidates_by_listing`.

    Raises:
        LogTooShort: the log no longer contains all these commits.
        SparkRequired, ContractError: see `candidates_by_listing`.
    """
    log = _Log.read(lake, key, table)
    replay = log.replay()
    up_to_version, removed = log.newest_before(before_ms), set[str]()
    if up_to_version is not None:
        removed.update(_paths_removed_by(lake, key, range(log.first_version_to_vacuum(), up_to_version + 1), before_ms))
    removable = sorted(removed - replay.required_paths(before_ms))
    sizes = (workers or ThreadWorkers()).map(file_size, TableFolder(lake, lake.objects, key), removable)
    files = {path: size for path, size in zip(removable, sizes, strict=True) if size is not None}
    return VacuumCandidates(files=files, removed_paths=replay.removed_paths(), up_to_version=up_to_version)


def record_vacuumed_version(lake: Lake, objects: ObjectStore, key: str, up_to_version: int | None) -> None:
    """Records in the log up to which version all removed files are deleted. The next VACUUM by log starts after it.

    Spark's VACUUM uses the same record and clears it after a VACUUM by listing. If the log was also cleaned up, the
    next VACUUM must list the folder.
    """
    if up_to_version is not None:
        record = {_LAST_VACUUM_VERSION: max(up_to_version, _last_vacuumed_version(lake, key) or 0)}
        objects.put(f"{key}/_delta_log/{_LAST_VACUUM}", json.dumps(record).encode())


@dataclass(slots=True)
class _Replay:
    """Result of replaying a log: live files, and removed files with their removal time in milliseconds."""

    live: set[FileId] = field(default_factory=set)
    removed_at_ms: dict[FileId, int] = field(default_factory=dict)
    #: Path of the deletion vector by file. A file's identity contains only the encoded name of its vector.
    vectors: dict[FileId, str] = field(default_factory=dict)

    def apply(self, actions: Iterable[Action]) -> None:
        """Applies the actions of one commit.

        Removes are applied first, because a commit may remove a file and add it again with another deletion vector.
        """
        commit = list(actions)
        for action in commit:
            if (removed := action.get("remove")) is not None:
                name = self._register_file(removed)
                self.live.discard(name)
                self.removed_at_ms[name] = _removed_at_ms(removed, commit)
        for action in commit:
            if (added := action.get("add")) is not None:
                name = self._register_file(added)
                self.removed_at_ms.pop(name, None)
                self.live.add(name)

    def _register_file(self, action: Action) -> FileId:
        _reject_absolute_path(action["path"])
        name = file_id(action)
        vector = action.get("deletionVector")
        if vector:
            if vector["storageType"] not in "ui":
                raise SparkRequired("a deletion vector has an absolute path")
            if vector["storageType"] == "u":
                self.vectors[name] = deletion_vector_path(vector["pathOrInlineDv"])
        return name

    def required_paths(self, before_ms: int) -> set[str]:
        """Returns the paths of live files, of files removed at or after `before_ms`, and of their deletion vectors."""
        return self._paths([*self.live, *(name for name, at in self.removed_at_ms.items() if at >= before_ms)])

    def removed_paths(self) -> frozenset[str]:
        """Returns the paths of all files that the log records as removed."""
        return frozenset(self._paths(self.removed_at_ms))

    def _paths(self, names: Iterable[FileId]) -> set[str]:
        paths = set[str]()
        for name in names:
            paths.add(name[0])
            if name in self.vectors:
                paths.add(self.vectors[name])
        return paths


def _removed_at_ms(removed: Action, commit: Iterable[Action]) -> int:
    """Returns when a file was removed, by its action or else by its commit; later than any time if neither says."""
    if (at_ms := removed.get("deletionTimestamp")) is not None:
        return int(at_ms)
    at = committed_at(commit_info_of(commit))
    return sys.maxsize if at is None else int(at.timestamp() * 1000)


@dataclass(frozen=True, slots=True)
class _Log:
    """A table's log as listed once, with each commit's modification time by the storage's clock."""

    lake: Lake
    key: str
    files: LogFiles
    written_at_ms: Mapping[int, int]

    @classmethod
    def read(cls, lake: Lake, key: str, table: DeltaTable) -> _Log:
        if reasons := reasons_against_vacuum(table):
            raise SparkRequired(", ".join(reasons))
        for attempt in range(_LISTING_ATTEMPTS):
            log = cls._list_commits(lake, key)
            if not log.files.missing_commits(log.files.newest or 0):
                break
            time.sleep(0.05 * attempt)
        return log

    @classmethod
    def _list_commits(cls, lake: Lake, key: str) -> _Log:
        folder = f"{arrow_path(lake.storage, key)}/_delta_log"
        infos = lake.filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True))
        names = {f"{key}/_delta_log/{info.base_name}": info for info in infos if info.type is fs.FileType.File}
        written_at_ms = {
            version: (info.mtime_ns or 0) // 1_000_000
            for name, info in names.items()
            if (version := commit_version(name)) is not None
        }
        return cls(lake, key, classify_log_files(names), dict(sorted(written_at_ms.items())))

    def replay(self) -> _Replay:
        """Replays the log up to the newest version."""
        newest, base = readable_base(self.lake, self.files, self.key)
        replay = _Replay()
        actions_by_version = replayed_actions(
            self.lake, self.key, self.files, newest, base, columns=_CHECKPOINT_COLUMNS
        )
        for version, actions in actions_by_version:
            if actions is None:
                raise SparkRequired(f"the commit of version {version} was deleted while the log was read")
            replay.apply(actions)
        return replay

    def newest_before(self, before_ms: int) -> int | None:
        """Returns the newest commit older than `before_ms`; None if there is none.

        A commit counts as younger than its predecessor, even if its modification time is not.
        """
        newest, previous_ms = None, -1
        for version, at_ms in self.written_at_ms.items():
            previous_ms = max(at_ms, previous_ms + 1)
            if previous_ms > before_ms:
                break
            newest = version
        return newest

    def first_version_to_vacuum(self) -> int:
        earliest = min(self.files.commits, default=0)
        last = _last_vacuumed_version(self.lake, self.key)
        if earliest > 0 and (last is None or last + 1 < earliest):
            raise LogTooShort
        return earliest if last is None else last + 1


def _last_vacuumed_version(lake: Lake, key: str) -> int | None:
    path = f"{arrow_path(lake.storage, key)}/_delta_log/{_LAST_VACUUM}"
    try:
        with lake.filesystem.open_input_stream(path) as stream:
            last = json.loads(stream.read()).get(_LAST_VACUUM_VERSION)
    except (FileNotFoundError, ValueError, AttributeError):
        return None
    return last if isinstance(last, int) else None


def _paths_removed_by(lake: Lake, key: str, versions: range, before_ms: int) -> Iterator[str]:
    """Yields the paths of files that these commits removed before `before_ms`, and of their change data files."""
    for _, actions in read_commits(lake, key, versions):
        if actions is None:
            raise LogTooShort
        replay = _Replay()
        replay.apply(action for action in actions if "remove" in action or "commitInfo" in action)
        yield from replay.required_paths(0) - replay.required_paths(before_ms)
        for action in actions:
            if (changes := action.get("cdc")) is not None:
                _reject_absolute_path(changes["path"])
                yield unquote(changes["path"])


def _reject_absolute_path(path: str) -> None:
    if is_absolute_path(path):
        raise SparkRequired("it references a file with an absolute path")


def _list_files(lake: Lake, key: str, partition_columns: Iterable[str], workers: FileWorkers) -> Iterator[ListedFile]:
    """Yields the files below a table that are not hidden. Takes one listing per top-level folder."""
    table = TableFolder(lake, lake.objects, key)
    partition_prefixes = tuple(f"{name}=" for name in partition_columns)

    def is_visible(name: str) -> bool:
        return name[:1] not in "._" or name.startswith((*_VISIBLE_UNDERSCORE_FOLDERS, *partition_prefixes))

    top = [info for info in lake.filesystem.get_file_info(fs.FileSelector(table.root)) if is_visible(info.base_name)]
    for info in top:
        if info.type is fs.FileType.File:
            modified_ms = None if info.mtime_ns is None else info.mtime_ns // 1_000_000
            yield ListedFile(info.base_name, info.size or 0, modified_ms)
    folders = [info.base_name for info in top if info.type is fs.FileType.Directory]
    for listed in workers.map(list_folder, table, folders):
        # Executors return JSON, which has no tuples.
        files = map(ListedFile._make, listed)
        yield from (file for file in files if all(map(is_visible, file.path.split("/"))))


#: Tables with more files are not listed.
MAX_LISTED_FILES = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreferencedFiles:
    """Number and total size of unreferenced files."""

    files: int
    bytes: int


def count_unreferenced(lake: Lake, key: str, *, limit: int = MAX_LISTED_FILES) -> UnreferencedFiles | None:
    """Counts the files below `key` that no version within the table's retention needs.

    Returns None if the table does not exist, has more than `limit` files, or can only be examined by Spark. Files
    written within the retention are not counted, because a writer may be about to commit them.

    Raises:
        ContractError: the log is missing a commit.
    """
    table = lake.open(key)
    if table is None or len(table.file_uris()) > limit:
        return None
    before_ms = int(time.time() * 1000) - table_retention_hours(table) * 3_600_000
    try:
        candidates = candidates_by_listing(lake, key, table, before_ms=before_ms)
    except SparkRequired:
        return None
    return UnreferencedFiles(files=len(candidates.files), bytes=candidates.bytes)
