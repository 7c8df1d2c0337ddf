"""Helpers that age the commits and files of tables."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deltaworks.tables.lake import Lake
from deltaworks.testing import present


def _folder(lake: Lake, key: str) -> Path:
    return Path(lake.storage.prefix) / key


def _changed(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    for action in actions:
        change(action)
    path.write_text("".join(json.dumps(action) + "\n" for action in actions))


def commit_file(lake: Lake, key: str, version: int) -> Path:
    """Returns the commit file of a version."""
    return _folder(lake, key) / "_delta_log" / f"{version:020d}.json"


def in_metadata(lake: Lake, key: str, **changes: Any) -> None:
    """Changes the table's metadata."""

    def change(action: dict[str, Any]) -> None:
        if "metaData" in action:
            action["metaData"] |= changes

    _changed(commit_file(lake, key, 0), change)


def made_at(lake: Lake, key: str, version: int, *, hours_ago: float) -> None:
    """Sets the commit time of a version."""
    path, then = commit_file(lake, key, version), time.time() - hours_ago * 3600

    def change(action: dict[str, Any]) -> None:
        if "commitInfo" in action:
            action["commitInfo"]["timestamp"] = int(then * 1000)

    _changed(path, change)
    os.utime(path, (then, then))


def orphan(lake: Lake, key: str, name: str, *, age_hours: float) -> Path:
    """Writes an uncommitted data file of 1,000 bytes, like a crashed writer."""
    path = _folder(lake, key) / name
    path.write_bytes(b"x" * 1000)
    written_at = time.time() - age_hours * 3600
    os.utime(path, (written_at, written_at))
    return path


def replaced(lake: Lake, key: str, *, hours_ago: float) -> list[Path]:
    """Replaces all files of the table as if rewritten some time ago."""
    table = present(lake.open(key))
    before = {Path(uri.removeprefix("file://")) for uri in table.file_uris()}
    table.optimize.compact()
    newest = commit_file(lake, key, table.version())
    then = int((time.time() - hours_ago * 3600) * 1000)

    def change(action: dict[str, Any]) -> None:
        if "remove" in action:
            action["remove"]["deletionTimestamp"] = then

    _changed(newest, change)
    for path in (*before, *newest.parent.glob("*.json")):
        os.utime(path, (then / 1000 - 7200, then / 1000 - 7200))
    assert len(before) > 1
    return sorted(before)
