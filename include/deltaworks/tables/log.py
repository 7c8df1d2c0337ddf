"""Reads commits of a Delta log, and the resulting state of the table, without a JVM.

deltalake's `history()` derives version numbers from its snapshot, which are wrong if newer commits exist. deltalake
also returns neither complete add actions, nor transactions of earlier versions, nor logs with a missing commit. Code
that depends on versions therefore uses this module.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import Schema
from pyarrow import fs

from deltaworks.control.objects import ObjectStore
from deltaworks.control.provenance import parse_user_metadata
from deltaworks.errors import ContractError
from deltaworks.tables.features import check_log_features, newest_protocol
from deltaworks.tables.files import open_parquet
from deltaworks.tables.lake import Lake, arrow_path

#: Reading many commits is bound by latency, because they are small objects.
_READ_THREADS = 8
Action = dict[str, Any]
_COMMIT_KEY = re.compile(r"/_delta_log/(\d{20})\.json$")
#: A checkpoint's only file, one of its parts (number and total), or a file with a unique name, as in version 2.
_CHECKPOINT_KEY = re.compile(
    r"/_delta_log/(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})\.parquet|\.([\w-]+)\.(?:json|parquet)|\.parquet)$"
)
_ACTION_KINDS = ("protocol", "metaData", "txn", "add")
#: Identity of a file in a table: its decoded path, and its deletion vector ("" without one).
FileId = tuple[str, str]
_COMMIT_NAME = re.compile(r"^\d{20}\.json$")
_CHECKPOINT_NAME = re.compile(r"^(\d{20})\.checkpoint\.")
#: Matches a path with a scheme or an absolute path.
_ABSOLUTE_PATH = re.compile(r"^(?:[A-Za-z][A-Za-z0-9+.-]*:/|/)")


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """Information about one commit.

    Deltaworks' own `userMetadata` is in `metadata`, empty if absent. `engine` has name and version of the writing
    program. If the commit does not record its time (`records_time`), `at` is when the storage received it.
    """

    version: int
    operation: str
    at: dt.datetime
    metadata: dict[str, Any]
    metrics: dict[str, Any]
    changes_rows: bool
    engine: str = ""
    records_time: bool = True


def read_commits(lake: Lake, key: str, versions: Iterable[int]) -> Iterator[tuple[int, list[Action] | None]]:
    """Yields each version with the commit's actions, or None if the log does not contain it. Reads in parallel."""
    folder = f"{arrow_path(lake.storage, key)}/_delta_log"
    filesystem = lake.filesystem

    def read(version: int) -> list[Action] | None:
        try:
            with filesystem.open_input_stream(f"{folder}/{version:020d}.json") as stream:
                return _parse_commit(stream.read())
        except FileNotFoundError:
            return None

    numbers = list(versions)
    with ThreadPoolExecutor(_READ_THREADS) as pool:
        yield from zip(numbers, pool.map(read, numbers), strict=True)


def _parse_commit(data: bytes) -> list[Action]:
    return [json.loads(line) for line in data.splitlines() if line.strip()]


def commit_history(lake: Lake, key: str, *, newest: int, limit: int | None = None) -> Iterator[CommitInfo]:
    """Yields commits from version `newest` downwards, at most `limit`, or down to the oldest commit in the log.

    Reads ahead in growing chunks, because most callers need only one of the newest commits.
    """
    oldest = -1 if limit is None else max(-1, newest - limit)
    versions, chunk_size = iter(range(newest, oldest, -1)), 1
    while chunk := list(itertools.islice(versions, chunk_size)):
        for version, actions in read_commits(lake, key, chunk):
            if actions is None:
                return
            yield _commit_info(lake, key, version, actions)
        chunk_size = min(4 * chunk_size, 2 * _READ_THREADS)


def _commit_info(lake: Lake, key: str, version: int, actions: list[Action]) -> CommitInfo:
    info = commit_info_of(actions)
    at = committed_at(info)
    return CommitInfo(
        version=version,
        operation=str(info.get("operation") or "UNKNOWN"),
        at=at or _written_at(lake, key, version),
        metadata=parse_user_metadata(info.get("userMetadata")),
        metrics=info.get("operationMetrics") or _counted_metrics(actions),
        changes_rows=any(True for _ in data_change_actions(actions)),
        engine=str(info.get("engineInfo") or ""),
        records_time=at is not None,
    )


