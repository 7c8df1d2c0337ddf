"""Removes prepared batches that are complete and old: one object a batch piles up otherwise.

What a batch did is in the ledger; its prepared object is of use for making a ledger anew and for looking into a batch.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from deltaworks.control import paths
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.checkpoint import prepared_batches
from deltaworks.control.records.generations import current_generation
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.steps import read_last_completed

KEEP_DAYS = 30
KEEP_BATCHES = 1_000
MOST_REMOVED = 50_000


@dataclass(frozen=True, slots=True)
class PreparedUpkeep:
    """How many prepared batches were removed, or would be."""

    removed: int
    reason: str = ""


def remove_old_prepared(
    lake: Lake,
    objects: ObjectStore,
    pipeline: str,
    *,
    keep_all: bool,
    dry_run: bool = True,
    keep_days: int = KEEP_DAYS,
    keep_batches: int = KEEP_BATCHES,
) -> PreparedUpkeep:
    """Remove the prepared batches older than `keep_days`, the oldest first and without a gap.

    The last `keep_batches` complete ones stay, however old. Idempotent.

    Args:
        keep_all: something is held back, and may need any of them.
    """
    if keep_all:
        return PreparedUpkeep(0, "kept: a table is held")
    current = current_generation(objects, pipeline)
    last = read_last_completed(lake, pipeline, current)
    # Nothing of a generation that is over is ever read again, its last batches neither.
    old = [
        paths.prepared_batch(pipeline, generation, batch)
        for generation in range(1, current + 1)
        for batch in prepared_batches(objects, pipeline, generation)
        if generation < current or (last is not None and batch <= last - keep_batches)
    ]
    before = datetime.now(tz=UTC) - timedelta(days=keep_days)

    def is_old(key: str) -> bool:
        changed_at = lake.filesystem.get_file_info(arrow_path(lake.storage, key)).mtime
        return changed_at is not None and changed_at < before

    removed = 0
    for key in itertools.takewhile(is_old, old[:MOST_REMOVED]):
        if not dry_run:
            objects.delete(key)
        removed += 1
    return PreparedUpkeep(removed, "" if removed or last is not None else "no batch is complete yet")
