"""Holds on a table: readers and writers that need files which newer versions no longer contain.

A reader of a version needs the files of this version and of all later ones. A hold is therefore a time: files removed
after it must not be deleted. Positions are read from:

- a stream of this project that reads a Delta table: the ledger's offset, or the checkpoint of its first batch;
- the query of a live table: its checkpoint;
- a change feed reader: its committed position;
- a job that merges a table: its write turn;
- an unfinished restore: its target version;
- any other reader: its registered hold (`control.records.readers`).

Needs no JVM.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pyarrow import fs

from deltaworks.control import paths
from deltaworks.control.clock import parse_iso, utc_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.write_turn import TurnRecord
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.checkpoint import batch_numbers
from deltaworks.errors import ConfigError
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.sources import DeltaSourceSpec
from deltaworks.tables.changes import last_committed_position
from deltaworks.tables.lake import Lake, arrow_path, select_rows
from deltaworks.tables.log import commit_info_of, committed_at, read_commits
from deltaworks.tables.steps import read_last_completed

#: A job commits or aborts within this time after its write turn expires.
_WRITE_TURN_MARGIN = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A reader or writer that needs the table as of the time `since`; None if the log no longer reaches back to that
    time.
    """

    holder: str
    since: datetime | None


def holds_on(catalog: Catalog, lake: Lake, home: PipelineHome, table: str) -> list[Hold]:
    """Returns all holds on a table. Reads small objects, some commits, and ledger rows.

    Raises:
        ConfigError: READER_UNREADABLE, CHANGES_POSITION_UNKNOWN.
        ContractError: an unreadable generation or write turn.
    """
    key = home.table(table)
    opened = lake.open(key)
    if opened is None:
        return []
    positions = [*_stream_positions(catalog, lake, home, table), *_live_positions(catalog, home, table)]
    positions += [*_change_feed_positions(lake, str(opened.metadata().id)), *_registered_positions(home, table)]
    positions += _rollback_positions(home, table)
    holds = [
        Hold(holder=by, since=_commit_time(lake, key, version))
        for by, version in positions
        if version <= opened.version()
    ]
    return [*holds, *_write_turn_hold(home, table)]


def _commit_time(lake: Lake, key: str, version: int) -> datetime | None:
    ((_, actions),) = read_commits(lake, key, [version])
    return committed_at(commit_info_of(actions or ()))


def _stream_positions(catalog: Catalog, lake: Lake, home: PipelineHome, table: str) -> Iterator[tuple[str, int]]:
    """Yields streams that read the table, with the next version of each."""
    key = home.table(table)
    addresses = {lake.storage.uri(key), lake.storage.spark_uri(key)}
    for name, spec in catalog.pipelines.items():
        source = spec.source
        if not isinstance(source, DeltaSourceSpec):
            continue
        if (source.pipeline, source.table) != (home.pipeline, table) and (source.uri or "").rstrip(
            "/"
        ) not in addresses:
            continue
        reader = PipelineHome(home.objects, name)
        offset = _ledger_offset(lake, reader) or _first_offset(reader)
        if offset is not None:
            yield f"the stream of {name}", int(offset["reservoirVersion"])


def _ledger_offset(lake: Lake, home: PipelineHome) -> dict[str, Any] | None:
    generation = home.generations.current()
    last = read_last_completed(lake, home.pipeline, generation)
    key = paths.checkpoint_store(home.pipeline)
    store = lake.open(key)
    if last is None or store is None:
        return None
    key_values: dict[str, list[Any]] = {"batch_id": [last], "generation": [generation]}
    rows = select_rows(lake, key, store, columns=["end_offset"], values=key_values)
    return _parse_offset(rows[0]["end_offset"]) if rows else None


def _first_offset(home: PipelineHome) -> dict[str, Any] | None:
    recorded = home.generations.read()
    if recorded is None:
        return None
    folder = paths.checkpoint(home.pipeline, recorded.generation, recorded.current.ordinal)
    return _checkpoint_offset(home.objects, folder)


def _live_positions(catalog: Catalog, home: PipelineHome, table: str) -> Iterator[tuple[str, int]]:
    """Yields live table queries that read the table, with the next version of each."""
    generation = home.generations.current()
    for live in catalog.pipeline(home.pipeline).aggregation_tables:
        if live.reads != table:
            continue
        offset = _checkpoint_offset(home.objects, paths.live_checkpoint(home.pipeline, generation, live.name))
        if offset is not None:
            yield f"the live table {live.name}", int(offset["reservoirVersion"])


def _checkpoint_offset(objects: ObjectStore, folder: str) -> dict[str, Any] | None:
    """Returns the offset at which the next batch of a checkpoint starts, or None.

    It is the end of the last committed batch. Before the first commit it is the snapshot that the first batch reads.
    """
    committed = batch_numbers(objects, f"{folder}/commits/")
    started = batch_numbers(objects, f"{folder}/offsets/")
    number = committed[-1] if committed else started[0] if started else None
    stored = objects.get(f"{folder}/offsets/{number}") if number is not None else None
    return _parse_offset(stored.data.decode().splitlines()[-1]) if stored is not None else None


def _parse_offset(text: str | None) -> dict[str, Any] | None:
    offset = json.loads(text) if text else None
    return offset if isinstance(offset, dict) and "reservoirVersion" in offset else None


def _change_feed_positions(lake: Lake, table_id: str) -> Iterator[tuple[str, int]]:
    """Yields change feed readers, with the next version of each. Readers of notifications need only the newest
    version."""
    root = arrow_path(lake.storage, paths.reader())
    for info in lake.filesystem.get_file_info(fs.FileSelector(root, allow_not_found=True)):
        if info.type is not fs.FileType.Directory:
            continue
        position = last_committed_position(lake, paths.reader(info.base_name))
        if position is not None and position.table_id == table_id and position.source == "change_feed":
            yield f"the reader {info.base_name}", position.version + 1


