"""The state of a table at one version, replayed from its Delta log: files, columns and transactions, as written.

Reading is deltalake's; this is for what it does not give out: the add actions whole, the transactions of an earlier
version, and a log that has lost a commit. Needs no JVM and reads no data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq

from deltaworks.control.objects import ObjectStore
from deltaworks.errors import ContractError
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.log import Action, read_commits

_COMMIT = re.compile(r"/_delta_log/(\d{20})\.json$")
_CHECKPOINT = re.compile(r"/_delta_log/(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet$")
_KINDS = ("protocol", "metaData", "txn", "add")
#: A file of a table: its path, decoded, and which rows of it are deleted.
FileId = tuple[str, str]


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
        return max((each for each in self.checkpoints if each <= version), default=None)

    def missing(self, version: int) -> tuple[int, ...]:
        """The commits that reading `version` needs and that are not there."""
        base = self.checkpoint_up_to(version)
        return tuple(each for each in range(0 if base is None else base + 1, version + 1) if each not in self.commits)


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
        return sum(rows_of(each) for each in self.files.values())

    @property
    def bytes(self) -> int:
        """Bytes of all data files."""
        return sum(int(each.get("size") or 0) for each in self.files.values())

    def apply(self, actions: Iterable[Action]) -> None:
        """Take in one commit. Removals first: a commit may replace a file by itself with other rows deleted."""
        said = list(actions)
        for action in said:
            if (gone := action.get("remove")) is not None:
                self.files.pop(file_id(gone), None)
        for action in said:
            if (added := action.get("add")) is not None:
                self.files[file_id(added)] = added
            elif (txn := action.get("txn")) is not None:
                self.transactions[txn["appId"]] = int(txn["version"])
            elif (metadata := action.get("metaData")) is not None:
                self.metadata = metadata
            elif (protocol := action.get("protocol")) is not None:
                self.protocol = protocol


def file_id(action: Action) -> FileId:
    """What tells two files of a table apart, of an add or a remove action."""
    vector = action.get("deletionVector")
    deleted = "" if not vector else f"{vector['storageType']}{vector['pathOrInlineDv']}@{vector.get('offset') or 0}"
    return unquote(action["path"]), deleted


def rows_of(added: Action) -> int:
    """The rows an add action brings by its statistics; 0 where it has none."""
    deleted = int((added.get("deletionVector") or {}).get("cardinality") or 0)
    return max(0, int(stats_of(added).get("numRecords") or 0) - deleted)


def stats_of(added: Action) -> dict[str, Any]:
    """The statistics of an add action; empty where it has none that can be read."""
    try:
        found = json.loads(added.get("stats") or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def list_log(objects: ObjectStore, key: str) -> LogFiles:
    """What lies in the log of the table at `key`. One listing."""
    commits, parts = set(), dict[int, dict[str, int]]()
    for name in objects.list(f"{key}/_delta_log/"):
        if (commit := _COMMIT.search(name)) is not None:
            commits.add(int(commit.group(1)))
        elif (checkpoint := _CHECKPOINT.search(name)) is not None:
            parts.setdefault(int(checkpoint.group(1)), {})[name] = int(checkpoint.group(3) or 1)
    whole = {version: tuple(sorted(names)) for version, names in parts.items() if len(names) in names.values()}
    return LogFiles(frozenset(commits), whole)


def state_at(lake: Lake, objects: ObjectStore, key: str, version: int | None = None) -> TableState:
    """The state of the table at `key`, at its newest version or at this one.

    Raises:
        ContractError: TABLE_LOG_ABSENT, there is no table; TABLE_LOG_GAP, commits in between are missing;
            TABLE_VERSION_GONE, the log does not reach back, or forward, to this version.
    """
    log = list_log(objects, key)
    newest = log.newest
    if newest is None:
        raise ContractError(
            "TABLE_LOG_ABSENT",
            f"There is no Delta log at {key}.",
            hint="`deltaworks tables check` says what is on record of the table, and how to have it again.",
        )
    wanted = newest if version is None else version
    missing = log.missing(wanted)
    if wanted > newest or wanted < 0 or (missing and missing[0] == 0 and not _from_the_start(log, wanted)):
        oldest = min((*log.checkpoints, *({0} & log.commits)), default=newest)
        raise ContractError(
            "TABLE_VERSION_GONE",
            f"Version {wanted} of {key} cannot be read: its log holds versions {oldest} to {newest}.",
            hint="Choose a version, a time or a batch between them.",
        )
    if missing:
        raise ContractError(
            "TABLE_LOG_GAP",
            f"The log of {key} has lost the commit of version {', '.join(map(str, missing[:5]))}.",
            hint="`deltaworks tables check` says whether it can be made anew, and by which command.",
        )
    base = log.checkpoint_up_to(wanted)
    state = TableState(key, wanted)
    for name in () if base is None else log.checkpoints[base]:
        state.apply(_checkpointed(lake, name))
    for _, actions in read_commits(lake, key, range(0 if base is None else base + 1, wanted + 1)):
        state.apply(actions or ())
    return state


def _from_the_start(log: LogFiles, version: int) -> bool:
    """Whether the log has been whole from its beginning: a hole in it is then no older part that was cleaned up."""
    return log.checkpoint_up_to(version) is None and 0 not in log.commits and 1 in log.commits


def _checkpointed(lake: Lake, name: str) -> Iterator[Action]:
    with lake.filesystem.open_input_file(arrow_path(lake.storage, name)) as source:
        file = pq.ParquetFile(source)
        columns = [kind for kind in _KINDS if kind in file.schema_arrow.names]
        for batch in file.iter_batches(columns=columns):
            for row in batch.to_pylist():
                yield {kind: _plain(kind, value) for kind, value in row.items() if value is not None}


def _plain(kind: str, value: dict[str, Any]) -> Action:
    """An action of a checkpoint as a commit writes it: maps are objects, and what is null is left out."""
    found = {name: each for name, each in value.items() if each is not None and not name.endswith("_parsed")}
    for name in ("partitionValues", "tags", "configuration"):
        if name in found:
            found[name] = dict(found[name])
    if kind == "metaData":
        found["format"] = {**found["format"], "options": dict(found["format"].get("options") or ())}
    if kind == "add":
        # What a checkpoint holds changed nothing when that was written; put back, it does.
        found["dataChange"] = True
    return found