def _counted_metrics(actions: Iterable[Action]) -> dict[str, int]:
    """Returns the rows and files that a commit adds, from the statistics of its files, if it records no metrics."""
    files = [action["add"] for action in actions if action.get("add")]
    rows = [count for file in files if isinstance(count := stats_of(file).get("numRecords"), int)]
    if len(rows) < len(files):
        return {"numAddedFiles": len(files)}  # statistics are optional
    return {"numOutputRows": sum(rows), "numAddedFiles": len(files)} if files else {}


def commit_info_of(actions: Iterable[Action]) -> Action:
    """Returns the `commitInfo` of a commit, which writers may omit; empty without one."""
    return next((action["commitInfo"] for action in actions if action.get("commitInfo")), {})


def committed_at(info: Mapping[str, Any]) -> dt.datetime | None:
    """Returns the time that a `commitInfo` records; None without one. An in-commit timestamp takes precedence."""
    for name in ("inCommitTimestamp", "timestamp"):
        value = info.get(name)
        if isinstance(value, int) and value > 0:
            try:
                return dt.datetime.fromtimestamp(value / 1000, tz=dt.UTC)
            except (ValueError, OverflowError, OSError):
                continue
    return None


def _written_at(lake: Lake, key: str, version: int) -> dt.datetime:
    """Returns when the storage received a commit. By the protocol, this is the time of a commit that records none."""
    info = lake.filesystem.get_file_info(f"{arrow_path(lake.storage, key)}/_delta_log/{version:020d}.json")
    return dt.datetime.min.replace(tzinfo=dt.UTC) if info.mtime is None else info.mtime.astimezone(dt.UTC)


def data_change_actions(actions: list[Action]) -> Iterator[Action]:
    """Yields the add and remove actions that change rows; actions of OPTIMIZE are excluded."""
    for action in actions:
        file_action = action.get("add") or action.get("remove")
        if file_action is not None and file_action.get("dataChange", True):
            yield file_action


@dataclass(frozen=True, slots=True)
class LogFiles:
    """Versions that have a commit in the log, and versions with a complete checkpoint, with the checkpoint's files."""

    commits: frozenset[int]
    checkpoints: dict[int, tuple[str, ...]] = field(default_factory=dict)

    @property
    def newest(self) -> int | None:
        """The newest version in the log; None if the log is empty."""
        return max((*self.commits, *self.checkpoints), default=None)

    @property
    def oldest(self) -> int | None:
        """The oldest version that can be read from the log alone; the newest one if a commit before it is missing."""
        return min((*self.checkpoints, *({0} & self.commits)), default=self.newest)

    def checkpoint_up_to(self, version: int) -> int | None:
        """Returns the newest complete checkpoint whose version is at most `version`; None if there is none."""
        return max((number for number in self.checkpoints if number <= version), default=None)

    def missing_commits(self, version: int) -> tuple[int, ...]:
        """Returns the versions of commits that are needed to read `version` but missing."""
        base = self.checkpoint_up_to(version)
        return tuple(
            number for number in range(0 if base is None else base + 1, version + 1) if number not in self.commits
        )


def parse_schema_string(schema_string: str) -> pa.Schema:
    """Converts the `schemaString` of a Delta log to an Arrow schema."""
    return pa.schema(Schema.from_json(schema_string).to_arrow())


@dataclass(slots=True)
class TableState:
    """State of a table at one version; `files` has the add action of each file."""

    key: str
    version: int
    protocol: Action = field(default_factory=dict)
    metadata: Action = field(default_factory=dict)
    transactions: dict[str, int] = field(default_factory=dict)
    files: dict[FileId, Action] = field(default_factory=dict)

    @property
    def configuration(self) -> dict[str, str]:
        """The table's properties."""
        return self.metadata.get("configuration") or {}

    @property
    def rows(self) -> int | None:
        """Number of rows, without those deleted by deletion vectors; None if the log lacks the count of a file."""
        return total_rows(self.files.values())

    @property
    def bytes(self) -> int:
        """Total size of all data files."""
        return sum(int(added.get("size") or 0) for added in self.files.values())

    def apply(self, actions: Iterable[Action]) -> None:
        """Applies the actions of one commit.

        Removes are applied first, because a commit may remove a file and add it again with another deletion vector.
        """
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
    """Returns whether a file path in a log is absolute: the file belongs to another table, as after a shallow clone, or
    to this one under another address.
    """
    return _ABSOLUTE_PATH.match(path) is not None


