"""Replaces all rows of a table in one commit: by none and the declared columns, or by the content of another table.

Folders on object storage cannot be renamed, and a table is what its log says: so a swap is one commit of our own
(`tables.restore`), which readers see whole or not at all. The files are copied by the storage, not read, and stay in
the other table until the copies have been checked. Needs no JVM. Earlier versions stay readable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Schema

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

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


#: Writer features of a table whose files delta-rs may be trusted to take out.
_RECREATABLE_FEATURES = frozenset({"invariants", "checkConstraints", "timestampNtz", "vacuumProtocolCheck"})
_FEATURES_WRITER_VERSION = 7


@dataclass(frozen=True, slots=True)
class TableContent:
    """What a version of a table holds, by its log."""

    version: int
    rows: int
    files: int
    bytes: int


def table_content(table: DeltaTable) -> TableContent:
    """What the open table holds now. Files without a count of rows count as none."""
    files = pa.table(table.get_add_actions(flatten=True))
    if not files.num_rows:
        return TableContent(table.version(), 0, 0, 0)
    total = {name: pc.sum(files.column(name)).as_py() or 0 for name in ("num_records", "size_bytes")}
    return TableContent(table.version(), int(total["num_records"]), files.num_rows, int(total["size_bytes"]))


def reasons_against_recreating(table: DeltaTable, partition_by: Sequence[str]) -> list[str]:
    """Why delta-rs cannot recreate this table, in words; empty where it can."""
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
    """Take all rows out and declare these columns, once. Idempotent by its step, as a batch is.

    Args:
        columns: types by name as a pipeline declares them, or a schema; a table that Spark recreates needs types.
        spark: gives a session, for a table delta-rs cannot commit this to.
        uri: the table's address as Spark has it.

    Returns:
        Whether it landed now; False where it had landed before.

    Raises:
        TransientError: SPARK_UNAVAILABLE.
        FencedError, ConcurrencyError, ContractError: what `commit_step` raises.
    """
    schema = columns if isinstance(columns, pa.Schema) else arrow_schema(dict(columns))
    refresh(table)
    current = table.transaction_version(step.app_id)
    if current is not None and current >= step.version:
        return False
    reasons = reasons_against_recreating(table, partition_by)
    if not reasons:
        recreate_as = Schema.from_arrow(schema)
        outcome = commit_step(table, [], step=step, owner=owner, user_metadata=user_metadata, recreate_as=recreate_as)
        return outcome.newly_committed
    if spark is None or isinstance(columns, pa.Schema):
        raise TransientError(
            "SPARK_UNAVAILABLE", f"{table.table_uri} has {', '.join(reasons)}, so only Spark can recreate it."
        )
    declared = ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
    writer = spark().createDataFrame([], declared).write.format("delta").mode("overwrite").partitionBy(*partition_by)
    # Delta leaves a transaction out that it has, and fails the one of two that comes second.
    writer = writer.option("overwriteSchema", "true").option("userMetadata", user_metadata)
    writer.option("txnAppId", step.app_id).option("txnVersion", step.version).save(uri)
    return True


#: Copies made at once: each is a request during which the storage works.
_COPY_THREADS = 8


def reasons_against_swap(lake: Lake, objects: ObjectStore, key: str) -> list[str]:
    """Why the table at `key` cannot be given other files by a commit of ours, in words; empty where it can."""
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
    """Make the table at `key` hold what `source` holds, with its columns and partitions. Idempotent by its step.

    Safe beside other writers: what they commit first is undone by the swap, and `before_commit` may refuse that; those
    who began before it fail, where `commit.raises` names the number they go by. The table keeps its id and properties.

    Args:
        before_commit: called before each attempt; what it raises ends the swap.

    Raises:
        TransientError: SWAP_COPY_DAMAGED, and then nothing was committed.
        ConcurrencyError, FencedError, ContractError: what `commit_restore` raises.
    """
    copy_files(lake, source, key, source.files.values())

    def target(current: TableState) -> TargetState:
        swapped_fields = {name: source.metadata[name] for name in ("schemaString", "partitionColumns")}
        return TargetState(source.files, {**current.metadata, **swapped_fields})

    return commit_files(lake, objects, key, target, commit=commit, before_commit=before_commit)


def copy_files(lake: Lake, source: TableState, key: str, files: Iterable[Action]) -> None:
    """Copy files of one table into the folder of another, under the same paths. Idempotent.

    Raises:
        TransientError: SWAP_COPY_DAMAGED, a copy is not there as long as the log says.
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
            f"{len(damaged)} of {len(add_actions)} files copied from {source.key} to {key} are not whole: {damaged[0]}.",
            hint="Run it again: they are copied again.",
        )


def damaged_files(lake: Lake, key: str, files: Iterable[Action]) -> list[str]:
    """The paths of these files that are not there with the size their log says, in order."""
    sizes = {_decoded_path(file): int(file["size"]) for file in files}
    root = arrow_path(lake.storage, key)
    infos = lake.filesystem.get_file_info([f"{root}/{path}" for path in sizes])
    return sorted(path for path, info in zip(sizes, infos, strict=True) if info.size != sizes[path])


def verify_swap(lake: Lake, objects: ObjectStore, key: str, source: TableState, *, version: int | None = None) -> None:
    """Make sure that the table at `key` has all it was given, so that the source may go. Mends copies that are damaged.

    Args:
        version: the version the swap has just made, which is then compared with the source as another reader sees both.

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
        raise _unverified_swap_error(key, source.key, f"{present} is not {expected}")


def _unverified_swap_error(key: str, source: str, reason: str) -> ContractError:
    return ContractError(
        "SWAP_UNVERIFIED",
        f"{key} was given the content of {source}, and does not show it: {reason}.",
        hint=f"Nothing was removed: `RESTORE` {key} to the version before, and keep {source} to be looked at.",
    )


def _decoded_path(added: Action) -> str:
    return unquote(added["path"])
