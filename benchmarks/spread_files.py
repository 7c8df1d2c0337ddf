"""The same events spread evenly over any number of event types, to measure how cost grows with the number of tables.

An event that a table of the games pipeline accepts gets another name, chosen by a hash of its id; all other pieces stay
unchanged. All tables have the columns of the table `events`.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from benchmarks.games_files import GamesFiles, cached_files, landed_objects, write_lines
from deltaworks.events.formats.json import read_events
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.table import TableSpec

_READERS = ("live", "references", "views", "dashboards", "rules", "feeds", "models")


def spread_spec(games: PipelineSpec, tables: int) -> PipelineSpec:
    """Returns the games pipeline with only `tables` tables of equal columns, one per event type."""
    columns = games.table("events").columns
    declared = tuple(
        TableSpec(name=name, when={"eventName": (name,)}, columns=columns) for name in map(_name, range(tables))
    )
    # Removes all declarations that read the original tables, since a task rejects reads of missing tables.
    nothing: dict[str, Any] = dict.fromkeys(_READERS, ())
    gold = games.gold.model_copy(update={"tables": ()})
    return games.model_copy(update={"tables": declared, "gold": gold, "mutations": None, **nothing})


def spread_files(files: GamesFiles, games: PipelineSpec, tables: int, *, progress: Callable[[str], None]) -> GamesFiles:
    """Returns `files` with their events spread over `tables` types, created on first use next to the original files.

    `events` of the result counts all pieces, including those that end in quarantine.
    """
    folder = files.landed.parent / f"spread-{tables}"

    def make() -> dict[str, int]:
        progress(f"spreading {files.events:,} events over {tables} types (first use only)")
        return _make(files, games, tables, folder)

    return cached_files(folder, make)


def _make(files: GamesFiles, games: PipelineSpec, tables: int, folder: Path) -> dict[str, int]:
    event_names = frozenset(str(name) for table in games.tables for name in table.when.get("eventName", ()))
    for form in ("landed", "lines", "unwrapped"):
        (folder / form).mkdir(parents=True)
    pieces_seen = raw_bytes = compressed = 0
    landed = landed_objects(files.landed)
    for number, path in enumerate(landed):
        pieces = [
            _renamed(value, raw, event_names, tables) for value, raw in read_events(gzip.decompress(path.read_bytes()))
        ]
        payload = b"".join(wrapped for wrapped, _ in pieces)
        name = f"{number:06d}.json.gz"
        (folder / "landed" / name).write_bytes(gzip.compress(payload, 6, mtime=0))
        write_lines(folder / "lines" / name, [wrapped for wrapped, _ in pieces])
        write_lines(folder / "unwrapped" / name, [event for _, event in pieces])
        pieces_seen, raw_bytes = pieces_seen + len(pieces), raw_bytes + len(payload)
        compressed += (folder / "landed" / name).stat().st_size
    return {
        "events": pieces_seen,
        "quarantined": files.quarantined,
        "files": len(landed),
        "bytes": raw_bytes,
        "compressed_bytes": compressed,
    }


def _renamed(value: Any, raw: bytes, event_names: frozenset[str], tables: int) -> tuple[bytes, bytes]:
    """Returns a piece and its event, renamed if a table of the games pipeline accepts the event."""
    try:
        event = orjson.loads(value["body"])
        if event["eventName"] not in event_names:
            return raw, raw
    except (orjson.JSONDecodeError, TypeError, KeyError):
        return raw, raw
    identity = str((event.get("eventParams") or {}).get("event_id")).encode()
    event["eventName"] = _name(zlib.crc32(identity) % tables)
    inner = orjson.dumps(event)
    return orjson.dumps({**value, "body": inner.decode()}), inner


def _name(number: int) -> str:
    return f"type_{number:03d}"