def file_id(action: Action) -> FileId:
    """Returns a file's identity in its table, from an add or remove action."""
    vector = action.get("deletionVector")
    vector_id = "" if not vector else f"{vector['storageType']}{vector['pathOrInlineDv']}@{vector.get('offset') or 0}"
    return unquote(action["path"]), vector_id


def row_count(added: Action) -> int | None:
    """Returns the number of rows of an add action according to its statistics; None if they do not have it."""
    records = stats_of(added).get("numRecords")
    if not isinstance(records, int):
        return None
    return max(0, records - int((added.get("deletionVector") or {}).get("cardinality") or 0))


def total_rows(files: Iterable[Action]) -> int | None:
    """Returns the number of rows of these add actions; None if one has no count."""
    counts = [row_count(added) for added in files]
    return None if None in counts else sum(count or 0 for count in counts)


def stats_of(added: Action) -> dict[str, Any]:
    """Parses the statistics of an add action; returns an empty dict if they are missing or invalid."""
    try:
        stats = json.loads(added.get("stats") or "{}")
    except ValueError:
        return {}
    return stats if isinstance(stats, dict) else {}


def list_log(objects: ObjectStore, key: str) -> LogFiles:
    """Lists the log of the table at `key`. Takes one request."""
    return classify_log_files(objects.list(f"{key}/_delta_log/"))


def classify_log_files(names: Iterable[str]) -> LogFiles:
    """Classifies object keys of a log into commits and complete checkpoints.

    A version may have several checkpoints, such as parts of an interrupted one. The files of one checkpoint are either
    a single file, or all parts with the same total. All complete checkpoints of a version have the same content.
    """
    commits, complete = set(), dict[int, tuple[str, ...]]()
    parts, unique = dict[tuple[int, int], dict[int, str]](), dict[int, str]()
    for name in sorted(names):
        if (commit := _COMMIT_KEY.search(name)) is not None:
            commits.add(int(commit.group(1)))
        elif (checkpoint := _CHECKPOINT_KEY.search(name)) is not None:
            version, part, total, unique_name = checkpoint.groups()
            if total is not None:
                parts.setdefault((int(version), int(total)), {})[int(part)] = name
            elif unique_name is not None:
                unique[int(version)] = name
            else:
                complete[int(version)] = (name,)
    for (number, count), by_part in parts.items():
        if set(by_part) == set(range(1, count + 1)):
            complete.setdefault(number, tuple(by_part[part] for part in sorted(by_part)))
    for number, name in unique.items():
        complete.setdefault(number, (name,))
    return LogFiles(frozenset(commits), complete)


def commit_version(name: str) -> int | None:
    """Returns the version of a commit's object key; None for other objects."""
    commit = _COMMIT_KEY.search(name)
    return int(commit.group(1)) if commit is not None else None


def state_at(lake: Lake, objects: ObjectStore, key: str, version: int | None = None) -> TableState:
    """Reads the state of the table at `key`, at its newest or at the given version.

    Raises:
        ContractError: TABLE_LOG_MISSING, there is no table; TABLE_LOG_GAP, commits are missing in between;
            TABLE_VERSION_UNAVAILABLE, the log does not contain this version; TABLE_FEATURE_UNSUPPORTED.
    """
    log = list_log(objects, key)
    target, base = readable_base(lake, log, key, version)
    state = TableState(key, target)
    for _, actions in replayed_actions(lake, key, log, target, base, columns=_ACTION_KINDS):
        state.apply(actions or ())
    return state


def after_newer_commits(lake: Lake, state: TableState) -> TableState:
    """Returns the newest state of the table of `state`. Reads only the commits after it."""
    newest = replace(state, transactions=dict(state.transactions), files=dict(state.files))
    while True:
        ((version, actions),) = read_commits(lake, state.key, [newest.version + 1])
        if actions is None:
            return newest
        newest.apply(actions)
        check_log_features(state.key, newest.protocol)
        newest.version = version