def _registered_positions(home: PipelineHome, table: str) -> Iterator[tuple[str, int]]:
    now = utc_now()
    for record in home.readers.read():
        if record.table == table and record.is_active_at(now):
            yield f"the reader {record.reader} until {record.until[:16]}", record.version


def _rollback_positions(home: PipelineHome, table: str) -> Iterator[tuple[str, int]]:
    """Yields unfinished rollbacks, with the version that each restores."""
    rollback = home.rollbacks.unfinished()
    if rollback is not None and rollback.table == table:
        yield f"rollback {rollback.ordinal} of the table", rollback.to_version
    generation, ended = home.start_overs.newest()
    start_over = None if ended else home.start_overs.read(generation)
    for share in start_over.tables if start_over is not None else ():
        if share.table == table and share.restore_to is not None:
            yield f"the rollback to generation {generation}", share.restore_to


def _write_turn_hold(home: PipelineHome, table: str) -> Iterator[Hold]:
    """Yields the job that has the table's write turn, since it reads a version and has written uncommitted files."""
    stored = home.objects.get(paths.turn_request(home.pipeline, table))
    turn = TurnRecord.decode_or_none(stored.data) if stored is not None else None
    granted = parse_iso(turn.granted_at) if turn is not None and not turn.is_over else None
    if turn is None or granted is None:
        return
    if utc_now() < granted + timedelta(seconds=turn.max_turn_seconds) + _WRITE_TURN_MARGIN:
        yield Hold(holder=f"the write turn of {turn.run}", since=granted)


MINIMUM_RETENTION_HOURS = 168
#: Shortest retention. With 0 a query that runs would lose the files it reads.
SHORTEST_RETENTION_HOURS = 1
#: Shortest retention of a VACUUM that lists the folder: longer than any job takes from writing a file to its commit.
#: VACUUM by the log deletes only files that a commit removed, so it cannot meet files that are not committed yet.
SHORTEST_FULL_RETENTION_HOURS = 24
#: Margin for clock skew, and for the time between computing the retention and VACUUM.
MARGIN_HOURS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """The effective retention in hours, with its reason; `skipped` if the table must not be vacuumed."""

    hours: int
    reason: str = ""
    skipped: bool = False


def check_retention(hours: int, *, below_minimum: str = "", mode: str | None = None) -> None:
    """Rejects a retention that is too short.

    Args:
        below_minimum: the reason for a retention below MINIMUM_RETENTION_HOURS, required for it.
        mode: `full` for a VACUUM that lists the folder.

    Raises:
        ConfigError: VACUUM_RETENTION_TOO_SHORT.
    """
    accepted = bool(below_minimum.strip())
    shortest = SHORTEST_FULL_RETENTION_HOURS if mode == "full" else SHORTEST_RETENTION_HOURS
    if hours >= MINIMUM_RETENTION_HOURS or (accepted and hours >= shortest):
        return
    if accepted and hours >= SHORTEST_RETENTION_HOURS:
        hint = (
            f"Use mode lite, or {SHORTEST_FULL_RETENTION_HOURS} h or more: mode full would also delete files that a "
            "job wrote and has not committed yet."
        )
    elif accepted:
        hint = f"Use {SHORTEST_RETENTION_HOURS} h or more: with less, a running query loses the files it reads."
    else:
        hint = (
            f"Use {MINIMUM_RETENTION_HOURS} h or more. For less, trigger <pipeline>__maintenance with the step "
            "vacuum_tables, retention_hours and allow_below_minimum, which requires an approval."
        )
    raise ConfigError(
        "VACUUM_RETENTION_TOO_SHORT",
        f"A retention of {hours} h would delete files that running jobs, streams and readers still need.",
        hint=hint,
    )


def effective_retention(
    configured_hours: int,
    *,
    promised_hours: int,
    log_hours: int,
    holds: Sequence[Hold],
    now: datetime,
    yields_to_holds: bool = True,
) -> Retention:
    """Returns the effective retention of one table. Pure.

    Args:
        configured_hours: the retention of the pipeline or of this run.
        promised_hours: the declared time travel.
        log_hours: how long the table's log keeps removed files.
        holds: readers and writers, with the time since which each needs files.
        yields_to_holds: lengthens the retention as far as time travel and holds need; otherwise skips the table.
    """
    hours, reason_text = configured_hours, ""
    if promised_hours > hours:
        hours, reason_text = promised_hours, f"declared time travel of {promised_hours} h"
    for hold in holds:
        if hold.since is None:
            reason = f"skipped: {hold.holder} needs a version whose commit is no longer in the log"
            return Retention(hours=hours, reason=reason, skipped=True)
        needed_hours = math.ceil((now - hold.since).total_seconds() / 3600) + MARGIN_HOURS
        if needed_hours > hours:
            hours, reason_text = needed_hours, f"{hold.holder} needs the table as of {hold.since:%Y-%m-%d %H:%M}"
    if reason_text and not yields_to_holds:
        reason = f"skipped: {reason_text}, more than the {configured_hours} h of this run"
        return Retention(hours=hours, reason=reason, skipped=True)
    if hours > log_hours:
        reason = f"skipped: {reason_text or f'a retention of {hours} h is needed'}, but its log keeps {log_hours} h"
        return Retention(hours=hours, reason=f"{reason} (delta.deletedFileRetentionDuration)", skipped=True)
    return Retention(hours=hours, reason=f"kept for {hours} h: {reason_text}" if reason_text else "")
