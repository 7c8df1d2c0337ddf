"""Deletes or archives landed objects a declared number of days after every pipeline that reads them has landed them.

Keeps objects that no pipeline reads, objects whose batch is not complete in every pipeline, and objects that a
quarantined row needs for a replay. Removed objects can no longer be reprocessed, replayed, or read by a pipeline that
starts over.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa

from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.control.records.reprocess import Replacements
from deltaworks.engine.object_status import ObjectStatusReader
from deltaworks.errors import ConfigError
from deltaworks.recovery.quarantine.open_rows import Quarantine
from deltaworks.sources.objects.file_event_log import FileEventLog, LogReader, filter_events
from deltaworks.sources.objects.relay.removal import ObjectRemover, RemovalOutcome
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.relay import CleanSpec, RelaySpec
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.lake import Lake

_CONCURRENT_REQUESTS = 8
_CHECK_BATCH_SIZE = 1_000
#: Upper bound of objects removed by one run, which limits the damage of a wrong declaration.
MAX_OBJECTS = 100_000
_COLUMNS = ("seq", "bucket", "key", "etag", "version_id", "size", "received_at")


@dataclass(slots=True, kw_only=True)
class CleanResult:
    """Object counts of one cleanup run (in a dry run: the expected counts).

    - `pending`: objects that a pipeline has not landed yet.
    - `within_retention`: objects younger than the declared number of days.
    - `in_quarantine`: objects that a quarantined row needs for a replay.
    - `without_reader`: objects that no pipeline reads.
    - `changed`: keys whose object was overwritten after its file event.
    - `through_seq`: the last file event before the first skipped one; the next run continues after it.
    """

    relay: str
    mode: str
    dry_run: bool
    removed: int = 0
    bytes: int = 0
    already_absent: int = 0
    changed: int = 0
    pending: int = 0
    within_retention: int = 0
    in_quarantine: int = 0
    without_reader: int = 0
    through_seq: int = 0


def clean_source(
    catalog: Catalog, relay: str, *, dry_run: bool = True, limit: int = MAX_OBJECTS, from_start: bool = False
) -> CleanResult:
    """Removes at most `limit` landed objects that every pipeline has landed. Idempotent; safe while relay and streams
    run.

    Args:
        from_start: read the complete file event log again, including entries that earlier runs have processed.

    Raises:
        ConfigError: RELAY_CLEANUP_UNDECLARED, LANDING_MISSING, OBJECT_NOT_REMOVABLE.
    """
    spec = catalog.relay(relay)
    declared, landing = _require_declaration(spec, catalog.environment.landing)
    objects = open_objects(catalog.environment.lake)
    position = 0 if from_start else _read_position(objects, relay)
    result = CleanResult(relay=relay, mode=declared.mode, dry_run=dry_run, through_seq=position)
    remover = ObjectRemover(
        landing, archive=declared.archive_storage(landing), versioned=spec.overwrites == "every_version"
    )
    _CleanRun(catalog, result, remover, after_days=declared.after_days, limit=limit).clean()
    if not dry_run and result.through_seq > position:
        objects.put(_position_key(relay), json.dumps({"seq": result.through_seq}).encode())
    return result


class _CleanRun:
    """One pass over the file event log, starting where the previous run ended."""

    def __init__(
        self, catalog: Catalog, result: CleanResult, remover: ObjectRemover, *, after_days: float, limit: int
    ) -> None:
        lake = Lake(catalog.environment.lake)
        self._log = FileEventLog(lake, result.relay)
        self._replacements = Replacements(open_objects(catalog.environment.lake)).refresh()
        self._result = result
        self._remove = remover.check if result.dry_run else remover.remove
        self._cutoff = utc_now() - timedelta(days=after_days)
        self._remaining_limit = limit
        #: The lowest `seq` that was skipped. The next run starts there.
        self._first_skipped_seq = sys.maxsize
        # Read the pipelines' positions before their quarantine. An object whose rows are replayed in between is then
        # only kept longer.
        self._readers = ObjectStatusReader(catalog, result.relay).readers()
        self._quarantine_seqs = {
            reader.pipeline: Quarantine(lake, reader.pipeline).required_objects() for reader in self._readers
        }

    def clean(self) -> None:
        with ThreadPoolExecutor(_CONCURRENT_REQUESTS) as threads:
            for part in self._log.read_parts(self._result.through_seq, columns=_COLUMNS):
                self._remove_batch(list(self._removable_rows(part)), threads)
                self._result.through_seq = min(part.column("seq")[-1].as_py(), self._first_skipped_seq - 1)
                if not self._remaining_limit:
                    break

    def _remove_batch(self, candidates: list[dict[str, Any]], threads: ThreadPoolExecutor) -> None:
        """Removes candidate objects up to the limit. Objects that are already absent do not count towards it."""
        at = 0
        while at < len(candidates) and self._remaining_limit:
            piece = candidates[at : at + min(self._remaining_limit, _CHECK_BATCH_SIZE)]
            for row, state in zip(piece, threads.map(self._remove_row, piece), strict=True):
                self._count(row, state)
            at += len(piece)
        if at < len(candidates):
            self._skip(candidates[at])

    def _remove_row(self, row: Mapping[str, Any]) -> RemovalOutcome:
        bucket, key, etag = row["bucket"], row["key"], row["etag"]
        state = self._remove(bucket, key, etag, row["version_id"])
        for tag in self._replacements.successors(bucket, key, etag):
            # An erasure may have rewritten the object; the rewritten object belongs to the same file event.
            if self._remove(bucket, key, tag, None) == "removed":
                state = "removed"
        return state

    def _skip(self, row: Mapping[str, Any]) -> None:
        self._first_skipped_seq = min(self._first_skipped_seq, row["seq"])

    def _removable_rows(self, part: pa.Table) -> Iterator[dict[str, Any]]:
        """Yields the file events of a part of the log whose objects can be removed; counts the others by reason."""
        readers: dict[int, list[LogReader]] = {}
        for reader in self._readers:
            matches = filter_events(part, bucket=reader.bucket, prefix=reader.prefix, glob=reader.glob)
            for seq in matches.column("seq").to_pylist():
                readers.setdefault(seq, []).append(reader)
        for row in part.to_pylist():
            seq, its_readers = row["seq"], readers.get(row["seq"], [])
            if not its_readers:
                self._result.without_reader += 1
                continue
            if any(reader.seq < seq for reader in its_readers):
                self._result.pending += 1
            elif row["received_at"] >= self._cutoff:
                self._result.within_retention += 1
            elif any(seq in self._quarantine_seqs[reader.pipeline] for reader in its_readers):
                self._result.in_quarantine += 1
            else:
                yield row
                continue
            self._skip(row)

    def _count(self, row: Mapping[str, Any], state: RemovalOutcome) -> None:
        if state == "removed":
            self._result.removed += 1
            self._remaining_limit -= 1
            self._result.bytes += row["size"] or 0
        elif state == "missing":
            self._result.already_absent += 1
        else:
            self._result.changed += 1


def _require_declaration(spec: RelaySpec, landing: StorageSpec | None) -> tuple[CleanSpec, StorageSpec]:
    if spec.clean is None:
        raise ConfigError(
            "RELAY_CLEANUP_UNDECLARED",
            f"Relay {spec.relay!r} declares no `clean`, so landed objects are not removed.",
            hint=f"Declare `clean: {{mode: delete, after_days: 30}}` in include/relays/{spec.relay}.yaml.",
        )
    if landing is None:
        raise ConfigError(
            "LANDING_MISSING", f"Relay {spec.relay!r} cleans its buckets, but the environment declares no `landing`."
        )
    return spec.clean, landing


def _position_key(relay: str) -> str:
    return paths.relay_cleanup(relay)


def _read_position(objects: ObjectStore, relay: str) -> int:
    position = objects.get(_position_key(relay))
    return int(json.loads(position.data)["seq"]) if position else 0