def replayed_actions(
    lake: Lake, key: str, log: LogFiles, target: int, base: int | None, *, columns: Sequence[str]
) -> Iterator[tuple[int, list[Action] | None]]:
    """Yields a version with actions: each action of a checkpoint, then all actions of each commit after it. A commit
    that was deleted meanwhile has None.

    A checkpoint has one action per file, so their order does not matter, and they are not all held in memory.

    Args:
        target: the version to read, and the version of its checkpoint; see `replay_base`.
        columns: the columns to read of the checkpoint; see `read_checkpoint`.
    """
    first_commit = 0 if base is None else base + 1
    commits = list(read_commits(lake, key, range(first_commit, target + 1)))
    checkpoint = () if base is None else log.checkpoints[base]
    check_log_features(key, _newest_protocol(lake, (actions or () for _, actions in reversed(commits)), checkpoint))
    if base is not None:
        for action in checkpoint_actions(lake, key, checkpoint, columns=columns):
            yield base, [action]
    yield from commits


def check_log(lake: Lake, key: str, log: LogFiles) -> None:
    """Raises if the table has features that change how its log is read. Until then, nothing may be concluded from it.

    Reads commits from the newest downwards until one has the protocol, or else the newest checkpoint. Missing commits
    are no hindrance.

    Raises:
        ContractError: TABLE_FEATURE_UNSUPPORTED.
    """
    base = log.checkpoint_up_to(log.newest or 0)
    numbers = sorted((number for number in log.commits if base is None or number > base), reverse=True)
    commits = (actions or () for _, actions in read_commits(lake, key, numbers))
    check_log_features(key, _newest_protocol(lake, commits, () if base is None else log.checkpoints[base]))


def _newest_protocol(lake: Lake, newest_commits: Iterable[Sequence[Action]], checkpoint: Iterable[str]) -> Action:
    """Returns the protocol in the newest of these commits, or else in the files of a checkpoint; empty if absent."""
    if protocol := newest_protocol(newest_commits):
        return protocol
    for name in checkpoint:
        for action in read_checkpoint(lake, name, columns=("protocol",)):
            if action.get("protocol"):
                return dict(action["protocol"])
    return {}


def readable_base(lake: Lake, log: LogFiles, key: str, version: int | None = None) -> tuple[int, int | None]:
    """Returns the same as `replay_base`. Before it reports a log as incomplete, it checks that the log is one that can
    be read here.

    Raises:
        ContractError: see `state_at`.
    """
    try:
        return replay_base(log, key, version)
    except ContractError:
        check_log(lake, key, log)
        raise


def replay_base(log: LogFiles, key: str, version: int | None = None) -> tuple[int, int | None]:
    """Returns the version to read, and the version of the checkpoint to start from. None starts at the first commit.

    Raises:
        ContractError: see `state_at`.
    """
    newest = log.newest
    if newest is None:
        raise ContractError("TABLE_LOG_MISSING", f"There is no Delta log at {key}.")
    target = newest if version is None else version
    missing = log.missing_commits(target)
    if target > newest or target < 0 or (missing and missing[0] == 0 and not _is_complete_from_start(log, target)):
        raise ContractError(
            "TABLE_VERSION_UNAVAILABLE",
            f"Version {target} of {key} cannot be read: its log holds versions {log.oldest} to {newest}.",
            hint="Choose a version, a time or a batch between them.",
        )
    if missing:
        raise ContractError(
            "TABLE_LOG_GAP", f"The log of {key} is missing the commit of version {', '.join(map(str, missing[:5]))}."
        )
    return target, log.checkpoint_up_to(target)


def _is_complete_from_start(log: LogFiles, version: int) -> bool:
    """Returns whether the log was never cleaned up. Then a missing first commit is a gap, and not an expired commit."""
    return log.checkpoint_up_to(version) is None and 0 not in log.commits and 1 in log.commits


def checkpoint_actions(lake: Lake, key: str, names: Iterable[str], *, columns: Sequence[str]) -> Iterator[Action]:
    """Yields the actions of the checkpoint with these files, and of the sidecars that they name.

    Args:
        columns: see `read_checkpoint`.

    Raises:
        ContractError: TABLE_LOG_GAP, a sidecar is missing.
    """
    sidecars = []
    for name in names:
        for action in read_checkpoint(lake, name, columns=(*columns, "sidecar.path")):
            if (sidecar := action.get("sidecar")) is not None:
                sidecars.append(_sidecar_key(key, sidecar["path"]))
            else:
                yield action
    for name in sidecars:
        try:
            yield from read_checkpoint(lake, name, columns=columns)
        except FileNotFoundError as error:
            raise ContractError("TABLE_LOG_GAP", f"A checkpoint of {key} names {name}, which is missing.") from error


