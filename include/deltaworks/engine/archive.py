"""Archives the payloads that a task reads, in the same pass that writes their rows.

Archive files belong to the batch like data files: they are prepared and committed with it, exactly once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from deltaworks.engine.table_files import FileTarget, TableWriters
from deltaworks.events.archive import RecordsToColumns, archive_rows
from deltaworks.events.chunks import BatchMetadata
from deltaworks.specs.pipeline_sections import ARCHIVE
from deltaworks.tables.files import WrittenFile


class ArchiveWriter:
    """Writes the raw records of one task to archive files. Used by one thread."""

    def __init__(self, target: FileTarget, stamp: BatchMetadata, to_archive: RecordsToColumns) -> None:
        self._writers = TableWriters(target)
        self._stamp = stamp
        self._to_archive = to_archive

    def archive(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the given record batches; each is written to the archive before it is yielded for parsing."""
        for batch in batches:
            if batch.num_rows:
                self._writers.add(ARCHIVE, archive_rows(self._to_archive(batch), self._stamp))
            yield batch

    def files(self) -> dict[str, tuple[WrittenFile, ...]]:
        """Returns the archive files. Call it after all batches were read; earlier the list is incomplete."""
        self._writers.flush()
        files = tuple(file for _, file in self._writers.files)
        return {ARCHIVE: files} if files else {}
