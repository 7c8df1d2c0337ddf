"""Compacts small files of gold inputs between the refreshes of a stream.

Each batch adds a file to the partition of a date, and nightly maintenance merges them. With batches every five seconds,
a refresh late in the day would open thousands of files. Only append-only event tables are compacted, and only while no
job has requested or holds their write turn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.write_turn import TurnRecord
from deltaworks.control.provenance import OPTIMIZE, user_metadata
from deltaworks.specs.gold import GoldTableSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.compaction import compact_partitions
from deltaworks.tables.lake import Lake

log = logging.getLogger(__name__)
#: Minimum number of small files for compacting a partition: about a minute of batches every few seconds.
MIN_FILES: Final = 16
#: Larger files are not rewritten again.
SMALL_FILE_BYTES: Final = 4 << 20
#: Maximum bytes merged per partition and run, oldest files first. They are held in memory of the stream's process.
MAX_MERGE_BYTES: Final = 16 << 20


class _CompactionDeferred(Exception):
    """The stream is stopping, or a job needs the table's write turn."""


def compactable_inputs(spec: PipelineSpec, tables: Sequence[GoldTableSpec]) -> Iterator[str]:
    """Yields the append-only event tables that these gold tables read."""
    reads = {name for table in tables for name in table.reads}
    yield from (table.name for table in spec.event_tables if table.name in reads and table.mutable is None)


def compact_inputs(
    lake: Lake,
    spec: PipelineSpec,
    tables: Sequence[GoldTableSpec],
    *,
    should_continue: Callable[[], bool] = lambda: True,
) -> int:
    """Compacts small files of the inputs of these gold tables. Returns the number of compacted partitions.

    Changes no row. Idempotent and safe with concurrent writers. Larger files are left to the nightly OPTIMIZE.

    Args:
        should_continue: whether this process may still commit; checked before each commit.

    Raises:
        TransientError: the storage is unreachable.
    """
    home, merged = PipelineHome.open(lake.storage, spec.pipeline), 0
    for name in compactable_inputs(spec, tables):
        turns = _WriteTurnCheck(home, name, should_continue)
        try:
            turns.check()
            outcome = compact_partitions(
                lake,
                lake.objects,
                paths.table(spec.pipeline, name),
                None,
                below_bytes=SMALL_FILE_BYTES,
                min_files=MIN_FILES,
                max_bytes=MAX_MERGE_BYTES,
                user_metadata=user_metadata(pipeline=spec.pipeline, batch="", operation=OPTIMIZE),
                before_commit=turns.check,
            )
        except _CompactionDeferred:
            continue
        merged += len(outcome.compacted)
        if outcome.compacted:
            log.info("pipeline=%s table=%s partitions_merged=%d", spec.pipeline, name, len(outcome.compacted))
    return merged


class _WriteTurnCheck:
    """Checks before each commit whether a table may be rewritten."""

    def __init__(self, home: PipelineHome, table: str, should_continue: Callable[[], bool]) -> None:
        self._home, self._table, self._should_continue = home, table, should_continue

    def check(self) -> None:
        """Raises `_CompactionDeferred` if the process is stopping, or if a job holds or has requested the table's write
        turn.
        """
        stored = self._home.objects.get(paths.turn_request(self._home.pipeline, self._table))
        turn = TurnRecord.decode_or_none(stored.data) if stored is not None else None
        if not self._should_continue() or (turn is not None and not turn.is_over):
            raise _CompactionDeferred(self._table)
