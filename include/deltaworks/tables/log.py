"""The commits of a Delta log, read one object each.

deltalake's own `history()` numbers commits by counting down from the version its snapshot has, also where newer
commits have come since: then every number is wrong. What is decided by version is read from here.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from deltaworks.control.provenance import read_user_metadata
from deltaworks.tables.lake import Lake, arrow_path

#: Commits are small objects, so reading many of them is latency and nothing else.
_READERS = 8
Action = dict[str, Any]


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

    wanted = list(versions)
    with ThreadPoolExecutor(_READERS) as pool:
        yield from zip(wanted, pool.map(read, wanted), strict=True)


def commit_history(lake: Lake, key: str, *, newest: int, limit: int | None = None) -> Iterator[CommitInfo]:
    """The commits from version `newest` down, to the oldest one still in the log or `limit` of them."""
    oldest = -1 if limit is None else max(-1, newest - limit)
    versions = iter(range(newest, oldest, -1))
    while chunk := list(itertools.islice(versions, 2 * _READERS)):
        for version, actions in read_commits(lake, key, chunk):
            if actions is None:
                return
            yield _info(version, actions)


def _info(version: int, actions: list[Action]) -> CommitInfo:
    said: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    return CommitInfo(
        version=version,
        operation=str(said.get("operation", "UNKNOWN")),
        at=dt.datetime.fromtimestamp(int(said.get("timestamp", 0)) / 1000, tz=dt.UTC),
        metadata=read_user_metadata(said.get("userMetadata")),
        metrics=said.get("operationMetrics") or {},
        changes_rows=any(True for _ in changing_actions(actions)),
        engine=str(said.get("engineInfo", "")),
    )


def changing_actions(actions: list[Action]) -> Iterator[Action]:
    """The add and remove actions that change rows; those of OPTIMIZE only rearrange them."""
    for action in actions:
        moved = action.get("add") or action.get("remove")
        if moved is not None and moved.get("dataChange", True):
            yield moved
