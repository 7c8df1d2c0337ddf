"""Prepared objects: the one object that fixes what a batch, or a replay of quarantined rows, writes.

Whoever creates it first decides; everybody else, a later attempt of the same driver or a successor, commits exactly
the files it names. The formats are versioned and documented in docs/reference/formats.md.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from deltaworks.control import paths
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import Record, RecordKind, RecordPart, RecordStore
from deltaworks.specs.archive import ARCHIVE


class PreparedTable(RecordPart):
    """What a batch adds to one table: data files as `tables.files.WrittenFile` mappings, and columns it needs first."""

    table: str
    writer: str
    rows: int
    files: tuple[dict[str, Any], ...] = ()
    new_columns: tuple[dict[str, Any], ...] = ()


class PreparedBatch(Record):
    """A batch, fixed. `offsets` are the source's, read from Spark's offset log.

    `suppression` is the highest number of the list of erased subjects that it was read with: it holds nothing of those.
    """

    kind: ClassVar[RecordKind] = RecordKind(
        noun="prepared batch",
        unreadable_condition="PREPARED_BATCH_UNREADABLE",
        hint="Run the release that wrote it, or move the object away to prepare the batch again.",
        vanished_condition="PREPARED_BATCH_VANISHED",
        vanished_hint="Start the stream again.",
    )

    pipeline: str
    generation: int
    batch_id: int
    spark_batch_id: int
    checkpoint: int
    owner: str
    owner_epoch: int
    run: str
    prepared_at: str
    ingested_at_us: int
    spec_fingerprint: str
    code_version: str
    offsets: dict[str, Any]
    source: dict[str, Any]
    suppression: int = Field(default=0, exclude_if=lambda number: number == 0)
    tables: tuple[PreparedTable, ...]

    @property
    def rows(self) -> int:
        """Rows over all tables, quarantine and archive excepted: these hold no events that landed."""
        return sum(table.rows for table in self.tables if table.table not in ("quarantine", ARCHIVE))

    @property
    def quarantined(self) -> int:
        """Rows in quarantine."""
        return sum(table.rows for table in self.tables if table.table == "quarantine")


class PreparedBatches:
    """The prepared batches of one pipeline."""

    def __init__(self, objects: ObjectStore, pipeline: str) -> None:
        self._objects = objects
        self._pipeline = pipeline
        self._records = RecordStore(objects, PreparedBatch)

    def read(self, generation: int, batch_id: int) -> PreparedBatch | None:
        """The prepared batch, or None while there is none.

        Raises:
            ContractError: PREPARED_BATCH_UNREADABLE.
        """
        return self._records.read(paths.prepared_batch(self._pipeline, generation, batch_id))

    def get_or_create(self, batch: PreparedBatch) -> PreparedBatch:
        """Fix the batch; returns the one that is fixed, which is another driver's where that one was first. Idempotent.

        Raises:
            ContractError: PREPARED_BATCH_UNREADABLE, PREPARED_BATCH_VANISHED.
        """
        return self._records.get_or_create(
            paths.prepared_batch(self._pipeline, batch.generation, batch.batch_id), batch
        )

    def numbers(self, generation: int) -> list[int]:
        """The numbers of all prepared batches that are still there, in order. One listing."""
        folder = paths.prepared_batch(self._pipeline, generation, 0).rpartition("/")[0] + "/"
        names = (key.removeprefix(folder).removesuffix(".json") for key in self._objects.list(folder))
        return sorted(int(name) for name in names if name.isdigit())


class PreparedReplay(Record):
    """A replay, fixed. The last of `tables` is the record of its rows, which completes it."""

    kind: ClassVar[RecordKind] = RecordKind(
        noun="prepared replay",
        unreadable_condition="PREPARED_REPLAY_UNREADABLE",
        hint="Run the release that wrote it; it completes the replay.",
    )

    pipeline: str
    ordinal: int
    replay_id: str
    run: str
    prepared_at: str
    spec_fingerprint: str
    code_version: str
    tables: tuple[PreparedTable, ...]


class PreparedReplays:
    """The prepared replays of one pipeline: which quarantined rows each lands, and in which files.

    Ordinals have no gaps. Replay n + 1 can be prepared only after replay n is complete, by one of any number of
    processes: whoever creates its object. Everybody else completes what that one prepared.
    """

    def __init__(self, objects: ObjectStore, pipeline: str) -> None:
        self._pipeline = pipeline
        self._records = RecordStore(objects, PreparedReplay)

    def read(self, ordinal: int) -> PreparedReplay | None:
        """The prepared replay, or None while there is none.

        Raises:
            ContractError: PREPARED_REPLAY_UNREADABLE.
        """
        return self._records.read(paths.prepared_replay(self._pipeline, ordinal))

    def create(self, replay: PreparedReplay) -> bool:
        """Fix the replay; False where another process fixed one of this ordinal first. Idempotent."""
        return self._records.create(paths.prepared_replay(self._pipeline, replay.ordinal), replay)
