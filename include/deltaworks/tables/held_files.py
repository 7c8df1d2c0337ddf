"""Files that no commit names yet and that must not be removed: of shares that are held back, and of torn batches.

A share may wait for weeks, longer than any retention. So whoever deletes files of a table by their age asks here first,
and before it looks at the table: a file that is committed in between was protected when it was asked about.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from deltaworks.control import paths
from deltaworks.control.clock import parse_iso
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.generations import current_generation
from deltaworks.control.records.held import read_held
from deltaworks.control.records.prepared import PreparedBatch, read_prepared
from deltaworks.control.records.replay import PreparedReplay, read_replay
from deltaworks.tables.lake import Lake
from deltaworks.tables.selected_rows import selected_rows
from deltaworks.tables.steps import (
    BATCH_METADATA_STORE,
    CAUGHT_UP,
    HELD,
    batches_by_table,
    read_last_completed,
    read_last_replay,
    waiting_shares,
)

_FILE_NAME = re.compile(rb'"([^"]+\.parquet)"')


@dataclass(slots=True)
class HeldFiles:
    """The files of one table that wait to be committed, by their paths below it, and since when the oldest does.

    `held_back` tells a table that batches were completed without from one whose batch is under way.
    """

    paths: set[str] = field(default_factory=set)
    oldest: datetime | None = None
    held_back: bool = False


def uncommitted_files(lake: Lake, objects: ObjectStore, pipeline: str) -> dict[str, HeldFiles]:
    """Files of prepared batches and replays that are not, or not yet, committed, by table.

    Reads the ledger, the record of replays, and the prepared objects that matter.

    Raises:
        ContractError: PREPARED_BATCH_UNREADABLE, PREPARED_REPLAY_UNREADABLE: what it protects is not known.
    """
    generation = current_generation(objects, pipeline)
    found: dict[str, HeldFiles] = {}
    last = read_last_completed(lake, pipeline, generation)
    following = 0 if last is None else last + 1
    # A batch may be completed, and the next one prepared, while this looks.
    for batch_id in (following, following + 1):
        batch = read_prepared(objects, pipeline, generation, batch_id)
        if batch is not None:
            for share in batch.tables:
                _note(found, batch, share.table)
    for table, batches in _held_back(lake, pipeline, generation).items():
        for batch_id in batches:
            batch = read_prepared(objects, pipeline, generation, batch_id)
            if batch is not None:
                _note(found, batch, table)
        found.setdefault(table, HeldFiles()).held_back = True
    _note_torn_replay(found, lake, objects, pipeline)
    for table in read_held(objects, pipeline):
        found.setdefault(table, HeldFiles()).held_back = True
    return found


def _held_back(lake: Lake, pipeline: str, generation: int) -> dict[str, list[int]]:
    key = paths.pipeline_control(pipeline, BATCH_METADATA_STORE)
    store = lake.open(key)
    if store is None:
        return {}
    columns = ["table_name", "batch_id", "outcome"]
    wanted: dict[str, list[Any]] = {"outcome": [HELD, CAUGHT_UP], "generation": [generation]}
    return batches_by_table(waiting_shares(selected_rows(lake, key, store, columns=columns, values=wanted)))


def _note_torn_replay(found: dict[str, HeldFiles], lake: Lake, objects: ObjectStore, pipeline: str) -> None:
    """A replay of quarantined rows that was left half done may wait for weeks too, until somebody replays again."""
    last = read_last_replay(lake, pipeline)
    # One may be completed, and the next one prepared, while this looks.
    for ordinal in (last + 1, last + 2):
        replay = read_replay(objects, pipeline, ordinal)
        for share in replay.tables if replay else ():
            _note(found, replay, share.table)


def _note(found: dict[str, HeldFiles], batch: PreparedBatch | PreparedReplay | None, table: str) -> None:
    if batch is None:
        return
    held = found.setdefault(table, HeldFiles())
    prepared_at = parse_iso(batch.prepared_at)
    for share in batch.tables:
        if share.table == table:
            held.paths |= {file["path"] for file in share.files}
    if prepared_at is not None and (held.oldest is None or prepared_at < held.oldest):
        held.oldest = prepared_at


def files_named_elsewhere(objects: ObjectStore, pipeline: str) -> set[str]:
    """File names in the records of replays, reprocesses and rollbacks, whatever their state: none is an orphan."""
    named: set[str] = set()
    for folder in ("replays/", "reprocess/", "rollbacks/"):
        for key in objects.list(paths.pipeline_control(pipeline, folder.rstrip("/")) + "/"):
            found = objects.get(key) if key.endswith(".json") else None
            if found is not None:
                named |= {match.decode(errors="replace") for match in _FILE_NAME.findall(found.data)}
    return named
