"""Readers that say which version of a table they still need, so that VACUUM waits for them.

Streams of this project need not say it: where they are is known. This is for all others: a training job on a pinned
version, an export that takes days, a reader of the change feed elsewhere. A claim counts for a time and is renewed by
making it again, so that a reader which is gone holds nothing back for ever.
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
    """A reader's claim: it needs `version` of the table, and those after it, until `until`."""

    model_config = ConfigDict(extra="ignore")
    kind: ClassVar[RecordKind] = RecordKind(
        noun="claim of a reader",
        unreadable_condition="READER_UNREADABLE",
        hint="What it keeps is not known. Make it again with `deltaworks tables keep`, or delete the object when its "
        "reader is gone.",
        error=ConfigError,
    )

    reader: str
    table: str
    version: int
    claimed_at: str
    until: str
    by: str

    def is_active_at(self, now: datetime) -> bool:
        """Whether the claim still counts."""
        until = parse_iso(self.until)
        return until is not None and now < until


class Readers:
    """The claims of readers on the tables of one pipeline."""

    def __init__(self, objects: ObjectStore, pipeline: str) -> None:
        self._objects = objects
        self._pipeline = pipeline
        self._records = RecordStore(objects, ReaderRecord)

    def pin(self, table: str, *, reader: str, version: int, hours: float) -> ReaderRecord:
        """Claim, or claim again, a version of a table for `hours`. What is deleted already stays deleted.

        Raises:
            ConfigError: READER_INVALID.
        """
        if not NAME_PATTERN.match(reader) or version < 0 or not 0 < hours <= MAX_PIN_HOURS:
            raise ConfigError(
                "READER_INVALID",
                f"{reader!r} cannot keep version {version} of {self._pipeline}.{table} for {hours:g} h.",
                hint=f"Name the reader in lower-case letters, digits and underscores; {MAX_PIN_HOURS} h at most, renewed.",
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
        """Withdraw a claim; False where there was none."""
        key = paths.reader_record(self._pipeline, table, reader)
        if self._objects.get(key) is None:
            return False
        self._objects.delete(key)
        return True

    def read(self) -> list[ReaderRecord]:
        """All claims on the tables of the pipeline, those that count no more among them.

        Raises:
            ConfigError: READER_UNREADABLE: what it protects is not known.
        """
        claims = (self._records.read(key) for key in self._objects.list(paths.reader_records(self._pipeline)))
        return [claim for claim in claims if claim is not None]
