"""Claims of readers that pin a table version, so that VACUUM keeps its files.

Streams of this project need none: their positions are known. Other readers do: a training job on a pinned version, a
long export, an external reader of the change feed. A claim expires and is renewed by repeating it, so a vanished reader
pins nothing for ever.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import ClassVar

from pydantic import ConfigDict

from deltaworks.control import paths
from deltaworks.control.clock import parse_iso, utc_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.provenance import current_run
from deltaworks.control.records.store import Record, RecordKind, RecordStore
from deltaworks.errors import ConfigError
from deltaworks.specs.base import NAME_PATTERN

MAX_PIN_HOURS = 30 * 24


class ReaderRecord(Record):
    """A claim: the reader needs `version` of the table, and later ones, until `until`."""

    model_config = ConfigDict(extra="ignore")
    kind: ClassVar[RecordKind] = RecordKind(
        noun="claim of a reader",
        unreadable_condition="READER_UNREADABLE",
        hint="The pinned version is unknown. Repeat the claim with `deltaworks tables pin`, or delete the object "
        "if its reader no longer exists.",
        error=ConfigError,
    )

    reader: str
    table: str
    version: int
    claimed_at: str
    until: str
    by: str

    def is_active_at(self, now: datetime) -> bool:
        """Whether the claim is still valid."""
        until = parse_iso(self.until)
        return until is not None and now < until


class ReaderClaims:
    """The claims on the tables of one pipeline."""

    def __init__(self, objects: ObjectStore, pipeline: str) -> None:
        self._objects = objects
        self._pipeline = pipeline
        self._records = RecordStore(objects, ReaderRecord)

    def pin(self, table: str, *, reader: str, version: int, hours: float) -> ReaderRecord:
        """Claims a table version for `hours`, or renews the claim. Does not restore deleted files.

        Raises:
            ConfigError: READER_INVALID.
        """
        if not NAME_PATTERN.match(reader) or version < 0 or not 0 < hours <= MAX_PIN_HOURS:
            raise ConfigError(
                "READER_INVALID",
                f"{reader!r} cannot pin version {version} of {self._pipeline}.{table} for {hours:g} h.",
                hint=f"Use lower-case letters, digits and underscores, and at most {MAX_PIN_HOURS} h.",
            )
        now = utc_now()
        record = ReaderRecord(
            reader=reader,
            table=table,
            version=version,
            claimed_at=now.isoformat(timespec="milliseconds"),
            until=(now + timedelta(hours=hours)).isoformat(timespec="milliseconds"),
            by=current_run(),
        )
        self._objects.put(paths.reader_record(self._pipeline, table, reader), record.encode())
        return record

    def unpin(self, table: str, *, reader: str) -> bool:
        """Deletes a claim; returns False if there was none."""
        key = paths.reader_record(self._pipeline, table, reader)
        if self._objects.get(key) is None:
            return False
        self._objects.delete(key)
        return True

    def read(self) -> list[ReaderRecord]:
        """Reads all claims on the pipeline's tables, expired ones included.

        Raises:
            ConfigError: READER_UNREADABLE: the pinned version is unknown.
        """
        claims = (self._records.read(key) for key in self._objects.list(paths.reader_records(self._pipeline)))
        return [claim for claim in claims if claim is not None]