def _sidecar_key(key: str, path: str) -> str:
    """Returns the object key of a sidecar; the log has the file's name, or the address of a file in the same folder."""
    return f"{key}/_delta_log/_sidecars/{unquote(path.rpartition('/')[2])}"


def read_checkpoint(lake: Lake, name: str, *, columns: Sequence[str]) -> Iterator[Action]:
    """Yields the actions of one checkpoint file in the form of a commit.

    Args:
        name: the file's object key; Parquet, or JSON as in checkpoints of version 2.
        columns: the columns to read of a Parquet file: kinds of actions, or fields such as `add.path`. Columns that the
            file lacks are skipped.
    """
    if name.endswith(".json"):
        with lake.filesystem.open_input_stream(arrow_path(lake.storage, name)) as stream:
            for row in _parse_commit(stream.read()):
                yield {kind: _commit_form(kind, value) for kind, value in row.items() if value is not None}
        return
    with lake.filesystem.open_input_file(arrow_path(lake.storage, name)) as source:
        file = open_parquet(source)
        leaves = [file.schema.column(index) for index in range(len(file.schema))]
        present = [column for column in columns if any(f"{leaf.path}.".startswith(f"{column}.") for leaf in leaves)]
        instants = frozenset(leaf.path for leaf in leaves if leaf.physical_type == "INT96")
        for batch in file.iter_batches(columns=present):
            for row in batch.to_pylist():
                actions = {kind: _commit_form(kind, value, instants) for kind, value in row.items() if value}
                if any(actions.values()):
                    yield {kind: action for kind, action in actions.items() if action}


def _commit_form(kind: str, value: dict[str, Any], instants: frozenset[str] = frozenset()) -> Action:
    """Converts an action of a checkpoint to the form of a commit: maps as objects, nulls omitted, statistics as text.

    Args:
        instants: paths of INT96 columns, whose times have no zone but are in UTC.
    """
    action = {name: item for name, item in value.items() if item is not None and not name.endswith("_parsed")}
    if "stats" not in action and (parsed := value.get("stats_parsed")) is not None:
        action["stats"] = json.dumps(_json_form(parsed, f"{kind}.stats_parsed", instants))
    if not action.get("deletionVector", {}).get("storageType", True):
        # Some writers store a file without a vector as a vector without values.
        del action["deletionVector"]
    for name in ("partitionValues", "tags", "configuration"):
        if name in action:
            action[name] = dict(action[name])
    if kind == "metaData":
        action["format"] = {**action["format"], "options": dict(action["format"].get("options") or ())}
    if kind == "add" and action:
        # Checkpoints store `dataChange: false`, but adding the file back changes data.
        action["dataChange"] = True
    return action


def _json_form(value: Any, path: str, instants: frozenset[str]) -> Any:
    """Converts a value of `stats_parsed` to the form that it has in `stats`; None if it has no exact one there."""
    if isinstance(value, dict):
        items = {name: _json_form(item, f"{path}.{name}", instants) for name, item in value.items()}
        return {name: item for name, item in items.items() if item is not None}
    if isinstance(value, dt.datetime):
        zoned = value.replace(tzinfo=dt.UTC) if path in instants and value.tzinfo is None else value
        if zoned.tzinfo is None:
            return zoned.isoformat(timespec="microseconds")
        return f"{zoned.astimezone(dt.UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, bytes | Decimal) or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSize:
    """Number and total size of the commits and checkpoint files in a log.

    The newest checkpoint's modification time, by the storage's clock, is `checkpoint_at`; None without a checkpoint.
    """

    commits: int
    commit_bytes: int
    checkpoint_files: int
    checkpoint_bytes: int
    checkpoint_at: dt.datetime | None

    @property
    def bytes(self) -> int:
        """Total size of commits and checkpoints."""
        return self.commit_bytes + self.checkpoint_bytes


def log_size(lake: Lake, key: str) -> LogSize:
    """Measures the log of the table at `key`; all zero if there is no log. Takes one listing."""
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
