"""Makes files in a table of a running stack old enough for VACUUM, and lists the remaining files on disk."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltaworks.control import paths
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.tables.lake import Lake
from deltaworks.testing import present
from sandbox.servers.landing import LAKE_BUCKET
from tests.integration.airflow_harness import AirflowHarness

KEY = paths.table("clicks", "clicks")
AGE_HOURS = 60.0
CREATED_HOURS = 20 * 24.0


@dataclass(frozen=True, slots=True)
class AgedFiles:
    """Names of files in the table's folder: those VACUUM may delete with a retention of two days, and their bytes."""

    replaced: frozenset[str]
    orphan: str
    young: str
    size: int

    @property
    def deletable(self) -> frozenset[str]:
        return self.replaced | {self.orphan}


def age_files(harness: AirflowHarness, *, files: int = 2) -> AgedFiles:
    """Ages a table: it was created 20 days ago, some files were replaced 60 hours ago, and a crashed writer left one
    orphan 60 and one 10 hours ago. Nothing may write to the table meanwhile.
    """
    objects = open_objects(harness.catalog.environment.lake)
    table = present(Lake(harness.catalog.environment.lake).open(KEY))
    actions = _actions(objects)
    live = {action["add"]["path"]: action["add"] for action in actions if "add" in action}
    live = {path: add for path, add in live.items() if path in set(_paths(table))}
    chosen = dict(list(live.items())[:files])
    assert len(chosen) == files
    rewritten = [_copied(objects, add) for add in chosen.values()]
    metadata = next(action["metaData"] for action in reversed(actions) if "metaData" in action)
    commit: list[Mapping[str, Any]] = [
        {"commitInfo": {"timestamp": _then(AGE_HOURS), "operation": "OPTIMIZE", "operationParameters": {}}},
        {"metaData": {**metadata, "createdTime": _then(CREATED_HOURS)}},
        *({"remove": _removed(add)} for add in chosen.values()),
        *({"add": {**add, "dataChange": False}} for add in rewritten),
    ]
    written = "".join(json.dumps(action) + "\n" for action in commit).encode()
    assert objects.put_if_absent(f"{KEY}/_delta_log/{table.version() + 1:020d}.json", written)
    folder = Path(next(iter(chosen))).parent
    orphan, young = str(folder / "orphan.parquet"), str(folder / "young.parquet")
    for name in (orphan, young):
        objects.put(f"{KEY}/{name}", b"x" * 1000)
    for path in data_files(harness):
        _touch(harness, path, hours=10 if path == young else AGE_HOURS)
    size = 1000 + sum(int(add["size"]) for add in chosen.values())
    return AgedFiles(frozenset(chosen), orphan, young, size)


def data_files(harness: AirflowHarness) -> set[str]:
    """Returns the table's data files on the lake server's disk, as relative paths."""
    folder = _folder(harness)
    return {str(path.relative_to(folder)) for path in folder.rglob("*.parquet") if "_delta_log" not in path.parts}


def _folder(harness: AirflowHarness) -> Path:
    return harness.home.lake / LAKE_BUCKET / KEY


def _touch(harness: AirflowHarness, path: str, *, hours: float) -> None:
    then = time.time() - hours * 3600
    os.utime(_folder(harness) / path, (then, then))


def _then(hours: float) -> int:
    return int((time.time() - hours * 3600) * 1000)


def _paths(table: Any) -> list[str]:
    return [str(path) for path in table.get_add_actions(flatten=True).column("path").to_pylist()]


def _actions(objects: ObjectStore) -> list[dict[str, Any]]:
    """Returns the actions of all commits of the table, oldest first."""
    commits = sorted(key for key in objects.list(f"{KEY}/_delta_log/") if key.endswith(".json"))
    found = [objects.get(key) for key in commits]
    return [json.loads(line) for commit in found if commit is not None for line in commit.data.splitlines()]


def _copied(objects: ObjectStore, add: Mapping[str, Any]) -> dict[str, Any]:
    found = present(objects.get(f"{KEY}/{add['path']}"))
    path = str(Path(add["path"]).with_name(f"rewritten-{Path(add['path']).name}"))
    objects.put(f"{KEY}/{path}", found.data)
    return {**add, "path": path}


def _removed(add: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: add[name] for name in ("path", "partitionValues", "size")}
    return {**kept, "deletionTimestamp": _then(AGE_HOURS), "dataChange": False, "extendedFileMetadata": True}
