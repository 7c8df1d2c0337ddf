"""Writes commits to a Delta log in the protocol's own form, without a JVM.

A commit is a put-if-absent of the version after the one that was read, so it never overwrites another writer's commit.
delta-rs and Spark can express neither commits that add removed files back, nor repairs, nor rewrites of chosen files.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from deltalake.exceptions import DeltaError

from deltaworks.control.objects import ObjectStore
from deltaworks.tables.commit import Step, checkpoint_interval
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import Action


def write_commit(objects: ObjectStore, key: str, version: int, actions: Sequence[Action]) -> bool:
    """Writes one commit to a log. Returns False if the version already exists. Atomic on every supported storage."""
    lines = [json.dumps(action, separators=(",", ":")) for action in actions]
    return objects.put_if_absent(f"{key}/_delta_log/{version:020d}.json", "\n".join([*lines, ""]).encode())


def commit_info(
    operation: str,
    *,
    user_metadata: str,
    at_ms: int,
    read_version: int | None,
    parameters: Mapping[str, str | None] | None = None,
    metrics: Mapping[str, int] | None = None,
    changes_rows: bool = True,
    is_blind_append: bool = False,
) -> Action:
    """Returns the `commitInfo` action of a commit.

    Args:
        at_ms: time of the commit, milliseconds since 1970.
        read_version: the version that the commit was built from; None if it is not known or does not exist.
        metrics: metrics with Delta's names; Delta stores them as text.
    """
    info: dict[str, Any] = {
        "timestamp": at_ms,
        "operation": operation,
        "operationParameters": dict(parameters or {}),
        "isBlindAppend": is_blind_append,
        "engineInfo": "deltaworks",
        "userMetadata": user_metadata,
    }
    if read_version is not None:
        info["readVersion"] = read_version
    if metrics is not None:
        info["operationMetrics"] = {name: str(value) for name, value in metrics.items()}
    if not changes_rows:
        info["isolationLevel"] = "SnapshotIsolation"
    return {"commitInfo": info}


def txn_action(step: Step, at_ms: int) -> Action:
    """Returns the `txn` action of a step."""
    return {"txn": {"appId": step.app_id, "version": step.version, "lastUpdated": at_ms}}


def remove_action(added: Action, at_ms: int, *, data_change: bool = True) -> Action:
    """Returns the remove action for the file of an add action.

    Args:
        data_change: False if the commit adds the file's rows again.
    """
    optional_fields = {
        name: added[name] for name in ("partitionValues", "size", "tags", "deletionVector") if added.get(name)
    }
    required_fields = {
        "path": added["path"],
        "deletionTimestamp": at_ms,
        "dataChange": data_change,
        "extendedFileMetadata": True,
    }
    return {"remove": {**required_fields, "partitionValues": {}, "size": 0, **optional_fields}}


def write_due_checkpoint(lake: Lake, key: str, version: int, *, configuration: Mapping[str, Any]) -> None:
    """Writes a checkpoint after the commit of this version if one is due.

    Failures are ignored, because readers work without a checkpoint.

    Args:
        configuration: the table's properties.
    """
    if version % checkpoint_interval(configuration):
        return
    table = lake.open(key)
    if table is not None:
        with contextlib.suppress(DeltaError):
            table.create_checkpoint()
