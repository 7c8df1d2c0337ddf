"""Prepared batches and replays: objects that fix the files to commit.

The first writer decides; other attempts and successors commit exactly the files it names. The formats are documented in
reference/formats.md.
"""

from __future__ import annotations

from typing import Any, ClassVar

from deltaworks.control import paths
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import Record, RecordKind, RecordPart, RecordStore
from deltaworks.specs.pipeline_sections import ARCHIVE


class PreparedTable(RecordPart):
    """The files that a batch adds to one table (`tables.files.WrittenFile` mappings), and columns to add first."""

    table: str
    writer: str
    rows: int
    files: tuple[dict[str, Any], ...] = ()
    new_columns: tuple[dict[str, Any], ...] = ()


class PreparedBatch(Record):
    """A prepared batch: the files to commit, and the source offsets from Spark's offset log.

    The batch contains no events of the people on suppression list number `suppression`.
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
    suppression: int = 0
    tables: tuple[PreparedTable, ...]

    @property
    def rows(self) -> int:
        """Rows of all tables except quarantine and archive."""
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
        """Reads a prepared batch; None if it does not exist.

        Raises:
            ContractError: PREPARED_BATCH_UNREADABLE.
        """
        return self._records.read(paths.prepared_batch(self._pipeline, generation, batch_id))

    def get_or_create(self, batch: PreparedBatch) -> PreparedBatch:
        """Creates the batch unless it exists; returns the stored one. Idempotent.

        Raises:
            ContractError: PREPARED_BATCH_UNREADABLE, PREPARED_BATCH_VANISHED.
        """
        return self._records.get_or_create(
            paths.prepared_batch(self._pipeline, batch.generation, batch.batch_id), batch
        )

    def numbers(self, generation: int) -> list[int]:
        """Returns the numbers of all existing prepared batches, in order. One listing."""
        folder = paths.prepared_batch(self._pipeline, generation, 0).rpartition("/")[0] + "/"
        names = (key.removeprefix(folder).removesuffix(".json") for key in self._objects.list(folder))
        return sorted(int(name) for name in names if name.isdigit())


class PreparedReplay(Record):
    """A prepared replay. The last of `tables` records the replayed rows; its commit completes the replay."""

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
    """The prepared replays of one pipeline: the quarantined rows of each, and their files.

    Ordinals have no gaps. Replay n + 1 can be prepared only after replay n is complete. The first process to create it
    decides; others complete it.
    """

    def __init__(self, objects: ObjectStore, pipeline: str) -> None:
        self._pipeline = pipeline
        self._records = RecordStore(objects, PreparedReplay)

    def read(self, ordinal: int) -> PreparedReplay | None:
        """Reads a prepared replay; None if it does not exist.

        Raises:
            ContractError: PREPARED_REPLAY_UNREADABLE.
        """
        return self._records.read(paths.prepared_replay(self._pipeline, ordinal))

    def create(self, replay: PreparedReplay) -> bool:
        """Creates the replay; returns False if another process created this ordinal first. Idempotent."""
        return self._records.create(paths.prepared_replay(self._pipeline, replay.ordinal), replay)
