"""The commits of a Delta log and the state they make: files, columns and transactions, as written; needs no JVM.

deltalake's own `history()` numbers commits by counting down from the version its snapshot has, also where newer
commits have come since: then every number is wrong. What is decided by version is read from here. So are the add
actions whole, the transactions of an earlier version, and a log that has lost a commit, which deltalake does not give
out.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import Schema
from pyarrow import fs

from deltaworks.control.objects import ObjectStore
from deltaworks.control.provenance import parse_user_metadata
from deltaworks.errors import ContractError
from deltaworks.tables.lake import Lake, arrow_path

#: Commits are small objects, so reading many of them is latency and nothing else.
_READ_THREADS = 8
Action = dict[str, Any]
_COMMIT_KEY = re.compile(r"/_delta_log/(\d{20})\.json$")
_CHECKPOINT_KEY = re.compile(r"/_delta_log/(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet$")
_ACTION_KINDS = ("protocol", "metaData", "txn", "add")
#: A file of a table: its path, decoded, and which rows of it are deleted.
FileId = tuple[str, str]
_COMMIT_NAME = re.compile(r"^\d{20}\.json$")
_CHECKPOINT_NAME = re.compile(r"^(\d{20})\.checkpoint\.")


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """What a commit says of itself. `metadata` is our userMetadata, empty where a commit has none.

    `engine` is the name and version of the program that made it.
    """

    version: int
    operation: str
    at: dt.datetime
    metadata: dict[str, Any]
    metrics: dict[str, Any]
    changes_rows: bool
    engine: str = ""


def read_commits(lake: Lake, key: str, versions: Iterable[int]) -> Iterator[tuple[int, list[Action] | None]]:
    """Each version with its actions, None where its commit is not (or no longer) in the log. Reads in parallel."""
    folder = f"{arrow_path(lake.storage, key)}/_delta_log"
    filesystem = lake.filesystem

    def read(version: int) -> list[Action] | None:
        try:
            with filesystem.open_input_stream(f"{folder}/{version:020d}.json") as stream:
                return [json.loads(line) for line in stream.read().splitlines() if line.strip()]
        except FileNotFoundError:
            return None

    numbers = list(versions)
    with ThreadPoolExecutor(_READ_THREADS) as pool:
        yield from zip(numbers, pool.map(read, numbers), strict=True)


def commit_history(lake: Lake, key: str, *, newest: int, limit: int | None = None) -> Iterator[CommitInfo]:
    """The commits from version `newest` down, to the oldest one still in the log or `limit` of them.

    They are read ahead, the more the more were asked for: most callers look for one that is among the newest.
    """
    oldest = -1 if limit is None else max(-1, newest - limit)
    versions, chunk_size = iter(range(newest, oldest, -1)), 1
    while chunk := list(itertools.islice(versions, chunk_size)):
        for version, actions in read_commits(lake, key, chunk):
            if actions is None:
                return
            yield _commit_info(version, actions)
        chunk_size = min(4 * chunk_size, 2 * _READ_THREADS)


def _commit_info(version: int, actions: list[Action]) -> CommitInfo:
    info: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    return CommitInfo(
        version=version,
        operation=str(info.get("operation", "UNKNOWN")),
        at=dt.datetime.fromtimestamp(int(info.get("timestamp", 0)) / 1000, tz=dt.UTC),
        metadata=parse_user_metadata(info.get("userMetadata")),
        metrics=info.get("operationMetrics") or {},
        changes_rows=any(True for _ in data_change_actions(actions)),
        engine=str(info.get("engineInfo", "")),
    )


def data_change_actions(actions: list[Action]) -> Iterator[Action]:
    """The add and remove actions that change rows; those of OPTIMIZE only rearrange them."""
    for action in actions:
        file_action = action.get("add") or action.get("remove")
        if file_action is not None and file_action.get("dataChange", True):
            yield file_action


@dataclass(frozen=True, slots=True)
class LogFiles:
    """Which versions have a commit, and which have a whole checkpoint, in how many parts."""

    commits: frozenset[int]
    checkpoints: dict[int, tuple[str, ...]] = field(default_factory=dict)

    @property
    def newest(self) -> int | None:
        """The newest version there is anything of; None where the log is empty."""
        return max((*self.commits, *self.checkpoints), default=None)

    def checkpoint_up_to(self, version: int) -> int | None:
        """The newest whole checkpoint that is not newer than `version`."""
        return max((number for number in self.checkpoints if number <= version), default=None)

    def missing_commits(self, version: int) -> tuple[int, ...]:
        """The commits that reading `version` needs and that are not there."""
        base = self.checkpoint_up_to(version)
        return tuple(
            number for number in range(0 if base is None else base + 1, version + 1) if number not in self.commits
        )


def parse_schema_string(schema_string: str) -> pa.Schema:
    """The columns of a table in Arrow's types, by the `schemaString` of its log."""
    return pa.schema(Schema.from_json(schema_string).to_arrow())


