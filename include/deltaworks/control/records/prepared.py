"""The prepared batch: the one object that fixes what a batch writes, before anything is committed.

Whoever creates it first decides; everybody else, a later attempt of the same driver or a successor, commits exactly
the files it names. The format is versioned and documented in docs/formats.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from deltaworks.control import paths
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import decode_record
from deltaworks.errors import ContractError

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTable:
    """What a batch adds to one table: data files as `tables.files.WrittenFile` mappings, and columns it needs first."""

    table: str
    writer: str
    rows: int
    files: tuple[dict[str, Any], ...]
    new_columns: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedBatch:
    """A batch, fixed. `offsets` are the source's, read from Spark's offset log."""

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
    tables: tuple[PreparedTable, ...]
    format: int = FORMAT

    def encode(self) -> bytes:
        """The object's bytes."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes, *, key: str) -> PreparedBatch:
        """Read the object.

        Raises:
            ContractError: PREPARED_BATCH_UNREADABLE for a torn object or a format of a later release.
        """

        def make(record: dict[str, Any]) -> PreparedBatch:
            return cls(**{**record, "tables": prepared_tables(record)})

        return decode_record(data, make, expected=FORMAT, unreadable=partial(_unreadable, key))

    @property
    def rows(self) -> int:
        """Rows over all tables, quarantine excepted."""
        return sum(table.rows for table in self.tables if table.table != "quarantine")

    @property
    def quarantined(self) -> int:
        """Rows in quarantine."""
        return sum(table.rows for table in self.tables if table.table == "quarantine")


def _unreadable(key: str, error: Exception) -> ContractError:
    return ContractError(
        "PREPARED_BATCH_UNREADABLE",
        f"{key} is no prepared batch of this release: {error}.",
        hint="Run the release that wrote it, or move the object away to prepare the batch anew.",
    )


def prepared_tables(record: Mapping[str, Any]) -> tuple[PreparedTable, ...]:
    """The tables of a record of a prepared object.

    Raises:
        ValueError, KeyError, TypeError: it is none.
    """
    return tuple(_table(table) for table in record["tables"])


def _table(record: dict[str, Any]) -> PreparedTable:
    sequences = {name: tuple(record.get(name, ())) for name in ("files", "new_columns")}
    return PreparedTable(**{**record, **sequences})


def read_prepared(objects: ObjectStore, pipeline: str, generation: int, batch_id: int) -> PreparedBatch | None:
    """The prepared batch, or None while there is none."""
    key = paths.prepared_batch(pipeline, generation, batch_id)
    found = objects.get(key)
    return PreparedBatch.decode(found.data, key=key) if found else None


def prepare(objects: ObjectStore, batch: PreparedBatch) -> PreparedBatch:
    """Fix the batch; returns what is fixed, which is another driver's where that one was first."""
    key = paths.prepared_batch(batch.pipeline, batch.generation, batch.batch_id)
    if objects.put_if_absent(key, batch.encode()):
        return batch
    found = objects.get(key)
    if found is None:
        raise ContractError("PREPARED_BATCH_VANISHED", f"{key} was deleted meanwhile.", hint="Start the stream again.")
    return PreparedBatch.decode(found.data, key=key)
