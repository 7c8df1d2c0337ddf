"""The lake as the JVM-free side sees it: open tables, append rows, list tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyarrow import fs

from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.commit import CommitOutcome, Step, commit_step, ensure_table, open_table
from deltaworks.tables.files import split_by_partition, write_file
from deltaworks.tables.scan import rows_of


def arrow_filesystem(storage: StorageSpec) -> fs.FileSystem:
    """pyarrow's filesystem for a storage."""
    return fs.LocalFileSystem() if storage.scheme == "file" else fs.S3FileSystem(**storage.arrow_options())


def arrow_path(storage: StorageSpec, key: str) -> str:
    """`key` in terms of `arrow_filesystem`."""
    if storage.scheme == "file":
        return f"{storage.prefix}/{key}"
    return "/".join(part for part in (storage.bucket, storage.prefix, key) if part)


class Lake:
    """Tables of one storage by key. Not safe to share between threads: open one each."""

    def __init__(self, storage: StorageSpec) -> None:
        self.storage = storage
        self._options = storage.deltalake_options()
        self._filesystem: fs.FileSystem | None = None

    @property
    def filesystem(self) -> fs.FileSystem:
        """pyarrow's view of the storage, opened on first use."""
        if self._filesystem is None:
            self._filesystem = arrow_filesystem(self.storage)
        return self._filesystem

    def open(self, key: str) -> DeltaTable | None:
        """The table at `key`, or None where there is none."""
        try:
            return open_table(self.storage.uri(key), storage_options=self._options)
        except TableNotFoundError:
            return None

    def ensure(
        self,
        key: str,
        schema: pa.Schema,
        *,
        user_metadata: str,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> DeltaTable:
        """The table at `key`, created where there is none."""
        return ensure_table(
            self.storage.uri(key),
            schema,
            storage_options=self._options,
            partition_by=partition_by,
            user_metadata=user_metadata,
            properties=properties,
        )

    def append(
        self,
        table: DeltaTable,
        key: str,
        rows: pa.Table,
        *,
        step: Step,
        user_metadata: str,
        owner: Step | None = None,
    ) -> CommitOutcome:
        """Write `rows` as files of the table and commit them as one step."""
        root = arrow_path(self.storage, key)
        parts = split_by_partition(rows, table.metadata().partition_columns) if rows.num_rows else []
        files = [write_file(self.filesystem, root, part, partition=values) for values, part in parts]
        actions = [file.add_action() for file in files]
        return commit_step(table, actions, step=step, owner=owner, user_metadata=user_metadata)

    def rows(self, key: str, *, columns: Sequence[str] | None = None, filters: Any = None) -> pa.Table | None:
        """The table's rows, read through deltalake; None where there is no table."""
        table = self.open(key)
        return None if table is None else rows_of(table, columns=columns, filters=filters)