@dataclass(slots=True)
class TableState:
    """What a version of a table is made of. `files` holds each add action by its file."""

    key: str
    version: int
    protocol: Action = field(default_factory=dict)
    metadata: Action = field(default_factory=dict)
    transactions: dict[str, int] = field(default_factory=dict)
    files: dict[FileId, Action] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Rows of all files, those deleted by deletion vectors left out. Files without a count have none."""
        return sum(row_count(added) for added in self.files.values())

    @property
    def bytes(self) -> int:
        """Bytes of all data files."""
        return sum(int(added.get("size") or 0) for added in self.files.values())

    def apply(self, actions: Iterable[Action]) -> None:
        """Take in one commit. Removals first: a commit may replace a file by itself with other rows deleted."""
        commit = list(actions)
        for action in commit:
            if (removed := action.get("remove")) is not None:
                self.files.pop(file_id(removed), None)
        for action in commit:
            if (added := action.get("add")) is not None:
                self.files[file_id(added)] = added
            elif (txn := action.get("txn")) is not None:
                self.transactions[txn["appId"]] = int(txn["version"])
            elif (metadata := action.get("metaData")) is not None:
                self.metadata = metadata
            elif (protocol := action.get("protocol")) is not None:
                self.protocol = protocol


def is_absolute_path(path: str) -> bool:
    """Whether the path of a file, as a log has it, leads out of the table: it belongs to another one too."""
    return "://" in path or path.startswith("/")


def file_id(action: Action) -> FileId:
    """The identity of a file within its table, of an add or a remove action."""
    vector = action.get("deletionVector")
    vector_id = "" if not vector else f"{vector['storageType']}{vector['pathOrInlineDv']}@{vector.get('offset') or 0}"
    return unquote(action["path"]), vector_id


def row_count(added: Action) -> int:
    """The rows an add action brings by its statistics; 0 where it has none."""
    deleted = int((added.get("deletionVector") or {}).get("cardinality") or 0)
    return max(0, int(stats_of(added).get("numRecords") or 0) - deleted)


def stats_of(added: Action) -> dict[str, Any]:
    """The statistics of an add action; empty where it has none that can be read."""
    try:
        stats = json.loads(added.get("stats") or "{}")
    except ValueError:
        return {}
    return stats if isinstance(stats, dict) else {}


def list_log(objects: ObjectStore, key: str) -> LogFiles:
    """What lies in the log of the table at `key`. One listing."""
    return classify_log_files(objects.list(f"{key}/_delta_log/"))


def classify_log_files(names: Iterable[str]) -> LogFiles:
    """What these keys of objects in a log are."""
    commits, parts = set(), dict[int, dict[str, int]]()
    for name in names:
        if (commit := _COMMIT_KEY.search(name)) is not None:
            commits.add(int(commit.group(1)))
        elif (checkpoint := _CHECKPOINT_KEY.search(name)) is not None:
            parts.setdefault(int(checkpoint.group(1)), {})[name] = int(checkpoint.group(3) or 1)
    complete = {version: tuple(sorted(names)) for version, names in parts.items() if len(names) in names.values()}
    return LogFiles(frozenset(commits), complete)


def commit_version(name: str) -> int | None:
    """The version of which this key of an object is the commit; None where it is something else."""
    commit = _COMMIT_KEY.search(name)
    return int(commit.group(1)) if commit is not None else None


def state_at(lake: Lake, objects: ObjectStore, key: str, version: int | None = None) -> TableState:
    """The state of the table at `key`, at its newest version or at this one.

    Raises:
        ContractError: TABLE_LOG_MISSING, there is no table; TABLE_LOG_GAP, commits in between are missing;
            TABLE_VERSION_UNAVAILABLE, the log does not reach back, or forward, to this version.
    """
    log = list_log(objects, key)
    target, base = replay_base(log, key, version)
    state = TableState(key, target)
    for name in () if base is None else log.checkpoints[base]:
        state.apply(_checkpoint_actions(lake, name))
    for _, actions in read_commits(lake, key, range(0 if base is None else base + 1, target + 1)):
        state.apply(actions or ())
    return state


def replay_base(log: LogFiles, key: str, version: int | None = None) -> tuple[int, int | None]:
    """The version that is to be read, and that of the checkpoint to begin with, None for the first commit.

    Raises:
        ContractError: what `state_at` raises.
    """
    newest = log.newest
    if newest is None:
        raise ContractError(
            "TABLE_LOG_MISSING",
            f"There is no Delta log at {key}.",
            hint="`deltaworks tables check` says what is on record of the table, and how to have it again.",
        )
    target = newest if version is None else version
    missing = log.missing_commits(target)
    if target > newest or target < 0 or (missing and missing[0] == 0 and not _is_complete_from_start(log, target)):
        oldest = min((*log.checkpoints, *({0} & log.commits)), default=newest)
        raise ContractError(
            "TABLE_VERSION_UNAVAILABLE",
            f"Version {target} of {key} cannot be read: its log holds versions {oldest} to {newest}.",
            hint="Choose a version, a time or a batch between them.",
        )
    if missing:
        raise ContractError(
            "TABLE_LOG_GAP",
            f"The log of {key} has lost the commit of version {', '.join(map(str, missing[:5]))}.",
            hint="`deltaworks tables check` says whether it can be recreated, and by which command.",
        )
    return target, log.checkpoint_up_to(target)


def _is_complete_from_start(log: LogFiles, version: int) -> bool:
    """Whether the log has been whole from its beginning: a hole in it is then no older part that was cleaned up."""
    return log.checkpoint_up_to(version) is None and 0 not in log.commits and 1 in log.commits


def _checkpoint_actions(lake: Lake, name: str) -> Iterator[Action]:
    with lake.filesystem.open_input_file(arrow_path(lake.storage, name)) as source:
        file = pq.ParquetFile(source)
        columns = [kind for kind in _ACTION_KINDS if kind in file.schema_arrow.names]
        for batch in file.iter_batches(columns=columns):
            for row in batch.to_pylist():
                yield {kind: _commit_form(kind, value) for kind, value in row.items() if value is not None}


def _commit_form(kind: str, value: dict[str, Any]) -> Action:
    """An action of a checkpoint as a commit writes it: maps are objects, and what is null is left out."""
    action = {name: item for name, item in value.items() if item is not None and not name.endswith("_parsed")}
    for name in ("partitionValues", "tags", "configuration"):
        if name in action:
            action[name] = dict(action[name])
    if kind == "metaData":
        action["format"] = {**action["format"], "options": dict(action["format"].get("options") or ())}
    if kind == "add":
        # What a checkpoint holds changed nothing when that was written; put back, it does.
        action["dataChange"] = True
    return action


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSize:
    """Commits that are still in the log with their bytes, and the files of checkpoints with theirs.

    `checkpoint_at` is when the newest checkpoint was written, by the storage's clock; None where there is none.
    """

    commits: int
    commit_bytes: int
    checkpoint_files: int
    checkpoint_bytes: int
    checkpoint_at: dt.datetime | None

    @property
    def bytes(self) -> int:
        """All that is kept to know what the table is."""
        return self.commit_bytes + self.checkpoint_bytes


def log_size(lake: Lake, key: str) -> LogSize:
    """Measure the log of the table at `key`; all zero where there is none. One listing, of one folder."""
    selector = fs.FileSelector(f"{arrow_path(lake.storage, key)}/_delta_log", allow_not_found=True)
    commits = commit_bytes = checkpoint_files = checkpoint_bytes = 0
    newest: tuple[str, dt.datetime] | None = None
    for info in lake.filesystem.get_file_info(selector):
        checkpoint = _CHECKPOINT_NAME.match(info.base_name)
        if _COMMIT_NAME.match(info.base_name):
            commits, commit_bytes = commits + 1, commit_bytes + (info.size or 0)
        elif checkpoint is not None:
            checkpoint_files, checkpoint_bytes = checkpoint_files + 1, checkpoint_bytes + (info.size or 0)
            if info.mtime is not None and (newest is None or (checkpoint[1], info.mtime) > newest):
                newest = (checkpoint[1], info.mtime)
    return LogSize(
        commits=commits,
        commit_bytes=commit_bytes,
        checkpoint_files=checkpoint_files,
        checkpoint_bytes=checkpoint_bytes,
        checkpoint_at=newest[1].astimezone(dt.UTC) if newest is not None else None,
    )
