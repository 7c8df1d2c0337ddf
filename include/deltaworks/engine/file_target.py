"""Where tasks write the files of tables, as it travels to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyarrow import fs

from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.lake import arrow_path
from deltaworks.tables.statistics import IndexedColumns


@dataclass(frozen=True, slots=True)
class FileTarget:
    """Where a task writes: pyarrow's options of the storage and the folder of each table.

    `arrow_options` holds keys: it travels to tasks inside Spark's serialised closure and is never printed.
    `indexed` says which columns have statistics, for tables that do not keep to Delta's default.
    """

    arrow_options: dict[str, Any] | None
    roots: dict[str, str]
    partition_by: dict[str, tuple[str, ...]]
    indexed: dict[str, IndexedColumns] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        storage: StorageSpec,
        folders: Mapping[str, str],
        *,
        partition_by: Mapping[str, tuple[str, ...]],
        indexed: Mapping[str, IndexedColumns] | None = None,
    ) -> FileTarget:
        """Folders of a storage, by the names of the tables whose files they take."""
        options = None if storage.scheme == "file" else storage.arrow_options()
        roots = {name: arrow_path(storage, folder) for name, folder in folders.items()}
        return cls(options, roots, dict(partition_by), dict(indexed or {}))

    def filesystem(self) -> fs.FileSystem:
        """pyarrow's filesystem; local disk where there are no options."""
        return fs.LocalFileSystem() if self.arrow_options is None else fs.S3FileSystem(**self.arrow_options)
