"""Replaces the content of a table in one commit: empties it and sets its declared columns, or copies another table.

Object storage cannot rename folders, and a table is defined by its log. So a swap is one commit (`tables.files_commit`)
that readers see completely or not at all. The storage copies the files without a download. The source table keeps its
files until the copies are verified. Earlier versions stay readable. Needs no JVM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from deltaworks.control.objects import ObjectStore
from deltaworks.errors import ContractError, TransientError
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.commit import Step, commit_step, refresh
from deltaworks.tables.features import reasons_to_use_spark
from deltaworks.tables.files_commit import (
    FilesCommit,
    FilesCommitOutcome,
    TargetState,
    commit_files,
    reasons_against_files_commit,
)
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.log import Action, TableState, state_at
from deltaworks.tables.variant import delta_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


#: Writer features that a table may have if delta-rs recreates it.
_RECREATABLE_FEATURES = frozenset({"invariants", "checkConstraints", "timestampNtz", "variantType"})
_FEATURES_WRITER_VERSION = 7


@dataclass(frozen=True, slots=True)
class TableContent:
    """Version, rows, files and bytes of a table, from its log; `rows` is None if the log lacks the count of a file."""

    version: int
    rows: int | None
    files: int
    bytes: int


def table_content(table: DeltaTable) -> TableContent:
    """Returns the content of the open table."""
    files = pa.table(table.get_add_actions(flatten=True))
    if not files.num_rows:
        return TableContent(table.version(), 0, 0, 0)
    rows = None if files.column("num_records").null_count else pc.sum(files.column("num_records")).as_py()
    return TableContent(table.version(), rows, files.num_rows, int(pc.sum(files.column("size_bytes")).as_py() or 0))


def reasons_against_recreating(table: DeltaTable, partition_by: Sequence[str]) -> list[str]:
    """Returns why delta-rs cannot recreate this table; empty if it can."""
    reasons = reasons_to_use_spark(table)
    if list(table.metadata().partition_columns) != list(partition_by):
        reasons.append("other partition columns than declared")
    if table.protocol().min_writer_version >= _FEATURES_WRITER_VERSION:
        reasons += [
            f"the feature {name}"
            for name in sorted(set(table.protocol().writer_features or ()) - _RECREATABLE_FEATURES)
        ]
    if table.metadata().configuration.get("delta.appendOnly") == "true":
        reasons.append("delta.appendOnly")
    return reasons


def recreate_table(
    table: DeltaTable,
    columns: Mapping[str, str] | pa.Schema,
    partition_by: Sequence[str],
    *,
    step: Step,
    owner: Step,
    user_metadata: str,
    spark: Callable[[], SparkSession] | None,
    uri: str,
) -> bool:
    """Removes all rows and sets the declared columns, exactly once per step.

    Args:
        columns: declared types by name, or a schema; recreation through Spark needs declared types.
        spark: returns a session, for a table that delta-rs cannot commit to.
        uri: the table's address for Spark.

    Returns:
        Whether this call made the commit; False if the step was committed before.

    Raises:
        TransientError: SPARK_UNAVAILABLE.
        FencedError, ConcurrencyError, ContractError: see `commit_step`.
    """
    schema = columns if isinstance(columns, pa.Schema) else arrow_schema(dict(columns))
    refresh(table)
    current = table.transaction_version(step.app_id)
    if current is not None and current >= step.version:
        return False
    reasons = reasons_against_recreating(table, partition_by)
    if not reasons:
        recreate_as = delta_schema(schema)
        outcome = commit_step(table, [], step=step, owner=owner, user_metadata=user_metadata, recreate_as=recreate_as)
        return outcome.newly_committed
    if spark is None or isinstance(columns, pa.Schema):
        raise TransientError(
            "SPARK_UNAVAILABLE", f"{table.table_uri} has {', '.join(reasons)}: only Spark can recreate it."
        )
    declared = ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
    writer = spark().createDataFrame([], declared).write.format("delta").mode("overwrite").partitionBy(*partition_by)
    # Delta skips a transaction that the table already has; of two concurrent ones, the second fails.
    writer = writer.option("overwriteSchema", "true").option("userMetadata", user_metadata)
    writer.option("txnAppId", step.app_id).option("txnVersion", step.version).save(uri)
    return True


#: Number of concurrent copies; each is a server-side request.
_COPY_THREADS = 8


def reasons_against_swap(lake: Lake, objects: ObjectStore, key: str) -> list[str]:
    """Returns why the content of the table at `key` cannot be swapped; empty if it can."""
    opened = lake.open(key)
    if opened is None:
        return ["no table yet"]
    return sorted({*reasons_to_use_spark(opened), *reasons_against_files_commit(state_at(lake, objects, key))})


def swap_content(
    lake: Lake,
    objects: ObjectStore,
    key: str,
    source: TableState,
    *,
    commit: FilesCommit,
    before_commit: Callable[[], None] = lambda: None,
) -> FilesCommitOutcome:
    """Replaces the content of the table at `key`, including columns and partitioning, by that of `source`. Idempotent.

    Safe with concurrent writers. The swap undoes commits made before it; `before_commit` may raise to prevent this.
    Writers that started before the swap fail if `commit.fenced_app_ids` contains their application id. The table keeps
    its id and properties.

    Args:
        before_commit: called before each attempt; raising ends the swap without a commit.

    Raises:
        TransientError: SWAP_COPY_DAMAGED; nothing was committed.
        ConcurrencyError, FencedError, ContractError: see `commit_files`.
    """
    copy_files(lake, source, key, source.files.values())

    def target(current: TableState) -> TargetState:
        swapped_fields = {name: source.metadata[name] for name in ("schemaString", "partitionColumns")}
        return TargetState(source.files, {**current.metadata, **swapped_fields})

    return commit_files(lake, objects, key, target, commit=commit, before_commit=before_commit)


def copy_files(lake: Lake, source: TableState, key: str, files: Iterable[Action]) -> None:
    """Copies files of one table into another table's folder; relative paths stay the same. Idempotent.

    Raises:
        TransientError: SWAP_COPY_DAMAGED, a copy does not have the size recorded in the log.
    """
    add_actions = list(files)
    origin, destination = arrow_path(lake.storage, source.key), arrow_path(lake.storage, key)
    filesystem = lake.filesystem

    def copy(path: str) -> None:
        if lake.storage.scheme == "file":
            filesystem.create_dir(f"{destination}/{path}".rpartition("/")[0], recursive=True)
        filesystem.copy_file(f"{origin}/{path}", f"{destination}/{path}")

    with ThreadPoolExecutor(_COPY_THREADS) as pool:
        list(pool.map(copy, [_decoded_path(file) for file in add_actions]))
    damaged = damaged_files(lake, key, add_actions)
    if damaged:
        raise TransientError(
            "SWAP_COPY_DAMAGED",
            f"{len(damaged)} of {len(add_actions)} files copied from {source.key} to {key} are incomplete: "
            f"{damaged[0]}.",
        )


def damaged_files(lake: Lake, key: str, files: Iterable[Action]) -> list[str]:
    """Returns, sorted, the paths of files that are missing or do not have their recorded size."""
    sizes = {_decoded_path(file): int(file["size"]) for file in files}
    root = arrow_path(lake.storage, key)
    infos = lake.filesystem.get_file_info([f"{root}/{path}" for path in sizes])
    return sorted(path for path, info in zip(sizes, infos, strict=True) if info.size != sizes[path])


def verify_swap(lake: Lake, objects: ObjectStore, key: str, source: TableState, *, version: int | None = None) -> None:
    """Verifies that the table at `key` has all swapped files, so that the source can be removed. Copies damaged files
    again.

    Args:
        version: version of the swap's commit; if given, its content is compared with the source through deltalake.

    Raises:
        TransientError: SWAP_COPY_DAMAGED.
        ContractError: SWAP_UNVERIFIED.
    """
    current = state_at(lake, objects, key)
    swapped = {name: file for name, file in source.files.items() if name in current.files}
    damaged = set(damaged_files(lake, key, swapped.values()))
    if damaged:
        copy_files(lake, source, key, [file for file in swapped.values() if _decoded_path(file) in damaged])
    if version is None:
        return
    opened, origin = lake.open(key), lake.open(source.key)
    if opened is None or origin is None:
        raise _unverified_swap_error(key, source.key, "one of them cannot be opened")
    opened.load_as_version(version)
    origin.load_as_version(source.version)
    present, expected = table_content(opened), table_content(origin)
    if (present.rows, present.files, present.bytes) != (expected.rows, expected.files, expected.bytes):
        raise _unverified_swap_error(key, source.key, f"{present} differs from {expected}")


def _unverified_swap_error(key: str, source: str, reason: str) -> ContractError:
    return ContractError(
        "SWAP_UNVERIFIED",
        f"{key} does not show the content swapped in from {source}: {reason}.",
        hint=f"Nothing was removed. `RESTORE` {key} to the previous version, and keep {source} for analysis.",
    )


def _decoded_path(added: Action) -> str:
    return unquote(added["path"])
