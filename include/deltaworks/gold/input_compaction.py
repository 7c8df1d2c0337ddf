"""Keeps the files few that a stream's gold is built from: small ones of its inputs are merged between builds.

A stream adds a file to a date's partition with every batch, and a night merges them. Until then each build of that date
opens all of them, and a build every half minute late in a day of batches of five seconds would open some thousands.
Merged are tables that events are only added to; what mutations or the stream rewrite is left to its own turn, and a
table whose write turn somebody has asked for to them.
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
#: A partition's small files are merged from so many on: a minute of a stream whose batches are some seconds apart. A
#: build opens each of them for every table that reads it; a merge does once.
MIN_FILES: Final = 16
#: Files from here on are left as they are, so that what was merged is not rewritten again and again.
SMALL_FILE_BYTES: Final = 4 << 20
#: What is merged of a partition at once, oldest first: held in memory, in the stream's own process.
MAX_MERGE_BYTES: Final = 16 << 20


class _CompactionDeferred(Exception):
    """The stream ends, or the table is somebody else's turn."""


def compactable_inputs(spec: PipelineSpec, tables: Sequence[GoldTableSpec]) -> Iterator[str]:
    """The tables of events that these gold tables read, and whose rows stay as they land."""
    reads = {name for table in tables for name in table.reads}
    yield from (table.name for table in spec.event_tables if table.name in reads and table.mutable is None)


def compact_inputs(
    lake: Lake,
    spec: PipelineSpec,
    tables: Sequence[GoldTableSpec],
    *,
    should_continue: Callable[[], bool] = lambda: True,
) -> int:
    """Merge small files of what these gold tables read; how many partitions that were. Changes no row.

    Idempotent, and safe beside every writer: whoever is first has the files. What it cannot merge is the night's.

    Args:
        goes_on: whether this process may still commit; looked at before each commit.

    Raises:
        TransientError: the storage does not answer.
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
    """Whether a table may be rewritten now."""

    def __init__(self, home: PipelineHome, table: str, should_continue: Callable[[], bool]) -> None:
        self._home, self._table, self._should_continue = home, table, should_continue

    def check(self) -> None:
        """Raise where the process ends, or a job has the table's write turn, or waits for it."""
        stored = self._home.objects.get(paths.turn_request(self._home.pipeline, self._table))
        turn = TurnRecord.decode(stored.data) if stored is not None else None
        if not self._should_continue() or (turn is not None and not turn.is_over):
            raise _CompactionDeferred(self._table)
