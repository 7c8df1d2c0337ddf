"""Readers that say which version of a table they still need, so that VACUUM waits for them.

Streams of this project need not say it: where they are is known. This is for all others: a training job on a pinned
version, an export that takes days, a reader of the change feed elsewhere. A word counts for a time and is renewed by
giving it again, so that a reader which is gone holds nothing back for ever.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from deltaworks.control import paths
from deltaworks.control.clock import parse_iso, utc_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.provenance import current_run
from deltaworks.errors import ConfigError
from deltaworks.specs.base import NAME_PATTERN

FORMAT = 1
MOST_HOURS = 30 * 24


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderRecord:
    """A reader's word: it needs `version` of the table, and those after it, until `until`."""

    reader: str
    table: str
    version: int
    said_at: str
    until: str
    by: str
    format: int = FORMAT

    def counts_at(self, now: datetime) -> bool:
        """Whether the word still counts."""
        until = parse_iso(self.until)
        return until is not None and now < until


def keep_version(
    objects: ObjectStore, pipeline: str, table: str, *, reader: str, version: int, hours: float
) -> ReaderRecord:
    """Say, or say anew, that `reader` needs a version of a table for `hours`. What is deleted already stays deleted.

    Raises:
        ConfigError: READER_INVALID.
    """
    if not NAME_PATTERN.match(reader) or version < 0 or not 0 < hours <= MOST_HOURS:
        raise ConfigError(
            "READER_INVALID",
            f"{reader!r} cannot keep version {version} of {pipeline}.{table} for {hours:g} h.",
            hint=f"Name the reader in lower-case letters, digits and underscores; {MOST_HOURS} h at most, said anew.",
        )
    now = utc_now()
    record = ReaderRecord(
        reader=reader,
        table=table,
        version=version,
        said_at=now.isoformat(timespec="milliseconds"),
        until=(now + timedelta(hours=hours)).isoformat(timespec="milliseconds"),
        by=current_run(),
    )
    objects.put(paths.reader_record(pipeline, table, reader), json.dumps(asdict(record)).encode())
    return record


def release_version(objects: ObjectStore, pipeline: str, table: str, *, reader: str) -> bool:
    """Take the word back; False where there was none."""
    key = paths.reader_record(pipeline, table, reader)
    if objects.get(key) is None:
        return False
    objects.delete(key)
    return True


def read_readers(objects: ObjectStore, pipeline: str) -> list[ReaderRecord]:
    """All words on the tables of a pipeline, those that count no more among them.

    Raises:
        ConfigError: READER_UNREADABLE: what it protects is not known.
    """
    found = []
    for key in objects.list(paths.reader_records(pipeline)):
        held = objects.get(key)
        if held is None:
            continue
        try:
            record = json.loads(held.data)
            found.append(ReaderRecord(**{name: record[name] for name in ReaderRecord.__slots__}))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                "READER_UNREADABLE",
                f"{key} is no reader's word ({error}): which version it keeps is not known.",
                hint="Say it anew with `deltaworks tables keep`, or delete the object when its reader is gone.",
            ) from error
    return found
